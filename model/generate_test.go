package model

import (
	"math"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

func sampleOptions() SampleOptions {
	return SampleOptions{N: 3, MaxNew: 20, Sampling: compute.Sampling{Temperature: 0.9},
		EOS: []int32{5, 11, 23, 40, 61, 88}, Seed: 42, Step: 7}
}

func samplePrompts() ([][]int32, []uint64) {
	var prompts [][]int32
	for _, s := range seqsOf(97, 4, 17, 1, 32, 6) {
		prompts = append(prompts, s.IDs)
	}
	return prompts, []uint64{3, 0, 1 << 40, 9, 4}
}

func sameCompletions(t *testing.T, what string, got, want [][]Completion) {
	t.Helper()
	for p := range want {
		for s := range want[p] {
			g, w := got[p][s], want[p][s]
			if !slices.Equal(g.IDs, w.IDs) || g.Truncated != w.Truncated {
				t.Fatalf("%s: prompt %d: sample %d: %v %t, want %v %t", what, p, s, g.IDs,
					g.Truncated, w.IDs, w.Truncated)
			}
			same(t, what, g.Logp, w.Logp)
		}
	}
}

// The sampler's log-probabilities are the trainer's, bit for bit, and each
// response ends as the options say.
func TestGenerateAgainstLogProbs(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		for _, name := range some(t, be, lmFolders) {
			m := load(t, be, name, Options{})
			prompts, rows := samplePrompts()
			o := sampleOptions()
			told := 0
			out, err := m.Generate(prompts, rows, o, func(n int) { told += n })
			must(t, err)
			var seqs []Seq
			var logp [][]float32
			tokens, ended := 0, map[int32]int{}
			for p := range out {
				for _, c := range out[p] {
					seqs = append(seqs, Answer(slices.Concat(prompts[p], c.IDs), len(prompts[p])))
					logp = append(logp, c.Logp)
					tokens += len(c.IDs)
					last := c.IDs[len(c.IDs)-1]
					if i := slices.IndexFunc(c.IDs,
						func(id int32) bool { return slices.Contains(o.EOS, id) }); c.Truncated &&
						(i >= 0 || len(c.IDs) != o.MaxNew) || !c.Truncated && i != len(c.IDs)-1 {
						t.Errorf("%s: prompt %d: %v, truncated %t", name, p, c.IDs, c.Truncated)
					}
					if !c.Truncated {
						ended[last]++
					}
				}
			}
			if told != tokens {
				t.Errorf("%s: told of %d tokens, got %d", name, told, tokens)
			}
			if len(ended) == 0 {
				t.Errorf("%s: no response ended itself: the test shows nothing", name)
			}
			want, _, err := m.LogProbs(seqs, o.Sampling.Temperature)
			must(t, err)
			for i := range want {
				same(t, name, logp[i], want[i])
			}
			must(t, m.Close())
		}
	})
}

// A sample depends on its keys and its prompt alone: not on the slots, the page
// size, the other prompts or their order.
func TestGenerateIndependence(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m := load(t, be, "qwen2_tied", Options{})
		defer m.Close()
		prompts, rows := samplePrompts()
		o := sampleOptions()
		want, err := m.Generate(prompts, rows, o, nil)
		must(t, err)
		distinct := map[string]bool{}
		for _, c := range want[0] {
			distinct[string(runes(c.IDs))] = true
		}
		if len(distinct) < 2 {
			t.Error("the samples of a prompt are all the same")
		}
		for _, slots := range []int{1, 3, 16} {
			for _, page := range []int{1, 4, 64} {
				o.Slots, o.PageTokens = slots, page
				got, err := m.Generate(prompts, rows, o, nil)
				must(t, err)
				sameCompletions(t, "slots and pages", got, want)
			}
		}
		o = sampleOptions()
		o.Slots = 2
		for p := range prompts {
			got, err := m.Generate(prompts[p:p+1], rows[p:p+1], o, nil)
			must(t, err)
			sameCompletions(t, "alone", got, want[p:p+1])
		}
		rp, rr, rw := slices.Clone(prompts), slices.Clone(rows), slices.Clone(want)
		slices.Reverse(rp)
		slices.Reverse(rr)
		slices.Reverse(rw)
		got, err := m.Generate(rp, rr, o, nil)
		must(t, err)
		sameCompletions(t, "reversed", got, rw)

		// Fewer samples are the first of more; one token is the first of many.
		o.N, o.MaxNew = 1, 1
		got, err = m.Generate(prompts, rows, o, nil)
		must(t, err)
		for p := range got {
			if len(got[p]) != 1 || len(got[p][0].IDs) != 1 ||
				got[p][0].IDs[0] != want[p][0].IDs[0] {
				t.Errorf("prompt %d: one token %v, want the first of %v", p, got[p], want[p][0].IDs)
			}
		}
		// Another step draws otherwise.
		o = sampleOptions()
		o.Step++
		got, err = m.Generate(prompts, rows, o, nil)
		must(t, err)
		if slices.Equal(got[0][0].IDs, want[0][0].IDs) &&
			slices.Equal(got[1][0].IDs, want[1][0].IDs) {
			t.Error("another step gives the same samples")
		}
	})
}

