//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
