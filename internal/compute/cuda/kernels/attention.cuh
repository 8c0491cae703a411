// What attention.cu and decode.cu share: tiles in shared memory, fragments, and
// the plain loop over keys that the generic kernels of both are made of.
#pragma once
#include "device.cuh"

// Width of the widest head, and elements of it per lane of a warp.
#define ATTN_WIDEST 256
#define ATTN_LANE (ATTN_WIDEST / WARP)

// Positions that one partial softmax covers before it is merged with those
// before it. Part of the reduction order: a row's result depends on it, but on
// neither the batch nor the launch.
#define ATTN_SPLIT 512

#define ATTN_LOG2E 1.4426950408889634f

// The fast kernels' running maximum m of a row moves only when a score is above it
// by more than this many powers of two, as most never are after the first tile:
// the factors exp(s-m) stay below 2^8, and the sums need no rescaling. The rule is
// of each row for itself.
#define ATTN_SLACK 8.0f

// attn_at is the element at which the 16-byte chunk (8 elements) of a row begins
// in a tile of E columns. The chunks of a row are permuted by the row's number, so
// that the 8 rows that ldmatrix reads at one chunk lie in different banks.
template <int E> DEVICE int attn_at(int row, int chunk) { return row * E + ((chunk ^ (row & 7)) << 3); }

// attn_load starts the copy of ROWS rows, stride elements apart, into a tile;
// rows from valid on become zeros and are not read. The rows before split lie jump
// rows away from their place in src.
template <int E, int ROWS, int THREADS> DEVICE void attn_load(bf16 *tile, const bf16 *src, int stride, int valid, int split = 0, int jump = 0) {
    const int chunks = E / 8, rows = THREADS / chunks; // rows is a multiple of 8: the permutation stays the same
    int row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    src += (i64)(row + (row < split ? jump : 0)) * stride + chunk * 8;
    tile += attn_at<E>(row, chunk);
    if (split <= 0 || split >= ROWS) { // no row jumps back, as in most tiles
#pragma unroll
        for (int n = 0; n < ROWS / rows; n++) {
            copy_async(tile, src, row < valid);
            src += rows * stride;
            tile += rows * E;
            row += rows;
        }
        return;
    }
#pragma unroll 1
    for (int n = 0; n < ROWS / rows; n++) {
        copy_async(tile, src, row < valid);
        src += (row < split && row + rows >= split ? rows - jump : rows) * stride;
        tile += rows * E;
        row += rows;
    }
}

// attn_a loads the A fragment of 16 rows from row on and columns 16*step on.
// With attn_bt the same addresses give, transposed, two B fragments of a product
// over these 16 rows: columns 16*step to +7 in b[0..1], +8 to +15 in b[2..3].
// row is a multiple of 8, so that a lane's place differs between steps by an
// exclusive or alone.
template <int E> DEVICE int attn_lane_a() {
    int lane = threadIdx.x % WARP;
    return attn_at<E>(lane & 15, lane >> 4);
}
template <int E> DEVICE void attn_a(u32 (&a)[4], const bf16 *tile, int row, int step) { ldmatrix4(a, tile + row * E + (attn_lane_a<E>() ^ (step << 4))); }
template <int E> DEVICE void attn_bt(u32 (&b)[4], const bf16 *tile, int row, int step) { ldmatrix4t(b, tile + row * E + (attn_lane_a<E>() ^ (step << 4))); }

// attn_b loads the B fragments of a product over columns 16*step on: rows row to
// +7 in b[0..1], +8 to +15 in b[2..3].
template <int E> DEVICE void attn_b(u32 (&b)[4], const bf16 *tile, int row, int step) {
    int lane = threadIdx.x % WARP;
    ldmatrix4(b, tile + row * E + (attn_at<E>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1) ^ (step << 4)));
}

// attn_mma2 multiplies a by the two B fragments in b.
DEVICE void attn_mma2(float (&d0)[4], float (&d1)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    mma(d0, a, b0);
    mma(d1, a, b1);
}

