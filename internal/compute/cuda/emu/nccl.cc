// The stand-in for libnccl.so.2: communicators of several processes on this machine, over
// POSIX shared memory, each with an emulated device. It has the calls that gad makes, of
// version 2.30.7, and refuses what is not agreed upon: a configuration that is not one, memory
// that is not the device's, a captured stream, ranks whose calls differ. Where the real
// library may be slow this one is: what does not block is under way for some polls, a sum
// moves on only when the stream is asked, and an orderly end waits for all ranks. A rank that
// is missing is waited for without end; the others are told nothing when one aborts.
//
// A sum's order: an element belongs to a block, of 64, which passes a ring of the ranks and
// begins at another one each. So the bits depend on the number of ranks and not on timing.
//
// Broadcasts come in groups, which belong to the thread that has begun them; those of a group
// must not overlap.
//
// Environment:
//   GAD_EMU_NCCL_FAIL=CALL[:N]   the Nth call of this name, from 0, fails; "async" is an error
//                                that ncclCommGetAsyncError reports from then on
//   GAD_EMU_NCCL_HANG=CALL[:N]   the Nth call is never done; the other ranks wait for it
//   GAD_EMU_NCCL_WRONG=1         the first element of each sum is 1 too large
//   GAD_EMU_NCCL_VERSION=V       as ncclGetVersion gives it
//   GAD_EMU_NCCL_LOG=1           says on stderr, when a communicator ends, how many sums and
//                                groups of broadcasts there were
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

// From the stand-in for libcuda.so.1.
extern "C" {
int gadEmuAwait(void *stream, int (*run)(void *), void *data, void (*drop)(void *));
int gadEmuOnDevice(const void *p, size_t n);
int gadEmuReady();
int gadEmuCapturing();
}

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };

// CUresults.
const int DONE = 0, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719;

const int U8 = 1, F32 = 7, SUM = 0;  // the types and the operation that are used

Result refuse(Result r, const std::string &why) {
    fprintf(stderr, "emu: nccl: %s\n", why.c_str());
    return r;
}

// ---- faults ----

std::mutex &lock = *new std::mutex;
std::map<std::string, long> &calls = *new std::map<std::string, long>;

// Fault is CALL[:N] in an environment variable.
struct Fault {
    std::string call;
    long n = 0;
    explicit Fault(const char *name) {
        const char *v = getenv(name);
        if (!v) return;
        call = v;
        size_t colon = call.find(':');
        if (colon == std::string::npos) return;
        n = atol(call.c_str() + colon + 1);
        call.resize(colon);
    }
    bool is(const char *name, long count) const { return call == name && n == count; }
};
const Fault &fails = *new Fault("GAD_EMU_NCCL_FAIL"), &hangs = *new Fault("GAD_EMU_NCCL_HANG");

// count is how often a call was made before.
long count(const char *name) {
    std::lock_guard<std::mutex> guard(lock);
    return calls[name]++;
}

