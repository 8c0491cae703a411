package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gad/apps/pull/hubtest"
	"gad/internal/hostile"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// serverFault is one way in which a hub or its CDN misbehaves.
type serverFault struct {
	name   string
	of     string // Kind of the calls that it answers, with :FILE for one file of them
	answer func(c hubtest.Call, w http.ResponseWriter, r *http.Request)
	// times is how often; 0 is always. A fault that ends may not end the command, one that does
	// not end must.
	times int
}

const (
	largeFile = "cdn:model.safetensors"
	smallFile = "file:config.json"
)

func status(code int, headers ...string) func(hubtest.Call, http.ResponseWriter, *http.Request) {
	return func(_ hubtest.Call, w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		hubtest.Fail(w, code, "", "trouble\r\nwith\x1b[31m colours")
	}
}

func redirect(to string) func(hubtest.Call, http.ResponseWriter, *http.Request) {
	return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location",
			strings.NewReplacer("HERE", "http://"+r.Host+r.URL.RequestURI(), "HOST",
				r.Host).Replace(to))
		w.WriteHeader(http.StatusFound)
	}
}

// cut sends so much of the rest of the body, in a whole answer's headers, and drops the connection.
func cut(part float64) func(hubtest.Call, http.ResponseWriter, *http.Request) {
	return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) {
		body := c.Body
		var from int
		if fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); from > 0 {
			w.Header().Set("Content-Range",
				fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
			body = body[from:]
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		w.Write(body[:int(part*float64(len(body)))])
		panic(http.ErrAbortHandler)
	}
}

// damaged sends the file with one byte changed.
func damaged(at float64) func(hubtest.Call, http.ResponseWriter, *http.Request) {
	return func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) {
		body := append([]byte{}, c.Body...)
		body[int(at*float64(len(body)-1))] ^= 1
		w.Write(body)
	}
}

func text(headers, body string) func(hubtest.Call, http.ResponseWriter, *http.Request) {
	return func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) {
		for _, h := range strings.Split(headers, "|") {
			if k, v, ok := strings.Cut(h, ": "); ok {
				w.Header().Set(k, v)
			}
		}
		w.Write([]byte(body))
	}
}

func entry(path string, change string) string {
	e := fmt.Sprintf(`[{"type":"file","path":%q,"size":5,"oid":"%s"}]`, path, strings.Repeat("a", 40))
	if from, to, ok := strings.Cut(change, "=>"); ok {
		e = strings.Replace(e, from, to, 1)
	}
	return e
}

