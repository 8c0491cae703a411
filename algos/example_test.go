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
