//go:build linux

package main

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gad/apps/collect/collecttest"
	"gad/internal/endpoint/endpointtest"
)

// judged plays runs that ask a program of gad for each answer, which asks an endpoint: a rubric's
// grades or a coach's notes. Runs name the program sh "$RULE".
type judged struct {
	path    string // gad
	command string // the subcommand that asks the endpoint
	rule    string // the script that $RULE names
	server  *endpointtest.Server
	delay   atomic.Bool
	spared  atomic.Int64 // calls before the endpoint is at fault; 0: it never is
	args    func(run string) []string
	steps   int
	tried   int // requests by which a run tries the program before its first step
}

// inTheAir is how many requests a program asks at the same time.
const inTheAir = 4

// newJudged starts the endpoint, which answers by reply and, once it is at fault, now and then
// refuses, gives wrong as the content, or speaks instead of answering. JUDGE_KEY has its key.
func newJudged(t *testing.T, command string, reply func(c endpointtest.Call) string,
	wrong string) *judged {
	t.Helper()
	path, work := built(t), t.TempDir()
	t.Chdir(work)
	j := &judged{path: path, command: command, rule: filepath.Join(work, "rule")}
	j.server = collecttest.Teacher(t, &endpointtest.Server{Key: "secret",
		Answer: func(c endpointtest.Call, _ int) (string, string) { return reply(c), "stop" },
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if j.delay.Load() {
				time.Sleep(30 * time.Millisecond)
			}
			sum := fnv.New32()
			fmt.Fprint(sum, c.Messages[1].Content, len(c.Messages))
			if n := j.spared.Load(); n == 0 || int64(c.Number) < n {
				return false
			}
			switch sum.Sum32() % 5 {
			case 0:
				endpointtest.Fail(w, 400, "content_filter", "not this one")
			case 1:
				fmt.Fprintf(w, `{"choices":[{"message":{"content":%q}}]}`, wrong)
			case 2:
				fmt.Fprint(w, `{"choices":[{"message":{"content":"I am sorry."}}]}`)
			default:
				return false
			}
			return true
		}})
	t.Setenv("RULE", j.rule)
	t.Setenv("JUDGE_KEY", "secret")
	return j
}

// script makes text the program.
func (j *judged) script(t *testing.T, text string) {
	t.Helper()
	put(t, j.rule, text+"\n")
}

// ask makes the subcommand the program, with a journal.
func (j *judged) ask(t *testing.T, url, journal string) {
	t.Helper()
	j.script(t, fmt.Sprintf(`exec "$GAD" %s --base-url %s --key-env JUDGE_KEY --model rule `+
		`--journal %s --retries 0 --concurrency %d`, j.command, url, journal, inTheAir))
}

// play plays a run to its end and returns what it said.
func (j *judged) play(t *testing.T, run string) string {
	t.Helper()
	p := start(t, j.path, j.args(run)...)
	p.wants(t, exitDone)
	return p.said.String()
}

// replay plays a run again from its journal, with nobody to ask.
func (j *judged) replay(t *testing.T, journal, run, like string) {
	t.Helper()
	before := len(j.server.Calls())
	j.ask(t, "http://127.0.0.1:1/v1", journal)
	j.play(t, run)
	equalRuns(t, run, like, j.steps)
	if n := len(j.server.Calls()); n != before {
		t.Errorf("%d requests of a run whose replies are all kept", n-before)
	}
}

// kill plays a run that is killed with signal 9 several times in its steps; a run that was not
// killed made so many requests. At most what was in the air is asked twice.
func (j *judged) kill(t *testing.T, like string, kills, requests int) {
	t.Helper()
	begun := len(j.server.Calls())
	j.ask(t, j.server.URL, "killed-kept")
	j.delay.Store(true)
	for try := range kills {
		before := len(j.server.Calls())
		p := start(t, j.path, j.args("killed")...)
		wait(t, "some requests",
			func() bool { return len(j.server.Calls()) > before+j.tried+3*try })
		syscall.Kill(p.Process.Pid, syscall.SIGKILL)
		if try%2 == 0 { // its program too, which otherwise goes on alone, and is waited for
			for _, name := range processesWith("RULE=" + j.rule) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		p.end(t, patience)
	}
	j.play(t, "killed")
	j.delay.Store(false)
	equalRuns(t, "killed", like, j.steps)
	if n := len(j.server.Calls()) - begun; n < requests || n > requests+kills*inTheAir {
		t.Errorf("%d requests of a run that was killed %d times, %d of one that was not", n, kills,
			requests)
	}
}

// fault plays a run whose endpoint is often at fault, and again from its journal.
func (j *judged) fault(t *testing.T) {
	t.Helper()
	j.ask(t, j.server.URL, "faulty-kept")
	// the program is tried on the teacher's answer
	j.spared.Store(int64(len(j.server.Calls()) + j.tried))
	j.play(t, "faulty")
	j.replay(t, "faulty-kept", "faulty-replayed", "faulty")
}
