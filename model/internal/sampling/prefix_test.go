package sampling_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
	"gad/model"
	"gad/model/internal/pages"
	"gad/model/internal/sampling"
)

// story is all that a request is told.
type story struct {
	echo  []model.Token
	told  [][]model.Token
	done  []model.Completion
	found int // its prompt's tokens that the cache had
}

// listen has a request tell s.
func (s *story) listen(r *model.Request, echo bool) {
	s.told, s.done = make([][]model.Token, r.N), make([]model.Completion, r.N)
	if echo {
		r.Echo = func(tokens []model.Token) { s.echo = slices.Clone(tokens) }
	}
	r.Found = func(n int) { s.found = n }
	r.Token = func(i int, t model.Token) bool { s.told[i] = append(s.told[i], t); return true }
	r.Done = func(i int, c model.Completion) { s.done[i] = c }
}

// asked is a request of the traffic, when it comes and when it goes.
type asked struct {
	model.Request
	echo     bool
	at, gone int // steps; gone 0 is never
}

// traffic is requests whose prompts often begin alike: what an earlier one had, its answer
// included, and something new.
func traffic(rng *rand.Rand, m *model.Model, n, longest int) []asked {
	var list []asked
	var texts [][]int32
	at := 0
	for range n {
		var ids []int32
		twin := len(list) > 0 && rng.IntN(3) == 0 // comes with the one before, and begins like it
		if twin {
			old := list[len(list)-1].Prompt
			ids = slices.Clone(old[:rng.IntN(len(old)+1)])
		} else if len(texts) > 0 && rng.IntN(5) > 0 {
			old := texts[rng.IntN(len(texts))]
			if ids = slices.Clone(old); rng.IntN(3) == 0 {
				ids = ids[:rng.IntN(len(old)+1)]
			}
		}
		for range rng.IntN(11) {
			ids = append(ids, rng.Int32N(int32(m.Config().Vocab)))
		}
		if len(ids) == 0 {
			ids = []int32{1}
		}
		ids = ids[:min(len(ids), longest-15)]
		a := asked{Request: model.Request{Prompt: ids, N: 1 + rng.IntN(3)*rng.IntN(2),
			MaxNew: rng.IntN(14), Seed: rng.Uint64(), Step: 3, EOS: []int32{5, 11, 40},
			Sampling: [...]model.Sampling{{}, {Temperature: 1}, {Temperature: 0.8, TopK: 9}}[rng.IntN(3)],
			Ranked:   rng.IntN(2) == 0, Top: rng.IntN(4)}}
		a.echo = rng.IntN(2) == 0 || a.MaxNew == 0
		if !twin {
			at += 1 + rng.IntN(4)
		}
		if rng.IntN(8) == 0 {
			a.gone = at + 1 + rng.IntN(8)
		}
		a.at = at
		list = append(list, a)
		texts = append(texts, ids)
		if out, err := m.Generate([][]int32{ids}, []uint64{0},
			model.SampleOptions{N: 1, MaxNew: 8, Seed: a.Seed, Step: 3}, nil); err == nil {
			texts = append(texts, slices.Concat(ids, out[0][0].IDs)) // as a chat's next turn has it
		}
	}
	return list
}

// play has an engine answer the traffic; look is called after each step.
func play(t *testing.T, e *model.Engine, list []asked, look func()) []story {
	t.Helper()
	out := make([]story, len(list))
	for step, next := 0, 0; next < len(list) || !e.Idle(); step++ {
		for ; next < len(list) && list[next].at <= step; next++ {
			r, gone := list[next].Request, list[next].gone
			out[next].listen(&r, list[next].echo)
			if gone > 0 {
				r.Gone = func() bool { return step >= gone }
			}
			must(t, e.Submit(&r))
		}
		must(t, e.Step())
		if look != nil {
			look()
		}
	}
	return out
}

// alone is what each request is told by an engine that keeps nothing and has no other.
func alone(t *testing.T, m *model.Model, list []asked, longest int) []story {
	t.Helper()
	e, err := m.NewEngine(model.EngineOptions{PageTokens: 4, Pages: 40 * pages.Count(longest, 4),
		Longest: longest})
	must(t, err)
	defer e.Close()
	var out []story
	for _, a := range list {
		a.at, a.gone = 0, 0
		s := play(t, e, []asked{a}, nil)[0]
		if s.found != 0 {
			t.Fatal("an engine that keeps nothing finds something")
		}
		out = append(out, s)
	}
	return out
}

