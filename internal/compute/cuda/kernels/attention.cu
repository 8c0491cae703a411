// Causal attention over packs of sequences, forward and backward.
//
// A pack lies in segments (compute.Pack): sequences, and branches, which follow
// another segment, their parent, as the answers to a prompt do, to any depth. Query i
// sees the tokens j <= i of its segment, and all of its ancestors' before them; i and j are
// positions: a segment's tokens are counted on from its parent's. With a window, which only the
// generic kernels take, it sees of these the last ones, j > i-window; window 0 is none.
//
// Head h reads key/value head h/(H/K). For the tokens j that i sees:
//   s_ij = scale*sum_e q[i,h,e]*k[j,.,e];  lse[i,h] = log sum_j exp(s_ij);  p_ij = exp(s_ij - lse)
//   o[i,h,e] = sum_j p_ij*v[j,.,e]
//   delta[i,h] = sum_e do[i,h,e]*o[i,h,e];  ds_ij = p_ij*(sum_e do[i,h,e]*v[j,.,e] - delta[i,h])
//   dq_i = scale*sum_j ds_ij*k_j;  dk_j = scale*sum_i ds_ij*q_i;  dv_j = sum_i p_ij*do_i
// with dk and dv summed over the query heads of a key/value head, h ascending, then
// over the rows i that see j, ascending (of a tile that is cut, over the parts in turn): the segment's own, then its descendants', which
// lie directly behind it, so that these are rows without a gap. The keys of a segment's
// ancestors are such rows where it has one, or each is the first behind its parent: the fast
// kernels then add one number to a position. Elsewhere they look each row up (attn_jump).
// The method is FlashAttention-2 (arXiv 2307.08691, algorithms 1 and 2), with the
// backward pass as two, so that no sum needs an atomic: one for dk and dv, one for
// dq. Tiles of keys count from position 0 and no order depends on what else is in
// the pack, so o, lse and dq have the same bits whether a sequence lies alone, in any
// pack, or in several segments. dk and dv of a segment depend on its own rows and on all
// of its descendants' together.
//
// Shapes: q, o, do, dq [N,H,E]; k, v, dk, dv [N,K,E]; lse, delta [N,H] float;
// segments [S], and their paths. Everything is overwritten, nothing accumulated. The rows of q and dq
// begin q_row elements apart, those of k and dk k_row, those of v and dv v_row: they
// may be columns of wider matrices. All others lie without gaps.
//
// The fast kernels (bf16, E 64 and 128) need scale > 0 and all rows of q, k, v, o, do,
// dq, dk, dv at 16-byte aligned addresses. 128 threads a block:
//   kernel            grid                   tile rows   dynamic shared memory, bytes
//   attn_fwd_E64      (tiles, H)             128          40960
//   attn_fwd_E128     (tiles, H)             128          81920
//   attn_bwd_dkv_E64  blocks*K               128          66560
//   attn_bwd_dkv_E128 blocks*K                64          99328
//   attn_bwd_dq_E64   (tiles, H)             128          65536
//   attn_bwd_dq_E128  (tiles, H)             128          98304
// tiles lists (segment, tile) for each tile of so many rows in each segment, those
// with most work first. Empty segments have no tile.
//
// The dkv kernels have a list of their own (KeyBlock): a block takes all query heads of its
// key/value head and all tiles of queries that see its keys, or where the grid would be too
// small for a device, or a tile of keys is seen by many more queries than others, some of
// them. Then it leaves its unscaled sums in part, float [rows,2,K,E] (dk, then dv), and
//   attn_bwd_dkv_sum, grid (cut tiles, y), any y:  dk = scale*sum_p part[p,0];  dv = sum_p part[p,1]
// adds those of a tile (KeySum), p ascending.
//
// Backward is three launches in this order: delta, then dkv and dq in any order; and
// attn_bwd_dkv_sum behind dkv where a tile is cut.
//
// The generic kernels (_any_T: T f32 or bf16) take any E up to 256, any alignment
// and any scale, compute in float32 without rounding p or ds, and serve as the
// fast ones' truth. 128 threads, one warp per (token, head), no shared memory:
//   attn_fwd_any_T, attn_bwd_dq_any_T, attn_bwd_delta_any_T   grid ceil(N*H/4)
//   attn_bwd_dkv_any_T                                        grid ceil(N*K/4)
// attn_bwd_delta_E64, _E128: 128 threads, grid ceil(N*H/16) and ceil(N*H/8), no
// shared memory, 16-byte aligned; either delta serves either backward.
#include "attention.cuh"
#include "vec.cuh"

#define ATTN_THREADS 128

// Segment is compute.Segment: rows first to first+len-1, and from first+len on the
// descendants'. Before its own tokens are its ancestors': rows prefix to prefix+before-1, or,
// with a negative prefix, those of a path.
struct Segment {
    int first, len, prefix, before, branches;
};

// KeyBlock is what a block of the dkv kernels computes: a tile of a segment's keys, counted from
// its beginning, with the tiles of queries from to to-1 and the query heads from head on of each
// group. at is the first row of part for its sums, or -1 where they are whole.
struct KeyBlock {
    int segment, tile, from, to, head, heads, at, none;
};

// KeySum is a tile of keys that is cut: its first row, its rows, the first of part, and how many
// parts it has there, one behind the other.
struct KeySum {
    int first, rows, at, parts;
};

// attn_own is the row at which the segment's position 0 would be, if its ancestors'
// tokens lay before its own: its own position i is row attn_own+i.
DEVICE int attn_own(const Segment &g) { return g.first - g.before; }

// ATTN_PATH is less than any distance of rows; a jump below it is a path.
#define ATTN_PATH (-(1 << 30))

