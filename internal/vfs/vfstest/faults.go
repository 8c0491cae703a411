package vfstest

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"
	"syscall"

	"gad/internal/vfs"
)

// ErrInjected is the error of an operation that ErrorFS made fail.
var ErrInjected = errors.New("injected fault")

// hook is a file system that calls allow before each operation of under: an error from
// allow is returned and the operation is not done. op is the name of the method, in lower
// case; n is the length of a write, which may be cut to the length allowed.
type hook struct {
	under vfs.FS
	allow func(op, path string, n int) (allowed int, err error)
}

// ErrorFS makes operations of another file system fail, by number. Every method
// of the file system and of its files counts as one operation, reads included;
// a write that fails has written half of its bytes.
type ErrorFS struct {
	vfs.FS

	mu       sync.Mutex
	at       int
	forever  bool
	ops      int
	injected int
	log      []string
}

// NewError returns under with operation number at (from 0) failing, and all later ones too if
// forever is set. A negative at fails nothing and only counts.
func NewError(under vfs.FS, at int, forever bool) *ErrorFS {
	e := &ErrorFS{at: at, forever: forever}
	e.FS = hook{under, e.allow}
	return e
}

// allow counts an operation and returns the injected fault if it is the operation's turn. Half of a
// failing write is allowed.
func (e *ErrorFS) allow(op, path string, n int) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.ops
	e.ops++
	e.log = append(e.log, op+" "+path)
	if e.at >= 0 && (i == e.at || e.forever && i > e.at) {
		e.injected++
		return n / 2, fmt.Errorf("%s %s: operation %d: %w", op, path, i, ErrInjected)
	}
	return n, nil
}

// Ops returns how many operations were asked for.
func (e *ErrorFS) Ops() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ops
}

// Faults returns how many operations were made to fail.
func (e *ErrorFS) Faults() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.injected
}

// Op returns operation number i as "method path", for a message.
func (e *ErrorFS) Op(i int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i < 0 || i >= len(e.log) {
		return "none"
	}
	return e.log[i]
}

// Forgetful leaves out one sync of another file system, of a file or of a
// folder: it reports success and does nothing.
type Forgetful struct {
	vfs.FS

	mu      sync.Mutex
	at      int
	syncs   int
	skipped string // "method path" of the sync left out
}

// errSkip makes a hook report success without doing the operation.
var errSkip = errors.New("skip")

// NewForgetful returns under without its sync number at (from 0); a negative at
// leaves out none and only counts.
func NewForgetful(under vfs.FS, at int) *Forgetful {
	f := &Forgetful{at: at}
	f.FS = hook{under, func(op, path string, n int) (int, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if op == "sync" || op == "syncdir" {
			f.syncs++
			if f.syncs-1 == f.at {
				f.skipped = op + " " + path
				return n, errSkip
			}
		}
		return n, nil
	}}
	return f
}

// Syncs returns how many syncs were asked for.
func (f *Forgetful) Syncs() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs
}

// SkippedSync returns the sync that was left out as "method path", or "".
func (f *Forgetful) SkippedSync() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.skipped
}

// Budget is a disk that fills up: the bytes written through it count, as do
// 16 for each new name, and what would pass the budget fails with ENOSPC; of
// a write the part that fits is done. Nothing gives space back.
type Budget struct {
	vfs.FS

	mu   sync.Mutex
	left int64
	used int64
}

