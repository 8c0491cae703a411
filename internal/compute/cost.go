package compute

// Cost is the minimum that an operation takes: floating-point operations, two for each
// multiply-add, and bytes of memory, each operand and result counted once.
type Cost struct {
	FLOPs, Bytes float64
	F32          bool // the multiply-adds are in float32 whatever class products take
}

// Plus returns the sum of two costs.
func (c Cost) Plus(
	d Cost) Cost {
	return Cost{c.FLOPs + d.FLOPs, c.Bytes + d.Bytes, c.F32 || d.F32}
}

// Elements has the bytes of an element: of Narrow and of Wide memory, and of a weight matrix as
// products read it. Its methods are the table of each operation's cost. apps/bench relates measured
// times to it, and package cost takes from it the figures that the engine's commands share.
type Elements struct{ Narrow, Wide, Weight float64 }

// Linear returns the cost of Linear with N rows, I inputs and O outputs. The gradient by the input
// costs the same.
func (e Elements) Linear(N, I, O float64) Cost {
	return Cost{FLOPs: 2 * N * I * O, Bytes: e.Narrow*N*(I+O) + e.Weight*I*O}
}

// WeightGrad returns the cost of the gradient of Linear by the weight, which is read and written.
func (e Elements) WeightGrad(N, I, O float64) Cost {
	return Cost{FLOPs: 2 * N * I * O, Bytes: e.Narrow*N*(I+O) + 2*e.Wide*I*O}
}

// LinearGrad returns the cost of LinearGrad with the same arguments.
func (e Elements) LinearGrad(dxNI Tensor, w *Param, dyNO, xNI Tensor) (c Cost) {
	N, I, O := float64(dyNO.Len()/w.Rows), float64(w.Cols), float64(w.Rows)
	if !dxNI.Absent() {
		c = c.Plus(e.Linear(N, I, O))
	}
	if !w.G.Absent() && !xNI.Absent() {
		c = c.Plus(e.WeightGrad(N, I, O))
	}
	return c
}

// Attention returns the cost of two products for each pair of a query and a key that it sees.
func (e Elements) Attention(a AttnShape, p Pack) Cost {
	N := 0.0
	if S := p.Segments(); S > 0 {
		N = float64(p.Start[S])
	}
	return Cost{FLOPs: 4 * p.Pairs(a.Window) * float64(a.H*a.E),
		Bytes: e.Narrow * 2 * N * float64((a.H+a.K)*a.E), F32: true}
}

// AttentionGrad returns the cost of five products for each pair, and twice the tensors.
func (e Elements) AttentionGrad(a AttnShape, p Pack) Cost {
	c := e.Attention(a, p)
	return Cost{FLOPs: 2.5 * c.FLOPs, Bytes: 2 * c.Bytes, F32: true}
}

// AttentionDecode returns the cost of reading the cached positions once for each row.
func (e Elements) AttentionDecode(a AttnShape, pages Pages) Cost {
	var seen float64 // positions
	for _, n := range pages.Len {
		seen += float64(int(n) - a.First(int(n)))
	}
	return Cost{FLOPs: 4 * seen * float64(a.H*a.E), Bytes: e.Narrow * 2 * seen * float64(a.K*a.E),
		F32: true}
}

// Head returns the cost of LogProb or Sample for R rows: one product with the head.
func (e Elements) Head(R, D, V float64) Cost {
	return Cost{FLOPs: 2 * R * D * V, Bytes: e.Narrow*R*D + e.Weight*V*D}
}

// HeadGrad returns the cost of LogProbGrad: three products.
func (e Elements) HeadGrad(R, D, V float64) Cost {
	return Cost{FLOPs: 6 * R * D * V, Bytes: e.Narrow*2*R*D + e.Weight*V*D + 2*e.Wide*V*D}
}

// Operations that only move memory, of n elements.

// Zero writes n.
func (e Elements) Zero(n int) Cost { return Cost{Bytes: e.Wide * float64(n)} }

// Copy reads and writes n, and so does Scale.
func (e Elements) Copy(n int) Cost { return Cost{Bytes: 2 * e.Wide * float64(n)} }

// Add reads two and writes one.
func (e Elements) Add(n int) Cost { return Cost{Bytes: 3 * e.Wide * float64(n)} }

