package actor

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"gad/algos"
	"gad/internal/comm"
	"gad/internal/comm/commtest"
)

// shardedUpdate takes one update on the given number of ranks and shards, and returns
// what each rank has.
func shardedUpdate(t *testing.T, ranks, shards int, edit func(*Config),
	take func(a *Actor) (any, error)) (stats []any, states [][]uint32,
	grads []map[string][]float32) {
	t.Helper()
	as, spies := make([]*Actor, ranks), make([]*spy, ranks)
	for r := range as {
		as[r], spies[r] = student(t, edit)
	}
	stats = make([]any, ranks)
	for r, err := range commtest.Run(ranks, time.Minute, func(g *comm.Group) (err error) {
		a := as[g.Rank()]
		if err := a.m.Split(g, shards); err != nil {
			return err
		}
		stats[g.Rank()], err = take(a)
		return err
	}) {
		if err != nil {
			t.Fatalf("%d shards on %d ranks, rank %d: %v", shards, ranks, r, err)
		}
		states, grads = append(states, state(t, as[r], spies[r])), append(grads, spies[r].grads)
	}
	return stats, states, grads
}

// answered is one rollout and its advantages, the same for all.
func answered(t *testing.T) (Rollout, [][]float64) {
	a, _ := student(t, nil)
	r := rolled(t, a)
	return r, spread(r, winnersAndLosers)
}

// The number of shards changes loss and gradient by rounding alone; the number of ranks
// changes no bit of weights, moments and figures.
func TestShardsAndRanks(t *testing.T) {
	r, adv := answered(t)
	acting, _ := student(t, nil)
	ep := acted(t, acting)
	epAdv := spread(ep, winnersAndLosers)
	for name, c := range map[string]struct {
		edit func(*Config)
		take func(a *Actor) (any, error)
	}{
		"update": {
			func(c *Config) {
				c.EntropyCoeff, c.MaxTokenLen, c.PolicyLoss.LossMode = 0.01, 30,
					"vanilla"
			},
			func(a *Actor) (any, error) { return a.Update(with(r, adv)) }},
		"episodes": {
			func(c *Config) {
				c.MaxTokenLen, c.PolicyLoss.LossMode, c.LossAggMode =
					30, "vanilla", algos.EpisodeMean
			},
			func(a *Actor) (any, error) { return a.Update(with(ep, epAdv)) }},
		"sft": {nil, func(a *Actor) (any, error) { return a.SFT(r.Seqs()) }},
		"dpo": {nil, func(a *Actor) (any, error) {
			return a.DPO(objective(t, algos.DPOConfig{Loss: "sigmoid", Beta: 0.1}),
				pairsOf(t, a, 0.1))
		}},
		"ranking": {nil, func(a *Actor) (any, error) { return a.Rank(rankedOf(r), 0.4) }},
	} {
		t.Run(name, func(t *testing.T) {
			one, _, grad := shardedUpdate(t, 1, 1, c.edit, c.take)
			for _, shards := range []int{2, 4} {
				alone, want, grads := shardedUpdate(t, 1, shards, c.edit, c.take)
				if d := distance(t, grad[0], grads[0], 1); d > 1e-5 {
					t.Errorf("%d shards: the gradient differs by %g", shards, d)
				}
				near(t, fmt.Sprint(shards, " shards"), one[0], alone[0])
				for ranks := 2; ranks <= shards; ranks *= 2 {
					stats, states, _ := shardedUpdate(t, ranks, shards, c.edit, c.take)
					for k := range ranks {
						if !reflect.DeepEqual(stats[k], alone[0]) {
							t.Errorf("%d shards on %d ranks: rank %d has %+v, want %+v", shards,
								ranks, k, stats[k], alone[0])
						}
						if !slices.Equal(states[k], want[0]) {
							t.Errorf("%d shards on %d ranks: rank %d has other weights or moments",
								shards, ranks, k)
						}
					}
				}
			}
		})
	}
}

// near wants the numbers of two structs to agree to rounding, passes apart.
func near(t *testing.T, what string, a, b any) {
	t.Helper()
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range av.NumField() {
		name := av.Type().Field(i).Name
		switch x, y := av.Field(i), bv.Field(i); x.Kind() {
		case reflect.Struct:
			near(t, what+": "+name, x.Interface(), y.Interface())
		case reflect.Float64:
			if d := math.Abs(x.Float() - y.Float()); !(d <= 1e-5*math.Max(1, math.Abs(x.Float()))) {
				t.Errorf("%s: %s is %g, without shards %g", what, name, y.Float(), x.Float())
			}
		}
	}
}

// A loss that is not finite in one shard alone leaves out the step on every rank.
func TestNotFiniteOnOneRank(t *testing.T) {
	r, adv := answered(t)
	adv[5][0] = math.NaN() // of the second prompt, on the second rank
	_, before, _ := shardedUpdate(t, 1, 2, nil, func(a *Actor) (any, error) { return nil, nil })
	stats, states, _ := shardedUpdate(t, 2, 2, nil,
		func(a *Actor) (any, error) { return a.Update(with(r, adv)) })
	for k := range stats {
		if st := stats[k].(Stats); st.Skipped != 1 || st.Updates != 0 || st.Passes != 0 {
			t.Errorf("rank %d: %d skipped, %d updates, %d passes, want 1, 0 and 0", k, st.Skipped,
				st.Updates, st.Passes)
		}
		if !slices.Equal(states[k], before[0]) {
			t.Errorf("rank %d: weights or moments have changed", k)
		}
	}
}

// A rollout is the same on any number of ranks; one that is asked to stop stops all.
func TestRolloutOnRanks(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	take := func(a *Actor, ctx context.Context) (any, error) {
		return a.Rollout(ctx, [][]int32{{5, 6, 7}, {9, 10, 11}, {12}, {13, 14}, {3, 4}},
			[]int32{1, 2},
			Key{Seed: 1, Step: 2, Rows: []int{4, 7, 9, 11, 20}}, nil)
	}
	all := func(a *Actor) (any, error) { return take(a, context.Background()) }
	want, _, _ := shardedUpdate(t, 1, 4, nil, all)
	for _, ranks := range []int{2, 4} {
		got, _, _ := shardedUpdate(t, ranks, 4, nil, all)
		for k := range got {
			if !reflect.DeepEqual(got[k], want[0]) {
				t.Errorf("%d ranks: rank %d has another rollout", ranks, k)
			}
		}
	}
	for stopping := range 4 {
		stats, _, _ := shardedUpdate(t, 4, 4, nil, func(a *Actor) (any, error) {
			of := context.Background()
			if a.m.Ranks().Rank() == stopping {
				of = ctx
			}
			_, err := take(a, of)
			return fmt.Sprint(err), nil
		})
		for k, said := range stats {
			if said != "actor: rollout: model: generate: stopped" {
				t.Errorf("rank %d stops, rank %d says %v", stopping, k, said)
			}
		}
	}
}
