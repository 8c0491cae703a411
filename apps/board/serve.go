package board

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"gad/trainer/config"
)

// Points is how many points a curve has where nothing else is asked for: charts are about
// as many pixels wide.
const Points = 400

// mostPoints bounds what a request may ask for.
const mostPoints = 100_000

// Server shows a board at an address of this machine that no other machine reaches.
type Server struct {
	board    *Board
	listener net.Listener
}

// Listen takes a port of the loopback interface; 0 is any free one.
func (b *Board) Listen(port int) (*Server, error) {
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp4", at)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil,
			fmt.Errorf("%w: board: %s: is in use: give another --port, or --port 0 for a free one",
				config.ErrConfig, at)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%w: board: %s: may not be opened: give a --port of at least 1024",
			config.ErrConfig, at)
	case err != nil:
		return nil, fmt.Errorf("board: %w", err)
	}
	return &Server{b, l}, nil
}

// URL is where a browser on this machine finds the page.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/" }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{Handler: s.board.Handler(), ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:  10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() {
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(soon) != nil {
			server.Close() // whoever still reads has had its second
		}
	})
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("board: %w", err)
	}
	return nil
}

// Handler answers for the page and its data. No part of a URL names a file: runs are
// numbers, steps are numbers.
func (b *Board) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, f := range map[string]file{
		"/{$}":       {"text/html; charset=utf-8", livePage},
		"/board.js":  {"text/javascript; charset=utf-8", script},
		"/board.css": {"text/css; charset=utf-8", style},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", f.kind)
			_, _ = w.Write(f.text)
		})
	}
	mux.HandleFunc("/api/board", b.serveSummary)
	mux.HandleFunc("/api/series", b.serveSeries)
	mux.HandleFunc("/api/scores", func(w http.ResponseWriter, _ *http.Request) {
		b.mu.Lock()
		b.refresh()
		scores := b.scores()
		b.mu.Unlock()
		reply(w, scores)
	})
	mux.HandleFunc("/api/samples", b.serveSamples)
	mux.HandleFunc("/api/answers", b.serveAnswers)
	return guarded(mux)
}

type file struct {
	kind string
	text []byte
}

// guarded refuses whatever a page of another site could do here, and what would change
// something.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !ownHost(r.Host): // a name of somebody else's that was made to point here (DNS rebinding)
			refuse(w, http.StatusForbidden, "the board answers to 127.0.0.1 and localhost only")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "the board is for reading: GET or HEAD")
		case foreign(r.Header.Get("Sec-Fetch-Site")) && r.URL.Path != "/": // a link to the page is fine
			refuse(w, http.StatusForbidden, "the board's data are for its own page")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownHost tells whether a Host header names this machine's loopback interface. The port
// may be any: a forwarded one (ssh -L) is another.
func ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	return name == "127.0.0.1" || name == "localhost" || name == "::1" || name == "[::1]"
}

// foreign tells whether a browser says that another page asks; localhost with another port
// is the same site to it, and not the same origin.
func foreign(site string) bool { return site != "" && site != "none" && site != "same-origin" }

func refuse(w http.ResponseWriter, status int, why string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
}

func reply(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

// numbers reads the named parameters, 0 where one is not given. A value that is none is
// refused, and false.
func numbers(w http.ResponseWriter, r *http.Request, most int,
	names ...string) (list []int, ok bool) {
	for _, name := range names {
		text := r.URL.Query().Get(name)
		n, err := strconv.Atoi(text)
		if text == "" {
			n, err = 0, nil
		}
		if err != nil || n < 0 || n > most {
			refuse(w, http.StatusBadRequest,
				fmt.Sprintf("%s: expected a number from 0 to %d", name, most))
			return nil, false
		}
		list = append(list, n)
	}
	return list, true
}

const mostStep = 1 << 53 // JavaScript has no larger integers

// serveSummary answers with the summary, or with its version alone where the page has it.
func (b *Board) serveSummary(w http.ResponseWriter, r *http.Request) {
	n, ok := numbers(w, r, mostStep, "since")
	if !ok {
		return
	}
	s := b.Summary()
	if n[0] == s.Version {
		reply(w, map[string]int{"version": s.Version})
		return
	}
	reply(w, s)
}

func (b *Board) serveSeries(w http.ResponseWriter, r *http.Request) {
	n, ok := numbers(w, r, mostStep, "from", "to")
	p, okP := []int{Points}, true
	if ok && r.URL.Query().Has("points") {
		p, okP = numbers(w, r, mostPoints, "points")
	}
	if !ok || !okP {
		return
	}
	if n[1] > 0 && n[1] < n[0] {
		refuse(w, http.StatusBadRequest, "to: is less than from")
		return
	}
	b.mu.Lock()
	b.refresh()
	series := b.series(Range{n[0], n[1]}, p[0])
	b.mu.Unlock()
	reply(w, series)
}

func (b *Board) serveSamples(w http.ResponseWriter, r *http.Request) {
	n, ok := numbers(w, r, mostStep, "run", "step")
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	run := b.run(w, n[0])
	if run == nil {
		return
	}
	s, err := run.readSamples(b.fs, n[0], n[1])
	switch {
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusNotFound,
			fmt.Sprintf("step: run %d has no samples of step %d", n[0], n[1]))
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	default:
		reply(w, s)
	}
}

func (b *Board) serveAnswers(w http.ResponseWriter, r *http.Request) {
	n, ok := numbers(w, r, mostStep, "run")
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if run := b.run(w, n[0]); run != nil {
		reply(w, run.readAnswers(b.fs, n[0], mostValidated))
	}
}

// run is a run by its number; one that is not there is refused, and nil.
func (b *Board) run(w http.ResponseWriter, id int) *run {
	if id < len(b.runs) {
		return b.runs[id]
	}
	refuse(w, http.StatusNotFound, fmt.Sprintf("run: there are %d", len(b.runs)))
	return nil
}
