//go:build unix

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gad/apps/pull/hubtest"
)

// finals says what is under a final name in a cache and is not what it should be; "" is nothing.
func finals(t *testing.T, cache string, repo *hubtest.Repo) string {
	t.Helper()
	dir := filepath.Join(cache, "models--org--student")
	blobs, _ := os.ReadDir(filepath.Join(dir, "blobs"))
	for _, b := range blobs {
		content, err := os.ReadFile(filepath.Join(dir, "blobs", b.Name()))
		if !strings.HasSuffix(b.Name(), ".incomplete") &&
			(err != nil || b.Name() != hubtest.SHA256(content) &&
				b.Name() != hubtest.BlobSHA1(content)) {
			return fmt.Sprintf("blob %s: %v, or other bytes", b.Name(), err)
		}
	}
	links, _ := os.ReadDir(filepath.Join(dir, "snapshots", repo.ID()))
	for _, l := range links {
		if content, err := os.ReadFile(
			filepath.Join(dir, "snapshots", repo.ID(), l.Name())); !strings.HasPrefix(l.Name(),
			".") && (err != nil || string(content) != string(repo.Files[l.Name()])) {
			return fmt.Sprintf("snapshot %s: %v, or other bytes", l.Name(), err)
		}
	}
	if ref, err := os.ReadFile(filepath.Join(dir, "refs", "main")); err == nil &&
		(string(ref) != repo.ID() || len(links) < 4) {
		return fmt.Sprintf("refs/main is %q, with %d files", ref, len(links))
	}
	return ""
}

// bigStudent has a file that comes slowly, in some 40 pieces.
func bigStudent() *hubtest.Repo {
	body := make([]byte, 4_000_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range body {
		body[i] = byte(r.Uint32())
	}
	return &hubtest.Repo{Files: map[string][]byte{"config.json": []byte("{}"),
		"tokenizer.json": body[:5000], "tokenizer_config.json": []byte("{ }"),
		"model.safetensors": body}}
}

// Ctrl-C: exit status 75, what has come is kept, and the same command continues it.
func TestPullInterrupt(t *testing.T) {
	path := built(t)
	repo := bigStudent()
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(hubtest.Slowly(50 * time.Millisecond))
	partial := filepath.Join(cache, "models--org--student", "blobs",
		hubtest.SHA256(repo.Files["model.safetensors"])+".incomplete")
	p := start(t, path, "pull", "org/student")
	wait(t, "a beginning",
		func() bool { info, err := os.Stat(partial); return err == nil && info.Size() > 300_000 })
	p.Process.Signal(syscall.SIGINT)
	if code, said := p.end(t, patience), p.said.String(); code != exitInterrupted ||
		!strings.HasSuffix(said,
			"gad: pull: interrupted: what has come is kept: run the same command to resume\n") {
		t.Errorf("exit status %d\n%s", code, said)
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
	if bad := finals(t, cache, repo); bad != "" {
		t.Error(bad)
	}
}