// serverFaults are all ways of a server that the test knows.
func serverFaults() (list []serverFault) {
	add := func(name, of string, answer func(hubtest.Call, http.ResponseWriter, *http.Request),
		times ...int) {
		for _, n := range times {
			list = append(list, serverFault{fmt.Sprintf("%s, %s", name, of), of, answer, n})
		}
	}
	for _, at := range []float64{0, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1} {
		add(fmt.Sprintf("cut at %g", at), largeFile, cut(at), 1, 3)
		add(fmt.Sprintf("damaged at %g", at), largeFile, damaged(at), 1, 0)
	}
	for _, at := range []float64{0, 0.5} {
		add(fmt.Sprintf("cut at %g", at), largeFile, cut(at), 0)
		add(fmt.Sprintf("cut at %g", at), smallFile, cut(at), 1, 0)
		add(fmt.Sprintf("damaged at %g", at), smallFile, damaged(at), 1, 0)
	}
	for _, of := range []string{"info", "tree", smallFile, "file:model.safetensors", largeFile} {
		for _, code := range []int{408, 429, 500, 502, 503, 504} {
			add(fmt.Sprintf("status %d", code), of, status(code), 1, 0)
		}
		for _, code := range []int{400, 401, 403, 404, 410, 451, 501, 204, 304} {
			add(fmt.Sprintf("status %d", code), of, status(code), 0)
		}
		add("connection dropped", of,
			func(hubtest.Call, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			1, 0)
		add("silence", of,
			func(_ hubtest.Call, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			1)
		add("redirect to itself", of, redirect("HERE"), 0)
		add("redirect without end", of, redirect("HERE&x"), 0)
		add("redirect to a file", of, redirect("file:///etc/passwd"), 0)
		add("redirect to ftp", of, redirect("ftp://HOST/x"), 0)
		add("redirect to a script", of, redirect("javascript:alert(1)"), 0)
		add("redirect to nowhere", of, redirect(""), 0)
		add("redirect with a password", of, redirect("http://me:secret@HOST/x"), 0)
		add("redirect to nobody", of, redirect("http://127.0.0.1:1/x?sig=secret-signature"), 0)
		add("HTML", of, text("Content-Type: text/html", "<html>log in to this network</html>"), 0)
	}
	for _, wait := range []string{"0", "0.01", "soon", "-1", "", "Mon, 02 Jan 2006 15:04:05 GMT"} {
		add("429, Retry-After "+wait, largeFile, status(429, "Retry-After", wait), 1)
	}
	add("429 for an hour", largeFile, status(429, "Retry-After", "3600"), 0)
	add("429 by RateLimit", "tree", status(429, "RateLimit", `"api";r=0;t=0`), 1)
	add("gated", smallFile, status(403, "X-Error-Code", "GatedRepo"), 0)
	add("gated", "file:model.safetensors", status(401, "X-Error-Code", "GatedRepo"), 0)
	add("no entry", smallFile, status(404, "X-Error-Code", "EntryNotFound"), 0)
	// lengths that lie
	add("too long", largeFile, func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Transfer-Encoding", "chunked")
		w.Write(append(c.Body, 0))
	}, 1, 0)
	add("too short", largeFile,
		func(c hubtest.Call, w http.ResponseWriter,
			_ *http.Request) {
			w.Write(c.Body[:len(c.Body)/2])
		}, 1, 0)
	add("nothing", largeFile, text("", ""), 0)
	add("endless", largeFile, func(_ hubtest.Call, w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}, 1, 0)
	add("endless", "tree", func(_ hubtest.Call, w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("["))
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat(`{"type":"file"},`, 1<<12))); err != nil {
				return
			}
		}
	}, 0)
	add("compressed", largeFile, text("Content-Encoding: gzip", "x"), 1, 0)
	add("another commit", smallFile, text("X-Repo-Commit: "+strings.Repeat("b", 40), "x"), 0)
	add("another hash", "file:model.safetensors", text(`X-Linked-Etag: "`+strings.Repeat("c", 64)+`"`, "x"), 0)
	// lists that lie
	for _, path := range []string{"../../evil", "/etc/evil", "a/../../evil", "..", "", "a//b",
		"./a"} {
		add(fmt.Sprintf("name %q", path), "tree", text("", entry(path, "")), 0)
	}
	for _, path := range []string{`..\evil`, `C:evil`, "a\x00b", "nul\n.json", "config.json. "} {
		add(fmt.Sprintf("name %q alone", path), "tree", text("", entry(path, "")), 0)
	}
	for _, change := range []string{`"size":5=>"size":-5`, `"size":5=>"size":9223372036854775807`, `"size":5=>"size":1e300`, `"size":5=>"size":"5"`, `"oid":"aa=>"oid":"..`, `"oid":"aa=>"oid":"AA`, `"oid":=>"x":`, `}]=>,"lfs":{"oid":"../../x","size":1}}]`} {
		add("entry with "+change, "tree", text("", entry("config.json", change)), 0)
	}
	add("config of 4 TB", "tree", func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(fmt.Sprintf(`[{"type":"file","path":"config.json","size":5,"oid":"%[1]s"},{"type":"file","path":"model.safetensors","size":1,"oid":"%[1]s","lfs":{"oid":"%[2]s","size":1100000000000000}}]`, strings.Repeat("a", 40), strings.Repeat("a", 64))))
	}, 0)
	add("pages without end", "tree", func(c hubtest.Call, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", fmt.Sprintf(`<http://%s%s?cursor=%d>; rel="next"`, r.Host, r.URL.Path, c.Before))
		w.Write([]byte("[]"))
	}, 0)
	add("a page elsewhere", "tree", text(`Link: <http://127.0.0.1:1/x>; rel="next"`, "[]"), 0)
	for _, sha := range []string{`"../../x"`, `""`, "5", `"` + strings.Repeat("A", 40) + `"`} {
		add("commit "+sha, "info", text("", `{"sha":`+sha+`}`), 0)
	}
	add("deep JSON", "tree", text("", strings.Repeat("[", 1<<20)), 0)
	return list
}

