#!/usr/bin/env bash
# How well a discriminator orders a student's own answers, where the truth is known
# (doc/study.md, "Is the score worth following"): warm-ups of a frozen student with different
# discriminators, each checkpoint measured by gad fidelity. Killed? The same command goes on, and
# several may run beside each other on other arms or seeds.
#
#   MODEL=SmolLM2-135M-Instruct.Q4_1.gguf GPTEACHER=folder scripts/study/fidelity.sh PAIR "ARM ..." "SEED ..."
#   RUNS=folder scripts/study/fidelity.py     the table of all runs
#
# PAIR: cool (the teacher is the student's own weights at temperature 0.7), pirate (the same weights
# with a system message that the student does not see) or half (the student is every second layer
# of the teacher, healed on other answers). ARM: a name of the table below. In the repository's
# root; GAD=path names another binary, RUNS another folder, STEPS steps of 30 updates, THREADS.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/fidelity} STEPS=${STEPS:-2} THREADS=${THREADS:-2}
pair=${1:?cool, pirate or half} arms=${2:?arms} seeds=${3:-1}
: "${MODEL:?"MODEL=FILE.gguf or a model folder"}" "${GPTEACHER:?"GPTEACHER=folder with roleplay.json"}"
machine=(--threads "$THREADS" --precision bf16)
system='You are a pirate. Answer in one or two sentences, as a pirate would.'
case $pair in
cool) temperature=0.7 sees=() ;;
pirate) temperature=1 sees=(--teacher-system "$system") ;;
half) temperature=1 sees=() ;;
*) echo "scripts/study/fidelity.sh: $pair: use cool, pirate or half" >&2; exit 2 ;;
esac

# settings ARM: what the arm changes.
settings() {
  local lora='critic.lora.rank=16 critic.optim.lr=2e-4 critic.optim.lr_warmup_steps=10'
  local full='critic.optim.lr_warmup_steps=6 critic.optim.beta2=0.98'
  case $1 in
  large-head) echo "$lora critic.score_init=0.236" ;; # the default before
  small-head) echo "$lora critic.score_init=0.001" ;;
  value) echo "$lora" ;;
  value-1e-3) echo "$lora critic.optim.lr=1e-3" ;;
  value-full) echo "$full critic.optim.lr=1e-4" ;;
  value-teacher) echo "$lora --reward-model $RUNS/model" ;;
  value-grgc) echo "$lora critic.group_ot=0.01" ;;
  value-bce) echo "$lora critic.loss=bce" ;;
  value-l2) echo "$lora critic.score_l2=0.01" ;;
  value-batch-4) echo "$lora critic.ppo_mini_batch_size=4" ;;
  value-twice) echo "$lora critic.ppo_epochs=2" ;;
  value-answers) echo "$lora" ;; # four teacher answers to each of 15 prompts for one to each of 60
  value-n8) echo "$lora data.train_batch_size=15 rollout.n=8" ;;
  value-n1) echo "$lora data.train_batch_size=120 rollout.n=1 critic.ppo_mini_batch_size=4" ;;
  value-replay) echo "$lora critic.replay.size=480 critic.replay.share=0.5" ;;
  likelihood) echo "$lora critic.head=likelihood" ;;
  likelihood-1e-4) echo "$lora critic.head=likelihood critic.optim.lr=1e-4" ;;
  likelihood-4e-4) echo "$lora critic.head=likelihood critic.optim.lr=4e-4" ;;
  likelihood-full) echo "$full critic.head=likelihood critic.optim.lr=3e-5" ;;
  likelihood-answers) echo "$lora critic.head=likelihood" ;;
  likelihood-l2) echo "$lora critic.head=likelihood critic.score_l2=0.01" ;;
  likelihood-grgc) echo "$lora critic.head=likelihood critic.group_ot=0.01" ;;
  likelihood-n8) echo "$lora critic.head=likelihood data.train_batch_size=15 rollout.n=8" ;;
  likelihood-replay) echo "$lora critic.head=likelihood critic.replay.size=480 critic.replay.share=0.5" ;;
  *) echo "scripts/study/fidelity.sh: no arm $1" >&2; exit 2 ;;
  esac
}

mkdir -p "$RUNS"
exec 9>"$RUNS/.data-$pair"
flock 9 # the data are made once
m=$RUNS/model
[ -e "$m/config.json" ] || "$GAD" export --model "$MODEL" --output "$m"
# 340 short instructions to learn from, 40 held out, the others to heal half of the model; what the
# teacher reads has its message.
[ -e "$RUNS/prompts-heal.jsonl" ] || python3 - "$GPTEACHER/roleplay.json" "$RUNS" "$system" <<'PY'
import json, sys
rows = json.load(open(sys.argv[1], encoding="utf-8"))
all_ = sorted({(r["instruction"] + "\n" + r.get("input", "")).strip() for r in rows})
texts = [t for t in all_ if 20 <= len(t) <= 200][::3][:380]
rest = [t for t in all_ if 20 <= len(t) <= 400 and t not in set(texts)]
for name, part in (("train", texts[:340]), ("held", texts[340:]), ("heal", rest)):
    for sees, head in (("", []), ("-pirate", [{"role": "system", "content": sys.argv[3]}])):
        with open(f"{sys.argv[2]}/prompts-{name}{sees}.jsonl", "w", encoding="utf-8") as f:
            for t in part:
                row = {"content": head + [{"role": "user", "content": t}], "teacher_response": "-"}
                print(json.dumps(row, ensure_ascii=False), file=f)
