//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/apps/session/sessiontest"
	"gad/data"
)

// metricsOf are the metrics of a run's steps.
func metricsOf(t *testing.T, run string) (rows []map[string]float64) {
	t.Helper()
	file, err := os.Open(filepath.Join(run, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var any map[string]any
		if err := json.Unmarshal(lines.Bytes(), &any); err != nil {
			t.Fatal(err)
		}
		row := map[string]float64{}
		for name, x := range any {
			if x, ok := x.(float64); ok {
				row[name] = x
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// gad serve is a teacher: the steps are those of the same teacher loaded, but for the order in
// which its engine sums the vocabulary. A server that does not score is refused before anything is
// written.
func TestTeacherURL(t *testing.T) {
	f := ready(t)
	teacher := f.path("train", "global_step_3", "actor")
	_, url := serving(t, "--model", teacher, "--listen", "127.0.0.1:0")
	for _, loss := range []string{"policy", "topk"} {
		step := func(name string, args ...string) []map[string]float64 {
			run := filepath.Join(t.TempDir(), name)
			must(t, append([]string{"opd", "--model", f.path("student"), "--data",
				f.path("train.arrow"), "--output", run, "--steps", "2", "teacher.loss=" + loss,
				"teacher.top_k=5", "data.train_batch_size=4", "data.max_prompt_length=64",
				"data.max_response_length=14", "actor.optim.lr=1e-3"}, args...)...)
			return metricsOf(t, run)
		}
		loaded, asked := step("loaded", "--teacher", teacher), step("asked", "--teacher-url", url+"/v1")
		if len(loaded) != 2 || len(asked) != 2 {
			t.Fatalf("%d and %d steps", len(loaded), len(asked))
		}
		worst, which := 0.0, ""
		for i := range loaded {
			for name, want := range loaded[i] {
				if strings.HasPrefix(name, "timing_s/") || strings.HasPrefix(name, "perf/") ||
					strings.HasSuffix(name, "tokens_per_s") || name == "time" {
					continue
				}
				got, ok := asked[i][name]
				if off := math.Abs(got-want) / (1 + math.Abs(want)); !ok || off > worst {
					if worst, which = off, name; !ok {
						t.Errorf("%s: step %d has no %s", loss, i, name)
					}
				}
			}
		}
		t.Logf("%s: at most %.2g apart, %s", loss, worst, which)
		if worst > 1e-5 {
			t.Errorf("%s: %s is %g apart", loss, which, worst)
		}
	}
	mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(`{"choices":[{"text":"x"}]}`))
	}))
	defer mute.Close()
	run := filepath.Join(t.TempDir(), "run")
	code, _, said := gad("opd", "--model", f.path("student"), "--data", f.path("train.arrow"),
		"--output", run, "--teacher-url", mute.URL, "data.max_prompt_length=64",
		"data.max_response_length=14")
	if code != exitInput || !strings.Contains(said, "does not score a given text") {
		t.Errorf("exit status %d: %s", code, said)
	}
	if _, err := os.Stat(filepath.Join(run, "metrics.jsonl")); err == nil {
		t.Error("the run has begun")
	}
}

// scorer stands before a server, counts the texts that it scores, and may spoil its answers.
type scorer struct {
	url string // of the server
	mu  sync.Mutex
	// texts whose scores were given whole: how often, those of the trial at the start included
	given map[string]int
	calls int
	// the answers behind the first 20, some of which are the trial's, take half a second until
	// hold is closed; nil: none does
	hold  chan struct{}
	spoil func(call int, text string, answer []byte) []byte // nil: nothing
}

func (s *scorer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	req, _ := http.NewRequest(r.Method, s.url+r.URL.Path, bytes.NewReader(raw))
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(res.Body)
	if strings.HasSuffix(r.URL.Path, "/completions") {
		var body struct{ Prompt json.RawMessage }
		json.Unmarshal(raw, &body)
		text := string(body.Prompt)
		s.mu.Lock()
		s.calls++
		if s.spoil != nil {
			spoiled := s.spoil(s.calls, text, bytes.Clone(answer))
			if bytes.Equal(spoiled, answer) {
				s.given[text]++
			}
			answer = spoiled
		} else {
			s.given[text]++
		}
		hold := s.hold
		if s.calls <= 20 {
			hold = nil
		}
		s.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
	w.WriteHeader(res.StatusCode)
	w.Write(answer)
}

// scoredBefore starts a server of a teacher, and a scorer before it.
func scoredBefore(t *testing.T, teacher string, more ...string) (s *scorer, url string) {
	t.Helper()
	_, at := serving(t, append([]string{"--model", teacher, "--listen", "127.0.0.1:0"}, more...)...)
	s = &scorer{url: at, given: map[string]int{}}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, h.URL + "/v1"
}

// asked starts to count anew, with another spoil.
func (s *scorer) anew(spoil func(call int, text string, answer []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given, s.calls, s.spoil = map[string]int{}, 0, spoil
}

// holds sets what answers wait for, and returns what they waited for before.
func (s *scorer) holds(until chan struct{}) (before chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.hold = s.hold, until
	return before
}

func (s *scorer) texts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.given)
}

// gad serve gives the soft labels that the same teacher gives when it is loaded, as far as its
// context goes; more alternatives than it has are refused at the start with what to do.
func TestDataScoreByURL(t *testing.T) {
	dir, line := scorable(t)
	local, out := filepath.Join(dir, "local.jsonl"), filepath.Join(dir, "url.jsonl")
	must(t, append(line, "--output", local)...)
	_, url := scoredBefore(t, line[3])
	line = append(line, "--teacher-url", url)
	printed, _ := must(t, append(line, "--output", out)...)
	if !strings.HasPrefix(printed, out+": 6 rows of 7 with log-probabilities, ") ||
		!strings.HasSuffix(printed,
			"\nlonger than the teacher's context, and scored as far as that goes: 1 row\nwithout log-probabilities: 1 row (the first: row 5: the answer is more than a text, which a template writes)\n") {
		t.Errorf("prints %q", printed)
	}
	want, got := sessiontest.Rows(t, local), sessiontest.Rows(t, out)
	worst, values, places := 0.0, 0, 0
	for i, row := range want {
		if len(got[i].Logprobs) != len(row.Logprobs) {
			t.Fatalf("row %d: %d tokens, want %d", i, len(got[i].Logprobs), len(row.Logprobs))
		}
		for k, at := range row.Logprobs {
			if last := i == len(want)-1; last && got[i].Logprobs[k][0].LogProb == data.NoLogProb {
				continue // behind what either reads
			}
			places++
			if len(got[i].Logprobs[k]) != len(at) {
				t.Fatalf("row %d, token %d: %v, want %v", i, k, got[i].Logprobs[k], at)
			}
			for n, l := range at {
				if l.Bytes != got[i].Logprobs[k][n].Bytes {
					t.Errorf("row %d, token %d: %v, want %v", i, k, got[i].Logprobs[k], at)
				}
				values++
				worst = max(worst, math.Abs(float64(got[i].Logprobs[k][n].LogProb-l.LogProb)))
			}
		}
	}
	t.Logf("%d values at %d places, the largest difference %g nats", values, places, worst)
	if worst > 0 || places < 50 || values < 4*places {
		t.Errorf("%d values at %d places, %g apart", values, places, worst)
	}
	many := slices.Clone(line)
	many[slices.Index(many, "--top-logprobs")+1] = "65"
	code, _, said := gad(append(many, "--output", filepath.Join(dir, "x.jsonl"))...)
	if code != exitInput || !regexp.MustCompile(
		`^gad: teacher's server: 127\.0\.0\.1:\d+: scores a text, but does not give 65 alternatives: .*must be from 0 to 64.*: lower --top-logprobs\n$`).MatchString(said) {
		t.Errorf("exit status %d: %s", code, said)
	}
}

// Scores that are missing, null, infinite, of another order or of another text are asked for again.
// Where they stay so the command ends with the place, and the same command goes on and asks for no
// row again.
func TestDataScoreFaults(t *testing.T) {
	f := ready(t)
	dir := t.TempDir()
	s, url := scoredBefore(t, f.path("train", "global_step_3", "actor"))
	line := []string{"data", "score", "--teacher", f.path("student"), "--teacher-url", url, "--data",
		different(t, dir, 20), "--top-logprobs", "4", "--output"}
	whole := filepath.Join(dir, "whole.jsonl")
	must(t, append(line, whole)...)
	want, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.texts()); n != 20 {
		t.Fatalf("%d texts, want 20 that differ", n)
	}
	list := regexp.MustCompile(`"prompt_logprobs":\[.*?\}\}\]`)
	places := func(answer []byte, edit func(places []json.RawMessage) []json.RawMessage) []byte {
		var all []json.RawMessage
		at := list.FindIndex(answer)
		json.Unmarshal(answer[at[0]+len(`"prompt_logprobs":`):at[1]], &all)
		raw, _ := json.Marshal(edit(all))
		return slices.Concat(answer[:at[0]+len(`"prompt_logprobs":`)], raw, answer[at[1]:])
	}
	faults := map[string]func(answer []byte) []byte{
		"other order": func(a []byte) []byte {
			return places(a, func(p []json.RawMessage) []json.RawMessage {
				slices.Reverse(p[len(p)-4:])
				return p
			})
		},
		"missing": func(a []byte) []byte {
			return places(a, func(p []json.RawMessage) []json.RawMessage { return p[:len(p)-1] })
		},
		"null": func(a []byte) []byte {
			return places(a, func(p []json.RawMessage) []json.RawMessage {
				p[len(p)-1] = json.RawMessage("null")
				return p
			})
		},
		"a null value": func(a []byte) []byte {
			return places(a, func(p []json.RawMessage) []json.RawMessage {
				p[len(p)-1] = regexp.MustCompile(`"logprob":[^,]*`).ReplaceAll(p[len(p)-1],
					[]byte(`"logprob":null`))
				return p
			})
		},
		"-inf": func(a []byte) []byte {
			i := bytes.LastIndex(a, []byte(`"logprob":-`))
			return slices.Concat(a[:i], []byte(`"logprob":-Infinity,"was":-`), a[i+11:])
		},
		"without": func(a []byte) []byte { return list.ReplaceAll(a, []byte(`"prompt_logprobs":null`)) },
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		out := filepath.Join(dir, name+".jsonl")
		seen := map[string]int{}
		s.anew(func(_ int, text string, answer []byte) []byte { // twice of each text but the trial's
			if _, ok := seen[text]; !ok && len(seen) < 4 {
				seen[text] = 2
			}
			if seen[text]++; seen[text] <= 2 {
				return faults[name](answer)
			}
			return answer
		})
		must(t, append(line, out)...)
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes (%v)", name, err)
		}
		// One row that stays bad.
		out = filepath.Join(dir, name+" again.jsonl")
		var bad string
		var known []string
		s.anew(func(call int, text string, answer []byte) []byte {
			if !slices.Contains(known, text) {
				if known = append(known, text); len(known) == 9 {
					bad = text
				}
			}
			if text == bad {
				return faults[name](answer)
			}
			return answer
		})
		code, _, said := gad(append(line, out)...)
		if code != exitFailed || !regexp.MustCompile(`^gad: teacher's server: 127\.0\.0\.1:\d+: row \d+: .* (\(3 times\)|given up after 3 tries): run the same command again: no row that has its scores is asked for again\n$`).MatchString(said) {
			t.Errorf("%s: exit status %d: %s", name, code, said)
		}
		kept, first := rowsIn(t, out+".partial"), s.texts()
		if len(kept) != len(first) || len(kept) < 8 {
			t.Errorf("%s: %d rows are kept, %d texts were scored", name, len(kept), len(first))
		}
		s.anew(nil)
		must(t, append(line, out)...)
		for text := range s.texts() {
			if first[text] > 0 {
				t.Errorf("%s: a row that was scored is asked for again", name)
			}
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) ||
			len(first)+len(s.texts()) != 20 {
			t.Errorf("%s: other bytes (%v), or %d and %d rows asked for", name, err, len(first),
				len(s.texts()))
		}
	}
	// A server that does not score, or twice in another way, is refused before anything is kept.
	for want, spoil := range map[string]func(call int, text string, answer []byte) []byte{
		"does not score a given text": func(_ int, _ string, a []byte) []byte { return faults["without"](a) },
		"from one request to the next": func(call int, _ string, a []byte) []byte {
			return regexp.MustCompile(`"logprob":-[0-9.e-]+`).ReplaceAllFunc(a, func(x []byte) []byte {
				v, _ := strconv.ParseFloat(string(x[10:]), 64)
				return strconv.AppendFloat([]byte(`"logprob":`), v-float64(call%2), 'g', -1, 64)
			})
		},
	} {
		s.anew(spoil)
		out := filepath.Join(dir, "refused.jsonl")
		code, _, said := gad(append(line, out)...)
		if code != exitInput || !strings.Contains(said, want) {
			t.Errorf("exit status %d: %s", code, said)
		}
		if n := len(rowsIn(t, out+".partial")); n > 0 {
			t.Errorf("%d rows are kept", n)
		}
		s.anew(nil)
	}
	// What was scored goes on with the same kind of teacher alone, and with the same model.
	out := filepath.Join(dir, "null again.jsonl")
	collecttest.Drop(t, out)
	s.anew(func(call int, _ string, answer []byte) []byte {
		if call > 20 {
			return faults["null"](answer)
		}
		return answer
	})
	if code, _, said := gad(append(line, out)...); code != exitFailed {
		t.Fatalf("exit status %d: %s", code, said)
	}
	_, other := scoredBefore(t, f.path("student"), "--name", "other")
	renamed := slices.Clone(line)
	renamed[5] = other
	code, _, said := gad(append(renamed, out)...)
	if code != exitUsage || !strings.Contains(said, `cannot be resumed: rows were scored by model "actor" of the server, which now has "other": ask the same model, or give another --output`) {
		t.Errorf("exit status %d: %s", code, said)
	}
	loaded := slices.Delete(slices.Clone(line), 4, 6)
	code, _, said = gad(append(loaded, out)...)
	if code != exitUsage || !strings.Contains(said, "the teacher was behind a server, now it is loaded: give the same settings") {
		t.Errorf("exit status %d: %s", code, said)
	}
}

