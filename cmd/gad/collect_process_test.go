//go:build unix

package main

import (
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/apps/session/sessiontest"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/hostile"
)

// The sizes of TestCollectKill; scripts/soak.sh raises them.
var (
	collectPrompts = flag.Int("collectprompts", few(400, 200), "prompts of TestCollectKill")
	collectKills   = flag.Int("collectkills", hostile.Share(6),
		"processes that TestCollectKill kills")
	collectRPM = flag.Float64("collectrpm", 6000,
		"requests a minute of TestCollectKill; tokens a minute are 13 times that")
)

// wholeLines are the lines of a journal that its process has written to their end.
func wholeLines(path string) iter.Seq[string] {
	text := fileText(path)
	return strings.Lines(text[:strings.LastIndexByte(text, '\n')+1])
}

// journalled are the prompts whose answers a journal holds.
func journalled(t *testing.T, path string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for line := range wholeLines(path) {
		var l struct {
			Key    string
			Record struct{ Choices []struct{ Content string } }
		}
		decode(t, line, &l)
		if l.Key == "settings" {
			continue
		}
		_, prompt, _ := strings.Cut(l.Record.Choices[0].Content, " to ")
		if found[prompt] {
			t.Errorf("%s: prompt %s is answered twice", path, prompt)
		}
		found[prompt] = true
	}
	return found
}

// A collection from a server that misbehaves, killed with signal 9 again and again: no
// prompt is asked after its answer was in the journal, none is lost, and the limits are
// kept over all processes (doc/collect.md).
func TestCollectKill(t *testing.T) {
	t.Parallel()
	path, dir := built(t), t.TempDir()
	rpm := *collectRPM
	tpm := 13 * rpm       // which a request takes, on average
	var hold atomic.Int64 // calls from this number on stay without an answer; 0: none does
	s := collecttest.Teacher(t, &endpointtest.Server{Key: "sk-teacher-0123456789",
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, r *http.Request) bool {
			if from := hold.Load(); from > 0 && int64(c.Number) >= from {
				<-r.Context().Done()
				return true
			}
			return endpointtest.Chaos(c, w, r)
		},
		Logprobs: func(_ endpointtest.Call, text string) any {
			return endpointtest.InThrees(text, 2)
		}})
	prompts := filepath.Join(dir, "prompts.jsonl")
	collecttest.Prompts(t, prompts, *collectPrompts)
	out := filepath.Join(dir, "rows.arrow")
	args := []string{"data", "collect", "--prompts", prompts, "--output", out, "--base-url", s.URL,
		"--model", "big", "--key-env", "TEACHER_KEY",
		"--system", "be as brief as a teacher can be", "--rpm", fmt.Sprint(rpm), "--tpm",
		fmt.Sprint(tpm), "--concurrency", "64", "--retries", "20", "--top-logprobs", "3"}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	whole := time.Duration(float64(*collectPrompts) / rpm * float64(time.Minute))
	begun := time.Now()
	killed, starts, wasted, torn := 0, 0, 0, 0
	type check struct {
		from int             // the first call after a kill
		have map[string]bool // the prompts in the journal then
	}
	var checks []check
	for ; ; starts++ {
		if starts > 4*(*collectKills+5) {
			t.Fatalf("seed %d: no end after %d starts", seed, starts)
		}
		// Killed while it asks: too few are answered before the last kill for an end.
		part := *collectPrompts / (*collectKills + 1)
		until := len(s.Calls()) + 1 + r.IntN(part)
		hold.Store(0)
		if killed < *collectKills {
			hold.Store(int64(until + part/8))
		}
		p := start(t, "env", append([]string{"TEACHER_KEY=sk-teacher-0123456789", path},
			args...)...)
		if killed < *collectKills {
			wait(t, "calls", func() bool { return len(s.Calls()) >= until || len(p.done) > 0 })
			time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
			p.Process.Kill()
		}
		code := p.end(t, patience+4*whole)
		if _, err := os.Stat(out); code == exitDone || code == -1 && err == nil {
			break // it may be killed between its output and its end
		}
		switch {
		case code == -1:
			killed++
		case strings.Contains(p.said.String(), "the same command asks again"):
			// three tries of one prompt met the server's misbehaviour
		default:
			t.Fatalf("seed %d: exit status %d\n%s", seed, code, p.said.String())
		}
		time.Sleep(20 * time.Millisecond) // requests of the dead process arrive
		have := journalled(t, out+".journal")
		if text := fileText(out + ".journal"); text != "" && !strings.HasSuffix(text, "\n") {
			torn++
		}
		at := len(s.Calls())
		checks = append(checks, check{at, have})
	}
	took := time.Since(begun)
	calls := s.Calls()
	last := map[string]int{} // the last call of each prompt
	for _, c := range calls {
		last[c.Prompt] = c.Number
	}
	again := 0
	for _, c := range checks {
		for prompt := range c.have {
			if last[prompt] >= c.from {
				again++
				t.Errorf("seed %d: prompt %s was asked after its answer was journalled", seed,
					prompt)
			}
		}
	}
	rows := sessiontest.Rows(t, out)
	for i, row := range rows {
		if row.ID != fmt.Sprintf("r%d", i) || row.Teacher != fmt.Sprintf("answer 0 to p%d", i) ||
			row.Finish != "stop" || len(row.Logprobs) != (len(row.Teacher)+2)/3 ||
			row.LogprobsFault() != "" {
			t.Fatalf("row %d: %+v", i, row)
		}
	}
	if len(rows) != *collectPrompts {
		t.Errorf("%d rows", len(rows))
	}
	for _, n := range s.Answered() {
		wasted += n - 1
	}
	requests, tokens := endpointtest.Peak(calls, time.Minute)
	if took > time.Minute && (float64(requests) > 1.02*rpm || float64(tokens) > 1.02*tpm) {
		t.Errorf("%d requests and %d tokens in a minute, %g and %g are allowed", requests, tokens,
			rpm, tpm)
	}
	for name, content := range tree(t, dir) {
		if strings.Contains(content, "sk-teacher") {
			t.Errorf("%s holds the key", name)
		}
	}
	t.Logf("row 21: gad data collect: %d prompts, %d kills, %d calls in %s, %d asked after their answer was journalled, 0 lost, %d answers came to a dead process, %d journals with a torn end; at most %d requests and %d tokens in a minute (%g and %g allowed; seed %d)",
		len(rows), killed, len(calls), took.Round(time.Second), again, wasted, torn, requests,
		tokens, rpm, tpm, seed)
	if killed < *collectKills {
		t.Errorf("only %d kills", killed)
	}
}

