#!/usr/bin/env bash
# One study of doc/study.md: makes the task of each seed, runs the arms, prints the
# table. Killed? The same command goes on.
#
#   scripts/study/run.sh two-forms [gad study's flags]
#
# The name is that of a file of this folder without .yaml. In the repository's root; GAD=path
# names another binary.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad}
name=${1:?"one of: $(cd scripts/study && echo *.yaml | sed 's/\.yaml//g')"}
shift
file=scripts/study/$name.yaml
kind=$(sed -n 's|^data: .*runs/task/\(.*\)-{seed}/.*|\1|p' "$file")
for seed in $(sed -n 's/^seeds: \[\(.*\)\]/\1/p' "$file" | tr -d ,); do
  "$GAD" task make "$kind" --output "runs/task/$kind-$seed" --seed "$seed" >/dev/null
done
if grep -q 'ratings:' "$file"; then # by a student that has learned the teacher's rows
  for seed in $(sed -n 's/^seeds: \[\(.*\)\]/\1/p' "$file" | tr -d ,); do
    task=runs/task/$kind-$seed steps=100
    [ -e "$task/ratings.jsonl" ] && continue
    "$GAD" sft --model "$task/student" --data "$task/train.arrow" --output "$task/rated" \
      --seed "$seed" --steps "$steps" data.max_prompt_length=48 \
      data.max_response_length=40 data.train_batch_size=32 actor.optim.lr=3e-3 \
      actor.optim.beta2=0.95 actor.optim.lr_warmup_steps=30 actor.optim.lr_scheduler=cosine \
      actor.optim.min_lr_ratio=0.03 trainer.save_freq=0
    "$GAD" data rate --model "$task/rated/global_step_$steps/actor" --n 8 --keep-answers \
      --data "$task/train.arrow" \
      --checker "'$GAD' task check $kind" --max-new-tokens 40 --output "$task/ratings.jsonl"
  done
fi
exec "$GAD" study "$@" "$file"
