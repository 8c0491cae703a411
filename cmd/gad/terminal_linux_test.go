package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"gad/apps/chat/chattest"
	"gad/internal/hostile"
)

// onTerminal starts gad with a terminal of 100 columns as its standard error.
func onTerminal(t *testing.T, path string, args ...string) *process {
	t.Helper()
	p, _ := atTerminal(t, 100, false, path, args...)
	return p
}

// atTerminal starts gad with a terminal as its standard error, or, if it is all, as its standard
// input and output too, which ours is the other end of.
func atTerminal(t *testing.T, columns uint16, all bool, path string,
	args ...string) (p *process, ours *os.File) {
	t.Helper()
	ours, theirs := chattest.Terminal(t, columns)
	p = &process{Cmd: exec.Command(path, args...), done: make(chan error, 1)}
	p.Env, p.Stderr = append(os.Environ(), "TERM=xterm"), theirs
	if all {
		p.Stdin, p.Stdout, p.SysProcAttr = theirs, theirs,
			&syscall.SysProcAttr{Setsid: true, Setctty: true}
	} else {
		p.Env = append(p.Env, "NO_COLOR=1")
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 1<<16)
		for {
			n, err := ours.Read(buf)
			p.said.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	go func() {
		err := p.Wait()
		<-read // all of it
		p.done <- err
	}()
	t.Cleanup(func() { p.Process.Kill(); ours.Close() })
	return p, ours
}

// On a terminal the answer to a signal stands above the bar at once; the second signal
// takes the bar away, says where the run stands, and the run can be resumed. No bar is
// full while work goes on, and none is so wide that a narrower terminal would break it.
func TestTerminal(t *testing.T) {
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	args := f.stage("sft", run, 3, "trainer.save_freq=1")
	onTerminal(t, path, append(args, "--steps=2")...).wants(t, exitUsage) // and the terminal works
	p := onTerminal(t, path, longStep(t, f, run, "--steps", "3", "trainer.save_freq=1")...)
	bar := regexp.MustCompile(`update_actor +\[[^]]*\] +([0-9]+)/([0-9]+)`)
	wait(t, "the bar", func() bool { return len(bar.FindAllString(p.said.String(), 3)) == 3 })
	p.Process.Signal(os.Interrupt)
	begun := time.Now()
	p.hears(t, "a second Ctrl-C stops at once")
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the answer to the signal came after %s", took)
	} else {
		t.Logf("hint after %s", took.Round(time.Millisecond))
	}
	wait(t, "a bar below it", func() bool {
		_, after, _ := strings.Cut(p.said.String(), "a second Ctrl-C stops at once")
		return bar.MatchString(after)
	})
	p.Process.Signal(os.Interrupt)
	p.wants(t, exitFailed)
	said := strings.ReplaceAll(p.said.String(), "\r", "")
	if left := chattest.Screen(said); bar.MatchString(strings.Join(left, "\n")) ||
		!strings.Contains(strings.Join(left, "\n"), "stopped at once by a second signal, without "+
			"saving: there is no checkpoint yet: the same command starts again at step 1\n") {
		t.Errorf("on the screen stays\n%s", strings.Join(left, "\n"))
	}
	for _, m := range bar.FindAllStringSubmatch(said, -1) {
		if m[1] == m[2] {
			t.Errorf("full while work goes on: %s", m[0])
		}
	}
	for _, l := range strings.Split(chattest.Control.ReplaceAllString(said, ""), "\n") {
		if bar.MatchString(l) && utf8.RuneCountInString(l) > 72 {
			t.Errorf("a bar of %d columns: %s", utf8.RuneCountInString(l), l)
		}
	}
	if p := onTerminal(t, path, args...); p.end(t, patience) == exitDone {
		t.Error("other settings are taken for the same run") // data.train_batch_size
	}
	short := filepath.Join(t.TempDir(), "short")
	p = onTerminal(t, path, f.stage("sft", short, 3, "trainer.save_freq=1")...)
	p.wants(t, exitDone)
	left := strings.Join(chattest.Screen(p.said.String()), "\n")
	if strings.Contains(left, "[=") || strings.Count(left, "step 3/3") != 1 {
		t.Errorf("on the screen stays\n%s", left)
	}
}

