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

// Pair is a student's sequence and the teacher's sequence for the same prompt.
type Pair struct{ Student, Teacher model.Seq }

// Add appends the pairs of b without ties, and removes the oldest beyond Cap.
func (r *Buffer) Add(b Batch) {
	for s, seq := range b.Students {
		if !b.Skip[s] && !b.Tie(s) {
			// Flat keeps neither Seq.Shared nor Seq.Branching, and a run that was resumed must lay
			// the same packs.
			teacher := b.Teachers[b.Group[s]]
			seq.Shared, teacher.Shared, seq.Branching = 0, 0, false
			r.Pairs = append(r.Pairs, Pair{seq, teacher})
		}
	}
	if n := len(r.Pairs) - r.Cap; n > 0 {
		r.Pairs = append([]Pair(nil), r.Pairs[n:]...)
	}
}

// pickPooled picks the prompts of lo to hi-1 whose pairs are replaced by the pool's: a share of
// them, rounded up or down at random so that the mean is exact. It is a function of seed, step and
// update, and picks none while the pool is empty.
func (r *Buffer) pickPooled(lo, hi int, share float64, seed uint64, step, update int) map[int]bool {
	if r == nil || len(r.Pairs) == 0 {
		return nil
	}
	// Draw uses the even numbers of an update, pickPooled the odd ones.
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

// Flat encodes the buffer as integer lists, for a checkpoint: each pair's ids end to end, and four
// numbers a pair: the lengths of the student's and the teacher's sequence, and the lengths of their
// prompts. For a sequence that is not a prompt and one span to its end, the last number is ^n
// instead, with n the number of its spans, and the spans' ends follow the four numbers.
func (r *Buffer) Flat() (ids, lens []int32) {
	for _, p := range r.Pairs {
		ids = append(append(ids, p.Student.IDs...), p.Teacher.IDs...)
		four := []int32{int32(len(p.Student.IDs)), int32(len(p.Teacher.IDs))}
		var spans []int32
		for _, s := range []model.Seq{p.Student, p.Teacher} {
			if len(s.Spans) == 1 && s.Spans[0].To == len(s.IDs) {
				four = append(four, int32(s.Prompt()))
				continue
			}
			four = append(four, ^int32(len(s.Spans)))
			for _, x := range s.Spans {
				spans = append(spans, int32(x.From), int32(x.To))
			}
		}
		lens = append(append(lens, four...), spans...)
	}
	return ids, lens
}

// SetFlat restores the pairs that Flat encoded. It fails if the lists do not fit together.
func (r *Buffer) SetFlat(ids, lens []int32) error {
	r.Pairs = nil
	damaged := func(four []int32) error {
		return fmt.Errorf(
			"critic: pool of negatives: pair %d: lengths %v do not fit: the checkpoint is damaged",
			len(r.Pairs), four)
	}
	take := func(n, prompt int32) (s model.Seq, ok bool) {
		if n < 0 || int(n) > len(ids) || prompt > n {
			return s, false
		}
		s = model.Answer(ids[:n:n], int(max(prompt, 0)))
		ids = ids[n:]
		if prompt >= 0 {
			return s, true
		}
		s.Spans = nil
		if int(^prompt) > len(lens)/2 {
			return s, false
		}
		end := int32(0)
		for range ^prompt {
			from, to := lens[0], lens[1]
			if from < end || to <= from || to > n {
				return s, false
			}
			s.Spans, end, lens = append(s.Spans, model.Span{From: int(from), To: int(to)}), to,
				lens[2:]
		}
		return s, true
	}
	for len(lens) > 0 {
		four := lens[:min(4, len(lens))]
		if len(four) < 4 {
			return damaged(four)
		}
		lens = lens[4:]
		stu, ok1 := take(four[0], four[2])
		tea, ok2 := take(four[1], four[3])
		if !ok1 || !ok2 {
			return damaged(four)
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