// Ctrl-C: no more is asked, answers under way are waited for and kept; exit status 75, and
// the same command resumes.
func TestCollectInterrupt(t *testing.T) {
	path, dir := built(t), t.TempDir()
	s := collecttest.Teacher(t, &endpointtest.Server{
		Misbehave: endpointtest.Slowly(300 * time.Millisecond)})
	prompts := filepath.Join(dir, "prompts.jsonl")
	collecttest.Prompts(t, prompts, 100)
	out := filepath.Join(dir, "rows.arrow")
	args := []string{"data", "collect", "--prompts", prompts, "--output", out, "--base-url", s.URL,
		"--model", "big"}
	code, said := stopped(t, "answers", func() bool { return len(journalled(t, out+".journal")) > 3 },
		syscall.SIGINT, path, args...)
	calls := len(s.Calls())
	if want := fmt.Sprintf("gad: data collect: interrupted: %d of 100 answers are in %s.journal: run the same command to resume\n", calls, out); code != exitInterrupted || !strings.HasSuffix(said, want) {
		t.Errorf("exit status %d\n%s want %s", code, said, want)
	}
	if n := len(journalled(t, out+".journal")); n != calls || n == 100 {
		t.Errorf("%d calls, %d answers in the journal", calls, n)
	}
	s.Misbehave = nil
	must(t, args...)
	if n := len(s.Calls()); n != 100 || len(sessiontest.Rows(t, out)) != 100 {
		t.Errorf("%d calls", n)
	}
}

// A command with --batch that is killed or interrupted finds the batch again that it has
// begun; a command without it does not ask for what the batch is asked for.
func TestCollectBatchKill(t *testing.T) {
	path, dir := built(t), t.TempDir()
	s := collecttest.Teacher(t, &endpointtest.Server{Batch: endpointtest.BatchRules{Looks: 1 << 30}})
	prompts := filepath.Join(dir, "prompts.jsonl")
	collecttest.Prompts(t, prompts, 50)
	out := filepath.Join(dir, "rows.arrow")
	args := []string{"data", "collect", "--prompts", prompts, "--output", out, "--base-url", s.URL,
		"--model", "big"}
	batch := append(slices.Clone(args), "--batch", "--poll", "50ms")
	for try := range 4 {
		p := start(t, path, batch...)
		if try == 3 {
			p.hears(t, "estimate:")
			time.Sleep(200 * time.Millisecond)
			p.Process.Signal(syscall.SIGINT)
			p.wants(t, exitInterrupted, "gad: data collect: interrupted: 0 of 50 answers are in "+
				out+".journal: run the same command to resume\n")
			break
		}
		wait(t, "the batch", func() bool { return s.Batches() > 0 })
		// before its id is in the journal, and after
		time.Sleep(time.Duration(try) * 40 * time.Millisecond)
		p.Process.Kill()
		p.end(t, patience)
	}
	refused(t, exitUsage, "gad: data collect: "+out+".journal: batches under way: 1: give "+
		"--batch, which waits for their answers, as they are paid for\n", args...)
	s.Batch.Looks = 0
	must(t, batch...)
	if n := len(sessiontest.Rows(t, out)); n != 50 || s.Batches() != 1 || len(s.Calls()) > 0 {
		t.Errorf("%d rows, %d batches, %d calls", n, s.Batches(), len(s.Calls()))
	}
}
