/* Tickets: see frames.h. They are made one after another, under the enqueue lock, and each names its frames before the next one does: so
   whatever a ticket waits for was named by tickets made before it. */
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "frames_set.h"
#include <stdlib.h>

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

bool frames_named(const struct ticket *ticket, const struct frame *frame) {
  for (unsigned i = 0; i < ticket->count; i++)
    if (ticket->refs[i]->tenancy->frame == frame)
      return true;
  return false;
}

/* Whether the unit is used where this tenancy of it is. Never so with a successor, which is waited for by tickets made before; but
   nobody waits behind the only copy of a unit. */
static bool joinable(const struct ticket *ticket, const struct tenancy *t) {
  return t && (!t->next || t->frame->home) && !frames_named(ticket, t->frame);
}

static void name(struct ticket *ticket, struct ref *ref, struct tenancy *t, bool joined) {
  *ref = (struct ref){.ticket = ticket, .tenancy = t, .joined = joined};
  struct ref **end = &t->refs;
  while (*end)
    end = &(*end)->next;
  *end = ref;
  ticket->refs[ticket->count++] = ref;
  t->frame->used = ++ticket->frames->order;
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
  struct tenancy *t = frames_latest(frames, unit);
  const bool joins = joinable(ticket, t);
  if (!joins)
    t = frames_settle(frames, ticket, unit, fill);
  if (t)
    name(ticket, ref, t, joins);
  else
    free(ref);
  pthread_mutex_unlock(&frames->lock);
  return t ? t->frame->address : NULL;
}

void ticket_go(struct ticket *ticket) {
  struct frames *frames = ticket->frames;
  pthread_mutex_lock(&frames->lock);
  for (unsigned i = 0; i < ticket->count; i++) {
    struct tenancy *t = ticket->refs[i]->tenancy;
    t->gone = true;
    if (ticket->refs[i]->joined && (t->state == READY || t->state == WRITING))
      report_add(drive_hit_bytes, frames->piece_bytes);
  }
  struct store_request *requests = frames_advance(frames);
  pthread_mutex_unlock(&frames->lock);
  frames_make_requests(requests);
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
  struct store_request *requests = frames_advance(frames);
  pthread_mutex_unlock(&frames->lock);
  frames_make_requests(requests);
  free(ticket);
}

void ticket_drop(struct ticket *ticket) {
  let_go(ticket, false);
}
void ticket_release(struct ticket *ticket, bool wrote) {
  let_go(ticket, wrote);
}

/* Whether tickets made before keep this one from its piece. */
static bool held(const struct ref *ref) {
  for (const struct ref *before = ref->tenancy->refs; before != ref; before = before->next)
    if (ref->ticket->kind == TICKET_ALONE || before->ticket->kind == TICKET_ALONE)
      return true;
  return false;
}

static enum ticket_state state_locked(const struct ticket *ticket) {
  enum ticket_state state = TICKET_READY;
  if (ticket->frames->failing)
    return TICKET_FAILED;
  for (unsigned i = 0; i < ticket->count; i++) {
    const struct tenancy *t = ticket->refs[i]->tenancy;
    if (t->state == FAILED)
      return TICKET_FAILED;
    if (t->state != READY || held(ticket->refs[i]))
      state = TICKET_WAITING;
  }
  return state;
}

enum ticket_state ticket_state(const struct ticket *ticket) {
  pthread_mutex_lock(&ticket->frames->lock);
  const enum ticket_state state = state_locked(ticket);
  pthread_mutex_unlock(&ticket->frames->lock);
  return state;
}

enum ticket_state ticket_wait(struct ticket *ticket, uint64_t limit_ns,
                              const _Atomic bool *give_up) {
  struct frames *frames = ticket->frames;
  const uint64_t end = frames_end_ns(limit_ns);
  enum ticket_state state = TICKET_WAITING;
  pthread_mutex_lock(&frames->lock);
  while ((state = state_locked(ticket)) == TICKET_WAITING && clock_now_ns() < end &&
         !(give_up && atomic_load_explicit(give_up, memory_order_relaxed)))
    frames_doze(frames, end);
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

bool frames_in_use(struct frames *frames, uint32_t unit) {
  bool used = false;
  pthread_mutex_lock(&frames->lock);
  for (unsigned i = 0; i < frames->count && !frames->failing; i++)
    for (const struct tenancy *t = frames->frames[i].first; t; t = t->next)
      used |= t->unit == unit && t->refs && t->state != FAILED;
  pthread_mutex_unlock(&frames->lock);
  return used;
}
