package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gad/algos"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// teacher is the model whose probabilities gad opd learns from, and the game with
// algorithm.teacher_weight. It reads what the student wrote, by
// the same ids, behind the row as its own chat template has it.
type teacher struct {
	*reference.Policy // nil where a server scores
	server            Scores
	enc               encode.Encoder
	system            string // message that it alone reads; "": the row's
	other             bool   // its tokenizer is not the student's
	most              int    // positions that it has; 0 is no bound
}

// openTeacher loads the teacher, frozen, on the memory that the networks share.
func (t *Trainer) openTeacher(server Scores) error {
	if !t.cfg.Taught(t.Stage) {
		return nil
	}
	if t.cfg.Teacher.URL != "" {
		return t.openServer(server)
	}
	dir := t.cfg.Teacher.Path
	apart, err := saved.CheckAgainst(t.tok, dir, "teacher.path")
	if err != nil {
		return err
	}
	if apart != nil && t.cfg.Divergence(t.Stage) {
		return fmt.Errorf("%w, or use teacher.loss=policy, which compares texts", apart)
	}
	tok, err := saved.ChatTokenizer(dir, tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return fmt.Errorf("teacher.path: %w", err)
	}
	if apart != nil {
		t.notes = append(t.notes, fmt.Sprintf("%v: the student's tokens get the scores of the teacher's by the bytes that both share", apart))
	}
	t.teacher = &teacher{system: t.cfg.Teacher.System, other: apart != nil, enc: encode.Encoder{Tok: tok,
		MaxPrompt: t.cfg.Data.MaxPrompt, MaxResponse: t.cfg.Data.MaxResponse}}
	if _, err := t.teacher.prompt(t, int(t.rows[0])); err != nil {
		return err
	}
	if end := t.tok.EndOfTurn(); t.cfg.Divergence(t.Stage) && !slices.Contains(tok.EOS(), end) {
		return fmt.Errorf("%w: teacher.path: %s: does not end its answers with the student's %s, and with teacher.loss=%s the student would learn its other end: use teacher.loss=policy", config.ErrConfig, dir, t.tok.Decode([]int32{end}, false), t.cfg.Teacher.Loss)
	}
	return t.busy("loading the teacher", func() error {
		m, err := model.Load(t.be, dir, model.Options{Kind: model.LM, Quant: t.cfg.Teacher.Weights})
		if err != nil {
			return fmt.Errorf("teacher: %w", err)
		}
		if err := m.SetTokens(tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("teacher: %w", err), m.Close())
		}
		t.teacher.Policy, t.teacher.most =
			reference.New(m, t.cfg.Actor.MaxTokenLen), m.Config().MaxPosition
		m.Share(t.actor.Model())
		if t.cfg.Divergence(t.Stage) {
			t.actor.Reference, t.actor.Beta = m, t.cfg.Teacher.Beta
		}
		if t.cfg.Teacher.Loss == "topk" {
			t.actor.Top = t.cfg.Teacher.TopK
		}
		return nil
	})
}

// aside is how long the teacher has passed within updates of the student; 0 without one.
func (c *teacher) aside() time.Duration {
	if c == nil || c.Policy == nil {
		return 0
	}
	return c.Model().AsideTime()
}

// Close frees the teacher's weights.
func (c *teacher) Close() error {
	if c.Policy == nil {
		return nil
	}
	return c.Policy.Close()
}

// prompt is a row up to where the answer begins, as the teacher reads it.
func (c *teacher) prompt(t *Trainer, row int) ([]int32, error) {
	r, err := t.set.Row(row)
	if err != nil {
		return nil, err
	}
	if c.other && len(r.PromptIDs) > 0 {
		return nil, fmt.Errorf("%w: data: row %d: has prompt_ids, which are of the student's tokenizer: the teacher has another: give rows with messages", config.ErrConfig, r.Index)
	}
	if c.system != "" {
		if r, err = encode.WithSystem(r, c.system); err != nil {
			return nil, fmt.Errorf("%w: teacher.system: %w", config.ErrConfig, err)
		}
	}
	ids, err := c.enc.Prompt(r)
	if err != nil {
		return nil, fmt.Errorf("data: row %d: the teacher's chat template: %w", r.Index, err)
	}
	return ids, nil
}

