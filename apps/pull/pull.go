// Package pull fetches models and data sets from a Hugging Face hub into the cache that
// programs of that hub share, and finds them there.
//
// Only files that gad reads are fetched, and no pickle. Each is compared with the hash that
// the hub lists before it gets its name: SHA-256 of large files, git's SHA-1 of small ones.
// A final name never has wrong content, whatever a server sends and whenever the process is killed.
// The beginning of a file is kept as ETAG.incomplete, and continued.
//
//	name.go    OWNER/NAME[@REVISION][:FILE]
//	choose.go  which files of a repository are fetched
//	cache.go   the cache: the environment, the layout, finding files in it
//	local.go   a name in the place of a path
//	hub.go     requests: redirects, the token, retries, bounds of a server
//	pull.go    the list of files, the plan, errors in words: start here
//	fetch.go   one file: lock, range, hash, rename
//	print.go   what a dry run prints
package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gad/internal/vfs"
)

// Errors that callers branch on. The text of any error begins with "pull: ".
var (
	// ErrName reports a mistake of the user: a name, a variable of the environment.
	ErrName = errors.New("pull")
	// ErrAbsent reports files that Find does not have in the cache, or not all of them.
	ErrAbsent = errors.New("pull")
	// ErrContent reports a repository without the file, or without files for gad.
	ErrContent = errors.New("pull")
	// ErrServer reports an answer that no hub gives.
	ErrServer = errors.New("pull")
	// ErrNetwork reports a failure that a later try may not meet.
	ErrNetwork = errors.New("pull")
	// ErrSpace reports a disk with too little space.
	ErrSpace = errors.New("pull")
)

// Options says what to fetch, from where, and with which timeouts and retries.
type Options struct {
	FS vfs.FS // nil is the disk
	Environment
	Name         Name
	InsecureHTTP bool          // http:// to another machine is allowed
	Timeout      time.Duration // time without a byte after which a try fails; 0 is 30 s
	Retries      int           // tries in a row without progress, after the first
	Verify       bool          // hash also large files that are in the cache

	// gets messages for people; may be nil
	Say func(format string, args ...any)
	// starts a display that counts MB; may be nil
	Progress func(name string, total int) (advance func(n int), done func())

	pause time.Duration // before the second try; 0 is 1 s
}

// Pull is the list of files of a repository to fetch.
type Pull struct {
	Items  []Item
	Commit string // 40 hexadecimal digits
	Dir    string // folder of the snapshot

	o    Options
	hub  *hub
	repo repoDir
}

// Item is a file and its state in the cache.
type Item struct {
	File
	Have  int64 // bytes in the cache: Size, or the length of an interrupted download
	Whole bool  // the cache has the file
}

// maxSize bounds the size of a file in a hub's list.
const maxSize = 1 << 50

