// Command outside is what a program of another module does with gad: TestOutside builds
// it there and runs it in this repository's root. It plays one round of the game by hand,
// then opens a run of the trainer.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"gad/actor"
	"gad/algos"
	"gad/checkpoint"
	"gad/critic"
	"gad/data"
	"gad/device"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
	"gad/trainer"
	"gad/trainer/config"
	"gad/trainer/export"
)

func main() {
	log.SetFlags(0)
	work, err := os.MkdirTemp("", "outside")
	check(err)
	defer os.RemoveAll(work)
	be, err := device.Open(device.Options{Threads: 1})
	check(err)
	defer be.Close()

	student := filepath.Join(work, "student")
	tok := newStudent(be, student)
	round(be, student, tok)
	run(be, student, filepath.Join(work, "run"))
}

// newStudent writes a model folder: a tokenizer from a text, and random weights.
func newStudent(be model.Backend, dir string) *tokenizer.Tokenizer {
	corpus, err := os.Open("testdata/letters/corpus.txt")
	check(err)
	defer corpus.Close()
	tok, err := tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 300})
	check(err)
	m, err := model.New(be, model.Config{Architecture: "Qwen2", Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 64, Vocab: tok.Size(),
		MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true, DType: "float32"}, model.Options{Seed: 1})
	check(err)
	defer m.Close()
	check(export.WriteFolder(checkpoint.Disk, dir, m, tok, "float32"))
	return tok
}

// round is one round of the game: answers, scores, advantages, both updates.
func round(be model.Backend, dir string, tok *tokenizer.Tokenizer) {
	const P, G, longest = 2, 4, 16
	sampling := actor.DefaultRollout()
	sampling.N = G
	student, err := actor.Open(be, dir, actor.DefaultConfig(), sampling, 1, longest)
	check(err)
	defer student.Close()
	discriminator, err := critic.Open(be, dir, critic.DefaultConfig(), 1, 1)
	check(err)
	defer discriminator.Close()
	frozen, err := reference.Open(be, dir, 1024)
	check(err)
	defer frozen.Close()

	set, err := data.Open("testdata/letters/train.jsonl", data.DefaultColumns())
	check(err)
	defer set.Close()
	rows := data.NewOrder(set.Len(), 1, 0, 1).Next(P)
	ending := critic.Ending{EOS: tok.EOS(), Turn: tok.EndOfTurn()}
	var prompts [][]int32
	var teachers []model.Seq
	for _, i := range rows {
		row, err := set.Row(i)
		check(err)
		var chat []tokenizer.Message
		for _, m := range row.Messages {
			chat = append(chat, tokenizer.Message{Role: m.Role, Content: m.Content})
		}
		prompt, err := tok.ChatPrompt(chat)
		check(err)
		prompts = append(prompts, prompt)
		teachers = append(teachers, ending.Seq(prompt, tok.EncodeText(row.Teacher), false))
	}

	answers, err := student.Rollout(context.Background(), prompts, tok.EOS(),
		actor.Key{Seed: 1, Rows: rows}, nil)
	check(err)
	check(student.RecomputeOld(answers))
	b := critic.Batch{Teachers: teachers, Group: answers.Groups(), Skip: make([]bool, len(answers))}
	for _, s := range answers {
		b.Students = append(b.Students,
			ending.Seq(s.Seq.IDs[:s.Seq.Prompt()], s.Seq.Response(), s.Cut))
	}
	b.ScoreS, err = discriminator.Score(b.Students)
	check(err)
	b.ScoreP, err = discriminator.Score(b.Teachers)
	check(err)
	refST, err := frozen.LogProbs(answers.Seqs(), sampling.Temperature)
	check(err)
	scores := make([]float64, len(b.ScoreS))
	for s, x := range b.ScoreS {
		scores[s] = float64(x)
	}
	maskST := answers.Mask()
	advST, err := algos.Advantages(algos.AdvantageConfig{Name: "grpo"}, algos.AdvantageInput{Scores: scores, Group: answers.Groups(), Mask: maskST})
	check(err)
	told, err := discriminator.Update(b)
	check(err)
	answers.SetAdv(advST)
	answers.SetRef(refST)
	learned, err := student.Update(answers)
	check(err)
	fmt.Printf("round: %d answers, %.0f pairs, %d and %d updates\n", len(answers), told.Pairs, told.Updates, learned.Updates)
}

// run trains for two steps with the trainer, and resumes nothing.
func run(be model.Backend, student, dir string) {
	cfg := config.StageDefaults(config.SFT)
	cfg.Model.Path, cfg.Data.TrainFiles, cfg.Trainer.Output = student, []string{"testdata/letters/train.jsonl"}, dir
	check(cfg.Load("", "trainer.total_steps=2", "data.train_batch_size=4", "data.max_prompt_length=64", "data.max_response_length=32"))
	t, err := trainer.Open(cfg, config.SFT, trainer.Options{Backend: be})
	check(err)
	defer t.Close()
	check(t.Run(context.Background()))
	step, _, _, err := checkpoint.Latest(nil, dir)
	check(err)
	fmt.Printf("run: step %d is saved\n", step)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
