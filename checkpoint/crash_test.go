package checkpoint

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// A scenario is one operation on a run, and what must hold of a run folder
// found after a crash within it.
type scenario struct {
	name  string
	start func() *vfstest.CrashFS
	do    func(fsys vfs.FS) error
	// check looks at a crashed file system; acked says that do had returned nil.
	check func(c *vfstest.CrashFS, acked bool) error
	// again says that after the check do must succeed on what the crash left.
	again bool
	// needed says which syncs ("method path") the sweep must show to be needed.
	needed func(op string) bool
}

const run = "/runs/r"

// started returns a run with these steps committed, and nothing in memory only.
func started(t *testing.T, steps ...int) func() *vfstest.CrashFS {
	return func() *vfstest.CrashFS {
		c := vfstest.NewCrash()
		commitSteps(t, c, run, steps...)
		return c
	}
}

// sound checks what holds of a run folder after any crash: the newest step is
// atLeast or later, with its own bytes; every folder with a step's name
// verifies; and the tracker, if it is there, names a step that is there.
func sound(c *vfstest.CrashFS, atLeast int) error {
	step, dir, warnings, err := Latest(c, run)
	if errors.Is(err, ErrNone) && atLeast < 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if step < atLeast {
		return fmt.Errorf("step %d is back, %d was acknowledged", step, atLeast)
	}
	if len(warnings) > 0 {
		return fmt.Errorf("warned: %s", warnings[0])
	}
	if err := holds(c, dir, content(step)); err != nil {
		return err
	}
	steps, err := Steps(c, run)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := errors.Join(Verify(c, stepDir(run, s)),
			holds(c, stepDir(run, s), content(s))); err != nil {
			return err
		}
	}
	b, err := c.ReadFile(path.Join(run, trackerName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		return fmt.Errorf("the tracker is torn: %q", b)
	}
	if _, err := c.Stat(stepDir(run, n)); err != nil {
		return fmt.Errorf("the tracker names step %d: %v", n, err)
	}
	return nil
}

// tracks checks that the tracker names exactly this step.
func tracks(c *vfstest.CrashFS, step int) error {
	if b, err := c.ReadFile(path.Join(run, trackerName)); string(b) != strconv.Itoa(step) {
		return fmt.Errorf("the tracker says %q (%v), step %d was acknowledged", b, err, step)
	}
	return nil
}

