package critic

import (
	"slices"

	"gad/model"
)

// Ending is the one way in which a sequence ends before the discriminator sees
// it, for the teacher's and the student's path alike. The score is read at the
// last token, so a difference in endings (no EOS, another EOS, a newline of the
// chat template) would be all that the discriminator learns.
type Ending struct {
	EOS  []int32 // every id that ends an answer
	Turn int32   // the one that a scored sequence ends with
}

// Seq is prompt and response as the discriminator reads them: whatever ids of
// EOS the response ends with are replaced by one Turn; a truncated response
// (cut at the limit, no EOS of its own) stays without.
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
