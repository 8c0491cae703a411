// RMSNorm (arXiv 1910.07467), its gradient, and sums over rows. The comment of
// each kernel is its loop, in names of which capitals are extents (device.cuh has
// the legend). Sums are float32, each result is rounded once.
#include "vec.cuh"

#define NORM_THREADS 512
#define NORM_WARP 256 // a row of up to so many elements is a warp's, a longer one a block's

// Launch of rmsnorm_* and rmsnorm_grad_*, N >= 1 rows of D >= 1:
//
//   threads  D <= 256: 256, else min(512, D/8 rounded up to whole warps)
//   grid     x: D <= 256: ceil(N/8), else N
//   shared   128 bytes (D <= 256: none is used)
//
// The threads are part of the order of the sums, and so must be a function of D
// alone. Thread t of the row's T adds the elements 8t to 8t+7, then those 8T further
// on, and so on; then the threads' sums go through a butterfly. C eights a thread
// stay in registers between the two passes over a row, later ones are read again.
struct NormRow {
    i64 n;       // row
    int t, step; // first element and distance to the next ones
};
DEVICE NormRow norm_row(int D) {
    int lanes = D <= NORM_WARP ? WARP : blockDim.x;
    return {(i64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes, 8 * (int)(threadIdx.x % lanes), 8 * lanes};
}
DEVICE float norm_sum(float x, int D) { return D <= NORM_WARP ? warp_sum(x) : block_sum(x, (float *)shared()); }

// Where x, and with it dx, are columns of a wider matrix, as heads of width D, heads
// rows of D make a row of that, and those begin x_row elements apart. Rows without gaps
// have heads 1 and x_row D.
DEVICE i64 norm_at(i64 n, int D, int heads, int x_row) { return heads == 1 ? n * x_row : (u32)n / (u32)heads * (i64)x_row + (u32)n % (u32)heads * D; }

// rmsnorm_X_Y: rstd[n] = 1/sqrt(Σ_d x[n,d]²/D + eps);  y[n,d] = x[n,d]*rstd[n]*(offset + w[d]).
// y may be x.
template <int C, bool WIDE, class X, class Y> DEVICE void rmsnorm_rows(Y *y, float *rstd, const X *x, const float *w, int N, int D, int heads, int x_row, float eps, float offset) {
    NormRow row = norm_row(D);
    if (row.n >= N) return; // a whole warp, or a whole block
    x += norm_at(row.n, D, heads, x_row);
    y += row.n * D;
    Vec a[C];
    float sum = 0;
    auto square = [&](const Vec &v) {
        for (int j = 0; j < 8; j++) sum = fmaf(v.v[j], v.v[j], sum);
    };
#pragma unroll
    for (int c = 0; c < C; c++) {
        int d = row.t + c * row.step;
        if (d < D) {
            load(a[c], x + d, D - d, WIDE);
            square(a[c]);
        }
    }
    for (int d = row.t + C * row.step; d < D; d += row.step) {
        Vec b;
        load(b, x + d, D - d, WIDE);
        square(b);
    }
    float r = 1.0f / sqrtf(norm_sum(sum, D) / D + eps);
    if (row.t == 0) rstd[row.n] = r;
    auto finish = [&](const Vec &v, int d) {
        Vec g;
        load(g, w + d, D - d, WIDE);
        for (int j = 0; j < 8; j++) g.v[j] = (g.v[j] + offset) * (v.v[j] * r);
        store(y + d, g, D - d, WIDE);
    };
#pragma unroll
    for (int c = 0; c < C; c++) {
        int d = row.t + c * row.step;
        if (d < D) finish(a[c], d);
    }
    for (int d = row.t + C * row.step; d < D; d += row.step) {
        Vec b;
        load(b, x + d, D - d, WIDE);
        finish(b, d);
    }
}
template <class X, class Y> DEVICE void rmsnorm(Y *y, float *rstd, const X *x, const float *w, int N, int D, int heads, int x_row, float eps, float offset) {
    if ((D | x_row) % 8 == 0 && aligned(x, y, w))
        rmsnorm_rows<2, true>(y, rstd, x, w, N, D, heads, x_row, eps, offset);
    else
        rmsnorm_rows<2, false>(y, rstd, x, w, N, D, heads, x_row, eps, offset);
}
KERNEL(NORM_THREADS, rmsnorm_f32_f32, float *y, float *rstd, const float *x, const float *w, int N, int D, int heads, int x_row, float eps, float offset) {
    rmsnorm(y, rstd, x, w, N, D, heads, x_row, eps, offset);
}
KERNEL(NORM_THREADS, rmsnorm_f32_bf16, bf16 *y, float *rstd, const float *x, const float *w, int N, int D, int heads, int x_row, float eps, float offset) {
    rmsnorm(y, rstd, x, w, N, D, heads, x_row, eps, offset);
}
KERNEL(NORM_THREADS, rmsnorm_bf16_bf16, bf16 *y, float *rstd, const bf16 *x, const float *w, int N, int D, int heads, int x_row, float eps, float offset) {
    rmsnorm(y, rstd, x, w, N, D, heads, x_row, eps, offset);
}

// rmsnorm_grad_DX_DY_X, with g = dy*(offset + w) and k = rstd[n]²*Σ_d g[n,d]*x[n,d]/D:
//   dx[n,d] (=, or += if acc) rstd[n]*(g[n,d] - x[n,d]*k)
// dx may be dy unless acc, and may be x.
template <int C, bool WIDE, class DX, class DY, class X>
DEVICE void rmsnorm_grad_rows(DX *dx, const DY *dy, const X *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset) {
    NormRow row = norm_row(D);
    if (row.n >= N) return; // a whole warp, or a whole block
    i64 at = norm_at(row.n, D, heads, x_row);
    dx += at;
    dy += row.n * D;
    x += at;
    Vec g[C], a[C];
    float sum = 0;
    auto fetch = [&](Vec &gg, Vec &aa, int d) {
        Vec ww;
        load(gg, dy + d, D - d, WIDE);
        load(ww, w + d, D - d, WIDE);
        load(aa, x + d, D - d, WIDE);
        for (int j = 0; j < 8; j++) gg.v[j] *= ww.v[j] + offset;
    };
    auto multiply = [&](const Vec &gg, const Vec &aa) {
        for (int j = 0; j < 8; j++) sum = fmaf(gg.v[j], aa.v[j], sum);
    };
#pragma unroll
    for (int c = 0; c < C; c++) {
        int d = row.t + c * row.step;
        if (d < D) {
            fetch(g[c], a[c], d);
            multiply(g[c], a[c]);
        }
    }
    for (int d = row.t + C * row.step; d < D; d += row.step) {
        Vec gg, aa;
        fetch(gg, aa, d);
        multiply(gg, aa);
    }
    float r = rstd[row.n], k = r * r * (norm_sum(sum, D) / D);
    auto finish = [&](const Vec &gg, const Vec &aa, int d) {
        Vec old;
        if (acc) load(old, dx + d, D - d, WIDE);
        for (int j = 0; j < 8; j++) {
            float y = fmaf(-aa.v[j], k, gg.v[j]);
            old.v[j] = acc ? fmaf(r, y, old.v[j]) : r * y;
        }
        store(dx + d, old, D - d, WIDE);
    };
#pragma unroll
    for (int c = 0; c < C; c++) {
        int d = row.t + c * row.step;
        if (d < D) finish(g[c], a[c], d);
    }
    for (int d = row.t + C * row.step; d < D; d += row.step) {
        Vec gg, aa;
        fetch(gg, aa, d);
        finish(gg, aa, d);
    }
}
template <class DX, class DY, class X>
DEVICE void rmsnorm_grad(DX *dx, const DY *dy, const X *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset) {
    if ((D | x_row) % 8 == 0 && aligned(dx, dy, x, w))
        rmsnorm_grad_rows<1, true>(dx, dy, x, rstd, w, N, D, heads, x_row, acc, offset);
    else
        rmsnorm_grad_rows<1, false>(dx, dy, x, rstd, w, N, D, heads, x_row, acc, offset);
}
KERNEL(NORM_THREADS, rmsnorm_grad_f32_f32_f32, float *dx, const float *dy, const float *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset) {
    rmsnorm_grad(dx, dy, x, rstd, w, N, D, heads, x_row, acc, offset);
}
KERNEL(NORM_THREADS, rmsnorm_grad_f32_bf16_f32, float *dx, const bf16 *dy, const float *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset) {
    rmsnorm_grad(dx, dy, x, rstd, w, N, D, heads, x_row, acc, offset);
}
KERNEL(NORM_THREADS, rmsnorm_grad_bf16_bf16_bf16, bf16 *dx, const bf16 *dy, const bf16 *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset) {
    rmsnorm_grad(dx, dy, x, rstd, w, N, D, heads, x_row, acc, offset);
}

// rmsnorm_grads_DX_DY_X: rmsnorm_grad and rmsnorm_wgrad (below) in one pass over dy and x, for D up
// to 8*NORM_THREADS:
//   part[b,d] = Σ_n dy[n,d]*x[n,d]*rstd[n], n of block b;  add_partials then adds part to w.G
// Block b has the rows b*rows_per_block and on: all its threads one after another, or if D <= 256
// each of its 8 warps every eighth, and then the warps' sums are added in order. dx has the bits of
// rmsnorm_grad. Launch as there, but for
//
//   grid     x: ceil(N/rows_per_block), which like the threads is part of the order of the sums
//   shared   D <= 256: 8192 bytes, else 128
template <bool WIDE, class DX, class DY, class X>
DEVICE void rmsnorm_grads_rows(DX *dx, float *part, const DY *dy, const X *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset, int rows_per_block) {
    bool warps = D <= NORM_WARP;
    int lanes = warps ? WARP : blockDim.x, G = blockDim.x / lanes, row = threadIdx.x / lanes, d = 8 * (int)(threadIdx.x % lanes);
    i64 from = (i64)blockIdx.x * rows_per_block, to = min(from + rows_per_block, (i64)N);
    bool has = d < D;
    Vec total;
#pragma unroll
    for (int j = 0; j < 8; j++) total.v[j] = 0;
    for (i64 n = from + row; n < to; n += G) {
        i64 at = norm_at(n, D, heads, x_row) + d;
        Vec g, a, old, ww;
        float r = rstd[n], sum = 0;
        if (has) {
            load(ww, w + d, D - d, WIDE);
            load(g, dy + n * D + d, D - d, WIDE);
            load(a, x + at, D - d, WIDE);
            if (WIDE && acc) load(old, dx + at, D - d, WIDE);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                total.v[j] = fmaf(g.v[j], a.v[j] * r, total.v[j]);
                g.v[j] *= ww.v[j] + offset;
                sum = fmaf(g.v[j], a.v[j], sum);
            }
        }
        float k = r * r * (norm_sum(sum, D) / D);
        if (!has) continue;
        if (!WIDE && acc) load(old, dx + at, D - d, WIDE);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float y = fmaf(-a.v[j], k, g.v[j]);
            old.v[j] = acc ? fmaf(r, y, old.v[j]) : r * y;
        }
        store(dx + at, old, D - d, WIDE);
    }
    part += (i64)blockIdx.x * D;
    if (!warps) {
        if (has) store(part + d, total, D - d, WIDE);
        return;
    }
    float *sums = (float *)shared(); // [G, D]
    if (has)
        for (int j = 0; j < 8; j++)
            if (d + j < D) sums[row * D + d + j] = total.v[j];
    __syncthreads();
    for (int c = threadIdx.x; c < D; c += blockDim.x) {
        float sum = sums[c];
        for (int i = 1; i < G; i++) sum += sums[i * D + c];
        part[c] = sum;
    }
}
template <class DX, class DY, class X>
DEVICE void rmsnorm_grads(DX *dx, float *part, const DY *dy, const X *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset, int rows_per_block) {
    if ((D | x_row) % 8 == 0 && aligned(dx, part, dy, x, w))
        rmsnorm_grads_rows<true>(dx, part, dy, x, rstd, w, N, D, heads, x_row, acc, offset, rows_per_block);
    else
        rmsnorm_grads_rows<false>(dx, part, dy, x, rstd, w, N, D, heads, x_row, acc, offset, rows_per_block);
}
KERNEL(NORM_THREADS, rmsnorm_grads_f32_f32_f32, float *dx, float *part, const float *dy, const float *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset, int rows_per_block) {
    rmsnorm_grads(dx, part, dy, x, rstd, w, N, D, heads, x_row, acc, offset, rows_per_block);
}
KERNEL(NORM_THREADS, rmsnorm_grads_f32_bf16_f32, float *dx, float *part, const bf16 *dy, const float *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset, int rows_per_block) {
    rmsnorm_grads(dx, part, dy, x, rstd, w, N, D, heads, x_row, acc, offset, rows_per_block);
}
KERNEL(NORM_THREADS, rmsnorm_grads_bf16_bf16_bf16, bf16 *dx, float *part, const bf16 *dy, const bf16 *x, const float *rstd, const float *w, int N, int D, int heads, int x_row, int acc, float offset, int rows_per_block) {
    rmsnorm_grads(dx, part, dy, x, rstd, w, N, D, heads, x_row, acc, offset, rows_per_block);
}

