/* The system's compiler: cc, as a child process with an environment of its own, so that what is
   preloaded into the program isn't into the compiler. Called by ptx_native.c. */
#define _GNU_SOURCE
#include "ptx_native.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Nothing fused or assumed that PTX doesn't say, as in ptx.mk. The most that compilers do takes them
   half a minute for the largest kernels of sorting libraries, four times what -O1 with vector code
   takes, which is a fifth slower. */
enum { LARGE_BYTES = 100000 };
const char *const *ptx_native_flags(size_t bytes) {
  static const char *const flags[2][2][16] = {
      {{"-O3", NULL}, {"-O1", "-ftree-loop-vectorize", NULL}},
      {{"-march=x86-64-v3", "-O3", NULL},
       {"-march=x86-64-v3", "-O1", "-ftree-loop-vectorize", NULL}}};
  return flags[ptx_cpu_has_v3()][bytes > LARGE_BYTES];
}

/* cc on the PATH, or NULL. */
static char *compiler_path(char *into, size_t room) {
  const char *path = getenv("PATH");
  for (const char *at = path ? path : "/usr/bin:/bin"; *at; at += *at == ':') {
    size_t length = strcspn(at, ":");
    int needed = snprintf(into, room, "%.*s/cc", (int)length, at);
    if (length && needed > 0 && (size_t)needed < room && access(into, X_OK) == 0)
      return into;
    at += length;
  }
  return NULL;
}

uint64_t ptx_native_compiler(void) {
  char path[4096];
  struct stat status;
  if (!compiler_path(path, sizeof path) || stat(path, &status) != 0)
    return 0;
  return (uint64_t)status.st_ino * 1000003u ^ (uint64_t)status.st_size ^
         (uint64_t)status.st_mtime << 20;
}

static pid_t start(const char *compiler, const char *object, int input, size_t bytes) {
  char search[4096 + 8] = "PATH=", temporary[4096 + 8] = "TMPDIR=";
  const char *path = getenv("PATH"), *folder = getenv("TMPDIR");
  char *environment[] = {search, folder ? temporary : NULL, NULL};
  const char *arguments[32] = {
      compiler, "-std=gnu11",        "-fPIC",           "-shared",
      "-w",     "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"};
  posix_spawn_file_actions_t actions;
  pid_t child = -1;
  int count = 8;
  strncat(search, path ? path : "/usr/bin:/bin", 4096);
  if (folder)
    strncat(temporary, folder, 4096);
  for (const char *const *flag = ptx_native_flags(bytes); *flag; flag++)
    arguments[count++] = *flag;
  arguments[count++] = "-o";
  arguments[count++] = object;
  arguments[count++] = "-xc";
  arguments[count] = "-";
  if (posix_spawn_file_actions_init(&actions) != 0)
    return -1;
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  if (posix_spawn(&child, compiler, &actions, NULL, (char *const *)(uintptr_t)arguments,
                  environment) != 0)
    child = -1;
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

bool ptx_native_compile(const char *source, size_t bytes, const char *object) {
  char compiler[4096], code[] = "/tmp/gpusim-XXXXXX";
  if (!compiler_path(compiler, sizeof compiler))
    return false;
  int file = mkostemp(code, O_CLOEXEC);
  if (file < 0)
    return false;
  unlink(code);
  size_t done = 0;
  while (done < bytes) {
    ssize_t wrote = write(file, source + done, bytes - done);
    if (wrote <= 0 && errno != EINTR)
      break;
    done += wrote > 0 ? (size_t)wrote : 0;
  }
  bool good = done == bytes && lseek(file, 0, SEEK_SET) == 0;
  pid_t child = good ? start(compiler, object, file, bytes) : -1;
  close(file);
  int status = -1;
  pid_t ended = -1;
  while (child > 0 && (ended = waitpid(child, &status, 0)) < 0 && errno == EINTR)
    ;
  /* A program that ignores SIGCHLD has no status to give: then the object decides. */
  return child > 0 && (ended < 0 || status == 0) && access(object, R_OK) == 0;
}
