/* GPUSIM_PTX=a.ptx:b.ptx: PTX for kernels whose own image has machine code only, found by mangled
   name. A name inside an anonymous namespace carries a hash of its source file, which no other
   build shares: it is left out of the comparison. Called by image.c. The files are read once, at
   the first need. */
#include "image.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096u
struct alternate {
  struct alternate *next;
  char *name; /* without hashes */
  struct gpusim_kernel *kernel;
};
static struct alternate *buckets[BUCKETS]; /* written once, in read_files */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* "<length>_GLOBAL__N__<hash>..." of <length> characters becomes "12_GLOBAL__N_1"-like text
   without the hash. */
static char *without_hashes(const char *name) {
  char *plain = malloc(strlen(name) + 1), *out = plain;
  while (plain) {
    const char *found = strstr(name, "_GLOBAL__N__");
    if (!found)
      break;
    const char *digits = found;
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9' && found - digits < 3)
      digits--;
    size_t length = strtoul(digits, NULL, 10);
    if (length < strlen("_GLOBAL__N__") || length > strlen(found))
      length = strlen("_GLOBAL__N__");
    memcpy(out, name, (size_t)(digits - name));
    out += digits - name;
    memcpy(out, "_GLOBAL_", 8);
    out += 8;
    name = found + length;
  }
  if (plain)
    memcpy(out, name, strlen(name) + 1);
  return plain;
}

static char *contents(const char *path) {
  FILE *file = fopen(path, "rb");
  char *code = NULL;
  size_t room = 0;
  if (!file)
    return NULL;
  if (getdelim(&code, &room, 0, file) < 0) { /* up to a zero byte, which PTX doesn't have */
    free(code);
    code = NULL;
  }
  fclose(file);
  return code;
}

static void read_file(const char *path) {
  char *code = contents(path);
  int error = 0;
  struct gpusim_image *image = code ? gpusim_image_load(code, &error) : NULL;
  free(code);
  if (!image) {
    gpusim_trace(0, "GPUSIM_PTX: %s: %s; name PTX files, separated by colons", path,
                 error ? "isn't an image that can be read" : "can't be opened");
    return;
  }
  for (struct gpusim_kernel *k = gpusim_image_kernels(image); k; k = k->next) {
    struct alternate *a = malloc(sizeof *a);
    char *name = without_hashes(k->name);
    if (!a || !name || !k->ptx) {
      free(a);
      free(name);
      continue;
    }
    uint32_t bucket = gpusim_name_hash(name, strlen(name)) % BUCKETS;
    *a = (struct alternate){buckets[bucket], name, k};
    buckets[bucket] = a;
  }
}

static void read_files(void) {
  char *list = strdup(gpusim_settings.ptx), *rest = NULL;
  for (char *path = strtok_r(list, ":", &rest); path; path = strtok_r(NULL, ":", &rest))
    read_file(path);
  free(list);
}

struct gpusim_kernel *gpusim_alternate(const char *name) {
  pthread_once(&once, read_files);
  char *plain = without_hashes(name);
  const struct alternate *a =
      plain ? buckets[gpusim_name_hash(plain, strlen(plain)) % BUCKETS] : NULL;
  while (a && strcmp(a->name, plain) != 0)
    a = a->next;
  free(plain);
  return a ? a->kernel : NULL;
}
