package serve

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gad/internal/grammar"
	"gad/model"
	"gad/tokenizer"
)

// query is the parameters of a completion or a chat.
type query struct {
	chat     bool
	prompts  [][]int32
	texts    []string // texts of the prompts, for echo
	lead     []int    // tokens before each text (BOS), which its log-probabilities leave out
	n        int
	limit    int // tokens of an answer
	sampling model.Sampling
	seed     uint64
	eos      []int32
	stops    []string
	echo     bool
	ranked   bool // log-probabilities are asked for
	top      int
	scores   int              // alternatives in prompt_logprobs; -1: no prompt_logprobs
	ids      bool             // token ids in the answer
	named    bool             // log-probabilities name tokens by their ids
	calls    bool             // answers are searched for tool calls
	single   bool             // at most one tool call
	grammar  *grammar.Grammar // of answers in JSON; nil: any text
	stream   bool
	usage    bool // the stream ends with an event of token counts
}

const (
	stopsMost = 16
	stopBytes = 1 << 10
)

// common reads the parameters that completions and chats share into q.
func (s *Server) common(f *fields, q *query) {
	q.n = f.integer("n", 1, s.o.N, 1)
	if best := f.integer("best_of", 1, s.o.N, q.n); best != q.n {
		f.fail("best_of", "is not supported: leave it out, or give that of n")
	}
	q.sampling = model.Sampling{Temperature: f.temperature(), TopP: f.number("top_p", 0, 1, 1),
		MinP: f.number("min_p", 0, 1, 0), TopK: max(0, f.integer("top_k", -1, 1<<30, 0))}
	switch q.sampling.TopP {
	case 0:
		f.fail("top_p", "0: must be above 0, to 1")
	case 1:
		q.sampling.TopP = 0 // off
	}
	if q.sampling.Temperature == 0 {
		q.sampling = model.Sampling{} // requests that are greedy are drawn together
	}
	q.stops = f.texts("stop", stopsMost, stopBytes)
	seed, given := f.seed()
	if !given {
		var b [8]byte
		rand.Read(b[:])
		seed = binary.LittleEndian.Uint64(b[:])
	}
	q.seed = seed
	if !f.boolean("ignore_eos") {
		q.eos = s.tok.EOS()
	}
	q.stream = f.boolean("stream")
	q.ids, q.named = f.boolean("return_token_ids"), f.boolean("return_tokens_as_token_ids")
	if q.scores = f.integer("prompt_logprobs", 0, topMost, -1); q.scores >= 0 && q.stream {
		f.fail("prompt_logprobs", "are not streamed: leave stream out, or give false")
	}
	if raw := f.take("stream_options"); raw != nil {
		o, bad := parse(raw)
		if bad != nil {
			f.fail("stream_options", "must be an object")
			return
		}
		q.usage = o.boolean("include_usage") // an answer that is not streamed has it anyway
		if o.boolean("include_obfuscation") {
			o.fail("include_obfuscation", "is not supported: leave it out, or give false")
		}
		if err := o.rest(); err != nil && f.err == nil {
			f.err = err
		}
	}
}

// completions handles /v1/completions.
func (s *Server) completions(x *exchange) *apiError {
	f, q := x.f, &query{}
	s.common(f, q)
	q.echo = f.boolean("echo")
	if raw := f.take("logprobs"); raw != nil && string(raw) != "false" { // false, as in a chat
		q.ranked = true
		if err := json.Unmarshal(raw, &q.top); err != nil || q.top < 0 || q.top > topMost {
			f.fail("logprobs", "must be an integer from 0 to %d", topMost)
		}
	}
	q.limit = f.integer("max_tokens", q.least(), 1<<30, 16)
	q.limit = s.limitByChunks(q.limit)
	if err := s.prompts(x, q); err != nil {
		return err
	}
	if err := f.rest(); err != nil {
		return err
	}
	for i, ids := range q.prompts {
		if err := s.checkPrompt("prompt", ids, q.limit); err != nil {
			if len(q.prompts) > 1 {
				err.Message = fmt.Sprintf("prompt %d: %s", i, err.Message)
			}
			return err
		}
	}
	if err := s.checkSize(q); err != nil {
		return err
	}
	return s.answer(x, q)
}

