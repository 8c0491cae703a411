#!/bin/sh
# headers.sh prints the C flags with which a build with -tags nvidia finds CUDA's headers:
#
#     CGO_CFLAGS="$(scripts/gpu/headers.sh)" go build -tags nvidia ./cmd/gad
#
# The build needs gcc and one header, cuda.h of CUDA 12 or 13; no toolkit, no driver, no GPU.
# What it builds runs on any driver that knows the kernels' PTX, whichever header it was built with.
#
# cuda.h is looked for in $CUDA_HOME, $CUDA_PATH, /usr/local/cuda*, /opt/cuda, /usr/include and
# /usr/lib/*. Where there is none, `headers.sh --fetch` gets one: it asks pip for NVIDIA's wheel of
# the CUDA runtime (2 MB, pinned), and keeps its headers in the user's cache folder
# ($XDG_CACHE_HOME, or ~/.cache), where later calls without --fetch find them too.
#
# -O2 -g are what Go passes where CGO_CFLAGS is not set. In front stands this repository's own cuda.h, which lets gorgonia.org/cu compile against CUDA 13.
# Go's build cache does not see a change inside a folder of headers: after replacing one toolkit by
# another at the same path, build once with -a.
#
# Exits 1, with a line that says what to do, when there is no cuda.h.
set -eu

package=nvidia-cuda-runtime-cu12
version=12.4.127
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gad/$package-$version
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
compat=$(CDPATH= cd -- "$here/../../internal/compute/cuda/driver/include" && pwd)

die() {
    echo "headers.sh: $*" >&2
    exit 1
}

# found DIR: prints the flags and ends, if DIR has a whole cuda.h.
found() {
    if [ -f "$1/cuda.h" ] && [ "$1" != "$compat" ]; then
        case "$compat$1" in *[[:space:]]*) die "$1: a folder of headers may have no space in its name: link to it from one without" ;; esac
        echo "-O2 -g -I$compat -I$1"
        exit 0
    fi
}

look() {
    for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
        [ -n "$root" ] || continue
        found "$root/include"
        found "$root"
    done
    found /usr/local/cuda/include
    for dir in /usr/local/cuda-*/include /usr/local/cuda*/targets/*/include /opt/cuda/include; do
        found "$dir"
    done
    found /usr/include
    for dir in /usr/lib/*/cuda/include /usr/lib/cuda/include /usr/lib/nvidia-cuda-toolkit/include; do
        found "$dir"
    done
    found "$cache/nvidia/cuda_runtime/include"
}

fetch() {
    if command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
        pip="python3 -m pip"
    elif command -v pip3 >/dev/null; then
        pip=pip3
    elif command -v pip >/dev/null; then
        pip=pip
    else
        die "--fetch needs pip: install python3-pip, or a CUDA toolkit, and set CUDA_HOME"
    fi
    mkdir -p "$cache"
    # Into a folder beside, then moved: a run that is cut off leaves no half of a header.
    work=$(mktemp -d "$cache.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    $pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check \
        --dest "$work" "$package==$version" >&2 || die "pip could not download $package==$version: see above, or install a CUDA toolkit and set CUDA_HOME"
    if command -v unzip >/dev/null; then
        unzip -q "$work"/*.whl -d "$work/whole"
    else
        python3 -m zipfile -e "$work"/*.whl "$work/whole"
    fi
    rm -rf "$cache"
    mv "$work/whole" "$cache"
    rm -rf "$work"
}

case "${1:-}" in
"") look ;;
--fetch)
    look
    fetch
    look
    ;;
*) die "unknown option $1: --fetch, or none" ;;
esac
die "no cuda.h: set CUDA_HOME to a CUDA toolkit, or run: $0 --fetch"
