package model

import (
	"fmt"

	"gad/internal/compute"
	"gad/model/internal/architecture"
	"gad/model/internal/sampling"
	"gad/model/internal/workspace"
)

// NewEngine returns an engine of a language model. Its caches are in the model's memory: until
// Close no other engine, no Generate and no gradient may run on the model, or on a model that
// shares its memory.
func (m *Model) NewEngine(o EngineOptions) (*Engine, error) {
	if err := m.require(LM, false); err != nil {
		return nil, err
	}
	return sampling.New(m.sampled(), o)
}

// Generate samples o.N responses for each prompt; the result is [P][N]. The
// token at index t of sample s of prompt p is drawn with the uniform number
// philox.Float64(o.Seed, Rollout, o.Step, rows[p]<<16|s, t). So a response is a
// function of the weights, the prompt and these keys, and does not depend on
// o.Slots, o.PageTokens and the other prompts. progress, if not nil, is called
// with the number of tokens sampled since its last call.
//
// A prompt runs through the model once; its samples share the pages of its keys
// and values, and a sample that ends makes room for the next.
func (m *Model) Generate(prompts [][]int32, rows []uint64, o SampleOptions,
	progress func(tokens int)) ([][]Completion, error) {
	if err := m.require(LM, false); err != nil {
		return nil, err
	}
	return sampling.Generate(m.sampled(), prompts, rows, o, progress)
}

// sampled returns a language model as an engine needs it.
func (m *Model) sampled() sampling.Model {
	return sampling.Model{Network: &sampler{m: m}, Backend: m.be, Workspace: m.ws, Head: m.head,
		Tokens: m.tokens, MaxPosition: m.cfg.MaxPosition, Stateful: m.cfg.Stateful()}
}

// sampler runs a model's blocks with a cache of keys and values (sampling.Network).
type sampler struct {
	m      *Model
	grads  *lender        // lends the gradients' memory to the caches
	caches [][]cache      // by layer: of keys and values, or of a convolution's inputs
	states [][]cache      // by layer: of a convolution and of the gated delta rule
	p      *sampling.Pass // the pass of Decode
	op     func()         // what Decode repeats
	keys   map[int]string // its key by number of rows
}

// cache is memory for the positions of sequences [positions, width], or for their states
// [sequences, width].
type cache struct {
	compute.Tensor
	width int
}

// Open makes the rotary tables, the caches of n positions and the states.
func (s *sampler) Open(n, longest, states int) error {
	m := s.m
	if err := m.angles(longest); err != nil {
		return err
	}
	s.grads, s.keys = m.grads.lend(), map[int]string{}
	s.op = func() { m.forward(&m.acts, s.p.IDs, s.p.Pos, s.attendDecode) }
	for i := range m.cfg.Layers {
		memory := func(what []string, c compute.Class, n int, widths []int) (of []cache) {
			for k, width := range widths {
				t, ok := s.grads.get(c, n*width)
				if !ok {
					t = m.ws.In(workspace.Purpose{Layer: i, What: what[k]}, c, n*width)
				}
				of = append(of, cache{t, width})
			}
			return of
		}
		what := []string{"key cache [slots,K,E]", "value cache [slots,K,E]"}
		if m.cfg.mixer(i) == architecture.ShortConv {
			what = []string{"convolution's cache [slots,D]"}
		}
		s.caches = append(s.caches, memory(what, compute.Narrow, n, m.cfg.caches(i)))
		s.states = append(s.states,
			memory([]string{"states of the convolution", "states of the delta rule"}, compute.Wide,
				states, m.cfg.states(m.be, i)))
	}
	return nil
}

// Close takes the gradients' memory back, and frees the workspace and the rotary tables on demand.
func (s *sampler) Close(free bool) {
	s.grads.back()
	if free {
		s.m.ws.Free()
		s.m.freeAngles()
	}
}

// Writes returns a number that changes with every write to the weights.
func (s *sampler) Writes() uint64 { return s.m.writeCount() }

// Copy copies the keys and values of n positions.
func (s *sampler) Copy(to, from, n int) { s.copy(s.caches, to, from, n) }

// Fork copies the states of a sequence.
func (s *sampler) Fork(to, from int) { s.copy(s.states, to, from, 1) }

// copy copies n rows of the memory of all layers.
func (s *sampler) copy(of [][]cache, to, from, n int) {
	for _, layer := range of {
		for _, cache := range layer {
			if w := cache.width; w > 0 {
				s.m.be.Copy(cache.Slice(to*w, (to+n)*w), cache.Slice(from*w, (from+n)*w))
			}
		}
	}
}

// Reserve takes the activations of a pass of n rows.
func (s *sampler) Reserve(n int) { s.m.activations(n, keepNothing) }

