package task

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gad/apps/create"
	"gad/apps/session"
	"gad/data"
	"gad/device"
	"gad/internal/fault"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/export"
)

// studentShape is the student of a generated task: 368k parameters.
var studentShape = model.Config{Architecture: "Qwen2", Hidden: 128, Layers: 2, Heads: 4, KVHeads: 4, HeadDim: 32, FFN: 256,
	MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true, DType: "float32"}

// vocab is more than the words of a task need, so that each is one token.
const vocab = 400

// Folder is a task with an untrained student.
type Folder struct {
	Kind              Kind
	Dir               string
	Seed, StudentSeed uint64
	Rows              int // of the training split
}

func (f Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Write writes the folder. README.md comes first and says what is being made: the same command
// goes on after an interruption, another one is refused.
func (f Folder) Write(s *session.Session) error {
	counts := map[string]int{}
	for split, n := range f.Kind.Rows {
		counts[split] = n
	}
	counts[Train] = f.Rows
	readme := []byte(f.Kind.README(f.Seed, f.StudentSeed, counts))
	if err := f.claim(s.FS, readme); err != nil {
		return err
	}
	var train []Row
	for _, split := range Splits {
		n, ok := counts[split]
		if !ok {
			continue
		}
		rows, err := f.Kind.Make(f.Seed, split, n)
		if err != nil {
			return err
		}
		if split == Train {
			train = rows
		}
		if err := f.write(s.FS, split, rows); err != nil {
			return err
		}
	}
	if err := f.student(s.FS, train); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "%s: %s, %d training rows and an untrained student; README.md there describes it\n", f.Dir, f.Kind.Name, f.Rows)
	return nil
}

// claim makes the folder and its README.md, or finds that they are this task's.
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
		return fault.Usagef("task make: %s: contains other files: nothing is overwritten: give another --output", f.Dir)
	}
	if err := vfs.MakeDirs(fsys, f.Dir); err != nil {
		return vfs.Target(err)
	}
	return vfs.WriteFile(fsys, f.path("README.md"), readme)
}

// write writes one split as JSON lines and as an Arrow file.
func (f Folder) write(fsys vfs.FS, split string, rows []Row) error {
	arrow, jsonl := f.path(split+".arrow"), f.path(split+".jsonl")
	if _, err := fsys.Stat(arrow); err == nil {
		return nil
	}
	var b bytes.Buffer
	for _, r := range rows {
		err := session.PrintJSON(&b, map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}}, "teacher_response": r.Answer})
		if err != nil {
			return err
		}
	}
	if err := vfs.WriteFile(fsys, jsonl, b.Bytes()); err != nil {
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
func (f Folder) student(fsys vfs.FS, train []Row) error {
	if _, err := fsys.Stat(f.path("student")); err == nil {
		return nil
	}
	tok, err := tokenizer.Train(strings.NewReader(Corpus(train)), tokenizer.TrainOptions{VocabSize: vocab})
	if err != nil {
		return err
	}
	shape := studentShape
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
