package reference_test

import (
	"fmt"

	"gad/device"
	"gad/model"
	"gad/reference"
)

// The log-probabilities of an answer's tokens under a frozen model.
func Example() {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	ref, err := reference.Open(be, "../testdata/model/qwen2_tied", 1024)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ref.Close()

	answer := model.Answer([]int32{5, 17, 42, 8, 2}, 3) // three tokens of prompt, two of answer
	logpST, err := ref.LogProbs([]model.Seq{answer}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.2f\n", logpST)
	// Output:
	// [[-8.02 -8.44]]
}
