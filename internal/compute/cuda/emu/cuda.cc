// The stand-in for libcuda.so.1: one device, whose kernels are those compiled into
// this library. It behaves as the driver does where a program could depend on it,
// and chooses the less convenient of what the driver may do: streams run nothing
// until something waits for them, so that a missing wait shows. With GAD_EMU_EARLY set they
// run all at once, so that what is written after it was queued to be read shows.
//
// Environment: GAD_EMU_MEMORY bytes of device memory (suffix K, M or G; 8G),
// GAD_EMU_CC compute capability (9.0 or 8.0), GAD_EMU_DRIVER CUDA version (12040),
// GAD_EMU_DEVICES 0 or 1, GAD_EMU_TRACE=1 to name each entry point that is called
// but not emulated; and emu.h's.
#include "emu.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace emu {
void parallel(const std::function<void()> &job);
}

#define API extern "C" __attribute__((visibility("default")))

namespace {

// ---- results ----

typedef int CUresult;
typedef uint64_t CUdeviceptr;

#define RESULTS(X)                                                                      \
    X(0, SUCCESS, "no error")                                                           \
    X(1, INVALID_VALUE, "invalid argument")                                             \
    X(2, OUT_OF_MEMORY, "out of memory")                                                \
    X(3, NOT_INITIALIZED, "initialization error")                                       \
    X(100, NO_DEVICE, "no CUDA-capable device is detected")                             \
    X(101, INVALID_DEVICE, "invalid device ordinal")                                    \
    X(201, INVALID_CONTEXT, "invalid device context")                                   \
    X(218, INVALID_PTX, "a PTX JIT compilation failed")                                 \
    X(222, UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain") \
    X(400, INVALID_HANDLE, "invalid resource handle")                                   \
    X(401, ILLEGAL_STATE, "the operation cannot be performed in the present state")     \
    X(500, NOT_FOUND, "named symbol not found")                                         \
    X(600, NOT_READY, "device not ready")                                               \
    X(700, ILLEGAL_ADDRESS, "an illegal memory access was encountered")                 \
    X(701, LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")          \
    X(719, LAUNCH_FAILED, "unspecified launch failure")                                 \
    X(801, NOT_SUPPORTED, "operation not supported")                                    \
    X(900, STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") \
    X(901, STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture") \
    X(906, STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream") \
    X(908, STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread")

#define X(code, name, text) const CUresult name = code;
RESULTS(X)
#undef X

const struct {
    CUresult code;
    const char *name, *text;
} results[] = {
#define X(code, name, text) {code, "CUDA_ERROR_" #name, text},
    RESULTS(X)
#undef X
};

// say explains on stderr what a result code cannot.
void say(const std::string &what) { fprintf(stderr, "emu: %s\n", what.c_str()); }

// ---- state ----

// Op is a piece of work. It may run more than once, in a graph.
typedef std::function<CUresult()> Op;

struct Stream;

// Wait is a dependency: on the first n pieces of a stream's work.
struct Wait {
    Stream *stream;
    uint64_t n;
};

struct Capture {
    std::vector<Op> nodes;
    int mode;  // 0 global, 1 thread's, 2 relaxed
    bool invalid;
    const void *thread;
};

struct Stream {
    struct Entry {
        Op op;
        std::vector<Wait> waits;
    };
    bool blocking;  // ordered with the legacy stream
    unsigned flags;
    int priority;
    std::deque<Entry> queue;
    uint64_t queued, done;  // pieces of work ever
    std::unique_ptr<Capture> capture;
};

struct Event {
    unsigned flags;
    bool recorded;
    Wait mark;
    int64_t time;  // ns; of the last mark that was passed
};

struct Function {
    const emu::Kernel *kernel;
    size_t shared;  // dynamic shared memory that a launch may ask for
};

struct Module {
    std::map<std::string, Function> functions;
};

struct Graph {
    std::vector<Op> nodes;
};
struct Exec {
    std::vector<Op> nodes;
};

// Live is the objects of a kind that handles may name.
template <class T> struct Live {
    std::map<const void *, std::unique_ptr<T>> all;
    T *add() {
        std::unique_ptr<T> t(new T{});
        T *p = t.get();
        all[p] = std::move(t);
        return p;
    }
    T *get(const void *p) {
        auto i = all.find(p);
        return i == all.end() ? nullptr : i->second.get();
    }
};

struct Memory {
    size_t bytes;
    bool pinned;
};

// Device is everything. It is never destroyed: streams may be in use while the process ends.
struct Device {
    std::recursive_mutex lock;
    bool initialized = false;
    int retained = 0;             // of the primary context
    CUresult sticky = SUCCESS;    // the first failure of a piece of work; the context is lost then
    std::map<size_t, Memory> memory;  // by base
    size_t used = 0;
    bool ran = false;  // a kernel, since the bytes around memory were last checked
    Stream legacy{true, 0, 0, {}, 0, 0, nullptr};
    Live<Stream> streams;
    Live<Event> events;
    Live<Module> modules;
    Live<Graph> graphs;
    Live<Exec> execs;
    std::set<const void *> functions;
    long fail_alloc = -1, alloc_calls = 0, leaks = 0;
    long work[6] = {};  // see gadEmuWork
};
Device &dev = *new Device;

enum Work { KERNELS, PRODUCTS, COPIES, FILLS, COPIED, FILLED };

thread_local bool current;      // the primary context is this thread's
thread_local const char here = 0;  // its address is the thread's identity
char context, device_uuid;

size_t env_size(const char *name, size_t otherwise) {
    const char *v = getenv(name);
    if (!v || !*v) return otherwise;
    char *end;
    double n = strtod(v, &end);
    switch (*end) {
    case 'G': n *= 1024;  // fallthrough
        [[fallthrough]];
    case 'M': n *= 1024;
        [[fallthrough]];
    case 'K': n *= 1024;
    }
    return size_t(n);
}

size_t total_memory() { return env_size("GAD_EMU_MEMORY", size_t(8) << 30); }
int driver_version() { return int(env_size("GAD_EMU_DRIVER", 12040)); }
int cc() {
    const char *v = getenv("GAD_EMU_CC");
    return v && strcmp(v, "8.0") == 0 ? 80 : 90;
}
size_t max_shared() { return (cc() == 80 ? 163 : 227) << 10; }
const size_t default_shared = 48 << 10;

typedef std::lock_guard<std::recursive_mutex> Guard;

// ready is what every call that needs a context checks first.
CUresult ready() {
    if (!dev.initialized) return NOT_INITIALIZED;
    if (!current || dev.retained == 0) return INVALID_CONTEXT;
    return dev.sticky;
}
#define ENTER                                        \
    Guard guard(dev.lock);                           \
    if (CUresult result = ready()) return result

// ---- memory ----

// within reports whether n bytes at p lie in one allocation, and which.
const Memory *within(const void *p, size_t n) {
    size_t at = reinterpret_cast<size_t>(p);
    auto i = dev.memory.upper_bound(at);
    if (i == dev.memory.begin()) return nullptr;
    --i;
    size_t off = at - i->first;
    return off <= i->second.bytes && n <= i->second.bytes - off ? &i->second : nullptr;
}
bool on_device(const void *p, size_t n) {
    const Memory *m = within(p, n);
    return m && !m->pinned;
}
bool on_host(const void *p, size_t n) {  // in pinned memory, or in memory that is not ours at all
    const Memory *m = within(p, n);
    return m ? m->pinned : !within(p, 0) && p;
}
void *ptr(CUdeviceptr p) { return reinterpret_cast<void *>(p); }

// check_margins finds writes just outside of memory.
CUresult check_margins(size_t base, const Memory &m) {
    if (size_t n = emu::damaged(reinterpret_cast<u8 *>(base), m.bytes)) {
        char text[200];
        snprintf(text, sizeof text, "%zu bytes just outside of the %zu at %#zx were written", n, m.bytes, base);
        say(text);
        return dev.sticky = ILLEGAL_ADDRESS;
    }
    return SUCCESS;
}

// charge is what an allocation takes of the device's memory: one that is not small, pages of
// 2 MiB. A real driver's rule is not documented; this is what is seen of it.
size_t charge(size_t bytes) {
    size_t unit = bytes < size_t(1) << 20 ? 512 : size_t(2) << 20;
    return (bytes + unit - 1) / unit * unit;
}

CUresult allocate(void **out, size_t bytes, bool pinned) {
    dev.alloc_calls++;
    if (!out || bytes == 0) return INVALID_VALUE;
    if (dev.fail_alloc >= 0 && dev.fail_alloc-- == 0) return OUT_OF_MEMORY;
    if (!pinned && (bytes > total_memory() || charge(bytes) > total_memory() - dev.used)) return OUT_OF_MEMORY;
    u8 *p = emu::guarded(bytes);
    if (!p) return OUT_OF_MEMORY;
    dev.memory[reinterpret_cast<size_t>(p)] = {bytes, pinned};
    if (!pinned) dev.used += charge(bytes);
    *out = p;
    return SUCCESS;
}

CUresult deallocate(void *p, bool pinned) {
    auto i = dev.memory.find(reinterpret_cast<size_t>(p));
    if (i == dev.memory.end() || i->second.pinned != pinned) return INVALID_VALUE;
    CUresult r = check_margins(i->first, i->second);
    emu::release(static_cast<u8 *>(p), i->second.bytes);
    if (!pinned) dev.used -= charge(i->second.bytes);
    dev.memory.erase(i);
    return r;
}

// ---- streams ----

// run does the first n pieces of s's work, and what they wait for. After a
// failure the rest is dropped. Work that waits for another process says NOT_READY: it
// stays where it is, to be asked again.
void run(Stream *s, uint64_t n) {
    while (s->done < n) {
        Stream::Entry e = std::move(s->queue.front());
        s->queue.pop_front();
        s->done++;
        if (dev.sticky) continue;
        bool later = false;
        for (const Wait &w : e.waits) {
            run(w.stream, w.n);
            later = later || (w.stream->done < w.n && !dev.sticky);
        }
        if (dev.sticky) continue;
        CUresult r = later ? NOT_READY : e.op();
        if (r == NOT_READY) {
            s->queue.push_front(std::move(e));
            s->done--;
            return;
        }
        if (r) dev.sticky = r;
    }
}

// finish is run to the end.
void finish(Stream *s, uint64_t n) {
    for (run(s, n); s->done < n; run(s, n)) usleep(50);
}

// settle waits for s, or for everything.
CUresult settle(Stream *s) {
    if (s) {
        finish(s, s->queued);
    } else {
        finish(&dev.legacy, dev.legacy.queued);
        for (auto &i : dev.streams.all) finish(i.second.get(), i.second->queued);
    }
    if (dev.ran && !dev.sticky) {
        dev.ran = false;
        for (auto &i : dev.memory) {
            if (check_margins(i.first, i.second)) break;
        }
    }
    return dev.sticky;
}

// find_stream takes a CUstream: 0 and 1 are the legacy stream.
Stream *find_stream(const void *handle) {
    return reinterpret_cast<size_t>(handle) <= 1 ? &dev.legacy : dev.streams.get(handle);
}

// push adds work to a stream, or to what it captures. The legacy stream is
// ordered with all blocking streams, both ways.
CUresult push(Stream *s, Op op, std::vector<Wait> waits = {}) {
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        if (s->capture->invalid) return STREAM_CAPTURE_INVALIDATED;
        s->capture->nodes.push_back(std::move(op));
        return SUCCESS;
    }
    if (s == &dev.legacy) {
        for (auto &i : dev.streams.all) {
            Stream *o = i.second.get();
            if (!o->blocking) continue;
            if (o->capture) {
                o->capture->invalid = true;
                return STREAM_CAPTURE_IMPLICIT;
            }
            waits.push_back({o, o->queued});
        }
    } else if (s->blocking) {
        waits.push_back({&dev.legacy, dev.legacy.queued});
    }
    s->queue.push_back({std::move(op), std::move(waits)});
    s->queued++;
    static const bool early = getenv("GAD_EMU_EARLY");
    if (early) run(s, s->queued);
    return SUCCESS;
}

