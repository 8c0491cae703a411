package plan

import (
	"fmt"
	"strings"

	"gad/internal/report"
	"gad/trainer/config"
)

// RanksText returns a table of the plan on several ranks, one per process: the memory of each rank
// beyond the plan's, the bytes that each sends in a step, and the time of sending at gbits Gbit/s.
func (p *Plan) RanksText(c config.Config, ranks int, gbits float64) string {
	var b strings.Builder
	line := func(name, value, note string) {
		fmt.Fprintf(&b, "  %-52s %10s", name, value)
		if note != "" {
			fmt.Fprintf(&b, "  (%s)", note)
		}
		b.WriteByte('\n')
	}
	actorSteps := c.OptimizerSteps(p.Stage, config.Student)
	criticSteps := c.OptimizerSteps(p.Stage, config.Discriminator)
	all := int64(actorSteps)*p.actorGradient + int64(criticSteps)*p.criticGradient
	sent := 2 * all * int64(ranks-1) / int64(ranks)
	gathered := int64(0) // weights, in addition to a whole sum of gradients
	if c.Trainer.ShardOptimizer && c.Trainer.Device == "cuda" {
		gathered = (int64(actorSteps)*p.actorWeights + int64(criticSteps)*p.criticWeights) *
			int64(ranks-1) / int64(ranks)
		sent += gathered
	}
	fmt.Fprintf(&b, "%d ranks, each with all weights and %d of %s\n", ranks, c.Trainer.Shards/ranks,
		report.Count(c.Trainer.Shards, "shard"))
	line("memory of each: as above, sums of shards",
		report.Bytes(int64(log2(c.Trainer.Shards/ranks))*max(p.actorGradient, p.criticGradient)),
		"")
	what := "gradients"
	switch {
	case gathered > 0:
		what = fmt.Sprintf("gradients, and %s of weights,", report.Bytes(gathered))
	case c.Trainer.ShardOptimizer:
		what = "gradients, and as many weights back," // each is half as much as a sum of gradients
	}
	line("sent by each for a step", report.Bytes(sent),
		fmt.Sprintf("%s of %s of the student and %d of the discriminator", what,
			report.Count(actorSteps, "optimizer step"), criticSteps))
	line(fmt.Sprintf("time of it at %g Gbit/s", gbits), report.Seconds(8*float64(sent)/gbits/1e9),
		"--bandwidth")
	same := "the same for any number of ranks"
	if c.Trainer.Device == "cuda" {
		same = "the same from run to run on so many ranks, others on more or fewer"
	}
	fmt.Fprintf(&b, "  bits: %s\n", same)
	return b.String()
}

// log2 returns the base-2 logarithm of a power of two.
func log2(n int) (e int) {
	for ; n > 1; n /= 2 {
		e++
	}
	return e
}
