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

// The log-probabilities of an answer's tokens, and the entropy of the model at each.
func ExampleModel_LogProbs() {
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
	logpST, entST, err := m.LogProbs([]model.Seq{model.Answer([]int32{5, 17, 42, 8, 2}, 3)}, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.2f %.2f\n", logpST, entST)
	// Output:
	// [[-8.02 -8.44]] [[2.75 2.45]]
}

// A folder says what its model is before any weight is read.
func ExampleReadConfig() {
	c, err := model.ReadConfig("../testdata/model/llama3_sharded")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Architecture, c.Layers, "layers", c.Vocab, "tokens")
	// Output:
	// Llama 2 layers 97 tokens
}

// A sequence is a prompt and the tokens behind it that count.
func ExampleSeq() {
	s := model.Answer([]int32{5, 17, 42, 8, 2}, 3)
	fmt.Println(s.Prompt(), s.Response(), s.Trained())
	// Output:
	// 3 [8 2] 2
}

// Answers to one prompt pass together, and their prompt is computed once.
func ExamplePacks() {
	var seqs []model.Seq
	for _, prompt := range []int32{1, 2, 1} {
		seqs = append(seqs, model.Answer([]int32{prompt, prompt, prompt, 7, 8}, 3))
	}
	fmt.Println(model.Packs(seqs, 8))
	// Output:
	// [[0 2] [1]]
}

// Every third layer, and the last.
func ExampleParseLayers() {
	layers, err := model.ParseLayers("0-23:3,23", 24)
	fmt.Println(layers, err)
	// Output:
	// [0 3 6 9 12 15 18 21 23] <nil>
}
