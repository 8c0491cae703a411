package plan

import (
	"math"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
	"gad/model"
	"gad/trainer/config"
)

// The time of a rollout in chunks is linear in the thought, and its cache does not grow.
func TestThoughts(t *testing.T) {
	shape := model.Config{Architecture: "Llama", Vocab: 1000, Hidden: 64, FFN: 128,
		Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, MaxPosition: 4096}
	var cache, all int64
	var rollout float64
	for _, chunks := range []string{"2", "4", "8", "16", "32", "64"} {
		c := config.StageDefaults(config.Train)
		if err := c.Load("", "rollout.chunk=512", "rollout.carry=256", "rollout.chunks="+chunks,
			"critic.reads=last", "data.max_prompt_length=128",
			"data.train_batch_size=64"); err != nil {
			t.Fatal(err)
		}
		p := Plan{Stage: config.Train, PromptMean: 128, AnswerMean: float64(c.MaxAnswer(config.Train)),
			chunks: c.Chunks(config.Train), lastOnly: true}
		var kept int64
		items := p.planMemory(networksOf(cpu.Footprint{}, shape), c)
		for _, x := range items {
			if strings.HasSuffix(x.Name, "key/value cache") {
				kept += x.Bytes
			}
		}
		if cache == 0 {
			cache, all = kept, Total(items)
		}
		if kept != cache || kept == 0 || Total(items) != all {
			t.Errorf("%s chunks: cache of %d bytes of %d, with 2 %d of %d", chunks, kept,
				Total(items), cache, all)
		}
		pass := config.Pass{Kind: config.Sample, Students: 8, Prompts: 64}
		seconds := p.passTime(c, pass, tokenTimes{trained: 3e-6, forward: 1e-6, decoded: 1e-5},
			p.AnswerMean) / p.AnswerMean
		if rollout > 0 && math.Abs(seconds/rollout-1) > 0.03 {
			t.Errorf("%s chunks: %g s a token, before %g", chunks, seconds, rollout)
		}
		if c.MaxAnswer(config.Train) >= 1280 {
			rollout = seconds
		}
	}
}
