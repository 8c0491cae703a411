// Package journal keeps records of work that was paid for, in money or in time: an append-only file
// of records by key, from which an interrupted command resumes. gad generate, gad data collect and
// gad eval --judge use it.
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

// ErrForeign is wrapped by the error for a file that is not a journal and must not be emptied.
var ErrForeign = errors.New("has no record of a journal: give another output, or remove the file")

// Options are the settings of a journal.
type Options struct {
	FS   vfs.FS // nil is the disk
	Name string // begins every error, such as "endpoint: journal"; "" for none

	// SyncEvery bounds the time whose records of Put a loss of power can cost. 0: they are safe
	// only once a later Append returns.
	SyncEvery time.Duration
}

// Journal is a file of records by key, as JSON lines: {"key": ..., "record": ...}. All records are
// held in memory. The caller ensures that one process at a time has it open.
type Journal struct {
	path string
	o    Options
	f    vfs.File // nil before Begin

	mu      sync.Mutex
	records map[string]json.RawMessage
	order   []string
	damaged bool // Begin must rewrite the file
	dropped int  // lines of the file that could not be read
	written int  // records written to the file by this process
	// of written, the records that are on the disk
	synced int
	// a goroutine is in Sync
	syncing  bool
	syncedAt time.Time
	moved    *sync.Cond // signals a change of synced or failed
	failed   error      // the first error of a write: the file would lose later records
}

// maxRecord bounds a line of a journal.
const maxRecord = 256 << 20

type journalLine struct {
	Key    string          `json:"key"`
	Record json.RawMessage `json:"record"`
}

// Open opens the journal at path, or creates it: Read, then Begin.
func Open(path string, o Options) (*Journal, error) {
	j, err := Read(path, o)
	if err != nil {
		return nil, err
	}
	return j, j.Begin()
}

// Read reads the journal at path without changing it; if the file does not exist, the journal has
// no records. A last line that a kill has cut is dropped, and so are lines that a loss of power has
// garbled: see DroppedLines. The error for a file without a record wraps ErrForeign.
func Read(path string, o Options) (*Journal, error) {
	o.FS = vfs.OrDisk(o.FS)
	j := &Journal{path: path, o: o, records: map[string]json.RawMessage{}}
	j.moved = sync.NewCond(&j.mu)
	return j, j.read()
}

// Begin opens the file for Append and Put. A damaged file is rewritten first.
func (j *Journal) Begin() (err error) {
	if j.damaged {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	if j.f, err = j.o.FS.OpenAppend(j.path); err != nil {
		return vfs.Target(j.withName(err))
	}
	if err := j.o.FS.SyncDir(filepath.Dir(j.path)); err != nil {
		return cmp.Or(j.f.Close(), j.withName(err))
	}
	j.syncedAt = time.Now()
	return nil
}

// withName returns err with the journal's name before it.
func (j *Journal) withName(err error) error {
	if j.o.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", j.o.Name, err)
}

// fileError returns err with the journal's name and the path of its file before it.
func (j *Journal) fileError(err error) error {
	if j.o.Name == "" {
		return fmt.Errorf("%s: %w", j.path, err)
	}
	return fmt.Errorf("%s %s: %w", j.o.Name, j.path, err)
}

// read reads the file's records into memory.
func (j *Journal) read() error {
	f, err := j.o.FS.Open(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return j.withName(err)
	}
	defer f.Close()
	if info, err := j.o.FS.Stat(j.path); err == nil && info.IsDir() {
		return j.fileError(errors.New("is a folder: remove it, or give another output"))
	}
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if len(j.records) == 0 && (j.dropped > 0 || !mayBeRecord(line)) {
				return j.fileError(ErrForeign)
			}
			j.damaged = j.damaged || j.dropped > 0 || len(line) > 0
			return nil
		}
		if err != nil {
			return j.withName(err)
		}
		var l journalLine
		if err := json.Unmarshal(line, &l); err == nil && l.Key != "" && len(l.Record) > 0 {
			j.put(l.Key, l.Record)
		} else {
			j.dropped++
		}
	}
}

// linePrefix begins every line of a journal.
const linePrefix = `{"key":"`

// mayBeRecord reports whether line may be the start of a record that a kill has cut, or the zeros
// that a loss of power has left of it. Any other text is another program's file and must not be
// emptied.
func mayBeRecord(line []byte) bool {
	line = bytes.TrimLeft(line, "\x00")
	return bytes.HasPrefix(line, []byte(linePrefix)[:min(len(line), len(linePrefix))])
}

// Foreign reports whether the file at path exists and cannot be a journal, by its first bytes: a
// cheap check before other work begins.
func Foreign(fsys vfs.FS, path string) (bool, error) {
	if info, err := fsys.Stat(path); err != nil || !info.Mode().IsRegular() {
		return !errors.Is(err, fs.ErrNotExist), nil
	}
	f, err := fsys.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	start := make([]byte, len(linePrefix))
	n, err := io.ReadFull(f, start)
	return n > 0 && string(start[:n]) != linePrefix[:n] ||
		err != nil && n == 0 && err != io.EOF, nil
}

// put stores a record in memory unless its key has one.
func (j *Journal) put(key string, record json.RawMessage) {
	if _, ok := j.records[key]; !ok {
		j.records[key] = record
		j.order = append(j.order, key)
	}
}

// DroppedLines returns the number of garbled lines. Their work has to be done again.
func (j *Journal) DroppedLines() int { return j.dropped }

// rewrite replaces the file by one with the readable records only.
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

// encodeLine returns the line of a record, with its line break.
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

// Lookup returns the record of a key, and whether there is one.
func (j *Journal) Lookup(key string) (json.RawMessage, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.records[key]
	return r, ok
}

// Len returns the number of records.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.records)
}

// Append adds a record and returns once it, and all records before it, would survive a loss of
// power. Concurrent calls share a sync. A key keeps its first record. After an error nothing more
// is appended.
func (j *Journal) Append(key string, record any) error { return j.add(key, record, true) }

// Put adds a record as Append does, without waiting, for records that cost nothing to make again:
// see SyncEvery.
func (j *Journal) Put(key string, record any) error { return j.add(key, record, false) }

// add appends a record to the file and to memory. It waits for a sync if sync is set, or if
// SyncEvery has passed since the last one.
func (j *Journal) add(key string, record any, sync bool) error {
	line, err := encodeLine(key, record)
	if err != nil {
		return j.withName(err)
	}
	if len(line) > maxRecord {
		return j.fileError(fmt.Errorf("a record has %d MB: more than %d", len(line)>>20, maxRecord>>20))
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

// sync waits until the first mine records written would survive a loss of power. The caller holds
// mu.
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

// fail stores the first error of a write and returns it. The caller holds mu.
func (j *Journal) fail(err error) error {
	if j.failed == nil {
		j.failed = j.withName(err)
	}
	return j.failed
}

// Sync waits until the records of Put would survive a loss of power, too.
func (j *Journal) Sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.sync(j.written); err != nil {
		return err
	}
	return j.failed
}

// All yields the keys and records in the order in which they were added. Nothing may be added
// meanwhile.
func (j *Journal) All() iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for _, key := range j.order {
			if !yield(key, j.records[key]) {
				return
			}
		}
	}
}

// Close closes the file; records of Append are safe already. It returns the first error of a write.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.f.Close()
	if j.failed == nil {
		j.failed = j.fileError(errors.New("is closed"))
	} else {
		err = j.failed
	}
	return err
}

// Digest returns a hash of the parts' JSON, 32 hexadecimal digits, as a key of results that the
// parts determine.
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
