package plan

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"gad/internal/compute/cpu"
	"gad/internal/compute/cuda"
	"gad/internal/hostile"
	"gad/model"
	"gad/trainer/config"
	"gad/trainer/modeltest"
)

// The shapes are those of the published models: their sizes are known.
func TestQwenShapes(t *testing.T) {
	for i, want := range []int64{494_032_768, 1_543_714_304, 3_085_938_688, 7_615_616_512} {
		if err := model.Qwen25[i].Config.Validate(); err != nil {
			t.Error(err)
		}
		if got := model.Qwen25[i].Config.ParamCount(model.LM); got != want {
			t.Errorf("%s: %d parameters, want %d", model.Qwen25[i].Name, got, want)
		}
	}
}

// fitting is a plan's, with its table of memory.
func fitting(f model.Footprint, shape model.Config, c config.Config, stage config.Stage, free,
	host int64) (*Plan, *Fit) {
	p := cardPlan(c, free)
	p.Stage, p.HostFree = stage, host
	return p, p.fit(f, shape, c, false)
}

// What fit finds is what a search over all settings finds, as a user would write them: it
// fits, and nothing that fits costs less.
func TestFitIsTheCheapest(t *testing.T) {
	t.Parallel()
	shape := model.Qwen25[1].Config
	shape.Layers = 4
	for _, device := range []struct {
		name string
		f    model.Footprint
	}{{"cuda", cuda.Options{}}, {"cpu", cpu.Footprint{}}} {
		stages := []config.Stage{config.Train, config.SFT, config.DPO}
		if !hostile.Long() {
			stages = stages[:1]
		}
		for _, stage := range stages {
			for _, lora := range []bool{false, true} {
				if !hostile.Long() && lora != (device.name == "cpu") || lora && testing.Short() {
					continue // each device with what only it chooses: offloading, a base in blocks
				}
				c := config.StageDefaults(stage)
				c.Trainer.Device, c.Data.TrainBatchSize, c.Data.MaxPrompt, c.Data.MaxResponse, c.Actor.MaxTokenLen, c.Critic.MaxTokenLen, c.Rollout.MaxNumSeqs = device.name, 16, 512, 256, 2048, 1536, 16
				if lora {
					c.Actor.LoRA.Rank, c.Critic.LoRA.Rank = 32, 32
				}
				most, _ := fitting(device.f, shape, c, stage, 1, 0)
				most.setMemory(device.f, shape, c)
				whole := Total(most.Memory)
				known := map[string]needed{}
				for _, share := range []float64{1.01, 0.75, 0.45, 0.3} {
					free, host := int64(share*float64(whole)), int64(0)
					if share < 0.5 { // and the host has not room for all
						host = 5e9
					}
					p, got := fitting(device.f, shape, c, stage, free, host)
					name := fmt.Sprintf("%s, %s, LoRA %t, %.0f %%", device.name, stage, lora,
						100*share)
					checkFit(t, name, p, got, device.f, shape, c, known)
				}
			}
		}
	}
}

// needed is what a run takes with some settings.
type needed struct {
	memory, host int64
	seconds      float64
}

