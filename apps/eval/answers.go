package eval

import (
	"bytes"
	"cmp"
	"fmt"

	"gad/apps/judge"
	"gad/apps/session"
	"gad/data"
	"gad/internal/report"
)

// AnswerRow is a line of the file that gad eval --answers --output writes.
type AnswerRow struct {
	Model    string         `json:"model"`
	Row      int            `json:"row"`
	Content  []data.Message `json:"content"`
	Teacher  string         `json:"teacher_response,omitempty"`
	Response string         `json:"response"`
	Judge    *judge.Verdict `json:"judge"`
}

// judgeAnswers runs gad eval --answers: a judge over files of answers. It loads no model.
func judgeAnswers(s *session.Session, o Options) (err error) {
	defer s.Console.Close()
	out := session.Output{Command: "eval", Path: o.Output}
	if out.Path != "" {
		lock, lockErr := out.Claim(s.FS)
		if lockErr != nil {
			return lockErr
		}
		defer func() { err = cmp.Or(err, lock.Unlock()) }()
	}
	j, err := openJudge(s, o)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, j.close()) }()
	var rows []int
	if j.questions, j.students, rows, err = judge.ReadAnswers(o.Answers, o.Rows.Limit); err != nil {
		return err
	}
	if err := j.check(len(j.students),
		func(q int) string { return fmt.Sprintf("row %d", rows[q]) }); err != nil {
		return err
	}
	if o.DryRun {
		j.estimate(s.Out, len(j.students))
		return nil
	}
	kept := func() string { return "what the judge has said is kept in " + j.o.Journal }
	ctx, stop := s.Stoppable(
		func() string { return "stopping; " + kept() + "; a second Ctrl-C stops at once" }, kept)
	defer stop()
	if err := j.begin(); err != nil {
		return err
	}
	j.estimate(s.Err, len(j.students))
	if err := j.ask(ctx); err != nil {
		return j.stopError(err)
	}
	s.Console.Close()
	if out.Path != "" {
		if err := j.write(out, rows); err != nil {
			return err
		}
	}
	if o.JSON {
		return session.PrintJSON(s.Out, map[string]any{"judge": j.json()})
	}
	if len(j.students) > 1 {
		for i, x := range j.students {
			fmt.Fprintf(s.Out, "%s  %s\n", letter(i), session.Harmless(x.Name))
		}
	}
	j.print(s.Out)
	if out.Path != "" {
		fmt.Fprintf(s.Out, "%s: %s\n", out.Path, report.Count(len(rows)*len(j.students), "answer"))
	}
	return nil
}

// write writes the output of gad eval --answers; rows are the questions' numbers.
func (j *judging) write(out session.Output, rows []int) error {
	if err := out.CheckAbsent(j.s.FS); err != nil { // it was absent at the start
		return err
	}
	var b bytes.Buffer
	for s, student := range j.students {
		for q, x := range j.questions {
			if err := session.PrintJSON(&b,
				AnswerRow{student.Name, rows[q], x.Prompt, x.Teacher, student.Answers[q],
					j.verdict(s, q)}); err != nil {
				return err
			}
		}
	}
	return out.Write(j.s.FS, b.Bytes(), "eval")
}
