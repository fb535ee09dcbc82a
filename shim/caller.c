/* Classifying the caller of an allocation (caller.h). The return address answers for programs that
   call the driver themselves; for the others the stack is walked. Which module an address lies in
   comes from dl_iterate_phdr, remembered in a small table of answers that is valid for one
   generation of loaded objects; an answer is one word, so readers need no lock. */
#define _GNU_SOURCE
#include "caller.h"
#include "../policy/config.h"
#include "../policy/report.h"
#include "elf.h"
#include "process.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unwind.h>

enum { FRAMES = 16, ANSWERS = 256 };

/* NOLINTNEXTLINE(readability-redundant-declaration): link.h's is not this object's own */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* Return address with the generation in its unused upper bits and the kind in its lowest two; 0
   when free. Addresses four bytes apart can't lie in two modules. */
static _Atomic uintptr_t answers[ANSWERS];

struct question {
  uintptr_t address;
  enum caller_kind kind;
};

static bool begins(const char *text, const char *with) {
  return strncmp(text, with, strlen(with)) == 0;
}

enum caller_kind caller_classify(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *name = slash ? slash + 1 : path;
  if (!*path)
    return CALLER_ALLOWED;
  if (begins(name, "libcuda.so") || begins(name, "libcudart"))
    return CALLER_TRANSPARENT;
  if (begins(name, "libc10_cuda"))
    return CALLER_ALLOWED;
  return config_caller_allowed(process_config(), path) ? CALLER_ALLOWED : CALLER_OTHER;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
  struct question *question = data;
  bool inside = false, ours = false;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && question->address - start < header->p_memsz)
      inside = true;
    if (header->p_type == PT_DYNAMIC && start == (uintptr_t)_DYNAMIC)
      ours = true;
  }
  if (!inside)
    return 0;
  question->kind = ours ? CALLER_OURS : caller_classify(info->dlpi_name);
  return 1;
}

static enum caller_kind kind_of(uintptr_t address, uint64_t generation) {
  uintptr_t key = (address ^ (uintptr_t)(generation << 48)) & ~(uintptr_t)3;
  _Atomic uintptr_t *slot = &answers[(address >> 2) % ANSWERS];
  uintptr_t answer = atomic_load_explicit(slot, memory_order_relaxed);
  if ((answer & ~(uintptr_t)3) == key)
    return (enum caller_kind)(answer & 3);
  struct question question = {.address = address, .kind = CALLER_OTHER};
  dl_iterate_phdr(visit, &question);
  /* relaxed: the word says everything */
  atomic_store_explicit(slot, key | (uintptr_t)question.kind, memory_order_relaxed);
  return question.kind;
}

typedef _Unwind_Reason_Code walk_function(_Unwind_Trace_Fn, void *);
struct walk {
  __typeof__(&_Unwind_GetIP) address_of;
  void **frames;
  int count;
};

static _Unwind_Reason_Code note_frame(struct _Unwind_Context *frame, void *data) {
  struct walk *walk = data;
  if (walk->count == FRAMES)
    return _URC_END_OF_STACK;
  walk->frames[walk->count++] = (void *)walk->address_of(frame);
  return _URC_NO_REASON;
}

/* libgcc_s walks. glibc's backtrace loads it at its first call, for which a constructor may make us
   wait: where it is loaded already, as in every C++ program, it is asked without glibc. While
   another thread is loading it, and until it can find itself, its constructors are still to come, so glibc waits for nobody. */
static int walk_stack(void **frames) {
  struct elf_object unwinder;
  struct walk walk = {.frames = frames};
  walk_function *function = NULL;
  if (elf_object_named("libgcc_s.so.1", &unwinder) && elf_bound(&unwinder)) {
    *(void **)&function = elf_function(&unwinder, "_Unwind_Backtrace");
    *(void **)&walk.address_of = elf_function(&unwinder, "_Unwind_GetIP");
  }
  if (!function || !walk.address_of || !elf_unwindable((void *)function))
    return backtrace(frames, FRAMES);
  (void)function(note_frame, &walk);
  return walk.count;
}

/* `other` becomes an address in a caller that we don't know. */
static bool allowed(void *return_address, void **other) {
  void *frames[FRAMES];
  uint64_t generation = elf_generation();
  enum caller_kind nearest =
      return_address ? kind_of((uintptr_t)return_address, generation) : CALLER_OURS;
  if (nearest == CALLER_ALLOWED || nearest == CALLER_OTHER) {
    *other = return_address;
    return nearest == CALLER_ALLOWED;
  }
  int depth = walk_stack(frames);
  if (depth <= 1) {
    report_reason("the stack can't be walked (libgcc_s.so.1 is missing): no allocation may move");
    return false;
  }
  bool begun = false; /* frames before ours are the walker's own (a sanitizer stands before it) */
  for (int i = 0; i < depth; i++) {
    enum caller_kind kind = kind_of((uintptr_t)frames[i], generation);
    begun = begun || kind == CALLER_OURS;
    if (begun && kind != CALLER_OURS && kind != CALLER_TRANSPARENT) {
      *other = kind == CALLER_OTHER ? frames[i] : NULL;
      return kind == CALLER_ALLOWED;
    }
  }
  return false;
}

bool caller_allowed(void *return_address) {
  void *other = NULL;
  return allowed(return_address, &other);
}

bool caller_may_move(void *return_address) {
  static _Atomic bool refused;
  void *other = NULL;
  Dl_info module;
  if (allowed(return_address, &other))
    return true;
  if (other && !atomic_exchange_explicit(&refused, true, memory_order_relaxed) &&
      dladdr(other, &module) && module.dli_fname)
    report_caller_refused(module.dli_fname);
  return false;
}
