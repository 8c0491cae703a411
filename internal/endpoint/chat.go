package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gad/internal/chat"
)

// Message is a turn of a conversation. A server gets neither thoughts nor marks for learning.
type Message = chat.Message

// Request is a chat completion's request. Fields that are nil or zero are not sent: the server's
// default holds.
type Request struct {
	Model       string
	Messages    []Message
	Temperature *float64
	TopP        *float64
	MaxTokens   int
	N           int
	Seed        *int64
	Stop        []string
	TopLogprobs int            // tokens scored at each position of the answer; 0 is none
	Extra       map[string]any // further fields, by name; they win over those above
}

// body returns the request's JSON. Equal requests have equal bytes.
func (r Request) body() ([]byte, error) {
	var messages []Message
	for _, m := range r.Messages {
		messages = append(messages, m.Heard())
	}
	m := map[string]any{"model": r.Model, "messages": messages}
	if r.Temperature != nil {
		m["temperature"] = *r.Temperature
	}
	if r.TopP != nil {
		m["top_p"] = *r.TopP
	}
	if r.MaxTokens > 0 {
		m["max_tokens"] = r.MaxTokens
	}
	if r.N > 1 {
		m["n"] = r.N
	}
	if r.Seed != nil {
		m["seed"] = *r.Seed
	}
	if len(r.Stop) > 0 {
		m["stop"] = r.Stop
	}
	if r.TopLogprobs > 0 {
		m["logprobs"], m["top_logprobs"] = true, r.TopLogprobs
	}
	maps.Copy(m, r.Extra)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(m)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

// Choice is one answer.
type Choice struct {
	Content string `json:"content"`
	// the reasoning before the answer, if the server sends it
	Thinking  string          `json:"reasoning_content,omitempty"`
	ToolCalls json.RawMessage `json:"tool_calls,omitempty"`
	Refusal   string          `json:"refusal,omitempty"` // the model's words for not answering
	// stop, length, content_filter, ...; "" if not sent
	FinishReason string `json:"finish_reason"`
	// log-probabilities of the answer's tokens as the server gives them: data.ReadLogprobs; nil is
	// none
	Logprobs json.RawMessage `json:"logprobs,omitempty"`
}

// Usage is the server's count of tokens; all zero if it sends none.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	CachedTokens     int `json:"cached_tokens,omitempty"` // of PromptTokens, from a cache
}

// Answer is the reply to a request.
type Answer struct {
	Choices []Choice `json:"choices"` // by index
	Usage   Usage    `json:"usage"`
	Model   string   `json:"model"` // the server's name for it
	ID      string   `json:"id"`
}

// maxAnswer bounds the body of an answer.
const maxAnswer = 32 << 20

// Error is a try that failed.
type Error struct {
	Host   string
	Status int    // of HTTP; 0 without an answer
	Code   string // the server's name for it
	Text   string
	Wait   time.Duration // the pause that the server asks for, 0 for none
	kind   kind
	slow   bool // no answer in time: the endpoint is overloaded
	nobody bool // no connection could be made
	unread bool // an answer came, and was paid for, that cannot be parsed
}

type kind int

const (
	refused   kind = iota // of this request: asking again brings the same
	transient             // another try may succeed
	throttled             // transient, and the endpoint wants less
	fatal                 // no request to this endpoint can succeed
)

func (e *Error) Error() string {
	s := "endpoint: " + e.Host
	if e.Status > 0 {
		s += fmt.Sprintf(": status %d", e.Status)
	}
	if e.Code != "" {
		s += " " + e.Code
	}
	return s + ": " + e.Text
}

// Transient reports whether another try may succeed.
func Transient(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.kind == transient || e.kind == throttled)
}

// Throttled reports whether the endpoint asks for fewer requests.
func Throttled(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.kind == throttled
}

// Fatal reports whether no request to this endpoint can succeed: a wrong key, no such model.
func Fatal(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.kind == fatal
}

// Refused reports whether this request failed while others may succeed: the server refuses it, or
// its tries are used up.
func Refused(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.kind == refused || errors.As(err, new(final))
}

