package games

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/internal/env"
	"gad/internal/philox"
)

// Sizes of gad env check.
const (
	checkEpisodes = 10 // episodes
	mostTurns     = 20 // of an episode, which is closed then
)

// Recorded is a row with the teacher's episode, if it has one.
type Recorded struct {
	Row     env.Row
	Teacher []env.Message // begins and ends with the assistant; nil: none
	At      int           // line of its file, from 0
}

// ReadRows reads the first rows of a file of JSON lines, as many as Check plays.
func ReadRows(in io.Reader) (rows []Recorded, err error) {
	d := json.NewDecoder(in)
	for at := 0; len(rows) < checkEpisodes; at++ {
		var raw struct {
			Content  []env.Message   `json:"content"`
			Env      json.RawMessage `json:"env"`
			Response json.RawMessage `json:"teacher_response"`
		}
		if err := d.Decode(&raw); err == io.EOF {
			break
		} else if err != nil {
			return nil,
				fmt.Errorf("row %d: %w: give JSON lines with content, env and teacher_response", at,
					err)
		}
		r := Recorded{Row: env.RowOf(raw.Content, ""), At: at}
		r.Row.Env = raw.Env
		if len(raw.Response) > 0 && raw.Response[0] == '[' {
			if err := json.Unmarshal(raw.Response, &r.Teacher); err != nil {
				return nil, fmt.Errorf("row %d: teacher_response: an element is no message: "+
					"give a list of messages with role and content", at)
			}
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil,
			errors.New("has no rows: give JSON lines with content, env and teacher_response")
	}
	return rows, nil
}

// played is one episode of a check.
type played struct {
	seed    uint64
	row     Recorded
	turns   []env.Turn
	replies []env.Reply // one more than turns, unless err is set
	err     error
	times   []time.Duration // of each reply
}

// mostSilent is the number of consecutive episodes without a reply within the time limit after
// which a check gives up.
const mostSilent = 3

// Check plays random episodes, one after another and then all again at the same time, and writes a
// table of them to out. If the environment can fork, forks of each episode must continue as it did.
// With rows it plays their teachers' episodes too. It returns a line for each violation of the
// protocol or of determinism.
func Check(ctx context.Context, pool *env.Pool, seed uint64, rows []Recorded,
	out io.Writer) (broken []string, err error) {
	fmt.Fprintf(out, "%s: protocol version %d, %d episodes at once\n\n%-8s %6s %6s %8s %8s  %s\n",
		pool.Name(), env.Version, pool.Places(),
		"episode", "seed", "turns", "invalid", "reward", "end")
	first := make([]played, checkEpisodes)
	silent := 0 // episodes in a row
	for i := range first {
		p := played{seed: seed + uint64(i)}
		if len(rows) > 0 {
			p.row = rows[i%len(rows)]
		}
		p.play(ctx, pool, nil)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p.err != nil {
			broken = append(broken, p.err.Error())
		}
		first[i] = p
		invalid, reward := p.sums()
		fmt.Fprintf(out, "%-8d %6d %6d %8d %8.3g  %s\n", i, p.seed, len(p.turns), invalid, reward,
			p.ending())
		if silent++; !errors.Is(p.err, env.ErrLate) {
			silent = 0
		} else if silent == mostSilent {
			return append(broken, fmt.Sprintf("%d episodes in a row had no reply in time: no others are played", silent)), nil
		}
	}
	second := make([]played, len(first))
	var all sync.WaitGroup
	for i, p := range first {
		all.Go(func() {
			second[i] = played{seed: p.seed, row: p.row}
			second[i].play(ctx, pool, p.turns)
		})
	}
	all.Wait()
	for i, p := range first {
		q := second[i]
		switch at := differ(p.replies, q.replies); {
		case p.err != nil:
		case q.err != nil:
			broken = append(broken, q.err.Error())
		case at >= 0:
			broken = append(broken, fmt.Sprintf("episode %d, seed %d: not deterministic: with the same seed and turns, and others at once, reply %d is another", i, p.seed, at))
		}
	}
	forks := 0
	for i := range first {
		if p := &first[i]; pool.Forks() && p.err == nil && len(p.turns) > 1 {
			n, text := p.fork(ctx, pool)
			if forks += n; text != "" {
				broken = append(broken, fmt.Sprintf("episode %d, seed %d: %s", i, p.seed, text))
			}
		}
	}
	for _, r := range rows {
		if r.Teacher == nil {
			continue
		}
		text, err := teacherEpisode(ctx, pool, seed, r)
		if err != nil {
			return nil, err
		}
		if text != "" {
			broken = append(broken, fmt.Sprintf("row %d: %s", r.At, text))
		}
	}
	summary(out, first, second, rows)
	if pool.Forks() {
		fmt.Fprintf(out, "%d forks of episodes\n", forks)
	}
	return broken, ctx.Err()
}

// fork plays the episode once more, forks it twice in the middle, and forks the first fork again
// after a later turn. All must continue as the episode did: text describes the first that does not,
// "" for none. n is the number of forks, fewer if the program has no place for another episode.
func (p *played) fork(ctx context.Context, pool *env.Pool) (n int, text string) {
	open := make([]env.Episode, 4)
	middle, last := (len(p.turns)+1)/2, len(p.turns)-1
	for i := range open {
		var branch env.Branch
		at := middle
		switch i {
		case 0:
			open[0] = pool.Episode()
		case 3:
			at = last
			branch = pool.Branch(open[1], at)
		default:
			branch = pool.Branch(open[0], at)
		}
		if branch != nil {
			open[i] = branch
		}
		defer open[i].Close()
		again := played{seed: p.seed, row: p.row}
		again.act(ctx, open[i], p.turns)
		pool.Hold(open[i])
		if branch != nil && branch.Forked() {
			n++
		}
		switch k := differ(p.replies, again.replies); {
		case again.err != nil:
			return n, again.err.Error()
		case k >= 0 && branch != nil:
			return n, fmt.Sprintf("fork promised and not kept: forked behind turn %d, with the same turns, reply %d is another", at, k)
		case k >= 0:
			return n, fmt.Sprintf(
				"not deterministic: with the same seed and turns, reply %d is another", k)
		}
	}
	return n, ""
}

// play plays an episode with the given turns; nil: random ones.
func (p *played) play(ctx context.Context, pool *env.Pool, turns []env.Turn) {
	e := pool.Episode()
	defer e.Close()
	p.act(ctx, e, turns)
}

// act plays e, which has not been reset.
func (p *played) act(ctx context.Context, e env.Episode, turns []env.Turn) {
	var reply env.Reply
	ask := func(f func() (env.Reply, error)) bool {
		begun := time.Now()
		reply, p.err = f()
		p.times = append(p.times, time.Since(begun))
		if p.err == nil {
			p.replies = append(p.replies, reply)
		}
		return p.err == nil && !reply.Done
	}
	drawn := turns == nil
	seen := slices.Clone(p.row.Row.Content)
	on := ask(func() (env.Reply, error) { return e.Reset(ctx, p.seed, p.row.Row) })
	for on && len(p.turns) < mostTurns {
		seen = slices.Concat(seen, reply.Append, reply.Prompt)
		var turn env.Turn
		if drawn {
			turn = p.draw(seen)
		} else if len(p.turns) < len(turns) {
			turn = turns[len(p.turns)]
		} else {
			break // the first play went on: the replies differ
		}
		p.turns = append(p.turns, turn)
		on = ask(func() (env.Reply, error) { return e.Step(ctx, turn) })
	}
}

// oddTurns lists turns that must not break an environment.
var oddTurns = []string{"", " ", "help", "<|im_end|>", "<tool_call>\n{\"name\": \"add\"", "{}",
	"null", "é 日本語 \U0001f600", "\x00\x1b[2J", "\xff\xfe", strings.Repeat("long ", 2000)}

// taggedParts matches parts of a message such as <tool_call>...</tool_call>.
var taggedParts = regexp.MustCompile(`(?s)<([a-z_]+)>.*?</[a-z_]+>`)

// draw returns a random turn: an odd one, the teacher's, or a phrase of the environment's messages.
func (p *played) draw(seen []env.Message) env.Turn {
	at := uint64(len(p.turns))
	draw := func(n int, purpose uint64) int {
		return philox.IntN(n, p.seed, philox.Data, 50, at, purpose)
	}
	switch k := draw(10, 0); {
	case k == 0:
		return env.Turn{Text: oddTurns[draw(len(oddTurns), 1)]}
	case k == 1:
		return env.Turn{Text: "this one was c", Cut: true}
	case k < 6 && 2*at < uint64(len(p.row.Teacher)):
		return env.Turn{Text: p.row.Teacher[2*at].Content}
	}
	var phrases []string
	add := func(text string) {
		if text = strings.TrimSpace(text); text != "" && !slices.Contains(phrases, text) {
			phrases = append(phrases, text)
		}
	}
	for _, m := range seen {
		for _, tag := range taggedParts.FindAllString(m.Content, -1) {
			add(tag)
		}
		for _, sentence := range strings.SplitAfter(taggedParts.ReplaceAllString(m.Content, ""), ". ") {
			_, list, is := strings.Cut(sentence, ": ")
			if !is {
				list = sentence
			}
			add(list)
			mark := func(r rune) bool { return strings.ContainsRune(",.;!?\n\"'", r) }
			for _, phrase := range strings.FieldsFunc(list, mark) {
				add(phrase)
			}
		}
	}
	if len(phrases) == 0 {
		return env.Turn{Text: "yes"}
	}
	return env.Turn{Text: phrases[draw(len(phrases), 2)]}
}

// differ returns the index of the first reply that differs, -1 for none.
func differ(a, b []env.Reply) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || !reflect.DeepEqual(a[i], b[i]) {
			return i
		}
	}
	return -1
}

