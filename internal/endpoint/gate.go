package endpoint

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// gate paces the requests of an endpoint. One request at a time stands in it; it goes through when
//
//   - fewer requests are in flight than the limit, which grows by one per round of
//     answers and is halved when the endpoint throttles (additive increase,
//     multiplicative decrease),
//   - no cool-down is on: a pause asked of one request holds for all,
//   - its share of the requests and tokens a minute has been earned since the one
//     before it. Nothing is earned ahead (but for slack), so that the limits hold over
//     any minute, also over the restarts of a killed program.
type gate struct {
	turn chan struct{} // held by the request that stands in the gate
	most int           // requests in flight, the user's bound
	say  func(string, ...any)

	// time after which Each gives up where no connection could be made
	connectPatience time.Duration
	proven          atomic.Bool // the endpoint has answered

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when inflight falls or limit grows
	inflight int
	limit    float64
	slow     bool      // the endpoint has throttled: no more doubling
	epoch    int       // of decreases: requests sent before one do not decrease again
	until    time.Time // of the cool-down
	streak   int       // failures since the last answer
	pauses   int       // pauses of our own choice since the last answer
	healthy  time.Time // the last answer, or the start
	paces    [quantities]pace
	given    [quantities]bool // limits set by the user

	promptBytes, promptTokens, answerTokens, choices float64 // of answered requests
}

// Quantities that an endpoint may limit, each per minute.
const (
	requests = iota
	tokens   // of prompts and answers together
	inputTokens
	outputTokens
	quantities
)

var quantityNames = [quantities]string{"requests", "tokens", "input tokens", "output tokens"}

// amount is a number of each quantity.
type amount [quantities]float64

// amountOf returns the amount of one request with so many tokens of prompt and answer.
func amountOf(input, output float64) amount { return amount{1, input + output, input, output} }

// pace earns units at a rate. at is the time at which all units sent so far were earned.
type pace struct {
	perSecond float64
	at        time.Time
}

// Slack is the time by which sending may lag behind earning and still catch up: for requests the
// lateness of a timer, for tokens estimates that were too high, too. What lags further is lost. In
// a minute it comes to 0.1 % and 1 % above the limit.
const (
	requestSlack = 50 * time.Millisecond
	tokenSlack   = 600 * time.Millisecond
)

// set moves at, within slack before now and maxDebt behind it.
func (p *pace) set(at, now time.Time, slack time.Duration) {
	if p.at = at; now.Sub(at) > slack {
		p.at = now.Add(-slack)
	} else if at.Sub(now) > maxDebt {
		p.at = now.Add(maxDebt)
	}
}

// slackOf returns the slack of a quantity.
func slackOf(quantity int) time.Duration {
	if quantity == requests {
		return requestSlack
	}
	return tokenSlack
}

// earn returns the time at which so many units are earned, counted from the last ones. A request of
// more than a minute's units is sent after a minute: it can never have more.
func (p *pace) earn(units float64, now time.Time) time.Time {
	if p.perSecond <= 0 {
		return now
	}
	return p.at.Add(p.duration(units))
}

// duration returns the time that earning so many units takes, at most maxDebt.
func (p *pace) duration(units float64) time.Duration {
	seconds := units / p.perSecond
	return time.Duration(min(max(seconds, -maxDebt.Seconds()), maxDebt.Seconds()) *
		float64(time.Second))
}

// pass is the state of a request in flight, from enter to leave.
type pass struct {
	epoch     int
	estimate  amount
	bytes     int // of the prompt
	choices   int
	maxTokens int
}

// newGate returns the gate of an endpoint that has sent nothing yet.
func newGate(o Options) *gate {
	g := &gate{turn: make(chan struct{}, 1), most: o.Concurrency, say: o.Say,
		changed: make(chan struct{}), limit: float64(min(4, o.Concurrency)), healthy: time.Now(),
		connectPatience: min(o.Patience, connectPatience)}
	now := time.Now()
	for i, perMinute := range [quantities]float64{o.RequestsPerMinute, o.TokensPerMinute,
		o.InputTokensPerMinute, o.OutputTokensPerMinute} {
		g.paces[i] = pace{perMinute / 60, now}
		g.given[i] = perMinute > 0
	}
	return g
}

