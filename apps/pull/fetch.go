package pull

import (
	"cmp"
	"context"
	"crypto/sha1" // git's name of a small file's content; a large one has SHA-256
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"gad/internal/vfs"
)

// hash begins the hash that a file's content is compared by.
func (f File) hash() hash.Hash {
	if f.SHA256 != "" {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

// there reports whether the cache has the whole of a file. A large one is taken by its name
// and size unless Verify is set. What is under the file's name and is not the file counts as
// nothing, and is replaced.
func (p *Pull) there(ctx context.Context, f File) (bool, error) {
	blob := p.repo.blob(f)
	// the second on a system without links
	for _, at := range []string{blob, filepath.Join(p.Dir, filepath.FromSlash(f.Path))} {
		info, err := p.o.FS.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return false, fmt.Errorf("pull: %w", err)
		case !info.Mode().IsRegular() || info.Size() != f.Size:
			continue
		case at == blob && f.SHA256 != "" && !p.o.Verify:
			return true, nil
		}
		sum := f.hash()
		if _, err := p.readInto(ctx, sum, at); err != nil {
			return false, err
		}
		if hex.EncodeToString(sum.Sum(nil)) == f.etag() {
			return true, nil
		}
		p.o.Say("%s: what the cache has is not the file: it is fetched again", show(f.Path))
	}
	return false, nil
}

// readInto hashes a file, and returns its length.
func (p *Pull) readInto(ctx context.Context, sum hash.Hash, path string) (n int64, err error) {
	file, err := p.o.FS.Open(path)
	if err != nil {
		return 0, fmt.Errorf("pull: %w", err)
	}
	defer file.Close() // only read from
	buffer := make([]byte, bufferSize)
	for ctx.Err() == nil {
		k, err := file.Read(buffer)
		sum.Write(buffer[:k])
		n += int64(k)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("pull: %w", err)
		}
	}
	return n, ctx.Err()
}

const bufferSize = 1 << 20

// begun is how many bytes of a file an interrupted download has left.
func (p *Pull) begun(f File) int64 {
	if info, err := p.o.FS.Stat(p.repo.partial(f)); err == nil && info.Mode().IsRegular() &&
		info.Size() <= f.Size {
		return info.Size()
	}
	return 0
}

// fetchAll brings the contents of all files into blobs, small files first: what is wrong
// with the access to a repository shows before much has come.
func (p *Pull) fetchAll(ctx context.Context) error {
	var missing []*Item
	for i := range p.Items {
		if !p.Items[i].Whole {
			missing = append(missing, &p.Items[i])
		}
	}
	slices.SortStableFunc(missing, func(a, b *Item) int { return cmp.Compare(a.Size, b.Size) })
	advance, done := p.o.Progress("fetching "+p.o.Name.String()+", MB",
		int((p.Missing()+999_999)/1_000_000))
	defer done()
	came, counted := int64(0), int64(0)
	count := func(n int64) {
		came += n
		if mb := came / 1_000_000; mb != counted {
			advance(int(mb - counted))
			counted = mb
		}
	}
	for _, i := range missing {
		if err := p.fetch(ctx, i, count); err != nil {
			return err
		}
		i.Whole, i.Have = true, i.Size
	}
	return nil
}

// fetch brings one file's content into blobs.
func (p *Pull) fetch(ctx context.Context, i *Item, count func(int64)) (err error) {
	for _, dir := range []string{p.repo.path("blobs"), filepath.Dir(p.repo.lockFile(i.etag()))} {
		if err := vfs.MakeDirs(p.o.FS, dir); err != nil {
			return fmt.Errorf("pull: %s: %w", p.o.Cache, vfs.Target(err))
		}
	}
	unlock, err := p.lock(ctx, p.repo.lockFile(i.etag()), i.Path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, unlock()) }()
	// another process may have fetched it
	if whole, err := p.there(ctx, i.File); err != nil || whole {
		return err
	}
	d := &download{p: p, File: i.File, part: p.repo.partial(i.File), count: count}
	if err := d.begin(ctx); err != nil {
		return err
	}
	return p.hub.persist(ctx, func() (bool, error) {
		before := d.have
		err := d.try(ctx)
		return d.have-before >= enough, err
	})
}

