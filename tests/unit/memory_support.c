/* See memory_support.h. */
#include "memory_support.h"
#include "policy/budget.h"
#include "shim/mark.h"
#include "shim/measure.h"
#include "shim/observe.h"
#include "shim/step.h"
#include "shim/switch.h"
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

struct driver driver;       /* what the rooms call */
static struct driver whole; /* what the simulator has */
struct config config;
uint64_t budget_bytes;
_Atomic bool capture_open, adam_seen, stopped;
char stop_reason[512];
size_t observed_steps, observed_moments;

/* ---- the process ---- */

const struct config *process_config(void) {
  return &config;
}

bool process_active(void) {
  return !stopped;
}

CUresult process_note_failure(CUresult result, const char *where) {
  (void)where;
  return result;
}

void process_stop(const char *reason) {
  snprintf(stop_reason, sizeof stop_reason, "%s", reason);
  stopped = true;
}

bool process_capturing(CUstream stream, bool per_thread) {
  (void)stream;
  (void)per_thread;
  return capture_open;
}

bool process_capture_open(void) {
  return capture_open;
}

size_t step_give_back(void) {
  return 0;
}
bool step_adam_seen(void) {
  return adam_seen;
}
void observe_step(const struct view *view) {
  observed_steps++;
  observed_moments = view->moment_count;
}
bool switch_off(void) {
  return false;
}

_Atomic bool mark_attached;
bool mark_push(const char *format, ...) {
  (void)format;
  return false;
}
void mark_pop(void) {}

void measure_begin(CUdevice device) {
  (void)device;
}

/* What is free now, in all of the machine. */
void budget_rooms(enum budget_pages pages, const char *root, struct budget_rooms *rooms) {
  (void)pages;
  (void)root;
  *rooms = (struct budget_rooms){budget_bytes, UINT64_MAX, UINT64_MAX, 0};
}

uint64_t budget_bound(const struct config *asked, uint64_t room) {
  (void)asked;
  return room;
}

struct budget budget_of(const struct config *asked, const struct budget_rooms *rooms,
                        unsigned ranks, unsigned group_ranks) {
  (void)asked;
  (void)ranks;
  (void)group_ranks;
  return (struct budget){rooms->machine_bytes, "OFFLOAD_HOST_MEMORY"};
}

struct budget budget_measure(const struct config *asked, enum budget_pages pages,
                             const char *root) {
  (void)asked;
  (void)pages;
  (void)root;
  return (struct budget){budget_bytes, "OFFLOAD_HOST_MEMORY"};
}

/* ---- the driver ---- */

static bool load_driver(void) {
  char path[4096];
  const char *build = getenv("OFFLOAD_TEST_BUILD");
  snprintf(path, sizeof path, "%s/gpusim/libcuda.so.1", build ? build : "build");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    printf("# %s\n", dlerror());
    return false;
  }
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  driver.symbol = (__typeof__(driver.symbol))dlsym(library, #symbol);
#define USE(symbol, base, version)                                                                 \
  driver.symbol = (__typeof__(driver.symbol))dlsym(library, #symbol);
#include "shim/hooks.def"
#undef HOOK
#undef USE
  whole = driver;
  CUcontext context;
  return driver.cuInit && !driver.cuInit(0) && !driver.cuDevicePrimaryCtxRetain(&context, 0) &&
         !driver.cuCtxSetCurrent(context);
}

const struct driver *whole_driver(void) {
  return &whole;
}

unsigned calls_made, calls_failed;
static unsigned fail_first, fail_times;

/* The n-th of all calls of these fails without doing anything. */
static bool fails(void) {
  bool fail = calls_made >= fail_first && calls_made - fail_first < fail_times;
  calls_made++;
  calls_failed += fail;
  return fail;
}

#define FAILING(symbol, parameters, arguments)                                                     \
  static CUresult failing_##symbol parameters {                                                    \
    return fails() ? CUDA_ERROR_NOT_PERMITTED : whole.symbol arguments;                            \
  }
#include "memory_failing.def"
#undef FAILING

void failing(unsigned first, unsigned times) {
  fail_first = first;
  fail_times = times;
  calls_made = calls_failed = 0;
#define FAILING(symbol, parameters, arguments)                                                     \
  driver.symbol = times ? failing_##symbol : whole.symbol;
#include "memory_failing.def"
#undef FAILING
}

/* ---- cases ---- */

static char wrong_text[256];

const char *wrong(int line, const char *condition) {
  snprintf(wrong_text, sizeof wrong_text, "line %d: %s", line, condition);
  return wrong_text;
}

