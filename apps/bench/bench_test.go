package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gad/internal/compute"
	"gad/internal/compute/cpu"
	"gad/model"
)

var (
	tiny     = qwen2(64, 2, 2, 1, 32, 160, 96, 1e4)
	tinyLoad = Load{Seqs: 2, Length: 24, Samples: 4, Prompts: 2, N: 4, Prompt: 5, New: 7, Micro: 40}
)

func open() (compute.Backend, error) { return cpu.New(cpu.Options{Workers: 2}) }

// fitting measures with twice the budget until every stage is measured, and on a CPU its operations
// or parts: on a busy machine a stage may not fit, says so, and has no figures.
func fitting(t *testing.T, o Options) *Report {
	t.Helper()
	for ; ; o.Budget *= 2 {
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		unfit := func(s Stage) bool {
			return s.Note != "" ||
				strings.HasPrefix(r.Device, "cpu/") && s.Ops == nil && s.Parts == nil
		}
		if o.Budget > time.Minute || !slices.ContainsFunc(r.Stages, unfit) {
			return r
		}
	}
}

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory's bandwidth")
	}
	r := fitting(t, Options{Open: open, Name: "tiny", Config: tiny, Load: tinyLoad,
		Budget: time.Second})
	if r.Limits.Products <= 0 || r.Limits.Read <= 0 || r.Limits.Copy <= 0 ||
		!strings.HasPrefix(r.Device, "cpu/") || r.Parameters != tiny.ParamCount(model.LM) {
		t.Errorf("limits %+v, device %q, %d parameters", r.Limits, r.Device, r.Parameters)
	}
	// A shared machine's limit of multiply-adds can double from one second to the next.
	const atMost = 2.5
	share := func(what string, s Stat, u Use) {
		if s.Runs < 1 || s.Best <= 0 || s.Best > s.Seconds {
			t.Errorf("%s: %+v: want 0 < best <= median", what, s)
		}
		if !(u.Share > 0 && u.Share <= atMost) {
			t.Errorf("%s: share %g of %s", what, u.Share, u.Bound)
		}
	}
	seen := map[string]bool{}
	for _, o := range r.Ops {
		seen[o.Name] = true
		// An operand that the machine prefetched or that stayed in a large cache comes
		// faster than memory's limit; nothing computes faster than the registers.
		if u := o.Use; o.Bound == boundMemory && u.Share > atMost {
			u.Share = atMost
			share(o.Name+" "+o.Size, o.Stat, u)
			continue
		}
		share(o.Name+" "+o.Size, o.Stat, o.Use)
	}
	for _, name := range []string{"Linear", "LinearGrad, input", "LinearGrad, weight", "Attention",
		"AttentionGrad", "AttentionDecode", "RMSNorm",
		"RMSNormGrad", "SwiGLU", "SwiGLUGrad", "Rope", "LogProb", "LogProbGrad", "Sample",
		"AdamW"} {
		if !seen[name] {
			t.Errorf("operation %s was not measured", name)
		}
	}
	if len(r.Stages) != 3 {
		t.Fatalf("%d stages", len(r.Stages))
	}
	for _, s := range r.Stages {
		if s.Note != "" {
			t.Errorf("%s: %s", s.Name, s.Note)
			continue
		}
		share(s.Name, s.Stat, s.Use)
		// a tiny model's small blocks are in no plan
		if s.Planned < s.Peak/2 || s.Planned > 2*s.Peak {
			t.Errorf("%s: %d bytes planned, %d taken", s.Name, s.Planned, s.Peak)
		}
		if s.Peak <= 0 || s.PerSecond <= 0 {
			t.Errorf("%s: peak %d, %d allocations, %g tokens a second", s.Name, s.Peak, s.Allocs,
				s.PerSecond)
		}
	}
	// What operations took and what lies between them is the whole stage.
	for _, s := range r.Stages[:2] {
		part := 0.0
		for _, u := range s.Ops {
			part += u.Part
		}
		if len(s.Ops) < 8 || part < 0.999 || part > 1.001 {
			t.Errorf("%s: %d operations, %g of the time", s.Name, len(s.Ops), part)
		}
	}
	gad := r.Stages[2]
	flops, seconds := 0.0, 0.0
	for _, p := range gad.Parts {
		flops, seconds = flops+p.FLOPs, seconds+p.Seconds
	}
	if len(gad.Parts) != 5 || flops != gad.FLOPs || seconds > 1.5*gad.Seconds {
		t.Errorf("parts of a GAD step: %d, %g of %g operations, %g of %g s", len(gad.Parts), flops,
			gad.FLOPs, seconds, gad.Seconds)
	}

	var text bytes.Buffer
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"limits of this machine", "\n  memory, read ", "FLOP/s",
		"AttentionDecode",
		"SFT step: 2 x 24 tokens", "critic update", "between operations"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
	raw, err := json.Marshal(r)
	var back Report
	if err != nil || json.Unmarshal(raw, &back) != nil ||
		back.Stages[0].Seconds != r.Stages[0].Seconds {
		t.Errorf("JSON %s: %v", raw, err)
	}
}

