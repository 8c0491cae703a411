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
// The trainer has rooms: config (what a run is told), saved (what lies on the disk), encode (rows
// to tokens), episode (conversations with an environment), export, plan, quality, and the loop
// itself. What only looks at runs (apps/board, apps/doctor, apps/demo) stands on the rooms and not
// on the loop.
//
// A test may import what its package may, directly or not, and the doubles.
var house = rooms(`
.:

# commands
cmd/gad: apps/* trainer/* checkpoint line data device comm mpi tcp compute cost cpu cuda conf
    endpoint env fault report vfs model tokenizer trainer
cmd/gad/line: conf fault config

# programs that use the packages from Go
examples/run: device model tokenizer trainer config export saved
examples/round: actor algos critic data device tokenizer encode
examples/sampling: device model reference tokenizer

# applications: one for a command, by its name; what several share stands beside them
apps/bench: actor algos critic comm compute cost cpu model reference config
apps/board: checkpoint conf report vfs config saved
apps/chat: session compute fault model tokenizer
apps/chat/chattest:
apps/collect: session checkpoint data endpoint env fault journal report vfs
apps/collect/collecttest: endpointtest vfs vfstest
apps/data/score: session data fault report model encode saved scoring
apps/demo: task data compute textmetrics vfs model tokenizer config quality saved
apps/doctor: checkpoint report safetensors vfs config saved
apps/env/games: task env philox
apps/env/openenv: env
apps/env/planner: endpoint env philox vfs
apps/eval: judge play session checkpoint data device compute endpoint fault journal report
    textmetrics vfs model config encode episode quality saved
apps/fidelity: session critic data device compute fault report model tokenizer config encode
    quality saved
apps/generate: play session data compute fault report model tokenizer encode episode saved
apps/init: session device fault model tokenizer export saved
apps/coach: judge pipe checker
apps/judge: internal/chat endpoint journal textmetrics checker
apps/judge/judgetest: judge endpointtest
apps/judge/pipe: judge session checkpoint child endpoint fault journal report vfs checker
apps/play: session data env fault report model tokenizer config encode episode
apps/play/playtest: vfs
apps/pull: fault report vfs
apps/pull/hubtest:
apps/rate: session data compute report model tokenizer checker encode saved
apps/rubric: judge pipe
apps/score: session model encode
apps/serve: data grammar model tokenizer encode
apps/session: checkpoint critic data device compute fault journal report vfs model tokenizer
    saved
apps/session/sessiontest: session data report vfs vfstest
apps/study: conf fault report vfs
apps/task: init session data device fault philox vfs model tokenizer export

# the loop and its rooms, from the lowest up
trainer/config: actor algos critic data conf report model
trainer/checker: data child
trainer/saved: checkpoint critic data gguf report vfs model tokenizer config
trainer/encode: critic data model tokenizer config
trainer/episode: data env philox model tokenizer
trainer/export: checkpoint cpu gguf vfs model tokenizer config saved
trainer/plan: checkpoint data compute cost cpu report vfs model tokenizer config encode saved
trainer/quality: critic data fault philox report textmetrics model tokenizer checker config
    encode plan
trainer/scoring: endpoint model
trainer/modeltest: actor critic data compute cpu vfs model tokenizer
trainer: actor algos checkpoint critic data comm compute cpu conf env fault philox report
    safetensors textmetrics vfs model reference tokenizer checker config encode episode export
    plan quality saved

# who learns, and how
actor: algos model
critic: algos philox model
reference: model
algos:

# the network and its rooms
model: comm compute folder philox safetensors architecture files logits pages rope sequence
    workspace model/internal/sampling
model/internal/architecture: compute rope
model/internal/files: folder gguf safetensors rope
model/internal/logits: compute
model/internal/pages:
model/internal/rope:
model/internal/sampling: compute philox logits pages sequence workspace
model/internal/sequence:
model/internal/workspace: compute
device: cpu cuda model

# rows, text and checkpoints
data: arrow input layout parquet folder vfs
data/arrow: input layout internal/chat
data/input:
data/layout: input internal/chat
data/parquet: input layout internal/chat
tokenizer: internal/chat folder gguf jinja
checkpoint: vfs

# the ground floor
internal/chat:
internal/child:
internal/comm:
internal/comm/commtest: comm
internal/comm/mpi: comm
internal/comm/tcp: comm
internal/compute:
internal/compute/computetest: compute ref
internal/compute/cost: compute cuda
internal/compute/cpu: compute
internal/compute/cuda: compute driver kernels
internal/compute/cuda/driver:
internal/compute/cuda/kernels:
internal/compute/ref: compute
internal/conf:
internal/endpoint: internal/chat vfs
internal/endpoint/endpointtest:
internal/env: internal/chat child
internal/fault:
internal/folder:
internal/gguf: folder safetensors
internal/gguf/gguftest:
internal/grammar:
internal/hostile:
internal/jinja:
internal/journal: vfs
internal/philox:
internal/report: vfs
internal/safetensors: folder
internal/textmetrics: philox
internal/vfs:
internal/vfs/vfstest: vfs
`)

