#!/usr/bin/env bash
# A ladder of capacity: at which gap between teacher and student does the game begin to pay, and
# does it seek modes (reverse KL down, forward KL up)? The teacher is a released model on one narrow
# kind of prompt with answers of at most 48 tokens, its vocabulary cut to what 3,000 of its answers
# use (scripts/study/vocabulary.py); the students are of random weights, with the teacher's
# tokenizer, and learn its answers until that pays no more. Then SFT of equal compute, GAD with the
# last token's value and with a language model as discriminator, and GRGC. Killed? The same command
# goes on; results are kept in RUNS.
#
#   MODEL=FILE.gguf GPTEACHER=folder scripts/study/ladder.sh SIZE [gad study's flags]
#
# SIZE: 2m, 8m or 30m (parameters). ROWS (20000) is how many of the teacher's answers there are, SFT
# (2000) the steps of SFT before the game, GAME (300) those of the game, SEEDS ("1 2 3 4 5"; 30m:
# "1 2 3"). GAD names the binary, RUNS the folder, THREADS. Needs the Python package tokenizers.
set -euo pipefail
cd "$(dirname "$0")/../.."
GAD=${GAD:-gad} RUNS=${RUNS:-runs/ladder} THREADS=${THREADS:-2}
size=${1:?2m, 8m or 30m}
shift
case $size in
2m) hidden=128 ffn=384 layers=7 heads=4 kv=2 lr=3e-3 game_lr=1e-4 seeds='1 2 3 4 5' ;;
8m) hidden=256 ffn=704 layers=9 heads=4 kv=2 lr=2e-3 game_lr=5e-5 seeds='1 2 3 4 5' ;;
30m) hidden=448 ffn=1216 layers=12 heads=7 kv=7 lr=1e-3 game_lr=3e-5 seeds='1 2 3' ;;
*) echo "scripts/study/ladder.sh: $size: use 2m, 8m or 30m" >&2; exit 2 ;;
esac
: "${MODEL:?"MODEL=FILE.gguf or a model folder"}" "${GPTEACHER:?"GPTEACHER=folder with roleplay.json"}"
ROWS=${ROWS:-20000} SFT=${SFT:-2000} GAME=${GAME:-300} SEEDS=${SEEDS:-$seeds}
mkdir -p "$RUNS"
RUNS=$(cd "$RUNS" && pwd)
machine=(--threads "$THREADS" --precision bf16)
once() {
  local file=$1
  shift
  [ -e "$file" ] || "$@"
}
once "$RUNS/whole/config.json" "$GAD" export --model "$MODEL" --output "$RUNS/whole"
# One narrow kind: a greeting by somebody, in one sentence.
[ -e "$RUNS/prompts-test.jsonl" ] || python3 - "$RUNS" "$ROWS" <<'PY'
import json, random, sys
who = ["a teacher", "a pirate", "a nurse", "a farmer", "a king", "a robot", "a baker", "a detective", "a sailor", "a poet",
       "a judge", "a child", "a chef", "a soldier", "a doctor", "a monk", "a singer", "a miner", "a pilot", "a librarian"]
whom = ["a friend", "a stranger", "a customer", "an old enemy", "a dog", "the mayor", "a tourist", "a neighbour", "a student", "a ghost",
        "a thief", "a guest", "a sister", "a rival", "an actor", "a dragon", "a postman", "a queen", "a tailor", "a witch"]
where = ["at a market", "on a ship", "in a library", "at night", "in the rain", "on a mountain", "at a wedding", "in a prison",
         "on a train", "in a garden", "at a party", "in a desert", "at school", "in a tower", "by a river", "in a kitchen",
         "on a bridge", "in the snow", "at a funeral", "in a cave"]