// With LoRA the stages train adapters on one base: less work and less memory.
func TestRunLoRA(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
	stages := func(rank int) []Stage {
		load := tinyLoad
		load.Rank = rank
		return fitting(t, Options{Open: open, Name: "tiny", Config: tiny, Load: load,
			What: []string{"stages"}, Budget: time.Second / 4}).Stages
	}
	full, lora := stages(0), stages(4)
	for i, s := range lora {
		if s.Note != "" || s.Planned < s.Peak/2 || s.Planned > 2*s.Peak {
			t.Errorf("%s %s: %d bytes planned, %d taken", s.Name, s.Note, s.Planned, s.Peak)
		}
		if share := s.FLOPs / full[i].FLOPs; s.Name == "SFT step" &&
			(share < 0.66 || share > 0.67) || s.Name == "generation" && share != 1 {
			t.Errorf("%s: %g of the operations of full training", s.Name, share)
		}
	}
	if l, f := lora[2].Planned, full[2].Planned; l > f*2/3 {
		t.Errorf("a GAD step: %d bytes planned, %d with all weights trained", l, f)
	}
}

// A profile counts, operation by operation, what the formula for the stage says:
// Config.FLOPsPerToken three times for a training step. Beyond that the backward
// pass computes attention's scores and the head's logits again.
func TestProfileCountsTheStage(t *testing.T) {
	be, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	wrapped, prof := withProfile(be)
	// long: attention shows
	load := Load{Seqs: 2, Length: 150, Samples: 3, Prompts: 2, N: 2, Prompt: 20, New: 60,
		Micro: 160}
	g, err := newGame(wrapped, tiny, load)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	heads := load.Seqs * (load.Length - 1)
	scores := float64(tiny.Layers*load.Seqs) * 2 *
		float64(load.Length*(load.Length+1)/2*tiny.Heads*tiny.HeadDim)
	logits := 2 * float64(heads*tiny.Vocab*tiny.Hidden)
	for _, c := range []struct {
		name string
		run  func() error
		want float64
	}{
		{"SFT step", g.sftStep, g.pass(3, load.Seqs, load.Length, heads).FLOPs + scores + logits},
		{"generation", g.generate, g.sampling(load.Samples, 1).FLOPs},
	} {
		ops, err := prof.measure(Limits{F32: 1e9, Products: 1e9, Read: 1e9, Copy: 1e9}, c.run)
		if err != nil {
			t.Fatal(err)
		}
		got := 0.0
		for _, u := range ops {
			got += u.FLOPs
		}
		if math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("%s: operations of the profile %g, of the stage %g", c.name, got, c.want)
		}
	}
}

