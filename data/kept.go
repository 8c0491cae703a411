package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"gad/data/input"
	"gad/internal/folder"
	"gad/internal/vfs"
)

// Row files store encoded rows from run to run. A file holds the rows of one set under one encoder,
// and is named by a digest of all that they depend on:
//
//	blocks of 1024 rows: the records, one behind the other, then an entry for each
//	where the entries of each block begin, 8 bytes each
//	a foot of fixed size
//
// The rows are read, not mapped. A mapped page counts as the process's memory, so that a run would
// seem to grow to the size of the file, and truncating a mapped file ends the program; a row is two
// reads of some microseconds.
//
// Nothing in the file is trusted: foot and table are checked at the start, an entry and its record
// when they are read. A file of gigabytes is not read whole for that. So nothing need be synced
// either: damage by a loss of power is detected, and the rows are encoded again.

// FS is where files are written; nil is the disk.
type FS = vfs.FS

// Keep are the settings of row files.
type Keep struct {
	FS      FS           // nil is the disk
	Dir     string       // folder of the files; "" uses none
	Encoder string       // digest of all that the encoder's tokens depend on; "" uses none
	Least   int64        // bytes of data from which on a file is made
	Most    int64        // bound of the bytes of all files in Dir: the oldest go first
	Warn    func(string) // gets the reason why rows are not stored or not read; nil is silent
}

func (k Keep) warn(format string, args ...any) {
	if k.Warn != nil {
		k.Warn(fmt.Sprintf(format, args...))
	}
}

const (
	rowFileSuffix = ".rows"
	// the last byte is the version: raise it when rows are read or stored differently
	rowFileMagic = "gadrows\x0a"
	entrySize    = 44
	footSize     = 92
	keepFree     = 1 << 30   // bytes of the disk left for others
	staleAfter   = time.Hour // after the last write to a part its process has ended
	hashChunk    = 4 << 20
)

// rowFileName matches the name of a file of rows, or of a part of one.
var rowFileName = regexp.MustCompile(`^[0-9a-f]{32}\.rows(\.[0-9]+-[0-9]+\.tmp)?$`)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entry is a row's position in the file, and its measures.
type entry struct {
	Measure
	at   int64
	size int
	sum  uint32 // of the record
}

// Bits in the lengths. In an answer's: unfinishedBit, the answer is unfinished; softBit, it has
// soft labels. In a prompt's: lostBit, a text of the row has characters without a token; hardBit,
// its log-probabilities give no soft labels; markBit, a text spells out a control token.
const (
	unfinishedBit = 1 << 31
	softBit       = 1 << 30
	lostBit       = 1 << 31
	hardBit       = 1 << 30
	markBit       = 1 << 29
)

// appendEntry appends e with its checksum.
func appendEntry(b []byte, e entry) []byte {
	start := len(b)
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(e.at))
	b = le.AppendUint32(b, uint32(e.size))
	b = le.AppendUint32(b, e.sum)
	prompt, answer := uint32(e.Prompt), uint32(e.Answer)
	if e.Lost {
		prompt |= lostBit
	}
	if e.Hard {
		prompt |= hardBit
	}
	if e.Marked {
		prompt |= markBit
	}
	b = le.AppendUint32(b, prompt)
	if e.Unfinished {
		answer |= unfinishedBit
	}
	if e.Soft {
		answer |= softBit
	}
	b = le.AppendUint32(b, answer)
	b = le.AppendUint64(b, e.PromptKey)
	b = le.AppendUint64(b, e.RowKey)
	return le.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readEntry parses an entry and checks its checksum.