// Sums down columns, in two steps: of rows b*rows_per_block and on to part[b,d],
// then add_partials. Launch of rmsnorm_wgrad_* and colsum_*:
//
//   threads  256
//   grid     x: ceil(D/2048), y: ceil(N/rows_per_block), at most 65535
//   shared   8192 bytes
//
// rows_per_block is part of the order of the sums, and so must not depend on
// anything but shapes. A good choice is 64*max(1, 256/ceil(D/8)), doubled until y is
// at most 1024: each thread then adds 64 rows or more. part is
// [ceil(N/rows_per_block), D].
//
// Eight columns are a thread's. Narrow rows leave threads over, which make G
// lanes: lane i takes every G-th row from i on, and the lanes are added in order.
#define COLUMN_THREADS 256

template <class F> DEVICE void column_sums(float *part, int N, int D, int rows_per_block, bool all, F term) {
    int first = blockIdx.x * COLUMN_THREADS, eights = min((D + 7) / 8 - first, COLUMN_THREADS);
    int G = COLUMN_THREADS / eights, lane = threadIdx.x / eights, d = 8 * (first + (int)threadIdx.x % eights);
    i64 from = (i64)blockIdx.y * rows_per_block, to = min(from + rows_per_block, (i64)N);
    Vec sum;
    for (int j = 0; j < 8; j++) sum.v[j] = 0;
    if (lane < G) {
        i64 n = from + lane;
        if (all && D % 8 == 0) {
#pragma unroll 4
            for (; n < to; n += G) term(sum, n, d, true);
        }
        for (; n < to; n += G) term(sum, n, d, false);
    }
    // lanes[lane, column]
    float *lanes = (float *)shared();
    int columns = 8 * eights, column = d - 8 * first;
    if (lane < G)
        for (int j = 0; j < 8; j++) lanes[lane * columns + column + j] = sum.v[j];
    __syncthreads();
    for (int c = threadIdx.x; c < columns && 8 * first + c < D; c += COLUMN_THREADS) {
        float total = lanes[c];
        for (int i = 1; i < G; i++) total += lanes[i * columns + c];
        part[(i64)blockIdx.y * D + 8 * first + c] = total;
    }
}

