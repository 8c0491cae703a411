package play

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"gad/apps/session"
	"gad/data"
	"gad/internal/env"
	"gad/internal/report"
	"gad/tokenizer"
	"gad/trainer/encode"
	"gad/trainer/episode"
)

// ErrOther reports a recorded episode that does not fit the environment: its replies differ from
// the record, so that the recorded turns mean nothing.
var ErrOther = errors.New("another world")

// teacherTurn is a turn of the teacher, and the messages recorded after it.
type teacherTurn struct {
	text   string
	tokens int
	then   []data.Message
}

// ReplayTeachers replays the recorded episodes of rows; tasks[i] is the task of rows[i]. The list
// leaves out rows without an episode, and rows whose record differs from the environment's replies:
// other is the number of the latter. An environment's fault is no error: it is in Played.Fault.
func ReplayTeachers(ctx context.Context, tok *tokenizer.Tokenizer, pool *env.Pool, rows []data.Row,
	tasks []episode.Task) (list []Played, other int, err error) {
	all := make([]*Played, len(rows))
	failed := make([]error, len(rows))
	next := make(chan int)
	var wait sync.WaitGroup
	for range min(session.Slots, pool.Places(), len(rows)) {
		wait.Go(func() {
			for i := range next {
				all[i], failed[i] = replay(ctx, tok, pool, rows[i], tasks[i])
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	wait.Wait()
	for i, p := range all {
		switch {
		case errors.Is(failed[i], ErrOther):
			other++
		case failed[i] != nil && ctx.Err() != nil:
			return nil, 0, ctx.Err()
		case failed[i] != nil:
			return nil, 0, failed[i]
		case p != nil:
			list = append(list, *p)
		}
	}
	return list, other, nil
}

// replay replays a row's recorded episode; it returns nil for a row without one.
func replay(ctx context.Context, tok *tokenizer.Tokenizer, pool *env.Pool, row data.Row,
	task episode.Task) (*Played, error) {
	turns, err := teacherTurns(tok, row)
	if err != nil || len(turns) == 0 {
		return nil, err
	}
	e := pool.Episode()
	defer e.Close()
	p := &Played{Row: row.Index, Prompt: task.Row.Content, Env: row.Env, Turns: []report.Turn{}}
	begun, done := false, false
	err = env.Play(ctx, e, task.Seed, task.Row, func(r env.Reply) (turn env.Turn, ok bool, err error) {
		if k := p.Wrote; begun && !p.replied(turns[k], r) {
			return turn, false, fmt.Errorf("row %d: %w: turn %d", row.Index, ErrOther, k)
		}
		begun, done = true, r.Done
		switch {
		case p.Wrote == len(turns):
			return turn, false, nil
		case done:
			return turn, false,
				fmt.Errorf("row %d: %w: over before turn %d", row.Index, ErrOther, p.Wrote)
		}
		return env.Turn{Text: turns[p.Wrote].text}, true, nil
	})
	if errors.Is(err, env.ErrFault) {
		p.Fault, err = err.Error(), nil
	}
	p.Cut = !done
	return p, err
}

// replied adds the teacher's next turn and the reply to it. It reports whether the reply is the one
// that was recorded.
func (p *Played) replied(turn teacherTurn, r env.Reply) bool {
	if r.Prompt == nil && !r.Done && !matchesRecord(r.Append, turn.then) {
		return false
	}
	p.Turns = append(p.Turns,
		report.Turn{Role: "assistant", Text: turn.text, Reward: &r.Reward, Valid: &r.Valid})
	for _, m := range append(r.Append, r.Prompt...) {
		p.Turns = append(p.Turns, report.Turn{Role: m.Role, Text: m.Content})
	}
	p.Reward, p.Wrote, p.Tokens = p.Reward+r.Reward, p.Wrote+1, p.Tokens+turn.tokens
	if !r.Valid {
		p.Invalid++
	}
	if r.Label != "" {
		p.Label = r.Label
	}
	return true
}

// matchesRecord reports whether messages equal the recorded ones. After the last turn there is no
// record, and any messages match.
func matchesRecord(now []env.Message, then []data.Message) bool {
	if len(then) == 0 {
		return true
	}
	if len(now) != len(then) {
		return false
	}
	for i, m := range now {
		if m.Role != then[i].Role || m.Content != then[i].Content {
			return false
		}
	}
	return true
}

// teacherTurns returns the recorded turns as the student's template writes them: the environment
// reads a tool call as text.
func teacherTurns(tok *tokenizer.Tokenizer, row data.Row) (turns []teacherTurn, err error) {
	enc := encode.Encoder{Tok: tok}
	if row.Turns == nil {
		if row.Teacher == "" {
			return nil, nil
		}
		return []teacherTurn{{text: row.Teacher, tokens: len(enc.Answer(row.Teacher))}}, nil
	}
	var written [][]int32 // token ids by turn; nil if texts are enough
	for _, m := range row.Turns {
		if m.Role != "assistant" || m.Context || m.ToolCalls == "" && m.Thinking == "" {
			continue
		}
		ids, spans, err := enc.Reply(row)
		if err != nil {
			return nil, fmt.Errorf("data: row %d: %w", row.Index, err)
		}
		for _, s := range spans {
			written = append(written, ids[s.From:s.To])
		}
		break
	}
	for _, m := range row.Turns {
		k := len(turns)
		switch {
		case m.Role != "assistant" || m.Context:
			if k > 0 {
				turns[k-1].then = append(turns[k-1].then, m)
			}
		case k < len(written):
			turns = append(turns, teacherTurn{text: tok.Decode(written[k], true),
				tokens: len(written[k])})
		default:
			turns = append(turns, teacherTurn{text: m.Content, tokens: len(enc.Answer(m.Content))})
		}
	}
	return turns, nil
}
