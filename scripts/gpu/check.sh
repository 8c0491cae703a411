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
#   bf16 f32   the conformance suite in each precision
#   engine     the engine's own tests
#   sizes      the suite's cases at the sizes of released models, and offsets beyond 32 bits
#   model      whole models against the CPU: values, gradients, training, generation
#   trainer    SFT, warm-up and the game against the CPU; stop and resume
#   commands   what computes on the command line, against the CPU
#   fast demo  the demo, short and whole, on the GPU
#   memcheck   the engine's operations under compute-sanitizer, where it is installed
#   racecheck  the same for races in shared memory: slow, and so only when asked for
#
# Goes on after a failure, ends non-zero if there was one, and writes the log that
# log.sh describes.
set -euo pipefail
. "$(dirname "$0")/log.sh"
[ $# -ge 1 ] || die "usage: check.sh BUILD [SECTION...]"
known fragments driver nccl bf16 f32 engine sizes model trainer commands fast demo memcheck racecheck -- "${@:2}"
begin "$@"
shift
sections=("$@")
[ $# -gt 0 ] || sections=(fragments driver nccl bf16 f32 engine sizes model trainer commands fast demo memcheck)

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

# both COMMAND... is gad on two ranks on two GPUs of this machine, connected by TCP and NCCL.
both() {
  local r pids=() status=0
  for r in 0 1; do
    env RANK="$r" WORLD_SIZE=2 LOCAL_RANK="$r" MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 GAD_RANKS_SECRET="check.sh on one machine" ./gad "$@" &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || status=$?; done
  return "$status"
}

# two_ranks RUN [SETTING...] trains.
two_ranks() {
  both sft --model "$work/nccl-student" --data testdata/letters/train.jsonl --output "$1" --steps 4 --device cuda trainer.shards=2 data.train_batch_size=8 \
    data.max_prompt_length=64 data.max_response_length=32 "${@:2}"
}

nccl_runs() {
  local other
  sed 's/"vocab_size": 97/"vocab_size": 300/' testdata/model/qwen2_tied/config.json >"$work/nccl-config.json"
  ./gad init --config "$work/nccl-config.json" --corpus testdata/letters/corpus.txt --output "$work/nccl-student"
  two_ranks "$work/nccl-1"
  two_ranks "$work/nccl-2"
  two_ranks "$work/nccl-divided" trainer.shard_optimizer=true
  for other in nccl-2 nccl-divided; do
    cmp "$work/nccl-1/global_step_4/actor/model.safetensors" "$work/$other/global_step_4/actor/model.safetensors"
    cmp "$work/nccl-1/global_step_4/actor_optimizer.safetensors" "$work/$other/global_step_4/actor_optimizer.safetensors"
  done
  echo 'three runs of two ranks, one with divided optimizer states: the same bits'
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
  section nccl-ranks 200 env "work=$work" bash -euo pipefail -c "$(declare -f both two_ranks nccl_runs); nccl_runs"
  quote "$raw" 100
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
  local api=()
  if [ "$1" = memcheck ]; then api=(--report-api-errors no); fi
  section "$1" 300 env -C internal/compute/cuda compute-sanitizer --tool "$1" "${api[@]}" --error-exitcode 9 --launch-timeout 60 \
    ./test -test.v -test.short -test.run 'TestConformance|TestFastAttention|TestLongDecode' -test.skip "$large" -test.timeout 290s
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
  memcheck | racecheck) sanitized "$1" ;;
  esac
}
each check "${sections[@]}"
finish
