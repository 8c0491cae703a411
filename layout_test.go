package gad_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// house is the layout: each package, and the packages of gad that it may import.
// A package that is missing here fails the test, and so does an entry that is no
// longer used, so that this map stays the diagram of the code.
//
// Three lines carry the design: algos imports nothing of gad, so that the
// mathematics can be read and checked alone; checkpoint knows names and bytes and
// no model; everything that computes goes through internal/compute.
//
// The trainer has rooms, from the lowest up: config (what a run is told), saved (what lies on
// the disk), encode (rows to tokens), episode (conversations with an environment), export, plan,
// quality, and the loop itself. What only looks at
// runs (apps/board, apps/doctor, apps/demo) stands on the rooms and not on the loop.
//
// A test may import what its package may, directly or not, and the doubles.
var house = map[string]string{
	".":                 "",
	"cmd/gad":           "apps/bench apps/board apps/chat apps/collect apps/create apps/demo apps/doctor apps/eval apps/fidelity apps/games apps/generate apps/judge apps/openenv apps/planner apps/play apps/pull apps/rate apps/rubric apps/score apps/serve apps/session apps/soft apps/study apps/task checkpoint cmd/gad/line data device internal/comm internal/comm/mpi internal/comm/tcp internal/compute internal/compute/cost internal/compute/cpu internal/compute/cuda internal/conf internal/endpoint internal/env internal/fault internal/report internal/scoring internal/vfs model tokenizer trainer trainer/config trainer/encode trainer/export trainer/plan trainer/quality trainer/saved",
	"examples/run":      "device model tokenizer trainer trainer/config trainer/export trainer/saved",
	"examples/round":    "actor algos critic data device tokenizer trainer/encode",
	"examples/sampling": "device model reference tokenizer",
	"cmd/gad/line":      "internal/conf internal/fault trainer/config",
	"apps/bench":        "actor algos critic internal/comm internal/compute internal/compute/cost internal/compute/cpu model reference trainer/config",
	"apps/collect":      "apps/session checkpoint data internal/endpoint internal/env internal/fault internal/journal internal/report internal/vfs",
	"apps/pull":         "internal/fault internal/report internal/vfs",
	"apps/demo":         "apps/task data internal/compute internal/textmetrics internal/vfs model tokenizer trainer/config trainer/quality trainer/saved",
	"apps/study":        "internal/conf internal/fault internal/report internal/vfs",
	"apps/task":         "apps/create apps/session data device internal/fault internal/philox internal/vfs model tokenizer trainer/export",
	"apps/games":        "apps/task internal/env internal/philox",
	"apps/openenv":      "internal/env",
	"apps/planner":      "internal/endpoint internal/env internal/philox internal/vfs",
	"trainer/config":    "actor algos critic data internal/conf internal/report model",
	"trainer/episode":   "data internal/env internal/philox model tokenizer",
	"trainer/encode":    "critic data model tokenizer trainer/config",
	"trainer/quality":   "critic data internal/checker internal/fault internal/philox internal/report internal/textmetrics model tokenizer trainer/config trainer/encode trainer/plan",
	"trainer/export":    "checkpoint internal/compute/cpu internal/gguf internal/vfs model tokenizer trainer/config trainer/saved",
	"trainer/plan":      "checkpoint data internal/compute internal/compute/cost internal/compute/cpu internal/report internal/vfs model tokenizer trainer/config trainer/encode trainer/saved",
	"trainer/saved":     "checkpoint critic data internal/gguf internal/report internal/vfs model tokenizer trainer/config",
	"apps/doctor":       "checkpoint internal/report internal/safetensors internal/vfs trainer/config trainer/saved",
	"trainer":           "actor algos checkpoint critic data internal/checker internal/comm internal/compute internal/compute/cpu internal/conf internal/env internal/fault internal/philox internal/report internal/safetensors internal/textmetrics internal/vfs model reference tokenizer trainer/config trainer/encode trainer/episode trainer/export trainer/plan trainer/quality trainer/saved",
	"actor":             "algos model",
	"critic":            "algos internal/philox model",
	"reference":         "model",
	"device":            "internal/compute/cpu internal/compute/cuda model",
	"model":             "internal/comm internal/compute internal/folder internal/gguf internal/philox internal/safetensors",
	"data":              "data/arrow data/input data/layout data/parquet internal/folder internal/vfs",
	"data/arrow":        "data/input data/layout internal/chat",
	"data/parquet":      "data/input data/layout internal/chat",
	"data/layout":       "data/input internal/chat",
	"data/input":        "",
	"tokenizer":         "internal/chat internal/folder internal/gguf internal/jinja",
	"algos":             "",
	"checkpoint":        "internal/vfs",

	"internal/checker":               "data internal/child",
	"internal/chat":                  "",
	"internal/child":                 "",
	"internal/compute":               "",
	"internal/compute/ref":           "internal/compute",
	"internal/compute/cpu":           "internal/compute",
	"internal/compute/cost":          "internal/compute internal/compute/cuda",
	"internal/compute/cuda":          "internal/compute internal/compute/cuda/driver internal/compute/cuda/kernels",
	"internal/compute/cuda/driver":   "",
	"internal/compute/cuda/kernels":  "",
	"internal/compute/computetest":   "internal/compute internal/compute/ref",
	"internal/conf":                  "",
	"internal/endpoint":              "internal/chat internal/vfs",
	"internal/endpoint/endpointtest": "",
	"internal/env":                   "internal/chat internal/child",
	"internal/folder":                "",
	"internal/jinja":                 "",
	"internal/gguf":                  "internal/folder internal/safetensors",
	"internal/gguf/gguftest":         "",
	"internal/hostile":               "",
	"internal/modeltest":             "actor critic data internal/compute internal/compute/cpu internal/vfs model tokenizer",
	"internal/philox":                "",
	"internal/report":                "internal/vfs",
	"internal/safetensors":           "internal/folder",
	"internal/grammar":               "",
	"internal/scoring":               "internal/endpoint model",
	"internal/textmetrics":           "internal/philox",
	"internal/vfs":                   "",
	"internal/vfs/vfstest":           "internal/vfs",
	"apps/chat/chattest":             "",
	"apps/pull/hubtest":              "",
	"apps/session/sessiontest":       "apps/session data internal/report internal/vfs internal/vfs/vfstest",
	"apps/collect/collecttest":       "internal/endpoint/endpointtest internal/vfs internal/vfs/vfstest",
	"apps/play/playtest":             "internal/vfs",
	"apps/judge/judgetest":           "apps/judge internal/endpoint/endpointtest",
	"internal/fault":                 "",
	"internal/journal":               "internal/vfs",
	"apps/session":                   "checkpoint critic data device internal/compute internal/fault internal/journal internal/report internal/vfs model tokenizer trainer/saved",
	"apps/create":                    "apps/session device internal/fault model tokenizer trainer/export trainer/saved",
	"apps/soft":                      "apps/session data internal/fault internal/report internal/scoring model trainer/encode trainer/saved",
	"apps/rate":                      "apps/session data internal/checker internal/compute internal/report model tokenizer trainer/encode trainer/saved",
	"apps/rubric":                    "apps/judge apps/session checkpoint internal/checker internal/child internal/endpoint internal/fault internal/journal internal/report internal/vfs",
	"apps/fidelity":                  "apps/session critic data device internal/compute internal/fault internal/report model tokenizer trainer/config trainer/encode trainer/quality trainer/saved",
	"apps/score":                     "apps/session model trainer/encode",
	"apps/chat":                      "apps/session internal/compute internal/fault model tokenizer",
	"apps/eval":                      "apps/judge apps/play apps/session checkpoint data device internal/compute internal/endpoint internal/fault internal/journal internal/report internal/textmetrics internal/vfs model trainer/config trainer/encode trainer/episode trainer/quality trainer/saved",
	"apps/generate":                  "apps/play apps/session data internal/compute internal/fault internal/report model tokenizer trainer/encode trainer/episode trainer/saved",
	"apps/play":                      "apps/session data internal/env internal/fault internal/report model tokenizer trainer/config trainer/encode trainer/episode",
	"apps/judge":                     "internal/chat internal/endpoint internal/journal internal/textmetrics",
	"apps/serve":                     "data internal/grammar model tokenizer trainer/encode",
	"apps/board":                     "checkpoint internal/conf internal/report internal/vfs trainer/config trainer/saved",
	"internal/comm":                  "",
	"internal/comm/mpi":              "internal/comm",
	"internal/comm/tcp":              "internal/comm",
	"internal/comm/commtest":         "internal/comm",
}

