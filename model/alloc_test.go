package model

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
)

// Once its buffers are there, a training step and a decoded token allocate nothing
// on the CPU in float32, whatever the variant and the number of workers.
func TestNoAllocation(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	variants := cpu.Variants()
	if !hostile.Long() {
		variants = variants[len(variants)-1:]
	}
	for _, variant := range variants {
		for _, workers := range []int{1, 3} {
			if !hostile.Long() && workers == 1 { // bfloat16 below has one
				continue
			}
			allocates(t, cpu.Options{Variant: variant, Workers: workers, Precision: cpu.F32})
		}
	}
	// Of several workers each makes the panels that it rounds or packs itself when it
	// first has such a task, at whatever step.
	variants = cpu.Variants16()
	if !hostile.Long() {
		variants = variants[len(variants)-1:]
	}
	for _, variant := range variants {
		allocates(t, cpu.Options{Variant: variant, Workers: 1, Precision: cpu.BF16})
	}
}

func allocates(t *testing.T, o cpu.Options) {
	t.Run(fmt.Sprintf("%s %s, %d workers", o.Variant, o.Precision, o.Workers), func(t *testing.T) {
		be, err := cpu.New(o)
		must(t, err)
		defer be.Close()
		t.Run("train", func(t *testing.T) { allocTrain(t, be) })
		t.Run("score", func(t *testing.T) { allocScore(t, be) })
		t.Run("generate", func(t *testing.T) { allocGenerate(t, be) })
	})
}

// objects is how many each line of this module, tests aside, has allocated since all
// are in the profile. What the runtime allocates for itself does not count.
func objects() map[string]int64 {
	runtime.GC() // publishes the profile
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<13)
	n, ok := runtime.MemProfile(records, true)
	for !ok {
		records = make([]runtime.MemProfileRecord, 2*n)
		n, ok = runtime.MemProfile(records, true)
	}
	by := map[string]int64{}
	for _, r := range records[:n] {
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if f.Function == "runtime.acquireSudog" { // with which a goroutine waits
				break
			}
			if strings.HasPrefix(f.Function, "gad/") {
				if !strings.HasSuffix(f.File, "_test.go") {
					by[fmt.Sprintf("%s, line %d", f.Function, f.Line)] += r.AllocObjects
				}
				break
			}
		}
	}
	return by
}

// none wants no object since before.
func none(t *testing.T, what string, before map[string]int64) {
	t.Helper()
	for line, n := range objects() {
		if n > before[line] {
			t.Errorf("%s: %s: %d objects allocated, want none", what, line, n-before[line])
		}
	}
}

// steps wants no allocation in step after its first call.
func steps(t *testing.T, what string, step func()) {
	t.Helper()
	step()
	before := objects()
	for range 2 {
		step()
	}
	none(t, what, before)
}

// allocConfig has rows long enough for operations to be cut into tasks, and two
// chunks of the vocabulary.
func allocConfig(arch string) Config {
	c := tiny(arch)
	c.Vocab, c.Hidden, c.FFN = 1100, 64, 128
	return c
}

func allocTrain(t *testing.T, be compute.Backend) {
	for _, recompute := range []bool{false, true} {
		m, err := New(be, allocConfig("Qwen3"), Options{Trainable: true, Recompute: recompute,
			Repeat: true})
		must(t, err)
		o, err := NewOptimizer(m, adamw())
		must(t, err)
		long, short := seqsOf(m.cfg.Vocab, 40, 20, 30), seqsOf(m.cfg.Vocab, 20, 40)
		seed := func(logpST, entST [][]float32) (dlogpST, dentST [][]float32,
			err error) {
			return logpST, entST, nil
		}
		steps(t, fmt.Sprintf("a step of two packs, recompute %t", recompute), func() {
			must(t, m.LogProbGrad(long, 1, seed))
			must(t, m.LogProbGrad(short, 1, seed))
			_, _, err := o.step(1e-4)
			must(t, err)
		})
		must(t, m.Close())
	}
}

func allocScore(t *testing.T, be compute.Backend) {
	m, err := New(be, allocConfig("Qwen2"), Options{Kind: Scorer, Trainable: true, ScoreInit: 1,
		Repeat: true})
	must(t, err)
	defer m.Close()
	o, err := NewOptimizer(m, adamw())
	must(t, err)
	seqs := seqsOf(m.cfg.Vocab, 40, 20, 30)
	seqs[2].Spans = []Span{{From: 10, To: 15}, {From: 20, To: 30}}
	seed := func(scoreS []float32) ([]float32, error) { return scoreS, nil }
	steps(t, "a step", func() {
		must(t, m.ScoreGrad(seqs, seed))
		must(t, m.TurnScoreGrad(seqs, seed))
		_, _, err := o.step(1e-4)
		must(t, err)
	})
}

// Stop is asked before each decoded token of all samples; the last is followed by the
// answers.
func allocGenerate(t *testing.T, be compute.Backend) {
	m, err := New(be, allocConfig("Qwen2"), Options{Repeat: true})
	must(t, err)
	defer m.Close()
	prompts := [][]int32{seqsOf(m.cfg.Vocab, 7)[0].IDs, seqsOf(m.cfg.Vocab, 12)[0].IDs}
	// scratch grows with what is seen
	_, err = m.Generate(prompts, []uint64{1, 2}, SampleOptions{N: 3, MaxNew: 12}, nil)
	must(t, err)
	for _, s := range []compute.Sampling{{}, {Temperature: 0.8},
		{Temperature: 1, TopK: 40, TopP: 0.9}, {Temperature: 1, MinP: 0.01}} {
		const tokens = 12
		var before map[string]int64
		asked := 0
		_, err := m.Generate(prompts, []uint64{1, 2},
			SampleOptions{N: 3, MaxNew: tokens, Sampling: s, Stop: func() bool {
				switch asked++; asked {
				case 2:
					before = objects()
				case tokens - 1:
					none(t, fmt.Sprintf("%+v: decoded tokens of 6 samples", s), before)
				}
				return false
			}}, nil)
		must(t, err)
		if asked != tokens {
			t.Fatalf("stop was asked %d times for %d tokens", asked, tokens)
		}
	}
}
