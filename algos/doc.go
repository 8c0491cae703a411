// Package algos holds the mathematics of the adversarial game: advantages,
// policy and discriminator objectives, Kullback-Leibler penalties and the ways
// to aggregate them (arXiv 2511.10643 and the papers cited at each formula).
//
// An objective is written once, as a Gorgonia expression graph; its gradient is derived
// symbolically from the same graph. It takes log-probabilities or scores and returns the loss with
// d loss/d logp or d loss/d score, which seeds the caller's backward pass. Advantages and rewards
// carry no gradient and are plain loops.
//
// Every objective is chosen by name; an unknown name is refused with the list of known names
// (ErrUnknownName). Nothing here divides by the size of a micro-batch: normalisers come from the
// caller (Norm, pair weights), and results are sums, so that a mini-batch gives the same loss and
// gradient however its rows are packed.
//
//	policy.go         the student's losses: start here
//	aggregate.go      from losses by token to one number
//	kl.go             estimators of the KL to the reference, and its adaptive coefficient
//	discriminator.go  the discriminator's loss over pairs
//	group.go          GRGC's group term of that loss
//	reward.go         from scores to rewards: clip, length penalty, KL, dynamic sampling
//	advantage.go      from rewards to advantages
//	tree.go           advantages of answers that branch, and the choice of branch points
//	distill.go        advantages of on-policy distillation
//	align.go          log-probabilities of one tokenizer's tokens for another's
//	dpo.go            preference losses; ranking.go: losses of ranked answers
//	expr.go           expression graphs and compiled programs; ops.go: their own operators
//
// Legend for shapes in names: P prompts, S responses, T tokens of a response
// (padded), B rows of one micro-batch, n pairs. A matrix of B rows and T columns is a
// flat slice of B*T values, row by row.
//
// The package imports nothing of gad.
package algos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Float is the element type of an objective. float32 is what a training run
// uses; float64 is for proofs.
type Float interface{ float32 | float64 }

// Errors that callers test for. Every error of this package wraps one of them.
var (
	// ErrUnknownName reports an objective, estimator or aggregation that does not exist.
	ErrUnknownName = errors.New("unknown name")
	// ErrConfig reports a setting outside its range.
	ErrConfig = errors.New("bad setting")
	// ErrShape reports inputs whose lengths, groups or masks do not fit together.
	ErrShape = errors.New("shapes do not fit")
	// ErrNotFinite reports a NaN or an infinity where the mask (or a pair's
	// weight) is not zero. The step must be skipped; nothing was computed.
	ErrNotFinite = errors.New("not finite")
)

// lookup returns the entry of a registry; the error lists its names.
func lookup[V any](what, name string, in map[string]V) (V, error) {
	v, ok := in[name]
	if !ok {
		return v, fmt.Errorf("algos: %s %q: %w: use one of %s", what, name, ErrUnknownName,
			strings.Join(names(in), ", "))
	}
	return v, nil
}

// names returns a registry's names in alphabetical order.
func names[V any](in map[string]V) []string { return slices.Sorted(maps.Keys(in)) }
