// The emulator's own test: that it computes what the PTX ISA and the driver's
// documentation say, and that what it promises to catch is caught. With --bench it
// measures instead.
#include "device.cuh"

#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <vector>

static int failures;
#define CHECK(x)                                                          \
    do {                                                                  \
        if (!(x)) {                                                       \
            failures++;                                                   \
            fprintf(stderr, "emu_test.cc:%d: not so: %s\n", __LINE__, #x); \
        }                                                                 \
    } while (0)
#define EQUAL(got, want) equal(double(got), double(want), #got, __LINE__)
static void equal(double got, double want, const char *what, int line) {
    if (got == want) return;
    failures++;
    fprintf(stderr, "emu_test.cc:%d: %s is %.9g, want %.9g\n", line, what, got, want);
}

// says reports whether a launch ended with an error that contains text.
static bool says(const std::string &error, const char *text) {
    if (error.find(text) != std::string::npos) return true;
    fprintf(stderr, "said \"%s\", not \"%s\"\n", error.c_str(), text);
    return false;
}

static u32 random_state = 1;
static float random_bf16() {  // between -1 and 1, exact in bfloat16
    random_state = random_state * 1664525u + 1013904223u;
    return to_float(from_float<bf16>(float(int(random_state >> 16) - 32768) / 32768));
}

// ---- threads, barriers, warps ----

KERNEL(1024, sum, float *y, const float *x, int n) {
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
    s = block_sum(s, (float *)shared());
    y[blockIdx.x * blockDim.x + threadIdx.x] = s;
}

KERNEL(128, where, u32 *y) {
    u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    u32 threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(&y[block * threads + thread], block * 1000 + thread + 1);
}

// Each thread hands its number to a neighbour; correct only with the barrier, of
// which barrier = 0 leaves one thread's out by leaving out all.
KERNEL(256, pass_on, int *y, int barrier, int by) {
    int *s = (int *)shared(), n = blockDim.x, t = threadIdx.x;
    s[t] = t;
    if (barrier) __syncthreads();
    y[blockIdx.x * n + t] = s[(t + by + n) % n];
}

KERNEL(64, shuffles, int *y) {
    int t = threadIdx.x, *o = y + t * 8;
    o[0] = __shfl_sync(FULL, t, 5);
    o[1] = __shfl_xor_sync(FULL, t, 3);
    o[2] = __shfl_up_sync(FULL, t, 2);
    o[3] = __shfl_down_sync(FULL, t, 2);
    o[4] = (int)__ballot_sync(FULL, t % 3 == 0);
    o[5] = __shfl_down_sync(FULL, t, 2, 8);
    o[6] = (int)__shfl_sync(FULL, (double)t + 0.5, 7, 16);
    o[7] = (int)(__shfl_xor_sync(FULL, (u64)t << 40, 16) >> 40);
}

KERNEL(256, early, float *y) {  // those that return count as arrived
    float *s = (float *)shared();
    int t = threadIdx.x;
    if (t >= 40) return;
    s[t] = t;
    __syncthreads();
    y[t] = s[39 - t];
}

KERNEL(256, wrong, int how, const float *y) {
    float *s = (float *)shared();
    int t = threadIdx.x;
    float local[4] = {1, 2, 3, 4};
    switch (how) {
    case 0:  // lanes at different operations
        if (t % 2) {
            __syncwarp();
        } else {
            s[0] = __shfl_xor_sync(FULL, 1.0f, 1);
        }
        break;
    case 1:  // at the same operation of different lines
        if (t % 2) {
            s[0] = __shfl_xor_sync(FULL, 1.0f, 1);
        } else {
            s[0] = __shfl_xor_sync(FULL, 2.0f, 1);
        }
        break;
    case 2:  // at different barriers
        if (t < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        break;
    case 3:  // some at a barrier, some of their warp waiting for them
        if (t < 40) __syncthreads();
        else __syncwarp();
        break;
    case 4:  // a lane has returned
        if (t == 3) return;
        s[0] = warp_sum(1.0f);
        break;
    case 5: s[8] = 0; break;    // shared memory's end
    case 6: s[-1] = 0; break;   // and its start
    case 7: __syncwarp(1); break;
    case 8: ((float4 *)(shared() + 8))->y = 0; break;
    case 9: s[0] = local[t + how - 9]; break;
    case 10: s[0] = (float)(2147483647 - how + 10 + t); break;
    case 11: copy_async(shared() + 8, s, false); break;
    case 12: copy_async(shared() + 32, s, false); break;
    case 13: copy_async(shared(), shared() + 4, true); break;
    case 14: {
        u32 r[4];
        ldmatrix4(r, shared() + 4);
        break;
    }
    case 15: s[0] = (float)(how / (t - 15)); break;
    case 17:  // a copy of others', read without a barrier; 18: with one; 19: of another warp, with the warp's own barrier only
    case 18:
    case 19: {
        u32 r[4];
        if (how != 19 || t == 63) copy_async(s, y, true);
        copy_commit();
        copy_wait<0>();
        if (how > 17) __syncwarp();
        if (how != 19 || t < 32) ldmatrix4(r, s);
        break;
    }
    case 21:  // a copy over what others have read without a barrier; 22: with one; 23: of another warp, with the warp's own barrier only
    case 22:
    case 23: {
        u32 r[4];
        ldmatrix4t(r, shared() + (how == 23 ? 0 : t / 32 * 16));
        if (how > 21) __syncwarp();
        if (how < 23 ? t % 32 == 5 : t == 5) copy_async(shared() + t / 32 * 16, y, true);
        break;
    }
    case 16: s[0] = warp_sum(1.0f); break;
    }
}

KERNEL(32, fault, int *p) { p[1 << 20] = 1; }

static void test_threads() {
    const int n = 1000;
    emu::Array<float> x(n), y(3 * 256);
    float want = 0;
    for (int i = 0; i < n; i++) want += x[i] = float(i % 17);
    emu::launch(&sum, dim3(3), 256, WARP * 4, y.p, x.p, n);
    for (int i = 0; i < 3 * 256; i++) EQUAL(y[i], want);

    // Every thread of every block runs once, with its own indices.
    const emu::Kernel *k = emu::find("where");
    emu::Array<u32> seen(24 * 24);
    memset(seen.p, 0, 24 * 24 * 4);
    void *params[] = {&seen.p};
    CHECK(emu::execute(*k, dim3(2, 3, 4), dim3(4, 3, 2), 0, params) == "");
    for (u32 b = 0; b < 24; b++) {
        for (u32 t = 0; t < 24; t++) EQUAL(seen[b * 24 + t], b * 1000 + t + 1);
    }

    emu::Array<int> z(2 * 256);
    for (int by : {1, -1, 31, -200}) {
        emu::launch(&pass_on, dim3(2), 256, 1024, z.p, 1, by);
        for (int i = 0; i < 512; i++) EQUAL(z[i], (i % 256 + by + 256) % 256);
        emu::launch(&pass_on, dim3(2), 256, 1024, z.p, 0, by);
        int missed = 0;
        for (int i = 0; i < 512; i++) missed += z[i] != (i % 256 + by + 256) % 256;
        CHECK(missed > 0);  // the missing barrier shows
    }

    emu::Array<int> o(64 * 8);
    emu::launch(&shuffles, dim3(1), 64, 0, o.p);
    for (int t = 0; t < 64; t++) {
        int lane = t % 32, base = t - lane, *g = o.p + t * 8;
        EQUAL(g[0], base + 5);
        EQUAL(g[1], base + (lane ^ 3));
        EQUAL(g[2], lane >= 2 ? t - 2 : t);
        EQUAL(g[3], lane < 30 ? t + 2 : t);
        u32 ballot = 0;
        for (int i = 0; i < 32; i++) ballot |= u32((base + i) % 3 == 0) << i;
        EQUAL((u32)g[4], ballot);
        EQUAL(g[5], lane % 8 < 6 ? t + 2 : t);
        EQUAL(g[6], base + lane / 16 * 16 + 7);
        EQUAL(g[7], base + (lane ^ 16));
    }

    emu::Array<float> e(40);
    emu::launch(&early, dim3(1), 256, 160, e.p);
    for (int t = 0; t < 40; t++) EQUAL(e[t], 39 - t);
}

static void test_errors() {
    emu::Array<float> y(4);
    auto bad = [&](int how, int threads = 64) { return emu::try_launch(&wrong, dim3(2), threads, 32, how, y.p); };
    CHECK(says(bad(0), "of its warp wait in"));
    CHECK(says(bad(0), "kernel wrong: block ("));
    CHECK(says(bad(1), "a shuffle at"));
    CHECK(says(bad(2), "wait in the one at"));
    CHECK(says(bad(3), "which wait in __syncthreads"));
    CHECK(says(bad(4), "lanes "));
    CHECK(says(bad(5), "byte 32 of 32 of shared memory was written"));
    CHECK(says(bad(6), "byte -4 of 32 of shared memory was written"));
    CHECK(says(bad(7), "only full warps"));
    CHECK(says(bad(8), "a misaligned access"));
    CHECK(says(bad(9), "an index outside of its array"));
    CHECK(says(bad(10), "a signed sum overflows"));
    CHECK(says(bad(11), "not a multiple of 16"));
    CHECK(says(bad(12), "outside of the 32 bytes"));
    CHECK(says(bad(13), "global address"));
    CHECK(says(bad(14), "ldmatrix4"));
    CHECK(says(bad(15), "a division by zero"));
    CHECK(says(bad(16, 16), "do not exist or have returned"));
    CHECK(says(bad(17, 32), "without a barrier after its copy_wait"));
    CHECK(bad(18, 32) == "");
    CHECK(says(bad(19), "without a barrier"));
    CHECK(says(bad(21, 32), "overwrites offset 0, which an ldmatrix has read"));
    CHECK(bad(22, 32) == "");
    CHECK(bad(22) == "");
    CHECK(says(bad(23), "without a barrier"));
    CHECK(says(bad(20, 512), "its bound is 256"));
    CHECK(says(emu::try_launch(&wrong, dim3(1), 32, (227 << 10) + 1, 20, y.p), "bytes of shared memory"));
    CHECK(bad(20) == "");  // nothing of all that stays
}

// A wild access ends the process with the kernel's name. Before any other test: the child has one thread.
static void test_fault() {
    int fd[2];
    CHECK(pipe(fd) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], 2);
        emu::Array<int> x(8);
        emu::launch(&fault, dim3(1), 32, 0, x.p);
        _exit(0);
    }
    close(fd[1]);
    std::string text;
    char part[256];
    for (ssize_t n; (n = read(fd[0], part, sizeof part)) > 0;) text.append(part, size_t(n));
    close(fd[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(says(text, "kernel fault: block (0,0,0): thread ("));
    CHECK(says(text, "invalid access at address"));
}

// ---- numbers ----

static void test_numbers() {
    struct {
        u32 in;
        u16 out;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0xbf808001, 0xbf81}, {0x7f7fffff, 0x7f80},
                 {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fff}, {0xffc00000, 0x7fff}, {0x00000001, 0x0000}, {0x80000000, 0x8000}};
    for (auto &c : cases) EQUAL(from_float<bf16>(__uint_as_float(c.in)).bits, c.out);
    EQUAL(pack2(1.0f, -2.0f), 0xc0003f80u);
    EQUAL(fast_exp2(3.0f), 8);
    EQUAL(fast_exp2(-126.0f), FLT_MIN);
    EQUAL(fast_exp2(-126.5f), 0);
    EQUAL(fast_exp2(-INF), 0);
    EQUAL(min(3, 4u), 3);
    EQUAL(max(-1, 4u), 0xffffffffu);
    int i = 5;
    EQUAL(atomicMax(&i, 9), 5);
    EQUAL(atomicMin(&i, -2), 9);
    EQUAL(atomicAdd(&i, 10), -2);
    EQUAL(i, 8);
    float4 *none = nullptr;
    EQUAL(alignof(float4), 16);
    EQUAL(alignof(decltype(none->x)), 4);
    EQUAL(alignof(float2), 8);
}

// ---- tensor cores ----

// One mma on fragments that the host laid out as the PTX ISA's formulas say.
KERNEL(32, one_mma, float *d, const u32 *a, const u32 *b) {
    int lane = threadIdx.x;
    float acc[4];
    u32 ra[4], rb[2];
    for (int i = 0; i < 4; i++) acc[i] = d[lane * 4 + i];
    for (int i = 0; i < 4; i++) ra[i] = a[lane * 4 + i];
    for (int i = 0; i < 2; i++) rb[i] = b[lane * 2 + i];
    mma(acc, ra, rb);
    for (int i = 0; i < 4; i++) d[lane * 4 + i] = acc[i];
}

static void test_mma() {
    float A[16][16], B[16][8], D[16][8];
    for (auto &r : A) for (float &x : r) x = random_bf16();
    for (auto &r : B) for (float &x : r) x = random_bf16();
    for (auto &r : D) for (float &x : r) x = random_bf16();
    emu::Array<float> d(128);
    emu::Array<u32> a(128), b(64);
    u16 *ah = (u16 *)a.p, *bh = (u16 *)b.p;
    for (int lane = 0; lane < 32; lane++) {
        int group = lane >> 2, in_group = lane % 4;
        for (int i = 0; i < 8; i++) {
            int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8, col = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
            ah[lane * 8 + i] = from_float<bf16>(A[row][col]).bits;
        }
        for (int i = 0; i < 4; i++) {
            int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), col = group;
            bh[lane * 4 + i] = from_float<bf16>(B[row][col]).bits;
            d[lane * 4 + i] = D[i < 2 ? group : group + 8][in_group * 2 + (i & 1)];
        }
    }
    emu::launch(&one_mma, dim3(1), 32, 0, d.p, a.p, b.p);
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, col = lane % 4 * 2 + (i & 1);
            float want = D[row][col];
            for (int k = 0; k < 16; k++) want += A[row][k] * B[k][col];
            EQUAL(d[lane * 4 + i], want);
        }
    }
}

