package games

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gad/internal/env"
)

// solved is a second opinion on a world, from the row's words alone: the length of the episode by
// each way, and the right last turn.
func solved(t *testing.T, g Game, question string) (turns []int, last []string) {
	t.Helper()
	words := strings.FieldsFunc(question,
		func(r rune) bool { return strings.ContainsRune(" ,.?+", r) })
	if g.Name == "calculator" {
		sum := 0
		for _, w := range words[2:] {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Fatalf("%q: %v", question, err)
			}
			sum += n
		}
		return []int{len(words) - 2}, []string{fmt.Sprintf("The sum is %d.", sum)}
	}
	left := map[string]string{"north": "west", "west": "south", "south": "east", "east": "north"}
	faces := words[3]
	for _, w := range words[6:14] {
		for range map[string]int{"left": 1, "right": 3}[w] {
			faces = left[faces]
		}
	}
	var at []int
	for _, w := range words[14:] {
		if n, err := strconv.Atoi(w); err == nil {
			at = append(at, n) // start, key, exit
		}
	}
	far := func(a, b int) int { return max(a-b, b-a) }
	return []int{far(at[0], at[2]) + 1, far(at[0], at[1]) + far(at[1], at[2]) + 2},
		[]string{"dial " + faces, "use key"}
}

// The teacher's rows: lengths, both ways as often as they should be, splits without a common world,
// fewer rows the beginning of more.
func TestRows(t *testing.T) {
	for _, g := range Games() {
		side, byLast := map[string]string{}, map[string]int{}
		longest, shortest := 0, 99
		for _, s := range Splits {
			for seed := range uint64(2) {
				rows, err := g.Make(seed, s, 400)
				if err != nil {
					t.Fatal(err)
				}
				fewer, _ := g.Make(seed, s, 40)
				if a, _ := json.Marshal(rows[:40]); string(a) != string(must(json.Marshal(fewer))) {
					t.Errorf("%s %s: fewer rows are not the beginning of more", g.Name, s)
				}
				for _, r := range rows {
					if was := side[string(r.Env)]; was != "" && was != s {
						t.Fatalf("%s: world %s is in %s and %s", g.Name, r.Env, was, s)
					}
					side[string(r.Env)] = s
					n := 0
					for _, m := range r.Response {
						if m.Role == "assistant" {
							n++
						}
					}
					final := r.Response[len(r.Response)-1]
					lengths, last := solved(t, g, r.Content[1].Content)
					at := slices.Index(last, final.Content)
					if at < 0 || lengths[at] != n || r.Response[0].Role != "assistant" ||
						final.Role != "assistant" {
						t.Fatalf("%s: %s: %d turns, the last %q; want %v, %q", g.Name,
							r.Content[1].Content, n, final.Content, lengths, last)
					}
					longest, shortest = max(longest, n), min(shortest, n)
					byLast[strings.Fields(final.Content)[0]]++
				}
			}
		}
		want := map[string][2]int{"doors": {4, 10}, "calculator": {2, 4}}[g.Name]
		if shortest != want[0] || longest != want[1] {
			t.Errorf("%s: %d to %d turns, want %v", g.Name, shortest, longest, want)
		}
		if share := float64(byLast["dial"]) / 2400; g.Name == "doors" &&
			(share < 0.72 || share > 0.78) {
			t.Errorf("the dial is taken in %g of the episodes", share)
		}
	}
	if _, err := doorsGame.Make(1, "validation", 1); err == nil {
		t.Error("an unknown split")
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// begun is an episode of a game in a world.
func begun(t *testing.T, g Game, world string) *episode {
	t.Helper()
	e := &episode{game: g}
	r, err := e.Reset(context.Background(), 1, env.Row{Env: json.RawMessage(world)})
	if err != nil || len(r.Append) != 2 || r.Anchor == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	return e
}

// A house by hand: what each turn does, that states come again, and each ending.
func TestDoors(t *testing.T) {
	const house = `{"start":2,"key":1,"exit":5,"lock":"north","turns":["left","left","stay","right","stay","right","left","right"]}`
	for _, c := range []struct {
		turns   string // with ! behind an invalid one
		anchors string // room and hand (h), of each turn but the last
		label   string
		reward  float64
	}{
		{"right,right,right,dial north", "3 4 5", "code", 1},
		{"right,right,right,dial east", "3 4 5", "jammed", 0},
		{"left,take key,right,right,right,right,use key", "1 1h 2h 3h 4h 5h", "key", 1},
		{"right,left,left,left!,take key,take key!,right,left,right,right,right,right",
			"3 2 1 1 1h 1h 2h 1h 2h 3h 4h", "lost", 0},
		{"take key!,use key!,dial north!,Right!,right !,!,right,right,right,use key!,dial up!,dial north", "2 2 2 2 2 2 3 4 5 5 5", "code", 1},
	} {
		e := begun(t, doorsGame, house)
		turns, anchors := strings.Split(c.turns, ","), strings.Fields(c.anchors)
		for i, turn := range turns {
			text, invalid := strings.CutSuffix(turn, "!")
			r, err := e.Step(context.Background(), env.Turn{Text: text})
			if err != nil || r.Valid == invalid || r.Done != (i == len(turns)-1) {
				t.Fatalf("%s, turn %d: %+v, %v", c.turns, i, r, err)
			}
			if r.Done {
				if r.Label != c.label || r.Reward != c.reward || r.Append != nil {
					t.Errorf("%s: %+v, want %s", c.turns, r, c.label)
				}
				continue
			}
			room, taken := strings.CutSuffix(anchors[i], "h")
			key := "room 1"
			if taken {
				key = "hand"
			}
			want := fmt.Sprintf("Room %s, key in %s, exit in room 5.", room, key)
			if r.Anchor != want || r.Reward != 0 || !strings.HasSuffix(r.Append[0].Content, want) {
				t.Errorf("%s, turn %d: %+v, want %s", c.turns, i, r, want)
			}
		}
	}
	e := begun(t, doorsGame, house)
	if r, err := e.Step(context.Background(), env.Turn{Text: "right", Cut: true}); err != nil ||
		r.Valid {
		t.Errorf("a turn that was cut: %+v, %v", r, err)
	}
	for _, world := range []string{"null", "[]", "{}", strings.Replace(house, `"exit":5`, `"exit":3`, 1), strings.Replace(house, "north", "up", 1),
		strings.Replace(house, `"key":1`, `"key":2`, 1), strings.Replace(house, `"start":2`, `"start":9`, 1), strings.Replace(house, `,"right"]`, `]`, 1), strings.Replace(house, "lock", "look", 1)} {
		if _, err := (&episode{game: doorsGame}).Reset(context.Background(), 1,
			env.Row{Env: json.RawMessage(world)}); err == nil {
			t.Errorf("world %s", world)
		}
	}
}

func TestCalculator(t *testing.T) {
	const right = `<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>`
	for _, c := range []struct {
		turn  string
		valid bool
		reply string // the tool's; "" is an end
	}{
		{right, true, "3"},
		{"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": -7, \"a\": 1}}\n</tool_call>",
			true, "-6"},
		{"The sum is 60.", true, ""},
		{"The sum is 61.", true, ""},
		{"The sum is 60", false, "Write one call of add, or: The sum is N."},
		{"60", false, "Write one call of add, or: The sum is N."},
		{"I add. " + right, false, "Write one call of add, or: The sum is N."},
		{right + right, false, "Write one call of add, or: The sum is N."},
		{strings.TrimSuffix(right, "</tool_call>"), false,
			"Write one call of add, or: The sum is N."},
		{strings.Replace(right, "add", "mul", 1), false,
			"Write one call of add, or: The sum is N."},
		{strings.Replace(right, "1", `"1"`, 1), false, "Write one call of add, or: The sum is N."},
		{strings.Replace(right, "1", "1.5", 1), false, "Write one call of add, or: The sum is N."},
		{strings.Replace(right, `"a":1,`, "", 1), false, "Write one call of add, or: The sum is N."},
		{strings.Replace(right, `"a":1`, `"a":1,"c":1`, 1), false, "Write one call of add, or: The sum is N."},
		{strings.Replace(right, "1", "9223372036854775807", 1), false,
			"Write one call of add, or: The sum is N."},
	} {
		e := begun(t, calculatorGame, `{"numbers":[10,20,30]}`)
		r, err := e.Step(context.Background(), env.Turn{Text: c.turn})
		if err != nil || r.Valid != c.valid || r.Done != (c.reply == "") {
			t.Errorf("%s: %+v, %v", c.turn, r, err)
		} else if !r.Done && (r.Append[0].Content != c.reply || r.Anchor != c.reply ||
			(r.Append[0].Role == "tool") != c.valid) {
			t.Errorf("%s: %+v, want %s", c.turn, r, c.reply)
		} else if r.Done && (r.Reward == 1) != (c.turn == "The sum is 60.") {
			t.Errorf("%s: %+v", c.turn, r)
		}
	}
	e := begun(t, calculatorGame, `{"numbers":[10,20,30]}`)
	for i := range 8 {
		r, err := e.Step(context.Background(), env.Turn{Text: right})
		if err != nil || r.Done != (i == 7) || r.Done && (r.Label != "lost" || r.Reward != 0) {
			t.Errorf("turn %d: %+v, %v", i, r, err)
		}
	}
	if _, err := e.Step(context.Background(), env.Turn{Text: right}); err == nil {
		t.Error("a turn behind the end")
	}
	for _, world := range []string{`{"numbers":[1]}`, `{"numbers":[1,2,3,4,5,6,7,8]}`, `{"numbers":[1,2,100]}`, `{"numbers":"x"}`} {
		if _, err := (&episode{game: calculatorGame}).Reset(context.Background(), 1,
			env.Row{Env: json.RawMessage(world)}); err == nil {
			t.Errorf("world %s", world)
		}
	}
}

// A game on its standard input and output, to the byte of each line.
func TestServe(t *testing.T) {
	in := `{"op":"hello","version":1}
{"op":"reset","id":7,"seed":3,"row":{"content":[],"env":{"numbers":[10,20,30]}}}
{"op":"reset","id":8,"seed":3,"row":{"content":[{"role":"user","content":"Hello"}],"env":{"numbers":[10,20,30]}}}
{"op":"step","id":7,"turn":"60","cut":false}
{"op":"step","id":7,"turn":"The sum is 60.","cut":false}
{"op":"fork","id":9,"from":7,"turns":1}
{"op":"step","id":9,"turn":"The sum is 61.","cut":false}
{"op":"fork","id":10,"from":9,"turns":2}
{"op":"close","id":7}
{"op":"close","id":7}
`
	want := `{"episodes":1024,"name":"calculator","version":1}
{"anchor":"What is 10 + 20 + 30?","append":[{"role":"system","content":"Add with the tool: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call> gives 3. Then answer: The sum is 3."},{"role":"user","content":"What is 10 + 20 + 30?"}],"id":7}
{"error":"env calculator: content is not that of column env: use the rows of gad task make calculator","id":8}
{"anchor":"Write one call of add, or: The sum is N.","append":[{"role":"user","content":"Write one call of add, or: The sum is N."}],"done":false,"id":7,"reward":0,"valid":false}
{"done":true,"id":7,"label":"right","reward":1,"valid":true}
{"anchor":"Write one call of add, or: The sum is N.","append":[{"role":"user","content":"Write one call of add, or: The sum is N."}],"done":false,"id":9,"reward":0,"valid":false}
{"done":true,"id":9,"label":"wrong","reward":0,"valid":true}
{"error":"fork of episode 9 behind turn 2: it has not gone on from there","id":10}
`
	want = strings.Replace(want, `{"episodes":1024,"name":"calculator","version":1}`, `{"name":"calculator","version":1,"episodes":1024,"fork":true}`, 1)
	// Replies of different episodes come in any order.
	byEpisode := func(text string) []string {
		lines := strings.SplitAfter(text, "\n")
		id := regexp.MustCompile(`"id":([0-9]+)`)
		of := func(line string) int {
			if m := id.FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				return n
			}
			return 0
		}
		slices.SortStableFunc(lines, func(a, b string) int { return of(a) - of(b) })
		return lines
	}
	var out bytes.Buffer
	if err := calculatorGame.Serve(strings.NewReader(in), &out); err != nil ||
		!slices.Equal(byEpisode(out.String()), byEpisode(want)) {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	for in, says := range map[string]string{
		"hello\n":                                 "env: line 1 of standard input: invalid character 'h' looking for beginning of value: give one JSON object a line, as doc/environments.md has it",
		`{"op":"hello","version":2}`:              "env: line 1 of standard input: version 2 of the protocol: this program speaks version 1: see doc/environments.md",
		`{"op":"step","id":1,"turn":""}`:          `env: line 1 of standard input: op "step" with id 1: no op of the protocol, or of an episode that is not open: see doc/environments.md`,
		`{"op":"fork","id":2,"from":1,"turns":1}`: `env: line 1 of standard input: op "fork" with id 2: no op of the protocol, or of an episode that is not open: see doc/environments.md`,
		`{"op":"reset"}`:                          `env: line 1 of standard input: op "reset" without an id: see doc/environments.md`,
	} {
		if err := doorsGame.Serve(strings.NewReader(in), io.Discard); err == nil ||
			err.Error() != says {
			t.Errorf("%s: %v, want %s", in, err, says)
		}
	}
}

// A copy of an episode goes on by itself: neither it nor the original changes the other, in all
// that their worlds reply.
func TestForkOfAGame(t *testing.T) {
	const right = `<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>`
	for _, c := range []struct {
		game        Game
		world       string
		turns, then []string
		other       []string
	}{
		{doorsGame, `{"start":2,"key":1,"exit":5,"lock":"north","turns":["left","left","stay","right","stay","right","left","right"]}`,
			[]string{"left"}, []string{"take key", "right", "right", "right", "right", "use key"},
			[]string{"right", "right", "right", "right", "dial east"}},
		{calculatorGame, `{"numbers":[10,20,30]}`, []string{right},
			[]string{right, "The sum is 60."}, []string{"what?", "The sum is 61."}},
	} {
		play := func(e env.Episode, turns []string) (replies []env.Reply) {
			for _, turn := range turns {
				r, err := e.Step(context.Background(), env.Turn{Text: turn})
				if err != nil {
					t.Fatal(err)
				}
				replies = append(replies, r)
			}
			return replies
		}
		e := begun(t, c.game, c.world)
		play(e, c.turns)
		one, two := e.Fork(), e.Fork()
		anchor := e.world.anchor()
		others := play(one, c.other)
		if e.world.anchor() != anchor {
			t.Errorf("%s: a copy that goes on moves the original to %s", c.game.Name,
				e.world.anchor())
		}
		got, want := play(two, c.then), play(e, c.then)
		whole := begun(t, c.game, c.world)
		if all := play(whole, slices.Concat(c.turns, c.then)); !reflect.DeepEqual(got, want) ||
			!reflect.DeepEqual(got, all[len(c.turns):]) || got[len(got)-1].Reward != 1 ||
			others[len(others)-1].Reward != 0 {
			t.Errorf("%s: a copy has %+v, the original %+v, a whole episode %+v", c.game.Name, got,
				want, all)
		}
	}
}
