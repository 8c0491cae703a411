package board

import (
	"math"
	"slices"

	"gad/internal/report"
	"gad/internal/vfs"
)

// Scores are the distributions of a run's scores over its steps. They are of the answers in
// samples/, the first trainer.save_samples prompts of a step: those of the others are not
// kept.
type Scores struct {
	Step    []int     `json:"step"`
	Student Quantiles `json:"student"`
	Teacher Quantiles `json:"teacher"`
	Spread  Quantiles `json:"spread"`  // over prompts: standard deviation of the scores of one prompt's answers
	Answers []int     `json:"answers"` // that the distributions of a step are of
	Thinned bool      `json:"thinned"` // there are more steps with samples
	Problem string    `json:"problem,omitempty"`
}

// Quantiles of a distribution, by step.
type Quantiles struct {
	P10 []num `json:"p10"`
	P25 []num `json:"p25"`
	P50 []num `json:"p50"`
	P75 []num `json:"p75"`
	P90 []num `json:"p90"`
}

// Samples are the answers of a step.
type Samples struct {
	Run     int      `json:"run"`
	Step    int      `json:"step"`
	Rows    []Sample `json:"rows"`
	Left    int      `json:"left_out"` // answers beyond the first 5000
	Damaged int      `json:"damaged"`  // lines that are no samples
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

	Tree *report.TreePlace `json:"tree,omitempty"` // of an answer that branches
}

// withoutIDs removes the token ids of an episode's messages, which a page does not show.
func withoutIDs(turns []report.Turn) []report.Turn {
	for i := range turns {
		turns[i].IDs = nil
	}
	return turns
}

// mostRows bounds the answers of a step that are shown.
const mostRows = 5000

// mostScored bounds the steps whose samples are read for the distributions.
const mostScored = 128

// stepScores are the quantiles of one step.
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
			num(x.TeacherScore), num(x.Advantage), withoutIDs(x.Turns), x.Seams, x.Tree})
	}
	return s, nil
}

// Answers are what the first validation prompts were answered at each validation of a run.
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

// mostAsked and mostValidated bound the prompts and the validations of Answers on the page.
const (
	mostAsked     = 32
	mostValidated = 40
)

// readAnswers reads samples/val_N.jsonl of at most so many steps of a run, prompt by prompt.
func (r *run) readAnswers(fsys vfs.FS, id, most int) Answers {
	steps := spread(r.validated, most)
	out := Answers{Run: id, Prompts: []Prompt{}, Thinned: len(steps) < len(r.validated)}
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

// scores reads the distributions of every run.
func (b *Board) scores() []Scores {
	all := []Scores{}
	for _, r := range b.runs {
		all = append(all, r.readScores(b.fs))
	}
	return all
}

// scored picks the steps whose samples are read: every 1st, 2nd, 4th, ... so that the
// choice stays as a run grows, and the last one.
func scored(steps []int) (some []int) {
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

func (r *run) readScores(fsys vfs.FS) Scores {
	steps := scored(r.samples)
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

func (q *Quantiles) add(x [5]float64) {
	for i, list := range []*[]num{&q.P10, &q.P25, &q.P50, &q.P75, &q.P90} {
		*list = append(*list, num(x[i]))
	}
}

// distribution computes a step's quantiles. A teacher's answer counts once for its prompt,
// and scores that are not finite do not count (those of gad dpo's pairs that were left out).
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

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// deviation is the standard deviation, as critic/group_std has it: over n.
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

// quantiles are those at 0.1, 0.25, 0.5, 0.75 and 0.9, between two values linear; NaN of nothing.
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
