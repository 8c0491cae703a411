package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Someone else may ask how a run is: of a run that gad makes now, and of one whose lock
// an earlier gad made so that its owner alone can read it.
func TestDoctorOfAnotherUser(t *testing.T) {
	path := built(t)
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root can be another user")
	}
	f := ready(t)
	dir := filepath.Join(t.TempDir(), "open")
	run := filepath.Join(dir, "run")
	must(t, f.stage("sft", run, 1)...)
	program := filepath.Join(dir, "gad")
	if err := os.WriteFile(program, []byte(readFile(t, path)), 0o755); err != nil {
		t.Fatal(err)
	}
	// a test's folders are closed to others
	for up := dir; up != filepath.Dir(up); up = filepath.Dir(up) {
		if info, err := os.Stat(up); err != nil || info.Mode().Perm()&0o005 != 0o005 &&
			os.Chmod(up, info.Mode().Perm()|0o055) != nil {
			t.Fatal(up, err)
		}
		if up == os.TempDir() {
			break
		}
	}
	ask := func() (int, string) {
		cmd := exec.Command(program, "doctor", run)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if _, exited := err.(*exec.ExitError); err != nil && !exited {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, said := ask(); code != exitDone || !strings.Contains(said, "\nno problems found\n") {
		t.Errorf("exit status %d\n%s", code, said)
	}
	lock := filepath.Join(run, ".lock")
	if err := os.Chmod(lock, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, said := ask(); code != exitDone || !strings.Contains(said, "\nno problems found\n") {
		t.Errorf("with a closed lock: exit status %d\n%s", code, said)
	}
	put(t, filepath.Join(run, ".lock.holder"), `{"pid":4711,"host":"h"}`)
	if code, said := ask(); code != exitDone || !strings.Contains(said, `by process 4711 on host "h", if it is still running: the lock belongs to another user`) {
		t.Errorf("with a closed lock and a holder: exit status %d\n%s", code, said)
	}
	before := tree(t, run)
	ask()
	for name, what := range tree(t, run) {
		if before[name] != what {
			t.Errorf("%s was changed", name)
		}
	}
}
