/* What is known of loaded images and of the kernels in them (image.h). Longer than most rooms: images, modules and kernels are
   remembered under one lock. */
#define _GNU_SOURCE
#include "image.h"
#include "cancel.h"
#include "elf.h"
#include "image_parse.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096, REGISTERED_MOST = 256, FILE_BYTES_MOST = 1 << 30 };

static const char unseen[] = "was loaded in a way that was not seen";
static const char nameless[] = "has no such kernel";
static const char unclear[] = "writes its parameters in a way that this version doesn't know";
static const char disagrees[] = "has entries that disagree about its parameters";
static const char gone[] = "is no longer there";
static const char no_memory[] = "could not be read: memory is short";

/* What one kernel's parameters are. */
struct layout {
  const char *why; /* NULL: they are known */
  unsigned count;
  struct image_parameter *parameters;
};

/* The kernels of an image that the program may free. */
struct row {
  uint64_t hash; /* of the name */
  char *name;
  struct layout layout;
};
struct table {
  struct row *rows;
  unsigned count, room;
  const char *why; /* what could not be read of the image */
};

struct load {
  struct load *next;
  const void *module, *library; /* library: whose module this is, or NULL */
  const uint8_t *fatbin;        /* in the object with this dynamic section; or NULL, and: */
  const ElfW(Dyn) * object;
  struct table table;
};

/* A function or kernel that the program has. */
struct met {
  struct met *next;
  const void *kernel, *module;
  const char *name;
  bool read;
  struct layout layout;
};

struct name {
  struct name *next;
  char text[];
};

/* Protects what follows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct load *loads[BUCKETS];
static struct met *mets[BUCKETS];
static struct name *names[BUCKETS]; /* never freed: readers keep them */

/* Adam kernels registered with a runtime, and where their fatbins are. A slot is complete once its wrapper is there. */
static struct {
  uint64_t hash; /* of the name */
  const void *wrapper;
} registered[REGISTERED_MOST];
static _Atomic unsigned registered_claimed;
static __thread const void *wrapper_before;

static unsigned bucket(const void *handle) {
  return (unsigned)((uintptr_t)handle * 0x9E3779B97F4A7C15u >> 52);
}

static uint64_t hash_of(const char *name, size_t bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
  return hash;
}

/* ---- layouts ---- */

static void layout_free(struct layout *layout) {
  free(layout->parameters);
  *layout = (struct layout){0};
}

static struct layout layout_copy(const struct image_kernel *kernel) {
  struct layout layout = {kernel->known ? NULL : unclear, 0, NULL};
  const size_t bytes = kernel->count * sizeof *kernel->parameters;
  if (!kernel->known || !bytes)
    return layout;
  layout.parameters = malloc(bytes);
  if (!layout.parameters)
    return (struct layout){no_memory, 0, NULL};
  memcpy(layout.parameters, kernel->parameters, bytes);
  layout.count = kernel->count;
  return layout;
}

/* One more entry says this of the same kernel. */
static void layout_compare(struct layout *layout, const struct image_kernel *kernel) {
  if (!layout->why && kernel->known && layout->count == kernel->count &&
      (!kernel->count || memcmp(layout->parameters, kernel->parameters,
                                kernel->count * sizeof *kernel->parameters) == 0))
    return;
  if (!layout->why)
    layout->why = kernel->known ? disagrees : unclear;
}

/* ---- reading an image ---- */

static struct row *row_of(const struct table *table, const char *name, size_t bytes) {
  const uint64_t hash = hash_of(name, bytes);
  for (unsigned i = 0; i < table->count; i++) {
    struct row *row = &table->rows[i];
    if (row->hash == hash && strncmp(row->name, name, bytes) == 0 && !row->name[bytes])
      return row;
  }
  return NULL;
}

static bool add_row(void *context, const struct image_kernel *kernel) {
  struct table *table = context;
  struct row *row = row_of(table, kernel->name, kernel->name_bytes);
  if (row) {
    layout_compare(&row->layout, kernel);
    return true;
  }
  if (table->count == table->room) {
    const unsigned room = table->room ? 2 * table->room : 16;
    struct row *grown = realloc(table->rows, room * sizeof *grown);
    if (!grown) {
      table->why = no_memory;
      return false;
    }
    table->rows = grown;
    table->room = room;
  }
  char *name = strndup(kernel->name, kernel->name_bytes);
  if (!name) {
    table->why = no_memory;
    return false;
  }
  table->rows[table->count++] =
      (struct row){hash_of(name, kernel->name_bytes), name, layout_copy(kernel)};
  return true;
}

