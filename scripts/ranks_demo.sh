#!/usr/bin/env bash
# The stages of gad demo, with its task, student and settings, as one process and by mpirun
# with 1, 2 and 4 ranks, all with trainer.shards=4: every checkpoint must be the same byte
# for byte, and so must the metrics, times apart. Then 1 and 2 ranks resume from a checkpoint
# of the run of 4 ranks, and must end with the same bytes too.
#
#   scripts/ranks_demo.sh FOLDER [STEPS]
#
# STEPS: so many steps of each stage, in the place of the demo's (800, up to 220, 120).
# GAD names a gad binary (default: built here with -tags mpi), MPIRUN a launcher with options
# (default: mpirun --oversubscribe --bind-to none). It needs Open MPI or MPICH 5 (doc/ranks.md).
set -euo pipefail
cd "$(dirname "$0")/.."

[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd) cut=${2:-}
read -ra mpirun <<<"${MPIRUN:-mpirun --oversubscribe --bind-to none}"
gad=${GAD:-$folder/gad}
[ -n "${GAD:-}" ] || CGO_ENABLED=0 go build -tags mpi -o "$gad" ./cmd/gad

# The settings of apps/demo, whose test compares them.
common='data.max_prompt_length=48 data.max_response_length=40 rollout.max_num_seqs=128'
sampling='rollout.temperature=1'
sft='--steps 800 trainer.save_freq=400 data.train_batch_size=32 actor.optim.lr=3e-3 actor.optim.beta2=0.95 actor.optim.lr_warmup_steps=30 actor.optim.lr_scheduler=cosine actor.optim.min_lr_ratio=0.03'
warmup='--critic-warmup 20 --steps 21 trainer.critic_warmup_max=200 data.train_batch_size=32 rollout.n=4 critic.optim.lr=2e-4 critic.optim.lr_warmup_steps=200 critic.optim.beta2=0.98 critic.grad_clip=1 critic.ppo_mini_batch_size=1 trainer.critic_warmup_until=0.45'
train='--steps 120 trainer.save_freq=40 critic.ppo_mini_batch_size=4 data.train_batch_size=16 rollout.n=8 actor.optim.beta2=0.95 actor.grad_clip=1 actor.optim.lr=5e-5 actor.kl_loss_coef=0.02'

# What every run has beside them: more checkpoints, all of which are kept.
also=(trainer.shards=4 trainer.max_ckpt_to_keep=100 --seed 1)
# settings STAGE: those of the demo, or with $cut steps.
settings() {
  local text=${!1} half=$(((${cut:-0} + 1) / 2))
  [ -n "$cut" ] || { echo "$text$([ "$1" != warmup ] || echo ' trainer.save_freq=20')"; return; }
  text=$(sed -E 's/(--steps|--critic-warmup) [0-9]+ ?|(trainer\.[a-z_]+|[a-z]+\.optim\.lr_warmup_steps)=[^ ]* ?//g' <<<"$text")
  text+=" --steps $cut trainer.save_freq=$half"
  case $1 in
    sft) text+=" actor.optim.lr_warmup_steps=$half" ;;
    warmup) text+=" --critic-warmup $half critic.optim.lr_warmup_steps=$half" ;;
  esac
  echo "$text"
}

[ -d "$folder/task" ] || "$gad" task make two-forms --output "$folder/task" --seed 1 --rows 20000

# last RUN: its newest checkpoint.
last() { find "$1" -maxdepth 1 -name 'global_step_*' | sort -V | tail -n 1; }

# play WHO RANKS STAGE: plays, or resumes, a stage in FOLDER/WHO; RANKS 0 is one process
# without MPI.
play() {
  local who=$1 ranks=$2 stage=$3 dir=$folder/$1
  local -a args
  read -ra args <<<"$(settings "$stage") $common"
  args=("$stage" --data "$folder/task/train.arrow" --output "$dir/$stage" "${args[@]}" "${also[@]}")
  case $stage in
    sft) args+=(--model "$folder/task/student") ;;
    warmup) args+=($sampling --model "$(last "$dir/sft")/actor") ;;
    train) args+=($sampling --resume "$dir/warmup") ;;
  esac
  local -a run=("$gad")
  [ "$ranks" = 0 ] || run=("${mpirun[@]}" -n "$ranks" "$gad")
  local threads=1 begun=$SECONDS
  [ "$ranks" -gt 1 ] || threads=2
  mkdir -p "$dir"
  if ! "${run[@]}" "${args[@]}" --threads "$threads" >"$dir/$stage.out" 2>&1; then
    tail -n 20 "$dir/$stage.out" >&2
    echo "ranks_demo: $who: $stage failed" >&2
    return 1
  fi
  took=$((SECONDS - begun))
}

# metrics RUN: without times.
metrics() {
  sed -E 's/"(time|timing_s\/[^"]*|perf\/[^"]*|rollout\/tokens_per_s)":("[^"]*"|[^,}]*),?//g; s/,}/}/' "$1/metrics.jsonl"
}

# same RUN AS: compares two runs.
same() {
  local a list
  list=$(cd "$2" && find . -maxdepth 1 -name 'global_step_*' | sort -V)
  [ "$list" = "$(cd "$1" && find . -maxdepth 1 -name 'global_step_*' | sort -V)" ] || { echo "ranks_demo: $1 has other checkpoints than $2" >&2; return 1; }
  for a in $list; do
    diff -r "$1/$a" "$2/$a" >&2 || { echo "ranks_demo: $1/$a differs from $2/$a" >&2; return 1; }
  done
  cmp <(metrics "$1") <(metrics "$2") || { echo "ranks_demo: the metrics of $1 differ from those of $2" >&2; return 1; }
  [ ! -d "$2/samples" ] || diff -r "$1/samples" "$2/samples" >&2 || { echo "ranks_demo: the samples of $1 differ from those of $2" >&2; return 1; }
  printf '%s checkpoints, %s files, %s lines of metrics equal' "$(wc -w <<<"$list")" "$(cd "$1" && find $list -type f | wc -l)" "$(wc -l <"$1/metrics.jsonl")"
}

for stage in sft warmup train; do
  play alone 0 $stage
  echo "$stage: one process: $took s"
  for n in 1 2 4; do
    play "ranks-$n" "$n" $stage
    equal=$(same "$folder/ranks-$n/$stage" "$folder/alone/$stage")
    echo "$stage: ranks $n: $took s; $equal"
  done
done

# A run of 4 ranks loses all but its first checkpoint, and 1 or 2 ranks resume it.
for stage in sft warmup train; do
  for n in 1 2; do
    find "$folder/ranks-4/$stage" -maxdepth 1 -name 'global_step_*' | sort -V | tail -n +2 | xargs rm -r
    at=$(last "$folder/ranks-4/$stage")
    play ranks-4 "$n" $stage
    grep -q 'resuming after step' "$folder/ranks-4/$stage.out" || { echo "ranks_demo: $stage was not resumed" >&2; exit 1; }
    equal=$(same "$folder/ranks-4/$stage" "$folder/alone/$stage")
    echo "$stage: from $(basename "$at") of 4 ranks with $n: $took s; $equal"
  done
done
