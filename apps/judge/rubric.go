package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"gad/internal/endpoint"
	"gad/internal/journal"
	"gad/trainer/checker"
)

// Group is a prompt with answers to grade together.
type Group struct {
	Question
	Answers []string // of the student
	Cut     []bool   // by answer: it was cut at the limit of length
}

// Criterion is a line of a rubric: a statement that is true or false of one answer.
type Criterion struct {
	Text   string
	Weight float64 // above 0
}

// Graded is the grades of a group.
type Graded struct {
	// By answer, from 0 to 1: the weight of the criteria that it meets over the weight of all. nil:
	// no grades.
	Scores []float64
	Null   string // why there are no grades
}

// Rubrics grades groups by rubrics (ROPD, arXiv 2605.07396): for each group the judge is asked for
// one rubric, from the prompt, the teacher's answer and the answers of the student, and then, in
// one request, which criteria each answer meets. The score of an answer is
//
//	sum_k w_k v_k / sum_k w_k
//
// over the criteria k with weight w_k; v_k is 1 where the answer meets it, 0 where not. A group of
// a single answer gets a rubric from prompt and teacher's answer alone: it is the same for all
// students, so that their scores compare, and is asked for once.
//
// The request for grades does not show the teacher's answer, so that no criterion can refer to it.
// Equal answers are shown once.
//
// A group without a usable reply, even after a reminder, has no scores. Nor has a group that the
// endpoint does not answer until ctx or its deadline (Options.Until) ends; the journal records
// that, so that the same groups have the same scores ever after. With first, such groups are an
// error, unless the endpoint refuses some requests and answers others: an endpoint that has never
// answered may be the wrong one. A refused key, a missing model and a journal that cannot be
// written are always errors.
func (j *Judge) Rubrics(ctx context.Context, groups []Group, first bool) ([]Graded, error) {
	graded := make([]Graded, len(groups))
	err := j.settle(ctx, len(groups), first, func(ctx context.Context, i int) (err error) {
		graded[i], err = j.grade(ctx, groups[i])
		return err
	}, func(i int, why string) error {
		graded[i] = Graded{Null: why}
		return j.appendNone(j.noneKey("gad rubric: none", groups[i]), why)
	})
	if err != nil {
		return nil, err
	}
	return graded, nil
}

