// Package serve answers requests of the OpenAI HTTP interface with a language model: completions,
// chat, log-likelihoods and tokens.
//
//	serve.go     Options, the server, the goroutine of the engine: start here
//	http.go      paths, keys, errors; models, tokenize, detokenize
//	fields.go    the parameters of a request
//	messages.go  messages and tools of a chat
//	format.go    response_format: answers in JSON
//	answer.go    completions and chats: their parameters, and the answer as JSON or events
//	choice.go    one answer as it is sampled: its text, up to a stop
//	scores.go    prompt_logprobs
//	calls.go     tool calls in an answer
//	meter.go     /metrics
package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gad/model"
	"gad/tokenizer"
)

// Options configures a Server. A zero stands for the default that a field's comment ends with.
type Options struct {
	Name  string // the model's name in requests and answers
	Slots int    // sequences sampled at the same time; 64
	// tokens of a prompt and its answer together at most; 4096, or the model's if that is less
	Context int
	// tokens of the cache of keys and values; 512 a slot, and at least two of Context
	Cache int
	// tokens of an answer to a chat that gives no limit; 1024, or in chunks the longest thought
	Answer int
	Chunks model.Chunks // answers are written in chunks
	N      int          // answers to a prompt at most; 16
	Queue  int          // requests that wait at most; 128
	// no prefix cache: each prompt is computed anew, also where an earlier one began alike
	Forget bool
	Body   int64 // bytes of a request's body at most; 4 MiB
	Grace  time.Duration
	Key    string // API key that clients must send; "": none
	// Loopback marks a server that only this machine reaches. It refuses requests whose Host names
	// another machine: they come from a page in a browser (DNS rebinding).
	Loopback bool
	// Origins lists the origins whose pages may read answers in a browser (CORS), such as
	// https://example.org; "*" allows every origin.
	Origins []string
	Log     func(line string) // gets a line for each request; may be nil
	// syntax of tool calls in answers, one of ToolParsers; by the chat template
	ToolParser string
	// called once all memory is allocated, before the first request; may be nil
	Ready func()
}

const (
	pageTokens  = 16
	admitTokens = 256      // prompt tokens computed between two tokens of the running answers
	admitOnGPU  = 2048     // the same on a GPU, which fewer would not fill
	headerBytes = 64 << 10 // of a request's header
	choicesMost = 256      // answers to a request at most

	drainTick = 20 * time.Millisecond // period of checking whether requests are in flight
)

// Tests change these.
var (
	connections = 512 // open at the same time; others wait to be accepted
	headerTime  = 10 * time.Second
	// to read a whole request, also one that is refused before its body is read
	bodyTime  = 60 * time.Second
	idleTime  = 2 * time.Minute
	writeTime = 30 * time.Second // for a client to receive a write
)

// Server answers requests with one model.
type Server struct {
	once  sync.Once
	bytes [][]byte // bytes of tokens: see pieces

	o       Options
	m       *model.Model
	tok     *tokenizer.Tokenizer
	created int64
	format  *format // of tool calls; nil: none
	key     [sha256.Size]byte
	meter   *meter
	busy    atomic.Int64 // requests being read, waiting or answered
	drains  atomic.Bool  // refuses new requests

	wake    chan struct{}
	mu      sync.Mutex
	inbox   []*call
	calls   map[*call]bool // submitted and not dropped
	stopped error          // why work has returned
}

// New returns a server of m, with zero options replaced by their defaults. It refuses options that
// leave no room for a request. Until Serve returns, the caller must not use m.
func New(m *model.Model, tok *tokenizer.Tokenizer, o Options) (*Server, error) {
	most := m.Config().MaxPosition
	set := func(to *int, value int) {
		if *to == 0 {
			*to = value
		}
	}
	set(&o.Slots, 64)
	set(&o.Context, min(4096, most))
	set(&o.Cache, max(512*o.Slots, 2*o.Context))
	if o.Chunks.On() {
		set(&o.Answer, o.Chunks.Longest())
	}
	set(&o.Answer, 1024)
	set(&o.N, 16)
	set(&o.Queue, 128)
	if o.Body == 0 {
		o.Body = 4 << 20
	}
	if o.Context > most {
		return nil, fmt.Errorf("serve: context of %d tokens: the model takes %d: lower it",
			o.Context, most)
	}
	if o.Chunks.On() && o.Chunks.Size >= o.Context {
		return nil, fmt.Errorf("serve: chunks of %d tokens: leave no room for a prompt in a context of %d: lower --chunk", o.Chunks.Size, o.Context)
	}
	if least := o.Context + pageTokens; o.Cache < least {
		return nil, fmt.Errorf("serve: cache of %d tokens: a request of %d takes %d: raise --cache-tokens or lower --context", o.Cache, o.Context, least)
	}
	s := &Server{o: o, m: m, tok: tok, created: time.Now().Unix(),
		key: sha256.Sum256([]byte(o.Key)), meter: newMeter(), wake: make(chan struct{}, 1),
		calls: map[*call]bool{}, format: formatOf(o.ToolParser, tok)}
	return s, nil
}

// errDraining answers requests that come while the server stops.
var errDraining = errors.New("the server is stopping")

// errMemory answers a request that needs more memory than there is; other requests go on.
var errMemory = errors.New("the server has too little memory for this request: shorten the prompt")

