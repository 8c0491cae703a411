// Kernels that go once over their elements. The comment of each is its loop, in
// names of which capitals are extents (device.cuh has the legend).
//
// Launch: 256 threads, no shared memory, any grid of x alone: results do not
// depend on it. A thread has eight elements of a row a turn, so a good grid is
// min(ceil(elements/2048), 16 blocks for each multiprocessor), where rows count as
// rounded up to eights. Nothing is to be launched for no elements. It is fast
// where all pointers are multiples of 16 bytes and D is one of 8, and right
// everywhere.
//
// Arithmetic is float32, and each result is rounded once.
#include "vec.cuh"

#define ELEMENTWISE_THREADS 256

// add: y[i] += x[i].
template <class Y, class X> DEVICE void add(Y y, X x, i64 n) {
    sweep(n, aligned(y, x), [&](i64 i, int count, bool wide) {
        Vec a, b;
        load(a, y + i, count, wide);
        load(b, x + i, count, wide);
        for (int j = 0; j < 8; j++) a.v[j] += b.v[j];
        store(y + i, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, add_f32, float *y, const float *x, i64 n) { add(y, x, n); }
KERNEL(ELEMENTWISE_THREADS, add_bf16, bf16 *y, const bf16 *x, i64 n) { add(y, x, n); }
KERNEL(ELEMENTWISE_THREADS, add_bf16_to_f32, float *y, const bf16 *x, i64 n) { add(y, x, n); }
KERNEL(ELEMENTWISE_THREADS, add_master, bf16 *y, u16 *y_lo, bf16 *x, u16 *x_lo, i64 n) { add(Master{y, y_lo}, Master{x, x_lo}, n); }

// scale: t[i] *= s.
template <class T> DEVICE void scale(T t, float s, i64 n) {
    sweep(n, aligned(t), [&](i64 i, int count, bool wide) {
        Vec a;
        load(a, t + i, count, wide);
        for (int j = 0; j < 8; j++) a.v[j] *= s;
        store(t + i, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, scale_f32, float *t, float s, i64 n) { scale(t, s, n); }
KERNEL(ELEMENTWISE_THREADS, scale_bf16, bf16 *t, float s, i64 n) { scale(t, s, n); }
KERNEL(ELEMENTWISE_THREADS, scale_master, bf16 *t, u16 *lo, float s, i64 n) { scale(Master{t, lo}, s, n); }

// cast: y[i] = x[i].
template <class Y, class X> DEVICE void cast(Y y, X x, i64 n) {
    sweep(n, aligned(y, x), [&](i64 i, int count, bool wide) {
        Vec a;
        load(a, x + i, count, wide);
        store(y + i, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, cast_f32_bf16, bf16 *y, const float *x, i64 n) { cast(y, x, n); }
KERNEL(ELEMENTWISE_THREADS, cast_bf16_f32, float *y, const bf16 *x, i64 n) { cast(y, x, n); }
KERNEL(ELEMENTWISE_THREADS, cast_f32_master, bf16 *y, u16 *y_lo, const float *x, i64 n) { cast(Master{y, y_lo}, x, n); }
KERNEL(ELEMENTWISE_THREADS, cast_master_f32, float *y, bf16 *x, u16 *x_lo, i64 n) { cast(y, Master{x, x_lo}, n); }

// gather: y[r,d] = x[rows[r],d], for r below R. embed is the same from a table.
template <class Y, class X> DEVICE void gather(Y *y, const X *x, const int *rows, int R, int D) {
    sweep_rows(R, D, aligned(y, x), [&](i64 r, int d, int count, bool wide) {
        Vec a;
        load(a, x + (i64)rows[r] * D + d, count, wide);
        store(y + r * D + d, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, gather_f32, float *y, const float *x, const int *rows, int R, int D) { gather(y, x, rows, R, D); }
KERNEL(ELEMENTWISE_THREADS, gather_bf16, bf16 *y, const bf16 *x, const int *rows, int R, int D) { gather(y, x, rows, R, D); }
KERNEL(ELEMENTWISE_THREADS, embed_f32, float *y, const float *table, const int *ids, int N, int D) { gather(y, table, ids, N, D); }
KERNEL(ELEMENTWISE_THREADS, embed_bf16, float *y, const bf16 *table, const int *ids, int N, int D) { gather(y, table, ids, N, D); }

// scatter_add: y[rows[r],d] += x[r,d]. Equal rows are neighbours: whoever has the
// first of them adds all, r ascending, in float32, and rounds once.
template <class T> DEVICE void scatter_add(T *y, const float *x, const int *rows, int R, int D) {
    sweep_rows(R, D, aligned(y, x), [&](i64 r, int d, int count, bool wide) {
        int row = rows[r];
        if (r > 0 && rows[r - 1] == row) return;
        Vec a, b;
        T *at = y + (i64)row * D + d;
        load(a, at, count, wide);
        do {
            load(b, x + r * D + d, count, wide);
            for (int j = 0; j < 8; j++) a.v[j] += b.v[j];
        } while (++r < R && rows[r] == row);
        store(at, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, scatter_add_f32, float *y, const float *x, const int *rows, int R, int D) { scatter_add(y, x, rows, R, D); }
KERNEL(ELEMENTWISE_THREADS, scatter_add_bf16, bf16 *y, const float *x, const int *rows, int R, int D) { scatter_add(y, x, rows, R, D); }

// cache_write: cache[slots[n],w] = x[n,w]; slots are distinct. The rows of x begin
// x_row elements apart.
template <class T> DEVICE void cache_write(T *cache, const T *x, const int *slots, int N, int W, int x_row) {
    sweep_rows(N, W, aligned(cache, x) && x_row % 8 == 0, [&](i64 n, int w, int count, bool wide) {
        Vec a;
        load(a, x + n * x_row + w, count, wide);
        store(cache + (i64)slots[n] * W + w, a, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, cache_write_f32, float *cache, const float *x, const int *slots, int N, int W, int x_row) { cache_write(cache, x, slots, N, W, x_row); }
KERNEL(ELEMENTWISE_THREADS, cache_write_bf16, bf16 *cache, const bf16 *x, const int *slots, int N, int W, int x_row) { cache_write(cache, x, slots, N, W, x_row); }

// embed_grad, for u below U: g[id[u],d] += dy[member[i],d], i from begin[u] to
// begin[u+1]-1 in order. The ids are distinct; the host has grouped the tokens
// that share one, ascending, so that each row of g has one owner. Elements for
// the grid: U rows of D.
KERNEL(ELEMENTWISE_THREADS, embed_grad, float *g, const float *dy, const int *id_U, const int *begin_U1, const int *member_N, int U, int D) {
    sweep_rows(U, D, aligned(g, dy), [&](i64 u, int d, int count, bool wide) {
        Vec a;
        float *at = g + (i64)id_U[u] * D + d;
        int end = begin_U1[u + 1];
        load(a, at, count, wide);
#pragma unroll 4
        for (int i = begin_U1[u]; i < end; i++) {
            Vec b;
            load(b, dy + (i64)member_N[i] * D + d, count, wide);
            for (int j = 0; j < 8; j++) a.v[j] += b.v[j];
        }
        store(at, a, count, wide);
    });
}

// rope, for x [N,heads,E] in place, E even, table [positions,E]: for e below E/2
//   c = table[pos[n],e];  s = sign*table[pos[n],e+E/2]
//   x[n,h,e], x[n,h,e+E/2] = x[n,h,e]*c - x[n,h,e+E/2]*s, x[n,h,e+E/2]*c + x[n,h,e]*s
// sign is 1, or -1 to turn back. The rows of x begin x_row elements apart. N*heads is below 2^32. Elements for the
// grid: N*heads rows of E/2.
// rope_pair rotates count pairs half apart by the angles at angle.
template <class T> DEVICE void rope_pair(T *to, const T *from, const float *angle, int half, float sign, int count, bool wide) {
    Vec a, b, c, s;
    load(a, from, count, wide);
    load(b, from + half, count, wide);
    load(c, angle, count, wide);
    load(s, angle + half, count, wide);
    for (int j = 0; j < 8; j++) {
        float p = a.v[j], q = b.v[j], sn = sign * s.v[j];
        a.v[j] = fmaf(p, c.v[j], -(q * sn));
        b.v[j] = fmaf(q, c.v[j], p * sn);
    }
    store(to, a, count, wide);
    store(to + half, b, count, wide);
}
template <class T> DEVICE void rope(T *x, const int *pos, const float *table, int N, int heads, int E, int x_row, float sign) {
    int half = E / 2;
    sweep_rows((i64)N * heads, half, aligned(x, table) && x_row % 8 == 0, [&](i64 r, int e, int count, bool wide) {
        int n = (u32)r / (u32)heads, h = (u32)r % (u32)heads;
        T *at = x + (i64)n * x_row + h * E + e;
        rope_pair(at, at, table + (i64)pos[n] * E + e, half, sign, count, wide);
    });
}
KERNEL(ELEMENTWISE_THREADS, rope_f32, float *x, const int *pos, const float *table, int N, int heads, int E, int x_row, float sign) {
    rope(x, pos, table, N, heads, E, x_row, sign);
}
KERNEL(ELEMENTWISE_THREADS, rope_bf16, bf16 *x, const int *pos, const float *table, int N, int heads, int E, int x_row, float sign) {
    rope(x, pos, table, N, heads, E, x_row, sign);
}

// rope_cache: rope of q [N,H,E] in place, of k [N,K,E] into the rows slots of kc
// [slots,K,E], and cache_write of v [N,K,E] to vc, with the bits of these. slots are
// distinct. The rows of q, k and v begin q_row, k_row and v_row elements apart. N*(H+2K) is below 2^32. Elements for the grid: N*(H+2K) rows of E/2.
template <class T>
DEVICE void rope_cache(T *q, const T *k, const T *v, T *kc, T *vc, const int *pos, const int *slots, const float *table, int N, int H, int K, int E,
                       int q_row, int k_row, int v_row) {
    int half = E / 2, heads = H + 2 * K;
    sweep_rows((i64)N * heads, half, aligned(q, k, v, kc, vc, table) && (q_row | k_row | v_row) % 8 == 0, [&](i64 r, int e, int count, bool wide) {
        int n = (u32)r / (u32)heads, h = (u32)r % (u32)heads;
        Vec a, b;
        if (h >= H + K) {
            const T *value = v + (i64)n * v_row + (h - H - K) * E + e;
            T *to = vc + ((i64)slots[n] * K + h - H - K) * E + e;
            load(a, value, count, wide);
            load(b, value + half, count, wide);
            store(to, a, count, wide);
            store(to + half, b, count, wide);
            return;
        }
        const T *from = h < H ? q + (i64)n * q_row + h * E + e : k + (i64)n * k_row + (h - H) * E + e;
        T *to = h < H ? q + (i64)n * q_row + h * E + e : kc + ((i64)slots[n] * K + h - H) * E + e;
        rope_pair(to, from, table + (i64)pos[n] * E + e, half, 1.0f, count, wide);
    });
}
#define ROPE_CACHE(T, SUFFIX)                                                                                                                                    \
    KERNEL(ELEMENTWISE_THREADS, rope_cache_##SUFFIX, T *q, const T *k, const T *v, T *kc, T *vc, const int *pos, const int *slots, const float *table, int N, int H, \
           int K, int E, int q_row, int k_row, int v_row) {                                                                                                      \
        rope_cache(q, k, v, kc, vc, pos, slots, table, N, H, K, E, q_row, k_row, v_row);                                                                         \
    }
ROPE_CACHE(float, f32)
ROPE_CACHE(bf16, bf16)

// A gated activation: y[n,f] = x*f(x)*up[n,f] with x = gate[n,f], and f between 0 and 1; of glu
// f(x)*up[n,f].
//
//   swiglu  f(x) = 1/(1+exp(-x)) (arXiv 2002.05202)
//   glu     the same f (arXiv 1612.08083)
//   geglu   f(x) = 1/(1+exp(-2c*(x + 0.044715*x³))), c = sqrt(2/π): gelu by tanh (arXiv 1606.08415)
//
// N rows of F; those of gate and up begin row elements apart, those of y F. Where exp
// overflows, y is -0. fast_rcp, because by count of instructions an exact division would take
// about as long as the memory traffic.
//
// gate_of is f, value_of x*f(x) or f(x), and slope_of its derivative, given f(x).
template <class Act> DEVICE float value_of(Act, float x, float f) { return x * f; }
struct Sigmoid {};
DEVICE float gate_of(Sigmoid, float x) { return fast_rcp(1.0f + expf(-x)); }
DEVICE float value_of(Sigmoid, float, float f) { return f; }
DEVICE float slope_of(Sigmoid, float, float f) { return f * (1.0f - f); }
struct Silu {};
DEVICE float gate_of(Silu, float x) { return fast_rcp(1.0f + expf(-x)); }
DEVICE float slope_of(Silu, float x, float f) { return f * fmaf(x, 1.0f - f, 1.0f); }
#define GELU_C 0.7978845608028654f
#define GELU_CUBE 0.044715f
struct Gelu {};
DEVICE float gate_of(Gelu, float x) { return fast_rcp(1.0f + expf(-2.0f * GELU_C * fmaf(GELU_CUBE * x, x * x, x))); }
DEVICE float slope_of(Gelu, float x, float f) { return f * fmaf(x * (1.0f - f), 2.0f * GELU_C * fmaf(3.0f * GELU_CUBE * x, x, 1.0f), 1.0f); }
template <class Act, class T> DEVICE void gated(T *y, const T *gate, const T *up, int N, int F, int row) {
    sweep_rows(N, F, aligned(y, gate, up) && row % 8 == 0, [&](i64 n, int f, int count, bool wide) {
        Vec a, b;
        load(a, gate + n * row + f, count, wide);
        load(b, up + n * row + f, count, wide);
        for (int j = 0; j < 8; j++) a.v[j] = value_of(Act(), a.v[j], gate_of(Act(), a.v[j])) * b.v[j];
        store(y + n * F + f, a, count, wide);
    });
}

// Its gradient, with x = gate[n,f]:
//   dgate[n,f] = dy[n,f]*up[n,f]*slope_of(x);  dup[n,f] = dy[n,f]*value_of(x)
// and unless y is null y again. The rows of dgate, dup, gate and up begin row elements apart,
// those of dy dy_row, those of y F. Each of dgate and dup may be dy, gate or up; y none of them.
template <class Act, class T>
DEVICE void gated_grad(T *y, T *dgate, T *dup, const T *dy, const T *gate, const T *up, int N, int F, int row, int dy_row) {
    sweep_rows(N, F, aligned(y, dgate, dup, dy, gate, up) && (row | dy_row) % 8 == 0, [&](i64 n, int f, int count, bool wide) {
        i64 i = n * row + f;
        Vec a, d, g, u;
        load(d, dy + n * dy_row + f, count, wide);
        load(g, gate + i, count, wide);
        load(u, up + i, count, wide);
        for (int j = 0; j < 8; j++) {
            float s = gate_of(Act(), g.v[j]);
            float slope = slope_of(Act(), g.v[j], s), value = value_of(Act(), g.v[j], s);
            a.v[j] = value * u.v[j];
            u.v[j] = d.v[j] * u.v[j] * slope;
            d.v[j] = d.v[j] * value;
        }
        if (y) store(y + n * F + f, a, count, wide);
        store(dgate + i, u, count, wide);
        store(dup + i, d, count, wide);
    });
}
#define GATED(NAME, ACT, T, SUFFIX)                                                                                                                           \
    KERNEL(ELEMENTWISE_THREADS, NAME##_##SUFFIX, T *y, const T *gate, const T *up, int N, int F, int row) { gated<ACT>(y, gate, up, N, F, row); }              \
    KERNEL(ELEMENTWISE_THREADS, NAME##_grad_##SUFFIX, T *y, T *dgate, T *dup, const T *dy, const T *gate, const T *up, int N, int F, int row, int dy_row) { \
        gated_grad<ACT>(y, dgate, dup, dy, gate, up, N, F, row, dy_row);                                                                                      \
    }
GATED(swiglu, Silu, float, f32)
GATED(swiglu, Silu, bf16, bf16)
GATED(geglu, Gelu, float, f32)
GATED(geglu, Gelu, bf16, bf16)
GATED(glu, Sigmoid, float, f32)
GATED(glu, Sigmoid, bf16, bf16)
