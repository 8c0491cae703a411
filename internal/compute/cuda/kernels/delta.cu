// The gated delta rule of compute.Backend and its convolution. A row of x is q and k of K heads, E
// elements each, and v of H heads, F elements each. A state S is [E,F] for each value head, float.
//
// A block goes through the segments of a family (a sequence, or a beginning and what follows it) in
// chunks of DELTA_CHUNK tokens, counted from each segment's beginning. With S the state before a
// chunk, g_i the sum of the decays up to token i, G_i = exp(g_i) and D_ij = exp(g_i - g_j)
//
//   u_i = beta_i*(v_i - G_i*k_i S - sum_{j<i} D_ij*(k_i.k_j)*u_j)
//   o_i = G_i*q_i S + sum_{j<=i} D_ij*(q_i.k_j)*u_j
//   S' = G_n*S + sum_j D_nj*k_j u_j, n the chunk's last token
//
// with normalised q and k. Columns of S do not depend on each other: a block has DELTA_COLS of them
// at a time. Sums are float32, those of decays double; q and k are E <= DELTA_E elements.
#include "vec.cuh"

#define DELTA_CHUNK 16
#define DELTA_COLS 32
#define DELTA_LD (DELTA_COLS + 1)
#define DELTA_E 128
#define DELTA_FWD 128
#define DELTA_BWD 256
#define DELTA_EPS 1e-6f

// silu_row: row m of x, or -2-m of the states; -1 is no row.
template <class T> DEVICE float silu_row(const T *x, const float *states, i64 m, int d, int D) {
    return m >= 0 ? to_float(x[m * D + d]) : states[(-2 - m) * D + d];
}

// silu_taps: v = sum_j w[d,j]*x[back[n,j],d], j ascending.
template <class T> DEVICE float silu_taps(const T *x, const float *states, const float *w, const int *back, i64 n, int d, int D, int J) {
    float v = 0;
    for (int j = 0; j < J; j++) {
        i64 m = back[n * J + j];
        if (m != -1) v = fmaf(w[(i64)d * J + j], silu_row(x, states, m, d, D), v);
    }
    return v;
}

// silu_dv: the gradient by v of row n.
template <class T> DEVICE float silu_dv(const T *dy, const T *x, const float *w, const int *back, i64 n, int d, int D, int J) {
    float v = silu_taps(x, (const float *)0, w, back, n, d, D, J), s = fast_rcp(1.0f + expf(-v));
    return to_float(dy[n * D + d]) * s * fmaf(v, 1.0f - s, 1.0f);
}

// cell is this thread's element, of n; a launch has one thread an element.
DEVICE i64 delta_cell() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

template <class T> DEVICE void silu_conv(T *y, const T *x, const float *states, const float *w, const int *back, int N, int D, int J) {
    i64 i = delta_cell();
    if (i >= (i64)N * D) return;
    float v = silu_taps(x, states, w, back, i / D, (int)(i % D), D, J);
    y[i] = from_float<T>(v * fast_rcp(1.0f + expf(-v)));
}

// silu_conv_states writes the J-1 rows that behind gives each of S segments to the slot to[s]. A slot
// that is read too is read from later rows.
template <class T> DEVICE void silu_conv_states(float *states, const T *x, const int *behind, const int *to, int S, int D, int J) {
    i64 i = delta_cell();
    if (i >= (i64)S * D || to[i / D] < 0) return;
    int s = (int)(i / D), d = (int)(i % D);
    for (int j = 0; j < J - 1; j++) {
        i64 m = behind[(i64)s * (J - 1) + j];
        states[((i64)to[s] * (J - 1) + j) * D + d] = m == -1 ? 0.0f : silu_row(x, states, m, d, D);
    }
}

// silu_conv_grad: dx[m,d] = sum w[d,J-1-i]*dv[n,d] over the successors n*J+i of m.
template <class T>
DEVICE void silu_conv_grad(T *dx, const T *dy, const T *x, const float *w, const int *back, const int *first, const int *next, int N, int D, int J) {
    i64 i = delta_cell();
    if (i >= (i64)N * D) return;
    int m = (int)(i / D), d = (int)(i % D);
    float sum = 0;
    for (int s = first[m]; s < first[m + 1]; s++) sum = fmaf(w[(i64)d * J + J - 1 - next[s] % J], silu_dv(dy, x, w, back, next[s] / J, d, D, J), sum);
    dx[i] = from_float<T>(sum);
}