// Open asks the hub for the files of o.Name and checks which are in the cache. It writes nothing.
func Open(ctx context.Context, o Options) (*Pull, error) {
	o.FS = vfs.OrDisk(o.FS)
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	if o.Progress == nil {
		o.Progress = func(string, int) (func(int), func()) { return func(int) {}, func() {} }
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.pause <= 0 {
		o.pause = time.Second
	}
	h, err := newHub(o)
	if err != nil {
		return nil, err
	}
	p := &Pull{o: o, hub: h, repo: repoDir{o.FS, o.Cache, o.Name}}
	if err := p.open(ctx); err != nil {
		return nil, p.explain(ctx, err)
	}
	return p, nil
}

// open resolves the revision to a commit and fills Items.
func (p *Pull) open(ctx context.Context) error {
	n := p.o.Name
	api := "/api/" + n.kind() + "/" + n.Repo
	if p.Commit = n.ref(); !commitID.MatchString(p.Commit) {
		var info struct{ SHA string }
		if _, _, err := p.hub.json(ctx, p.hub.address(api+"/revision/"+url.PathEscape(n.ref()), ""),
			maxList, &info); err != nil {
			return err
		}
		if p.Commit = info.SHA; !commitID.MatchString(p.Commit) {
			return permanent(ErrServer, "%s: names no commit for %s: is HF_ENDPOINT a hub?",
				p.hub.base.Host, n)
		}
	}
	p.Dir = p.repo.snapshot(p.Commit)
	files, err := p.list(ctx, p.hub.address(api+"/tree/"+p.Commit, "recursive=true&expand=false"))
	if err != nil {
		return err
	}
	chosen, err := choose(n, files, func(f File) ([]byte, error) { return p.readSmall(ctx, f) })
	if err != nil {
		return err
	}
	for _, f := range chosen {
		item := Item{File: f, Have: f.Size}
		if item.Whole, err = p.isCached(ctx, f); err != nil {
			return err
		}
		if !item.Whole {
			item.Have = p.partialSize(f)
		}
		p.Items = append(p.Items, item)
	}
	return nil
}

// list returns the files of the commit. It refuses the whole list where one entry could not be
// stored safely.
func (p *Pull) list(ctx context.Context, page *url.URL) (files []File, err error) {
	left, seen := int64(maxList), map[string]bool{}
	for pages := 0; page != nil; pages++ {
		if pages == maxPages || seen[page.String()] {
			return nil, permanent(ErrServer, "%s: the list of files has no end: is HF_ENDPOINT a hub?",
				p.hub.base.Host)
		}
		seen[page.String()] = true
		var entries []struct {
			Type, Path, OID string
			Size            int64
			LFS             *struct {
				OID  string
				Size int64
			}
		}
		n, next, err := p.hub.json(ctx, page, left, &entries)
		if err != nil {
			return nil, err
		}
		left -= n
		for _, e := range entries {
			if e.Type != "file" {
				continue
			}
			f := File{Path: e.Path, Size: e.Size, SHA1: e.OID}
			if e.LFS != nil {
				f.Size, f.SHA256 = e.LFS.Size, e.LFS.OID
			}
			switch {
			case !fs.ValidPath(f.Path) || f.Path == ".":
				return nil, permanent(ErrServer, "%s: the hub lists a file %q, which is no path inside a repository: nothing is fetched", p.o.Name, show(f.Path))
			case f.Size < 0 || f.Size > maxSize || !isHex(f.SHA1, 40) || e.LFS != nil &&
				!isHex(f.SHA256, 64):
				return nil, permanent(ErrServer,
					"%s: the hub lists %q with a size or a hash that cannot be: nothing is fetched",
					p.o.Name, show(f.Path))
			}
			// files with unsafe names are never chosen
			if safePath(f.Path) && !seen["file "+f.Path] {
				files = append(files, f)
			}
			seen["file "+f.Path] = true
		}
		page = next
	}
	return files, nil
}

// isHex reports whether s is so many lower-case hexadecimal digits.
func isHex(s string, digits int) bool {
	return len(s) == digits && strings.Trim(s, "0123456789abcdef") == ""
}

// Missing returns the number of bytes to fetch.
func (p *Pull) Missing() (n int64) {
	for _, i := range p.Items {
		n += i.Size - i.Have
	}
	return n
}

// Size returns the bytes of all files.
func (p *Pull) Size() (n int64) {
	for _, i := range p.Items {
		n += i.Size
	}
	return n
}

// Free returns the bytes that can be written to the cache, MaxInt64 if unknown.
func (p *Pull) Free() (int64, error) {
	n, err := p.o.FS.Free(p.o.Cache)
	if errors.Is(err, errors.ErrUnsupported) {
		return math.MaxInt64, nil
	}
	if err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	return n, nil
}

// Path returns the path of the fetched repository: the snapshot's folder, or the file that was
// asked for.
func (p *Pull) Path() string {
	if p.o.Name.File != "" && len(p.Items) == 1 {
		return filepath.Join(p.Dir, filepath.FromSlash(p.Items[0].Path))
	}
	return p.Dir
}

// Fetch downloads the missing files. The revision gets its new commit after all of them.
func (p *Pull) Fetch(ctx context.Context) error {
	free, err := p.Free()
	if err != nil {
		return err
	}
	if missing := p.Missing(); missing > free {
		return fmt.Errorf("%w: %s: needs %d bytes, %d are free: free some space, or set HF_HUB_CACHE to a folder on another disk", ErrSpace, p.o.Cache, missing, free)
	}
	if err := p.fetchAll(ctx); err != nil {
		return p.explain(ctx, err)
	}
	return p.publish(ctx)
}

// publish links the files of the commit and records it as the revision's. One program at a time
// does so, since all use the same temporary names.
func (p *Pull) publish(ctx context.Context) (err error) {
	name := p.repo.lockFile("snapshots")
	if err := vfs.MakeDirs(p.o.FS, filepath.Dir(name)); err != nil {
		return fmt.Errorf("pull: %s: %w", p.o.Cache, vfs.Target(err))
	}
	unlock, err := p.lock(ctx, name, "snapshots")
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, unlock()) }()
	for _, i := range p.Items {
		if err := p.repo.link(p.Commit, i.File); err != nil {
			return fmt.Errorf("pull: %s: %w", i.Path, err)
		}
	}
	if err := p.repo.setRef(p.Commit); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// explain returns an error with a hub's refusal in words.
