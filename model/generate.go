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
	N          int         // responses to each prompt
	MaxNew     int         // tokens of a response at most, the end-of-sequence token included
	Sampling   Sampling    // temperature and filters
	EOS        []int32     // tokens that end a response
	Seed, Step uint64      // keys of the draws
	Slots      int         // sequences that are sampled at the same time; 0 is 64
	PageTokens int         // positions in a page of the cache; 0 is 16
	Stop       func() bool // asked before each token of the sequences under way: true ends the call with ErrStopped; nil is never

	// Told of what is there while the call goes on; nil is nobody. A call that is
	// stopped has handed its finished responses to Done, and returns none.
	Token func(prompt, sample int, id int32)     // each token as it is drawn
	Done  func(prompt, sample int, c Completion) // each response as it ends
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
	g := &generation{m: m, o: o, prompts: prompts, rows: rows, out: out, progress: progress, grads: m.lend()}
	defer g.grads.back()
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
		return fmt.Errorf("model: generate: n %d, max new %d, slots %d, page of %d tokens: expected n and slots from 1 to 65536, at least one new token and pages of 1 to 4096", o.N, o.MaxNew, o.Slots, o.PageTokens)
	}
	s := o.Sampling
	if !(s.Temperature >= 0 && s.Temperature <= math.MaxFloat32) || s.TopK < 0 || !(s.TopP >= 0 && s.TopP <= 1) || !(s.MinP >= 0 && s.MinP <= 1) {
		return fmt.Errorf("model: generate: %+v: expected temperature and top-k of at least 0, top-p and min-p from 0 to 1", s)
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
			return fmt.Errorf("model: generate: prompt %d: empty: expected at least one token", p)
		}
		if len(ids) > m.cfg.MaxPosition || o.MaxNew > m.cfg.MaxPosition-len(ids) {
			return fmt.Errorf("model: generate: prompt %d: %d tokens and %d new ones: more than max_position_embeddings %d: lower either", p, len(ids), o.MaxNew, m.cfg.MaxPosition)
		}
		if rows[p] >= 1<<48 {
			return fmt.Errorf("model: generate: prompt %d: row key %d: expected less than 2^48", p, rows[p])
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
	ids   []int32 // drawn so far
	logp  []float32
}

// generation is one call of Generate.
type generation struct {
	m        *Model
	o        SampleOptions
	prompts  [][]int32
	rows     []uint64
	out      [][]Completion
	progress func(int)

	grads   *lender          // memory for the caches
	k, v    []compute.Tensor // [layers] caches [pages*PageTokens, K*E]
	promptH compute.Tensor   // [rows, D] outputs at prompts' last tokens
	firstH  compute.Tensor   // [slots, D] of samples that start
	free    []int32          // pages
	spare   []int32          // the page of rows that fill a step up to the backend's multiple, and of no sample; others follow it
	freeRow []int            // rows of promptH

	next int       // sample to start next, prompt-major
	last *resident // of the sample before next
	live []*sample
	idle []*sample // ended ones, whose memory the next use

	// Of the running step, kept from step to step.
	acts            *acts
	ids, pos, slots []int32
	pages           compute.Pages
	logp            []float32
	u               []float64
	fresh           []*resident
	started, drawn  []*sample
	pass            func()         // what decode repeats
	keys            map[int]string // the keys to that, by the number of rows
}

// decodeRows is how many rows a step of generation has for n samples where they are to be a
// multiple of so many (Footprint.DecodeMultiple), and sparePages how many pages of size pt
// the rows that are more than the samples write to.
func decodeRows(multiple, n int) int { return (n + multiple - 1) / multiple * multiple }

func sparePages(multiple, pt int) int { return pagesFor(multiple-1, pt) }

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
	spare := sparePages(m.be.DecodeMultiple(), g.o.PageTokens)
	if pages+spare > math.MaxInt32/g.o.PageTokens {
		return fmt.Errorf("model: generate: cache of %d pages of %d tokens: too large: lower the slots", pages, g.o.PageTokens)
	}
	g.spare = []int32{int32(pages)}
	n := (pages + spare) * g.o.PageTokens * c.KVHeads * c.HeadDim
	cache := func(layer int, what string) compute.Tensor {
		if t, ok := g.grads.get(compute.Narrow, n); ok {
			return t
		}
		return m.ws.in(purpose{layer, what}, compute.Narrow, n)
	}
	for i := range c.Layers {
		g.k = append(g.k, cache(i, "key cache [slots,K,E]"))
		g.v = append(g.v, cache(i, "value cache [slots,K,E]"))
	}
	g.pages.PageTokens, g.keys = g.o.PageTokens, map[int]string{}
	g.pass = func() { m.forward(g.acts, g.ids, g.pos, g.attend) }
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

// page appends n free pages to p.
func (g *generation) page(p []int32, n int) []int32 {
	at := len(g.free) - n
	p = append(p, g.free[at:]...)
	g.free = g.free[:at]
	return p
}

// slot is where a position lies in the cache.
func (g *generation) slot(table []int32, pos int) int32 {
	return table[pos/g.o.PageTokens]*int32(g.o.PageTokens) + int32(pos%g.o.PageTokens)
}

