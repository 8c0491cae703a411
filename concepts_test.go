package gad_test

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// A room is left when nobody can hold it in the head any more, and that goes by its concepts, not
// by its lines: fields and methods of a type, and places that ask which kind of thing is at hand. A
// type of more than the usual number stands below with a bound of its own. Where a bound is passed,
// take out a part that belongs together before you raise it: fields that are set together are a
// record, methods that read the same fields are another type.
const usualFields, usualMethods = 30, 60

// concepts are the types that have more, with their bounds and what to read before one is raised.
// The fields of settings, which have tags, are not counted: each is one row of a document.
var concepts = map[string]struct {
	fields, methods int
	read            string
}{
	"trainer.Trainer": {24, 68, "trainer/stage.go and trainer/form.go: a stage and a form keep what only they need"},
	"trainer.game":    {7, 41, "trainer/onpolicy.go and trainer/round.go: what other stages do too, and what is of an answer"},
	"trainer.answer":  {18, 2, "trainer/round.go: what only one form of an answer has belongs to the form"},
	"model.Config": {30, 60,
		"model/config.go: what only one family has is a record"},
	"model.Model":                    {18, 65, "model/forward.go: what a pass alone needs belongs to network"},
	"model/internal/sampling.Engine": {33, 46, "model/internal/sampling/engine.go"},

	"tokenizer.Tokenizer":     {28, 80, "tokenizer/tokenizer.go"},
	"data.Set":                {26, 61, "data/set.go"},
	"cmd/gad.program":         {12, 71, "cmd/gad/main.go: a command is a row of the table"},
	"trainer/config.Config":   {0, 75, "trainer/config/facts.go"},
	"trainer/plan.Plan":       {41, 44, "trainer/plan/plan.go"},
	"apps/collect.Collection": {10, 63, "apps/collect/collect.go"},
	"internal/jinja.state":    {11, 65, "internal/jinja/jinja.go"},
	"internal/compute/cpu.Backend": {28, 161,
		"internal/compute/compute.go: a method for each operation"},
	"internal/compute/cuda.Backend": {24, 114,
		"internal/compute/compute.go: a method for each operation"},
	"internal/compute/ref.Backend": {2, 56,
		"internal/compute/compute.go: a method for each operation"},
	"internal/compute/cost.Backend": {12, 75,
		"internal/compute/compute.go: a method for each operation"},
	"internal/compute/cuda.kernelSet": {51, 0,
		"internal/compute/cuda/kernels: a field for each kernel"},
	"internal/compute/computetest.suite": {7, 122,
		"internal/compute/computetest/computetest.go: a method for each operation"},
}

// questions are asked of a run's stage and of an answer's form where the loop does something for
// one kind alone: what a kind does differently is a method of its type.
var questions = []struct {
	what  string
	asks  *regexp.Regexp
	bound int
	read  string
}{
	{"which stage a run is of", regexp.MustCompile(`\bt\.Stage\b`), 10, "trainer/stage.go"},
	{"which stage or form is at hand", regexp.MustCompile(`\.(stage|form)\.\(`), 2,
		"trainer/stage.go and trainer/form.go"},
	{"which form an answer has", regexp.MustCompile(`\benv (!=|==) nil|[eE]pisodes? (!=|==) nil|` +
		`branches (!=|==) nil|[cC]hunks(\(\))?\.On|Branches\(\)|klST (!=|==) nil`), 2,
		"trainer/form.go"},
}

func TestConceptsOfARoom(t *testing.T) {
	for _, complaint := range crowded(t, os.DirFS(".")) {
		t.Error(complaint)
	}
}