static void set_switches(const char *switches) {
  char text[512];
  setenv("GPUSIM_MEMORY", "4194304", 1);
  setenv("GPUSIM_GRANULARITY", "65536", 1);
  snprintf(text, sizeof text, "%s", switches);
  for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest));) {
    char *equals = strchr(word, '=');
    if (equals) {
      *equals = 0;
      setenv(word, equals + 1, 1);
    }
  }
}

/* A node on which no other process registers. */
static char node[64];

static void remove_node(void) {
  static const char *const parts[] = {"/dev/shm", "/dev", ""};
  char path[160];
  snprintf(path, sizeof path, "%s/dev/shm/liboffload-%u/node", node, (unsigned)geteuid());
  (void)unlink(path);
  *strrchr(path, '/') = 0;
  (void)rmdir(path);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    snprintf(path, sizeof path, "%s%s", node, parts[i]);
    (void)rmdir(path);
  }
}

static const char *node_of_its_own(void) {
  char path[160];
  snprintf(node, sizeof node, "/tmp/offload_node.XXXXXX");
  if (!mkdtemp(node) || atexit(remove_node))
    abort();
  snprintf(path, sizeof path, "%s/dev", node);
  if (mkdir(path, 0700))
    abort();
  snprintf(path, sizeof path, "%s/dev/shm", node);
  if (mkdir(path, 0700))
    abort();
  return node;
}

/* The child's answer travels as its exit status and its printed comment. */
int case_status(const char *switches, const char *(*body)(void)) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    set_switches(switches);
    config = (struct config){
        .mode = MODE_FULL, .overflow = true, .log = LOG_QUIET, .sysroot = node_of_its_own()};
    report_configure(&config);
    budget_bytes = 1u << 30;
    alarm(60);
    const char *bad = load_driver() ? body() : "the simulated driver didn't start";
    if (bad)
      printf("# %s\n", bad);
    for (unsigned i = 0; bad && i < report.reason_count; i++)
      printf("#   said: %s\n", report.reasons[i]);
    exit(bad ? 1 : 0); /* sanitizers report at exit */
  }
  int status = -1;
  (void)waitpid(child, &status, 0);
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool case_passes(const char *switches, const char *(*body)(void)) {
  return case_status(switches, body) == 0;
}

/* ---- memory ---- */

static unsigned char content(size_t at, unsigned seed) {
  return (unsigned char)(seed * 37 + at * 11 + at / 251 + at / 65536);
}

void fill(uintptr_t address, size_t bytes, unsigned seed) {
  unsigned char *data = malloc(bytes);
  for (size_t i = 0; i < bytes; i++)
    data[i] = content(i, seed);
  if (whole.cuMemcpyHtoD_v2(address, data, bytes))
    printf("# filling failed\n");
  free(data);
}

bool holds(uintptr_t address, size_t bytes, unsigned seed) {
  unsigned char *data = malloc(bytes);
  CUresult result = whole.cuMemcpyDtoH_v2(data, address, bytes);
  size_t i = 0;
  while (!result && i < bytes && data[i] == content(i, seed))
    i++;
  free(data);
  return !result && i == bytes;
}

uintptr_t filled(size_t bytes, unsigned seed) {
  CUdeviceptr pointer = 0;
  if (range_create(&pointer, bytes, PIECE_DEVICE))
    return 0;
  fill(pointer, bytes, seed);
  return pointer;
}

CUresult step_names(const struct state_tensor *tensors, size_t count, CUstream stream) {
  enqueue_lock();
  CUresult result = state_launch(tensors, count, stream);
  enqueue_unlock();
  return result;
}

unsigned pieces_on_host(uintptr_t base) {
  const struct range *range = range_find(base);
  return range ? range->host_pieces : 0;
}

size_t device_free(void) {
  size_t free_bytes = 0, total = 0;
  (void)whole.cuMemGetInfo_v2(&free_bytes, &total);
  return free_bytes;
}

CUstream new_stream(void) {
  CUstream stream = NULL;
  (void)whole.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  return stream;
}

static void pause_ms(void *milliseconds) {
  struct timespec time = {.tv_nsec = (long)(uintptr_t)milliseconds * 1000000};
  nanosleep(&time, NULL);
}

void delay(CUstream stream, unsigned milliseconds) {
  (void)whole.cuLaunchHostFunc(stream, pause_ms, (void *)(uintptr_t)milliseconds);
}

bool reported(const char *part) {
  for (unsigned i = 0; i < report.reason_count; i++)
    if (strstr(report.reasons[i], part))
      return true;
  return false;
}