// least returns the smallest limit of an answer's tokens that a request may set.
func (q *query) least() int {
	if q.echo || q.scores >= 0 {
		return 0
	}
	return 1
}

// checkSize refuses a query for more log-probabilities than a request may have.
func (s *Server) checkSize(q *query) *apiError {
	param := "logprobs"
	if q.chat {
		param = "top_logprobs"
	}
	if q.scores >= 0 {
		param = "prompt_logprobs"
	}
	if n, most := q.values(), max(valuesMost, 2*s.o.Context*(1+topMost)); n > most {
		return refuse(http.StatusBadRequest, "%s: %d log-probabilities: at most %d are given to a request: send fewer prompts, or ask for fewer alternatives", param, n, most).withParam(param)
	}
	return nil
}

// prompts reads the parameter prompt into q: a text, texts, token ids, or lists of token ids. It
// records a malformed prompt in x.f and returns the error of one that cannot be encoded.
func (s *Server) prompts(x *exchange, q *query) *apiError {
	f := x.f
	raw := f.take("prompt")
	if raw == nil {
		f.fail("prompt", "is missing")
		return nil
	}
	var (
		text  string
		texts []string
		ids   []int32
		lists [][]int32
	)
	switch {
	case json.Unmarshal(raw, &text) == nil:
		texts = []string{text}
	case hasNull(raw): // would be read as token 0, or as an empty text
		f.fail("prompt", "has a null among the texts or token ids")
		return nil
	case json.Unmarshal(raw, &ids) == nil && len(ids) > 0:
		lists = [][]int32{ids}
	case json.Unmarshal(raw, &texts) == nil && len(texts) > 0:
	case json.Unmarshal(raw, &lists) == nil && len(lists) > 0:
		texts = nil
	default:
		f.fail("prompt",
			"must be a string, a list of strings, a list of token ids or a list of such lists")
		return nil
	}
	if n := max(len(texts), len(lists)) * q.n; n > choicesMost {
		f.fail("prompt", "%d answers: at most %d are given to a request", n, choicesMost)
		return nil
	}
	if f.err != nil {
		return nil // a bad request costs no encoding
	}
	for i, t := range texts {
		ids, err := s.boundedEncoder(x).EncodeSpecial(t)
		var plain []int32
		if err == nil && q.echo && q.ranked {
			plain, err = s.boundedEncoder(x).Encode(t)
			q.lead = append(q.lead, countLeading(ids, plain))
		}
		if err != nil {
			e := s.encodeError("prompt", err)
			if len(texts) > 1 {
				e.Message = fmt.Sprintf("prompt %d: %s", i, e.Message)
			}
			return e
		}
		q.prompts, q.texts = append(q.prompts, ids), append(q.texts, t)
	}
	vocab := s.m.Vocab()
	for i, l := range lists {
		for t, id := range l {
			if id < 0 || int(id) >= vocab {
				f.fail("prompt", "prompt %d: token %d: id %d is outside the vocabulary of %d", i, t,
					id, vocab)
				return nil
			}
		}
		q.prompts = append(q.prompts, l)
		if q.echo {
			q.texts = append(q.texts, s.tok.Decode(l, false))
		}
	}
	return nil
}

// boundedEncoder returns an encoder for a client's text, which stops at the longest prompt and when
// the client disconnects.
func (s *Server) boundedEncoder(x *exchange) tokenizer.Bounded {
	return tokenizer.Bounded{Tokenizer: s.tok, Context: x.r.Context(), Most: s.o.Context}
}

// encodeError returns the answer to an error of boundedEncoder.
func (s *Server) encodeError(param string, err error) *apiError {
	var long *tokenizer.TooLong
	switch {
	case errors.As(err, &long):
		return refuse(http.StatusBadRequest,
			"%s: has more than the %d tokens that this server takes with an answer: shorten it",
			param, long.Most).withParam(param).withCode("context_length_exceeded")
	case errors.Is(err, context.Canceled):
		return refuse(statusGone, "%v", errGone)
	}
	return refuse(http.StatusBadRequest, "%s: %v", param, err).withParam(param)
}

