// Package journal keeps what has been paid for, in money or in time, while a command works: a
// file of records by key to which is only appended, and which the next command resumes from.
// gad generate, gad data collect and gad eval --judge stand on it.
package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"sync"
	"time"

	"gad/internal/vfs"
)

// ErrForeign is wrapped where a file is no journal: it must not be emptied.
var ErrForeign = errors.New("has no record of a journal: give another output, or remove the file")

// Options say what is particular about a journal.
type Options struct {
	FS   vfs.FS // nil is the disk
	Name string // the errors' first words, such as "endpoint: journal"; "" leaves them without

	// SyncEvery bounds what a loss of power costs of the records of Put: those of this time.
	// 0: only an Append behind them makes them safe.
	SyncEvery time.Duration
}

// Journal is a file of records by key, as JSON lines: {"key": ..., "record": ...}. Its records
// are held in memory. One process at a time may have it open: the caller sees to that.
type Journal struct {
	path string
	o    Options
	f    vfs.File // nil before Begin

	mu       sync.Mutex
	records  map[string]json.RawMessage
	order    []string
	damaged  bool // Begin writes the file anew
	dropped  int  // lines of the file
	written  int  // records
	synced   int
	syncing  bool
	syncedAt time.Time
	moved    *sync.Cond // synced or failed
	failed   error      // of a write: what follows it in the file would be lost
}

// maxRecord bounds a line of a journal.
const maxRecord = 256 << 20

type journalLine struct {
	Key    string          `json:"key"`
	Record json.RawMessage `json:"record"`
}

// Open opens the journal at path for records, or begins one: Read and Begin together.
func Open(path string, o Options) (*Journal, error) {
	j, err := Read(path, o)
	if err != nil {
		return nil, err
	}
	return j, j.Begin()
}

// Read reads the journal at path and changes nothing; where there is none, it has no records.
// A last line that a kill has cut short is dropped, and so are lines that a loss of power has
// garbled: see Dropped. The error of a file without a record wraps ErrForeign.
func Read(path string, o Options) (*Journal, error) {
	o.FS = vfs.OrDisk(o.FS)
	j := &Journal{path: path, o: o, records: map[string]json.RawMessage{}}
	j.moved = sync.NewCond(&j.mu)
	return j, j.read()
}

// Begin opens the file for Append and Put. A damaged file is written anew first.
func (j *Journal) Begin() (err error) {
	if j.damaged {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	if j.f, err = j.o.FS.OpenAppend(j.path); err != nil {
		return vfs.Target(j.named(err))
	}
	if err := j.o.FS.SyncDir(filepath.Dir(j.path)); err != nil {
		return cmp.Or(j.f.Close(), j.named(err))
	}
	j.syncedAt = time.Now()
	return nil
}

// named is an error behind the journal's name.
func (j *Journal) named(err error) error {
	if j.o.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", j.o.Name, err)
}

// wrong is an error about the file of the journal.
func (j *Journal) wrong(err error) error {
	if j.o.Name == "" {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return fmt.Errorf("%s %s: %w", j.o.Name, j.path, err)
}

// read takes the records of the file.
func (j *Journal) read() error {
	f, err := j.o.FS.Open(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return j.named(err)
	}
	defer f.Close()
	if info, err := j.o.FS.Stat(j.path); err == nil && info.IsDir() {
		return j.wrong(errors.New("is a folder: remove it, or give another output"))
	}
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if len(j.records) == 0 && (j.dropped > 0 || !begins(line)) {
				return j.wrong(ErrForeign)
			}
			j.damaged = j.damaged || j.dropped > 0 || len(line) > 0
			return nil
		}
		if err != nil {
			return j.named(err)
		}
		var l journalLine
		if err := json.Unmarshal(line, &l); err == nil && l.Key != "" && len(l.Record) > 0 {
			j.put(l.Key, l.Record)
		} else {
			j.dropped++
		}
	}
}

// beginning is how the first record of a journal begins.
const beginning = `{"key":"`

// begins reports whether a text may be the beginning of a record that a kill has cut
// short, or the zeros that a loss of power has left of it. Anything else, such as a text
// of one line, is somebody's file and must not be emptied.
func begins(line []byte) bool {
	line = bytes.TrimLeft(line, "\x00")
	return bytes.HasPrefix(line, []byte(beginning)[:min(len(line), len(beginning))])
}

