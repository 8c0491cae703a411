package endpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// BatchLine returns a request as a line of a batch's input file; id names its answer in the output.
func BatchLine(id string, r Request) ([]byte, error) {
	body, err := r.body()
	if err != nil {
		return nil, fmt.Errorf("endpoint: request: %w", err)
	}
	line, err := json.Marshal(struct {
		ID     string          `json:"custom_id"`
		Method string          `json:"method"`
		URL    string          `json:"url"`
		Body   json.RawMessage `json:"body"`
	}{id, http.MethodPost, "/v1/chat/completions", body})
	return append(line, '\n'), err
}

// Limits of a batch, by OpenAI's rules.
const (
	MaxBatchLines = 50000
	MaxBatchBytes = 190 << 20
)

// Batch is the state of a batch on the server.
type Batch struct {
	ID         string
	Status     string
	InputFile  string `json:"input_file_id"`
	OutputFile string `json:"output_file_id"` // answers
	ErrorFile  string `json:"error_file_id"`  // requests that failed
	Counts     struct {
		Total, Completed, Failed int
	} `json:"request_counts"`
	Errors struct {
		Data []struct{ Code, Message string }
	}
}

// Over reports whether the batch has ended: no more answers will come.
func (b Batch) Over() bool {
	return slices.Contains([]string{Completed, "failed", "expired", "cancelled", "canceled"},
		b.Status)
}

// Completed is the status of a batch whose answers are all there.
const Completed = "completed"

// Reason returns the server's message about a batch that has failed.
func (c *Client) Reason(b Batch) string {
	if len(b.Errors.Data) == 0 {
		return b.Status
	}
	return c.clean(b.Status + ": " + b.Errors.Data[0].Code + ": " + b.Errors.Data[0].Message)
}

// maxObject bounds the description of a file or a batch.
const maxObject = 4 << 20

// Upload sends the input file of a batch and returns its id on the server.
func (c *Client) Upload(ctx context.Context, lines []byte) (file string, err error) {
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	_ = form.WriteField("purpose", "batch") // into memory
	part, err := form.CreateFormFile("file", "requests.jsonl")
	if err == nil {
		_, err = part.Write(lines)
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		return "", fmt.Errorf("endpoint: upload: %w", err)
	}
	var out struct{ ID string }
	err = c.retry(ctx, func() error {
		return c.object(ctx, http.MethodPost, "/files", form.FormDataContentType(), b.Bytes(), &out)
	})
	if err == nil && out.ID == "" {
		err = c.failure(fatal, http.StatusOK, "",
			"the uploaded file has no id: this endpoint has no batches")
	}
	return out.ID, err
}

// CreateBatch creates a batch of an uploaded file, unless the server has one of that file: a
// program that was killed, or a connection that was cut, between the request and its reply does not
// pay twice.
func (c *Client) CreateBatch(ctx context.Context, file string) (b Batch, err error) {
	body, err := json.Marshal(
		map[string]string{"input_file_id": file, "endpoint": "/v1/chat/completions",
			"completion_window": "24h"})
	if err != nil {
		return b, err
	}
	err = c.retry(ctx, func() error {
		if b, err = c.findBatch(ctx, file); err != nil || b.ID != "" {
			return err
		}
		return c.object(ctx, http.MethodPost, "/batches", "application/json", body, &b)
	})
	if err == nil && b.ID == "" {
		err = c.failure(fatal, http.StatusOK, "",
			"the batch has no id: this endpoint has no batches")
	}
	return b, err
}

// findBatch returns the batch of an input file, among the newest 2,000; its ID is "" if no batch
// has that file.
func (c *Client) findBatch(ctx context.Context, file string) (Batch, error) {
	after := ""
	for range 20 { // pages of 100, the newest first
		var list struct {
			Data    []Batch
			HasMore bool `json:"has_more"`
		}
		if err := c.object(ctx, http.MethodGet, "/batches?limit=100"+after, "", nil,
			&list); err != nil {
			return Batch{}, err
		}
		for _, b := range list.Data {
			if b.InputFile == file {
				return b, nil
			}
		}
		if !list.HasMore || len(list.Data) == 0 {
			break
		}
		after = "&after=" + url.QueryEscape(list.Data[len(list.Data)-1].ID)
	}
	return Batch{}, nil
}

