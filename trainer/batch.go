package trainer

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gad/critic"
	"gad/data"
	"gad/internal/compute/cpu"
	"gad/internal/report"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/config"
)

// Batch is the prompts of one step with the teacher's answers.
type Batch struct {
	Rows        []int       // [P] row of each in the data set
	Prompts     [][]int32   // [P]
	Teachers    []model.Seq // [P] prompt and teacher's answer, as every sequence ends
	TeacherCut  []bool      // [P] the answer was longer than the limit, or unfinished
	TeacherText []string    // [P]
	PromptText  []string    // [P]
}

// encoder turns rows into token ids under the limits of a configuration.
type encoder struct {
	tok                    *tokenizer.Tokenizer
	maxPrompt, maxResponse int
}

// Prompt is the row's prompt up to where the answer begins: its prompt_ids, or its
// conversation in the chat template.
func (e encoder) Prompt(r data.Row) ([]int32, error) {
	if len(r.PromptIDs) > 0 {
		return e.checked("prompt_ids", r.PromptIDs)
	}
	return e.tok.ChatPrompt(messages(r))
}

// Answer is text as a finished answer, however long.
func (e encoder) Answer(text string) []int32 {
	return append(e.tok.EncodeText(strings.TrimRight(text, " \t\r\n")), e.tok.EndOfTurn())
}

// Lost counts the characters of text that the tokenizer has no token for.
func (e encoder) Lost(text string) (n int, first string) { return e.tok.Lost(text) }

// answer is text as a finished answer: without trailing blanks, which chat
// templates add and models rarely do, and with the end of turn; cut reports that
// it was longer than the limit and therefore has none.
func (e encoder) answer(text string) (ids []int32, cut bool) { return e.cut(e.Answer(text)) }

// cut shortens an answer to the limit. One that is unfinished comes without its end
// (data.Row.Unfinished): it is cut too.
func (e encoder) cut(ids []int32) ([]int32, bool) {
	if len(ids) > e.maxResponse {
		return ids[:e.maxResponse:e.maxResponse], true
	}
	return ids, len(ids) == 0 || ids[len(ids)-1] != e.tok.EndOfTurn()
}

// given is the answer that a row carries: response_ids, else response, else
// the teacher's; what names it.
func (e encoder) given(r data.Row) (ids []int32, cut bool, what string, err error) {
	switch {
	case len(r.ResponseIDs) > 0:
		if ids, err = e.checked("response_ids", r.ResponseIDs); err != nil {
			err = fmt.Errorf("data: row %d: %w", r.Index, err)
		}
		return ids, false, "response_ids", err
	case r.Response != "":
		ids, cut = e.answer(r.Response)
		return ids, cut, "response", nil
	case r.Teacher != "":
		ids = e.Answer(r.Teacher)
		if r.Unfinished() {
			ids = ids[:len(ids)-1]
		}
		ids, cut = e.cut(ids)
		return ids, cut, "teacher_response", nil
	}
	return nil, false, "", fmt.Errorf("data: row %d: has none of response_ids, response and teacher_response: nothing to score", r.Index)
}

func (e encoder) checked(column string, ids []int32) ([]int32, error) {
	for i, id := range ids {
		if id < 0 || int(id) >= e.tok.Size() {
			return nil, fmt.Errorf("%s[%d] is %d, not a token of this tokenizer (0 to %d)", column, i, id, e.tok.Size()-1)
		}
	}
	return ids, nil
}

func (e encoder) ending() critic.Ending {
	return critic.Ending{EOS: e.tok.EOS(), Turn: e.tok.EndOfTurn()}
}

