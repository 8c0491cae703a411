package computetest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"gad/internal/compute"
)

// sizes are the tests at the sizes of released models of 0.1 to 32B: vocabularies up to 262,144,
// hidden sizes up to 8,192, sequences up to 32k, hundreds of tensors. A bug that begins behind
// a border (of tiles, registers, splits, chunks) shows at none of the other tests' sizes. A
// case has one large extent and small others, so that an emulated device takes seconds.
// The table in doc/tests.tsv says which border each case is for.
var sizes = map[string]func(s *suite){
	"sizes/Transfer": (*suite).transferSizes, "sizes/Frozen": (*suite).frozenSizes,
	"sizes/Embed": (*suite).embedSizes, "sizes/RMSNorm": (*suite).normSizes,
	"sizes/Linear": (*suite).linearSizes, "sizes/Rope": (*suite).ropeSizes,
	"sizes/Attention": (*suite).attentionSizes, "sizes/AttentionDecode": (*suite).decodeSizes,
	"sizes/Head": (*suite).headSizes, "sizes/Sample": (*suite).sampleSizes,
	"sizes/Score":      (*suite).scoreSizes,
	"sizes/GatedDelta": (*suite).deltaSizes,
	"sizes/SumSquares": (*suite).sumSizes, "sizes/AdamW": (*suite).stepSizes,
}

// large is a sample with few offsets.
func (s *suite) large(format string, args ...any) *sample {
	c := s.sample(format, args...)
	c.few = true
	return c
}

// transferSizes: more than passes to or from a device in one part, of each class.
func (s *suite) transferSizes() {
	const n = 1<<20 + 5
	x := s.normal(n)
	for _, class := range []compute.Class{compute.Wide, compute.Narrow, compute.Master,
		compute.Frozen, compute.Code} {
		want := slices.Clone(x)
		switch class {
		case compute.Code:
			for i := range want {
				want[i] = float32(i * 7 % 256)
			}
		case compute.Narrow, compute.Frozen:
			s.round(want)
		}
		t := s.put(class, want)
		s.equal(fmt.Sprintf("%v: Upload and Download", class), download(s.t, s.dev, t), want)
		s.dev.Free(t)
	}
}

// frozenSizes: a frozen head of more bytes than are unpacked at a time for a gradient gives
// the bits of a Narrow one.
func (s *suite) frozenSizes() {
	const V, D, R = 151936, 16, 3
	if s.Slow { // a GPU keeps both in the same way
		return
	}
	host, x, dy, dlogp := s.normal(V*D), s.normal(R*D), s.normal(R*V), s.normal(R)
	var results [2][][]float32
	for i, class := range []compute.Class{compute.Narrow, compute.Frozen} {
		w := s.newOfClass(class, host, V, D)
		h, dh, y, dx :=
			s.narrow(x), s.narrow(x), s.empty(compute.Narrow, R*V), s.empty(compute.Narrow, R*D)
		s.dev.Linear(y, h, w, nil, false)
		s.dev.LinearGrad(dx, w, nil, s.narrow(dy), compute.Tensor{}, false)
		out := compute.HeadOut{LogpR: s.empty(compute.Wide, R), EntR: s.empty(compute.Wide, R),
			LseR: s.empty(compute.Wide, R)}
		which, targets := []int32{0, 1, 2}, []int32{V - 1, 7, 1 << 16}
		s.dev.LogProb(out, h, w, which, targets, 0.8)
		s.dev.LogProbGrad(dh, w, out, s.wide(dlogp), compute.Tensor{}, h, which, targets, 0.8)
		rows := s.empty(compute.Wide, R*D)
		s.dev.Embed(rows, w, targets)
		for _, t := range []compute.Tensor{y, dx, out.LogpR, out.EntR, out.LseR, dh, rows} {
			results[i] = append(results[i], download(s.t, s.dev, t))
		}
	}
	for i, name := range []string{"Linear", "LinearGrad", "log-probabilities", "entropies",
		"logit sums", "LogProbGrad", "Embed"} {
		s.equal("frozen and narrow: "+name, results[1][i], results[0][i])
	}
}

func (s *suite) embedSizes() {
	for _, shape := range [][3]int{{3, 8200, 5}, {40, 4, 262144}} {
		N, D, V := shape[0], shape[1], shape[2]
		c := s.large("N=%d D=%d V=%d", N, D, V)
		table, y, dy, ids :=
			c.param("w", V, D, true), c.unset("y", N*D), c.random("dy", N*D), s.draws(N, V)
		ids[0], ids[N-1] = int32(V-1), int32(V-1)
		c.run(func(s *side) {
			s.b.Embed(s.t(y), s.p(table), ids)
			s.b.EmbedGrad(s.p(table), s.t(dy), ids)
		})
	}
}

