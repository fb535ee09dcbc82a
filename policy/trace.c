/* See trace.h. One lock protects the ring; it is held for a span or a copy of all, never while something is written. */
#define _GNU_SOURCE
#include "trace.h"
#include "leaf.h"
#include "out.h"
#include "report.h"
#include "report_file.h"
#include "scratch.h"
#include "sort.h"
#include "version.h"
#include "words.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LANES = 64, DEVICE_TRACKS = 1000 };
enum { SPANS_BYTES = TRACE_SPANS * sizeof(struct trace_span) };

_Atomic bool trace_started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct trace_span *ring; /* TRACE_SPANS; stays until the process ends */
static uint64_t added, lost;    /* under the lock, like what is in the ring */

static const struct {
  const char *label;
  enum { DEVICE, HOST } of;
} tracks[TRACE_TRACKS] = {
#define TRACK(name, label, of) {label, of},
#include "trace.def"
#undef TRACK
};

bool trace_start(void) {
  pthread_mutex_lock(&lock);
  if (!ring)
    ring = calloc(TRACE_SPANS, sizeof *ring);
  const bool there = ring != NULL;
  pthread_mutex_unlock(&lock);
  atomic_store_explicit(&trace_started, there, memory_order_relaxed);
  return there;
}

void trace_add(const struct trace_span *span) {
  if (!trace_on() || !leaf_lock(&lock))
    return;
  struct trace_span *place = &ring[added++ % TRACE_SPANS];
  *place = *span;
  if (place->end_ns < place->begin_ns)
    place->end_ns = place->begin_ns;
  pthread_mutex_unlock(&lock);
}

void trace_lost(uint64_t spans) {
  if (!leaf_lock(&lock))
    return;
  lost += spans;
  pthread_mutex_unlock(&lock);
}

/* ---- writing ---- */

struct picture {
  const struct config *config;
  uint64_t count, dropped, lost;
  struct trace_span *spans;
  struct out out;
};

static int track_device(const struct trace_span *span) {
  return tracks[span->track].of == DEVICE ? span->device : -1;
}

/* By track, then by time; whatever differs decides, so that the file is the same each time. */
static int order(const void *one, const void *other) {
  const struct trace_span *a = one, *b = other;
  const int by_device = track_device(a) - track_device(b), by_track = (int)a->track - (int)b->track;
  if (by_device || by_track)
    return by_device ? by_device : by_track;
  const uint64_t left[] = {a->begin_ns, a->end_ns, a->step, a->bytes, a->elements},
                 right[] = {b->begin_ns, b->end_ns, b->step, b->bytes, b->elements};
  for (size_t i = 0; i < sizeof left / sizeof *left; i++)
    if (left[i] != right[i])
      return left[i] < right[i] ? -1 : 1;
  return strcmp(a->name, b->name);
}

static unsigned thread_of(const struct trace_span *span, unsigned lane) {
  const unsigned track = (unsigned)span->track;
  return tracks[track].of == DEVICE ? DEVICE_TRACKS * (unsigned)(span->device + 1) + track
                                    : track * LANES + lane + 1;
}

/* A lane for a span: the first that is free. `ends`: when each of its track's lanes is; 0: never used. */
static unsigned lane_of(const struct trace_span *span, uint64_t ends[LANES]) {
  unsigned lane = 0;
  while (tracks[span->track].of == HOST && lane < LANES - 1 && ends[lane] > span->begin_ns)
    lane++;
  return lane;
}

static void write_track(struct picture *picture, const struct trace_span *span, unsigned lane) {
  char suffix[32] = "";
  const unsigned thread = thread_of(span, lane);
  if (tracks[span->track].of == DEVICE)
    snprintf(suffix, sizeof suffix, " (GPU %d)", span->device);
  else if (lane)
    snprintf(suffix, sizeof suffix, " %u", lane + 1);
  out_format(&picture->out,
             ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":"
             "\"%s%s\"}}",
             (int)getpid(), thread, tracks[span->track].label, suffix);
  out_format(&picture->out,
             ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%u,\"args\":{"
             "\"sort_index\":%u}}",
             (int)getpid(), thread, (unsigned)span->track * LANES + lane);
}

