/* Copies up before the launch: early.h says when and what makes one valid.

   `seen` sums, over a group's segments, the ids of the ranges that hold them and the writes counted
   there. Both only ever grow for an address, ids because they are never given twice: equal sums mean equal
   parts. They are taken before a launch is enqueued: writes enqueued before that are waited for by the
   launch, hence by the copies, or were another stream's (touch_only); later ones change the sum. */
#include "early.h"
#include "../policy/report.h"
#include "process.h"
#include "range.h"
#include "timeline.h"
#include "touch.h"
#include <stdlib.h>
#include <string.h>

enum {
  SLOTS_LEAST = 4, /* with fewer the ring holds no more than what is in flight */
  COPIES_MOST =
      512,       /* enqueued behind one launch, since the program's thread waits for the calls */
  LOOK_SLOTS = 4 /* how far behind an entry that can't be copied others are looked for, in rings */
};

/* ---- what was done to a group's memory ---- */

static struct seen look(const struct segment *segments, unsigned count) {
  struct seen seen = {.known = true, .unseen = touch_unseen_count()};
  for (unsigned i = 0; i < count && seen.known; i++) {
    const struct range *range = range_find(segments[i].home);
    seen.known = range && segments[i].bytes <= range->bytes - (segments[i].home - range->base);
    if (!seen.known)
      break;
    seen.ranges += range->id;
    seen.writes += atomic_load_explicit(&range->writes, memory_order_acquire);
  }
  return seen;
}

static bool unchanged(const struct seen *then, const struct segment *segments, unsigned count) {
  if (!then->known)
    return false;
  const struct seen now = look(segments, count);
  return now.known && now.ranges == then->ranges && now.writes == then->writes &&
         now.unseen == then->unseen;
}

/* Whether nothing wrote to the range between the context's last two steps; found once a step. */
static bool quiet_range(struct range *range, uint64_t step) {
  if (range->quiet_step != step) {
    const uint64_t writes = atomic_load_explicit(&range->writes, memory_order_relaxed);
    range->quiet = range->quiet_step + 1 == step && range->writes_then == writes;
    range->writes_then = writes;
    range->quiet_step = step;
  }
  return range->quiet;
}

static bool quiet(const struct staging *staging, const struct group *group) {
  bool all = staging->unseen_quiet;
  for (unsigned i = 0; i < group->segment_count; i++) {
    struct range *range = range_find(group->segments[i].home);
    if (!range || !quiet_range(range, staging->step)) /* asked of every range: they remember */
      all = false;
  }
  return all;
}

/* ---- sequences ---- */

static bool room_for(struct sequence *sequence, unsigned segments) {
  if (sequence->count == sequence->room) {
    const size_t more = sequence->room ? 2 * sequence->room : 64;
    struct expected *grown = realloc(sequence->groups, more * sizeof *grown);
    if (!grown)
      return false;
    sequence->groups = grown;
    sequence->room = more;
  }
  if (sequence->segment_count + segments > sequence->segment_room) {
    const size_t more = 2 * sequence->segment_room + GROUP_SEGMENTS;
    struct segment *grown = realloc(sequence->segments, more * sizeof *grown);
    if (!grown)
      return false;
    sequence->segments = grown;
    sequence->segment_room = more;
  }
  return true;
}

static const struct segment *segments_of(const struct sequence *sequence,
                                         const struct expected *expected) {
  return sequence->segments + expected->first_segment;
}

static bool same(const struct segment *a, const struct segment *b, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    if (a[i].home != b[i].home || a[i].bytes != b[i].bytes)
      return false;
  return true;
}

static void empty(struct sequence *sequence) {
  sequence->count = sequence->segment_count = 0;
}

void early_tell(struct ring *ring, const struct group *group) {
  struct sequence *present = &ring->staging.present;
  const unsigned count = group->segment_count;
  if (ring->staging.slot_count < SLOTS_LEAST || !room_for(present, count))
    return;
  struct expected *expected = &present->groups[present->count++];
  *expected = (struct expected){.first_segment = present->segment_count,
                                .segment_count = count,
                                .low = UINTPTR_MAX,
                                .seen = look(group->segments, count),
                                .quiet = quiet(&ring->staging, group)};
  for (unsigned i = 0; i < count; i++) {
    const uintptr_t home = group->segments[i].home, end = home + group->segments[i].bytes;
    expected->low = home < expected->low ? home : expected->low;
    expected->high = end > expected->high ? end : expected->high;
  }
  memcpy(present->segments + present->segment_count, group->segments,
         count * sizeof group->segments[0]);
  present->segment_count += count;
}

