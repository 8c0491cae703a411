package sampling_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"gad/internal/compute"
	"gad/internal/compute/ref"
	"gad/model"
	"gad/model/internal/pages"
	"gad/model/internal/sampling"
)

// engineOptions have room for little, so that requests wait for slots and for pages.
func engineOptions(longest int) model.EngineOptions {
	return model.EngineOptions{Slots: 3, PageTokens: 4, Pages: pages.Count(longest, 4) + 9,
		Longest: longest}
}

// mixed are requests that differ in all that may differ, and what Generate answers to each.
func mixed(t *testing.T, m *model.Model) (requests []*model.Request, want [][]model.Completion) {
	prompts, rows := samplePrompts()
	settings := []model.Sampling{{Temperature: 0.9}, {}, {Temperature: 1.5, TopK: 20},
		{Temperature: 0.9}, {Temperature: 1, TopP: 0.7, MinP: 0.01}}
	for p, ids := range prompts {
		o := sampleOptions()
		o.N, o.MaxNew, o.Seed, o.Sampling = 1+p%3, 3+5*p, uint64(p), settings[p]
		out, err := m.Generate([][]int32{ids}, rows[p:p+1], o, nil)
		must(t, err)
		want = append(want, out[0])
		requests = append(requests,
			&model.Request{Prompt: ids, N: o.N, MaxNew: o.MaxNew, Sampling: o.Sampling, EOS: o.EOS,
				Seed: o.Seed, Step: o.Step, Row: rows[p]})
	}
	return requests, want
}

// gather has what a request is told of written to got.
func gather(r *model.Request) (got []model.Completion, told []*[]int32) {
	got = make([]model.Completion, r.N)
	for range r.N {
		told = append(told, &[]int32{})
	}
	r.Token = func(s int, t model.Token) bool { *told[s] = append(*told[s], t.ID); return true }
	r.Done = func(s int, c model.Completion) { got[s] = c }
	return got, told
}

// A request has the bits that Generate gives it alone, whenever it comes and whatever is
// under way.
func TestEngineAgainstGenerate(t *testing.T) {
	each := func(t *testing.T, be compute.Backend, name string) {
		m := load(t, be, name)
		defer m.Close()
		requests, want := mixed(t, m)
		for _, every := range []int{0, 1, 2, 5} {
			// of few slots few kinds of sampling are drawn together
			for _, slots := range []int{3, 9} {
				o := engineOptions(80)
				o.Admit = 9 - slots // 6 tokens are one prompt at a time
				if o.Slots = slots; slots > 3 {
					o.Pages *= 4
				}
				e, err := m.NewEngine(o)
				must(t, err)
				var got [][]model.Completion
				var told [][]*[]int32
				for i := 0; len(got) < len(requests) || !e.Idle(); i++ {
					for len(got) < len(requests) && i >= every*len(got) {
						r := *requests[len(got)]
						c, ids := gather(&r)
						got, told = append(got, c), append(told, ids)
						must(t, e.Submit(&r))
					}
					must(t, e.Step())
				}
				sampling.Drained(t, e)
				e.Close()
				sameCompletions(t, fmt.Sprintf("%s: one every %d steps", name, every), got, want)
				for p := range told {
					for s, ids := range told[p] {
						if !slices.Equal(*ids, want[p][s].IDs) {
							t.Errorf("request %d: sample %d: told of %v, want %v", p, s, *ids,
								want[p][s].IDs)
						}
					}
				}
			}
		}
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		each(t, be, "qwen2_tied")
		each(t, be, "qwen3_5") // with states of sequences
	})
}

// A request that is gone, waiting or under way, gives back what it has and changes no other;
// so does a response that its reader ends.
func TestEngineGone(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	requests, want := mixed(t, m)
	for leaver := range requests {
		for _, at := range []int{0, 1, 3, 6} {
			e, err := m.NewEngine(engineOptions(80))
			must(t, err)
			steps := 0
			var got [][]model.Completion
			for i, r := range requests {
				r := *r
				if i == leaver {
					r.N = 4
				}
				c, _ := gather(&r)
				if got = append(got, c); i == leaver {
					r.Done = func(int, model.Completion) {
						if steps > at {
							t.Errorf(
								"request %d is gone after %d steps and told of its end after %d",
								leaver, at, steps)
						}
					}
					r.Gone = func() bool { return steps >= at }
				}
				must(t, e.Submit(&r))
			}
			for ; !e.Idle(); steps++ {
				must(t, e.Step())
			}
			sampling.Drained(t, e)
			e.Close()
			for p := range want {
				if p != leaver {
					sameCompletions(t, fmt.Sprintf("without request %d after %d steps", leaver, at),
						got[p:p+1], want[p:p+1])
				}
			}
		}
	}

	e, err := m.NewEngine(engineOptions(80))
	must(t, err)
	defer e.Close()

	// Gone when all that had begun have ended, and one had not begun.
	gone := false
	must(t,
		e.Submit(
			&model.Request{Prompt: []int32{1, 2, 3, 4, 5, 6}, N: 4, MaxNew: 1,
				Gone: func() bool { return gone }}))
	must(t, e.Step())
	if waiting, running, pages := e.Load(); waiting != 1 || running != 0 || pages == 0 {
		t.Fatalf("%d wait, %d run, %d pages are taken: the test shows nothing", waiting, running,
			pages)
	}
	gone = true
	must(t, e.Step())
	sampling.Drained(t, e)

	var ended model.Completion
	r := *requests[4]
	r.N, r.EOS = 1, nil
	count := 0
	r.Token = func(int, model.Token) bool { count++; return count < 3 }
	r.Done = func(_ int, c model.Completion) { ended = c }
	must(t, e.Submit(&r))
	for !e.Idle() {
		must(t, e.Step())
	}
	sampling.Drained(t, e)
	if len(ended.IDs) != 3 || ended.Truncated || !slices.Equal(ended.IDs, want[4][0].IDs[:3]) {
		t.Errorf("a response ended after 3 tokens: %+v, want the beginning of %v", ended,
			want[4][0].IDs)
	}
}

