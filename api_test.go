package gad_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// public are the packages that another module may import: all that do not lie below an
// internal, or below cmd, apps or examples.
func public() (list []string) {
	for pkg := range house {
		first, _, _ := strings.Cut(pkg, "/")
		if !slices.Contains([]string{".", "internal", "cmd", "apps", "examples"}, first) &&
			!strings.Contains(pkg, "/internal/") {
			list = append(list, pkg)
		}
	}
	slices.Sort(list)
	return list
}

// TestPublicAPI: no exported name of a public package needs a type that another module
// cannot name. An alias (type Backend = compute.Backend) makes such a type public.
func TestPublicAPI(t *testing.T) {
	imports := exports(t)
	for _, pkg := range public() {
		p, err := imports.Import("gad/" + pkg)
		if err != nil {
			t.Fatal(err)
		}
		for _, complaint := range internals(p) {
			t.Error(complaint)
		}
	}
}

// TestPublicAPISeesViolations has one of each kind, and what is allowed between them.
func TestPublicAPISeesViolations(t *testing.T) {
	const source = `package shop

import (
	"gad/checkpoint"
	"gad/internal/compute"
	"gad/internal/vfs"
	"gad/model"
)

type Backend = compute.Backend
type Defined compute.Sampling // its fields are its own
type Open func(Backend, *model.Param, checkpoint.FS) []Backend

func Fine(b Backend, f model.Footprint) (checkpoint.FS, error) { var x vfs.FS; return x, nil }

type hidden struct{ W compute.Tensor }

type Shape struct {
	Rows  int
	inner compute.Tensor
	Fine  model.Backend
}

func (s *Shape) quiet(compute.Tensor) {}

func Func(fsys vfs.FS)                      {}
func Result() (n int, t compute.Tensor)     { return }
func Deep(m map[string][]*compute.Param)    {}
func Callback(f func(compute.Class) error)  {}
func Generic[T compute.Footprint](x T)      {}
func Unexported() hidden                    { return hidden{} }

type Struct struct{ Param compute.Param }
type Embeds struct{ *compute.Param }
type Interface interface{ Do(chan compute.Tensor) }
type Alias = []compute.Tensor

func (s *Shape) Method(p compute.Pages) {}

var Disk = vfs.OS
const Kind = compute.Wide
`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "shop.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := (&types.Config{Importer: exports(t)}).Check("gad/shop", fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, complaint := range internals(p) {
		name, _, _ := strings.Cut(strings.TrimPrefix(complaint, "gad/shop."), ":")
		names = append(names, name)
	}
	want := []string{"Alias", "Callback", "Deep", "Disk", "Embeds.Param", "Func", "Generic",
		"Interface.Do", "Kind",
		"Result", "Shape.Method", "Struct.Param", "Unexported"}
	if !slices.Equal(names, want) {
		t.Errorf("complaints about\n%q, want\n%q", names, want)
	}
}

// exports imports the public packages, and what they need, from what the compiler wrote of them.
func exports(t *testing.T) types.Importer {
	t.Helper()
	files, err := exportFiles()
	if err != nil {
		t.Fatal(err)
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(filepath.Clean(files[path]))
	})
}

// exportFiles returns the file of export data of each package: path of the import to file.
var exportFiles = sync.OnceValues(func() (files map[string]string, err error) {
	var said bytes.Buffer
	args := []string{"list", "-buildvcs=false", "-export", "-deps", "-f",
		"{{.ImportPath}}={{.Export}}"}
	for _, pkg := range public() {
		args = append(args, "./"+pkg)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, said.String())
	}
	files = map[string]string{}
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[pkg] = file
	}
	return files, nil
})

// internals complains about each exported name of p that needs a type from below
// internal otherwise than by the name of a public alias.
func internals(p *types.Package) []string {
	look := apiLook{seen: map[types.Type]bool{}}
	for _, name := range p.Scope().Names() {
		obj := p.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		look.at = p.Path() + "." + name
		if _, ok := obj.(*types.TypeName); ok {
			look.declared(obj.Type())
		} else {
			look.uses(obj.Type())
		}
	}
	slices.Sort(look.complaints)
	return slices.Compact(look.complaints)
}