// Chat tries until there is an answer, the request is refused or the tries are used up. For several
// requests use Each with Try, which paces their retries together.
func (c *Client) Chat(ctx context.Context, r Request) (*Answer, error) {
	for try := 0; ; try++ {
		a, err := c.Try(ctx, r)
		if err == nil || !Transient(err) {
			return a, err
		}
		if try >= c.o.Retries {
			return nil, fmt.Errorf("%w: given up after %d tries", final{err}, try+1)
		}
		if err := sleep(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

// final is an error that is not retried any more.
type final struct{ err error }

func (f final) Error() string { return f.err.Error() }

// Try sends a request once, as soon as the endpoint's pace allows. A Transient error has slowed the
// pace.
func (c *Client) Try(ctx context.Context, r Request) (*Answer, error) {
	body, err := r.body()
	if err != nil {
		return nil, fmt.Errorf("endpoint: request: %w", err)
	}
	pass, err := c.gate.enter(ctx, r)
	if err != nil {
		return nil, err
	}
	sending := ctx
	if ctx.Value(drain{}) != nil {
		sending = context.WithoutCancel(ctx) // it is being paid for
	}
	resp, err := c.send(sending, http.MethodPost, "/chat/completions", "application/json",
		bytes.NewReader(body), maxAnswer)
	var a *Answer
	if err == nil {
		a, err = c.parse(resp.body)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	var e *Error
	errors.As(err, &e)
	c.gate.leave(pass, resp, a, e)
	if err != nil {
		return nil, err
	}
	c.gate.proven.Store(true)
	return a, nil
}

// response is an HTTP answer, read in full.
type response struct {
	header http.Header
	body   []byte
}

// send makes one call and reads its answer of at most limit bytes. Any status but 200 is an *Error.
func (c *Client) send(ctx context.Context, method, path, contentType string, body io.Reader,
	limit int64) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	if !c.o.Until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, c.o.Until)
		defer cancel()
	}
	resp, err := c.open(ctx, method, path, contentType, body)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	r := response{header: resp.Header, body: raw}
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated:
		return r, c.statusError(resp, raw)
	case err != nil:
		return r, c.connectionError(ctx, err)
	case int64(len(raw)) > limit:
		return r, c.failure(transient, resp.StatusCode, "",
			fmt.Sprintf("the answer has more than %d MB", limit>>20))
	}
	return r, nil
}

// open makes one call. Its answer may have any status; the caller closes the body.
func (c *Client) open(ctx context.Context, method, path, contentType string,
	body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return nil, c.failure(fatal, 0, "", "request cannot be made")
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "gad")
	if c.o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.connectionError(ctx, err)
	}
	return resp, nil
}

func (c *Client) failure(k kind, status int, code, text string) *Error {
	return &Error{Host: c.base.Host, Status: status, Code: code, Text: text, kind: k}
}

// connectionError returns the *Error for a call without an answer.
func (c *Client) connectionError(ctx context.Context, err error) *Error {
	if ctx.Err() == context.DeadlineExceeded {
		e := c.failure(transient, 0, "", fmt.Sprintf("no answer within %v", c.o.Timeout))
		if until := c.o.Until; !until.IsZero() && !time.Now().Before(until) {
			e.Text = "no answer in time"
		}
		e.slow = true
		return e
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // without the URL, which is known
	}
	if bad := (*tls.CertificateVerificationError)(nil); errors.As(err, &bad) {
		return c.failure(fatal, 0, "", "its certificate is not accepted: "+c.clean(bad.Err.Error()))
	}
	// net/http has no name for it
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return c.failure(fatal, 0, "", "speaks http and not https: check the base URL")
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "proxyconnect" {
		e := c.failure(transient, 0, "",
			"cannot connect to the proxy of the environment: "+c.clean(op.Err.Error()))
		e.nobody = true
		return e
	} else if op != nil && op.Op == "dial" {
		if err = op.Err; errors.As(err, new(*os.SyscallError)) {
			err = errors.Unwrap(err)
		}
		e := c.failure(transient, 0, "", "cannot connect: "+c.clean(err.Error()))
		e.nobody = true
		return e
	}
	return c.failure(transient, 0, "", c.clean(err.Error()))
}

