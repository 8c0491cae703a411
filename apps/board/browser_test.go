package board

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gad/internal/hostile"
	"gad/internal/report"
)

// chromium is a browser of this machine.
func chromium(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser: left out with -short")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome",
		"google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium on this machine")
	return ""
}

// dom is the document that a page has become once its scripts have run.
func dom(t *testing.T, url string) string { return domIn(t, "1280,3000", url) }

// domIn is dom in a window of a size. The browser's own --dump-dom reads the document after a
// span of virtual time, which a busy machine's frames do not keep up with; so the document is
// asked for, in the DevTools protocol over two pipes, until it no longer changes.
func domIn(t *testing.T, size, url string) string {
	t.Helper()
	in, send, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	receive, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, chromium(t), "--headless", "--no-sandbox", "--disable-gpu",
		"--user-data-dir="+t.TempDir(), "--window-size="+size, "--remote-debugging-pipe")
	c.ExtraFiles = []*os.File{in, out} // the browser's descriptors 3 and 4
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	in.Close()
	out.Close()
	defer receive.Close()
	defer send.Close() // which ends the browser
	answers := bufio.NewReader(receive)
	session, id := "", 0
	call := func(method string, params map[string]any) (result map[string]any) {
		t.Helper()
		id++
		message := map[string]any{"id": id, "method": method, "params": params}
		if session != "" {
			message["sessionId"] = session
		}
		text, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := send.Write(append(text, 0)); err != nil {
			t.Fatalf("%s: %s: %v", url, method, err)
		}
		for {
			text, err := answers.ReadBytes(0)
			if err != nil {
				t.Fatalf("%s: %s: %v", url, method, err)
			}
			var answer struct {
				ID            int
				Result, Error map[string]any
			}
			if err := json.Unmarshal(text[:len(text)-1], &answer); err != nil {
				t.Fatal(err)
			}
			if answer.ID != id {
				continue // an event
			}
			if answer.Error != nil && method != "Runtime.evaluate" {
				t.Fatalf("%s: %s: %v", url, method, answer.Error)
			}
			return answer.Result // none while the page's document is being made
		}
	}
	target := call("Target.createTarget", map[string]any{"url": url})["targetId"]
	attached := call("Target.attachToTarget", map[string]any{"targetId": target, "flatten": true})
	session = attached["sessionId"].(string)
	const document = `document.documentElement.dataset.drawn && live.textContent ?
		document.documentElement.outerHTML : ""`
	was, same := "", 0
	for same < 10 { // a second
		time.Sleep(100 * time.Millisecond)
		answer := call("Runtime.evaluate", map[string]any{"expression": document})
		result, _ := answer["result"].(map[string]any)
		seen, _ := result["value"].(string)
		if same++; seen == "" || seen != was {
			was, same = seen, 0
		}
	}
	return was
}

// In a browser the planted texts are seen, and none of them has run: live and as a file.
func TestHostileTextInABrowser(t *testing.T) {
	chromium(t)
	t.Parallel()
	other := begin(t, filepath.Join(t.TempDir(), "other"), report.Options{})
	other.step(1, game(1))
	b := show(t, infested(t), other.dir)
	b.now = time.Now
	d, err := b.Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if _, err := d.Write(nil, file); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(b.Handler())
	defer server.Close()
	for _, url := range []string{server.URL + "/", "file://" + file} {
		seen := dom(t, url)
		head, _, _ := strings.Cut(seen, "</head>")
		if strings.Contains(head, "<title>PWNED") || strings.Count(seen, "<iframe") > 0 ||
			strings.Count(seen, "<img") > 0 {
			t.Errorf("%s: a planted text has run:\n%.1000s", url, seen)
		}
		// a file's data follow
		body := seen[strings.Index(seen, "<main"):strings.Index(seen, "</main>")]
		if !regexp.MustCompile(`<p id="error"[^>]* hidden`).MatchString(body) {
			t.Errorf("%s: %s", url, regexp.MustCompile(`<p id="error".*?</p>`).FindString(body))
		}
		if strings.Contains(body, "<script") {
			t.Errorf("%s: a script stands in the page", url)
		}
		for _, text := range []string{
			"&lt;/script&gt;&lt;script&gt;document.title=\"PWNED\"&lt;/script&gt; s",
			"&lt;iframe srcdoc=", "discriminator always right",
			"metrics.jsonl: line 27: not a JSON object"} {
			if !strings.Contains(body, text) {
				t.Errorf("%s: does not show %q", url, text)
			}
		}
	}
}

