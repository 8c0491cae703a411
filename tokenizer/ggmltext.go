package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A vocabulary over characters, as SentencePiece trains it and Gemma and Llama 2 have it, is
// "llama" in a GGUF file: there any two tokens join whose joint text is a token, the token with the
// highest score first. tokenizer.json has a list of merges by rank. The two are the same where the
// list has every such pair, and the pairs of one token are adjacent; then the scores by rank
// determine the merges.

// blankPattern is Gemma's split at blanks, which matches nothing: blanks are "▁" by then.
const blankPattern = `MergedWithPrevious false " " ""`

// ggmlText sets the model of g for a vocabulary over characters.
func (t *Tokenizer) ggmlText(g *GGML) error {
	g.Model, g.Pre, g.Merges = "llama", "default", nil
	blank := false
	for _, n := range t.norms {
		switch {
		case n.kind == "Replace" && n.text == " " && n.with == "▁" && !blank:
			blank = true
		case n.kind == "Prepend" && n.with == "▁" && !blank && !g.SpacePrefix:
			g.SpacePrefix = true
		default:
			return cannot("normalizer", "changes texts in another way than SentencePiece", "")
		}
	}
	switch {
	case !blank:
		return cannot("normalizer", "leaves blanks as they are", "")
	case slices.ContainsFunc(t.patterns, func(p string) bool { return p != blankPattern }):
		return cannot("pre_tokenizer", "splits texts before the vocabulary over characters", "")
	case t.model.fallback == nil:
		return cannot("model", "has no byte_fallback", "")
	case t.model.ignoreMerges:
		return cannot("model", "has ignore_merges over characters", "")
	}
	for b, id := range t.model.fallback {
		if id < 0 {
			return cannot("model", fmt.Sprintf("has no token <0x%02X>", b), "")
		}
		g.Types[id] = GGMLByte
	}
	return t.scores(g)
}

// scores gives each token of g a score by the rank of its first merge, and returns an error unless
// the scores determine the same merges.
func (t *Tokenizer) scores(g *GGML) error {
	type ranked struct{ rank, id int32 }
	first := map[int32]int32{}
	for _, m := range t.model.merges {
		if was, ok := first[m.id]; !ok || m.rank < was {
			first[m.id] = m.rank
		}
	}
	order := make([]ranked, 0, len(first))
	for id, rank := range first {
		order = append(order, ranked{rank, id})
	}
	slices.SortFunc(order, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	g.Scores = slices.Repeat([]float32{-float32(min(len(order), math.MaxInt32) + 1)}, len(g.Tokens))
	place := make(map[int32]int32, len(order))
	for i, o := range order {
		g.Scores[o.id], place[o.id] = -float32(i), int32(i)
	}
	if len(order) >= 1<<24 {
		return cannot("model", "has more merges than scores can tell apart", "")
	}
	joins := map[string]int32{}
	for id, token := range g.Tokens {
		if g.Types[id] == GGMLNormal || g.Types[id] == GGMLAdded {
			joins[token] = int32(id)
		}
	}
	pairs, err := g.mergesByScore(g.Tokens, g.Types, joins)
	if err != nil {
		return err
	}
	differ := func(what string) error {
		return cannot("model", "has merges that no scores stand for: "+what, "")
	}
	known := 0
	for key, m := range t.model.merges {
		if strings.HasPrefix(g.Tokens[m.id], "<0x") && g.Types[m.id] == GGMLByte {
			return differ(fmt.Sprintf("%q comes of %q and %q", g.Tokens[m.id], g.Tokens[key>>32],
				g.Tokens[uint32(key)]))
		}
		if g.Types[m.id] == GGMLNormal {
			known++
		}
	}
	if known != len(pairs) {
		return differ(fmt.Sprintf("%d pairs join to tokens, and %d merges are listed", len(pairs),
			known))
	}
	last := int32(-1)
	for _, p := range pairs {
		m, ok := t.model.merges[pairKey(joins[p[0]], joins[p[1]])]
		if !ok {
			return differ(fmt.Sprintf("%q and %q are not merged", p[0], p[1]))
		}
		if at := place[m.id]; at < last {
			return differ(fmt.Sprintf("%q is out of order", p[0]+p[1]))
		} else if last = at; int32(len(order)) > at+1 && m.rank > order[at+1].rank {
			return differ(fmt.Sprintf("%q and %q come after the next token", p[0], p[1]))
		}
	}
	return nil
}