// errorText reads a server's error: OpenAI's form {"error": {...}}, an error that is text, or a
// top-level message or detail, as vLLM and FastAPI write them. All results are "" for another body.
func errorText(raw []byte) (text, code, kind string) {
	var body struct {
		Error           json.RawMessage
		Message, Detail any
	}
	_ = json.Unmarshal(raw, &body) // a body that is not JSON has no message
	var e struct{ Message, Type, Code any }
	if json.Unmarshal(body.Error, &e) != nil {
		_ = json.Unmarshal(body.Error, &e.Message)
	}
	for _, x := range []any{e.Message, body.Message, body.Detail} {
		if s, ok := x.(string); ok && text == "" {
			text = s
		}
	}
	code, _ = e.Code.(string)
	kind, _ = e.Type.(string)
	return text, code, kind
}

// statusError returns the *Error for an answer whose status is not 200, or without a completion.
func (c *Client) statusError(resp *http.Response, raw []byte) *Error {
	text, code, kind := errorText(raw)
	if text, code = c.clean(text), c.clean(code); text == "" {
		text = strings.ToLower(http.StatusText(resp.StatusCode))
	}
	e := c.failure(refused, resp.StatusCode, code, text)
	switch s := resp.StatusCode; {
	case s == http.StatusForbidden && c.gate.proven.Load():
		// The key is good: a moderator forbids this prompt.
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		e.kind, e.Text = fatal, "the key is not accepted: check the key and what it may use"
		if c.o.Key == "" {
			e.Text = "the endpoint wants a key"
		}
	case s >= 300 && s < 400:
		e.kind, e.Text = fatal, "the endpoint redirects elsewhere, which is not followed: give the URL that it redirects to as base URL"
	case s == http.StatusNotFound || s == http.StatusMethodNotAllowed:
		e.kind, e.Text = fatal, text+": check the base URL and the model"
		if c.base.Path == "" && code != "model_not_found" {
			e.Text = fmt.Sprintf("%s: most base URLs end in /v1: try %s/v1", text, c.base)
		}
	case s == http.StatusPaymentRequired, s == http.StatusTooManyRequests &&
		(code == "insufficient_quota" || kind == "insufficient_quota"):
		e.kind = fatal
	case s == http.StatusTooManyRequests || s == http.StatusServiceUnavailable || s == 529:
		e.kind = throttled
	case s == http.StatusRequestTimeout || s == http.StatusConflict || s == http.StatusTooEarly ||
		s >= 500:
		e.kind, e.slow = transient, s == http.StatusGatewayTimeout
	case s >= 200 && s < 300:
		e.kind, e.Text = transient, "not a chat completion"
	}
	if e.kind == throttled || e.kind == transient {
		e.Wait = retryAfter(resp.Header.Get("Retry-After"), serverTime(resp.Header, time.Now()))
		if ms, err := strconv.ParseFloat(resp.Header.Get("Retry-After-Ms"), 64); err == nil &&
			ms > 0 && ms < 1e9 {
			e.Wait = time.Duration(ms * float64(time.Millisecond))
		}
	}
	return e
}

// maxRetryAfter bounds the pause that a server may ask for; a longer one is ignored.
const maxRetryAfter = 24 * time.Hour

// validPause returns a server's pause in seconds as a duration; 0 if it is negative or longer than
// maxRetryAfter.
func validPause(seconds float64) time.Duration {
	if seconds > 0 && seconds <= maxRetryAfter.Seconds() {
		return time.Duration(seconds * float64(time.Second))
	}
	return 0
}

// retryAfter parses a Retry-After header, seconds or a date; anything else, or a past date, is 0.
func retryAfter(s string, now time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if x, err := strconv.ParseFloat(s, 64); err == nil {
		return validPause(x)
	}
	if t, err := http.ParseTime(s); err == nil {
		return validPause(t.Sub(now).Seconds())
	}
	return 0
}

