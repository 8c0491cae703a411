package model

import (
	"gad/model/internal/rope"
	"gad/model/internal/sequence"
)

// Names of the rooms below that are this package's for who works with a model: its sequences
// (sequence) and its rotary positions (rope).

// ErrUnsupported is wrapped by the errors about models that gad reads correctly
// but cannot compute: another architecture, rope rule or attention variant.
var ErrUnsupported = rope.ErrUnsupported

// Types of a model's settings and of its sequences.
type (
	// Seq is tokens, of which those in spans are trained.
	Seq = sequence.Seq
	// Span is the tokens from one position to another.
	Span = sequence.Span
	// Segment is consecutive tokens that a pass computes.
	Segment = sequence.Segment
	// RopeScaling is a rule for stretching the rotary frequencies.
	RopeScaling = rope.Scaling
	// Chunks are how a long answer is written in contexts of bounded length.
	Chunks = sequence.Chunks
)

// Answer returns a sequence with one span: see sequence.Answer.
func Answer(ids []int32, prompt int) Seq { return sequence.Answer(ids, prompt) }

// Pick returns the elements of xs at the given indices, in the order of the indices.
func Pick[T any](xs []T, indices []int) []T { return sequence.Pick(xs, indices) }

// Packs groups sequences into passes of at most maxTokens tokens: see sequence.Packs.
func Packs(seqs []Seq, maxTokens int) [][]int { return sequence.Packs(seqs, maxTokens) }

// PacksByShard groups the sequences of each shard: see sequence.PacksByShard.
func PacksByShard(seqs []Seq, shards [][]int, maxTokens int) (packsK [][][]int) {
	return sequence.PacksByShard(seqs, shards, maxTokens)
}

// Segments returns the tokens that one pass over seqs computes: see sequence.Segments.
func Segments(seqs []Seq) []Segment { return sequence.Segments(seqs) }
