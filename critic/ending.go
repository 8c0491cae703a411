package critic

import (
	"slices"

	"gad/model"
)

// Ending is the one way in which a sequence ends before the discriminator sees it, for the
// teacher's and the student's path alike. The score is read at the last token, so a difference in
// endings (no EOS, another EOS, a newline of the chat template) would be all that the discriminator
// learns.
type Ending struct {
	EOS  []int32 // every id that ends an answer
	Turn int32   // the id that ends a scored sequence
}

// Seq returns prompt and response as the discriminator reads them. All ids of EOS at the response's
// end are replaced by one Turn; a truncated response (cut at the limit, no EOS of its own) stays
// without an end.
func (e Ending) Seq(prompt, response []int32, truncated bool) model.Seq {
	n := len(response)
	for n > 0 && slices.Contains(e.EOS, response[n-1]) {
		n--
	}
	ids := make([]int32, 0, len(prompt)+n+1)
	ids = append(append(ids, prompt...), response[:n]...)
	if !truncated {
		ids = append(ids, e.Turn)
	}
	return model.Answer(ids, len(prompt))
}

// Turns returns the conversation s with each of its turns (spans) ended as Seq ends an answer.
// Tokens between the turns stay as they are. open reports that the last turn was cut and has no
// end. An earlier turn that was cut has the end that the chat template put after it, in the
// context.
func (e Ending) Turns(s model.Seq, open bool) model.Seq {
	out := model.Seq{IDs: make([]int32, 0, len(s.IDs)+1)}
	at := 0
	for i, p := range s.Spans {
		turn, last := s.IDs[p.From:p.To], i == len(s.Spans)-1
		n := len(turn)
		for n > 0 && slices.Contains(e.EOS, turn[n-1]) {
			n--
		}
		out.IDs = append(out.IDs, s.IDs[at:p.From]...)
		from := len(out.IDs)
		if out.IDs = append(out.IDs, turn[:n]...); n < len(turn) || last && !open {
			out.IDs = append(out.IDs, e.Turn)
		}
		out.Spans = append(out.Spans, model.Span{From: from, To: len(out.IDs)})
		at = p.To
	}
	return out
}