/* ---- slots ---- */

static void drop(struct staging_slot *slot) {
  if (slot->early)
    report_add(early_bytes_dropped, group_bytes(slot->group));
  slot->early = false;
}

static void drop_all(struct staging *staging) {
  for (unsigned i = 0; i < staging->slot_count; i++)
    drop(&staging->slots[i]);
}

static void copy_group(struct group *to, const struct group *from) {
  to->run_count = from->run_count;
  to->segment_count = from->segment_count;
  to->span_count = from->span_count;
  to->tangled = from->tangled;
  memcpy(to->segments, from->segments, from->segment_count * sizeof from->segments[0]);
  memcpy(to->spans, from->spans, from->span_count * sizeof from->spans[0]);
}

void early_hold(struct staging_slot *slot, const struct group *group) {
  drop(slot);
  copy_group(slot->group, group);
  slot->held = true;
}

static bool groups_overlap(const struct group *held, const struct group *other) {
  bool overlap = held->tangled;
  for (unsigned i = 0; i < other->span_count && !overlap; i++)
    overlap = staging_overlaps(held, other->spans[i].home, other->spans[i].bytes);
  return overlap;
}

struct staging_slot *early_use(struct ring *ring, const struct group *group) {
  struct staging *staging = &ring->staging;
  struct staging_slot *found = NULL;
  const unsigned count = group->segment_count;
  const struct sequence *last = &staging->last;
  const struct expected *expected =
      staging->position < last->count ? &last->groups[staging->position] : NULL;
  staging->position++;
  if (!expected || expected->segment_count != count ||
      !same(segments_of(last, expected), group->segments, count))
    staging->astray = true;
  for (unsigned i = 0; i < staging->slot_count; i++) {
    struct staging_slot *slot = &staging->slots[i];
    if (!slot->early || !groups_overlap(slot->group, group))
      continue;
    if (!found && slot->group->segment_count == count &&
        same(slot->group->segments, group->segments, count) &&
        unchanged(&slot->seen, group->segments, count)) {
      found = slot;
      slot->early = false;
      report_add(early_bytes_used, group_bytes(group));
    } else {
      drop(slot);
    }
  }
  return found;
}

/* ---- steps and launches ---- */

void early_forget(struct ring *ring) {
  drop_all(&ring->staging);
  empty(&ring->staging.last);
  empty(&ring->staging.present);
  ring->staging.step = 0;
}

void early_launch(struct ring *ring, uint64_t step) {
  struct staging *staging = &ring->staging;
  if (staging->step == step) {
    staging->launches++;
    return;
  }
  if (staging->step + 1 != step) /* steps in between went another way */
    early_forget(ring);
  const struct sequence before = staging->last;
  staging->last = staging->present;
  staging->present = before;
  empty(&staging->present);
  const uint64_t unseen = touch_unseen_count();
  staging->unseen_quiet = unseen == staging->unseen_then;
  staging->unseen_then = unseen;
  staging->last_launches = staging->launches;
  staging->launches = 1;
  staging->position = 0;
  if (!staging->wrapped)
    staging->ahead = 0;
  staging->wrapped = staging->astray = false;
  staging->step = step;
}

static void mark_stepped(struct sequence *sequence, uintptr_t home, size_t bytes) {
  for (size_t i = 0; i < sequence->count; i++) {
    struct expected *expected = &sequence->groups[i];
    if (home >= expected->high || home + bytes <= expected->low)
      continue;
    const struct segment *segments = segments_of(sequence, expected);
    for (unsigned k = 0; k < expected->segment_count; k++)
      if (segments[k].home < home + bytes && home < segments[k].home + segments[k].bytes)
        expected->seen.known = false;
  }
}

void early_stepped(struct ring *ring, uintptr_t home, size_t bytes) {
  struct staging *staging = &ring->staging;
  const struct range *range =
      staging->last.count + staging->present.count ? range_find(home) : NULL;
  if (!range || !range->quiet_step || !bytes) /* nothing of it was ever staged */
    return;
  for (unsigned i = 0; i < staging->slot_count; i++) {
    struct staging_slot *slot = &staging->slots[i];
    if (slot->early && (slot->group->tangled || staging_overlaps(slot->group, home, bytes)))
      drop(slot);
  }
  mark_stepped(&staging->last, home, bytes);
  mark_stepped(&staging->present, home, bytes);
}

