package serve

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// errGone reports a client that has disconnected.
var errGone = errors.New("the client is gone")

// statusGone is the status in the log and metrics for such a request (nginx's 499).
const statusGone = 499

// quietLog returns a logger that drops net/http's messages about broken clients: they hold bytes
// that the client sent.
func quietLog() *log.Logger { return log.New(io.Discard, "", 0) }

// route is the handler of a path.
type route struct {
	method string
	open   bool // needs no API key
	answer func(s *Server, x *exchange) *apiError
}

// routes lists the handlers by path.
var routes = map[string]route{
	"/health":              {http.MethodGet, true, (*Server).health},
	"/metrics":             {http.MethodGet, false, (*Server).metrics},
	"/v1/models":           {http.MethodGet, false, (*Server).models},
	"/v1/models/{model}":   {http.MethodGet, false, (*Server).model},
	"/tokenizer_info":      {http.MethodGet, false, (*Server).tokenizerInfo},
	"/tokenize":            {http.MethodPost, false, (*Server).tokenize},
	"/detokenize":          {http.MethodPost, false, (*Server).detokenize},
	"/v1/completions":      {http.MethodPost, false, (*Server).completions},
	"/v1/chat/completions": {http.MethodPost, false, (*Server).chat},
}

// modelPath is the path before the name of a model.
const modelPath = "/v1/models/"

// exchange is one request and its answer.
type exchange struct {
	w      http.ResponseWriter
	r      *http.Request
	f      *fields // of the body
	status int
	wrote  bool // the header is sent

	prompt, drawn int // tokens
	first         time.Duration
}

// ServeHTTP answers a request, logs it and counts it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, begun := &exchange{w: w, r: r}, time.Now()
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if s.drains.Load() {
		h.Set("Connection", "close")
	}
	path := r.URL.Path
	if strings.HasPrefix(path, modelPath) {
		path = "/v1/models/{model}"
	}
	to, ok := routes[path]
	if !ok {
		path = "other"
	}
	if err := s.handleRecovering(x, to, ok); err != nil {
		x.fail(err)
	}
	s.meter.request(path, x, time.Since(begun))
	if s.o.Log != nil && path != "/health" && path != "/metrics" {
		s.o.Log(x.line(path, time.Since(begun)))
	}
}

// handleRecovering calls handle and turns a panic into an error of this request alone.
func (s *Server) handleRecovering(x *exchange, to route, known bool) (err *apiError) {
	defer func() {
		if v := recover(); v != nil {
			if s.o.Log != nil {
				s.o.Log(fmt.Sprintf("this is a bug in gad: %v\n%s", v, debug.Stack()))
			}
			err = refuse(http.StatusInternalServerError, "an error of the server: see its log")
			err.Type = "server_error"
		}
	}()
	return s.handle(x, to, known)
}

// line returns the request's line of the log, without any text of the client's.
func (x *exchange) line(path string, took time.Duration) string {
	method := "other"
	if m := x.r.Method; m == http.MethodGet || m == http.MethodPost || m == http.MethodHead ||
		m == http.MethodOptions {
		method = m
	}
	line := fmt.Sprintf("%s %s %d", method, path, x.status)
	if x.prompt+x.drawn > 0 {
		line += fmt.Sprintf(", tokens: %d of prompts, %d of answers", x.prompt, x.drawn)
	}
	if x.first > 0 {
		line += fmt.Sprintf(", first after %.3f s", x.first.Seconds())
	}
	return line + fmt.Sprintf(", took %.3f s, from %s", took.Seconds(), x.r.RemoteAddr)
}

