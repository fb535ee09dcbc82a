/* Frames and the tenants that follow each other in them: see frames.h, and frames_set.h for what they are made of. One function, advance,
   looks at every frame and takes every step that is possible; it is called whenever something changed. Requests to the store are
   collected under the lock and made after it, since a store may answer at once, from the very call. */
#define _GNU_SOURCE
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "../policy/trace.h"
#include "frames_set.h"
#include "process.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- what was lost ---- */

static _Atomic bool was_lost;
static char lost[sizeof((struct store_request *)0)->why];

static void lose(const char *why) {
  static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&once);
  if (!atomic_load_explicit(&was_lost, memory_order_relaxed)) {
    snprintf(lost, sizeof lost, "%s", why);
    /* release: the sentence is there for who sees the flag. */
    atomic_store_explicit(&was_lost, true, memory_order_release);
  }
  pthread_mutex_unlock(&once);
}

const char *frames_lost(void) {
  /* acquire: see lose. */
  return atomic_load_explicit(&was_lost, memory_order_acquire) ? lost : "";
}

void frames_say_lost(void) {
  char reason[sizeof lost + 160];
  snprintf(reason, sizeof reason,
           "state could not be read back from a drive (%s) in the middle of a step; go back to the "
           "last checkpoint",
           frames_lost());
  process_stop(reason);
}

/* ---- time ---- */

uint64_t frames_end_ns(uint64_t limit_ns) {
  const uint64_t now = clock_now_ns();
  return limit_ns > UINT64_MAX - now ? UINT64_MAX : now + limit_ns;
}

void frames_doze(struct frames *frames, uint64_t end_ns) {
  const uint64_t most = clock_now_ns() + 10000000u, until = end_ns < most ? end_ns : most;
  const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                             .tv_nsec = (long)(until % 1000000000u)};
  pthread_cond_timedwait(&frames->changed, &frames->lock, &t);
}

/* ---- tenants ---- */

static void unlink_tenancy(struct tenancy *tenancy) {
  struct frame *frame = tenancy->frame;
  struct tenancy *before = NULL;
  for (struct tenancy *t = frame->first; t != tenancy; t = t->next)
    before = t;
  if (before)
    before->next = tenancy->next;
  else
    frame->first = tenancy->next;
  if (frame->last == tenancy)
    frame->last = before;
  free(tenancy);
}

struct tenancy *frames_latest(struct frames *frames, uint32_t unit) {
  struct tenancy *found = NULL;
  for (unsigned i = 0; i < frames->count; i++)
    for (struct tenancy *t = frames->frames[i].first; t; t = t->next)
      if (t->unit == unit && t->state != FAILED && (!found || t->order > found->order))
        found = t;
  return found;
}

/* Whether the store has the unit's bytes as the tenancies before this one left them. */
static bool settled(struct frames *frames, const struct tenancy *tenancy) {
  for (unsigned i = 0; i < frames->count; i++)
    for (const struct tenancy *t = frames->frames[i].first; t; t = t->next)
      if (t->unit == tenancy->unit && t->order < tenancy->order && t->state != FAILED &&
          (t->state != READY || t->refs || t->dirty || t->frame->home))
        return false;
  return true;
}

static bool in_use(const struct frame *frame) {
  return frame->first &&
         (frame->first->next || frame->first->refs || frame->first->state == QUEUED);
}

/* Every other frame keeps what it holds. A step names its pieces in the same order as the last one, but for the direction within a
   launch; where there are more of them than frames, the frame used longest ago would always be that of the piece that is named
   next. What is no longer stepped is forgotten, so nothing is kept for nothing. */
static bool keeps(const struct frames *frames, const struct frame *frame) {
  return (frame - frames->frames) % 2;
}

/* How little a frame is wanted to be taken, of those that may be. */
static unsigned reluctance(const struct frames *frames, const struct frame *frame) {
  if (!frame->first)
    return 0;
  return 1u + in_use(frame) + 2u * keeps(frames, frame);
}

/* An empty frame, else one that keeps nothing: that nobody waits for, and of these the one used longest ago. */
static struct frame *choose(struct frames *frames, const struct ticket *ticket) {
  struct frame *best = NULL;
  for (unsigned i = 0; i < frames->count; i++) {
    struct frame *frame = &frames->frames[i];
    if (frame->home || frames_named(ticket, frame))
      continue;
    const unsigned wanted = best ? reluctance(frames, best) : 0, other = reluctance(frames, frame);
    if (!best || other < wanted || (other == wanted && frame->used < best->used))
      best = frame;
  }
  return best;
}

struct tenancy *frames_settle(struct frames *frames, const struct ticket *ticket, uint32_t unit,
                              bool fill) {
  struct frame *frame = choose(frames, ticket);
  struct tenancy *t = frame ? calloc(1, sizeof *t) : NULL;
  if (!t)
    return NULL;
  t->frames = frames;
  t->frame = frame;
  t->order = ++frames->order;
  t->unit = unit;
  t->fill = fill;
  if (frame->last)
    frame->last->next = t;
  else
    frame->first = t;
  frame->last = t;
  return t;
}

static void fail(struct tenancy *tenancy) {
  tenancy->state = FAILED;
  lose(tenancy->request.why);
}

/* The only copy of a unit is in its frame. Tenants behind it have no frame any more, and younger tenancies of the unit elsewhere
   can't be read: their addresses are in the GPU's queue, and can't be changed. */
