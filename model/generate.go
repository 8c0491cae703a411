package model

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gad/internal/compute"
	"gad/internal/philox"
)

// SampleOptions configure Generate.
type SampleOptions struct {
	N          int              // responses to each prompt
	MaxNew     int              // tokens of a response at most, the end-of-sequence token included
	Sampling   compute.Sampling // temperature and filters
	EOS        []int32          // tokens that end a response
	Seed, Step uint64           // keys of the draws
	Slots      int              // sequences that are sampled at the same time; 0 is 64
	PageTokens int              // positions in a page of the cache; 0 is 16
	Stop       func() bool      // asked before each token of the sequences under way: true ends the call with ErrStopped; nil is never
}

// ErrStopped is the error of a Generate that SampleOptions.Stop has ended.
var ErrStopped = errors.New("model: generate: stopped")

// Completion is one sampled response.
type Completion struct {
	IDs       []int32   // the end-of-sequence token included, when it came
	Logp      []float32 // of each token under the temperature (1 when greedy), before filters; with the bits of LogProbs where products do not depend on the number of rows, as on the CPU
	Truncated bool      // no end-of-sequence token within MaxNew
}

const (
	defaultSlots = 64
	defaultPage  = 16
)

// prefillTokens bounds a pack of prompts, and with it the memory for activations.
const prefillTokens = 2048

// Generate samples o.N responses for each prompt; the result is [P][N]. The
// token at index t of sample s of prompt p is drawn with the uniform number
// philox.Float64(o.Seed, Rollout, o.Step, rows[p]<<16|s, t), so that a response
// is a function of the weights, the prompt and these keys: o.Slots, o.PageTokens
// and the other prompts change nothing. progress, if not nil, is told the number
// of tokens sampled since its last call.
//
// A prompt runs through the model once; its samples share the pages of its keys
// and values, and a sample that ends makes room for the next.
func (m *Model) Generate(prompts [][]int32, rows []uint64, o SampleOptions, progress func(tokens int)) ([][]Completion, error) {
	if err := m.need(LM, false); err != nil {
		return nil, err
	}
	if o.Slots == 0 {
		o.Slots = defaultSlots
	}
	if o.PageTokens == 0 {
		o.PageTokens = defaultPage
	}
	if err := m.checkSampling(prompts, rows, o); err != nil {
		return nil, err
	}
	out := make([][]Completion, len(prompts))
	for p := range out {
		out[p] = make([]Completion, o.N)
	}
	if len(prompts) == 0 {
		return out, nil
	}
	g := &generation{m: m, o: o, prompts: prompts, rows: rows, out: out, progress: progress}
	if err := g.allocate(); err != nil {
		return nil, err
	}
	for {
		if o.Stop != nil && o.Stop() {
			return nil, ErrStopped
		}
		if err := g.admit(); err != nil {
			return nil, err
		}
		if len(g.live) == 0 {
			if g.next < len(prompts)*o.N {
				continue // what was admitted ended with its first token
			}
			return out, nil
		}
		if err := g.decode(); err != nil {
			return nil, err
		}
	}
}

