package encode

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gad/data"
	"gad/tokenizer"
	"gad/trainer/modeltest"
)

// row is an answer with the teacher's log-probabilities as rows have them.
func row(t *testing.T, answer, logprobs string) data.Row {
	t.Helper()
	l, err := data.ReadLogprobs([]byte(logprobs))
	if err != nil {
		t.Fatal(err)
	}
	return data.Row{Teacher: answer, Logprobs: l}
}

// shown are soft labels for people: position, tokens and log-probabilities.
func shown(tok *tokenizer.Tokenizer, soft []data.SoftLabel) string {
	var b strings.Builder
	for i, l := range soft {
		if l.IDs == nil {
			continue
		}
		fmt.Fprintf(&b, "%d:", i)
		for k, id := range l.IDs {
			fmt.Fprintf(&b, " %q %g", tok.Piece(id), l.LogProbs[k])
		}
		b.WriteString("; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

// ASCII letters of qwen2's fixture: a byte-level tokenizer; of llama2's: one over characters, which
// puts a blank before a text, with byte_fallback.
func TestSoft(t *testing.T) {
	load := func(name string) Encoder {
		tok, err := tokenizer.Load(modeltest.Root("testdata", "tokenizer", name))
		if err != nil {
			t.Fatal(err)
		}
		return Encoder{Tok: tok, MaxResponse: 100}
	}
	qwen, llama := load("qwen2"), load("llama2")
	for _, c := range []struct {
		e                      Encoder
		answer, logprobs, want string
	}{
		// c a f é " x" end: the teacher's "af" is no token of the student's, nor are "czz" and a
		// control token; the end may be one of the others
		{qwen, "café x", `[["c",-0.5,"an",-1.5,"czz",-3],["af",-1],["é",-0.25,[226],-2],[" x",-1,"<|im_end|>",-2,"",-3,"<|endoftext|>",-4],["",-0.5,"s",-1.5,"zzq",-4]]`,
			`0: "c" -0.5 "an" -1.5; 3: "é" -0.25 "\xe2" -2; 4: " x" -1 "<|im_end|>" -2; 5: "<|im_end|>" -0.5 "s" -1.5`},
		// the end as a server writes it, and without one
		{qwen, "s", `[["s",-0.5],["<|im_end|>",-0.125,"s",-3]]`, `0: "s" -0.5; 1: "<|im_end|>" -0.125 "s" -3`},
		{qwen, "s", `[["s",-0.5]]`, `0: "s" -0.5`},
		// white space that is not learned stands before the end
		{qwen, "s\n", `[["s",-0.5],["\n",-0.25,"",-2],["",-0.125]]`, `0: "s" -0.5`},
		{qwen, "s\n", `[["s\n",-0.5],["",-0.125]]`, `no token of the teacher's is a token of the student's`},
		// parts of a character: € is three tokens of the student's, 😀 two
		{qwen, "€ 😀", `[[[226],-1],[[130],-0.5,[131],-1],[[172],-0.25],[" 😀",-0.125]]`,
			`0: "\xe2" -1; 1: "\x82" -0.5 "\x83" -1; 2: "\xac" -0.25`},
		{qwen, "€ 😀", `[["€",-1],[" ",-1],[[240,159,152],-0.5],[[128],-0.25]]`,
			`3: " " -1; 4: "\xf0\x9f\x98" -0.5; 5: "\x80" -0.25`},
		// an own token that is only called unlikely is in the tail, and a label of nothing is none
		{qwen, "an s", `[["an",-9999,"the",-0.5],[" ",-9999],["s",-1]]`, `0: "the" -0.5; 2: "s" -1`},
		// another text, also one that its rendering is
		{qwen, "café", `[["caf",-0.5],["\uFFFD",-1],["\uFFFD",-1]]`, "the bytes of the tokens do not write the answer"},
		// a tokenizer over characters puts a blank before the answer's first token, and has byte
		// tokens for the letters that it has tokens for
		{llama, "café x", `[["c",-0.5,"the",-1.5],["a",-1,"",-2,"</s>",-3],["f",-1,"e",-2],["é",-0.25,[226],-2],[" x",-1],["</s>",-0.5," x",-2]]`,
			`0: " c" -0.5 " the" -1.5; 1: "a" -1 "</s>" -2; 2: "f" -1 "e" -2; 3: "é" -0.25 "\xe2" -2; 4: " x" -1; 5: "</s>" -0.5 " x" -2`},
	} {
		r := row(t, c.answer, c.logprobs)
		soft, bad := c.e.Soft(r, c.e.Answer(c.answer))
		if got := shown(c.e.Tok, soft) + bad; got != c.want {
			t.Errorf("%q, %s:\n%s\nwant\n%s", c.answer, c.logprobs, got, c.want)
		}
	}
	// An answer that is unfinished has no end, and the student's tokens may be of another text.
	r := row(t, "s", `[["s",-0.5],["",-0.125]]`)
	ids := qwen.Answer("s")
	if soft, bad := qwen.Soft(r, ids[:1]); shown(qwen.Tok, soft)+bad != `0: "s" -0.5` {
		t.Errorf("unfinished: %s, %s", shown(qwen.Tok, soft), bad)
	}
	for _, other := range []string{"sa", "", "an", "a"} {
		soft, bad := qwen.Soft(r, qwen.Answer(other))
		if bad != "the student's tokenizer changes the text: its tokens do not write it" || soft != nil {
			t.Errorf("tokens of %q: %v, %q", other, soft, bad)
		}
	}
}

// Whatever the teacher's tokens are, a label stands where both have the same span, and nowhere
// else.
func TestSoftOfAnySpans(t *testing.T) {
	e := Encoder{Tok: modeltest.Tokenizer(t), MaxResponse: 100}
	r := rand.New(rand.NewPCG(3, 4))
	labelled := 0
	for range 2000 {
		text := strings.Repeat("It is a é€😀 one. ", 1+r.IntN(3)) + "x"
		answer := e.Answer(text)
		starts := map[int]int{} // of the student's tokens: where they end
		at := 0
		for _, id := range answer[:len(answer)-1] {
			starts[at] = at + len(e.Tok.Piece(id))
			at = starts[at]
		}
		var l data.Logprobs
		want := map[int]bool{} // where a label begins
		for from := 0; from < len(text); {
			to := from + r.IntN(min(len(text)-from, 6)+1)
			if end, ok := starts[from]; ok && r.IntN(2) == 0 {
				to = end // the student's token
			}
			l = append(l, []data.Logprob{{Bytes: text[from:to], LogProb: -1}})
			if end, ok := starts[from]; ok && end == to {
				want[from] = true
			}
			from = to
		}
		soft, bad := e.Soft(data.Row{Teacher: text, Logprobs: l}, answer)
		if len(want) == 0 {
			if bad != "no token of the teacher's is a token of the student's" {
				t.Fatalf("%q: %v, %q", text, soft, bad)
			}
			continue
		}
		at = 0
		for i, id := range answer {
			if has := soft[i].IDs != nil; has != (want[at] && i < len(answer)-1) || has &&
				(!slices.Equal(soft[i].IDs, []int32{id}) || soft[i].LogProbs[0] != -1) {
				t.Fatalf("%q: token %d: %+v, want a label: %v", text, i, soft[i], want[at])
			}
			if soft[i].IDs != nil {
				labelled++
			}
			at += len(e.Tok.Piece(id))
		}
	}
	if labelled < 5000 {
		t.Errorf("%d labels", labelled)
	}
}
