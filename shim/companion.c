/* Loading of the companion object. RTLD_LOCAL and RTLD_DEEPBIND: an OpenMP runtime that the program
   loaded globally must not capture its calls (it would answer with a team of one).
   Sanitizer runtimes refuse RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include "companion.h"
#include "dlsym.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define COMPANION_FLAGS (RTLD_NOW | RTLD_LOCAL)
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define COMPANION_FLAGS (RTLD_NOW | RTLD_LOCAL)
#endif
#endif
#ifndef COMPANION_FLAGS
#define COMPANION_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

static const char file_name[] = "liboffload-adam.so";

/* One answer for the process. Two threads may both look for it: they find the same. */
struct answer {
  const struct adam_api *api;
  char why[400];
};
static struct answer the_answer;
static _Atomic(struct answer *) answer;
static atomic_flag looking = ATOMIC_FLAG_INIT;

/* Whether the file ends before its section headers, which linkers put last: the loader would map
   what isn't there, and touching that kills the program. */
static bool cut_short(const char *path) {
  ElfW(Ehdr) header;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false; /* the loader says why */
  const off_t bytes = lseek(fd, 0, SEEK_END);
  const bool whole =
      pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header &&
      !memcmp(header.e_ident, ELFMAG, SELFMAG) &&
      (uint64_t)bytes >= header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
  close(fd);
  return !whole;
}

static const struct adam_api *load(char *why, size_t why_bytes) {
  Dl_info info;
  static char path[4096]; /* one thread loads */
  if (!dladdr(file_name, &info) || !info.dli_fname) {
    snprintf(why, why_bytes, "this library does not know its own path, so not %s either",
             file_name);
    return NULL;
  }
  const char *slash = strrchr(info.dli_fname, '/');
  const int folder_bytes = slash ? (int)(slash - info.dli_fname) : 1;
  const int length =
      snprintf(path, sizeof path, "%.*s/%s", folder_bytes, slash ? info.dli_fname : ".", file_name);
  if (length < 0 || (size_t)length >= sizeof path) {
    snprintf(why, why_bytes, "the path of %s is too long", file_name);
    return NULL;
  }
  if (access(path, F_OK) != 0) {
    snprintf(why, why_bytes, "%s is missing: put it beside liboffload.so", file_name);
    return NULL;
  }
  const char *error = cut_short(path) ? "it is cut short" : NULL;
  void *object = error ? NULL : dlopen(path, COMPANION_FLAGS);
  if (!object) {
    error = error ? error : dlerror();
    const size_t named = strlen(path); /* the loader's message begins with it */
    if (error && !strncmp(error, path, named) && error[named] == ':')
      error += named + 1 + strspn(error + named + 1, " ");
    snprintf(why, why_bytes, "%s beside liboffload.so can't be loaded (%.160s): install both anew",
             file_name, error ? error : "unknown error");
    return NULL;
  }
  offload_adam_function *get =
      (offload_adam_function *)(uintptr_t)dlsym_real(object, "offload_adam");
  const struct adam_api *api = get ? get() : NULL;
  if (!api || api->abi != OFFLOAD_ADAM_ABI) {
    snprintf(why, why_bytes,
             "the %s beside liboffload.so is of another version (interface %u, this library wants "
             "%u): install both together",
             file_name, api ? api->abi : 0, OFFLOAD_ADAM_ABI);
    dlclose(object);
    return NULL;
  }
  return api;
}

const struct adam_api *companion_load(const char **why) {
  struct answer *found = atomic_load_explicit(&answer, memory_order_acquire);
  if (!found) {
    /* No lock across the loader: a second thread that comes meanwhile is told to do without for
     * this launch. */
    if (atomic_flag_test_and_set_explicit(&looking, memory_order_acquire)) {
      *why = "the CPU step's object is being loaded";
      return NULL;
    }
    found = &the_answer;
    found->api = load(found->why, sizeof found->why);
    atomic_store_explicit(&answer, found, memory_order_release);
  }
  *why = found->why;
  return found->api;
}

const struct adam_api *companion_loaded(const char **why) {
  struct answer *found = atomic_load_explicit(&answer, memory_order_acquire);
  *why = found ? found->why : "the CPU step's object is not loaded yet";
  return found ? found->api : NULL;
}
