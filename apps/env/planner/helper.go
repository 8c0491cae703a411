package planner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gad/internal/endpoint"
	"gad/internal/vfs"
)

// Helper plays the roles by a model behind an endpoint at temperature 0: the executor's commands,
// the verifier and the generator. It requests no answer twice: within the process, and with Dir in
// any process.
type Helper struct {
	Client *endpoint.Client
	Model  string
	// Dir is a folder with a file for each answer; "" keeps answers in memory only, so that an
	// episode replayed in another process requests them again.
	Dir string
	FS  vfs.FS

	mu      sync.Mutex
	answers map[string]*answer // by key
}

// answer is the answer to one prompt; mu is held during its request.
type answer struct {
	mu   sync.Mutex
	text string
	has  bool
}

// Limits of a helper.
const (
	helperPlaces = 16 // simultaneous episodes, each with a request in flight
	helperTokens = 1024
)

// journalEntry is the content of a file in Dir.
type journalEntry struct {
	Model  string `json:"model"`
	Prompt string `json:"prompt"`
	Answer string `json:"answer"`
}

// ask returns the answer to a prompt, from memory, Dir or the endpoint.
func (h *Helper) ask(ctx context.Context, prompt string) (string, error) {
	sum := sha256.Sum256([]byte(h.Model + "\n" + prompt))
	key := hex.EncodeToString(sum[:])
	h.mu.Lock()
	if h.answers == nil {
		h.answers = map[string]*answer{}
	}
	a := h.answers[key]
	if a == nil {
		a = &answer{}
		h.answers[key] = a
	}
	h.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.has {
		return a.text, nil
	}
	path := filepath.Join(h.Dir, key+".json")
	if h.Dir != "" {
		raw, err := h.FS.ReadFile(path)
		if err == nil {
			var k journalEntry
			if json.Unmarshal(raw, &k) != nil || k.Model != h.Model || k.Prompt != prompt {
				return "", fmt.Errorf("%s: is no answer of the helper: remove it, to ask again",
					path)
			}
			a.text, a.has = k.Answer, true
			return a.text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	zero := 0.0
	got, err := h.Client.Chat(ctx, endpoint.Request{Model: h.Model, Temperature: &zero,
		MaxTokens: helperTokens,
		Messages:  []endpoint.Message{{Role: "user", Content: prompt}}})
	if err != nil {
		return "", err
	}
	text := got.Choices[0].Content
	if h.Dir != "" {
		raw, err := json.Marshal(journalEntry{h.Model, prompt, text})
		if err == nil {
			err = vfs.WriteFile(h.FS, path, append(raw, '\n'))
		}
		if err != nil {
			return "", err
		}
	}
	a.text, a.has = text, true
	return text, nil
}

func (*Helper) field() string { return "Context" }

func (*Helper) places() int { return helperPlaces }

var (
	commandLine = regexp.MustCompile(`(?m)^Command:[ \t]*(.*?)[ \t\r]*$`)
	answerLine  = regexp.MustCompile(`(?m)^Answer:[ \t]*(.*?)[ \t\r]*$`)
	conclusion  = regexp.MustCompile(`\b(STOP|CONTINUE)\b`)
)

// lastMatch returns the last match of a pattern's group in a helper's answer, "" for none.
func lastMatch(line *regexp.Regexp, text string) string {
	all := line.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}

// execute lets the helper write the command, which the tool then runs by rule. A command that
// cannot run becomes a step whose result says so: the plan was valid, and the next one may give
// more context.
func (h *Helper) execute(ctx context.Context, q *question, s step) (step, string, error) {
	t := toolNamed(s.Tool)
	text, err := h.ask(ctx, fmt.Sprintf(`Write the command for one step of a plan.
Question: %s
Sub-Goal: %s
Context: %s
Tool: %s, %s
A command is %s. End with one line, "Command: " and the command.`, q.Question, s.SubGoal, s.Command,
		t.name, t.about, t.wants))
	if err != nil {
		return s, "", err
	}
	wrote := lastMatch(commandLine, text)
	command, result, ok := t.run(q, wrote)
	if !ok {
		command, result = truncate(wrote), "no result: "+t.name+" wants "+t.wants
	}
	s.Command, s.Result = command, result
	return s, "", nil
}

// truncate returns text cut to the length that views have room for.
func truncate(text string) string {
	if len(text) > maxField {
		text = strings.ToValidUTF8(text[:maxField], "")
	}
	return text
}

// stop asks the helper; it returns false if the helper concludes nothing.
func (h *Helper) stop(ctx context.Context, q *question, memory []step) (bool, error) {
	text, err := h.ask(ctx, fmt.Sprintf(`Is what is in memory enough to answer the question, and is it right?
Question: %s
Tools:
%s%s
End with one word: STOP if it is, CONTINUE if another step is needed.`, q.Question, q.toolLines(),
		memoryText(memory)))
	return lastMatch(conclusion, text) == "STOP", err
}

// right compares the helper's final answer with the question's, word by word.
func (h *Helper) right(ctx context.Context, q *question, memory []step) (bool, error) {
	text, err := h.ask(ctx, fmt.Sprintf(`Answer the question from memory.
Question: %s
%s
End with one line, "Answer: " and the answer alone, without any other word.`, q.Question,
		memoryText(memory)))
	return slices.Equal(words(lastMatch(answerLine, text)), words(q.Answer)), err
}
