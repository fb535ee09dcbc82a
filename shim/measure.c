/* See measure.h. A device's rates are written by whoever set its `state` from NONE to LOOKING, and by a thread of ours that measures;
   both under the lock, which is held for copies alone. The thread calls neither CUDA nor the loader: what it needs of them is asked
   before it is started. */
#define _GNU_SOURCE
#include "measure.h"
#include "../policy/budget.h"
#include "../policy/ranks.h"
#include "../policy/rates_cache.h"
#include "../policy/report.h"
#include "../policy/report_rates.h"
#include "cancel.h"
#include "driver.h"
#include "measure_run.h"
#include "process.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
  DEVICES_MAX = 64,
  SECONDS = 25, /* the probe ends by itself before */
  STACK_BYTES = 256 << 10,
  ARGUMENTS = 12,
  WHY_BYTES = 300
};

enum state { NONE, LOOKING, KNOWN };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* `rates`, `measuring`, `again` */
static struct device {
  _Atomic int state;
  struct rates rates;
  bool measuring, again; /* a thread is at it; it was measured again, or can't be */
} devices[DEVICES_MAX];
static _Atomic unsigned generation;

/* One measurement: the thread's own. */
struct measuring {
  CUdevice device;
  struct run_program run;
  char gpu[64], ranks[16];
  char path[RATES_PATH_BYTES], kept[RATES_PATH_BYTES];
  const char *arguments[ARGUMENTS];
  char **environment; /* NULL: there was no memory */
  struct rates_key key;
  char why[WHY_BYTES];
};

static struct device *device_of(CUdevice number) {
  return number >= 0 && number < DEVICES_MAX ? &devices[number] : NULL;
}

/* New rates, where they come from, or why they are assumed (path NULL). */
static void learn(CUdevice number, const struct rates *rates, const char *path, const char *why) {
  struct device *device = &devices[number];
  pthread_mutex_lock(&lock);
  device->rates = *rates;
  pthread_mutex_unlock(&lock);
  atomic_fetch_add_explicit(&generation, 1, memory_order_release);
  if (rates->source != RATES_ASSUMED)
    budget_charged(rates);
  report_rates(number, rates, path, why);
}

/* ---- the thread ---- */

/* The file name of this library's neighbour, read from the memory map: the loader isn't asked by a thread of ours. */
static bool find_program(char path[RATES_PATH_BYTES]) {
  static const char name[] = "offload-probe";
  FILE *map = fopen("/proc/self/maps", "re");
  char *line = NULL;
  size_t line_bytes = 0;
  bool found = false;
  while (map && !found && getline(&line, &line_bytes, map) > 0) {
    unsigned long first, last;
    int at = 0;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &first, &last, &at) != 2 || !at ||
        (uintptr_t)name < first || (uintptr_t)name >= last)
      continue;
    char *slash = strrchr(line + at, '/');
    if (!slash)
      break;
    *slash = 0;
    found = snprintf(path, RATES_PATH_BYTES, "%s/%s", line + at, name) < RATES_PATH_BYTES;
  }
  free(line);
  if (map)
    (void)fclose(map);
  return found;
}

/* The program's environment less what would preload us. The strings are the program's. Of a thread of the program's: it may set a
   variable next. */
static char **environment_of(void) {
  size_t count = 0, kept = 0;
  while (environ[count])
    count++;
  char **copy = calloc(count + 2, sizeof *copy);
  for (size_t i = 0; copy && i < count; i++)
    if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0 &&
        strncmp(environ[i], "OFFLOAD_MODE=", 13) != 0)
      copy[kept++] = environ[i];
  static char off[] = "OFFLOAD_MODE=off";
  if (copy)
    copy[kept] = off;
  return copy;
}

static bool understand(struct measuring *m, struct rates *rates) {
  char *begin = strstr(m->run.output, "# what this machine does");
  if (m->run.error) {
    (void)snprintf(m->why, sizeof m->why, "%.200s can't be run: %s", m->path,
                   strerror(m->run.error));
    return false;
  }
  if (!WIFEXITED(m->run.status) || WEXITSTATUS(m->run.status) || !begin) {
    m->run.output[strcspn(m->run.output, "\n")] = 0;
    (void)snprintf(m->why, sizeof m->why, "%.200s (offload-probe, status %d)",
                   *m->run.output ? m->run.output : "nothing was measured",
                   WIFEXITED(m->run.status) ? WEXITSTATUS(m->run.status)
                                            : 128 + WTERMSIG(m->run.status));
    return false;
  }
  rates_assume(rates);
  if (!rates_parse(rates, begin, m->why, sizeof m->why))
    return false;
  rates->source = RATES_MEASURED;
  return true;
}

