package data

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gad/data/arrow"
	"gad/data/input"
	"gad/data/layout"
	"gad/data/parquet"
	"gad/internal/folder"
)

// dataFile is a file to open: by name, or inside a root that it must not leave.
type dataFile struct {
	name string         // path for messages
	root *folder.Folder // nil: open name itself
	rel  string         // name inside root
}

// listing is the set of files that a path stands for.
type listing struct {
	files []dataFile
	rows  int            // from the folder's own description, -1 for unknown
	root  *folder.Folder // of the files, nil for none; the caller closes it
}

// dataSuffixes are the suffixes of data files in a folder. The format is determined by the first
// bytes.
var dataSuffixes = []string{".arrow", ".arrows", ".stream", ".ipc", ".feather", ".parquet",
	".jsonl", ".ndjson"}

// shardName matches the usual names of shards: split-00000-of-00004.parquet,
// also with a fingerprint behind.
var shardName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})(?:[-.].*)?$`)

// expand returns the paths that a path stands for: itself, the files that it
// matches as a pattern, or the parts of a list.
func expand(path string) (paths []string, err error) {
	if _, err := os.Lstat(path); err == nil {
		return []string{path}, nil
	}
	if strings.Contains(path, "://") {
		return nil, fmt.Errorf("data: %s: is an address: fetch the file first and give its path",
			path)
	}
	for _, part := range filepath.SplitList(path) {
		_, err := os.Lstat(part)
		if err == nil || !strings.ContainsAny(part, "*?[") {
			paths = append(paths, part)
			continue
		}
		found, err := filepath.Glob(part)
		if err != nil {
			return nil, fmt.Errorf("data: %s: pattern: %w", part, err)
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("data: %s: %w", part, input.NewError("the pattern matches no file: check it, and quote it so that the shell does not expand it", fs.ErrNotExist))
		}
		slices.Sort(found)
		paths = append(paths, found...)
	}
	return paths, nil
}

// hubName is the form of a name on the Hugging Face hub.
var hubName = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$`)

// notThere returns the error, with a hint, for a path that cannot be opened.
func notThere(path string, err error) error {
	hint := "give a data file or a folder"
	_, top := os.Stat(filepath.Dir(path))
	switch {
	case !errors.Is(err, fs.ErrNotExist):
	case strings.Contains(path, ","):
		hint = "for several files give --data once for each"
	case hubName.MatchString(path) && top != nil &&
		!slices.Contains(dataSuffixes, suffixOf(path)):
		hint = fmt.Sprintf("gad pull --dataset %s fetches it from a hub", path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data: %s: %w", path,
			input.NewError("does not exist: "+hint, fs.ErrNotExist))
	}
	return fmt.Errorf("data: %w: %s", reason(path, err), hint)
}

// reason returns an error of the operating system without the name of its call, such as stat.
func reason(path string, err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: %w", path, e.Err)
	}
	return err
}

// listFiles returns the data files that path stands for; a split other than "" limits them to its
// own.
func listFiles(path, split string) (listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return listing{}, notThere(path, err)
	}
	if !info.IsDir() {
		if split != "" {
			return listing{}, fmt.Errorf("data: %s: is one file and has no split %q: leave out --split (data.split, data.val_split)", path, split)
		}
		return listing{files: []dataFile{{name: path}}, rows: -1}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	switch {
	case slices.Contains(names, "dataset_dict.json"):
		return listDict(path, split)
	case slices.Contains(names, "state.json") && slices.Contains(names, "dataset_info.json"):
		return listSaved(path, split)
	}
	return listShards(path, split, entries)
}

// oneSplit returns the split of that name, or the only one.
func oneSplit(path, split string, splits []string) (string, error) {
	switch i := slices.IndexFunc(splits,
		func(s string) bool { return s == split || strings.HasSuffix(s, "-"+split) }); {
	case split == "" && len(splits) == 1:
		return splits[0], nil
	case split == "":
		such := splits[0]
		if i := slices.IndexFunc(splits,
			func(s string) bool { return strings.HasSuffix(s, "train") }); i >= 0 {
			such = splits[i]
		}
		return "", fmt.Errorf("data: %s: contains the splits %s: give one, such as --split %s (data.split; data.val_split for validation)", path, layout.QuoteNames(splits), such)
	case i >= 0:
		return splits[i], nil
	}
	return "", fmt.Errorf("data: %s: contains no split %q: it has %s: give one of them with --split (data.split; data.val_split for validation)", path, split, layout.QuoteNames(splits))
}

