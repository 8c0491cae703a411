package serve

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/device"
	"gad/internal/hostile"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/encode"
)

// turnsTemplate is a chat template of testdata/turns, whose texts transformers wrote.
func turnsTemplate(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile("../../testdata/turns/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		Shapes []struct{ Name, Template string }
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	for _, s := range e.Shapes {
		if s.Name == name {
			return s.Template
		}
	}
	t.Fatalf("no template %q", name)
	return ""
}

// scripted is a server whose engine says what a test has it say: sample i of a request answers
// answers[i], token by token, and then ends, or is cut if cut is set.
type scripted struct {
	*Server
	t       *testing.T
	answers []string
	cut     bool
	prompt  []int32 // of the last request
}

func newScripted(t *testing.T, tok *tokenizer.Tokenizer, o Options) *scripted {
	t.Helper()
	be, err := device.Open(device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := shape(tok.Size())
	c.MaxPosition = 4096
	m, err := model.New(be, c, model.Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); be.Close() })
	o.Name = "tiny"
	s := &scripted{t: t}
	if s.Server, err = New(m, tok, o); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case <-s.wake:
			case <-done:
				return
			}
			s.mu.Lock()
			calls := s.inbox
			s.inbox = nil
			s.mu.Unlock()
			for _, c := range calls {
				for _, r := range c.requests {
					s.prompt = r.Prompt
					for i := range r.N {
						s.say(r, i)
					}
				}
			}
		}
	}()
	return s
}

// say answers a request.
func (s *scripted) say(r *model.Request, i int) {
	ids := s.tok.Encode(s.answers[i])
	if !s.cut {
		ids = append(ids, s.tok.EndOfTurn())
	}
	for _, id := range ids {
		if !r.Token(i, model.Token{ID: id, Logp: -0.5, Rank: 1}) {
			break
		}
	}
	r.Done(i, model.Completion{IDs: ids, Truncated: s.cut})
}

