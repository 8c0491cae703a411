// Package endpointtest is an OpenAI-compatible server on the loopback interface with faults that a
// test chooses, for tests of clients: server.go has chat completions, batch.go the batch API.
package endpointtest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// Call is one request for a chat completion, as received.
type Call struct {
	Number   int    // from 0
	Prompt   string // the last turn
	Before   int    // earlier calls with the same prompt
	Messages []struct{ Role, Content string }
	Model    string
	N        int
	Max      int // max_tokens
	Raw      map[string]any
	Header   http.Header
	Time     time.Time
	Tokens   int // of the prompt and a good answer
}

// Server answers chat completions, except where Misbehave does.
type Server struct {
	URL string // base URL, with /v1
	Key string // the key that is accepted; "" accepts any

	// Misbehave may answer a call in its own way, and returns whether it has.
	Misbehave func(c Call, w http.ResponseWriter, r *http.Request) bool
	// Answer returns the text of a good answer and its finish_reason; nil is Echo. It must not call
	// the server.
	Answer func(c Call, choice int) (text, finish string)
	// Logprobs returns a choice's logprobs where a call asks for them; nil sends none.
	Logprobs func(c Call, text string) any
	// RequestsPerMinute and TokensPerMinute are limits over any minute, refused with 429 beyond; 0
	// is no limit. Headers sends the limits in each answer's headers.
	RequestsPerMinute, TokensPerMinute float64
	Headers                            bool
	Batch                              BatchRules

	listener net.Listener
	server   *http.Server
	handlers sync.WaitGroup // one for each request in work

	mu       sync.Mutex
	calls    []Call
	before   map[string]int
	answered map[string]int // good answers written in full, by prompt
	inflight int
	closed   bool // no request is taken any more
	// the largest inflight so far
	most    int
	files   map[string]*file
	batches map[string]*batch
}

// Start starts s on a free port.
func Start(s *Server) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.listener = l
	s.URL = "http://" + l.Addr().String() + "/v1"
	s.server = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	go s.server.Serve(l)
	return s, nil
}

func (s *Server) handler() http.Handler {
	s.before, s.answered = map[string]int{}, map[string]int{}
	s.files, s.batches = map[string]*file{}, map[string]*batch{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	s.batchRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		closed := s.closed
		if !closed {
			s.handlers.Add(1)
		}
		s.mu.Unlock()
		if closed {
			panic(http.ErrAbortHandler)
		}
		defer s.handlers.Done()
		mux.ServeHTTP(w, r)
	})
}

// Transport answers a client's requests from s in the same process, without a network, so that a
// test can use a fake clock. An answer takes the time takes.
func Transport(s *Server, takes time.Duration) http.RoundTripper {
	s.URL = "http://127.0.0.1:1/v1" // nobody is asked there
	return transport{s.handler(), takes}
}

type transport struct {
	h     http.Handler
	takes time.Duration
}

// RoundTrip answers a request in the time takes, or returns its context's error.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	t.h.ServeHTTP(w, r)
	select {
	case <-time.After(t.takes):
		return w.Result(), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// Close ends the server and its connections, and waits for what works on a request whose client has
// gone: what Misbehave writes can be read then.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.server.Close()
	s.handlers.Wait()
}

// Echo returns a good answer: a function of the prompt and the choice's number.
func Echo(c Call, choice int) (text, finish string) {
	return fmt.Sprintf("answer %d to %s", choice, c.Prompt), "stop"
}

// InThrees returns logprobs of a text as a server sends them, in tokens of three bytes, which may
// cut characters, with so many alternatives at each position.
func InThrees(text string, others int) any {
	scored := func(s string, p float64) map[string]any {
		b := make([]int, len(s))
		for i := range b {
			b[i] = int(s[i])
		}
		return map[string]any{"token": strings.ToValidUTF8(s, "\\x"), "logprob": p, "bytes": b}
	}
	var content []any
	for at := 0; at < len(text); at += 3 {
		s := text[at:min(at+3, len(text))]
		token, top := scored(s, -.25), []any{scored(s, -.25)}
		for k := range others {
			top = append(top, scored(fmt.Sprint(k), -2-float64(k)))
		}
		token["top_logprobs"] = top
		content = append(content, token)
	}
	return map[string]any{"content": content, "refusal": nil}
}

