/* Containers and batch systems for `offload check`: which this process is in, and how it should have been started, spelled out. Called
   last, since the flags depend on what the other checks found. */
#define _GNU_SOURCE
#include "check.h"
#include "groups.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool set(const char *variable) {
  const char *value = getenv(variable);
  return value && *value;
}

/* Whether a container's runtime put this process into a group of its name. */
static bool in_group(const char *root, const char *word) {
  bool found = false;
  struct lines *lines = lines_open(root, "/proc/self/cgroup");
  for (char *line; lines && (line = lines_next(lines));)
    found |= strstr(line, word) != NULL;
  return found;
}

/* What docker and podman need beside the image; only what was found to be missing. */
static void engine_flags(const struct check *check, char *flags, size_t bytes) {
  snprintf(flags, bytes, "%s%s%s", check->needs_sys_nice ? " --cap-add SYS_NICE" : "",
           check->needs_memlock ? " --ulimit memlock=-1" : "",
           check->needs_io_uring ? " --security-opt seccomp=PROFILE.json" : "");
}

static uint64_t memory_wanted(const struct check *check) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < check->gpu_count; i++)
    bytes += check->gpus[i].bytes / 2;
  return bytes;
}

static void kubernetes(struct check *check) {
  char memory[48] = "";
  if (check->budget_bytes < memory_wanted(check))
    snprintf(memory, sizeof memory, ", memory: %lluGi",
             (unsigned long long)(memory_wanted(check) * 5 / 4 >> 30) + 1);
  remedy(find(check, CHECK_container, VERDICT_GOOD, "Kubernetes"),
         "In the container's part of the pod:\n"
         "  resources: {limits: {nvidia.com/gpu: %u, cpu: %u%s}}\n"
         "  securityContext: {capabilities: {add: [%s%sSYS_NICE]}}\n"
         "  env: [{name: XDG_CACHE_HOME, value: /cache}]\n"
         "  volumeMounts: [{name: cache, mountPath: /cache}]\n"
         "and in the pod:\n"
         "  volumes: [{name: cache, hostPath: {path: /var/cache/liboffload, type: "
         "DirectoryOrCreate}}]",
         check->gpu_count ? check->gpu_count : 1, check->threads + 2, memory,
         check->needs_memlock ? "IPC_LOCK" : "", check->needs_memlock ? ", " : "");
}

static void engine(struct check *check, const char *name) {
  char flags[160];
  engine_flags(check, flags, sizeof flags);
  remedy(find(check, CHECK_container, VERDICT_GOOD, "%s", name),
         "With `make install PREFIX=/opt/offload` before it, started with:\n"
         "  %s run %s%s%s \\\n"
         "    -v /opt/offload:/opt/offload:ro -v ~/.cache:/cache -e XDG_CACHE_HOME=/cache \\\n"
         "    IMAGE /opt/offload/bin/offload run -- COMMAND",
         name, strcmp(name, "podman") ? "--gpus all" : "--device nvidia.com/gpu=all",
         *flags ? flags : " --cap-add SYS_NICE",
         check->config.nvme ? " -v DIRECTORY:DIRECTORY" : "");
}

static void slurm(struct check *check) {
  uint64_t bytes = memory_wanted(check) * 5 / 4;
  remedy(find(check, CHECK_container, VERDICT_GOOD, "Slurm"),
         "With CPUs and memory for the CPU step on the GPU's node:\n"
         "  srun --gpus-per-task=1 --gpu-bind=closest --cpus-per-task=%u --mem-per-gpu=%lluG \\\n"
         "    offload run -- COMMAND%s",
         check->threads + 2,
         (unsigned long long)(bytes / (check->gpu_count ? check->gpu_count : 1) >> 30) + 1,
         check->needs_memlock ? "\nand PropagateResourceLimitsExcept=MEMLOCK in slurm.conf." : "");
}

void check_container(struct check *check) {
  const bool in_kubernetes = set("KUBERNETES_SERVICE_HOST") || in_group(check->root, "kubepods");
  const bool in_podman = check_is_there(check->root, "/run/.containerenv");
  const bool in_docker =
      check_is_there(check->root, "/.dockerenv") || in_group(check->root, "/docker");
  const size_t before = check->count;
  if (in_kubernetes)
    kubernetes(check);
  else if (in_podman)
    engine(check, "podman");
  else if (in_docker)
    engine(check, "docker");
  if (set("APPTAINER_CONTAINER") || set("SINGULARITY_CONTAINER"))
    remedy(find(check, CHECK_container, VERDICT_GOOD, "Apptainer"),
           "Started with:\n"
           "  apptainer exec --nv%s --env OFFLOAD_MODE=full IMAGE offload run -- COMMAND",
           check->config.nvme ? " --bind DIRECTORY" : "");
  if (set("SLURM_JOB_ID"))
    slurm(check);
  if (check->count == before)
    find(check, CHECK_container, VERDICT_GOOD, "none found: neither a container nor Slurm");
}