func scenarios(t *testing.T) []scenario {
	const out = "/else/where/model"
	committed := func(before int) func(c *vfstest.CrashFS, acked bool) error {
		return func(c *vfstest.CrashFS, acked bool) error {
			if !acked {
				return sound(c, before)
			}
			return errors.Join(sound(c, 3), tracks(c, 3))
		}
	}
	commit3 := func(fsys vfs.FS) error { return Commit(fsys, run, 3, fill(3)) }
	whole := func(c *vfstest.CrashFS, want map[string]string, acked bool) error {
		if _, err := c.Stat(out); errors.Is(err, fs.ErrNotExist) && !acked {
			return nil
		} else if err != nil {
			return err
		}
		return holds(c, out, want)
	}
	actor := map[string]string{}
	for name, text := range content(3) {
		if below, ok := strings.CutPrefix(name, "actor/"); ok {
			actor[below] = text
		}
	}
	all := func(string) bool { return true }
	none := func(string) bool { return false } // the step before has the same name, and is durable
	return []scenario{
		{"commit", started(t, 1, 2), commit3, committed(2), true, all},
		{"first commit, no run folder", vfstest.NewCrash, commit3, committed(-1), true, all},
		{"commit over a broken step", func() *vfstest.CrashFS {
			c := started(t, 1, 2, 3)()
			overwrite(t, c, "/runs/r/global_step_3/optimizer.safetensors", []byte("rot"))
			f, err := c.OpenAppend("/runs/r/global_step_3/optimizer.safetensors")
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				t.Fatal(err)
			}
			return c
		}, commit3, func(c *vfstest.CrashFS, acked bool) error {
			if acked {
				return errors.Join(sound(c, 3), tracks(c, 3))
			}
			step, dir, _, err := Latest(c, run) // the broken one may still be there
			if err != nil || step < 2 {
				return fmt.Errorf("step %d: %v", step, err)
			}
			return holds(c, dir, content(step))
		}, true, none},
		{"commit of a step that is there", started(t, 1, 2, 3), commit3, committed(3), true, none},
		{"commit after a kill between rename and sync", func() *vfstest.CrashFS {
			// The step was never acknowledged, its name never synced.
			killed := func(at int) (*vfstest.CrashFS, *vfstest.ErrorFS) {
				c := started(t, 1, 2)()
				faulty := vfstest.NewError(c, at, true)
				_ = commit3(faulty)
				return c, faulty
			}
			_, clean := killed(-1)
			at := 0
			for !strings.HasPrefix(clean.Op(at), "rename /runs/r/.commit-") {
				at++
			}
			c, _ := killed(at + 1)
			return c
		}, commit3, committed(2), true, func(op string) bool { return op == "syncdir "+run }},
		{"prune", started(t, 1, 2, 3, 4, 5), func(fsys vfs.FS) error {
			return Prune(fsys, run, 2, func(s int) bool { return s == 2 }, nil)
		}, func(c *vfstest.CrashFS, acked bool) error {
			if err := errors.Join(sound(c, 5), tracks(c, 5)); err != nil {
				return err
			}
			steps, err := Steps(c, run)
			for _, s := range []int{2, 4, 5} {
				if !strings.Contains(fmt.Sprint(steps), strconv.Itoa(s)) {
					return fmt.Errorf("step %d is gone: %v %v", s, steps, err)
				}
			}
			if acked && len(steps) != 3 {
				return fmt.Errorf("pruned steps are back: %v", steps)
			}
			return nil
		}, true, all},
		{"recovery from a damaged checkpoint", func() *vfstest.CrashFS {
			c := started(t, 1, 2, 3)()
			if err := errors.Join(c.Remove("/runs/r/global_step_3/optimizer.safetensors"),
				c.SyncDir("/runs/r/global_step_3")); err != nil {
				t.Fatal(err)
			}
			return c
		}, func(fsys vfs.FS) error {
			_, _, _, err := Recover(fsys, run)
			return err
		}, func(c *vfstest.CrashFS, acked bool) error {
			step, dir, warnings, err := Latest(c, run)
			if err != nil || step != 2 || len(warnings) != 1 {
				return fmt.Errorf("step %d: %q: %v", step, warnings, err)
			}
			if acked {
				err = tracks(c, 2)
			}
			return errors.Join(err, holds(c, dir, content(2)))
		}, true, all},
		{"export of a checkpoint", started(t, 3),
			func(fsys vfs.FS) error { return Export(fsys, stepDir(run, 3), out) },
			func(c *vfstest.CrashFS, acked bool) error {
				if err := whole(c, content(3), acked); err != nil {
					return err
				}
				if _, err := c.Stat(out); err == nil {
					if err := Verify(c, out); err != nil {
						return err
					}
				}
				return sound(c, 3)
			}, false, all},
		{"write of a folder", started(t, 3),
			func(fsys vfs.FS) error { return WriteFolder(fsys, out, fill(3)) },
			func(c *vfstest.CrashFS, acked bool) error {
				return errors.Join(whole(c, content(3), acked), sound(c, 3))
			}, false, all},
		{"write of a file", started(t, 3), func(fsys vfs.FS) error {
			return WriteFile(fsys, out, 6, func(w io.Writer) error {
				_, err := io.WriteString(w, "weight")
				return err
			})
		}, func(c *vfstest.CrashFS, acked bool) error {
			if b, err := c.ReadFile(out); !errors.Is(err, fs.ErrNotExist) || acked {
				if err != nil || string(b) != "weight" {
					return fmt.Errorf("the file holds %q (%v)", b, err)
				}
			}
			return sound(c, 3)
		}, false, all},
		{"export of a model", started(t, 3),
			func(fsys vfs.FS) error { return Export(fsys, stepDir(run, 3)+"/actor", out) },
			func(c *vfstest.CrashFS, acked bool) error {
				return errors.Join(whole(c, actor, acked), sound(c, 3))
			}, false, all},
	}
}

// seeds is how many clones are looked at where chance plays a part.
var seeds = flag.Int("seeds", 0,
	"crashed states to look at for each operation and share of unsynced data kept; 0: 2, and 6 with GAD_LONG and where a sync is left out")

