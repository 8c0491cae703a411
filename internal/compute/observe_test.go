package compute

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"testing"
)

// A Backend's operations are observed, all of them: what is not listed here as no operation
// has a method of its own, and is not passed on by the embedded Backend.
func TestObservedHasEveryOperation(t *testing.T) {
	none := []string{"Alloc", "Alone", "As", "Available", "DerivedBytes", "Block", "Close",
		"DecodeMultiple", "DeltaState", "Element", "Free",
		"Joined", "Memory", "Name", "Overhead", "Scratch", "Sync"}
	file, err := parser.ParseFile(token.NewFileSet(), "observe.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
			own = append(own, f.Name.Name)
		}
	}
	backend := reflect.TypeFor[Backend]()
	for i := range backend.NumMethod() {
		if name := backend.Method(i).Name; slices.Contains(none, name) == slices.Contains(own,
			name) {
			t.Errorf("%s: want a method of observed, or a place among what is no operation", name)
		}
	}
}
