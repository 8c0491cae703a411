package algos_test

import (
	"fmt"

	"gad/algos"
)

// Two prompts with two responses each, their rows interleaved: scores become
// advantages, advantages become the gradient that the actor's backward pass starts from.
func Example() {
	maskST := [][]float64{{1, 1}, {1, 0}, {1, 1}, {1, 0}}
	advST, err := algos.Advantages(algos.AdvantageConfig{Name: "dr_grpo"}, algos.AdvantageInput{
		Scores: []float64{3, 10, 1, 30}, Group: []int{0, 1, 0, 1}, Mask: maskST,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("advantages", advST)

	batch := algos.PolicyBatch[float32]{B: 4, T: 2, Logp: make([]float32, 8),
		Old: make([]float32, 8)}
	for s := range maskST {
		for t := range maskST[s] {
			batch.Mask = append(batch.Mask, float32(maskST[s][t]))
			batch.Adv = append(batch.Adv, float32(advST[s][t]))
		}
	}
	policy, err := algos.NewPolicy[float32](algos.PolicyConfig{Loss: "gspo"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer policy.Close()
	// of the whole mini-batch: here it is this one
	norm := algos.NormOf(batch.B, batch.T, batch.Mask)
	r, err := policy.Step(batch, norm)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("gradient %.3f\n", r.DLogp)
	// Output:
	// advantages [[1 1] [-10 0] [-1 -1] [10 0]]
	// gradient [-0.125 -0.125 2.500 0.000 0.125 0.125 -2.500 0.000]
}

func ExampleNewPolicy_unknown() {
	_, err := algos.NewPolicy[float32](algos.PolicyConfig{Loss: "gspoo"})
	fmt.Println(err)
	// Output:
	// algos: policy loss "gspoo": unknown name: use one of cispo, dapo, geo_mean, gpg, gspo, gspo_token, sapo, sft, vanilla
}

// The same score is worth more where the prompt's other answers are worse: it counts against the
// mean of its group.
func ExampleAdvantages() {
	in := algos.AdvantageInput{
		Scores: []float64{1, 0, 0, 1, 1, 0}, Group: []int{0, 0, 0, 1, 1, 1},
		Mask: [][]float64{{1}, {1}, {1}, {1}, {1}, {1}},
	}
	for _, name := range []string{"grpo", "dr_grpo", "rloo"} {
		advST, err := algos.Advantages(algos.AdvantageConfig{Name: name}, in)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%-7s %6.3f\n", name, advST)
	}
	// Output:
	// grpo    [[ 1.155] [-0.577] [-0.577] [ 0.577] [ 0.577] [-1.155]]
	// dr_grpo [[ 0.667] [-0.333] [-0.333] [ 0.333] [ 0.333] [-0.667]]
	// rloo    [[ 1.000] [-0.500] [-0.500] [ 0.500] [ 0.500] [-1.000]]
}

// A prompt whose answers all have one score teaches nothing.
func ExampleKeepGroups() {
	keep, dropped, err := algos.KeepGroups([]float64{1, 1, 0, 1}, []int{0, 0, 1, 1}, 0)
	fmt.Println(keep, dropped, err)
	// Output:
	// [false false true true] 0.5 <nil>
}

// The discriminator's loss falls where the teacher's answer scores above the student's.
func ExampleDiscriminator_Step() {
	d, err := algos.NewDiscriminator[float32](algos.DiscConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	// two answers of the student to one prompt, one of the teacher
	r, err := d.Step([]float32{0, 2}, []float32{1}, []int{0, 0}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("loss %.3f, gradients %.3f and %.3f\n", r.Loss, r.DStudent, r.DTeacher)
	// Output:
	// loss 0.813, gradients [0.134 0.366] and [-0.500]
}

// A pair's loss is log 2 as long as the policy is the reference.
func ExampleDPO_Step() {
	d, err := algos.NewDPO[float32](algos.DPOConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	r, err := d.Step(algos.DPOBatch[float32]{Chosen: []float32{-12}, Rejected: []float32{-9},
		RefChosen: []float32{-12}, RefRejected: []float32{-9}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("loss %.4f, gradients %.3f and %.3f\n", r.Loss, r.DChosen, r.DRejected)
	// Output:
	// loss 0.6931, gradients [-0.050] and [0.050]
}

// Estimates of the KL from tokens that the policy has sampled.
func ExampleKLPenalty() {
	logp, ref := []float64{-1, -2}, []float64{-1.5, -1}
	for _, name := range []string{"k1", "k2", "k3"} {
		kl, err := algos.KLPenalty(name, logp, ref)
		fmt.Printf("%s %.3f %v\n", name, kl, err)
	}
	// Output:
	// k1 [0.500 -1.000] <nil>
	// k2 [0.125 0.500] <nil>
	// k3 [0.107 0.718] <nil>
}

// The coefficient grows while the KL is above its target.
func ExampleAdaptiveKL() {
	kl := algos.AdaptiveKL{Coef: 0.1, Target: 0.5, Horizon: 100}
	for _, measured := range []float64{2, 2, 0.1} {
		fmt.Printf("%.4f\n", kl.Update(measured, 50))
	}
	// Output:
	// 0.1100
	// 0.1210
	// 0.1089
}

// Answers within the last tokens of the budget lose some of their reward.
func ExampleOverlong() {
	o := algos.Overlong{MaxLen: 128, Buffer: 32, Factor: 1}
	fmt.Println(o.Penalty(80), o.Penalty(112), o.Penalty(128))
	// Output:
	// 0 -0.5 -1
}

// One token of a teacher spans two of the student, which share its log-probability.
func ExampleAlignBytes() {
	aligned, err := algos.AlignBytes([]int{2, 4, 6}, []int{4, 6}, []float64{-3, -1})
	fmt.Println(aligned, err)
	// Output:
	// [-1.5 -1.5 -1] <nil>
}

// Scores of several answers become a distribution that the student's probabilities follow.
func ExampleRanking() {
	loss, gradient, err := algos.Ranking([]float64{-2, -2}, []float64{1, 0}, []int{0, 0}, 1)
	fmt.Printf("%.3f %.3f %v\n", loss, gradient, err)
	// Output:
	// 0.693 [-0.231 0.231] <nil>
}
