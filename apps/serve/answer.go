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

	"gad/model"
	"gad/tokenizer"
)

// query is what a request asks for.
type query struct {
	chat     bool
	prompts  [][]int32
	texts    []string // of the prompts, for echo
	lead     []int    // tokens before each text that are not in it, for its log-probabilities
	n        int
	limit    int // tokens of an answer
	sampling model.Sampling
	seed     uint64
	eos      []int32
	stops    []string
	echo     bool
	ranked   bool // log-probabilities
	top      int
	stream   bool
	usage    bool // a last event of it
}

const (
	stopsMost = 16
	stopBytes = 1 << 10
)

// common reads what both kinds of completions take.
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

// completions answers /v1/completions.
func (s *Server) completions(x *exchange) *apiError {
	f, q := x.f, &query{}
	s.common(f, q)
	q.echo = f.boolean("echo")
	if raw := f.take("logprobs"); raw != nil && string(raw) != "false" { // as a chat has it
		q.ranked = true
		if err := json.Unmarshal(raw, &q.top); err != nil || q.top < 0 || q.top > 5 {
			f.fail("logprobs", "must be an integer from 0 to 5")
		}
	}
	least := 1
	if q.echo {
		least = 0
	}
	q.limit = f.integer("max_tokens", least, 1<<30, 16)
	q.limit = s.thought(q.limit)
	if err := s.prompts(x, q); err != nil {
		return err
	}
	if err := f.rest(); err != nil {
		return err
	}
	for i, ids := range q.prompts {
		if err := s.fits("prompt", ids, q.limit); err != nil {
			if len(q.prompts) > 1 {
				err.Message = fmt.Sprintf("prompt %d: %s", i, err.Message)
			}
			return err
		}
	}
	return s.answer(x, q)
}

// prompts reads a prompt: a text, texts, ids, or lists of ids.
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
		return nil // before work is done for it
	}
	for i, t := range texts {
		ids, err := s.bounded(x).EncodeSpecial(t)
		var plain []int32
		if err == nil && q.echo && q.ranked {
			plain, err = s.bounded(x).Encode(t)
			q.lead = append(q.lead, leading(ids, plain))
		}
		if err != nil {
			e := s.unencoded("prompt", err)
			if len(texts) > 1 {
				e.Message = fmt.Sprintf("prompt %d: %s", i, e.Message)
			}
			return e
		}
		q.prompts, q.texts = append(q.prompts, ids), append(q.texts, t)
	}
	vocab := s.m.Config().Vocab
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

// bounded encodes what a client has sent: no more than a prompt can have, and only as long
// as the client is there.
func (s *Server) bounded(x *exchange) tokenizer.Bounded {
	return tokenizer.Bounded{Tokenizer: s.tok, Context: x.r.Context(), Most: s.o.Context}
}

// unencoded is the answer to an error of bounded.
func (s *Server) unencoded(param string, err error) *apiError {
	var long *tokenizer.TooLong
	switch {
	case errors.As(err, &long):
		return refuse(http.StatusBadRequest,
			"%s: has more than the %d tokens that this server takes with an answer: shorten it",
			param, long.Most).about(param).coded("context_length_exceeded")
	case errors.Is(err, context.Canceled):
		return refuse(statusGone, "%v", errGone)
	}
	return refuse(http.StatusBadRequest, "%s: %v", param, err).about(param)
}

// leading is how many tokens a post-processor has put before a text.
func leading(special, plain []int32) int {
	for n := range len(special) - len(plain) {
		if slices.Equal(special[n:n+len(plain)], plain) {
			return n
		}
	}
	return len(special) - len(plain)
}

// tokens is a number of tokens, for messages.
func tokens(n int) string {
	if n == 1 {
		return "1 token"
	}
	return fmt.Sprintf("%d tokens", n)
}

// thought bounds the tokens of an answer by those of a thought in chunks.
func (s *Server) thought(limit int) int {
	if s.o.Chunks.On() {
		return min(limit, s.o.Chunks.Longest())
	}
	return limit
}

