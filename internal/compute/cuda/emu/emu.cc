// Runs kernels on the host: each block on one host thread, its threads as fibers
// that change places only where CUDA lets them meet (barriers and operations of a
// warp). Who runs next is the scheduler's choice, so a missing barrier has
// consequences that repeat.
#include "emu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

// EMU_UCONTEXT takes the portable way of changing fibers where there is a faster one.
#if !defined(__x86_64__)
#define EMU_UCONTEXT
#endif
#include <ucontext.h>

namespace emu {

thread_local Fiber *now __attribute__((tls_model("initial-exec")));

// ---- fiber switch ----

static const size_t page = 4096, stack_bytes = 64 << 10;

// swap saves the callee's registers and the stack pointer in *save and goes on at
// to, which an earlier swap saved or prepare made.
#ifndef EMU_UCONTEXT
extern "C" void emu_swap(void **save, void *to) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .p2align 4
    .hidden emu_swap
    .globl emu_swap
    .type emu_swap, @function
emu_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_swap, .-emu_swap
)");
static void swap(void **save, void *to) { emu_swap(save, to); }

// prepare lays out the stack so that the first swap enters body.
static void *prepare(u8 *top, void (*body)()) {
    void **sp = reinterpret_cast<void **>(top);
    *--sp = nullptr;  // no return address: the stack is then as after a call
    *--sp = reinterpret_cast<void *>(body);
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    return sp;
}
#else
// Elsewhere a saved stack pointer is a ucontext_t: on the saver's own stack, or at the top of a new one.
static void swap(void **save, void *to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to));
}
static void *prepare(u8 *top, void (*body)()) {
    ucontext_t *c = reinterpret_cast<ucontext_t *>((reinterpret_cast<size_t>(top) - sizeof(ucontext_t)) & ~size_t(63));
    getcontext(c);
    u8 *low = top - stack_bytes / 2;
    c->uc_stack.ss_sp = low;
    c->uc_stack.ss_size = reinterpret_cast<u8 *>(c) - low;
    c->uc_link = nullptr;
    makecontext(c, body, 0);
    return c;
}
#endif

// ---- a running block ----

struct Copy {
    void *dst;
    const void *src;
    bool valid;
};
struct Copies {
    std::vector<Copy> list;
    std::vector<size_t> groups;  // where in list each committed group ends
};

// Chunk is what is known of 16 bytes of shared memory: which thread's copy landed
// there, and which warp's ldmatrix read it, each with the number of the barriers of
// its warp and of the block so far. The counters never start again, so that what
// an earlier block left says nothing.
struct Chunk {
    u64 landed_block, landed_warp, read_block, read_warp;
    int thread, reader;  // reader is -1 where several warps read
};

// Warp: each lane is in one of the masks or is the one that runs.
struct Warp {
    u32 ready, waiting, at_barrier, exited;
    const Collective *op;  // what the waiting lanes have called
    const char *file;
    int line;
    void *operand[32];
    u64 barriers;  // __syncwarps so far, in all blocks that this was
};

// Access is the last read or write of a word of memory in a launch, with the numbers of
// barriers as of Chunk. Where several have read it since, block or thread is -1, or thread
// several + the warp that all are in.
const int several = 1 << 20;
struct Access {
    size_t word = 0;  // its address / 4
    u64 launch = 0;
    i64 block = 0;
    u64 block_barriers = 0, warp_barriers = 0;
    int thread = 0;
    u8 bytes = 0;  // a mask
    const void *code = nullptr;
};

static const int max_threads = 1024;
static const size_t max_shared = 227 << 10, redzone = 256;
static const u8 canary = 0xa5;

struct Running : Block {
    const Kernel *kernel;
    void *const *params;
    int threads, warps, live, at_barrier;
    const char *file;  // of the barrier that threads wait at
    int line;
    bool descending, random;
    u64 rng, launch;
    i64 linear;  // this block's number
    void *scheduler;
    std::string error;
    std::vector<u8 *> stacks;  // not in use
    u8 *shared_end;
    Warp warp[max_threads / 32];
    Fiber fiber[max_threads];
    Copies copies[max_threads];
    u64 barriers = 1;  // __syncthreads and blocks so far
    Chunk chunk[(256 << 10) / 16] = {};

    Running();
    u32 pick(u32 mask);
    Fiber *choose(int w);
    void start(Fiber *f);
    void leave(Fiber *from, Fiber *to);
    void release_barrier();
    Fiber *finish(Fiber *f);
    std::string stuck() const;
    bool run(size_t linear, size_t bytes, u64 seed);
};

static Running &running() { return *static_cast<Running *>(now->block); }

