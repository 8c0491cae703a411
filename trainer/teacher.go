package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
// algorithm.teacher_weight. It reads the student's answer, by the same ids, after the row in its
// own chat template.
type teacher struct {
	*reference.Policy // nil if a server scores
	t                 *Trainer
	server            Scores
	enc               encode.Encoder
	system            string // system message for the teacher alone; "": the row's
	otherTokens       bool   // its tokenizer is not the student's
	maxPositions      int    // positions that the model has; 0: no bound
}

// openTeacher loads the teacher, frozen, on the memory that the networks share. byTokens reports
// that its distributions over the student's tokens are learned, which requires the student's
// tokenizer.
func openTeacher(t *Trainer, s *start, byTokens bool) (*teacher, error) {
	if t.cfg.Teacher.URL != "" {
		return openServer(t, s, byTokens)
	}
	dir := t.cfg.Teacher.Path
	mismatch, err := saved.CompareTokenizers(t.tok, dir, "teacher.path")
	if err != nil {
		return nil, err
	}
	if mismatch != nil && byTokens {
		return nil, fmt.Errorf("%w, or use teacher.loss=policy, which compares texts", mismatch)
	}
	tok, err := saved.ChatTokenizer(dir, tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return nil, fmt.Errorf("teacher.path: %w", err)
	}
	if mismatch != nil {
		s.lateNotes = append(s.lateNotes, fmt.Sprintf("%v: the student's tokens get the scores of the teacher's by the bytes that both share", mismatch))
	}
	c := &teacher{t: t, system: t.cfg.Teacher.System, otherTokens: mismatch != nil,
		enc: encode.Encoder{Tok: tok, MaxPrompt: t.cfg.Data.MaxPrompt,
			MaxResponse: t.cfg.Data.MaxResponse}}
	if err := c.checkPrompts(s); err != nil {
		return nil, err
	}
	if end := t.tok.EndOfTurn(); byTokens && !slices.Contains(tok.EOS(), end) {
		return nil, fmt.Errorf("%w: teacher.path: %s: does not end its answers with the student's %s, and with teacher.loss=%s the student would learn its other end: use teacher.loss=policy", config.ErrConfig, dir, t.tok.Decode([]int32{end}, false), t.cfg.Teacher.Loss)
	}
	return c, t.busy("loading the teacher", func() error {
		m, err := model.Load(t.be, dir, model.Options{Kind: model.LM, Quant: t.cfg.Teacher.Weights})
		if err != nil {
			return fmt.Errorf("teacher: %w", err)
		}
		if err := m.SetTokens(c.enc.Tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("teacher: %w", err), m.Close())
		}
		c.Policy, c.maxPositions = reference.New(m, t.cfg.Actor.MaxTokenLen), m.Config().MaxPosition
		m.Share(t.actor.Model())
		return nil
	})
}

// updateTime returns the time of the teacher's passes inside updates of the student so far; 0
// without a teacher.
func (c *teacher) updateTime() time.Duration {
	if c == nil || c.Policy == nil {
		return 0
	}
	return c.Model().AsideTime()
}

// Close frees the teacher's weights.
func (c *teacher) Close() error {
	if c == nil || c.Policy == nil {
		return nil
	}
	return c.Policy.Close()
}

// prompt returns the tokens of a row up to where the answer begins, in the teacher's chat template.
func (c *teacher) prompt(row int) ([]int32, error) {
	r, err := c.t.train.set.Row(row)
	if err != nil {
		return nil, err
	}
	if c.otherTokens && len(r.PromptIDs) > 0 && r.TeacherPrompt == nil {
		return nil, fmt.Errorf("%w: data: row %d: has prompt_ids, which are of the student's tokenizer: the teacher has another: give rows with messages", config.ErrConfig, r.Index)
	}
	if r, err = encode.ForTeacher(r, c.system); err != nil {
		return nil, fmt.Errorf("%w: teacher.system: %w", config.ErrConfig, err)
	}
	ids, err := c.enc.Prompt(r)
	if err != nil {
		return nil, fmt.Errorf("data: row %d: the teacher's chat template: %w", r.Index, err)
	}
	return ids, nil
}

