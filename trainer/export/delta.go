package export

import (
	"math"
	"slices"
	"strings"

	"gad/internal/gguf"
	"gad/model"
)

// deltaNames has llama.cpp's names of the tensors of a gated delta rule, behind "linear_attn.".
var deltaNames = map[string]string{"in_proj_qkv.weight": "attn_qkv.weight",
	"in_proj_z.weight": "attn_gate.weight", "in_proj_a.weight": "ssm_alpha.weight",
	"in_proj_b.weight": "ssm_beta.weight", "conv1d.weight": "ssm_conv1d.weight",
	"norm.weight": "ssm_norm.weight", "out_proj.weight": "ssm_out.weight", "A_log": "ssm_a",
	"dt_bias": "ssm_dt.bias"}

// deltaName returns llama.cpp's name of a tensor of a gated delta rule; "" of others.
func deltaName(name string) string {
	before, part, _ := strings.Cut(name, ".linear_attn.")
	to := deltaNames[part]
	if to == "" {
		return ""
	}
	return "blk." + before[strings.LastIndexByte(before, '.')+1:] + "." + to
}

// deltaRead returns a reader of a tensor of a gated delta rule as llama.cpp's converter writes it:
// -exp(A_log), and value heads in another order. In a folder the value heads of a key head follow
// one another; in a file the first of each key head do, then the second of each
// (_LinearAttentionVReorderBase of the converter).
func deltaRead(x model.Mixer, w model.Weight) func([]float32, int) error {
	_, part, _ := strings.Cut(w.Name, ".linear_attn.")
	each, width, first := x.ValueHeads/x.KeyHeads, 1, 0
	switch part {
	case "in_proj_qkv.weight", "conv1d.weight":
		width, first = x.ValueDim, 2*x.KeyHeads*x.KeyDim
	case "in_proj_z.weight", "out_proj.weight":
		width = x.ValueDim
	case "norm.weight":
		return w.Read
	case "A_log":
		w.Read = negativeExp(w.Read)
	}
	// from returns the folder's row, or of out_proj its column, of one of the file
	from := func(i int) int {
		if i < first {
			return i
		}
		head, in := (i-first)/width, (i-first)%width
		return first + (head%x.KeyHeads*each+head/x.KeyHeads)*width + in
	}
	cols := 1
	for _, n := range w.Shape[1:] {
		cols *= n
	}
	row := make([]float32, cols)
	return func(dst []float32, lo int) error {
		for len(dst) > 0 {
			at, col := lo/cols, lo%cols
			n := min(cols-col, len(dst))
			if part != "out_proj.weight" {
				if err := w.Read(dst[:n], from(at)*cols+col); err != nil {
					return err
				}
			} else {
				if err := w.Read(row, at*cols); err != nil {
					return err
				}
				for i := range n {
					dst[i] = row[from(col+i)]
				}
			}
			dst, lo = dst[n:], lo+n
		}
		return nil
	}
}

// negativeExp returns a reader of -exp of read's values.
func negativeExp(read func([]float32, int) error) func([]float32, int) error {
	return func(dst []float32, lo int) error {
		err := read(dst, lo)
		for i, x := range dst {
			dst[i] = float32(-math.Exp(float64(x)))
		}
		return err
	}
}

// deltaPairs returns the metadata of a model with layers of the gated delta rule.
func deltaPairs(c model.Config) (pairs []gguf.Pair) {
	x, rotated := c.Mixer, c.HeadDim/2
	if c.RotaryDim > 0 {
		rotated = c.RotaryDim / 2
	}
	for _, p := range []struct {
		key   string
		value int
	}{{"conv_kernel", x.Taps}, {"state_size", x.KeyDim}, {"group_count", x.KeyHeads},
		{"time_step_rank", x.ValueHeads}, {"inner_size", x.ValueHeads * x.ValueDim}} {
		pairs = append(pairs, gguf.Pair{Key: "qwen35.ssm." + p.key, Value: uint32(p.value)})
	}
	// Positions of images have parts for time, height and width, which alternate by pair; those of
	// text are equal, but a pair of no part would not rotate.
	sections := []int32{int32(rotated+2) / 3, int32(rotated+1) / 3, int32(rotated) / 3, 0}
	pairs = append(pairs, gguf.Pair{Key: "qwen35.rope.dimension_sections", Value: sections},
		gguf.Pair{Key: "qwen35.attention.recurrent_layers", Value: x.Layers})
	// Earlier versions of llama.cpp read the interval alone.
	if n := slices.Index(x.Layers, false) + 1; n > 0 {
		for i, mixed := range x.Layers {
			if mixed == ((i+1)%n == 0) {
				return pairs
			}
		}
		pairs = append(pairs, gguf.Pair{Key: "qwen35.full_attention_interval", Value: uint32(n)})
	}
	return pairs
}
