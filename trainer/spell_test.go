package trainer

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/export"
	"gad/trainer/modeltest"
)

// foreign is a folder of a model with random weights, whose tokenizer has other merges than the
// student's.
func foreign(t *testing.T) string {
	t.Helper()
	be := ready(t)
	corpus, err := os.Open(modeltest.Letters("corpus.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer corpus.Close()
	tok, err := tokenizer.Train(corpus, tokenizer.TrainOptions{VocabSize: 275})
	if err != nil {
		t.Fatal(err)
	}
	shape := modeltest.Shape
	shape.Vocab = tok.Size()
	m, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "foreign")
	if err := errors.Join(export.WriteFolder(vfs.OS, dir, m, tok, "float32"),
		m.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// An answer in the tokens of real tokenizers: both lists of bytes are of one text, which the
// teacher's tokens spell, whatever blanks either puts before it.
func TestSpell(t *testing.T) {
	toks := map[string]*tokenizer.Tokenizer{}
	for _, name := range []string{"qwen2", "llama2", "llama3", "gemma", "mistral", "gpt2"} {
		tok, err := tokenizer.Load(filepath.Join("..", "testdata", "tokenizer", name))
		if err != nil {
			t.Fatal(err)
		}
		toks[name] = tok
	}
	texts := []string{"The answer is 42.", "  two blanks", "Zürich, 漢字 and 🙂\n\nend", "x", "",
		"def f(x):\n    return x**2"}
	for own, student := range toks {
		for other, teacher := range toks {
			for _, text := range texts {
				ids := student.EncodeText(text)
				if student.Decode(ids, true) != text {
					continue // this tokenizer cannot say it
				}
				s := spell(student, teacher, ids, true)
				if n := len(ids); !s.spelled || s.whole != n || len(s.student) != n ||
					n > 0 && s.student[n-1] != len(text) {
					t.Errorf("%s to %s: %q: %+v", own, other, text, s)
					continue
				}
				if n := len(s.teacher); n != len(s.ids) || n > 0 && s.teacher[n-1] != len(text) {
					t.Errorf("%s to %s: %q: the teacher's bytes: %+v", own, other, text, s)
				}
				at := 0
				for i, to := range s.student { // each token has its own bytes
					piece := string(student.Piece(ids[i]))
					if got := text[at:to]; got != piece && !(i == 0 && " "+got == piece) {
						t.Errorf("%s: %q: token %d is %q, and was given %q", own, text, i, piece, got)
					}
					at = to
				}
			}
		}
	}
	qwen, llama := toks["qwen2"], toks["llama3"]
	text := "good 🙂"
	ids := qwen.EncodeText(text)
	cutShort := ids[:len(ids)-1] // within the last character
	if piece := qwen.Piece(ids[len(ids)-1]); len(piece) >= 4 {
		t.Fatalf("the character is one token: %q", piece)
	}
	if s := spell(qwen, llama, cutShort, true); !s.spelled ||
		s.student[len(s.student)-1] != len("good ") || s.whole >= len(cutShort) ||
		llama.Decode(s.ids, true) != "good " {
		t.Errorf("half a character: %+v", s)
	}
	end := qwen.EndOfTurn()
	spoken := append(slices.Clone(qwen.EncodeText("hi")), end)
	if s := spell(qwen, llama, spoken, false); !s.end || s.ids[len(s.ids)-1] != llama.EndOfTurn() ||
		len(s.student) != len(spoken)-1 {
		t.Errorf("the ends of both templates: %+v", s)
	}
	ready(t)
	for _, end := range fixed.tok.EOS() { // each is its own
		said := append(fixed.tok.EncodeText("hi"), end)
		if s := spell(fixed.tok, fixed.tok, said, false); !s.end || s.ids[len(s.ids)-1] != end {
			t.Errorf("the same end: %+v", s)
		}
	}
	if len(fixed.tok.EOS()) < 2 {
		t.Error("one end is no test")
	}
	if s := spell(qwen, qwen, spoken, true); s.end {
		t.Errorf("an answer that was cut: %+v", s)
	}
	control := append([]int32{end}, qwen.EncodeText("hi there")...)
	if s := spell(qwen, llama, control, true); llama.Decode(s.ids, true) != "<|im_end|>hi there" ||
		slices.ContainsFunc(s.ids, llama.Special) || s.student[0] != len("<|im_end|>") {
		t.Errorf("a control token in the answer: %+v", s)
	}
	// a normal form: the teacher's tokens do not spell the text
	if s := spell(llama, qwen, llama.EncodeText("e\u0301"), true); s.spelled || s.compares(0) {
		t.Errorf("another normal form: %+v", s)
	}
}

// What is not compared keeps the student's own values; the rest is by bytes.
func TestSpellingGiven(t *testing.T) {
	s := spelling{ids: []int32{1, 2, 3, 4, 9}, student: []int{3, 5, 9, 9},
		teacher: []int{2, 5, 6, 9}, whole: 4, spelled: true, end: true}
	own := []float32{-7, -7, -7, -7, -7}
	got, err := s.alignLogp([]float32{-1, -.5, -.25, -.5, -3}, own)
	if want := []float32{-1.25, -.25, -.75, -7, -3}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	s.whole, s.end, s.ids, own = 2, false, s.ids[:4], own[:4]
	got, err = s.alignLogp([]float32{-1, -.5, -.25, -.5}, own)
	if want := []float32{-1.25, -.25, -7, -7}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v: want %v", got, err, want)
	}
	if got, err := (spelling{}).alignLogp(nil, own); err != nil || !slices.Equal(got, own) {
		t.Errorf("%v, %v: an answer that is not spelled", got, err)
	}
	if _, err := s.alignLogp([]float32{-1}, own); err == nil {
		t.Error("log-probabilities of other tokens are taken")
	}
}

// By bytes a teacher with the student's tokenizer gives the bits that it gives by ids, where the
// student writes as the tokenizer would.
func TestTheSameTokenizerByBytes(t *testing.T) {
	be := ready(t)
	tr := opened(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
		"model.path="+fixed.student, "teacher.path="+fixed.blank, "data.train_batch_size=16"),
		config.OPD)
	c := teacherOf(tr)
	r := sampledRound(t, tr, &tr.stage.(*opd).onPolicy, 16)
	v := listsOf(r)
	scores := func(other bool) [][]float32 {
		c.otherTokens = other
		read, err := tr.stage.(*opd).teachers.readings(r)
		if err != nil {
			t.Fatal(err)
		}
		out, err := tr.stage.(*opd).teachers.logProbs(Metrics{}, r, read)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	byIDs, byBytes := scores(false), scores(true)
	compared, ended := 0, 0
	for s, seq := range v.seqs {
		answer := seq.Response()
		text := answer
		if !v.cut[s] {
			text = answer[:len(answer)-1]
		}
		if !slices.Equal(tr.tok.EncodeText(tr.tok.Decode(text, false)), text) {
			continue
		}
		if !slices.Equal(byIDs[s], byBytes[s]) {
			t.Errorf("answer %d: %v by bytes, %v by ids", s, byBytes[s], byIDs[s])
		}
		if compared++; !v.cut[s] {
			ended++
		}
	}
	if compared < 16 || ended < 4 {
		t.Errorf("only %d answers were compared, %d of them ended", compared, ended)
	}
}

// A teacher with another tokenizer: its scores of a text are kept in sum, the student learns from
// them, and what needs its distributions is refused.
func TestOPDWithAnotherTokenizer(t *testing.T) {
	t.Parallel()
	be := ready(t)
	blank := foreign(t)
	sft := func(from, name, steps string) string {
		run := filepath.Join(t.TempDir(), name)
		finished(t, be, settings(config.SFT, run, "model.path="+from, "trainer.total_steps="+steps,
			"data.train_batch_size=8", "actor.optim.lr=5e-3", "data.max_response_length=20"),
			config.SFT)
		return filepath.Join(run, "global_step_"+steps, "actor")
	}
	teacher, student := sft(blank, "teacher", "60"), sft(fixed.blank, "student", "20")
	common := []string{"teacher.path=" + teacher, "model.path=" + student}
	var console strings.Builder
	tr, err := Open(settings(config.OPD, filepath.Join(t.TempDir(), "run"), common...), config.OPD,
		Options{FS: vfs.OS, Backend: be, Console: &console})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	const said = " has another tokenizer than the student: the student's tokens get the scores of the teacher's"
	if got := console.String(); !strings.Contains(got, "teacher.path "+teacher+said) ||
		strings.Contains(got, "give a teacher.path") {
		t.Errorf("console:\n%s", got)
	}
	c := teacherOf(tr)
	r := sampledRound(t, tr, &tr.stage.(*opd).onPolicy, 4)
	read, err := tr.stage.(*opd).teachers.readings(r)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := c.LogProbs(readSeqs(read), 1)
	if err != nil {
		t.Fatal(err)
	}
	given, err := tr.stage.(*opd).teachers.logProbs(Metrics{}, r, read)
	if err != nil {
		t.Fatal(err)
	}
	differ := 0
	for s, x := range read {
		sp := x.spelling
		var want, got float64
		for _, x := range plain[s] {
			want += float64(x)
		}
		for i, x := range given[s] {
			if sp.compares(i) {
				got += float64(x)
			}
		}
		if sp.whole == len(sp.student) && math.Abs(want-got) > 1e-4*(1-want) {
			t.Errorf("answer %d: the sum is %g, the teacher's %g", s, got, want)
		}
		if len(sp.teacher) != len(sp.student) {
			differ++
		}
		if prompt := c.enc.Tok.Decode(x.seq.IDs[:x.seq.Prompt()],
			false); !strings.HasSuffix(prompt, "assistant\n") {
			t.Errorf("answer %d: the teacher reads %q", s, prompt)
		}
	}
	if differ < 4 {
		t.Errorf("%d answers have other tokens", differ)
	}
	for _, loss := range []string{"exact", "topk"} {
		wantError(t, openError(t, settings(config.OPD, filepath.Join(t.TempDir(), "no"),
			append(common, "teacher.loss="+loss)...), config.OPD), nil,
			"with the same tokenizer, or use teacher.loss=policy")
	}
	if testing.Short() {
		return // it learns: slow
	}
	rows := finished(t, be, settings(config.OPD, filepath.Join(t.TempDir(), "run"),
		append(common, "trainer.total_steps=40", "data.train_batch_size=8",
			"actor.optim.lr=2e-3")...), config.OPD)
	mean := func(from int) (sum float64) {
		for _, r := range rows[from : from+5] {
			sum += r.Values["opd/reverse_kl"] / 5
		}
		return sum
	}
	if first, last := mean(0), mean(35); !(last < 0.4*first) {
		t.Errorf("reverse KL %g in the first five steps, %g in the last", first, last)
	}
	for _, r := range rows {
		if x := r.Values; !(x["opd/unspelled_frac"] < 0.2) || x["opd/ends_compared"] != 1 {
			t.Errorf("step %d: %g of the answers are not spelled, %g of the ends are compared",
				r.Step, x["opd/unspelled_frac"], x["opd/ends_compared"])
		}
	}
}
