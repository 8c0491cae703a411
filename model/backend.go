package model

import (
	"errors"

	"gad/internal/compute"
)

// Backend is a device that models compute on, opened by the package device. Callers
// pass it on and close it; its other methods are the operations that a model is made of.
type Backend = compute.Backend

// Footprint is the sizes of a backend's memory, known before it is opened, for Config.Plan
// (device.Options.Footprint). Every Backend is one.
type Footprint = compute.Footprint

// Param is one tensor of a model's parameters: its Name in the Hugging Face folder, its
// Shape, and how many rows and columns it has as a matrix (Rows, Cols; Len is the
// product). Model.Params lists them.
type Param = compute.Param

// Sampling is how a token is drawn: from softmax(logits/Temperature), of which only the
// TopK most probable tokens are kept, then the smallest set with at least the
// probability TopP, then those at least MinP times as probable as the most probable.
// A filter that is zero is off. Temperature 0 takes the most probable token.
type Sampling = compute.Sampling

// ErrMemory is wrapped by the error of a model or an optimizer for which the backend has
// too little memory.
var ErrMemory = compute.ErrMemory

// errNoBackend is the error of a model that is opened without a backend.
var errNoBackend = errors.New("model: the backend is nil: open one with device.Open")
