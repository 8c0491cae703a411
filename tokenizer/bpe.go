package tokenizer

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// bpe is a byte-pair encoder (Sennrich et al., arXiv 1508.07909), over bytes or over
// characters: the pair with the lowest rank is joined first, the leftmost of equals, until
// no pair is in the table.
type bpe struct {
	text bool // over characters; else over bytes
	// id of each single byte, of each ASCII character over characters; -1: none
	byteID       [256]int32
	charID       map[rune]int32   // over characters: ids of the others
	gaps         bool             // some byte or character has no id
	whole        bool             // no text is lost: what has no id falls back
	unk          int32            // id of what has none; -1: such text is left out
	fuseUnk      bool             // one unk for all that follow each other
	fallback     *[256]int32      // ids of <0x00> to <0xFF>, -1: none; nil: not used
	cuts         *cuts            // where a text without pre-tokens may be cut; nil: nowhere
	vocab        map[string]int32 // raw bytes -> id, for ignoreMerges
	merges       map[uint64]merge // left<<32 | right
	ignoreMerges bool             // a word in the vocabulary is its own token
	longest      int              // bytes of the longest token, as words have it
	stop         func()           // called now and then in long words: may panic; nil is none
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
		if id, ok := b.vocab[w]; ok {
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

// symbols appends the ids of the single bytes or characters of w. What has no id becomes
// the byte tokens of its UTF-8 where there are all of them (byte_fallback; a byte is the
// letter of the byte alphabet then), else unk, else nothing. As in the reference an unk
// waits for the next that is known or the end, so that byte tokens come before it.
func (b *bpe) symbols(w string, sym []int32) []int32 {
	waiting := false
	for i := 0; i < len(w); {
		id, char, n := b.first(w[i:])
		i += n
		switch {
		case id >= 0:
			if waiting {
				sym, waiting = append(sym, b.unk), false
			}
			sym = append(sym, id)
		case b.fallsBack(char):
			for k := range len(char) {
				sym = append(sym, b.fallback[char[k]])
			}
		case b.unk >= 0:
			if waiting && !b.fuseUnk {
				sym = append(sym, b.unk)
			}
			waiting = true
		}
	}
	if waiting {
		sym = append(sym, b.unk)
	}
	return sym
}

// first is the id of the first byte or character of w, which is not empty, what it is
// written as in the vocabulary, and its length in w; -1: it has no id.
func (b *bpe) first(w string) (id int32, char string, n int) {
	switch {
	case !b.text:
		if id = b.byteID[w[0]]; id < 0 {
			char = string(byteToRune[w[0]])
		}
		return id, char, 1
	case w[0] < utf8.RuneSelf:
		return b.byteID[w[0]], w[:1], 1
	}
	r, n := utf8.DecodeRuneInString(w)
	id, ok := b.charID[r]
	if !ok {
		id = -1
	}
	return id, w[:n], n
}

// fallsBack tells whether every byte of char has a byte token.
func (b *bpe) fallsBack(char string) bool {
	if b.fallback == nil {
		return false
	}
	for i := range len(char) {
		if b.fallback[char[i]] < 0 {
			return false
		}
	}
	return true
}

// lost counts the characters of w that become unk or nothing, in whole or in part.
func (b *bpe) lost(w string) (n int, first rune) {
	if b.ignoreMerges {
		if _, ok := b.vocab[w]; ok {
			return 0, 0
		}
	}
	for i, r := range w {
		for rest := w[i : i+utf8.RuneLen(r)]; rest != ""; {
			id, char, k := b.first(rest)
			if rest = rest[k:]; id >= 0 || b.fallsBack(char) {
				continue
			}
			if n++; n == 1 {
				first = r
			}
			break
		}
	}
	return n, first
}

// cuts says where a text may be cut before a mark (the blank of vocabularies over
// characters) without changing its ids: behind each character that no joined token has
// before a mark. Such texts come without pre-tokens, and whole ones are long.
type cuts struct {
	mark  string
	never map[rune]bool
}

// newCuts returns nil where a cut could change something.
func newCuts(b *bpe, mark rune, joined []string) *cuts {
	if _, known := b.charID[mark]; !known || b.ignoreMerges {
		return nil
	}
	c := &cuts{string(mark), map[rune]bool{mark: true}}
	for _, token := range joined {
		for at := 0; ; {
			i := strings.Index(token[at:], c.mark)
			if i < 0 {
				break
			}
			if r, n := utf8.DecodeLastRuneInString(token[:at+i]); n > 0 {
				c.never[r] = true
			}
			at += i + len(c.mark)
		}
	}
	return c
}

// inParts appends the ids of w, which it cuts where that changes nothing.
func (b *bpe) inParts(w string, ids []int32) []int32 {
	start := 0
	for at := 0; ; {
		i := strings.Index(w[at:], b.cuts.mark)
		if i < 0 {
			break
		}
		i += at
		at = i + len(b.cuts.mark)
		if r, _ := utf8.DecodeLastRuneInString(w[:i]); i > start && !b.cuts.never[r] {
			ids = b.word(w[start:i], ids)
			start = i
		}
	}
	if start < len(w) {
		ids = b.word(w[start:], ids)
	}
	return ids
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
	for round := 0; len(h) > 0; round++ {
		if b.stop != nil && round%(1<<12) == 0 {
			b.stop()
		}
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
