// Package scoring asks a server how probable a model finds given tokens: the teacher of gad opd
// and of gad data score behind a server.
//
//	scoring.go  the server: finding its format, trying it, asking
//	formats.go  what a vLLM-like and an SGLang-like server are sent and answer
//
// Log-probabilities are those of temperature 1.
package scoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"gad/internal/endpoint"
	"gad/model"
)

// Options describe a server.
type Options struct {
	URL          string // such as http://127.0.0.1:8000/v1; what is behind /v1 is found out
	Key          string // "" sends none
	InsecureHTTP bool   // http:// to another machine is allowed
	Names        Names
	Say          func(text string) // hears of calls that are tried again; nil: nobody
}

// Names are what the user calls the options, for errors.
type Names struct {
	URL      string // such as teacher.url
	Insecure string // what allows http:// to another machine
	Top      string // the number of alternatives
	Again    string // what the same command does after an error
}

// Server scores tokens.
type Server struct {
	c      *endpoint.Client
	names  Names
	format format
	model  string // as the server calls it
	most   int    // tokens of a text that it scores; 0: it does not say
}

// Limits of use.
const (
	atOnce  = 8 // requests in flight
	tries   = 3 // of a request whose answer cannot be used
	patient = 10
	hasty   = 2 // at the start
)

// apartMost is the largest mean difference, in nats a token, between two scores of one text of a
// server that can teach: differences of student and teacher are of that size when they agree.
const apartMost = 0.02

// What possible looks at: alternatives at a place, tokens at least, and the mean size of a
// log-probability, in nats, of a model that is certain.
const (
	fewTop    = 5
	fewTokens = 8
	certain   = 1e-7
)

// errImpossible is wrapped by errors of scores that no model gives.
var errImpossible = errors.New("impossible scores")

// ErrServer is wrapped by errors of Check: the server cannot be used as a teacher.
var ErrServer = errors.New("teacher's server")

// Open checks the options. It opens no connection.
func Open(o Options) (*Server, error) {
	root := strings.TrimSuffix(strings.TrimRight(o.URL, "/"), "/v1")
	say := func(format string, args ...any) {
		if o.Say != nil {
			o.Say("teacher's server: " + fmt.Sprintf(format, args...))
		}
	}
	c, err := endpoint.New(endpoint.Options{BaseURL: root, Key: o.Key, InsecureHTTP: o.InsecureHTTP,
		Concurrency: atOnce, Say: say})
	if err != nil {
		return nil, fmt.Errorf("%s: %s", o.Names.URL, strings.ReplaceAll(err.Error(),
			"--insecure-http", o.Names.Insecure))
	}
	return &Server{c: c, names: o.Names}, nil
}

// Model is what the server calls its model, and most how many tokens a text may have that it
// scores; "" and 0 where it does not say. Both are known after Check.
func (s *Server) Model() (name string, most int) { return s.model, s.most }

// Check finds out the server's format and tries it on the trained tokens of seqs, with k
// alternatives: it must score them, with the model whose tokens are pieces, and twice alike.
func (s *Server) Check(ctx context.Context, seqs []model.Seq, k int,
	piece func(id int32) []byte) error {
	bad := func(err error) error {
		return fmt.Errorf("%w: %s: %w", ErrServer, s.c.Host(), err)
	}
	if len(seqs) == 0 {
		return bad(errors.New("nothing to try it with"))
	}
	if err := s.find(ctx, seqs[0], k); err != nil {
		return bad(err)
	}
	for _, seq := range seqs {
		var first scored
		for round := range 3 { // one behind the other: replicas may take turns
			x, err := s.ask(ctx, seq, k, hasty)
			if err != nil {
				return bad(err)
			}
			if round == 0 {
				first = x
			}
			if err := sameTokens(x, seq, piece); err != nil {
				return bad(err)
			}
			if apart := distance(first, x, seq); apart > apartMost {
				return bad(fmt.Errorf("scores of the same tokens differ by %.3g nats a token from one request to the next, and the student would learn that: must be at most %g: use one replica, and a server that computes in a fixed order", apart, apartMost))
			}
		}
	}
	if err := s.possible(ctx, seqs, k); err != nil {
		return bad(err)
	}
	return nil
}