// o[16,W] = (q[16,W] * k[16,W]^T) * v[16,W], all three in shared memory, the way of
// attention: q and k through ldmatrix4, v transposed, and the product's fragments
// used again as the left operand.
const int W = 32;
KERNEL(32, attend, float *o, const bf16 *q, const bf16 *k, const bf16 *v) {
    bf16 *sq = (bf16 *)shared(), *sk = sq + 16 * W, *sv = sk + 16 * W;
    int lane = threadIdx.x;
    for (int i = lane * 8; i < 16 * W; i += 32 * 8) {
        copy_async(sq + i, q + i, true);
        copy_async(sk + i, k + i, true);
        copy_async(sv + i, v + i, true);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    float s[2][4] = {};  // columns 0 to 7, 8 to 15
    for (int e = 0; e < W; e += 16) {
        u32 a[4], b[4];
        ldmatrix4(a, sq + lane % 16 * W + e + lane / 16 * 8);
        ldmatrix4(b, sk + (lane / 16 * 8 + lane % 8) * W + e + lane / 8 % 2 * 8);
        u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        mma(s[0], a, b0);
        mma(s[1], a, b1);
    }
    u32 p[4] = {pack2(s[0][0], s[0][1]), pack2(s[0][2], s[0][3]), pack2(s[1][0], s[1][1]), pack2(s[1][2], s[1][3])};
    for (int e = 0; e < W; e += 16) {
        u32 b[4];
        float d[2][4] = {};
        ldmatrix4t(b, sv + lane % 16 * W + e + lane / 16 * 8);
        u32 b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        mma(d[0], p, b0);
        mma(d[1], p, b1);
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 4; i++) o[(lane / 4 + i / 2 * 8) * W + e + h * 8 + lane % 4 * 2 + i % 2] = d[h][i];
        }
    }
}