// settle calls ask for n units of work, and lost with the reason for those without an answer of the
// endpoint, under the rules that Rubrics states.
func (j *Judge) settle(ctx context.Context, n int, first bool,
	ask func(ctx context.Context, i int) error, lost func(i int, why string) error) error {
	if j.retriesConnect = !first; j.retriesConnect {
		j.o.Client.SetProven()
	}
	done := make([]bool, n)
	err := j.o.Client.Each(ctx, n, func(ctx context.Context, i int) error {
		err := ask(ctx, i)
		done[i] = err == nil
		return err
	})
	if err == nil {
		return nil
	}
	var failures endpoint.Failures
	var failed *endpoint.Error
	late := errors.Is(err, context.DeadlineExceeded)
	ours := errors.As(err, &failures) || errors.As(err, &failed) && !endpoint.Fatal(err)
	// Some requests alone, as by a content filter.
	refused := len(failures) > 0 && len(failures) < n && !slices.ContainsFunc(failures,
		func(f endpoint.Failed) bool { return !endpoint.Refused(f.Err) })
	switch {
	case late && first:
		return fmt.Errorf("judge: the endpoint has not answered in time: give it more (%s)",
			j.o.timeout())
	case !late && !ours, first && !refused:
		return err
	}
	why := make([]string, n)
	for i := range why {
		if why[i] = err.Error(); late {
			why[i] = fmt.Sprintf("no answer in time: raise %s, or --concurrency", j.o.timeout())
		}
	}
	for _, f := range failures {
		why[f.Index] = f.Err.Error()
	}
	for i := range n {
		if !done[i] {
			if err := lost(i, why[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendNone keeps, under key, that and why the endpoint did not answer.
func (j *Judge) appendNone(key, why string) error {
	return j.o.Journal.Append(key, record{Kind: "none", Model: j.o.Model, Reply: why,
		Time: time.Now().UTC().Truncate(time.Second)})
}

// lookupNone returns the reason that appendNone has kept under key, if any.
func (j *Judge) lookupNone(key string) (why string, ok bool, err error) {
	raw, ok := j.o.Journal.Lookup(key)
	if !ok {
		return "", false, nil
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil || r.Kind != "none" {
		return "", false, fmt.Errorf(
			"judge: journal: the record %s is none of this command: give another folder",
			key)
	}
	return r.Reply, true, nil
}

// noneKey returns the journal's key of a unit of work without an answer of the endpoint.
func (j *Judge) noneKey(what string, unit any) string {
	return journal.Digest(what, j.o.Model, j.o.Temperature, j.o.MaxTokens, j.o.Extra, unit)
}

// shown is an answer as the judge sees it, with a note if it was cut.
type shown struct {
	text string
	cut  bool
}

// grade requests a group's rubric and its grades.
func (j *Judge) grade(ctx context.Context, g Group) (out Graded, err error) {
	if why, ok, err := j.lookupNone(j.noneKey("gad rubric: none", g)); ok || err != nil {
		return Graded{Null: why}, err
	}
	var answers []shown
	at := make([]int, len(g.Answers)) // index of each answer in answers
	for i, text := range g.Answers {
		a := shown{text, g.Cut[i]}
		if at[i] = slices.Index(answers, a); at[i] < 0 {
			at[i] = len(answers)
			answers = append(answers, a)
		}
	}
	inRubric := answers
	if len(g.Answers) == 1 {
		inRubric = nil
	}
	rubric, null, err := rule(ctx, j, "rubric", rubricQuestion(g.Question, inRubric),
		rubricReminder, quotesObject(rubricKey),
		func(reply string) ([]Criterion, error) { return parseRubric(reply, g.Question) })
	if err != nil || null != "" {
		return Graded{Null: "no rubric: " + null}, err
	}
	met, null, err := rule(ctx, j, "grades", gradesQuestion(g.Prompt, rubric, answers),
		remindGrades(len(answers), len(rubric)), quotesObject(gradesKey),
		func(reply string) ([][]bool, error) {
			return parseGraded(reply, len(answers), len(rubric))
		})
	if err != nil || null != "" {
		return Graded{Null: "no grades: " + null}, err
	}
	out.Scores = make([]float64, len(g.Answers))
	for i := range out.Scores {
		out.Scores[i] = share(rubric, met[at[i]])
	}
	return out, nil
}

// share returns the weight of the met criteria over the weight of all.
func share(rubric []Criterion, met []bool) float64 {
	var sum, all float64
	for k, c := range rubric {
		if all += c.Weight; met[k] {
			sum += c.Weight
		}
	}
	return sum / all
}

// The keys of the objects that a judge replies with.
const (
	rubricKey = "criteria"
	gradesKey = "grades"
)

// Limits of a rubric.
const (
	maxCriteria  = 20
	maxCriterion = 500 // characters
	maxWeight    = 100
)

// parseRubric reads a rubric in a judge's reply.
func parseRubric(reply string, q Question) ([]Criterion, error) {
	raw, err := soleObject(reply, rubricKey)
	if err != nil {
		return nil, err
	}
	var o struct {
		Criteria []struct {
			Criterion *string
			Weight    *float64
		}
	}
	if json.Unmarshal(raw, &o) != nil {
		return nil, errors.New("has criteria of another form, or a weight that is no number")
	}
	if n := len(o.Criteria); n == 0 || n > maxCriteria {
		return nil, fmt.Errorf("has %d criteria: must be 1 to %d", n, maxCriteria)
	}
	own := checker.Runs(q.Teacher)
	for _, t := range q.Prompt {
		for run := range checker.Runs(t.Content) { // the prompt's words may be used
			delete(own, run)
		}
	}
	var out []Criterion
	for i, c := range o.Criteria {
		text := ""
		if c.Criterion != nil {
			text = oneLine(*c.Criterion)
		}
		switch {
		case text == "" || len([]rune(text)) > maxCriterion:
			return nil, fmt.Errorf("has a criterion %d of %d characters: must be 1 to %d", i+1,
				len([]rune(text)), maxCriterion)
		case c.Weight == nil:
			return nil, fmt.Errorf("has a criterion %d without a weight", i+1)
		case !(*c.Weight > 0 && *c.Weight <= maxWeight):
			return nil, fmt.Errorf("has a criterion %d of weight %g: must be above 0, at most %d",
				i+1, *c.Weight, maxWeight)
		}
		for run := range checker.Runs(text) {
			if own[run] {
				return nil, fmt.Errorf("has a criterion %d that copies 8 words of the teacher's answer",
					i+1)
			}
		}
		out = append(out, Criterion{text, *c.Weight})
	}
	return out, nil
}

// oneLine returns text without line breaks and control characters.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text,
		func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// parseGraded reads the grades in a judge's reply: for so many answers, whether each meets each of
// so many criteria.
func parseGraded(reply string, answers, criteria int) ([][]bool, error) {
	raw, err := soleObject(reply, gradesKey)
	if err != nil {
		return nil, err
	}
	var o struct{ Grades [][]*bool }
	if json.Unmarshal(raw, &o) != nil {
		return nil, errors.New("has grades that are not lists of true and false")
	}
	if len(o.Grades) != answers {
		return nil, fmt.Errorf("has grades of %d answers: there are %d", len(o.Grades), answers)
	}
	out := make([][]bool, answers)
	for i, list := range o.Grades {
		if len(list) != criteria {
			return nil, fmt.Errorf("has %d grades of answer %d: there are %d criteria", len(list),
				i+1, criteria)
		}
		for _, v := range list {
			if v == nil {
				return nil, fmt.Errorf("has a grade of answer %d that is null", i+1)
			}
			out[i] = append(out[i], *v)
		}
	}
	return out, nil
}

// maxObjects bounds the beginnings of an object in a reply.
const maxObjects = 16

// soleObject returns the JSON object in a reply that begins with key, compacted. Two that differ
// are an error: one may be a quotation. A thought before the reply is ignored.
func soleObject(reply, key string) ([]byte, error) {
	reply = stripThought(reply)
	if len(reply) > maxVerdict {
		reply = reply[len(reply)-maxVerdict:]
	}
	at := regexp.MustCompile(`\{\s*"`+key+`"\s*:`).FindAllStringIndex(reply, maxObjects+1)
	if len(at) > maxObjects {
		return nil, fmt.Errorf("has more than %d objects with %q", maxObjects, key)
	}
	var found []byte
	for _, begin := range at {
		var raw json.RawMessage
		var short bytes.Buffer
		if json.NewDecoder(strings.NewReader(reply[begin[0]:])).Decode(&raw) != nil ||
			json.Compact(&short, raw) != nil {
			continue
		}
		if found != nil && !bytes.Equal(found, short.Bytes()) {
			return nil, fmt.Errorf("has two objects with %q that differ", key)
		}
		found = short.Bytes()
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("has no JSON object that begins with %q", key)
	case bytes.Count(found, []byte(`"`+key+`":`)) > 1:
		return nil, fmt.Errorf("has %q twice in one object", key)
	}
	return found, nil
}

// quotesObject returns a function that reports whether the object with key in a reply is also in
// the material, apart from white space: then an answer may have written it, and the judge repeated
// it.
func quotesObject(key string) func(reply, material string) bool {
	return func(reply, material string) bool {
		raw, err := soleObject(reply, key)
		return err == nil && strings.Contains(material, `"`+key+`"`) &&
			strings.Contains(spaceless(material), spaceless(string(raw)))
	}
}

// spaceless returns a text without white space.
func spaceless(text string) string { return strings.Join(strings.Fields(text), "") }

// RubricTokens is the assumed length of a rubric, criteriaGuess its assumed number of criteria.
const (
	RubricTokens  = 250
	criteriaGuess = 6
)

// ExpectRubric returns the expected cost of one prompt, its rubric and its grades, with an empty
// journal and without reminders. prompt and teacher are lengths in bytes; the student's answers are
// assumed as long as the teacher's.
func ExpectRubric(prompt, teacher float64, answers int) Estimate {
	p, t, n := prompt/BytesPerToken, teacher/BytesPerToken, float64(answers)
	seen := n // answers in the question for the rubric
	if answers == 1 {
		seen = 0
	}
	rules := float64(len(rubricRules)+len(gradesRules)) / BytesPerToken
	return Estimate{Requests: 2,
		ToJudge:   rules + 2*p + t + seen*t + RubricTokens + n*t + 5*n*criteriaGuess,
		FromJudge: RubricTokens + 2*n*criteriaGuess}
}