#define CALL(name)                \
    const long nth = count(#name); \
    if (fails.is(#name, nth)) return SYSTEM

const bool wrong = getenv("GAD_EMU_NCCL_WRONG");

// ---- what the ranks share ----

const int most = 16;              // ranks
const size_t window = 64 << 10;  // elements that a rank shows at a time

struct Part {
    std::atomic<int> joined, finalized;
    std::atomic<uint64_t> shown, taken;  // steps whose elements this rank has put into data, and has read of all
    uint64_t calls, elements;            // of the call that is shown
};

struct Shared {
    std::atomic<int> ranks;
    Part parts[most];
    float data[most][window];
};

struct Id {
    char bytes[128];
};
const char mark[] = "gad-emu-nccl";

struct Comm {
    Shared *shared;
    std::string name;
    int rank, ranks;
    int polls;  // that still say IN_PROGRESS
    bool hung;  // whatever the others do
    bool finalizing;
    std::atomic<bool> aborted;
    Result error;
    uint64_t calls, steps;

    bool all(const std::atomic<int> Part::*field) const {
        for (int r = 0; r < ranks; r++) {
            if (!(shared->parts[r].*field)) return false;
        }
        return true;
    }
    bool all(const std::atomic<uint64_t> Part::*field, uint64_t least) const {
        for (int r = 0; r < ranks; r++) {
            if ((shared->parts[r].*field) < least) return false;
        }
        return true;
    }
};

std::map<void *, Comm *> &live = *new std::map<void *, Comm *>;

Comm *valid(void *handle) {
    std::lock_guard<std::mutex> guard(lock);
    auto i = live.find(handle);
    return i == live.end() ? nullptr : i->second;
}

Shared *open_shared(const std::string &name, bool make) {
    int fd = shm_open(name.c_str(), make ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, 0600);
    if (fd < 0) return nullptr;
    void *p = MAP_FAILED;
    if (!make || ftruncate(fd, sizeof(Shared)) == 0) p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? nullptr : static_cast<Shared *>(p);
}

// sweep removes what processes have left that ended before all ranks had come.
void sweep() {
    DIR *d = opendir("/dev/shm");
    if (!d) return;
    const std::string prefix = std::string(mark) + "-";
    while (const dirent *e = readdir(d)) {
        std::string name = e->d_name;
        if (name.compare(0, prefix.size(), prefix)) continue;
        pid_t pid = atoi(name.c_str() + prefix.size());
        if (pid > 0 && kill(pid, 0) && errno == ESRCH) shm_unlink(("/" + name).c_str());
    }
    closedir(d);
}

// ---- sums and broadcasts ----

// Op is a sum, or a broadcast from root, of bytes.
struct Op {
    const char *from;
    char *to;
    size_t bytes;
    int root;  // -1 is a sum
};

// Work is what one call, or a group of calls, has the stream do: one op after the other.
struct Work {
    Comm *comm;
    std::vector<Op> ops;
    uint64_t number;  // of the call
    bool hung;
    size_t op, at;  // op that is under way, and bytes of it that are done
    bool shown;

    // elements is what ranks must agree on beside the number: the ops, with their lengths.
    uint64_t elements() const {
        if (ops.size() == 1 && ops[0].root < 0) return ops[0].bytes / 4;
        uint64_t h = 1469598103934665603ull;
        for (const Op &o : ops) h = ((h ^ o.bytes) * 1099511628211ull ^ uint64_t(o.root)) * 1099511628211ull;
        return h;
    }
};

// advance does what can be done now: a piece of a stream's work.
int advance(void *data) {
    Work *w = static_cast<Work *>(data);
    Comm *c = w->comm;
    if (c->aborted) return DONE;  // a kernel that is told to end ends
    if (w->hung) return NOT_READY;
    Shared *shared = c->shared;
    Part &mine = shared->parts[c->rank];
    for (; w->op < w->ops.size(); w->op++, w->at = 0) {
        const Op &o = w->ops[w->op];
        while (w->at < o.bytes) {
            const size_t bytes = std::min(4 * window, o.bytes - w->at);
            if (!gadEmuOnDevice(o.from + w->at, bytes) || !gadEmuOnDevice(o.to + w->at, bytes)) {
                refuse(INVALID_USAGE, "a call's work runs after its memory was freed");
                return ILLEGAL_ADDRESS;
            }
            if (!w->shown) {
                if (!c->all(&Part::taken, c->steps)) return NOT_READY;
                if (o.root < 0 || o.root == c->rank) memcpy(shared->data[c->rank], o.from + w->at, bytes);
                mine.calls = w->number;
                mine.elements = w->elements();
                mine.shown = c->steps + 1;
                w->shown = true;
            }
            if (!c->all(&Part::shown, c->steps + 1)) return NOT_READY;
            for (int r = 0; r < c->ranks; r++) {
                if (shared->parts[r].calls != w->number || shared->parts[r].elements != mine.elements) {
                    c->error = refuse(INVALID_USAGE, "rank " + std::to_string(r) + " moves " + std::to_string(shared->parts[r].elements) + " elements in call " +
                                                         std::to_string(shared->parts[r].calls) + ", rank " + std::to_string(c->rank) + " " + std::to_string(mine.elements) +
                                                         " in call " + std::to_string(w->number) + " (of a group the hash of its lengths and roots)");
                    return LAUNCH_FAILED;
                }
            }
            if (o.root >= 0) {
                memcpy(o.to + w->at, shared->data[o.root], bytes);
            } else {
                float *to = reinterpret_cast<float *>(o.to + w->at);
                for (size_t i = 0; i < bytes / 4; i++) {
                    int first = int((w->at / 4 + i) / 64 % size_t(c->ranks));
                    float sum = shared->data[first][i];
                    for (int k = 1; k < c->ranks; k++) sum += shared->data[(first + k) % c->ranks][i];
                    to[i] = sum;
                }
                if (w->at == 0 && wrong) to[0]++;
            }
            c->steps++;
            mine.taken = c->steps;
            w->at += bytes;
            w->shown = false;
        }
    }
    return DONE;
}

// A group of calls, of this thread: the calls between are queued when it ends, in one piece.
struct Group {
    int depth = 0;
    Comm *comm = nullptr;
    void *stream = nullptr;
    std::vector<Op> ops;
    bool hung = false;
    Result error = SUCCESS;
};
thread_local Group group;

// queue has the stream do ops.
Result queue(Comm *c, std::vector<Op> ops, void *stream, bool hung) {
    Work *w = new Work{c, std::move(ops), ++c->calls, hung, 0, 0, false};
    if (gadEmuAwait(stream, advance, w, [](void *p) { delete static_cast<Work *>(p); })) return refuse(UNHANDLED_CUDA, "a stream that is not one");
    c->polls = 2;
    return IN_PROGRESS;
}

// check is what any call of a communicator must hold.
Result check(Comm *c, const void *from, const void *to, size_t bytes, const char *what) {
    if (!c) return refuse(INVALID_ARGUMENT, std::string(what) + ": no communicator");
    if (c->error || c->finalizing) return refuse(INVALID_USAGE, std::string(what) + " of a communicator that has failed or ends");
    if (c->polls > 0 || !c->all(&Part::joined)) return refuse(INVALID_USAGE, "a call while the one before is under way");
    if (bytes == 0 || !gadEmuOnDevice(from, bytes) || !gadEmuOnDevice(to, bytes)) return refuse(INVALID_ARGUMENT, "memory that is not the device's");
    const char *f = static_cast<const char *>(from), *t = static_cast<const char *>(to);
    if (f != t && f < t + bytes && t < f + bytes) return refuse(INVALID_ARGUMENT, "memory that overlaps, but is not the same");
    if (gadEmuCapturing()) return refuse(INVALID_USAGE, std::string(what) + " while a stream is captured");
    return SUCCESS;
}

std::atomic<long> sums, groups;
}  // namespace

API int ncclGetVersion(int *v) {
    CALL(ncclGetVersion);
    if (!v) return INVALID_ARGUMENT;
    const char *text = getenv("GAD_EMU_NCCL_VERSION");
    *v = text ? atoi(text) : 23007;
    return SUCCESS;
}

API const char *ncclGetErrorString(int r) {
    switch (r) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA: return "unhandled cuda error";
    case SYSTEM: return "unhandled system error";
    case INTERNAL: return "internal error";
    case INVALID_ARGUMENT: return "invalid argument";
    case INVALID_USAGE: return "invalid usage";
    case REMOTE: return "remote process exited or there was a network error";
    case IN_PROGRESS: return "NCCL operation in progress";
    }
    return "unknown result code";
}
API const char *ncclGetLastError(void *) { return ""; }

API int ncclGetUniqueId(Id *id) {
    CALL(ncclGetUniqueId);
    if (!id) return INVALID_ARGUMENT;
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, mark, sizeof mark);
    static std::atomic<int> number;
    std::string name = "/" + std::string(mark) + "-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    sweep();
    shm_unlink(name.c_str());  // of an earlier process of this number
    Shared *s = open_shared(name, true);
    if (!s) return refuse(SYSTEM, "no shared memory");
    munmap(s, sizeof *s);
    memcpy(id->bytes + 32, name.c_str(), name.size());
    // The last byte too must have come, by value.
    id->bytes[127] = 'z';
    return SUCCESS;
}

