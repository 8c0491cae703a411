package algos

import (
	"fmt"
	"hash"
	"hash/fnv"
	"math"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// elementOp is an elementwise operator that Gorgonia lacks or has only approximately (its softplus
// is cut at 16, its sigmoid at 19, which costs 8.5e-9 and 5.6e-9; its Min and Max take no scalar
// bound). It computes
//
//	out[i] = f(a[i], b[i])        b absent when arity is 1
//
// in float64 whatever the element type. NaN in gives NaN out, except from the
// 0/1 indicators.
type elementOp struct {
	name  string // unique for f: Gorgonia merges nodes of equal name and children
	arity int
	f     func(a, b float64) float64
	// diff gives d cost/d in[k] from d cost/d out; nil for operators that stop
	// the gradient.
	diff func(in G.Nodes, grad *G.Node) (G.Nodes, error)
}

func (o elementOp) Arity() int { return o.arity }

func (o elementOp) Type() hm.Type {
	a := hm.TypeVariable('a')
	if o.arity == 2 {
		return hm.NewFnType(a, a, a)
	}
	return hm.NewFnType(a, a)
}

func (o elementOp) InferShape(in ...G.DimSizer) (tensor.Shape, error) {
	a, ok := in[0].(tensor.Shape)
	if !ok {
		return nil, fmt.Errorf("%s: input of kind %T has no shape", o.name, in[0])
	}
	if o.arity == 2 {
		if b, ok := in[1].(tensor.Shape); !ok || !a.Eq(b) {
			return nil, fmt.Errorf("%s: inputs of shape %v and %v", o.name, in[0], in[1])
		}
	}
	return a.Clone(), nil
}

// Do computes the operator on a copy of the first input.
func (o elementOp) Do(in ...G.Value) (G.Value, error) {
	out, err := G.CloneValue(in[0])
	if err != nil {
		return nil, err
	}
	switch a := out.Data().(type) {
	case []float64:
		return out, applyElements(o, a, in)
	case []float32:
		return out, applyElements(o, a, in)
	}
	return nil, fmt.Errorf("%s: elements of type %T", o.name, out.Data())
}

// applyElements overwrites a, a copy of the first input, with the results.
func applyElements[F Float](o elementOp, a []F, in []G.Value) error {
	if o.arity == 1 {
		for i, x := range a {
			a[i] = F(o.f(float64(x), 0))
		}
		return nil
	}
	b, ok := in[1].Data().([]F)
	if !ok || len(b) != len(a) {
		return fmt.Errorf("%s: second input %T does not match %d elements of %T", o.name,
			in[1].Data(), len(a), a)
	}
	for i, x := range a {
		a[i] = F(o.f(float64(x), float64(b[i])))
	}
	return nil
}

func (elementOp) ReturnsPtr() bool        { return false }
func (elementOp) CallsExtern() bool       { return false }
func (elementOp) OverwritesInput() int    { return -1 }
func (o elementOp) WriteHash(h hash.Hash) { fmt.Fprint(h, o.name) }
func (o elementOp) Hashcode() uint32      { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }
func (o elementOp) String() string        { return o.name }

func (o elementOp) DiffWRT(n int) []bool {
	wrt := make([]bool, n)
	for i := range wrt {
		wrt[i] = o.diff != nil
	}
	return wrt
}

func (o elementOp) SymDiff(in G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	if o.diff == nil {
		return make(G.Nodes, len(in)), nil
	}
	return o.diff(in, grad)
}

// scaleGrad applies the chain rule for one input: grad * by(in[0], in[1]).
func scaleGrad(grad *G.Node, by elementOp, in ...*G.Node) (*G.Node, error) {
	d, err := G.ApplyOp(by, in...)
	if err != nil {
		return nil, err
	}
	return G.HadamardProd(grad, d)
}

// unary returns an operator of one input whose derivative is the operator by.
func unary(name string, f func(float64) float64, by elementOp) elementOp {
	return elementOp{name, 1, func(a, _ float64) float64 { return f(a) },
		func(in G.Nodes, grad *G.Node) (G.Nodes, error) {
			g, err := scaleGrad(grad, by, in[0])
			return G.Nodes{g}, err
		}}
}

// binary returns an operator of two inputs whose derivatives are da and db.
func binary(name string, f func(a, b float64) float64, da, db elementOp) elementOp {
	return elementOp{name, 2, f, func(in G.Nodes, grad *G.Node) (G.Nodes, error) {
		ga, err := scaleGrad(grad, da, in...)
		if err != nil {
			return nil, err
		}
		gb, err := scaleGrad(grad, db, in...)
		return G.Nodes{ga, gb}, err
	}}
}

// indicator converts a bool to 1 or 0.
func indicator(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// sigmoid returns 1/(1+exp(-x)) without overflow or loss of precision at either end.
func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

// softplus returns log(1+exp(x)), exact to rounding for every x.
func softplus(x float64) float64 {
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
}

var (
	// stopOp is the identity whose gradient is nothing: sg(x).
	stopOp = elementOp{"stop", 1, func(a, _ float64) float64 { return a }, nil}

	// greaterOp and the others compute 1 where the relation holds, else 0.
	greaterOp = elementOp{"greater", 2, func(a, b float64) float64 { return indicator(a > b) }, nil}
	lessOp    = elementOp{"less", 2, func(a, b float64) float64 { return indicator(a < b) }, nil}
	notLessOp = elementOp{"notLess", 2, func(a, b float64) float64 { return indicator(a >= b) },
		nil}
	notMoreOp = elementOp{"notMore", 2, func(a, b float64) float64 { return indicator(a <= b) },
		nil}

	// maxOp and minOp send the whole gradient to the first input on a tie. In
	// the objectives a tie is either the same expression twice, where the split
	// does not matter, or exactly zero.
	maxOp = binary("max", func(a, b float64) float64 { return max(a, b) }, notLessOp, lessOp)
	minOp = binary("min", func(a, b float64) float64 { return min(a, b) }, notMoreOp, greaterOp)

	sigmoidOp = unary("sigmoid", sigmoid,
		elementOp{"dsigmoid", 1, func(a, _ float64) float64 { return sigmoid(a) * sigmoid(-a) },
			nil})
	softplusOp = unary("softplus", softplus, sigmoidOp)
	absOp      = unary("abs", math.Abs, signOp)

	signOp = elementOp{"sign", 1,
		func(a, _ float64) float64 { return indicator(a > 0) - indicator(a < 0) }, nil}
	positiveOp = elementOp{"positive", 1, func(a, _ float64) float64 { return indicator(a > 0) },
		nil}
	negativeOp = elementOp{"negative", 1, func(a, _ float64) float64 { return indicator(a < 0) },
		nil}
)

// clampOp computes min(max(x, lo), hi); its derivative is 1 where lo <= x <= hi, ends included,
// else 0.
func clampOp(lo, hi float64) elementOp {
	bounds := fmt.Sprintf("[%g,%g]", lo, hi)
	inside := elementOp{"inside" + bounds, 1,
		func(a, _ float64) float64 { return indicator(lo <= a && a <= hi) }, nil}
	return unary("clamp"+bounds, func(a float64) float64 { return min(max(a, lo), hi) }, inside)
}

// exceedsOp computes 1 where x < lo or x > hi, else 0.
func exceedsOp(lo, hi float64) elementOp {
	return elementOp{fmt.Sprintf("outside[%g,%g]", lo, hi), 1,
		func(a, _ float64) float64 { return indicator(a < lo || a > hi) }, nil}
}

// dualLimitOp computes the dual clip's ceiling on the loss from the advantage A: -A c where A < 0,
// no limit elsewhere.
func dualLimitOp(c float64) elementOp {
	return elementOp{fmt.Sprintf("dualLimit[%g]", c), 1, func(a, _ float64) float64 {
		if a < 0 {
			return -a * c
		}
		return math.Inf(1)
	}, nil}
}