// rooms reads a row a package: its path, and the packages that it may import, by their last
// element where no other package has it. A row that begins with a blank continues the one above;
// "apps/*" is all packages below apps but those for tests.
func rooms(text string) map[string]string {
	table, last := map[string]string{}, ""
	for line := range strings.Lines(text) {
		pkg, may, row := strings.Cut(line, ":")
		switch {
		case line[0] == ' ':
			table[last] += line
		case row && line[0] != '#':
			last, table[pkg] = pkg, may
		}
	}
	byName := map[string][]string{}
	for pkg := range table {
		byName[path.Base(pkg)] = append(byName[path.Base(pkg)], pkg)
	}
	for pkg, may := range table {
		names := strings.Fields(may)
		for i, name := range names {
			if of := byName[name]; len(of) == 1 {
				names[i] = of[0]
			}
		}
		table[pkg] = strings.Join(names, " ")
	}
	return table
}

// covers reports whether a package is the one that a row names, or of the folder that it names.
func covers(name, pkg string) bool {
	below, folder := strings.CutSuffix(name, "*")
	return name == pkg || folder && strings.HasPrefix(pkg, below) && !strings.HasSuffix(pkg, "test")
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
	"apps/serve":                     "trainer/scoring", // scores for a client as vLLM does
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
	"apps/env/games":                 "internal/env", // environments to act in
	"apps/score":                     "apps/session", // what models say of answers
	"internal/hostile":               everyone,       // damages files for the tests of any reader
	"internal/comm/commtest":         "internal/comm",
	"apps/doctor":                    "trainer",                 // examines the runs that the tests play
	"model":                          "model/internal/sampling", // the network
	// a tiny student, for the rooms of the trainer
	"trainer/modeltest": "tokenizer",
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
	"github.com/coder/websocket":       "apps/env/openenv", // OpenEnv's servers speak nothing else
	// one lock a file of the hub's cache, one a run
	"github.com/gofrs/flock": "apps/pull checkpoint",
	// which variants a machine can run
	"golang.org/x/sys/cpu":  "internal/compute/cpu trainer_test",
	"golang.org/x/sys/unix": "internal/vfs apps/chat_test apps/chat/chattest", // a terminal
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
	"apps/env/openenv":               "gad env openenv: asks the OpenEnv server that the user names; training starts it as a child and opens no connection itself",
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
	whole := inspect(t, os.DirFS("."))
	// Cases of one file are in turn, others are looked at together: so each bad one has a name of
	// its own.
	var turns [][]violation
	var names []string
	for _, c := range []violation{
		{"internal/stray/a.go", "// Package stray is.\npackage stray",
			"internal/stray: not in the map"},
		{"algos/bad.go", "package algos\nimport _ \"gad/internal/philox\"",
			"algos/bad.go: imports gad/internal/philox"},
		{"algos/bad_test.go", "package algos\nimport _ \"gad/internal/compute/ref\"",
			"algos/bad_test.go: imports gad/internal/compute/ref"},
		{"internal/grammar/bad.go", "package grammar\nimport _ \"gad/data\"",
			"internal/grammar/bad.go: imports gad/data"},
		{"cmd/gad/bad.go", "package main\nimport _ \"gad/apps/chat/chattest\"",
			"cmd/gad/bad.go: imports gad/apps/chat/chattest"},
		{"model/internal/rope/bad.go", "package rope\nimport _ \"gad/model/internal/files\"",
			"model/internal/rope/bad.go: imports gad/model/internal/files"},
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
		{"trainer/checker/bad.go", "package checker\nimport _ \"os/exec\"",
			"trainer/checker/bad.go: imports os/exec"},
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
		name := fmt.Sprintf("/bad%d", len(names))
		names = append(names, name)
		c.file, c.want = strings.Replace(c.file, "/bad", name, 1),
			strings.Replace(c.want, "/bad", name, 1)
		turn := slices.IndexFunc(turns, func(with []violation) bool {
			return !slices.ContainsFunc(with, func(o violation) bool { return o.file == c.file })
		})
		if turn < 0 {
			turn, turns = len(turns), append(turns, nil)
		}
		turns[turn] = append(turns[turn], c)
	}
	for _, cases := range turns {
		files := fstest.MapFS{}
		for _, c := range cases {
			files[c.file] = &fstest.MapFile{Data: []byte(c.source)}
		}
		broken := inspect(t, over{os.DirFS("."), files})
		for _, c := range cases {
			if !slices.ContainsFunc(broken, func(s string) bool {
				return strings.HasPrefix(s, c.want) && !slices.Contains(whole, s)
			}) {
				t.Errorf("%s with %q: want a complaint that begins with %q, got %q", c.file,
					c.source, c.want, broken)
			}
		}
	}
	const floor = "internal/grammar"
	may := house[floor]
	defer func() { house[floor] = may }()
	house[floor] = "data"
	if broken := inspect(t, os.DirFS(".")); !slices.ContainsFunc(broken,
		func(s string) bool { return strings.Contains(s, "internal is the ground floor") }) {
		t.Errorf("%s may import data, and nobody complains: %q", floor, broken)
	}
}