// NewBudget returns under with room for n more bytes.
func NewBudget(under vfs.FS, n int64) *Budget {
	b := &Budget{left: n}
	b.FS = hook{under, func(op, path string, n int) (int, error) {
		cost := int64(n)
		switch op {
		case "create", "mkdir", "mkdirall", "symlink":
			cost = 16
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if cost > b.left {
			fits := b.left
			b.used += fits
			b.left = 0
			return int(fits), fail(op, path, syscall.ENOSPC)
		}
		b.left -= cost
		b.used += cost
		return n, nil
	}}
	return b
}

// BytesUsed returns the bytes taken so far.
func (b *Budget) BytesUsed() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Free implements vfs.FS: no more than the budget has left.
func (b *Budget) Free(path string) (int64, error) {
	free, err := b.FS.Free(path)
	b.mu.Lock()
	defer b.mu.Unlock()
	return min(free, b.left, math.MaxInt64), err
}

// file opens a file, if the hook allows op, so that its operations are asked for too.
func (h hook) file(op, path string, open func(string) (vfs.File, error)) (vfs.File, error) {
	if _, err := h.allow(op, path, 0); err != nil {
		return nil, err
	}
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &hookFile{f, h, path}, nil
}

// do calls f, if the hook allows op. A skipped operation reports success.
func (h hook) do(op, path string, f func() error) error {
	if _, err := h.allow(op, path, 0); err != nil {
		if err == errSkip {
			return nil
		}
		return err
	}
	return f()
}

func (h hook) Create(p string) (vfs.File, error) { return h.file("create", p, h.under.Create) }
func (h hook) OpenAppend(
	p string) (vfs.File, error) {
	return h.file("create", p, h.under.OpenAppend)
}
func (h hook) Open(p string) (vfs.File, error) { return h.file("open", p, h.under.Open) }

func (h hook) Mkdir(p string) error {
	return h.do("mkdir", p, func() error { return h.under.Mkdir(p) })
}
func (h hook) MkdirAll(p string) error {
	return h.do("mkdirall", p, func() error { return h.under.MkdirAll(p) })
}
func (h hook) Rename(from, to string) error {
	return h.do("rename", from+" "+to, func() error { return h.under.Rename(from, to) })
}
func (h hook) Remove(p string) error {
	return h.do("remove", p, func() error { return h.under.Remove(p) })
}
func (h hook) RemoveAll(p string) error {
	return h.do("removeall", p, func() error { return h.under.RemoveAll(p) })
}
func (h hook) SyncDir(p string) error {
	return h.do("syncdir", p, func() error { return h.under.SyncDir(p) })
}
func (h hook) Symlink(target, p string) error {
	return h.do("symlink", p, func() error { return h.under.Symlink(target, p) })
}
func (h hook) Readlink(p string) (to string, err error) {
	err = h.do("readlink", p, func() (err error) { to, err = h.under.Readlink(p); return })
	return to, err
}
func (h hook) Stat(p string) (fi fs.FileInfo, err error) {
	err = h.do("stat", p, func() (err error) { fi, err = h.under.Stat(p); return })
	return fi, err
}
func (h hook) ReadDir(p string) (list []fs.DirEntry, err error) {
	err = h.do("readdir", p, func() (err error) { list, err = h.under.ReadDir(p); return })
	return list, err
}
func (h hook) ReadFile(p string) (b []byte, err error) {
	err = h.do("readfile", p, func() (err error) { b, err = h.under.ReadFile(p); return })
	return b, err
}
func (h hook) Free(p string) (n int64, err error) {
	err = h.do("free", p, func() (err error) { n, err = h.under.Free(p); return })
	return n, err
}

// hookFile is an open file of a hook.
type hookFile struct {
	f    vfs.File
	h    hook
	path string
}

// Write writes the allowed part of p, and returns the hook's error with it.
func (f *hookFile) Write(p []byte) (int, error) {
	n, err := f.h.allow("write", f.path, len(p))
	if err == nil {
		return f.f.Write(p)
	}
	n, werr := f.f.Write(p[:n])
	return n, errors.Join(err, werr)
}

func (f *hookFile) Read(p []byte) (int, error) {
	if _, err := f.h.allow("read", f.path, 0); err != nil {
		return 0, err
	}
	return f.f.Read(p)
}

func (f *hookFile) Sync() error { return f.h.do("sync", f.path, f.f.Sync) }

// Close closes the file even where it reports a failure, as close(2) does.
func (f *hookFile) Close() error {
	_, err := f.h.allow("close", f.path, 0)
	return errors.Join(err, f.f.Close())
}

func (f *hookFile) Stat() (fi fs.FileInfo, err error) {
	err = f.h.do("stat", f.path, func() (err error) { fi, err = f.f.Stat(); return })
	return fi, err
}
