package gad_test

import (
	"fmt"
	"go/ast"
	"go/types"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// An arrow goes from a file of a package to another in which something stands that it names: a
// type, function, method, field or variable. A reader of the first follows it.

// usualFiles is the number of files of a package; one with more stands in crowds.
const usualFiles = 20

// crowds are the packages with more, with bounds of their files and arrows, without tests. Where a
// bound is passed, look for files that name no other of the package: they are a room below it.
var crowds = map[string]struct{ files, arrows int }{
	"cmd/gad":              {34, 129},
	"internal/compute/cpu": {37, 160}, // the delta rule and its gradient read kernels, pool, memory
	"model":                {27, 125},
	"tokenizer":            {25, 106},
	"trainer":              {33, 220},
}

func TestArrowsOfARoom(t *testing.T) {
	for _, complaint := range tangled(t, os.DirFS(".")) {
		t.Error(complaint)
	}
}

// Both bounds are passed once, so that a rule that no longer counts is seen.
func TestArrowsSeesViolations(t *testing.T) {
	more := fstest.MapFS{}
	for i := range crowds["model"].arrows + 1 {
		more[fmt.Sprintf("model/bad%d.go", i)] = &fstest.MapFile{
			Data: []byte("package model\nvar _ Model\n")}
	}
	found := tangled(t, over{os.DirFS("."), more})
	for _, want := range []string{"files, more than", "arrows between its files, more than"} {
		if !slices.ContainsFunc(found, func(s string) bool {
			return strings.HasPrefix(s, "model has ") && strings.Contains(s, want)
		}) {
			t.Errorf("want a complaint about model with %q, got %q", want, found)
		}
	}
}

// tangled lists the packages at root that pass their bounds.
func tangled(t *testing.T, root fs.FS) (complaints []string) {
	t.Helper()
	files := map[string][]string{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() &&
			(entry.Name() == "testdata" || name != "." && entry.Name()[0] == '.') {
			return fs.SkipDir
		}
		if path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") {
			files[path.Dir(name)] = append(files[path.Dir(name)], name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range crowds {
		if len(files[name]) <= usualFiles {
			complaints = append(complaints,
				fmt.Sprintf("arrows_test.go: %s has %d files: remove its row", name, len(files[name])))
		}
	}
	for pkg, names := range files {
		bound, ok := crowds[pkg]
		if !ok {
			bound.files = usualFiles
		}
		if n := len(names); n > bound.files {
			complaints = append(complaints, fmt.Sprintf("%s has %d files, more than %d: what names no other of them is a room below", pkg, n, bound.files))
		}
		if !ok {
			continue
		}
		if n := countArrows(t, root, names); n > bound.arrows {
			complaints = append(complaints, fmt.Sprintf("%s has %d arrows between its files, more than %d: what names no other of them is a room below", pkg, n, bound.arrows))
		}
	}
	slices.Sort(complaints)
	return complaints
}

// countArrows returns the number of arrows between the named files of one package.
func countArrows(t *testing.T, root fs.FS, names []string) int {
	t.Helper()
	var list []*ast.File
	for _, name := range names {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		p := parse(name, text)
		if p.err != nil {
			t.Fatal(p.err)
		}
		list = append(list, p.file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	// Other packages are empty, which leaves errors, but the names of this one are found.
	check := types.Config{Importer: empty{}, Error: func(error) {}}
	pkg, _ := check.Check(path.Dir(names[0]), positions, list, info)
	arrows := map[[2]string]bool{}
	for id, o := range info.Uses {
		if o.Pkg() != pkg || !o.Pos().IsValid() {
			continue
		}
		from, to := positions.File(id.Pos()).Name(), positions.File(o.Pos()).Name()
		if from != to {
			arrows[[2]string{from, to}] = true
		}
	}
	return len(arrows)
}

// empty imports every package as one without names.
type empty struct{}

func (empty) Import(name string) (*types.Package, error) {
	pkg := types.NewPackage(name, path.Base(name))
	pkg.MarkComplete()
	return pkg, nil
}
