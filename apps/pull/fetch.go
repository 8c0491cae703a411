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

// hash returns a new hash of the kind that the hub lists for the file's content.
func (f File) hash() hash.Hash {
	if f.SHA256 != "" {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Size)
	return h
}

// isCached reports whether the cache has the whole of a file. Unless Verify is set, a large file's
// name and size suffice. Other content under the file's name counts as none, and is replaced.
func (p *Pull) isCached(ctx context.Context, f File) (bool, error) {
	blob := p.repo.blob(f)
	// the second: on a system without links
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

// readInto adds a file's content to a hash, and returns its length in bytes.
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

// partialSize returns the number of bytes that an interrupted download of a file has left.
func (p *Pull) partialSize(f File) int64 {
	if info, err := p.o.FS.Stat(p.repo.partial(f)); err == nil && info.Mode().IsRegular() &&
		info.Size() <= f.Size {
		return info.Size()
	}
	return 0
}

// fetchAll downloads the missing files into blobs, small files first, so that a lack of access
// shows early.
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

// fetch downloads one file into blobs. count receives the bytes as they come.
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
	if whole, err := p.isCached(ctx, i.File); err != nil || whole {
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

// lock keeps other programs from fetching or writing what (a file, for messages) at the same time.
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

// enough is the number of bytes that make a try count as progress: a server that sends fewer each
// time is given up.
const enough = 1 << 20

// maxWrong is the number of wrong answers after which a server is given up.
const maxWrong = 3

// download is the download of one file.
type download struct {
	File
	p     *Pull
	part  string      // path of the partial file
	count func(int64) // receives the bytes that come; negative for bytes thrown away

	sum       hash.Hash // of the bytes of part
	have      int64     // length of part
	inherited bool      // part begins with bytes of an earlier process
	wrong     int

	// ETag of the answer with the last bytes, if it is a strong one. A content delivery network
	// has other ETags than the hub. So a later process cannot ask by If-Range: the hash alone
	// shows whether both parts belong to one file.
	validator string
}

// begin takes over the partial file of an earlier process.
func (d *download) begin(ctx context.Context) error {
	d.sum = d.hash()
	if d.have = d.p.partialSize(d.File); d.have == 0 {
		return d.remove()
	}
	n, err := d.p.readInto(ctx, d.sum, d.part)
	d.have, d.inherited = n, true
	return err
}

// remove deletes the partial file.
func (d *download) remove() error {
	if err := d.p.o.FS.Remove(d.part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// restart deletes the partial file, so that the download starts at the first byte.
func (d *download) restart() error {
	d.count(-d.have)
	d.sum, d.have, d.inherited, d.validator = d.hash(), 0, false, ""
	return d.remove()
}

// restartWrong restarts after a wrong answer and returns it as an error: transient, until the
// server has sent maxWrong of them.
func (d *download) restartWrong(format string, args ...any) error {
	if err := d.restart(); err != nil {
		return err
	}
	f := transient("%s: %s", show(d.Path), fmt.Sprintf(format, args...))
	if d.wrong++; d.wrong >= maxWrong {
		f.kind, f.retry = ErrContent, false
		f.text += ": the server does not send the file that the hub lists: nothing of it is kept"
	}
	return f
}

// try downloads the rest of the file, and gives the file its name if it is whole.
func (d *download) try(ctx context.Context) error {
	if d.have < d.Size {
		if err := d.fetchRest(ctx); err != nil {
			return err
		}
	}
	return d.finish()
}

// address returns the hub's URL of a file at the commit.
func (p *Pull) address(f File) *url.URL {
	prefix := "/"
	if p.o.Name.Dataset {
		prefix = "/datasets/"
	}
	return p.hub.address(prefix+p.o.Name.Repo+"/resolve/"+p.Commit+"/"+(&url.URL{Path: f.Path}).EscapedPath(), "")
}

// fetchRest appends the missing bytes to the partial file.
func (d *download) fetchRest(ctx context.Context) error {
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
		return permanent(ErrServer, "%s: the hub answers with another commit than it was asked for",
			show(d.Path))
	case d.SHA256 != "" && isHex(r.etag, 64) && r.etag != d.SHA256:
		return permanent(ErrServer, "%s: the hub answers with another SHA-256 than it lists",
			show(d.Path))
	case r.Header.Get("Content-Encoding") != "" && r.Header.Get("Content-Encoding") != "identity":
		return d.restartWrong("the answer is compressed, unasked")
	}
	switch r.StatusCode {
	case http.StatusOK:
		if d.have > 0 { // the server has no ranges, or the file has changed
			if err := d.restart(); err != nil {
				return err
			}
		}
	case http.StatusPartialContent:
		if want := fmt.Sprintf("bytes %d-%d/%d", d.have, d.Size-1, d.Size); d.have == 0 ||
			r.Header.Get("Content-Range") != want {
			return d.restartWrong("the answer is another range (%s)", show(r.Header.Get("Content-Range")))
		}
	default:
		return d.restartWrong("status %d", r.StatusCode)
	}
	if r.ContentLength >= 0 && r.ContentLength != d.Size-d.have {
		return d.restartWrong("the answer has %d bytes, the hub lists %d", r.ContentLength, d.Size-d.have)
	}
	if d.validator = r.Header.Get("ETag"); !strings.HasPrefix(d.validator, `"`) {
		d.validator = "" // a weak ETag does not promise the same bytes
	}
	return d.copy(ctx, r)
}

// copy appends an answer's body to the partial file.
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
			return d.restartWrong("the answer is longer than the %d bytes that the hub lists", d.Size)
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
			return d.p.hub.connectionError(r.Request.Context(), r.Request.URL, failed)
		}
	}
}

// finish compares the hash, and renames the partial file to its name in blobs.
func (d *download) finish() error {
	p := d.p
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != d.etag() {
		if d.inherited {
			if err := d.restart(); err != nil {
				return err
			}
			return transient("%s: what an earlier run has left is not its beginning: it is fetched from the start", show(d.Path))
		}
		return d.restartWrong("its hash is %s, the hub lists %s", got, d.etag())
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
		err = out.Sync() // with the bytes of earlier processes
	}
	if err = cmp.Or(err, out.Close()); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if info.Size() != d.Size { // another program, without the lock
		return d.restartWrong("%s has %d bytes: another program writes to it", d.part, info.Size())
	}
	if err := p.o.FS.Rename(d.part, p.repo.blob(d.File)); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	if err := p.o.FS.SyncDir(p.repo.path("blobs")); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	return nil
}

// readSmall returns the content of a small file, from the cache or the hub.
func (p *Pull) readSmall(ctx context.Context, f File) (text []byte, err error) {
	if whole, err := p.isCached(ctx, f); err == nil && whole {
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
			failed.kind, failed.retry = ErrContent, false
		}
		return false, failed
	})
	return text, err
}
