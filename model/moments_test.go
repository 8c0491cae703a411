package model

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gad/internal/compute"
	"gad/internal/safetensors"
)

// wide is tiny with layers that are large enough for moments in 8 bits.
func wide(family string) Config {
	c := tiny(family)
	c.Hidden, c.FFN, c.HeadDim = 64, 128, 16
	return c
}

// values8 is state with scales.
func values8(m *Model) [][]float32 {
	s := state(m)
	for _, p := range m.params {
		if !p.MScale.Absent() {
			s = append(s, values(m.be, p.MScale), values(m.be, p.VScale))
		}
	}
	return s
}

// Moments in 8 bits: which have them, how far a few steps are from float32's, and a state
// that is saved and loaded with all bits.
func TestMoments8(t *testing.T) {
	onBackends(t, func(t *testing.T, be compute.Backend) {
		train := func(eight bool) (*Model, *Optimizer) {
			m, err := New(be, wide("Qwen2"), Options{Trainable: true, Seed: 1})
			must(t, err)
			t.Cleanup(func() { m.Close() })
			c := adamw()
			c.Moments8 = eight
			o, err := NewOptimizer(m, c)
			must(t, err)
			for range 5 {
				trainStep(t, m)
				_, _, err := o.step(0.001)
				must(t, err)
			}
			return m, o
		}
		full, whole := train(false)
		m, o := train(true)
		moved, apart := 0.0, 0.0
		start, err := New(be, wide("Qwen2"), Options{Seed: 1})
		must(t, err)
		defer start.Close()
		coded := 0
		for i, p := range m.params {
			has, want := !p.MScale.Absent(), strings.HasPrefix(p.Name, "model.layers") &&
				len(p.Shape) == 2 && p.Len() >= 4096
			if has != want {
				t.Errorf("%s %v: moments in 8 bits: %t", p.Name, p.Shape, has)
			}
			if has {
				coded++
			}
			a, b, w0 := values(be, p.W), values(be, full.params[i].W), values(be, start.params[i].W)
			for j := range a {
				moved += math.Pow(float64(b[j]-w0[j]), 2)
				apart += math.Pow(float64(b[j]-a[j]), 2)
			}
		}
		if coded < 5*m.cfg.Layers {
			t.Errorf("%d matrices have moments in 8 bits: the test shows too little", coded)
		}
		if d := math.Sqrt(apart / moved); d == 0 || d > 0.1 {
			t.Errorf("after 5 steps weights are %g of their way from those with float32 moments", d)
		}

		d := t.TempDir()
		must(t, m.Save(dir(d).create, "float32", 0))
		var buf, again bytes.Buffer
		must(t, o.Save(&buf, false))
		if n := int64(buf.Len()) - o.Bytes(); n < 0 || n > 1<<14 {
			t.Errorf("a state of %d bytes, said to be %d", buf.Len(), o.Bytes())
		}
		if n := whole.Bytes(); o.Bytes() > n/2 {
			t.Errorf("%d bytes, %d with float32 moments", o.Bytes(), n)
		}
		path := filepath.Join(d, "optimizer.safetensors")
		must(t, os.WriteFile(path, buf.Bytes(), 0o600))
		read, err := Load(be, d, Options{Trainable: true})
		must(t, err)
		defer read.Close()
		c := adamw()
		c.Moments8 = true
		ro, err := NewOptimizer(read, c)
		must(t, err)
		must(t, ro.Load(path))
		must(t, ro.Save(&again, false))
		if !bytes.Equal(again.Bytes(), buf.Bytes()) {
			t.Error("load and save give other bytes")
		}
		if be.Name() != "ref" { // whose float64 a file of float32 does not hold
			for _, x := range []struct {
				m *Model
				o *Optimizer
			}{{m, o}, {read, ro}} {
				trainStep(t, x.m)
				_, _, err := x.o.step(0.001)
				must(t, err)
			}
			sameState(t, "a step after load", values8(read), values8(m))
		}

		// States with moments kept otherwise, and sick ones, are refused and change nothing.
		before := values8(read)
		refused := func(o *Optimizer, want string) {
			t.Helper()
			if err := o.Load(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: want %q", err, want)
			}
		}
		refused(whole, `U8, want F32: its moments are not kept as here: set optim.moments to 8bit`)
		again.Reset()
		must(t, whole.Save(&again, false))
		must(t, os.WriteFile(path, again.Bytes(), 0o600))
		refused(ro, `F32, want U8: its moments are not kept as here: set optim.moments to float32`)
		var list []safetensors.Source
		for i := range read.params {
			for _, s := range ro.stateTensors(i) {
				list = append(list, stream(read.weight(s.name, s.shape, s.t, s.dtype)))
			}
		}
		for i, s := range list {
			if strings.HasPrefix(s.Name, "m.scale.") {
				sick := make([]float32, s.Shape[0])
				sick[0] = -1
				tensor, err := be.Alloc("sick", compute.Wide, len(sick))
				must(t, err)
				be.Upload(tensor, sick)
				list[i] = stream(read.weight(s.Name, s.Shape, tensor, s.DType))
				break
			}
		}
		again.Reset()
		must(t, safetensors.Write(&again, list,
			map[string]string{"format": optimizerFormat, "steps": "1", "skipped": "0"}))
		must(t, os.WriteFile(path, again.Bytes(), 0o600))
		refused(ro, "element 0: -1: a second moment or a scale cannot be negative")
		sameState(t, "state after refused loads", values8(read), before)
	})
}

// A model's weights are no codes.
func TestCodesAreNoWeights(t *testing.T) {
	be := backends[len(backends)-1].new()
	defer be.Close()
	m, err := New(be, tiny("Qwen2"), Options{Seed: 1})
	must(t, err)
	defer m.Close()
	d := t.TempDir()
	must(t, m.Save(dir(d).create, "float32", 0))
	var list []safetensors.Source
	for _, p := range m.params {
		s := stream(m.weight(p.Name, p.Shape, p.W, safetensors.F32))
		if p == m.params[1] {
			zeros := make([]float32, p.Len())
			tensor, err := be.Alloc("codes", compute.Wide, len(zeros))
			must(t, err)
			s = stream(m.weight(p.Name, p.Shape, tensor, safetensors.U8))
		}
		list = append(list, s)
	}
	var buf bytes.Buffer
	must(t, safetensors.Write(&buf, list, nil))
	must(t, os.WriteFile(filepath.Join(d, "model.safetensors"), buf.Bytes(), 0o600))
	if _, err := Load(be, d, Options{}); err == nil || !strings.Contains(err.Error(), "dtype U8") {
		t.Errorf("weights of whole numbers: %v", err)
	}
}