// violation is a file that breaks a rule, and how the complaint about it begins.
type violation struct{ file, source, want string }

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
	in := inspection{root: root, seen: map[string]bool{}, used: map[string]bool{},
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
	file *ast.File
	err  error

	root    bool // it opens an os.Root
	changes []*ast.SelectorExpr
}

// positions and trees cache the parsed files: the file set of all of them, and the syntax tree of
// each by file name. The tests that parse do not run side by side.
var (
	positions = token.NewFileSet()
	trees     = map[string]*parsed{}
)

// parse returns the syntax tree of a file with the given text, from the cache if the text has not
// changed.
func parse(name string, text []byte) *parsed {
	if p := trees[name]; p != nil && bytes.Equal(p.text, text) {
		return p
	}
	p := &parsed{text: text}
	trees[name] = p
	p.file, p.err = parser.ParseFile(positions, name, text,
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
	p := parse(name, text)
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
	if slices.ContainsFunc(strings.Fields(house[pkg]),
		func(name string) bool { return covers(name, what) }) {
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
		for _, name := range strings.Fields(house[pkg]) {
			for p := range house {
				if covers(name, p) {
					closure(p, into)
				}
			}
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
		at := positions.Position(s.Pos())
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
		for _, name := range strings.Fields(may) {
			used := false
			for p := range house {
				used = used || covers(name, p) && in.used[pkg+" "+p]
			}
			if !used {
				in.complain("%s: may import %s and does not: remove it from house", pkg, name)
			}
			if first, _, _ := strings.Cut(pkg, "/"); first == "internal" &&
				!strings.HasPrefix(name, "internal/") {
				in.complain("%s: may import %s: internal is the ground floor: move it beside what uses it", pkg, name)
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
