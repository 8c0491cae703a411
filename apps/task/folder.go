package task

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	create "gad/apps/init"
	"gad/apps/session"
	"gad/data"
	"gad/device"
	"gad/internal/fault"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/export"
)

// studentShape is the shape of a generated task's student: 368k parameters.
var studentShape = model.Config{Architecture: "Qwen2", Hidden: 128, Layers: 2, Heads: 4, KVHeads: 4,
	HeadDim: 32, FFN: 256,
	RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true, DType: "float32"}

// vocab exceeds the number of a task's words, so that each word is one token.
const vocab = 400

// Folder is a folder of a task: rows and an untrained student.
type Folder struct {
	Name, About, Files string // Files: list of the files, for the help
	// in writing order, the training split first
	Splits []string
	Counts map[string]int // rows by split; an absent split is not written
	Most   func() int     // most training rows possible
	Rows   func(seed uint64, split string, n int) (Rows, error)
	// rows made of the first n to train on, whose prompts have notes; nil: none
	Noted       func(seed uint64, n int) ([]any, error)
	README      func(f Folder) (string, error)
	Arrow       bool // write Arrow files too, besides JSON lines
	MaxPosition int  // of the student: tokens of a prompt with its answer
	Vocab       int  // most tokens of its tokenizer; 0: vocab

	Dir               string
	Seed, StudentSeed uint64
}

// Rows is the rows of a split as JSON objects, and their texts for the tokenizer.
type Rows struct {
	Lines  []any
	Corpus string
}

// Folder returns a kind's folder with the default numbers of rows.
func (k Kind) Folder() Folder {
	return Folder{
		Name: k.Name, About: k.About,
		Files:  "train.arrow, test.arrow, tune.arrow, student and more",
		Splits: Splits, Counts: maps.Clone(k.Rows), Most: func() int { return Max(Train) },
		Arrow: true, MaxPosition: 128,
		Rows: func(seed uint64, split string, n int) (rows Rows, err error) {
			made, err := k.Make(seed, split, n)
			rows.Lines, rows.Corpus = messages(made), Corpus(made)
			return rows, err
		},
		Noted: func(seed uint64, n int) ([]any, error) {
			made, err := k.Make(seed, Train, n)
			if err != nil {
				return nil, err
			}
			made, err = Noted(seed, made)
			return messages(made), err
		},
		README: func(f Folder) (string, error) {
			return k.README(f.Seed, f.StudentSeed, f.Counts),
				nil
		},
	}
}

func (f Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Write writes the folder. README.md comes first and describes the content: the same command
// resumes after an interruption, and a different one is refused.
func (f Folder) Write(s *session.Session) error {
	readme, err := f.README(f)
	if err != nil {
		return err
	}
	if err := f.claim(s.FS, []byte(readme)); err != nil {
		return err
	}
	train := f.Splits[0]
	var corpus string
	for _, split := range f.Splits {
		n, ok := f.Counts[split]
		if !ok {
			continue
		}
		rows, err := f.Rows(f.Seed, split, n)
		if err != nil {
			return err
		}
		if split == train {
			corpus = rows.Corpus
		}
		if err := f.write(s.FS, split, rows.Lines); err != nil {
			return err
		}
	}
	if f.Noted != nil {
		lines, err := f.Noted(f.Seed, f.Counts[train])
		if err != nil {
			return err
		}
		if err := f.write(s.FS, noted, lines); err != nil {
			return err
		}
	}
	if err := f.student(s.FS, corpus); err != nil {
		return err
	}
	fmt.Fprintf(s.Out,
		"%s: %s, %d training rows and an untrained student; README.md there describes it\n", f.Dir,
		f.Name, f.Counts[train])
	return nil
}

// claim creates the folder and its README.md, or checks that they are this task's.
func (f Folder) claim(fsys vfs.FS, readme []byte) error {
	if was, err := os.ReadFile(f.path("README.md")); err == nil {
		if !bytes.Equal(was, readme) {
			return fault.Usagef("task make: %s: contains another task, or this one with another seed or number of rows: nothing is overwritten: give another --output", f.Dir)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return vfs.Target(err)
	}
	if entries, err := fsys.ReadDir(f.Dir); err == nil && len(entries) > 0 {
		return fault.Usagef(
			"task make: %s: contains other files: nothing is overwritten: give another --output",
			f.Dir)
	}
	if err := vfs.MakeDirs(fsys, f.Dir); err != nil {
		return vfs.Target(err)
	}
	return vfs.WriteFile(fsys, f.path("README.md"), readme)
}

// write writes one split as JSON lines, and as an Arrow file if the task has these.
func (f Folder) write(fsys vfs.FS, split string, lines []any) error {
	arrow, jsonl := f.path(split+".arrow"), f.path(split+".jsonl")
	last := jsonl
	if f.Arrow {
		last = arrow
	}
	if _, err := fsys.Stat(last); err == nil {
		return nil
	}
	var b bytes.Buffer
	for _, v := range lines {
		if err := session.PrintJSON(&b, v); err != nil {
			return err
		}
	}
	if err := vfs.WriteFile(fsys, jsonl, b.Bytes()); err != nil || !f.Arrow {
		return err
	}
	set, err := data.Open(jsonl, data.DefaultColumns())
	if err != nil {
		return err
	}
	defer set.Close()
	return data.Convert(set, arrow)
}

// student writes the untrained student with a tokenizer of the training rows' words.
func (f Folder) student(fsys vfs.FS, corpus string) error {
	if _, err := fsys.Stat(f.path("student")); err == nil {
		return nil
	}
	tok, err := tokenizer.Train(strings.NewReader(corpus),
		tokenizer.TrainOptions{VocabSize: cmp.Or(f.Vocab, vocab)})
	if err != nil {
		return err
	}
	shape := studentShape
	shape.MaxPosition = f.MaxPosition
	shape.Vocab = (tok.Size() + 7) / 8 * 8
	if shape, err = create.WithTokens(shape, tok); err != nil {
		return err
	}
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	w, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: f.StudentSeed})
	if err != nil {
		return err
	}
	defer w.Close()
	return export.WriteFolder(fsys, f.path("student"), w, tok, "float32")
}
