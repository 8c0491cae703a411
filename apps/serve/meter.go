package serve

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// meter holds the counts for /metrics.
type meter struct {
	steps, pages            atomic.Int64
	waiting, running, taken atomic.Int64
	looked, found           atomic.Int64 // prompt tokens looked up in the cache, and found there

	mu           sync.Mutex
	requests     map[[2]string]int64 // by path and status
	given, drawn int64               // tokens of prompts and answers
	first, whole histogram
}

// newMeter returns a meter of zero counts.
func newMeter() *meter {
	bounds := []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	h := func() histogram { return histogram{bounds: bounds, counts: make([]int64, len(bounds))} }
	return &meter{requests: map[[2]string]int64{}, first: h(), whole: h()}
}

// histogram counts, for each bound, the values that are at most the bound.
type histogram struct {
	bounds []float64
	counts []int64
	n      int64
	sum    float64
}

// add counts a value.
func (h *histogram) add(x float64) {
	for i, b := range h.bounds {
		if x <= b {
			h.counts[i]++
		}
	}
	h.n++
	h.sum += x
}

// load sets the engine's load: prompts waiting, sequences running, pages taken.
func (m *meter) load(waiting, running, pages int) {
	m.waiting.Store(int64(waiting))
	m.running.Store(int64(running))
	m.taken.Store(int64(pages))
}

// prompt counts the tokens of a prompt, found of which were in the cache.
func (m *meter) prompt(tokens, found int) {
	m.looked.Add(int64(tokens))
	m.found.Add(int64(found))
}

// request counts a request that has been answered.
func (m *meter) request(path string, x *exchange, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[[2]string{path, strconv.Itoa(x.status)}]++
	m.given += int64(x.prompt)
	m.drawn += int64(x.drawn)
	if x.prompt > 0 {
		m.whole.add(took.Seconds())
	}
	if x.first > 0 {
		m.first.add(x.first.Seconds())
	}
}

// text returns all counts in Prometheus' text format. busy is the number of requests in flight.
func (m *meter) text(busy int64) []byte {
	var b bytes.Buffer
	head := func(name, kind, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name,
			help, name, kind)
	}
	one := func(name, kind, help string, v int64) {
		head(name, kind, help)
		fmt.Fprintf(&b, "%s %d\n", name, v)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	head("gad_requests_total", "counter", "Requests that were answered, by path and HTTP status.")
	keys := make([][2]string, 0, len(m.requests))
	for k := range m.requests {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		fmt.Fprintf(&b, "gad_requests_total{path=%q,status=%q} %d\n", k[0], k[1], m.requests[k])
	}
	one("gad_requests_in_flight", "gauge",
		"Requests with a body that are being read, wait or are answered.", busy)
	one("gad_prompts_waiting", "gauge", "Prompts that wait for a slot or for room in the cache.",
		m.waiting.Load())
	one("gad_sequences_running", "gauge", "Answers that are being sampled.", m.running.Load())
	one("gad_cache_pages", "gauge", "Pages of the cache of keys and values.", m.pages.Load())
	one("gad_cache_pages_used", "gauge", "Pages of the cache that are taken.", m.taken.Load())
	one("gad_steps_total", "counter", "Steps of the engine: one token for each answer under way.",
		m.steps.Load())
	one("gad_prompt_tokens_total", "counter", "Tokens of the prompts of answered requests.",
		m.given)
	one("gad_prefix_cache_queries_total", "counter",
		"Tokens of prompts that were looked up in the cache.", m.looked.Load())
	one("gad_prefix_cache_hits_total", "counter",
		"Those of them that were found, and not computed.", m.found.Load())
	one("gad_generated_tokens_total", "counter", "Tokens of the answers of answered requests.",
		m.drawn)
	for _, x := range []struct {
		name, help string
		h          *histogram
	}{
		{"gad_first_token_seconds", "Time from a request to the first token of its answer.",
			&m.first},
		{"gad_request_seconds", "Time from a request to the end of its answer.", &m.whole},
	} {
		head(x.name, "histogram", x.help)
		for i, bound := range x.h.bounds {
			fmt.Fprintf(&b, "%s_bucket{le=\"%v\"} %d\n", x.name, bound, x.h.counts[i])
		}
		fmt.Fprintf(&b, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %v\n%s_count %d\n", x.name, x.h.n,
			x.name, x.h.sum, x.name, x.h.n)
	}
	return b.Bytes()
}
