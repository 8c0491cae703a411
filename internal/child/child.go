// Package child starts the programs of the user's that gad works with, a checker of answers or an
// environment, and nothing else: only commands that the user typed.
//
// A program runs under the shell in a process group of its own, so that whatever it starts ends
// with it. Of its standard error the end is kept for messages.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// Deadline is the variable that says when a program will be killed.
const Deadline = "GAD_DEADLINE"

// Process is a program that runs, or has ended.
type Process struct {
	In io.WriteCloser // standard input, where Start was given none

	cmd  *exec.Cmd
	said tail
}

// Start runs line, a command for the shell, with gad's own path in the variable GAD. in is its
// standard input; nil makes the pipe Process.In. out gets its standard output; an out with ReadFrom
// reads the pipe itself, until its end. When ctx ends, the process group is killed; where that time
// is known, the variable GAD_DEADLINE has it as Unix time, in seconds. env are more variables, as
// NAME=VALUE. Wait must be called.
func Start(ctx context.Context, line string, in io.Reader, out io.Writer,
	env ...string) (*Process, error) {
	p := &Process{cmd: command(ctx, line)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, out, &p.said
	p.cmd.Env = os.Environ()
	if self, err := os.Executable(); err == nil {
		p.cmd.Env = append(p.cmd.Env, "GAD="+self)
	}
	if at, ok := ctx.Deadline(); ok {
		p.cmd.Env = append(p.cmd.Env, Deadline+"="+strconv.FormatInt(at.Unix(), 10))
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Cancel = p.Kill
	p.cmd.WaitDelay = time.Second // a process that has inherited the output may outlive the program
	if in == nil {
		pipe, err := p.cmd.StdinPipe()
		if err != nil {
			return nil, err
		}
		p.In = pipe
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Wait waits for the program's end and for its output. An error is that of exit status or signal
// (see Ended), of the context, or of in and out.
func (p *Process) Wait() error {
	if err := p.cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil
}

// Ended reports whether err, of Wait, is an exit status other than 0 or a signal.
func Ended(err error) bool {
	_, is := errors.AsType[*exec.ExitError](err)
	return is
}

// Kill ends the process group, also where only processes that the program has started are left.
func (p *Process) Kill() error { return kill(p.cmd) }

// Said is the last lines of standard error behind "; it said ", on one line; "" where there are
// none.
func (p *Process) Said() string { return p.said.String() }

// Lines are the last lines of standard error, without control characters and empty ones.
func (p *Process) Lines() []string { return p.said.lines() }

// keptError is how many bytes of standard error are kept.
const keptError = 4 << 10

// tail keeps the last bytes that are written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// Write takes everything and keeps the end.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-keptError):]...)
	t.kept = t.kept[max(0, len(t.kept)-keptError):]
	return len(p), nil
}

// lines are what is kept, without empty lines. The first may have lost its beginning.
func (t *tail) lines() (all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.Lines(strings.ToValidUTF8(string(t.kept), "?")) {
		line = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) && r != '\t' {
				return -1
			}
			return r
		}, line)
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

func (t *tail) String() string {
	const lines, most = 3, 300
	last := t.lines()
	if len(last) == 0 {
		return ""
	}
	text := []rune(strings.Join(last[max(0, len(last)-lines):], " | "))
	return "; it said " + strconv.Quote(string(text[max(0, len(text)-most):]))
}

// Quoted is text in quotes for a message, cut after 60 bytes.
func Quoted(text string) string {
	most := 60
	if len(text) <= most {
		return strconv.Quote(text)
	}
	for back := most; back > most-utf8.UTFMax; back-- { // not within a character
		if utf8.RuneStart(text[back]) {
			most = back
			break
		}
	}
	return strconv.Quote(text[:most] + "...")
}

const maxLabel = 100 // characters

// CheckLabel refuses a text that cannot name a kind of answer.
func CheckLabel(label string) error {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.RuneCountInString(label) > maxLabel || strings.ContainsFunc(label, hidden) {
		return fmt.Errorf(
			"label %s: must be printable and at most %d characters: a label names a kind of answer",
			Quoted(label), maxLabel)
	}
	return nil
}