static void *measure(void *argument) {
  struct measuring *m = argument;
  struct rates rates;
  char problem[200];
  pthread_setname_np(pthread_self(), "offload-measure");
  bool good = false;
  if (!find_program(m->path)) {
    (void)snprintf(m->why, sizeof m->why, "this library's own path can't be told");
  } else if (access(m->path, X_OK)) {
    (void)snprintf(m->why, sizeof m->why, "%.200s is missing: put it beside liboffload.so",
                   m->path);
  } else if (!m->environment) {
    (void)snprintf(m->why, sizeof m->why, "there is no memory for its environment");
  } else {
    m->run.path = m->arguments[0] = m->path;
    m->run.arguments = (char *const *)m->arguments; /* which exec doesn't write to */
    m->run.environment = m->environment;
    m->run.seconds = SECONDS;
    run_program(&m->run);
    good = understand(m, &rates);
  }
  if (good) {
    const bool kept =
        rates_cache_path(&m->key, m->kept, problem, sizeof problem) && !access(m->kept, R_OK);
    learn(m->device, &rates, kept ? m->kept : NULL, NULL);
    report_line(LOG_VERBOSE, "measured what this machine does (%s)",
                kept ? m->kept : "for this process alone");
  } else {
    measure_rates(m->device, &rates);
    if (rates.source == RATES_ASSUMED)
      report_rates(m->device, &rates, NULL, m->why);
    report_reason("the machine's rates couldn't be measured: %s", m->why);
  }
  pthread_mutex_lock(&lock);
  devices[m->device].measuring = false;
  pthread_mutex_unlock(&lock);
  free(m->environment);
  free(m);
  return NULL;
}

/* ---- starting it ---- */

static void start(struct measuring *m, bool again) {
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  struct device *device = &devices[m->device];
  (void)snprintf(m->ranks, sizeof m->ranks, "%u", process_config()->local_ranks);
  const char *const arguments[ARGUMENTS] = {NULL,
                                            "--gpu",
                                            m->gpu,
                                            "--ranks",
                                            m->ranks,
                                            again ? "--again" : "--cached",
                                            m->key.drives ? "--nvme" : NULL,
                                            m->key.drives};
  memcpy(m->arguments, arguments, sizeof arguments);
  m->environment = environment_of();
  pthread_mutex_lock(&lock);
  device->measuring = true;
  pthread_mutex_unlock(&lock);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_attr_init(&attributes);
  if (!error) {
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_create(&thread, &attributes, measure, m);
    (void)pthread_attr_destroy(&attributes);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error)
    return;
  pthread_mutex_lock(&lock);
  device->measuring = false;
  pthread_mutex_unlock(&lock);
  report_reason("the machine's rates couldn't be measured: no thread for it (%s)", strerror(error));
  free(m->environment);
  free(m);
}

/* The device's key; NULL without memory or where the driver doesn't say which GPU it is. */
static struct measuring *measuring_of(CUdevice device, bool *keep) {
  struct measuring *m = calloc(1, sizeof *m);
  int version = 0;
  if (!m || !driver.cuDeviceGetPCIBusId ||
      driver.cuDeviceGetPCIBusId(m->gpu, sizeof m->gpu, device)) {
    free(m);
    return NULL;
  }
  if (driver.cuDriverGetVersion)
    (void)driver.cuDriverGetVersion(&version);
  m->device = device;
  *keep = rates_key_here(&m->key, process_config()->sysroot, version);
  memcpy(m->key.gpu, m->gpu, sizeof m->key.gpu);
  m->key.drives = process_config()->nvme;
  return m;
}

static void look(CUdevice device) {
  const struct config *config = process_config();
  struct rates rates;
  char problem[600];
  rates_assume(&rates);
  if (config->rates) {
    const bool read = rates_read(&rates, config->rates, problem, sizeof problem);
    if (!read)
      report_line(LOG_NORMAL, "OFFLOAD_RATES=%s; rates are assumed", problem);
    learn(device, &rates, read ? config->rates : NULL, read ? NULL : problem);
    return;
  }
  bool keep = false;
  struct measuring *m = measuring_of(device, &keep);
  if (m && keep && rates_cached(&m->key, &rates, m->kept)) {
    learn(device, &rates, m->kept, NULL);
    free(m);
    return;
  }
  learn(device, &rates, NULL,
        !m                          ? "the driver doesn't name this GPU"
        : config->step != STEP_AUTO ? "OFFLOAD_STEP is given, so nothing is chosen by them"
                                    : "they are being measured");
  if (m && config->step == STEP_AUTO)
    start(m, false);
  else
    free(m);
}

void measure_begin(CUdevice number) {
  struct device *device = device_of(number);
  int nobody = NONE;
  if (!device || atomic_load_explicit(&device->state, memory_order_relaxed) != NONE ||
      !atomic_compare_exchange_strong(&device->state, &nobody, LOOKING))
    return;
  const int cancel = cancel_hold(), error = errno;
  look(number);
  atomic_store_explicit(&device->state, KNOWN, memory_order_release);
  cancel_allow(cancel);
  errno = error;
}

void measure_rates(CUdevice number, struct rates *rates) {
  const struct device *device = device_of(number);
  /* acquire: whoever sees KNOWN sees rates. */
  if (!device || atomic_load_explicit(&device->state, memory_order_acquire) != KNOWN) {
    rates_assume(rates);
    return;
  }
  pthread_mutex_lock(&lock);
  *rates = device->rates;
  pthread_mutex_unlock(&lock);
}

unsigned measure_generation(void) {
  return atomic_load_explicit(&generation, memory_order_acquire);
}

void measure_refresh(CUdevice number) {
  struct device *device = device_of(number);
  const struct config *config = process_config();
  if (!device || config->rates || config->step != STEP_AUTO ||
      atomic_load_explicit(&device->state, memory_order_acquire) != KNOWN)
    return;
  pthread_mutex_lock(&lock);
  const bool mine = !device->again && !device->measuring;
  device->again |= mine;
  pthread_mutex_unlock(&lock);
  if (!mine)
    return;
  const int cancel = cancel_hold(), error = errno;
  bool keep;
  struct measuring *m = measuring_of(number, &keep);
  if (m)
    start(m, true);
  cancel_allow(cancel);
  errno = error;
}
