// Package model is the transformer, written once over the operations of
// internal/compute: parameters, forward and backward pass, sampling with a
// cache of keys and values, AdamW, and the Hugging Face folder format.
//
// Its internal packages know no model: internal/architecture (the computation of each family),
// internal/rope (rotary positions), internal/files (folders and GGUF files, and their tensors),
// internal/sequence (sequences and packs of them), internal/workspace (device memory by purpose),
// internal/pages (counts of cache pages), internal/logits (sums and draws over a row) and
// internal/sampling (responses, many at a time).
//
// Start with model.go, then forward.go and pack.go.
//
//	model.go        parameters: layout, random weights, Close
//	config.go       the architecture, read from config.json and written; counts of FLOPs
//	rope.go         the rotary keys of config.json
//	names.go        names of the internal packages that callers need
//	forward.go      activations, the forward and the backward pass
//	pack.go         sequences end to end in one pass, prompts shared; LogProbs, Scores, gradients
//	all.go          the same for any number of sequences, in packs of bounded size
//	gradients.go    the block of memory for gradients
//	optimizer.go    AdamW and its saved state
//	schedule.go     learning rate by step
//	settings.go     the optimizer's settings
//	lora.go         LoRA adapters
//	adapter.go      their files in peft's format; merging
//	quant.go        frozen weights in 8 and 4 bits
//	sampler.go      passes over a cache of keys and values, for sampling
//	tokens.go       ids without a token
//	divergence.go   KL between two models, without gradient
//	kl.go           divergence to another model, with gradient
//	soft.go         soft labels with a tail, with gradient
//	ranks.go        several processes: sequences and prompts divided among them
//	shards.go       shards of a gradient, and their sum in a fixed order
//	zero.go         AdamW's state divided among ranks (ZeRO stage 1)
//	folder.go       loading and saving
//	layers.go       models of some of the layers
//	shapes.go       published shapes
//	memory.go       allocation of weights and moments
//	plan.go         estimate of a model's memory
//
// Legend, here and in names: N tokens of a pack, S sequences, T response tokens,
// R selected rows, P prompts, D hidden width, H query heads, K key/value heads,
// E head width, F feed-forward width, V vocabulary.
package model

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"gad/internal/compute"
	"gad/internal/philox"
	"gad/internal/safetensors"
	"gad/model/internal/architecture"
	"gad/model/internal/files"
)

// Options are the settings of Load, New and Adapt.
type Options struct {
	Kind      Kind
	Trainable bool // with gradients
	// keep only each block's input, and compute the block again in the backward pass
	Recompute bool
	Seed      uint64  // of random weights: all in New, a Scorer's new head in Load, A in Adapt
	ScoreInit float64 // standard deviation of a Scorer's new head; 0 is zeros
	// New repeats one chunk of normal numbers: for measurements of time and memory
	Repeat bool
	LoRA   LoRA   // adapters on frozen weights; without a rank all weights are the model's own
	Base   *Model // the frozen weights, if they are loaded already; see Load
	// storage of frozen matrices: Native (also ""), "q8_0" or "q4_0" (ggml's types)
	Quant string
	// Load keeps only these layers, in ascending order, and renumbers them; nil keeps all
	Layers []int
	// Turns is a model that learns in turn with this one: between a gradient of either and a
	// gradient of the other there is an optimizer step. The two share one block of memory for
	// gradients.
	Turns *Model
	// StatesOver divides AdamW's state of the model among these ranks; nil: every rank keeps all
	// of it. Split must get the same ranks.
	StatesOver *Ranks

	rewritten bool // frozen weights that Remerge writes
}

