package journal_test

import (
	"reflect"
	"testing"

	"gad/internal/journal"
)

// TestChanged: every field is compared; one that differs is told with its values or, where it is a
// digest, without.
func TestChanged(t *testing.T) {
	type Sampled struct {
		K int `flag:"--top-k"`
	}
	type settings struct {
		Sampled
		Model  string         `json:"model" same:"the model is"`
		Data   string         `same:"the data are"`
		N      int            `flag:"--n"`
		T      *float64       `flag:"--temperature"`
		Extra  map[string]any `flag:"--extra"`
		Seed   uint64         `flag:"--seed"`
		System string         `flag:"--system"`
		Note   string
	}
	half := 0.5
	at := settings{Model: "m", Data: "d", N: 2, T: &half, Seed: 1, System: "s"}
	for field, c := range map[string]struct {
		now  any
		want string
	}{
		"Model":  {"n", "the model is not the same"},
		"Data":   {"e", "the data are not the same"},
		"N":      {0, "--n was 2, now it is not given"},
		"T":      {(*float64)(nil), "--temperature was 0.5, now it is not given"},
		"Extra":  {map[string]any{"a": 1.0}, `--extra was not given, now it is "{\"a\":1}"`},
		"Seed":   {uint64(0), "--seed was 1, now it is 0"},
		"System": {"0123456789012345678901234567890123456789x", `--system was "s", now it is "0123456789012345678901234567890123456789..."`},
		"K":      {3, "--top-k was not given, now it is 3"},
		"Note":   {"other", `Note was not given, now it is "other"`},
	} {
		now := at
		reflect.ValueOf(&now).Elem().FieldByName(field).Set(reflect.ValueOf(c.now))
		if got := journal.Difference(at, now); got != c.want {
			t.Errorf("%s: %q, want %q", field, got, c.want)
		}
	}
	again := half
	same := at
	same.T = &again
	same.Extra = map[string]any{}
	if got := journal.Difference(at, same); got != "" {
		t.Errorf("equal values: %q", got)
	}
}
