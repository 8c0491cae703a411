#!/bin/bash
# For each pre-tokenizer that gad knows llama.cpp's name of, beside those of students.sh:
# the Qwen2 student of students.sh with its tokenizer changed, one step of training, and a
# GGUF file. compare.py --tokens then compares tokens only.
#
#     scripts/gguf/pretokenizers.sh GAD WORK
set -euo pipefail
export LC_ALL=C.UTF-8
gad=$(realpath "$1") work=$2
for pre in gpt-2 smollm smaug-bpe qwen35; do
  rm -rf "$work/$pre" "$work/$pre".*
  cp -r "$work/qwen2" "$work/$pre"
  python3 - "$work/$pre/tokenizer.json" $pre <<'PY'
import json, sys
path, pre = sys.argv[1:]
t = json.load(open(path))
steps = t["pre_tokenizer"]["pretokenizers"]
gpt2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
if pre == "gpt-2":
    steps[:] = [gpt2]
elif pre == "smollm":
    steps[:] = [{"type": "Digits", "individual_digits": True}, gpt2]
elif pre == "smaug-bpe":
    steps[0]["pattern"]["Regex"] = steps[0]["pattern"]["Regex"].replace(r"|\p{N}|", r"|\p{N}{1,3}|")
else:
    steps[0]["pattern"]["Regex"] = steps[0]["pattern"]["Regex"].replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
json.dump(t, open(path, "w"), ensure_ascii=False)
PY
  "$gad" sft --model "$work/$pre" --data "$work/rows.jsonl" --output "$work/$pre.run" --steps 1 data.train_batch_size=2 \
    data.max_prompt_length=64 data.max_response_length=64 data.overlong_prompts=filter > "$work/$pre.log" 2>&1
  "$gad" export --run "$work/$pre.run" --output "$work/$pre.hf" --dtype float32
  "$gad" export --run "$work/$pre.run" --output "$work/$pre.f16.gguf" --gguf f16
done
