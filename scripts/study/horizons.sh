#!/usr/bin/env bash
# At what horizon does exact KL stop improving (teacher.horizon)? The narrow pair of
# scripts/study/ladder.sh: a student of 2m parameters and SmolLM2-135M on one kind of prompt, with
# answers of at most 48 tokens. The real pair: scripts/study/real.sh horizons. Killed? The same
# command goes on.
#
#   RUNS=folder-of-ladder.sh scripts/study/horizons.sh [gad study's flags]
#
# RUNS has what ladder.sh 2m has made: teacher, train.jsonl, test.jsonl, 2m/student-SEED. OUT is the
# folder of the study, SFT (600) the steps of SFT before, STEPS (100) those on whole answers, EVAL
# (200) the held-out rows, SEEDS ("1 2 3"). GAD names the binary.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/ladder} SFT=${SFT:-600} STEPS=${STEPS:-100} EVAL=${EVAL:-200} SEEDS=${SEEDS:-1 2 3}
RUNS=$(cd "$RUNS" && pwd)
OUT=${OUT:-$RUNS/2m/horizons}
for file in teacher train.jsonl test.jsonl 2m/student-1; do
  [ -e "$RUNS/$file" ] || { echo "scripts/study/horizons.sh: $RUNS/$file is missing: run scripts/study/ladder.sh 2m first" >&2; exit 2; }
done
mkdir -p "$OUT"
# arm NAME STEPS [setting...]
arm() {
  local name=$1 steps=$2 more
  shift 2
  more=$(printf ', %s' "$@")
  echo "  \"$name\": [sft, {run: opd, teacher: $RUNS/teacher, steps: $steps, set: [opd${more%, }]}]"
}
{
  cat <<YAML
name: horizons of exact KL, a student of 2m and SmolLM2-135M, one narrow kind of prompt
output: study
data: $RUNS/train.jsonl
model: $RUNS/2m/student-{seed}
precision: bf16
seeds: [${SEEDS// /, }]
common: [data.teacher_key=response, data.max_prompt_length=64, data.max_response_length=48, rollout.temperature=1, trainer.save_freq=0, trainer.save_samples=4]
eval:
  data: $RUNS/test.jsonl
  rows: $EVAL
  against: $RUNS/teacher
budget: {like: whole}
compare: [whole, SFT]
metrics: [opd/divergence, opd/horizon_frac, rollout/len_mean, actor/entropy]
settings:
  learn: [data.train_batch_size=32, actor.optim.lr=3e-3, actor.optim.beta2=0.95, actor.optim.lr_warmup_steps=30, actor.optim.lr_scheduler=cosine, actor.optim.min_lr_ratio=0.03]
  opd: [teacher.loss=exact, data.train_batch_size=16, rollout.n=2, actor.ppo_mini_batch_size=4, actor.optim.lr=1e-4, actor.optim.beta2=0.95, actor.grad_clip=1]
stages:
  sft: {run: sft, steps: $SFT, set: [learn]}
arms:
  SFT: [sft]
YAML
  arm whole "$STEPS"
  for horizon in 4 8 16 32; do arm "$horizon" "$STEPS" "teacher.horizon=$horizon"; done
  arm "8 to whole" "$STEPS" teacher.horizon=8 teacher.horizon_schedule=linear
  for horizon in 4 8 16; do arm "$horizon =" fill "teacher.horizon=$horizon"; done
} >"$OUT/horizons.yaml"
exec "$GAD" study "$OUT/horizons.yaml" "$@"
