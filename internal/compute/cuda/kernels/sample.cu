// Sample: one token for each row of logits. Include after head.cu, whose
// statistics it reads.
//
// Probabilities are whole numbers here, so that no sum depends on its order and
// atomics may be used: a token's mass is exp(z-max) in units of 2^-44, rounded
// down. The most probable token has 2^44 of them, a row of fewer than 2^20 tokens
// less than 2^64. A token less probable than 2^-44 times the most probable one
// (30.5 nats below it) has mass 0 and is never drawn; what the tokens of a row lose
// by the rounding is together less than 2^20*2^-44 = 2^-24 of the most probable
// token's share, the resolution of the float logits that they come from. u near 1 gives the
// last kept token that has any mass.
//
// Tokens are ranked by logit, equal ones by id. Each filter keeps a beginning of
// that ranking, found as a threshold by radix selection: first over bins of 1/64
// nat below the maximum, which spread the logits of any model (the leading bits of
// floats would not), then over the 11, 11 and 10 bits of the logit's ordered
// pattern within the bin; most searches end at a group of one token before that.
// A search adds counts and masses up in shared memory.
#include "device.cuh"

#define SAMPLE_THREADS 1024
#define SAMPLE_WARPS (SAMPLE_THREADS / WARP)
#define SAMPLE_GROUPS (2 * SAMPLE_THREADS)
#define SAMPLE_SHARED (SAMPLE_GROUPS * 3 * 4 + (SAMPLE_WARPS + 2) * 8) // bytes: 24848

// SampleRow is a row of logits and the block's shared memory.
struct SampleRow {
    const float *z;
    int V;
    float most;             // the largest logit
    bool wide;              // z may be read four elements at a time
    u64 *sums;              // [SAMPLE_WARPS + 2]
    u32 *count, *low, *high; // [SAMPLE_GROUPS]: tokens and 64-bit masses of groups
};

// SampleKept is a beginning of the ranking: the bins before bin; in it, logits of
// a larger pattern than key, and of those with this pattern the ids up to last.
struct SampleKept {
    int bin;
    u32 key;
    int last;
};

// sample_bin is d = max-z in 1/64 nats. The last bin holds all tokens of mass 0
// (from 31.98 nats on), and NaN.
DEVICE int sample_bin(float d) {
    d *= 64;
    return d < SAMPLE_GROUPS - 1 ? (int)d : SAMPLE_GROUPS - 1;
}

// sample_key orders like z; -0 is 0 and NaN is the smallest.
DEVICE u32 sample_key(float z) {
    u32 x = __float_as_uint(z + 0.0f);
    return z != z ? 0 : x >> 31 ? ~x : x | 0x80000000u;
}

// sample_mass is the mass of a token, e = exp(z-max) times as probable as the first.
DEVICE u64 sample_mass(float e) { return e > 0 ? (u64)(e * 17592186044416.0f) : 0; }

DEVICE bool sample_keeps(const SampleRow &row, const SampleKept &k, int v, float z) {
    int bin = sample_bin(row.most - z);
    if (bin != k.bin) return bin < k.bin;
    u32 key = sample_key(z);
    return key > k.key || (key == k.key && v <= k.last);
}

// warp_scan is the sum over this lane and those before it.
DEVICE u64 warp_scan(u64 x) {
    int lane = threadIdx.x % WARP;
    for (int by = 1; by < WARP; by *= 2) {
        u64 y = __shfl_up_sync(FULL, x, by);
        if (lane >= by) x += y;
    }
    return x;
}

// sample_share is how many of n tokens a warp takes, a multiple of 128.
DEVICE int sample_share(int n) { return (n + SAMPLE_WARPS * 128 - 1) / (SAMPLE_WARPS * 128) * 128; }

// sample_each calls f(v, z_v) for this thread's tokens in lo..hi-1: warp w takes
// the w-th share, a lane four consecutive tokens of each 128.
template <class F> DEVICE void sample_each(const SampleRow &row, int lo, int hi, F f) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, share = sample_share(hi - lo);
    int end = min(hi, lo + (warp + 1) * share);
    for (int v = lo + warp * share + lane * 4; v < end; v += 512) {
        float x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) load4(x[i], row.z, v + 128 * i, end, row.wide, 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (v + 128 * i + j < end) f(v + 128 * i + j, x[i][j]);
    }
}