func checkFit(t *testing.T, name string, p *Plan, got *Fit, f model.Footprint, shape model.Config,
	c config.Config, known map[string]needed) {
	t.Helper()
	need := func(set []string) (memory, host int64, seconds float64) {
		key := strings.Join(set, " ")
		if n, ok := known[key]; ok {
			return n.memory, n.host, n.seconds
		}
		x := c
		if err := x.Load("", set...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		own := networksOf(f, shape)
		n := needed{Total(p.planMemory(own, x)), Total(p.planHost(own, x)),
			newPace(f, shape, x).step(p, x)}
		known[key] = n
		return n.memory, n.host, n.seconds
	}
	memory, host, seconds := need(got.Settings)
	if memory != got.memory || host != got.host {
		t.Errorf("%s: %q take %d and %d on the host, fit says %d and %d", name, got.Settings,
			memory, host, got.memory, got.host)
	}
	fits := func(memory, host int64) bool {
		return memory <= p.MemoryFree && (p.HostFree == 0 || host <= p.HostFree)
	}
	if got.fits != fits(memory, host) {
		t.Errorf("%s: %q take %d of %d and %d of %d, fit says %t", name, got.Settings, memory,
			p.MemoryFree, host, p.HostFree, got.fits)
	}
	rounds := func(set []string) int {
		all := strings.Join(set, " ")
		return strings.Count(all, "8bit") + 3*strings.Count(all, "q8_0") +
			4*strings.Count(all, "q4_0")
	}
	// All settings, as a user would write them.
	groups := [][]string{{"", "actor.recompute=true critic.recompute=true"},
		{"", "actor.max_token_len=1536", "actor.max_token_len=1024 critic.max_token_len=1024",
			"actor.max_token_len=768 critic.max_token_len=768"},
		{""}, {""}, {""}, {"", "actor.optim.moments=8bit", "critic.optim.moments=8bit",
			"actor.optim.moments=8bit critic.optim.moments=8bit"}, {""}}
	for n := 8; n > 0 && p.Stage != config.SFT; n /= 2 {
		groups[2] = append(groups[2], fmt.Sprintf("rollout.max_num_seqs=%d", n))
	}
	if c.Actor.LoRA.On() {
		groups[3] = append(groups[3], "rollout.merged=false")
		if c.Trainer.Device != "cuda" {
			groups[6] = append(groups[6], "actor.lora.base=q8_0", "actor.lora.base=q4_0")
			groups[1] = groups[1][:2] // the other packs are searched without a base
		}
	}
	if c.Trainer.Device == "cuda" {
		groups[4] = append(groups[4], "actor.optim.offload=true", "critic.optim.offload=true",
			"actor.optim.offload=true critic.optim.offload=true")
	}
	var walk func(at int, set []string)
	walk = func(at int, set []string) {
		if at == len(groups) {
			m, h, s := need(set)
			if !fits(m, h) {
				return
			}
			if !got.fits {
				t.Fatalf("%s: nothing fits, it says, but %q take %d of %d", name, set, m,
					p.MemoryFree)
			}
			if rounds(set) < rounds(got.Settings) || rounds(set) == rounds(got.Settings) &&
				s < seconds*(1-1e-12) {
				t.Fatalf("%s: %q take %.3g s a step, %q %.3g s", name, got.Settings, seconds, set,
					s)
			}
			return
		}
		for _, g := range groups[at] {
			walk(at+1, append(slices.Clone(set), strings.Fields(g)...))
		}
	}
	if strings.HasSuffix(name, "75 %") || strings.HasSuffix(name, "45 %") {
		walk(0, nil)
	}
	// What each choice saves, alone.
	for _, choice := range got.Choices {
		without := slices.DeleteFunc(slices.Clone(got.Settings),
			func(s string) bool { return slices.Contains(choice.Settings, s) })
		a, _, s := need(without)
		b, _, u := need(append(without, choice.Settings...))
		if choice.Saves != a-b || choice.Taken != (len(without) < len(got.Settings)) ||
			choice.Seconds-(u-s) > 1e-9*u || (u-s)-choice.Seconds > 1e-9*u {
			t.Errorf("%s: %+v: %q take %d bytes without it and %d with it, %g s and %g s", name,
				choice, got.Settings, a, b, s, u)
		}
	}
}

// Moments are rounded only where nothing else is enough.
func TestFitRoundsLast(t *testing.T) {
	t.Parallel()
	shape, f := model.Qwen25[3].Config, cuda.Options{}
	c, most := cardConfig(), hostile.Share(4)
	if testing.Short() {
		most = 1
	}
	for _, x := range []struct {
		host int64
		want string
	}{
		{0, "actor.optim.offload=true critic.optim.offload=true"},
		{200e9, "actor.optim.offload=true critic.optim.offload=true"},
		// whose moments cross the bus four times as often
		{80e9, "actor.optim.offload=true critic.optim.offload=true actor.optim.moments=8bit"},
		{50e9, "actor.optim.offload=true critic.optim.offload=true actor.optim.moments=8bit critic.optim.moments=8bit"},
	}[:most] {
		if _, got := fitting(f, shape, c, config.Train, 141e9, x.host); !got.fits ||
			strings.Join(got.Settings, " ") != x.want {
			t.Errorf("host of %d bytes: %t, %q, want %q", x.host, got.fits, got.Settings, x.want)
		}
	}
	p, got := fitting(f, shape, c, config.Train, 141e9, 10e9)
	if p.setMemory(f, shape, got.config); got.fits || !p.hostTooLarge() && !p.tooLarge() {
		t.Errorf("host of 10 GB: %q", got.Settings)
	}
}

// A host that is too small for the moments is an error that names it.
func TestHostMemory(t *testing.T) {
	shape, f := model.Qwen25[0].Config, cuda.Options{}
	c := cardConfig()
	c.Actor.Optim.Offload, c.Critic.Optim.Offload = true, true
	p := cardPlan(c, 80e9)
	p.HostFree = 5e9
	p.setMemory(f, shape, c)
	p.Fits = p.wayOut(p.fit(f, shape, c, false), f, shape, c)
	const want = "configuration: plan: does not fit in the host's memory: needs 7.9 GB, 5 GB are available: with actor.optim.moments=8bit critic.optim.moments=8bit it needs 14.6 GB (gad plan --fit says why)"
	if err := p.Check(c); err == nil || err.Error() != want {
		t.Errorf("%v, want\n%s", err, want)
	}
	if text := p.String(); !strings.Contains(text, "memory of the host\n  actor: optimizer") ||
		!strings.Contains(text, "7.9 GB of 5 GB available") {
		t.Errorf("the plan does not show the host's memory:\n%s", text)
	}
}

// Issue 13: a game of 7B with LoRA in 60 GB, and in full in 141 GB.
func TestSevenBillionFits(t *testing.T) {
	shape, f := model.Qwen25[3].Config, cuda.Options{}
	for i, limit := range map[int]int64{2: 60e9, 0: 141e9, 1: 141e9} {
		c := cardConfig()
		trainings[i].set(&c)
		fit := cardPlan(c, limit).fit(f, shape, c, true)
		if !fit.fits {
			t.Errorf("%s: needs %s of %s", trainings[i].name, gb(fit.memory), gb(limit))
		}
		t.Logf("7B, %s: %s of %s (%s on the host) with %q", trainings[i].name, gb(fit.memory),
			gb(limit), gb(fit.host), fit.Settings)
	}
}

// The two networks of the game have one buffer for gradients, which other stages do not.
func TestPlanOfGradients(t *testing.T) {
	shape, f := model.Qwen25[0].Config, cuda.Options{}
	rows := func(stage config.Stage, set ...string) map[string]int64 {
		c := config.StageDefaults(stage)
		c.Trainer.Device = "cuda"
		if err := c.Load("", set...); err != nil {
			t.Fatal(err)
		}
		p := cardPlan(c, 0)
		p.Stage = stage
		m := map[string]int64{}
		for _, i := range p.planMemory(networksOf(f, shape), c) {
			m[i.Name] = i.Bytes
		}
		return m
	}
	const shared = "gradients: one buffer for student and discriminator"
	own, other :=
		shape.Plan(f, model.PlanOptions{Trainable: true}).Gradients,
		shape.Plan(f, model.PlanOptions{Kind: model.Scorer, Trainable: true}).Gradients
	if own > other { // a head more, which may still lie in the same page
		t.Fatalf("gradients of %d and %d bytes: the discriminator has a head more", own, other)
	}
	for _, stage := range []config.Stage{config.Warmup, config.Train} {
		if m := rows(stage); m[shared] != other || m["actor: gradients"] != 0 ||
			m["critic: gradients"] != 0 {
			t.Errorf("%s: %v", stage, m)
		}
	}
	if m := rows(config.Train, "critic.lora.rank=8"); m[shared] != own {
		t.Errorf("a discriminator of adapters: %v", m)
	}
	for _, stage := range []config.Stage{config.SFT, config.DPO} {
		if m := rows(stage); m[shared] != 0 || m["actor: gradients"] != own {
			t.Errorf("%s: %v", stage, m)
		}
	}
	// Merged weights sample for the student, and have no gradients whose memory they could use.
	merged, beside :=
		rows(config.Train, "actor.lora.rank=64", "critic.lora.rank=64"),
		rows(config.Train, "actor.lora.rank=64", "critic.lora.rank=64", "rollout.merged=false")
	if merged["sampling, adapters merged: weights"] == 0 || merged["actor: key/value cache"] != 0 ||
		merged["sampling, adapters merged: key/value cache"] <= beside["actor: key/value cache"] ||
		beside["sampling, adapters merged: weights"] != 0 {
		t.Errorf("merged %v\nbeside %v", merged, beside)
	}
}

// A checkpoint holds weights in float32 and moments as they are kept, wherever they are.
func TestPlanOfDisk(t *testing.T) {
	shape := model.Qwen25[0].Config
	n := shape.ParamCount(model.LM) + shape.ParamCount(model.Scorer)
	disk := func(set ...string) int64 {
		c := cardConfig()
		if err := c.Load("", set...); err != nil {
			t.Fatal(err)
		}
		p := cardPlan(c, 0)
		p.planDisk(shape, c)
		return p.Disk[0].Bytes / int64(c.Trainer.MaxToKeep+1)
	}
	whole := disk()
	if whole != 12*n || disk("actor.optim.offload=true", "critic.optim.offload=true") != whole {
		t.Errorf("a checkpoint of %d bytes, want %d", whole, 12*n)
	}
	// of each network: 6 bytes less, and two scales of 256
	linear := int64(24 * (2*896*896 + 2*128*896 + 3*4864*896))
	if got, want :=
		disk("actor.optim.moments=8bit", "critic.optim.moments=8bit"),
		whole-2*(6*linear-linear/32); got != want {
		t.Errorf("moments in 8 bits: a checkpoint of %d bytes, want %d", got, want)
	}
	// As many as a run keeps or writes, the one being written, and the best.
	for _, r := range []struct {
		steps, freq, keep, want int
		best                    string
	}{
		{0, 30, 100, 101, ""}, {300, 30, 100, 11, ""}, {301, 30, 100, 12, ""}, {300, 30, 4, 5, ""},
		{300, 0, 4, 2, ""}, {20, 50, 2, 2, ""}, {300, 30, 4, 6, "val_nll"},
	} {
		c := cardConfig()
		c.Trainer.SaveFreq, c.Trainer.MaxToKeep, c.Trainer.KeepBest = r.freq, r.keep, r.best
		p := cardPlan(c, 0)
		p.Steps = r.steps
		if p.planDisk(shape, c); p.Disk[0].Bytes != int64(r.want)*whole {
			t.Errorf("%+v: %s", r, p.Disk[0].Name)
		}
	}
}

// doc/memory.md has what gad plan --cards prints, and gad plan --fit.
func TestDocumentsAreTheCards(t *testing.T) {
	if !hostile.Long() && !modeltest.Updating() {
		t.Skip("fits eight models to every card: in a long run")
	}
	f, shape := cuda.Options{}, model.Qwen25[1].Config
	c := cardConfig()
	p := cardPlan(c, 24e9)
	text := "```\n$ gad plan --model Qwen2.5-1.5B --output runs/game --device cuda --memory 24 --fit\n" + p.fit(f, shape, c, false).String() + "...\n```\n"
	path := modeltest.Root("doc", "memory.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for command, text := range map[string]string{"gad plan --fit": text,
		"gad plan --cards": Cards(f)} {
		begin, end := "<!-- "+command+" -->\n", "<!-- /"+command+" -->\n"
		before, rest, ok := bytes.Cut(doc, []byte(begin))
		_, after, closed := bytes.Cut(rest, []byte(end))
		if !ok || !closed {
			t.Fatalf("%s: no %s%s", path, begin, end)
		}
		doc = slices.Concat(before, []byte(begin+text+end), after)
	}
	modeltest.Golden(t, path, doc)
}

// TestFitTakesABase: LoRA's frozen base is kept in 8 bits where nothing else is enough, in 4 bits
// where 8 are not, on a GPU too, and as it is in a run that goes on from another.
func TestFitTakesABase(t *testing.T) {
	shape := model.Qwen25[0].Config
	shape.Layers = 3
	c := config.StageDefaults(config.Train)
	c.Actor.LoRA.Rank, c.Critic.LoRA.Rank, c.Trainer.Device = 16, 16, "cpu"
	base := func(f model.Footprint, c config.Config, free int64) (string, int64) {
		_, got := fitting(f, shape, c, config.Train, free, 0)
		return got.config.Actor.LoRA.Base, got.memory
	}
	resumed := c
	resumed.Trainer.Resume = "run"
	native, least := base(cpu.Footprint{}, resumed, 1)
	if native != c.Actor.LoRA.Base {
		t.Errorf("a resumed run has the base %q", native)
	}
	if got, _ := base(cpu.Footprint{}, c, least); got != native {
		t.Errorf("with what the base as it is takes: %q", got)
	}
	got, memory := base(cpu.Footprint{}, c, least-1)
	if got != "q8_0" || memory >= least {
		t.Errorf("with less than the base as it is takes: %q, %d of %d bytes", got, memory, least-1)
	}
	eight := c
	eight.Actor.LoRA.Base = "q8_0"
	_, least = base(cpu.Footprint{}, eight, 1)
	if got, memory := base(cpu.Footprint{}, c, least-1); got != "q4_0" || memory >= least {
		t.Errorf("with less than a base in 8 bits takes: %q, %d of %d bytes", got, memory, least-1)
	}
	c.Trainer.Device = "cuda"
	if got, _ := base(cuda.Options{}, c, 1); got != "q4_0" {
		t.Errorf("with little memory a GPU has the base %q", got)
	}
}

// TestNetworksOfTwoShapes has networks with equal options, of which one is of another shape, as
// teachers by row are.
func TestNetworksOfTwoShapes(t *testing.T) {
	f, small, large := cpu.Footprint{}, model.Qwen25[0].Config, model.Qwen25[1].Config
	n, o := networksOf(f, small), model.PlanOptions{Kind: model.LM, Tokens: 100}
	for range 2 {
		for _, shape := range []model.Config{small, large} {
			if got, want := n.plan(shape, o), shape.Plan(f, o); got.Total() != want.Total() ||
				got.Weights != want.Weights {
				t.Errorf("%d layers: %d bytes, want %d", shape.Layers, got.Total(), want.Total())
			}
		}
	}
}