// attn_leap is how far the ancestors' rows lie from where they would be before the segment's.
DEVICE int attn_leap(const Segment &g) { return g.prefix < 0 ? ATTN_PATH + g.prefix : g.prefix - attn_own(g); }

// attn_jump is the same for position j, which is before the segment, of a path: pairs (end,
// jump) for positions up to end-1, ends ascending. It lies -prefix ints behind the beginning of
// the segments.
DEVICE int attn_jump(const Segment *segments, int jump, int j) {
    const int *path = (const int *)segments + (ATTN_PATH - jump);
    while (j >= path[0]) path += 2;
    return path[1];
}

// attn_away is how far position j of a sequence lies from where it would be without branches.
DEVICE int attn_away(const Segment *segments, int before, int jump, int j) {
    if (j >= before) return 0;
    return jump >= ATTN_PATH ? jump : attn_jump(segments, jump, j);
}

// attn_keys is attn_load of the keys or values from position n0 on, of len positions; src is
// where position 0 would be if the ancestors' rows lay before the segment's.
template <int E, int ROWS>
DEVICE void attn_keys(bf16 *tile, const bf16 *src, int stride, int n0, int len, int before, int jump, const Segment *segments) {
    if (jump >= ATTN_PATH || n0 >= before) {
        attn_load<E, ROWS, 128>(tile, src + n0 * (i64)stride, stride, len - n0, before - n0, jump);
        return;
    }
    const int chunks = E / 8, rows = 128 / chunks;
#pragma unroll 1
    for (int row = threadIdx.x / chunks; row < ROWS; row += rows) {
        int j = n0 + row, from = j < before ? j + attn_jump(segments, jump, j) : j, chunk = threadIdx.x % chunks;
        copy_async(tile + attn_at<E>(row, chunk), src + from * (i64)stride + chunk * 8, j < len);
    }
}

// attn_mask takes out, in a 16x8 product whose rows are queries from i0 on and
// whose columns are keys from j0 on, the keys after each query. They also cover
// the keys after the sequence's end, which are after all of its queries.
DEVICE void attn_mask(float (&s)[4], int i0, int j0) {
    int lane = threadIdx.x % WARP, i = i0 + lane / 4, j = j0 + 2 * (lane % 4);
    if (j > i) s[0] = -INF;
    if (j + 1 > i) s[1] = -INF;
    if (j > i + 8) s[2] = -INF;
    if (j + 1 > i + 8) s[3] = -INF;
}

// attn_store writes a warp's results, ROWS rows of E, to global memory: through
// rows row to row+ROWS-1 of a tile that only this warp uses from now on, so that
// the writes are of 16 bytes. Rows from valid on are left out; factor scales.
template <int E, int MT>
DEVICE void attn_store(bf16 *dst, int stride, int valid, bf16 *tile, int row, const float (&acc)[MT][E / 8][4], const float (&factor)[MT][2]) {
    int lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll
    for (int t = 0; t < MT; t++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + 16 * t + 8 * half + lane / 4;
            float f = factor[t][half];
#pragma unroll
            for (int n = 0; n < E / 8; n++)
                *(u32 *)(tile + attn_at<E>(r, n) + 2 * (lane % 4)) = pack2(acc[t][n][2 * half] * f, acc[t][n][2 * half + 1] * f);
        }
    }
    __syncwarp();
    const int chunks = E / 8;
#pragma unroll
    for (int n = 0; n < 16 * MT * chunks / WARP; n++) {
        int i = n * WARP + lane, r = row + i / chunks, c = i % chunks;
        if (r < valid) *(uint4 *)(dst + (i64)r * stride + c * 8) = *(const uint4 *)(tile + attn_at<E>(r, c));
    }
}

// Forward: a block has 128 queries of one head, a warp 32 of them, which halves
// the shared memory read per product against 16. Tiles of 64 keys and of their
// values take turns in a ring of three, two of them under way while the third is
// used: 80 KB at E 128, so that two blocks fit a processor of either generation.
template <int E>
DEVICE void attn_fwd(bf16 *o, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, const Segment *segments, const int2 *tiles, int H, int K, int q_row,
                     int k_row, int v_row, float scale) {
    const int BQ = 128, BK = 64, MT = 2;
    const bool keep = E <= 64; // q's fragments stay in registers where these suffice
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int2 at = tiles[blockIdx.x];
    Segment g = segments[at.x];
    int h = blockIdx.y, kv = h / (H / K), own = attn_own(g), len = g.before + g.len;
    int q0 = g.before + at.y * BQ, row0 = warp * 16 * MT, i0 = q0 + row0;
    int n_k = (min(len, q0 + BQ) + BK - 1) / BK;
    k += own * (i64)k_row + kv * E;
    v += own * (i64)v_row + kv * E;
    int jump = attn_leap(g); // from where the ancestors' rows would be before the segment's to where they are

    bf16 *q_tile = (bf16 *)shared(), *ring = q_tile + BQ * E;
    attn_load<E, BQ, ATTN_THREADS>(q_tile, q + (own + q0) * (i64)q_row + h * E, q_row, len - q0);
    attn_keys<E, BK>(ring, k, k_row, 0, len, g.before, jump, segments);
    copy_commit();
    attn_keys<E, BK>(ring + BK * E, v, v_row, 0, len, g.before, jump, segments);
    copy_commit();

    u32 q_frag[keep ? MT : 1][keep ? E / 16 : 1][4];
    float acc[MT][E / 8][4], m[MT][2], l[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        m[t][0] = m[t][1] = -INF;
        l[t][0] = l[t][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < E / 8; n++) acc[t][n][0] = acc[t][n][1] = acc[t][n][2] = acc[t][n][3] = 0.0f;
    }
    float scale2 = scale * ATTN_LOG2E, slack = ATTN_SLACK / scale2; // p = 2^(s*scale2 - m*scale2)

    int slot = 0; // of the ring: where the keys are
    for (int j = 0; j < n_k; j++) {
        int j0 = j * BK, v_slot = slot == 2 ? 0 : slot + 1, free_slot = v_slot == 2 ? 0 : v_slot + 1;
        bool live = j0 < i0 + 16 * MT && i0 < len; // this warp has a query that sees a key of this tile
        copy_wait<1>();
        __syncthreads();
        if (j + 1 < n_k) attn_keys<E, BK>(ring + free_slot * BK * E, k, k_row, j0 + BK, len, g.before, jump, segments);
        copy_commit();

        float s[MT][BK / 8][4];
        if (live) {
            const bf16 *k_tile = ring + slot * BK * E;
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int n = 0; n < BK / 8; n++) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.0f;
            if (keep && j == 0) {
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int e = 0; e < E / 16; e++) attn_a<E>(q_frag[keep ? t : 0][keep ? e : 0], q_tile, row0 + 16 * t, e);
            }
#pragma unroll
            for (int e = 0; e < E / 16; e++) {
                u32 a[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    if (keep) {
#pragma unroll
                        for (int i = 0; i < 4; i++) a[t][i] = q_frag[keep ? t : 0][keep ? e : 0][i];
                    } else {
                        attn_a<E>(a[t], q_tile, row0 + 16 * t, e);
                    }
                }
#pragma unroll
                for (int n = 0; n < BK / 16; n++) {
                    u32 b[4];
                    attn_b<E>(b, k_tile, 16 * n, e);
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_mma2(s[t][2 * n], s[t][2 * n + 1], a[t], b);
                }
            }
            if (j0 + BK - 1 > i0) {
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < BK / 8; n++) attn_mask(s[t][n], i0 + 16 * t, j0 + 8 * n);
            }
            // Every query sees key 0, in the first tile, so that m is finite from there on.
            float fold[MT][2];
            bool grown = false;