// doubles are the implementations and test doubles of an interface, for the tests
// of whoever works with the package that is named.
var doubles = map[string]string{
	"internal/compute/ref":           "internal/compute",
	"internal/compute/cpu":           "internal/compute",
	"internal/compute/cost":          "internal/compute",
	"internal/compute/cuda":          "internal/compute",
	"internal/compute/cuda/driver":   "internal/compute", // to tell an emulated device to fail
	"internal/compute/computetest":   "internal/compute",
	"internal/compute/cuda/kernels":  "internal/compute/cuda/driver",
	"internal/gguf/gguftest":         "internal/gguf",
	"internal/endpoint/endpointtest": "internal/endpoint",
	"apps/chat/chattest":             "apps/chat",
	"apps/pull/hubtest":              "apps/pull",
	"internal/vfs/vfstest":           "internal/vfs",
	"device":                         "internal/compute", // opens one of them, for the examples
	"trainer":                        "apps/session",     // trains a student to talk with
	"trainer/export":                 "apps/session",
	"apps/session/sessiontest":       "apps/session",
	"apps/collect/collecttest":       "apps/collect",
	"apps/play/playtest":             "apps/play",
	"apps/judge/judgetest":           "apps/judge",
	"apps/task":                      "apps/judge",   // answers that a program can check
	"apps/games":                     "internal/env", // environments to act in
	"apps/score":                     "apps/session", // what models say of answers
	"internal/hostile":               everyone,       // damages files for the tests of any reader
	"internal/comm/commtest":         "internal/comm",
	"apps/doctor":                    "trainer", // examines the runs that the tests play
	// a tiny student, for the rooms of the trainer
	"internal/modeltest": "tokenizer",
}

