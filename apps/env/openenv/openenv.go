// Package openenv implements gad env openenv: an environment of an OpenEnv server, in gad's
// protocol.
//
//	openenv.go  a server's episodes over WebSocket: start here
//	action.go   a student's turn as an action of the server's schema
//
// An OpenEnv server plays one environment in each connection to /ws. Requests and replies are JSON
// objects {"type": ..., "data": ...}; GET /schema returns the schema of an action.
package openenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"gad/internal/env"
)

// ErrAddress reports an address that no server can have.
var ErrAddress = errors.New("env openenv")

// Server is an OpenEnv server whose schema has been read.
type Server struct {
	address string // of the WebSocket
	schema  json.RawMessage
	action  action
	places  chan struct{} // semaphore of open connections
	pauses  []time.Duration
}

// maxMessage bounds a message of the server, in bytes.
const maxMessage = 1 << 20

// patience is the time limit for the server to answer a request for its schema, to accept a
// connection, and to close one. A step may take as long as the client of gad's protocol waits.
const patience = 10 * time.Second

// Open reads the schema of the server at address, ws://HOST[/PATH]/ws or without /ws. At most
// `episodes` connections to it will be open at the same time.
func Open(ctx context.Context, address string, episodes int) (*Server, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "ws" && u.Scheme != "wss" {
		return nil,
			fmt.Errorf("%w: %q: is no address of a server: give one such as ws://localhost:8000/ws",
				ErrAddress, address)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/ws")
	asked := *u
	asked.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	asked.Path += "/schema"
	u.Path += "/ws"
	s := &Server{address: u.String(), places: make(chan struct{}, episodes),
		pauses: []time.Duration{100 * time.Millisecond, 400 * time.Millisecond,
			1600 * time.Millisecond}}
	raw, err := get(ctx, asked.String())
	if err != nil {
		return nil, fmt.Errorf("env openenv: %s: %w: is an OpenEnv server running there?",
			asked.String(), err)
	}
	var all struct{ Action json.RawMessage }
	if json.Unmarshal(raw, &all) != nil || json.Unmarshal(all.Action, &s.action) != nil ||
		s.action.Properties == nil {
		return nil,
			fmt.Errorf("env openenv: %s: has no schema of actions: is it an OpenEnv server?",
				asked.String())
	}
	var b bytes.Buffer
	if err := json.Compact(&b, all.Action); err != nil {
		return nil, err
	}
	s.schema = b.Bytes()
	return s, nil
}

// client follows no redirect: it connects only to the host that the user names.
var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse
}}

// get returns the body at an address.
func get(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // the caller names the address
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxMessage))
}

// Serve plays the server's environment on in and out, in gad's protocol.
func (s *Server) Serve(in io.Reader, out io.Writer) error {
	return env.Serve(in, out, "openenv", cap(s.places), func() env.Episode {
		return &episode{s: s}
	})
}

// episode is an env.Episode with its own connection.
type episode struct {
	s    *Server
	conn *websocket.Conn // nil before Reset, and after Close
}

// message is a request to the server.
type message struct {
	Type string `json:"type"`
	Data any    `json:"data,omitempty"`
}

// observation is the data of a reply of type observation.
type observation struct {
	Observation json.RawMessage `json:"observation"`
	Reward      json.RawMessage `json:"reward"`
	Done        bool            `json:"done"`
}

// serverError is the data of a reply of type error.
type serverError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Errors  []struct {
		Where   []any  `json:"loc"`
		Message string `json:"msg"`
	} `json:"errors"`
}

// Error returns code, message and the fields at fault.
func (r serverError) Error() string {
	text := r.Code + ": " + strings.TrimSuffix(r.Message, ".")
	for _, e := range r.Errors {
		where := make([]string, len(e.Where))
		for i, x := range e.Where {
			where[i] = fmt.Sprint(x)
		}
		text += fmt.Sprintf("; %s: %s", strings.Join(where, "."), e.Message)
	}
	return text
}

// Reset connects and begins an episode. It retries a few times if the server is full, which may
// still be closing the episode before.
func (e *episode) Reset(ctx context.Context, seed uint64, row env.Row) (env.Reply, error) {
	data := map[string]any{}
	if row.Env != nil {
		if err := json.Unmarshal(row.Env, &data); err != nil || data == nil {
			return env.Reply{}, fmt.Errorf(
				"column env: must be an object, whose fields are arguments of the server's reset")
		}
	}
	// Libraries of random numbers take 32 bits, some with a sign.
	data["seed"], data["episode_id"] = seed&0x7fffffff, fmt.Sprintf("gad-%d", seed)
	select {
	case e.s.places <- struct{}{}:
	case <-ctx.Done():
		return env.Reply{}, ctx.Err()
	}
	for try := 0; ; try++ {
		o, err := e.begin(ctx, data)
		if err == nil {
			return e.s.reply(o, true)
		}
		e.hangUp(false)
		var r serverError
		full := errors.As(err, &r) && r.Code == "CAPACITY_REACHED"
		if !full || try == len(e.s.pauses) {
			<-e.s.places
			if full {
				err = fmt.Errorf("%w: the server plays fewer episodes at once than --episodes %d, or somebody else plays there: lower it, or raise the server's max_concurrent_envs", err, cap(e.s.places))
			}
			return env.Reply{}, fmt.Errorf("%s: reset: %w", e.s.address, err)
		}
		select {
		case <-time.After(e.s.pauses[try]):
		case <-ctx.Done():
			<-e.s.places
			return env.Reply{}, ctx.Err()
		}
	}
}