// refused spoils the captures that forbid a call: those of s, or with s null (a
// call that concerns no stream, or all) those of a mode up to strictest.
CUresult refused(Stream *s, int strictest = 2) {
    bool any = false;
    for (auto &i : dev.streams.all) {
        Capture *c = i.second->capture.get();
        if (!c || (s && s != i.second.get()) || (!s && (c->mode > strictest || (c->mode == 1 && c->thread != &here)))) continue;
        c->invalid = true;
        any = true;
    }
    return any ? STREAM_CAPTURE_UNSUPPORTED : SUCCESS;
}
#define NOT_WHILE_CAPTURING(...) \
    if (CUresult result = refused(__VA_ARGS__)) return result

// unsafe calls are those that only a relaxed capture allows meanwhile.
const int unsafe = 1;

// ---- copies ----

enum Place { device, host, either };

bool lies(Place place, const void *p, size_t n) {
    return place == device ? on_device(p, n) : place == host ? on_host(p, n) : on_device(p, n) || on_host(p, n);
}

// copy queues a copy of n bytes. Pinned memory is touched when it runs; pageable
// memory is read during the call, and written before its end.
CUresult copy(void *dst, Place to, const void *src, Place from, size_t n, Stream *s, bool wait) {
    if (!s) return INVALID_HANDLE;
    if (wait) NOT_WHILE_CAPTURING(nullptr, unsafe);
    if (n == 0) return SUCCESS;
    if (!lies(to, dst, n) || !lies(from, src, n)) return INVALID_VALUE;
    const u8 *d = static_cast<const u8 *>(dst), *f = static_cast<const u8 *>(src);
    if (d < f + n && f < d + n) {
        say("a copy's source and destination overlap");
        return INVALID_VALUE;
    }
    bool from_ours = within(src, n), to_ours = within(dst, n);
    if (s->capture && !(from_ours && to_ours)) {
        s->capture->invalid = true;  // the graph would keep an address that the host may use otherwise
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    std::shared_ptr<std::vector<u8>> staged;
    if (!from_ours) staged = std::make_shared<std::vector<u8>>(f, f + n);
    CUresult r = push(s, [=] {
        if ((from_ours && !within(src, n)) || (to_ours && !within(dst, n))) {
            say("a copy runs after its memory was freed");
            return ILLEGAL_ADDRESS;
        }
        memcpy(dst, staged ? staged->data() : src, n);
        dev.work[COPIES]++, dev.work[COPIED] += long(n);
        return SUCCESS;
    });
    if (r) return r;
    return wait || !to_ours ? settle(s) : SUCCESS;
}

template <class T> CUresult fill(CUdeviceptr dst, T value, size_t n, Stream *s) {
    if (!s) return INVALID_HANDLE;
    if (n == 0) return SUCCESS;
    T *p = static_cast<T *>(ptr(dst));
    if (dst % sizeof(T) || n > SIZE_MAX / sizeof(T) || !on_device(p, n * sizeof(T))) return INVALID_VALUE;
    return push(s, [=] {
        if (!within(p, n * sizeof(T))) {
            say("a fill runs after its memory was freed");
            return ILLEGAL_ADDRESS;
        }
        for (size_t i = 0; i < n; i++) p[i] = value;
        dev.work[FILLS]++, dev.work[FILLED] += long(n * sizeof(T));
        return SUCCESS;
    });
}

// ---- modules ----

// Scan reads PTX word by word: names and directives, numbers, single signs.
struct Scan {
    const char *p;
    std::string word() {
        for (;;) {
            while (*p && strchr(" \t\r\n", *p)) p++;
            if (p[0] == '/' && p[1] == '/') {
                while (*p && *p != '\n') p++;
            } else if (p[0] == '/' && p[1] == '*') {
                const char *end = strstr(p, "*/");
                p = end ? end + 2 : p + strlen(p);
            } else {
                break;
            }
        }
        auto inside = [](char c) { return isalnum((u8)c) || c == '_' || c == '$' || c == '.' || c == '%'; };
        const char *start = p;
        if (inside(*p)) {
            do p++;
            while (inside(*p) && *p != '.');
        } else if (*p) {
            p++;
        }
        return std::string(start, p);
    }
};

size_t type_size(const std::string &t) {
    if (t.size() < 3 || t[0] != '.' || !strchr("busf", t[1])) return 0;
    int bits = atoi(t.c_str() + 2);
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? bits / 8 : 0;
}

// parse reads a module's PTX, and holds what it says of each kernel against the
// one compiled in here; why says what does not fit.
CUresult parse(const char *text, Module *m, std::string *why) {
    Scan s{text};
    auto bad = [&](const std::string &what) {
        *why = what;
        return INVALID_PTX;
    };
    if (s.word() != ".version") return bad("not PTX: it does not begin with .version");
    std::string v = s.word();
    v += s.word();  // 8.4 reads as 8 and .4
    int major = 0, minor = 0;
    if (sscanf(v.c_str(), "%d.%d", &major, &minor) != 2) return bad("PTX without a version");
    int newest = (driver_version() / 1000 - 4) * 10 + driver_version() % 1000 / 10;
    if (major * 10 + minor > newest) {
        *why = "PTX " + v + " is newer than the driver";
        return UNSUPPORTED_PTX_VERSION;
    }
    if (s.word() != ".target") return bad("PTX without .target");
    std::string target = s.word();
    int sm = 0;
    char suffix = 0;
    if (sscanf(target.c_str(), "sm_%d%c", &sm, &suffix) < 1) return bad("PTX for the target " + target);
    if (sm > cc() || (suffix && sm != cc())) {
        return bad("PTX for " + target + " on a device of compute capability " + std::to_string(cc() / 10) + "." + std::to_string(cc() % 10));
    }
    if (s.word() != ".address_size" || s.word() != "64") return bad("PTX is not of 64 bits");

    const char directive[] = ".entry";
    while ((s.p = strstr(s.p, directive))) {
        s.p += strlen(directive);
        std::string w, name = s.word();
        std::vector<size_t> sizes;
        if (s.word() != "(") return bad("kernel " + name + ": no parameter list");
        size_t size = 0, count = 1;
        for (w = s.word(); w != ")" && !w.empty(); w = s.word()) {
            if (w == ".align") {
                s.word();
            } else if (size_t n = type_size(w)) {
                size = n;
            } else if (w == "[") {
                count = strtoull(s.word().c_str(), nullptr, 10);
            } else if (w == ",") {
                sizes.push_back(size * count);
                size = 0, count = 1;
            }
        }
        if (size) sizes.push_back(size * count);
        int bound = 0;
        for (w = s.word(); w != "{" && !w.empty(); w = s.word()) {
            if (w == ".maxntid") {
                bound = atoi(s.word().c_str());
            } else if (bound && w == ",") {
                bound *= atoi(s.word().c_str());
            } else if (w[0] == '.') {
                break;  // directives that follow; the body has no .entry
            }
        }
        const emu::Kernel *k = emu::find(name.c_str());
        if (!k) {
            say("kernel " + name + " is in the PTX but not in the emulated device");
            continue;
        }
        if (bound && bound != k->bound) {
            return bad("kernel " + name + ": blocks of at most " + std::to_string(bound) + " threads in the PTX, " + std::to_string(k->bound) + " in the source");
        }
        if (int(sizes.size()) != k->params) {
            return bad("kernel " + name + ": " + std::to_string(sizes.size()) + " parameters in the PTX, " + std::to_string(k->params) + " in the source");
        }
        for (int i = 0; i < k->params; i++) {
            if (sizes[i] != k->sizes[i]) {
                return bad("kernel " + name + ": parameter " + std::to_string(i) + " has " + std::to_string(sizes[i]) + " bytes in the PTX, " +
                           std::to_string(k->sizes[i]) + " in the source");
            }
        }
        m->functions[name] = {k, default_shared};
    }
    return SUCCESS;
}

CUresult load(void **module, const void *image, std::string *why) {
    if (!module || !image) return INVALID_VALUE;
    Module *m = dev.modules.add();
    CUresult r = parse(static_cast<const char *>(image), m, why);
    if (r) {
        say("module: " + *why);
        dev.modules.all.erase(m);
        return r;
    }
    for (auto &f : m->functions) dev.functions.insert(&f.second);
    *module = m;
    return SUCCESS;
}

Function *find_function(void *f) { return dev.functions.count(f) ? static_cast<Function *>(f) : nullptr; }

// launch runs a kernel whose parameters' bytes are in values. Pointers must be null
// or point into memory that is there now, or to its end.
CUresult launch(const emu::Kernel &k, dim3 grid, dim3 block, size_t shared, const std::vector<std::vector<u8>> &values) {
    std::vector<void *> params;
    for (int i = 0; i < k.params; i++) {
        params.push_back(const_cast<u8 *>(values[i].data()));
        if (!k.pointers[i]) continue;
        void *p;
        memcpy(&p, values[i].data(), sizeof p);
        if (p && !within(p, 0)) {
            char text[300];
            snprintf(text, sizeof text, "kernel %s: parameter %d is %p, which is in no memory that is allocated", k.name, i, p);
            say(text);
            return ILLEGAL_ADDRESS;
        }
    }
    dev.ran = true;
    dev.work[KERNELS]++;
    std::string wrong = emu::execute(k, grid, block, shared, params.data());
    if (wrong.empty()) return SUCCESS;
    fprintf(stderr, "%s\n", wrong.c_str());
    return LAUNCH_FAILED;
}

int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

// ---- control, for tests ----

// gadEmuFailAlloc makes the nth allocation from now, counted from 0, fail once; -1 none.
API void gadEmuFailAlloc(long n) {
    Guard guard(dev.lock);
    dev.fail_alloc = n;
}
// gadEmuAllocs is the number of blocks of device memory that are allocated, gadEmuPinned
// that of blocks of pinned host memory.
API long gadEmuAllocs() {
    Guard guard(dev.lock);
    long n = 0;
    for (auto &i : dev.memory) n += !i.second.pinned;
    return n;
}
API long gadEmuPinned() {
    Guard guard(dev.lock);
    return long(dev.memory.size()) - gadEmuAllocs();
}
// gadEmuAllocCalls is the number of calls for device or pinned memory so far,
// gadEmuLaunches that of kernels run, gadEmuLeaks that of blocks of device
// memory that were there when a context ended.
API long gadEmuAllocCalls() {
    Guard guard(dev.lock);
    return dev.alloc_calls;
}
API long gadEmuLaunches() {
    Guard guard(dev.lock);
    return dev.work[KERNELS];
}
// gadEmuWork is what has run so far, also as a part of graphs: 0 kernels, 1 products, 2
// copies, 3 fills, 4 bytes copied, 5 bytes filled.
API long gadEmuWork(int what) {
    Guard guard(dev.lock);
    return what >= 0 && what < 6 ? dev.work[what] : -1;
}
API long gadEmuLeaks() {
    Guard guard(dev.lock);
    return dev.leaks;
}

// ---- for the cuBLASLt stand-in ----

// gadEmuPush queues run(data) on a stream, as often as a graph replays it, and
// drop(data) after the last time. run returns a CUresult.
API int gadEmuPush(void *stream, int (*run)(void *), void *data, void (*drop)(void *)) {
    std::shared_ptr<void> kept(data, drop);
    ENTER;
    return push(find_stream(stream), [=] {
        dev.work[PRODUCTS]++;
        return run(kept.get());
    });
}
// gadEmuAwait is gadEmuPush of work that may say NOT_READY, and is no product.
API int gadEmuAwait(void *stream, int (*run)(void *), void *data, void (*drop)(void *)) {
    std::shared_ptr<void> kept(data, drop);
    ENTER;
    Stream *s = find_stream(stream);
    if (s && s->capture) return STREAM_CAPTURE_UNSUPPORTED;
    return push(s, [=] { return run(kept.get()); });
}
// gadEmuOnDevice reports whether n bytes at p are in one block of device memory.
API int gadEmuOnDevice(const void *p, size_t n) {
    Guard guard(dev.lock);
    return on_device(p, n);
}
API int gadEmuReady() {
    Guard guard(dev.lock);
    return ready();
}
// gadEmuCapturing reports whether any stream is being captured.
API int gadEmuCapturing() {
    Guard guard(dev.lock);
    for (auto &i : dev.streams.all) {
        if (i.second->capture) return 1;
    }
    return 0;
}
// gadEmuParallel calls job(data) on several threads at once.
API void gadEmuParallel(void (*job)(void *), void *data) {
    emu::parallel([=] { job(data); });
}

// ---- initialization, device, context ----

API CUresult cuInit(unsigned flags) {
    Guard guard(dev.lock);
    if (flags) return INVALID_VALUE;
    if (env_size("GAD_EMU_DEVICES", 1) == 0) return NO_DEVICE;
    dev.initialized = true;
    return SUCCESS;
}

API CUresult cuDriverGetVersion(int *v) {
    if (!v) return INVALID_VALUE;
    *v = driver_version();
    return SUCCESS;
}

API CUresult cuGetErrorName(CUresult code, const char **name) {
    for (auto &r : results) {
        if (r.code == code) return *name = code ? r.name : "CUDA_SUCCESS", SUCCESS;
    }
    *name = nullptr;
    return INVALID_VALUE;
}
API CUresult cuGetErrorString(CUresult code, const char **text) {
    for (auto &r : results) {
        if (r.code == code) return *text = r.text, SUCCESS;
    }
    *text = nullptr;
    return INVALID_VALUE;
}

#define DEVICE_CALL(ordinal)                              \
    Guard guard(dev.lock);                                \
    if (!dev.initialized) return NOT_INITIALIZED;         \
    if (ordinal != 0) return INVALID_DEVICE

API CUresult cuDeviceGetCount(int *n) {
    DEVICE_CALL(0);
    if (!n) return INVALID_VALUE;
    *n = 1;
    return SUCCESS;
}
API CUresult cuDeviceGet(int *d, int ordinal) {
    DEVICE_CALL(ordinal);
    if (!d) return INVALID_VALUE;
    *d = ordinal;
    return SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int size, int d) {
    DEVICE_CALL(d);
    if (!name || size < 1) return INVALID_VALUE;
    snprintf(name, size, "gad emulated device");
    return SUCCESS;
}
API CUresult cuDeviceTotalMem_v2(size_t *bytes, int d) {
    DEVICE_CALL(d);
    if (!bytes) return INVALID_VALUE;
    *bytes = total_memory();
    return SUCCESS;
}
API CUresult cuDeviceGetUuid(char *uuid, int d) {
    DEVICE_CALL(d);
    if (!uuid) return INVALID_VALUE;
    memset(uuid, device_uuid, 16);
    return SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(char *uuid, int d) { return cuDeviceGetUuid(uuid, d); }

// The attributes of an H200, or of an A100 with compute capability 8.0; those not listed are 0.
API CUresult cuDeviceGetAttribute(int *v, int attribute, int d) {
    DEVICE_CALL(d);
    if (!v || attribute < 1 || attribute > 200) return INVALID_VALUE;
    bool a100 = cc() == 80;
    static const std::map<int, int> values = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},              // threads of a block, its dimensions
        {5, 0x7fffffff}, {6, 65535}, {7, 65535},               // dimensions of a grid
        {8, int(default_shared)}, {9, 65536}, {10, 32},        // shared and constant memory, warp
        {11, 0x7fffffff}, {12, 65536}, {13, 1980000},          // pitch, registers of a block, clock in kHz
        {14, 512}, {15, 1}, {19, 1}, {31, 1}, {32, 1},         // overlap, host memory mapped, concurrent kernels, ECC
        {35, 0}, {36, 3201000}, {37, 6144}, {38, 62914560},    // memory clock and bus, level 2 cache
        {39, 2048}, {40, 3}, {41, 1}, {78, 1}, {82, 65536},    // threads of an SM, copy engines, one address space
        {83, 1}, {90, 1}, {106, 32}, {111, 1024},              // managed memory, preemption, blocks of an SM, reserved
    };
    switch (attribute) {
    case 16: *v = a100 ? 108 : 132; break;
    case 75: *v = cc() / 10; break;
    case 76: *v = cc() % 10; break;
    case 81: *v = int(max_shared()) + 1024; break;
    case 97: *v = int(max_shared()); break;
    default: {
        auto i = values.find(attribute);
        *v = i == values.end() ? 0 : i->second;
    }
    }
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(void **ctx, int d) {
    DEVICE_CALL(d);
    if (!ctx) return INVALID_VALUE;
    dev.retained++;
    *ctx = &context;
    return SUCCESS;
}

// The last release ends the context, with everything in it.
API CUresult cuDevicePrimaryCtxRelease_v2(int d) {
    DEVICE_CALL(d);
    if (dev.retained == 0) return INVALID_CONTEXT;
    if (--dev.retained) return SUCCESS;
    settle(nullptr);
    for (auto i = dev.memory.begin(); i != dev.memory.end(); i = dev.memory.begin()) {
        dev.leaks += !i->second.pinned;
        deallocate(reinterpret_cast<void *>(i->first), i->second.pinned);
    }
    dev.streams.all.clear();
    dev.events.all.clear();
    dev.modules.all.clear();
    dev.functions.clear();
    dev.graphs.all.clear();
    dev.execs.all.clear();
    dev.sticky = SUCCESS;
    return SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) {
    DEVICE_CALL(d);
    *flags = 0;
    *active = dev.retained > 0;
    return SUCCESS;
}

API CUresult cuCtxSetCurrent(void *ctx) {
    Guard guard(dev.lock);
    if (!dev.initialized) return NOT_INITIALIZED;
    if (ctx && (ctx != &context || dev.retained == 0)) return INVALID_CONTEXT;
    current = ctx != nullptr;
    return SUCCESS;
}
API CUresult cuCtxGetCurrent(void **ctx) {
    Guard guard(dev.lock);
    if (!dev.initialized) return NOT_INITIALIZED;
    if (!ctx) return INVALID_VALUE;
    *ctx = current ? &context : nullptr;
    return SUCCESS;
}
API CUresult cuCtxGetDevice(int *d) {
    ENTER;
    *d = 0;
    return SUCCESS;
}
API CUresult cuCtxSynchronize() {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr);
    return settle(nullptr);
}
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

