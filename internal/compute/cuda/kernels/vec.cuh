// Eight elements at a time, in 16-byte accesses where pointers and lengths allow.
// Which way they are read and written never changes a result's bits.
#pragma once

#include "device.cuh"

// Vec is eight consecutive elements as floats.
struct Vec {
    float v[8];
};

// aligned says that all pointers are multiples of 16 bytes; so is null.
template <class... T> DEVICE bool aligned(const T *...p) { return (((u64)p | ...) & 15) == 0; }

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