static void test_tiles() {
    emu::Array<bf16> q(16 * W), k(16 * W), v(16 * W);
    emu::Array<float> o(16 * W);
    for (int i = 0; i < 16 * W; i++) {
        q[i] = from_float<bf16>(random_bf16());
        k[i] = from_float<bf16>(random_bf16());
        v[i] = from_float<bf16>(random_bf16());
    }
    emu::launch(&attend, dim3(1), 32, 3 * 16 * W * 2, o.p, q.p, k.p, v.p);
    for (int r = 0; r < 16; r++) {
        float p[16];
        for (int c = 0; c < 16; c++) {
            float s = 0;
            for (int e = 0; e < W; e++) s += to_float(q[r * W + e]) * to_float(k[c * W + e]);
            p[c] = to_float(from_float<bf16>(s));
        }
        for (int e = 0; e < W; e++) {
            float want = 0;
            for (int c = 0; c < 16; c++) want += p[c] * to_float(v[c * W + e]);
            EQUAL(o[r * W + e], want);
        }
    }
}

KERNEL(32, copies, float *y, const float *x) {
    float *s = (float *)shared();
    if (threadIdx.x) return;
    for (int i = 0; i < 3; i++) {
        copy_async(s + 4 * i, x + 4 * i, i != 2);
        copy_commit();
    }
    copy_async(s + 12, x + 12, true);  // in no group
    for (int i = 0; i < 16; i++) y[i] = s[i];
    copy_wait<2>();
    for (int i = 0; i < 16; i++) y[16 + i] = s[i];
    copy_wait<1>();
    for (int i = 0; i < 16; i++) y[32 + i] = s[i];
    copy_wait<0>();
    for (int i = 0; i < 16; i++) y[48 + i] = s[i];
}

static void test_copies() {
    emu::Array<float> x(16), y(64);
    for (int i = 0; i < 16; i++) x[i] = float(i + 1);
    emu::launch(&copies, dim3(1), 32, 64, y.p, x.p);
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < 16; i++) {
            float g = y[stage * 16 + i];
            if (i / 4 < stage) {
                EQUAL(g, i / 4 == 2 ? 0 : i + 1);
            } else {
                CHECK(isnan(g));  // not there before the wait for it
            }
        }
    }
}

static void test_memory() {
    u8 *p = emu::guarded(1000);
    EQUAL(reinterpret_cast<size_t>(p) % 256, 0);
    EQUAL(p[0], 0xff);
    EQUAL(p[999], 0xff);
    EQUAL(emu::damaged(p, 1000), 0);
    p[1000] = 0;
    EQUAL(emu::damaged(p, 1000), 1);
    p[-1] = 0;
    EQUAL(emu::damaged(p, 1000), 2);
    emu::release(p, 1000);
}

// ---- the driver ----