// Config is ncclConfig_t as far as a caller of 2.14 knows it.
struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

API int ncclCommInitRankConfig(void **out, int ranks, Id id, int rank, const Config *config) {
    CALL(ncclCommInitRankConfig);
    if (!out || ranks < 1 || ranks > most || rank < 0 || rank >= ranks) return refuse(INVALID_ARGUMENT, "ranks");
    if (memcmp(id.bytes, mark, sizeof mark) || id.bytes[127] != 'z') return refuse(INVALID_ARGUMENT, "an id that ncclGetUniqueId did not give");
    if (!config || config->size < 24 || config->magic != 0xcafebeef || config->version < 21400 || config->blocking != 0) {
        return refuse(INVALID_ARGUMENT, "a configuration that is not one, or that blocks");
    }
    if (gadEmuReady()) return refuse(UNHANDLED_CUDA, "no current context");
    std::string name(id.bytes + 32, strnlen(id.bytes + 32, 90));
    Shared *shared = open_shared(name, false);
    if (!shared) return refuse(SYSTEM, "the shared memory of the id is gone");
    int first = 0;
    if (!shared->ranks.compare_exchange_strong(first, ranks) && first != ranks) return refuse(INVALID_ARGUMENT, "ranks that disagree on their number");
    if (shared->parts[rank].joined.exchange(1)) return refuse(INVALID_USAGE, "a rank that is there already");
    Comm *c = new Comm{shared, name, rank, ranks, 3, hangs.is("ncclCommInitRankConfig", nth), false, {false}, SUCCESS, 0, 0};
    {
        std::lock_guard<std::mutex> guard(lock);
        live[c] = c;
    }
    *out = c;
    return IN_PROGRESS;
}

