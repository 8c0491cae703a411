//go:build unix

package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
)

// The flags of gad data score are those of a scoring, whose labels gad data validate counts; a GGUF
// file is a teacher as its model is.
func TestDataScore(t *testing.T) {
	f, dir := ready(t), t.TempDir()
	teacher, gguf := f.path("train", "global_step_3", "actor"), filepath.Join(dir, "teacher.gguf")
	must(t, "export", "--model", teacher, "--output", gguf, "--gguf", "f16")
	for _, path := range []string{teacher, gguf} {
		out := filepath.Join(dir, filepath.Base(path)+".jsonl")
		printed, _ := must(t, "data", "score", "--teacher", path, "--data", f.path("test.jsonl"),
			"--limit", "3", "--top-logprobs", "4", "--system", "Be brief.", "--output", out)
		if !strings.HasPrefix(printed, out+": 3 rows of 3 with log-probabilities, ") {
			t.Errorf("prints %q", printed)
		}
		printed, _ = must(t, "data", "validate", "--data", out, "--model", teacher)
		if !strings.Contains(printed, "soft     3 rows with log-probabilities of the teacher: ") {
			t.Errorf("prints %q", printed)
		}
	}
}

// A scoring that is killed with signal 9 again and again has the same bytes in the end, and scores
// no row twice that was in the journal.
func TestDataScoreKill(t *testing.T) {
	slow(t)
	t.Parallel()
	path, f := built(t), ready(t)
	dir := t.TempDir()
	in := filepath.Join(dir, "rows.jsonl")
	put(t, in, strings.Repeat(readFile(t, f.path("test.jsonl")), few(40, 13))) // some chunks of 64
	line := []string{"data", "score", "--teacher", f.path("train", "global_step_3", "actor"),
		"--data", in, "--threads", "1", "--output"}
	begun := time.Now()
	start(t, path, append(line, filepath.Join(dir, "whole.jsonl"))...).wants(t, exitDone)
	took := time.Since(begun)
	want := readFile(t, filepath.Join(dir, "whole.jsonl"))
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	out := filepath.Join(dir, "out.jsonl")
	killed, inside := 0, 0
	for most := few(12, 2); ; {
		p := start(t, path, append(line, out)...)
		if killed < most {
			time.Sleep(time.Duration(r.Int64N(int64(took))))
			p.Process.Kill()
		}
		code := p.end(t, patience)
		// it may be killed between its output and its end
		if _, err := os.Stat(out); code == exitDone || code == -1 && err == nil {
			if fileText(out) != want {
				t.Fatalf("seed %d: %d kills: other bytes", seed, killed)
			}
			if killed >= most {
				break
			}
			collecttest.Drop(t, out)
			continue
		}
		if code != -1 {
			t.Fatalf("seed %d: exit status %d\n%s", seed, code, p.said.String())
		}
		killed++
		if n := lines(out + ".partial"); n > 1 && n <= strings.Count(want, "\n") {
			inside++
		}
	}
	t.Logf("gad data score: %d kills, %d of them with some rows done, 0 other bytes (a run takes %s; seed %d)",
		killed, inside, took.Round(time.Millisecond), seed)
}
