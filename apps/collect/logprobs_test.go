package collect

import (
	"os"
	"slices"
	"strings"
	"testing"

	"gad/apps/collect/collecttest"
	"gad/apps/session/sessiontest"
	"gad/internal/endpoint/endpointtest"
	"gad/internal/fault"
)

// What an endpoint says of its tokens is kept beside the answer by bytes, in the journal and in the
// rows; what is none, cannot be read or is of another text is counted, and the answer is kept.
func TestCollectLogprobs(t *testing.T) {
	t.Chdir(t.TempDir())
	whole := func(text string, others int) map[string]any {
		return endpointtest.InThrees(text, others).(map[string]any)
	}
	edited := func(text string, edit func(token map[string]any)) any {
		l := whole(text, 2)
		edit(l["content"].([]any)[1].(map[string]any))
		return l
	}
	s := collecttest.Teacher(t, &endpointtest.Server{
		Answer: func(c endpointtest.Call, _ int) (string, string) { return "ä€😀 " + c.Prompt, "stop" },
		Logprobs: func(c endpointtest.Call, text string) any {
			switch c.Prompt {
			case "none":
				return nil
			case "null":
				return map[string]any{"content": nil}
			case "fewer":
				return whole(text, 0)
			case "other":
				return whole(strings.ToUpper(text), 2)
			case "unknown":
				return edited(text, func(token map[string]any) { token["bytes"] = nil })
			case "byte 256":
				return edited(text, func(token map[string]any) { token["bytes"] = []int{256, 0, 0} })
			case "more than 0":
				return edited(text, func(token map[string]any) { token["logprob"] = 3.5 })
			case "a number":
				return 7
			case "long":
				return edited(text, func(token map[string]any) {
					token["token"] = strings.Repeat("x", 1<<18)
					other := token["top_logprobs"].([]any)[1].(map[string]any)
					other["bytes"] = slices.Repeat([]int{120}, 1<<18)
				})
			}
			return whole(text, 2)
		}})
	var lines []string
	for _, prompt := range []string{"good", "none", "null", "fewer", "other", "unknown", "byte 256",
		"more than 0", "a number", "long"} {
		lines = append(lines, `{"content":"`+prompt+`"}`)
	}
	collecttest.Put(t, "prompts.jsonl", lines...)
	line := asks(s, "rows.jsonl", func(r *Run) { r.TopLogprobs, r.Limits.Concurrency = 3, 1 })
	const said = "log-probabilities: 3 answers of 10; fewer than 3 tokens at each place: 1; the endpoint has sent none: 2; left out: 5 (the first: row 4: the bytes of the tokens do not write the answer)\n"
	out, _ := must(t, line)
	if !strings.HasPrefix(out, "rows.jsonl: 10 answers to 10 prompts\n"+said) {
		t.Errorf("prints %q\nwants %q", out, said)
	}
	for _, c := range s.Calls() {
		if c.Raw["logprobs"] != true || c.Raw["top_logprobs"] != 3. {
			t.Fatalf("asked for %v", c.Raw)
		}
	}
	const good = `[[[195,164,226],-0.25,"0",-2,"1",-3],[[130,172,240],-0.25,"0",-2,"1",-3],[[159,152,128],-0.25,"0",-2,"1",-3],[" go",-0.25,"0",-2,"1",-3],["od",-0.25,"0",-2,"1",-3]]`
	rows := sessiontest.Rows(t, "rows.jsonl")
	for i, row := range rows {
		if has := row.Logprobs != nil; has != (i == 0 || i == 3 || i == 9) ||
			row.LogprobsFault() != "" || !strings.HasPrefix(row.Teacher, "ä€😀 ") {
			t.Errorf("row %d: %+v", i, row)
		}
	}
	if got := rows[0].Logprobs.String(); got != good {
		t.Errorf("%s\nwant %s", got, good)
	}
	if l := rows[9].Logprobs[1]; len(l) != 3 || len(l[1].Bytes) != 1<<18 {
		t.Errorf("a token of 256 KiB: %.200v", l)
	}
	raw, err := os.ReadFile("rows.jsonl.journal")
	if err != nil || !strings.Contains(string(raw), `"logprobs":`+good) ||
		!strings.Contains(string(raw), `"logprobs":"token 1: not log-probabilities of tokens: byte 0 is \"256\": write whole numbers from 0 to 255"`) ||
		strings.Contains(string(raw), "top_logprobs\":[") {
		t.Errorf("%v: %.2000s", err, raw)
	}
	// From the journal again, in other formats, for nothing.
	for _, name := range []string{"rows.jsonl", "rows.arrow", "rows.parquet"} {
		collecttest.Drop(t, "rows.jsonl")
		if name != "rows.jsonl" {
			if err := os.Rename("rows.jsonl.journal", name+".journal"); err != nil {
				t.Fatal(err)
			}
		}
		calls := len(s.Calls())
		if out, _ := must(t, with(line, into(name))); !strings.Contains(out, said) ||
			len(s.Calls()) != calls {
			t.Errorf("%s: prints %q, %d calls", name, out, len(s.Calls())-calls)
		}
		for i, row := range sessiontest.Rows(t, name) {
			if row.Logprobs.String() != rows[i].Logprobs.String() {
				t.Errorf("%s: row %d: %v", name, i, row.Logprobs)
			}
		}
		if name != "rows.jsonl" {
			if err := os.Rename(name+".journal", "rows.jsonl.journal"); err != nil {
				t.Fatal(err)
			}
			collecttest.Put(t, "rows.jsonl")
		}
	}
	collecttest.Drop(t, "rows.jsonl")
	// Others than those of the journal are refused; who asks for none gets and keeps none.
	const want = "gad: collect: rows.jsonl.journal: its answers are of other settings: --top-logprobs was 3, now it is 5: give the same, or another --output\n"
	if kind, _, said := ask(with(line, func(r *Run) { r.TopLogprobs = 5 })); kind !=
		fault.ErrUsage || said != want {
		t.Errorf("%v, says %q", kind, said)
	}
	plain := asks(s, "plain.jsonl", func(r *Run) { r.Extra = map[string]any{"logprobs": true} })
	if out, _ := must(t, plain); strings.Contains(out, "log-probabilities") {
		t.Errorf("prints %q", out)
	}
	if raw, err := os.ReadFile("plain.jsonl.journal"); err != nil ||
		strings.Contains(string(raw), "InThrees") || strings.Contains(string(raw), `"logprobs":[`) {
		t.Errorf("%v: %.2000s", err, raw)
	}
	for _, row := range sessiontest.Rows(t, "plain.jsonl") {
		if row.Logprobs != nil {
			t.Errorf("%+v", row)
		}
	}
	// By the batch API.
	s.Batch.Looks = 1
	if out, _ := must(t, with(line, batches, into("batch.jsonl"))); !strings.Contains(out, said) {
		t.Errorf("prints %q", out)
	}
}
