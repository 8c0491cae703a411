package coach

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"gad/apps/judge"
	"gad/apps/judge/pipe"
	"gad/apps/session"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/vfs"
	"gad/trainer/checker"
)

// Each row has its line, in order; a row without notes has none, and says why; rows need no answer
// of the teacher. A trial says what is to come.
func TestRows(t *testing.T) {
	s, err := endpointtest.Start(&endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) {
			said := regexp.MustCompile(`(?s)answer of the student>>\n(.*?)\n<<`).FindStringSubmatch(
				c.Messages[1].Content)
			raw, _ := json.Marshal(map[string]string{
				"notes": fmt.Sprintf("It has %d bytes: \"fewer\".", len(said[1]))})
			return string(raw), "stop"
		},
		Misbehave: func(c endpointtest.Call, w http.ResponseWriter, _ *http.Request) bool {
			if strings.Contains(c.Messages[1].Content, "secret") {
				endpointtest.Fail(w, 400, "content_filter", "no")
				return true
			}
			return false
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var in strings.Builder
	for i, answer := range []string{"xxx", "secret", "xxx", "x"} {
		raw, _ := json.Marshal(checker.Row{Row: i / 2, Response: answer,
			Content: []checker.Message{{Role: "user", Content: fmt.Sprint("q", i/2)}}})
		in.Write(append(raw, '\n'))
	}
	t.Setenv(checker.TrialVar,
		`{"steps":10,"prompts":2,"answers":2,"prompt_bytes":40,"teacher_bytes":20}`)
	o := pipe.Options{Job: Job(judge.NotesRules), Model: "m", Dir: t.TempDir(), MaxTokens: 100,
		Price:    &endpoint.Price{Input: 1000, Output: 1000},
		Endpoint: endpoint.Options{BaseURL: s.URL, Retries: -1}}
	var want string
	for _, n := range []int{3, 0, 3, 1} {
		if n == 0 {
			want += `{"score":null}` + "\n"
			continue
		}
		want += fmt.Sprintf(`{"score":null,"notes":"It has %d bytes: \"fewer\"."}`+"\n", n)
	}
	for _, asked := range []int{3, 0} {
		var out, said bytes.Buffer
		calls := len(s.Calls())
		if err := pipe.Run(&session.Session{Out: &out, Err: &said, FS: vfs.OS}, o,
			strings.NewReader(in.String())); err != nil || out.String() != want {
			t.Fatalf("%s, %v, want %s", out.String(), err, want)
		}
		if n := len(s.Calls()) - calls; n != asked+asked/3 { // the refused one is none
			t.Errorf("%d calls, %d answered", n, asked)
		}
		for _, text := range []string{"notes of m at 127.0.0.1:",
			": a step asks 4 requests (2 for each of 2 prompts with 2 answers): ",
			" in 10 steps", fmt.Sprintf("notes of 2 prompts: %d requests made, ", asked),
			"; 1 without, the first: \"endpoint: "} {
			if !strings.Contains(said.String(), text) {
				t.Errorf("no %q in %s", text, said.String())
			}
		}
	}
}
