package main

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

	"github.com/urfave/cli/v2"

	"gad/model"
	"gad/tokenizer"
)

// chatCommand is gad chat.
func (p *program) chatCommand() *cli.Command {
	return &cli.Command{
		Name:  "chat",
		Usage: "talk with a model in the terminal",
		Description: "A line is a message; several lines are one between \"\"\" and \"\"\", or pasted. /system TEXT sets the system message, /reset begins a new conversation, /help lists the commands, /exit or Ctrl-D ends the program, Ctrl-C ends the answer.\n" +
			"Standard input may be a pipe: every line of it is a message, and the exit status is 1 if one got no answer.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: modelUsage},
			adapterFlag("model"),
			weightsFlag(),
			&cli.StringFlag{Name: "system", Usage: "system message"},
			&cli.IntFlag{Name: "max-new-tokens", Value: 1536, DefaultText: "1536, or what the model's context leaves after the conversation", Usage: "longest answer, tokens"},
			&cli.Float64Flag{Name: "temperature", Value: 0.8, Usage: "sampling temperature; 0 is greedy"},
			&cli.Float64Flag{Name: "top-p", Value: 1, Usage: "keep the smallest set of tokens with this probability"},
			&cli.Float64Flag{Name: "min-p", Usage: "drop tokens less probable than this share of the best"},
			&cli.IntFlag{Name: "top-k", Usage: "keep the k most probable tokens; 0 is all"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of sampling; equal seeds and messages give equal answers"},
		}, deviceFlags()...),
		Action: func(c *cli.Context) error {
			if err := checkChatFlags(c); err != nil {
				return err
			}
			l, err := p.load(c, c.String("model"), model.LM)
			if err != nil {
				return err
			}
			defer l.close()
			if l.tok.ChatTemplate() == "" {
				_, err := l.tok.ChatPrompt(nil)
				return err
			}
			t := &talk{p: p, c: c, l: l, speaker: &speaker{m: l.m}, system: c.String("system"), in: os.Stdin, prompts: terminal(os.Stdin), editor: newEditor(os.Stdin, p.err)}
			defer t.speaker.close()
			return t.run()
		},
	}
}

// checkChatFlags refuses what gad chat cannot mean.
func checkChatFlags(c *cli.Context) error {
	if err := errors.Join(noArguments(c), need(c, "model")); err != nil {
		return err
	}
	for name, least := range map[string]int{"max-new-tokens": 1, "top-k": 0} {
		if c.Int(name) < least {
			return usage("chat: --%s %d: must be at least %d", name, c.Int(name), least)
		}
	}
	return errors.Join(inRange(c, "temperature", 1e6), aboveZero(c, "top-p"), inRange(c, "top-p", 1), inRange(c, "min-p", 1))
}

// talk is one gad chat.
type talk struct {
	p       *program
	c       *cli.Context
	l       *loaded
	speaker *speaker
	in      io.Reader
	prompts bool    // somebody types
	editor  *editor // of what is typed; nil: lines come as they are

	line       int   // of the input
	unanswered []int // lines

	system  string
	history []tokenizer.Message // without the system message

	answering atomic.Bool
	stopped   atomic.Bool // the answer, by Ctrl-C
}