// What a browser makes of two runs: verdicts, curves that can be read without seeing them,
// samples with their differences, settings that differ.
func TestPageInABrowser(t *testing.T) {
	chromium(t)
	t.Parallel()
	root := t.TempDir()
	f := begin(t, filepath.Join(root, "first"),
		report.Options{TotalSteps: 30, Command: "gad train"}, "actor.optim.lr=3e-5")
	g := begin(t, filepath.Join(root, "second"),
		report.Options{TotalSteps: 30, Command: "gad train"}, "actor.optim.lr=4e-5")
	for step := 1; step <= 30; step++ {
		f.step(step, game(step))
		values := game(step)
		values["critic/d_acc_distinct"] = 1
		if step < 25 {
			g.step(step, values)
		}
	}
	f.samples(30, report.Sample{Row: 7, Prompt: "Say \u202e it", Student: "the red cat sat",
		Teacher: "the blue cat sat down", StudentScore: 1.5, TeacherScore: 2.5, Advantage: -0.75})
	f.validated(0, report.Sample{Row: 3, Prompt: "Name a sea", Teacher: "The Baltic",
		Student: "A big sea"})
	f.validated(20, report.Sample{Row: 3, Prompt: "Name a sea", Teacher: "The Baltic",
		Student: "A cold sea"})
	f.rec.End(report.Finished, "done")
	b := show(t, root)
	d, err := b.Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "report.html")
	if _, err := d.Write(nil, file); err != nil {
		t.Fatal(err)
	}
	seen := dom(t, "file://"+file+"?open=critic,actor,adv,reward,rollout,teacher,timing_s")
	for what, text := range map[string]string{
		"the verdicts":                `<span class="verdict clear">✓ no problems found</span>`,
		"the other verdict":           `<span class="verdict sick">⚠ 1 bad sign</span>`,
		"the state":                   `train · step 30 of 30 · finished`,
		"a curve in words":            `aria-valuetext="step 30: first 0.800; second 1 at step 24"`,
		"its range":                   `aria-valuemax="30"`,
		"what a metric means":         `d_acc_fresh over the pairs whose texts differ; guessing is 0.5`,
		"a difference":                `the <del>blue</del><ins>red</ins> cat sat<del> down</del>`,
		"a character that turns text": `Say ⟨U+202E⟩ it`,
		"an advantage":                `data-label="advantage">-0.750</td>`,
		"a score":                     `data-label="student's score">1.500</td>`,
		"a setting that is different": `<code>actor.optim.lr</code>`,
		"its value":                   `data-label="second">4e-05</td>`,
		"a prompt over the steps":     `Prompt 1 of 1, validation row 3, after steps 0, 20`,
		"what has changed":            `A <del>big</del><ins>cold</ins> sea`,
		"the doctor":                  `<b>discriminator always right</b>`,
	} {
		if !strings.Contains(seen, text) {
			t.Errorf("%s: the page lacks %s", what, text)
		}
	}
	if strings.Contains(seen[:strings.Index(seen, "<script type=")],
		"<code>critic.optim.lr</code>") {
		t.Error("a setting that is equal is shown among those that differ")
	}
	if n := strings.Count(seen, `class="line"`); n < 20 {
		t.Errorf("%d curves are drawn", n)
	}
}

