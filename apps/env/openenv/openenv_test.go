package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gad/internal/env"
)

// recorded is testdata/sessions.json: what a server of openenv-core 0.3.0 answers, as
// scripts/fixtures_openenv.py has recorded it.
type recorded struct {
	Schema   json.RawMessage
	Sessions map[string][]struct{ Sent, Received json.RawMessage }
}

func fixture(t *testing.T) (r recorded) {
	t.Helper()
	raw, err := os.ReadFile("testdata/sessions.json")
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// replay is a server that answers with a recorded session in each connection, and complains of what
// it was not asked in the record. `closed` gets one for each session that ended with close.
func replay(t *testing.T, name string) (address string, closed chan bool) {
	t.Helper()
	r := fixture(t)
	closed = make(chan bool, 16)
	return serve(t, r.Schema, func(ctx context.Context, c *websocket.Conn) {
		for _, x := range r.Sessions[name] {
			_, text, err := c.Read(ctx)
			if err != nil {
				t.Errorf("%s: %v before %s", name, err, x.Sent)
				return
			}
			var got, want any
			if json.Unmarshal(text, &got) != nil || json.Unmarshal(x.Sent, &want) != nil ||
				!reflect.DeepEqual(got, want) {
				t.Errorf("%s: asked %s, want %s", name, text, x.Sent)
			}
			if err := c.Write(ctx, websocket.MessageText, x.Received); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if name == "full" {
			return // it closes the connection itself
		}
		_, text, err := c.Read(ctx)
		closed <- err == nil && string(text) == `{"type":"close"}`
	}), closed
}

// serve is a server with a schema that plays each connection.
func serve(t *testing.T, schema []byte,
	play func(context.Context, *websocket.Conn)) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /schema", func(w http.ResponseWriter, _ *http.Request) {
		w.Write(schema)
	})
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		play(r.Context(), c)
		c.Close(websocket.StatusNormalClosure, "")
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

func open(t *testing.T, address string, episodes int) *Server {
	t.Helper()
	s, err := Open(t.Context(), address, episodes)
	if err != nil {
		t.Fatal(err)
	}
	s.pauses = []time.Duration{time.Millisecond, time.Millisecond}
	return s
}

