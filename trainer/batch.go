package trainer

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"gad/critic"
	"gad/data"
	"gad/model"
	"gad/tokenizer"
)

// Batch is the prompts of one step with the teacher's answers.
type Batch struct {
	Rows        []int       // [P] row of each in the data set
	Prompts     [][]int32   // [P]
	Teachers    []model.Seq // [P] prompt and teacher's answer, as every sequence ends
	TeacherCut  []bool      // [P] the answer was longer than the limit
	TeacherText []string    // [P]
	PromptText  []string    // [P]
}

// encoder turns rows into token ids under the limits of a configuration.
type encoder struct {
	tok                    *tokenizer.Tokenizer
	maxPrompt, maxResponse int
}

// prompt is the row's conversation up to where the answer begins.
func (e encoder) prompt(r data.Row) ([]int32, error) {
	if len(r.PromptIDs) > 0 {
		return e.checked(r, "prompt_ids", r.PromptIDs)
	}
	ids, err := e.tok.ChatPrompt(messages(r))
	if err != nil {
		return nil, fmt.Errorf("data: row %d: %w", r.Index, err)
	}
	return ids, nil
}

// answer is text as a finished answer: without trailing blanks, which chat
// templates add and models rarely do, and with the end of turn; cut reports that
// it was longer than the limit and therefore has none.
func (e encoder) answer(text string) (ids []int32, cut bool) {
	ids = e.whole(text)
	if len(ids) > e.maxResponse {
		return ids[:e.maxResponse:e.maxResponse], true
	}
	return ids, false
}

// whole is answer without a limit.
func (e encoder) whole(text string) []int32 {
	return append(e.tok.EncodeText(strings.TrimRight(text, " \t\r\n")), e.tok.EndOfTurn())
}

// given is the answer that a row carries: response_ids, else response, else
// the teacher's; what names it.
func (e encoder) given(r data.Row) (ids []int32, cut bool, what string, err error) {
	switch {
	case len(r.ResponseIDs) > 0:
		ids, err = e.checked(r, "response_ids", r.ResponseIDs)
		return ids, false, "response_ids", err
	case r.Response != "":
		ids, cut = e.answer(r.Response)
		return ids, cut, "response", nil
	case r.Teacher != "":
		ids, cut = e.answer(r.Teacher)
		return ids, cut, "teacher_response", nil
	}
	return nil, false, "", fmt.Errorf("data: row %d: has none of response_ids, response and teacher_response: nothing to score", r.Index)
}

func (e encoder) checked(r data.Row, column string, ids []int32) ([]int32, error) {
	for i, id := range ids {
		if id < 0 || int(id) >= e.tok.Size() {
			return nil, fmt.Errorf("data: row %d: %s[%d] = %d: not a token of this tokenizer (0 to %d)", r.Index, column, i, id, e.tok.Size()-1)
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
	for _, i := range rows {
		r, err := set.Row(i)
		if err != nil {
			return nil, err
		}
		prompt, err := e.prompt(r)
		if err != nil {
			return nil, err
		}
		if err := e.check(set, r, prompt); err != nil {
			return nil, err
		}
		answer, cut := e.answer(r.Teacher)
		b.Prompts = append(b.Prompts, prompt)
		b.Teachers = append(b.Teachers, e.ending().Seq(prompt, answer, cut))
		b.TeacherCut = append(b.TeacherCut, cut)
		b.TeacherText = append(b.TeacherText, r.Teacher)
		b.PromptText = append(b.PromptText, promptText(r))
	}
	return b, nil
}

// check refuses a row that no step could use.
func (e encoder) check(set *data.Set, r data.Row, prompt []int32) error {
	where := "data: "
	if files := set.Files(); len(files) == 1 {
		where += files[0] + ": "
	}
	if len(prompt) > e.maxPrompt {
		return fmt.Errorf("%srow %d: prompt has %d tokens, data.max_prompt_length is %d: raise it, or set data.overlong_prompts=filter", where, r.Index, len(prompt), e.maxPrompt)
	}
	if r.Teacher == "" {
		return fmt.Errorf("%srow %d: teacher_response is empty: run gad data validate, then mend or drop the row", where, r.Index)
	}
	return nil
}

func messages(r data.Row) []tokenizer.Message {
	out := make([]tokenizer.Message, len(r.Messages))
	for i, m := range r.Messages {
		out[i] = tokenizer.Message(m)
	}
	return out
}

// promptText is the last turn that a person wrote.
func promptText(r data.Row) string {
	if n := len(r.Messages); n > 0 {
		return r.Messages[n-1].Content
	}
	return ""
}

// window is how many rows are judged side by side, and at the most beyond the last
// that is wanted.
const window = 1024

// usable lists the first most rows that a run can take: all of the set's, or without
// those that the overlong_prompts and truncated_teachers settings filter out. All
// cores encode; the answer, and which row's fault is told, are as in row order.
func (e encoder) usable(set *data.Set, path string, c DataConfig, most int) (rows []int, dropped int, err error) {
	var (
		fits [window]bool
		errs [window]error
	)
	for first := 0; first < set.Len() && len(rows) < most; first += window {
		n := min(window, set.Len()-first)
		var (
			wg   sync.WaitGroup
			next atomic.Int64
		)
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
					fits[i], errs[i] = e.fits(set, first+i, c)
				}
			})
		}
		wg.Wait()
		for i := 0; i < n && len(rows) < most; i++ {
			switch {
			case errs[i] != nil:
				return nil, 0, errs[i]
			case fits[i]:
				rows = append(rows, first+i)
			default:
				dropped++
			}
		}
	}
	if len(rows) == 0 {
		return nil, dropped, fmt.Errorf("data: %s: none of %d rows is within data.max_prompt_length %d and data.max_response_length %d: raise them", path, set.Len(), c.MaxPrompt, c.MaxResponse)
	}
	return rows, dropped, nil
}

// fits reports whether the settings keep row i, and fails for one that no step
// could use.
func (e encoder) fits(set *data.Set, i int, c DataConfig) (bool, error) {
	r, err := set.Row(i)
	if err != nil {
		return false, err
	}
	prompt, err := e.prompt(r)
	if err != nil {
		return false, err
	}
	if len(prompt) > e.maxPrompt && c.Overlong == "filter" {
		return false, nil
	}
	if err := e.check(set, r, prompt); err != nil {
		return false, err
	}
	if c.TruncTeacher == "filter" {
		if _, cut := e.answer(r.Teacher); cut {
			return false, nil
		}
	}
	return true, nil
}
