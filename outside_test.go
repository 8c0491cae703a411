package gad_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutside builds testdata/outside as a module of its own and runs it: what it uses
// can be used from there.
func TestOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module: left out with -short")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(mod), "\n")
	gad := strings.TrimPrefix(first, "module ")
	// With gad's own requirements, go needs no file of a module that gad does not link, which a
	// machine that has only built gad does not have.
	files := map[string]string{
		"go.mod": fmt.Sprintf("module outside\n%s\nrequire %s v0.0.0\n\nreplace %[2]s => %s\n",
			rest, gad, root)}
	for name, from := range map[string]string{"main.go": "testdata/outside/main.go",
		"go.sum": "go.sum"} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", "outside", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off",
		"GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
	// The lines of Go that README shows are lines of this program.
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(readme), "```go\n")
	shown, _, _ = strings.Cut(shown, "```")
	for line := range strings.Lines(shown) {
		if !strings.Contains(files["main.go"], "\t"+line) {
			t.Errorf("README.md shows a line that testdata/outside/main.go lacks: %s", line)
		}
	}
	if !found || strings.Count(shown, "\n") < 8 {
		t.Error("README.md shows no Go program")
	}
	program := exec.Command(filepath.Join(dir, "outside"))
	program.Dir = root
	said, err := program.CombinedOutput()
	want := "round: 8 answers, 8 pairs, 1 and 2 updates\nrun: step 2 is saved\n"
	if err != nil || string(said) != want {
		t.Errorf("the program says %q, %v; want %q", said, err, want)
	}
}