#pragma unroll
            for (int t = 0; t < MT; t++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float top = s[t][0][2 * half];
#pragma unroll
                    for (int n = 0; n < BK / 8; n++) top = fmaxf(top, fmaxf(s[t][n][2 * half], s[t][n][2 * half + 1]));
                    top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
                    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
                    top = top > m[t][half] + slack ? top : m[t][half];
                    fold[t][half] = fast_exp2((m[t][half] - top) * scale2);
                    grown |= fold[t][half] != 1.0f;
                    m[t][half] = top;
                }
            }
            if (__ballot_sync(FULL, grown)) { // else all factors are 1
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        l[t][half] *= fold[t][half];
#pragma unroll
                        for (int n = 0; n < E / 8; n++) {
                            acc[t][n][2 * half] *= fold[t][half];
                            acc[t][n][2 * half + 1] *= fold[t][half];
                        }
                    }
            }
#pragma unroll
            for (int t = 0; t < MT; t++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float base = m[t][half] * scale2;
#pragma unroll
                    for (int n = 0; n < BK / 8; n++) {
#pragma unroll
                        for (int i = 2 * half; i < 2 * half + 2; i++) {
                            s[t][n][i] = fast_exp2(fmaf(s[t][n][i], scale2, -base));
                            l[t][half] += s[t][n][i];
                        }
                    }
                }
            }
        }

        copy_wait<1>();
        __syncthreads();
        if (j + 1 < n_k) attn_keys<E, BK>(ring + slot * BK * E, v, v_row, j0 + BK, len, g.before, jump, segments);
        copy_commit();
        if (live) {
            const bf16 *v_tile = ring + v_slot * BK * E;
#pragma unroll
            for (int n = 0; n < BK / 16; n++) {
                u32 a[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) attn_pack(a[t], s[t][2 * n], s[t][2 * n + 1]);
#pragma unroll
                for (int e = 0; e < E / 16; e++) {
                    u32 b[4];
                    attn_bt<E>(b, v_tile, 16 * n, e);
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_mma2(acc[t][2 * e], acc[t][2 * e + 1], a[t], b);
                }
            }
        }
        slot = free_slot;
    }

    if (i0 >= len) return;
    own = attn_own(segments[tiles[blockIdx.x].x]); // read again: the loop has no register for it
    float inverse[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = l[t][half];
            sum += __shfl_xor_sync(FULL, sum, 1);
            sum += __shfl_xor_sync(FULL, sum, 2);
            inverse[t][half] = 1.0f / sum;
            int i = i0 + 16 * t + 8 * half + lane / 4;
            if (lane % 4 == 0 && i < len) lse[(i64)(own + i) * H + h] = fmaf(m[t][half], scale, logf(sum));
        }
    }
    attn_store<E, MT>(o + ((own + q0) * (i64)H + h) * E, H * E, len - q0, q_tile, row0, acc, inverse);
}

KERNEL(ATTN_THREADS, attn_fwd_E64, bf16 *o, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, const Segment *segments, const int2 *tiles, int H, int K, int q_row,
       int k_row, int v_row, float scale) {
    attn_fwd<64>(o, lse, q, k, v, segments, tiles, H, K, q_row, k_row, v_row, scale);
}
KERNEL(ATTN_THREADS, attn_fwd_E128, bf16 *o, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, const Segment *segments, const int2 *tiles, int H, int K, int q_row,
       int k_row, int v_row, float scale) {
    attn_fwd<128>(o, lse, q, k, v, segments, tiles, H, K, q_row, k_row, v_row, scale);
}

