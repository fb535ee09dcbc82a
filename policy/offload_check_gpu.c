/* The GPUs for `offload check`: what the child that asked the driver said (offload_check_driver.c), judged; and the machine they are
   in as far as it is known to matter (WSL2, confidential computing). */
#define _GNU_SOURCE
#include "check.h"
#include "groups.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTPUT_BYTES = 65536 };
enum { CUDA_HOST_HANDLES = 12020, CUDA_HOST_HANDLES_GOOD = 12040, MODE_PROHIBITED = 2 };

/* What the driver's child said of the whole. */
struct answer {
  char path[256], missing[300], init_name[64], doing[160];
  int version, init, doing_gpu;
  bool init_known, done;
};

static struct check_gpu *gpu_of(struct check *check, int index) {
  if (index < 0 || index >= CHECK_GPUS)
    return NULL;
  if ((unsigned)index >= check->gpu_count)
    check->gpu_count = (unsigned)index + 1;
  return &check->gpus[index];
}

/* An error's name behind "word number ", "" for none. */
static void take_error(struct check *check, const char *line, const char *word, size_t offset,
                       size_t bytes, size_t good_offset) {
  char name[64];
  int index;
  const size_t length = strlen(word);
  if (strncmp(line, word, length) != 0 || sscanf(line + length, " %d %63s", &index, name) != 2)
    return;
  struct check_gpu *gpu = gpu_of(check, index);
  if (!gpu)
    return;
  const bool good = !strcmp(name, "-");
  snprintf((char *)gpu + offset, bytes, "%s", good ? "" : name);
  if (good_offset)
    *(bool *)((char *)gpu + good_offset) = good;
}

static void take_gpu(struct check *check, const char *line) {
  int index, numbers[7], name_at = 0;
  unsigned long long bytes;
  char bus[32];
  if (sscanf(line, "gpu %d %d %d %llu %d %d %d %d %d %31s %n", &index, &numbers[0], &numbers[1],
             &bytes, &numbers[2], &numbers[3], &numbers[4], &numbers[5], &numbers[6], bus,
             &name_at) < 10)
    return;
  struct check_gpu *gpu = gpu_of(check, index);
  if (!gpu)
    return;
  *gpu = (struct check_gpu){.major = numbers[0],
                            .minor = numbers[1],
                            .bytes = bytes,
                            .integrated = numbers[2],
                            .vmm = numbers[3],
                            .node = numbers[4],
                            .mps = numbers[5],
                            .compute_mode = numbers[6]};
  snprintf(gpu->bus, sizeof gpu->bus, "%s", bus);
  snprintf(gpu->name, sizeof gpu->name, "%.*s", (int)sizeof gpu->name - 1,
           name_at ? line + name_at : "");
}

static void take_line(struct check *check, struct answer *answer, const char *line) {
  int index, at = 0;
  unsigned long long bytes;
  if (!strncmp(line, "path ", 5))
    snprintf(answer->path, sizeof answer->path, "%.255s", line + 5);
  else if (!strncmp(line, "missing ", 8))
    snprintf(answer->missing, sizeof answer->missing, "%.299s", line + 8);
  else if (sscanf(line, "doing %d %n", &index, &at) == 1 && at) {
    answer->doing_gpu = index;
    snprintf(answer->doing, sizeof answer->doing, "%.159s", line + at);
  } else if (sscanf(line, "init %d %63s", &answer->init, answer->init_name) == 2)
    answer->init_known = true;
  else if (sscanf(line, "free %d %llu", &index, &bytes) == 2) {
    struct check_gpu *gpu = gpu_of(check, index);
    if (gpu)
      gpu->free_bytes = bytes;
  } else if (!strcmp(line, "done"))
    answer->done = true;
  else
    (void)sscanf(line, "version %d", &answer->version);
#define ERROR(word, field, good)                                                                   \
  take_error(check, line, word, offsetof(struct check_gpu, field),                                 \
             sizeof((struct check_gpu *)NULL)->field, good)
  ERROR("context ", trouble, 0);
  ERROR("host_numa ", numa_error, offsetof(struct check_gpu, host_numa));
  ERROR("host ", host_error, offsetof(struct check_gpu, host));
  ERROR("use ", use_error, offsetof(struct check_gpu, used));
#undef ERROR
  take_gpu(check, line);
}

