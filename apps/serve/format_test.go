package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// An answer that has to be JSON is JSON, whatever the model would rather write: here one with
// random weights, up to temperature 2. One that is cut is the beginning of such a text.
func TestResponseFormat(t *testing.T) {
	r := run(t, Options{})
	ask := func(format string, temperature float64, n int) answerOut {
		return r.ask("/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"max_tokens":90,"temperature":%v,"seed":3,"n":%d,"response_format":%s}`, temperature, n, format))
	}
	ended := 0
	for _, temperature := range []float64{0, 1, 2} {
		for _, c := range ask(`{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object","properties":{"ok":{"type":"boolean"},"kind":{"enum":["a","b"]}},"required":["ok","kind"],"additionalProperties":false}}}`,
			temperature, 3).Choices {
			var v struct {
				OK   *bool
				Kind string
			}
			text := c.Message.Content
			if err := json.Unmarshal([]byte(text), &v); err != nil || v.OK == nil ||
				v.Kind != "a" && v.Kind != "b" {
				t.Errorf("temperature %v: %q: %v, %s", temperature, text, err, *c.Finish)
			}
		}
		for _, c := range ask(`{"type":"json_object"}`, temperature, 3).Choices {
			text := c.Message.Content
			switch *c.Finish {
			case "stop":
				if ended++; !json.Valid([]byte(text)) || text[0] != '{' {
					t.Errorf("temperature %v: %q", temperature, text)
				}
			default:
				if !strings.HasPrefix(text, "{") {
					t.Errorf("temperature %v: %q", temperature, text)
				}
			}
		}
	}
	t.Logf("%d of 9 objects have ended", ended)
	for body, want := range map[string]string{
		`{"type":"xml"}`:         "response_format: type: must be text, json_object or json_schema",
		`{"type":"json_schema"}`: "response_format: json_schema: must be an object with a schema",
		`{"type":"json_schema","json_schema":{"schema":{"type":"string","pattern":"a"}}}`: "response_format: json_schema: pattern: is not followed: leave it out",
		`3`: "response_format: must be an object with a type",
	} {
		status, raw, _ := r.send(http.MethodPost, "/v1/chat/completions",
			`{"messages":[{"role":"user","content":"x"}],"response_format":`+body+`}`,
			"Content-Type", "application/json")
		if status != http.StatusBadRequest || !strings.Contains(raw, want) {
			t.Errorf("%s: %d %s, want %s", body, status, raw, want)
		}
	}
}

// A page of an origin that is allowed may ask and read; another may not.
func TestOrigins(t *testing.T) {
	r := run(t, Options{Origins: []string{"https://a.example"}})
	for origin, want := range map[string]string{"https://a.example": "https://a.example",
		"https://b.example": ""} {
		status, _, head := r.send(http.MethodOptions, "/v1/chat/completions", "", "Origin", origin,
			"Access-Control-Request-Headers", "authorization,x-stainless-os")
		if got := head.Get("Access-Control-Allow-Headers"); want != "" &&
			got != "authorization,x-stainless-os" {
			t.Errorf("headers that are allowed: %q", got)
		}
		if got := head.Get("Access-Control-Allow-Origin"); got != want ||
			(status == http.StatusNoContent) != (want != "") {
			t.Errorf("preflight of %s: %d, %q", origin, status, got)
		}
		_, _, head = r.send(http.MethodGet, "/v1/models", "", "Origin", origin)
		if got := head.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("%s: %q", origin, got)
		}
	}
}

// Messages as clients send them back: no text, a name, a role in another case.
func TestMessagesOfClients(t *testing.T) {
	r := run(t, Options{})
	r.ask("/v1/chat/completions", `{"messages":[{"role":"Developer","content":"s"},{"role":"user","content":"x","name":"Bo"},{"role":"assistant","content":null},{"role":"user","content":"y"}],"max_tokens":2,"store":true,"reasoning_effort":"high","cache_prompt":true,"keep_alive":"5m"}`)
	status, raw, _ := r.send(http.MethodPost, "/v1/chat/completions",
		`{"messages":[{"role":"user","content":null}]}`, "Content-Type", "application/json")
	if status != http.StatusBadRequest || !strings.Contains(raw, "content: must be a string") {
		t.Errorf("a user who says nothing: %d %s", status, raw)
	}
	// a thought under each of its keys is the same message
	for _, thought := range []string{`"content":"a","reasoning_content":"so"`,
		`"content":"a","thinking":"so"`, `"content":"a","reasoning":"so"`,
		`"content":"a","thinking":"no","reasoning_content":"so"`,
		`"content":[{"type":"thinking","thinking":"so"},{"type":"text","text":"a"}]`,
		`"content":[{"type":"thinking","thinking":"no"},{"type":"text","text":"a"}],"reasoning_content":"so"`} {
		var raw map[string]json.RawMessage
		if err := json.Unmarshal([]byte(`{"role":"assistant",`+thought+`}`), &raw); err != nil {
			t.Fatal(err)
		}
		m, err := readMessage(raw)
		if err != nil || m.Content != "a" || m.Thinking != "so" || m.Role != "assistant" {
			t.Errorf("%s: %+v, %v", thought, m, err)
		}
	}
	for message, want := range map[string]string{
		`"role":"user","content":"a","thinking":"so"`:                          "thinking",
		`"role":"user","content":[{"type":"thinking","thinking":"so"}]`:        "an assistant's alone",
		`"role":"assistant","content":"a","reasoning":["so"]`:                  "must be a string",
		`"role":"assistant","content":[{"type":"thinking"},{"type":"text"}]`:   "content: must be",
		`"role":"assistant","content":[{"type":"image","text":"no","url":""}]`: "content: must be",
	} {
		status, raw, _ := r.send(http.MethodPost, "/v1/chat/completions",
			`{"messages":[{`+message+`}]}`, "Content-Type", "application/json")
		if status != http.StatusBadRequest || !strings.Contains(raw, want) {
			t.Errorf("%s: %d %s, want %s", message, status, raw, want)
		}
	}
}
