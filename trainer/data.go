package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gad/data"
	"gad/internal/report"
	"gad/tokenizer"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// openData reads tokenizer and data sets, and sets the cursor to where the run stands.
func (t *Trainer) openData(s *start) (err error) {
	c := t.cfg
	if err := saved.CheckModel(t.fs, t.actorDir(s)); err != nil {
		return err
	}
	err = t.busy("reading the tokenizer", func() (err error) {
		chat := tokenizer.ChatOptions{Variables: c.Data.Template, Template: c.Data.ChatTemplate}
		if s.inPlace { // the run's own models have both
			chat = tokenizer.ChatOptions{}
		}
		t.tok, err = saved.ChatTokenizer(t.actorDir(s), chat)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.form.checkTokenizer(t.tok); err != nil {
		return err
	}
	t.enc = encode.Encoder{Tok: t.tok, MaxPrompt: c.Data.MaxPrompt, MaxResponse: t.form.longest()}
	if err := t.openSets(s); err != nil {
		return err
	}
	d, p := &t.train, &t.past
	d.order, d.chosen = data.NewOrder(len(d.rows), t.seed(), 0, 1), t.digestRows()
	p.planned = c.Trainer.TotalSteps
	if p.planned == 0 {
		p.planned = (c.Trainer.TotalEpochs*len(d.rows) + c.Data.TrainBatchSize - 1) /
			c.Data.TrainBatchSize
	}
	t.setTotal()
	if s.dir != "" {
		p.validated = s.state.Validated
	}
	if s.inPlace {
		t.step = s.state.Step
		p.best, p.lastGood, p.oldDiffers = s.state.Best, s.state.Good, s.state.OldDiffers
		maps.Copy(p.skipped, s.state.Skipped)
		if was := s.state.Rows; was != d.chosen {
			return fmt.Errorf("data: ratings %s: have changed since the run began, and with them its rows: give the same ratings, or another --output",
				c.Data.Ratings)
		}
		return d.order.Restore(s.state.Order)
	}
	return nil
}

// setTotal sets the number of steps of the run.
func (t *Trainer) setTotal() {
	t.total = t.stage.total(t.past.planned)
	if t.rec != nil {
		t.rec.SetTotal(t.total)
	}
}

// openSets opens the training and validation data, checks every row that the run can draw, and adds
// notes about the rows to s.
func (t *Trainer) openSets(s *start) (err error) {
	c := t.cfg
	options := t.stage.reads(t.con.Busy)
	if t.train.set, err = data.OpenFiles(c.Data.TrainFiles, options); err != nil {
		return err
	}
	if err := t.train.set.ForTokenizer(t.tok.Digest()); err != nil {
		return err
	}
	if err := t.train.set.NeedTeacher(); err != nil {
		return err
	}
	s.notes = slices.Concat(s.notes, t.train.set.Notes(), t.train.set.Warnings())
	suspect, others := t.train.set.Overlooked()
	for _, line := range []string{suspect, others} {
		if line != "" {
			s.notes = append(s.notes, line)
		}
	}
	name := strings.Join(c.Data.TrainFiles, " ")
	var known *encode.Overlap
	if len(c.Data.ValFiles) > 0 {
		options = c.Data.ValOptions(t.con.Busy)
		if acts, _ := t.form.validationInputs(); acts { // episodes, as in training
			options.Turns = c.Data.Turns
		}
		if t.val.set, err = data.OpenFiles(c.Data.ValFiles, options); err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		if suspect, _ := t.val.set.Overlooked(); suspect != "" {
			s.notes = append(s.notes, "data.val_files: "+suspect)
		}
		if err := t.val.set.NeedTeacher(); err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		val, err := t.enc.Usable(t.val.set, c.Data, c.Trainer.ValRows, nil, data.Keep{})
		if err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		for _, row := range val.Rows {
			t.val.rows = append(t.val.rows, int(row))
		}
		if known, err = encode.NewOverlap(t.val.set, t.val.rows); err != nil {
			return err
		}
	}
	train, err := t.enc.Usable(t.train.set, c.Data, t.train.set.Len(), known, t.rowCache(s))
	// with cached rows the digest is known only now
	if s.inPlace && s.state.DataDigest != t.train.set.Digest() {
		return fmt.Errorf("data: %s: has changed since the run began (digest %.12s, was %.12s): give the same data, or another --output", name, t.train.set.Digest(), s.state.DataDigest)
	}
	if err != nil {
		return err
	}
	if t.train.rows, err = t.stage.usable(train.Rows, s); err != nil {
		return err
	}
	if err := c.CheckRows(len(t.train.rows)); err != nil {
		return err
	}
	note, err := t.stage.check(train)
	if err != nil {
		return err
	}
	if path, bytes, made := t.train.set.Kept(); made {
		s.infos = append(s.infos, fmt.Sprintf(
			"encoded rows are kept for the next run in %s, %s (data.cache_dir)", path,
			report.Bytes(bytes)))
	} else if path != "" {
		s.infos = append(s.infos, fmt.Sprintf("encoded rows are read from %s (data.cache_dir)", path))
	}
	if chosen := t.train.set.Chosen(); chosen != "" {
		s.infos = append(s.infos, "data."+chosen)
	}
	if n := len(t.val.rows); n > 0 && n < t.val.set.Len() {
		s.infos = append(s.infos, fmt.Sprintf(
			"validation: the first %d of %d rows (trainer.val_rows)", n, t.val.set.Len()))
	}
	if n, b := len(t.train.rows), c.Data.TrainBatchSize; b > n {
		s.notes = append(s.notes, fmt.Sprintf("data.train_batch_size %d is more than the %d rows: every step takes each row several times: lower it", b, n))
	}
	if train.Dropped > 0 {
		s.notes = append(s.notes,
			fmt.Sprintf("%d of %d rows are %s and left out", train.Dropped, t.train.set.Len(),
				train.DropReason()))
	}
	if train.Lost > 0 {
		row, err := t.train.set.Row(train.FirstLost)
		if err != nil {
			return err
		}
		_, first := row.Lost(t.enc)
		s.notes = append(s.notes, fmt.Sprintf("%d of %d rows have characters without a token in the student's vocabulary (the first: row %d, %s): gad data validate counts them", train.Lost, len(t.train.rows), train.FirstLost, first))
	}
	if train.Marked > 0 {
		row, err := t.train.set.Row(train.FirstMarked)
		if err != nil {
			return err
		}
		s.notes = append(s.notes, fmt.Sprintf("%d of %d rows spell out a control token (the first: row %d, %q), which the student reads and learns as letters: remove it, or write turns (gad data validate lists them)", train.Marked, len(t.train.rows), train.FirstMarked, row.Mark()))
	}
	t.noteSoft(s, train)
	if note != "" {
		s.notes = append(s.notes, note)
	}
	if train.SeenPrompts > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%d of %d validation rows have a prompt that is also in the training data (%d of them also the same answer): the val/ metrics are not for unseen prompts only: see gad data split", train.SeenPrompts, len(t.val.rows), train.SeenRows))
	}
	return nil
}

// digestRows returns the digest of the rows that the run draws from; "": all rows of the data. The
// data have a digest of their own, which does not cover the ratings that choose rows.
func (t *Trainer) digestRows() string {
	if t.cfg.Data.Choice() == (data.Choice{}) {
		return ""
	}
	sum := sha256.New()
	for _, i := range t.train.rows {
		fmt.Fprintln(sum, t.train.set.Before(int(i)))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// cacheMin is the size in bytes of data from which on encoded rows are worth a file: smaller data
// are encoded within a second.
var cacheMin int64 = 4 << 20

// rowCache returns where the training data's encoded rows are cached.
func (t *Trainer) rowCache(s *start) data.Keep {
	c := t.cfg.Data
	k := data.Keep{FS: t.fs, Dir: c.CacheDir, Encoder: t.tok.Digest(), Least: cacheMin,
		Most: int64(c.CacheGB) * 1e9, Warn: func(text string) {
			if t.log == nil { // the run has not begun
				s.notes = append(s.notes, text)
				return
			}
			t.log.Warn(text)
		}}
	switch c.CacheDir {
	case "none":
		k.Dir = ""
	case "auto":
		k.Dir = ""
		if dir, err := os.UserCacheDir(); err == nil { // there may be none for a service
			k.Dir = filepath.Join(dir, "gad")
		}
	}
	return k
}

// trainData is the training data, and the cursor of the run.
type trainData struct {
	set    *data.Set
	rows   []int32     // usable rows of set
	chosen string      // digest of rows (digestRows)
	order  *data.Order // of indices into rows
	soft   bool        // the student learns the rows' soft labels
	step   []int       // rows of the present step
}

// valData is the validation data.
type valData struct {
	set  *data.Set // nil: none
	rows []int     // rows that a validation reads
}

// draw returns the next n prompts of the run. It requires them to be the same on all ranks: a file
// may change while they train, and a chat template may ask for the time.
func (t *Trainer) draw(n int) (encode.Batch, error) {
	d := &t.train
	d.step = d.order.Next(n)
	for i, at := range d.step {
		d.step[i] = int(d.rows[at])
	}
	b, err := t.enc.Batch(d.set, d.step)
	if err != nil || t.ranks.Size() == 1 {
		return b, err
	}
	t.ranks.Enter("drawing rows")
	sum := sha256.New()
	for _, row := range b {
		fmt.Fprintln(sum, row.Teacher.Spans, row.Teacher.IDs, row.TeacherPrompt)
		if d.soft {
			fmt.Fprintln(sum, row.Soft)
		}
	}
	return b, t.requireSame("rows of a step", hex.EncodeToString(sum.Sum(nil)))
}
