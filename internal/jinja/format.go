package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fieldLimit bounds the width and the precision of a field.
const fieldLimit = 1 << 16

// spec is the format of a field.
type spec struct {
	fill             string // "" if not given
	align            byte   // 0 if not given
	sign             byte
	alternate, zero  bool
	width, precision int // precision -1 is none given
	group            string
	kind             byte
}

// percent returns text % args.
func (s *state) percent(text string, args any, safe bool) any {
	var list []any
	mapping, isDict := args.(*Dict)
	tuple, isTuple := args.(*Tuple)
	used, single := 0, !isTuple
	if isTuple {
		list = tuple.Items
	} else {
		list = []any{args}
	}
	next := func() any {
		if used >= len(list) {
			fail("not enough arguments for format string")
		}
		used++
		return list[used-1]
	}
	w := &writer{s: s}
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			k := strings.IndexByte(text[i:], '%')
			if k < 0 {
				k = len(text) - i
			}
			w.put(text[i : i+k])
			i += k - 1
			continue
		}
		i++
		peek := func() byte {
			if i >= len(text) {
				fail("incomplete format")
			}
			return text[i]
		}
		var value any
		has := false
		if peek() == '(' {
			depth, from := 1, i+1
			for i++; depth > 0; i++ {
				switch peek() {
				case '(':
					depth++
				case ')':
					depth--
				}
			}
			if !isDict {
				fail("format requires a mapping")
			}
			key := text[from : i-1]
			v, ok := mapping.Get(key)
			if !ok {
				fail("the key %s of a format is not there", quote(key))
			}
			value, has, used, single = v, true, 1, false
		}
		sp := spec{precision: -1}
	flags:
		for {
			switch peek() {
			case '-':
				sp.align = '<'
			case '+':
				sp.sign = '+'
			case ' ':
				if sp.sign == 0 {
					sp.sign = ' '
				}
			case '#':
				sp.alternate = true
			case '0':
				sp.zero = true
			default:
				break flags
			}
			i++
		}
		size := func() int {
			if peek() == '*' {
				i++
				v := next()
				n, ok := v.(int64)
				if !ok {
					fail("* wants int")
				}
				return int(max(-fieldLimit-1, min(n, fieldLimit+1)))
			}
			n := 0
			for decimal(peek()) {
				if n = n*10 + int(text[i]-'0'); n > fieldLimit {
					fail("a field of more than %d characters", fieldLimit)
				}
				i++
			}
			return n
		}
		if sp.width = size(); sp.width < 0 {
			sp.width, sp.align = -sp.width, '<'
		}
		if peek() == '.' {
			i++
			sp.precision = max(size(), 0)
		}
		if sp.width > fieldLimit || sp.precision > fieldLimit {
			fail("a field of more than %d characters", fieldLimit)
		}
		for strings.IndexByte("hlL", peek()) >= 0 {
			i++
		}
		sp.kind = peek()
		if sp.kind == '%' {
			w.put("%")
			continue
		}
		if !has {
			value = next()
		}
		w.put(s.conversion(sp, value, safe))
	}
	if isTuple && used < len(list) || single && used == 0 && !mappingLike(args) {
		fail("not all arguments converted during string formatting")
	}
	return wrap(w.String(), safe)
}

// mappingLike reports whether Python takes the single argument of % for a mapping, which need not
// be used.
func mappingLike(v any) bool {
	switch v.(type) {
	case *Dict, *List, *Range, *undefined:
		return true
	}
	return false
}