static void fail_behind(struct tenancy *home) {
  struct frames *frames = home->frames;
  for (unsigned i = 0; i < frames->count; i++)
    for (struct tenancy *t = frames->frames[i].first; t; t = t->next)
      if (t->state == QUEUED &&
          (t->frame == home->frame || (t->unit == home->unit && t->order > home->order))) {
        memcpy(t->request.why, home->request.why, sizeof t->request.why);
        fail(t);
      }
}

/* ---- steps ---- */

/* One step of a frame; true when something changed. A request to be made is put in front of *requests, by its `context`. */
static bool advance_frame(struct frames *frames, struct frame *frame,
                          struct store_request **requests) {
  for (struct tenancy *t = frame->first; t; t = t->next)
    if (!t->refs && (t->state == FAILED || (t->state == QUEUED && t->gone))) {
      unlink_tenancy(t);
      return true;
    }
  struct tenancy *t = frame->first;
  if (!t)
    return false;
  if (t->state == QUEUED && t->gone && !frames->failing && settled(frames, t)) {
    t->state = t->fill ? READY : READING;
    if (t->fill)
      return true;
  } else if (t->state == READY && !t->refs && t->dirty) {
    t->state = WRITING;
  } else if (t->state == READY && !t->refs && t->next && !frame->home) {
    unlink_tenancy(t);
    return true;
  } else {
    return false;
  }
  frames->under_way++;
  t->request.context = *requests;
  *requests = &t->request;
  return true;
}

struct store_request *frames_advance(struct frames *frames) {
  struct store_request *requests = NULL;
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned i = 0; i < frames->count; i++)
      changed |= advance_frame(frames, &frames->frames[i], &requests);
  }
  pthread_cond_broadcast(&frames->changed);
  return requests;
}

static void done(struct store_request *request);

static struct tenancy *tenancy_of(struct store_request *request) {
  return (struct tenancy *)(void *)((char *)request - offsetof(struct tenancy, request));
}

/* A tenancy with a request stays until the request is done, and so does its state: both are read without the lock. */
void frames_make_requests(struct store_request *requests) {
  while (requests) {
    struct store_request *request = requests;
    requests = request->context;
    struct tenancy *t = tenancy_of(request);
    request->unit = t->unit;
    request->buffer = t->frame->address;
    request->done = done;
    request->why[0] = 0;
    t->asked_ns = trace_on() ? clock_now_ns() : 0;
    if (t->state == READING)
      store_read(frames_store(), request);
    else
      store_write(frames_store(), request);
  }
}

static void written(struct tenancy *t) {
  struct frame *frame = t->frame;
  t->state = READY;
  t->dirty = false;
  frame->home = t->request.outcome == STORE_FAILED;
  if (t->request.outcome == STORE_OK)
    report_add(drive_written_bytes, t->frames->piece_bytes);
  else
    report_add(drive_write_failures, 1);
  if (frame->home)
    fail_behind(t);
}

/* What the program's user is to know of a write, once of those that found no memory; else "". */
static void to_be_said(const struct tenancy *t, char *said, size_t said_bytes) {
  static _Atomic bool said_home;
  said[0] = 0;
  if (!t->frame->home || !atomic_exchange_explicit(&said_home, true, memory_order_relaxed))
    snprintf(said, said_bytes, "%s", t->request.why);
}

static void done(struct store_request *request) {
  struct tenancy *t = tenancy_of(request);
  struct frames *frames = t->frames;
  char said[sizeof request->why] = "";
  const struct trace_span span = {.track =
                                      t->state == WRITING ? TRACE_DRIVE_WRITE : TRACE_DRIVE_READ,
                                  .name = t->state == WRITING ? "write" : "read",
                                  .begin_ns = t->asked_ns,
                                  .end_ns = trace_on() ? clock_now_ns() : 0,
                                  .bytes = frames->piece_bytes};
  const bool ended = request->outcome == STORE_OK;
  pthread_mutex_lock(&frames->lock);
  frames->under_way--;
  if (t->state == WRITING) {
    written(t);
    to_be_said(t, said, sizeof said);
  } else if (request->outcome == STORE_FAILED) {
    fail(t);
  } else {
    t->state = READY;
    report_add(drive_read_bytes, frames->piece_bytes);
  }
  struct store_request *requests = frames_advance(frames);
  pthread_mutex_unlock(&frames->lock);
  frames_make_requests(requests);
  if (span.begin_ns && ended)
    trace_add(&span);
  if (said[0])
    report_notice("%s", said);
}

/* ---- forgetting ---- */

/* Drops what nothing uses of the unit's tenancies; true when none is left. */
static bool drop_unit(struct frames *frames, uint32_t unit) {
  bool all = true;
  for (unsigned i = 0; i < frames->count; i++)
    for (struct tenancy *t = frames->frames[i].first, *next; t; t = next) {
      next = t->next;
      if (t->unit != unit)
        continue;
      t->dirty = false;
      if (t->refs || t->state == READING || t->state == WRITING) {
        all = false;
        continue;
      }
      if (t == t->frame->first)
        t->frame->home = false;
      unlink_tenancy(t);
    }
  return all;
}

void frames_forget_unit(struct frames *frames, uint32_t unit) {
  const uint64_t end = frames_end_ns(FRAMES_PATIENCE_NS);
  bool all;
  pthread_mutex_lock(&frames->lock);
  while (!(all = drop_unit(frames, unit)) && clock_now_ns() < end)
    frames_doze(frames, end);
  struct store_request *requests = frames_advance(frames);
  pthread_mutex_unlock(&frames->lock);
  frames_make_requests(requests);
  if (all)
    store_release(frames_store(), unit); /* else a ticket that nobody lets go of has it for good */
}
