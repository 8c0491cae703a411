package architecture

import (
	"strings"
	"testing"
)

// Each family has a model type of its own, and the list of an error names all of them once.
func TestFamilies(t *testing.T) {
	seen, list := map[string]bool{}, ModelTypes()
	for name, f := range Families {
		if f.ModelType == "" || seen[f.ModelType] {
			t.Errorf("%s: model type %q", name, f.ModelType)
		}
		seen[f.ModelType] = true
		if f.Spec.Layers != nil || f.Spec.Ropes != nil || f.Spec.Scale != 0 {
			t.Errorf("%s: the row has what config.json says", name)
		}
		if !f.Spec.PreNorm && !f.Spec.PostNorm {
			t.Errorf("%s: no norm", name)
		}
	}
	names := strings.FieldsFunc(strings.Replace(list, " or ", ", ", 1),
		func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) != len(Families) {
		t.Errorf("%q names %d of %d", list, len(names), len(Families))
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("%q is no model type", name)
		}
	}
}

// A spec is plain where nothing stands between a layer's last product and the residual stream.
func TestPlain(t *testing.T) {
	for _, c := range []struct {
		s    Spec
		want bool
	}{
		{Spec{PreNorm: true, Residual: 1}, true},
		{Spec{PreNorm: true, Residual: 0.5}, false},
		{Spec{PostNorm: true, Residual: 1}, false},
	} {
		if c.s.Plain() != c.want {
			t.Errorf("%+v: %v", c.s, c.s.Plain())
		}
	}
}
