// Package generate implements gad generate: a model answers one prompt, or every prompt of a data
// set, or plays an episode in an environment.
//
//	generate.go  Options, one prompt: start here
//	batch.go     a data set: its journal, and how an interrupted command resumes
//
//	environment.go  --env: episodes from one beginning
package generate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"gad/apps/session"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/model"
	"gad/tokenizer"
)

// Options says which model answers, and how.
type Options struct {
	session.Source
	compute.Sampling
	Chunks *model.Chunks // chunks of answers; nil: as the model's run says
	N      int           // answers to a prompt
	// tokens; 0 is DefaultMaxNew, or less where the model's context leaves less
	MaxNew int
	Seed   uint64
}

// DefaultMaxNew is the default of the longest answer, in tokens.
const DefaultMaxNew = 1536

// longest returns the most tokens of an answer: in chunks, of a thought.
func (o Options) longest(chunks model.Chunks) int {
	switch {
	case chunks.On() && o.MaxNew > 0:
		return min(o.MaxNew, chunks.Longest())
	case chunks.On():
		return chunks.Longest()
	}
	return cmp.Or(o.MaxNew, DefaultMaxNew)
}

// Prompt is one message and the form in which its answers are printed.
type Prompt struct {
	Text   string
	System string // "": none
	Raw    bool   // Text is the whole prompt, without a chat template
	Stream bool   // print the answer while it is decoded
	JSON   bool   // with token ids and log-probabilities
}

// ReadPrompt reads a prompt up to the end of in.
func ReadPrompt(in io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(in, session.MaxPromptBytes+1))
	if err != nil {
		return "", fmt.Errorf("generate: --prompt -: standard input: %w", err)
	}
	text := strings.TrimRight(string(raw), "\r\n")
	switch {
	case text == "":
		return "", fault.Usagef("generate: --prompt -: standard input is empty")
	case len(raw) > session.MaxPromptBytes:
		return "", fault.Usagef("generate: --prompt -: standard input has more than %d MB",
			session.MaxPromptBytes>>20)
	case !utf8.ValidString(text):
		return "", fault.Usagef("generate: --prompt -: standard input is not UTF-8 text")
	}
	return text, nil
}

// Answer answers one prompt and prints the answers.
func Answer(s *session.Session, o Options, p Prompt) error {
	m, err := s.Load(o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	var prompt []int32
	if p.Raw {
		prompt = m.Tokenizer.EncodeSpecial(p.Text)
	} else {
		msgs := []tokenizer.Message{{Role: "user", Content: p.Text}}
		if p.System != "" {
			msgs = append([]tokenizer.Message{{Role: "system", Content: p.System}}, msgs...)
		}
		if prompt, err = m.Tokenizer.ChatPrompt(msgs); err != nil {
			return err
		}
	}
	chunks, err := s.AnswerChunks("generate", o.Path, o.Chunks)
	if err != nil {
		return err
	}
	if err := session.CheckChunks("generate", m, chunks); err != nil {
		return err
	}
	limit := o.longest(chunks)
	if room := m.Config().MaxPosition - len(prompt); m.Config().MaxPosition > 0 {
		if room < 1 {
			return fault.Usagef(
				"generate: the prompt has %d tokens, the model takes %d: shorten it", len(prompt),
				m.Config().MaxPosition)
		}
		if !chunks.On() {
			limit = min(limit, room)
		} else if min(limit, chunks.Size) > room {
			return fault.Usagef("generate: the prompt has %d tokens and a chunk %d, the model takes %d: lower --chunk", len(prompt), chunks.Size, m.Config().MaxPosition)
		}
	}
	sample := model.SampleOptions{N: o.N, MaxNew: limit, Chunks: chunks, EOS: m.Tokenizer.EOS(),
		Seed: o.Seed, Slots: m.Together([][]int32{prompt}, o.N, limit, chunks),
		Sampling: o.Sampling}
	if p.Stream {
		return stream(s, m, prompt, sample)
	}
	defer s.Console.Close()
	advance, done := s.Console.Progress("tokens", 0)
	out, err := m.Generate([][]int32{prompt}, []uint64{0}, sample, advance)
	done()
	if err != nil {
		return err
	}
	for i, a := range out[0] {
		text := m.Tokenizer.Decode(a.IDs, true)
		if !p.JSON {
			fmt.Fprintln(s.Out, session.Printable(s.Out, text))
			continue
		}
		if err := session.PrintJSON(s.Out,
			map[string]any{"sample": i, "text": text, "prompt_ids": prompt, "response_ids": a.IDs,
				"logprobs": session.Floats(a.Logp), "truncated": a.Truncated}); err != nil {
			return err
		}
	}
	s.SayCut(out[0], limit)
	return nil
}

// stream prints the answer while it is decoded.
func stream(s *session.Session, m *session.Model, prompt []int32, o model.SampleOptions) error {
	var failed error
	text := m.Tokenizer.Stream(true)
	say := func(part string) {
		if part != "" && failed == nil {
			_, failed = io.WriteString(s.Out, session.Printable(s.Out, part))
		}
	}
	o.Token = func(_, _ int, id int32) { say(text.Next(id)) }
	out, err := m.Generate([][]int32{prompt}, []uint64{0}, o, nil)
	say(text.End() + "\n")
	if err = errors.Join(err, failed); err == nil {
		s.SayCut(out[0], o.MaxNew)
	}
	return err
}
