package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gad/apps/session"
	"gad/data"
	"gad/internal/report"
	"gad/tokenizer"
	"gad/trainer/config"
	"gad/trainer/encode"
	"gad/trainer/saved"
)

// setFlags returns the flags that name a data set and describe how its rows are read. what names
// the data in the help.
func setFlags(what string) []cli.Flag {
	cols := data.DefaultColumns()
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "data", Usage: what + ": file, folder or quoted pattern such as 'shards/*.arrow'; may be given several times"},
		&cli.StringFlag{Name: "split", Usage: "which split, if a folder has several"},
		&cli.StringFlag{Name: "format", Value: data.FormatAuto,
			Usage: "format of the rows: " + strings.Join(data.RowFormats, ", ")},
		&cli.StringFlag{Name: "turns", Value: data.TurnsLast, Usage: "which of the teacher's turns are answers: last of a row; each, as a row of its own; all of a row, as one sequence (data and sft alone)"},
		&cli.StringFlag{Name: "content-key", Value: cols.Content,
			Usage: "column with the conversation or the prompt"},
		&cli.StringFlag{Name: "teacher-key", Value: cols.Teacher,
			Usage: "column with the teacher's answer"},
	}
}

// rowsOf returns the rows that the flags of setFlags and --limit name.
func rowsOf(c *cli.Context) session.Rows {
	return session.Rows{Command: commandName(c), Paths: c.StringSlice("data"),
		Split: c.String("split"), Format: c.String("format"), Turns: c.String("turns"),
		Content: c.String("content-key"), Answer: c.String("teacher-key"), Limit: c.Int("limit")}
}

// namedData returns the files of --data as one text, for messages.
func namedData(c *cli.Context) string { return strings.Join(c.StringSlice("data"), " ") }

