package games

import (
	"fmt"
	"slices"
	"strings"

	"gad/internal/env"
)

// The house: rooms in a row, a key in one of them, and the exit door in another. The door opens
// with the key, which takes a longer walk of easy steps, or by a dial, which takes a few steps and
// then the sum of all turns of the lock at once: a small student can only guess that, one in four.
// Paths pass rooms several times, so that episodes of one world meet in the same anchors.
const (
	rooms       = 7
	lockTurns   = 8
	fewestSteps = 3 // from the start to the door, so that the shortest episode has 4 turns
	mostSteps   = 8 // via the key, so that the longest has 10 turns
	codeShare   = 75
)

var (
	ways      = []string{"north", "east", "south", "west"}
	turnNames = []string{"left", "stay", "right"}
)

var doorsGame = Game{
	Name:     "doors",
	About:    "a house of rooms with two ways out; a small student can do the one that the teacher takes less often",
	Rows:     map[string]int{"train": 5000, "test": 1000, "tune": 500},
	MaxTurns: 12,
	Rules: `Rooms 1 to 7 lie from left to right. The turns are left, right, take key, use key and dial WAY. The door in the exit room
opens with the key, or by dialling the way that its lock faces after all of its turns; a wrong dial jams it. A turn that is
none of these, or cannot be done in this room, is invalid and changes nothing. Reward 1 for leaving the house, else 0.
The teacher always leaves it: in 75 % of its episodes by the dial, else with the key.
Labels: code, key, jammed, and lost after 12 turns.`,
	empty: func() world { return &doors{} },
	draw: func(draw func(n int) int) world {
		for {
			d := &doors{Start: 1 + draw(rooms), Key: 1 + draw(rooms), Exit: 1 + draw(rooms),
				Lock: ways[draw(len(ways))]}
			for range lockTurns {
				d.Turns = append(d.Turns, turnNames[draw(len(turnNames))])
			}
			if d.check() == nil {
				return d
			}
		}
	},
}

// doors is a world of the game doors.
type doors struct {
	Start int      `json:"start"`
	Key   int      `json:"key"`
	Exit  int      `json:"exit"`
	Lock  string   `json:"lock"`  // one of ways
	Turns []string `json:"turns"` // of turnNames

	moved int // rooms to the right of the start
	taken bool
}

func (d *doors) check() error {
	for _, room := range []int{d.Start, d.Key, d.Exit} {
		if room < 1 || room > rooms {
			return fmt.Errorf("room %d: must be 1 to %d", room, rooms)
		}
	}
	turns := slices.IndexFunc(d.Turns,
		func(t string) bool { return !slices.Contains(turnNames, t) })
	switch steps := distance(d.Start, d.Key) + distance(d.Key, d.Exit); {
	case !slices.Contains(ways, d.Lock) || turns >= 0 || len(d.Turns) != lockTurns:
		return fmt.Errorf("lock %q with %d turns: must be a way with %d turns", d.Lock,
			len(d.Turns), lockTurns)
	case d.Key == d.Start || d.Key == d.Exit || distance(d.Start, d.Exit) < fewestSteps ||
		steps > mostSteps:
		return fmt.Errorf("start %d, key %d, exit %d: too near, or too far", d.Start, d.Key, d.Exit)
	}
	return nil
}

// distance returns the number of steps between two rooms.
func distance(a, b int) int { return max(a-b, b-a) }

// room returns the student's room.
func (d *doors) room() int { return d.Start + d.moved }

func (d *doors) content() []env.Message {
	first := doors{Start: d.Start, Key: d.Key, Exit: d.Exit}
	return []env.Message{
		{Role: "system", Content: "Leave the house. Rooms 1 to 7 lie from left to right. Answer with one of: left, right, take key, use key, " +
			"dial north, dial east, dial south, dial west. In the exit room use the key, or dial the way that the lock faces after its turns."},
		{Role: "user", Content: fmt.Sprintf("The lock faces %s and turns %s. %s", d.Lock,
			strings.Join(d.Turns, " "), first.view())},
	}
}

// view returns the student's situation as text.
func (d *doors) view() string {
	key := fmt.Sprintf("room %d", d.Key)
	if d.taken {
		key = "hand"
	}
	return fmt.Sprintf("Room %d, key in %s, exit in room %d.", d.room(), key, d.Exit)
}

func (d *doors) anchor() string { return d.view() }

// faces returns the way that the lock faces after its turns.
func (d *doors) faces() string {
	at := slices.Index(ways, d.Lock)
	for _, t := range d.Turns {
		at += slices.Index(turnNames, t) + 3 // left is 3 quarters to the right
	}
	return ways[at%len(ways)]
}

func (d *doors) copy() world {
	copied := *d // the copies share the lock's turns, which do not change
	return &copied
}

func (d *doors) step(turn string) env.Reply {
	way, dials := strings.CutPrefix(turn, "dial ")
	at := d.room()
	switch {
	case turn == "left" && at > 1:
		d.moved--
	case turn == "right" && at < rooms:
		d.moved++
	case turn == "take key" && at == d.Key && !d.taken:
		d.taken = true
	case turn == "use key" && at == d.Exit && d.taken:
		return env.Reply{Done: true, Valid: true, Reward: 1, Label: "key"}
	case dials && slices.Contains(ways, way) && at == d.Exit && way == d.faces():
		return env.Reply{Done: true, Valid: true, Reward: 1, Label: "code"}
	case dials && slices.Contains(ways, way) && at == d.Exit:
		return env.Reply{Done: true, Valid: true, Label: "jammed"}
	default:
		return env.Reply{Append: []env.Message{
			{Role: "user", Content: "That cannot be done. " + d.view()}}}
	}
	return env.Reply{Valid: true, Append: []env.Message{{Role: "user", Content: d.view()}}}
}

func (d *doors) teacher(draw func(n int) int) (turns []string) {
	walk := func(from, to int) {
		for ; from > to; from-- {
			turns = append(turns, "left")
		}
		for ; from < to; from++ {
			turns = append(turns, "right")
		}
	}
	if draw(100) < codeShare {
		walk(d.Start, d.Exit)
		return append(turns, "dial "+d.faces())
	}
	walk(d.Start, d.Key)
	turns = append(turns, "take key")
	walk(d.Key, d.Exit)
	return append(turns, "use key")
}
