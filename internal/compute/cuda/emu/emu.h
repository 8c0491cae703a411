// The emulated device's side of the kernels' vocabulary: what ../kernels/device.cuh
// gives on a GPU, for the host's compiler. ../kernels/gad.cu compiled with it and
// with emu.cc runs block by block, every thread of a block a fiber.
//
// To try a kernel from a C++ main, without the rest (x.cc includes the .cu file):
//
//   g++ -std=c++17 -O2 -Wno-unknown-pragmas -DGAD_EMU -I emu -I kernels x.cc emu/emu.cc -pthread
//
//   #include "device.cuh"
//   #include "norm.cu"
//   int main() {
//       emu::Array<float> x(n), y(n);     // device memory: poisoned, guarded on both sides
//       x[i] = ...;
//       emu::launch(&the_kernel, dim3(blocks), threads, sharedBytes, y.p, x.p, n);  // runs at once
//   }
//
// launch says on stderr what is wrong and aborts; try_launch returns it instead. More
// is found with -fsanitize=alignment,bounds,signed-integer-overflow,shift-exponent,integer-divide-by-zero
// -fno-sanitize-recover=all (emu.cc has the handlers; no library is needed).
//
// Made visible: a barrier or warp operation that not all threads reach, or that
// lanes of a warp reach at different source lines; a read of shared memory that
// was not written (NaN); an access outside shared memory or an array; a
// misaligned ldmatrix4 or copy_async; a copy_async that is read before its
// copy_wait, or that overwrites what others still read (the destination is NaN
// from the call to the wait); an ldmatrix4 of what another thread has copied, or a
// copy_async over what an ldmatrix4 has read, without a barrier between, whatever
// the values. Threads run in ascending or descending order, turned
// at each barrier and from block to block, so that most races change a result;
// GAD_EMU_SHUFFLE=seed runs them, and blocks, in a random order instead. Built by
// build.sh --races, each access to memory is compared with those before it: see emu.cc. GAD_EMU_THREADS is the
// number of host threads that blocks are spread over.
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct uint3 {
    u32 x, y, z;
};
struct dim3 {
    u32 x, y, z;
    constexpr dim3(u32 x = 1, u32 y = 1, u32 z = 1) : x(x), y(y), z(z) {}
};

// Vector types with CUDA's alignment.
#define EMU_VECTORS(T, name)                                                           \
    struct alignas(2 * sizeof(T)) name##2 {                                            \
        T x, y;                                                                        \
    };                                                                                 \
    struct alignas(4 * sizeof(T)) name##4 {                                            \
        T x, y, z, w;                                                                  \
    };                                                                                 \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTORS(float, float)
EMU_VECTORS(int, int)
EMU_VECTORS(u32, uint)
#undef EMU_VECTORS

