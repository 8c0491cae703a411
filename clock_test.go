package gad_test

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
)

// clocks are the calls of a test by which it waits for a time, or gives up after one.
var clocks = map[string]bool{"time.Sleep": true, "time.After": true, "time.AfterFunc": true,
	"time.NewTimer": true, "time.Tick": true, "context.WithTimeout": true,
	"context.WithDeadline": true}

// No test races the clock: it waits for an event, with a limit that is only there to end a hang, of
// half a minute at least. Every function of a test that waits otherwise, or compares the time that
// something took with less, is in testdata/clocks.txt with the reason why no machine is too slow
// for it, or too fast. synctest's time is the test's own.
func TestNoTestRacesTheClock(t *testing.T) {
	const list = "testdata/clocks.txt"
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	reasons, at := map[string]string{}, 0
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		at++
		if line := lines.Text(); line != "" && !strings.HasPrefix(line, "#") {
			where, why, ok := strings.Cut(line, ": ")
			if !ok || len(strings.Fields(why)) < 3 || reasons[where] != "" {
				t.Errorf("%s:%d: want \"FILE FUNCTION: why\", each once", list, at)
			}
			reasons[where] = why
		}
	}
	used := map[string]bool{}
	err = fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		p := parse(path, text)
		if p.err != nil {
			return p.err
		}
		for where, waits := range racing(p.file) {
			if where = path + " " + where; reasons[where] == "" {
				t.Errorf("%s: %s: wait for an event, with a limit of a minute, or say in %s why no machine is too slow for it",
					where, strings.Join(waits, ", "), list)
			}
			used[where] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for where := range reasons {
		if !used[where] {
			t.Errorf("%s: %s: waits for no time any more: take the line out", list, where)
		}
	}
}

// racing returns, by function, the calls of clocks whose time is not known to be half a minute or
// more, and comparisons of time.Since with less.
func racing(file *ast.File) map[string][]string {
	out := map[string][]string{}
	for _, decl := range file.Decls { // bubble is synctest.Test with a server
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		name := f.Name.Name
		var bubble bool
		var waits []string
		took := map[string]bool{} // names of times that something took
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
				name, isName := a.Lhs[0].(*ast.Ident)
				call, isCall := a.Rhs[0].(*ast.CallExpr)
				if isName && isCall && called(call) == "time.Since" {
					took[name.Name] = true
				}
			}
			return true
		})
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.CallExpr:
				f, isName := x.Fun.(*ast.Ident)
				if call := called(x); call == "synctest.Test" || isName && f.Name == "bubble" {
					bubble = true
				} else if clocks[call] && !slices.ContainsFunc(x.Args, long) {
					waits = append(waits, call)
				}
			case *ast.BinaryExpr:
				if name, ok := x.X.(*ast.Ident); ok && took[name.Name] && !long(x.Y) &&
					(x.Op == token.GTR || x.Op == token.GEQ) {
					waits = append(waits, name.Name+" "+x.Op.String())
				}
				for i, side := range []ast.Expr{x.X, x.Y} {
					call, ok := side.(*ast.CallExpr)
					other := []ast.Expr{x.Y, x.X}[i]
					if ok && called(call) == "time.Since" && !long(other) &&
						(x.Op == token.GTR || x.Op == token.LSS || x.Op == token.GEQ ||
							x.Op == token.LEQ) {
						waits = append(waits, fmt.Sprintf("time.Since %s", x.Op))
					}
				}
			}
			return true
		})
		if len(waits) > 0 && !bubble {
			slices.Sort(waits)
			out[name] = slices.Compact(waits)
		}
	}
	return out
}

// called returns the name of a called function of a package, such as time.Sleep.
func called(x *ast.CallExpr) string {
	if f, ok := x.Fun.(*ast.SelectorExpr); ok {
		if p, ok := f.X.(*ast.Ident); ok {
			return p.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// long reports whether an expression is a time of half a minute or more, written as n*time.Second,
// time.Minute or time.Hour, or is patience, the limit of cmd/gad.
func long(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name == "patience"
	case *ast.SelectorExpr:
		p, ok := x.X.(*ast.Ident)
		return ok && p.Name == "time" && (x.Sel.Name == "Minute" || x.Sel.Name == "Hour")
	case *ast.BinaryExpr:
		if x.Op != token.MUL {
			return false
		}
		n, isNumber := x.X.(*ast.BasicLit)
		unit, isUnit := x.Y.(*ast.SelectorExpr)
		return long(x.X) || long(x.Y) || isNumber && isUnit && unit.Sel.Name == "Second" &&
			(len(n.Value) > 2 || len(n.Value) == 2 && n.Value >= "30")
	}
	return false
}

// TestClockSeesViolations has what races and what does not.
func TestClockSeesViolations(t *testing.T) {
	const source = `package shop
func TestSleep() { time.Sleep(time.Second) }
func TestLimit() { select { case <-time.After(29 * time.Second): case <-done: } }
func TestContext() { context.WithTimeout(ctx, 50*time.Millisecond) }
func TestTook() { if took := 1; time.Since(begun) > time.Second { panic(took) } }
func TestInside() { go func() { time.Sleep(d) }() }
func FineLimit() { select { case <-time.After(30 * time.Second): case <-time.After(time.Minute): } }
func FineContext() { context.WithTimeout(ctx, 2*time.Minute); time.After(patience) }
func FineBubble() { synctest.Test(t, func(t *testing.T) { time.Sleep(time.Second) }) }
func TestTookLater() { took := time.Since(begun); if took >= 20*time.Second { panic(0) } }
func FineTookLess() { if took := time.Since(begun); took < time.Second || took > time.Minute { } }
func FineTook() { log(time.Since(begun)); if time.Since(begun) > time.Hour { panic(0) } }
`
	file, err := parser.ParseFile(token.NewFileSet(), "shop.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range racing(file) {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"TestContext", "TestInside", "TestLimit", "TestSleep", "TestTook", "TestTookLater"}; !slices.Equal(names, want) {
		t.Errorf("complaints about %v, want %v", names, want)
	}
}
