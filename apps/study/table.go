package study

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"gad/internal/report"
	"gad/internal/vfs"
)

// Report is the results of a study, as in study.json.
type Report struct {
	Name       string       `json:"name"`
	Command    string       `json:"command"`
	Seeds      []uint64     `json:"seeds"`
	Budget     string       `json:"budget"`
	Confidence float64      `json:"confidence"`
	Tables     []Table      `json:"tables"`
	Training   []Row        `json:"training"` // metrics of training, means over the last steps
	Costs      []Cost       `json:"costs"`
	Runs       []RunSummary `json:"runs"`
	Missing    int          `json:"missing"` // number of Runs whose state is missing
}

// RunSummary is the results of an arm with a seed.
type RunSummary struct {
	Arm     string             `json:"arm"`
	Seed    uint64             `json:"seed"`
	State   string             `json:"state"` // done, failed, or missing
	Why     string             `json:"why,omitempty"`
	TFLOP   float64            `json:"tflop,omitempty"`
	Seconds float64            `json:"seconds,omitempty"`
	Share   float64            `json:"share_of_budget,omitempty"`
	Student string             `json:"student,omitempty"` // folder
	Stages  []StageSummary     `json:"stages"`
	Metrics map[string]float64 `json:"metrics,omitempty"` // training's, see Report.Training
}

// StageSummary is a finished stage.
type StageSummary struct {
	Command string  `json:"command"`
	Steps   int     `json:"steps"`
	TFLOP   float64 `json:"tflop"`
	Seconds float64 `json:"seconds"`

	Warnings []string `json:"warnings,omitempty"`
}

// Table is the measures of all arms on a set at a temperature.
type Table struct {
	Set         string       `json:"set"`
	Data        string       `json:"data"`
	Temperature float64      `json:"temperature"`
	Measures    []string     `json:"measures"`
	Rows        []Row        `json:"rows"`
	Differences []Difference `json:"differences"`
}

// Row is an arm's measures, each over the seeds that have it.
type Row struct {
	Arm   string               `json:"arm"`
	Cells map[string]*Interval `json:"cells"`
}

// Difference is the measures of an arm minus another's, paired by seed.
type Difference struct {
	Arm     string             `json:"arm"`
	Against string             `json:"against"`
	Cells   map[string]*Paired `json:"cells"`
}

// Cost is the cost of an arm: means over the finished seeds.
type Cost struct {
	Arm      string    `json:"arm"`
	Steps    string    `json:"steps"`
	TFLOP    *Interval `json:"tflop,omitempty"`
	Seconds  *Interval `json:"seconds,omitempty"`
	MinShare float64   `json:"min_share_of_budget,omitempty"`
	MaxShare float64   `json:"max_share_of_budget,omitempty"`
}

// lastSteps is the number of an arm's last steps over which metrics of training are averaged.
const lastSteps = 20

// Measures of an evaluation stand in the order of report.FigureOf, labels after check, unknown ones
// at the end. evalFacts describe the evaluation and are no measures; jsonOnly are measures that
// study.json has and study.md does not.
var (
	evalFacts = []string{"rows", "episodes", "temperature", "fresh_d_steps", "fresh_d_seeds",
		"fresh_d_read"}
	jsonOnly = map[string]bool{"distinct_1": true, "reverse_kl_sampled": true,
		"forward_kl_sampled": true, "against_cut": true,
		"fresh_d_trained": true, "fresh_d_control": true, "fresh_d_ties": true}
)

const labelPrefix = "label: "

// report returns the report over all results on disk.
func (s *session) report() (*Report, error) {
	p := s.plan
	r := &Report{Name: p.Name, Command: shell([]string{"study", p.File}), Seeds: p.Seeds,
		Budget: p.Budget.text(), Confidence: confidence}
	training := map[string]map[string][]Value{} // arm, metric
	for _, c := range s.cells {
		run, err := s.summary(c)
		if err != nil {
			return nil, err
		}
		if run.State == "missing" {
			r.Missing++
		}
		r.Runs = append(r.Runs, run)
		for name, x := range run.Metrics {
			add(training, c.arm.Name, name, Value{c.seed, x})
		}
	}
	for _, a := range p.Arms {
		if m := training[a.Name]; m != nil {
			r.Training = append(r.Training, rowOf(a.Name, m))
		}
		r.Costs = append(r.Costs, costOf(a.Name, r.Runs))
	}
	for i, set := range p.Eval.Sets {
		for k, temperature := range p.Eval.Temperatures {
			t, err := s.table(set, temperature, i*len(p.Eval.Temperatures)+k)
			if err != nil {
				return nil, err
			}
			r.Tables = append(r.Tables, t)
		}
	}
	return r, nil
}

