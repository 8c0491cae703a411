package cuda

import (
	"strings"
	"testing"

	"gad/internal/compute"
)

func TestPrecision(t *testing.T) {
	for _, c := range []struct {
		precision string
		narrow    int64
	}{{"", 2}, {BF16, 2}, {F32, 4}} {
		o := Options{Precision: c.precision}
		if got := o.Element(compute.Narrow); got != c.narrow || o.Element(compute.Wide) != 4 {
			t.Errorf("%q: elements of %d and %d bytes, want %d and 4", c.precision, got,
				o.Element(compute.Wide), c.narrow)
		}
		for class, want := range map[compute.Class][2]int64{
			compute.Wide: {4, c.narrow % 4}, compute.Narrow: {c.narrow, 0},
			compute.Frozen: {c.narrow, 0}, compute.Master: {4, 0}, compute.Code: {1, 0},
			compute.Wide | compute.Host: {0, 0}, compute.Code | compute.Host: {0, 0},
			compute.Q8: {34, 0}, compute.Q4: {18, 0}, // of a block
		} {
			for _, lookup := range []bool{false, true} {
				if got := [2]int64{o.Element(class), o.DerivedBytes(class, lookup, 1, 1)}; got != want {
					t.Errorf("%q: %v: %d bytes an element and %d beside it, want %d", c.precision,
						class, got[0], got[1], want)
				}
			}
		}
	}
	if _, err := (Options{Precision: "f16"}).precision(); err == nil || !strings.Contains(err.Error(), `"f16"`) {
		t.Errorf("precision f16: %v", err)
	}
}

// The head's chunks cover rows and vocabulary, begin where the statistics' tiles
// do, and keep to the limit unless one row's chunk is beyond it.
func TestHeadLimits(t *testing.T) {
	for _, l := range []limits{headLimits.stats, headLimits.grad, headLimits.sample,
		{rows: 3, vocab: headTile, logits: 1 << 16}} {
		if l.vocab%headTile != 0 {
			t.Fatalf("%+v: chunks are not of whole tiles", l)
		}
		for _, R := range []int{0, 1, 2, 3, 64, 8191, 8192, 8193, 100000} {
			for _, V := range []int{1, 2, 7, 4096, 8192, 8193, 32000, 151936, 262144} {
				c := l.chunks(R, V)
				if c.rows < 1 || c.rows > l.rows || c.cols < 1 || c.cols > V || c.cols < V &&
					c.cols%l.vocab != 0 {
					t.Errorf("%+v: chunks of %d rows and %d tokens: %+v", l, R, V, c)
				}
				if int64(4*c.rows*c.ld) > l.logits && c.cols > l.vocab {
					t.Errorf("%+v: chunks of %d rows and %d tokens: %+v is beyond the limit", l, R,
						V, c)
				}
				w := l.whole(R, V)
				if w.rows < 1 || w.rows > l.rows || w.cols != V ||
					int64(4*w.rows*w.ld) > l.logits && w.rows > 1 {
					t.Errorf("%+v: whole rows of %d and %d tokens: %+v", l, R, V, w)
				}
				for _, c := range []chunks{c, w} {
					if c.ld < c.cols || c.ld%8 != 0 {
						t.Errorf("%+v: rows of %d logits are %d apart", l, c.cols, c.ld)
					}
				}
			}
		}
	}
}

// What the head's operations keep at the sizes of Qwen2.5-1.5B: LogProb no more than its
// gradient, and Sample reads the weights once for as many rows as usual.
func TestHeadScratch(t *testing.T) {
	const D, V = 1536, 151936
	for _, R := range []int{100, 1024, 2048, 16384} {
		c := headLimits.stats.chunks(R, V)
		if logits := 4 * c.rows * c.ld; logits > 256<<20 || R > 100 && logits < 192<<20 {
			t.Errorf("LogProb, %d rows: logits of %d bytes: %+v", R, logits, c)
		}
	}
	if c := headLimits.sample.whole(256, V); c.rows != 256 || c.cols != V {
		t.Errorf("Sample, 256 rows: %+v", c)
	}
	w := compute.Work{Tokens: 16384, Rows: 16384, Hidden: D, Vocab: V, Heads: 12, HeadDim: 128}
	frozen := Options{}.Scratch(w)
	if frozen < 256<<20 || frozen > 288<<20 {
		t.Errorf("scratch of a model without gradients: %d bytes", frozen)
	}
	w.Trainable = true
	if trained := (Options{}).Scratch(w); trained < 384<<20 || trained > 512<<20 {
		t.Errorf("scratch of a trained model: %d bytes", trained)
	}
}

// Blocks of column sums cover the rows, and are no more than a grid, or one
// block's patience, allows.
func TestSumRows(t *testing.T) {
	for _, N := range []int{0, 1, 63, 64, 65, 16384, 1 << 22, 1 << 27} {
		for _, D := range []int{1, 7, 64, 128, 896, 3584, 18944} {
			if rows := sumRows(N, D); rows < 64 || blocks(N, rows) > 1024 ||
				blocks(N, rows)*rows < N {
				t.Errorf("%d rows of %d: blocks of %d", N, D, rows)
			}
		}
	}
}

// Blocks of a norm's pass cover the rows, are at most so many, and need no more memory than is
// planned for more rows.
func TestNormRows(t *testing.T) {
	for _, D := range []int{1, 64, 256, 257, 1536, onePassNorm} {
		planned := int64(0)
		for _, N := range []int{1, 4, 31, 33, 4095, 4096, 4097, 8193, 1 << 16, 1<<16 + 1, 1 << 27} {
			rows := normRows(N, D)
			if n := blocks(N, rows); n > normParts || n*rows < N {
				t.Errorf("%d rows of %d: %d blocks of %d", N, D, n, rows)
			}
			bytes := normPartBytes(N, D)
			if bytes < 4*int64(blocks(N, rows)*D) || bytes < planned {
				t.Errorf("%d rows of %d: %d bytes, and %d for fewer", N, D, bytes, planned)
			}
			planned = bytes
		}
	}
}