// ---- memory ----

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER;
    if (!free || !total) return INVALID_VALUE;
    *total = total_memory();
    *free = *total - dev.used;
    return SUCCESS;
}
API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    void *q = nullptr;
    CUresult r = allocate(&q, p ? bytes : 0, false);
    if (r == SUCCESS) *p = reinterpret_cast<CUdeviceptr>(q);
    return r;
}
API CUresult cuMemFree_v2(CUdeviceptr p) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    if (CUresult r = settle(nullptr)) return r;
    return p ? deallocate(ptr(p), false) : SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    ENTER;
    auto i = dev.memory.upper_bound(p);
    if (i == dev.memory.begin() || !within(ptr(p), 1)) return NOT_FOUND;
    --i;
    if (base) *base = i->first;
    if (bytes) *bytes = i->second.bytes;
    return SUCCESS;
}
API CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    if (flags > 7) return INVALID_VALUE;
    return allocate(p, bytes, true);
}
API CUresult cuMemAllocHost_v2(void **p, size_t bytes) { return cuMemHostAlloc(p, bytes, 0); }
// cuMemFreeHost does not wait: queued work that uses the memory fails.
API CUresult cuMemFreeHost(void *p) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    return deallocate(p, true);
}

API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    ENTER;
    return copy(ptr(dst), either, ptr(src), either, n, &dev.legacy, true);
}
API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, void *s) {
    ENTER;
    return copy(ptr(dst), either, ptr(src), either, n, find_stream(s), false);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
    ENTER;
    return copy(ptr(dst), device, src, host, n, &dev.legacy, true);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, void *s) {
    ENTER;
    return copy(ptr(dst), device, src, host, n, find_stream(s), false);
}
API CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
    ENTER;
    return copy(dst, host, ptr(src), device, n, &dev.legacy, true);
}
API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, void *s) {
    ENTER;
    return copy(dst, host, ptr(src), device, n, find_stream(s), false);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
    ENTER;
    return copy(ptr(dst), device, ptr(src), device, n, &dev.legacy, false);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, void *s) {
    ENTER;
    return copy(ptr(dst), device, ptr(src), device, n, find_stream(s), false);
}

API CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char v, size_t n) {
    ENTER;
    return fill<u8>(dst, v, n, &dev.legacy);
}
API CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short v, size_t n) {
    ENTER;
    return fill<u16>(dst, v, n, &dev.legacy);
}
API CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned v, size_t n) {
    ENTER;
    return fill<u32>(dst, v, n, &dev.legacy);
}
API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, void *s) {
    ENTER;
    return fill<u8>(dst, v, n, find_stream(s));
}
API CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, void *s) {
    ENTER;
    return fill<u16>(dst, v, n, find_stream(s));
}
API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned v, size_t n, void *s) {
    ENTER;
    return fill<u32>(dst, v, n, find_stream(s));
}

// ---- streams and events ----

API CUresult cuStreamCreateWithPriority(void **s, unsigned flags, int priority) {
    ENTER;
    if (!s || flags > 1) return INVALID_VALUE;
    Stream *n = dev.streams.add();
    n->blocking = flags == 0;
    n->flags = flags;
    n->priority = priority;
    *s = n;
    return SUCCESS;
}
API CUresult cuStreamCreate(void **s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }
// cuStreamDestroy does the rest of the stream's work first; events that it marked are passed then.
API CUresult cuStreamDestroy_v2(void *handle) {
    ENTER;
    Stream *s = dev.streams.get(handle);
    if (!s) return INVALID_HANDLE;
    for (auto &i : dev.streams.all) finish(i.second.get(), i.second->queued);  // others may wait for it
    finish(&dev.legacy, dev.legacy.queued);
    for (auto &e : dev.events.all) {
        if (e.second->mark.stream == s) e.second->mark = {&dev.legacy, 0};
    }
    dev.streams.all.erase(s);
    return dev.sticky;
}
API CUresult cuStreamGetFlags(void *handle, unsigned *flags) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    *flags = s->flags;
    return SUCCESS;
}
API CUresult cuStreamGetPriority(void *handle, int *priority) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    *priority = s->priority;
    return SUCCESS;
}
API CUresult cuStreamSynchronize(void *handle) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(s);
    if (s == &dev.legacy) push(s, [] { return SUCCESS; });  // it comes after the blocking streams' work
    return settle(s);
}
// cuStreamQuery and cuEventQuery let one piece of work happen and then look.
API CUresult cuStreamQuery(void *handle) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(s);
    if (s->done < s->queued) run(s, s->done + 1);
    return dev.sticky ? dev.sticky : s->done < s->queued ? NOT_READY : SUCCESS;
}
API CUresult cuStreamWaitEvent(void *handle, void *event, unsigned flags) {
    ENTER;
    Stream *s = find_stream(handle);
    Event *e = dev.events.get(event);
    if (!s || !e) return INVALID_HANDLE;
    if (flags) return INVALID_VALUE;
    NOT_WHILE_CAPTURING(s);
    if (!e->recorded) return SUCCESS;
    return push(s, [] { return SUCCESS; }, {e->mark});
}

