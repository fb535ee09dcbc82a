/* Recognition of functions: see recognise.h. The cache is an array of words, each a handle and an
   index in one: a hit is a load and a compare, a flush stores zeroes, and nothing is ever freed
   under a reader. Launches are read in arguments.c. */
#define _GNU_SOURCE
#include "recognise.h"
#include "driver.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* '#' stands for one of the hexadecimal digits that differ from build to build. */
#define PATTERN(length, unit, digit)                                                               \
  "_ZN2at6native" length "_GLOBAL__N__########_" unit                                              \
  "_########25multi_tensor_apply_kernelINS1_32FusedOptimizerTensorListMetadataILi4EEENS1_"         \
  "20FusedAdamMathFunctorIfLi4ELNS0_9ADAM_MODEE" digit "ELb0EEEJPKfdddddbS9_S9_EEEvT_T0_DpT1_"

static const struct family families[] = {
#define FAMILY(family, name, length, unit, digit, mode, ...)                                       \
  {family, name, PATTERN(length, unit, digit), mode, __VA_ARGS__},
#include "families.def"
#undef FAMILY
};
enum { FAMILIES = sizeof families / sizeof *families };

/* What follows the metadata, whatever its size: functor, lr pointer, lr, beta1, beta2, weight
   decay, eps, maximize, grad_scale, found_inf. */
static const struct {
  size_t offset, size;
} parameters[FAMILY_PARAMETERS] = {{0, 0},  {0, 1},  {8, 8},  {16, 8}, {24, 8}, {32, 8},
                                   {40, 8}, {48, 8}, {56, 1}, {64, 8}, {72, 8}};

static bool matches(const char *name, const char *pattern) {
  for (; *pattern; name++, pattern++)
    if (*pattern == '#' ? !((*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'f'))
                        : *name != *pattern)
      return false;
  return !*name;
}

const struct family *recognise_name(const char *name) {
  /* Names share a long prefix: most functions are told apart by their first characters. */
  for (unsigned i = 0; i < FAMILIES; i++)
    if (matches(name, families[i].pattern))
      return &families[i];
  return NULL;
}

const struct family *recognise_layout(const char *name, unsigned count, const size_t *offsets,
                                      const size_t *sizes) {
  if (count != FAMILY_PARAMETERS)
    return NULL;
  for (unsigned i = 0; i < FAMILIES; i++) {
    const struct family *family = &families[i];
    if (!matches(name, family->pattern))
      continue;
    bool same = offsets[0] == 0 && (sizes[0] & 0xffffff) == family->metadata_bytes;
    for (unsigned k = 1; k < count && same; k++)
      same = offsets[k] == family->metadata_bytes + parameters[k].offset &&
             (sizes[k] & 0xffffff) == parameters[k].size;
    if (same)
      return family;
  }
  return NULL;
}

/* ---- functions met ---- */

/* Handles are addresses in user space: below 2^48. The low bits of a word say what the function is.
 */
enum { CACHE_WORDS = 4096, INDEX_BITS = 16, FUNCTIONS_MOST = 256 };
static _Atomic uint64_t cache[CACHE_WORDS];
static _Atomic unsigned flushes;

/* Protects the table below while it grows; readers follow an index out of the cache. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct function *functions[FUNCTIONS_MOST];
static char *names[FUNCTIONS_MOST]; /* their whole names, hashes and all */
static unsigned function_count;

static _Atomic uint64_t *cache_word(CUfunction function) {
  return &cache[(uint32_t)((uintptr_t)function >> 4) * 2654435761u >> 20];
}

static const char *name_of(CUfunction function) {
  const char *name = NULL;
  if (driver.cuFuncGetName && driver.cuFuncGetName(&name, function) == CUDA_SUCCESS && name)
    return name;
  /* A CUkernel may be passed where a CUfunction is asked for (cuda.h, cuLaunchKernel). */
  name = NULL;
  if (driver.cuKernelGetName && driver.cuKernelGetName(&name, (CUkernel)function) == CUDA_SUCCESS &&
      name)
    return name;
  return NULL;
}

static bool parameter_info(CUfunction function, size_t index, size_t *offset, size_t *size) {
  if (driver.cuFuncGetParamInfo &&
      driver.cuFuncGetParamInfo(function, index, offset, size) == CUDA_SUCCESS)
    return true;
  return driver.cuKernelGetParamInfo &&
         driver.cuKernelGetParamInfo((CUkernel)function, index, offset, size) == CUDA_SUCCESS;
}

static struct report_function *row_new(const struct family *family, unsigned metadata_bytes) {
  struct report_function *row = report_function_new();
  if (!row)
    return NULL;
  strncpy(row->family, family->family, sizeof row->family - 1);
  strncpy(row->name, family->name, sizeof row->name - 1);
  strncpy(row->generation, "unknown", sizeof row->generation - 1);
  strncpy(row->decay, "none", sizeof row->decay - 1);
  strncpy(row->mode, "none", sizeof row->mode - 1);
  row->metadata_bytes = metadata_bytes;
  return row;
}

