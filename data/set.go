package data

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"gad/data/input"
	"gad/data/layout"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// cacheBytes bounds the decoded batches that a Set caches. One batch is always cached, whatever its
// size.
const cacheBytes = 512 << 20

// passBytes bounds them during a pass over all rows in order.
const passBytes = 16 << 20

// hasText reports whether the column may hold text, by the formats' names of types.
func hasText(c Column) bool {
	for _, name := range []string{"string", "byte_array", "list", "struct", "object", "map",
		"binary"} {
		if strings.Contains(strings.ToLower(c.Type), name) {
			return true
		}
	}
	return false
}

// Set is an open data set. Its methods may be called from several goroutines.
type Set struct {
	path    string // for messages
	opt     Options
	names   []string // of the files, as shown in messages
	files   []layout.Source
	layouts []layout.Layout // of the files
	columns []Column        // of the first file
	has     Columns         // columns that some file has, named as in the first such file
	starts  []span          // of every batch, ascending, in rows of the files
	n       int             // rows
	inFiles int             // rows of the files; n unless each turn is a row
	// [n] the turn that each row is, if each turn is a row or rows are chosen; nil otherwise
	rowAt  []turnAt
	chosen chosen
	notes  []string // how the files are read
	// odd facts that do not make the set unusable
	warn  []string
	bytes int64 // on disk

	mu     sync.Mutex
	cache  map[int]*cached // by index into starts
	room   int64           // bound of the bytes in cache
	held   int64
	tick   int64
	closed bool

	handles []input.Input // of files, which close them
	rowFile atomic.Pointer[rowFile]

	digestOnce sync.Once
	digest     string
	digestErr  error
}

// Options are the settings for reading a set.
type Options struct {
	Columns Columns // zero is DefaultColumns
	Format  string  // of the rows, one of RowFormats; empty is FormatAuto
	Split   string  // of folders that hold several; empty is none
	Turns   string  // turns that are learned, one of TurnsValues; empty is TurnsLast
	Choice          // which rows
	Stages  Stages  // shows long work; nil is silent

	chosen []string // columns that Choice reads
}

// Stages starts a piece of work with a name and total parts. advance is called when n more parts
// are done, from one goroutine at a time, and done at the end.
type Stages func(name string, total int) (advance func(n int), done func())

// Begin starts a piece of work; nil Stages are silent.
func (s Stages) Begin(name string, total int) (advance func(n int), done func()) {
	if s == nil {
		return func(int) {}, func() {}
	}
	return s(name, total)
}

// turnAt is a row of the set: one turn of a row of the files.
type turnAt struct{ row, turn int32 }

type span struct{ first, n, file, batch, at int } // at: rows of the file before it

type cached struct {
	rows layout.Rows
	used int64
}

// Open opens one path with the given columns and otherwise default options: see OpenFiles.
func Open(path string, cols Columns) (*Set, error) {
	return OpenFiles([]string{path}, Options{Columns: cols})
}

