package model

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"gad/internal/compute"
	"gad/internal/safetensors"
	"gad/model/internal/files"
)

// ZeRO stage 1 (arXiv 1910.02054, section 5.1): each rank keeps AdamW's moments of one part of
// the parameters and updates that part. A step
//
//	reduce-scatters the gradients: each rank gets the sums of its part;
//	adds up the squares of all parts, in the order of a single process;
//	updates the part, and all-gathers the weights of all parts.
//
// The two transfers move as many bytes as one all-reduce and reuse its buffer. Results are
// bit-identical to unsharded AdamW; that is why squares are exchanged by block and parts are cut
// at blocks (partUnit).
//
// Connected devices (compute.Connectable) all-reduce the gradients instead, as without ZeRO: a
// reduce-scatter of their library would add in another order, and change bits. From device to
// device they all-gather only the bits of the weights that products read. The remaining bits of a
// Master that another rank has updated are gathered before a save (WholeWeights).

// partUnit is the multiple of elements, from the start of a parameter, at which it may be cut: a
// multiple of compute.MomentBlock and of the blocks of compute.BlockSums.
const partUnit = 8192

// part is the elements lo to hi-1 of a parameter: the part that a rank's optimizer updates.
type part struct {
	lo, hi int
	step   *compute.Param // these elements and their moments; the parameter itself if it is not cut
}

// cut divides the flat order of the parameters' gradients among ranks, into parts whose moments
// take about the same memory. It returns the start of each part and the end of the last.
func cut(params []*compute.Param, ranks int, eight bool) []int {
	weight := func(p *compute.Param) int { // bytes of an element's moment, without scales
		if eight && coded(p) {
			return 1
		}
		return 4
	}
	all, before, at := 0, 0, 0 // weights; position in a block of gradients
	for _, p := range params {
		all += weight(p) * p.Len()
	}
	cuts := make([]int, 1, ranks+1)
	for _, p := range params {
		next := at + alignUp(p.Len())
		for len(cuts) < ranks {
			in := (len(cuts)*all/ranks - before) / weight(p)
			if in > p.Len() {
				break
			}
			if in = (in + partUnit/2) / partUnit * partUnit; in >= p.Len() {
				cuts = append(cuts, next)
			} else {
				cuts = append(cuts, at+in)
			}
		}
		before, at = before+weight(p)*p.Len(), next
	}
	return append(cuts, at)
}

// partsOf returns the parts of params between two positions of the flat order, without memory.
func partsOf(params []*compute.Param, from, to int) []part {
	list, at := make([]part, len(params)), 0
	for i, p := range params {
		n := p.Len()
		x := part{lo: min(max(from-at, 0), n), hi: min(max(to-at, 0), n), step: p}
		if x.hi-x.lo < n {
			m := x.hi - x.lo
			x.step = &compute.Param{Name: p.Name, Shape: []int{m}, Rows: 1, Cols: m, Decay: p.Decay}
		}
		list[i], at = x, at+alignUp(n)
	}
	return list
}

// partNeeds returns the needs of AdamW's moments of parts, as momentNeeds does; only coded
// parameters are in 8 bits.
func partNeeds(params []*compute.Param, parts []part, eight bool,
	host compute.Class) (needs []need) {
	for i, p := range params {
		if x := parts[i]; x.hi > x.lo {
			needs = append(needs, momentNeeds(x.step, eight && coded(p), host)...)
		}
	}
	return needs
}

// mostNeeds returns the partNeeds of the rank that needs the most memory.
func mostNeeds(f Footprint, params []*compute.Param, ranks int, eight bool) (most []need) {
	cuts := cut(params, ranks, eight)
	for r := range ranks {
		if needs := partNeeds(params, partsOf(params, cuts[r], cuts[r+1]), eight, 0); needBytes(f,
			needs) >= needBytes(f, most) {
			most = needs
		}
	}
	return most
}

// Sharded reports whether the state is divided among ranks.
func (o *Optimizer) Sharded() bool { return o.cuts != nil }

