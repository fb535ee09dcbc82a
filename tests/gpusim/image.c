/* Images: PTX text, a cubin, a fatbin or nvcc's wrapper around one (layouts: fatbinary_section.h
   and what nvcc 13.0 writes). Called by the module and launch rooms. An image is looked into when
   something in it is first asked for: decompressed, indexed; bodies are decoded at the first
   launch. Its lock protects that; afterwards the tables don't change, except that a kernel without
   PTX may be given that of GPUSIM_PTX. */
#include "image.h"
#include "ptx.h"
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define BUCKETS 256u

enum { ENTRY_PTX = 1, ENTRY_CUBIN = 2 };
enum { FLAG_LZ4 = 0x2000, FLAG_ZSTD = 0x8000 };
struct wrapper {
  uint32_t magic, version;
  const void *fatbin, *file;
};
struct fatbin {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes; /* of all entries */
};
struct entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes, options_at;
  uint16_t minor, major;
  uint32_t architecture; /* 90: compute_90, sm_90 */
  uint32_t name_at, name_bytes;
  uint64_t flags, reserved, raw_bytes;
};

struct gpusim_image {
  pthread_mutex_t lock;
  int references; /* gpusim_mutex */
  bool indexed;
  const void *code; /* fatbin or cubin */
  void *copy;       /* of `code`, when the caller may free it */
  struct ptx_module **modules;
  uint32_t module_count, module_capacity;
  struct gpusim_kernel *first, **last;
  struct gpusim_kernel *buckets[BUCKETS];
};

uint32_t gpusim_name_hash(const char *name, size_t length) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < length; i++)
    hash = (hash ^ (unsigned char)name[i]) * 16777619u;
  return hash;
}

static struct gpusim_kernel *find(const struct gpusim_image *image, const char *name,
                                  size_t length) {
  struct gpusim_kernel *k = image->buckets[gpusim_name_hash(name, length) % BUCKETS];
  while (k && (strncmp(k->name, name, length) != 0 || k->name[length]))
    k = k->hash_next;
  return k;
}

struct gpusim_kernel *gpusim_image_add(struct gpusim_image *image, const char *name,
                                       size_t length) {
  struct gpusim_kernel *kernel = find(image, name, length);
  if (kernel)
    return kernel;
  struct gpusim_kernel **bucket = &image->buckets[gpusim_name_hash(name, length) % BUCKETS];
  kernel = calloc(1, sizeof *kernel);
  kernel->image = image;
  kernel->name = strndup(name, length);
  kernel->max_threads = 1024;
  kernel->hash_next = *bucket;
  *bucket = kernel;
  *image->last = kernel;
  image->last = &kernel->next;
  return kernel;
}

/* ---- entries of a fatbin ---- */

static void *library_function(const char *library, const char *function) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void *found = handle ? dlsym(handle, function) : NULL;
  if (!found)
    gpusim_trace(0,
                 "the image is compressed, and %s can't be loaded: install it, or compile with "
                 "--no-compress",
                 library);
  return found;
}

/* The entry's contents, ended by a zero byte; allocated. NULL when they can't be unpacked. */
static char *unpacked(const struct entry *entry, size_t *bytes) {
  const char *payload = (const char *)entry + entry->header_bytes;
  size_t packed = entry->compressed_bytes ? entry->compressed_bytes : entry->payload_bytes;
  bool compressed = entry->flags & (FLAG_LZ4 | FLAG_ZSTD);
  *bytes = compressed ? entry->raw_bytes : entry->payload_bytes;
  char *contents = malloc(*bytes + 1);
  size_t got = 0;
  if (!contents)
    return NULL;
  if (!compressed) {
    memcpy(contents, payload, *bytes);
    got = *bytes;
  } else if (entry->flags & FLAG_ZSTD) {
    size_t (*decompress)(void *, size_t, const void *, size_t);
    *(void **)&decompress = library_function("libzstd.so.1", "ZSTD_decompress");
    if (decompress)
      got = decompress(contents, *bytes, payload, packed);
  } else {
    int (*decompress)(const char *, char *, int, int);
    *(void **)&decompress = library_function("liblz4.so.1", "LZ4_decompress_safe");
    if (decompress)
      got = (size_t)decompress(payload, contents, (int)packed, (int)*bytes);
  }
  if (got != *bytes) {
    gpusim_trace(0, "an entry of a fatbin unpacks to %zu bytes instead of %zu", got, *bytes);
    free(contents);
    return NULL;
  }
  contents[got] = 0;
  return contents;
}

