package encode

import (
	"slices"
	"testing"

	"gad/data"
	"gad/model"
)

// Spans of an answer stand behind the prompt, and are cut where the answer is.
func TestLearned(t *testing.T) {
	spans := []data.Span{{From: 0, To: 3}, {From: 5, To: 8}}
	for n, want := range map[int][]model.Span{10: {{From: 4, To: 7}, {From: 9, To: 12}},
		6: {{From: 4, To: 7}, {From: 9, To: 10}}, 5: {{From: 4, To: 7}}, 2: {{From: 4, To: 6}}} {
		seq := model.Answer(make([]int32, 4+n), 4)
		if got := (Encoder{}).keepSpans(seq, spans); !slices.Equal(got.Spans, want) ||
			got.Prompt() != 4 {
			t.Errorf("cut at %d: %v, want %v", n, got.Spans, want)
		}
	}
	seq := model.Answer(make([]int32, 14), 4)
	if got := (Encoder{}).keepSpans(seq, nil); !slices.Equal(got.Spans, seq.Spans) {
		t.Errorf("without spans: %v", got.Spans)
	}
}
