// The heads: statistics and gradient of a chunk of vocabulary logits, and the
// value head. Legend in device.cuh; C is a chunk's width, c0 its first column in
// the vocabulary.
//
// Logits z are float32 and already scaled (z = invTemp*h·W, the factor is the
// product's alpha), rows ldz apart, any ldz and alignment: rows that begin on 16
// bytes are read four elements at a time, others one by one, with the same sums.
//
// A row's statistics are taken over tiles of HEAD_TILE columns counted from column
// 0 of the vocabulary, one block a tile, and joined in one fixed order. They do
// not depend on R, on the row's place, nor on how the vocabulary was cut into
// chunks, as long as every c0 is a multiple of HEAD_TILE. So LogProb, chunk after
// chunk, and Sample, whole rows at once, find the same bits in the same logits.
//
// With a soft cap the product's alpha is 1 and head_cap follows each: z = invTemp*cap*tanh(x/cap).
//
//   LogProb: per chunk: product, head_stats;  then once head_finish.
//   LogProbGrad: per chunk: product, head_grad, the two products of dz.
//   Sample: product(s), head_masses without targets, draw (sample.cu), head_finish;
//     with filters head_stats and sample.
//
// A logit of -inf is a token of probability 0 and leaves everything else finite. A
// NaN or +inf anywhere in a row makes its logp, ent and lse NaN.
#include "device.cuh"

#define HEAD_TILE 4096
#define HEAD_THREADS 128
#define HEAD_LOWEST -3.402823466e38f // the largest logit of a tile that has none above -inf

