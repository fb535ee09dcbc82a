/* Host memory, the CPU step's arithmetic and NUMA distance, for offload-probe (probe.h). Memory is measured as the CPU step uses it:
   arrays of the GPU's node, far larger than the caches, read and written in place (a = s*a + b), so that no line is fetched only
   to be overwritten; read and written bytes are counted together. */
#define _GNU_SOURCE
#include "../adam/adam.h"
#include "../nvme/clock.h"
#include "groups.h"
#include "probe.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  CHUNK = 1 << 15,   /* elements of each array between looks at the clock: 512 KiB in all */
  THREADS_MOST = 64, /* more than any node's memory needs */
  NODES_MOST = 1024,
  PREFERRED = 1, /* MPOL_PREFERRED of linux/mempolicy.h */
};
static const uint64_t all_ns = 150000000, alone_ns = 80000000, elements_ns = 40000000;
static const size_t least_bytes = 48ul << 20, most_bytes = 512ul << 20;

struct share {
  double *a, *b;
  size_t chunks; /* of each */
};

struct crew {
  struct share shares[THREADS_MOST];
  unsigned count;
  pthread_barrier_t start;
  _Atomic uint64_t bytes;
  _Atomic unsigned next;
};

static void pass(double *restrict a, const double *restrict b, size_t elements) {
  for (size_t i = 0; i < elements; i++)
    a[i] = 0.9 * a[i] + b[i];
}

/* Goes over shares [first, first + count) again and again. */
static uint64_t work(const struct share *first, unsigned count, uint64_t until_ns) {
  uint64_t bytes = 0;
  for (;;)
    for (unsigned i = 0; i < count; i++)
      for (size_t c = 0; c < first[i].chunks; c++) {
        pass(first[i].a + c * CHUNK, first[i].b + c * CHUNK, CHUNK);
        bytes += 3ul * CHUNK * sizeof(double);
        if (clock_now_ns() >= until_ns)
          return bytes;
      }
}

static void *member(void *argument) {
  struct crew *crew = argument;
  const unsigned mine = atomic_fetch_add_explicit(&crew->next, 1, memory_order_relaxed);
  struct share *share = &crew->shares[mine];
  /* The first touch places a page, by whoever is going to use it. */
  for (size_t i = 0; i < share->chunks * CHUNK; i++) {
    share->a[i] = 1;
    share->b[i] = 0.1;
  }
  pthread_barrier_wait(&crew->start);
  const uint64_t bytes = work(share, 1, clock_now_ns() + all_ns);
  atomic_fetch_add_explicit(&crew->bytes, bytes, memory_order_relaxed);
  pthread_barrier_wait(&crew->start);
  return NULL;
}

/* Of all last-level caches that a CPU sees, times four; little enough that the machine doesn't notice. */
static size_t bytes_to_use(const struct probe *probe) {
  const uint64_t cache =
      number_in(probe->root, "/sys/devices/system/cpu/cpu0/cache/index3", "size");
  size_t bytes = cache == UNLIMITED ? 128ul << 20 : (size_t)cache << 12; /* kibibytes times four */
  const struct probe_usage usage = probe_usage_now(probe->root);
  bytes = bytes < least_bytes ? least_bytes : bytes > most_bytes ? most_bytes : bytes;
  if (usage.available_known && bytes > usage.available_bytes / 16)
    bytes = (size_t)usage.available_bytes / 16;
  return bytes;
}

static void lay_out(struct crew *crew, double *memory, size_t bytes) {
  const size_t each = bytes / crew->count / (2 * CHUNK * sizeof(double));
  for (unsigned i = 0; i < crew->count; i++) {
    crew->shares[i].chunks = each;
    crew->shares[i].a = memory + i * each * 2 * CHUNK;
    crew->shares[i].b = crew->shares[i].a + each * CHUNK;
  }
}

void probe_host_memory(struct probe *probe) {
  const size_t bytes = bytes_to_use(probe), chunk_bytes = 2 * CHUNK * sizeof(double);
  struct crew *crew = calloc(1, sizeof *crew);
  double *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (!crew || memory == MAP_FAILED || bytes < chunk_bytes) {
    probe_say(probe, "no memory to measure host memory with");
    goto end;
  }
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  if (probe->node >= 0 && probe->node < NODES_MOST) {
    unsigned long mask[NODES_MOST / (8 * sizeof(long))] = {0};
    mask[(unsigned)probe->node / (8 * sizeof(long))] |=
        1ul << (unsigned)probe->node % (8 * sizeof(long));
    (void)syscall(SYS_mbind, memory, bytes, PREFERRED, mask, (unsigned long)NODES_MOST, 0u);
  }
  pthread_t threads[THREADS_MOST];
  crew->count = probe->threads < THREADS_MOST ? probe->threads : THREADS_MOST;
  if (crew->count > bytes / chunk_bytes)
    crew->count = (unsigned)(bytes / chunk_bytes);
  if (!crew->count)
    goto end;
  lay_out(crew, memory, bytes);
  pthread_barrier_init(&crew->start, NULL, crew->count + 1);
  unsigned made = 0;
  while (made < crew->count && !pthread_create(&threads[made], NULL, member, crew))
    made++;
  if (made < crew->count) {
    /* Those that wait at the barrier end with the process. */
    probe_say(probe, "%u threads can't be started: host memory isn't measured", crew->count);
    return;
  }
  pthread_barrier_wait(&crew->start);
  const uint64_t begun = clock_now_ns();
  pthread_barrier_wait(&crew->start);
  const uint64_t ns = clock_now_ns() - begun;
  for (unsigned i = 0; i < made; i++)
    pthread_join(threads[i], NULL);
  probe->rates.dram = (double)crew->bytes * 1e9 / (double)ns;
  const uint64_t alone_begun = clock_now_ns();
  const uint64_t alone = work(crew->shares, crew->count, alone_begun + alone_ns);
  probe->rates.dram_thread = (double)alone * 1e9 / (double)(clock_now_ns() - alone_begun);
  pthread_barrier_destroy(&crew->start);
end:
  if (memory != MAP_FAILED)
    munmap(memory, bytes);
  free(crew);
}

