/* The machine, and what this process may have of it, for `offload check`: Linux, glibc, CPU, threads, memory, locked memory, system
   calls, files. */
#define _GNU_SOURCE
#include "budget.h"
#include "check.h"
#include "cpus.h"
#include "groups.h"
#include <errno.h>
#include <gnu/libc-version.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

void check_kernel(struct check *check) {
  enum { MAJOR = 5, MINOR = 4 };
  struct utsname name;
  char release[128];
  int major = 0, minor = 0;
  const char *line = line_in(check->root, "/proc/sys/kernel", "osrelease");
  snprintf(release, sizeof release, "%s", line ? line : uname(&name) ? "" : name.release);
  const bool known = sscanf(release, "%d.%d", &major, &minor) == 2;
  if (known && (major > MAJOR || (major == MAJOR && minor >= MINOR)))
    find(check, CHECK_kernel, VERDICT_GOOD, "%s", release);
  else
    remedy(
        find(check, CHECK_kernel, VERDICT_LIMITS, "%s%s", known ? "" : "unknown release ", release),
        "Linux %d.%d or later; the library is not tested on older ones", MAJOR, MINOR);
}

void check_glibc(struct check *check) {
  enum { MAJOR = 2, MINOR = 28 };
  int major = 0, minor = 0;
  const char *version = gnu_get_libc_version();
  if (sscanf(version, "%d.%d", &major, &minor) == 2 &&
      (major > MAJOR || (major == MAJOR && minor >= MINOR)))
    find(check, CHECK_glibc, VERDICT_GOOD, "%s", version);
  else
    remedy(find(check, CHECK_glibc, VERDICT_BLOCKS, "%s", version),
           "glibc %d.%d or later: RHEL 8, Debian 10, Ubuntu 20.04 or an image of these", MAJOR,
           MINOR);
}

void check_cpu(struct check *check) {
#if defined __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f"))
    find(check, CHECK_cpu, VERDICT_GOOD, "x86-64 with AVX-512");
  else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    find(check, CHECK_cpu, VERDICT_GOOD, "x86-64 with AVX2");
  else
    remedy(find(check, CHECK_cpu, VERDICT_LIMITS, "x86-64 without AVX2: no fast CPU step"),
           "OFFLOAD_STEP=stream, which `auto` takes there");
#else
  find(check, CHECK_cpu, VERDICT_GOOD, "aarch64");
#endif
}

void check_cores(struct check *check) {
  cpu_set_t set;
  const int allowed = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
  const unsigned ranks = check->config.local_ranks;
  const unsigned threads =
      check->config.threads ? check->config.threads : cpus_threads(ranks, check->root);
  check->threads = threads;
  char of[96] = "";
  if (check->config.threads)
    snprintf(of, sizeof of, " by OFFLOAD_THREADS");
  else if (ranks > 1)
    snprintf(of, sizeof of, ", a rank's share of %u", ranks);
  struct finding *finding =
      find(check, CHECK_cores, threads > 1 ? VERDICT_GOOD : VERDICT_LIMITS,
           "%u for the CPU step%s; %d CPUs may be used", threads, of, allowed);
  if (threads <= 1)
    remedy(finding, "give the job more CPUs, two stay for the program (docker --cpus or "
                    "--cpuset-cpus, Kubernetes resources.limits.cpu, Slurm --cpus-per-task, "
                    "taskset), or use OFFLOAD_STEP=stream, which needs none");
}

/* State is at most half of a GPU's memory: m and v of fp32, beside parameters and gradients of the same size. */
void check_memory(struct check *check) {
  const struct budget budget = budget_measure(&check->config, BUDGET_DRIVER_PAGES, check->root);
  uint64_t most = 0;
  for (unsigned i = 0; i < check->gpu_count; i++)
    if (check->gpus[i].bytes / 2 > most)
      most = check->gpus[i].bytes / 2;
  check->budget_bytes = budget.bytes;
  const bool set = check->config.host_memory.set;
  if (!budget.bytes && !check->config.nvme)
    remedy(find(check, CHECK_memory, VERDICT_BLOCKS, "none may be pinned (%s)", budget.limited_by),
           "raise what limits it, or set OFFLOAD_HOST_MEMORY to what this job may have");
  else if (budget.bytes < most)
    remedy(find(check, CHECK_memory, VERDICT_LIMITS,
                "%s may be pinned (%s%s); the state of one full GPU is up to %s",
                check_size(budget.bytes), set ? "" : "80% of ", budget.limited_by,
                check_size(most)),
           "%s, or name drives in OFFLOAD_NVME for the rest; what has no room stays on the GPU",
           strcmp(budget.limited_by, "cgroup memory limit") ? "free host memory, or raise "
                                                              "OFFLOAD_HOST_MEMORY"
                                                            : "raise the group's memory limit "
                                                              "(docker --memory, Kubernetes "
                                                              "resources.limits.memory, Slurm "
                                                              "--mem)");
  else
    find(check, CHECK_memory, VERDICT_GOOD, "%s may be pinned (%s%s)", check_size(budget.bytes),
         set ? "" : "80% of ", budget.limited_by);
}

