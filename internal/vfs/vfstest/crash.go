// Package vfstest holds file systems for tests of crash safety: [CrashFS], in
// memory, which can be asked what a loss of power would leave; [ErrorFS], which
// makes any one operation of another file system fail; [Forgetful], which leaves
// out one sync; and [Budget], a disk that fills up.
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"gad/internal/vfs"
)

// CrashFS is a file system in memory that remembers what has been synced. It
// promises no more than the rules of vfs.FS: of everything else, a crash keeps
// any part. It is safe for use by several goroutines.
type CrashFS struct {
	mu      sync.Mutex
	root    *node
	pending []change // changes of names that no SyncDir has covered, in order
}

// node is a file or a folder: the content that programs see now (data, names), and the
// content that a loss of power leaves at least (synced, syncedNames).
type node struct {
	dir          bool
	link         string // target of a symbolic link; "" for anything else
	data, synced []byte

	names, syncedNames map[string]*node
}

// change is one change of names: node appears as toName in to (unless that is
// nil) and disappears as fromName from from (unless that is nil).
type change struct {
	node             *node
	from, to         *node
	fromName, toName string
}

// newDir returns an empty folder.
func newDir() *node {
	return &node{dir: true, names: map[string]*node{}, syncedNames: map[string]*node{}}
}

// NewCrash returns an empty file system with a root folder.
func NewCrash() *CrashFS { return &CrashFS{root: newDir()} }

// CrashClone returns the file system that a machine could find after a loss of
// power now. Everything synced is there; of each change of names that was not
// synced keepPercent in a hundred are, whatever their order (but a name follows
// its node: a rename is lost if the creation before it was); and of the bytes
// not synced the same share, in blocks of 64: a lost block reads as zeros, or is
// cut off if it is the last. Equal seeds give equal clones.
func (c *CrashFS) CrashClone(keepPercent int, seed uint64) *CrashFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := rand.New(rand.NewPCG(seed, uint64(keepPercent)))
	keep := func() bool { return r.IntN(100) < keepPercent }

	// The names left in every folder that can be reached in either state.
	names := map[*node]map[string]*node{}
	at := func(d *node) map[string]*node {
		if names[d] == nil {
			m := make(map[string]*node, len(d.syncedNames))
			for k, v := range d.syncedNames {
				m[k] = v
			}
			names[d] = m
		}
		return names[d]
	}
	lost := map[*node]bool{}
	for _, ch := range c.pending {
		if lost[ch.node] || !keep() {
			lost[ch.node] = true
			continue
		}
		if ch.from != nil {
			delete(at(ch.from), ch.fromName)
		}
		if ch.to != nil {
			at(ch.to)[ch.toName] = ch.node
		}
	}
	var build func(n *node) *node
	build = func(n *node) *node {
		if n.link != "" {
			return &node{link: n.link}
		}
		if !n.dir {
			b := crashBytes(n, keep)
			return &node{data: b, synced: b}
		}
		d := newDir()
		for _, name := range sortedKeys(at(n)) { // in order, so that the seed decides all
			child := build(at(n)[name])
			d.names[name], d.syncedNames[name] = child, child
		}
		return d
	}
	return &CrashFS{root: build(c.root)}
}

// crashBytes returns the bytes of a file after a crash: the synced ones, and of the others the
// blocks for which keep returns true.
func crashBytes(n *node, keep func() bool) []byte {
	const block = 64
	base := n.synced
	if !bytes.HasPrefix(n.data, base) { // rewritten in place: the old bytes, or some of the new
		if !keep() {
			return bytes.Clone(base)
		}
		base = nil
	}
	out := bytes.Clone(base)
	end := len(base)
	for at := len(base); at < len(n.data); at += block {
		b := n.data[at:min(at+block, len(n.data))]
		if keep() {
			out = append(out, b...)
			end = len(out)
		} else {
			out = append(out, make([]byte, len(b))...)
		}
	}
	return out[:end]
}

// sortedKeys returns the names in a folder, sorted.
func sortedKeys(m map[string]*node) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// split cleans a path and cuts it into its names; the root has none.
func split(p string) []string {
	p = strings.Trim(path.Clean("/"+filepath.ToSlash(p)), "/")
	if p == "" {
		return nil
	}
	return strings.Split(p, "/")
}