// equal compares all digits, and takes no choices for no choices.
func equal(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// differs says where a request was told something else.
func differs(list []asked, got, want []story) string {
	for i, a := range list {
		g, w := got[i], want[i]
		g.found, w.found = 0, 0
		if a.gone > 0 && !equal(g, w) { // told of the beginning, or of nothing
			for s := range g.told {
				if n := len(g.told[s]); n > len(w.told[s]) || n > 0 &&
					!equal(g.told[s], w.told[s][:n]) {
					return fmt.Sprintf("request %d, which goes: told %v, want %v", i, g.told[s],
						w.told[s])
				}
			}
			if g.echo != nil && !equal(g.echo, w.echo) {
				return fmt.Sprintf("request %d, which goes: echo %v, want %v", i, g.echo, w.echo)
			}
			continue
		}
		for _, x := range []struct {
			what string
			g, w any
		}{{"echo", g.echo, w.echo}, {"tokens", g.told, w.told}, {"completions", g.done, w.done}} {
			if !equal(x.g, x.w) {
				return fmt.Sprintf("request %d: prompt %v: %s: %v, want %v", i, a.Prompt, x.what,
					x.g, x.w)
			}
		}
	}
	return ""
}

// What a request is told has the same bits with what others left in the cache and without,
// however little room there is and however its prompt is cut.
func TestPrefixesChangeNoBit(t *testing.T) {
	const longest = 60
	check := func(t *testing.T, be compute.Backend, name string, requests int,
		options ...model.EngineOptions) {
		m := load(t, be, name)
		defer m.Close()
		for seed, o := range options {
			list := traffic(rand.New(rand.NewPCG(uint64(seed), 7)), m, requests, longest)
			want := alone(t, m, list, longest)
			o.Longest, o.Keep = longest, true
			e, err := m.NewEngine(o)
			must(t, err)
			tokens := 0
			got := play(t, e, list, func() { sampling.Audit(t, e) })
			if diff := differs(list, got, want); diff != "" {
				t.Fatalf("%s: %+v: %s", name, o, diff)
			}
			sampling.Drained(t, e)
			for i, a := range list {
				if a.gone == 0 {
					tokens += len(a.Prompt)
				}
				if a.gone == 0 && got[i].found >= len(a.Prompt) {
					t.Errorf("%d tokens of %d were found: the last one has to be computed",
						got[i].found, len(a.Prompt))
				}
			}
			found, computed, kept := sampling.Counts(e)
			t.Logf("%s: %+v: %d tokens of prompts found, %d computed, %d kept", name, o, found,
				computed, kept)
			if stateful := m.Config().Stateful(); stateful && (found > 0 || kept > 0) ||
				!stateful && found < computed/6 || found+computed < tokens {
				t.Errorf("%s: %+v: %d tokens of prompts found and %d computed of %d: the test shows nothing", name, o, found, computed, tokens)
			}
			e.Close()
		}
	}
	requests := 100
	if !hostile.Long() {
		requests = 40
	}
	if testing.Short() {
		requests = 20
	}
	tight := model.EngineOptions{Slots: 3, PageTokens: 4, Pages: pages.Count(longest, 4) + 9, Admit: 7}
	options := []model.EngineOptions{
		tight,
		{Slots: 9, PageTokens: 4, Pages: 200, Admit: 30},
		{Slots: 5, PageTokens: 1, Pages: 150, Admit: 5},
		{Slots: 4, PageTokens: 16, Pages: 12},
	}
	onBackends(t, func(t *testing.T, be compute.Backend) {
		// qwen3_5 has states of sequences: nothing is kept
		names := []string{"qwen2_tied", "qwen3", "qwen3_5", "llama3_sharded"}
		if _, slow := be.(*ref.Backend); slow || testing.Short() {
			names = names[1:3]
		}
		for arm, name := range names {
			some := options
			if arm > 0 && !hostile.Long() {
				some = options[:1]
			}
			check(t, be, name, requests, some...)
		}
	})
	t.Run("bf16", func(t *testing.T) {
		narrowly(t,
			func(t *testing.T, be compute.Backend) { check(t, be, "qwen2_tied", requests, options...) })
	})
}

// The comparison above sees a page that is taken for another.
func TestPrefixesOfWrongPages(t *testing.T) {
	const longest = 60
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	list := traffic(rand.New(rand.NewPCG(1, 7)), m, 60, longest)
	want := alone(t, m, list, longest)
	for name, spoil := range sampling.Spoils {
		e, err := m.NewEngine(model.EngineOptions{Slots: 9, PageTokens: 4, Pages: 200, Admit: 30,
			Longest: longest, Keep: true})
		must(t, err)
		if got := play(t, e, list, func() { spoil(e) }); differs(list, got, want) == "" {
			t.Errorf("%s: nobody noticed", name)
		}
		e.Close()
	}
}

// A chat's next turn computes what is new, and so does another answer to a question, asked one
// after the other or together.
func TestPrefixesFound(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	const pt = 4
	options := model.EngineOptions{Slots: 8, PageTokens: pt, Pages: 200, Longest: 200, Keep: true}
	e, err := m.NewEngine(options)
	must(t, err)
	defer e.Close()
	ask := func(rs ...*model.Request) []story {
		list := make([]story, len(rs))
		for i, r := range rs {
			r.N = 1
			list[i].listen(r, r.MaxNew == 0)
			must(t, e.Submit(r))
		}
		for !e.Idle() {
			must(t, e.Step())
		}
		return list
	}
	var chat []int32
	for turn := range 10 {
		had := len(chat)
		for i := range 7 {
			chat = append(chat, int32(13*turn+5*i+1)%97)
		}
		s := ask(&model.Request{Prompt: slices.Clone(chat), MaxNew: 6, Seed: uint64(turn),
			Sampling: model.Sampling{Temperature: 1}})[0]
		// the answer's last token was never passed through the model
		if want := max(0, had-1); s.found != want {
			t.Errorf("turn %d: %d tokens were found, want %d", turn, s.found, want)
		}
		chat = append(chat, s.done[0].IDs...)
	}

	question := chat[1:43]
	choice := func(i int, n int) *model.Request {
		ids := slices.Clone(question)
		for j := range n {
			ids = append(ids, int32(10*i+j+60)%97)
		}
		return &model.Request{Prompt: ids, Top: 2}
	}
	// one after the other: all of the question but its last token, which predicts the choice's
	// first
	for i := range 4 {
		if s, want := ask(choice(i, 3))[0], max(0, min(i, 1)*(len(question)-1)); s.found != want {
			t.Errorf("choice %d: %d tokens were found, want %d", i, s.found, want)
		}
	}
	if s := ask(choice(0, 3))[0]; s.found != len(question)+2 {
		t.Errorf("the same choice again: %d tokens were found, want all but the last of %d",
			s.found, len(question)+3)
	}
	question = chat[2:44] // together: the pages that the first fills
	whole := len(question) / pt * pt
	for i, s := range ask(choice(0, 3), choice(1, 3), choice(2, 3), choice(3, 3)) {
		if want := min(i, 1) * (whole - 1); s.found != want {
			t.Errorf("choice %d of 4 together: %d tokens were found, want %d", i, s.found, want)
		}
	}
	question = chat[3:45] // what was not ranked, or with fewer choices, is computed again
	for i, r := range []*model.Request{{MaxNew: 3}, {Top: 1}, {Top: 2}, {Top: 1},
		{Top: sampling.MaxCachedTop + 1}, {MaxNew: 3}} {
		r.Prompt = question
		want := [...]int{0, 0, 0, len(question) - 1, 0, len(question) - 1}[i]
		if s := ask(r)[0]; s.found != want {
			t.Errorf("request %d for ranks: %d tokens were found, want %d", i, s.found, want)
		}
	}
	sampling.Audit(t, e)
}

// Pages that are kept are in nobody's way: an engine with them admits what one without would,
// in the same step.
func TestPrefixesGiveWay(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	const longest = 60
	list := traffic(rand.New(rand.NewPCG(5, 7)), m, 80, longest)
	var first [2][]int
	for i, keep := range []bool{false, true} {
		e, err := m.NewEngine(model.EngineOptions{Slots: 6, PageTokens: 4,
			Pages: pages.Count(longest, 4) + 5, Longest: longest, Keep: keep})
		must(t, err)
		steps := 0
		first[i] = make([]int, len(list))
		for j, a := range list {
			r := a.Request
			r.Done = nil
			r.Found = func(int) { first[i][j] = steps }
			must(t, e.Submit(&r))
		}
		for ; !e.Idle(); steps++ {
			must(t, e.Step())
		}
		sampling.Drained(t, e)
		e.Close()
	}
	earlier := 0
	for j := range list {
		if first[1][j] > first[0][j] {
			t.Errorf("request %d begins in step %d, without kept pages in step %d", j, first[1][j],
				first[0][j])
		}
		if first[1][j] < first[0][j] {
			earlier++
		}
	}
	if earlier == 0 {
		t.Error("no request begins earlier with kept pages: the test shows nothing")
	}
}

// A long prompt is passed in parts, between which the others go on.
func TestLongPromptsWait(t *testing.T) {
	m := load(t, ref.New(), "qwen2_tied")
	defer m.Close()
	for _, keep := range []bool{false, true} {
		e, err := m.NewEngine(model.EngineOptions{Slots: 3, PageTokens: 4, Pages: 100, Longest: 200,
			Admit: 10, Keep: keep})
		must(t, err)
		long := make([]int32, 95)
		for i := range long {
			long[i] = int32(i*i+3) % 97
		}
		var others, steps, begins int
		must(t,
			e.Submit(
				&model.Request{Prompt: []int32{1, 2, 3}, N: 2, MaxNew: 40,
					Token: func(int, model.Token) bool { others++; return true }}))
		must(t, e.Step())
		first := func(int, model.Token) bool {
			if begins == 0 {
				begins = steps
			}
			return true
		}
		must(t, e.Submit(&model.Request{Prompt: long, N: 1, MaxNew: 2, Token: first}))
		for ; !e.Idle(); steps++ {
			_, computed, _ := sampling.Counts(e)
			had := others
			must(t, e.Step())
			_, now, _ := sampling.Counts(e)
			if most := now - computed; most > 10 || steps < 19 && others != had+2 {
				t.Errorf("step %d: %d tokens of a prompt are computed, others have %d new tokens",
					steps, most, others-had)
			}
		}
		if begins != 9 {
			t.Errorf("a prompt of 95 tokens begins to be answered after step %d, want 9", begins)
		}
		sampling.Drained(t, e)
		e.Close()
	}
}

// However a long prompt is cut, its tokens have the same log-probabilities, and its answer is
// the same, in parts of many rows too.
func TestLongPromptsChangeNoBit(t *testing.T) {
	for _, o := range []struct {
		cpu.Options
		folder string
	}{{cpu.Options{Workers: 1}, "qwen2_tied"}, {cpu.Options{Workers: 3}, "qwen2_tied"},
		{cpu.Options{Workers: 2, Precision: cpu.BF16}, "qwen2_tied"},
		{cpu.Options{}, "gemma3"}, {cpu.Options{}, "mistral_window"}, {cpu.Options{}, "smollm3"},
		{cpu.Options{}, "granite"}} {
		be, err := cpu.New(o.Options)
		must(t, err)
		m := load(t, be, o.folder)
		list := []asked{{Request: model.Request{Prompt: make([]int32, 240), N: 2, MaxNew: 12,
			Ranked: true, Top: 2, Sampling: model.Sampling{Temperature: 1}}, echo: true}}
		for i := range list[0].Prompt {
			list[0].Prompt[i] = int32(i*i*i+5*i) % 97
		}
		want := alone(t, m, list, 256)
		for _, admit := range []int{1, 17, 100, 120, 239} {
			e, err := m.NewEngine(model.EngineOptions{PageTokens: 16, Pages: 40, Longest: 256,
				Admit: admit})
			must(t, err)
			if diff := differs(list, play(t, e, list, nil), want); diff != "" {
				t.Errorf("%s, %d workers, %d tokens at a time: %s", be.Name(), o.Workers, admit,
					diff)
			}
			e.Close()
		}
		must(t, m.Close())
		must(t, be.Close())
	}
}