// Calls returns the requests so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// Answered returns the number of good answers that were written in full, by prompt.
func (s *Server) Answered() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]int{}
	for k, v := range s.answered {
		m[k] = v
	}
	return m
}

// MaxInFlight returns the largest number of calls in work at a time.
func (s *Server) MaxInFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// Peak returns the largest number of calls, and of their tokens, within any time as long as window.
func Peak(calls []Call, window time.Duration) (requests, tokens int) {
	lo, n, sum := 0, 0, 0
	for _, c := range calls {
		n++
		sum += c.Tokens
		for c.Time.Sub(calls[lo].Time) >= window {
			n--
			sum -= calls[lo].Tokens
			lo++
		}
		requests, tokens = max(requests, n), max(tokens, sum)
	}
	return requests, tokens
}

// Tokens returns this server's count of a text's tokens: one per four bytes, rounded up.
func Tokens(text string) int { return int(math.Ceil(float64(len(text)) / 4)) }

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return
	}
	var q struct {
		Model     string
		Messages  []struct{ Role, Content string }
		N         int
		MaxTokens int `json:"max_tokens"`
	}
	if !s.allowed(w, r) {
		return
	}
	if json.Unmarshal(raw, &q) != nil || len(q.Messages) == 0 || q.Model == "" {
		Fail(w, 400, "invalid_request", "the request is no chat completion")
		return
	}
	c := Call{Prompt: q.Messages[len(q.Messages)-1].Content, Messages: q.Messages, Model: q.Model,
		N: max(1, q.N), Max: q.MaxTokens, Header: r.Header.Clone(), Time: time.Now()}
	_ = json.Unmarshal(raw, &c.Raw) // it has been read above
	for _, m := range q.Messages {
		c.Tokens += Tokens(m.Content)
	}
	s.mu.Lock()
	c.Number, c.Before = len(s.calls), s.before[c.Prompt]
	body, tokens := s.completion(&c)
	c.Tokens += tokens
	s.before[c.Prompt]++
	s.calls = append(s.calls, c)
	s.inflight++
	s.most = max(s.most, s.inflight)
	over := s.over(c)
	misbehave := s.Misbehave
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inflight--
		s.mu.Unlock()
	}()
	if s.Headers {
		w.Header().Set("x-ratelimit-limit-requests", fmt.Sprint(s.RequestsPerMinute))
		w.Header().Set("x-ratelimit-limit-tokens", fmt.Sprint(s.TokensPerMinute))
	}
	if over {
		w.Header().Set("Retry-After", "1")
		Fail(w, 429, "rate_limit_exceeded", "over the limit")
		return
	}
	if misbehave != nil && misbehave(c, w, r) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(body); err == nil {
		s.mu.Lock()
		s.answered[c.Prompt]++
		s.mu.Unlock()
	}
}

// allowed reports whether a request has the right key; it answers the others with 401.
func (s *Server) allowed(w http.ResponseWriter, r *http.Request) bool {
	if s.Key != "" && r.Header.Get("Authorization") != "Bearer "+s.Key {
		Fail(w, 401, "invalid_api_key",
			"Incorrect API key provided: "+strings.TrimPrefix(r.Header.Get("Authorization"),
				"Bearer "))
		return false
	}
	return true
}

// over reports whether the calls of the last minute exceed the limits by more than 2 % and one.
func (s *Server) over(c Call) bool {
	if s.RequestsPerMinute == 0 && s.TokensPerMinute == 0 {
		return false
	}
	n, tokens := 0, 0
	for i := len(s.calls) - 1; i >= 0 && c.Time.Sub(s.calls[i].Time) < time.Minute; i-- {
		n++
		tokens += s.calls[i].Tokens
	}
	return s.RequestsPerMinute > 0 && float64(n) > s.RequestsPerMinute*1.02+1 ||
		s.TokensPerMinute > 0 && float64(tokens) > s.TokensPerMinute*1.02+float64(c.Tokens)
}

