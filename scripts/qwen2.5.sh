#!/usr/bin/env bash
# The Qwen2.5 recipe of arXiv 2511.10643 as gad runs it: check the data, plan,
# SeqKD baseline, one epoch of warm-up, two epochs of the game, evaluation, export.
#
#   MODEL=Qwen2.5-0.5B-Instruct DATA=train.parquet VAL=val.parquet scripts/qwen2.5.sh
#
# Killed or interrupted? Run the same command again: finished stages say so and
# are passed, the one under way goes on.
#
# gad's defaults are the paper's settings (batch 256, 8 answers, temperature 0.8,
# 2048 + 1536 tokens, learning rate 1e-6 and 5e-6 for SeqKD, gradient clip 0.2, KL
# 1e-3), so that little needs to be said here. On a processor this is for small
# models and small data: gad plan prints memory and hours before anything starts.
set -euo pipefail

MODEL=${MODEL:?folder of a Qwen2.5 instruct model, without symbolic links}
DATA=${DATA:?training rows: content and teacher_response}
VAL=${VAL:?held-out rows}
RUNS=${RUNS:-runs/$(basename "$MODEL")}
GAD=${GAD:-gad}
# More settings for every stage, such as EXTRA="data.train_batch_size=32 rollout.n=4"
read -r -a extra <<<"${EXTRA:-}"
settings=(actor.recompute=true critic.recompute=true ${extra[@]+"${extra[@]}"})

step() { printf '\n== %s\n' "$*" >&2; }

step 'data: how many answers the limits would cut; rows that cannot be used end it here'
"$GAD" data validate --data "$DATA" --model "$MODEL"

step 'plan: memory, disk and time of the game; it stops here if they do not suffice'
"$GAD" plan --stage train --model "$MODEL" --data "$DATA" --output "$RUNS/train" "${settings[@]}"

step 'SeqKD: the baseline to beat'
"$GAD" sft --model "$MODEL" --data "$DATA" --val-data "$VAL" --output "$RUNS/sft" "${settings[@]}" trainer.total_epochs=3

step 'warm-up: the discriminator alone for 10 steps, then both, one epoch'
"$GAD" warmup --model "$MODEL" --data "$DATA" --val-data "$VAL" --output "$RUNS/warmup" --critic-warmup 10 "${settings[@]}"

step 'the game: two epochs'
"$GAD" train --resume "$RUNS/warmup" --data "$DATA" --val-data "$VAL" --output "$RUNS/train" "${settings[@]}"

step 'both students on held-out rows, each against a discriminator of its own'
for stage in sft train; do
  [ -d "$RUNS/$stage-student" ] || "$GAD" export --run "$RUNS/$stage" --output "$RUNS/$stage-student"
  "$GAD" eval --model "$RUNS/$stage-student" --data "$VAL" --temperature 0.8 --disc-from "$MODEL" --disc-lr 1e-6
done