// different writes n rows that all differ.
func different(t *testing.T, dir string, n int) (path string) {
	t.Helper()
	var lines []string
	for i := range n {
		lines = append(lines, fmt.Sprintf(`{"content":"Add %d+%d+%d","teacher_response":"It is %d."}`,
			1+i%5, 1+i/5%5, 1+i/25, 3+i%5+i/5%5+i/25))
	}
	path = filepath.Join(dir, "rows.jsonl")
	collecttest.Put(t, path, lines...)
	return path
}

// rowsIn are the rows of an interrupted output.
func rowsIn(t *testing.T, path string) []string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return regexp.MustCompile(`"r/\d+"`).FindAllString(string(raw), -1)
}

// A scoring by a server that is killed with signal 9, or interrupted, goes on where it was: the
// same bytes, and no row whose scores were kept is asked for again. An interruption waits for the
// answers under way and keeps them.
func TestDataScoreByURLKill(t *testing.T) {
	slow(t)
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	s, url := scoredBefore(t, f.path("train", "global_step_3", "actor"))
	line := []string{"data", "score", "--teacher", f.path("student"), "--teacher-url", url, "--data",
		different(t, dir, 50), "--output"}
	whole, out := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "out.jsonl")
	must(t, append(line, whole)...)
	want, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 50
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		scored, stops := map[string]int{}, 0
		for {
			s.anew(nil)
			before := len(rowsIn(t, out+".partial"))
			stop := before+20 < rows // more than those of the trial's rest and in flight
			if stop {
				s.holds(make(chan struct{}))
			}
			p := start(t, path, append(line, out)...)
			if stop {
				wait(t, "nine rows", func() bool {
					return len(rowsIn(t, out+".partial")) >= before+9
				})
				p.Process.Signal(sig)
				wait(t, "the signal", func() bool {
					return sig == syscall.SIGKILL ||
						strings.Contains(p.said.String(), "stopping; ") ||
						strings.Contains(p.said.String(), " with log-probabilities, ") // done
				})
				close(s.holds(nil))
			}
			code := p.end(t, patience)
			asked := s.texts()
			for text := range asked {
				if scored[text] > 0 {
					t.Errorf("%v: a row that was kept is asked for again", sig)
				}
			}
			if code == exitDone {
				if len(asked) != rows-before {
					t.Errorf("%v: %d rows are asked for, and %d had no scores", sig, len(asked),
						rows-before)
				}
				break
			}
			stops++
			kept := len(rowsIn(t, out+".partial"))
			switch {
			case sig == syscall.SIGINT && (code != exitInterrupted || kept-before != len(asked)):
				t.Errorf("%v: exit status %d, %d rows kept, %d asked for\n%s", sig, code,
					kept-before, len(asked), p.said.String())
			case sig == syscall.SIGKILL && (code != -1 || kept-before > len(asked)):
				t.Errorf("%v: exit status %d, %d rows kept, %d asked for", sig, code, kept-before,
					len(asked))
			}
			if sig == syscall.SIGINT {
				maps.Copy(scored, asked)
			}
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) || stops < 2 {
			t.Errorf("%v: other bytes after %d stops (%v)", sig, stops, err)
		}
		collecttest.Drop(t, out)
	}
}