// normSizes: 256 and 257 are a warp's last row and a block's first, 576 and 896 are no whole warps
// of eights; above 4,096 the gradient's registers, above 8,192 the forward pass's do not hold a
// row; above 2,048 columns and 64 rows the weights' gradient is of several blocks both ways.
func (s *suite) normSizes() {
	for _, shape := range [][2]int{{3, 256}, {3, 257}, {3, 576}, {3, 896}, {3, 5120}, {3, 8200},
		{130, 2056}} {
		N, D := shape[0], shape[1]
		for _, class := range []compute.Class{compute.Wide, compute.Narrow} {
			acc := class == compute.Wide
			if D == 2056 && !acc {
				continue
			}
			c := s.large("%v N=%d D=%d", class, N, D)
			c.floor = max(1, math.Sqrt(float64(N))/2)
			x, w := c.random("x", N*D).in(class), c.param("w", 1, D, true)
			w.offset = float32(D % 2)
			w.g.exact()
			dy, y, rstd :=
				c.random("dy", N*D).narrow(), c.unset("y", N*D).narrow(), c.unset("rstd", N).exact()
			dx := c.output("dx", N*D, acc).in(class)
			if class == compute.Wide {
				dx.exact()
			}
			c.run(func(s *side) {
				s.b.RMSNorm(s.t(y), s.t(rstd), s.t(x), s.p(w), 1e-6)
				s.b.RMSNormGrad(s.t(dx), s.p(w), s.t(dy), s.t(x), s.t(rstd), acc)
			})
		}
	}
}

// linearSizes: as many inputs as an MLP's down projection of 32B has; more tokens than a
// weight's gradient takes up at a time; more rows and columns than a block of a bias's
// gradient adds.
func (s *suite) linearSizes() {
	for _, shape := range [][3]int{{3, 27648, 8}, {2100, 1104, 8}, {130, 8, 2056}} {
		N, I, O := shape[0], shape[1], shape[2]
		c := s.large("N=%d I=%d O=%d", N, I, O)
		c.floor = math.Sqrt(float64(max(N, I))) / 4
		x, w, b := c.random("x", N*I).narrow(), c.param("w", O, I, true), c.param("b", 1, O, true)
		y, dy, dx :=
			c.unset("y", N*O).narrow(), c.random("dy", N*O).narrow(), c.unset("dx", N*I).narrow()
		w.g.exact()
		b.g.exact()
		c.run(func(s *side) {
			s.b.Linear(s.t(y), s.t(x), s.p(w), s.p(b), false)
			s.b.LinearGrad(s.t(dx), s.p(w), s.p(b), s.t(dy), s.t(x), false)
		})
	}
}

func (s *suite) ropeSizes() {
	for _, shape := range [][2]int{{3, 80}, {3, 96}, {2, 128}, {2, 256}, {64, 64}} {
		const N, P = 3, 9
		H, E := shape[0], shape[1]
		a := compute.AttnShape{H: H, K: 1, E: E}
		c := s.large("H=%d E=%d", H, E)
		x, table, pos := c.random("x", N*H*E).narrow(), c.random("table", P*E), s.draws(N, P)
		k, v := c.random("k", N*E).narrow(), c.random("v", N*E).narrow()
		kc, vc, slots :=
			c.random("key cache", 5*E).narrow(), c.random("value cache", 5*E).narrow(), s.perm(N, 5)
		c.run(func(s *side) {
			s.b.Rope(s.t(x), H, E, pos, s.t(table), true)
			s.b.RopeCache(s.t(x), s.t(k), s.t(v), s.t(kc), s.t(vc), a, pos, s.t(table), slots)
		})
	}
}

// attentionSizes: the widths and groups of heads that others leave out, in a short pack; and,
// in narrow heads, a shared beginning and sequences that are longer than 512 keys (splits on
// a GPU, blocks of a product on a CPU), with a window of more than that and without.
func (s *suite) attentionSizes() {
	short := compute.Pack{Start: []int32{0, 40, 41, 105}, Parent: []int32{-1, 0, -1}}
	long := compute.Pack{Start: []int32{0, 520, 557, 560}, Parent: []int32{-1, 0, 0}}
	for _, of := range []struct {
		compute.AttnShape
		compute.Pack
	}{
		{compute.AttnShape{H: 4, K: 1, E: 256}, short},
		{compute.AttnShape{H: 2, K: 2, E: 80}, short},
		{compute.AttnShape{H: 3, K: 1, E: 96}, short},
		{compute.AttnShape{H: 5, K: 1, E: 128}, short},
		{compute.AttnShape{H: 6, K: 1, E: 64}, short},
		{compute.AttnShape{H: 8, K: 1, E: 128}, short},
		{compute.AttnShape{H: 1, K: 1, E: 4}, long},
		{compute.AttnShape{H: 1, K: 1, E: 4, Window: 530}, long},
	} {
		a, p := of.AttnShape, of.Pack
		a.Scale = 1 / math.Sqrt(float64(a.E))
		c := s.large("H=%d K=%d E=%d window=%d N=%d", a.H, a.K, a.E, a.Window,
			p.Start[p.Segments()])
		c.attention(a, p, max(1, math.Sqrt(float64(a.E))/4))
	}
}