// silu_conv_wgrad: part[b,d*J+j] = sum dv[n,d]*x[back[n,j],d] over the rows n of block b, ascending;
// then add_partials. Launch as gated_conv_wgrad.
template <class T> DEVICE void silu_conv_wgrad(float *part, const T *dy, const T *x, const float *w, const int *back, int N, int D, int J, int rows) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= D * J) return;
    int j = k / D, d = k % D;
    i64 from = (i64)blockIdx.y * rows, to = min(from + rows, (i64)N);
    float sum = 0;
    for (i64 n = from; n < to; n++) {
        i64 m = back[n * J + j];
        if (m >= 0) sum = fmaf(silu_dv(dy, x, w, back, n, d, D, J), to_float(x[m * D + d]), sum);
    }
    part[(i64)blockIdx.y * D * J + (i64)d * J + j] = sum;
}

// DeltaSegment is a segment of a pack, as the host gives it. begin is where its state begins: an end
// of another, or -1 for 0, or -2-slot of the states. to is the slot that takes its state, end the
// place for those that follow it; -1: none. chunk numbers its first chunk, and before is the chunk
// before it, -1 for none.
struct DeltaSegment {
    int first, len, begin, to, end, chunk, before, unused;
};

// DeltaRule is what the kernels of the rule read.
template <class T> struct DeltaRule {
    const T *x, *a, *b;
    const float *A, *dt;
    int K, H, E, F;
};
template <class T> DEVICE i64 delta_width(const DeltaRule<T> &r) { return 2 * (i64)r.K * r.E + (i64)r.H * r.F; }

// DeltaChunk is the shared memory of a chunk: rows kq of k and then q [2C,E+1]; factors kk and qk
// [C,C+1], with the decays; of its tokens g, up = G_i and down = D_ni.
struct DeltaChunk {
    double *g;
    float *beta, *up, *down, *kq, *kk, *qk, *rest;
};
#define DELTA_SCORES (DELTA_CHUNK * (DELTA_CHUNK + 1))
DEVICE DeltaChunk delta_shared(int E) {
    DeltaChunk c;
    c.g = (double *)shared();
    c.beta = (float *)(c.g + DELTA_CHUNK);
    c.up = c.beta + DELTA_CHUNK;
    c.down = c.up + DELTA_CHUNK;
    c.kq = c.down + DELTA_CHUNK;
    c.kk = c.kq + 2 * DELTA_CHUNK * (E + 1);
    c.qk = c.kk + DELTA_SCORES;
    c.rest = c.qk + DELTA_SCORES;
    return c;
}

// delta_softplus: log(1 + exp(z)).
DEVICE float delta_softplus(float z) { return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))); }