/* Can this device use the entry? PTX of its own or a lower architecture; machine code of the
   same generation. */
static bool usable(const struct entry *entry) {
  uint32_t device = (uint32_t)gpusim_settings.compute_capability;
  return entry->architecture <= device &&
         (entry->kind == ENTRY_PTX ||
          (entry->kind == ENTRY_CUBIN && entry->architecture / 10 == device / 10));
}

#define EACH_ENTRY(fatbin, e)                                                                      \
  for (const uint8_t *at_ = (const uint8_t *)(fatbin) + (fatbin)->header_bytes,                    \
                     *end_ = at_ + (fatbin)->bytes;                                                \
       at_ + sizeof(struct entry) <= end_;)                                                        \
    for (const struct entry *e = (const void *)at_; e;                                             \
         at_ += e->header_bytes + e->payload_bytes, e = NULL)

/* The highest usable architecture among entries of a kind, 0 if there is none. */
static uint32_t best_architecture(const struct fatbin *fatbin, uint16_t kind) {
  uint32_t best = 0;
  EACH_ENTRY(fatbin, e)
  if (e->kind == kind && usable(e) && e->architecture > best)
    best = e->architecture;
  return best;
}

/* ---- indexing ---- */

/* Takes `ptx` over. */
static bool add_ptx(struct gpusim_image *image, char *ptx) {
  char error[512] = "";
  struct ptx_module *module = ptx_module_parse(ptx, error, sizeof error);
  if (!module) {
    gpusim_trace(0, "PTX that can't be read: %s", error);
    return false;
  }
  image->modules = ptx_grow(image->modules, image->module_count, &image->module_capacity,
                            sizeof *image->modules);
  image->modules[image->module_count++] = module;
  for (struct ptx_function *f = module->functions; f; f = f->next) {
    if (!f->entry || !f->has_body)
      continue;
    struct gpusim_kernel *k = gpusim_image_add(image, f->name, strlen(f->name));
    if (k->ptx)
      continue;
    k->ptx = f;
    k->from_ptx = true;
    k->parameter_count = f->parameter_count;
    k->parameters = calloc((size_t)f->parameter_count + 1, sizeof *k->parameters);
    if (f->parameter_count)
      memcpy(k->parameters, f->parameters, (size_t)f->parameter_count * sizeof *k->parameters);
    k->parameter_bytes = f->parameter_bytes;
    k->static_shared_bytes = f->static_shared_bytes;
    k->architecture = module->architecture;
    k->max_threads = f->max_threads ? f->max_threads : 1024;
    if (f->required_block[0])
      k->max_threads = f->required_block[0] * f->required_block[1] * f->required_block[2];
  }
  return true;
}

static void add_entries(struct gpusim_image *image, const struct fatbin *fatbin) {
  uint16_t kind = ENTRY_PTX; /* its parameters are documented, and it can be run */
  uint32_t best = best_architecture(fatbin, kind);
  if (!best) {
    kind = ENTRY_CUBIN;
    best = best_architecture(fatbin, kind);
  }
  EACH_ENTRY(fatbin, e) {
    size_t bytes;
    char *contents = e->kind == kind && e->architecture == best ? unpacked(e, &bytes) : NULL;
    if (!contents)
      continue;
    gpusim_trace(3, "image: %s %u, %zu bytes", kind == ENTRY_PTX ? "PTX" : "cubin", best, bytes);
    if (kind == ENTRY_PTX) {
      add_ptx(image, contents);
    } else {
      gpusim_cubin_read(image, (const uint8_t *)contents, bytes);
      free(contents);
    }
  }
}

static void index_once(struct gpusim_image *image) {
  pthread_mutex_lock(&image->lock);
  if (!image->indexed && image->code) {
    const struct fatbin *fatbin = image->code;
    if (fatbin->magic == FATBIN_MAGIC)
      add_entries(image, fatbin);
    else
      gpusim_cubin_read(image, image->code, gpusim_elf_bytes(image->code));
  }
  image->indexed = true;
  pthread_mutex_unlock(&image->lock);
}

/* ---- what other rooms call ---- */

static struct gpusim_image *image_new(void) {
  struct gpusim_image *image = calloc(1, sizeof *image);
  pthread_mutex_init(&image->lock, NULL);
  image->references = 1;
  image->last = &image->first;
  return image;
}

static struct gpusim_image *fail(struct gpusim_image *image, int *error, int result) {
  gpusim_image_free(image);
  *error = result;
  return NULL;
}

