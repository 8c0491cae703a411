// Package chat implements gad chat: a conversation with a model in the terminal, or by lines of a
// pipe.
//
//	chat.go     Options, the conversation, its commands and signals: start here
//	speaker.go  one engine for all answers, whose cache keeps the conversation
//	editor.go   lines typed at a terminal: keys, history, pasted text
package chat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"gad/apps/session"
	"gad/internal/compute"
	"gad/internal/fault"
	"gad/model"
	"gad/tokenizer"
)

// Options is the flags of gad chat, and the signals that end it.
type Options struct {
	session.Source
	compute.Sampling
	System string       // "": none
	MaxNew int          // tokens of an answer
	Chunks model.Chunks // chunks of answers
	Seed   uint64

	StopSignals []os.Signal // end the program, after the terminal's settings are restored
	Exit        func()      // ends the process by such a signal
}

// Run holds a conversation until the end of standard input.
func Run(s *session.Session, o Options) error {
	m, err := s.Load(o.Source, model.LM)
	if err != nil {
		return err
	}
	defer m.Close()
	if m.Tokenizer.ChatTemplate() == "" {
		_, err := m.Tokenizer.ChatPrompt(nil)
		return err
	}
	if err := session.CheckChunks("chat", m, o.Chunks); err != nil {
		return err
	}
	t := &talk{s: s, o: o, m: m, speaker: &speaker{m: m.Model}, system: o.System, in: os.Stdin,
		prompts: session.Terminal(os.Stdin), editor: newEditor(os.Stdin, s.Err)}
	defer t.speaker.close()
	return t.run()
}

// talk is a run of gad chat.
type talk struct {
	s       *session.Session
	o       Options
	m       *session.Model
	speaker *speaker
	in      io.Reader
	prompts bool    // input is a terminal: print prompts
	editor  *editor // of typed lines; nil: input is read by lines

	line       int   // number of the input line
	unanswered []int // numbers of lines without an answer

	system  string
	history []tokenizer.Message // without the system message

	answering atomic.Bool
	stopped   atomic.Bool // Ctrl-C has ended the answer
}

// run reads messages up to the end of the input and answers them.
func (t *talk) run() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	if t.editor != nil { // so that no signal leaves the terminal raw
		signal.Notify(signals, t.o.StopSignals...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { signal.Stop(signals); cancel() }()
	go func() {
		for {
			select {
			case s := <-signals:
				if s != os.Interrupt {
					t.editor.restore()
					t.o.Exit()
				}
				if t.answering.Load() {
					t.stopped.Store(true)
				} else if t.editor != nil {
					t.editor.printAbove(leaving)
				} else if t.prompts {
					fmt.Fprint(t.s.Err, "\n"+leaving+"\n> ")
				} else {
					t.o.Exit() // between answers of a pipe: no answer is lost
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if t.prompts {
		fmt.Fprintln(t.s.Err, "/help lists the commands; Ctrl-C ends an answer")
	}
	lines := bufio.NewReader(t.in)
	read := func() (line string, literal bool, err error) {
		if t.editor != nil {
			return t.editor.message()
		}
		if t.prompts {
			fmt.Fprint(t.s.Err, "> ")
		}
		if line, err = readLine(lines); t.prompts {
			line = printable(line)
		}
		return line, false, err
	}
	for {
		line, literal, err := read()
		if errors.Is(err, errInterrupted) {
			fmt.Fprint(t.s.Err, "\n"+leaving+"\n")
			continue
		}
		if errors.Is(err, io.EOF) {
			if t.prompts {
				fmt.Fprintln(t.s.Err)
			}
			return t.end()
		}
		if err != nil {
			return err
		}
		t.line++
		if more, err := t.take(line, literal); err != nil {
			return err
		} else if !more {
			return t.end()
		}
	}
}

// refuse prints why a line gets no answer, and records it.
func (t *talk) refuse(format string, args ...any) {
	t.unanswered = append(t.unanswered, t.line)
	fmt.Fprintf(t.s.Err, "gad: chat: "+format+"\n", args...)
}

// lineName returns what with the number of the line; without it at a terminal, where lines have no
// numbers.
func (t *talk) lineName(what string) string {
	if t.prompts {
		return what
	}
	return fmt.Sprintf("%s of line %d", what, t.line)
}

// end returns an error for a script with unanswered messages. At a terminal the user has seen them,
// and it returns nil.
func (t *talk) end() error {
	switch n := len(t.unanswered); {
	case t.prompts || n == 0:
		return nil
	case n == 1:
		return fault.As(fault.ErrRunning,
			fmt.Errorf("chat: line %d got no answer", t.unanswered[0]))
	default:
		const most = 10
		list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(t.unanswered[:min(n, most)])),
			", "), "[]")
		if n > most {
			list += ", ..."
		}
		return fault.As(fault.ErrRunning, fmt.Errorf("chat: %d lines got no answer: %s", n, list))
	}
}

// readLine reads a line and returns it without its end.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > session.MaxPromptBytes {
			return "", fault.Usagef("chat: a line has more than %d MB", session.MaxPromptBytes>>20)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
		case errors.Is(err, io.EOF):
			return "", io.EOF
		case err != nil:
			return "", fmt.Errorf("chat: standard input: %w", err)
		}
		text := strings.TrimRight(string(line), "\r\n")
		if !utf8.ValidString(text) {
			return "", fault.Usagef("chat: standard input is not UTF-8 text")
		}
		return text, nil
	}
}

