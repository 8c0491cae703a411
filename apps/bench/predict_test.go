package bench

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	estimate "gad/internal/compute/cost"
	"gad/internal/hostile"
	"gad/model"
)

var update = flag.Bool("update", false, "write doc/gpu/predicted.md and predicted.tsv again: some minutes")

// A prediction is of the program itself: its parts are the step's, its operations and the
// wait for the host are all of the time, and no more launches than the time has room for.
func TestPredict(t *testing.T) {
	load := Load{Seqs: 8, Length: 2048, Samples: 64, Prompts: 4, N: 8, Prompt: 256, New: 64,
		Micro: 4096, Slots: 16, Recompute: true}
	card, ok := estimate.FindCard("h200")
	if !ok {
		t.Fatal("no h200")
	}
	r, err := Predict(Options{Name: "1.5B", Config: model.Qwen25[1].Config, Load: load}, card)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range r.Ops {
		if !(o.Seconds > 0 && o.Share > 0 && o.Share < 1) {
			t.Errorf("%s %s: %g s, share %g of %s: want a share of a peak, below 1", o.Name, o.Size,
				o.Seconds, o.Share, o.Bound)
		}
	}
	if len(r.Ops) < 20 || len(r.Stages) != 3 {
		t.Fatalf("%d operations, %d stages", len(r.Ops), len(r.Stages))
	}
	for _, s := range r.Stages {
		sum, launches := 0.0, 0
		for _, u := range s.Ops {
			sum, launches = sum+u.Seconds, launches+u.Launches
			if u.Share > 1 {
				t.Errorf("%s: %s: %g of %s", s.Name, u.Name, u.Share, u.Bound)
			}
		}
		if !(s.Share > 0 && s.Share < 1) || math.Abs(sum-s.Seconds) > 0.01*s.Seconds ||
			float64(launches)*card.Gap > s.Seconds {
			t.Errorf("%s: %g s, share %g; its operations %g s, %d launches", s.Name, s.Seconds,
				s.Share, sum, launches)
		}
	}
	gad := r.Stages[2]
	var names []string
	sum := 0.0
	for _, p := range gad.Parts {
		names, sum = append(names, p.Name), sum+p.Seconds
	}
	if want := []string{"rollout", "old log-probabilities", "critic update",
		"reference log-probabilities", "advantages", "actor update"}; !slices.Equal(names, want) ||
		math.Abs(sum-gad.Seconds) > 1e-9*gad.Seconds {
		t.Errorf("parts %v, %g s of %g s", names, sum, gad.Seconds)
	}
	// 32 answers in 16 slots are two waves; their first tokens come with the prompts.
	if g := gad.Steps; g.Eager+g.Captured+g.Replayed != 2*(load.New-1) || g.Eager > 2 ||
		g.Captured > 2 {
		t.Errorf("decode: %v", *g)
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil ||
		!strings.HasPrefix(text.String(), "PREDICTED, nothing was measured") ||
		!strings.Contains(text.String(), "waiting for the host") {
		t.Errorf("%v\n%s", err, text.String())
	}
	// A card with half of everything takes between as long and twice as long, and more the more
	// work there is.
	half := card
	half.FLOPS, half.Bytes = card.FLOPS/2, card.Bytes/2
	slow, err := Predict(Options{Config: model.Qwen25[1].Config, Load: load,
		What: []string{"stages"}}, half)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range slow.Stages {
		if ratio := s.Seconds / r.Stages[i].Seconds; !(ratio > 1.2 && ratio <= 2) {
			t.Errorf("%s: half a card takes %g times as long", s.Name, ratio)
		}
	}
	// What does not fit is said, and predicted all the same.
	load.Recompute = false
	big, err := Predict(Options{Config: model.Qwen25[3].Config, Load: load,
		What: []string{"stages"}}, card)
	if err != nil {
		t.Fatal(err)
	}
	if s := big.Stages[2]; !strings.HasPrefix(s.Unfit, "does not fit: needs ") || s.Seconds == 0 ||
		r.Stages[2].Unfit != "" {
		t.Errorf("7B: %q, %g s; 1.5B: %q", s.Unfit, s.Seconds, r.Stages[2].Unfit)
	}
	if _, err := Predict(Options{What: []string{"all"}}, card); err == nil || !strings.Contains(err.Error(), `part "all"`) {
		t.Errorf("what all: %v", err)
	}
}

// student is a row of the tables.
type student struct {
	name string
	c    model.Config
	rank int
}

func students() (all []student) {
	for _, s := range model.Qwen25 {
		all = append(all, student{strings.TrimPrefix(s.Name, "Qwen2.5-"), s.Config, 0})
	}
	return append(all, student{"7B, LoRA 64", model.Qwen25[3].Config, 64})
}

// published is the load of the tables.
func published(s student, answer int) Load {
	return Load{Seqs: 8, Length: 2048, Samples: 256, Prompts: 128, N: 8, Prompt: 256, New: answer,
		Micro: 16384, Slots: 256, Recompute: true, Rank: s.rank}
}

// row are the lines of a student on a card, by table.
type row struct{ sft, short, long, decode string }

func predictedRow(t *testing.T, s student, card estimate.Card) (r row) {
	t.Helper()
	head := fmt.Sprintf("| %s | %s |", s.name, strings.ToUpper(card.Name))
	fits := func(s Stage) string {
		return cmp.Or(
			strings.Replace(s.Unfit, "does not fit: needs", "no:", 1), "yes")
	}
	for _, answer := range []int{512, 1536} {
		load := published(s, answer)
		l := Limits{Products: card.FLOPS, Copy: card.Bytes}
		stages, err := predictStages(estimate.New(card), l, s.c, load)
		if err != nil {
			t.Fatal(err)
		}
		gen, gad := stages[1], stages[2]
		line := fmt.Sprintf("%s %.1f s |", head, gad.Seconds)
		for _, p := range gad.Parts {
			if p.Name != "advantages" {
				line += fmt.Sprintf(" %.1f |", p.Seconds)
			}
		}
		line += fmt.Sprintf(" %s | %.0f %% | %s |\n", amount(float64(gad.Tokens)/gad.Seconds),
			100*gad.FLOPs/gad.Seconds/card.FLOPS, fits(gad))
		if answer == 1536 {
			r.long = line
			continue
		}
		r.short = line
		first := load // the prompts' pass and one step
		first.Seqs, first.Length, first.Prompts, first.N, first.New = 1, 16, 1, 1, 2
		begun, err := predictStages(estimate.New(card), l, s.c, first)
		if err != nil {
			t.Fatal(err)
		}
		step, bytes :=
			(gen.Seconds-begun[1].Seconds)/float64(load.New-2), gen.Bytes/float64(load.New-1)
		r.decode = fmt.Sprintf("%s %.2f ms | %s | %.0f %% | %s |\n", head, 1e3*step,
			amount(256/step), 100*bytes/step/card.Bytes, fits(gen))
		for _, recompute := range []bool{false, true} {
			load.Recompute = recompute
			p := predictSFT(t, s, card, load)
			room := card.Memory - estimate.New(card).Overhead()
			fit := "yes"
			if needs := sftMemory(s, load); needs > room {
				fit = fmt.Sprintf("no: %.1f GB", float64(needs)/1e9)
			}
			r.sft += fmt.Sprintf("%s %s | %.0f ms | %s | %.0f %% | %s |\n", head,
				map[bool]string{false: "kept", true: "recomputed"}[recompute], 1e3*p.Seconds,
				amount(16384/p.Seconds), 100*p.FLOPs/p.Seconds/card.FLOPS, fit)
		}
	}
	return r
}

// sftMemory is what an SFT run takes alone: no cache for generation.
func sftMemory(s student, load Load) (n int64) {
	f := estimate.New(estimate.Cards[0])
	if s.rank > 0 {
		n = s.c.Plan(f, model.PlanOptions{}).Total()
	}
	return n + s.c.Plan(f, model.PlanOptions{Trainable: true, Recompute: load.Recompute,
		LoRA: load.lora(), Tokens: load.Seqs * load.Length}).Total()
}

func predictSFT(t *testing.T, s student, card estimate.Card, load Load) Stage {
	t.Helper()
	load.Samples, load.Prompts, load.N, load.New = 1, 1, 1, 2
	stages, err := predictStages(estimate.New(card), Limits{Products: card.FLOPS, Copy: card.Bytes},
		s.c, load)
	if err != nil {
		t.Fatal(err)
	}
	return stages[0]
}

// The review of the engine estimated these parts of an SFT step of 16,384 tokens on an
// H200, in milliseconds, for 1.5B and 7B, by hand and before any model of cost.
var reviewed = []struct {
	part string
	ops  []string
	ms   [2]float64
	why  string
}{
	{"products of the blocks", []string{"Linear", "LinearAdd", "LinearGrad"}, [2]float64{194, 968}, "here with the residual, the rounding of dy, the biases' sums, tiles that do not fill the last round, and the gap between kernels"},
	{"attention, forward", []string{"Attention"}, [2]float64{10, 22}, ""},
	{"attention, gradient", []string{"AttentionGrad"}, [2]float64{48, 112},
		"the review counts the seven products at one rate; here the row sums are a kernel too"},
	{"elementwise", []string{"RMSNorm", "RMSNormGrad", "SwiGLU", "SwiGLUGrad", "Rope", "RopeCache", "Copy", "Embed", "EmbedGrad"}, [2]float64{39, 86}, "since the review, the residual stream is no longer copied, and SwiGLU is computed again together with its gradient"},
	{"head", []string{"LogProb", "LogProbGrad"}, [2]float64{59, 121},
		"LogProb's logits stay in the cache now"},
	{"AdamW, norm, zero", []string{"AdamW", "SumSquares", "Zero"}, [2]float64{14, 67}, "the weight's bfloat16 half is a part of it now, which was a copy of its own when the review was written"},
}

// againstReview is the table of both, and fails where they are apart without a reason.
func againstReview(t *testing.T) string {
	t.Helper()
	card, _ := estimate.FindCard("h200")
	var b strings.Builder
	b.WriteString("| part of the step | 1.5B, review | here | 7B, review | here | |\n|---|---:|---:|---:|---:|---|\n")
	var ms [2]map[string]float64
	for i, s := range []student{{"1.5B", model.Qwen25[1].Config, 0},
		{"7B", model.Qwen25[3].Config, 0}} {
		load := published(s, 512)
		load.Recompute = false
		ms[i] = map[string]float64{}
		for _, u := range predictSFT(t, s, card, load).Ops {
			ms[i][u.Name] += 1e3 * u.Seconds
		}
	}
	for _, r := range reviewed {
		var here [2]float64
		for i := range here {
			for _, op := range r.ops {
				here[i] += ms[i][op]
			}
			if ratio := here[i] / r.ms[i]; ratio < 0.6 || ratio > 1.6 {
				t.Errorf("%s: %.1f ms, the review has %g: say why, or mend the model", r.part,
					here[i], r.ms[i])
			}
		}
		fmt.Fprintf(&b, "| %s | %g ms | %.0f ms | %g ms | %.0f ms | %s |\n", r.part, r.ms[0],
			here[0], r.ms[1], here[1], r.why)
	}
	return b.String()
}

// separated returns rows of a Markdown table as tab-separated values.
func separated(rows string) string {
	var b strings.Builder
	for row := range strings.Lines(rows) {
		cells := strings.Split(strings.Trim(row, "| \n"), " | ")
		b.WriteString(strings.Join(cells, "\t") + "\n")
	}
	return b.String()
}

// doc/gpu/predicted.md and its tables, predicted.tsv, are what the model says. All of it is
// computed with -update; without, the smallest student's rows and the comparison with the review.
func TestDocumentsAreThePredictions(t *testing.T) {
	if !hostile.Long() && !*update {
		t.Skip("some seconds for each GPU: in a long run")
	}
	path := filepath.Join("..", "..", "doc", "gpu", "predicted.md")
	tables := filepath.Join("..", "..", "doc", "gpu", "predicted.tsv")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const again = "run go test ./apps/bench -run TestDocumentsAreThePredictions -update"
	has := func(name string, doc []byte, text string) {
		if !bytes.Contains(doc, []byte(text)) {
			t.Errorf("%s: is not what the model says:\n%s\n%s", name, text, again)
		}
	}
	large := estimate.Cards[:3] // of data centres: the tables have these
	comparison := againstReview(t)
	if !*update {
		data, err := os.ReadFile(tables)
		if err != nil {
			t.Fatal(err)
		}
		has(path, doc, comparison)
		for _, card := range large {
			r := predictedRow(t, students()[0], card)
			for _, rows := range []string{r.sft, r.short, r.long, r.decode} {
				has(tables, data, separated(rows))
			}
		}
		for _, card := range estimate.Cards {
			has(path, doc, cardLine(card))
		}
		return
	}
	var sft, short, long, decode, cards strings.Builder
	for _, card := range estimate.Cards {
		cards.WriteString(cardLine(card))
	}
	for _, s := range students() {
		for _, card := range large {
			r := predictedRow(t, s, card)
			sft.WriteString(separated(r.sft))
			short.WriteString(separated(r.short))
			long.WriteString(separated(r.long))
			decode.WriteString(separated(r.decode))
		}
	}
	const game = "student\tGPU\tstep\trollout\told log-probabilities\tcritic\treference\tactor" +
		"\ttokens/s\tMFU\tfits\n"
	data := "# Predicted times\n\nWritten by `go test ./apps/bench -run " +
		"TestDocumentsAreThePredictions -update`; do not edit. Predicted, not measured: " +
		"predicted.md says how, and what is assumed.\n"
	for _, table := range []struct{ title, rows string }{
		{"An SFT step: 8 sequences of 2,048 tokens",
			"student\tGPU\tactivations\tstep\ttokens/s\tMFU\tfits\n" + sft.String()},
		{"A GAD step: 128 prompts of 256 tokens, 8 answers of 512", game + short.String()},
		{"A GAD step: 128 prompts of 256 tokens, 8 answers of 1,536", game + long.String()},
		{"Generation: 256 answers of 512 tokens at the same time",
			"student\tGPU\ta step\ttokens/s\tof the bandwidth\tfits\n" + decode.String()},
	} {
		data += "\n## " + table.title + "\n\n" + table.rows
	}
	if err := os.WriteFile(tables, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cards":  "| | peak, bfloat16 | bandwidth | memory | SMs | large product | attention, gradient | memory kernels | source |\n|---|---:|---:|---:|---:|---:|---:|---:|---|\n" + cards.String(),
		"review": comparison,
	} {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
		before, rest, ok := bytes.Cut(doc, []byte(begin))
		_, after, closed := bytes.Cut(rest, []byte(end))
		if !ok || !closed {
			t.Fatalf("%s: no %s%s", path, begin, end)
		}
		doc = slices.Concat(before, []byte(begin+text+end), after)
	}
	if err := os.WriteFile(path, doc, 0o644); err != nil {
		t.Fatal(err)
	}
}

func cardLine(c estimate.Card) string {
	return fmt.Sprintf("| %s | %.1f TFLOP/s | %.2f TB/s | %d GB | %d | %.0f %% | %.0f %%, %.0f %% | %.0f %% | %s |\n", c.Device, c.FLOPS/1e12, c.Bytes/1e12, c.Memory/1e9, c.SMs,
		100*c.Products, 100*c.Forward, 100*c.Backward, 100*c.Memories, c.Source)
}