// join sums the gradients over the ranks, at least this rank's part of them, and returns the sum of
// squares of all gradients.
func (o *Optimizer) join() (squares float64, err error) {
	m := o.m
	if o.blocks == nil {
		if err := m.grads.joinRanks(m); err != nil {
			return 0, err
		}
		o.gs = o.gs[:0]
		for _, p := range m.params {
			o.gs = append(o.gs, p.G)
		}
		squares = m.be.SumSquares(o.gs)
		if err := m.be.Sync(); err != nil {
			return 0, fmt.Errorf("model: optimizer: gradient norm: %w", err)
		}
		return squares, nil
	}
	x, put := m.grads.onHost(extent(m.params))
	if err := m.be.Sync(); err != nil {
		return 0, fmt.Errorf("model: gradients: %w", err)
	}
	if err := o.ranks.SumParts("gradients", x, o.cuts); err != nil {
		return 0, err
	}
	put()
	m.grads.owner = m
	var mine []byte
	for i, p := range m.params {
		for _, s := range o.blocks.SquaresOfBlocks(p.G.Slice(o.parts[i].lo, o.parts[i].hi)) {
			mine = binary.LittleEndian.AppendUint64(mine, math.Float64bits(s))
		}
	}
	if err := m.be.Sync(); err != nil {
		return 0, fmt.Errorf("model: optimizer: gradient norm: %w", err)
	}
	all, err := o.ranks.Gather("squares of gradients", mine)
	if err != nil {
		return 0, err
	}
	for k := range all { // in the order of parts
		for b := all[o.ranks.Part(k)]; len(b) >= 8; b = b[8:] {
			squares += math.Float64frombits(binary.LittleEndian.Uint64(b))
		}
	}
	return squares, nil
}

// ownParams returns the parameters, or parts of them, that this rank updates.
func (o *Optimizer) ownParams() []*compute.Param {
	if !o.Sharded() {
		return o.m.params
	}
	o.own = o.own[:0]
	for i, p := range o.m.params {
		x := o.parts[i]
		if x.hi == x.lo {
			continue
		}
		if x.step != p { // the block of gradients may have moved
			x.step.W, x.step.G = p.W.Slice(x.lo, x.hi), p.G.Slice(x.lo, x.hi)
		}
		o.own = append(o.own, x.step)
	}
	return o.own
}

// weightBytes returns the bytes of the weights of params: used are read by products, rest are the
// remaining bits of Masters.
func weightBytes(f Footprint, params []*compute.Param,
	class func(*compute.Param) compute.Class) (used, rest int64) {
	for _, p := range params {
		all := compute.Bytes(f, class(p), p.Len())
		narrow := all
		if class(p) == compute.Master {
			narrow = min(all, compute.Bytes(f, compute.Narrow, p.Len()))
		}
		used, rest = used+narrow, rest+all-narrow
	}
	return used, rest
}

// classOf returns the class of the weights of one of m's own parameters.
func (m *Model) classOf(p *compute.Param) compute.Class {
	if m.base != nil {
		return compute.Wide
	}
	return weightClass(p, m.opt)
}

// runs returns, by rank, the weights that each rank updates. Adjacent parameters in one block of
// memory are one tensor, which includes the padding between them.
func (o *Optimizer) runs() [][]compute.Tensor {
	byRank := make([][]compute.Tensor, o.ranks.Size())
	for r := range byRank {
		k := o.ranks.Part(r)
		at := map[compute.Memory]int{}
		for i, x := range partsOf(o.m.params, o.cuts[k], o.cuts[k+1]) {
			if x.hi == x.lo {
				continue
			}
			t := o.m.params[i].W.Slice(x.lo, x.hi)
			j, ok := at[t.Mem()]
			if ok {
				if last := byRank[r][j]; t.Off()-last.Off() == alignUp(last.Len()) {
					byRank[r][j] = compute.View(t.Mem()).Slice(last.Off(), t.Off()+t.Len())
					continue
				}
			}
			at[t.Mem()] = len(byRank[r])
			byRank[r] = append(byRank[r], t)
		}
	}
	return byRank
}

