// Package collecttest has prompts, a teacher and its episodes for tests that collect answers.
package collecttest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gad/internal/endpoint/endpointtest"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// Teacher starts a server and stops it at the test's end.
func Teacher(t testing.TB, s *endpointtest.Server) *endpointtest.Server {
	t.Helper()
	if _, err := endpointtest.Start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Prompts writes n prompts into the file path; every third is a conversation.
func Prompts(t testing.TB, path string, n int) {
	t.Helper()
	var b strings.Builder
	for i := range n {
		if i%3 == 1 {
			fmt.Fprintf(&b, `{"id":"r%d","messages":[{"role":"system","content":"be %d"},`+
				`{"role":"user","content":"p%d"}]}`+"\n", i, i, i)
		} else {
			fmt.Fprintf(&b, `{"id":"r%d","messages":[{"role":"user","content":"p%d"}],"level":3}`+
				"\n", i, i)
		}
	}
	Put(t, path, strings.TrimSuffix(b.String(), "\n"))
}

// Put writes a file of lines.
func Put(t testing.TB, path string, lines ...string) {
	t.Helper()
	text := []byte(strings.Join(lines, "\n") + "\n")
	if err := vfs.WriteFile(vfstest.NoSync(vfs.OS), path, text); err != nil {
		t.Fatal(err)
	}
}

// Drop removes a file.
func Drop(t testing.TB, path string) {
	t.Helper()
	if err := vfs.OS.Remove(path); err != nil {
		t.Fatal(err)
	}
}

var aNumber = regexp.MustCompile(`[0-9]+`)

// Adds plays a teacher of the environment calculator. It returns its next turn in a conversation: a
// call that adds a and b, or, after the last number, the sum a. The scripted teacher of gad task
// make does the same.
func Adds(messages []struct{ Role, Content string }) (call bool, a, b int) {
	var numbers []int
	last, calls := 0, 0
	for _, m := range messages {
		switch {
		case m.Role == "user" && numbers == nil:
			for _, s := range aNumber.FindAllString(m.Content, -1) {
				n, _ := strconv.Atoi(s)
				numbers = append(numbers, n)
			}
			last = numbers[0]
		case m.Role == "tool":
			last, _ = strconv.Atoi(m.Content)
			calls++
		}
	}
	if calls+1 < len(numbers) {
		return true, last, numbers[calls+1]
	}
	return false, last, 0
}

// AddsAsText returns the next turn of Adds as text.
func AddsAsText(c endpointtest.Call, _ int) (text, finish string) {
	call, a, b := Adds(c.Messages)
	if !call {
		return fmt.Sprintf("The sum is %d.", a), "stop"
	}
	return fmt.Sprintf(
		"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": %d, \"b\": %d}}\n</tool_call>", a,
		b), "stop"
}