/* ---- the driver ---- */

static const char in_containers[] =
    "docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer exec --nv, "
    "Kubernetes: resources: limits: nvidia.com/gpu: 1, srun --gpus=1";

static void judge_init(struct check *check, const struct answer *answer) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  struct finding *finding =
      find(check, CHECK_driver, VERDICT_BLOCKS, "cuInit failed with %s (%d)%s%s", answer->init_name,
           answer->init, visible ? "; CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
  if (answer->init == 100)
    remedy(finding, "make a GPU visible: %s; in a container %s",
           visible ? "CUDA_VISIBLE_DEVICES names none that is there" : "nvidia-smi should list one",
           in_containers);
  else if (answer->init == 803)
    remedy(finding, "the driver's library and the kernel's module are of different releases: "
                    "restart the machine, or take the compatibility library off LD_LIBRARY_PATH");
  else
    remedy(finding, "nvidia-smi should work as the same user; where /dev/nvidia-uvm is missing, "
                    "nvidia-modprobe -u makes it");
}

static void judge_driver(struct check *check, const struct answer *answer) {
  const int major = answer->version / 1000, minor = answer->version % 1000 / 10;
  if (answer->version < CUDA_HOST_HANDLES)
    remedy(find(check, CHECK_driver, VERDICT_BLOCKS,
                "CUDA %d.%d (%s) can't make host memory handles", major, minor, answer->path),
           "use driver 550.54 (CUDA 12.4) or later");
  else if (answer->version < CUDA_HOST_HANDLES_GOOD)
    remedy(
        find(check, CHECK_driver, VERDICT_LIMITS,
             "CUDA %d.%d (%s) makes host memory handles only where every visible GPU has a context",
             major, minor, answer->path),
        "name the GPUs of the job in CUDA_VISIBLE_DEVICES, or use driver 550.54 (CUDA 12.4) or "
        "later");
  else
    find(check, CHECK_driver, VERDICT_GOOD, "CUDA %d.%d, %s", major, minor, answer->path);
}