// everyone, as the package of a double, is any.
const everyone = "*"

// roles says which packages may import a library of others, by prefix of the
// import path; with _test behind it, in its tests only. A library without a role
// is refused.
var roles = map[string]string{
	"gorgonia.org/gorgonia":            "algos",
	"gorgonia.org/tensor":              "algos",
	"github.com/chewxy/hm":             "algos",           // types of Gorgonia's own operations
	"github.com/apache/arrow/go/v15":   "data data/arrow", // IPC only: see notParquet
	"github.com/parquet-go/parquet-go": "data data/parquet data/parquet_test",
	"github.com/klauspost/compress":    "data data/input",
	"github.com/andybalholm/brotli":    "data/input", // pages of Parquet; comes with parquet-go
	"github.com/pierrec/lz4/v4":        "data/input", // frames of Arrow IPC; comes with arrow
	"github.com/dlclark/regexp2":       "tokenizer",
	"golang.org/x/text":                "tokenizer internal/jinja internal/textmetrics", // Unicode normal forms, case
	"go.uber.org/zap":                  "internal/report trainer",
	"github.com/vbauerster/mpb/v8":     "internal/report",
	"golang.org/x/term":                "apps/chat apps/session internal/report cmd/gad",
	"gonum.org/v1/gonum/stat/distuv":   "apps/study", // quantiles of Student's t
	"gorgonia.org/cu":                  "internal/compute/cuda/driver",
	"github.com/ebitengine/purego":     "internal/comm/mpi internal/compute/cuda/driver internal/compute/cuda/kernels_test",
	"github.com/urfave/cli/v2":         "cmd/gad cmd/gad/line",
	"go.yaml.in/yaml/v3":               "cmd/gad_test internal/conf",
	"github.com/coder/websocket":       "apps/openenv", // OpenEnv's servers speak nothing else
	// one lock a file of the hub's cache, one a run
	"github.com/gofrs/flock": "apps/pull checkpoint",
	// which variants a machine can run
	"golang.org/x/sys/cpu":  "internal/compute/cpu trainer_test",
	"golang.org/x/sys/unix": "internal/vfs checkpoint_test apps/chat_test cmd/gad_test apps/chat/chattest", // the tests mount a small disk, open a terminal
}

