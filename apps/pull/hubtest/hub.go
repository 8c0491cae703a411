// Package hubtest runs a Hugging Face hub with a content delivery network on the loopback
// interface, for tests of its clients. It misbehaves as a test wants. Python's huggingface_hub
// accepts it as a hub: scripts/peers/hub.sh.
package hubtest

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Repo is a repository.
type Repo struct {
	Files  map[string][]byte
	Large  int               // size from which a file is large (LFS) and on the CDN; 0 is 1000
	Gated  bool              // needs a token
	Refs   map[string]string // commits by revision; nil is main alone
	Commit string            // "" is the hash of the files
}

// Call is one request.
type Call struct {
	Number int    // index among all requests
	Before int    // number of earlier requests of the same kind and file
	Kind   string // info, tree, refs, file, cdn
	File   string // of file and cdn: its path in the repository
	Method string
	Header http.Header
	Body   []byte // of file and cdn: the whole content of a right answer
}

// Server is a hub.
type Server struct {
	URL, CDN string // addresses of both, without a slash at their ends
	Token    string // the only token that is accepted; gated repositories need it
	Page     int    // files on a page of a list; 0 is 1000

	// Misbehave may answer a call itself, and reports whether it has. May be nil.
	Misbehave func(c Call, w http.ResponseWriter, r *http.Request) bool

	repos map[string]*Repo // "models/OWNER/NAME", "datasets/OWNER/NAME"

	mu     sync.Mutex
	calls  []Call
	before map[string]int
	close  []func() error
}

// Start listens on two ports, for the hub and its CDN. Keys of repos are models/OWNER/NAME or
// datasets/OWNER/NAME.
func Start(repos map[string]*Repo) (*Server, error) {
	s := &Server{repos: repos, before: map[string]int{}}
	for _, of := range []struct {
		url     *string
		handler http.HandlerFunc
	}{{&s.URL, s.hub}, {&s.CDN, s.cdn}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.Close()
			return nil, err
		}
		*of.url = "http://" + l.Addr().String()
		server := &http.Server{Handler: of.handler, ReadHeaderTimeout: 10 * time.Second}
		s.close = append(s.close, server.Close)
		go server.Serve(l)
	}
	return s, nil
}

// Close ends the server and its connections.
func (s *Server) Close() {
	for _, c := range s.close {
		c()
	}
}

// Calls returns the requests so far.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// SHA256 returns the hub's name of a large file's content.
func SHA256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// BlobSHA1 returns git's hash of a content: the hub's name of a small file's.
func BlobSHA1(b []byte) string {
	sum := sha1.Sum(append([]byte(fmt.Sprintf("blob %d\x00", len(b))), b...))
	return hex.EncodeToString(sum[:])
}

// ID returns the commit of a repository's main.
func (r *Repo) ID() string {
	if r.Commit != "" {
		return r.Commit
	}
	all := ""
	for _, name := range r.names() {
		all += name + SHA256(r.Files[name])
	}
	return BlobSHA1([]byte(all))
}

