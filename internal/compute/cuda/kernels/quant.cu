// Frozen weights in blocks of 32 elements of a row that share a scale: compute.Q8 and
// compute.Q4. A tensor has two planes: the blocks' codes, 32 or 16 bytes each, and their
// scales, a binary16 each.
//
//   Q8: element j of block b is (signed) codes[32b + j] * scales[b]
//   Q4: for j below 16, element j is ((codes[16b + j] & 15) - 8) * scales[b],
//       and element j+16 ((codes[16b + j] >> 4) - 8) * scales[b]
//
// Such a product is exact in float32. Elements are counted from the beginning of the planes.
#include "vec.cuh"

#define QUANT_BLOCK 32

struct Q8 {
    static constexpr int bytes = 32; // of a block's codes
};
struct Q4 {
    static constexpr int bytes = 16;
};

// code8 is the i-th of four codes in a word, code4 the i-th of the lower or upper halves.
DEVICE float code8(u32 word, int i) { return (float)((int)(word << (24 - 8 * i)) >> 24); }
DEVICE float code4(u32 word, int i, int upper) { return (float)((int)(word >> (8 * i + 4 * upper) & 15) - 8); }

// eight loads the eight elements from i on, a multiple of 8.
DEVICE void eight(Vec &a, Q8, const u8 *codes, const u16 *scales, i64 i) {
    float d = from_half(scales[i / QUANT_BLOCK]);
    uint2 u = *(const uint2 *)(codes + i);
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = code8(j < 4 ? u.x : u.y, j % 4) * d;
}
DEVICE void eight(Vec &a, Q4, const u8 *codes, const u16 *scales, i64 i) {
    i64 block = i / QUANT_BLOCK;
    int in = (int)(i % QUANT_BLOCK);
    float d = from_half(scales[block]);
    uint2 u = *(const uint2 *)(codes + block * Q4::bytes + in % Q4::bytes);
#pragma unroll
    for (int j = 0; j < 8; j++) a.v[j] = code4(j < 4 ? u.x : u.y, j % 4, in >> 4) * d;
}

// element is element i.
DEVICE float element(Q8, const u8 *codes, const u16 *scales, i64 i) { return code8(codes[i], 0) * from_half(scales[i / QUANT_BLOCK]); }
DEVICE float element(Q4, const u8 *codes, const u16 *scales, i64 i) {
    i64 block = i / QUANT_BLOCK;
    int in = (int)(i % QUANT_BLOCK);
    return code4(codes[block * Q4::bytes + in % Q4::bytes], 0, in >> 4) * from_half(scales[block]);
}

// dequant: y[i] = element first+i, for i below n. Launch as the kernels of elementwise.cu.
template <class Q, class Y> DEVICE void dequant(Y *y, const u8 *codes, const u16 *scales, i64 first, i64 n) {
    sweep(n, aligned(y) && first % 8 == 0, [&](i64 i, int count, bool wide) {
        Vec a;
        if (wide) {
            eight(a, Q(), codes, scales, first + i);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++) a.v[j] = j < count ? element(Q(), codes, scales, first + i + j) : 0.0f;
        }
        store(y + i, a, count, wide);
    });
}

// embed_quant: y[n,d] = element (ids[n]*D + d) of a table that begins at first, rounded to
// bfloat16 if rounds; D is a multiple of 32. Launch as embed.
template <class Q> DEVICE void embed_quant(float *y, const u8 *codes, const u16 *scales, i64 first, const int *ids, int N, int D, int rounds) {
    sweep_rows(N, D, aligned(y), [&](i64 n, int d, int count, bool wide) {
        Vec a;
        eight(a, Q(), codes, scales, first + (i64)ids[n] * D + d);
        if (rounds) {
#pragma unroll
            for (int j = 0; j < 8; j++) a.v[j] = to_float(from_float<bf16>(a.v[j]));
        }
        store(y + n * D + d, a, count, wide);
    });
}

