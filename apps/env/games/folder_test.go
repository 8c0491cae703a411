//go:build unix

package games

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/internal/env"
	"gad/internal/hostile"
	"gad/trainer/modeltest"
)

// TestMain is the environment that GAME names.
func TestMain(m *testing.M) {
	for _, g := range Games() {
		if g.Name == os.Getenv("GAME") {
			if err := g.Serve(os.Stdin, os.Stdout); err != nil {
				panic(err)
			}
			return
		}
	}
	os.Exit(hostile.Main(m))
}

// files returns the contents of the files below dir.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir+string(filepath.Separator))] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The games' folders: rows whose episodes the environment plays again exactly, a student, the same
// bytes from the same command, also where it was interrupted; and the check of them through the
// protocol, which finds a row whose episode is not the environment's.
func TestFolders(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for arm, g := range Games() {
		f := g.Folder()
		f.Dir, f.Seed, f.StudentSeed, f.Counts["train"] = t.TempDir(), 3, 3, 50
		if !hostile.Long() {
			for split, n := range f.Counts {
				f.Counts[split] = min(n, 50)
			}
		}
		sessiontest.Must(t, f.Write)
		before := files(t, f.Dir)
		for _, split := range Splits {
			if n := strings.Count(before[split+".jsonl"], "\n"); n != f.Counts[split] {
				t.Errorf("%s: %s has %d rows, want %d", g.Name, split, n, f.Counts[split])
			}
		}
		if err := os.Remove(filepath.Join(f.Dir, "tune.jsonl")); err != nil {
			t.Fatal(err)
		}
		sessiontest.Must(t, f.Write)
		after := files(t, f.Dir)
		for name := range before {
			if before[name] != after[name] {
				t.Errorf("%s: %s differs", g.Name, name)
			}
		}
		if len(before) < 7 || len(after) != len(before) {
			t.Errorf("%d files, were %d", len(after), len(before))
		}
		sameEnv(t, f.Dir)

		first, _, _ := strings.Cut(before["train.jsonl"], "\n")
		rows := map[string]string{"none": "", "teacher": before["train.jsonl"], "other": strings.Replace(
			first, `"role":"assistant","content":"`, `"role":"assistant","content":"x`, 1)}
		for way, name := range []string{"none", "teacher", "other"} {
			if way < 2 && !hostile.InTurn(arm, way, 2) {
				continue
			}
			var recorded []Recorded
			if name != "none" {
				if recorded, err = ReadRows(strings.NewReader(rows[name])); err != nil {
					t.Fatal(err)
				}
			}
			broken, out := checkOf(t, fmt.Sprintf("GAME=%s '%s'", g.Name, self),
				env.Options{Workers: 2}, recorded)
			if !strings.Contains(out, "\n30 forks of episodes\n") {
				t.Errorf("%s: forks are not checked:\n%s", g.Name, out)
			}
			want := []string{"row 0: message 1 of teacher_response is not what the environment answers now"}
			if name != "other" {
				want = nil
			}
			if !slices.Equal(broken, want) ||
				!strings.HasPrefix(out, g.Name+": protocol version 1, 2048 episodes at once\n") ||
				!strings.Contains(out, "20 of 20 plays were done") ||
				strings.Contains(out, "\n10 episodes of the teacher\n") != (name == "teacher") {
				t.Errorf("%s, rows of %s: %q\n%s", g.Name, name, broken, out)
			}
		}
	}
}

// sameEnv wants rows as data reads them to have the column env of the file, byte by byte.
func sameEnv(t *testing.T, dir string) {
	t.Helper()
	for _, split := range Splits {
		path := filepath.Join(dir, split+".jsonl")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		set, err := data.Open(path, data.Columns{})
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for line := range strings.Lines(string(text)) {
			var want struct{ Env json.RawMessage }
			if err := json.Unmarshal([]byte(line), &want); err != nil {
				t.Fatal(err)
			}
			row, err := set.Row(i)
			if err != nil || len(want.Env) == 0 || string(row.Env) != string(want.Env) {
				t.Fatalf("%s: row %d: env %s, %v, want %s", path, i, row.Env, err, want.Env)
			}
			i++
		}
		if set.Len() != i {
			t.Errorf("%s: %d rows, want %d", path, set.Len(), i)
		}
		set.Close()
	}
}

// The example of doc/environments.md is an environment.
func TestExampleEnvironment(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	doc, err := os.ReadFile(modeltest.Root("doc", "environments.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(doc), "```sh\n# guess.sh")
	text, _, _ = strings.Cut(text, "```")
	broken, out := checks(t, "#"+text, env.Options{Workers: 2}, nil)
	if len(broken) > 0 ||
		!strings.HasPrefix(out, "guess: protocol version 1, 32 episodes at once\n") ||
		!strings.Contains(out, "       1  done\n") {
		t.Errorf("%q\n%s", broken, out)
	}
}
