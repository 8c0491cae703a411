package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"gad/internal/comm"
	"gad/model/internal/sequence"
)

// Ranks is the group of processes that train together. Each has a whole copy of the models; nil is
// a single process.
//
// Sampling and passes without gradient are divided among the ranks, and every rank gets all
// results. Gradients are divided into shards (Model.EachShard).
type Ranks = comm.Group

// Traffic counts the bytes that a rank has sent to others.
type Traffic = comm.Traffic

// Ranks returns the ranks with copies of m; nil is this process alone.
func (m *Model) Ranks() *Ranks { return m.ranks }

// share divides seqs among n ranks and returns their indices by rank: whole prompts in their
// order, with about the same number of tokens for each rank.
func share(n int, seqs []Seq) (byRank [][]int) {
	byRank = make([][]int, n)
	groups := sequence.ByPrompt(seqs)
	all := 0
	for _, g := range groups {
		all += sequence.Rows(seqs, g)
	}
	before := 0
	for _, g := range groups {
		rows := sequence.Rows(seqs, g)
		r := min((2*before+rows)*n/max(2*all, 1), n-1)
		byRank[r] = append(byRank[r], g...)
		before += rows
	}
	return byRank
}

// everyRank computes this rank's share of seqs and returns the rows of all sequences. compute
// returns one row of numbers for each of its sequences; rows may differ in length. what names the
// exchange in errors.
func everyRank(ranks *Ranks, what string, seqs []Seq,
	compute func(mine []Seq) ([][]float32, error)) ([][]float32, error) {
	byRank := share(ranks.Size(), seqs)
	mine, err := compute(sequence.Pick(seqs, byRank[ranks.Rank()]))
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, row := range mine {
		out = appendFloats(out, row)
	}
	all, err := ranks.Gather(what, out)
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

// errEarly is the error of a message that is too short: the ranks run different programs.
var errEarly = errors.New("ends early: the ranks do not run the same program")

// appendFloats appends the length of xs and its elements to a message.
func appendFloats(b []byte, xs []float32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(xs)))
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// takeFloats decodes the numbers of appendFloats at the start of b, and returns the remaining b.
func takeFloats(b []byte) (xs []float32, rest []byte, err error) {
	words, rest, err := takeWords(b)
	xs = make([]float32, len(words)/4)
	for i := range xs {
		xs[i] = math.Float32frombits(binary.LittleEndian.Uint32(words[4*i:]))
	}
	return xs, rest, err
}

// takeWords returns the words of four bytes at the start of b, whose number is the first word, and
// the remaining b.
func takeWords(b []byte) (words, rest []byte, err error) {
	if len(b) < 4 || uint64(len(b)-4) < 4*uint64(binary.LittleEndian.Uint32(b)) {
		return nil, nil, errEarly
	}
	n := 4 + 4*int(binary.LittleEndian.Uint32(b))
	return b[4:n], b[n:], nil
}

// GenerateAll divides the prompts among the ranks, and returns the responses of Generate to all of
// them. If o.Stop of any rank returns true, the call ends on all ranks. o.Token is called for this
// rank's tokens only; o.Done for the responses of all ranks; progress gets this rank's number of
// tokens times the number of ranks.
func (m *Model) GenerateAll(prompts [][]int32, rows []uint64, o SampleOptions,
	progress func(tokens int)) ([][]Completion, error) {
	n := m.ranks.Size()
	if n == 1 {
		return m.Generate(prompts, rows, o, progress)
	}
	if len(rows) != len(prompts) {
		return nil, fmt.Errorf("model: generate: %d row keys for %d prompts", len(rows),
			len(prompts))
	}
	of := func(r int) (lo, hi int) { return r * len(prompts) / n, (r + 1) * len(prompts) / n }
	lo, hi := of(m.ranks.Rank())
	part := o
	if o.Begun != nil && len(o.Begun) == len(prompts) {
		part.Begun = o.Begun[lo:hi]
	}
	part.Stop = m.ranks.Failed
	if o.Stop != nil {
		part.Stop = func() bool {
			if o.Stop() {
				m.ranks.RequestStop()
			}
			return m.ranks.StopRequested()
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

// packCompletions encodes answers as a message. A message of one byte means that the rank was
// stopped and has no answers.
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

// unpackCompletions decodes a message of packCompletions into out, n answers to each prompt.
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