// post sends a body.
func (s *scripted) post(path, body string) (status int, answer string) {
	s.t.Helper()
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

// steady replaces what is new in each answer.
func steady(answer string) string {
	for _, r := range [][2]string{{`"id":"chatcmpl-[0-9a-f]+"`, `"id":"ID"`},
		{`"id":"call_[0-9a-f]{24}"`, `"id":"CALL"`}, {`"created":[0-9]+`, `"created":0`}} {
		answer = regexp.MustCompile(r[0]).ReplaceAllString(answer, r[1])
	}
	return answer
}

const weather = `[{"type":"function","function":{"name":"weather","description":"The weather in a city","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}]`

// A call in an answer is sent as OpenAI's interface has it; exact JSON, at once and streamed.
func TestToolCalls(t *testing.T) {
	s := newScripted(t, templated(t, "qwen2", turnsTemplate(t, "hermes")), Options{})
	const ask = `{"messages":[{"role":"user","content":"x"}],"tools":` + weather
	const usage = `"usage":{"completion_tokens":%d,"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":0},"total_tokens":%d}}` + "\n"
	for _, c := range []struct{ what, answer, more, message, finish string }{
		{"a call", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>", "", `{"content":null,"refusal":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\"city\": \"Köln\"}","name":"weather"},"id":"CALL","type":"function"}]}`, "tool_calls"},
		{"text and two calls", "I look.\n<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>", "", `{"content":"I look.","refusal":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"a"},"id":"CALL","type":"function"},{"function":{"arguments":"{}","name":"b"},"id":"CALL","type":"function"}]}`, "tool_calls"},
		{"one call at most", "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{}}</tool_call>", `,"parallel_tool_calls":false`, `{"content":null,"refusal":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"a"},"id":"CALL","type":"function"}]}`, "tool_calls"},
		{"a malformed call", "<tool_call>{\"name\": weather}</tool_call>", "", `{"content":"\u003ctool_call\u003e{\"name\": weather}\u003c/tool_call\u003e","refusal":null,"role":"assistant"}`, "stop"},
		{"no call", "Hello", "", `{"content":"Hello","refusal":null,"role":"assistant"}`, "stop"},
		{"calls are not asked for", "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>", `,"tool_choice":"none"`, `{"content":"\u003ctool_call\u003e{\"name\":\"a\",\"arguments\":{}}\u003c/tool_call\u003e","refusal":null,"role":"assistant"}`, "stop"},
		{"a stop before the call", "I look. <tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>", `,"stop":"<tool_call>"`, `{"content":"I look. ","refusal":null,"role":"assistant"}`, "stop"},
	} {
		s.answers = []string{c.answer}
		status, answer := s.post("/v1/chat/completions", ask+c.more+`}`)
		drawn := 0
		if _, rest, ok := strings.Cut(answer, `"completion_tokens":`); ok {
			fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &drawn)
		}
		want := `{"choices":[{"finish_reason":"` + c.finish + `","index":0,"logprobs":null,"message":` + c.message + `}],"created":0,"id":"ID","model":"tiny","object":"chat.completion","system_fingerprint":null,` + fmt.Sprintf(usage, drawn, len(s.prompt), drawn+len(s.prompt))
		if got := steady(answer); status != 200 || got != want {
			t.Errorf("%s: %d\n got %swant %s", c.what, status, got, want)
		}
		// Streamed: the text before a call, each call whole, the end.
		_, raw := s.post("/v1/chat/completions", ask+c.more+`,"stream":true}`)
		content, finish := "", ""
		var calls []any
		for _, line := range strings.Split(strings.TrimSpace(raw), "\n\n") {
			var e struct {
				Choices []struct {
					Delta struct {
						Content   string
						ToolCalls []map[string]any `json:"tool_calls"`
					}
					Finish string `json:"finish_reason"`
				}
			}
			if line = strings.TrimPrefix(line, "data: "); line == "[DONE]" {
				continue
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil || len(e.Choices) != 1 {
				t.Fatalf("%s: %v: %s", c.what, err, line)
			}
			x := e.Choices[0]
			if x.Delta.Content != "" && calls != nil && c.what != "a malformed call" {
				t.Errorf("%s: text behind a call: %s", c.what, line)
			}
			content, finish = content+x.Delta.Content, finish+x.Finish
			for _, call := range x.Delta.ToolCalls {
				if call["index"] != float64(len(calls)) {
					t.Errorf("%s: call %d: %s", c.what, len(calls), line)
				}
				delete(call, "index")
				calls = append(calls, call)
			}
		}
		streamed := map[string]any{"role": "assistant", "content": content, "refusal": nil}
		if calls != nil {
			if streamed["tool_calls"] = calls; content == "" {
				streamed["content"] = nil
			}
		}
		if got, _ := json.Marshal(streamed); steady(string(got)) != c.message ||
			finish != c.finish {
			t.Errorf("%s: streamed %s, %s", c.what, steady(string(got)), finish)
		}
	}

	// The events of a call, exactly.
	s.answers = []string{"I\n<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>"}
	_, raw := s.post("/v1/chat/completions", ask+`,"stream":true}`)
	event := func(delta, finish string) string {
		return `data: {"choices":[{"delta":` + delta + `,"finish_reason":` + finish + `,"index":0,"logprobs":null}],"created":0,"id":"ID","model":"tiny","object":"chat.completion.chunk","system_fingerprint":null}` + "\n\n"
	}
	want := event(`{"content":"","role":"assistant"}`, "null") + event(`{"content":"I"}`, "null") +
		event(`{"tool_calls":[{"function":{"arguments":"{}","name":"a"},"id":"CALL","index":0,"type":"function"}]}`, "null") + event(`{}`, `"tool_calls"`) + "data: [DONE]\n\n"
	if got := steady(raw); got != want {
		t.Errorf("events:\n got %s\nwant %s", got, want)
	}

	// An answer that is cut behind a call is "length"; two answers have calls of their own.
	s.cut, s.answers =
		true, []string{"<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>", "no"}
	_, answer := s.post("/v1/chat/completions", ask+`,"n":2}`)
	var a struct {
		Choices []struct {
			Finish  string `json:"finish_reason"`
			Message struct {
				Content *string
				Calls   []any `json:"tool_calls"`
			}
		}
	}
	if json.Unmarshal([]byte(answer), &a) != nil || a.Choices[0].Finish != "length" ||
		len(a.Choices[0].Message.Calls) != 1 || a.Choices[1].Message.Calls != nil ||
		*a.Choices[1].Message.Content != "no" {
		t.Errorf("cut: %s", answer)
	}
}

// The marks of a format are special tokens of some tokenizers, which are no text otherwise. Ids
// and log-probabilities of all tokens are sent, those of calls and of marks included.
func TestToolCallsOfSpecialTokens(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../testdata/tokenizer/llama3")); err != nil {
		t.Fatal(err)
	}
	file := dir + "/tokenizer.json"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var whole map[string]json.RawMessage
	var added []map[string]any
	if json.Unmarshal(raw, &whole) != nil || json.Unmarshal(whole["added_tokens"], &added) != nil {
		t.Fatal("tokenizer.json")
	}
	last := added[len(added)-1]["id"].(float64)
	added = append(added, map[string]any{"id": last + 1, "content": llamaTag, "special": true,
		"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	whole["added_tokens"], _ = json.Marshal(added)
	raw, _ = json.Marshal(whole)
	for name, text := range map[string]string{"tokenizer.json": string(raw),
		"chat_template.jinja": turnsTemplate(t, "headers") + "{# " + llamaTag + " #}"} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode(llamaTag); len(ids) != 1 || !tok.Special(ids[0]) {
		t.Fatalf("%s is %v", llamaTag, ids)
	}
	s := newScripted(t, tok, Options{})
	if s.format == nil || s.format.opens != llamaTag {
		t.Fatalf("format %+v", s.format)
	}
	s.answers = []string{`So: <|python_tag|>{"name": "weather", "parameters": {"city": "Bonn"}}`}
	const ask = `{"messages":[{"role":"user","content":"x"}],"tools":` + weather + `,"logprobs":true,"return_token_ids":true,"return_tokens_as_token_ids":true`
	_, raw2 := s.post("/v1/chat/completions", ask+`}`)
	var a answerIDs
	if err := json.Unmarshal([]byte(raw2), &a); err != nil {
		t.Fatal(err)
	}
	want := append(tok.Encode(s.answers[0]), tok.EndOfTurn())
	c := a.Choices[0]
	if !slices.Equal(c.IDs, want) || !slices.Equal(a.Prompt, s.prompt) || len(c.calls()) != 1 ||
		*c.Message.Content != "So:" || c.Finish != "tool_calls" || !slices.Equal(c.named(t), want) {
		t.Errorf("%s\nwant %v", raw2, want)
	}
	// Without tools the tag is no text, as ever.
	_, raw2 = s.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`)
	if a = (answerIDs{}); json.Unmarshal([]byte(raw2), &a) != nil ||
		*a.Choices[0].Message.Content != `So: {"name": "weather", "parameters": {"city": "Bonn"}}` {
		t.Errorf("without tools: %s", raw2)
	}
	// Streamed, the ids are in the events, in order and all of them.
	_, raw2 = s.post("/v1/chat/completions", ask+`,"stream":true}`)
	var ids []int32
	for i, line := range strings.Split(strings.TrimSpace(raw2), "\n\n") {
		if line = strings.TrimPrefix(line, "data: "); line == "[DONE]" {
			break
		}
		if a = (answerIDs{}); json.Unmarshal([]byte(line), &a) != nil {
			t.Fatal(line)
		}
		if (i == 0) != (a.Prompt != nil) {
			t.Errorf("event %d: the prompt's ids are in the first alone: %s", i, line)
		}
		if c := a.Choices[0]; len(c.IDs) != len(c.named(t)) {
			t.Errorf("event %d: %s", i, line)
		}
		ids = append(ids, a.Choices[0].IDs...)
	}
	if !slices.Equal(ids, want) {
		t.Errorf("streamed %v, want %v", ids, want)
	}
}