// An engine that is open keeps no request from being freed once it has ended, and what was
// asked with it.
func TestEngineForgets(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	e, err := m.NewEngine(model.EngineOptions{Slots: 3, PageTokens: 4, Pages: 40, Longest: 80,
		Admit: 5, Keep: true})
	must(t, err)
	defer e.Close()
	var list []weak.Pointer[model.Request]
	var names []string
	steps := 0
	submit := func(name string, r model.Request) {
		r.Prompt = slices.Clone(r.Prompt)
		must(t, e.Submit(&r))
		list, names = append(list, weak.Make(&r)), append(names, name)
	}
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	func() {
		submit("answered", model.Request{Prompt: prompt, N: 2, MaxNew: 6})
		submit("answered alike", model.Request{Prompt: prompt[:7], N: 3, MaxNew: 4, Ranked: true, Top: 2,
			Token: func(int, model.Token) bool { return true }})
		submit("echoed", model.Request{Prompt: prompt, N: 1, Ranked: true, Top: 3,
			Echo: func([]model.Token) {}})
		submit("gone while it waits",
			model.Request{Prompt: prompt, N: 1, MaxNew: 6, Gone: func() bool { return true }})
		submit("gone under way", model.Request{Prompt: prompt[1:], N: 1, MaxNew: 40,
			Gone: func() bool { return steps > 9 }})
		submit("gone while its prompt is computed",
			model.Request{Prompt: append(prompt[3:9:9], make([]int32, 40)...), N: 1, MaxNew: 6,
				Gone: func() bool { return steps > 11 }})
		submit("ended by its first token", model.Request{Prompt: prompt[2:], N: 1, MaxNew: 1})
	}()
	for ; !e.Idle(); steps++ {
		must(t, e.Step())
	}
	sampling.Drained(t, e)
	for range 3 {
		runtime.GC()
	}
	for i, p := range list {
		if p.Value() != nil {
			t.Errorf("request %d, %s, is still reachable", i, names[i])
		}
	}
	runtime.KeepAlive(e)
}

// Ranked tokens are those of the model's distribution, for a prompt and for a response, and
// have the same bits in both.
func TestEngineRanks(t *testing.T) {
	both := func(f func(t *testing.T, be compute.Backend)) {
		onBackends(t, f)
		t.Run("bf16", func(t *testing.T) { narrowly(t, f) })
	}
	both(func(t *testing.T, be compute.Backend) {
		for _, name := range []string{"qwen2_tied", "llama3_sharded"} {
			m := load(t, be, name)
			prompts, _ := samplePrompts()
			o := engineOptions(80)
			e, err := m.NewEngine(o)
			must(t, err)
			told := make([][]model.Token, len(prompts))
			for p, ids := range prompts {
				r := &model.Request{Prompt: ids, N: 1, MaxNew: 9, Ranked: p != 1, Top: p,
					Sampling: model.Sampling{Temperature: float64(p % 2)}}
				r.Token = func(_ int, t model.Token) bool { told[p] = append(told[p], t); return true }
				must(t, e.Submit(r))
			}
			for !e.Idle() {
				must(t, e.Step())
			}
			var whole [][]model.Token
			for p, ids := range prompts {
				all := slices.Clone(ids)
				for _, x := range told[p] {
					all = append(all, x.ID)
				}
				done := 0
				r := &model.Request{Prompt: all, N: 2, Top: p,
					Echo: func(tokens []model.Token) { whole = append(whole, tokens) },
					Done: func(int, model.Completion) { done++ }}
				must(t, e.Submit(r))
				for !e.Idle() {
					must(t, e.Step())
				}
				if done != 2 {
					t.Errorf("%s: prompt %d: told of %d of 2 ends", name, p, done)
				}
				lp, _, err := m.LogProbs([]model.Seq{model.Answer(all, 1)}, 1)
				must(t, err)
				if len(whole[p]) != len(all)-1 {
					t.Fatalf("%s: prompt %d: %d tokens of %d are ranked", name, p, len(whole[p]),
						len(all))
				}
				for i, x := range whole[p] {
					if x.ID != all[i+1] || math.Abs(float64(x.Logp-lp[0][i])) > 1e-5 {
						t.Errorf("%s: prompt %d: token %d: %d with %g, want %d with %g", name, p, i,
							x.ID, x.Logp, all[i+1], lp[0][i])
					}
					if len(x.Top) != p {
						t.Fatalf("%s: prompt %d: token %d: %d choices, want %d", name, p, i,
							len(x.Top), p)
					}
					for k := 1; k < p; k++ {
						if x.Top[k].Logp > x.Top[k-1].Logp {
							t.Errorf("%s: prompt %d: token %d: choices %v are not in order", name,
								p, i, x.Top)
						}
					}
					if p > 0 && x.Logp > x.Top[0].Logp {
						t.Errorf("%s: prompt %d: token %d: %g is more than the best's %g", name, p,
							i, x.Logp, x.Top[0].Logp)
					}
				}
			}
			sampling.Drained(t, e)
			e.Close()
			for p := range told {
				if p == 1 {
					continue // was not ranked
				}
				for i, x := range told[p] {
					w := whole[p][len(prompts[p])-1+i]
					if x.ID != w.ID || x.Logp != w.Logp || !slices.Equal(x.Top, w.Top) {
						t.Errorf("%s: prompt %d: drawn token %d: %+v, in a prompt %+v", name, p, i,
							x, w)
					}
					if p > 0 && p%2 == 0 && x.Top[0] != (model.Choice{x.ID, x.Logp}) {
						t.Errorf("%s: prompt %d: greedy token %d: %+v is not its own best", name, p,
							i, x)
					}
				}
			}
			must(t, m.Close())
		}
	})
}