func (m *Model) checkSampling(prompts [][]int32, rows []uint64, o SampleOptions) error {
	if o.N < 1 || o.N > 1<<16 || o.MaxNew < 1 || o.Slots < 1 || o.Slots > 1<<16 || o.PageTokens < 1 || o.PageTokens > 1<<12 {
		return fmt.Errorf("model: generate: n %d, max new %d, slots %d, page of %d tokens: want n and slots from 1 to 65536, at least one new token and pages of 1 to 4096", o.N, o.MaxNew, o.Slots, o.PageTokens)
	}
	s := o.Sampling
	if !(s.Temperature >= 0 && s.Temperature <= math.MaxFloat32) || s.TopK < 0 || !(s.TopP >= 0 && s.TopP <= 1) || !(s.MinP >= 0 && s.MinP <= 1) {
		return fmt.Errorf("model: generate: %+v: want temperature and top-k of at least 0, top-p and min-p from 0 to 1", s)
	}
	if err := m.checkIDs(o.EOS); err != nil {
		return fmt.Errorf("model: generate: end-of-sequence tokens: %w", err)
	}
	if len(rows) != len(prompts) {
		return fmt.Errorf("model: generate: %d row keys for %d prompts", len(rows), len(prompts))
	}
	longest := 0
	for p, ids := range prompts {
		if len(ids) == 0 {
			return fmt.Errorf("model: generate: prompt %d: empty: want at least one token", p)
		}
		if len(ids) > m.cfg.MaxPosition || o.MaxNew > m.cfg.MaxPosition-len(ids) {
			return fmt.Errorf("model: generate: prompt %d: %d tokens and %d new ones: more than max_position_embeddings %d: lower either", p, len(ids), o.MaxNew, m.cfg.MaxPosition)
		}
		if rows[p] >= 1<<48 {
			return fmt.Errorf("model: generate: prompt %d: row key %d: want less than 2^48", p, rows[p])
		}
		if err := m.checkIDs(ids); err != nil {
			return fmt.Errorf("model: generate: prompt %d: %w", p, err)
		}
		longest = max(longest, len(ids))
	}
	return m.angles(longest + o.MaxNew)
}

// resident is a prompt whose keys and values are cached.
type resident struct {
	p       int
	pages   []int32 // of the prompt; the last one may be partly filled
	row     int     // of its last token's output in generation.promptH
	started int     // samples begun
	left    int     // samples not yet ended
}

// sample is a response being drawn.
type sample struct {
	of    *resident
	s     int
	own   []int32 // pages after the shared ones
	table []int32 // shared and own
	c     *Completion
}

// generation is one call of Generate.
type generation struct {
	m        *Model
	o        SampleOptions
	prompts  [][]int32
	rows     []uint64
	out      [][]Completion
	progress func(int)

	k, v    []compute.Tensor // [layers] caches [pages*PageTokens, K*E]
	promptH compute.Tensor   // [rows, D] outputs at prompts' last tokens
	firstH  compute.Tensor   // [slots, D] of samples that start
	free    []int32          // pages
	freeRow []int            // rows of promptH

	next int       // sample to start next, prompt-major
	last *resident // of the sample before next
	live []*sample
}

// pagesFor is the number of pages of size pt that hold n positions.
func pagesFor(n, pt int) int { return (n + pt - 1) / pt }

// ownPages is what a sample needs beyond the shared full pages of a prompt of n
// tokens. The last new token's keys and values are never read, so never kept.
func ownPages(n, maxNew, pt int) int { return pagesFor(n%pt+maxNew-1, pt) }

// poolPages sizes the cache: every slot's own pages, and twice the prompts that
// full slots belong to. When unfinished samples of many prompts hold more,
// admission waits; one sample alone always fits.
func poolPages(slots, n, prompts, promptPages, own int) int {
	return slots*own + min(2*((slots+n-1)/n)+1, prompts)*promptPages
}

func (g *generation) promptPages(p int) int {
	return pagesFor(len(g.prompts[p]), g.o.PageTokens)
}

func (g *generation) ownPages(p int) int {
	return ownPages(len(g.prompts[p]), g.o.MaxNew, g.o.PageTokens)
}

// allocate takes the memory that the call needs besides activations.
func (g *generation) allocate() error {
	m, c := g.m, &g.m.cfg
	total := len(g.prompts) * g.o.N
	slots := min(g.o.Slots, total)
	prompt, own := 0, 0
	for p := range g.prompts {
		prompt, own = max(prompt, g.promptPages(p)), max(own, g.ownPages(p))
	}
	pages := poolPages(slots, g.o.N, len(g.prompts), prompt, own)
	if pages > math.MaxInt32/g.o.PageTokens {
		return fmt.Errorf("model: generate: cache of %d pages of %d tokens: too large: lower the slots", pages, g.o.PageTokens)
	}
	n := pages * g.o.PageTokens * c.KVHeads * c.HeadDim
	for i := range c.Layers {
		g.k = append(g.k, m.ws.get(fmt.Sprintf("layer %d: key cache [slots,K,E]", i), compute.Narrow, n))
		g.v = append(g.v, m.ws.get(fmt.Sprintf("layer %d: value cache [slots,K,E]", i), compute.Narrow, n))
	}
	g.promptH = m.ws.get("outputs at prompts' ends [P,D]", compute.Narrow, (slots+1)*c.Hidden)
	g.firstH = m.ws.get("outputs before first tokens [R,D]", compute.Narrow, slots*c.Hidden)
	for i := range pages { // page takes from the end, so that a sample's pages follow one another
		g.free = append(g.free, int32(i))
	}
	for i := slots; i >= 0; i-- {
		g.freeRow = append(g.freeRow, i)
	}
	return m.ws.take()
}

