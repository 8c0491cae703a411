// The stand-in for libcublasLt.so.12: matrix products D = alpha*op(A)*op(B) +
// beta*C (+ bias) with the real library's calls and layouts of what is not opaque.
// It knows what gad needs (float32 and bfloat16, transposes, a bias; columns
// first, one batch, scalars on the host) and refuses everything else, and it holds
// its caller to what was agreed: alignments, workspace, the shape that an
// algorithm was asked for. Each element is one chain of float32 sums over k
// ascending, whatever else is in the call, as long as the caller allows no other
// reduction than COMPUTE_TYPE. Where it allows INPLACE or OUTPUT_TYPE, the library
// takes that freedom: parts of k that arrive in another order at every call, or
// that are rounded to the result's type before they are added. With GAD_EMU_NO_PLANS
// set it has no algorithm for anything. With GAD_EMU_ALGORITHMS it offers three of one
// kind, of which the first is the slowest and, if it is "order", the last has another
// order of its sums.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

// From the stand-in for libcuda.so.1.
extern "C" {
int gadEmuPush(void *stream, int (*run)(void *), void *data, void (*drop)(void *));
int gadEmuOnDevice(const void *p, size_t n);
int gadEmuReady();
int gadEmuCapturing();
void gadEmuParallel(void (*job)(void *), void *data);
}

#define API extern "C" __attribute__((visibility("default")))

namespace {

// cublasStatus_t.
enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, INTERNAL_ERROR = 14, NOT_SUPPORTED = 15 };

// cudaDataType and cublasComputeType_t.
const int F32 = 0, BF16 = 14, COMPUTE_F32 = 68;
size_t size_of(int type) { return type == F32 ? 4 : 2; }

// cublasLtReductionScheme_t, a mask.
const uint32_t INPLACE = 1, OUTPUT_TYPE = 4;

const int OP_N = 0, EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4;

struct Handle {
    int unused;
};
struct Desc {
    int32_t compute, scale, pointer_mode, transa, transb, transc, epilogue, bias_type;
    const void *bias;
};
struct Layout {
    int32_t type, order, batch;
    uint64_t rows, cols;
    int64_t ld;
};
struct Preference {
    uint32_t search, reductions, align[4];
    uint64_t workspace;
};

// Algo is cublasLtMatmulAlgo_t's 64 bytes.
struct Algo {
    uint64_t magic, problem;
    uint32_t align[4];
    uint64_t workspace;
    uint64_t reduction;  // INPLACE, OUTPUT_TYPE or 0
    uint64_t variant;    // of those that are offered
    uint64_t unused;
};
static_assert(sizeof(Algo) == 64, "cublasLtMatmulAlgo_t has 8 words");
const uint64_t magic = 0x6761642d656d750aull;

struct HeuristicResult {
    Algo algo;
    size_t workspace;
    int32_t state;
    float waves;
    int32_t reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "cublasLtMatmulHeuristicResult_t has 96 bytes");

Status refuse(Status s, const char *why) {
    fprintf(stderr, "emu: cublasLt: %s\n", why);
    return s;
}

// Live objects; the handles are their addresses.
std::mutex lock;
template <class T> std::set<const T *> &live() {
    static auto *s = new std::set<const T *>;
    return *s;
}
template <class T> Status make(T **out, const T &value) {
    if (!out) return INVALID_VALUE;
    std::lock_guard<std::mutex> l(lock);
    *out = new T(value);
    live<T>().insert(*out);
    return SUCCESS;
}
template <class T> bool valid(const T *p) {
    std::lock_guard<std::mutex> l(lock);
    return live<T>().count(p);
}
template <class T> Status unmake(T *p) {
    std::lock_guard<std::mutex> l(lock);
    if (!live<T>().erase(p)) return INVALID_VALUE;
    delete p;
    return SUCCESS;
}

// put copies an attribute of exactly that many bytes; take gives it back.
template <class T> Status put(T *to, const void *from, size_t n) {
    if (!from || n != sizeof(T)) return refuse(INVALID_VALUE, "an attribute of the wrong size");
    memcpy(to, from, n);
    return SUCCESS;
}
template <class T> Status take(void *to, size_t n, size_t *written, const T &from) {
    if (written) *written = sizeof(T);
    if (n == 0 && written) return SUCCESS;
    if (!to || n != sizeof(T)) return INVALID_VALUE;
    memcpy(to, &from, n);
    return SUCCESS;
}

// ---- the product ----

const int MR = 16, NR = 6;  // of the inner kernel
typedef float v8 __attribute__((vector_size(32)));
struct alignas(64) Line {
    float f[16];
};