// listDict lists a folder with several saved sets.
func listDict(path, split string) (listing, error) {
	var dict struct {
		Splits []string `json:"splits"`
	}
	if err := readDescription(path, "dataset_dict.json", &dict); err != nil {
		return listing{}, err
	}
	if len(dict.Splits) == 0 {
		return listing{}, fmt.Errorf("data: %s: dataset_dict.json: names no splits: %w", path,
			ErrCorrupt)
	}
	name, err := oneSplit(path, split, dict.Splits)
	if err != nil {
		return listing{}, err
	}
	return listSaved(filepath.Join(path, filepath.Base(name)), "")
}

// maxDescription bounds the JSON files that describe a folder.
const maxDescription = 16 << 20

// readDescription decodes one of a folder's JSON files.
func readDescription(dir, name string, into any) error {
	root, err := folder.Open(dir)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	defer root.Close() // only read from
	text, err := root.ReadFile(name, maxDescription)
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("data: %s: %v: %w: save the data set again", filepath.Join(dir, name),
			err, ErrCorrupt)
	}
	return nil
}

// listSaved lists a folder written by datasets.save_to_disk.
func listSaved(path, split string) (listing, error) {
	var state struct {
		Files []struct {
			Name string `json:"filename"`
		} `json:"_data_files"`
		Indices []any  `json:"_indices_data_files"`
		Split   string `json:"_split"`
	}
	if err := readDescription(path, "state.json", &state); err != nil {
		return listing{}, err
	}
	if state.Split == "" {
		state.Split = filepath.Base(path) // as a dict's folders are named
	}
	if split != "" && split != state.Split {
		_, err := oneSplit(path, split, []string{state.Split})
		return listing{}, err
	}
	if len(state.Indices) > 0 {
		return listing{}, fmt.Errorf("data: %s: state.json: has an indices mapping, which only datasets can read: save the set again after flatten_indices()", path)
	}
	if len(state.Files) == 0 {
		return listing{}, fmt.Errorf(
			"data: %s: state.json: names no data files: the set is empty: save it again", path)
	}
	root, err := folder.Open(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w", err)
	}
	list := listing{rows: -1, root: root}
	seen := map[string]bool{}
	for _, f := range state.Files {
		if f.Name == "" || !filepath.IsLocal(f.Name) || strings.ContainsRune(f.Name, 0) ||
			seen[f.Name] {
			root.Close()
			return listing{}, fmt.Errorf("data: %s: state.json: file name %q: must be a file inside the folder, named once: save the data set again", path, f.Name)
		}
		seen[f.Name] = true
		list.files = append(list.files,
			dataFile{name: filepath.Join(path, f.Name), root: root, rel: f.Name})
	}
	var info struct {
		Splits map[string]struct {
			Rows *int64 `json:"num_examples"`
		} `json:"splits"`
	}
	if err := readDescription(path, "dataset_info.json", &info); err != nil {
		root.Close()
		return listing{}, err
	}
	if split, ok := info.Splits[state.Split]; ok && split.Rows != nil {
		list.rows = int(*split.Rows)
	}
	return list, nil
}

// splitNames are the usual names of splits, for files that are not shards.
var splitNames = []string{"train", "test", "validation", "valid", "val", "dev", "eval"}

// splitOf returns the split in a file's name, "" for none, and the file's number among its shards;
// shards is 0 for a file that is not a shard.
func splitOf(name string) (split string, shard, shards int) {
	if m := shardName.FindStringSubmatch(name); m != nil {
		shard, _ = strconv.Atoi(m[2])
		shards, _ = strconv.Atoi(m[3])
		return m[1], shard, shards
	}
	stem := strings.TrimSuffix(unpackedName(name), suffixOf(name))
	if last := stem[strings.LastIndexAny(stem, "-_.")+1:]; slices.Contains(splitNames,
		strings.ToLower(last)) {
		return last, 0, 0
	}
	return "", 0, 0
}

