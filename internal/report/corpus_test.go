package report

import (
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/vfs"
)

var update = flag.Bool("update", false, "rewrite golden files")

// ill are the runs of testdata/runs/sick and the sign that names each sickness.
// testdata/runs/README.md says how each was made.
var ill = map[string]string{
	"game-lr5e-4":       "right answers are being lost",
	"game-lr2e-3-check": "collapse after an update",
	"game-lr3e-3":       "worse than where it began",
	"game-lr2e-2":       "answers become alike",
	"game-lr5e-3":       "clip acts on most tokens",
	"tutorial-game":     "worse than where it began",
	"game-lr1e-9":       "the policy does not move",
	"game-kl10":         "KL dominates the loss",
	"game-chance":       "discriminator at chance",
	"game-bang":         "discriminator always right",
	"game-ahead":        "the discriminator is ahead",
	"game-cold":         "advantages vanish",
	"game-nan":          "numerical breakdown",
	"length-game":       "answers grow too long",
	"smol-cut":          "no pairs",
	"warm-random":       "few pairs",
	"warm-criticlr0.1":  "discriminator has not started",
	"warm-disturbed":    "discriminator was disturbed by a large learning rate",
	"few-warm-steady":   "warm-up ended before the discriminator had learned",
	"warm-max":          "warm-up ended before the discriminator had learned",
	"real-sft-lr":       "SFT loss rises",
	"real-game-lr":      "worse than where it began",
	"real-cut":          "no pairs",
	"sft-overfit":       "overfitting",
	"sft-lr":            "SFT loss rises",
	"opd-apart":         "student and teacher do not meet",
	"opd-halved":        "impossible scores from the teacher",
}

// passing names a sign that is true of a healthy run for a while: a warm-up whose discriminator had
// a loss above 1 for six steps of its time alone, and learned.
var passing = map[string]string{"warm-steady": "discriminator is worse than guessing"}

// readRun reads a compressed metrics.jsonl of the corpus.
func readRun(t *testing.T, path string) []Row {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var rows []Row
	for line := range strings.Lines(string(raw)) {
		r, err := parseRow([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rows = append(rows, r)
	}
	return rows
}

// The signs against runs that were really made: after each step of a healthy run there is no
// sign, and each sick run is named by its own. The table of all signs in all runs, with the
// step at which each is first named, is compared with a file, so that a change of a rule is
// seen in every run (go test ./internal/report -run Corpus -update rewrites it).
func TestCorpus(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "testdata", "runs")
	var table strings.Builder
	for _, kind := range []string{"healthy", "sick"} {
		paths, err := filepath.Glob(filepath.Join(root, kind, "*.jsonl.gz"))
		if err != nil || len(paths) < 12 {
			t.Fatalf("%s: %d runs, %v: want at least 12", kind, len(paths), err)
		}
		for _, path := range paths {
			name := strings.TrimSuffix(filepath.Base(path), ".jsonl.gz")
			rows := readRun(t, path)
			first, last := map[string]int{}, map[string]int{}
			for n := range rows {
				found, _ := Diagnose(rows[:n+1])
				for _, f := range found {
					if _, ok := first[f.Name]; !ok {
						first[f.Name] = rows[n].Step
					}
					last[f.Name] = rows[n].Step
				}
			}
			fmt.Fprintf(&table, "%s %s, %d steps\n", kind, name, len(rows))
			for _, s := range Signs() {
				at, ok := first[s.Name]
				if !ok {
					continue
				}
				gone := ""
				if end := rows[len(rows)-1].Step; last[s.Name] < end {
					gone = fmt.Sprintf(", last at %d", last[s.Name])
				}
				fmt.Fprintf(&table, "    %s: step %d%s\n", s.Name, at, gone)
			}
			delete(first, passing[name])
			switch want, known := ill[name]; {
			case kind == "healthy" && len(first) > 0:
				t.Errorf("healthy %s: false alarm: %v", name, first)
			case kind == "sick" && !known:
				t.Errorf("sick %s: is not in the table of this test", name)
			case kind == "sick" && first[want] == 0:
				t.Errorf("sick %s: not named %q; found %v", name, want, first)
			case kind == "sick":
				t.Logf("%-22s %s: step %d of %d", name, want, first[want], len(rows))
			}
			if data, err := os.ReadFile(filepath.Join(root, "README.md")); err != nil ||
				!strings.Contains(string(data), "`"+name+"`") {
				t.Errorf("%s: testdata/runs/README.md does not say how it was made (%v)", name, err)
			}
		}
	}
	path := filepath.Join(root, "signs.txt")
	if *update {
		if err := vfs.WriteFile(vfs.OS, path, []byte(table.String())); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || string(want) != table.String() {
		t.Errorf("testdata/runs/signs.txt is not what the signs say now (%v): read the difference, then -update:\n%s", err, table.String())
	}
	for name := range ill {
		if _, err := os.Stat(filepath.Join(root, "sick", name+".jsonl.gz")); err != nil {
			t.Errorf("%s: is in the table and not in testdata/runs/sick: %v", name, err)
		}
	}
}