func (g *generation) page(n int) []int32 {
	at := len(g.free) - n
	p := slices.Clone(g.free[at:])
	g.free = g.free[:at]
	return p
}

// slot is where a position lies in the cache.
func (g *generation) slot(table []int32, pos int) int32 {
	return table[pos/g.o.PageTokens]*int32(g.o.PageTokens) + int32(pos%g.o.PageTokens)
}

// admit starts samples while slots and pages last, and draws their first tokens.
func (g *generation) admit() error {
	var fresh []*resident
	var started []*sample
	for g.next < len(g.prompts)*g.o.N && len(g.live)+len(started) < min(g.o.Slots, len(g.prompts)*g.o.N) {
		p, s := g.next/g.o.N, g.next%g.o.N
		need := g.ownPages(p)
		if s == 0 {
			if need += g.promptPages(p); need > len(g.free) {
				break
			}
			row := g.freeRow[len(g.freeRow)-1]
			g.freeRow = g.freeRow[:len(g.freeRow)-1]
			g.last = &resident{p: p, pages: g.page(g.promptPages(p)), row: row, left: g.o.N}
			fresh = append(fresh, g.last)
		} else if need > len(g.free) {
			break
		}
		g.last.started++
		started = append(started, &sample{of: g.last, s: s, own: g.page(g.ownPages(p)), c: &g.out[p][s]})
		g.next++
	}
	if len(started) == 0 {
		return nil
	}
	if err := g.prefill(fresh); err != nil {
		return err
	}
	d := g.m.cfg.Hidden
	for i, sm := range started {
		g.m.be.Copy(g.firstH.Slice(i*d, (i+1)*d), g.promptH.Slice(sm.of.row*d, (sm.of.row+1)*d))
		g.share(sm)
	}
	for _, sm := range started {
		if r := sm.of; r.started == g.o.N && r.row >= 0 { // nothing starts from it any more
			g.freeRow = append(g.freeRow, r.row)
			r.row = -1
			if len(g.prompts[r.p])%g.o.PageTokens != 0 {
				end := len(r.pages) - 1
				g.free = append(g.free, r.pages[end])
				r.pages = r.pages[:end]
			}
		}
	}
	return g.draw(started, g.firstH.Slice(0, len(started)*d))
}

// share gives a sample its page table: the prompt's full pages and its own, the
// first of which begins as a copy of the prompt's partial page.
func (g *generation) share(sm *sample) {
	n, pt := len(g.prompts[sm.of.p]), g.o.PageTokens
	full := n / pt
	sm.table = slices.Concat(sm.of.pages[:full], sm.own)
	part := n % pt
	if part == 0 || len(sm.own) == 0 {
		return
	}
	w := g.m.cfg.KVHeads * g.m.cfg.HeadDim
	src, dst := int(sm.of.pages[full])*pt*w, int(sm.own[0])*pt*w
	for i := range g.k {
		for _, cache := range []compute.Tensor{g.k[i], g.v[i]} {
			g.m.be.Copy(cache.Slice(dst, dst+part*w), cache.Slice(src, src+part*w))
		}
	}
}