// leaving is the answer to Ctrl-C at the prompt.
const leaving = "/exit or Ctrl-D ends the program"

// chatHelp is the answer to /help.
const chatHelp = `/system TEXT   set the system message; without TEXT there is none
/reset         begin a new conversation; the system message stays
/help, /?      this list
/exit, Ctrl-D  end the program
Ctrl-C         end the answer
"""            begins a message of several lines, and ends it
`

// take handles a line; more is false at the end of the conversation. A literal line is never a
// command.
func (t *talk) take(line string, literal bool) (more bool, err error) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case word == "":
		return true, nil
	case literal:
		return true, t.answer(line)
	case word == "/help" || word == "/?":
		fmt.Fprint(t.s.Err, chatHelp)
		return true, nil
	case word == "/exit":
		return false, nil
	case word == "/reset":
		t.history = nil
		return true, nil
	case word == "/system":
		t.system = strings.TrimSpace(rest)
		return true, nil
	case strings.HasPrefix(word, "/"):
		t.refuse("%s: is not known: /help lists the commands", session.Harmless(word))
		return true, nil
	}
	return true, t.answer(line)
}

// answer adds a message to the conversation and prints the model's answer.
func (t *talk) answer(text string) error {
	conversation := append(t.history[:len(t.history):len(t.history)],
		tokenizer.Message{Role: "user", Content: text})
	whole := conversation
	if t.system != "" {
		whole = append([]tokenizer.Message{{Role: "system", Content: t.system}}, conversation...)
	}
	prompt, err := t.m.Tokenizer.ChatPrompt(whole)
	if err != nil {
		return err
	}
	limit := t.o.MaxNew
	room := t.m.Config().MaxPosition - len(prompt)
	inContext := limit
	if t.o.Chunks.On() {
		inContext = min(limit, t.o.Chunks.Size)
	}
	if room < 1 || t.o.Chunks.On() && room < inContext {
		what, out := "conversation with the "+t.lineName("message"), "/reset begins a new one"
		if len(t.history) == 0 {
			what, out = t.lineName("message"), "shorten it"
			if t.system != "" {
				what, out = t.lineName("message")+" with the system message", "shorten one of them"
			}
		}
		t.refuse("the %s has %d tokens, the model takes %d with the answer: %s", what, len(prompt),
			t.m.Config().MaxPosition, out)
		return nil
	}
	if !t.o.Chunks.On() {
		limit = min(limit, room)
	}
	t.stopped.Store(false)
	t.answering.Store(true)
	defer t.answering.Store(false)
	out, words := t.m.Tokenizer.Stream(true), strings.Builder{}
	var failed error
	say := func(text string) {
		words.WriteString(text)
		if text != "" && failed == nil {
			_, failed = io.WriteString(t.s.Out, session.Printable(t.s.Out, text))
		}
	}
	begun, tokens := time.Now(), 0
	r := &model.Request{Prompt: prompt, N: 1, MaxNew: limit, Chunks: t.o.Chunks,
		EOS:  t.m.Tokenizer.EOS(),
		Seed: t.o.Seed, Step: uint64(len(t.history)), Sampling: t.o.Sampling,
		Token: func(_ int, token model.Token) bool {
			tokens++
			say(
				out.Next(token.ID))
			return true
		},
		Gone: func() bool { return t.stopped.Load() || failed != nil },
	}
	answer, ended, err := t.speaker.answer(r)
	say(out.End())
	if failed == nil {
		_, failed = io.WriteString(t.s.Out, "\n")
	}
	if failed != nil {
		return fmt.Errorf("chat: standard output: %w", failed)
	}
	switch {
	case err != nil:
		return err
	case !ended:
		fmt.Fprintln(t.s.Err, "gad: note: the answer was stopped")
	default:
		t.s.SayCut([]model.Completion{answer}, limit)
	}
	if t.prompts {
		fmt.Fprintf(t.s.Err, "(%d tokens of the conversation, %d of the answer, %.1f s)\n",
			len(prompt), tokens, time.Since(begun).Seconds())
	}
	t.history = append(conversation, tokenizer.Message{Role: "assistant", Content: words.String()})
	return nil
}
