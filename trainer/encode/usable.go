package encode

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"gad/data"
	"gad/trainer/config"
)

// Usable holds the rows of a set that a run can take, and counts of the rows by what the limits do
// to them.
type Usable struct {
	Rows    []int32
	Dropped int // left out by data.overlong_prompts=filter and data.truncated_teachers=filter
	Cut     int // rows whose teacher's answer is over the limit

	Lost      int // rows with characters that the tokenizer has no token for
	FirstLost int // the first of them

	Marked      int // rows whose texts spell out a control token
	FirstMarked int // the first of them

	Unfinished        int // rows whose teacher's answer is within the limit and unfinished
	droppedUnfinished int // dropped rows of that kind

	// The values of data.max_response_length that would keep all answers, and 99 % of them,
	// counting rows that were dropped for their answer.
	ForAll, ForMost int

	Soft, Hard int // rows with soft labels, and rows with log-probabilities but no labels

	// rows of another set whose prompt, or prompt and answer, are in this set
	SeenPrompts, SeenRows int
}

// Usable returns the first most rows that a run can take: all rows of the set, or without rows that
// overlong_prompts and truncated_teachers filter out. known counts rows of another set that are in
// this one; nil: none.
func (e Encoder) Usable(set *data.Set, c config.DataConfig, most int, known *Overlap,
	keep data.Keep) (u Usable, err error) {
	lengths := map[int]int{} // answers by length
	answers := 0
	o := data.EncodeOptions{Limits: data.Limits{MaxPrompt: e.MaxPrompt}, Keys: known != nil,
		Most: most, Keep: keep}
	if c.Overlong == "filter" {
		o.Limits.MaxPrompt = 0
	}
	err = set.Encode(e, o, func(i int, m data.Measure) bool {
		if m.Prompt > e.MaxPrompt {
			u.Dropped++
			return true
		}
		lengths[m.Answer]++
		answers++
		if m.Answer > e.MaxResponse {
			if c.TruncTeacher == "filter" {
				u.Dropped++
				return true
			}
			u.Cut++
		} else if m.Unfinished {
			if c.TruncTeacher == "filter" {
				u.Dropped++
				u.droppedUnfinished++
				return true
			}
			u.Unfinished++
		}
		if m.Lost {
			if u.Lost++; u.Lost == 1 {
				u.FirstLost = i
			}
		}
		if m.Marked {
			if u.Marked++; u.Marked == 1 {
				u.FirstMarked = i
			}
		}
		if m.Soft {
			u.Soft++
		}
		if m.Hard {
			u.Hard++
		}
		u.Rows = append(u.Rows, int32(i))
		known.count(m)
		return len(u.Rows) < most
	})
	if err != nil {
		return Usable{}, err
	}
	u.Rows = slices.Clip(u.Rows)
	seen := 0
	for _, n := range slices.Sorted(maps.Keys(lengths)) {
		if u.ForAll = n; seen < (99*answers+99)/100 {
			u.ForMost = n
		}
		seen += lengths[n]
	}
	if known != nil {
		u.SeenPrompts, u.SeenRows = known.prompts, known.rows
	}
	if len(u.Rows) == 0 {
		if e.MaxResponse != c.MaxResponse { // of episodes, or of thoughts
			return u, fmt.Errorf("data: %s: none of %d rows is within data.max_prompt_length %d and answers of %d tokens: raise data.max_prompt_length, env.max_tokens or rollout.chunks", strings.Join(set.Files(), " "), set.Len(), c.MaxPrompt, e.MaxResponse)
		}
		return u, fmt.Errorf("data: %s: none of %d rows is within data.max_prompt_length %d and data.max_response_length %d: raise them", strings.Join(set.Files(), " "), set.Len(), c.MaxPrompt, c.MaxResponse)
	}
	return u, nil
}

