/* The companion as the shim loads it, dlopen with RTLD_LOCAL | RTLD_DEEPBIND, in processes that are
   unkind to it: a foreign OpenMP runtime loaded for everybody, OpenMP's variables set against it, a
   library of another ABI. Each case is a child of its own, since the runtime reads its variables
   once. */
#define _GNU_SOURCE
#include "adam/adam.h"
#include "tests/lib/tap.h"
#include <dirent.h>
#include <dlfcn.h>
#include <libgen.h>
#include <math.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ELEMENTS = 200000, THREADS = 3 };
static char build[3072]; /* the build directory: this program lies in its folder test */

/* Sanitizers forbid RTLD_DEEPBIND; there the shim does without. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
static const int binding = RTLD_NOW | RTLD_LOCAL;
static const bool deep = false;
#else
static const int binding = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
static const bool deep = true;
#endif

static void *open_library(const char *name, int flags) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", build, name);
  void *library = dlopen(path, flags);
  if (!library)
    printf("# %s\n", dlerror());
  return library;
}

static const struct adam_api *companion(const char *name, int flags) {
  void *library = open_library(name, flags);
  offload_adam_function *entry = NULL;
  if (library)
    *(void **)&entry = dlsym(library, "offload_adam");
  return entry ? entry() : NULL;
}

static size_t threads_of_process(void) {
  size_t count = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *entry; tasks && (entry = readdir(tasks));)
    count += entry->d_name[0] != '.';
  if (tasks)
    closedir(tasks);
  return count;
}

/* A job by a team of THREADS: right numbers, by that many threads, each allowed every CPU that this
 * process is. */
static bool works(const struct adam_api *api) {
  static float g[ELEMENTS], m[ELEMENTS], v[ELEMENTS], u[ELEMENTS], p1[ELEMENTS], m1[ELEMENTS],
      v1[ELEMENTS];
  char error[256] = "";
  cpu_set_t allowed, now;
  sched_getaffinity(0, sizeof allowed, &allowed);
  struct adam_team *team = api->team_create(THREADS, ADAM_ISA_AUTO, error, sizeof error);
  if (!team) {
    printf("# %s\n", error);
    return false;
  }
  const struct adam_hyper hyper = {1e-3, 0.9, 0.999, 0, 1e-8, false};
  const struct adam_candidate candidate = {.generation = ADAM_FLOAT, .mode = ADAM_W};
  struct adam_job job = {.gradient = g,
                         .exp_avg = m,
                         .exp_avg_sq = v,
                         .update = u,
                         .elements = ELEMENTS,
                         .generation = ADAM_FLOAT,
                         .beta1 = hyper.beta1,
                         .beta2 = hyper.beta2,
                         .eps = hyper.eps};
  for (size_t i = 0; i < ELEMENTS; i++)
    g[i] = sinf((float)i) * 0.1f;
  api->scalars(ADAM_FLOAT, &hyper, 1, 0, 0, &job.scalars);
  api->step(team, &job);
  api->reference(&candidate, &hyper, &job.scalars, ELEMENTS,
                 &(struct adam_tensors){.p = p1, .g = g, .m = m1, .v = v1});
  bool good = true;
  for (size_t i = 0; i < ELEMENTS; i++)
    good = good && -u[i] == p1[i] && m[i] == m1[i] && v[i] == v1[i];
  good = good && threads_of_process() >= THREADS;
  /* Not all threads: a sanitizer's own inherits what the runtime set before. */
  int anywhere = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *entry; tasks && (entry = readdir(tasks));)
    if (entry->d_name[0] != '.' && !sched_getaffinity((pid_t)atoi(entry->d_name), sizeof now, &now))
      anywhere += CPU_EQUAL(&now, &allowed);
  if (tasks)
    closedir(tasks);
  good = good && anywhere >= THREADS;
  api->team_destroy(team);
  return good;
}

static bool plain(void) {
  const struct adam_api *api = companion("liboffload-adam.so", binding);
  return api && api->abi == OFFLOAD_ADAM_ABI && works(api);
}

static bool one_thread_variables(void) {
  setenv("OMP_NUM_THREADS", "1", 1);
  setenv("OMP_DYNAMIC", "true", 1);
  setenv("OMP_MAX_ACTIVE_LEVELS", "0", 1);
  return plain();
}

static bool binding_variables(void) {
  setenv("OMP_PROC_BIND", "true", 1);
  setenv("OMP_PLACES", "{0}", 1);
  setenv("GOMP_CPU_AFFINITY", "0", 1);
  return plain();
}