// decodeSizes: a context of 32k; the same with a window that begins within a split; and the
// groups and widths of heads that others leave out. All rows of a case are of one size, because
// a long row's output is small.
func (s *suite) decodeSizes() {
	const P = 16
	for _, of := range []struct {
		compute.AttnShape
		len []int32
	}{
		{compute.AttnShape{H: 2, K: 1, E: 64}, []int32{32768, 20001}},
		{compute.AttnShape{H: 1, K: 1, E: 8}, []int32{32768, 20001}},
		{compute.AttnShape{H: 2, K: 1, E: 8, Window: 600}, []int32{1150, 700, 1537, 20001}},
		{compute.AttnShape{H: 5, K: 1, E: 128}, []int32{70, 50}},
		{compute.AttnShape{H: 8, K: 1, E: 128}, []int32{70, 50}},
		{compute.AttnShape{H: 12, K: 2, E: 64}, []int32{70, 50}},
		{compute.AttnShape{H: 4, K: 1, E: 256}, []int32{70, 50}},
		{compute.AttnShape{H: 2, K: 2, E: 80}, []int32{70, 50}},
		{compute.AttnShape{H: 3, K: 1, E: 96}, []int32{70, 50}},
	} {
		a, R := of.AttnShape, len(of.len)
		a.Scale = 1 / math.Sqrt(float64(a.E))
		pages := (int(slices.Max(of.len)) + P - 1) / P
		all := s.perm(pages, pages)
		paged := compute.Pages{PageTokens: P, Len: of.len}
		for _, n := range of.len {
			paged.Table = append(paged.Table, all[:(int(n)+P-1)/P])
		}
		c := s.large("H=%d K=%d E=%d window=%d len=%v", a.H, a.K, a.E, a.Window, of.len)
		if of.len[0] > 1<<14 {
			c.factor = 4 // sums of so many terms
		}
		q, o := c.random("q", R*a.H*a.E).narrow(), c.unset("o", R*a.H*a.E).narrow()
		k, v := c.random("k", pages*P*a.K*a.E).narrow(), c.random("v", pages*P*a.K*a.E).narrow()
		c.run(func(s *side) { s.b.AttentionDecode(s.t(o), s.t(q), s.t(k), s.t(v), a, paged) })
	}
}

// headSizes: more than 32 tiles of 4,096 tokens; more rows than are taken at a time.
// A row of 8 is the narrowest that the library for products takes, which is the fast one.
func (s *suite) headSizes() {
	rows := 8200
	if s.Slow {
		rows = 2100
	}
	for _, shape := range [][3]int{{2, 8, 151936}, {2, 8, 262144}, {rows, 8, 3}} {
		R, D, V := shape[0], shape[1], shape[2]
		c := s.large("R=%d D=%d V=%d", R, D, V)
		if c.factor = 4; s.NarrowTol == 0 {
			// a CPU's dh is one chain of float32 sums over the vocabulary
			c.factor *= max(1, float64(V)/(1<<16))
		}
		h, w, dlogp, dent :=
			c.random("h", R*D).narrow(), c.param("w", V, D, true), c.random("dlogp", R),
			c.random("dent", R)
		dh, logp, ent, lse :=
			c.random("dh", R*D).narrow(), c.unset("logp", R).exact(), c.unset("ent", R).exact(),
			c.unset("lse", R).exact()
		which, targets := s.perm(R, R), s.draws(R, V)
		targets[0] = int32(V - 1)
		c.run(func(s *side) {
			out := compute.HeadOut{LogpR: s.t(logp), EntR: s.t(ent), LseR: s.t(lse)}
			s.b.LogProb(out, s.t(h), s.p(w), which, targets, 1/0.7)
			s.b.LogProbGrad(s.t(dh), s.p(w), out, s.t(dlogp), s.t(dent), s.t(h), which, targets,
				1/0.7)
		})
	}
}