// add appends a value to an arm's measure.
func add(into map[string]map[string][]Value, arm, name string, v Value) {
	if into[arm] == nil {
		into[arm] = map[string][]Value{}
	}
	into[arm][name] = append(into[arm][name], v)
}

// rowOf returns an arm's measures with their intervals.
func rowOf(arm string, values map[string][]Value) Row {
	row := Row{Arm: arm, Cells: map[string]*Interval{}}
	for name, v := range values {
		row.Cells[name] = interval(v)
	}
	return row
}

// summary returns the state and the results of a cell.
func (s *session) summary(c *cell) (r RunSummary, err error) {
	r = RunSummary{Arm: c.arm.Name, Seed: c.seed, State: "done"}
	for _, n := range c.last.chain() {
		d, ok, err := s.readStage(n)
		if err != nil {
			return r, err
		}
		if !ok {
			if r.State == "done" {
				if r.State, r.Why, err = s.unfinishedState(n); err != nil {
					return r, err
				}
			}
			continue
		}
		r.Stages = append(r.Stages,
			StageSummary{d.Command, d.Steps, d.TFLOP, d.Seconds, d.Warnings})
		r.TFLOP, r.Seconds = r.TFLOP+d.TFLOP, r.Seconds+d.Seconds
		if n == c.last {
			r.Student = filepath.Join(n.dir(), filepath.FromSlash(d.Actor))
		}
	}
	if r.State != "done" {
		return r, nil
	}
	if r.Share, err = s.share(c, r); err != nil {
		return r, err
	}
	// a user short of disk may have removed the run
	if rows, err := metrics(s.FS, c.last.run()); err == nil {
		r.Metrics = summaries(rows, s.plan.Metrics)
	}
	for _, e := range s.evaluations(c.last) {
		if err := s.identify(e); err != nil {
			return r, err
		}
		if _, ok, err := s.readEval(e); err != nil {
			return r, err
		} else if !ok {
			if r.State == "done" {
				r.State = "missing"
			}
			for _, t := range s.tasks {
				if t.eval != nil && t.eval.id == e.id && t.state == broken {
					r.State, r.Why = "failed", "evaluation: "+oneLine(t.err)
				}
			}
		}
	}
	return r, nil
}

// unfinishedState returns the state (failed or missing) of a stage without results, and why it
// failed.
func (s *session) unfinishedState(n *node) (state, why string, err error) {
	for _, t := range s.tasks {
		if t.node == n && t.eval == nil && t.state == broken {
			return "failed", n.label + ": " + oneLine(t.err), nil
		}
	}
	var f failureRecord
	if ok, err := readJSON(s.FS, n.file(failedName), &f); err != nil {
		return "", "", err
	} else if ok {
		return "failed", n.label + ": " + f.Why, nil
	}
	return "missing", "", nil
}

// share returns the part of the budget that a run took, 0 if unknown.
func (s *session) share(c *cell, r RunSummary) (float64, error) {
	b := s.plan.Budget
	cost := r.TFLOP
	if b.Seconds > 0 {
		cost = r.Seconds
	}
	whole := max(b.TFLOP, b.Seconds)
	if b.Like != "" {
		for _, other := range s.cells {
			if other.arm.Name == b.Like && other.seed == c.seed {
				var ok bool
				var err error
				if whole, ok, err = s.chainCost(other.last, b); err != nil || !ok {
					return 0, err
				}
			}
		}
	}
	if whole == 0 {
		return 0, nil
	}
	return cost / whole, nil
}

// summaries returns the plan's metrics of a stage, by the text with which the plan asks for them:
// for a plain name the mean over the last steps that have it, for falls(NAME) and lost(NAME) the
// functions falls and drawdown.
func summaries(rows []row, metrics []string) map[string]float64 {
	m := map[string]float64{}
	for _, text := range metrics {
		kind, name := summaryOf(text)
		steps := rows
		if kind == "" {
			steps = rows[max(0, len(rows)-lastSteps):]
		}
		var x []float64
		for _, r := range steps {
			if v, ok := r[name]; ok {
				x = append(x, v)
			}
		}
		switch {
		case kind == "" && len(x) > 0:
			m[text], _ = report.Moments(x)
		case kind == "falls" && len(x) > 1:
			m[text] = falls(x)
		case kind == "lost" && len(x) >= drawdownSteps:
			m[text] = drawdown(x)
		}
	}
	return m
}