// Sessions of a server of openenv-core: observations, rewards and ends; turns that are no action,
// or none that the server takes, which change nothing; an environment that breaks; a full server.
func TestRecordedSessions(t *testing.T) {
	schema := `{"additionalProperties":false,"properties":{"metadata":{"additionalProperties":true,"description":"Additional metadata for the action","title":"Metadata","type":"object"},"guess":{"title":"Guess","type":"integer"}},"required":["guess"],"title":"Guess","type":"object"}`
	user := func(text string) []env.Message { return []env.Message{{Role: "user", Content: text}} }
	hint := func(hint string, left int) string {
		return fmt.Sprintf(`{"hint":"%s","left":%d}`, hint, left)
	}
	said := func(o string) env.Reply {
		return env.Reply{Valid: true, Anchor: o, Append: user(`{"observation":` + o + `}`)}
	}
	not := func(text string) env.Reply { return env.Reply{Append: user(text)} }
	want := `Answer with one JSON object of the action's schema, or with "guess" alone.`
	for _, x := range []struct {
		session string
		seed    uint64
		row     env.Row
		top     int
		turns   []env.Turn
		replies []env.Reply
		err     string
	}{
		{"won", 3, env.Row{}, 9,
			[]env.Turn{{Text: "I do not know"}, {Text: `{"guess": 5`, Cut: true}, {Text: ""},
				{Text: "{\"guess\": 5}\n"}, {Text: "4"}},
			[]env.Reply{not(want), not("The answer was cut: it has no end."), not(want),
				said(hint("less", 3)), {Valid: true, Reward: 1, Done: true}}, ""},
		{"lost", 1 << 40, env.Row{Env: json.RawMessage(`{"top":5}`)}, 5,
			[]env.Turn{{Text: "Let me see.\n```json\n{\"guess\": 9}\n```"},
				{Text: `{"guess": "nine"}`}, {Text: `{"guess": 9, "why": "x"}`}, {Text: " 9 "},
				{Text: "9"}, {Text: "9"}},
			[]env.Reply{said(hint("less", 3)),
				not("The action was refused: VALIDATION_ERROR: Invalid message; guess: Input should be a valid integer, unable to parse string as an integer"),
				not("The action was refused: VALIDATION_ERROR: Invalid message; why: Extra inputs are not permitted"),
				said(hint("less", 2)), said(hint("less", 1)), {Valid: true, Done: true}}, ""},
		{"broken", 4, env.Row{}, 9, []env.Turn{{Text: "99"}}, nil,
			"/ws: step: EXECUTION_ERROR: the game breaks at 99"},
		{"full", 5, env.Row{}, 0, nil, nil, "/ws: reset: CAPACITY_REACHED: Server at capacity: 1/1 sessions active. Cannot accept new connections: the server plays fewer episodes at once than --episodes 2, or somebody else plays there: lower it, or raise the server's max_concurrent_envs"},
	} {
		address, closed := replay(t, x.session)
		e := &episode{s: open(t, address, 2)}
		r, err := e.Reset(t.Context(), x.seed, x.row)
		first := hint(fmt.Sprintf("1 to %d", x.top), 4)
		begin := env.Reply{Valid: true, Anchor: first,
			Append: user(`{"observation":` + first + `,"action_schema":` + schema + `}`)}
		if x.top > 0 && (err != nil || !reflect.DeepEqual(r, begin)) {
			t.Errorf("%s: begins with %+v, %v, want %+v", x.session, r, err, begin)
		}
		for i, turn := range x.turns {
			if r, err = e.Step(t.Context(), turn); err != nil {
				break
			}
			if !reflect.DeepEqual(r, x.replies[i]) {
				t.Errorf("%s: turn %d: %+v, want %+v", x.session, i, r, x.replies[i])
			}
		}
		if fmt.Sprint(err) != orNil(x.err, address) {
			t.Errorf("%s: %v, want %s", x.session, err, x.err)
		}
		e.Close()
		e.Close()
		if x.top > 0 && !<-closed {
			t.Errorf("%s: not closed", x.session)
		}
		if n := len(e.s.places); n != 0 {
			t.Errorf("%s: %d places are taken", x.session, n)
		}
	}
}

// orNil is the text of an error behind the address, or of none.
func orNil(text, address string) string {
	if text == "" {
		return "<nil>"
	}
	return address + text
}

