/* See timeline.h. Timings are looked at in the order in which they began: what began first is nearly always done first, and each stream's
   spans come in its own order.

   The device's clock is read as a distance from an *anchor*: an event on an idle stream of ours, whose time by our clock is known to some
   microseconds, as the host saw it done at once. Distances are floats of milliseconds, so the anchor is made anew every few seconds.
   Where it isn't done at once (the device has one queue, which is busy) the older one serves on, and in front of the first one spans wait. */
#include "timeline.h"
#include "../nvme/clock.h"
#include "driver.h"
#include "quiet.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXTS = 64, TIMINGS = 8192, ANCHORS = 2 };

static const uint64_t anchor_ns = 4000000000; /* an anchor's age */
static const uint64_t retry_ns = 10000000;    /* until the next try for one */
static const uint64_t at_once_ns = 1000000;   /* within which it is done, or isn't one */
static const uint64_t end_ns = 200000000;     /* what an exit waits for the last spans */

struct timing {
  struct timeline *timeline;
  CUevent begin, end; /* made when first used */
  bool ended;
  unsigned anchor;
  struct trace_span span; /* but for its times */
};

static struct timeline {
  CUcontext context; /* NULL: free */
  int device;
  CUstream stream; /* NULL: not to be had */
  uint64_t step;
  struct {
    CUevent event;
    uint64_t ns;
    bool set;
  } anchors[ANCHORS];
  unsigned anchor;
  uint64_t tried_ns;
  uint32_t head, tail;               /* of timings that have begun; numbers wrap */
  uint64_t track_ends[TRACE_TRACKS]; /* of what was kept */
  struct timing timings[TIMINGS];
} * timelines[CONTEXTS];

static struct timeline *timeline_find(CUcontext context) {
  for (unsigned i = 0; i < CONTEXTS; i++)
    if (timelines[i] && timelines[i]->context == context)
      return timelines[i];
  return NULL;
}

static void destroy_stream(struct timeline *timeline) {
  if (timeline->stream)
    driver.cuStreamDestroy_v2(timeline->stream);
  timeline->stream = NULL;
}

