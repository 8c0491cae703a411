package jinja

import (
	"math"
	"math/big"
	"math/bits"
	"strings"
)

// intLimit is how many bits an int may have: about as many as Python writes out, 4300 digits.
const intLimit = 14_284

// asSmall returns an int or a bool that an int64 holds.
func asSmall(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return truthInt(v), true
	}
	return 0, false
}

// asBig returns an int or a bool; nil of another value.
func asBig(v any) *big.Int {
	switch v := v.(type) {
	case int64:
		return big.NewInt(v)
	case bool:
		return big.NewInt(truthInt(v))
	case *big.Int:
		return v
	}
	return nil
}

// whole is the value of n.
func whole(n *big.Int) any {
	if n.IsInt64() {
		return n.Int64()
	}
	if n.BitLen() > intLimit {
		fail("an int of more than 4300 digits")
	}
	return n
}

// asFloat is float(v) of a number.
func asFloat(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	case bool:
		return float64(truthInt(v))
	case *big.Int:
		f, _ := new(big.Float).SetPrec(intLimit + 64).SetInt(v).Float64()
		if math.IsInf(f, 0) {
			fail("int too large to convert to float")
		}
		return f
	}
	fail("must be a number, not %s", typeName(v))
	return 0
}

// operand fails on one that is undefined.
func operands(a, b any) {
	if u, ok := a.(*undefined); ok {
		u.fail()
	}
	if u, ok := b.(*undefined); ok {
		u.fail()
	}
}

func unsupported(op string, a, b any) {
	operands(a, b)
	fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

// add is a + b.
func (s *state) add(a, b any) any {
	switch x := a.(type) {
	case string:
		switch y := b.(type) {
		case string:
			s.size(len(x) + len(y))
			return x + y
		case markup:
			return s.joinMarkup(s.escape(x), y)
		}
	case markup:
		if y, ok := asText(b); ok {
			if _, safe := b.(markup); !safe {
				return s.joinMarkup(x, s.escape(y))
			}
			return s.joinMarkup(x, markup(y))
		}
	case *List:
		if y, ok := b.(*List); ok {
			return &List{s.joined(x.Items, y.Items)}
		}
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			return &Tuple{Items: s.joined(x.Items, y.Items)}
		}
	}
	if !isNumber(a) || !isNumber(b) {
		if _, ok := asText(a); ok {
			operands(a, b)
			fail("can only concatenate str (not \"%s\") to str", typeName(b))
		}
		unsupported("+", a, b)
	}
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok {
			if sum := x + y; (sum > x) == (y > 0) {
				return sum
			}
		}
	}
	if x, y := asBig(a), asBig(b); x != nil && y != nil {
		return whole(new(big.Int).Add(x, y))
	}
	return asFloat(a) + asFloat(b)
}

func (s *state) joinMarkup(a, b markup) any {
	s.size(len(a) + len(b))
	return a + b
}

func (s *state) joined(x, y []any) []any {
	s.sizeOf(len(x)+len(y), itemSize)
	out := make([]any, 0, len(x)+len(y))
	return append(append(out, x...), y...)
}

// sub is a - b.
func (s *state) sub(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		if _, ok := a.(*view); ok {
			fail("'-' of views of dicts is not supported in chat templates")
		}
		unsupported("-", a, b)
	}
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok {
			if d := x - y; (d < x) == (y > 0) {
				return d
			}
		}
	}
	if x, y := asBig(a), asBig(b); x != nil && y != nil {
		return whole(new(big.Int).Sub(x, y))
	}
	return asFloat(a) - asFloat(b)
}

// mul is a * b.
func (s *state) mul(a, b any) any {
	if isNumber(a) && isNumber(b) {
		if x, ok := asSmall(a); ok {
			if y, ok := asSmall(b); ok {
				hi, lo := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y)))
				if hi == 0 && lo < 1<<63 && x != math.MinInt64 && y != math.MinInt64 {
					return x * y
				}
			}
		}
		if x, y := asBig(a), asBig(b); x != nil && y != nil {
			return whole(new(big.Int).Mul(x, y))
		}
		return asFloat(a) * asFloat(b)
	}
	n, ok := asIndex(b)
	of := a
	if !ok {
		if n, ok = asIndex(a); !ok {
			operands(a, b)
			if _, sequence := count(a); sequence {
				fail("can't multiply sequence by non-int of type '%s'", typeName(b))
			}
			unsupported("*", a, b)
		}
		of = b
	}
	times := int(max(min(n, math.MaxInt32), 0))
	switch x := of.(type) {
	case string, markup:
		text, _ := asText(x)
		_, safe := x.(markup)
		s.sizeOf(len(text), times)
		return wrap(strings.Repeat(text, times), safe)
	case *List:
		return &List{s.repeated(x.Items, times)}
	case *Tuple:
		return &Tuple{Items: s.repeated(x.Items, times)}
	}
	unsupported("*", a, b)
	return nil
}