// Servers that answer what no server should: one error each, no hang, no place lost.
func TestWrongServers(t *testing.T) {
	schema := fixture(t).Schema
	for answer, want := range map[string]string{
		"nothing":                    `reset: the server answers "nothing", which is not JSON`,
		`{"type":"state","data":{}}`: `reset: the server answers with type "state", and not with an observation`,
		`{"type":"observation","data":{"done":true}}`:                          `which is no observation`,
		`{"type":"error","data":{"message":"m"}}`:                              `which is an error without a code`,
		`{"type":"error","data":{"code":"FACTORY_ERROR","message":"no game"}}`: `reset: FACTORY_ERROR: no game`,
		`{"type":"error","data":{"code":"SESSION_ERROR","message":"gone"}}`:    `reset: SESSION_ERROR: gone`,
		"":                       `reset: the connection has ended: `,
		strings.Repeat("x", 2e6): `reset: the connection has ended: `,
		`{"type":"observation","data":{"observation":{"a":1},"reward":"much","done":false}}`: `step: reward "\"much\"": is no number`,
		`{"type":"observation","data":{"observation":{"a":1},"reward":true,"done":false}}`:   ``,
	} {
		address := serve(t, schema, func(ctx context.Context, c *websocket.Conn) {
			for {
				_, text, err := c.Read(ctx)
				if err != nil || answer == "" || strings.Contains(string(text), "close") {
					return
				}
				if c.Write(ctx, websocket.MessageText, []byte(answer)) != nil {
					return
				}
			}
		})
		e := &episode{s: open(t, address, 1)}
		_, err := e.Reset(t.Context(), 1, env.Row{})
		if err == nil {
			var r env.Reply
			if r, err = e.Step(t.Context(), env.Turn{Text: "1"}); want == "" &&
				(err != nil || r.Reward != 1) {
				t.Errorf("reward true: %+v, %v", r, err)
			}
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %v, want %s", answer, err, want)
		}
		e.Close()
		if len(e.s.places) != 0 {
			t.Errorf("%.60s: a place is taken", answer)
		}
	}
	for address, want := range map[string]string{
		"http://localhost:1/ws": "is no address of a server",
		"localhost:8000":        "is no address of a server",
		"ws://":                 "is no address of a server",
		"ws://127.0.0.1:1/ws":   "env openenv: http://127.0.0.1:1/schema: dial tcp 127.0.0.1:1: connect: connection refused: is an OpenEnv server running there?",
		serve(t, []byte(`{"action":{"type":"object"}}`), nil) + "/ws": "has no schema of actions: is it an OpenEnv server?",
		serve(t, schema, nil) + "/other":                              "/other/schema: status 404: is an OpenEnv server running there?",
	} {
		if _, err := Open(t.Context(), address, 1); err == nil ||
			!strings.Contains(err.Error(), want) ||
			errors.Is(err, ErrAddress) != strings.HasPrefix(want, "is no") {
			t.Errorf("%s: %v, want %s", address, err, want)
		}
	}
	elsewhere := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound))
	defer elsewhere.Close()
	_, err := Open(t.Context(), "ws"+strings.TrimPrefix(elsewhere.URL, "http"), 1)
	if err == nil || !strings.Contains(err.Error(), "status 302") {
		t.Errorf("a redirect: %v", err)
	}
	e := &episode{s: open(t, serve(t, schema, nil), 1)}
	if _, err := e.Reset(t.Context(), 1, env.Row{Env: json.RawMessage(`[1]`)}); err == nil ||
		len(e.s.places) != 0 {
		t.Errorf("column env [1]: %v", err)
	}
}