static u8 *map_fenced(size_t bytes) {
    void *p = mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    u8 *body = static_cast<u8 *>(p) + page;
    if (mprotect(body, bytes, PROT_READ | PROT_WRITE)) {
        munmap(p, bytes + 2 * page);
        return nullptr;
    }
    return body;
}

Running::Running() {
    u8 *s = map_fenced(256 << 10);
    if (!s) die("emu: no memory for shared memory");
    shared_end = s + (256 << 10);
    for (int i = 0; i < max_threads; i++) {
        fiber[i] = Fiber{{0, 0, 0}, i / 32, i % 32, this, &copies[i], nullptr, nullptr};
    }
}

inline u32 Running::pick(u32 mask) {
    if (__builtin_expect(random, 0)) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        for (int skip = int((rng >> 33) % __builtin_popcount(mask)); skip > 0; skip--) mask &= mask - 1;
        return __builtin_ctz(mask);
    }
    return descending ? 31 - __builtin_clz(mask) : __builtin_ctz(mask);
}

// choose takes a ready thread, of warp w if there is one, or returns null.
inline Fiber *Running::choose(int w) {
    if (__builtin_expect(!warp[w].ready || random, 0)) {
        u32 some = 0;
        for (int i = 0; i < warps; i++) some |= u32(warp[i].ready != 0) << i;
        if (!some) return nullptr;
        w = pick(some);
    }
    u32 lane = pick(warp[w].ready);
    warp[w].ready &= ~(1u << lane);
    return &fiber[w * 32 + lane];
}

static void body();

// start gives f a stack. Their tops differ in their place within a page, or all
// would compete for the same cache lines.
void Running::start(Fiber *f) {
    if (stacks.empty()) {
        const int n = 32;
        for (int i = 0; i < n; i++) {
            u8 *s = map_fenced(stack_bytes);
            if (!s) die("emu: no memory for stacks");
            stacks.push_back(s + stack_bytes - size_t(i % 16) * 256);
        }
    }
    f->stack = stacks.back();
    stacks.pop_back();
    f->sp = prepare(f->stack, body);
}

// leave goes from a thread to another, or to the scheduler if there is none.
inline void Running::leave(Fiber *from, Fiber *to) {
    if (to == from) return;
    if (to && __builtin_expect(!to->sp, 0)) start(to);
    now = to;
    swap(&from->sp, to ? to->sp : scheduler);
}

void Running::release_barrier() {
    for (int i = 0; i < warps; i++) {
        warp[i].ready |= warp[i].at_barrier;
        warp[i].at_barrier = 0;
    }
    at_barrier = 0;
    barriers++;
    descending = !descending;
}

// finish is a thread's return from the kernel; who runs next.
Fiber *Running::finish(Fiber *f) {
    Warp &w = warp[f->warp];
    if (w.waiting) {
        fail("returns while lanes %08x of its warp wait in %s at %s:%d", w.waiting, w.op->name, w.file, w.line);
    }
    w.exited |= 1u << f->lane;
    live--;
    if (live && at_barrier == live) release_barrier();
    return choose(f->warp);
}

// body runs a thread, then the next ones as long as they have not begun: kernels
// without barriers need a single stack and no switch.
static void body() {
    for (;;) {
        Fiber *f = now;
        Running &r = running();
        r.kernel->call(r.params);
        Fiber *next = r.finish(f);
        if (next && !next->sp) {
            next->stack = f->stack;
            f->stack = nullptr;
            next->sp = next;  // not null: it has begun
            now = next;
            continue;
        }
        r.stacks.push_back(f->stack);  // nobody takes it before the switch
        f->stack = nullptr;
        r.leave(f, next);
    }
}

void fail(const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!now) die(std::string("emu: ") + text);
    Running &r = running();
    Fiber *f = now;
    char where[300];
    snprintf(where, sizeof where, "emu: kernel %s: block (%u,%u,%u): thread (%u,%u,%u): ", r.kernel->name, r.index.x,
             r.index.y, r.index.z, f->thread.x, f->thread.y, f->thread.z);
    r.error = std::string(where) + text;
    r.leave(f, nullptr);
    abort();  // a failed block is never resumed
}

