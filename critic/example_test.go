package critic_test

import (
	"fmt"

	"gad/critic"
	"gad/device"
	"gad/model"
)

// A discriminator learns to prefer the teacher's answer to the student's.
func Example() {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	cfg := critic.DefaultConfig()
	cfg.Optim.LR = 1e-3
	const steps, seed = 20, 1
	disc, err := critic.Open(be, "../testdata/model/qwen2_tied", cfg, steps, seed)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer disc.Close()

	student := model.Answer([]int32{5, 17, 42, 8, 2}, 3)
	teacher := model.Answer([]int32{5, 17, 42, 9, 9, 2}, 3)
	for step := range steps {
		_, err := disc.Update(critic.Batch{Step: step, Students: []model.Seq{student},
			Teachers: []model.Seq{teacher},
			Group:    []int{0}, Skip: []bool{false}})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	scores, err := disc.Score([]model.Seq{student, teacher})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the teacher's scores higher:", scores[1] > scores[0])
	// Output:
	// the teacher's scores higher: true
}

// Every sequence ends in one way before it is scored, so that no ending tells the two apart.
func ExampleEnding_Seq() {
	ending := critic.Ending{EOS: []int32{2, 3}, Turn: 2}
	fmt.Println(ending.Seq([]int32{5, 17}, []int32{8, 3}, false).IDs)
	fmt.Println(ending.Seq([]int32{5, 17}, []int32{8}, false).IDs)
	fmt.Println(ending.Seq([]int32{5, 17}, []int32{8}, true).IDs) // cut at a limit
	// Output:
	// [5 17 8 2]
	// [5 17 8 2]
	// [5 17 8]
}

// A turn of an episode is rewarded for what it adds to the score.
func ExampleTurnRewards() {
	fmt.Println(critic.TurnRewards([]float32{0.5, 0.25, 1}))
	// Output:
	// [0.5 -0.25 0.75]
}