// checkPrompts refuses rows whose prompt the teacher cannot read: the first row, or with
// teacher.prompt_key all rows that have such a prompt. It notes how many have one.
func (c *teacher) checkPrompts(s *start) error {
	t := c.t
	key, most := t.cfg.Teacher.PromptKey, t.cfg.Teacher.LongestPrompt(t.cfg.Data)
	if key == "" {
		_, err := c.prompt(int(t.train.rows[0]))
		return err
	}
	advance, done := t.con.Busy("the teacher's prompts", len(t.train.rows))
	defer done()
	found := 0
	for _, row := range t.train.rows {
		advance(1)
		r, err := t.train.set.Row(int(row))
		if err != nil {
			return err
		}
		if r.TeacherPrompt == nil {
			continue
		}
		found++
		ids, err := c.prompt(int(row))
		if err != nil {
			return err
		}
		if n := len(ids); n > most {
			return fmt.Errorf("%w: data: row %d: column %q (teacher.prompt_key): %d tokens in the teacher's chat template, and teacher.max_prompt_length is %d: raise it, or shorten or remove the row", config.ErrConfig, r.Index, key, n, most)
		}
	}
	n := len(t.train.rows)
	switch {
	case found == 0:
		return fmt.Errorf("%w: data: column %q (teacher.prompt_key): none of %d rows has a value there: name the column with the teacher's prompts, or leave the setting out", config.ErrConfig, key, n)
	case found < n:
		s.infos = append(s.infos, fmt.Sprintf("the teacher reads a prompt of its own for %d of %d rows (teacher.prompt_key %s), for the others the student's", found, n, key))
	}
	return nil
}

// reading is an answer as a teacher reads it.
type reading struct {
	seq      model.Seq
	spelling *spelling // the answer in the teacher's tokens; nil: they are the student's
}

// readSeqs returns the sequences of list.
func readSeqs(list []reading) []model.Seq {
	seqs := make([]model.Seq, len(list))
	for i, x := range list {
		seqs[i] = x.seq
	}
	return seqs
}

