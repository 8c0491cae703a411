package doctor

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/vfs"
	"gad/model"
)

// Two models whose weights differ in one layer and in the head by known shares: distances by hand,
// from the tensors as they were made, in both orders; a model and itself; other shapes.
func TestCompare(t *testing.T) {
	be, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	shape := model.Config{Architecture: "Llama", Vocab: 48, Hidden: 16, Layers: 3, Heads: 2,
		KVHeads: 1, HeadDim: 8, FFN: 32, MaxPosition: 64, RMSEps: 1e-6, RopeTheta: 10000,
		DType: "float32"}
	write := func(c model.Config, edit func(name string, w []float32)) string {
		m, err := model.New(be, c, model.Options{Kind: model.LM, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, p := range m.Params() {
			w := make([]float32, p.Len())
			be.Download(w, p.W)
			edit(p.Name, w)
			be.Upload(p.W, w)
		}
		dir := t.TempDir()
		if err := m.Save(func(name string) (io.WriteCloser, error) {
			return os.Create(filepath.Join(dir, name))
		}, "float32", 1<<30); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	a := write(shape, func(string, []float32) {})
	b := write(shape, func(name string, w []float32) {
		for i := range w {
			switch {
			case strings.Contains(name, "layers.1."):
				w[i] *= 1.25 // a quarter away, whatever the weights are
			case name == "lm_head.weight":
				w[i] = 0
			}
		}
	})
	x, err := Compare(vfs.OS, a, b)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name string
		away float64
	}{{"embedding", 0}, {"layer 0", 0}, {"layer 1", 0.25}, {"layer 2", 0}, {"last norm", 0},
		{"lm_head", 1}}
	var diff, size float64
	for i, d := range x.Layers {
		if len(x.Layers) != len(want) || d.Name != want[i].name ||
			math.Abs(d.Relative()-want[i].away) > 1e-6 {
			t.Fatalf("layers %+v, want %v", x.Layers, want)
		}
		diff, size = diff+d.Diff, size+d.Size
	}
	if all := math.Sqrt(diff / size); math.Abs(x.All.Relative()-all) > 1e-12 ||
		x.All.Tensors != 30 {
		t.Errorf("all: %g of %d tensors, want %g of 30", x.All.Relative(), x.All.Tensors, all)
	}
	for _, line := range []string{"embedding  0: equal\n", "layer 1    0.25\n", "lm_head    1\n"} {
		if !strings.Contains(x.String(), line) {
			t.Errorf("prints\n%swithout %q", x, line)
		}
	}
	if back, err := Compare(vfs.OS, b, a); err != nil ||
		math.Abs(back.Layers[2].Relative()-0.2) > 1e-6 ||
		!strings.Contains(back.String(), "lm_head    A is all zeros\n") {
		t.Errorf("the other way round: %v\n%s", err, back)
	}
	if same, err := Compare(vfs.OS, a, a); err != nil || same.All.Diff != 0 ||
		strings.Count(same.String(), "0: equal") != 7 {
		t.Errorf("itself: %v\n%s", err, same)
	}
	wide := shape
	wide.FFN = 40
	short := shape
	short.Layers = 2
	for dir, say := range map[string]string{
		write(wide, func(string, []float32) {}):  `"model.layers.0.mlp.down_proj.weight" is [16 32] in the first and [16 40] in the second: give two models of one shape`,
		write(short, func(string, []float32) {}): `is in the first alone: give two models of one shape`,
		t.TempDir():                              "contains no weights: give a run, a checkpoint or a model folder",
		filepath.Join(a,
			"nowhere"): "no such folder: give a run, a checkpoint or a model folder",
		filepath.Join(a,
			"config.json"): "is a file: give a run, a checkpoint or a model folder",
	} {
		if _, err := Compare(vfs.OS, a, dir); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v, want %q", dir, err, say)
		}
	}
}
