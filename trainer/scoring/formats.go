package scoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gad/model"
)

// format is the protocol of a kind of server.
type format struct {
	path    string
	request func(model string, ids []int32, k int) any
	read    func(raw []byte, seq model.Seq, k int) (scored, error)
}

// formats are tried in this order.
var formats = []format{
	{"/v1/completions", vllmRequest, readVLLM}, // vLLM, gad serve
	{"/generate", sglangRequest, readSGLang},
}

// scored is a server's scores of a sequence, by position. They are set at the trained tokens only.
type scored struct {
	logp   []float64
	labels []model.SoftLabel // nil without alternatives
	text   []string          // the token's text by the server; "" if it gives none
}

// newScored returns empty scores of n tokens, with labels if k is above 0.
func newScored(n, k int) scored {
	x := scored{logp: make([]float64, n), text: make([]string, n)}
	if k > 0 {
		x.labels = make([]model.SoftLabel, n)
	}
	return x
}

// errFew is wrapped by the error about a server that gives fewer alternatives than requested.
var errFew = errors.New("alternatives")

// choice is an alternative for a token. logp is nil if the server writes null.
type choice struct {
	id   int32
	logp *float64
	rank int // 1 is the most probable; 0: unknown
	text string
}

// take sets the scores of token t, whose id is id, from choices: the token itself and its
// alternatives, in any order. It refuses choices without the token, log-probabilities that are
// null, above 1e-3 or not finite, and fewer than k alternatives, or gaps among the k best by their
// ranks.
func (x *scored) take(t int, id int32, choices []choice, k int) error {
	own := slices.IndexFunc(choices, func(c choice) bool { return c.id == id })
	if own < 0 {
		return fmt.Errorf("token %d is %d, and the scores there are of others: they are not in the order of the tokens, or not of this text", t, id)
	}
	for _, c := range choices {
		switch {
		case c.logp == nil:
			return fmt.Errorf("token %d: the log-probability of %d is null", t, c.id)
		case !(*c.logp >= -math.MaxFloat32 && *c.logp <= 1e-3):
			return fmt.Errorf(
				"token %d: the log-probability of %d is %g: must be finite and at most 0", t, c.id,
				*c.logp)
		}
	}
	x.logp[t], x.text[t] = min(0, *choices[own].logp), choices[own].text
	if k == 0 {
		return nil
	}
	best := slices.Clone(choices)
	slices.SortStableFunc(best, func(a, b choice) int {
		switch {
		case *a.logp > *b.logp:
			return -1
		case *a.logp < *b.logp:
			return 1
		case a.rank != b.rank && a.rank > 0 && b.rank > 0:
			return a.rank - b.rank
		}
		return int(a.id) - int(b.id)
	})
	if len(best) < k {
		return fmt.Errorf("token %d: %d %w, and %d were asked for: the server bounds them (vLLM: --max-logprobs)", t, len(best), errFew, k)
	}
	ranked, within := 0, 0
	for _, c := range choices {
		if c.rank > 0 {
			ranked++
		}
		if c.rank > 0 && c.rank <= k {
			within++
		}
	}
	if ranked == len(choices) && within < min(k, len(choices)) {
		return fmt.Errorf("token %d: %d of the %d most probable tokens are there by their ranks: one is missing", t, within, k)
	}
	var ids []int32
	var logp []float64
	for _, c := range best[:k] {
		ids, logp = append(ids, c.id), append(logp, min(0, *c.logp))
	}
	label, err := model.NewSoftLabel(ids, logp)
	if err != nil {
		return fmt.Errorf("token %d: %w: %w", t, errImpossible, err)
	}
	x.labels[t] = label
	return nil
}

// vllmRequest returns the body of a request for the log-probabilities of ids and of k alternatives.
func vllmRequest(model string, ids []int32, k int) any {
	body := map[string]any{"prompt": ids, "max_tokens": 1, "prompt_logprobs": k, "temperature": 1}
	if model != "" {
		body["model"] = model
	}
	return body
}

