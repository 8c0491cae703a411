#!/usr/bin/env bash
# The studies on a real model (doc/study.md): makes data and students once, runs a
# study, prints its table. Killed? The same command resumes.
#
#   MODEL=SmolLM2-135M-Instruct.Q4_1.gguf GPTEACHER=folder scripts/study/real.sh half [gad study's flags]
#
# half, half-search, signals, signals-search, horizons, gpt4 or gpt4-search; in the repository's
# root. MODEL is a GGUF file or a model folder, GPTEACHER a folder with GPTeacher's roleplay.json and
# codegen.json. GAD=path names another binary.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad}
name=${1:?"half, half-search, signals, signals-search, horizons, gpt4 or gpt4-search"}
shift
: "${MODEL:?"MODEL=FILE.gguf or a model folder"}" "${GPTEACHER:?"GPTEACHER=folder with roleplay.json and codegen.json"}"
runs=runs/real
mkdir -p "$runs"

# once FILE COMMAND...: the command makes FILE, which is kept.
once() {
  local file=$1
  shift
  [ -e "$file" ] || "$@"
}
# cut IN FRACTION FIRST SECOND
cut_in_two() { once "$4" "$GAD" data split --data "$1" --fraction "$2" --seed 1 --first "$3" --second "$4"; }

once "$runs/smollm2/config.json" "$GAD" export --model "$MODEL" --output "$runs/smollm2"
case $name in
gpt4*)
  once "$runs/roleplay.jsonl" "$GAD" data convert --data "$GPTEACHER/roleplay.json" --output "$runs/roleplay.jsonl"
  cut_in_two "$runs/roleplay.jsonl" 0.8 "$runs/gpt4-train.jsonl" "$runs/gpt4-rest.jsonl"
  cut_in_two "$runs/gpt4-rest.jsonl" 0.5 "$runs/gpt4-tune.jsonl" "$runs/gpt4-test.jsonl"
  ;;
half* | signals* | horizons)
  once "$runs/half-student" "$GAD" init --from "$runs/smollm2" --keep-layers 0-28:2 --output "$runs/half-student"
  once "$runs/all.jsonl" "$GAD" data convert --data "$GPTEACHER/roleplay.json" --data "$GPTEACHER/codegen.json" --output "$runs/all.jsonl"
  cut_in_two "$runs/all.jsonl" 0.6 "$runs/prompts-train.jsonl" "$runs/prompts-rest.jsonl"
  cut_in_two "$runs/prompts-rest.jsonl" 0.5 "$runs/prompts-tune.jsonl" "$runs/prompts-test.jsonl"
  if [ ! -e "$runs/half-test.jsonl" ]; then
    "$GAD" serve --model "$runs/smollm2" --name smollm2 --listen 127.0.0.1:8123 --precision bf16 --max-queue 256 &
    trap 'kill %1' EXIT
    for part in "train 2000" "tune 128" "test 256"; do
      read -r set rows <<<"$part"
      once "$runs/half-$set.jsonl" "$GAD" data collect --prompts "$runs/prompts-$set.jsonl" --limit "$rows" \
        --base-url http://127.0.0.1:8123/v1 --model smollm2 --temperature 1 --max-tokens 96 --seed 1 --concurrency 64 \
        --output "$runs/half-$set.jsonl"
    done
    kill %1
    trap - EXIT
  fi
  # The kept layers alone speak nonsense (a loss of 14 nats): all arms begin with what some
  # training on the teacher's answers makes of them.
  if [ ! -e "$runs/half-healed/config.json" ]; then
    "$GAD" sft --model "$runs/half-student" --data "$runs/half-train.jsonl" --output "$runs/half-heal" --steps 300 --seed 1 \
      --precision bf16 data.train_batch_size=16 data.max_prompt_length=128 data.overlong_prompts=filter data.max_response_length=96 \
      actor.optim.lr=1e-3 actor.optim.lr_warmup_steps=10 actor.optim.lr_scheduler=cosine actor.optim.min_lr_ratio=0.05 \
      actor.optim.beta2=0.95 actor.grad_clip=1 trainer.save_freq=50 trainer.max_ckpt_to_keep=1
    "$GAD" export --run "$runs/half-heal" --output "$runs/half-healed"
  fi
  if [[ $name = signals* ]]; then # the same rows with the teacher's best 20 tokens at each place
    once "$runs/half-soft.parquet" "$GAD" data score --teacher "$runs/smollm2" --data "$runs/half-train.jsonl" --output "$runs/half-soft.parquet"
  fi
  ;;
*)
  echo "scripts/study/real.sh: $name: use half, half-search, signals, signals-search, horizons, gpt4 or gpt4-search" >&2
  exit 2
  ;;
esac
exec "$GAD" study "$@" "scripts/study/real-$name.yaml"
