package env

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Serve speaks the protocol on in and out for episodes that begin makes, up to places at once,
// until the end of in. An error of an episode is reported as its fault and ends that episode alone;
// a line that is no request is an error of Serve.
func Serve(in io.Reader, out io.Writer, name string, places int, begin func() Episode) error {
	open := map[uint64]Episode{}
	defer func() {
		for _, e := range open {
			e.Close()
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
		answer, err := serve(q, name, places, open, begin)
		if err != nil {
			return fmt.Errorf("env: line %d of standard input: %w: see doc/environments.md", n, err)
		}
		if answer == nil {
			continue
		}
		if text, err = line(answer); err == nil {
			_, err = out.Write(text)
		}
		if err != nil {
			return fmt.Errorf("env: %w", err)
		}
	}
}

// serve is the answer to a request, nil for none.
func serve(q request, name string, places int, open map[uint64]Episode,
	begin func() Episode) (any, error) {
	if q.Op == "hello" {
		if q.Version != Version {
			return nil, fmt.Errorf("version %d of the protocol: this program speaks version %d",
				q.Version, Version)
		}
		return hello{name, Version, places}, nil
	}
	if q.ID == nil {
		return nil, fmt.Errorf("op %q without an id", q.Op)
	}
	e, is := open[*q.ID]
	var reply Reply
	var err error
	switch {
	case q.Op == "reset" && !is && q.Seed != nil && q.Row != nil:
		e = begin()
		open[*q.ID] = e
		reply, err = e.Reset(context.Background(), *q.Seed, *q.Row)
	case q.Op == "step" && is && q.Turn != nil:
		turn := Turn{Text: *q.Turn, Cut: q.Cut != nil && *q.Cut}
		reply, err = e.Step(context.Background(), turn)
	case q.Op == "close":
		if is {
			e.Close()
			delete(open, *q.ID)
		}
		return nil, nil
	default:
		return nil,
			fmt.Errorf("op %q with id %d: no op of the protocol, or of an episode that is not open",
				q.Op, *q.ID)
	}
	if err != nil {
		return map[string]any{"id": *q.ID, "error": err.Error()}, nil
	}
	return lineOf(*q.ID, q.Op, reply), nil
}

// lineOf is a reply to op without what it does not have.
func lineOf(id uint64, op string, r Reply) map[string]any {
	o := map[string]any{"id": id}
	if r.Prompt != nil {
		o["prompt"] = r.Prompt
	} else if r.Append != nil || !r.Done {
		o["append"] = append([]Message{}, r.Append...)
	}
	if op == "step" {
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
