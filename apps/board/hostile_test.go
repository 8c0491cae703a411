package board

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"gad/internal/report"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// Each of these changes the page's title if it is ever taken for markup or code.
var planted = []string{
	`<script>document.title="PWNED"</script>`,
	`</script><script>document.title="PWNED"</script>`,
	`<img src=x onerror="document.title='PWNED'">`,
	`"><svg onload="document.title='PWNED'">`,
	`' onfocus='document.title="PWNED"' autofocus='`,
	`<!--<script>document.title="PWNED"</script>`,
	`javascript:document.title="PWNED"`,
	`<iframe srcdoc="<script>parent.document.title='PWNED'</script>"></iframe>`,
	`<style>*{display:none}</style>`,
	"\u2028document.title=\"PWNED\"//\u2029",
	"\u202etxet desrever\u0000\x07",
	`{{constructor.constructor('document.title="PWNED"')()}}`,
	`<a href="javascript:document.title='PWNED'">click</a>`,
	`]]><script>document.title="PWNED"</script>`,
	`</textarea></style></title></noscript><script>document.title="PWNED"</script>`,
}

// infested is a run with the planted texts wherever a run has texts: name, settings,
// metrics, log, prompts and answers.
func infested(t *testing.T) string {
	t.Helper()
	name := `a<script>document.title="PWNED"<` // a file's name has no slash
	if runtime.GOOS == "windows" {
		name = "a&amp;b"
	}
	dir := filepath.Join(t.TempDir(), name)
	f := begin(t, dir, report.Options{TotalSteps: 30, Command: "gad " + planted[1]},
		"model.path="+planted[1], "data.content_key="+planted[2])
	for step := 1; step <= 25; step++ {
		values := game(step)
		values["critic/d_acc_distinct"] = 1 // the doctor has something to say
		f.step(step, values)
	}
	metric, err := json.Marshal(planted[1])
	if err != nil {
		t.Fatal(err)
	}
	grow(t, filepath.Join(dir, "metrics.jsonl"), `{"step":26,`+string(metric)+`:1,"constructor":2,"__proto__":3,"toString":4}`+"\n"+planted[0]+"\n"+`{"step":27,"`+`<script>document.title=1`+`":"<b>"}`+"\n")
	var list []report.Sample
	for i, text := range planted {
		list = append(list, report.Sample{Row: i, Prompt: text, Student: text + " s",
			Teacher: "t " + text, StudentScore: float64(i), TeacherScore: math.NaN(), Advantage: 1})
	}
	f.samples(25, list...)
	f.rec.End(report.Failed, planted[3])
	return dir
}

