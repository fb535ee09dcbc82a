/* The table of real driver functions and the routes from a real function to its wrapper. Filled
   when a driver is loaded and somebody asks; read by everybody.

   Filling waits for nobody: a thread that came second does the same work again, and every slot is
   written once, by whoever comes first. A slot is published before the flag that says "done". */
#define __CUDA_API_VERSION_INTERNAL /* cuda.h then declares every version under its own name */
#include "driver.h"
#include "dlsym.h"
#include "elf.h"
#include <dlfcn.h>
#include <stdatomic.h>

struct driver driver;

#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*) parameters),        \
                 #symbol " of hooks.def is not cuda.h's");
#define USE(symbol, base, version)
#include "hooks.def"
#undef HOOK
#undef USE

static const struct hook {
  const char *symbol, *base;
  int version;
  bool per_thread;
  void *wrapper, **slot;
} hooks[] = {
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  {#symbol, base, version, per_thread, (void *)hook_##symbol, (void **)&driver.symbol},
#define USE(symbol, base, version)
#include "hooks.def"
#undef HOOK
#undef USE
};

static const struct use {
  const char *symbol;
  void **slot;
} uses[] = {
#define HOOK(symbol, base, version, per_thread, parameters, arguments)
#define USE(symbol, base, version) {#symbol, (void **)&driver.symbol},
#include "hooks.def"
#undef HOOK
#undef USE
};
static const char DRIVER[] = "libcuda.so.1";
enum { HOOKS = sizeof hooks / sizeof *hooks, USES = sizeof uses / sizeof *uses };

/* Routes: a hash table with open addressing. A slot holds one more than an index into `known`,
   whose entry is complete before the slot names it. Each hook has two entries: the function as
   dlsym finds it, and as cuGetProcAddress hands it out (the driver does not promise that they are
   equal: where libcuda.so.1 stands before another library, it hands out that one's). */
enum { BY_DLSYM, BY_ADDRESS, WAYS, ROUTE_SLOTS = 1024 };
_Static_assert(HOOKS *WAYS * 2 <= ROUTE_SLOTS, "the table of routes is to stay half empty");
static void *_Atomic known[HOOKS * WAYS];
static _Atomic uint16_t routes[ROUTE_SLOTS];
static _Atomic bool resolved, addressed;

static unsigned slot_of(const void *real) {
  return (unsigned)(((uintptr_t)real * 0x9E3779B97F4A7C15u) >> 54) % ROUTE_SLOTS;
}

/* Found by any of the first `ways`. */
static void *route(void *real, unsigned ways) {
  if (!real)
    return NULL;
  for (unsigned at = slot_of(real);; at = (at + 1) % ROUTE_SLOTS) {
    unsigned entry = atomic_load_explicit(&routes[at], memory_order_acquire);
    if (!entry)
      return real;
    if (atomic_load_explicit(&known[entry - 1], memory_order_relaxed) == real)
      return (entry - 1) % WAYS < ways ? hooks[(entry - 1) / WAYS].wrapper : real;
  }
}

void *driver_route(void *real) {
  return route(real, BY_ADDRESS);
}

static bool is_wrapper(const void *function) {
  for (unsigned i = 0; i < HOOKS; i++)
    if (function == hooks[i].wrapper)
      return true;
  return false;
}

/* The first hook that brings a function keeps it. */
static void add_route(unsigned hook, unsigned way, void *real) {
  unsigned entry = hook * WAYS + way;
  if (!real || route(real, WAYS) != real || is_wrapper(real))
    return;
  atomic_store_explicit(&known[entry], real, memory_order_relaxed);
  for (unsigned at = slot_of(real);; at = (at + 1) % ROUTE_SLOTS) {
    uint16_t free_slot = 0;
    /* release: whoever reads the slot sees the entry */
    if (atomic_compare_exchange_strong_explicit(&routes[at], &free_slot, (uint16_t)(entry + 1),
                                                memory_order_release, memory_order_acquire))
      return;
    if (atomic_load_explicit(&known[free_slot - 1], memory_order_relaxed) == real)
      return;
  }
}

static void *slot_now(void **slot) {
  return __atomic_load_n(slot, __ATOMIC_ACQUIRE);
}

/* Acquires where another thread was first: `resolved` stands for its pointer as well. */
static void set_once(void **slot, void *real) {
  void *empty = NULL;
  if (real && !slot_now(slot))
    (void)__atomic_compare_exchange_n(slot, &empty, real, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE);
}

/* What cuGetProcAddress gives for this hook's name and version. */
static void *proc_address(const struct hook *hook) {
  void *real = NULL;
  cuuint64_t flags = hook->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                      : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  __typeof__(driver.cuGetProcAddress_v2) newer =
      __atomic_load_n(&driver.cuGetProcAddress_v2, __ATOMIC_ACQUIRE);
  __typeof__(driver.cuGetProcAddress) older =
      __atomic_load_n(&driver.cuGetProcAddress, __ATOMIC_ACQUIRE);
  if (newer)
    result = newer(hook->base, &real, hook->version, flags, NULL);
  else if (older)
    result = older(hook->base, &real, hook->version, flags);
  return result == CUDA_SUCCESS ? real : NULL;
}

/* Where the real functions are looked up: through the loader, or in the driver's own table. */
struct source {
  void *library;
  struct elf_object object;
};

/* A library behind us that hooks dlsym too answers with its own wrappers, which we then go through;
   but where it names one, its reference may mean ours, since we come first. */
static void *look_up(const struct source *source, const char *symbol) {
  void *found = source->library ? dlsym_real(source->library, symbol) : NULL;
  return found && !is_wrapper(found) ? found : elf_function(&source->object, symbol);
}

static void fill(const struct source *source) {
  for (unsigned i = 0; i < HOOKS; i++) {
    void *real = look_up(source, hooks[i].symbol);
    set_once(hooks[i].slot, real);
    add_route(i, BY_DLSYM, real);
  }
  for (unsigned i = 0; i < USES; i++)
    set_once(uses[i].slot, look_up(source, uses[i].symbol));
  atomic_store_explicit(&resolved, true, memory_order_release);
}

/* Programs that are linked against the driver may call it first in a thread for which a constructor
   waits, that is, while the loader's lock is held. Another dlsym behind ours is to be met by our
   lookups as by everybody's, so then the loader is asked. */
bool driver_resolve(void) {
  struct source source = {0};
  if (atomic_load_explicit(&resolved, memory_order_acquire))
    return true;
  if (dlsym_next_is_libc() && elf_started_object(DRIVER, &source.object)) {
    fill(&source);
    return true;
  }
  source.library = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD); /* kept: pointers into it stay */
  if (!source.library || !elf_object_named(DRIVER, &source.object))
    return false;
  fill(&source);
  (void)dlerror(); /* lookups that failed here are nobody else's concern */
  return true;
}

void *driver_route_address(void *real) {
  if (!atomic_load_explicit(&addressed, memory_order_acquire) && driver_resolve()) {
    /* A driver without the symbol may still answer its base name, with an older version. */
    for (unsigned i = 0; i < HOOKS; i++)
      if (slot_now(hooks[i].slot))
        add_route(i, BY_ADDRESS, proc_address(&hooks[i]));
    atomic_store_explicit(&addressed, true, memory_order_release);
  }
  return route(real, WAYS);
}

CUresult driver_missing(void) {
  return atomic_load_explicit(&resolved, memory_order_acquire) ? CUDA_ERROR_NOT_SUPPORTED
                                                               : CUDA_ERROR_NOT_INITIALIZED;
}
