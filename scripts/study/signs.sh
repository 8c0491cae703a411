#!/usr/bin/env bash
# Which sign that somebody without the teacher's weights can see tells the best checkpoint of a game
# (doc/study.md, "Is the score worth following")? Measures every checkpoint of the games that
# scripts/study/ladder.sh has played: exact KL to the teacher both ways, and what a black-box user
# has: figures of held-out rows and a fresh discriminator's accuracy. Killed? The same command goes on.
#
#   RUNS=runs/ladder scripts/study/signs.sh SIZE
#   RUNS=runs/ladder scripts/study/signs.py SIZE     the table
#
# GAD names the binary, THREADS; ROWS (150) held-out rows, DISC (150) the steps of a fresh
# discriminator, most of the time.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/ladder} THREADS=${THREADS:-2} ROWS=${ROWS:-150} DISC=${DISC:-150}
size=${1:?2m, 8m or 30m}
mkdir -p "$RUNS/$size/signs"
for run in "$RUNS/$size"/study/stages/*-train-*/run; do
  stage=$(basename "$(dirname "$run")")
  for checkpoint in "$run"/global_step_*; do
    [ -d "$checkpoint" ] || continue # not played yet
    out=$RUNS/$size/signs/$stage-${checkpoint##*_}.json
    [ -e "$out" ] && continue
    "$GAD" eval --model "$checkpoint/actor" --against "$RUNS/teacher" --data "$RUNS/test.jsonl" --limit "$ROWS" \
      --teacher-key response --temperature 1 --seed 7 --max-response-length 48 --disc-steps "$DISC" --disc-seeds 2 \
      --threads "$THREADS" --precision bf16 --json >"$out.tmp"
    mv "$out.tmp" "$out"
  done
done