// summaryOf splits a metric of a plan such as lost(reward/check_mean) into the kind of summary and
// the metric's name; a plain name has the kind "".
func summaryOf(text string) (kind, name string) {
	kind, inner, ok := strings.Cut(text, "(")
	if name, closed := strings.CutSuffix(inner, ")"); ok && closed &&
		(kind == "falls" || kind == "lost") {
		return kind, name
	}
	return "", text
}

// falls returns the share of values below the value before: the share of updates followed by a
// fall.
func falls(x []float64) float64 {
	n := 0
	for i := 1; i < len(x); i++ {
		if x[i] < x[i-1] {
			n++
		}
	}
	return float64(n) / float64(len(x)-1)
}

// drawdownSteps is the number of values in a mean of drawdown, as in the sign "right answers are
// being lost".
const drawdownSteps = 5

// drawdown returns the largest mean of drawdownSteps consecutive values minus the mean of the last
// ones: how far a run ends below its best.
func drawdown(x []float64) float64 {
	best := math.Inf(-1)
	var now float64
	for i := drawdownSteps; i <= len(x); i++ {
		now, _ = report.Moments(x[i-drawdownSteps : i])
		best = math.Max(best, now)
	}
	return best - now
}

// costOf returns the cost of an arm over its finished runs.
func costOf(arm string, runs []RunSummary) Cost {
	c := Cost{Arm: arm}
	var tflop, seconds []Value
	var steps []string // of each seed
	for _, r := range runs {
		if r.Arm != arm || r.Student == "" {
			continue
		}
		tflop, seconds =
			append(tflop, Value{r.Seed, r.TFLOP}), append(seconds, Value{r.Seed, r.Seconds})
		var list []string
		for _, st := range r.Stages {
			list = append(list, fmt.Sprint(st.Steps))
		}
		steps = append(steps, strings.Join(list, " + "))
		if r.Share > 0 {
			c.MaxShare = max(c.MaxShare, r.Share)
			if c.MinShare == 0 || r.Share < c.MinShare {
				c.MinShare = r.Share
			}
		}
	}
	if len(slices.Compact(slices.Clone(steps))) == 1 { // the same for every seed
		steps = steps[:1]
	}
	c.Steps, c.TFLOP, c.Seconds = strings.Join(steps, ", "), interval(tflop), interval(seconds)
	return c
}

// table returns the measures of all arms on one set at one temperature; nth is the index of that
// pair in evaluations.
func (s *session) table(set Set, temperature float64, nth int) (Table, error) {
	t := Table{Set: set.Name, Data: set.Path, Temperature: temperature}
	byArm := map[string]map[string][]Value{}
	names := map[string]bool{}
	for _, c := range s.cells {
		e := s.evaluations(c.last)[nth]
		if err := s.identify(e); err != nil {
			return t, err
		}
		a, ok, err := s.readEval(e)
		if err != nil {
			return t, err
		}
		if !ok {
			continue
		}
		result := a.figures()
		for name, x := range measures(result) {
			names[name] = true
			add(byArm, c.arm.Name, name, Value{c.seed, x})
		}
		// a label that a seed lacks has the share 0 there
		if labels, ok := result["labels"].(map[string]any); ok {
			for label := range labels {
				names[labelPrefix+label] = true
			}
		}
	}
	for name := range names {
		t.Measures = append(t.Measures, name)
	}
	sort.Slice(t.Measures, func(i, j int) bool {
		a, b := measureOrder(t.Measures[i]), measureOrder(t.Measures[j])
		return a < b || a == b && t.Measures[i] < t.Measures[j]
	})
	rows := map[string]Row{}
	for _, a := range s.plan.Arms {
		if v := byArm[a.Name]; v != nil {
			fillLabels(v, t.Measures)
			rows[a.Name] = rowOf(a.Name, v)
			t.Rows = append(t.Rows, rows[a.Name])
		}
	}
	for i, against := range s.plan.Compare {
		base, ok := rows[against]
		if !ok {
			continue
		}
		for _, r := range t.Rows {
			if r.Arm == against || slices.Contains(s.plan.Compare[:i], r.Arm) {
				continue // the latter stands above, the other way round
			}
			d := Difference{Arm: r.Arm, Against: against, Cells: map[string]*Paired{}}
			for _, m := range t.Measures {
				figure, _ := report.FigureOf(m)
				if p := pairedDifference(r.Cells[m], base.Cells[m], figure.Better); p != nil {
					d.Cells[m] = p
				}
			}
			if len(d.Cells) > 0 {
				t.Differences = append(t.Differences, d)
			}
		}
	}
	return t, nil
}

