package data

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// printed finds the command of a refusal.
var printed = regexp.MustCompile(`jq -[a-z]+ (?:--slurpfile a OUTPUT )?(?:'[^']*'|\.) (?:OLD|INPUT) > NEW`)

// Every command that a refusal prints is run as it stands, with the files' names in the place of
// OLD and NEW: what it writes is read, as these rows.
func TestPrintedCommands(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not on PATH")
	}
	const tree = `{"title":"t","current_node":"d","mapping":{"r":{"id":"r","message":null,"parent":null,"children":["a"]},"a":{"id":"a","message":{"author":{"role":"user"},"content":{"content_type":"text","parts":["2+","2"]}},"parent":"r","children":["b","d"]},"b":{"id":"b","message":{"author":{"role":"assistant"},"content":{"content_type":"text","parts":["5"]}},"parent":"a","children":[]},"c":{"id":"c","message":{"author":{"role":"assistant"},"content":{"content_type":"thoughts","thoughts":[]}},"parent":"a","children":["d"]},"d":{"id":"d","message":{"author":{"role":"assistant"},"content":{"content_type":"text","parts":["4"]}},"parent":"c","children":[]}}}`
	const want = "user: 2+2 => 4; "
	for _, c := range []struct {
		name, old, output string
		edit              func(command string) string
		want              string
		later             bool   // by NeedTeacher, of a file that opens
		column            string // of the prompt, where the error is a row's
	}{
		{name: "a list of ChatGPT's trees", old: "[" + tree + "," + tree + "]", want: want + want},
		{name: "a tree a line", old: tree + "\n" + tree + "\n", want: want + want,
			edit: func(c string) string { return strings.Replace(c, "'.[] | ", "'", 1) }},
		{name: "OpenAI's batch output", old: `{"custom_id":"1","method":"POST","body":{"messages":[{"role":"user","content":"2+2"}]}}` + "\n",
			output: `{"id":"x","custom_id":"1","response":{"status_code":200,"body":{"choices":[{"message":{"role":"assistant","content":"4"}}]}}}` + "\n", want: want},
		{name: "OASST's messages", old: `{"message_id":"a","parent_id":null,"role":"prompter","text":"2+2","rank":null}` + "\n" +
			`{"message_id":"b","parent_id":"a","role":"assistant","text":"5","rank":1}` + "\n" +
			`{"message_id":"c","parent_id":"a","role":"assistant","text":"4","rank":0}` + "\n", want: want},
		{name: "turns by other keys", old: `{"messages":[{"speaker":"user","text":"2+2"},{"speaker":"assistant","text":"4"}]}` + "\n", want: want},
		{name: "OpenAI's preferences", old: `{"input":{"messages":[{"role":"user","content":"2+2"}]},"preferred_output":[{"role":"assistant","content":"4"}],"non_preferred_output":[{"role":"assistant","content":"5"}]}` + "\n", want: want},
		{name: "rows inside of a column", old: `{"data":[{"prompt":"2+2","completion":"4"}]}` + "\n", want: want},
		{name: "an answer in chosen", old: `{"conversations":[{"from":"human","value":"2+2"}],"chosen":{"from":"gpt","value":"4"},"rejected":{"from":"gpt","value":"5"}}` + "\n", want: want, later: true},
		{name: "instances", old: `{"instruction":"2+2","instances":[{"input":"","output":"4"}]}` + "\n", want: want, later: true},
		{name: "Gemini's turns", old: `{"systemInstruction":{"parts":[{"text":"s"}]},"contents":[{"role":"user","parts":[{"text":"2+"},{"text":"2"}]},{"role":"model","parts":[{"text":"hm","thought":true},{"text":"4"}]}]}` + "\n", want: "system: suser: 2+2 => 4; "},
		{name: "LangChain's messages", old: `{"inputs":{"messages":[[{"lc":1,"type":"constructor","id":["x"],"kwargs":{"content":"2+2","type":"human"}},{"lc":1,"kwargs":{"content":"","type":"ai","tool_calls":[{"name":"f","args":{"x":1},"id":"1","type":"tool_call"}]}},{"lc":1,"kwargs":{"content":"4","type":"tool","tool_call_id":"1"}},{"lc":1,"kwargs":{"content":"4","type":"ai"}}]]}}` + "\n",
			want:   `user: 2+2assistant: [{"id":"1","function":{"name":"f","arguments":{"x":1}}}]tool: 4 => 4; `,
			column: "inputs.messages"},
		{name: "LangChain's messages as dicts", old: `{"chat":[{"type":"human","data":{"content":"2+2"}},{"type":"ai","data":{"content":"4"}}]}` + "\n", want: want, column: "chat"},
		{name: "objects of several lines", old: "{\n \"content\": \"2+2\",\n \"teacher_response\": \"4\"\n}\n", want: want},
	} {
		dir := t.TempDir()
		path := func(name string) string { return filepath.Join(dir, name) }
		first := c.old
		if c.output != "" {
			first = c.output
		}
		for name, text := range map[string]string{"old.jsonl": first, "input.jsonl": c.old,
			"output.jsonl": c.output} {
			if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var o Options
		if c.column != "" {
			o.Columns = DefaultColumns()
			o.Columns.Content = c.column
		}
		set, err := OpenFiles([]string{path("old.jsonl")}, o)
		if c.column != "" && err == nil {
			_, err = set.Row(0)
		}
		if c.later && err == nil {
			err = set.NeedTeacher()
		}
		if err == nil {
			t.Errorf("%s: is read", c.name)
			continue
		}
		command := printed.FindString(err.Error())
		if command == "" {
			t.Errorf("%s: no command in %q", c.name, err)
			continue
		}
		if c.edit != nil {
			command = c.edit(command)
		}
		command = strings.NewReplacer(" OLD", " old.jsonl", " NEW", " new.jsonl",
			" INPUT", " input.jsonl", " OUTPUT", " output.jsonl").Replace(command)
		sh := exec.Command("sh", "-c", command)
		sh.Dir = dir
		if out, err := sh.CombinedOutput(); err != nil {
			t.Errorf("%s: %s: %v: %s", c.name, command, err, out)
			continue
		}
		if got := conversations(readAll(t, openFiles(t, o, path("new.jsonl")))); got != c.want {
			t.Errorf("%s: %s\n gives %s, want %s", c.name, command, got, c.want)
		}
	}
}

// conversations are the prompts and answers of rows.
func conversations(rows []Row) string {
	var b strings.Builder
	for _, r := range rows {
		for _, m := range r.Messages {
			fmt.Fprintf(&b, "%s: %s", m.Role, m.Text())
		}
		fmt.Fprintf(&b, " => %s; ", r.Teacher)
	}
	return b.String()
}