API CUresult cuEventCreate(void **event, unsigned flags) {
    ENTER;
    if (!event || flags > 7) return INVALID_VALUE;
    Event *e = dev.events.add();
    e->flags = flags;
    *event = e;
    return SUCCESS;
}
API CUresult cuEventDestroy_v2(void *event) {
    ENTER;
    return dev.events.all.erase(event) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuEventRecord(void *event, void *handle) {
    ENTER;
    Stream *s = find_stream(handle);
    Event *e = dev.events.get(event);
    if (!s || !e) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(s);
    CUresult r = push(s, [=] {
        if (dev.events.get(event)) e->time = nanoseconds();
        return SUCCESS;
    });
    if (r) return r;
    e->recorded = true;
    e->mark = {s, s->queued};
    return SUCCESS;
}
API CUresult cuEventSynchronize(void *event) {
    ENTER;
    Event *e = dev.events.get(event);
    if (!e) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    if (e->recorded) finish(e->mark.stream, e->mark.n);
    return dev.sticky;
}
API CUresult cuEventQuery(void *event) {
    ENTER;
    Event *e = dev.events.get(event);
    if (!e) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    if (!e->recorded || e->mark.stream->done >= e->mark.n) return SUCCESS;
    run(e->mark.stream, e->mark.stream->done + 1);
    return dev.sticky ? dev.sticky : e->mark.stream->done < e->mark.n ? NOT_READY : SUCCESS;
}
API CUresult cuEventElapsedTime(float *ms, void *from, void *to) {
    ENTER;
    Event *a = dev.events.get(from), *b = dev.events.get(to);
    const unsigned no_timing = 2;
    if (!a || !b || !a->recorded || !b->recorded || (a->flags | b->flags) & no_timing) return INVALID_HANDLE;
    if (!ms) return INVALID_VALUE;
    for (Event *e : {a, b}) {
        if (e->mark.stream->done < e->mark.n) return NOT_READY;
    }
    *ms = float(double(b->time - a->time) / 1e6);
    return SUCCESS;
}
API CUresult cuEventElapsedTime_v2(float *ms, void *from, void *to) { return cuEventElapsedTime(ms, from, to); }

// ---- modules and launches ----

API CUresult cuModuleLoadData(void **module, const void *image) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    std::string why;
    return load(module, image, &why);
}
// cuModuleLoadDataEx knows the options for logs; a buffer's size is replaced by the text's.
API CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned n, const int *options, void **values) {
    ENTER;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    std::string why;
    CUresult r = load(module, image, &why);
    const int info_log = 3, error_log = 5;
    for (int which : {info_log, error_log}) {
        void **buffer = nullptr, **size = nullptr;
        for (unsigned i = 0; i < n; i++) {
            if (options[i] == which) buffer = &values[i];
            if (options[i] == which + 1) size = &values[i];
        }
        if (!size) continue;
        size_t room = reinterpret_cast<size_t>(*size) & 0xffffffff, length = 0;
        if (buffer && *buffer && room) {
            const std::string &text = which == error_log ? why : std::string();
            length = text.size() < room ? text.size() : room - 1;
            memcpy(*buffer, text.data(), length);
            static_cast<char *>(*buffer)[length] = 0;
        }
        *size = reinterpret_cast<void *>(length);
    }
    return r;
}
API CUresult cuModuleUnload(void *module) {
    ENTER;
    Module *m = dev.modules.get(module);
    if (!m) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(nullptr, unsafe);
    for (auto &f : m->functions) dev.functions.erase(&f.second);
    dev.modules.all.erase(m);
    return SUCCESS;
}
API CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER;
    Module *m = dev.modules.get(module);
    if (!m) return INVALID_HANDLE;
    if (!function || !name) return INVALID_VALUE;
    auto f = m->functions.find(name);
    if (f == m->functions.end()) return NOT_FOUND;
    *function = &f->second;
    return SUCCESS;
}

