// Command round plays one round of the game by hand: round STUDENT, a folder as run writes it.
package main

import (
	"context"
	"fmt"
	"os"

	"gad/actor"
	"gad/algos"
	"gad/critic"
	"gad/data"
	"gad/device"
	"gad/tokenizer"
	"gad/trainer/encode"
)

func main() {
	be, tok := must(device.Open(device.Options{Threads: 1})), must(tokenizer.Load(os.Args[1]))
	cfg, sampling := actor.DefaultConfig(), actor.DefaultRollout()
	cfg.UseKLLoss, sampling.N = false, 4 // answers to a prompt
	student := must(actor.Open(be, os.Args[1], cfg, sampling, 1, 16))
	discriminator := must(critic.Open(be, os.Args[1], critic.DefaultConfig(), 1, 1))
	set := must(data.Open("testdata/letters/train.jsonl", data.DefaultColumns()))
	enc := encode.Encoder{Tok: tok, MaxPrompt: 64, MaxResponse: 16}
	rows := data.NewOrder(set.Len(), 1, 0, 1).Next(2)
	var prompts [][]int32
	var b critic.Batch
	for _, i := range rows {
		row := must(set.Row(i))
		prompt := must(enc.Prompt(row))
		prompts = append(prompts, prompt)
		b.Teachers = append(b.Teachers, enc.Seq(prompt, enc.Response(enc.Answer(row.Teacher))))
	}
	answers := must(student.Rollout(context.Background(), prompts, tok.EOS(),
		actor.Key{Seed: 1, Rows: rows}, nil))
	for _, s := range answers {
		b.Students = append(b.Students, enc.Seq(s.Seq.IDs[:s.Seq.Prompt()],
			encode.Response{IDs: s.Seq.Response(), Finished: !s.Cut}))
	}
	var scores []float64
	for _, x := range must(discriminator.Score(b.Students)) {
		scores = append(scores, float64(x))
	}
	advantages := must(algos.Advantages(algos.AdvantageConfig{Name: "grpo"}, algos.AdvantageInput{
		Scores: scores, Group: answers.Groups(), Mask: answers.Mask()}))
	b.Group, b.Skip = answers.Groups(), make([]bool, len(answers))
	told := must(discriminator.Update(b))
	answers.SetAdv(advantages)
	must(answers, student.RecomputeOld(answers)) // log-probabilities before the update
	learned := must(student.Update(answers))
	fmt.Println(len(answers), "answers,", told.Updates, "and", learned.Updates, "updates")
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}
