// The optimizer: the norm of all gradients, and AdamW. The comment of each kernel
// is its loop.
#include "vec.cuh"

#define OPTIM_THREADS 256
#define SUM_BLOCK 32768 // elements that one partial sum covers
#define SUM_THREADS 1024

// optim_sum adds the threads' doubles in a fixed tree; scratch is blockDim.x
// doubles, a power of two. Thread 0 gets the sum.
DEVICE double optim_sum(double x, double *scratch) {
    scratch[threadIdx.x] = x;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    return scratch[0];
}

// sum_squares_T: part[b] = Σ x[i]², i from 32768*b to 32768*(b+1)-1 or n-1, in
// float64 throughout: NaN and infinities stay, and nothing overflows.
//
//   threads  256
//   grid     x: ceil(n/32768)
//   shared   2048 bytes
//
// The sums of several tensors: each one's partials behind the last one's, then
// one sum_partials over all. Thread t adds elements 8t to 8t+7 of each 2048 of its
// block, so the result depends on lengths only.
template <class T> DEVICE void sum_squares(double *part, const T *x, i64 n) {
    i64 from = (i64)blockIdx.x * SUM_BLOCK, to = min(from + SUM_BLOCK, n);
    double sum = 0;
    auto add = [&](i64 i, int count, bool wide) {
        Vec a;
        load(a, x + i, count, wide);
        for (int j = 0; j < 8; j++) sum += (double)a.v[j] * a.v[j]; // products are exact: fused or not, the bits are the same
    };
    i64 i = from + 8 * (i64)threadIdx.x;
    if (aligned(x)) {
#pragma unroll 4
        for (; i + 8 <= to; i += 8 * OPTIM_THREADS) add(i, 8, true);
    }
    for (; i < to; i += 8 * OPTIM_THREADS) add(i, (int)min(to - i, (i64)8), false);
    sum = optim_sum(sum, (double *)shared());
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
KERNEL(OPTIM_THREADS, sum_squares_f32, double *part, const float *x, i64 n) { sum_squares(part, x, n); }
KERNEL(OPTIM_THREADS, sum_squares_bf16, double *part, const bf16 *x, i64 n) { sum_squares(part, x, n); }

// sum_partials: *out = Σ part[b], b below n: thread t adds every 1024th from t on,
// then the threads' sums go through a fixed tree. n may be 0.
// Launch: 1024 threads, one block, 8192 bytes of shared memory.
KERNEL(SUM_THREADS, sum_partials, double *out, const double *part, i64 n) {
    double sum = 0;
#pragma unroll 8
    for (i64 b = threadIdx.x; b < n; b += SUM_THREADS) sum += part[b];
    sum = optim_sum(sum, (double *)shared());
    if (threadIdx.x == 0) *out = sum;
}

// Twin is float32 weights and their bfloat16 copy, which may be null.
struct Twin {
    float *w;
    bf16 *copy;
};
DEVICE Twin operator+(Twin p, i64 i) { return {p.w + i, p.copy ? p.copy + i : p.copy}; }
DEVICE u64 address(Twin p) { return (u64)p.w | (u64)p.copy; }
DEVICE void load(Vec &a, Twin p, int count, bool wide) { load(a, p.w, count, wide); }
DEVICE void store(Twin p, const Vec &a, int count, bool wide) {
    store(p.w, a, count, wide);
    if (p.copy) store(p.copy, a, count, wide);
}

// Rates are a step's constants: float32 of what the host computes in float64:
//   rest1 = 1-β1, rest2 = 1-β2, step = LR/(1-β1^t), inv2 = 1/(1-β2^t), decay = LR*Decay or 0
struct Rates {
    float grad_scale, beta1, rest1, beta2, rest2, step, inv2, eps, decay;
};
#define RATES float grad_scale, float beta1, float rest1, float beta2, float rest2, float step, float inv2, float eps, float decay
#define GIVEN \
    Rates { grad_scale, beta1, rest1, beta2, rest2, step, inv2, eps, decay }

// adamw_moments and adamw_weights are AdamW's two halves (arXiv 1711.05101):
//   g' = g[i]*grad_scale
//   m[i] = beta1*m[i] + rest1*g';  v[i] = beta2*v[i] + rest2*g'*g'
//   w[i] -= step*m[i]/(sqrt(v[i]*inv2) + eps) + decay*w[i]
// Loops of their own: with the division in the other, registers are spilt.
DEVICE void adamw_moments(Vec &m, Vec &v, const Vec &g, const Rates &r) {
    for (int j = 0; j < 8; j++) {
        float d = g.v[j] * r.grad_scale;
        m.v[j] = fmaf(r.beta1, m.v[j], r.rest1 * d);
        v.v[j] = fmaf(r.beta2, v.v[j], r.rest2 * d * d);
    }
}
DEVICE void adamw_weights(Vec &w, const Vec &m, const Vec &v, const Rates &r) {
    for (int j = 0; j < 8; j++) w.v[j] -= fmaf(r.decay, w.v[j], r.step * m.v[j] / (sqrtf(v.v[j] * r.inv2) + r.eps));
}

// adamw_T, for i below n: adamw_moments, then adamw_weights. g is left as it is. T is how
// weights are kept: float32, with a bfloat16 copy that is written too unless it is null,
// or master (vec.cuh).
//
// Launch as elementwise.cu's kernels: 256 threads, any grid, no shared memory.
template <class W> DEVICE void adamw(W w, const float *g, float *m, float *v, i64 n, const Rates &r) {
    sweep(n, aligned(w, g, m, v), [&](i64 i, int count, bool wide) {
        Vec ww, gg, mm, vv;
        load(ww, w + i, count, wide);
        load(gg, g + i, count, wide);
        load(mm, m + i, count, wide);
        load(vv, v + i, count, wide);
        adamw_moments(mm, vv, gg, r);
        store(m + i, mm, count, wide);
        store(v + i, vv, count, wide);
        adamw_weights(ww, mm, vv, r);
        store(w + i, ww, count, wide);
    });
}
KERNEL(OPTIM_THREADS, adamw_f32, float *w, bf16 *copy, const float *g, float *m, float *v, i64 n, RATES) { adamw(Twin{w, copy}, g, m, v, n, GIVEN); }
KERNEL(OPTIM_THREADS, adamw_master, bf16 *w, u16 *w_lo, const float *g, float *m, float *v, i64 n, RATES) { adamw(Master{w, w_lo}, g, m, v, n, GIVEN); }

#define MOMENT_BLOCK 256 // moments that share a scale: eight for each lane of a warp
#define MAP_MID 256      // of a map: where its middles begin
#define MAP 512          // floats of a map: 256 values, 255 middles, and one that is not read

// decode: x[j] = value[p[j]]*scale for j below count, 0 from there on.
DEVICE void decode(Vec &x, const u8 *p, float scale, const float *map, int count, bool wide) {
    u32 c[2] = {0, 0};
    if (wide) {
        uint2 u = *(const uint2 *)p;
        c[0] = u.x, c[1] = u.y;
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < count) c[j / 4] |= (u32)p[j] << 8 * (j % 4);
    }
#pragma unroll
    for (int j = 0; j < 8; j++) x.v[j] = j < count ? map[c[j / 4] >> 8 * (j % 4) & 255] * scale : 0.0f;
}