// find returns the node of p, through symbolic links.
func (c *CrashFS) find(p string) (*node, error) {
	names := split(p)
	for links := 0; ; links++ {
		n, at := c.root, 0
		for at < len(names) && n.link == "" {
			if !n.dir {
				return nil, syscall.ENOTDIR
			}
			if n = n.names[names[at]]; n == nil {
				return nil, fs.ErrNotExist
			}
			at++
		}
		switch {
		case n.link == "":
			return n, nil
		case links == 40:
			return nil, syscall.ELOOP
		}
		to := n.link
		if !path.IsAbs(to) {
			to = path.Join("/", strings.Join(names[:at-1], "/"), to)
		}
		names = append(split(to), names[at:]...)
	}
}

// findParent returns the folder of p and p's last name.
func (c *CrashFS) findParent(p string) (*node, string, error) {
	names := split(p)
	if len(names) == 0 {
		return nil, "", fs.ErrInvalid
	}
	d, err := c.find(strings.Join(names[:len(names)-1], "/"))
	if err == nil && !d.dir {
		err = syscall.ENOTDIR
	}
	return d, names[len(names)-1], err
}

// apply changes the names as programs see them, and notes the change as not synced.
func (c *CrashFS) apply(ch change) {
	if ch.from != nil {
		delete(ch.from.names, ch.fromName)
	}
	if ch.to != nil {
		ch.to.names[ch.toName] = ch.node
	}
	c.pending = append(c.pending, ch)
}

// fail returns the error of operation op on path p.
func fail(op, p string, err error) error { return &fs.PathError{Op: op, Path: p, Err: err} }

// Create implements vfs.FS.
func (c *CrashFS) Create(p string) (vfs.File, error) { return c.create(p, true) }

// OpenAppend implements vfs.FS.
func (c *CrashFS) OpenAppend(p string) (vfs.File, error) { return c.create(p, false) }

// create opens a file for writing, made if it is missing, and emptied if empty is set.
func (c *CrashFS) create(p string, empty bool) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err != nil {
		return nil, fail("open", p, err)
	}
	n := d.names[name]
	if n != nil && n.link != "" {
		if n, err = c.find(p); err != nil {
			return nil, fail("open", p, err)
		}
	}
	switch {
	case n == nil:
		n = &node{}
		c.apply(change{node: n, to: d, toName: name})
	case n.dir:
		return nil, fail("open", p, syscall.EISDIR)
	case empty:
		n.data = nil
	}
	return &memFile{c: c, n: n, path: p, writable: true}, nil
}

// Open implements vfs.FS.
func (c *CrashFS) Open(p string) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.find(p)
	if err != nil {
		return nil, fail("open", p, err)
	}
	return &memFile{c: c, n: n, path: p}, nil
}

// Mkdir implements vfs.FS.
func (c *CrashFS) Mkdir(p string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err == nil && d.names[name] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return fail("mkdir", p, err)
	}
	c.apply(change{node: newDir(), to: d, toName: name})
	return nil
}

// MkdirAll implements vfs.FS.
func (c *CrashFS) MkdirAll(p string) error {
	names := split(p)
	for i := range names {
		at := strings.Join(names[:i+1], "/")
		if err := c.Mkdir(at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if info, err := c.Stat(p); err != nil {
		return err
	} else if !info.IsDir() {
		return fail("mkdir", p, syscall.ENOTDIR)
	}
	return nil
}

// Rename implements vfs.FS.
func (c *CrashFS) Rename(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fd, fname, err := c.findParent(from)
	if err == nil && fd.names[fname] == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return fail("rename", from, err)
	}
	td, tname, err := c.findParent(to)
	if err != nil {
		return fail("rename", to, err)
	}
	n, old := fd.names[fname], td.names[tname]
	switch {
	case old == n:
		return nil
	case old == nil:
	case old.dir && !n.dir:
		return fail("rename", to, fs.ErrExist)
	case !old.dir && n.dir:
		return fail("rename", to, syscall.ENOTDIR)
	case old.dir && len(old.names) > 0:
		return fail("rename", to, fs.ErrExist)
	}
	c.apply(change{node: n, from: fd, fromName: fname, to: td, toName: tname})
	return nil
}

// Remove implements vfs.FS.
func (c *CrashFS) Remove(p string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err != nil {
		return fail("remove", p, err)
	}
	n := d.names[name]
	switch {
	case n == nil:
		return fail("remove", p, fs.ErrNotExist)
	case n.dir && len(n.names) > 0:
		return fail("remove", p, syscall.ENOTEMPTY)
	}
	c.apply(change{node: n, from: d, fromName: name})
	return nil
}

// RemoveAll implements vfs.FS.
func (c *CrashFS) RemoveAll(p string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err != nil || d.names[name] == nil {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fail("remove", p, err)
	}
	var remove func(d *node, name string)
	remove = func(d *node, name string) {
		n := d.names[name]
		for _, child := range sortedKeys(n.names) {
			remove(n, child)
		}
		c.apply(change{node: n, from: d, fromName: name})
	}
	remove(d, name)
	return nil
}

// Symlink implements vfs.FS.
func (c *CrashFS) Symlink(target, p string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err == nil && d.names[name] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return fail("symlink", p, err)
	}
	c.apply(change{node: &node{link: filepath.ToSlash(target)}, to: d, toName: name})
	return nil
}

