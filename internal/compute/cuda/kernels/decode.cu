// Attention of one query a row over paged caches of keys and values.
//
// Row r sees the positions p < len[r], with a window the last of these, p >= len[r]-window
// (window 0: none; the fast kernels have none). Position p is row
//   table[r*stride + p/page]*page + p%page
// of the caches [slots, K*E]. The rows of q begin q_row elements apart. For head h, with key/value head h/(H/K):
//   s_p = scale*sum_e q[r,h,e]*k[row_p,.,e];  o[r,h,e] = sum_p exp(s_p - lse)*v[row_p,.,e]
// The first kernel makes, for each split of 512 positions, the partial softmax
// (maximum m, sum l, sum acc over v) in scratch; decode_combine_T merges them in
// ascending order. decode_E64 and _E128 need no second launch: of the blocks of a row
// and key/value head the one that ends last merges, in the same order, whichever it is;
// and where there is only one split nothing goes through scratch. A row's result depends
// on its own positions only, neither on the batch nor on the number of splits in the grid.
//
//   part: scratch, R*splits*H*(E+2) floats: acc [R,splits,H,E], then (m,l) [R,splits,H,2]
//   done: R*K counters of blocks that have ended, 0 at the start and again at the end
//   splits: ceil(longest possible len / 512), at most 65535; fixed for a captured
//   graph: splits past a row's end return at once. len 0 gives o = 0 (rows that
//   pad a batch; their table is not read).
//
//   kernel            grid            threads   dynamic shared memory, bytes   needs
//   decode_E64        (splits, K, R)  128       65536                          16-byte aligned q, kc, vc; H/K <= 16; scale > 0
//   decode_E128       (splits, K, R)  128       65536                          the same
//   decode_any_T      (splits, K, R)  128       0                              E <= 256
//   decode_combine_T  (H, R)          128       0                              any E
// decode_E64 and _E128 are bf16. decode_any_T with decode_combine_T does exactly
// what attn_fwd_any_T does, in the same order: the same bits.
#include "attention.cuh"

#define DECODE_THREADS 128

// decode_row is the row of the caches that holds position p.
DEVICE int decode_row(const int *table, int page, int p) { return table[p / page] * page + p % page; }