// Product is a piece of queued work.
struct Product {
    int64_t m, n, k, lda, ldb, ldc, ldd;
    bool transa, transb;
    int in, out;
    float alpha, beta;
    const void *a, *b, *c, *bias;
    void *d, *workspace;
    size_t space;
    uint64_t reduction;
    bool slow;

    std::vector<Line> ap, bp;  // panels of MR rows of op(A), a Line each k, and NR columns of op(B)
    std::atomic<int64_t> next;
    uint64_t turn;  // of INPLACE
};

float load(const void *p, int type, int64_t i) {
    if (type == F32) return static_cast<const float *>(p)[i];
    uint32_t u = uint32_t(static_cast<const uint16_t *>(p)[i]) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
void store(void *p, int type, int64_t i, float f) {
    if (type == F32) {
        static_cast<float *>(p)[i] = f;
        return;
    }
    uint32_t u;
    memcpy(&u, &f, 4);
    static_cast<uint16_t *>(p)[i] = (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// pack lays count rows from first of x, [rows,k] with the given strides, out by k; rows beyond are 0.
void pack(float *to, int width, const void *x, int type, int64_t first, int64_t rows, int64_t k, int64_t row, int64_t col) {
    for (int r = 0; r < width; r++) {
        for (int64_t i = 0; i < k; i++) to[i * width + r] = first + r < rows ? load(x, type, (first + r) * row + i * col) : 0;
    }
}

#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

// kernel: out[NR][MR] = sum over k of a[k][MR] * b[k][NR].
CLONES void kernel(float *out, const float *a, const float *b, int64_t k) {
    v8 acc[NR][2] = {};
    const v8 *av = reinterpret_cast<const v8 *>(a);
    for (int64_t i = 0; i < k; i++) {
        v8 lo = av[2 * i], hi = av[2 * i + 1];
#pragma GCC unroll 6
        for (int j = 0; j < NR; j++) {
            float f = b[NR * i + j];
            acc[j][0] += lo * f;
            acc[j][1] += hi * f;
        }
    }
    memcpy(out, acc, sizeof acc);
}

int64_t panels(int64_t n, int width) { return (n + width - 1) / width; }

// each calls f(p, i) for i < count on several threads.
template <void (*f)(Product &, int64_t)> void each(Product &p, int64_t count) {
    struct Job {
        Product &p;
        int64_t count;
    } job{p, count};
    p.next = 0;
    auto work = [](void *data) {
        Job &j = *static_cast<Job *>(data);
        for (int64_t i; (i = j.p.next++) < j.count;) f(j.p, i);
    };
    if (p.m * p.n * p.k < 1 << 16) {
        work(&job);
    } else {
        gadEmuParallel(work, &job);
    }
}

void pack_panel(Product &p, int64_t i) {
    int64_t rows = panels(p.m, MR);
    if (i < rows) {
        pack(reinterpret_cast<float *>(p.ap.data()) + i * MR * p.k, MR, p.a, p.in, i * MR, p.m, p.k, p.transa ? p.lda : 1, p.transa ? 1 : p.lda);
    } else {
        i -= rows;
        pack(reinterpret_cast<float *>(p.bp.data()) + i * NR * p.k, NR, p.b, p.in, i * NR, p.n, p.k, p.transb ? 1 : p.ldb, p.transb ? p.ldb : 1);
    }
}

const int PARTS = 3;  // of k, where it is split

std::atomic<uint64_t> calls;  // of products whose parts arrive in any order

// round is a value as it is after a store.
float round(float f, int type) {
    store(&f, type, 0, f);
    return load(&f, type, 0);
}

// split is kernel for a split k: the parts' sums, added one after the other.
void split(float *out, const Product &p, const float *a, const float *b, uint64_t turn) {
    std::fill(out, out + NR * MR, 0.0f);
    for (int i = 0; i < PARTS; i++) {
        int part = p.reduction == INPLACE ? int((i + turn) % PARTS) : i;
        int64_t lo = p.k * part / PARTS, hi = p.k * (part + 1) / PARTS;
        float sums[NR * MR];
        kernel(sums, a + lo * MR, b + lo * NR, hi - lo);
        for (int j = 0; j < NR * MR; j++) out[j] = p.reduction == OUTPUT_TYPE ? out[j] + round(sums[j], p.out) : round(out[j] + sums[j], p.out);
    }
}

// column_panel computes NR columns of D.
void column_panel(Product &p, int64_t panel) {
    const float *a = reinterpret_cast<const float *>(p.ap.data()), *b = reinterpret_cast<const float *>(p.bp.data()) + panel * NR * p.k;
    for (int64_t i = 0; i < p.m; i += MR) {
        float sums[NR][MR];
        if (p.reduction) {
            split(sums[0], p, a + i * p.k, b, p.turn);
        } else {
            kernel(sums[0], a + i * p.k, b, p.k);
        }
        for (int64_t j = panel * NR; j < std::min(p.n, panel * NR + NR); j++) {
            for (int64_t r = i; r < std::min(p.m, i + MR); r++) {
                float v = p.alpha * sums[j - panel * NR][r - i];
                if (p.beta != 0) v += p.beta * load(p.c, p.out, r + j * p.ldc);
                if (p.bias) v += load(p.bias, p.out, r);
                store(p.d, p.out, r + j * p.ldd, v);
            }
        }
    }
}

size_t extent(int64_t rows, int64_t cols, int64_t ld, int type) {
    return rows && cols ? size_t((cols - 1) * ld + rows) * size_of(type) : 0;
}

// run does a product, on a stream's turn: a CUresult.
int run(void *data) {
    Product &p = *static_cast<Product *>(data);
    auto there = [](const void *q, size_t n) { return n == 0 || gadEmuOnDevice(q, n); };
    if (!there(p.a, p.transa ? extent(p.k, p.m, p.lda, p.in) : extent(p.m, p.k, p.lda, p.in)) ||
        !there(p.b, p.transb ? extent(p.n, p.k, p.ldb, p.in) : extent(p.k, p.n, p.ldb, p.in)) ||
        !there(p.d, extent(p.m, p.n, p.ldd, p.out)) || (p.beta != 0 && !there(p.c, extent(p.m, p.n, p.ldc, p.out))) ||
        (p.bias && !there(p.bias, size_t(p.m) * size_of(p.out))) || !there(p.workspace, p.space)) {
        fprintf(stderr, "emu: cublasLt: a matrix of %lldx%lldx%lld is not inside one block of device memory\n", (long long)p.m, (long long)p.n, (long long)p.k);
        return 700;  // CUDA_ERROR_ILLEGAL_ADDRESS
    }
    if (p.space) memset(p.workspace, 0xff, p.space);
    if (p.slow) usleep(2000);
    p.turn = p.reduction == INPLACE ? calls++ : 0;
    p.ap.resize(size_t(panels(p.m, MR)) * p.k);
    p.bp.resize((size_t(panels(p.n, NR)) * NR * p.k + 15) / 16);
    each<pack_panel>(p, panels(p.m, MR) + panels(p.n, NR));
    each<column_panel>(p, panels(p.n, NR));
    std::vector<Line>().swap(p.ap);
    std::vector<Line>().swap(p.bp);
    return 0;
}

// ---- checks ----

// inspect holds the descriptors against each other.
Status inspect(const Handle *handle, const Desc *op, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
    if (!valid(handle)) return NOT_INITIALIZED;
    if (!valid(op) || !valid(a) || !valid(b) || !valid(c) || !valid(d)) return refuse(INVALID_VALUE, "a descriptor that does not exist");
    for (const Layout *l : {a, b, c, d}) {
        if (l->order != 0 || l->batch != 1) return NOT_SUPPORTED;
        if (l->ld < int64_t(l->rows)) return refuse(INVALID_VALUE, "a leading dimension below the number of rows");
    }
    uint64_t m = op->transa ? a->cols : a->rows, k = op->transa ? a->rows : a->cols;
    uint64_t kb = op->transb ? b->cols : b->rows, n = op->transb ? b->rows : b->cols;
    if (k != kb || c->rows != m || c->cols != n || d->rows != m || d->cols != n) return refuse(INVALID_VALUE, "shapes that do not fit");
    if (op->compute != COMPUTE_F32 || op->scale != F32 || op->pointer_mode != 0 || op->transc != 0) return NOT_SUPPORTED;
    if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != F32)) return NOT_SUPPORTED;
    if (op->bias_type != -1 && op->bias_type != d->type) return NOT_SUPPORTED;
    if (op->epilogue == EPILOGUE_BIAS && !op->bias) return refuse(INVALID_VALUE, "a bias epilogue without a bias");
    return SUCCESS;
}

// fingerprint is the same for two problems that an algorithm fits alike.
uint64_t fingerprint(const Desc *op, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
    uint64_t h = 14695981039346656037ull;
    auto add = [&](uint64_t x) { h = (h ^ x) * 1099511628211ull; h ^= h >> 29; };
    for (int32_t x : {op->compute, op->scale, op->transa, op->transb, op->epilogue}) add(uint64_t(x));
    for (const Layout *l : {a, b, c, d}) {
        add(uint64_t(l->type));
        add(l->rows);
        add(l->cols);
        add(uint64_t(l->ld));
    }
    return h;
}

const char *algorithms() {
    const char *env = getenv("GAD_EMU_ALGORITHMS");
    return env ? env : "";
}

const size_t scratch = 64 << 10;  // what an algorithm takes of the workspace that it may have

}  // namespace

