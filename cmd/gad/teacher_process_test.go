//go:build unix

package main

import (
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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
)

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
	refused(t, exitInput, "does not score a given text",
		f.stage("opd", run, 1, "--teacher-url", mute.URL)...)
	if _, err := os.Stat(filepath.Join(run, "metrics.jsonl")); err == nil {
		t.Error("the run has begun")
	}
}

// scorer stands before a server and counts the texts that it scores.
type scorer struct {
	url string // of the server
	mu  sync.Mutex
	// texts that were scored: how often, those of the trial at the start included
	given map[string]int
	calls int
	// the answers behind the first 20, some of which are the trial's, take half a second until
	// hold is closed; nil: none does
	hold chan struct{}
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
		s.given[text]++
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

// anew starts to count anew.
func (s *scorer) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given, s.calls = map[string]int{}, 0
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
func rowsIn(path string) []string {
	return regexp.MustCompile(`"r/\d+"`).FindAllString(fileText(path), -1)
}

// A scoring by a server that is killed with signal 9 and interrupted in turn goes on where it was:
// the same bytes, and no row whose scores were kept is asked for again. An interruption waits for
// the answers under way and keeps them.
func TestDataScoreByURLKill(t *testing.T) {
	slow(t)
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	_, at := serving(t, "--model", f.path("train", "global_step_3", "actor"), "--listen",
		"127.0.0.1:0")
	s := &scorer{url: at, given: map[string]int{}}
	h := httptest.NewServer(s)
	defer h.Close()
	const rows = 50
	line := []string{"data", "score", "--teacher", f.path("student"), "--teacher-url", h.URL + "/v1",
		"--data", different(t, dir, rows), "--output"}
	whole, out := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "out.jsonl")
	must(t, append(line, whole)...)
	want := readFile(t, whole)
	scored, stops := map[string]int{}, 0
	for {
		s.anew()
		before := len(rowsIn(out + ".partial"))
		stop := before+20 < rows // more than those of the trial's rest and in flight
		sig := []syscall.Signal{syscall.SIGKILL, syscall.SIGINT}[stops%2]
		if stop {
			s.holds(make(chan struct{}))
		}
		p := start(t, path, append(line, out)...)
		if stop {
			wait(t, "nine rows", func() bool { return len(rowsIn(out+".partial")) >= before+9 })
			p.Process.Signal(sig)
			wait(t, "the signal", func() bool {
				said := p.said.String()
				return sig == syscall.SIGKILL || strings.Contains(said, "stopping; ") ||
					strings.Contains(said, " with log-probabilities, ") // done
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
				t.Errorf("%d rows are asked for, and %d had no scores", len(asked), rows-before)
			}
			break
		}
		stops++
		kept := len(rowsIn(out+".partial")) - before
		switch {
		case sig == syscall.SIGINT && (code != exitInterrupted || kept != len(asked)),
			sig == syscall.SIGKILL && (code != -1 || kept > len(asked)):
			t.Errorf("%v: exit status %d, %d rows kept, %d asked for\n%s", sig, code, kept,
				len(asked), p.said.String())
		}
		if sig == syscall.SIGINT {
			maps.Copy(scored, asked)
		}
	}
	if fileText(out) != want || stops < 2 {
		t.Errorf("other bytes after %d stops", stops)
	}
}
