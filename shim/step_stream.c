/* The `stream` step: the state of each group of runs is staged through the device, and the program's own
   kernel works on it there.

     up stream       wait begin (or an earlier launch's: ahead.c), slot free | copy state up | event (early.c: before the launch)
     program stream  wait event | kernel over the group | event
     down stream     wait event | copy state down | event (slot free)
     program stream  after the last group: wait for the last copy down

   A group is as many runs, of one tensor after another, as fit a slot: hundreds of small tensors are a
   few launches and, where they lie end to end, a few copies.

   Exact for every kernel: the tensor list is the program's but for the base addresses of state, chosen so
   that the chunk falls on the slot and the address keeps its value mod STAGING_ALIGNMENT, hence the same
   loop of the kernel, whose vectors are of four elements of at most eight bytes; every block steps the
   tensor and chunk that it would have. The base itself may lie outside of any allocation; only chunk
   addresses are formed from it. */
#include "early.h"
#include "pace.h"
#include "plan.h"
#include "timeline.h"
#include <string.h>

static struct group the_group; /* under the enqueue lock */

/* The group that begins with run `first`, not laid out; the run after it. */
static unsigned make_group(const struct plan *plan, unsigned first, struct group *group) {
  const struct family *family = &plan->function->family;
  const unsigned states = family_states(family);
  bool named[TENSORS_MOST] = {false};
  size_t bytes = 0;
  unsigned run = first;
  group->segment_count = 0;
  for (; run < plan->resident_runs && run - first < GROUP_TENSORS; run++) {
    const struct run_of_blocks *next = &plan->runs[run];
    const size_t more = staging_bytes(states * next->elements * family->state_bytes, states);
    /* A tensor has one base address in a list. */
    if (run > first && (bytes + more > plan->ring->staging.slot_bytes || named[next->tensor]))
      break;
    bytes += more;
    named[next->tensor] = true;
    for (unsigned i = 0; i < states; i++)
      group->segments[group->segment_count++] =
          (struct segment){.home = run_address(plan, next, LIST_STATE + i),
                           .bytes = next->elements * family->state_bytes};
  }
  group->run_count = run - first;
  return run;
}

/* A slot for a group that is not there yet: the next in turn, rather one that holds nothing early. */
struct staging_slot *staging_next(struct staging *staging) {
  unsigned at = staging->next;
  while (staging->slots[at].early && (at + 1) % staging->slot_count != staging->next)
    at = (at + 1) % staging->slot_count;
  if (staging->slots[at].early)
    at = staging->next;
  return &staging->slots[at];
}

static CUresult copy_up(struct plan *plan, struct staging_slot *slot, const struct group *group) {
  struct ring *ring = plan->ring;
  early_hold(slot, group);
  if (slot->down_used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, slot->down, 0));
  struct timing *timing = timeline_begin(ring->context, ring->up);
  for (unsigned i = 0; i < group->span_count; i++) {
    PLAN_TRY(plan,
             driver.cuMemcpyDtoDAsync_v2(slot->first + group->spans[i].offset, group->spans[i].home,
                                         group->spans[i].bytes, ring->up));
    report_add(link_bytes_up, group->spans[i].bytes);
  }
  timeline_end(timing, ring->up, TRACE_UP, "state", group_bytes(group), 0);
  PLAN_TRY(plan, driver.cuEventRecord(slot->up, ring->up));
  return CUDA_SUCCESS;
}

/* The program's kernel over the group's blocks, its state in the slot. */
static CUresult launch_group(struct plan *plan, const struct staging_slot *slot,
                             const struct group *group, unsigned first) {
  const struct family *family = &plan->function->family;
  const unsigned states = family_states(family);
  unsigned blocks = 0;
  memcpy(plan->work_metadata, plan->arguments.metadata, family->metadata_bytes);
  for (unsigned i = 0; i < group->run_count; i++) {
    const struct run_of_blocks *run = &plan->runs[first + i];
    const size_t chunk_offset = (size_t)run->chunk * CHUNK_ELEMENTS * family->state_bytes;
    for (unsigned k = 0; k < states; k++)
      metadata_set_address(family, plan->work_metadata, LIST_STATE + k, run->tensor,
                           slot->first + group->segments[i * states + k].offset - chunk_offset);
    for (unsigned block = 0; block < run->blocks; block++)
      metadata_set_block(family, plan->work_metadata, blocks++, run->tensor, run->chunk + block);
  }
  PLAN_TRY(plan, plan_launch(plan, plan->work_metadata, blocks, plan->arguments.found_inf));
  return CUDA_SUCCESS;
}

