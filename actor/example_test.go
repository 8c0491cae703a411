package actor_test

import (
	"context"
	"fmt"

	"gad/actor"
	"gad/device"
)

// One step of the student: it answers a prompt four times, and learns from an advantage
// for each answer.
func Example() {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	cfg, sampling := actor.DefaultConfig(), actor.DefaultRollout()
	cfg.UseKLLoss, sampling.N = false, 4
	const steps, longest = 1, 6
	student, err := actor.Open(be, "../testdata/model/qwen2_tied", cfg, sampling, steps, longest)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer student.Close()

	prompts, eos := [][]int32{{5, 17, 42}}, []int32{2}
	answers, err := student.Rollout(context.Background(), prompts, eos,
		actor.Key{Seed: 1, Rows: []int{0}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := student.RecomputeOld(answers); err != nil { // log-probabilities before the update
		fmt.Println(err)
		return
	}
	rewards := []float64{1, -1, 1, -1}
	advST := answers.Mask()
	for s := range advST {
		for t := range advST[s] {
			advST[s][t] *= rewards[s]
		}
	}
	answers.SetAdv(advST)
	stats, err := student.Update(answers)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d answers, %d optimizer step\n", len(answers), stats.Updates)
	// Output:
	// 4 answers, 1 optimizer step
}
