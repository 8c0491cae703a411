// Command run writes a small student with random weights, trains it on a teacher's answers for two
// steps, and writes it as a Hugging Face folder: run FOLDER, in this repository's root.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"gad/device"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

func main() {
	student, run := os.Args[1]+"/student", os.Args[1]+"/run"
	be, err := device.Open(device.Options{Threads: 1})
	check(err)
	defer be.Close()
	newStudent(be, student)
	cfg := config.StageDefaults(config.SFT)
	cfg.Model.Path, cfg.Data.TrainFiles, cfg.Trainer.Output =
		student, []string{"testdata/letters/train.jsonl"}, run
	check(cfg.Load("", "trainer.total_steps=2", "data.train_batch_size=4",
		"data.max_prompt_length=64", "data.max_response_length=32"))
	t, err := trainer.Open(cfg, config.SFT, trainer.Options{Backend: be})
	check(err)
	defer t.Close()
	check(t.Run(context.Background())) // the same call goes on after a stop
	checkpoint, _, err := saved.Find(nil, run)
	check(err)
	_, err = export.Part(nil, checkpoint, "actor", os.Args[1]+"/exported", "base")
	check(err)
	fmt.Println("exported", checkpoint)
}

func newStudent(be model.Backend, dir string) {
	corpus, err := os.Open("testdata/letters/corpus.txt")
	check(err)
	defer corpus.Close()
	tok, err := tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 300})
	check(err)
	m, err := model.New(be, model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4,
		KVHeads: 2, HeadDim: 8, FFN: 64, Vocab: tok.Size(), MaxPosition: 128, RMSEps: 1e-6,
		RopeTheta: 10000, QKVBias: true, DType: "float32"}, model.Options{Seed: 1})
	check(err)
	defer m.Close()
	check(export.WriteFolder(nil, dir, m, tok, "float32"))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