// handle checks a request (host, origin, key, method, load, body) and calls its handler.
func (s *Server) handle(x *exchange, to route, known bool) *apiError {
	r := x.r
	if s.o.Loopback && !localName(r.Host) {
		return refuse(http.StatusForbidden, "the Host header names another machine than this: gad serve listens for this machine alone (--listen)").withCode("host_not_allowed")
	}
	if origin := r.Header.Get("Origin"); origin != "" && s.allows(origin) {
		h := x.w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Add("Vary", "Origin")
		if r.Method == http.MethodOptions && known {
			h.Set("Access-Control-Allow-Methods", to.method+", OPTIONS")
			// clients in browsers send other headers in addition to the two that are read
			h.Set("Access-Control-Allow-Headers",
				cmp.Or(r.Header.Get("Access-Control-Request-Headers"), "Authorization, Content-Type"))
			h.Set("Access-Control-Max-Age", "600")
			return x.write(http.StatusNoContent, nil)
		}
	}
	if s.o.Key != "" && !to.open {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		sum := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(sum[:], s.key[:]) != 1 ||
			!strings.EqualFold(scheme, "Bearer") {
			x.w.Header().Set("WWW-Authenticate", "Bearer")
			return refuse(http.StatusUnauthorized,
				"the API key is missing or wrong: send Authorization: Bearer KEY").withCode(
				"invalid_api_key")
		}
	}
	if !known {
		return refuse(http.StatusNotFound, "there is nothing at this path: %s",
			otherPath(r.URL.Path)).withCode("not_found")
	}
	if r.Method != to.method && !(r.Method == http.MethodHead && to.method == http.MethodGet) {
		x.w.Header().Set("Allow", to.method)
		return refuse(http.StatusMethodNotAllowed, "this path takes %s", to.method)
	}
	if to.method == http.MethodGet {
		return to.answer(s, x)
	}
	// A page in a browser can send a form or text to any address, but JSON only to a
	// server that allows it.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil ||
		kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	if s.drains.Load() {
		x.w.Header().Set("Retry-After", "5")
		return unavailable(errDraining)
	}
	defer s.busy.Add(-1)
	if s.busy.Add(1) > int64(s.o.Slots+s.o.Queue) {
		x.w.Header().Set("Retry-After", "1")
		e := refuse(http.StatusTooManyRequests, "%d requests are under way or wait: try again",
			s.o.Slots+s.o.Queue).withCode("rate_limit_exceeded")
		e.Type = "rate_limit_error"
		return e
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, r.Body, s.o.Body))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", s.o.Body)
	case err != nil:
		return refuse(http.StatusBadRequest, "the body cannot be read")
	}
	f, bad := parse(body)
	if bad != nil {
		return bad
	}
	x.f = f
	var name string
	if f.into("model", "a string", &name) && name != s.o.Name {
		return s.noModel()
	}
	if f.err != nil {
		return f.err
	}
	return to.answer(s, x)
}

// Origin reports whether a text is an origin as browsers send it: a scheme and a host without a
// path, or *.
func Origin(text string) bool {
	u, err := url.Parse(text)
	return text == "*" || err == nil && u.Scheme != "" && u.Host != "" &&
		u.Scheme+"://"+u.Host == text
}

// allows reports whether pages of an origin may read answers.
func (s *Server) allows(origin string) bool {
	return slices.Contains(s.o.Origins, "*") || slices.ContainsFunc(s.o.Origins,
		func(o string) bool { return strings.EqualFold(o, origin) })
}

// otherPath returns advice for a path that has no handler.
func otherPath(path string) string {
	for _, p := range []string{"/v1" + path, strings.TrimPrefix(path, "/v1"),
		strings.TrimSuffix(path, "/")} {
		if _, ok := routes[p]; ok {
			return "try " + p
		}
	}
	return "see doc/serve.md"
}

// noModel returns the refusal of a request for another model.
func (s *Server) noModel() *apiError {
	return refuse(http.StatusNotFound, "model: is not served here: give %q, or leave it out",
		s.o.Name).withParam("model").withCode("model_not_found")
}