// Whatever a server does: nothing wrong is under a final name; a fault that passes is got
// over; one that stays ends the command with one line, without a secret; and the same
// command afterwards completes.
func TestServerFaults(t *testing.T) {
	t.Parallel()
	repo := student()
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.Token = "hf_secrettoken"
	counts := map[string][2]int{}
	for i, f := range serverFaults() {
		if testing.Short() && i%9 != 0 || !hostile.Long() && i%5 != 0 {
			continue
		}
		cache := filepath.Join(t.TempDir(), "hub")
		o := options(t, s, cache, "org/student")
		o.Token = s.Token
		said := ""
		o.Say = func(format string, args ...any) { said += fmt.Sprintf(format, args...) + "\n" }
		if strings.HasPrefix(f.name, "silence") {
			o.Timeout = 50 * time.Millisecond
		}
		var left atomic.Int64
		left.Store(int64(f.times))
		kind, file, _ := strings.Cut(f.of, ":")
		s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
			if c.Kind != kind || file != "" && c.File != file || f.times > 0 && left.Add(-1) < 0 {
				return false
			}
			f.answer(c, w, r)
			return true
		})
		_, err := run(o)
		whole := fetched
		n := counts[kind]
		if n[0]++; err != nil {
			n[1]++
			whole = nil
		}
		counts[kind] = n
		if f.times > 0 && err != nil || f.times == 0 && err == nil {
			t.Errorf("%s, %d times: %v", f.name, f.times, err)
		}
		if err != nil {
			if line := err.Error(); strings.ContainsAny(line, "\n\r\x1b") ||
				!strings.HasPrefix(line, "pull: ") || len(line) > 1000 {
				t.Errorf("%s: %q", f.name, line)
			}
			said += err.Error()
		}
		for _, secret := range []string{s.Token, "secret-signature", "me:secret"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: says %q", f.name, said)
			}
		}
		if bad := wrong(vfs.OS, cache, repo, whole); bad != "" {
			t.Errorf("%s, %d times: %s", f.name, f.times, bad)
		}
		s.SetMisbehave(nil)
		if _, err := run(o); err != nil {
			t.Errorf("%s, %d times, the same command again: %v", f.name, f.times, err)
		}
		if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
			t.Errorf("%s, %d times, the same command again: %s", f.name, f.times, bad)
		}
		if outside, _ := filepath.Glob(filepath.Join(filepath.Dir(cache), "*")); len(outside) != 1 {
			t.Errorf("%s: made %v", f.name, outside)
		}
	}
	for _, c := range s.Calls() {
		if c.Kind == "cdn" && c.Header.Get("Authorization") != "" {
			t.Errorf("the CDN got %s", c.Header.Get("Authorization"))
		}
	}
	total := 0
	for _, kind := range []string{"info", "tree", "file", "cdn"} {
		t.Logf("faults of %s: %d, of which %d ended the command with one line, the others were got over", kind, counts[kind][0], counts[kind][1])
		total += counts[kind][0]
	}
	t.Logf("row 22: gad pull: %d faults of servers: 0 wrong under a final name, and the same command completed after each", total)
}

// diskCache is a cache in memory, with the real folder that locks need.
func diskCache(t *testing.T) (mem *vfstest.CrashFS, cache string) {
	cache = filepath.Join(t.TempDir(), "hub")
	mem = vfstest.NewCrash()
	if err := errors.Join(vfs.MakeDirs(mem, filepath.Dir(cache)),
		os.MkdirAll(filepath.Join(cache, ".locks", "models--org--student"), 0o777)); err != nil {
		t.Fatal(err)
	}
	return mem, cache
}

