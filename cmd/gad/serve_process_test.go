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
		if code := p.end(t, patience); code != exitDone {
			t.Errorf("%v: exit status %d\n%s", sig, code, p.said.String())
		}
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

// A conversation on a pipe: each line is answered with what went before in mind, until it
// is reset.
func TestChat(t *testing.T) {
	settings := []string{"--model", ready(t).path("train", "global_step_3", "actor"),
		"--max-new-tokens", "14", "--temperature", "2"}
	answer := func(args ...string) string {
		t.Helper()
		out, _ := must(t, append(append([]string{"generate"}, settings...), args...)...)
		return out
	}
	first, other :=
		answer("--prompt", "Add 1+2+3"),
		answer("--prompt", "Add 1+2+3", "--system", "Reverse: e v o d")
	if first == other {
		t.Fatal("the system message does not matter: the test shows nothing")
	}
	code, out, said := talking(t, "Add 1+2+3\n\n/reset\nAdd 1+2+3\n/reset\n/system Reverse: e v o d\nAdd 1+2+3\n/frobnicate\n/reset\n/system\nAdd 1+2+3", settings...)
	if want := first + first + other + first; code != exitFailed || out != want {
		t.Errorf("exit status %d, %q, want %q\n%s", code, out, want, said)
	}
	if !strings.Contains(said,
		"gad: chat: /frobnicate: is not known: /help lists the commands\n") ||
		!strings.HasSuffix(said, "gad: chat: line 8 got no answer\n") {
		t.Errorf("says %q", said)
	}
	code, twice, _ := talking(t, "Add 1+2+3\nAdd 1+2+3\n", settings...)
	if code != exitDone || !strings.HasPrefix(twice, first) || twice == first+first {
		t.Errorf("the second answer does not know of the first: %q", twice)
	}
	if _, ended, _ := talking(t, "Add 1+2+3\n/exit\nAdd 1+2+3\n", settings...); ended != first {
		t.Errorf("after /exit: %q", ended)
	}
	// A conversation that the model has no room for is not answered, and can begin anew.
	code, out, said = talking(t, strings.Repeat("Add 1+2+3\n", 20)+"/reset\nAdd 1+2+3\n",
		settings...)
	ends := regexp.MustCompile(`gad: chat: (\d+) lines got no answer: ([0-9, ]+)(\.\.\.)?\n$`).FindStringSubmatch(said)
	if ends == nil || !strings.Contains(said, " of line 20 has ") ||
		!strings.Contains(said,
			" tokens, the model takes 128 with the answer: /reset begins a new one\n") ||
		!strings.HasSuffix(out, first) || code != exitFailed {
		t.Fatalf("exit status %d, %q\n%s", code, out, said)
	}
	if n := strings.Count(said, "/reset begins"); ends[1] != fmt.Sprint(n) ||
		!strings.HasPrefix(ends[2], fmt.Sprintf("%d, %d, ", 21-n, 22-n)) {
		t.Errorf("%d of 22 lines are not answered: says %s, %s", n, ends[1], ends[2])
	}
	if code, out, said := talking(t, strings.Repeat("x", 5000)+"\n/exit\nAdd 1+2+3\n",
		settings...); code != exitFailed || out != "" ||
		!strings.HasSuffix(said, "gad: chat: line 1 got no answer\n") {
		t.Errorf("exit status %d, %q\n%s", code, out, said)
	}
	if code, _, said := talking(t, "\xff\n", settings...); code != exitUsage ||
		!strings.HasSuffix(said, "gad: chat: standard input is not UTF-8 text\n") {
		t.Errorf("exit status %d, %s", code, said)
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

// A message that has no room is not the fault of the conversation before it.
func TestChatMessageTooLong(t *testing.T) {
	model := ready(t).path("student")
	long := strings.Repeat("Add 1+2+3 ", 40)
	for _, c := range []struct {
		in   string
		args []string
		want string
	}{
		{long + "\n", nil, "gad: chat: the message of line 1 has 417 tokens, the model takes 128 with the answer: shorten it\n"},
		{"Add 1+2+3\n", []string{"--system", long}, "gad: chat: the message of line 1 with the system message has 435 tokens, the model takes 128 with the answer: shorten one of them\n"},
	} {
		code, out, said := talking(t, c.in, append([]string{"--model", model}, c.args...)...)
		if want := c.want + "gad: chat: line 1 got no answer\n"; code != exitFailed || out != "" ||
			said != want {
			t.Errorf("%q: exit status %d, prints %q\n got %s want %s", c.args, code, out, said,
				want)
		}
	}
}
