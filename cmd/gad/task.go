package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/create"
	"gad/apps/session"
	"gad/apps/task"
	"gad/data"
	"gad/device"
	"gad/internal/vfs"
	"gad/model"
	"gad/tokenizer"
	"gad/trainer/export"
)

// taskShape is the student of a generated task: 368k parameters.
var taskShape = model.Config{Architecture: "Qwen2", Hidden: 128, Layers: 2, Heads: 4, KVHeads: 4, HeadDim: 32, FFN: 256,
	MaxPosition: 128, RMSEps: 1e-6, RopeTheta: 10000, TieEmbeddings: true, QKVBias: true, DType: "float32"}

// taskVocab is more than the words of a task need, so that each is one token.
const taskVocab = 400

// taskCommand is gad task make|check: each kind is a subcommand of both, so that
// flags may follow it.
func (p *program) taskCommand() *cli.Command {
	var makes, checks []*cli.Command
	var names []string
	for _, k := range task.Kinds() {
		names = append(names, k.Name)
		makes = append(makes, &cli.Command{
			Name: k.Name, Usage: k.About,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "output", Usage: "output folder: train.arrow, test.arrow, tune.arrow, student and more"},
				&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the rows"},
				&cli.Uint64Flag{Name: "student-seed", Usage: "seed of the student's weights", DefaultText: "as --seed"},
				&cli.IntFlag{Name: "rows", Usage: "training rows", DefaultText: fmt.Sprint(k.Rows[task.Train])},
			},
			Action: func(c *cli.Context) error {
				if err := errors.Join(noArguments(c), need(c, "output")); err != nil {
					return err
				}
				m := taskMaker{p: p, kind: k, dir: c.String("output"), seed: c.Uint64("seed"), studentSeed: c.Uint64("seed"), rows: k.Rows[task.Train]}
				if c.IsSet("student-seed") {
					m.studentSeed = c.Uint64("student-seed")
				}
				if c.IsSet("rows") {
					m.rows = c.Int("rows")
				}
				if most := task.Max(task.Train); m.rows < 1 || m.rows > most {
					return usage("task make: --rows %d: must be 1 to %d, so that no question appears twice", m.rows, most)
				}
				return m.run()
			},
		})
		checks = append(checks, &cli.Command{
			Name: k.Name, Usage: "check answers to " + k.Name,
			Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				return checkRows(os.Stdin, p.out)
			},
		})
	}
	verbs := []*cli.Command{
		{Name: "make", Usage: "write a task's rows and an untrained student", Subcommands: makes},
		{Name: "check", Usage: "a checker for --checker: reads rows from standard input, writes a score and the form of each answer to standard output", Subcommands: checks},
	}
	for _, v := range verbs {
		v.Action = func(c *cli.Context) error {
			return usage("task %s: kind %q: unknown: use %s", v.Name, c.Args().First(), strings.Join(names, ", "))
		}
	}
	return &cli.Command{
		Name:        "task",
		Usage:       "make and check the generated tasks of the demo and the studies",
		Action:      func(c *cli.Context) error { return noSubcommand(c, "make or check") },
		Subcommands: verbs,
	}
}

// taskMaker writes a task's folder. README.md comes first and says what is being
// made: the same command goes on after an interruption, another one is refused.
type taskMaker struct {
	p                 *program
	kind              task.Kind
	dir               string
	seed, studentSeed uint64
	rows              int // of the training split
}

func (m *taskMaker) path(name string) string { return filepath.Join(m.dir, name) }

