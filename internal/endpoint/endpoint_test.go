package endpoint_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/vfs"
)

const secret = "sk-very-secret-0123456789"

// start runs a server and a client of it.
func start(t *testing.T, s *endpointtest.Server, o endpoint.Options) *endpoint.Client {
	t.Helper()
	if _, err := endpointtest.Start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	o.BaseURL, o.Key = s.URL, secret
	c, err := endpoint.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ask(prompt string) endpoint.Request {
	return endpoint.Request{Model: "teacher",
		Messages: []endpoint.Message{{Role: "user", Content: prompt}}}
}

func TestChat(t *testing.T) {
	s := &endpointtest.Server{Key: secret}
	c := start(t, s, endpoint.Options{})
	r := ask("hello")
	half, seed := 0.5, int64(3)
	r.Temperature, r.TopP, r.Seed, r.MaxTokens, r.N, r.Stop =
		&half, &half, &seed, 4, 2, []string{"\n"}
	r.Extra = map[string]any{"reasoning_effort": "low"}
	a, err := c.Chat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Choices) != 2 || a.Choices[0].Content != "answer 0 to hell" ||
		a.Choices[1].Content != "answer 1 to hell" || a.Choices[0].FinishReason != "length" ||
		a.Usage.CompletionTokens != 8 || a.Model != "teacher-2026" {
		t.Errorf("got %+v", a)
	}
	raw := fmt.Sprint(s.Calls()[0].Raw)
	if want := "map[max_tokens:4 messages:[map[content:hello role:user]] model:teacher n:2 reasoning_effort:low seed:3 stop:[\n] temperature:0.5 top_p:0.5]"; raw != want {
		t.Errorf("the server was sent\n%s, want\n%s", raw, want)
	}
}

// TestMisbehavingServer: what each misdeed becomes, and whether it is tried again.
func TestMisbehavingServer(t *testing.T) {
	t.Parallel()
	type deed = func(c endpointtest.Call, w http.ResponseWriter, r *http.Request)
	fail := func(status int, code string) deed {
		return func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) {
			endpointtest.Fail(w, status, code, "said by the server")
		}
	}
	for _, x := range []struct {
		name  string
		deed  deed
		again bool
		want  string
	}{
		{"429", fail(429, "rate_limit_exceeded"), true,
			"status 429 rate_limit_exceeded: said by the server"},
		{"quota", fail(429, "insufficient_quota"), false,
			"status 429 insufficient_quota: said by the server"},
		{"500", fail(500, ""), true, "status 500: said by the server"},
		{"529", fail(529, "overloaded"), true, "status 529 overloaded: said by the server"},
		{"408", fail(408, ""), true, "status 408: said by the server"},
		{"409", fail(409, ""), true, "status 409: said by the server"},
		{"425", fail(425, ""), true, "status 425: said by the server"},
		{"400", fail(400, "context_length_exceeded"), false,
			"status 400 context_length_exceeded: said by the server"},
		{"401", fail(401, "invalid_api_key"), false, "status 401 invalid_api_key: the key is not accepted: check the key and what it may use"},
		{"404", fail(404, "model_not_found"), false,
			"status 404 model_not_found: said by the server: check the base URL and the model"},
		{"422", fail(422, ""), false, "status 422: said by the server"},
		{"204",
			func(_ endpointtest.Call, w http.ResponseWriter,
				_ *http.Request) {
				w.WriteHeader(204)
			}, true, "status 204: not a chat completion"},
		{"cut",
			func(_ endpointtest.Call, w http.ResponseWriter,
				_ *http.Request) {
				endpointtest.Cut(w)
			}, true, "unexpected EOF"},
		{"half",
			func(_ endpointtest.Call, w http.ResponseWriter,
				_ *http.Request) {
				endpointtest.HalfJSON(w)
			}, true,
			"status 200: not a chat completion: unexpected end of JSON input"},
		{"slow",
			func(_ endpointtest.Call, w http.ResponseWriter,
				r *http.Request) {
				<-r.Context().Done()
			}, true, "no answer within 200ms"},
		{"endless", func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) {
			if sent := endpointtest.Endless(w, r); sent > 100<<20 {
				t.Errorf("the client took %d MB of an answer without end", sent>>20)
			}
		}, true, "the answer has more than 32 MB"},
		{"drop by drop", func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write([]byte(" "))
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, true, "no answer within 300ms"},
		{"bomb", func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(make([]byte, 200<<20))
			z.Close()
		}, true, "the answer has more than 32 MB"},
		{"control", func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) {
			endpointtest.Fail(w, 400, "x", "\x1b[31mred\nline "+strings.Repeat("long ", 100))
		}, false, "status 400 x: [31mred line long long"},
		{"key", func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) {
			endpointtest.Fail(w, 400, secret, "your key is "+secret)
		}, false, "status 400 [key]: your key is [key]"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := &endpointtest.Server{
				Misbehave: func(c endpointtest.Call, w http.ResponseWriter, r *http.Request) bool {
					if c.Number == 0 {
						x.deed(c, w, r)
					}
					return c.Number == 0
				}}
			o := endpoint.Options{}
			switch x.name {
			case "slow":
				o.Timeout = 200 * time.Millisecond
			case "drop by drop":
				o.Timeout = 300 * time.Millisecond
			}
			c := start(t, s, o)
			_, err := c.Try(t.Context(), ask("hello"))
			if err == nil || !strings.Contains(err.Error(), x.want) ||
				strings.Contains(err.Error(), secret) || len(err.Error()) > 400 {
				t.Fatalf("got %v, want %q", err, x.want)
			}
			if endpoint.Transient(err) != x.again {
				t.Errorf("%v: transient is %v", err, !x.again)
			}
			if !x.again {
				return
			}
			if a, err := c.Chat(t.Context(), ask("hello")); err != nil ||
				a.Choices[0].Content != "answer 0 to hello" {
				t.Errorf("another try: %v, %v", a, err)
			}
		})
	}
}

