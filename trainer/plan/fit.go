package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gad/internal/compute"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/config"
)

// The search for the settings with which a run fits a memory, and the cost of each of them.

// Fit is the cheapest combination of settings that fits a memory: first of those that round
// the fewest numbers, and among them the one with the least time for a step.
type Fit struct {
	Settings []string // KEY=VALUE, to be added; none where the run fits as it is
	Choices  []Choice
	Tried    int // number of combinations
	Cheaper  int // how many of them cost less and do not fit

	free   int64
	rates  rates
	fits   bool
	config config.Config
	memory int64 // memory of config; if nothing fits, of the smallest combination
	host   int64
}

// Choice is a setting that makes a run smaller, or a group of settings.
type Choice struct {
	Settings []string
	Taken    bool
	Saves    int64   // bytes, by this choice alone: combination without it minus with it
	Seconds  float64 // additional time of a step
	Share    float64 // of the step's time
	Why      string

	short string // in tables
}

// rates are the speeds that the prices assume, because a plan may be for a device that is not
// there: floating-point operations, bytes of memory and bytes over the bus, each per second. They
// serve to compare prices, not to predict times.
type rates struct{ flops, memory, bus float64 }

var (
	gpuRates = rates{400e12, 3e12, 50e9}
	cpuRates = rates{0.5e12, 50e9, 50e9}
)

// String describes the assumed device.
func (r rates) String() string {
	if r == cpuRates {
		return "a processor of 0.5 TFLOP/s and 50 GB/s"
	}
	return "a GPU of 400 TFLOP/s and 3 TB/s, with a bus of 50 GB/s"
}

// level is one alternative of a dimension.
type level struct {
	settings []string
	set      func(*config.Config)
	rounds   int // networks whose moments it rounds; 3 or 4 for a base in blocks
	short    string
}

// dimension is a list of alternatives, of which a combination has one; the first leaves the
// settings unchanged.
type dimension struct {
	levels []level
	why    string
}

// unmergedSampling is the factor by which sampling takes longer with unmerged adapters, which add
// three small products to each layer. It is an assumption.
const unmergedSampling = 1.25

