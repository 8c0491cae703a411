package model

import (
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
)

// A state that hardly decays gets into no other sequence of a pack, and a sampler that computes
// prompts in parts and forks them goes on from it: a decay that is fast hides both. Others'
// reports: packs without borders, parts of a prompt that begin anew.
func TestSlowDecay(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		m := load(t, be, "qwen3_5", Options{})
		defer m.Close()
		for _, p := range m.params {
			if strings.HasSuffix(p.Name, ".A_log") {
				m.fill(p, func(int) float32 { return -7 })
			}
		}
		seqs := seqsOf(97, 90, 5, 70, 33)
		packed, _, err := m.LogProbs(seqs, 1)
		must(t, err)
		for i, s := range seqs {
			alone, _, err := m.LogProbs([]Seq{s}, 1)
			must(t, err)
			same(t, "alone", alone[0], packed[i])
		}
		prompt := seqs[0].IDs
		e, err := m.NewEngine(EngineOptions{Slots: 2, PageTokens: 4, Pages: 80, Longest: 110, Admit: 13})
		must(t, err)
		var got []Seq
		var logp [][]float32
		must(t, e.Submit(&Request{Prompt: prompt, N: 5, MaxNew: 12,
			Sampling: Sampling{Temperature: 1}, Done: func(_ int, c Completion) {
				got = append(got, Answer(slices.Concat(prompt, c.IDs), len(prompt)))
				logp = append(logp, c.Logp)
			}}))
		for !e.Idle() {
			must(t, e.Step())
		}
		e.Close()
		want, _, err := m.LogProbs(got, 1)
		must(t, err)
		for i := range want {
			same(t, "sampled", logp[i], want[i])
		}
	})
}