// lock keeps other programs from fetching or writing what, the same file, at the same time.
// Python's huggingface_hub takes the same locks for what it fetches.
func (p *Pull) lock(ctx context.Context, name, what string) (unlock func() error, err error) {
	l := flock.New(name, flock.SetPermissions(0o664))
	for said := false; ; {
		ok, err := l.TryLock()
		if err != nil {
			return nil, fmt.Errorf("pull: %s: lock: %w", name, vfs.Target(err))
		}
		if ok {
			// The holder before may have removed the file between our opening and our locking it.
			held, err := l.Stat()
			named, gone := os.Stat(name)
			if err == nil && gone == nil && os.SameFile(held, named) {
				return l.Unlock, nil
			}
			if err := l.Unlock(); err != nil {
				return nil, fmt.Errorf("pull: %s: unlock: %w", name, err)
			}
			continue
		}
		if !said {
			p.o.Say("%s: another program is fetching it: waiting", show(what))
			said = true
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enough is how many bytes a try must bring to count as progress: a server that sends a few
// each time is given up.
const enough = 1 << 20

// maxWrong is how often a server may send something else than the file before it is given up.
const maxWrong = 3

// download is one file on its way.
type download struct {
	File
	p     *Pull
	part  string
	count func(int64) // bytes that have come; below 0 where they are thrown away

	sum       hash.Hash // of the bytes of part
	have      int64     // number of them
	inherited bool      // some are of an earlier process
	wrong     int

	// ETag of the answer that the last bytes are from, if a strong one. It is the sender's own:
	// that of a content delivery network is not the hub's. So a later process cannot ask by
	// If-Range, and the hash alone says whether both parts are of one file.
	validator string
}

// begin takes over what an earlier process has left.
func (d *download) begin(ctx context.Context) error {
	d.sum = d.hash()
	if d.have = d.p.begun(d.File); d.have == 0 {
		return d.remove()
	}
	n, err := d.p.readInto(ctx, d.sum, d.part)
	d.have, d.inherited = n, true
	return err
}

// remove throws away what has come.
func (d *download) remove() error {
	if err := d.p.o.FS.Remove(d.part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// again throws away what has come, to begin with the first byte.
func (d *download) again() error {
	d.count(-d.have)
	d.sum, d.have, d.inherited, d.validator = d.hash(), 0, false, ""
	return d.remove()
}

// misled begins again, and gives the server up after some times.
func (d *download) misled(format string, args ...any) error {
	if err := d.again(); err != nil {
		return err
	}
	f := transient("%s: %s", show(d.Path), fmt.Sprintf(format, args...))
	if d.wrong++; d.wrong >= maxWrong {
		f.kind, f.again = ErrContent, false
		f.text += ": the server does not send the file that the hub lists: nothing of it is kept"
	}
	return f
}

// try asks for the rest of the file, and gives the file its name once it is whole.
func (d *download) try(ctx context.Context) error {
	if d.have < d.Size {
		if err := d.rest(ctx); err != nil {
			return err
		}
	}
	return d.finish()
}

// address is where the hub has a file of the commit.
func (p *Pull) address(f File) *url.URL {
	prefix := "/"
	if p.o.Name.Dataset {
		prefix = "/datasets/"
	}
	return p.hub.address(prefix+p.o.Name.Repo+"/resolve/"+p.Commit+"/"+(&url.URL{Path: f.Path}).EscapedPath(), "")
}

// rest appends what is missing to the partial file.
func (d *download) rest(ctx context.Context) error {
	p := d.p
	header := http.Header{"Accept-Encoding": {"identity"}}
	if d.have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.have))
		if d.validator != "" {
			header.Set("If-Range", d.validator)
		}
	}
	r, err := p.hub.get(ctx, p.address(d.File), header)
	if err != nil {
		return err
	}
	defer r.close()
	switch {
	case r.commit != "" && r.commit != p.Commit:
		return broken(ErrServer, "%s: the hub answers with another commit than it was asked for",
			show(d.Path))
	case d.SHA256 != "" && isHex(r.etag, 64) && r.etag != d.SHA256:
		return broken(ErrServer, "%s: the hub answers with another SHA-256 than it lists",
			show(d.Path))
	case r.Header.Get("Content-Encoding") != "" && r.Header.Get("Content-Encoding") != "identity":
		return d.misled("the answer is compressed, unasked")
	}
	switch r.StatusCode {
	case http.StatusOK:
		if d.have > 0 { // the server has no ranges, or another file than before
			if err := d.again(); err != nil {
				return err
			}
		}
	case http.StatusPartialContent:
		if want := fmt.Sprintf("bytes %d-%d/%d", d.have, d.Size-1, d.Size); d.have == 0 ||
			r.Header.Get("Content-Range") != want {
			return d.misled("the answer is another range (%s)", show(r.Header.Get("Content-Range")))
		}
	default:
		return d.misled("status %d", r.StatusCode)
	}
	if r.ContentLength >= 0 && r.ContentLength != d.Size-d.have {
		return d.misled("the answer has %d bytes, the hub lists %d", r.ContentLength, d.Size-d.have)
	}
	if d.validator = r.Header.Get("ETag"); !strings.HasPrefix(d.validator, `"`) {
		d.validator = "" // a weak one is no promise about bytes
	}
	return d.copy(ctx, r)
}

// copy appends the body.
func (d *download) copy(ctx context.Context, r *reply) (err error) {
	open := d.p.o.FS.OpenAppend
	if d.have == 0 {
		open = d.p.o.FS.Create
	}
	out, err := open(d.part)
	if err != nil {
		return fmt.Errorf("pull: %w", vfs.Target(err))
	}
	defer func() {
		if closed := out.Close(); err == nil && closed != nil {
			err = fmt.Errorf("pull: %w", closed)
		}
	}()
	buffer := make([]byte, bufferSize)
	for {
		n, failed := r.Body.Read(buffer)
		if int64(n) > d.Size-d.have {
			return d.misled("the answer is longer than the %d bytes that the hub lists", d.Size)
		}
		if n > 0 {
			k, err := out.Write(buffer[:n])
			d.sum.Write(buffer[:k])
			d.have += int64(k)
			d.count(int64(k))
			if err != nil {
				return fmt.Errorf("pull: %w", err)
			}
		}
		switch {
		case failed == io.EOF && d.have == d.Size:
			return nil
		case failed == io.EOF || failed == io.ErrUnexpectedEOF:
			return transient("%s: cut off after %d of %d bytes", show(d.Path), d.have, d.Size)
		case failed != nil:
			return d.p.hub.unreached(r.Request.Context(), r.Request.URL, failed)
		}
	}
}

// finish compares the hash, and renames.
func (d *download) finish() error {
	p := d.p
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != d.etag() {
		if d.inherited {
			if err := d.again(); err != nil {
				return err
			}
			return transient("%s: what an earlier run has left is not its beginning: it is fetched from the start", show(d.Path))
		}
		return d.misled("its hash is %s, the hub lists %s", got, d.etag())
	}
	open := p.o.FS.OpenAppend
	if d.Size == 0 {
		open = p.o.FS.Create
	}
	out, err := open(d.part)
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	info, err := out.Stat()
	if err == nil {
		err = out.Sync() // also what an earlier process has written
	}
	if err = cmp.Or(err, out.Close()); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if info.Size() != d.Size { // a program that does not take the lock
		return d.misled("%s has %d bytes: another program writes to it", d.part, info.Size())
	}
	if err := p.o.FS.Rename(d.part, p.repo.blob(d.File)); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := p.o.FS.SyncDir(p.repo.path("blobs")); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// small reads a small file into memory, to choose others by it.
func (p *Pull) small(ctx context.Context, f File) (text []byte, err error) {
	if whole, err := p.there(ctx, f); err == nil && whole {
		if file, err := p.o.FS.ReadFile(p.repo.blob(f)); err == nil {
			return file, nil
		}
	}
	wrong := 0
	err = p.hub.persist(ctx, func() (bool, error) {
		r, err := p.hub.get(ctx, p.address(f), http.Header{"Accept-Encoding": {"identity"}})
		if err != nil {
			return false, err
		}
		defer r.close()
		text, err = io.ReadAll(io.LimitReader(r.Body, f.Size+1))
		if err != nil {
			return false, transient("%s: cut off", show(f.Path))
		}
		sum := f.hash()
		sum.Write(text)
		if hex.EncodeToString(sum.Sum(nil)) == f.etag() {
			return false, nil
		}
		failed := transient("%s: its hash is not the one that the hub lists", show(f.Path))
		if wrong++; wrong >= maxWrong {
			failed.kind, failed.again = ErrContent, false
		}
		return false, failed
	})
	return text, err
}
