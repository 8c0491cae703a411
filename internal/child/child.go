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

// Deadline is the environment variable with the Unix time, in seconds, at which a program is
// killed.
const Deadline = "GAD_DEADLINE"

// Process is a program that was started; it runs or has ended.
type Process struct {
	In io.WriteCloser // standard input, where Start got no reader

	cmd    *exec.Cmd
	stderr tail
}

// Start runs line, a command for the shell, with gad's own path in the variable GAD. The program
// reads its standard input from in; a nil in makes the pipe Process.In. Its standard output goes to
// out; an out with ReadFrom reads the pipe itself, to its end. When ctx ends, the process group is
// killed; if ctx has a deadline, the variable GAD_DEADLINE has it as Unix time, in seconds. env
// adds variables, as NAME=VALUE. The caller must call Wait.
func Start(ctx context.Context, line string, in io.Reader, out io.Writer,
	env ...string) (*Process, error) {
	p := &Process{cmd: command(ctx, line)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, out, &p.stderr
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

// Wait waits for the program's end and for its output. It returns an exit status or a signal (see
// Ended), the context's error, or an error of in or out.
func (p *Process) Wait() error {
	if err := p.cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
		return err
	}
	return nil
}

// Ended reports whether err, returned by Wait, is an exit status other than 0 or a signal.
func Ended(err error) bool {
	_, is := errors.AsType[*exec.ExitError](err)
	return is
}

// Kill ends the process group, even if the program has ended and only its children are left.
func (p *Process) Kill() error { return kill(p.cmd) }

// StderrNote returns the last three lines of standard error as the end of a message, `; it said
// "..."`, on one line, or "".
func (p *Process) StderrNote() string { return p.stderr.String() }

// StderrLines returns the last lines of standard error, at most 4 kB, without control characters
// and empty lines.
func (p *Process) StderrLines() []string { return p.stderr.lines() }

// maxStderr bounds the bytes of standard error that are kept.
const maxStderr = 4 << 10

// tail is a writer that keeps the last maxStderr bytes.
type tail struct {
	mu   sync.Mutex
	last []byte
}

// Write appends p and drops bytes from the front beyond maxStderr. It never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p[max(0, len(p)-maxStderr):]...)
	t.last = t.last[max(0, len(t.last)-maxStderr):]
	return len(p), nil
}

// lines returns the kept bytes as lines, without control characters and empty lines. The first line
// may lack its beginning.
func (t *tail) lines() (all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.Lines(strings.ToValidUTF8(string(t.last), "?")) {
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

// String returns the last three lines in quotes behind "; it said ", at most 300 characters of
// them.
func (t *tail) String() string {
	const lines, most = 3, 300
	last := t.lines()
	if len(last) == 0 {
		return ""
	}
	text := []rune(strings.Join(last[max(0, len(last)-lines):], " | "))
	return "; it said " + strconv.Quote(string(text[max(0, len(text)-most):]))
}

// Quote returns text in quotes for a message, cut after 60 bytes at a character's border.
func Quote(text string) string {
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

// CheckLabel returns an error for a label that is not printable or has more than 100 characters. A
// label names a kind of answer.
func CheckLabel(label string) error {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.RuneCountInString(label) > maxLabel || strings.ContainsFunc(label, hidden) {
		return fmt.Errorf(
			"label %s: must be printable and at most %d characters: a label names a kind of answer",
			Quote(label), maxLabel)
	}
	return nil
}
