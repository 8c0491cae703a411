package gad_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The share of a package's functions, in percent, that a habit of writing may have. The first three
// are of functions with a comment. Well-kept Go has "Name is" in 1 to 9 % of its comments, a
// pronoun in the place of a noun in 1 %, and participles or prepositions as names of 1 to 2 % of
// functions.
const (
	mostIs       = 10
	mostPronouns = 3
	mostPartials = 4
	mapFrom      = 6 // files from which on a package has a map
)

var (
	pronouns = regexp.MustCompile(`(?i)\b(those (of|that|which|in|who|with|whose)|` +
		`that which|that of|what it|what they|what (is|are|was|were|has|have|had)|` +
		`one that|ones that|the one (that|of|which|whose)|one of those|(is|are) none|which of)\b`)
	prepositions = strings.Fields(`about above after against ahead along among apart around as at
		before behind below beneath beside besides between beyond by despite down during except for
		from in inside into like near of off on onto out outside over past per since through till to
		toward towards under unlike until up upon via with within without`)
	participles = strings.Fields(`become been begun born bound built done drawn fallen felt forgotten
		found given gone grown heard held kept known laid learnt left lent lost made meant met paid
		said seen sent shown sold spent stood stuck swept taken taught thought told
		torn understood unborn undone woken won worn written`)
	// Words that end as participles do and are nouns, adjectives or verbs of the field.
	nouns = strings.Fields(`advanced binding blocked bring building ceiling coding embed embedding ending
		encoding exceed failed feed finding fixed floating formatting heading indeed led learning loading
		logging mapping masked meaning naming need nested packing padding parsing ping pooling proceed
		ranking rating reading red ring rounding sampled sampling scaling seed setting shared signed
		speed spelling spring string succeed training trusted warning weed wing writing thing king
		timing testing scoring batching bleed breed nothing`)
)

// partial reports whether a function's only or first word is a participle or a preposition, which
// names it for neither what it does nor what it returns. One that returns a bool may be a
// participle.
func partial(fn *ast.FuncDecl) bool {
	name := fn.Name.Name
	if r := fn.Type.Results; r != nil && len(r.List) == 1 {
		if result, ok := r.List[0].Type.(*ast.Ident); ok && result.Name == "bool" {
			return false
		}
	}
	first := strings.ToLower(name)
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			first = strings.ToLower(name[:i])
			break
		}
	}
	whole := len(first) == len(name)
	switch {
	case slices.Contains(nouns, first):
		return false
	case slices.Contains(prepositions, first):
		return whole || first != "to" && first != "from" && first != "with" && first != "for" &&
			first != "on" && first != "as" && first != "by" && first != "out" && first != "in"
	case slices.Contains(participles, first):
		return whole
	}
	return whole && (strings.HasSuffix(first, "ed") || strings.HasSuffix(first, "ing"))
}

// wording counts what a package's comments and names have, with the place of each finding.
type wording struct {
	functions, comments int
	is, pronoun, name   []string
	files, made         []string // that people write, that programs do
	comment             string
}

// TestWordsOfFunctions: in each package comments of functions begin with a verb and name their
// nouns, functions are named for what they do or return, and a package of many files has a map of
// them.
func TestWordsOfFunctions(t *testing.T) {
	packages := map[string]*wording{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		p := parse(filepath.ToSlash(file), text)
		if p.err != nil {
			return p.err
		}
		f := p.file
		dir := filepath.ToSlash(filepath.Dir(file))
		if packages[dir] == nil {
			packages[dir] = &wording{}
		}
		if ast.IsGenerated(f) {
			packages[dir].made = append(packages[dir].made, filepath.Base(file))
			return nil
		}
		packages[dir].read(positions, f, filepath.Base(file))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		for _, f := range packages[dir].findings() {
			t.Errorf("%s: %s", dir, f)
		}
	}
}

// read adds a file's counts.
func (w *wording) read(set *token.FileSet, f *ast.File, file string) {
	w.files = append(w.files, file)
	if f.Doc != nil {
		w.comment += f.Doc.Text()
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		w.functions++
		place := fmt.Sprintf("%s:%d", file, set.Position(fn.Pos()).Line)
		if partial(fn) {
			w.name = append(w.name, place+" "+fn.Name.Name)
		}
		if fn.Doc == nil {
			continue
		}
		w.comments++
		text := strings.Join(strings.Fields(fn.Doc.Text()), " ")
		rest, _ := strings.CutPrefix(text, fn.Name.Name+" ")
		if strings.HasPrefix(rest, "is ") || strings.HasPrefix(rest, "are ") {
			w.is = append(w.is, place+" "+sentence(text))
		}
		if m := pronouns.FindString(text); m != "" {
			w.pronoun = append(w.pronoun, fmt.Sprintf("%s %q in: %s", place, m, text))
		}
	}
}

var fileNames = regexp.MustCompile(`\b[a-z0-9_]+\.go\b`)

// findings returns what passes a bound, each with its lines and a way to write it.
func (w *wording) findings() []string {
	var found []string
	add := func(have []string, of, most int, what, way string) {
		if len(have) > 1 && len(have)*100 > of*most {
			found = append(found, fmt.Sprintf("%s: %d of %d, %d %% at most. %s\n\t%s",
				what, len(have), of, most, way, strings.Join(have, "\n\t")))
		}
	}
	add(w.is, w.comments, mostIs, `comments of functions that begin "Name is"`,
		`Say what it does or returns: not "said is a reply of the environment in the journal" but`+
			` "journalReply returns the journal's record of an environment's reply".`)
	add(w.pronoun, w.comments, mostPronouns, "comments with a pronoun in the place of the noun",
		`Name the noun: not "gaps are how many columns a matrix has before and behind those of a case"`+
			` but "padding returns the columns before and after a matrix's own".`)
	add(w.name, w.functions, mostPartials, "functions named by a participle or a preposition",
		`Name it for what it does or returns: not "told" but "lastSent".`)
	named := fileNames.FindAllString(w.comment, -1)
	for _, n := range named {
		if !slices.Contains(w.files, n) && !slices.Contains(w.made, n) &&
			!strings.HasSuffix(n, "_test.go") {
			found = append(found, "the package comment names "+n+", which is not there")
		}
	}
	var left []string
	for _, f := range w.files {
		if !slices.Contains(named, f) && f != "doc.go" {
			left = append(left, f)
		}
	}
	if len(w.files) >= mapFrom && len(left)*4 > len(w.files) {
		found = append(found, fmt.Sprintf("%d files and a package comment without a map of them in"+
			" reading order (as trainer/trainer.go has): %s", len(w.files), strings.Join(left, " ")))
	}
	return found
}

// sentence returns a text's first sentence.
func sentence(text string) string {
	first, _, cut := strings.Cut(text, ". ")
	if cut {
		first += "."
	}
	return first
}
