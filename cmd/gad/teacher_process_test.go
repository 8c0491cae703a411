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

// scorer stands between a process and a server and counts the texts that are scored.
type scorer struct {
	url string // of the server
	// the answers behind the first 20, some of which are the trial's, take half a second until
	// hold is closed; nil: none does
	hold  chan struct{}
	mu    sync.Mutex
	given map[string]bool // texts that were scored, those of the trial at the start included
	calls int
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
		s.given[text] = true
		waits := s.hold != nil && s.calls > 20
		s.mu.Unlock()
		if waits {
			select {
			case <-s.hold:
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
	w.WriteHeader(res.StatusCode)
	w.Write(answer)
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

// rowsIn counts the rows of an interrupted output whose lines are whole: a kill can cut the last.
func rowsIn(path string) int {
	return len(regexp.MustCompile(`"r/\d+".*\n`).FindAllString(fileText(path), -1))
}

// A scoring by a server that is killed with signal 9 and interrupted in turn goes on where it was:
// the same bytes, and no row whose scores were kept is asked for again; one whose line is cut is.
// An interruption waits for the answers under way and keeps them.
func TestDataScoreByURLKill(t *testing.T) {
	slow(t)
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	_, at := serving(t, "--model", f.path("train", "global_step_3", "actor"), "--listen",
		"127.0.0.1:0")
	const rows = 50
	line := []string{"data", "score", "--teacher", f.path("student"), "--data",
		different(t, dir, rows), "--teacher-url"}
	whole, out := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "out.jsonl")
	must(t, append(line, at+"/v1", "--output", whole)...)
	want := readFile(t, whole)
	scored, stops := map[string]bool{}, 0
	for {
		before := rowsIn(out + ".partial")
		s := &scorer{url: at, given: map[string]bool{}}
		stop := before+20 < rows // more than those of the trial's rest and in flight
		if stop {
			s.hold = make(chan struct{})
		}
		h := httptest.NewServer(s) // one for each process: a killed one's requests end later
		sig := []syscall.Signal{syscall.SIGKILL, syscall.SIGINT}[stops%2]
		p := start(t, path, append(line, h.URL+"/v1", "--output", out)...)
		if stop {
			wait(t, "nine rows", func() bool { return rowsIn(out+".partial") >= before+9 })
			p.Process.Signal(sig)
			wait(t, "the signal", func() bool {
				said := p.said.String()
				return sig == syscall.SIGKILL || strings.Contains(said, "stopping; ") ||
					strings.Contains(said, " with log-probabilities, ") // done
			})
			close(s.hold)
		}
		code := p.end(t, patience)
		h.Close() // waits for the requests
		asked := s.given
		for text := range asked {
			if scored[text] {
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
		kept := rowsIn(out+".partial") - before
		switch {
		case sig == syscall.SIGINT && (code != exitInterrupted || kept != len(asked)),
			sig == syscall.SIGKILL && (code != -1 || kept > len(asked)):
			t.Errorf("%v: exit status %d, %d rows kept, %d asked for\n%s", sig, code, kept,
				len(asked), p.said.String())
		}
		if sig == syscall.SIGINT {
			maps.Copy(scored, asked)
			continue
		}
		// a kill that came in the middle of a line
		if err := os.Truncate(out+".partial", int64(len(fileText(out+".partial"))-9)); err != nil {
			t.Fatal(err)
		}
	}
	if fileText(out) != want || stops < 2 {
		t.Errorf("other bytes after %d stops", stops)
	}
}
