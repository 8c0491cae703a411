#!/bin/sh
# Builds the emulated device: OUTDIR/libcuda.so.1, with the kernels of ../kernels/gad.cu
# compiled in, OUTDIR/libcublasLt.so.12 and OUTDIR/libnccl.so.2. What is up to date is left
# alone.
#
#   build.sh OUTDIR           then run with LD_LIBRARY_PATH=OUTDIR
#   build.sh --test OUTDIR    also builds and runs the emulator's own test
#   build.sh --races OUTDIR   one that finds races between threads, and is slow: in an OUTDIR of its own
#
# Environment: CXX (g++); KERNELS, another file in place of ../kernels/gad.cu.
set -eu

test=
races=
case "${1-}" in
--test) test=1 && shift ;;
--races) races='-fsanitize=thread --param tsan-distinguish-volatile=1 -Wno-tsan' && shift ;;
esac
if [ $# -ne 1 ]; then
    echo "usage: build.sh [--test|--races] OUTDIR" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
cxx=${CXX:-g++}
kernels=${KERNELS:-../kernels/gad.cu}

common="-std=c++17 -g1 -fPIC -fvisibility=hidden -pthread -DGAD_EMU -I. -I../kernels"
ours="$common -O3 -Wall -Wextra -Werror"
# The compiler's checks call handlers in emu.cc. A kernel's pragmas are for another compiler.
checks="-fsanitize=alignment,bounds,signed-integer-overflow,shift-exponent,integer-divide-by-zero -fno-sanitize-recover=all"
device="$common -O2 -Wall -Wno-unknown-pragmas -Wno-unused-function -Wno-psabi $checks $races -x c++"

# stale TARGET SOURCE...: TARGET is missing or older than a source.
stale() {
    target=$1
    shift
    [ -f "$target" ] || return 0
    [ -n "$(find "$@" -newer "$target" -print | head -n 1)" ]
}

headers="emu.h build.sh"
device_headers="emu.h build.sh $(find ../kernels -name '*.cu' -o -name '*.cuh')"
jobs=
compile() { # FLAGS OBJECT SOURCE DEPENDENCY...
    flags=$1 object=$out/$2 source=$3
    shift 2
    if stale "$object" "$@"; then
        $cxx $flags -c "$source" -o "$object.$$" && mv "$object.$$" "$object" &
        jobs="$jobs $!"
    fi
}
compile "$device" gad.o "$kernels" $device_headers
compile "$ours" emu.o emu.cc $headers
compile "$ours" cuda.o cuda.cc $headers
compile "$ours" lt.o lt.cc $headers
compile "$ours" nccl.o nccl.cc $headers
if [ -n "$test" ]; then compile "$device" emu_test.o emu_test.cc $device_headers; fi
for j in $jobs; do wait "$j"; done

if stale "$out/libcuda.so.1" "$out/gad.o" "$out/emu.o" "$out/cuda.o"; then
    $cxx -shared -pthread -Wl,-soname,libcuda.so.1 -Wl,-z,defs -o "$out/libcuda.so.1.$$" "$out/gad.o" "$out/emu.o" "$out/cuda.o" -ldl
    mv "$out/libcuda.so.1.$$" "$out/libcuda.so.1"
fi
if stale "$out/libcublasLt.so.12" "$out/lt.o" "$out/libcuda.so.1"; then
    $cxx -shared -Wl,-soname,libcublasLt.so.12 -Wl,-z,defs -Wl,-rpath,'$ORIGIN' -o "$out/libcublasLt.so.12.$$" "$out/lt.o" "$out/libcuda.so.1"
    mv "$out/libcublasLt.so.12.$$" "$out/libcublasLt.so.12"
fi
if stale "$out/libnccl.so.2" "$out/nccl.o" "$out/libcuda.so.1"; then
    $cxx -shared -Wl,-soname,libnccl.so.2 -Wl,-z,defs -Wl,-rpath,'$ORIGIN' -o "$out/libnccl.so.2.$$" "$out/nccl.o" "$out/libcuda.so.1" -lrt
    mv "$out/libnccl.so.2.$$" "$out/libnccl.so.2"
fi
if [ -n "$test" ]; then
    if stale "$out/emu_test" "$out/emu_test.o" "$out/emu.o" "$out/cuda.o" "$out/lt.o"; then
        $cxx -pthread -o "$out/emu_test" "$out/emu_test.o" "$out/emu.o" "$out/cuda.o" "$out/lt.o" -ldl
    fi
    "$out/emu_test"
fi
