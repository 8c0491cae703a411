package algos

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// expr builds one expression graph. The first error sticks and every later
// operation is a no-op, so that formulas read as formulas.
//
// It keeps away from Gorgonia's known traps: each input is made once and by
// name (equal names of equal shape merge silently), constants are scalars only
// (tensor constants merge by their print-out), and gradients are taken once,
// in compile (a second Grad on a graph is silently wrong).
type expr struct {
	g      *G.ExprGraph
	dt     tensor.Dtype
	inputs []*G.Node
	byName map[string]*G.Node
	err    error
}

// newExpr returns an empty graph with elements of type F.
func newExpr[F Float]() *expr {
	e := &expr{g: G.NewGraph(), dt: tensor.Float64, byName: map[string]*G.Node{}}
	if _, single := any(F(0)).(float32); single {
		e.dt = tensor.Float32
	}
	return e
}

// take returns n, and keeps the first error.
func (e *expr) take(n *G.Node, err error) *G.Node {
	if err != nil && e.err == nil {
		e.err = err
	}
	return n
}

// input returns the input of that name, created at its first use.
func (e *expr) input(name string, shape ...int) *G.Node {
	n, ok := e.byName[name]
	if !ok {
		n = G.NewTensor(e.g, e.dt, len(shape), G.WithShape(shape...), G.WithName(name))
		e.byName[name] = n
		e.inputs = append(e.inputs, n)
	}
	return n
}

// num returns a scalar constant.
func (e *expr) num(v float64) *G.Node {
	if e.dt == tensor.Float32 {
		return G.NewConstant(float32(v))
	}
	return G.NewConstant(v)
}

// apply applies op, an elementwise operator of this package, to in.
func (e *expr) apply(op elementOp, in ...*G.Node) *G.Node {
	if e.err != nil {
		return nil
	}
	return e.take(G.ApplyOp(op, in...))
}

// bin applies a binary operation of Gorgonia, unless an error has occurred.
func (e *expr) bin(f func(a, b *G.Node) (*G.Node, error), a, b *G.Node) *G.Node {
	if e.err != nil {
		return nil
	}
	return e.take(f(a, b))
}

// un applies a unary operation of Gorgonia, unless an error has occurred.
func (e *expr) un(f func(a *G.Node) (*G.Node, error), a *G.Node) *G.Node {
	if e.err != nil {
		return nil
	}
	return e.take(f(a))
}

func (e *expr) add(a, b *G.Node) *G.Node { return e.bin(G.Add, a, b) }
func (e *expr) sub(a, b *G.Node) *G.Node { return e.bin(G.Sub, a, b) }
func (e *expr) mul(a, b *G.Node) *G.Node { return e.bin(G.HadamardProd, a, b) }
func (e *expr) div(a, b *G.Node) *G.Node { return e.bin(G.HadamardDiv, a, b) }
func (e *expr) max(a, b *G.Node) *G.Node { return e.apply(maxOp, a, b) }
func (e *expr) min(a, b *G.Node) *G.Node { return e.apply(minOp, a, b) }
func (e *expr) neg(a *G.Node) *G.Node    { return e.un(G.Neg, a) }
func (e *expr) exp(a *G.Node) *G.Node    { return e.un(G.Exp, a) }
func (e *expr) log(a *G.Node) *G.Node    { return e.un(G.Log, a) }
func (e *expr) square(a *G.Node) *G.Node { return e.un(G.Square, a) }
func (e *expr) stop(a *G.Node) *G.Node   { return e.apply(stopOp, a) }

func (e *expr) clamp(a *G.Node, lo, hi float64) *G.Node { return e.apply(clampOp(lo, hi), a) }

// sum sums all elements; rows sums each row of a matrix: [B,T] to [B].
func (e *expr) sum(a *G.Node) *G.Node {
	return e.un(func(a *G.Node) (*G.Node, error) { return G.Sum(a) }, a)
}
func (e *expr) rows(a *G.Node) *G.Node {
	return e.un(func(a *G.Node) (*G.Node, error) { return G.Sum(a, 1) }, a)
}

// addRow adds one value b [B] to each row of a [B,T].
func (e *expr) addRow(a, b *G.Node) *G.Node { return e.broadcast(G.BroadcastAdd, a, b) }