// delta: E/8 lanes to a (token, head), each 8 elements, then a butterfly.
template <int E> DEVICE void attn_bwd_delta(float *delta, const bf16 *dout, const bf16 *o, int N, int H) {
    const int lanes = E / 8;
    i64 i = ((i64)blockIdx.x * ATTN_THREADS + threadIdx.x) / lanes;
    int c = threadIdx.x % lanes;
    float sum = 0.0f;
    if (i < (i64)N * H) {
        uint4 x = *(const uint4 *)(dout + i * E + 8 * c), y = *(const uint4 *)(o + i * E + 8 * c);
        u32 xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            sum = fmaf(__uint_as_float(xs[p] << 16), __uint_as_float(ys[p] << 16), sum);
            sum = fmaf(__uint_as_float(xs[p] & 0xffff0000u), __uint_as_float(ys[p] & 0xffff0000u), sum);
        }
    }
    for (int b = lanes / 2; b > 0; b /= 2) sum += __shfl_xor_sync(FULL, sum, b);
    if (c == 0 && i < (i64)N * H) delta[i] = sum;
}

KERNEL(ATTN_THREADS, attn_bwd_delta_E64, float *delta, const bf16 *dout, const bf16 *o, int N, int H) { attn_bwd_delta<64>(delta, dout, o, N, H); }
KERNEL(ATTN_THREADS, attn_bwd_delta_E128, float *delta, const bf16 *dout, const bf16 *o, int N, int H) { attn_bwd_delta<128>(delta, dout, o, N, H); }