// parse parses a chat completion. A body that cannot be parsed, such as a proxy's page or half an
// answer, is a transient error.
func (c *Client) parse(raw []byte) (*Answer, error) {
	a, err := ParseAnswer(raw)
	if err != nil {
		e := c.failure(transient, http.StatusOK, "", c.clean(err.Error()))
		e.unread = errors.As(err, new(unread))
		return nil, e
	}
	return a, nil
}

// unread is the error for an answer that came and cannot be parsed.
type unread struct{ error }

// maxChoices bounds the choices of an answer, and with them the memory that decoding 32 MB takes.
// They are counted by the bytes "message": inside a JSON string the quotes would have backslashes.
const maxChoices = 4096

// ParseAnswer parses a chat completion, as an HTTP body or a batch's output line holds it. It is
// lenient about everything but the text, which has been paid for: content may be an array of parts,
// indices may be missing, and malformed usage counts as none.
func ParseAnswer(raw []byte) (*Answer, error) {
	if n := bytes.Count(raw, []byte(`"message"`)); n > maxChoices {
		return nil, fmt.Errorf("not a chat completion: %d choices: more than %d", n, maxChoices)
	}
	var body struct {
		ID, Model any
		Choices   []choice
		Usage     json.RawMessage
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, fmt.Errorf("not a chat completion: %w", err)
	}
	if len(body.Choices) == 0 {
		if text, _, _ := errorText(raw); text != "" {
			return nil, fmt.Errorf("not a chat completion: %s", text)
		}
		return nil, errors.New("not a chat completion: it has no choices")
	}
	a := &Answer{Usage: usage(body.Usage)}
	a.ID, _ = body.ID.(string)
	a.Model, _ = body.Model.(string)
	// else in their order in the body
	if !slices.ContainsFunc(body.Choices, func(ch choice) bool { return ch.Index == nil }) {
		slices.SortStableFunc(body.Choices,
			func(x, y choice) int { return cmp.Compare(*x.Index, *y.Index) })
	}
	for i, ch := range body.Choices {
		if i > 0 && ch.Index != nil && body.Choices[i-1].Index != nil &&
			*ch.Index == *body.Choices[i-1].Index {
			return nil,
				unread{fmt.Errorf("not a chat completion: choice %v comes twice", *ch.Index)}
		}
		out, err := ch.read()
		if err != nil {
			return nil, fmt.Errorf("not a chat completion: choice %d %w", i, err)
		}
		a.Choices = append(a.Choices, out)
	}
	return a, nil
}

// choice is an answer as the API sends it.
type choice struct {
	Index   *float64
	Message *struct {
		Content   *json.RawMessage // nil for null
		Refusal   *string
		Thinking  json.RawMessage `json:"reasoning_content"` // DeepSeek's name, and vLLM's of before
		Reasoning json.RawMessage // vLLM's and OpenRouter's
		Details   json.RawMessage `json:"reasoning_details"` // MiniMax's
		ToolCalls json.RawMessage `json:"tool_calls"`
	}
	FinishReason *string `json:"finish_reason"`
	Logprobs     json.RawMessage
	Error        json.RawMessage
}

