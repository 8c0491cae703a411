//go:build linux

package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/internal/hostile"
)

var episodeKills = flag.Int("episodekills", few(12, 1),
	"processes that TestKillInEpisodes kills on one rank, and again on two")

// requests is a file of what a run's environments were asked since it was removed: gad writes
// through tee, so that a test sees where a rollout stands.
type requests string

const throughTee = `tee -a "$ASKED" | "$GAD" env doors`

func (a requests) size() int { return len(fileText(string(a))) }

// open are the episodes that have begun and not ended.
func (a requests) open() int {
	text := fileText(string(a))
	return strings.Count(text, `"op":"reset"`) - strings.Count(text, `"op":"close"`)
}

// A run that is killed with signal 9 at random moments, most of them inside episodes, and started
// again with the same command until it is done, has the bits of one that was not: warmup and train
// on one rank, and warmup on two, of which one is killed. No environment outlives its run.
func TestKillInEpisodes(t *testing.T) {
	path, game := built(t), taskOf(t, "doors")
	file := requests(filepath.Join(t.TempDir(), "asked"))
	t.Setenv("ASKED", string(file))
	steps := few(4, 2)
	settings := slices.Concat([]string{"--env", throughTee, "data.train_batch_size=2",
		fmt.Sprint("rollout.n=", hostile.Share(4)), "data.max_prompt_length=256",
		"data.max_response_length=8",
		fmt.Sprint("env.max_turns=", few(5, 3)),
		"env.max_tokens=200", "algorithm.env_weight=0.5",
		"trainer.shards=2", "trainer.rank_timeout=20", "--threads", "1"}, stateful)
	warmup := func(run string) []string {
		return slices.Concat([]string{"warmup", "--model", filepath.Join(game, "student"), "--data",
			filepath.Join(game, "train.jsonl"), "--output", run, "--steps", fmt.Sprint(steps),
			"--critic-warmup", "1", "trainer.warmup_objective=policy"}, settings)
	}
	first := filepath.Join(t.TempDir(), "first")
	begun := time.Now()
	start(t, path, warmup(first)...).wants(t, exitDone)
	warmed, askedFirst := time.Since(begun), file.size()
	train := func(run string) []string {
		return slices.Concat([]string{"train", "--resume", first, "--data",
			filepath.Join(game, "train.jsonl"), "--output", run, "--steps", fmt.Sprint(steps)},
			settings)
	}
	for _, c := range []struct {
		name  string
		kills int
		args  func(run string) []string
		ranks int
	}{
		{"warmup", *episodeKills / 2, warmup, 1},
		{"train", (*episodeKills + 1) / 2, train, 1},
		{"warmup on two ranks", *episodeKills, warmup, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := func(run string) *process {
				os.Remove(string(file))
				if c.ranks == 1 {
					return start(t, path, c.args(run)...)
				}
				return ranked(t, c.ranks, c.args(run)...)
			}
			whole, took, bytes := first, warmed, askedFirst
			if c.name == "train" {
				whole = filepath.Join(t.TempDir(), "whole")
				begun := time.Now()
				begin(whole).wants(t, exitDone)
				took, bytes = time.Since(begun), file.size()
			}
			seed := uint64(time.Now().UnixNano())
			r := rand.New(rand.NewPCG(seed, 0))
			killed, inside, runs := 0, 0, 0
			for ; killed < c.kills && !t.Failed(); runs++ {
				run := filepath.Join(t.TempDir(), "run")
				for try := 0; ; try++ {
					if try > 100 {
						t.Fatalf("seed %d: no end after %d starts", seed, try)
					}
					p := begin(run)
					hit := false
					if killed < c.kills && try < 8 {
						// at a random time, or after so much has been asked; if only once, in an
						// episode behind a checkpoint
						at, much := time.Duration(r.Int64N(int64(took))), bytes
						if r.IntN(4) > 0 {
							at, much = took, r.IntN(bytes*2/3)
						}
						for begun := time.Now(); c.kills > 1 && time.Since(begun) < at &&
							file.size() <= much; {
							time.Sleep(time.Millisecond)
						}
						saved := -1
						wait(t, "the second step", func() bool {
							if _, err := os.Stat(filepath.Join(run, "global_step_1")); err == nil &&
								saved < 0 {
								saved = file.size()
							}
							return c.kills > 1 || ended(p) ||
								saved >= 0 && file.size() > saved && file.open() > 0
						})
						pids := []int{p.Process.Pid}
						if c.ranks > 1 {
							pids = p.rankPIDs()
						}
						if len(pids) > 0 {
							hit = syscall.Kill(pids[r.IntN(len(pids))], syscall.SIGKILL) == nil
						}
					}
					code := p.end(t, patience)
					if code == exitDone {
						break
					}
					if !hit {
						t.Fatalf("seed %d: start %d: exit status %d\n%s", seed, try, code,
							p.said.String())
					}
					killed++
					if file.open() > 0 {
						inside++
					}
				}
				equalRuns(t, run, whole, steps)
				os.RemoveAll(run)
			}
			wait(t, "the environments to end",
				func() bool { return len(processesWith("ASKED="+string(file))) == 0 })
			t.Logf("row 23: kill -9: episodes: %s: %d kills in %d runs of %d steps, %d of them inside an episode, 0 divergences (a run takes %s; seed %d)",
				c.name, killed, runs, steps, inside, took.Round(time.Millisecond), seed)
			if killed > 8 && 4*inside < killed {
				t.Errorf("only %d of %d kills came inside an episode: the test shows too little",
					inside, killed)
			}
		})
	}
}

