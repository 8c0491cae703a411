package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// ofEditor are the control sequences that the editor of lines writes.
var ofEditor = regexp.MustCompile("\x1b\\[[?0-9;]*[a-zA-Z]")

// On a terminal gad chat prompts; no control character of the model's reaches it; Ctrl-C at
// the prompt says how to leave, and Ctrl-D leaves.
func TestChatOnTerminal(t *testing.T) {
	path, student := built(t), ready(t).path("student")
	args := []string{"--model", student, "--max-new-tokens", "60", "--temperature", "2", "--seed",
		"4"}
	isControl := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	_, piped, _ := talking(t, "x\n", args...)
	if !strings.ContainsFunc(piped, isControl) {
		t.Fatalf("%q has no control character: the test shows nothing", piped)
	}
	p, ours := atTerminal(t, 80, true, path, append([]string{"chat"}, args...)...)
	prompts := func(n int) func() bool {
		return func() bool { return strings.Count(p.said.String(), "> ") >= n }
	}
	wait(t, "the prompt", prompts(1))
	begun := len(p.said.String())
	ours.WriteString("x\r")
	p.hears(t, " of the answer, ")
	answer := ofEditor.ReplaceAllString(strings.ReplaceAll(p.said.String()[begun:], "\r\n", "\n"),
		"")
	if i := strings.IndexFunc(answer, isControl); i >= 0 {
		t.Errorf("a control character, %q, reaches the terminal: %q", answer[i], answer)
	}
	if !strings.ContainsRune(answer, '\uFFFD') {
		t.Errorf("%q has none of the signs for what was left out", answer)
	}
	// The arrow gets the message back; it is answered as before, and no arrow reaches the model.
	ours.WriteString("/reset\r")
	wait(t, "the prompt after /reset", prompts(3))
	begun = len(p.said.String())
	ours.WriteString("\x1b[A\x1b[A\r")
	ended := regexp.MustCompile(`\([0-9]+ tokens of the conversation, [0-9]+ of the answer, `)
	wait(t, "the answer to the message from the history",
		func() bool { return ended.MatchString(p.said.String()[begun:]) })
	again := ofEditor.ReplaceAllString(strings.ReplaceAll(p.said.String()[begun:], "\r\n", "\n"),
		"")
	if a, b := ended.FindString(answer), ended.FindString(again); a != b {
		t.Errorf("the message from the history is answered as %q, at first as %q:\n%q\n%q", b, a,
			again, answer)
	}
	ours.WriteString("/?\r")
	p.hears(t, "/exit, Ctrl-D  end the program\r\n")
	ours.WriteString("\x03")
	p.hears(t, "/exit or Ctrl-D ends the program")
	ours.WriteString("/frobnicate\r") // who types has seen why it is not answered
	p.hears(t, "gad: chat: /frobnicate: is not known: /help lists the commands")
	ours.WriteString("\x04")
	p.wants(t, exitDone)
}
