package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"gad/internal/folder"
)

// dataFile is a file to be opened: by name, or inside a root that it must not
// leave.
type dataFile struct {
	name string         // path for messages
	root *folder.Folder // nil: open name itself
	rel  string         // name inside root
}

// listing is what a path stands for.
type listing struct {
	files    []dataFile
	rows     int            // as the folder's own description says, -1 for unknown
	root     *folder.Folder // of the files, nil for none; the caller closes it
	warnings []string
}

// dataSuffixes are the names that count as data in a folder. Within a file the
// first bytes decide.
var dataSuffixes = []string{".arrow", ".arrows", ".stream", ".ipc", ".feather", ".parquet", ".jsonl", ".ndjson"}

// shardName matches the usual names of shards: split-00000-of-00004.parquet,
// also with a fingerprint behind.
var shardName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})(?:[-.].*)?$`)

// listFiles finds the data files that path stands for.
func listFiles(path string) (listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w: give a data file or a folder", err)
	}
	if !info.IsDir() {
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
		return listing{}, splitsError(path)
	case slices.Contains(names, "state.json") && slices.Contains(names, "dataset_info.json"):
		return listSaved(path)
	}
	return listShards(path, entries)
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
		return fmt.Errorf("data: %s: %v: %w: save the data set again", filepath.Join(dir, name), err, ErrCorrupt)
	}
	return nil
}

// splitsError explains that a folder holds several splits and one must be named.
func splitsError(path string) error {
	var dict struct {
		Splits []string `json:"splits"`
	}
	if err := readDescription(path, "dataset_dict.json", &dict); err != nil {
		return err
	}
	if len(dict.Splits) == 0 {
		return fmt.Errorf("data: %s: dataset_dict.json: names no splits: %w", path, ErrCorrupt)
	}
	return fmt.Errorf("data: %s: holds the splits %q: one must be chosen: name its folder, as %s", path, dict.Splits, filepath.Join(path, filepath.Base(dict.Splits[0])))
}

// listSaved lists a folder that datasets.save_to_disk wrote.
func listSaved(path string) (listing, error) {
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
	if len(state.Indices) > 0 {
		return listing{}, fmt.Errorf("data: %s: state.json: has an indices mapping: the rows stand in an order that only datasets knows: save it again after flatten_indices()", path)
	}
	if len(state.Files) == 0 {
		return listing{}, fmt.Errorf("data: %s: state.json: names no data files: the set is empty: save it again", path)
	}
	root, err := folder.Open(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w", err)
	}
	list := listing{rows: -1, root: root}
	seen := map[string]bool{}
	for _, f := range state.Files {
		if f.Name == "" || !filepath.IsLocal(f.Name) || strings.ContainsRune(f.Name, 0) || seen[f.Name] {
			root.Close()
			return listing{}, fmt.Errorf("data: %s: state.json: file name %q: must be a file inside the folder, named once: save the data set again", path, f.Name)
		}
		seen[f.Name] = true
		list.files = append(list.files, dataFile{name: filepath.Join(path, f.Name), root: root, rel: f.Name})
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

// listShards lists the data files of a plain folder, by name.
func listShards(path string, entries []fs.DirEntry) (listing, error) {
	list := listing{rows: -1}
	var folders []string
	splits := map[string][]string{} // "split-of-count" -> names
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
			continue
		}
		if e.IsDir() {
			folders = append(folders, name)
			continue
		}
		if !slices.Contains(dataSuffixes, strings.ToLower(filepath.Ext(name))) {
			continue
		}
		list.files = append(list.files, dataFile{name: filepath.Join(path, name)})
		if m := shardName.FindStringSubmatch(name); m != nil {
			splits[m[1]+"-of-"+m[3]] = append(splits[m[1]+"-of-"+m[3]], m[2])
		}
	}
	if len(list.files) == 0 {
		return listing{}, fmt.Errorf("data: %s: holds no data files (%s) and is no folder of datasets.save_to_disk; its folders are %q: name the folder with the files", path, strings.Join(dataSuffixes, " "), folders)
	}
	var keys []string
	for k, shards := range splits {
		keys = append(keys, k)
		count, _ := strconv.Atoi(k[len(k)-5:])
		if len(shards) < count {
			return listing{}, fmt.Errorf("data: %s: %d of %d shards of %q are there: %w: fetch the missing files", path, len(shards), count, k[:len(k)-9], ErrTruncated)
		}
	}
	if slices.Sort(keys); len(keys) > 1 {
		return listing{}, fmt.Errorf("data: %s: holds the splits %q: one must be chosen: list its files, joined by %q", path, keys, string(os.PathListSeparator))
	}
	root, err := folder.Open(path)
	if err != nil {
		return listing{}, fmt.Errorf("data: %w", err)
	}
	list.root = root
	for i := range list.files {
		list.files[i].root, list.files[i].rel = root, filepath.Base(list.files[i].name)
	}
	return list, nil
}

// open opens the file after making sure that it is one: a pipe or a device would
// block or never end.
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

// openSource opens a file with the reader its first bytes ask for. size is the
// file's length in bytes.
func openSource(f dataFile, cols Columns) (src source, size int64, err error) {
	file, err := f.open()
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	size = info.Size()
	head := make([]byte, min(size, 64))
	if _, err := file.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	err = guard(func() error {
		src, err = openByMagic(file, size, head, cols)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("data: %s: %w", f.name, err)
	}
	return src, size, nil
}

func openByMagic(file *os.File, size int64, head []byte, cols Columns) (source, error) {
	starts := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	blank := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n")
	switch {
	case size == 0:
		return nil, fmt.Errorf("file is empty: %w: write it again", ErrTruncated)
	case starts("ARROW1"):
		return openArrow(file, size, true, cols)
	case starts("\xff\xff\xff\xff"):
		return openArrow(file, size, false, cols)
	case starts("PAR1"):
		return openParquet(file, size, cols)
	case starts("PARE"):
		return nil, errors.New("encrypted Parquet: not read: write it without encryption")
	case starts("FEA1"):
		return nil, errors.New("Feather version 1: not read: write it as Arrow IPC (Feather version 2)")
	case starts("\x1f\x8b"), starts("\x28\xb5\x2f\xfd"), starts("BZh"), starts("PK\x03\x04"):
		return nil, errors.New("a compressed file: not read as it is: decompress it first")
	case len(blank) > 0 && blank[0] == '{':
		return openLines(file, size, cols)
	case len(blank) > 0 && blank[0] == '[':
		return openArray(file, size, cols)
	}
	return nil, fmt.Errorf("first bytes %q: neither Arrow IPC, Parquet nor JSON: %w: convert the data to one of these", head[:min(len(head), 8)], ErrCorrupt)
}

// guard runs f and turns its panic into an error. The libraries that read
// Arrow and Parquet panic on damaged input; they are only called inside guard,
// and only on paths that start no goroutines. A memory fault is made a panic as
// well, for their unsafe parts.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w (%s)", ErrCorrupt, oneLine(p))
		}
	}()
	return f()
}

// corrupt marks an error of a format library as ErrCorrupt, unless it is one of
// ours that came through the library.
func corrupt(err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) {
		return err
	}
	return fmt.Errorf("%s: %w", oneLine(err), ErrCorrupt)
}

func oneLine(v any) string { return strings.ReplaceAll(fmt.Sprint(v), "\n", " ") }
