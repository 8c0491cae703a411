// The gated short convolution of compute.Backend. A row of g is b, c and x, D elements
// each; w is [D,J] and back [N,J], the rows of u that row n reads, -1 for none. Launches are
// those of elementwise.cu, but for gated_conv_wgrad's. Sums are float32, each result is rounded
// once, and u before it is read.
#include "vec.cuh"

#define CONV_THREADS 256

// gated_conv_u: u[slots[n],d] = b[n,d]*x[n,d]; without slots u[n,d].
template <class T> DEVICE void gated_conv_u(T *u, const T *g, const int *slots, int N, int D) {
    sweep_rows(N, D, aligned(u, g), [&](i64 n, int d, int count, bool wide) {
        Vec a, x;
        load(a, g + 3 * n * D + d, count, wide);
        load(x, g + (3 * n + 2) * D + d, count, wide);
        for (int i = 0; i < 8; i++) a.v[i] *= x.v[i];
        store(u + (slots ? (i64)slots[n] : n) * D + d, a, count, wide);
    });
}

// taps: v[i] = Σ_j w[d+i,j]*u[back[n,j],d+i], j ascending, for count elements from d on.
template <class T> DEVICE void taps(Vec &v, const T *u, const float *w, const int *back, i64 n, int d, int D, int J, int count, bool wide) {
    for (int i = 0; i < 8; i++) v.v[i] = 0;
    for (int j = 0; j < J; j++) {
        i64 m = back[n * J + j];
        if (m < 0) continue;
        Vec a;
        load(a, u + m * D + d, count, wide);
        for (int i = 0; i < count; i++) v.v[i] = fmaf(w[(i64)(d + i) * J + j], a.v[i], v.v[i]);
    }
}

// gated_conv: y[n,d] = c[n,d] * taps.
template <class T> DEVICE void gated_conv(T *y, const T *u, const T *g, const float *w, const int *back, int N, int D, int J) {
    sweep_rows(N, D, aligned(y, u, g), [&](i64 n, int d, int count, bool wide) {
        Vec v, c;
        taps(v, u, w, back, n, d, D, J, count, wide);
        load(c, g + (3 * n + 1) * D + d, count, wide);
        for (int i = 0; i < 8; i++) v.v[i] *= c.v[i];
        store(y + n * D + d, v, count, wide);
    });
}

// gated_conv_grad: of row m
//   dc = dy*taps;  du = Σ w[d,J-1-i]*dy[n,d]*c[n,d] over the successors n*J+i of m, in order
//   db = du*x;  dx = du*b
// first [N+1] has where a row's successors begin in next.
template <class T>
DEVICE void gated_conv_grad(T *dg, const T *u, const T *dy, const T *g, const float *w, const int *back, const int *first, const int *next, int N, int D, int J) {
    sweep_rows(N, D, aligned(dg, u, dy, g), [&](i64 m, int d, int count, bool wide) {
        Vec v, a, c;
        taps(v, u, w, back, m, d, D, J, count, wide);
        load(a, dy + m * D + d, count, wide);
        for (int i = 0; i < 8; i++) v.v[i] *= a.v[i];
        store(dg + (3 * m + 1) * D + d, v, count, wide);
        for (int i = 0; i < 8; i++) v.v[i] = 0;
        int end = first[m + 1];
        for (int s = first[m]; s < end; s++) {
            i64 n = next[s] / J;
            int j = J - 1 - next[s] % J;
            load(a, dy + n * D + d, count, wide);
            load(c, g + (3 * n + 1) * D + d, count, wide);
            for (int i = 0; i < count; i++) v.v[i] = fmaf(w[(i64)(d + i) * J + j], a.v[i] * c.v[i], v.v[i]);
        }
        load(a, g + (3 * m + 2) * D + d, count, wide);
        for (int i = 0; i < 8; i++) a.v[i] *= v.v[i];
        store(dg + 3 * m * D + d, a, count, wide);
        load(c, g + 3 * m * D + d, count, wide);
        for (int i = 0; i < 8; i++) c.v[i] *= v.v[i];
        store(dg + (3 * m + 2) * D + d, c, count, wide);
    });
}

// gated_conv_wgrad: part[b,d*J+j] = Σ dy[n,d]*c[n,d]*u[back[n,j],d] over the rows n of block b,
// ascending; then add_partials. Launch: 256 threads, grid x: ceil(D*J/256), y: ceil(N/rows).
template <class T> DEVICE void gated_conv_wgrad(float *part, const T *u, const T *dy, const T *g, const int *back, int N, int D, int J, int rows) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= D * J) return;
    int j = k / D, d = k % D; // neighbours read neighbours
    i64 from = (i64)blockIdx.y * rows, to = min(from + rows, (i64)N);
    float sum = 0;
    for (i64 n = from; n < to; n++) {
        i64 m = back[n * J + j];
        if (m >= 0) sum = fmaf(to_float(dy[n * D + d]) * to_float(g[(3 * n + 1) * D + d]), to_float(u[m * D + d]), sum);
    }
    part[(i64)blockIdx.y * D * J + (i64)d * J + j] = sum;
}

#define GATED_CONV(T, SUFFIX)                                                                                                                                        \
    KERNEL(CONV_THREADS, gated_conv_u_##SUFFIX, T *u, const T *g, const int *slots, int N, int D) { gated_conv_u(u, g, slots, N, D); }                               \
    KERNEL(CONV_THREADS, gated_conv_##SUFFIX, T *y, const T *u, const T *g, const float *w, const int *back, int N, int D, int J) {                                  \
        gated_conv(y, u, g, w, back, N, D, J);                                                                                                                       \
    }                                                                                                                                                                \
    KERNEL(CONV_THREADS, gated_conv_grad_##SUFFIX, T *dg, const T *u, const T *dy, const T *g, const float *w, const int *back, const int *first, const int *next, \
           int N, int D, int J) {                                                                                                                                    \
        gated_conv_grad(dg, u, dy, g, w, back, first, next, N, D, J);                                                                                                \
    }                                                                                                                                                                \
    KERNEL(CONV_THREADS, gated_conv_wgrad_##SUFFIX, float *part, const T *u, const T *dy, const T *g, const int *back, int N, int D, int J, int rows) {             \
        gated_conv_wgrad(part, u, dy, g, back, N, D, J, rows);                                                                                                       \
    }
GATED_CONV(float, f32)
GATED_CONV(bf16, bf16)