/* ---- copying up ---- */

/* Whether all of the group is on the host, and nobody else can be at work on its memory. */
static bool may_copy(const struct ring *ring, const struct group *group, CUstream stream) {
  const struct range *before = NULL;
  for (unsigned i = 0; i < group->span_count; i++) {
    const struct range *range = range_find(group->spans[i].home);
    if (!range || !range_on_host(group->spans[i].home, group->spans[i].bytes) ||
        (range != before && !touch_only(range, stream, ring->up)))
      return false;
    before = range;
  }
  return !group->tangled;
}

/* Behind the last copies down of the slot and of what the group was in last. */
static CUresult copy_up(struct ring *ring, struct staging_slot *slot, const struct group *group) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < ring->staging.slot_count && result == CUDA_SUCCESS; i++) {
    struct staging_slot *other = &ring->staging.slots[i];
    if (other->down_used && (other == slot || (other->held && groups_overlap(other->group, group))))
      result = driver.cuStreamWaitEvent(ring->up, other->down, 0);
  }
  struct timing *timing = timeline_begin(ring->context, ring->up);
  for (unsigned i = 0; i < group->span_count && result == CUDA_SUCCESS; i++) {
    touch_stream(range_find(group->spans[i].home), ring->up); /* who unmaps it waits for the copy */
    result = driver.cuMemcpyDtoDAsync_v2(slot->first + group->spans[i].offset, group->spans[i].home,
                                         group->spans[i].bytes, ring->up);
  }
  timeline_end(timing, ring->up, TRACE_UP, "state, early", group_bytes(group), 0);
  return result ? result : driver.cuEventRecord(slot->up, ring->up);
}

/* The next group of the sequence that may be copied, laid out; NULL when there is none near. */
static const struct group *next_group(struct ring *ring, const struct sequence *sequence,
                                      CUstream stream, unsigned *skipped) {
  struct staging *staging = &ring->staging;
  for (; staging->ahead < sequence->count && *skipped < LOOK_SLOTS * staging->slot_count;
       staging->ahead++, ++*skipped) {
    const struct expected *expected = &sequence->groups[staging->ahead];
    const struct segment *segments = segments_of(sequence, expected);
    struct group *group = staging->scratch;
    if ((staging->wrapped && !expected->quiet) ||
        !unchanged(&expected->seen, segments, expected->segment_count))
      continue;
    group->segment_count = expected->segment_count;
    memcpy(group->segments, segments, group->segment_count * sizeof segments[0]);
    staging_lay_out(group);
    if (!may_copy(ring, group, stream))
      continue;
    staging->ahead++;
    return group;
  }
  return NULL;
}

void early_fill(struct ring *ring, CUstream stream) {
  struct staging *staging = &ring->staging;
  if (staging->slot_count < SLOTS_LEAST || process_capture_open())
    return;
  if (!staging->wrapped && staging->last_launches && staging->launches >= staging->last_launches) {
    drop_all(staging);
    staging->wrapped = true;
    staging->ahead = 0;
  }
  if (staging->astray && !staging->wrapped)
    return;
  const struct sequence *sequence = staging->wrapped ? &staging->present : &staging->last;
  if (!staging->wrapped && staging->ahead < staging->position)
    staging->ahead = staging->position;
  unsigned copies = 0, skipped = 0;
  const unsigned first = staging->next;
  for (unsigned i = 0; i < staging->slot_count && copies < COPIES_MOST; i++) {
    struct staging_slot *slot = &staging->slots[(first + i) % staging->slot_count];
    if (slot->early)
      continue;
    /* What was passed over will need slots of its own first. */
    if (skipped && i + staging->slot_count / 4 >= staging->slot_count)
      break;
    const struct group *group = next_group(ring, sequence, stream, &skipped);
    if (!group)
      break;
    const struct seen seen = sequence->groups[staging->ahead - 1].seen;
    if (process_note(copy_up(ring, slot, group), "a copy ahead of a step") != CUDA_SUCCESS)
      break;
    copy_group(slot->group, group);
    slot->held = slot->early = true;
    slot->seen = seen;
    copies += group->span_count;
    report_add(early_bytes, group_bytes(group));
    report_add(link_bytes_up, group_bytes(group));
  }
}
