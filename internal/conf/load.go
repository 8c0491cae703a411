// Package conf turns a struct of defaults, a YAML file, dotted overrides ("actor.optim.lr=1e-6")
// and command-line flags into one resolved configuration, and describes, checks and writes such
// structs.
//
//	load.go     from file, overrides and flags into a struct: start here
//	schema.go   a struct's settings, and the rules in its tags
//	suggest.go  hints for misspelled names
//	tree.go     documents whose names the writer chooses
//	write.go    YAML, Markdown and help of a struct
//
// A configuration is a struct whose fields carry tags:
//
//	LR float64 `yaml:"lr" doc:"learning rate" min:"0" max:"1"`
//	Mode string `yaml:"mode" doc:"policy loss" choices:"vanilla,gspo"`
//
// Nested structs are groups; `yaml:",inline"` puts a struct's fields into the group around it;
// `yaml:"-"` hides a field. Leaves are string, bool, integers, float64, []string and []float64.
// min, max (inclusive) and choices hold for each element of a list.
//
// Later sources win: defaults, file, overrides from left to right, flags. Values are parsed by the
// type of the setting, not guessed from their spelling: 1e-5 and 3 are numbers, `name: 010` is the
// text 010, and `lr: 010` is refused because YAML 1.1 reads it as eight. Anchors, aliases, merge
// keys and tags are refused: each value stands where it is used, and a document cannot grow when
// parsed.
package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile     = 256 << 10 // bytes; a full configuration is some 10 kB
	maxProblems = 50        // reported at once
	maxQuoted   = 60        // bytes of a refused value that a message shows
)

// Flag is a setting given as a command-line flag. Value is parsed like an override's value, except
// that the flags of one list setting add up: each Value is one element, or several in the form [a,
// b].
type Flag struct {
	Key   string // dotted, "actor.optim.lr"
	Value string
	Name  string // as the user types it, "--lr"; messages name it
}

// Problem is one mistake: its place, and the rule that it breaks.
type Problem struct {
	Where string // "run.yaml:3:5" (file:line:column), `override "rollout.n=0"`, "flag --lr"
	Msg   string
}

// Problems are all mistakes of a configuration. Load and Check return no other type of error.
type Problems []Problem

// Error returns a line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, x := range p {
		lines[i] = "settings: " + x.Where + ": " + x.Msg
	}
	return strings.Join(lines, "\n")
}

// Load fills out, a pointer to a struct that holds the defaults, from the YAML file at path ("" =
// none), then the overrides, then the flags. It returns all mistakes at once, as Problems, and then
// leaves out unchanged. A struct that cannot be a configuration panics. out may have two methods.
// Hint(key string) string explains an unknown key, such as another program's name for a setting; ""
// is no explanation. Retired(key string) (off string, ok bool) names a setting that was removed,
// and its value that had no effect: a file may still have it with that value, because files written
// by programs have all settings.
func Load(out any, path string, overrides []string, flags []Flag) error {
	if reflect.ValueOf(out).Kind() != reflect.Pointer {
		panic(fmt.Sprintf("conf: Load into %T: expected a pointer to a struct", out))
	}
	dst := structOf(out)
	ld := &loader{schema: schemaOf(dst.Type()), val: reflect.New(dst.Type()).Elem()}
	ld.val.Set(dst)
	if h, ok := out.(interface{ Hint(key string) string }); ok {
		ld.hint = h.Hint
	}
	if r, ok := out.(interface {
		Retired(key string) (off string, ok bool)
	}); ok {
		ld.retired = r.Retired
	}
	if path != "" {
		ld.readFile(path)
	}
	for _, o := range overrides {
		ld.override(o)
	}
	added := map[string]bool{} // lists with an element of an earlier flag
	for _, f := range flags {
		ld.flag(f, added)
	}
	if len(ld.problems) > 0 {
		return ld.problems
	}
	dst.Set(ld.val)
	return nil
}

// loader is the state of one Load.
type loader struct {
	*schema
	val      reflect.Value // the copy of the struct that is being filled
	hint     func(key string) string
	retired  func(key string) (off string, ok bool)
	problems Problems
}

// hintFor returns the setting that an unknown key may stand for, as a message.
func (ld *loader) hintFor(key string) string {
	if ld.hint != nil {
		if h := ld.hint(key); h != "" {
			return h
		}
	}
	return ld.suggest(key)
}