API int ncclCommGetAsyncError(void *handle, int *result) {
    CALL(ncclCommGetAsyncError);
    Comm *c = valid(handle);
    if (!c || !result) return refuse(INVALID_ARGUMENT, "ncclCommGetAsyncError: no communicator");
    if (fails.call == "async" && long(c->calls) > fails.n && !c->error) c->error = REMOTE;
    if (c->error) {
        *result = c->error;
    } else if (c->hung || c->polls > 0 || !c->all(&Part::joined) || (c->finalizing && !c->all(&Part::finalized))) {
        if (c->polls > 0) c->polls--;
        *result = IN_PROGRESS;
    } else {
        *result = SUCCESS;
        shm_unlink(c->name.c_str());  // all have it open
    }
    return SUCCESS;
}

API int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *handle, void *stream) {
    CALL(ncclAllReduce);
    Comm *c = valid(handle);
    if (c && (type != F32 || op != SUM)) return refuse(INVALID_ARGUMENT, "only sums of float32 are emulated");
    if (Result r = check(c, from, to, 4 * n, "ncclAllReduce")) return r;
    if (group.depth > 0) return refuse(INVALID_USAGE, "sums in a group are not emulated");
    Result r = queue(c, {{static_cast<const char *>(from), static_cast<char *>(to), 4 * n, -1}}, stream, hangs.is("ncclAllReduce", nth));
    if (r == IN_PROGRESS) sums++;
    return r;
}

