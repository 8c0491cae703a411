package model

import (
	"gad/internal/compute"
	"gad/model/internal/pages"
	"gad/model/internal/workspace"
)

// PlanOptions are the uses of a model whose memory Config.Plan counts.
type PlanOptions struct {
	Kind      Kind
	Trainable bool // gradients and moments
	Recompute bool
	LoRA      LoRA   // only adapters are counted: the Plan of their base is a frozen model's
	Quant     string // Options.Quant, of a frozen model or of the base of LoRA
	Moments8  bool   // AdamWConfig.Moments8
	Offload   bool   // AdamWConfig.Offload
	Ranks     int    // number of ranks that divide AdamW's state (Options.StatesOver); 0 is 1
	// bytes of the gradients of Options.Turns, which share one block with this model's
	Turns   int64
	Merged  bool // frozen weights that Remerge writes (Model.Merged)
	Tokens  int  // tokens of the largest pack
	Forward int  // tokens of the largest pack of a forward pass alone, if that is larger
	// Generation, if Slots is above 0.
	Slots, N, Prompts    int // as in SampleOptions, and the number of prompts of a call
	PromptTokens, MaxNew int // most tokens of a prompt, and of a response
	Chunks               Chunks
}

// Plan is a model's memory by use, in bytes.
type Plan struct {
	// Gradients are the model's own: two models that learn in turn need only the larger ones.
	Weights, Gradients, Moments int64
	HostMoments                 int64 // moments in the host's memory, not in Total
	// the part of Weights that products read: of Masters the upper halves
	Computed    int64
	Copies      int64 // copies of weights in the form that the backend multiplies
	Activations int64 // the workspace, with the gradients of activations
	Cache       int64 // keys and values of generation
	Lent        int64 // keys and values in the memory of gradients, not in Cache
	Scratch     int64 // scratch memory of operations; models on one backend share it

	purposes map[workspace.Purpose]int64 // the summands of Activations
}

// SharedActivations returns the bytes of activations of models that share them (Model.Share).
func SharedActivations(plans ...Plan) (bytes int64) {
	most := map[workspace.Purpose]int64{}
	for _, p := range plans {
		for what, n := range p.purposes {
			bytes += max(0, n-most[what])
			most[what] = max(most[what], n)
		}
	}
	return bytes
}

// Total returns the sum of the memory on the device.
func (p Plan) Total() int64 {
	return p.Weights + p.Copies + p.Gradients + p.Moments + p.Activations + p.Cache + p.Scratch
}

// Plan returns an estimate of the memory that a model of this architecture needs on a backend.
func (c Config) Plan(f Footprint, o PlanOptions) Plan {
	var p Plan
	all := c.arrange(o.Kind)
	p.parameters(f, o, &all)
	// The workspace holds one block for each purpose, of the largest size requested.
	p.purposes = map[workspace.Purpose]int64{}
	count := func(what workspace.Purpose, class compute.Class, n int) compute.Tensor {
		p.purposes[what] = max(p.purposes[what], f.Block(f.Element(class)*int64(n)))
		return compute.Tensor{}
	}
	var a acts
	work := compute.Work{Hidden: c.Hidden, Widest: max(c.FFN, c.Hidden, c.Heads*c.HeadDim,
		c.mixerWidth()),
		Vocab: all.head.Rows, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Trainable: o.Trainable, Tokens: o.Tokens, Rows: o.Tokens, Taps: c.taps(), Delta: c.Mixer.shape()}
	if o.Tokens > 0 {
		k := keepNothing
		switch {
		case o.Trainable && o.Recompute:
			k = keepInputs
		case o.Trainable:
			k = keepBlocks
		}
		actLayout{&c, o.Tokens, f.Joined(), count}.acts(&a, k, o.LoRA.Rank)
	}
	if o.Forward > o.Tokens {
		actLayout{&c, o.Forward, f.Joined(), count}.acts(&a, keepNothing, o.LoRA.Rank)
		work.Tokens, work.Rows = o.Forward, o.Forward
	}
	if o.Slots > 0 {
		pt := pages.Default
		slots := min(o.Slots, o.Prompts*o.N)
		first := o.MaxNew
		prefill := max(min(pages.Prefill, o.Prompts*o.PromptTokens), o.PromptTokens)
		if o.Chunks.On() {
			first = min(o.MaxNew, o.Chunks.Size)
		}
		if first < o.MaxNew { // later chunks
			context := o.PromptTokens + o.Chunks.Carry
			prefill = max(prefill, min(pages.Prefill, slots*context), context)
		}
		actLayout{&c, prefill, f.Joined(), count}.acts(&a, keepNothing, o.LoRA.Rank)
		actLayout{&c, pages.DecodeRows(f.DecodeMultiple(), slots), f.Joined(), count}.acts(&a,
			keepNothing, o.LoRA.Rank)
		size := pages.Pool(slots, o.N, o.Prompts, pages.Count(o.PromptTokens, pt),
			pages.Own(o.PromptTokens, first, pt))
		if first < o.MaxNew {
			size = max(size, pages.OfChunks(slots, o.PromptTokens+first, pt))
		}
		size += pages.Spare(f.DecodeMultiple(), pt)
		var sizes []elements
		for i := range c.Layers {
			for _, width := range c.caches(i) {
				sizes = append(sizes, elements{compute.Narrow, size * pt * width})
			}
			for _, width := range c.states(f, i) {
				sizes = append(sizes, elements{compute.Wide, pages.States(slots) * width})
			}
		}
		room := 0
		if o.Trainable {
			room = int(max(p.Gradients, o.Turns) / f.Element(compute.Wide))
		}
		p.Cache = cacheBytes(f, room, sizes)
		p.Lent = cacheBytes(f, 0, sizes) - p.Cache
		work.Tokens, work.Slots, work.Positions =
			max(work.Tokens, prefill), slots, o.PromptTokens+first
	}
	if Quantised(o.Quant) && (o.LoRA.On() || !o.Trainable) {
		work.Quantised = c.widestProduct(f.Joined())
	}
	p.Activations = SharedActivations(p)
	p.Scratch = f.Scratch(work)
	return p
}

