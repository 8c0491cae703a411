package score

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gad/apps/serve"
	"gad/apps/session"
	"gad/apps/session/sessiontest"
	"gad/data"
	"gad/device"
	"gad/internal/fault"
	"gad/model"
	"gad/trainer/modeltest"
	"gad/trainer/scoring"
)

// scorer stands before a server of a teacher, counts the texts that it scores, and may spoil its
// answers.
type scorer struct {
	server *serve.Server
	mu     sync.Mutex
	// texts whose scores were given whole, those of the trial at the start included
	given map[string]int
	calls int
	spoil func(call int, text string, answer []byte) []byte // nil: nothing
}

func (s *scorer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(raw))
	said := httptest.NewRecorder()
	s.server.ServeHTTP(said, r)
	answer := said.Body.Bytes()
	if strings.HasSuffix(r.URL.Path, "/completions") {
		var body struct{ Prompt json.RawMessage }
		json.Unmarshal(raw, &body)
		text := string(body.Prompt)
		s.mu.Lock()
		s.calls++
		if s.spoil != nil {
			answer = s.spoil(s.calls, text, bytes.Clone(answer))
		}
		if bytes.Equal(answer, said.Body.Bytes()) {
			s.given[text]++
		}
		s.mu.Unlock()
	}
	w.WriteHeader(said.Code)
	w.Write(answer)
}

// anew starts to count anew, with another spoil.
func (s *scorer) anew(spoil func(call int, text string, answer []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given, s.calls, s.spoil = map[string]int{}, 0, spoil
}

func (s *scorer) texts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.given)
}

