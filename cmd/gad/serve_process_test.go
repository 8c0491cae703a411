//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/apps/session/sessiontest"
)

var servingAt = regexp.MustCompile(`serving (\S+) on (http://\S+)/v1\n`)

// serving starts gad serve and returns where it listens.
func serving(t *testing.T, args ...string) (p *process, url string) {
	t.Helper()
	p = start(t, built(t), append([]string{"serve"}, args...)...)
	wait(t, "the address", func() bool { return servingAt.MatchString(p.said.String()) })
	return p, servingAt.FindStringSubmatch(p.said.String())[2]
}

// gad serve answers what gad generate answers, says nothing of what it is asked, and ends
// with status 0 when it is told to.
func TestServe(t *testing.T) {
	f := ready(t)
	actor := f.path("train", "global_step_3", "actor")
	printed, _ := must(t, "generate", "--model", actor, "--prompt", "Add 1+2+3", "--json", "-n",
		"3", "--max-new-tokens", "12", "--temperature", "1", "--seed", "7")
	want := sessiontest.Lines[generated](t, printed)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p, url := serving(t, "--model", actor, "--listen", "127.0.0.1:0")
		res, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"Add 1+2+3"}],"n":3,"seed":7,"max_tokens":12}`))
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(res.Body)
		res.Body.Close()
		var a struct {
			Model   string
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal(raw, &a); err != nil || a.Model != "actor" || len(a.Choices) != 3 {
			t.Fatalf("%v: %s", err, raw)
		}
		for i, c := range a.Choices {
			if c.Message.Content != want[i].Text {
				t.Errorf("answer %d: %q, gad generate says %q", i, c.Message.Content, want[i].Text)
			}
		}
		p.Process.Signal(sig)
		p.wants(t, exitDone)
		said := p.said.String()
		if !regexp.MustCompile(`memory: [0-9.]+ GB of weights, up to [0-9.]+ GB for keys and values \(--cache-tokens 32768\), which fills as requests come\nserving `).MatchString(said) {
			t.Errorf("says nothing of its memory:\n%s", said)
		}
		if !strings.Contains(said, "POST /v1/chat/completions 200, tokens: ") ||
			!strings.Contains(said,
				"stopping: requests under way have 30s to end; a second Ctrl-C stops at once") ||
			strings.Contains(said, "1+2") {
			t.Errorf("says\n%s", said)
		}
	}
}

// On an address that others reach it asks for the key, from the environment or a file, and
// does not say it.
func TestServeKey(t *testing.T) {
	actor := ready(t).path("train", "global_step_3", "actor")
	const key = "0123456789abcdef-key"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"environment", "file"} {
		args := []string{"--model", actor, "--listen", "0.0.0.0:0", "--name", "pupil"}
		if way == "file" {
			args = append(args, "--api-key-file", file)
			t.Setenv(keyVariable, "")
		} else {
			t.Setenv(keyVariable, key)
		}
		p, url := serving(t, args...)
		url = "http://127.0.0.1:" + url[strings.LastIndex(url, ":")+1:]
		for given, want := range map[string]int{"": 401, "Bearer " + key: 200} {
			req, _ := http.NewRequest("GET", url+"/v1/models", nil)
			req.Host = "a.name.of.this.machine"
			req.Header.Set("Authorization", given)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != want || want == 200 && !bytes.Contains(raw, []byte(`"pupil"`)) {
				t.Errorf("%s, given %q: %d %s", way, given, res.StatusCode, raw)
			}
		}
		p.Process.Signal(syscall.SIGTERM)
		if code := p.end(t, patience); code != exitDone || strings.Contains(p.said.String(), key) {
			t.Errorf("%s: exit status %d\n%s", way, code, p.said.String())
		}
	}
}

// talking runs gad chat on the lines and returns what it prints.
func talking(t *testing.T, lines string, args ...string) (code int, out, said string) {
	t.Helper()
	return talkingTo(t, lines, &bytes.Buffer{}, args...)
}

// talkingTo has it print to out.
func talkingTo(t *testing.T, lines string, out interface {
	io.Writer
	fmt.Stringer
}, args ...string) (code int, printed, said string) {
	t.Helper()
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	old := os.Stdin
	os.Stdin = file
	defer func() { os.Stdin = old }()
	var stderr bytes.Buffer
	code = run(append([]string{"gad", "chat"}, args...), out, &stderr)
	return code, out.String(), stderr.String()
}

// A conversation on a pipe is that of the flags, and a line without an answer is exit status 1.
// What is said of such lines: TestLinesWithoutAnswer of apps/chat.
func TestChat(t *testing.T) {
	settings := []string{"--model", ready(t).path("train", "global_step_3", "actor"),
		"--max-new-tokens", "14", "--temperature", "2", "--seed", "3", "--system", "Reverse: e v o d"}
	answer, _ := must(t, slices.Concat([]string{"generate"}, settings,
		[]string{"--prompt", "Add 1+2+3"})...)
	code, out, said := talking(t, "Add 1+2+3\n/frobnicate\n/reset\nAdd 1+2+3", settings...)
	if code != exitFailed || out != answer+answer ||
		!strings.HasSuffix(said, "gad: chat: line 2 got no answer\n") {
		t.Errorf("exit status %d, %q, want twice %q\n%s", code, out, answer, said)
	}
}

// interrupter sends Ctrl-C when it is first written to, waits until it has arrived, however
// busy the machine is, and gives the reader of the signal time.
type interrupter struct {
	b    bytes.Buffer
	sent bool
}

func (w *interrupter) String() string { return w.b.String() }

func (w *interrupter) Write(p []byte) (int, error) {
	if !w.sent {
		w.sent = true
		arrived := make(chan os.Signal, 1)
		signal.Notify(arrived, os.Interrupt)
		defer signal.Stop(arrived)
		syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-arrived
		time.Sleep(300 * time.Millisecond)
	}
	return w.b.Write(p)
}

// Ctrl-C ends the answer, not the program.
func TestChatInterrupted(t *testing.T) {
	student := ready(t).path("student") // untrained: it does not end its answers soon
	args := []string{"--model", student, "--max-new-tokens", "60", "--seed", "4"}
	_, whole, _ := talking(t, "x\n", args...)
	code, out, said := talkingTo(t, "x\n/reset\ny\n", &interrupter{}, args...)
	if code != exitDone || strings.Count(said, "gad: note: the answer was stopped\n") != 1 {
		t.Errorf("exit status %d\n%s", code, said)
	}
	begun := false
	for n := 1; n < len(whole)/2 && !begun; n++ {
		begun = strings.HasPrefix(out, whole[:n]+"\n") && len(out) > n+1
	}
	if !begun {
		t.Errorf("%q, want the beginning of %q, and another answer", out, whole)
	}
}