void probe_elements(struct probe *probe) {
  enum { ELEMENTS = 4096 };
  static float g[ELEMENTS], m[ELEMENTS], v[ELEMENTS], u[ELEMENTS];
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
  char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
  if (!slash)
    return;
  memcpy(slash + 1, "liboffload-adam.so", sizeof "liboffload-adam.so");
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  offload_adam_function *get =
      object ? (offload_adam_function *)(uintptr_t)dlsym(object, "offload_adam") : NULL;
  const struct adam_api *api = get ? get() : NULL;
  char error[200] = "it is of another version";
  struct adam_team *team = api && api->abi == OFFLOAD_ADAM_ABI
                               ? api->team_create(1, ADAM_ISA_AUTO, error, sizeof error)
                               : NULL;
  if (!team) {
    probe_say(probe, "the CPU step isn't measured: %s: %s", path, object ? error : dlerror());
    return;
  }
  struct adam_job job = {.gradient = g,
                         .exp_avg = m,
                         .exp_avg_sq = v,
                         .update = u,
                         .elements = ELEMENTS,
                         .generation = ADAM_FLOAT,
                         .gradient_type = ADAM_TYPE_FLOAT,
                         .state_type = ADAM_TYPE_FLOAT,
                         .beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8};
  const struct adam_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  for (unsigned i = 0; i < ELEMENTS; i++)
    g[i] = (float)i / ELEMENTS - 0.5f;
  api->scalars(ADAM_FLOAT, &hyper, 10, 0, 0, &job.scalars);
  bool done = api->step(team, &job);
  const uint64_t begun = clock_now_ns();
  uint64_t steps = 0;
  for (; done && clock_now_ns() - begun < elements_ns; steps++)
    done = api->step(team, &job);
  if (done)
    probe->rates.cpu_elements = (double)steps * ELEMENTS * 1e9 / (double)(clock_now_ns() - begun);
  api->team_destroy(team);
}

int probe_node_of(const char *root, const char *bus) {
  char directory[160];
  const int used = snprintf(directory, sizeof directory, "/sys/bus/pci/devices/");
  if (used + (int)strlen(bus) >= (int)sizeof directory)
    return -1;
  for (int i = 0; i == 0 || bus[i - 1]; i++) /* /sys writes small letters */
    directory[used + i] = bus[i] >= 'A' && bus[i] <= 'F' ? (char)(bus[i] | 0x20) : bus[i];
  const uint64_t node = number_in(root, directory, "numa_node");
  return node < NODES_MOST ? (int)node : -1;
}

/* Whether a list as "0-3,8" has a member for which `is` says so. */
static bool any_of(const char *list, bool (*is)(unsigned, const void *), const void *argument) {
  while (*list >= '0' && *list <= '9') {
    char *end;
    unsigned long first = strtoul(list, &end, 10), last = first;
    if (*end == '-')
      last = strtoul(end + 1, &end, 10);
    for (; first <= last && first < CPU_SETSIZE; first++)
      if (is((unsigned)first, argument))
        return true;
    list = *end == ',' ? end + 1 : end;
  }
  return false;
}

static bool is_allowed(unsigned cpu, const void *set) {
  return CPU_ISSET(cpu, (const cpu_set_t *)set);
}

struct nearest {
  const char *root, *distances; /* what is left of the row of the GPU's node */
  cpu_set_t allowed;
  unsigned long least;
};

/* One online node after the other, as the row's columns are. */
static bool take_node(unsigned node, const void *argument) {
  struct nearest *nearest = *(struct nearest *const *)argument;
  char *end, directory[64];
  const unsigned long distance = strtoul(nearest->distances, &end, 10);
  if (end == nearest->distances)
    return true;
  nearest->distances = end;
  (void)snprintf(directory, sizeof directory, "/sys/devices/system/node/node%u", node);
  const char *cpus = line_in(nearest->root, directory, "cpulist");
  if (cpus && distance < nearest->least && any_of(cpus, is_allowed, &nearest->allowed))
    nearest->least = distance;
  return false;
}

double probe_distance(const char *root, int node) {
  char directory[64], row[4096], online[1024];
  struct nearest nearest = {.root = root, .least = ~0ul}, *argument = &nearest;
  (void)snprintf(directory, sizeof directory, "/sys/devices/system/node/node%d", node);
  const char *line = node < 0 ? NULL : line_in(root, directory, "distance");
  if (!line || strlen(line) >= sizeof row ||
      sched_getaffinity(0, sizeof nearest.allowed, &nearest.allowed))
    return 0;
  memcpy(row, line, strlen(line) + 1);
  nearest.distances = row;
  line = line_in(root, "/sys/devices/system/node", "online");
  if (!line || strlen(line) >= sizeof online)
    return 0;
  memcpy(online, line, strlen(line) + 1);
  (void)any_of(online, take_node, &argument);
  return nearest.least == ~0ul ? 0 : (double)nearest.least;
}
