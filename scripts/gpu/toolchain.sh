#!/usr/bin/env bash
# Finds what compiles the kernels, NVRTC 12.4 and its assembler ptxas, and prints
# the settings that the kernels' test reads:
#
#   eval "$(scripts/gpu/toolchain.sh --fetch)"
#   go test ./internal/compute/cuda/kernels -update
#
# Later releases write PTX that drivers before them cannot read, so the version is
# fixed. --fetch downloads what is missing as Python wheels, which are archives,
# into the user's cache; it needs pip, and neither root nor a GPU. Only Linux.
set -euo pipefail

nvrtc=nvidia-cuda-nvrtc-cu12==12.4.127
nvcc=nvidia-cuda-nvcc-cu12==12.4.131
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gad/cuda-12.4

die() { echo "toolchain.sh: $*" >&2; exit 1; }

fetch=
case ${1-} in
--fetch) fetch=1 ;;
"") ;;
*) die "\"$1\": the only option is --fetch" ;;
esac

# first FILE... prints the first that is there.
first() {
  local f
  for f in "$@"; do
    if [ -n "$f" ] && [ -e "$f" ]; then echo "$f"; return; fi
  done
}

look() {
  lib=$(first "${GAD_NVRTC-}" "$cache"/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 \
    "${CUDA_HOME:-/usr/local/cuda-12.4}"/lib64/libnvrtc.so.12)
  asm=$(first "${GAD_PTXAS-}" "$cache"/nvidia/cuda_nvcc/bin/ptxas \
    "${CUDA_HOME:-/usr/local/cuda-12.4}"/bin/ptxas)
}

look
if [ -n "$fetch" ] && { [ -z "$lib" ] || [ -z "$asm" ]; }; then
  python=$(command -v python3) || die "--fetch needs python3 with pip: install it, or CUDA 12.4, or set GAD_NVRTC and GAD_PTXAS"
  "$python" -m pip --version >/dev/null 2>&1 || die "--fetch needs pip for $python: install it, or CUDA 12.4, or set GAD_NVRTC and GAD_PTXAS"
  mkdir -p "$cache"
  new=$(mktemp -d "$cache/.new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$new" "$nvrtc" "$nvcc" >&2 ||
    die "pip could not download $nvrtc and $nvcc: see above; or install CUDA 12.4, or set GAD_NVRTC and GAD_PTXAS"
  for wheel in "$new"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$new/unpacked"
  done
  chmod +x "$new"/unpacked/nvidia/cuda_nvcc/bin/* "$new"/unpacked/nvidia/cuda_nvcc/nvvm/bin/* 2>/dev/null || true
  rm -rf "$cache/nvidia"
  mv "$new/unpacked/nvidia" "$cache/nvidia"
  look
fi
[ -n "$lib" ] || die "no libnvrtc.so.12: run it with --fetch, install CUDA 12.4, or set GAD_NVRTC"
[ -n "$asm" ] || die "no ptxas: run it with --fetch, install CUDA 12.4, or set GAD_PTXAS"
printf 'export GAD_NVRTC=%q GAD_PTXAS=%q\n' "$lib" "$asm"