namespace emu {

struct Block;

// Fiber is a thread of the block that runs on this host thread; Copies its
// copy_async calls under way.
struct Copies;
struct alignas(64) Fiber {
    uint3 thread;
    int warp, lane;
    Block *block;
    Copies *copies;
    void *sp;     // saved stack pointer; null before the first instruction
    u8 *stack;    // top of its stack while it runs
};

// Block is the part of a running block that kernels see.
struct Block {
    uint3 index;
    dim3 dim, grid;
    u8 *shared;
    size_t shared_bytes;
};

// now is the running thread; null outside of kernels.
extern thread_local Fiber *now __attribute__((tls_model("initial-exec")));

// fail ends the launch with a message (printf's format) about the running thread.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// barrier is __syncthreads.
void barrier(const char *file, int line);

// Collective is an operation of a warp: run gets the 32 lanes' operands once all
// have called collect with the same Collective from the same line.
struct Collective {
    const char *name;
    void (*run)(void *const *lanes);
};
void collect(const Collective &c, void *operand, const char *file, int line);

void check_mask(u32 mask, const char *name);
void check_shared(const void *p, const char *name);  // 16 aligned bytes in the block's shared memory
void copy_begin(void *dst, const void *src, bool valid, const char *file, int line);
void copy_group();
void copy_finish(int newest);

// Operands of the warp operations.
struct Shuffle {
    u64 value, result;
    int from;  // lane to read, or -1: its own value
};
struct Ballot {
    u32 bit, result;
};
struct Mma {
    float *d;
    const u32 *a, *b;
};
struct Ldmatrix {
    u32 *r;
    const u8 *row;
};
extern const Collective syncwarp, shuffle, ballot, mma, ldmatrix, ldmatrix_trans;

template <class T> T shfl(u32 mask, T value, int from, const char *file, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    check_mask(mask, "a shuffle");
    Shuffle s{0, 0, from};
    memcpy(&s.value, &value, sizeof value);
    collect(shuffle, &s, file, line);
    memcpy(&value, &s.result, sizeof value);
    return value;
}

// Kernel is one registered by KERNEL.
struct Kernel {
    const char *name;
    int bound;               // largest block
    const void *address;     // of the function
    void (*call)(void *const *params);
    const size_t *sizes;     // bytes of each parameter
    const bool *pointers;    // which are pointers
    int params;
    Kernel *next;
    Kernel(const char *name, int bound, const void *address, void (*call)(void *const *), const size_t *sizes, const bool *pointers, int params);
};
Kernel *find(const char *name);
Kernel *find(const void *address);

// execute runs a grid and returns what went wrong, or "".
std::string execute(const Kernel &k, dim3 grid, dim3 block, size_t shared, void *const *params);

template <auto K> struct Thunk;
template <class... P, void (*K)(P...)> struct Thunk<K> {
    static constexpr int params = sizeof...(P);
    static constexpr size_t sizes[] = {sizeof(P)..., 0};
    static constexpr bool pointers[] = {std::is_pointer<P>::value..., false};
    template <size_t... I> static void unpack([[maybe_unused]] void *const *p, std::index_sequence<I...>) {
        K(*static_cast<P *>(p[I])...);
    }
    static void call(void *const *p) { unpack(p, std::index_sequence_for<P...>{}); }
};

[[noreturn]] void die(const std::string &what);

// try_launch runs a kernel and returns what went wrong, or ""; launch aborts then.
template <class... P, class... A> std::string try_launch(void (*k)(P...), dim3 grid, int block, size_t shared, A... args) {
    static_assert(sizeof...(P) == sizeof...(A), "the number of arguments is not that of the kernel's parameters");
    const Kernel *found = find(reinterpret_cast<const void *>(k));
    if (!found) return "emu: not a KERNEL";
    std::tuple<P...> values{static_cast<P>(args)...};
    return std::apply([&](auto &...v) {
        void *params[] = {const_cast<void *>(static_cast<const void *>(&v))..., nullptr};
        return execute(*found, grid, dim3(block), shared, params);
    }, values);
}
template <class... P, class... A> void launch(void (*k)(P...), dim3 grid, int block, size_t shared, A... args) {
    std::string wrong = try_launch(k, grid, block, shared, args...);
    if (!wrong.empty()) die(wrong);
}

// guarded allocates bytes of 0xff: the base is a multiple of 256, an access
// beyond the last 256-byte unit or before the first page faults, and damaged
// returns how many bytes before or behind the block (within these) were written.
u8 *guarded(size_t bytes);
size_t damaged(const u8 *base, size_t bytes);
void release(u8 *base, size_t bytes);

// Array is guarded memory for tests.
template <class T> struct Array {
    T *p;
    size_t n;
    explicit Array(size_t n) : p(reinterpret_cast<T *>(guarded(n * sizeof(T)))), n(n) {}
    Array(const Array &) = delete;
    ~Array() {
        u8 *base = reinterpret_cast<u8 *>(p);
        if (damaged(base, n * sizeof(T))) die("emu: bytes outside of an Array were written");
        release(base, n * sizeof(T));
    }
    T &operator[](size_t i) { return p[i]; }
};

}  // namespace emu

#define KERNEL(threads, name, ...)                                                                      \
    static void name(__VA_ARGS__);                                                                      \
    static emu::Kernel emu_kernel_##name(#name, threads, reinterpret_cast<const void *>(&name),         \
                                         emu::Thunk<&name>::call, emu::Thunk<&name>::sizes,             \
                                         emu::Thunk<&name>::pointers, emu::Thunk<&name>::params);                                    \
    static void name(__VA_ARGS__)
#define DEVICE inline

#define threadIdx (emu::now->thread)
#define blockIdx (emu::now->block->index)
#define blockDim (emu::now->block->dim)
#define gridDim (emu::now->block->grid)

// EMU_AT is where an operation was called.
#define EMU_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()

DEVICE u8 *shared() { return emu::now->block->shared; }

DEVICE void __syncthreads(EMU_AT) { emu::barrier(file, line); }
DEVICE void __syncwarp(u32 mask = 0xffffffffu, EMU_AT) {
    emu::check_mask(mask, "__syncwarp");
    emu::collect(emu::syncwarp, nullptr, file, line);
}

// Shuffles within groups of width lanes, as in CUDA: a lane outside the group gives one's own value.
template <class T> DEVICE T __shfl_sync(u32 mask, T x, int from, int width = 32, EMU_AT) {
    int lane = emu::now->lane;
    return emu::shfl(mask, x, (lane & -width) + (from & (width - 1)), file, line);
}
template <class T> DEVICE T __shfl_xor_sync(u32 mask, T x, int bits, int width = 32, EMU_AT) {
    int lane = emu::now->lane, from = lane ^ bits;
    return emu::shfl(mask, x, from < (lane & -width) + width ? from : -1, file, line);
}
template <class T> DEVICE T __shfl_up_sync(u32 mask, T x, u32 by, int width = 32, EMU_AT) {
    int lane = emu::now->lane, from = lane - (int)by;
    return emu::shfl(mask, x, from >= (lane & -width) ? from : -1, file, line);
}
template <class T> DEVICE T __shfl_down_sync(u32 mask, T x, u32 by, int width = 32, EMU_AT) {
    int lane = emu::now->lane, from = lane + (int)by;
    return emu::shfl(mask, x, from < (lane & -width) + width ? from : -1, file, line);
}
DEVICE u32 __ballot_sync(u32 mask, int predicate, EMU_AT) {
    emu::check_mask(mask, "__ballot_sync");
    emu::Ballot b{predicate != 0, 0};
    emu::collect(emu::ballot, &b, file, line);
    return b.result;
}