PY
parts="train held"
[ "$pair" != half ] || parts="train held heal"
case " $arms " in *-answers\ *)
  parts="$parts answers"
  for sees_too in '' -pirate; do
    from=$RUNS/prompts-train$sees_too.jsonl
    for _ in 1 2 3 4; do head -n 15 "$from"; done >"$RUNS/prompts-answers$sees_too.jsonl"
  done
  ;;
esac
for part in $parts; do
  out=$RUNS/$part-$pair
  [ -e "$out.jsonl" ] && continue
  prompts=$RUNS/prompts-$part.jsonl
  [ "$pair" != pirate ] || prompts=$RUNS/prompts-$part-pirate.jsonl
  [ -e "$out.answers" ] || "$GAD" generate --model "$m" --data "$prompts" --output "$out.answers" \
    --temperature "$temperature" --max-new-tokens 48 --seed 11 "${machine[@]}"
  python3 - "$RUNS/prompts-$part.jsonl" "$out" <<'PY'
import json, sys
rows = [json.loads(x) for x in open(sys.argv[1], encoding="utf-8")]
with open(sys.argv[2] + ".jsonl", "w", encoding="utf-8") as f:
    for line in open(sys.argv[2] + ".answers", encoding="utf-8"):
        a = json.loads(line)
        row = {"content": rows[a["row"]]["content"], "teacher_response": a["response"],
               "finish_reason": a["finish_reason"]}
        print(json.dumps(row, ensure_ascii=False), file=f)
PY
done
student=$m
if [ "$pair" = half ]; then
  student=$RUNS/half
  if [ ! -e "$student/config.json" ]; then
    [ -e "$RUNS/half-cut/config.json" ] || "$GAD" init --from "$m" --keep-layers 0-28:2 --output "$RUNS/half-cut"
    "$GAD" sft --model "$RUNS/half-cut" --data "$RUNS/heal-half.jsonl" --output "$RUNS/half-heal" --steps 240 --seed 1 \
      "${machine[@]}" data.train_batch_size=16 data.max_prompt_length=160 data.overlong_prompts=filter \
      data.max_response_length=48 actor.optim.lr=1e-3 actor.optim.lr_warmup_steps=10 actor.optim.lr_scheduler=cosine \
      actor.optim.min_lr_ratio=0.05 actor.optim.beta2=0.95 actor.grad_clip=1 trainer.save_freq=60 trainer.max_ckpt_to_keep=1
    "$GAD" export --run "$RUNS/half-heal" --output "$student"
  fi
fi
flock -u 9

new=() critics=()
for seed in $seeds; do
  for arm in $arms; do
    run=$RUNS/$pair-$arm-$seed
    rows=$RUNS/train-$pair.jsonl
    case $arm in *-answers) rows=$RUNS/answers-$pair.jsonl ;; esac
    if [ ! -e "$run/global_step_$STEPS" ]; then
      # shellcheck disable=SC2046 # settings are words
      "$GAD" warmup --model "$student" --data "$rows" --output "$run" \
        --critic-warmup "$STEPS" --steps "$STEPS" --seed "$seed" "${machine[@]}" \
        data.train_batch_size=30 data.max_prompt_length=128 data.overlong_prompts=filter \
        data.max_response_length=48 rollout.n=4 rollout.temperature=1 critic.truncated=include \
        critic.ppo_mini_batch_size=1 critic.grad_clip=1 actor.lora.rank=16 trainer.save_freq=1 \
        trainer.max_ckpt_to_keep=100 $(settings "$arm")
    fi
    [ ! -e "$run/measured" ] || continue
    new+=("$run/measured")
    for k in $(seq 1 "$STEPS"); do critics+=(--critic "$run/global_step_$k"); done
  done
done
# MEASURE=0: later, with others.
[ "${MEASURE:-1}" = 1 ] && [ ${#new[@]} -gt 0 ] || exit 0

# All of them on the same answers.
out=$RUNS/measured-$pair-$(date +%s)
"$GAD" fidelity "${critics[@]}" --model "$student" --teacher "$m" --teacher-temperature "$temperature" \
  "${sees[@]}" --data "$RUNS/held-$pair.jsonl" --n 8 --temperature 1 --max-response-length 48 \
  --seed 101 "${machine[@]}" --json --output "$out.answers" >"$out.tmp"
mv "$out.tmp" "$out.json"
touch "${new[@]}"