func (p *Pull) explain(ctx context.Context, err error) error {
	n, host := p.o.Name, p.hub.base.Scheme+"://"+p.hub.base.Host
	what, page := "model", host+"/"+n.Repo
	if n.Dataset {
		what, page = "data set", host+"/datasets/"+n.Repo
	}
	var f *failure
	said := ""
	if errors.As(err, &f) && strings.HasPrefix(f.text, ": ") {
		said = " (the hub says" + f.text + ")"
	}
	switch token := p.o.Token != ""; {
	case errors.Is(err, errGated) && token:
		return fmt.Errorf("pull: %s: is gated, and the token has no access%s: accept its licence on %s with the token's account, and wait until access is granted", n, said, page)
	case errors.Is(err, errGated):
		return fmt.Errorf("pull: %s: is gated: accept its licence on %s, create a token on %s/settings/tokens, and set HF_TOKEN to it", n, page, host)
	case errors.Is(err, errToken):
		from := "HF_TOKEN"
		if p.o.TokenFile != "" {
			from = p.o.TokenFile
		}
		return fmt.Errorf("pull: %s: the hub refuses the token of %s%s: create another on %s/settings/tokens, or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 for none", n, from, said, host)
	case errors.Is(err, errNoRepo) && token:
		return fmt.Errorf(
			"pull: %s: %s has no such %s, or the token may not see it: check the name%s", n, host,
			what, p.otherKind())
	case errors.Is(err, errNoRepo):
		return fmt.Errorf("pull: %s: %s has no such %s, or it is private: check the name%s; for a private one set HF_TOKEN", n, host, what, p.otherKind())
	case errors.Is(err, errNoRevision), errors.Is(err, errNoEntry) && f != nil && len(p.Items) == 0:
		return fmt.Errorf("pull: %s: there is no revision %q%s", n, n.ref(), p.revisions(ctx))
	case errors.Is(err, errNoEntry):
		return fmt.Errorf("pull: %s: the hub lists a file that it does not have: run the same command again later", n)
	}
	return err
}

// otherKind returns advice about the flag --dataset.
func (p *Pull) otherKind() string {
	if p.o.Name.Dataset {
		return ", and leave out --dataset for a model"
	}
	return ", and give --dataset for a data set"
}

// revisions returns the branches and tags as text, or advice where the hub does not list them.
func (p *Pull) revisions(ctx context.Context) string {
	type named []struct{ Name string }
	var refs struct{ Branches, Tags named }
	n := p.o.Name
	if _, _, err := p.hub.json(ctx, p.hub.address("/api/"+n.kind()+"/"+n.Repo+"/refs", ""),
		maxIndex, &refs); err != nil {
		return ": give a branch, a tag or a commit"
	}
	var files []File
	for _, list := range []named{refs.Branches, refs.Tags} {
		for _, r := range list {
			files = append(files, File{Path: r.Name})
		}
	}
	return ": there is " + listNames(files)
}

// isFull reports whether a disk has no room.
func isFull(
	err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