// Model is a transformer on a backend. Its methods are called from one goroutine.
type Model struct {
	network
	opt  Options
	base *Model // the frozen weights of a model made by Adapt, or nil
	// open models that Adapt has made from this one; they read its memory
	users  int
	closed bool
	dir    string                       // folder of the weights; "" of a model of some layers
	dtypes map[string]safetensors.DType // dtypes of the folder's tensors, by parameter name
	digest string                       // digest of the folder's weights; "" until Digest
	mem    []compute.Tensor             // the blocks of the parameters, for Close
	grads  *gradMemory                  // nil: frozen
	ranks  *Ranks                       // ranks with copies of the model; nil: this process alone
	shards int                          // shards of an optimizer step's gradient; 0 is 1
	// this rank lacks the bits of the weights that products do not read (Optimizer.WholeWeights)
	narrowed bool
	// by id: whether the tokenizer has a token for it; nil: for all (SetTokens)
	tokens []bool
	writes uint64 // number of writes to the weights

	host struct { // host buffers of the running pass, reused by the next
		logp, ent, d      []float32   // [R] of LogProbGrad; d: gradients, also ScoreGrad's
		logpFlat, entFlat []float32   // logp and ent, sequence by sequence
		logpST, entST     [][]float32 // rows of logpFlat and entFlat
		scoreN            []float32   // scores of ScoreGrad
	}

	unshared bool // for tests: packs compute every prompt anew

	asideTime time.Duration // AsideTime
}

// Watch sets a callback for progress bars: during LogProbs, Scores and their gradients f gets the
// number of tokens done since its last call; over a pack the numbers add up to its tokens. A device
// that queues its work may be behind. nil ends the calls.
func (m *Model) Watch(f func(tokens int)) { m.progress.watch = f }

// progress is the state of one pack's pass for Watch.
type progress struct {
	watch  func(tokens int) // callback of Watch; nil: none
	tokens int              // tokens of the pack
	parts  int              // parts of the pass: one for a block forward, two for a block backward
	done   int              // parts done
	sent   int              // tokens passed to the callback
}

// begin starts the pass of a pack, of so many parts.
func (p *progress) begin(tokens, parts int) {
	*p = progress{watch: p.watch, tokens: tokens, parts: parts}
}

// withGradient adds the parts of the backward pass to those of the forward pass.
func (p *progress) withGradient() { p.parts *= 3 }

// report counts parts of the running pass as done, and calls Watch's callback.
func (p *progress) report(parts int) {
	if p.watch == nil || p.parts == 0 {
		return
	}
	p.done += parts
	if now := p.tokens * min(p.done, p.parts) / p.parts; now > p.sent {
		p.watch(now - p.sent)
		p.sent = now
	}
}

// layout has a model's parameters by role, with the names of Hugging Face folders.
type layout struct {
	// the model's own parameters in a fixed order: embedding, blocks, final norm, head; with a base
	// only the adapters and a Scorer's head
	params []*compute.Param
	family architecture.Family
	embed  *compute.Param // [V,D]
	blocks []blockParams
	norm   *compute.Param // [D]
	head   *compute.Param // LM: [V,D], the embedding itself when tied; Scorer: [1,D]
}

// blockParams has one block's parameters, in the order of architecture.Spec. Absent biases and
// norms are nil.
type blockParams struct {
	norm1      *compute.Param // [D]
	wq, wk, wv *compute.Param // [H*E,D], [K*E,D], [K*E,D]
	bq, bk, bv *compute.Param
	qn, kn     *compute.Param // [E] each, or [H*E] and [K*E]
	wg         *compute.Param // [H*E,D] the gate of attention's output
	// in the place of wq to wg of a short convolution win and conv, of the gated delta rule (H value
	// heads of width F, W columns of queries, keys and values) conv to on
	win      *compute.Param // [3D,D]
	conv     *compute.Param // [D,J] or [W,J] taps, in a file [D,1,J]
	wqkv, wz *compute.Param // [W,D], [H*F,D]
	wa, wb   *compute.Param // [H,D] each: decay and strength of an update
	logA, dt *compute.Param // [H] each: the decay's rate and bias
	on       *compute.Param // [F]
	wo       *compute.Param // [D,H*E], [D,D] of a short convolution, or [D,H*F]
	post1    *compute.Param // [D]
	norm2    *compute.Param // [D]
	gate, up *compute.Param // [F,D]
	down     *compute.Param // [D,F]
	post2    *compute.Param // [D]
}