// delta_chunk fills c for the m tokens from row on, of value head h: all threads of a block.
template <class T> DEVICE void delta_chunk(const DeltaChunk &c, const DeltaRule<T> &r, i64 row, int m, int h, bool keys) {
    int E = r.E, key = h / (r.H / r.K), lane = threadIdx.x % WARP;
    __syncthreads();
    if ((int)threadIdx.x < m) {
        i64 n = (row + threadIdx.x) * r.H + h;
        c.g[threadIdx.x] = -expf(r.A[h]) * delta_softplus(to_float(r.a[n]) + r.dt[h]);
        c.beta[threadIdx.x] = 1.0f / (1.0f + expf(-to_float(r.b[n])));
    }
    if (keys) {
        for (int i = threadIdx.x / WARP; i < 2 * m; i += blockDim.x / WARP) {
            const T *x = r.x + (row + i % m) * delta_width(r) + (i64)((i < m ? r.K : 0) + key) * E;
            float sum = 0;
            for (int e = lane; e < E; e += WARP) {
                float v = to_float(x[e]);
                c.kq[i * (E + 1) + e] = v;
                sum = fmaf(v, v, sum);
            }
            float s = 1.0f / sqrtf(warp_sum(sum) + DELTA_EPS);
            if (i >= m) s /= sqrtf((float)E);
            for (int e = lane; e < E; e += WARP) c.kq[i * (E + 1) + e] *= s;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < m; i++) c.g[i] += c.g[i - 1];
    __syncthreads();
    if ((int)threadIdx.x < m) {
        c.up[threadIdx.x] = expf((float)c.g[threadIdx.x]);
        c.down[threadIdx.x] = expf((float)(c.g[m - 1] - c.g[threadIdx.x]));
    }
    for (int p = threadIdx.x; p < m * m; p += blockDim.x) {
        int i = p / m, j = p % m, at = i * (DELTA_CHUNK + 1) + j;
        float kk = 0, qk = 0;
        if (j <= i) {
            const float *k = c.kq + i * (E + 1), *q = k + m * (E + 1), *other = c.kq + j * (E + 1);
            for (int e = 0; e < E; e++) kk = fmaf(k[e], other[e], kk), qk = fmaf(q[e], other[e], qk);
            float d = expf((float)(c.g[i] - c.g[j]));
            kk = j < i ? kk * d : 0.0f, qk *= d;
        }
        c.kk[at] = kk, c.qk[at] = qk;
    }
    __syncthreads();
}

// delta_fwd computes the rule. Launch: DELTA_FWD threads, grid x: families, y: H, z: ceil(F/32);
// shared memory delta_shared and (E + 3*C)*DELTA_LD floats. states is [slots,H,E,F], ends
// [ends,H,E,F]. Unless they are null, o takes the outputs, and u [N,H,F] and kept [chunks,H,E,F],
// the states behind the chunks, are for the gradient.
template <class T>
DEVICE void delta_fwd(T *o, const DeltaRule<T> &r, const DeltaSegment *segments, const int *families, float *states, float *ends, float *u, float *kept) {
    int E = r.E, F = r.F, H = r.H, h = blockIdx.y, f0 = blockIdx.z * DELTA_COLS, cols = min(DELTA_COLS, F - f0);
    DeltaChunk c = delta_shared(E);
    float *S = c.rest, *U = S + E * DELTA_LD, *R = U + DELTA_CHUNK * DELTA_LD; // [E], [C], [2C]
    i64 size = (i64)E * F;
    for (int n = families[2 * blockIdx.x]; n < families[2 * blockIdx.x + 1]; n++) {
        DeltaSegment g = segments[n];
        const float *from = g.begin >= 0 ? ends + ((i64)g.begin * H + h) * size : g.begin < -1 ? states + ((i64)(-2 - g.begin) * H + h) * size : (const float *)0;
        __syncthreads();
        for (int p = threadIdx.x; p < E * DELTA_COLS; p += blockDim.x) {
            int e = p / DELTA_COLS, f = p % DELTA_COLS;
            S[e * DELTA_LD + f] = from && f < cols ? from[(i64)e * F + f0 + f] : 0.0f;
        }
        for (int at = 0; at < g.len; at += DELTA_CHUNK) {
            int m = min(DELTA_CHUNK, g.len - at);
            i64 row = g.first + at;
            delta_chunk(c, r, row, m, h, true);
            for (int p = threadIdx.x; p < 2 * m * DELTA_COLS; p += blockDim.x) {
                int i = p / DELTA_COLS, f = p % DELTA_COLS;
                float sum = 0;
                for (int e = 0; e < E; e++) sum = fmaf(c.kq[i * (E + 1) + e], S[e * DELTA_LD + f], sum);
                R[i * DELTA_LD + f] = sum * c.up[i % m];
            }
            __syncthreads();
            if (threadIdx.x < DELTA_COLS) {
                int f = threadIdx.x;
                for (int i = 0; i < m; i++) {
                    float v = f < cols ? to_float(r.x[(row + i) * delta_width(r) + 2 * (i64)r.K * E + (i64)h * F + f0 + f]) : 0.0f;
                    v -= R[i * DELTA_LD + f];
                    for (int j = 0; j < i; j++) v = fmaf(-c.kk[i * (DELTA_CHUNK + 1) + j], U[j * DELTA_LD + f], v);
                    U[i * DELTA_LD + f] = v * c.beta[i];
                }
            }
            __syncthreads();
            for (int p = threadIdx.x; p < m * DELTA_COLS; p += blockDim.x) {
                int i = p / DELTA_COLS, f = p % DELTA_COLS;
                if (f >= cols) continue;
                i64 to = ((row + i) * H + h) * F + f0 + f;
                if (u) u[to] = U[i * DELTA_LD + f];
                if (!o) continue;
                float sum = R[(m + i) * DELTA_LD + f];
                for (int j = 0; j <= i; j++) sum = fmaf(c.qk[i * (DELTA_CHUNK + 1) + j], U[j * DELTA_LD + f], sum);
                o[to] = from_float<T>(sum);
            }
            float decay = c.up[m - 1];
            for (int p = threadIdx.x; p < E * DELTA_COLS; p += blockDim.x) {
                int e = p / DELTA_COLS, f = p % DELTA_COLS;
                float sum = decay * S[e * DELTA_LD + f];
                for (int j = 0; j < m; j++) sum = fmaf(c.kq[j * (E + 1) + e] * c.down[j], U[j * DELTA_LD + f], sum);
                S[e * DELTA_LD + f] = sum;
                if (kept && f < cols) kept[((i64)(g.chunk + at / DELTA_CHUNK) * H + h) * size + (i64)e * F + f0 + f] = sum;
            }
        }
        __syncthreads();
        for (int p = threadIdx.x; p < E * cols; p += blockDim.x) {
            int e = p / cols, f = p % cols;
            i64 at = (i64)e * F + f0 + f;
            if (g.to >= 0) states[((i64)g.to * H + h) * size + at] = S[e * DELTA_LD + f];
            if (g.end >= 0) ends[((i64)g.end * H + h) * size + at] = S[e * DELTA_LD + f];
        }
    }
}

// delta_bwd computes the gradients of x and b, and dg [N,H], those of the decays, from u and kept of
// delta_fwd. dS is [ends + families,H,E,F], zeros. With w_i = beta_i*du_i
//
//   du_j = sum_{i>=j} D_ij*(q_i.k_j)*do_i + D_nj*k_j dS' - sum_{i>j} D_ij*(k_i.k_j)*w_i
//   dv_i = w_i;  dbeta_i/beta_i = du_i.u_i
//   dk_i = -sum_{j<i} D_ij*(w_i.u_j)*k_j - G_i*S w_i;  dq_i = sum_{j<=i} D_ij*(do_i.u_j)*k_j + G_i*S do_i
//   dk_j += sum_{i>=j} D_ij*(do_i.u_j)*q_i - sum_{i>j} D_ij*(w_i.u_j)*k_i + D_nj*dS' u_j
//   dS = G_n*dS' + sum_i G_i*(q_i do_i - k_i w_i)
//
// and the gradient by token t's decay is sum_{i>=t} (do_i.o_i - w_i.v_i) + sum dS'*S'. Launch:
// DELTA_BWD threads, grid x: families, y: K; shared memory delta_shared, 2*DELTA_SCORES,
// 2*C*(E+1), (2*E + 3*C)*DELTA_LD, 2*C and 32 floats.
template <class T>
DEVICE void delta_bwd(T *dx, T *db, float *dg, const T *dout, const DeltaRule<T> &r, const DeltaSegment *segments, const int *families, int ends, const float *u, const float *kept, float *dS) {
    int E = r.E, F = r.F, H = r.H, K = r.K, key = blockIdx.y, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int C1 = DELTA_CHUNK + 1, warps = DELTA_BWD / WARP;
    DeltaChunk c = delta_shared(E);
    float *x1 = c.rest, *x2 = x1 + DELTA_SCORES, *dkq = x2 + DELTA_SCORES, *S = dkq + 2 * DELTA_CHUNK * (E + 1), *D = S + E * DELTA_LD;
    float *U = D + E * DELTA_LD, *W = U + DELTA_CHUNK * DELTA_LD, *O = W + DELTA_CHUNK * DELTA_LD;
    float *dbeta = O + DELTA_CHUNK * DELTA_LD, *dot = dbeta + DELTA_CHUNK, *sums = dot + DELTA_CHUNK;
    i64 size = (i64)E * F;
    for (int n = families[2 * blockIdx.x + 1] - 1; n >= families[2 * blockIdx.x]; n--) {
        DeltaSegment g = segments[n];
        if (g.len == 0) continue;
        i64 place = g.end >= 0 ? g.end : ends + blockIdx.x; // of the gradient by the state
        for (int at = (g.len - 1) / DELTA_CHUNK * DELTA_CHUNK; at >= 0; at -= DELTA_CHUNK) {
            int m = min(DELTA_CHUNK, g.len - at), chunk = g.chunk + at / DELTA_CHUNK;
            int before = at > 0 ? chunk - 1 : g.before;
            i64 row = g.first + at;
            for (int v = 0; v < H / K; v++) {
                int h = key * (H / K) + v;
                delta_chunk(c, r, row, m, h, v == 0);
                if (v == 0)
                    for (int p = threadIdx.x; p < 2 * m * (E + 1); p += blockDim.x) dkq[p] = 0;
                for (int p = threadIdx.x; p < DELTA_SCORES; p += blockDim.x) x1[p] = 0, x2[p] = 0;
                if (threadIdx.x < DELTA_CHUNK) dbeta[threadIdx.x] = 0, dot[threadIdx.x] = 0;
                float decay = c.up[m - 1], behind = 0;
                float *dSh = dS + (place * H + h) * size;
                for (int f0 = 0; f0 < F; f0 += DELTA_COLS) {
                    int cols = min(DELTA_COLS, F - f0);
                    __syncthreads();
                    for (int p = threadIdx.x; p < E * DELTA_COLS; p += blockDim.x) {
                        int e = p / DELTA_COLS, f = p % DELTA_COLS;
                        i64 to = (i64)e * F + f0 + f;
                        bool there = f < cols;
                        S[e * DELTA_LD + f] = there && before >= 0 ? kept[((i64)before * H + h) * size + to] : 0.0f;
                        float d = there ? dSh[to] : 0.0f;
                        D[e * DELTA_LD + f] = d;
                        if (there) behind = fmaf(d, kept[((i64)chunk * H + h) * size + to], behind);
                    }
                    for (int p = threadIdx.x; p < m * DELTA_COLS; p += blockDim.x) {
                        int i = p / DELTA_COLS, f = p % DELTA_COLS;
                        i64 from = ((row + i) * H + h) * F + f0 + f;
                        U[i * DELTA_LD + f] = f < cols ? u[from] : 0.0f;
                        O[i * DELTA_LD + f] = f < cols ? to_float(dout[from]) : 0.0f;
                    }
                    __syncthreads();
                    // du but for what later tokens' w give, and do.o
                    for (int i = warp; i < m; i += warps) {
                        float du = 0, qs = 0;
                        for (int e = 0; e < E; e++) {
                            du = fmaf(c.kq[i * (E + 1) + e], D[e * DELTA_LD + lane], du);
                            qs = fmaf(c.kq[(m + i) * (E + 1) + e], S[e * DELTA_LD + lane], qs);
                        }
                        du *= c.down[i];
                        qs *= c.up[i];
                        for (int j = i; j < m; j++) du = fmaf(c.qk[j * C1 + i], O[j * DELTA_LD + lane], du);
                        for (int j = 0; j <= i; j++) qs = fmaf(c.qk[i * C1 + j], U[j * DELTA_LD + lane], qs);
                        W[i * DELTA_LD + lane] = du;
                        float s = warp_sum(qs * O[i * DELTA_LD + lane]);
                        if (lane == 0) dot[i] += s;
                    }
                    __syncthreads();
                    // back through the triangle: W becomes w
                    if (warp == 0)
                        for (int i = m - 1; i >= 0; i--) {
                            float du = W[i * DELTA_LD + lane], s = warp_sum(du * U[i * DELTA_LD + lane]), w = du * c.beta[i];
                            if (lane == 0) dbeta[i] += s;
                            W[i * DELTA_LD + lane] = w;
                            for (int j = 0; j < i; j++) W[j * DELTA_LD + lane] = fmaf(-c.kk[i * C1 + j], w, W[j * DELTA_LD + lane]);
                        }
                    __syncthreads();
                    for (int i = warp; i < m; i += warps) {
                        i64 to = (row + i) * delta_width(r) + 2 * (i64)K * E + (i64)h * F + f0 + lane;
                        float w = W[i * DELTA_LD + lane], s = 0;
                        if (lane < cols) {
                            s = w * to_float(r.x[to]);
                            dx[to] = from_float<T>(w);
                        }
                        s = warp_sum(s);
                        if (lane == 0) dot[i] -= s;
                    }
                    for (int p = threadIdx.x; p < m * m; p += blockDim.x) {
                        int i = p / m, j = p % m;
                        if (j > i) continue;
                        float s1 = x1[i * C1 + j], s2 = x2[i * C1 + j];
                        for (int f = 0; f < DELTA_COLS; f++) {
                            float uj = U[j * DELTA_LD + f];
                            s1 = fmaf(W[i * DELTA_LD + f], uj, s1), s2 = fmaf(O[i * DELTA_LD + f], uj, s2);
                        }
                        x1[i * C1 + j] = s1, x2[i * C1 + j] = s2;
                    }
                    for (int p = threadIdx.x; p < 2 * m * E; p += blockDim.x) {
                        int i = p / E, e = p % E;
                        const float *by = i < m ? W + i * DELTA_LD : O + (i - m) * DELTA_LD;
                        float s = 0, t = 0;
                        for (int f = 0; f < DELTA_COLS; f++) s = fmaf(S[e * DELTA_LD + f], by[f], s);
                        s *= c.up[i % m];
                        if (i < m) {
                            for (int f = 0; f < DELTA_COLS; f++) t = fmaf(D[e * DELTA_LD + f], U[i * DELTA_LD + f], t);
                            s = fmaf(t, c.down[i], -s);
                        }
                        dkq[i * (E + 1) + e] += s;
                    }
                    for (int p = threadIdx.x; p < E * cols; p += blockDim.x) {
                        int e = p / cols, f = p % cols;
                        float s = decay * D[e * DELTA_LD + f];
                        for (int i = 0; i < m; i++) {
                            float qd = c.kq[(m + i) * (E + 1) + e] * O[i * DELTA_LD + f];
                            s = fmaf(c.up[i], fmaf(-c.kq[i * (E + 1) + e], W[i * DELTA_LD + f], qd), s);
                        }
                        dSh[(i64)e * F + f0 + f] = s;
                    }
                }
                behind = block_sum(behind, sums);
                __syncthreads();
                if (threadIdx.x == 0) {
                    double rest = behind;
                    for (int i = m - 1; i >= 0; i--) {
                        rest += dot[i];
                        i64 to = (row + i) * H + h;
                        dg[to] = (float)rest;
                        db[to] = from_float<T>(dbeta[i] * (1.0f - c.beta[i]));
                    }
                }
                for (int p = threadIdx.x; p < m * m; p += blockDim.x) {
                    int i = p / m, j = p % m;
                    float d = j <= i ? expf((float)(c.g[i] - c.g[j])) : 0.0f;
                    x1[i * C1 + j] *= j < i ? -d : 0.0f, x2[i * C1 + j] *= d;
                }
                __syncthreads();
                for (int p = threadIdx.x; p < 2 * m * E; p += blockDim.x) {
                    int i = p / E, e = p % E;
                    float s = 0;
                    if (i < m) {
                        for (int j = 0; j < i; j++) s = fmaf(x1[i * C1 + j], c.kq[j * (E + 1) + e], s);
                        for (int j = i; j < m; j++) s = fmaf(x1[j * C1 + i], c.kq[j * (E + 1) + e], fmaf(x2[j * C1 + i], c.kq[(m + j) * (E + 1) + e], s));
                    } else {
                        for (int j = 0; j <= i - m; j++) s = fmaf(x2[(i - m) * C1 + j], c.kq[j * (E + 1) + e], s);
                    }
                    dkq[i * (E + 1) + e] += s;
                }
            }
            __syncthreads();
            for (int i = warp; i < 2 * m; i += warps) { // the gradient of the norm
                i64 to = (row + i % m) * delta_width(r) + (i64)((i < m ? K : 0) + key) * E;
                float sum = 0, along = 0, scale = i < m ? 1.0f : sqrtf((float)E);
                for (int e = lane; e < E; e += WARP) {
                    float x = to_float(r.x[to + e]);
                    sum = fmaf(x, x, sum);
                    along = fmaf(dkq[i * (E + 1) + e], c.kq[i * (E + 1) + e], along);
                }
                float s = 1.0f / sqrtf(warp_sum(sum) + DELTA_EPS) / scale;
                along = warp_sum(along) * scale * scale;
                for (int e = lane; e < E; e += WARP) dx[to + e] = from_float<T>(s * (dkq[i * (E + 1) + e] - c.kq[i * (E + 1) + e] * along));
            }
        }
        __syncthreads();
        if (g.begin >= 0) {
            i64 head = (i64)key * (H / K) * size, whole = (i64)(H / K) * size;
            float *to = dS + (i64)g.begin * H * size + head;
            const float *from = dS + place * H * size + head;
            for (i64 p = threadIdx.x; p < whole; p += blockDim.x) to[p] += from[p];
        }
        if (g.end < 0) { // the place is the next segment's
            float *to = dS + (place * H + (i64)key * (H / K)) * size;
            __syncthreads();
            for (i64 p = threadIdx.x; p < (i64)(H / K) * size; p += blockDim.x) to[p] = 0;
        }
        __syncthreads();
    }
}

// delta_gates makes da of dg, and adds to the gradients of A and dt, unless they are null. Launch:
// 256 threads, grid x: H; shared memory 32 floats.
template <class T> DEVICE void delta_gates(T *da, float *gA, float *gdt, const float *dg, const T *a, const float *A, const float *dt, int N, int H) {
    int h = blockIdx.x;
    float sumA = 0, sumT = 0, exp_A = expf(A[h]);
    for (int n = threadIdx.x; n < N; n += blockDim.x) {
        i64 at = (i64)n * H + h;
        float z = to_float(a[at]) + dt[h], d = -exp_A * dg[at], slope = d / (1.0f + expf(-z));
        da[at] = from_float<T>(slope);
        sumA = fmaf(d, delta_softplus(z), sumA), sumT += slope;
    }
    float *scratch = (float *)shared();
    sumA = block_sum(sumA, scratch), sumT = block_sum(sumT, scratch);
    if (threadIdx.x == 0) {
        if (gA) gA[h] += sumA;
        if (gdt) gdt[h] += sumT;
    }
}

#define DELTA(T, SUFFIX)                                                                                                                                          \
    KERNEL(256, silu_conv_##SUFFIX, T *y, const T *x, const float *states, const float *w, const int *back, int N, int D, int J) { silu_conv(y, x, states, w, back, N, D, J); } \
    KERNEL(256, silu_conv_states_##SUFFIX, float *states, const T *x, const int *behind, const int *to, int S, int D, int J) { silu_conv_states(states, x, behind, to, S, D, J); } \
    KERNEL(256, silu_conv_grad_##SUFFIX, T *dx, const T *dy, const T *x, const float *w, const int *back, const int *first, const int *next, int N, int D, int J) { \
        silu_conv_grad(dx, dy, x, w, back, first, next, N, D, J);                                                                                                 \
    }                                                                                                                                                             \
    KERNEL(256, silu_conv_wgrad_##SUFFIX, float *part, const T *dy, const T *x, const float *w, const int *back, int N, int D, int J, int rows) {                 \
        silu_conv_wgrad(part, dy, x, w, back, N, D, J, rows);                                                                                                     \
    }                                                                                                                                                             \
    KERNEL(DELTA_FWD, delta_fwd_##SUFFIX, T *o, const T *x, const T *a, const T *b, const float *A, const float *dt, const DeltaSegment *segments, const int *families, float *states, \
           float *ends, float *u, float *kept, int K, int H, int E, int F) {                                                                                      \
        delta_fwd(o, DeltaRule<T>{x, a, b, A, dt, K, H, E, F}, segments, families, states, ends, u, kept);                                                        \
    }                                                                                                                                                             \
    KERNEL(DELTA_BWD, delta_bwd_##SUFFIX, T *dx, T *db, float *dg, const T *dout, const T *x, const T *a, const T *b, const float *A, const float *dt, const DeltaSegment *segments, \
           const int *families, int ends, const float *u, const float *kept, float *dS, int K, int H, int E, int F) {                                             \
        delta_bwd(dx, db, dg, dout, DeltaRule<T>{x, a, b, A, dt, K, H, E, F}, segments, families, ends, u, kept, dS);                                             \
    }                                                                                                                                                             \
    KERNEL(256, delta_gates_##SUFFIX, T *da, float *gA, float *gdt, const float *dg, const T *a, const float *A, const float *dt, int N, int H) {                 \
        delta_gates(da, gA, gdt, dg, a, A, dt, N, H);                                                                                                             \
    }
DELTA(float, f32)
DELTA(bf16, bf16)