// dataCommand returns the command gad data inspect|validate|convert|split|collect|rate|score.
func (p *program) dataCommand() *cli.Command {
	columns := append(setFlags("data"),
		&cli.StringFlag{Name: "where",
			Usage: "only rows that meet a condition, as data.where: 'subset = math and right > 0'"},
		&cli.StringFlag{Name: "ratings",
			Usage: "file of gad data rate on these rows, whose columns --where may name"})
	open := func(c *cli.Context) (*data.Set, error) {
		if err := errors.Join(noArguments(c), need(c, "data")); err != nil {
			return nil, err
		}
		rows := rowsOf(c)
		rows.All = true
		rows.Choice = data.Choice{Where: c.String("where"), Ratings: c.String("ratings")}
		return rows.Open(p.session())
	}
	limits := config.Default().Data
	return &cli.Command{
		Name:  "data",
		Usage: "inspect, validate, convert, split or rate a data set, collect a teacher's answers for one, or score them",
		Action: func(c *cli.Context) error {
			return noSubcommand(c,
				"inspect, validate, convert, split, collect, rate or score")
		},
		Subcommands: []*cli.Command{
			{
				Name: "inspect", Usage: "format, columns, size and a row; with --model the row as the student reads it, token by token",
				Flags: append([]cli.Flag{
					&cli.IntFlag{Name: "row", Usage: "which row is shown, from 0"},
					&cli.StringFlag{Name: "model",
						Usage: "folder whose chat template and tokenizer encode the row"},
					&cli.IntFlag{Name: "max-response-length", Value: limits.MaxResponse,
						Usage: "with --model: where an answer is cut, tokens, end token included"},
				}, append(templateFlags(), columns...)...),
				Action: func(c *cli.Context) error {
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					row := c.Int("row")
					if row < 0 || row >= set.Len() {
						return usage("data inspect: --row %d: the set has rows 0 to %d", row,
							set.Len()-1)
					}
					if c.String("model") == "" {
						_, err = fmt.Fprintln(p.out,
							strings.TrimRight(data.Inspect(set, row).String(), "\n"))
						return err
					}
					tok, err := tokenizerOf(c.String("model"), chatOf(c))
					if err != nil {
						return err
					}
					text, err := rowText(set, row, tok, c.Int("max-response-length"))
					if err == nil {
						_, err = fmt.Fprint(p.out, text)
					}
					return err
				},
			},
			{
				Name: "validate", Usage: "find rows that training refuses, and measure lengths",
				Flags: append([]cli.Flag{
					&cli.StringFlag{Name: "model", Usage: modelUsage + " whose tokenizer measures lengths; without it they are not measured in tokens"},
					&cli.IntFlag{Name: "max-prompt-length", Value: limits.MaxPrompt,
						Usage: "tokens"},
					&cli.IntFlag{Name: "max-response-length", Value: limits.MaxResponse,
						Usage: "tokens, end token included"},
					&cli.StringSliceFlag{Name: "val-data",
						Usage: "validation data: counts its rows that are also training rows"},
					&cli.StringFlag{Name: "val-split", Usage: "which split of --val-data"},
					&cli.BoolFlag{Name: "json", Usage: "print the report as JSON"},
				}, append(templateFlags(), columns...)...),
				Action: func(c *cli.Context) error {
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					var enc data.Encoder
					if dir := c.String("model"); dir != "" {
						tok, err := tokenizerOf(dir, chatOf(c))
						if err != nil {
							return err
						}
						enc = encode.NewEncoder(tok)
					}
					report, err := data.Validate(set, enc,
						data.Limits{MaxPrompt: c.Int("max-prompt-length"),
							MaxResponse: c.Int("max-response-length")})
					if err != nil {
						return err
					}
					if c.IsSet("val-data") {
						if err := p.noteOverlap(c, set, report); err != nil {
							return err
						}
					}
					if c.Bool("json") {
						err = session.PrintJSON(p.out, report)
					} else {
						_, err = fmt.Fprintln(p.out, strings.TrimRight(report.String(), "\n"))
					}
					if err == nil && report.Errors > 0 {
						err = fmt.Errorf(
							"data: %s: training refuses rows (errors: %d): correct or remove them",
							namedData(c), report.Errors)
					}
					return err
				},
			},
			{
				Name: "convert", Usage: "write the set in another file format, rows as messages; the extension of --output says which: .arrow, .arrows, .parquet or .jsonl",
				Flags: append([]cli.Flag{&cli.StringFlag{Name: "output", Usage: "output file"}},
					columns...),
				Action: func(c *cli.Context) error {
					if err := need(c, "data", "output"); err != nil {
						return err
					}
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					if err := data.Convert(set, c.String("output")); err != nil {
						return err
					}
					p.noteSet(set)
					fmt.Fprintf(p.out, "%s: %s\n", c.String("output"),
						report.Count(set.Len(), "row"))
					return nil
				},
			},
			{
				Name: "split", Usage: "split a data set into two by a shuffle with a seed; equal prompts stay together",
				Flags: append([]cli.Flag{
					withLimits(&cli.Float64Flag{Name: "fraction", Value: 0.95,
						Usage: "share of the first part"}, share),
					&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "seed of the shuffle"},
					&cli.StringFlag{Name: "first", Usage: "output file of the first part"},
					&cli.StringFlag{Name: "second", Usage: "output file of the second part"},
				}, columns...),
				Action: func(c *cli.Context) error {
					if err := need(c, "data", "first", "second"); err != nil {
						return err
					}
					first := filepath.Clean(c.String("first"))
					if first == filepath.Clean(c.String("second")) {
						return usage("data split: --first and --second are both %s: give each part a file of its own", first)
					}
					set, err := open(c)
					if err != nil {
						return err
					}
					defer set.Close()
					a, b, err := data.Split(set, c.Float64("fraction"), c.Uint64("seed"),
						c.String("first"), c.String("second"))
					if err != nil {
						return err
					}
					p.noteSet(set)
					fmt.Fprintf(p.out, "%s: %s\n%s: %s\n", c.String("first"),
						report.Count(a, "row"), c.String("second"), report.Count(b, "row"))
					return nil
				},
			},
			p.collectCommand(),
			p.rateCommand(),
			p.softCommand(),
		},
	}
}

// tokenizerOf loads the tokenizer of a model's folder, with the options of the chat template.
func tokenizerOf(dir string, chat session.ChatOptions) (*tokenizer.Tokenizer, error) {
	if err := saved.CheckModel(files(), dir); err != nil {
		return nil, err
	}
	return saved.ChatTokenizer(dir, chat)
}

