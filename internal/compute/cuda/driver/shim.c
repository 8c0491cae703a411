//go:build nvidia

// shim.c defines the driver's symbols that gorgonia.org/cu links against (symbols.h), each a jump
// through a pointer that gad_cuda_load fills from a libcuda.so.1 opened at run time. So:
//   - the program starts on machines without the driver, and builds on them;
//   - cu's init(), which ends the process when cuInit fails, finds a cuInit that succeeds:
//     the driver's own is called by gad_cuda_load, when a device is asked for, and its reason kept.
// The names are hidden: nothing else in the process that looks for the driver's symbols finds these.
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

static int unloaded(void) { return 3; }  // CUDA_ERROR_NOT_INITIALIZED
static int absent(void) { return 801; }  // CUDA_ERROR_NOT_SUPPORTED: this driver no longer has the call

#if defined(__x86_64__)
#define JUMP(to) "jmp *" to "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(to) "adrp x16, " to "\nldr x16, [x16, #:lo12:" to "]\nbr x16\n"
#else
#error "the driver's jump table is written for amd64 and arm64"
#endif

#define SYMBOL(name)                                                           \
  HIDDEN void *gad_to_##name = (void *)unloaded;                               \
  __asm__(".pushsection .text\n.balign 16\n.globl " #name "\n.hidden " #name "\n" \
          ".type " #name ", %function\n" #name ":\n" JUMP("gad_to_" #name)      \
          ".size " #name ", . - " #name "\n.popsection\n");
#include "symbols.h"
#undef SYMBOL

static const struct {
  const char *name;
  void **to;
} table[] = {
#define SYMBOL(name) {#name, &gad_to_##name},
#include "symbols.h"
#undef SYMBOL
};

HIDDEN int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

HIDDEN int gad_cuda_load(const char *name, void **handle, char *why, int size) {
  void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *e = dlerror();
    snprintf(why, size, "%s", e ? e : name);
    return GAD_CUDA_NO_LIBRARY;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
  if (!init) {
    snprintf(why, size, "%s has no cuInit", name);
    dlclose(lib);
    return GAD_CUDA_NOT_A_DRIVER;
  }
  int code = init(0);
  if (code != 0) {
    const char *id = NULL, *text = NULL;
    int (*errName)(int, const char **) = (int (*)(int, const char **))dlsym(lib, "cuGetErrorName");
    int (*errText)(int, const char **) = (int (*)(int, const char **))dlsym(lib, "cuGetErrorString");
    if (errName) errName(code, &id);
    if (errText) errText(code, &text);
    snprintf(why, size, "cuInit said %d %s: %s", code, id ? id : "", text ? text : "no text");
    return code;  // the library stays: a driver's threads do not survive dlclose
  }
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    void *p = dlsym(lib, table[i].name);
    *table[i].to = p ? p : (void *)absent;
  }
  *handle = lib;
  return 0;
}

struct gad_nccl_id {  // ncclUniqueId
  char bytes[128];
};

HIDDEN int gad_nccl_init(void *init, void **comm, int ranks, const void *id, int rank, void *config) {
  struct gad_nccl_id by_value;
  memcpy(&by_value, id, sizeof by_value);
  return ((int (*)(void **, int, struct gad_nccl_id, int, void *))init)(comm, ranks, by_value, rank, config);
}