static struct timeline *timeline_make(CUcontext context) {
  CUdevice device = 0;
  unsigned i = 0;
  while (i < CONTEXTS && timelines[i])
    i++;
  if (i == CONTEXTS || driver.cuCtxGetDevice(&device) ||
      !(timelines[i] = calloc(1, sizeof **timelines)))
    return NULL;
  struct timeline *timeline = timelines[i];
  timeline->context = context;
  timeline->device = device;
  bool made = driver.cuStreamCreate(&timeline->stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
  for (unsigned k = 0; k < ANCHORS && made; k++)
    made = driver.cuEventCreate(&timeline->anchors[k].event, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  if (!made || !driver.cuEventElapsedTime)
    destroy_stream(timeline);
  return timeline;
}

/* ---- the device's clock beside ours ---- */

/* Timings that go by the anchor which is to be replaced must be over with. */
static bool anchor_used(const struct timeline *timeline, unsigned anchor) {
  for (uint32_t i = timeline->head; i != timeline->tail; i++)
    if (timeline->timings[i % TIMINGS].anchor == anchor)
      return true;
  return false;
}

static void set_anchor(struct timeline *timeline) {
  const bool first = !timeline->anchors[timeline->anchor].set;
  const unsigned next = first ? timeline->anchor : (timeline->anchor + 1) % ANCHORS;
  const CUevent event = timeline->anchors[next].event;
  const uint64_t begun = clock_now_ns();
  timeline->tried_ns = begun;
  if (!first && anchor_used(timeline, next))
    return;
  timeline->anchors[next].set = false;
  if (driver.cuEventRecord(event, timeline->stream))
    return;
  CUresult result;
  uint64_t now;
  do {
    result = driver.cuEventQuery(event);
    now = clock_now_ns();
  } while (result == CUDA_ERROR_NOT_READY && now - begun < at_once_ns);
  if (result)
    return;
  timeline->anchors[next].ns = begun + (now - begun) / 2;
  timeline->anchors[next].set = true;
  timeline->anchor = next;
}

static bool time_of(const struct timing *timing, CUevent event, uint64_t *ns) {
  float ms;
  const struct timeline *timeline = timing->timeline;
  if (driver.cuEventElapsedTime(&ms, timeline->anchors[timing->anchor].event, event))
    return false;
  *ns = timeline->anchors[timing->anchor].ns + (uint64_t)(int64_t)((double)ms * 1e6);
  return true;
}

/* ---- timings ---- */

/* What a stream did follows what it did before, whatever the clock's grain. */
static void keep(struct timeline *timeline, struct timing *timing) {
  struct trace_span *span = &timing->span;
  uint64_t *before = &timeline->track_ends[span->track];
  if (!time_of(timing, timing->begin, &span->begin_ns) ||
      !time_of(timing, timing->end, &span->end_ns)) {
    trace_lost(1);
    return;
  }
  if (span->begin_ns < *before)
    span->begin_ns = *before;
  if (span->end_ns < span->begin_ns)
    span->end_ns = span->begin_ns;
  *before = span->end_ns;
  trace_add(span);
}

static void collect(struct timeline *timeline) {
  for (; timeline->head != timeline->tail; timeline->head++) {
    struct timing *timing = &timeline->timings[timeline->head % TIMINGS];
    const bool timed = timing->ended && timeline->anchors[timing->anchor].set;
    const CUresult result = timed ? driver.cuEventQuery(timing->end) : CUDA_ERROR_NOT_READY;
    if (result == CUDA_ERROR_NOT_READY)
      return;
    if (result == CUDA_SUCCESS)
      keep(timeline, timing);
    else
      trace_lost(1);
  }
}

void timeline_launch(CUcontext context, uint64_t step) {
  if (!trace_on())
    return;
  struct timeline *timeline = timeline_find(context);
  if (!timeline && !(timeline = timeline_make(context)))
    return;
  timeline->step = step;
  collect(timeline);
  const uint64_t now = clock_now_ns();
  const bool set = timeline->anchors[timeline->anchor].set;
  if (timeline->stream && now - timeline->tried_ns > retry_ns &&
      (!set || now - timeline->anchors[timeline->anchor].ns > anchor_ns))
    set_anchor(timeline);
}

uint64_t timeline_step(CUcontext context) {
  const struct timeline *timeline = trace_on() ? timeline_find(context) : NULL;
  return timeline ? timeline->step : 0;
}

struct timing *timeline_begin(CUcontext context, CUstream stream) {
  struct timeline *timeline = trace_on() ? timeline_find(context) : NULL;
  if (!timeline || !timeline->stream)
    return NULL;
  if (timeline->tail - timeline->head == TIMINGS)
    collect(timeline);
  struct timing *timing = &timeline->timings[timeline->tail % TIMINGS];
  if (timeline->tail - timeline->head == TIMINGS ||
      (!timing->begin && driver.cuEventCreate(&timing->begin, CU_EVENT_DEFAULT)) ||
      (!timing->end && driver.cuEventCreate(&timing->end, CU_EVENT_DEFAULT)) ||
      driver.cuEventRecord(timing->begin, stream)) {
    trace_lost(1);
    return NULL;
  }
  timing->timeline = timeline;
  timing->anchor = timeline->anchor;
  timing->ended = false;
  timing->span = (struct trace_span){.device = timeline->device, .step = timeline->step};
  timeline->tail++;
  return timing;
}

void timeline_end(struct timing *timing, CUstream stream, enum trace_track track, const char *name,
                  uint64_t bytes, uint64_t elements) {
  if (!timing)
    return;
  timing->span.track = track;
  timing->span.name = name;
  timing->span.bytes = bytes;
  timing->span.elements = elements;
  timing->ended = driver.cuEventRecord(timing->end, stream) == CUDA_SUCCESS;
}

void timeline_finish(bool ask) {
  const uint64_t until = clock_now_ns() + end_ns;
  const struct timespec nap = {.tv_nsec = 1000000};
  for (unsigned i = 0; i < CONTEXTS; i++) {
    struct timeline *timeline = timelines[i];
    if (!timeline)
      continue;
    if (ask)
      collect(timeline);
    while (ask && timeline->head != timeline->tail && clock_now_ns() < until) {
      if (!timeline->anchors[timeline->anchor].set)
        set_anchor(timeline);
      (void)nanosleep(&nap, NULL);
      collect(timeline);
    }
    trace_lost(timeline->tail - timeline->head);
  }
}

/* They are made in turn: behind the first that lacks them there are none. */
static void destroy_events(struct timeline *timeline) {
  for (unsigned i = 0; i < TIMINGS && timeline->timings[i].begin; i++) {
    driver.cuEventDestroy_v2(timeline->timings[i].begin);
    if (timeline->timings[i].end)
      driver.cuEventDestroy_v2(timeline->timings[i].end);
  }
  for (unsigned k = 0; k < ANCHORS; k++)
    if (timeline->anchors[k].event)
      driver.cuEventDestroy_v2(timeline->anchors[k].event);
}

void timeline_forget(CUcontext context, bool gone) {
  for (unsigned i = 0; i < CONTEXTS; i++)
    if (timelines[i] && timelines[i]->context == context) {
      if (!gone) {
        const CUstreamCaptureMode mode = quiet_begin();
        collect(timelines[i]);
        quiet_end(mode);
        destroy_events(timelines[i]);
        destroy_stream(timelines[i]);
      }
      trace_lost(timelines[i]->tail - timelines[i]->head);
      free(timelines[i]);
      timelines[i] = NULL;
    }
}
