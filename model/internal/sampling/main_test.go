package sampling_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/internal/compute/ref"
	"gad/internal/hostile"
	"gad/model"
)

func TestMain(m *testing.M) { os.Exit(hostile.Main(m)) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// on runs f on a backend.
func on(t *testing.T, name string, be compute.Backend, f func(t *testing.T, be compute.Backend)) {
	t.Run(name, func(t *testing.T) { f(t, be) })
	must(t, be.Close())
}

// processor returns the CPU.
func processor(t *testing.T, o cpu.Options) compute.Backend {
	t.Helper()
	be, err := cpu.New(o)
	must(t, err)
	return be
}

// onBackends runs f on the reference backend and on the CPU.
func onBackends(t *testing.T, f func(t *testing.T, be compute.Backend)) {
	on(t, "ref", ref.New(), f)
	on(t, "cpu", processor(t, cpu.Options{}), f)
}

// narrowly runs f on the CPU in bfloat16: as the machine does it best, and by rounding what the
// portable kernels multiply.
func narrowly(t *testing.T, f func(t *testing.T, be compute.Backend)) {
	for _, variant := range []string{"", "portable"} {
		be := processor(t, cpu.Options{Precision: cpu.BF16, Variant: variant})
		on(t, be.Name()[4:], be, f)
	}
}

// load loads a model that scripts/fixtures_model.py has written.
func load(t testing.TB, be compute.Backend, name string) *model.Model {
	t.Helper()
	m, err := model.Load(be, filepath.Join("../../../testdata/model", name), model.Options{})
	must(t, err)
	return m
}

func sampleOptions() model.SampleOptions {
	return model.SampleOptions{N: 3, MaxNew: 20, Sampling: model.Sampling{Temperature: 0.9},
		EOS: []int32{5, 11, 23, 40, 61, 88}, Seed: 42, Step: 7}
}

func samplePrompts() (prompts [][]int32, rows []uint64) {
	for i, n := range []int{4, 17, 1, 32, 6} {
		var ids []int32
		for j := range n {
			ids = append(ids, int32((7*i*i+5*j+j*j*(i+1))%97))
		}
		prompts = append(prompts, ids)
	}
	return prompts, []uint64{3, 0, 1 << 40, 9, 4}
}

func sameCompletions(t *testing.T, what string, got, want [][]model.Completion) {
	t.Helper()
	bits := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
	for p := range want {
		for s, w := range want[p] {
			g := got[p][s]
			if !slices.Equal(g.IDs, w.IDs) || g.Truncated != w.Truncated ||
				!slices.EqualFunc(g.Logp, w.Logp, bits) {
				t.Fatalf("%s: prompt %d: sample %d: %+v, want %+v", what, p, s, g, w)
			}
		}
	}
}