// sample_survey is the sum of weight(v, z_v) over lo..hi-1; the warps' shares of
// it are left in row.sums.
template <class F> DEVICE u64 sample_survey(const SampleRow &row, int lo, int hi, F weight) {
    int lane = threadIdx.x % WARP;
    u64 sum = 0;
    sample_each(row, lo, hi, [&](int v, float z) { sum += weight(v, z); });
    for (int m = WARP / 2; m > 0; m /= 2) sum += __shfl_xor_sync(FULL, sum, m);
    __syncthreads();
    if (lane == 0) row.sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = row.sums[lane];
    for (int m = WARP / 2; m > 0; m /= 2) sum += __shfl_xor_sync(FULL, sum, m);
    return sum;
}

// sample_first is the first i < n at which the sum of weight(0..i) exceeds target;
// n <= SAMPLE_GROUPS. before is the sum ahead of it.
template <class F> DEVICE int sample_first(const SampleRow &row, int n, u64 target, u64 &before, F weight) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, i = 2 * threadIdx.x;
    u64 a = i < n ? weight(i) : 0, b = i + 1 < n ? weight(i + 1) : 0;
    u64 scan = warp_scan(a + b);
    __syncthreads();
    if (lane == WARP - 1) row.sums[warp] = scan;
    if (threadIdx.x == 0) row.sums[SAMPLE_WARPS] = row.sums[SAMPLE_WARPS + 1] = 0;
    __syncthreads();
    u64 warps = warp_scan(row.sums[lane]);
    u64 ahead = __shfl_sync(FULL, warps, (warp + WARP - 1) % WARP);
    u64 from = (warp > 0 ? ahead : 0) + scan - (a + b);
    if (from <= target && target < from + a + b) {
        bool second = target >= from + a;
        row.sums[SAMPLE_WARPS] = i + second;
        row.sums[SAMPLE_WARPS + 1] = from + (second ? a : 0);
    }
    __syncthreads();
    before = row.sums[SAMPLE_WARPS + 1];
    return (int)row.sums[SAMPLE_WARPS];
}

// sample_locate is the first token at which the sum of weight(0, z_0) to weight(v, z_v)
// exceeds target, right after a survey of the whole row that exceeds it.
template <class F> DEVICE int sample_locate(const SampleRow &row, u64 target, F weight) {
    int lane = threadIdx.x % WARP, lo = 0, hi = row.V;
    u64 before;
    for (;;) {
        u64 scan = warp_scan(row.sums[lane]);
        int owner = min(__popc(__ballot_sync(FULL, scan <= target)), SAMPLE_WARPS - 1);
        u64 ahead = __shfl_sync(FULL, scan, (owner + WARP - 1) % WARP);
        if (owner > 0) target -= ahead;
        int share = sample_share(hi - lo);
        lo += owner * share;
        hi = min(hi, lo + share);
        if (hi - lo <= SAMPLE_GROUPS) break;
        sample_survey(row, lo, hi, weight);
    }
    return lo + sample_first(row, hi - lo, target, before, [&](int i) { return weight(lo + i, row.z[lo + i]); });
}

// sample_select is the shortest beginning of the ranking whose tokens number need,
// or with by_mass have need of mass; the row has that many, and need is positive.
DEVICE SampleKept sample_select(const SampleRow &row, u64 need, bool by_mass) {
    SampleKept k = {0, 0, row.V};
#pragma unroll 1
    for (int level = 0; level < 4; level++) {
        int shift = level == 1 ? 21 : level == 2 ? 10 : 0;  // of the group's bits in the key
        int above = level == 2 ? 21 : level == 3 ? 10 : 31; // of those that are known
        __syncthreads();
        for (int g = threadIdx.x; g < SAMPLE_GROUPS; g += SAMPLE_THREADS) row.count[g] = row.low[g] = row.high[g] = 0;
        __syncthreads();
        u32 last = 0; // tokens in the last bin: often most, so not one by one
        sample_each(row, 0, row.V, [&](int, float z) {
            float d = row.most - z;
            int g = sample_bin(d);
            if (level == 0) {
                last += g == SAMPLE_GROUPS - 1;
                if (g == SAMPLE_GROUPS - 1) return;
            } else {
                u32 key = sample_key(z);
                if (g != k.bin || (level > 1 && (key ^ k.key) >> above != 0)) return;
                g = SAMPLE_GROUPS - 1 - (key >> shift & (level == 3 ? 1023 : 2047));
            }
            atomicAdd(&row.count[g], 1u);
            if (!by_mass) return;
            u64 mass = sample_mass(expf(-d));
            u32 low = (u32)mass, old = atomicAdd(&row.low[g], low);
            u32 high = (u32)(mass >> 32) + (old + low < old);
            if (high != 0) atomicAdd(&row.high[g], high);
        });
        if (last != 0) atomicAdd(&row.count[SAMPLE_GROUPS - 1], last);
        __syncthreads();
        auto mass = [&](int g) { return (u64)row.high[g] << 32 | row.low[g]; };
        u64 before;
        int g = sample_first(row, SAMPLE_GROUPS, need - 1, before, [&](int i) { return by_mass ? mass(i) : (u64)row.count[i]; });
        need -= before;
        if (level == 0) k.bin = g;
        else k.key |= (u32)(SAMPLE_GROUPS - 1 - g) << shift;
        u64 tokens = row.count[g], all = by_mass ? mass(g) : tokens;
        if (tokens <= 1 || need >= all) return k; // the whole group
        if (level == 3) { // equal logits
            u64 one = all / tokens, n = (need + one - 1) / one;
            auto equal = [&](int, float z) { return (u64)(sample_bin(row.most - z) == k.bin && sample_key(z) == k.key); };
            if (n < sample_survey(row, 0, row.V, equal)) k.last = sample_locate(row, n - 1, equal);
        }
    }
    return k;
}

