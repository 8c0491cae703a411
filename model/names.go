package model

import (
	"errors"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/logits"
	"gad/model/internal/pages"
	"gad/model/internal/rope"
	"gad/model/internal/sampling"
	"gad/model/internal/sequence"
)

// Names of the internal packages and of internal/compute that a user of this package needs: a
// model's sequences (sequence), its rotary positions (rope), its kind (architecture), and types of
// the backend (compute).

// ErrUnsupported is wrapped by errors about models that gad reads but cannot compute: another
// architecture, rope rule or attention variant.
var ErrUnsupported = rope.ErrUnsupported

// Kind is the head on top of the backbone.
type Kind = architecture.Kind

// The kinds of model: see package architecture.
const (
	LM     Kind = architecture.LM
	Scorer Kind = architecture.Scorer
)

// Types of a model's settings and of its sequences.
type (
	// Seq is a sequence of tokens; the tokens in its spans are trained.
	Seq = sequence.Seq
	// Span is the tokens from one position to another.
	Span = sequence.Span
	// Segment is a run of consecutive tokens that a pass computes.
	Segment = sequence.Segment
	// RopeScaling is a rule for scaling the rotary frequencies.
	RopeScaling = rope.Scaling
	// Chunks has the sizes by which a long answer is written in contexts of bounded length.
	Chunks = sequence.Chunks
)

// Sampling by an engine: see package sampling.
type (
	// Engine samples responses with continuous batching.
	Engine = sampling.Engine
	// EngineOptions are the settings of NewEngine.
	EngineOptions = sampling.EngineOptions
	// Request asks for responses to a prompt, or for the ranks of its tokens.
	Request = sampling.Request
	// Token is a token of a sequence, with its log-probability.
	Token = sampling.Token
	// Choice is one of the most probable tokens at a position.
	Choice = sampling.Choice
	// SampleOptions are the settings of Generate.
	SampleOptions = sampling.SampleOptions
	// Begun is a response whose first tokens stand at its prompt's end.
	Begun = sampling.Begun
	// Completion is one sampled response.
	Completion = sampling.Completion
)

// DefaultSlots is the number of answers sampled at the same time unless settings say otherwise.
const DefaultSlots = pages.DefaultSlots

// ErrStopped is the error of Generate after SampleOptions.Stop has returned true.
var ErrStopped = sampling.ErrStopped

// ErrNotFinite is wrapped by the error of a model with a NaN or an infinity.
var ErrNotFinite = logits.ErrNotFinite

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

// Backend is a device that models compute on, opened by the package device. Callers
// pass it on and close it; its other methods are the operations that a model is made of.
type Backend = compute.Backend

// Footprint is the sizes of a backend's memory, known before it is opened, for Config.Plan
// (device.Options.Footprint). Every Backend is one.
type Footprint = compute.Footprint

// Param is one tensor of a model's parameters: its Name in the Hugging Face folder, its
// Shape, and how many rows and columns it has as a matrix (Rows, Cols; Len is the
// product). Model.Params lists them.
type Param = compute.Param

// Sampling has the settings by which a token is drawn from softmax(logits/Temperature): of all
// tokens the TopK most probable are kept, of these the smallest set with at least the probability
// TopP, of these the tokens at least MinP times as probable as the most probable one. A filter that
// is zero is off. Temperature 0 takes the most probable token.
type Sampling = compute.Sampling

// ErrMemory is wrapped by errors about a model or an optimizer that does not fit into the backend's
// memory.
var ErrMemory = compute.ErrMemory

// errNoBackend is the error of Load and New without a backend.
var errNoBackend = errors.New("model: the backend is nil: open one with device.Open")