// report adds a problem, up to maxProblems of them.
func (ld *loader) report(where, format string, args ...any) {
	switch n := len(ld.problems); {
	case n < maxProblems:
		ld.problems = append(ld.problems, Problem{where, fmt.Sprintf(format, args...)})
	case n == maxProblems:
		ld.problems = append(ld.problems, Problem{where, "and more: fix these first"})
	}
}

// readFile applies the YAML file at path.
func (ld *loader) readFile(path string) {
	root, problem := readDocument(path)
	if problem != nil {
		ld.report(problem.Where, "%s", problem.Msg)
		return
	}
	if root == nil {
		return // an empty document sets nothing
	}
	if msg := plainNode(root); msg != "" {
		ld.report(position(path, root), "%s", msg)
		return
	}
	if root.Kind != yaml.MappingNode {
		ld.report(position(path, root), "expected groups and settings, such as trainer: {seed: 1}")
		return
	}
	ld.group(path, "", root)
}

// readDocument parses the file at path. It returns the root node, nil for an empty file, or a
// problem.
func readDocument(path string) (*yaml.Node, *Problem) {
	b, err := readBounded(path)
	if err != nil {
		return nil, &Problem{path, err.Error()}
	}
	root, err := parse(b)
	if err != nil {
		line, msg := "", strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(msg); m != nil {
			line, msg = ":"+m[1], m[2]
		}
		if strings.Contains(msg, "cannot start any token") && bytes.Contains(b, []byte("\t")) {
			msg += ": indent with spaces, not tabs"
		} else if msg == "did not find expected key" ||
			strings.HasPrefix(msg, "mapping values are not allowed") {
			msg += ": check the indentation: the settings of a group begin in the same column"
		}
		return nil, &Problem{path + line, "not YAML: " + msg}
	}
	return root, nil
}

var yamlLine = regexp.MustCompile(`^line (\d+): (.*)$`)

// readBounded returns the content of a regular file of at most maxFile bytes. A pipe or a device is
// refused before it is opened: opening one may block, and reading one may never end.
func readBounded(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, reason(err)
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, reason(err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes: is this a configuration?", maxFile)
	}
	return b, nil
}

// reason returns err without the operation and the path, which the message names already.
func reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// parse returns the root node of the only document in b, nil for an empty one. Aliases are not
// expanded, neither here nor later.
func parse(b []byte) (root *yaml.Node, err error) {
	defer func() { // the library's parser is large; a panic in it must not end the process
		if p := recover(); p != nil {
			root, err = nil, fmt.Errorf("the parser failed: %v", p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case err == io.EOF:
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document: only one is allowed", more.Line)
	case err != io.EOF:
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	if root = doc.Content[0]; root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	return root, nil
}

// position returns n's place as file:line:column.
func position(path string, n *yaml.Node) string {
	return fmt.Sprintf("%s:%d:%d", path, n.Line, n.Column)
}

// plainNode returns why n is refused (an alias, an anchor or a tag), or "".
func plainNode(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return "aliases (*name) are refused: write the value out"
	case n.Anchor != "":
		return "anchors (&name) are refused: write the value out where it is needed"
	case n.Style&yaml.TaggedStyle != 0:
		return "tags (!name) are refused: the setting's type is known"
	}
	return ""
}

// group applies the mapping n to the settings of the group name.
func (ld *loader) group(path, name string, n *yaml.Node) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		where := position(path, k)
		if k.Kind == yaml.ScalarNode && k.Tag == "!!merge" {
			ld.report(where, "merge keys (<<) are refused: write the settings out")
			continue
		}
		if msg := plainNode(k); msg != "" {
			ld.report(where, "%s", msg)
			continue
		}
		if k.Kind != yaml.ScalarNode {
			ld.report(where, "expected a name as key")
			continue
		}
		key := join(name, k.Value)
		if f := first[k.Value]; f != nil {
			ld.report(where, "setting %s: given twice, first at %d:%d: keep one", quote(key), f.Line,
				f.Column)
			continue
		}
		first[k.Value] = k
		if msg := plainNode(v); msg != "" {
			ld.report(position(path, v), "setting %s: %s", quote(key), msg)
			continue
		}
		// A dotted key is never a member, even where the dotted path exists.
		l, known := ld.byKey[key], slices.Contains(ld.groups[name], k.Value)
		switch {
		case known && l != nil:
			ld.node(path, l, v)
		case known && v.Kind == yaml.MappingNode:
			ld.group(path, key, v)
		case known:
			// empty, as where all its settings are comments: see Template
			if v.Kind != yaml.ScalarNode || v.Tag != "!!null" {
				ld.report(position(path, v), "group %q: expected settings below it, such as %s", key,
					ld.example(key))
			}
		case ld.byKey[key] != nil:
			ld.report(where, "setting %s: dotted names are for the command line: in a file write one level per line, each indented below the last", quote(key))
		case ld.isRetired(key, v):
		default:
			ld.report(where, "setting %s: unknown: %s", quote(key), ld.hintFor(key))
		}
	}
}

