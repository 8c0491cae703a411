package jinja

import (
	"math"
	"math/big"
	"math/bits"
	"strings"
)

// intLimit bounds the bits of an int: about 4300 digits, as many as Python writes out.
const intLimit = 14_284

// asSmall returns an int or a bool as an int64; ok is false for other values and larger ints.
func asSmall(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		return truthInt(v), true
	}
	return 0, false
}

// asBig returns an int or a bool as a big.Int, nil for other values.
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

// intValue returns n as a value: an int64 if it fits, else n. It fails beyond intLimit.
func intValue(n *big.Int) any {
	if n.IsInt64() {
		return n.Int64()
	}
	if n.BitLen() > intLimit {
		fail("an int of more than 4300 digits")
	}
	return n
}

// asFloat returns float(v) of a number.
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

// checkDefined fails if a or b is undefined.
func checkDefined(a, b any) {
	if u, ok := a.(*undefined); ok {
		u.fail()
	}
	if u, ok := b.(*undefined); ok {
		u.fail()
	}
}

// failOperands fails with Python's message for an operator that does not take a and b.
func failOperands(op string, a, b any) {
	checkDefined(a, b)
	fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
}

// add returns a + b. As all operators here it follows Python's rules for types, and fails with
// Python's message for types that the operator does not take.
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
			return &List{s.concatItems(x.Items, y.Items)}
		}
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			return &Tuple{Items: s.concatItems(x.Items, y.Items)}
		}
	}
	if !isNumber(a) || !isNumber(b) {
		if _, ok := asText(a); ok {
			checkDefined(a, b)
			fail("can only concatenate str (not \"%s\") to str", typeName(b))
		}
		failOperands("+", a, b)
	}
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok {
			if sum := x + y; (sum > x) == (y > 0) {
				return sum
			}
		}
	}
	if x, y := asBig(a), asBig(b); x != nil && y != nil {
		return intValue(new(big.Int).Add(x, y))
	}
	return asFloat(a) + asFloat(b)
}

// joinMarkup returns two markups joined.
func (s *state) joinMarkup(a, b markup) any {
	s.size(len(a) + len(b))
	return a + b
}

// concatItems returns a list's items followed by another's.
func (s *state) concatItems(x, y []any) []any {
	s.sizeOf(len(x)+len(y), itemSize)
	out := make([]any, 0, len(x)+len(y))
	return append(append(out, x...), y...)
}

// sub returns a - b.
func (s *state) sub(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		if _, ok := a.(*view); ok {
			fail("'-' of views of dicts is not supported in chat templates")
		}
		failOperands("-", a, b)
	}
	if x, ok := asSmall(a); ok {
		if y, ok := asSmall(b); ok {
			if d := x - y; (d < x) == (y > 0) {
				return d
			}
		}
	}
	if x, y := asBig(a), asBig(b); x != nil && y != nil {
		return intValue(new(big.Int).Sub(x, y))
	}
	return asFloat(a) - asFloat(b)
}

// mul returns a * b.
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
			return intValue(new(big.Int).Mul(x, y))
		}
		return asFloat(a) * asFloat(b)
	}
	n, ok := asIndex(b)
	of := a
	if !ok {
		if n, ok = asIndex(a); !ok {
			checkDefined(a, b)
			if _, sequence := count(a); sequence {
				fail("can't multiply sequence by non-int of type '%s'", typeName(b))
			}
			failOperands("*", a, b)
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
		return &List{s.repeatItems(x.Items, times)}
	case *Tuple:
		return &Tuple{Items: s.repeatItems(x.Items, times)}
	}
	failOperands("*", a, b)
	return nil
}

// repeatItems returns a list's items repeated.
func (s *state) repeatItems(items []any, times int) []any {
	s.sizeOf(len(items)*itemSize, times)
	out := make([]any, 0, len(items)*times)
	if len(items) > 0 {
		for range times {
			out = append(out, items...)
		}
	}
	return out
}

// div returns a / b.
func (s *state) div(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		failOperands("/", a, b)
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

// floorDiv returns a // b.
func (s *state) floorDiv(a, b any) any {
	q, _ := s.divMod("//", a, b)
	return q
}

// mod returns a % b; for a str a, its formatting.
func (s *state) mod(a, b any) any {
	if text, ok := asText(a); ok {
		_, safe := a.(markup)
		return s.percent(text, b, safe)
	}
	_, m := s.divMod("%", a, b)
	return m
}

// divMod returns a // b and a % b.
func (s *state) divMod(op string, a, b any) (quotient, rest any) {
	if !isNumber(a) || !isNumber(b) {
		failOperands(op, a, b)
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
		return intValue(q), intValue(r)
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

// pow returns a ** b.
func (s *state) pow(a, b any) any {
	if !isNumber(a) || !isNumber(b) {
		failOperands("** or pow()", a, b)
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
		return intValue(new(big.Int).Exp(x, y, nil))
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

// neg returns -v.
func (s *state) neg(v any) any {
	switch x := v.(type) {
	case float64:
		return -x
	case bool, int64, *big.Int:
		return intValue(new(big.Int).Neg(asBig(x)))
	case *undefined:
		x.fail()
	}
	fail("bad operand type for unary -: '%s'", typeName(v))
	return nil
}

// pos returns +v.
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