// dk and dv: a block has 64*MT keys of one key/value head, a warp 16*MT of them
// with their two sums in registers, and goes through the group's query heads and,
// for each, the tiles of 64 queries from the diagonal on. Scores are computed
// transposed, keys by queries, so that p and ds, rounded, are already the left
// operands of dv += p*do and dk += ds*q. A tile's queries are taken NS at a time,
// as registers allow. Queries, their do, lse and delta are double-buffered.
template <int E, int MT, int NS>
DEVICE void attn_bwd_dkv(bf16 *dk, bf16 *dv, float *part, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse, const float *delta,
                         const Segment *segments, const KeyBlock *blocks, int H, int K, int q_row, int k_row, int v_row, float scale) {
    const int BK = 64 * MT, BQ = 64;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    KeyBlock at = blocks[blockIdx.x / K];
    Segment g = segments[at.segment];
    int kv = blockIdx.x % K, group = H / K, first = g.first, len = g.len, seen_by = min(len + g.branches, at.to * BQ); // keys, and the block's rows that see the first of them
    int j0 = at.tile * BK, row0 = warp * 16 * MT;
    int n_q = (seen_by + BQ - 1) / BQ;
    int keys = first + j0; // the first's row

    bf16 *k_tile = (bf16 *)shared(), *v_tile = k_tile + BK * E, *ring = v_tile + BK * E;
    float *rows = (float *)(ring + 4 * BQ * E); // of either buffer: lse*log2(e), then delta
    attn_load<E, BK, ATTN_THREADS>(k_tile, k + keys * (i64)k_row + kv * E, k_row, len - j0);
    attn_load<E, BK, ATTN_THREADS>(v_tile, v + keys * (i64)v_row + kv * E, v_row, len - j0);

    // load starts the copies of a tile of queries for head h and returns this thread's
    // number of its rows: threads 0 to 63 bring lse, 64 to 127 delta. With the lse of
    // queries past the end infinite, their p is 0.
    bool has_lse = threadIdx.x < BQ;
    const float *of_row = has_lse ? lse : delta;
    auto load = [&](bf16 *to, int h, int tile) {
        int i = tile * BQ, mine = threadIdx.x % BQ;
        i64 row = (i64)(first + i) * H + h;
        attn_load<E, BQ, ATTN_THREADS>(to, q + (i64)(first + i) * q_row + h * E, q_row, seen_by - i);
        attn_load<E, BQ, ATTN_THREADS>(to + BQ * E, dout + row * E, H * E, seen_by - i);
        if (i + mine < seen_by) return of_row[row + (i64)mine * H] * (has_lse ? ATTN_LOG2E : 1.0f);
        return has_lse ? INF : 0.0f;
    };
    int h = kv * group + at.head, h_end = min(h + at.heads, (kv + 1) * group);
    int tile = at.from, now = 0; // of queries of head h, and the buffer that it is in
    rows[threadIdx.x] = load(ring, h, tile);
    copy_commit();

    float dk_acc[MT][E / 8][4], dv_acc[MT][E / 8][4];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) dk_acc[t][n][i] = dv_acc[t][n][i] = 0.0f;
    float scale2 = scale * ATTN_LOG2E;

    while (h < h_end) {
        int i0 = tile * BQ;
        copy_wait<0>();
        __syncthreads();
        if (++tile == n_q) tile = blocks[blockIdx.x / K].from, h++; // the loop has no register for it
        float next = 0.0f;
        if (h < h_end) next = load(ring + (now ^ 1) * 2 * BQ * E, h, tile);
        copy_commit();
        const bf16 *q_tile = ring + now * 2 * BQ * E, *do_tile = q_tile + BQ * E;
        const float *lse_row = rows + now * 2 * BQ, *delta_row = lse_row + BQ;

        // Tiles of queries before this warp's keys (MT 2: the first, for the upper two warps) have nothing for it.
        if (i0 + BQ > j0 + row0) {
#pragma unroll 1
            for (int sub = 0; sub < BQ; sub += NS) {
                float s[MT][NS / 8][4];
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < NS / 8; n++) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.0f;
#pragma unroll
                for (int e = 0; e < E / 16; e++) {
                    u32 a[MT][4];
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_a<E>(a[t], k_tile, row0 + 16 * t, e);
#pragma unroll
                    for (int n = 0; n < NS / 16; n++) {
                        u32 b[4];
                        attn_b<E>(b, q_tile, sub + 16 * n, e);
#pragma unroll
                        for (int t = 0; t < MT; t++) attn_mma2(s[t][2 * n], s[t][2 * n + 1], a[t], b);
                    }
                }
                int ahead = j0 + row0 - i0 - sub; // of the first query: the warp's first key
#pragma unroll
                for (int n = 0; n < NS / 8; n++) {
                    float2 lse2 = *(const float2 *)(lse_row + sub + 8 * n + 2 * (lane % 4));
#pragma unroll
                    for (int t = 0; t < MT; t++) {
#pragma unroll
                        for (int c = 0; c < 4; c++) s[t][n][c] = fast_exp2(fmaf(s[t][n][c], scale2, -(c & 1 ? lse2.y : lse2.x)));
                    }
                }
                if (ahead > -16 * MT) {
                    ahead += lane / 4 - 2 * (lane % 4);
#pragma unroll
                    for (int t = 0; t < MT; t++)
#pragma unroll
                        for (int n = 0; n < NS / 8; n++)
#pragma unroll
                            for (int c = 0; c < 4; c++)
                                if (ahead + 16 * t + (c & 2 ? 8 : 0) > 8 * n + (c & 1)) s[t][n][c] = 0.0f;
                }
#pragma unroll
                for (int n = 0; n < NS / 16; n++) {
                    u32 a[MT][4];
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_pack(a[t], s[t][2 * n], s[t][2 * n + 1]);
#pragma unroll
                    for (int e = 0; e < E / 16; e++) {
                        u32 b[4];
                        attn_bt<E>(b, do_tile, sub + 16 * n, e);
#pragma unroll
                        for (int t = 0; t < MT; t++) attn_mma2(dv_acc[t][2 * e], dv_acc[t][2 * e + 1], a[t], b);
                    }
                }
                float ds[MT][NS / 8][4];
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < NS / 8; n++) ds[t][n][0] = ds[t][n][1] = ds[t][n][2] = ds[t][n][3] = 0.0f;
#pragma unroll
                for (int e = 0; e < E / 16; e++) {
                    u32 a[MT][4];
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_a<E>(a[t], v_tile, row0 + 16 * t, e);
#pragma unroll
                    for (int n = 0; n < NS / 16; n++) {
                        u32 b[4];
                        attn_b<E>(b, do_tile, sub + 16 * n, e);
#pragma unroll
                        for (int t = 0; t < MT; t++) attn_mma2(ds[t][2 * n], ds[t][2 * n + 1], a[t], b);
                    }
                }
#pragma unroll
                for (int n = 0; n < NS / 8; n++) {
                    float2 d = *(const float2 *)(delta_row + sub + 8 * n + 2 * (lane % 4));
#pragma unroll
                    for (int t = 0; t < MT; t++)
#pragma unroll
                        for (int c = 0; c < 4; c++) ds[t][n][c] = s[t][n][c] * (ds[t][n][c] - (c & 1 ? d.y : d.x));
                }
#pragma unroll
                for (int n = 0; n < NS / 16; n++) {
                    u32 a[MT][4];
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_pack(a[t], ds[t][2 * n], ds[t][2 * n + 1]);
#pragma unroll
                    for (int e = 0; e < E / 16; e++) {
                        u32 b[4];
                        attn_bt<E>(b, q_tile, sub + 16 * n, e);
#pragma unroll
                        for (int t = 0; t < MT; t++) attn_mma2(dk_acc[t][2 * e], dk_acc[t][2 * e + 1], a[t], b);
                    }
                }
            }
        }
        now ^= 1;
        rows[now * 2 * BQ + threadIdx.x] = next;
    }

    int head = (h - 1) / group * E; // kv's: h is h_end, and keeping kv would spill
    int rows_at = blocks[blockIdx.x / K].at; // read again, too
    if (rows_at >= 0) {
        i64 ks = (i64)K * E;
        float *dk_part = part + 2 * (rows_at + row0) * ks + head + 2 * (lane % 4);
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = 16 * t + 8 * half + lane / 4;
                if (r >= len - j0 - row0) continue;
                float *to = dk_part + 2 * r * ks;
#pragma unroll
                for (int n = 0; n < E / 8; n++) {
                    *(float2 *)(to + 8 * n) = make_float2(dk_acc[t][n][2 * half], dk_acc[t][n][2 * half + 1]);
                    *(float2 *)(to + ks + 8 * n) = make_float2(dv_acc[t][n][2 * half], dv_acc[t][n][2 * half + 1]);
                }
            }
        return;
    }
    // A warp alone reads its rows of the tiles of keys and values.
    float factor[MT][2], one[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) factor[t][0] = factor[t][1] = scale, one[t][0] = one[t][1] = 1.0f;
    attn_store<E, MT>(dk + keys * (i64)k_row + head, k_row, len - j0, k_tile, row0, dk_acc, factor);
    attn_store<E, MT>(dv + keys * (i64)v_row + head, v_row, len - j0, v_tile, row0, dv_acc, one);
}

KERNEL(ATTN_THREADS, attn_bwd_dkv_E64, bf16 *dk, bf16 *dv, float *part, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse,
       const float *delta, const Segment *segments, const KeyBlock *blocks, int H, int K, int q_row, int k_row, int v_row, float scale) {
    attn_bwd_dkv<64, 2, 32>(dk, dv, part, dout, q, k, v, lse, delta, segments, blocks, H, K, q_row, k_row, v_row, scale);
}
KERNEL(ATTN_THREADS, attn_bwd_dkv_E128, bf16 *dk, bf16 *dv, float *part, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse,
       const float *delta, const Segment *segments, const KeyBlock *blocks, int H, int K, int q_row, int k_row, int v_row, float scale) {
    attn_bwd_dkv<128, 1, 64>(dk, dv, part, dout, q, k, v, lse, delta, segments, blocks, H, K, q_row, k_row, v_row, scale);
}

