// Package model is the transformer, written once over the operations of
// internal/compute: parameters, forward and backward pass, sampling with a
// cache of keys and values, AdamW, and the Hugging Face folder format.
//
// Below it are rooms that know no model: internal/architecture (what the families compute),
// internal/rope (rotary positions), internal/files (folders and GGUF files, and their tensors),
// internal/sequence (sequences and packs of them), internal/workspace (device memory by purpose),
// internal/pages and internal/logits (what sampling takes, and draws from).
//
//	names.go                what of these rooms is this package's
//	config.go, rope.go      a model's numbers, read from config.json and written
//	model.go                parameters
//	forward.go              both passes of the network
//	pack.go                 sequences side by side in one pass, prompts shared
//	gradients.go, all.go    memory of gradients; all sequences in passes of a size
//	optimizer.go, schedule.go, settings.go  AdamW and its learning rate
//	lora.go, adapter.go     adapters, and their files as peft has them
//	quant.go                frozen weights in 8 and 4 bits
//	engine.go, admit.go, decode.go, cache.go, prefix.go, generate.go  sampling
//	rank.go, divergence.go  ranks of tokens among the vocabulary, KL between models
//	kl.go, soft.go          the exact KL to another model, soft labels with a tail; gradients
//	ranks.go, shards.go, zero.go  several processes, and AdamW's states divided among them
//	folder.go, layers.go, shapes.go  loading and saving; some of the layers; known shapes
//	plan.go, memory.go      what all of it takes
//
// Legend, here and in names: N tokens of a pack, S sequences, T response tokens,
// R selected rows, P prompts, D hidden width, H query heads, K key/value heads,
// E head width, F feed-forward width, V vocabulary.
package model

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"gad/internal/compute"
	"gad/internal/philox"
	"gad/internal/safetensors"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
	"gad/model/internal/workspace"
)

// Options are the choices of Load and New.
type Options struct {
	Kind      Kind
	Trainable bool // with gradients
	// keep only each block's input, and compute the block again in the backward pass
	Recompute bool
	Seed      uint64  // for what is drawn: all weights in New, a Scorer's new head in Load
	ScoreInit float64 // standard deviation of a Scorer's new head; 0 is zeros
	// New draws a chunk of normal numbers and repeats it, where only time and memory are measured
	Repeat bool
	LoRA   LoRA   // adapters on frozen weights; without a rank all weights are the model's own
	Base   *Model // the frozen weights, where they are loaded already; see Load
	// how frozen matrices are kept: Native, which "" is too, "q8_0" or "q4_0" (ggml's types)
	Quant string
	// Load keeps only these, in ascending order, and numbers them anew; nil keeps all
	Layers []int
	// Turns is a model that learns in turn with this one: between a gradient of the one and a
	// gradient of the other there is an optimizer step. The two share one block of memory for
	// gradients.
	Turns *Model
	// StatesOver are the ranks among which an optimizer of the model divides AdamW's state; nil:
	// every rank keeps all of it. Split must get the same ranks.
	StatesOver *Ranks

	rewritten bool // the weights are frozen, but Remerge writes them
}

// Model is a transformer on a backend. Its methods are called from one goroutine.
type Model struct {
	be   compute.Backend
	cfg  Config
	spec architecture.Spec
	opt  Options
	layout
	base     *Model                      // the frozen weights, of a model made by Adapt
	adapters map[*compute.Param]*adapter // by the base's weight
	// models that Adapt has made of this one, which read its memory
	users  int
	closed bool
	dir    string                       // the folder it was loaded from; "" of a part of its layers
	dtypes map[string]safetensors.DType // of the folder's tensors, by the parameters' names
	digest string                       // of the folder's weights; "" until Digest
	mem    []compute.Tensor             // of the parameters, to be freed
	ws     *workspace.Workspace
	grads  *gradMemory // nil: frozen
	ranks  *Ranks      // that hold copies of it; nil is this process alone
	shards int         // of an optimizer step; 0 is 1
	// this rank has only those bits of the weights that products read (Optimizer.WholeWeights)
	narrowed bool
	// of each id below vocab, whether it has a token; nil: all have (SetTokens)
	tokens []bool
	angle  compute.Tensor // [ropes, positions, E], the tables of rotations
	angleN int            // positions in them
	writes uint64         // number of writes to the weights

	// Host buffers of the running pass, used again by the next.
	acts acts
	pk   pack
	host struct {
		logp, ent, d      []float32 // [R] of LogProbGrad
		logpFlat, entFlat []float32 // the same, sequence by sequence
		logpST, entST     [][]float32
		scoreN            []float32 // of ScoreGrad
	}

	apart    bool             // prompts are not shared: for tests
	watch    func(tokens int) // callback of Watch; nil: none
	progress progress

	asideTime time.Duration
}

// Watch calls f with numbers of tokens as LogProbs, Scores and their gradients proceed: for each
// pack as many as it has, in parts, for a progress bar. A device that queues its work may be
// behind. nil ends the calls.
func (m *Model) Watch(f func(tokens int)) { m.watch = f }

