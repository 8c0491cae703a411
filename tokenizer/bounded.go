package tokenizer

import (
	"context"
	"fmt"
)

// Bounded encodes untrusted texts. An encoding ends with a *TooLong as soon as it must have more
// than Most tokens, and with the context's error once Context is done. The check comes before each
// word and within long words, so that neither a word of megabytes nor many short words cost more
// than Most tokens do.
type Bounded struct {
	Tokenizer *Tokenizer
	Context   context.Context
	Most      int // tokens; 0 is any number
}

// TooLong is the error for a text with more tokens than Bounded.Most.
type TooLong struct{ Most int }

func (e *TooLong) Error() string { return fmt.Sprintf("tokenizer: more than %d tokens", e.Most) }

// Encode returns the ids of Tokenizer.Encode, within the bounds.
func (b Bounded) Encode(text string) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.Encode(text), nil })
}

// EncodeSpecial returns the ids of Tokenizer.EncodeSpecial, within the bounds.
func (b Bounded) EncodeSpecial(text string) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.EncodeSpecial(text), nil })
}

// Prompt returns the ids of Tokenizer.Prompt, within the bounds.
func (b Bounded) Prompt(c Chat) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.Prompt(c) })
}

// aborted is the panic that leaves an encoding from inside its nested callbacks.
type aborted struct{ error }

// run calls encode with a copy of the tokenizer that checks the bounds.
func (b Bounded) run(encode func(*Tokenizer) ([]int32, error)) (ids []int32, err error) {
	defer func() {
		if v := recover(); v != nil {
			a, ok := v.(aborted)
			if !ok {
				panic(v)
			}
			ids, err = nil, a.error
		}
	}()
	t := *b.Tokenizer
	stop := func() {
		if err := b.Context.Err(); err != nil {
			panic(aborted{err})
		}
	}
	t.model.stop = stop
	t.check = func(ids int, w string) {
		stop()
		if b.Most > 0 && ids+t.model.leastTokens(w) > b.Most {
			panic(aborted{&TooLong{b.Most}})
		}
	}
	if ids, err = encode(&t); err == nil && b.Most > 0 && len(ids) > b.Most {
		return nil, &TooLong{b.Most}
	}
	return ids, err
}

// leastTokens returns a lower bound of the tokens of w: its bytes that are in tokens, divided by
// the bytes of the longest token.
func (b *bpe) leastTokens(w string) int {
	if len(w) <= b.longest || b.longest == 0 {
		return 0
	}
	known := len(w)
	if !b.whole {
		known = 0
		for i := 0; i < len(w); {
			id, char, n := b.first(w[i:])
			if i += n; id >= 0 || b.fallsBack(char) {
				known += n
			}
		}
	}
	return (known + b.longest - 1) / b.longest
}