// teacherEpisode plays a row's recorded episode, and returns a description of the first difference
// from the record, "" for none.
func teacherEpisode(ctx context.Context, pool *env.Pool, seed uint64, r Recorded) (string, error) {
	e := pool.Episode()
	defer e.Close()
	why, at, done := "", -1, false // at is the teacher's next message; -1 is before the reset
	err := env.Play(ctx, e, seed, r.Row, func(reply env.Reply) (turn env.Turn, ok bool, err error) {
		if done = reply.Done; at < 0 {
			at, why = 0, r.otherStart(reply)
		} else {
			at, why = r.otherReply(at+1, reply)
		}
		if why != "" || at == len(r.Teacher) {
			return turn, false, nil
		}
		m := r.Teacher[at]
		switch {
		case m.Role != "assistant":
			why = fmt.Sprintf(
				"message %d of teacher_response is of role %q: what the environment has not said",
				at, m.Role)
		case m.ToolCalls != "":
			done = true // which text they are is the student's template's to say
		case reply.Done:
			why = fmt.Sprintf("the environment ended the teacher's episode before message %d", at)
		default:
			return env.Turn{Text: m.Content}, true, nil
		}
		return turn, false, nil
	})
	if errors.Is(err, env.ErrFault) {
		return err.Error(), nil
	}
	if err == nil && why == "" && !done {
		why = "the environment does not end where the teacher's episode ends"
	}
	return why, err
}

