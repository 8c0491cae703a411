package study

import (
	"fmt"
	"slices"
	"strings"
)

// DataName is the file of a study's tables as data, in the study's folder.
const DataName = "study.tsv"

// MarkdownToTSV returns a report with its Markdown tables as tab-separated values: a line a row,
// the column names first, without the separator line. Text around the tables stays.
func MarkdownToTSV(markdown string) string {
	var b strings.Builder
	for text := range strings.Lines(markdown) {
		row := strings.TrimSuffix(text, "\n")
		switch {
		case strings.HasPrefix(row, "|---|"):
		case strings.HasPrefix(row, "| ") && strings.HasSuffix(row, " |"):
			cells := strings.Split(row[2:len(row)-2], " | ")
			for i, c := range cells {
				cells[i] = strings.ReplaceAll(c, `\|`, "|")
			}
			fmt.Fprintln(&b, strings.Join(cells, "\t"))
		default:
			b.WriteString(text)
		}
	}
	return b.String()
}

// TSVToMarkdown returns the Markdown from which MarkdownToTSV wrote a file's data. It refuses a
// table with rows of unequal numbers of cells.
func TSVToMarkdown(file, data string) (string, error) {
	var b strings.Builder
	columns, at := 0, 0
	for text := range strings.Lines(data) {
		at++
		if !strings.Contains(text, "\t") {
			columns = 0
			b.WriteString(text)
			continue
		}
		cells := strings.Split(strings.TrimSuffix(text, "\n"), "\t")
		switch {
		case columns == 0:
			columns = len(cells)
			writeHead(&b, slices.Clone(cells)...)
		case len(cells) != columns:
			return "", fmt.Errorf("study: %s: line %d has %d cells, and its table has %d columns: "+
				"give each row as many, with a tab between two", file, at, len(cells), columns)
		default:
			writeRow(&b, cells...)
		}
	}
	return b.String(), nil
}