// possible looks whether what a server says of texts can come from a model: at each place the
// probabilities of its most probable tokens add up to 1 at most, and no model is certain of every
// token of several. A server that does not give alternatives is held to the second alone.
func (s *Server) possible(ctx context.Context, seqs []model.Seq, k int) error {
	sum, n := 0.0, 0
	for _, seq := range seqs {
		x, err := s.ask(ctx, seq, max(k, fewTop), hasty)
		if errors.Is(err, errImpossible) {
			return err
		}
		if err != nil {
			if x, err = s.ask(ctx, seq, k, hasty); err != nil {
				return err
			}
		}
		for _, t := range trained(seq) {
			sum, n = sum+x.logp[t], n+1
		}
	}
	if n >= fewTokens && sum > -certain*float64(n) {
		return fmt.Errorf("%w: %d of %d tokens are certain (log-probability 0), which no model is: the server does not compute them: ask it for log-probabilities of the prompt",
			errImpossible, n, n)
	}
	return nil
}

// distance is the mean absolute difference of two scores of the trained tokens.
func distance(a, b scored, seq model.Seq) float64 {
	sum := 0.0
	for _, t := range trained(seq) {
		sum += math.Abs(a.logp[t] - b.logp[t])
	}
	return sum / float64(max(seq.Trained(), 1))
}

// trained are the places of a sequence's trained tokens.
func trained(seq model.Seq) (at []int) {
	for _, span := range seq.Spans {
		for t := span.From; t < span.To; t++ {
			at = append(at, t)
		}
	}
	return at
}

// find chooses the format and the model's name.
func (s *Server) find(ctx context.Context, seq model.Seq, k int) error {
	var models struct {
		Data []struct {
			ID   string  `json:"id"`
			Most float64 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := s.c.Call(ctx, "GET", "/v1/models", nil, &models, hasty); err == nil {
		var names []string
		for _, m := range models.Data {
			names = append(names, m.ID)
		}
		if len(names) > 1 {
			return fmt.Errorf("serves %d models (%s): give the address of a server of one",
				len(names), strings.Join(names, ", "))
		}
		if len(names) == 1 {
			s.model = names[0]
			if most := models.Data[0].Most; most >= 2 && most <= math.MaxInt32 {
				s.most = int(most) - 1 // a request samples a token
			}
		}
	} else if endpoint.Transient(err) {
		return err
	}
	var whys []string
	for _, f := range formats {
		s.format = f
		_, err := s.ask(ctx, seq, k, hasty)
		if err == nil || errors.Is(err, errImpossible) {
			return err
		}
		if k > 0 && (endpoint.Refused(err) || errors.Is(err, errFew)) {
			if _, err0 := s.ask(ctx, seq, 0, hasty); err0 == nil {
				return fmt.Errorf("scores a text, but does not give %d alternatives: %w: lower %s",
					k, err, s.names.Top)
			}
		}
		whys = append(whys, fmt.Sprintf("%s: %v", f.path, err))
	}
	return fmt.Errorf("does not score a given text: %s: vLLM, SGLang and gad serve do, llama.cpp's server does not", strings.Join(whys, "; "))
}

// sameTokens compares the texts that a server says of tokens with the tokenizer's, where both are
// whole characters.
func sameTokens(x scored, seq model.Seq, piece func(id int32) []byte) error {
	for t, id := range seq.IDs {
		if text, own := x.text[t], string(piece(id)); plain(text) && plain(own) &&
			strings.TrimLeft(text, " ▁Ġ") != strings.TrimLeft(own, " ") {
			return fmt.Errorf("calls token %d %q, and the tokenizer that it is asked with %q: it serves a model with another tokenizer: give that model's folder with --teacher", id, text, own)
		}
	}
	return nil
}

// plain reports whether a text is of letters and digits of ASCII, with blanks before them.
func plain(text string) bool {
	text = strings.TrimLeft(text, " ▁Ġ")
	for _, r := range text {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			return false
		}
	}
	return text != ""
}

// Score gives the log-probability of each trained token of seqs [S][T] and, with k above 0, soft
// labels of the k most probable tokens there.
func (s *Server) Score(ctx context.Context, seqs []model.Seq, k int) (logpST [][]float32,
	labelsST [][]model.SoftLabel, err error) {
	logpST, labelsST = make([][]float32, len(seqs)), make([][]model.SoftLabel, len(seqs))
	err = s.each(ctx, len(seqs), func(ctx context.Context, i int) error {
		return s.scoreOne(ctx, seqs[i], k, &logpST[i], &labelsST[i])
	})
	if err != nil {
		return nil, nil, err
	}
	if k == 0 {
		labelsST = nil
	}
	return logpST, labelsST, nil
}

// each calls f for 0 to n-1, atOnce at a time. The first error, or the end of ctx, is the last
// that is begun; those under way see their context end, and are waited for.
func (s *Server) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(atOnce, n) {
		wg.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					continue
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("teacher's server: %s: %w: run the same command again%s", s.c.Host(), err,
			s.names.Again)
	}
	return nil
}

