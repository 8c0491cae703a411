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

// Answer is what Serve says to a case: the seconds of one run, and of its parts.
type Answer struct {
	Case    string             `json:"case"`
	Seconds float64            `json:"seconds,omitempty"`
	Parts   map[string]float64 `json:"parts,omitempty"`
	Limits  *Limits            `json:"limits,omitempty"`
	Device  string             `json:"device,omitempty"`
	Error   string             `json:"error,omitempty"`
}

// Serve runs the cases that in names, one a line, and answers each with one line of
// JSON: a comparison with other programs asks each of them in turn, so that all
// meet the same machine, and nobody warms up inside a measurement. The cases:
//
//	limits            the machine's limits
//	sft               an SFT step
//	generate          one answer to each of Samples prompts
//	gad               a GAD step
//	linear N I O      a product of N rows, I inputs, O outputs; the median of some
//
// A case that cannot be run is answered with the reason.
func Serve(in io.Reader, out io.Writer, be compute.Backend, c model.Config, load Load) (err error) {
	s := &server{be: be, c: c, load: load, products: map[string][]func(){}}
	defer func() {
		if s.g != nil {
			err = errors.Join(err, s.g.close())
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

// server keeps models and operands from case to case.
type server struct {
	be       compute.Backend
	c        model.Config
	load     Load
	g        *game
	products map[string][]func()
}

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
	if !slices.Contains([]string{"sft", "generate", "gad"}, words[0]) || len(words) > 1 {
		return fmt.Errorf("bench: serve: case %q: expected limits, sft, generate, gad or linear N I O", a.Case)
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

// linear times a product, its operands rotating as in measureOps.
func (s *server) linear(words []string) (float64, error) {
	var d [3]int
	if len(words) != len(d) {
		return 0, fmt.Errorf("bench: serve: linear: %d numbers: expected N I O", len(words))
	}
	for i, w := range words {
		var err error
		if d[i], err = strconv.Atoi(w); err != nil || d[i] < 1 || d[i] > 1<<20 {
			return 0, fmt.Errorf("bench: serve: linear: %q: expected a number from 1 to %d", w, 1<<20)
		}
	}
	n, i, o := d[0], d[1], d[2]
	key := strings.Join(words, " ")
	if s.products[key] == nil {
		bytes := sizesOf(s.be).linear(float64(n), float64(i), float64(o)).bytes
		b := &bed{be: s.be}
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
