package chat

import (
	"encoding/json"
	"testing"
)

// A message is read and written with all of its keys, and a listener gets neither the thought nor
// the mark for learning.
func TestMessage(t *testing.T) {
	const text = `{"role":"assistant","content":"a < b","reasoning_content":"so",` +
		`"tool_calls":[{"b":1,"a":1.5}],"tool_call_id":"c","name":"n","train":false}`
	want := Message{Role: "assistant", Content: "a < b", Thinking: "so",
		ToolCalls: `[{"b":1,"a":1.5}]`, ToolCallID: "c", Name: "n", Context: true}
	var m Message
	if err := json.Unmarshal([]byte(text), &m); err != nil || m != want {
		t.Errorf("%v: %+v, want %+v", err, m, want)
	}
	if got, err := m.MarshalJSON(); err != nil || string(got) != text+"\n" {
		t.Errorf("%v: %s, want %s", err, got, text)
	}
	heard := want
	heard.Thinking, heard.Context = "", false
	if m.Heard() != heard || m != want {
		t.Errorf("%+v is heard as %+v", m, m.Heard())
	}
	if got := m.Text(); got != "a < b\n"+string(want.ToolCalls) {
		t.Errorf("text %q", got)
	}
	for _, text := range []string{`{"role":"user","content":"q"}`,
		`{"role":"user","content":"q","train":true,"tool_calls":null}`} {
		m = Message{}
		if err := json.Unmarshal([]byte(text), &m); err != nil ||
			m != (Message{Role: "user", Content: "q"}) {
			t.Errorf("%s: %v, %+v", text, err, m)
		}
	}
}

func TestJSONHasOneForm(t *testing.T) {
	for text, want := range map[string]JSON{
		` { "b" : 1 , "a" : [ 1.50, 1e3, 12345678901234567890 ] } `: `{"b":1,"a":[1.5,1000.0,12345678901234567890]}`,
		`"<&>"`:         `"<&>"`,
		`[null, true]`:  `[null,true]`,
		`{"a":1,"a":2}`: "",
		`[1] 2`:         "",
	} {
		got, err := ReadJSON([]byte(text))
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}