// dimensions returns the alternatives by which a run becomes smaller. exact leaves out those that
// round.
func (p *Plan) dimensions(f model.Footprint, shape model.Config, c config.Config,
	exact bool) (all []dimension) {
	game := p.Stage.HasCritic()
	networks := func(set func(critic bool) string) (settings []string) {
		if s := set(false); s != "" {
			settings = append(settings, s)
		}
		if s := set(true); s != "" && game {
			settings = append(settings, s)
		}
		return settings
	}
	add := func(why string, levels ...level) {
		if len(levels) > 0 {
			all = append(all, dimension{append([]level{{set: func(*config.Config) {}}}, levels...),
				why})
		}
	}
	if !c.Actor.Recompute || game && !c.Critic.Recompute {
		add("one more forward pass in each update; the same bits", level{
			settings: networks(func(critic bool) string {
				switch {
				case !critic && !c.Actor.Recompute:
					return "actor.recompute=true"
				case critic && !c.Critic.Recompute:
					return "critic.recompute=true"
				}
				return ""
			}),
			set: func(c *config.Config) {
				c.Actor.Recompute = true
				c.Critic.Recompute = c.Critic.Recompute || game
			}, short: "recompute"})
	}
	var packs []level
	for _, answers := range []int{4, 2, 1} {
		n := c.Data.MaxPrompt +
			answers*(max(c.Longest(p.Stage), c.LongestScored(p.Stage))-c.Data.MaxPrompt)
		if c.Actor.MaxTokenLen <= n && (!game || c.Critic.MaxTokenLen <= n) {
			continue
		}
		packs = append(packs, level{
			settings: networks(func(critic bool) string {
				switch {
				case !critic && c.Actor.MaxTokenLen > n:
					return fmt.Sprintf("actor.max_token_len=%d", n)
				case critic && c.Critic.MaxTokenLen > n:
					return fmt.Sprintf("critic.max_token_len=%d", n)
				}
				return ""
			}),
			set: func(c *config.Config) {
				c.Actor.MaxTokenLen = min(c.Actor.MaxTokenLen, n)
				if game {
					c.Critic.MaxTokenLen = min(c.Critic.MaxTokenLen, n)
				}
			}, short: fmt.Sprintf("packs of %d", n)})
	}
	add("a prompt is computed once for each pack, and each pack reads all weights and gradients; the same to rounding", packs...)
	var slots []level
	for _, x := range c.Passes(p.Stage, c.Data.TrainBatchSize, true) {
		if x.Kind != config.Sample {
			continue
		}
		for n := min(p.slots(c), x.Prompts*x.Students) / 2; n > 0; n /= 2 {
			slots = append(slots, level{
				settings: []string{fmt.Sprintf("rollout.max_num_seqs=%d", n)},
				set:      func(c *config.Config) { c.Rollout.MaxNumSeqs = n },
				short:    fmt.Sprintf("%d answers at a time", n)})
		}
	}
	add("fewer answers are sampled at a time, and the weights are read once for each token of them; the same to rounding", slots...)
	if c.Merges(p.Stage) {
		add(fmt.Sprintf("sampling computes the adapters beside the base, by assumption %g times as long; the same to rounding", unmergedSampling), level{
			settings: []string{"rollout.merged=false"},
			set:      func(c *config.Config) { c.Rollout.Merged = "false" }, short: "unmerged"})
	}
	if f.Element(compute.Wide|compute.Host) == 0 {
		add("moments are read and written over the bus in each update; the same bits",
			networkLevels(game, !c.Actor.Optim.Offload, !c.Critic.Optim.Offload,
				"optim.offload=true", " on the host",
				func(c *config.Config) (actor, critic func()) {
					return func() { c.Actor.Optim.Offload = true },
						func() { c.Critic.Optim.Offload = true }
				})...)
	}
	if !exact {
		eight := networkLevels(game, c.Actor.Optim.Moments != "8bit",
			c.Critic.Optim.Moments != "8bit",
			"optim.moments=8bit", " in 8 bits", func(c *config.Config) (actor, critic func()) {
				return func() { c.Actor.Optim.Moments = "8bit" },
					func() { c.Critic.Optim.Moments = "8bit" }
			})
		for i := range eight {
			eight[i].rounds = len(eight[i].settings)
		}
		add("moments are rounded at each update: other numbers, so it is taken only where nothing else is enough", eight...)
		add("the frozen base is rounded once: other numbers, so it is taken only where nothing else is enough", bases(f, shape, c)...)
	}
	return all
}

// bases returns the quantised types in which LoRA's frozen base can be stored, in a fresh run: on a
// backend that has them, for matrices whose rows are whole blocks. They count as more rounding than
// the moments of both networks.
func bases(f model.Footprint, shape model.Config, c config.Config) (levels []level) {
	if !c.Actor.LoRA.On() || c.Trainer.Resume != "" || model.Quantised(c.LoRABase()) ||
		f.Element(compute.Q8) == 0 ||
		shape.Hidden%compute.QuantBlock != 0 || shape.FFN%compute.QuantBlock != 0 ||
		shape.Heads*shape.HeadDim%compute.QuantBlock != 0 {
		return nil
	}
	for i, class := range []string{"q8_0", "q4_0"} {
		levels = append(levels, level{settings: []string{"actor.lora.base=" + class}, rounds: 3 + i,
			short: "base in " + class,
			set:   func(c *config.Config) { c.Actor.LoRA.Base = class }})
	}
	return levels
}