// arrange returns the parameters of a model of kind k, without memory.
func (c Config) arrange(k Kind) layout {
	l := layout{family: architecture.Families[c.Architecture]}
	add := func(name string, shape ...int) *compute.Param {
		p := &compute.Param{Name: name, Shape: shape, Rows: 1, Cols: shape[len(shape)-1],
			Decay: len(shape) > 1}
		switch len(shape) {
		case 2:
			p.Rows = shape[0]
		case 3: // no product reads a convolution's taps: they are kept as a vector
			p.Cols *= shape[0] * shape[1]
		}
		l.params = append(l.params, p)
		return p
	}
	d, q, kv, spec := c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, l.family.Spec
	norm := func(name string, width int) *compute.Param {
		p := add(name+".weight", width)
		p.Offset = spec.NormOffset
		return p
	}
	normQ, normK := c.HeadDim, c.HeadDim
	if spec.QKNorm == architecture.WidthNorm {
		normQ, normK = q, kv
	}
	// What follows attention is its own norm where there is one, and else the next layer's.
	norm2 := "post_attention_layernorm"
	if spec.PostNorm {
		norm2 = "pre_feedforward_layernorm"
	}
	l.embed = add("model.embed_tokens.weight", c.Vocab, d)
	for i := range c.Layers {
		pre := fmt.Sprintf("model.layers.%d.", i)
		matrix := func(module string, rows, cols int) *compute.Param {
			return add(pre+module+".weight", rows, cols)
		}
		var b blockParams
		if spec.PreNorm {
			b.norm1 = norm(pre+"input_layernorm", d)
		}
		switch x := c.Mixer; c.mixer(i) {
		case architecture.ShortConv:
			b.win = matrix("conv.in_proj", 3*d, d)
			b.conv = add(pre+"conv.conv.weight", d, 1, x.Taps)
			b.wo = matrix("conv.o_proj", d, d)
		case architecture.DeltaRule:
			b.wqkv = matrix("linear_attn.in_proj_qkv", x.mixed(), d)
			b.wz = matrix("linear_attn.in_proj_z", x.values(), d)
			b.wa = matrix("linear_attn.in_proj_a", x.ValueHeads, d)
			b.wb = matrix("linear_attn.in_proj_b", x.ValueHeads, d)
			b.conv = add(pre+"linear_attn.conv1d.weight", x.mixed(), 1, x.Taps)
			b.logA = add(pre+"linear_attn.A_log", x.ValueHeads)
			b.dt = add(pre+"linear_attn.dt_bias", x.ValueHeads)
			b.on = add(pre+"linear_attn.norm.weight", x.ValueDim)
			b.wo = matrix("linear_attn.out_proj", d, x.values())
		case architecture.Attention:
			b.wq = matrix("self_attn.q_proj", q, d)
			b.wk = matrix("self_attn.k_proj", kv, d)
			b.wv = matrix("self_attn.v_proj", kv, d)
			if spec.OutGate {
				b.wg = matrix("self_attn.q_gate", q, d)
			}
			if spec.QKVBias {
				b.bq = add(pre+"self_attn.q_proj.bias", q)
				b.bk = add(pre+"self_attn.k_proj.bias", kv)
				b.bv = add(pre+"self_attn.v_proj.bias", kv)
			}
			if spec.QKNorm != architecture.NoNorm {
				b.qn = norm(pre+"self_attn.q_norm", normQ)
				b.kn = norm(pre+"self_attn.k_norm", normK)
			}
			b.wo = matrix("self_attn.o_proj", d, q)
		}
		if spec.PostNorm {
			b.post1 = norm(pre+"post_attention_layernorm", d)
		}
		if spec.PreNorm {
			b.norm2 = norm(pre+norm2, d)
		}
		b.gate = matrix("mlp.gate_proj", c.FFN, d)
		b.up = matrix("mlp.up_proj", c.FFN, d)
		b.down = matrix("mlp.down_proj", d, c.FFN)
		if spec.PostNorm {
			b.post2 = norm(pre+"post_feedforward_layernorm", d)
		}
		l.blocks = append(l.blocks, b)
	}
	l.norm = norm("model.norm", d)
	switch {
	case k == Scorer:
		l.head = add(files.ScoreName, 1, d)
	case c.TieEmbeddings:
		l.head = l.embed
	default:
		l.head = add(files.HeadName, c.Vocab, d)
	}
	if k == LM {
		l.head.Cap = c.LogitCap
	}
	return l
}