// countLeading returns the number of tokens that a post-processor has put before a text.
func countLeading(special, plain []int32) int {
	for n := range len(special) - len(plain) {
		if slices.Equal(special[n:n+len(plain)], plain) {
			return n
		}
	}
	return len(special) - len(plain)
}

// tokens returns a number of tokens as text, for messages.
func tokens(n int) string {
	if n == 1 {
		return "1 token"
	}
	return fmt.Sprintf("%d tokens", n)
}

// limitByChunks returns the limit of an answer's tokens, at most the longest thought in chunks.
func (s *Server) limitByChunks(limit int) int {
	if s.o.Chunks.On() {
		return min(limit, s.o.Chunks.Longest())
	}
	return limit
}

// checkPrompt refuses a prompt that has no tokens, or too many for an answer of limit tokens.
func (s *Server) checkPrompt(param string, ids []int32, limit int) *apiError {
	if s.o.Chunks.On() { // a context holds one chunk at a time
		limit = min(limit, s.o.Chunks.Size)
	}
	switch {
	case len(ids) == 0:
		return refuse(http.StatusBadRequest, "%s: is empty: give at least one token",
			param).withParam(param)
	case limit > s.o.Context || len(ids)+limit > s.o.Context:
		return refuse(http.StatusBadRequest, "%s: %s and an answer of %d are more than the %d that this server takes: lower one of the two", param, tokens(len(ids)), limit, s.o.Context).withParam(param).withCode("context_length_exceeded")
	}
	return nil
}

// chat handles /v1/chat/completions.
func (s *Server) chat(x *exchange) *apiError {
	f, q := x.f, &query{chat: true}
	s.common(f, q)
	q.ranked = f.boolean("logprobs")
	if q.top = f.integer("top_logprobs", 0, topMost, 0); q.top > 0 && !q.ranked {
		f.fail("top_logprobs", "is given without logprobs: give logprobs true")
	}
	limit := f.integer("max_tokens", q.least(), 1<<30, -1)
	if newer := f.integer("max_completion_tokens", q.least(), 1<<30, -1); newer >= 0 {
		if limit >= 0 && limit != newer {
			f.fail("max_completion_tokens", "and max_tokens differ: give one of them")
		}
		limit = newer
	}
	messages := f.take("messages")
	if messages == nil {
		f.fail("messages", "is missing")
	}
	tools, calls := s.tools(f)
	together := true
	f.into("parallel_tool_calls", "true or false", &together)
	q.calls, q.single = calls, !together
	q.grammar = s.responseFormat(f, calls)
	s.effort(f)
	set := variables(f)
	if err := f.rest(); err != nil {
		return err
	}
	ids, err := s.conversation(messages, tools, set, s.boundedEncoder(x))
	if err != nil {
		return err
	}
	if limit < 0 && s.o.Chunks.On() {
		limit = s.o.Answer
	} else if limit < 0 {
		limit = max(1, min(s.o.Answer, s.o.Context-len(ids)))
	}
	limit = s.limitByChunks(limit)
	if err := s.checkPrompt("messages", ids, limit); err != nil {
		return err
	}
	q.prompts, q.limit = [][]int32{ids}, limit
	if err := s.checkSize(q); err != nil {
		return err
	}
	return s.answer(x, q)
}