// Readlink implements vfs.FS.
func (c *CrashFS) Readlink(p string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, name, err := c.findParent(p)
	if err != nil {
		return "", fail("readlink", p, err)
	}
	switch n := d.names[name]; {
	case n == nil:
		return "", fail("readlink", p, fs.ErrNotExist)
	case n.link == "":
		return "", fail("readlink", p, fs.ErrInvalid)
	default:
		return n.link, nil
	}
}

// Stat implements vfs.FS.
func (c *CrashFS) Stat(p string) (fs.FileInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.find(p)
	if err != nil {
		return nil, fail("stat", p, err)
	}
	return n.info(path.Base(filepath.ToSlash(p))), nil
}

// ReadDir implements vfs.FS.
func (c *CrashFS) ReadDir(p string) ([]fs.DirEntry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.find(p)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, fail("readdir", p, err)
	}
	var list []fs.DirEntry
	for _, name := range sortedKeys(n.names) {
		list = append(list, fs.FileInfoToDirEntry(n.names[name].info(name)))
	}
	return list, nil
}

// ReadFile implements vfs.FS.
func (c *CrashFS) ReadFile(p string) ([]byte, error) {
	f, err := c.Open(p)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// SyncDir implements vfs.FS. A rename between two folders is safe once either of
// them is synced.
func (c *CrashFS) SyncDir(p string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, err := c.find(p)
	if err == nil && !d.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return fail("sync", p, err)
	}
	var rest []change
	for _, ch := range c.pending {
		if ch.from != d && ch.to != d {
			rest = append(rest, ch)
			continue
		}
		if ch.from != nil {
			delete(ch.from.syncedNames, ch.fromName)
		}
		if ch.to != nil {
			ch.to.syncedNames[ch.toName] = ch.node
		}
	}
	c.pending = rest
	return nil
}

// Free implements vfs.FS: memory has no limit here; see Budget.
func (c *CrashFS) Free(string) (int64, error) { return math.MaxInt64, nil }

// memFile is an open file of a CrashFS.
type memFile struct {
	c        *CrashFS
	n        *node
	path     string
	at       int
	writable bool
	closed   bool
}

// check returns the error of an operation on a closed file, on a folder, or in the other direction
// than the file was opened for.
func (f *memFile) check(op string, writing bool) error {
	switch {
	case f.closed:
		return fail(op, f.path, fs.ErrClosed)
	case f.n.dir:
		return fail(op, f.path, syscall.EISDIR)
	case writing != f.writable:
		return fail(op, f.path, syscall.EBADF)
	}
	return nil
}

func (f *memFile) Read(p []byte) (int, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if err := f.check("read", false); err != nil {
		return 0, err
	}
	if f.at >= len(f.n.data) {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	n := copy(p, f.n.data[f.at:])
	f.at += n
	return n, nil
}

func (f *memFile) Write(p []byte) (int, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if err := f.check("write", true); err != nil {
		return 0, err
	}
	f.n.data = append(f.n.data, p...)
	return len(p), nil
}

func (f *memFile) Sync() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return fail("sync", f.path, fs.ErrClosed)
	}
	f.n.synced = bytes.Clone(f.n.data)
	return nil
}

func (f *memFile) Close() error {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return fail("close", f.path, fs.ErrClosed)
	}
	f.closed = true
	return nil
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed {
		return nil, fail("stat", f.path, fs.ErrClosed)
	}
	return f.n.info(path.Base(filepath.ToSlash(f.path))), nil
}

// info is the fs.FileInfo of a node.
type info struct {
	name string
	size int64
	dir  bool
	link bool
}

func (n *node) info(name string) info { return info{name, int64(len(n.data)), n.dir, n.link != ""} }

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) IsDir() bool        { return i.dir }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	switch {
	case i.dir:
		return fs.ModeDir | 0o777
	case i.link:
		return fs.ModeSymlink | 0o777
	}
	return 0o666
}
