package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gad/actor"
	"gad/algos"
	"gad/checkpoint"
	"gad/data"
	"gad/internal/report"
	"gad/model"
	"gad/reference"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/export"
	"gad/trainer/saved"
)

// teachers are the models whose probabilities gad opd learns from, and the game with
// algorithm.teacher_weight: one, or one for each value of the column teacher.by. A teacher reads
// the student's answer, by the same ids, after the row in its own chat template.
type teachers struct {
	t       *Trainer
	list    []*teacher
	longest int      // answer, in tokens
	copy    *teacher // of list, a copy of the student (teacher.renew); nil: there is none yet
	// the teacher of the start is read beside the copy
	keepsFirst bool
	longer     []int  // of the last readings: tokens of each answer's notes and their template
	tooLong    string // and what the first notes were too long for; "": nothing
}

// teacher is one of them.
type teacher struct {
	*reference.Policy // nil if a server scores
	config.TeacherModel
	t            *Trainer
	server       Scores
	enc          encode.Encoder
	system       string // system message for the teacher alone; "": the row's
	otherTokens  bool   // its tokenizer is not the student's
	maxPositions int    // positions that the model has; 0: no bound
	ownPrompts   bool   // the first row's prompt is not the student's
}

// openTeachers opens the teachers. byTokens reports that their distributions over the student's
// tokens are learned, which requires the student's tokenizer.
func openTeachers(b basic, s *start, byTokens bool) (c *teachers, err error) {
	t := b.t
	c = &teachers{t: t, longest: t.cfg.LongestSampled(b.kind),
		keepsFirst: t.cfg.Coach.PlainOf(b.kind, t.cfg.Data.TrainBatchSize) > 0}
	for _, m := range t.cfg.Teacher.List() {
		one := &teacher{t: t, TeacherModel: m, system: t.cfg.Teacher.System}
		c.list = append(c.list, one)
		if m.URL != "" {
			err = one.findServer(s, byTokens)
		} else {
			err = one.findFolder(s, byTokens)
		}
		if err == nil {
			err = m.CheckLongest(&t.cfg, b.kind, one.maxPositions)
		}
		if err != nil {
			return c, err
		}
	}
	if err := c.checkPrompts(s); err != nil {
		return c, err
	}
	for _, one := range c.list {
		if one.server != nil {
			err = one.tryServer(byTokens)
		} else {
			err = one.load()
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// findFolder reads the tokenizer of a teacher that will be loaded, and checks that its answers can
// be compared with the student's.
func (c *teacher) findFolder(s *start, byTokens bool) error {
	t, dir := c.t, c.Path
	mismatch, err := saved.CompareTokenizers(t.tok, dir, c.Key)
	if err != nil {
		return err
	}
	if mismatch != nil && byTokens {
		return fmt.Errorf("%w, or use teacher.loss=policy, which compares texts", mismatch)
	}
	tok, err := saved.ChatTokenizer(dir, tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return fmt.Errorf("%s: %w", c.Key, err)
	}
	if mismatch != nil {
		s.lateNotes = append(s.lateNotes, fmt.Sprintf("%s %s has another tokenizer than the student: the student's tokens get the scores of the teacher's by the bytes that both share", c.Key, dir))
	}
	shape, err := model.ReadConfig(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Key, err)
	}
	c.read(tok, mismatch != nil)
	c.maxPositions = shape.MaxPosition
	if end := t.tok.EndOfTurn(); byTokens && !slices.Contains(tok.EOS(), end) {
		return fmt.Errorf(
			"%w: %s: %s: does not end its answers with the student's %s, and with teacher.loss=%s the student would learn its other end: use teacher.loss=policy", config.ErrConfig, c.Key, dir, t.tok.Decode([]int32{end}, false), t.cfg.Teacher.Loss)
	}
	return nil
}

// read sets the teacher's tokenizer.
func (c *teacher) read(tok *tokenizer.Tokenizer, otherTokens bool) {
	c.otherTokens, c.enc = otherTokens, encode.Encoder{Tok: tok, MaxPrompt: c.t.cfg.Data.MaxPrompt,
		MaxResponse: c.t.cfg.Data.MaxResponse}
}

// load loads the teacher, frozen, on the memory that the networks share.
func (c *teacher) load() error {
	t := c.t
	return t.busy("loading the teacher", func() error {
		m, err := model.Load(t.be, c.Path,
			model.Options{Kind: model.LM, Quant: t.cfg.Teacher.Weights})
		if err != nil {
			return fmt.Errorf("teacher: %w", err)
		}
		if err := m.SetTokens(c.enc.Tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("teacher: %w", err), m.Close())
		}
		c.Policy = reference.New(m, t.cfg.Actor.MaxTokenLen)
		m.Share(t.actor.Model())
		return nil
	})
}

// networks returns the teachers' networks, with their share of the sequences read.
func (c *teachers) networks(read []reading) (list []network) {
	if c == nil {
		return nil
	}
	for _, one := range c.list {
		if one.Policy != nil {
			_, seqs := one.share(read)
			list = append(list, network{of: config.Teacher, model: one.Model(), reads: seqs})
		}
	}
	return list
}

// of returns the teacher of a row.
func (c *teachers) of(r data.Row) (*teacher, error) {
	column := c.t.cfg.Teacher.By
	var known []string
	for _, one := range c.list {
		if column == "" || slices.Contains(one.Values, r.TeacherBy) {
			return one, nil
		}
		known = append(known, one.Values...)
	}
	return nil, fmt.Errorf(
		"%w: data: row %d: column %q (teacher.by): %q has no teacher among those of teacher.models (%s): add it there, or leave such rows out (data.where)", config.ErrConfig, r.Index, column, r.TeacherBy, strings.Join(known, ", "))
}

// updateTime returns the time of the teachers' passes inside updates of the student so far.
func (c *teachers) updateTime() (all time.Duration) {
	for _, n := range c.networks(nil) {
		all += n.model.AsideTime()
	}
	return all
}

// Close frees the teachers' weights.
func (c *teachers) Close() error {
	var errs []error
	for _, n := range c.networks(nil) {
		errs = append(errs, n.model.Close())
	}
	return errors.Join(errs...)
}

// prompt returns the tokens of a row up to where the answer begins, in the teacher's chat template.
func (c *teacher) prompt(r data.Row) ([]int32, error) {
	if c.otherTokens && len(r.PromptIDs) > 0 && r.TeacherPrompt == nil {
		return nil, fmt.Errorf("%w: data: row %d: has prompt_ids, which are of the student's tokenizer: the teacher has another: give rows with messages", config.ErrConfig, r.Index)
	}
	r, err := encode.ForTeacher(r, c.system)
	if err != nil {
		return nil, fmt.Errorf("%w: teacher.system: %w", config.ErrConfig, err)
	}
	ids, err := c.enc.Prompt(r)
	if err != nil {
		return nil, fmt.Errorf("data: row %d: the teacher's chat template: %w", r.Index, err)
	}
	return ids, nil
}

// checkPrompts refuses rows whose teacher is not known, or cannot read their prompt and the longest
// answer. Of a teacher's rows without a prompt of its own it reads the first alone if that prompt
// is the student's. It notes how many rows each teacher has, and how many have a prompt of its own.
func (c *teachers) checkPrompts(s *start) error {
	t := c.t
	key, by := t.cfg.Teacher.PromptKey, t.cfg.Teacher.By
	rows := t.train.rows
	advance, done := t.con.Busy("the teacher's prompts", len(rows))
	defer done()
	found, most := 0, t.cfg.Teacher.LongestPrompt(t.cfg.Data) // notes come later
	count := map[*teacher]int{}
	for i, row := range rows {
		if i > 0 && key == "" && by == "" && !c.list[0].ownPrompts {
			break
		}
		advance(1)
		r, err := t.train.set.Row(int(row))
		if err != nil {
			return err
		}
		one, err := c.of(r)
		if err != nil {
			return err
		}
		count[one]++
		if r.TeacherPrompt != nil {
			found++
		} else if count[one] > 1 && !one.ownPrompts {
			continue
		}
		ids, err := one.prompt(r)
		if err != nil {
			return err
		}
		if count[one] == 1 {
			student, err := t.enc.Prompt(r)
			if err != nil {
				return err
			}
			one.ownPrompts = one.maxPositions > 0 && !slices.Equal(ids, student)
		}
		if n := len(ids); r.TeacherPrompt != nil && n > most {
			return fmt.Errorf("%w: data: row %d: column %q (teacher.prompt_key): %d tokens in the teacher's chat template, and teacher.max_prompt_length is %d: raise it, or shorten or remove the row", config.ErrConfig, r.Index, key, n, most)
		}
		if err := one.checkLength(r.Index, len(ids)+c.longest); err != nil {
			return err
		}
	}
	n := len(rows)
	switch {
	case key == "":
	case found == 0:
		return fmt.Errorf("%w: data: column %q (teacher.prompt_key): none of %d rows has a value there: name the column with the teacher's prompts, or leave the setting out", config.ErrConfig, key, n)
	case found < n:
		s.infos = append(s.infos, fmt.Sprintf("the teacher reads a prompt of its own for %d of %d rows (teacher.prompt_key %s), for the others the student's", found, n, key))
	}
	if by == "" {
		return nil
	}
	var parts []string
	for _, one := range c.list {
		parts = append(parts, fmt.Sprintf("%s %s", report.Count(count[one], "row"),
			strings.Join(one.Values, ", ")))
	}
	s.infos = append(s.infos, fmt.Sprintf("teachers by column %s: %s", by, strings.Join(parts, "; ")))
	return nil
}

// checkLength refuses an answer of a row that is longer, with its prompt, than the teacher reads.
func (c *teacher) checkLength(row, tokens int) error {
	if c.maxPositions == 0 || tokens <= c.maxPositions {
		return nil
	}
	return fmt.Errorf(
		"%w: data: row %d: the teacher would read %d tokens, and %s takes %d: lower data.max_prompt_length or data.max_response_length", config.ErrConfig, row, tokens, c.Path, c.maxPositions)
}

// reading is an answer as a teacher reads it.
type reading struct {
	by       *teacher
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

// readings returns the student's answers, each after its row as its teacher reads it, with the
// notes on the answer. Notes that the teacher cannot read are removed.
func (c *teachers) readings(r *round) (list []reading, err error) {
	c.longer, c.tooLong = nil, ""
	for _, g := range r.groups {
		row, err := c.t.train.set.Row(g.Index)
		if err != nil {
			return nil, err
		}
		one, err := c.of(row)
		if err != nil {
			return nil, err
		}
		if c.copy != nil && !g.plain {
			one = c.copy
		}
		plain, err := one.prompt(row)
		if err != nil {
			return nil, err
		}
		for _, a := range g.answers {
			prompt, err := c.noted(one, row, plain, a)
			if err != nil {
				return nil, err
			}
			x, err := one.readingOf(g, a, prompt)
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
	}
	return list, nil
}

// noted returns the prompt of an answer with its notes, or plain, its prompt without, if there are
// none or they are too long. It then removes the notes.
func (c *teachers) noted(one *teacher, row data.Row, plain []int32, a *answer) ([]int32, error) {
	if a.taught.notes == "" {
		return plain, nil
	}
	row, err := encode.WithNotes(row, c.t.cfg.Coach.Template, a.taught.notes)
	if err != nil {
		return nil, fmt.Errorf("%w: coach.command: %w", config.ErrConfig, err)
	}
	ids, err := one.prompt(row)
	if err != nil {
		return nil, err
	}
	more, most := len(ids)-len(plain), c.t.cfg.Coach.MaxTokens
	tooLong := one.checkLength(row.Index, len(ids)+c.longest)
	if more > most {
		tooLong = fmt.Errorf("its notes are %d tokens, and coach.max_tokens is %d", more, most)
	}
	if tooLong != nil {
		a.taught.notes, c.tooLong = "", cmp.Or(c.tooLong, tooLong.Error())
		return plain, nil
	}
	c.longer = append(c.longer, more)
	return ids, nil
}

// readingOf returns an answer after the teacher's prompt. A branch is read with its beginning.
func (c *teacher) readingOf(g *group, a *answer, prompt []int32) (x reading, err error) {
	x.by = c
	own := a.seqs[0].Seq
	if !c.otherTokens && slices.Equal(prompt, g.Prompt) {
		x.seq = own // with its prompt's other answers it passes as one
		return x, nil
	}
	answer, from := a.ids, len(prompt)+a.branch.At
	if c.otherTokens {
		s := spell(c.t.tok, c.enc.Tok, answer, a.cut)
		s.before = a.branch.At
		x.spelling, answer, from = &s, s.ids, len(prompt)
	}
	ids := slices.Concat(prompt, answer)
	if err := c.checkLength(g.Index, len(ids)); err != nil {
		return x, err
	}
	x.seq = model.Answer(ids, from)
	x.seq.Shared, x.seq.Branching = len(prompt), own.Branching && !c.otherTokens
	return x, nil
}

// findServer finds the server that scores in the place of a loaded teacher, and its tokenizer.
func (c *teacher) findServer(s *start, byTokens bool) error {
	t := c.t
	if c.server = s.teachers[c.URL]; c.server == nil {
		return fmt.Errorf("%w: %s: %s: no connection was given to the trainer", config.ErrConfig,
			c.Key, c.URL)
	}
	if t.ranks.Size() > 1 {
		return fmt.Errorf(
			"%w: %s: one process asks a server, and this run has %d ranks: load the teacher (--teacher), or train with one", config.ErrConfig, c.Key, t.ranks.Size())
	}
	tok := t.tok
	if c.Path != "" {
		var err error
		if tok, err = saved.Tokenizer(c.Path); err != nil {
			return fmt.Errorf("teacher.path: %w", err)
		}
	}
	tok, err := tok.With(tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return fmt.Errorf("%w: teacher.template: %w", config.ErrConfig, err)
	}
	mismatch := t.tok.Missing(tok)
	if mismatch != "" && byTokens {
		return fmt.Errorf(
			"%w: teacher.path: %s: is not the student's tokenizer: %s: teacher.loss=%s compares distributions over its tokens: use teacher.loss=policy, which compares texts", config.ErrConfig, c.Path, mismatch, t.cfg.Teacher.Loss)
	}
	c.read(tok, mismatch != "")
	return nil
}

// tryServer has the server score the teacher's own answers to its first rows.
func (c *teacher) tryServer(byTokens bool) error {
	t := c.t
	var seqs []model.Seq
	for _, row := range t.train.rows {
		r, err := t.train.set.Row(int(row))
		if err != nil {
			return err
		}
		if c.Values != nil && !slices.Contains(c.Values, r.TeacherBy) {
			continue
		}
		ids, err := c.prompt(r)
		if err != nil {
			return err
		}
		answer := c.enc.Response(c.enc.Answer(cmp.Or(r.Teacher, "yes")))
		if seqs = append(seqs, c.enc.Seq(ids, answer)); len(seqs) == 4 {
			break
		}
	}
	k := 0
	if byTokens {
		k = t.cfg.Teacher.TopK
	}
	return t.busy("trying the teacher's server, "+c.URL, func() error {
		return c.server.Check(context.Background(), seqs, k, c.enc.Tok.Piece)
	})
}

// labels sets each of a round's sequences to what it is to learn by its teacher's distributions:
// the network, or labels of k alternatives that a server gives.
func (c *teachers) labels(m Metrics, roll actor.Rollout, list []reading, k int) error {
	for _, one := range c.list {
		at, own := one.share(list)
		if one.server == nil {
			for _, i := range at {
				roll[i].Teacher = one.Model()
			}
			continue
		}
		_, labelsST, err := one.askServer(m, own, k)
		if err != nil {
			return err
		}
		for n, i := range at {
			roll[i].Labels = labelsST[n]
		}
	}
	return nil
}

// share returns the sequences of list that the teacher reads, and their indices there.
func (c *teacher) share(list []reading) (at []int, seqs []model.Seq) {
	for i, x := range list {
		if x.by == c {
			at, seqs = append(at, i), append(seqs, x.seq)
		}
	}
	return at, seqs
}

// askServer returns a server's log-probabilities [S][T] of the tokens of seqs, and labels of k
// alternatives.
func (c *teacher) askServer(m Metrics, seqs []model.Seq, k int) (logpST [][]float32,
	labelsST [][]model.SoftLabel, err error) {
	if len(seqs) == 0 {
		return nil, nil, nil
	}
	err = m.time("timing_s/teacher_logp", func() (err error) {
		logpST, labelsST, err = c.server.Score(c.t.context(), seqs, k)
		return err
	})
	return logpST, labelsST, err
}

// scores returns the teacher's log-probabilities [S][T] of the tokens of seqs.
func (c *teacher) scores(m Metrics, seqs []model.Seq) (logpST [][]float32, err error) {
	if c.server != nil {
		logpST, _, err = c.askServer(m, seqs, 0)
		return logpST, err
	}
	if len(seqs) == 0 {
		return nil, nil
	}
	err = c.t.phase(m, "teacher_logp", c.Model(), seqs, 1, func() (err error) {
		logpST, err = c.LogProbs(seqs, 1)
		return err
	})
	return logpST, err
}

// logProbs returns the teachers' log-probabilities [S][T] of the student's tokens.
func (c *teachers) logProbs(m Metrics, r *round,
	list []reading) (teacherST [][]float32, err error) {
	teacherST = make([][]float32, len(list))
	for _, one := range c.list {
		at, seqs := one.share(list)
		logpST, err := one.scores(m, seqs)
		if err != nil {
			return nil, err
		}
		for n, i := range at {
			teacherST[i] = logpST[n]
		}
	}
	lost, spelled, roll := 0, 0, r.rollout()
	for i, x := range list {
		if x.spelling == nil {
			continue
		}
		spelled++
		if !x.spelling.spelled {
			lost++
		}
		if teacherST[i], err = x.spelling.alignLogp(teacherST[i], roll[i].Old); err != nil {
			return nil, err
		}
	}
	if spelled > 0 {
		m["opd/unspelled_frac"] = float64(lost) / float64(spelled)
	}
	return teacherST, nil
}

// advantages returns the teacher's advantages by token [S][T], by a pass over list; nil if a value
// is not finite. It notes the teacher's mean log-probability of each answer.
func (c *teachers) advantages(m Metrics, r *round, list []reading) (advST [][]float64, err error) {
	teacherST, err := c.logProbs(m, r, list)
	if err != nil {
		return nil, err
	}
	comparedST, ends := comparedTokens(r, list)
	noteTeacherLogp(m, r, teacherST, comparedST)
	advST, _, err = algos.DistillAdvantages(teacherST, each(r, oldOf))
	if errors.Is(err, algos.ErrNotFinite) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m["opd/reverse_kl"], m["opd/ends_compared"] = 0-fillUncompared(advST, comparedST), ends // no -0
	return advST, nil
}

// addTeacher adds the teacher's advantages to the game's. If one of them is not finite, the round
// has no advantages.
func (g *game) addTeacher(m Metrics, r *round) (err error) {
	if g.teachers == nil || !r.hasAdvantages {
		return nil
	}
	if g.read, err = g.teachers.readings(r); err != nil {
		return err
	}
	teacherST, err := g.teachers.advantages(m, r, g.read)
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

// comparedTokens marks the tokens [S][T] that are compared with the teacher's. The others are an
// end for which the teacher's template has another token, since that habit is nothing to learn,
// and text that the teacher's tokens do not spell. ends is the share of ends that are compared, 1 where
// no answer has an end.
func comparedTokens(r *round, list []reading) (comparedST [][]bool, ends float64) {
	same, all := 0, 0
	for s, a := range r.answers() {
		row := make([]bool, a.ownTokens())
		for i := range row {
			last := i == len(row)-1 && !a.cut
			row[i] = true
			switch x := list[s]; {
			case x.spelling != nil:
				row[i] = x.spelling.compares(i)
			case last:
				row[i] = slices.Contains(x.by.enc.Tok.EOS(), a.seqs[0].Seq.Response()[i])
			}
			if last {
				all++
				if row[i] {
					same++
				}
			}
		}
		comparedST = append(comparedST, row)
	}
	if all == 0 {
		return comparedST, 1
	}
	return comparedST, float64(same) / float64(all)
}

// fillUncompared sets the advantage of tokens that are not compared to the mean of the others, and
// returns the mean. With advantage 0 such a token would be preferred, since the mean of the others
// is below 0 as long as there is a divergence: the student would learn to end with it.
func fillUncompared(advST [][]float64, comparedST [][]bool) (mean float64) {
	n := 0
	for s, row := range advST {
		for i, x := range row {
			if comparedST[s][i] {
				mean += x
				n++
			}
		}
	}
	mean /= float64(max(n, 1))
	for s, row := range advST {
		for i := range row {
			if !comparedST[s][i] {
				row[i] = mean
			}
		}
	}
	return mean
}

// noteTeacherLogp sets the teacher's mean log-probability of a token of each answer, of those that
// are compared.
func noteTeacherLogp(m Metrics, r *round, teacherST [][]float32, comparedST [][]bool) {
	nll, tokens := 0.0, 0
	for s, a := range r.answers() {
		sum, n := 0.0, 0
		for i, x := range teacherST[s] {
			if comparedST[s][i] {
				sum += float64(x)
				n++
			}
		}
		nll -= sum
		tokens += n
		if n > 0 {
			a.taught.logp = float64(float32(sum / float64(n)))
		}
	}
	m["opd/teacher_nll"] = nll / float64(max(tokens, 1))
}

// A teacher that follows the student (teacher.renew): at the beginning of every N-th step it
// becomes a frozen copy of the student. A checkpoint has the copy, unless the next step makes
// another one.

// due reports whether the teacher is renewed at the beginning of the step after so many.
func (c *teachers) due(steps int) bool {
	n := c.t.cfg.Teacher.Renew
	return n > 0 && steps > 0 && steps%n == 0
}

// renew makes the teacher a copy of the student, where the step asks for it.
func (c *teachers) renew() error {
	t := c.t
	if !c.due(t.step) {
		return nil
	}
	if err := t.wholeWeights(); err != nil {
		return err
	}
	dir := filepath.Join(t.cfg.Trainer.Output, saved.TeacherDir)
	if t.first() {
		if err := t.fs.RemoveAll(dir); err != nil { // what an earlier attempt left
			return fmt.Errorf("teacher.renew: %w", err)
		}
		if err := export.WriteFolder(t.fs, dir, t.actor.Model(), t.tok, "float32"); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
	}
	if err := t.ranks.Barrier("the copy of the student"); err != nil {
		return err
	}
	if err := c.take(dir); err != nil {
		return err
	}
	if err := t.ranks.Barrier("the copy of the student, loaded"); err != nil {
		return err
	}
	if t.first() {
		if err := t.fs.RemoveAll(dir); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
	}
	return nil
}

// resume loads the copy of the student that a resumed run had for its teacher.
func (c *teachers) resume(s *start) error {
	n := c.t.cfg.Teacher.Renew
	if !s.inPlace || n == 0 || c.t.step < n || c.due(c.t.step) {
		return nil
	}
	return c.take(filepath.Join(s.dir, saved.TeacherDir))
}

// take loads the copy of the student in folder dir as the teacher, in the place of an earlier one:
// of the teacher of the start too, unless plain rows are learned from it.
func (c *teachers) take(dir string) error {
	t := c.t
	tok, err := t.tok.With(tokenizer.ChatOptions{Variables: t.cfg.Teacher.Template})
	if err != nil {
		return fmt.Errorf("%w: teacher.template: %w", config.ErrConfig, err)
	}
	keep := 0
	if c.keepsFirst {
		keep = 1
	}
	for _, old := range c.list[keep:] {
		if err := old.Policy.Close(); err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
		old.Policy = nil
	}
	c.list = c.list[:keep]
	one := &teacher{t: t, system: t.cfg.Teacher.System}
	one.Key, one.Path = "teacher.renew", dir
	one.read(tok, false)
	return t.busy("loading the copy of the student", func() error {
		m, err := model.Load(t.be, dir,
			model.Options{Kind: model.LM, Base: t.actor.Model().Base()})
		if err != nil {
			return fmt.Errorf("teacher.renew: %w", err)
		}
		if err := m.SetTokens(t.tok.Tokens()); err != nil {
			return errors.Join(fmt.Errorf("teacher.renew: %w", err), m.Close())
		}
		one.Policy, one.maxPositions = reference.New(m, t.cfg.Actor.MaxTokenLen), m.Config().MaxPosition
		m.Share(t.actor.Model())
		c.copy, c.list = one, append(c.list, one)
		return nil
	})
}

// save writes the copy of the student into a checkpoint, unless the next step makes another.
func (c *teachers) save(d *checkpoint.Dir) error {
	t := c.t
	if c.copy == nil || c.due(t.step) {
		return nil
	}
	create := func(name string) (io.WriteCloser, error) {
		return d.Create(saved.TeacherDir + "/" + name)
	}
	if err := c.copy.Model().Save(create, "float32",
		int64(t.cfg.Trainer.MaxShardSizeMB)*1_000_000); err != nil {
		return fmt.Errorf("teacher.renew: %w", err)
	}
	for name, content := range t.tok.Files() {
		if err := d.WriteFile(saved.TeacherDir+"/"+name, content); err != nil {
			return err
		}
	}
	return nil
}

// bytes returns an upper bound of the copy's size in a checkpoint.
func (c *teachers) bytes() (n int64) {
	if c.t.cfg.Teacher.Renew == 0 {
		return 0
	}
	for _, p := range c.t.actor.Model().Params() {
		n += 4 * int64(p.Len())
	}
	for _, content := range c.t.tok.Files() {
		n += 2 * int64(len(content))
	}
	return n
}
