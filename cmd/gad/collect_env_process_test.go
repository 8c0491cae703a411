//go:build unix

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/internal/endpoint/endpointtest"
)

var collectEpisodeKills = flag.Int("collectepisodekills", few(30, 6),
	"processes that TestCollectEpisodesKill kills in the middle of episodes")

// Episodes whose process is killed with signal 9 again and again, at random times: no turn is asked
// for whose answer was in the journal, and the output is that of a process that nobody has killed.
func TestCollectEpisodesKill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills processes")
	}
	self, dir := built(t), t.TempDir()
	const rows = 60
	prompts := calculatorRows(t, dir, rows)
	slow := false
	s := collecttest.Teacher(t, &endpointtest.Server{})
	s.Misbehave = func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
		if slow {
			time.Sleep(20 * time.Millisecond)
		}
		text, _ := collecttest.AddsAsText(c, 0)
		body, _ := json.Marshal(map[string]any{"id": fmt.Sprint(c.Number), "choices": []any{
			map[string]any{"finish_reason": "stop", "message": map[string]any{"content": text}}}})
		w.Write(body)
		return true
	}
	line := func(out string) []string {
		return []string{"data", "collect", "--prompts", prompts, "--output", out, "--base-url",
			s.URL, "--model", "big", "--env", self + " env calculator", "--seed", "7",
			"--concurrency", "4"}
	}
	whole, out := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "rows.jsonl")
	must(t, line(whole)...)
	begun := len(s.Calls())
	seeds := map[string]bool{}
	for _, c := range s.Calls() {
		seeds[fmt.Sprint(c.Raw["seed"])] = true
	}
	if len(seeds) != begun {
		t.Errorf("%d turns were asked for with %d seeds", begun, len(seeds))
	}

	slow = true
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	type check struct {
		from int             // the first call after a kill
		have map[string]bool // ids of the answers in the journal then
	}
	var checks []check
	killed, within := 0, 0
	for {
		if killed > 4**collectEpisodeKills {
			t.Fatalf("seed %d: no end", seed)
		}
		p := start(t, self, line(out)...)
		if killed < *collectEpisodeKills {
			// some are killed before they ask, and most in the middle of several episodes, however
			// long a busy machine takes to begin
			if asked, until := len(s.Calls()), time.Now().Add(5*time.Second); r.IntN(4) > 0 {
				for len(s.Calls()) == asked && time.Now().Before(until) {
					time.Sleep(time.Millisecond)
				}
			}
			time.Sleep(time.Duration(r.Int64N(int64(150 * time.Millisecond))))
			p.Process.Kill()
		}
		code := p.end(t, patience)
		if _, err := os.Stat(out); code == exitDone || code == -1 && err == nil {
			break // it may be killed between its output and its end
		} else if code != -1 {
			t.Fatalf("seed %d: exit status %d\n%s", seed, code, p.said.String())
		}
		killed++
		time.Sleep(50 * time.Millisecond) // requests of the dead process arrive
		have, unfinished := map[string]bool{}, map[string]bool{}
		for text := range wholeLines(out + ".journal") {
			var l struct {
				Key    string
				Record struct {
					ID   string
					Done bool
				}
			}
			decode(t, text, &l)
			episode := l.Key[:strings.LastIndex(l.Key[:min(len(l.Key), 38)], "/")+1]
			if l.Record.ID != "" {
				have[l.Record.ID], unfinished[episode] = true, true
			}
			if l.Record.Done {
				delete(unfinished, episode)
			}
		}
		if len(unfinished) > 0 {
			within++
		}
		checks = append(checks, check{len(s.Calls()), have})
	}
	calls := s.Calls()
	last := map[string]int{} // the last call with a conversation, which is of one turn alone
	conversation := func(c endpointtest.Call) string { return fmt.Sprint(c.Messages) }
	for _, c := range calls[begun:] {
		last[conversation(c)] = c.Number
	}
	again := 0
	for _, k := range checks {
		for _, c := range calls[begun:k.from] {
			if k.have[fmt.Sprint(c.Number)] && last[conversation(c)] >= k.from {
				again++
				t.Errorf("seed %d: asked again after its answer was journalled: %s", seed,
					conversation(c))
			}
		}
	}
	if fileText(out) != readFile(t, whole) {
		t.Errorf("seed %d: another output", seed)
	}
	if n := lines(out); n != rows || within == 0 {
		t.Errorf("%d rows, %d of %d kills within episodes", n, within, killed)
	}
	t.Logf("gad data collect --env: %d episodes, %d turns, %d kills, %d of them with turns of open episodes in the journal; %d turns asked after their answer was journalled; %d answers came to a dead process (seed %d)",
		rows, len(last), killed, within, again, len(calls)-begun-len(last), seed)
}

// Ctrl-C in the middle of episodes: the answers under way are kept, and the same command goes on.
func TestCollectEpisodesInterrupt(t *testing.T) {
	if testing.Short() {
		t.Skip("runs processes")
	}
	self, dir := built(t), t.TempDir()
	prompts := calculatorRows(t, dir, 20)
	s := collecttest.Teacher(t, &endpointtest.Server{Answer: collecttest.AddsAsText,
		Misbehave: endpointtest.Slowly(50 * time.Millisecond)})
	out := filepath.Join(dir, "rows.jsonl")
	args := []string{"data", "collect", "--prompts", prompts, "--output", out, "--base-url", s.URL,
		"--model", "big", "--env", self + " env calculator"}
	code, said := stopped(t, "turns", func() bool { return len(s.Calls()) > 10 },
		syscall.SIGINT, self, args...)
	if code != exitInterrupted || !strings.Contains(said, "gad: data collect: interrupted: ") ||
		!strings.HasSuffix(said,
			" of 20 episodes are in "+out+".journal: run the same command to resume\n") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	must(t, args...)
	asked := map[string]int{}
	for _, c := range s.Calls() {
		if asked[fmt.Sprint(c.Messages)]++; asked[fmt.Sprint(c.Messages)] > 1 {
			t.Errorf("asked twice: %v", c.Messages)
		}
	}
	if n := len(jsonLines(t, out)); n != 20 {
		t.Errorf("%d rows", n)
	}
}
