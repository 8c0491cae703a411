// Package textmetrics measures generated text: textmetrics.go has overlap with a reference, variety
// and repetition; interval.go has confidence intervals of such figures.
package textmetrics

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// MaxWords bounds the words of a text that RougeL compares; it ignores the rest. At this length a
// comparison takes about MaxWords^2/64 = 67 million word operations.
const MaxWords = 1 << 16

// words splits a text into at most limit words: after normalisation to NFC, the longest runs of
// letters, digits and combining marks, in lower case. Han, Hiragana and Katakana are written
// without spaces, so each of their characters is a word. (Thai, Lao, Khmer and Myanmar are too, but
// their characters are no words: a run of them counts as one.) On ASCII text these are the words of
// the usual ROUGE scorers without stemming.
func words(text string, limit int) []string {
	var out []string
	var run strings.Builder
	end := func() {
		if run.Len() > 0 {
			out = append(out, run.String())
			run.Reset()
		}
	}
	for _, r := range norm.NFC.String(text) {
		if len(out) >= limit {
			return out
		}
		switch {
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana):
			end()
			if len(out) < limit {
				out = append(out, string(r))
			}
		case unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) && run.Len() > 0:
			run.WriteRune(unicode.ToLower(r))
		default:
			end()
		}
	}
	if len(out) < limit {
		end()
	}
	return out
}

// RougeL returns the sentence-level ROUGE-L F1 of a candidate against one reference: with L the
// length in words of their longest common subsequence, precision P = L/|candidate|, recall R =
// L/|reference| and
//
//	F1 = 2PR/(P+R) = 2L/(|candidate|+|reference|)
//
// (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3.1, with beta = 1).
// It lies in [0, 1], is symmetric, and is 0 when either text has no word. A word is a run of
// letters and digits in lower case, or one Chinese character or Japanese kana. Only the first
// MaxWords words of each text count.
func RougeL(candidate, reference string) float64 {
	c, r := words(candidate, MaxWords), words(reference, MaxWords)
	if len(c) == 0 || len(r) == 0 {
		return 0
	}
	return 2 * float64(lcs(c, r)) / float64(len(c)+len(r))
}

// lcs returns the length of the longest common subsequence of a and b, by the bit-parallel
// recurrence of Hyyrö (2004, "Bit-parallel LCS-length computation revisited"): V holds one bit for
// each word of a, all set; each word w of b, with M its places in a, does
//
//	U = V & M;  V = (V + U) | (V - U)
//
// and the zeros of V at the end count the subsequence. Time O(|a| |b| / 64), memory O(|a|).
func lcs(a, b []string) int {
	n := (len(a) + 63) / 64
	places := map[string][]int32{}
	for i, w := range a {
		places[w] = append(places[w], int32(i))
	}
	// Words in more than n places, of which there are at most 64, keep their mask; the others are
	// set and cleared for each use, at a cost below that of the pass itself.
	dense := map[string][]uint64{}
	for w, at := range places {
		if len(at) > n {
			m := make([]uint64, n)
			for _, i := range at {
				m[i/64] |= 1 << (i % 64)
			}
			dense[w] = m
		}
	}
	v, sparse := make([]uint64, n), make([]uint64, n)
	for i := range v {
		v[i] = math.MaxUint64
	}
	for _, w := range b {
		at := places[w]
		if at == nil {
			continue // M = 0 leaves V as it is
		}
		m := dense[w]
		if m == nil {
			m = sparse
			for _, i := range at {
				m[i/64] |= 1 << (i % 64)
			}
		}
		var carry uint64
		for i, x := range v {
			u := x & m[i]
			var sum uint64
			sum, carry = bits.Add64(x, u, carry)
			v[i] = sum | x&^u // u is part of x: the difference borrows nothing
		}
		if len(at) <= n {
			for _, i := range at {
				m[i/64] = 0
			}
		}
	}
	zeros := 0
	for _, x := range v { // the bits beyond len(a) are in no mask and stay set
		zeros += 64 - bits.OnesCount64(x)
	}
	return zeros
}