// progress is the state of a pack's pass for Watch.
type progress struct {
	tokens int // of the pack
	parts  int // of the pass: a block is one forward, and two more backward
	done   int // of parts
	sent   int // tokens passed to the callback
}

// withGradient makes it the progress of a pass in both directions.
func (p *progress) withGradient() { p.parts *= 3 }

// passed counts parts of a pass, and calls the callback.
func (m *Model) passed(parts int) {
	if m.watch == nil || m.progress.parts == 0 {
		return
	}
	p := &m.progress
	p.done += parts
	if now := p.tokens * min(p.done, p.parts) / p.parts; now > p.sent {
		m.watch(now - p.sent)
		p.sent = now
	}
}

// layout is the parameters by role. Names are those of Hugging Face folders.
type layout struct {
	// the model's own, in a fixed order: embedding, blocks, final norm, head; with a base, adapters
	// and score head
	params []*compute.Param
	embed  *compute.Param // [V,D]
	blocks []blockParams
	norm   *compute.Param // [D]
	head   *compute.Param // LM: [V,D], the embedding itself when tied; Scorer: [1,D]
}

// blockParams are one block's, in the order of spec. Absent biases and norms are nil.
type blockParams struct {
	norm1      *compute.Param // [D]
	wq, wk, wv *compute.Param // [H*E,D], [K*E,D], [K*E,D]
	bq, bk, bv *compute.Param
	qn, kn     *compute.Param // [E] each, or [H*E] and [K*E]
	wo         *compute.Param // [D,H*E]
	post1      *compute.Param // [D]
	norm2      *compute.Param // [D]
	gate, up   *compute.Param // [F,D]
	down       *compute.Param // [D,F]
	post2      *compute.Param // [D]
}

// arrange is the parameters of a model, without memory.
func (c Config) arrange(k Kind) layout {
	var l layout
	add := func(name string, shape ...int) *compute.Param {
		p := &compute.Param{Name: name, Shape: shape, Rows: 1, Cols: shape[len(shape)-1],
			Decay: len(shape) == 2}
		if len(shape) == 2 {
			p.Rows = shape[0]
		}
		l.params = append(l.params, p)
		return p
	}
	d, q, kv, spec :=
		c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, architecture.Families[c.Architecture].Spec
	norm := func(name string, width int) *compute.Param {
		p := add(name, width)
		p.Offset = spec.NormOffset
		return p
	}
	normQ, normK := c.HeadDim, c.HeadDim
	if spec.QKNorm == architecture.WidthNorm {
		normQ, normK = q, kv
	}
	// What follows attention is its own norm where there is one, and else the next layer's.
	norm2 := "post_attention_layernorm.weight"
	if spec.PostNorm {
		norm2 = "pre_feedforward_layernorm.weight"
	}
	l.embed = add("model.embed_tokens.weight", c.Vocab, d)
	for i := range c.Layers {
		pre := fmt.Sprintf("model.layers.%d.", i)
		var b blockParams
		if spec.PreNorm {
			b.norm1 = norm(pre+"input_layernorm.weight", d)
		}
		b.wq = add(pre+"self_attn.q_proj.weight", q, d)
		b.wk = add(pre+"self_attn.k_proj.weight", kv, d)
		b.wv = add(pre+"self_attn.v_proj.weight", kv, d)
		if spec.QKVBias {
			b.bq = add(pre+"self_attn.q_proj.bias", q)
			b.bk = add(pre+"self_attn.k_proj.bias", kv)
			b.bv = add(pre+"self_attn.v_proj.bias", kv)
		}
		if spec.QKNorm != architecture.NoNorm {
			b.qn = norm(pre+"self_attn.q_norm.weight", normQ)
			b.kn = norm(pre+"self_attn.k_norm.weight", normK)
		}
		b.wo = add(pre+"self_attn.o_proj.weight", d, q)
		if spec.PostNorm {
			b.post1 = norm(pre+"post_attention_layernorm.weight", d)
		}
		if spec.PreNorm {
			b.norm2 = norm(pre+norm2, d)
		}
		b.gate = add(pre+"mlp.gate_proj.weight", c.FFN, d)
		b.up = add(pre+"mlp.up_proj.weight", c.FFN, d)
		b.down = add(pre+"mlp.down_proj.weight", d, c.FFN)
		if spec.PostNorm {
			b.post2 = norm(pre+"post_feedforward_layernorm.weight", d)
		}
		l.blocks = append(l.blocks, b)
	}
	l.norm = norm("model.norm.weight", d)
	switch {
	case k == Scorer:
		l.head = add(files.ScoreName, 1, d)
	case c.TieEmbeddings:
		l.head = l.embed
	default:
		l.head = add(files.HeadName, c.Vocab, d)
	}
	return l
}

