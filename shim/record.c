/* See record.h. The thread sleeps on a word (futex) that record_finish changes: exit may come by a signal's handler, on top of anything,
   so no lock is between the two. */
#define _GNU_SOURCE
#include "record.h"
#include "../policy/report.h"
#include "../policy/report_memory.h"
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

static const uint64_t millisecond_ns = 1000000, second_ns = 1000 * millisecond_ns,
                      report_ns = 60 * second_ns, /* between two reports */
    first_ns = second_ns,                         /* until the first */
    sample_ns = 250 * millisecond_ns,             /* between samples of memory, at first */
    device_ns = 250 * millisecond_ns,             /* between looks at the device's memory */
    end_ns = 2 * second_ns;                       /* the most that an exit waits for a file */

enum { UNDECIDED, NOTHING, RUNNING };
static _Atomic int recording;         /* written under the enqueue lock */
static _Atomic uint32_t ending, done; /* words that are slept on */
static pthread_t thread;              /* once it is RUNNING */
static uint64_t device_noted_ns;      /* under the enqueue lock */

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

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

static void *work(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "offload-record");
  const struct config *config = process_config();
  uint64_t next = now_ns() + period(first_ns);
  while (!atomic_load_explicit(&ending, memory_order_acquire)) {
    const uint64_t now = now_ns();
    uint64_t wait = config->report ? report_memory_sample(now, false) : UINT64_MAX;
    if (now >= next) {
      if (config->report)
        report_record(config);
      next = now + period(report_ns);
    }
    wait = least(wait, next - now);
    sleep_on(&ending, wait);
  }
  tell(&done);
  return NULL;
}

/* Signals are the program's: the thread inherits that all are blocked. */
static bool start(void) {
  sigset_t all, before;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes))
    return false;
  (void)pthread_attr_setstacksize(&attributes, STACK_BYTES); /* too small here: the default then */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread, &attributes, work, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (error)
    report_notice("the thread that writes OFFLOAD_REPORT while the program runs can't be started "
                  "(%s): the report is written at exit only",
                  strerror(error));
  return !error;
}

static bool begin(void) {
  const struct config *config = process_config();
  if (!config->report)
    return false;
  report_memory_begin(now_ns(), period(sample_ns));
  return start();
}

static void note_device(void) {
  size_t unused, total;
  const uint64_t now = now_ns();
  if (device_noted_ns && now - device_noted_ns < period(device_ns))
    return;
  device_noted_ns = now;
  if (driver.cuMemGetInfo_v2 && driver.cuMemGetInfo_v2(&unused, &total) == CUDA_SUCCESS)
    report_memory_device(total - unused, total);
}

void record_step(size_t state_bytes) {
  int now = atomic_load_explicit(&recording, memory_order_relaxed);
  if (now == NOTHING)
    return;
  report_memory_state(state_bytes);
  note_device();
  if (now == UNDECIDED)
    atomic_store_explicit(&recording, begin() ? RUNNING : NOTHING, memory_order_release);
}

void record_finish(void) {
  /* acquire: `thread` is there */
  if (atomic_load_explicit(&recording, memory_order_acquire) != RUNNING)
    return;
  tell(&ending);
  for (uint64_t until = now_ns() + end_ns, now;
       !atomic_load_explicit(&done, memory_order_acquire) && (now = now_ns()) < until;)
    sleep_on(&done, until - now);
  if (atomic_load_explicit(&done, memory_order_acquire))
    pthread_join(thread, NULL);
  (void)report_memory_sample(now_ns(), true);
}