// enter waits until the request may be sent, and returns its pass, to be given to leave.
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
			p.estimate = g.estimate(p)
			var earned [quantities]time.Time
			for i := range g.paces {
				earned[i] = g.paces[i].earn(p.estimate[i], now)
				wait = max(wait, earned[i].Sub(now))
			}
			if wait <= 0 {
				for i := range g.paces {
					if g.paces[i].perSecond <= 0 {
						// not charged: it is when it is counted, if there is a limit by then
						p.estimate[i] = 0
						continue
					}
					g.paces[i].set(earned[i], now, slackOf(i))
				}
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

// Estimates before answers have come: tokens of an answer, and bytes of text per token.
const (
	guessAnswer = 256
	guessBytes  = 4
)

// estimate returns the amount that a request will be found to have, from the answers so far. Too
// low an estimate is made up for when the first answers come; few requests are in flight until
// then.
func (g *gate) estimate(p *pass) amount {
	guess := float64(guessAnswer)
	if p.maxTokens > 0 {
		guess = min(guess, float64(p.maxTokens))
	}
	perToken := (guessBytes*guessAnswer + g.promptBytes) / (guessAnswer + g.promptTokens)
	answer := (guess + g.answerTokens) / (1 + g.choices)
	return amountOf(float64(p.bytes)/max(perToken, 0.1), answer*float64(p.choices))
}

// maxDebt bounds the time that a wrong estimate, or a server's wrong count, can cost.
const maxDebt = time.Minute

// leave takes a request out of flight: with an answer a, with an error e of the endpoint, or with
// neither if the user has stopped it.
func (g *gate) leave(p *pass, resp response, a *Answer, e *Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.inflight--
	g.learn(resp.header, now)
	switch {
	case a != nil:
		g.healthy, g.streak, g.pauses = now, 0, 0
		g.charge(p, a, now)
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
		if wait == 0 && (e.kind == throttled && first || g.streak > int(g.limit) &&
			!g.until.After(now)) {
			wait = backoff(g.pauses)
			g.pauses++
			if e.nobody && !g.proven.Load() {
				wait = min(wait, max(0, g.connectPatience-now.Sub(g.healthy))) // when Each gives up
			}
		}
		g.cool(now, wait, e.Error())
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// reportedPause is the shortest pause that is reported.
const reportedPause = 3 * time.Second

// cool starts a cool-down: no request is sent until wait has passed.
func (g *gate) cool(now time.Time, wait time.Duration, why string) {
	if wait <= 0 || !now.Add(wait).After(g.until) {
		return
	}
	if wait >= reportedPause && g.until.Before(now) {
		g.say("%s: no request for %v", why, wait.Round(time.Second))
	}
	g.until = now.Add(wait)
}

// charge corrects the pace by the tokens that the server has counted, or by the length of the text
// if it has not.
func (g *gate) charge(p *pass, a *Answer, now time.Time) {
	prompt, answer := float64(a.Usage.PromptTokens), float64(a.Usage.CompletionTokens)
	if a.Usage == (Usage{}) {
		prompt = float64(p.bytes) / guessBytes
		for _, ch := range a.Choices {
			answer += float64(len(ch.Content)) / guessBytes
		}
	}
	g.promptBytes += float64(p.bytes)
	g.promptTokens += prompt
	g.answerTokens += answer
	g.choices += float64(p.choices)
	counted := amountOf(prompt, answer)
	for i := tokens; i < quantities; i++ {
		if x := &g.paces[i]; x.perSecond > 0 {
			x.set(x.at.Add(x.duration(counted[i]-p.estimate[i])), now, tokenSlack)
		}
	}
}

// limitHeaders are the headers that state an endpoint's limits. Servers with OpenAI's API have the
// first names; Cerebras' and Mistral's name the minute, too; the others are Anthropic's, which it
// sends on its compatible endpoint as well. Headers whose limit is not per minute are left out,
// such as Fireworks' x-ratelimit-limit-tokens-prompt, which is per second.
var limitHeaders = []struct {
	quantity                int
	limit, remaining, reset string
}{
	{requests, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests",
		"X-Ratelimit-Reset-Requests"},
	{requests, "X-Ratelimit-Limit-Requests-Minute", "X-Ratelimit-Remaining-Requests-Minute",
		"X-Ratelimit-Reset-Requests-Minute"},
	{requests, "X-Ratelimit-Limit-Req-Minute", "X-Ratelimit-Remaining-Req-Minute",
		"X-Ratelimit-Reset-Req-Minute"},
	{requests, "Anthropic-Ratelimit-Requests-Limit", "Anthropic-Ratelimit-Requests-Remaining",
		"Anthropic-Ratelimit-Requests-Reset"},
	{tokens, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens",
		"X-Ratelimit-Reset-Tokens"},
	{tokens, "X-Ratelimit-Limit-Tokens-Minute", "X-Ratelimit-Remaining-Tokens-Minute",
		"X-Ratelimit-Reset-Tokens-Minute"},
	{tokens, "Anthropic-Ratelimit-Tokens-Limit", "Anthropic-Ratelimit-Tokens-Remaining",
		"Anthropic-Ratelimit-Tokens-Reset"},
	{inputTokens, "Anthropic-Ratelimit-Input-Tokens-Limit",
		"Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{outputTokens, "Anthropic-Ratelimit-Output-Tokens-Limit",
		"Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
}

// learn reads the limits in a server's headers, for quantities without a limit of the user's; of
// several for one quantity the lowest counts.
func (g *gate) learn(h http.Header, now time.Time) {
	var limits [quantities]float64
	for _, x := range limitHeaders {
		if limit, err := strconv.ParseFloat(h.Get(x.limit), 64); err == nil && limit >= 1 &&
			limit <= 1e12 && (limits[x.quantity] == 0 || limit < limits[x.quantity]) {
			limits[x.quantity] = limit
		}
		// Retry-After is the better figure: a reset is the time at which the whole limit is there
		// again.
		if left, err := strconv.ParseFloat(h.Get(x.remaining), 64); err == nil && left <= 0 &&
			h.Get("Retry-After") == "" {
			g.cool(now, resetIn(h.Get(x.reset), serverTime(h, now)),
				"the endpoint's limit of "+quantityNames[x.quantity]+" is used up")
		}
	}
	for i, limit := range limits {
		p := &g.paces[i]
		if g.given[i] || limit == 0 || limit/60 == p.perSecond {
			continue
		}
		if p.perSecond == 0 {
			p.at = now
			g.say("the endpoint allows %.0f %s a minute", limit, quantityNames[i])
		}
		p.perSecond = limit / 60
	}
}

// serverTime returns the server's clock, from the Date header; without a valid header it returns
// now.
func serverTime(h http.Header, now time.Time) time.Time {
	if t, err := http.ParseTime(h.Get("Date")); err == nil {
		return t
	}
	return now
}

// resetIn parses a duration such as 6m0s, seconds, a date of RFC 3339 or a Unix time; anything
// else, and a time that is past or far away, is 0.
func resetIn(s string, now time.Time) (d time.Duration) {
	const unix = 1e9 // seconds: no time of a limit is that long
	if x, err := strconv.ParseFloat(s, 64); err == nil && x < unix {
		return validPause(x)
	} else if err == nil && x < unix*1e6 {
		if x >= unix*100 { // milliseconds
			x /= 1000
		}
		return validPause(x - float64(now.Unix()))
	}
	if d, err := time.ParseDuration(s); err == nil {
		return validPause(d.Seconds())
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return validPause(t.Sub(now).Seconds())
	}
	return 0
}

// outage returns the time since the last answer and the failures since, both 0 while the endpoint
// answers.
func (g *gate) outage() (time.Duration, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streak == 0 {
		return 0, 0
	}
	return time.Since(g.healthy), g.streak
}

// backoff returns the pause after a try, counted from 0: half a second, doubled each time up to a
// minute, minus a random part of up to a quarter.
func backoff(try int) time.Duration {
	d := min(time.Minute, 500*time.Millisecond<<min(max(try, 0), 10))
	return d - time.Duration(rand.Float64()*float64(d)/4)
}
