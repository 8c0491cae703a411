package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/hostile"
	"gad/internal/philox"
	"gad/model/internal/pages"
)

// multiple is a backend whose steps of generation have a multiple of so many rows.
type multiple struct {
	compute.Backend
	t    *testing.T
	rows int
	keys map[string]int // calls of Repeat
}

func (m *multiple) DecodeMultiple() int { return m.rows }

func (m *multiple) Repeat(key string, in compute.Indices, op func()) {
	m.keys[key]++
	m.Backend.Repeat(key, in, op)
}

func (m *multiple) CacheWrite(cache, x compute.Tensor, width int, slots []int32) {
	sorted := slices.Clone(slots)
	slices.Sort(sorted)
	if n := len(slices.Compact(sorted)); n != len(slots) {
		m.t.Errorf("%d rows are written to %d slots", len(slots), n)
	}
	m.Backend.CacheWrite(cache, x, width, slots)
}

func (m *multiple) AttentionDecode(o, q, k, v compute.Tensor, a compute.AttnShape,
	pages compute.Pages) {
	if len(pages.Len)%m.rows != 0 {
		m.t.Errorf("a step of %d rows, not a multiple of %d", len(pages.Len), m.rows)
	}
	m.Backend.AttentionDecode(o, q, k, v, a, pages)
}

// Rows that fill a step up change no sample: where products do not depend on the number of
// rows, all bits stay.
func TestGenerateFilledUp(t *testing.T) {
	t.Parallel()
	onBackends(t, func(t *testing.T, be compute.Backend) {
		prompts, rows := samplePrompts()
		var want [][]Completion
		for arm, n := range []int{1, 2, 5, 16} {
			filled := &multiple{be, t, n, map[string]int{}}
			m := load(t, filled, "qwen2_tied", Options{})
			for _, slots := range []int{3, 16} {
				for way, page := range []int{1, 4, 64} { // one page, and several, for the other rows
					if !hostile.InTurn(arm+slots, way, 3) {
						continue
					}
					o := sampleOptions()
					o.Slots, o.PageTokens = slots, page
					got, err := m.Generate(prompts, rows, o, nil)
					must(t, err)
					if want == nil {
						want = got
					}
					sameCompletions(t, fmt.Sprintf("multiples of %d, %d slots, pages of %d", n,
						slots, page), got, want)
				}
			}
			if keys := len(filled.keys); keys > pages.Count(16, n) {
				t.Errorf("multiples of %d: %d keys of Repeat, at most %d wanted", n, keys,
					pages.Count(16, n))
			}
			must(t, m.Close())
		}
	})
}

// dry computes nothing: its samples are as long as they are told to be. Repeat counts what
// the CUDA backend does (internal/compute/cuda/graphs.go): the first call under a key is
// recorded, the second captured, later ones replayed as long as the page tables keep their
// width; 64 keys are kept.
type dry struct {
	compute.Backend
	multiple int
	lengths  []int            // by prompt and sample
	drawn    map[float64]draw // by the number of the draw

	known                  map[string]*repeat
	calls, steps, replayed int
	width                  int // of the step's page tables
}

type draw struct{ sample, token int }

type repeat struct{ used, count, width int }

func (d *dry) DecodeMultiple() int { return d.multiple }

func (d *dry) Embed(_ compute.Tensor, _ *compute.Param, _ []int32)                         {}
func (d *dry) RMSNorm(_, _, _ compute.Tensor, _ *compute.Param, _ float64)                 {}
func (d *dry) Linear(_, _ compute.Tensor, _, _ *compute.Param, _ bool)                     {}
func (d *dry) LinearAdd(_, _, _ compute.Tensor, _ *compute.Param)                          {}
func (d *dry) Linears(_ []compute.Projection, _ compute.Tensor)                            {}
func (d *dry) Rope(_ compute.Tensor, _, _ int, _ []int32, _ compute.Tensor, _ bool)        {}
func (d *dry) CacheWrite(_, _ compute.Tensor, _ int, _ []int32)                            {}
func (d *dry) Gated(_ compute.Activation, _, _, _ compute.Tensor)                          {}
func (d *dry) Copy(_, _ compute.Tensor)                                                    {}
func (d *dry) Attention(_, _, _, _, _ compute.Tensor, _ compute.AttnShape, _ compute.Pack) {}
func (d *dry) AttentionDecode(_, _, _, _ compute.Tensor, _ compute.AttnShape, p compute.Pages) {
	pages := 0
	for _, table := range p.Table {
		pages = max(pages, len(table))
	}
	d.width = (pages + 63) / 64
}

