package trainer_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gad/device"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// A new student of two layers learns from a teacher's answers for two steps, and is
// exported as a Hugging Face folder.
func Example() {
	if err := distil(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// step 2 of 2
	// exported as float32
}

func distil() error {
	dir, err := os.MkdirTemp("", "distil")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	student, run := filepath.Join(dir, "student"), filepath.Join(dir, "run")

	be, err := device.Open(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()

	// A student: a tokenizer from a text, and random weights.
	corpus, err := os.Open("../testdata/letters/corpus.txt")
	if err != nil {
		return err
	}
	defer corpus.Close()
	tok, err := tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 300})
	if err != nil {
		return err
	}
	m, err := model.New(be, model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4,
		KVHeads: 2, HeadDim: 8, FFN: 64,
		Vocab: tok.Size(), MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true,
		QKVBias: true, DType: "float32"}, model.Options{Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := export.WriteFolder(nil, student, m, tok, "float32"); err != nil {
		return err
	}

	// Two steps of SFT.
	cfg := config.StageDefaults(config.SFT)
	cfg.Model.Path, cfg.Data.TrainFiles, cfg.Trainer.Output =
		student, []string{"../testdata/letters/train.jsonl"}, run
	cfg.Data.TrainBatchSize, cfg.Data.MaxPrompt, cfg.Data.MaxResponse = 8, 64, 32
	// as on the command line
	if err := cfg.Load("", "trainer.total_steps=2", "actor.optim.lr=1e-3"); err != nil {
		return err
	}
	t, err := trainer.Open(cfg, config.SFT, trainer.Options{Backend: be})
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.Run(context.Background()); err != nil {
		return err
	}
	done, total := t.Steps()
	fmt.Println("step", done, "of", total)

	checkpoint, _, err := saved.Find(nil, run)
	if err != nil {
		return err
	}
	dtype, err := export.Part(nil, checkpoint, "actor", filepath.Join(dir, "exported"), "base")
	if err != nil {
		return err
	}
	fmt.Println("exported as", dtype)
	return nil
}
