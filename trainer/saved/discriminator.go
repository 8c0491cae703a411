package saved

import (
	"fmt"
	"math"
)

// Discriminator is what a run knows of its discriminator's start, and what the next
// stage is told of it.
type Discriminator struct {
	Steps    int     `json:"steps"` // that the figures below have seen
	Loss     float64 `json:"loss"`  // smoothed, over pairs that differ, before they are learned from
	Acc      float64 `json:"acc"`   // likewise
	AloneFor int     `json:"alone"` // steps that it learned alone, once that is over; 0 is not yet
}

// A discriminator has learned nothing if its smoothed loss over pairs that differ is
// above guessing and its smoothed accuracy below guessingAcc, or if its loss is above that
// of a coin and its accuracy below sureAcc: then it is sure where it is wrong. A coin's are
// ln 2 = 0.693 and 0.5, give or take what a few pairs a step allow.
const (
	guessing     = 0.66
	guessingAcc  = 0.65
	sureAcc      = 0.8
	enoughToTell = 5 // steps
)

// NotLearned is a warning about a discriminator that cannot tell the two sides apart, ""
// where it can or nothing is known of it.
func (d Discriminator) NotLearned(where string) string {
	guesses := d.Loss >= guessing && d.Acc <= guessingAcc
	sureAndWrong := d.Loss >= math.Ln2 && d.Acc <= sureAcc
	if d.Steps < enoughToTell || !guesses && !sureAndWrong {
		return ""
	}
	return fmt.Sprintf("the discriminator of %s has not learned: over its last steps it is right on %.0f %% of the pairs that differ, with a loss of %.3f (guessing is 50 %% and 0.693): its rewards would be noise: repeat gad warmup with trainer.critic_warmup_until=0.5: %s",
		where, 100*d.Acc, d.Loss, StartAdvice)
}

// StartAdvice is what to try where a discriminator does not learn.
const StartAdvice = "try many small updates (critic.ppo_mini_batch_size=1), a learning-rate warm-up (critic.optim.lr_warmup_steps=200), another critic.optim.lr, or more steps"
