package endpoint

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// gate is the pace of an endpoint, which all requests share. One request at a time
// stands in it; it goes through when
//
//   - fewer requests are in flight than the limit, which grows by one per round of
//     answers and is halved when the endpoint wants less (additive increase,
//     multiplicative decrease),
//   - no cool-down is on: what one request is told to wait, all wait,
//   - its share of the requests and tokens a minute has been earned since the one
//     before it. Nothing is earned ahead (but for slack), so that the limits hold over
//     any minute, also over the restarts of a killed program.
type gate struct {
	turn chan struct{} // held by the request that stands in the gate
	most int           // in flight, as the user says
	say  func(string, ...any)

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when inflight falls or limit grows
	inflight int
	limit    float64
	slow     bool      // the endpoint has wanted less: no more doubling
	epoch    int       // of decreases: requests sent before one do not decrease again
	until    time.Time // of the cool-down
	streak   int       // failures since the last answer
	pauses   int       // of our own choice, since then
	healthy  time.Time // the last answer, or the start
	requests pace
	tokens   pace
	given    [2]bool // requests, tokens a minute: by the user

	promptBytes, promptTokens, answerTokens, choices float64 // of answered requests
}

// pace earns units at a rate. at is when all that has been sent was earned.
type pace struct {
	perSecond float64
	at        time.Time
}

// Slack is how far what is sent may be behind what has been earned: requests by the
// lateness of a timer, tokens by estimates that were too high too. More is lost. In a
// minute that is 0.1 % and 1 % above the limit.
const (
	requestSlack = 50 * time.Millisecond
	tokenSlack   = 600 * time.Millisecond
)

// set is that all that was sent had been earned at that time.
func (p *pace) set(at, now time.Time, slack time.Duration) {
	if p.at = at; now.Sub(at) > slack {
		p.at = now.Add(-slack)
	} else if at.Sub(now) > maxDebt {
		p.at = now.Add(maxDebt)
	}
}

// earn is when so many units have been earned, counted from the last ones.
func (p *pace) earn(units float64, now time.Time) time.Time {
	if p.perSecond <= 0 {
		return now
	}
	return p.at.Add(time.Duration(units / p.perSecond * float64(time.Second)))
}

// pass is what a request takes through the gate.
type pass struct {
	epoch     int
	tokens    float64 // estimated
	bytes     int     // of the prompt
	choices   int
	maxTokens int
}

func newGate(o Options) *gate {
	g := &gate{turn: make(chan struct{}, 1), most: o.Concurrency, say: o.Say, changed: make(chan struct{}), limit: float64(min(4, o.Concurrency)), healthy: time.Now()}
	now := time.Now()
	g.requests = pace{o.RequestsPerMinute / 60, now}
	g.tokens = pace{o.TokensPerMinute / 60, now}
	g.given = [2]bool{o.RequestsPerMinute > 0, o.TokensPerMinute > 0}
	return g
}

