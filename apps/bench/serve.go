package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"gad/internal/compute"
	"gad/model"
)

// Answer is Serve's answer to a case: the seconds of one run and of its parts, or an error.
type Answer struct {
	Case    string  `json:"case"`
	Seconds float64 `json:"seconds,omitempty"`
	// sample: seconds until every sequence had its first token
	First  float64            `json:"first,omitempty"`
	Tokens [][]int32          `json:"tokens,omitempty"` // sample: the tokens of each sequence
	Parts  map[string]float64 `json:"parts,omitempty"`
	Limits *Limits            `json:"limits,omitempty"`
	Device string             `json:"device,omitempty"`
	Error  string             `json:"error,omitempty"`
}

// Serve reads cases from in, one a line, runs each and writes one line of JSON, an Answer, to out.
// A comparison sends each case to several programs in turn, so that all measure in the
// same state of the machine, and after their warm-up. The cases:
//
//	limits            the machine's limits
//	sft               an SFT step
//	generate          one answer to each of Samples prompts
//	gad               a GAD step
//	linear N I O      a product of N rows, I inputs, O outputs; the median of some
//	sample B P N T F  one answer of N tokens to each of B prompts of P tokens at
//	                  temperature T (0: greedy), by the model of folder F, kept as
//	                  Load.Weights says; nothing
//	                  ends an answer early. Loading F is not timed
//
// A case that cannot be run is answered with the reason.
func Serve(in io.Reader, out io.Writer, be compute.Backend, c model.Config, load Load) (err error) {
	s := &server{be: be, c: c, load: load, products: map[string][]func(){}}
	defer func() {
		if s.g != nil {
			err = errors.Join(err, s.g.close())
		}
		if s.lm != nil {
			err = errors.Join(err, s.lm.Close())
		}
	}()
	enc := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		a := Answer{Case: strings.TrimSpace(lines.Text()), Device: be.Name()}
		if err := s.run(&a); err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return fmt.Errorf("bench: serve: %w", err)
		}
	}
}

// server is the models and operands that Serve keeps from case to case.
type server struct {
	be       compute.Backend
	c        model.Config
	load     Load
	g        *game
	products map[string][]func()

	lm     *model.Model // of the sample case
	folder string       // lm's folder
	draws  uint64       // sample cases so far: each draws other tokens
}

// run runs a case and fills its answer.
func (s *server) run(a *Answer) (err error) {
	words := strings.Fields(a.Case)
	if len(words) == 0 {
		return errors.New("bench: serve: no case on this line")
	}
	if words[0] == "limits" {
		l, err := measureLimits(s.be)
		a.Limits = &l
		return err
	}
	if words[0] == "linear" {
		a.Seconds, err = s.linear(words[1:])
		return err
	}
	if words[0] == "sample" {
		return s.sample(a)
	}
	if !slices.Contains([]string{"sft", "generate", "gad"}, words[0]) || len(words) > 1 {
		return fmt.Errorf("bench: serve: case %q: expected limits, sft, generate, gad, linear N I O or sample B P N T F", a.Case)
	}
	if s.g == nil {
		if s.g, err = newGame(s.be, s.c, s.load); err != nil {
			return err
		}
	}
	if words[0] == "gad" {
		if err := s.g.complete(); err != nil {
			return err
		}
	}
	began := time.Now()
	switch words[0] {
	case "sft":
		err = s.g.sftStep()
	case "generate":
		err = s.g.generate()
	default:
		a.Parts = map[string]float64{}
		err = s.g.gadStep(func(part string, seconds float64) { a.Parts[part] = seconds })
	}
	a.Seconds = time.Since(began).Seconds()
	return err
}

// linear times a product, its operands in turn as in measureOps.
func (s *server) linear(words []string) (float64, error) {
	var d [3]int
	if len(words) != len(d) {
		return 0, fmt.Errorf("bench: serve: linear: %d numbers: expected N I O", len(words))
	}
	for i, w := range words {
		var err error
		if d[i], err = strconv.Atoi(w); err != nil || d[i] < 1 || d[i] > 1<<20 {
			return 0, fmt.Errorf("bench: serve: linear: %q: expected a number from 1 to %d", w,
				1<<20)
		}
	}
	n, i, o := d[0], d[1], d[2]
	key := strings.Join(words, " ")
	if s.products[key] == nil {
		bytes := elementsOf(s.be).Linear(float64(n), float64(i), float64(o)).Bytes
		b := &operands{be: s.be}
		for range copies(bytes) {
			x, y, w := b.t(compute.Narrow, n*i), b.t(compute.Narrow, n*o), b.param(o, i, false)
			s.products[key] = append(s.products[key], func() { s.be.Linear(y, x, w, nil, false) })
		}
		if b.err != nil {
			b.free()
			delete(s.products, key)
			return 0, b.err
		}
	}
	st, err := measure(s.be, s.products[key], 100*time.Millisecond)
	return st.Seconds, err
}

// sample runs a case sample: it answers B prompts at the same time.
func (s *server) sample(a *Answer) error {
	words := strings.SplitN(a.Case, " ", 6) // a folder's name may contain spaces
	if len(words) != 6 {
		return fmt.Errorf("bench: serve: sample: %d words: expected sample B P N T F", len(words))
	}
	var d [3]int
	for i, w := range words[1:4] {
		var err error
		if d[i], err = strconv.Atoi(w); err != nil || d[i] < 1 || d[i] > 1<<16 {
			return fmt.Errorf("bench: serve: sample: %q: expected a number from 1 to %d", w, 1<<16)
		}
	}
	temperature, err := strconv.ParseFloat(words[4], 64)
	if err != nil {
		return fmt.Errorf("bench: serve: sample: temperature %q: expected a number of at least 0",
			words[4])
	}
	if s.lm == nil || s.folder != words[5] {
		if s.lm != nil {
			if err := s.lm.Close(); err != nil {
				return err
			}
			s.lm = nil
		}
		if s.lm, err = model.Load(s.be, words[5],
			model.Options{Kind: model.LM, Repeat: true, Quant: s.load.Weights}); err != nil {
			return err
		}
		s.folder = words[5]
	}
	prompts, rows := make([][]int32, d[0]), make([]uint64, d[0])
	for i := range prompts {
		prompts[i], rows[i] = ids(d[1], 1000+i, s.lm.Config().Vocab), uint64(i)
	}
	s.draws++
	begun, began := 0, time.Now()
	out, err := s.lm.Generate(prompts, rows,
		model.SampleOptions{N: 1, MaxNew: d[2], Slots: d[0], Seed: 1, Step: s.draws,
			Sampling: compute.Sampling{Temperature: temperature},
			Token: func(_, _ int, _ int32) {
				if begun++; begun == d[0] {
					a.First = time.Since(began).Seconds()
				}
			}}, nil)
	a.Seconds = time.Since(began).Seconds()
	for _, c := range out {
		a.Tokens = append(a.Tokens, c[0].IDs)
	}
	return err
}