// sample draws ids[r] from row r and leaves the token's logit in logp[r], for
// head_finish to make its log-probability of:
//   head_stats(part, null, z, null, ...);  sample;  head_finish(logp, null, null, part, ...)
// The filters are topK, topP (a share of what topK left) and minP, in this order;
// the token is the first in the order of ids at which the kept mass exceeds
// u times its total. greedy takes the largest logit, the first of equal ones; so
// does a row without a finite largest logit (and token 0 if nothing equals it).
//   ids, logp [R]; z [R,V] of row stride ldz, scaled by 1/temperature (by 1 when
//   greedy), V < 2^20; part [R,tiles,4] of head_stats; u [R] in [0,1), not read
//   when greedy. greedy is 0 or 1; topK <= 0 or >= V, topP <= 0 or >= 1 and
//   minP <= 0 are off.
//   grid R, 1024 threads, 24848 bytes of shared memory.
// Passes over z: 1 when greedy or unfiltered; topK and topP 1 to 4 more each (and
// one if equal logits straddle the threshold), topP another one for its total.
KERNEL(SAMPLE_THREADS, sample, int *ids, float *logp, const float *z, const float *part, const double *u, int V, i64 ldz, int tiles, int greedy, int topK, double topP, double minP) {
    SampleRow row;
    i64 r = blockIdx.x;
    row.z = z + r * ldz;
    row.V = V;
    row.wide = wide4(row.z);
    row.sums = (u64 *)shared();
    row.count = (u32 *)(row.sums + SAMPLE_WARPS + 2);
    row.low = row.count + SAMPLE_GROUPS;
    row.high = row.low + SAMPLE_GROUPS;
    row.most = HEAD_LOWEST;
    for (int i = threadIdx.x % WARP; i < tiles; i += WARP) row.most = fmaxf(row.most, part[(r * tiles + i) * 4]);
    row.most = warp_max(row.most);

    SampleKept kept = {SAMPLE_GROUPS, 0, V}; // all
    bool minimum = minP > 0;
    auto weight = [&](int v, float x) -> u64 {
        if (greedy) return x == row.most;
        float e = expf(x - row.most);
        return (!minimum || e >= minP) && sample_keeps(row, kept, v, x) ? sample_mass(e) : 0;
    };
#pragma unroll 1
    for (int by_mass = 0; by_mass < 2 && !greedy; by_mass++) {
        u64 need = 0;
        if (!by_mass && topK > 0 && topK < V) need = topK;
        if (by_mass && topP > 0 && topP < 1) {
            minimum = false;
            u64 total = sample_survey(row, 0, V, weight);
            minimum = minP > 0;
            double share = topP * (double)total;
            need = (u64)share;
            need = min(need + ((double)need < share), total);
        }
        if (need > 0) kept = sample_select(row, need, by_mass);
    }

    u64 total;
#pragma unroll 1
    for (;;) {
        total = sample_survey(row, 0, V, weight);
        if (total > 0 || greedy) break;
        greedy = 1; // the largest logit is not finite
    }
    int id = 0;
    if (total > 0) {
        double share = greedy ? 0 : u[r] * (double)total;
        u64 target = share > 0 ? (u64)share : 0;
        id = sample_locate(row, min(target, total - 1), weight);
    }
    if (threadIdx.x == 0) ids[r] = id, logp[r] = row.z[id];
}

