package trainer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/trainer/config"
	"gad/trainer/encode"
)

// unfinishedRows writes answers of which every second was cut by the teacher's endpoint,
// or all of them.
func unfinishedRows(t *testing.T, all bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	row := `{"content":"Add 1+1+1","teacher_response":"It is 3.","finish_reason":"stop"}` + "\n"
	cut := `{"content":"Add 2+1+1","teacher_response":"It is","finish_reason":"length"}` + "\n"
	text := strings.Repeat(row+cut, 4)
	if all {
		text = strings.Repeat(cut, 8)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// An answer that its endpoint cut has no end, and makes no pair for the discriminator.
func TestUnfinishedAnswers(t *testing.T) {
	be := ready(t)
	run := func(set ...string) *Trainer {
		return opened(t, be, settings(config.Warmup, filepath.Join(t.TempDir(), "run"),
			append([]string{"data.train_files=" + unfinishedRows(t, false),
				"data.train_batch_size=8", "trainer.total_steps=1"}, set...)...), config.Warmup)
	}
	tr := run()
	m := Metrics{}
	played := scored(t, tr, m)
	v := listsOf(played)
	turn := fixed.tok.EndOfTurn()
	cut := 0
	for p, seq := range v.batch.Teachers() {
		ends := seq.IDs[len(seq.IDs)-1] == turn
		if want := v.batch[p].TeacherText == "It is 3."; ends != want ||
			v.batch[p].TeacherCut == want {
			t.Errorf("%q ends with the end of turn: %v, cut: %v", v.batch[p].TeacherText, ends,
				v.batch[p].TeacherCut)
		}
		if !ends {
			cut++
		}
	}
	if cut != 4 {
		t.Fatalf("%d of 8 teacher's answers are cut", cut)
	}
	if err := gameOf(tr).updateCritic(m, played); err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for s, p := range v.groupS {
		if !v.cutS[s] && v.batch[p].TeacherText == "It is 3." {
			pairs++
		}
	}
	if pairs == 0 || m["critic/pairs"] != float64(pairs) {
		t.Errorf("%g pairs, want %d", m["critic/pairs"], pairs)
	}
	if tr := run("data.truncated_teachers=filter"); len(tr.train.rows) != 4 {
		t.Errorf("%d rows with data.truncated_teachers=filter", len(tr.train.rows))
	}
}

// What a run says of such answers, and that it refuses a set of nothing else.
func TestUnfinishedAnswersAreSaid(t *testing.T) {
	u := encode.Usable{Rows: make([]int32, 8), Unfinished: 4, ForAll: 5, ForMost: 5}
	cfg := config.Default()
	cfg.Data.MaxResponse = 10
	for stage, want := range map[config.Stage]string{
		config.SFT:    "4 of 8 teacher answers (50.0 %) are unfinished (finish_reason) and do not teach the student to end an answer: collect them with a higher limit of tokens to have them whole",
		config.Warmup: "4 of 8 teacher answers (50.0 %) are unfinished (finish_reason) and make no pairs (critic.truncated=exclude): collect them with a higher limit of tokens to have them whole",
		config.DPO:    "4 of 8 teacher answers (50.0 %) are unfinished (finish_reason) and make no pairs (dpo.truncated=exclude): collect them with a higher limit of tokens to have them whole",
	} {
		if got, err := u.CheckPairs("rows", cfg, stage); got != want || err != nil {
			t.Errorf("%s: %q, %v", stage, got, err)
		}
	}
	u.Cut = 1
	if got, _ := u.CheckPairs("rows", cfg, config.SFT); got != "1 of 8 teacher answers (12.5 %) are cut at data.max_response_length 10, 4 more (50.0 %) are unfinished (finish_reason) and do not teach the student to end an answer: data.max_response_length=5 would keep all" {
		t.Errorf("%q", got)
	}
	u.Cut, u.Unfinished = 0, 8
	want := "data: rows: none of 8 rows can make a pair, since every teacher answer is unfinished (finish_reason) or over data.max_response_length 10: collect answers with a higher limit of tokens; or set critic.truncated=include"
	if _, err := u.CheckPairs("rows", cfg, config.Train); !errors.Is(err, config.ErrConfig) ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v", err)
	}
}