// names returns the paths of the files in order.
func (r *Repo) names() (list []string) {
	for name := range r.Files {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// isLarge reports whether a file is on the CDN.
func (r *Repo) isLarge(name string) bool {
	limit := r.Large
	if limit == 0 {
		limit = 1000
	}
	return len(r.Files[name]) >= limit
}

// commit returns the commit of a revision; "" for none.
func (r *Repo) commit(revision string) string {
	switch {
	case revision == r.ID():
		return revision
	case r.Refs != nil:
		return r.Refs[revision]
	case revision == "main":
		return r.ID()
	}
	return ""
}

// note records a call, and reports whether Misbehave has answered it.
func (s *Server) note(c Call, w http.ResponseWriter, r *http.Request) (done bool) {
	s.mu.Lock()
	key := c.Kind + " " + c.File
	c.Number, c.Before, c.Header, c.Method = len(s.calls), s.before[key], r.Header.Clone(), r.Method
	s.before[key]++
	s.calls = append(s.calls, c)
	misbehave := s.Misbehave
	s.mu.Unlock()
	return misbehave != nil && misbehave(c, w, r)
}

// SetMisbehave replaces Misbehave while requests may come.
func (s *Server) SetMisbehave(f func(c Call, w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Misbehave = f
}

// Fail answers with a status and the headers by which a hub gives the reason.
func Fail(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": message})
}

// hub handles requests to the hub itself.
func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	api := strings.HasPrefix(path, "api/")
	path = strings.TrimPrefix(path, "api/")
	kind := "models"
	for _, k := range []string{"models", "datasets"} {
		if rest, ok := strings.CutPrefix(path, k+"/"); ok {
			kind, path = k, rest
		}
	}
	parts := strings.SplitN(path, "/", 5) // OWNER NAME verb revision rest
	for i := range parts {
		if i != 4 {
			parts[i], _ = url.PathUnescape(parts[i])
		}
	}
	for len(parts) < 5 {
		parts = append(parts, "")
	}
	repo := s.repos[kind+"/"+parts[0]+"/"+parts[1]]
	verb, revision := parts[2], parts[3]
	if verb == "" {
		verb, revision = "revision", "main"
	}
	file, _ := url.PathUnescape(parts[4])
	c := Call{Kind: map[string]string{"revision": "info", "tree": "tree", "refs": "refs",
		"resolve": "file"}[verb], File: file}
	if repo != nil {
		c.Body = repo.Files[file]
	}
	if s.note(c, w, r) {
		return
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case token != "" && token != s.Token:
		Fail(w, 401, "", "Invalid credentials in Authorization header")
		return
	case repo == nil && token == "":
		Fail(w, 401, "RepoNotFound", "Repository not found")
		return
	case repo == nil:
		Fail(w, 404, "RepoNotFound", "Repository not found")
		return
	case verb == "refs":
		type named map[string]string
		branches := []named{{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.ID()}}
		for name, commit := range repo.Refs {
			if name != "main" {
				branches = append(branches,
					named{"name": name, "ref": "refs/heads/" + name, "targetCommit": commit})
			}
		}
		answer(w, map[string]any{"branches": branches, "tags": []named{}, "converts": []named{}})
		return
	}
	commit := repo.commit(revision)
	if commit == "" {
		Fail(w, 404, "RevisionNotFound", "Invalid rev id: "+revision)
		return
	}
	switch {
	case api && verb == "revision":
		var siblings []map[string]string
		for _, name := range repo.names() {
			siblings = append(siblings, map[string]string{"rfilename": name})
		}
		id := parts[0] + "/" + parts[1]
		answer(w, map[string]any{"id": id, "modelId": id, "sha": commit, "private": false,
			"gated": repo.Gated, "tags": []string{}, "downloads": 0, "likes": 0,
			"siblings": siblings})
	case api && verb == "tree":
		s.tree(w, r, repo)
	case !api && verb == "resolve":
		s.resolve(w, r, repo, commit, file, token)
	default:
		Fail(w, 404, "", "no such address")
	}
}

// tree answers with a page of the list of files.
func (s *Server) tree(w http.ResponseWriter, r *http.Request, repo *Repo) {
	names := repo.names()
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	size := s.Page
	if size == 0 {
		size = 1000
	}
	to := min(from+size, len(names))
	entries := []any{map[string]any{"type": "directory", "oid": strings.Repeat("0", 40), "size": 0,
		"path": "folder"}}
	for _, name := range names[min(from, to):to] {
		entries = append(entries, repo.Entry(name))
	}
	if to < len(names) {
		next := *r.URL
		q := next.Query()
		q.Set("cursor", strconv.Itoa(to))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, s.URL, next.RequestURI()))
	}
	answer(w, entries)
}

// Entry returns a file's entry in the list of files.
func (r *Repo) Entry(name string) map[string]any {
	body := r.Files[name]
	e := map[string]any{"type": "file", "oid": BlobSHA1(body), "size": len(body), "path": name}
	if r.isLarge(name) {
		e["oid"] = BlobSHA1([]byte("a pointer to " + SHA256(body)))
		e["lfs"] = map[string]any{"oid": SHA256(body), "size": len(body), "pointerSize": 134}
	}
	return e
}