/* Microseconds, as the format wants them, with three decimals. */
static void write_span(struct picture *picture, const struct trace_span *span, unsigned lane) {
  const uint64_t ns = span->end_ns - span->begin_ns;
  char step[32] = "";
  if (span->step)
    snprintf(step, sizeof step, ",\"step\":%llu", (unsigned long long)span->step);
  out_format(&picture->out,
             ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u,\"dur\":%llu."
             "%03u,\"args\":{\"bytes\":%llu,\"elements\":%llu%s}}",
             span->name, (int)getpid(), thread_of(span, lane),
             (unsigned long long)(span->begin_ns / 1000), (unsigned)(span->begin_ns % 1000),
             (unsigned long long)(ns / 1000), (unsigned)(ns % 1000),
             (unsigned long long)span->bytes, (unsigned long long)span->elements, step);
}

static void write_spans(struct picture *picture) {
  uint64_t ends[LANES] = {0};
  unsigned before = 0; /* a track's first thread; none has 0 */
  for (uint64_t i = 0; i < picture->count; i++) {
    const struct trace_span *span = &picture->spans[i];
    if (before != thread_of(span, 0))
      memset(ends, 0, sizeof ends);
    before = thread_of(span, 0);
    const unsigned lane = lane_of(span, ends);
    if (!ends[lane])
      write_track(picture, span, lane);
    ends[lane] = span->end_ns ? span->end_ns : 1;
    write_span(picture, span, lane);
  }
}

static int write_picture(int fd, const void *context) {
  struct picture *picture = *(struct picture *const *)context;
  char rank[32] = "";
  if (picture->config->local_rank >= 0)
    snprintf(rank, sizeof rank, " rank %d", picture->config->local_rank);
  out_open(&picture->out, fd);
  out_format(
      &picture->out,
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"%s\",\"clock\":\"monotonic\","
      "\"spans\":%llu,\"dropped\":%llu,\"lost\":%llu},\n\"traceEvents\":[\n",
      OFFLOAD_VERSION, (unsigned long long)picture->count, (unsigned long long)picture->dropped,
      (unsigned long long)picture->lost);
  out_format(
      &picture->out,
      "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"liboffload%s\"}}",
      (int)getpid(), rank);
  write_spans(picture);
  out_format(&picture->out, "\n]}\n");
  return out_close(&picture->out);
}

/* A copy of what is in the ring, in order. False without memory, or when it can't be had any more. */
static bool take_picture(struct picture *picture) {
  picture->spans = scratch_take(SPANS_BYTES);
  if (!picture->spans || !leaf_lock(&lock))
    return false;
  picture->count = added < TRACE_SPANS ? added : TRACE_SPANS;
  picture->dropped = added - picture->count;
  picture->lost = lost;
  memcpy(picture->spans, ring, picture->count * sizeof *ring);
  pthread_mutex_unlock(&lock);
  sort_in_place(picture->spans, picture->count, sizeof *picture->spans, order);
  return true;
}

static int replace(const struct config *config) {
  struct picture *picture = scratch_take(sizeof *picture);
  char *path = scratch_take(PATH_BYTES);
  int error = ENOMEM;
  if (picture && path && take_picture(picture)) {
    picture->config = config;
    error = report_file_path(config->trace, path, PATH_BYTES)
                ? report_file_write(path, &(struct file_contents){write_picture, &picture})
                : ENAMETOOLONG;
  }
  if (picture)
    scratch_drop(picture->spans, SPANS_BYTES);
  scratch_drop(picture, sizeof *picture);
  scratch_drop(path, PATH_BYTES);
  return error;
}

void trace_write(const struct config *config) {
  static _Atomic bool said;
  char shown[REPORT_FILE_SHOWN], reason[WORDS_BYTES];
  const int error = config->trace && trace_on() ? replace(config) : 0;
  if (error && !atomic_exchange_explicit(&said, true, memory_order_relaxed))
    report_line(LOG_QUIET,
                "OFFLOAD_TRACE=%s could not be written (%s): name a file in a directory that "
                "this process may write to",
                report_file_shown(config->trace, shown), words_error(error, reason));
}