// conversion returns a value for % in the format sp.
func (s *state) conversion(sp spec, v any, safe bool) string {
	escape := func(text string) string {
		if safe {
			return string(s.escape(text))
		}
		return text
	}
	text := ""
	switch sp.kind {
	case 's':
		if safe {
			text = s.html(v)
		} else {
			text = s.str(v)
		}
	case 'r':
		text = escape(s.repr(v))
	case 'a':
		text = escape(asciiOnly(s.repr(v)))
	case 'c':
		if t, ok := asText(v); ok {
			if runes(t) != 1 {
				fail("%%c requires int or char")
			}
			text = t
		} else {
			n, ok := asSmall(v)
			if !ok || n < 0 || n > 0x10ffff || n >= 0xd800 && n < 0xe000 {
				fail("%%c requires int or char")
			}
			text = string(rune(n))
		}
	case 'd', 'i', 'u', 'x', 'X', 'o':
		n := asBig(v)
		if f, ok := v.(float64); ok && strings.IndexByte("diu", sp.kind) >= 0 {
			if math.IsNaN(f) || math.IsInf(f, 0) {
				fail("cannot convert float NaN or infinity to integer")
			}
			n, _ = new(big.Float).SetFloat64(f).Int(nil)
		}
		if n == nil {
			checkDefined(v, nil)
			fail("%%%c format: a number is required, not %s", sp.kind, typeName(v))
		}
		return withSign(sp, n.Sign() < 0, intDigits(n, sp), true)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		f, ok := v.(float64)
		if !ok {
			if !isNumber(v) {
				checkDefined(v, nil)
				fail("must be real number, not %s", typeName(v))
			}
			f = asFloat(v)
		}
		if sp.precision < 0 {
			sp.precision = 6
		}
		return withSign(sp, math.Signbit(f) && !math.IsNaN(f), floatDigits(f, sp), false)
	default:
		fail("unsupported format character '%c'", sp.kind)
	}
	if sp.kind != 'c' && sp.precision >= 0 {
		text = text[:offset(text, sp.precision)]
	}
	return padText(text, sp.width, " ", sp.align, '>')
}

// asciiOnly returns text with other characters as escapes.
func asciiOnly(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// intDigits returns the digits of |n| in the base of sp, with its prefix.
func intDigits(n *big.Int, sp spec) string {
	abs := new(big.Int).Abs(n)
	base, prefix := 10, ""
	switch sp.kind {
	case 'x':
		base, prefix = 16, "0x"
	case 'X':
		base, prefix = 16, "0X"
	case 'o':
		base, prefix = 8, "0o"
	case 'b':
		base, prefix = 2, "0b"
	}
	text := abs.Text(base)
	if sp.kind == 'X' {
		text = strings.ToUpper(text)
	}
	if sp.precision > len(text) {
		text = strings.Repeat("0", sp.precision-len(text)) + text
	}
	if sp.alternate {
		text = prefix + text
	}
	return text
}

// floatDigits returns the digits of |f|.
func floatDigits(f float64, sp spec) string {
	f = math.Abs(f)
	upperCase := sp.kind == 'E' || sp.kind == 'F' || sp.kind == 'G'
	text := ""
	switch {
	case math.IsNaN(f):
		text = "nan"
	case math.IsInf(f, 0):
		text = "inf"
	default:
		kind := sp.kind | 0x20
		precision := sp.precision
		if kind == 'g' && precision == 0 {
			precision = 1
		}
		text = strconv.FormatFloat(f, kind, precision, 64)
		if sp.alternate {
			if kind == 'g' {
				fail("'#' with g is not supported in chat templates")
			}
			if !strings.Contains(text, ".") {
				if i := strings.IndexByte(text, 'e'); i >= 0 {
					text = text[:i] + "." + text[i:]
				} else {
					text += "."
				}
			}
		}
	}
	if upperCase {
		text = strings.ToUpper(text)
	}
	return text
}

// withSign returns digits with a sign and leading blanks or zeros.
func withSign(sp spec, negative bool, digits string, prefixed bool) string {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(sp.sign)
	}
	if sp.zero && sp.align == 0 {
		prefix := ""
		if prefixed && sp.alternate && strings.IndexByte("xXob", sp.kind) >= 0 {
			prefix, digits = digits[:2], digits[2:]
		}
		if digits == "inf" || digits == "nan" || digits == "INF" || digits == "NAN" {
			return padText(sign+digits, sp.width, " ", 0, '>')
		}
		n := sp.width - len(sign) - len(prefix) - len(digits)
		return sign + prefix + strings.Repeat("0", max(n, 0)) + digits
	}
	return padText(sign+digits, sp.width, " ", sp.align, '>')
}

