package gad_test

import (
	"go/ast"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// uncalled are the methods that nothing in the program names, with the reason why they stay. What
// the program does not reach among functions stands in scripts/deadcode.txt: that check takes every
// method of a value in an interface as called.
var uncalled = map[string]string{
	"model.AllSoftLabels":                       "a teacher's own tokens alone, which top-k losses are compared with",
	"algos.Arity":                               "gorgonia.Op",
	"algos.CallsExtern":                         "gorgonia.Op",
	"algos.DiffWRT":                             "gorgonia.SDOp",
	"algos.Hashcode":                            "gorgonia.Op",
	"algos.InferShape":                          "gorgonia.Op",
	"algos.OverwritesInput":                     "gorgonia.Op",
	"algos.ReturnsPtr":                          "gorgonia.Op",
	"algos.SymDiff":                             "gorgonia.SDOp",
	"tokenizer.Less":                            "heap.Interface",
	"internal/env.ReadFrom":                     "io.ReaderFrom",
	"internal/compute/cuda/driver.FailAlloc":    "tests of the emulated device",
	"internal/compute/cuda/driver.NoPlans":      "tests of the emulated device",
	"internal/compute/cuda/driver.PinnedBlocks": "tests of the emulated device",
}

// TestMethodsAreCalled: the program names every method that it has, or an interface in it does.
// Packages for tests are left out.
func TestMethodsAreCalled(t *testing.T) {
	declared, named := map[string]string{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		p := parse(filepath.ToSlash(path), text)
		if p.err != nil {
			return p.err
		}
		ast.Inspect(p.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil && !strings.HasSuffix(dir, "test") {
					declared[dir+"."+n.Name.Name] = positions.Position(n.Pos()).String()
				}
			case *ast.SelectorExpr:
				named[n.Sel.Name] = true
			case *ast.InterfaceType:
				for _, m := range n.Methods.List {
					for _, name := range m.Names {
						named[name.Name] = true
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(declared)) {
		called := named[key[strings.LastIndexByte(key, '.')+1:]]
		_, excused := uncalled[key]
		switch {
		case !called && !excused:
			t.Errorf("%s: %s: the program does not call it: remove it, move it into a _test.go file, or say in uncalled why it stays", declared[key], key)
		case called && excused:
			t.Errorf("%s: is called: take it out of uncalled", key)
		}
	}
	for key := range uncalled {
		if declared[key] == "" {
			t.Errorf("%s: there is no such method: take it out of uncalled", key)
		}
	}
}