typedef uint64_t Ptr;
extern "C" {
int cuInit(unsigned);
int cuDeviceGetAttribute(int *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(Ptr *, size_t);
int cuMemFree_v2(Ptr);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoD_v2(Ptr, const void *, size_t);
int cuMemcpyDtoH_v2(void *, Ptr, size_t);
int cuMemcpyHtoDAsync_v2(Ptr, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, Ptr, size_t, void *);
int cuMemcpyDtoDAsync_v2(Ptr, Ptr, size_t, void *);
int cuMemsetD32Async(Ptr, unsigned, size_t, void *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventDestroy_v2(void *);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventSynchronize(void *);
int cuEventElapsedTime(float *, void *, void *);
int cuModuleLoadData(void **, const void *);
int cuModuleLoadDataEx(void **, const void *, unsigned, const int *, void **);
int cuModuleUnload(void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuFuncSetAttribute(void *, int, int);
int cuFuncGetAttribute(int *, int, void *);
int cuFuncGetParamInfo(void *, size_t, size_t *, size_t *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuGraphDestroy(void *);
int cuGraphExecDestroy(void *);
int cuGetErrorName(int, const char **);
int cuMemAdvise();
void gadEmuFailAlloc(long);
long gadEmuAllocs();
long gadEmuPinned();
long gadEmuLaunches();
long gadEmuWork(int);
long gadEmuLeaks();
}

KERNEL(256, scale, float *y, float by, i64 n) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] *= by;
}
KERNEL(64, big, u8 *y, int n) {
    shared()[n - 1] = 7;
    *y = shared()[n - 1];
}
KERNEL(64, beyond, float *y, int at) { y[at] = 0; }

static const char ptx[] = R"(
// a comment
.version 8.4
.target sm_90
.address_size 64
.visible .entry scale(
	.param .u64 scale_param_0,
	.param .f32 scale_param_1,
	.param .u64 scale_param_2
)
.maxntid 256, 1, 1
{ ret; }
.visible .entry big(.param .u64 .ptr .align 1 p0, .param .u32 p1) .maxntid 64, 1, 1 { ret; }
.visible .entry beyond(.param .u64 p0, .param .u32 p1) .maxntid 64, 1, 1 { ret; }
.visible .entry not_compiled_in() { ret; }
)";

// replaced is ptx with one occurrence of from as to.
static std::string replaced(const char *from, const char *to) {
    std::string s = ptx;
    size_t at = s.find(from);
    CHECK(at != std::string::npos);
    return s.replace(at, strlen(from), to);
}

static void test_driver() {
    Ptr p = 0, q = 0;
    void *ctx = nullptr, *host = nullptr, *s = nullptr, *other = nullptr;
    EQUAL(cuMemAlloc_v2(&p, 16), 3);  // not initialized
    EQUAL(cuInit(0), 0);
    EQUAL(cuMemAlloc_v2(&p, 16), 201);  // no context
    EQUAL(cuDevicePrimaryCtxRetain(&ctx, 1), 101);
    EQUAL(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
    EQUAL(cuMemAlloc_v2(&p, 16), 201);
    EQUAL(cuCtxSetCurrent(&p), 201);
    EQUAL(cuCtxSetCurrent(ctx), 0);
    int v = 0;
    EQUAL(cuDeviceGetAttribute(&v, 97, 0), 0);
    EQUAL(v, 227 << 10);

    // Memory.
    size_t before, free, total;
    EQUAL(cuMemGetInfo_v2(&before, &total), 0);
    EQUAL(total, 4 << 20);
    EQUAL(cuMemAlloc_v2(&p, 0), 1);
    EQUAL(cuMemAlloc_v2(&p, total + 1), 2);
    EQUAL(cuMemAlloc_v2(&p, total), 0);
    EQUAL(cuMemAlloc_v2(&q, 1), 2);
    EQUAL(cuMemFree_v2(p), 0);
    EQUAL(cuMemFree_v2(p), 1);
    EQUAL(cuMemFree_v2(0), 0);
    EQUAL(cuMemAlloc_v2(&p, 1000), 0);
    EQUAL(p % 256, 0);
    EQUAL(cuMemFree_v2(p + 256), 1);
    EQUAL(cuMemGetInfo_v2(&free, &total), 0);
    EQUAL(before - free, 1024);
    EQUAL(cuMemAlloc_v2(&q, (1 << 20) - 1), 0);
    EQUAL(cuMemGetInfo_v2(&free, &total), 0);
    EQUAL(before - free, 1024 + (1 << 20));
    EQUAL(cuMemFree_v2(q), 0);
    EQUAL(cuMemAlloc_v2(&q, 1 << 20), 0); // in pages of 2 MiB from here on
    EQUAL(cuMemGetInfo_v2(&free, &total), 0);
    EQUAL(before - free, 1024 + (2 << 20));
    EQUAL(cuMemFree_v2(q), 0);
    gadEmuFailAlloc(1);
    EQUAL(cuMemAlloc_v2(&q, 1000), 0);
    EQUAL(cuMemHostAlloc(&host, 1000, 0), 2);
    EQUAL(cuMemHostAlloc(&host, 1000, 0), 0);
    EQUAL(gadEmuAllocs(), 2);
    float page[250], *pin = (float *)host;
    EQUAL(cuMemcpyDtoH_v2(page, p, 1000), 0);
    CHECK(isnan(page[0]) && isnan(page[249]));
    EQUAL(cuMemcpyDtoH_v2(page, p, 1001), 1);
    EQUAL(cuMemcpyDtoH_v2(page, p + 1, 1000), 1);
    EQUAL(cuMemcpyHtoD_v2((Ptr)page, page, 4), 1);
    EQUAL(cuMemFreeHost(page), 1);
    EQUAL(cuMemAdvise(), 801);

    // A stream's work happens when something waits for it; pinned memory is read
    // then, pageable memory at the call.
    EQUAL(cuStreamCreate(&s, 1), 0);
    EQUAL(cuStreamCreate(&other, 0), 0);
    pin[0] = page[0] = 1;
    EQUAL(cuMemcpyHtoDAsync_v2(p, pin, 4, s), 0);
    EQUAL(cuMemcpyHtoDAsync_v2(p + 4, page, 4, s), 0);
    pin[0] = page[0] = 2;
    EQUAL(cuMemcpyDtoHAsync_v2(pin + 1, p, 8, s), 0);
    pin[1] = 77;
    EQUAL(cuMemcpyDtoH_v2(page, p, 4), 0);  // the legacy stream does not wait for a non-blocking one
    CHECK(isnan(page[0]));
    EQUAL(pin[1], 77);
    EQUAL(cuStreamSynchronize(s), 0);
    EQUAL(pin[1], 2);
    EQUAL(pin[2], 1);
    EQUAL(cuMemsetD32Async(p, 0x40400000, 250, other), 0);
    EQUAL(cuMemcpyDtoH_v2(page, p, 1000), 0);  // but for a blocking one
    EQUAL(page[249], 3);
    EQUAL(cuMemsetD32Async(p + 2, 0, 1, s), 1);
    EQUAL(cuMemsetD32Async(p, 0, 251, s), 1);
    EQUAL(cuMemsetD32Async(p, 0, 1, &p), 400);
    EQUAL(cuMemcpyDtoDAsync_v2(p + 4, p, 8, s), 1);  // overlap

    // Events.
    void *e0 = nullptr, *e1 = nullptr;
    float ms = -1;
    EQUAL(cuEventCreate(&e0, 0), 0);
    EQUAL(cuEventCreate(&e1, 0), 0);
    EQUAL(cuEventElapsedTime(&ms, e0, e1), 400);
    EQUAL(cuEventRecord(e0, s), 0);
    EQUAL(cuMemsetD32Async(p, 0x40800000, 250, s), 0);
    EQUAL(cuEventRecord(e1, s), 0);
    EQUAL(cuEventElapsedTime(&ms, e0, e1), 600);
    EQUAL(cuStreamWaitEvent(other, e1, 0), 0);
    EQUAL(cuMemcpyDtoHAsync_v2(pin, p, 4, other), 0);
    EQUAL(cuEventQuery(e1), 600);
    EQUAL(cuStreamQuery(other), 600);
    EQUAL(cuStreamSynchronize(other), 0);
    EQUAL(pin[0], 4);  // after the other stream's fill
    EQUAL(cuEventQuery(e1), 0);
    EQUAL(cuEventSynchronize(e1), 0);
    EQUAL(cuEventElapsedTime(&ms, e0, e1), 0);
    CHECK(ms >= 0 && ms < 1000);
    EQUAL(cuEventDestroy_v2(e0), 0);
    EQUAL(cuEventDestroy_v2(e0), 400);

    // Modules: the PTX must fit the kernels that are compiled in.
    void *m = nullptr, *f = nullptr;
    EQUAL(cuModuleLoadData(&m, "no PTX"), 218);
    EQUAL(cuModuleLoadData(&m, replaced("8.4", "8.5").c_str()), 222);
    EQUAL(cuModuleLoadData(&m, replaced("sm_90", "sm_100").c_str()), 218);
    EQUAL(cuModuleLoadData(&m, replaced("sm_90", "sm_80a").c_str()), 218);
    EQUAL(cuModuleLoadData(&m, replaced(".f32 scale", ".f64 scale").c_str()), 218);
    EQUAL(cuModuleLoadData(&m, replaced(", .param .u32 p1", "").c_str()), 218);
    EQUAL(cuModuleLoadData(&m, replaced("256, 1, 1", "128, 1, 1").c_str()), 218);
    char log[64] = "";
    int options[] = {5, 6};
    void *values[] = {log, (void *)sizeof log};
    EQUAL(cuModuleLoadDataEx(&m, replaced("sm_90", "sm_100").c_str(), 2, options, values), 218);
    CHECK(strstr(log, "sm_100"));
    EQUAL(cuModuleLoadData(&m, replaced("sm_90", "sm_80").c_str()), 0);
    EQUAL(cuModuleUnload(m), 0);
    EQUAL(cuModuleUnload(m), 400);
    EQUAL(cuModuleLoadData(&m, ptx), 0);
    EQUAL(cuModuleGetFunction(&f, m, "not_compiled_in"), 500);
    EQUAL(cuModuleGetFunction(&f, m, "sum"), 500);  // compiled in, but not in the PTX
    EQUAL(cuModuleGetFunction(&f, m, "scale"), 0);
    size_t offset = 0, size = 0;
    EQUAL(cuFuncGetParamInfo(f, 2, &offset, &size), 0);
    EQUAL(offset, 16);
    EQUAL(size, 8);
    EQUAL(cuFuncGetParamInfo(f, 3, &offset, &size), 1);
    EQUAL(cuFuncGetAttribute(&v, 0, f), 0);
    EQUAL(v, 256);

    // Launches; the arguments are those of the call.
    float by = 2;
    i64 n = 250;
    void *params[] = {&p, &by, &n};
    auto launch = [&](unsigned grid, unsigned block, unsigned shared) { return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, s, params, nullptr); };
    EQUAL(launch(0, 32, 0), 1);
    EQUAL(launch(1, 0, 0), 1);
    EQUAL(launch(1, 1025, 0), 1);
    EQUAL(launch(1, 257, 0), 701);
    EQUAL(launch(1, 32, (48 << 10) + 1), 1);
    EQUAL(cuLaunchKernel(f, 1, 65536, 1, 32, 1, 1, 0, s, params, nullptr), 1);
    EQUAL(cuLaunchKernel(m, 1, 1, 1, 32, 1, 1, 0, s, params, nullptr), 400);
    long ran = gadEmuLaunches();
    EQUAL(launch(1, 256, 0), 0);
    by = 100;
    EQUAL(gadEmuLaunches(), ran);
    EQUAL(cuMemcpyDtoHAsync_v2(page, p, 1000, s), 0);  // to pageable memory: there at once
    EQUAL(gadEmuLaunches(), ran + 1);
    EQUAL(gadEmuWork(0), ran + 1);
    EQUAL(gadEmuWork(6), -1);
    EQUAL(page[249], 8);

    void *b = nullptr;
    EQUAL(cuModuleGetFunction(&b, m, "big"), 0);
    int bytes = 200 << 10;
    void *bparams[] = {&q, &bytes};
    EQUAL(cuLaunchKernel(b, 1, 1, 1, 1, 1, 1, bytes, s, bparams, nullptr), 1);
    EQUAL(cuFuncSetAttribute(b, 8, 228 << 10), 1);
    EQUAL(cuFuncSetAttribute(b, 8, bytes), 0);
    EQUAL(cuLaunchKernel(b, 1, 1, 1, 1, 1, 1, bytes, s, bparams, nullptr), 0);
    EQUAL(cuMemcpyDtoHAsync_v2(page, q, 4, s), 0);
    EQUAL(*(u8 *)page, 7);

    // Graphs: nothing runs while capturing; pinned memory is read at each replay.
    void *g = nullptr, *x = nullptr;
    EQUAL(cuStreamBeginCapture_v2(nullptr, 0), 900);
    EQUAL(cuStreamBeginCapture_v2(s, 0), 0);
    EQUAL(cuStreamBeginCapture_v2(s, 0), 401);
    EQUAL(cuMemcpyHtoDAsync_v2(p, pin, 1000, s), 0);
    by = 10;
    EQUAL(launch(1, 256, 0), 0);
    EQUAL(cuMemcpyDtoHAsync_v2(pin, p, 4, s), 0);
    ran = gadEmuLaunches();
    EQUAL(cuStreamEndCapture(s, &g), 0);
    EQUAL(cuGraphInstantiateWithFlags(&x, g, 0), 0);
    EQUAL(cuGraphDestroy(g), 0);
    by = 1000;
    pin[0] = 1;
    EQUAL(cuGraphLaunch(x, s), 0);
    EQUAL(cuGraphLaunch(x, s), 0);
    pin[0] = 3;
    EQUAL(gadEmuLaunches(), ran);
    EQUAL(cuStreamSynchronize(s), 0);
    EQUAL(gadEmuLaunches(), ran + 2);
    EQUAL(pin[0], 300);
    EQUAL(cuGraphExecDestroy(x), 0);
    EQUAL(cuGraphLaunch(x, s), 1);

    // What may not be done meanwhile spoils the capture.
    EQUAL(cuStreamEndCapture(s, &g), 401);
    for (int what = 0; what < 5; what++) {
        EQUAL(cuStreamBeginCapture_v2(s, what == 3 ? 2 : 0), 0);
        switch (what) {
        case 0: EQUAL(cuMemAlloc_v2(&p, 8), 900); break;
        case 1: EQUAL(cuCtxSynchronize(), 900); break;
        case 2: EQUAL(cuStreamSynchronize(s), 900); break;
        case 3: EQUAL(cuStreamSynchronize(s), 900); break;
        case 4: EQUAL(cuMemcpyHtoDAsync_v2(p, page, 4, s), 900); break;
        }
        EQUAL(launch(1, 256, 0), 901);
        EQUAL(cuStreamEndCapture(s, &g), 901);
        CHECK(g == nullptr);
    }
    EQUAL(cuStreamBeginCapture_v2(s, 2), 0);
    Ptr relaxed = 0;
    EQUAL(cuMemAlloc_v2(&relaxed, 8), 0);  // which a relaxed capture allows
    EQUAL(cuStreamEndCapture(s, &g), 0);
    EQUAL(cuGraphDestroy(g), 0);
    EQUAL(cuMemFree_v2(relaxed), 0);

    // Failures of work are found by whoever waits, and stay.
    auto fresh = [&](int code) {
        EQUAL(cuCtxSynchronize(), code);
        EQUAL(cuMemAlloc_v2(&q, 8), code);
        CHECK(says(std::to_string(gadEmuAllocs()), "2"));
        long leaks = gadEmuLeaks();
        EQUAL(cuDevicePrimaryCtxRelease_v2(0), 0);
        EQUAL(gadEmuLeaks(), leaks + 2);
        EQUAL(gadEmuAllocs(), 0);
        EQUAL(cuMemAlloc_v2(&q, 8), 201);
        EQUAL(cuDevicePrimaryCtxRetain(&ctx, 0), 0);
        EQUAL(cuCtxSetCurrent(ctx), 0);
        EQUAL(cuStreamSynchronize(s), 400);  // it went with the context
        EQUAL(cuStreamCreate(&s, 1), 0);
        EQUAL(cuMemAlloc_v2(&p, 1000), 0);
        EQUAL(cuMemAlloc_v2(&q, 1000), 0);
        EQUAL(cuModuleLoadData(&m, ptx), 0);
    };
    // Kernels reach pinned memory by the host's own address, and no other memory of the host.
    void *near = nullptr;
    long pins = gadEmuPinned();
    EQUAL(cuMemHostAlloc(&near, 1000, 0), 0);
    EQUAL(gadEmuPinned(), pins + 1);
    float ours[1] = {7};
    ((float *)near)[3] = 7;
    Ptr reached = (Ptr)near;
    int third = 3, zero = 0;
    void *reach[] = {&reached, &third};
    EQUAL(cuModuleGetFunction(&f, m, "beyond"), 0);
    EQUAL(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, reach, nullptr), 0);
    EQUAL(cuStreamSynchronize(s), 0);
    EQUAL(((float *)near)[3], 0);
    EQUAL(cuMemFreeHost(near), 0);
    reached = (Ptr)ours, reach[1] = &zero;
    EQUAL(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, reach, nullptr), 0);
    fresh(700);
    EQUAL(ours[0], 7);
    int at = 250;  // the first element behind the memory
    void *bad[] = {&p, &at};
    EQUAL(cuModuleGetFunction(&f, m, "beyond"), 0);
    EQUAL(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, bad, nullptr), 0);
    EQUAL(cuStreamQuery(s), 0);  // it ran; nobody has looked at the margins yet
    fresh(700);
    EQUAL(cuModuleGetFunction(&f, m, "beyond"), 0);
    at = 0;
    Ptr stale = p;
    bad[0] = &stale;
    EQUAL(cuMemFree_v2(p), 0);
    EQUAL(cuMemAlloc_v2(&p, 100000), 0);
    EQUAL(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, bad, nullptr), 0);
    fresh(700);  // a pointer to memory that was freed
    EQUAL(cuModuleGetFunction(&b, m, "big"), 0);
    bytes = 33;  // writes byte 32 of 32
    EQUAL(cuLaunchKernel(b, 1, 1, 1, 1, 1, 1, 32, s, bparams, nullptr), 0);
    fresh(719);
    const char *name = nullptr;
    EQUAL(cuGetErrorName(719, &name), 0);
    CHECK(says(name, "CUDA_ERROR_LAUNCH_FAILED"));
    EQUAL(cuGetErrorName(12345, &name), 1);
    EQUAL(cuMemFree_v2(p), 0);
    EQUAL(cuMemFree_v2(q), 0);
}

