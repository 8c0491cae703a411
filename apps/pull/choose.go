package pull

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// File is a file of a repository.
type File struct {
	Path   string
	Size   int64  // bytes
	SHA256 string // of a large file (LFS), 64 hexadecimal digits; "" for a small one
	SHA1   string // of a small file, as git counts it (with a header), 40 hexadecimal digits
}

// etag returns the name of the file's content in the cache: its hash.
func (f File) etag() string {
	if f.SHA256 != "" {
		return f.SHA256
	}
	return f.SHA1
}

const (
	singleName  = "model.safetensors"
	indexName   = "model.safetensors.index.json"
	configName  = "config.json"
	adapterName = "adapter_config.json"
	maxIndex    = 16 << 20
)

// companions lists the files that are fetched with the weights where a repository has them. gad
// reads the first two lines; tokenizers of other programs that share the cache read the others,
// which are small.
var companions = []string{
	configName, "generation_config.json", adapterName, "adapter_model.safetensors",
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
	"tokenizer.model",
	"added_tokens.json", "chat_template.json", "vocab.json", "merges.txt",
}

// Suffixes of the files that gad reads. Pickles can run programs, and are never fetched.
var (
	modelSuffixes = []string{".safetensors", ".gguf", ".json", ".jinja", ".model", ".txt"}
	dataSuffixes  = []string{".parquet", ".jsonl", ".json", ".csv", ".arrow", ".arrows"}
	pickles       = []string{".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
)

var (
	ggufShard = regexp.MustCompile(`(?i)-\d{5}-of-\d{5}\.gguf$`)
	// GGUF files that are no model, for llama.cpp too: projectors, importance matrices, drafts.
	ggufOther = regexp.MustCompile(`mmproj|imatrix|mtp-|eagle3-`)
)

// choose returns the files of a repository that n asks for. read returns the content of a small
// file.
func choose(n Name, files []File, read func(File) ([]byte, error)) ([]File, error) {
	switch {
	case n.Dataset:
		return chooseData(n, files)
	case n.File != "":
		return chooseFile(n, files)
	}
	byPath := map[string]File{}
	for _, f := range files {
		byPath[f.Path] = f
	}
	var chosen []File
	for _, name := range companions {
		if f, ok := byPath[name]; ok {
			chosen = append(chosen, f)
		}
	}
	_, hasConfig := byPath[configName]
	_, isAdapter := byPath["adapter_model.safetensors"]
	single, hasSingle := byPath[singleName]
	index, hasIndex := byPath[indexName]
	switch {
	case hasSingle:
		chosen = append(chosen, single)
	case hasIndex:
		shards, err := shardsOf(n, index, byPath, read)
		if err != nil {
			return nil, err
		}
		chosen = append(append(chosen, index), shards...)
	case !isAdapter:
		return nil, noWeights(n, files)
	}
	if !hasConfig && !isAdapter {
		return nil, fmt.Errorf("%w: %s: has weights and no %s: is it a model?", ErrContent, n,
			configName)
	}
	return chosen, nil
}

// shardsOf returns the files that an index of weights names.
func shardsOf(n Name, index File, byPath map[string]File,
	read func(File) ([]byte, error)) (shards []File, err error) {
	if index.Size > maxIndex {
		return nil, fmt.Errorf("%w: %s: %s has %d bytes: at most %d are read", ErrContent, n,
			indexName, index.Size, maxIndex)
	}
	text, err := read(index)
	if err != nil {
		return nil, err
	}
	var content struct {
		Weights map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &content); err != nil || len(content.Weights) == 0 {
		return nil, fmt.Errorf("%w: %s: %s: has no weight_map", ErrContent, n, indexName)
	}
	names := map[string]bool{}
	for _, name := range content.Weights {
		names[name] = true
	}
	for _, name := range sortedKeys(names) {
		f, ok := byPath[name]
		if !ok || path.Ext(name) != ".safetensors" {
			return nil,
				fmt.Errorf("%w: %s: %s names %q, which the repository does not have as safetensors",
					ErrContent, n, indexName, name)
		}
		shards = append(shards, f)
	}
	return shards, nil
}

// noWeights returns the error for a repository without weights that gad reads. It says what the
// repository has.
func noWeights(n Name, files []File) error {
	var ggufs []File
	pickled := ""
	for _, f := range files {
		switch {
		case strings.HasSuffix(f.Path, ".gguf"):
			ggufs = append(ggufs, f)
		case slices.Contains(pickles, path.Ext(f.Path)) && pickled == "":
			pickled = f.Path
		}
	}
	switch {
	case len(ggufs) > 0:
		return fmt.Errorf(
			"%w: %s: has GGUF files and no safetensors: name one, as in %s:FILE: it has %s",
			ErrContent, n, Name{Repo: n.Repo, Revision: n.Revision}.Command(), listNames(ggufs))
	case pickled != "":
		return fmt.Errorf("%w: %s: has no safetensors, only pickles such as %s, which can run programs and are never fetched: choose a repository with safetensors", ErrContent, n, pickled)
	}
	return fmt.Errorf("%w: %s: has no weights: neither %s nor %s: it has %s", ErrContent, n,
		singleName, indexName, listNames(files))
}

// chooseFile returns the file that n names, or the GGUF file of the quantisation that n names.
func chooseFile(n Name, files []File) ([]File, error) {
	if i := slices.IndexFunc(files, func(f File) bool { return f.Path == n.File }); i >= 0 {
		switch {
		case ggufShard.MatchString(n.File):
			return nil, fmt.Errorf("%w: %s: is one part of several: gad reads GGUF files of one part: choose another quantisation, or merge the parts with llama.cpp's gguf-split", ErrContent, n)
		case !slices.Contains(modelSuffixes, path.Ext(n.File)):
			return nil, fmt.Errorf("%w: %s: gad reads no such file: it fetches %s", ErrContent, n,
				strings.Join(modelSuffixes, ", "))
		}
		return files[i : i+1], nil
	}
	var ggufs, found, parts []File
	for _, f := range files {
		if !strings.HasSuffix(f.Path, ".gguf") || ggufOther.MatchString(path.Base(f.Path)) {
			continue
		}
		ggufs = append(ggufs, f)
		switch {
		case !quantTag.MatchString(n.File) || !hasTag(f.Path, n.File):
		case ggufShard.MatchString(f.Path):
			parts = append(parts, f)
		default:
			found = append(found, f)
		}
	}
	switch {
	case len(found) == 1:
		return found, nil
	case len(found) > 1:
		return nil, fmt.Errorf("%w: %s: several files have the tag %s: give one by its name: %s",
			ErrContent, n, n.File, listNames(found))
	case len(parts) > 0:
		return nil, fmt.Errorf("%w: %s: is in several parts (%s): gad reads GGUF files of one part: choose another quantisation, or merge the parts with llama.cpp's gguf-split", ErrContent, n, parts[0].Path)
	case len(ggufs) > 0:
		return nil, fmt.Errorf("%w: %s: there is no such file: the repository has %s", ErrContent,
			n, listNames(ggufs))
	}
	return nil, fmt.Errorf("%w: %s: there is no such file: the repository has %s", ErrContent, n,
		listNames(files))
}

// hasTag reports whether a file's name carries a quantisation's tag, in any case, between
// separators: Q4_K is not found in IQ4_K or Q4_K_M.
func hasTag(p, tag string) bool {
	return regexp.MustCompile(`(?i)(^|[-./])` + regexp.QuoteMeta(tag) + `[-.]`).MatchString(p)
}

// chooseData returns the data files of a data set, or the files that n names by a path or a
// pattern.
func chooseData(n Name, files []File) (chosen []File, err error) {
	for _, f := range files {
		if !slices.Contains(dataSuffixes, path.Ext(f.Path)) ||
			strings.HasPrefix(path.Base(f.Path), ".") {
			continue
		}
		if n.File != "" && n.File != f.Path {
			if ok, err := path.Match(n.File, f.Path); err != nil {
				return nil, fmt.Errorf("%w: %s: %q: is no pattern", ErrName, n, n.File)
			} else if !ok {
				continue
			}
		}
		chosen = append(chosen, f)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: %s: there is no such data file (%s): the repository has %s",
			ErrContent, n, strings.Join(dataSuffixes, ", "), listNames(files))
	}
	return chosen, nil
}

// maxListed is the largest number of files that a message names.
const maxListed = 12

// listNames returns the files' names as text, for messages.
func listNames(files []File) string {
	var names []string
	for _, f := range files {
		names = append(names, show(f.Path))
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "no files"
	}
	if n := len(names); n > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), n-maxListed)
	}
	return strings.Join(names, ", ")
}

// sortedKeys returns a set's elements in order.
func sortedKeys(set map[string]bool) (list []string) {
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}
