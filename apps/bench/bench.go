// Package bench measures a machine's limits, and the share of them that operations and the stages
// of a GAD step reach.
//
// A share is the least time that the machine needs, by its measured limits, over the time taken.
// The least time is that of the multiply-adds or that of the bytes that must pass memory once,
// whichever is longer. Shares use the median time, limits the best of several runs: so a busy
// machine shows as a low share.
//
//	bench.go    Run: limits, operations, stages; the report: start here
//	limits.go   the machine's limits, and shares of them
//	ops.go      single operations at the sizes of a shape
//	stages.go   an SFT step, generation, a GAD step
//	profile.go  the operations within a stage
//	predict.go  the same report for a GPU that is not there (package cost)
//	serve.go    cases one by one, for comparisons with other programs
//	ranks.go    collectives of several processes
//	table.go    the report as text
//
// Legend: N tokens of a pack, D hidden width, F feed-forward width, H query heads,
// K key/value heads, E head width, V vocabulary, I and O a product's inputs and outputs.
package bench

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"gad/internal/compute"
	estimate "gad/internal/compute/cost"
	"gad/model"
)

// Options configures Run.
type Options struct {
	// Open starts the device. Run calls it for each part of the measurement, so that each
	// part has its own peak of memory.
	Open   func() (compute.Backend, error)
	Name   string       // name of the shape, for the report
	Config model.Config // the shape
	Load   Load
	What   []string // some of Parts; empty: all
	// time to spend, about; the report names measurements that do not fit in it
	Budget time.Duration

	// Progress is called at the start of each part, and the function that it returns at its end.
	// May be nil.
	Progress func(part string, total int) (advance func(n int), done func())
}

// Parts lists the measurements of Run.
var Parts = []string{"limits", "ops", "stages"}

// Load is the sizes of the stages.
type Load struct {
	Seqs    int // sequences of an SFT step
	Length  int // tokens of each
	Samples int // answers generated at the same time, one to each of as many prompts
	Prompts int // prompts of a GAD step
	N       int // answers to a prompt in a GAD step
	Prompt  int // tokens of a prompt, in a GAD step and in generation
	New     int // tokens of an answer
	Micro   int // tokens of a micro-batch of the GAD step

	Slots     int    // answers generated at the same time in the GAD step; 0: as a run takes
	Recompute bool   // recompute activations in the backward pass
	Weights   string // format of the base's weights (model.Options.Quant)
	// rank of the LoRA adapters that student and discriminator train on one base; 0: no LoRA
	Rank int
}

// lora returns the settings of l's LoRA adapters.
func (l Load) lora() model.LoRA {
	o := model.DefaultLoRA()
	o.Rank = l.Rank
	return o
}

// resolved returns l with Slots set to what a run would choose if it is 0.
func (l Load) resolved(be compute.Backend, c model.Config) Load {
	if l.Slots == 0 {
		l.Slots = model.Together(be, l.Prompts*l.N, func(n int) bool {
			l.Slots = n
			_, _, gad := stagesOf(be, c, l)
			return gad.Planned <= be.Available()/25*24
		})
	}
	return l
}

// DefaultLoad returns SFT on 8 sequences of 256 tokens, 32 answers of 128 tokens, and a GAD step of
// 8 prompts with 8 answers of 128 tokens each, with 16 answers and their prompts in a micro-batch.
func DefaultLoad() Load {
	return Load{Seqs: 8, Length: 256, Samples: 32, Prompts: 8, N: 8, Prompt: 32, New: 128,
		Micro: 16 * (32 + 128)}
}

// Report is the results of Run.
type Report struct {
	Device     string  `json:"device"`
	Go         string  `json:"go"`
	Threads    int     `json:"threads"` // GOMAXPROCS
	Shape      string  `json:"shape"`
	Parameters int64   `json:"parameters"`
	Rank       int     `json:"lora_rank,omitempty"`
	Weights    string  `json:"weights,omitempty"` // format of the base's weights, if quantised
	Limits     Limits  `json:"limits"`
	Ops        []Op    `json:"ops,omitempty"`
	Stages     []Stage `json:"stages,omitempty"`
	Seconds    float64 `json:"seconds"`

	// Counts of a device with slow paths (cuda), over all measurements.
	// Warning about matrix products for which cuBLASLt has no algorithm (compute.Counts)
	Declined string `json:"declined,omitempty"`
	Repeats  int    `json:"decode_steps,omitempty"`
	// share of the decode steps that ran as the CUDA graph of an earlier one
	Replayed float64 `json:"replayed_frac,omitempty"`

	Card *estimate.Card `json:"card,omitempty"` // of a prediction: the GPU and the assumptions
}