API int cublasLtCreate(Handle **handle) {
    if (gadEmuReady()) return NOT_INITIALIZED;
    return make(handle, Handle{});
}
API int cublasLtDestroy(Handle *handle) { return unmake(handle); }
API size_t cublasLtGetVersion() { return 120405; }
API const char *cublasLtGetStatusName(int s) {
    switch (s) {
    case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

API int cublasLtMatmulDescCreate(Desc **d, int compute, int scale) {
    return make(d, Desc{compute, scale, 0, OP_N, OP_N, OP_N, EPILOGUE_DEFAULT, -1, nullptr});
}
API int cublasLtMatmulDescDestroy(Desc *d) { return unmake(d); }

// The attributes of a descriptor that this library knows, each with its field.
#define DESC_ATTRIBUTES(X) \
    X(0, compute) X(1, scale) X(2, pointer_mode) X(3, transa) X(4, transb) X(5, transc) X(7, epilogue) X(8, bias) X(26, bias_type)

API int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *value, size_t n) {
    if (!valid(d)) return INVALID_VALUE;
    Desc was = *d;
    Status s = INVALID_VALUE;
    switch (attribute) {
#define X(number, field) \
    case number: s = put(&d->field, value, n); break;
        DESC_ATTRIBUTES(X)
#undef X
    default: return refuse(INVALID_VALUE, "an attribute of a product that is not known here");
    }
    bool ok = d->transa >= 0 && d->transa <= 2 && d->transb >= 0 && d->transb <= 2 && (d->epilogue == EPILOGUE_DEFAULT || d->epilogue == EPILOGUE_BIAS) &&
              (d->bias_type == -1 || d->bias_type == F32 || d->bias_type == BF16);
    if (s == SUCCESS && !ok) s = refuse(INVALID_VALUE, "an attribute's value that is not known here");
    if (s) *d = was;
    return s;
}
API int cublasLtMatmulDescGetAttribute(Desc *d, int attribute, void *value, size_t n, size_t *written) {
    if (!valid(d)) return INVALID_VALUE;
    switch (attribute) {
#define X(number, field) \
    case number: return take(value, n, written, d->field);
        DESC_ATTRIBUTES(X)
#undef X
    }
    return INVALID_VALUE;
}

API int cublasLtMatrixLayoutCreate(Layout **l, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (type != F32 && type != BF16) return NOT_SUPPORTED;
    return make(l, Layout{type, 0, 1, rows, cols, ld});
}
API int cublasLtMatrixLayoutDestroy(Layout *l) { return unmake(l); }
API int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *value, size_t n) {
    if (!valid(l)) return INVALID_VALUE;
    switch (attribute) {
    case 0: return put(&l->type, value, n);
    case 1: return put(&l->order, value, n);
    case 2: return put(&l->rows, value, n);
    case 3: return put(&l->cols, value, n);
    case 4: return put(&l->ld, value, n);
    case 5: return put(&l->batch, value, n);
    }
    return refuse(INVALID_VALUE, "an attribute of a matrix that is not known here");
}