static bool same(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

void barrier(const char *file, int line) {
    Fiber *f = now;
    Running &r = running();
    if (r.at_barrier == 0) {
        r.file = file;
        r.line = line;
    } else if (line != r.line || !same(file, r.file)) {
        fail("__syncthreads at %s:%d while %d threads wait in the one at %s:%d", file, line, r.at_barrier, r.file, r.line);
    }
    r.warp[f->warp].at_barrier |= 1u << f->lane;
    r.at_barrier++;
    if (r.at_barrier == r.live) r.release_barrier();
    r.leave(f, r.choose(f->warp));
}

void collect(const Collective &c, void *operand, const char *file, int line) {
    Fiber *f = now;
    Running &r = running();
    Warp &w = r.warp[f->warp];
    if (w.exited) fail("%s at %s:%d: lanes %08x of the warp do not exist or have returned", c.name, file, line, w.exited);
    if (w.waiting == 0) {
        w.op = &c;
        w.file = file;
        w.line = line;
    } else if (w.op != &c || w.line != line || !same(w.file, file)) {
        fail("%s at %s:%d while lanes %08x of its warp wait in %s at %s:%d", c.name, file, line, w.waiting, w.op->name, w.file, w.line);
    }
    w.operand[f->lane] = operand;
    w.waiting |= 1u << f->lane;
    if (w.waiting == 0xffffffffu) {
        c.run(w.operand);
        w.waiting = 0;
        w.ready = ~(1u << f->lane);
        return;
    }
    r.leave(f, r.choose(f->warp));
}

// stuck says why no thread can run.
std::string Running::stuck() const {
    char text[600];
    for (int i = 0; i < warps; i++) {
        const Warp &w = warp[i];
        if (!w.waiting) continue;
        snprintf(text, sizeof text, "emu: kernel %s: block (%u,%u,%u): warp %d: lanes %08x wait in %s at %s:%d for lanes %08x, which wait in __syncthreads at %s:%d",
                 kernel->name, index.x, index.y, index.z, i, w.waiting, w.op->name, w.file, w.line, w.at_barrier, file, line);
        return text;
    }
    snprintf(text, sizeof text, "emu: kernel %s: block (%u,%u,%u): %d of %d threads wait in __syncthreads at %s:%d for the others", kernel->name,
             index.x, index.y, index.z, at_barrier, live, file, line);
    return text;
}

// run is a block from start to end; false leaves the reason in error.
bool Running::run(size_t linear, size_t bytes, u64 seed) {
    this->linear = i64(linear);
    index = {u32(linear % grid.x), u32(linear / grid.x % grid.y), u32(linear / grid.x / grid.y)};
    threads = int(dim.x * dim.y * dim.z);
    warps = (threads + 31) / 32;
    live = threads;
    at_barrier = 0;
    barriers++;
    random = seed != 0;
    rng = seed * 0x9e3779b97f4a7c15ull + linear * 0xbf58476d1ce4e5b9ull;
    descending = linear & 1;
    error.clear();

    size_t room = (bytes + 127) / 128 * 128;
    shared = shared_end - room;
    shared_bytes = bytes;
    memset(shared - redzone, canary, redzone + room);
    memset(shared, 0xff, bytes);

    for (int i = 0; i < warps; i++) {
        u32 lanes = threads - i * 32 >= 32 ? 0xffffffffu : (1u << (threads - i * 32)) - 1;
        warp[i].ready = lanes;
        warp[i].exited = ~lanes;
        warp[i].waiting = warp[i].at_barrier = 0;
    }
    for (int i = 0; i < threads; i++) {
        u32 t = u32(i);
        fiber[i].thread = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
        fiber[i].sp = fiber[i].stack = nullptr;
        copies[i].list.clear();
        copies[i].groups.clear();
    }

    Fiber *first = choose(0);
    start(first);
    now = first;
    swap(&scheduler, first->sp);

    if (error.empty() && live > 0) error = stuck();
    for (int i = 0; i < threads; i++) {
        if (fiber[i].stack) stacks.push_back(fiber[i].stack);  // it failed, or others did
    }
    if (!error.empty()) return false;
    for (size_t i = 0; i < redzone + room; i++) {
        if (i == redzone) i += bytes;
        if (i < redzone + room && shared[i - redzone] != canary) {
            char text[300];
            snprintf(text, sizeof text, "emu: kernel %s: block (%u,%u,%u): byte %lld of %zu of shared memory was written", kernel->name,
                     index.x, index.y, index.z, (i64)i - (i64)redzone, bytes);
            error = text;
            return false;
        }
    }
    return true;
}

// ---- races ----

// Where the kernels are compiled with -fsanitize=thread (build.sh --races) the compiler
// calls the functions at the end of this file for each access to memory. Two accesses to a byte, one of
// them a write, by different threads of a launch are an error unless a barrier lies between them: of
// the block, or of the warp that both are in. Between blocks of a launch there is none. What is
// left out: atomics, volatile reads, which read what other blocks have announced, and a thread's own stack.
// A table remembers the last write and the last reads of a word as long as no others
// take their place, so a race may be missed, but none is made up.
static const size_t race_table = size_t(1) << 20;
static Access *race_writes, *race_reads;

// warp_of is the warp of an Access's thread or threads, or -1.
static int warp_of(int thread) { return thread >= several ? thread - several : thread < 0 ? -1 : thread / 32; }

static bool ordered(const Access &a, const Running &r, int thread, bool shared) {
    if (a.launch != r.launch) return true;
    if (a.block != r.linear) return shared; // each block has its own
    if (a.thread == thread || a.block_barriers != r.barriers) return true;
    return warp_of(a.thread) == thread / 32 && a.warp_barriers != r.warp[thread / 32].barriers;
}

static bool same_time(const Access &a, const Access &b) { return a.block_barriers == b.block_barriers && a.warp_barriers == b.warp_barriers; }

static void access(const void *p, size_t n, bool write, int thread, const void *code) {
    if (!race_writes || n == 0) return;
    Running &r = running();
    size_t at = reinterpret_cast<size_t>(p), top = reinterpret_cast<size_t>(now->stack);
    if (at < top && at >= top - stack_bytes) return;
    size_t end = reinterpret_cast<size_t>(r.shared_end);
    bool shared = at < end && at >= end - (256 << 10);
    for (size_t word = at / 4; word <= (at + n - 1) / 4; word++) {
        u8 bytes = 0;
        for (size_t b = word * 4; b < word * 4 + 4; b++) bytes |= u8(b >= at && b < at + n) << (b % 4);
        size_t slot = (word * 0x9e3779b97f4a7c15ull) >> 44;
        Access &w = race_writes[slot], &rd = race_reads[slot];
        auto check = [&](const Access &a, const char *what) {
            if (a.word != word || !(a.bytes & bytes) || ordered(a, r, thread, shared)) return;
            Dl_info lib{};
            dladdr(code, &lib);
            auto offset = [&](const void *c) { return reinterpret_cast<size_t>(c) - reinterpret_cast<size_t>(lib.dli_fbase); };
            fail("a race: thread %d %s at address %#zx (shared memory is %p) at code %#zx, which block %lld, thread %d %s at code %#zx, without a barrier between", thread,
                 write ? "writes" : "reads", at, static_cast<void *>(r.shared), offset(code), a.block, a.thread, what, offset(a.code));
        };
        check(w, "has written");
        Access mine{word, r.launch, r.linear, r.barriers, r.warp[thread / 32].barriers, thread, bytes, code};
        if (write) {
            check(rd, "has read");
            if (w.word == word && w.launch == mine.launch && w.block == mine.block && same_time(w, mine) && w.thread == thread) mine.bytes |= w.bytes;
            w = mine;
            continue;
        }
        if (rd.word == word && rd.launch == mine.launch && (rd.block == mine.block || !shared)) { // beside the reads that are known
            if (rd.block == mine.block && rd.thread == thread) {
                if (same_time(rd, mine)) mine.bytes |= rd.bytes;
            } else if (rd.bytes & bytes && (rd.block != mine.block || rd.block_barriers == mine.block_barriers)) {
                mine.bytes &= rd.bytes; // what all have read
                if (rd.block != mine.block) mine.block = -1;
                mine.thread = warp_of(rd.thread) == thread / 32 ? several + thread / 32 : -1;
            }
        }
        rd = mine;
    }
}

// ---- operations of a warp and asynchronous copies ----

void check_mask(u32 mask, const char *name) {
    if (mask != 0xffffffffu) fail("%s with the mask %08x: only full warps are allowed", name, mask);
}

void check_shared(const void *p, const char *name) {
    const u8 *b = static_cast<const u8 *>(p);
    const Block &k = *now->block;
    if (reinterpret_cast<size_t>(p) % 16) fail("%s: shared address %p is not a multiple of 16", name, p);
    if (b < k.shared || b + 16 > k.shared + k.shared_bytes) {
        fail("%s: offset %lld is outside of the %zu bytes of shared memory", name, (i64)(b - k.shared), k.shared_bytes);
    }
}

static void run_syncwarp(void *const *) { running().warp[now->warp].barriers++; }

// chunk_at is the record of 16 bytes of shared memory, which check_shared has seen.
static Chunk &chunk_at(const void *p) { return running().chunk[(static_cast<const u8 *>(p) - running().shared) / 16]; }

// A thread sees what others have copied only after a barrier of theirs and its own
// that follows their copy_wait; that all lanes meet in an ldmatrix orders nothing
// in memory. So this is an error even where the values come out right here.
static void note_reads(const char *name, void *const *lanes) {
    Running &r = running();
    int w = now->warp;
    for (int i = 0; i < 32; i++) {
        const u8 *row = static_cast<Ldmatrix *>(lanes[i])->row;
        Chunk &c = chunk_at(row);
        if (c.landed_block == r.barriers && (c.thread / 32 != w || c.landed_warp == r.warp[w].barriers)) {
            fail("%s at %s:%d: reads offset %lld, which thread %d has copied, without a barrier after its copy_wait", name, r.warp[w].file, r.warp[w].line,
                 (i64)(row - r.shared), c.thread);
        }
        access(row, 16, false, w * 32 + i, __builtin_return_address(0));
        c.reader = c.read_block == r.barriers && c.reader != w ? -1 : w;
        c.read_block = r.barriers;
        c.read_warp = r.warp[w].barriers;
    }
}

static void run_shuffle(void *const *lanes) {
    for (int i = 0; i < 32; i++) {
        Shuffle *s = static_cast<Shuffle *>(lanes[i]);
        s->result = s->from < 0 ? s->value : static_cast<Shuffle *>(lanes[s->from & 31])->value;
    }
}

static void run_ballot(void *const *lanes) {
    u32 all = 0;
    for (int i = 0; i < 32; i++) all |= static_cast<Ballot *>(lanes[i])->bit << i;
    for (int i = 0; i < 32; i++) static_cast<Ballot *>(lanes[i])->result = all;
}

// Lane 4g+t holds: of A rows g and g+8, columns 2t, 2t+1 and 8 more; of B the same
// places of k in column g; of C and D rows g and g+8, columns 2t and 2t+1. The sums
// run over k ascending; the products are exact.
static void run_mma(void *const *lanes) {
    typedef float float8 __attribute__((vector_size(32)));
    u32 A[16][16], B[16][8];
    float D[16][8];
    for (int g = 0; g < 8; g++) {
        for (int t = 0; t < 4; t++) {
            const Mma &m = *static_cast<Mma *>(lanes[4 * g + t]);
            for (int h = 0; h < 2; h++) {
                A[g][2 * t + 8 * h] = m.a[2 * h] << 16;
                A[g][2 * t + 8 * h + 1] = m.a[2 * h] & 0xffff0000u;
                A[g + 8][2 * t + 8 * h] = m.a[2 * h + 1] << 16;
                A[g + 8][2 * t + 8 * h + 1] = m.a[2 * h + 1] & 0xffff0000u;
                B[2 * t + 8 * h][g] = m.b[h] << 16;
                B[2 * t + 8 * h + 1][g] = m.b[h] & 0xffff0000u;
                memcpy(&D[g + 8 * h][2 * t], &m.d[2 * h], 8);
            }
        }
    }
    float8 b[16];
    memcpy(b, B, sizeof b);
    for (int i = 0; i < 16; i++) {
        float8 d;
        memcpy(&d, D[i], sizeof d);
        for (int k = 0; k < 16; k++) d += b[k] * __uint_as_float(A[i][k]);
        memcpy(D[i], &d, sizeof d);
    }
    for (int g = 0; g < 8; g++) {
        for (int t = 0; t < 4; t++) {
            float *d = static_cast<Mma *>(lanes[4 * g + t])->d;
            memcpy(d, &D[g][2 * t], 8);
            memcpy(d + 2, &D[g + 8][2 * t], 8);
        }
    }
}

// Lanes 8m to 8m+7 give the rows of matrix m; lane 4g+t gets row g, columns 2t and 2t+1.
static void run_ldmatrix(void *const *lanes) {
    note_reads("ldmatrix4", lanes);
    for (int i = 0; i < 32; i++) {
        for (int m = 0; m < 4; m++) {
            memcpy(&static_cast<Ldmatrix *>(lanes[i])->r[m], static_cast<Ldmatrix *>(lanes[8 * m + i / 4])->row + i % 4 * 4, 4);
        }
    }
}

// Transposed: lane 4g+t gets column g of rows 2t and 2t+1.
static void run_ldmatrix_trans(void *const *lanes) {
    note_reads("ldmatrix4t", lanes);
    for (int i = 0; i < 32; i++) {
        for (int m = 0; m < 4; m++) {
            u16 pair[2];
            for (int j = 0; j < 2; j++) memcpy(&pair[j], static_cast<Ldmatrix *>(lanes[8 * m + i % 4 * 2 + j])->row + i / 4 * 2, 2);
            static_cast<Ldmatrix *>(lanes[i])->r[m] = pair[0] | u32(pair[1]) << 16;
        }
    }
}

const Collective syncwarp{"__syncwarp", run_syncwarp}, shuffle{"a shuffle", run_shuffle}, ballot{"__ballot_sync", run_ballot},
    mma{"mma", run_mma}, ldmatrix{"ldmatrix4", run_ldmatrix}, ldmatrix_trans{"ldmatrix4t", run_ldmatrix_trans};

// note_copy says that the running thread copies to a chunk now.
static void note_copy(Chunk &c) {
    Running &r = running();
    c.landed_block = r.barriers;
    c.landed_warp = r.warp[now->warp].barriers;
    c.thread = now->warp * 32 + now->lane;
}

void copy_begin(void *dst, const void *src, bool valid, const char *file, int line) {
    check_shared(dst, "copy_async");
    Running &r = running();
    Chunk &c = chunk_at(dst);
    if (c.read_block == r.barriers && (c.reader != now->warp || c.read_warp == r.warp[now->warp].barriers)) {
        fail("copy_async at %s:%d: overwrites offset %lld, which an ldmatrix has read, without a barrier between", file, line,
             (i64)(static_cast<u8 *>(dst) - r.shared));
    }
    if (valid && reinterpret_cast<size_t>(src) % 16) fail("copy_async: global address %p is not a multiple of 16", src);
    note_copy(c);
    int thread = now->warp * 32 + now->lane;
    access(dst, 16, true, thread, __builtin_return_address(0));
    if (valid) access(src, 16, false, thread, __builtin_return_address(0));
    memset(dst, 0xff, 16);
    now->copies->list.push_back({dst, src, valid});
}

void copy_group() { now->copies->groups.push_back(now->copies->list.size()); }

void copy_finish(int newest) {
    Copies &c = *now->copies;
    if (c.groups.size() <= size_t(newest)) return;
    size_t groups = c.groups.size() - newest, end = c.groups[groups - 1];
    for (size_t i = 0; i < end; i++) {
        note_copy(chunk_at(c.list[i].dst));
        access(c.list[i].dst, 16, true, now->warp * 32 + now->lane, __builtin_return_address(0));
        if (c.list[i].valid) {
            memcpy(c.list[i].dst, c.list[i].src, 16);
        } else {
            memset(c.list[i].dst, 0, 16);
        }
    }
    c.list.erase(c.list.begin(), c.list.begin() + end);
    c.groups.erase(c.groups.begin(), c.groups.begin() + groups);
    for (size_t &g : c.groups) g -= end;
}

// ---- registry ----

static Kernel *registry;

Kernel::Kernel(const char *name, int bound, const void *address, void (*call)(void *const *), const size_t *sizes,
               const bool *pointers, int params)
    : name(name), bound(bound), address(address), call(call), sizes(sizes), pointers(pointers), params(params), next(registry) {
    registry = this;
}

Kernel *find(const char *name) {
    for (Kernel *k = registry; k; k = k->next) {
        if (strcmp(k->name, name) == 0) return k;
    }
    return nullptr;
}

Kernel *find(const void *address) {
    for (Kernel *k = registry; k; k = k->next) {
        if (k->address == address) return k;
    }
    return nullptr;
}

void die(const std::string &what) {
    fprintf(stderr, "%s\n", what.c_str());
    abort();
}

// ---- faults ----

static struct sigaction previous[NSIG];

// on_fault names the kernel's thread that faulted; other faults go where they went before.
static void on_fault(int sig, siginfo_t *info, void *context) {
    if (now) {
        const Fiber *f = now;
        const Running &r = running();
        size_t at = reinterpret_cast<size_t>(info->si_addr);
        Dl_info lib{};
#if defined(__x86_64__)
        size_t pc = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
        dladdr(reinterpret_cast<void *>(pc), &lib);
#else
        size_t pc = 0;
#endif
        char text[600];
        int n = snprintf(text, sizeof text,
                         "emu: kernel %s: block (%u,%u,%u): thread (%u,%u,%u): %s at address %#zx (shared memory is %p, %zu bytes; code %s+%#zx)\n",
                         r.kernel->name, r.index.x, r.index.y, r.index.z, f->thread.x, f->thread.y, f->thread.z,
                         sig == SIGSEGV || sig == SIGBUS ? "invalid access" : sig == SIGFPE ? "division by zero" : "illegal instruction", at,
                         static_cast<void *>(r.shared), r.shared_bytes, lib.dli_fname ? lib.dli_fname : "?",
                         pc - reinterpret_cast<size_t>(lib.dli_fbase));
        if (write(2, text, n) < 0) {}
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    const struct sigaction &p = previous[sig];
    if (p.sa_flags & SA_SIGINFO) return p.sa_sigaction(sig, info, context);
    if (p.sa_handler == SIG_DFL || p.sa_handler == SIG_IGN) {
        signal(sig, SIG_DFL);  // it happens again at once
        return;
    }
    p.sa_handler(sig);
}

static void watch_faults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction a {};
        a.sa_sigaction = on_fault;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&a.sa_mask);
        for (int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(sig, &a, &previous[sig]);
    });
    // A fiber that ran out of stack cannot run the handler on it.
    static thread_local bool has_stack;
    stack_t old{};
    if (!has_stack && sigaltstack(nullptr, &old) == 0 && (old.ss_flags & SS_DISABLE)) {
        stack_t s{};
        s.ss_sp = malloc(64 << 10);  // for as long as the thread lives
        s.ss_size = 64 << 10;
        sigaltstack(&s, nullptr);
    }
    has_stack = true;
}

