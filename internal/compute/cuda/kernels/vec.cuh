// Eight elements at a time, in 16-byte accesses where pointers and lengths allow.
// Which way they are read and written never changes a result's bits.
#pragma once

#include "device.cuh"

// Vec is eight consecutive elements as floats.
struct Vec {
    float v[8];
};

// Master is float32 in two planes of 16 bits. hi is the bfloat16 that products read,
// lo the rest, as a signed number:
//
//   bits(x) = (hi << 16) + lo;  hi = (bits(x) + 0x8000) >> 16;  lo = the lower 16 bits of bits(x)
//
// So hi is x rounded to nearest, ties away from zero. Ties to even would need a 17th
// bit: the two x that lie half a step below and above an even hi would have the same
// lo. A hi that is infinite stands for the largest finite numbers where lo is negative.
// Any NaN becomes 0x7fff0000: the device's own, 0x7fffffff, would make hi -0.
struct Master {
    bf16 *hi;
    u16 *lo;
};
DEVICE Master operator+(Master p, i64 i) { return {p.hi + i, p.lo + i}; }

// master_join is bits(x) from the lower 16 bits of hi, and lo, the upper of which are 0.
DEVICE u32 master_join(u32 hi, u32 lo) { return (hi << 16) + (lo ^ 0x8000u) - 0x8000u; }

// master_bits is bits(x) as they are kept.
DEVICE u32 master_bits(float x) {
    u32 u = __float_as_uint(x);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : u;
}

// address is where p points, as far as alignment goes.
DEVICE u64 address(const void *p) { return (u64)p; }
DEVICE u64 address(Master p) { return (u64)p.hi | (u64)p.lo; }

// aligned says that all pointers are multiples of 16 bytes; so is null.
template <class... P> DEVICE bool aligned(P... p) { return ((address(p) | ...) & 15) == 0; }

// load and store move the first count of eight elements; the rest is read as
// zeros. wide says that all eight are there and p is aligned: it should be a
// constant where the call is inlined.
DEVICE void load(Vec &a, const float *p, int count, bool wide) {
    if (wide) {
        float4 lo = ((const float4 *)p)[0], hi = ((const float4 *)p)[1];
        a.v[0] = lo.x, a.v[1] = lo.y, a.v[2] = lo.z, a.v[3] = lo.w;
        a.v[4] = hi.x, a.v[5] = hi.y, a.v[6] = hi.z, a.v[7] = hi.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = j < count ? p[j] : 0.0f;
}
DEVICE void load(Vec &a, const bf16 *p, int count, bool wide) {
    if (wide) {
        uint4 u = *(const uint4 *)p;
        a.v[0] = __uint_as_float(u.x << 16), a.v[1] = __uint_as_float(u.x & 0xffff0000u);
        a.v[2] = __uint_as_float(u.y << 16), a.v[3] = __uint_as_float(u.y & 0xffff0000u);
        a.v[4] = __uint_as_float(u.z << 16), a.v[5] = __uint_as_float(u.z & 0xffff0000u);
        a.v[6] = __uint_as_float(u.w << 16), a.v[7] = __uint_as_float(u.w & 0xffff0000u);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = j < count ? to_float(p[j]) : 0.0f;
}
DEVICE void load(Vec &a, Master p, int count, bool wide) {
    if (wide) {
        uint4 h = *(const uint4 *)p.hi, l = *(const uint4 *)p.lo;
        u32 hi[4] = {h.x, h.y, h.z, h.w}, lo[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            a.v[2 * k] = __uint_as_float(master_join(hi[k], lo[k] & 0xffffu));
            a.v[2 * k + 1] = __uint_as_float(master_join(hi[k] >> 16, lo[k] >> 16));
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = j < count ? __uint_as_float(master_join(p.hi[j].bits, p.lo[j])) : 0.0f;
}
DEVICE void store(float *p, const Vec &a, int count, bool wide) {
    if (wide) {
        ((float4 *)p)[0] = make_float4(a.v[0], a.v[1], a.v[2], a.v[3]);
        ((float4 *)p)[1] = make_float4(a.v[4], a.v[5], a.v[6], a.v[7]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) p[j] = a.v[j];
}
DEVICE void store(bf16 *p, const Vec &a, int count, bool wide) {
    if (wide) {
        *(uint4 *)p = make_uint4(pack2(a.v[0], a.v[1]), pack2(a.v[2], a.v[3]), pack2(a.v[4], a.v[5]), pack2(a.v[6], a.v[7]));
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) p[j] = from_float<bf16>(a.v[j]);
}

DEVICE void store(Master p, const Vec &a, int count, bool wide) {
    u32 u[8];
#pragma unroll
    for (int j = 0; j < 8; j++) u[j] = master_bits(a.v[j]);
    if (wide) {
        u32 hi[4], lo[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            hi[k] = (u[2 * k] + 0x8000u) >> 16 | ((u[2 * k + 1] + 0x8000u) & 0xffff0000u);
            lo[k] = (u[2 * k] & 0xffffu) | u[2 * k + 1] << 16;
        }
        *(uint4 *)p.hi = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        *(uint4 *)p.lo = make_uint4(lo[0], lo[1], lo[2], lo[3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) p.hi[j].bits = (u16)((u[j] + 0x8000u) >> 16), p.lo[j] = (u16)(u[j] & 0xffffu);
}

// sweep calls f(i, count, wide) for this thread's share of n elements, over any
// grid of x: count elements from i, a multiple of 8. wide is as of load, where all
// arrays are aligned.
template <class F> DEVICE void sweep(i64 n, bool wide, F f) {
    i64 step = 8 * (i64)gridDim.x * blockDim.x;
    for (i64 i = 8 * ((i64)blockIdx.x * blockDim.x + threadIdx.x); i < n; i += step) {
        if (wide && n - i >= 8)
            f(i, 8, true);
        else
            f(i, (int)min(n - i, (i64)8), false);
    }
}

// sweep_rows calls f(r, d, count, wide) for this thread's share of R rows of D
// elements, as sweep does: count elements of row r from d, a multiple of 8.
template <class F> DEVICE void sweep_rows(i64 R, int D, bool wide, F f) {
    int eights = (D + 7) / 8;
    i64 cells = R * eights, step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < cells; i += step) {
        i64 r = cells >> 31 ? i / eights : (i64)((u32)i / (u32)eights); // 64-bit division takes several times as long
        int d = 8 * (int)(i - r * eights);
        if (wide && D % 8 == 0)
            f(r, d, 8, true);
        else
            f(r, d, min(D - d, 8), false);
    }
}