// attn_bwd_dkv_sum: W is K*E. As in the other fast kernels all rows are aligned.
KERNEL(256, attn_bwd_dkv_sum, bf16 *dk, bf16 *dv, const float *part, const KeySum *sums, int W, int k_row, int v_row, float scale) {
    KeySum at = sums[blockIdx.x];
    int eights = W / 8;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < at.rows * eights; i += gridDim.y * blockDim.x) {
        int r = i / eights, d = 8 * (i % eights);
        const float *from = part + 2 * (i64)(at.at + r) * W + d;
        Vec k_sum = {}, v_sum = {};
        for (int p = 0; p < at.parts; p++, from += 2 * (i64)at.rows * W) {
            Vec a, b;
            load(a, from, 8, true);
            load(b, from + W, 8, true);
            for (int j = 0; j < 8; j++) k_sum.v[j] += a.v[j], v_sum.v[j] += b.v[j];
        }
        for (int j = 0; j < 8; j++) k_sum.v[j] *= scale;
        store(dk + (i64)(at.first + r) * k_row + d, k_sum, 8, true);
        store(dv + (i64)(at.first + r) * v_row + d, v_sum, 8, true);
    }
}

// dq: a block has 128 queries of one head, a warp 32 of them with dq in registers,
// and goes through the tiles of BK keys up to the diagonal, 32 keys at a time.
// Keys and values are double-buffered.
template <int E, int BK>
DEVICE void attn_bwd_dq(bf16 *dq, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse, const float *delta, const Segment *segments,
                        const int2 *tiles, int H, int K, int q_row, int k_row, int v_row, float scale) {
    const int BQ = 128, MT = 2, NS = 32;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int2 at = tiles[blockIdx.x];
    Segment g = segments[at.x];
    int h = blockIdx.y, kv = h / (H / K), own = attn_own(g), len = g.before + g.len;
    int q0 = g.before + at.y * BQ, row0 = warp * 16 * MT, i0 = q0 + row0;
    int n_k = (min(len, q0 + BQ) + BK - 1) / BK;
    k += own * (i64)k_row + kv * E;
    v += own * (i64)v_row + kv * E;
    int jump = attn_leap(g); // as in attn_fwd

    bf16 *q_tile = (bf16 *)shared(), *do_tile = q_tile + BQ * E, *ring = do_tile + BQ * E;
    attn_load<E, BQ, ATTN_THREADS>(q_tile, q + (own + q0) * (i64)q_row + h * E, q_row, len - q0);
    attn_load<E, BQ, ATTN_THREADS>(do_tile, dout + ((own + q0) * (i64)H + h) * E, H * E, len - q0);
    attn_keys<E, BK>(ring, k, k_row, 0, len, g.before, jump, segments);
    attn_keys<E, BK>(ring + BK * E, v, v_row, 0, len, g.before, jump, segments);
    copy_commit();

    float acc[MT][E / 8][4], lse2[MT][2], d[MT][2], factor[MT][2];
#pragma unroll
    for (int t = 0; t < MT; t++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = i0 + 16 * t + 8 * half + lane / 4;
            i64 row = (i64)(own + i) * H + h;
            lse2[t][half] = i < len ? lse[row] * ATTN_LOG2E : INF; // so that p is 0
            d[t][half] = i < len ? delta[row] : 0.0f;
            factor[t][half] = scale;
        }
#pragma unroll
        for (int n = 0; n < E / 8; n++) acc[t][n][0] = acc[t][n][1] = acc[t][n][2] = acc[t][n][3] = 0.0f;
    }
    float scale2 = scale * ATTN_LOG2E;

    for (int j = 0; j < n_k; j++) {
        int now = j & 1;
        copy_wait<0>();
        __syncthreads();
        if (j + 1 < n_k) {
            int n0 = (j + 1) * BK;
            bf16 *to = ring + (now ^ 1) * 2 * BK * E;
            attn_keys<E, BK>(to, k, k_row, n0, len, g.before, jump, segments);
            attn_keys<E, BK>(to + BK * E, v, v_row, n0, len, g.before, jump, segments);
        }
        copy_commit();
        const bf16 *k_tile = ring + now * 2 * BK * E, *v_tile = k_tile + BK * E;
#pragma unroll 1
        for (int sub = 0; sub < BK; sub += NS) {
            int j0 = j * BK + sub;
            if (j0 >= i0 + 16 * MT || i0 >= len) break; // these keys and those that follow are after all of this warp's queries
            float s[MT][NS / 8][4], ds[MT][NS / 8][4];
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int n = 0; n < NS / 8; n++)
#pragma unroll
                    for (int c = 0; c < 4; c++) s[t][n][c] = ds[t][n][c] = 0.0f;
#pragma unroll
            for (int e = 0; e < E / 16; e++) {
                u32 a[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) attn_a<E>(a[t], q_tile, row0 + 16 * t, e);
#pragma unroll
                for (int n = 0; n < NS / 16; n++) {
                    u32 b[4];
                    attn_b<E>(b, k_tile, sub + 16 * n, e);
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_mma2(s[t][2 * n], s[t][2 * n + 1], a[t], b);
                }
            }
#pragma unroll
            for (int e = 0; e < E / 16; e++) {
                u32 a[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) attn_a<E>(a[t], do_tile, row0 + 16 * t, e);
#pragma unroll
                for (int n = 0; n < NS / 16; n++) {
                    u32 b[4];
                    attn_b<E>(b, v_tile, sub + 16 * n, e);
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_mma2(ds[t][2 * n], ds[t][2 * n + 1], a[t], b);
                }
            }
            if (j0 + NS - 1 > i0) {
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < NS / 8; n++) attn_mask(s[t][n], i0 + 16 * t, j0 + 8 * n);
            }
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int n = 0; n < NS / 8; n++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        float p = fast_exp2(fmaf(s[t][n][c], scale2, -lse2[t][c / 2]));
                        ds[t][n][c] = p * (ds[t][n][c] - d[t][c / 2]);
                    }
