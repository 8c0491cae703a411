package tokenizer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// budgeted is a context that is done after so many questions.
type budgeted struct {
	context.Context
	left int
}

func (c *budgeted) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// A bounded encoding is the encoding, or an error if that has more tokens; never both.
func TestBounded(t *testing.T) {
	for _, name := range []string{"gpt2", "qwen2", "llama3", "llama2", "gemma"} {
		tok, e := readExpected(t, name)
		r := lcg(5)
		seen := map[bool]int{}
		for range 400 {
			text := e.text(&r, 1+r.below(30), 6)
			if r.below(4) == 0 {
				text = strings.Repeat(text, 1+r.below(20))
			}
			want := tok.EncodeSpecial(text)
			most := 1 + r.below(2*len(want)+1)
			got, err := Bounded{tok, context.Background(), most}.EncodeSpecial(text)
			var long *TooLong
			switch tooLong := len(want) > most; {
			case tooLong && (!errors.As(err, &long) || got != nil), !tooLong &&
				(err != nil || !slices.Equal(got, want)):
				t.Fatalf("%s: %q, at most %d: %v, %v; want %v", name, text, most, got, err, want)
			default:
				seen[tooLong]++
			}
		}
		if seen[true] < 50 || seen[false] < 50 {
			t.Errorf("%s: %v", name, seen)
		}
	}
}

// A word of megabytes is refused before it is merged, and a merge ends with its context.
func TestBoundedLongWords(t *testing.T) {
	tok, _ := readExpected(t, "qwen2")
	for _, unit := range []string{"a", "é", "字"} {
		asked := &budgeted{context.Background(), 1}
		var long *TooLong
		if _, err := (Bounded{tok, asked, 1000}).Encode(strings.Repeat(unit, 1<<20)); !errors.As(
			err, &long) || long.Most != 1000 {
			t.Errorf("%q: %v", unit, err)
		}
	}
	asked := &budgeted{context.Background(), 5}
	ids, err := Bounded{tok, asked, 0}.Encode(strings.Repeat("ab", 1<<17))
	if !errors.Is(err, context.Canceled) || ids != nil || asked.left != -1 {
		t.Errorf("%d ids, %v, asked %d times more", len(ids), err, -1-asked.left)
	}
	if ids, err = (Bounded{tok, context.Background(), 0}).Encode(
		strings.Repeat("ab", 1<<17)); err != nil || len(ids) == 0 {
		t.Errorf("%d ids, %v", len(ids), err)
	}
}