// networkLevels returns the levels that set a setting of the discriminator, of the student, or of
// both, as far as it is not set already. actor and critic report whether the side can still be set.
func networkLevels(game, actor, critic bool, setting, short string,
	set func(*config.Config) (actor, critic func())) (levels []level) {
	one := level{settings: []string{"actor." + setting}, short: "student's moments" + short,
		set: func(c *config.Config) {
			a, _ := set(c)
			a()
		}}
	other := level{settings: []string{"critic." + setting},
		short: "discriminator's moments" + short, set: func(c *config.Config) {
			_, b := set(c)
			b()
		}}
	if game && critic {
		levels = append(levels, other)
	}
	if actor {
		levels = append(levels, one)
	}
	if game && actor && critic {
		levels = append(levels, level{settings: []string{one.settings[0], other.settings[0]},
			short: "all moments" + short, set: func(c *config.Config) {
				one.set(c)
				other.set(c)
			}})
	}
	return levels
}

// combination is a choice of one level of each dimension, with its price.
type combination struct {
	at      []int
	config  config.Config
	rounds  int
	seconds float64
	added   int // number of settings
}

// combine returns c with the levels at of dims, and their price.
func (p *Plan) combine(pace pace, dims []dimension, c config.Config, at []int) combination {
	x := combination{at: at}
	for d, l := range at {
		chosen := dims[d].levels[l]
		chosen.set(&c)
		x.rounds += chosen.rounds
		x.added += len(chosen.settings)
	}
	x.config, x.seconds = c, pace.step(p, c)
	return x
}

// fit returns the cheapest combination that fits, by trying all in the order of their cost. exact
// keeps moments in float32.
func (p *Plan) fit(f model.Footprint, shape model.Config, c config.Config, exact bool) *Fit {
	dims, pace := p.dimensions(f, shape, c, exact), newPace(f, shape, c)
	var all []combination
	smallest := make([]int, len(dims))
	for d := range dims {
		smallest[d] = len(dims[d].levels) - 1
	}
	for at := make([]int, len(dims)); at != nil; at = nextCombination(at, smallest) {
		all = append(all, p.combine(pace, dims, c, at))
	}
	slices.SortStableFunc(all, func(a, b combination) int {
		return cmp.Or(cmp.Compare(a.rounds, b.rounds), cmp.Compare(a.seconds, b.seconds),
			cmp.Compare(a.added, b.added))
	})
	fit := &Fit{Tried: len(all), free: p.MemoryFree, rates: pace.rates}
	known := networksOf(f, shape)
	needs := func(x combination) (memory, host int64) {
		return Total(p.planMemory(known, x.config)), Total(p.planHost(known, x.config))
	}
	// The smallest combination, without settings that do not make it smaller.
	chosen := p.combine(pace, dims, c, smallest)
	fit.memory, fit.host = needs(chosen)
	for d := len(dims) - 1; d >= 0; d-- {
		for l := range chosen.at[d] {
			at := slices.Clone(chosen.at)
			at[d] = l
			x := p.combine(pace, dims, c, at)
			if memory, host := needs(x); memory <= fit.memory &&
				(p.HostFree == 0 || host <= max(p.HostFree, fit.host)) {
				fit.memory, fit.host, chosen = memory, host, x
				break
			}
		}
	}
	if fit.memory <= p.MemoryFree || p.MemoryFree == 0 {
		for i, x := range all {
			memory, host := needs(x)
			if (p.MemoryFree == 0 || memory <= p.MemoryFree) &&
				(p.HostFree == 0 || host <= p.HostFree) {
				fit.fits, fit.Cheaper, fit.memory, fit.host, chosen = true, i, memory, host, x
				break
			}
		}
	}
	fit.config = chosen.config
	for d, dim := range dims {
		other := slices.Clone(chosen.at)
		taken := chosen.at[d] > 0
		if other[d] = 0; !taken {
			other[d] = 1
		}
		y := p.combine(pace, dims, c, other)
		memory, _ := needs(y)
		l := dim.levels[max(chosen.at[d], 1)]
		choice := Choice{Settings: l.settings, Taken: taken, Saves: fit.memory - memory,
			Seconds: y.seconds - chosen.seconds, Why: dim.why, short: l.short}
		if taken {
			choice.Saves, choice.Seconds = -choice.Saves, -choice.Seconds
			fit.Settings = append(fit.Settings, l.settings...)
		}
		choice.Share = choice.Seconds / min(chosen.seconds, y.seconds)
		fit.Choices = append(fit.Choices, choice)
	}
	return fit
}

