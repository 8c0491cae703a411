package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The files testdata/mistakes/COMMAND.txt are what users mistake, and what gad answers: one line
// that says what and how out of it, with nothing else printed and nothing written.
//
//	== TITLE                 a case: an empty folder of its own, in which the lines below hold
//	need NAME                what no text can write: see needs
//	link FROM [NAME]         a link to a part of the fixture: student, sft, warmup, train, dpo, ...
//	copy FROM NAME           a copy of one of its files
//	file NAME ["TEXT"]       a file of the lines that follow behind "  | ", or of a Go string
//	folder NAME
//	mode NAME OCTAL
//	symlink, hardlink OLD NEW
//	env NAME="VALUE"         a variable of the environment whose value has blanks
//
//	# a remark
//	$ [NAME=VALUE ...] COMMAND LINE
//	STATUS the error
//
// What begins with a dollar sign and a capital is put in by the case: $WORK its folder,
// $TESTDATA the repository's testdata, and what needs give.

// mistake is a command line and what it is answered.
type mistake struct {
	line string
	code int
	want string // the whole error, of one line
	at   int    // line of the file
}

// scene is a case of a file: how its folder is made, and the mistakes.
type scene struct {
	title string
	setup []prop
	rows  []mistake
}

// prop is a line before the mistakes of a scene.
type prop struct {
	verb  string
	args  []string
	lines []string // of a file
}

// scenes reads a file of mistakes.
func scenes(t *testing.T, path string) (all []scene) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var at int
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		at++
		text := lines.Text()
		if title, ok := strings.CutPrefix(text, "== "); ok {
			all = append(all, scene{title: title})
			continue
		}
		if text == "" || strings.HasPrefix(text, "# ") {
			continue
		}
		if len(all) == 0 {
			t.Fatalf("%s:%d: before the first case", path, at)
		}
		s := &all[len(all)-1]
		first, rest, _ := strings.Cut(text, " ")
		code, err := strconv.Atoi(first)
		switch n, k := len(s.rows), len(s.setup); {
		case first == "$":
			s.rows = append(s.rows, mistake{line: rest, code: -1, at: at})
		case n > 0 && err == nil && s.rows[n-1].code < 0:
			s.rows[n-1].code, s.rows[n-1].want = code, rest
		case n == 0 && k > 0 && strings.HasPrefix(text, "  |"):
			s.setup[k-1].lines = append(s.setup[k-1].lines, strings.TrimPrefix(text[3:], " "))
		case n == 0 && rest != "":
			s.setup = append(s.setup, prop{verb: first, args: strings.SplitN(rest, " ", 2)})
		default:
			t.Fatalf("%s:%d: %q: is no line of a case", path, at, text)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// stage links and writes a scene's folder; watched are the folders that no mistake may change.
func (s scene) stage(t *testing.T, f *fixture) (names *strings.Replacer, watched []string) {
	t.Helper()
	for _, name := range environment {
		t.Setenv(name, "") // to be as it was afterwards
		os.Unsetenv(name)
	}
	testdata, err := filepath.Abs(filepath.Join("..", "..", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	t.Chdir(work)
	given, watched := []string{"$WORK", work, "$TESTDATA", testdata}, []string{work}
	for _, p := range s.setup {
		first, second := p.args[0], p.args[len(p.args)-1]
		os.MkdirAll(filepath.Dir(second), 0o755)
		switch p.verb {
		case "need":
			need, ok := needs[first]
			if !ok {
				t.Fatalf("need %s: there is no such need", first)
			}
			given = append(given, need(t, f)...)
		case "link":
			err = os.Symlink(f.path(first), second)
			if _, run := os.Stat(f.path(first, "config.yaml")); run == nil {
				watched = append(watched, f.path(first))
			}
		case "copy":
			err = os.WriteFile(second, []byte(readFile(t, f.path(first))), 0o644)
		case "file":
			os.MkdirAll(filepath.Dir(first), 0o755)
			text := strings.Join(append(p.lines, ""), "\n")
			if len(p.args) > 1 {
				text, err = strconv.Unquote(second)
			}
			if err == nil {
				err = os.WriteFile(first, []byte(text), 0o644)
			}
		case "folder":
			err = os.Mkdir(first, 0o755)
		case "mode":
			var bits uint64
			if bits, err = strconv.ParseUint(second, 8, 32); err == nil {
				err = os.Chmod(first, os.FileMode(bits))
			}
		case "symlink":
			err = os.Symlink(first, second)
		case "hardlink":
			err = os.Link(first, second)
		case "env":
			name, value, _ := strings.Cut(strings.Join(p.args, " "), "=")
			value, err = strconv.Unquote(value)
			t.Setenv(name, value)
		default:
			err = fmt.Errorf("%s: is no way to set a case", p.verb)
		}
		if err != nil {
			t.Fatalf("%s %s: %v", p.verb, strings.Join(p.args, " "), err)
		}
	}
	return strings.NewReplacer(given...), watched
}

func TestMistakes(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "mistakes", "*.txt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files: %v", len(paths), err)
	}
	f, count := ready(t), 0
	for _, path := range paths {
		for _, s := range scenes(t, path) {
			count += len(s.rows)
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txt")+"/"+s.title, func(t *testing.T) {
				names, watched := s.stage(t, f)
				before := trees(t, watched)
				for _, m := range s.rows {
					line, want := names.Replace(m.line), "gad: "+names.Replace(m.want)+"\n"
					code, out, said := gadWith(strings.Fields(line))
					if code != m.code || said != want {
						t.Errorf("%s:%d: gad %s\nexit status %d, want %d\n got %swant %s", path,
							m.at, line, code, m.code, said, want)
					}
					if out != "" {
						t.Errorf("%s:%d: gad %s\nprints %q", path, m.at, line, out)
					}
					now := trees(t, watched)
					for name := range now {
						if was, ok := before[name]; !ok || was != now[name] {
							t.Errorf("%s:%d: gad %s\n%s was made, or changed", path, m.at, line,
								name)
						}
					}
					before = now
				}
			})
		}
	}
	t.Logf("%d mistakes in %d files", count, len(paths))
}

// gadWith runs a command line that may begin with variables of the environment.
func gadWith(line []string) (code int, out, said string) {
	for {
		name, value, ok := strings.Cut(line[0], "=")
		if !ok || strings.ToUpper(name) != name || strings.HasPrefix(name, "-") {
			return gad(line...)
		}
		os.Setenv(name, value)
		defer os.Unsetenv(name)
		line = line[1:]
	}
}

// trees returns the state of all that is below some folders: the type of what is no file, else size
// and time of the last write, which whoever writes a file changes.
func trees(t *testing.T, folders []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range folders {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !d.Type().IsRegular() {
				all[path] = d.Type().String()
				return nil
			}
			info, err := d.Info()
			if err == nil {
				all[path] = fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A flag that is given and empty is no flag that is missing.
func TestEmptyFlag(t *testing.T) {
	refused(t, exitUsage, "gad: generate: --prompt \"\": is empty: give a value\n", "generate",
		"--model", "student", "--prompt", "")
}

// All that is wrong is said at once, a line each.
func TestAllProblemsAtOnce(t *testing.T) {
	code, _, said := gad("sft", "--data", "rows.jsonl")
	if code != exitUsage || strings.Count(said, "\n") != 2 ||
		!strings.Contains(said, "--output DIR") || !strings.Contains(said, "--model DIR") {
		t.Errorf("exit status %d\n%s", code, said)
	}
}