// readVLLM reads choices[0].prompt_logprobs: null for the first token; for each other token an
// object from ids to logprob, rank and decoded_token, with the token itself among them.
func readVLLM(raw []byte, seq model.Seq, k int) (x scored, err error) {
	var answer struct {
		Choices []struct {
			Scores []map[string]*struct {
				Logp *float64 `json:"logprob"`
				Rank *float64 `json:"rank"`
				Text string   `json:"decoded_token"`
			} `json:"prompt_logprobs"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return x, fmt.Errorf("an answer that cannot be read: %w", err)
	}
	if len(answer.Choices) != 1 || answer.Choices[0].Scores == nil {
		return x, errors.New("the answer has no prompt_logprobs")
	}
	places := answer.Choices[0].Scores
	if len(places) != len(seq.IDs) {
		return x, fmt.Errorf("scores of %d tokens, and %d were sent", len(places), len(seq.IDs))
	}
	x = newScored(len(seq.IDs), k)
	for _, t := range trained(seq) {
		if places[t] == nil {
			return x, fmt.Errorf("token %d: its scores are null", t)
		}
		var choices []choice
		for key, c := range places[t] {
			id, err := strconv.ParseInt(key, 10, 32)
			if err != nil || id < 0 || c == nil {
				return x, fmt.Errorf("token %d: an alternative %q that is no token", t, key)
			}
			one := choice{id: int32(id), logp: c.Logp, text: c.Text}
			if c.Rank != nil && *c.Rank >= 1 && *c.Rank <= math.MaxInt32 {
				one.rank = int(*c.Rank)
			}
			choices = append(choices, one)
		}
		if err := x.take(t, seq.IDs[t], choices, k); err != nil {
			return x, err
		}
	}
	return x, nil
}

// sglangRequest returns the body of such a request to SGLang, whose server names no model.
func sglangRequest(_ string, ids []int32, k int) any {
	return map[string]any{"input_ids": ids, "return_logprob": true, "logprob_start_len": 0,
		"top_logprobs_num": k,
		"sampling_params":  map[string]any{"temperature": 1, "max_new_tokens": 1}}
}

// entry is a choice in SGLang's form, [logprob, id, text].
type entry struct{ choice }

// UnmarshalJSON reads [logprob, id, text]; the text may be absent or null.
func (e *entry) UnmarshalJSON(raw []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return err
	}
	if len(parts) < 2 {
		return fmt.Errorf("%d values of a token: must be its log-probability and its id", len(parts))
	}
	if err := json.Unmarshal(parts[0], &e.logp); err != nil {
		return err
	}
	if err := json.Unmarshal(parts[1], &e.id); err != nil {
		return err
	}
	var text *string
	if len(parts) > 2 && json.Unmarshal(parts[2], &text) == nil && text != nil {
		e.text = *text
	}
	return nil
}

// readSGLang reads meta_info.input_token_logprobs, [logprob, id, text] of each token, and
// input_top_logprobs, a list of such entries for each token.
func readSGLang(raw []byte, seq model.Seq, k int) (x scored, err error) {
	var answer struct {
		Meta struct {
			Tokens []*entry   `json:"input_token_logprobs"`
			Top    [][]*entry `json:"input_top_logprobs"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return x, fmt.Errorf("an answer that cannot be read: %w", err)
	}
	tokens, top := answer.Meta.Tokens, answer.Meta.Top
	switch n := len(seq.IDs); {
	case tokens == nil:
		return x, errors.New("the answer has no input_token_logprobs")
	case len(tokens) != n:
		return x, fmt.Errorf("scores of %d tokens, and %d were sent", len(tokens), n)
	case k > 0 && len(top) != n:
		return x, fmt.Errorf("alternatives of %d tokens, and %d were sent", len(top), n)
	}
	x = newScored(len(seq.IDs), k)
	for _, t := range trained(seq) {
		if tokens[t] == nil {
			return x, fmt.Errorf("token %d: its scores are null", t)
		}
		choices := []choice{tokens[t].choice}
		if k > 0 {
			for _, e := range top[t] {
				if e == nil {
					return x, fmt.Errorf("token %d: an alternative is null", t)
				}
				if e.id != tokens[t].id {
					choices = append(choices, e.choice)
				}
			}
		}
		if err := x.take(t, seq.IDs[t], choices, k); err != nil {
			return x, err
		}
	}
	return x, nil
}
