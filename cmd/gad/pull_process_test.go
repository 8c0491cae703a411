//go:build unix

package main

import (
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

	"gad/apps/pull/hubtest"
	"gad/internal/hostile"
)

// pullKills is how many processes TestPullKill kills; scripts/soak.sh raises it.
var pullKills = flag.Int("pullkills", hostile.Share(20), "processes that TestPullKill kills")

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

// slowly sends large files in pieces, ranges too.
func slowly(pause time.Duration) func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
	return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind != "cdn" {
			return false
		}
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		w.Header().Set("Content-Length", fmt.Sprint(len(c.Body)-from))
		if from > 0 {
			w.Header().Set("Content-Range",
				fmt.Sprintf("bytes %d-%d/%d", from, len(c.Body)-1, len(c.Body)))
			w.WriteHeader(http.StatusPartialContent)
		}
		for at := from; at < len(c.Body); at += 100_000 {
			if _, err := w.Write(c.Body[at:min(at+100_000, len(c.Body))]); err != nil {
				return true
			}
			w.(http.Flusher).Flush()
			time.Sleep(pause)
		}
		return true
	}
}

// Processes that are killed with signal 9 at any moment: nothing wrong is under a final name,
// and each next process goes on where the one before was.
func TestPullKill(t *testing.T) {
	path := built(t)
	repo := bigStudent()
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(slowly(10 * time.Millisecond))
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	killed, done, sent := 0, 0, 0
	for starts := 0; killed < *pullKills; starts++ {
		if starts > 20*(*pullKills) {
			t.Fatalf("%d kills in %d starts", killed, starts)
		}
		p := start(t, path, "pull", "org/student")
		time.Sleep(60*time.Millisecond + time.Duration(r.Int64N(int64(500*time.Millisecond))))
		p.Process.Kill()
		switch code := p.end(t, patience); code {
		case exitDone:
			done++
			os.RemoveAll(cache) // the next begins again
		case -1:
			killed++
			if bad := finals(t, cache, repo); bad != "" {
				t.Fatalf("after %d kills: %s", killed, bad)
			}
			if r.IntN(5) == 0 { // each start goes on with what is there; now and then from nothing
				must(t, "pull", "org/student")
				if bad := finals(t, cache, repo); bad != "" {
					t.Fatal(bad)
				}
				done++
				os.RemoveAll(cache)
			}
		default:
			t.Fatalf("exit status %d\n%s", code, p.said.String())
		}
	}
	must(t, "pull", "org/student")
	if bad := finals(t, cache, repo); bad != "" {
		t.Error(bad)
	}
	ranges := 0
	for _, c := range s.Calls() {
		if c.Kind == "cdn" {
			sent++
			if c.Header.Get("Range") != "" {
				ranges++
			}
		}
	}
	t.Logf("row 22: gad pull: %d processes killed with signal 9, %d completed between them, 0 wrong under a final name; %d of %d requests for large files continued one", killed, done+1, ranges, sent)
	if ranges == 0 {
		t.Error("nothing was continued")
	}
}

// Ctrl-C: exit status 75, what has come is kept, and the same command continues it.
func TestPullInterrupt(t *testing.T) {
	path := built(t)
	repo := bigStudent()
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(slowly(50 * time.Millisecond))
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

// Two processes at a time fetch each file once.
func TestPullTwice(t *testing.T) {
	path := built(t)
	repo := bigStudent()
	s, cache := hub(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(slowly(10 * time.Millisecond))
	a, b := start(t, path, "pull", "org/student"), start(t, path, "pull", "org/student")
	if codeA, codeB := a.end(t, patience), b.end(t, patience); codeA != exitDone ||
		codeB != exitDone {
		t.Errorf("exit statuses %d, %d\n%s%s", codeA, codeB, a.said.String(), b.said.String())
	}
	if bad := finals(t, cache, repo); bad != "" {
		t.Error(bad)
	}
	asked := map[string]int{}
	for _, c := range s.Calls() {
		if c.Kind == "cdn" {
			asked[c.File]++
		}
	}
	if asked["model.safetensors"] != 1 ||
		!strings.Contains(a.said.String()+b.said.String(),
			"model.safetensors: another program is fetching it: waiting\n") {
		t.Errorf("asked %v\n%s%s", asked, a.said.String(), b.said.String())
	}
}
