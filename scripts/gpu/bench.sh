#!/usr/bin/env bash
# How fast is the CUDA backend on this machine's GPU? Needs a GPU, its driver,
# cuBLAS and what scripts/gpu/build.sh built; no Go, no network, no root.
#
#   scripts/gpu/bench.sh BUILD             all of it, a quarter of an hour and more
#   scripts/gpu/bench.sh BUILD gemm step   only these sections:
#
#   driver     a launch and a small product, as the host sees them
#   algorithms what cuBLASLt offers for a model's products, beside what it puts first
#   gemm attention decode head adamw elementwise
#              each operation at the shapes of Qwen2.5, and what a change replaced beside it: in head
#              "Sample by surveys", in elementwise "RMSNormGrad in two passes", in generate
#              "ms/token-step-behind", of commands that are not compared ahead
#   quantised  products with weights in q8_0 and q4_0, in registers and unpacked, beside bfloat16; then a
#              LoRA game of the 8B shape on a base in q4_0 (GAD_BENCH_QUANTISED), memory planned and taken
#   step       a training step of 16,384 tokens
#   generate   256 answers of 256 tokens
#   stages     a whole GAD step, 64 prompts x 8 answers x 512 tokens at the 1.5B shape
#              (GAD_BENCH_STAGES, GAD_BENCH_SECONDS), its parts, and the memory planned and taken;
#              activations are kept on a GPU of 100 GB or more, recomputed on others; beside them
#              what nvidia-smi counted
#   nccl       with several GPUs: sums and gathers of 2, 4, 8 ranks by NCCL, up to the gradient of
#              the 0.5B shape (GAD_BENCH_RANKS). GAD_NCCL names libnccl.so.2
#   torch      step and generate in PyTorch, where it is installed, and the ratios;
#              runs gad's own in the same run if they were not asked for
#
# GAD_BENCH_MODELS chooses among the shapes of "0.5B 1.5B 3B", 7B for single
# operations alone, which is also how to keep a run short: one model's torch takes some minutes, most of them torch.compile.
# Figures stand beside the machine's limits, measured in the same run: %roof is the
# time that a large matrix product's rate and a large copy's would need over the
# time taken. Ends non-zero if anything failed; the log is as log.sh describes.
set -euo pipefail
. "$(dirname "$0")/log.sh"
[ $# -ge 1 ] || die "usage: bench.sh BUILD [SECTION...]"
known driver algorithms gemm attention decode head adamw elementwise quantised step generate stages nccl torch -- "${@:2}"
begin "$@"
shift
sections=("$@")
[ $# -gt 0 ] || sections=(driver algorithms gemm attention decode head adamw elementwise quantised step generate stages nccl torch)
export GAD_BENCH_MODELS=${GAD_BENCH_MODELS:-0.5B 1.5B 3B}
figures=$work/figures.txt
: >"$figures"

# watch_memory has nvidia-smi write down how much of the GPU's memory is taken, context and pages of
# the driver included, which neither the plan nor the engine's count know; most_memory ends that and
# writes the most of it into the log.
watch_memory() {
  watcher=
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits --id=0 --loop-ms=200 >"$work/memory.txt" 2>/dev/null &
  watcher=$!
}
most_memory() {
  [ -n "$watcher" ] || return 0
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  printf 'nvidia-smi: at most %s MiB, %s before\n\n' "$(sort -n "$work/memory.txt" | tail -n 1)" "$(head -n 1 "$work/memory.txt")" | tee -a "$log"
}

# table FILE turns lines of Go's benchmarks, "name count value unit value unit ...",
# into Markdown.
table() {
  awk '
    /^Benchmark/ && NF > 3 {
      name[++rows] = $1; sub(/^Benchmark/, "", name[rows]); sub(/-[0-9]+$/, "", name[rows])
      for (i = 3; i < NF; i += 2) {
        v = $i; u = $(i + 1)
        if (u == "ns/op") { u = "ms"; v = sprintf("%.4g", v / 1e6) }
        if (!(u in seen)) { seen[u] = 1; unit[++units] = u }
        cell[rows, u] = v
      }
    }
    END {
      if (!rows) exit
      printf "| case |"; for (i = 1; i <= units; i++) printf " %s |", unit[i]
      printf "\n| --- |"; for (i = 1; i <= units; i++) printf " ---: |"
      print ""
      for (r = 1; r <= rows; r++) {
        printf "| %s |", name[r]
        for (i = 1; i <= units; i++) printf " %s |", cell[r, unit[i]]
        print ""
      }
      print ""
    }' "$1" | tee -a "$log"
  cat "$1" >>"$figures"
}

# benchmark NAME PACKAGE PATTERN TIME SECONDS
benchmark() {
  section "$1" "$5" env -C "$2" ./test -test.run '^$' -test.bench "$3" -test.benchtime "$4" -test.timeout "$5s"
  table "$raw"
  quote "$raw" 200
}

# ranks N is gad bench of N ranks on as many GPUs of this machine, connected by TCP and NCCL.
ranks() {
  local r pids=() status=0
  for ((r = 0; r < $1; r++)); do
    env RANK="$r" WORLD_SIZE="$1" LOCAL_RANK="$r" MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 GAD_RANKS_SECRET="bench.sh on one machine" \
      ./gad bench --ranks "$1" --device cuda --seconds 60 ${GAD_BENCH_RANKS:---shape qwen2.5-0.5b} &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || status=$?; done
  return "$status"
}

ran=
bench() {
  case $1 in
  driver) benchmark driver internal/compute/cuda/driver 'Launch|Matmul' 20000x 60 ;;
  algorithms) benchmark algorithms internal/compute/cuda/driver BenchmarkAlgorithms 1x 100 ;;
  gemm) benchmark gemm internal/compute/cuda '^BenchmarkGEMM$' 0.2s 200 ;;
  attention) benchmark attention internal/compute/cuda '^BenchmarkAttention$' 0.2s 200 ;;
  decode) benchmark decode internal/compute/cuda '^BenchmarkDecode$' 0.2s 200 ;;
  head) benchmark head internal/compute/cuda '^BenchmarkHead$' 0.2s 200 ;;
  adamw) benchmark adamw internal/compute/cuda '^BenchmarkAdamW$' 0.2s 100 ;;
  elementwise) benchmark elementwise internal/compute/cuda '^BenchmarkElementwise$' 0.1s 200 ;;
  quantised)
    benchmark quantised internal/compute/cuda '^BenchmarkQuantised$' 0.1s 200
    watch_memory
    section quantised-game 300 ./gad bench --device cuda \
      ${GAD_BENCH_QUANTISED:---shape qwen2.5-7b --lora-rank 64 --weights q4_0 --prompts 4 --prompt-tokens 256 --new-tokens 128 --micro 2048 --recompute} \
      --what limits,stages --seconds ${GAD_BENCH_SECONDS:-200}
    most_memory
    quote "$raw" 200
    ;;
  step) benchmark step model '^BenchmarkStep$' 3x 300 && ran+=" step" ;;
  generate) benchmark generate model '^BenchmarkDecode$' 1x 300 && ran+=" generate" ;;
  stages)
    memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -n 1) || true
    watch_memory
    section stages 400 ./gad bench --device cuda \
      ${GAD_BENCH_STAGES:---shape qwen2.5-1.5b --prompts 64 --prompt-tokens 256 --new-tokens 512 --micro 16384 $([ "${memory:-0}" -ge 100000 ] 2>/dev/null || echo --recompute)} \
      --what limits,stages --seconds ${GAD_BENCH_SECONDS:-300}
    most_memory
    quote "$raw" 200
    ;;
  nccl)
    gpus=$(nvidia-smi -L 2>/dev/null | wc -l) || true # without it there are none
    if [ "$gpus" -lt 2 ]; then
      printf '\n### nccl: not run: there is %s GPU\n' "$gpus" | tee -a "$log"
      return
    fi
    for n in 2 4 8; do
      [ "$n" -le "$gpus" ] || continue
      section "nccl-$n" 300 bash -euo pipefail -c "$(declare -f ranks); ranks $n"
      quote "$raw" 100
    done
    ;;
  torch)
    [[ $ran == *step* ]] || benchmark step model '^BenchmarkStep$' 3x 300
    [[ $ran == *generate* ]] || benchmark generate model '^BenchmarkDecode$' 1x 300
    grep -o '^Benchmark.*' "$figures" >"$work/ours.txt" || true
    if ! python3 -c 'import torch' 2>/dev/null; then
      printf '\n### torch: not run: python3 has no torch\n' | tee -a "$log"
      return
    fi
    local peer=$build/torch_step.py models
    read -r -a models <<<"$GAD_BENCH_MODELS"
    section torch "${GAD_TORCH_SECONDS:-1500}" python3 "$peer" --models "${models[@]}" --against "$work/ours.txt" ${GAD_TORCH_FLAGS:-}
    grep '^|' "$raw" | tee -a "$log" || true
    quote "$raw" 200
    ;;
  esac
}
each bench "${sections[@]}"
finish
