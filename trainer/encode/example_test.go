package encode_test

import (
	"fmt"

	"gad/data"
	"gad/tokenizer"
	"gad/trainer/encode"
)

// A row becomes a prompt and the teacher's answer, which ends as every sequence does.
func ExampleEncoder() {
	tok, err := tokenizer.Load("../../testdata/tokenizer/qwen2")
	if err != nil {
		fmt.Println(err)
		return
	}
	enc := encode.Encoder{Tok: tok, MaxPrompt: 64, MaxResponse: 32}
	row := data.Row{Messages: []data.Message{{Role: "user", Content: "Add 4+7"}}, Teacher: "11"}
	prompt, err := enc.Prompt(row)
	if err != nil {
		fmt.Println(err)
		return
	}
	seq := enc.Seq(prompt, enc.Response(enc.Answer(row.Teacher)))
	fmt.Printf("%q\n", tok.Decode(seq.Response(), false))
	// Output:
	// "11<|im_end|>"
}