// nextCombination returns the combination after at; last holds the last level of each dimension.
// nil: there are no more.
func nextCombination(at, last []int) []int {
	at = slices.Clone(at)
	for d := range at {
		if at[d] < last[d] {
			at[d]++
			return at
		}
		at[d] = 0
	}
	return nil
}

// pace holds the inputs of the price of a step.
type pace struct {
	rates
	f     model.Footprint
	shape model.Config
	// Bytes of moments that go to the host, by network (actor, critic) and in 8 bits.
	host [2][2]float64
}

// newPace returns the pace for a shape and the settings' device.
func newPace(f model.Footprint, shape model.Config, c config.Config) pace {
	p := pace{rates: cpuRates, f: f, shape: shape}
	if c.Trainer.Device == "cuda" {
		p.rates = gpuRates
	}
	for network, o := range []model.PlanOptions{c.StudentPlan(), c.DiscriminatorPlan()} {
		for eight := range 2 {
			o.Offload, o.Moments8 = true, eight == 1
			p.host[network][eight] = float64(shape.Plan(f, o).HostMoments)
		}
	}
	return p
}

// step returns the approximate seconds of a step with the settings of c: one epoch of each update,
// without old log-probabilities and without scores taken beforehand.
func (a pace) step(p *Plan, c config.Config) float64 {
	prompt, answer, prompts := p.PromptMean, p.AnswerMean, float64(c.Data.TrainBatchSize)
	narrow := float64(a.f.Element(compute.Narrow))
	weights := float64(a.shape.ParamCount(model.LM))
	token := a.shape.FLOPsPerToken((prompt+answer)/2, true) / a.flops
	// passes over answers answers to each prompt: the passes over all weights, in forward
	// passes, and in bytes a parameter that each pack moves.
	passes := func(answers float64, limit int, forward, bytes float64) float64 {
		each := max(1, float64(int((float64(limit)-prompt)/max(answer, 1)))) // answers in a pack
		tokens := prompt + answers*answer
		packs := prompts / float64(int(float64(limit)/max(tokens, 1)))
		if tokens > float64(limit) {
			n := float64(int((answers + each - 1) / each))
			packs, tokens = n*prompts, n*prompt+answers*answer
		}
		return tokens*prompts*token*forward + packs*weights*bytes/a.memory
	}
	update := func(answers float64, limit int, lora, recompute bool) float64 {
		// the weights in both directions, gradients read and written
		forward, bytes := 3.0, 2*narrow+8
		if lora {
			forward, bytes = 2, 2*narrow
		}
		if recompute {
			forward, bytes = forward+1, bytes+narrow
		}
		return passes(answers, limit, forward, bytes)
	}
	bus := func(x config.Pass, o model.OptimSettings) float64 {
		if !o.Offload {
			return 0
		}
		eight := 0
		if o.Moments == "8bit" {
			eight = 1
		}
		return 2 * a.host[x.Network][eight] * x.Times * float64(x.Updates()) / a.bus
	}
	sampling := func(x config.Pass) float64 {
		asked, answers := prompts, prompts*float64(x.Students)
		before, after := prompt, answer
		if notes := float64(x.Notes); notes > 0 {
			asked = float64(x.Prompts * x.Students)
			answers, before, after = asked, prompt+answer+notes, notes
		}
		slots := min(float64(p.slots(c)), answers)
		cached, states := narrow*float64(a.shape.Cached()), 2*4*float64(a.shape.Stated())
		// a token of all slots
		each := max((weights*narrow+slots*(cached*(before+after/2)+states))/a.memory, slots*token)
		seconds := asked*before*token + answers*after/slots*each
		if c.Actor.LoRA.On() && !c.Merges(p.Stage) {
			seconds *= unmergedSampling
		}
		return seconds
	}
	seconds := 0.0
	for _, x := range c.Passes(p.Stage, c.Data.TrainBatchSize, true) {
		o, n := c.NetworkConfig(x.Network), float64(x.Answers())
		switch {
		case x.Kind == config.Sample:
			seconds += sampling(x)
		case x.Kind == config.Learn:
			seconds += update(n, o.MaxTokenLen, o.LoRA.On(), o.Recompute) + bus(x, o.Optim)
		case x.Network == config.Teacher:
			longer := (p.promptOf(x.Network) + n*answer) / (prompt + n*answer)
			seconds += p.teacher.cost * longer * passes(n, o.MaxTokenLen, 1, narrow)
		case x.Network == config.Reference:
			seconds += passes(n, o.MaxTokenLen, 1, narrow)
		}
	}
	return seconds
}