// sampleSizes: u in the middle of a known token's share gives that token, wherever in the
// vocabulary it is. The most rows are more than a CPU keeps the logits of (2^22).
func (s *suite) sampleSizes() {
	const D = 8
	most := 1<<22/151936 + 1
	if s.Slow || testing.Short() {
		most = 3
	}
	var wd []float32
	for _, of := range []struct {
		V, R int
		compute.Sampling
	}{
		{151936, most, compute.Sampling{Temperature: 1}}, {151936, 2, compute.Sampling{}},
		{151936, 2, compute.Sampling{Temperature: 0.8, TopP: 0.9}},
		{151936, 2, compute.Sampling{Temperature: 1, TopK: 50, TopP: 0.95}},
		{151936, 2, compute.Sampling{Temperature: 1, MinP: 0.01}},
		{262144, 2, compute.Sampling{Temperature: 1}},
	} {
		V, R, c := of.V, of.R, of.Sampling
		if len(wd) != V*D {
			wd = s.round(s.normal(V * D))
		}
		hd := s.round(s.normal(R * D))
		ids, logp, want, u :=
			make([]int32, R), make([]float32, R), make([]int32, R), make([]float64, R)
		z, p := make([]float32, V), make([]float64, V)
		for r := range R {
			for v := range V {
				x := 0.0
				for d := range D {
					x += float64(hd[r*D+d]) * float64(wd[v*D+d])
				}
				z[v] = float32(x)
			}
			// The most probable token of the r-th part of the vocabulary, if no filter drops it.
			most := func(lo, hi int) int {
				return lo +
					slices.Index(z[lo:hi], slices.Max(z[lo:hi]))
			}
			best := most(r*V/R, (r+1)*V/R)
			switch {
			case c.Temperature == 0:
				want[r] = int32(most(0, V))
				continue
			case c.TopK > 0 || c.TopP > 0 || c.MinP > 0:
				if p = filterProbs(z, c); p[best] == 0 {
					best = most(0, V)
				}
			default:
				for v, x := range z {
					p[v] = math.Exp(float64(x) / c.Temperature)
				}
			}
			total, before := 0.0, 0.0
			for v, x := range p {
				if total += x; v < best {
					before += x
				}
			}
			want[r], u[r] = int32(best), (before+p[best]/2)/total
		}
		w, h := s.weights(wd, V, D), s.narrow(hd)
		s.dev.Sample(ids, logp, h, w, c, u)
		for r := range R {
			if ids[r] != want[r] {
				s.t.Errorf("V=%d %+v: row %d of %d: token %d, want %d", V, c, r, R, ids[r], want[r])
			}
		}
		s.checkLikeLogProb(fmt.Sprintf("V=%d %+v", V, c), ids, logp, h, w, c)
		s.dev.Free(w.W)
		s.dev.Free(h)
	}
}

// scoreSizes: more rows and columns than a block of the weights' gradient adds.
func (s *suite) scoreSizes() {
	for _, shape := range [][2]int{{3, 8200}, {200, 2056}} {
		R, D := shape[0], shape[1]
		c := s.large("R=%d D=%d", R, D)
		c.floor = math.Sqrt(float64(max(R, D))) / 2
		h, w, rows := c.random("h", R*D).narrow(), c.param("w", 1, D, true), s.perm(R, R)
		ds, out, dh := c.random("ds", R), c.unset("s", R).exact(), c.random("dh", R*D).narrow()
		w.g.exact()
		c.run(func(s *side) {
			s.b.Score(s.t(out), s.t(h), s.p(w), rows)
			s.b.ScoreGrad(s.t(dh), s.p(w), s.t(ds), s.t(h), rows)
		})
	}
}

// sumSizes: more partial sums than threads add them up, which takes a model of 34 million
// parameters, or as many tensors.
func (s *suite) sumSizes() {
	const tensors, each = 2500, 3
	x := s.wide(s.normal(tensors * each))
	host, want := download(s.t, s.dev, x), 0.0
	var ts []compute.Tensor
	for i := range tensors {
		ts = append(ts, x.Slice(i*each, (i+1)*each))
	}
	for _, v := range host {
		want += float64(v) * float64(v)
	}
	if got := s.dev.SumSquares(ts); math.Abs(got-want) > 1e-9*want {
		s.t.Errorf("sum of squares of %d tensors: %v, want %v", tensors, got, want)
	}
}

// stepSizes: as many parameters in one step as a model of 64 layers has.
func (s *suite) stepSizes() {
	const params, each = 770, 9
	c := s.large("%d parameters", params)
	w, g :=
		c.param("w", params, each, true), c.value("moments", make([]float32, 2*params*each)).exact()
	w.w.exact()
	c.run(func(s *side) {
		var ps []*compute.Param
		for i := range params {
			lo, hi := i*each, (i+1)*each
			ps = append(ps, &compute.Param{Name: fmt.Sprint("w", i), Shape: []int{each}, Rows: 1,
				Cols: each, Decay: i%3 == 0,
				W: s.t(w.w).Slice(lo, hi), G: s.t(w.g).Slice(lo, hi), M: s.t(g).Slice(lo, hi),
				V: s.t(g).Slice(params*each+lo, params*each+hi)})
		}
		for step := 1; step <= 2; step++ {
			s.b.AdamW(ps, compute.AdamW{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1,
				GradScale: 0.5, Step: step})
		}
	})
}
