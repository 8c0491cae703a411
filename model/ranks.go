package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"gad/internal/comm"
	"gad/internal/compute"
)

// Ranks are the processes that train together. Each holds whole copies of the models;
// nil is one process alone.
//
// Sampling and the passes that only read weights are divided among the ranks, and every
// rank gets all results. The gradient of an optimizer step is divided into shards, whose
// number does not depend on that of the ranks: each is summed alone from zero, and the
// shards are joined by a binary tree. So a step's gradient, and with it a run, has the
// same bits for any number of ranks that divides the shards.
type Ranks = comm.Group

// Traffic counts what a rank has sent to others.
type Traffic = comm.Traffic

// Split makes m one of the copies that ranks hold, whose gradients are divided into the
// given number of shards: a power of two, and a multiple of the number of ranks. From
// then on AllLogProbs, AllScores, GenerateAll, EachShard and Optimizer.Step are calls
// that all ranks make together.
func (m *Model) Split(ranks *Ranks, shards int) error {
	if shards < 1 || shards&(shards-1) != 0 || shards%ranks.Size() != 0 {
		return fmt.Errorf("model: %d shards for %d ranks: expected a power of two that the ranks divide", shards, ranks.Size())
	}
	m.ranks, m.shards = ranks, shards
	return nil
}

// Ranks are those that hold copies of m; nil is this process alone.
func (m *Model) Ranks() *Ranks { return m.ranks }

// Shards is into how many parts the gradient of an optimizer step is divided.
func (m *Model) Shards() int { return max(m.shards, 1) }

// Shard is the shard of item i of n, where items are divided in their order: those of a
// prompt are one item.
func (m *Model) Shard(i, n int) int { return i * m.Shards() / n }

// EachShard calls pass for each shard of this rank; what it adds to m's gradients is the
// shard's. It leaves their sum over the rank's shards in the gradients, for
// Optimizer.Step to join with the other ranks', and returns the figures that pass gave
// for every shard on any rank, so that all ranks decide alike what to do with the step.
func (m *Model) EachShard(pass func(shard int) (figures []float64, err error)) (figuresK [][]float64, err error) {
	own := m.Shards() / m.ranks.Size()
	first := own * m.ranks.Rank()
	var mine []byte
	for k := range own {
		figures, err := pass(first + k)
		if err != nil {
			return nil, err
		}
		mine = binary.LittleEndian.AppendUint64(mine, uint64(len(figures)))
		for _, x := range figures {
			mine = binary.LittleEndian.AppendUint64(mine, math.Float64bits(x))
		}
		if own > 1 {
			m.joinShard(k, k == own-1)
			if err := m.be.Sync(); err != nil {
				return nil, fmt.Errorf("model: gradients: %w", err)
			}
		}
	}
	all, err := m.ranks.Gather("figures of gradients", mine)
	if err != nil {
		return nil, err
	}
	for r, words := range all {
		for range own {
			var figures []float64
			n := uint64(0)
			if len(words) >= 8 {
				n, words = binary.LittleEndian.Uint64(words), words[8:]
			}
			if n > uint64(len(words)/8) {
				return nil, fmt.Errorf("model: rank %d sent figures of gradients that end early: the ranks do not run the same program", r)
			}
			for ; n > 0; n-- {
				figures, words = append(figures, math.Float64frombits(binary.LittleEndian.Uint64(words))), words[8:]
			}
			figuresK = append(figuresK, figures)
		}
	}
	return figuresK, nil
}

// joinShard adds the gradient of a rank's k-th shard to those before it, as a binary
// counter adds: the sum of 2^d shards waits on level d for its other half. The last one
// leaves the sum of all in the gradients; before it they are zero again.
func (m *Model) joinShard(k int, last bool) {
	g := m.grads
	n := extent(m.params)
	x, put := g.onHost(n)
	d := 0
	for ; k>>d&1 == 1; d++ {
		half := g.waiting[d]
		for i := range x {
			x[i] += half[i]
		}
	}
	if last {
		put()
		g.of = m
		return
	}
	for len(g.waiting) <= d {
		g.waiting = append(g.waiting, nil)
	}
	if len(g.waiting[d]) < n {
		g.waiting[d] = make([]float32, n)
	}
	copy(g.waiting[d], x)
	g.of = m // whatever pass did, or did not do
	g.zero(m)
}