static CUresult copy_down(struct plan *plan, struct staging_slot *slot, const struct group *group) {
  struct ring *ring = plan->ring;
  PLAN_TRY(plan, driver.cuEventRecord(ring->kernel, plan->stream));
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down, ring->kernel, 0));
  struct timing *timing = timeline_begin(ring->context, ring->down);
  for (unsigned i = 0; i < group->span_count; i++) {
    PLAN_TRY(plan,
             driver.cuMemcpyDtoDAsync_v2(group->spans[i].home, slot->first + group->spans[i].offset,
                                         group->spans[i].bytes, ring->down));
    report_add(link_bytes_down, group->spans[i].bytes);
  }
  timeline_end(timing, ring->down, TRACE_DOWN, "state", group_bytes(group), 0);
  PLAN_TRY(plan, driver.cuEventRecord(slot->down, ring->down));
  slot->down_used = true;
  return CUDA_SUCCESS;
}

static CUresult stage_group(struct plan *plan, const struct group *group, unsigned first) {
  struct staging *staging = &plan->ring->staging;
  CUresult result = CUDA_SUCCESS;
  struct staging_slot *slot = early_use(plan->ring, group);
  if (!slot) {
    slot = staging_next(staging);
    result = copy_up(plan, slot, group);
  }
  staging->next = (unsigned)(slot - staging->slots + 1) % staging->slot_count;
  struct timing *timing = timeline_begin(plan->ring->context, plan->stream);
  if (result == CUDA_SUCCESS)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, slot->up, 0));
  timeline_end(timing, plan->stream, TRACE_WAIT, "state", 0, 0);
  if (result == CUDA_SUCCESS)
    result = launch_group(plan, slot, group, first);
  return result == CUDA_SUCCESS ? copy_down(plan, slot, group) : result;
}

/* Blocks that stay the program's kernel's write where no slot may hold what was there. */
static void note_rest(const struct plan *plan) {
  const struct family *family = &plan->function->family;
  for (unsigned block = 0; block < plan->rest; block++) {
    const unsigned tensor = metadata_block_tensor(family, plan->rest_metadata, block);
    const size_t offset = (size_t)metadata_block_chunk(family, plan->rest_metadata, block) *
                          CHUNK_ELEMENTS * family->state_bytes;
    const size_t bytes =
        metadata_chunk_elements(family, plan->rest_metadata, block) * family->state_bytes;
    for (unsigned i = 0; i < family_states(family); i++)
      early_stepped(plan->ring,
                    metadata_address(family, plan->rest_metadata, LIST_STATE + i, tensor) + offset,
                    bytes);
  }
}

CUresult step_stream(struct plan *plan) {
  struct ring *ring = plan->ring;
  const struct pace *pace = pace_current();
  early_launch(ring, pace ? pace->step : 0);
  for (unsigned run = 0; run < plan->resident_runs;) {
    run = make_group(plan, run, &the_group);
    early_tell(ring, &the_group);
  }
  note_rest(plan);
  CUresult result = plan_begin(plan, true);
  if (result != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, plan->ahead.base, 0));
  /* An earlier step from another program stream may still be copying this state down. */
  if (ring->down_used && !plan->ahead.bulk)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, ring->down_last, 0));
  for (unsigned run = 0; run < plan->resident_runs;) {
    const unsigned first = run;
    run = make_group(plan, first, &the_group);
    staging_lay_out(&the_group);
    if ((result = stage_group(plan, &the_group, first)) != CUDA_SUCCESS)
      return result;
  }
  if ((result = drive_stream(plan)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(ring->down_last, ring->down));
  ring->down_used = true;
  ring_took(ring, plan->stream, ring->down_last);
  struct timing *timing = timeline_begin(ring->context, plan->stream);
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, ring->down_last, 0));
  timeline_end(timing, plan->stream, TRACE_WAIT, "last copies", 0, 0);
  report_add(elements_stream, plan->resident_elements);
  if (plan->function->row)
    atomic_fetch_add_explicit(&plan->function->row->launches_stream, 1, memory_order_relaxed);
  early_fill(ring, plan->stream);
  return CUDA_SUCCESS;
}