func (m *taskMaker) run() error {
	counts := map[string]int{}
	for split, n := range m.kind.Rows {
		counts[split] = n
	}
	counts[task.Train] = m.rows
	readme := []byte(m.kind.README(m.seed, m.studentSeed, counts))
	if err := m.claim(readme); err != nil {
		return err
	}
	var train []task.Row
	for _, split := range task.Splits {
		n, ok := counts[split]
		if !ok {
			continue
		}
		rows, err := m.kind.Make(m.seed, split, n)
		if err != nil {
			return err
		}
		if split == task.Train {
			train = rows
		}
		if err := m.write(split, rows); err != nil {
			return err
		}
	}
	if err := m.student(train); err != nil {
		return err
	}
	fmt.Fprintf(m.p.out, "%s: %s, %d training rows and an untrained student; README.md there describes it\n", m.dir, m.kind.Name, m.rows)
	return nil
}

// claim makes the folder and its README.md, or finds that they are this task's.
func (m *taskMaker) claim(readme []byte) error {
	if was, err := os.ReadFile(m.path("README.md")); err == nil {
		if !bytes.Equal(was, readme) {
			return usage("task make: %s: contains another task, or this one with another seed or number of rows: nothing is overwritten: give another --output", m.dir)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return vfs.Target(err)
	}
	if entries, err := files().ReadDir(m.dir); err == nil && len(entries) > 0 {
		return usage("task make: %s: contains other files: nothing is overwritten: give another --output", m.dir)
	}
	if err := vfs.MakeDirs(files(), m.dir); err != nil {
		return vfs.Target(err)
	}
	return vfs.WriteFile(files(), m.path("README.md"), readme)
}

// write writes one split as JSON lines and as an Arrow file.
func (m *taskMaker) write(split string, rows []task.Row) error {
	arrow, jsonl := m.path(split+".arrow"), m.path(split+".jsonl")
	if _, err := files().Stat(arrow); err == nil {
		return nil
	}
	var b bytes.Buffer
	for _, r := range rows {
		err := session.PrintJSON(&b, map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}}, "teacher_response": r.Answer})
		if err != nil {
			return err
		}
	}
	if err := vfs.WriteFile(files(), jsonl, b.Bytes()); err != nil {
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
func (m *taskMaker) student(train []task.Row) error {
	if _, err := files().Stat(m.path("student")); err == nil {
		return nil
	}
	tok, err := tokenizer.Train(strings.NewReader(task.Corpus(train)), tokenizer.TrainOptions{VocabSize: taskVocab})
	if err != nil {
		return err
	}
	shape := taskShape
	shape.Vocab = (tok.Size() + 7) / 8 * 8
	if shape, err = create.WithTokens(shape, tok); err != nil {
		return err
	}
	be, err := session.OpenDevice(device.Options{})
	if err != nil {
		return err
	}
	defer be.Close()
	w, err := model.New(be, shape, model.Options{Kind: model.LM, Seed: m.studentSeed})
	if err != nil {
		return err
	}
	defer w.Close()
	return export.WriteFolder(files(), m.path("student"), w, tok, "float32")
}

// checkRows is the checker of a task: rows from in, one JSON object a line, and
// for each a line with score 1 or 0 and the answer's form.
func checkRows(in io.Reader, out io.Writer) error {
	dec, w := json.NewDecoder(bufio.NewReader(in)), bufio.NewWriter(out)
	for line := 1; ; line++ {
		var row struct {
			Prompt    *string `json:"prompt"`
			Response  *string `json:"response"`
			Truncated bool    `json:"truncated"`
		}
		switch err := dec.Decode(&row); {
		case errors.Is(err, io.EOF):
			return w.Flush()
		case err != nil:
			return fmt.Errorf("task check: row %d of standard input: %w: give one JSON object per line", line, err)
		case row.Prompt == nil || row.Response == nil:
			return fmt.Errorf("task check: row %d of standard input: prompt or response is missing: each row needs both", line)
		}
		g, err := task.Check(*row.Prompt, *row.Response)
		if err != nil {
			return fmt.Errorf("task check: row %d of standard input: %w", line, err)
		}
		score := 0
		if g.Valid && !row.Truncated {
			score = 1
		}
		if err := session.PrintJSON(w, map[string]any{"score": score, "label": g.Form}); err != nil {
			return err
		}
	}
}
