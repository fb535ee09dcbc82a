/* Recognition of functions: see recognise.h. The cache is an array of words, each a handle and an
   index in one: a hit is a load and a compare, a flush stores zeroes, and nothing is ever freed
   under a reader. Launches are read in arguments.c. */
#define _GNU_SOURCE
#include "recognise.h"
#include "../policy/leaf.h"
#include "driver.h"
#include "foreign.h"
#include "image.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum signature_id {
#define SIGNATURE(id, ...) id,
#include "families.def"
  SIGNATURES
};

static const struct optimizer {
  const char *family, *title, *unit;
  enum adam_mode mode;
  unsigned lists;
  const char *template_arguments;
} optimizers[] = {
#define OPTIMIZER(...) {__VA_ARGS__},
#include "families.def"
};

static const struct type {
  const char *title, *functor;
  unsigned lists;
  enum signature_id first;
  enum adam_type parameter, state;
  const char *before_2_3, *since_2_3;
} types[] = {
#define TYPE(...) {__VA_ARGS__},
#include "families.def"
};

/* Arguments are kept as number + 1, so that what is left out is 0. */
enum {
#define X(name, size, member) name = ARGUMENT_##name + 1,
  ARGUMENT_LIST(X)
#undef X
};
static const struct signature {
  bool in_name;
  const char *pack;
  unsigned char arguments[ARGUMENTS_MOST];
} signatures[] = {
#define SIGNATURE(id, in_name, pack, ...) {in_name, pack, {__VA_ARGS__}},
#include "families.def"
};

