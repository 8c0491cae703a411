package session

import (
	"fmt"

	"gad/internal/fault"
	"gad/model"
	"gad/trainer/saved"
)

// Thinking is how a model writes its answers: in the chunks that were asked for, or, where asked is
// nil, in those in which the run that made it had it answer, which is said.
func (s *Session) Thinking(command, dir string, asked *model.Chunks) (model.Chunks, error) {
	if asked != nil {
		return *asked, nil
	}
	c, err := saved.ChunksOf(s.FS, dir)
	if err == nil && c.On() {
		fmt.Fprintf(s.Err, "gad: note: %s: %s answers in up to %d chunks of %d tokens (carry %d, of which %d are the first), as in its run; --chunk 0 for one sequence\n",
			command, dir, c.Most, c.Size, c.Carry, c.Head)
	}
	return c, err
}

// Continues refuses chunks under a chat template whose answers cannot be gone on with.
func Continues(command string, m *Model, c model.Chunks) error {
	if !c.On() {
		return nil
	}
	if err := m.Tokenizer.Continues(); err != nil {
		return fault.Usagef("%s: --chunk %d: %v: a later chunk would not have it: give --chunk 0",
			command, c.Size, err)
	}
	return nil
}