// DistinctN returns the share of different n-grams of words among all n-grams of all texts
// together; no n-gram spans two texts. It is 1 if nothing repeats and 0 if there is no n-gram.
// After Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models",
// section 5, who divide by the number of words; for n = 1 that is the same, for larger n the number
// of n-grams lets the full variety reach 1. Words as in RougeL, without a limit. It panics if n <
// 1.
func DistinctN(texts []string, n int) float64 {
	if n < 1 {
		panic(fmt.Sprintf("textmetrics: DistinctN: n %d: want at least 1", n))
	}
	seen := map[string]bool{}
	total := 0
	for _, t := range texts {
		w := words(t, math.MaxInt)
		for i := 0; i+n <= len(w); i++ {
			seen[strings.Join(w[i:i+n], " ")] = true // no word holds a space
			total++
		}
	}
	if total == 0 {
		return 0
	}
	return float64(len(seen)) / float64(total)
}

// DistinctWithout returns, for each text, DistinctN of all other texts, as Jackknife needs it.
func DistinctWithout(texts []string, n int) []float64 {
	if n < 1 {
		panic(fmt.Sprintf("textmetrics: DistinctWithout: n %d: want at least 1", n))
	}
	const several = -1
	in := map[string]int{} // n-gram -> the only text that holds it, or several
	counts, total := make([]int, len(texts)), 0
	for k, t := range texts {
		w := words(t, math.MaxInt)
		for i := 0; i+n <= len(w); i++ {
			gram := strings.Join(w[i:i+n], " ")
			if at, seen := in[gram]; !seen {
				in[gram] = k
			} else if at != k {
				in[gram] = several
			}
			counts[k]++
			total++
		}
	}
	alone := make([]int, len(texts))
	for _, at := range in {
		if at != several {
			alone[at]++
		}
	}
	out := make([]float64, len(texts))
	for k := range texts {
		if rest := total - counts[k]; rest > 0 {
			out[k] = float64(len(in)-alone[k]) / float64(rest)
		}
	}
	return out
}

// repeatN is the length, in tokens, of the runs that RepeatFrac compares: shorter runs repeat in
// normal text, too.
const repeatN = 4

// RepeatFrac returns the share of a response's tokens inside a run of 4 tokens that occurs earlier
// in the same response (an overlapping earlier run counts: five equal tokens give 4/5). It is 0 for
// fewer than 5 tokens and near 1 for a response that loops.
func RepeatFrac(ids []int32) float64 {
	seen := map[[repeatN]int32]bool{}
	repeated, upTo := 0, 0 // upTo: tokens before it are counted
	for i := 0; i+repeatN <= len(ids); i++ {
		g := [repeatN]int32(ids[i : i+repeatN])
		if seen[g] {
			repeated += i + repeatN - max(i, upTo)
			upTo = i + repeatN
		}
		seen[g] = true
	}
	if len(ids) == 0 {
		return 0
	}
	return float64(repeated) / float64(len(ids))
}

// Percentiles returns the percentiles ps (0 to 100) of xs, linear between the closest ranks: with
// the values sorted, percentile p stands at the index p/100*(len-1) (type 7 of Hyndman and Fan
// 1996). xs is not changed. All are NaN when xs is empty or holds a NaN. A p outside 0 to 100
// panics.
func Percentiles(xs []float64, ps ...float64) []float64 {
	sorted := slices.Clone(xs)
	slices.Sort(sorted) // NaNs first
	out := make([]float64, len(ps))
	for i, p := range ps {
		if !(p >= 0 && p <= 100) {
			panic(fmt.Sprintf("textmetrics: Percentiles: %v: want 0 to 100", p))
		}
		if len(sorted) == 0 || math.IsNaN(sorted[0]) {
			out[i] = math.NaN()
			continue
		}
		at := p / 100 * float64(len(sorted)-1)
		lo := int(at)
		out[i] = sorted[lo]
		// equal infinities have no difference
		if hi := lo + 1; hi < len(sorted) && sorted[hi] != sorted[lo] {
			out[i] += (at - float64(lo)) * (sorted[hi] - sorted[lo])
		}
	}
	return out
}
