// The matrix product for what cuBLASLt does not take: any shape, any stride, any
// alignment, and float32 throughout.
#include "device.cuh"

#define GEMM_THREADS 256
#define GEMM_TILE 64
#define GEMM_DEPTH 16
#define GEMM_ROW (GEMM_TILE + 4) // a row of a tile in shared memory: shifted by 4 banks from the last
#define GEMM_EACH (GEMM_TILE * GEMM_DEPTH / GEMM_THREADS)

// gemm_A_B_C, for m below M and n below N:
//   c[m*ldc + n] (=, or += if acc) alpha*Σ_k a[m*am + k*ak]*b[k*bk + n*bn], then += bias[n]
//
// bias may be null. Each sum is one chain of fused multiply-adds over k ascending
// from 0, so that a row has the same bits alone and in any batch; the result is
// rounded to c's type once, after the bias. K may be 0.
//
//   threads  256
//   grid     x: ceil(M/64), y: ceil(N/64), at most 65535
//   shared   8704 bytes
//
// A block makes a tile of 64x64, a thread 4x4 of it; 16 k at a time go through
// shared memory, the next 16 being fetched to registers meanwhile.
template <class A, class B, class C>
DEVICE void gemm(C *c, i64 ldc, const A *a, i64 am, i64 ak, const B *b, i64 bk, i64 bn, const float *bias, int M, int N, int K, float alpha, int acc) {
    float *a_KM = (float *)shared(), *b_KN = a_KM + GEMM_DEPTH * GEMM_ROW;
    i64 m0 = (i64)blockIdx.x * GEMM_TILE, n0 = (i64)blockIdx.y * GEMM_TILE;
    int t = threadIdx.x;

    // Neighbouring threads fetch neighbours in memory: along k, or along m or n.
    bool a_along_k = am != 1, b_along_k = bn != 1;
    auto place = [&](bool along_k, int i, int &line, int &k) {
        line = along_k ? t / GEMM_DEPTH + i * (GEMM_THREADS / GEMM_DEPTH) : t % GEMM_TILE;
        k = along_k ? t % GEMM_DEPTH : t / GEMM_TILE + i * (GEMM_THREADS / GEMM_TILE);
    };
    float a_next[GEMM_EACH], b_next[GEMM_EACH];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < GEMM_EACH; i++) {
            int line, k;
            place(a_along_k, i, line, k);
            a_next[i] = m0 + line < M && k < K - k0 ? to_float(a[(m0 + line) * am + (k0 + k) * ak]) : 0.0f;
            place(b_along_k, i, line, k);
            b_next[i] = n0 + line < N && k < K - k0 ? to_float(b[(k0 + k) * bk + (n0 + line) * bn]) : 0.0f;
        }
    };

    int mt = t / 16 * 4, nt = t % 16 * 4; // this thread's corner of the tile
    float sum[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = 0;
    fetch(0);
    for (int k0 = 0; k0 < K; k0 += GEMM_DEPTH) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < GEMM_EACH; i++) {
            int line, k;
            place(a_along_k, i, line, k);
            a_KM[k * GEMM_ROW + line] = a_next[i];
            place(b_along_k, i, line, k);
            b_KN[k * GEMM_ROW + line] = b_next[i];
        }
        __syncthreads();
        if (K - k0 > GEMM_DEPTH) fetch(k0 + GEMM_DEPTH);
#pragma unroll
        for (int k = 0; k < GEMM_DEPTH; k++) {
            float4 x = *(const float4 *)(a_KM + k * GEMM_ROW + mt), y = *(const float4 *)(b_KN + k * GEMM_ROW + nt);
            float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(xs[i], ys[j], sum[i][j]);
        }
    }

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            i64 m = m0 + mt + i, n = n0 + nt + j;
            if (m >= M || n >= N) continue;
            C *at = c + m * ldc + n;
            float x = acc ? fmaf(alpha, sum[i][j], to_float(*at)) : alpha * sum[i][j];
            if (bias) x += bias[n];
            *at = from_float<C>(x);
        }
}
KERNEL(GEMM_THREADS, gemm_f32_f32_f32, float *c, i64 ldc, const float *a, i64 am, i64 ak, const float *b, i64 bk, i64 bn, const float *bias, int M, int N, int K,
       float alpha, int acc) {
    gemm(c, ldc, a, am, ak, b, bk, bn, bias, M, N, K, alpha, acc);
}
KERNEL(GEMM_THREADS, gemm_bf16_bf16_f32, float *c, i64 ldc, const bf16 *a, i64 am, i64 ak, const bf16 *b, i64 bk, i64 bn, const float *bias, int M, int N, int K,
       float alpha, int acc) {
    gemm(c, ldc, a, am, ak, b, bk, bn, bias, M, N, K, alpha, acc);
}
KERNEL(GEMM_THREADS, gemm_bf16_bf16_bf16, bf16 *c, i64 ldc, const bf16 *a, i64 am, i64 ak, const bf16 *b, i64 bk, i64 bn, const float *bias, int M, int N, int K,
       float alpha, int acc) {
    gemm(c, ldc, a, am, ak, b, bk, bn, bias, M, N, K, alpha, acc);
}
