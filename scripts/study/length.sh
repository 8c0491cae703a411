#!/usr/bin/env bash
# The game at length on a real student: half of a released model, healed on the whole's answers,
# then SFT of equal compute against GAD (with a value head and with a likelihood) and OPD as the
# bound; exact KL to the whole in both directions, and the discriminators' fidelity. One command,
# for one GPU and some eight minutes; killed? The same command goes on.
#
#   MODEL=FILE.gguf GPTEACHER=folder DEVICE=cuda scripts/study/length.sh
#   MODEL=... GPTEACHER=... SMALL=1 scripts/study/length.sh      # every command of it in small, on the CPU
#
# MODEL may be given as PARTS=folder with the file cut by `split -n 3 FILE.gguf part-`. GAD names
# the binary, RUNS the folder (default runs/length), SEEDS the seeds (default "1 2"), JOBS how many
# of the study's commands run side by side.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/length} DEVICE=${DEVICE:-cpu} SEEDS=${SEEDS:-1 2} JOBS=${JOBS:-1}
: "${GPTEACHER:?"GPTEACHER=folder with roleplay.json and codegen.json"}"
mkdir -p "$RUNS"
RUNS=$(cd "$RUNS" && pwd)
if [ -n "${PARTS:-}" ] && [ ! -e "$RUNS/whole.gguf" ]; then
  cat "$PARTS"/part-* >"$RUNS/whole.tmp"
  mv "$RUNS/whole.tmp" "$RUNS/whole.gguf"
fi
[ -e "$RUNS/whole.gguf" ] && MODEL=$RUNS/whole.gguf
: "${MODEL:?"MODEL=FILE.gguf, or PARTS=folder"}"

if [ -n "${SMALL:-}" ]; then # the same commands, as little work as they take
  prompts=24 n=2 test=6 limit=16 heal=2 batch=4 warm=2 game=2 opd=2 play=2 answers=2 slots=16 rise=1
  # layers: two of the model's
  keep=0-1
else
  prompts=3700 n=16 test=400 limit=96 heal=1000 batch=64 warm=12 game=250 opd=60 play=32 answers=8 slots=256 rise=10
  keep=0-28:2
fi
machine=(--device "$DEVICE")
[ "$DEVICE" = cuda ] || machine+=(--precision "${PRECISION:-bf16}" --threads "${THREADS:-2}")
once() { # once FILE COMMAND...: the command makes FILE, which is kept
  local file=$1
  shift
  [ -e "$file" ] || "$@"
}
say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

say 'half of the model, prompts'
once "$RUNS/whole/config.json" "$GAD" export --model "$MODEL" --output "$RUNS/whole"
once "$RUNS/half" "$GAD" init --from "$RUNS/whole" --keep-layers "$keep" --output "$RUNS/half"
once "$RUNS/all.jsonl" "$GAD" data convert --data "$GPTEACHER/roleplay.json" --data "$GPTEACHER/codegen.json" --output "$RUNS/all.jsonl"
once "$RUNS/prompts-test.jsonl" "$GAD" data split --data "$RUNS/all.jsonl" --fraction 0.85 --seed 1 \
  --first "$RUNS/prompts-train.jsonl" --second "$RUNS/prompts-test.jsonl"
for part in "train $prompts $n 11" "test $test 1 12"; do
  read -r set rows each seed <<<"$part"
  say "the teacher's answers: $set"
  once "$RUNS/$set.jsonl" "$GAD" generate --model "$RUNS/whole" --data "$RUNS/prompts-$set.jsonl" \
    --limit "$rows" -n "$each" --temperature 1 --max-new-tokens "$limit" --seed "$seed" \
    --output "$RUNS/$set.jsonl" "${machine[@]}"
done
say 'healing'
if [ ! -e "$RUNS/healed/config.json" ]; then
  "$GAD" sft --model "$RUNS/half" --data "$RUNS/train.jsonl" --output "$RUNS/heal" --steps "$heal" --seed 1 \
    "${machine[@]}" data.teacher_key=response data.train_batch_size="$batch" data.max_prompt_length=128 \
    data.overlong_prompts=filter data.max_response_length="$limit" actor.optim.lr=1e-3 \
    actor.optim.lr_warmup_steps="$rise" actor.optim.lr_scheduler=cosine actor.optim.min_lr_ratio=0.05 \
    actor.optim.beta2=0.95 actor.grad_clip=1 trainer.save_freq=0
  "$GAD" export --run "$RUNS/heal" --output "$RUNS/healed"
fi

# The study. A discriminator of known fidelity: a small head, or a likelihood.
cat >"$RUNS/length.yaml" <<YAML
name: half of a released model, the game at length
output: study
data: train.jsonl
model: healed
device: $DEVICE
$([ "$DEVICE" = cuda ] || echo "precision: ${PRECISION:-bf16}")
seeds: [${SEEDS// /, }]
common: [data.teacher_key=response, data.max_prompt_length=128, data.overlong_prompts=filter, data.max_response_length=$limit, rollout.temperature=1, rollout.max_num_seqs=$slots, critic.truncated=include, algorithm.truncated_reward=score, trainer.save_freq=0, trainer.save_samples=4, actor.max_token_len=16384, critic.max_token_len=16384]
eval:
  data: test.jsonl
  rows: $test
  against: whole
  fidelity: 8
budget: {like: GAD}
compare: [SFT]
metrics: [critic/d_acc, critic/d_acc_distinct, critic/group_std, actor/pg_clipfrac, rollout/len_ratio]
settings:
  learn: [data.train_batch_size=$batch, actor.optim.lr=1e-4, actor.optim.lr_warmup_steps=$(((rise + 1) / 3)), actor.optim.lr_scheduler=linear, actor.optim.min_lr_ratio=0.1, actor.optim.beta2=0.95, actor.grad_clip=1]
  disc: [data.train_batch_size=$play, rollout.n=$answers, critic.optim.lr=1e-4, critic.optim.lr_warmup_steps=6, critic.optim.beta2=0.98, critic.ppo_mini_batch_size=1, critic.grad_clip=1]
  game: [data.train_batch_size=$play, rollout.n=$answers, critic.optim.lr=3e-5, critic.optim.beta2=0.98, critic.ppo_mini_batch_size=$(((play + 7) / 8)), critic.grad_clip=1, actor.ppo_mini_batch_size=$(((play + 3) / 4)), actor.optim.lr=3e-5, actor.optim.beta2=0.95, actor.grad_clip=1]
  opd: [data.train_batch_size=$play, rollout.n=$answers, teacher.loss=exact, actor.ppo_mini_batch_size=$(((play + 3) / 4)), actor.optim.lr=3e-5, actor.optim.beta2=0.95, actor.grad_clip=1]
stages:
  warm: {run: warmup, critic_warmup: $warm, steps: $warm, set: [disc]}
  warm-likelihood: {run: warmup, critic_warmup: $warm, steps: $warm, set: [disc, critic.head=likelihood]}
arms:
  SFT: [{run: sft, steps: fill, set: [learn]}]
  GAD: [warm, {run: train, steps: $game, set: [game]}]
  GAD, likelihood: [warm-likelihood, {run: train, steps: $game, set: [game, critic.head=likelihood]}]
  OPD: [{run: opd, teacher: whole, steps: $opd, set: [opd]}]
YAML
say 'the study'
"$GAD" study "$RUNS/length.yaml" --jobs "$JOBS"
say 'done'