// ---- a grid ----

// Pool is the host threads that share a grid with the caller. It is never destroyed.
struct Pool {
    std::mutex lock;
    std::condition_variable wake, idle;
    const std::function<void()> *job = nullptr;
    u64 round = 0;
    int busy = 0, size = 0;

    Pool() {
        const char *env = getenv("GAD_EMU_THREADS");
        size = env ? atoi(env) : int(std::thread::hardware_concurrency());
        size = size < 1 || race_writes ? 1 : size > 64 ? 64 : size;
        sigset_t all, old;  // signals that are not faults belong to the program's own threads
        sigfillset(&all);
        for (int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, sig);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        for (int i = 1; i < size; i++) std::thread([this] { work(); }).detach();
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
    }

    void work() {
        u64 seen = 0;
        std::unique_lock<std::mutex> l(lock);
        for (;;) {
            wake.wait(l, [&] { return round != seen; });
            seen = round;
            if (!job) continue;  // it was over before this thread woke
            const std::function<void()> *j = job;
            busy++;
            l.unlock();
            (*j)();
            l.lock();
            if (--busy == 0) idle.notify_all();
        }
    }

    // each runs job on the caller and, meanwhile, on others.
    void each(const std::function<void()> &j) {
        {
            std::lock_guard<std::mutex> l(lock);
            job = &j;
            round++;
        }
        wake.notify_all();
        j();
        std::unique_lock<std::mutex> l(lock);
        job = nullptr;
        idle.wait(l, [&] { return busy == 0; });
    }
};

