package critic

import (
	"errors"
	"fmt"
	"slices"

	"gad/algos"
	"gad/model"
)

// How a mini-batch is learned. With scores D_i, one a sequence or (level turn) one a turn, the
// gradient of the loss L over n pairs of a student sequence s and its teacher's t is
//
//	∇L = Σ_i dL/dD_i ∇D_i
//
// objective computes L and the seeds dL/dD_i from scores alone. learn runs the network: packs
// of sequences (micro-batches) pass forward, their scores go to objective, and their seeds
// pass backward. Four things must hold:
//
//   - A pack's forward and backward pass are one call (head.learn), because the
//     memory holds the activations of one pack only. So a pack's seeds are needed when its
//     own scores have just been computed. A seed depends on the scores of all pairs that the
//     sequence is in; if the other side of a pair is in a later pack, that side passes forward
//     an extra time beforehand (neededEarly). A teacher and its students share a prompt, and
//     model.Packs keeps a prompt in one pack where it fits, so this is rare.
//   - A teacher's sequence passes once, with the summed seeds of all its pairs, and any sequence
//     once with the seeds of all its turns.
//   - The gradient is summed by shard (model.EachShard), and ranks compute different shards.
//     All pairs of a teacher are in one shard, so a shard has the scores that its seeds need. The
//     ranks exchange scores, not losses, and each computes the loss of the whole mini-batch
//     from them: so all ranks have the same statistics, and see the same non-finite score.
//   - Scores that are known before, given by the caller or by an earlier skipped step, are
//     used as they are; a sequence whose seed is then zero does not pass at all.
//
// Until all scores are known, objective gives pairs with an unknown score weight 0: their
// seeds come with a later pack. The group term (GRGC) compares all answers of a mini-batch,
// so with it all scores are needed early, unless one pack holds all sequences.
//
// Earlier, a forward pass of its own computed all scores before the gradient's passes: every
// sequence passed forward twice, for the same bits (doc/dual-path.md).

// learn adds the gradient of the loss over the pairs of set to the model's gradients. An
// error that wraps algos.ErrNotFinite is the same on all ranks.
func (c *Critic) learn(set *pairSet) (lossStats, error) {
	shards := set.byShard(c.m)
	packsK := model.PacksByShard(set.seqs, shards, c.cfg.MaxTokenLen)
	if err := c.scoreUnknown(set.seqs, &set.score,
		c.neededEarly(set, slices.Concat(packsK...))); err != nil {
		return lossStats{}, err
	}
	scoresK, err := model.EachShard(c.m, func(k int) ([]score, error) {
		for _, pack := range packsK[k] {
			err := c.learnPack(set, pack)
			if errors.Is(err, algos.ErrNotFinite) {
				break // objective fails below on every rank, by the scores
			}
			if err != nil {
				return nil, fmt.Errorf("critic: %w", err)
			}
		}
		return model.Pick(set.score.at, set.score.indices(shards[k])), nil
	})
	if err != nil {
		return lossStats{}, err
	}
	for k, shard := range shards {
		for n, i := range set.score.indices(shard) {
			set.score.at[i] = scoresK[k][n]
		}
	}
	res, _, err := c.objective(set)
	return res, err
}

// learnPack passes one pack forward and backward.
func (c *Critic) learnPack(set *pairSet, pack []int) error {
	at := set.score.indices(pack)
	if set.score.complete() {
		if _, seed, err := c.objective(set); err != nil || noGradient(seed, at) {
			return err
		}
	}
	return c.head.learn(model.Pick(set.seqs, pack), func(scoreN []float64) ([]float32, error) {
		set.score.fill(pack, scoreN)
		_, seed, err := c.objective(set)
		if err != nil || noGradient(seed, at) {
			return nil, err
		}
		return model.Pick(seed, at), nil
	})
}

// noGradient reports whether all scores of a pack, at the given indices, have a zero seed.
func noGradient(seed []float32, at []int) bool {
	return !slices.ContainsFunc(at, func(i int) bool { return seed[i] != 0 })
}

// neededEarly marks the sequences that must be scored before the first pack passes. The seeds
// of a pair need both scores: if its two sides are in different packs, the later side is
// marked. The group term needs all scores.
func (c *Critic) neededEarly(set *pairSet, packs [][]int) []bool {
	early := make([]bool, len(set.seqs))
	if len(packs) == 1 {
		return early
	}
	packOf := make([]int, len(set.seqs))
	for k, pack := range packs {
		for _, i := range pack {
			packOf[i] = k
			early[i] = c.cfg.GroupOT > 0
		}
	}
	for n, s := range set.student {
		switch t := set.teacher[n]; {
		case packOf[s] > packOf[t]:
			early[s] = true
		case packOf[t] > packOf[s]:
			early[t] = true
		}
	}
	return early
}
