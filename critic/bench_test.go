package critic

import (
	"fmt"
	"testing"

	"gad/internal/compute/cpu"
	"gad/model"
)

// BenchmarkUpdate is the discriminator's update on 8 prompts with 4 answers each, whose
// scores are not known: in one pack, and in several packs and shards.
func BenchmarkUpdate(b *testing.B) {
	shape := model.Config{Architecture: "Llama", Vocab: 256, Hidden: 64, Layers: 2, Heads: 4,
		KVHeads: 2, HeadDim: 16,
		FFN: 192, MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, DType: "float32"}
	var rows Batch
	for p := range 8 {
		sequence := func(from int) model.Seq {
			ids := make([]int32, 0, 48)
			for i := range 48 {
				id := 3 + p + i
				if i >= 16 {
					id = 3 + (from*(i+7)+p)%250
				}
				ids = append(ids, int32(id))
			}
			return model.Answer(ids, 16)
		}
		rows.Teachers = append(rows.Teachers, sequence(1))
		for g := range 4 {
			rows.Students = append(rows.Students, sequence(2+g))
			rows.Group, rows.Skip = append(rows.Group, p), append(rows.Skip, false)
		}
	}
	for _, c := range []struct{ tokens, shards int }{{8192, 1}, {256, 1}, {256, 4}} {
		b.Run(fmt.Sprintf("%d-tokens-%d-shards", c.tokens, c.shards), func(b *testing.B) {
			be, err := cpu.New(cpu.Options{Workers: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer be.Close()
			cfg := DefaultConfig()
			cfg.MaxTokenLen = c.tokens
			m, err := model.New(be, shape,
				model.Options{Kind: model.Scorer, Trainable: true, Seed: 3, ScoreInit: 0.5})
			if err != nil {
				b.Fatal(err)
			}
			d, err := New(m, cfg, 10*cfg.Updates(8), 1)
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			if err := m.Split(nil, c.shards); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := d.Update(rows); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
