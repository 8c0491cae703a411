// Package scoring asks a server for a model's log-probabilities of given tokens: the teacher of
// gad opd and of gad data score behind a server.
//
//	scoring.go  the server: detecting its format, checking it, requests
//	formats.go  requests and answers of a vLLM-like and of an SGLang-like server
//
// Log-probabilities are at temperature 1.
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
	URL          string // such as http://127.0.0.1:8000/v1; the path of the endpoint is detected
	Key          string // API key; "" sends no key
	InsecureHTTP bool   // allow http:// to another machine
	Names        Names
	Say          func(text string) // called with a line for each retry; nil: none
}

// Names are the names of the options in the user's command, for errors.
type Names struct {
	URL      string // such as teacher.url
	Insecure string // the option that allows http:// to another machine
	Top      string // the option for the number of alternatives
	Again    string // the effect of repeating the command after an error
}

// Server scores tokens.
type Server struct {
	c      *endpoint.Client
	names  Names
	format format
	model  string // the server's name of its model
	most   int    // longest text that it scores, in tokens; 0: unknown
}

// Limits of use.
const (
	atOnce  = 8  // requests in flight
	tries   = 3  // requests until an answer can be used
	patient = 10 // retries of a call that fails
	hasty   = 2  // retries of a call of Check, before the run
)

// apartMost is the largest mean difference, in nats a token, between two scores of one text by a
// usable server. When student and teacher agree, their scores differ by about as much.
const apartMost = 0.02

// Limits of possible.
const (
	fewTop    = 5    // alternatives to ask for at a token, at least
	fewTokens = 8    // tokens from which on certainty is suspicious
	certain   = 1e-7 // mean absolute log-probability, in nats, below which a model is certain
)

// errImpossible is wrapped by errors about scores that no probability model can produce.
var errImpossible = errors.New("impossible scores")

// ErrServer is wrapped by errors of Check: the server cannot be used as a teacher.
var ErrServer = errors.New("teacher's server")

// Open returns a server after checking the options. It opens no connection.
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

// Model returns the server's name of its model and the length of the longest text that it scores,
// in tokens; "" and 0 if the server does not report them, and before Check.
func (s *Server) Model() (name string, most int) { return s.model, s.most }

// Check detects the server's format and checks it on the trained tokens of seqs, with k
// alternatives each: the server must score them, its tokens must have the texts that piece returns
// by id, and repeated scores must agree within apartMost.
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
		for round := range 3 { // in sequence: replicas may take turns
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

// possible asks for the scores of seqs and checks that they can come from a model: at each token
// the probabilities of the alternatives add up to at most 1, and the model is not certain of every
// token of several. A server that gives no alternatives is checked for certainty alone.
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

// distance returns the mean absolute difference, in nats, of two scores of the trained tokens of
// seq.
func distance(a, b scored, seq model.Seq) float64 {
	sum := 0.0
	for _, t := range trained(seq) {
		sum += math.Abs(a.logp[t] - b.logp[t])
	}
	return sum / float64(max(seq.Trained(), 1))
}

// trained returns the positions of a sequence's trained tokens.
func trained(seq model.Seq) (at []int) {
	for _, span := range seq.Spans {
		for t := span.From; t < span.To; t++ {
			at = append(at, t)
		}
	}
	return at
}

// find sets the server's format, its model's name and its longest text. seq is scored with k
// alternatives to try each format.
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

// sameTokens compares the server's texts of seq's tokens with piece's, where both are whole ASCII
// words, and refuses a server whose tokenizer differs.
func sameTokens(x scored, seq model.Seq, piece func(id int32) []byte) error {
	for t, id := range seq.IDs {
		if text, own := x.text[t], string(piece(id)); plain(text) && plain(own) &&
			strings.TrimLeft(text, " ▁Ġ") != strings.TrimLeft(own, " ") {
			return fmt.Errorf("calls token %d %q, and the tokenizer that it is asked with %q: it serves a model with another tokenizer: give that model's folder with --teacher", id, text, own)
		}
	}
	return nil
}

// plain reports whether text is of ASCII letters and digits, at least one, after leading blanks.
func plain(text string) bool {
	text = strings.TrimLeft(text, " ▁Ġ")
	for _, r := range text {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			return false
		}
	}
	return text != ""
}

// Score returns the log-probability of each trained token of seqs [S][T] and soft labels of the k
// most probable tokens there; with k 0 the labels are nil. After an error it returns nothing.
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

// each calls f for 0 to n-1, atOnce at a time. After the first error, or the end of ctx, it starts
// no more calls, cancels the context of those under way, and waits for them.
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

// Each scores the sequences of rows, several at a time, and passes the labels of each row to keep:
// for each trained token a label of the k most probable tokens, k at least 1, and the token itself.
// seq returns a row's sequence. seq and keep are called one at a time. After the first error, or
// the end of ctx, no request is sent, but answers to requests under way are awaited and kept.
func (s *Server) Each(ctx context.Context, rows []int, k int, seq func(row int) (model.Seq, error),
	keep func(row int, labels []model.SoftLabel) error) error {
	var one sync.Mutex // held in calls of seq and keep
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

// scoreOne asks for the scores of seq and appends, for each trained token, the log-probability to
// logp and, with k above 0, the label to labels. It retries as in a run (patient).
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

// ask scores one sequence, with k alternatives at each token. A call that fails is retried retries
// times, an answer that cannot be used is requested up to tries times.
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