// listShards lists the data files of a plain folder, by name.
func listShards(path, split string, entries []fs.DirEntry) (listing, error) {
	list := listing{rows: -1}
	var folders, splits []string
	suffixes := dataSuffixes
	if !slices.ContainsFunc(entries,
		func(e fs.DirEntry) bool {
			return slices.Contains(suffixes,
				suffixOf(e.Name()))
		}) {
		suffixes = []string{".csv", ".tsv"} // next to other files they often repeat the rows
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
			continue
		}
		if e.IsDir() {
			folders = append(folders, name)
			continue
		}
		if !slices.Contains(suffixes, suffixOf(name)) {
			continue
		}
		list.files = append(list.files, dataFile{name: filepath.Join(path, name), rel: name})
		if s, _, _ := splitOf(name); s != "" && !slices.Contains(splits, s) {
			splits = append(splits, s)
		}
	}
	if len(list.files) == 0 {
		if slices.Contains(folders, "data") { // as the Hugging Face hub lays a set out
			return listFiles(filepath.Join(path, "data"), split)
		}
		if slices.ContainsFunc(entries,
			func(e fs.DirEntry) bool {
				return e.Name() == "tokenizer.json" ||
					e.Name() == "config.json"
			}) {
			return listing{}, fmt.Errorf(
				"data: %s: is a model's folder, not data: give rows with --data, this with --model",
				path)
		}
		hint := "give a data file, or a folder of them"
		json := slices.IndexFunc(entries,
			func(e fs.DirEntry) bool { return strings.ToLower(filepath.Ext(e.Name())) == ".json" })
		if json >= 0 { // in a folder a .json file may be a list of rows, or describe others
			hint = fmt.Sprintf("if %s holds the rows, name the file", entries[json].Name())
		} else if len(folders) > 0 {
			hint = fmt.Sprintf("its folders are %s: name the folder with the files",
				layout.QuoteNames(folders))
		}
		return listing{}, fmt.Errorf("data: %s: contains no data files (%s) and was not written by datasets.save_to_disk: %s", path, strings.Join(dataSuffixes, " "), hint)
	}
	slices.Sort(splits)
	if len(splits) > 1 || split != "" {
		if len(splits) == 0 {
			return listing{}, fmt.Errorf("data: %s: contains no split %q: its files name none: leave out --split (data.split, data.val_split)", path, split)
		}
		chosen, err := oneSplit(path, split, splits)
		if err != nil {
			return listing{}, err
		}
		list.files = slices.DeleteFunc(list.files, func(f dataFile) bool {
			s, _, _ := splitOf(f.rel)
			return s != chosen
		})
	}
	counts := map[string]int{} // "split, of shards" -> shards that are there
	of := map[string]int{}     // split -> shards
	for _, f := range list.files {
		s, _, shards := splitOf(f.rel)
		if shards == 0 && of[s] == 0 {
			continue
		}
		if before, ok := of[s]; ok && before != shards {
			return listing{}, fmt.Errorf("data: %s: contains shards of %q in %d and in %d files, two versions of one set: keep one", path, s, before, shards)
		}
		of[s] = shards
		counts[s]++
	}
	for _, s := range slices.Sorted(maps.Keys(of)) {
		if counts[s] < of[s] {
			return listing{}, fmt.Errorf("data: %s: %w", path,
				input.NewTruncated("only %d of %d shards of %q are there: fetch the missing files",
					counts[s], of[s], s))
		}
	}
	root, err := folder.Open(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w", err)
	}
	list.root = root
	for i := range list.files {
		list.files[i].root = root
	}
	return list, nil
}

// open opens a regular file. A pipe or a device is refused: it would block or never end.
func (f dataFile) open() (file *os.File, err error) {
	if f.root != nil {
		file, err = f.root.Open(f.rel)
	} else {
		file, err = folder.File(f.name)
	}
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return file, nil
}

