package compute

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// Each map has 256 values: 0 and 1, ascending, and negative ones, but for -1, where there are
// signs. Between two powers of ten they are equally far from one another, and half as far as
// in the decade below, as a share of the power. Every value is encoded as itself.
func TestMoments(t *testing.T) {
	for name, m := range map[string]*Moments{"first": Signed, "second": Squares} {
		for c := 1; c < 256; c++ {
			if m.Value[c] <= m.Value[c-1] || m.Mid[c-1] <= m.Value[c-1] ||
				m.Mid[c-1] >= m.Value[c] {
				t.Errorf("%s: values %v and %v, and %v between them: not ascending", name,
					m.Value[c-1], m.Value[c], m.Mid[c-1])
			}
		}
		for c, x := range m.Value {
			if got := m.Encode(x); int(got) != c {
				t.Errorf("%s: code of value %d, %v, is %d", name, c, x, got)
			}
		}
		zero := slices.Index(m.Value[:], 0)
		if m.Value[255] != 1 || zero < 0 {
			t.Fatalf("%s: no 0 or 1 among the values", name)
		}
		parts := 64
		if m == Squares {
			parts = 128
			if zero != 0 {
				t.Errorf("second: the lowest value is %v", m.Value[0])
			}
		} else {
			for c := 1; c < zero; c++ {
				if m.Value[zero-c] != -m.Value[zero+c] {
					t.Errorf("first: %v below zero, %v above it", m.Value[zero-c], m.Value[zero+c])
				}
			}
			if zero != 127 || m.Value[0] != -m.Value[254] {
				t.Errorf("first: %d values below zero, the lowest %v", zero, m.Value[0])
			}
		}
		// From 1 down: parts of 0.9 times the power of ten.
		at, power := 254, 1.0
		for range 7 {
			for k := parts - 1; k >= 0; k-- {
				if want := power * (0.1 + 0.9*(float64(k)+0.5)/float64(parts)); math.Abs(
					float64(m.Value[at])-want) > 1e-7*want {
					t.Errorf("%s: value %d is %v, want %v", name, at, m.Value[at], want)
				}
				at--
			}
			power, parts = power/10, parts/2
		}
		if at != zero {
			t.Errorf("%s: %d values between the last power of ten and zero", name, at-zero)
		}
	}
	if c := Squares.Encode(1e-12); c != 1 {
		t.Errorf("the code of a second moment above zero is %d", c)
	}
	if c := Squares.Encode(0); c != 0 {
		t.Errorf("the code of a second moment of zero is %d", c)
	}
}

// The maps, and codes of shares of a scale, are those of torchao and bitsandbytes.
func TestMomentsAgainstTorchao(t *testing.T) {
	text, err := os.ReadFile("../../testdata/golden/moments.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Maps []struct {
			Name      string
			Values, Y []float64
			Codes     []int
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Maps) != 2 {
		t.Fatalf("%d maps", len(golden.Maps))
	}
	for _, g := range golden.Maps {
		m := map[string]*Moments{"first": Signed, "second": Squares}[g.Name]
		if len(g.Values) != 256 || len(g.Y) < 100 || len(g.Y) != len(g.Codes) {
			t.Fatalf("%s: %d values, %d numbers, %d codes", g.Name, len(g.Values), len(g.Y),
				len(g.Codes))
		}
		for c, want := range g.Values {
			if got := float64(m.Value[c]); math.Abs(got-want) > 1e-6*math.Abs(want) {
				t.Errorf("%s: value %d is %v, torchao's %v", g.Name, c, got, want)
			}
		}
		for i, y := range g.Y {
			got, want := int(m.Encode(float32(y))), g.Codes[i]
			if m == Squares && want == 0 && y > 0 {
				want = 1 // see Moments
			}
			if got == want {
				continue
			}
			if mid := float64(m.Mid[min(got, want)]); got-want != 1 && want-got != 1 ||
				math.Abs(y-mid) > 1e-6*math.Abs(mid) {
				t.Errorf("%s: code of %v is %d, torchao's %d", g.Name, y, got, want)
			}
		}
	}
}
