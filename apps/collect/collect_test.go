package collect

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/data"
	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/env"
	"gad/internal/hostile"
	"gad/internal/journal"
	"gad/internal/vfs"
	"gad/internal/vfs/vfstest"
)

// TestMain makes the test binary an environment where COUNTS or CALCULATOR is set.
func TestMain(m *testing.M) {
	if os.Getenv("CALCULATOR") != "" {
		if err := calculator.Serve(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	if os.Getenv("COUNTS") == "" {
		os.Exit(hostile.Main(m))
	}
	if err := env.Serve(os.Stdin, os.Stdout, "counts", 8,
		func() env.Episode { return &counts{} }); err != nil {
		panic(err)
	}
}

// counts is an environment of three turns.
type counts struct{ turns int }

func (c *counts) Reset(context.Context, uint64, env.Row) (env.Reply, error) {
	return env.Reply{Append: []env.Message{}, Valid: true}, nil
}

func (c *counts) Step(context.Context, env.Turn) (env.Reply, error) {
	c.turns++
	return env.Reply{Append: []env.Message{{Role: "user", Content: fmt.Sprint("turn ", c.turns)}},
		Valid: true, Done: c.turns == 3}, nil
}

func (c *counts) Close() {}

// prompts is a set of n rows, p0 to the last.
func prompts(t *testing.T, n int) *data.Set {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"content\":\"p%d\"}\n", i)
	}
	path := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
	set, err := data.Open(path, data.DefaultColumns())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

// started starts a server of the test.
func started(t *testing.T, s *endpointtest.Server) *endpoint.Client {
	t.Helper()
	if _, err := endpointtest.Start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client, err := endpoint.New(endpoint.Options{BaseURL: s.URL, Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// An answer that was paid for survives a loss of power from the moment on at which the next one is
// asked for, and at the end all do: of plain answers, of a teacher's turns in an environment, of
// batches.
func TestPaidAnswersSurviveLossOfPower(t *testing.T) {
	const rows = 3
	for _, c := range []struct {
		name  string
		want  int // answers
		whole bool
		ask   func(c *Collection, client *endpoint.Client) error
	}{
		{"answers", 2 * rows, false, func(c *Collection, client *endpoint.Client) error {
			return c.Ask(context.Background(), client)
		}},
		{"episodes", 2 * 3 * rows, false, func(c *Collection, client *endpoint.Client) error {
			pool, err := env.Open(context.Background(), env.Options{Command: `COUNTS=yes "$GAD"`,
				Workers: 1, Timeout: time.Minute})
			if err != nil {
				return err
			}
			defer pool.Close()
			return c.AskEpisodes(context.Background(), client, pool)
		}},
		{"batches", 2 * rows, true, func(c *Collection, client *endpoint.Client) error {
			return c.AskBatch(context.Background(), client, time.Millisecond)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := vfstest.NewCrash()
			// kept is the answers that a loss of power would leave now.
			kept := func() (n int) {
				j, err := journal.Open("/rows.jsonl.journal",
					journal.Options{FS: fsys.CrashClone(0, 1)})
				if err != nil {
					t.Error(err)
					return -1
				}
				for _, record := range j.All() {
					n += strings.Count(string(record), `"finish_reason":"stop"`)
				}
				return n
			}
			var mu sync.Mutex
			answered := 0 // choices, before a call
			s := &endpointtest.Server{Misbehave: func(call endpointtest.Call,
				_ http.ResponseWriter, _ *http.Request) bool {
				mu.Lock()
				defer mu.Unlock()
				if got := kept(); got != answered {
					t.Errorf("call %d: %d answers would survive, %d were given", call.Number, got,
						answered)
				}
				answered += call.N
				return false
			}}
			client := started(t, s)
			o := Options{FS: fsys, Set: prompts(t, rows), Rows: rows, N: 2, Output: "/rows.jsonl",
				Settings: Settings{Model: "m"}}
			if c.name == "episodes" {
				o.Env = &Env{MaxTurns: 9}
			}
			collection, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.ask(collection, client); err != nil {
				t.Fatal(err)
			}
			if got := kept(); got != c.want || !c.whole && answered != c.want {
				t.Errorf("at the end %d answers would survive, %d were given, want %d", got,
					answered, c.want)
			}
			if err := collection.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A line of a batch's output that comes twice counts once: in what was paid, and in what is there,
// where the endpoint gives one answer to a request for two.
func TestLinesThatComeTwice(t *testing.T) {
	s := &endpointtest.Server{Batch: endpointtest.BatchRules{Twice: true, One: true}}
	client := started(t, s)
	c, err := Open(Options{FS: vfs.OS, Set: prompts(t, 3), Rows: 3, N: 2,
		Output: filepath.Join(t.TempDir(), "rows.jsonl"), Settings: Settings{Model: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for round := 1; round <= 2; round++ {
		err := c.AskBatch(context.Background(), client, time.Millisecond)
		if missing := len(c.incompleteItems()); c.spent.requests != 3*round ||
			c.total.requests != 3*round ||
			c.spent.answers != 3*round || missing != 3*(2-round) || (err == nil) != (round == 2) {
			t.Errorf("batch %d: %d requests and %d answers paid, %d rows miss answers, %v", round,
				c.spent.requests, c.spent.answers, missing, err)
		}
	}
	if n := s.Batches(); n != 2 {
		t.Errorf("%d batches, want 2", n)
	}
}