// Turns and the actions that they are, by schema.
func TestActions(t *testing.T) {
	schema := func(kind string, required ...string) (a action) {
		raw, err := json.Marshal(map[string]any{"required": required,
			"properties": map[string]any{"x": map[string]string{"type": kind},
				"y": map[string]any{}}})
		if err == nil {
			err = json.Unmarshal(raw, &a)
		}
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, x := range []struct {
		a          action
		text, want string // "" is no action
	}{
		{schema("string", "x"), "go north", `{"x":"go north"}`},
		{schema("string", "x"), `{"x": "a", "y": {"z": 12345678901234567890}}`, `{"x":"a","y":{"z":12345678901234567890}}`},
		{schema("string", "x"), "```json\n{\"x\": 1}\n```", `{"x":1}`},
		{schema("string", "x"), "Thus:\n```\n{\"y\": 1}\n```\n", `{"y":1}`},
		{schema("string", "x"), "```\nnone\n```", "{\"x\":\"```\\nnone\\n```\"}"},
		{schema("string", "x"), "[1]", `{"x":"[1]"}`},
		{schema("string", "x"), "null", `{"x":"null"}`},
		{schema("string", "x"), " \n", ""},
		{schema("", "y"), "free", `{"y":"free"}`},
		{schema("integer", "x"), " 12 ", `{"x":12}`},
		{schema("integer", "x"), "1.5", ""},
		{schema("integer", "x"), "twelve", ""},
		{schema("number", "x"), "1.5", `{"x":1.5}`},
		{schema("number", "x"), "NaN", ""},
		{schema("number", "x"), "1e999", ""},
		{schema("boolean", "x"), "true", `{"x":true}`},
		{schema("boolean", "x"), "yes", ""},
		{schema("array", "x"), "[1]", ""},
		{schema("object", "x"), "free", ""},
		{schema("string", "x", "y"), "free", ""},
		{schema("string"), "free", ""},
		{schema("string"), "{}", "{}"},
	} {
		got, why := x.a.read(env.Turn{Text: x.text})
		raw, err := json.Marshal(got)
		if text := string(raw); err != nil || (why != "") != (x.want == "") ||
			why == "" && text != x.want {
			t.Errorf("%q: %s, %q, %v, want %s", x.text, text, why, err, x.want)
		}
		if _, why := x.a.read(env.Turn{Text: x.text, Cut: true}); why == "" {
			t.Errorf("%q: taken although it is cut", x.text)
		}
	}
}

// Two episodes at once on a slow server wait for none of each other, a third for a place; the
// episodes of a pool go through gad's protocol.
func TestAtOnce(t *testing.T) {
	var most, now = make(chan int, 100), make(chan struct{}, 8)
	address := serve(t, fixture(t).Schema, func(ctx context.Context, c *websocket.Conn) {
		now <- struct{}{}
		most <- len(now)
		defer func() { <-now }()
		for n := 0; ; n++ {
			_, text, err := c.Read(ctx)
			if err != nil || strings.Contains(string(text), "close") {
				return
			}
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"type":"observation","data":{"observation":{"n":%d},"reward":0.5,"done":%t}}`, n, n == 3))
		}
	})
	in, requests := io.Pipe()
	replies, out := io.Pipe()
	s := open(t, address, 2)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Serve(in, out)
		out.Close()
	}()
	go func() {
		fmt.Fprintln(requests, `{"op":"hello","version":1}`)
		for id := range 3 {
			fmt.Fprintf(requests, `{"op":"reset","id":%d,"seed":%d,"row":{"content":[]}}`+"\n", id, id)
		}
	}()
	d := json.NewDecoder(replies)
	var hello map[string]any
	if err := d.Decode(&hello); err != nil || hello["episodes"] != 2.0 ||
		hello["name"] != "openenv" {
		t.Fatalf("%v, %v", hello, err)
	}
	done := map[float64]int{}
	for len(done) < 3 {
		var r struct {
			ID     float64
			Done   bool
			Reward float64
			Error  string
		}
		if err := d.Decode(&r); err != nil || r.Error != "" {
			t.Fatal(err, r.Error)
		}
		op := `"step","turn":"1","cut":false`
		if r.Done {
			done[r.ID]++
			op = `"close"`
		}
		go fmt.Fprintf(requests, `{"op":%s,"id":%g}`+"\n", op, r.ID)
	}
	time.Sleep(10 * time.Millisecond)
	requests.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(most)
	top := 0
	for n := range most {
		top = max(top, n)
	}
	if top != 2 || len(s.places) != 0 {
		t.Errorf("at most %d connections, %d places taken", top, len(s.places))
	}
}

// A server of openenv-core's: GAD_OPENENV=ws://127.0.0.1:8000/ws names one that
// scripts/fixtures_openenv.py serves.
func TestRealServer(t *testing.T) {
	address := os.Getenv("GAD_OPENENV")
	if address == "" {
		t.Skip("GAD_OPENENV names no server: see scripts/fixtures_openenv.py")
	}
	s := open(t, address, 1)
	for seed := range uint64(20) { // one place on the server: each Close frees it
		e := &episode{s: s}
		r, err := e.Reset(t.Context(), seed, env.Row{})
		if err != nil || !strings.HasPrefix(r.Append[0].Content, `{"observation":{"hint":"1 to 9","left":4},"action_schema":{`) {
			t.Fatalf("%+v, %v", r, err)
		}
		secret := seed*7%9 + 1
		if r, err = e.Step(t.Context(), env.Turn{Text: `{"guess": "x"}`}); err != nil || r.Valid {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err = e.Step(t.Context(), env.Turn{Text: fmt.Sprint(secret)}); err != nil ||
			!r.Done || r.Reward != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		e.Close()
	}
}
