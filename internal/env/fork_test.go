//go:build unix

package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// forks is the tests' environment, which can fork, well or not.
func forks(how string) string { return fmt.Sprintf("FORK='%s' %s", how, fake) }

var six = []string{"a", "b", "c", "d", "e", "f"}

// held is an episode of a pool that was played and is held.
func held(t *testing.T, p *Pool, seed uint64, turns ...string) (Episode, []Reply) {
	t.Helper()
	e := p.Episode()
	replies, err := goOn(e, seed, turns...)
	if err != nil {
		t.Fatal(err)
	}
	p.Hold(e)
	t.Cleanup(e.Close)
	return e, replies
}

// A branch goes on as an episode with the same turns, whether the child forks or plays them again:
// of an episode that is over and of one that is not, behind each turn, of a branch, beside others.
// A fork costs no turn.
func TestBranches(t *testing.T) {
	for _, command := range []string{fake, forks("well")} {
		p := pool(t, command, 2, 20*time.Second)
		can := command != fake
		for _, turns := range [][]string{six, six[:4]} {
			e, all := held(t, p, 7, turns...)
			if _, err := e.Step(context.Background(), Turn{}); err == nil {
				t.Error("a turn of an episode that is held")
			}
			var wait sync.WaitGroup
			for k := 1; k < len(turns); k++ {
				wait.Go(func() {
					other := append(append([]string{}, six[:k]...), "x", "y", "z")[:4]
					for _, turns := range [][]string{other, turns, other} {
						b := p.Branch(e, k)
						got, err := goOn(b, 7, turns...)
						want, errWant := play(p, 7, turns...)
						if err != nil || errWant != nil || !reflect.DeepEqual(got, want) {
							t.Errorf("behind turn %d: %+v, %v, want %+v, %v", k, got, err, want,
								errWant)
						}
						if b.Forked() != can {
							t.Errorf("behind turn %d: forked %t", k, b.Forked())
						}
						b.Close()
					}
				})
			}
			wait.Wait()
			before := p.Steps()
			b := p.Branch(e, 2)
			got, err := goOn(b, 7, six[:3]...)
			if n := p.Steps() - before; err != nil || can && n != 1 || !can && n != 3 {
				t.Errorf("%d turns were played for one, %v", n, err)
			}
			p.Hold(b)
			c := p.Branch(b, 1)
			before = p.Steps()
			if more, err := goOn(c, 7, six[:4]...); err != nil || c.Forked() != can ||
				!reflect.DeepEqual(more[:4], got) || !reflect.DeepEqual(more[:4], all[:4]) {
				t.Errorf("a branch of a branch: %+v, %v, want %+v", more, err, all)
			}
			if n := p.Steps() - before; can && n != 3 || !can && n != 4 {
				t.Errorf("%d turns were played for three", n)
			}
			b.Close()
			c.Close()
		}
		e, _ := held(t, p, 7, six...)
		for _, b := range []Branch{p.Branch(e, 6), p.Branch(e, 0), p.Branch(e, 7)} {
			if _, err := goOn(b, 7); can && (err == nil || errors.Is(err, ErrFault) ||
				!strings.HasPrefix(err.Error(), "env: a branch behind turn ")) {
				t.Errorf("a branch behind the end, or before the first turn: %v", err)
			}
			b.Close()
		}
		for seed, turn := range map[uint64]string{8: "a", 7: "b"} {
			b := p.Branch(e, 2)
			if _, err := goOn(b, seed, turn); can && (err == nil || errors.Is(err, ErrFault) ||
				!strings.Contains(err.Error(), "another ")) {
				t.Errorf("a branch with seed %d and turn %s: %v", seed, turn, err)
			}
			b.Close()
		}
	}
}

// A fork that was promised and is not kept is a fault of the branch, on a line that says so; the
// episode that it is of, and those beside it, go on.
func TestForksNotKept(t *testing.T) {
	for how, want := range map[string]string{
		"error":  `the environment says "no more memory"`,
		"only":   `neither append nor prompt, and not done: give one of them, or "done":true`,
		"id":     `has the id of no open episode: a reply has the id of its request`,
		"state":  `the reply is not that to turn 2: was "`,
		"silent": `no reply within 500ms`,
		"exit":   `the program was started again 3 times for it: the program ended with exit status 3`,
		"kill":   `the program was started again 3 times for it: the program ended with `,
		"half":   `the program was started again 3 times for it: the program ended with exit status 1`,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			limit := 20 * time.Second
			if how == "silent" {
				if testing.Short() {
					t.Skip("waits: not with -short")
				}
				how, limit = "hang", 500*time.Millisecond
			}
			command := forks(how)
			p, err := open(context.Background(),
				Options{Command: command, Workers: 1, Timeout: limit}, time.Minute, quick)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			beside := p.Episode()
			defer beside.Close()
			if _, err := beside.Reset(context.Background(), 5, Row{}); err != nil {
				t.Fatal(err)
			}
			e := p.Episode()
			all, err := goOn(e, 7, six...)
			if err != nil {
				t.Fatal(err)
			}
			p.Hold(e)
			defer e.Close()
			b := p.Branch(e, 2)
			defer b.Close()
			got, err := goOn(b, 7, six...)
			prefix := fmt.Sprintf(
				"env: %q: episode 3, fork of episode 2 behind turn 2: promised and not kept: ",
				command)
			if !errors.Is(err, ErrFault) || !strings.HasPrefix(err.Error(), prefix) ||
				!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v, %v\nwant %s...%s", got, err, prefix, want)
			}
			if _, err := beside.Step(context.Background(), Turn{Text: "a"}); err != nil {
				t.Errorf("the episode beside it: %v", err)
			}
			if again, err := play(p, 7, six...); err != nil || !reflect.DeepEqual(again, all) {
				t.Errorf("an episode behind it: %+v, %v", again, err)
			}
		})
	}
}