func runes(ids []int32) []rune {
	var r []rune
	for _, id := range ids {
		r = append(r, rune(id))
	}
	return r
}

// Greedy sampling takes the most probable token, with its probability at
// temperature 1.
func TestGenerateGreedy(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied", Options{})
	defer m.Close()
	prompt := []int32{3, 14, 15, 92, 65}
	out, err := m.Generate([][]int32{prompt}, []uint64{0}, SampleOptions{N: 2, MaxNew: 4}, nil)
	must(t, err)
	seq := slices.Clone(prompt)
	for i, id := range out[0][0].IDs {
		best, bestLogp := int32(-1), float32(math.Inf(-1))
		for v := range int32(97) {
			l, _, err := m.LogProbs([]Seq{Answer(append(slices.Clone(seq), v), len(seq))}, 1)
			must(t, err)
			if l[0][0] > bestLogp {
				best, bestLogp = v, l[0][0]
			}
		}
		if id != best || out[0][0].Logp[i] != bestLogp {
			t.Fatalf("token %d: %d (%g), want %d (%g)", i, id, out[0][0].Logp[i], best, bestLogp)
		}
		seq = append(seq, id)
	}
	if !slices.Equal(out[0][0].IDs, out[0][1].IDs) {
		t.Error("two greedy samples differ")
	}
}

