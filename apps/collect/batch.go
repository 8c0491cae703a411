package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"gad/internal/endpoint"
)

// Requests by the batch API: at half the price and within a day. The journal records the state of a
// batch: "batch/0/file" when its requests are uploaded, "batch/0" when it is created,
// "batch/0/done" when its answers are in the journal.

// batchNote is a record of the journal about the state of a batch.
type batchNote struct {
	File     string `json:"file,omitempty"`
	ID       string `json:"id,omitempty"`
	Requests int    `json:"requests,omitempty"`
	Status   string `json:"status,omitempty"`
}

// batchKey returns the key of batch k's records in the journal.
func batchKey(k int) string { return fmt.Sprintf("batch/%d", k) }

// itemKey matches the keys that Collection.key returns.
var itemKey = regexp.MustCompile(`^[0-9a-f]{32}/[0-9]{1,9}$`)

// batches returns the number of batches in the journal, and the indices of the open ones.
func (c *Collection) batches() (n int, open []int) {
	for ; ; n++ {
		if _, ok := c.journal.Lookup(batchKey(n) + "/file"); !ok {
			return n, open
		}
		if _, ok := c.journal.Lookup(batchKey(n) + "/done"); !ok {
			open = append(open, n)
		}
	}
}

// OpenBatches returns the number of open batches: created, and their answers not in the journal.
func (c *Collection) OpenBatches() int {
	_, open := c.batches()
	return len(open)
}

// AskBatch waits for the open batches, then requests the missing answers by new batches and waits
// for these. poll is the time between two requests of a batch's state. It returns endpoint.Failures
// for rows that could not be answered.
func (c *Collection) AskBatch(ctx context.Context, client *endpoint.Client,
	poll time.Duration) error {
	failed := map[string]error{} // by key
	_, open := c.batches()
	if len(open) > 0 {
		if err := c.fetchAll(ctx, client, open, poll, failed); err != nil {
			return err
		}
	}
	if len(c.incompleteItems()) > 0 {
		made, err := c.beginBatches(ctx, client)
		if err == nil {
			err = c.fetchAll(ctx, client, made, poll, failed)
		}
		if err != nil {
			return err
		}
	}
	var failures endpoint.Failures
	for _, i := range c.incompleteItems() {
		err := failed[c.key(i, c.items[i].parts)]
		if err == nil {
			err = fmt.Errorf("collect: the batch has ended without all of its answers")
		}
		failures = append(failures, endpoint.Failed{Index: i, Tries: 1, Err: err})
	}
	if failures != nil {
		return failures
	}
	return nil
}

// beginBatches uploads the missing requests, creates batches of them and returns their indices.
func (c *Collection) beginBatches(ctx context.Context,
	client *endpoint.Client) (made []int, err error) {
	var file bytes.Buffer
	lines := 0
	next, _ := c.batches()
	flush := func() error {
		if lines == 0 {
			return nil
		}
		k := next
		next++
		id, err := client.Upload(ctx, file.Bytes())
		if err != nil {
			return err
		}
		if err := c.note("settings", c.o.Settings); err != nil {
			return err
		}
		if err := c.note(batchKey(k)+"/file", batchNote{File: id, Requests: lines}); err != nil {
			return err
		}
		made = append(made, k)
		file.Reset()
		lines = 0
		_, err = c.batchID(ctx, client, k)
		return err
	}
	for _, i := range c.incompleteItems() {
		r, err := c.request(i, c.o.N-c.items[i].have, c.items[i].got)
		if err != nil {
			return nil, err
		}
		line, err := endpoint.BatchLine(c.key(i, c.items[i].parts), r)
		if err != nil {
			return nil, err
		}
		if lines == endpoint.MaxBatchLines || file.Len()+len(line) > endpoint.MaxBatchBytes {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		file.Write(line)
		lines++
	}
	return made, flush()
}

// note appends a record to the journal.
func (c *Collection) note(key string, record any) error { return c.journal.Append(key, record) }

// batchID returns the id of batch k. It creates the batch if the journal has only its file.
func (c *Collection) batchID(ctx context.Context, client *endpoint.Client, k int) (string, error) {
	var file, batch batchNote
	if raw, ok := c.journal.Lookup(batchKey(k)); ok {
		err := json.Unmarshal(raw, &batch)
		return batch.ID, err
	}
	raw, _ := c.journal.Lookup(batchKey(k) + "/file")
	if err := json.Unmarshal(raw, &file); err != nil {
		return "", err
	}
	b, err := client.CreateBatch(ctx, file.File)
	if err != nil {
		return "", err
	}
	c.o.Say(fmt.Sprintf("batch %s: %d requests", b.ID, file.Requests))
	return b.ID, c.note(batchKey(k), batchNote{ID: b.ID})
}

// fetchAll polls batches until all have ended, and takes their answers. failed receives the errors
// of requests by key.
func (c *Collection) fetchAll(ctx context.Context, client *endpoint.Client, batches []int,
	poll time.Duration, failed map[string]error) error {
	ids := make([]string, len(batches))
	total := 0
	for n, k := range batches {
		var err error
		if ids[n], err = c.batchID(ctx, client, k); err != nil {
			return err
		}
		var file batchNote
		raw, _ := c.journal.Lookup(batchKey(k) + "/file")
		if err := json.Unmarshal(raw, &file); err != nil {
			return err
		}
		total += file.Requests
	}
	items := map[string]int{}
	for i := range c.items {
		items[c.key(i, c.items[i].parts)] = i
	}
	advance, done := c.o.Stages.Begin("batches, requests", total)
	defer done()
	shown := make([]int, len(batches))
	for left := len(batches); left > 0; {
		for n, k := range batches {
			if ids[n] == "" {
				continue
			}
			b, err := client.Batch(ctx, ids[n])
			if err != nil {
				return err
			}
			if now := b.Counts.Completed + b.Counts.Failed; now > shown[n] && now <= total {
				advance(now - shown[n])
				shown[n] = now
			}
			if !b.Over() {
				continue
			}
			if b.Status != endpoint.Completed {
				c.o.Say(fmt.Sprintf("batch %s: %s", ids[n], client.Reason(b)))
			}
			if err := c.fetch(ctx, client, b, items, failed); err != nil {
				return err
			}
			if err := c.note(batchKey(k)+"/done", batchNote{Status: b.Status}); err != nil {
				return err
			}
			ids[n] = ""
			left--
		}
		if left > 0 {
			t := time.NewTimer(poll)
			select {
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			case <-t.C:
			}
		}
	}
	return nil
}

// fetch puts the answers of a batch into the journal.
func (c *Collection) fetch(ctx context.Context, client *endpoint.Client, b endpoint.Batch,
	items map[string]int, failed map[string]error) error {
	for _, file := range []string{b.OutputFile, b.ErrorFile} {
		if file == "" {
			continue
		}
		err := client.Results(ctx, file, func(r endpoint.BatchResult) error {
			if !itemKey.MatchString(r.ID) {
				return nil // not a request of ours
			}
			if r.Answer == nil {
				failed[r.ID] = r.Err
				return nil
			}
			if _, ok := c.journal.Lookup(r.ID); ok {
				return nil // the line is repeated
			}
			a := &answer{Answer: *r.Answer, Batch: true}
			c.shorten(a)
			// the record that ends the batch syncs it
			if err := c.journal.Put(r.ID, a); err != nil {
				return err
			}
			if i, ok := items[r.ID]; ok {
				c.count(i, a, true)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