// draw is sample without filters, and reads of a row the masses of its tiles (head_masses in
// head.cu) and one tile's logits. The tile is the first at which the tiles' masses, in the unit of
// the row's largest, exceed u times their total; what they exceed it by is then followed into the
// tile in its own unit. Greedy, and a row without mass, take the first of the largest logits.
//   ids, logp, z, u as of sample; part [R,tiles,4] of head_masses.
//   grid R, 128 threads, 256 bytes of shared memory.
KERNEL(HEAD_THREADS, draw, int *ids, float *logp, const float *z, const float *part, const double *u, int V, i64 ldz, int tiles, int greedy) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    i64 r = blockIdx.x;
    const float4 *tile = (const float4 *)part + r * tiles;
    float most = HEAD_LOWEST;
    for (int i = lane; i < tiles; i += WARP) most = fmaxf(most, tile[i].x);
    most = warp_max(most);
    double power = mass_power(most);
    auto shift = [&](float m) { return (int)fmin(power - mass_power(m), 63.0); };
    auto mass = [&](int i) -> u64 {
        if (i >= tiles) return 0;
        float4 v = tile[i];
        if (greedy) return v.x == most;
        u64 all = (u64)__float_as_uint(v.w) << 32 | __float_as_uint(v.z);
        return all == 0 ? 0 : all >> shift(v.x);
    };
    u64 total;
    for (;;) {
        total = 0;
        for (int i = lane; i < tiles; i += WARP) total += mass(i);
        for (int m = WARP / 2; m > 0; m /= 2) total += __shfl_xor_sync(FULL, total, m);
        if (total > 0 || greedy) break;
        greedy = 1; // the largest logit is not finite
    }
    double share = greedy ? 0 : u[r] * (double)total;
    u64 target = share > 0 ? (u64)share : 0;
    if (total > 0) target = min(target, total - 1);
    int found = 0;
    for (int from = 0; from < tiles; from += WARP) {
        u64 scan = warp_scan(mass(from + lane)), all = __shfl_sync(FULL, scan, WARP - 1);
        if (target < all) {
            int i = __popc(__ballot_sync(FULL, scan <= target));
            u64 before = __shfl_sync(FULL, scan, (i + WARP - 1) % WARP);
            if (i > 0) target -= before;
            found = from + i;
            break;
        }
        target -= all;
    }
    float m = tile[found].x, of = mass_share(m);
    if (!greedy) target <<= shift(m);

    // The tile's 32 parts of 128 tokens, of which a lane has four: first the parts' masses, then
    // those in the part.
    const float *row = z + r * ldz + (i64)found * HEAD_TILE;
    int n = min(HEAD_TILE, V - found * HEAD_TILE);
    bool wide = wide4(row);
    auto four = [&](int p, u64 (&w)[4]) {
        float x[4];
        load4(x, row, p * 128 + lane * 4, n, wide, -INF);
        u64 sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) sum += w[j] = greedy ? (u64)(x[j] == most) : mass_of(expf(x[j] - m), of);
        return sum;
    };
    u64 *parts = (u64 *)shared(), w[4]; // [WARP]
    for (int p = warp; p < WARP; p += HEAD_THREADS / WARP) {
        u64 sum = four(p, w);
        for (int k = WARP / 2; k > 0; k /= 2) sum += __shfl_xor_sync(FULL, sum, k);
        if (lane == 0) parts[p] = sum;
    }
    __syncthreads();
    if (warp > 0) return;
    u64 scan = warp_scan(parts[lane]), all = __shfl_sync(FULL, scan, WARP - 1);
    if (all == 0) { // nothing equals the largest logit
        if (lane == 0) ids[r] = 0, logp[r] = z[r * ldz];
        return;
    }
    target = min(target, all - 1);
    int p = __popc(__ballot_sync(FULL, scan <= target));
    u64 before = __shfl_sync(FULL, scan, (p + WARP - 1) % WARP);
    if (p > 0) target -= before;
    u64 sum = four(p, w);
    u64 from = warp_scan(sum) - sum;
    if (target < from || target >= from + sum) return;
    int j = found * HEAD_TILE + p * 128 + lane * 4;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        from += w[i];
        if (from <= target) j++;
    }
    ids[r] = j, logp[r] = z[r * ldz + j];
}