static struct table table_of(const void *image, size_t bytes) {
  struct table table = {0};
  const char *why = image_each(image, bytes, add_row, &table);
  table.why = table.why ? table.why : why;
  return table;
}

static void table_free(struct table *table) {
  for (unsigned i = 0; i < table->count; i++) {
    free(table->rows[i].name);
    layout_free(&table->rows[i].layout);
  }
  free(table->rows);
  *table = (struct table){0};
}

/* Looks for one kernel, in the first entry that has it or in all. */
struct wanted {
  const char *name;
  size_t bytes;
  bool all, found;
  struct layout layout;
};

static bool compare_wanted(void *context, const struct image_kernel *kernel) {
  struct wanted *wanted = context;
  if (kernel->name_bytes != wanted->bytes || memcmp(kernel->name, wanted->name, wanted->bytes) != 0)
    return true;
  if (wanted->found)
    layout_compare(&wanted->layout, kernel);
  else
    wanted->layout = layout_copy(kernel);
  wanted->found = true;
  return wanted->all && !wanted->layout.why;
}

/* The object must be loaded still, or another may lie there: `bytes` are those to the end of the segment. */
static bool still_there(const struct load *load, size_t *bytes) {
  struct elf_object object;
  if (!elf_object_at((uintptr_t)load->fatbin, &object) || object.dynamic != load->object)
    return false;
  *bytes = object.start + object.bytes - (uintptr_t)load->fatbin;
  return true;
}

static struct layout find_in_fatbin(const struct load *load, const char *name, bool all) {
  struct wanted wanted = {.name = name, .bytes = strlen(name), .all = all};
  size_t bytes;
  if (!still_there(load, &bytes))
    return (struct layout){gone, 0, NULL};
  const char *why = image_each(load->fatbin, bytes, compare_wanted, &wanted);
  if (!wanted.found)
    wanted.layout.why = why ? why : nameless;
  return wanted.layout;
}

/* ---- records; under the lock ---- */

static struct load **load_slot(const void *module) {
  struct load **slot = &loads[bucket(module)];
  while (*slot && (*slot)->module != module)
    slot = &(*slot)->next;
  return slot;
}

static const struct load *load_of(const void *module) {
  const struct load *load = *load_slot(module);
  return load && load->library ? *load_slot(load->library) : load;
}

static struct met **met_slot(const void *kernel) {
  struct met **slot = &mets[bucket(kernel)];
  while (*slot && (*slot)->kernel != kernel)
    slot = &(*slot)->next;
  return slot;
}

static const char *keep_name(const char *text) {
  const size_t bytes = strlen(text) + 1;
  struct name **slot = &names[hash_of(text, bytes - 1) % BUCKETS];
  while (*slot && strcmp((*slot)->text, text) != 0)
    slot = &(*slot)->next;
  if (!*slot && (*slot = malloc(sizeof **slot + bytes))) {
    (*slot)->next = NULL;
    memcpy((*slot)->text, text, bytes);
  }
  return *slot ? (*slot)->text : NULL;
}

static void drop_load(struct load **slot) {
  struct load *load = *slot;
  *slot = load->next;
  table_free(&load->table);
  free(load);
}

static void drop_met(struct met **slot) {
  struct met *met = *slot;
  *slot = met->next;
  layout_free(&met->layout);
  free(met);
}

/* ---- loads ---- */

/* Takes the table over. Whatever was known of this handle is of an image that is gone. */
static void add_load(struct load with) {
  struct load *made = malloc(sizeof *made);
  image_unloaded(with.module);
  if (!made) {
    table_free(&with.table);
    return;
  }
  pthread_mutex_lock(&lock);
  struct load **slot = load_slot(with.module);
  *made = with;
  made->next = *slot;
  *slot = made;
  pthread_mutex_unlock(&lock);
}