// run reads messages to the end.
func (t *talk) run() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	if t.editor != nil { // a terminal is not left raw
		signal.Notify(signals, stopSignals...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { signal.Stop(signals); cancel() }()
	go func() {
		for {
			select {
			case s := <-signals:
				if s != os.Interrupt {
					t.editor.restore()
					os.Exit(exitStopped)
				}
				if t.answering.Load() {
					t.stopped.Store(true)
				} else if t.editor != nil {
					t.editor.say(leaving)
				} else if t.prompts {
					fmt.Fprint(t.p.err, "\n"+leaving+"\n> ")
				} else {
					os.Exit(exitStopped) // nobody reads, nothing is lost
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	if t.prompts {
		fmt.Fprintln(t.p.err, "/help lists the commands; Ctrl-C ends an answer")
	}
	lines := bufio.NewReader(t.in)
	read := func() (line string, literal bool, err error) {
		if t.editor != nil {
			return t.editor.message()
		}
		if t.prompts {
			fmt.Fprint(t.p.err, "> ")
		}
		if line, err = readLine(lines); t.prompts {
			line = printable(line)
		}
		return line, false, err
	}
	for {
		line, literal, err := read()
		if errors.Is(err, errInterrupted) {
			fmt.Fprint(t.p.err, "\n"+leaving+"\n")
			continue
		}
		if errors.Is(err, io.EOF) {
			if t.prompts {
				fmt.Fprintln(t.p.err)
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

// refuse says why a line gets no answer.
func (t *talk) refuse(format string, args ...any) {
	t.unanswered = append(t.unanswered, t.line)
	fmt.Fprintf(t.p.err, "gad: chat: "+format+"\n", args...)
}

// where is how a line is named: nobody has to count those that he types.
func (t *talk) where(what string) string {
	if t.prompts {
		return what
	}
	return fmt.Sprintf("%s of line %d", what, t.line)
}

// end is the error of a script whose messages were not all answered; who types has seen it.
func (t *talk) end() error {
	switch n := len(t.unanswered); {
	case t.prompts || n == 0:
		return nil
	case n == 1:
		return marked{errRunning, fmt.Errorf("chat: line %d got no answer", t.unanswered[0])}
	default:
		const most = 10
		list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(t.unanswered[:min(n, most)])), ", "), "[]")
		if n > most {
			list += ", ..."
		}
		return marked{errRunning, fmt.Errorf("chat: %d lines got no answer: %s", n, list)}
	}
}

// readLine is a line without its end.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxPromptBytes {
			return "", usage("chat: a line has more than %d MB", maxPromptBytes>>20)
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
			return "", usage("chat: standard input is not UTF-8 text")
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

// take does what a line says; more is false at the end. A literal one is no command.
func (t *talk) take(line string, literal bool) (more bool, err error) {
	word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case word == "":
		return true, nil
	case literal:
		return true, t.answer(line)
	case word == "/help" || word == "/?":
		fmt.Fprint(t.p.err, chatHelp)
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
		t.refuse("%s: is not known: /help lists the commands", harmless(word))
		return true, nil
	}
	return true, t.answer(line)
}

// answer says a message and prints what the model answers.
func (t *talk) answer(text string) error {
	conversation := append(t.history[:len(t.history):len(t.history)], tokenizer.Message{Role: "user", Content: text})
	whole := conversation
	if t.system != "" {
		whole = append([]tokenizer.Message{{Role: "system", Content: t.system}}, conversation...)
	}
	prompt, err := t.l.tok.ChatPrompt(whole)
	if err != nil {
		return err
	}
	limit := t.c.Int("max-new-tokens")
	room := t.l.m.Config().MaxPosition - len(prompt)
	if room < 1 {
		what, out := "conversation with the "+t.where("message"), "/reset begins a new one"
		if len(t.history) == 0 {
			what, out = t.where("message"), "shorten it"
			if t.system != "" {
				what, out = t.where("message")+" with the system message", "shorten one of them"
			}
		}
		t.refuse("the %s has %d tokens, the model takes %d with the answer: %s", what, len(prompt), t.l.m.Config().MaxPosition, out)
		return nil
	}
	limit = min(limit, room)
	t.stopped.Store(false)
	t.answering.Store(true)
	defer t.answering.Store(false)
	out, words := t.l.tok.Stream(true), strings.Builder{}
	var failed error
	say := func(text string) {
		words.WriteString(text)
		if text != "" && failed == nil {
			_, failed = io.WriteString(t.p.out, shown(t.p.out, text))
		}
	}
	begun, tokens := time.Now(), 0
	r := &model.Request{Prompt: prompt, N: 1, MaxNew: limit, EOS: t.l.tok.EOS(), Seed: t.c.Uint64("seed"), Step: uint64(len(t.history)), Sampling: sampling(t.c),
		Token: func(_ int, token model.Token) bool { tokens++; say(out.Next(token.ID)); return true },
		Gone:  func() bool { return t.stopped.Load() || failed != nil },
	}
	answer, ended, err := t.speaker.answer(r)
	say(out.End())
	if failed == nil {
		_, failed = io.WriteString(t.p.out, "\n")
	}
	if failed != nil {
		return fmt.Errorf("chat: standard output: %w", failed)
	}
	switch {
	case err != nil:
		return err
	case !ended:
		fmt.Fprintln(t.p.err, "gad: note: the answer was stopped")
	default:
		t.p.sayCut([]model.Completion{answer}, limit)
	}
	if t.prompts {
		fmt.Fprintf(t.p.err, "(%d tokens of the conversation, %d of the answer, %.1f s)\n", len(prompt), tokens, time.Since(begun).Seconds())
	}
	t.history = append(conversation, tokenizer.Message{Role: "assistant", Content: words.String()})
	return nil
}

// speaker has one engine for all answers of a conversation, whose cache keeps what was said:
// a turn computes what is new.
type speaker struct {
	m       *model.Model
	engine  *model.Engine // nil until the first answer
	longest int           // tokens that it has room for
}

const (
	chatPage = 16      // tokens
	chatRoom = 1 << 12 // tokens that the cache has room for at first, if the model takes so many
)

// answer answers a request; ended is false where it is gone before.
func (s *speaker) answer(r *model.Request) (answer model.Completion, ended bool, err error) {
	need, told := len(r.Prompt)+r.MaxNew, false
	token := r.Token
	r.Token = func(sample int, t model.Token) bool { told = true; return token(sample, t) }
	r.Done = func(_ int, c model.Completion) { answer, ended = c, true }
	try := func(room int) (err error) {
		if s.engine == nil || s.longest < room {
			if err = s.open(room); err != nil {
				return err
			}
		}
		if err = s.engine.Submit(r); err != nil {
			return err
		}
		for !s.engine.Idle() && err == nil {
			err = s.engine.Step()
		}
		if err != nil { // it is of no use any more
			s.close()
		}
		return err
	}
	// A conversation that grows is computed anew as often as its length doubles.
	room := need
	if s.longest < need {
		room = min(max(2*need, chatRoom), s.m.Config().MaxPosition)
	}
	if err = try(room); errors.Is(err, model.ErrMemory) && !told {
		err = try(need) // what one answer takes
	}
	return answer, ended, err
}

// open makes an engine with room for so many tokens.
func (s *speaker) open(longest int) (err error) {
	s.close()
	o := model.EngineOptions{Slots: 1, PageTokens: chatPage, Longest: longest, Pages: (longest+chatPage-1)/chatPage + 1, Keep: true}
	if s.engine, err = s.m.NewEngine(o); err == nil {
		s.longest = longest
	}
	return err
}

func (s *speaker) close() {
	if s.engine != nil {
		s.engine.Close()
	}
	s.engine, s.longest = nil, 0
}
