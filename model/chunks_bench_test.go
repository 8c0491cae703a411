package model

import (
	"fmt"
	"testing"
	"time"

	"gad/internal/compute/cpu"
)

// BenchmarkChunks is the time of thoughts in chunks as a share of that of plain answers of the same
// length, in turn, the shortest of each: 4 thoughts of a model of 7M parameters, chunks of 128
// tokens with a carry of 64.
func BenchmarkChunks(b *testing.B) {
	be, err := cpu.New(cpu.Options{Workers: 1})
	must(b, err)
	defer be.Close()
	m, err := New(be, Config{Architecture: "Llama", Vocab: 4096, Hidden: 256, FFN: 768,
		Layers: 6, Heads: 8, KVHeads: 4, HeadDim: 32, MaxPosition: 1 << 14, RMSEps: 1e-5,
		RopeTheta: 1e4}, Options{Kind: LM, Seed: 1})
	must(b, err)
	defer m.Close()
	for _, most := range []int{4, 8, 16, 32} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			var took [2]time.Duration
			o := SampleOptions{N: 4, Sampling: Sampling{Temperature: 1}, Seed: 1}
			for range b.N {
				for i, c := range []Chunks{{}, {Size: 128, Carry: 64, Most: most}} {
					o.Chunks, o.MaxNew = c, 128+(most-1)*64
					start := time.Now()
					_, err := m.Generate([][]int32{{1, 2, 3, 4}}, []uint64{1}, o, nil)
					must(b, err)
					if x := time.Since(start); took[i] == 0 || x < took[i] {
						took[i] = x
					}
				}
			}
			b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "chunks/plain")
			b.ReportMetric(took[0].Seconds(), "s-plain")
		})
	}
}
