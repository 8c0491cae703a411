package tokenizer

import (
	"context"
	"fmt"
)

// Bounded encodes texts of strangers. An encoding ends with a *TooLong as soon as it must
// have more than Most tokens, and with the context's error once Context is done. The check
// comes before each word and within long ones, so that neither a word of megabytes nor many
// short ones cost more than Most tokens do.
type Bounded struct {
	Tokenizer *Tokenizer
	Context   context.Context
	Most      int // tokens; 0 is any number
}

// TooLong is the error of a text with more tokens than Bounded.Most.
type TooLong struct{ Most int }

func (e *TooLong) Error() string { return fmt.Sprintf("tokenizer: more than %d tokens", e.Most) }

// Encode is Tokenizer.Encode.
func (b Bounded) Encode(text string) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.Encode(text), nil })
}

// EncodeSpecial is Tokenizer.EncodeSpecial.
func (b Bounded) EncodeSpecial(text string) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.EncodeSpecial(text), nil })
}

// Prompt is Tokenizer.Prompt.
func (b Bounded) Prompt(c Chat) ([]int32, error) {
	return b.run(func(t *Tokenizer) ([]int32, error) { return t.Prompt(c) })
}

// aborted is the panic that leaves an encoding from within its nested callbacks.
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
		if b.Most > 0 && ids+t.model.least(w) > b.Most {
			panic(aborted{&TooLong{b.Most}})
		}
	}
	if ids, err = encode(&t); err == nil && b.Most > 0 && len(ids) > b.Most {
		return nil, &TooLong{b.Most}
	}
	return ids, err
}

// least is a number of tokens that w has at least: its bytes that are in tokens, divided by
// the bytes of the longest token.
func (b *bpe) least(w string) int {
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