// batch encodes the given rows of set.
func (e encoder) batch(set *data.Set, rows []int) (*Batch, error) {
	b := &Batch{Rows: rows}
	examples, err := set.Examples(rows, e, data.Limits{MaxPrompt: e.maxPrompt})
	if err != nil {
		return nil, err
	}
	for _, r := range examples {
		answer, cut := e.cut(r.Answer)
		b.Prompts = append(b.Prompts, r.Prompt)
		b.Teachers = append(b.Teachers, e.ending().Seq(r.Prompt, answer, cut))
		b.TeacherCut = append(b.TeacherCut, cut)
		b.TeacherText = append(b.TeacherText, r.Teacher)
		b.PromptText = append(b.PromptText, r.PromptText())
	}
	return b, nil
}

func messages(r data.Row) []tokenizer.Message {
	out := make([]tokenizer.Message, len(r.Messages))
	for i, m := range r.Messages {
		out[i] = tokenizer.Message(m)
	}
	return out
}

// usable are the rows of a set that a run takes.
type usable struct {
	rows    []int32
	dropped int // left out by data.overlong_prompts=filter and data.truncated_teachers=filter
	cut     int // of rows, those whose teacher's answer is over the limit

	lost      int // of rows, those with characters that the tokenizer has no token for
	firstLost int // the first of them

	unfinished        int // of rows, those whose teacher's answer is within it and unfinished
	droppedUnfinished int // of dropped, the same

	// What data.max_response_length would keep all answers, and 99 in 100, of the
	// rows and of those that were dropped for their answer.
	forAll, forMost int

	seenPrompts, seenRows int // rows of another set whose prompt, or prompt and answer, are here
}

// usable lists the first most rows that a run can take: all of the set's, or without
// those that the overlong_prompts and truncated_teachers settings filter out. known
// are rows of another set to look for; nil is none.
func (e encoder) usable(set *data.Set, c config.DataConfig, most int, known *sightings, keep data.Keep) (u usable, err error) {
	lengths := map[int]int{} // answers by length
	answers := 0
	o := data.EncodeOptions{Limits: data.Limits{MaxPrompt: e.maxPrompt}, Keys: known != nil, Most: most, Keep: keep}
	if c.Overlong == "filter" {
		o.Limits.MaxPrompt = 0
	}
	err = set.Encode(e, o, func(i int, m data.Measure) bool {
		if m.Prompt > e.maxPrompt {
			u.dropped++
			return true
		}
		lengths[m.Answer]++
		answers++
		if m.Answer > e.maxResponse {
			if c.TruncTeacher == "filter" {
				u.dropped++
				return true
			}
			u.cut++
		} else if m.Unfinished {
			if c.TruncTeacher == "filter" {
				u.dropped++
				u.droppedUnfinished++
				return true
			}
			u.unfinished++
		}
		if m.Lost {
			if u.lost++; u.lost == 1 {
				u.firstLost = i
			}
		}
		u.rows = append(u.rows, int32(i))
		known.look(m)
		return len(u.rows) < most
	})
	if err != nil {
		return usable{}, err
	}
	u.rows = slices.Clip(u.rows)
	seen := 0
	for _, n := range slices.Sorted(maps.Keys(lengths)) {
		if u.forAll = n; seen < (99*answers+99)/100 {
			u.forMost = n
		}
		seen += lengths[n]
	}
	if known != nil {
		u.seenPrompts, u.seenRows = known.prompts, known.rows
	}
	if len(u.rows) == 0 {
		return u, fmt.Errorf("data: %s: none of %d rows is within data.max_prompt_length %d and data.max_response_length %d: raise them", strings.Join(set.Files(), " "), set.Len(), c.MaxPrompt, c.MaxResponse)
	}
	return u, nil
}

// why says what rows were left out for.
func (u usable) why() string {
	switch u.droppedUnfinished {
	case 0:
		return "over the length limits"
	case u.dropped:
		return "unfinished (finish_reason)"
	}
	return "over the length limits or unfinished (finish_reason)"
}

// sightings count the rows of one set that are in another too.
type sightings struct {
	wanted        [2]map[uint64]int // by prompt, by prompt and answer: rows that were not seen yet
	prompts, rows int
}