// answer submits q to the engine and sends the answer as it comes.
func (s *Server) answer(x *exchange, q *query) *apiError {
	c := newCall()
	c.streams = q.stream
	echoes := make([][]model.Token, len(q.prompts)) // set before the prompt's choices have text
	for p, ids := range q.prompts {
		r := &model.Request{Prompt: ids, N: q.n, MaxNew: q.limit, Chunks: s.o.Chunks,
			Sampling: q.sampling, EOS: q.eos, Seed: q.seed, Row: uint64(p), Ranked: q.ranked,
			Top: max(q.top, q.scores), Gone: c.gone.Load}
		own := make([]*choice, q.n)
		for i := range own {
			own[i] = &choice{call: c, eos: q.eos, stops: q.stops, text: s.tok.Stream(true),
				keepTokens: q.ranked || q.ids}
			if q.calls {
				own[i].tags = s.format.tags
			}
		}
		if q.scores >= 0 || q.echo && q.ranked {
			r.Echo = func(tokens []model.Token) {
				c.mu.Lock()
				echoes[p] = tokens
				c.mu.Unlock()
			}
		}
		r.Found = func(tokens int) {
			c.found.Add(int64(tokens))
			s.meter.prompt(len(ids), tokens)
		}
		if q.grammar != nil {
			constraints := make([]*constraint, q.n)
			for i := range constraints {
				constraints[i] = s.newConstraint(q.grammar, q.eos)
			}
			r.Allowed = func(i int, drawn []int32) []bool { return constraints[i].next(drawn) }
		}
		r.Token = func(i int, t model.Token) bool { return own[i].token(t) }
		r.Done = func(i int, a model.Completion) { own[i].complete(a) }
		r.Failed = func(err error) {
			if s.o.Log != nil {
				s.o.Log(fmt.Sprintf("a request with %d tokens in a prompt has failed: %v", len(ids),
					err))
			}
			c.fail(errMemory)
		}
		c.requests, c.choices = append(c.requests, r), append(c.choices, own...)
		x.prompt += len(ids)
	}
	if err := s.submit(c); err != nil {
		return unavailable(err)
	}
	defer s.drop(c)
	b := &builder{s: s, q: q, created: time.Now().Unix(), echoes: echoes, c: c}
	b.id = id("cmpl")
	if q.chat {
		b.id = id("chatcmpl")
	}
	for range c.choices {
		w := output{list: &logprobs{Tokens: []string{}, Logprobs: []*float32{},
			Top: []map[string]float32{}, Offsets: []int{}}, chat: []chatLogprob{}, ids: []int32{}}
		if q.calls {
			w.parser = newParser(s.format)
		}
		b.outputs = append(b.outputs, w)
	}
	err := b.run(x)
	for i := range c.choices {
		x.drawn += b.outputs[i].tokens
	}
	c.mu.Lock()
	x.first = c.first
	c.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errGone):
		x.status = statusGone
		return nil
	}
	return unavailable(err)
}

// builder builds the answer to a query, as JSON or as events, from the text that its call yields.
type builder struct {
	s       *Server
	q       *query
	c       *call
	id      string
	created int64
	echoes  [][]model.Token
	outputs []output
}

// output is the part of a choice that was sent as events, or is kept for the answer as a whole.
type output struct {
	started    bool
	text       strings.Builder
	list       *logprobs // of a completion
	chat       []chatLogprob
	stream     *tokenizer.Stream // decodes the text so far, for the offsets of tokens
	offset     int               // of the next token, in characters
	tokens     int
	ids        []int32
	promptSent bool    // the ids of the prompt have been sent
	parser     *parser // of tool calls; nil: not searched for
	calls      []toolCall
}

