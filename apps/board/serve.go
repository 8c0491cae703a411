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

// Points is the default number of points of a curve, about the width of a chart in pixels.
const Points = 400

// mostPoints bounds the points that a request may ask for.
const mostPoints = 100_000

// Server shows a board at a loopback address, which no other machine reaches.
type Server struct {
	board    *Board
	listener net.Listener
}

// Listen opens a port of the loopback interface; 0: any free one.
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

// URL returns the address of the page.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/" }

// Serve answers requests until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{Handler: s.board.Handler(), ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:  10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() {
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(soon) != nil {
			server.Close() // connections still open after a second
		}
	})
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("board: %w", err)
	}
	return nil
}

// Handler returns the handler of the page and its data. No part of a URL names a file: runs and
// steps are numbers.
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
	return protect(mux)
}

// file is an embedded resource with its content type.
type file struct {
	kind string
	text []byte
}

// protect refuses requests that pages of other sites could send, and methods that write.
func protect(next http.Handler) http.Handler {
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
		case !ownHost(r.Host): // a foreign name that resolves to this machine (DNS rebinding)
			refuse(w, http.StatusForbidden, "the board answers to 127.0.0.1 and localhost only")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "the board is for reading: GET or HEAD")
		// Links to the page are allowed.
		case foreign(r.Header.Get("Sec-Fetch-Site")) && r.URL.Path != "/":
			refuse(w, http.StatusForbidden, "the board's data are for its own page")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownHost reports whether a Host header names the loopback interface. The port may be any, since a
// forwarded one (ssh -L) differs.
func ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	return name == "127.0.0.1" || name == "localhost" || name == "::1" || name == "[::1]"
}

// foreign reports whether, by Sec-Fetch-Site, another origin sends the request. localhost with
// another port is the same site, and not the same origin.
func foreign(site string) bool { return site != "" && site != "none" && site != "same-origin" }

// refuse answers with an error.
func refuse(w http.ResponseWriter, status int, why string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
}

// reply answers with JSON.
func reply(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

// numbers reads the named parameters as numbers from 0 to most, 0 where one is missing. It answers
// with an error and returns false if a value is not one.
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

// serveSeries answers with the curves over a range of steps.
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

// serveSamples answers with the samples of a run's step.
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

// serveAnswers answers with a run's validation answers.
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

// run returns a run by its ID. It answers with an error and returns nil if there is none.
func (b *Board) run(w http.ResponseWriter, id int) *run {
	if id < len(b.runs) {
		return b.runs[id]
	}
	refuse(w, http.StatusNotFound, fmt.Sprintf("run: there are %d", len(b.runs)))
	return nil
}
