package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
)

// Missing returns, in words, the first reason why a model trained with u cannot use t's token ids,
// "" if it can: a token of t that u lacks or spells differently, or another end of answers. u may
// have more tokens. The way in which texts are cut into tokens is not compared: the model gets ids.
func (t *Tokenizer) Missing(u *Tokenizer) string {
	for id, piece := range t.pieces {
		switch {
		case piece == nil: // no such token
		case id >= len(u.pieces):
			return fmt.Sprintf("has %d tokens, and the student's has %d", len(u.pieces),
				len(t.pieces))
		case !bytes.Equal(piece, u.pieces[id]):
			return fmt.Sprintf("token %d is %q, and the student's is %q", id, u.pieces[id], piece)
		case t.special[int32(id)] != u.special[int32(id)]:
			return fmt.Sprintf("token %d, %q, is a control token in one of them only", id, piece)
		}
	}
	for _, a := range t.added {
		i := slices.IndexFunc(u.added, func(b *addedToken) bool { return a.Content == b.Content })
		if i < 0 || u.added[i].ID != a.ID {
			return fmt.Sprintf("added token %q (id %d of the student's) is missing", a.Content,
				a.ID)
		}
	}
	if t.endOfTurn != u.endOfTurn {
		return fmt.Sprintf("an answer ends with token %d, %q, and the student's with %d, %q",
			u.endOfTurn, u.pieces[u.endOfTurn], t.endOfTurn, t.pieces[t.endOfTurn])
	}
	return ""
}