// DropReason returns why rows were left out, in words.
func (u Usable) DropReason() string {
	switch u.droppedUnfinished {
	case 0:
		return "over the length limits"
	case u.Dropped:
		return "unfinished (finish_reason)"
	}
	return "over the length limits or unfinished (finish_reason)"
}

// CheckPairs returns a note about answers that are cut or unfinished: in SFT they do not teach the
// student to end; elsewhere they make no pairs, unless the settings include them. It refuses a run
// without a single pair: its discriminator would never learn. name is the data's name.
func (u Usable) CheckPairs(name string, c config.Config,
	stage config.Stage) (note string, err error) {
	if u.Cut+u.Unfinished == 0 || stage == config.OPD { // OPD does not read the answers
		return "", nil
	}
	setting, include := "critic.truncated", c.Critic.Truncated == "include"
	if stage == config.DPO {
		setting, include = "dpo.truncated", c.DPO.Truncated == "include"
	}
	n := len(u.Rows)
	limit, key := c.AnswerLimit(stage)
	forAll, forMost := u.ForAll, u.ForMost
	if chunks := c.Chunks(stage); chunks.On() { // the setting counts them
		forAll, forMost, limit =
			chunks.Count(forAll), chunks.Count(forMost), chunks.Most
	}
	would := fmt.Sprintf("%s=%d would keep all", key, forAll)
	if forMost < forAll && forMost > limit {
		would += fmt.Sprintf(", %d 99 %%", forMost)
	}
	if (stage == config.DPO || stage.HasCritic()) && !include && u.Cut+u.Unfinished == n &&
		u.Unfinished > 0 {
		return "", fmt.Errorf("%w: data: %s: none of %d rows can make a pair, since every teacher answer is unfinished (finish_reason) or over %s %d: collect answers with a higher limit of tokens; or set %s=include", config.ErrConfig, name, n, key, limit, setting)
	}
	// a pool of negatives only replaces pairs
	if (stage == config.DPO || stage.HasCritic()) && !include && u.Cut == n {
		return "", fmt.Errorf("%w: data: %s: none of %d rows can make a pair, since every teacher answer is over %s %d: %s; or set %s=include", config.ErrConfig, name, n, key, limit, would, setting)
	}
	// rounded down to a tenth, so that 100 % is all
	percent := func(k int) float64 { return math.Floor(1000*float64(k)/float64(n)) / 10 }
	cut := fmt.Sprintf("%d of %d teacher answers (%.1f %%) are cut at %s %d", u.Cut, n,
		percent(u.Cut), key, limit)
	if u.Cut == 0 {
		cut, would =
			fmt.Sprintf("%d of %d teacher answers (%.1f %%) are unfinished (finish_reason)",
				u.Unfinished, n, percent(u.Unfinished)),
			"collect them with a higher limit of tokens to have them whole"
	} else if u.Unfinished > 0 {
		cut += fmt.Sprintf(", %d more (%.1f %%) are unfinished (finish_reason)", u.Unfinished,
			percent(u.Unfinished))
	}
	switch {
	case stage == config.SFT && u.Cut+u.Unfinished == n:
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

// Overlap counts the rows of one set that are in another too.
type Overlap struct {
	// rows not found yet, by key of the prompt and by key of prompt and answer
	wanted        [2]map[uint64]int
	prompts, rows int
}

// NewOverlap returns a count of the given rows of set, none of them found yet.
func NewOverlap(set *data.Set, rows []int) (*Overlap, error) {
	s := &Overlap{wanted: [2]map[uint64]int{{}, {}}}
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

// count counts the rows that m, a row of the other set, matches, each once.
func (s *Overlap) count(m data.Measure) {
	if s == nil {
		return
	}
	s.prompts += s.wanted[0][m.PromptKey]
	s.rows += s.wanted[1][m.RowKey]
	delete(s.wanted[0], m.PromptKey) // each counts once
	delete(s.wanted[1], m.RowKey)
}