// takenChoices returns the choices that were taken.
func (f *Fit) takenChoices() []Choice {
	return slices.DeleteFunc(slices.Clone(f.Choices), func(c Choice) bool { return !c.Taken })
}

// wayOut returns the advice for a plan that is too large, from the combination found.
func (p *Plan) wayOut(found *Fit, f model.Footprint, shape model.Config, c config.Config) string {
	if found.fits {
		return fmt.Sprintf("with %s it needs %s (gad plan --fit says why)",
			strings.Join(found.Settings, " "), report.Bytes(found.memory))
	}
	smallest := "no settings make it smaller"
	if len(found.Settings) > 0 {
		smallest = fmt.Sprintf("even with %s it needs %s", strings.Join(found.Settings, " "),
			report.Bytes(found.memory))
		if found.host > 0 {
			smallest += fmt.Sprintf(" and %s on the host", report.Bytes(found.host))
		}
	}
	way := "use a smaller student, shorter answers or more memory"
	if !c.Actor.LoRA.On() && c.Trainer.Resume == "" {
		lora := c
		lora.Actor.LoRA.Rank = config.PresetRank
		if p.Stage.HasCritic() {
			lora.Critic.LoRA.Rank = config.PresetRank
		}
		if less := p.fit(f, shape, lora, true); less.fits {
			way = fmt.Sprintf("train LoRA adapters, which fit in %s (--preset lora --fit), or %s",
				report.Bytes(less.memory), way)
		}
	}
	return smallest + ": " + way
}

// String formats the settings chosen, and the price of each choice.
func (f *Fit) String() string {
	if f == nil {
		return ""
	}
	var b strings.Builder
	if len(f.Settings) == 0 {
		fmt.Fprintf(&b, "fits %s as it is: no settings to add\n", report.Bytes(f.free))
		return b.String()
	}
	fmt.Fprintf(&b, "settings to add, to fit %s: the cheapest of %d combinations (%d cost less and do not fit)\n  %s\n", report.Bytes(f.free), f.Tried, f.Cheaper, strings.Join(f.Settings, " "))
	for _, c := range f.Choices {
		name := "not taken"
		if c.Taken {
			name = "taken"
		}
		fmt.Fprintf(&b, "  %-9s  %s\n             %s\n", name, strings.Join(c.Settings, " "),
			c.price())
	}
	fmt.Fprintf(&b,
		"  the seconds assume %s: for comparing prices, not for predicting a step's time\n",
		f.rates)
	return b.String()
}

// price returns the memory and time of the choice, in words.
func (c Choice) price() string {
	saves, cost := "would save ", ", at no time"
	if c.Taken {
		saves = "saves "
	}
	switch {
	case c.Seconds > 0:
		cost = fmt.Sprintf(", for %s a step (+%.1f %%)", report.Seconds(c.Seconds), 100*c.Share)
	case c.Seconds < 0:
		cost = fmt.Sprintf(", and %s a step", report.Seconds(-c.Seconds))
	}
	return saves + report.Bytes(max(0, c.Saves)) + cost + ": " + c.Why
}