void check_memlock(struct check *check) {
  struct config unset = {.mode = MODE_FULL};
  const struct budget locked = budget_measure(&unset, BUDGET_LOCKED_PAGES, check->root);
  const uint64_t wanted = check->config.nvme_staging.bytes;
  const bool bounded = !strcmp(locked.limited_by, "RLIMIT_MEMLOCK");
  if (!bounded)
    find(check, CHECK_memlock, VERDICT_GOOD, "no limit that counts");
  else if (check->config.nvme && locked.bytes < wanted) {
    check->needs_memlock = true;
    remedy(find(check, CHECK_memlock, VERDICT_LIMITS,
                "%s of staging for drives may be locked (80%% of RLIMIT_MEMLOCK), %s are wanted",
                check_size(locked.bytes), check_size(wanted)),
           "ulimit -l %llu (limits.conf: memlock), docker --ulimit memlock=-1, Slurm: "
           "PropagateResourceLimitsExcept=MEMLOCK, systemd: LimitMEMLOCK=infinity",
           (unsigned long long)((wanted + 79) / 80 * 100 / 1024));
  } else
    find(check, CHECK_memlock, VERDICT_GOOD,
         "RLIMIT_MEMLOCK leaves %s; the driver's pages for state are not charged to it",
         check_size(locked.bytes));
}

/* ---- system calls ---- */

void check_sandbox(struct check *check) {
  int mode = 0;
  const long answer = syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0);
  if (answer && (errno == EPERM || errno == ENOSYS)) {
    check->needs_sys_nice = true;
    remedy(find(check, CHECK_sandbox, VERDICT_LIMITS,
                "get_mempolicy is denied: drivers then refuse HOST_NUMA memory"),
           "docker run --cap-add SYS_NICE, or a seccomp profile that allows get_mempolicy, mbind "
           "and set_mempolicy (--security-opt seccomp=PROFILE.json); Kubernetes: "
           "securityContext.capabilities.add: [SYS_NICE]");
    return;
  }
  find(check, CHECK_sandbox, VERDICT_GOOD, "get_mempolicy is allowed");
}

/* ---- files ---- */

static bool writable(const char *directory) {
  struct stat at;
  return directory && *directory && !stat(directory, &at) && S_ISDIR(at.st_mode) &&
         !access(directory, W_OK | X_OK);
}

/* Where ranks of a node meet (registry.h), in the order in which the places are tried. */
void check_shared(struct check *check) {
  char shm[PATH_MAX];
  snprintf(shm, sizeof shm, "%s/dev/shm", check->root);
  const char *runtime = getenv("XDG_RUNTIME_DIR"), *temporary = getenv("TMPDIR");
  const char *const places[] = {runtime, shm, temporary && *temporary ? temporary : "/tmp"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (writable(places[i])) {
      find(check, CHECK_shared, VERDICT_GOOD, "ranks of this node can meet in %.200s", places[i]);
      return;
    }
  remedy(
      find(check, CHECK_shared, VERDICT_LIMITS,
           "no directory to be written to in XDG_RUNTIME_DIR, /dev/shm and TMPDIR: ranks of this "
           "node know of each other only what their launcher says"),
      "docker run --shm-size 64m (or --ipc=host), or set TMPDIR");
}

/* The nearest directory above that is there: the rest is made when it is needed. */
static bool could_be_made(const char *path) {
  char at[PATH_MAX];
  struct stat status;
  if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
    return false;
  while (stat(at, &status)) {
    char *slash = strrchr(at, '/');
    if (errno != ENOENT || !slash || slash == at)
      return false;
    *slash = 0;
  }
  return writable(at);
}

void check_cache(struct check *check) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  char path[PATH_MAX];
  if (cache && *cache == '/')
    snprintf(path, sizeof path, "%s", cache);
  else
    snprintf(path, sizeof path, "%s/.cache", home && *home ? home : "");
  if (could_be_made(path))
    find(check, CHECK_cache, VERDICT_GOOD, "measured rates are kept under %.200s", path);
  else
    remedy(find(check, CHECK_cache, VERDICT_LIMITS,
                "%.200s can't be written to: the machine's rates are measured at each start", path),
           "set XDG_CACHE_HOME to a directory that lasts, or OFFLOAD_RATES to a file of `offload "
           "bench --rates`");
}
