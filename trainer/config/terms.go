package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The terms that a reward can have.
const (
	TermD       = "d"            // the discriminator's score
	TermCheck   = "check"        // the checker's
	TermEnv     = "env"          // the sum of the environment's rewards
	TermRougeL  = "rouge_l"      // ROUGE-L of the answer's text and the teacher's
	TermTeacher = "teacher_logp" // log-probability of the teacher's answer after its thought
	TermLength  = "length"       // log(1 + tokens)
)

// TermNames lists all terms, in the order of error messages.
var TermNames = []string{TermD, TermCheck, TermEnv, TermRougeL, TermTeacher,
	TermLength}

// Term is one summand of the reward.
type Term struct {
	Name   string
	Weight float64
	// Z standardises the term within the prompt's answers: (x - mean) / (std + 1e-6).
	Z bool
	// Wrong counts the term for wrong answers only (checker's score below algorithm.right_at); it
	// is 0 for the others.
	Wrong bool
}

var (
	termSign  = regexp.MustCompile(`^[+-]`)
	termParts = regexp.MustCompile(
		`^(?:([0-9.]+(?:[eE][+-]?[0-9]+)?)\*)?(?:z\(([a-z_]+)\)|([a-z_]+))(@[a-z]*)?`)
)

// ParseTerms parses algorithm.terms, a sum such as d + 0.5*z(check) - 0.3*rouge_l@wrong.
func ParseTerms(text string) (terms []Term, err error) {
	bad := func(format string, args ...any) ([]Term, error) {
		return nil, fmt.Errorf("algorithm.terms %q: %s", text, fmt.Sprintf(format, args...))
	}
	rest := strings.Join(strings.Fields(text), "")
	total := 0.0
	for first := true; first || rest != ""; first = false {
		sign := termSign.FindString(rest)
		rest = rest[len(sign):]
		m := termParts.FindStringSubmatch(rest)
		if m == nil || sign == "" && !first {
			return bad("cannot be read from %q on: expected terms with weights, such as d + 0.5*check - 0.1*length, z(check), rouge_l@wrong", sign+rest)
		}
		rest = rest[len(m[0]):]
		t := Term{Name: m[2] + m[3], Weight: 1, Z: m[2] != "", Wrong: m[4] == "@wrong"}
		switch {
		case !slices.Contains(TermNames, t.Name):
			return bad("%q is no term: there are %s", t.Name, strings.Join(TermNames, ", "))
		case m[4] != "" && !t.Wrong:
			return bad("%s%s: only @wrong may stand behind a term", t.Name, m[4])
		case slices.ContainsFunc(terms, func(o Term) bool { return o.Name == t.Name }):
			return bad("%s is there twice: give it one weight", t.Name)
		}
		if m[1] != "" {
			if t.Weight, err = strconv.ParseFloat(m[1], 64); err != nil ||
				math.IsInf(t.Weight, 0) {
				return bad("%q is no weight: expected a number", m[1])
			}
		}
		if sign == "-" {
			t.Weight = -t.Weight
		}
		total += math.Abs(t.Weight)
		terms = append(terms, t)
	}
	if total == 0 {
		return bad(
			"all weights are 0: every answer would have the same reward: give one term a weight")
	}
	return terms, nil
}

// RewardTerms returns the terms of the reward: algorithm.terms or, without it, the terms for which
// checker_weight, env_weight and length_coef are short:
//
//	d - b*length                                  b = length_coef
//	(1-w)*z(d) + w*z(check) - b*length            w = checker_weight above 0
//	(1-w)*z(d) + w*z(env) - b*length              w = env_weight above 0, in an environment
//
// algorithm.terms must have been validated.
func (c *Config) RewardTerms(stage Stage) []Term {
	a := c.Algorithm
	if a.Terms != "" {
		terms, _ := ParseTerms(a.Terms)
		return terms
	}
	other, w := TermCheck, a.CheckerWeight
	if c.Acts(stage) {
		other, w = TermEnv, a.EnvWeight
	}
	terms := []Term{{Name: TermD, Weight: 1}}
	if w > 0 {
		terms = []Term{{Name: TermD, Weight: 1 - w, Z: true}, {Name: other, Weight: w, Z: true}}
	}
	if a.LengthCoef != 0 {
		terms = append(terms, Term{Name: TermLength, Weight: -a.LengthCoef})
	}
	return terms
}