// run sends the answer until all choices of the call have ended.
func (b *builder) run(x *exchange) error {
	ended := make([]bool, len(b.c.choices))
	left := len(ended)
	finish := make([]string, len(ended))
	if b.q.stream && b.q.chat {
		for i := range ended {
			first := b.chunk(map[string]any{"index": i,
				"delta": map[string]any{"role": "assistant", "content": ""}, "logprobs": nil,
				"finish_reason": nil})
			if b.q.ids {
				first["prompt_token_ids"] = b.q.prompts[0]
			}
			if err := x.event(first); err != nil {
				return errGone
			}
		}
	}
	for left > 0 {
		list, err := b.c.read(ended, x.r.Context().Done())
		if err != nil {
			return err
		}
		for _, n := range list {
			b.outputs[n.index].tokens = n.tokens
			parts := n.parts
			if w := &b.outputs[n.index]; !w.started {
				w.started = true
				if b.q.echo {
					prompt := n.index / b.q.n
					b.c.mu.Lock()
					parts = append([]part{{text: b.q.texts[prompt], tokens: b.echoes[prompt],
						echo: true}}, parts...)
					b.c.mu.Unlock()
				}
			}
			for _, p := range parts {
				if err := b.part(x, n.index, p); err != nil {
					return errGone
				}
			}
			if n.finish != "" {
				if err := b.last(x, n.index, &n.finish); err != nil {
					return errGone
				}
				ended[n.index], finish[n.index] = true, n.finish
				left--
				if b.q.stream {
					if err := b.end(x, n.index, n.finish); err != nil {
						return errGone
					}
				}
			}
		}
	}
	if !b.q.stream {
		x.reply(http.StatusOK, b.whole(finish))
		return nil
	}
	if b.q.usage {
		last := b.envelope(true)
		last["choices"], last["usage"] = []any{}, b.usage()
		if err := x.event(last); err != nil {
			return errGone
		}
	}
	if err := x.data([]byte("[DONE]")); err != nil {
		return errGone
	}
	return nil
}

// envelope returns the fields that every answer and every event has.
func (b *builder) envelope(chunk bool) map[string]any {
	object := "text_completion"
	if b.q.chat {
		if object = "chat.completion"; chunk {
			object = "chat.completion.chunk"
		}
	}
	return map[string]any{"id": b.id, "object": object, "created": b.created, "model": b.s.o.Name,
		"system_fingerprint": nil}
}

// chunk returns an event with one choice.
func (b *builder) chunk(choice map[string]any) map[string]any {
	v := b.envelope(true)
	v["choices"] = []any{choice}
	if b.q.usage {
		v["usage"] = nil
	}
	return v
}

// usage returns the counts of tokens.
func (b *builder) usage() map[string]any {
	prompt, drawn := 0, 0
	for _, ids := range b.q.prompts {
		prompt += len(ids)
	}
	for i := range b.outputs {
		drawn += b.outputs[i].tokens
	}
	return map[string]any{"prompt_tokens": prompt, "completion_tokens": drawn,
		"total_tokens":          prompt + drawn,
		"prompt_tokens_details": map[string]int64{"cached_tokens": b.c.found.Load()}}
}

// part adds a part to a choice: sends it as events, or keeps it for the answer as a whole.
func (b *builder) part(x *exchange, index int, p part) error {
	w := &b.outputs[index]
	pieces := []piece{{text: p.text}}
	if w.parser != nil {
		pieces = w.parser.next(p.text)
	}
	e := extra{}
	if b.q.ids && !p.echo {
		e.ids = make([]int32, len(p.tokens))
		for i, t := range p.tokens {
			e.ids[i] = t.ID
		}
	}
	if b.q.ranked && b.q.chat {
		e.chat = []chatLogprob{}
		for _, t := range p.tokens {
			e.chat = append(e.chat, b.chatLogprob(t))
		}
	} else if b.q.ranked {
		e.list = b.logprobs(w, index/b.q.n, p)
	}
	return b.pieces(x, index, pieces, e)
}

// last adds the text and calls that are certain only at the end of a choice, and corrects finish
// where the choice has calls.
func (b *builder) last(x *exchange, index int, finish *string) error {
	w := &b.outputs[index]
	if w.parser == nil {
		return nil
	}
	err := b.pieces(x, index, w.parser.end(), extra{})
	if w.parser.calls > 0 && *finish == "stop" {
		*finish = "tool_calls"
	}
	return err
}

// extra is the token ids and log-probabilities of a part.
type extra struct {
	ids  []int32
	list *logprobs     // of a completion
	chat []chatLogprob // of a chat
}

// nonempty reports whether there is any token.
func (e extra) nonempty() bool { return len(e.ids)+len(e.chat) > 0 || e.list != nil }

