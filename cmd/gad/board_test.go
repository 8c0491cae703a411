//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Runs of every stage, as the program writes them, are told apart and shown, and the board leaves
// them as they are. A report is one file that loads nothing, is written over, and holds the
// samples.
func TestBoardOfEveryStage(t *testing.T) {
	const stages = "sft warmup train dpo"
	f, _ := linked(t, strings.Fields(stages)...)
	type document struct {
		Runs []struct {
			Name, Stage, State          string
			Steps, Total                int
			Headline, Problems, Changed []string
			Settings                    map[string]string
		}
		Series struct {
			Runs []map[string]struct{ Step []int }
		}
		Samples []struct{ Run, Step int }
	}
	read := func(line string) (d document) {
		t.Helper()
		out, said := does(t, line)
		if err := json.Unmarshal([]byte(out), &d); err != nil || said != "" {
			t.Fatalf("%v: %.300s, says %q", err, out, said)
		}
		return d
	}
	before := map[string]int{}
	for _, s := range strings.Fields(stages) {
		before[s] = len(tree(t, f.path(s)))
	}
	d := read("board --json " + stages)
	for i, s := range strings.Fields(stages) {
		r := d.Runs[i]
		if n := len(d.Series.Runs[i]["timing_s/step"].Step); r.Name != s || r.Stage != s ||
			r.State != "finished" || len(r.Problems) > 0 || r.Steps != r.Total || n != r.Steps ||
			len(r.Headline) < 2 || len(r.Settings) < 50 || len(r.Changed) == 0 {
			t.Errorf("%s: %d points, %+v", s, n, r)
		}
		if n := len(tree(t, f.path(s))); n != before[s] {
			t.Errorf("%s: %d files, there were %d", s, n, before[s])
		}
	}
	sampled := ""
	for _, s := range d.Samples {
		sampled += fmt.Sprint(s.Run)
	}
	if sampled != "111122233" { // by run; gad sft has none
		t.Errorf("samples of the runs %s", sampled)
	}
	if d := read("board --json sft --points 10 --samples 0"); len(
		d.Series.Runs[0]["actor/sft_loss"].Step) != 10 || len(d.Samples) != 0 {
		t.Errorf("10 points: %+v", d.Series.Runs[0]["actor/sft_loss"])
	}

	for range 2 {
		if out, _ := does(t, "report train sft"); !regexp.MustCompile(
			`^report\.html: 2 runs, [0-9.]+ MB\n$`).MatchString(out) {
			t.Errorf("prints %q", out)
		}
	}
	var first struct{ Prompt, Teacher string }
	sample, _, _ := strings.Cut(fileText("train/samples/step_3.jsonl"), "\n")
	decode(t, sample, &first)
	text := fileText("report.html")
	if quoted, _ := json.Marshal(first.Teacher); !strings.Contains(text, string(quoted)) ||
		first.Teacher == "" {
		t.Errorf("the report lacks the sample %s", quoted)
	}
	if m := regexp.MustCompile(`(src|href)="(https?:|//|[a-z]+\.(js|css))`).FindString(text); m != "" {
		t.Errorf("the report loads something: %s", m)
	}
}

// The server says where it is, answers on the loopback interface alone, and ends with
// exit status 0 when it is told to.
func TestBoardServes(t *testing.T) {
	path, f := built(t), ready(t)
	said := filepath.Join(t.TempDir(), "said")
	out, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := start(t, "/bin/sh", "-c", `exec "$0" board --port 0 "$1" 2>"$2"`, path, f.path("train"), said)
	find := regexp.MustCompile(`http://127\.0\.0\.1:[0-9]+/`)
	wait(t, "the address", func() bool { return find.MatchString(fileText(said)) })
	url := find.FindString(fileText(said))
	answer, err := http.Get(url + "api/board")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != 200 || !strings.Contains(string(raw), `"stage":"train"`) {
		t.Errorf("%v: %s: %.300s", err, answer.Status, raw)
	}
	p.Process.Signal(syscall.SIGTERM)
	if code := p.end(t, 20*time.Second); code != exitDone {
		t.Errorf("exit status %d: %s", code, fileText(said))
	}
}
