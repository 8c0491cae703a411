package conf

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Names that the writer chooses are read in their order, and everything that is wrong is
// said at once, with its place.
func TestTree(t *testing.T) {
	path := write(t,
		"name: 010\nsizes: [1, 2e0]\narms:\n  b: {rate: 1e-3, on: true}\n  a b: {rate: .5}\n")
	n, err := ReadTree(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Group("name", "sizes", "arms", "more"); !reflect.DeepEqual(got,
		[]string{"name", "sizes", "arms"}) {
		t.Errorf("%q", got)
	}
	if Value[string](n.Get("name")) != "010" ||
		!reflect.DeepEqual(Values[float64](n.Get("sizes")), []float64{1, 2}) {
		t.Error("values")
	}
	arms := n.Get("arms")
	if got := arms.Group(); !reflect.DeepEqual(got, []string{"b", "a b"}) {
		t.Errorf("%q", got)
	}
	if b := arms.Get("b"); len(b.Group("rate", "on")) != 2 ||
		Value[float64](b.Get("rate")) != 1e-3 || !Value[bool](b.Get("on")) || b.Get("off") != nil {
		t.Error("a group in a group")
	}
	if Value[int](n.Get("more")) != 0 || n.Get("more").List() != nil ||
		n.Get("more").Get("x").IsText() {
		t.Error("what is not given is not zero")
	}
	if err := n.Err(); err != nil {
		t.Error(err)
	}
	// Now otherwise than it is: each misreading is noted.
	arms.List()
	Values[int](n.Get("sizes"))
	Value[string](n.Get("sizes"))
	Value[int](n.Get("name"))
	arms.Get("b").Get("rate").Group()
	n.Get("name").Bad("is %d letters", 3)
	want := `settings: run.yaml:4:3: setting "arms": expected a list, such as [a, b]
settings: run.yaml:2:12: setting "sizes[1]": "2e0": expected an integer: write 2
settings: run.yaml:2:8: setting "sizes": is one value, not a list or a group: expected text
settings: run.yaml:1:7: setting "name": "010": a leading zero, which YAML 1.1 reads as octal: write 10
settings: run.yaml:4:13: setting "arms.b.rate": expected a group, such as {name: value}
settings: run.yaml:1:7: setting "name": is 3 letters`
	var problems Problems
	if err := n.Err(); !errors.As(err, &problems) ||
		strings.ReplaceAll(err.Error(), path, "run.yaml") != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestTreeProblems(t *testing.T) {
	for text, want := range map[string]string{
		"arms: {x: 1}\narm: 1\n":   `settings: run.yaml:2:1: setting "arm": unknown: did you mean "arms"?`,
		"zzz: 1\n":                 `settings: run.yaml:1:1: setting "zzz": unknown: known here: arms, name`,
		"name: a\nname: b\n":       `settings: run.yaml:2:1: setting "name": given twice, first at 1:7: keep one`,
		"name: *a\n":               `settings: run.yaml: not YAML: unknown anchor 'a' referenced`,
		"name: &a x\n":             `settings: run.yaml:1:7: setting "name": anchors (&name) are refused: write the value out where it is needed`,
		"<<: {name: a}\n":          `settings: run.yaml:1:1: merge keys (<<) are refused: write the settings out`,
		"? [a]\n: b\n":             `settings: run.yaml:1:3: expected a name as key`,
		"- a\n":                    `settings: run.yaml:1:1: expected a group, such as {arms: ...}`,
		"name: ~\n":                `settings: run.yaml:1:7: setting "name": no value: give one, or leave the setting out`,
		"":                         `settings: run.yaml: empty: expected groups and settings`,
		"name: [\n":                `settings: run.yaml:1: not YAML: did not find expected node content`,
		"arms: {a: 1, b: !!str 2}": `settings: run.yaml:1:17: setting "arms.b": tags (!name) are refused: the setting's type is known`,
	} {
		path := write(t, text)
		n, err := ReadTree(path)
		if err == nil {
			n.Group("arms", "name")
			n.Get("arms").Group()
			Value[string](n.Get("name"))
			err = n.Err()
		}
		if err == nil || strings.ReplaceAll(err.Error(), path, "run.yaml") != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}
