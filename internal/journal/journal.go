package endpoint

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
	"path/filepath"
	"sync"

	"gad/internal/vfs"
)

// Journal is a file of records by key, to which is only appended: what has been paid
// for. It is JSON lines, {"key": ..., "record": ...}. Its records are held in memory.
// One process at a time may have it open: the caller sees to that.
type Journal struct {
	path string
	f    vfs.File

	mu      sync.Mutex
	records map[string]json.RawMessage
	order   []string
	dropped int // lines of the file
	written int // records
	synced  int
	syncing bool
	moved   *sync.Cond // synced or failed
	failed  error      // of a write: what follows it in the file would be lost
}

// maxRecord bounds a line of a journal.
const maxRecord = 256 << 20

type journalLine struct {
	Key    string          `json:"key"`
	Record json.RawMessage `json:"record"`
}

// OpenJournal opens the journal at path, or begins one. A last line that a kill has cut
// short is dropped, and so are lines that a loss of power has garbled: see Dropped. A file
// without a record is no journal, and an error.
func OpenJournal(fsys vfs.FS, path string) (*Journal, error) {
	j := &Journal{path: path, records: map[string]json.RawMessage{}}
	j.moved = sync.NewCond(&j.mu)
	torn, err := j.read(fsys)
	if err != nil {
		return nil, err
	}
	if torn || j.dropped > 0 {
		if err := j.rewrite(fsys); err != nil {
			return nil, err
		}
	}
	if j.f, err = fsys.OpenAppend(path); err != nil {
		return nil, vfs.Target(fmt.Errorf("endpoint: journal: %w", err))
	}
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return nil, cmp.Or(j.f.Close(), fmt.Errorf("endpoint: journal: %w", err))
	}
	return j, nil
}

// read takes the records of the file.
func (j *Journal) read(fsys vfs.FS) (torn bool, err error) {
	f, err := fsys.Open(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("endpoint: journal: %w", err)
	}
	defer f.Close()
	if info, err := fsys.Stat(j.path); err == nil && info.IsDir() {
		return false, fmt.Errorf("endpoint: journal %s: is a folder: remove it, or give another output", j.path)
	}
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if len(j.records) == 0 && (j.dropped > 0 || !begins(line)) {
				return false, fmt.Errorf("endpoint: journal %s: has no record of a journal: give another output, or remove the file", j.path)
			}
			return len(line) > 0, nil
		}
		if err != nil {
			return false, fmt.Errorf("endpoint: journal: %w", err)
		}
		var l journalLine
		if err := json.Unmarshal(line, &l); err != nil || l.Key == "" || len(l.Record) == 0 {
			j.dropped++
			continue
		}
		j.put(l.Key, l.Record)
	}
}

// begins reports whether a text may be the beginning of a record that a kill has cut
// short, or the zeros that a loss of power has left of it. Anything else, such as a text
// of one line, is somebody's file and must not be emptied.
func begins(line []byte) bool {
	const record = `{"key":"`
	line = bytes.TrimLeft(line, "\x00")
	return bytes.HasPrefix(line, []byte(record)[:min(len(line), len(record))])
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
func (j *Journal) rewrite(fsys vfs.FS) error {
	var all bytes.Buffer
	for _, key := range j.order {
		line, err := encodeLine(key, j.records[key])
		if err != nil {
			return err
		}
		all.Write(line)
	}
	return vfs.Target(vfs.WriteFile(fsys, j.path, all.Bytes()))
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

// Put is Append without the wait: for what can be had again for nothing.
func (j *Journal) Put(key string, record any) error { return j.add(key, record, false) }

func (j *Journal) add(key string, record any, sync bool) error {
	line, err := encodeLine(key, record)
	if err != nil {
		return fmt.Errorf("endpoint: journal: %w", err)
	}
	if len(line) > maxRecord {
		return fmt.Errorf("endpoint: journal %s: a record has %d MB: more than %d", j.path, len(line)>>20, maxRecord>>20)
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
	if !sync {
		return nil
	}
	for j.failed == nil && j.synced < mine {
		if j.syncing {
			j.moved.Wait()
			continue
		}
		j.syncing = true
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
		j.failed = fmt.Errorf("endpoint: journal: %w", err)
	}
	return j.failed
}

// Close ends the journal. Every record is safe already.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.f.Close()
	if j.failed == nil {
		j.failed = fmt.Errorf("endpoint: journal %s: is closed", j.path)
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
			panic(fmt.Sprintf("endpoint: Digest of what is no JSON: %v", err)) // a programmer's mistake
		}
		fmt.Fprintf(sum, "%d\n%s\n", len(b), b)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