// localName reports whether a Host header names this machine itself. Without one the client speaks
// HTTP/1.0, which no browser does.
func localName(host string) bool {
	if host == "" {
		return true
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// unavailable returns an error that the server is to blame for.
func unavailable(err error) *apiError {
	e := refuse(http.StatusServiceUnavailable, "%v", err)
	e.Type = "server_error"
	if !errors.Is(err, errDraining) && !errors.Is(err, errMemory) {
		e.status, e.Message =
			http.StatusInternalServerError, "the model has failed: see the server's log"
	}
	return e
}

// fail sends an error: as the answer, or as the last event of a stream that has begun.
func (x *exchange) fail(e *apiError) {
	body := map[string]any{"error": e}
	if x.wrote {
		x.event(body)
		return
	}
	x.reply(e.status, body)
}

// reply sends an answer of JSON.
func (x *exchange) reply(status int, v any) *apiError {
	raw, err := json.Marshal(v)
	if err != nil {
		raw, status = []byte(`{"error":{"message":"the answer cannot be written","type":"server_error","param":null,"code":null}}`), http.StatusInternalServerError
	}
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	return x.write(status, append(raw, '\n'))
}

// write sends an answer and its status.
func (x *exchange) write(status int, raw []byte) *apiError {
	x.status, x.wrote = status, true
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(writeTime))
	x.w.WriteHeader(status)
	x.w.Write(raw) // an error means a client that is gone
	control.Flush()
	control.SetWriteDeadline(time.Time{})
	return nil
}

// event sends one event of a stream. An error means a client that is gone.
func (x *exchange) event(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return x.data(raw)
}

// data sends the data of an event, after the header if it is the first.
func (x *exchange) data(raw []byte) error {
	control := http.NewResponseController(x.w)
	control.SetWriteDeadline(time.Now().Add(writeTime))
	if !x.wrote {
		x.status, x.wrote = http.StatusOK, true
		x.w.Header().Set("Content-Type", "text/event-stream")
		x.w.WriteHeader(http.StatusOK)
	}
	if _, err := fmt.Fprintf(x.w, "data: %s\n\n", raw); err != nil {
		return err
	}
	err := control.Flush()
	control.SetWriteDeadline(time.Time{})
	return err
}

// health handles /health: status 503 while the server drains or after the engine has failed.
func (s *Server) health(x *exchange) *apiError {
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	switch {
	case s.drains.Load():
		return unavailable(errDraining)
	case stopped != nil:
		return unavailable(stopped)
	}
	return x.reply(http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) metrics(x *exchange) *apiError {
	x.w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	return x.write(http.StatusOK, s.meter.text(s.busy.Load()))
}

func (s *Server) models(x *exchange) *apiError {
	return x.reply(http.StatusOK, map[string]any{"object": "list", "data": []any{s.card()}})
}

func (s *Server) model(x *exchange) *apiError {
	if strings.TrimPrefix(x.r.URL.Path, modelPath) != s.o.Name {
		return s.noModel()
	}
	return x.reply(http.StatusOK, s.card())
}

// card returns the model's entry in the list of models.
func (s *Server) card() map[string]any {
	return map[string]any{"id": s.o.Name, "object": "model", "created": s.created,
		"owned_by": "gad", "max_model_len": s.o.Context}
}

// tokenizerInfo handles /tokenizer_info, which lm-evaluation-harness asks of a remote tokenizer.
func (s *Server) tokenizerInfo(x *exchange) *apiError {
	text := func(v string) any {
		if v == "" {
			return nil
		}
		return v
	}
	eos := s.tok.Named("eos_token")
	if eos == "" {
		eos = string(s.tok.Piece(s.tok.EndOfTurn()))
	}
	return x.reply(http.StatusOK, map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": text(s.tok.Named("bos_token")),
		"eos_token": eos,
		"pad_token": string(s.tok.Piece(s.tok.Pad())), "chat_template": text(s.tok.ChatTemplate()),
		"model_max_length": s.o.Context})
}

// tokenize handles /tokenize: a prompt or messages to token ids.
func (s *Server) tokenize(x *exchange) *apiError {
	f := x.f
	special := true
	asked := f.into("add_special_tokens", "true or false", &special)
	var prompt string
	given := f.into("prompt", "a string", &prompt)
	messages := f.take("messages")
	tools := readTools(f, f.take("tools"))
	if messages != nil && asked && special {
		f.fail("add_special_tokens",
			"the chat template says which tokens are around messages: leave it out, or give false")
	}
	set := ""
	if messages != nil {
		set = variables(f)
	}
	if err := f.rest(); err != nil {
		return err
	}
	encode := s.boundedEncoder(x)
	encode.Most = 0 // a client may want to know how much too long its text is
	var ids []int32
	switch {
	case given == (messages != nil):
		return refuse(http.StatusBadRequest, "prompt: give prompt or messages").withParam("prompt")
	case messages != nil:
		var err *apiError
		if ids, err = s.conversation(messages, tools, set, encode); err != nil {
			return err
		}
	default:
		var err error
		if special {
			ids, err = encode.EncodeSpecial(prompt)
		} else {
			ids, err = encode.Encode(prompt)
		}
		if err != nil {
			return s.encodeError("prompt", err)
		}
	}
	if ids == nil {
		ids = []int32{}
	}
	return x.reply(http.StatusOK,
		map[string]any{"count": len(ids), "max_model_len": s.o.Context, "tokens": ids})
}

// detokenize handles /detokenize: token ids to text.
func (s *Server) detokenize(x *exchange) *apiError {
	var ids []int32
	if raw := x.f.m["tokens"]; string(raw) != "null" && hasNull(raw) { // would be read as token 0
		x.f.fail("tokens", "has a null among the ids")
	}
	if !x.f.into("tokens", "a list of token ids", &ids) && x.f.err == nil {
		x.f.fail("tokens", "is missing")
	}
	for i, id := range ids {
		if id < 0 || int(id) >= s.m.Vocab() {
			x.f.fail("tokens", "token %d: id %d is outside the vocabulary of %d", i, id,
				s.m.Vocab())
		}
	}
	if err := x.f.rest(); err != nil {
		return err
	}
	return x.reply(http.StatusOK, map[string]any{"prompt": s.tok.Decode(ids, false)})
}
