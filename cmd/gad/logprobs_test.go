//go:build unix

package main

import (
	"bytes"
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
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rows bytes.Buffer
	for range few(40, 13) { // some chunks of 64
		rows.Write(raw)
	}
	in := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(in, rows.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	line := []string{path, "data", "score", "--teacher",
		f.path("train", "global_step_3", "actor"), "--data", in, "--threads", "1", "--output"}
	begun := time.Now()
	if p := start(t, "env", append(line, filepath.Join(dir, "whole.jsonl"))...); p.end(t, patience) != exitDone {
		t.Fatal(p.said.String())
	}
	took := time.Since(begun)
	want, err := os.ReadFile(filepath.Join(dir, "whole.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	out := filepath.Join(dir, "out.jsonl")
	killed, inside := 0, 0
	for most := few(12, 2); ; {
		p := start(t, "env", append(line, out)...)
		if killed < most {
			time.Sleep(time.Duration(r.Int64N(int64(took))))
			p.Process.Kill()
		}
		code := p.end(t, patience)
		// it may be killed between its output and its end
		if _, err := os.Stat(out); code == exitDone || code == -1 && err == nil {
			got, err := os.ReadFile(out)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d kills: other bytes (%v)", seed, killed, err)
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
		journal, _ := os.ReadFile(out + ".partial")
		if n := bytes.Count(journal, []byte("\n")); n > 1 && n <= bytes.Count(want, []byte("\n")) {
			inside++
		}
	}
	t.Logf("gad data score: %d kills, %d of them with some rows done, 0 other bytes (a run takes %s; seed %d)",
		killed, inside, took.Round(time.Millisecond), seed)
}