// notParquet is Arrow's own Parquet reader: it panics in goroutines of its own
// on corrupt pages, which no caller can recover from.
const notParquet = "github.com/apache/arrow/go/v15/parquet"

// writers may create, rename or remove files otherwise than through internal/vfs,
// for the reason given. Everything that is written must pass internal/vfs, so
// that its tests can fail, cut short or forget any single operation.
var writers = map[string]string{
	"internal/vfs":       "is the seam itself",
	"internal/hostile":   "writes damaged files for tests, the only ones that use it",
	"apps/chat/chattest": "opens both ends of a terminal, for tests only",
}

// reaching are packages that open connections, start programs or load code, and
// those below them. None of gad's own may, outside of tests, but for starters
// and connected.
var reaching = []string{"net", "os/exec", "plugin"}

// connected may open or accept connections, for the reason given. Training never
// does: none of these is below trainer.
var connected = map[string]string{
	"internal/comm/tcp":              "connects the ranks of a run that a launcher has started without MPI, and no others: both ends prove that they know the run's secret",
	"internal/endpoint":              "asks the endpoint that the user names, and no other host",
	"internal/endpoint/endpointtest": "is a server on the loopback interface, for tests only",
	"apps/pull":                      "gad pull: asks the hub that HF_ENDPOINT names, and where it redirects to; the token goes to the hub alone",
	"apps/pull/hubtest":              "is a hub on the loopback interface, for tests only",
	"apps/openenv":                   "gad env openenv: asks the OpenEnv server that the user names; training starts it as a child and opens no connection itself",
	"apps/serve":                     "gad serve: accepts connections at the address that the user gives, and opens none",
	"apps/board":                     "gad board shows runs on the loopback interface, for reading",
}

// starters may start programs, for the reason given. What they start is past
// internal/vfs: it must be the user's own word.
var starters = map[string]string{
	"internal/child": "runs the commands that the user gives as --checker and --env, and nothing else",
}

// unsafes may import unsafe, or hold assembly, for the reason given.
var unsafes = map[string]string{
	"internal/compute/cpu":          "aligns its blocks to cache lines and hands slices to assembly",
	"internal/compute/cuda":         "hands pointers to values to kernels",
	"internal/compute/cuda/driver":  "calls the driver and cuBLASLt",
	"internal/compute/cuda/kernels": "holds the kernels; its test calls their compiler",
	"internal/compute/cuda/emu":     "is the emulated device, in C++",
	"internal/comm/mpi":             "hands slices to the MPI library",
}

// nvidia begins the files that may use cgo: those of the build for GPUs.
const nvidia = "//go:build nvidia\n"

// changing are the functions of os, and of syscall and its like, that change the
// file system; on an *os.Root they are methods.
var changing = []string{"Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "Creat",
	"Lchown", "Link", "Mkdir",
	"MkdirAll", "MkdirTemp", "Mknod", "NewFile", "OpenFile", "Openat", "Remove", "RemoveAll",
	"Rename", "Renameat",
	"Rmdir", "Symlink", "Truncate", "Unlink", "Unlinkat", "WriteFile"}

// nameless are package names that say nothing about what is inside.
var nameless = []string{"util", "utils", "common", "types", "helper", "helpers", "misc", "shared",
	"base", "lib", "tools"}