// A block has one split of one row and key/value head; the query heads of the group
// are the rows, up to 16, of one product, so that each key and value is read once
// for all of them. Warp w has the positions 16w to 16w+15 of every 64 and its own
// copies under way, STAGES deep, so that no barrier stops the stream from memory;
// the warps' softmaxes are merged at the end in ascending order.
template <int E, int STAGES>
DEVICE void decode(bf16 *o, float *part, u32 *done, const bf16 *q, const bf16 *kc, const bf16 *vc, const int *table, const int *len, int stride, int page, int R, int H, int K,
                   int q_row, float scale) {
    const int BK = 16, STEP = BK * DECODE_THREADS / WARP, CHUNKS = E / 8;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int split = blockIdx.x, splits = gridDim.x, kv = blockIdx.y, r = blockIdx.z, group = H / K;
    int lo = split * ATTN_SPLIT, hi = min(len[r], lo + ATTN_SPLIT);
    o += ((i64)r * H + kv * group) * E;
    if (lo >= hi) {
        if (split == 0)
            for (int i = threadIdx.x; i < group * E; i += DECODE_THREADS) o[i] = from_float<bf16>(0.0f);
        return;
    }
    i64 ks = (i64)K * E;
    table += (i64)r * stride;
    q += (i64)r * q_row + kv * group * E;
    kc += kv * E + (lane % CHUNKS) * 8;
    vc += kv * E + (lane % CHUNKS) * 8;

    bf16 *tiles = (bf16 *)shared() + warp * STAGES * 2 * BK * E; // of this warp: keys, values of each stage
    int p0 = lo + warp * BK, steps = p0 < hi ? (hi - p0 + STEP - 1) / STEP : 0;

    // The row of the cache for position lane%16 of a step is looked up one step before its copy.
    int row = 0;
    if (p0 + lane % BK < hi) row = decode_row(table, page, p0 + lane % BK);
    auto copy = [&](int step) {
        if (step < steps) {
            bf16 *k_tile = tiles + step % STAGES * 2 * BK * E, *v_tile = k_tile + BK * E;
            int p = p0 + step * STEP;
#pragma unroll
            for (int n = 0; n < BK * CHUNKS / WARP; n++) {
                int i = n * (WARP / CHUNKS) + lane / CHUNKS;
                i64 from = __shfl_sync(FULL, row, i) * ks;
                bool valid = p + i < hi;
                copy_async(k_tile + attn_at<E>(i, lane % CHUNKS), kc + from, valid);
                copy_async(v_tile + attn_at<E>(i, lane % CHUNKS), vc + from, valid);
            }
            p += STEP + lane % BK;
            row = p < hi ? decode_row(table, page, p) : 0;
        }
        copy_commit();
    };
    for (int s = 0; s < STAGES - 1; s++) copy(s);

    // Fragments of q: rows lane/4 and lane/4+8, columns 2*(lane%4) and +8, two each.
    u32 q_frag[E / 16][4];
#pragma unroll
    for (int e = 0; e < E / 16; e++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int g = lane / 4 + (i & 1) * 8, c = 16 * e + (i / 2) * 8 + 2 * (lane % 4);
            q_frag[e][i] = g < group ? *(const u32 *)(q + g * E + c) : 0;
        }
    }
    float acc[E / 8][4], m[2] = {-INF, -INF}, l[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < E / 8; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
    float scale2 = scale * ATTN_LOG2E, slack = ATTN_SLACK / scale2;

    for (int step = 0; step < steps; step++) {
        copy(step + STAGES - 1);
        copy_wait<STAGES - 1>();
        __syncwarp();
        const bf16 *k_tile = tiles + step % STAGES * 2 * BK * E, *v_tile = k_tile + BK * E;
        float s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
        for (int e = 0; e < E / 16; e++) {
            u32 b[4];
            attn_b<E>(b, k_tile, 0, e);
            attn_mma2(s[0], s[1], q_frag[e], b);
        }
        int p = p0 + step * STEP;
        if (p + BK > hi) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (p + 8 * n + 2 * (lane % 4) + (i & 1) >= hi) s[n][i] = -INF;
        }
        float fold[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
            top = fmaxf(top, __shfl_xor_sync(FULL, top, 2)); // finite: a step has at least one position
            top = top > m[half] + slack ? top : m[half];
            fold[half] = fast_exp2((m[half] - top) * scale2);
            m[half] = top;
        }
        if (__ballot_sync(FULL, fold[0] != 1.0f || fold[1] != 1.0f)) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                l[half] *= fold[half];
#pragma unroll
                for (int n = 0; n < E / 8; n++) {
                    acc[n][2 * half] *= fold[half];
                    acc[n][2 * half + 1] *= fold[half];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = fast_exp2(fmaf(s[n][i], scale2, -m[i / 2] * scale2));
                l[i / 2] += s[n][i];
            }
        u32 a[4];
        attn_pack(a, s[0], s[1]);
#pragma unroll
        for (int e = 0; e < E / 16; e++) {
            u32 b[4];
            attn_bt<E>(b, v_tile, 0, e);
            attn_mma2(acc[2 * e], acc[2 * e + 1], a, b);
        }
        __syncwarp(); // the next copy overwrites what other lanes have read
    }

    // Each warp leaves its sums [16,E] in its own part of shared memory, (m, l) behind all of
    // them. A row is 8 longer than E, so that the four rows that half a warp writes at once
    // lie in different banks.
    const int LD = E + 8;
    float *sums = (float *)shared(), *states = sums + DECODE_THREADS / WARP * 16 * LD;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = l[half];
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        int g = warp * 16 + lane / 4 + 8 * half;
        if (lane % 4 == 0) {
            states[2 * g] = m[half] * scale;
            states[2 * g + 1] = sum;
        }
#pragma unroll
        for (int n = 0; n < E / 8; n++) *(float2 *)(sums + g * LD + 8 * n + 2 * (lane % 4)) = make_float2(acc[n][2 * half], acc[n][2 * half + 1]);
    }
    __syncthreads();
    float *state = part + (i64)R * splits * H * E;
    i64 at = ((i64)r * splits + split) * H + kv * group;
    int used = (len[r] + ATTN_SPLIT - 1) / ATTN_SPLIT;
    for (int i = threadIdx.x; i < group * E; i += DECODE_THREADS) {
        int g = i / E, e = i % E;
        float top = -INF, total = 0.0f, sum = 0.0f;
        for (int w = 0; w < DECODE_THREADS / WARP; w++) {
            float a, b;
            attn_merge(top, total, states[2 * (16 * w + g)], states[2 * (16 * w + g) + 1], a, b);
            sum = fmaf(sum, a, sums[(16 * w + g) * LD + e] * b);
        }
        if (used == 1) {
            o[i] = from_float<bf16>(sum / total);
            continue;
        }
        part[at * E + i] = sum;
        if (e == 0) {
            state[2 * (at + g)] = top;
            state[2 * (at + g) + 1] = total;
        }
    }
    if (used == 1) return;

    // What this block has written is seen by whoever sees that it is counted.
    u32 *before = (u32 *)shared();
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicAdd(done + r * K + kv, 1u);
    __syncthreads();
    if (*before != (u32)used - 1) return;
    __threadfence();
    if (threadIdx.x == 0) done[r * K + kv] = 0;
    at = (i64)r * splits * H + kv * group; // of the first split
    for (int i = threadIdx.x; i < group * E; i += DECODE_THREADS) {
        float top = -INF, total = 0.0f, sum = 0.0f;
        for (int s = 0; s < used; s++) {
            // volatile: the first-level cache may have what was there before
            i64 from = at + (i64)s * H;
            const volatile float *of_split = state + 2 * (from + i / E), *acc_split = part + from * E + i;
            float a, b;
            attn_merge(top, total, of_split[0], of_split[1], a, b);
            sum = fmaf(sum, a, *acc_split * b);
        }
        o[i] = from_float<bf16>(sum / total);
    }
}