// isRetired reports whether key is a removed setting and v its value without effect.
func (ld *loader) isRetired(key string, v *yaml.Node) bool {
	if ld.retired == nil {
		return false
	}
	off, ok := ld.retired(key)
	return ok && v.Kind == yaml.ScalarNode && v.Value == off
}

// example returns a setting of a group, for a message.
func (ld *loader) example(group string) string {
	for _, l := range ld.leaves {
		if strings.HasPrefix(l.Key, group+".") {
			return l.Key
		}
	}
	return group
}

// node sets the leaf l from a YAML value.
func (ld *loader) node(path string, l *leaf, n *yaml.Node) {
	where := position(path, n)
	if n.Kind == yaml.MappingNode {
		ld.report(where, "setting %q: is one value, not a group: expected %s", l.Key, article(l.Type))
		return
	}
	if l.typ.Kind() == reflect.Slice {
		ld.list(where, l, n, func(n *yaml.Node) string { return position(path, n) })
		return
	}
	if n.Kind != yaml.ScalarNode {
		ld.report(where, "setting %q: is one value, not a list: expected %s", l.Key, article(l.Type))
		return
	}
	if v, ok := ld.scalar(where, l, n); ok {
		ld.val.FieldByIndex(l.index).Set(v)
	}
}

// list sets the list leaf l from a YAML sequence. An empty list becomes nil. For a list of texts a
// single text is a list of one, and an empty text an empty list.
func (ld *loader) list(where string, l *leaf, n *yaml.Node, at func(*yaml.Node) string) bool {
	if n.Kind == yaml.ScalarNode && l.typ.Elem().Kind() == reflect.String {
		return ld.oneText(where, l, n)
	}
	if n.Kind != yaml.SequenceNode {
		ld.report(where, "setting %q: %s: expected %s, such as [%s]", l.Key, quote(n.Value),
			article(l.Type), sample(l.typ.Elem()))
		return false
	}
	all := reflect.Zero(l.typ)
	good := true
	for _, c := range n.Content {
		switch msg := plainNode(c); {
		case msg != "":
			ld.report(at(c), "setting %q: %s", l.Key, msg)
			good = false
			continue
		case c.Kind != yaml.ScalarNode:
			ld.report(at(c), "setting %q: expected %s: an element is itself a list or a group", l.Key,
				article(l.Type))
			good = false
			continue
		}
		v, ok := ld.scalar(at(c), l, c)
		if good = good && ok; good {
			all = reflect.Append(all, v)
		}
	}
	if good {
		ld.val.FieldByIndex(l.index).Set(all)
	}
	return good
}

// isList reports whether val is a list [a, b] for the leaf l, not one text that begins with a
// bracket, such as the pattern [ab].jsonl.
func isList(l *leaf, val string) bool {
	val = strings.TrimSpace(val)
	return elem(l.typ).Kind() != reflect.String || strings.HasPrefix(val, "[") &&
		(strings.HasSuffix(val, "]") || !strings.Contains(val, "]"))
}

// oneText sets a list of texts from a single text.
func (ld *loader) oneText(where string, l *leaf, n *yaml.Node) bool {
	v, ok := ld.scalar(where, l, n)
	if ok {
		all := reflect.Zero(l.typ)
		if v.String() != "" {
			all = reflect.Append(all, v)
		}
		ld.val.FieldByIndex(l.index).Set(all)
	}
	return ok
}

// sample returns elements for the example of a list in a message.
func sample(t reflect.Type) string {
	if t.Kind() == reflect.Float64 {
		return "0.5, 1"
	}
	return "a, b"
}