// padText returns text filled up to a width.
func padText(text string, width int, fill string, align, otherwise byte) string {
	n := width - runes(text)
	if n <= 0 {
		return text
	}
	if align == 0 {
		align = otherwise
	}
	switch align {
	case '<':
		return text + strings.Repeat(fill, n)
	case '^':
		return strings.Repeat(fill, n/2) + text + strings.Repeat(fill, n-n/2)
	}
	return strings.Repeat(fill, n) + text
}

// formatter is the state of a str.format.
type formatter struct {
	s     *state
	args  []any
	named *Dict
	safe  bool
	auto  int // the next field without a number; -1 once a field had one
}

// format returns text.format(*args, **named).
func (s *state) format(text string, args []any, named *Dict, safe bool) string {
	f := &formatter{s: s, args: args, named: named, safe: safe}
	return f.expand(text, 2)
}

// expand returns text with its fields replaced; depth bounds fields inside formats.
func (f *formatter) expand(text string, depth int) string {
	if depth < 0 {
		fail("Max string recursion exceeded")
	}
	w := &writer{s: f.s}
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			w.put(text)
			break
		}
		w.put(text[:i])
		c := text[i]
		text = text[i+1:]
		if text != "" && text[0] == c {
			w.put(string(c))
			text = text[1:]
			continue
		}
		if c == '}' {
			fail("Single '}' encountered in format string")
		}
		end, open := -1, 1
		for k := range len(text) {
			if text[k] == '{' {
				open++
			} else if text[k] == '}' {
				if open--; open == 0 {
					end = k
					break
				}
			}
		}
		if end < 0 {
			fail("expected '}' before end of string")
		}
		w.put(f.field(text[:end], depth))
		text = text[end+1:]
	}
	return w.String()
}

// field returns the text for a field, given its text between the braces.
func (f *formatter) field(text string, depth int) string {
	name, conv, format := text, byte(0), ""
	// a bracket of an index may hold these signs
	i, inside := 0, false
	for ; i < len(text); i++ {
		switch text[i] {
		case '[':
			inside = true
		case ']':
			inside = false
		}
		if !inside && (text[i] == ':' || text[i] == '!') {
			break
		}
	}
	if name = text[:i]; i < len(text) {
		rest := text[i+1:]
		if text[i] == '!' {
			if rest == "" {
				fail("unmatched '{' in format spec")
			}
			conv = rest[0]
			if rest = rest[1:]; rest != "" && rest[0] != ':' {
				fail("expected ':' after conversion specifier")
			}
			rest = strings.TrimPrefix(rest, ":")
		}
		format = rest
	}
	if strings.ContainsAny(name, "{}") {
		fail("unexpected '{' in field name")
	}
	v := f.value(name)
	switch conv {
	case 0:
	case 's':
		v = f.s.str(v)
	case 'r':
		v = f.s.repr(v)
	case 'a':
		v = asciiOnly(f.s.repr(v))
	default:
		fail("Unknown conversion specifier %c", conv)
	}
	format = f.expand(format, depth-1)
	if !f.safe {
		return f.s.formatValue(v, format)
	}
	if m, ok := v.(markup); ok {
		if format != "" {
			fail("Unsupported format specification for Markup.")
		}
		return string(m)
	}
	return string(f.s.escape(f.s.formatValue(v, format)))
}

// value returns the argument that a field names.
func (f *formatter) value(name string) any {
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	isNumber := first != "" && strings.Trim(first, "0123456789") == ""
	if first == "" || isNumber {
		if isNumber && f.auto > 0 || first == "" && f.auto < 0 {
			fail("cannot mix automatic and manual field numbering")
		}
		i := f.auto
		if isNumber {
			i, _ = strconv.Atoi(first)
			f.auto = -1
		} else {
			f.auto++
		}
		if i < 0 || i >= len(f.args) {
			fail("Replacement index %d out of range for positional args tuple", i)
		}
		return f.path(f.args[i], rest)
	}
	if f.named == nil {
		fail("the key %s of a format is not there", quote(first))
	}
	v, ok := f.named.Get(first)
	if !ok {
		fail("the key %s of a format is not there", quote(first))
	}
	return f.path(v, rest)
}

