package endpoint_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
)

// askAll asks for so many prompts of equal length.
func askAll(t *testing.T, c *endpoint.Client, n int, r func(i int) endpoint.Request) {
	t.Helper()
	err := c.Each(t.Context(), n, func(ctx context.Context, i int) error {
		_, err := c.Try(ctx, r(i))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// bubble runs a test with a client and a server that share a time of their own: what is
// measured is exact, and takes no time.
func bubble(t *testing.T, s *endpointtest.Server, o endpoint.Options,
	f func(t *testing.T, c *endpoint.Client)) {
	synctest.Test(t, func(t *testing.T) {
		transport := endpointtest.Transport(s, 100*time.Millisecond)
		o.BaseURL = s.URL
		c, err := endpoint.New(o)
		if err != nil {
			t.Fatal(err)
		}
		endpoint.SetTransport(c, transport)
		f(t, c)
	})
}

// TestLimits: requests and tokens a minute are kept over any minute, but for slack of
// 50 and 600 ms (0.1 and 1 %), and used to at least 98 % of what is allowed, whether the
// user gives them or the headers do.
func TestLimits(t *testing.T) {
	t.Parallel()
	const asked = 3600 // more than a minute's
	for _, x := range []struct {
		name    string
		o       endpoint.Options
		headers bool
	}{
		{"requests", endpoint.Options{RequestsPerMinute: 3000}, false},
		{"tokens", endpoint.Options{TokensPerMinute: 30000}, false},
		{"both", endpoint.Options{RequestsPerMinute: 3000, TokensPerMinute: 30000}, false},
		{"headers", endpoint.Options{}, true},
	} {
		if testing.Short() && x.name != "both" {
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			s := &endpointtest.Server{RequestsPerMinute: 3000, TokensPerMinute: 30000,
				Headers: x.headers}
			if x.name == "requests" {
				s.TokensPerMinute = 0
			}
			x.o.Concurrency = 32
			bubble(t, s, x.o, func(t *testing.T, c *endpoint.Client) {
				begin := time.Now()
				// 5 tokens, and 8 of the answer
				askAll(t, c, asked,
					func(i int) endpoint.Request { return ask(fmt.Sprintf("%020d", i)) })
				took := time.Since(begin)
				calls := s.Calls()
				total := 0
				for _, c := range calls {
					total += c.Tokens
				}
				requests, tokens := endpointtest.Peak(calls, time.Minute)
				t.Logf("%d calls, %d tokens in %v: at most %d and %d in a minute", len(calls),
					total, took, requests, tokens)
				early := 0 // before the first answer nothing is known of limits
				if x.headers {
					early = 8
				}
				if requests > 3000+3+early {
					t.Errorf("%d requests in a minute, 3000 are allowed", requests)
				}
				if x.name != "requests" && tokens > 30600 {
					t.Errorf("%d tokens in a minute, 30000 are allowed, and 2 %% more", tokens)
				}
				allowed := asked * time.Minute / 3000
				if x.name != "requests" {
					allowed = time.Duration(total) * time.Minute / 30000
				}
				if took > allowed*100/98 {
					t.Errorf("took %v, the limits allow %v", took, allowed)
				}
				if len(calls) != asked {
					t.Errorf("%d calls", len(calls))
				}
			})
		})
	}
}

// TestEstimate: answers that are shorter than their limit are found out, and the pace is
// that of their real length.
func TestEstimate(t *testing.T) {
	bubble(t, &endpointtest.Server{}, endpoint.Options{Concurrency: 8, TokensPerMinute: 60000},
		func(t *testing.T, c *endpoint.Client) {
			begin := time.Now()
			askAll(t, c, 300, func(i int) endpoint.Request {
				r := ask(fmt.Sprintf("%020d", i))
				r.MaxTokens = 1000
				return r
			})
			// 300 requests of 13 tokens are 3.9 s at that pace; by their limits they would be 300
			// s.
			if took := time.Since(begin); took > 6*time.Second {
				t.Errorf("took %v", took)
			}
		})
}

// TestEarlier: what earlier answers measured is known from the first request on, also
// while every request fails.
func TestEarlier(t *testing.T) {
	s := &endpointtest.Server{
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if c.Number < 40 {
				w.Header().Set("Retry-After-Ms", "1")
				endpointtest.Fail(w, 429, "", "a storm")
			}
			return c.Number < 40
		}}
	bubble(t, s, endpoint.Options{Concurrency: 8, TokensPerMinute: 30000, Retries: 50},
		func(t *testing.T, c *endpoint.Client) {
			c.Calibrate(2400, 500, 100, 900)
			begin := time.Now()
			askAll(t, c, 10, func(i int) endpoint.Request { return ask(fmt.Sprintf("%020d", i)) })
			// 50 requests of 14 tokens are 1.4 s at that pace, and the pauses of an item that fails
			// four times 7.5 s; by the first guess they would be 26 s.
			if took := time.Since(begin); took > 10*time.Second || len(s.Calls()) != 50 {
				t.Errorf("took %v, %d calls", took, len(s.Calls()))
			}
		})
}

// TestCoolDown: what one request is told to wait, all wait; in seconds, as a date, and in
// milliseconds. What is no such wish is not obeyed.
func TestCoolDown(t *testing.T) {
	for _, x := range []struct {
		name   string
		header func(h http.Header)
		least  time.Duration
		most   time.Duration
	}{
		{"seconds", func(h http.Header) { h.Set("Retry-After", "1") }, time.Second, time.Second},
		{"date", func(h http.Header) {
			h.Set("Retry-After", time.Now().Add(2*time.Second).UTC().Format(http.TimeFormat))
		}, time.Second, 2 * time.Second},
		{"date by another clock", func(h http.Header) {
			h.Set("Date", time.Now().Add(3*time.Hour).UTC().Format(http.TimeFormat))
			h.Set("Retry-After", time.Now().Add(3*time.Hour+time.Second).UTC().Format(
				http.TimeFormat))
		}, time.Second, time.Second},
		{"milliseconds", func(h http.Header) { h.Set("Retry-After-Ms", "800") },
			800 * time.Millisecond, 800 * time.Millisecond},
		{"remaining", func(h http.Header) {
			h.Set("x-ratelimit-remaining-tokens", "0")
			h.Set("x-ratelimit-reset-tokens", "1.2s")
		}, 1200 * time.Millisecond, 1200 * time.Millisecond},
		{"remaining, seconds", func(h http.Header) {
			h.Set("x-ratelimit-remaining-tokens-minute", "0")
			h.Set("x-ratelimit-reset-tokens-minute", "1.2")
		}, 1200 * time.Millisecond, 1200 * time.Millisecond},
		{"remaining, date", func(h http.Header) {
			h.Set("Date", time.Now().Add(-3*time.Hour).UTC().Format(http.TimeFormat))
			h.Set("anthropic-ratelimit-output-tokens-remaining", "0")
			h.Set("anthropic-ratelimit-output-tokens-reset",
				time.Now().Add(-3*time.Hour+time.Second).UTC().Format(time.RFC3339))
		}, time.Second, time.Second},
		{"remaining, but Retry-After says better", func(h http.Header) {
			h.Set("Retry-After", "1")
			h.Set("anthropic-ratelimit-input-tokens-remaining", "0")
			h.Set("anthropic-ratelimit-input-tokens-reset",
				time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}, time.Second, time.Second},
		{"nonsense", func(h http.Header) { h.Set("Retry-After", "soon") }, 375 * time.Millisecond,
			500 * time.Millisecond},
		{"negative", func(h http.Header) { h.Set("Retry-After", "-5") }, 375 * time.Millisecond,
			500 * time.Millisecond},
		{"past", func(h http.Header) { h.Set("Retry-After", "Fri, 31 Dec 1999 15:04:05 GMT") },
			375 * time.Millisecond, 500 * time.Millisecond},
		{"never", func(h http.Header) { h.Set("Retry-After", "1e300") }, 375 * time.Millisecond,
			500 * time.Millisecond},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := &endpointtest.Server{
				Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
					if c.Number == 20 {
						x.header(w.Header())
						endpointtest.Fail(w, 429, "", "slow down")
					}
					return c.Number == 20
				}}
			bubble(t, s, endpoint.Options{Concurrency: 8}, func(t *testing.T, c *endpoint.Client) {
				askAll(t, c, 100, func(i int) endpoint.Request { return ask(fmt.Sprint(i)) })
				calls := s.Calls()
				longest, at := time.Duration(0), 0
				for i := 1; i < len(calls); i++ {
					if d := calls[i].Time.Sub(calls[i-1].Time); d > longest {
						longest, at = d, i
					}
				}
				// The refusal takes 100 ms to come back, in which others may be sent.
				if longest < x.least || longest > x.most+100*time.Millisecond || at < 21 ||
					len(calls) != 101 {
					t.Errorf("%d calls, the longest pause is %v before call %d", len(calls),
						longest, at)
				}
			})
		})
	}
}

