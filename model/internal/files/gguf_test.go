package files

import (
	"errors"
	"math"
	"path/filepath"
	"testing"

	"gad/internal/gguf"
)

// Every architecture of the table has a fixture, and maps a tensor of such a model to its name in
// Hugging Face folders.
func TestGGUFNames(t *testing.T) {
	seen := map[string]bool{}
	fixtures, err := filepath.Glob("../../../testdata/gguf/*.gguf")
	if err != nil || len(fixtures) == 0 {
		t.Fatal("no fixtures", err)
	}
	for _, path := range fixtures {
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		arch, _, err := f.Text("general.architecture")
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		seen[arch] = true
	}
	for arch, a := range ggufArchs {
		if !seen[arch] {
			t.Errorf("no fixture of architecture %s", arch)
		}
		want := "model.layers.7.mlp.down_proj.weight"
		if a.convs { // LFM2's folders have other names
			want = "model.layers.7.feed_forward.w2.weight"
		}
		if got := a.hfName("blk.7.ffn_down.weight"); got != want {
			t.Errorf("%s: %s", arch, got)
		}
	}
	for _, name := range []string{"", ".", "blk", "blk.", "blk..", "blk.0.",
		"blk.0.token_embd.weight", "attn_q.weight", "blk.0.attn_q", "weight"} {
		if got := ggufArchs["llama"].hfName(name); got != name {
			t.Errorf("%q became %q", name, got)
		}
	}
}

// Heads that cannot be rotated in pairs are refused, whoever asks for the tensors first.
func TestPairs(t *testing.T) {
	for _, bad := range []float64{0, 1, 7, -2, 2.5, 1 << 11, math.NaN(), math.Inf(1)} {
		if n, err := pairs(bad); err == nil {
			t.Errorf("heads of %g elements: %d", bad, n)
		}
	}
	if n, err := pairs(64); n != 64 || err != nil {
		t.Errorf("heads of 64 elements: %d, %v", n, err)
	}
}