void check_driver(struct check *check) {
  static char output[OUTPUT_BYTES];
  static struct answer answer;
  char self[] = CHECK_SELF, name[] = "check", child[] = CHECK_CHILD_DRIVER;
  char *argv[] = {self, name, child, NULL};
  int number;
  const enum check_end end =
      check_run(argv, check_preload_without_ours(), (int)check->timeout_s * 1000, output,
                sizeof output, &number);
  char *rest = NULL;
  for (char *line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    take_line(check, &answer, line);
  check->driver_version = answer.version;
  if (answer.missing[0]) {
    remedy(find(check, CHECK_driver, VERDICT_BLOCKS, "no CUDA driver: %s", answer.missing),
           "install NVIDIA's driver, 550.54 (CUDA 12.4) or later; in a container: %s",
           in_containers);
    return;
  }
  if (answer.init_known && answer.init)
    judge_init(check, &answer);
  else if (answer.version)
    judge_driver(check, &answer);
  if (answer.done)
    return;
  char what[64];
  if (end == END_SIGNAL)
    snprintf(what, sizeof what, "ended with signal %d (%s)", number, strsignal(number));
  else if (end == END_TIMEOUT)
    snprintf(what, sizeof what, "did not return in %u s", check->timeout_s);
  else
    snprintf(what, sizeof what, "ended the process with %d", number);
  struct finding *finding = find(check, CHECK_driver, VERDICT_BLOCKS, "%s %s%s", answer.doing, what,
                                 answer.doing_gpu >= 0 ? "; what follows was not tried" : "");
  remedy(
      finding, "%s",
      strstr(answer.doing, "cuMemCreate")
          ? "drivers before r595 crash here on some machines with uneven NUMA nodes: use a later "
            "one, and don't preload the library with this one"
          : "look into dmesg for lines with NVRM or Xid; don't preload the library before this "
            "works");
  struct check_gpu *gpu = answer.doing_gpu >= 0 ? gpu_of(check, answer.doing_gpu) : NULL;
  if (gpu)
    snprintf(gpu->trouble, sizeof gpu->trouble, "%.100s %.50s", answer.doing, what);
}

/* ---- GPUs ---- */

/* A line of /proc/self/status: "Cpus_allowed_list" and so on; "" when it isn't there. */
static const char *status_list(const char *root, const char *key) {
  static char list[1024];
  const size_t length = strlen(key);
  list[0] = 0;
  struct lines *lines = lines_open(root, "/proc/self/status");
  for (char *line; lines && (line = lines_next(lines));)
    if (!strncmp(line, key, length) && line[length] == ':')
      snprintf(list, sizeof list, "%s", line + length + 1 + strspn(line + length + 1, " \t"));
  return list;
}

/* Whether this process may run on a CPU of the node; true where it can't be told. */
static bool cpus_on_node(const char *root, int node) {
  char directory[64], cpus[1024];
  snprintf(directory, sizeof directory, "/sys/devices/system/node/node%d", node);
  const char *line = line_in(root, directory, "cpulist");
  if (!line)
    return true;
  snprintf(cpus, sizeof cpus, "%s", line);
  const char *allowed = status_list(root, "Cpus_allowed_list");
  if (!*allowed)
    return true;
  for (unsigned cpu = 0; cpu < 8192; cpu++)
    if (check_list_has(cpus, cpu) && check_list_has(allowed, cpu))
      return true;
  return false;
}

/* From the GPU's node to the nearest whose CPUs this process may use, as the firmware tells it (10: the same node); 0 unknown. */
static unsigned long distance_of(const char *root, int node) {
  char directory[64], distances[1024];
  unsigned long least = 0;
  snprintf(directory, sizeof directory, "/sys/devices/system/node/node%d", node);
  const char *line = line_in(root, directory, "distance");
  snprintf(distances, sizeof distances, "%s", line ? line : "");
  char *at = distances;
  for (int other = 0; *at; other++) {
    char *end;
    const unsigned long distance = strtoul(at, &end, 10);
    if (end == at)
      break;
    if (cpus_on_node(root, other) && (!least || distance < least))
      least = distance;
    at = end;
  }
  return least;
}

static void judge_node(struct check *check, const struct check_gpu *gpu, unsigned index) {
  char device[80];
  snprintf(device, sizeof device, "/sys/bus/pci/devices/%s", gpu->bus);
  const char *line = gpu->node < 0 ? line_in(check->root, device, "numa_node") : NULL;
  const int node = line ? (int)strtol(line, NULL, 10) : gpu->node;
  if (node < 0)
    return;
  const char *allowed = status_list(check->root, "Mems_allowed_list");
  if (*allowed && !check_list_has(allowed, (unsigned)node))
    remedy(find(check, CHECK_gpu, VERDICT_LIMITS,
                "%u: its host memory is node %d, of which this process may take none (%s)", index,
                node, allowed),
           "give the job memory of that node: docker run --cpuset-mems %d, Slurm: "
           "--gres-flags=enforce-binding",
           node);
  if (!cpus_on_node(check->root, node))
    remedy(find(check, CHECK_gpu, VERDICT_LIMITS,
                "%u: it is on node %d, this process on the CPUs of another (distance %lu)", index,
                node, distance_of(check->root, node)),
           "numactl --cpunodebind=%d COMMAND, docker run --cpuset-cpus, Slurm: --gpu-bind=closest",
           node);
}

static void judge_tried(struct check *check, const struct check_gpu *gpu, unsigned index,
                        const char *what) {
  if (gpu->used) {
    struct finding *finding = find(check, CHECK_gpu, VERDICT_GOOD,
                                   "%s: host memory by %s handles, used by CPU and kernel", what,
                                   gpu->host_numa ? "HOST_NUMA" : "HOST");
    if (!gpu->host_numa) {
      finding->verdict = VERDICT_LIMITS;
      check->needs_sys_nice = true;
      remedy(finding,
             "HOST_NUMA handles were refused (%s), so that memory may be on a far node; in a "
             "container start it with --cap-add SYS_NICE",
             gpu->numa_error);
    }
    judge_node(check, gpu, index);
  } else if (gpu->host_numa || gpu->host) {
    struct finding *finding =
        find(check, CHECK_gpu, VERDICT_BLOCKS, "%s: a kernel could not work on host memory: %s",
             what, gpu->use_error[0] ? gpu->use_error : gpu->trouble);
    remedy(finding, "use a later driver; where code can't be compiled for the GPU, "
                    "libnvidia-ptxjitcompiler.so.1 must be there and CUDA_DISABLE_PTX_JIT unset");
  } else if (check->driver_version < CUDA_HOST_HANDLES) {
    remedy(find(check, CHECK_gpu, VERDICT_BLOCKS, "%s: no host memory handles (%s)", what,
                gpu->numa_error),
           "use driver 550.54 (CUDA 12.4) or later");
  } else {
    check->needs_sys_nice = true;
    remedy(find(check, CHECK_gpu, VERDICT_BLOCKS,
                "%s: the driver refused host memory handles (HOST_NUMA: %s, HOST: %s)", what,
                gpu->numa_error[0] ? gpu->numa_error : "not tried",
                gpu->host_error[0] ? gpu->host_error : "not tried"),
           "in a container start it with --cap-add SYS_NICE (the driver asks for the NUMA policy), "
           "else use driver 550.54 (CUDA 12.4) or later");
  }
}

static void judge_gpu(struct check *check, unsigned index) {
  const struct check_gpu *gpu = &check->gpus[index];
  char what[256], node[24] = "";
  if (gpu->node >= 0)
    snprintf(node, sizeof node, ", node %d", gpu->node);
  snprintf(what, sizeof what, "%u: %s (%d.%d), %s%s%s%s%s", index, gpu->name, gpu->major,
           gpu->minor, check_size(gpu->bytes), node, gpu->integrated ? ", integrated" : "",
           strstr(gpu->name, "MIG") ? ", a MIG slice" : "", gpu->mps ? ", under MPS" : "");
  if (gpu->compute_mode == MODE_PROHIBITED)
    remedy(find(check, CHECK_gpu, VERDICT_BLOCKS, "%s: its compute mode is prohibited", what),
           "nvidia-smi -i %u -c 0 (as root)", index);
  else if (!gpu->vmm)
    remedy(find(check, CHECK_gpu, VERDICT_BLOCKS, "%s: no virtual memory management", what),
           "WSL2 and most vGPU profiles have none: use the whole GPU (passthrough, or a MIG slice) "
           "on native Linux");
  else if (gpu->trouble[0] && !gpu->used)
    remedy(find(check, CHECK_gpu, VERDICT_BLOCKS, "%s: could not be tried: %s", what, gpu->trouble),
           "try again while no other process uses it; nvidia-smi shows which do");
  else
    judge_tried(check, gpu, index, what);
  if (gpu->integrated)
    remedy(find(check, CHECK_gpu, VERDICT_LIMITS,
                "%u: it shares its memory with the CPU, so moving state frees none", index),
           "don't preload the library for jobs on this GPU");
  const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  if (gpu->mps && percentage)
    find(check, CHECK_gpu, VERDICT_GOOD,
         "%u: MPS gives this process %.20s%% of its multiprocessors", index, percentage);
}

void check_gpu(struct check *check) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  for (unsigned i = 0; i < check->gpu_count; i++)
    judge_gpu(check, i);
  if (!check->gpu_count)
    find(check, CHECK_gpu, VERDICT_BLOCKS, "none could be asked: see the driver");
  else if (visible)
    find(check, CHECK_gpu, VERDICT_GOOD, "CUDA_VISIBLE_DEVICES=%.100s: %u visible", visible,
         check->gpu_count);
}

/* ---- the machine ---- */

void check_machine(struct check *check) {
  const char *release = line_in(check->root, "/proc/sys/kernel", "osrelease");
  const bool wsl = release && (strcasestr(release, "microsoft") || strstr(release, "WSL"));
  if (wsl)
    remedy(find(check, CHECK_machine, VERDICT_LIMITS,
                "WSL2: Windows decides when what was submitted begins, and the library is not "
                "tested there"),
           "use native Linux; if a job stops in its first step, take the library away");
  const bool confidential = check_is_there(check->root, "/dev/sev-guest") ||
                            check_is_there(check->root, "/dev/tdx_guest") ||
                            check_is_there(check->root, "/dev/tdx-guest");
  if (confidential)
    remedy(
        find(check, CHECK_machine, VERDICT_LIMITS,
             "a confidential virtual machine: where the GPU is in confidential mode it can't use "
             "mapped host memory, and its link is encrypted"),
        "where host memory could not be used (GPU above), turn the GPU's confidential mode off");
  if (!wsl && !confidential)
    find(check, CHECK_machine, VERDICT_GOOD, "neither WSL2 nor a confidential virtual machine");
}