// rmsnorm_wgrad_DY_X: part[b,d] = Σ_n dy[n,d]*x[n,d]*rstd[n].
template <class DY, class X> DEVICE void rmsnorm_wgrad(float *part, const DY *dy, const X *x, const float *rstd, int N, int D, int heads, int x_row, int rows_per_block) {
    column_sums(part, N, D, rows_per_block, aligned(dy, x) && x_row % 8 == 0, [&](Vec &sum, i64 n, int d, bool wide) {
        Vec a, b;
        float r = rstd[n];
        load(a, dy + n * D + d, D - d, wide);
        load(b, x + norm_at(n, D, heads, x_row) + d, D - d, wide);
        for (int j = 0; j < 8; j++) sum.v[j] = fmaf(a.v[j], b.v[j] * r, sum.v[j]);
    });
}
KERNEL(COLUMN_THREADS, rmsnorm_wgrad_f32_f32, float *part, const float *dy, const float *x, const float *rstd, int N, int D, int heads, int x_row, int rows_per_block) {
    rmsnorm_wgrad(part, dy, x, rstd, N, D, heads, x_row, rows_per_block);
}
KERNEL(COLUMN_THREADS, rmsnorm_wgrad_bf16_f32, float *part, const bf16 *dy, const float *x, const float *rstd, int N, int D, int heads, int x_row, int rows_per_block) {
    rmsnorm_wgrad(part, dy, x, rstd, N, D, heads, x_row, rows_per_block);
}
KERNEL(COLUMN_THREADS, rmsnorm_wgrad_bf16_bf16, float *part, const bf16 *dy, const bf16 *x, const float *rstd, int N, int D, int heads, int x_row, int rows_per_block) {
    rmsnorm_wgrad(part, dy, x, rstd, N, D, heads, x_row, rows_per_block);
}