// sentOf is what each of so many ranks sends at least for all to have bytes of which each has
// an equal part; for a sum it is twice that.
func sentOf(ranks int, bytes int64) int64 { return bytes * int64(ranks-1) / int64(ranks) }

// joinRanks leaves the sum of all ranks' gradients in m's: on devices that are connected
// in their own order, or else by the tree.
func (m *Model) joinRanks() error {
	if m.ranks.Size() == 1 {
		return nil
	}
	if d, ok := m.be.(compute.Connectable); ok && d.Connected() {
		n := extent(m.params)
		if err := m.be.Sync(); err != nil { // what this rank fails at, it tells before all enter
			return fmt.Errorf("model: gradients: %w", err)
		}
		m.grads.of = m
		return m.ranks.Device("gradients", n, 2*sentOf(m.ranks.Size(), 4*int64(n)), func(keepOn func() error) error {
			return d.AllReduce(m.grads.block.Slice(0, n), keepOn)
		})
	}
	x, put := m.grads.onHost(extent(m.params))
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: gradients: %w", err)
	}
	if err := m.ranks.Sum("gradients", x); err != nil {
		return err
	}
	put()
	m.grads.of = m
	return nil
}

// onHost is the first n elements of the block in the host's memory; put writes them back.
// On a device whose memory is the host's they are the block itself.
func (g *gradMemory) onHost(n int) (x []float32, put func()) {
	block := g.block.Slice(0, n)
	if h, ok := g.be.(interface {
		Host(compute.Tensor) []float32
	}); ok {
		if x := h.Host(block); x != nil {
			return x, func() {}
		}
	}
	if len(g.copied) < n {
		g.copied = make([]float32, n)
	}
	x = g.copied[:n]
	g.be.Download(x, block)
	return x, func() { g.be.Upload(block, x) }
}

// share are those of seqs that this rank computes, as indices: whole prompts in their
// order, with about as many tokens for each rank.
func (m *Model) share(seqs []Seq) (byRank [][]int) {
	n := m.ranks.Size()
	byRank = make([][]int, n)
	groups := byPrompt(seqs)
	all := 0
	for _, g := range groups {
		all += rowsOf(seqs, g)
	}
	before := 0
	for _, g := range groups {
		rows := rowsOf(seqs, g)
		r := min((2*before+rows)*n/max(2*all, 1), n-1)
		byRank[r] = append(byRank[r], g...)
		before += rows
	}
	return byRank
}

// everyRank has this rank compute its share of seqs, and gives what all ranks computed:
// width figures for each sequence of which it says how many figures it has.
func (m *Model) everyRank(what string, seqs []Seq, compute func(mine []Seq) ([][]float32, error)) ([][]float32, error) {
	byRank := m.share(seqs)
	mine, err := compute(Pick(seqs, byRank[m.ranks.Rank()]))
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, row := range mine {
		out = appendFloats(out, row)
	}
	all, err := m.ranks.Gather(what, out)
	if err != nil {
		return nil, err
	}
	rows := make([][]float32, len(seqs))
	for r, in := range all {
		for _, s := range byRank[r] {
			if rows[s], in, err = takeFloats(in); err != nil {
				return nil, fmt.Errorf("model: %s of rank %d: %w", what, r, err)
			}
		}
	}
	return rows, nil
}

// errEarly is the error of a message of another program, or another version of it.
var errEarly = errors.New("ends early: the ranks do not run the same program")

func appendFloats(b []byte, xs []float32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(xs)))
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func takeFloats(b []byte) (xs []float32, rest []byte, err error) {
	words, rest, err := takeWords(b)
	xs = make([]float32, len(words)/4)
	for i := range xs {
		xs[i] = math.Float32frombits(binary.LittleEndian.Uint32(words[4*i:]))
	}
	return xs, rest, err
}