func (d *dry) Sample(ids []int32, _ []float32, _ compute.Tensor, _ *compute.Param,
	_ compute.Sampling, u []float64) {
	for r, u := range u {
		at, ok := d.drawn[u]
		if !ok {
			panic("a number that no sample draws")
		}
		ids[r] = 2
		if at.token == d.lengths[at.sample]-1 {
			ids[r] = 1
		}
	}
}

func (d *dry) Repeat(key string, _ compute.Indices, op func()) {
	op()
	d.calls++
	d.steps++
	r := d.known[key]
	if r == nil {
		for len(d.known) >= 64 {
			oldest := ""
			for k, x := range d.known {
				if oldest == "" || x.used < d.known[oldest].used {
					oldest = k
				}
			}
			delete(d.known, oldest)
		}
		r = &repeat{width: d.width}
		d.known[key] = r
	}
	if r.used = d.calls; r.width != d.width {
		r.count, r.width = 0, d.width
	}
	if r.count++; r.count > 2 {
		d.replayed++
	}
}

// The share of generation's steps that a GPU replays as graphs, over 512 samples of
// lognormal lengths (median 299, at most 512 tokens): with rows as they come, and in
// multiples of 16. A second call finds the graphs of the first.
func TestReplayShare(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	const prompts, each, most = 64, 8, 512
	rng := rand.New(rand.NewPCG(5, 6))
	var lengths []int
	for range prompts * each {
		lengths = append(lengths, min(most, max(1, int(math.Exp(5.7+0.8*rng.NormFloat64())))))
	}
	var texts [][]int32
	var rows []uint64
	drawn := map[float64]draw{}
	for p := range prompts {
		texts, rows = append(texts, make([]int32, 20+rng.IntN(200))), append(rows, uint64(p))
		for s := range each {
			for token := range most {
				drawn[philox.Float64(1, philox.Rollout, 1, uint64(p<<16|s), uint64(token))] = draw{
					p*each + s, token}
			}
		}
	}
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	defer be.Close()
	share := func(slots, multiple int) (first, second float64) {
		d := &dry{Backend: be, multiple: multiple, lengths: lengths, drawn: drawn,
			known: map[string]*repeat{}}
		c := tiny("Qwen2")
		c.Layers, c.MaxPosition = 1, 1024
		m, err := New(d, c, Options{})
		must(t, err)
		defer m.Close()
		var shares []float64
		for range 2 {
			d.steps, d.replayed = 0, 0
			out, err := m.Generate(texts, rows,
				SampleOptions{N: each, MaxNew: most, EOS: []int32{1}, Seed: 1, Step: 1,
					Slots: slots, Sampling: Sampling{Temperature: 1}}, nil)
			must(t, err)
			for p := range out {
				for s, c := range out[p] {
					if len(c.IDs) != lengths[p*each+s] {
						t.Fatalf("prompt %d, sample %d: %d tokens, want %d", p, s, len(c.IDs),
							lengths[p*each+s])
					}
				}
			}
			shares = append(shares, float64(d.replayed)/float64(d.steps))
		}
		t.Logf("%3d slots, rows in multiples of %2d: of %4d steps %.1f %% are replayed, in a second call %.1f %%; %d graphs", slots, multiple, d.steps, 100*shares[0], 100*shares[1], len(d.known))
		return shares[0], shares[1]
	}
	for _, c := range []struct {
		slots int
		least float64
	}{{64, 0.97}, {256, 0.97}, {512, 0.89}} {
		if !hostile.Long() && c.slots == 256 {
			continue // between the others
		}
		exact, again := share(c.slots, 1)
		filled, filledAgain := share(c.slots, 16)
		if filled < c.least || filled <= exact || filledAgain != 1 || filledAgain < again {
			t.Errorf("%d slots: shares of %.3f and then %.3f, %.3f and %.3f without rows that fill up; want at least %.2f, and then 1", c.slots, filled, filledAgain, exact, again, c.least)
		}
	}
}
