package cpu

// A product of a few rows with a parameter, as decoding makes them, reads every
// weight from memory and does little with it. stream takes the packed weights in
// the order in which they lie and asks for the next part while it multiplies with
// this one: the processor's own look-ahead ends at each page of 4 KiB, a
// panel's every 32 steps, and a register tile waits at each.

const (
	// streamRows is up to how many rows a product streams its weights; with
	// more, reading them is little of the work.
	streamRows = 128
	// streamBlock is about how far rows that need several tiles go along k before
	// the next tile uses the first one's weights: 16 KiB of a panel, so that it and
	// the next fit the first-level cache.
	streamBlock = 144
	// streamAhead is how far ahead, in elements, a product of one tile fetches.
	streamAhead = 2048
	// nearRows is how many rows ahead a product with a matrix of rows fetches.
	nearRows = 16
)

// streams says whether products of n rows stream their weights.
func (b *Backend) streams(n int) bool {
	if b.k16 != nil {
		return n <= streamRows16 && b.k16.stream != nil
	}
	return n <= streamRows && b.k.stream != nil
}

// stream computes products for which streams is true, as one run of tasks.
func (b *Backend) stream(ps ...multiplication) {
	b.ps, b.across = append(b.ps[:0], ps...), 0
	work := 0
	for i, p := range ps {
		b.first[i] = b.across
		b.across += p.width(b)
		work += p.work()
	}
	b.tasks = min(b.across, 8*b.pool.workers)
	if work < grain {
		b.tasks = min(1, b.across)
	}
	b.run(b.tasks, (*Backend).streamTask)
}

// streamTask computes some of the panels, counted through all products.
func (b *Backend) streamTask(w *worker, t int) {
	lo, hi := b.across*t/b.tasks, b.across*(t+1)/b.tasks
	for i, p := range b.ps {
		if q0, q1 := max(0, lo-b.first[i]), min(p.width(b), hi-b.first[i]); q0 < q1 {
			p.stream(b, w, q0, q1)
		}
	}
}

// stream computes the column panels p0 to p1-1 of C.
func (p *product) stream(bk *Backend, w *worker, p0, p1 int) {
	k := bk.k
	if p.quant != nil {
		p.quantStream(k, w, p0, p1)
		return
	}
	b := p.b[:cap(p.b)]
	blocks := (p.m + k.mr - 1) / k.mr
	deep, next, step := p.k, streamAhead, k.nr
	if blocks > 1 {
		// equal ones: short ones would be all stores
		parts := max(1, (p.k+streamBlock-1)/streamBlock)
		deep = max(1, (p.k+parts-1)/parts)
	}
	for q := p0; q < p1; q++ {
		j := q * k.nr
		cols := min(k.nr, p.n-j)
		for k0 := 0; k0 == 0 || k0 < p.k; k0 += deep {
			kn, acc := min(deep, p.k-k0), asInt(p.acc || k0 > 0)
			bq := b[min(q*p.panel+k0*p.ldb, len(b)):]
			for t := range blocks {
				if blocks > 1 { // each tile fetches its share of the next block
					next, step = kn*k.nr+kn*k.nr*t/blocks, (k.nr+blocks-1)/blocks
				}
				i, end := p.m*t/blocks, p.m*(t+1)/blocks
				a := p.a[i*p.rs+k0*p.cs:]
				c := p.c[i*p.ldc+j:]
				if cols == k.nr {
					k.stream[end-i-1](a, p.rs, p.cs, bq, p.ldb, c, p.ldc, kn, acc, next, step)
					continue
				}
				for r := range end - i {
					copy(w.tile[r*k.nr:], c[r*p.ldc:r*p.ldc+cols])
				}
				k.stream[end-i-1](a, p.rs, p.cs, bq, p.ldb, w.tile, k.nr, kn, acc, next, step)
				for r := range end - i {
					copy(c[r*p.ldc:r*p.ldc+cols], w.tile[r*k.nr:])
				}
			}
		}
	}
	p.addBias(k, 0, p.m, p0, p1)
}

// near computes a product with a matrix of rows on the calling goroutine, and
// fetches rows that come next.
func (p *product) near(k *kernels, w *worker) {
	if k.stream == nil {
		p.all(k, w)
		return
	}
	b := p.b[:cap(p.b)]
	blocks := (p.m + k.mr - 1) / k.mr
	for j := 0; j < p.n; j += k.nr {
		cols := min(k.nr, p.n-j)
		for t := range blocks {
			i, end := p.m*t/blocks, p.m*(t+1)/blocks
			a, c := p.a[i*p.rs:], p.c[i*p.ldc+j:]
			if cols == k.nr {
				k.stream[end-i-1](a, p.rs, p.cs, b[j:], p.ldb, c, p.ldc, p.k, asInt(p.acc),
					nearRows*p.ldb, p.ldb)
				continue
			}
			for r := range end - i {
				copy(w.tile[r*k.nr:], c[r*p.ldc:r*p.ldc+cols])
			}
			k.stream[end-i-1](a, p.rs, p.cs, b[j:], p.ldb, w.tile, k.nr, p.k, asInt(p.acc),
				nearRows*p.ldb, p.ldb)
			for r := range end - i {
				copy(c[r*p.ldc:r*p.ldc+cols], w.tile[r*k.nr:])
			}
		}
	}
}