#pragma unroll
            for (int n = 0; n < NS / 16; n++) {
                u32 a[MT][4];
#pragma unroll
                for (int t = 0; t < MT; t++) attn_pack(a[t], ds[t][2 * n], ds[t][2 * n + 1]);
#pragma unroll
                for (int e = 0; e < E / 16; e++) {
                    u32 b[4];
                    attn_bt<E>(b, k_tile, sub + 16 * n, e);
#pragma unroll
                    for (int t = 0; t < MT; t++) attn_mma2(acc[t][2 * e], acc[t][2 * e + 1], a[t], b);
                }
            }
        }
    }
    attn_store<E, MT>(dq + (own + q0) * (i64)q_row + h * E, q_row, len - q0, q_tile, row0, acc, factor);
}

KERNEL(ATTN_THREADS, attn_bwd_dq_E64, bf16 *dq, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse, const float *delta,
       const Segment *segments, const int2 *tiles, int H, int K, int q_row, int k_row, int v_row, float scale) {
    attn_bwd_dq<64, 64>(dq, dout, q, k, v, lse, delta, segments, tiles, H, K, q_row, k_row, v_row, scale);
}
KERNEL(ATTN_THREADS, attn_bwd_dq_E128, bf16 *dq, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse, const float *delta,
       const Segment *segments, const int2 *tiles, int H, int K, int q_row, int k_row, int v_row, float scale) {
    attn_bwd_dq<128, 32>(dq, dout, q, k, v, lse, delta, segments, tiles, H, K, q_row, k_row, v_row, scale);
}

// The generic kernels.

// attn_segment is the segment that row n lies in.
DEVICE Segment attn_segment(const Segment *segments, int S, int n) {
    int lo = 0, hi = S; // segment lo begins at or before n, segment hi behind
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (segments[mid].first <= n) lo = mid;
        else hi = mid;
    }
    return segments[lo];
}

// attn_warp is this warp's number in the grid.
DEVICE i64 attn_warp() { return (i64)blockIdx.x * (ATTN_THREADS / WARP) + threadIdx.x / WARP; }

// attn_dot is sum_e x[e]*y[e], e ascending.
template <class T> DEVICE float attn_dot(const T *x, const T *y, int E) {
    float sum = 0.0f;
    for (int e = 0; e < E; e++) sum = fmaf(to_float(x[e]), to_float(y[e]), sum);
    return sum;
}

template <class T>
DEVICE void attn_fwd_any(T *o, float *lse, const T *q, const T *k, const T *v, const Segment *segments, int S, int N, int H, int K, int E, int q_row, int k_row, int v_row,
                         float scale, float cap, int window) {
    i64 i = attn_warp();
    if (i >= (i64)N * H) return;
    int lane = threadIdx.x % WARP, n = i / H, h = i % H, kv = h / (H / K);
    Segment g = attn_segment(segments, S, n);
    int own = attn_own(g), len = n + 1 - own, before = g.before, jump = attn_leap(g);
    const T *query = q + n * (i64)q_row + h * E, *key = k + own * (i64)k_row + kv * E, *value = v + own * (i64)v_row + kv * E;
    float m = -INF, l = 0.0f, acc[ATTN_LANE];
    for (int c = 0; c < ATTN_LANE; c++) acc[c] = 0.0f;
    int seen = attn_first(len, window);
    for (int j = seen / ATTN_SPLIT * ATTN_SPLIT; j < len; j += ATTN_SPLIT) {
        float m1, l1, acc1[ATTN_LANE], a, b;
        attn_span(m1, l1, acc1, query, key, value, k_row, v_row, [&](int p) { return p + attn_away(segments, before, jump, p); }, E, scale, cap, max(j, seen), min(len, j + ATTN_SPLIT));
        attn_merge(m, l, m1, l1, a, b);
        for (int c = 0; c < ATTN_LANE; c++) acc[c] = fmaf(acc[c], a, acc1[c] * b);
    }
    for (int c = 0; c < ATTN_LANE; c++)
        if (lane + WARP * c < E) o[i * E + lane + WARP * c] = from_float<T>(acc[c] / l);
    if (lane == 0) lse[i] = m + logf(l);
}

template <class T> DEVICE void attn_bwd_delta_any(float *delta, const T *dout, const T *o, int N, int H, int E) {
    i64 i = attn_warp();
    if (i >= (i64)N * H) return;
    int lane = threadIdx.x % WARP;
    float sum = 0.0f;
    for (int e = lane; e < E; e += WARP) sum = fmaf(to_float(dout[i * E + e]), to_float(o[i * E + e]), sum);
    sum = warp_sum(sum);
    if (lane == 0) delta[i] = sum;
}