// pieces adds text and calls to a choice. Of several events the first carries e.
func (b *builder) pieces(x *exchange, index int, list []piece, e extra) error {
	w := &b.outputs[index]
	if len(list) == 0 && e.nonempty() {
		list = []piece{{}} // an event for e alone: its text comes later or never
	}
	for _, p := range list {
		if p.call != nil && b.q.single && len(w.calls) > 0 {
			p = piece{}
		}
		if p.call != nil {
			w.calls = append(w.calls, *p.call)
		}
		if b.q.stream {
			if err := b.event(x, index, p, e); err != nil {
				return err
			}
			e = extra{}
			continue
		}
		w.text.WriteString(p.text)
	}
	if b.q.stream {
		return nil
	}
	w.ids, w.chat = append(w.ids, e.ids...), append(w.chat, e.chat...)
	if e.list != nil {
		w.list.append(e.list)
	}
	return nil
}

// event sends a piece of a choice as an event.
func (b *builder) event(x *exchange, index int, p piece, e extra) error {
	w := &b.outputs[index]
	c := map[string]any{"index": index, "logprobs": nil, "finish_reason": nil}
	delta := map[string]any{"content": p.text}
	if p.call != nil {
		call := p.call.body()
		call["index"] = len(w.calls) - 1
		delta = map[string]any{"tool_calls": []any{call}}
	}
	if b.q.chat {
		if c["delta"] = delta; e.chat != nil {
			c["logprobs"] = map[string]any{"content": e.chat, "refusal": nil}
		}
	} else {
		if c["text"] = p.text; e.list != nil {
			c["logprobs"] = e.list
		}
		if b.q.ids && !w.promptSent {
			w.promptSent, c["prompt_token_ids"] = true, b.q.prompts[index/b.q.n]
		}
	}
	if b.q.ids && e.ids != nil {
		c["token_ids"] = e.ids
	}
	return x.event(b.chunk(c))
}

// logprobs returns the log-probabilities of a completion's part.
func (b *builder) logprobs(w *output, prompt int, p part) *logprobs {
	l := &logprobs{Tokens: []string{}, Logprobs: []*float32{}, Top: []map[string]float32{},
		Offsets: []int{}}
	if !p.echo {
		if w.stream == nil {
			w.stream = b.s.tok.Stream(true)
		}
		for _, t := range p.tokens {
			w.add(l, b, t, false, true)
		}
		return l
	}
	w.stream = b.s.tok.Stream(false)
	lead := 0
	if b.q.lead != nil {
		lead = b.q.lead[prompt]
	}
	w.add(l, b, model.Token{ID: b.q.prompts[prompt][0]}, true, lead == 0)
	for i, t := range p.tokens {
		w.add(l, b, t, false, i+1 >= lead)
	}
	w.stream, w.offset = nil, utf8.RuneCountInString(p.text)
	return l
}

// end sends the event of a choice's end.
func (b *builder) end(x *exchange, index int, finish string) error {
	c := map[string]any{"index": index, "logprobs": nil, "finish_reason": finish}
	if b.q.chat {
		c["delta"] = map[string]any{}
	} else {
		c["text"] = ""
	}
	return x.event(b.chunk(c))
}

// whole returns the body of an answer that is not streamed. finish has the finish_reason of each
// choice.
func (b *builder) whole(finish []string) map[string]any {
	v := b.envelope(false)
	var list []any
	var scores json.RawMessage
	for i := range b.outputs {
		w, prompt := &b.outputs[i], i/b.q.n
		if b.q.scores >= 0 && i%b.q.n == 0 {
			scores = b.s.scores(b.echoes[prompt], b.q.scores)
		}
		c := map[string]any{"index": i, "logprobs": nil, "finish_reason": finish[i]}
		if b.q.chat {
			message := map[string]any{"role": "assistant", "content": w.text.String(),
				"refusal": nil}
			if len(w.calls) > 0 {
				if w.text.Len() == 0 {
					message["content"] = nil
				}
				var calls []any
				for _, call := range w.calls {
					calls = append(calls, call.body())
				}
				message["tool_calls"] = calls
			}
			if c["message"] = message; b.q.ranked {
				c["logprobs"] = map[string]any{"content": w.chat, "refusal": nil}
			}
		} else {
			c["text"] = w.text.String()
			if b.q.ranked {
				c["logprobs"] = w.list
			}
		}
		holder := c   // of the prompt's fields
		if b.q.chat { // a chat has one prompt for all choices
			holder = v
		}
		if b.q.scores >= 0 {
			holder["prompt_logprobs"] = scores
		}
		if b.q.ids {
			c["token_ids"], holder["prompt_token_ids"] = w.ids, b.q.prompts[prompt]
		}
		list = append(list, c)
	}
	v["choices"], v["usage"] = list, b.usage()
	return v
}

