/* What frames (frames.h) are made of, for its own files: frames.c (tenants follow each other), frames_ticket.c (tickets),
   frames_life.c (a set's making and end), frames_memory.c (its memory).

   A tenancy: QUEUED (its predecessor isn't done, or an older tenancy of its unit isn't) -> READING (unless it is filled) -> READY, in
   use while it has refs; without refs, and written to -> WRITING -> READY, which is cache until a successor wants the frame. Every
   wait is for a tenancy of lower `order`, so there is no cycle.

   The lock protects everything of a set but what is said to be constant. */
#ifndef OFFLOAD_FRAMES_SET_H
#define OFFLOAD_FRAMES_SET_H
#include "frames.h"
#include "frames_memory.h"
#include "keeper.h"
#include <pthread.h>

/* How long the end of something is waited for before it is left as it is. */
#define FRAMES_PATIENCE_NS ((uint64_t)20000000000u)

enum tenancy_state { QUEUED, READING, READY, WRITING, FAILED };

struct ref; /* a ticket's name for a tenancy */

struct tenancy {
  struct tenancy *next; /* the frame's next tenant */
  struct frames *frames;
  struct frame *frame;
  uint64_t order;
  uint32_t unit;
  enum tenancy_state state;
  bool fill, dirty;
  bool gone;        /* ticket_go was called for one of its tickets, or none names it any more */
  struct ref *refs; /* of tickets not released; oldest first */
  struct store_request request;
  uint64_t asked_ns; /* when the request was made, for OFFLOAD_TRACE */
};

struct ref {
  struct ref *next; /* of the tenancy's */
  struct ticket *ticket;
  struct tenancy *tenancy;
  bool joined; /* the tenancy was there before */
};

struct frame {
  unsigned char *address; /* constant */
  struct tenancy *first, *last;
  uint64_t used; /* when a ticket last named it */
  bool
      home; /* a write found neither a drive nor memory: the only copy of its first tenant is here */
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
  CUcontext context;   /* constant, as the next five are */
  char refused[320];   /* "", or why this context has no frames: nothing else is set then */
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

/* ---- frames.c; all but frames_make_requests with the set's lock held ---- */

/* Takes the steps that are possible after a change. What it returns is to be given to frames_make_requests once the lock is let go of. */
struct store_request *frames_advance(struct frames *);
void frames_make_requests(struct store_request *);
/* The unit's newest tenancy that hasn't failed, or NULL. */
struct tenancy *frames_latest(struct frames *, uint32_t unit);
/* A new tenancy, the last of a frame that the ticket doesn't name; NULL: no memory, or no frame. */
struct tenancy *frames_settle(struct frames *, const struct ticket *, uint32_t unit, bool fill);
/* Sleeps until something changed, or it is `end_ns`, but 10 ms at most: not everything that is waited for has a signal. */
void frames_doze(struct frames *, uint64_t end_ns);
/* So long from now, without a wrap. */
uint64_t frames_end_ns(uint64_t limit_ns);

/* frames_ticket.c: whether the ticket names this frame. Under the set's lock. */
bool frames_named(const struct ticket *, const struct frame *);
#endif