// sight makes sightings of the rows of set.
func sight(set *data.Set, rows []int) (*sightings, error) {
	s := &sightings{wanted: [2]map[uint64]int{{}, {}}}
	for _, i := range rows {
		r, err := set.Row(i)
		if err != nil {
			return nil, err
		}
		m := r.Measure()
		s.wanted[0][m.PromptKey]++
		s.wanted[1][m.RowKey]++
	}
	return s, nil
}

func (s *sightings) look(m data.Measure) {
	if s == nil {
		return
	}
	s.prompts += s.wanted[0][m.PromptKey]
	s.rows += s.wanted[1][m.RowKey]
	delete(s.wanted[0], m.PromptKey) // each counts once
	delete(s.wanted[1], m.RowKey)
}

// openSets opens the training and validation data, checks every row that the run
// can draw, and notes what the settings do to them.
func (t *Trainer) openSets(s *start) (err error) {
	c := t.cfg
	options := c.Data.Options(t.con.Busy)
	if t.set, err = data.OpenFiles(c.Data.TrainFiles, options); err != nil {
		return err
	}
	if err := t.set.NeedTeacher(); err != nil {
		return err
	}
	s.notes = slices.Concat(s.notes, t.set.Notes(), t.set.Warnings())
	suspect, others := t.set.Overlooked()
	for _, line := range []string{suspect, others} {
		if line != "" {
			s.notes = append(s.notes, line)
		}
	}
	name := strings.Join(c.Data.TrainFiles, " ")
	var known *sightings
	if len(c.Data.ValFiles) > 0 {
		options.Split = c.Data.ValSplit
		if t.val, err = data.OpenFiles(c.Data.ValFiles, options); err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		if suspect, _ := t.val.Overlooked(); suspect != "" {
			s.notes = append(s.notes, "data.val_files: "+suspect)
		}
		if err := t.val.NeedTeacher(); err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		val, err := t.enc.usable(t.val, c.Data, c.Trainer.ValRows, nil, data.Keep{})
		if err != nil {
			return fmt.Errorf("data.val_files: %w", err)
		}
		for _, row := range val.rows {
			t.valRows = append(t.valRows, int(row))
		}
		if known, err = sight(t.val, t.valRows); err != nil {
			return err
		}
	}
	train, err := t.enc.usable(t.set, c.Data, t.set.Len(), known, t.keepRows(s))
	if s.inPlace && s.state.DataDigest != t.set.Digest() { // of rows that are kept it is known now
		return fmt.Errorf("data: %s: has changed since the run began (digest %.12s, was %.12s): give the same data, or another --output", name, t.set.Digest(), s.state.DataDigest)
	}
	if err != nil {
		return err
	}
	t.rows = train.rows
	if err := c.CheckRows(len(t.rows)); err != nil {
		return err
	}
	if err := c.CheckBatch(c.StepAnswers(t.Stage), c.Data.MaxPrompt+c.Data.MaxResponse, cpu.MemoryAvailable()); err != nil {
		return err
	}
	if path, bytes, made := t.set.Kept(); made {
		s.said = append(s.said, fmt.Sprintf("encoded rows are kept for the next run in %s, %s (data.cache_dir)", path, report.Bytes(bytes)))
	} else if path != "" {
		s.said = append(s.said, fmt.Sprintf("encoded rows are read from %s (data.cache_dir)", path))
	}
	if n := len(t.valRows); n > 0 && n < t.val.Len() {
		s.said = append(s.said, fmt.Sprintf("validation: the first %d of %d rows (trainer.val_rows)", n, t.val.Len()))
	}
	if n, b := len(t.rows), c.Data.TrainBatchSize; b > n {
		s.notes = append(s.notes, fmt.Sprintf("data.train_batch_size %d is more than the %d rows: every step takes each row several times: lower it", b, n))
	}
	if train.dropped > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%d of %d rows are %s and left out", train.dropped, t.set.Len(), train.why()))
	}
	if train.lost > 0 {
		row, err := t.set.Row(train.firstLost)
		if err != nil {
			return err
		}
		_, first := row.Lost(t.enc)
		s.notes = append(s.notes, fmt.Sprintf("%d of %d rows have characters without a token in the student's vocabulary (the first: row %d, %s): gad data validate counts them", train.lost, len(t.rows), train.firstLost, first))
	}
	note, err := train.pairs(name, c, t.Stage)
	if err != nil {
		return err
	}
	if note != "" {
		s.notes = append(s.notes, note)
	}
	if train.seenPrompts > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%d of %d validation rows have a prompt that is also in the training data (%d of them also the same answer): the val/ metrics are not for unseen prompts only: see gad data split", train.seenPrompts, len(t.valRows), train.seenRows))
	}
	return nil
}

