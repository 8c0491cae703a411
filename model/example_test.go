package model_test

import (
	"fmt"

	"gad/device"
	"gad/model"
)

// Two answers to one prompt, from a folder as transformers writes it.
func Example() {
	be, err := device.Open(device.Options{Threads: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	m, err := model.Load(be, "../testdata/model/qwen2_tied", model.Options{Kind: model.LM})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()

	prompts, rows := [][]int32{{5, 17, 42}}, []uint64{0}
	answers, err := m.Generate(prompts, rows,
		model.SampleOptions{N: 2, MaxNew: 4, Seed: 1, Sampling: model.Sampling{Temperature: 1}},
		nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range answers[0] {
		fmt.Println(a.IDs)
	}
	// Output:
	// [12 1 1 1]
	// [12 12 85 76]
}

// Without a device there is no model.
func ExampleLoad_noBackend() {
	_, err := model.Load(nil, "../testdata/model/qwen2_tied", model.Options{})
	fmt.Println(err)
	// Output:
	// model: the backend is nil: open one with device.Open
}