// slowed runs gad on a terminal with a fifth of its time: it is stopped for 80 ms of each
// 100. It returns after how long something was first shown, and the longest wait between
// two things that were.
func slowed(t *testing.T, path string, args ...string) (first, longest time.Duration) {
	t.Helper()
	begun := time.Now()
	p := onTerminal(t, path, args...)
	heard, last := 0, begun
	running, turn := true, begun.Add(20*time.Millisecond)
	look := func() {
		n, now := len(p.said.String()), time.Now()
		if n > heard {
			if heard == 0 {
				first = now.Sub(begun)
			}
			longest = max(longest, now.Sub(last))
			heard, last = n, now
		}
	}
	for {
		select {
		case err := <-p.done:
			if look(); err != nil {
				t.Fatalf("gad %s: %v\n%s", strings.Join(args, " "), err, p.said.String())
			}
			if wait := time.Since(last); heard == 0 { // only the result, elsewhere
				return wait, wait
			} else {
				return first, max(longest, wait)
			}
		case <-time.After(5 * time.Millisecond):
		}
		look()
		if now := time.Now(); now.After(turn) {
			if running = !running; running {
				p.Process.Signal(syscall.SIGCONT)
				turn = now.Add(20 * time.Millisecond)
			} else {
				p.Process.Signal(syscall.SIGSTOP)
				turn = now.Add(80 * time.Millisecond)
			}
		}
	}
}

// On a machine, or a disk, of a fifth of this one's speed no command leaves its user
// before a blank terminal: something is shown within a second and a half (0.3 s here), and
// no later wait is two seconds long. The rows are 10,000, to spare time; doc/LOG.md has the
// figures at 100,000.
func TestNothingIsSilent(t *testing.T) {
	if !hostile.Long() {
		t.Skip("16 commands at a fifth of their speed: in a long run")
	}
	path, f := built(t), ready(t)
	t.Chdir(t.TempDir())
	rows := fileText(f.path("rows.jsonl"))
	var many strings.Builder
	for many.Len() < 1<<20 { // some 10,000 rows
		many.WriteString(rows)
	}
	put(t, "rows.jsonl", many.String())
	student := f.path("sft", "global_step_60", "actor")
	for line := range strings.Lines(`data inspect --data rows.jsonl
data validate --data rows.jsonl --model $M
data convert --data rows.jsonl --output rows.parquet
data split --data rows.parquet --first a.arrow --second b.jsonl
plan --stage train --data rows.jsonl --model $M SMALL data.train_batch_size=4
sft --model $M --data a.arrow --val-data b.jsonl --output sft --steps 2 SMALL
warmup --model $M --data rows.parquet --output warmup --steps 2 --critic-warmup 1 SMALL
train --resume warmup --data rows.parquet --output train --steps 2
resume train --steps 3
eval --model $M --data rows.jsonl --limit 20 --disc-steps 4 --disc-seeds 1 --max-response-length 14
generate --model $M --data rows.jsonl --limit 40 --output answers.jsonl --max-new-tokens 14
score --critic train/global_step_3/critic --data answers.jsonl
logprobs --model $M --data answers.jsonl
doctor train
export --run train --output student
init --config $C --corpus rows.jsonl --output fresh
`) {
		args := words(strings.NewReplacer("$M", student, "$C", f.path("config.json")).
			Replace(line))
		first, longest := slowed(t, path, args...)
		t.Logf("%-20s first after %.2f s, longest wait %.2f s", strings.Join(args[:2], " "),
			first.Seconds(), longest.Seconds())
		if first > 1500*time.Millisecond || longest > 2*time.Second {
			t.Errorf("gad %s: at a fifth of the speed the first output came after %s, and the longest wait was %s", strings.Join(args, " "), first, longest)
		}
	}
}
