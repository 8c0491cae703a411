package serve

import (
	"encoding/json"
	"strconv"

	"gad/model"
)

// topMost is the largest number of alternatives to a token; the engine keeps as many in its cache.
const topMost = 64

// valuesMost is the largest number of log-probabilities in a request, unless it is one prompt with
// its answer. They are held until the answer is sent: 8 bytes each, and some 60 in JSON.
const valuesMost = 1 << 21

// values returns the largest number of log-probabilities in the answer to q, with all answers at
// their limit.
func (q *query) values() (n int) {
	top := max(q.top, q.scores)
	for _, ids := range q.prompts {
		if q.scores >= 0 || q.echo && q.ranked {
			n += (len(ids) - 1) * (1 + top)
		}
		if q.scores >= 0 { // every choice repeats them
			n += (len(ids) - 1) * (1 + q.scores) * (q.n - 1)
		}
		if q.ranked {
			n += q.n * q.limit * (1 + top)
		}
	}
	return n
}

// scores returns a prompt's prompt_logprobs in vLLM's JSON: null for the first token, which has no
// probability, and for each other token an object from token ids to logprob, rank and
// decoded_token. The token itself comes first, then the most probable other ones in order. A rank
// is the place among all tokens; 1 is the most probable.
func (s *Server) scores(tokens []model.Token, top int) json.RawMessage {
	b := []byte("[null")
	entry := func(id int32, logp float32, rank int) {
		b = append(b, '"')
		b = strconv.AppendInt(b, int64(id), 10)
		b = append(b, `":{"logprob":`...)
		b = strconv.AppendFloat(b, float64(logp), 'g', -1, 32)
		b = append(b, `,"rank":`...)
		b = strconv.AppendInt(b, int64(rank), 10)
		b = append(b, `,"decoded_token":`...)
		text, _ := json.Marshal(s.tok.Decode([]int32{id}, false))
		b = append(append(b, text...), '}')
	}
	for _, t := range tokens {
		b = append(b, ",{"...)
		entry(t.ID, t.Logp, int(t.Rank))
		for i, c := range t.Top[:min(top, len(t.Top))] {
			if c.ID != t.ID {
				b = append(b, ',')
				entry(c.ID, c.Logp, i+1)
			}
		}
		b = append(b, '}')
	}
	return append(b, ']')
}