void parallel(const std::function<void()> &job) {
    static Pool *pool = new Pool;
    static std::mutex one;
    std::lock_guard<std::mutex> l(one);
    pool->each(job);
}

// Blocks' state is kept for the next launch, as many as ever ran at once.
static std::mutex spare_lock;
static std::vector<Running *> spare;

static Running *take_running() {
    std::lock_guard<std::mutex> l(spare_lock);
    if (spare.empty()) return new Running;
    Running *r = spare.back();
    spare.pop_back();
    return r;
}

static void give_running(Running *r) {
    std::lock_guard<std::mutex> l(spare_lock);
    spare.push_back(r);
}

std::string execute(const Kernel &k, dim3 grid, dim3 block, size_t shared, void *const *params) {
    std::string name = std::string("emu: kernel ") + k.name + ": ";
    u64 blocks = u64(grid.x) * grid.y * grid.z, threads = u64(block.x) * block.y * block.z;
    if (blocks == 0 || threads == 0) return name + "an empty grid or block";
    if (grid.x >= 1u << 31 || grid.y > 65535 || grid.z > 65535) return name + "the grid is too large";
    if (threads > u64(k.bound) || threads > max_threads) {
        return name + "a block of " + std::to_string(threads) + " threads; its bound is " + std::to_string(k.bound);
    }
    if (shared > max_shared) return name + std::to_string(shared) + " bytes of shared memory; there are " + std::to_string(max_shared);

    static const char *shuffle = getenv("GAD_EMU_SHUFFLE");
    static std::atomic<u64> launches{0};
    const u64 seed = shuffle ? strtoull(shuffle, nullptr, 0) * 2 + 1 : 0, launch = launches++;
    // Blocks have no order: they run ascending, descending, or in steps of a random number.
    u64 step = launch & 1 ? blocks - 1 : 1, first = launch & 1 ? blocks - 1 : 0;
    if (seed) {
        u64 x = (seed + launch) * 0x9e3779b97f4a7c15ull;
        first = (x >> 32) % blocks;
        for (step = x % blocks; std::gcd(step, blocks) != 1; step = (step + 1) % blocks) {}
    }
    std::atomic<u64> next{0};
    std::string error;
    std::mutex error_lock;
    std::function<void()> work = [&] {
        watch_faults();
        Running *r = take_running();
        r->kernel = &k;
        r->params = params;
        r->grid = grid;
        r->dim = block;
        r->launch = launch + 1;
        for (u64 i; (i = next++) < blocks;) {
            if (!r->run((first + i % blocks * step) % blocks, shared, seed ? seed + launch * 0x94d049bb133111ebull : 0)) {
                std::lock_guard<std::mutex> l(error_lock);
                if (error.empty()) error = r->error;
                next = blocks;
            }
        }
        give_running(r);
    };
    if (blocks == 1) {
        work();
    } else {
        parallel(work);
    }
    return error;
}

