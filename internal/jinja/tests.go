package jinja

import "math/big"

// test is what stands behind "is".
type test func(s *state, v any, c *call) bool

var tests map[string]test

// alone is a test without arguments.
func alone(name string, f func(s *state, v any) bool) test {
	return func(s *state, v any, c *call) bool {
		bind(name, c)
		return f(s, v)
	}
}

// against is a test with one argument.
func against(name string, f func(s *state, a, b any) bool) test {
	return func(s *state, v any, c *call) bool { return f(s, v, bind(name, c, "other")[0]) }
}

func init() {
	tests = map[string]test{
		"odd": alone("odd", func(s *state, v any) bool {
			return s.equal(s.mod(v, int64(2)), int64(1))
		}),
		"even": alone("even", func(s *state, v any) bool {
			return s.equal(s.mod(v, int64(2)), int64(0))
		}),
		"divisibleby": func(s *state, v any, c *call) bool {
			return s.equal(s.mod(v, bind("divisibleby", c, "num")[0]), int64(0))
		},
		"defined": alone("defined", func(_ *state, v any) bool {
			_, ok := v.(*undefined)
			return !ok
		}),
		"undefined": alone("undefined", func(_ *state, v any) bool {
			_, ok := v.(*undefined)
			return ok
		}),
		"filter": alone("filter", func(_ *state, v any) bool {
			name := named(v)
			_, ok := filters[name]
			return ok || unmadeFilters[name]
		}),
		"test": alone("test", func(_ *state, v any) bool {
			_, ok := tests[named(v)]
			return ok
		}),
		"none":    alone("none", func(_ *state, v any) bool { return v == nil }),
		"boolean": alone("boolean", func(_ *state, v any) bool { _, ok := v.(bool); return ok }),
		"false":   alone("false", func(_ *state, v any) bool { return v == false }),
		"true":    alone("true", func(_ *state, v any) bool { return v == true }),
		"integer": alone("integer", func(_ *state, v any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}),
		"float":  alone("float", func(_ *state, v any) bool { _, ok := v.(float64); return ok }),
		"number": alone("number", func(_ *state, v any) bool { return isNumber(v) }),
		"lower": alone("lower", func(s *state, v any) bool {
			return isCased(s.str(v), true)
		}),
		"upper": alone("upper", func(s *state, v any) bool {
			return isCased(s.str(v), false)
		}),
		"string": alone("string", func(_ *state, v any) bool { _, ok := asText(v); return ok }),
		"mapping": alone("mapping", func(_ *state, v any) bool {
			_, ok := v.(*Dict)
			return ok
		}),
		"sequence": alone("sequence", func(_ *state, v any) bool {
			switch v.(type) {
			case string, markup, *List, *Tuple, *Dict, *Range, *undefined:
				return true
			}
			return false
		}),
		"iterable": alone("iterable", func(_ *state, v any) bool { return iterable(v) }),
		"callable": alone("callable", func(_ *state, v any) bool {
			switch v.(type) {
			case *builtin, *macro, *loop, *joiner, *undefined:
				return true
			}
			return false
		}),
		"sameas":  against("sameas", func(_ *state, a, b any) bool { return isSame(a, b) }),
		"escaped": alone("escaped", func(_ *state, v any) bool { _, ok := v.(markup); return ok }),
		"in":      against("in", func(s *state, a, b any) bool { return s.in(a, b) }),
	}
	for op, names := range map[string][]string{"==": {"eq", "equalto"}, "!=": {"ne"},
		">": {"gt", "greaterthan"}, ">=": {"ge"}, "<": {"lt", "lessthan"}, "<=": {"le"}} {
		for _, name := range append(names, op) {
			tests[name] = func(s *state, v any, c *call) bool {
				return s.holds(op, v, bind(name, c, "/other")[0])
			}
		}
	}
}

// named is the name that a value is asked for in a table.
func named(v any) string {
	if !hashable(v) {
		fail("unhashable type: '%s'", typeName(v))
	}
	name, _ := asText(v)
	return name
}