// What the texts were is what comes out, as data: in the document, over the wire and in
// the report, and the report holds no other markup than its own.
func TestHostileTextIsData(t *testing.T) {
	b := show(t, infested(t))
	d, err := b.Document(Limits{Points: Points, Steps: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Samples) != 1 || len(d.Samples[0].Rows) != len(planted) {
		t.Fatalf("samples %+v", d.Samples)
	}
	for i, text := range planted {
		if got := d.Samples[0].Rows[i].Prompt; got != text {
			t.Errorf("prompt %q, want %q", got, text)
		}
	}
	page, err := d.Page()
	if err != nil {
		t.Fatal(err)
	}
	bare, err := (&Document{}).Page()
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"<script", "</script", "<style", "</style", "<img", "<svg",
		"<iframe", "<!--", "-->", "<a ", "<title", "]]>", "\u2028"} {
		if got, own := bytes.Count(page, []byte(tag)), bytes.Count(bare, []byte(tag)); got != own {
			t.Errorf("the report has %d of %q, the page itself %d", got, tag, own)
		}
	}
	_, data, _ := bytes.Cut(page, []byte(`<script type="application/json" id="data">`))
	data, _, _ = bytes.Cut(data, []byte("</script>"))
	var again Summary
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatal(err)
	}
	r := again.Runs[0]
	if !strings.Contains(r.Settings["model.path"], "</script><script>document.title") ||
		r.Said != planted[3] || r.Sessions[0].Command != "gad "+planted[1] ||
		!strings.Contains(r.Path, r.Name) || len(r.Findings) == 0 {
		t.Errorf("settings %q, said %q, command %q, name %q, %d findings", r.Settings["model.path"],
			r.Said, r.Sessions[0].Command, r.Name, len(r.Findings))
	}
	for _, raw := range [][]byte{style, script} {
		if regexp.MustCompile(`(?i)</(script|style)|<!--`).Match(raw) {
			t.Error("the page's own script or style would end its element")
		}
	}
	if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|createContextualFragment|setHTML`).Find(script); m != nil {
		t.Errorf("board.js uses %s: what comes from a run is text", m)
	}
	if m := regexp.MustCompile(`(?i)(src|href|action)="?(https?:)?//|@import|url\(\s*["']?http| on[a-z]+=`).Find(bytes.Join([][]byte{pageHTML, style}, nil)); m != nil {
		t.Errorf("the page loads something, or has an inline handler: %s", m)
	}
	server := httptest.NewServer(b.Handler())
	defer server.Close()
	for _, path := range []string{"/api/board", "/api/series", "/api/scores",
		"/api/samples?run=0&step=25"} {
		answer, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.Header.Get("Content-Type") != "application/json" ||
			bytes.ContainsAny(raw, "<>") || !json.Valid(raw) {
			t.Errorf("%s: %s, %v: markup in %.300s", path, answer.Header.Get("Content-Type"), err,
				raw)
		}
	}
}

// A report replaces a report and nothing else, and a fault leaves the old one.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	f := begin(t, filepath.Join(dir, "run"), report.Options{})
	f.step(1, game(1))
	d, err := show(t, f.dir).Document(Limits{Points: 10})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "report.html")
	size, err := d.Write(nil, path)
	if err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil || len(first) != size ||
		!bytes.HasPrefix(first, []byte(reportMark+"<!doctype html>")) {
		t.Fatalf("%v: %.100s", err, first)
	}
	if !bytes.Contains(first, []byte("default-src 'none'; script-src 'sha256-")) {
		t.Error("the report has no policy")
	}
	f.step(2, game(2))
	if d, err = show(t, f.dir).Document(Limits{Points: 10}); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < 100; n++ {
		broken := vfstest.NewError(vfs.OS, n, true)
		_, err := d.Write(broken, path)
		now, rerr := os.ReadFile(path)
		if rerr != nil {
			t.Fatal(rerr)
		}
		if err == nil {
			if bytes.Equal(now, first) || n < 4 {
				t.Errorf("written over %d operations, and the file is the old one: %v", n,
					bytes.Equal(now, first))
			}
			break
		}
		if !bytes.Equal(now, first) && !bytes.HasPrefix(now, []byte(reportMark)) {
			t.Errorf("after a fault at operation %d the file is torn", n)
		}
	}
	for name, text := range map[string]string{"mine.html": "<!doctype html>", "short": "<",
		"empty": ""} {
		other := filepath.Join(dir, name)
		put(t, other, text)
		if _, err := d.Write(nil, other); err == nil || err.Error() != "configuration: board: "+other+": already exists, and is no report of gad: choose another file" {
			t.Errorf("%s: %v", name, err)
		}
		if now, _ := os.ReadFile(other); string(now) != text {
			t.Errorf("%s was changed", name)
		}
	}
	if _, err := d.Write(nil, dir); err == nil ||
		err.Error() != "configuration: board: "+dir+": is a folder: give the name of a file" {
		t.Errorf("a folder: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if _, err := d.Write(nil, os.DevNull); err == nil || err.Error() != "configuration: board: "+os.DevNull+": is not a regular file: give the name of one" {
		t.Errorf("a device: %v", err)
	}
}