// Trees in doors: a run whose branches are forks has the bits of one in the same environment
// without its promise, in which branches play their turns again; with GAD_LONG so have forks on two
// ranks, and a run that was killed with signal 9 once the first fork was asked for. The turns that
// doors gets are counted.
func TestForksInDoors(t *testing.T) {
	slow(t)
	path, game := built(t), taskOf(t, "doors")
	file := requests(filepath.Join(t.TempDir(), "asked"))
	t.Setenv("ASKED", string(file))
	settings := []string{"--data", filepath.Join(game, "train.jsonl"), "--threads", "1",
		"data.train_batch_size=2", "data.max_prompt_length=256", "data.max_response_length=8",
		"env.max_tokens=300", fmt.Sprint("env.max_turns=", few(6, 4)), "algorithm.env_weight=0.5",
		"trainer.shards=2",
		"trainer.rank_timeout=60", "trainer.save_freq=1"}
	first := filepath.Join(t.TempDir(), "first")
	args := slices.Concat([]string{"warmup", "--model", filepath.Join(game, "student"), "--env",
		throughTee, "--output", first, "--critic-warmup", "1", "--steps", "1",
		"rollout.n=2"}, settings)
	start(t, path, args...).wants(t, exitDone)
	steps := few(2, 1)
	train := func(run, env string) []string {
		return slices.Concat([]string{"train", "--resume", first, "--env", env, "--output", run,
			"--steps", fmt.Sprint(steps)}, settings, []string{"rollout.n=1", "rollout.tree.trees=2",
			"rollout.tree.expand=2", "rollout.tree.rounds=2", "algorithm.adv_estimator=tree_node"})
	}
	const mute = throughTee + ` | sed -u 's/,"fork":true//'`
	var whole string
	var asked [2]string // with the promise, and without
	for i, env := range []string{throughTee, mute} {
		os.Remove(string(file))
		run := filepath.Join(t.TempDir(), "run")
		start(t, path, train(run, env)...).wants(t, exitDone)
		asked[i] = fileText(string(file))
		if whole == "" {
			whole = run
		}
		equalRuns(t, run, whole, steps)
	}
	forks, turns := strings.Count(asked[0], `"op":"fork"`), strings.Count(asked[0], `"op":"step"`)
	again := strings.Count(asked[1], `"op":"step"`)
	t.Logf("%d steps of 2 prompts, 2 trees of 5 episodes each: doors was given %d turns and %d "+
		"forks, and without forks %d turns",
		steps, turns, forks, again)
	if strings.Contains(asked[1], `"op":"fork"`) || forks == 0 || turns >= again ||
		strings.Count(asked[0], `"op":"close"`) != forks+strings.Count(asked[0], `"op":"reset"`) {
		t.Errorf("%d forks, %d turns, and %d without; episodes begun and closed: %d, %d", forks,
			turns, again, forks+strings.Count(asked[0], `"op":"reset"`),
			strings.Count(asked[0], `"op":"close"`))
	}
	if !hostile.Long() {
		return // a kill inside an episode: TestKillInEpisodes
	}
	run := filepath.Join(t.TempDir(), "killed")
	os.Remove(string(file))
	p := start(t, path, train(run, throughTee)...)
	wait(t, "a fork", func() bool {
		return strings.Contains(fileText(string(file)), `"op":"fork"`)
	})
	if err := syscall.Kill(p.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if p.end(t, patience) == exitDone {
		t.Error("it was done before it was killed")
	}
	start(t, path, train(run, throughTee)...).wants(t, exitDone)
	equalRuns(t, run, whole, steps)
	run = filepath.Join(t.TempDir(), "ranks")
	ranked(t, 2, train(run, throughTee)...).wants(t, exitDone)
	equalRuns(t, run, whole, steps)
}

// processesWith are the processes, but for this one, with a line of the environment.
func processesWith(line string) (found []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		if slices.Contains(strings.Split(string(raw), "\x00"), line) &&
			filepath.Base(filepath.Dir(name)) != fmt.Sprint(os.Getpid()) {
			found = append(found, name)
		}
	}
	return found
}