// broadcast applies f to a [B,T] and to b [B], repeated along rows.
func (e *expr) broadcast(f func(a, b *G.Node, left, right []byte) (*G.Node, error), a, b *G.Node) *G.Node {
	return e.bin(func(a, b *G.Node) (*G.Node, error) { return f(a, b, nil, []byte{1}) }, a, b)
}

// program is a compiled objective: fill the inputs, run, read the outputs. It
// may run any number of times, in one goroutine at a time. One shape needs one
// program: Gorgonia's shapes are static.
type program[F Float] struct {
	vm  G.VM
	in  map[string][]F
	out map[string]*G.Value
}

// compile derives the gradients of cost by the inputs named in wrt and compiles
// the graph. After a run, out holds the gradients as "d"+input and the values
// of the named nodes.
func compile[F Float](e *expr, cost *G.Node, wrt []string,
	read map[string]*G.Node) (*program[F], error) {
	if e.err != nil {
		return nil, fmt.Errorf("algos: building graph: %w", e.err)
	}
	p := &program[F]{in: map[string][]F{}, out: map[string]*G.Value{}}
	for _, n := range e.inputs {
		data := make([]F, n.Shape().TotalSize())
		if err := G.Let(n, tensor.New(tensor.WithShape(n.Shape().Clone()...),
			tensor.WithBacking(data))); err != nil {
			return nil, fmt.Errorf("algos: binding input %q: %w", n.Name(), err)
		}
		p.in[n.Name()] = data
	}
	var by G.Nodes
	for _, name := range wrt {
		by = append(by, e.byName[name])
	}
	grads, err := G.Grad(cost, by...)
	if err != nil {
		return nil, fmt.Errorf("algos: deriving gradient: %w", err)
	}
	keep := func(name string, n *G.Node) {
		p.out[name] = new(G.Value)
		G.Read(n, p.out[name])
	}
	for i, name := range wrt {
		keep("d"+name, grads[i])
	}
	for _, name := range names(read) { // in order: the program must not depend on map order
		keep(name, read[name])
	}
	p.vm = G.NewTapeMachine(e.g)
	return p, nil
}

// run evaluates everything for the present inputs. (RunAll without Reset would return the previous
// results.)
func (p *program[F]) run() error {
	err := p.vm.RunAll()
	p.vm.Reset()
	if err != nil {
		return fmt.Errorf("algos: running graph: %w", err)
	}
	return nil
}

// get returns a named output, or nil if the graph has none of that name.
func (p *program[F]) get(name string) []F {
	v, ok := p.out[name]
	if !ok {
		return nil
	}
	switch d := (*v).Data().(type) {
	case F:
		return []F{d}
	case []F:
		return d
	}
	panic(fmt.Sprintf("algos: output %q has elements of type %T", name, (*v).Data()))
}

// scalar returns a named output of one element, or 0 if the graph has none.
func (p *program[F]) scalar(name string) float64 {
	if v := p.get(name); v != nil {
		return float64(v[0])
	}
	return 0
}

// cache holds the programs compiled last, by shape and variant. Compiling takes about a
// millisecond, and a program holds memory for its intermediate values, so the cache is small.
type cache[K comparable, F Float] struct {
	byKey map[K]*program[F]
	order []K // oldest first
}

const cacheSize = 8

// get returns the program of key, and builds it if it is missing.
func (c *cache[K, F]) get(key K, build func() (*program[F], error)) (*program[F], error) {
	if p, ok := c.byKey[key]; ok {
		return p, nil
	}
	p, err := build()
	if err != nil {
		return nil, err
	}
	if c.byKey == nil {
		c.byKey = map[K]*program[F]{}
	}
	if len(c.order) == cacheSize {
		oldest := c.order[0]
		err = c.byKey[oldest].vm.Close()
		delete(c.byKey, oldest)
		c.order = c.order[1:]
	}
	c.byKey[key] = p
	c.order = append(c.order, key)
	return p, err
}

// close releases all programs.
func (c *cache[K, F]) close() error {
	var errs []error
	for _, key := range c.order {
		errs = append(errs, c.byKey[key].vm.Close())
	}
	c.byKey, c.order = nil, nil
	return errors.Join(errs...)
}
