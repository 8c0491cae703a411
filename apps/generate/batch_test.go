package generate

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Lines of a journal as it was until November 2026 have the keys of today's; nothing else has.
func TestKeyOfBefore(t *testing.T) {
	was, err := json.Marshal(settings{Model: "0a", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		string(was): settingsKey,
		`{"row":7,"sample":1,"response":"x","tokens":1,"truncated":false,"finish_reason":"stop"}`: "7/1",
		`{"row":7,"sample":1,"response":"x","tok`:                                                 "",
		`{"row":7,"sample":1}`:                "",
		`{"model_sha256":"0a","mood":"good"}`: "",
		`{}`:                                  "",
		`Dear diary`:                          "",
	} {
		if got := keyOfBefore([]byte(line + "\n")); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// Every setting that an answer depends on is compared, and named by its flag.
func TestSettingsDiffer(t *testing.T) {
	var s settings
	if what := s.differs(s); what != "" {
		t.Errorf("equal settings: %s", what)
	}
	fields := reflect.TypeFor[settings]()
	for i := range fields.NumField() {
		now := s
		switch f := reflect.ValueOf(&now).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int:
			f.SetInt(3)
		case reflect.Uint64:
			f.SetUint(3)
		case reflect.Float64:
			f.SetFloat(0.5)
		}
		what := now.differs(s)
		if name := fields.Field(i).Name; what == "" || !strings.HasPrefix(what, "--") &&
			!strings.Contains(what, " not the same") {
			t.Errorf("%s: %q", name, what)
		}
	}
}
