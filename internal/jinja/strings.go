package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// upper, lower and the other functions change the case of a text as Python does: by Unicode's full
// mapping.
func upper(text string) string {
	if ascii(text) {
		return strings.ToUpper(text)
	}
	return cases.Upper(language.Und).String(text)
}

func lower(text string) string {
	if ascii(text) {
		return strings.ToLower(text)
	}
	return cases.Lower(language.Und).String(text)
}

func fold(text string) string {
	if ascii(text) {
		return strings.ToLower(text)
	}
	return cases.Fold().String(text)
}

// titleCase returns one character in title case.
func titleCase(char string) string {
	if ascii(char) {
		return strings.ToUpper(char)
	}
	return cases.Title(language.Und, cases.NoLower).String(char)
}

func capitalize(text string) string {
	if text == "" {
		return ""
	}
	_, n := utf8.DecodeRuneInString(text)
	// lower recognises a final sigma by the letters before it
	return titleCase(text[:n]) + strings.TrimPrefix(lower(text), lower(text[:n]))
}

func isLower(r rune) bool {
	return unicode.IsLower(r) || r > 0x7f && unicode.Is(unicode.Other_Lowercase, r)
}

func isUpper(r rune) bool {
	return unicode.IsUpper(r) || r > 0x7f && unicode.Is(unicode.Other_Uppercase, r)
}

func title(text string) string {
	var b strings.Builder
	low := lower(text)
	same := runes(low) == runes(text)
	inWord := false
	for _, r := range text {
		_, n := utf8.DecodeRuneInString(low)
		small := lower(string(r))
		if same {
			small, low = low[:n], low[n:]
		}
		if inWord {
			b.WriteString(small)
		} else {
			b.WriteString(titleCase(string(r)))
		}
		inWord = isLower(r) || isUpper(r) || unicode.IsTitle(r)
	}
	return b.String()
}