// takeWords is as many words of four bytes as the first one says.
func takeWords(b []byte) (words, rest []byte, err error) {
	if len(b) < 4 || uint64(len(b)-4) < 4*uint64(binary.LittleEndian.Uint32(b)) {
		return nil, nil, errEarly
	}
	n := 4 + 4*int(binary.LittleEndian.Uint32(b))
	return b[4:n], b[n:], nil
}

// GenerateAll is Generate with the prompts divided among the ranks. Any rank's o.Stop ends
// the call on all of them. o.Token is told of this rank's tokens alone, and progress as
// if all ranks were as fast as this one.
func (m *Model) GenerateAll(prompts [][]int32, rows []uint64, o SampleOptions, progress func(tokens int)) ([][]Completion, error) {
	n := m.ranks.Size()
	if n == 1 {
		return m.Generate(prompts, rows, o, progress)
	}
	if len(rows) != len(prompts) {
		return nil, fmt.Errorf("model: generate: %d row keys for %d prompts", len(rows), len(prompts))
	}
	of := func(r int) (lo, hi int) { return r * len(prompts) / n, (r + 1) * len(prompts) / n }
	lo, hi := of(m.ranks.Rank())
	part := o
	part.Stop = m.ranks.Failed
	if o.Stop != nil {
		part.Stop = func() bool {
			if o.Stop() {
				m.ranks.Wish()
			}
			return m.ranks.Wished()
		}
	}
	if o.Token != nil {
		part.Token = func(p, s int, id int32) { o.Token(lo+p, s, id) }
	}
	if o.Done != nil {
		part.Done = func(p, s int, c Completion) { o.Done(lo+p, s, c) }
	}
	if progress != nil {
		own := progress
		progress = func(tokens int) { own(n * tokens) }
	}
	own, err := m.Generate(prompts[lo:hi], rows[lo:hi], part, progress)
	stopped := errors.Is(err, ErrStopped)
	if err != nil && !stopped {
		return nil, err
	}
	all, err := m.ranks.Gather("answers", packCompletions(own, stopped))
	if err != nil {
		return nil, err
	}
	out := make([][]Completion, len(prompts))
	for r, in := range all {
		if len(in) == 1 {
			return nil, ErrStopped
		}
		lo, hi := of(r)
		if err := unpackCompletions(out[lo:hi], o.N, in); err != nil {
			return nil, fmt.Errorf("model: answers of rank %d: %w", r, err)
		}
		for p := lo; p < hi && o.Done != nil && r != m.ranks.Rank(); p++ {
			for s, c := range out[p] {
				o.Done(p, s, c)
			}
		}
	}
	return out, nil
}

// packCompletions is a message of answers; one byte says that there are none, because
// their rank was stopped.
func packCompletions(out [][]Completion, stopped bool) (b []byte) {
	if stopped {
		return []byte{0}
	}
	for _, answers := range out {
		for _, c := range answers {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(c.IDs)))
			for _, id := range c.IDs {
				b = binary.LittleEndian.AppendUint32(b, uint32(id))
			}
			b = appendFloats(b, c.Logp)
			cut := byte(0)
			if c.Truncated {
				cut = 1
			}
			b = append(b, cut)
		}
	}
	return b
}

func unpackCompletions(out [][]Completion, n int, b []byte) error {
	for p := range out {
		out[p] = make([]Completion, n)
		for s := range out[p] {
			c := &out[p][s]
			ids, rest, err := takeWords(b)
			if err != nil {
				return err
			}
			c.IDs = make([]int32, len(ids)/4)
			for i := range c.IDs {
				c.IDs[i] = int32(binary.LittleEndian.Uint32(ids[4*i:]))
			}
			if c.Logp, b, err = takeFloats(rest); err != nil {
				return err
			}
			if len(b) == 0 {
				return errEarly
			}
			c.Truncated, b = b[0] == 1, b[1:]
		}
	}
	return nil
}
