package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// onTerminal starts gad with a terminal of 100 columns as its standard error.
func onTerminal(t *testing.T, path string, args ...string) *process {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	fd := int(ours.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100})
	}
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	p := &process{Cmd: exec.Command(path, args...), done: make(chan error, 1)}
	p.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
	p.Stderr = theirs
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
	return p
}

var control = regexp.MustCompile("\x1b\\[([0-9]*)([A-Za-z])")

// screen is what stands on a terminal after the output.
func screen(output string) []string {
	lines, at := []string{""}, 0
	for output != "" {
		if m := control.FindStringSubmatch(output); m != nil && strings.HasPrefix(output, m[0]) {
			n := 1
			fmt.Sscan(m[1], &n)
			switch m[2] {
			case "A":
				at = max(0, at-n)
			case "J":
				lines = append(lines[:at:at], "")
			}
			output = output[len(m[0]):]
			continue
		}
		r, size := utf8.DecodeRuneInString(output)
		output = output[size:]
		switch r {
		case '\r':
		case '\n':
			if at++; at == len(lines) {
				lines = append(lines, "")
			}
			lines[at] = ""
		default:
			lines[at] += string(r)
		}
	}
	return lines
}

// On a terminal the answer to a signal stands above the bar at once; the second signal
// takes the bar away, says where the run stands, and the run can be resumed. No bar is
// full while work goes on, and none is so wide that a narrower terminal would break it.
func TestTerminal(t *testing.T) {
	path, f := built(t), ready(t)
	run := filepath.Join(t.TempDir(), "run")
	args := append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", run, "--steps", "3"), "trainer.save_freq=1")
	if p := onTerminal(t, path, append(args, "--steps=2")...); p.end(t, patience) != exitUsage {
		t.Fatal("--steps twice is taken") // and the terminal works
	}
	p := onTerminal(t, path, append(args[:len(args):len(args)], "data.train_batch_size=30000")...)
	bar := regexp.MustCompile(`update_actor +\[[^]]*\] +([0-9]+)/([0-9]+)`)
	wait(t, "the bar", func() bool { return len(bar.FindAllString(p.said.String(), 3)) == 3 })
	p.Process.Signal(os.Interrupt)
	begun := time.Now()
	wait(t, "the answer to the signal", func() bool { return strings.Contains(p.said.String(), "a second Ctrl-C stops at once") })
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the answer to the signal came after %s", took)
	} else {
		t.Logf("hint after %s", took.Round(time.Millisecond))
	}
	wait(t, "a bar below it", func() bool {
		_, after, _ := strings.Cut(p.said.String(), "a second Ctrl-C stops at once")
		return bar.MatchString(after)
	})
	p.Process.Signal(os.Interrupt)
	if code := p.end(t, 10*time.Second); code != exitFailed {
		t.Errorf("after the second signal: exit status %d", code)
	}
	said := strings.ReplaceAll(p.said.String(), "\r", "")
	if left := screen(said); bar.MatchString(strings.Join(left, "\n")) || !strings.Contains(strings.Join(left, "\n"), "stopped at once by a second signal, without saving: there is no checkpoint yet: the same command starts again at step 1\n") {
		t.Errorf("on the screen stays\n%s", strings.Join(left, "\n"))
	}
	for _, m := range bar.FindAllStringSubmatch(said, -1) {
		if m[1] == m[2] {
			t.Errorf("full while work goes on: %s", m[0])
		}
	}
	for _, l := range strings.Split(control.ReplaceAllString(said, ""), "\n") {
		if bar.MatchString(l) && utf8.RuneCountInString(l) > 72 {
			t.Errorf("a bar of %d columns: %s", utf8.RuneCountInString(l), l)
		}
	}
	if p := onTerminal(t, path, args...); p.end(t, patience) == exitDone {
		t.Error("other settings are taken for the same run") // data.train_batch_size
	}
	short := filepath.Join(t.TempDir(), "short")
	args = append(stage("sft", "--model", f.path("student"), "--data", f.path("train.arrow"), "--output", short, "--steps", "3"), "trainer.save_freq=1")
	if p := onTerminal(t, path, args...); p.end(t, patience) != exitDone {
		t.Errorf("a run on a terminal:\n%s", p.said.String())
	} else if left := strings.Join(screen(p.said.String()), "\n"); strings.Contains(left, "[=") || strings.Count(left, "step 3/3") != 1 {
		t.Errorf("on the screen stays\n%s", left)
	}
}