/* The fatbin behind a wrapper of an object that is loaded. */
static bool of_object(const void *image, struct load *load) {
  struct elf_object object;
  load->fatbin = image_unwrap(image);
  if (!load->fatbin || !elf_object_at((uintptr_t)load->fatbin, &object)) {
    load->fatbin = NULL;
    return false;
  }
  load->object = object.dynamic;
  return true;
}

void image_loaded(const void *module, const void *image) {
  struct load load = {.module = module};
  if (!of_object(image, &load)) {
    const void *fatbin = image_unwrap(image);
    image = fatbin ? fatbin : image;
    load.table = table_of(image, image_bytes(image));
  }
  add_load(load);
}

/* The whole file; NULL when it can't be read. */
static void *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "re");
  void *contents = NULL;
  if (!file)
    return NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    const long end = ftell(file);
    rewind(file);
    if (end > 0 && end <= FILE_BYTES_MOST && (contents = malloc((size_t)end)))
      *bytes = fread(contents, 1, (size_t)end, file);
  }
  (void)fclose(file);
  return contents;
}

void image_loaded_file(const void *module, const char *path) {
  struct load load = {.module = module};
  size_t bytes = 0;
  const int cancel = cancel_hold();
  void *contents = read_file(path, &bytes);
  load.table = contents ? table_of(contents, bytes) : (struct table){.why = "can't be read again"};
  free(contents);
  add_load(load);
  cancel_allow(cancel);
}

void image_module_of_library(const void *module, const void *library) {
  if (module == library)
    return;
  pthread_mutex_lock(&lock);
  const struct load *known = *load_slot(module);
  const bool new = !known || known->library != library;
  pthread_mutex_unlock(&lock);
  if (new)
    add_load((struct load){.module = module, .library = library});
}

/* Whether what was loaded as `module` is this, or this library's module. */
static bool comes_from(const void *module, const void *unloaded) {
  const struct load *load = module == unloaded ? NULL : *load_slot(module);
  return module == unloaded || (load && load->library == unloaded);
}

void image_unloaded(const void *module) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < BUCKETS; i++)
    for (struct met **slot = &mets[i]; *slot;)
      if (comes_from((*slot)->module, module))
        drop_met(slot);
      else
        slot = &(*slot)->next;
  for (unsigned i = 0; i < BUCKETS; i++)
    for (struct load **slot = &loads[i]; *slot;)
      if ((*slot)->module == module || (*slot)->library == module)
        drop_load(slot);
      else
        slot = &(*slot)->next;
  pthread_mutex_unlock(&lock);
}

/* ---- kernels ---- */

void image_kernel_found(const void *kernel, const void *module, const char *name) {
  struct met *made = calloc(1, sizeof *made);
  pthread_mutex_lock(&lock);
  struct met **slot = met_slot(kernel);
  const char *kept = keep_name(name);
  const bool same = *slot && (*slot)->module == module && (*slot)->name == kept;
  if (*slot && !same)
    drop_met(slot);
  if (made && kept && !same) {
    *made = (struct met){.next = mets[bucket(kernel)], kernel, module, kept};
    mets[bucket(kernel)] = made;
    made = NULL;
  }
  pthread_mutex_unlock(&lock);
  free(made);
}

/* The record's module and name; false when there is none. */
static bool recorded(const void *kernel, const void **module, const char **name) {
  pthread_mutex_lock(&lock);
  const struct met *met = *met_slot(kernel);
  if (met) {
    *module = met->module;
    *name = met->name;
  }
  pthread_mutex_unlock(&lock);
  return met;
}

void image_function_of_kernel(const void *function, const void *kernel) {
  const void *module;
  const char *name;
  if (function != kernel && recorded(kernel, &module, &name))
    image_kernel_found(function, module, name);
}

void image_wrapper_seen(const void *wrapper) {
  wrapper_before = wrapper;
}

void image_adam_registered(const char *name) {
  const unsigned slot = atomic_fetch_add_explicit(&registered_claimed, 1, memory_order_relaxed);
  if (slot >= REGISTERED_MOST)
    return;
  registered[slot].hash = hash_of(name, strlen(name));
  /* release: whoever sees the wrapper sees the hash */
  __atomic_store_n(&registered[slot].wrapper, wrapper_before, __ATOMIC_RELEASE);
}