// TestStorm: an endpoint that takes three calls at a time and refuses the others is
// found out: few calls are wasted, and all are answered.
func TestStorm(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{}, 3)
	s := &endpointtest.Server{
		Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			select {
			case gate <- struct{}{}:
				time.Sleep(2 * time.Millisecond)
				<-gate
				return false
			default:
				w.Header().Set("Retry-After-Ms", "20")
				endpointtest.Fail(w, 429, "", "too many at a time")
				return true
			}
		}}
	c := start(t, s, endpoint.Options{Concurrency: 64})
	askAll(t, c, 600, func(i int) endpoint.Request { return ask(fmt.Sprint(i)) })
	if n := len(s.Calls()); n > 900 {
		t.Errorf("%d calls for 600 answers", n)
	}
	for prompt, n := range s.Answered() {
		if n != 1 {
			t.Errorf("prompt %s was answered %d times", prompt, n)
		}
	}
	if n := len(s.Answered()); n != 600 {
		t.Errorf("%d answers", n)
	}
}

// TestRestarts: a program that is killed again and again does not ask more than it may.
func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &endpointtest.Server{}
		transport := endpointtest.Transport(s, time.Millisecond)
		begin := time.Now()
		for n := 0; time.Since(begin) < 2*time.Second; n++ {
			ctx, stop := context.WithTimeout(t.Context(), 130*time.Millisecond)
			c, err := endpoint.New(endpoint.Options{BaseURL: s.URL, RequestsPerMinute: 1200,
				TokensPerMinute: 1e6, Concurrency: 8})
			if err != nil {
				t.Fatal(err)
			}
			endpoint.SetTransport(c, transport)
			_ = c.Each(ctx, 1000, func(ctx context.Context, i int) error { // it is stopped, always
				_, err := c.Try(ctx, ask(fmt.Sprint(n, i)))
				return err
			})
			stop()
		}
		if requests, _ := endpointtest.Peak(s.Calls(), time.Second); requests > 22 ||
			requests < 10 {
			t.Errorf("%d requests in a second, 20 are allowed", requests)
		}
	})
}

// TestChatGivesUp after its tries, and its error is no longer one to try again.
func TestChatGivesUp(t *testing.T) {
	t.Parallel()
	s := &endpointtest.Server{
		Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			endpointtest.HalfJSON(w)
			return true
		}}
	c := start(t, s, endpoint.Options{Retries: 1})
	_, err := c.Chat(t.Context(), ask("a"))
	if err == nil || !strings.HasSuffix(err.Error(),
		"not a chat completion: unexpected end of JSON input: given up after 2 tries") ||
		endpoint.Transient(err) || !endpoint.Refused(err) {
		t.Errorf("got %v", err)
	}
	if n := len(s.Calls()); n != 2 {
		t.Errorf("%d calls", n)
	}
}