// enter waits for the request's turn.
func (g *gate) enter(ctx context.Context, r Request) (*pass, error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-g.turn }()
	p := &pass{choices: max(1, r.N), maxTokens: r.MaxTokens}
	for _, m := range r.Messages {
		p.bytes += len(m.Role) + len(m.Content)
	}
	for {
		now := time.Now()
		g.mu.Lock()
		wait, changed := g.until.Sub(now), g.changed
		if wait <= 0 && g.inflight >= int(g.limit) {
			wait = time.Hour
		}
		if wait <= 0 {
			p.tokens = g.estimate(p)
			requests, tokens := g.requests.earn(1, now), g.tokens.earn(p.tokens, now)
			wait = max(requests.Sub(now), tokens.Sub(now))
			if wait <= 0 {
				g.requests.set(requests, now, requestSlack)
				g.tokens.set(tokens, now, tokenSlack)
				g.inflight++
				p.epoch = g.epoch
				g.mu.Unlock()
				return p, nil
			}
		}
		g.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-changed:
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// What a request is taken to cost before answers have come: tokens of an answer, and
// bytes of text per token.
const (
	guessAnswer = 256
	guessBytes  = 4
)

// estimate is the tokens that a request will be found to have, by the answers so far. A
// guess that is too low is made up for when the first answers come; few are in flight
// until then.
func (g *gate) estimate(p *pass) float64 {
	guess := float64(guessAnswer)
	if p.maxTokens > 0 {
		guess = min(guess, float64(p.maxTokens))
	}
	perToken := (guessBytes*guessAnswer + g.promptBytes) / (guessAnswer + g.promptTokens)
	answer := (guess + g.answerTokens) / (1 + g.choices)
	return float64(p.bytes)/max(perToken, 0.1) + answer*float64(p.choices)
}

// maxDebt bounds what a wrong estimate, or a server's wrong count, can cost in time.
const maxDebt = time.Minute

// leave takes a request out of flight: with an answer, with a failure of the endpoint,
// or with neither, when the user has stopped it.
func (g *gate) leave(p *pass, resp response, a *Answer, e *Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.inflight--
	g.learn(resp.header, now)
	switch {
	case a != nil:
		g.healthy, g.streak, g.pauses = now, 0, 0
		g.answered(p, a, now)
		if g.limit < float64(g.most) {
			if g.slow {
				g.limit += 1 / g.limit
			} else {
				g.limit++
			}
			g.limit = min(g.limit, float64(g.most))
		}
	case e == nil:
	case e.kind == refused:
		g.streak, g.pauses = 0, 0 // the endpoint is well
	case e.kind == throttled || e.kind == transient:
		g.streak++
		first := p.epoch == g.epoch
		if first && (e.kind == throttled || e.slow) {
			g.epoch++
			g.slow = true
			g.limit = max(1, g.limit/2)
		}
		wait := e.Wait
		if wait == 0 && (e.kind == throttled && first || g.streak > int(g.limit) && !g.until.After(now)) {
			wait = backoff(g.pauses)
			g.pauses++
		}
		g.cool(now, wait, e.Error())
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// saidPause is the shortest pause that is said.
const saidPause = 3 * time.Second

// cool makes all wait.
func (g *gate) cool(now time.Time, wait time.Duration, why string) {
	if wait <= 0 || !now.Add(wait).After(g.until) {
		return
	}
	if wait >= saidPause && g.until.Before(now) {
		g.say("%s: no request for %v", why, wait.Round(time.Second))
	}
	g.until = now.Add(wait)
}

// answered corrects the pace by what the server has counted.
func (g *gate) answered(p *pass, a *Answer, now time.Time) {
	if a.Usage == (Usage{}) {
		return
	}
	g.promptBytes += float64(p.bytes)
	g.promptTokens += float64(a.Usage.PromptTokens)
	g.answerTokens += float64(a.Usage.CompletionTokens)
	g.choices += float64(p.choices)
	if g.tokens.perSecond > 0 {
		wrong := float64(a.Usage.PromptTokens) + float64(a.Usage.CompletionTokens) - p.tokens
		g.tokens.set(g.tokens.at.Add(time.Duration(wrong/g.tokens.perSecond*float64(time.Second))), now, tokenSlack)
	}
}

// learn reads the limits of a server's headers, for what the user has not given.
func (g *gate) learn(h http.Header, now time.Time) {
	for i, which := range []struct {
		name string
		pace *pace
	}{{"requests", &g.requests}, {"tokens", &g.tokens}} {
		if !g.given[i] {
			if x, err := strconv.ParseFloat(h.Get("X-Ratelimit-Limit-"+which.name), 64); err == nil && x >= 1 && x <= 1e12 && x/60 != which.pace.perSecond {
				if which.pace.perSecond == 0 {
					which.pace.at = now
					g.say("the endpoint allows %.0f %s a minute", x, which.name)
				}
				which.pace.perSecond = x / 60
			}
		}
		if h.Get("X-Ratelimit-Remaining-"+which.name) == "0" {
			if d, err := time.ParseDuration(h.Get("X-Ratelimit-Reset-" + which.name)); err == nil && d > 0 && d <= maxRetryAfter {
				g.cool(now, d, "the endpoint's limit of "+which.name+" is used up")
			}
		}
	}
}

// silent is how long the endpoint has not answered, 0 while it does.
func (g *gate) silent() (time.Duration, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streak == 0 {
		return 0, 0
	}
	return time.Since(g.healthy), g.streak
}

// backoff is the pause after the try of that number, from 0: half a second, doubled each
// time up to a minute, less up to a quarter by chance.
func backoff(try int) time.Duration {
	d := min(time.Minute, 500*time.Millisecond<<min(max(try, 0), 10))
	return d - time.Duration(rand.Float64()*float64(d)/4)
}
