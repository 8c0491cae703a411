#!/usr/bin/env bash
# The paper's recipe (arXiv 2511.10643) and what followed it, on a machine with a GPU
# and the real data: SeqKD, SODA, GAD and GRGC from the same student, judged on the
# same held-out rows. It ends in the judge's table.
#
#   MODEL=Qwen2.5-3B-Instruct DATA=train.parquet VAL=val.parquet JUDGE_URL=http://127.0.0.1:8000/v1 JUDGE_MODEL=Qwen2.5-72B-Instruct scripts/paper.sh
#   scripts/paper.sh --dry-run     the same commands on a generated task, in tiny shapes, on the CPU
#
# JUDGE_URL is an OpenAI-compatible endpoint and JUDGE_MODEL its model, which judges as in
# the paper (doc/evaluation.md): a reference answer first, then grades of student s and
# reference r, 100 s/(s+r). JUDGE, instead or beside it, is a checker: a program that reads
# answers as JSON lines and writes a score for each (doc/the-game.md has its protocol).
#
# Killed or interrupted? Run the same command again: finished stages say so and
# are passed, the one under way goes on.
#
# gad's defaults are the paper's settings (batch 256, 8 answers, temperature 0.8,
# 2048 + 1536 tokens, learning rate 1e-6 and 5e-6 for SeqKD, gradient clip 0.2, KL
# 1e-3), so that little needs to be said here. gad plan prints memory and hours before
# anything starts.
set -euo pipefail
cd "$(dirname "$0")/.."

GAD=${GAD:-gad}
if [ "${1:-}" = --dry-run ]; then
  work=${RUNS:-$(mktemp -d)}
  mkdir -p "$work"
  "$GAD" task make few-rows --output "$work/task" --rows 64
  MODEL=$work/task/student DATA=$work/task/train.arrow VAL=$work/task/test.arrow
  JUDGE='"$GAD" task check few-rows' RUNS=$work/runs DEVICE=cpu SEEDS=1
  EXTRA='data.max_prompt_length=48 data.max_response_length=40 data.train_batch_size=8 trainer.total_steps=2 rollout.n=4 trainer.val_rows=4'
  WARM='trainer.critic_warmup=1' LIMIT=16
fi
MODEL=${MODEL:?folder of an instruct model}
DATA=${DATA:?training rows: content and teacher_response}
VAL=${VAL:?held-out rows}
JUDGE=${JUDGE:-}
JUDGE_URL=${JUDGE_URL:-}
[ -n "$JUDGE$JUDGE_URL" ] || { echo 'paper.sh: no judge: give JUDGE_URL and JUDGE_MODEL, or JUDGE, a checker' >&2; exit 2; }
[ -z "$JUDGE_URL" ] || JUDGE_MODEL=${JUDGE_MODEL:?the model of JUDGE_URL}
RUNS=${RUNS:-runs/$(basename "$MODEL")}
DEVICE=${DEVICE:-cuda}
SEEDS=${SEEDS:-1 2 3}    # the papers have one; the spread between seeds is part of a result
WARM=${WARM:-trainer.critic_warmup=10}
LIMIT=${LIMIT:-0}        # held-out rows that are judged; 0 is all
# More settings for every stage, such as EXTRA="data.train_batch_size=32 rollout.n=4"
read -r -a extra <<<"${EXTRA:-}"
settings=(actor.recompute=true critic.recompute=true ${extra[@]+"${extra[@]}"})

step() { printf '\n== %s\n' "$*" >&2; }

step 'data: how many answers the limits would cut; rows that cannot be used end it here'
"$GAD" data validate --data "$DATA" --model "$MODEL"

step 'plan: memory, disk and time of the game; it stops here if they do not suffice'
"$GAD" plan --stage train --device "$DEVICE" --model "$MODEL" --data "$DATA" --output "$RUNS/plan" "${settings[@]}"

# stage COMMAND NAME SEED FLAGS...
stage() {
  local command=$1 run=$RUNS/$2.$3 seed=$3
  shift 3
  step "$command: $run"
  "$GAD" "$command" --data "$DATA" --val-data "$VAL" --device "$DEVICE" --seed "$seed" --output "$run" "$@" "${settings[@]}"
}

arms=(seqkd soda gad grgc)
for seed in $SEEDS; do
  stage sft seqkd "$seed" --model "$MODEL" trainer.total_epochs=3
  stage dpo soda "$seed" --model "$MODEL"
  stage warmup gad-warmup "$seed" --model "$MODEL" "$WARM"
  stage train gad "$seed" --resume "$RUNS/gad-warmup.$seed"
  stage warmup grgc-warmup "$seed" --preset grgc --model "$MODEL" "$WARM"
  stage train grgc "$seed" --preset grgc --resume "$RUNS/grgc-warmup.$seed"
done

step 'greedy answers to the held-out rows, judged'
for seed in $SEEDS; do
  for arm in before "${arms[@]}"; do
    student=$RUNS/students/$arm.$seed
    if [ "$arm" = before ]; then
      student=$MODEL
    elif [ ! -d "$student" ]; then
      "$GAD" export --run "$RUNS/$arm.$seed" --output "$student" >&2
    fi
    mkdir -p "$RUNS/judged"
    [ -s "$RUNS/judged/$arm.$seed.json" ] && [ -s "$RUNS/judged/$arm.$seed.jsonl" ] || {
      rm -f "$RUNS/judged/$arm.$seed.jsonl"
      "$GAD" eval --model "$student" --data "$VAL" --device "$DEVICE" --limit "$LIMIT" --disc-steps 0 ${JUDGE:+--checker "$JUDGE"} --json ${MAXNEW:+--max-response-length "$MAXNEW"} \
        --output "$RUNS/judged/$arm.$seed.jsonl" >"$RUNS/judged/$arm.$seed.tmp"
      mv "$RUNS/judged/$arm.$seed.tmp" "$RUNS/judged/$arm.$seed.json"
    }
  done
done

# One number of a line of JSON; sed, so that no other program is needed.
figure() { sed -n 's/.*"'"$1"'":\(-\{0,1\}[0-9.e+-]*\).*/\1/p' "$2"; }

printf '\n%-10s%6s%12s%22s%12s%14s\n' arm seed checker '95 %' ROUGE-L 'length ratio'
for arm in before "${arms[@]}"; do
  for seed in $SEEDS; do
    file=$RUNS/judged/$arm.$seed.json
    printf '%-10s%6s%12s%22s%12.4f%14.3f\n' "$arm" "$seed" "$(figure check "$file")" \
      "$(sed -n 's/.*"check_ci95":\[\([^]]*\)\].*/\1/p' "$file")" "$(figure rouge_l "$file")" "$(figure len_ratio "$file")"
  done
done

[ -n "$JUDGE_URL" ] || exit 0
step 'the same answers, by the judge; what it has said is in judgments.jsonl and is not asked again'
answers=(--answers "$RUNS/judged/before.${SEEDS%% *}.jsonl")
for arm in "${arms[@]}"; do
  for seed in $SEEDS; do answers+=(--answers "$RUNS/judged/$arm.$seed.jsonl"); done
done
"$GAD" eval "${answers[@]}" --judge "$JUDGE_URL" --judge-model "$JUDGE_MODEL" --judge-teacher --judge-journal "$RUNS/judgments.jsonl"