// reading is what a teacher reads of a step's answers.
type reading struct {
	seqs []model.Seq // [S]
	spS  []spelling  // [S] the answers in its own tokens; nil: they are the student's
}

// reads are the student's answers behind what the teacher reads of their rows.
func (c *teacher) reads(t *Trainer, r *round) (read reading, err error) {
	prompts := make([][]int32, len(r.batch.Rows))
	for p, row := range r.batch.Rows {
		if prompts[p], err = c.prompt(t, row); err != nil {
			return read, err
		}
	}
	read.seqs = make([]model.Seq, len(r.roll.Seqs))
	if c.other {
		read.spS = make([]spelling, len(r.roll.Seqs))
	}
	for s, seq := range r.roll.Seqs {
		p := r.group[s]
		if !c.other && slices.Equal(prompts[p], r.batch.Prompts[p]) {
			read.seqs[s] = seq // with its prompt's other answers it passes as one
			continue
		}
		answer := seq.Response()
		if c.other {
			read.spS[s] = spell(t.tok, c.enc.Tok, answer, r.cut[s])
			answer = read.spS[s].ids
		}
		ids := slices.Concat(prompts[p], answer)
		if c.most > 0 && len(ids) > c.most {
			return read, fmt.Errorf("%w: data: row %d: the teacher would read %d tokens, and %s takes %d: lower data.max_prompt_length or data.max_response_length", config.ErrConfig, r.batch.Rows[p], len(ids), t.cfg.Teacher.Path, c.most)
		}
		read.seqs[s] = model.Answer(ids, len(prompts[p]))
	}
	return read, nil
}

// openServer tries the server of teacher.url on the first rows, as the teacher reads them.
func (t *Trainer) openServer(server Scores) error {
	c := t.cfg.Teacher
	if server == nil {
		return fmt.Errorf("%w: teacher.url: %s: no connection was given to the trainer", config.ErrConfig, c.URL)
	}
	if t.ranks.Size() > 1 {
		return fmt.Errorf("%w: teacher.url: one process asks a server, and this run has %d ranks: load the teacher (--teacher), or train with one", config.ErrConfig, t.ranks.Size())
	}
	tok := t.tok
	if c.Path != "" {
		var err error
		if tok, err = saved.Tokenizer(c.Path); err != nil {
			return fmt.Errorf("teacher.path: %w", err)
		}
	}
	tok, err := tok.With(tokenizer.ChatOptions{Variables: c.Template})
	if err != nil {
		return fmt.Errorf("%w: teacher.template: %w", config.ErrConfig, err)
	}
	apart := t.tok.Missing(tok)
	if apart != "" && t.cfg.Divergence(t.Stage) {
		return fmt.Errorf("%w: teacher.path: %s: is not the student's tokenizer: %s: teacher.loss=%s compares distributions over its tokens: use teacher.loss=policy, which compares texts", config.ErrConfig, c.Path, apart, c.Loss)
	}
	t.teacher = &teacher{server: server, system: c.System, other: apart != "",
		enc: encode.Encoder{Tok: tok, MaxPrompt: t.cfg.Data.MaxPrompt,
			MaxResponse: t.cfg.Data.MaxResponse}}
	var seqs []model.Seq
	for _, row := range t.rows[:min(4, len(t.rows))] {
		ids, err := t.teacher.prompt(t, int(row))
		if err != nil {
			return err
		}
		r, err := t.set.Row(int(row))
		if err != nil {
			return err
		}
		answer, _ := t.teacher.enc.Cut(t.teacher.enc.Answer(cmp.Or(r.Teacher, "yes")))
		seqs = append(seqs, model.Answer(slices.Concat(ids, answer), len(ids)))
	}
	k := 0
	if t.cfg.Divergence(t.Stage) {
		k, t.actor.Beta = c.TopK, 0
	}
	return t.busy("trying the teacher's server, "+c.URL, func() error {
		return server.Check(context.Background(), seqs, k, tok.Piece)
	})
}