// Batch returns the current state of a batch.
func (c *Client) Batch(ctx context.Context, id string) (b Batch, err error) {
	err = c.retry(ctx, func() error {
		b = Batch{}
		return c.object(ctx, http.MethodGet, "/batches/"+url.PathEscape(id), "", nil, &b)
	})
	b.Status = strings.ToLower(b.Status) // Together writes COMPLETED
	return b, err
}

// BatchResult is a line of a batch's output: an answer, or the error in its place.
type BatchResult struct {
	ID     string
	Answer *Answer
	Err    error
}

// Results calls f for each line of a batch's output or error file. It reads the file anew after a
// cut connection: f may get a line twice. An error of f ends it.
func (c *Client) Results(ctx context.Context, file string, f func(BatchResult) error) error {
	var stopped error
	err := c.retry(ctx, func() error {
		return c.lines(ctx, "/files/"+url.PathEscape(file)+"/content", func(line []byte) error {
			stopped = f(c.result(line))
			return stopped
		})
	})
	if stopped != nil {
		return stopped
	}
	return err
}

// result parses a line of an output or error file.
func (c *Client) result(line []byte) BatchResult {
	var l struct {
		ID       string `json:"custom_id"`
		Response *struct {
			Status int `json:"status_code"`
			Body   json.RawMessage
		}
		Error *struct{ Code, Message string }
	}
	if err := json.Unmarshal(line, &l); err != nil || l.ID == "" {
		return BatchResult{Err: c.failure(refused, 0, "",
			"a line of the batch cannot be read: "+c.clean(fmt.Sprint(err)))}
	}
	r := BatchResult{ID: l.ID}
	switch {
	case l.Error != nil && (l.Error.Code != "" || l.Error.Message != ""):
		r.Err = c.failure(refused, 0, c.clean(l.Error.Code), c.clean(l.Error.Message))
	case l.Response == nil:
		r.Err = c.failure(refused, 0, "", "neither an answer nor an error in the batch")
	case l.Response.Status != http.StatusOK:
		e := c.statusError(&http.Response{StatusCode: l.Response.Status, Header: http.Header{}},
			l.Response.Body)
		e.kind = refused
		r.Err = e
	default:
		a, err := ParseAnswer(l.Response.Body)
		if err != nil {
			r.Err = c.failure(refused, http.StatusOK, "", c.clean(err.Error()))
		}
		r.Answer = a
	}
	return r
}

// retry calls do until it succeeds, its error is not transient, or the tries are used up.
func (c *Client) retry(ctx context.Context, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if err == nil || ctx.Err() != nil || !Transient(err) {
			return first(ctx.Err(), err)
		}
		if try >= c.o.Retries {
			return fmt.Errorf("%w: given up after %d tries", final{err}, try+1)
		}
		if err := sleep(ctx, max(backoff(try), serverWait(err))); err != nil {
			return err
		}
	}
}

// first returns a unless it is nil, else b.
func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// serverWait returns the pause that the server asks for in err; 0 for none.
func serverWait(err error) time.Duration {
	if e, ok := err.(*Error); ok {
		return e.Wait
	}
	return 0
}

// object makes one call and decodes its JSON answer into out.
func (c *Client) object(ctx context.Context, method, path, contentType string, body []byte,
	out any) error {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	resp, err := c.send(ctx, method, path, contentType, r, maxObject)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(resp.body, out); err != nil {
		return c.failure(transient, http.StatusOK, "",
			c.clean("not what the batch API answers: "+err.Error()))
	}
	return nil
}

// lines calls f for each line of a file of JSON lines on the server. A line is bounded as an answer
// is.
func (c *Client) lines(ctx context.Context, path string, f func(line []byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	resp, err := c.open(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// the server's message, as far as it can be read
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxObject))
		return c.statusError(resp, raw)
	}
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, maxAnswer)
	for scan.Scan() {
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		if err := f(scan.Bytes()); err != nil {
			return err
		}
	}
	if err := scan.Err(); err != nil {
		return c.connectionError(ctx, err)
	}
	return nil
}
