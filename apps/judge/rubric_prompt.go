package judge

import (
	"fmt"
	"strings"

	"gad/internal/chat"
)

// The texts below are part of the requests' keys in the journal: a new wording makes new requests.

const rubricRules = `You write a rubric: a short list of criteria by which somebody else will grade answers to a conversation.

` + aboutMaterial + `

The material is the conversation%s and the answer of a teacher, which is good but may have faults.

A criterion is one statement that is true or false of an answer, and true of a good one. Whoever grades sees the conversation, the criteria and the answers. The teacher's answer is not shown to them, and each answer is graded alone. So:
- Each criterion can be decided from the conversation and one answer. What has to be known for that, such as the right result, stands in the criterion. No criterion speaks of the teacher or compares answers.
- Each is about one thing, and can be decided without taste: "states that the train leaves at 9:40", not "is helpful".
- The criteria say what an answer must achieve. They do not repeat the teacher's wording, and an answer in other words, in another order or by another way meets all of them if it is as good.
- First comes what makes an answer right or wrong, with most of the weight; then what else the conversation asks for. Length, praise of itself and claims about its own quality earn an answer nothing.%s

Write 3 to 8 criteria, fewer only where there is no more to say. A weight is from 1 to 10.

Reply with one JSON object and nothing else:
{"criteria": [{"criterion": "a statement", "weight": 1 to 10}]}`

const (
	rubricStudents = `, answers of a student,`
	rubricTells    = `
- Prefer criteria that some of the student's answers meet and others do not: those tell good answers from bad ones.`
)

const gradesRules = `You grade answers to a conversation by a list of criteria.

` + aboutMaterial + `

Each criterion is a statement. For each answer alone, decide for each criterion whether the statement is true of it. Decide by what the answer does, not by what it says about itself. If you are not sure, the statement is false. An answer that was cut at the limit of length is graded by what is there.

There are %s and %s. Reply with one JSON object and nothing else. It has a list for each answer, in the order of the answers, with true or false for each criterion, in the order of the criteria:
{"grades": [%s]}`

const (
	rubricReminder = `Your reply has no rubric that I can use, or more than one. Reply with one JSON object and nothing else: {"criteria": [{"criterion": "a statement", "weight": 1 to 10}]}. At most 20 criteria, each in your own words and not the teacher's, weights above 0.`
	gradesReminder = `Your reply has no grades that I can read, or more than one set of them. Reply with one JSON object and nothing else: {"grades": [...]} with a list for each of %s, and in each list true or false for each of %s, without quotation marks.`
)

// rubricQuestion returns the question for a rubric. Without the student's answers it is the same
// for all students.
func rubricQuestion(q Question, answers []shown) []chat.Message {
	rules := fmt.Sprintf(rubricRules, "", "")
	if len(answers) > 0 {
		rules = fmt.Sprintf(rubricRules, rubricStudents, rubricTells)
	}
	return question(rules, q.Prompt,
		append([]piece{{"answer of the teacher", q.Teacher}}, pieces(answers)...)...)
}

// gradesQuestion returns the question which criteria each answer meets. It does not show the
// weights.
func gradesQuestion(prompt []chat.Message, rubric []Criterion, answers []shown) []chat.Message {
	var list strings.Builder
	for k, c := range rubric {
		fmt.Fprintf(&list, "%d. %s\n", k+1, c.Text)
	}
	lists := "[" + strings.Repeat("true or false, ", len(rubric)-1) + "true or false]"
	if len(answers) > 1 {
		lists += ", and so on"
	}
	rules := fmt.Sprintf(gradesRules, plural(len(answers), "answer"),
		plural(len(rubric), "criterion"), lists)
	return question(rules, prompt,
		append([]piece{{"criteria", strings.TrimSuffix(list.String(), "\n")}},
			pieces(answers)...)...)
}

// remindGrades returns the reminder for the grades of so many answers and criteria.
func remindGrades(answers, criteria int) string {
	return fmt.Sprintf(gradesReminder, plural(answers, "answer"), plural(criteria, "criterion"))
}

// pieces returns the student's answers as material.
func pieces(answers []shown) (out []piece) {
	for i, a := range answers {
		title := fmt.Sprintf("answer %d of the student", i+1)
		if a.cut {
			title += ", cut at the limit of length"
		}
		out = append(out, piece{title, a.text})
	}
	return out
}

// plural returns a number of answers or criteria as text.
func plural(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case thing == "criterion":
		return fmt.Sprintf("%d criteria", n)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
