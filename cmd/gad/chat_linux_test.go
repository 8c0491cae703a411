package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"
)

// On a terminal gad chat prompts; no control character of the model's reaches it; Ctrl-C at
// the prompt says how to leave, and Ctrl-D leaves.
func TestChatOnTerminal(t *testing.T) {
	path, student := built(t), ready(t).path("student")
	args := []string{"--model", student, "--max-new-tokens", "60", "--temperature", "2", "--seed", "4"}
	isControl := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	_, piped, _ := talking(t, "x\n", args...)
	if !strings.ContainsFunc(piped, isControl) {
		t.Fatalf("%q has no control character: the test shows nothing", piped)
	}
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("NOT TESTED: no terminals here: ", err)
	}
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skip("NOT TESTED: no terminals here: ", err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("NOT TESTED: no terminals here: ", err)
	}
	p := &process{Cmd: exec.Command(path, append([]string{"chat"}, args...)...), done: make(chan error, 1)}
	p.Stdin, p.Stdout, p.Stderr = theirs, theirs, theirs
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := ours.Read(buf)
			p.said.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { p.Process.Kill(); ours.Close() })
	prompts := func(n int) func() bool {
		return func() bool { return strings.Count(p.said.String(), "> ") >= n }
	}
	wait(t, "the prompt", prompts(1))
	begun := len(p.said.String())
	ours.WriteString("x\n")
	wait(t, "the answer", func() bool { return strings.Contains(p.said.String(), " of the answer, ") })
	answer := strings.ReplaceAll(p.said.String()[begun:], "\r\n", "\n")
	if i := strings.IndexFunc(answer, isControl); i >= 0 {
		t.Errorf("a control character, %q, reaches the terminal: %q", answer[i], answer)
	}
	if !strings.ContainsRune(answer, '\uFFFD') {
		t.Errorf("%q has none of the signs for what was left out", answer)
	}
	ours.WriteString("\x03")
	wait(t, "the hint", func() bool { return strings.Contains(p.said.String(), "/exit or Ctrl-D ends the program") })
	ours.WriteString("/frobnicate\n") // who types has seen why it is not answered
	wait(t, "the refusal", func() bool {
		return strings.Contains(p.said.String(), "gad: chat: /frobnicate: is not known: use /system TEXT, /reset or /exit")
	})
	ours.WriteString("\x04")
	if code := p.end(t, patience); code != exitDone {
		t.Errorf("exit status %d\n%s", code, p.said.String())
	}
}