// encode, over a warp that has a block of moments, those beyond its end 0:
//   *scale = max_j |x[j]|;  y = x[j]/(*scale);  p[j] = the number of middles that are at most y
// and 1 for 0 where y is above 0 and the map has no negative values. The search is for
// the largest c such that the middle before it is at most y.
DEVICE void encode(u8 *p, float *scale, const Vec &x, const float *map, int count, bool wide) {
    float s = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) s = fmaxf(s, fabsf(x.v[j]));
    s = warp_max(s);
    if (threadIdx.x % WARP == 0) *scale = s;
    bool squares = map[0] == 0;
    u32 c[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float y = s > 0 ? x.v[j] / s : 0.0f;
        u32 code = 0;
#pragma unroll
        for (u32 half = 128; half > 0; half /= 2)
            if (map[MAP_MID + code + half - 1] <= y) code += half;
        if (squares && code == 0 && y > 0) code = 1;
        c[j / 4] |= code << 8 * (j % 4);
    }
    if (wide) {
        *(uint2 *)p = make_uint2(c[0], c[1]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < count) p[j] = (u8)(c[j / 4] >> 8 * (j % 4));
}

// adamw8_T is adamw_T with moments in 8 bits (compute.Moments), whose scales are m_scale
// and v_scale [ceil(n/256)]: they are decoded, w is stepped by the new ones, and these are
// encoded. maps is Signed for m, then Squares for v, each 256 values and 255 middles.
// A warp has a block of moments a turn.
//
// Launch: 256 threads, any grid of x alone, 4096 bytes of shared memory.
template <class W>
DEVICE void adamw8(W w, const float *g, u8 *m, float *m_scale, u8 *v, float *v_scale, const float *maps, i64 n, const Rates &r) {
    float *map = (float *)shared();
    for (int i = threadIdx.x; i < 2 * MAP; i += blockDim.x) map[i] = maps[i];
    __syncthreads();
    bool fast = aligned(w, g, m, v);
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    i64 blocks = (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
    for (i64 b = (i64)blockIdx.x * warps + threadIdx.x / WARP; b < blocks; b += (i64)gridDim.x * warps) {
        i64 i = b * MOMENT_BLOCK + 8 * lane;
        int count = (int)max(min(n - i, (i64)8), (i64)0);
        bool wide = fast && n - b * MOMENT_BLOCK >= MOMENT_BLOCK; // the same in all lanes
        Vec ww, gg, mm, vv;
        load(gg, g + i, count, wide);
        decode(mm, m + i, m_scale[b], map, count, wide);
        decode(vv, v + i, v_scale[b], map + MAP, count, wide);
        adamw_moments(mm, vv, gg, r);
        load(ww, w + i, count, wide);
        adamw_weights(ww, mm, vv, r);
        store(w + i, ww, count, wide);
        encode(m + i, m_scale + b, mm, map, count, wide);
        encode(v + i, v_scale + b, vv, map + MAP, count, wide);
    }
}
KERNEL(OPTIM_THREADS, adamw8_f32, float *w, bf16 *copy, const float *g, u8 *m, float *m_scale, u8 *v, float *v_scale, const float *maps, i64 n, RATES) {
    adamw8(Twin{w, copy}, g, m, m_scale, v, v_scale, maps, n, GIVEN);
}
KERNEL(OPTIM_THREADS, adamw8_master, bf16 *w, u16 *w_lo, const float *g, u8 *m, float *m_scale, u8 *v, float *v_scale, const float *maps, i64 n, RATES) {
    adamw8(Master{w, w_lo}, g, m, m_scale, v, v_scale, maps, n, GIVEN);
}

