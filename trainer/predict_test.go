package trainer

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cost"
	"gad/internal/report"
	"gad/trainer/config"
	"gad/trainer/plan"
)

// A plan for a GPU that is not there has the stretches of a step that a measurement has,
// and their times follow from the card and the settings.
func TestPredictedPlan(t *testing.T) {
	ready(t)
	card, _ := cost.FindCard("h200")
	predicted := func(stage config.Stage, card cost.Card, set ...string) *plan.Plan {
		t.Helper()
		c := settings(stage, filepath.Join(t.TempDir(), "run"),
			append(set, "trainer.device=cuda")...)
		p, err := plan.New(cost.New(card), nil, 0, nil, c, stage)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	times := func(p *plan.Plan) (names []string, sum float64) {
		for _, s := range p.StepTime {
			if names, sum =
				append(names, s.Name), sum+s.Seconds; !(s.Seconds > 0 && s.Seconds < 60) {
				t.Errorf("%s: %s takes %g s", p.Stage, s.Name, s.Seconds)
			}
		}
		return names, sum
	}
	for stage, want := range map[config.Stage][]string{
		config.SFT: {"update_actor"}, config.DPO: {"rollout", "ref_logp", "update_actor"},
		config.Warmup: {"rollout", "update_critic", "update_actor"},
		config.Train:  {"rollout", "old_logp", "update_critic", "ref_logp", "update_actor"},
	} {
		p := predicted(stage, card)
		if names, _ := times(p); !slices.Equal(names, want) || !p.Predicted ||
			!strings.Contains(p.String(), "predicted, nothing was measured (H200") {
			t.Errorf("%s: %v, want %v\n%s", stage, names, want, p)
		}
		if p.MemoryFree != card.Memory || p.HostFree != 0 {
			t.Errorf("%s: %d bytes free, %d on the host: want the card's, and no other machine's",
				stage, p.MemoryFree, p.HostFree)
		}
	}
	_, full := times(predicted(config.Train, card))
	if _, twice := times(predicted(config.Train, card, "actor.ppo_epochs=2")); !(twice > full) {
		t.Errorf("two epochs take %g s, one %g s", twice, full)
	}
	names, lora := times(predicted(config.Train, card, "actor.lora.rank=4", "critic.lora.rank=4"))
	if _, beside := times(predicted(config.Train, card, "actor.lora.rank=4", "critic.lora.rank=4",
		"rollout.merged=false")); !(beside > lora) || len(names) != 5 {
		t.Errorf("LoRA: %v, %g s with a merged copy, %g s without", names, lora, beside)
	}
	slow := card
	slow.Gap *= 4
	// a model this small is nothing but gaps and launches
	if _, s := times(predicted(config.Train, slow)); !(s > 1.5*full) {
		t.Errorf("four times the gap: %g s, was %g s", s, full)
	}
	// Answers of which fewer are sampled at a time than there are: more would be faster, as far as
	// the memory goes.
	many := []string{"data.train_batch_size=8", "rollout.n=16", "rollout.max_num_seqs=4",
		"actor.lora.rank=4", "critic.lora.rank=4"}
	p0 := predicted(config.Train, card, many...)
	_, all := times(p0)
	last := regexp.MustCompile(`\n  step +[0-9.]+ m?s\n  with rollout\.max_num_seqs=(\d+) .* \(([0-9.]+ .B) of memory\)\n`)
	m := last.FindStringSubmatch(p0.String())
	if m == nil {
		t.Fatalf("nothing is said of more answers at a time:\n%s", p0)
	}
	then := predicted(config.Train, card, append(many, "rollout.max_num_seqs="+m[1])...)
	if _, s := times(then); !(s < 0.95*all) || report.Bytes(plan.Total(then.Memory)) != m[2] {
		t.Errorf("with rollout.max_num_seqs=%s a step takes %g s, before %g s; %s said, %d bytes",
			m[1], s, all, m[2], plan.Total(then.Memory))
	}
	tight := card
	tight.Memory = plan.Total(p0.Memory) + 1
	if p := predicted(config.Train, tight, many...); p.Faster != "" || len(p.StepTime) == 0 {
		t.Errorf("without the memory for it: %q", p.Faster)
	}
	if p := predicted(config.Train, card); p.Faster != "" { // as many as there are
		t.Errorf("all at a time: %q", p.Faster)
	}

	small := card
	small.Memory = 1 << 20
	p := predicted(config.Train, small)
	if len(p.StepTime) > 0 || p.Check(config.Default()) == nil {
		t.Errorf("a card of a megabyte: %v", p)
	}
}