func readEntry(b []byte) (e entry, err error) {
	le := binary.LittleEndian
	if crc32.Checksum(b[:40], castagnoli) != le.Uint32(b[40:]) {
		return e, input.NewCorrupt("an entry's checksum is wrong")
	}
	e.at, e.size, e.sum = int64(le.Uint64(b)), int(le.Uint32(b[8:])), le.Uint32(b[12:])
	prompt, answer := le.Uint32(b[16:]), le.Uint32(b[20:])
	e.Prompt, e.Lost, e.Hard, e.Marked = int(prompt&^(lostBit|hardBit|markBit)),
		prompt&lostBit != 0, prompt&hardBit != 0, prompt&markBit != 0
	e.Answer, e.Unfinished, e.Soft =
		int(answer&^(unfinishedBit|softBit)), answer&unfinishedBit != 0, answer&softBit != 0
	e.PromptKey, e.RowKey = le.Uint64(b[24:]), le.Uint64(b[32:])
	return e, nil
}

// appendRecord appends a row: the tokens of prompt and answer, then its texts, each preceded by its
// length.
func appendRecord(b []byte, ex Example) []byte {
	b = slices.Grow(b, 4*(len(ex.Prompt)+len(ex.Answer)+len(ex.ResponseIDs))+len(ex.Teacher)+len(
		ex.Response)+256)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	b = appendIDs(appendIDs(b, ex.Prompt), ex.Answer)
	given := byte(0) // the prompt came as tokens
	if len(ex.PromptIDs) > 0 {
		given = 1
	}
	b = appendIDs(append(b, given), ex.ResponseIDs)
	turns := func(list []Message) {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, m := range list {
			str(m.Role)
			str(m.Content)
			flags := byte(0) // 1: the other texts follow; 2: context
			if acts(m) {
				flags = 1
			}
			if m.Context {
				flags |= 2
			}
			if b = append(b, flags); flags&1 != 0 {
				for _, s := range []string{m.Thinking, string(m.ToolCalls), m.ToolCallID, m.Name} {
					str(s)
				}
			}
		}
	}
	turns(ex.Messages)
	turns(ex.Turns)
	turns(ex.TeacherPrompt)
	b = binary.AppendUvarint(b, uint64(len(ex.Spans)))
	for _, p := range ex.Spans {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.From)), uint64(p.To))
	}
	str(string(ex.Tools))
	str(string(ex.Env))
	str(ex.Teacher)
	str(ex.Response)
	str(ex.ID)
	str(ex.Finish)
	str(ex.TeacherBy)
	b = binary.AppendUvarint(b, uint64(len(ex.Logprobs)))
	for _, at := range ex.Logprobs {
		b = binary.AppendUvarint(b, uint64(len(at)))
		for _, l := range at {
			str(l.Bytes)
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(l.LogProb))
		}
	}
	return b
}

// appendIDs appends the number of ids, the bytes that each takes, and the ids.
func appendIDs(b []byte, ids []int32) []byte {
	width := byte(2)
	for _, id := range ids {
		for id>>(8*width) != 0 && width < 4 {
			width++
		}
	}
	b = append(binary.AppendUvarint(b, uint64(len(ids))), width)
	for _, id := range ids {
		for k := range width {
			b = append(b, byte(id>>(8*k)))
		}
	}
	return b
}