// TestForbidden: 403 is about the key until there has been an answer, and then about the
// prompt.
func TestForbidden(t *testing.T) {
	s := &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Prompt == "bad" {
				endpointtest.Fail(w, 403, "moderation", "flagged")
			}
			return c.Prompt == "bad"
		}}
	c := start(t, s, endpoint.Options{})
	if _, err := c.Try(t.Context(), ask("bad")); !endpoint.Fatal(err) ||
		!strings.HasSuffix(err.Error(),
			"the key is not accepted: check the key and what it may use") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Try(t.Context(), ask("good")); err != nil {
		t.Error(err)
	}
	if _, err := c.Try(t.Context(), ask("bad")); !endpoint.Refused(err) ||
		!strings.HasSuffix(err.Error(), "status 403 moderation: flagged") {
		t.Errorf("got %v", err)
	}
}

func TestWrongTypes(t *testing.T) {
	for _, body := range endpointtest.WrongTypes {
		if a, err := endpoint.ParseAnswer([]byte(body)); err == nil {
			t.Errorf("%s: read as %+v", body, a)
		}
	}
}

// TestRedirect: the key does not go where a server points.
func TestRedirect(t *testing.T) {
	other := &endpointtest.Server{}
	if _, err := endpointtest.Start(other); err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := &endpointtest.Server{
			Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, other.URL+"/chat/completions", status)
				return true
			}}
		c := start(t, s, endpoint.Options{})
		_, err := c.Chat(t.Context(), ask("hello"))
		if err == nil || !endpoint.Fatal(err) ||
			!strings.Contains(err.Error(), "redirects elsewhere") {
			t.Errorf("%d: got %v", status, err)
		}
	}
	if n := len(other.Calls()); n > 0 {
		t.Errorf("the other server was asked %d times", n)
	}
}

