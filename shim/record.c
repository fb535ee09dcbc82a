/* See record.h. The thread sleeps on a word (futex) that record_finish changes: exit may come by a signal's handler, on top of anything,
   so no lock is between the two, and nobody joins the thread: freeing its stack may take the allocator's lock. */
#define _GNU_SOURCE
#include "record.h"
#include "../nvme/clock.h"
#include "../policy/metrics.h"
#include "../policy/registry.h"
#include "../policy/report.h"
#include "../policy/report_memory.h"
#include "../policy/trace.h"
#include "driver.h"
#include "process.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10 };

static const uint64_t millisecond_ns = 1000000, second_ns = 1000 * millisecond_ns;
/* Between two reports and two metrics; until the first of both. */
static const uint64_t report_ns = 60 * second_ns, metrics_ns = 5 * second_ns, first_ns = second_ns;
/* Between samples of memory, at first; between looks at the device's. */
static const uint64_t sample_ns = 250 * millisecond_ns, device_ns = 250 * millisecond_ns;
/* The most that an exit waits for a file that is being written. */
static const uint64_t end_ns = 2 * second_ns;

enum { UNDECIDED, NOTHING, RUNNING };
static _Atomic int recording;         /* written under the enqueue lock */
static _Atomic uint32_t ending, done; /* words that are slept on */
static uint64_t device_noted_ns;      /* under the enqueue lock */
static bool device_shown;             /* the same */
static _Atomic int device = -1;       /* that stepped first */

/* Until the word is no longer 0, or for so long. */
static void sleep_on(_Atomic uint32_t *word, uint64_t ns) {
  const struct timespec time = {.tv_sec = (time_t)(ns / second_ns),
                                .tv_nsec = (long)(ns % second_ns)};
  if (!atomic_load_explicit(word, memory_order_acquire))
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, &time, NULL, 0);
}

static void tell(_Atomic uint32_t *word) {
  atomic_store_explicit(word, 1, memory_order_release); /* what was done before is seen */
  (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* In nanoseconds, shorter in tests. */
static uint64_t period(uint64_t ns) {
  const unsigned test_ms = process_config()->test_record_ms;
  return test_ms ? least(ns, test_ms * millisecond_ns) : ns;
}

/* What is written every so often. */
struct task {
  uint64_t next_ns, period_ns;
};

/* How long until it is due, begun anew when it is due now. */
static uint64_t until(struct task *task, uint64_t now, bool *due) {
  *due = now >= task->next_ns;
  if (*due)
    task->next_ns = now + task->period_ns;
  return task->next_ns - now;
}

static void *work(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "offload-record");
  const struct config *config = process_config();
  const uint64_t begun = clock_now_ns() + period(first_ns);
  struct task report_task = {begun, period(report_ns)}, metrics_task = {begun, period(metrics_ns)},
              trace_task = {begun + period(report_ns), period(report_ns)};
  while (!atomic_load_explicit(&ending, memory_order_acquire)) {
    const uint64_t now = clock_now_ns();
    bool due;
    uint64_t wait = UINT64_MAX;
    if (config->report) {
      wait = least(report_memory_sample(now, false), until(&report_task, now, &due));
      if (due)
        report_now(config);
    }
    if (config->metrics) {
      wait = least(wait, until(&metrics_task, now, &due));
      if (due)
        metrics_write(config, atomic_load_explicit(&device, memory_order_relaxed), true);
    }
    if (config->trace) {
      wait = least(wait, until(&trace_task, now, &due));
      if (due)
        trace_write(config);
    }
    sleep_on(&ending, wait);
  }
  tell(&done);
  return NULL;
}

/* Signals are the program's: the thread inherits that all are blocked. */
static bool start(void) {
  sigset_t all, before;
  pthread_t thread;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes))
    return false;
  (void)pthread_attr_setstacksize(&attributes, STACK_BYTES); /* too small here: the default then */
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread, &attributes, work, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (error)
    report_notice("the thread that writes OFFLOAD_REPORT, OFFLOAD_METRICS and OFFLOAD_TRACE while "
                  "the program runs "
                  "can't be started (%s): they are written at exit only",
                  strerror(error));
  return !error;
}

static bool begin(void) {
  const struct config *config = process_config();
  if (!config->report && !config->metrics && !config->trace)
    return false;
  if (config->trace && !trace_start())
    report_notice("OFFLOAD_TRACE: there is no memory for a timeline: none is written");
  report_memory_begin(clock_now_ns(), period(sample_ns));
  return start();
}

static void note_device(void) {
  size_t unused, total;
  const uint64_t now = clock_now_ns();
  if (device_noted_ns && now - device_noted_ns < period(device_ns))
    return;
  CUdevice ordinal;
  device_noted_ns = now;
  if (atomic_load_explicit(&device, memory_order_relaxed) < 0 &&
      driver.cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)
    atomic_store_explicit(&device, ordinal, memory_order_relaxed);
  if (driver.cuMemGetInfo_v2 && driver.cuMemGetInfo_v2(&unused, &total) == CUDA_SUCCESS)
    report_memory_device(total - unused, total);
}

/* To whoever looks at the node's ranks. The first steps may be before there is a registry. */
static void show_device(void) {
  const int ordinal = atomic_load_explicit(&device, memory_order_relaxed);
  if (!device_shown && ordinal >= 0 && registry_joined()) {
    char gpu[64] = "";
    if (driver.cuDeviceGetPCIBusId)
      (void)driver.cuDeviceGetPCIBusId(gpu, sizeof gpu, ordinal);
    registry_device(ordinal, gpu);
    device_shown = true;
  }
}

void record_step(size_t state_bytes) {
  int now = atomic_load_explicit(&recording, memory_order_relaxed);
  if (now == NOTHING && !registry_joined())
    return;
  report_memory_state(state_bytes);
  note_device();
  show_device();
  if (now == UNDECIDED)
    atomic_store_explicit(&recording, begin() ? RUNNING : NOTHING, memory_order_release);
}

/* Whoever has yet to be waited for is left alone: the process ends. */
static void stop(void) {
  tell(&ending);
  for (uint64_t end = clock_now_ns() + end_ns, now;
       !atomic_load_explicit(&done, memory_order_acquire) && (now = clock_now_ns()) < end;)
    sleep_on(&done, end - now);
  (void)report_memory_sample(clock_now_ns(), true);
}

void record_finish(void) {
  if (atomic_load_explicit(&recording, memory_order_acquire) == RUNNING)
    stop();
  metrics_write(process_config(), atomic_load_explicit(&device, memory_order_relaxed), false);
  trace_write(process_config());
}
