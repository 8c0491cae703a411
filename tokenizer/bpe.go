package tokenizer

import (
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// bpe is a byte-pair encoder (Sennrich et al., arXiv 1508.07909), over bytes or over characters:
// the pair with the lowest rank is joined first, the leftmost of equals, until no pair is in the
// table.
type bpe struct {
	text bool // over characters; else over bytes
	// id of each single byte, or of each ASCII character; -1: none
	byteID [256]int32
	charID map[rune]int32 // over characters: ids of non-ASCII characters
	gaps   bool           // some byte or character has no id
	// every text can be decoded from its ids: bytes without an id have byte tokens
	whole    bool
	unk      int32       // id for characters without one; -1: they are left out
	fuseUnk  bool        // one unk for a run of such characters
	fallback *[256]int32 // ids of <0x00> to <0xFF>, -1: none; nil: not used
	// positions at which a text without pre-tokens may be cut; nil: none
	cuts         *cuts
	vocab        map[string]int32 // raw bytes -> id, for ignoreMerges
	merges       map[uint64]merge // left<<32 | right
	ignoreMerges bool             // a word in the vocabulary is its own token
	longest      int              // bytes of the longest token, spelled as in words
	stop         func()           // called now and then within long words: may panic; nil is none
	cache        *wordCache
}

type merge struct{ rank, id int32 }

// pairKey returns the key of a pair in bpe.merges.
func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

const (
	cacheWords    = 1 << 16 // entries of the cache
	cacheWordLen  = 64      // bytes of the longest cached word, so the cache is some MB at most
	shortMergeLen = 64      // bytes up to which scanning beats the heap
)

// wordCache maps words to their ids. A word has two slots, and a new word replaces the older entry:
// memory is bounded, entries go one at a time, and reading takes no lock.
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

// symbols appends the ids of the single bytes or characters of w. A byte or character without an id
// becomes the byte tokens of its UTF-8 if there are all of them (byte_fallback; over bytes these
// spell its letter in the byte alphabet), else unk, else nothing. As in the reference an unk is
// appended only before the next known character or at the end, so that byte tokens precede it.
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

// first returns the id of the first byte or character of w, which is not empty, its spelling in the
// vocabulary, and its length in w. id is -1 for a byte or character without an id.
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

// fallsBack reports whether every byte of char has a byte token.
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

// countLost returns the number of characters of w that become unk or nothing, in whole or in part,
// and the first of them.
func (b *bpe) countLost(w string) (n int, first rune) {
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

// cuts are positions at which a text may be cut without changing its ids: before a mark (the blank
// of vocabularies over characters), unless the character before it precedes a mark inside some
// joined token. Texts over characters come without pre-tokens, and whole texts are long.
type cuts struct {
	mark string
	// characters behind which no cut is made
	never map[rune]bool
}

// newCuts returns the cuts of a vocabulary whose joined tokens are given, or nil if a cut could
// change ids.
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

// wordInParts appends the ids of w, cut where bpe.cuts allows.
func (b *bpe) wordInParts(w string, ids []int32) []int32 {
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

// mergeShort appends the ids of a word of at most shortMergeLen bytes. It scans for the pair of the
// lowest rank, without allocation, and looks each pair up once, when it first stands side by side.
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

// join returns the merge of a pair; its rank is noMerge for a pair that is not in the table.
func (b *bpe) join(left, right int32) merge {
	if m, ok := b.merges[pairKey(left, right)]; ok {
		return m
	}
	return merge{rank: noMerge}
}

// candidate is a pair that could be joined, ordered by rank, then by position.
type candidate struct{ rank, pos, id, left, right int32 }

// before reports whether a is joined before b.
func (a candidate) before(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.pos < b.pos
}

// mergeLong appends the ids that mergeShort would, over a linked list and a heap: O(n log n), so
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
