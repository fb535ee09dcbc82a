/* The device memory of the `stream` step: slots, each of which holds the state of a *group*, blocks of
   one launch that are stepped together. Slots are used in turn; a slot's events say when its last use
   left the side streams.

   What a group names is laid out by rising home address: neighbours stay neighbours, so that one copy
   carries them, and every address keeps its value mod STAGING_ALIGNMENT. The layout depends on the
   addresses and lengths alone.

   A slot may be `early`: filled before the launch that will use it (early.h).

   One staging for each ring. It can be given back while nothing uses it. All under the enqueue lock. */
#ifndef OFFLOAD_STAGING_H
#define OFFLOAD_STAGING_H
#include "../policy/config.h"
#include "recognise.h"

enum {
  STAGING_SLOTS = 16,
  STAGING_ALIGNMENT = 4 * ELEMENT_BYTES_MOST, /* a kernel's vectors are of four elements */
  GROUP_TENSORS = 64,
  GROUP_SEGMENTS = GROUP_TENSORS * STATES_MOST
};

/* A stretch of one state: of a run's, or (a span) of several that lie end to end. */
struct segment {
  uintptr_t home;
  size_t bytes, offset; /* in the slot */
};

struct group {
  unsigned run_count, segment_count, span_count;
  bool tangled; /* segments share bytes: nothing about it is known before its launch */
  struct segment segments[GROUP_SEGMENTS]; /* run by run, a run's states side by side */
  struct segment spans[GROUP_SEGMENTS];    /* by rising home */
};

static inline size_t group_bytes(const struct group *group) {
  size_t bytes = 0;
  for (unsigned i = 0; i < group->span_count; i++)
    bytes += group->spans[i].bytes;
  return bytes;
}

/* What had been done to the ranges that hold a group (early.h). */
struct seen {
  bool known;
  uint64_t ranges, writes, unseen;
};

struct staging_slot {
  CUdeviceptr first;
  CUevent down, up; /* recorded after the slot's last use on that stream */
  bool down_used;
  struct group *group; /* what it holds, or held last where `held` */
  bool held;
  bool early; /* its state as it was when `seen`, behind `up` */
  struct seen seen;
};

/* The groups of a step, in order. */
struct expected {
  size_t first_segment;
  unsigned segment_count;
  uintptr_t low, high; /* all its bytes lie between */
  struct seen seen;
  bool quiet;
};
struct sequence {
  struct expected *groups;
  struct segment *segments; /* without offsets */
  size_t count, room, segment_count, segment_room;
};

struct staging {
  unsigned slot_count, next;
  size_t slot_bytes;
  CUdeviceptr block; /* all slots; 0: there is none */
  struct staging_slot slots[STAGING_SLOTS];

  /* What comes next (early.c). */
  struct group *scratch;
  struct sequence last, present; /* of the context's steps */
  uint64_t step;                 /* the present one, of the context */
  unsigned launches, last_launches;
  size_t position;      /* groups of the present step so far */
  size_t ahead;         /* of `last`, or of `present` once `wrapped`: the next to copy up */
  bool wrapped, astray; /* the present step is over; it isn't as the last one was */
  uint64_t unseen_then;
  bool unseen_quiet;

  /* Where it is not to be had. */
  uint64_t next_try; /* state_step() before which it isn't tried again */
  uint64_t moved;    /* pieces moved by the last try: more of them are more room */
  size_t limit;      /* bytes it may take since it was given back; 0: no such limit */
};

/* The largest shape within `bytes` whose slots hold `least` bytes each: more than two slots only where
   that keeps them long enough for a copy to be worth its launch. False when not even two fit. */
bool staging_shape(size_t bytes, size_t least, unsigned *slots, size_t *slot_bytes);

/* Bytes that a slot needs for segments of `bytes` in all. */
static inline size_t staging_bytes(size_t bytes, unsigned segments) {
  return bytes + (size_t)segments * STAGING_ALIGNMENT;
}

/* Makes slots of at least `least` bytes, at most what is allowed, `useful` (bytes, all together) and half of
   what the device has free, if there are none. False with why. */
bool staging_make(struct staging *, const struct config *, size_t useful, size_t least, char *why,
                  size_t why_bytes);

/* Frees the slots. The caller has made sure that nothing in flight uses them. Bytes freed. */
size_t staging_free(struct staging *);

/* Memory on the host that it kept; for a context that is gone or going. */
void staging_forget(struct staging *);

/* Offsets and spans of the group's segments, whose home and bytes are set. */
void staging_lay_out(struct group *);

/* Whether any span of a group that is not tangled has a byte in [home, home+bytes). */
bool staging_overlaps(const struct group *, uintptr_t home, size_t bytes);
#endif
