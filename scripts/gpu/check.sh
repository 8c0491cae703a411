#!/usr/bin/env bash
# Is the CUDA backend right on this machine's GPU? Needs a GPU, its driver, cuBLAS
# and what scripts/gpu/build.sh built; no Go, no network, no root.
#
#   scripts/gpu/check.sh BUILD             all of it, some minutes
#   scripts/gpu/check.sh BUILD engine demo only these sections:
#
#   fragments  the layout of each tensor core fragment, and each wrapped PTX instruction
#   driver     device, memory, launches, graphs, cuBLASLt
#   nccl       NCCL with one rank, and, with two GPUs, whole runs of two ranks: the same bits
#              twice, and with divided optimizer states; and gad bench of the two. GAD_NCCL names
#              libnccl.so.2; else PyTorch's is looked for
#   ranks      two ranks on one GPU, gradients over the host: the same bits twice, and with divided
#              optimizer states
#   processes  SFT of a student of 135M's widths, whose products are tuned, in two processes, the
#              second stopped and resumed: the same bits (GAD_CHECK_STEPS=20, the stop at half)
#   bf16 f32   the conformance suite in each precision
#   engine     the engine's own tests
#   sizes      the suite's cases at the sizes of released models, and offsets beyond 32 bits
#   model      whole models against the CPU: values, gradients, training, generation
#   trainer    SFT, warm-up and the game against the CPU; stop and resume
#   commands   what computes on the command line, against the CPU
#   fast demo  the demo, short and whole, on the GPU
#   memcheck racecheck synccheck initcheck
#              what nothing but a GPU shows of memory, races in shared memory, barriers and memory
#              that nobody wrote: slices of the engine's tests side by side under
#              compute-sanitizer, where it is installed. Slow: racecheck and those after it only
#              when asked for. GAD_CHECK_SLICES names other slices, GAD_CHECK_SECONDS their limit
#
# Goes on after a failure, ends non-zero if there was one, and writes the log that
# log.sh describes.
set -euo pipefail
. "$(dirname "$0")/log.sh"
[ $# -ge 1 ] || die "usage: check.sh BUILD [SECTION...]"
known fragments driver nccl ranks processes bf16 f32 engine sizes model trainer commands fast demo \
  memcheck racecheck synccheck initcheck -- "${@:2}"
begin "$@"
shift
sections=("$@")
[ $# -gt 0 ] || sections=(fragments driver nccl ranks bf16 f32 processes engine sizes model trainer commands fast demo memcheck)

# tests NAME PACKAGE PATTERN SECONDS [FLAG...]
tests() {
  section "$1" "$4" env -C "$2" ./test -test.v -test.run "$3" -test.timeout "$4s" "${@:5}"
  quote "$raw" 300
  grep '^ *--- FAIL' "$raw" | head -n 20 | sed 's/^/    /' | tee -a "$log" || true
}

# The cases of the section sizes: their time is their own, and memcheck's is too short for them.
large='TestConformance/./workers=./sizes|TestBeyond32Bits|TestSmallGrid'

# nccl_library prints the file of a libnccl: the one that is given, or a Python's.
nccl_library() {
  if [ -n "${GAD_NCCL:-}" ]; then
    printf '%s\n' "$GAD_NCCL"
    return
  fi
  local found
  found=$(python3 -c 'import importlib.util, os
spec = importlib.util.find_spec("nvidia.nccl")
print(os.path.join(list(spec.submodule_search_locations)[0], "lib", "libnccl.so.2"))' 2>/dev/null || true)
  if [ ! -f "$found" ]; then found=$(find /usr /opt -name libnccl.so.2 2>/dev/null | head -n 1 || true); fi
  [ -f "$found" ] && printf '%s\n' "$found"
}

# both COMMAND... is gad on two ranks of this machine, on two GPUs connected by TCP and NCCL, or with
# one_gpu on the first, connected by TCP alone.
both() {
  local r pids=() status=0
  for r in 0 1; do
    env RANK="$r" WORLD_SIZE=2 LOCAL_RANK="$([ -n "${one_gpu:-}" ] && echo 0 || echo "$r")" MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 GAD_RANKS_SECRET="check.sh on one machine" ./gad "$@" &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || status=$?; done
  return "$status"
}

# two_ranks RUN [SETTING...] trains.
two_ranks() {
  both sft --model "$work/ranks-student" --data testdata/letters/train.jsonl --output "$1" --steps 4 --device cuda trainer.shards=2 data.train_batch_size=8 \
    data.max_prompt_length=64 data.max_response_length=32 "${@:2}"
}

# rank_runs NAME has three runs of two ranks end with the same bits.
rank_runs() {
  local other
  sed 's/"vocab_size": 97/"vocab_size": 300/' testdata/model/qwen2_tied/config.json >"$work/ranks-config.json"
  [ -e "$work/ranks-student" ] || ./gad init --config "$work/ranks-config.json" --corpus testdata/letters/corpus.txt --output "$work/ranks-student"
  two_ranks "$work/$1-1"
  two_ranks "$work/$1-2"
  two_ranks "$work/$1-divided" trainer.shard_optimizer=true
  for other in "$1-2" "$1-divided"; do
    cmp "$work/$1-1/global_step_4/actor/model.safetensors" "$work/$other/global_step_4/actor/model.safetensors"
    cmp "$work/$1-1/global_step_4/actor_optimizer.safetensors" "$work/$other/global_step_4/actor_optimizer.safetensors"
  done
  echo 'three runs of two ranks, one with divided optimizer states: the same bits'
}

# ranks_runs NAME SECONDS [VARIABLE=VALUE...] is the section of rank_runs.
ranks_runs() {
  section "$1" "$2" env "work=$work" "${@:3}" bash -euo pipefail -c "$(declare -f both two_ranks rank_runs); rank_runs $1"
  quote "$raw" 100
}

# tuned_runs has two processes train a student of 135M's widths with the same bits, the second in two
# parts. Its products are large enough for cuBLASLt's algorithms to be timed, once for each shape.
tuned_runs() {
  local steps=${GAD_CHECK_STEPS:-20} config=$work/tuned-config.json file
  # widths of SmolLM2-135M, half of its layers
  printf '%s' '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 15, "num_attention_heads": 9, "num_key_value_heads": 3,
    "vocab_size": 49152, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 100000,
    "tie_word_embeddings": true}' >"$config"
  if [ -n "${GAD_CHECK_TINY:-}" ]; then config=testdata/model/qwen2_tied/config.json; fi
  sed 's/"vocab_size": 97/"vocab_size": 300/' "$config" >"$work/tuned.json"
  ./gad init --config "$work/tuned.json" --corpus testdata/letters/corpus.txt --output "$work/tuned-student"
  tuned() {
    ./gad sft --model "$work/tuned-student" --data testdata/letters/train.jsonl --output "$work/$1" --steps "$2" --device cuda --precision bf16 \
      data.train_batch_size=32 data.max_prompt_length=64 data.max_response_length=64
  }
  tuned tuned-1 "$steps"
  tuned tuned-2 $((steps / 2))
  tuned tuned-2 "$steps"
  for file in actor/model.safetensors actor_optimizer.safetensors; do
    cmp "$work/tuned-1/global_step_$steps/$file" "$work/tuned-2/global_step_$steps/$file"
  done
  echo "two processes of $steps steps, the second resumed at $((steps / 2)): the same bits"
}

nccl() {
  local lib gpus
  if ! lib=$(nccl_library); then
    printf '\n### nccl: not run: there is no libnccl.so.2: name it in GAD_NCCL\n' | tee -a "$log"
    return
  fi
  export GAD_NCCL=$lib
  tests nccl internal/compute/cuda/driver TestNCCLOneRank 60
  gpus=$(nvidia-smi -L 2>/dev/null | wc -l) || true # without it there are none
  if [ "$gpus" -lt 2 ]; then
    printf '\n### nccl, two ranks: not run: there is %s GPU\n' "$gpus" | tee -a "$log"
    return
  fi
  ranks_runs nccl-ranks 200
  section nccl-bench 200 bash -euo pipefail -c "$(declare -f both); both bench --ranks 2 --shape qwen2.5-0.5b --seconds 60 --device cuda"
  quote "$raw" 100
}

sanitized() {
  if ! command -v compute-sanitizer >/dev/null; then
    printf '\n### %s: not run: there is no compute-sanitizer\n' "$1" | tee -a "$log"
    return
  fi
  # How many parameters a kernel has is asked until the driver says that there are no more,
  # which memcheck would count as an error.
  local api=() slices seconds=${GAD_CHECK_SECONDS:-300}
  if [ "$1" = memcheck ]; then api=(--report-api-errors no); fi
  read -r -d "" -a slices <<<"${GAD_CHECK_SLICES:-TestFastAttention TestSharedPrompts TestKeyParts TestDecodeSplits TestLongDecode TestRepeat
TestNormRows TestQuantProducts TestConformance/bf16/.*/Sample}" || true
  run_slices() {
    local slice out pids=() status=0 tool=$1 seconds=$2
    set -f
    shift 2
    for slice in $SLICES; do
      out=$work/$tool-${slice//[^A-Za-z0-9]/-}.txt
      compute-sanitizer --tool "$tool" "$@" --error-exitcode 9 --launch-timeout 60 \
        ./test -test.v -test.short -test.run "$slice" -test.timeout "${seconds}s" >"$out" 2>&1 &
      pids+=($!)
    done
    for slice in $SLICES; do
      local code=0
      out=$work/$tool-${slice//[^A-Za-z0-9]/-}.txt
      wait "${pids[0]}" || code=$?
      pids=("${pids[@]:1}")
      printf '%s %s: %s; %s\n' "$tool" "$slice" "$([ $code = 0 ] && echo passed || echo "FAILED with status $code")" \
        "$(grep -c '^--- PASS' "$out" || true) tests passed; $(grep 'ERROR SUMMARY' "$out" | tail -n 1 || true)"
      if [ $code != 0 ]; then status=1 && tail -n 15 "$out"; fi
      if ! grep -q '^--- PASS' "$out"; then status=1 && echo "$slice: no test has passed"; fi
    done
    return $status
  }
  section "$1" $((seconds + 10)) env -C internal/compute/cuda "work=$work" "SLICES=${slices[*]}" \
    bash -euo pipefail -c "$(declare -f run_slices); run_slices $1 $seconds ${api[*]}"
  quote "$raw" 120
}

check() {
  case $1 in
  fragments) tests fragments internal/compute/cuda TestFragments 60 ;;
  driver) tests driver internal/compute/cuda/driver . 180 -test.skip NCCL ;;
  nccl) nccl ;;
  bf16 | f32) tests "$1" internal/compute/cuda "TestConformance/$1" 300 -test.skip "$large" ;;
  engine) tests engine internal/compute/cuda . 300 -test.skip "TestConformance|$large" ;;
  sizes) tests sizes internal/compute/cuda "$large" 200 ;;
  model) tests model model CUDA 300 ;;
  trainer) tests trainer trainer CUDA 300 ;;
  commands) tests commands cmd/gad CUDA 300 ;;
  fast)
    section fast 200 ./gad demo --fast --dir "$work/demo-fast" --device cuda
    quote "$raw" 200
    ;;
  demo)
    section demo 550 ./gad demo --dir "$work/demo" --device cuda
    quote "$raw" 300
    ;;
  ranks) ranks_runs ranks 100 one_gpu=1 GAD_NCCL=off ;;
  processes)
    section processes 200 env "work=$work" bash -euo pipefail -c "$(declare -f tuned_runs); tuned_runs"
    quote "$raw" 100
    ;;
  memcheck | racecheck | synccheck | initcheck) sanitized "$1" ;;
  esac
}
each check "${sections[@]}"
finish
