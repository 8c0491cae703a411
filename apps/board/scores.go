package board

import (
	"math"
	"slices"

	"gad/internal/report"
	"gad/internal/vfs"
)

// Scores is the distributions of a run's scores by step: of the answers in samples/, which are to
// the first trainer.save_samples prompts of a step.
type Scores struct {
	Step    []int     `json:"step"`
	Student Quantiles `json:"student"`
	Teacher Quantiles `json:"teacher"`
	Spread  Quantiles `json:"spread"`  // over prompts, of the standard deviation of a prompt's scores
	Answers []int     `json:"answers"` // number of answers in a step's distributions
	Thinned bool      `json:"thinned"` // there are more steps with samples
	Problem string    `json:"problem,omitempty"`
}

// Quantiles is the quantiles of a distribution, by step.
type Quantiles struct {
	P10 []num `json:"p10"`
	P25 []num `json:"p25"`
	P50 []num `json:"p50"`
	P75 []num `json:"p75"`
	P90 []num `json:"p90"`
}

// Samples is the answers of a step.
type Samples struct {
	Run     int      `json:"run"`
	Step    int      `json:"step"`
	Rows    []Sample `json:"rows"`
	Left    int      `json:"left_out"` // answers beyond the first 5000
	Damaged int      `json:"damaged"`  // unreadable lines
	Problem string   `json:"problem,omitempty"`
}

// Sample is an answer.
type Sample struct {
	Row          int           `json:"row"`
	Prompt       string        `json:"prompt"`
	Student      string        `json:"student"`
	Teacher      string        `json:"teacher"`
	StudentScore num           `json:"student_score"`
	TeacherScore num           `json:"teacher_score"`
	Advantage    num           `json:"advantage"`
	Turns        []report.Turn `json:"turns,omitempty"` // of an episode: Student is then their text
	Seams        []int         `json:"seams,omitempty"` // characters of Student before each later chunk

	Tree  *report.TreePlace `json:"tree,omitempty"`  // place in a tree of answers
	Notes string            `json:"notes,omitempty"` // a coach's on the answer
}

// withoutIDs removes the token ids of an episode's messages, which a page does not show.
func withoutIDs(turns []report.Turn) []report.Turn {
	for i := range turns {
		turns[i].IDs = nil
	}
	return turns
}

// mostRows bounds the answers of a step in Samples.
const mostRows = 5000

// mostScored bounds the steps whose samples are read for the distributions.
const mostScored = 128

// stepScores is the quantiles of one step.
type stepScores struct {
	student, teacher, spread [5]float64
	answers                  int
}

// readSamples reads a step's samples.
func (r *run) readSamples(fsys vfs.FS, id, step int) (Samples, error) {
	s := Samples{Run: id, Step: step, Rows: []Sample{}}
	all, damaged, err := report.ReadSamples(fsys, r.path, report.InTraining, step)
	if err != nil {
		return s, err
	}
	s.Damaged, s.Left = damaged, max(0, len(all)-mostRows)
	for _, x := range all[:min(len(all), mostRows)] {
		s.Rows = append(s.Rows, Sample{x.Row, x.Prompt, x.Student, x.Teacher, num(x.StudentScore),
			num(x.TeacherScore), num(x.Advantage), withoutIDs(x.Turns), x.Seams, x.Tree, x.Notes})
	}
	return s, nil
}

// Answers is the answers to the first validation prompts at each validation of a run.
type Answers struct {
	Run     int      `json:"run"`
	Prompts []Prompt `json:"prompts"`
	Thinned bool     `json:"thinned"` // there are more validations
	Problem string   `json:"problem,omitempty"`
}

// Prompt is a validation prompt, the teacher's answer, and the student's by step.
type Prompt struct {
	Row     int      `json:"row"`
	Prompt  string   `json:"prompt"`
	Teacher string   `json:"teacher"`
	Step    []int    `json:"step"`
	Student []string `json:"student"`
}

// mostAsked and mostValidated bound the prompts and the validations of Answers.
const (
	mostAsked     = 32
	mostValidated = 40
)

// readAnswers reads samples/val_N.jsonl of at most so many validations, and returns the answers by
// prompt.
func (r *run) readAnswers(fsys vfs.FS, id, most int) Answers {
	steps := spread(r.valSteps, most)
	out := Answers{Run: id, Prompts: []Prompt{}, Thinned: len(steps) < len(r.valSteps)}
	at := map[int]int{}
	for _, step := range steps {
		samples, _, err := report.ReadSamples(fsys, r.path, report.InValidation, step)
		if err != nil {
			out.Problem = err.Error()
			continue
		}
		for _, x := range samples[:min(len(samples), mostAsked)] {
			p, ok := at[x.Row]
			if !ok {
				p = len(out.Prompts)
				at[x.Row] = p
				out.Prompts = append(out.Prompts, Prompt{x.Row, x.Prompt, x.Teacher, nil, nil})
			}
			out.Prompts[p].Step = append(out.Prompts[p].Step, step)
			out.Prompts[p].Student = append(out.Prompts[p].Student, x.Student)
		}
	}
	return out
}