static void *copy_of(const void *bytes, size_t size) {
  void *copy = malloc(size);
  if (copy)
    memcpy(copy, bytes, size);
  return copy;
}

/* With machine code for this device the driver needs no PTX. */
static int check_ptx_version(const struct fatbin *fatbin) {
  if (!gpusim_ptx_acceptable_version(NULL) || best_architecture(fatbin, ENTRY_CUBIN))
    return 0;
  uint32_t best = best_architecture(fatbin, ENTRY_PTX);
  int result = 0;
  EACH_ENTRY(fatbin, e) {
    size_t bytes;
    char *contents = e->kind == ENTRY_PTX && e->architecture == best ? unpacked(e, &bytes) : NULL;
    if (contents && !result)
      result = gpusim_ptx_acceptable_version(contents);
    free(contents);
  }
  return result;
}

struct gpusim_image *gpusim_image_load(const void *code, int *error) {
  struct gpusim_image *image = image_new();
  uint32_t magic;
  bool wrapped = false;
  *error = 0;
  if (strnlen(code, sizeof magic) < sizeof magic) /* no magic number has a zero byte */
    return fail(image, error, 200);
  memcpy(&magic, code, sizeof magic);
  if (magic == WRAPPER_MAGIC) { /* part of a loaded program, which stays */
    code = ((const struct wrapper *)code)->fatbin;
    memcpy(&magic, code, sizeof magic);
    wrapped = true;
  }
  if (magic == FATBIN_MAGIC) {
    const struct fatbin *fatbin = code;
    if (!best_architecture(fatbin, ENTRY_PTX) && !best_architecture(fatbin, ENTRY_CUBIN)) {
      gpusim_trace(1, "a fatbin has nothing for compute capability %d",
                   gpusim_settings.compute_capability);
      return fail(image, error, 209);
    }
    int too_new = check_ptx_version(fatbin);
    if (too_new)
      return fail(image, error, too_new);
    if (!wrapped)
      image->copy = copy_of(code, fatbin->header_bytes + fatbin->bytes);
    image->code = wrapped ? code : image->copy;
  } else if (gpusim_elf_bytes(code)) {
    image->copy = copy_of(code, gpusim_elf_bytes(code));
    image->code = image->copy;
  } else if (wrapped) {
    return fail(image, error, 200);
  } else {
    image->indexed = true;
    int too_new = gpusim_ptx_acceptable_version(code);
    if (too_new)
      return fail(image, error, too_new);
    if (!add_ptx(image, strdup(code)))
      return fail(image, error, 218);
  }
  return image;
}

void gpusim_image_hold(struct gpusim_image *image) {
  image->references++;
}

void gpusim_image_free(struct gpusim_image *image) {
  if (!image || --image->references > 0)
    return;
  for (struct gpusim_kernel *k = image->first, *next; k; k = next) {
    next = k->next;
    free(k->name);
    free(k->parameters);
    free(k);
  }
  for (uint32_t i = 0; i < image->module_count; i++)
    ptx_module_free(image->modules[i]);
  free(image->modules);
  free(image->copy);
  pthread_mutex_destroy(&image->lock);
  free(image);
}

struct gpusim_kernel *gpusim_image_kernel(struct gpusim_image *image, const char *name) {
  index_once(image);
  struct gpusim_kernel *kernel = find(image, name, strlen(name));
  if (kernel && !kernel->ptx && gpusim_settings.ptx) {
    const struct gpusim_kernel *alternate = gpusim_alternate(name);
    if (alternate && kernel->parameter_bytes &&
        kernel->parameter_bytes != alternate->parameter_bytes)
      gpusim_trace(0,
                   "GPUSIM_PTX: %s has %u bytes of parameters there, %u in its own image; not used",
                   name, alternate->parameter_bytes, kernel->parameter_bytes);
    else if (alternate)
      kernel->ptx = alternate->ptx;
  }
  return kernel;
}

struct gpusim_global *gpusim_image_global(struct gpusim_image *image, const char *name) {
  index_once(image);
  for (uint32_t i = 0; i < image->module_count; i++)
    for (struct gpusim_global *g = image->modules[i]->globals; g; g = g->next)
      if (!strcmp(g->name, name))
        return g;
  return NULL;
}

struct gpusim_kernel *gpusim_image_known_kernels(struct gpusim_image *image) {
  return image->first;
}

struct gpusim_kernel *gpusim_image_kernels(struct gpusim_image *image) {
  index_once(image);
  return image->first;
}