// ---- cuBLASLt ----

extern "C" {
int cublasLtCreate(void **);
int cublasLtDestroy(void *);
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescDestroy(void *);
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutDestroy(void *);
int cublasLtMatmulPreferenceCreate(void **);
int cublasLtMatmulPreferenceDestroy(void *);
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *, int *);
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *,
                   const void *, void *, size_t, void *);
}

// Result is cublasLtMatmulHeuristicResult_t.
struct Result {
    u64 algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static Ptr upload(const std::vector<float> &x, int type) {
    std::vector<bf16> narrow;
    for (float f : x) narrow.push_back(from_float<bf16>(f));
    Ptr p = 0;
    size_t bytes = x.size() * (type == 14 ? 2 : 4);
    EQUAL(cuMemAlloc_v2(&p, bytes), 0);
    EQUAL(cuMemcpyHtoD_v2(p, type == 14 ? (const void *)narrow.data() : x.data(), bytes), 0);
    return p;
}
static std::vector<float> download(Ptr p, size_t n, int type) {
    std::vector<float> x(n);
    std::vector<bf16> narrow(n);
    EQUAL(cuMemcpyDtoH_v2(type == 14 ? (void *)narrow.data() : x.data(), p, n * (type == 14 ? 2 : 4)), 0);
    if (type == 14) {
        for (size_t i = 0; i < n; i++) x[i] = to_float(narrow[i]);
    }
    return x;
}

static void test_lt() {
    void *h = nullptr, *pref = nullptr, *s = nullptr;
    EQUAL(cublasLtCreate(&h), 0);
    EQUAL(cublasLtMatmulPreferenceCreate(&pref), 0);
    EQUAL(cuStreamCreate(&s, 1), 0);
    u64 room = 1 << 16;
    u32 align = 16, reductions = 2;
    EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, 3, &reductions, 4), 0);
    EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, 1, &room, 4), 7);
    EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, 1, &room, 8), 0);
    EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, 99, &room, 8), 7);
    for (int i = 5; i <= 8; i++) EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, i, &align, 4), 0);
    Ptr space = 0;
    EQUAL(cuMemAlloc_v2(&space, room), 0);

    struct Case {
        int m, n, k, in, out, ta, tb;
        float alpha, beta;
        bool bias;
    } cases[] = {
        {1, 1, 1, 0, 0, 0, 0, 1, 0, false}, {16, 6, 8, 0, 0, 0, 0, 1, 0, false}, {17, 7, 33, 0, 0, 1, 0, 2, 1, true}, {40, 24, 64, 14, 0, 0, 1, 1, 1, false},
        {33, 19, 50, 14, 14, 1, 1, 0.5, 0, true}, {64, 48, 128, 14, 14, 0, 0, 1, 2, true}, {100, 90, 70, 14, 0, 1, 0, 1, 0, false},
    };
    for (const Case &c : cases) {
        int ra = c.ta ? c.k : c.m, ca = c.ta ? c.m : c.k, rb = c.tb ? c.n : c.k, cb = c.tb ? c.k : c.n;
        int lda = ra + 3, ldb = rb + 2, ldc = c.m + 5, ldd = c.m + 1;
        auto fill = [](size_t n) {
            std::vector<float> x(n);
            for (float &f : x) f = random_bf16();
            return x;
        };
        std::vector<float> a = fill(size_t(lda) * ca), b = fill(size_t(ldb) * cb), cc = fill(size_t(ldc) * c.n), bias = fill(c.m), dd(size_t(ldd) * c.n, 9);
        if (c.beta == 0) cc.assign(cc.size(), NAN);  // and then it is not read
        Ptr pa = upload(a, c.in), pb = upload(b, c.in), pc = upload(cc, c.out), pd = upload(dd, c.out), pbias = upload(bias, c.out);
        void *op = nullptr, *la = nullptr, *lb = nullptr, *lc = nullptr, *ld = nullptr;
        EQUAL(cublasLtMatmulDescCreate(&op, 68, 0), 0);
        EQUAL(cublasLtMatmulDescSetAttribute(op, 3, &c.ta, 4), 0);
        EQUAL(cublasLtMatmulDescSetAttribute(op, 4, &c.tb, 4), 0);
        if (c.bias) {
            int epilogue = 4;
            EQUAL(cublasLtMatmulDescSetAttribute(op, 7, &epilogue, 4), 0);
            EQUAL(cublasLtMatmulDescSetAttribute(op, 8, &pbias, 8), 0);
        }
        EQUAL(cublasLtMatrixLayoutCreate(&la, c.in, ra, ca, lda), 0);
        EQUAL(cublasLtMatrixLayoutCreate(&lb, c.in, rb, cb, ldb), 0);
        EQUAL(cublasLtMatrixLayoutCreate(&lc, c.out, c.m, c.n, ldc), 0);
        EQUAL(cublasLtMatrixLayoutCreate(&ld, c.out, c.m, c.n, ldd), 0);
        Result r[2];
        int count = 0;
        EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, la, lb, lc, ld, pref, 2, r, &count), 0);
        EQUAL(count, 1);
        EQUAL(r[0].state, 0);
        CHECK(r[0].workspace <= room);
        auto matmul = [&](Ptr A, Ptr D, size_t bytes) {
            return cublasLtMatmul(h, op, &c.alpha, (void *)A, la, (void *)pb, lb, &c.beta, (void *)pc, lc, (void *)D, ld, r[0].algo, (void *)space, bytes, s);
        };
        EQUAL(matmul(pa, pd, room), 0);
        EQUAL(cuStreamSynchronize(s), 0);
        std::vector<float> got = download(pd, dd.size(), c.out);
        auto at = [](const std::vector<float> &x, int i, int j, int ld, int t) { return t ? x[size_t(i) * ld + j] : x[size_t(j) * ld + i]; };
        double worst = 0;
        for (int j = 0; j < c.n; j++) {
            for (int i = 0; i < c.m; i++) {
                double want = 0;
                for (int l = 0; l < c.k; l++) want += double(at(a, i, l, lda, c.ta)) * at(b, l, j, ldb, c.tb);
                want *= c.alpha;
                if (c.beta != 0) want += c.beta * cc[size_t(j) * ldc + i];
                if (c.bias) want += bias[i];
                double error = fabs(got[size_t(j) * ldd + i] - want), bound = (c.out == 14 ? 0.004 : 2e-6) * (fabs(want) + 1);
                worst = error > bound || isnan(error) ? 1 : worst;
            }
            for (int i = c.m; i < ldd; i++) EQUAL(got[size_t(j) * ldd + i], 9);  // between the columns
        }
        EQUAL(worst, 0);

        // What was agreed is held to.
        EQUAL(matmul(pa + 8, pd, room), 7);
        EQUAL(matmul(pa, pd + 4, room), 7);
        EQUAL(matmul(pa, pd, r[0].workspace - 1), 7);
        r[0].algo[0]++;
        EQUAL(matmul(pa, pd, room), 7);
        for (Ptr p : {pa, pb, pc, pd, pbias}) EQUAL(cuMemFree_v2(p), 0);
        for (void *l : {la, lb, lc, ld}) EQUAL(cublasLtMatrixLayoutDestroy(l), 0);
        EQUAL(cublasLtMatmulDescDestroy(op), 0);
        EQUAL(cublasLtMatmulDescDestroy(op), 7);
    }

    void *op = nullptr, *l = nullptr, *narrow = nullptr, *tall = nullptr;
    EQUAL(cublasLtMatmulDescCreate(&op, 68, 0), 0);
    int v = 1;
    EQUAL(cublasLtMatmulDescSetAttribute(op, 3, &v, 8), 7);
    EQUAL(cublasLtMatmulDescSetAttribute(op, 12, &v, 4), 7);
    v = 3;
    EQUAL(cublasLtMatmulDescSetAttribute(op, 7, &v, 4), 7);
    EQUAL(cublasLtMatrixLayoutCreate(&l, 2, 8, 8, 8), 15);
    EQUAL(cublasLtMatrixLayoutCreate(&l, 0, 8, 8, 8), 0);
    EQUAL(cublasLtMatrixLayoutCreate(&narrow, 0, 8, 8, 7), 0);
    EQUAL(cublasLtMatrixLayoutCreate(&tall, 0, 9, 8, 9), 0);
    Result r;
    int count = 0;
    EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, l, l, l, narrow, pref, 1, &r, &count), 7);
    EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, l, tall, l, l, pref, 1, &r, &count), 7);
    EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, l, l, l, l, pref, 1, &r, &count), 0);

    // Who allows a sum to be split gets sums whose order is that of arrival, or whose parts are rounded.
    {
        const int n = 60;
        std::vector<float> x(n * n), y(n * n);
        for (float &f : x) f = random_bf16() * 1000;
        for (float &f : y) f = random_bf16();
        for (int type : {0, 14}) {
            Ptr px = upload(x, 14), py = upload(y, 14), pd = upload(x, type);
            void *lx = nullptr, *lo = nullptr;
            EQUAL(cublasLtMatrixLayoutCreate(&lx, 14, n, n, n), 0);
            EQUAL(cublasLtMatrixLayoutCreate(&lo, type, n, n, n), 0);
            void *plain = nullptr;
            EQUAL(cublasLtMatmulDescCreate(&plain, 68, 0), 0);
            std::vector<float> first;
            for (u32 mask : {2u, 7u, 1u, 6u, 4u, 2u}) {
                EQUAL(cublasLtMatmulPreferenceSetAttribute(pref, 3, &mask, 4), 0);
                EQUAL(cublasLtMatmulAlgoGetHeuristic(h, plain, lx, lx, lo, lo, pref, 1, &r, &count), 0);
                auto run = [&] {
                    float one = 1, none = 0;
                    EQUAL(cublasLtMatmul(h, plain, &one, (void *)px, lx, (void *)py, lx, &none, (void *)pd, lo, (void *)pd, lo, r.algo, (void *)space, room, s), 0);
                    EQUAL(cuStreamSynchronize(s), 0);
                    return download(pd, n * n, type);
                };
                std::vector<float> once = run(), again = run();
                if (first.empty()) first = once;
                CHECK((once == again) == !(mask & 1));
                CHECK((once == first) == (mask == 2 || (!(mask & 1) && type == 0)));
            }
            for (Ptr p : {px, py, pd}) EQUAL(cuMemFree_v2(p), 0);
            for (void *p : {lx, lo}) EQUAL(cublasLtMatrixLayoutDestroy(p), 0);
            EQUAL(cublasLtMatmulDescDestroy(plain), 0);
        }
        EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, l, l, l, l, pref, 1, &r, &count), 0);
    }

    // In a graph, and in the stream's order.
    std::vector<float> one(64, 1);
    Ptr a = upload(one, 0), d = upload(one, 0);
    float alpha = 1, beta = 0;
    void *g = nullptr, *x = nullptr;
    EQUAL(cuStreamBeginCapture_v2(s, 2), 0);
    EQUAL(cuMemsetD32Async(a, 0x40000000, 8, s), 0);
    Result asked;
    EQUAL(cublasLtMatmulAlgoGetHeuristic(h, op, l, l, l, l, pref, 1, &asked, &count), 14);
    EQUAL(cublasLtMatmul(h, op, &alpha, (void *)a, l, (void *)a, l, &beta, (void *)d, l, (void *)d, l, r.algo, (void *)space, room, s), 0);
    EQUAL(cuStreamEndCapture(s, &g), 0);
    EQUAL(cuGraphInstantiateWithFlags(&x, g, 0), 0);
    EQUAL(cuGraphDestroy(g), 0);
    EQUAL(download(d, 64, 0)[0], 1);
    for (int i = 0; i < 2; i++) {
        EQUAL(cuGraphLaunch(x, s), 0);
        EQUAL(cuStreamSynchronize(s), 0);
        std::vector<float> y = download(d, 64, 0);
        EQUAL(y[0], 18);  // a has twos in its first column: 2*2 + 7*1*2
        EQUAL(y[63], 9);  // 2*1 + 7*1*1
        EQUAL(cuMemcpyHtoD_v2(d, one.data(), 256), 0);
    }
    EQUAL(cuGraphExecDestroy(x), 0);
    for (Ptr p : {a, d, space}) EQUAL(cuMemFree_v2(p), 0);
    EQUAL(gadEmuAllocs(), 0);
    EQUAL(cublasLtDestroy(h), 0);
}