all_ = [f"Write one sentence that {a} says to {b} {c}." for a in who for b in whom for c in where]
random.Random(1).shuffle(all_)
test, train = all_[:400], all_[400:]
rows = (train * (int(sys.argv[2]) // len(train) + 1))[:int(sys.argv[2])]
for name, part in (("train", rows), ("test", test)):
    with open(f"{sys.argv[1]}/prompts-{name}.jsonl", "w") as f:
        for t in part:
            print(json.dumps({"content": t, "teacher_response": "-"}), file=f)
PY
[ -e "$RUNS/prompts-used.jsonl" ] || head -n 3000 "$RUNS/prompts-train.jsonl" >"$RUNS/prompts-used.jsonl"
once "$RUNS/used.jsonl" "$GAD" generate --model "$RUNS/whole" --data "$RUNS/prompts-used.jsonl" \
  --temperature 1 --max-new-tokens 48 --seed 10 --output "$RUNS/used.jsonl" "${machine[@]}"
once "$RUNS/teacher/chat_template.jinja" scripts/study/vocabulary.py "$RUNS/whole" "$RUNS/teacher" \
  "$RUNS/used.jsonl" "$RUNS"/prompts-t*.jsonl
for part in test train; do # resumable by itself
  once "$RUNS/$part.jsonl" "$GAD" generate --model "$RUNS/teacher" --data "$RUNS/prompts-$part.jsonl" \
    --temperature 1 --max-new-tokens 48 --seed 11 --output "$RUNS/$part.jsonl" "${machine[@]}"
done
mkdir -p "$RUNS/$size"
python3 - "$RUNS/teacher/config.json" "$RUNS/$size/config.json" $hidden $ffn $layers $heads $kv <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"] = map(int, sys.argv[3:])
c["max_position_embeddings"], c["tie_word_embeddings"] = 512, True
c.pop("head_dim", None)
json.dump(c, open(sys.argv[2], "w"))
PY
for seed in $SEEDS; do
  once "$RUNS/$size/student-$seed" "$GAD" init --config "$RUNS/$size/config.json" --tokenizer "$RUNS/teacher" \
    --output "$RUNS/$size/student-$seed" --seed "$seed"
done
cat >"$RUNS/$size/ladder.yaml" <<YAML
name: a student of $size and SmolLM2-135M, one narrow kind of prompt
output: study
data: ../train.jsonl
model: student-{seed}
precision: bf16
seeds: [${SEEDS// /, }]
common: [data.teacher_key=response, data.max_prompt_length=64, data.max_response_length=48, rollout.temperature=1, rollout.max_num_seqs=128, critic.truncated=include, algorithm.truncated_reward=score, trainer.save_freq=0, trainer.save_samples=4]
eval:
  data: ../test.jsonl
  rows: 200
  against: ../teacher
  fidelity: 8
budget: {like: GAD}
compare: [SeqKD, "SeqKD, equal compute"]
metrics: [critic/d_acc_distinct, critic/group_std, actor/pg_clipfrac, rollout/len_ratio, actor/entropy]
settings:
  learn: [data.train_batch_size=32, actor.optim.lr=$lr, actor.optim.beta2=0.95, actor.optim.lr_warmup_steps=30, actor.optim.lr_scheduler=cosine, actor.optim.min_lr_ratio=0.03]
  judge: [data.train_batch_size=16, rollout.n=8, critic.optim.lr=2e-4, critic.optim.lr_warmup_steps=50, critic.optim.beta2=0.98, critic.grad_clip=1, critic.ppo_mini_batch_size=1, trainer.critic_warmup_until=0.5, trainer.critic_warmup_max=100]
  play: [critic.ppo_mini_batch_size=4, critic.optim.lr=1e-4, critic.optim.beta2=0.98, critic.grad_clip=1, data.train_batch_size=16, rollout.n=8, actor.optim.lr=$game_lr, actor.optim.beta2=0.95, actor.grad_clip=1, actor.ppo_mini_batch_size=4, actor.kl_loss_coef=0.02, trainer.save_freq=30, trainer.max_ckpt_to_keep=100]
stages:
  sft: {run: sft, steps: $SFT, set: [learn]}
  warm: {run: warmup, critic_warmup: 20, steps: 20, set: [judge]}
  warm-grgc: {run: warmup, preset: grgc, critic_warmup: 20, steps: 20, set: [judge]}
  warm-likelihood: {run: warmup, critic_warmup: 20, steps: 20, set: [judge, critic.head=likelihood]}
arms:
  SeqKD: [sft]
  SeqKD, equal compute: [{run: sft, steps: fill, set: [learn]}]
  GAD: [sft, warm, {run: train, steps: $GAME, set: [play]}]
  GRGC: [sft, warm-grgc, {run: train, preset: grgc, steps: $GAME, set: [play]}]
  GAD, likelihood: [sft, warm-likelihood, {run: train, steps: $GAME, set: [play, critic.head=likelihood]}]
YAML
exec "$GAD" study "$RUNS/$size/ladder.yaml" "$@"
