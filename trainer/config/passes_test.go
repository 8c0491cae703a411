package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The passes of a step, one line each: TestPassesOfAStep of package trainer compares the list with
// real steps.
func TestPasses(t *testing.T) {
	const (
		sampled = "rollout student sample 3+0 x1"
		checked = "old_logp student forward 3+0 x1, in checked steps"
		old     = "old_logp student forward 3+0 x1"
		late    = "old_logp student forward 3+0 x0.75" // the first mini-batch's are its own
		first   = "old_logp student forward 3+0 x0.25, in checked steps"
		critic  = "update_critic discriminator learn 3+1 x1, 1 update"
		ref     = "ref_logp reference forward 3+0 x1"
		policy  = "update_actor student learn 3+0 x1, 4 updates"
		teacher = "update_actor student learn 0+1 x1, 1 update"
	)
	for _, c := range []struct {
		stage       Stage
		set         string
		independent bool
		want        []string
	}{
		{SFT, "", true, []string{teacher}},
		{DPO, "", true, []string{"rollout reference sample 1+0 x1",
			"ref_logp reference forward 1+1 x1",
			"update_actor student forward 1+1 x1, if not in one pack",
			"update_actor student learn 1+1 x1, 1 update"}},
		{Warmup, "", true, []string{sampled, checked, critic, teacher}},
		{Warmup, "trainer.warmup_objective=policy", true,
			[]string{sampled, checked, critic, ref, policy}},
		{Train, "", true, []string{sampled, checked, critic, ref, policy}},
		{Train, "", false, []string{sampled, late, first, critic, ref, policy}},
		{Train, "actor.ppo_mini_batch_size=8", false, []string{sampled, checked, critic, ref,
			"update_actor student learn 3+0 x1, 1 update"}},
		{Train, "algorithm.use_kl_in_reward=true", false,
			[]string{sampled, old, critic, ref, policy}},
		{Train, "actor.ppo_epochs=2", false, []string{sampled, old, critic, ref,
			"update_actor student learn 3+0 x2, 4 updates"}},
		{Train, "actor.old_log_prob=rollout", false,
			[]string{sampled, checked, critic, ref, policy}},
		{Train, "actor.lora.rank=4 rollout.merged=true", true,
			[]string{sampled, late, first, critic, ref, policy}},
		{Train, "actor.use_kl_loss=false", true, []string{sampled, checked, critic, policy}},
		{Train, "algorithm.filter_groups.enable=true", true,
			[]string{sampled, checked, "score discriminator forward 3+1 x1", critic, ref, policy}},
		{Train, "rollout.tree.trees=1 rollout.tree.rounds=2 rollout.tree.expand=1", true,
			[]string{sampled, checked, critic, ref, policy}},
		{Train, "rollout.tree.trees=1 rollout.tree.rounds=2 rollout.tree.expand=1 rollout.tree.select=uct",
			true, []string{sampled, checked, "score discriminator forward 3+0 x0.6666666666666667",
				critic, ref, policy}},
		{Train, "critic.ppo_mini_batch_size=3 critic.ppo_epochs=2 actor.ppo_epochs=3 actor.ppo_mini_batch_size=5", true,
			[]string{sampled, checked, "update_critic discriminator forward 3+1 x0.625",
				"update_critic discriminator learn 3+1 x2, 3 updates", ref,
				"update_actor student learn 3+0 x3, 2 updates"}},
	} {
		cfg := StageDefaults(c.stage)
		if err := cfg.Load("", append(strings.Fields(c.set), "data.train_batch_size=8",
			"rollout.n=3")...); err != nil {
			t.Fatal(err)
		}
		var got []string
		updates, answers := map[Network]int{}, 0
		for _, p := range cfg.Passes(c.stage, 8, c.independent) {
			line := fmt.Sprintf("%s %s %s %d+%d x%g%s", p.Part,
				[...]string{"student", "discriminator", "reference"}[p.Network],
				[...]string{"sample", "forward", "learn"}[p.Kind], p.Students, p.Teachers, p.Times,
				[...]string{"", ", in checked steps", ", if not in one pack"}[p.When])
			if n := p.Updates(); n > 0 {
				line += fmt.Sprintf(", %d update%s", n, map[bool]string{true: "s"}[n > 1])
			}
			got = append(got, line)
			updates[p.Network] += p.Updates() * int(p.Times)
			answers = max(answers, p.Students+p.Teachers)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s:\n%s\nwant\n%s", c.stage, c.set, strings.Join(got, "\n"),
				strings.Join(c.want, "\n"))
		}
		for _, n := range []Network{Student, Discriminator, Reference} {
			if got := cfg.OptimizerSteps(c.stage, n); got != updates[n] {
				t.Errorf("%s %s: network %d: %d optimizer steps, want %d", c.stage, c.set, n, got,
					updates[n])
			}
		}
		if got := cfg.StepAnswers(c.stage); got != answers {
			t.Errorf("%s %s: %d sequences to a prompt, want %d", c.stage, c.set, got, answers)
		}
	}
}