// clones returns the number of crashed states of each operation and share, where a sync is left out
// or none is.
func clones(without bool) uint64 {
	switch {
	case *seeds > 0:
		return uint64(*seeds)
	case without:
		return 6 // of which one must show it
	}
	return uint64(hostile.Share(6))
}

// sweep stops the scenario before each of its operations in turn, and at its
// end, and checks what each crash may leave.
func (s scenario) sweep() (states, ops int, err error) {
	for at := 0; ; at++ {
		n, done, err := s.crash(at, -1, s.again)
		states += n
		if err != nil || done {
			return states, at, err
		}
	}
}

// mutant does the same without sync number skip, from the end on, where the
// loss shows first, and returns the first wrong that it finds.
func (s scenario) mutant(skip, ops int) error {
	for at := ops; at >= 0; at-- {
		if _, _, err := s.crash(at, skip, false); err != nil {
			return err
		}
	}
	return nil
}

// crash runs the scenario up to operation at, without sync number skip, and
// checks the clones. done says that it came to its end.
func (s scenario) crash(at, skip int, again bool) (states int, done bool, err error) {
	mem := s.start()
	faulty := vfstest.NewError(vfstest.NewForgetful(mem, skip), at, true)
	acked := s.do(faulty) == nil
	for _, keep := range []int{0, 10, 50, 100} {
		for seed := range clones(skip >= 0) {
			states++
			c := mem.CrashClone(keep, seed)
			err := s.check(c, acked)
			if err == nil && again {
				// Life goes on: what the crash left is no hindrance.
				if err = Clean(c, run); err == nil {
					if err = s.do(c); err == nil {
						err = s.check(c, true)
					}
				}
			}
			if err != nil {
				return states, false, fmt.Errorf(
					"crash before operation %d (%s), %d %% kept, seed %d: %w", at, faulty.Op(at),
					keep, seed, err)
			}
			if keep == 0 || keep == 100 {
				break // no chance in it
			}
		}
	}
	return states, faulty.Faults() == 0, nil
}

// The power fails before each operation of a commit, a prune, an export; of
// what was not synced 0, 10, 50 or 100 % survives. Then each sync in turn is
// left out, and the same sweep must find that something breaks: no sync is for
// nothing, and none is missing (with -short of the first scenario alone).
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	var points, crashed, syncs int
	all := scenarios(t)
	for n, s := range all {
		if testing.Short() && n%3 != 0 {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			states, ops, err := s.sweep()
			if err != nil {
				t.Fatal(err)
			}
			points, crashed = points+ops+1, crashed+states
			if testing.Short() && n > 0 {
				return
			}
			count := vfstest.NewForgetful(s.start(), -1)
			if err := s.do(count); err != nil {
				t.Fatal(err)
			}
			shown, needed := 0, 0
			for i := range count.Syncs() {
				skip := vfstest.NewForgetful(s.start(), i)
				if err := s.do(skip); err != nil {
					t.Fatal(err)
				}
				if !s.needed(skip.SkippedSync()) {
					continue
				}
				needed++
				if s.mutant(i, ops) == nil {
					t.Errorf("no crash shows that sync %d of %d is missing (%s)", i, count.Syncs(),
						skip.SkippedSync())
					continue
				}
				shown++
			}
			t.Logf("%d operations, %d crashed states, 0 wrong; %d of %d syncs looked at shown to be needed", ops, states, shown, needed)
			syncs += shown
		})
	}
	t.Logf("row 2: power loss: %d crash points of %d scenarios, 4 shares of unsynced data kept, %d crashed states, 0 lost; %d syncs left out one at a time, %d noticed",
		points, len(all), crashed, syncs, syncs)
}