// figures returns the figures of the evaluation's student. gad eval --env prints a list of models,
// here of one, with counts of episodes by label: they become shares of the episodes without faults.
func (a evalRecord) figures() map[string]any {
	models, ok := a.Result["models"].([]any)
	if !ok || len(models) != 1 {
		return a.Result
	}
	printed, ok := models[0].(map[string]any)
	if !ok {
		return a.Result
	}
	result := maps.Clone(printed)
	episodes, _ := result["episodes"].(float64)
	broken, _ := result["faults"].(float64)
	counts, _ := result["labels"].(map[string]any)
	shares := map[string]any{}
	for label, n := range counts {
		if n, ok := n.(float64); ok && episodes > broken {
			shares[label] = n / (episodes - broken)
		}
	}
	result["labels"] = shares
	return result
}

// fillLabels gives each seed that was checked a share of every label, 0 where no answer had the
// label.
func fillLabels(values map[string][]Value, names []string) {
	for _, name := range names {
		if !strings.HasPrefix(name, labelPrefix) {
			continue
		}
		var all []Value
		for _, v := range append(slices.Clone(values["check"]), values["success"]...) {
			share := Value{Seed: v.Seed}
			for _, have := range values[name] {
				if have.Seed == v.Seed {
					share = have
				}
			}
			all = append(all, share)
		}
		if len(all) > 0 {
			values[name] = all
		}
	}
}

// measureOrder returns a measure's sort key in a table: labels stand right after check or success,
// of which a table has one.
func measureOrder(name string) int {
	if strings.HasPrefix(name, labelPrefix) {
		return 1
	}
	if name == "success" {
		return 0
	}
	switch _, i := report.FigureOf(name); i {
	case -1:
		return math.MaxInt
	case 0:
		return 0
	default:
		return i + 1
	}
}

// measures returns the measures of an evaluation by name, with the shares of labels.
func measures(result map[string]any) map[string]float64 {
	m := map[string]float64{}
	for name, v := range result {
		switch v := v.(type) {
		case float64:
			if !slices.Contains(evalFacts, name) {
				m[name] = v
			}
		case map[string]any:
			if name != "labels" {
				continue
			}
			for label, share := range v {
				if x, ok := share.(float64); ok {
					m[labelPrefix+label] = x
				}
			}
		}
	}
	return m
}

// write writes the report into the study's folder: study.json, study.md and study.tsv.
func (s *session) write(r *Report) error {
	if err := writeJSON(s.FS, filepath.Join(s.plan.Dir, JSONName), r); err != nil {
		return err
	}
	text := r.Markdown()
	if err := vfs.WriteFile(s.FS, filepath.Join(s.plan.Dir, DataName),
		[]byte(MarkdownToTSV(text))); err != nil {
		return err
	}
	return vfs.WriteFile(s.FS, filepath.Join(s.plan.Dir, TablesName), []byte(text))
}

// Markdown returns the report as study.md has it.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n", r.Name)
	done := 0
	for _, run := range r.Runs {
		if run.State == "done" {
			done++
		}
	}
	fmt.Fprintf(&b, "%d of %d runs (%d arms x %d seeds: %s). ", done, len(r.Runs), len(r.Costs),
		len(r.Seeds), strings.Trim(fmt.Sprint(r.Seeds), "[]"))
	b.WriteString("Mean over seeds [95 % interval by Student's t]; a number in brackets after it is the number of seeds, if some are missing. Differences are paired by seed and followed by the number of seeds in which the arm is better, for measures that have a better direction.\n")
	for _, t := range r.Tables {
		t.writeMarkdown(&b, len(r.Seeds))
	}
	r.writeFigures(&b)
	r.writeTraining(&b)
	r.writeCosts(&b)
	r.writeFailures(&b)
	r.writeWarnings(&b)
	r.writeCommands(&b)
	return b.String()
}

