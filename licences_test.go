package gad_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestLicences: doc/licences.md lists the modules of go.mod. That each text is still the
// module's is checked by .ci/run licences, which reads them.
func TestLicences(t *testing.T) {
	document, err := os.ReadFile("doc/licences.md")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, complaint := range unlicensed(string(module), string(document)) {
		t.Error(complaint)
	}
	for _, c := range []struct{ from, to, want string }{
		{"golang.org/x/term v0.47.0", "golang.org/x/term v0.48.0",
			"golang.org/x/term v0.47.0: go.mod has v0.48.0"},
		{"\tgolang.org/x/term v0.47.0\n", "", "golang.org/x/term v0.47.0: not in go.mod"},
		{"require (\n", "require (\n\texample.com/new v1.0.0\n",
			"example.com/new v1.0.0: not in doc/licences.md"},
		{"go 1.26.0", "go 1.27.0", "go 1.26.0: go.mod has 1.27.0"},
	} {
		changed := strings.Replace(string(module), c.from, c.to, 1)
		if !slices.ContainsFunc(unlicensed(changed, string(document)),
			func(s string) bool { return strings.HasPrefix(s, c.want) }) {
			t.Errorf("%q for %q in go.mod: no complaint %q", c.to, c.from, c.want)
		}
	}
}

// unlicensed compares the table of doc/licences.md with go.mod. What go.mod requires
// directly must be listed; an indirect requirement need not be linked.
func unlicensed(module, document string) (complaints []string) {
	required, direct := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(module) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		switch {
		case len(f) == 2 && f[0] == "go":
			required["go"] = f[1]
		case len(f) >= 2 && strings.HasPrefix(f[1], "v"):
			required[f[0]], direct[f[0]] = f[1], len(f) == 2
		}
	}
	listed := map[string]bool{}
	for line := range strings.Lines(document) {
		f := strings.Split(line, " | ")
		if len(f) != 5 || !strings.HasPrefix(line, "| ") || f[0] == "| module" {
			continue
		}
		name, version := strings.TrimPrefix(f[0], "| "), f[1]
		listed[name] = true
		switch required[name] {
		case version:
		case "":
			complaints = append(complaints,
				fmt.Sprintf("%s %s: not in go.mod: run scripts/licences.sh", name, version))
		default:
			complaints = append(complaints,
				fmt.Sprintf("%s %s: go.mod has %s: run scripts/licences.sh", name, version,
					required[name]))
		}
	}
	for name := range direct {
		if direct[name] && !listed[name] {
			complaints = append(complaints,
				fmt.Sprintf("%s %s: not in doc/licences.md: run scripts/licences.sh", name,
					required[name]))
		}
	}
	slices.Sort(complaints)
	return complaints
}
