package model

import (
	"encoding/binary"
	"fmt"

	"gad/internal/compute"
)

// The gradient of an optimizer step is divided into shards, whose number does not depend on
// the number of ranks. Each shard is accumulated from zero; a binary tree over the shards
// adds them up, first on each rank (joinShard), then between ranks (joinRanks). So the order
// of every sum is fixed by the number of shards, and a run has the same bits on any number of
// ranks that divides it.

// Split makes m one of the copies that ranks hold, and divides its gradients into the given number
// of shards: a power of two, and a multiple of the number of ranks. From then on all ranks must
// call AllLogProbs, AllScores, GenerateAll, EachShard and Optimizer.Step together.
func (m *Model) Split(ranks *Ranks, shards int) error {
	if shards < 1 || shards&(shards-1) != 0 || shards%ranks.Size() != 0 {
		return fmt.Errorf(
			"model: %d shards for %d ranks: expected a power of two that the ranks divide", shards,
			ranks.Size())
	}
	m.ranks, m.shards = ranks, shards
	return nil
}

// Shards returns the number of shards into which the gradient of an optimizer step is divided.
func (m *Model) Shards() int { return max(m.shards, 1) }

// Shard returns the shard of item i of n; items are divided in their order. The sequences of one
// prompt are one item.
func (m *Model) Shard(i, n int) int { return i * m.Shards() / n }

// EachShard calls pass for each shard of this rank; m's gradients must be zero. Each call adds the
// gradient of its shard to them; afterwards they are the sum over this rank's shards, and
// Optimizer.Step adds the other ranks'.
//
// It returns the results of pass for every shard on any rank, in the order of shards, so that all
// ranks decide alike what to do with the step. T must be of fixed size as encoding/binary defines
// it: bool, float64, int32, ..., and structs and arrays of such types.
func EachShard[T any](m *Model, pass func(shard int) ([]T, error)) (resultsK [][]T, err error) {
	own := m.Shards() / m.ranks.Size()
	first := own * m.ranks.Rank()
	var message []byte // for each shard the length of its results, and the results
	for k := range own {
		results, err := pass(first + k)
		if err != nil {
			return nil, err
		}
		message = binary.LittleEndian.AppendUint32(message, uint32(len(results)))
		if message, err = binary.Append(message, binary.LittleEndian, results); err != nil {
			return nil, fmt.Errorf("model: results of a shard: %w", err)
		}
		if own > 1 {
			m.grads.joinShard(m, k, k == own-1)
			if err := m.be.Sync(); err != nil {
				return nil, fmt.Errorf("model: gradients: %w", err)
			}
		}
	}
	messages, err := m.ranks.Gather("results of shards", message)
	if err != nil {
		return nil, err
	}
	size := binary.Size(*new(T))
	for r, message := range messages {
		for range own {
			results, rest, ok := takeResults[T](message, size)
			if !ok {
				return nil, fmt.Errorf("model: results of shards of rank %d: %w", r, errEarly)
			}
			resultsK, message = append(resultsK, results), rest
		}
	}
	return resultsK, nil
}

// takeResults decodes the results of one shard, of size bytes each, at the start of message, and
// returns the remaining message; ok is false if message is too short.
func takeResults[T any](message []byte, size int) (results []T, rest []byte, ok bool) {
	if len(message) < 4 {
		return nil, nil, false
	}
	n, rest := int(binary.LittleEndian.Uint32(message)), message[4:]
	if n > len(rest)/size {
		return nil, nil, false
	}
	results, end := make([]T, n), n*size
	_, err := binary.Decode(rest[:end], binary.LittleEndian, results)
	return results, rest[end:], err == nil
}

// joinShard adds m's gradient, of a rank's k-th shard, to the sum of the shards before it, as a
// binary counter adds: g.waiting[d] is a sum of 2^d shards until the next 2^d are summed. After the
// last shard the gradients are the sum of all; after any other they are zero.
func (g *gradMemory) joinShard(m *Model, k int, last bool) {
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
		g.owner = m
		return
	}
	for len(g.waiting) <= d {
		g.waiting = append(g.waiting, nil)
	}
	if len(g.waiting[d]) < n {
		g.waiting[d] = make([]float32, n)
	}
	copy(g.waiting[d], x)
	g.owner = m // also where pass has added nothing
	g.zero(m)
}

// sentBytes returns the least number of bytes that each rank sends in an all-gather of so many
// bytes in equal parts. An all-reduce sends twice as many.
func sentBytes(ranks int, bytes int64) int64 { return bytes * int64(ranks-1) / int64(ranks) }

// joinRanks replaces m's gradients by the sum over all ranks: by an all-reduce of connected
// devices, in the order of their library, or else by the host's tree.
func (g *gradMemory) joinRanks(m *Model) error {
	if m.ranks.Size() == 1 {
		return nil
	}
	if d, ok := m.be.(compute.Connectable); ok && d.Connected() {
		n := extent(m.params)
		// a failure of this rank ends here, before the others wait for it
		if err := m.be.Sync(); err != nil {
			return fmt.Errorf("model: gradients: %w", err)
		}
		g.owner = m
		return m.ranks.Device("gradients", n, 2*sentBytes(m.ranks.Size(), 4*int64(n)),
			func(keepOn func() error) error {
				return d.AllReduce(g.block.Slice(0, n), keepOn)
			})
	}
	x, put := g.onHost(extent(m.params))
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: gradients: %w", err)
	}
	if err := m.ranks.Sum("gradients", x); err != nil {
		return err
	}
	put()
	g.owner = m
	return nil
}
