//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/trainer/quality"
)

// Ctrl-C keeps the answers that are complete: gad generate resumes to the bytes of a
// command that was not interrupted, gad eval writes what it has.
func TestInterruptedAnswers(t *testing.T) {
	path, f := built(t), ready(t)
	dir := t.TempDir()
	var many strings.Builder
	for i := range 400 {
		raw := `{"content":"Add ` + strings.Repeat("1+", 1+i%7) + `2","teacher_response":"it is ` + strings.Repeat("x", i%5) + `"}`
		many.WriteString(raw + "\n")
	}
	rows := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(rows, []byte(many.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	student := f.path("sft", "global_step_60", "actor")
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}

	generate := func(name string) []string {
		return []string{"generate", "--model", student, "--data", rows, "--output",
			filepath.Join(dir, name), "-n", "8", "--max-new-tokens", "60", "--temperature", "2",
			"--threads", "1"}
	}
	must(t, generate("whole.jsonl")...)
	whole := read("whole.jsonl")
	out := filepath.Join(dir, "stopped.jsonl")
	for try := 0; ; try++ {
		p := start(t, path, generate("stopped.jsonl")...)
		from := lines(out + ".partial")
		wait(t, "some answers",
			func() bool { return lines(out+".partial") > from+20 || lines(out) > 0 })
		if try == 1 {
			p.Process.Kill()
			p.end(t, patience)
			continue
		}
		p.Process.Signal(syscall.SIGINT)
		code := p.end(t, patience)
		if code == exitDone {
			if try == 0 {
				t.Error("done before the first signal: nothing was interrupted")
			} else if try < 3 {
				t.Logf("done after %d interruptions", try)
			}
			break
		}
		said := p.said.String()
		if code != exitInterrupted ||
			!strings.Contains(said,
				" of 3200 answers are in "+out+".partial: run the same command to resume\n") ||
			strings.Count(said, "gad: ") != 1 {
			t.Fatalf("exit status %d\n%s", code, said)
		}
		if try == 3 {
			must(t, generate("stopped.jsonl")...)
			break
		}
	}
	if read("stopped.jsonl") != whole {
		t.Error("an interrupted output has other bytes")
	}

	evaluate := func(name string, extra ...string) []string {
		return append([]string{"eval", "--model", student, "--data", rows, "--max-response-length",
			"60", "--temperature", "2", "--output", filepath.Join(dir, name), "--threads", "1"},
			extra...)
	}
	p := start(t, path, evaluate("eval.jsonl", "--disc-steps", "100000", "--disc-seeds", "1")...)
	// written once they are complete, before fresh discriminators
	wait(t, "figures of the answers", func() bool {
		raw, _ := os.ReadFile(filepath.Join(dir, "eval.jsonl"))
		return strings.Contains(p.said.String(), "fresh discriminators (2 x 1") && strings.Contains(string(raw), `"teacher_nll":`)
	})
	p.Process.Signal(syscall.SIGINT)
	if code, said := p.end(t, patience), p.said.String(); code != exitStopped ||
		!strings.Contains(said, "\nROUGE-L") ||
		!strings.HasSuffix(said,
			"gad: eval: stopped: 400 of 400 answers are in "+filepath.Join(dir,
				"eval.jsonl")+"\n") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	if got := sessiontest.Lines[quality.Row](t, read("eval.jsonl")); len(got) != 400 ||
		got[7].Response == "" && got[8].Response == "" {
		t.Errorf("%d rows are kept", len(got))
	}
}