/* Each would have the runtime end the process at its first thread. */
static bool has_threads(const char *name, const char *value, int threads, const char *said) {
  char error[256] = "";
  setenv(name, value, 1);
  const struct adam_api *api = companion("liboffload-adam.so", binding);
  struct adam_team *team =
      api ? api->team_create(THREADS, ADAM_ISA_AUTO, error, sizeof error) : NULL;
  const bool good =
      team && api->team_threads(team) == threads && (said ? strstr(error, said) != NULL : !*error);
  if (!good)
    printf("# %s=%s: %s\n", name, value, error);
  return good;
}
static bool stack_huge(void) {
  return has_threads("OMP_STACKSIZE", "1000000G", 1, "OMP_STACKSIZE");
}
static bool stack_unreadable(void) {
  return has_threads("GOMP_STACKSIZE", "lots", 1, "GOMP_STACKSIZE=lots");
}
static bool stack_usual(void) {
  return has_threads("OMP_STACKSIZE", "4 m", THREADS, NULL);
}
static bool cpu_missing(void) {
  char cpu[16];
  snprintf(cpu, sizeof cpu, "%ld", sysconf(_SC_NPROCESSORS_CONF));
  return has_threads("GOMP_CPU_AFFINITY", cpu, 1, "GOMP_CPU_AFFINITY") ||
         has_threads("GOMP_CPU_AFFINITY", cpu, THREADS, NULL); /* refused when it was read */
}

static bool foreign_runtime(void) {
  setenv("OMP_NUM_THREADS", "1", 1);
  void *foreign = open_library("test/libforeign-gomp.so", RTLD_NOW | RTLD_GLOBAL);
  int (*calls)(void) = NULL;
  if (foreign)
    *(void **)&calls = dlsym(foreign, "foreign_gomp_calls");
  return calls && plain() && calls() == 0;
}

/* The same without RTLD_DEEPBIND: the foreign runtime answers, so the test above does see what it
 * looks for. */
__attribute__((unused)) static bool foreign_runtime_captures(void) {
  void *foreign = open_library("test/libforeign-gomp.so", RTLD_NOW | RTLD_GLOBAL);
  int (*calls)(void) = NULL;
  if (foreign)
    *(void **)&calls = dlsym(foreign, "foreign_gomp_calls");
  const struct adam_api *api = companion("liboffload-adam.so", RTLD_NOW | RTLD_LOCAL);
  return calls && api && !works(api) && calls() > 0;
}

static bool other_abi(void) {
  const struct adam_api *api = companion("test/liboffload-adam-other-abi.so", binding);
  return api && api->abi == 1 && OFFLOAD_ADAM_ABI > 1;
}

static bool nothing_global(void) {
  return plain() && !dlsym(RTLD_DEFAULT, "offload_adam");
}

static bool in_child(bool (*test)(void)) {
  int status = 1;
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    const bool good = test();
    fflush(stdout);
    _exit(good ? 0 : 1);
  }
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         !WEXITSTATUS(status);
}

int main(void) {
  char self[2048];
  const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
  self[bytes > 0 ? bytes : 0] = 0;
  snprintf(build, sizeof build, "%s/..", dirname(self));
  tap_ok(in_child(plain),
         "loaded locally and deeply bound, a team of 3 gives the reference's numbers");
  tap_ok(in_child(nothing_global), "nothing of the companion is visible to the program");
  tap_ok(in_child(one_thread_variables),
         "OMP_NUM_THREADS=1, OMP_DYNAMIC and OMP_MAX_ACTIVE_LEVELS=0 don't make the team smaller");
  tap_ok(in_child(binding_variables), "OMP_PROC_BIND and OMP_PLACES don't tie the team to a CPU");
  tap_ok(in_child(stack_huge),
         "with a stack that can't be had the team has one thread and says so");
  tap_ok(in_child(stack_unreadable), "so it has with a stack size that can't be read");
  tap_ok(in_child(stack_usual), "with OMP_STACKSIZE=4 m the team has all its threads");
  tap_ok(in_child(cpu_missing), "GOMP_CPU_AFFINITY with a CPU that isn't there ends nothing");
  if (deep)
    tap_ok(in_child(foreign_runtime),
           "a foreign OpenMP runtime loaded globally, with OMP_NUM_THREADS=1, isn't called");
#ifndef __SANITIZE_THREAD__ /* there the team may have one thread, and then asks no runtime */
  tap_ok(in_child(foreign_runtime_captures), "without deep binding that runtime would be called");
#endif
  tap_ok(in_child(other_abi), "the companion of another ABI number says so");
  return tap_done();
}