// ---- figures ----

KERNEL(256, spin, int n) {
    for (int i = 0; i < n; i++) __syncthreads();
}
KERNEL(256, warp_maxima, float *y, int n) {
    float x = (float)threadIdx.x;
    for (int i = 0; i < n; i++) x = warp_max(x);
    y[threadIdx.x] = x;
}
KERNEL(32, products, float *y, int n) {
    float d[4] = {};
    u32 a[4] = {1, 2, 3, 4}, b[2] = {5, 6};
    for (int i = 0; i < n; i++) mma(d, a, b);
    y[threadIdx.x] = d[0];
}

static double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// busy is this thread's own time, for what runs on it alone.
static double busy() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

static void bench() {
    double t = busy();
    emu::launch(&spin, dim3(1), 256, 0, 20000);
    printf("%.1f ns a switch between threads\n", (busy() - t) / (256 * 20000) * 1e9);
    emu::Array<float> y(256);
    t = busy();
    emu::launch(&warp_maxima, dim3(1), 256, 0, y.p, 4000);
    printf("%.0f ns a shuffle of a warp\n", (busy() - t) / (4000 * 5 * 8) * 1e9);
    t = busy();
    emu::launch(&products, dim3(1), 32, 0, y.p, 100000);
    printf("%.0f ns an mma of a warp\n", (busy() - t) / 100000 * 1e9);
    const i64 n = 1 << 20;
    emu::Array<float> x(n);
    memset(x.p, 0, n * 4);
    t = seconds();
    emu::launch(&scale, dim3(n / 256), 256, 0, x.p, 2.0f, n);
    printf("%.1f ns a thread without barriers\n", (seconds() - t) / n * 1e9);
    t = seconds();
    for (int i = 0; i < 1000; i++) emu::launch(&scale, dim3(2), 256, 0, x.p, 2.0f, i64(512));
    printf("%.1f us a launch of two blocks\n", (seconds() - t) / 1000 * 1e6);

    void *h = nullptr, *op = nullptr, *l = nullptr, *ctx = nullptr, *s = nullptr;
    Ptr a = 0, b = 0, d = 0;
    const int m = 1024;
    float one = 1, zero = 0;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&ctx, 0);
    cuCtxSetCurrent(ctx);
    cublasLtCreate(&h);
    cublasLtMatmulDescCreate(&op, 68, 0);
    cublasLtMatrixLayoutCreate(&l, 14, m, m, m);
    cuStreamCreate(&s, 1);
    for (Ptr *p : {&a, &b, &d}) cuMemAlloc_v2(p, m * m * 2);
    cuMemsetD32Async(a, 0x3f803f80, m * m / 2, s);
    cuMemsetD32Async(b, 0x3f803f80, m * m / 2, s);
    cuStreamSynchronize(s);
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        t = seconds();
        EQUAL(cublasLtMatmul(h, op, &one, (void *)a, l, (void *)b, l, &zero, (void *)d, l, (void *)d, l, nullptr, nullptr, 0, s), 0);
        cuStreamSynchronize(s);
        best = fmin(best, seconds() - t);
    }
    printf("%.1f GFLOP/s in cublasLtMatmul of 1024x1024x1024, bfloat16\n", 2.0 * m * m * m / best / 1e9);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return failures != 0;
    }
    setenv("GAD_EMU_MEMORY", "4M", 1);
    setenv("GAD_EMU_CC", "9.0", 1);
    test_fault();
    test_threads();
    test_errors();
    test_numbers();
    test_mma();
    test_tiles();
    test_copies();
    test_memory();
    test_driver();
    test_lt();
    printf(failures ? "emu: %d checks failed\n" : "emu: all checks hold\n", failures);
    return failures != 0;
}
