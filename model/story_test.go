package model

import (
	"fmt"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
)

// story is what a request is told.
type story struct {
	told  []Token
	found int // its prompt's tokens that the cache had
}

// ask has an engine answer a request, and calls more after the first step.
func ask(t *testing.T, e *Engine, r *Request, more func()) (s story, err error) {
	t.Helper()
	r.Found = func(n int) { s.found = n }
	r.Token = func(_ int, t Token) bool { s.told = append(s.told, t); return true }
	must(t, e.Submit(r))
	for !e.Idle() {
		if err := e.Step(); err != nil {
			return s, err
		}
		if more != nil {
			more()
			more = nil
		}
	}
	return s, nil
}

// Nothing that was computed with other weights is found, whoever has written them.
func TestPrefixesOfOldWeights(t *testing.T) {
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	defer be.Close()
	c := tiny("Qwen3")
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	answer := func(e *Engine, more func()) (story, error) {
		return ask(t, e, &Request{Prompt: prompt, N: 1, MaxNew: 6, Ranked: true,
			Sampling: Sampling{Temperature: 1}, Seed: 4}, more)
	}
	options := EngineOptions{Pages: 40, Longest: 40, Keep: true}
	learn := func(m *Model, o *Optimizer) {
		must(t, m.LogProbGrad([]Seq{Answer(prompt, 2)}, 1,
			func(l, _ [][]float32) (_, _ [][]float32, err error) { return l, nil, nil }))
		_, _, err := o.step(1e-2)
		must(t, err)
	}
	student, err := New(be, c, Options{Trainable: true, Seed: 1})
	must(t, err)
	defer student.Close()
	optimizer, err := NewOptimizer(student, AdamWConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8})
	must(t, err)
	other, err := New(be, c, Options{Seed: 2})
	must(t, err)
	defer other.Close()
	base, err := New(be, c, Options{Seed: 3})
	must(t, err)
	defer base.Close()
	adapted, err := base.Adapt(
		Options{Trainable: true, Seed: 5, LoRA: LoRA{Rank: 2, Targets: "all-linear"}})
	must(t, err)
	defer adapted.Close()
	adapting, err := NewOptimizer(adapted, AdamWConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8})
	must(t, err)
	merged, err := adapted.Merged()
	must(t, err)
	defer merged.Close()
	for _, x := range []struct {
		name   string
		m      *Model
		change func()
	}{
		{"a step of the optimizer", student, func() { learn(student, optimizer) }},
		{"CopyWeights", student, func() { must(t, student.CopyWeights(other)) }},
		{"a step of adapters", adapted,
			func() { learn(adapted, adapting); learn(adapted, adapting) }},
		{"Remerge", merged, func() { must(t, adapted.Remerge(merged)) }},
		{"CopyWeights of the base", adapted, func() { must(t, base.CopyWeights(other)) }},
	} {
		e, err := x.m.NewEngine(options)
		must(t, err)
		before, err := answer(e, nil)
		must(t, err)
		if again, err := answer(e, nil); err != nil || again.found != len(prompt)-1 {
			t.Errorf("%s: before: %d tokens are found, %v", x.name, again.found, err)
		}
		x.change()
		got, err := answer(e, nil)
		must(t, err)
		e.Close()
		fresh, err := x.m.NewEngine(options)
		must(t, err)
		want, err := answer(fresh, nil)
		must(t, err)
		if fmt.Sprint(got.told) != fmt.Sprint(want.told) {
			t.Errorf("%s: told %+v, a new engine tells %+v", x.name, got, want)
		}
		if fmt.Sprint(before.told) == fmt.Sprint(want.told) {
			t.Errorf("%s changes nothing: the test shows nothing", x.name)
		}
		if _, err := answer(fresh, x.change); err == nil || !strings.Contains(err.Error(), "the weights have changed while a request is under way: wait until the engine is idle") {
			t.Errorf("%s while a request is under way: %v", x.name, err)
		}
		fresh.Close()
	}
}