// CacheTokens returns the size of the cache of keys and values, in tokens.
func (s *Server) CacheTokens() int { return s.o.Cache }

// Serve answers the requests that come to l until ctx ends. Then it refuses new requests, and gives
// those in flight Options.Grace to end.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	pages := (s.o.Cache + pageTokens - 1) / pageTokens
	admit := admitTokens
	if !s.m.Alone() {
		admit = admitOnGPU
	}
	engine, err := s.m.NewEngine(
		model.EngineOptions{Slots: s.o.Slots, PageTokens: pageTokens, Pages: pages,
			Longest: s.o.Context, Admit: admit, Keep: !s.o.Forget})
	if err != nil {
		return err
	}
	s.meter.pages.Store(int64(pages))
	if s.o.Ready != nil {
		s.o.Ready()
	}
	running, stop := context.WithCancel(context.Background())
	defer stop()
	worked, served := make(chan error, 1), make(chan error, 1)
	go func() { worked <- s.work(running, engine) }()
	web := &http.Server{Handler: s, ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime,
		IdleTimeout: idleTime, MaxHeaderBytes: headerBytes, ErrorLog: quietLog()}
	go func() { served <- web.Serve(limitListener(l, connections)) }()
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-worked:
		worked <- nil
	case failed = <-served:
	}
	s.drains.Store(true)
	patience, cancel := context.WithTimeout(context.Background(), s.o.Grace)
	defer cancel()
	if failed == nil {
		s.finish(patience)
	}
	if web.Shutdown(patience) != nil { // requests left after Grace are cut off
		s.abandon()
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		web.Shutdown(last)
		web.Close()
	}
	stop()
	if err := <-worked; failed == nil { // it may have failed while the server was stopping
		failed = err
	}
	engine.Close()
	return failed
}

// finish waits until no request is in flight, or for the end of patience. The listener stays open
// meanwhile, and new requests and /health get status 503: so a load balancer learns that the server
// is about to stop, where a closed port would look like a crash.
func (s *Server) finish(patience context.Context) {
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	for s.busy.Load() > 0 {
		select {
		case <-tick.C:
		case <-patience.Done():
			return
		}
	}
}

// work runs the engine until ctx ends or a step fails. It is the only goroutine that uses the
// model.
func (s *Server) work(ctx context.Context, engine *model.Engine) (err error) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stopped = err; err == nil {
			s.stopped = errDraining
		}
		for c := range s.calls {
			c.fail(s.stopped)
		}
	}()
	for {
		s.mu.Lock()
		inbox := s.inbox
		s.inbox = nil
		s.mu.Unlock()
		for _, c := range inbox {
			for _, r := range c.requests {
				if err := engine.Submit(r); err != nil {
					c.fail(err)
					break
				}
			}
		}
		if !engine.Idle() {
			if err := engine.Step(); err != nil {
				return err
			}
			s.meter.steps.Add(1)
		}
		waiting, live, pages := engine.Load()
		s.meter.load(waiting, live, pages)
		if ctx.Err() != nil {
			return nil
		}
		if engine.Idle() {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
		}
	}
}

// submit queues a call for the engine.
func (s *Server) submit(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped != nil {
		return s.stopped
	}
	s.inbox = append(s.inbox, c)
	s.calls[c] = true
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// drop forgets a call that is read no more, so that the engine stops its sequences.
func (s *Server) drop(c *call) {
	c.gone.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
}

// abandon fails all calls with errDraining.
func (s *Server) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		c.gone.Store(true)
		c.fail(errDraining)
	}
}

// call is a request in the engine: its prompts and their choices.
type call struct {
	requests []*model.Request
	choices  []*choice
	gone     atomic.Bool // no reader is left: its sequences may stop
	started  time.Time
	streams  bool         // its reader wants every part, not only the ends of choices
	found    atomic.Int64 // prompt tokens that were in the cache

	notify chan struct{} // signals news to the reader
	mu     sync.Mutex
	first  time.Duration // until the first token
	err    error
}

// newCall returns a call that starts now.
func newCall() *call { return &call{notify: make(chan struct{}, 1), started: time.Now()} }

// notifyReader signals news, without waiting.
func (c *call) notifyReader() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

// fail ends the call with an error, unless it has one.
func (c *call) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.notifyReader()
}

// Loopback reports whether only this machine reaches a server that listens at HOST:PORT.
func Loopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, err
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}

// Listen listens at HOST:PORT.
func Listen(address string) (net.Listener, error) { return net.Listen("tcp", address) }

// limitListener returns a listener that has at most so many connections of l open; others wait to
// be accepted.
func limitListener(l net.Listener, most int) net.Listener {
	return &limiter{Listener: l, free: make(chan struct{}, most), closed: make(chan struct{})}
}

// limiter is a listener with a bounded number of open connections.
type limiter struct {
	net.Listener
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a free place, then for a connection.
func (l *limiter) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitedConn{Conn: c, free: l.free}, nil
}

func (l *limiter) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// limitedConn is a connection that frees its place when it is closed.
type limitedConn struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}

// id returns a new random id of an answer.
func id(kind string) string {
	var b [12]byte
	rand.Read(b[:])
	return kind + "-" + hex.EncodeToString(b[:])
}