// load4 reads x = p[at..at+3], those from n on as fill; wide says that p+at may be
// read in one piece (16 aligned bytes of float, 8 of bf16).
DEVICE void load4(float (&x)[4], const float *p, i64 at, i64 n, bool wide, float fill) {
    if (wide && at + 4 <= n) {
        float4 v = *(const float4 *)(p + at);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = at + i < n ? p[at + i] : fill;
}
DEVICE void load4(float (&x)[4], const bf16 *p, i64 at, i64 n, bool wide, float fill) {
    if (wide && at + 4 <= n) {
        uint2 v = *(const uint2 *)(p + at);
        x[0] = __uint_as_float(v.x << 16), x[1] = __uint_as_float(v.x & 0xffff0000u);
        x[2] = __uint_as_float(v.y << 16), x[3] = __uint_as_float(v.y & 0xffff0000u);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = at + i < n ? to_float(p[at + i]) : fill;
}

// store4 writes p[at..at+3] = x, except from n on.
DEVICE void store4(float *p, i64 at, i64 n, bool wide, const float (&x)[4]) {
    if (wide && at + 4 <= n) {
        float4 v;
        v.x = x[0], v.y = x[1], v.z = x[2], v.w = x[3];
        *(float4 *)(p + at) = v;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (at + i < n) p[at + i] = x[i];
}
DEVICE void store4(bf16 *p, i64 at, i64 n, bool wide, const float (&x)[4]) {
    if (wide && at + 4 <= n) {
        uint2 v;
        v.x = pack2(x[0], x[1]), v.y = pack2(x[2], x[3]);
        *(uint2 *)(p + at) = v;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (at + i < n) p[at + i] = from_float<bf16>(x[i]);
}

// wide4 reports whether four elements of T may be read from p at once.
template <class T> DEVICE bool wide4(const T *p) { return (u64)p % (4 * sizeof(T)) == 0; }

// The mass of a token, in a tile of largest logit m, is exp(z) in units of 2^-44 of 2^M, rounded
// down, where M = mass_power(m) is the least whole number with 2^M >= exp(m). So masses of tiles
// compare by shifting them, and no sum of whole numbers depends on its order. mass_share is
// exp(m)/2^M, from 1/2 to 1; mass_of takes it and e = exp(z-m). Where m is not finite masses are 0.
DEVICE double mass_power(float m) { return ceil(m * 1.4426950408889634); }
DEVICE float mass_share(float m) { return exp2f((float)(m * 1.4426950408889634 - mass_power(m))); }
DEVICE u64 mass_of(float e, float share) { return e > 0 && share > 0 ? (u64)(e * share * 17592186044416.0f) : 0; }

// block_add is the sum over a block of whole warps, in every thread.
DEVICE u64 block_add(u64 x, u64 *scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    for (int m = WARP / 2; m > 0; m /= 2) x += __shfl_xor_sync(FULL, x, m);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < warps; i++) x += scratch[i];
    return x;
}

// head_stats: of one tile of one row,
//   m = max_v z_v;  s = Σ_v exp(z_v - m);  t = Σ_v exp(z_v - m)*(z_v - m)
// to part[r][c0/HEAD_TILE + tile] = (m, s, t, -), and logp[r] = z_target if the
// tile holds it. t is taken about the maximum so that the entropy log(s) - t/s is a
// sum of two terms of its own size, whatever the size of the logits.
//   part [R,tiles,4] 16-byte aligned, tiles = ceil(V/HEAD_TILE); logp [R]; z [R,C]
//   of row stride ldz; target [R] in 0..V-1, may be null: no logp is written then.
//   grid (R, ceil(C/HEAD_TILE)), 128 threads, 128 bytes of shared memory.
//
// head_masses: the same for Sample, which needs no entropy: in place of t and the fourth number
// stands the tile's mass, a whole number of 64 bits (sample.cu).
template <bool MASSES> DEVICE void head_tile(float *part, float *logp, const float *z, const int *target, int C, i64 ldz, int c0, int tiles) {
    const int each = HEAD_TILE / HEAD_THREADS / 4;
    float *scratch = (float *)shared();
    i64 r = blockIdx.x;
    int tile = blockIdx.y, n = min(HEAD_TILE, C - tile * HEAD_TILE);
    const float *row = z + r * ldz + (i64)tile * HEAD_TILE;
    bool wide = wide4(row);
    float x[each][4], m = HEAD_LOWEST;
#pragma unroll
    for (int i = 0; i < each; i++) load4(x[i], row, (i * HEAD_THREADS + threadIdx.x) * 4, n, wide, -INF);
#pragma unroll
    for (int i = 0; i < each; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) m = fmaxf(m, x[i][j]);
    m = block_max(m, scratch);
    float s = 0, t = 0, share = MASSES ? mass_share(m) : 0;
    u64 mass = 0;
#pragma unroll
    for (int i = 0; i < each; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float d = x[i][j] - m, e = expf(d);
            s += e;
            if (MASSES)
                mass += mass_of(e, share);
            else
                t = e > 0 ? fmaf(e, d, t) : t; // not 0 * -inf
        }
    s = block_sum(s, scratch);
    if (MASSES)
        mass = block_add(mass, (u64 *)scratch);
    else
        t = block_sum(t, scratch);
    if (threadIdx.x != 0) return;
    float4 v;
    v.x = m, v.y = s, v.z = t, v.w = 0;
    if (MASSES) v.z = __uint_as_float((u32)mass), v.w = __uint_as_float((u32)(mass >> 32));
    ((float4 *)part)[r * tiles + c0 / HEAD_TILE + tile] = v;
    if (target) {
        int at = target[r] - c0 - tile * HEAD_TILE;
        if (at >= 0 && at < n) logp[r] = row[at];
    }
}
KERNEL(HEAD_THREADS, head_stats, float *part, float *logp, const float *z, const int *target, int C, i64 ldz, int c0, int tiles) {
    head_tile<false>(part, logp, z, target, C, ldz, c0, tiles);
}
KERNEL(HEAD_THREADS, head_masses, float *part, float *logp, const float *z, const int *target, int C, i64 ldz, int c0, int tiles) {
    head_tile<true>(part, logp, z, target, C, ldz, c0, tiles);
}

// head_finish joins the tiles of a row, m_i, s_i and t_i, about m = max_i m_i:
//   s = Σ_i exp(m_i-m)*s_i;  t = Σ_i exp(m_i-m)*(t_i + (m_i-m)*s_i)
//   lse = m + log(s);  ent = log(s) - t/s;  logp = (z_target - m) - log(s)
// One warp a row. logp [R] holds the target's z and receives logp; ent and lse [R]
// may be null.
//   grid ceil(R/8), 256 threads, no shared memory.
KERNEL(256, head_finish, float *logp, float *ent, float *lse, const float *part, int tiles, int R) {
    int lane = threadIdx.x % WARP;
    i64 r = (i64)blockIdx.x * 8 + threadIdx.x / WARP;
    if (r >= R) return;
    const float4 *p = (const float4 *)part + r * tiles;
    float m = HEAD_LOWEST, s = 0, t = 0;
    for (int i = lane; i < tiles; i += WARP) m = fmaxf(m, p[i].x);
    m = warp_max(m);
    for (int i = lane; i < tiles; i += WARP) {
        float4 v = p[i];
        float d = v.x - m, f = expf(d);
        s = fmaf(f, v.y, s); // a NaN of any tile stays
        t = f > 0 ? fmaf(f, fmaf(d, v.y, v.z), t) : t;
    }
    s = warp_sum(s);
    t = warp_sum(t);
    if (lane != 0) return;
    float log_s = logf(s);
    logp[r] = (logp[r] - m) - log_s;
    if (ent) ent[r] = log_s - t / s;
    if (lse) lse[r] = m + log_s;
}

// head_cap: z_v = scale*cap*tanh(z_v/cap), in place.
//   z [R,C] of row stride ldz.  grid (R, ceil(C/4096)), 256 threads, no shared memory.
KERNEL(256, head_cap, float *z, int C, i64 ldz, float scale, float cap) {
    i64 r = blockIdx.x, first = (i64)blockIdx.y * 4096;
    float *row = z + r * ldz;
    for (i64 c = first + threadIdx.x; c < min((i64)C, first + 4096); c += 256) row[c] = scale * (cap * tanhf(row[c] / cap));
}

// head_grad: with p_v = exp(z_v - lse),
//   dz_v = dlogp*(1[v=target] - p_v) - dent*p_v*(z_v - lse + ent)
// for the columns of one chunk; invTemp is left to the products of dz. With a limit, the soft cap times
// invTemp, dz_v is then multiplied by 1 - (z_v/limit)^2.
//   dz [R,C] of row stride lddz (dz may be z when T is float and lddz is ldz);
//   z [R,C]; lse, ent, dlogp, dent, target [R]; dent may be null, ent too then.
//   grid (R, ceil(C/4096)), 256 threads, no shared memory.
template <class T>
DEVICE void head_grad(T *dz, const float *z, const float *lse, const float *ent, const float *dlogp, const float *dent, const int *target, int C, i64 ldz, i64 lddz, int c0, float limit) {
    const int each = 4;
    i64 r = blockIdx.x, first = (i64)blockIdx.y * (each * 1024), n = C - first;
    const float *from = z + r * ldz + first;
    T *to = dz + r * lddz + first;
    bool wide_from = wide4(from), wide_to = wide4(to);
    float l = lse[r], dl = dlogp[r], de = dent ? dent[r] : 0, h = dent ? ent[r] : 0;
    i64 t = target[r] - c0 - first;
    float x[each][4];
#pragma unroll
    for (int i = 0; i < each; i++) load4(x[i], from, (i * 256 + threadIdx.x) * 4, n, wide_from, -INF);
#pragma unroll
    for (int i = 0; i < each; i++) {
        int at = (i * 256 + threadIdx.x) * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float d = x[i][j] - l, p = expf(d);
            float y = p == 0 ? 0 : -p * fmaf(de, d + h, dl); // not 0 * -inf
            y = at + j == t ? y + dl : y;
            if (limit > 0) {
                float c = x[i][j] / limit;
                y *= 1.0f - c * c;
            }
            x[i][j] = y;
        }
        store4(to, at, n, wide_to, x[i]);
    }
}
KERNEL(256, head_grad_f32, float *dz, const float *z, const float *lse, const float *ent, const float *dlogp, const float *dent, const int *target, int C, i64 ldz, i64 lddz, int c0, float limit) {
    head_grad(dz, z, lse, ent, dlogp, dent, target, C, ldz, lddz, c0, limit);
}
KERNEL(256, head_grad_bf16, bf16 *dz, const float *z, const float *lse, const float *ent, const float *dlogp, const float *dent, const int *target, int C, i64 ldz, i64 lddz, int c0, float limit) {
    head_grad(dz, z, lse, ent, dlogp, dent, target, C, ldz, lddz, c0, limit);
}

// score: s[r] = Σ_d h[rows[r],d]*w[d] in float32: lane i of a warp takes the
// elements 4i to 4i+3 of every 128 in one chain, then the lanes are summed.
//   s [R]; h [N,D]; w [D]; rows [R].
//   grid ceil(R/8), 256 threads, no shared memory.
template <class T> DEVICE void score(float *s, const T *h, const float *w, const int *rows, int R, int D) {
    int lane = threadIdx.x % WARP;
    i64 r = (i64)blockIdx.x * 8 + threadIdx.x / WARP;
    if (r >= R) return;
    const T *row = h + (i64)rows[r] * D;
    bool wide_h = wide4(row), wide_w = wide4(w);
    float sum = 0;
    for (int d = lane * 4; d < D; d += WARP * 4) {
        float a[4], b[4];
        load4(a, row, d, D, wide_h, 0);
        load4(b, w, d, D, wide_w, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) sum = fmaf(a[i], b[i], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) s[r] = sum;
}
KERNEL(256, score_f32, float *s, const float *h, const float *w, const int *rows, int R, int D) { score(s, h, w, rows, R, D); }
KERNEL(256, score_bf16, float *s, const bf16 *h, const float *w, const int *rows, int R, int D) { score(s, h, w, rows, R, D); }

// score_grad: dh[rows[r],d] += ds[r]*w[d], rounded once; rows are distinct.
//   dh [N,D]; ds [R]; w [D]; rows [R].
//   grid R, 256 threads, no shared memory.
template <class T> DEVICE void score_grad(T *dh, const float *ds, const float *w, const int *rows, int D) {
    float g = ds[blockIdx.x];
    T *row = dh + (i64)rows[blockIdx.x] * D;
    for (int d = threadIdx.x; d < D; d += blockDim.x) row[d] = from_float<T>(fmaf(g, w[d], to_float(row[d])));
}
KERNEL(256, score_grad_f32, float *dh, const float *ds, const float *w, const int *rows, int D) { score_grad(dh, ds, w, rows, D); }
KERNEL(256, score_grad_bf16, bf16 *dh, const float *ds, const float *w, const int *rows, int D) { score_grad(dh, ds, w, rows, D); }

// score_wgrad: part[b,d] = Σ_r ds[r]*h[rows[r],d], r ascending over the b-th
// rows_per_block rows; add_partials (norm.cu) then adds part to w.G.
//   part [blocks,D], blocks = ceil(R/rows_per_block); ds, rows [R]; h [N,D].
//   grid (ceil(D/256), blocks), 256 threads, no shared memory.
template <class T> DEVICE void score_wgrad(float *part, const float *ds, const T *h, const int *rows, int R, int D, int rows_per_block) {
    int d = blockIdx.x * 256 + threadIdx.x;
    if (d >= D) return;
    i64 b = blockIdx.y, lo = b * rows_per_block, hi = min(lo + rows_per_block, (i64)R);
    float sum = 0;
    for (i64 r = lo; r < hi; r++) sum = fmaf(ds[r], to_float(h[(i64)rows[r] * D + d]), sum);
    part[b * D + d] = sum;
}
KERNEL(256, score_wgrad_f32, float *part, const float *ds, const float *h, const int *rows, int R, int D, int rows_per_block) {
    score_wgrad(part, ds, h, rows, R, D, rows_per_block);
}
KERNEL(256, score_wgrad_bf16, float *part, const float *ds, const bf16 *h, const int *rows, int R, int D, int rows_per_block) {
    score_wgrad(part, ds, h, rows, R, D, rows_per_block);
}
