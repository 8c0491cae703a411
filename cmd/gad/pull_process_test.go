//go:build unix

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gad/apps/pull/hubtest"
)

// Ctrl-C: exit status 75, what has come is kept, and the same command continues it.
func TestPullInterrupt(t *testing.T) {
	path := built(t)
	repo := hubtest.Big()
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind != "cdn" || c.File != "model.safetensors" {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(c.Body)))
		w.Write(c.Body[:len(c.Body)/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the rest never comes
		return true
	})
	partial := filepath.Join(cache, "models--org--student", "blobs",
		hubtest.SHA256(repo.Files["model.safetensors"])+".incomplete")
	code, told := stopped(t, "a beginning",
		func() bool { info, err := os.Stat(partial); return err == nil && info.Size() > 0 },
		syscall.SIGINT, path, "pull", "org/student")
	if code != exitInterrupted ||
		!strings.HasSuffix(told,
			"gad: pull: interrupted: what has come is kept: run the same command to resume\n") {
		t.Errorf("exit status %d\n%s", code, told)
	}
	info, err := os.Stat(partial)
	if err != nil {
		t.Fatal(err)
	}
	s.SetMisbehave(nil)
	out, said := must(t, "pull", "org/student", "--dry-run")
	if !strings.Contains(out, " in the cache\n") {
		t.Errorf("%s%s", out, said)
	}
	must(t, "pull", "org/student")
	calls := s.Calls()
	if got, want :=
		calls[len(calls)-1].Header.Get("Range"),
		fmt.Sprintf("bytes=%d-", info.Size()); got != want {
		t.Errorf("Range %q, want %q", got, want)
	}
	if bad := repo.Finals(cache); bad != "" {
		t.Error(bad)
	}
}
