package critic

import (
	"fmt"

	"gad/internal/philox"
	"gad/model"
)

// Buffer holds the last Cap student sequences with their teachers': an old
// student is a second opponent, without which the discriminator forgets what it
// has already learned to reject.
type Buffer struct {
	Cap   int
	Pairs []Pair // oldest first
}

// Pair is a student's sequence and the teacher's for the same prompt.
type Pair struct{ Student, Teacher model.Seq }

// Add appends the pairs of b and forgets the oldest.
func (r *Buffer) Add(b Batch) {
	for s, seq := range b.Students {
		if !b.Skip[s] {
			r.Pairs = append(r.Pairs, Pair{seq, b.Teachers[b.Group[s]]})
		}
	}
	if n := len(r.Pairs) - r.Cap; n > 0 {
		r.Pairs = append([]Pair(nil), r.Pairs[n:]...)
	}
}

// Draw picks n pairs with replacement, none while the buffer is empty: a
// function of seed, step and update alone.
func (r *Buffer) Draw(n int, seed uint64, step, update int) []Pair {
	if len(r.Pairs) == 0 {
		return nil
	}
	out := make([]Pair, n)
	for i := range out {
		out[i] = r.Pairs[philox.IntN(len(r.Pairs), seed, philox.Replay, uint64(step), uint64(update), uint64(i))]
	}
	return out
}

// Flat is the buffer as integer lists, for a checkpoint: each pair's ids end to
// end, and four numbers a pair: lengths of the student's and the teacher's
// sequence and of their prompts.
func (r *Buffer) Flat() (ids, lens []int32) {
	for _, p := range r.Pairs {
		ids = append(append(ids, p.Student.IDs...), p.Teacher.IDs...)
		lens = append(lens, int32(len(p.Student.IDs)), int32(len(p.Teacher.IDs)), int32(p.Student.Prompt), int32(p.Teacher.Prompt))
	}
	return ids, lens
}

// SetFlat restores what Flat gave.
func (r *Buffer) SetFlat(ids, lens []int32) error {
	if len(lens)%4 != 0 {
		return fmt.Errorf("critic: replay buffer: %d lengths: must be four a pair: the checkpoint is damaged", len(lens))
	}
	r.Pairs = nil
	take := func(n, prompt int32) (s model.Seq, ok bool) {
		if n < 0 || int(n) > len(ids) || prompt < 0 || prompt > n {
			return s, false
		}
		s = model.Seq{IDs: ids[:n:n], Prompt: int(prompt)}
		ids = ids[n:]
		return s, true
	}
	for i := 0; i < len(lens); i += 4 {
		stu, ok1 := take(lens[i], lens[i+2])
		tea, ok2 := take(lens[i+1], lens[i+3])
		if !ok1 || !ok2 {
			return fmt.Errorf("critic: replay buffer: pair %d: lengths %v do not fit: the checkpoint is damaged", i/4, lens[i:i+4])
		}
		r.Pairs = append(r.Pairs, Pair{stu, tea})
	}
	if len(ids) != 0 {
		return fmt.Errorf("critic: replay buffer: %d ids left over: the checkpoint is damaged", len(ids))
	}
	return nil
}
