package score

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/report"
	"gad/model"
	"gad/trainer/modeltest"
)

// line is a line that gad logprobs or gad score prints.
type line struct {
	Row       int       `json:"row"`
	Prompt    []int32   `json:"prompt_ids"`
	Response  []int32   `json:"response_ids"`
	LogProbs  []float32 `json:"logprobs"`
	Score     float32   `json:"score"`
	Text      string    `json:"text"`
	Truncated bool      `json:"truncated"`
}

// given writes the ids of lines as rows.
func given(t *testing.T, list []line) (path string) {
	t.Helper()
	var rows strings.Builder
	for _, x := range list {
		text, err := json.Marshal(map[string]any{"prompt_ids": x.Prompt, "response_ids": x.Response})
		if err != nil {
			t.Fatal(err)
		}
		rows.Write(append(text, '\n'))
	}
	path = filepath.Join(t.TempDir(), "given.jsonl")
	if err := os.WriteFile(path, []byte(rows.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// scoring returns the options of a model on the rows of a file.
func scoring(model, path string, limit int) Options {
	cols := data.DefaultColumns()
	on := device.Options{Name: "cpu", Threads: 1}
	return Options{Source: session.Source{Path: model, Device: on},
		Rows: session.Rows{Command: "score", Paths: []string{path}, Format: data.FormatAuto,
			Content: cols.Content, Answer: cols.Teacher, Limit: limit},
		MaxResponse: 1536, MaxTokens: 8192}
}

func logprobs(t *testing.T, o Options, temperature float64) string {
	t.Helper()
	printed, _ := sessiontest.Must(t,
		func(s *session.Session) error { return LogProbs(s, o, temperature) })
	return printed
}

func scores(t *testing.T, o Options) string {
	t.Helper()
	printed, _ := sessiontest.Must(t, func(s *session.Session) error { return Scores(s, o) })
	return printed
}

// What a model samples has the same log-probabilities to the bit, at the same temperature, from
// ids.
func TestLogProbsOfSamples(t *testing.T) {
	student := modeltest.Student(t)
	m, err := model.Load(modeltest.Backend(t), student, model.Options{Kind: model.LM})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tok := modeltest.Tokenizer(t)
	prompt := tok.EncodeText("Add 1+2+3")
	answers, err := m.Generate([][]int32{prompt}, []uint64{0}, model.SampleOptions{N: 3, MaxNew: 12,
		EOS: tok.EOS(), Seed: 1, Sampling: model.Sampling{Temperature: 1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []line
	for _, a := range answers[0] {
		list = append(list, line{Prompt: prompt, Response: a.IDs})
	}
	o := scoring(student, given(t, list), 0)
	printed := logprobs(t, o, 1)
	got := sessiontest.Lines[line](t, printed)
	if len(got) != 3 {
		t.Fatalf("prints %s", printed)
	}
	for i, x := range got {
		if a := answers[0][i]; x.Row != i || !slices.Equal(x.Prompt, prompt) ||
			!slices.Equal(x.Response, a.IDs) || !slices.Equal(x.LogProbs, a.Logp) {
			t.Errorf("row %d: %+v, sampled as %+v", i, x, a)
		}
	}
	if logprobs(t, o, 0.5) == printed {
		t.Error("the temperature does not matter")
	}
}

// Text and the ids of that text are one row; every answer is limited alike.
func TestTextAndIDs(t *testing.T) {
	test := modeltest.Letters("test.jsonl")
	student, critic := modeltest.Student(t), modeltest.Critic(t)
	fromText := logprobs(t, scoring(student, test, 3), 1)
	list := sessiontest.Lines[line](t, fromText)
	path := given(t, list)
	if fromIDs := logprobs(t, scoring(student, path, 0), 1); fromIDs != fromText ||
		len(list) != 3 {
		t.Errorf("from text\n%s\nfrom ids\n%s", fromText, fromIDs)
	}
	a, b := scores(t, scoring(critic, test, 3)), scores(t, scoring(critic, path, 0))
	if a != b {
		t.Errorf("scores from text\n%s\nfrom ids\n%s", a, b)
	}
	if x := sessiontest.Lines[line](t, a); len(x) != 3 || len(x[0].Prompt)+len(x[0].Response) < 10 ||
		x[0].Score == 0 || x[0].Text == "" || x[0].Truncated {
		t.Errorf("scores %s", a)
	}
	cut := scoring(critic, test, 1)
	cut.MaxResponse = 3
	if printed := scores(t, cut); !sessiontest.Lines[line](t, printed)[0].Truncated {
		t.Errorf("a cut answer is not marked: %s", printed)
	}
}

// Both commands say how far they are while their lines go to a file.
func TestBars(t *testing.T) {
	old := report.BusyDelay
	report.BusyDelay = 0
	defer func() { report.BusyDelay = old }()
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(rows,
		[]byte(strings.Repeat(`{"content":"Add 1+2","teacher_response":"it is 3"}`+"\n", 2000)),
		0o644); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]func(s *session.Session) error{
		"log-probabilities": func(s *session.Session) error {
			return LogProbs(s, scoring(modeltest.Student(t), rows, 0), 1)
		},
		"scores": func(s *session.Session) error {
			return Scores(s, scoring(modeltest.Critic(t), rows, 0))
		},
	} {
		printed, said := sessiontest.Must(t, command)
		if !regexp.MustCompile(`  `+name+`, rows \d+/2000`).MatchString(said) ||
			strings.Count(printed, "\n") != 2000 {
			t.Errorf("%s: prints %d lines and says\n%s", name, strings.Count(printed, "\n"), said)
		}
	}
}