type apiLook struct {
	at         string // the exported name that is looked at
	complaints []string
	seen       map[types.Type]bool // unexported types that were looked into
	hidden     bool                // looking into one: complaints name what leads to it
}

// member goes from the type at to one of its members.
func (a *apiLook) member(at, name string) {
	if a.at = at; !a.hidden {
		a.at += "." + name
	}
}

func isInternal(p *types.Package) bool {
	return p != nil && (strings.HasPrefix(p.Path(), "gad/internal/") ||
		strings.Contains(p.Path(), "/internal/"))
}

func (a *apiLook) complain(obj types.Object) {
	a.complaints = append(a.complaints, fmt.Sprintf("%s: needs %s.%s, which another module cannot name: give it a public alias, or take the type out of the signature", a.at, obj.Pkg().Path(), obj.Name()))
}

// declared looks into the declaration of an exported type.
func (a *apiLook) declared(t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		if n, ok := t.Rhs().(*types.Named); ok && isInternal(n.Obj().Pkg()) {
			return // this is the public name
		}
		a.uses(t.Rhs())
	case *types.Named:
		at := a.at
		defer func() { a.at = at }()
		for i := range t.NumMethods() {
			if m := t.Method(i); m.Exported() {
				a.member(at, m.Name())
				a.uses(m.Type())
			}
		}
		a.at = at
		a.params(t.TypeParams())
		a.fields(t.Underlying())
	}
}

// fields looks at the exported fields and methods of a type's structure, and at all of
// any other structure.
func (a *apiLook) fields(t types.Type) {
	at := a.at
	defer func() { a.at = at }()
	switch t := t.(type) {
	case *types.Struct:
		for i := range t.NumFields() {
			if f := t.Field(i); f.Exported() {
				a.member(at, f.Name())
				a.uses(f.Type())
			}
		}
	case *types.Interface:
		for i := range t.NumExplicitMethods() {
			if m := t.ExplicitMethod(i); m.Exported() {
				a.member(at, m.Name())
				a.uses(m.Type())
			}
		}
		a.at = at
		for i := range t.NumEmbeddeds() {
			a.uses(t.EmbeddedType(i))
		}
	default:
		a.uses(t)
	}
}

func (a *apiLook) params(list *types.TypeParamList) {
	for i := range list.Len() {
		a.uses(list.At(i).Constraint())
	}
}

// uses looks at a type that a signature, a field or a variable has.
func (a *apiLook) uses(t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		switch {
		case isInternal(t.Obj().Pkg()):
			a.complain(t.Obj())
		case !t.Obj().Exported() && !a.seen[t]:
			a.seen[t] = true
			a.uses(t.Rhs())
		}
		for i := range t.TypeArgs().Len() {
			a.uses(t.TypeArgs().At(i))
		}
	case *types.Named:
		switch {
		case isInternal(t.Obj().Pkg()):
			a.complain(t.Obj())
		case t.Obj().Pkg() != nil && !t.Obj().Exported() && !a.seen[t]: // what can be reached through it
			a.seen[t] = true
			was := a.hidden
			a.hidden = true
			a.declared(t)
			a.hidden = was
		}
		for i := range t.TypeArgs().Len() {
			a.uses(t.TypeArgs().At(i))
		}
	case *types.Pointer:
		a.uses(t.Elem())
	case *types.Slice:
		a.uses(t.Elem())
	case *types.Array:
		a.uses(t.Elem())
	case *types.Chan:
		a.uses(t.Elem())
	case *types.Map:
		a.uses(t.Key())
		a.uses(t.Elem())
	case *types.Signature:
		a.params(t.TypeParams())
		for i := range t.Params().Len() {
			a.uses(t.Params().At(i).Type())
		}
		for i := range t.Results().Len() {
			a.uses(t.Results().At(i).Type())
		}
	case *types.Union:
		for i := range t.Len() {
			a.uses(t.Term(i).Type())
		}
	case *types.Struct, *types.Interface:
		a.fields(t)
	}
}