// alloc returns a model whose weights are zero, with gradients if o.Trainable. On an error nothing
// stays allocated.
func alloc(be compute.Backend, c Config, o Options) (*Model, error) {
	if o.Kind != LM && o.Kind != Scorer {
		return nil, fmt.Errorf("model: kind %d: expected LM or Scorer", int(o.Kind))
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.CheckDevice(be); err != nil {
		return nil, err
	}
	m := &Model{network: newNetwork(be, c, c.arrange(o.Kind), o), opt: o}
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

// New returns a model with random weights: matrices normal with standard deviation c.InitRange,
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
		case len(p.Shape) > 1:
			m.draw(p, i, c.initRange())
		case strings.HasSuffix(p.Name, ".A_log"): // as transformers has it: A uniform within 16
			m.fill(p, func(j int) float32 {
				return float32(math.Log(0.01 + 15.99*philox.Float64(o.Seed, philox.Init, uint64(i),
					uint64(j), 0)))
			})
		case strings.HasSuffix(p.Name, ".bias"):
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

// draw fills p, the i-th parameter, with normal numbers of standard deviation std: a function of
// Options.Seed, i and the element or, with Options.Repeat, one repeated chunk.
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

// repeated returns the chunk of normal numbers that Options.Repeat repeats.
var repeated = sync.OnceValue(func() []float32 {
	x := make([]float32, files.Chunk)
	for i := range x {
		x[i] = float32(philox.Norm(1, philox.Init, 0, uint64(i), 0))
	}
	return x
})

// fill sets element i of p.W to f(i); f is called from several goroutines. A backend that only
// counts memory (compute.Hollow) gets no values.
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

// refresh tells the backend that p.W has changed, and counts the write. It must follow every write
// to p.W but the optimizer's step, which refreshes by itself.
func (m *Model) refresh(p *compute.Param) {
	m.writes++
	m.be.Refresh(p)
}

// writeCount returns a number that changes with every write to the model's or its base's weights.
func (m *Model) writeCount() uint64 {
	if m.base != nil {
		return m.writes + m.base.writeCount()
	}
	return m.writes
}

// Config returns the model's architecture.
func (m *Model) Config() Config { return m.cfg }

// Params returns the parameters in a fixed order: embedding, blocks, final norm, head. Tied weights
// appear once. A model made by Adapt returns only its adapters and a Scorer's head.
func (m *Model) Params() []*Param { return m.params }

// Kind returns the head on top of the backbone.
func (m *Model) Kind() Kind { return m.opt.Kind }

// errNarrowed refuses to save weights of which this rank lacks bits: a mistake of the caller.
var errNarrowed = errors.New("model: this rank has not all bits of the weights that other ranks have stepped: call Optimizer.WholeWeights on all ranks first")

// Share makes m use other's memory for activations and caches, so that models which take turns
// allocate it once. Both must be on one backend (else it panics) and be called from one goroutine.
// A call of either model overwrites the results that the other left on the device. Either may be
// closed first.
func (m *Model) Share(other *Model) {
	if m.be != other.be {
		panic("model: Share: models on two backends")
	}
	if m.ws != other.ws {
		m.ws.Free()
		m.ws = other.ws
	}
}

// Close frees the model's memory; no other method may follow, but a second Close does nothing. The
// weights of a base stay until the last model that Adapt made from it is closed.
func (m *Model) Close() error {
	if m.closed && m.mem == nil { // the backend may be closed by now
		return nil
	}
	err := m.be.Sync()
	m.ws.Free()
	m.freeAngles()
	m.grads.leave(m)
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

// Vocab returns the number of ids that count: for a language model the highest id with a token,
// plus 1 (SetTokens), for a Scorer all rows of the embedding.
func (m *Model) Vocab() int {
	if m.opt.Kind != LM {
		return m.cfg.Vocab
	}
	return m.head.Vocab()
}