// fits refuses a prompt that has no tokens, or too many for an answer of limit tokens.
func (s *Server) fits(param string, ids []int32, limit int) *apiError {
	if s.o.Chunks.On() { // what stands in a context
		limit = min(limit, s.o.Chunks.Size)
	}
	switch {
	case len(ids) == 0:
		return refuse(http.StatusBadRequest, "%s: is empty: give at least one token",
			param).about(param)
	case limit > s.o.Context || len(ids)+limit > s.o.Context:
		return refuse(http.StatusBadRequest, "%s: %s and an answer of %d are more than the %d that this server takes: lower one of the two", param, tokens(len(ids)), limit, s.o.Context).about(param).coded("context_length_exceeded")
	}
	return nil
}

// chat answers /v1/chat/completions.
func (s *Server) chat(x *exchange) *apiError {
	f, q := x.f, &query{chat: true}
	s.common(f, q)
	q.ranked = f.boolean("logprobs")
	if q.top = f.integer("top_logprobs", 0, 20, 0); q.top > 0 && !q.ranked {
		f.fail("top_logprobs", "is given without logprobs: give logprobs true")
	}
	limit := f.integer("max_tokens", 1, 1<<30, 0)
	if newer := f.integer("max_completion_tokens", 1, 1<<30, 0); newer > 0 {
		if limit > 0 && limit != newer {
			f.fail("max_completion_tokens", "and max_tokens differ: give one of them")
		}
		limit = newer
	}
	messages := f.take("messages")
	if messages == nil {
		f.fail("messages", "is missing")
	}
	if err := f.rest(); err != nil {
		return err
	}
	ids, err := s.chatPrompt(messages, s.bounded(x))
	if err != nil {
		return err
	}
	if limit == 0 && s.o.Chunks.On() {
		limit = s.o.Answer
	} else if limit == 0 {
		limit = max(1, min(s.o.Answer, s.o.Context-len(ids)))
	}
	limit = s.thought(limit)
	if err := s.fits("messages", ids, limit); err != nil {
		return err
	}
	q.prompts, q.limit = [][]int32{ids}, limit
	return s.answer(x, q)
}

// chatPrompt is the prompt that a list of messages makes.
func (s *Server) chatPrompt(raw json.RawMessage, encode tokenizer.Bounded) ([]int32, *apiError) {
	bad := func(format string, args ...any) *apiError {
		return refuse(http.StatusBadRequest, "messages: "+format, args...).about("messages")
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, bad("must be a list of objects with role and content")
	}
	if len(list) == 0 {
		return nil, bad("is empty: give at least one message")
	}
	var messages []tokenizer.Message
	for i, m := range list {
		var role string
		if json.Unmarshal(m["role"], &role) != nil || role == "" {
			return nil, bad("message %d: role: must be system, user or assistant", i)
		}
		switch role {
		case "system", "user", "assistant":
		case "developer":
			role = "system"
		default:
			return nil, bad("message %d: role: must be system, user or assistant", i)
		}
		text, ok := contentOf(m["content"])
		if !ok {
			return nil,
				bad("message %d: content: must be a string, or a list of parts of type text", i)
		}
		for key, v := range m {
			if v := string(v); key != "role" && key != "content" && v != "null" && v != "[]" &&
				v != "{}" {
				return nil, bad("message %d: %s: is not known here: leave it out", i, short(key))
			}
		}
		messages = append(messages, tokenizer.Message{Role: role, Content: text})
	}
	ids, err := encode.ChatPrompt(messages)
	if err != nil {
		return nil, s.unencoded("messages", err)
	}
	return ids, nil
}

// contentOf is the text of a message: a string, or parts that are text.
func contentOf(raw json.RawMessage) (text string, ok bool) {
	if raw == nil || string(raw) == "null" {
		return "", false
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return "", false
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return "", false
		}
		b.WriteString(*p.Text)
	}
	return b.String(), true
}

