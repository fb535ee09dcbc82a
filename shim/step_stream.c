/* The `stream` step: the state of each run is staged through the device, and the program's own
   kernel works on it there.

     up stream       wait begin, slot free | copy m, v, ... up | event
     program stream  wait event | kernel over the run | event
     down stream     wait event | copy m, v, ... down | event (slot free)
     program stream  after the last run: wait for the last copy down

   Exact for every kernel: the tensor list is the program's but for the base addresses of state,
   chosen so that the chunk falls on the slot and the address keeps its value mod STAGE_ALIGNMENT,
   hence the same loop of the kernel, whose vectors are of four elements of at most eight bytes. The
   base itself may lie outside of any allocation; only chunk addresses are formed from it. */
#include "plan.h"
#include <string.h>

static CUresult stage_run(struct plan *plan, const struct run_of_blocks *run) {
  struct ring *ring = plan->ring;
  const struct family *family = &plan->function->family;
  struct ring_slot *slot = ring_next(ring);
  const unsigned states = family_states(family);
  const size_t bytes = run->elements * family->state_bytes;
  const size_t chunk_offset = (size_t)run->chunk * CHUNK_ELEMENTS * family->state_bytes;
  const size_t part_bytes =
      ring_part_bytes(ring_elements(ring, states, family->state_bytes), family->state_bytes);
  uintptr_t home[STATES_MOST];
  CUdeviceptr staged[STATES_MOST];
  for (unsigned i = 0; i < states; i++) {
    home[i] = run_address(plan, run, LIST_STATE + i);
    staged[i] = slot->first + i * part_bytes + home[i] % STAGE_ALIGNMENT;
  }

  if (slot->down_used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, slot->down, 0));
  for (unsigned i = 0; i < states; i++)
    PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(staged[i], home[i], bytes, ring->up));
  PLAN_TRY(plan, driver.cuEventRecord(slot->up, ring->up));
  slot->up_used = true;
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, slot->up, 0));

  memcpy(plan->work_metadata, plan->arguments.metadata, family->metadata_bytes);
  for (unsigned i = 0; i < states; i++)
    metadata_set_address(family, plan->work_metadata, LIST_STATE + i, run->tensor,
                         staged[i] - chunk_offset);
  for (unsigned block = 0; block < run->blocks; block++)
    metadata_set_block(family, plan->work_metadata, block, run->tensor, run->chunk + block);
  PLAN_TRY(plan, plan_launch(plan, plan->work_metadata, run->blocks, plan->arguments.found_inf));

  PLAN_TRY(plan, driver.cuEventRecord(ring->begin, plan->stream));
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down, ring->begin, 0));
  for (unsigned i = 0; i < states; i++)
    PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(home[i], staged[i], bytes, ring->down));
  PLAN_TRY(plan, driver.cuEventRecord(slot->down, ring->down));
  slot->down_used = true;
  report_add(link_bytes_up, states * bytes);
  report_add(link_bytes_down, states * bytes);
  return CUDA_SUCCESS;
}

CUresult step_stream(struct plan *plan) {
  struct ring *ring = plan->ring;
  CUresult result = plan_begin(plan);
  if (result != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, ring->begin, 0));
  /* An earlier step from another program stream may still be copying this state down. */
  if (ring->down_used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, ring->down_last, 0));
  for (unsigned i = 0; i < plan->run_count; i++)
    if ((result = stage_run(plan, &plan->runs[i])) != CUDA_SUCCESS)
      return result;
  PLAN_TRY(plan, driver.cuEventRecord(ring->down_last, ring->down));
  ring->down_used = true;
  ring_took(ring, plan->stream, ring->down_last);
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, ring->down_last, 0));
  report_add(elements_stream, plan->ours_elements);
  if (plan->function->row)
    atomic_fetch_add_explicit(&plan->function->row->launches_stream, 1, memory_order_relaxed);
  return CUDA_SUCCESS;
}
