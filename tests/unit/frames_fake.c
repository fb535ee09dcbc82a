/* See frames_fake.h. */
#define _GNU_SOURCE
#include "frames_fake.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct store *__real_store_open(const struct store_config *, char *why, size_t why_bytes);
void __real_store_forked(struct store *);
void __real_store_release(struct store *, uint32_t unit);
void __real_store_read(struct store *, struct store_request *);
void __real_store_write(struct store *, struct store_request *);
bool __real_store_allocate(struct store *, uint32_t *unit, char *why, size_t why_bytes);

bool fake_store;
struct fake fake = {.read_fails = -1, .write_fails = -1, .write_kept = -1, .delay_us = 100};

enum { MOST = 256 };

struct job {
  struct store_request *request;
  bool write;
  uint64_t sum; /* of the buffer, when it was to be written */
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct job jobs[MOST];
  unsigned count, writes;
  uint32_t random;
  char complaint[128];
  bool allocated[FAKE_UNITS], written[FAKE_UNITS];
  unsigned char *units;
} it = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .random = 1};

static uint64_t sum_of(const void *buffer) {
  uint64_t sum = 1;
  for (size_t i = 0; i < FAKE_UNIT_BYTES; i += 8) {
    uint64_t word;
    memcpy(&word, (const char *)buffer + i, 8);
    sum = (sum ^ word) * 0x100000001b3u;
  }
  return sum;
}

/* Under the lock. */
static void complain(const char *what, uint32_t unit) {
  fake.broken++;
  if (!it.complaint[0])
    snprintf(it.complaint, sizeof it.complaint, "%s (unit %u)", what, unit);
}

const char *fake_complaint(void) {
  return it.complaint;
}
const void *fake_unit(uint32_t unit) {
  return it.units + (size_t)unit * FAKE_UNIT_BYTES;
}

static void carry_out(const struct job *job) {
  struct store_request *request = job->request;
  unsigned char *place = it.units + (size_t)request->unit * FAKE_UNIT_BYTES;
  const int unit = (int)request->unit;
  request->outcome = STORE_OK;
  request->why[0] = 0;
  if (!job->write) {
    fake.reads++;
    fake.unit_reads[unit]++;
    if (!it.written[unit])
      complain("a read of what was never written", request->unit);
    if (fake.read_fails != unit) {
      memcpy(request->buffer, place, FAKE_UNIT_BYTES);
      return;
    }
    request->outcome = STORE_FAILED;
    snprintf(request->why, sizeof request->why, "the fake drive can't read unit %d", unit);
    return;
  }
  fake.writes++;
  fake.unit_writes[unit]++;
  if (sum_of(request->buffer) != job->sum)
    complain("a frame changed while it was written", request->unit);
  if (fake.write_fails == unit) {
    it.written[unit] = false;
    request->outcome = STORE_FAILED;
    snprintf(request->why, sizeof request->why, "the fake drive can't write unit %d", unit);
    return;
  }
  memcpy(place, request->buffer, FAKE_UNIT_BYTES);
  it.written[unit] = true;
  if (fake.write_kept == unit || (fake.write_kept == -2 && ++it.writes % 3 == 0)) {
    request->outcome = STORE_KEPT;
    snprintf(request->why, sizeof request->why, "the fake drive refused unit %d", unit);
  }
}

static uint32_t random_below(uint32_t limit) {
  it.random = it.random * 1664525u + 1013904223u;
  return (it.random >> 8) % limit;
}

static void *drive(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&it.lock);
    while (!it.count || fake.hold)
      pthread_cond_wait(&it.changed, &it.lock);
    const unsigned delay_us = fake.delay_us ? random_below(fake.delay_us) : 0;
    pthread_mutex_unlock(&it.lock);
    nanosleep(&(struct timespec){.tv_nsec = (long)delay_us * 1000}, NULL);
    pthread_mutex_lock(&it.lock);
    const unsigned i = random_below(it.count);
    struct job job = it.jobs[i];
    carry_out(&job);
    it.jobs[i] = it.jobs[--it.count];
    fake.waiting = it.count;
    pthread_mutex_unlock(&it.lock);
    job.request->done(job.request);
  }
  return NULL;
}

static void take(struct store_request *request, bool write) {
  pthread_mutex_lock(&it.lock);
  for (unsigned i = 0; i < it.count; i++) {
    if (it.jobs[i].request->unit == request->unit)
      complain("two requests on one unit at a time", request->unit);
    if (it.jobs[i].request->buffer == request->buffer)
      complain("two requests on one frame at a time", request->unit);
  }
  if (request->unit >= FAKE_UNITS || !it.allocated[request->unit] || it.count == MOST) {
    printf("# a request that the fake store can't take\n");
    abort();
  }
  struct job job = {request, write, write ? sum_of(request->buffer) : 0};
  const bool at_once = fake.at_once;
  if (at_once)
    carry_out(&job);
  else
    it.jobs[it.count++] = job;
  fake.waiting = it.count;
  pthread_cond_signal(&it.changed);
  pthread_mutex_unlock(&it.lock);
  if (at_once)
    request->done(request);
}

void fake_go(void) {
  pthread_mutex_lock(&it.lock);
  fake.hold = false;
  pthread_cond_signal(&it.changed);
  pthread_mutex_unlock(&it.lock);
}

bool fake_holds(unsigned requests) {
  for (unsigned i = 0; i < 5000; i++) {
    if (fake.waiting == requests)
      return true;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return false;
}

struct store *__wrap_store_open(const struct store_config *config, char *why, size_t why_bytes) {
  static pthread_t thread;
  if (!fake_store)
    return __real_store_open(config, why, why_bytes);
  if (fake.refuse_open) {
    snprintf(why, why_bytes, "the fake drive is not there");
    return NULL;
  }
  fake.opening++;
  if (fake.slow_open)
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  it.units = calloc(FAKE_UNITS, FAKE_UNIT_BYTES);
  if (!it.units || config->unit_bytes != FAKE_UNIT_BYTES ||
      pthread_create(&thread, NULL, drive, NULL))
    return NULL;
  return (struct store *)(void *)&it;
}

void __wrap_store_forked(struct store *store) {
  if (fake_store)
    fake.forked++;
  else
    __real_store_forked(store);
}

void __wrap_store_release(struct store *store, uint32_t unit) {
  if (!fake_store) {
    __real_store_release(store, unit);
    return;
  }
  pthread_mutex_lock(&it.lock);
  for (unsigned i = 0; i < it.count; i++)
    if (it.jobs[i].request->unit == unit)
      complain("a unit was released with a request under way", unit);
  if (!it.allocated[unit])
    complain("a unit was released twice", unit);
  it.allocated[unit] = it.written[unit] = false;
  fake.released++;
  pthread_mutex_unlock(&it.lock);
}

bool __wrap_store_allocate(struct store *store, uint32_t *unit, char *why, size_t why_bytes) {
  if (!fake_store)
    return __real_store_allocate(store, unit, why, why_bytes);
  pthread_mutex_lock(&it.lock);
  uint32_t found = 0;
  while (found < FAKE_UNITS && it.allocated[found])
    found++;
  if (found < FAKE_UNITS)
    it.allocated[found] = true;
  pthread_mutex_unlock(&it.lock);
  *unit = found;
  return found < FAKE_UNITS;
}

void __wrap_store_read(struct store *store, struct store_request *request) {
  if (fake_store)
    take(request, false);
  else
    __real_store_read(store, request);
}

void __wrap_store_write(struct store *store, struct store_request *request) {
  if (fake_store)
    take(request, true);
  else
    __real_store_write(store, request);
}