// Prefill runs a pass of prompts and of rows that attend to their pages.
func (s *sampler) Prefill(prompts []Seq, p *sampling.Pass) (hND compute.Tensor, err error) {
	m, n := s.m, len(p.IDs)
	packed, err := m.pack(prompts, lastRows)
	if err != nil {
		return hND, err
	}
	whole := len(packed.ids)
	a := m.activations(n, keepNothing)
	if err := m.ws.Take(); err != nil {
		return hND, err
	}
	m.forward(a, p.IDs, p.Pos, func(i int, b *block, posN []int32) {
		if m.spec.Layers[i].Mixer == architecture.DeltaRule {
			s.recur(i, b, p.Runs)
			return
		}
		if whole > 0 {
			first := b.slice(n, 0, whole)
			m.attendPack(i, &first, posN[:whole])
			s.write(i, &first, p.Slots[:whole])
		}
		if whole < n {
			rest := b.slice(n, whole, n)
			s.attend(i, &rest, posN[whole:], p.Slots[whole:], p.Pages)
		}
	})
	return a.hND, nil
}

// Decode runs a pass of rows that attend to their pages.
func (s *sampler) Decode(p *sampling.Pass) (hND compute.Tensor, err error) {
	m, n := s.m, len(p.IDs)
	a := m.activations(n, keepNothing)
	if err := m.ws.Take(); err != nil {
		return hND, err
	}
	if s.keys[n] == "" {
		s.keys[n] = fmt.Sprintf("%p: decode %d", m, n)
	}
	s.p = p
	m.be.Repeat(s.keys[n], compute.Indices{IDs: p.IDs, Pos: p.Pos, Slots: p.Slots, Pages: p.Pages},
		s.op)
	return a.hND, nil
}

// attendDecode computes the attention of Decode.
func (s *sampler) attendDecode(i int, b *block, posN []int32) {
	if s.m.spec.Layers[i].Mixer == architecture.DeltaRule {
		s.recur(i, b, s.p.Runs)
		return
	}
	s.attend(i, b, posN, s.p.Slots, s.p.Pages)
}

// recur computes the gated delta rule of layer i over a pass's runs, from the states before them to
// those behind.
func (s *sampler) recur(i int, b *block, r sampling.Runs) {
	of := s.states[i]
	conv := compute.States{Rows: of[0].Tensor, From: r.From, To: r.To}
	rule := compute.States{Rows: of[1].Tensor, From: r.From, To: r.To}
	s.m.recur(i, b, compute.Pack{Start: r.Start}, conv, rule)
}

// write writes the keys and values of b, or a convolution's inputs, to the caches of layer i, row n
// to slots[n].
func (s *sampler) write(i int, b *block, slots []int32) {
	of := s.caches[i]
	if s.m.cfg.mixer(i) == architecture.ShortConv {
		s.m.be.CacheWrite(of[0].Tensor, b.uND, of[0].width, slots)
		return
	}
	s.m.be.CacheWrite(of[0].Tensor, b.kNKE, of[0].width, slots)
	s.m.be.CacheWrite(of[1].Tensor, b.vNKE, of[1].width, slots)
}

// attend writes the rows' keys and values to the caches of layer i; then each row attends to its
// positions in pages.
func (s *sampler) attend(i int, b *block, posN, slots []int32, pages compute.Pages) {
	m, l, of := s.m, s.m.spec.Layers[i], s.caches[i]
	if l.Mixer == architecture.ShortConv {
		m.be.GatedConvDecode(b.convND, b.gateN3D, of[0].Tensor, m.blocks[i].conv, slots, pages)
		return
	}
	shape := m.attnShape(l)
	if l.Rope < 0 || l.Query != l.Rope {
		m.rotate(l, b.qNHE, b.kNKE, b.qkNHE, posN, false)
		s.write(i, b, slots)
	} else {
		m.be.RopeCache(b.qNHE, b.kNKE, b.vNKE, of[0].Tensor, of[1].Tensor, shape, posN,
			m.table(l.Rope), slots)
	}
	m.be.AttentionDecode(b.oNHE, b.qNHE, of[0].Tensor, of[1].Tensor, shape, pages)
}

// slice returns rows lo to hi-1, of n, of the tensors that attention reads and writes.
func (b *block) slice(n, lo, hi int) block {
	part := func(t compute.Tensor) compute.Tensor {
		if t.Absent() {
			return t
		}
		w := t.Len() / n
		return t.Slice(lo*w, hi*w)
	}
	return block{qNHE: part(b.qNHE), kNKE: part(b.kNKE), qkNHE: part(b.qkNHE), vNKE: part(b.vNKE),
		oNHE: part(b.oNHE), lseNH: part(b.lseNH),
		gateN3D: part(b.gateN3D), convND: part(b.convND), uND: part(b.uND)}
}