// A reply to a fork under the id of the episode that it is of is that episode's fault, since it
// waits for nothing. Its branches play their turns from then on.
func TestForkAnswersForItsEpisode(t *testing.T) {
	t.Parallel()
	p := pool(t, forks("from"), 1, time.Second)
	e, all := held(t, p, 7, six...)
	if testing.Short() {
		t.Skip("waits: not with -short")
	}
	b := p.Branch(e, 2)
	defer b.Close()
	if _, err := goOn(b, 7, six...); err != nil && !errors.Is(err, ErrFault) {
		t.Errorf("%v", err)
	}
	c := p.Branch(e, 2)
	defer c.Close()
	if got, err := goOn(c, 7, six...); err != nil || c.Forked() || !reflect.DeepEqual(got, all) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A child that dies at a fork, once, and one that dies beside it: the fork is asked for once more,
// and a forked episode is played again from its own seed and turns.
func TestForksSurviveCrashes(t *testing.T) {
	for _, how := range []string{"exit", "kill", "half"} {
		dir := t.TempDir()
		p := pool(t, forks(how+" "+filepath.Join(dir, "once")), 1, 20*time.Second)
		e, all := held(t, p, 7, six...)
		b := p.Branch(e, 3)
		if r, err := b.Reset(context.Background(), 7,
			Row{Env: json.RawMessage(`{"a":1}`)}); err != nil || !b.Forked() ||
			!reflect.DeepEqual(r, all[0]) {
			t.Fatalf("%s: %+v, %v", how, r, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "once")); err != nil {
			t.Errorf("%s: it has not crashed", how)
		}
		for k, turn := range six[:4] {
			if r, err := b.Step(context.Background(), Turn{Text: turn}); err != nil ||
				!reflect.DeepEqual(r, all[1+k]) {
				t.Errorf("%s: turn %d: %+v, %v, want %+v", how, k+1, r, err, all[1+k])
			}
		}
		if _, err := play(p, 2, "a", "kill "+filepath.Join(dir, "beside"), "c"); err != nil {
			t.Fatal(err)
		}
		for k, turn := range six[4:] {
			if r, err := b.Step(context.Background(), Turn{Text: turn}); err != nil ||
				!reflect.DeepEqual(r, all[5+k]) {
				t.Errorf("%s: behind a crash, turn %d: %+v, %v, want %+v", how, k+5, r, err,
					all[5+k])
			}
		}
		b.Close()
		// what was held has gone with the child: the next branch plays its turns
		before := p.Steps()
		c := p.Branch(e, 3)
		got, err := goOn(c, 7, six...)
		if err != nil || c.Forked() || !reflect.DeepEqual(got, all) || p.Steps()-before != 6 {
			t.Errorf("%s: %+v, %v, want %+v; forked %t, %d turns", how, got, err, all, c.Forked(),
				p.Steps()-before)
		}
		c.Close()
	}
}

// Held episodes give their places up where others need them, and nobody waits for them.
func TestHeldEpisodesGiveWay(t *testing.T) {
	p := pool(t, "PLACES=2 "+forks("well"), 1, 20*time.Second)
	one, all := held(t, p, 1, six...)
	two, _ := held(t, p, 2, six...)
	b := p.Branch(two, 2) // takes the place of the other
	if _, err := goOn(b, 2, six[:3]...); err != nil || !b.Forked() {
		t.Errorf("%v, forked %t", err, b.Forked())
	}
	c := p.Branch(one, 2)
	if got, err := goOn(c, 1, six...); err != nil || c.Forked() || !reflect.DeepEqual(got, all) {
		t.Errorf("a branch of an episode that gave way: %+v, %v", got, err)
	}
	done := make(chan error)
	go func() {
		_, err := play(p, 3, six...) // waits: no place is free, and none is held
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("an episode without a place: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.Hold(c) // somebody waits: closed at once
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.Close()
	one.Close()
	two.Close()
	c.Close()
	if n := p.free[p.workers[0]]; n != 2 || len(p.held) > 0 {
		t.Errorf("%d places are free of 2, %d episodes are held", n, len(p.held))
	}
	var wait sync.WaitGroup
	for i := range 16 { // trees at the same time, over two places
		wait.Go(func() {
			e := p.Episode()
			want, err := goOn(e, uint64(i), six...)
			p.Hold(e)
			defer e.Close()
			if err != nil {
				t.Error(err)
				return
			}
			for k := 1; k < 6; k += 2 {
				b := p.Branch(e, k)
				if got, err := goOn(b, uint64(i), six...); err != nil ||
					!reflect.DeepEqual(got, want) {
					t.Errorf("tree %d behind turn %d: %+v, %v, want %+v", i, k, got, err, want)
				}
				p.Hold(b)
				defer b.Close()
			}
		})
	}
	wait.Wait()
	if n := p.free[p.workers[0]]; n != 2 || len(p.held) > 0 {
		t.Errorf("%d places are free of 2, %d episodes are held", n, len(p.held))
	}
}