func (s *state) repeated(items []any, times int) []any {
	s.sizeOf(len(items)*itemSize, times)
	out := make([]any, 0, len(items)*times)
	if len(items) > 0 {
		for range times {
			out = append(out, items...)
		}
	}
	return out
}

// div is a / b.
func (s *state) div(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		unsupported("/", a, b)
	}
	x, y := asBig(a), asBig(b)
	if x != nil && y != nil {
		if y.Sign() == 0 {
			fail("division by zero")
		}
		if x.Sign() == 0 && y.Sign() < 0 {
			return math.Copysign(0, -1)
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			fail("integer division result too large for a float")
		}
		return f
	}
	d := asFloat(b)
	if d == 0 {
		fail("float division by zero")
	}
	return asFloat(a) / d
}

// floorDiv is a // b.
func (s *state) floorDiv(a, b any) any {
	q, _ := s.divMod("//", a, b)
	return q
}

// mod is a % b; of a str, its formatting.
func (s *state) mod(a, b any) any {
	if text, ok := asText(a); ok {
		_, safe := a.(markup)
		return s.percent(text, b, safe)
	}
	_, m := s.divMod("%", a, b)
	return m
}

func (s *state) divMod(op string, a, b any) (quotient, rest any) {
	if !isNumber(a) || !isNumber(b) {
		unsupported(op, a, b)
	}
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok && y != 0 && !(x == math.MinInt64 && y == -1) {
			q, r := x/y, x%y
			if r != 0 && (r < 0) != (y < 0) {
				q, r = q-1, r+y
			}
			return q, r
		}
	}
	if x, y := asBig(a), asBig(b); x != nil && y != nil {
		if y.Sign() == 0 {
			fail("integer division or modulo by zero")
		}
		q, r := new(big.Int).QuoRem(x, y, new(big.Int))
		if r.Sign() != 0 && (r.Sign() < 0) != (y.Sign() < 0) {
			q.Sub(q, big.NewInt(1))
			r.Add(r, y)
		}
		return whole(q), whole(r)
	}
	x, y := asFloat(a), asFloat(b)
	if y == 0 {
		fail("float floor division or modulo by zero")
	}
	r := math.Mod(x, y)
	q := (x - r) / y
	if r != 0 {
		if (y < 0) != (r < 0) {
			r += y
			q--
		}
	} else {
		r = math.Copysign(0, y)
	}
	if q != 0 {
		floor := math.Floor(q)
		if q-floor > 0.5 {
			floor++
		}
		q = floor
	} else {
		q = math.Copysign(0, x/y)
	}
	return q, r
}

// pow is a ** b.
func (s *state) pow(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		unsupported("** or pow()", a, b)
	}
	x, y := asBig(a), asBig(b)
	if x != nil && y != nil && y.Sign() >= 0 {
		if x.CmpAbs(big.NewInt(1)) > 0 && (!y.IsInt64() || y.Int64() > intLimit ||
			int64(x.BitLen()-1)*y.Int64() > intLimit) {
			fail("an int of more than 4300 digits")
		}
		if x.CmpAbs(big.NewInt(1)) <= 0 && y.Sign() > 0 { // 0, 1 and -1 of any exponent
			y = new(big.Int).SetInt64(2 - int64(y.Bit(0)))
		}
		return whole(new(big.Int).Exp(x, y, nil))
	}
	f, e := asFloat(a), asFloat(b)
	if f == 0 && e < 0 {
		fail("0.0 cannot be raised to a negative power")
	}
	if f < 0 && e != math.Trunc(e) && !math.IsInf(f, 0) && !math.IsNaN(e) {
		fail("a negative number to a power that is no whole number is complex")
	}
	p := math.Pow(f, e)
	if math.IsInf(p, 0) && !math.IsInf(f, 0) && !math.IsInf(e, 0) {
		fail("result too large")
	}
	return p
}

// neg is -v.
func (s *state) neg(v any) any {
	switch x := v.(type) {
	case float64:
		return -x
	case bool, int64, *big.Int:
		return whole(new(big.Int).Neg(asBig(x)))
	case *undefined:
		x.fail()
	}
	fail("bad operand type for unary -: '%s'", typeName(v))
	return nil
}

// pos is +v.
func (s *state) pos(v any) any {
	switch x := v.(type) {
	case float64, int64, *big.Int:
		return x
	case bool:
		return truthInt(x)
	case *undefined:
		x.fail()
	}
	fail("bad operand type for unary +: '%s'", typeName(v))
	return nil
}
