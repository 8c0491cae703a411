// Command sampling samples answers to a question and says how probable the student finds them:
// sampling STUDENT QUESTION, with the folder of a model as run writes it or Hugging Face has it.
package main

import (
	"fmt"
	"log"
	"os"

	"gad/device"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
)

func main() {
	folder, question := os.Args[1], os.Args[2]
	be, err := device.Open(device.Options{})
	check(err)
	defer be.Close()
	tok, err := tokenizer.Load(folder)
	check(err)
	m, err := model.Load(be, folder, model.Options{Kind: model.LM})
	check(err)
	defer m.Close()

	prompt, err := tok.ChatPrompt([]tokenizer.Message{{Role: "user", Content: question}})
	check(err)
	answers, err := m.Generate([][]int32{prompt}, []uint64{0}, model.SampleOptions{N: 3, MaxNew: 24,
		EOS: tok.EOS(), Seed: 1, Sampling: model.Sampling{Temperature: 1, TopP: 0.95}}, nil)
	check(err)

	var seqs []model.Seq // prompt and answer, of which the answer counts
	for _, a := range answers[0] {
		seqs = append(seqs, model.Answer(append(prompt[:len(prompt):len(prompt)], a.IDs...), len(prompt)))
	}
	logp, err := reference.New(m, 4096).LogProbs(seqs, 1)
	check(err)
	for i, a := range answers[0] {
		sum := float32(0)
		for _, x := range logp[i] {
			sum += x
		}
		fmt.Printf("%d tokens, log-probability %.1f: %q\n", len(a.IDs), sum, tok.Decode(a.IDs, true))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
