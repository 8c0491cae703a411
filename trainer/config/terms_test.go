package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParseTerms(t *testing.T) {
	for text, want := range map[string][]Term{
		"d": {{Name: "d", Weight: 1}},
		"d + check + 0.3*rouge_l@wrong": {{Name: "d", Weight: 1}, {Name: "check", Weight: 1},
			{Name: "rouge_l", Weight: 0.3, Wrong: true}},
		" -0.5*z( d )-1e-2 * length": {{Name: "d", Weight: -0.5, Z: true},
			{Name: "length", Weight: -0.01}},
		"+2*z(env)@wrong+0*d": {{Name: "env", Weight: 2, Z: true, Wrong: true},
			{Name: "d"}},
	} {
		if got, err := ParseTerms(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                      `from "" on`,
		"d +":                   `from "+" on`,
		"d check":               `"dcheck" is no term`,
		"d 0.5*check":           `from "0.5*check" on`,
		"d + 0.5check":          `from "+0.5check" on`,
		"d + bleu":              `"bleu" is no term: there are d, check, env, rouge_l, teacher_logp, length`,
		"d@right":               `d@right: only @wrong`,
		"d + z(d)":              "d is there twice",
		"0*d - 0*check":         "all weights are 0",
		"1.2.3*d":               `"1.2.3" is no weight`,
		"1e999*d":               `"1e999" is no weight`,
		"d + 0.1*rouge-l":       `"rouge" is no term`,
		"z(d":                   `"z" is no term`,
		"nan*d":                 `"nan" is no term`,
		strings.Repeat("d+", 3): "d is there twice",
	} {
		if _, err := ParseTerms(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The short forms are terms.
func TestShortForms(t *testing.T) {
	c := Default()
	c.Algorithm.LengthCoef, c.Algorithm.CheckerWeight, c.Algorithm.EnvWeight = 0.1, 0.25, 0.5
	for env, want := range map[string]string{
		"":     "0.75*z(d) + 0.25*z(check) - 0.1*length",
		"true": "0.5*z(d) + 0.5*z(env) - 0.1*length",
	} {
		c.Env.Command = env
		terms, err := ParseTerms(want)
		if got := c.RewardTerms(Train); err != nil || !slices.Equal(got, terms) {
			t.Errorf("env %q: %+v, want %s", env, got, want)
		}
	}
}
