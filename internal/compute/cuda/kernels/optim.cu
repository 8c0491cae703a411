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

// clip_scale: *scale is the factor that brings gradients whose squares sum to
// *sum_squares to a norm of at most clip_norm: min(1, clip_norm/(norm + 1e-6)); 1
// if clip_norm is 0; NaN if the norm is NaN or infinite, upon which adamw does
// nothing. Launch: 1 thread, one block, no shared memory.
KERNEL(32, clip_scale, float *scale, const double *sum_squares, float clip_norm) {
    if (threadIdx.x || blockIdx.x) return;
    double norm = sqrt(*sum_squares);
    float s = 1;
    if (clip_norm > 0) s = (float)min(1.0, clip_norm / (norm + 1e-6));
    *scale = norm - norm == 0 ? s : __uint_as_float(0x7fffffffu);
}

// adamw, for i below n (arXiv 1711.05101), with the constants as float32 of what
// the host computes in float64:
//   rest1 = 1-β1, rest2 = 1-β2, step = LR/(1-β1^t), inv2 = 1/(1-β2^t), decay = LR*Decay or 0
//
//   g' = g[i]*grad_scale*(*scale)
//   m[i] = beta1*m[i] + rest1*g';  v[i] = beta2*v[i] + rest2*g'*g'
//   w[i] -= step*m[i]/(sqrt(v[i]*inv2) + eps) + decay*w[i];  copy[i] = w[i]
//
// copy is the bfloat16 twin of w, or null. scale_or_null is clip_scale's result,
// or null for 1; if it is NaN or infinite nothing is written: a step with a broken
// gradient is skipped without asking the host. (The host must not count that step:
// it reads the sum of squares when it next waits anyway.) g is left as it is.
//
// Launch as elementwise.cu's kernels: 256 threads, any grid, no shared memory.
KERNEL(OPTIM_THREADS, adamw, float *w, const float *g, float *m, float *v, bf16 *copy, i64 n, const float *scale_or_null, float grad_scale, float beta1, float rest1,
       float beta2, float rest2, float step, float inv2, float eps, float decay) {
    if (scale_or_null) {
        float s = *scale_or_null;
        if ((__float_as_uint(s) & 0x7f800000u) == 0x7f800000u) return;
        grad_scale *= s;
    }
    sweep(n, aligned(w, g, m, v, copy), [&](i64 i, int count, bool wide) {
        Vec ww, gg, mm, vv;
        load(ww, w + i, count, wide);
        load(gg, g + i, count, wide);
        load(mm, m + i, count, wide);
        load(vv, v + i, count, wide);
        for (int j = 0; j < 8; j++) {
            float d = gg.v[j] * grad_scale;
            mm.v[j] = fmaf(beta1, mm.v[j], rest1 * d);
            vv.v[j] = fmaf(beta2, vv.v[j], rest2 * d * d);
        }
        store(m + i, mm, count, wide);
        store(v + i, vv, count, wide);
        // A loop of its own: with the division in the other, registers are spilt.
        for (int j = 0; j < 8; j++) ww.v[j] -= fmaf(decay, ww.v[j], step * mm.v[j] / (sqrtf(vv.v[j] * inv2) + eps));
        store(w + i, ww, count, wide);
        if (copy) store(copy + i, ww, count, wide);
    });
}