// An episode is a conversation: who speaks, and what each turn of the student was worth. Its texts
// are texts, whatever stands in them.
func TestEpisodeInABrowser(t *testing.T) {
	chromium(t)
	t.Parallel()
	root := t.TempDir()
	f := begin(t, filepath.Join(root, "run"),
		report.Options{TotalSteps: 1, Command: "gad train"})
	f.step(1, game(1))
	yes, no, none, one, score := true, false, 0.0, 1.0, -0.25
	turns := []report.Turn{
		{Role: "assistant", Text: "jump", IDs: []int32{7}, Reward: &none, Valid: &no},
		{Role: "user", Text: "<b>That</b> cannot\u202e be done."},
		{Role: "assistant", Text: "left", IDs: []int32{5}, Reward: &one, Valid: &yes,
			Score: &score},
	}
	for range 15 {
		turns = append(turns, report.Turn{Role: "tool", Text: "filler"},
			report.Turn{Role: "assistant", Text: "more", Reward: &none, Valid: &yes})
	}
	f.samples(1, report.Sample{Row: 7, Prompt: "Leave.", Student: "assistant: jump",
		Teacher: "left", StudentScore: 1.5, TeacherScore: 2.5, Advantage: -0.75, Turns: turns},
		report.Sample{Row: 8, Prompt: "Say it", Student: "n😀o", Teacher: "yes",
			Seams: []int{2, 9}, Notes: "<i>Be</i> brief."})
	f.rec.End(report.Finished, "done")
	b := show(t, root)
	s, err := b.runs[0].readSamples(b.fs, 0, 1)
	if err != nil || len(s.Rows) != 2 || len(s.Rows[0].Turns) != len(turns) ||
		s.Rows[1].Turns != nil || len(s.Rows[1].Seams) != 2 || s.Rows[0].Notes != "" ||
		s.Rows[1].Notes != "<i>Be</i> brief." {
		t.Fatalf("%+v, %v", s, err)
	}
	d, err := b.Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "report.html")
	if _, err := d.Write(nil, file); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(file); err != nil || strings.Contains(string(raw), `"ids"`) {
		t.Errorf("the report has token ids, which nothing shows, or cannot be read: %v", err)
	}
	seen := dom(t, "file://"+file)
	for what, text := range map[string]string{
		"an invalid turn":         `<li class="mine wrong"><b>student</b> <span class="text" dir="auto">jump</span><small>invalid</small></li>`,
		"the environment's words": `<li class=""><b>user</b> <span class="text" dir="auto">&lt;b&gt;That&lt;/b&gt; cannot⟨U+202E⟩ be done.</span></li>`,
		"a reward":                `<li class="mine"><b>student</b> <span class="text" dir="auto">left</span><small>reward 1, score -0.250</small></li>`,
		"the rest":                `<button type="button">all 33 messages</button>`,
		"a single answer beside":  `<del>yes</del><ins>n😀o</ins>`,
		"a coach's notes":         `<td role="cell" data-label="notes" colspan="7"><span class="text" dir="auto">Notes: &lt;i&gt;Be&lt;/i&gt; brief.</span></td>`,
		"a chunk's seam":          `n😀<i class="seam" title="chunk 2"></i>o</span>`,
	} {
		if !strings.Contains(seen, text) {
			t.Errorf("%s: the page lacks %s", what, text)
		}
	}
	if n := strings.Count(seen, "<li class="); n != 24 {
		t.Errorf("%d messages are shown, want 24", n)
	}
}

// Answers of trees: a line for each, whose nodes have their values, and a branch from where it
// began. What a file says of a tree without nodes draws nothing.
func TestTreesInABrowser(t *testing.T) {
	chromium(t)
	t.Parallel()
	root := t.TempDir()
	f := begin(t, filepath.Join(root, "run"),
		report.Options{TotalSteps: 1, Command: "gad train"})
	f.step(1, game(1))
	v, up, down, flat := 0.25, 0.5, -1.5, 0.0
	leaf := func(student string, tree, leaf, parent int, nodes ...report.TreeNode) report.Sample {
		return report.Sample{Row: 7, Prompt: "Go", Student: student, Teacher: "left, left",
			StudentScore: 1, TeacherScore: 2, Advantage: up,
			Tree: &report.TreePlace{Tree: tree, Leaf: leaf, Parent: parent, Nodes: nodes}}
	}
	f.samples(1,
		leaf("left, left", 0, 0, -1, report.TreeNode{To: 6, Leaves: 2, Value: &v, Advantage: &flat},
			report.TreeNode{From: 6, To: 10, Leaves: 1, Value: &v, Advantage: &up}),
		leaf("right", 1, 1, -1, report.TreeNode{To: 5, Leaves: 1, Value: &v, Advantage: &down}),
		leaf("left, right", 0, 2, 0, report.TreeNode{From: 6, To: 11, Leaves: 1}),
		report.Sample{Row: 8, Prompt: "Stay", Student: "yes", Teacher: "no",
			Tree: &report.TreePlace{}})
	f.rec.End(report.Finished, "done")
	d, err := show(t, root).Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "report.html")
	if _, err := d.Write(nil, file); err != nil {
		t.Fatal(err)
	}
	seen := dom(t, "file://"+file)
	for what, text := range map[string]string{
		"the drawing":      `aria-label="3 answers in 2 trees"`,
		"a node of two":    `<title>characters 1 to 6: V 0.250, 2 answers, advantage 0</title>`,
		"its figures":      `>V 0.250 of 2, A 0</text>`,
		"more probable":    `<rect class="node up"`,
		"less probable":    `<rect class="node down"`,
		"an answer's end":  `>V 0.250, A -1.500</text>`,
		"no figures":       `<title>characters 7 to 11: V , 1 answer, advantage </title>`,
		"where it begins":  `left, <i class="seam" title="node 2"></i>right</span>`,
		"a second tree":    `>tree 2</text>`,
		"from where it is": `<path class="branch" d="M`,
	} {
		if !strings.Contains(seen, text) {
			t.Errorf("%s: the page lacks %s", what, text)
		}
	}
	if n := strings.Count(seen, "<svg viewBox=\"0 0 960"); n != 1 ||
		strings.Count(seen, `<path class="branch"`) != 1 {
		t.Errorf("%d drawings of trees, want one with one branch", n)
	}
}

