package env

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gad/internal/child"
)

// Version is the version of the protocol.
const Version = 1

// maxLine bounds a line of the protocol, bytes without its end.
const maxLine = 1 << 20

// request is a line sent to a child.
type request struct {
	Op      string  `json:"op"`
	ID      *uint64 `json:"id,omitempty"`
	Version int     `json:"version,omitempty"`
	Seed    *uint64 `json:"seed,omitempty"`
	Row     *Row    `json:"row,omitempty"`
	Turn    *string `json:"turn,omitempty"`
	Cut     *bool   `json:"cut,omitempty"`
	From    *uint64 `json:"from,omitempty"`  // fork: the episode to copy
	Turns   *int    `json:"turns,omitempty"` // fork: the turns after which to copy

	queue chan request // of Serve: the requests of the forked episode
}

// line returns a value as a line of the protocol.
func line(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// hello is a child's reply to the first line.
type hello struct {
	Name     string `json:"name"`
	Version  int    `json:"version"`
	Episodes int    `json:"episodes"` // at once in one child
	Fork     bool   `json:"fork,omitempty"`
}

// readHello parses and checks a hello.
func readHello(text []byte) (h hello, err error) {
	const want = `answer {"op":"hello"} with {"name":"NAME","version":1,"episodes":64}`
	o, err := object(text)
	if err != nil {
		return h, fmt.Errorf("%w: %s", err, want)
	}
	if raw, ok := o["version"]; ok && json.Unmarshal(raw, &h.Version) == nil &&
		h.Version != Version {
		return h,
			fmt.Errorf(
				"speaks version %d of the protocol, and gad speaks version %d: see doc/environments.md",
				h.Version, Version)
	}
	if json.Unmarshal(text, &h) != nil || h.Version != Version || h.Episodes < 1 ||
		strings.TrimSpace(h.Name) == "" || child.CheckLabel(h.Name) != nil {
		return h, fmt.Errorf("%s is no hello: %s", child.Quote(string(text)), want)
	}
	return h, nil
}

// object parses a line as a JSON object. Its error quotes the line and tells how to mend it.
func object(text []byte) (o map[string]json.RawMessage, err error) {
	quoted := child.Quote(string(text))
	switch err := json.Unmarshal(text, &o); {
	case len(text) > maxLine:
		return nil, fmt.Errorf("a line of more than %d bytes, %s: shorten it", maxLine, quoted)
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%s is not UTF-8: write JSON in UTF-8", quoted)
	case err != nil && json.Valid(text), err == nil && o == nil:
		return nil, fmt.Errorf("%s is not an object: print one JSON object a line", quoted)
	case err != nil:
		return nil, fmt.Errorf("%s is not JSON: print one JSON object a line; messages for people go to standard error", quoted)
	}
	return o, nil
}

var idInLine = regexp.MustCompile(`"id"\s*:\s*([0-9]{1,19})\b`)

// idOf returns the id in a line, even if the line is not JSON.
func idOf(text []byte) (id uint64, ok bool) {
	if o, err := object(text); err == nil {
		id, err := strconv.ParseUint(string(o["id"]), 10, 64)
		return id, err == nil
	}
	m := idInLine.FindSubmatch(text)
	if m == nil {
		return 0, false
	}
	id, err := strconv.ParseUint(string(m[1]), 10, 64)
	return id, err == nil
}

// reportedFault is an error that the environment sends in place of a reply.
type reportedFault struct{ text string }

func (a reportedFault) Error() string { return "the environment says " + child.Quote(a.text) }

// replyKeys are the keys of a reply.
var replyKeys = []string{"id", "append", "prompt", "reward", "done", "valid", "anchor", "label",
	"error"}

// readReply parses a line as the reply to a reset, or to a step.
func readReply(text []byte, reset bool) (r Reply, err error) {
	o, err := object(text)
	if err != nil {
		return r, err
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(replyKeys, key) {
			return r, fmt.Errorf("key %s is unknown: known are %s", child.Quote(key),
				strings.Join(replyKeys, ", "))
		}
	}
	if raw, ok := o["error"]; ok {
		var said string
		if json.Unmarshal(raw, &said) != nil || said == "" {
			return r, fmt.Errorf("error is %s: must be a text", child.Quote(string(raw)))
		}
		return r, reportedFault{said}
	}
	r.Valid = true
	for _, f := range []struct {
		key, rule string
		into      any
	}{
		{"reward", "must be a finite number", &r.Reward},
		{"done", "must be true or false", &r.Done},
		{"valid", "must be true or false", &r.Valid},
		{"anchor", "must be a text", &r.Anchor},
		{"label", "must be a text", &r.Label},
	} {
		raw, ok := o[f.key]
		text := f.into == &r.Anchor || f.into == &r.Label
		if ok && (string(raw) != "null" || !text) &&
			(string(raw) == "null" || json.Unmarshal(raw, f.into) != nil) {
			return r, fmt.Errorf("%s is %s: %s", f.key, child.Quote(string(raw)), f.rule)
		}
	}
	if err := child.CheckLabel(r.Label); err != nil {
		return r, err
	}
	var has [2]bool
	for i, key := range []string{"append", "prompt"} {
		if raw, ok := o[key]; ok && string(raw) != "null" {
			has[i] = true
			into := []*[]Message{&r.Append, &r.Prompt}[i]
			if *into, err = readMessages(key, raw); err != nil {
				return r, err
			}
		}
	}
	switch {
	case reset && r.Done:
		return r, errors.New("done is true on a reset: an episode has at least one turn")
	case reset && (r.Reward != 0 || !r.Valid):
		return r, errors.New("reward or valid on a reset: they belong to a turn")
	case has[0] && has[1]:
		return r, errors.New("both append and prompt: give one of them")
	case !has[0] && !has[1] && !r.Done:
		return r,
			errors.New(
				"neither append nor prompt, and not done: give one of them, or \"done\":true")
	case has[0] && len(r.Append) == 0 && !reset && !r.Done, has[1] && len(r.Prompt) == 0:
		return r, errors.New("an empty list of messages: the student would have nothing to answer")
	}
	return r, nil
}

// messageKeys are the keys of a message.
var messageKeys = []string{"role", "content", "name", "tool_calls", "tool_call_id", "train"}

// hasKeys reports whether text is an object that has none but these keys.
func hasKeys(text []byte, known []string) bool {
	var o map[string]json.RawMessage
	if json.Unmarshal(text, &o) != nil || o == nil {
		return false
	}
	for key := range o {
		if !slices.Contains(known, key) {
			return false
		}
	}
	return true
}

// readMessages parses and checks the list of messages under a key.
func readMessages(key string, raw json.RawMessage) ([]Message, error) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, fmt.Errorf("%s is %s: must be a list of messages", key,
			child.Quote(string(raw)))
	}
	messages := make([]Message, len(list))
	for i, raw := range list {
		fail := func(format string, args ...any) ([]Message, error) {
			return nil, fmt.Errorf("%s, message %d: %s", key, i, fmt.Sprintf(format, args...))
		}
		m := &messages[i]
		if !hasKeys(raw, messageKeys) || json.Unmarshal(raw, m) != nil {
			return fail(`%s: must be {"role":...,"content":...}, with name, tool_calls, tool_call_id or train beside them`, child.Quote(string(raw)))
		}
		if !slices.Contains(Roles, m.Role) {
			return fail("role %s is unknown: known are %s", child.Quote(m.Role),
				strings.Join(Roles, ", "))
		}
		if m.ToolCalls != "" {
			var calls []map[string]any
			if json.Unmarshal([]byte(m.ToolCalls), &calls) != nil || len(calls) == 0 {
				return fail("tool_calls is %s: must be a list of objects",
					child.Quote(string(m.ToolCalls)))
			}
		}
		if m.ToolCalls == "" && strings.TrimFunc(m.Content, unicode.IsSpace) == "" {
			return fail("is empty: every message has a text or tool_calls")
		}
	}
	return messages, nil
}
