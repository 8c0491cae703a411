//go:build nvidia

package cuda

import (
	"fmt"
	"math"
	"testing"

	"gad/internal/compute"
	"gad/internal/compute/ref"
)

// Every key of a long row counts, once: one-hot values tell which one is missing.
// With queries of zeros all weights are equal and all sums exact, and so the result is
// known to the bit: the number of positions that have an element, over the length,
// rounded. With random queries the result is the reference's, to within a share of
// its own size, where a position's part is several times that.
func TestLongDecode(t *testing.T) {
	lengths := []int{1, 15, 16, 17, 511, 512, 513, 1025}
	for _, a := range []compute.AttnShape{{H: 2, K: 1, E: 64}, {H: 4, K: 2, E: 128}} {
		t.Run(fmt.Sprintf("H=%d,K=%d,E=%d", a.H, a.K, a.E), func(t *testing.T) {
			a.Scale = 1 / math.Sqrt(float64(a.E))
			s := set(t, start(t, Options{}))
			const page = 16
			pages := 0
			for _, n := range lengths {
				pages += blocks(n, page)
			}
			// Position p of a row has a one in element p%E of its value, under every head.
			R, width := len(lengths), a.K*a.E
			keys, values := s.normal(pages*page*width), s.normal(pages*page*width)
			list := compute.Pages{PageTokens: page}
			order := s.rng.Perm(pages)
			for _, n := range lengths {
				var table []int32
				for p := range n {
					if p%page == 0 {
						table = append(table, int32(order[0]))
						order = order[1:]
					}
					row := (int(table[p/page])*page + p%page) * width
					clear(values[row : row+width])
					for k := range a.K {
						values[row+k*a.E+p%a.E] = 1
					}
				}
				list.Table, list.Len = append(list.Table, table), append(list.Len, int32(n))
			}
			rounded := func(host []float32) []float32 { return s.down(s.put(compute.Narrow, host)) }
			keys, values = rounded(keys), rounded(values)
			decode := func(b compute.Backend, q []float32) []float32 {
				put := func(host []float32) compute.Tensor {
					x, err := b.Alloc("test", compute.Narrow, len(host))
					if err != nil {
						t.Fatal(err)
					}
					b.Upload(x, host)
					return x
				}
				o := put(make([]float32, R*a.H*a.E))
				b.AttentionDecode(o, put(q), put(keys), put(values), a, list)
				host := make([]float32, o.Len())
				b.Download(host, o)
				if err := b.Sync(); err != nil {
					t.Fatal(err)
				}
				return host
			}

			got := decode(s.b, make([]float32, R*a.H*a.E))
			want := make([]float32, len(got))
			for r, n := range lengths {
				for i := range a.H * a.E {
					e := i % a.E
					want[r*a.H*a.E+i] = float32(blocks(max(0, n-e), a.E)) / float32(n)
				}
			}
			s.same("equal weights", got, rounded(want))

			q := rounded(s.normal(R * a.H * a.E))
			got, want = decode(s.b, q), decode(ref.New(), q)
			for r, n := range lengths {
				o, w := got[r*a.H*a.E:(r+1)*a.H*a.E], want[r*a.H*a.E:(r+1)*a.H*a.E]
				size := rms(w)
				for i := range o {
					if off := math.Abs(float64(o[i] - w[i])); !(off <= 0.01*size+math.Abs(float64(w[i]))/128) {
						t.Errorf(
							"%d positions: o[%d] is %v, want %v: off by %.2g of the output's size",
							n, i, o[i], w[i], off/size)
						break
					}
				}
			}
		})
	}
}

// rms is the root of x's mean square.
func rms(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum / float64(len(x)))
}
