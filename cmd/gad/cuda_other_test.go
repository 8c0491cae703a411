//go:build !nvidia

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// The default build says how to get the other one, and plans for a GPU all the same.
func TestNoCUDA(t *testing.T) {
	f := ready(t)
	run := filepath.Join(t.TempDir(), "run")
	flags := []string{"--model", f.path("student"), "--data", f.path("train.arrow"), "--output",
		run, "--device", "cuda"}
	const missing = "cuda: CUDA is not available: this gad is built without it: build it with `go build -tags nvidia ./cmd/gad` (doc/cuda.md), or compute on the CPU"
	code, out, said := gad(stage("sft", flags...)...)
	if code != exitUsage || out != "" || said != "gad: "+missing+"\n" {
		t.Errorf("exit status %d, prints %q, says %q", code, out, said)
	}
	if len(tree(t, run)) > 0 {
		t.Error("the run folder was made")
	}
	printed, _ := must(t, stage("plan", flags...)...)
	for _, want := range []string{"gradients: one buffer for student and discriminator",
		"CUDA context and libraries", "no time estimate", missing} {
		if !strings.Contains(printed, want) {
			t.Errorf("the plan does not say %q:\n%s", want, printed)
		}
	}
	code, _, said = gad(stage("plan", append(flags, "--memory", "0.3")...)...)
	if code != exitUsage || !strings.Contains(said, "does not fit in memory: needs") || !strings.Contains(said, "300 MB are available: even with actor.recompute=true critic.recompute=true actor.max_token_len=78 critic.max_token_len=78 actor.optim.offload=true critic.optim.offload=true it needs") {
		t.Errorf("a plan for 300 MB: exit status %d, %s", code, said)
	}
}