// TestTLS: what no other try mends is said at once.
func TestTLS(t *testing.T) {
	plain := httptest.NewServer(nil)
	defer plain.Close()
	own := httptest.NewUnstartedServer(nil)
	own.Config.ErrorLog = log.New(io.Discard, "", 0)
	own.StartTLS()
	defer own.Close()
	for base, want := range map[string]string{
		strings.Replace(plain.URL, "http:", "https:",
			1): ": speaks http and not https: check the base URL",
		own.URL: ": its certificate is not accepted: x509: certificate signed by unknown authority",
	} {
		c, err := endpoint.New(endpoint.Options{BaseURL: base + "/v1", Key: secret})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Chat(t.Context(), ask("a")); err == nil || !endpoint.Fatal(err) ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, x := range []struct {
		o    endpoint.Options
		want string
	}{
		{endpoint.Options{}, "endpoint: no base URL: give the part before /chat/completions, such as https://api.openai.com/v1"},
		{endpoint.Options{BaseURL: "api.openai.com/v1"}, `endpoint: base URL "api.openai.com/v1": must begin with https:// or http://`},
		{endpoint.Options{BaseURL: "ftp://a/v1"}, `endpoint: base URL "ftp://a/v1": must begin with https:// or http://`},
		{endpoint.Options{BaseURL: "https:///v1"}, `endpoint: base URL "https:///v1": has no host`},
		{endpoint.Options{BaseURL: "https://me:" + secret + "@a/v1"}, `endpoint: base URL of host "a" has a user or password in it: give the key in the environment`},
		{endpoint.Options{BaseURL: "me:" + secret + "@a/v1"}, `endpoint: the base URL has an @ in it: give one such as https://api.openai.com/v1, and the key in the environment`},
		{endpoint.Options{BaseURL: "https//me:" + secret + "@a/v1"}, `endpoint: the base URL has an @ in it: give one such as https://api.openai.com/v1, and the key in the environment`},
		{endpoint.Options{BaseURL: "https://a/v1?key=" + secret}, `endpoint: base URL of host "a" has a query or a fragment: give the part before /chat/completions`},
		{endpoint.Options{BaseURL: "https://a/v1/chat/completions"}, `endpoint: base URL "https://a/v1/chat/completions": give the part before /chat/completions`},
		{endpoint.Options{BaseURL: "http://a/v1"}, `endpoint: base URL "http://a/v1": http:// to another machine sends key and prompts as plain text: use https://, or allow it with --insecure-http`},
		{endpoint.Options{BaseURL: "https://a/v1", Key: secret + "\n"},
			"endpoint: the key has spaces, line ends or other characters that no key has"},
		{endpoint.Options{BaseURL: "https://a/v1", Concurrency: 5000},
			"endpoint: concurrency 5000: must be 1 to 4096"},
		{endpoint.Options{BaseURL: "https://a/v1", TokensPerMinute: -1}, "endpoint: 0 requests, -1 tokens, 0 of input and 0 of output per minute: must not be negative"},
	} {
		_, err := endpoint.New(x.o)
		if err == nil || err.Error() != x.want || !errors.Is(err, endpoint.ErrOptions) {
			t.Errorf("got %v, want %s", err, x.want)
		}
	}
	for _, base := range []string{"http://127.0.0.1:1/v1", "http://[::1]:1/v1",
		"http://localhost/v1/", "https://a/v1/"} {
		if _, err := endpoint.New(endpoint.Options{BaseURL: base}); err != nil {
			t.Errorf("%s: %v", base, err)
		}
	}
	if _, err := endpoint.New(
		endpoint.Options{BaseURL: "http://a/v1", InsecureHTTP: true}); err != nil {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	t.Setenv("GAD_TEST_KEY", " "+secret+"\n")
	if key, err := endpoint.KeyFromEnv("GAD_TEST_KEY"); key != secret || err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := endpoint.KeyFromEnv("GAD_TEST_NONE"); err == nil || err.Error() != "endpoint: the environment variable GAD_TEST_NONE is not set: export it with the key of the endpoint" {
		t.Errorf("got %v", err)
	}
	if _, err := endpoint.KeyFromEnv(secret); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("the key given as a name: got %v", err)
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := endpoint.KeyFromFile(vfs.OS, path); err == nil ||
		!strings.Contains(err.Error(), "mode 0644: others can read it: chmod 600") {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := endpoint.KeyFromFile(vfs.OS, path); key != secret || err != nil {
		t.Errorf("got %v", err)
	}
}

// TestEach: an item that fails at first is asked again after the others, one that the
// server refuses is listed, and nothing is asked twice.
func TestEach(t *testing.T) {
	t.Parallel()
	s := &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			switch {
			case c.Prompt == "3" && c.Before < 2:
				endpointtest.Fail(w, 500, "", "try again")
			case c.Prompt == "5":
				endpointtest.Fail(w, 400, "", "not this one")
			case c.Prompt == "7":
				endpointtest.HalfJSON(w)
			default:
				return false
			}
			return true
		}}
	c := start(t, s, endpoint.Options{Concurrency: 4, Retries: 2})
	var done [40]atomic.Int32
	err := c.Each(t.Context(), len(done), func(ctx context.Context, i int) error {
		_, err := c.Try(ctx, ask(fmt.Sprint(i)))
		if err == nil {
			done[i].Add(1)
		}
		return err
	})
	var failures endpoint.Failures
	if !errors.As(err, &failures) || len(failures) != 2 || failures[0].Index != 5 ||
		failures[0].Tries != 1 || failures[1].Index != 7 || failures[1].Tries != 3 {
		t.Fatalf("got %v", err)
	}
	for i := range done {
		if want := int32(1); i != 5 && i != 7 && done[i].Load() != want {
			t.Errorf("item %d was answered %d times", i, done[i].Load())
		}
	}
	if n := s.MaxInFlight(); n > 4 {
		t.Errorf("%d calls at a time", n)
	}
}

// TestUnreadAnswers: an answer that has come and cannot be read is asked for three times,
// since each is paid for; half an answer as often as is allowed.
func TestUnreadAnswers(t *testing.T) {
	for body, want := range map[string]int{
		`{"choices":[{"message":{"content":{"text":"a"}}}]}`:                                        3,
		`{"choices":[{"index":0,"message":{"content":"a"}},{"index":0,"message":{"content":"b"}}]}`: 3,
		`{"choices":[{"message":{"content":"a`:                                                      6,
		`{"choices":[{"message":{"content":"a"},"finish_reason":"error"}]}`:                         6,
		`{"choices":[{"message":{"content":"a"},"finish_reason":"stop","error":{"code":502}}]}`:     6,
	} {
		s := &endpointtest.Server{
			Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				if c.Prompt == "0" {
					fmt.Fprint(w, body)
				}
				return c.Prompt == "0"
			}}
		bubble(t, s, endpoint.Options{Retries: 5}, func(t *testing.T, c *endpoint.Client) {
			err := c.Each(t.Context(), 3, func(ctx context.Context, i int) error {
				_, err := c.Try(ctx, ask(fmt.Sprint(i)))
				return err
			})
			var failures endpoint.Failures
			if !errors.As(err, &failures) || len(failures) != 1 || failures[0].Tries != want ||
				len(s.Calls()) != want+2 {
				t.Errorf("%s: %d calls, %v", body, len(s.Calls()), err)
			}
		})
	}
}