// quantise encodes x [blocks,32] to the codes and scales at these places, as Class.Encode of
// package compute does, whose bits it gives:
//
//   Q8: d = max|x|/127;  code = x/d to the nearest whole number, halves away from zero
//   Q4: d = m/-8 of the first m of the largest magnitude;  code = min(15, trunc(x/d + 8.5))
//
// A quotient is a product with the float32 inverse of d, or with 0 where that is not finite.
// codes are at 16 bytes. Any grid of x; a thread takes a block.
DEVICE float largest(const float (&v)[QUANT_BLOCK]) { // with its sign
    float most = 0;
#pragma unroll
    for (int j = 0; j < QUANT_BLOCK; j++)
        if (fabsf(v[j]) > fabsf(most)) most = v[j];
    return most;
}
DEVICE float inverse_of(float d) {
    float inverse = 1.0f / d;
    return fabsf(inverse) < INF ? inverse : 0.0f;
}
DEVICE float encode(u32 (&words)[8], Q8, const float (&v)[QUANT_BLOCK]) {
    float d = fabsf(largest(v)) / 127.0f, inverse = inverse_of(d);
#pragma unroll
    for (int j = 0; j < QUANT_BLOCK; j++) {
        float q = product(v[j], inverse);
        int whole = (int)q;
        float rest = q - (float)whole;
        whole += (rest >= 0.5f) - (rest <= -0.5f);
        words[j / 4] |= ((u32)whole & 255) << (8 * (j % 4));
    }
    return d;
}
DEVICE float encode(u32 (&words)[8], Q4, const float (&v)[QUANT_BLOCK]) {
    float d = largest(v) / -8.0f, inverse = inverse_of(d);
#pragma unroll
    for (int j = 0; j < QUANT_BLOCK; j++) {
        int q = min(15, (int)(product(v[j], inverse) + 8.5f));
        words[j % 16 / 4] |= (u32)q << (8 * (j % 4) + 4 * (j / 16));
    }
    return d;
}
template <class Q> DEVICE void quantise(u8 *codes, u16 *scales, const float *x, i64 blocks) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 b = (i64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += step) {
        float v[QUANT_BLOCK];
#pragma unroll
        for (int j = 0; j < QUANT_BLOCK; j++) v[j] = x[b * QUANT_BLOCK + j];
        u32 w[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        scales[b] = to_half(encode(w, Q(), v));
        uint4 *to = (uint4 *)(codes + b * Q::bytes);
        to[0] = make_uint4(w[0], w[1], w[2], w[3]);
        if (Q::bytes == 32) to[1] = make_uint4(w[4], w[5], w[6], w[7]);
    }
}

// few_Q_C is a product of few rows, with weights that become bfloat16 in registers. For m
// below M and n below N, K a multiple of 32:
//   c[m*ldc + n] = alpha*Σ_k x[m*K + k]*w[n*K + k] (+ add[m*ldc + n]) (+ bias[n])
// w[i] is element first+i rounded to bfloat16; first is a multiple of 32. add, which may be c, and
// bias may be null. x is at 16 bytes. The result is rounded once.
//
// A warp makes 16 features of up to 64 rows with mma, weights as the operand of 16 rows. A lane
// has the codes of two features and the rows of x that mma wants of it, in the same order of k: a
// permutation within a block of 32, of which no sum depends. So both come from memory as they lie,
// without shared memory. parts warps take every parts-th block of k, and the parts' sums are added
// in ascending order. parts depends on N alone, so a row has the same bits in any batch.
//
//   threads  256: 8/parts groups of parts warps
//   grid     x: ceil(N/(16*8/parts)), y: ceil(M/64)
//   shared   8*FEW_ROW*4 bytes for each row of x up to a multiple of 8, 64 at most
#define FEW_THREADS 256
#define FEW_WARPS (FEW_THREADS / WARP)
#define FEW_ROWS 64
#define FEW_FEATURES 16
#define FEW_ROW 20 // of sums in shared memory: quads of lanes write to banks of their own

// few_weights makes the operand of both halves of a block: lane quarter q of a quad has the
// elements of k 8q to 8q+7 (Q8), or 4q to 4q+3 and 16+4q to 16+4q+3 (Q4), of features 0 and 1.
// few_x loads the same k of a row of x.
DEVICE void few_weights(u32 (&a)[2][4], Q8, const u8 *codes, const u16 *scales, i64 block0, i64 block1, int q) {
    float d0 = from_half(scales[block0]), d1 = from_half(scales[block1]);
    uint2 u = *(const uint2 *)(codes + block0 * Q8::bytes + 8 * q), v = *(const uint2 *)(codes + block1 * Q8::bytes + 8 * q);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        u32 w0 = s ? u.y : u.x, w1 = s ? v.y : v.x;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[s][2 * i] = pack2(code8(w0, 2 * i) * d0, code8(w0, 2 * i + 1) * d0);
            a[s][2 * i + 1] = pack2(code8(w1, 2 * i) * d1, code8(w1, 2 * i + 1) * d1);
        }
    }
}
DEVICE void few_weights(u32 (&a)[2][4], Q4, const u8 *codes, const u16 *scales, i64 block0, i64 block1, int q) {
    float d0 = from_half(scales[block0]), d1 = from_half(scales[block1]);
    u32 w0 = *(const u32 *)(codes + block0 * Q4::bytes + 4 * q), w1 = *(const u32 *)(codes + block1 * Q4::bytes + 4 * q);
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[s][2 * i] = pack2(code4(w0, 2 * i, s) * d0, code4(w0, 2 * i + 1, s) * d0);
            a[s][2 * i + 1] = pack2(code4(w1, 2 * i, s) * d1, code4(w1, 2 * i + 1, s) * d1);
        }
}
DEVICE void few_x(u32 (&b)[2][2], Q8, const bf16 *x, int q) {
    uint4 u = *(const uint4 *)(x + 8 * q);
    b[0][0] = u.x, b[0][1] = u.y, b[1][0] = u.z, b[1][1] = u.w;
}
DEVICE void few_x(u32 (&b)[2][2], Q4, const bf16 *x, int q) {
    uint2 u = *(const uint2 *)(x + 4 * q), v = *(const uint2 *)(x + 16 + 4 * q);
    b[0][0] = u.x, b[0][1] = u.y, b[1][0] = v.x, b[1][1] = v.y;
}

