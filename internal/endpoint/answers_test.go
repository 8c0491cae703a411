package endpoint_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
)

// TestOddAnswers: what has been paid for is read, whatever stands beside its text.
func TestOddAnswers(t *testing.T) {
	for _, x := range []struct{ name, body, want string }{
		{"parts", `{"choices":[{"message":{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"one "},{"type":"text","text":"two"}]},"finish_reason":"stop"}]}`, `[{one two  stop}] {0 0 0}`},
		{"nothing", `{"choices":[{"message":{"content":null},"finish_reason":"content_filter"}]}`, `[{  content_filter}] {0 0 0}`},
		{"refusal", `{"choices":[{"message":{"content":null,"refusal":"I will not"},"finish_reason":"stop"}]}`, `[{ I will not stop}] {0 0 0}`},
		{"tool", `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1"}]},"finish_reason":"tool_calls"}]}`, `[{  tool_calls}[{"id":"1"}]] {0 0 0}`},
		{"thoughts", `{"choices":[{"message":{"content":"a","reasoning_content":"hm","reasoning":"hm"},"finish_reason":"stop"}]}`, `[{a  stop}hm] {0 0 0}`},
		{"thoughts in parts", `{"choices":[{"message":{"content":"a","reasoning_content":null,"reasoning_details":[{"type":"reasoning.text","text":"h"},{"type":"reasoning.encrypted","data":"x"},{"type":"reasoning.summary","summary":"m"}]},"finish_reason":"stop"}]}`, `[{a  stop}hm] {0 0 0}`},
		{"thoughts of no kind", `{"choices":[{"message":{"content":"a","reasoning_details":"hm"},"finish_reason":"stop"}]}`, `[{a  stop}] {0 0 0}`},
		{"no error", `{"choices":[{"message":{"content":"a"},"finish_reason":"stop","error":null}]}`, `[{a  stop}] {0 0 0}`},
		{"unknown finish", `{"choices":[{"message":{"content":"a"},"finish_reason":"eos_token"}]}`, `[{a  eos_token}] {0 0 0}`},
		{"no indices", `{"choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}`, `[{a  } {b  }] {0 0 0}`},
		{"indices", `{"choices":[{"index":1,"message":{"content":"b"}},{"index":0,"message":{"content":"a"}}]}`, `[{a  } {b  }] {0 0 0}`},
		{"usage of no numbers", `{"choices":[{"message":{"content":"a"}}],"usage":"many"}`, `[{a  }] {0 0 0}`},
		{"usage null", `{"choices":[{"message":{"content":"a"}}],"usage":null}`, `[{a  }] {0 0 0}`},
		{"usage of fractions", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12.0,"completion_tokens":3.0}}`, `[{a  }] {12 3 0}`},
		{"usage below 0", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":-3}}`, `[{a  }] {0 0 0}`},
		{"usage without end", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":1e300}}`, `[{a  }] {0 0 0}`},
		{"thoughts in the total alone", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":115}}`, `[{a  }] {12 103 0}`},
		{"a lower total", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":0}}`, `[{a  }] {12 3 0}`},
		{"from a cache", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`, `[{a  }] {12 3 8}`},
		{"from DeepSeek's cache", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_cache_hit_tokens":7,"prompt_tokens_details":null}}`, `[{a  }] {12 3 7}`},
		{"more from a cache than there is", `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1e9}}}`, `[{a  }] {12 3 12}`},
		{"id and model of other types", `{"id":7,"model":null,"choices":[{"message":{"content":"a"}}]}`, `[{a  }] {0 0 0}`},
	} {
		a, err := endpoint.ParseAnswer([]byte(x.body))
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
			continue
		}
		var choices []string
		for _, ch := range a.Choices {
			more := ch.Thinking + string(ch.ToolCalls)
			choices = append(choices,
				fmt.Sprint(struct{ a, b, c string }{ch.Content, ch.Refusal, ch.FinishReason})+more)
		}
		if got := fmt.Sprint(choices, a.Usage); got != x.want {
			t.Errorf("%s: %s, want %s", x.name, got, x.want)
		}
	}
}

