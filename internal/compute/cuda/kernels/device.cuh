// The vocabulary that every kernel is written in. On a GPU it is CUDA's own, with
// a few wrapped PTX instructions; under GAD_EMU the emulated device (../emu/emu.h)
// gives the same names on the host. Kernels use nothing else: no headers, no
// static __shared__ memory, no warp operation with less than the full mask.
//
// Legend of shapes: N tokens of a pack, S sequences, R selected rows, D hidden
// width, I and O a matrix product's inputs and outputs, H query heads, K
// key/value heads, E width of one head, F feed-forward width, V vocabulary.
#pragma once

#ifdef GAD_EMU
#include "emu.h"
#else

// KERNEL(threads, name, parameters...) begins a kernel's definition; threads is
// the largest block that it is launched with.
#define KERNEL(threads, name, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define DEVICE static __device__ __forceinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// shared is the block's dynamic shared memory, the only kind there is. What is in
// it at the start is undefined.
DEVICE u8 *shared() {
    extern __shared__ __align__(128) u8 shared_bytes[];
    return shared_bytes;
}

// bf16 is bfloat16: the upper half of a float.
struct bf16 {
    u16 bits;
};

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

// from_float rounds to nearest, ties to even; any NaN becomes 0x7fff.
template <class T> DEVICE T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// pack2 is two bfloat16 in a register, lo in the lower half.
DEVICE u32 pack2(float lo, float hi) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}

// fast_exp2 is 2^x to within 2 ulp; results below the smallest normal are 0.
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// fast_rcp is 1/x to within 1 ulp; arguments and results below the smallest normal
// count as 0, so that it is 0 from 2^126 to infinity.
DEVICE float fast_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// from_half widens a binary16, to_half rounds to the nearest one, ties to even, from 65520 on to
// infinity. Subnormal numbers count.
DEVICE float from_half(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEVICE u16 to_half(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// product is x*y, rounded: no sum with it becomes a fused multiply-add.
DEVICE float product(float x, float y) {
    float z;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// mma: d[16,8] += a[16,16] * b[16,8] over a warp, bfloat16 with float sums, in
// the fragment layout of mma.sync.aligned.m16n8k16.row.col (PTX ISA, "Matrix
// fragments for mma.m16n8k16 with floating point type").
DEVICE void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix4 loads four 8x8 matrices of 16-bit elements from shared memory; row is
// this lane's row address (16 bytes, aligned): lanes 8i to 8i+7 give matrix i.
// ldmatrix4t transposes each of them.
DEVICE void ldmatrix4(u32 (&r)[4], const void *row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
DEVICE void ldmatrix4t(u32 (&r)[4], const void *row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// copy_async copies 16 aligned bytes from global to shared memory in the
// background, or zeroes them unless valid (src is not read then).
// copy_commit ends a group; copy_wait<n> waits until at most n groups, the newest,
// are under way. A thread sees its own copies after copy_wait, those of others
// after a barrier that follows it.
DEVICE void copy_async(void *dst, const void *src, bool valid) {
    u32 at = (u32)__cvta_generic_to_shared(dst);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src), "r"(bytes) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory"); }

#define INF __int_as_float(0x7f800000)

#endif

// Below: from the vocabulary alone, on both.

#define WARP 32
#define FULL 0xffffffffu

// warp_sum and warp_max leave the result in all lanes; the order is that of a
// butterfly and so the same always.
DEVICE float warp_sum(float x) {
    for (int m = WARP / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL, x, m);
    return x;
}
DEVICE float warp_max(float x) {
    for (int m = WARP / 2; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, m));
    return x;
}

// block_sum and block_max reduce over a block of whole warps; scratch is WARP
// floats of shared memory. All threads take part and all get the result.
DEVICE float block_sum(float x, float *scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : 0.0f;
    return warp_sum(x);
}
DEVICE float block_max(float x, float *scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = lane < warps ? scratch[lane] : -INF;
    return warp_max(x);
}