// ---- guarded memory ----

static size_t round_to(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

u8 *guarded(size_t bytes) {
    size_t body = round_to(round_to(bytes, 256), page);
    u8 *low = map_fenced(body);
    if (!low) return nullptr;
    u8 *base = low + body - round_to(bytes, 256);
    memset(low, canary, base - low);
    memset(base, 0xff, bytes);
    memset(base + bytes, canary, low + body - base - bytes);
    return base;
}

size_t damaged(const u8 *base, size_t bytes) {
    size_t units = round_to(bytes, 256), n = 0;
    for (const u8 *p = base + units - round_to(units, page); p < base; p++) n += *p != canary;
    for (const u8 *p = base + bytes; p < base + units; p++) n += *p != canary;
    return n;
}

void release(u8 *base, size_t bytes) {
    size_t units = round_to(bytes, 256), body = round_to(units, page);
    munmap(base + units - body - page, body + 2 * page);
}

}  // namespace emu

// ---- undefined behaviour that the compiler's checks found ----

// Each handler's data begin with the place in the source.
struct Place {
    const char *file;
    u32 line, column;
};

#define EMU_UNDEFINED(handler, what)                                                                       \
    extern "C" void __ubsan_handle_##handler##_abort(const Place *p) __attribute__((visibility("hidden"))); \
    void __ubsan_handle_##handler##_abort(const Place *p) { emu::fail("%s:%u:%u: " what, p->file, p->line, p->column); }
