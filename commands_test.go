package gad_test

import (
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// elsewhere are the commands whose app has another name, and why.
var elsewhere = map[string]string{
	"logprobs": "apps/score: one pass of a model over given rows, and what is read of it",
	"report":   "apps/board: the page of gad board as a file",
}

// shared are apps that are no command: parts that several commands have in common.
var shared = []string{"apps/session", "apps/play", "apps/judge"}

// A command's app has its name: gad NAME and gad GROUP NAME are in apps/NAME, apps/GROUP/NAME or
// below apps/GROUP.
func TestAppsAreNamedAsCommands(t *testing.T) {
	for _, complaint := range misnamed(t, os.DirFS(".")) {
		t.Error(complaint)
	}
	if len(elsewhere) > 3 {
		t.Errorf("%d commands are elsewhere: at most 3", len(elsewhere))
	}
	planted := over{os.DirFS("."), fstest.MapFS{"cmd/gad/bad.go": {Data: []byte(`package main
import "gad/apps/pull"
func (p *program) badCommand() *cli.Command {
	return &cli.Command{Name: "bad", Action: func(*cli.Context) error { return fetch() }}
}
func fetch() error { return pull.Fetch() }`)}}}
	if got := misnamed(t, planted); len(got) != 1 ||
		!strings.HasPrefix(got[0], "cmd/gad/bad.go: gad bad is in [\"apps/pull\"]") {
		t.Errorf("a command in another's app: %q", got)
	}
}

// misnamed lists the commands of the module at root whose app has another name, and rows of
// elsewhere that are not needed.
func misnamed(t *testing.T, root fs.FS) (complaints []string) {
	t.Helper()
	complain := func(format string, args ...any) {
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	commands := commandsOf(t, root)
	if len(commands) < 30 {
		t.Fatalf("%d commands in cmd/gad: the test does not see them", len(commands))
	}
	used := map[string]bool{}
	for _, c := range commands {
		own := slices.DeleteFunc(c.apps, func(app string) bool { return slices.Contains(shared, app) })
		if len(own) == 0 || slices.ContainsFunc(own, c.names) {
			continue
		}
		if reason := elsewhere[c.name]; reason != "" && slices.ContainsFunc(own,
			func(app string) bool { return strings.HasPrefix(reason, app+": ") }) {
			used[c.name] = true
			continue
		}
		complain("%s: gad %s is in %q: name the app as its command, or give a reason in elsewhere",
			c.file, c.name, own)
	}
	for name := range elsewhere {
		if !used[name] {
			complain("elsewhere: %s: not needed: remove its row", name)
		}
	}
	return complaints
}

// command is a cli.Command of cmd/gad.
type command struct {
	name, file string
	groups     []string // commands that it is written beside or listed in
	apps       []string // that it calls
}

// names reports whether an app is named as the command, or lies below its group.
func (c command) names(app string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(app, "apps/"), "/")
	return path.Base(app) == c.name || slices.Contains(c.groups, first)
}

// commandsOf finds the commands in the text of cmd/gad, and the apps that each calls: in its own
// literal, and in functions of its file that it calls and that make no other command.
func commandsOf(t *testing.T, root fs.FS) (list []command) {
	t.Helper()
	files, err := fs.Glob(root, "cmd/gad/*.go")
	if err != nil {
		t.Fatal(err)
	}
	type function struct {
		file  string
		decl  *ast.FuncDecl
		apps  map[string]string // of its file, by name
		names []string          // of the commands that it makes
	}
	functions := map[string]*function{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		p := parse(name, text)
		if p.err != nil {
			t.Fatal(p.err)
		}
		apps := map[string]string{}
		for _, spec := range p.file.Imports {
			what, _ := strconv.Unquote(spec.Path.Value)
			if app, ok := strings.CutPrefix(what, "gad/"); ok && strings.HasPrefix(app, "apps/") {
				apps[path.Base(app)] = app
				if spec.Name != nil {
					apps[spec.Name.Name] = app
				}
			}
		}
		for _, d := range p.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				fn := &function{file: name, decl: f, apps: apps}
				ast.Inspect(f, func(n ast.Node) bool {
					if name := commandName(n); name != "" {
						fn.names = append(fn.names, name)
					}
					return true
				})
				functions[f.Name.Name] = fn
			}
		}
	}
	// calls visits what a node selects: apps, and functions of cmd/gad.
	calls := func(in *function, n ast.Node, app func(string), f func(*function)) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.SelectorExpr:
				id, ok := x.X.(*ast.Ident)
				if ok && in.apps[id.Name] != "" {
					app(in.apps[id.Name])
				} else if to := functions[x.Sel.Name]; to != nil && ok {
					f(to)
				}
			case *ast.CallExpr:
				if id, ok := x.Fun.(*ast.Ident); ok && functions[id.Name] != nil {
					f(functions[id.Name])
				}
			}
			return true
		})
	}
	groups := map[*function][]string{}
	for _, fn := range functions {
		calls(fn, fn.decl, func(string) {}, func(to *function) {
			if len(to.names) > 0 {
				groups[to] = append(groups[to], fn.names...)
			}
		})
	}
	for _, fn := range functions {
		ast.Inspect(fn.decl, func(n ast.Node) bool {
			name := commandName(n)
			if name == "" {
				return true
			}
			c := command{name: name, file: fn.file, groups: slices.Concat(fn.names, groups[fn])}
			seen := map[*function]bool{fn: true}
			add := func(app string) {
				if !slices.Contains(c.apps, app) {
					c.apps = append(c.apps, app)
				}
			}
			var follow func(to *function)
			follow = func(to *function) {
				if !seen[to] && len(to.names) == 0 && to.file == fn.file {
					seen[to] = true
					calls(to, to.decl, add, follow)
				}
			}
			calls(fn, n, add, follow)
			slices.Sort(c.apps)
			list = append(list, c)
			return true
		})
	}
	return list
}

// commandName returns the name that a literal of cli.Command gives; "" of any other node.
func commandName(n ast.Node) string {
	x, ok := n.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	command := false
	if s, ok := x.Type.(*ast.SelectorExpr); ok {
		command = s.Sel.Name == "Command"
	}
	name := ""
	for _, e := range x.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return ""
		}
		key, _ := kv.Key.(*ast.Ident)
		if key == nil {
			return ""
		}
		switch lit, _ := kv.Value.(*ast.BasicLit); {
		case key.Name == "Name" && lit != nil:
			name, _ = strconv.Unquote(lit.Value)
		case key.Name == "Action" || key.Name == "Subcommands":
			command = true // in a list its type is left out
		}
	}
	if !command {
		return ""
	}
	return name
}