// path returns the value behind a path of .attribute and [index].
func (f *formatter) path(v any, rest string) any {
	for rest != "" {
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			if end == 0 {
				fail("Empty attribute in format string")
			}
			v = f.s.getAttr(v, rest[1:1+end])
			rest = rest[1+end:]
			continue
		}
		if rest[0] != '[' {
			fail("Only '.' or '[' may follow ']' in format field specifier")
		}
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			fail("Missing ']' in format string")
		}
		key := rest[1:end]
		if key == "" {
			fail("Empty attribute in format string")
		}
		if strings.Trim(key, "0123456789") == "" {
			n, err := strconv.ParseInt(key, 10, 64)
			if err != nil {
				fail("Too many decimal digits in format string")
			}
			v = f.s.getItem(v, n)
		} else {
			v = f.s.getItem(v, key)
		}
		rest = rest[end+1:]
	}
	return v
}

// parseSpec parses a format specification.
func parseSpec(text string) spec {
	sp := spec{precision: -1}
	if text == "" {
		return sp
	}
	_, n := utf8.DecodeRuneInString(text)
	isAlign := func(i int) bool {
		return i < len(text) && strings.IndexByte("<>=^", text[i]) >= 0
	}
	if isAlign(n) {
		sp.fill, sp.align = text[:n], text[n]
		text = text[n+1:]
	} else if isAlign(0) {
		sp.align = text[0]
		text = text[1:]
	}
	take := func(set string) byte {
		if text != "" && strings.IndexByte(set, text[0]) >= 0 {
			c := text[0]
			text = text[1:]
			return c
		}
		return 0
	}
	digits := func() int {
		n, has := 0, false
		for text != "" && decimal(text[0]) {
			if n = n*10 + int(text[0]-'0'); n > fieldLimit {
				fail("a field of more than %d characters", fieldLimit)
			}
			text, has = text[1:], true
		}
		if !has {
			return -1
		}
		return n
	}
	sp.sign = take("+- ")
	if take("z") != 0 {
		fail("the format 'z' is not supported in chat templates")
	}
	sp.alternate = take("#") != 0
	sp.zero = take("0") != 0
	sp.width = max(digits(), 0)
	if c := take(",_"); c != 0 {
		sp.group = string(c)
	}
	if take(".") != 0 {
		if sp.precision = digits(); sp.precision < 0 {
			fail("Format specifier missing precision")
		}
	}
	if text != "" {
		sp.kind = text[0]
		if text = text[1:]; text != "" {
			fail("Invalid format specifier")
		}
	}
	return sp
}

// formatValue returns format(v, text).
func (s *state) formatValue(v any, text string) string {
	if text == "" {
		return s.str(v)
	}
	sp := parseSpec(text)
	unknown := func() {
		fail("Unknown format code '%c' for object of type '%s'", sp.kind, typeName(v))
	}
	switch x := v.(type) {
	case string, markup:
		t, _ := asText(x)
		if sp.kind != 0 && sp.kind != 's' {
			unknown()
		}
		if sp.sign != 0 || sp.alternate || sp.group != "" || sp.align == '=' {
			fail("Format specifier not allowed in string format specifier")
		}
		if sp.precision >= 0 {
			t = t[:offset(t, sp.precision)]
		}
		fill := sp.fill
		if fill == "" {
			if fill = " "; sp.zero {
				fill = "0"
			}
		}
		return padText(t, sp.width, fill, sp.align, '<')
	case bool, int64, *big.Int:
		n := asBig(x)
		switch sp.kind {
		case 0, 'd', 'x', 'X', 'o', 'b', 'c':
			if sp.precision >= 0 {
				fail("Precision not allowed in integer format specifier")
			}
			if sp.kind == 'c' {
				if sp.sign != 0 || sp.alternate || !n.IsInt64() || n.Int64() < 0 ||
					n.Int64() > 0x10ffff {
					fail("%%c arg not in range(0x110000)")
				}
				fill := sp.fill
				if fill == "" {
					fill = " "
				}
				return padText(string(rune(n.Int64())), sp.width, fill, sp.align, '<')
			}
			if sp.group == "," && (sp.kind != 0 && sp.kind != 'd') {
				fail("Cannot specify ',' with '%c'.", sp.kind)
			}
			plain := sp
			plain.alternate = false
			digits := intDigits(n, plain)
			prefix := ""
			if sp.alternate {
				prefix = map[byte]string{'x': "0x", 'X': "0X", 'o': "0o", 'b': "0b"}[sp.kind]
			}
			size := 3
			if sp.kind != 0 && sp.kind != 'd' {
				size = 4
			}
			return sp.numeric(n.Sign() < 0, prefix, digits, "", size)
		case 'e', 'E', 'f', 'F', 'g', 'G', '%':
			return s.formatFloat(asFloat(x), sp)
		}
		unknown()
	case float64:
		switch sp.kind {
		case 0, 'e', 'E', 'f', 'F', 'g', 'G', '%':
			return s.formatFloat(x, sp)
		}
		unknown()
	}
	fail("unsupported format string passed to %s.__format__", typeName(v))
	return ""
}

