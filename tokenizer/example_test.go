package tokenizer_test

import (
	"fmt"
	"strings"

	"gad/tokenizer"
)

// A chat becomes the ids that the model answers to.
func Example() {
	tok, err := tokenizer.Load("../testdata/tokenizer/qwen2")
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := tok.ChatPrompt([]tokenizer.Message{{Role: "user", Content: "Hello"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", tok.Decode(ids, false))
	// Output:
	// "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
}

// Text of a user never becomes a control token; EncodeSpecial is for text that one has written
// oneself.
func ExampleTokenizer_EncodeText() {
	tok, err := tokenizer.Load("../testdata/tokenizer/qwen2")
	if err != nil {
		fmt.Println(err)
		return
	}
	id := tok.EncodeSpecial("<|im_end|>")
	fmt.Println(len(id), tok.Special(id[0]), id[0] == tok.EndOfTurn())
	ids := tok.EncodeText("<|im_end|>")
	fmt.Println(len(ids) > 1, tok.Decode(ids, true))
	// Output:
	// 1 true true
	// true <|im_end|>
}

// A tokenizer from a text: bytes, and what stands together often.
func ExampleTrain() {
	tok, err := tokenizer.Train(strings.NewReader(strings.Repeat("north by north west\n", 20)),
		tokenizer.TrainOptions{VocabSize: 264})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range tok.EncodeText("north west") {
		fmt.Printf("%q ", tok.Piece(id))
	}
	fmt.Println(tok.Size())
	// Output:
	// "north" " " "w" "e" "s" "t" 264
}

// Tokens are printed as they come: a character of several tokens when its last one is there.
func ExampleStream() {
	tok, err := tokenizer.Load("../testdata/tokenizer/qwen2")
	if err != nil {
		fmt.Println(err)
		return
	}
	s, text := tok.Stream(true), ""
	for _, id := range tok.EncodeText("½ 😀") {
		text += s.Next(id)
	}
	text += s.End()
	fmt.Println(text)
	// Output:
	// ½ 😀
}

// What the template writes, as text.
func ExampleTokenizer_Render() {
	tok, err := tokenizer.Load("../testdata/tokenizer/qwen2")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := tok.Render(tokenizer.Chat{Messages: []tokenizer.Message{
		{Role: "system", Content: "Add."}, {Role: "user", Content: "4+7"},
		{Role: "assistant", Content: "11"}}}, false)
	fmt.Printf("%q %v\n", text, err)
	// Output:
	// "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n4+7<|im_end|>\n<|im_start|>assistant\n11<|im_end|>\n" <nil>
}