// scalar parses one YAML scalar as a value of the leaf's (element) type; false after a problem.
func (ld *loader) scalar(where string, l *leaf, n *yaml.Node) (reflect.Value, bool) {
	text := elem(l.typ).Kind() == reflect.String
	switch quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0; {
	case !quoted && n.Tag == "!!null":
		rule := "no value: give one, or leave the setting out to keep the default"
		if text {
			rule = `no value: write "" for an empty text, or leave the setting out to keep the default`
		}
		ld.report(where, "setting %q: %s", l.Key, rule)
		return reflect.Value{}, false
	case quoted && !text && set(reflect.New(elem(l.typ)).Elem(), n.Value) == "":
		ld.report(where, "setting %q: %s: expected %s: write it without quotes", l.Key, quote(n.Value),
			article(typeName(elem(l.typ))))
		return reflect.Value{}, false
	}
	return ld.parse(where, l, n.Value)
}

// parse parses text as a value of the leaf's (element) type and checks min, max and choices; false
// after a problem.
func (ld *loader) parse(where string, l *leaf, text string) (reflect.Value, bool) {
	v := reflect.New(elem(l.typ)).Elem()
	rule := set(v, text)
	if rule == "" {
		rule = l.rule(v)
	}
	if rule != "" {
		ld.report(where, "setting %q: %s: %s", l.Key, quote(text), rule)
		return v, false
	}
	return v, true
}

var (
	decimal = regexp.MustCompile(`^[-+]?[0-9]+$`)
	number  = regexp.MustCompile(`^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$`)
	octal   = regexp.MustCompile(`^[-+]?0[0-9]`)
)

// set parses text into v. It returns the rule that text breaks, "" if v was set.
func set(v reflect.Value, text string) string {
	t := v.Type()
	if isNumber(t) && octal.MatchString(text) && number.MatchString(text) {
		sign, digits := "", strings.TrimLeft(text, "+-")
		if text[0] == '-' {
			sign = "-"
		}
		if digits = strings.TrimLeft(digits, "0"); digits == "" || digits[0] < '0' ||
			digits[0] > '9' {
			digits = "0" + digits
		}
		return fmt.Sprintf("a leading zero, which YAML 1.1 reads as octal: write %s%s", sign,
			digits)
	}
	switch {
	case t.Kind() == reflect.String:
		if !utf8.ValidString(text) {
			return "not valid UTF-8"
		}
		v.SetString(text)
	case t.Kind() == reflect.Bool:
		switch text {
		case "true", "True", "TRUE":
			v.SetBool(true)
		case "false", "False", "FALSE":
			v.SetBool(false)
		default:
			return "expected true or false"
		}
	case isInt(t), isUint(t):
		if !decimal.MatchString(text) {
			// 1e6 and 8.0 are integers to a person: the message has their spelling, up to where
			// float64 is exact.
			if f, err := strconv.ParseFloat(text, 64); err == nil && number.MatchString(text) &&
				f == math.Trunc(f) && math.Abs(f) < 1<<53 {
				return fmt.Sprintf("expected an integer: write %.0f", f)
			}
			return "expected an integer in decimal digits"
		}
		if isInt(t) {
			i, err := strconv.ParseInt(text, 10, t.Bits())
			if err != nil {
				return fmt.Sprintf("does not fit: expected at most %d bits", t.Bits())
			}
			v.SetInt(i)
			return ""
		}
		if text[0] == '-' && strings.Trim(text, "-0") != "" {
			return "expected an integer of at least 0"
		}
		u, err := strconv.ParseUint(strings.TrimLeft(text, "+-"), 10, t.Bits())
		if err != nil {
			return fmt.Sprintf("does not fit: expected at most %d bits", t.Bits())
		}
		v.SetUint(u)
	default:
		f, err := strconv.ParseFloat(text, 64)
		switch {
		case strings.Trim(strings.ToLower(text), "+-.") == "inf",
			strings.Trim(strings.ToLower(text), ".") == "nan":
			return "expected a finite number"
		case !number.MatchString(text):
			return "expected a number, such as 0.2 or 1e-6"
		case err != nil:
			return "expected a finite number"
		}
		v.SetFloat(f)
	}
	return ""
}

