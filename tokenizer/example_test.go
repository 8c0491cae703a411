package tokenizer_test

import (
	"fmt"

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