// logprobs is the JSON field logprobs of a completion: each of its lists has one element a token.
type logprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []*float32           `json:"token_logprobs"`
	Top      []map[string]float32 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

// add appends a token's entry to l. The first token of a prompt has no log-probability.
//
// The alternatives contain the token itself, so that a client can see whether it is the most
// probable. Of two tokens with the same text the more probable one is listed. Tokens that share a
// character have its offset.
func (w *output) add(l *logprobs, b *builder, t model.Token, first, shown bool) {
	text, at := b.name(t.ID), w.offset
	if shown {
		out := w.stream.Next(t.ID)
		w.offset += utf8.RuneCountInString(out)
		if piece := b.s.tok.Piece(t.ID); out != "" && utf8.Valid(piece) { // after a cut-off character
			at = max(at, w.offset-utf8.RuneCount(piece)) // a text's first blank may be left out
		}
	}
	l.Tokens, l.Offsets = append(l.Tokens, text), append(l.Offsets, at)
	if first {
		l.Logprobs, l.Top = append(l.Logprobs, nil), append(l.Top, nil)
		return
	}
	logp := t.Logp
	l.Logprobs = append(l.Logprobs, &logp)
	top := map[string]float32{}
	for _, c := range b.top(t) {
		if name := b.name(c.ID); len(top) == 0 || !has(top, name) {
			top[name] = c.Logp
		}
	}
	if b.q.top > 0 && !has(top, text) {
		top[text] = logp
	}
	l.Top = append(l.Top, top)
}

// has reports whether a map has a key.
func has(m map[string]float32, key string) bool {
	_, ok := m[key]
	return ok
}

// append appends the lists of more.
func (l *logprobs) append(more *logprobs) {
	l.Tokens, l.Logprobs = append(l.Tokens, more.Tokens...), append(l.Logprobs, more.Logprobs...)
	l.Top, l.Offsets = append(l.Top, more.Top...), append(l.Offsets, more.Offsets...)
}

// chatLogprob is the JSON of a token in a chat's log-probabilities.
type chatLogprob struct {
	alternative
	Top []alternative `json:"top_logprobs"`
}

// alternative is a token at a position, with its log-probability.
type alternative struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// chatLogprob returns a token's entry in a chat's log-probabilities.
func (b *builder) chatLogprob(t model.Token) chatLogprob {
	one := func(id int32, logp float32) alternative {
		bytes := []int{}
		for _, x := range b.s.tok.Piece(id) {
			bytes = append(bytes, int(x))
		}
		return alternative{b.name(id), logp, bytes}
	}
	c := chatLogprob{alternative: one(t.ID, t.Logp), Top: []alternative{}}
	for _, x := range b.top(t) {
		c.Top = append(c.Top, one(x.ID, x.Logp))
	}
	return c
}

// top returns the alternatives of a token that logprobs asked for: prompt_logprobs may have made
// the engine return more.
func (b *builder) top(t model.Token) []model.Choice { return t.Top[:min(b.q.top, len(t.Top))] }

// name returns a token as log-probabilities name it: its text, or its id where
// return_tokens_as_token_ids is set.
func (b *builder) name(id int32) string {
	if b.q.named {
		return fmt.Sprintf("token_id:%d", id)
	}
	return b.s.tokenText(id)
}

// tokenText returns a token as text, or as escaped bytes where it is not valid UTF-8.
func (s *Server) tokenText(id int32) string {
	piece := s.tok.Piece(id)
	if utf8.Valid(piece) {
		return string(piece)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, x := range piece {
		fmt.Fprintf(&b, `\x%02x`, x)
	}
	return b.String()
}
