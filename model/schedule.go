package model

import (
	"fmt"
	"math"
)

// Schedule is a learning rate by optimizer step: linear from 0 to Peak during Warmup steps, then by
// Kind down to Floor times Peak at step Total, and constant afterwards.
type Schedule struct {
	Peak   float64 // learning rate at the end of the warm-up
	Kind   string  // "constant" (also ""), "cosine" or "linear"
	Warmup int     // steps
	Total  int     // steps, Warmup included; not used by "constant"
	Floor  float64 // share of Peak at the end
}

// Validate returns an error about the first invalid field of s.
func (s Schedule) Validate() error {
	switch s.Kind {
	case "", "constant", "cosine", "linear":
	default:
		return fmt.Errorf("model: schedule %q: expected constant, cosine or linear", s.Kind)
	}
	if s.Warmup < 0 || !(s.Floor >= 0 && s.Floor <= 1) {
		return fmt.Errorf(
			"model: schedule: warm-up of %d steps, floor %g: expected at least 0, and 0 to 1",
			s.Warmup, s.Floor)
	}
	if (s.Kind == "cosine" || s.Kind == "linear") && s.Total <= s.Warmup {
		return fmt.Errorf("model: schedule %q: a run of %d steps has a warm-up of %d, and the rate falls after it: more steps, or a shorter warm-up", s.Kind, s.Total, s.Warmup)
	}
	if (s.Kind == "cosine" || s.Kind == "linear") && s.Total == 1 && s.Floor == 0 {
		return fmt.Errorf("model: schedule %q: the last step has rate 0, and a run of one optimizer step no other: use constant, or more steps", s.Kind)
	}
	return nil
}

// At returns the learning rate of a step; the first step is 1, step Warmup has Peak.
func (s Schedule) At(step int) float64 {
	if step < s.Warmup {
		return s.Peak * float64(step) / float64(s.Warmup)
	}
	if s.Kind == "" || s.Kind == "constant" {
		return s.Peak
	}
	done := 1.0
	if step < s.Total {
		done = float64(step-s.Warmup) / float64(s.Total-s.Warmup)
	}
	left := 1 - done
	if s.Kind == "cosine" {
		left = (1 + math.Cos(math.Pi*done)) / 2
	}
	return s.Peak * (s.Floor + (1-s.Floor)*left)
}
