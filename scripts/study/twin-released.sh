#!/usr/bin/env bash
# A twin where the student is a released model (doc/twin.md). Needs the folder RUNS of
# scripts/study/fidelity.sh after its pair; the figures are printed. Killed? The same command goes on.
#
#   RUNS=runs/fidelity scripts/study/twin-released.sh PAIR
#
# PAIR pirate: SFT on the teacher's answers makes the likelihood, measured after 8 and 24 steps beside
# those of two warm-ups. PAIR half (after fidelity-game.sh sft 1): every second layer healed once more,
# 4 steps of its probabilities, and the same after 28 steps of SFT by both. GAD names the binary, THREADS.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/fidelity} THREADS=${THREADS:-2}
pair=${1:?pirate or half}
out=$RUNS/twin-$pair
mkdir -p "$out"
machine=(--threads "$THREADS" --precision bf16)
lengths=(data.max_prompt_length=128 data.overlong_prompts=filter data.max_response_length=48)

# export STEP'S FOLDER, OUTPUT: adapters are added to their base.
export_() { [ -e "$2/config.json" ] || "$GAD" export --model "$1" --output "$2"; }

pirate() {
  local k critics=()
  [ -e "$out/sft/global_step_24" ] || "$GAD" sft --model "$RUNS/model" --data "$RUNS/train-pirate.jsonl" \
    --output "$out/sft" --steps 24 --seed 1 "${machine[@]}" "${lengths[@]}" data.train_batch_size=30 \
    actor.lora.rank=16 actor.optim.lr=1e-3 actor.optim.lr_warmup_steps=3 actor.optim.lr_scheduler=cosine \
    actor.grad_clip=1 trainer.save_freq=8 trainer.max_ckpt_to_keep=9
  for k in 8 24; do
    export_ "$out/sft/global_step_$k/actor" "$out/q-$k"
    [ -e "$out/warm-$k/global_step_1" ] || "$GAD" warmup --model "$RUNS/model" --reward-model "$out/q-$k" \
      --data "$RUNS/train-pirate.jsonl" --output "$out/warm-$k" --critic-warmup 1 --steps 1 --seed 1 \
      "${machine[@]}" "${lengths[@]}" data.train_batch_size=1 rollout.n=2 rollout.temperature=1 \
      critic.truncated=include critic.head=likelihood critic.optim.lr=1e-12 trainer.save_freq=0
    critics+=(--critic "$out/warm-$k/global_step_1")
  done
  for k in 1 2; do critics+=(--critic "$RUNS/pirate-likelihood-$k/global_step_2"); done
  "$GAD" fidelity "${critics[@]}" --model "$RUNS/model" --teacher "$RUNS/model" \
    --teacher-system 'You are a pirate. Answer in one or two sentences, as a pirate would.' \
    --data "$RUNS/held-pirate.jsonl" -n 8 --temperature 1 --max-response-length 48 --seed 101 "${machine[@]}"
}

# measure MODEL NAME: two samples of each held-out prompt.
measure() {
  local k
  for k in 1 2; do
    [ -e "$out/$2.$k.json" ] || {
      "$GAD" eval --model "$1" --against "$RUNS/model" --data "$RUNS/held-half.jsonl" --temperature 1 --seed "$k" \
        --max-response-length 48 --disc-steps 0 "${machine[@]}" --json >"$out/$2.tmp"
      mv "$out/$2.tmp" "$out/$2.$k.json"
    }
  done
  echo "$2 $(grep -ho '"reverse_kl":[0-9.]*\|"forward_kl":[0-9.]*' "$out/$2".?.json | tr '\n' ' ')"
}

# stage COMMAND RUN STEPS ARGUMENT...: LoRA, 30 prompts a step.
stage() {
  local command=$1 run=$2 steps=$3
  shift 3
  [ -e "$run/global_step_$steps" ] || "$GAD" "$command" --data "$RUNS/train-half.jsonl" --output "$run" --steps "$steps" \
    "${machine[@]}" "${lengths[@]}" data.train_batch_size=30 rollout.n=4 rollout.temperature=1 actor.lora.rank=16 \
    actor.optim.beta2=0.95 actor.ppo_mini_batch_size=5 actor.grad_clip=1 trainer.save_freq=0 "$@"
}

half() {
  [ -e "$out/healed/config.json" ] || {
    "$GAD" sft --model "$RUNS/half-cut" --data "$RUNS/heal-half.jsonl" --output "$out/heal" --steps 240 --seed 2 \
      "${machine[@]}" data.train_batch_size=16 data.max_prompt_length=160 data.overlong_prompts=filter \
      data.max_response_length=48 actor.optim.lr=1e-3 actor.optim.lr_warmup_steps=10 actor.optim.lr_scheduler=cosine \
      actor.optim.min_lr_ratio=0.05 actor.optim.beta2=0.95 actor.grad_clip=1 trainer.save_freq=60 trainer.max_ckpt_to_keep=1
    "$GAD" export --run "$out/heal" --output "$out/healed"
  }
  measure "$RUNS/half" before
  measure "$out/healed" twin
  stage opd "$out/opd" 4 --model "$RUNS/half" --teacher "$out/healed" --seed 1 teacher.loss=exact actor.optim.lr=3e-4
  measure "$out/opd/global_step_4/actor" twin-4
  stage sft "$out/sft" 28 --model "$out/healed" --seed 2 actor.optim.lr=1e-3 actor.optim.lr_warmup_steps=3
  export_ "$out/sft/global_step_28/actor" "$out/sft-twin"
  export_ "$RUNS/game-sft-2-1/global_step_28/actor" "$out/sft-own"
  measure "$out/sft-own" sft
  measure "$out/sft-twin" sft-twin
  stage opd "$out/sft-opd" 4 --model "$out/sft-own" --teacher "$out/sft-twin" --seed 1 teacher.loss=exact actor.optim.lr=3e-4
  measure "$out/sft-opd/global_step_4/actor" sft-twin-4
}

case $pair in pirate | half) "$pair" ;; *) echo "$0: $pair: use pirate or half" >&2; exit 2 ;; esac
