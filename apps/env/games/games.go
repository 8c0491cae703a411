// Package games has the environments that ship with gad, each with a scripted teacher, and gad env
// check, which tests any environment.
//
//	games.go       a Game: its episodes, its rows; start here
//	doors.go       a house with two ways out
//	calculator.go  sums that need a tool
//	readme.go      README.md in the folder of a game's rows
//	check.go       gad env check
package games

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"slices"

	"gad/internal/env"
	"gad/internal/philox"
)

// Game is an environment whose worlds are drawn, with a teacher who always succeeds.
type Game struct {
	Name, About string
	Rows        map[string]int // default number of rows by split
	MaxTurns    int            // an episode that reaches it is lost
	Rules       string         // for README.md

	empty func() world
	draw  func(draw func(n int) int) world
}

// Splits lists the splits of a game's rows in writing order. A world always belongs to the same
// split, whatever the seed.
var Splits = []string{"train", "test", "tune"}

// Games returns all games.
func Games() []Game { return []Game{doorsGame, calculatorGame} }

// world is the state of one episode. Its exported fields, which do not change, are the column env
// of a row.
type world interface {
	check() error                                  // refuses invalid exported fields
	content() []env.Message                        // the prompt
	anchor() string                                // equal anchors: equal situations
	step(turn string) env.Reply                    // "": a cut turn
	copy() world                                   // independent of the original
	teacher(draw func(n int) int) (turns []string) // a teacher's turns to success
}

// places is the number of simultaneous episodes of a game in one process.
const places = 1024

// Serve plays the game on in and out, in the protocol of environments.
func (g Game) Serve(in io.Reader, out io.Writer) error {
	return env.Serve(in, out, g.Name, places, func() env.Episode { return &episode{game: g} })
}

// episode is an env.Episode of a game.
type episode struct {
	game  Game
	world world
	turns int
	done  bool
}

// Reset begins an episode in the world of row.Env, or in one drawn by the seed if the row has none.
func (e *episode) Reset(_ context.Context, seed uint64, row env.Row) (env.Reply, error) {
	if row.Env == nil {
		e.world = e.game.draw(draws(seed, 0, 0))
	} else {
		e.world = e.game.empty()
		d := json.NewDecoder(bytes.NewReader(row.Env))
		d.DisallowUnknownFields()
		err := d.Decode(e.world)
		if err == nil {
			err = e.world.check()
		}
		if err != nil {
			return env.Reply{}, fmt.Errorf("env %s: column env: %w", e.game.Name, err)
		}
	}
	r := env.Reply{Append: []env.Message{}, Valid: true, Anchor: e.world.anchor()}
	if content := e.world.content(); len(row.Content) == 0 {
		r.Append = content
	} else if !reflect.DeepEqual(content, row.Content) {
		return env.Reply{}, fmt.Errorf(
			"env %s: content is not that of column env: use the rows of gad task make %s",
			e.game.Name, e.game.Name)
	}
	return r, nil
}

func (e *episode) Step(_ context.Context, turn env.Turn) (r env.Reply, err error) {
	if e.world == nil || e.done {
		return r, fmt.Errorf("env %s: a turn behind the end", e.game.Name)
	}
	text := turn.Text
	if turn.Cut {
		text = "" // the beginning of a turn: invalid in every game
	}
	r = e.world.step(text)
	if e.turns++; e.turns == e.game.MaxTurns && !r.Done {
		r = env.Reply{Done: true, Valid: r.Valid, Label: "lost"}
	}
	if e.done = r.Done; !r.Done {
		r.Anchor = e.world.anchor()
	}
	return r, nil
}

func (e *episode) Close() { e.world = nil }

// Fork returns an independent copy of the episode.
func (e *episode) Fork() env.Forker {
	copied := *e
	copied.world = e.world.copy()
	return &copied
}

// draws returns a source of random numbers, the same for the same seed, purpose and row. Its
// argument is the exclusive bound.
func draws(seed, purpose, row uint64) func(n int) int {
	next := uint64(0)
	return func(n int) int {
		next++
		return philox.IntN(n, seed, philox.Data, 100+purpose, row, next)
	}
}

// Row is one episode of the teacher.
type Row struct {
	Content  []env.Message   `json:"content"`
	Response []env.Message   `json:"teacher_response"` // turns of the assistant, and the environment's replies
	Env      json.RawMessage `json:"env"`
}

// Shares of worlds that are held out, in shares.
const (
	shares    = 32
	testShare = 3
	tuneShare = 2
)

// split returns the split of a world.
func split(raw json.RawMessage) string {
	h := fnv.New64a()
	h.Write(raw)
	switch share := philox.IntN(shares, 0, philox.Data, 100, h.Sum64(), 0); {
	case share < testShare:
		return Splits[1]
	case share < testShare+tuneShare:
		return Splits[2]
	}
	return Splits[0]
}

// MaxRows bounds the rows of a split: each has another world.
const MaxRows = 100_000

// Make returns the first n rows of a split for a seed: the teacher's episodes, played in the
// environment. A smaller n gives the beginning of the same rows.
func (g Game) Make(seed uint64, side string, n int) ([]Row, error) {
	at := slices.Index(Splits, side)
	if at < 0 || n < 0 || n > MaxRows {
		return nil, fmt.Errorf("games: split %q, %d rows: must be one of %v, and 0 to %d rows",
			side, n, Splits, MaxRows)
	}
	rows, seen := make([]Row, 0, n), map[string]bool{}
	for i := range n {
		draw := draws(seed, uint64(1+at), uint64(i))
		for {
			w := g.draw(draw)
			raw, err := json.Marshal(w)
			if err != nil {
				return nil, err
			}
			if split(raw) != side || seen[string(raw)] {
				continue
			}
			seen[string(raw)] = true
			row := Row{Content: w.content(), Env: raw}
			if err := g.teach(&row, w.teacher(draw)); err != nil {
				return nil, err
			}
			rows = append(rows, row)
			break
		}
	}
	return rows, nil
}

var errTeacher = errors.New("games: the teacher has not reached the end") // a bug

// teach plays the teacher's turns and records the episode in the row.
func (g Game) teach(row *Row, turns []string) error {
	var last env.Reply
	given := 0 // turns
	err := env.Play(context.Background(), &episode{game: g}, 0,
		env.Row{Content: row.Content, Env: row.Env},
		func(r env.Reply) (env.Turn, bool, error) {
			if last = r; given > 0 { // the row has the first context
				row.Response = append(row.Response, r.Append...)
			}
			if given == len(turns) || r.Done {
				return env.Turn{}, false, nil
			}
			turn := turns[given]
			given++
			row.Response = append(row.Response, env.Message{Role: "assistant", Content: turn})
			return env.Turn{Text: turn}, true, nil
		})
	if err == nil && (given < len(turns) || !last.Done || last.Reward != 1) {
		err = fmt.Errorf("%w: %s", errTeacher, row.Env)
	}
	return err
}

// Corpus returns text to train a tokenizer on: role and text of every message of the rows, a line
// each.
func Corpus(rows []Row) string {
	var b bytes.Buffer
	for _, r := range rows {
		for _, m := range slices.Concat(r.Content, r.Response) {
			b.WriteString(m.Role + "\n" + m.Content + "\n")
		}
	}
	return b.String()
}
