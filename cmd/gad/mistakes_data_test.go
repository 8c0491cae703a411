package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Mistakes with data: files that are something else, rows that training refuses,
// columns, formats, splits and limits.
func TestDataMistakes(t *testing.T) {
	f := ready(t)
	work := t.TempDir()
	rowFixtures, err := filepath.Abs("../../testdata/rows")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(work)
	write := func(name, content string) {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"student", "warmup", "sft"} {
		if err := os.Symlink(f.path(dir), dir); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	write("rows.jsonl", string(raw))
	lastRow := strconv.Itoa(strings.Count(strings.TrimSpace(string(raw)), "\n"))
	line, _, _ := strings.Cut(string(raw), "\n")
	good := line + "\n"
	bad := func(name, row string) { write(name, good+row+"\n") }
	bad("role.jsonl", `{"content":[{"role":"human","content":"q"}],"teacher_response":"a"}`)
	bad("nouser.jsonl", `{"content":[{"role":"system","content":"s"}],"teacher_response":"a"}`)
	bad("noturns.jsonl", `{"content":[],"teacher_response":"a"}`)
	bad("blank.jsonl", `{"content":"q","teacher_response":"   "}`)
	bad("noanswer.jsonl", `{"content":"q"}`)
	bad("noprompt.jsonl", `{"teacher_response":"a"}`)
	bad("twice.jsonl", `{"content":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"teacher_response":"b"}`)
	bad("number.jsonl", `{"content":"q","teacher_response":14}`)
	bad("nocontent.jsonl", `{"content":[{"role":"user"}],"teacher_response":"a"}`)
	bad("latin.jsonl", "{\"content\":\"caf\xe9\",\"teacher_response\":\"a\"}")
	bad("cutline.jsonl", `{"content":"q","teacher_resp`)
	bad("tokens.jsonl", `{"prompt_ids":[1,99999],"teacher_response":"a"}`)
	write("allcut.jsonl", strings.Repeat(`{"content":"Add 1+1+1","teacher_response":"`+strings.Repeat("It is 3. ", 9)+`"}`+"\n", 5))
	write("long.jsonl", `{"content":"`+strings.Repeat("Add 1+1+1 ", 40)+`","teacher_response":"x"}`+"\n")
	write("sharegpt.jsonl", `{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}`+"\n")
	write("fromvalue.jsonl", `{"content":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]}`+"\n")
	write("unanswered.jsonl", `{"conversations":[{"from":"human","value":"q"}]}`+"\n")
	write("question.jsonl", `{"user":"q","assistant":"a"}`+"\n")
	write("answer.jsonl", `{"content":"q","answer":"a"}`+"\n")
	write("letters.jsonl", `{"a":"q","b":"a"}`+"\n")
	write("pretty.jsonl", "{\n  \"content\": \"q\",\n  \"teacher_response\": \"a\"\n}\n")
	write("pretty.json", "{\"data\": [\n{\"content\":\"q\"}]}\n")
	write("object.json", `{"data":[{"content":"q","teacher_response":"a"}]}`)
	write("string.json", `"q"`)
	write("empty.jsonl", "")
	write("spaces.jsonl", " \n \n")
	write("lfs.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")
	write("page.parquet", "<!DOCTYPE html><html></html>")
	write("rows.jsonl.gz", "\x1f\x8b\x08\x00")
	write("rows.zip", "PK\x03\x04")
	write("model.gguf", "GGUF\x03\x00\x00\x00")
	write("model.safetensors", "\x08\x00\x00\x00\x00\x00\x00\x00{\"a\":{}} and weights")
	write("cut.parquet", "PAR1 and no end of it")
	utf16 := append([]byte("\xff\xfe"), bytes.Join(bytes.SplitAfter([]byte(line), nil), []byte{0})...)
	write("utf16.jsonl", string(utf16))
	write("ragged.csv", "content,teacher_response\nq,a,b\n")
	write("quote.csv", "content,teacher_response\n\"q,a\n")
	write("columns.csv", "User,Assistant\nq,a\n")
	write("notes.txt", "content,teacher_response\nq,a\n")
	write("hub/data/train-00000-of-00002.jsonl", good)
	write("hub/data/train-00001-of-00002.jsonl", good)
	write("hub/data/test-00000-of-00001.jsonl", good)
	write("half/train-00000-of-00002.jsonl", good)
	write("plain/train.jsonl", good)
	write("plain/test.jsonl", good)
	write("papers/readme.md", "no data")
	write("calls.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"c"}]},{"role":"tool","content":"21"},{"role":"assistant","content":"a"}]}`+"\n")
	write("unweighted.jsonl", `{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`+"\n"+`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":0}]}`+"\n")
	write("image.jsonl", `{"messages":[{"role":"user","content":[{"type":"text","text":"q"},{"type":"image_url","image_url":{"url":"u"}}]},{"role":"assistant","content":"a"}]}`+"\n")
	write("python.csv", "messages\n\"[{'role': 'user', 'content': 'q'}]\"\n")
	write("json.csv", "conversations\n\"[{\"\"from\"\":\"\"human\"\",\"\"value\"\":\"\"q\"\"},{\"\"from\"\":\"\"gpt\"\",\"\"value\"\":\"\"a\"\"}]\"\n")
	write("mixed.jsonl", `{"content":"q","teacher_response":"a"}`+"\n"+`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`+"\n")
	write("systems.jsonl", `{"system":"s","messages":[{"role":"system","content":"t"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`+"\n")
	write("preferred.jsonl", `{"input":{"messages":[{"role":"user","content":"q"}]},"preferred_output":[{"role":"assistant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]}`+"\n")
	write("hh.jsonl", `{"chosen":"\n\nHuman: q\n\nAssistant: a","rejected":"\n\nHuman: q\n\nAssistant: b"}`+"\n")
	write("pairs.jsonl", `{"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},"rejected":{"from":"gpt","value":"b"}}`+"\n")
	write("instances.jsonl", `{"instruction":"i","instances":[{"input":"x","output":"y"}]}`+"\n")
	write("squad.jsonl", `{"context":"c","question":"q","answers":{"text":["a"],"answer_start":[0]}}`+"\n")
	write("speaker.jsonl", `{"messages":[{"speaker":"user","text":"q"},{"speaker":"assistant","text":"a"}]}`+"\n")
	write("passage.jsonl", `{"passage":"p","input":"q","label":"a"}`+"\n")
	write("nan.jsonl", `{"content":"q","teacher_response":"a","score":1}`+"\n"+`{"content":"q","teacher_response":"a","score":NaN}`+"\n")
	write("double.csv", "content,teacher_response,content\nq,a,q\n")
	write("other.jsonl", `{"content":"q","response":"a","teacher_response":"b"}`+"\n")

	mistaken(t, []string{work, f.path("sft"), f.path("warmup")}, []mistake{
		// rows
		{"sft --model student --data role.jsonl --output run SET", 3, `data: role.jsonl: row 1: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool (gad data validate lists all such rows)`},
		{"warmup --model student --data role.jsonl --output run SET", 3, `data: role.jsonl: row 1: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool (gad data validate lists all such rows)`},
		{"dpo --model student --data nouser.jsonl --output run SET", 3, `data: nouser.jsonl: row 1: the conversation in column "content" has no user turn: add one or remove the row (gad data validate lists all such rows)`},
		{"train --resume warmup --data nouser.jsonl --output run SET", 3, `data: nouser.jsonl: row 1: the conversation in column "content" has no user turn: add one or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data noturns.jsonl --output run SET", 3, `data: noturns.jsonl: row 1: the conversation in column "content" has no user turn: add one or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data blank.jsonl --output run SET", 3, `data: blank.jsonl: row 1: no teacher answer in column "teacher_response" (missing, empty or blank): write one or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data noanswer.jsonl --output run SET", 3, `data: noanswer.jsonl: row 1: no teacher answer in column "teacher_response" (missing, empty or blank): write one or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data noprompt.jsonl --output run SET", 3, `data: noprompt.jsonl: row 1: column "content": null: the row has no prompt: remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data twice.jsonl --output run SET", 3, `data: twice.jsonl: row 1: column "teacher_response": "b": differs from the last assistant turn "a": keep the teacher's answer in one place only (gad data validate lists all such rows)`},
		{"sft --model student --data number.jsonl --output run SET", 3, `data: number.jsonl: row 1: column "teacher_response": "14": not a string: write it as text (gad data validate lists all such rows)`},
		{"sft --model student --data nocontent.jsonl --output run SET", 3, `data: nocontent.jsonl: row 1: column "content": turn 0: has no content: each turn needs role and content (gad data validate lists all such rows)`},
		{"sft --model student --data latin.jsonl --output run SET", 3, `data: latin.jsonl: row 1: column "content": not valid UTF-8: re-encode the text (gad data validate lists all such rows)`},
		{"sft --model student --data cutline.jsonl --output run SET", 3, `data: cutline.jsonl: row 1: invalid character '\n' in string literal: file is corrupt: correct or remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data tokens.jsonl --output run SET", 3, `data: tokens.jsonl: row 1: prompt_ids[1] is 99999, not a token of this tokenizer (0 to 299) (gad data validate lists all such rows)`},
		{"sft --model student --data rows.jsonl --val-data blank.jsonl --output run SET", 3, `data.val_files: data: blank.jsonl: row 1: no teacher answer in column "teacher_response" (missing, empty or blank): write one or remove the row (gad data validate lists all such rows)`},
		{"eval --model student --data role.jsonl --disc-steps 0 --max-response-length 14 --max-prompt-length 64", 3, `data: role.jsonl: row 1: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool (gad data validate lists all such rows)`},
		{"sft --model student --data long.jsonl --output run SET data.overlong_prompts=filter", 3, `data: long.jsonl: none of 1 rows is within data.max_prompt_length 64 and data.max_response_length 14: raise them`},
		{"warmup --model student --data allcut.jsonl --output run SET", 2, `data: allcut.jsonl: none of 5 rows can make a pair, since every teacher answer is over data.max_response_length 14: data.max_response_length=55 would keep all; or set critic.truncated=include`},
		{"train --resume warmup --data allcut.jsonl --output run SET", 2, `data: allcut.jsonl: none of 5 rows can make a pair, since every teacher answer is over data.max_response_length 14: data.max_response_length=55 would keep all; or set critic.truncated=include`},
		{"train --resume warmup --data allcut.jsonl --output run SET critic.replay.live=false critic.replay.size=8", 2, `data: allcut.jsonl: none of 5 rows can make a pair, since every teacher answer is over data.max_response_length 14: data.max_response_length=55 would keep all; or set critic.truncated=include`},
		{"dpo --model student --data allcut.jsonl --output run SET", 2, `data: allcut.jsonl: none of 5 rows can make a pair, since every teacher answer is over data.max_response_length 14: data.max_response_length=55 would keep all; or set dpo.truncated=include`},
		{"sft --model student --data allcut.jsonl --output run SET data.truncated_teachers=filter", 3, `data: allcut.jsonl: none of 5 rows is within data.max_prompt_length 64 and data.max_response_length 14: raise them`},
		// columns and formats
		{"sft --model student --data question.jsonl --output run SET", 3, `data: question.jsonl: columns "user", "assistant": no "content" among them, and they are no known format of rows: did you mean --content-key user --teacher-key assistant (data.content_key=user data.teacher_key=assistant)?`},
		{"sft --model student --data question.jsonl --output run SET data.content_key=user", 3, `data: question.jsonl: column "teacher_response" is missing: name the teacher's column with data.teacher_key, such as data.teacher_key=assistant`},
		{"sft --model student --data answer.jsonl --output run SET", 3, `data: answer.jsonl: column "teacher_response" is missing: name the teacher's column with data.teacher_key, such as data.teacher_key=answer`},
		{"sft --model student --data letters.jsonl --output run SET", 3, `data: letters.jsonl: columns "a", "b": no "content" among them, and they are no known format of rows: name the column of the conversations with --content-key NAME (data.content_key)`},
		{"sft --model student --data fromvalue.jsonl --format messages --output run SET", 3, `data: fromvalue.jsonl: column "content": its turns have the keys "from", "value", not "role" and "content": give --format sharegpt (data.format=sharegpt)`},
		{"sft --model student --data rows.jsonl --format sharegpt --output run SET", 3, `data: rows.jsonl: column "content": its turns have the keys "role", "content", not "from" and "value": give --format messages (data.format=messages)`},
		{"sft --model student --data rows.jsonl --format alpaca --output run SET", 3, `data: rows.jsonl: columns "content", "teacher_response": no "instruction" among them, which data.format=alpaca reads: leave out --format, or name the column with --content-key NAME (data.content_key)`},
		{"sft --model student --data unanswered.jsonl --output run SET", 3, `data: unanswered.jsonl: no conversation in column "conversations" ends with a turn of gpt, which is the teacher's answer`},
		{"sft --model student --data rows.jsonl --format share --output run SET", 2, `settings: flag --format: setting "data.format": "share": expected one of: auto, messages, sharegpt, alpaca, qa, prompt_completion, preference`},
		{"data inspect --data rows.jsonl --format share", 2, `data inspect: --format "share": use auto, messages, sharegpt, alpaca, qa, prompt_completion, preference`},
		{"data inspect --data sharegpt.jsonl --format prompt_completion", 3, `data: sharegpt.jsonl: columns "conversations": no "prompt" among them, which data.format=prompt_completion reads: leave out --format, or name the column with --content-key NAME (data.content_key)`},
		{"data inspect --data columns.csv", 3, `data: columns.csv: columns "User", "Assistant": no "content" among them, and they are no known format of rows: did you mean --content-key User --teacher-key Assistant (data.content_key=User data.teacher_key=Assistant)?`},
		{"data inspect --data other.jsonl --data rows.jsonl", 3, `data: rows.jsonl: has the columns content, teacher_response, but other.jsonl has content, teacher_response, response: all files of a set must have the same columns`},
		// parts of rows that gad does not read
		{"sft --model student --data calls.jsonl --output run SET", 3, `data: calls.jsonl: row 0: column "messages": turn 1: has tool_calls, which gad does not read: remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data unweighted.jsonl --output run SET", 3, `data: unweighted.jsonl: row 1: column "messages": turn 1: the last answer has weight 0: it is not to be learned: remove the row, or the turns after the answer that is (gad data validate lists all such rows)`},
		{"sft --model student --data image.jsonl --output run SET", 3, `data: image.jsonl: row 0: column "messages": turn 0: its content has a part of type "image_url", and only text is read: remove the row (gad data validate lists all such rows)`},
		{"sft --model student --data python.csv --output run SET", 3, `data: python.csv: row 0: column "messages": "[{'role': 'user', 'content': 'q'}]": a conversation as Python prints it, not text: write it as JSON (json.dumps) (gad data validate lists all such rows)`},
		{"data collect --prompts python.csv --base-url http://127.0.0.1:9/v1 --model m --output got.jsonl", 3, `data: python.csv: row 0: column "messages": "[{'role': 'user', 'content': 'q'}]": a conversation as Python prints it, not text: write it as JSON (json.dumps)`},
		{"sft --model student --data json.csv --output run SET", 3, `data: json.csv: row 0: column "conversations": "[{\"from\":\"human\",\"value\":\"q\"},{\"from\":\"g"...: its turns have the keys "from", "value": give --format sharegpt (data.format=sharegpt) (gad data validate lists all such rows)`},
		{"sft --model student --data mixed.jsonl --output run SET", 3, `data: mixed.jsonl: row 1: column "content": null: the row has no prompt but that in column "messages", and other rows have theirs in "content": write all rows alike, or in a file for each kind (gad data validate lists all such rows)`},
		{"sft --model student --data systems.jsonl --output run SET", 3, `data: systems.jsonl: row 0: column "system": "s": differs from the system turn "t": keep the system message in one place only (gad data validate lists all such rows)`},
		{"sft --model student --data preferred.jsonl --output run SET", 3, `data: preferred.jsonl: columns "input", "preferred_output", "non_preferred_output": they are preference data as OpenAI has it: keep the preferred answers, jq -c '{messages: (.input.messages + .preferred_output)}' OLD > NEW`},
		{"sft --model student --data hh.jsonl --output run SET", 3, `data: hh.jsonl: column "chosen": preference data whose prompt stands in the text of the answers: write the prompt in a column "prompt" and the answers without it`},
		{"sft --model student --data pairs.jsonl --output run SET", 3, `data: pairs.jsonl: no conversation in column "conversations" ends with a turn of gpt: if the teacher's answers are the turns in "chosen": jq -c '.conversations += [.chosen]' OLD > NEW`},
		{"sft --model student --data instances.jsonl --output run SET", 3, `data: instances.jsonl: has no answers but those inside of "instances": jq -c '{instruction} + .instances[]' OLD > NEW`},
		{"sft --model student --data squad.jsonl --output run SET", 3, `data: squad.jsonl: has no answers but those inside of "answers": write one as a text in a column "answer"`},
		{"data inspect --data speaker.jsonl", 3, `data: speaker.jsonl: column "messages": its turns have the keys "speaker", "text", not "role" and "content": rename them: jq -c '.messages |= map({role: .speaker, content: .text})' OLD > NEW`},
		{"data inspect --data passage.jsonl", 3, `data: passage.jsonl: columns "passage", "input", "label": no "content" among them, and they are no known format of rows: did you mean --content-key input --teacher-key label (data.content_key=input data.teacher_key=label)? The student would not see "passage"`},
		{"sft --model student --data nan.jsonl --output run SET", 3, `data: nan.jsonl: row 1: key "score": invalid character 'N' looking for beginning of value: file is corrupt: NaN and Infinity are not JSON: write null: correct or remove the row (gad data validate lists all such rows)`},
		{"data inspect --data double.csv", 3, `data: double.csv: column "content": appears twice: rename or remove one`},
		{"data inspect --data rows.jsonl --row 100000", 2, `data inspect: --row 100000: the set has rows 0 to ` + lastRow},
		{"data inspect --data rows.jsonl --row -1", 2, `data inspect: --row -1: the set has rows 0 to ` + lastRow},
		{"data inspect --data calls.jsonl --model student", 3, `data: calls.jsonl: row 0: column "messages": turn 1: has tool_calls, which gad does not read: remove the row`},
		{"data inspect --data rows.jsonl --model nowhere", 3, `model: nowhere: no such folder: give a Hugging Face model folder`},
		// sizes
		{"sft --model student --data rows.jsonl --output run SET data.train_batch_size=99999999999", 2, `settings: override "data.train_batch_size=99999999999": setting "data.train_batch_size": "99999999999": above the maximum 1048576`},
		{"sft --model student --data rows.jsonl --output run data.max_prompt_length=64 data.max_response_length=2000000", 2, `settings: override "data.max_response_length=2000000": setting "data.max_response_length": "2000000": above the maximum 1048576`},
		{"sft --model student --data rows.jsonl --output run SET data.cache_gb=99999999999", 2, `settings: override "data.cache_gb=99999999999": setting "data.cache_gb": "99999999999": above the maximum 1000000`},
		// files that are something else
		{"data inspect --data pretty.jsonl", 3, `data: pretty.jsonl: row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)`},
		{"data inspect --data pretty.json", 3, `data: pretty.json: row 0: the object does not end on its line: write one object per line (jq -c . OLD > NEW)`},
		{"data inspect --data object.json", 3, `data: object.json: columns "data": no "content" among them, and they are no known format of rows: if the rows are inside of "data": jq -c '.data[]' OLD > NEW`},
		{"data inspect --data string.json", 3, `data: string.json: is JSON, but has no rows: write one object per line, or an array of objects`},
		{"data inspect --data empty.jsonl", 3, `data: empty.jsonl: file is empty: write it again`},
		{"data inspect --data spaces.jsonl", 3, `data: spaces.jsonl: file is blank: write it again`},
		{"data inspect --data lfs.parquet", 3, `data: lfs.parquet: is a Git LFS pointer, not the data: fetch it with git lfs pull`},
		{"data inspect --data page.parquet", 3, `data: page.parquet: is a web page, not the data: the download went wrong, so fetch the file itself`},
		{"data inspect --data rows.jsonl.gz", 3, `data: rows.jsonl.gz: is a gzip file: decompress it first (gunzip)`},
		{"data inspect --data rows.zip", 3, `data: rows.zip: is a zip archive (or .xlsx, .pt, .npz): unpack it, or export the table as CSV`},
		{"data inspect --data model.gguf", 3, `data: model.gguf: is a GGUF model, not data: give rows with --data`},
		{"data inspect --data model.safetensors", 3, `data: model.safetensors: is a safetensors model file, not data: give rows with --data, the model's folder with --model`},
		{"data inspect --data cut.parquet", 3, `data: cut.parquet: does not end with PAR1: file is cut short: write it again`},
		{"data inspect --data utf16.jsonl", 3, `data: utf16.jsonl: is UTF-16 text: convert it, iconv -f UTF-16 -t UTF-8 OLD > NEW`},
		{"data inspect --data ragged.csv", 3, `data: ragged.csv: line 2: wrong number of fields: quote texts as RFC 4180 says, or write JSON lines`},
		{"data inspect --data quote.csv", 3, `data: quote.csv: line 2: extraneous or missing " in quoted-field: quote texts as RFC 4180 says, or write JSON lines`},
		{"data inspect --data notes.txt", 3, `data: notes.txt: is neither Arrow IPC, Parquet, JSON nor a .csv or .tsv file (first bytes "content,"): convert it to one of these`},
		{"data inspect --data student", 3, `data: student: is a model's folder, not data: give rows with --data, this with --model`},
		{"data inspect --data papers", 3, `data: papers: contains no data files (.arrow .arrows .stream .ipc .feather .parquet .jsonl .ndjson) and was not written by datasets.save_to_disk: give a data file, or a folder of them`},
		{"data inspect --teacher-key id --data " + filepath.Join(rowFixtures, "id_struct.parquet"), 3, `data: ` + rowFixtures + `/id_struct.parquet: column "id": type struct<a: int64>: expected a string: convert the column`},
		{"data inspect --teacher-key id --data " + filepath.Join(rowFixtures, "id_stream_split.parquet"), 3, `data: ` + rowFixtures + `/id_stream_split.parquet: column "id": type int64: expected a string: convert the column`},
		// several files and splits
		{"sft --model student --data *.arrow --output run SET", 3, `data: *.arrow: the pattern matches no file: check it, and quote it so that the shell does not expand it`},
		{"sft --model student --data rows.jsonl,other.jsonl --output run SET", 3, `data: rows.jsonl,other.jsonl: does not exist: for several files give --data once for each`},
		{"sft --model student --data org/some-set --output run SET", 3, `data: org/some-set: there is no such file or folder, and the cache /nowhere does not have it: run gad pull --dataset org/some-set`},
		{"sft --model student --data rows.jsonl --data nowhere.jsonl --output run SET", 3, `data: nowhere.jsonl: does not exist: give a data file or a folder`},
		{"sft --model student --data rows.jsonl --data ./rows.jsonl --output run SET", 3, `data: rows.jsonl: given twice: its rows would count twice: give it once`},
		{"sft --model student --data rows.jsonl --val-data nowhere.jsonl --output run SET", 3, `data.val_files: data: nowhere.jsonl: does not exist: give a data file or a folder`},
		{"sft --model student --data hub --output run SET", 3, `data: hub/data: contains the splits "test", "train": give one, such as --split train (data.split; data.val_split for validation)`},
		{"sft --model student --data hub/data --split dev --output run SET", 3, `data: hub/data: contains no split "dev": it has "test", "train": give one of them with --split (data.split; data.val_split for validation)`},
		{"sft --model student --data rows.jsonl --split train --output run SET", 3, `data: rows.jsonl: is one file and has no split "train": leave out --split (data.split, data.val_split)`},
		{"sft --model student --data plain --output run SET", 3, `data: plain: contains the splits "test", "train": give one, such as --split train (data.split; data.val_split for validation)`},
		{"sft --model student --data half --output run SET", 3, `data: half: only 1 of 2 shards of "train" are there: fetch the missing files`},
		{"sft --model student --data hub --split train --val-data hub --output run SET", 3, `data.val_files: data: hub/data: contains the splits "test", "train": give one, such as --split train (data.split; data.val_split for validation)`},
		{"data validate --data rows.jsonl --val-data nowhere.jsonl", 3, `data: nowhere.jsonl: does not exist: give a data file or a folder`},
		{"data validate --split train", 2, `data validate: --data is missing: see gad data validate --help`},
		{"sft --model student --output run SET data.train_files=[]", 2, `settings: data.train_files: no training data: give --data FILE`},
		{"sft --model student --output run SET data.train_files=[rows.jsonl", 2, `settings: override "data.train_files=[rows.jsonl": setting "data.train_files": expected a list of texts, such as [a, b]: line 1: did not find expected ',' or ']'`},
		{"data split --data hub --first a.jsonl --second b.jsonl", 3, `data: hub/data: contains the splits "test", "train": give one, such as --split train (data.split; data.val_split for validation)`},
		{"data convert --data question.jsonl --output new.jsonl", 3, `data: question.jsonl: columns "user", "assistant": no "content" among them, and they are no known format of rows: did you mean --content-key user --teacher-key assistant (data.content_key=user data.teacher_key=assistant)?`},
		{"data convert --data rows.jsonl --output new.csv", 3, `data: new.csv: suffix ".csv": names no format: use .arrow, .arrows, .stream, .parquet or .jsonl`},
	})
}

// What the data commands print of sets that are odd: the report, then the error.
func TestDataReports(t *testing.T) {
	f := ready(t)
	rows, err := filepath.Abs("../../testdata/rows")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.Symlink(f.path("student"), "student"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bad.jsonl":   strings.Repeat(`{"content":[{"role":"human","content":"q"},{"role":"user","content":"q"}],"teacher_response":"a"}`+"\n", 3000),
		"cut.jsonl":   strings.Repeat(`{"content":"Add 1+1+1","teacher_response":"`+strings.Repeat("It is 3. ", 9)+`"}`+"\n", 2),
		"val.jsonl":   `{"content":"Add 1+1+1","teacher_response":"It is 3."}` + "\n",
		"given.jsonl": `{"instruction":"i","input":"x","response":"a"}` + "\n" + `{"instruction":"j","input":"","response":"b"}` + "\n",
		"same.jsonl":  strings.Repeat(`{"content":"QUESTION","teacher_response":"As an AI I cannot."}`+"\n", 3),
		"think.jsonl": `{"content":"<|im_start|>user","teacher_response":"<think>a</think>It is 3.<|im_end|>","reasoning":"r","score":1}` + "\n",
		"kto.jsonl":   `{"prompt":"q","completion":"a","label":false}` + "\n",
		"more.csv":    "id,score,content,teacher_response\n1,0.5,Add 1+1+1,\"It is, I say, 3.\"\n",
	} {
		for k := 1; strings.Contains(text, "QUESTION"); k++ {
			text = strings.Replace(text, "QUESTION", strings.Repeat("q", k), 1)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line    string
		code    int
		printed []string // lines
		err     string
	}{
		{"data validate --data bad.jsonl", exitInput, []string{
			`error: bad.jsonl: rows 0, 1, 2, 3, 4 and 2995 more: turn 0 of column "content" has the unknown role "human": use system, developer, user, assistant, tool`,
			`warning: bad.jsonl: rows 1, 2, 3, 4, 5 and 2994 more: same prompt and answer as row 0 of bad.jsonl`,
			`3000 errors, 2999 warnings`,
		}, "data: bad.jsonl: training refuses rows (errors: 3000): correct or remove them"},
		{"data validate --data cut.jsonl --model student --max-prompt-length 64 --max-response-length 14 --val-data val.jsonl", exitDone, []string{
			`note: every answer is over the limit of 14 tokens and no row can make a pair: warmup, train and dpo refuse the set; 55 would keep all answers, 55 99 %`,
			`note: 1 of 1 validation rows have a prompt that is also in the training data, 0 of them also the same answer`,
			`warning: cut.jsonl: rows 0 and 1: answer in column "teacher_response" has 55 tokens and is cut at data.max_response_length 14`,
		}, ""},
		{"data convert --data more.csv --data val.jsonl --output new.jsonl", exitDone, []string{`new.jsonl: 2 rows`, `columns left out: score`}, ""},
		{"data validate --data new.jsonl", exitDone, []string{`0 errors, 0 warnings`}, ""},
		{"data convert --data " + rows + "/sharegpt.parquet --output share.arrow", exitDone, []string{`share.arrow: 12 rows`,
			`note: ` + rows + `/sharegpt.parquet: read as sharegpt: prompt from column "conversations", teacher's answer is its last turn of gpt (data.format=sharegpt)`}, ""},
		{"data validate --data share.arrow --data " + rows + "/*.tsv", exitDone, []string{`0 errors, 15 warnings`}, ""},
		{"data validate --data given.jsonl --content-key instruction --teacher-key response", exitDone, []string{
			`warning: given.jsonl: row 0: column "input" is not read, although the answer may speak of it: give --format alpaca (data.format=alpaca)`,
			`0 errors, 1 warning`}, ""},
		{"data inspect --data given.jsonl --content-key instruction --teacher-key response", exitDone, []string{
			`  input                string  not read`,
			`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`}, ""},
		{"data convert --data given.jsonl --content-key instruction --teacher-key response --output given.arrow", exitDone, []string{
			`warning: given.jsonl: not read, although answers may speak of it: "input": give --format alpaca (data.format=alpaca)`, `columns left out: input`}, ""},
		{"data validate --data same.jsonl", exitDone, []string{
			`note: 3 of 3 rows have the same answer, "As an AI I cannot.", to different prompts (the first is row 0)`}, ""},
		{"data validate --data think.jsonl", exitDone, []string{
			`warning: think.jsonl: row 0: column "reasoning" is not read, although the answer may speak of it: put what matters into the prompt`,
			`warning: think.jsonl: row 0: "<|im_start|>" in a text of column "content": gad reads it as these letters, never as a control token: remove it, or write turns`,
			`warning: think.jsonl: row 0: "<|im_end|>" in a text of column "teacher_response": gad reads it as these letters, never as a control token: remove it, or write turns`,
			`warning: think.jsonl: row 0: answer in column "teacher_response" contains <think>: the student learns to think aloud too, unless you cut that out`,
			`0 errors, 4 warnings`}, ""},
		{"data inspect --data kto.jsonl", exitDone, []string{
			`warning: kto.jsonl: column "label" is not read: rows with false, which KTO has as bad answers, count as answers too: remove them first`}, ""},
		{"data inspect --data val.jsonl --row 0 --model student", exitDone, []string{
			`row 0`, `prompt: 26 tokens`, `answer: 7 tokens, 26 to 32; the last is its end token, "<|im_end|>"`, `  | It is 3.<|im_end|>`}, ""},
		{"data inspect --data think.jsonl --model student", exitDone, []string{
			`warning: think.jsonl: row 0: column "reasoning" is not read, although the answer may speak of it: put what matters into the prompt`,
			`  | <|im_start|>user<|im_end|>`}, ""},
		{"data inspect --data val.jsonl --model student --max-response-length 4", exitDone, []string{
			`answer: 4 tokens, 26 to 29; cut at data.max_response_length 4 of 7, so without an end token`, `  | It is `}, ""},
		{"data inspect --data " + rows + "/id_struct.parquet", exitDone, []string{
			`warning: ` + rows + `/id_struct.parquet: column "id": type struct<a: int64>: expected a string or an integer: convert the column: left out`}, ""},
	} {
		code, out, said := gad(strings.Fields(c.line)...)
		if want := "gad: " + c.err + "\n"; code != c.code || c.err != "" && said != want || c.err == "" && said != "" {
			t.Errorf("%s: exit status %d, says %swant %d %s", c.line, code, said, c.code, c.err)
		}
		for _, want := range c.printed {
			if !strings.Contains("\n"+out, "\n"+want+"\n") {
				t.Errorf("%s\nprints\n%s\nwithout %s", c.line, out, want)
			}
		}
	}
}

// Public layouts train as they are: arrays, lines, Parquet, and folders of datasets.
func TestLayoutsTrain(t *testing.T) {
	f := ready(t)
	layouts, err := filepath.Abs("../../testdata/layouts")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for k, c := range []struct{ file, note string }{
		{"gpteacher.json", `read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "response" (data.format=alpaca)`},
		{"gsm8k.parquet", `read as qa: prompt from column "question", teacher's answer from column "answer" (data.format=qa)`},
		{"codealpaca.jsonl", `read as alpaca: prompt from column "instruction" and "input", teacher's answer from column "output" (data.format=alpaca)`},
		{"dolly_saved", `not read: "category"`},
		{"preference_turns.parquet", `not read: "rejected"`},
		{"reasoning.arrow", `not read, although answers may speak of it: "messages[].reasoning_content": put what matters into the prompt`},
	} {
		run := "run" + strconv.Itoa(k)
		code, _, said := gad("sft", "--model", f.path("student"), "--data", filepath.Join(layouts, c.file), "--output", run, "--steps", "1",
			"data.train_batch_size=3", "data.max_prompt_length=110", "data.max_response_length=18")
		if code != exitDone || !strings.Contains(said, c.note+"\n") || !strings.Contains(said, "3 rows") {
			t.Errorf("%s: exit status %d, says %s want %s", c.file, code, said, c.note)
		}
	}
}

// Settings of the data that are lists: flags, overrides and files, and what an older
// run wrote as one text.
func TestDataSettings(t *testing.T) {
	f := ready(t)
	t.Chdir(t.TempDir())
	if err := os.Symlink(f.path("student"), "student"); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(f.path("test.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	for name, text := range map[string]string{"a.jsonl": strings.Join(lines[:5], ""), "b.jsonl": strings.Join(lines[5:], ""),
		"old.yaml": "data:\n  train_files: a.jsonl" + string(filepath.ListSeparator) + "b.jsonl\n  val_files: \"\"\n", "new.yaml": "data:\n  train_files: [a.jsonl, b.jsonl]\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := ""
	for i, given := range []string{"--data a.jsonl --data b.jsonl", "--data [ab].jsonl", "--config old.yaml", "--config new.yaml", "data.train_files=[a.jsonl,b.jsonl]"} {
		flags, overrides := given, ""
		if !strings.HasPrefix(given, "--") {
			flags, overrides = "", given
		}
		run := filepath.Join("runs", string(rune('a'+i)))
		line := "sft --model student " + flags + " --output " + run + " --steps 2 data.max_prompt_length=64 data.max_response_length=14 data.train_batch_size=4 " + overrides
		if code, _, said := gad(strings.Fields(line)...); code != exitDone {
			t.Fatalf("%s: exit status %d\n%s", line, code, said)
		}
		model, err := os.ReadFile(filepath.Join(run, "global_step_2", "actor", "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(model)
		} else if string(model) != first {
			t.Errorf("%s: another student than by --data a.jsonl --data b.jsonl", given)
		}
		// the run's own settings load, from another folder too
		t.Run(given, func(t *testing.T) {
			abs, err := filepath.Abs(run)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir(t.TempDir())
			if code, _, said := gad("sft", "--output", abs, "--steps", "3"); code != exitDone || !strings.Contains(said, "step 3/3") {
				t.Errorf("exit status %d\n%s", code, said)
			}
		})
	}
}
