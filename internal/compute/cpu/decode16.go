package cpu

// Products of a few rows in bfloat16 stream their weights as those in float32 do (see
// decode.go). Their left side is not packed into panels but only rounded, row by row: with
// one row, fifteen of a panel's sixteen lanes would be read for nothing.

const (
	// streamRows16 is up to how many rows a bfloat16 product streams its weights.
	streamRows16 = 128
	// streamBlock16 is streamBlock in pairs.
	streamBlock16 = 144
	// streamAhead16 is streamAhead in pairs.
	streamAhead16 = 2048
)

// rounded16 returns N rows of I elements rounded to pairs, lda apart.
func (b *Backend) rounded16(x []float32, N, I int) (a []uint32, lda int) {
	lda = b.k16.pairs(I)
	b.x, b.N, b.D = x, N, I
	b.rows16 = grow(b, &b.a16, N*lda)
	if N*I < packGrain {
		b.roundRows(0, N)
	} else {
		b.eachRow(N, I, (*Backend).roundRows)
	}
	return b.rows16, lda
}

func (b *Backend) roundRows(lo, hi int) {
	I, lda := b.D, b.k16.pairs(b.D)
	for n := lo; n < hi; n++ {
		roundRow(b.rows16[n*lda:(n+1)*lda], b.x[n*I:(n+1)*I], b.k16.round)
	}
}

// roundRow makes pairs of a row, zeros at the end; round takes blocks of 32 elements.
func roundRow(dst []uint32, src []float32, round func(dst []uint32, src []float32, blocks int)) {
	whole := len(src) / 32
	if whole > 0 {
		round(dst, src, whole)
	}
	clear(dst[16*whole:])
	for x := 32 * whole; x < len(src); x++ {
		dst[x/2] |= round16(src[x]) << (x % 2 * 16)
	}
}

// stream computes the column panels q0 to q1-1 of C, of A's rows.
func (p *product16) stream(b *Backend, w *worker, q0, q1 int) {
	k := b.k16
	if p.quant != nil {
		p.quantStream(k, w, q0, q1)
		return
	}
	pairs, blocks := k.pairs(p.k), (p.m+k.mr-1)/k.mr
	deep, next, step := max(1, pairs), streamAhead16, k.nr
	if blocks > 1 {
		// equal ones: short ones would be all stores
		parts := max(1, (pairs+streamBlock16-1)/streamBlock16)
		deep = max(k.unit, ((pairs+parts-1)/parts+k.unit-1)/k.unit*k.unit)
	}
	for q := q0; q < q1; q++ {
		cols := min(k.nr, p.n-q*k.nr)
		if whole := min(q1, p.n/k.nr) - q; blocks == 1 && whole > 1 {
			k.stream(p.m, p.a, p.strideA, p.b[q*p.strideB:], whole, p.c[q*k.nr:], p.ldc, pairs,
				asInt(p.acc), next, step)
			q += whole - 1
			continue
		}
		for x := 0; x == 0 || x < pairs; x += deep {
			n, acc := min(deep, pairs-x), asInt(p.acc || x > 0)
			panel := p.b[q*p.strideB+x*k.lanesB:]
			for t := range blocks {
				if blocks > 1 { // each tile fetches its share of the next block
					next, step = n*k.nr+n*k.nr*t/blocks, (k.nr+blocks-1)/blocks
				}
				i, end := p.m*t/blocks, p.m*(t+1)/blocks
				a, c := p.a[i*p.strideA+x:], p.c[i*p.ldc+q*k.nr:]
				if cols == k.nr {
					k.stream(end-i, a, p.strideA, panel, 1, c, p.ldc, n, acc, next, step)
					continue
				}
				w.partial(end-i, cols, k.nr, c, p.ldc, func(tile []float32) {
					k.stream(end-i, a, p.strideA, panel, 1, tile, k.nr, n, acc, next, step)
				})
			}
		}
	}
	if p.bias != nil {
		lo, hi := q0*k.nr, min(p.n, q1*k.nr)
		for i := range p.m {
			k.add(p.c[i*p.ldc+lo:i*p.ldc+hi], p.bias[lo:hi])
		}
	}
}