// TestProgress: an item of several requests, each of which fails once, has its tries for each; the
// last, which fails always, uses them up.
func TestProgress(t *testing.T) {
	s := &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			fails := c.Before == 0 || c.Prompt == "9"
			if fails {
				endpointtest.Fail(w, 500, "", "try again")
			}
			return fails
		}}
	bubble(t, s, endpoint.Options{Retries: 2}, func(t *testing.T, c *endpoint.Client) {
		part := 0
		err := c.Each(t.Context(), 1, func(ctx context.Context, _ int) error {
			for before := part; ; part++ {
				if _, err := c.Try(ctx, ask(fmt.Sprint(part))); err != nil && part > before {
					return endpoint.Progress{Err: err}
				} else if err != nil {
					return err
				}
			}
		})
		var failures endpoint.Failures
		if !errors.As(err, &failures) || failures[0].Tries != 3 || part != 9 ||
			len(s.Calls()) != 9*2+3 {
			t.Errorf("part %d, %d calls, %v", part, len(s.Calls()), err)
		}
	})
}

// TestEachStops: no endpoint is asked for ever that cannot answer.
func TestEachStops(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		status int
		most   int // calls
		want   string
	}{
		{"key", 401, 4, "the key is not accepted"},
		{"refused", 400, 24, "no: every request so far was refused"},
		{"down", 500, 200, "no answer for"},
		{"throttled", 429, 200, "no answer for"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := &endpointtest.Server{
				Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
					endpointtest.Fail(w, x.status, "", "no")
					return true
				}}
			c := start(t, s, endpoint.Options{Concurrency: 4, Retries: 3, Patience: time.Second})
			err := c.Each(t.Context(), 10000, func(ctx context.Context, i int) error {
				_, err := c.Try(ctx, ask(fmt.Sprint(i)))
				return err
			})
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v", err)
			}
			if n := len(s.Calls()); n > x.most {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// TestNobodyThere: an endpoint that cannot be reached is given up after 20 seconds, and
// not at the end of a pause after them, with the reason; also where there is one request,
// which would be tried for minutes. Time is the bubble's.
func TestNobodyThere(t *testing.T) {
	s := &endpointtest.Server{}
	if _, err := endpointtest.Start(s); err != nil {
		t.Fatal(err)
	}
	s.Close()
	// One that has answered before is waited for, at a pace that harms nobody.
	synctest.Test(t, func(t *testing.T) {
		c, err := endpoint.New(endpoint.Options{BaseURL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		c.SetProven()
		begin := time.Now()
		var calls atomic.Int32
		err = c.Each(t.Context(), 1000, func(ctx context.Context, i int) error {
			calls.Add(1)
			_, err := c.Try(ctx, ask(fmt.Sprint(i)))
			return err
		})
		if took := time.Since(begin); err == nil || took < 15*time.Minute ||
			took > 17*time.Minute || calls.Load() > 200 {
			t.Errorf("%d calls in %v: %v", calls.Load(), took, err)
		}
	})
	for _, n := range []int{1, 1000} {
		for _, concurrency := range []int{1, 16} {
			synctest.Test(t, func(t *testing.T) {
				c, err := endpoint.New(endpoint.Options{BaseURL: s.URL, Concurrency: concurrency})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err = c.Each(t.Context(), n, func(ctx context.Context, i int) error {
					_, err := c.Try(ctx, ask(fmt.Sprint(i)))
					return err
				})
				if took := time.Since(begin); took != 20*time.Second {
					t.Errorf("%d requests, %d at a time: given up after %v", n, concurrency, took)
				}
				if err == nil || !strings.HasSuffix(err.Error(), ": cannot connect: connection refused: no answer for 20s: check the base URL, or run the same command later") {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// An answer is not waited for after Until, although Each lets those that were sent come in.
func TestUntil(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	s := &endpointtest.Server{Misbehave: func(endpointtest.Call, http.ResponseWriter,
		*http.Request) bool {
		<-end
		return false
	}}
	defer close(end)
	begun := time.Now()
	until := begun.Add(300 * time.Millisecond)
	c := start(t, s, endpoint.Options{Until: until})
	ctx, cancel := context.WithDeadline(t.Context(), until)
	defer cancel()
	err := c.Each(ctx, 3, func(ctx context.Context, _ int) error {
		_, err := c.Try(ctx, ask("hello"))
		return err
	})
	if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) ||
		took < 300*time.Millisecond {
		t.Errorf("%v after %v", err, took)
	}
	if _, err := c.Try(t.Context(), ask("hello")); !endpoint.Transient(err) ||
		!strings.HasSuffix(err.Error(), ": no answer in time") {
		t.Errorf("behind the time: %v", err)
	}
}
