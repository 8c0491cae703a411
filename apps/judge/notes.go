package judge

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"gad/internal/chat"
	"gad/trainer/checker"
)

// NotesRules are the rules by which the judge writes notes, unless the caller gives others. Notes
// adds what the material is and the form of a reply. The texts are part of the requests' keys in
// the journal: a new wording makes new requests.
const NotesRules = `You coach a student. Somebody who knows more will answer the same conversation anew and reads your notes first; the student then learns from that answer. Write what can be learned from the student's answer: what is wrong or missing in it and how to do it right, and what it does well that should stay.

Be short and definite: "the second turn leads to the west, not to the east", not "check your work". Say what to do in your own words. Do not quote the student's answer, and do not write a whole answer yourself. If there is nothing to improve, say in a sentence what to keep.`

const notesForm = `

` + aboutMaterial + `

The material is the conversation%s and an answer of the student.

Reply with one JSON object and nothing else:
{"notes": "your notes"}`

const notesTeacher = `, the answer of a teacher, which is good but may have faults,`

const notesReminder = `Your reply has no notes that I can use, or more than one set of them, or it repeats the student's answer. Reply with one JSON object and nothing else, in your own words: {"notes": "your notes"}`

const notesKey = "notes"

// Noted is the notes on the answers of a group.
type Noted struct {
	Notes []string // by answer; "": none
	Null  []string // by answer: why there are none
}

// noted is an answer to take notes on.
type noted struct {
	Question
	Answer string
	Cut    bool
	Rules  string
}

// Notes has the judge write notes on each answer, by rules, for a teacher that answers the prompt
// anew (LLM-as-a-Coach, arXiv 2607.18110). Equal answers to a prompt have the same notes.
//
// An answer has no notes where Rubrics has no scores: without a usable reply, even after a
// reminder, and where the endpoint does not answer. Notes with the answer's own text are not usable
// (checker.CleanNotes).
func (j *Judge) Notes(ctx context.Context, groups []Group, rules string,
	first bool) ([]Noted, error) {
	var units []noted
	at := make([][]int, len(groups)) // index in units of each answer
	for g, group := range groups {
		seen := map[shown]int{}
		for i, text := range group.Answers {
			a := shown{text, group.Cut[i]}
			if _, ok := seen[a]; !ok {
				seen[a] = len(units)
				units = append(units, noted{group.Question, a.text, a.cut, rules})
			}
			at[g] = append(at[g], seen[a])
		}
	}
	notes, null := make([]string, len(units)), make([]string, len(units))
	err := j.settle(ctx, len(units), first, func(ctx context.Context, i int) (err error) {
		notes[i], null[i], err = j.note(ctx, units[i])
		return err
	}, func(i int, why string) error {
		null[i] = why
		return j.appendNone(j.noneKey("gad coach: none", units[i]), why)
	})
	if err != nil {
		return nil, err
	}
	out := make([]Noted, len(groups))
	for g := range out {
		for _, i := range at[g] {
			out[g].Notes, out[g].Null = append(out[g].Notes, notes[i]), append(out[g].Null, null[i])
		}
	}
	return out, nil
}

// note requests the notes on one answer; null is the reason if there are none.
func (j *Judge) note(ctx context.Context, u noted) (notes, null string, err error) {
	if why, ok, err := j.lookupNone(j.noneKey("gad coach: none", u)); ok || err != nil {
		return "", why, err
	}
	var prompt strings.Builder
	for _, m := range u.Prompt {
		prompt.WriteString(m.Content + "\n")
	}
	notes, null, err = rule(ctx, j, "notes", notesQuestion(u), notesReminder,
		quotesObject(notesKey), func(reply string) (string, error) {
			raw, err := soleObject(reply, notesKey)
			if err != nil {
				return "", err
			}
			var o struct{ Notes *string }
			if json.Unmarshal(raw, &o) != nil || o.Notes == nil {
				return "", errors.New("has notes that are no text")
			}
			return checker.CleanNotes(*o.Notes, u.Answer, prompt.String())
		})
	if err != nil || null != "" {
		return "", null, err
	}
	return notes, "", nil
}

// notesQuestion returns the question for notes on an answer.
func notesQuestion(u noted) []chat.Message {
	teacher := ""
	var material []piece
	if u.Teacher != "" {
		teacher = notesTeacher
		material = append(material, piece{"answer of the teacher", u.Teacher})
	}
	title := "answer of the student"
	if u.Cut {
		title += ", cut at the limit of length"
	}
	rules := u.Rules + strings.Replace(notesForm, "%s", teacher, 1)
	return question(rules, u.Prompt, append(material, piece{title, u.Answer})...)
}

// notesGuess is the assumed number of tokens of notes.
const notesGuess = 120

// ExpectNotes returns the expected cost of the notes on so many answers to one prompt, with an
// empty journal and without reminders. prompt and teacher are lengths in bytes; the student's
// answers are assumed as long as the teacher's.
func ExpectNotes(prompt, teacher float64, answers int, rules string) Estimate {
	n := float64(answers)
	asked := float64(len(rules)+len(notesForm))/BytesPerToken + (prompt+2*teacher)/BytesPerToken
	return Estimate{Requests: answers, ToJudge: n * asked, FromJudge: n * notesGuess}
}