/* Says once a row that a kernel of the right name has parameters that we don't know. */
static void report_layout(const struct family *family, unsigned count, size_t metadata_bytes) {
  static _Atomic unsigned rows;
  if (atomic_fetch_add_explicit(&rows, 1, memory_order_relaxed) >= 8)
    return;
  char why[sizeof(((struct report_function *)0)->why)] = "";
  if (count == 0)
    snprintf(why, sizeof why,
             "this driver tells no parameter layouts (cuFuncGetParamInfo, CUDA 12.4): left alone");
  else
    snprintf(why, sizeof why,
             "the parameters are laid out in a way this version does not know (%u parameters, the "
             "first of %zu bytes): left alone",
             count, metadata_bytes & 0xffffff);
  report_notice("%s: %s", family->name, why);
  struct report_function *row = row_new(family, (unsigned)(metadata_bytes & 0xffffff));
  if (row)
    memcpy(row->why, why, sizeof why);
}

/* A function's family by name and layout. */
static const struct family *classify(CUfunction function, const char *name) {
  const struct family *named = recognise_name(name);
  if (!named) {
    if (strstr(name, "FusedAdamMathFunctor"))
      report_reason("a fused Adam kernel of another type (not fp32, or amsgrad) was seen and left "
                    "alone: only fp32 without amsgrad is taken over");
    return NULL;
  }
  size_t offsets[FAMILY_PARAMETERS + 1] = {0}, sizes[FAMILY_PARAMETERS + 1] = {0};
  unsigned count = 0;
  while (count <= FAMILY_PARAMETERS &&
         parameter_info(function, count, &offsets[count], &sizes[count]))
    count++;
  const struct family *family = recognise_layout(name, count, offsets, sizes);
  if (!family)
    report_layout(named, count, sizes[0]);
  return family;
}

/* The table's index of a recognised function; -1 when the table is full. A handle that comes again
   under the same name after a flush is the same entry, with what was found out about it: any module
   that is unloaded flushes, and the running proof looks at every launch. Under another name only
   the report's row is kept. */
static int index_of(CUfunction function, const char *name, const struct family *family) {
  pthread_mutex_lock(&table_lock);
  int index = -1;
  struct report_function *row = NULL;
  for (unsigned i = 0; i < function_count && index < 0; i++)
    if (functions[i]->handle == function && functions[i]->family == family) {
      if (strcmp(names[i], name) == 0)
        index = (int)i;
      row = functions[i]->row;
    }
  if (index < 0 && function_count < FUNCTIONS_MOST) {
    struct function *met = calloc(1, sizeof *met);
    char *copy = strdup(name);
    if (met && copy) {
      met->handle = function;
      met->family = family;
      met->row = row ? row : row_new(family, family->metadata_bytes);
      names[function_count] = copy;
      functions[function_count] = met;
      index = (int)function_count++;
    } else {
      free(met);
      free(copy);
    }
  } else if (index < 0) {
    report_reason("more than %d fused Adam functions were met: further ones are left alone",
                  FUNCTIONS_MOST);
  }
  pthread_mutex_unlock(&table_lock);
  return index;
}

struct function *recognise(CUfunction function) {
  const uint64_t handle = (uint64_t)(uintptr_t)function;
  if (!handle || handle >> (64 - INDEX_BITS))
    return NULL;
  _Atomic uint64_t *word = cache_word(function);
  /* acquire: what the index stands for was written before the word was. */
  uint64_t found = atomic_load_explicit(word, memory_order_acquire);
  if (found >> INDEX_BITS != handle) {
    const unsigned flush = atomic_load_explicit(&flushes, memory_order_seq_cst);
    const char *name = name_of(function);
    const struct family *family = name ? classify(function, name) : NULL;
    const int index = family ? index_of(function, name, family) : -1;
    found = handle << INDEX_BITS | (uint64_t)(index + 1);
    atomic_store_explicit(word, found, memory_order_seq_cst);
    /* A flush that came in between wants this answer forgotten as well. */
    if (atomic_load_explicit(&flushes, memory_order_seq_cst) != flush)
      atomic_store_explicit(word, 0, memory_order_relaxed);
  }
  const unsigned index = found & ((1u << INDEX_BITS) - 1);
  return index ? functions[index - 1] : NULL;
}

void recognise_forget(void) {
  atomic_fetch_add_explicit(&flushes, 1, memory_order_seq_cst);
  for (unsigned i = 0; i < CACHE_WORDS; i++)
    atomic_store_explicit(&cache[i], 0, memory_order_seq_cst);
}

void recognise_each(void (*visit)(struct function *, void *), void *context) {
  pthread_mutex_lock(&table_lock);
  const unsigned count = function_count;
  pthread_mutex_unlock(&table_lock);
  for (unsigned i = 0; i < count; i++)
    visit(functions[i], context);
}
