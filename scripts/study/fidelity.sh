#!/usr/bin/env bash
# How well a discriminator orders a student's own answers, where the truth is known
# (doc/study.md, "Is the score worth following"): warm-ups of a frozen student with different
# discriminators, each checkpoint measured by gad fidelity. Killed? The same command goes on.
#
#   MODEL=SmolLM2-135M-Instruct.Q4_1.gguf GPTEACHER=folder scripts/study/fidelity.sh PAIR "ARM ..." "SEED ..."
#
# PAIR: cool (the teacher is the student's own weights at temperature 0.7) or pirate (the same
# weights with a system message that the student does not see). ARM: a name of the table below.
# In the repository's root; GAD=path names another binary, RUNS another folder, STEPS steps of 30
# updates, THREADS.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/fidelity} STEPS=${STEPS:-2} THREADS=${THREADS:-2}
pair=${1:?cool or pirate} arms=${2:?arms} seeds=${3:-1}
: "${MODEL:?"MODEL=FILE.gguf or a model folder"}" "${GPTEACHER:?"GPTEACHER=folder with roleplay.json"}"
machine=(--threads "$THREADS" --precision bf16)
system='You are a pirate. Answer in one or two sentences, as a pirate would.'
case $pair in
cool) temperature=0.7 sees=() ;;
pirate) temperature=1 sees=(--teacher-system "$system") ;;
*) echo "scripts/study/fidelity.sh: $pair: use cool or pirate" >&2; exit 2 ;;
esac

# settings ARM: what the arm changes.
settings() {
  local lora='critic.lora.rank=16 critic.optim.lr=2e-4 critic.optim.lr_warmup_steps=10'
  case $1 in
  large-head) echo "$lora critic.score_init=0.236" ;; # the default before
  value) echo "$lora" ;;
  likelihood) echo "$lora critic.head=likelihood" ;;
  likelihood-1e-4) echo "$lora critic.head=likelihood critic.optim.lr=1e-4" ;;
  likelihood-l2) echo "$lora critic.head=likelihood critic.score_l2=0.01" ;;
  value-1e-3) echo "$lora critic.optim.lr=1e-3" ;;
  value-full) echo 'critic.optim.lr=1e-4 critic.optim.lr_warmup_steps=6 critic.optim.beta2=0.98' ;;
  value-grgc) echo "$lora critic.group_ot=0.01" ;;
  value-bce) echo "$lora critic.loss=bce" ;;
  value-batch-4) echo "$lora critic.ppo_mini_batch_size=4" ;;
  value-twice) echo "$lora critic.ppo_epochs=2" ;;
  *) echo "scripts/study/fidelity.sh: no arm $1" >&2; exit 2 ;;
  esac
}

mkdir -p "$RUNS"
m=$RUNS/model
[ -e "$m/config.json" ] || "$GAD" export --model "$MODEL" --output "$m"
# 340 short instructions to learn from, 40 held out; what the teacher reads has its message.
[ -e "$RUNS/prompts-held-pirate.jsonl" ] || python3 - "$GPTEACHER/roleplay.json" "$RUNS" "$system" <<'PY'
import json, sys
rows = json.load(open(sys.argv[1], encoding="utf-8"))
texts = sorted({(r["instruction"] + "\n" + r.get("input", "")).strip() for r in rows})
texts = [t for t in texts if 20 <= len(t) <= 200][::3][:380]
for name, part in (("train", texts[:340]), ("held", texts[340:])):
    for sees, head in (("", []), ("-pirate", [{"role": "system", "content": sys.argv[3]}])):
        with open(f"{sys.argv[2]}/prompts-{name}{sees}.jsonl", "w", encoding="utf-8") as f:
            for t in part:
                row = {"content": head + [{"role": "user", "content": t}], "teacher_response": "-"}
                print(json.dumps(row, ensure_ascii=False), file=f)
PY
for part in train held; do
  out=$RUNS/$part-$pair
  [ -e "$out.jsonl" ] && continue
  prompts=$RUNS/prompts-$part.jsonl
  [ "$pair" = cool ] || prompts=$RUNS/prompts-$part-pirate.jsonl
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

for seed in $seeds; do
  for arm in $arms; do
    run=$RUNS/$pair-$arm-$seed
    [ -e "$run/global_step_$STEPS" ] && continue
    # shellcheck disable=SC2046 # settings are words
    "$GAD" warmup --model "$m" --data "$RUNS/train-$pair.jsonl" --output "$run" \
      --critic-warmup "$STEPS" --steps "$STEPS" --seed "$seed" "${machine[@]}" \
      data.train_batch_size=30 data.max_prompt_length=128 data.overlong_prompts=filter \
      data.max_response_length=48 rollout.n=4 rollout.temperature=1 critic.truncated=include \
      critic.ppo_mini_batch_size=1 critic.grad_clip=1 actor.lora.rank=16 trainer.save_freq=1 \
      trainer.max_ckpt_to_keep=100 $(settings "$arm")
  done
done

# All checkpoints on the same answers.
critics=()
for seed in $seeds; do
  for arm in $arms; do
    for k in $(seq 1 "$STEPS"); do critics+=(--critic "$RUNS/$pair-$arm-$seed/global_step_$k"); done
  done
done
rm -f "$RUNS/$pair-answers.jsonl"
"$GAD" fidelity "${critics[@]}" --model "$m" --teacher "$m" --teacher-temperature "$temperature" \
  "${sees[@]}" --data "$RUNS/held-$pair.jsonl" --n 8 --temperature 1 --max-response-length 48 \
  --seed 101 "${machine[@]}" --json --output "$RUNS/$pair-answers.jsonl" >"$RUNS/$pair.tmp"
mv "$RUNS/$pair.tmp" "$RUNS/$pair.json"