// Stat is the times of several runs.
type Stat struct {
	Runs    int     `json:"runs"`
	Seconds float64 `json:"seconds"` // median
	Best    float64 `json:"best_seconds"`
}

// Use is the work done in the time of a Stat, and its share of the machine's limit.
type Use struct {
	FLOPs float64 `json:"flops"`
	Bytes float64 `json:"bytes"`           // least bytes that pass memory
	Bound string  `json:"bound,omitempty"` // the limit that takes longest: products, float32 or memory
	Share float64 `json:"share,omitempty"` // of that limit

	cost    compute.Cost
	seconds float64
}

// Shapes lists the configurations of known models by name.
var Shapes = func() map[string]model.Config {
	shapes := map[string]model.Config{"25m": qwen2(384, 6, 6, 2, 64, 2816, 8192, 1e4)}
	for _, s := range model.Qwen25 {
		shapes[strings.ToLower(s.Name)] = s.Config
	}
	return shapes
}()

// qwen2 returns the configuration of a Qwen2 model of these sizes.
func qwen2(hidden, layers, heads, kv, headDim, ffn, vocab int, theta float64) model.Config {
	return model.Config{Architecture: "Qwen2", Hidden: hidden, Layers: layers, Heads: heads,
		KVHeads: kv, HeadDim: headDim, FFN: ffn,
		Vocab: vocab, MaxPosition: 32768, RMSEps: 1e-6, RopeTheta: theta, QKVBias: true,
		TieEmbeddings: true}
}

// ShapeNames returns the keys of Shapes, the smallest model first.
func ShapeNames() []string {
	names := slices.Collect(maps.Keys(Shapes))
	sort.Slice(names, func(i, j int) bool {
		return Shapes[names[i]].ParamCount(model.LM) < Shapes[names[j]].ParamCount(model.LM)
	})
	return names
}

// Check refuses a name that is not one of Parts.
func Check(what []string) error {
	for _, part := range what {
		if !slices.Contains(Parts, part) {
			return fmt.Errorf("bench: part %q: expected some of %s", part,
				strings.Join(Parts, ", "))
		}
	}
	return nil
}

// Run measures the parts that o wants. It returns errors of the device and the model; a measurement
// that does not fit in memory or time has a note in the report.
func Run(o Options) (*Report, error) {
	if err := Check(o.What); err != nil {
		return nil, err
	}
	began := time.Now()
	wanted := func(part string) bool { return len(o.What) == 0 || slices.Contains(o.What, part) }
	r := &Report{Go: runtime.Version(), Threads: runtime.GOMAXPROCS(0), Shape: o.Name,
		Parameters: o.Config.ParamCount(model.LM), Rank: o.Load.Rank}
	if model.Quantised(o.Load.Weights) {
		r.Weights = o.Load.Weights
	}
	var counts compute.Counts
	part := func(name string, f func(be compute.Backend) error) error {
		if o.Progress != nil {
			_, done := o.Progress("measuring "+name, 0)
			defer done()
		}
		be, err := o.Open()
		if err != nil {
			return err
		}
		r.Device = be.Name()
		err = f(be)
		if c, ok := compute.CountsOf(be); ok {
			counts = counts.Plus(c)
		}
		err = errors.Join(err, be.Close())
		runtime.GC() // frees the blocks of this part before the next
		return err
	}
	limits := func() error {
		return part("the machine's limits", func(be compute.Backend) error {
			l, err := measureLimits(be)
			r.Limits = r.Limits.best(l)
			return err
		})
	}
	err := limits()
	if err == nil && wanted("ops") {
		err = errors.Join(part("operations", func(be compute.Backend) (err error) {
			r.Ops, err = measureOps(be, r.Limits, o.Config, o.Load, o.Budget/4)
			return err
		}), limits())
	}
	if err == nil && wanted("stages") {
		err = errors.Join(part("stages", func(be compute.Backend) (err error) {
			// a busy machine's limits take longer
			left := max(o.Budget-time.Since(began), o.Budget/2)
			r.Stages, err = measureStages(be, r.Limits, o.Config, o.Load, left)
			return err
		}), limits())
	}
	r.relate()
	if err != nil {
		return nil, err
	}
	if r.Declined, r.Repeats = counts.Warning(), counts.Repeats; counts.Repeats > 0 {
		r.Replayed = float64(counts.Replayed) / float64(counts.Repeats)
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// summary returns the Stat of times in seconds. It sorts them.
func summary(times []float64) Stat {
	slices.Sort(times)
	n := len(times)
	return Stat{Runs: n, Seconds: (times[(n-1)/2] + times[n/2]) / 2, Best: times[0]}
}