// What does not fit in the time or the memory is left out and said.
func TestLeftOut(t *testing.T) {
	be, err := cpu.New(cpu.Options{Workers: 1, Limit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	l := Limits{F32: 1e9, Products: 1e9, Read: 1e9, Copy: 1e9}
	stages, err := measureStages(be, l, tiny, tinyLoad, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stages {
		if !strings.Contains(s.Note, "needs 0.0 GB of 0.0 GB") {
			t.Errorf("%s: note %q", s.Name, s.Note)
		}
	}
	var text bytes.Buffer
	if err := (&Report{Stages: stages}).Print(&text); err != nil ||
		!strings.Contains(text.String(), "not measured") {
		t.Errorf("%v:\n%s", err, text.String())
	}
	s := Stage{Name: "slow"}
	err = s.measure(nil, Limits{Products: 1}, work{Cost: compute.Cost{FLOPs: 100}}, time.Second,
		time.Second, func() error { panic("was run") })
	if err != nil || !strings.Contains(s.Note, "about 200 s") {
		t.Errorf("%v, %q", err, s.Note)
	}
}

func TestServe(t *testing.T) {
	be, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	in := "sft\ngenerate\ngad\nlinear 3 64 32\nlinear 3 64\nlinear 3 64 x\nlunch\n\n"
	var out bytes.Buffer
	if err := Serve(strings.NewReader(in), &out, be, tiny, tinyLoad); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 8 {
		t.Fatalf("%d answers:\n%s", len(lines), out.String())
	}
	for i, line := range lines {
		var a Answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if good := i < 4; good != (a.Error == "" && a.Seconds > 0) {
			t.Errorf("answer %d: %s", i, line)
		}
		if i == 2 && len(a.Parts) != 5 {
			t.Errorf("%d parts of a GAD step", len(a.Parts))
		}
	}
}

// The case sample keeps weights as the load says: this model's rows are no blocks.
func TestServeSampleOfBlocks(t *testing.T) {
	be, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	load := tinyLoad
	load.Weights = "q8_0"
	var out bytes.Buffer
	if err := Serve(strings.NewReader("sample 1 4 5 0 ../../testdata/model/qwen2_tied\n"), &out, be,
		tiny, load); err != nil {
		t.Fatal(err)
	}
	if want := "rows of 48 elements: q8_0 keeps blocks of 32 of a row"; !strings.Contains(
		out.String(), want) {
		t.Errorf("%s does not say %q", out.String(), want)
	}
}

// The case sample gives the tokens of the folder's model, the same each time when greedy.
func TestServeSample(t *testing.T) {
	be, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer be.Close()
	const folder = "../../testdata/model/qwen2_tied"
	var out bytes.Buffer
	if err := Serve(strings.NewReader("sample 3 4 5 0 "+folder+"\nsample 3 4 5 1 "+folder+"\nsample 3 4 5 1 "+folder+"\nsample 3 4 5 0 "+folder+"\n"), &out, be, tiny, tinyLoad); err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(be, folder, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var prompts [][]int32
	for i := range 3 {
		prompts = append(prompts, ids(4, 1000+i, m.Config().Vocab))
	}
	want, err := m.Generate(prompts, []uint64{0, 1, 2}, model.SampleOptions{N: 1, MaxNew: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	answers := make([]Answer, 4)
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if err := json.Unmarshal([]byte(line), &answers[i]); err != nil || answers[i].Error != "" ||
			!(0 < answers[i].First && answers[i].First < answers[i].Seconds) ||
			len(answers[i].Tokens) != 3 {
			t.Fatalf("%v: %s", err, line)
		}
	}
	for i := range 3 {
		if !slices.Equal(answers[0].Tokens[i], want[i][0].IDs) ||
			!slices.Equal(answers[3].Tokens[i], want[i][0].IDs) {
			t.Errorf("sequence %d: %v and %v, want %v", i, answers[0].Tokens[i],
				answers[3].Tokens[i], want[i][0].IDs)
		}
	}
	if reflect.DeepEqual(answers[1].Tokens, answers[2].Tokens) {
		t.Error("two sampled cases drew the same tokens")
	}

	for line, want := range map[string]string{
		"sample 3 4 5 0":                  "bench: serve: sample: 5 words: expected sample B P N T F",
		"sample 3 0 5 0 " + folder:        `bench: serve: sample: "0": expected a number from 1 to 65536`,
		"sample 3 4 5 warm " + folder:     `bench: serve: sample: temperature "warm": expected a number of at least 0`,
		"sample 3 4 5 -1 " + folder:       "expected temperature and top-k of at least 0",
		"sample 3 4 5 0 a folder of none": "a folder of none",
	} {
		out.Reset()
		var a Answer
		if err := Serve(strings.NewReader(line+"\n"), &out, be, tiny, tinyLoad); err != nil ||
			json.Unmarshal(out.Bytes(), &a) != nil || !strings.Contains(a.Error, want) {
			t.Errorf("%s: %v: %s, want %q", line, err, out.String(), want)
		}
	}
}

func TestMistakes(t *testing.T) {
	if _, err := Run(Options{Open: open, Config: tiny, Load: tinyLoad, What: []string{"limits", "op"}}); err == nil || !strings.Contains(err.Error(), `"op": expected some of limits, ops, stages`) {
		t.Errorf("unknown part: %v", err)
	}
	if _, err := Run(Options{Open: func() (compute.Backend, error) { return nil, os.ErrNotExist },
		Config: tiny, Load: tinyLoad}); err != os.ErrNotExist {
		t.Errorf("no device: %v", err)
	}
}

// The named shapes are valid, and have the parameters of their names.
func TestShapes(t *testing.T) {
	want := map[string]float64{"25m": 25e6, "qwen2.5-0.5b": 494e6, "qwen2.5-1.5b": 1544e6,
		"qwen2.5-3b": 3086e6, "qwen2.5-7b": 7616e6}
	for _, name := range ShapeNames() {
		c := Shapes[name]
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := float64(c.ParamCount(model.LM)); n < 0.99*want[name] || n > 1.01*want[name] {
			t.Errorf("%s has %g parameters, want about %g", name, n, want[name])
		}
	}
}

func TestFormats(t *testing.T) {
	for want, got := range map[string]string{
		"10 ": amount(9.999), "1.00 k": amount(1000), "46.0 k": amount(46014),
		"475 G":  amount(474.8e9),
		"1.00 M": amount(999.6e3), "5.70 M": amount(5.7e6), "12.3 µs": duration(12.34e-6),
		"1.00 ms": duration(999.6e-6), "1.05 s": duration(1.049),
		"█████····· 48 % of memory": strings.ReplaceAll(
			Use{Bound: boundMemory, Share: 0.48}.share(), "  ", " "),
		"██████████ 113 % of memory (operands came from a cache)": Use{
			Bound: boundMemory, Share: 1.13}.share(),
		"██████████ 104 % of products (the limit was measured while the machine was busier)": Use{
			Bound: boundProducts, Share: 1.04}.share(),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