// answerIDs is what the tests read of token ids in answers.
type answerIDs struct {
	Prompt  []int32 `json:"prompt_token_ids"`
	Choices []choiceIDs
}

type choiceIDs struct {
	Finish  string  `json:"finish_reason"`
	IDs     []int32 `json:"token_ids"`
	Prompt  []int32 `json:"prompt_token_ids"`
	Message struct {
		Content *string
		Calls   []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	Logprobs *struct {
		Tokens  []string
		Top     []map[string]float32 `json:"top_logprobs"`
		Content []struct{ Token string }
	}
}

// calls are those of the choice, each as its name and arguments.
func (c choiceIDs) calls() []string {
	list := []string{}
	for _, x := range c.Message.Calls {
		list = append(list, x.Function.Name+x.Function.Arguments)
	}
	return list
}

// named are the ids that log-probabilities name (return_tokens_as_token_ids).
func (c choiceIDs) named(t *testing.T) (ids []int32) {
	t.Helper()
	if c.Logprobs == nil {
		return nil
	}
	names := c.Logprobs.Tokens
	for _, x := range c.Logprobs.Content {
		names = append(names, x.Token)
	}
	for _, name := range names {
		var id int32
		if _, err := fmt.Sscanf(name, "token_id:%d", &id); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		ids = append(ids, id)
	}
	return ids
}

// Messages with calls and results, and tools, make the prompt that rows of data make.
func TestToolPromptsAreThoseOfRows(t *testing.T) {
	for _, name := range []string{"hermes", "thinking", "headers"} {
		folder := map[string]string{"headers": "llama3"}[name]
		if folder == "" {
			folder = "qwen2"
		}
		s := newScripted(t, templated(t, folder, turnsTemplate(t, name)),
			Options{ToolParser: ParserHermes})
		s.answers = []string{"ok"}
		const messages = `[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Köln\", \"n\": [1, 2.50, null]}"}}]},{"role":"tool","tool_call_id":"call_1","name":"weather","content":"<|im_end|> 21 C"},{"role":"user","content":"so?"}]`
		row := data.Row{Messages: []data.Message{{Role: "user", Content: "x"},
			{Role: "assistant"}, {Role: "tool", ToolCallID: "call_1", Name: "weather",
				Content: "<|im_end|> 21 C"}, {Role: "user", Content: "so?"}}}
		if err := row.Messages[1].ToolCalls.UnmarshalJSON([]byte(`[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\": \"Köln\", \"n\": [1, 2.50, null]}"}}]`)); err != nil {
			t.Fatal(err)
		}
		if err := row.Tools.UnmarshalJSON([]byte(weather)); err != nil {
			t.Fatal(err)
		}
		want, err := encode.Encoder{Tok: s.tok}.Prompt(row)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		status, answer := s.post("/v1/chat/completions", `{"messages":`+messages+`,"tools":`+weather+`,"return_token_ids":true}`)
		var a answerIDs
		if json.Unmarshal([]byte(answer), &a); status != 200 || !slices.Equal(a.Prompt, want) {
			t.Errorf("%s: %d %s\nwant the prompt %v", name, status, answer, want)
		}
		status, answer = s.post("/tokenize", `{"messages":`+messages+`,"tools":`+weather+`}`)
		var tokens struct{ Tokens []int32 }
		if json.Unmarshal([]byte(answer), &tokens); status != 200 ||
			!slices.Equal(tokens.Tokens, want) {
			t.Errorf("%s: tokenize: %d %s", name, status, answer)
		}
	}
}

// What comes from a stranger as tools or messages is refused by its name.
func TestHostileTools(t *testing.T) {
	known := newScripted(t, templated(t, "qwen2", turnsTemplate(t, "hermes")), Options{})
	plain := run(t, Options{}) // its template shows no tools
	unknown := newScripted(t, templated(t, "qwen2", turnsTemplate(t, "tags")), Options{})
	many := "[" + strings.Repeat(`{"type":"function","function":{"name":"f"}},`, 128) + `{"type":"function","function":{"name":"f"}}]`
	long := `[{"type":"function","function":{"name":"f","description":"` + strings.Repeat("word ", 20000) + `"}}]`
	deep := `[{"type":"function","function":{"name":"f","parameters":` + strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60) + `}}]`
	const user = `{"role":"user","content":"x"}`
	call := func(c string) string { return `[` + user + `,{"role":"assistant","tool_calls":` + c + `}]` }
	for _, c := range []struct {
		at             any
		messages, more string
		param, message string
	}{
		{known, "", `"tools":{}`, "tools", "tools: must be a list of tools"},
		{known, "", `"tools":"[]"`, "tools", "tools: must be a list of tools"},
		{known, "", `"tools":7`, "tools", "tools: must be a list of tools"},
		{known, "", `"tools":[7]`, "tools", `tools: tool 0: must be {"type": "function", "function": {"name": ..., "parameters": {...}}}`},
		{known, "", `"tools":[{"type":"function","function":{"name":" "}}]`, "tools", `tools: tool 0: must be {"type": "function", "function": {"name": ..., "parameters": {...}}}`},
		{known, "", `"tools":[{"type":"function","function":{"name":"f"}},{"type":"web_search"}]`, "tools", `tools: tool 1: must be {"type": "function", "function": {"name": ..., "parameters": {...}}}`},
		{known, "", `"tools":[{"type":"function","function":{"name":"f","name":"g"}}]`, "tools", `tools: "[{\"type\":\"function\",\"function\":{\"name\":\""...: not JSON: write a list of objects`},
		{known, "", `"tools":` + many, "tools", "tools: 129 tools: at most 128 are taken"},
		{known, "", `"tools":` + deep, "tools", `tools: "[{\"type\":\"function\",\"function\":{\"name\":\""...: not JSON: write a list of objects`},
		{known, "", `"tools":` + long, "messages", "messages: has more than the 4096 tokens that this server takes with an answer: shorten it"},
		{known, "", `"tools":` + weather + `,"tool_choice":"required"`, "tool_choice", `tool_choice: "required" is not supported: give "auto" or "none"`},
		{known, "", `"tools":` + weather + `,"tool_choice":{"type":"function","function":{"name":"weather"}}`, "tool_choice", `tool_choice: a function by its name is not supported: give "auto" or "none"`},
		{known, "", `"tools":` + weather + `,"parallel_tool_calls":1`, "parallel_tool_calls", "parallel_tool_calls: must be true or false"},
		{known, "", `"functions":[{"name":"f"}]`, "functions", "functions: is not supported: leave it out, or give []"},
		{unknown, "", `"tools":` + weather, "tool_choice", `tool_choice: the chat template of this model shows no form of calls that is known here: give "none", or start gad serve with --tool-parser`},
		{plain, "", `"tools":` + weather + `,"tool_choice":"none"`, "tools", "tools: the chat template of this model does not write them: leave them out"},
		{plain, call(`[{"function":{"name":"f","arguments":{}}}]`), "", "messages", "messages: tool_calls: the chat template of this model does not write them: leave them out"},
		{known, call(`[{"function":{"name":"f","arguments":"{\"x\":"}}]`), "", "messages", `messages: tokenizer: chat: turn 1: tool_calls: call 0: the template wants arguments as an object, and their text is none: "{\"x\":"`},
		{known, call(`[{"function":{"name":"f","arguments":[1]}}]`), "", "messages", `messages: message 1: tool_calls: call 0: arguments are "[1]": neither an object nor its text: write {"name": ..., "arguments": {...}}`},
		{known, call(`[{"function":{}}]`), "", "messages", `messages: message 1: tool_calls: call 0: names no function: write {"function": {"name": ..., "arguments": {...}}}`},
		{known, call(`{"function":{"name":"f"}}`), "", "messages", `messages: message 1: tool_calls: "{\"function\":{\"name\":\"f\"}}": not a list: write a list of objects`},
		{known, call(`[7]`), "", "messages", `messages: message 1: tool_calls: element 0 is "7": not an object: write a list of objects`},
		{known, `[` + user + `,{"role":"assistant"}]`, "", "messages", "messages: message 1: content: must be a string, or a list of parts of type text"},
		{known, `[` + user + `,{"role":"assistant","content":7,"tool_calls":[{"function":{"name":"f"}}]}]`, "", "messages", "messages: message 1: content: must be a string, or a list of parts of type text"},
		{known, `[{"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]}]`, "", "messages", "messages: message 0: tool_calls: is not known here: leave it out"},
		{known, `[` + user + `,{"role":"tool","content":"x","tool_call_id":7}]`, "", "messages", "messages: message 1: tool_call_id: must be a string"},
		{known, `[` + user + `,{"role":"assistant","content":"x","generation_token_ids":[1]}]`, "", "messages", "messages: message 1: generation_token_ids: is not known here: leave it out"},
	} {
		if c.messages == "" {
			c.messages = `[` + user + `]`
		}
		body := `{"messages":` + c.messages
		if c.more != "" {
			body += "," + c.more
		}
		var answer string
		var status int
		switch s := c.at.(type) {
		case *scripted:
			status, answer = s.post("/v1/chat/completions", body+"}")
		case *running:
			status, answer, _ = s.send("POST", "/v1/chat/completions", body+"}")
		}
		var e struct {
			Error struct{ Message, Param string }
		}
		if json.Unmarshal([]byte(answer), &e); status != 400 || e.Error.Param != c.param ||
			e.Error.Message != c.message {
			t.Errorf("%.200s:\n got %d %q %q\nwant %q %q", body, status, e.Error.Param,
				e.Error.Message, c.param, c.message)
		}
	}
	// Told to parse none, the server gives calls as text.
	s := newScripted(t, templated(t, "qwen2", turnsTemplate(t, "hermes")),
		Options{ToolParser: ParserNone})
	s.answers = []string{"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"}
	if status, answer := s.post("/v1/chat/completions", `{"messages":[`+user+`],"tools":`+weather+`}`); status != 200 || !strings.Contains(answer, `"finish_reason":"stop"`) || strings.Contains(answer, "tool_calls") {
		t.Errorf("%d %s", status, answer)
	}
}

