package algos

import (
	"fmt"
	"math"
	"math/bits"

	G "gorgonia.org/gorgonia"
)

// DiscConfig chooses the critic's objective. A zero field takes its default.
type DiscConfig struct {
	Loss string  // one of DiscLossNames; default "bt"
	L2   float64 // weight of the mean of D_student^2 + D_teacher^2, >= 0; default 0: no such term
}

var discLosses = map[string]func(e *expr, student, teacher *G.Node) *G.Node{
	// Bradley-Terry, -log sigmoid(D_t - D_s) (arXiv 2511.10643, the value function).
	"bt": func(e *expr, student, teacher *G.Node) *G.Node {
		return e.apply(softplusOp, e.sub(student, teacher))
	},
	// Binary cross entropy, -log sigmoid(D_t) - log(1 - sigmoid(D_s)) (arXiv 1406.2661).
	"bce": func(e *expr, student, teacher *G.Node) *G.Node {
		return e.add(e.apply(softplusOp, e.neg(teacher)), e.apply(softplusOp, student))
	},
}

// DiscLossNames returns the names of the discriminator losses.
func DiscLossNames() []string { return names(discLosses) }

// Discriminator computes one critic objective. It is not safe for concurrent use.
type Discriminator[F Float] struct {
	c      DiscConfig
	loss   func(e *expr, student, teacher *G.Node) *G.Node
	cached cache[int, F]
}

// NewDiscriminator resolves the defaults and checks the settings. Errors wrap
// ErrUnknownName or ErrConfig.
func NewDiscriminator[F Float](c DiscConfig) (*Discriminator[F], error) {
	if c.Loss == "" {
		c.Loss = "bt"
	}
	loss, err := lookup("discriminator loss", c.Loss, discLosses)
	if err != nil {
		return nil, err
	}
	if !(c.L2 >= 0) || math.IsInf(c.L2, 0) {
		return nil, fmt.Errorf("algos: discriminator loss %q: l2 = %g: must be 0 or above: %w",
			c.Loss, c.L2, ErrConfig)
	}
	return &Discriminator[F]{c: c, loss: loss}, nil
}

// Config returns the configuration with its defaults filled in.
func (d *Discriminator[F]) Config() DiscConfig { return d.c }

// Close releases the compiled programs.
func (d *Discriminator[F]) Close() error { return d.cached.close() }

// DiscStats holds sums of weight*x over pairs: means, if the weights of the whole mini-batch sum to
// 1. The figures of micro-batches add up.
type DiscStats struct {
	Loss        float64
	Acc         float64 // of the indicator D_teacher > D_student, strict
	StudentMean float64
	TeacherMean float64
	Gap         float64 // of D_teacher - D_student
	Pairs       int     // pairs of non-zero weight
}

// Add returns the figures of both parts together.
func (s DiscStats) Add(o DiscStats) DiscStats {
	return DiscStats{s.Loss + o.Loss, s.Acc + o.Acc, s.StudentMean + o.StudentMean,
		s.TeacherMean + o.TeacherMean, s.Gap + o.Gap, s.Pairs + o.Pairs}
}

// DiscResult is the contribution of a set of pairs.
type DiscResult[F Float] struct {
	DiscStats
	DStudent []F // [n] d Loss/d score of each student response
	DTeacher []F // [P] d Loss/d score of each teacher response, collected from all its pairs
}

// Step computes loss and gradients over n pairs. Student response i, of score
// studentN[i], is paired with teacher response pair[i], of score
// teacherP[pair[i]]: the teacher is scored once for all responses to its prompt.
// pair nil means i with i. weight[i] is the pair's share of the loss, 0 to leave
// it out (its scores then do not matter, not even a NaN); nil means 1/n.
//
// Errors wrap ErrShape or ErrNotFinite.
func (d *Discriminator[F]) Step(studentN, teacherP []F, pair []int,
	weight []F) (DiscResult[F], error) {
	var res DiscResult[F]
	n := len(studentN)
	bad := func(format string, args ...any) (DiscResult[F], error) {
		return DiscResult[F]{}, fmt.Errorf("algos: discriminator loss %q: %s: %w", d.c.Loss,
			fmt.Sprintf(format, args...), ErrShape)
	}
	switch {
	case n == 0:
		return bad("no pairs")
	case pair == nil && len(teacherP) != n:
		return bad("%d student scores, %d teacher scores and no pairing", n, len(teacherP))
	case pair != nil && len(pair) != n:
		return bad("%d student scores, %d pair indices", n, len(pair))
	case weight != nil && len(weight) != n:
		return bad("%d student scores, %d weights", n, len(weight))
	}
	// A padded pair weighs 0, so few shapes serve every n.
	size := 1 << bits.Len(uint(n-1))
	prog, err := d.cached.get(size, func() (*program[F], error) { return d.compile(size) })
	if err != nil {
		return res, err
	}
	s, t, w := prog.in["student"], prog.in["teacher"], prog.in["weight"]
	clear(s)
	clear(t)
	clear(w)
	teacherOf := func(i int) int {
		if pair == nil {
			return i
		}
		return pair[i]
	}
	for i := range n {
		j := teacherOf(i)
		if j < 0 || j >= len(teacherP) {
			return bad("pair[%d] = %d: there are %d teacher scores", i, j, len(teacherP))
		}
		w[i] = F(1 / float64(n))
		if weight != nil {
			w[i] = weight[i]
		}
		if w[i] == 0 {
			continue
		}
		s[i], t[i] = studentN[i], teacherP[j]
		if k := notFinite([]F{s[i], t[i], w[i]}); k >= 0 {
			return res, fmt.Errorf("algos: discriminator loss %q: pair %d: student %g, teacher %g, weight %g: skip this step: %w", d.c.Loss, i, s[i], t[i], w[i], ErrNotFinite)
		}
	}
	if err := prog.run(); err != nil {
		return res, err
	}
	res.Loss = prog.scalar("loss")
	res.DStudent = append([]F(nil), prog.get("dstudent")[:n]...)
	res.DTeacher = make([]F, len(teacherP))
	for i, g := range prog.get("dteacher")[:n] {
		if w[i] == 0 {
			continue
		}
		res.DTeacher[teacherOf(i)] += g
		share, gap := 1/float64(n), float64(t[i])-float64(s[i])
		if weight != nil {
			share = float64(w[i])
		}
		res.Pairs++
		res.Acc += share * indicator(gap > 0)
		res.StudentMean += share * float64(s[i])
		res.TeacherMean += share * float64(t[i])
		res.Gap += share * gap
	}
	if i := notFinite(append(res.DStudent, res.DTeacher...)); i >= 0 || math.IsNaN(res.Loss) ||
		math.IsInf(res.Loss, 0) {
		return DiscResult[F]{}, fmt.Errorf(
			"algos: discriminator loss %q: loss %g: skip this step: %w", d.c.Loss, res.Loss,
			ErrNotFinite)
	}
	return res, nil
}

// compile builds the loss over n pairs and its gradients.
func (d *Discriminator[F]) compile(n int) (*program[F], error) {
	e := newExpr[F]()
	student, teacher := e.input("student", n), e.input("teacher", n)
	x := d.loss(e, student, teacher)
	if d.c.L2 > 0 {
		x = e.add(x, e.mul(e.add(e.square(student), e.square(teacher)), e.num(d.c.L2)))
	}
	loss := e.sum(e.mul(x, e.input("weight", n)))
	return compile[F](e, loss, []string{"student", "teacher"}, map[string]*G.Node{"loss": loss})
}
