package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/create"
	"gad/apps/games"
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
		makes = append(makes, p.makeCommand(task.Train, taskMaker{
			name: k.Name, about: k.About, files: "train.arrow, test.arrow, tune.arrow, student and more", shape: taskShape,
			splits: task.Splits, counts: k.Rows, most: func() int { return task.Max(task.Train) },
			rows: func(seed uint64, split string, n int) (rows taskRows, err error) {
				made, err := k.Make(seed, split, n)
				for _, r := range made {
					rows.lines = append(rows.lines, map[string]any{"content": []data.Message{{Role: "user", Content: r.Prompt}}, "teacher_response": r.Answer})
				}
				rows.corpus = task.Corpus(made)
				return rows, err
			},
			readme: func(seed, studentSeed uint64, counts map[string]int) (string, error) {
				return k.README(seed, studentSeed, counts), nil
			},
			arrow: true,
		}))
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
	makeNames := slices.Clone(names)
	for _, g := range games.Games() {
		makeNames = append(makeNames, g.Name)
		shape := taskShape
		shape.MaxPosition = 1024 // an episode is longer than an answer
		makes = append(makes, p.makeCommand(games.Splits[0], taskMaker{
			name: g.Name, about: g.About + "; episodes for gad env " + g.Name, files: "train.jsonl, test.jsonl, tune.jsonl, student and README.md", shape: shape,
			splits: games.Splits, counts: g.Rows, most: func() int { return games.MaxRows },
			rows: func(seed uint64, split string, n int) (rows taskRows, err error) {
				made, err := g.Make(seed, split, n)
				for _, r := range made {
					rows.lines = append(rows.lines, r)
				}
				rows.corpus = games.Corpus(made)
				return rows, err
			},
			readme: func(seed, studentSeed uint64, counts map[string]int) (string, error) {
				first, err := g.Make(seed, games.Splits[0], 1)
				if err != nil {
					return "", err
				}
				return g.README(seed, studentSeed, counts, first[0]), nil
			},
		}))
	}
	verbs := []*cli.Command{
		{Name: "make", Usage: "write a task's rows and an untrained student", Subcommands: makes},
		{Name: "check", Usage: "a checker for --checker: reads rows from standard input, writes a score and the form of each answer to standard output", Subcommands: checks},
	}
	for i, v := range verbs {
		known := strings.Join([][]string{makeNames, names}[i], ", ")
		v.Action = func(c *cli.Context) error {
			return usage("task %s: kind %q: unknown: use %s", v.Name, c.Args().First(), known)
		}
	}
	return &cli.Command{
		Name:        "task",
		Usage:       "make and check the generated tasks of the demo and the studies",
		Action:      func(c *cli.Context) error { return noSubcommand(c, "make or check") },
		Subcommands: verbs,
	}
}

// makeCommand is gad task make NAME; train is the split that --rows is of.
func (p *program) makeCommand(train string, m taskMaker) *cli.Command {
	return &cli.Command{
		Name: m.name, Usage: m.about,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "output folder: " + m.files},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the rows"},
			&cli.Uint64Flag{Name: "student-seed", Usage: "seed of the student's weights", DefaultText: "as --seed"},
			&cli.IntFlag{Name: "rows", Usage: "training rows", DefaultText: fmt.Sprint(m.counts[train])},
		},
		Action: func(c *cli.Context) error {
			if err := errors.Join(noArguments(c), need(c, "output")); err != nil {
				return err
			}
			m := m
			m.p, m.dir, m.seed, m.studentSeed = p, c.String("output"), c.Uint64("seed"), c.Uint64("seed")
			if c.IsSet("student-seed") {
				m.studentSeed = c.Uint64("student-seed")
			}
			if m.counts = maps.Clone(m.counts); c.IsSet("rows") {
				m.counts[train] = c.Int("rows")
			}
			if n, most := m.counts[train], m.most(); n < 1 || n > most {
				return usage("task make: --rows %d: must be 1 to %d, so that no question appears twice", n, most)
			}
			return m.run(train)
		},
	}
}

// taskMaker writes a task's folder. README.md comes first and says what is being
// made: the same command goes on after an interruption, another one is refused.
type taskMaker struct {
	name, about, files string
	shape              model.Config // of the student, without its vocabulary
	splits             []string
	counts             map[string]int // rows of each split; a split that is absent is not written
	most               func() int     // rows of the training split
	rows               func(seed uint64, split string, n int) (taskRows, error)
	readme             func(seed, studentSeed uint64, counts map[string]int) (string, error)
	arrow              bool // Arrow files beside the JSON lines

	p                 *program
	dir               string
	seed, studentSeed uint64
}

// taskRows are rows of a split.
type taskRows struct {
	lines  []any  // JSON objects
	corpus string // their texts
}

func (m *taskMaker) path(name string) string { return filepath.Join(m.dir, name) }

func (m *taskMaker) run(train string) error {
	readme, err := m.readme(m.seed, m.studentSeed, m.counts)
	if err != nil {
		return err
	}
	if err := m.claim([]byte(readme)); err != nil {
		return err
	}
	var corpus string
	for _, split := range m.splits {
		n, ok := m.counts[split]
		if !ok {
			continue
		}
		rows, err := m.rows(m.seed, split, n)
		if err != nil {
			return err
		}
		if split == train {
			corpus = rows.corpus
		}
		if err := m.write(split, rows.lines); err != nil {
			return err
		}
	}
	if err := m.student(corpus); err != nil {
		return err
	}
	fmt.Fprintf(m.p.out, "%s: %s, %d training rows and an untrained student; README.md there describes it\n", m.dir, m.name, m.counts[train])
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

// write writes one split as JSON lines, and as an Arrow file if the task has those.
func (m *taskMaker) write(split string, lines []any) error {
	arrow, jsonl := m.path(split+".arrow"), m.path(split+".jsonl")
	last := jsonl
	if m.arrow {
		last = arrow
	}
	if _, err := files().Stat(last); err == nil {
		return nil
	}
	var b bytes.Buffer
	for _, v := range lines {
		if err := session.PrintJSON(&b, v); err != nil {
			return err
		}
	}
	if err := vfs.WriteFile(files(), jsonl, b.Bytes()); err != nil || !m.arrow {
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
func (m *taskMaker) student(corpus string) error {
	if _, err := files().Stat(m.path("student")); err == nil {
		return nil
	}
	tok, err := tokenizer.Train(strings.NewReader(corpus), tokenizer.TrainOptions{VocabSize: taskVocab})
	if err != nil {
		return err
	}
	shape := m.shape
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