// readRecord parses a row written by appendRecord. It panics on a malformed record, as guard
// expects.
func readRecord(b []byte) (ex Example) {
	at := 0
	n := func(unit int) int {
		v, k := binary.Uvarint(b[at:])
		if at += max(k, 0); k <= 0 || v > uint64(len(b)-at)/uint64(unit) {
			panic("a length is wrong")
		}
		return int(v)
	}
	ids := func() (ids []int32) {
		k, width := n(2), int(b[at])
		if at++; k == 0 {
			return nil
		}
		ids = make([]int32, k)
		for i := range ids {
			for k, c := range b[at : at+width] {
				ids[i] |= int32(c) << (8 * k)
			}
			at += width
		}
		return ids
	}
	ex.Prompt, ex.Answer = ids(), ids()
	if at++; b[at-1] == 1 {
		ex.PromptIDs = ex.Prompt
	}
	ex.ResponseIDs = ids()
	texts, from := string(b[at:]), at // one copy for all of them
	str := func() string {
		k := n(1)
		at += k
		return texts[at-k-from : at-from]
	}
	turns := func() (list []Message) {
		if k := n(3); k > 0 {
			list = make([]Message, k)
		}
		for i := range list {
			m := Message{Role: str(), Content: str()}
			flags := b[at]
			if at++; flags&1 != 0 {
				m.Thinking, m.ToolCalls, m.ToolCallID, m.Name = str(), JSON(str()), str(), str()
			}
			m.Context = flags&2 != 0
			list[i] = m
		}
		return list
	}
	number := func() int {
		v, k := binary.Uvarint(b[at:])
		if at += max(k, 0); k <= 0 || v > uint64(len(ex.Answer)) {
			panic("a span is wrong")
		}
		return int(v)
	}
	ex.Messages, ex.Turns, ex.TeacherPrompt = turns(), turns(), turns()
	if k := n(2); k > 0 {
		ex.Spans = make([]Span, k)
		for i := range ex.Spans {
			ex.Spans[i] = Span{From: number(), To: number()}
		}
	}
	ex.Tools, ex.Env = JSON(str()), JSON(str())
	ex.Teacher, ex.Response, ex.ID, ex.Finish = str(), str(), str(), str()
	ex.TeacherBy = str()
	if k := n(6); k > 0 {
		ex.Logprobs = make(Logprobs, k)
	}
	for i := range ex.Logprobs {
		token := make([]Logprob, n(5))
		for k := range token {
			token[k].Bytes = str()
			token[k].LogProb = math.Float32frombits(binary.LittleEndian.Uint32(b[at:]))
			at += 4
		}
		ex.Logprobs[i] = token
	}
	if at != len(b) {
		panic("bytes after its end")
	}
	return ex
}

// rowFile is a file of encoded rows, open for reading.
type rowFile struct {
	keep   Keep
	path   string
	file   *os.File
	n      int
	blocks []int64 // offsets of the entries of each block
	digest string  // of the set
	size   int64
	made   bool // written by this set
}

// Kept returns the file from which the set's encoded rows are read, "" for none, its size, and
// whether this set has written it.
func (s *Set) Kept() (path string, bytes int64, made bool) {
	if k := s.rowFile.Load(); k != nil {
		return k.path, k.size, k.made
	}
	return "", 0, false
}

