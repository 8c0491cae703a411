package gad_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// budgets are the most words of each document. A document that is not named has words of a page.
// What is left out of a page stands as data beside it, and the page says where: a table of some
// hundred numbers is data and no reading.
var budgets = map[string]int{
	"README.md":          2000,
	"doc/serve.md":       3500,
	"doc/data.md":        3500,
	"doc/evaluation.md":  3500,
	"doc/algorithms.md":  3500,
	"doc/models.md":      3500,
	"doc/performance.md": 5000,
	"doc/study.md":       6000,
	"doc/LOG.md":         8000,
	"doc/licences.md":    10000,
}

const (
	page = 2500

	allDocuments = 100000
)

// together are documents that share a budget.
var together = []struct {
	names []string
	most  int
}{
	{[]string{"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}, 6000},
	{[]string{"doc/gpu/README.md", "doc/gpu/predicted.md"}, 3500},
}

// madeFromCode are the documents that a test writes whole, and uncounted the parts of others that
// a test writes, between <!-- NAME --> and <!-- /NAME -->.
var (
	madeFromCode = []string{"doc/settings.md", "doc/metrics.md"}
	uncounted    = map[string][]string{
		"doc/evaluation.md": {"figures"},
		"doc/memory.md":     {"gad plan --cards"},
		"doc/models.md":     {"families"},
	}
)

// documents returns every Markdown file of the repository with its text.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != ".":
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(name)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil || len(texts) < 40 {
		t.Fatalf("%d documents (%v), want 40 or more", len(texts), err)
	}
	return texts
}

// words returns how many words a document has without the parts between the named marks. A word
// has a letter or a digit: bars of tables and signs of formulas that stand alone are none.
func words(t *testing.T, name, text string, parts []string) int {
	t.Helper()
	for _, part := range parts {
		before, rest, ok := strings.Cut(text, "<!-- "+part+" -->")
		_, after, closed := strings.Cut(rest, "<!-- /"+part+" -->")
		if !ok || !closed {
			t.Errorf("%s: lacks a part between <!-- %s --> and <!-- /%[2]s -->", name, part)
		}
		text = before + after
	}
	n := 0
	for _, w := range strings.Fields(text) {
		if strings.ContainsFunc(w, func(r rune) bool {
			return unicode.IsLetter(r) || unicode.IsDigit(r)
		}) {
			n++
		}
	}
	return n
}

// Documents keep to their budgets, so that they stay as long as somebody reads them.
func TestDocumentsHaveBudgets(t *testing.T) {
	texts := documents(t)
	counts, all := map[string]int{}, 0
	for name, text := range texts {
		counts[name] = words(t, name, text, uncounted[name])
	}
	for _, name := range madeFromCode {
		if _, ok := counts[name]; !ok {
			t.Errorf("%s: is not there: take it out of madeFromCode", name)
		}
		delete(counts, name)
	}
	for name := range budgets {
		if _, ok := counts[name]; !ok {
			t.Errorf("%s: is not there: take it out of budgets", name)
		}
	}
	for _, n := range counts {
		all += n
	}
	const wayOut = "say it shorter, move tables into a .tsv beside the page (gad study --table " +
		"prints it), or take out what another page says"
	if all > allDocuments {
		t.Errorf("all documents have %d words, of %d: %s", all, allDocuments, wayOut)
	}
	for _, group := range together {
		sum := 0
		for _, name := range group.names {
			sum += counts[name]
			delete(counts, name)
		}
		if sum > group.most {
			t.Errorf("%s: %d words together, of %d: %s", strings.Join(group.names, ", "), sum,
				group.most, wayOut)
		}
	}
	for name, n := range counts {
		most := page
		if b, ok := budgets[name]; ok {
			most = b
		}
		if n > most {
			t.Errorf("%s: %d words, of %d: %s", name, n, most, wayOut)
		}
	}
}

// A page with a word too many is seen, and what a test writes is not counted.
func TestWords(t *testing.T) {
	text := "# A title\n\n| a | b-c |\n|---|---|\n| 1 | - |\n<!-- x -->\nmany many\n<!-- /x -->\nend\n"
	if n := words(t, "a.md", text, []string{"x"}); n != 6 {
		t.Errorf("%d words, want 6", n)
	}
	if n := words(t, "a.md", text, nil); n != 10 {
		t.Errorf("%d words with the part, want 10", n)
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// anchors returns the fragments that a document's headings have on the pages of a forge.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(link.ReplaceAllString(h[1], "")) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		found[b.String()] = true
	}
	return found
}

// A test that a document names is there. TestPaperNAME stands for all that begin so.
func TestDocumentsNameTests(t *testing.T) {
	var code strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		code.Write(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	declared, named := regexp.MustCompile(`(?m)^func (Test\w+)`), regexp.MustCompile("`(Test[A-Z]\\w*)`")
	tests := map[string]bool{"TestPaperNAME": true}
	for _, m := range declared.FindAllStringSubmatch(code.String(), -1) {
		tests[m[1]] = true
	}
	found := 0
	for name, text := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if found++; !tests[m[1]] {
				t.Errorf("%s: names %s: there is no such test", name, m[1])
			}
		}
	}
	if found < 100 {
		t.Errorf("%d tests are named: what names them is written otherwise", found)
	}
}

// A link of a document leads to a file of the repository, and to a heading that is there.
func TestDocumentLinks(t *testing.T) {
	texts := documents(t)
	links := 0
	for name, text := range texts {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			to := name
			if target != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(name), target))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link to %s: no such file", name, m[1])
			} else if fragment != "" && filepath.Ext(to) == ".md" &&
				!anchors(texts[to])[fragment] {
				t.Errorf("%s: link to %s: %s has no such heading", name, m[1], to)
			}
		}
	}
	if links < 200 {
		t.Errorf("%d links, want 200 or more", links)
	}
}

// The stages are a table of the code (trainer/config): a list of them by hand grows old with the
// next stage, as eight lists did.
func TestStagesAreNotListed(t *testing.T) {
	listed := regexp.MustCompile(`sft.*warmup.*train.*dpo`)
	for name, text := range documents(t) {
		for i, line := range strings.Split(text, "\n") {
			if listed.MatchString(line) && name != "doc/settings.md" && name != "doc/metrics.md" {
				t.Errorf("%s:%d: lists the stages: say every stage, or name those that differ",
					name, i+1)
			}
		}
	}
}