// Answers of any tokens, streamed: text and calls are those of the whole answer.
func TestToolCallsStreamedAreWhole(t *testing.T) {
	s := newScripted(t, templated(t, "qwen2", turnsTemplate(t, "hermes")), Options{})
	rng := rand.New(rand.NewPCG(7, 8))
	bits := []string{"<tool_call>", "</tool_call>", `{"name":"f","arguments":{"x":"ü"}}`, "text ",
		"\n", "{", `"`, "世", "<tool", "_call>", `<tool_call>{"name":"g","arguments":{}}</tool_call>`}
	found := 0
	for i := range hostile.Share(300) {
		var b strings.Builder
		for range 1 + rng.IntN(8) {
			b.WriteString(bits[rng.IntN(len(bits))])
		}
		s.answers = []string{b.String()}
		ask := `{"messages":[{"role":"user","content":"x"}],"tools":` + weather + `,"return_token_ids":true`
		_, raw := s.post("/v1/chat/completions", ask+`}`)
		var whole answerIDs
		if err := json.Unmarshal([]byte(raw), &whole); err != nil {
			t.Fatal(err)
		}
		_, raw = s.post("/v1/chat/completions", ask+`,"stream":true}`)
		content, ids, calls := "", []int32{}, []string{}
		for _, line := range strings.Split(strings.TrimSpace(raw), "\n\n") {
			var e struct {
				Choices []struct {
					Delta struct {
						Content string
						Calls   []struct {
							Function struct{ Name, Arguments string }
						} `json:"tool_calls"`
					}
					IDs []int32 `json:"token_ids"`
				}
			}
			if line = strings.TrimPrefix(line, "data: "); line == "[DONE]" {
				continue
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			content, ids = content+e.Choices[0].Delta.Content, append(ids, e.Choices[0].IDs...)
			for _, c := range e.Choices[0].Delta.Calls {
				calls = append(calls, c.Function.Name+c.Function.Arguments)
			}
		}
		c := whole.Choices[0]
		if c.Message.Content == nil {
			c.Message.Content = new(string)
		}
		if content != *c.Message.Content || !slices.Equal(ids, c.IDs) ||
			fmt.Sprint(calls) != fmt.Sprint(c.calls()) {
			t.Errorf("%d: %q: streamed %q %v, whole %q %v", i, s.answers[0], content, calls,
				*c.Message.Content, c.calls())
		}
		found += len(calls)
	}
	if found < hostile.Share(50) {
		t.Errorf("%d calls: the test shows little", found)
	}
}