EMU_UNDEFINED(type_mismatch_v1, "a misaligned access")
EMU_UNDEFINED(out_of_bounds, "an index outside of its array")
EMU_UNDEFINED(shift_out_of_bounds, "a shift by too much")
EMU_UNDEFINED(add_overflow, "a signed sum overflows")
EMU_UNDEFINED(sub_overflow, "a signed difference overflows")
EMU_UNDEFINED(mul_overflow, "a signed product overflows")
EMU_UNDEFINED(negate_overflow, "a negation overflows")
EMU_UNDEFINED(divrem_overflow, "a division by zero or an overflow")

// ---- what kernels compiled with -fsanitize=thread call ----

#define EMU_HIDDEN extern "C" __attribute__((visibility("hidden")))
#define EMU_NOTE(p, n, write) \
    if (emu::now) emu::access(p, n, write, emu::now->warp * 32 + emu::now->lane, __builtin_return_address(0))

EMU_HIDDEN void __tsan_init() {
    if (emu::race_writes) return;
    emu::race_writes = new emu::Access[emu::race_table];
    emu::race_reads = new emu::Access[emu::race_table];
}
EMU_HIDDEN void __tsan_func_entry(void *) {}
EMU_HIDDEN void __tsan_func_exit() {}
#define EMU_ACCESS(n)                                                                   \
    EMU_HIDDEN void __tsan_read##n(void *p) { EMU_NOTE(p, n, false); }                  \
    EMU_HIDDEN void __tsan_write##n(void *p) { EMU_NOTE(p, n, true); }                  \
    EMU_HIDDEN void __tsan_unaligned_read##n(void *p) { EMU_NOTE(p, n, false); }        \
    EMU_HIDDEN void __tsan_unaligned_write##n(void *p) { EMU_NOTE(p, n, true); }        \
    EMU_HIDDEN void __tsan_volatile_read##n(void *) {}                                  \
    EMU_HIDDEN void __tsan_volatile_write##n(void *p) { EMU_NOTE(p, n, true); }
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
EMU_HIDDEN void __tsan_read_range(void *p, size_t n) { EMU_NOTE(p, n, false); }
EMU_HIDDEN void __tsan_write_range(void *p, size_t n) { EMU_NOTE(p, n, true); }
EMU_HIDDEN void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
EMU_HIDDEN u32 __tsan_atomic32_fetch_add(u32 *p, u32 x, int) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
EMU_HIDDEN u64 __tsan_atomic64_fetch_add(u64 *p, u64 x, int) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