// openRowFile opens the file at path if it holds n rows under the given key.
func openRowFile(keep Keep, path string, key [sha256.Size]byte, n int) (k *rowFile, err error) {
	f, err := folder.File(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	blocks := int64((n + window - 1) / window)
	end := make([]byte, 8*blocks+footSize)
	table := info.Size() - int64(len(end))
	if table < 0 {
		return nil, input.NewTruncated("is cut short")
	}
	if _, err := f.ReadAt(end, table); err != nil {
		return nil, err
	}
	foot, le := end[8*blocks:], binary.LittleEndian
	switch {
	case string(foot[:8]) != rowFileMagic:
		return nil, input.NewCorrupt("does not end as a file of rows does")
	case crc32.Checksum(end[:len(end)-4], castagnoli) != le.Uint32(foot[88:]):
		return nil, input.NewCorrupt("its checksum is wrong")
	case [sha256.Size]byte(foot[8:40]) != key || le.Uint64(foot[72:]) != uint64(n) ||
		le.Uint64(foot[80:]) != uint64(table):
		return nil, input.NewCorrupt("holds other rows than its name says")
	}
	k = &rowFile{keep: keep, path: path, file: f, n: n, size: info.Size(),
		digest: hex.EncodeToString(foot[40:72])}
	for b := range blocks {
		k.blocks = append(k.blocks, int64(le.Uint64(end[8*b:])))
	}
	return k, nil
}

func (k *rowFile) close() error { return k.file.Close() }

// entries returns the entries of block b.
func (k *rowFile) entries(b int) ([]entry, error) {
	out := make([]entry, min(window, k.n-b*window))
	buf := make([]byte, entrySize*len(out))
	if _, err := k.file.ReadAt(buf, k.blocks[b]); err != nil {
		return nil, err
	}
	for r := range out {
		var err error
		if out[r], err = readEntry(buf[entrySize*r:]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// example reads row i.
func (k *rowFile) example(i int) (ex Example, err error) {
	block := k.blocks[i/window]
	var buf [entrySize]byte
	if _, err := k.file.ReadAt(buf[:], block+int64(i%window)*entrySize); err != nil {
		return ex, err
	}
	e, err := readEntry(buf[:])
	if err != nil {
		return ex, err
	}
	if e.at < 0 || e.at > block-int64(e.size) {
		return ex, input.NewCorrupt("row %d lies outside of its block", i)
	}
	record := make([]byte, e.size)
	if _, err := k.file.ReadAt(record, e.at); err != nil {
		return ex, err
	}
	if crc32.Checksum(record, castagnoli) != e.sum {
		return ex, input.NewCorrupt("the checksum of row %d is wrong", i)
	}
	err = input.Guard(func() error {
		ex = readRecord(record)
		return nil
	})
	ex.Index = i
	return ex, err
}

// encodedExample returns row i from the row file; ok is false if it is not there.
func (s *Set) encodedExample(i int) (ex Example, ok bool) {
	k := s.rowFile.Load()
	if k == nil || i < 0 || i >= s.n {
		return ex, false
	}
	ex, err := k.example(i)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		s.distrust(k, err)
	}
	return ex, err == nil
}

// attach makes the set read its rows from k; nil changes nothing.
func (s *Set) attach(k *rowFile) {
	if k == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.cache)
	s.held = 0
	s.rowFile.Store(k)
}

// distrust makes the set encode its rows from now on, and removes the file.
func (s *Set) distrust(k *rowFile, err error) {
	if !s.rowFile.CompareAndSwap(k, nil) {
		return // another goroutine was first
	}
	k.keep.warn("%s: %v: rows are encoded again", k.path, err)
	k.close()
	_ = k.keep.FS.Remove(k.path) // if it stays, the next run finds the same
}

// useRowFile attaches the file with the set's encoded rows, or starts a new one and returns it. If
// neither is possible the rows are encoded, and a warning gives the reason.
func (s *Set) useRowFile(k Keep) *rowFileWriter {
	if k.Dir == "" || k.Encoder == "" || s.bytes < k.Least || s.rowFile.Load() != nil {
		return nil
	}
	k.FS = vfs.OrDisk(k.FS)
	stamp := s.stamp()
	key, err := s.rowFileKey(k.Encoder)
	if err != nil {
		return nil // the data cannot be read: encoding reports it
	}
	path := filepath.Join(k.Dir, hex.EncodeToString(key[:16])+rowFileSuffix)
	found, err := openRowFile(k, path, key, s.n)
	if err == nil {
		s.attach(found)
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		k.warn("%s: %v: rows are encoded again", path, err)
	}
	b := &rowFileWriter{set: s, keep: k, path: path, stamp: stamp, key: key, digest: newDigest()}
	if err := b.begin(); err != nil {
		b.fail(err)
		return nil
	}
	return b
}

// stamp returns the sizes and times of the files, which change if one is written to.
func (s *Set) stamp() (stamp []string) {
	for _, f := range s.handles {
		if info, err := f.Stat(); err == nil {
			stamp = append(stamp, fmt.Sprint(info.Size(), info.ModTime().UnixNano()))
		}
	}
	return stamp
}

// rowFileKey returns a digest of all that encoded rows depend on: the bytes of the files, the
// options of reading, the encoder, and the program.
func (s *Set) rowFileKey(encoder string) (key [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, text := range append(
		[]string{rowFileMagic, encoder,
			fmt.Sprintf("%+v %s %s", s.opt.Columns, s.opt.Format, s.opt.Turns)}, program()...) {
		hashString(h, text)
	}
	for _, i := range s.chosen.was {
		hashInt(h, int(i))
	}
	type chunk struct {
		file input.Input
		at   int64
		size int
	}
	var chunks []chunk
	for i, f := range s.handles {
		info, err := f.Stat()
		if err != nil {
			return key, err
		}
		hashString(h, strings.ToLower(filepath.Ext(s.names[i]))) // CSV is recognised by its name
		size := info.Size()
		if u, ok := f.(*unpacked); ok {
			size = u.Size()
		}
		hashInt(h, int(size))
		for at := int64(0); at < size; at += hashChunk {
			chunks = append(chunks, chunk{f, at, int(min(hashChunk, size-at))})
		}
	}
	type sum struct {
		sum [sha256.Size]byte
		err error
	}
	buffers := sync.Pool{New: func() any { return new([hashChunk]byte) }}
	advance, done := s.Stage("checking data", int(s.bytes))
	defer done()
	inOrder(len(chunks), func(i int) (out sum) {
		buf := buffers.Get().(*[hashChunk]byte)
		defer buffers.Put(buf)
		c := chunks[i]
		if _, err := c.file.ReadAt(buf[:c.size], c.at); err != nil {
			return sum{err: err}
		}
		return sum{sum: sha256.Sum256(buf[:c.size])}
	}, func(i int, v sum) bool {
		advance(chunks[i].size)
		h.Write(v.sum[:])
		err = v.err
		return err == nil
	})
	return [sha256.Size]byte(h.Sum(nil)), err
}

// program returns names of this build: another may read or encode differently. A released version
// or a clean revision is named by that; any other build, as during development, by its file's size
// and time.
func program() (names []string) {
	clean := false
	if info, ok := debug.ReadBuildInfo(); ok {
		v := info.Main.Version
		names, clean = append(names, v), v != "" && v != "(devel)" && !strings.Contains(v, "dirty")
		for _, s := range info.Settings {
			if strings.HasPrefix(s.Key, "vcs.") {
				names = append(names, s.Value)
				clean = clean && !(s.Key == "vcs.modified" && s.Value == "true")
			}
		}
	}
	if clean {
		return names
	}
	path, err := os.Executable()
	if err != nil {
		return append(names, fmt.Sprint(time.Now().UnixNano())) // no other run's
	}
	info, err := os.Stat(path)
	if err != nil {
		return append(names, fmt.Sprint(time.Now().UnixNano()))
	}
	return append(names, fmt.Sprint(info.Size(), info.ModTime().UnixNano()))
}

// rowFileWriter writes a file of encoded rows.
type rowFileWriter struct {
	set     *Set
	keep    Keep
	path    string
	stamp   []string
	key     [sha256.Size]byte
	digest  hash.Hash
	tmp     string
	file    vfs.File
	w       *bufio.Writer
	at      int64
	n       int
	entries []byte // of the present block
	table   []byte
	failed  bool
}

// begin creates the file.
func (b *rowFileWriter) begin() error {
	if err := vfs.MakeDirs(b.keep.FS, b.keep.Dir); err != nil {
		return err
	}
	if err := b.room(); err != nil {
		return err
	}
	// A name of its own for each process and set: two runs that keep the same rows do
	// not meet, and the last to end puts its file in the place of the other's equal one.
	tmp := fmt.Sprintf("%s.%d-%d.tmp", b.path, os.Getpid(), time.Now().UnixNano())
	f, err := b.keep.FS.Create(tmp)
	if err != nil {
		return err
	}
	b.file, b.tmp, b.w = f, tmp, bufio.NewWriterSize(f, 1<<20)
	return nil
}

// room returns an error if the cache is full or the disk nearly so.
func (b *rowFileWriter) room() error {
	if b.keep.Most > 0 && b.at > b.keep.Most {
		return fmt.Errorf("the encoded rows of %s are more than data.cache_gb %.3g: raise that",
			b.set.path, float64(b.keep.Most)/1e9)
	}
	// Encoded rows take two to four times the bytes of the data.
	want := int64(keepFree)
	if b.at == 0 {
		want += 3 * b.set.bytes
	}
	if free, err := b.keep.FS.Free(b.keep.Dir); err == nil && free < want {
		return fmt.Errorf("%s are free, which is too little: name a folder on another disk with data.cache_dir, or none", byteSize(free))
	}
	return nil
}

// add appends a row.
func (b *rowFileWriter) add(m Measure, row Row, record []byte) {
	if b.failed {
		return
	}
	if len(record) > math.MaxUint32 || m.Prompt >= hardBit || m.Answer >= softBit {
		b.fail(errors.New("a row is too long"))
		return
	}
	hashRow(b.digest, row)
	b.entries = appendEntry(b.entries,
		entry{m, b.at, len(record), crc32.Checksum(record, castagnoli)})
	b.write(record)
	if b.n++; b.n%window == 0 {
		b.endBlock()
	}
}

// endBlock writes the entries of the block.
func (b *rowFileWriter) endBlock() {
	if len(b.entries) > 0 {
		b.table = binary.LittleEndian.AppendUint64(b.table, uint64(b.at))
		b.write(b.entries)
		b.entries = b.entries[:0]
		if err := b.room(); err != nil && !b.failed {
			b.fail(err)
		}
	}
}

func (b *rowFileWriter) write(p []byte) {
	if b.failed {
		return
	}
	b.at += int64(len(p))
	if _, err := b.w.Write(p); err != nil {
		b.fail(err)
	}
}

// finish completes the file and opens it; nil after an error.
func (b *rowFileWriter) finish() *rowFile {
	b.endBlock()
	le, table := binary.LittleEndian, b.at
	end := append(b.table, rowFileMagic...)
	end = append(end, b.key[:]...)
	end = b.digest.Sum(end)
	end = le.AppendUint64(le.AppendUint64(end, uint64(b.n)), uint64(table))
	b.write(le.AppendUint32(end, crc32.Checksum(end, castagnoli)))
	if b.failed {
		return nil
	}
	if !slices.Equal(b.stamp, b.set.stamp()) {
		b.fail(fmt.Errorf("%s was written to while it was read", b.set.path))
		return nil
	}
	err := errors.Join(b.w.Flush(), b.file.Close())
	b.file = nil
	if err == nil {
		err = b.keep.FS.Rename(b.tmp, b.path)
	}
	if err != nil {
		b.fail(err)
		return nil
	}
	b.tmp = ""
	b.evict()
	k, err := openRowFile(b.keep, b.path, b.key, b.n)
	if err != nil {
		b.fail(err)
		return nil
	}
	k.made = true
	return k
}

// fail gives up with a warning: the rows are encoded, and not stored.
func (b *rowFileWriter) fail(err error) {
	if !b.failed {
		b.failed = true
		b.keep.warn("data.cache_dir %s: encoded rows are not kept: %v", b.keep.Dir, err)
	}
	b.drop()
}

// drop removes an incomplete file.
func (b *rowFileWriter) drop() {
	if b.file != nil {
		_ = b.file.Close() // it is removed
		b.file = nil
	}
	if b.tmp != "" {
		_ = b.keep.FS.Remove(b.tmp) // if it stays, evict finds it an hour later
		b.tmp = ""
	}
}

// evict removes the oldest files until the others are within the limit, and parts that killed
// processes have left. A run that reads a removed file goes on reading it, or encodes.
func (b *rowFileWriter) evict() {
	entries, err := b.keep.FS.ReadDir(b.keep.Dir)
	if err != nil {
		return
	}
	type old struct {
		path string
		size int64
		time time.Time
	}
	var files []old
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(b.keep.Dir, e.Name())
		m := rowFileName.FindStringSubmatch(e.Name())
		switch {
		case m == nil: // not of gad
		case m[1] != "":
			if time.Since(info.ModTime()) > staleAfter {
				_ = b.keep.FS.Remove(path) // another time
			}
		default:
			total += info.Size()
			if path != b.path {
				files = append(files, old{path, info.Size(), info.ModTime()})
			}
		}
	}
	slices.SortFunc(files, func(a, b old) int { return a.time.Compare(b.time) })
	for _, f := range files {
		if b.keep.Most <= 0 || total <= b.keep.Most {
			return
		}
		if b.keep.FS.Remove(f.path) == nil {
			total -= f.size
		}
	}
}