// One warp to a key: 32 queries at a time, one to a lane, for p and ds; then the
// lanes share the width of the head.
template <class T>
DEVICE void attn_bwd_dkv_any(T *dk, T *dv, const T *dout, const T *q, const T *k, const T *v, const float *lse, const float *delta, const Segment *segments, int S, int N,
                             int H, int K, int E, int q_row, int k_row, int v_row, float scale, float cap, int window) {
    i64 at = attn_warp();
    if (at >= (i64)N * K) return;
    int lane = threadIdx.x % WARP, n = at / K, kv = at % K, group = H / K;
    Segment g = attn_segment(segments, S, n);
    int end = g.first + g.len + g.branches;
    i64 key = n * (i64)k_row + kv * E, value = n * (i64)v_row + kv * E;
    int unseen = n - attn_own(g) + window; // the first position that does not see this key, with a window
    float dk_acc[ATTN_LANE], dv_acc[ATTN_LANE];
    for (int c = 0; c < ATTN_LANE; c++) dk_acc[c] = dv_acc[c] = 0.0f;
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        for (int i0 = n; i0 < end; i0 += WARP) {
            float p = 0.0f, ds = 0.0f;
            bool sees = i0 + lane < end && (window == 0 || i0 + lane - attn_own(attn_segment(segments, S, i0 + lane)) < unseen);
            if (!__ballot_sync(FULL, sees)) continue;
            if (sees) {
                i64 row = (i64)(i0 + lane) * H + h;
                float s = attn_cap(scale * attn_dot(q + (i0 + lane) * (i64)q_row + h * E, k + key, E), cap);
                p = expf(s - lse[row]);
                ds = p * (attn_dot(dout + row * E, v + value, E) - delta[row]) * attn_cap_slope(s, cap);
            }
            int count = min(WARP, end - i0);
            for (int c = 0; c < count; c++) {
                float p_c = __shfl_sync(FULL, p, c), ds_c = __shfl_sync(FULL, ds, c);
                i64 row = ((i64)(i0 + c) * H + h) * E, query = (i0 + c) * (i64)q_row + h * E;
                for (int x = 0; x < ATTN_LANE; x++) {
                    int e = lane + WARP * x;
                    if (e >= E) break;
                    dv_acc[x] = fmaf(p_c, to_float(dout[row + e]), dv_acc[x]);
                    dk_acc[x] = fmaf(ds_c, to_float(q[query + e]), dk_acc[x]);
                }
            }
        }
    }
    for (int x = 0; x < ATTN_LANE; x++) {
        int e = lane + WARP * x;
        if (e >= E) break;
        dk[key + e] = from_float<T>(scale * dk_acc[x]);
        dv[value + e] = from_float<T>(dv_acc[x]);
    }
}

template <class T>
DEVICE void attn_bwd_dq_any(T *dq, const T *dout, const T *q, const T *k, const T *v, const float *lse, const float *delta, const Segment *segments, int S, int N, int H,
                            int K, int E, int q_row, int k_row, int v_row, float scale, float cap, int window) {
    i64 at = attn_warp();
    if (at >= (i64)N * H) return;
    int lane = threadIdx.x % WARP, n = at / H, h = at % H, kv = h / (H / K);
    Segment g = attn_segment(segments, S, n);
    int own = attn_own(g), len = n + 1 - own, before = g.before, jump = attn_leap(g);
    i64 query = n * (i64)q_row + h * E;
    float acc[ATTN_LANE];
    for (int c = 0; c < ATTN_LANE; c++) acc[c] = 0.0f;
    for (int j0 = attn_first(len, window); j0 < len; j0 += WARP) {
        float ds = 0.0f;
        if (j0 + lane < len) {
            i64 row = own + j0 + lane + attn_away(segments, before, jump, j0 + lane);
            float s = attn_cap(scale * attn_dot(q + query, k + row * k_row + kv * E, E), cap), p = expf(s - lse[at]);
            ds = p * (attn_dot(dout + at * E, v + row * v_row + kv * E, E) - delta[at]) * attn_cap_slope(s, cap);
        }
        int count = min(WARP, len - j0);
        for (int c = 0; c < count; c++) {
            float ds_c = __shfl_sync(FULL, ds, c);
            i64 row = (own + j0 + c + attn_away(segments, before, jump, j0 + c)) * (i64)k_row + kv * E;
            for (int x = 0; x < ATTN_LANE; x++) {
                int e = lane + WARP * x;
                if (e < E) acc[x] = fmaf(ds_c, to_float(k[row + e]), acc[x]);
            }
        }
    }
    for (int x = 0; x < ATTN_LANE; x++) {
        int e = lane + WARP * x;
        if (e < E) dq[query + e] = from_float<T>(scale * acc[x]);
    }
}

#define ATTN_ANY(T, SUFFIX)                                                                                                                                          \
    KERNEL(ATTN_THREADS, attn_fwd_any_##SUFFIX, T *o, float *lse, const T *q, const T *k, const T *v, const Segment *segments, int S, int N, int H, int K, int E,    \
           int q_row, int k_row, int v_row, float scale, float cap, int window) {                                                                                               \
        attn_fwd_any(o, lse, q, k, v, segments, S, N, H, K, E, q_row, k_row, v_row, scale, cap, window);                                                                  \
    }                                                                                                                                                                \
    KERNEL(ATTN_THREADS, attn_bwd_delta_any_##SUFFIX, float *delta, const T *dout, const T *o, int N, int H, int E) { attn_bwd_delta_any(delta, dout, o, N, H, E); } \
    KERNEL(ATTN_THREADS, attn_bwd_dkv_any_##SUFFIX, T *dk, T *dv, const T *dout, const T *q, const T *k, const T *v, const float *lse, const float *delta,           \
           const Segment *segments, int S, int N, int H, int K, int E, int q_row, int k_row, int v_row, float scale, float cap, int window) {                                   \
        attn_bwd_dkv_any(dk, dv, dout, q, k, v, lse, delta, segments, S, N, H, K, E, q_row, k_row, v_row, scale, cap, window);                                            \
    }                                                                                                                                                                \
    KERNEL(ATTN_THREADS, attn_bwd_dq_any_##SUFFIX, T *dq, const T *dout, const T *q, const T *k, const T *v, const float *lse, const float *delta,                   \
           const Segment *segments, int S, int N, int H, int K, int E, int q_row, int k_row, int v_row, float scale, float cap, int window) {                                   \
        attn_bwd_dq_any(dq, dout, q, k, v, lse, delta, segments, S, N, H, K, E, q_row, k_row, v_row, scale, cap, window);                                                 \
    }
ATTN_ANY(float, f32)
ATTN_ANY(bf16, bf16)
