package actor_test

import (
	"context"
	"fmt"

	"gad/actor"
	"gad/device"
	"gad/model"
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

// The student learns the teacher's answer: its log-probability rises.
func ExampleActor_SFT() {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	cfg := actor.DefaultConfig()
	cfg.Optim.LR = 1e-3
	student, err := actor.Open(be, "../testdata/model/qwen2_tied", cfg, actor.DefaultRollout(), 5, 6)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer student.Close()
	teacher := []model.Seq{model.Answer([]int32{5, 17, 42, 9, 9, 2}, 3)}
	var first, last actor.Stats
	for step := range 5 {
		if last, err = student.SFT(teacher); err != nil {
			fmt.Println(err)
			return
		}
		if step == 0 {
			first = last
		}
	}
	fmt.Println("the loss falls:", last.Loss < first.Loss)
	// Output:
	// the loss falls: true
}

// The log-probability of an answer is the sum of its tokens'.
func ExampleSeqLogp() {
	fmt.Println(actor.SeqLogp([][]float32{{-1, -0.5}, {-2}}))
	// Output:
	// [-1.5 -2]
}