// Each scores the sequences of rows, several at a time, and hands what is known of each to keep: at
// each trained token a label of the k most probable tokens, 1 or more, and the token itself. seq
// and keep are called one at a time. After the first error and after the end of ctx no request is
// sent, but the answers to those that were are waited for and kept.
func (s *Server) Each(ctx context.Context, rows []int, k int, seq func(row int) (model.Seq, error),
	keep func(row int, labels []model.SoftLabel) error) error {
	var one sync.Mutex
	return s.each(ctx, len(rows), func(ctx context.Context, i int) error {
		row := rows[i]
		one.Lock()
		q, err := seq(row)
		one.Unlock()
		if err != nil {
			return err
		}
		var labels []model.SoftLabel
		if q.Trained() > 0 {
			x, err := s.ask(endpoint.WithDrain(ctx), q, k, patient)
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
			for _, t := range trained(q) {
				l, err := x.labels[t].With(q.IDs[t], x.logp[t])
				if err != nil {
					return fmt.Errorf("row %d: token %d: %w", row, t, err)
				}
				labels = append(labels, l)
			}
		}
		one.Lock()
		defer one.Unlock()
		return keep(row, labels)
	})
}

func (s *Server) scoreOne(ctx context.Context, seq model.Seq, k int, logp *[]float32,
	labels *[]model.SoftLabel) error {
	if seq.Trained() == 0 {
		return nil
	}
	x, err := s.ask(ctx, seq, k, patient)
	if err != nil {
		return err
	}
	for _, t := range trained(seq) {
		*logp = append(*logp, float32(x.logp[t]))
		if k > 0 {
			*labels = append(*labels, x.labels[t])
		}
	}
	return nil
}

// ask scores one sequence. An answer that cannot be used is asked for again.
func (s *Server) ask(ctx context.Context, seq model.Seq, k, retries int) (x scored, err error) {
	if seq.Prompt() < 1 {
		return x, errors.New("a text without a token before the first that counts")
	}
	for range tries {
		if ctx.Err() != nil { // with a context of WithDrain a call would still be sent
			return x, ctx.Err()
		}
		var raw json.RawMessage
		if err := s.c.Call(ctx, "POST", s.format.path, s.format.request(s.model, seq.IDs, k), &raw,
			retries); err != nil {
			return x, err
		}
		if x, err = s.format.read(raw, seq, k); err == nil {
			return x, nil
		}
	}
	return x, fmt.Errorf("%w (%d times)", err, tries)
}
