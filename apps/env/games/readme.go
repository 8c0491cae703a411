package games

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gad/apps/task"
)

// Folder returns the task folder of the game: the scripted teacher's episodes and an untrained
// student.
func (g Game) Folder() task.Folder {
	return task.Folder{
		Name: g.Name, About: g.About + "; episodes for gad env " + g.Name,
		Files:  "train.jsonl, test.jsonl, tune.jsonl, student and README.md",
		Splits: Splits, Counts: maps.Clone(g.Rows), Most: func() int { return MaxRows },
		MaxPosition: 1024, // an episode is longer than an answer
		Rows: func(seed uint64, split string, n int) (rows task.Rows, err error) {
			made, err := g.Make(seed, split, n)
			for _, r := range made {
				rows.Lines = append(rows.Lines, r)
			}
			rows.Corpus = Corpus(made)
			return rows, err
		},
		README: func(f task.Folder) (string, error) {
			first, err := g.Make(f.Seed, Splits[0], 1)
			if err != nil {
				return "", err
			}
			return g.readme(f.Seed, f.StudentSeed, f.Counts, first[0]), nil
		},
	}
}

// readme returns README.md for the folder of a game's rows: the rules, an episode, the contents of
// the files.
func (g Game) readme(seed, studentSeed uint64, counts map[string]int, example Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The environment %s\n\n%s.\n\n", g.Name,
		strings.ToUpper(g.About[:1])+g.About[1:])
	fmt.Fprintf(&b, "Made by `gad task make %s` with seed %d; the student's weights are drawn with seed %d.\n\n%s\n\n", g.Name, seed, studentSeed, g.Rules)
	b.WriteString("The first episode of the teacher:\n\n")
	for _, m := range slices.Concat(example.Content, example.Response) {
		fmt.Fprintf(&b, "    %-9s  %s\n", m.Role, strings.ReplaceAll(m.Content, "\n", " "))
	}
	about := map[string]string{"train": "to train on", "test": "held out",
		"tune": "held out too, to look at while settings are chosen"}
	b.WriteString("\n| file | rows | |\n|---|---:|---|\n")
	for _, s := range Splits {
		fmt.Fprintf(&b, "| %s.jsonl | %d | %s |\n", s, counts[s], about[s])
	}
	b.WriteString("| student/ | | an untrained model folder with its tokenizer |\n\n")
	b.WriteString("A row has `content`, what the student reads first; `teacher_response`, the messages behind it, of assistant and environment;\n" +
		"and `env`, the world, which the environment is given. The world alone decides its file, whatever the seed.\n\n" +
		"    gad env check --env '\"$GAD\" env " + g.Name + "' --data test.jsonl\n")
	return b.String()
}
