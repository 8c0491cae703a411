package report

import (
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// Time that a stage of a step must last before it is shown: shorter stages would only flicker, or
// fill a log; and, where there are no bars, the time until a stage's first line and between two
// lines.
const (
	progressDelay = 400 * time.Millisecond
	pipeFirst     = 10 * time.Second
	pipeEvery     = 30 * time.Second
)

// barPause is the least time between two updates of a bar: rows are counted one by one.
const barPause = 50 * time.Millisecond

// BusyDelay is the time that work must last before Busy shows it, so that a command is never silent
// for long before its run. Tests that compare a program's output raise it.
var BusyDelay = 200 * time.Millisecond

// Console writes for people: lines, and bars while long work is going on. It serialises both on one
// writer. While bars are shown, lines go through the bars' own writer, which prints them above. All
// methods may be called from any goroutine.
type Console struct {
	bar, colour bool
	every       time.Duration // pipeEvery
	now         func() time.Time

	mu     sync.Mutex
	onFail func(error) // called once, at the first failed write; nil = not called
	w      io.Writer   // nil = silent
	bars   *mpb.Progress
	shown  int // bars in it
	// stages that have not ended
	open      map[*progress]bool
	day       string    // of the last line
	lastShown time.Time // time of the last output; at first the console's start
}

// NewConsole returns a console on w, which may be nil. tty is true for a terminal: bars are drawn,
// and colours unless NO_COLOR is set or TERM is dumb.
func NewConsole(w io.Writer, tty bool) *Console {
	tty = tty && os.Getenv("TERM") != "dumb"
	bar := tty
	if f, ok := w.(*os.File); ok && tty { // a terminal without a size has no room for a bar
		w, h, err := term.GetSize(int(f.Fd()))
		bar = err == nil && w > 0 && h > 1
	}
	return &Console{w: w, bar: bar, colour: tty && os.Getenv("NO_COLOR") == "", every: pipeEvery,
		now: time.Now, open: map[*progress]bool{}, lastShown: time.Now()}
}

// Print writes one line of text for people, with the time of day.
func (c *Console) Print(text string) { c.print(zapcore.InfoLevel, c.now(), printable(text)) }

// Warn writes one line of text as a warning.
func (c *Console) Warn(text string) { c.print(zapcore.WarnLevel, c.now(), printable(text)) }

// SGR codes of the few things that are coloured.
const (
	dim    = "2"
	bold   = "1"
	red    = "31"
	yellow = "33"
)

func plain(_, s string) string { return s }

// paint returns s in the colour of an SGR code, or unchanged without colours.
func (c *Console) paint(code, s string) string {
	if !c.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// print writes one line: the time of day, the level unless it is info, the text.
func (c *Console) print(level zapcore.Level, t time.Time, text string) {
	line := c.paint(dim, t.Format("15:04:05")) + "  "
	switch {
	case level >= zapcore.ErrorLevel:
		line += c.paint(red, "error: ")
	case level == zapcore.WarnLevel:
		line += c.paint(yellow, "warning: ")
	}
	c.mu.Lock()
	if day := t.Format(time.DateOnly); day != c.day {
		if c.day != "" {
			line = c.paint(dim, day) + "\n" + line // a new day
		}
		c.day = day
	}
	err := c.write(line + text + "\n")
	c.mu.Unlock()
	if err != nil && c.onFail != nil {
		c.onFail(err)
	}
}

// write writes text above the bars. The caller holds mu. After an error the console is silent.
func (c *Console) write(s string) error {
	if c.w == nil {
		return nil
	}
	c.lastShown = time.Now()
	if c.bars != nil {
		if _, err := c.bars.Write([]byte(s)); err == nil {
			return nil
		} // the bars have stopped, as they do when the terminal fails: ask the terminal itself
	}
	_, err := io.WriteString(c.w, s)
	if err != nil {
		c.w = nil
	}
	return err
}

// Close ends the open stages and removes their bars. Lines may still be printed.
func (c *Console) Close() {
	c.mu.Lock()
	open := make([]*progress, 0, len(c.open))
	for s := range c.open {
		open = append(open, s)
	}
	c.mu.Unlock()
	for _, s := range open {
		s.end()
	}
}

// progress is a long part of a step, counted up to total (0 = unknown).
type progress struct {
	con         *Console
	name        string
	total       int
	n           atomic.Int64
	lastAdvance atomic.Int64 // nanoseconds from start to the last advance
	lastDrawn   atomic.Int64 // nanoseconds from start to the last update of the bar
	start       time.Time
	once        sync.Once
	stop        chan struct{} // closed by end
	idle        chan struct{} // closed when the goroutine of lines has ended
	timer       *time.Timer   // shows the bar
	bar         *mpb.Bar      // under con.mu; nil = not shown
	over        bool          // under con.mu
}

// Progress shows the progress of a long part of a step: a bar on a terminal; elsewhere a line after
// ten seconds, one every thirty, and one at the end. Call advance as work is done and done at its
// end; total 0 means that the end is not known. Both may be called from any goroutine.
func (c *Console) Progress(name string, total int) (advance func(n int), done func()) {
	return c.show(name, total, progressDelay, min(pipeFirst, c.every), c.every)
}

// Busy shows progress as Progress does, for work before a run or next to it: at once, or nearly so.
func (c *Console) Busy(name string, total int) (advance func(n int), done func()) {
	c.mu.Lock()
	delay := max(BusyDelay-time.Since(c.lastShown), BusyDelay/10) // short stages add up
	c.mu.Unlock()
	return c.show(name, total, delay, delay, c.every)
}

// show starts a stage: its bar appears after delay; without bars its first line comes after first,
// then one each time every has passed.
func (c *Console) show(name string, total int, delay, first,
	every time.Duration) (advance func(n int), done func()) {
	s := &progress{con: c, name: name, total: max(total, 0), start: c.now(),
		stop: make(chan struct{}), idle: make(chan struct{})}
	c.mu.Lock()
	silent := c.w == nil
	c.open[s] = true
	c.mu.Unlock()
	switch {
	case silent:
		close(s.idle)
	case c.bar:
		close(s.idle)
		s.timer = time.AfterFunc(delay, s.showBar)
	default:
		go s.lines(min(first, c.every), every)
	}
	return s.advance, s.end
}

// advance adds n to the count and updates the bar at most once each barPause.
func (s *progress) advance(n int) {
	at, now := s.n.Add(int64(n)), int64(s.con.now().Sub(s.start))
	s.lastAdvance.Store(now)
	if drawn := s.lastDrawn.Load(); s.timer == nil || at != int64(s.total) &&
		(now-drawn < int64(barPause) || !s.lastDrawn.CompareAndSwap(drawn, now)) {
		return
	}
	s.con.mu.Lock()
	defer s.con.mu.Unlock()
	if s.bar != nil {
		s.bar.SetCurrent(at)
	}
}

// end ends the stage and removes its bar. Later calls do nothing.
func (s *progress) end() {
	s.once.Do(func() {
		close(s.stop)
		<-s.idle
		if s.timer != nil {
			s.timer.Stop()
		}
		c := s.con
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, s)
		s.over = true
		if s.bar == nil {
			return
		}
		s.bar.Abort(true)
		if c.shown--; c.shown == 0 {
			c.bars.Wait() // draws what is pending; nothing else writes meanwhile
			c.bars = nil
		}
	})
}

// barWidth keeps a bar with its figures within some 60 columns: a terminal narrower than the line
// wraps it, and the rest is never erased.
const barWidth = 16

// showBar draws the bar, unless the stage has ended.
func (s *progress) showBar() {
	c := s.con
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.over || c.w == nil {
		return
	}
	if c.bars == nil {
		c.bars = mpb.New(mpb.WithOutput(c.w), mpb.WithAutoRefresh())
	}
	text := func(decor.Statistics) string { return " " + s.status() }
	// Total 0 keeps the bar from ending by itself: end ends it.
	bar, err := c.bars.Add(0, mpb.BarStyle().Build(), mpb.BarWidth(barWidth),
		mpb.PrependDecorators(decor.Name("  "+s.name+" ")), mpb.AppendDecorators(decor.Any(text)))
	if err != nil {
		return // the bars have stopped with the terminal; the next line will tell
	}
	bar.SetTotal(int64(s.total), false)
	bar.SetCurrent(s.n.Load())
	s.bar = bar
	c.shown++
	c.lastShown = time.Now()
}

// lines prints the state after first and then each time every has passed, until the stage ends. If
// it has printed, and the stage lasted long enough, it prints the final state too.
func (s *progress) lines(first, every time.Duration) {
	defer close(s.idle)
	tick := time.NewTimer(first)
	defer tick.Stop()
	printed := false
	for {
		select {
		case <-tick.C:
			s.con.print(zapcore.InfoLevel, s.con.now(),
				strings.TrimRight(s.name+" "+s.status(), " "))
			printed = true
			tick.Reset(every)
		case <-s.stop:
			if took := s.con.now().Sub(s.start); printed && took >= time.Second {
				done := s.name
				if n := s.n.Load(); n > 0 && n == int64(s.total) {
					done += " " + s.count()
				} else if n > 0 { // the total was the most that it could have been, as of answers
					done += fmt.Sprintf(" %d", n)
				}
				s.con.print(zapcore.InfoLevel, s.con.now(),
					fmt.Sprintf("%s  took %s", done, span(took)))
			}
			return
		}
	}
}

// count returns "37/512", "37", or nothing while the count is 0 without a total.
func (s *progress) count() string {
	if s.total == 0 && s.n.Load() == 0 {
		return ""
	}
	if s.total > 0 {
		return fmt.Sprintf("%d/%d", s.n.Load(), s.total)
	}
	return strconv.FormatInt(s.n.Load(), 10)
}

// status returns "37/512 3.1/s eta 2m33s".
func (s *progress) status() string {
	out, n := s.count(), float64(s.n.Load())
	// The rate is taken at the last advance: between two of them it would only sag.
	at := time.Duration(s.lastAdvance.Load())
	if took := at.Seconds(); took > 0 && n > 0 {
		out += "  " + human(n/took) + "/s"
		if left := float64(s.total) - n; left > 0 {
			out += "  eta " +
				span(
					time.Duration(left/(n/took)*float64(time.Second))-(s.con.now().Sub(s.start)-at))
		}
	}
	return out
}

// consoleCore is the zapcore.Core of the console: it writes the message and its fields as
// key=value.
type consoleCore struct {
	zapcore.LevelEnabler
	con    *Console
	fields []zapcore.Field
}

// With returns a core that adds fields to every entry.
func (c *consoleCore) With(fields []zapcore.Field) zapcore.Core {
	return &consoleCore{c.LevelEnabler, c.con,
		append(append([]zapcore.Field(nil), c.fields...), fields...)}
}

// Check adds the core to an entry of a level that is enabled.
func (c *consoleCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *consoleCore) Sync() error { return nil }

// Write prints an entry with its fields as key=value, in their order.
func (c *consoleCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	text := printable(e.Message)
	if e.LoggerName != "" {
		text = printable(e.LoggerName) + ": " + text
	}
	for _, f := range append(append([]zapcore.Field(nil), c.fields...), fields...) {
		enc := zapcore.NewMapObjectEncoder() // one per field keeps their order
		f.AddTo(enc)
		keys := make([]string, 0, len(enc.Fields))
		for k := range enc.Fields {
			if k != f.Key+"Verbose" { // the stack that zap adds to some errors
				keys = append(keys, k)
			}
		}
		sort.Strings(keys)
		for _, k := range keys {
			text += "  " + printable(k) + "=" + value(enc.Fields[k])
		}
	}
	c.con.print(e.Level, e.Time, text)
	return nil
}

// value returns a field's value for people, quoted only if it has spaces or control characters.
func value(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return v.String()
	case time.Time:
		return v.Format(time.RFC3339)
	case float64:
		return strconv.FormatFloat(v, 'g', 6, 64)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', 6, 32)
	}
	s := fmt.Sprint(v)
	if s == "" || strings.ContainsAny(s, " \"=") || printable(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// printable returns s with control characters escaped: generated text must not reach a terminal as
// commands, and an entry is one line.
func printable(s string) string {
	if strings.IndexFunc(s, unicode.IsControl) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// mostDigits is the value from which a figure is shown with an exponent: a checker may give any
// number.
const mostDigits = 1e7

// stepLine returns a step's summary: "step 12/200 d_acc 0.71 d_loss 0.52 clip 0.18 kl 0.0012 len
// 143 (cut 3%) 1.9k tok/s eta 4m10s". Metrics that the step does not have are left out.
func stepLine(step, total int, values map[string]float64, left time.Duration,
	paint func(code, s string) string) string {
	head := fmt.Sprintf("step %d", step)
	if total > 0 {
		head += fmt.Sprintf("/%d", total)
	}
	parts := []string{paint(bold, head)}
	show := func(label, name string) {
		v, ok := values[name]
		if !ok {
			return
		}
		format := byName[name].Format
		if math.Abs(v) >= mostDigits {
			format = "%.3g"
		}
		text := label + " " + fmt.Sprintf(format, v)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			text = paint(red, text)
		}
		if cut := values["rollout/truncated_frac"]; name == "rollout/len_mean" && cut > 0 {
			text += fmt.Sprintf(" (cut %s)", percent(cut))
		}
		parts = append(parts, text)
	}
	show("sft_loss", "actor/sft_loss")
	show("ranking_loss", "ranking/loss")
	show("agree", "ranking/agree")
	show("dpo_loss", "dpo/loss")
	show("acc", "dpo/acc")
	if n, ok := values["critic/pairs"]; ok && n == 0 {
		parts = append(parts, paint(red, "no pairs (answers cut)"))
	}
	show("d_acc_fresh", "critic/d_acc_fresh")
	show("d_acc", "critic/d_acc")
	if ties := values["critic/tie_frac"]; ties > 0 {
		show("of distinct", "critic/d_acc_distinct")
	}
	show("d_loss", "critic/d_loss")
	show("clip", "actor/pg_clipfrac")
	if _, ok := values["actor/kl_loss"]; ok {
		show("kl", "actor/kl_loss")
	} else {
		show("ppo_kl", "actor/ppo_kl")
	}
	show("len", "rollout/len_mean")
	show("check", "val/check")
	show("reward", "val/env_reward")
	show("held_out", "val/held_out_d")
	show("rouge_l", "val/rouge_l")
	show("nll", "val/teacher_nll")
	if n := values["critic/skipped_updates"] + values["actor/skipped_updates"]; n > 0 {
		parts = append(parts, paint(red, fmt.Sprintf("skipped %.0f", n)))
	}
	if v, ok := values["perf/tokens_per_s"]; ok {
		parts = append(parts, human(v)+" tok/s")
	}
	if left > 0 {
		parts = append(parts, "eta "+span(left))
	}
	return strings.Join(parts, "  ")
}

// legend explains the labels of stepLine: the label, the metric whose presence shows it, and the
// words.
var legend = []struct{ label, name, says string }{
	{"sft_loss", "actor/sft_loss", "the student's loss on the teacher's answers, nats a token"},
	{"ranking_loss", "ranking/loss", "loss on the order of a row's scored answers"},
	{"agree", "ranking/agree", "share of rows whose likeliest answer has the best score"},
	{"dpo_loss", "dpo/loss", "loss on pairs of answers, 0.693 = no preference"},
	{"acc", "dpo/acc", "share of pairs in which the teacher's answer is preferred"},
	{"d_acc_fresh", "critic/d_acc_fresh",
		"the discriminator's accuracy on new pairs, 0.5 = guessing"},
	{"d_acc", "critic/d_acc", "the discriminator's accuracy on the pairs it learns from"},
	{"of distinct", "critic/tie_frac", "d_acc_fresh without pairs of equal texts"},
	{"d_loss", "critic/d_loss", "the discriminator's loss, 0.693 = guessing"},
	{"clip", "actor/pg_clipfrac", "share of tokens whose update the clip stops"},
	{"kl", "actor/kl_loss", "how far the student is from where it began, nats a token"},
	{"ppo_kl", "actor/ppo_kl", "how far the step moved the student, nats a token"},
	{"len", "rollout/len_mean", "tokens of a student's answer"},
	{"cut", "rollout/truncated_frac",
		"share of the student's answers that reach the limit without an end"},
	{"check", "val/check", "the checker's mean score of unseen rows"},
	{"reward", "val/env_reward", "mean reward of greedy episodes on unseen rows"},
	{"held_out", "val/held_out_d", "share of unseen rows where another discriminator prefers the student's answer, 0.5 = alike"},
	{"rouge_l", "val/rouge_l", "likeness to the teacher's answers of unseen rows, 1 = equal"},
	{"nll", "val/teacher_nll",
		"how unlikely the student finds the teacher's answers of unseen rows, nats a token"},
}

// legendLine returns the explanations of the labels in a step's line that are not in explained yet,
// and adds them; "" if all are explained.
func legendLine(values map[string]float64, said map[string]bool) string {
	var list []string
	for _, l := range legend {
		x, ok := values[l.name]
		_, instead := values["actor/kl_loss"]
		if !ok || said[l.label] || (l.label == "cut" || l.label == "of distinct") && x == 0 ||
			l.label == "ppo_kl" && instead {
			continue
		}
		said[l.label] = true
		list = append(list, l.label+": "+l.says)
	}
	return strings.Join(list, "; ")
}

// percent returns a share as "3%", or "<1%".
func percent(x float64) string {
	if x < 0.005 {
		return "<1%"
	}
	return fmt.Sprintf("%.0f%%", 100*x)
}

// human returns a rate with two or three digits: 0.31, 7.5, 42, 350, 1.9k, 12k, 350k, 1.2M.
func human(x float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G", "T"} {
		if math.Abs(x) < 999.5 {
			break
		}
		x, unit = x/1000, u
	}
	switch a := math.Abs(x); {
	case a < 0.995 && unit == "":
		return fmt.Sprintf("%.2g", x)
	case a < 9.95:
		return fmt.Sprintf("%.1f%s", x, unit)
	}
	return fmt.Sprintf("%.0f%s", x, unit)
}

// span returns a duration for people: 45s, 4m10s, 2h05m, 3d4h.
func span(d time.Duration) string {
	s := int64(math.Round(max(d, 0).Seconds()))
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 24*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%dd%dh", s/86400, s%86400/3600)
}

// eta estimates the time left from the last steps, so that it follows a run whose answers grow
// longer.
type eta struct {
	steps []int // at most etaSteps+1, oldest first
	times []time.Time
}

const etaSteps = 20

// add adds the time at which a step ended.
func (e *eta) add(step int, t time.Time) {
	if len(e.steps) > etaSteps {
		e.steps, e.times = e.steps[1:], e.times[1:]
	}
	e.steps, e.times = append(e.steps, step), append(e.times, t)
}

// remaining returns the estimated time to step total; 0 if it is unknown or reached.
func (e *eta) remaining(total int) time.Duration {
	n := len(e.steps)
	if n < 2 || total <= e.steps[n-1] {
		return 0
	}
	per := e.times[n-1].Sub(e.times[0]).Seconds() / float64(e.steps[n-1]-e.steps[0])
	return time.Duration(per * float64(total-e.steps[n-1]) * float64(time.Second))
}

// Count returns a number with its noun: 1 row, 2 rows.
func Count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
