package session

import (
	"fmt"

	"gad/internal/fault"
	"gad/model"
	"gad/trainer/saved"
)

// AnswerChunks returns the chunks in which a model answers: asked, or, if nil, the chunk settings
// of the run that trained the model, with a note on Err.
func (s *Session) AnswerChunks(command, dir string, asked *model.Chunks) (model.Chunks, error) {
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

// CheckChunks refuses chunks under a chat template whose answers cannot be continued.
func CheckChunks(command string, m *Model, c model.Chunks) error {
	if !c.On() {
		return nil
	}
	if err := m.Tokenizer.Continues(); err != nil {
		return fault.Usagef("%s: --chunk %d: %v: a later chunk would not have it: give --chunk 0",
			command, c.Size, err)
	}
	return nil
}