// Every operation fails in turn, once and from then on: the error is reported,
// with its cause, and the checkpoints from before load.
func TestEveryFaultIsReported(t *testing.T) {
	t.Parallel()
	sumInjected, sumReported := 0, 0
	for _, s := range scenarios(t) {
		for _, forever := range []bool{false, true} {
			injected, reported := 0, 0
			for at := 0; ; at++ {
				mem := s.start()
				faulty := vfstest.NewError(mem, at, forever)
				err := s.do(faulty)
				if faulty.Faults() == 0 {
					if err != nil {
						t.Errorf("%s: %v", s.name, err)
					}
					break
				}
				injected++
				if errors.Is(err, vfstest.ErrInjected) && !strings.Contains(err.Error(), "\n") {
					reported++
				} else {
					t.Errorf("%s: operation %d (%s): error %v", s.name, at, faulty.Op(at), err)
				}
				if err := s.check(mem, false); err != nil {
					t.Errorf("%s: after operation %d (%s) failed: %v", s.name, at, faulty.Op(at),
						err)
				}
				if s.again {
					if err := s.do(mem); err != nil {
						t.Errorf("%s: again after operation %d (%s) failed: %v", s.name, at,
							faulty.Op(at), err)
					}
				}
			}
			t.Logf("%s: %d faults injected (for ever: %v), %d reported", s.name, injected, forever,
				reported)
			sumInjected, sumReported = sumInjected+injected, sumReported+reported
		}
	}
	// The readers too.
	for name, do := range map[string]func(vfs.FS) error{
		"Latest":  func(f vfs.FS) error { _, _, _, err := Latest(f, run); return err },
		"Steps":   func(f vfs.FS) error { _, err := Steps(f, run); return err },
		"Verify":  func(f vfs.FS) error { return Verify(f, stepDir(run, 2)) },
		"Clean":   func(f vfs.FS) error { return Clean(f, run) },
		"Recover": func(f vfs.FS) error { _, _, _, err := Recover(f, run); return err },
		"CheckSpace": func(f vfs.FS) error {
			return CheckSpace(f, run, 1)
		},
	} {
		injected := 0
		for at := 0; ; at++ {
			c := started(t, 1, 2)()
			if err := c.MkdirAll(run + "/" + commitPrefix + "x"); err != nil {
				t.Fatal(err)
			}
			faulty := vfstest.NewError(c, at, false)
			err := do(faulty)
			if faulty.Faults() == 0 {
				break
			}
			injected++
			if !errors.Is(err, vfstest.ErrInjected) || errors.Is(err, ErrNone) ||
				errors.Is(err, ErrCorrupt) {
				sumReported--
				t.Errorf("%s: operation %d (%s): error %v", name, at, faulty.Op(at), err)
			}
		}
		sumInjected, sumReported = sumInjected+injected, sumReported+injected
	}
	t.Logf("row 3: I/O errors: %d injected, once and for ever, %d reported, the checkpoint before intact each time", sumInjected, sumReported)
}

// The disk fills up at every point of a commit and of an export, byte by byte
// in 256 steps: ErrSpace with path, bytes needed and bytes free, and the last
// checkpoint is what it was.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	total, kinds := 0, 0
	for _, s := range scenarios(t) {
		if s.name == "prune" {
			continue // writes nothing
		}
		full := vfstest.NewBudget(s.start(), 1<<40)
		if err := s.do(full); err != nil {
			t.Fatal(err)
		}
		need := full.BytesUsed()
		refused, last := 0, int64(-1)
		for i := range int64(257) {
			budget := need * i / 256
			if budget == last {
				continue
			}
			last = budget
			mem := s.start()
			err := s.do(vfstest.NewBudget(mem, budget))
			if budget >= need {
				if err != nil {
					t.Errorf("%s: with %d bytes: %v", s.name, budget, err)
				}
				continue
			}
			refused++
			if !errors.Is(err, ErrSpace) {
				t.Errorf("%s: %d of %d bytes: %v", s.name, budget, need, err)
				continue
			}
			for _, part := range []string{"needed", " free", "/"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: message %q lacks %q", s.name, err, part)
				}
			}
			if err := s.check(mem, false); err != nil {
				t.Errorf("%s: %d of %d bytes: %v", s.name, budget, need, err)
			}
		}
		t.Logf("%s: needs %d bytes; refused %d times with less", s.name, need, refused)
		total, kinds = total+refused, kinds+1
	}
	t.Logf("row 4: full disk: %d budgets below what is needed, 256 steps each of %d scenarios, refused each time, the checkpoint before intact each time", total, kinds)
	err := ExplainFull(vfs.OS, t.TempDir(), 7, fmt.Errorf("write: %w", syscall.ENOSPC))
	if !errors.Is(err, ErrSpace) || !errors.Is(err, syscall.ENOSPC) ||
		!strings.Contains(err.Error(), "more than 7 bytes needed") {
		t.Error(err)
	}
}