// prefill runs prompts through the model, in packs, and keeps keys, values and
// the outputs at their last tokens.
func (g *generation) prefill(fresh []*resident) error {
	m, d := g.m, g.m.cfg.Hidden
	seqs := make([]Seq, len(fresh))
	for i, r := range fresh {
		seqs[i].IDs = g.prompts[r.p]
	}
	for _, members := range Packs(seqs, prefillTokens) {
		var part []Seq
		var slots []int32
		for _, i := range members {
			part = append(part, seqs[i])
			for pos := range seqs[i].IDs {
				slots = append(slots, g.slot(fresh[i].pages, pos))
			}
		}
		p, err := m.pack(part, false)
		if err != nil {
			return err
		}
		a := m.cfg.acts(len(p.ids), keepNothing, m.ws.get)
		if err := m.ws.take(); err != nil {
			return err
		}
		att := m.packed(p)
		m.forward(a, p.ids, p.pos, func(i int, b *block) {
			att(i, b)
			g.cache(i, b, slots)
		})
		for j, i := range members {
			at, row := int(p.last[j]), fresh[i].row
			m.be.Copy(g.promptH.Slice(row*d, (row+1)*d), a.hND.Slice(at*d, (at+1)*d))
		}
	}
	return nil
}

// cache keeps a layer's keys and values.
func (g *generation) cache(layer int, b *block, slots []int32) {
	w := g.m.cfg.KVHeads * g.m.cfg.HeadDim
	g.m.be.CacheWrite(g.k[layer], b.kNKE, w, slots)
	g.m.be.CacheWrite(g.v[layer], b.vNKE, w, slots)
}

// decode runs the live samples' newest tokens through the model and draws the next.
func (g *generation) decode() error {
	m, n := g.m, len(g.live)
	ids, pos, slots := make([]int32, n), make([]int32, n), make([]int32, n)
	pages := compute.Pages{PageTokens: g.o.PageTokens, Table: make([][]int32, n), Len: make([]int32, n)}
	for i, sm := range g.live {
		at := len(g.prompts[sm.of.p]) + len(sm.c.IDs) - 1
		ids[i], pos[i], slots[i] = sm.c.IDs[len(sm.c.IDs)-1], int32(at), g.slot(sm.table, at)
		pages.Table[i], pages.Len[i] = sm.table[:pagesFor(at+1, g.o.PageTokens)], int32(at+1)
	}
	a := m.cfg.acts(n, keepNothing, m.ws.get)
	if err := m.ws.take(); err != nil {
		return err
	}
	shape := m.attnShape()
	m.be.Repeat(fmt.Sprintf("%p: decode %d", m, n), func() {
		m.forward(a, ids, pos, func(i int, b *block) {
			g.cache(i, b, slots)
			m.be.AttentionDecode(b.oNHE, b.qNHE, g.k[i], g.v[i], shape, pages)
		})
	})
	live := g.live
	g.live = nil
	return g.draw(live, a.hND)
}

// draw samples the next token of each of samples from the rows of h, and keeps
// those that go on among the live.
func (g *generation) draw(samples []*sample, hRD compute.Tensor) error {
	n := len(samples)
	ids, logp, u := make([]int32, n), make([]float32, n), make([]float64, n)
	for i, sm := range samples {
		u[i] = philox.Float64(g.o.Seed, philox.Rollout, g.o.Step, g.rows[sm.of.p]<<16|uint64(sm.s), uint64(len(sm.c.IDs)))
	}
	g.m.be.Sample(ids, logp, hRD, g.m.head, g.o.Sampling, u)
	if err := g.m.be.Sync(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	for i, sm := range samples {
		if math.IsNaN(float64(logp[i])) || ids[i] < 0 || int(ids[i]) >= g.m.cfg.Vocab {
			return fmt.Errorf("model: generate: prompt %d: sample %d: token %d: log-probability %g: the weights or activations are %w: go back to an earlier checkpoint", sm.of.p, sm.s, len(sm.c.IDs), logp[i], ErrNotFinite)
		}
		c := sm.c
		c.IDs, c.Logp = append(c.IDs, ids[i]), append(c.Logp, logp[i])
		ended := slices.Contains(g.o.EOS, ids[i])
		if !ended && len(c.IDs) < g.o.MaxNew {
			g.live = append(g.live, sm)
			continue
		}
		c.Truncated = !ended
		g.free = append(g.free, sm.own...)
		if sm.of.left--; sm.of.left == 0 {
			g.free = append(g.free, sm.of.pages...)
		}
	}
	if g.progress != nil {
		g.progress(n)
	}
	return nil
}
