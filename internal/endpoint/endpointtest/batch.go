package endpointtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// BatchRules set the behaviour of the server's batch API.
type BatchRules struct {
	Looks  int                      // requests for a batch's state until it is over
	Refuse func(prompt string) bool // requests that fail
	// status of a batch that is over; "" is completed. Any other leaves every second request undone
	End       string
	LoseReply int    // times that a batch is created and the connection cut
	CutFile   int    // times that a download is cut
	Twice     bool   // every line of the output comes twice
	One       bool   // a request gets one answer, whatever its n
	Page      int    // batches in a page of their list; 0 is 1
	Others    int    // batches of other clients, created after one whose reply is lost
	Foreign   string // more lines in the output
}

type file struct {
	name    string
	content []byte
}

type batch struct {
	id, input, output, errors string
	looks, total, done, bad   int
	status                    string
}

// Batches returns the number of batches created.
func (s *Server) Batches() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.batches)
}

func (s *Server) batchRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/files", s.upload)
	mux.HandleFunc("GET /v1/files/{id}/content", s.download)
	mux.HandleFunc("POST /v1/batches", s.createBatch)
	mux.HandleFunc("GET /v1/batches", s.listBatches)
	mux.HandleFunc("GET /v1/batches/{id}", s.lookAtBatch)
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	f, head, err := r.FormFile("file")
	if err != nil || r.FormValue("purpose") != "batch" {
		Fail(w, 400, "invalid_file", "no file for a batch")
		return
	}
	content, err := io.ReadAll(f)
	if err != nil {
		Fail(w, 400, "invalid_file", "half a file")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, map[string]any{"id": s.store(head.Filename, content), "object": "file"})
}

// store adds a file and returns its id. The caller holds mu.
func (s *Server) store(name string, content []byte) string {
	id := fmt.Sprintf("file-%d", len(s.files))
	s.files[id] = &file{name, content}
	return id
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	s.mu.Lock()
	f := s.files[r.PathValue("id")]
	cut := s.Batch.CutFile > 0
	if cut {
		s.Batch.CutFile--
	}
	s.mu.Unlock()
	if f == nil {
		Fail(w, 404, "not_found", "no such file")
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(f.content)))
	if cut {
		w.Write(f.content[:len(f.content)/2])
		panic(http.ErrAbortHandler)
	}
	w.Write(f.content)
}

func (s *Server) createBatch(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	var q struct {
		Input    string `json:"input_file_id"`
		Endpoint string
		Window   string `json:"completion_window"`
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || q.Endpoint != "/v1/chat/completions" ||
		q.Window != "24h" {
		Fail(w, 400, "invalid_request", "no batch")
		return
	}
	s.mu.Lock()
	f := s.files[q.Input]
	if f == nil {
		s.mu.Unlock()
		Fail(w, 404, "not_found", "no such file")
		return
	}
	b := &batch{id: fmt.Sprintf("batch_%d", len(s.batches)), input: q.Input, status: "validating",
		total: bytes.Count(f.content, []byte("\n"))}
	s.batches[b.id] = b
	lose := s.Batch.LoseReply > 0
	if lose {
		s.Batch.LoseReply--
		for range s.Batch.Others {
			other := &batch{id: fmt.Sprintf("batch_%d", len(s.batches)), input: "file-other",
				status: "completed"}
			s.batches[other.id] = other
		}
	}
	s.mu.Unlock()
	if lose {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, b.json())
}

func (s *Server) listBatches(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id := range s.batches {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int { // the newest first
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(b, a))
	})
	if after := r.URL.Query().Get("after"); after != "" {
		ids = ids[slices.Index(ids, after)+1:]
	}
	var list []any
	page := max(1, s.Batch.Page)
	more := len(ids) > page
	for _, id := range ids[:min(page, len(ids))] {
		list = append(list, s.batches[id].json())
	}
	answer(w, map[string]any{"object": "list", "data": list, "has_more": more})
}

func (s *Server) lookAtBatch(w http.ResponseWriter, r *http.Request) {
	if !s.allowed(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.batches[r.PathValue("id")]
	if b == nil {
		Fail(w, 404, "not_found", "no such batch")
		return
	}
	if b.looks++; b.looks > s.Batch.Looks && b.output == "" {
		s.finish(b)
	} else if b.output == "" {
		b.status = "in_progress"
	}
	answer(w, b.json())
}

// finish writes a batch's output and error files. The caller holds mu.
func (s *Server) finish(b *batch) {
	var out, bad []string
	for n, line := range strings.Split(strings.TrimSuffix(string(s.files[b.input].content), "\n"),
		"\n") {
		var q struct {
			ID   string `json:"custom_id"`
			Body struct {
				Model    string
				Messages []struct{ Role, Content string }
				N        int
				Max      int  `json:"max_tokens"`
				Logprobs bool `json:"logprobs"`
			}
		}
		if json.Unmarshal([]byte(line), &q) != nil || len(q.Body.Messages) == 0 {
			bad = append(bad, `{"custom_id":"?","error":{"code":"invalid","message":"no request"}}`)
			continue
		}
		c := Call{Prompt: q.Body.Messages[len(q.Body.Messages)-1].Content,
			Messages: q.Body.Messages, Model: q.Body.Model, N: max(1, q.Body.N), Max: q.Body.Max,
			Raw: map[string]any{"logprobs": q.Body.Logprobs}}
		switch {
		case s.Batch.End != "" && n%2 == 1:
			bad = append(bad, fmt.Sprintf(`{"custom_id":%q,"response":null,"error":{"code":"batch_%s","message":"not done in time"}}`, q.ID, s.Batch.End))
		case s.Batch.Refuse != nil && s.Batch.Refuse(c.Prompt):
			bad = append(bad, fmt.Sprintf(`{"custom_id":%q,"response":{"status_code":400,"body":{"error":{"message":"not this","code":"refused"}}},"error":null}`, q.ID))
		default:
			if s.Batch.One {
				c.N = 1
			}
			body, _ := s.completion(&c)
			out = append(out, fmt.Sprintf(`{"id":"r","custom_id":%q,"response":{"status_code":200,"body":%s},"error":null}`, q.ID, body))
			s.answered[c.Prompt]++
		}
	}
	slices.Reverse(out) // in no order
	text := strings.Join(out, "\n") + "\n"
	if s.Batch.Twice {
		text += text
	}
	b.output = s.store("output", []byte(text+s.Batch.Foreign))
	b.errors = s.store("errors", []byte(strings.Join(bad, "\n")))
	b.done, b.bad, b.status = len(out), len(bad), "completed"
	if s.Batch.End != "" {
		b.status = s.Batch.End
	}
}

func (b *batch) json() map[string]any {
	return map[string]any{"id": b.id, "object": "batch", "status": b.status,
		"input_file_id": b.input, "output_file_id": b.output, "error_file_id": b.errors,
		"request_counts": map[string]int{"total": b.total, "completed": b.done, "failed": b.bad}}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}