// writeRow writes a row of a Markdown table.
func writeRow(b *strings.Builder, cells ...string) {
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// writeHead writes the head of a Markdown table, with columns of numbers after the first.
func writeHead(b *strings.Builder, cells ...string) {
	writeRow(b, cells...)
	b.WriteString("|---|" + strings.Repeat("---:|", len(cells)-1) + "\n")
}

// writeMarkdown writes the table and its differences. seeds is the number of seeds of the study.
func (t Table) writeMarkdown(b *strings.Builder, seeds int) {
	how := fmt.Sprintf("temperature %g", t.Temperature)
	if t.Temperature == 0 {
		how = "greedy"
	}
	fmt.Fprintf(b, "\n## %s, %s\n\n", t.Set, how)
	if len(t.Rows) == 0 {
		b.WriteString("Nothing has been evaluated yet.\n")
		return
	}
	shown := t.visibleMeasures()
	writeHead(b, append([]string{"arm"}, shown...)...)
	for _, r := range t.Rows {
		cells := []string{r.Arm}
		for _, m := range shown {
			cells = append(cells, r.Cells[m].text(seeds, "%.3f"))
		}
		writeRow(b, cells...)
	}
	if len(t.Differences) == 0 {
		return
	}
	b.WriteByte('\n')
	writeHead(b, append([]string{"difference"}, shown...)...)
	for _, d := range t.Differences {
		cells := []string{fmt.Sprintf("%s - %s", d.Arm, d.Against)}
		for _, m := range shown {
			cells = append(cells, d.Cells[m].text(seeds))
		}
		writeRow(b, cells...)
	}
}

// text returns an interval as a cell of a table, with its number of seeds if it is not seeds.
func (iv *Interval) text(seeds int, format string) string {
	if iv == nil {
		return ""
	}
	s := fmt.Sprintf(format, iv.Mean)
	if iv.Low != nil {
		s += fmt.Sprintf(" ["+format+", "+format+"]", *iv.Low, *iv.High)
	}
	if iv.Seeds != seeds {
		s += fmt.Sprintf(" (%d)", iv.Seeds)
	}
	return s
}

// text returns a difference as a cell of a table, with the number of seeds in which the first arm
// is better.
func (p *Paired) text(seeds int) string {
	if p == nil {
		return ""
	}
	s := p.Interval.text(seeds, "%+.3f")
	if p.Wins != nil {
		s += fmt.Sprintf(", %d/%d", *p.Wins, p.Seeds)
	}
	return s
}

// visibleMeasures returns the measures of a table that study.md shows.
func (t Table) visibleMeasures() (names []string) {
	for _, m := range t.Measures {
		if !jsonOnly[m] && !t.emptyFaults(m) {
			names = append(names, m)
		}
	}
	return names
}

// emptyFaults reports whether a measure is the count of broken episodes and no arm has a broken
// episode.
func (t Table) emptyFaults(m string) bool {
	return m == "faults" && !slices.ContainsFunc(t.Rows,
		func(r Row) bool { return r.Cells[m] != nil && r.Cells[m].Mean > 0 })
}

// writeFigures writes the definitions of the tables' columns.
func (r *Report) writeFigures(b *strings.Builder) {
	var names []string
	for _, t := range r.Tables {
		for _, m := range t.visibleMeasures() {
			if _, i := report.FigureOf(m); i >= 0 && !slices.Contains(names, m) {
				names = append(names, m)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	slices.SortFunc(names, func(x, y string) int { return measureOrder(x) - measureOrder(y) })
	b.WriteString("\n## Figures\n\n")
	for _, name := range names {
		f, _ := report.FigureOf(name)
		fmt.Fprintf(b, "- `%s`: %s\n", name, f.Text())
	}
}

// writeTraining writes the table of training metrics.
func (r *Report) writeTraining(b *strings.Builder) {
	var names []string
	for _, row := range r.Training {
		for name := range row.Cells {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	fmt.Fprintf(b, "\n## Training, last %d steps\n\n", lastSteps)
	writeHead(b, append([]string{"arm"}, names...)...)
	for _, row := range r.Training {
		cells := []string{row.Arm}
		for _, name := range names {
			cells = append(cells, row.Cells[name].text(len(r.Seeds), "%.3f"))
		}
		writeRow(b, cells...)
	}
}

// writeCosts writes the table of costs.
func (r *Report) writeCosts(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Cost\n\nTraining steps only, without evaluations and probes. Budget: %s. Seconds were measured on this machine, which may have had other work.\n\n", r.Budget)
	writeHead(b, "arm", "steps", "TFLOP", "seconds", "share of the budget")
	for _, c := range r.Costs {
		share := ""
		if c.MaxShare > 0 {
			share = fmt.Sprintf("%.1f %%", 100*c.MinShare)
			if math.Abs(c.MaxShare-c.MinShare) > 5e-4 {
				share = fmt.Sprintf("%.1f to %.1f %%", 100*c.MinShare, 100*c.MaxShare)
			}
		}
		mean := func(iv *Interval) string {
			if iv == nil {
				return ""
			}
			if s := number(iv.Mean); iv.Seeds == len(r.Seeds) {
				return s
			}
			return fmt.Sprintf("%s (%d)", number(iv.Mean), iv.Seeds)
		}
		writeRow(b, c.Arm, c.Steps, mean(c.TFLOP), mean(c.Seconds), share)
	}
}

// writeFailures writes the failed runs, and the number of runs that are not done.
func (r *Report) writeFailures(b *strings.Builder) {
	first := true
	for _, run := range r.Runs {
		if run.State == "failed" {
			if first {
				b.WriteString("\n## Failed\n\n")
				writeHead(b, "arm", "seed", "why")
			}
			first = false
			writeRow(b, run.Arm, fmt.Sprint(run.Seed), run.Why)
		}
	}
	if r.Missing > 0 {
		fmt.Fprintf(b, "\n%d of %d runs are not done yet: run the study's command again.\n",
			r.Missing, len(r.Runs))
	}
}

// writeWarnings writes each warning of the stages with the arms and seeds that had it.
func (r *Report) writeWarnings(b *strings.Builder) {
	var order []string
	whose := map[string][]string{}
	for _, run := range r.Runs {
		for _, st := range run.Stages {
			for _, w := range st.Warnings {
				if whose[w] == nil {
					order = append(order, w)
				}
				whose[w] = append(whose[w], fmt.Sprintf("%s %d", run.Arm, run.Seed))
			}
		}
	}
	for _, t := range r.Tables {
		if w := t.sameCheck(); w != "" {
			order = append(order, w)
			whose[w] = []string{"all"}
		}
	}
	if len(order) == 0 {
		return
	}
	b.WriteString("\n## Warnings\n\n")
	writeHead(b, "warning", "arm and seed")
	for _, w := range order {
		writeRow(b, w, strings.Join(whose[w], ", "))
	}
}

// sameCheck returns a warning if the checker gave the same score, 0 or 1, to every answer of every
// arm and seed (or the same success to every episode) and so compares nothing; "" otherwise.
func (t Table) sameCheck() string {
	figure, of := "check", "answer"
	if slices.Contains(t.Measures, "success") {
		figure, of = "success", "episode"
	}
	var all []float64
	for _, row := range t.Rows {
		if c := row.Cells[figure]; c != nil {
			for _, v := range c.Values {
				all = append(all, v.Value)
			}
		}
	}
	same := func(x float64) bool {
		return len(all) > 0 && !slices.ContainsFunc(all, func(v float64) bool { return v != x })
	}
	switch where := fmt.Sprintf("%s, temperature %g: %s", t.Set, t.Temperature, figure); {
	case same(0):
		return where + " is 0 for every " + of + " of every arm, so it compares nothing: no student can do the task: train longer by SFT first, or take an easier task or a larger student"
	case same(1):
		return where + " is 1 for every " + of + " of every arm, so it compares nothing: every student can do the task: take a harder one"
	}
	return ""
}

// writeCommands writes the commands of the first seed; study.json has all of them.
func (r *Report) writeCommands(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Commands\n\nAll of it:\n\n```sh\n%s\n```\n\nWhat that runs for seed %d (study.json has every seed):\n\n```sh\n", r.Command, r.Seeds[0])
	var printed []string
	for _, run := range r.Runs {
		if run.Seed != r.Seeds[0] {
			continue
		}
		fmt.Fprintf(b, "# %s\n", run.Arm)
		for _, st := range run.Stages {
			if slices.Contains(printed, st.Command) {
				continue // shared
			}
			printed = append(printed, st.Command)
			fmt.Fprintln(b, st.Command)
		}
	}
	b.WriteString("```\n")
}