// attn_pack makes the A fragment of 16x16 results: those of two neighbouring
// 16x8 products, rounded.
DEVICE void attn_pack(u32 (&a)[4], const float (&c0)[4], const float (&c1)[4]) {
    a[0] = pack2(c0[0], c0[1]);
    a[1] = pack2(c0[2], c0[3]);
    a[2] = pack2(c1[0], c1[1]);
    a[3] = pack2(c1[2], c1[3]);
}

// attn_cap is a scaled score under its soft cap, cap*tanh(s/cap), or as it is with a cap of 0;
// attn_cap_slope is its derivative, 1 - (s/cap)^2 of the capped s.
DEVICE float attn_cap(float s, float cap) { return cap > 0.0f ? cap * tanhf(s / cap) : s; }
DEVICE float attn_cap_slope(float s, float cap) {
    float t = cap > 0.0f ? s / cap : 0.0f;
    return 1.0f - t * t;
}

// attn_span is one query's softmax over the positions j0 to j1-1, by one warp:
//   s_j = attn_cap(scale * sum_e q[e]*k[row_j,e], cap), e ascending;  m = max s_j
//   l = sum_j exp(s_j - m);  acc[e] = sum_j exp(s_j - m)*v[row_j,e], j ascending
// where row_j is row_of(j). 32 positions at a time, one to a lane; acc[i] is element lane+32*i. k and v
// point at their head in row 0; rows are k_row and v_row elements apart.
template <class T, class Row>
DEVICE void attn_span(float &m, float &l, float (&acc)[ATTN_LANE], const T *q, const T *k, const T *v, i64 k_row, i64 v_row, Row row_of, int E, float scale,
                      float cap, int j0, int j1) {
    int lane = threadIdx.x % WARP;
    m = -INF;
    l = 0.0f;
    for (int i = 0; i < ATTN_LANE; i++) acc[i] = 0.0f;
    for (int j = j0; j < j1; j += WARP) {
        int row = 0;
        float s = -INF;
        if (j + lane < j1) {
            row = row_of(j + lane);
            const T *key = k + row * k_row;
            s = 0.0f;
            for (int e = 0; e < E; e++) s = fmaf(to_float(q[e]), to_float(key[e]), s);
            s = attn_cap(s * scale, cap);
        }
        float top = fmaxf(m, warp_max(s));
        float fold = expf(m - top), p = expf(s - top);
        l = fmaf(l, fold, warp_sum(p));
        for (int i = 0; i < ATTN_LANE; i++) acc[i] *= fold;
        m = top;
        int count = min(WARP, j1 - j);
#pragma unroll 1
        for (int c = 0; c < count; c++) {
            float p_c = __shfl_sync(FULL, p, c);
            const T *value = v + __shfl_sync(FULL, row, c) * v_row;
            for (int i = 0; i < ATTN_LANE; i++) {
                int e = lane + WARP * i;
                if (e < E) acc[i] = fmaf(p_c, to_float(value[e]), acc[i]);
            }
        }
    }
}

// attn_first is the first of n positions that the query at the last of them sees, with a
// window of so many positions, or of all if that is 0.
DEVICE int attn_first(int n, int window) { return window > 0 ? max(0, n - window) : 0; }

// attn_merge gives the factors that bring (m, l) and a later partial softmax
// (m1, l1) to their common maximum, and merges these two; whoever has the sums
// over v merges them as acc = fmaf(acc, a, acc1*b). An empty state is (-INF, 0).
DEVICE void attn_merge(float &m, float &l, float m1, float l1, float &a, float &b) {
    float top = fmaxf(m, m1);
    a = m == -INF ? 0.0f : expf(m - top);
    b = m1 == -INF ? 0.0f : expf(m1 - top);
    l = fmaf(l, a, l1 * b);
    m = top;
}