// completion returns the body of a good answer, and its tokens.
func (s *Server) completion(c *Call) (body []byte, tokens int) {
	answer := s.Answer
	if answer == nil {
		answer = Echo
	}
	var choices []map[string]any
	for i := range c.N {
		text, finish := answer(*c, i)
		n := Tokens(text)
		if c.Max > 0 && n > c.Max {
			text, finish, n = text[:4*c.Max], "length", c.Max
		}
		tokens += n
		ch := map[string]any{"index": i, "finish_reason": finish,
			"message": map[string]any{"role": "assistant", "content": text}}
		if s.Logprobs != nil && c.Raw["logprobs"] == true {
			ch["logprobs"] = s.Logprobs(*c, text)
		}
		choices = append(choices, ch)
	}
	prompt := 0
	for _, m := range c.Messages {
		prompt += Tokens(m.Content)
	}
	body, _ = json.Marshal(map[string]any{"id": "chatcmpl-1", "object": "chat.completion",
		"model": c.Model + "-2026", "choices": choices,
		"usage": map[string]any{"prompt_tokens": prompt, "completion_tokens": tokens,
			"total_tokens": prompt + tokens}})
	return body, tokens
}

// Fail answers with an error in the API's form.
func Fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b, _ := json.Marshal(map[string]any{
		"error": map[string]any{"message": message, "type": "error", "code": code}})
	w.Write(b)
}

// Cut closes the connection in the middle of an answer.
func Cut(w http.ResponseWriter) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	fmt.Fprintf(buf, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"choices\":[{\"mess")
	buf.Flush()
	conn.Close()
}

// HalfJSON sends a truncated JSON answer as if it were complete.
func HalfJSON(w http.ResponseWriter) {
	io.WriteString(w, `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"half an ans`)
}

// WrongTypes are bodies of valid JSON that are not chat completions.
var WrongTypes = []string{
	`[]`, `null`, `"text"`, `42`, `{}`, `{"choices":{}}`, `{"choices":[]}`, `{"choices":[null]}`, `{"choices":["a"]}`,
	`{"choices":[{"message":"text"}]}`, `{"choices":[{"message":{"content":7}}]}`, `{"choices":[{"index":"0","message":{"content":"a"}}]}`,
	`{"choices":[{"message":{}}]}`, `{"choices":[{"message":{"content":null}}]}`, `{"choices":[{"message":{"content":{"text":"a"}}}]}`,
	`{"choices":[{"message":{"content":"half an an"},"finish_reason":"error"}]}`, `{"error":{"message":"no","code":502}}`,
	`{"choices":[{"index":0,"message":{"content":"a"}},{"index":0,"message":{"content":"b"}}]}`,
	`<html>not JSON at all</html>`, ``,
}

// Endless sends a body without end until the client closes the connection or a GiB is sent.
func Endless(w http.ResponseWriter, r *http.Request) (sent int64) {
	io.WriteString(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"`)
	block := []byte(strings.Repeat("a", 1<<20))
	for sent < 1<<30 && r.Context().Err() == nil {
		n, err := w.Write(block)
		sent += int64(n)
		if err != nil {
			break
		}
	}
	return sent
}

// Slowly takes its time for each answer.
func Slowly(pause time.Duration) func(Call, http.ResponseWriter, *http.Request) bool {
	return func(Call, http.ResponseWriter, *http.Request) bool {
		time.Sleep(pause)
		return false
	}
}

// Chaos misbehaves in one call of seven, by its number, in every way; and every 2000 calls
// refuses all for a time.
func Chaos(c Call, w http.ResponseWriter, r *http.Request) bool {
	rnd := rand.New(rand.NewPCG(uint64(c.Number), 7))
	if c.Number%2000 > 1900 {
		w.Header().Set("Retry-After-Ms", "50")
		Fail(w, 429, "rate_limit_exceeded", "a storm")
		return true
	}
	switch x := rnd.IntN(1000); {
	case x < 40:
		w.Header().Set("Retry-After",
			[]string{"soon", "-1", "", "Mon, 02 Jan 2006 15:04:05 GMT"}[x%4])
		w.Header().Set("Retry-After-Ms", "20")
		Fail(w, 429, "rate_limit_exceeded", "slow down")
	case x < 70:
		Fail(w, []int{500, 502, 503, 529, 408, 409}[x%6], "", "trouble")
	case x < 95:
		Cut(w)
	case x < 115:
		HalfJSON(w)
	case x < 135:
		w.Write([]byte(WrongTypes[x%len(WrongTypes)]))
	case x < 145:
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond) // and a good answer
		return false
	case x < 146:
		Endless(w, r)
	default:
		return false
	}
	return true
}
