package ref

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"gad/internal/compute"
)

// The gated delta rule and its convolution, forward and backward, against transformers' Qwen3.5
// (testdata/golden/delta.json), which computes in float32: in chunks, and token by token.
func TestDeltaAgainstTransformers(t *testing.T) {
	data, err := os.ReadFile("../../../testdata/golden/delta.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		compute.DeltaShape
		J       int
		Lengths []int32
		Tensors map[string][]float64
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	s, p := file.DeltaShape, compute.Pack{Start: []int32{0}}
	for _, n := range file.Lengths {
		p.Start = append(p.Start, p.Start[len(p.Start)-1]+n)
	}
	get := func(name string) compute.Tensor {
		return compute.View(&memory{data: file.Tensors[name]})
	}
	near := func(name string, got compute.Tensor, tol float64) {
		t.Helper()
		want, most := file.Tensors[name], 0.0
		compute.CheckLen("transformers", name, got, len(want))
		for _, x := range want {
			most = max(most, math.Abs(x))
		}
		for i, x := range want {
			if g := F64(got)[i]; math.Abs(g-x) > tol*most || most == 0 {
				t.Errorf("%s[%d]: %v, transformers %v (largest %.3g)", name, i, g, x, most)
				return
			}
		}
	}
	b, none := New(), compute.States{}
	x, a, beta, do := get("x"), get("a"), get("b"), get("do")
	y, o := zeros(x.Len()), zeros(do.Len())
	param := func(name string, rows, cols int) *compute.Param {
		return &compute.Param{Rows: rows, Cols: cols, W: get(name), G: zeros(rows * cols)}
	}
	w, A, dt := param("w", s.Width(), file.J), param("A", 1, s.H), param("dt", 1, s.H)
	b.SiLUConv(y, x, w, p, none)
	near("y", y, 1e-6)
	b.GatedDelta(o, y, a, beta, A, dt, s, p, none)
	near("recurrent", o, 2e-6)
	near("chunked", o, 2e-6)
	dy, dx, da, db := zeros(x.Len()), zeros(x.Len()), zeros(a.Len()), zeros(a.Len())
	b.GatedDeltaGrad(dy, da, db, do, o, y, a, beta, A, dt, s, p)
	b.SiLUConvGrad(dx, w, dy, x, p)
	near("dx", dx, 1e-5)
	near("da", da, 1e-5)
	near("db", db, 1e-5)
	near("dA", A.G, 1e-5)
	near("ddt", dt.G, 1e-5)
	near("dw", w.G, 1e-5)
}