// charts are the charts of a page: by its title the whole of each that is not hidden.
func charts(seen string) map[string]string {
	list := map[string]string{}
	for _, part := range strings.Split(seen, "<figure ")[1:] {
		part, _, _ = strings.Cut(part, "</figure>")
		if head, _, _ := strings.Cut(part, ">"); !strings.Contains(head, " hidden") {
			list[regexp.MustCompile(`<h3 [^>]*>([^<]*)</h3>`).FindStringSubmatch(part)[1]] = part
		}
	}
	return list
}

// A warm-up and the game that continues it, with three seeds: one axis for both, over steps,
// time and operations; the seeds as a band; a warning at its step. The first group alone is
// open, and all of what is open is drawn, in sight or not. The address says what is shown.
func TestStagesInABrowser(t *testing.T) {
	chromium(t)
	t.Parallel()
	root := seeded(t)
	b := show(t, root)
	d, err := b.Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if _, err := d.Write(nil, file); err != nil {
		t.Fatal(err)
	}
	values := func(seen, title string) string {
		t.Helper()
		part, ok := charts(seen)[title]
		if !ok {
			t.Fatalf("no chart %s among %d", title, len(charts(seen)))
		}
		return regexp.MustCompile(`aria-valuetext="([^"]*)"`).FindStringSubmatch(part)[1]
	}
	// The first group is open, and drawn; the others are not.
	seen := domIn(t, "1280,700", "file://"+file)
	if open, all := strings.Count(seen, `<details class="group" id="group-val" open=""`), strings.Count(seen, `<details class="group"`); open != 1 || all < 4 || strings.Count(seen, `<details class="group"`)-strings.Count(seen, `" open=""><summary>`) != all-1 {
		t.Errorf("of %d groups %d are the open one of validation", all, open)
	}
	if got, want := values(seen, "val/rouge_l"), "step 30 of all stages: game-s* (3 seeds) 0.820 (0.810 to 0.830); warm-s* (3 seeds) 0.520 at step 10 of all stages (0.510 to 0.530)"; got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	if !strings.Contains(charts(seen)["val/rouge_l"], `class="band"`) {
		t.Error("the seeds have no band")
	}
	// A low window: what lies far below is drawn too.
	seen = domIn(t, "1280,700", "file://"+file+"?open=val,critic,actor,timing_s,perf&seeds=lines&hide=warm-s2&hide=game-s2&hide=warm-s3&hide=game-s3")
	for title, part := range charts(seen) {
		if !strings.Contains(part, `class="line"`) && !strings.Contains(part, "no values yet") && !strings.HasPrefix(title, "start/") {
			t.Errorf("%s is not drawn", title)
		}
	}
	for what, text := range map[string]string{
		"what it continues":  "train · continues warm-s1 from step 10 · step 20 of 20",
		"the warning":        "<title>step 5: the student is warned of</title>",
		"its list":           "1 warning in the log",
		"the lead":           `class="lead"`,
		"the axis":           `<option value="stages">`,
		"what is not shown":  `<p class="doc" id="m-critic-2fd_loss-doc" hidden=""`,
		"what can be opened": `aria-label="What is critic/d_loss?"`,
	} {
		if !strings.Contains(seen, text) {
			t.Errorf("%s: the page lacks %s", what, text)
		}
	}
	if got, want := values(seen, "val/rouge_l"), "step 30 of all stages: game-s1 0.810; warm-s1 0.510 at step 10 of all stages"; got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	for i, x := range []struct{ axis, want string }{
		{"time", "50 s: game-s1 0.810; warm-s1 0.510 at 10 s"}, // 10 steps of 1 s, 20 of 2 s
		{"step", "step 20: game-s1 0.810; warm-s1 0.510 at step 10"},
		{"work", "130 TFLOP: game-s1 0.810; warm-s1 0.510 at 10 TFLOP"},
	} {
		if !hostile.InTurn(i, 0, 3) {
			continue
		}
		axis, want := x.axis, x.want
		seen := dom(t, "file://"+file+"?seeds=lines&hide=warm-s2&hide=game-s2&hide=warm-s3&hide=game-s3&axis="+axis)
		if got := values(seen, "val/rouge_l"); got != want {
			t.Errorf("%s: %q\nwant %q", axis, got, want)
		}
	}
}