// TestWhatServersSay: the reason is shown in whatever form a server gives it, and an
// account without money is no fault of a prompt.
func TestWhatServersSay(t *testing.T) {
	for _, x := range []struct {
		status int
		body   string
		fatal  bool
		want   string
	}{
		{400, `{"error":"model is loading"}`, false, "status 400: model is loading"},
		{400, `{"object":"error","message":"too long","type":"BadRequestError","code":400}`, false, "status 400: too long"},
		{422, `{"detail":"no such field"}`, false, "status 422: no such field"},
		{422, `{"detail":[{"msg":"no such field"}]}`, false, "status 422: unprocessable entity"},
		{400, `{"error":{"message":{"a":1},"code":7}}`, false, "status 400: bad request"},
		{402, `{"error":{"message":"Insufficient Balance","type":"unknown_error"}}`, true, "status 402: Insufficient Balance"},
		{429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}`, true, "status 429: You exceeded your current quota"},
		{200, `{"error":{"message":"Provider returned error","code":502}}`, false, "status 200: not a chat completion: Provider returned error"},
		{201, `{"choices":[{"message":{"content":"a"}}]}`, false, ""},
	} {
		s := &endpointtest.Server{
			Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(x.status)
				fmt.Fprint(w, x.body)
				return true
			}}
		c := start(t, s, endpoint.Options{})
		_, err := c.Try(t.Context(), ask("hello"))
		switch {
		case x.want == "" && err != nil:
			t.Errorf("%s: %v", x.body, err)
		case x.want != "" && (err == nil || !strings.HasSuffix(err.Error(), x.want) ||
			endpoint.Fatal(err) != x.fatal):
			t.Errorf("%s: got %v, fatal is %v, want %s", x.body, err, endpoint.Fatal(err), x.want)
		}
	}
}

// TestLimitsApart: limits of input and of output, as the user gives them or as
// Anthropic's headers do.
func TestLimitsApart(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name   string
		o      endpoint.Options
		header string
		limit  string
		says   string
		want   float64 // seconds
	}{
		{"input", endpoint.Options{InputTokensPerMinute: 15000}, "", "", "", 20},
		{"output", endpoint.Options{OutputTokensPerMinute: 27000}, "", "", "", 8000. / 450},
		{"input by headers", endpoint.Options{}, "anthropic-ratelimit-input-tokens-limit", "15000",
			"the endpoint allows 15000 input tokens a minute", 20},
		{"output by headers", endpoint.Options{}, "anthropic-ratelimit-output-tokens-limit",
			"27000", "the endpoint allows 27000 output tokens a minute", 8000. / 450},
		{"both, where the user knows better", endpoint.Options{OutputTokensPerMinute: 27000},
			"anthropic-ratelimit-output-tokens-limit", "100", "", 8000. / 450},
		{"the lower one", endpoint.Options{}, "x-ratelimit-limit-tokens-minute", "42000",
			"the endpoint allows 42000 tokens a minute", 13000. / 700},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := &endpointtest.Server{
				Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
					if x.header != "" {
						w.Header().Set("x-ratelimit-limit-tokens", "600000000")
						w.Header().Set("anthropic-ratelimit-tokens-limit", "700000000")
						w.Header().Set(x.header, x.limit)
					}
					return false
				}}
			var mu sync.Mutex
			var said []string
			x.o.Say = func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, fmt.Sprintf(format, args...))
			}
			bubble(t, s, x.o, func(t *testing.T, c *endpoint.Client) {
				begin := time.Now()
				// 1,000 requests of 5 tokens and 8 of answer.
				askAll(t, c, 1000,
					func(i int) endpoint.Request { return ask(fmt.Sprintf("%020d", i)) })
				if took := time.Since(begin).Seconds(); took < x.want-0.1 || took > x.want+0.5 {
					t.Errorf("took %.2f s, want %.2f", took, x.want)
				}
			})
			if all := strings.Join(said, "\n"); x.says != "" && strings.Count(all, x.says) != 1 {
				t.Errorf("says %s", all)
			}
		})
	}
}

// TestNonsenseLimits: a server whose headers or counts are nonsense slows a request down
// by a minute at most, and not for ever.
func TestNonsenseLimits(t *testing.T) {
	s := &endpointtest.Server{
		Misbehave: func(_ endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			for _, name := range []string{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Limit-Tokens",
				"Anthropic-Ratelimit-Tokens-Limit"} {
				w.Header()[name] = []string{
					[]string{"0", "-1", "NaN", "1e400", "many", "", "+Inf"}[len(name)%7]}
			}
			w.Header().Set("X-Ratelimit-Remaining-Requests", "-Inf")
			w.Header().Set("X-Ratelimit-Reset-Requests", "1e300")
			w.Header().Set("Anthropic-Ratelimit-Tokens-Remaining", "0")
			w.Header().Set("Anthropic-Ratelimit-Tokens-Reset", "9999-12-31T23:59:59Z")
			return false
		}}
	c := start(t, s, endpoint.Options{})
	begin := time.Now()
	askAll(t, c, 50, func(i int) endpoint.Request { return ask(fmt.Sprint(i)) })
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("took %v", took)
	}
	// A request that has more tokens than the limit of a minute waits for a minute.
	c = start(t, &endpointtest.Server{}, endpoint.Options{TokensPerMinute: 1})
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := c.Try(ctx, ask("a")); err == nil {
		t.Error("the limit is not kept")
	}
	if d := endpoint.Longest(c, ask("a")); d > time.Minute {
		t.Errorf("the request would wait for %v", d)
	}
}

// An answer of more choices than any request asks for is refused before it is decoded; a text that
// speaks of messages is none.
func TestAnswersOfManyChoices(t *testing.T) {
	many := []byte(`{"choices":[` + strings.Repeat(`{"message":{}},`, 1_000_000) + `{"message":{}}]}`)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := endpoint.ParseAnswer(many)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "1000001 choices: more than 4096") {
		t.Errorf("%v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d bytes to refuse %d", used, len(many))
	}
	text, _ := json.Marshal(strings.Repeat(`{"message":{}},`, 5000))
	a, err := endpoint.ParseAnswer(fmt.Appendf(nil, `{"choices":[{"message":{"content":%s}}]}`, text))
	if err != nil || len(a.Choices) != 1 || len(a.Choices[0].Content) != 15*5000 {
		t.Errorf("a text about messages: %v", err)
	}
}