DEVICE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Atomics are relaxed, on memory of the block or of the grid; all return the old value.
#define EMU_ATOMIC(T)                                                                                      \
    DEVICE T atomicAdd(T *p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }                   \
    DEVICE T atomicMax(T *p, T x) {                                                                        \
        T old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                      \
        while (old < x && !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {} \
        return old;                                                                                        \
    }                                                                                                      \
    DEVICE T atomicMin(T *p, T x) {                                                                        \
        T old = __atomic_load_n(p, __ATOMIC_RELAXED);                                                      \
        while (x < old && !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {} \
        return old;                                                                                        \
    }
EMU_ATOMIC(u32)
EMU_ATOMIC(u64)
EMU_ATOMIC(int)
#undef EMU_ATOMIC

// min and max with CUDA's overloads: mixed signs give unsigned, mixed widths do not compile.
#define EMU_MINMAX(R, A, B)                                        \
    DEVICE R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }   \
    DEVICE R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
EMU_MINMAX(int, int, int)
EMU_MINMAX(u32, u32, u32)
EMU_MINMAX(u32, int, u32)
EMU_MINMAX(u32, u32, int)
EMU_MINMAX(i64, i64, i64)
EMU_MINMAX(u64, u64, u64)
EMU_MINMAX(u64, i64, u64)
EMU_MINMAX(u64, u64, i64)
#undef EMU_MINMAX
DEVICE float min(float a, float b) { return fminf(a, b); }
DEVICE float max(float a, float b) { return fmaxf(a, b); }
DEVICE double min(double a, double b) { return fmin(a, b); }
DEVICE double max(double a, double b) { return fmax(a, b); }

DEVICE u32 __float_as_uint(float x) { return __builtin_bit_cast(u32, x); }
DEVICE float __uint_as_float(u32 x) { return __builtin_bit_cast(float, x); }
DEVICE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
DEVICE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
DEVICE int __popc(u32 x) { return __builtin_popcount(x); }
DEVICE int __ffs(int x) { return __builtin_ffs(x); }
DEVICE int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
#define rsqrtf(x) (1.0f / sqrtf(x)) // a macro: some C libraries declare it
#define INF __int_as_float(0x7f800000)

struct bf16 {
    u16 bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x) {
    u32 u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
    return {(u16)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}

DEVICE u32 pack2(float lo, float hi) {
    return from_float<bf16>(lo).bits | (u32)from_float<bf16>(hi).bits << 16;
}

DEVICE float fast_exp2(float x) {
    float y = exp2f(x);
    return y < FLT_MIN ? 0.0f : y;
}

DEVICE float fast_rcp(float x) {
    float y = 1.0f / (fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x);
    return fabsf(y) < FLT_MIN ? copysignf(0.0f, y) : y;
}

DEVICE float from_half(u16 x) {
    u32 sign = (u32)(x & 0x8000) << 16;
    if ((x & 0x7c00) == 0x7c00) return __uint_as_float(sign | 0x7f800000u | (u32)(x & 0x3ff) << 13);
    float y = __uint_as_float((u32)(x & 0x7fff) << 13) * 0x1p112f; // the other exponent's bias
    return __uint_as_float(__float_as_uint(y) | sign);
}
DEVICE u16 to_half(float x) {
    u32 u = __float_as_uint(x), sign = u >> 16 & 0x8000;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return 0x7fff;
    if (u >= 0x477ff000u) return (u16)(sign | 0x7c00);
    if (u >= 0x38800000u) { // a normal number
        u -= (127 - 15) << 23;
        return (u16)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
    }
    // A subnormal number is a multiple of 2^-24, as far apart as float32's neighbours of 0.5.
    return (u16)(sign | (__float_as_uint(__uint_as_float(u) + 0.5f) - __float_as_uint(0.5f)));
}
DEVICE float product(float x, float y) { return x * y; }

DEVICE void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], EMU_AT) {
    emu::Mma m{d, a, b};
    emu::collect(emu::mma, &m, file, line);
}
DEVICE void ldmatrix4(u32 (&r)[4], const void *row, EMU_AT) {
    emu::check_shared(row, "ldmatrix4");
    emu::Ldmatrix l{r, static_cast<const u8 *>(row)};
    emu::collect(emu::ldmatrix, &l, file, line);
}
DEVICE void ldmatrix4t(u32 (&r)[4], const void *row, EMU_AT) {
    emu::check_shared(row, "ldmatrix4t");
    emu::Ldmatrix l{r, static_cast<const u8 *>(row)};
    emu::collect(emu::ldmatrix_trans, &l, file, line);
}

DEVICE void copy_async(void *dst, const void *src, bool valid, EMU_AT) { emu::copy_begin(dst, src, valid, file, line); }
DEVICE void copy_commit() { emu::copy_group(); }
template <int n> DEVICE void copy_wait() { emu::copy_finish(n); }