// Foreign reports whether a file that is there cannot be a journal, by its first bytes: a
// check that costs nothing, before anything else is done.
func Foreign(fsys vfs.FS, path string) (bool, error) {
	if info, err := fsys.Stat(path); err != nil || !info.Mode().IsRegular() {
		return !errors.Is(err, fs.ErrNotExist), nil
	}
	f, err := fsys.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	start := make([]byte, len(beginning))
	n, err := io.ReadFull(f, start)
	return n > 0 && string(start[:n]) != beginning[:n] || err != nil && n == 0 && err != io.EOF, nil
}

// put keeps the first record of a key.
func (j *Journal) put(key string, record json.RawMessage) {
	if _, ok := j.records[key]; !ok {
		j.records[key] = record
		j.order = append(j.order, key)
	}
}

// Dropped is how many lines were garbled: what they held will be asked again.
func (j *Journal) Dropped() int { return j.dropped }

// rewrite writes the file without what is damaged.
func (j *Journal) rewrite() error {
	var all bytes.Buffer
	for _, key := range j.order {
		line, err := encodeLine(key, j.records[key])
		if err != nil {
			return err
		}
		all.Write(line)
	}
	return vfs.Target(vfs.WriteFile(j.o.FS, j.path, all.Bytes()))
}

func encodeLine(key string, record any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Key    string `json:"key"`
		Record any    `json:"record"`
	}{key, record})
	return b.Bytes(), err
}

// Lookup is the record of a key.
func (j *Journal) Lookup(key string) (json.RawMessage, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.records[key]
	return r, ok
}

// Len is the number of records.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.records)
}

// Append adds a record, and returns when it would survive a loss of power, as all before
// it. Calls at the same time share a sync. A key that has a record already keeps it. After
// an error nothing more is appended.
func (j *Journal) Append(key string, record any) error { return j.add(key, record, true) }

// Put is Append without the wait, for what can be had again for nothing: see SyncEvery.
func (j *Journal) Put(key string, record any) error { return j.add(key, record, false) }

func (j *Journal) add(key string, record any, sync bool) error {
	line, err := encodeLine(key, record)
	if err != nil {
		return j.named(err)
	}
	if len(line) > maxRecord {
		return j.wrong(fmt.Errorf("a record has %d MB: more than %d", len(line)>>20, maxRecord>>20))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.records[key]; ok || j.failed != nil {
		return j.failed
	}
	if _, err := j.f.Write(line); err != nil {
		return j.fail(err)
	}
	var l journalLine
	if err := json.Unmarshal(line, &l); err != nil {
		return j.fail(err)
	}
	j.put(key, l.Record)
	j.written++
	mine := j.written
	if !sync && (j.o.SyncEvery == 0 || time.Since(j.syncedAt) < j.o.SyncEvery) {
		return nil
	}
	return j.sync(mine)
}

// sync waits until so many records would survive a loss of power. The caller holds mu.
func (j *Journal) sync(mine int) error {
	for j.failed == nil && j.synced < mine {
		if j.syncing {
			j.moved.Wait()
			continue
		}
		j.syncing, j.syncedAt = true, time.Now()
		upTo := j.written
		j.mu.Unlock()
		err := j.f.Sync()
		j.mu.Lock()
		j.syncing = false
		if err != nil {
			j.fail(err)
		} else {
			j.synced = upTo
		}
		j.moved.Broadcast()
	}
	if j.synced >= mine {
		return nil
	}
	return j.failed
}

// fail keeps the first error.
func (j *Journal) fail(err error) error {
	if j.failed == nil {
		j.failed = j.named(err)
	}
	return j.failed
}

// Sync makes the records of Put safe, too.
func (j *Journal) Sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.sync(j.written); err != nil {
		return err
	}
	return j.failed
}

// All are the records with their keys, in the order in which they came.
func (j *Journal) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for _, key := range j.order {
			if !yield(key, j.records[key]) {
				return
			}
		}
	}
}

// Close ends the journal. The records of Append are safe already.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.f.Close()
	if j.failed == nil {
		j.failed = j.wrong(errors.New("is closed"))
	} else {
		err = j.failed
	}
	return err
}

// Digest is the key of what the parts determine: a hash of their JSON.
func Digest(parts ...any) string {
	sum := sha256.New()
	for _, p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			// a programmer's mistake
			panic(fmt.Sprintf("journal: Digest of what is no JSON: %v", err))
		}
		fmt.Fprintf(sum, "%d\n%s\n", len(b), b)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