// Each operation of the file system fails once, or it and all after it; the disk fills up; the
// power goes: nothing wrong is under a final name, and the same command completes.
func TestDiskFaults(t *testing.T) {
	t.Parallel()
	repo := student()
	repo.Files["model.safetensors"] = random(3000, 2)
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	failing, crashed, full := 0, 0, 0
	again := func(what string, mem vfs.FS, o Options) {
		t.Helper()
		if bad := wrong(mem, o.Cache, repo, nil); bad != "" {
			t.Errorf("%s: %s", what, bad)
		}
		o.FS = mem
		if _, err := run(o); err != nil {
			t.Errorf("%s, the same command again: %v", what, err)
		} else if bad := wrong(mem, o.Cache, repo, fetched); bad != "" {
			t.Errorf("%s, the same command again: %s", what, bad)
		}
	}
	mem, cache := diskCache(t)
	o := options(t, s, cache, "org/student")
	count := vfstest.NewError(mem, -1, false)
	o.FS = count
	if _, err := run(o); err != nil {
		t.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 17
	} else if !hostile.Long() {
		step = 5
	}
	for at := 0; at < count.Ops(); at += step {
		for _, forever := range []bool{false, true} {
			mem, o.Cache = diskCache(t)
			faulty := vfstest.NewError(mem, at, forever)
			o.FS = faulty
			_, err := run(o)
			what := fmt.Sprintf("operation %d (%s) fails, forever %v", at, faulty.Op(at), forever)
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", what, err)
			}
			failing++
			if forever {
				for seed := range uint64(3) {
					crashed++
					again(fmt.Sprintf("%s, then the power goes (%d)", what, seed),
						mem.CrashClone([]int{0, 50, 100}[seed], seed), o)
				}
			}
			again(what, mem, o)
		}
	}
	for room := int64(0); room < 15_000; room += 600 {
		mem, o.Cache = diskCache(t)
		o.FS = vfstest.NewBudget(mem, room)
		_, err := run(o)
		switch {
		case err == nil:
			continue
		case !errors.Is(err, ErrSpace) && !isFull(err) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%d bytes: %v", room, err)
		}
		full++
		again(fmt.Sprintf("%d bytes of room", room), mem, o)
	}
	t.Logf("row 22: gad pull: %d failing operations, %d losses of power, %d full disks: 0 wrong under a final name, and the same command completed after each", failing, crashed, full)
	if full < 10 || failing < 20 {
		t.Errorf("%d full disks, %d failing operations", full, failing)
	}
}

// What an earlier process has left, in any state, is continued or thrown away.
func TestLeftovers(t *testing.T) {
	repo := student()
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	body := repo.Files["model.safetensors"]
	sum := hubtest.SHA256(body)
	for _, c := range []struct {
		name, file string
		content    []byte
		ranged     string // of the request for the large file
	}{
		{"half", ".incomplete", body[:150_000], "bytes=150000-"},
		{"all but one", ".incomplete", body[:len(body)-1], "bytes=299999-"},
		{"all, not renamed", ".incomplete", body, "none"},
		{"all and more", ".incomplete", append(append([]byte{}, body...), 0), ""},
		{"other bytes", ".incomplete", make([]byte, 1000), "bytes=1000-"},
		{"other bytes, all", ".incomplete", make([]byte, len(body)), ""},
		{"empty", ".incomplete", nil, ""},
		{"a torn file under the final name", "", body[:1000], ""},
	} {
		cache := filepath.Join(t.TempDir(), "hub")
		blobs := filepath.Join(cache, "models--org--student", "blobs")
		if err := errors.Join(os.MkdirAll(blobs, 0o777),
			os.WriteFile(filepath.Join(blobs, sum+c.file), c.content, 0o644)); err != nil {
			t.Fatal(err)
		}
		at := len(s.Calls())
		if _, err := run(options(t, s, cache, "org/student")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
			t.Errorf("%s: %s", c.name, bad)
		}
		ranged := "none"
		for _, call := range s.Calls()[at:] {
			if call.Kind == "cdn" && call.File == "model.safetensors" && ranged == "none" {
				ranged = call.Header.Get("Range")
			}
		}
		if ranged != c.ranged {
			t.Errorf("%s: Range %q, want %q", c.name, ranged, c.ranged)
		}
	}
	// With Verify, bytes that have changed on the disk are seen.
	cache := filepath.Join(t.TempDir(), "hub")
	o := options(t, s, cache, "org/student")
	if _, err := run(o); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(cache, "models--org--student", "blobs", sum)
	os.WriteFile(blob, make([]byte, len(body)), 0o644)
	o.Verify = true
	if _, err := run(o); err != nil {
		t.Error(err)
	}
	if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
		t.Errorf("--verify: %s", bad)
	}
}