API int cublasLtMatmulPreferenceCreate(Preference **p) { return make(p, Preference{0, 7, {256, 256, 256, 256}, 0}); }
API int cublasLtMatmulPreferenceDestroy(Preference *p) { return unmake(p); }
API int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value, size_t n) {
    if (!valid(p)) return INVALID_VALUE;
    switch (attribute) {
    case 0: return put(&p->search, value, n);
    case 1: return put(&p->workspace, value, n);
    case 3: return put(&p->reductions, value, n);
    case 5:
    case 6:
    case 7:
    case 8: {
        uint32_t bytes = 0;
        Status s = put(&bytes, value, n);
        if (s) return s;
        if (bytes == 0 || bytes & (bytes - 1)) return refuse(INVALID_VALUE, "an alignment that is no power of two");
        p->align[attribute - 5] = bytes;
        return SUCCESS;
    }
    }
    return refuse(INVALID_VALUE, "an attribute of a preference that is not known here");
}

API int cublasLtMatmulAlgoGetHeuristic(Handle *handle, Desc *op, Layout *a, Layout *b, Layout *c, Layout *d, Preference *pref, int want,
                                       HeuristicResult *results, int *count) {
    if (!count || !results || want < 1 || !valid(pref)) return INVALID_VALUE;
    *count = 0;
    // So it is from CUDA 13.3 on.
    if (gadEmuCapturing()) return refuse(INTERNAL_ERROR, "the heuristics are asked while a stream is being captured");
    if (Status s = inspect(handle, op, a, b, c, d)) return s;
    if (getenv("GAD_EMU_NO_PLANS")) return SUCCESS;  // and none is found
    HeuristicResult r{};
    uint64_t reduction = pref->reductions & INPLACE ? INPLACE : pref->reductions & OUTPUT_TYPE && d->type != F32 ? OUTPUT_TYPE : 0;
    r.algo = {magic, fingerprint(op, a, b, c, d), {}, std::min<uint64_t>(pref->workspace, scratch), reduction, 0, 0};
    const Layout *layouts[] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        if (pref->align[i] < size_of(layouts[i]->type)) return NOT_SUPPORTED;
        r.algo.align[i] = pref->align[i];
    }
    r.workspace = r.algo.workspace;
    r.waves = 1;
    const char *several = algorithms();
    for (int i = 0; i < (*several ? std::min(want, 3) : 1); i++) {
        r.algo.variant = uint64_t(i);
        if (i == 2 && !strcmp(several, "order")) r.algo.reduction = INPLACE;
        results[(*count)++] = r;
    }
    return SUCCESS;
}