// formatFloat returns a float in a field of str.format.
func (s *state) formatFloat(f float64, sp spec) string {
	negative := math.Signbit(f) && !math.IsNaN(f)
	percent := ""
	kind := sp
	switch {
	case sp.kind == '%':
		f *= 100
		kind.kind, percent = 'f', "%"
	case sp.kind == 0 && sp.precision < 0:
		text := floatRepr(math.Abs(f))
		return sp.float(negative, text, percent)
	case sp.kind == 0:
		kind.kind = 'g'
	}
	if kind.precision < 0 {
		kind.precision = 6
	}
	text := floatDigits(f, kind)
	if sp.kind == 0 && !strings.ContainsAny(text, ".en") {
		// as repr: a digit behind the point, or an exponent where the digits do not reach it
		if len(text) >= max(kind.precision, 1) && kind.precision >= 1 {
			kind.kind = 'e'
			kind.precision--
			e := floatDigits(f, kind)
			mantissa, exponent, _ := strings.Cut(e, "e")
			if strings.Contains(mantissa, ".") {
				mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
			}
			text = mantissa + "e" + exponent
		} else {
			text += ".0"
		}
	}
	return sp.float(negative, text, percent)
}

// float returns a float's digits in a field, those before the point in groups.
func (sp spec) float(negative bool, text, percent string) string {
	digits, rest := text, ""
	if i := strings.IndexAny(text, ".e"); i >= 0 {
		digits, rest = text[:i], text[i:]
	}
	if strings.ContainsAny(text, "nN") { // nan, inf
		sp.group = ""
	}
	return sp.numeric(negative, "", digits, rest+percent, 3)
}

// numeric returns a number in a field: sign, prefix, digits in groups of size, and rest.
func (sp spec) numeric(negative bool, prefix, digits, rest string, size int) string {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(sp.sign)
	}
	fill, align := sp.fill, sp.align
	if sp.zero {
		if fill == "" {
			fill = "0"
		}
		if align == 0 {
			align = '='
		}
	}
	if fill == "" {
		fill = " "
	}
	room := 0 // for digits, where zeros are grouped with them
	if sp.group != "" && fill == "0" && align == '=' {
		room = sp.width - len(sign) - len(prefix) - len(rest)
	}
	if sp.group != "" {
		digits = groupDigits(digits, sp.group, size, room)
	}
	if align == '=' {
		n := sp.width - len(sign) - len(prefix) - len(digits) - len(rest)
		return sign + prefix + strings.Repeat(fill, max(n, 0)) + digits + rest
	}
	return padText(sign+prefix+digits+rest, sp.width, fill, align, '>')
}

// groupDigits returns digits with separators between groups, and leading zeros up to a width.
func groupDigits(digits, separator string, size, width int) string {
	put := func(digits string) string {
		var b strings.Builder
		for i := range len(digits) {
			if i > 0 && (len(digits)-i)%size == 0 {
				b.WriteString(separator)
			}
			b.WriteByte(digits[i])
		}
		return b.String()
	}
	text := put(digits)
	for len(text) < width {
		digits = "0" + digits
		text = put(digits)
	}
	return text
}
