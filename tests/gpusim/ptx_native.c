/* The native engine: when a program is translated, where its object is kept, how it is loaded.
   Called by ptx_run.c at each launch.

   GPUSIM_ENGINE=native translates at the first launch, auto in the background once a kernel has been
   interpreted for GPUSIM_HOT_MILLIONS million instructions, interpreter never. Objects are kept in
   ${XDG_CACHE_HOME:-~/.cache}/gpusim, a folder that must be this user's alone, under a hash of the C
   source, the flags and the compiler; without such a folder they are made anew in /tmp and unlinked.
   Without a compiler, or when nothing in a program can be translated, it stays interpreted. */
#define _GNU_SOURCE
#include "ptx_native.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t hash(uint64_t h, const char *source, size_t bytes) {
  for (size_t k = 0; k < bytes; k++)
    h = (h ^ (unsigned char)source[k]) * 0x100000001b3u;
  return h;
}

/* A folder of this user that nobody else may write. */
static bool own_folder(const char *path) {
  struct stat status;
  mkdir(path, 0700); /* may be there */
  return lstat(path, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
         !(status.st_mode & 022);
}

/* The cache's folder; false when there is none that can be trusted. */
static bool cache_folder(char *into, size_t room) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const bool named = cache && *cache == '/';
  if (!named && !(home && *home == '/'))
    return false;
  const char *base = named ? cache : home, *below = named ? "" : "/.cache";
  int length = snprintf(into, room, "%s%s", base, below);
  if (length < 0 || (size_t)length >= room)
    return false;
  mkdir(into, 0700); /* may be there, and may be anyone's: only our own folder in it is trusted */
  length = snprintf(into, room, "%s%s/gpusim", base, below);
  return length > 0 && (size_t)length < room && own_folder(into);
}

static void *object_open(const char *path, uint64_t key) {
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const uint64_t *mark = object ? dlsym(object, "gpusim_key") : NULL;
  if (mark && *mark == key)
    return object;
  if (object)
    dlclose(object);
  return NULL;
}

static void *object_make(const char *source, size_t bytes, const char *folder, const char *final,
                         uint64_t key) {
  char temporary[4400];
  snprintf(temporary, sizeof temporary, "%s/new-XXXXXX", folder);
  int file = mkostemp(temporary, O_CLOEXEC);
  if (file < 0)
    return NULL;
  close(file);
  void *object = NULL;
  if (ptx_native_compile(source, bytes, temporary))
    object = object_open(temporary, key);
  if (!object || !final || rename(temporary, final) != 0)
    unlink(temporary);
  return object;
}

/* The object for a C source, from the cache or made. */
static void *object_of(const char *source, size_t bytes, uint64_t key) {
  char folder[4096], path[4200];
  if (!cache_folder(folder, sizeof folder))
    return object_make(source, bytes, "/tmp", NULL, key);
  snprintf(path, sizeof path, "%s/%016llx.so", folder, (unsigned long long)key);
  void *object = access(path, R_OK) == 0 ? object_open(path, key) : NULL;
  return object ? object : object_make(source, bytes, folder, path, key);
}

static struct ptx_native *translate(const struct ptx_program *program) {
  char *source = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&source, &bytes);
  struct ptx_native *native = calloc(1, sizeof *native);
  uint32_t *lengths = ptx_native_pieces(program);
  uint32_t pieces = out && lengths ? ptx_native_emit(program, lengths, out) : 0;
  uint64_t key = ptx_native_compiler();
  if (out && pieces && key) {
    fflush(out);
    key = hash(key ^ 0xcbf29ce484222325u, source, bytes);
    for (const char *const *flag = ptx_native_flags(bytes); *flag; flag++)
      key = hash(key, *flag, strlen(*flag));
    fprintf(out, "const uint64_t gpusim_key = UINT64_C(%llu);\n", (unsigned long long)key);
  }
  if (out)
    fclose(out);
  if (native && pieces && key)
    native->object = object_of(source, bytes, key);
  if (native && native->object)
    native->segments = calloc(program->count + 1u, sizeof *native->segments);
  for (uint32_t k = 0; native && native->segments && k < program->count; k++) {
    char name[16];
    snprintf(name, sizeof name, "s%u", k);
    void *symbol = lengths[k] ? dlsym(native->object, name) : NULL;
    memcpy(&native->segments[k].run, &symbol, sizeof symbol);
    native->segments[k].count = symbol ? lengths[k] : 0;
  }
  free(lengths);
  free(source);
  if (native && native->segments)
    return native;
  if (native && native->object)
    dlclose(native->object);
  free(native);
  return NULL;
}

/* ---- when ---- */

/* Protects `translation_begun` and `translating` of all programs. */
static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;

static void *in_background(void *argument) {
  struct ptx_program *program = argument;
  struct ptx_native *native = translate(program);
  __atomic_store_n(&program->native, native, __ATOMIC_RELEASE); /* whole before it is seen */
  return NULL;
}

const struct ptx_native *ptx_native_of(struct ptx_program *program) {
  const struct ptx_native *native = __atomic_load_n(&program->native, __ATOMIC_ACQUIRE);
  if (!strcmp(gpusim_settings.engine, "interpreter"))
    return NULL;
  if (native)
    return native;
  bool at_once = !strcmp(gpusim_settings.engine, "native");
  if (!at_once && __atomic_load_n(&program->interpreted, __ATOMIC_RELAXED) <
                      (uint64_t)gpusim_settings.hot_millions * 1000000u)
    return NULL;
  pthread_mutex_lock(&beginning);
  if (!program->translation_begun) {
    program->translation_begun = true;
    if (at_once)
      in_background(program);
    else
      program->translating =
          pthread_create(&program->translator, NULL, in_background, program) == 0;
  }
  pthread_mutex_unlock(&beginning);
  return __atomic_load_n(&program->native, __ATOMIC_ACQUIRE);
}

void ptx_native_free(struct ptx_program *program) {
  if (program->translating)
    pthread_join(program->translator, NULL);
  struct ptx_native *native = program->native;
  if (!native)
    return;
  free(native->segments);
  dlclose(native->object);
  free(native);
}