// scoredBefore starts a server of the model in a folder, and a scorer before it.
func scoredBefore(t *testing.T, dir, name string) (s *scorer, behind *scoring.Server) {
	t.Helper()
	be, err := device.Open(device.Options{Name: "cpu", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, err := session.Load(be, session.Source{Path: dir}, model.LM)
	if err != nil {
		t.Fatal(err)
	}
	s = &scorer{given: map[string]int{}}
	if s.server, err = serve.New(m.Model, m.Tokenizer,
		serve.Options{Name: name, Loopback: true}); err != nil {
		t.Fatal(err)
	}
	unused, err := serve.Listen("127.0.0.1:0") // requests come through the scorer
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(ctx, unused) }()
	h := httptest.NewServer(s)
	t.Cleanup(func() {
		h.Close()
		if stop(); <-ended != nil {
			t.Error("the server ends with an error")
		}
		m.Close()
		be.Close()
	})
	behind, err = scoring.Open(scoring.Options{URL: h.URL + "/v1", Names: scoring.Names{
		Top: "--top-logprobs", Again: ": no row that has its scores is asked for again"}})
	if err != nil {
		t.Fatal(err)
	}
	return s, behind
}

// A server gives the soft labels that the same teacher gives when it is loaded, as far as its
// context goes; more alternatives than it has are refused at the start with what to do.
func TestScoreByServer(t *testing.T) {
	dir, o, from := scorable(t)
	local, out := filepath.Join(dir, "local.jsonl"), filepath.Join(dir, "server.jsonl")
	must(t, o, from, local)
	_, o.Server = scoredBefore(t, o.Path, "actor")
	printed := must(t, o, from, out)
	if !strings.HasPrefix(printed, out+": 6 rows of 7 with log-probabilities, ") ||
		!strings.HasSuffix(printed,
			"\nlonger than the teacher's context, and scored as far as that goes: 1 row\nwithout log-probabilities: 1 row (the first: row 5: the answer is more than a text, which a template writes)\n") {
		t.Errorf("prints %q", printed)
	}
	want, got := sessiontest.Rows(t, local), sessiontest.Rows(t, out)
	values, places := 0, 0
	for i, row := range want {
		if len(got[i].Logprobs) != len(row.Logprobs) {
			t.Fatalf("row %d: %d tokens, want %d", i, len(got[i].Logprobs), len(row.Logprobs))
		}
		for k, at := range row.Logprobs {
			if i == len(want)-1 && got[i].Logprobs[k][0].LogProb == data.NoLogProb {
				continue // behind what either reads
			}
			places, values = places+1, values+len(at)
			if !slices.Equal(got[i].Logprobs[k], at) {
				t.Fatalf("row %d, token %d: %v, want %v", i, k, got[i].Logprobs[k], at)
			}
		}
	}
	if places < 50 || values < 4*places {
		t.Errorf("%d values at %d places", values, places)
	}
	o.Top = 65
	_, _, err := scores(o, from, filepath.Join(dir, "x.jsonl"))
	if err == nil || errors.Is(err, fault.ErrUsage) || !regexp.MustCompile(
		`^teacher's server: 127\.0\.0\.1:\d+: scores a text, but does not give 65 alternatives: .*must be from 0 to 64.*: lower --top-logprobs$`).MatchString(err.Error()) {
		t.Errorf("%v", err)
	}
}

// spoiled are answers in which scores are missing, null, infinite, of another order or of another
// text.
var spoiled = map[string]func(answer []byte) []byte{
	"other order": func(a []byte) []byte {
		return places(a, func(p []json.RawMessage) []json.RawMessage {
			slices.Reverse(p[len(p)-4:])
			return p
		})
	},
	"missing": func(a []byte) []byte {
		return places(a, func(p []json.RawMessage) []json.RawMessage { return p[:len(p)-1] })
	},
	"null": func(a []byte) []byte {
		return places(a, func(p []json.RawMessage) []json.RawMessage {
			p[len(p)-1] = json.RawMessage("null")
			return p
		})
	},
	"a null value": func(a []byte) []byte {
		return places(a, func(p []json.RawMessage) []json.RawMessage {
			p[len(p)-1] = regexp.MustCompile(`"logprob":[^,]*`).ReplaceAll(p[len(p)-1],
				[]byte(`"logprob":null`))
			return p
		})
	},
	"-inf": func(a []byte) []byte {
		i := bytes.LastIndex(a, []byte(`"logprob":-`))
		return slices.Concat(a[:i], []byte(`"logprob":-Infinity,"was":-`), a[i+11:])
	},
	"without": func(a []byte) []byte { return list.ReplaceAll(a, []byte(`"prompt_logprobs":null`)) },
}

var list = regexp.MustCompile(`"prompt_logprobs":\[.*?\}\}\]`)

// places edits the scores of an answer.
func places(answer []byte, edit func(places []json.RawMessage) []json.RawMessage) []byte {
	var all []json.RawMessage
	at := list.FindIndex(answer)
	at[0] += len(`"prompt_logprobs":`)
	json.Unmarshal(answer[at[0]:at[1]], &all)
	raw, _ := json.Marshal(edit(all))
	return slices.Concat(answer[:at[0]], raw, answer[at[1]:])
}

// kept counts the rows of an interrupted output.
func kept(path string) int {
	raw, _ := os.ReadFile(path + ".partial")
	return len(regexp.MustCompile(`"r/\d+"`).FindAll(raw, -1))
}

// Spoiled scores are asked for again. Where they stay so the command ends with the place, and the
// same command goes on and asks for no row again.
func TestServerFaults(t *testing.T) {
	dir, o, from := scorable(t)
	const rows = 20
	var text strings.Builder
	for i := range rows { // all differ
		fmt.Fprintf(&text, `{"content":"Add %d+%d+1","teacher_response":"It is %d."}`+"\n", 1+i%5,
			1+i/5, 3+i%5+i/5)
	}
	if err := os.WriteFile(from.Paths[0], []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	s, server := scoredBefore(t, o.Path, "actor")
	o.Server = server
	whole := filepath.Join(dir, "whole.jsonl")
	must(t, o, from, whole)
	want, err := os.ReadFile(whole)
	if n := len(s.texts()); err != nil || n != rows {
		t.Fatalf("%d texts, want %d that differ (%v)", n, rows, err)
	}
	for _, name := range slices.Sorted(maps.Keys(spoiled)) {
		out := filepath.Join(dir, name+".jsonl")
		seen := map[string]int{}
		s.anew(func(_ int, text string, answer []byte) []byte { // twice of each text but the trial's
			if _, ok := seen[text]; !ok && len(seen) < 4 {
				seen[text] = 2
			}
			if seen[text]++; seen[text] <= 2 {
				return spoiled[name](answer)
			}
			return answer
		})
		must(t, o, from, out)
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes (%v)", name, err)
		}
		// One row that stays bad.
		out = filepath.Join(dir, name+" again.jsonl")
		var bad string
		var known []string
		s.anew(func(_ int, text string, answer []byte) []byte {
			if !slices.Contains(known, text) {
				if known = append(known, text); len(known) == 9 {
					bad = text
				}
			}
			if text == bad {
				return spoiled[name](answer)
			}
			return answer
		})
		_, _, err := scores(o, from, out)
		if !errors.Is(err, fault.ErrRunning) || !regexp.MustCompile(
			`^teacher's server: 127\.0\.0\.1:\d+: row \d+: .* (\(3 times\)|given up after 3 tries): run `+
				`the same command again: no row that has its scores is asked for again$`,
		).MatchString(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		first := s.texts()
		if n := kept(out); n != len(first) || n < 8 {
			t.Errorf("%s: %d rows are kept, %d texts were scored", name, n, len(first))
		}
		s.anew(nil)
		must(t, o, from, out)
		for text := range s.texts() {
			if first[text] > 0 {
				t.Errorf("%s: a row that was scored is asked for again", name)
			}
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) ||
			len(first)+len(s.texts()) != rows {
			t.Errorf("%s: other bytes (%v), or %d and %d rows asked for", name, err, len(first),
				len(s.texts()))
		}
	}
	// A server that does not score, or twice in another way, is refused before anything is kept.
	for want, spoil := range map[string]func(call int, text string, answer []byte) []byte{
		"does not score a given text": func(_ int, _ string, a []byte) []byte {
			return spoiled["without"](a)
		},
		"from one request to the next": func(call int, _ string, a []byte) []byte {
			return regexp.MustCompile(`"logprob":-[0-9.e-]+`).ReplaceAllFunc(a, func(x []byte) []byte {
				v, _ := strconv.ParseFloat(string(x[10:]), 64)
				return strconv.AppendFloat([]byte(`"logprob":`), v-float64(call%2), 'g', -1, 64)
			})
		},
	} {
		s.anew(spoil)
		out := filepath.Join(dir, "refused.jsonl")
		if _, _, err := scores(o, from, out); err == nil || errors.Is(err, fault.ErrRunning) ||
			errors.Is(err, fault.ErrUsage) || !strings.Contains(err.Error(), want) || kept(out) > 0 {
			t.Errorf("%v, want %s; %d rows are kept", err, want, kept(out))
		}
	}
	// What was scored goes on with the same kind of teacher alone, and with the same model.
	out := filepath.Join(dir, "part.jsonl")
	s.anew(func(call int, _ string, answer []byte) []byte {
		if call > rows {
			return spoiled["null"](answer)
		}
		return answer
	})
	if _, _, err := scores(o, from, out); !errors.Is(err, fault.ErrRunning) {
		t.Fatal(err)
	}
	other, loaded := o, o
	_, other.Server = scoredBefore(t, modeltest.Blank(t), "other")
	loaded.Server = nil
	for want, o := range map[string]Options{
		`cannot be resumed: rows were scored by model "actor" of the server, which now has "other": ask the same model, or give another --output`: other,
		"the teacher was behind a server, now it is loaded: give the same settings":                                                               loaded,
	} {
		if _, _, err := scores(o, from, out); !errors.Is(err, fault.ErrUsage) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
