package episode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gad/internal/env"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/modeltest"
)

// talk is an environment whose replies depend on the seed and on all turns.
type talk struct {
	turns   int           // of an episode
	prompt  bool          // the next context is given whole, and is the first again
	delay   time.Duration // of a reply, at most
	fault   func(seed uint64, turn int) bool
	long    int // repetitions of a message
	started func()
}

func (t talk) Name() string { return "talk" }

func (t talk) Episode() env.Episode { return &talking{talk: t} }

type talking struct {
	talk
	seed uint64
	said []string
}

func (t *talking) wait(ctx context.Context) error {
	if t.delay > 0 {
		select {
		case <-time.After(rand.N(t.delay)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

func (t *talking) Reset(ctx context.Context, seed uint64, row env.Row) (env.Reply, error) {
	if t.started != nil {
		t.started()
	}
	t.seed = seed
	if err := t.wait(ctx); err != nil {
		return env.Reply{}, err
	}
	return env.Reply{Append: []env.Message{{Role: "user", Content: fmt.Sprint(seed % 7)}},
		Valid: true, Anchor: "start"}, nil
}

func (t *talking) Step(ctx context.Context, turn env.Turn) (env.Reply, error) {
	if err := t.wait(ctx); err != nil {
		return env.Reply{}, err
	}
	t.said = append(t.said, turn.Text)
	if t.fault != nil && t.fault(t.seed, len(t.said)) {
		return env.Reply{}, fmt.Errorf("%w: broken", env.ErrFault)
	}
	n := len(strings.Join(t.said, " "))
	r := env.Reply{Reward: float64(n % 5), Valid: n%3 > 0, Anchor: fmt.Sprint(n % 2),
		Done: len(t.said) == t.turns, Label: "end"}
	next := []env.Message{{Role: "user",
		Content: strings.Repeat(fmt.Sprint(n%10), max(t.long, 1))}}
	if r.Prompt, r.Append = next, nil; !t.prompt {
		r.Prompt, r.Append = nil, next
	} else {
		next[0].Content = "1"
	}
	return r, nil
}

func (t *talking) Close() {}

type room struct {
	*testing.T
	m      *model.Model
	tok    *tokenizer.Tokenizer
	limits Limits
	slots  int
	broken func(n int, first string) error
}

func open(t *testing.T) *room {
	m, err := model.Load(modeltest.Backend(t), modeltest.Student(t), model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &room{t, m, modeltest.Tokenizer(t),
		Limits{Prompt: 48, Turn: 8, Turns: 6, Tokens: 80}, 64, nil}
}

func tasks(rows, samples int) (list []Task) {
	for r := range rows {
		for s := range samples {
			list = append(list, Task{Row: env.Row{Content: []env.Message{{Role: "user",
				Content: "Hi"}, {Role: "assistant", Content: "Yes"}}}, Seed: uint64(r),
				Key: uint64(r), Sample: s})
		}
	}
	return list
}

func (r *room) play(ctx context.Context, w env.Environment, list []Task) ([]Episode, error) {
	e, err := r.m.NewEngine(r.limits.Engine(r.slots, len(list)))
	if err != nil {
		r.Fatal(err)
	}
	defer e.Close()
	p := &Player{Tok: r.tok, Env: w, Limits: r.limits, Sampling: model.Sampling{Temperature: 1,
		TopP: 1}, Seed: 5, Step: 3, Slots: r.slots,
		Broken: r.broken}
	return p.Play(ctx, e, list)
}

func (r *room) must(w env.Environment, list []Task) []Episode {
	r.Helper()
	out, err := r.play(context.Background(), w, list)
	if err != nil {
		r.Fatal(err)
	}
	return out
}

// Every turn's log-probabilities are, to the bit, those of one forward pass over the whole
// episode: each turn was sampled with the context that is learned. Environments that answer in
// another order, fewer slots and other episodes beside it change nothing.
func TestPlay(t *testing.T) {
	r := open(t)
	want := r.must(talk{turns: 3}, tasks(6, 3))
	spoken := map[string]bool{}
	for i, e := range want {
		if len(e.Seqs) != 1 || len(e.Turns) != 3 || e.Cut || e.Fault != "" || e.Label != "end" ||
			len(e.Seqs[0].Spans) != 3 || e.Turns[0].Anchor != "start" {
			t.Fatalf("episode %d: %+v", i, e)
		}
		logp, _, err := r.m.AllLogProbs(e.Seqs, 1, 512)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(logp[0], e.Logp[0]) || len(logp[0]) != e.Trained() {
			t.Fatalf("episode %d: sampled with %v, in one pass %v", i, e.Logp[0], logp[0])
		}
		if !reflect.DeepEqual(e.Script, e.Seqs[0]) {
			t.Errorf("episode %d: transcript %v of %v", i, e.Script, e.Seqs[0])
		}
		spoken[fmt.Sprint(e.Seqs[0].TrainedIDs())] = true
		if e.New > e.Context || e.Computed > e.New+len(e.Turns)*16 {
			t.Errorf("episode %d: context %d, new %d, computed %d", i, e.Context, e.New, e.Computed)
		}
		// What the student reads is what the chat template writes of the conversation, but for
		// texts that do not come out as they were sampled.
		turns := slices.Concat(e.Prompt, e.Spoken)
		ids, err := r.tok.Prompt(tokenizer.Chat{Messages: turns[:len(turns)-1]})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := r.tok.Decode(ids, false), r.tok.Decode(e.Seqs[0].IDs[:e.Seqs[0].Spans[2].From],
			false); a != b && !e.Turns[0].Cut && !e.Turns[1].Cut {
			t.Errorf("episode %d: context %q, the template writes %q", i, b, a)
		}
	}
	if len(spoken) < 12 {
		t.Errorf("%d different episodes of %d", len(spoken), len(want))
	}
	r.slots = 2
	slow := r.must(talk{turns: 3, delay: 3 * time.Millisecond}, tasks(6, 3))
	r.slots = 64
	alone := r.must(talk{turns: 3}, tasks(6, 3)[4:5])
	for i := range want {
		want[i].Computed, slow[i].Computed = 0, 0
		if !reflect.DeepEqual(want[i], slow[i]) {
			t.Errorf("episode %d, two slots and slow environments: %+v, want %+v", i, slow[i],
				want[i])
		}
	}
	if alone[0].Computed = 0; !reflect.DeepEqual(alone[0], want[4]) {
		t.Errorf("alone: %+v, want %+v", alone[0], want[4])
	}
}

// An episode of one turn is an answer as Generate gives it, to the bit.
func TestOneTurn(t *testing.T) {
	r := open(t)
	list := tasks(5, 4)
	var prompts [][]int32
	var rows []uint64
	for i := 0; i < len(list); i += 4 {
		list[i].Row.Content = append(list[i].Row.Content,
			env.Message{Role: "user", Content: fmt.Sprint(list[i].Seed % 7)})
		ids, err := r.tok.Prompt(tokenizer.Chat{Messages: list[i].Row.Content})
		if err != nil {
			t.Fatal(err)
		}
		prompts, rows = append(prompts, ids), append(rows, list[i].Key)
		list[i].Begins = ids
	}
	answers, err := r.m.GenerateAll(prompts, rows, model.SampleOptions{N: 4, MaxNew: 8,
		EOS: r.tok.EOS(), Seed: 5, Step: 3, Sampling: model.Sampling{Temperature: 1, TopP: 1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range r.must(talk{turns: 1}, list) {
		c := answers[i/4][i%4]
		if !slices.Equal(e.Seqs[0].TrainedIDs(), c.IDs) || !slices.Equal(e.Logp[0], c.Logp) ||
			e.Open != c.Truncated || e.Cut {
			t.Errorf("episode %d: %v, want %v", i, e.Seqs[0].TrainedIDs(), c.IDs)
		}
	}
	list[3].Begins = append(slices.Clone(prompts[0]), 7)
	if _, err := r.play(context.Background(), talk{turns: 1}, list); !errors.Is(err, ErrStart) {
		t.Errorf("another beginning: %v", err)
	}
}

// Turns with equal contexts have draws of their own.
func TestDraws(t *testing.T) {
	r := open(t)
	differ := 0
	for _, e := range r.must(talk{turns: 3, prompt: true}, tasks(8, 1)) {
		if len(e.Seqs) != 3 || len(e.Logp) != 3 || len(e.Turns) != 3 {
			t.Fatalf("%+v", e)
		}
		logp, _, err := r.m.AllLogProbs(e.Seqs, 1, 512)
		if err != nil || !reflect.DeepEqual(logp, e.Logp) {
			t.Errorf("sampled with %v, in one pass %v (%v)", e.Logp, logp, err)
		}
		// The transcript has every turn once, and what was new in each context.
		if s := e.Script; len(s.Spans) != 3 || !slices.Equal(s.TrainedIDs(), slices.Concat(
			e.Seqs[0].TrainedIDs(), e.Seqs[1].TrainedIDs(), e.Seqs[2].TrainedIDs())) ||
			len(e.Spoken) != 5 || e.Spoken[1].Content != "1" || e.Spoken[3].Content != "1" {
			t.Errorf("transcript %v of %v", s, e.Spoken)
		}
		given, err := r.tok.Prompt(tokenizer.Chat{Messages: []tokenizer.Message{{Role: "user",
			Content: "1"}}})
		if err != nil {
			t.Fatal(err)
		}
		a, b := e.Seqs[1], e.Seqs[2]
		if !slices.Equal(a.IDs[:a.Prompt()], given) || !slices.Equal(b.IDs[:b.Prompt()], given) {
			t.Fatalf("contexts %v and %v, the environment gave %v", a.IDs, b.IDs, given)
		}
		if !slices.Equal(a.TrainedIDs(), b.TrainedIDs()) {
			differ++
		}
	}
	if differ < 4 {
		t.Errorf("%d of 8 second turns with the context of the third differ from it", differ)
	}
}

// Limits end an episode where they are reached, with what the student has written whole.
func TestLimits(t *testing.T) {
	r := open(t)
	r.limits.Turns = 2
	for _, e := range r.must(talk{turns: 4}, tasks(2, 2)) {
		if !e.Cut || len(e.Turns) != 2 || len(e.Seqs[0].Spans) != 2 ||
			e.Seqs[0].Spans[1].To != len(e.Seqs[0].IDs) {
			t.Errorf("two turns at most: %+v", e)
		}
	}
	r.limits = Limits{Prompt: 48, Turn: 8, Turns: 9, Tokens: 37}
	cut := 0
	for _, e := range r.must(talk{turns: 9, long: 4}, tasks(4, 4)) {
		prompt := e.Seqs[0].Prompt()
		if n := len(e.Seqs[0].IDs) - prompt; n > 37 || !e.Cut ||
			e.Seqs[0].Spans[len(e.Turns)-1].To != prompt+n {
			t.Errorf("37 tokens at most: %d in %d turns", n, len(e.Turns))
		}
		if len(e.Turns) > 1 {
			cut++
		}
	}
	if cut == 0 {
		t.Error("no episode has more than a turn")
	}
	r.limits.Prompt = 5
	if _, err := r.play(context.Background(), talk{turns: 1}, tasks(1, 1)); !errors.Is(err,
		ErrContext) {
		t.Errorf("a long first context: %v", err)
	}
}

// With fewer slots than episodes a context is computed once all the same, since the cache has room
// for those of the episodes that are under way. Environments that take long are asked all at once.
func TestFewSlots(t *testing.T) {
	r := open(t)
	r.slots, r.limits.Turn = 2, 4
	computed, fresh := 0, 0
	for _, e := range r.must(talk{turns: 4, long: 6}, tasks(12, 1)) {
		computed, fresh = computed+e.Computed, fresh+e.New
	}
	if 10*computed > 11*fresh {
		t.Errorf("%d tokens are computed, %d are new", computed, fresh)
	}
	var most atomic.Int32
	w := talk{turns: 1, delay: time.Minute, started: func() { most.Add(1) }}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for most.Load() < 10 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := r.play(ctx, w, tasks(12, 1)); !errors.Is(err, model.ErrStopped) {
		t.Error(err)
	}
}

// Play ends where there are too many broken episodes, and begins no more; it waits for no reply.
func TestTooManyFaults(t *testing.T) {
	r := open(t)
	r.slots = 2
	enough := errors.New("enough")
	var heard []int
	r.broken = func(n int, first string) error {
		if heard = append(heard, n); first != "env: broken" {
			t.Errorf("the first fault: %q", first)
		}
		if n < 3 {
			return nil
		}
		return enough
	}
	var begun atomic.Int32
	w := talk{turns: 2, fault: func(seed uint64, _ int) bool { return true },
		started: func() { begun.Add(1) }}
	if _, err := r.play(context.Background(), w, tasks(20, 1)); !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	// The two slots, one more for each of the three that ended, and what begins where the engine
	// waits for environments.
	if n := begun.Load(); len(heard) > 3 || heard[len(heard)-1] < 3 || n == 20 {
		t.Errorf("told of %v broken episodes, %d of 20 were begun", heard, n)
	}
	heard = nil
	w.fault = func(seed uint64, _ int) bool { return seed < 2 }
	if all, err := r.play(context.Background(), w, tasks(20, 1)); err != nil || len(all) != 20 ||
		heard[len(heard)-1] != 2 {
		t.Errorf("%d episodes, told of %v, %v", len(all), heard, err)
	}
}

// A broken episode ends alone, and the others have the bits that they have without it.
func TestFaults(t *testing.T) {
	r := open(t)
	want := r.must(talk{turns: 3}, tasks(4, 2))
	for i, e := range r.must(talk{turns: 3, fault: func(seed uint64, turn int) bool {
		return seed == 2 && turn == 2
	}}, tasks(4, 2)) {
		if i/2 == 2 {
			if e.Fault != "env: broken" {
				t.Errorf("episode %d: fault %q", i, e.Fault)
			}
			continue
		}
		e.Computed, want[i].Computed = 0, 0
		if !reflect.DeepEqual(e, want[i]) {
			t.Errorf("episode %d: %+v, want %+v", i, e, want[i])
		}
	}
}

// The end of the context ends the play at once, and leaves no goroutine.
func TestStop(t *testing.T) {
	r := open(t)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	w := talk{turns: 3, delay: time.Hour, started: cancel}
	if _, err := r.play(ctx, w, tasks(4, 2)); !errors.Is(err, model.ErrStopped) {
		t.Errorf("%v", err)
	}
	for range 6000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, were %d", runtime.NumGoroutine(), before)
}

// An episode that takes over the first turns of another, and has its draws, goes on as that did:
// the turns taken over are written for the environment again, cost no pass of their own, and are in
// no span; what it samples has the same bits. Contexts that are given whole are the same.
func TestReplay(t *testing.T) {
	r := open(t)
	for _, prompt := range []bool{false, true} {
		w := talk{turns: 4, prompt: prompt}
		all := r.must(w, tasks(4, 2))
		var list []Task
		var want []*Episode
		var before []int
		for i := range all {
			for k := 1; k < len(all[i].Turns); k++ {
				task := tasks(4, 2)[i]
				task.Replay = all[i].Replay(0, k)
				list, want, before = append(list, task), append(want, &all[i]), append(before, k)
			}
		}
		got := r.must(w, list)
		for i, e := range got {
			k, w := before[i], want[i]
			if e.Fault != "" || e.Before != k || !reflect.DeepEqual(e.Script, w.Script) ||
				!reflect.DeepEqual(e.Turns, w.Turns) || !reflect.DeepEqual(e.Spoken, w.Spoken) ||
				e.Cut != w.Cut || e.Open != w.Open {
				t.Fatalf("behind %d turns: %+v, want %+v", k, e, w)
			}
			var spans, all []model.Span
			for s, seq := range e.Seqs {
				spans, all = append(spans, seq.Spans...), append(all, w.Seqs[s].Spans...)
				if !slices.Equal(seq.IDs, w.Seqs[s].IDs) {
					t.Errorf("behind %d turns: sequence %v, want %v", k, seq, w.Seqs[s])
				}
			}
			if !slices.Equal(spans, all[k:]) {
				t.Errorf("behind %d turns: spans %v, want %v", k, spans, all[k:])
			}
			logp, whole := slices.Concat(e.Logp...), slices.Concat(w.Logp...)
			if !slices.Equal(logp, whole[len(whole)-len(logp):]) || len(logp) != e.Trained() {
				t.Errorf("behind %d turns: sampled with %v, want the end of %v", k, logp, whole)
			}
			if e.Context >= w.Context {
				t.Errorf("behind %d turns: contexts of %d tokens, the whole episode had %d", k,
					e.Context, w.Context)
			}
			// a branch of a branch
			if k == 1 && len(e.Turns) > 2 && !reflect.DeepEqual(e.Replay(0, 2), w.Replay(0, 2)) {
				t.Errorf("its own first two turns are %v, want %v", e.Replay(0, 2), w.Replay(0, 2))
			}
		}
		// another world, and one in which it is over too soon
		for name, other := range map[string]talk{"other": {turns: 4, prompt: prompt, long: 2},
			"shorter": {turns: 1, prompt: prompt}} {
			if prompt && name == "other" {
				continue // its contexts are all alike
			}
			for i, e := range r.must(other, list) {
				if before[i] >= other.turns && !strings.Contains(e.Fault,
					"are not what they were") {
					t.Errorf("%s: behind %d turns of another world: %q", name, before[i], e.Fault)
				}
				if name == "other" && !strings.Contains(e.Fault, "are not what they were") {
					t.Errorf("%s: behind %d turns: %q", name, before[i], e.Fault)
				}
			}
		}
	}
}