// Embed reads n of the table and writes them.
func (e Elements) Embed(n int) Cost { return Cost{Bytes: (e.Narrow + e.Wide) * float64(n)} }

// EmbedGrad reads n, and reads and writes as many of the table's gradient.
func (e Elements) EmbedGrad(n int) Cost { return Cost{Bytes: 3 * e.Wide * float64(n)} }

// RMSNorm reads x of the residual stream and writes y.
func (e Elements) RMSNorm(n int) Cost { return Cost{Bytes: (e.Wide + e.Narrow) * float64(n)} }

// RMSNormGrad reads dy and x and writes dx.
func (e Elements) RMSNormGrad(n int) Cost { return Cost{Bytes: (2*e.Wide + e.Narrow) * float64(n)} }

// Rope reads and writes n, and so does CacheWrite; RopeCache is Rope of q and k with
// CacheWrite of v.
func (e Elements) Rope(n int) Cost { return Cost{Bytes: 2 * e.Narrow * float64(n)} }

// Gated reads two and writes one.
func (e Elements) Gated(n int) Cost { return Cost{Bytes: 3 * e.Narrow * float64(n)} }

// GatedGrad reads three and writes two, and y again.
func (e Elements) GatedGrad(n int) Cost { return Cost{Bytes: 6 * e.Narrow * float64(n)} }

// GatedConv reads b, c and x of n elements each, and writes u and y.
func (e Elements) GatedConv(n int) Cost { return Cost{Bytes: 5 * e.Narrow * float64(n)} }

// GatedConvGrad reads b, c, x and dy, and writes u, db, dc and dx.
func (e Elements) GatedConvGrad(n int) Cost { return Cost{Bytes: 8 * e.Narrow * float64(n)} }

// GatedConvDecode reads b, c, x and J cached rows of each, and writes one and y.
func (e Elements) GatedConvDecode(n, J int) Cost {
	return Cost{Bytes: float64(4+J) * e.Narrow * float64(n)}
}

// SiLUConv reads x and writes y.
func (e Elements) SiLUConv(n int) Cost { return Cost{Bytes: 2 * e.Narrow * float64(n)} }

// SiLUConvGrad reads x and dy, and writes dx.
func (e Elements) SiLUConvGrad(n int) Cost { return Cost{Bytes: 3 * e.Narrow * float64(n)} }

// GatedDelta returns the cost of three products with the state for each token and value head (k̂ᵀS,
// k̂⊗d and q̂ᵀS), of the rows, and of the states that are read and written. Chunks, which make
// matrix products of them, take some more.
func (e Elements) GatedDelta(N int, s DeltaShape, st States) Cost {
	state := float64(s.H * s.E * s.F)
	n, kept := float64(N), 0.0
	for _, list := range [][]int32{st.From, st.To} {
		for _, slot := range list {
			if slot >= 0 {
				kept++
			}
		}
	}
	return Cost{FLOPs: 6 * n * state,
		Bytes: e.Narrow*n*float64(s.Width()+s.H*(s.F+2)) + e.Wide*kept*state, F32: true}
}

// GatedDeltaGrad returns the cost of the states again (two products) and of six products: dq̂, dd,
// two of dk̂ and two of dS; twice the tensors.
func (e Elements) GatedDeltaGrad(N int, s DeltaShape) Cost {
	c := e.GatedDelta(N, s, States{})
	return Cost{FLOPs: c.FLOPs / 3 * 8, Bytes: 2 * c.Bytes, F32: true}
}

// Score reads R rows of h.
func (e Elements) Score(R, D int) Cost { return Cost{Bytes: e.Narrow * float64(R*D)} }

// ScoreGrad reads R rows of h, and reads and writes those of dh.
func (e Elements) ScoreGrad(R, D int) Cost { return Cost{Bytes: 3 * e.Narrow * float64(R*D)} }

// SumSquares reads n.
func (e Elements) SumSquares(n int) Cost { return Cost{Bytes: e.Wide * float64(n)} }

// AdamW, of float32 moments, reads weight, gradient and moments, and writes all but the
// gradient, and the copy of a matrix that products read.
func (e Elements) AdamW(p *Param) Cost {
	c := Cost{Bytes: 7 * e.Wide * float64(p.Len())}
	if p.Rows > 1 {
		c.Bytes += e.Weight * float64(p.Len())
	}
	return c
}
