#!/usr/bin/env bash
# Is the CUDA backend right on this machine's GPU? Needs a GPU, its driver, cuBLAS
# and what scripts/gpu/build.sh built; no Go, no network, no root.
#
#   scripts/gpu/check.sh BUILD             all of it, some minutes
#   scripts/gpu/check.sh BUILD engine demo only these sections:
#
#   fragments  the layout of each tensor core fragment, and each wrapped PTX instruction
#   driver     device, memory, launches, graphs, cuBLASLt
#   engine     the conformance suite, in bfloat16 and in float32, and the engine's own tests
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
known fragments driver engine model trainer commands fast demo memcheck racecheck -- "${@:2}"
begin "$@"
shift
sections=("$@")
[ $# -gt 0 ] || sections=(fragments driver engine model trainer commands fast demo memcheck)

# tests NAME PACKAGE PATTERN SECONDS
tests() {
  section "$1" "$4" env -C "$2" ./test -test.v -test.run "$3" -test.timeout "$4s"
  quote "$raw" 300
  grep '^ *--- FAIL' "$raw" | head -n 20 | sed 's/^/    /' | tee -a "$log" || true
}

sanitized() {
  if ! command -v compute-sanitizer >/dev/null; then
    printf '\n### %s: not run: there is no compute-sanitizer\n' "$1" | tee -a "$log"
    return
  fi
  section "$1" 300 env -C internal/compute/cuda compute-sanitizer --tool "$1" --error-exitcode 9 --launch-timeout 60 \
    ./test -test.v -test.short -test.run 'TestConformance|TestFastAttention|TestLongDecode' -test.timeout 290s
  quote "$raw" 120
}

for s in "${sections[@]}"; do
  case $s in
  fragments) tests fragments internal/compute/cuda TestFragments 60 ;;
  driver) tests driver internal/compute/cuda/driver . 180 ;;
  engine) tests engine internal/compute/cuda . 300 ;;
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
  memcheck | racecheck) sanitized "$s" ;;
  esac
done
finish
