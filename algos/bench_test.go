package algos

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Loss and gradient of gspo with a KL term, for a small and a large micro-batch.
func BenchmarkPolicy(b *testing.B) {
	for _, shape := range [][2]int{{8, 128}, {64, 1536}} {
		b.Run(fmt.Sprintf("f32/%dx%d", shape[0], shape[1]),
			func(b *testing.B) { benchPolicy[float32](b, shape[0], shape[1]) })
		b.Run(fmt.Sprintf("f64/%dx%d", shape[0], shape[1]),
			func(b *testing.B) { benchPolicy[float64](b, shape[0], shape[1]) })
	}
}

func benchBatch[F Float](B, T int) PolicyBatch[F] {
	r := rand.New(rand.NewPCG(1, 1))
	x := PolicyBatch[F]{B: B, T: T}
	for range B * T {
		old := -r.ExpFloat64()
		logp := old + .1*r.NormFloat64()
		x.Old, x.Logp, x.Ref =
			append(x.Old, F(old)), append(x.Logp, F(logp)),
			append(x.Ref, F(logp+.1*r.NormFloat64()))
		x.Mask, x.Adv = append(x.Mask, 1), append(x.Adv, F(r.NormFloat64()))
	}
	return x
}

func benchPolicy[F Float](b *testing.B, B, T int) {
	p, err := NewPolicy[F](PolicyConfig{KLCoef: .001})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	x := benchBatch[F](B, T)
	n := normOf(x)
	if _, err := p.Step(x, n); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Step(x, n); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(B*T), "ns/token")
}

// The cost of meeting a new shape.
func BenchmarkPolicyCompile(b *testing.B) {
	for _, shape := range [][2]int{{8, 128}, {64, 1536}} {
		b.Run(fmt.Sprintf("%dx%d", shape[0], shape[1]), func(b *testing.B) {
			for b.Loop() {
				p, err := NewPolicy[float32](PolicyConfig{KLCoef: .001})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := p.compile(policyShape{B: shape[0], T: shape[1],
					kl: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// 256 prompts with 8 responses each.
func BenchmarkDiscriminator(b *testing.B) {
	const n = 2048
	d, err := NewDiscriminator[float32](DiscConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	student, teacher, pair := make([]float32, n), make([]float32, n/8), make([]int, n)
	for i := range pair {
		student[i], pair[i] = float32(i%7), i/8
	}
	for b.Loop() {
		if _, err := d.Step(student, teacher, pair, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdvantages(b *testing.B) {
	const S, T = 2048, 256
	in := AdvantageInput{Scores: make([]float64, S), Group: make([]int, S),
		Mask: make([][]float64, S)}
	for s := range S {
		in.Scores[s], in.Group[s], in.Mask[s] = float64(s%13), s/8, make([]float64, T)
		for t := range T {
			in.Mask[s][t] = 1
		}
	}
	for _, name := range []string{"grpo", "rank", "reinforce_plus_plus"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Advantages(AdvantageConfig{Name: name}, in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
