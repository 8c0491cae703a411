#!/usr/bin/env bash
# Builds what scripts/gpu/check.sh and scripts/gpu/bench.sh run on a machine with a
# GPU, which needs neither Go nor a compiler nor a network:
#
#   scripts/gpu/build.sh OUTDIR
#
# It needs Go, gcc, xz and CUDA's header (headers.sh finds or fetches it). OUTDIR gets
# one archive and the scripts; copy it there as it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

[ $# -eq 1 ] || { echo "usage: scripts/gpu/build.sh OUTDIR" >&2; exit 2; }
command -v xz >/dev/null || { echo "build.sh: needs xz" >&2; exit 2; }
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
cp go.mod "$work/" # by which tests find the root
rm -rf "$work/testdata/data" "$work/testdata/golden" "$work/testdata/safetensors"
{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)$(git diff --quiet HEAD 2>/dev/null || echo ', with changes')"
  go version
  head -n 1 internal/compute/cuda/kernels/ptx/compute_90.ptx
} >"$work/built.txt"

# The programs are much alike. With a dictionary as long as they are together, xz keeps once
# what they share: half of what each by itself takes.
(cd "$work" && tar cf - --sort=name .) | xz --threads=1 --lzma2=preset=3,dict=192MiB >"$out/gad-gpu.tar.xz"
rm -f "$out/gad-gpu.tar.gz" # of an older build
cp "$here/check.sh" "$here/bench.sh" "$here/log.sh" "$root/scripts/peers/torch_step.py" "$out/"
(cd "$work" && du -k gad */test */*/test */*/*/test */*/*/*/test 2>/dev/null)
bytes=$(cat "$out"/* | wc -c)
# What can be carried to a machine with a GPU may be bounded, together with the tree.
tree=$(git ls-files -z 2>/dev/null | xargs -0 cat 2>/dev/null | wc -c) || tree=0
echo "$out: $bytes bytes; with the $tree of the tracked files $((bytes + tree))"
if [ $((bytes + tree)) -gt 64000000 ]; then
  echo "build.sh: $out: $bytes bytes, with the tracked files $((bytes + tree)): more than the 64,000,000 that may be carried to a machine with a GPU" >&2
  exit 1
fi
