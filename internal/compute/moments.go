package compute

import "slices"

// MomentBlock is the number of neighbouring moments that share a scale.
const MomentBlock = 256

// Blocks returns the number of scales of n moments.
func Blocks(n int) int { return (n + MomentBlock - 1) / MomentBlock }

// Moments are a map of 8-bit codes: a code c of a block whose scale is s stands for
// Value[c]*s. In a block of float32 x,
//
//	s = max_i |x_i|;  y_i = x_i/s;  c_i = the number of Mid that are at most y_i
//
// which is the code with the nearest value; the products and quotients are rounded to
// float32. A block of zeros has scale 0 and any codes, as new memory has. In Squares, which has
// no negative values, no x above zero gets the code of zero: AdamW divides by its root. If an x
// is not finite, the codes of its block are undefined.
//
// The maps are the dynamic ones of 8-bit optimizers (Dettmers et al., arXiv 2110.02861,
// section 2): a power of ten and, for each bit that the power leaves, half as long steps
// between its tenth and itself.
type Moments struct {
	Value [256]float32 // ascending, from -1 or 0 to 1
	Mid   [255]float32 // Mid[c] is half-way between Value[c] and Value[c+1]
}

// Signed is the map of first moments, Squares that of second moments.
var (
	Signed  = moments(true)
	Squares = moments(false)
)

// moments builds a map. For each power of ten from -6 to 0 its values are the middles of 1, 2, 4
// ... 64 equal parts of the power's last nine tenths, with both signs if signed, else of twice as
// many parts; and 0 and 1.
func moments(signed bool) *Moments {
	values := []float64{0, 1}
	power, parts := 1e-6, 1
	if !signed {
		parts = 2
	}
	for range 7 {
		for k := range parts {
			x := power * (0.1 + 0.9*(float64(k)+0.5)/float64(parts))
			if values = append(values, x); signed {
				values = append(values, -x)
			}
		}
		power, parts = 10*power, 2*parts
	}
	slices.Sort(values)
	m := new(Moments)
	for c, x := range values {
		m.Value[c] = float32(x)
	}
	for c := range m.Mid {
		m.Mid[c] = float32((float64(m.Value[c]) + float64(m.Value[c+1])) / 2)
	}
	return m
}

// Encode returns the code of y, an element divided by its block's scale. Backends compute the same
// codes in their own way.
func (m *Moments) Encode(y float32) uint8 {
	c := uint8(0)
	for c < 255 && m.Mid[c] <= y {
		c++
	}
	if c == 0 && m.Value[0] == 0 && y > 0 {
		c = 1
	}
	return c
}
