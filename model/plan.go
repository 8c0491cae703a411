package model

import "gad/internal/compute"

// PlanOptions say what a model will do, for Config.Plan.
type PlanOptions struct {
	Kind      Kind
	Trainable bool // gradients and moments
	Recompute bool
	Tokens    int // of the largest pack
	// Generation; Slots 0 is none.
	Slots, N, Prompts    int // as in SampleOptions, and the number of prompts of a call
	PromptTokens, MaxNew int
	PageTokens           int // 0 is 16
}

// Plan is memory in bytes, at 4 bytes an element: what this package asks a
// backend for. What a backend keeps beside the weights comes on top.
type Plan struct {
	Weights, Gradients, Moments int64
	Activations                 int64 // the workspace, gradients of activations included
	Cache                       int64 // keys and values of generation
}

// Total is the sum.
func (p Plan) Total() int64 {
	return p.Weights + p.Gradients + p.Moments + p.Activations + p.Cache
}

// Plan estimates the memory that a model of this architecture takes.
func (c Config) Plan(o PlanOptions) Plan {
	var p Plan
	p.Weights = 4 * c.ParamCount(o.Kind)
	if o.Trainable {
		p.Gradients, p.Moments = p.Weights, 2*p.Weights
	}
	// The workspace keeps the most that was asked for under each name.
	sizes := map[string]int{}
	count := func(what string, n int) compute.Tensor {
		sizes[what] = max(sizes[what], n)
		return compute.Tensor{}
	}
	if o.Tokens > 0 {
		k := keepNothing
		switch {
		case o.Trainable && o.Recompute:
			k = keepInputs
		case o.Trainable:
			k = keepBlocks
		}
		c.acts(o.Tokens, k, count)
	}
	if o.Slots > 0 {
		pt := o.PageTokens
		if pt == 0 {
			pt = defaultPage
		}
		prefill := max(min(prefillTokens, o.Prompts*o.PromptTokens), o.PromptTokens)
		c.acts(prefill, keepNothing, count)
		c.acts(o.Slots, keepNothing, count)
		pages := poolPages(min(o.Slots, o.Prompts*o.N), o.N, o.Prompts, pagesFor(o.PromptTokens, pt), ownPages(o.PromptTokens, o.MaxNew, pt))
		p.Cache = 4 * 2 * int64(c.Layers) * int64(pages) * int64(pt) * int64(c.KVHeads*c.HeadDim)
	}
	for _, n := range sizes {
		p.Activations += 4 * int64(n)
	}
	return p
}
