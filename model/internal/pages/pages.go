// Package pages computes how many cache pages and rows sampling needs, before any is allocated.
package pages

// Prefill is the largest number of tokens in a pack of prompts: it bounds the memory for
// activations.
const Prefill = 2048

// Count returns the number of pages of size pt that hold n positions.
func Count(n, pt int) int { return (n + pt - 1) / pt }

// Spare returns the number of pages of size pt for the padding rows of a decode step: those beyond
// n in DecodeRows(multiple, n).
func Spare(multiple, pt int) int { return Count(multiple-1, pt) }

// Own returns the number of pages that a sample needs beyond the full pages of its prompt of n
// tokens, to sample up to maxNew tokens. The keys and values of the last new token are never read
// and take no place.
func Own(n, maxNew, pt int) int {
	if maxNew == 0 {
		return 0
	}
	return Count(n%pt+maxNew-1, pt)
}

// Pool returns the number of pages of Generate's cache: own pages for each slot, and promptPages
// for twice the prompts (of n samples each) that fill the slots. If unfinished samples of more
// prompts are decoded, requests wait; one sample alone always fits.
func Pool(slots, n, prompts, promptPages, own int) int {
	return slots*own + min(2*((slots+n-1)/n)+1, prompts)*promptPages
}

// OfChunks returns the least number of pages of the cache for thoughts in chunks, whose contexts
// have up to longest tokens and share no page: with it no chunk waits for another.
func OfChunks(slots, longest, pt int) int { return slots * (Count(longest, pt) + 1) }

// States returns the number of sequences that sampling keeps a state of: the samples, and a prompt
// of which some have not started.
func States(slots int) int { return slots + 1 }

// DecodeRows returns the number of rows of a decode step for n samples: n rounded up to a multiple
// of Footprint.DecodeMultiple.
func DecodeRows(multiple, n int) int { return (n + multiple - 1) / multiple * multiple }

// Default is the number of positions in a page if the settings give none.
const Default = 16

const (
	// DefaultSlots is the number of answers sampled at the same time unless settings say otherwise.
	DefaultSlots = 64
	mostSlots    = 512 // more rows hardly save reads of the weights
)

// Together returns the number of answers, of so many, that a backend should sample at the same
// time: 64, or, where products of few rows take as long as products of many (multiple above 1, a
// GPU), up to 512 while fits reports that the memory suffices for so many slots.
func Together(multiple, answers int, fits func(slots int) bool) int {
	slots := DefaultSlots
	for multiple > 1 && slots < min(answers, mostSlots) && fits(2*slots) {
		slots *= 2
	}
	return slots
}
