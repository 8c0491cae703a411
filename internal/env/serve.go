package env

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Serve speaks the protocol on in and out for episodes that begin makes, up to places at once,
// until in ends and all requests are answered. Episodes run concurrently, each in the order of its
// requests. Where they are Forkers, clients may fork them. An episode's error is sent as its fault
// and ends that episode alone; a line that is not a request is an error of Serve.
func Serve(in io.Reader, out io.Writer, name string, places int, begin func() Episode) (err error) {
	s := &server{out: out, open: map[uint64]chan request{}, begin: begin}
	_, forks := begin().(Forker)
	defer func() {
		for _, asked := range s.open {
			close(asked)
		}
		s.playing.Wait()
		if err == nil {
			err = s.failed
		}
	}()
	lines := bufio.NewReader(in)
	for n := 1; ; n++ {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(bytes.TrimSpace(text)) == 0 {
			return nil
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("env: %w", err)
		}
		var q request
		if err := json.Unmarshal(text, &q); err != nil {
			return fmt.Errorf("env: line %d of standard input: %w: give one JSON object a line, as doc/environments.md has it", n, err)
		}
		if q.Op == "hello" && q.Version == Version {
			err = s.write(hello{name, Version, places, forks})
		} else {
			err = s.take(q)
		}
		if err != nil {
			return fmt.Errorf("env: line %d of standard input: %w: see doc/environments.md", n, err)
		}
	}
}

// server is the state of Serve.
type server struct {
	begin   func() Episode
	open    map[uint64]chan request // requests of each episode; closed by close
	playing sync.WaitGroup

	mu     sync.Mutex
	out    io.Writer
	failed error // the first error of a write
}

// write writes an answer as a line. It returns the error of the first write that failed.
func (s *server) write(answer any) error {
	text, err := line(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.failed == nil {
		_, err = s.out.Write(text)
	}
	if err != nil && s.failed == nil {
		s.failed = fmt.Errorf("env: %w", err)
	}
	return s.failed
}

// take passes a request to its episode, or starts one.
func (s *server) take(q request) error {
	if q.Op == "hello" {
		return fmt.Errorf("version %d of the protocol: this program speaks version %d", q.Version,
			Version)
	}
	if q.ID == nil {
		return fmt.Errorf("op %q without an id", q.Op)
	}
	asked, is := s.open[*q.ID]
	switch {
	case q.Op == "reset" && !is && q.Seed != nil && q.Row != nil:
		asked = make(chan request, 8) // clients wait for each reply
		s.open[*q.ID] = asked
		s.playing.Go(func() { s.play(asked, s.begin(), nil) })
		asked <- q
	case q.Op == "fork" && !is && q.From != nil && q.Turns != nil && s.open[*q.From] != nil:
		q.queue = make(chan request, 8)
		s.open[*q.ID] = q.queue
		s.open[*q.From] <- q
	case q.Op == "step" && is && q.Turn != nil:
		asked <- q
	case q.Op == "close":
		if is {
			close(asked)
			delete(s.open, *q.ID)
		}
	default:
		return fmt.Errorf(
			"op %q with id %d: no op of the protocol, or of an episode that is not open", q.Op,
			*q.ID)
	}
	return nil
}

// snapshot is an episode's state after a reply.
type snapshot struct {
	reply Reply
	copy  Forker // never stepped
}

// play answers the requests of one episode, whose snapshots so far are past.
func (s *server) play(asked <-chan request, e Episode, past []snapshot) {
	defer e.Close()
	for q := range asked {
		var reply Reply
		var err error
		begin := func() {} // starts a branch, after the reply to its fork
		switch q.Op {
		case "reset":
			reply, err = e.Reset(context.Background(), *q.Seed, *q.Row)
		case "step":
			turn := Turn{Text: *q.Turn, Cut: q.Cut != nil && *q.Cut}
			reply, err = e.Step(context.Background(), turn)
		case "fork":
			k := *q.Turns
			branch, before := s.begin(), []snapshot(nil) // without a Reset it takes no Step
			if k < 0 || k >= len(past) || past[k].reply.Done {
				err = fmt.Errorf("fork of episode %d behind turn %d: it has not gone on from there",
					*q.From, k)
			} else {
				reply, branch, before = past[k].reply, past[k].copy.Fork(), slices.Clone(past[:k+1])
			}
			begin = func() { s.playing.Go(func() { s.play(q.queue, branch, before) }) }
		}
		if f, is := e.(Forker); is && err == nil && q.Op != "fork" {
			past = append(past, snapshot{reply, f.Fork()})
		}
		answer := replyLine(*q.ID, q.Op, reply)
		if err != nil {
			answer = map[string]any{"id": *q.ID, "error": err.Error()}
		}
		_ = s.write(answer) // its error is in s.failed
		begin()
	}
}

// replyLine returns the fields of a reply to op, without the empty ones.
func replyLine(id uint64, op string, r Reply) map[string]any {
	o := map[string]any{"id": id}
	if r.Prompt != nil {
		o["prompt"] = r.Prompt
	} else if r.Append != nil || !r.Done {
		o["append"] = append([]Message{}, r.Append...)
	}
	if op != "reset" {
		o["reward"], o["done"], o["valid"] = r.Reward, r.Done, r.Valid
	}
	if r.Anchor != "" {
		o["anchor"] = r.Anchor
	}
	if r.Label != "" {
		o["label"] = r.Label
	}
	return o
}
