package trainer

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/data"
	"gad/internal/hostile"
	"gad/trainer/config"
	"gad/trainer/encode"
)

// ranked are ratings of the fixture's 40 rows with four answers each: of three words or more, the
// better the later. In every fifth row all scores are equal. edit changes a row's lines.
func ranked(t *testing.T,
	edit func(row int, answers []data.RatedAnswer, teacher *data.RatedAnswer)) string {
	t.Helper()
	s, err := data.Open(fixed.data, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	enc := encode.Encoder{Tok: fixed.tok, MaxResponse: 14}
	var b strings.Builder
	line := func(v any) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(raw, '\n'))
	}
	line(data.RatingsHead{Format: data.RatingsFormat, Rows: 40, Data: s.Digest(),
		Tokenizer: fixed.tok.Digest(), N: 4, Answers: true, ScoredBy: "checker"})
	for i := range 40 {
		score := func(x float64) *float64 {
			if i%5 == 4 {
				x = 1
			}
			return &x
		}
		var answers []data.RatedAnswer
		for k, text := range []string{"g", "is d o", "It is.", "It is 1."} {
			answer := enc.Response(enc.Answer(text))
			answers = append(answers, data.RatedAnswer{IDs: enc.Seq(nil, answer).IDs,
				Truncated: !answer.Finished, Score: score(.2 * float64(k))})
		}
		teacher := data.RatedAnswer{Score: score(1)}
		if edit != nil {
			edit(i, answers, &teacher)
		}
		line(map[string]any{"row": i, "answers": answers, "teacher": teacher})
	}
	path := filepath.Join(t.TempDir(), "ranked.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// byRank are the settings of a run that ranks.
func byRank(ratings string, more ...string) []string {
	return append([]string{"trainer.objective=ranking", "rollout.n=4", "data.ratings=" + ratings},
		more...)
}

// The student learns the order of the answers: the likeliest becomes the best. Rows in which all
// scores are equal are left out, which is said.
func TestRankingLearnsTheOrder(t *testing.T) {
	be := ready(t)
	var console lines
	c := settings(config.SFT, filepath.Join(t.TempDir(), "run"), byRank(ranked(t, nil),
		"trainer.total_steps=40", "data.train_batch_size=8", "actor.optim.lr=3e-3")...)
	if err := playOn(be, c, config.SFT, &console); err != nil {
		t.Fatal(err)
	}
	rows := metricsOf(t, c)
	first, last := rows[0].Values, rows[len(rows)-1].Values
	if !(last["ranking/agree"] > .8) || !(first["ranking/agree"] < .8) {
		t.Errorf("agree is %g at first and %g at last", first["ranking/agree"],
			last["ranking/agree"])
	}
	if first["ranking/tau"] != 1 || last["ranking/tau"] > .1+1e-12 {
		t.Errorf("tau is %g at first and %g at last", first["ranking/tau"], last["ranking/tau"])
	}
	if !console.have("8 of 40 rows cannot be ranked and are left out") {
		t.Errorf("nothing is said of the rows that are left out: %s", console.String())
	}
}

// A run that ranks has the same bits when it was stopped, killed, and on several ranks.
func TestRankingChangesNoBit(t *testing.T) {
	be := ready(t)
	overrides := byRank(ranked(t, nil), sharded("rollout.n=3", "trainer.total_steps=5")...)
	overrides = append(leveled(t), overrides...)
	// the column is no part of the rows, so the ratings hold for the leveled rows too
	whole := filepath.Join(t.TempDir(), "whole")
	finished(t, be, settings(config.SFT, whole, overrides...), config.SFT)
	want := record(t, whole, 5)
	cfg := settings(config.SFT, filepath.Join(t.TempDir(), "pieces"), overrides...)
	inPieces(t, cfg, config.SFT, 0, 2)
	same(t, record(t, cfg.Trainer.Output, 5), want)
	if hostile.Long() {
		cfg.Trainer.Output = filepath.Join(t.TempDir(), "4")
		onRanks(t, 4, cfg, config.SFT)
		same(t, record(t, cfg.Trainer.Output, 5), want)
	}
}

// Ratings that cannot be ranked are refused with the reason and a way out.
func TestRankingRefusals(t *testing.T) {
	be := ready(t)
	for name, c := range map[string]struct {
		edit   func(i int, answers []data.RatedAnswer, teacher *data.RatedAnswer)
		more   string
		choice bool // a mistake of the settings
		want   string
	}{
		"equal": {func(_ int, answers []data.RatedAnswer, teacher *data.RatedAnswer) {
			for k := range answers {
				answers[k].Score = teacher.Score
			}
		}, "", false, "none of 40 rows can be ranked: in each all scores are equal, or one is not finite: rate with another judge, or with more answers"},
		"not finite": {func(_ int, _ []data.RatedAnswer, teacher *data.RatedAnswer) {
			teacher.Score = nil
		}, "", false, "none of 40 rows can be ranked"},
		"few": {nil, "rollout.n=5", true,
			"4 answers to a row, and rollout.n is 5: lower it, or rate with --n 5"},
		"long": {func(i int, answers []data.RatedAnswer, _ *data.RatedAnswer) {
			if i == 7 {
				answers[1].IDs = make([]int32, 15)
			}
		}, "", true, "row 7: an answer of 15 tokens, and data.max_response_length is 14: raise it, or rate with --max-new-tokens 14"},
		"foreign ids": {func(_ int, answers []data.RatedAnswer, _ *data.RatedAnswer) {
			answers[0].IDs = []int32{1 << 20}
		}, "", false, "answers[0] is 1048576, not a token of this tokenizer"},
		"no ratings": {nil, "data.ratings=", true,
			"trainer.objective ranking learns from scored answers: give --ratings FILE, made by gad data rate --keep-answers"},
	} {
		t.Run(name, func(t *testing.T) {
			var more []string
			if c.more != "" {
				more = append(more, c.more)
			}
			err := play(be, settings(config.SFT, filepath.Join(t.TempDir(), "run"),
				byRank(ranked(t, c.edit), more...)...), config.SFT)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v\nwant %s", err, c.want)
			}
			if mistake := errors.Is(err, data.ErrChoice) || errors.Is(err,
				config.ErrConfig); mistake != c.choice {
				t.Errorf("a mistake of the settings: %t", mistake)
			}
		})
	}
}
