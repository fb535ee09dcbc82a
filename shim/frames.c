/* Frames, the tenants that follow each other in them, and tickets: see frames.h. One function, advance, looks at every frame and takes
   every step that is possible; it is called whenever something changed. Requests to the store are collected under the lock and
   made after it, since a store may answer at once, from the very call.

   A tenancy: QUEUED (its predecessor isn't done, or an older tenancy of its unit isn't) -> READING (unless it is filled) -> READY, in use
   while it has refs; without refs, and written to -> WRITING -> READY, which is cache until a successor wants the frame. Every
   wait is for a tenancy of lower `order`, so there is no cycle.

   The lock protects everything of a set but what is said to be constant. */
#define _GNU_SOURCE
#include "frames.h"
#include "../policy/report.h"
#include "frames_memory.h"
#include "keeper.h"
#include "process.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum state { QUEUED, READING, READY, WRITING, FAILED };

struct frame;

struct tenancy {
  struct tenancy *next; /* the frame's next tenant */
  struct frames *frames;
  struct frame *frame;
  uint64_t order;
  uint32_t unit;
  enum state state;
  bool fill, gone, dirty; /* `gone`: ticket_go was called for one of its tickets */
  struct ref *refs;       /* tickets that name it, none of them released; oldest first */
  struct store_request request;
};

struct ref {        /* a ticket's name for a tenancy */
  struct ref *next; /* of the tenancy's */
  struct ticket *ticket;
  struct tenancy *tenancy;
};

struct frame {
  unsigned char *address; /* constant */
  struct tenancy *first, *last;
  uint64_t used; /* when a ticket last named it */
  bool home;     /* a write found neither a drive nor memory: the only copy of its tenant is here */
};

struct ticket {
  struct frames *frames;
  enum ticket_kind kind;
  unsigned count;
  struct watch watch;
  struct ref *refs[]; /* as many as one ticket may name */
};

struct frames {
  struct frames *next; /* the list is changed under the enqueue lock */
  CUcontext context;   /* constant, as the next four are */
  size_t piece_bytes;
  unsigned count, most; /* `most`: that a ticket may name */
  struct frames_memory memory;
  struct keeper *keeper; /* under the enqueue lock */
  pthread_mutex_t lock;
  pthread_cond_t changed; /* on the monotonic clock */
  uint64_t order;
  unsigned open, under_way; /* tickets; requests that the store has */
  bool failing;
  struct frame frames[];
};

static _Atomic bool was_lost;
static char lost[256];

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