// colsum_T: part[b,d] = Σ_n dy[n,d]; the rows of dy begin dy_row elements apart.
template <class T> DEVICE void colsum(float *part, const T *dy, int N, int D, int dy_row, int rows_per_block) {
    column_sums(part, N, D, rows_per_block, aligned(dy) && dy_row % 8 == 0, [&](Vec &sum, i64 n, int d, bool wide) {
        Vec a;
        load(a, dy + n * dy_row + d, D - d, wide);
        for (int j = 0; j < 8; j++) sum.v[j] += a.v[j];
    });
}
KERNEL(COLUMN_THREADS, colsum_f32, float *part, const float *dy, int N, int D, int dy_row, int rows_per_block) { colsum(part, dy, N, D, dy_row, rows_per_block); }
KERNEL(COLUMN_THREADS, colsum_bf16, float *part, const bf16 *dy, int N, int D, int dy_row, int rows_per_block) { colsum(part, dy, N, D, dy_row, rows_per_block); }

// add_partials: g[d] += Σ_b part[b,d] for part [blocks,D]: lane i of PART_LANES takes every so many
// b from i on, in ascending order, and the lanes are added in order.
//   grid ceil(D/32), 512 threads, 2048 bytes of shared memory.
#define PART_LANES 16
KERNEL(PART_LANES *WARP, add_partials, float *g, const float *part, int blocks, int D) {
    float *lanes = (float *)shared(); // [PART_LANES, WARP]
    int d = blockIdx.x * WARP + threadIdx.x % WARP;
    float sum = 0;
    if (d < D) {
#pragma unroll 16
        for (int b = threadIdx.x / WARP; b < blocks; b += PART_LANES) sum += part[(i64)b * D + d];
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP || d >= D) return;
    for (int i = 1; i < PART_LANES; i++) sum += lanes[i * WARP + threadIdx.x];
    g[d] += sum;
}
