package model

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

var update = flag.Bool("update", false, "write the table of families of doc/models.md")

// familiesTable returns the table of families of doc/models.md.
func familiesTable(t *testing.T) string {
	t.Helper()
	folders := map[string][]string{}
	for _, name := range slices.Concat(lmFolders, scorerFolders) {
		c, err := ReadConfig(fixtures + "/" + name)
		must(t, err)
		folders[c.Architecture] = append(folders[c.Architecture], "`"+name+"`")
	}
	var b strings.Builder
	b.WriteString(
		"| family | models | `model_type` | beside attention, SwiGLU and norms before | GGUF | device | compared with `transformers` |\n|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(architecture.Families)) {
		f := architecture.Families[name]
		gguf := files.GGUFArchitectures(f.ModelType)
		if len(gguf) == 0 || len(folders[name]) == 0 {
			t.Errorf("%s: no GGUF files %q, or no folder %q", name, gguf, folders[name])
		}
		const device = "CPU, GPU"
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s | %s | %s |\n", name, f.Models, f.ModelType,
			strings.Join(particulars(f), "; "), strings.Join(gguf, ", "), device,
			strings.Join(folders[name], ", "))
	}
	return b.String()
}

// particulars returns what distinguishes a family from Llama.
func particulars(f architecture.Family) (list []string) {
	s := f.Spec
	for _, x := range []struct {
		has  bool
		what string
	}{
		{s.PreNorm && s.PostNorm, "norms before and behind"},
		{!s.PreNorm, "norms behind"},
		{s.QKVBias, "biases on q, k, v"},
		{s.QKNorm == architecture.HeadNorm, "q/k norm by head"},
		{s.QKNorm == architecture.WidthNorm, "q/k norm over all heads"},
		{s.Act == compute.GELUTanh, "GeGLU"},
		{f.Windows == architecture.EveryLayer, "a window of all layers"},
		{f.Windows == architecture.LayerByType, "windows by layer"},
		{f.LocalRope == architecture.OwnBase, "two RoPE bases"},
		{f.LocalRope == architecture.SameBase, "RoPE scaling without the window's layers"},
		{f.NoRope == architecture.ByLayer, "layers without RoPE"},
		{f.NoRope == architecture.AllOrNone, "with RoPE or without"},
		{f.Partial > 0, "heads that rotate in part"},
		{f.LongRope, "longrope"},
		{f.QueryScale, "yarn; queries scaled by position"},
		{f.Multipliers, "multipliers of embedding, attention, residuals, logits"},
		{f.Caps, "soft caps of scores and logits"},
		{f.Hybrid, "layers all attention, dense"},
		{f.Mixer == architecture.ShortConv, "layers of a gated short convolution"},
		{f.Mixer == architecture.DeltaRule, "layers of the gated delta rule"},
		{s.OutGate, "attention's output gated"},
		{slices.ContainsFunc(f.Fused, func(x architecture.Fused) bool {
			return len(x.Parts) > 1 &&
				!x.ByHead
		}),
			"fused projections"},
	} {
		if x.has {
			list = append(list, x.what)
		}
	}
	return list
}

// The table of families of doc/models.md follows the table of the code.
func TestDocumentsAreTheFamilies(t *testing.T) {
	const path, begin, end = "../doc/models.md", "<!-- families -->\n", "<!-- /families -->"
	b, err := os.ReadFile(path)
	must(t, err)
	before, rest, ok := strings.Cut(string(b), begin)
	was, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s: no part between %q and %q", path, begin, end)
	}
	table := familiesTable(t)
	if *update {
		must(t, os.WriteFile(path, []byte(before+begin+table+end+after), 0o644))
	} else if was != table {
		t.Errorf("%s: is not the table: go test ./model -run TestDocumentsAre -update", path)
	}
}