/* A kernel of a module that nobody saw loaded: what its program registered under this name. */
static bool registered_load(const char *name, struct load *load) {
  const uint64_t hash = hash_of(name, strlen(name));
  for (unsigned i = REGISTERED_MOST; i > 0; i--) {
    const void *wrapper = __atomic_load_n(&registered[i - 1].wrapper, __ATOMIC_ACQUIRE);
    struct elf_object object; /* may have gone since */
    if (wrapper && registered[i - 1].hash == hash && elf_object_at((uintptr_t)wrapper, &object) &&
        of_object(wrapper, load))
      return true;
  }
  return false;
}

/* ---- what is asked ---- */

const char *image_function_name(CUfunction function) {
  const void *module;
  const char *name = driver_function_name(function);
  if (name || !image_wanted())
    return name;
  return recorded(function, &module, &name) ? name : NULL;
}

/* A kernel of which only the driver has told (12.3 does): its module, too, can be asked for. */
static bool make_record(CUfunction function) {
  const char *name = driver_function_name(function);
  CUmodule module = NULL;
  if (!name)
    return false;
  if (driver.cuFuncGetModule && driver.cuFuncGetModule(&module, function) != CUDA_SUCCESS)
    module = NULL;
  image_kernel_found(function, module, name);
  return true;
}

/* Copies a table's answer. */
static struct layout find_in_table(const struct table *table, const char *name) {
  const struct row *row = row_of(table, name, strlen(name));
  if (!row)
    return (struct layout){table->why ? table->why : nameless, 0, NULL};
  const struct image_kernel kernel = {NULL, 0, true, row->layout.count, row->layout.parameters};
  return row->layout.why ? (struct layout){row->layout.why, 0, NULL} : layout_copy(&kernel);
}

/* The parameters of a kernel as its image says. The caller frees them. */
static struct layout read_layout(const void *module, const char *name, bool all) {
  struct load load = {0};
  struct layout layout = {unseen, 0, NULL};
  pthread_mutex_lock(&lock);
  const struct load *known = load_of(module);
  if (known && !known->fatbin)
    layout = find_in_table(&known->table, name);
  else if (known)
    load = *known;
  pthread_mutex_unlock(&lock);
  if (load.fatbin || (!known && registered_load(name, &load)))
    layout = find_in_fatbin(&load, name, all);
  return layout;
}

/* Makes sure that the function's record has been looked up in its image. */
static bool learn(CUfunction function, bool all) {
  const void *module;
  const char *name;
  if (!recorded(function, &module, &name) &&
      (!make_record(function) || !recorded(function, &module, &name)))
    return false;
  pthread_mutex_lock(&lock);
  const struct met *met = *met_slot(function);
  const bool done = met && met->read && !all;
  pthread_mutex_unlock(&lock);
  if (done)
    return true;
  struct layout layout = read_layout(module, name, all);
  pthread_mutex_lock(&lock);
  struct met *now = *met_slot(function);
  if (now && now->module == module && now->name == name) {
    const struct layout before = now->layout;
    now->layout = layout;
    now->read = true;
    layout = before;
  }
  pthread_mutex_unlock(&lock);
  layout_free(&layout);
  return true;
}

bool image_parameter(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  if (driver.cuFuncGetParamInfo &&
      driver.cuFuncGetParamInfo(function, index, offset, bytes) == CUDA_SUCCESS)
    return true;
  if (driver.cuKernelGetParamInfo &&
      driver.cuKernelGetParamInfo((CUkernel)function, index, offset, bytes) == CUDA_SUCCESS)
    return true;
  if (!image_wanted() || !learn(function, false))
    return false;
  pthread_mutex_lock(&lock);
  const struct met *met = *met_slot(function);
  const bool there = met && met->read && index < met->layout.count;
  if (there) {
    *offset = met->layout.parameters[index].offset;
    *bytes = met->layout.parameters[index].bytes;
  }
  pthread_mutex_unlock(&lock);
  return there;
}

static const char *why_unknown(CUfunction function, bool all) {
  if (!learn(function, all))
    return unseen;
  pthread_mutex_lock(&lock);
  const struct met *met = *met_slot(function);
  const char *why = met && met->read ? met->layout.why : unseen;
  pthread_mutex_unlock(&lock);
  return why;
}

const char *image_why(CUfunction function) {
  return why_unknown(function, false);
}

const char *image_check(CUfunction function) {
  return why_unknown(function, true);
}
