#!/usr/bin/env bash
# Does the fidelity of a reward predict the game (doc/study.md, "Is the score worth following")? One
# short game from each warm-up of scripts/study/fidelity.sh on the pair half, with the same settings;
# then the exact KL between student and teacher, both ways, before and after. Killed? The same command
# goes on.
#
#   scripts/study/fidelity-game.sh "ARM ..." "SEED ..." [STEP]
#   RUNS=folder scripts/study/fidelity-game.py     the table and the plot of all games
#
# STEP (2) is the step of the warm-up that the game begins from; GAMESTEPS (4), a multiple of 4, those
# of the game. A longer game goes on from the short one, and every fourth step is measured too
# (game-ARM-STEP-SEED-at-N).
# ARM opd is distillation by the teacher's own log-probabilities, the bound; sft and sft-full are SFT
# on the teacher's answers, with LoRA or without, 7 steps for each of the game: with GAMESTEPS=8 sft has
# the compute of a game of 4 with its warm-up (56 steps, 59 TFLOP, and 41 + 14).
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/fidelity} THREADS=${THREADS:-2} GAMESTEPS=${GAMESTEPS:-4}
arms=${1:?arms} seeds=${2:-1} step=${3:-2}
machine=(--threads "$THREADS" --precision bf16)

# measure MODEL OUT: three samples of each held-out prompt.
measure() {
  for k in 1 2 3; do
    [ -e "$2.$k.json" ] || {
      "$GAD" eval --model "$1" --against "$RUNS/model" --data "$RUNS/held-half.jsonl" --temperature 1 --seed "$k" \
        --max-response-length 48 --disc-steps 0 "${machine[@]}" --json >"$2.tmp"
      mv "$2.tmp" "$2.$k.json"
    }
  done
}
measure "$RUNS/half" "$RUNS/game-start"
for seed in $seeds; do
  for arm in $arms; do
    run=$RUNS/game-$arm-$step-$seed every=4
    case $arm in sft*) every=28 ;; esac
    last=$((GAMESTEPS / 4 * every))
    common=(--data "$RUNS/train-half.jsonl" --output "$run" --steps "$last" --seed "$seed" "${machine[@]}"
      data.train_batch_size=30 data.max_prompt_length=128 data.overlong_prompts=filter data.max_response_length=48
      rollout.n=4 rollout.temperature=1 actor.lora.rank=16 actor.optim.lr=3e-4 actor.optim.beta2=0.95
      actor.ppo_mini_batch_size=5 actor.grad_clip=1 trainer.save_freq=$every trainer.max_ckpt_to_keep=20)
    if [ ! -e "$run/global_step_$last" ]; then
      case $arm in
      sft) "$GAD" sft --model "$RUNS/half" "${common[@]}" actor.optim.lr=1e-3 \
        actor.optim.lr_warmup_steps=3 ;;
      sft-full) "$GAD" sft --model "$RUNS/half" "${common[@]}" actor.lora.rank=0 actor.optim.lr=2e-4 \
        actor.optim.lr_warmup_steps=3 ;;
      opd) "$GAD" opd --model "$RUNS/half" --teacher "$RUNS/model" "${common[@]}" ;;
      *)
        "$GAD" train --resume "$RUNS/half-$arm-$seed/global_step_$step" "${common[@]}" critic.truncated=include \
          algorithm.truncated_reward=score critic.ppo_mini_batch_size=2 critic.grad_clip=1 critic.lora.rank=16 \
          critic.optim.lr=1e-4 $(case $arm in likelihood*) echo critic.head=likelihood ;; esac)
        ;;
      esac
    fi
    for n in $(seq "$every" "$every" "$last"); do
      [ -d "$run/global_step_$n" ] || continue
      if [ "$n" = "$every" ]; then out=$run; else out=$run-at-$n; fi
      measure "$run/global_step_$n/actor" "$out"
    done
  done
done