// fault remembers the first error of a group, which its end returns.
static Result fault(Result r) {
    if (group.depth > 0 && !group.error) group.error = r;
    return r;
}

API int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *handle, void *stream) {
    const long nth = count("ncclBroadcast");
    if (fails.is("ncclBroadcast", nth)) return fault(SYSTEM);
    Comm *c = valid(handle);
    if (group.depth == 0) return fault(refuse(INVALID_USAGE, "only broadcasts in a group of this thread are emulated"));
    if (c && (type != U8 || root < 0 || root >= c->ranks)) return fault(refuse(INVALID_ARGUMENT, "a root that is no rank, or a type other than bytes, which alone are emulated"));
    if (Result r = check(c, from, to, n, "ncclBroadcast")) return fault(r);
    if (group.comm && (group.comm != c || group.stream != stream)) return fault(refuse(INVALID_USAGE, "a group of several communicators or streams is not emulated"));
    const char *t = static_cast<const char *>(to);
    for (const Op &o : group.ops) {
        if (t < o.to + o.bytes && o.to < t + n) return fault(refuse(INVALID_USAGE, "broadcasts of a group that overlap: they run at once"));
    }
    group.comm = c, group.stream = stream;
    group.ops.push_back({static_cast<const char *>(from), static_cast<char *>(to), n, root});
    group.hung = group.hung || hangs.is("ncclBroadcast", nth);
    return SUCCESS;
}

API int ncclGroupStart() {
    CALL(ncclGroupStart);
    if (group.depth++ == 0) group.comm = nullptr, group.ops.clear(), group.hung = false, group.error = SUCCESS;
    return SUCCESS;
}

API int ncclGroupEnd() {
    const long nth = count("ncclGroupEnd");
    if (group.depth == 0) return refuse(INVALID_USAGE, "the end of a group that this thread has not begun");
    if (--group.depth > 0) return SUCCESS;
    if (fails.is("ncclGroupEnd", nth)) return SYSTEM;
    if (group.error) return group.error;
    if (!group.comm) return SUCCESS;  // empty
    Result r = queue(group.comm, std::move(group.ops), group.stream, group.hung);
    if (r == IN_PROGRESS) groups++;
    return r;
}

API int ncclCommFinalize(void *handle) {
    CALL(ncclCommFinalize);
    Comm *c = valid(handle);
    if (!c || c->finalizing) return refuse(INVALID_ARGUMENT, "ncclCommFinalize: no communicator, or one that ends already");
    c->finalizing = true;
    c->polls = 1;
    if (hangs.is("ncclCommFinalize", nth)) c->hung = true;
    if (!c->hung) c->shared->parts[c->rank].finalized = 1;
    return IN_PROGRESS;
}

namespace {
Result end(void *handle) {
    Comm *c = valid(handle);
    if (!c) return INVALID_ARGUMENT;
    c->aborted = true;
    if (c->all(&Part::joined)) shm_unlink(c->name.c_str());
    if (getenv("GAD_EMU_NCCL_LOG")) fprintf(stderr, "emu: nccl: %ld sums, %ld groups\n", sums.load(), groups.load());
    std::lock_guard<std::mutex> guard(lock);
    live.erase(handle);  // its memory stays: a stream may still ask it
    return SUCCESS;
}
}  // namespace

API int ncclCommDestroy(void *handle) {
    CALL(ncclCommDestroy);
    Comm *c = valid(handle);
    if (!c || !c->finalizing || c->polls > 0 || !c->all(&Part::finalized)) return refuse(INVALID_USAGE, "ncclCommDestroy before ncclCommFinalize is done");
    return end(handle);
}

API int ncclCommAbort(void *handle) {
    CALL(ncclCommAbort);
    if (hangs.is("ncclCommAbort", nth)) sleep(3600);
    return end(handle) ? refuse(INVALID_ARGUMENT, "ncclCommAbort: no communicator") : SUCCESS;
}