static const struct layout {
  enum signature_id first, last;
  unsigned lists, bytes, tensors, blocks, numel_bytes, block_tensor_bytes;
} layouts[] = {
#define LAYOUT(...) {__VA_ARGS__},
#include "families.def"
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- names ---- */

/* Steps over `pattern` at *at: '#' is a hexadecimal digit, '@' stands for `reference`. */
static bool take(const char **at, const char *pattern, const char *reference) {
  const char *name = *at;
  for (; *pattern; pattern++) {
    if (*pattern == '@') {
      const size_t length = strlen(reference);
      if (strncmp(name, reference, length) != 0)
        return false;
      name += length;
    } else if (*pattern == '#' ? (*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'f')
                               : *name == *pattern) {
      name++;
    } else {
      return false;
    }
  }
  *at = name;
  return true;
}

static bool take_digit(const char **at, unsigned digit) {
  if (**at != (char)('0' + digit))
    return false;
  ++*at;
  return true;
}

/* What a name says, as rows of the lists above. */
struct parts {
  const struct optimizer *optimizer;
  const struct type *type;
  enum signature_id signature;
};

static bool take_tail(const char *at, const struct parts *parts) {
  const struct signature *signature = &signatures[parts->signature];
  const struct type *type = parts->type;
  const char *reference = signature->in_name ? type->since_2_3 : type->before_2_3;
  return take(&at, type->functor, "") && take(&at, "Li", "") &&
         take_digit(&at, parts->optimizer->lists) && take(&at, "E", "") &&
         (!signature->in_name || take(&at, parts->optimizer->template_arguments, "")) &&
         take(&at, "EEJ", "") && take(&at, signature->pack, reference) &&
         take(&at, "EEEvT_T0_DpT1_", "") && !*at;
}

static bool name_parts(const char *name, struct parts *parts) {
  if (!take(&name, "_ZN2at6native", ""))
    return false;
  for (size_t i = 0; i < COUNT(optimizers); i++) {
    const char *at = name;
    parts->optimizer = &optimizers[i];
    if (!take(&at, optimizers[i].unit, "") ||
        !take(&at, "25multi_tensor_apply_kernelINS1_32FusedOptimizerTensorListMetadataILi", "") ||
        !take_digit(&at, optimizers[i].lists) || !take(&at, "EEENS1_", ""))
      continue;
    for (size_t t = 0; t < COUNT(types); t++)
      for (unsigned s = types[t].first; s < SIGNATURES; s++) {
        parts->type = &types[t];
        parts->signature = (enum signature_id)s;
        if ((!types[t].lists || types[t].lists == optimizers[i].lists) && take_tail(at, parts))
          return true;
      }
  }
  return false;
}

bool recognise_name(const char *name) {
  struct parts parts;
  return name_parts(name, &parts);
}

/* ---- layouts ---- */

static const unsigned argument_bytes[ARGUMENTS_MOST] = {
#define X(name, size, member) [ARGUMENT_##name] = (size),
    ARGUMENT_LIST(X)
#undef X
};

static unsigned aligned(unsigned offset, unsigned alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

static void lay_out(struct family *family, const struct layout *layout) {
  family->lists = layout->lists;
  family->metadata_bytes = layout->bytes;
  family->tensors = layout->tensors;
  family->blocks = layout->blocks;
  family->numel_bytes = layout->numel_bytes;
  family->block_tensor_bytes = layout->block_tensor_bytes;
  family->numel_offset = layout->lists * layout->tensors * 8;
  family->steps_offset = aligned(family->numel_offset + layout->tensors * layout->numel_bytes, 8);
  family->block_tensor_offset = family->steps_offset + layout->tensors * 8;
  family->block_chunk_offset =
      aligned(family->block_tensor_offset + layout->blocks * layout->block_tensor_bytes, 4);
}

static void lay_out_arguments(struct family *family, const struct signature *signature) {
  unsigned end = 0;
  for (unsigned i = 0; i < ARGUMENTS_MOST && signature->arguments[i]; i++) {
    const unsigned argument = signature->arguments[i] - 1u, bytes = argument_bytes[argument];
    family->arguments[i] = (enum argument)argument;
    family->offsets[i] = aligned(end, bytes);
    end = family->offsets[i] + bytes;
    family->argument_count = i + 1;
  }
  family->arguments_bytes = end;
}

static struct family family_of(const struct parts *parts, const struct layout *layout) {
  struct family family = {.family = parts->optimizer->family,
                          .mode = parts->optimizer->mode,
                          .type = parts->type->parameter,
                          .state_type = parts->type->state,
                          .parameter_bytes = (unsigned)adam_type_bytes(parts->type->parameter),
                          .state_bytes = (unsigned)adam_type_bytes(parts->type->state)};
  snprintf(family.name, sizeof family.name, "%s %s", parts->optimizer->title, parts->type->title);
  lay_out(&family, layout);
  lay_out_arguments(&family, &signatures[parts->signature]);
  return family;
}

static bool same_parameters(const struct family *family, unsigned count, const size_t *offsets,
                            const size_t *sizes) {
  bool same = count == family->argument_count + 1 && offsets[0] == 0 &&
              (sizes[0] & 0xffffff) == family->metadata_bytes;
  for (unsigned i = 0; same && i < family->argument_count; i++)
    same = offsets[i + 1] == family->metadata_bytes + family->offsets[i] &&
           (sizes[i + 1] & 0xffffff) == argument_bytes[family->arguments[i]];
  return same;
}

bool recognise_layout(const char *name, unsigned count, const size_t *offsets, const size_t *sizes,
                      struct family *family) {
  struct parts parts;
  if (!name_parts(name, &parts))
    return false;
  for (size_t i = 0; i < COUNT(layouts); i++) {
    if (layouts[i].lists != parts.optimizer->lists || parts.signature < layouts[i].first ||
        parts.signature > layouts[i].last)
      continue;
    *family = family_of(&parts, &layouts[i]);
    if (same_parameters(family, count, offsets, sizes))
      return true;
  }
  return false;
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

/* Says once a row that a kernel of the right name has parameters that we don't know. `unread`: why its image doesn't tell them
   either, where the driver doesn't. */
static void report_layout(const struct parts *parts, const char *unread, unsigned count,
                          size_t metadata_bytes) {
  static _Atomic unsigned rows;
  if (atomic_fetch_add_explicit(&rows, 1, memory_order_relaxed) >= 8)
    return;
  char why[sizeof(((struct report_function *)0)->why)] = "";
  if (unread)
    snprintf(
        why, sizeof why,
        "this driver (before CUDA 12.4) tells no parameter layouts, and the kernel's image %s: "
        "left alone",
        unread);
  else
    snprintf(why, sizeof why,
             "the parameters are laid out in a way this version does not know (%u parameters, the "
             "first of %zu bytes): left alone",
             count, metadata_bytes & 0xffffff);
  char name[sizeof(((struct family *)0)->name)];
  snprintf(name, sizeof name, "%s %s", parts->optimizer->title, parts->type->title);
  report_notice("%s: %s", name, why);
  struct report_function *row =
      report_function_new(parts->optimizer->family, name, (unsigned)(metadata_bytes & 0xffffff));
  if (row)
    report_set(row->why, sizeof row->why, "%s", why);
}

/* A function's family by name and layout, or that it is somebody else's optimizer; false when it is neither. */
static bool classify(CUfunction function, const char *name, struct function *met) {
  struct family *family = &met->family;
  struct parts parts;
  *met = (struct function){.handle = function};
  if (!name_parts(name, &parts)) {
    if (strstr(name, "FusedAdamMathFunctor"))
      report_notice("a fused Adam kernel of a PyTorch release that this version does not know was "
                    "seen: its state stays on the device (%.120s)",
                    strstr(name, "FusedAdamMathFunctor"));
    else
      met->foreign = foreign_of(function, name);
    return met->foreign;
  }
  const char *unread = image_wanted() ? image_check(function) : NULL;
  size_t offsets[PARAMETERS_MOST + 1] = {0}, sizes[PARAMETERS_MOST + 1] = {0};
  unsigned count = 0;
  while (count <= PARAMETERS_MOST &&
         image_parameter(function, count, &offsets[count], &sizes[count]))
    count++;
  if (recognise_layout(name, count, offsets, sizes, family))
    return true;
  report_layout(&parts, unread, count, sizes[0]);
  return false;
}

/* The table's index of a recognised function; -1 when the table is full. A handle that comes again
   under the same name after a flush is the same entry, with what was found out about it: any module
   that is unloaded flushes, and the running proof looks at every launch. Under another name only
   the report's row is kept, if it says the same. */
static int index_of(const struct function *found, const char *name) {
  const struct family *family = &found->family;
  pthread_mutex_lock(&table_lock);
  int index = -1;
  struct report_function *row = NULL;
  for (unsigned i = 0; i < function_count && index < 0; i++)
    if (functions[i]->handle == found->handle && functions[i]->foreign == found->foreign &&
        functions[i]->family.metadata_bytes == family->metadata_bytes &&
        strcmp(functions[i]->family.name, family->name) == 0) {
      if (strcmp(names[i], name) == 0)
        index = (int)i;
      row = functions[i]->row;
    }
  if (index < 0 && function_count < FUNCTIONS_MOST) {
    struct function *met = calloc(1, sizeof *met);
    char *copy = strdup(name);
    if (met && copy) {
      *met = *found;
      if (!met->foreign) /* foreign.c has rows of its own */
        met->row =
            row ? row : report_function_new(family->family, family->name, family->metadata_bytes);
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

/* A foreign function met before under this name: what is known of it holds. -1 when it is not. */
static int foreign_index(CUfunction function, const char *name) {
  int index = -1;
  pthread_mutex_lock(&table_lock);
  for (unsigned i = 0; i < function_count && index < 0; i++)
    if (functions[i]->handle == function && functions[i]->foreign && strcmp(names[i], name) == 0)
      index = (int)i;
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
    const char *name = image_function_name(function);
    struct function met;
    int index = name ? foreign_index(function, name) : -1;
    if (name && index < 0 && classify(function, name, &met))
      index = index_of(&met, name);
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
  if (!leaf_lock(&table_lock))
    return;
  const unsigned count = function_count;
  pthread_mutex_unlock(&table_lock);
  for (unsigned i = 0; i < count; i++)
    visit(functions[i], context);
}