// asked are a server's log-probabilities of the tokens of read, and labels of k alternatives.
func (t *Trainer) asked(m Metrics, read reading, k int) (logpST [][]float32,
	labelsST [][]model.SoftLabel, err error) {
	ctx := cmp.Or(t.ctx, context.Background())
	err = m.time("timing_s/teacher_logp", func() (err error) {
		logpST, labelsST, err = t.teacher.server.Score(ctx, read.seqs, k)
		return err
	})
	return logpST, labelsST, err
}

// scores are the teacher's log-probabilities of the student's tokens.
func (t *Trainer) scores(m Metrics, r *round, read reading) (teacherST [][]float32, err error) {
	if t.teacher.server != nil {
		teacherST, _, err = t.asked(m, read, 0)
	} else {
		err = t.phase(m, "teacher_logp", t.teacher.Model(), read.seqs, 1, func() (err error) {
			teacherST, err = t.teacher.LogProbs(read.seqs, 1)
			return err
		})
	}
	if err != nil || read.spS == nil {
		return teacherST, err
	}
	lost := 0
	for s, sp := range read.spS {
		if !sp.spelled {
			lost++
		}
		if teacherST[s], err = sp.given(teacherST[s], r.roll.OldST[s]); err != nil {
			return nil, err
		}
	}
	m["opd/unspelled_frac"] = float64(lost) / float64(len(read.spS))
	return teacherST, nil
}

// opdStep is one step of on-policy distillation (Agarwal et al., arXiv 2306.13649): the student
// answers, the teacher gives each of its tokens a log-probability, and the difference is the
// token's advantage.
func (t *Trainer) opdStep() (m Metrics, err error) {
	m = Metrics{}
	r := &round{}
	if r.batch, err = t.draw(t.cfg.Data.TrainBatchSize); err != nil {
		return nil, err
	}
	t.stepRows = r.batch.Rows
	if err := t.rollout(m, r, map[int]int{}); err != nil {
		return nil, err
	}
	r.forCritic = t.forCritic(r)
	read, err := t.teacher.reads(t, r)
	if err != nil {
		return nil, err
	}
	learn := t.byPolicy
	if t.cfg.Divergence(t.Stage) {
		learn = t.byDivergence
	}
	advA, err := learn(m, r, read)
	if err != nil {
		return m, err
	}
	seqs := r.roll.Seqs
	t.done = t.count(m, len(r.batch.Rows), seqs, func(x config.Pass) []model.Seq {
		if x.Network == config.Teacher {
			return read.seqs
		}
		return seqs
	})
	return m, t.describe(m, r, advA)
}

// byPolicy learns by policy gradients, and returns the answers' mean advantages [A].
func (t *Trainer) byPolicy(m Metrics, r *round, read reading) ([]float64, error) {
	advST, scoreA, err := t.teacherAdvantages(m, r, read)
	if err != nil {
		return nil, err
	}
	if err := t.refLogProbs(m, r); err != nil {
		return nil, err
	}
	advA := make([]float64, len(scoreA))
	for s := range advA {
		if advA[s] = math.NaN(); advST != nil {
			advA[s], _, _ = moments(advST[s])
		}
	}
	r.scoreA, r.scoreP = scoreA, nan32(len(r.batch.Rows)) // the row's own answer is not read
	return advA, t.updateActor(m, r.batch, r.roll, advST, r.refST)
}