/* The unit's newest tenancy older than `order`. */
static struct tenancy *latest(struct frames *frames, uint32_t unit, uint64_t order) {
  struct tenancy *found = NULL;
  for (unsigned i = 0; i < frames->count; i++)
    for (struct tenancy *t = frames->frames[i].first; t; t = t->next)
      if (t->unit == unit && t->order < order && t->state != FAILED &&
          (!found || t->order > found->order))
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

static void fail(struct tenancy *tenancy) {
  tenancy->state = FAILED;
  lose(tenancy->request.why);
}

/* The tenants behind the only copy of a piece have no frame any more: their address is already in the GPU's queue. */
static void fail_queued(struct tenancy *home) {
  for (struct tenancy *t = home->next; t; t = t->next)
    if (t->state == QUEUED) {
      snprintf(t->request.why, sizeof t->request.why, "%s", home->request.why);
      fail(t);
    }
}

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

static struct store_request *advance(struct frames *frames) {
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
static void make_requests(struct store_request *requests) {
  while (requests) {
    struct store_request *request = requests;
    requests = request->context;
    struct tenancy *t = tenancy_of(request);
    request->unit = t->unit;
    request->buffer = t->frame->address;
    request->done = done;
    request->why[0] = 0;
    (t->state == READING ? store_read : store_write)(frames_store(), request);
  }
}

static void unlock_and_advance(struct frames *frames) {
  struct store_request *requests = advance(frames);
  pthread_mutex_unlock(&frames->lock);
  make_requests(requests);
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
    fail_queued(t);
}

static void done(struct store_request *request) {
  struct tenancy *t = tenancy_of(request);
  struct frames *frames = t->frames;
  static _Atomic bool said_home;
  char said[sizeof request->why] = "";
  pthread_mutex_lock(&frames->lock);
  frames->under_way--;
  if (t->state == WRITING) {
    written(t);
    if (!t->frame->home || !atomic_exchange_explicit(&said_home, true, memory_order_relaxed))
      memcpy(said, request->why, sizeof said);
  } else if (request->outcome == STORE_FAILED) {
    fail(t);
  } else {
    t->state = READY;
    report_add(drive_read_bytes, frames->piece_bytes);
  }
  unlock_and_advance(frames);
  if (said[0])
    report_notice("%s", said);
}

/* ---- tickets ---- */

struct ticket *ticket_make(struct frames *frames, enum ticket_kind kind) {
  struct ticket *ticket = calloc(1, sizeof *ticket + frames->most * sizeof(struct ref *));
  if (!ticket)
    return NULL;
  ticket->frames = frames;
  ticket->kind = kind;
  pthread_mutex_lock(&frames->lock);
  frames->open++;
  pthread_mutex_unlock(&frames->lock);
  return ticket;
}

static bool names(const struct ticket *ticket, const struct frame *frame) {
  for (unsigned i = 0; i < ticket->count; i++)
    if (ticket->refs[i]->tenancy->frame == frame)
      return true;
  return false;
}

static bool in_use(const struct frame *frame) {
  return frame->first &&
         (frame->first->next || frame->first->refs || frame->first->state == QUEUED);
}

/* The frame used longest ago of those that nobody is waiting for, else of all. */
static struct frame *choose(struct frames *frames, const struct ticket *ticket) {
  struct frame *best = NULL;
  for (unsigned i = 0; i < frames->count; i++) {
    struct frame *frame = &frames->frames[i];
    if (frame->home || names(ticket, frame))
      continue;
    if (!best || in_use(frame) < in_use(best) ||
        (in_use(frame) == in_use(best) && frame->used < best->used))
      best = frame;
  }
  return best;
}

/* A new tenancy, the last of a frame; NULL: no memory, or no frame. */
static struct tenancy *settle(struct frames *frames, const struct ticket *ticket, uint32_t unit,
                              bool fill) {
  struct frame *frame = choose(frames, ticket);
  struct tenancy *t = frame ? calloc(1, sizeof *t) : NULL;
  if (!t)
    return NULL;
  t->frames = frames;
  t->frame = frame;
  t->unit = unit;
  t->fill = fill;
  if (frame->last)
    frame->last->next = t;
  else
    frame->first = t;
  frame->last = t;
  return t;
}

void *ticket_add(struct ticket *ticket, uint32_t unit, bool fill) {
  struct frames *frames = ticket->frames;
  for (unsigned i = 0; i < ticket->count; i++)
    if (ticket->refs[i]->tenancy->unit == unit)
      return ticket->refs[i]->tenancy->frame->address;
  struct ref *ref = ticket->count < frames->most ? calloc(1, sizeof *ref) : NULL;
  if (!ref)
    return NULL;
  pthread_mutex_lock(&frames->lock);
  struct tenancy *t = latest(frames, unit, UINT64_MAX);
  const bool joins = t && !t->next && !names(ticket, t->frame);
  if (!joins)
    t = settle(frames, ticket, unit, fill);
  if (t) {
    if (!joins)
      t->order = ++frames->order;
    else if (!fill)
      report_add(drive_hit_bytes, frames->piece_bytes);
    t->frame->used = ++frames->order;
    *ref = (struct ref){.ticket = ticket, .tenancy = t};
    struct ref **end = &t->refs;
    while (*end)
      end = &(*end)->next;
    *end = ref;
    ticket->refs[ticket->count++] = ref;
  } else {
    free(ref);
  }
  pthread_mutex_unlock(&frames->lock);
  return t ? t->frame->address : NULL;
}

void ticket_go(struct ticket *ticket) {
  pthread_mutex_lock(&ticket->frames->lock);
  for (unsigned i = 0; i < ticket->count; i++)
    ticket->refs[i]->tenancy->gone = true;
  unlock_and_advance(ticket->frames);
}

static void let_go(struct ticket *ticket, bool wrote) {
  struct frames *frames = ticket->frames;
  pthread_mutex_lock(&frames->lock);
  for (unsigned i = 0; i < ticket->count; i++) {
    struct tenancy *t = ticket->refs[i]->tenancy;
    struct ref **at = &t->refs;
    while (*at != ticket->refs[i])
      at = &(*at)->next;
    *at = (*at)->next;
    free(ticket->refs[i]);
    t->dirty |= wrote && t->state == READY;
    t->gone |= !t->refs; /* a tenancy that nobody names any more leaves its queue */
  }
  frames->open--;
  unlock_and_advance(frames);
  free(ticket);
}

void ticket_drop(struct ticket *ticket) {
  let_go(ticket, false);
}
void ticket_release(struct ticket *ticket, bool wrote) {
  let_go(ticket, wrote);
}

static enum ticket_state state_locked(const struct ticket *ticket) {
  bool ready = true;
  for (unsigned i = 0; i < ticket->count; i++) {
    const struct tenancy *t = ticket->refs[i]->tenancy;
    if (t->state == FAILED)
      return TICKET_FAILED;
    ready =
        ready && t->state == READY && (ticket->kind != TICKET_ALONE || t->refs == ticket->refs[i]);
  }
  if (ticket->frames->failing)
    return TICKET_FAILED;
  return ready ? TICKET_READY : TICKET_WAITING;
}

enum ticket_state ticket_state(const struct ticket *ticket) {
  pthread_mutex_lock(&ticket->frames->lock);
  const enum ticket_state state = state_locked(ticket);
  pthread_mutex_unlock(&ticket->frames->lock);
  return state;
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sleeps until something changed, `end_ns` at the latest. *give_up has no signal, hence the look every 10 ms. */
static void doze(struct frames *frames, uint64_t end_ns) {
  const uint64_t most = now_ns() + 10000000u, until = end_ns < most ? end_ns : most;
  const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                             .tv_nsec = (long)(until % 1000000000u)};
  pthread_cond_timedwait(&frames->changed, &frames->lock, &t);
}

static uint64_t end_of(uint64_t limit_ns) {
  const uint64_t now = now_ns();
  return limit_ns > UINT64_MAX - now ? UINT64_MAX : now + limit_ns;
}

enum ticket_state ticket_wait(struct ticket *ticket, uint64_t limit_ns,
                              const _Atomic bool *give_up) {
  struct frames *frames = ticket->frames;
  const uint64_t end = end_of(limit_ns);
  enum ticket_state state = TICKET_WAITING;
  pthread_mutex_lock(&frames->lock);
  while ((state = state_locked(ticket)) == TICKET_WAITING && now_ns() < end &&
         !(give_up && atomic_load_explicit(give_up, memory_order_relaxed)))
    doze(frames, end);
  pthread_mutex_unlock(&frames->lock);
  return state;
}

const char *ticket_why(const struct ticket *ticket) {
  const char *why = "waits for drives have ended, since the context is lost or the process ends";
  pthread_mutex_lock(&ticket->frames->lock);
  for (unsigned i = 0; i < ticket->count; i++)
    if (ticket->refs[i]->tenancy->state == FAILED)
      why = ticket->refs[i]->tenancy->request.why;
  pthread_mutex_unlock(&ticket->frames->lock);
  return why;
}

void ticket_watch(struct ticket *ticket, struct gate_words *words, uint32_t generation) {
  ticket->watch = (struct watch){.ticket = ticket, .words = words, .generation = generation};
  keeper_watch(ticket->frames->keeper, &ticket->watch);
}
