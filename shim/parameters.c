/* The table of functions' parameters: see parameters.h. */
#include "parameters.h"
#include "../policy/report.h"
#include "driver.h"
#include "image.h"
#include "quiet.h"
#include "state.h"
#include "unknown.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FUNCTION_SLOTS = 4096, FUNCTION_PROBES = 16 };

static _Atomic(struct parameters *) functions[FUNCTION_SLOTS];
static _Atomic uint64_t generation = 1;
static pthread_mutex_t functions_mutex = PTHREAD_MUTEX_INITIALIZER; /* writers */

void state_forget_functions(void) {
  atomic_fetch_add(&generation, 1);
  if (unknown_looking()) /* one handle may be two kernels */
    unknown_unseen();
}

static size_t function_slot(CUfunction function) {
  return (size_t)(((uintptr_t)function >> 4) * 0x9e3779b97f4a7c15u >> 52) % FUNCTION_SLOTS;
}

/* Size of a parameter; 0 past the last. A kernel may come in place of a function (cuda.h,
   cuLaunchKernel): only the first parameter is asked for both ways. Of drivers that tell neither, the image is asked. */
static size_t parameter_bytes(CUfunction function, size_t i, bool *kernel) {
  size_t offset, bytes;
  if (image_wanted())
    return image_parameter(function, i, &offset, &bytes) ? bytes : 0;
  if (!*kernel && driver.cuFuncGetParamInfo &&
      !driver.cuFuncGetParamInfo(function, i, &offset, &bytes))
    return bytes;
  *kernel |= i == 0;
  if (*kernel && driver.cuKernelGetParamInfo &&
      !driver.cuKernelGetParamInfo((CUkernel)function, i, &offset, &bytes))
    return bytes;
  return 0;
}

/* Collectives keep their work in memory that the device reads, where no parameter shows it. */
static bool reads_lists(CUfunction function) {
  const char *name = image_function_name(function);
  return !name || strstr(name, "ncclDevKernel") || strstr(name, "ncclKernel");
}

static bool list_of(CUfunction function, size_t bytes, struct foreach_list *list, bool *adds) {
  const char *name = bytes > WEAK_BYTES ? image_function_name(function) : NULL;
  *adds = name && foreach_adds(name);
  return name && foreach_list_of(name, bytes, list);
}

static struct parameters *ask_parameters(CUfunction function, uint64_t now) {
  uint32_t count = 0, room = 16;
  bool kernel = false;
  struct parameters *made = malloc(sizeof *made + room * sizeof made->bytes[0]);
  if (!made)
    return NULL;
  for (size_t bytes; (bytes = parameter_bytes(function, count, &kernel)) != 0;) {
    if (count == room) {
      room *= 2;
      struct parameters *grown = realloc(made, sizeof *made + room * sizeof made->bytes[0]);
      if (!grown) {
        free(made);
        return NULL;
      }
      made = grown;
    }
    made->bytes[count++] = bytes > UINT32_MAX ? 0 : (uint32_t)bytes;
  }
  made->function = function;
  made->count = count;
  made->older = NULL;
  const char *why = !count && image_wanted() ? image_why(function) : NULL;
  made->unknown = why != NULL;
  if (why)
    report_reason("some launches can't be scanned for state, and count as uses of all of it: this "
                  "driver (before CUDA "
                  "12.4) tells no parameter sizes, and the kernel's image %s",
                  why);
  made->adds = false;
  made->has_list = count && list_of(function, made->bytes[0], &made->list, &made->adds);
  made->opaque = count && reads_lists(function);
  atomic_init(&made->generation, now);
  return made;
}

/* The entry for a function that no reader found: asks the driver, then inserts or renews one. NULL:
 * table full there. */
static const struct parameters *learn_parameters(CUfunction function, uint64_t now) {
  struct parameters *made = ask_parameters(function, now);
  const struct parameters *result = made;
  if (!made)
    return NULL;
  pthread_mutex_lock(&functions_mutex);
  for (size_t probe = 0; probe < FUNCTION_PROBES; probe++) {
    _Atomic(struct parameters *) *slot =
        &functions[(function_slot(function) + probe) % FUNCTION_SLOTS];
    struct parameters *first = atomic_load_explicit(slot, memory_order_relaxed);
    if (first && first->function != function)
      continue;
    struct parameters *same = first;
    while (same && (same->count != made->count || same->has_list != made->has_list ||
                    same->adds != made->adds || same->opaque != made->opaque ||
                    same->unknown != made->unknown ||
                    memcmp(same->bytes, made->bytes, made->count * sizeof made->bytes[0]) != 0))
      same = same->older;
    if (same) { /* renewed; an entry in front of it is of an older generation and stays so */
      atomic_store_explicit(&same->generation, now, memory_order_release);
      free(made);
      result = same;
    } else {
      made->older = first;
      atomic_store_explicit(slot, made, memory_order_release); /* its content before the pointer */
    }
    pthread_mutex_unlock(&functions_mutex);
    return result;
  }
  pthread_mutex_unlock(&functions_mutex);
  free(made);
  report_reason(
      "more kernels than fit the scan's table: some launches are not looked at for state");
  return NULL;
}

const struct parameters *parameters_of(CUfunction function) {
  const uint64_t now = atomic_load_explicit(&generation, memory_order_relaxed);
  for (size_t probe = 0; probe < FUNCTION_PROBES; probe++) {
    const struct parameters *entry = atomic_load_explicit(
        &functions[(function_slot(function) + probe) % FUNCTION_SLOTS], memory_order_acquire);
    if (!entry)
      break;
    for (; entry && entry->function == function; entry = entry->older)
      if (atomic_load_explicit(&entry->generation, memory_order_acquire) == now)
        return entry;
  }
  CUstreamCaptureMode mode = quiet_begin();
  const struct parameters *learnt = learn_parameters(function, now);
  quiet_end(mode);
  return learnt;
}

const struct foreach_list *state_adding_list(CUfunction function) {
  const struct parameters *found = parameters_of(function);
  return found && found->has_list && found->adds ? &found->list : NULL;
}
