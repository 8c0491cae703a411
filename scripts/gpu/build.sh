#!/usr/bin/env bash
# Builds what scripts/gpu/check.sh and scripts/gpu/bench.sh run on a machine with a
# GPU, which needs neither Go nor a compiler nor a network:
#
#   scripts/gpu/build.sh OUTDIR
#
# It needs Go, gcc and CUDA's header (headers.sh finds or fetches it). OUTDIR gets
# one archive and the scripts; copy it there as it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

[ $# -eq 1 ] || { echo "usage: scripts/gpu/build.sh OUTDIR" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$root"

flags=$("$here/headers.sh" --fetch)
export CGO_ENABLED=1 CGO_CFLAGS="$flags"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Each test binary lies where its package does, with the fixtures beside it, since
# tests look for them by relative path.
packages=(internal/compute/cuda/driver internal/compute/cuda model trainer cmd/gad)
go build -tags nvidia -trimpath -ldflags '-s -w' -o "$work/gad" ./cmd/gad
for p in "${packages[@]}"; do
  mkdir -p "$work/$p"
  go test -c -tags nvidia -trimpath -ldflags '-s -w' -o "$work/$p/test" "./$p"
  if [ -d "$p/testdata" ]; then cp -r "$p/testdata" "$work/$p/"; fi
done
cp -r testdata "$work/testdata"
rm -rf "$work/testdata/data" "$work/testdata/golden" "$work/testdata/safetensors"
{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', with changes')"
  go version
  head -n 1 internal/compute/cuda/kernels/ptx/compute_90.ptx
} >"$work/built.txt"

(cd "$work" && tar cf - .) | gzip -9 >"$out/gad-gpu.tar.gz"
cp "$here/check.sh" "$here/bench.sh" "$here/log.sh" "$root/scripts/peers/torch_step.py" "$out/"
(cd "$work" && du -k gad */test */*/test */*/*/test */*/*/*/test 2>/dev/null)
bytes=$(wc -c <"$out/gad-gpu.tar.gz")
echo "$out: $bytes bytes"
if [ "$bytes" -gt 60000000 ]; then
  echo "build.sh: $out/gad-gpu.tar.gz: $bytes bytes: more than the 60,000,000 that a carried folder may have" >&2
  exit 1
fi