// otherStart says how the reply to a reset is not the start of the teacher's episode; "" if it is.
func (r Recorded) otherStart(reply env.Reply) string {
	first := reply.Prompt
	if first == nil {
		first = slices.Concat(r.Row.Content, reply.Append)
	}
	if content := r.Row.Content; len(content) > 0 && !reflect.DeepEqual(first, content) {
		return "the environment does not begin with content, as the teacher's episode did"
	}
	return ""
}

// otherReply returns why a message of a reply is not the teacher's from message at on, "" if all
// are, and the number of the message after them.
func (r Recorded) otherReply(at int, reply env.Reply) (next int, why string) {
	for _, said := range reply.Append {
		if at >= len(r.Teacher) || r.Teacher[at].Role != said.Role ||
			r.Teacher[at].Content != said.Content {
			return at, fmt.Sprintf(
				"message %d of teacher_response is not what the environment answers now", at)
		}
		at++
	}
	return at, ""
}

// sums returns the number of invalid turns and the sum of rewards.
func (p played) sums() (invalid int, reward float64) {
	for i, r := range p.replies {
		if reward += r.Reward; i > 0 && !r.Valid {
			invalid++
		}
	}
	return invalid, reward
}

// ending returns how the episode ended, for the table.
func (p played) ending() string {
	switch n := len(p.replies); {
	case p.err != nil:
		return "fault"
	case !p.replies[n-1].Done:
		return fmt.Sprintf("closed after %d turns", mostTurns)
	case p.replies[n-1].Label != "":
		return "done: " + p.replies[n-1].Label
	}
	return "done"
}

// summary writes the totals of a check.
func summary(out io.Writer, first, second []played, rows []Recorded) {
	turns, replies, done, teachers := 0, 0, 0, 0
	var total, slowest time.Duration
	for _, p := range slices.Concat(first, second) {
		if n := len(p.replies); n > 0 && p.replies[n-1].Done {
			done++
		}
		turns += len(p.turns)
	}
	for _, p := range first { // played one at a time: times of single replies
		for _, d := range p.times {
			replies++
			total += d
			slowest = max(slowest, d)
		}
	}
	for _, r := range rows {
		if r.Teacher != nil {
			teachers++
		}
	}
	fmt.Fprintf(out, "\n%d episodes, each twice: %d turns, %d of %d plays were done; %.2g ms a reply, slowest %.2g ms\n",
		len(first), turns, done, len(first)+len(second), 1e3*total.Seconds()/float64(replies),
		1e3*slowest.Seconds())
	if teachers > 0 {
		fmt.Fprintf(out, "%d episodes of the teacher\n", teachers)
	}
}