// moveWeights gathers weights from device to device: the bits that products read or, if rest, the
// remaining bits.
func (o *Optimizer) moveWeights(d compute.Connectable, rest bool) error {
	m := o.m
	// a failure of this rank ends here, before the others wait for it
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: optimizer: weights: %w", err)
	}
	what := "weights"
	bytes, more := weightBytes(m.be, m.params, m.classOf)
	if rest {
		what, bytes = "the rest of the weights", more
	}
	return o.ranks.Device(what, int(bytes), sentBytes(o.ranks.Size(), bytes),
		func(keepOn func() error) error {
			return d.GatherWeights(o.runs(), rest, keepOn)
		})
}

// WholeWeights gathers the bits of the weights that this rank lacks because products do not read
// them. If the state is Sharded, all ranks must call it together, before they save.
func (o *Optimizer) WholeWeights() error {
	if !o.m.narrowed {
		return nil
	}
	if err := o.moveWeights(o.m.be.(compute.Connectable), true); err != nil {
		return err
	}
	o.m.narrowed = false
	return nil
}

// gatherWeights gathers the weights that other ranks have updated: from device to device, or
// through the memory of the gradients, which the step no longer needs.
func (o *Optimizer) gatherWeights() error {
	m := o.m
	if d, ok := m.be.(compute.Connectable); ok && d.Connected() {
		if err := o.moveWeights(d, false); err != nil {
			return err
		}
		_, rest := weightBytes(m.be, m.params, m.classOf)
		m.narrowed = rest > 0
		for i, p := range m.params {
			if s := o.parts[i]; s.hi-s.lo < p.Len() {
				m.be.Refresh(p)
			}
		}
		if err := m.be.Sync(); err != nil {
			return fmt.Errorf("model: optimizer: weights: %w", err)
		}
		return nil
	}
	x, _ := m.grads.onHost(extent(m.params))
	m.grads.owner = m
	at := 0
	for i, p := range m.params {
		s := o.parts[i]
		m.be.Download(x[at+s.lo:at+s.hi], p.W.Slice(s.lo, s.hi))
		at += alignUp(p.Len())
	}
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: optimizer: weights: %w", err)
	}
	if err := o.ranks.GatherParts("weights", x, o.cuts); err != nil {
		return err
	}
	at = 0
	for i, p := range m.params {
		s := o.parts[i]
		if w := x[at : at+p.Len()]; s.hi-s.lo < len(w) {
			m.be.Upload(p.W.Slice(0, s.lo), w[:s.lo])
			m.be.Upload(p.W.Slice(s.hi, len(w)), w[s.hi:])
			m.refresh(p)
		}
		at += alignUp(p.Len())
	}
	if err := m.be.Sync(); err != nil {
		return fmt.Errorf("model: optimizer: weights: %w", err)
	}
	return nil
}

// gatherSource returns a tensor of a Sharded state for Save, which gathers it from the ranks in
// pieces.
func (o *Optimizer) gatherSource(s stateTensor) safetensors.Source {
	return safetensors.Source{Name: s.name, DType: s.dtype, Shape: s.shape,
		Write: func(w io.Writer) error {
			n := s.len()
			for lo := 0; lo < n; lo += files.Chunk {
				hi := min(n, lo+files.Chunk)
				from, to := min(max(s.lo, lo), hi), min(max(s.lo+s.t.Len(), lo), hi)
				mine := make([]float32, to-from)
				if to > from {
					o.m.be.Download(mine, s.t.Slice(from-s.lo, to-s.lo))
					if err := o.m.be.Sync(); err != nil {
						return err
					}
				}
				all, err := o.ranks.Gather("optimizer states", appendFloats(nil, mine))
				if err != nil {
					return err
				}
				var piece []float32
				for k := range all {
					x, _, err := takeFloats(all[o.ranks.Part(k)])
					if err != nil {
						return err
					}
					piece = append(piece, x...)
				}
				if len(piece) != hi-lo {
					return fmt.Errorf(
						"%d elements of %d from all ranks: the ranks do not run the same program",
						len(piece), hi-lo)
				}
				if err := checkFinite(s.name, piece, lo); err != nil {
					return err
				}
				if err := safetensors.EncodeFloat32(w, s.dtype, piece); err != nil {
					return err
				}
			}
			return nil
		}}
}
