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
// Environment:
//   GAD_EMU_NCCL_FAIL=CALL[:N]   the Nth call of this name, from 0, fails; "async" is an error
//                                that ncclCommGetAsyncError reports from then on
//   GAD_EMU_NCCL_HANG=CALL[:N]   the Nth call is never done; the other ranks wait for it
//   GAD_EMU_NCCL_VERSION=V       as ncclGetVersion gives it
//   GAD_EMU_NCCL_LOG=1           says on stderr, when a communicator ends, how many sums there were
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

const int F32 = 7, SUM = 0;  // the only type and operation

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

// ---- what the ranks share ----

const int most = 16;              // ranks
const size_t window = 64 << 10;  // elements that a rank shows at a time

struct Part {
    std::atomic<int> joined, finalized;
    std::atomic<uint64_t> shown, taken;  // steps whose elements this rank has put into data, and has read of all
    uint64_t calls, elements;            // of the sum that is shown
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

// ---- sums ----

struct Sum {
    Comm *comm;
    const float *from;
    float *to;
    size_t n, at;     // elements, and of them done
    uint64_t number;  // of the call
    bool shown, hung;
};

// advance does what can be done of a sum now: a piece of a stream's work.
int advance(void *data) {
    Sum *s = static_cast<Sum *>(data);
    Comm *c = s->comm;
    if (c->aborted) return DONE;  // a kernel that is told to end ends
    if (s->hung) return NOT_READY;
    Shared *shared = c->shared;
    Part &mine = shared->parts[c->rank];
    while (s->at < s->n) {
        const size_t n = std::min(window, s->n - s->at);
        if (!gadEmuOnDevice(s->from + s->at, 4 * n) || !gadEmuOnDevice(s->to + s->at, 4 * n)) {
            refuse(INVALID_USAGE, "a sum runs after its memory was freed");
            return ILLEGAL_ADDRESS;
        }
        if (!s->shown) {
            if (!c->all(&Part::taken, c->steps)) return NOT_READY;
            memcpy(shared->data[c->rank], s->from + s->at, 4 * n);
            mine.calls = s->number;
            mine.elements = s->n;
            mine.shown = c->steps + 1;
            s->shown = true;
        }
        if (!c->all(&Part::shown, c->steps + 1)) return NOT_READY;
        for (int r = 0; r < c->ranks; r++) {
            if (shared->parts[r].calls != s->number || shared->parts[r].elements != s->n) {
                c->error = refuse(INVALID_USAGE, "rank " + std::to_string(r) + " sums " + std::to_string(shared->parts[r].elements) + " elements in call " +
                                                     std::to_string(shared->parts[r].calls) + ", rank " + std::to_string(c->rank) + " " + std::to_string(s->n) + " in call " +
                                                     std::to_string(s->number));
                return LAUNCH_FAILED;
            }
        }
        for (size_t i = 0; i < n; i++) {
            int first = int((s->at + i) / 64 % size_t(c->ranks));
            float sum = shared->data[first][i];
            for (int k = 1; k < c->ranks; k++) sum += shared->data[(first + k) % c->ranks][i];
            s->to[s->at + i] = sum;
        }
        c->steps++;
        mine.taken = c->steps;
        s->at += n;
        s->shown = false;
    }
    return DONE;
}

std::atomic<long> sums;
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
    if (!c) return refuse(INVALID_ARGUMENT, "ncclAllReduce: no communicator");
    if (c->error || c->finalizing) return refuse(INVALID_USAGE, "a sum of a communicator that has failed or ends");
    if (c->polls > 0 || !c->all(&Part::joined)) return refuse(INVALID_USAGE, "a call while the one before is under way");
    if (type != F32 || op != SUM) return refuse(INVALID_ARGUMENT, "only sums of float32 are emulated");
    if (n == 0 || !gadEmuOnDevice(from, 4 * n) || !gadEmuOnDevice(to, 4 * n)) return refuse(INVALID_ARGUMENT, "memory that is not the device's");
    const float *f = static_cast<const float *>(from), *t = static_cast<float *>(to);
    if (f != t && f < t + n && t < f + n) return refuse(INVALID_ARGUMENT, "memory that overlaps, but is not the same");
    if (gadEmuCapturing()) return refuse(INVALID_USAGE, "a sum while a stream is captured");
    Sum *s = new Sum{c, f, static_cast<float *>(to), n, 0, ++c->calls, false, hangs.is("ncclAllReduce", nth)};
    if (gadEmuAwait(stream, advance, s, [](void *p) { delete static_cast<Sum *>(p); })) return refuse(UNHANDLED_CUDA, "a stream that is not one");
    sums++;
    c->polls = 2;
    return IN_PROGRESS;
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
    if (getenv("GAD_EMU_NCCL_LOG")) fprintf(stderr, "emu: nccl: %ld sums\n", sums.load());
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