// readings returns the student's answers, each after its row as the teacher reads it.
func (c *teacher) readings(r *round) (list []reading, err error) {
	for _, g := range r.groups {
		prompt, err := c.prompt(g.Index)
		if err != nil {
			return nil, err
		}
		for _, a := range g.answers {
			x, err := c.readingOf(g, a, prompt)
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
	}
	return list, nil
}

// readingOf returns an answer after the teacher's prompt.
func (c *teacher) readingOf(g *group, a *answer, prompt []int32) (x reading, err error) {
	if !c.otherTokens && slices.Equal(prompt, g.Prompt) {
		x.seq = a.seqs[0].Seq // with its prompt's other answers it passes as one
		return x, nil
	}
	answer := a.seqs[0].Seq.Response()
	if c.otherTokens {
		s := spell(c.t.tok, c.enc.Tok, answer, a.cut)
		x.spelling, answer = &s, s.ids
	}
	ids := slices.Concat(prompt, answer)
	if c.maxPositions > 0 && len(ids) > c.maxPositions {
		return x, fmt.Errorf("%w: data: row %d: the teacher would read %d tokens, and %s takes %d: lower data.max_prompt_length or data.max_response_length", config.ErrConfig, g.Index, len(ids), c.t.cfg.Teacher.Path, c.maxPositions)
	}
	x.seq = model.Answer(ids, len(prompt))
	return x, nil
}

// openServer returns a teacher whose scores a server gives (teacher.url), tried on the first rows.
func openServer(t *Trainer, s *start, byTokens bool) (*teacher, error) {
	c, server := t.cfg.Teacher, s.teacher
	if server == nil {
		return nil, fmt.Errorf("%w: teacher.url: %s: no connection was given to the trainer", config.ErrConfig, c.URL)
	}
	if t.ranks.Size() > 1 {
		return nil, fmt.Errorf("%w: teacher.url: one process asks a server, and this run has %d ranks: load the teacher (--teacher), or train with one", config.ErrConfig, t.ranks.Size())
	}
	tok := t.tok
	if c.Path != "" {
		var err error
		if tok, err = saved.Tokenizer(c.Path); err != nil {
			return nil, fmt.Errorf("teacher.path: %w", err)
		}
	}
	tok, err := tok.With(tokenizer.ChatOptions{Variables: c.Template})
	if err != nil {
		return nil, fmt.Errorf("%w: teacher.template: %w", config.ErrConfig, err)
	}
	mismatch := t.tok.Missing(tok)
	if mismatch != "" && byTokens {
		return nil, fmt.Errorf("%w: teacher.path: %s: is not the student's tokenizer: %s: teacher.loss=%s compares distributions over its tokens: use teacher.loss=policy, which compares texts", config.ErrConfig, c.Path, mismatch, c.Loss)
	}
	teacher := &teacher{t: t, server: server, system: c.System, otherTokens: mismatch != "",
		enc: encode.Encoder{Tok: tok, MaxPrompt: t.cfg.Data.MaxPrompt,
			MaxResponse: t.cfg.Data.MaxResponse}}
	if err := teacher.checkPrompts(s); err != nil {
		return nil, err
	}
	var seqs []model.Seq
	for _, row := range t.train.rows[:min(4, len(t.train.rows))] {
		ids, err := teacher.prompt(int(row))
		if err != nil {
			return nil, err
		}
		r, err := t.train.set.Row(int(row))
		if err != nil {
			return nil, err
		}
		answer := teacher.enc.Response(teacher.enc.Answer(cmp.Or(r.Teacher, "yes")))
		seqs = append(seqs, teacher.enc.Seq(ids, answer))
	}
	k := 0
	if byTokens {
		k = c.TopK
	}
	return teacher, t.busy("trying the teacher's server, "+c.URL, func() error {
		return server.Check(context.Background(), seqs, k, tok.Piece)
	})
}

// askServer returns a server's log-probabilities [S][T] of the tokens of list, and labels of k
// alternatives.
func (c *teacher) askServer(m Metrics, list []reading, k int) (logpST [][]float32,
	labelsST [][]model.SoftLabel, err error) {
	err = m.time("timing_s/teacher_logp", func() (err error) {
		logpST, labelsST, err = c.server.Score(c.t.context(), readSeqs(list), k)
		return err
	})
	return logpST, labelsST, err
}

// logProbs returns the teacher's log-probabilities [S][T] of the student's tokens.
func (c *teacher) logProbs(m Metrics, r *round,
	list []reading) (teacherST [][]float32, err error) {
	if c.server != nil {
		teacherST, _, err = c.askServer(m, list, 0)
	} else {
		seqs := readSeqs(list)
		err = c.t.phase(m, "teacher_logp", c.Model(), seqs, 1, func() (err error) {
			teacherST, err = c.LogProbs(seqs, 1)
			return err
		})
	}
	if err != nil || !c.otherTokens {
		return teacherST, err
	}
	lost, roll := 0, r.rollout()
	for i, x := range list {
		if !x.spelling.spelled {
			lost++
		}
		if teacherST[i], err = x.spelling.alignLogp(teacherST[i], roll[i].Old); err != nil {
			return nil, err
		}
	}
	m["opd/unspelled_frac"] = float64(lost) / float64(len(list))
	return teacherST, nil
}

// advantages returns the teacher's advantages by token [S][T], by a pass over list; nil if a value
// is not finite. It notes the teacher's mean log-probability of each answer.
func (c *teacher) advantages(m Metrics, r *round, list []reading) (advST [][]float64, err error) {
	teacherST, err := c.logProbs(m, r, list)
	if err != nil {
		return nil, err
	}
	noteTeacherLogp(m, r, teacherST)
	advST, kl, err := algos.DistillAdvantages(teacherST, each(r, oldOf))
	if errors.Is(err, algos.ErrNotFinite) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m["opd/reverse_kl"] = kl
	m["opd/ends_compared"] = c.fillUncompared(r, list, advST)
	return advST, nil
}

// addTeacher adds the teacher's advantages to the game's. If one of them is not finite, the round
// has no advantages.
func (g *game) addTeacher(m Metrics, r *round) (err error) {
	if g.teacher == nil || !r.hasAdvantages {
		return nil
	}
	if g.read, err = g.teacher.readings(r); err != nil {
		return err
	}
	teacherST, err := g.teacher.advantages(m, r, g.read)
	if err != nil {
		return err
	}
	if r.hasAdvantages = teacherST != nil; !r.hasAdvantages {
		return nil
	}
	roll := r.rollout()
	own := make([][]float64, len(roll))
	for i, s := range roll {
		own[i] = s.Adv
	}
	mixedST, share, err := algos.AddTeacher(own, teacherST, g.t.cfg.Algorithm.TeacherWeight)
	if err != nil {
		return err
	}
	m["adv/teacher_share"] = share
	roll.SetAdv(mixedST)
	return nil
}

// fillUncompared sets the advantage of tokens that cannot be compared with the teacher's to the
// mean advantage of the others. Such tokens are an end for which the teacher's template has another
// token, since that habit is nothing to learn, and text that the teacher's tokens do not spell.
// With advantage 0 such a token would be preferred, since the mean of the others is below 0 as long
// as there is a divergence: the student would learn to end with it. It returns the share of ends
// that are compared, 1 where no answer has an end.
func (c *teacher) fillUncompared(r *round, list []reading, advST [][]float64) float64 {
	ends, same := 0, 0
	theirs := c.enc.Tok.EOS()
	answers := r.answers()
	var left []*float64
	sum, n := 0.0, 0
	for s, row := range advST {
		for i := range row {
			last, compared := i == len(row)-1 && !answers[s].cut, true
			switch {
			case c.otherTokens:
				compared = list[s].spelling.compares(i)
			case last:
				compared = slices.Contains(theirs, answers[s].seqs[0].Seq.Response()[i])
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

// noteTeacherLogp sets the teacher's mean log-probability of a token of each answer.
func noteTeacherLogp(m Metrics, r *round, teacherST [][]float32) {
	nll, tokens := 0.0, 0
	for i, a := range r.answers() {
		sum := 0.0
		for _, x := range teacherST[i] {
			sum += float64(x)
		}
		nll -= sum
		tokens += len(teacherST[i])
		a.teacherLogp = float64(float32(sum / float64(max(len(teacherST[i]), 1))))
	}
	m["opd/teacher_nll"] = nll / float64(max(tokens, 1))
}