// alloc makes a model whose weights are zero. On an error nothing stays allocated.
func alloc(be compute.Backend, c Config, o Options) (*Model, error) {
	if o.Kind != LM && o.Kind != Scorer {
		return nil, fmt.Errorf("model: kind %d: expected LM or Scorer", int(o.Kind))
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model{be: be, cfg: c, spec: c.spec(o.Kind), opt: o, layout: c.arrange(o.Kind)}
	m.ws = workspace.New(be)
	if err := checkQuant(be, m.params, o); err != nil {
		return nil, err
	}
	if err := m.take(weightNeeds(m.params, m.classOf)); err != nil {
		return nil, err
	}
	if o.Trainable {
		if err := m.takeGradients(); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// New makes a model with random weights: matrices normal with standard deviation c.InitRange,
// norms such that they multiply by one, biases zero, a Scorer's head by o.ScoreInit. The weights
// are a function of c and o.Seed alone.
func New(be Backend, c Config, o Options) (*Model, error) {
	if be == nil {
		return nil, errNoBackend
	}
	m, err := alloc(be, c, o)
	if err != nil {
		return nil, err
	}
	for i, p := range m.params {
		switch {
		case p.Name == files.ScoreName:
			m.draw(p, i, o.ScoreInit)
		case len(p.Shape) == 2:
			m.draw(p, i, c.initRange())
		case p.Name[len(p.Name)-len("bias"):] == "bias":
			m.fill(p, func(int) float32 { return 0 })
		default:
			m.fill(p, func(int) float32 { return 1 - p.Offset })
		}
	}
	if err := be.Sync(); err != nil {
		m.Close()
		return nil, fmt.Errorf("model: new weights: %w", err)
	}
	return m, nil
}

// draw fills p, the i-th parameter, with normal numbers.
func (m *Model) draw(p *compute.Param, i int, std float64) {
	if m.opt.Repeat {
		numbers := repeated()
		m.fill(p, func(j int) float32 { return float32(std) * numbers[j%files.Chunk] })
		return
	}
	m.fill(p, func(j int) float32 {
		if std == 0 {
			return 0
		}
		return float32(std * philox.Norm(m.opt.Seed, philox.Init, uint64(i), uint64(j), 0))
	})
}

// repeated are what Options.Repeat repeats.
var repeated = sync.OnceValue(func() []float32 {
	x := make([]float32, files.Chunk)
	for i := range x {
		x[i] = float32(philox.Norm(1, philox.Init, 0, uint64(i), 0))
	}
	return x
})

// fill sets p.W element by element; f is called from several goroutines.
func (m *Model) fill(p *compute.Param, f func(i int) float32) {
	if _, ok := m.be.(compute.Hollow); ok {
		m.refresh(p)
		return
	}
	buf := make([]float32, min(files.Chunk, p.Len()))
	for lo := 0; lo < p.Len(); lo += files.Chunk {
		b := buf[:min(files.Chunk, p.Len()-lo)]
		var wg sync.WaitGroup
		share := (len(b) + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
		for at := 0; at < len(b); at += share {
			wg.Go(func() {
				for i := at; i < min(at+share, len(b)); i++ {
					b[i] = f(lo + i)
				}
			})
		}
		wg.Wait()
		m.be.Upload(p.W.Slice(lo, lo+len(b)), b)
	}
	m.refresh(p)
}

// refresh is called after every write to p.W; the optimizer's step refreshes by itself.
func (m *Model) refresh(p *compute.Param) {
	m.writes++
	m.be.Refresh(p)
}

// written is a number that changes with every write to the weights.
func (m *Model) written() uint64 {
	if m.base != nil {
		return m.writes + m.base.written()
	}
	return m.writes
}

// Config is the architecture.
func (m *Model) Config() Config { return m.cfg }

// Params are the parameters in a fixed order: embedding, blocks, final norm, head.
// Tied weights appear once. Of a model made by Adapt they are the adapters and a Scorer's
// head.
func (m *Model) Params() []*Param { return m.params }

// Kind is the head on top of the backbone.
func (m *Model) Kind() Kind { return m.opt.Kind }

// errNarrowed is a mistake of a caller, who would save weights that lack bits.
var errNarrowed = errors.New("model: this rank has not all bits of the weights that other ranks have stepped: call Optimizer.WholeWeights on all ranks first")

// Share makes m use the memory of other for activations and caches, so that models which take
// turns have it once. Both must be on the same backend and called from the same goroutine. The
// results that a call of one left on the device are overwritten by the next call of the other.
// Either may be closed first.
func (m *Model) Share(other *Model) {
	if m.be != other.be {
		panic("model: Share: models on two backends")
	}
	if m.ws != other.ws {
		m.ws.Free()
		m.ws = other.ws
	}
}

// Close frees the model's memory; the model is of no use afterwards. A second
// Close does nothing.
func (m *Model) Close() error {
	err := m.be.Sync()
	m.ws.Free()
	m.freeAngles()
	m.leaveGradients()
	first := !m.closed
	m.closed = true
	if m.users == 0 {
		for _, t := range m.mem {
			m.be.Free(t)
		}
		for _, p := range m.params {
			p.Derived = nil
		}
		m.mem = nil
	}
	if m.base != nil && first {
		if m.base.users--; m.base.closed {
			err = errors.Join(err, m.base.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("model: close: %w", err)
	}
	return nil
}

// Vocab returns the size of the vocabulary: the highest id of a token, plus 1.
func (m *Model) Vocab() int {
	if m.opt.Kind != LM {
		return m.cfg.Vocab
	}
	return m.head.Vocab()
}
