/* Words that hold work back until another thread sets them, and the clock. */
#include "probe.h"
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { HELD_MS = 60 };

double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

void pause_ms(double ms) {
  struct timespec time = {(time_t)(ms / 1e3),
                          (long)((ms - 1e3 * (double)(time_t)(ms / 1e3)) * 1e6)};
  nanosleep(&time, NULL);
}

bool word_reaches(const uint32_t *word, uint32_t value, double ms) {
  double end = now_us() + ms * 1e3;
  for (unsigned turn = 1; (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0; turn++) {
    if (turn % 256 == 0) {
      if (now_us() > end)
        return false;
      sched_yield(); /* the simulated GPU shares the CPUs */
    }
  }
  return true;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double median(double *values, size_t count) {
  qsort(values, count, sizeof *values, compare);
  return count > 0 ? values[count / 2] : 0;
}

static void *open_later(void *argument) {
  struct opener *opener = argument;
  pause_ms(opener->ms);
  __atomic_store_n(opener->word, 1, __ATOMIC_RELEASE);
  return NULL;
}

void opener_start(struct opener *opener) {
  if (pthread_create(&opener->thread, NULL, open_later, opener) != 0)
    give_up("pthread_create failed");
}

void opener_join(struct opener *opener) {
  pthread_join(opener->thread, NULL);
}

/* Something in the stream that ends only when the word is set. */
static void hold(CUstream stream, uint32_t *word, bool by_kernel) {
  static CUfunction spin;
  static uint32_t *started;
  if (!by_kernel) {
    MUST(cuStreamWaitValue32_v2, stream, (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ);
    return;
  }
  if (spin == NULL) {
    spin = kernel("probe_spin");
    started = host_alloc(4096);
  }
  __atomic_store_n(started, 0, __ATOMIC_RELEASE);
  uint64_t most_ns = 2000000000;
  void *parameters[] = {&started, &word, &most_ns};
  must_succeed(launch(spin, 1, 1, stream, parameters), "probe_spin", __FILE__, __LINE__);
  if (!word_reaches(started, 1, 2000))
    give_up("a kernel did not start within 2 s");
}

bool waits_for_work(CUstream stream, bool by_kernel, asked_call call, void *argument,
                    CUresult *result) {
  static uint32_t *word;
  if (word == NULL)
    word = host_alloc(4096);
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  hold(stream, word, by_kernel);
  struct opener opener = {.word = word, .ms = HELD_MS};
  opener_start(&opener);
  *result = call(argument);
  bool let_go = __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0;
  opener_join(&opener);
  MUST(cuStreamSynchronize, stream);
  return let_go;
}
