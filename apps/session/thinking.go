package session

import (
	"fmt"

	"gad/model"
	"gad/trainer/saved"
)

// Thinking is how a model writes its answers: in the chunks that were asked for, or, where asked is
// nil, in those in which the run that made it had it answer, which is said.
func (s *Session) Thinking(command, dir string, asked *model.Chunks) (model.Chunks, error) {
	if asked != nil {
		return *asked, nil
	}
	c, err := saved.Thought(s.FS, dir)
	if err == nil && c.On() {
		fmt.Fprintf(s.Err, "gad: note: %s: %s answers in up to %d chunks of %d tokens (carry %d, of which %d are the first), as in its run; --chunk 0 for one sequence\n",
			command, dir, c.Most, c.Size, c.Carry, c.Head)
	}
	return c, err
}
