/* A handler that ends the process on top of its own allocator: malloc and the rest of it are this program's, and one of their calls, in the
   middle of a launch, is interrupted by SIGTERM, whose handler calls exit. An allocator's lock would be held then by the thread that exits:
   whoever asked it for anything as the process ends would wait for ever. So calls are counted, between the handler of atexit that was
   registered last and the one that was first: of the thread that exits, and of the library's recorder beside it. */
#define _GNU_SOURCE
#include "life.h"
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>

/* Libraries call these. */
#define SEEN __attribute__((visibility("default")))

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static __thread bool main_thread;
static _Atomic unsigned until; /* calls of the main thread until the signal; 0: none */
static _Atomic bool ends;      /* the process does */
static _Atomic unsigned calls; /* since then */

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
  char text[160];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (write(STDERR_FILENO, text, (size_t)length) != length)
    _exit(2);
}

static bool recorder(void) {
  char name[16] = "";
  (void)prctl(PR_GET_NAME, name);
  return strcmp(name, "offload-record") == 0;
}

static void called(const char *what, const void *caller) {
  if (ends && (main_thread || recorder())) {
    say("%s, called from %p as the process ends\n", what, caller);
    calls++;
  }
  if (main_thread && until && --until == 0)
    (void)raise(SIGTERM);
}

SEEN void *malloc(size_t bytes) {
  called("malloc", __builtin_return_address(0));
  return __libc_malloc(bytes);
}
SEEN void *calloc(size_t count, size_t bytes) {
  called("calloc", __builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
SEEN void *realloc(void *memory, size_t bytes) {
  called("realloc", __builtin_return_address(0));
  return __libc_realloc(memory, bytes);
}
SEEN void free(void *memory) {
  if (memory)
    called("free", __builtin_return_address(0));
  __libc_free(memory);
}
SEEN void *memalign(size_t alignment, size_t bytes) {
  called("memalign", __builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
SEEN void *aligned_alloc(size_t alignment, size_t bytes) {
  called("aligned_alloc", __builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
SEEN int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  called("posix_memalign", __builtin_return_address(0));
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

static void first_of_all(void) {
  ends = true;
}
static void last_of_all(void) {
  ends = false;
  say("the allocator was asked %u times as the process ended\n", calls);
}

static void on_term(int unused) {
  (void)unused;
  exit(5);
}

/* The argument: which call of the allocator is interrupted. */
static void exits_in_allocator(const char *number) {
  static struct trainer trainer;
  const struct sigaction action = {.sa_handler = on_term};
  main_thread = true;
  CHECK(atexit(last_of_all) == 0);
  train(&trainer, 4);
  CU(cuStreamSynchronize(trainer.stream));
  usleep(50000); /* the library's threads count what they did after it is done */
  CHECK(sigaction(SIGTERM, &action, NULL) == 0 && atexit(first_of_all) == 0);
  until = (unsigned)atoi(number);
  for (;;)
    CU(trainer_launch(&trainer));
}

int main(int count, char **list) {
  static const struct word words[] = {{"exit", exits_in_allocator}, {NULL, NULL}};
  return run_word(count, list, words);
}
