package judge

// Estimate is the expected requests and tokens of judging with an empty journal and without
// reminders.
type Estimate struct {
	Requests           int
	ToJudge, FromJudge float64 // tokens
}

// Assumptions of an estimate, besides answers as long as the teacher's.
const (
	BytesPerToken = 4
	VerdictTokens = 150
	answerTokens  = 300 // where there is no teacher's answer
)

// Expect returns the estimate for a mode, questions and a number of students.
func Expect(mode Mode, questions []Question, students int, againstFirst bool) (e Estimate) {
	tokens := func(text string) float64 { return float64(len(text)) / BytesPerToken }
	compared := students
	if againstFirst {
		compared--
	}
	for _, q := range questions {
		prompt, answer := 0.0, tokens(q.Teacher)
		for _, t := range q.Prompt {
			prompt += tokens(t.Content)
		}
		if answer == 0 {
			answer = answerTokens
		}
		add := func(n int, to, from float64) {
			e.Requests += n
			e.ToJudge += float64(n) * to
			e.FromJudge += float64(n) * from
		}
		if mode.scores() {
			add(1, prompt, answer)
			add(students, tokens(scoreRules)+prompt+2*answer, VerdictTokens)
		}
		if mode.pairs() {
			add(2*compared, tokens(pairRules)+prompt+2*answer, VerdictTokens)
		}
	}
	return e
}
