package export

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gad/internal/gguf"
	"gad/internal/gguf/gguftest"
	"gad/model"
	"gad/trainer/modeltest"
)

// A file of Qwen3.5 has the tensors, and the metadata of the gated delta rule, that llama.cpp's
// converter wrote of the same folder.
func TestGGUFOfDeltaRule(t *testing.T) {
	be := modeltest.Backend(t)
	m, err := model.Load(be, "../../testdata/model/qwen3_5", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	cfg := m.Config()
	cfg.Vocab = max(cfg.Vocab, modeltest.Tokenizer(t).Size())
	pairs, err := pairsOf(cfg, modeltest.Tokenizer(t), "x", "f16")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	file := gguf.File{Pairs: pairs, Tensors: ggufTensors(cfg, m.Weights(), gguf.F32)}
	if err := file.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := gguftest.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile("../../testdata/gguf/qwen3_5.gguf")
	if err != nil {
		t.Fatal(err)
	}
	want, err := gguftest.Parse(whole)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Tensors) != len(want.Tensors) {
		t.Errorf("%d tensors, expected %d", len(got.Tensors), len(want.Tensors))
	}
	for name, w := range want.Tensors {
		x, ok := got.Tensors[name]
		if !ok || !slices.Equal(x.Shape, w.Shape) || x.Type != w.Type {
			t.Errorf("%s: %v of type %d, expected %v of type %d", name, x.Shape, x.Type, w.Shape, w.Type)
			continue
		}
		p, q := x.Values(), w.Values()
		for i := range q { // exp of another library
			if d := math.Abs(float64(p[i] - q[i])); d > 0 && !(strings.HasSuffix(name, "ssm_a") &&
				d < 1e-6) {
				t.Errorf("%s: element %d: %g, expected %g", name, i, p[i], q[i])
				break
			}
		}
	}
	for key, w := range want.Pairs {
		for _, part := range []string{".ssm.", ".rope.", ".recurrent_layers", "full_attention_interval",
			".attention.", ".block_count"} {
			if strings.Contains(key, part) && !reflect.DeepEqual(got.Pairs[key], w) {
				t.Errorf("%s: %v, expected %v", key, got.Pairs[key], w)
			}
		}
	}
}

// What llama.cpp computes otherwise is refused by name.
func TestGGUFRefusesDeltaRule(t *testing.T) {
	cfg, err := model.ReadConfig(filepath.Join("../../testdata/model", "qwen3_5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*model.Config)
		want   string
	}{
		{func(c *model.Config) { c.Mixer.ValueDim = 6 },
			"linear_key_head_dim 8 and linear_value_head_dim 6"},
		{func(c *model.Config) { c.Mixer = model.Mixer{} }, "linear_key_head_dim 0"},
		{func(c *model.Config) { c.Mixer.Taps = 1 }, "a convolution of 1 token"},
		{func(c *model.Config) { c.RMSEps = 1e-5 }, "rms_norm_eps 1e-05"},
	} {
		other := cfg
		c.change(&other)
		if err := checkSupported(other); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
}
