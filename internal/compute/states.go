package compute

import "fmt"

// States is memory for what a recurrent operation keeps of a sequence: a slot of Rows, [slots,
// width] and Wide, is the state behind one of its tokens. From and To have a slot for each segment
// of the operation's pack, or are nil: -1 for all. Zero makes a slot the state before a sequence's
// first token, and Copy of a slot's elements forks a sequence.
//
// A decoding step is a pack whose segments have one token each, with From and To equal; a part of a
// long prompt is a segment that begins where the part before it ended. A call of no tokens at all
// does nothing.
type States struct {
	Rows Tensor
	// the state before a root segment's first token; -1: no tokens. A branch begins where its
	// parent ended, and has -1
	From []int32
	// the slot that takes the state behind a segment's last token; -1: it is not kept. No slot is
	// given twice, or is From of another segment
	To []int32
}

// Source returns the slot of the state before segment n, and -1 for none.
func (st States) Source(n int) int {
	if st.From == nil {
		return -1
	}
	return int(st.From[n])
}

// Target returns the slot for the state behind segment n, and -1 for none.
func (st States) Target(n int) int {
	if st.To == nil {
		return -1
	}
	return int(st.To[n])
}

// Check panics, in the name of the operation op, unless st has states of width elements for p.
func (st States) Check(op string, p Pack, width int) {
	if st.From == nil && st.To == nil {
		return
	}
	slots := RowsOf(op, "states", st.Rows, width)
	taken := map[int32]int{} // by slot: the segment that writes it
	for n, to := range st.To {
		if first, twice := taken[to]; twice && to >= 0 {
			panic(fmt.Sprintf("compute: %s: segments %d and %d write the state of slot %d", op,
				first, n, to))
		}
		taken[to] = n
	}
	for _, list := range [][]int32{st.From, st.To} {
		if list != nil && len(list) != p.Segments() {
			panic(fmt.Sprintf("compute: %s: states of %d segments, and %d segments", op, len(list),
				p.Segments()))
		}
		for n, slot := range list {
			if slot < -1 || int(slot) >= slots {
				panic(fmt.Sprintf("compute: %s: segment %d: slot %d of %d", op, n, slot, slots))
			}
		}
	}
	for n, from := range st.From {
		if from < 0 {
			continue
		}
		if p.Branched(n) {
			panic(fmt.Sprintf("compute: %s: segment %d follows segment %d, and the state of slot %d",
				op, n, p.Parent[n], from))
		}
		if writer, ok := taken[from]; ok && writer != n {
			panic(fmt.Sprintf("compute: %s: segment %d reads the state of slot %d, which segment %d writes",
				op, n, from, writer))
		}
	}
}

// Back appends to list the rows that each token of p sees last, its own the last [N,J]. It also
// returns those that the next token behind each segment would see, without its own [S,J-1]. A
// number from 0 on is a row of the pack, -1 is none, and -2 less r is row r of the states, J-1 rows
// a slot.
func (st States) Back(list []int32, p Pack, J int) (back, behind []int32) {
	before := make([]int32, J-1) // J-1 rows before a segment, and then those of its tokens
	for n := range p.Segments() {
		for j := range before[:J-1] {
			switch from := st.Source(n); {
			case p.Branched(n):
				before[j] = behind[int(p.Parent[n])*(J-1)+j]
			case from >= 0:
				before[j] = -2 - int32(from*(J-1)+j)
			default:
				before[j] = -1
			}
		}
		before = before[:J-1]
		for m := p.Start[n]; m < p.Start[n+1]; m++ {
			before = append(before, m)
			list = append(list, before[len(before)-J:]...)
		}
		behind = append(behind, before[len(before)-(J-1):]...)
	}
	return list, behind
}

// DeltaShape is the heads of a gated delta rule.
type DeltaShape struct {
	K, H int // key heads, and value heads: a multiple of K
	E, F int // widths of a key and of a value
}

// DeltaEps is added to the squares of queries and keys before they are normalised.
const DeltaEps = 1e-6

// Width returns C, the elements of a row: queries, keys and values.
func (s DeltaShape) Width() int { return 2*s.K*s.E + s.H*s.F }
