package plan

import (
	"fmt"
	"strings"

	"gad/internal/compute"
	"gad/model"
	"gad/trainer/config"
)

// trainings lists the rows of a student. A row changes only the settings in its name; --fit adds
// others. Only the row with 8-bit moments has them, and only one a base in 4 bits.
var trainings = []struct {
	name string
	set  func(*config.Config)
}{
	{"all weights", func(*config.Config) {}},
	{"all weights, moments in 8 bits",
		func(c *config.Config) { c.Actor.Optim.Moments, c.Critic.Optim.Moments = "8bit", "8bit" }},
	{fmt.Sprintf("LoRA, rank %d", config.PresetRank),
		func(c *config.Config) {
			c.Actor.LoRA.Rank, c.Critic.LoRA.Rank = config.PresetRank,
				config.PresetRank
		}},
	{fmt.Sprintf("LoRA, rank %d, base in q4_0", config.PresetRank),
		func(c *config.Config) {
			c.Actor.LoRA.Rank, c.Critic.LoRA.Rank, c.Actor.LoRA.Base = config.PresetRank,
				config.PresetRank, "q4_0"
		}},
}

// cardSizes lists the memories of common GPUs, in GB of 1e9 bytes.
var cardSizes = []int64{12, 16, 24, 48, 80, 141}

// cardPrompts is the paper's batch; eight answers to each are the default.
const cardPrompts = 128

// Cards returns a Markdown table of the memory of the game on common GPUs, on the backend of f, a
// GPU that this machine need not have.
func Cards(f model.Footprint) string {
	var b strings.Builder
	c := cardConfig()
	fmt.Fprintf(&b, "Stage train: student, discriminator and reference. %d prompts x %d answers a step, prompts of up to %d tokens, answers of up to %d (the paper's limits); %s in matrix products; all other settings are the defaults, plus what `gad plan --fit` adds, which the cell says. GB are 1e9 bytes.\n\n",
		cardPrompts, c.Rollout.N, c.Data.MaxPrompt, c.Data.MaxResponse,
		map[int64]string{2: "bfloat16", 4: "float32"}[f.Element(compute.Narrow)])
	b.WriteString("| student | trained |")
	for _, gb := range cardSizes {
		fmt.Fprintf(&b, " %d GB |", gb)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(cardSizes)) + "\n")
	for _, student := range model.Qwen25 {
		for _, training := range trainings {
			fmt.Fprintf(&b, "| %s | %s |", student.Name, training.name)
			for _, gb := range cardSizes {
				c := cardConfig()
				training.set(&c)
				fmt.Fprintf(&b, " %s |", card(f, student.Config, c, gb*1e9))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// cardConfig returns the settings of the game in a table.
func cardConfig() config.Config {
	c := config.StageDefaults(config.Train)
	c.Trainer.Device, c.Data.TrainBatchSize = "cuda", cardPrompts
	return c
}

// card returns a cell: the memory of a run on a card and the settings added, or the memory that it
// would need.
func card(f model.Footprint, shape model.Config, c config.Config, free int64) string {
	p := cardPlan(c, free)
	p.choose(f, shape, c)
	fit := p.fit(f, shape, c, true)
	if !fit.fits {
		return fmt.Sprintf("no: %s", gb(fit.memory))
	}
	p.choose(f, shape, fit.config)
	fit.memory = Total(p.planMemory(networksOf(f, shape), fit.config))
	text := "**" + gb(fit.memory) + "**"
	for i, choice := range fit.takenChoices() {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + choice.short
	}
	if fit.host > 0 {
		text += fmt.Sprintf(" (%s there)", gb(fit.host))
	}
	return text
}

// cardPlan returns a plan for a card, with answers and prompts at their limits.
func cardPlan(c config.Config, free int64) *Plan {
	return &Plan{Stage: config.Train, PromptMean: float64(c.Data.MaxPrompt),
		AnswerMean: float64(c.MaxAnswer(config.Train)), MemoryFree: free}
}

// gb formats bytes in GB of 1e9 bytes.
func gb(bytes int64) string { return fmt.Sprintf("%.1f GB", float64(bytes)/1e9) }
