package main

import (
	"strings"
	"testing"
)

type generated struct {
	Sample    int       `json:"sample"`
	Text      string    `json:"text"`
	Prompt    []int32   `json:"prompt_ids"`
	Response  []int32   `json:"response_ids"`
	LogProbs  []float32 `json:"logprobs"`
	Truncated bool      `json:"truncated"`
}

type rowOut struct {
	Row       int       `json:"row"`
	Prompt    []int32   `json:"prompt_ids"`
	Response  []int32   `json:"response_ids"`
	LogProbs  []float32 `json:"logprobs"`
	Score     float32   `json:"score"`
	Text      string    `json:"text"`
	Truncated bool      `json:"truncated"`
}

// Export gives the student as it was stored before training, or in the dtype
// that is asked for; the folder is complete and loads.
func TestExport(t *testing.T) {
	linked(t, "train", "train.arrow", "test.jsonl")
	for _, dtype := range []string{"float32", "bfloat16"} {
		printed, _ := does(t, "export --run train --output "+dtype+" --dtype "+dtype)
		if !strings.Contains(printed, "actor of train/global_step_3, "+dtype) ||
			!strings.Contains(fileText(dtype+"/config.json"), `"`+dtype+`"`) {
			t.Errorf("prints %q; config.json is %s", printed, fileText(dtype+"/config.json"))
		}
		does(t, "generate --model "+dtype+" --prompt Add --max-new-tokens 2")
	}
	if b, w := len(fileText("bfloat16/model.safetensors")),
		len(fileText("float32/model.safetensors")); b > 6*w/10 || b == 0 {
		t.Errorf("bfloat16 takes %d bytes, float32 %d", b, w)
	}
	// What was bfloat16 before training is again, through the stages between.
	answered(t, []exchange{
		{"sft --model bfloat16 --data train.arrow --output sft --steps 1 SMALL", exitDone, nil},
		{"warmup --model sft/global_step_1/actor --data train.arrow --output warm --steps 1 SMALL",
			exitDone, nil},
		{"export --run sft --output out1", exitDone, []string{", bfloat16\n"}},
		{"export --run warm --output out2", exitDone, []string{", bfloat16\n"}},
		{"export --run train --part critic --output critic", exitDone, nil},
		{"score --critic critic --data test.jsonl --limit 1", exitDone, nil},
	})
}