// rowText describes row i as a student with that tokenizer reads it: text and tokens of its prompt
// and of its answer, and where the answer begins and ends.
func rowText(set *data.Set, i int, tok *tokenizer.Tokenizer, maxResponse int) (string, error) {
	row, err := set.Row(i)
	if err != nil {
		return "", err
	}
	enc := encode.NewEncoder(tok)
	prompt, err := enc.Prompt(row)
	if err != nil {
		return "", fmt.Errorf("data: %s: row %d: %w", strings.Join(set.Files(), " "), i, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "row %d\n", i)
	for _, p := range set.RowProblems(i, enc, data.Limits{}) {
		fmt.Fprintln(&b, p)
	}
	if v := tok.Variables(); v != "" {
		fmt.Fprintf(&b, "variables of the chat template: %s\n", v)
	}
	fmt.Fprintf(&b, "prompt: %s\n", report.Count(len(prompt), "token"))
	writeTokens(&b, tok, prompt, 0)
	if strings.TrimSpace(row.Teacher) == "" {
		return b.String(), nil // reported above, if training needs one
	}
	var spans []data.Span
	answer, end := enc.Answer(row.Teacher), ""
	if row.Turns != nil {
		if answer, spans, err = enc.Reply(row); err != nil {
			return b.String(), nil // reported above, with advice
		}
	}
	switch {
	case row.Unfinished():
		answer, end =
			answer[:len(answer)-1],
			fmt.Sprintf("; it has no end token, since its finish_reason is %q", row.Finish)
	default:
		end = fmt.Sprintf("; the last is its end token, %q", tok.Piece(tok.EndOfTurn()))
	}
	if whole := len(answer); maxResponse > 0 && whole > maxResponse {
		answer, end =
			answer[:maxResponse],
			fmt.Sprintf("; cut at data.max_response_length %d of %d, so without an end token",
				maxResponse, whole)
	}
	if len(spans) < 2 && (spans == nil || spans[0].From == 0) {
		fmt.Fprintf(&b, "answer: %s, %d to %d%s\n", report.Count(len(answer), "token"), len(prompt),
			len(prompt)+len(answer)-1, end)
		writeTokens(&b, tok, answer, len(prompt))
		return b.String(), nil
	}
	learned, at := 0, 0
	part := func(what string, to int) {
		if at < to {
			fmt.Fprintf(&b, "%s: %s, %d to %d\n", what, report.Count(to-at, "token"),
				len(prompt)+at, len(prompt)+to-1)
			writeTokens(&b, tok, answer[at:to], len(prompt)+at)
		}
		at = max(at, to)
	}
	for _, s := range spans {
		from, to := min(s.From, len(answer)), min(s.To, len(answer))
		part("context", from)
		part("learned", to)
		learned += to - from
	}
	part("context", len(answer))
	fmt.Fprintf(&b, "%d of %s behind the prompt are learned%s\n", learned,
		report.Count(len(answer), "token"), end)
	return b.String(), nil
}

// writeTokens writes the text of ids, and then ids and pieces with their positions, from first on.
func writeTokens(b *strings.Builder, tok *tokenizer.Tokenizer, ids []int32, first int) {
	for line := range strings.Lines(tok.Decode(ids, false)) {
		fmt.Fprintf(b, "  | %s\n", strings.TrimSuffix(line, "\n"))
	}
	const width = 96
	at := width
	for i, id := range ids {
		cell := fmt.Sprintf(" %d %q", id, tok.Piece(id))
		if at+len(cell) > width {
			if i > 0 {
				b.WriteByte('\n')
			}
			at, _ = fmt.Fprintf(b, "  %5d:", first+i)
		}
		at += len(cell)
		b.WriteString(cell)
	}
	b.WriteByte('\n')
}

// noteOverlap adds a note to the report about rows of --val-data that are also in the set.
func (p *program) noteOverlap(c *cli.Context, set *data.Set, report *data.Report) error {
	held := rowsOf(c)
	held.Paths, held.Split = c.StringSlice("val-data"), c.String("val-split")
	val, err := held.Open(p.session())
	if err != nil {
		return err
	}
	defer val.Close()
	prompts, rows, err := data.Shared(set, val)
	if err != nil {
		return err
	}
	report.Notes = append(report.Notes, fmt.Sprintf("%d of %d validation rows have a prompt that is also in the training data, %d of them also the same answer", prompts, val.Len(), rows))
	return nil
}

// noteSet prints the notes about a copied set: what the copy leaves out, and what looks wrong.
func (p *program) noteSet(set *data.Set) {
	for _, note := range slices.Concat(set.Notes(), set.Warnings()) {
		fmt.Fprintf(p.out, "note: %s\n", note)
	}
	if suspect, _ := set.Overlooked(); suspect != "" {
		fmt.Fprintf(p.out, "warning: %s\n", suspect)
	}
	if left := set.Unread(); len(left) > 0 {
		fmt.Fprintf(p.out, "columns left out: %s\n", strings.Join(left, ", "))
	}
}
