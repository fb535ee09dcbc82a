/* See report_memory.h. The list is kept under a lock, and written from a copy. */
#include "report_memory.h"
#include "leaf.h"
#include "report.h"
#include "scratch.h"
#include <pthread.h>

struct sample {
  uint64_t time_ns, host_bytes, drive_bytes, state_bytes, device_used_bytes;
  bool device_known;
};

static struct series {
  bool begun;
  uint64_t start_ns, interval_ns, next_ns;
  unsigned count;
  struct sample samples[REPORT_MEMORY_SAMPLES];
} series;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the series */
static _Atomic uint64_t device_used, device_total, state_bytes;

void report_memory_device(uint64_t used_bytes, uint64_t total_bytes) {
  atomic_store_explicit(&device_used, used_bytes, memory_order_relaxed);
  atomic_store_explicit(&device_total, total_bytes, memory_order_release); /* used is there */
}

void report_memory_state(uint64_t bytes) {
  atomic_store_explicit(&state_bytes, bytes, memory_order_relaxed);
}

bool report_memory_device_now(uint64_t *used_bytes, uint64_t *total_bytes) {
  *total_bytes = atomic_load_explicit(&device_total, memory_order_acquire);
  *used_bytes = atomic_load_explicit(&device_used, memory_order_relaxed);
  return *total_bytes != 0;
}

uint64_t report_memory_state_now(void) {
  return atomic_load_explicit(&state_bytes, memory_order_relaxed);
}

void report_memory_begin(uint64_t now_ns, uint64_t interval_ns) {
  pthread_mutex_lock(&lock);
  if (!series.begun)
    series = (struct series){
        .begun = true, .start_ns = now_ns, .interval_ns = interval_ns, .next_ns = now_ns};
  pthread_mutex_unlock(&lock);
}

/* Every second one stays, the first among them. */
static void thin(void) {
  for (unsigned i = 0; i < REPORT_MEMORY_SAMPLES / 2; i++)
    series.samples[i] = series.samples[2 * i];
  series.count = REPORT_MEMORY_SAMPLES / 2;
  series.interval_ns *= 2;
}

uint64_t report_memory_sample(uint64_t now_ns, bool last) {
  uint64_t total;
  struct sample sample = {
      .host_bytes = atomic_load_explicit(&report.totals.moved_bytes, memory_order_relaxed),
      .drive_bytes = atomic_load_explicit(&report.totals.drive_bytes, memory_order_relaxed),
      .state_bytes = report_memory_state_now()};
  sample.device_known = report_memory_device_now(&sample.device_used_bytes, &total);
  uint64_t wait_ns = UINT64_MAX;
  if (!leaf_lock(&lock))
    return wait_ns;
  if (series.begun) {
    if (now_ns >= series.next_ns || last) {
      if (series.count == REPORT_MEMORY_SAMPLES)
        thin();
      sample.time_ns = now_ns - series.start_ns;
      series.samples[series.count++] = sample;
      series.next_ns = now_ns + series.interval_ns;
    }
    wait_ns = series.next_ns - now_ns;
  }
  pthread_mutex_unlock(&lock);
  return wait_ns;
}

void report_memory_json(struct json *json) {
  uint64_t used, total;
  struct series *copy = scratch_take(sizeof *copy);
  if (copy && leaf_lock(&lock)) {
    *copy = series;
    pthread_mutex_unlock(&lock);
  }
  json_begin(json, "memory", '{');
  if (report_memory_device_now(&used, &total))
    json_number(json, "device_bytes", total);
  else
    json_string(json, "device_bytes", NULL);
  json_number(json, "interval_ns", copy ? copy->interval_ns : 0);
  json_begin(json, "samples", '[');
  for (unsigned i = 0; copy && i < copy->count; i++) {
    const struct sample *sample = &copy->samples[i];
    json_begin(json, NULL, '{');
    json_number(json, "time_ns", sample->time_ns);
    json_number(json, "host_bytes", sample->host_bytes);
    json_number(json, "drive_bytes", sample->drive_bytes);
    json_number(json, "state_bytes", sample->state_bytes);
    if (sample->device_known)
      json_number(json, "device_used_bytes", sample->device_used_bytes);
    else
      json_string(json, "device_used_bytes", NULL);
    json_end(json, '}');
  }
  json_end(json, ']');
  json_end(json, '}');
  scratch_drop(copy, sizeof *copy);
}

void report_memory_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  series.begun = false;
  series.count = 0;
  series.interval_ns = 0;
  report_memory_device(0, 0);
  report_memory_state(0);
}