// Each bound is passed once, so that a rule that no longer counts is seen.
func TestConceptsSeesViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	fields := "package data\ntype crowd struct {\n" + strings.Repeat("_ int\n", usualFields+1) + "}"
	methods := "package data\ntype crowd struct{}\n"
	for i := range usualMethods + 1 {
		methods += fmt.Sprintf("func (crowd) m%d() {}\n", i)
	}
	asks := func(line string, n int) string {
		return "package trainer\nfunc asks(t *Trainer) {\n" + strings.Repeat(line+"\n", n) + "}"
	}
	more := "package trainer\n"
	for i := range concepts["trainer.Trainer"].methods + 1 {
		more += fmt.Sprintf("func (t *Trainer) more%d() {}\n", i)
	}
	files := fstest.MapFS{}
	var wants []string
	for i, c := range []struct{ pkg, source, want string }{
		{"data", fields, "data.crowd has 31 fields, more than 30"},
		{"data", methods, "data.crowd has 61 methods, more than 60"},
		{"trainer", more, "trainer.Trainer has "},
		{"trainer", asks("_ = t.Stage", 11), "which stage a run is of is asked at "},
		{"trainer", asks("_ = t.stage.(*game)", 3), "which stage or form is at hand is "},
		{"trainer", asks("_ = chunks.On()", 3), "which form an answer has is asked at "},
	} {
		files[fmt.Sprintf("%s/bad%d.go", c.pkg, i)] = &fstest.MapFile{Data: []byte(c.source)}
		wants = append(wants, c.want)
	}
	whole, found := crowded(t, os.DirFS(".")), crowded(t, over{os.DirFS("."), files})
	for _, want := range wants {
		said := func(s string) bool { return strings.HasPrefix(s, want) }
		if slices.ContainsFunc(whole, said) || !slices.ContainsFunc(found, said) {
			t.Errorf("want a complaint that begins with %q, got %q", want, found)
		}
	}
}

// crowded lists the types and questions of the module at root that pass their bounds, and rows of
// concepts whose type is no longer large or not there.
func crowded(t *testing.T, root fs.FS) (complaints []string) {
	t.Helper()
	fields, methods := map[string]int{}, map[string]int{}
	asked := make([][]string, len(questions))
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); base == "testdata" || base != "." && base[0] == '.' {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		p := parse(name, text)
		if p.err != nil {
			return p.err
		}
		countConcepts(p.file, path.Dir(name), fields, methods)
		if path.Dir(name) != "trainer" {
			return nil
		}
		for at, line := range strings.Split(string(text), "\n") {
			for q, x := range questions {
				code, _, _ := strings.Cut(line, "//")
				for range x.asks.FindAllString(code, -1) {
					asked[q] = append(asked[q], fmt.Sprintf("%s:%d", name, at+1))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	complain := func(format string, args ...any) {
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	for name := range fields {
		x, ok := concepts[name]
		if !ok {
			x.fields, x.methods, x.read = usualFields, usualMethods, "concepts_test.go"
		}
		if n := fields[name]; n > x.fields {
			complain("%s has %d fields, more than %d: read %s", name, n, x.fields, x.read)
		}
		if n := methods[name]; n > x.methods {
			complain("%s has %d methods, more than %d: read %s", name, n, x.methods, x.read)
		}
	}
	for name := range concepts {
		if _, ok := fields[name]; !ok {
			complain("concepts_test.go: %s: there is no such type: remove its row", name)
		}
	}
	for q, x := range questions {
		if n := len(asked[q]); n > x.bound {
			complain("%s is asked at %d places, more than %d: read %s: %s", x.what, n, x.bound,
				x.read, strings.Join(asked[q], " "))
		}
	}
	slices.Sort(complaints)
	return complaints
}

// countConcepts adds the fields of a file's types, those without tags, and the methods.
func countConcepts(file *ast.File, pkg string, fields, methods map[string]int) {
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
			if name := receiver(f.Recv.List[0].Type); name != "" {
				methods[pkg+"."+name]++
			}
		}
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			x, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			name := pkg + "." + x.Name.Name
			fields[name] += 0
			if of, ok := x.Type.(*ast.StructType); ok {
				for _, f := range of.Fields.List {
					if f.Tag == nil {
						fields[name] += max(1, len(f.Names))
					}
				}
			}
		}
	}
}

// receiver returns the type that a method is of.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
