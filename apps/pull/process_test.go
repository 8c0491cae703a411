//go:build unix

package pull

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/apps/pull/hubtest"
	"gad/internal/hostile"
	"gad/internal/vfs"
)

// pullKills is how many processes TestPullKill kills; scripts/soak.sh raises it.
var pullKills = flag.Int("pullkills", hostile.Share(20), "processes that TestPullKill kills")

// childName is a variable of the environment that makes the program of these tests gad pull of its
// value.
const childName = "GAD_PULL_CHILD"

func init() {
	if name := os.Getenv(childName); name != "" {
		os.Exit(child(name))
	}
}

// child fetches a name as gad pull does and returns the exit status.
func child(text string) int {
	env, err := FromEnvironment(vfs.OS, os.Getenv)
	if err == nil {
		var name Name
		if name, err = ParseName(text, false); err == nil {
			_, err = run(Options{Environment: env, Name: name, Retries: 5, Timeout: patience,
				Say: func(format string, args ...any) {
					fmt.Fprintf(os.Stderr, format+"\n", args...)
				}})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a started child.
type process struct {
	*exec.Cmd
	said bytes.Buffer
}

// begin starts a process that fetches org/student into cache.
func begin(t *testing.T, s *hubtest.Server, cache string) *process {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, path)}
	p.Env = append(os.Environ(), childName+"=org/student", "HF_ENDPOINT="+s.URL,
		"HF_HUB_CACHE="+cache, "HF_HOME=/nowhere", "HF_TOKEN=")
	p.Stdout, p.Stderr = &p.said, &p.said
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// end waits for the process and returns its exit status, -1 for a signal.
func (p *process) end(t *testing.T) int {
	t.Helper()
	var exit *exec.ExitError
	if err := p.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// slowHub starts a hub that sends its student slowly, in some 40 pieces, and returns it with the
// path of an empty cache.
func slowHub(t *testing.T) (s *hubtest.Server, repo *hubtest.Repo, cache string) {
	t.Helper()
	repo = student()
	repo.Files["model.safetensors"] = random(4_000_000, 6)
	s = start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(hubtest.Slowly(10 * time.Millisecond))
	return s, repo, filepath.Join(t.TempDir(), "hub")
}

// partly reports whether a part of the weights is in the cache: they are the only file of more than
// 10,000 bytes.
func partly(cache string) bool {
	names, _ := filepath.Glob(filepath.Join(cache, "*", "blobs", "*.incomplete"))
	return slices.ContainsFunc(names, func(name string) bool {
		info, err := os.Stat(name)
		return err == nil && info.Size() > 10_000
	})
}

// Processes that are killed with signal 9 at any moment: nothing wrong is under a final name,
// and each next process goes on where the one before was.
func TestPullKill(t *testing.T) {
	t.Parallel()
	s, repo, cache := slowHub(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	whole := func() {
		t.Helper()
		if _, err := run(options(t, s, cache, "org/student")); err != nil {
			t.Fatal(err)
		}
		if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
			t.Fatal(bad)
		}
	}
	killed, done, sent := 0, 0, 0
	for starts := 0; killed < *pullKills; starts++ {
		if starts > 20*(*pullKills) {
			t.Fatalf("%d kills in %d starts", killed, starts)
		}
		if starts == 0 { // the first is killed in the middle of a file, however busy the machine is
			s.SetMisbehave(hubtest.Slowly(time.Second))
		}
		p := begin(t, s, cache)
		for begun := time.Now(); starts == 0 && !partly(cache); time.Sleep(time.Millisecond) {
			if time.Since(begun) > patience {
				t.Fatalf("no part of a file\n%s", p.said.String())
			}
		}
		if starts > 0 {
			time.Sleep(60*time.Millisecond + time.Duration(r.Int64N(int64(500*time.Millisecond))))
		}
		p.Process.Kill()
		s.SetMisbehave(hubtest.Slowly(10 * time.Millisecond))
		switch code := p.end(t); code {
		case 0:
			done++
			os.RemoveAll(cache) // the next begins again
		case -1:
			killed++
			if bad := wrong(vfs.OS, cache, repo, nil); bad != "" {
				t.Fatalf("after %d kills: %s", killed, bad)
			}
			if r.IntN(5) == 0 { // each start goes on with what is there; now and then from nothing
				whole()
				done++
				os.RemoveAll(cache)
			}
		default:
			t.Fatalf("exit status %d\n%s", code, p.said.String())
		}
	}
	whole()
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

// Two processes at a time fetch each file once.
func TestPullTwice(t *testing.T) {
	t.Parallel()
	s, repo, cache := slowHub(t)
	a, b := begin(t, s, cache), begin(t, s, cache)
	if codeA, codeB := a.end(t), b.end(t); codeA != 0 || codeB != 0 {
		t.Errorf("exit statuses %d, %d\n%s%s", codeA, codeB, a.said.String(), b.said.String())
	}
	if bad := wrong(vfs.OS, cache, repo, nil); bad != "" {
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