// openSource opens a file with the reader of its format. size is the file's length in bytes. stages
// shows the formats that must be read whole.
func openSource(f dataFile, stages Stages) (src layout.Source, file input.Input, size int64,
	err error) {
	plain, err := f.open()
	file = plain
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() {
		if err != nil {
			plain.Close()
		}
	}()
	info, err := plain.Stat()
	if err != nil {
		return nil, nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	size = info.Size()
	head := make([]byte, min(size, 512))
	if _, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	if codec, ok := codecOf(head); ok {
		_, done := stages.Begin(f.name+": decompressing", 0)
		unpacked, err := unpack(plain, f.name, size, codec)
		done()
		if err != nil {
			return nil, nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
		}
		file, size = unpacked, unpacked.Size()
		head = make([]byte, min(size, 512))
		if _, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
		}
		if _, twice := codecOf(head); twice {
			return nil, nil, 0, fmt.Errorf("data: %s: is compressed twice: decompress it first",
				f.name)
		}
	}
	err = input.Guard(func() error {
		src, err = openByMagic(file, size, head,
			func(open opener) (layout.Source, error) {
				advance, done := stages.Begin(f.name+": finding rows", int(size))
				defer done()
				return open(file, size, advance)
			})
		return err
	})
	if err != nil {
		return nil, nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	return src, file, size, nil
}

// opener opens a file whose format must be read to its end; advance gets the bytes read.
type opener func(file input.Input, size int64, advance func(int)) (layout.Source, error)

// openByMagic opens a file by its first bytes; formats that must be read to their end are opened by
// whole.
func openByMagic(file input.Input, size int64, head []byte,
	whole func(opener) (layout.Source, error)) (layout.Source, error) {
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	blank := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n")
	switch {
	case size == 0:
		return nil, input.NewTruncated("file is empty: write it again")
	case starts("ARROW1"):
		return arrow.Open(file, size, true)
	case starts("\xff\xff\xff\xff"):
		return arrow.Open(file, size, false)
	case starts("PAR1"):
		return parquet.Open(file, size)
	case len(blank) > 1 && (blank[0] == '{' || blank[0] == '[') && blank[1] == 0:
		return nil, errors.New("is UTF-16 text: convert it, iconv -f UTF-16LE -t UTF-8 OLD > NEW")
	case len(blank) > 0 && blank[0] == '{':
		return whole(openLines)
	case len(blank) > 0 && blank[0] == '[':
		return whole(openArray)
	}
	if err := foreign(size, head, blank); err != nil {
		return nil, err
	}
	if isCSV(file.Name()) {
		return whole(openCSV)
	}
	return nil, input.NewCorrupt("is neither Arrow IPC, Parquet, JSON nor a .csv or .tsv file (first bytes %q): convert it to one of these", head[:min(len(head), 8)])
}

// foreign returns the error for a file that is not data, or not in a form that can be read, with
// the way out.
func foreign(size int64, head, blank []byte) error {
	for _, f := range []struct{ magic, what string }{
		{"PARE", "encrypted Parquet: write it without encryption"},
		{"FEA1", "Feather version 1: write it as Arrow IPC (Feather version 2)"},
		{"BZh", "a bzip2 file: decompress it first (bunzip2)"},
		{"\xfd7zXZ", "an xz file: decompress it first (unxz)"},
		{"7z\xbc\xaf", "a 7z archive: unpack it first"},
		{"PK\x03\x04",
			"a zip archive (or .xlsx, .pt, .npz): unpack it, or export the table as CSV"},
		{"\xff\xfe", "UTF-16 text: convert it, iconv -f UTF-16 -t UTF-8 OLD > NEW"},
		{"\xfe\xff", "UTF-16 text: convert it, iconv -f UTF-16 -t UTF-8 OLD > NEW"},
		{"version https://git-lfs", "a Git LFS pointer, not the data: fetch it with git lfs pull"},
		{"GGUF", "a GGUF model, not data: give rows with --data"},
		{"SQLite format 3\x00", "an SQLite database: export the table as CSV or JSON lines"},
		{"%PDF", "a PDF, not data: give rows with --data"},
		{"\x93NUMPY", "a NumPy array: write the rows as Parquet or JSON lines"},
		{"Obj\x01", "an Avro file: write it as Parquet or JSON lines"},
		{"ORC", "an ORC file: write it as Parquet"},
	} {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return errors.New("is " + f.what)
		}
	}
	lower := bytes.ToLower(blank[:min(len(blank), 16)])
	switch {
	case len(blank) == 0 && size <= int64(len(head)):
		return input.NewTruncated("file is blank: write it again")
	case bytes.HasPrefix(lower, []byte("<!doctype")), bytes.HasPrefix(lower, []byte("<html")):
		return errors.New(
			"is a web page, not the data: the download went wrong, so fetch the file itself")
	case len(head) > 9 && head[8] == '{' && binary.LittleEndian.Uint64(head) < uint64(size):
		return errors.New("is a safetensors model file, not data: give rows with --data, the model's folder with --model")
	case len(head) >= 262 && string(head[257:262]) == "ustar":
		return errors.New("is a tar archive: unpack it first (tar -xf)")
	case size <= int64(len(head)) && json.Valid(blank):
		return input.NewCorrupt(
			"is JSON, but has no rows: write one object per line, or an array of objects")
	}
	return nil
}

// scan returns a reader of a file from byte skip to its end.
func scan(file io.ReaderAt, skip, size int64, advance func(bytes int)) io.Reader {
	return &scanner{io.NewSectionReader(file, skip, size-skip), advance}
}

type scanner struct {
	io.Reader
	advance func(bytes int)
}

func (s *scanner) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.advance(n)
	return n, err
}
