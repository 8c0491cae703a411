package gad_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// examples are the programs of examples/ in the order in which they are run, and what they print.
// The first writes the student of the others. WORK is a folder.
var examples = []struct {
	name string
	args []string
	want string
}{
	{"run", []string{"WORK"}, `^exported \S*global_step_2\n$`},
	{"round", []string{"WORK/student"}, `^8 answers, 1 and 2 updates\n$`},
	{"sampling", []string{"WORK/exported", "Add 4+7+3"},
		`^([0-9]+ tokens, log-probability -[0-9.]+: ".*"\n){3}$`},
}

// dispatch is a program that is each of the examples, by its first argument: to link one costs as
// much as to run all.
const dispatch = `package main

import (
	"os"

	"outside/round"
	"outside/run"
	"outside/sampling"
)

func main() {
	name := os.Args[1]
	os.Args = os.Args[1:]
	map[string]func(){"round": round.Main, "run": run.Main, "sampling": sampling.Main}[name]()
}
`

// TestOutside builds the programs of examples/, as packages of one, in a module of their own and
// runs them: what they use can be used from there.
func TestOutside(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module: left out with -short")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, work := t.TempDir(), t.TempDir()
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
			rest, gad, root),
		"main.go": dispatch}
	from := map[string]string{"go.sum": "go.sum"}
	for _, x := range examples {
		from[x.name+"/main.go"] = "examples/" + x.name + "/main.go"
	}
	for name, from := range from {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for name, text := range files {
		if program, ok := strings.CutSuffix(name, "/main.go"); ok {
			text = strings.Replace(text, "package main\n", "package "+program+"\n", 1)
			text = strings.Replace(text, "\nfunc main() {\n", "\nfunc Main() {\n", 1)
		}
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755),
			os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", "examples", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOPROXY=off",
		"GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, said)
	}
	// The lines of Go that README shows are lines of the first program.
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(readme), "```go\n")
	shown, _, _ = strings.Cut(shown, "```")
	for line := range strings.Lines(shown) {
		if !strings.Contains(files["run/main.go"], "\t"+line) {
			t.Errorf("README.md shows a line that examples/run/main.go lacks: %s", line)
		}
	}
	if !found || strings.Count(shown, "\n") < 8 {
		t.Error("README.md shows no Go program")
	}
	for _, x := range examples {
		if n := strings.Count(files[x.name+"/main.go"], "\n"); n > 60 {
			t.Errorf("examples/%s/main.go has %d lines, more than 60", x.name, n)
		}
		if !strings.Contains(string(readme), "(examples/"+x.name+"/main.go)") {
			t.Errorf("README.md does not link examples/%s/main.go", x.name)
		}
		program := exec.Command(filepath.Join(dir, "examples"), x.name)
		for _, arg := range x.args {
			program.Args = append(program.Args, strings.ReplaceAll(arg, "WORK", work))
		}
		program.Dir = root
		said, err := program.CombinedOutput()
		if err != nil || !regexp.MustCompile(x.want).Match(said) {
			t.Errorf("examples/%s prints %q, %v; want %q", x.name, said, err, x.want)
		}
	}
}
