package jinja

import "math/big"

// test is a test's function: v is the value before "is".
type test func(s *state, v any, c *call) bool

var tests map[string]test

// plainTest returns a test without arguments.
func plainTest(name string, f func(s *state, v any) bool) test {
	return func(s *state, v any, c *call) bool {
		bind(name, c)
		return f(s, v)
	}
}

// binaryTest returns a test with one argument.
func binaryTest(name string, f func(s *state, a, b any) bool) test {
	return func(s *state, v any, c *call) bool { return f(s, v, bind(name, c, "other")[0]) }
}

func init() {
	tests = map[string]test{
		"odd": plainTest("odd", func(s *state, v any) bool {
			return s.equal(s.mod(v, int64(2)), int64(1))
		}),
		"even": plainTest("even", func(s *state, v any) bool {
			return s.equal(s.mod(v, int64(2)), int64(0))
		}),
		"divisibleby": func(s *state, v any, c *call) bool {
			return s.equal(s.mod(v, bind("divisibleby", c, "num")[0]), int64(0))
		},
		"defined": plainTest("defined", func(_ *state, v any) bool {
			_, ok := v.(*undefined)
			return !ok
		}),
		"undefined": plainTest("undefined", func(_ *state, v any) bool {
			_, ok := v.(*undefined)
			return ok
		}),
		"filter": plainTest("filter", func(_ *state, v any) bool {
			name := tableKey(v)
			_, ok := filters[name]
			return ok || unmadeFilters[name]
		}),
		"test": plainTest("test", func(_ *state, v any) bool {
			_, ok := tests[tableKey(v)]
			return ok
		}),
		"none":    plainTest("none", func(_ *state, v any) bool { return v == nil }),
		"boolean": plainTest("boolean", func(_ *state, v any) bool { _, ok := v.(bool); return ok }),
		"false":   plainTest("false", func(_ *state, v any) bool { return v == false }),
		"true":    plainTest("true", func(_ *state, v any) bool { return v == true }),
		"integer": plainTest("integer", func(_ *state, v any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}),
		"float":  plainTest("float", func(_ *state, v any) bool { _, ok := v.(float64); return ok }),
		"number": plainTest("number", func(_ *state, v any) bool { return isNumber(v) }),
		"lower": plainTest("lower", func(s *state, v any) bool {
			return isCased(s.str(v), true)
		}),
		"upper": plainTest("upper", func(s *state, v any) bool {
			return isCased(s.str(v), false)
		}),
		"string": plainTest("string", func(_ *state, v any) bool { _, ok := asText(v); return ok }),
		"mapping": plainTest("mapping", func(_ *state, v any) bool {
			_, ok := v.(*Dict)
			return ok
		}),
		"sequence": plainTest("sequence", func(_ *state, v any) bool {
			switch v.(type) {
			case string, markup, *List, *Tuple, *Dict, *Range, *undefined:
				return true
			}
			return false
		}),
		"iterable": plainTest("iterable", func(_ *state, v any) bool { return iterable(v) }),
		"callable": plainTest("callable", func(_ *state, v any) bool {
			switch v.(type) {
			case *builtin, *macro, *loop, *joiner, *undefined:
				return true
			}
			return false
		}),
		"sameas":  binaryTest("sameas", func(_ *state, a, b any) bool { return isSame(a, b) }),
		"escaped": plainTest("escaped", func(_ *state, v any) bool { _, ok := v.(markup); return ok }),
		"in":      binaryTest("in", func(s *state, a, b any) bool { return s.contains(a, b) }),
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

// tableKey returns the name under which a value is looked up in a table of filters or tests.
func tableKey(v any) string {
	if !hashable(v) {
		fail("unhashable type: '%s'", typeName(v))
	}
	name, _ := asText(v)
	return name
}
