// The optimizer: the norm of all gradients, and AdamW. The comment of each kernel
// is its loop.
#include "vec.cuh"

#define OPTIM_THREADS 256
#define OPTIM_BLOCK 32768 // elements of a tensor that one block takes at a time; one partial sum covers as many
#define SUM_THREADS 1024

// A launch takes many tensors. Each is a segment: blocks of OPTIM_BLOCK elements, the
// last one shorter, and first is the number of blocks of the segments before it.
//
// find is the segment that a block is in: there is at least one, and none is empty.
template <class S> DEVICE const S &find(const S *segments, int count, i64 block) {
    int lo = 0, hi = count;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (segments[mid].first <= block)
            lo = mid;
        else
            hi = mid;
    }
    return segments[lo];
}

// optim_sum adds the threads' doubles in a fixed tree; scratch is blockDim.x
// doubles, a power of two. Thread 0 gets the sum.
DEVICE double optim_sum(double x, double *scratch) {
    scratch[threadIdx.x] = x;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    return threadIdx.x == 0 ? scratch[0] : 0; // thread 0 may still be adding
}

// Summed is a tensor of n elements; part is where its partial sums begin.
struct Summed {
    const void *x;
    i64 n, first, part;
};

// sum_squares_T, for each segment s and block b of it: part[s.part+b] = Σ s.x[i]², i from
// 32768*b to 32768*(b+1)-1 or s.n-1, in float64 throughout: NaN and infinities stay, and
// nothing overflows.
//
//   threads  256
//   grid     x: the blocks of all segments
//   shared   2048 bytes
//
// One sum_partials over all follows. Thread t adds elements 8t to 8t+7 of each 2048 of
// its block, so the result depends on lengths only.
template <class T> DEVICE void sum_squares(double *part, const Summed *segments, int count) {
    const Summed &s = find(segments, count, blockIdx.x);
    const T *x = (const T *)s.x;
    i64 block = (i64)blockIdx.x - s.first, from = block * OPTIM_BLOCK, to = min(from + OPTIM_BLOCK, s.n);
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
    if (threadIdx.x == 0) part[s.part + block] = sum;
}
KERNEL(OPTIM_THREADS, sum_squares_f32, double *part, const Summed *segments, int count) { sum_squares<float>(part, segments, count); }
KERNEL(OPTIM_THREADS, sum_squares_bf16, double *part, const Summed *segments, int count) { sum_squares<bf16>(part, segments, count); }

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
DEVICE Twin as(Twin, void *w, void *beside) { return {(float *)w, (bf16 *)beside}; }
DEVICE Master as(Master, void *w, void *beside) { return {(bf16 *)w, (u16 *)beside}; }
DEVICE Twin operator+(Twin p, i64 i) { return {p.w + i, p.copy ? p.copy + i : p.copy}; }
DEVICE u64 address(Twin p) { return (u64)p.w | (u64)p.copy; }
DEVICE void load(Vec &a, Twin p, int count, bool wide) { load(a, p.w, count, wide); }
DEVICE void store(Twin p, const Vec &a, int count, bool wide) {
    store(p.w, a, count, wide);
    if (p.copy) store(p.copy, a, count, wide);
}

// Stepped is a parameter: its weights, and the copy of them or their second plane; its
// gradient; its moments, and the scales of those in 8 bits. decays is 1 where weight decay
// applies, or else 0.
struct Stepped {
    void *w, *beside;
    const float *g;
    void *m, *v;
    float *m_scale, *v_scale;
    i64 n, first, decays;
};

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

// adamw_T, for each segment and each i below its n: adamw_moments, then adamw_weights,
// with decay 0 where the segment's is off. g is left as it is. T is how weights are kept:
// float32, with a bfloat16 copy that is written too unless it is null, or master (vec.cuh).
//
// Launch: 256 threads, as many blocks in x as the segments have, no shared memory.
template <class W> DEVICE void adamw(const Stepped *segments, int count, Rates r) {
    const Stepped &s = find(segments, count, blockIdx.x);
    i64 from = ((i64)blockIdx.x - s.first) * OPTIM_BLOCK;
    int n = (int)min((i64)OPTIM_BLOCK, s.n - from);
    W w = as(W(), s.w, s.beside) + from;
    const float *g = s.g + from;
    float *m = (float *)s.m + from, *v = (float *)s.v + from;
    if (!s.decays) r.decay = 0;
    auto step = [&](int i, int count, bool wide) {
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
    };
    int i = 8 * threadIdx.x;
    if (aligned(w, g, m, v)) {
#pragma unroll 1
        for (; i + 8 <= n; i += 8 * OPTIM_THREADS) step(i, 8, true);
    }
#pragma unroll 1
    for (; i < n; i += 8 * OPTIM_THREADS) step(i, min(n - i, 8), false);
}
KERNEL(OPTIM_THREADS, adamw_f32, const Stepped *segments, int count, RATES) { adamw<Twin>(segments, count, GIVEN); }
KERNEL(OPTIM_THREADS, adamw_master, const Stepped *segments, int count, RATES) { adamw<Master>(segments, count, GIVEN); }

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
    __syncwarp(); // all lanes have read the old one
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
// Launch: 256 threads, as many blocks in x as the segments have, 4096 bytes of shared memory.
template <class W> DEVICE void adamw8(const Stepped *segments, int count, const float *maps, Rates r) {
    float *map = (float *)shared();
    for (int i = threadIdx.x; i < 2 * MAP; i += blockDim.x) map[i] = maps[i];
    __syncthreads();
    const Stepped &s = find(segments, count, blockIdx.x);
    i64 from = ((i64)blockIdx.x - s.first) * OPTIM_BLOCK;
    int n = (int)min((i64)OPTIM_BLOCK, s.n - from), lane = threadIdx.x % WARP;
    W w = as(W(), s.w, s.beside) + from;
    const float *g = s.g + from;
    u8 *m = (u8 *)s.m + from, *v = (u8 *)s.v + from;
    float *m_scale = s.m_scale + from / MOMENT_BLOCK, *v_scale = s.v_scale + from / MOMENT_BLOCK;
    if (!s.decays) r.decay = 0;
    bool fast = aligned(w, g, m, v);
#pragma unroll 1
    for (int b = threadIdx.x / WARP; b * MOMENT_BLOCK < n; b += OPTIM_THREADS / WARP) {
        int i = b * MOMENT_BLOCK + 8 * lane, count = max(min(n - i, 8), 0);
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
KERNEL(OPTIM_THREADS, adamw8_f32, const Stepped *segments, int count, const float *maps, RATES) { adamw8<Twin>(segments, count, maps, GIVEN); }
KERNEL(OPTIM_THREADS, adamw8_master, const Stepped *segments, int count, const float *maps, RATES) {
    adamw8<Master>(segments, count, maps, GIVEN);
}