// admit starts samples while slots and pages last, and draws their first tokens.
func (g *generation) admit() error {
	fresh, started := g.fresh[:0], g.started[:0]
	for g.next < len(g.prompts)*g.o.N && len(g.live)+len(started) < min(g.o.Slots, len(g.prompts)*g.o.N) {
		p, s := g.next/g.o.N, g.next%g.o.N
		need := g.ownPages(p)
		if s == 0 {
			if need += g.promptPages(p); need > len(g.free) {
				break
			}
			row := g.freeRow[len(g.freeRow)-1]
			g.freeRow = g.freeRow[:len(g.freeRow)-1]
			g.last = &resident{p: p, pages: g.page(nil, g.promptPages(p)), row: row, left: g.o.N}
			fresh = append(fresh, g.last)
		} else if need > len(g.free) {
			break
		}
		g.last.started++
		sm := &sample{}
		if n := len(g.idle); n > 0 {
			sm, g.idle = g.idle[n-1], g.idle[:n-1]
		}
		*sm = sample{
			of: g.last, s: s, own: g.page(sm.own[:0], g.ownPages(p)), table: sm.table[:0],
			ids: slices.Grow(sm.ids[:0], g.o.MaxNew), logp: slices.Grow(sm.logp[:0], g.o.MaxNew),
		}
		started = append(started, sm)
		g.next++
	}
	g.fresh, g.started = fresh, started
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
	sm.table = append(append(sm.table, sm.of.pages[:full]...), sm.own...)
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
		a := m.activations(len(p.ids), keepNothing)
		if err := m.ws.take(); err != nil {
			return err
		}
		m.forward(a, p.ids, p.pos, func(i int, b *block, posN []int32) {
			m.packed(i, b, posN)
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

// attend is the attention of decode.
func (g *generation) attend(i int, b *block, posN []int32) {
	be, shape := g.m.be, g.m.attnShape()
	be.RopeCache(b.qNHE, b.kNKE, b.vNKE, g.k[i], g.v[i], shape, posN, g.m.rope, g.slots)
	be.AttentionDecode(b.oNHE, b.qNHE, g.k[i], g.v[i], shape, g.pages)
}

// decode runs the live samples' newest tokens through the model and draws the next.
func (g *generation) decode() error {
	m, n := g.m, len(g.live)
	g.ids, g.pos, g.slots = g.ids[:0], g.pos[:0], g.slots[:0]
	g.pages.Table, g.pages.Len = g.pages.Table[:0], g.pages.Len[:0]
	for _, sm := range g.live {
		at := len(g.prompts[sm.of.p]) + len(sm.ids) - 1
		g.ids, g.pos, g.slots = append(g.ids, sm.ids[len(sm.ids)-1]), append(g.pos, int32(at)), append(g.slots, g.slot(sm.table, at))
		g.pages.Table, g.pages.Len = append(g.pages.Table, sm.table[:pagesFor(at+1, g.o.PageTokens)]), append(g.pages.Len, int32(at+1))
	}
	// What the other rows compute is of no use. Each attends to the first of them alone, so
	// that all their numbers are finite.
	rows := decodeRows(m.be.DecodeMultiple(), n)
	for i := range rows - n {
		g.ids, g.pos, g.slots = append(g.ids, 0), append(g.pos, 0), append(g.slots, g.spare[0]*int32(g.o.PageTokens)+int32(i))
		g.pages.Table, g.pages.Len = append(g.pages.Table, g.spare), append(g.pages.Len, 1)
	}
	g.acts = m.activations(rows, keepNothing)
	if err := m.ws.take(); err != nil {
		return err
	}
	if g.keys[rows] == "" {
		g.keys[rows] = fmt.Sprintf("%p: decode %d", m, rows)
	}
	m.be.Repeat(g.keys[rows], g.pass)
	g.live, g.drawn = g.drawn[:0], g.live
	return g.draw(g.drawn, g.acts.hND.Slice(0, n*m.cfg.Hidden))
}

// draw samples the next token of each of samples from the rows of h, and keeps
// those that go on among the live.
func (g *generation) draw(samples []*sample, hRD compute.Tensor) error {
	n := len(samples)
	g.ids, g.logp, g.u = slices.Grow(g.ids[:0], n)[:n], slices.Grow(g.logp[:0], n)[:n], g.u[:0]
	for _, sm := range samples {
		g.u = append(g.u, philox.Float64(g.o.Seed, philox.Rollout, g.o.Step, g.rows[sm.of.p]<<16|uint64(sm.s), uint64(len(sm.ids))))
	}
	ids, logp := g.ids, g.logp
	g.m.be.Sample(ids, logp, hRD, g.m.head, g.o.Sampling, g.u)
	if err := g.m.be.Sync(); err != nil {
		return fmt.Errorf("model: generate: %w", err)
	}
	for i, sm := range samples {
		if math.IsNaN(float64(logp[i])) || ids[i] < 0 || int(ids[i]) >= g.m.cfg.Vocab {
			return fmt.Errorf("model: generate: prompt %d: sample %d: token %d: log-probability %g: the weights or activations are %w: go back to an earlier checkpoint", sm.of.p, sm.s, len(sm.ids), logp[i], ErrNotFinite)
		}
		sm.ids, sm.logp = append(sm.ids, ids[i]), append(sm.logp, logp[i])
		if g.o.Token != nil {
			g.o.Token(sm.of.p, sm.s, ids[i])
		}
		ended := slices.Contains(g.o.EOS, ids[i])
		if !ended && len(sm.ids) < g.o.MaxNew {
			g.live = append(g.live, sm)
			continue
		}
		g.out[sm.of.p][sm.s] = Completion{IDs: slices.Clone(sm.ids), Logp: slices.Clone(sm.logp), Truncated: !ended}
		if g.o.Done != nil {
			g.o.Done(sm.of.p, sm.s, g.out[sm.of.p][sm.s])
		}
		g.free = append(g.free, sm.own...)
		if sm.of.left--; sm.of.left == 0 {
			g.free = append(g.free, sm.of.pages...)
		}
		g.idle = append(g.idle, sm)
	}
	if g.progress != nil {
		g.progress(n)
	}
	return nil
}
