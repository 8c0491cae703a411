package endpoint_test

import (
	"context"
	"testing"

	"gad/internal/endpoint"
	"gad/internal/endpoint/endpointtest"
)

// A batch whose creation was not answered is found among others, behind several pages of them, and
// is not paid twice.
func TestBatchBehindPages(t *testing.T) {
	t.Parallel() // it waits before it asks again
	const others = 25
	for _, page := range []int{3, 100} {
		s, err := endpointtest.Start(&endpointtest.Server{
			Batch: endpointtest.BatchRules{LoseReply: 1, Others: others, Page: page}})
		if err != nil {
			t.Fatal(err)
		}
		client, err := endpoint.New(endpoint.Options{BaseURL: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		file, err := client.Upload(context.Background(), []byte("{}\n"))
		if err != nil {
			t.Fatal(err)
		}
		b, err := client.CreateBatch(context.Background(), file)
		if err != nil || b.InputFile != file {
			t.Errorf("pages of %d: %+v, %v", page, b, err)
		}
		if n := s.Batches(); n != others+1 {
			t.Errorf("pages of %d: %d batches were created, want 1", page, n-others)
		}
		s.Close()
	}
}
