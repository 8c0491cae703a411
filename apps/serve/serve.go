// Package serve answers requests of the OpenAI HTTP interface with a language model:
// completions, chat, log-likelihoods and tokens, for programs that speak it.
//
//	serve.go     Options, the server, the goroutine of the engine
//	http.go      paths, keys, errors; models, tokenize, detokenize
//	fields.go    the parameters of a request
//	messages.go  messages and tools of a chat
//	answer.go    completions and chats: what is asked, and the answer as JSON or events
//	choice.go    one answer as it is drawn: its text, up to a stop
//	scores.go    prompt_logprobs
//	calls.go     calls of tools in an answer
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

// Options configure a Server. A zero is the default that is named.
type Options struct {
	Name  string // of the model, in requests and answers
	Slots int    // sequences sampled at the same time; 64
	// tokens of a prompt and its answer together at most; 4096, or the model's if that is less
	Context int
	// tokens of the cache of keys and values; 512 a slot, and at least two of Context
	Cache int
	// tokens of an answer to a chat that gives no limit; 1024, or in chunks the longest thought
	Answer int
	Chunks model.Chunks // in which answers are written
	N      int          // answers to a prompt at most; 16
	Queue  int          // requests that wait at most; 128
	// each prompt is computed anew: none takes from the cache what an earlier one has left there
	Forget bool
	Body   int64 // bytes of a request's body at most; 4 MiB
	Grace  time.Duration
	Key    string // that clients have to give; "" is none
	// Loopback is a server that only this machine reaches: a request is refused that was
	// sent to another name than this machine's, by a page in a browser.
	Loopback bool
	// Origins are those whose pages a browser may let read the answers (CORS), such as
	// https://example.org; "*" is every page's. None is none.
	Origins []string
	Log     func(line string) // a line for each request; nil is nobody
	// form of the calls of tools in answers: one of ToolParsers; "" is that of the chat template
	ToolParser string
	// called once all memory is taken, before the first request; nil is nobody
	Ready func()
}

const (
	pageTokens  = 16
	admitTokens = 256      // of prompts, between two tokens of those under way
	admitOnGPU  = 2048     // the same; fewer would not fill a GPU
	headerBytes = 64 << 10 // of a request
	choicesMost = 256      // answers to a request

	drainTick = 20 * time.Millisecond // between two looks whether requests are under way
)

// Tests change these.
var (
	connections = 512 // at the same time; others wait to be accepted
	headerTime  = 10 * time.Second
	// for a whole request, also one that is refused before its body is read
	bodyTime  = 60 * time.Second
	idleTime  = 2 * time.Minute
	writeTime = 30 * time.Second // for a client to take what it is sent
)

// Server answers requests with one model.
type Server struct {
	once  sync.Once
	bytes [][]byte // of tokens: see pieces

	o       Options
	m       *model.Model
	tok     *tokenizer.Tokenizer
	created int64
	format  *format // of calls; nil is none
	key     [sha256.Size]byte
	meter   *meter
	busy    atomic.Int64 // requests being read, waiting or answered
	drains  atomic.Bool  // no new requests

	wake    chan struct{}
	mu      sync.Mutex
	inbox   []*call
	calls   map[*call]bool // submitted and not ended
	stopped error          // why the loop has ended
}

// New makes a server of m, which is the server's from now on until Serve returns.
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

// errDraining is told to requests that come while the server stops.
var errDraining = errors.New("the server is stopping")

// errMemory is told to a request that the server has too little memory for; others go on.
var errMemory = errors.New("the server has too little memory for this request: shorten the prompt")

// CacheTokens is the size of the cache of keys and values, in tokens.
func (s *Server) CacheTokens() int { return s.o.Cache }

// Serve answers what comes to l until ctx ends. Then no request is taken any more, and those
// under way may end within Options.Grace.
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
	go func() { served <- web.Serve(limited(l, connections)) }()
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
	if web.Shutdown(patience) != nil { // those that are left are cut off
		s.abandon()
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		web.Shutdown(last)
		web.Close()
	}
	stop()
	<-worked
	engine.Close()
	return failed
}

// finish waits until no request is under way, or for the end of patience. The listener is
// open meanwhile, and new requests and /health get status 503: a load balancer that asks
// learns that this server is about to go, where a closed port would look like a crash.
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

// work is the goroutine of the engine.
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

// submit hands a call to the engine.
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

// leave is called when nobody reads a call any more.
func (s *Server) leave(c *call) {
	c.gone.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
}

// abandon ends all calls.
func (s *Server) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		c.gone.Store(true)
		c.fail(errDraining)
	}
}

// call is a request under way.
type call struct {
	requests []*model.Request
	choices  []*choice
	gone     atomic.Bool // nobody reads it
	begun    time.Time
	streams  bool         // it is read as it comes, not at the ends of its choices
	found    atomic.Int64 // tokens of its prompts that were in the cache

	notify chan struct{} // something is there to be read
	mu     sync.Mutex
	first  time.Duration // until the first token
	err    error
}

func newCall() *call { return &call{notify: make(chan struct{}, 1), begun: time.Now()} }

func (c *call) tell() {
	select {
	case c.notify <- struct{}{}:
	default:
	}
}

func (c *call) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	c.tell()
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

// limited accepts so many connections of l at the same time.
func limited(l net.Listener, most int) net.Listener {
	return &limiter{Listener: l, free: make(chan struct{}, most), closed: make(chan struct{})}
}

type limiter struct {
	net.Listener
	free   chan struct{}
	closed chan struct{}
	once   sync.Once
}

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
	return &held{Conn: c, free: l.free}, nil
}

func (l *limiter) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type held struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

func (c *held) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}

// id is a new name for an answer.
func id(kind string) string {
	var b [12]byte
	rand.Read(b[:])
	return kind + "-" + hex.EncodeToString(b[:])
}
