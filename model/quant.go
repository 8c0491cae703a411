package model

import (
	"fmt"

	"gad/internal/compute"
	"gad/model/internal/files"
)

// Native is the value of Options.Quant and LoRA.Base for weights in the backend's own precision, as
// matrix products read them.
const Native = "native"

// Quantised reports whether name, a value of Options.Quant, stores weights in quantised blocks.
func Quantised(name string) bool {
	class, err := quantClass(name)
	return err == nil && class.Quantised()
}

// quantClass returns the class of frozen matrices for a value of Options.Quant: Frozen, Q8 or Q4.
func quantClass(name string) (compute.Class, error) {
	switch name {
	case "", Native:
		return compute.Frozen, nil
	case compute.Q8.String():
		return compute.Q8, nil
	case compute.Q4.String():
		return compute.Q4, nil
	}
	return 0, fmt.Errorf("model: frozen weights in %q: use %s, %v or %v", name, Native, compute.Q8,
		compute.Q4)
}

// checkQuant returns an error if o.Quant is impossible for these parameters on be.
func checkQuant(be compute.Backend, params []*compute.Param, o Options) error {
	class, err := quantClass(o.Quant)
	switch {
	case err != nil || !class.Quantised():
		return err
	case o.Trainable:
		return fmt.Errorf("model: weights in %v are frozen, and all are to be trained: train LoRA adapters on them, or keep them %s", class, Native)
	case be.Element(class) == 0:
		return fmt.Errorf("model: %s keeps no weights in %v: compute on the CPU, or keep them %s",
			be.Name(), class, Native)
	}
	for _, p := range params {
		if weightClass(p, o).Quantised() && p.Cols%compute.QuantBlock != 0 {
			return fmt.Errorf("model: %s has rows of %d elements: %v keeps blocks of %d of a row: keep the weights %s", p.Name, p.Cols, class, compute.QuantBlock, Native)
		}
	}
	return nil
}

// weightClass returns the class of p's weights. Vectors and the scorer's head are float32.
//
// If layers are Q4, the embedding and the language model's head are Q8: each of their rows is a
// token by itself, and their rounding reaches every logit. llama.cpp's Q4_0 files also have them in
// more bits.
func weightClass(p *compute.Param, o Options) compute.Class {
	switch {
	case len(p.Shape) != 2 || p.Name == files.ScoreName:
		return compute.Wide
	case o.Trainable:
		return compute.Master
	case o.rewritten:
		return compute.Narrow
	}
	class, err := quantClass(o.Quant)
	switch {
	case err != nil: // refused by checkQuant
		return compute.Frozen
	case class == compute.Q4 && (p.Name == files.EmbedName || p.Name == files.HeadName):
		return compute.Q8
	}
	return class
}