func TestLayout(t *testing.T) {
	for _, complaint := range inspect(t, os.DirFS(".")) {
		t.Error(complaint)
	}
}

// TestLayoutSeesViolations breaks each rule once, so that a rule that no longer
// looks is seen.
func TestLayoutSeesViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	known := map[string]*parsed{}
	whole := inspectWith(t, os.DirFS("."), known)
	for _, c := range []struct{ file, source, want string }{
		{"internal/stray/a.go", "// Package stray is.\npackage stray",
			"internal/stray: not in the map"},
		{"algos/bad.go", "package algos\nimport _ \"gad/internal/philox\"",
			"algos/bad.go: imports gad/internal/philox"},
		{"algos/bad_test.go", "package algos\nimport _ \"gad/internal/compute/ref\"",
			"algos/bad_test.go: imports gad/internal/compute/ref"},
		{"checkpoint/bad.go", "package checkpoint\nimport _ \"gad/model\"",
			"checkpoint/bad.go: imports gad/model"},
		{"checkpoint/bad_test.go", "package checkpoint\nimport _ \"gad/model\"",
			"checkpoint/bad_test.go: imports gad/model"},
		{"model/bad.go", "package model\nimport _ \"gad/internal/compute/cpu\"",
			"model/bad.go: imports gad/internal/compute/cpu"},
		{"model/bad.go", "package model\nimport _ \"gorgonia.org/gorgonia\"",
			"model/bad.go: imports gorgonia.org/gorgonia"},
		{"data/bad.go", "package data\nimport _ \"github.com/apache/arrow/go/v15/parquet/file\"",
			"data/bad.go: imports github.com/apache/arrow/go/v15/parquet/file"},
		{"checkpoint/bad.go", "package checkpoint\nimport _ \"golang.org/x/sys/unix\"",
			"checkpoint/bad.go: imports golang.org/x/sys/unix"},
		{"data/bad.go", "package data\nimport _ \"example.com/new\"",
			"data/bad.go: imports example.com/new"},
		{"data/bad.go", "package data\nimport \"C\"", "data/bad.go: imports C"},
		{"data/bad.go", nvidia + "package data\nimport \"C\"", "data/bad.go: imports C"},
		{"internal/compute/cpu/bad.go", "package cpu\nimport \"C\"",
			"internal/compute/cpu/bad.go: imports C"},
		{"data/bad.go", "package data\nimport \"os\"\nfunc f() { os.Rename(\"a\", \"b\") }",
			"data/bad.go:3: os.Rename"},
		{"data/bad.go", "package data\nimport disk \"os\"\nvar f = disk.WriteFile",
			"data/bad.go:3: os.WriteFile"},
		{"data/bad.go", "package data\nimport \"syscall\"\nvar f = syscall.Unlink",
			"data/bad.go:3: syscall.Unlink"},
		{"data/bad.go", "package data\nimport \"os\"\nfunc f() {\nr, _ := os.OpenRoot(\".\")\nr.Remove(\"a\")\n}", "data/bad.go:5: Remove"},
		{"data/bad.go", "package data\nimport \"io/ioutil\"\nvar f = ioutil.WriteFile",
			"data/bad.go:3: io/ioutil.WriteFile"},
		{"cmd/gad/bad.go", "package main\nimport _ \"os/exec\"", "cmd/gad/bad.go: imports os/exec"},
		{"internal/report/bad.go", "package report\nimport \"os\"\nvar f = os.OpenFile",
			"internal/report/bad.go:3: os.OpenFile"},
		{"data/bad.go", "package data\nimport . \"os\"", "data/bad.go: imports os without a name"},
		{"data/bad.go", "package data\nimport _ \"net/http\"", "data/bad.go: imports net/http"},
		{"data/bad.go", "package data\nimport _ \"os/exec\"", "data/bad.go: imports os/exec"},
		{"trainer/bad.go", "package trainer\nimport _ \"os/exec\"",
			"trainer/bad.go: imports os/exec"},
		{"internal/checker/bad.go", "package checker\nimport _ \"os/exec\"",
			"internal/checker/bad.go: imports os/exec"},
		{"internal/child/bad.go", "package child\nimport _ \"net\"",
			"internal/child/bad.go: imports net"},
		{"internal/child/bad.go", "package child\nimport _ \"plugin\"",
			"internal/child/bad.go: imports plugin"},
		{"data/bad.go", "package data\nimport _ \"unsafe\"", "data/bad.go: imports unsafe"},
		{"data/bad.s", "TEXT f(SB), 0, $0", "data/bad.s: assembly"},
		{"data/util/a.go", "// Package util is.\npackage util", "data/util: \"util\""},
		{"data/bad.go", "package data\nfunc", "data/bad.go:2"},
		{"internal/philox/philox.go", "package philox", "internal/philox: no package comment"},
		{"internal/philox/philox.go", "// Package other is.\npackage philox",
			"internal/philox: its comment begins"},
		{"reference/reference.go", "// Package reference is.\npackage reference",
			"reference: may import"},
		{"go.mod", "module gad\n\nrequire (\n\texample.com/new v1.0.0\n)\n",
			"go.mod: requires example.com/new"},
	} {
		broken := inspectWith(t, over{os.DirFS("."),
			fstest.MapFS{c.file: {Data: []byte(c.source)}}},
			known)
		found := slices.ContainsFunc(broken,
			func(s string) bool {
				return strings.HasPrefix(s, c.want) &&
					!slices.Contains(whole, s)
			})
		if !found {
			t.Errorf("%s with %q: want a complaint that begins with %q, got %q", c.file, c.source,
				c.want, broken)
		}
	}
}

