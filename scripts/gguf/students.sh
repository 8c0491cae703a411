#!/bin/bash
# Makes small trained students, one of each architecture, and exports each as a Hugging
# Face folder and as GGUF files of every type: what check.py and compare.py read.
#
#     scripts/gguf/students.sh GAD TEXT... WORK
#
# GAD is the binary, TEXT are text files: their paragraphs become rows (the beginning is
# the prompt, the rest the answer), the tokenizers' corpus and, every tenth of them, the
# held-out text WORK/held.txt. STEPS is how long they train, ARCHS which ones. Needs
# Python for the rows; some minutes.
set -euo pipefail
export LC_ALL=C.UTF-8
gad=$(realpath "$1") work=${*: -1}
texts=("${@:2:$#-2}")
steps=${STEPS:-300}
mkdir -p "$work"
python3 - "$work" "${texts[@]}" <<'PY'
import json, re, sys
work, texts = sys.argv[1], sys.argv[2:]
parts = [p for f in texts for p in re.split(r"\n\s*\n", open(f, encoding="utf-8").read()) if 200 < len(p) < 1200]
held = [p for i, p in enumerate(parts) if i % 10 == 9]
rest = [p for i, p in enumerate(parts) if i % 10 != 9]
with open(f"{work}/rows.jsonl", "w", encoding="utf-8") as f:
    for p in rest:
        n = p.find(" ", 30)
        f.write(json.dumps({"content": p[:n], "teacher_response": p[n:]}, ensure_ascii=False) + "\n")
extra = "Übergrößenträger naïve café Ελληνικά русский язык 中文字符 日本語 한국어 العربية हिन्दी 😀🎉👩‍👩‍👧 → ≤ ½ ² x1234567.89 don't WE'LL \t\t\r\n"
open(f"{work}/corpus.txt", "w", encoding="utf-8").write("\n\n".join(rest) + "\n" + extra * 20)
open(f"{work}/held.txt", "w", encoding="utf-8").write("\n\n".join(held))
print(len(rest), "rows,", len(held), "paragraphs held out")
PY

# config ARCH TYPE KEYS: a config.json
config() {
  printf '{"architectures":["%sForCausalLM"],"model_type":"%s","hidden_size":192,"intermediate_size":512,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":2,"vocab_size":4000,"max_position_embeddings":1024,"rms_norm_eps":1e-6,"torch_dtype":"float32","hidden_act":"silu",%s}' "$@"
}
train() {
  rm -rf "$work/$1.run"
  "$gad" sft --model "${3:-$work/$1}" --data "$work/rows.jsonl" --output "$work/$1.run" --steps "$2" \
    data.train_batch_size=8 actor.optim.lr="${4:-3e-3}" actor.optim.lr_warmup_steps=10 actor.optim.lr_scheduler=cosine actor.grad_clip=1 \
    data.max_prompt_length=64 data.max_response_length=256 data.overlong_prompts=filter actor.max_token_len=2048 trainer.total_epochs=100 ${5:-} > "$work/$1.log" 2>&1
}
# finish NAME FLAGS: exports
finish() {
  rm -rf "$work/$1.hf" "$work/$1".*.gguf
  "$gad" export --run "$work/$1.run" --output "$work/$1.hf" --dtype float32 ${2:-}
  for kind in f16 bf16 q8_0; do "$gad" export --run "$work/$1.run" --output "$work/$1.$kind.gguf" --gguf $kind; done
}
config Qwen2 qwen2 '"rope_theta":1000000.0,"tie_word_embeddings":true' > "$work/qwen2.json"
config Qwen3 qwen3 '"rope_theta":1000000.0,"tie_word_embeddings":false,"head_dim":64' > "$work/qwen3.json"
config Llama llama '"rope_theta":500000.0,"tie_word_embeddings":false,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}' > "$work/llama.json"
for arch in ${ARCHS:-qwen2 qwen3 llama}; do
  rm -rf "${work:?}/$arch"
  "$gad" init --config "$work/$arch.json" --corpus "$work/corpus.txt" --output "$work/$arch"
  if [ $arch = llama ]; then # the tokenizer of Llama 3's kind: groups of three digits, whole words first, a token before texts
    python3 - "$work/llama" <<'PY'
import json, sys
d = sys.argv[1]
t = json.load(open(f"{d}/tokenizer.json"))
pre = t["pre_tokenizer"]["pretokenizers"][0]["pattern"]
pre["Regex"] = pre["Regex"].replace(r"|\p{N}|", r"|\p{N}{1,3}|")
t["model"]["ignore_merges"], t["normalizer"] = True, None
bos = next(a for a in t["added_tokens"] if a["content"] == "<|endoftext|>")
t["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {bos["content"]: {"id": bos["content"], "ids": [bos["id"]], "tokens": [bos["content"]]}}}
json.dump(t, open(f"{d}/tokenizer.json", "w"), ensure_ascii=False)
PY
  fi
  train $arch "$steps"
  finish $arch
done
# adapters on the Qwen2 student
train lora 30 "$work/qwen2.hf" 2e-3 "actor.lora.rank=8"
finish lora --merge