// begin connects and resets.
func (e *episode) begin(ctx context.Context, data map[string]any) (observation, error) {
	dialling, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, _, err := websocket.Dial(dialling, e.s.address,
		&websocket.DialOptions{HTTPClient: client})
	if err != nil {
		return observation{}, fmt.Errorf("cannot connect: %w", err)
	}
	conn.SetReadLimit(maxMessage)
	e.conn = conn
	return e.ask(ctx, message{"reset", data})
}

// ask sends a message and returns the observation in reply.
func (e *episode) ask(ctx context.Context, m message) (o observation, err error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return o, err
	}
	// A full server closes the connection after its error, which is read below and says more.
	failed := e.conn.Write(ctx, websocket.MessageText, raw)
	_, text, err := e.conn.Read(ctx)
	if err != nil {
		return o, fmt.Errorf("the connection has ended: %w", errors.Join(failed, err))
	}
	var got struct {
		Type string
		Data json.RawMessage
	}
	if json.Unmarshal(text, &got) != nil {
		return o, fmt.Errorf("the server answers %.60q, which is not JSON", text)
	}
	switch got.Type {
	case "observation":
		if json.Unmarshal(got.Data, &o) != nil || o.Observation == nil {
			return o, fmt.Errorf("the server answers %.60q, which is no observation", text)
		}
		return o, nil
	case "error":
		var r serverError
		if json.Unmarshal(got.Data, &r) != nil || r.Code == "" {
			return o, fmt.Errorf("the server answers %.60q, which is an error without a code", text)
		}
		return o, r
	}
	return o, fmt.Errorf("the server answers with type %.60q, and not with an observation",
		got.Type)
}

// Step sends the action of a turn. A turn without an action is invalid, and so is one that the
// server refuses by its schema: then the environment has not seen it.
func (e *episode) Step(ctx context.Context, turn env.Turn) (env.Reply, error) {
	if e.conn == nil {
		return env.Reply{}, errors.New("a turn behind the end")
	}
	data, why := e.s.action.read(turn)
	if why != "" {
		return invalid(why), nil
	}
	o, err := e.ask(ctx, message{"step", data})
	var r serverError
	if errors.As(err, &r) && r.Code == "VALIDATION_ERROR" {
		return invalid("The action was refused: " + r.Error()), nil
	}
	if err != nil {
		return env.Reply{}, fmt.Errorf("%s: step: %w", e.s.address, err)
	}
	return e.s.reply(o, false)
}

// invalid returns the reply to a turn without a valid action.
func invalid(why string) env.Reply {
	return env.Reply{Append: []env.Message{{Role: "user", Content: why}}}
}

// reply returns an observation as text; the first one contains the schema.
func (s *Server) reply(o observation, first bool) (r env.Reply, err error) {
	var b bytes.Buffer
	if err := json.Compact(&b, o.Observation); err != nil {
		return r, err
	}
	r.Valid, r.Done, r.Anchor = true, o.Done, b.String()
	text := `{"observation":` + r.Anchor
	if first {
		text += `,"action_schema":` + string(s.schema)
	}
	r.Append = []env.Message{{Role: "user", Content: text + "}"}}
	if first {
		return r, nil // a reward before the first turn belongs to none
	}
	var truth bool
	switch err := json.Unmarshal(o.Reward, &r.Reward); {
	case o.Reward == nil, string(o.Reward) == "null", err == nil:
	case json.Unmarshal(o.Reward, &truth) == nil:
		if truth {
			r.Reward = 1
		}
	default:
		return r, fmt.Errorf("%s: step: reward %.60q: is no number", s.address, o.Reward)
	}
	if r.Done {
		r.Append, r.Anchor = nil, ""
	}
	return r, nil
}

// Close ends the episode and waits until the server has ended it, so that it has room for the next.
func (e *episode) Close() {
	if e.conn != nil {
		e.hangUp(true)
		<-e.s.places
	}
}

// hangUp closes the connection. politely: it asks the server to close it first.
func (e *episode) hangUp(politely bool) {
	if e.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if raw, err := json.Marshal(message{Type: "close"}); politely && err == nil &&
		e.conn.Write(ctx, websocket.MessageText, raw) == nil {
		for err == nil { // until the server has closed it
			_, _, err = e.conn.Read(ctx)
		}
	}
	_ = e.conn.CloseNow() // it may be closed
	e.conn = nil
}