// override applies one "a.b=1" of the command line.
func (ld *loader) override(o string) {
	where := "override " + quote(o)
	if strings.HasPrefix(o, "-") {
		ld.report(where, "looks like a flag: a setting is written without dashes, setting=value")
		return
	}
	key, val, ok := strings.Cut(o, "=")
	if !ok || key == "" {
		ld.report(where, "expected setting=value, such as %s", ld.leaves[0].Key+"=...")
		return
	}
	if rest := strings.TrimLeft(key, "+~"); rest != key {
		ld.report(where, "a leading + or ~ adds and deletes settings in Hydra; here every setting exists: write %s=%s", rest, clip(val))
		return
	}
	l := ld.lookup(where, key)
	if l == nil {
		return
	}
	if l.typ.Kind() == reflect.Slice {
		if !isList(l, val) { // as it stands
			ld.oneText(where, l, &yaml.Node{Kind: yaml.ScalarNode, Value: val,
				Style: yaml.DoubleQuotedStyle})
			return
		}
		ld.flow(where, l, val)
		return
	}
	if v, ok := ld.text(where, l, val); ok {
		ld.val.FieldByIndex(l.index).Set(v)
	}
}

// text parses a value of the command line, from which the shell has removed quotes: a text is taken
// literally.
func (ld *loader) text(where string, l *leaf, val string) (reflect.Value, bool) {
	if elem(l.typ).Kind() != reflect.String {
		if val = strings.TrimSpace(val); val == "" {
			ld.report(where, "setting %q: no value: expected %s", l.Key, article(l.Type))
			return reflect.Value{}, false
		}
	}
	return ld.parse(where, l, val)
}

// flow sets a list from [a, b] on the command line; false after a problem.
func (ld *loader) flow(where string, l *leaf, val string) bool {
	if len(val) > maxFile {
		ld.report(where, "setting %q: longer than %d bytes", l.Key, maxFile)
		return false
	}
	n, err := parse([]byte(val))
	if err != nil {
		ld.report(where, "setting %q: expected %s, such as [%s]: %s", l.Key, article(l.Type),
			sample(l.typ.Elem()), strings.TrimPrefix(err.Error(), "yaml: "))
		return false
	}
	if n == nil {
		n = &yaml.Node{Kind: yaml.ScalarNode, Value: val}
	}
	if msg := plainNode(n); msg != "" {
		ld.report(where, "setting %q: %s", l.Key, msg)
		return false
	}
	return ld.list(where, l, n, func(*yaml.Node) string { return where })
}

// flag applies one flag. added are the keys of lists to which an earlier flag has added.
func (ld *loader) flag(f Flag, added map[string]bool) {
	name := f.Name
	if !strings.HasPrefix(name, "-") {
		name = "--" + name
	}
	where := "flag " + name
	l := ld.lookup(where, f.Key)
	if l == nil {
		return
	}
	field := ld.val.FieldByIndex(l.index)
	if l.typ.Kind() != reflect.Slice {
		if v, ok := ld.text(where, l, f.Value); ok {
			field.Set(v)
		}
		return
	}
	before := reflect.Zero(l.typ)
	if added[l.Key] {
		before = reflect.ValueOf(field.Interface())
	}
	if isList(l, f.Value) && strings.HasPrefix(f.Value, "[") {
		if !ld.flow(where, l, f.Value) {
			return
		}
		field.Set(reflect.AppendSlice(before, reflect.ValueOf(field.Interface())))
	} else {
		v, ok := ld.text(where, l, f.Value)
		if !ok {
			return
		}
		field.Set(reflect.Append(before, v))
	}
	added[l.Key] = true
}

// lookup returns the setting of a dotted key; an unknown key or a group is a problem, and nil.
func (ld *loader) lookup(where, key string) *leaf {
	l := ld.byKey[key]
	switch {
	case l != nil:
	case ld.groups[key] != nil:
		ld.report(where, "group %q: name one of its settings, such as %s", key, ld.example(key))
	default:
		ld.report(where, "setting %s: unknown: %s", quote(key), ld.hintFor(key))
	}
	return l
}

// article returns a type's name with its article, for a message.
func article(typ string) string {
	switch typ {
	case "true or false", "text":
		return typ
	case "integer":
		return "an integer"
	}
	return "a " + typ
}

// clip returns s cut after maxQuoted bytes at a character's border.
func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	end := maxQuoted
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// quote returns s, clipped, in quotes.
func quote(s string) string { return strconv.Quote(clip(s)) }