// ChecksAnswers reports whether the reward of a stage reads the checker's scores; true if
// algorithm.terms cannot be parsed.
func (c *Config) ChecksAnswers(stage Stage) bool {
	if _, err := ParseTerms(c.Algorithm.Terms); c.Algorithm.Terms != "" && err != nil {
		return true
	}
	return stage.HasCritic() && slices.ContainsFunc(c.RewardTerms(stage),
		func(t Term) bool { return t.Name == TermCheck || t.Wrong })
}

// ReadsThoughts reports whether the reward of a stage has the term teacher_logp, which takes a pass
// of its own; false if algorithm.terms cannot be parsed.
func (c *Config) ReadsThoughts(stage Stage) bool {
	return stage.HasCritic() && slices.ContainsFunc(c.RewardTerms(stage),
		func(t Term) bool { return t.Name == TermTeacher })
}

// validateTerms checks algorithm.terms against the other settings.
func (c *Config) validateTerms(stage Stage) (errs []error) {
	bad := func(format string,
		args ...any) {
		errs = append(errs, fmt.Errorf("settings: "+format, args...))
	}
	a := c.Algorithm
	if !stage.HasCritic() {
		return nil
	}
	if a.Terms == "" {
		if a.RightAt != 0 {
			bad("algorithm.right_at %g needs algorithm.terms with a term that has @wrong",
				a.RightAt)
		}
		return errs
	}
	terms, err := ParseTerms(a.Terms)
	if err != nil {
		bad("%w", err)
		return errs
	}
	for _, s := range []struct {
		key string
		v   float64
	}{{"checker_weight", a.CheckerWeight}, {"env_weight", a.EnvWeight},
		{"length_coef", a.LengthCoef}} {
		if s.v != 0 {
			bad("algorithm.%s is %g beside algorithm.terms, of which it is a short form: put it into the terms", s.key, s.v)
		}
	}
	wrong := ""
	for _, t := range terms {
		if t.Wrong {
			wrong = t.Name + "@wrong"
		}
		switch {
		case (t.Name == TermCheck || t.Wrong) && c.Acts(stage):
			bad("algorithm.terms %q: a checker reads one answer, and env.command makes episodes: use env", a.Terms)
		case t.Name == TermTeacher && (c.Acts(stage) || c.Chunks(stage).On() ||
			c.Rollout.Tree.Trees > 0):
			bad("algorithm.terms %q: teacher_logp puts the teacher's answer behind one thought of one answer: it is not for env.command, rollout.chunk and rollout.tree: leave it out", a.Terms)
		case t.Name == TermRougeL && c.Acts(stage):
			bad("algorithm.terms %q: rouge_l compares texts of single answers, and env.command makes episodes: leave it out", a.Terms)
		case (t.Name == TermCheck || t.Wrong) && c.Trainer.Checker == "":
			bad("algorithm.terms %q needs trainer.checker: give --checker CMD", a.Terms)
		case t.Name == TermEnv && !c.Acts(stage):
			bad("algorithm.terms %q needs env.command: give --env CMD", a.Terms)
		}
	}
	if wrong != "" && a.RightAt == 0 {
		bad("algorithm.terms %q: %s counts for answers that the checker scores below algorithm.right_at, which is not set: set it, to 1 where a right answer has 1", a.Terms, wrong)
	}
	if wrong == "" && a.RightAt != 0 {
		bad("algorithm.right_at %g has no effect: no term of algorithm.terms has @wrong: leave it out", a.RightAt)
	}
	return errs
}