const int attr_threads = 0, attr_ptx = 5, attr_binary = 6, attr_shared = 8, attr_carveout = 9;

API CUresult cuFuncGetAttribute(int *v, int attribute, void *function) {
    ENTER;
    Function *f = find_function(function);
    if (!f) return INVALID_HANDLE;
    if (!v || attribute < 0 || attribute > 15) return INVALID_VALUE;
    switch (attribute) {
    case attr_threads: *v = f->kernel->bound; break;
    case attr_ptx:
    case attr_binary: *v = cc(); break;
    case attr_shared: *v = int(f->shared); break;
    default: *v = 0;
    }
    return SUCCESS;
}
API CUresult cuFuncSetAttribute(void *function, int attribute, int v) {
    ENTER;
    Function *f = find_function(function);
    if (!f) return INVALID_HANDLE;
    if (attribute == attr_carveout) return v < -1 || v > 100 ? INVALID_VALUE : SUCCESS;
    if (attribute != attr_shared || v < 0 || size_t(v) > max_shared()) return INVALID_VALUE;
    f->shared = size_t(v);
    return SUCCESS;
}
API CUresult cuFuncSetCacheConfig(void *function, int) {
    ENTER;
    return find_function(function) ? SUCCESS : INVALID_HANDLE;
}
API CUresult cuFuncGetParamInfo(void *function, size_t i, size_t *offset, size_t *size) {
    ENTER;
    Function *f = find_function(function);
    if (!f) return INVALID_HANDLE;
    if (i >= size_t(f->kernel->params) || !offset) return INVALID_VALUE;
    size_t at = 0;
    for (size_t j = 0; j <= i; j++) {
        size_t n = f->kernel->sizes[j];
        at = (at + n - 1) / n * n;
        *offset = at;
        if (size) *size = n;
        at += n;
    }
    return SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *function, int threads, size_t shared) {
    ENTER;
    Function *f = find_function(function);
    if (!f) return INVALID_HANDLE;
    if (!n || threads < 1) return INVALID_VALUE;
    int by_threads = threads > f->kernel->bound ? 0 : 2048 / ((threads + 31) / 32 * 32);
    int by_shared = shared > f->shared ? 0 : int((max_shared() + 1024) / (shared + 1024));
    *n = std::min({32, by_threads, by_shared});
    return SUCCESS;
}

API CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            void *handle, void **params, void **extra) {
    ENTER;
    Function *f = find_function(function);
    Stream *s = find_stream(handle);
    if (!f || !s) return INVALID_HANDLE;
    const emu::Kernel *k = f->kernel;
    if (extra || (k->params && !params)) return INVALID_VALUE;
    if (!gx || !gy || !gz || !bx || !by || !bz) return INVALID_VALUE;
    if (gx > 0x7fffffffu || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64 || u64(bx) * by * bz > 1024) return INVALID_VALUE;
    if (bx * by * bz > unsigned(k->bound)) return LAUNCH_OUT_OF_RESOURCES;
    if (shared > f->shared) return INVALID_VALUE;
    std::vector<std::vector<u8>> values;
    for (int i = 0; i < k->params; i++) {
        const u8 *p = static_cast<const u8 *>(params[i]);
        if (!p) return INVALID_VALUE;
        values.emplace_back(p, p + k->sizes[i]);
    }
    return push(s, [=] { return launch(*k, dim3(gx, gy, gz), dim3(bx, by, bz), shared, values); });
}

// ---- graphs ----

API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (s == &dev.legacy) return STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return ILLEGAL_STATE;
    s->capture.reset(new Capture{{}, mode, false, &here});
    return SUCCESS;
}
API CUresult cuStreamIsCapturing(void *handle, int *status) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    if (!status) return INVALID_VALUE;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return SUCCESS;
}
API CUresult cuStreamEndCapture(void *handle, void **graph) {
    ENTER;
    Stream *s = find_stream(handle);
    if (!s) return INVALID_HANDLE;
    if (!graph) return INVALID_VALUE;
    *graph = nullptr;
    if (!s->capture) return ILLEGAL_STATE;
    if (s->capture->mode != 2 && s->capture->thread != &here) return STREAM_CAPTURE_WRONG_THREAD;
    std::unique_ptr<Capture> c = std::move(s->capture);
    if (c->invalid) return STREAM_CAPTURE_INVALIDATED;
    Graph *g = dev.graphs.add();
    g->nodes = std::move(c->nodes);
    *graph = g;
    return SUCCESS;
}
API CUresult cuGraphDestroy(void *graph) {
    ENTER;
    return dev.graphs.all.erase(graph) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    ENTER;
    Graph *g = dev.graphs.get(graph);
    if (!exec || !g || flags) return INVALID_VALUE;
    Exec *e = dev.execs.add();
    e->nodes = g->nodes;
    *exec = e;
    return SUCCESS;
}
API CUresult cuGraphInstantiate_v2(void **exec, void *graph, void **node, char *log, size_t size) {
    if (node) *node = nullptr;
    if (log && size) *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
API CUresult cuGraphExecDestroy(void *exec) {
    ENTER;
    return dev.execs.all.erase(exec) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuGraphLaunch(void *exec, void *handle) {
    ENTER;
    Exec *e = dev.execs.get(exec);
    Stream *s = find_stream(handle);
    if (!e) return INVALID_VALUE;
    if (!s) return INVALID_HANDLE;
    NOT_WHILE_CAPTURING(s);
    for (const Op &op : e->nodes) {
        if (CUresult r = push(s, op)) return r;
    }
    return SUCCESS;
}

// ---- what programs link against but do not use ----

static CUresult absent(const char *name) {
    static const bool trace = getenv("GAD_EMU_TRACE");
    if (trace) say(std::string(name) + " is not emulated");
    return NOT_SUPPORTED;
}
#define ABSENT(name) \
    API CUresult name() { return absent(#name); }
ABSENT(cuArray3DCreate_v2)
ABSENT(cuArray3DGetDescriptor_v2)
ABSENT(cuArrayCreate_v2)
ABSENT(cuArrayDestroy)
ABSENT(cuArrayGetDescriptor_v2)
ABSENT(cuCtxCreate_v2)
ABSENT(cuCtxDestroy_v2)
ABSENT(cuCtxDisablePeerAccess)
ABSENT(cuCtxEnablePeerAccess)
ABSENT(cuCtxGetApiVersion)
ABSENT(cuCtxGetCacheConfig)
ABSENT(cuCtxGetFlags)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxGetSharedMemConfig)
ABSENT(cuCtxPopCurrent_v2)
ABSENT(cuCtxPushCurrent_v2)
ABSENT(cuCtxResetPersistingL2Cache)
ABSENT(cuCtxSetCacheConfig)
ABSENT(cuCtxSetLimit)
ABSENT(cuCtxSetSharedMemConfig)
ABSENT(cuDeviceCanAccessPeer)
ABSENT(cuDeviceGetP2PAttribute)
ABSENT(cuDevicePrimaryCtxReset_v2)
ABSENT(cuDevicePrimaryCtxSetFlags_v2)
ABSENT(cuFuncSetSharedMemConfig)
ABSENT(cuGraphAddChildGraphNode)
ABSENT(cuGraphAddDependencies)
ABSENT(cuGraphAddEmptyNode)
ABSENT(cuGraphAddHostNode)
ABSENT(cuGraphAddKernelNode)
ABSENT(cuGraphAddKernelNode_v2)
ABSENT(cuGraphAddMemcpyNode)
ABSENT(cuGraphAddMemsetNode)
ABSENT(cuGraphClone)
ABSENT(cuGraphCreate)
ABSENT(cuGraphDestroyNode)
ABSENT(cuGraphGetEdges)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkAddFile_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate_v2)
ABSENT(cuLinkDestroy)
ABSENT(cuMemAdvise)
ABSENT(cuMemAllocManaged)
ABSENT(cuMemAllocPitch_v2)
ABSENT(cuMemPrefetchAsync)
ABSENT(cuMemcpy2DAsync_v2)
ABSENT(cuMemcpy2DUnaligned_v2)
ABSENT(cuMemcpy2D_v2)
ABSENT(cuMemcpy3DAsync_v2)
ABSENT(cuMemcpy3DPeer)
ABSENT(cuMemcpy3DPeerAsync)
ABSENT(cuMemcpy3D_v2)
ABSENT(cuMemcpyAtoA_v2)
ABSENT(cuMemcpyAtoD_v2)
ABSENT(cuMemcpyAtoHAsync_v2)
ABSENT(cuMemcpyAtoH_v2)
ABSENT(cuMemcpyDtoA_v2)
ABSENT(cuMemcpyHtoAAsync_v2)
ABSENT(cuMemcpyHtoA_v2)
ABSENT(cuMemcpyPeer)
ABSENT(cuMemcpyPeerAsync)
ABSENT(cuMemsetD2D16Async)
ABSENT(cuMemsetD2D16_v2)
ABSENT(cuMemsetD2D32Async)
ABSENT(cuMemsetD2D32_v2)
ABSENT(cuMemsetD2D8Async)
ABSENT(cuMemsetD2D8_v2)
ABSENT(cuModuleGetGlobal_v2)
ABSENT(cuModuleGetSurfRef)
ABSENT(cuModuleGetTexRef)
ABSENT(cuModuleLoad)
ABSENT(cuModuleLoadFatBinary)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
ABSENT(cuPointerGetAttribute)
ABSENT(cuPointerSetAttribute)
ABSENT(cuStreamAttachMemAsync)
ABSENT(cuStreamWaitValue32)
ABSENT(cuStreamWaitValue32_v2)
ABSENT(cuStreamWriteValue32)
ABSENT(cuStreamWriteValue32_v2)
ABSENT(cuSurfRefGetArray)
ABSENT(cuSurfRefSetArray)
ABSENT(cuTexRefGetAddressMode)
ABSENT(cuTexRefGetAddress_v2)
ABSENT(cuTexRefGetArray)
ABSENT(cuTexRefGetBorderColor)
ABSENT(cuTexRefGetFilterMode)
ABSENT(cuTexRefGetFlags)
ABSENT(cuTexRefGetFormat)
ABSENT(cuTexRefGetMaxAnisotropy)
ABSENT(cuTexRefSetAddress2D_v3)
ABSENT(cuTexRefSetAddressMode)
ABSENT(cuTexRefSetAddress_v2)
ABSENT(cuTexRefSetArray)
ABSENT(cuTexRefSetBorderColor)
ABSENT(cuTexRefSetFilterMode)
ABSENT(cuTexRefSetFlags)
ABSENT(cuTexRefSetFormat)
ABSENT(cuTexRefSetMaxAnisotropy)
ABSENT(cuTexRefSetMipmapFilterMode)
ABSENT(cuTexRefSetMipmapLevelBias)
ABSENT(cuTexRefSetMipmapLevelClamp)