func swapcase(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case isUpper(r):
			b.WriteString(lower(string(r)))
		case isLower(r):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isCased returns str.islower, or str.isupper if low is false.
func isCased(text string, low bool) bool {
	found := false
	for _, r := range text {
		l, u := isLower(r), isUpper(r)
		if low && (u || unicode.IsTitle(r)) || !low && (l || unicode.IsTitle(r)) {
			return false
		}
		found = found || l || u
	}
	return found
}

// isTitled returns str.istitle.
func isTitled(text string) bool {
	found, inWord := false, false
	for _, r := range text {
		switch {
		case isUpper(r) || unicode.IsTitle(r):
			if inWord {
				return false
			}
			found, inWord = true, true
		case isLower(r):
			if !inWord {
				return false
			}
			found = true
		default:
			inWord = false
		}
	}
	return found
}

// digits are characters that Python takes for digits, in addition to the decimal ones.
var digits = &unicode.RangeTable{R16: []unicode.Range16{
	{Lo: 178, Hi: 179, Stride: 1}, {Lo: 185, Hi: 185, Stride: 1}, {Lo: 4969, Hi: 4977, Stride: 1},
	{Lo: 6618, Hi: 6618, Stride: 1}, {Lo: 8304, Hi: 8304, Stride: 1},
	{Lo: 8308, Hi: 8313, Stride: 1}, {Lo: 8320, Hi: 8329, Stride: 1},
	{Lo: 9312, Hi: 9320, Stride: 1}, {Lo: 9332, Hi: 9340, Stride: 1},
	{Lo: 9352, Hi: 9360, Stride: 1}, {Lo: 9450, Hi: 9450, Stride: 1},
	{Lo: 9461, Hi: 9469, Stride: 1}, {Lo: 9471, Hi: 9471, Stride: 1},
	{Lo: 10102, Hi: 10110, Stride: 1}, {Lo: 10112, Hi: 10120, Stride: 1},
	{Lo: 10122, Hi: 10130, Stride: 1}}, R32: []unicode.Range32{
	{Lo: 68160, Hi: 68163, Stride: 1}, {Lo: 69216, Hi: 69224, Stride: 1},
	{Lo: 69714, Hi: 69722, Stride: 1}, {Lo: 127232, Hi: 127242, Stride: 1}},
	LatinOffset: 2}

// hanNumbers are letters that Python takes for numbers.
const hanNumbers = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千" +
	"卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌陸零" +
	"\uf96b\uf973\uf978\uf9b2\uf9d1\uf9d3\uf9fd𠀁𠁤𠃢𠄡𠤪𠥃𠥌𠥜𠦊𠦝𠧉𢎐𢦘𣬛𦘍\U0002f890"

func isDigit(r rune) bool { return unicode.IsDigit(r) || r > 0x7f && unicode.Is(digits, r) }

func isNumeric(r rune) bool {
	return unicode.IsNumber(r) || r > 0x7f && strings.ContainsRune(hanNumbers, r)
}

func isAlnum(r rune) bool { return unicode.IsLetter(r) || isDigit(r) || isNumeric(r) }

func printable(r rune) bool { return unicode.IsPrint(r) }

// every returns a method that is true for a non-empty text whose characters all satisfy f.
func every(name string, f func(r rune) bool) valueMethod {
	return textMethod(name, func(text string) any {
		return text != "" && !strings.ContainsFunc(text, func(r rune) bool { return !f(r) })
	})
}

// valueMethod is a method of a type.
type valueMethod func(s *state, of any, c *call) any

// textMethod returns a method of str without arguments.
func textMethod(name string, f func(text string) any) valueMethod {
	return func(s *state, of any, c *call) any {
		bind(name, c)
		text, _ := asText(of)
		s.charge(len(text))
		return f(text)
	}
}

// mapMethod returns a method of str without arguments whose result is a text of the same kind.
func mapMethod(name string, f func(text string) string) valueMethod {
	return func(s *state, of any, c *call) any {
		bind(name, c)
		text, _ := asText(of)
		s.size(3 * len(text))
		return sameKind(of, f(text))
	}
}

// sameKind returns a text that is marked as safe if of is.
func sameKind(of any, text string) any {
	_, safe := of.(markup)
	return wrap(text, safe)
}

// escapeArg returns the text of an argument, escaped if the method is Markup's.
func (s *state) escapeArg(of, arg any) string {
	text := needText(arg)
	if _, ok := of.(markup); !ok {
		return text
	}
	if _, ok := arg.(markup); ok {
		return text
	}
	return string(s.escape(text))
}

// escape returns markupsafe's escape of a text.
func (s *state) escape(text string) markup {
	if strings.ContainsAny(text, "&<>'\"") {
		text = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`,
			"&#34;").Replace(text)
	}
	s.size(len(text))
	return markup(text)
}

// stripMethod returns the method strip, lstrip or rstrip, named for messages.
func stripMethod(name string, left, right bool) valueMethod {
	return func(s *state, of any, c *call) any {
		chars := bind(name, c, "/chars?")[0]
		text, _ := asText(of)
		s.charge(len(text))
		return sameKind(of, strip(text, chars, left, right))
	}
}

// strip returns text without blanks, or without the characters of the str chars, at the chosen
// ends.
func strip(text string, chars any, left, right bool) string {
	cut := isSpace
	if chars != absent && chars != nil {
		set := needText(chars)
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		text = strings.TrimLeftFunc(text, cut)
	}
	if right {
		text = strings.TrimRightFunc(text, cut)
	}
	return text
}

// splitMethod returns the method split or rsplit.
func splitMethod(name string, cut func(text, sep string, n int) []string,
	words func(text string, n int) []string) valueMethod {
	return func(s *state, of any, c *call) any {
		a := bind(name, c, "sep?", "maxsplit?")
		text, _ := asText(of)
		most := or(a[1], -1, needInt)
		var parts []string
		if a[0] == absent || a[0] == nil {
			s.sizeOf(len(text)/2+1, itemSize)
			parts = words(text, most)
		} else {
			sep := needText(a[0])
			if sep == "" {
				fail("empty separator")
			}
			s.sizeOf(strings.Count(text, sep)+1, itemSize)
			parts = cut(text, sep, most)
		}
		out := make([]any, len(parts))
		for i, p := range parts {
			out[i] = sameKind(of, p)
		}
		return &List{out}
	}
}

// cutLeft returns text.split(sep, n).
func cutLeft(text, sep string, n int) []string {
	if n < 0 {
		return strings.Split(text, sep)
	}
	return strings.SplitN(text, sep, min(n, len(text))+1)
}

// cutRight returns text.rsplit(sep, n).
func cutRight(text, sep string, n int) (parts []string) {
	for n != 0 {
		i := strings.LastIndex(text, sep)
		if i < 0 {
			break
		}
		parts = append(parts, text[i+len(sep):])
		text = text[:i]
		n--
	}
	parts = append(parts, text)
	slices.Reverse(parts)
	return parts
}

// wordsLeft returns text.split(None, n).
func wordsLeft(text string, n int) (parts []string) {
	for text = strings.TrimLeftFunc(text, isSpace); text != ""; n-- {
		i := strings.IndexFunc(text, isSpace)
		if n == 0 || i < 0 {
			return append(parts, text)
		}
		parts = append(parts, text[:i])
		text = strings.TrimLeftFunc(text[i:], isSpace)
	}
	return parts
}

// wordsRight returns text.rsplit(None, n).
func wordsRight(text string, n int) (parts []string) {
	for text = strings.TrimRightFunc(text, isSpace); text != ""; n-- {
		i := strings.LastIndexFunc(text, isSpace)
		if n == 0 || i < 0 {
			parts = append(parts, text)
			break
		}
		_, size := utf8.DecodeRuneInString(text[i:])
		parts = append(parts, text[i+size:])
		text = strings.TrimRightFunc(text[:i], isSpace)
	}
	slices.Reverse(parts)
	return parts
}

// lines returns str.splitlines.
func lines(text string, keep bool) (out []string) {
	for text != "" {
		i := strings.IndexFunc(text, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 ||
				r == 0x2029
		})
		if i < 0 {
			return append(out, text)
		}
		_, n := utf8.DecodeRuneInString(text[i:])
		if strings.HasPrefix(text[i:], "\r\n") {
			n = 2
		}
		end := i
		if keep {
			end += n
		}
		out = append(out, text[:end])
		text = text[i+n:]
	}
	return out
}

// bounds cuts a text to the start and end of find, count, startswith and the like; from is the
// start of the cut, in code points. ok is false if it is beyond the text's end.
func bounds(text string, start, end any) (cut string, from int, ok bool) {
	given := func(v any) any {
		if v == absent {
			return nil
		}
		return v
	}
	if given(start) == nil && given(end) == nil {
		return text, 0, true
	}
	n := runes(text)
	from, to, _ := span(given(start), given(end), nil, n)
	if i, isInt := asIndex(given(start)); isInt && i > int64(n) {
		return "", 0, false
	}
	if from > to {
		return "", from, false
	}
	begin := offset(text, from)
	return text[begin : begin+offset(text[begin:], to-from)], from, true
}

// findMethod returns the method find, rfind, index or rindex.
func findMethod(name string, last, must bool) valueMethod {
	return func(s *state, of any, c *call) any {
		a := bind(name, c, "/sub", "/start?", "/end?")
		text, _ := asText(of)
		s.charge(len(text))
		cut, from, ok := bounds(text, a[1], a[2])
		i := -1
		if sub := needText(a[0]); ok && last {
			i = strings.LastIndex(cut, sub)
		} else if ok {
			i = strings.Index(cut, sub)
		}
		if i < 0 {
			if must {
				fail("substring not found")
			}
			return int64(-1)
		}
		return int64(from + runes(cut[:i]))
	}
}

// affix returns the method startswith or endswith.
func affix(name string, has func(text, part string) bool) valueMethod {
	return func(s *state, of any, c *call) any {
		a := bind(name, c, "/prefix", "/start?", "/end?")
		text, _ := asText(of)
		s.charge(1)
		cut, _, ok := bounds(text, a[1], a[2])
		parts := []any{a[0]}
		if t, tuple := a[0].(*Tuple); tuple {
			parts = t.Items
		}
		found := false
		for _, p := range parts {
			part, isText := asText(p)
			if !isText {
				checkDefined(p, nil)
				fail("%s first arg must be str or a tuple of str, not %s", name, typeName(p))
			}
			found = found || ok && has(cut, part)
		}
		return found
	}
}

// partitionMethod returns the method partition or rpartition.
func partitionMethod(name string, index func(text, sep string) int, last bool) valueMethod {
	return func(s *state, of any, c *call) any {
		text, _ := asText(of)
		s.charge(len(text))
		sep := needText(bind(name, c, "/sep")[0])
		if sep == "" {
			fail("empty separator")
		}
		a, b, e := text, "", ""
		if i := index(text, sep); i >= 0 {
			a, b, e = text[:i], sep, text[i+len(sep):]
		} else if last {
			a, e = "", text
		}
		return &Tuple{Items: []any{sameKind(of, a), sameKind(of, b), sameKind(of, e)}}
	}
}

// padMethod returns the method ljust, rjust or center; left returns the part of n that goes to the
// left.
func padMethod(name string, left func(n, width int) int) valueMethod {
	return func(s *state, of any, c *call) any {
		a := bind(name, c, "/width", "/fillchar?")
		fill := or(a[1], " ", func(v any) string { return s.escapeArg(of, v) })
		if runes(fill) != 1 {
			fail("The fill character must be exactly one character long")
		}
		text, _ := asText(of)
		return sameKind(of, s.padTo(text, needInt(a[0]), fill, left))
	}
}

// padTo returns text filled up to a width.
func (s *state) padTo(text string, width int, fill string,
	left func(n, width int) int) string {
	n := width - runes(text)
	if n <= 0 {
		return text
	}
	s.sizeOf(n, len(fill))
	k := left(n, width)
	s.size(len(text) + n*len(fill))
	return strings.Repeat(fill, k) + text + strings.Repeat(fill, n-k)
}

// centreLeft returns the number of n blanks that str.center puts to the left.
func centreLeft(n, width int) int { return n/2 + n&width&1 }

// replace returns text.replace(from, to, n).
func replace(s *state, text, from, to string, n int) string {
	times := 0
	if from == "" {
		times = runes(text) + 1
	} else {
		times = strings.Count(text, from)
	}
	if n >= 0 {
		times = min(times, n)
	}
	s.charge(len(text))
	if len(to) > len(from) {
		s.sizeOf(times, len(to)-len(from))
		s.size(len(text) + times*(len(to)-len(from)))
	}
	return strings.Replace(text, from, to, n)
}

// stringMethods, dictMethods and sequenceMethods are the methods of str, of dict, and of list and
// tuple alike.
var stringMethods, dictMethods, sequenceMethods map[string]valueMethod

func init() {
	stringMethods = map[string]valueMethod{
		"capitalize": mapMethod("capitalize", capitalize),
		"casefold":   mapMethod("casefold", fold),
		"lower":      mapMethod("lower", lower),
		"upper":      mapMethod("upper", upper),
		"title":      mapMethod("title", title),
		"swapcase":   mapMethod("swapcase", swapcase),
		"strip":      stripMethod("strip", true, true),
		"lstrip":     stripMethod("lstrip", true, false),
		"rstrip":     stripMethod("rstrip", false, true),
		"split":      splitMethod("split", cutLeft, wordsLeft),
		"rsplit":     splitMethod("rsplit", cutRight, wordsRight),
		"find":       findMethod("find", false, false),
		"rfind":      findMethod("rfind", true, false),
		"index":      findMethod("index", false, true),
		"rindex":     findMethod("rindex", true, true),
		"startswith": affix("startswith", strings.HasPrefix),
		"endswith":   affix("endswith", strings.HasSuffix),
		"partition":  partitionMethod("partition", strings.Index, false),
		"rpartition": partitionMethod("rpartition", strings.LastIndex, true),
		"ljust":      padMethod("ljust", func(int, int) int { return 0 }),
		"rjust":      padMethod("rjust", func(n, _ int) int { return n }),
		"center":     padMethod("center", centreLeft),
		"isalpha":    every("isalpha", unicode.IsLetter),
		"isalnum":    every("isalnum", isAlnum),
		"isdigit":    every("isdigit", isDigit),
		"isdecimal":  every("isdecimal", unicode.IsDigit),
		"isnumeric":  every("isnumeric", isNumeric),
		"isspace":    every("isspace", isSpace),
		"isascii":    textMethod("isascii", func(text string) any { return ascii(text) }),
		"islower":    textMethod("islower", func(text string) any { return isCased(text, true) }),
		"isupper":    textMethod("isupper", func(text string) any { return isCased(text, false) }),
		"istitle":    textMethod("istitle", func(text string) any { return isTitled(text) }),
		"isprintable": textMethod("isprintable", func(text string) any {
			return !strings.ContainsFunc(text, func(r rune) bool { return !printable(r) })
		}),
		"isidentifier": textMethod("isidentifier", func(text string) any {
			for i, r := range text {
				if !wordRune(r) || unicode.Is(unicode.No, r) ||
					i == 0 && !unicode.IsLetter(r) && r != '_' {
					return false
				}
			}
			return text != ""
		}),
		"splitlines": func(s *state, of any, c *call) any {
			a := bind("splitlines", c, "keepends?")
			text, _ := asText(of)
			parts := lines(text, a[0] != absent && truth(a[0]))
			s.sizeOf(len(parts), itemSize)
			out := make([]any, len(parts))
			for i, p := range parts {
				out[i] = sameKind(of, p)
			}
			return &List{out}
		},
		"count": func(s *state, of any, c *call) any {
			a := bind("count", c, "/sub", "/start?", "/end?")
			text, _ := asText(of)
			s.charge(len(text))
			cut, _, ok := bounds(text, a[1], a[2])
			sub := needText(a[0])
			if !ok {
				return int64(0)
			}
			return int64(strings.Count(cut, sub))
		},
		"replace": func(s *state, of any, c *call) any {
			a := bind("replace", c, "/old", "/new", "/count?")
			text, _ := asText(of)
			return sameKind(of, replace(s, text, needText(a[0]), s.escapeArg(of, a[1]),
				or(a[2], -1, needInt)))
		},
		"removeprefix": func(_ *state, of any, c *call) any {
			text, _ := asText(of)
			return sameKind(of, strings.TrimPrefix(text, needText(bind("removeprefix", c,
				"/prefix")[0])))
		},
		"removesuffix": func(_ *state, of any, c *call) any {
			text, _ := asText(of)
			return sameKind(of, strings.TrimSuffix(text, needText(bind("removesuffix", c,
				"/suffix")[0])))
		},
		"zfill": func(s *state, of any, c *call) any {
			text, _ := asText(of)
			width := needInt(bind("zfill", c, "/width")[0])
			sign := ""
			if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
				sign, text = text[:1], text[1:]
			}
			return sameKind(of, sign+s.padTo(text, width-len(sign), "0",
				func(n, _ int) int { return n }))
		},
		"expandtabs": func(s *state, of any, c *call) any {
			text, _ := asText(of)
			size := or(bind("expandtabs", c, "tabsize?")[0], 8, needInt)
			var b strings.Builder
			column := 0
			for _, r := range text {
				switch {
				case r != '\t':
					b.WriteRune(r)
					if column++; r == '\n' || r == '\r' {
						column = 0
					}
				case size > 0:
					n := size - column%size
					s.size(b.Len() + n)
					b.WriteString(strings.Repeat(" ", n))
					column += n
				}
			}
			return sameKind(of, b.String())
		},
		"join": func(s *state, of any, c *call) any {
			sep, _ := asText(of)
			var parts []string
			for i, v := range s.items(bind("join", c, "/iterable")[0]) {
				if _, ok := of.(markup); ok {
					parts = append(parts, s.html(v))
					continue
				}
				text, ok := asText(v)
				if !ok {
					fail("sequence item %d: expected str instance, %s found", i, typeName(v))
				}
				parts = append(parts, text)
			}
			return sameKind(of, s.join(parts, sep))
		},
		"format": func(s *state, of any, c *call) any {
			text, _ := asText(of)
			_, safe := of.(markup)
			return wrap(s.format(text, c.pos, c.kw, safe), safe)
		},
		"format_map": func(s *state, of any, c *call) any {
			text, _ := asText(of)
			_, safe := of.(markup)
			d, ok := bind("format_map", c, "/mapping")[0].(*Dict)
			if !ok {
				fail("format_map() needs a mapping")
			}
			return wrap(s.format(text, nil, d, safe), safe)
		},
	}
	dictMethods = map[string]valueMethod{
		"get": func(_ *state, of any, c *call) any {
			a := bind("get", c, "/key", "/default?")
			if v, ok := of.(*Dict).Get(a[0]); ok {
				return v
			}
			return or(a[1], nil, func(v any) any { return v })
		},
		"copy": func(s *state, of any, c *call) any {
			bind("copy", c)
			return makeDict(s, newCall(of))
		},
	}
	for _, kind := range []string{"keys", "values", "items"} {
		dictMethods[kind] = func(_ *state, of any, c *call) any {
			bind(kind, c)
			return &view{kind, of.(*Dict)}
		}
	}
	sequenceMethods = map[string]valueMethod{
		"count": func(s *state, of any, c *call) any {
			v := bind("count", c, "/value")[0]
			n := int64(0)
			for _, e := range s.items(of) {
				if s.same(e, v) {
					n++
				}
			}
			return n
		},
		"index": func(s *state, of any, c *call) any {
			a := bind("index", c, "/value", "/start?", "/stop?")
			items := s.items(of)
			whole := func(v any) any { return or(v, nil, func(v any) any { return v }) }
			if _, ok := of.(*Range); ok && (a[1] != absent || a[2] != absent) {
				fail("range.index() takes exactly one argument")
			}
			from, to, _ := span(whole(a[1]), whole(a[2]), nil, len(items))
			for i := from; i < to; i++ {
				if s.same(items[i], a[0]) {
					return int64(i)
				}
			}
			fail("%s is not in the %s", s.repr(a[0]), typeName(of))
			return nil
		},
	}
}

// html returns markupsafe's escape of a value.
func (s *state) html(v any) string {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return string(s.escape(s.str(v)))
}

// join returns the parts with sep between them.
func (s *state) join(parts []string, sep string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
		if n > s.limits.Text+len(sep) {
			s.size(n)
		}
	}
	s.charge(n)
	return strings.Join(parts, sep)
}