// Who asks for few choices is not given the work of a request in the same step that asks for many.
func TestEngineRanksNoMore(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	e, err := m.NewEngine(model.EngineOptions{Slots: 4, PageTokens: 4, Pages: 40, Longest: 40})
	must(t, err)
	defer e.Close()
	tops := []int{2, 60, 0, 1}
	told := make([][]model.Token, len(tops))
	for i, top := range tops {
		must(t, e.Submit(&model.Request{Prompt: []int32{4, 5, 6}, N: 1, MaxNew: 5, Ranked: true, Top: top,
			Token: func(_ int, x model.Token) bool { told[i] = append(told[i], x); return true }}))
	}
	for !e.Idle() {
		must(t, e.Step())
	}
	for i, top := range tops {
		for at, x := range told[i] {
			if len(x.Top) != top || top < 60 && cap(x.Top) != top {
				t.Errorf("token %d: %d choices in memory for %d, want %d", at, len(x.Top),
					cap(x.Top), top)
			}
			if w := told[1][at]; x.ID != w.ID || x.Logp != w.Logp ||
				!slices.Equal(x.Top, w.Top[:top]) {
				t.Errorf("token %d with %d choices: %+v, with 60 %+v", at, top, x, w)
			}
		}
	}
}

func TestEngineErrors(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	for _, c := range []struct {
		o    model.EngineOptions
		want string
	}{
		{model.EngineOptions{Slots: -1, Longest: 8, Pages: 9}, "slots from 1 to 65536"},
		{model.EngineOptions{Longest: 257, Pages: 99},
			"sequences of 257 tokens: expected 1 to max_position_embeddings 256"},
		{model.EngineOptions{Longest: 32, PageTokens: 4, Pages: 8},
			"8 pages: a sequence of 32 tokens takes 9"},
	} {
		if _, err := m.NewEngine(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	e, err := m.NewEngine(engineOptions(20))
	must(t, err)
	defer e.Close()
	for want, change := range map[string]func(r *model.Request){
		"empty: expected at least one token": func(r *model.Request) { r.Prompt = nil },
		"18 tokens and 3 new ones: more than the longest": func(r *model.Request) {
			r.Prompt = make([]int32, 18)
		},
		"21 tokens and 0 new ones": func(r *model.Request) {
			r.Prompt,
				r.MaxNew = make([]int32, 21), 0
		},
		"id 97: outside the vocabulary of 97": func(r *model.Request) {
			r.Prompt = []int32{97}
		},
		"id -1: outside": func(r *model.Request) {
			r.EOS = []int32{-1}
		},
		"n 0, max new 3, top 0": func(r *model.Request) { r.N = 0 },
		"max new -1":            func(r *model.Request) { r.MaxNew = -1 },
		"top 1025":              func(r *model.Request) { r.Top = 1025 },
		"expected temperature and top-k of at least 0, top-p": func(r *model.Request) {
			r.Sampling.Temperature = math.NaN()
		},
		"row key": func(r *model.Request) { r.Row = 1 << 48 },
	} {
		r := &model.Request{Prompt: []int32{1}, N: 1, MaxNew: 3}
		change(r)
		if err := e.Submit(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if !e.Idle() {
		t.Error("what was refused waits")
	}
}
