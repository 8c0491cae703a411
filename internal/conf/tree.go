package conf

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Node is a value of a YAML document in which the writer chooses names, such as the arms of a
// study, so that no struct can list them. It is read by hand, as strictly as Load reads a struct:
// names that are not known are refused with what was meant, values are read by the type that is
// asked for, and anchors, aliases, merge keys and tags have no place.
//
// What is wrong is gathered, not returned: read everything, then ask Err. A nil Node is a value
// that was not given; it reads as zero, empty and not given.
type Node struct {
	Where string // file:line:column
	Name  string // the dotted way to it, "arms.GAD[1].steps"; "" is the document

	path     string
	yaml     *yaml.Node
	problems *Problems
	names    []string // of a group, in the document's order
	members  map[string]*Node
}

// ReadTree reads the YAML file at path. The error is Problems, of which there is one here: a file
// that cannot be read or is not YAML.
func ReadTree(path string) (*Node, error) {
	root, problem := document(path)
	if problem != nil {
		return nil, Problems{*problem}
	}
	if root == nil {
		return nil, Problems{{path, "empty: expected groups and settings"}}
	}
	n := &Node{Where: at(path, root), path: path, yaml: root, problems: &Problems{}}
	n.plain()
	return n, nil
}

// Err is all that has been found wrong so far, as Problems; nil is nothing.
func (n *Node) Err() error {
	if len(*n.problems) == 0 {
		return nil
	}
	return *n.problems
}

// Bad notes what is wrong with the value. Of a nil Node nothing is noted.
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

func (n *Node) note(where, msg string) {
	switch p := n.problems; {
	case len(*p) < maxProblems:
		*p = append(*p, Problem{where, msg})
	case len(*p) == maxProblems:
		*p = append(*p, Problem{where, "and more: fix these first"})
	}
}

// plain notes a use of YAML that has no place here; it reports whether there is none.
func (n *Node) plain() bool {
	if msg := plainNode(n.yaml); msg != "" {
		n.Bad("%s", msg)
		return false
	}
	return true
}

// IsText reports whether the value is one scalar, not a list or a group.
func (n *Node) IsText() bool { return n != nil && n.yaml.Kind == yaml.ScalarNode }

// Group reads the value as a group of the known names, of any names where none is known. Get has
// its members then.
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
		key := &Node{Where: at(n.path, k), Name: join(n.Name, k.Value), path: n.path, yaml: k,
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
		value := &Node{Where: at(n.path, v), Name: key.Name, path: n.path, yaml: v,
			problems: n.problems}
		if !value.plain() {
			continue
		}
		n.names = append(n.names, k.Value)
		n.members[k.Value] = value
	}
	return n.names
}

// Get is a member of a group that Group has read, nil where it was not given.
func (n *Node) Get(name string) *Node {
	if n == nil {
		return nil
	}
	return n.members[name]
}

// Nearest is the one of names that is spelled almost like s, "" if none is.
func Nearest(s string, names []string) string { return nearest(s, names) }

// List is the elements of a list.
func (n *Node) List() (list []*Node) {
	if n == nil || !n.plain() {
		return nil
	}
	if n.yaml.Kind != yaml.SequenceNode {
		n.Bad("expected a list, such as [a, b]")
		return nil
	}
	for i, c := range n.yaml.Content {
		e := &Node{Where: at(n.path, c), Name: fmt.Sprintf("%s[%d]", n.Name, i), path: n.path,
			yaml: c, problems: n.problems}
		if e.plain() {
			list = append(list, e)
		}
	}
	return list
}

// Value reads one value of the type.
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

// Values reads a list of values of the type.
func Values[T string | bool | int | uint64 | float64](n *Node) (list []T) {
	for _, e := range n.List() {
		list = append(list, Value[T](e))
	}
	return list
}