// OpenFiles opens the files that paths name, in their order, as one set. A path is
// a data file, a folder of shards, a folder written by datasets.save_to_disk, a
// pattern such as "shards/*.arrow", whose files come sorted, or several of these
// joined by the system's list separator (":" on Unix). It reads indexes and
// schemas, not the rows; Verify reads those.
//
// Errors wrap fs.ErrNotExist, ErrCorrupt or ErrTruncated where these apply.
func OpenFiles(paths []string, o Options) (*Set, error) {
	if o.Columns == (Columns{}) {
		o.Columns = DefaultColumns()
	}
	if o.Format == "" {
		o.Format = FormatAuto
	}
	if o.Turns == "" {
		o.Turns = TurnsLast
	}
	if !slices.Contains(TurnsValues, o.Turns) {
		return nil, fmt.Errorf("data: turns %q: use %s (setting data.turns)", o.Turns,
			strings.Join(TurnsValues, ", "))
	}
	where, err := parseCondition(o.Where)
	if err != nil {
		return nil, err
	}
	o.chosen = where.columns()
	if by := o.Columns.TeacherBy; by != "" && !slices.Contains(o.chosen, by) {
		o.chosen = append(o.chosen, by)
	}
	s := &Set{opt: o, cache: map[int]*cached{}, room: cacheBytes}
	if err = s.open(paths); err == nil {
		err = s.choose(where)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Set) open(paths []string) error {
	if s.path = strings.Join(paths, " "); len(paths) > 3 {
		s.path = fmt.Sprintf("%s and %d more", paths[0], len(paths)-1)
	}
	if s.path == "" {
		return errors.New(`data: path "": no data set is named: give a file or a folder`)
	}
	var parts []string
	for _, path := range paths {
		found, err := expand(path)
		if err != nil {
			return err
		}
		parts = append(parts, found...)
	}
	for _, part := range parts {
		found, err := listFiles(part, s.opt.Split)
		if err != nil {
			return err
		}
		start := s.n
		for _, f := range found.files {
			if err = s.add(f); err != nil {
				break
			}
		}
		if found.root != nil {
			found.root.Close()
		}
		if err != nil {
			return err
		}
		if got := s.n - start; found.rows >= 0 && got != found.rows {
			s.warn = append(s.warn, fmt.Sprintf("%s: dataset_info.json says %d rows, the files contain %d: rows are missing, or the set was filtered before it was saved", part, found.rows, got))
		}
	}
	if s.n == 0 {
		return fmt.Errorf("data: %s: no rows: the set is empty: check how the file was written",
			s.path)
	}
	if s.inFiles = s.n; s.opt.Turns == TurnsEach {
		return s.eachTurn()
	}
	return nil
}

// eachTurn makes each learned turn a row. A row of the files without learned turns, or that cannot
// be used, stays a row: reading it gives the reason.
func (s *Set) eachTurn() error {
	advance, done := s.Stage("turns", s.inFiles)
	defer done()
	s.sequential(true)
	defer s.sequential(false)
	var err error
	inOrder(s.inFiles, func(i int) int {
		raw, err := s.rawOf(i)
		if err != nil {
			return 1
		}
		c, fault := converse(s.layoutIn(i), raw)
		if fault != nil {
			return 1
		}
		return max(len(c.trainable()), 1)
	}, func(i, turns int) bool {
		advance(1)
		if turns > layout.MaxRows-len(s.rowAt) {
			err = fmt.Errorf("data: %s: more than %d turns: too many for one set: split it", s.path,
				layout.MaxRows)
			return false
		}
		for k := range turns {
			s.rowAt = append(s.rowAt, turnAt{int32(i), int32(k)})
		}
		return true
	})
	s.n = len(s.rowAt)
	return err
}

// inFile returns the row of the files that row i belongs to, and the number of its turn.
func (s *Set) inFile(i int) (row, turn int) {
	if s.rowAt == nil {
		return i, 0
	}
	return int(s.rowAt[i].row), int(s.rowAt[i].turn)
}

// add opens one file and appends its rows to the set.
func (s *Set) add(f dataFile) error {
	f.name = filepath.Clean(f.name)
	switch as := s.holds(f.name); as {
	case "":
	case f.name:
		return fmt.Errorf("data: %s: given twice: its rows would count twice: give it once", f.name)
	default:
		return fmt.Errorf(
			"data: %s: is the same file as %s: its rows would count twice: give it once", f.name,
			as)
	}
	src, file, size, err := openSource(f, s.opt.Stages)
	if err != nil {
		return err
	}
	s.files, s.names, s.handles =
		append(s.files, src), append(s.names, f.name), append(s.handles, file)
	s.bytes += size

	var l layout.Layout
	var notes [3]string
	if layout.RowsIn(src) > 0 {
		want := layout.Wanted{Columns: s.opt.Columns, Format: s.opt.Format,
			Chosen: s.opt.chosen}
		if l, notes[0], err = want.LayoutFor(src); err == nil {
			err = input.Guard(func() (err error) {
				notes[1], err = src.Bind(l)
				return err
			})
		}
	}
	if err != nil {
		return fmt.Errorf("data: %s: %w", f.name, err)
	}
	if l.Format == FormatPromptCompletion &&
		slices.ContainsFunc(src.Schema(),
			func(c Column) bool { return c.Name == "label" && strings.HasPrefix(c.Type, "bool") }) {
		notes[2] = `column "label" is not read: rows with false, which KTO has as bad answers, count as answers too: remove them first`
	}
	// of many shards only the first reports it
	for i, list := range []*[]string{&s.notes, &s.warn, &s.warn} {
		if said := ": " + notes[i]; notes[i] != "" &&
			!slices.ContainsFunc(*list, func(n string) bool { return strings.HasSuffix(n, said) }) {
			*list = append(*list, f.name+said)
		}
	}
	for k, was := range s.layouts {
		if layout.RowsIn(src) == 0 || layout.RowsIn(s.files[k]) == 0 || was.Format != l.Format {
			continue
		}
		if a, b := was.SharedColumns(), l.SharedColumns(); a != b {
			return fmt.Errorf("data: %s: has the columns %s, but %s has %s: all files of a set must have the same columns", f.name, b, s.names[k], a)
		}
		break
	}
	s.layouts = append(s.layouts, l)
	if len(s.files) == 1 {
		s.columns = src.Schema()
	}
	for _, c := range [][2]*string{{&s.has.Content, &l.Content}, {&s.has.Teacher, &l.Teacher},
		{&s.has.Response, &l.Response},
		{&s.has.PromptIDs, &l.PromptIDs}, {&s.has.ResponseIDs, &l.ResponseIDs}, {&s.has.ID, &l.ID},
		{&s.has.Finish, &l.Finish}} {
		if *c[0] == "" {
			*c[0] = *c[1]
		}
	}
	at := 0
	for b, n := range src.BatchRows() {
		if n == 0 {
			continue
		}
		if n > layout.MaxRows-s.n {
			return fmt.Errorf("data: %s: more than %d rows: too many for one set: split it", f.name,
				layout.MaxRows)
		}
		s.starts = append(s.starts,
			span{first: s.n, n: n, file: len(s.files) - 1, batch: b, at: at})
		s.n, at = s.n+n, at+n
	}
	return nil
}

// holds returns the name under which the set has the file already; "" if it does not.
func (s *Set) holds(name string) string {
	info, err := os.Stat(name)
	for _, n := range s.names {
		if n == name {
			return n
		}
		if other, oerr := os.Stat(n); err == nil && oerr == nil && os.SameFile(info, other) {
			return n
		}
	}
	return ""
}

// Len returns the number of rows.
func (s *Set) Len() int { return s.n }

// Format names the format of the files: "arrow file", "arrow stream",
// "parquet", "jsonl", "json", or several of these joined by "+".
func (s *Set) Format() string {
	var names []string
	for _, f := range s.files {
		if name := f.Format(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Files returns the paths of the files, in row order.
func (s *Set) Files() []string { return slices.Clone(s.names) }

// Notes returns how the files are read, as far as this was detected rather than set.
func (s *Set) Notes() []string { return slices.Clone(s.notes) }

// Warnings returns odd facts about the set that do not make it unusable.
func (s *Set) Warnings() []string { return slices.Clone(s.warn) }

// Unread returns the columns of the files that no row carries, in their order.
func (s *Set) Unread() []string {
	var names []string
	for k, f := range s.files {
		for _, c := range f.Schema() {
			l := s.layouts[k]
			carried := l.Reads(c.Name) && c.Name != l.TeacherPrompt
			if !carried && !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// Overlooked returns notes on columns with text and keys of turns that no row carries: in suspect
// those to which answers may refer, in others the rest; each may be "". It goes by the schemas, for
// JSON by the first rows; Validate counts the suspects row by row.
func (s *Set) Overlooked() (suspect, others string) {
	var watched, rest []string
	var file string
	note := func(list *[]string, name, of string) {
		if !slices.Contains(watched, name) && !slices.Contains(rest, name) {
			*list = append(*list, name)
			file = cmp.Or(file, of)
		}
	}
	for k, f := range s.files {
		l, schema := s.layouts[k], f.Schema()
		collected := slices.ContainsFunc(schema,
			func(c Column) bool { return c.Name == "completion_tokens" })
		for _, c := range schema {
			switch {
			case collected && c.Name == "model": // the teacher's name, as WriteAnswers writes it
			case l.Format == "" || l.Reads(c.Name) || !hasText(c): // without rows there is no format
			case l.Leads(c.Name): // a path reads what is in it
			case slices.Contains(l.Watched, c.Name):
				note(&watched, c.Name, s.names[k])
			default:
				note(&rest, c.Name, s.names[k])
			}
		}
		for _, key := range f.TurnKeys(l.Content) {
			name := l.Content + "[]." + key
			switch {
			case key == l.Role || key == l.Text || key == layout.WeightKey || key == layout.OldCallKey ||
				slices.Contains(layout.TurnKeys, key) || slices.Contains(layout.OtherThoughts, key):
			case slices.Contains(layout.MaybeTurn, key):
				note(&watched, name, s.names[k])
			default:
				note(&rest, name, s.names[k])
			}
		}
	}
	if len(watched) > 0 {
		suspect = fmt.Sprintf("%s: not read, although answers may speak of it: %s%s", file,
			layout.QuoteNames(watched), s.layouts[0].ReadsMore(watched))
	}
	if len(rest) > 0 {
		others = fmt.Sprintf("%s: not read: %s", file, layout.QuoteNames(rest))
	}
	return suspect, others
}

// Stage starts a piece of work on the set: see Stages.
func (s *Set) Stage(name string, total int) (advance func(n int), done func()) {
	return s.opt.Stages.Begin(s.path+": "+name, total)
}

// NeedTeacher returns an error for a set whose rows carry no teacher answers.
func (s *Set) NeedTeacher() error {
	if s.HasTeacher() {
		return nil
	}
	if _, _, err := s.read(0); err != nil { // why there is none
		return fmt.Errorf("%w (gad data validate lists all such rows)", err)
	}
	l := s.layouts[0]
	var names []string
	for _, c := range s.columns {
		if c.Name != l.Content {
			names = append(names, c.Name)
		}
	}
	switch nested := layout.Present(names, "chosen", "instances", "answers"); {
	case len(nested) > 0 && nested[0] == "chosen" && l.Format == FormatShareGPT:
		return fmt.Errorf("data: %s: no conversation in column %q ends with a turn of gpt: if the teacher's answers are the turns in \"chosen\": jq -c '.%s += [.chosen]' OLD > NEW", s.path, l.Content, l.Content)
	case l.Format == FormatShareGPT:
		return fmt.Errorf("data: %s: no conversation in column %q ends with a turn of gpt, which is the teacher's answer", s.path, l.Content)
	case len(nested) > 0 && nested[0] == "instances" && l.Format == FormatAlpaca:
		return fmt.Errorf("data: %s: has no answers but those inside of \"instances\": jq -c '{instruction} + .instances[]' OLD > NEW", s.path)
	case len(nested) > 0 && nested[0] == "answers" && l.Format == FormatQA:
		return fmt.Errorf("data: %s: has no answers but those inside of \"answers\": write one as a text in a column \"answer\"", s.path)
	}
	hint := ""
	if near := layout.Alike(names, layout.NearTeacher); len(near) > 0 {
		hint = fmt.Sprintf(", such as data.teacher_key=%s", near[0])
	} else if len(names) > 0 {
		hint = ", one of " + layout.QuoteNames(names)
	}
	return fmt.Errorf(
		"data: %s: column %q is missing: name the teacher's column with data.teacher_key%s", s.path,
		s.opt.Columns.Teacher, hint)
}

// HasTeacher reports whether the rows carry teacher answers: as a column, or as the last turn of
// one of the first conversations.
func (s *Set) HasTeacher() bool {
	if s.has.Teacher != "" {
		return true
	}
	for i := range min(s.n, jsonSample) {
		if row, err := s.Row(i); err == nil && row.Teacher != "" {
			return true
		}
	}
	return false
}

// HasResponse reports whether the rows carry given student answers, as text or as token ids.
func (s *Set) HasResponse() bool { return s.has.Response != "" || s.has.ResponseIDs != "" }

// Close closes the files. Rows that were returned stay valid.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.cache = nil
	var errs []error
	if k := s.rowFile.Swap(nil); k != nil {
		errs = append(errs, k.close())
	}
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Row returns row i. It fails where the file is damaged, and for a row that cannot be used: no
// conversation, text that is not UTF-8, or two different answers. A missing teacher answer is not
// an error here; Validate reports it.
func (s *Set) Row(i int) (Row, error) {
	row, _, err := s.read(i)
	return row, err
}

// read returns row i, and its watched columns and keys of turns that are not read. Cached rows do
// not have the latter.
func (s *Set) read(i int) (row Row, unread []string, err error) {
	if ex, ok := s.encodedExample(i); ok {
		return ex.Row, nil, nil
	}
	raw, err := s.raw(i)
	if err != nil {
		return Row{}, nil, err
	}
	row, bad := s.assemble(i, raw)
	if bad != nil {
		return Row{}, nil, s.rowErr(i, bad)
	}
	row.Index = i
	slices.Sort(raw.Unread)
	return row, slices.Compact(raw.Unread), nil
}

// assemble returns row i from its columns.
func (s *Set) assemble(i int, raw layout.Raw) (Row, *layout.Fault) {
	l := s.layoutOf(i)
	c, bad := converse(l, raw)
	if bad != nil {
		return c.row, bad
	}
	_, k := s.inFile(i)
	return c.answerOf(l, s.opt.Turns, k)
}

// rowErr returns a fault as an error with its file and row.
func (s *Set) rowErr(i int, bad *layout.Fault) error {
	file, at := s.locate(i)
	return fmt.Errorf("data: %s: row %d: %w", file, at, bad)
}

// locate returns the file that holds row i and the row's number in that file.
func (s *Set) locate(i int) (file string, at int) {
	i, _ = s.inFile(i)
	b := s.starts[s.batchOf(i)]
	return s.names[b.file], b.at + i - b.first
}

// layoutOf returns the layout of the file that holds row i.
func (s *Set) layoutOf(i int) layout.Layout {
	i, _ = s.inFile(i)
	return s.layoutIn(i)
}

// layoutIn returns the layout of the file that holds row i of the files.
func (s *Set) layoutIn(i int) layout.Layout { return s.layouts[s.starts[s.batchOf(i)].file] }

// batchOf returns the batch of a row of the files.
func (s *Set) batchOf(i int) int {
	return sort.Search(len(s.starts), func(b int) bool { return s.starts[b].first > i }) - 1
}

// raw returns the columns of row i.
func (s *Set) raw(i int) (layout.Raw, error) {
	if i < 0 || i >= s.n {
		return layout.Raw{}, fmt.Errorf("data: %s: row %d: the set has rows 0 to %d", s.path, i, s.n-1)
	}
	i, _ = s.inFile(i)
	return s.rawOf(i)
}

// rawOf returns the columns of row i of the files.
func (s *Set) rawOf(i int) (layout.Raw, error) {
	b := s.batchOf(i)
	var raw layout.Raw
	err := input.Guard(func() error {
		batch, err := s.lockedBatch(b)
		if err != nil {
			return err
		}
		raw, err = batch.At(i - s.starts[b].first)
		return err
	})
	if errors.Is(err, os.ErrClosed) {
		return layout.Raw{}, fmt.Errorf("data: %s: row %d: %w", s.path, i, err)
	}
	if at := s.starts[b]; err != nil {
		return layout.Raw{}, fmt.Errorf("data: %s: row %d: %w", s.names[at.file], at.at+i-at.first, err)
	}
	return raw, nil
}

// lockedBatch returns batch b under the lock. Several goroutines may read rows of one batch at
// once.
func (s *Set) lockedBatch(b int) (layout.Rows, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	return s.batch(b)
}

// sequential sets whether rows are read in order: a passed batch is then not needed again, and the
// cache holds less.
func (s *Set) sequential(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room = cacheBytes; yes {
		s.room = passBytes
	}
}

// batch returns decoded batch b, from the cache if it is there. A full cache drops the batches that
// were used longest ago. The caller holds mu.
func (s *Set) batch(b int) (layout.Rows, error) {
	s.tick++
	if c := s.cache[b]; c != nil {
		c.used = s.tick
		return c.rows, nil
	}
	at := s.starts[b]
	loaded, err := s.files[at.file].Load(at.batch)
	if err != nil {
		return nil, err
	}
	s.held += loaded.Size()
	for s.held > s.room && len(s.cache) > 0 {
		oldest, used := -1, int64(0)
		for k, c := range s.cache {
			if oldest < 0 || c.used < used {
				oldest, used = k, c.used
			}
		}
		s.held -= s.cache[oldest].rows.Size()
		delete(s.cache, oldest)
	}
	s.cache[b] = &cached{rows: loaded, used: s.tick}
	return loaded, nil
}

// Verify reads every row once and returns the first error of a file. Faults of single rows, which
// Validate lists, do not count.
func (s *Set) Verify() error {
	s.digestOnce.Do(s.computeDigest)
	return s.digestErr
}

// Digest returns the SHA-256, in hexadecimal, over the rows in their order: over the columns that
// are read, not over the files, so that a set keeps its digest when it is converted to another
// format. The first call reads the whole set. If the set cannot be read, the result is the error's
// text and equals no digest.
func (s *Set) Digest() string {
	if err := s.Verify(); err != nil {
		return "unreadable: " + err.Error()
	}
	return s.digest
}

func (s *Set) computeDigest() {
	if k := s.rowFile.Load(); k != nil {
		s.digest = k.digest
		return
	}
	s.digest, s.digestErr = s.hashRows()
}

// hashRows returns the digest of the rows.
func (s *Set) hashRows() (digest string, err error) {
	h := newDigest()
	advance, done := s.Stage("digest", s.n)
	defer done()
	s.sequential(true)
	defer s.sequential(false)
	inOrder(s.n, s.toDigest, func(_ int, d digested) bool {
		advance(1)
		if d.err != nil {
			err = d.err
			return false
		}
		if d.fault != "" {
			hashString(h, d.fault)
		}
		hashRow(h, d.row)
		return true
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// newDigest returns the hash of a set without rows so far.
func newDigest() hash.Hash {
	h := sha256.New()
	h.Write([]byte("gad data set 1\n"))
	return h
}

// Measure returns the measures of a row that need no encoder: its keys.
func (r Row) Measure() Measure {
	prompt, row := r.Keys()
	return Measure{PromptKey: binary.LittleEndian.Uint64(prompt[:]),
		RowKey: binary.LittleEndian.Uint64(row[:])}
}

// hashRow adds a row to h. Different rows add different bytes: every list and string is preceded by
// its length.
func hashRow(h hash.Hash, row Row) {
	hashPrompt(h, row)
	hashString(h, row.Teacher)
	hashTurns(h, row.Turns)
	hashString(h, row.Response)
	hashIDs(h, row.ResponseIDs)
	hashString(h, row.ID)
	if row.Finish != "" { // sets without it keep the digest that they had before it was read
		hashInt(h, -1)
		hashString(h, row.Finish)
	}
	if row.Logprobs != nil {
		hashInt(h, -6)
		hashString(h, row.Logprobs.String())
	}
	if len(row.TeacherPrompt) > 0 {
		hashInt(h, -7)
		hashTurns(h, row.TeacherPrompt)
	}
	if row.TeacherBy != "" {
		hashInt(h, -8)
		hashString(h, row.TeacherBy)
	}
}

// Key identifies a row's content, independent of its file.
type Key [sha256.Size]byte

// Keys returns digests that identify the row's prompt (turns or tokens, tools, environment), and
// the prompt with all answers.
func (r Row) Keys() (prompt, whole Key) {
	h := sha256.New()
	hashPrompt(h, r)
	prompt = Key(h.Sum(nil))
	hashString(h, r.Teacher)
	hashTurns(h, r.Turns)
	hashString(h, r.Response)
	hashIDs(h, r.ResponseIDs)
	return prompt, Key(h.Sum(nil))
}

func hashPrompt(h hash.Hash, row Row) {
	hashInt(h, len(row.Messages))
	for _, m := range row.Messages {
		hashTurn(h, m)
	}
	hashIDs(h, row.PromptIDs)
	if row.Tools != "" { // as in hashRow
		hashInt(h, -2)
		hashString(h, string(row.Tools))
	}
	if row.Env != "" { // equal words in another environment are another prompt
		hashInt(h, -5)
		hashString(h, string(row.Env))
	}
}

// hashTurns adds turns to h; an empty list adds nothing.
func hashTurns(h hash.Hash, turns []Message) {
	if len(turns) == 0 {
		return
	}
	hashInt(h, -3)
	hashInt(h, len(turns))
	for _, m := range turns {
		hashTurn(h, m)
	}
}

func hashTurn(h hash.Hash, m Message) {
	hashString(h, m.Role)
	hashString(h, m.Content)
	if !acts(m) && !m.Context {
		return
	}
	hashInt(h, -4)
	for _, s := range []string{m.Thinking, string(m.ToolCalls), m.ToolCallID, m.Name,
		strconv.FormatBool(m.Context)} {
		hashString(h, s)
	}
}

func hashInt(h hash.Hash, n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	h.Write(b[:])
}

func hashString(h hash.Hash, s string) {
	hashInt(h, len(s))
	h.Write([]byte(s))
}

func hashIDs(h hash.Hash, ids []int32) {
	hashInt(h, len(ids))
	for _, id := range ids {
		hashInt(h, int(id))
	}
}