// read converts a choice. A choice that a router marks as failed ("finish_reason": "error", or an
// error beside the message) is an error.
func (ch choice) read() (out Choice, err error) {
	if ch.FinishReason != nil {
		out.FinishReason = *ch.FinishReason
	}
	if ch.Message == nil || ch.Message.Content == nil && ch.Message.Refusal == nil &&
		ch.FinishReason == nil {
		return out, errors.New("has no message")
	}
	if len(ch.Error) > 0 && ch.Error[0] != 'n' {
		return out, errors.New("has failed: it has an error beside its message")
	}
	if out.FinishReason == "error" {
		return out, errors.New(`has failed: its finish_reason is "error"`)
	}
	if ch.Message.Refusal != nil {
		out.Refusal = *ch.Message.Refusal
	}
	for _, raw := range []json.RawMessage{ch.Message.Thinking, ch.Message.Reasoning} {
		if out.Thinking == "" && raw != nil {
			_ = json.Unmarshal(raw, &out.Thinking) // of another type it is no text
		}
	}
	if out.Thinking == "" {
		var parts []struct{ Text, Summary string }
		_ = json.Unmarshal(ch.Message.Details, &parts) // of another type they are no text
		for _, part := range parts {
			out.Thinking += part.Text + part.Summary
		}
	}
	if calls := ch.Message.ToolCalls; len(calls) > 0 && calls[0] == '[' &&
		len(bytes.TrimSpace(calls[1:len(calls)-1])) > 0 {
		out.ToolCalls = calls
	}
	if len(ch.Logprobs) > 0 && ch.Logprobs[0] != 'n' {
		out.Logprobs = ch.Logprobs
	}
	if content := ch.Message.Content; content != nil {
		out.Content, err = contentText(*content)
	}
	return out, err
}

// contentText returns the text of a content: a string, or the text parts of an array; other parts
// are thoughts or references.
func contentText(raw json.RawMessage) (text string, err error) {
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string
		Text *string
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", unread{errors.New("has a content that is no text")}
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Text != nil && (p.Type == "text" || p.Type == "output_text" || p.Type == "") {
			b.WriteString(*p.Text)
		}
	}
	return b.String(), nil
}

// maxCount bounds the tokens that a server can have counted.
const maxCount = 1e8

// usage parses a server's count. If the total exceeds prompt plus answer, the rest are reasoning
// tokens, which some servers count separately and which cost as much as an answer's.
func usage(raw json.RawMessage) (u Usage) {
	var counted struct {
		Prompt float64 `json:"prompt_tokens"`
		Answer float64 `json:"completion_tokens"`
		Total  float64 `json:"total_tokens"`
		Hits   float64 `json:"prompt_cache_hit_tokens"` // DeepSeek's
		Of     struct {
			Cached float64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	if json.Unmarshal(raw, &counted) != nil {
		return u
	}
	prompt, answer := counted.Prompt, max(counted.Answer, counted.Total-counted.Prompt)
	if !(prompt >= 0 && prompt <= maxCount && counted.Answer >= 0 && answer <= maxCount) {
		return u
	}
	return Usage{int(prompt), int(answer),
		int(min(max(counted.Of.Cached, counted.Hits, 0), prompt))}
}

// sleep waits for d, or returns the context's error once that ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxCall bounds the answer to Call: the scores of a long text with their alternatives.
const maxCall = 256 << 20

// Call makes one call and decodes its JSON answer into out. It retries transient errors up to
// retries times. A nil in sends no body.
func (c *Client) Call(ctx context.Context, method, path string, in, out any, retries int) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("endpoint: request: %w", err)
		}
	}
	sent := ctx
	if ctx.Value(drain{}) != nil {
		sent = context.WithoutCancel(ctx)
	}
	for try := 0; ; try++ {
		resp, err := c.send(sent, method, path, "application/json", bytes.NewReader(body), maxCall)
		if err == nil {
			retries = min(retries, maxUnread-1)
			if err = json.Unmarshal(resp.body, out); err == nil {
				return nil
			}
			err = c.failure(transient, http.StatusOK, "",
				c.clean("the answer is not JSON: "+err.Error()))
		}
		if ctx.Err() != nil || !Transient(err) {
			return first(ctx.Err(), err)
		}
		if try >= retries {
			return fmt.Errorf("%w: given up after %d tries", err, try+1)
		}
		c.reportRetry(err, try+2, retries+1)
		if err := sleep(ctx, max(backoff(try), serverWait(err))); err != nil {
			return err
		}
	}
}

// reportRetry prints why a call is retried, at most once in half a minute over all calls.
func (c *Client) reportRetry(err error, try, tries int) {
	now, was := time.Now().Unix(), c.lastReport.Load()
	if now-was >= 30 && c.lastReport.CompareAndSwap(was, now) {
		c.o.Say("%v: trying again, try %d of %d", err, try, tries)
	}
}
