package sampling_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/model"
	"gad/model/internal/pages"
	"gad/model/internal/sampling"
)

// scarce is a backend with so much memory.
type scarce struct {
	compute.Backend
	used, most int // elements; most 0 is any number
	refused    int
}

func (s *scarce) Alloc(what string, c compute.Class, n int) (compute.Tensor, error) {
	if s.most > 0 && s.used+n > s.most {
		s.refused++
		return compute.Tensor{}, fmt.Errorf("scarce: %s: %w", what, model.ErrMemory)
	}
	s.used += n
	return s.Backend.Alloc(what, c, n)
}

func (s *scarce) Free(t compute.Tensor) { s.used -= t.Len(); s.Backend.Free(t) }

func onScarce(t *testing.T) (*scarce, *model.Model) {
	t.Helper()
	be, err := cpu.New(cpu.Options{})
	must(t, err)
	t.Cleanup(func() { be.Close() })
	s := &scarce{Backend: be}
	m := load(t, s, "qwen2_tied")
	t.Cleanup(func() { m.Close() })
	return s, m
}

// A request for which there is too little memory ends alone: however little there is, each
// other one is told what it is told in an engine of its own, and the pages are in order.
func TestEngineShortOfMemory(t *testing.T) {
	const longest = 60
	be, m := onScarce(t)
	for seed, o := range []model.EngineOptions{
		{Slots: 9, PageTokens: 4, Pages: 200, Keep: true},
		{Slots: 3, PageTokens: 4, Pages: pages.Count(longest, 4) + 9, Admit: 7, Keep: true},
		{Slots: 5, PageTokens: 16, Pages: 40, Admit: 30},
	} {
		be.most, o.Longest = 0, longest
		list := traffic(rand.New(rand.NewPCG(uint64(seed), 11)), m, 60, longest)
		want := alone(t, m, list, longest)
		failed := make([]error, len(list))
		for i := range list {
			list[i].Failed = func(err error) {
				if failed[i] != nil {
					t.Errorf("request %d: told twice of its end", i)
				}
				failed[i] = err
			}
		}
		fewest, most := len(list), 0
		for room := 0; ; room += 1500 {
			be.most = 0
			e, err := m.NewEngine(o)
			must(t, err)
			e.Close()
			sampling.Free(e) // what the last round has taken
			be.refused = 0
			e, err = m.NewEngine(o)
			must(t, err)
			clear(failed)
			be.most = be.used + room
			got := play(t, e, list, func() {
				sampling.Audit(t, e)
				used := be.used
				if must(t, sampling.TakeAgain(e)); be.used != used {
					t.Fatalf("room for %d: the engine has not what it says it has", room)
				}
			})
			be.most = 0
			sampling.Drained(t, e)
			e.Close()
			var rest []asked
			var g, w []story
			for i, a := range list {
				switch {
				case failed[i] == nil:
					rest, g, w = append(rest, a), append(g, got[i]), append(w, want[i])
				case !errors.Is(failed[i], model.ErrMemory):
					t.Errorf("request %d: %v", i, failed[i])
				case got[i].echo != nil ||
					slices.ContainsFunc(got[i].told, func(x []model.Token) bool { return x != nil }) ||
					slices.ContainsFunc(got[i].done,
						func(c model.Completion) bool { return c.IDs != nil || c.Truncated }):
					t.Errorf("request %d failed and was told %+v", i, got[i])
				}
			}
			if diff := differs(rest, g, w); diff != "" {
				t.Fatalf("%+v: room for %d: %s", o, room, diff)
			}
			n := len(list) - len(rest)
			fewest, most = min(fewest, n), max(most, n)
			if be.refused == 0 {
				break // all that there may be
			}
		}
		t.Logf("%+v: from %d to %d of %d requests fail", o, fewest, most, len(list))
		if fewest > 0 || most < len(list)/2 {
			t.Errorf("%+v: from %d to %d of %d requests fail: the test shows little", o, fewest,
				most, len(list))
		}
	}
}

// The request that fails is the one that is too long, not those beside it; who is not to be
// told of it has Step say so. With more memory it is answered.
func TestEngineFailsOne(t *testing.T) {
	be, m := onScarce(t)
	short, long := []int32{1, 2, 3}, make([]int32, 200)
	o := model.EngineOptions{Slots: 4, PageTokens: 4, Pages: 200, Longest: 240, Keep: true}
	e, err := m.NewEngine(o)
	must(t, err)
	told := map[string]int{}
	submit := func(name string, prompt []int32, failed func(error)) {
		must(t, e.Submit(&model.Request{Prompt: prompt, N: 2, MaxNew: 5, Failed: failed,
			Token: func(int, model.Token) bool { told[name]++; return true },
			Done:  func(int, model.Completion) { told[name+" done"]++ }}))
	}
	fail := func(err error) {
		if told["failed"]++; !errors.Is(err, model.ErrMemory) {
			t.Error(err)
		}
	}
	submit("before", short, fail)
	must(t, e.Step())
	be.most = be.used + 2000
	submit("long", long, fail)
	submit("after", short, fail)
	for !e.Idle() {
		must(t, e.Step())
		sampling.Audit(t, e)
	}
	sampling.Drained(t, e)
	if want := map[string]int{"before": 10, "before done": 2, "after": 10, "after done": 2,
		"failed": 1}; !equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	be.most = 0
	submit("long", long, fail)
	for !e.Idle() {
		must(t, e.Step())
	}
	if told["long"] != 10 || told["failed"] != 1 {
		t.Errorf("with more memory: %v", told)
	}
	e.Close()

	// What it tried to take does not lack to the next.
	needs := func(name string, prompts ...[]int32) {
		e, err = m.NewEngine(o)
		must(t, err)
		for _, ids := range prompts {
			submit(name, ids, fail)
		}
		for !e.Idle() {
			must(t, e.Step())
		}
		e.Close()
	}
	sampling.Free(e)
	needs("middle", long[:60])
	be.most = be.used
	sampling.Free(e)
	if needs("both", long, long[:60]); told["both"] != 10 || told["failed"] != 2 {
		t.Errorf("a long one, then one that has just enough: %v", told)
	}

	be.most = 0
	sampling.Free(e)
	before := be.used
	e, err = m.NewEngine(o)
	must(t, err)
	open := be.used
	e.Close()
	sampling.Free(e)
	be.most = open - 1
	if _, err := m.NewEngine(o); !errors.Is(err, model.ErrMemory) || be.used != before {
		t.Errorf("an engine with one element too little: %v, %d elements are in use, before %d",
			err, be.used, before)
	}

	be.most = 0
	e, err = m.NewEngine(o)
	must(t, err)
	defer e.Close()
	be.most = be.used + 2000
	submit("long", long, nil)
	if err := e.Step(); !errors.Is(err, model.ErrMemory) {
		t.Errorf("nobody is told: %v", err)
	}
}