func TestGenerateErrors(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied", Options{})
	defer m.Close()
	for name, f := range map[string]func(p *[][]int32, r *[]uint64, o *SampleOptions){
		"no samples":       func(p *[][]int32, r *[]uint64, o *SampleOptions) { o.N = 0 },
		"many samples":     func(p *[][]int32, r *[]uint64, o *SampleOptions) { o.N = 1<<16 + 1 },
		"no tokens":        func(p *[][]int32, r *[]uint64, o *SampleOptions) { o.MaxNew = 0 },
		"beyond positions": func(p *[][]int32, r *[]uint64, o *SampleOptions) { o.MaxNew = 256 },
		"overflow": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			o.MaxNew = math.MaxInt
		},
		"temperature": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			o.Sampling.Temperature = math.NaN()
		},
		"top-p": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			o.Sampling.TopP = 1.5
		},
		"end token": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			o.EOS = []int32{97}
		},
		"empty prompt": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			*p = [][]int32{{}}
		},
		"unknown token": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			*p = [][]int32{{97}}
		},
		"keys": func(p *[][]int32, r *[]uint64, o *SampleOptions) { *r = nil },
		"large key": func(p *[][]int32, r *[]uint64,
			o *SampleOptions) {
			*r = []uint64{1 << 48}
		},
	} {
		p, r, o := [][]int32{{1}}, []uint64{0}, sampleOptions()
		f(&p, &r, &o)
		if _, err := m.Generate(p, r, o, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m.fill(m.norm, func(int) float32 { return float32(math.NaN()) })
	if _, err := m.Generate([][]int32{{1}}, []uint64{0}, sampleOptions(), nil); err == nil ||
		!strings.Contains(err.Error(), "not finite") {
		t.Errorf("weights that are not finite: %v", err)
	}
}

// The hooks are told of every token and every response; what was told of a stopped call
// is the beginning of the whole.
func TestGenerateHooks(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied", Options{})
	prompts, rows := samplePrompts()
	o := sampleOptions()
	want, err := m.Generate(prompts, rows, o, nil)
	must(t, err)
	streamed := map[[2]int][]int32{}
	ended := make([][]Completion, len(prompts))
	for p := range ended {
		ended[p] = make([]Completion, o.N)
	}
	o.Slots = 3
	o.Token = func(p, s int, id int32) {
		streamed[[2]int{p, s}] = append(streamed[[2]int{p, s}],
			id)
	}
	o.Done = func(p, s int, c Completion) { ended[p][s] = c }
	_, err = m.Generate(prompts, rows, o, nil)
	must(t, err)
	sameCompletions(t, "told of at its end", ended, want)
	for p := range want {
		for s, c := range want[p] {
			if got := streamed[[2]int{p, s}]; !slices.Equal(got, c.IDs) {
				t.Errorf("prompt %d: sample %d: told of %v, want %v", p, s, got, c.IDs)
			}
		}
	}
	count := 0
	o.Token, o.Done = nil, func(p, s int, c Completion) {
		count++
		if !slices.Equal(c.IDs, want[p][s].IDs) {
			t.Errorf("prompt %d: sample %d of a stopped call: %v", p, s, c.IDs)
		}
	}
	o.Stop = func() bool { return count >= 4 }
	if _, err := m.Generate(prompts, rows, o, nil); err != ErrStopped || count < 4 ||
		count >= len(prompts)*o.N {
		t.Errorf("%v after %d responses", err, count)
	}
}

// A response of which the first tokens stand at the prompt's end goes on as it would have without a
// break, wherever that is: tokens and log-probabilities, to the bit, whatever else is asked for.
func TestGenerateBegun(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m := load(t, be, lmFolders[0], Options{})
		prompts, rows := samplePrompts()
		o := sampleOptions()
		out, err := m.Generate(prompts, rows, o, nil)
		must(t, err)
		var begun [][]int32
		var keys []uint64
		var want [][]Completion
		for p := range prompts {
			for s, c := range out[p] {
				for at := 1; at < len(c.IDs); at += 3 {
					begun = append(begun, slices.Concat(prompts[p], c.IDs[:at]))
					keys = append(keys, rows[p])
					o.Begun = append(o.Begun, Begun{Sample: s, Drawn: at})
					want = append(want, []Completion{{IDs: c.IDs[at:], Logp: c.Logp[at:],
						Truncated: c.Truncated}})
				}
			}
		}
		o.N = 1
		for _, slots := range []int{2, 64} {
			o.Slots = slots
			got, err := m.Generate(begun, keys, o, nil)
			must(t, err)
			sameCompletions(t, "begun", got, want)
		}
		// a thought goes on at its seams
		o = sampleOptions()
		o.EOS, o.Chunks = o.EOS[:1], Chunks{Size: 7, Carry: 4, Head: 1, Most: 5}
		o.MaxNew = o.Chunks.Longest()
		out, err = m.Generate(prompts, rows, o, nil)
		must(t, err)
		begun, keys, want = nil, nil, nil
		for p := range prompts {
			for s, c := range out[p] {
				for _, at := range o.Chunks.Seams(len(c.IDs)) {
					begun = append(begun, slices.Concat(prompts[p], c.IDs[:at]))
					keys = append(keys, rows[p])
					o.Begun = append(o.Begun, Begun{Sample: s, Drawn: at})
					want = append(want, []Completion{{IDs: c.IDs[at:], Logp: c.Logp[at:],
						Truncated: c.Truncated}})
				}
			}
		}
		if o.N = 1; len(begun) < 10 {
			t.Fatalf("only %d seams", len(begun))
		}
		got, err := m.Generate(begun, keys, o, nil)
		must(t, err)
		sameCompletions(t, "at a seam", got, want)
		for name, spoil := range map[string]func(o *SampleOptions){
			"within a chunk":   func(o *SampleOptions) { o.Begun[0].Drawn-- },
			"several answers":  func(o *SampleOptions) { o.N = 2 },
			"too few":          func(o *SampleOptions) { o.Begun = o.Begun[1:] },
			"no token left":    func(o *SampleOptions) { o.Begun[0].Drawn = o.MaxNew },
			"no prompt left":   func(o *SampleOptions) { o.Begun[0].Drawn = len(begun[0]) },
			"before the first": func(o *SampleOptions) { o.Begun[0].Drawn = -1 },
			"no such sample":   func(o *SampleOptions) { o.Begun[0].Sample = -1 },
		} {
			bad := o
			bad.Begun = slices.Clone(o.Begun)
			spoil(&bad)
			if _, err := m.Generate(begun, keys, bad, nil); err == nil {
				t.Errorf("%s: not refused", name)
			}
		}
	})
}