KERNEL(DECODE_THREADS, decode_E64, bf16 *o, float *part, u32 *done, const bf16 *q, const bf16 *kc, const bf16 *vc, const int *table, const int *len, int stride,
       int page, int R, int H, int K, int q_row, float scale) {
    decode<64, 4>(o, part, done, q, kc, vc, table, len, stride, page, R, H, K, q_row, scale);
}
KERNEL(DECODE_THREADS, decode_E128, bf16 *o, float *part, u32 *done, const bf16 *q, const bf16 *kc, const bf16 *vc, const int *table, const int *len, int stride,
       int page, int R, int H, int K, int q_row, float scale) {
    decode<128, 2>(o, part, done, q, kc, vc, table, len, stride, page, R, H, K, q_row, scale);
}

// The warps of a block share the group's query heads; the cache shares the keys.
template <class T>
DEVICE void decode_any(float *part, const T *q, const T *kc, const T *vc, const int *table, const int *len, int stride, int page, int R, int H, int K, int E,
                       int q_row, float scale, float cap, int window) {
    int lane = threadIdx.x % WARP, split = blockIdx.x, splits = gridDim.x, kv = blockIdx.y, r = blockIdx.z, group = H / K;
    int lo = split * ATTN_SPLIT, hi = min(len[r], lo + ATTN_SPLIT);
    lo = max(lo, attn_first(len[r], window));
    if (lo >= hi) return;
    float *state = part + (i64)R * splits * H * E;
    const int *mine = table + (i64)r * stride;
    for (int g = threadIdx.x / WARP; g < group; g += DECODE_THREADS / WARP) {
        int h = kv * group + g;
        float m, l, acc[ATTN_LANE];
        attn_span(m, l, acc, q + (i64)r * q_row + h * E, kc + kv * E, vc + kv * E, (i64)K * E, (i64)K * E, [&](int p) { return decode_row(mine, page, p); }, E, scale, cap, lo, hi);
        i64 at = ((i64)r * splits + split) * H + h;
        for (int i = 0; i < ATTN_LANE; i++)
            if (lane + WARP * i < E) part[at * E + lane + WARP * i] = acc[i];
        if (lane == 0) {
            state[2 * at] = m;
            state[2 * at + 1] = l;
        }
    }
}

template <class T> DEVICE void decode_combine(T *o, const float *part, const int *len, int R, int splits, int H, int E, int window) {
    int h = blockIdx.x, r = blockIdx.y, used = (len[r] + ATTN_SPLIT - 1) / ATTN_SPLIT;
    const float *state = part + (i64)R * splits * H * E;
    for (int e = threadIdx.x; e < E; e += DECODE_THREADS) {
        float m = -INF, l = 0.0f, acc = 0.0f;
        for (int s = attn_first(len[r], window) / ATTN_SPLIT; s < used; s++) {
            i64 at = ((i64)r * splits + s) * H + h;
            float a, b;
            attn_merge(m, l, state[2 * at], state[2 * at + 1], a, b);
            acc = fmaf(acc, a, part[at * E + e] * b);
        }
        o[((i64)r * H + h) * E + e] = from_float<T>(used ? acc / l : 0.0f);
    }
}

#define DECODE_ANY(T, SUFFIX)                                                                                                                             \
    KERNEL(DECODE_THREADS, decode_any_##SUFFIX, float *part, const T *q, const T *kc, const T *vc, const int *table, const int *len, int stride, int page, \
           int R, int H, int K, int E, int q_row, float scale, float cap, int window) {                                                                              \
        decode_any(part, q, kc, vc, table, len, stride, page, R, H, K, E, q_row, scale, cap, window);                                                          \
    }                                                                                                                                                     \
    KERNEL(DECODE_THREADS, decode_combine_##SUFFIX, T *o, const float *part, const int *len, int R, int splits, int H, int E, int window) {                \
        decode_combine(o, part, len, R, splits, H, E, window);                                                                                            \
    }
DECODE_ANY(float, f32)
DECODE_ANY(bf16, bf16)
