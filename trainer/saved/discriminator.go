package saved

import (
	"fmt"
	"math"
)

// Discriminator records how far a run's discriminator has learned, for the run and for the next
// stage.
type Discriminator struct {
	Steps    int     `json:"steps"` // steps in the figures below
	Loss     float64 `json:"loss"`  // smoothed, over pairs that differ, before they are learned
	Acc      float64 `json:"acc"`   // smoothed accuracy on the same pairs
	AloneFor int     `json:"alone"` // steps that it learned alone; 0: it still does
}

// A discriminator has learned nothing if its smoothed loss over pairs that differ is at least
// guessing and its smoothed accuracy at most guessingAcc. It is also useless if its loss is above
// chance (ln 2 = 0.693) and its accuracy at most sureAcc: then it is sure where it is wrong. Chance
// gives an accuracy of 0.5, within the noise of a few pairs a step.
const (
	guessing    = 0.66
	guessingAcc = 0.65
	sureAcc     = 0.8
	minSteps    = 5 // steps
)

// NotLearned returns a warning about a discriminator that cannot tell the two sides apart; "" if it
// can, or if too few steps are known. where names its run.
func (d Discriminator) NotLearned(where string) string {
	guesses := d.Loss >= guessing && d.Acc <= guessingAcc
	sureAndWrong := d.Loss >= math.Ln2 && d.Acc <= sureAcc
	if d.Steps < minSteps || !guesses && !sureAndWrong {
		return ""
	}
	return fmt.Sprintf("the discriminator of %s has not learned: over its last steps it is right on %.0f %% of the pairs that differ, with a loss of %.3f (guessing is 50 %% and 0.693): its rewards would be noise: repeat gad warmup with trainer.critic_warmup_until=0.5: %s",
		where, 100*d.Acc, d.Loss, StartAdvice)
}

// StartAdvice is the advice for a discriminator that does not learn.
const StartAdvice = "try many small updates (critic.ppo_mini_batch_size=1), a learning-rate warm-up (critic.optim.lr_warmup_steps=200), another critic.optim.lr, or more steps"