// keptLeast are the bytes of data from which on encoded rows are worth a file: fewer
// are encoded within a second.
var keptLeast int64 = 4 << 20

// keepRows says where the training data's encoded rows are kept.
func (t *Trainer) keepRows(s *start) data.Keep {
	c := t.cfg.Data
	k := data.Keep{FS: t.fs, Dir: c.CacheDir, Encoder: t.tok.Digest(), Least: keptLeast, Most: int64(c.CacheGB) * 1e9, Warn: func(text string) {
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

// pairs says what the limit of answers means for a stage: in SFT the student does
// not learn to end an answer that is cut; elsewhere a pair with such an answer is
// left out, unless the settings include it. A run without a single pair is refused:
// its discriminator would never learn.
func (u usable) pairs(name string, c config.Config, stage config.Stage) (note string, err error) {
	if u.cut+u.unfinished == 0 {
		return "", nil
	}
	setting, include := "critic.truncated", c.Critic.Truncated == "include"
	if stage == config.DPO {
		setting, include = "dpo.truncated", c.DPO.Truncated == "include"
	}
	n, limit := len(u.rows), c.Data.MaxResponse
	would := fmt.Sprintf("data.max_response_length=%d would keep all", u.forAll)
	if u.forMost < u.forAll && u.forMost > limit {
		would += fmt.Sprintf(", %d 99 %%", u.forMost)
	}
	if (stage == config.DPO || stage.HasCritic()) && !include && u.cut+u.unfinished == n && u.unfinished > 0 {
		return "", fmt.Errorf("%w: data: %s: none of %d rows can make a pair, since every teacher answer is unfinished (finish_reason) or over data.max_response_length %d: collect answers with a higher limit of tokens; or set %s=include", config.ErrConfig, name, n, limit, setting)
	}
	if (stage == config.DPO || stage.HasCritic()) && !include && u.cut == n { // a pool gives pairs in the place of others only
		return "", fmt.Errorf("%w: data: %s: none of %d rows can make a pair, since every teacher answer is over data.max_response_length %d: %s; or set %s=include", config.ErrConfig, name, n, limit, would, setting)
	}
	// rounded down to a tenth, so that 100 % is all
	percent := func(k int) float64 { return math.Floor(1000*float64(k)/float64(n)) / 10 }
	cut := fmt.Sprintf("%d of %d teacher answers (%.1f %%) are cut at data.max_response_length %d", u.cut, n, percent(u.cut), limit)
	if u.cut == 0 {
		cut, would = fmt.Sprintf("%d of %d teacher answers (%.1f %%) are unfinished (finish_reason)", u.unfinished, n, percent(u.unfinished)), "collect them with a higher limit of tokens to have them whole"
	} else if u.unfinished > 0 {
		cut += fmt.Sprintf(", %d more (%.1f %%) are unfinished (finish_reason)", u.unfinished, percent(u.unfinished))
	}
	switch {
	case stage == config.SFT && u.cut+u.unfinished == n:
		cut += ": the student never learns to end an answer"
	case stage == config.SFT:
		cut += " and do not teach the student to end an answer"
	case include:
		cut += fmt.Sprintf(" and take part in pairs without an end (%s=include)", setting)
	default:
		cut += fmt.Sprintf(" and make no pairs (%s=exclude)", setting)
	}
	return cut + ": " + would, nil
}
