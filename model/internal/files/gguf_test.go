package files

import (
	"errors"
	"math"
	"path/filepath"
	"reflect"
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

// Layers that draft tokens stand behind the others, and are taken off; the width of a value head
// follows from that of all.
func TestQwen35Draft(t *testing.T) {
	c := map[string]any{"num_hidden_layers": 5.0, "mtp": 1.0, "inner": 32.0,
		"linear_num_value_heads": 4.0, "full_attention_interval": 4.0,
		"layer_types": []string{"linear_attention", "full_attention", "linear_attention",
			"full_attention", "full_attention"}}
	if err := finishQwen35(c); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"num_hidden_layers": 4.0, "linear_num_value_heads": 4.0,
		"linear_value_head_dim": 8.0, "layer_types": []string{"linear_attention", "full_attention",
			"linear_attention", "full_attention"}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%v, want %v", c, want)
	}
	if blockOf("blk.4.nextn.eh_proj.weight") != 4 || blockOf("token_embd.weight") != -1 {
		t.Error("numbers of blocks")
	}
	for _, bad := range []map[string]any{{"num_hidden_layers": 1.0, "mtp": 1.0},
		{"num_hidden_layers": 2.0}, {"num_hidden_layers": 2.0, "inner": 8.0}} {
		if finishQwen35(bad) == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}
