#!/usr/bin/env bash
# What a second student is worth, which SFT has taught the same answers from other random weights
# (doc/twin.md): as the teacher of gad opd, and as the likelihood that a game begins with.
# Needs the data and students of scripts/study/ladder.sh SIZE. Killed? The same command goes on.
#
#   RUNS=runs/ladder scripts/study/twin.sh SIZE "ARM ..." "SEED ..."
#   RUNS=runs/ladder scripts/study/twin.py SIZE      the table
#
# The twin of seed 1 is seed 2, of 2 seed 3, of 3 seed 1. ARM:
#   sft         2,000 steps on the teacher's answers, from which all others begin
#   twice       then 100 steps of gad opd on the twin's probabilities, exact KL
#   token       then 300 steps of the game: the likelihood begins as the twin, each token has its own
#               reward (critic.level=token, gamma 0.001)
#   token-own   the same, but the likelihood begins as the student itself
#   token-still the same as token, but the likelihood does not learn
#   token-flat  the same as token, but PPO's loss, a mean over tokens and not over answers
#   answer      the same as token, but an answer's reward is its whole score
#   score       gad fidelity of the twin's likelihood before it learns (after token), and of CRITICS,
#               other runs; scripts/study/given-length.py has what they know beyond length
# GAD names the binary, THREADS.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/ladder} THREADS=${THREADS:-2}
size=${1:?2m or 8m} arms=${2:?arms} seeds=${3:-1}
out=$RUNS/$size/twin
mkdir -p "$out"
common=(--data "$RUNS/train.jsonl" --precision bf16 --threads "$THREADS" data.teacher_key=response
  data.max_prompt_length=64 data.max_response_length=48 rollout.temperature=1 trainer.save_samples=4)
likelihood=(critic.head=likelihood critic.truncated=include algorithm.truncated_reward=score)
case $size in 2m) rate=3e-3 game=1e-4 ;; 8m) rate=2e-3 game=5e-5 ;; *) echo "$0: $size: use 2m or 8m" >&2; exit 2 ;; esac

# sft SEED
sft() {
  [ -e "$out/sft-$1/global_step_2000" ] || "$GAD" sft --model "$RUNS/$size/student-$1" --output "$out/sft-$1" --seed "$1" \
    --steps 2000 "${common[@]}" trainer.save_freq=0 data.train_batch_size=32 actor.optim.lr="$rate" actor.optim.beta2=0.95 \
    actor.optim.lr_warmup_steps=30 actor.optim.lr_scheduler=cosine actor.optim.min_lr_ratio=0.03
}

# measure RUN: 200 held-out rows, after every saved step.
measure() {
  for checkpoint in "$1"/global_step_*; do
    local to=$1-${checkpoint##*_}.json
    [ -e "$to" ] || {
      "$GAD" eval --model "$checkpoint/actor" --against "$RUNS/teacher" --data "$RUNS/test.jsonl" --limit 200 \
        --teacher-key response --temperature 1 --seed 7 --max-response-length 48 --disc-steps 0 \
        --threads "$THREADS" --precision bf16 --json >"$to.tmp"
      mv "$to.tmp" "$to"
    }
  done
}

# game RUN SEED LIKELIHOOD RATE SETTING...: a step of the warm-up that changes nothing puts the
# likelihood in its place.
game() {
  local run=$1 seed=$2 q=$3 lr=$4
  shift 4
  [ -e "$run-warm/global_step_1" ] || "$GAD" warmup --model "$out/sft-$seed/global_step_2000/actor" --reward-model "$q" \
    --output "$run-warm" --seed "$seed" --critic-warmup 1 --steps 1 "${common[@]}" "${likelihood[@]}" \
    rollout.n=2 data.train_batch_size=1 critic.optim.lr=1e-12 trainer.save_freq=0
  [ -e "$run/global_step_300" ] || "$GAD" train --resume "$run-warm" --output "$run" --seed "$seed" --steps 300 \
    "${common[@]}" "${likelihood[@]}" rollout.max_num_seqs=128 data.train_batch_size=16 rollout.n=8 \
    critic.ppo_mini_batch_size=4 critic.optim.lr="$lr" critic.optim.beta2=0.98 critic.grad_clip=1 \
    actor.ppo_mini_batch_size=4 actor.optim.lr="$game" actor.optim.beta2=0.95 actor.grad_clip=1 \
    actor.kl_loss_coef=0.02 trainer.save_freq=100 trainer.max_ckpt_to_keep=10 "$@"
}
token=(critic.level=token algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.001)

for seed in $seeds; do
  sft "$seed"
  twin=$((seed % 3 + 1)) own=$out/sft-$seed/global_step_2000/actor
  for arm in $arms; do
    run=$out/$arm-$seed
    case $arm in sft) ;; token-own) ;; *) sft "$twin" ;; esac
    other=$out/sft-$twin/global_step_2000/actor
    case $arm in
    sft) ;;
    twice) [ -e "$run/global_step_100" ] || "$GAD" opd --model "$own" --teacher "$other" --output "$run" --seed "$seed" \
      --steps 100 "${common[@]}" trainer.save_freq=50 trainer.max_ckpt_to_keep=10 teacher.loss=exact \
      data.train_batch_size=16 rollout.n=2 actor.ppo_mini_batch_size=4 actor.optim.lr="$game" \
      actor.optim.beta2=0.95 actor.grad_clip=1 ;;
    token) game "$run" "$seed" "$other" 1e-4 "${token[@]}" ;;
    token-own) game "$run" "$seed" "$own" 1e-4 "${token[@]}" ;;
    token-still) game "$run" "$seed" "$other" 1e-12 "${token[@]}" ;;
    token-flat) game "$run" "$seed" "$other" 1e-4 "${token[@]}" actor.policy_loss.loss_mode=vanilla ;;
    answer) game "$run" "$seed" "$other" 1e-4 ;;
    score) [ -e "$run.answers" ] || {
      critics=(--critic "$out/token-$seed-warm")
      for c in ${CRITICS:-}; do critics+=(--critic "$c"); done
      "$GAD" fidelity "${critics[@]}" --model "$own" --teacher "$RUNS/teacher" --data "$RUNS/test.jsonl" \
        --teacher-key response --limit 60 -n 8 --temperature 1 --max-response-length 48 \
        --threads "$THREADS" --precision bf16 --output "$run.answers"
    }
      python3 scripts/study/given-length.py "$run.answers"
      continue ;;
    *) echo "$0: no arm $arm" >&2; exit 2 ;;
    esac
    measure "$run"
  done
done
