// Package chat has the message of a conversation: one type for rows of data, chat templates, chat
// APIs and environments, which differ in what of it they read.
package chat

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Message is one turn of a conversation.
type Message struct {
	Role     string `json:"role"`
	Content  string `json:"content"`
	Thinking string `json:"reasoning_content,omitempty"` // what an assistant thought before it
	// a list, as OpenAI and Hugging Face have it; arguments are an object, or its text
	ToolCalls  JSON   `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"` // which call a turn of a tool answers
	Name       string `json:"name,omitempty"`
	Context    bool   `json:"-"` // nobody learns it, although an assistant wrote it: "train": false
}

// wire is a Message with all of its keys.
type wire struct {
	plain
	Train *bool `json:"train,omitempty"` // none is true
}

type plain Message

// MarshalJSON writes a turn as rows have it.
func (m Message) MarshalJSON() ([]byte, error) {
	line := wire{plain: plain(m)}
	if m.Context {
		line.Train = new(bool)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(line)
	return b.Bytes(), err
}

// UnmarshalJSON reads a turn as rows have it.
func (m *Message) UnmarshalJSON(text []byte) error {
	var line wire
	err := json.Unmarshal(text, &line)
	*m = Message(line.plain)
	m.Context = line.Train != nil && !*line.Train
	return err
}

// Heard returns the turn as somebody else gets it: without the thought, which was the speaker's,
// and without the mark for learning.
func (m Message) Heard() Message {
	m.Thinking, m.Context = "", false
	return m
}

// Text is the turn for people, and for what compares answers as texts: its content, and its calls
// behind that.
func (m Message) Text() string {
	if m.ToolCalls == "" {
		return m.Content
	}
	return strings.TrimPrefix(m.Content+"\n"+string(m.ToolCalls), "\n")
}
