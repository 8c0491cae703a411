package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Exports of chats, traces and logs keep a conversation inside of other values. If a path leads to
// it (Layout.paths), the error names the path; if it is a tree, or split over two files, the
// command that makes rows of it.

// knownExport returns the command that makes rows of an export into which no path can lead; "" for
// any other file.
func knownExport(names []string, src Source) string {
	has := func(name string) bool { return slices.Contains(names, name) }
	switch response := src.Keys("response"); {
	case has("mapping") && has("current_node"):
		return "each row is a tree, as ChatGPT exports it: take the branch that was shown last: " +
			`jq -c '.[] | .mapping as $m | {messages: [.current_node | recurse($m[.].parent // empty) | $m[.].message | select(. != null and .content.content_type == "text") | {role: .author.role, content: (.content.parts | join(""))} | select(.content != "")] | reverse}' OLD > NEW` +
			" (without .[] | where the file has one object a line)"
	case has("custom_id") && slices.Contains(response, "body"):
		return "the answers of OpenAI's batch API, whose prompts are in the file that was sent: join them: " +
			`jq -cn --slurpfile a OUTPUT '($a | map({key: .custom_id, value: .response.body.choices[0].message}) | from_entries) as $of | inputs | {messages: (.body.messages + [$of[.custom_id] // empty])}' INPUT > NEW`
	case has("custom_id") && has("body"):
		return "requests of OpenAI's batch API, without answers: gad data collect asks for them, or join the output file: see doc/data.md"
	case has("message_id") && has("role") && has("text"):
		return "each row is one message of a tree, as OASST has it: make the pairs of a message and the best answer to it: " +
			`jq -cs 'INDEX(.message_id) as $m | .[] | select(.role == "assistant" and (.rank // 0) == 0) | {messages: [recurse($m[.parent_id // ""] // empty) | {role: (if .role == "prompter" then "user" else .role end), content: .text}] | reverse}' OLD > NEW`
	case has("contents") && slices.Contains(src.TurnKeys("contents"), "parts"):
		return "turns in parts, as Gemini has them: join the parts: " +
			`jq -c 'def words: [.parts[] | select(.thought | not) | .text // error("a part without text")] | join(""); {messages: ([.systemInstruction // .system_instruction // empty | {role: "system", content: words}] + [.contents[] | {role: (if .role == "model" then "assistant" else .role end), content: words}])}' OLD > NEW`
	}
	return ""
}

// serialized returns the command that rewrites messages of a column as LangChain serializes them
// ({lc, kwargs}, or {type, data}; in LangSmith's traces lists of such lists); "" of other turns.
func serialized(column string, keys []string) string {
	if !slices.Contains(keys, "kwargs") && !(slices.Contains(keys, "type") &&
		slices.Contains(keys, "data")) {
		return ""
	}
	path := ""
	for _, key := range strings.Split(column, ".") {
		if _, err := strconv.Atoi(key); err != nil {
			key = strconv.Quote(key)
		}
		path += "[" + key + "]"
	}
	return fmt.Sprintf(`jq -c '.%s |= (flatten | map((.kwargs // (.data + {type})) | {role: ({human: "user", ai: "assistant"}[.type] // .type), content, tool_call_id, tool_calls: [(.tool_calls // [])[] | {id, name, arguments: .args}]}))' OLD > NEW`, path)
}

// nestedNames returns paths to the likely conversation and answer inside objects.
func nestedNames(names []string, src Source) (content, teacher string) {
	asks := []string{"inputs", "input", "request", "record", "data", "prompt"}
	answers := []string{"outputs", "output", "response", "completion", "reference_outputs", "result"}
	in := func(columns, keys []string) string {
		for _, column := range columns {
			if of := src.Keys(column); slices.Contains(names, column) {
				for _, key := range keys {
					if slices.Contains(of, key) {
						return column + "." + key
					}
				}
			}
		}
		return ""
	}
	content = in(asks, nearContent)
	teacher = in(answers, slices.Concat([]string{"content", "message", "text", "messages"},
		NearTeacher))
	if of := in(answers, []string{"choices"}); of != "" { // of an OpenAI answer
		teacher = of + ".0.message"
	}
	if of := in(answers, []string{"generations"}); of != "" { // of LangSmith
		teacher = of + ".0.0.text"
	}
	if slices.Contains(names, "annotations") && teacher == "" { // of Label Studio
		teacher = "annotations.0.result.0.value.text.0"
	}
	if near := Present(names, answers...); len(near) > 0 && teacher == "" && src.Keys(near[0]) == nil {
		teacher = near[0] // an answer that is a text
	}
	if teacher == "" && strings.Contains(content, ".") { // both in one object
		column, _, _ := strings.Cut(content, ".")
		teacher = in([]string{column}, NearTeacher)
	}
	return content, teacher
}
