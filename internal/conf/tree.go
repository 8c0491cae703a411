package conf

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Node is a value of a YAML document whose names the writer chooses, such as the arms of a study,
// so that no struct can list them. The caller walks it, and it is as strict as Load: unknown names
// are refused with a suggestion, values are parsed by the type asked for, and anchors, aliases,
// merge keys and tags are refused.
//
// Mistakes are collected, not returned: read everything, then call Err. A nil Node is a value that
// is not in the document; it reads as zero or empty.
type Node struct {
	Where string // file:line:column
	Name  string // the dotted path to it, "arms.GAD[1].steps"; "" is the document

	path     string
	yaml     *yaml.Node
	problems *Problems
	names    []string // of a group, in the document's order
	members  map[string]*Node
}

// ReadTree parses the YAML file at path. The error is Problems with one entry: the file cannot be
// read or is not YAML.
func ReadTree(path string) (*Node, error) {
	root, problem := readDocument(path)
	if problem != nil {
		return nil, Problems{*problem}
	}
	if root == nil {
		return nil, Problems{{path, "empty: expected groups and settings"}}
	}
	n := &Node{Where: position(path, root), path: path, yaml: root, problems: &Problems{}}
	n.plain()
	return n, nil
}

// Err returns all mistakes found so far, as Problems; nil if there are none.
func (n *Node) Err() error {
	if len(*n.problems) == 0 {
		return nil
	}
	return *n.problems
}

// Bad adds a mistake of this value. For a nil Node it does nothing.
func (n *Node) Bad(format string, args ...any) {
	if n == nil {
		return
	}
	what := ""
	if n.Name != "" {
		what = "setting " + quote(n.Name) + ": "
	}
	n.note(n.Where, what+fmt.Sprintf(format, args...))
}

// note adds a problem, up to maxProblems of them.
func (n *Node) note(where, msg string) {
	switch p := n.problems; {
	case len(*p) < maxProblems:
		*p = append(*p, Problem{where, msg})
	case len(*p) == maxProblems:
		*p = append(*p, Problem{where, "and more: fix these first"})
	}
}

// plain reports whether the value is free of aliases, anchors and tags; one of them is a problem.
func (n *Node) plain() bool {
	if msg := plainNode(n.yaml); msg != "" {
		n.Bad("%s", msg)
		return false
	}
	return true
}

// IsText reports whether the value is one scalar, not a list or a group.
func (n *Node) IsText() bool { return n != nil && n.yaml.Kind == yaml.ScalarNode }

// Group parses the value as a group of the known names, or of any names if none is given, and
// returns the names in the document's order. Get then returns its members.
func (n *Node) Group(known ...string) (names []string) {
	if n == nil || !n.plain() {
		return nil
	}
	if n.members != nil {
		return n.names
	}
	if n.yaml.Kind != yaml.MappingNode || len(n.yaml.Content) == 0 {
		example := "name: value"
		if len(known) > 0 {
			example = known[0] + ": ..."
		}
		n.Bad("expected a group, such as {%s}", example)
		return nil
	}
	n.members = map[string]*Node{}
	for i := 0; i+1 < len(n.yaml.Content); i += 2 {
		k, v := n.yaml.Content[i], n.yaml.Content[i+1]
		key := &Node{Where: position(n.path, k), Name: join(n.Name, k.Value), path: n.path, yaml: k,
			problems: n.problems}
		switch {
		case k.Kind == yaml.ScalarNode && k.Tag == "!!merge":
			n.note(key.Where, "merge keys (<<) are refused: write the settings out")
			continue
		case k.Kind != yaml.ScalarNode || k.Value == "":
			n.note(key.Where, "expected a name as key")
			continue
		case !key.plain():
			continue
		case n.members[k.Value] != nil:
			key.Bad("given twice, first at %s: keep one",
				strings.TrimPrefix(n.members[k.Value].Where, n.path+":"))
			continue
		case len(known) > 0 && !slices.Contains(known, k.Value):
			if near := nearest(k.Value, known); near != "" {
				key.Bad("unknown: did you mean %q?", near)
			} else {
				key.Bad("unknown: known here: %s", strings.Join(known, ", "))
			}
			continue
		}
		value := &Node{Where: position(n.path, v), Name: key.Name, path: n.path, yaml: v,
			problems: n.problems}
		if !value.plain() {
			continue
		}
		n.names = append(n.names, k.Value)
		n.members[k.Value] = value
	}
	return n.names
}

// Get returns a member of a group that Group has parsed, nil if the document does not have it.
func (n *Node) Get(name string) *Node {
	if n == nil {
		return nil
	}
	return n.members[name]
}

// Nearest returns the name that is spelled almost like s, "" if none is.
func Nearest(s string, names []string) string { return nearest(s, names) }

// List returns the elements of a list.
func (n *Node) List() (list []*Node) {
	if n == nil || !n.plain() {
		return nil
	}
	if n.yaml.Kind != yaml.SequenceNode {
		n.Bad("expected a list, such as [a, b]")
		return nil
	}
	for i, c := range n.yaml.Content {
		e := &Node{Where: position(n.path, c), Name: fmt.Sprintf("%s[%d]", n.Name, i), path: n.path,
			yaml: c, problems: n.problems}
		if e.plain() {
			list = append(list, e)
		}
	}
	return list
}

// Value parses the node as one value of type T; zero for a nil Node or after a mistake.
func Value[T string | bool | int | uint64 | float64](n *Node) (v T) {
	if n == nil {
		return v
	}
	rv := reflect.ValueOf(&v).Elem()
	text := rv.Kind() == reflect.String
	switch {
	case n.yaml.Kind != yaml.ScalarNode:
		n.Bad("is one value, not a list or a group: expected %s", article(typeName(rv.Type())))
		return v
	case n.yaml.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		if !text {
			n.Bad("%s: expected %s: write it without quotes", quote(n.yaml.Value),
				article(typeName(rv.Type())))
			return v
		}
	case n.yaml.Tag == "!!null":
		n.Bad("no value: give one, or leave the setting out")
		return v
	}
	if rule := set(rv, n.yaml.Value); rule != "" {
		n.Bad("%s: %s", quote(n.yaml.Value), rule)
	}
	return v
}

// Values parses the node as a list of values of type T.
func Values[T string | bool | int | uint64 | float64](n *Node) (list []T) {
	for _, e := range n.List() {
		list = append(list, Value[T](e))
	}
	return list
}