// teacherAdvantages are the teacher's advantages by token, by a pass over read; nil where a value
// is not finite. scoreA is its mean log-probability of a token
// of each answer.
func (t *Trainer) teacherAdvantages(m Metrics, r *round, read reading) (advST [][]float64,
	scoreA []float32, err error) {
	teacherST, err := t.scores(m, r, read)
	if err != nil {
		return nil, nil, err
	}
	advST, kl, err := algos.DistillAdvantages(teacherST, r.roll.OldST)
	if err != nil && !errors.Is(err, algos.ErrNotFinite) {
		return nil, nil, err
	}
	if advST != nil {
		m["opd/reverse_kl"] = kl
		m["opd/ends_compared"] = t.neutral(r, read, advST)
	}
	return advST, teacherScores(m, teacherST), nil
}

// withTeacher adds the teacher's advantages to those of the game, advST; nil where one of them is
// not finite. The sequences that the teacher reads are kept in the round.
func (t *Trainer) withTeacher(m Metrics, r *round, advST [][]float64) ([][]float64, error) {
	if t.teacher == nil || advST == nil {
		return advST, nil
	}
	read, err := t.teacher.reads(t, r)
	if err != nil {
		return nil, err
	}
	r.read = read.seqs
	teacherST, _, err := t.teacherAdvantages(m, r, read)
	if err != nil || teacherST == nil {
		return nil, err
	}
	advST, m["adv/teacher_share"], err =
		algos.AddTeacher(advST, teacherST, t.cfg.Algorithm.TeacherWeight)
	return advST, err
}

// byDivergence learns by the divergence of the two distributions at each token: an update by
// policy gradients without advantages, whose KL is the divergence from the teacher. Nothing is
// scored: the advantages [A] are NaN.
func (t *Trainer) byDivergence(m Metrics, r *round, read reading) ([]float64, error) {
	r.roll.Read = read.seqs
	if t.teacher.server != nil {
		var err error
		if _, r.roll.LabelsST, err = t.asked(m, read, t.cfg.Teacher.TopK); err != nil {
			return nil, err
		}
	}
	nothing := make([][]float64, len(read.seqs))
	for s, seq := range read.seqs {
		nothing[s] = make([]float64, seq.Trained())
	}
	r.scoreA, r.scoreP = nan32(len(read.seqs)), nan32(len(r.batch.Rows))
	advA := make([]float64, len(read.seqs))
	for a := range advA {
		advA[a] = math.NaN()
	}
	return advA, t.updateActor(m, r.batch, r.roll, nothing, nil)
}

func nan32(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// neutral gives tokens that are not compared with the teacher's the mean advantage of those that
// are: an end that it has another token for, since its template's habit is nothing to learn, and
// what its tokens do not spell. Without an advantage such a token would be preferred, since the
// others' are below 0 in the mean as long as there is a divergence: the student would learn to
// end with it. The result is the share of ends that are compared, 1 where no answer has one.
func (t *Trainer) neutral(r *round, read reading, advST [][]float64) float64 {
	ends, same := 0, 0
	theirs := t.teacher.enc.Tok.EOS()
	var left []*float64
	sum, n := 0.0, 0
	for s, row := range advST {
		for i := range row {
			last, compared := i == len(row)-1 && !r.cut[s], true
			switch {
			case read.spS != nil:
				compared = read.spS[s].compares(i)
			case last:
				compared = slices.Contains(theirs, r.roll.Seqs[s].Response()[i])
			}
			if last {
				ends++
				if compared {
					same++
				}
			}
			if !compared {
				left = append(left, &row[i])
				continue
			}
			sum += row[i]
			n++
		}
	}
	for _, x := range left {
		*x = sum / float64(max(n, 1))
	}
	if ends == 0 {
		return 1
	}
	return float64(same) / float64(ends)
}

// teacherScores are the teacher's mean log-probability of a token of each response.
func teacherScores(m Metrics, teacherST [][]float32) []float32 {
	nll, tokens := 0.0, 0
	scoreS := make([]float32, len(teacherST))
	for s, row := range teacherST {
		sum := 0.0
		for _, x := range row {
			sum += float64(x)
		}
		nll -= sum
		tokens += len(row)
		scoreS[s] = float32(sum / float64(max(len(row), 1)))
	}
	m["opd/teacher_nll"] = nll / float64(max(tokens, 1))
	return scoreS
}
