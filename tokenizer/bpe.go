package tokenizer

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync/atomic"
)

// bpe is a byte-level byte-pair encoder (Sennrich et al., arXiv 1508.07909,
// over bytes): the pair with the lowest rank is joined first, the leftmost of
// equals, until no pair is in the table.
type bpe struct {
	byteID       [256]int32       // id of each single byte; -1: none
	gaps         bool             // some single byte has no id
	unk          int32            // id of what has none; -1: such text is left out
	fuseUnk      bool             // one unk for all that follow each other
	fallback     *[256]int32      // ids of <0x00> to <0xFF>, -1: none; nil: not used
	words        map[string]int32 // raw bytes -> id, for ignoreMerges
	merges       map[uint64]merge // left<<32 | right
	ignoreMerges bool             // a word in the vocabulary is its own token
	cache        *wordCache
}

type merge struct{ rank, id int32 }

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

const (
	cacheWords    = 1 << 16 // entries of the cache
	cacheWordLen  = 64      // bytes of the longest cached word, so the cache is some MB at most
	shortMergeLen = 64      // bytes up to which scanning beats the heap
)

// wordCache maps words to their ids. A word has two places, and a new one takes that of
// the older: memory is bounded, nothing is ever dropped at once, and reading takes no lock.
type wordCache struct {
	seed  maphash.Seed
	slots [cacheWords]atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() *wordCache { return &wordCache{seed: maphash.MakeSeed()} }

// word appends the ids of one pre-token.
func (b *bpe) word(w string, ids []int32) []int32 {
	if len(w) == 1 && b.byteID[w[0]] >= 0 {
		return append(ids, b.byteID[w[0]])
	}
	if b.ignoreMerges {
		if id, ok := b.words[w]; ok {
			return append(ids, id)
		}
	}
	if len(w) > cacheWordLen {
		return b.mergeLong(b.symbols(w, make([]int32, 0, len(w))), ids)
	}
	at := maphash.String(b.cache.seed, w) % cacheWords
	newer, older := &b.cache.slots[at], &b.cache.slots[at^1]
	for _, slot := range [2]*atomic.Pointer[cachedWord]{newer, older} {
		if c := slot.Load(); c != nil && c.word == w {
			return append(ids, c.ids...)
		}
	}
	n0 := len(ids)
	ids = b.mergeShort(w, ids)
	older.Store(newer.Load())
	// Clone: w is a slice of the whole text, which the cache must not hold on to.
	newer.Store(&cachedWord{strings.Clone(w), slices.Clone(ids[n0:])})
	return ids
}

// symbols appends the ids of the single bytes of w. A byte without an id is the bytes of
// its letter in the byte alphabet where all of those have ids (byte_fallback), else unk,
// else nothing. As in the reference an unk waits for the next known byte or the end, so
// that letters by byte_fallback come before it.
func (b *bpe) symbols(w string, sym []int32) []int32 {
	waiting := false
	for i := range len(w) {
		id := b.byteID[w[i]]
		if id < 0 {
			if all, ok := b.fallBack(sym, string(byteToRune[w[i]])); ok {
				sym = all
			} else if b.unk >= 0 {
				if waiting && !b.fuseUnk {
					sym = append(sym, b.unk)
				}
				waiting = true
			}
			continue
		}
		if waiting {
			sym, waiting = append(sym, b.unk), false
		}
		sym = append(sym, id)
	}
	if waiting {
		sym = append(sym, b.unk)
	}
	return sym
}

// fallBack appends the ids of the bytes of char, if all of them have one.
func (b *bpe) fallBack(sym []int32, char string) (all []int32, ok bool) {
	if b.fallback == nil {
		return nil, false
	}
	for i := range len(char) {
		id := b.fallback[char[i]]
		if id < 0 {
			return nil, false
		}
		sym = append(sym, id)
	}
	return sym, true
}

// mergeShort joins pairs by scanning for the lowest rank, with no allocation, for words
// of at most shortMergeLen bytes. Each pair is looked up once, when it comes about.
func (b *bpe) mergeShort(w string, ids []int32) []int32 {
	var symbols [shortMergeLen]int32
	var joins [shortMergeLen]merge // of symbols i and i+1
	sym := symbols[:len(w)]
	if b.gaps {
		if sym = b.symbols(w, symbols[:0]); len(sym) > shortMergeLen {
			return b.mergeLong(sym, ids)
		}
	} else {
		for i := range sym {
			sym[i] = b.byteID[w[i]]
		}
	}
	join := joins[:max(len(sym)-1, 0)]
	for i := range join {
		join[i] = b.join(sym[i], sym[i+1])
	}
	for len(join) > 0 {
		at := 0
		for i := range join {
			if join[i].rank < join[at].rank {
				at = i
			}
		}
		if join[at].rank == noMerge {
			break
		}
		sym[at] = join[at].id
		sym = append(sym[:at+1], sym[at+2:]...)
		join = append(join[:at], join[at+1:]...)
		if at > 0 {
			join[at-1] = b.join(sym[at-1], sym[at])
		}
		if at < len(join) {
			join[at] = b.join(sym[at], sym[at+1])
		}
	}
	return append(ids, sym...)
}

// noMerge is the rank of a pair that is not in the table.
const noMerge = math.MaxInt32

func (b *bpe) join(left, right int32) merge {
	if m, ok := b.merges[pairKey(left, right)]; ok {
		return m
	}
	return merge{rank: noMerge}
}

// candidate is a pair that could be joined: by rank, then by position.
type candidate struct{ rank, pos, id, left, right int32 }

func (a candidate) before(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.pos < b.pos
}

// mergeLong gives what mergeShort would, over a linked list and a heap: O(n log n), so
// that one word of a megabyte does not stop a run. It changes sym.
func (b *bpe) mergeLong(sym, ids []int32) []int32 {
	n := int32(len(sym))
	prev, next := make([]int32, n), make([]int32, n)
	for i := range sym {
		prev[i], next[i] = int32(i-1), int32(i+1)
	}
	h := make([]candidate, 0, n)
	push := func(i int32) {
		if i < 0 || next[i] >= n {
			return
		}
		left, right := sym[i], sym[next[i]]
		m, ok := b.merges[pairKey(left, right)]
		if !ok {
			return
		}
		h = append(h, candidate{m.rank, i, m.id, left, right})
		for k := len(h) - 1; k > 0; {
			p := (k - 1) / 2
			if !h[k].before(h[p]) {
				break
			}
			h[k], h[p] = h[p], h[k]
			k = p
		}
	}
	pop := func() candidate {
		top := h[0]
		h[0] = h[len(h)-1]
		h = h[:len(h)-1]
		for k := 0; ; {
			c := 2*k + 1
			if c >= len(h) {
				break
			}
			if c+1 < len(h) && h[c+1].before(h[c]) {
				c++
			}
			if !h[c].before(h[k]) {
				break
			}
			h[k], h[c] = h[c], h[k]
			k = c
		}
		return top
	}
	for i := int32(0); i < n-1; i++ {
		push(i)
	}
	for len(h) > 0 {
		c := pop()
		i := c.pos
		// Stale: one of the two symbols has been joined since. A joined-away
		// symbol is -1, which no candidate holds.
		if sym[i] != c.left || next[i] >= n || sym[next[i]] != c.right {
			continue
		}
		j := next[i]
		sym[i], sym[j] = c.id, -1
		next[i] = next[j]
		if next[j] < n {
			prev[next[j]] = i
		}
		push(prev[i])
		push(i)
	}
	for i := int32(0); i < n; i = next[i] {
		ids = append(ids, sym[i])
	}
	return ids
}