// An algorithm's kind, tile, parts of the sum and reduction scheme; nothing is told of the rest.
API int cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int attribute, void *value, size_t n, size_t *written) {
    if (!algo || algo->magic != magic) return INVALID_VALUE;
    const uint32_t told[] = {66, uint32_t(15 + algo->variant), 1, 0};
    return attribute < 0 || attribute > 3 ? NOT_SUPPORTED : take(value, n, written, told[attribute]);
}

API int cublasLtMatmul(Handle *handle, Desc *op, const void *alpha, const void *A, Layout *a, const void *B, Layout *b, const void *beta, const void *C,
                       Layout *c, void *D, Layout *d, const Algo *algo, void *workspace, size_t space, void *stream) {
    if (Status s = inspect(handle, op, a, b, c, d)) return s;
    if (!alpha || !beta || !A || !B || !D) return refuse(INVALID_VALUE, "a pointer that is null");
    std::unique_ptr<Product> p(new Product);
    memcpy(&p->alpha, alpha, 4);
    memcpy(&p->beta, beta, 4);
    if (p->beta != 0 && !C) return refuse(INVALID_VALUE, "beta without C");
    p->space = 0;
    p->slow = false;
    p->reduction = INPLACE;  // without an algorithm the library chooses one itself
    if (algo) {
        if (algo->magic != magic) return refuse(INVALID_VALUE, "an algorithm that the heuristics did not give");
        if (algo->problem != fingerprint(op, a, b, c, d)) return refuse(INVALID_VALUE, "an algorithm for another problem");
        const void *pointers[] = {A, B, p->beta != 0 ? C : D, D};
        for (int i = 0; i < 4; i++) {
            if (reinterpret_cast<uintptr_t>(pointers[i]) % algo->align[i]) return refuse(INVALID_VALUE, "a matrix is less aligned than the heuristics were told");
        }
        if (space < algo->workspace) return refuse(INVALID_VALUE, "less workspace than the algorithm needs");
        p->space = size_t(algo->workspace);
        p->reduction = algo->reduction;
        p->slow = *algorithms() && algo->variant == 0;
    }
    if (p->space && (!workspace || reinterpret_cast<uintptr_t>(workspace) % 256)) return refuse(INVALID_VALUE, "a workspace that is absent or not aligned to 256 bytes");
    p->m = int64_t(d->rows);
    p->n = int64_t(d->cols);
    p->k = int64_t(op->transa ? a->rows : a->cols);
    p->lda = a->ld;
    p->ldb = b->ld;
    p->ldc = c->ld;
    p->ldd = d->ld;
    p->transa = op->transa != OP_N;
    p->transb = op->transb != OP_N;
    p->in = a->type;
    p->out = d->type;
    p->a = A;
    p->b = B;
    p->c = C;
    p->d = D;
    p->bias = op->epilogue == EPILOGUE_BIAS ? op->bias : nullptr;
    // Its alignment is no preference: real kernels read it in pieces of up to 16 bytes.
    if (reinterpret_cast<uintptr_t>(p->bias) % 16) return refuse(INVALID_VALUE, "a bias that is not at 16 bytes");
    p->workspace = workspace;
    int r = gadEmuPush(stream, run, p.release(), [](void *data) { delete static_cast<Product *>(data); });
    return r ? EXECUTION_FAILED : SUCCESS;
}