// answer has the engine do what q asks, and sends it.
func (s *Server) answer(x *exchange, q *query) *apiError {
	c := newCall()
	c.streams = q.stream
	echoes := make([][]model.Token, len(q.prompts)) // written before the choices of the prompt
	for p, ids := range q.prompts {
		r := &model.Request{Prompt: ids, N: q.n, MaxNew: q.limit, Chunks: s.o.Chunks,
			Sampling: q.sampling, EOS: q.eos, Seed: q.seed, Row: uint64(p), Ranked: q.ranked, Top: q.top, Gone: c.gone.Load}
		own := make([]*choice, q.n)
		for i := range own {
			own[i] = &choice{of: c, eos: q.eos, stops: q.stops, text: s.tok.Stream(true),
				rank: q.ranked}
		}
		if q.echo && q.ranked {
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
		r.Token = func(i int, t model.Token) bool { return own[i].token(t) }
		r.Done = func(i int, a model.Completion) { own[i].done(a) }
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
	defer s.leave(c)
	b := &builder{s: s, q: q, created: time.Now().Unix(), echoes: echoes, c: c}
	b.id = id("cmpl")
	if q.chat {
		b.id = id("chatcmpl")
	}
	for range c.choices {
		b.written = append(b.written, written{})
	}
	err := b.run(x)
	for i := range c.choices {
		x.drawn += b.written[i].tokens
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

// builder makes the answer to a query out of what its call brings.
type builder struct {
	s       *Server
	q       *query
	c       *call
	id      string
	created int64
	echoes  [][]model.Token
	written []written
}

// written is what of a choice has been sent, or kept to be sent at once.
type written struct {
	begun  bool
	text   strings.Builder
	list   *logprobs // of completions
	chat   []chatLogprob
	shown  *tokenizer.Stream // the text so far, for the offsets of tokens
	offset int               // characters of it
	tokens int
}

// run reads the call to its end.
func (b *builder) run(x *exchange) error {
	ended := make([]bool, len(b.c.choices))
	left := len(ended)
	finish := make([]string, len(ended))
	if b.q.stream && b.q.chat {
		for i := range ended {
			if err := x.event(b.chunk(
				map[string]any{"index": i,
					"delta": map[string]any{"role": "assistant", "content": ""}, "logprobs": nil,
					"finish_reason": nil})); err != nil {
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
			b.written[n.index].tokens = n.tokens
			parts := n.parts
			if w := &b.written[n.index]; !w.begun {
				w.begun = true
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

// chunk is an event with one choice.
func (b *builder) chunk(choice map[string]any) map[string]any {
	v := b.envelope(true)
	v["choices"] = []any{choice}
	if b.q.usage {
		v["usage"] = nil
	}
	return v
}

func (b *builder) usage() map[string]any {
	prompt, drawn := 0, 0
	for _, ids := range b.q.prompts {
		prompt += len(ids)
	}
	for i := range b.written {
		drawn += b.written[i].tokens
	}
	return map[string]any{"prompt_tokens": prompt, "completion_tokens": drawn,
		"total_tokens":          prompt + drawn,
		"prompt_tokens_details": map[string]int64{"cached_tokens": b.c.found.Load()}}
}

// part adds to a choice: to what is sent at the end, or as an event.
func (b *builder) part(x *exchange, index int, p part) error {
	w := &b.written[index]
	var list *logprobs
	var chat []chatLogprob
	if b.q.ranked && b.q.chat {
		for _, t := range p.tokens {
			chat = append(chat, b.s.chatLogprob(t))
		}
	} else if b.q.ranked {
		list = b.logprobs(w, index/b.q.n, p)
	}
	if b.q.stream {
		c := map[string]any{"index": index, "logprobs": nil, "finish_reason": nil}
		if b.q.chat {
			c["delta"] = map[string]any{"content": p.text}
			if b.q.ranked {
				c["logprobs"] = map[string]any{"content": chat, "refusal": nil}
			}
		} else {
			c["text"] = p.text
			if b.q.ranked {
				c["logprobs"] = list
			}
		}
		return x.event(b.chunk(c))
	}
	w.text.WriteString(p.text)
	w.chat = append(w.chat, chat...)
	if list != nil {
		if w.list == nil {
			w.list = list
		} else {
			w.list.append(list)
		}
	}
	return nil
}

// logprobs are those of the tokens of a part of a completion.
func (b *builder) logprobs(w *written, prompt int, p part) *logprobs {
	l := &logprobs{Tokens: []string{}, Logprobs: []*float32{}, Top: []map[string]float32{},
		Offsets: []int{}}
	if !p.echo {
		if w.shown == nil {
			w.shown = b.s.tok.Stream(true)
		}
		for _, t := range p.tokens {
			w.add(l, b.s, t, false, true)
		}
		return l
	}
	w.shown = b.s.tok.Stream(false)
	lead := 0
	if b.q.lead != nil {
		lead = b.q.lead[prompt]
	}
	w.add(l, b.s, model.Token{ID: b.q.prompts[prompt][0]}, true, lead == 0)
	for i, t := range p.tokens {
		w.add(l, b.s, t, false, i+1 >= lead)
	}
	w.shown, w.offset = nil, utf8.RuneCountInString(p.text)
	return l
}

// end is the event of a choice's end.
func (b *builder) end(x *exchange, index int, finish string) error {
	c := map[string]any{"index": index, "logprobs": nil, "finish_reason": finish}
	if b.q.chat {
		c["delta"] = map[string]any{}
	} else {
		c["text"] = ""
	}
	return x.event(b.chunk(c))
}

// whole is the answer that is not streamed.
func (b *builder) whole(finish []string) map[string]any {
	v := b.envelope(false)
	var list []any
	for i := range b.written {
		w := &b.written[i]
		c := map[string]any{"index": i, "logprobs": nil, "finish_reason": finish[i]}
		if b.q.chat {
			c["message"] = map[string]any{"role": "assistant", "content": w.text.String(),
				"refusal": nil}
			if b.q.ranked {
				c["logprobs"] = map[string]any{"content": w.chat, "refusal": nil}
			}
		} else {
			c["text"] = w.text.String()
			if b.q.ranked {
				c["logprobs"] = w.list
			}
		}
		list = append(list, c)
	}
	v["choices"], v["usage"] = list, b.usage()
	return v
}

// logprobs is that of a completion: a list for each of its fields, over tokens.
type logprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []*float32           `json:"token_logprobs"`
	Top      []map[string]float32 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

// add appends a token; nothing is known about the first of a prompt. The token itself is
// always among the most probable that are named, so that whoever looks whether it is the
// best finds it. Where two tokens are written alike the more probable is named. Tokens that
// share a character have its offset.
func (w *written) add(l *logprobs, s *Server, t model.Token, first, shown bool) {
	text, at := s.written(t.ID), w.offset
	if shown {
		out := w.shown.Next(t.ID)
		w.offset += utf8.RuneCountInString(out)
		if piece := s.tok.Piece(t.ID); out != "" && utf8.Valid(piece) { // after what it cuts off
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
	for _, c := range t.Top {
		if name := s.written(c.ID); len(top) == 0 || !has(top, name) {
			top[name] = c.Logp
		}
	}
	if len(t.Top) > 0 && !has(top, text) {
		top[text] = logp
	}
	l.Top = append(l.Top, top)
}

func has(m map[string]float32, key string) bool {
	_, ok := m[key]
	return ok
}

func (l *logprobs) append(more *logprobs) {
	l.Tokens, l.Logprobs = append(l.Tokens, more.Tokens...), append(l.Logprobs, more.Logprobs...)
	l.Top, l.Offsets = append(l.Top, more.Top...), append(l.Offsets, more.Offsets...)
}

// chatLogprob is a token of a chat's answer.
type chatLogprob struct {
	alternative
	Top []alternative `json:"top_logprobs"`
}

type alternative struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func (s *Server) chatLogprob(t model.Token) chatLogprob {
	one := func(id int32, logp float32) alternative {
		bytes := []int{}
		for _, b := range s.tok.Piece(id) {
			bytes = append(bytes, int(b))
		}
		return alternative{s.written(id), logp, bytes}
	}
	c := chatLogprob{alternative: one(t.ID, t.Logp), Top: []alternative{}}
	for _, x := range t.Top {
		c.Top = append(c.Top, one(x.ID, x.Logp))
	}
	return c
}

// written is a token as a text, or as bytes where it is none.
func (s *Server) written(id int32) string {
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