// over is a file system with some files put over another's.
type over struct {
	below fs.FS
	above fstest.MapFS
}

func (o over) Open(name string) (fs.File, error) {
	if f, ok := o.above[name]; ok && f.Mode.IsRegular() {
		return o.above.Open(name)
	}
	return o.below.Open(name)
}

// ReadDir adds the files above, and the folders that they are in, to those below.
func (o over) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(o.below, name)
	extra, errAbove := fs.ReadDir(o.above, name)
	if err != nil && errAbove != nil {
		return nil, err
	}
	for _, e := range extra {
		if !slices.ContainsFunc(entries,
			func(have fs.DirEntry) bool { return have.Name() == e.Name() }) {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// Stat falls back on the folders that only the files above make.
func (o over) Stat(name string) (fs.FileInfo, error) {
	if info, err := fs.Stat(o.below, name); err == nil {
		return info, nil
	}
	return fs.Stat(o.above, name)
}

// inspect lists what breaks the rules in the module at root.
func inspect(t *testing.T, root fs.FS) []string {
	t.Helper()
	return inspectWith(t, root, map[string]*parsed{})
}

// inspectWith is inspect, and parses only files whose text is not in known, where it puts them.
func inspectWith(t *testing.T, root fs.FS, known map[string]*parsed) []string {
	t.Helper()
	in := inspection{root: root, known: known, seen: map[string]bool{}, used: map[string]bool{},
		docs: map[string]int{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return in.folder(name)
		}
		switch path.Ext(name) {
		case ".go":
			return in.source(name)
		case ".s", ".S", ".c", ".h", ".cc", ".cu", ".cuh", ".a", ".syso":
			_, here := unsafes[path.Dir(name)]
			if _, above := unsafes[path.Dir(path.Dir(name))]; !here && !above {
				in.complain("%s: assembly or C: it stands only where unsafe may: add a reason to unsafes, or write it in Go", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	in.leftovers()
	in.requirements(t)
	slices.Sort(in.complaints)
	return in.complaints
}

// parsed is a file of Go and the text that it was parsed from.
type parsed struct {
	text []byte
	pos  *token.FileSet
	file *ast.File
	err  error

	root    bool // it opens an os.Root
	changes []*ast.SelectorExpr
}

func parse(name string, text []byte) *parsed {
	p := &parsed{text: text, pos: token.NewFileSet()}
	p.file, p.err = parser.ParseFile(p.pos, name, text,
		parser.ParseComments|parser.SkipObjectResolution)
	if p.err != nil {
		return p
	}
	ast.Inspect(p.file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			p.root = p.root || s.Sel.Name == "OpenRoot"
			if slices.Contains(changing, s.Sel.Name) {
				p.changes = append(p.changes, s)
			}
		}
		return true
	})
	return p
}

type inspection struct {
	root       fs.FS
	known      map[string]*parsed // by name
	complaints []string
	seen       map[string]bool // packages
	used       map[string]bool // "package imported", tests apart
	docs       map[string]int  // package comments
}

func (in *inspection) complain(format string, args ...any) {
	in.complaints = append(in.complaints, fmt.Sprintf(format, args...))
}

// folder skips what the go command skips, and modules of their own.
func (in *inspection) folder(name string) error {
	base := path.Base(name)
	if name != "." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
		base == "testdata") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(in.root, path.Join(name, "go.mod")); err == nil && name != "." {
		return fs.SkipDir
	}
	return nil
}

func (in *inspection) source(name string) error {
	text, err := fs.ReadFile(in.root, name)
	if err != nil {
		return err
	}
	p := in.known[name]
	if p == nil || !bytes.Equal(p.text, text) {
		p = parse(name, text)
		in.known[name] = p
	}
	if p.err != nil {
		in.complain("%v", p.err)
		return nil
	}
	file := p.file
	pkg, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
	if !in.seen[pkg] {
		in.seen[pkg] = true
		if _, ok := house[pkg]; !ok {
			in.complain("%s: not in the map: add it to house with what it may import, if it is a package of its own at all", pkg)
		}
		if base := path.Base(pkg); slices.Contains(nameless, base) ||
			slices.Contains(nameless, file.Name.Name) {
			in.complain("%s: %q says nothing: name the package after what it does", pkg, base)
		}
	}
	if !test && file.Doc != nil && strings.TrimSpace(file.Doc.Text()) != "" {
		in.docs[pkg]++
		want := "Package " + file.Name.Name + " "
		if file.Name.Name == "main" {
			want = "Command " + path.Base(pkg) + " "
		}
		if !strings.HasPrefix(file.Doc.Text(), want) {
			in.complain("%s: its comment begins otherwise than with %q", pkg, want)
		}
	}
	in.imports(name, pkg, test, file, strings.HasPrefix(string(text), nvidia))
	if _, ok := writers[pkg]; !ok && !test {
		in.writes(p)
	}
	return nil
}

func (in *inspection) imports(name, pkg string, test bool, file *ast.File, gpu bool) {
	for _, spec := range file.Imports {
		what, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			in.complain("%s: import %s: %v", name, spec.Path.Value, err)
			continue
		}
		ours, isOurs := strings.CutPrefix(what, "gad/")
		switch {
		case what == "C":
			if _, ok := unsafes[pkg]; !ok || !gpu {
				in.complain("%s: imports C: the program is built without cgo, but for the files of unsafe packages that begin with %q", name, nvidia)
			}
		case what == "unsafe":
			if _, ok := unsafes[pkg]; !ok {
				in.complain("%s: imports unsafe: only %s may", name, names(unsafes))
			}
		case !test && what == "os/exec" && starters[pkg] != "":
			// for the reason given
		case !test && strings.Split(what, "/")[0] == "net" && connected[pkg] != "":
			// likewise
		case !test && slices.Contains(reaching, strings.Split(what, "/")[0]) || !test &&
			slices.Contains(reaching, what):
			in.complain("%s: imports %s: only %s may connect, and only %s starts a program: see SECURITY.md", name, what, names(connected), names(starters))
		case isOurs:
			if !test {
				in.used[pkg+" "+ours] = true
			}
			if !allowed(pkg, ours, test) {
				in.complain("%s: imports %s: %s may import %q: turn the dependency round, or change house and say why", name, what, pkg, house[pkg])
			}
		case strings.Contains(strings.Split(what, "/")[0], "."):
			role, ok := roleOf(what)
			users := strings.Fields(roles[role])
			ok = ok && (slices.Contains(users, pkg) || test && slices.Contains(users, pkg+"_test"))
			if !ok || strings.HasPrefix(what, notParquet) {
				in.complain(
					"%s: imports %s: its role is in %q: use it there, or change roles and say why",
					name, what, roles[role])
			}
		case what == "os" && spec.Name != nil && spec.Name.Name == ".":
			in.complain("%s: imports os without a name: what it calls would not be seen", name)
		}
	}
}

// allowed reports whether pkg may import what, both without "gad/".
func allowed(pkg, what string, test bool) bool {
	if slices.Contains(strings.Fields(house[pkg]), what) {
		return true
	}
	if !test {
		return false
	}
	below := closure(pkg, map[string]bool{})
	// pkg itself is in below, for tests from outside
	return below[what] || below[doubles[what]] || doubles[what] == everyone
}

// closure is pkg and all that it imports, directly or not.
func closure(pkg string, into map[string]bool) map[string]bool {
	if !into[pkg] {
		into[pkg] = true
		for _, p := range strings.Fields(house[pkg]) {
			closure(p, into)
		}
	}
	return into
}

// roleOf is the library that an import path belongs to.
func roleOf(what string) (role string, ok bool) {
	for r := range roles {
		if what == r || strings.HasPrefix(what, r+"/") {
			return r, true
		}
	}
	return "", false
}

// writes complains about calls, and other uses, of what changes the file system.
func (in *inspection) writes(p *parsed) {
	packages := map[string]string{} // name in this file -> import path
	for _, spec := range p.file.Imports {
		what, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(what)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		packages[name] = what
	}
	watched := func(p string) bool {
		return p == "os" || p == "io/ioutil" || p == "syscall" ||
			strings.HasPrefix(p, "golang.org/x/sys/")
	}
	for _, s := range p.changes {
		x, ok := s.X.(*ast.Ident)
		at := p.pos.Position(s.Pos())
		switch {
		case ok && watched(packages[x.Name]):
			in.complain("%s:%d: %s.%s: only internal/vfs changes files: use it, so that faults can be injected", at.Filename, at.Line, packages[x.Name], s.Sel.Name)
		case p.root && (!ok || packages[x.Name] == ""):
			// The methods of an *os.Root have the same names. Which variable is one is not looked
			// into: a file that opens a root may not use these names on anything.
			in.complain("%s:%d: %s in a file that opens an os.Root: a root is for reading, writing goes through internal/vfs", at.Filename, at.Line, s.Sel.Name)
		}
	}
}

// leftovers complains about entries that nothing uses and packages that do not
// say what they are.
func (in *inspection) leftovers() {
	for pkg, may := range house {
		if !in.seen[pkg] {
			in.complain("%s: in the map, but no such package: remove it from house", pkg)
			continue
		}
		for _, p := range strings.Fields(may) {
			if !in.used[pkg+" "+p] {
				in.complain("%s: may import %s and does not: remove it from house", pkg, p)
			}
		}
		if n := in.docs[pkg]; n == 0 {
			in.complain("%s: no package comment: say what it is for", pkg)
		} else if n > 1 {
			in.complain("%s: %d package comments: keep one", pkg, n)
		}
	}
}

// requirements complains about modules that go.mod requires directly and that have no role.
func (in *inspection) requirements(t *testing.T) {
	text, err := fs.ReadFile(in.root, "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(f) != 2 || !strings.HasPrefix(f[1], "v") {
			continue // not a requirement, or "// indirect"
		}
		if !slices.ContainsFunc(keys(roles),
			func(r string) bool { return r == f[0] || strings.HasPrefix(r, f[0]+"/") }) {
			in.complain("go.mod: requires %s, which has no role: add it to roles with the package that uses it", f[0])
		}
	}
}

func keys(m map[string]string) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

func names(m map[string]string) string { return strings.Join(keys(m), ", ") }