template <class Q, class C>
DEVICE void few(C *c, i64 ldc, const bf16 *x, const u8 *codes, const u16 *scales, i64 first, const C *add, const float *bias, int M, int N, int K, int parts, float alpha) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4;
    int groups = FEW_WARPS / parts, group = warp / parts, part = warp % parts, features = FEW_FEATURES * groups;
    int n0 = blockIdx.x * features, m0 = blockIdx.y * FEW_ROWS;
    int rows = min(M - m0, FEW_ROWS), tall = (rows + 7) / 8 * 8;
    float sum[FEW_ROWS / 8][4];
#pragma unroll
    for (int t = 0; t < FEW_ROWS / 8; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[t][i] = 0;

    // Features and rows beyond the last count as the last: their sums are not stored.
    i64 blocks = K / QUANT_BLOCK, at = first / QUANT_BLOCK;
    i64 row0 = at + min(n0 + FEW_FEATURES * group + g, N - 1) * blocks, row1 = at + min(n0 + FEW_FEATURES * group + g + 8, N - 1) * blocks;
    for (int k = part; k < (int)blocks; k += parts) {
        u32 a[2][4];
        few_weights(a, Q(), codes, scales, row0 + k, row1 + k, q);
#pragma unroll
        for (int t = 0; t < FEW_ROWS / 8; t++) {
            if (8 * t >= rows) continue;
            u32 b[2][2];
            few_x(b, Q(), x + (i64)(m0 + min(8 * t + g, rows - 1)) * K + k * QUANT_BLOCK, q);
            mma(sum[t], a[0], b[0]);
            mma(sum[t], a[1], b[1]);
        }
    }

    float *sums = (float *)shared(), *mine = sums + warp * tall * FEW_ROW;
#pragma unroll
    for (int t = 0; t < FEW_ROWS / 8; t++) {
        if (8 * t >= rows) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) mine[(8 * t + 2 * q + i % 2) * FEW_ROW + g + 8 * (i / 2)] = sum[t][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * features; i += FEW_THREADS) {
        int r = i / features, f = i % features, n = n0 + f;
        if (n >= N) continue;
        const float *from = sums + (f / FEW_FEATURES * parts * tall + r) * FEW_ROW + f % FEW_FEATURES;
        float y = 0;
        for (int p = 0; p < parts; p++) y += from[p * tall * FEW_ROW];
        i64 to = (m0 + r) * ldc + n;
        y = add ? fmaf(alpha, y, to_float(add[to])) : alpha * y;
        if (bias) y += bias[n];
        c[to] = from_float<C>(y);
    }
}

#define QUANT(Q, NAME)                                                                                                                                            \
    KERNEL(ELEMENTWISE_THREADS, dequant_##NAME##_f32, float *y, const u8 *codes, const u16 *scales, i64 first, i64 n) { dequant<Q>(y, codes, scales, first, n); } \
    KERNEL(ELEMENTWISE_THREADS, dequant_##NAME##_bf16, bf16 *y, const u8 *codes, const u16 *scales, i64 first, i64 n) { dequant<Q>(y, codes, scales, first, n); } \
    KERNEL(ELEMENTWISE_THREADS, embed_##NAME, float *y, const u8 *codes, const u16 *scales, i64 first, const int *ids, int N, int D, int rounds) {                \
        embed_quant<Q>(y, codes, scales, first, ids, N, D, rounds);                                                                                               \
    }                                                                                                                                                             \
    KERNEL(ELEMENTWISE_THREADS, quantise_##NAME, u8 *codes, u16 *scales, const float *x, i64 blocks) { quantise<Q>(codes, scales, x, blocks); }                   \
    KERNEL(FEW_THREADS, few_##NAME##_f32, float *c, i64 ldc, const bf16 *x, const u8 *codes, const u16 *scales, i64 first, const float *add, const float *bias,   \
           int M, int N, int K, int parts, float alpha) {                                                                                                         \
        few<Q>(c, ldc, x, codes, scales, first, add, bias, M, N, K, parts, alpha);                                                                                \
    }                                                                                                                                                             \
    KERNEL(FEW_THREADS, few_##NAME##_bf16, bf16 *c, i64 ldc, const bf16 *x, const u8 *codes, const u16 *scales, i64 first, const bf16 *add, const float *bias,    \
           int M, int N, int K, int parts, float alpha) {                                                                                                         \
        few<Q>(c, ldc, x, codes, scales, first, add, bias, M, N, K, parts, alpha);                                                                                \
    }
QUANT(Q8, q8)
QUANT(Q4, q4)