// resolve answers with a small file, or redirects to a large one on the CDN.
func (s *Server) resolve(w http.ResponseWriter, r *http.Request, repo *Repo, commit, name,
	token string) {
	body, ok := repo.Files[name]
	w.Header().Set("X-Repo-Commit", commit)
	switch {
	case !ok:
		Fail(w, 404, "EntryNotFound", "Entry not found")
	case repo.Gated && token == "":
		Fail(w, 401, "GatedRepo", "Access to model is restricted. You must have access to it and be authenticated to access it. Please log in.")
	case repo.isLarge(name):
		w.Header().Set("X-Linked-Etag", `"`+SHA256(body)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(body)))
		w.Header().Set("ETag", `"`+BlobSHA1([]byte("a pointer to "+SHA256(body)))+`"`)
		w.Header().Set("Location",
			s.CDN+"/"+SHA256(body)+"?X-Signature=secret-signature&path="+url.QueryEscape(name))
		w.WriteHeader(http.StatusFound)
	default:
		w.Header().Set("ETag", `"`+BlobSHA1(body)+`"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(body)))
	}
}

// cdn serves large files by their hashes, under its own ETags.
func (s *Server) cdn(w http.ResponseWriter, r *http.Request) {
	sum, name := strings.TrimPrefix(r.URL.Path, "/"), r.URL.Query().Get("path")
	var body []byte
	for _, repo := range s.repos {
		if b, ok := repo.Files[name]; ok && SHA256(b) == sum {
			body = b
		}
	}
	if s.note(Call{Kind: "cdn", File: name, Body: body}, w, r) {
		return
	}
	if body == nil || r.URL.Query().Get("X-Signature") != "secret-signature" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("ETag", `"cdn-`+sum[:16]+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(body)))
}

// answer sends v as JSON.
func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// Slowly returns a misbehaviour that sends large files, and ranges of them, in pieces of 100 kB
// with pauses between the pieces.
func Slowly(pause time.Duration) func(c Call, w http.ResponseWriter, r *http.Request) bool {
	return func(c Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind != "cdn" {
			return false
		}
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		w.Header().Set("Content-Length", fmt.Sprint(len(c.Body)-from))
		if from > 0 {
			w.Header().Set("Content-Range",
				fmt.Sprintf("bytes %d-%d/%d", from, len(c.Body)-1, len(c.Body)))
			w.WriteHeader(http.StatusPartialContent)
		}
		for at := from; at < len(c.Body); at += 100_000 {
			if _, err := w.Write(c.Body[at:min(at+100_000, len(c.Body))]); err != nil {
				return true
			}
			w.(http.Flusher).Flush()
			time.Sleep(pause)
		}
		return true
	}
}

// Finals describes the first file of a cache that has its final name and not its content; "" if all
// are right.
func (r *Repo) Finals(cache string) string {
	dir := filepath.Join(cache, "models--org--student")
	blobs, _ := os.ReadDir(filepath.Join(dir, "blobs"))
	for _, b := range blobs {
		content, err := os.ReadFile(filepath.Join(dir, "blobs", b.Name()))
		if !strings.HasSuffix(b.Name(), ".incomplete") &&
			(err != nil || b.Name() != SHA256(content) &&
				b.Name() != BlobSHA1(content)) {
			return fmt.Sprintf("blob %s: %v, or other bytes", b.Name(), err)
		}
	}
	links, _ := os.ReadDir(filepath.Join(dir, "snapshots", r.ID()))
	for _, l := range links {
		if content, err := os.ReadFile(
			filepath.Join(dir, "snapshots", r.ID(), l.Name())); !strings.HasPrefix(l.Name(),
			".") && (err != nil || string(content) != string(r.Files[l.Name()])) {
			return fmt.Sprintf("snapshot %s: %v, or other bytes", l.Name(), err)
		}
	}
	if ref, err := os.ReadFile(filepath.Join(dir, "refs", "main")); err == nil &&
		(string(ref) != r.ID() || len(links) < 4) {
		return fmt.Sprintf("refs/main is %q, with %d files", ref, len(links))
	}
	return ""
}

// Big returns a repository whose weights, 4 MB, arrive in some 40 pieces.
func Big() *Repo {
	body := make([]byte, 4_000_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range body {
		body[i] = byte(r.Uint32())
	}
	return &Repo{Files: map[string][]byte{"config.json": []byte("{}"),
		"tokenizer.json": body[:5000], "tokenizer_config.json": []byte("{ }"),
		"model.safetensors": body}}
}

// Folder returns a repository with the files of a folder, beside others that nobody needs.
func Folder(t testing.TB, dir string) *Repo {
	t.Helper()
	repo := &Repo{Files: map[string][]byte{"README.md": []byte("# a repository"),
		"pytorch_model.bin": make([]byte, 2000)}}
	entries, err := os.ReadDir(dir)
	for i := 0; i < len(entries) && err == nil; i++ {
		name := entries[i].Name()
		repo.Files[name], err = os.ReadFile(filepath.Join(dir, name))
	}
	if err != nil {
		t.Fatal(err)
	}
	return repo
}
