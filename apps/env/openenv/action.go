package openenv

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gad/internal/env"
)

// action is the part of a server's schema of actions that shows a single required field.
type action struct {
	Properties map[string]struct {
		Type string `json:"type"`
	} `json:"properties"`
	Required []string `json:"required"`
}

// codeBlock matches a fenced block of code in a turn.
var codeBlock = regexp.MustCompile("(?s)```(?:json|JSON)?[ \\t]*\\n(.*?)```")

// read returns the action of a turn: a JSON object, one in a fenced block, or, if the schema
// requires a single field, that field's value. why is the message to the student if the turn has
// none.
func (a action) read(turn env.Turn) (data map[string]any, why string) {
	if turn.Cut {
		return nil, "The answer was cut: it has no end."
	}
	texts := []string{turn.Text}
	for _, m := range codeBlock.FindAllStringSubmatch(turn.Text, -1) {
		texts = append(texts, m[1])
	}
	for _, text := range texts {
		var o map[string]any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber() // keeps large integers exact
		if d.Decode(&o) == nil && o != nil && !d.More() {
			return o, ""
		}
	}
	const want = "Answer with one JSON object of the action's schema"
	if len(a.Required) != 1 {
		return nil, want + "."
	}
	field, text := a.Required[0], strings.TrimSpace(turn.Text)
	alone := fmt.Sprintf("%s, or with %q alone.", want, field)
	switch kind := a.Properties[field].Type; kind {
	case "integer", "number":
		x, err := strconv.ParseFloat(text, 64)
		raw, failed := json.Marshal(x) // refuses what JSON has no number for
		if _, whole := strconv.ParseInt(text, 10, 64); err != nil || failed != nil ||
			kind == "integer" && whole != nil {
			return nil, alone
		}
		if kind == "integer" {
			return map[string]any{field: json.Number(text)}, ""
		}
		return map[string]any{field: json.RawMessage(raw)}, ""
	case "boolean":
		if text != "true" && text != "false" {
			return nil, alone
		}
		return map[string]any{field: text == "true"}, ""
	case "object", "array", "null":
		return nil, want + "."
	}
	if text == "" {
		return nil, alone
	}
	return map[string]any{field: text}, ""
}