// widestProduct returns the elements of the largest matrix that a layer's product reads, of joined
// projections if joined.
func (c Config) widestProduct(joined bool) int {
	queries, values := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	if joined {
		return c.Hidden * max(2*c.FFN, queries+2*values, c.mixerWidth())
	}
	return c.Hidden * max(c.FFN, queries, c.mixerWidth())
}

// mixerWidth returns the outputs of the widest projection of a mixer beside attention, or its
// inputs; 0 without one.
func (c Config) mixerWidth() int {
	switch {
	case c.Mixer.Layers == nil:
		return 0
	case c.Stateful():
		return c.Mixer.mixed()
	}
	return 3 * c.Hidden
}

// taps returns the weights of a mixer's convolution.
func (c Config) taps() int {
	if c.Stateful() {
		return c.Mixer.mixed() * c.Mixer.Taps
	}
	return c.Hidden * c.Mixer.Taps
}

// parameters adds the memory of weights, gradients and moments of all, or of its adapters.
func (p *Plan) parameters(f Footprint, o PlanOptions, all *layout) {
	own := all.params
	if o.LoRA.On() {
		own, _ = all.newAdapters(o.LoRA)
		if o.Kind == Scorer {
			own = append(own, all.head)
		}
	}
	class := func(w *compute.Param) compute.Class {
		if o.LoRA.On() {
			return compute.Wide
		}
		return weightClass(w, Options{Trainable: o.Trainable, Quant: o.Quant, rewritten: o.Merged})
	}
	p.Weights = needBytes(f, weightNeeds(own, class))
	p.Computed, _ = weightBytes(f, own, class)
	for _, w := range own {
		if len(w.Shape) == 2 && w.Rows > 1 {
			p.Copies += f.Block(f.DerivedBytes(class(w), w == all.embed && w != all.head, w.Rows,
				w.Cols))
		}
	}
	if o.Trainable {
		p.Gradients = f.Element(compute.Wide) * int64(gradElements(f, own))
		moments := mostNeeds(f, own, max(o.Ranks, 1), o.Moments8)
		if o.Offload && f.Element(compute.Wide|compute.Host) == 0 {
			for _, x := range moments {
				p.HostMoments += f.Element(x.class) * int64(x.n)
			}
		} else {
			p.Moments = needBytes(f, moments)
		}
	}
}

// elements is a number of elements of a class.
type elements struct {
	class compute.Class
	n     int
}

// cacheBytes returns the bytes of caches that do not fit into a block of gradients of room elements
// (lender).
func cacheBytes(f Footprint, room int, sizes []elements) (bytes int64) {
	for _, x := range sizes {
		if used := lentElements(f, x.class, x.n); used <= room {
			room -= used
		} else {
			bytes += f.Block(f.Element(x.class) * int64(x.n))
		}
	}
	return bytes
}

// Together returns the number of answers, of so many, that a backend should sample at the same
// time: 64, or, where products of few rows take as long as products of many (a GPU), up to 512
// while fits reports that the memory suffices for so many slots.
func Together(f Footprint, answers int, fits func(slots int) bool) int {
	return pages.Together(f.DecodeMultiple(), answers, fits)
}