// A second answer of another file than the first one's beginning is not appended: by
// If-Range the CDN sends the whole.
func TestIfRange(t *testing.T) {
	repo := student()
	s := start(t, map[string]*hubtest.Repo{"models/org/student": repo})
	s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind != "cdn" || c.File != "model.safetensors" || c.Before > 0 {
			return false
		}
		w.Header().Set("ETag", `"of-another-file"`)
		w.Header().Set("Content-Length", fmt.Sprint(len(c.Body)))
		w.Write(make([]byte, len(c.Body)/2))
		panic(http.ErrAbortHandler)
	})
	cache := filepath.Join(t.TempDir(), "hub")
	if _, err := run(options(t, s, cache, "org/student")); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for _, c := range s.Calls() {
		if c.Kind == "cdn" && c.File == "model.safetensors" {
			if asked++; asked == 2 && c.Header.Get("If-Range") != `"of-another-file"` {
				t.Errorf("If-Range is %q", c.Header.Get("If-Range"))
			}
		}
	}
	if asked != 2 {
		t.Errorf("%d requests", asked)
	}
	if bad := wrong(vfs.OS, cache, repo, fetched); bad != "" {
		t.Error(bad)
	}
}

// Where a redirect may lead.
func TestFollow(t *testing.T) {
	h := &hub{base: &url.URL{Scheme: "https", Host: "hub"}}
	for _, c := range []struct{ from, to, want string }{
		{"https://hub/a", "https://cdn/b?x=1#f", "https://cdn/b?x=1"},
		{"https://hub/a", "/b", "https://hub/b"},
		{"http://hub/a", "http://cdn/b", "http://cdn/b"},
		{"http://hub/a", "https://cdn/b", "https://cdn/b"},
		{"https://hub/a", "http://cdn/b?secret",
			"pull: hub: redirects from https to http://cdn: refused"},
		{"https://hub/a", "file:///etc/passwd",
			"pull: hub: redirects to file://: refused: only https is followed"},
		{"https://hub/a", "//u:p@cdn/b",
			"pull: hub: redirects to an address with a user or password in it: refused"},
		{"https://hub/a", "", "pull: hub: redirects to nowhere"},
		{"https://hub/a", "https:///b", "pull: hub: redirects to nowhere"},
	} {
		from, _ := url.Parse(c.from)
		got := ""
		if u, err := h.follow(from, c.to); err != nil {
			got = err.Error()
		} else {
			got = u.String()
		}
		if got != c.want {
			t.Errorf("%s to %s: %s, want %s", c.from, c.to, got, c.want)
		}
	}
	same := func(a, b string) bool {
		x, _ := url.Parse(a)
		y, _ := url.Parse(b)
		return sameOrigin(x, y)
	}
	if !same("https://hub/a", "https://HUB:443/b") || same("https://hub", "http://hub") ||
		same("https://hub", "https://hub:444") || same("https://hub", "https://evil.hub") {
		t.Error("sameOrigin")
	}
}

// A cancelled context ends at once, whatever is under way.
func TestCancel(t *testing.T) {
	s := start(t, map[string]*hubtest.Repo{"models/org/student": student()})
	for _, kind := range []string{"info", "tree", "file", "cdn"} {
		ctx, cancel := context.WithCancel(context.Background())
		s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
			if c.Kind != kind {
				return false
			}
			cancel()
			<-r.Context().Done()
			return true
		})
		p, err := Open(ctx, options(t, s, filepath.Join(t.TempDir(), "hub"), "org/student"))
		if err == nil {
			err = p.Fetch(ctx)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// The bytes of a list of files are bounded for all pages together: three pages of a third
// of the bound.
func TestLongList(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]*hubtest.Repo{"models/org/student": student()})
	page := bytes.Repeat([]byte{' '}, maxList/3+1)
	copy(page, "[]")
	s.SetMisbehave(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind != "tree" {
			return false
		}
		if c.Before < 2 {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s&cursor=%d>; rel="next"`, s.URL,
				r.URL.RequestURI(), c.Before+1))
		}
		w.Write(page)
		return true
	})
	o := options(t, s, filepath.Join(t.TempDir(), "hub"), "org/student")
	if _, err := run(o); err == nil || !strings.Contains(err.Error(),
		fmt.Sprintf("the list of files is longer than %d bytes", maxList)) {
		t.Errorf("three pages of %d bytes: %v", len(page), err)
	}
}
