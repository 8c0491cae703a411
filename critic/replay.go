package critic

import (
	"fmt"

	"gad/internal/philox"
	"gad/model"
)

// Buffer is a pool of past negatives (arXiv 2609.30864): the last Cap student
// sequences with their teachers'. Without old students among its opponents the
// discriminator forgets what it has learned to reject: at its optimum it is
// log p_teacher/p_N, where p_N is the mixture of students in its batches.
type Buffer struct {
	Cap   int
	Pairs []Pair // oldest first
}

// Pair is a student's sequence and the teacher's for the same prompt.
type Pair struct{ Student, Teacher model.Seq }

// Add appends the pairs of b without ties, and removes the oldest beyond Cap.
func (r *Buffer) Add(b Batch) {
	for s, seq := range b.Students {
		if !b.Skip[s] && !b.Tie(s) {
			r.Pairs = append(r.Pairs, Pair{seq, b.Teachers[b.Group[s]]})
		}
	}
	if n := len(r.Pairs) - r.Cap; n > 0 {
		r.Pairs = append([]Pair(nil), r.Pairs[n:]...)
	}
}

// replaced picks the prompts of lo to hi-1 whose pairs are replaced by the pool's: a share of
// them, rounded up or down at random so that the mean is exact. It is a function of seed, step
// and update, and picks none while the pool is empty.
func (r *Buffer) replaced(lo, hi int, share float64, seed uint64, step, update int) map[int]bool {
	if r == nil || len(r.Pairs) == 0 {
		return nil
	}
	// Draw uses the even numbers of an update, replaced the odd ones.
	key := func(i int) (uint64, uint64, uint64) {
		return uint64(step), uint64(update)<<1 | 1,
			uint64(i)
	}
	prompts := make([]int, 0, hi-lo)
	for p := lo; p < hi; p++ {
		prompts = append(prompts, p)
	}
	want := share * float64(hi-lo)
	n := int(want)
	a, b, c := key(0)
	if philox.Float64(seed, philox.Replay, a, b, c) < want-float64(n) {
		n++
	}
	give := map[int]bool{}
	for i := range n { // the first n of a shuffle
		a, b, c := key(i + 1)
		j := i + philox.IntN(len(prompts)-i, seed, philox.Replay, a, b, c)
		prompts[i], prompts[j] = prompts[j], prompts[i]
		give[prompts[i]] = true
	}
	return give
}

// Draw picks n pairs with replacement, none while the pool is empty. It is a function of
// seed, step and update.
func (r *Buffer) Draw(n int, seed uint64, step, update int) []Pair {
	if r == nil || len(r.Pairs) == 0 {
		return nil
	}
	out := make([]Pair, n)
	for i := range out {
		out[i] = r.Pairs[philox.IntN(len(r.Pairs), seed, philox.Replay, uint64(step),
			uint64(update)<<1, uint64(i))]
	}
	return out
}

// Flat is the buffer as integer lists, for a checkpoint: each pair's ids end to
// end, and four numbers a pair: lengths of the student's and the teacher's
// sequence and of their prompts.
func (r *Buffer) Flat() (ids, lens []int32) {
	for _, p := range r.Pairs {
		ids = append(append(ids, p.Student.IDs...), p.Teacher.IDs...)
		lens = append(lens, int32(len(p.Student.IDs)), int32(len(p.Teacher.IDs)),
			int32(p.Student.Prompt()), int32(p.Teacher.Prompt()))
	}
	return ids, lens
}

// SetFlat restores what Flat gave.
func (r *Buffer) SetFlat(ids, lens []int32) error {
	if len(lens)%4 != 0 {
		return fmt.Errorf("critic: pool of negatives: %d lengths: must be four per pair: the checkpoint is damaged", len(lens))
	}
	r.Pairs = nil
	take := func(n, prompt int32) (s model.Seq, ok bool) {
		if n < 0 || int(n) > len(ids) || prompt < 0 || prompt > n {
			return s, false
		}
		s = model.Answer(ids[:n:n], int(prompt))
		ids = ids[n:]
		return s, true
	}
	for i := 0; i < len(lens); i += 4 {
		stu, ok1 := take(lens[i], lens[i+2])
		tea, ok2 := take(lens[i+1], lens[i+3])
		if !ok1 || !ok2 {
			return fmt.Errorf("critic: pool of negatives: pair %d: lengths %v do not fit: the checkpoint is damaged", i/4, lens[i:i+4])
		}
		r.Pairs = append(r.Pairs, Pair{stu, tea})
	}
	if len(ids) != 0 {
		return fmt.Errorf("critic: pool of negatives: %d ids left over: the checkpoint is damaged",
			len(ids))
	}
	if n := len(r.Pairs) - r.Cap; n > 0 && r.Cap > 0 { // the pool of the earlier stage was larger
		r.Pairs = r.Pairs[n:]
	}
	return nil
}