// scores returns the distributions of every run.
func (b *Board) scores() []Scores {
	all := []Scores{}
	for _, r := range b.runs {
		all = append(all, r.readScores(b.fs))
	}
	return all
}

// sampledSteps returns the steps whose samples are read for the distributions: every 1st, 2nd, 4th,
// ... so that the choice is stable while a run grows, and the last one.
func sampledSteps(steps []int) (some []int) {
	stride := 1
	for len(steps)/stride > mostScored {
		stride *= 2
	}
	for i := 0; i < len(steps); i += stride {
		some = append(some, steps[i])
	}
	if n := len(steps); n > 0 && (n-1)%stride != 0 {
		some = append(some, steps[n-1])
	}
	return some
}

// readScores returns the run's distributions. It keeps each step's quantiles for the next call.
func (r *run) readScores(fsys vfs.FS) Scores {
	steps := sampledSteps(r.samples)
	out := Scores{Step: []int{}, Answers: []int{}, Thinned: len(steps) < len(r.samples)}
	for _, q := range []*Quantiles{&out.Student, &out.Teacher, &out.Spread} {
		*q = Quantiles{[]num{}, []num{}, []num{}, []num{}, []num{}}
	}
	kept := map[int]stepScores{}
	for i, step := range steps {
		s, ok := r.scores[step]
		if !ok {
			samples, _, err := report.ReadSamples(fsys, r.path, report.InTraining, step)
			if err != nil {
				if i < len(steps)-1 || len(steps) == 1 { // else a resume may have removed it
					out.Problem = err.Error()
				}
				continue
			}
			s = distribution(samples)
		}
		kept[step] = s
		if s.answers == 0 {
			continue
		}
		out.Step = append(out.Step, step)
		out.Answers = append(out.Answers, s.answers)
		out.Student.add(s.student)
		out.Teacher.add(s.teacher)
		out.Spread.add(s.spread)
	}
	r.scores = kept
	return out
}

// add appends the quantiles of a step.
func (q *Quantiles) add(x [5]float64) {
	for i, list := range []*[]num{&q.P10, &q.P25, &q.P50, &q.P75, &q.P90} {
		*list = append(*list, num(x[i]))
	}
}

// distribution returns a step's quantiles. A teacher's answer counts once for its prompt. Scores
// that are not finite do not count (gad dpo's left-out pairs have such).
func distribution(samples []report.Sample) (s stepScores) {
	var student, teacher, spread []float64
	groups := map[int][]float64{}
	for _, x := range samples {
		if _, ok := groups[x.Row]; !ok {
			groups[x.Row] = nil
			if finite(x.TeacherScore) {
				teacher = append(teacher, x.TeacherScore)
			}
		}
		if finite(x.StudentScore) {
			student = append(student, x.StudentScore)
			groups[x.Row] = append(groups[x.Row], x.StudentScore)
		}
	}
	for _, g := range groups {
		if len(g) > 1 {
			spread = append(spread, deviation(g))
		}
	}
	s.answers = len(student)
	s.student, s.teacher, s.spread = quantiles(student), quantiles(teacher), quantiles(spread)
	return s
}

// finite reports whether x is neither NaN nor infinite.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// deviation returns the standard deviation over n, as critic/group_std has it.
func deviation(xs []float64) float64 {
	mean := 0.0
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	sum := 0.0
	for _, x := range xs {
		sum += (x - mean) * (x - mean)
	}
	return math.Sqrt(sum / float64(len(xs)))
}

// quantiles returns the quantiles 0.1, 0.25, 0.5, 0.75 and 0.9, interpolated linearly; NaN for no
// values. It sorts xs.
func quantiles(xs []float64) (q [5]float64) {
	slices.Sort(xs)
	for i, p := range []float64{0.1, 0.25, 0.5, 0.75, 0.9} {
		if len(xs) == 0 {
			q[i] = math.NaN()
			continue
		}
		at := p * float64(len(xs)-1)
		k := int(at)
		q[i] = xs[k]
		if k+1 < len(xs) {
			q[i] += (at - float64(k)) * (xs[k+1] - xs[k])
		}
	}
	return q
}
