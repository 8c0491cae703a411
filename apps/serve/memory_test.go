package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gad/internal/compute/cpu"
	"gad/model"
	"gad/tokenizer"
)

// A prompt that is too long for the memory is refused alone: requests before, beside and
// behind it are answered as ever.
func TestServeShortOfMemory(t *testing.T) {
	tok, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		t.Fatal(err)
	}
	// serves asks a server with so much memory one list of prompts after the other; those of a
	// list come together.
	serves := func(limit int64, lists ...[]int) (be model.Backend, status []int, said []string,
		texts []string) {
		t.Helper()
		be, err := cpu.New(cpu.Options{Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.New(be, shape(tok.Size()), model.Options{Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close(); be.Close() })
		var mu sync.Mutex
		s, err := New(m, tok, Options{Name: "small", Slots: 4, Context: 400, Loopback: true,
			Grace: time.Minute,
			Log:   func(line string) { mu.Lock(); said = append(said, line); mu.Unlock() }})
		if err != nil {
			t.Fatal(err)
		}
		at, err := Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(ctx, at) }()
		for _, list := range lists {
			from := len(status)
			status, texts =
				append(status, make([]int, len(list))...),
				append(texts, make([]string, len(list))...)
			var wg sync.WaitGroup
			for i, tokens := range list {
				wg.Go(func() {
					body, _ := json.Marshal(map[string]any{
						"prompt": slices.Repeat([]int{7}, tokens), "max_tokens": 20, "seed": 5})
					res, err := http.Post(fmt.Sprintf("http://%s/v1/completions", at.Addr()),
						"application/json", bytes.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					defer res.Body.Close()
					raw, _ := io.ReadAll(res.Body)
					var a struct {
						Choices []struct{ Text string }
						Error   struct{ Message, Type string }
					}
					if err := json.Unmarshal(raw, &a); err != nil {
						t.Errorf("%v: %s", err, raw)
					}
					status[from+i], texts[from+i] = res.StatusCode, a.Error.Message+a.Error.Type
					if len(a.Choices) == 1 {
						texts[from+i] = a.Choices[0].Text
					}
				})
			}
			wg.Wait()
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ends with %v", err)
		}
		return be, status, said, texts
	}
	const short, long = 30, 300
	enough, status, _, want := serves(0, []int{short})
	if status[0] != 200 || want[0] == "" {
		t.Fatalf("%v %q", status, want)
	}
	_, most := enough.Memory()
	_, status, said, texts := serves(most+1<<14, []int{short}, []int{long},
		[]int{short, long, short}, []int{short})
	if !slices.Equal(status, []int{200, 503, 200, 503, 200, 200}) {
		t.Errorf("%v\n%s", status, strings.Join(said, "\n"))
	}
	for i, text := range texts {
		w := want[0]
		if status[i] == 503 {
			w = "the server has too little memory for this request: shorten the promptserver_error"
		}
		if text != w {
			t.Errorf("request %d: %q, want %q", i, text, w)
		}
	}
	if all := strings.Join(said, "\n"); strings.Count(all,
		"a request with 300 tokens in a prompt has failed: model: cpu: ") != 2 ||
		!strings.Contains(all, "out of memory: beyond the limit") {
		t.Errorf("says\n%s", all)
	}
}
