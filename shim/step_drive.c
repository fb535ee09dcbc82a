/* The step's part of the drive tier: a *drive run* is a run of blocks some of whose state is on drives, the rest on the host. Its
   pieces on drives are named by one ticket (frames.h), made at the launch's begin with those of all its drive runs, so that reads
   fly while other runs are worked on. Callers: step.c, step_cpu.c (the worker waits for the ticket, paged_state), step_stream.c
   (the GPU does, below). Under the enqueue lock, but for the two calls of paged_state, which are the worker's.

   Streamed, each run is a group of its own in a slot of staging:

     up stream       wait slot free, words->ready | off_gate: traps unless the pieces came | frames up | event
     program stream  wait event | kernel over the run | event
     down stream     wait event | down to the frames | event (slot free) | words->down

   The keeper thread (frames.h) has the ticket before the first of these calls. Words are a run's, and used again only when `down` has
   come: the keeper is free to be ahead of the GPU, but must not write words that a gate in front has yet to read. */
#include "drive.h"
#include "early.h"
#include "frames.h"
#include "holdings.h"
#include "plan.h"
#include "process.h"
#include "quiet.h"
#include "range.h"
#include "timeline.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long the host waits for a launch's proof while nothing is stepped: the GPU may be waiting for what the program does next. */
static const uint64_t verdict_wait_ns = 10000000000;

/* More than any pair of launches has drive runs. */
enum { GATES = 2 * BLOCKS_MOST, GATES_AT_ONCE = 64 };

struct gate {
  struct gate_words *words; /* pinned; goes with the context */
  uint32_t generation;
};
struct gates {
  unsigned count, next;
  struct gate gates[GATES];
};

/* ---- pieces of a run ---- */

static size_t state_bytes(const struct plan *plan) {
  return plan->function->family.state_bytes;
}

static unsigned pieces_between(const struct range *range, uintptr_t address, size_t bytes) {
  const uintptr_t first = (address - range->base) / range->piece_bytes;
  return (unsigned)((address - range->base + bytes - 1) / range->piece_bytes - first + 1);
}

/* Of all states of a run with so many elements. */
static unsigned run_pieces(const struct plan *plan, const struct run_of_blocks *run,
                           uint64_t elements) {
  unsigned pieces = 0;
  for (unsigned i = 0; i < family_states(&plan->function->family); i++) {
    const uintptr_t address = run_address(plan, run, LIST_STATE + i);
    const struct range *range = range_find(address);
    pieces += range ? pieces_between(range, address, elements * state_bytes(plan)) : 1;
  }
  return pieces;
}

bool drive_run_fits(const struct plan *plan, const struct run_of_blocks *run, uint64_t elements) {
  const struct frames *frames = plan->ring ? frames_find(plan->ring->context) : NULL;
  return run->elements + elements <= plan->drive_elements_most && frames &&
         run_pieces(plan, run, run->elements + elements) <= frames_count(frames) / 4;
}

/* ---- what the worker waits for ---- */

static bool paged_wait(struct paged_state *paged, const _Atomic bool *give_up) {
  const enum ticket_state state = ticket_wait(paged->ticket, UINT64_MAX / 4, give_up);
  if (state == TICKET_FAILED && *frames_lost())
    frames_say_lost();
  return state == TICKET_READY;
}

static void paged_done(struct paged_state *paged, bool wrote) {
  ticket_release(paged->ticket, wrote);
  free(paged);
}

/* Where one state's bytes at an address lie, and how many of `bytes` lie end to end. */
static bool locate(struct paged_state *paged, uintptr_t address, size_t *bytes, void **at,
                   bool *framed) {
  struct range *range = range_find(address);
  if (!range)
    return false;
  const size_t offset = address - range->base, inside = offset % range->piece_bytes;
  const struct piece *piece = &range->pieces[offset / range->piece_bytes];
  if (*bytes > range->piece_bytes - inside)
    *bytes = range->piece_bytes - inside;
  *framed = piece->tier == PIECE_DRIVE;
  if (!*framed) {
    *at =
        (void *)address; /* NOLINT(performance-no-int-to-ptr): where the host's pages are mapped */
    return true;
  }
  char *frame = ticket_add(paged->ticket, piece->unit, false);
  *at = frame + inside;
  return frame != NULL;
}

/* The run's stretches, and its pieces named in the ticket. Elements that a border of pieces cuts there are none: pieces are made of
   whole elements, and tensors aligned to them. */
static bool fill_stretches(const struct plan *plan, const struct run_of_blocks *run,
                           struct paged_state *paged) {
  const unsigned states = family_states(&plan->function->family);
  const size_t element = state_bytes(plan);
  for (uint64_t first = 0; first < run->elements;) {
    struct stretch *stretch = &paged->stretches[paged->count++];
    size_t bytes = (run->elements - first) * element;
    *stretch = (struct stretch){.first = first};
    for (unsigned i = 0; i < states; i++) {
      bool framed = false;
      if (!locate(paged, run_address(plan, run, LIST_STATE + i) + first * element, &bytes,
                  &stretch->states[i], &framed))
        return false;
      stretch->framed |= framed ? 1u << i : 0;
    }
    stretch->elements = bytes / element;
    if (!stretch->elements)
      return false;
    first += stretch->elements;
  }
  return true;
}

static struct paged_state *page(const struct plan *plan, const struct run_of_blocks *run,
                                struct frames *frames) {
  const size_t most = run_pieces(plan, run, run->elements);
  struct paged_state *paged = calloc(1, sizeof *paged + most * sizeof *paged->stretches);
  if (!paged)
    return NULL;
  paged->wait = paged_wait;
  paged->done = paged_done;
  paged->ticket = ticket_make(frames, TICKET_STEP);
  if (paged->ticket && fill_stretches(plan, run, paged))
    return paged;
  if (paged->ticket)
    ticket_drop(paged->ticket);
  free(paged);
  return NULL;
}

/* ---- a launch ---- */

/* Words whose last use is over, as many as the launch has drive runs. */
static bool reserve_gates(struct ring *ring, unsigned wanted) {
  if (!ring->gates && !(ring->gates = calloc(1, sizeof *ring->gates)))
    return false;
  struct gates *gates = ring->gates;
  unsigned idle = 0;
  for (unsigned i = 0; i < gates->count; i++)
    idle += atomic_load(&gates->gates[i].words->down) == gates->gates[i].generation;
  for (; idle < wanted; idle += GATES_AT_ONCE) {
    void *memory = NULL;
    if (gates->count + GATES_AT_ONCE > GATES || process_capture_open() ||
        holding_pin(&memory, GATES_AT_ONCE * sizeof(struct gate_words)) != CUDA_SUCCESS)
      return false;
    for (unsigned i = 0; i < GATES_AT_ONCE; i++)
      gates->gates[gates->count++].words = (struct gate_words *)memory + i;
  }
  return true;
}

static struct gate *next_gate(struct gates *gates) {
  struct gate *gate;
  do
    gate = &gates->gates[gates->next++ % gates->count];
  while (atomic_load(&gate->words->down) != gate->generation);
  return gate;
}

/* The pieces of the context's ranges are of one size. */
static size_t piece_bytes_of(const struct plan *plan) {
  const struct family *family = &plan->function->family;
  const unsigned tensor = metadata_block_tensor(family, plan->ours_metadata, plan->resident);
  const struct range *range =
      range_find(metadata_address(family, plan->ours_metadata, LIST_STATE, tensor));
  return range ? range->piece_bytes : 0;
}

bool drive_ready(struct plan *plan, const char **why) {
  static char reason[256];
  *why = reason;
  if (*frames_lost()) {
    frames_say_lost();
    *why = frames_lost();
    return false;
  }
  if (!driver.cuStreamWaitValue32_v2 || !driver.cuStreamWriteValue32_v2) {
    *why = "the driver has no stream memory operations";
    return false;
  }
  struct frames *frames =
      frames_of(plan->ring->context, piece_bytes_of(plan), reason, sizeof reason);
  if (!frames || !frames_stream_ready(frames, reason, sizeof reason))
    return false;
  if (!plan->ring->kernels.gate) {
    *why = "our kernels could not be loaded";
    return false;
  }
  return true;
}

bool drive_begin(struct plan *plan, const char **why) {
  struct frames *frames = frames_find(plan->ring->context);
  *why = "there is no memory for what a step on drives needs";
  if (!frames || !reserve_gates(plan->ring, plan->run_count - plan->resident_runs))
    return false;
  for (unsigned i = plan->resident_runs; i < plan->run_count; i++)
    if (!(plan->runs[i].paged = page(plan, &plan->runs[i], frames))) {
      while (i-- > plan->resident_runs) {
        ticket_drop(plan->runs[i].paged->ticket);
        free(plan->runs[i].paged);
        plan->runs[i].paged = NULL;
      }
      return false;
    }
  for (unsigned i = plan->resident_runs; i < plan->run_count; i++)
    ticket_go(plan->runs[i].paged->ticket);
  return true;
}

void drive_leave(struct plan *plan) {
  for (unsigned i = plan->resident_runs; i < plan->run_count; i++) {
    struct paged_state *paged = plan->runs[i].paged;
    plan->runs[i].paged = NULL;
    if (paged)
      paged->done(paged, false);
  }
}

/* Nothing comes from a GPU that is lost: the next call for it answers with that. */
static bool lost(const struct ring *ring) {
  const CUstreamCaptureMode mode = quiet_begin();
  const CUresult result = driver.cuStreamQuery(ring->down);
  quiet_end(mode);
  (void)process_note(result, "cuStreamQuery");
  return !process_active();
}

enum proof_outcome drive_verdict(const struct plan *plan) {
  const uint64_t poll_ns = 50000000;
  struct ring *ring = plan->ring;
  if (ring->verdict_late)
    return PROOF_UNKNOWN;
  uint32_t before = worker_jobs_done(ring->worker);
  for (uint64_t waited_ns = 0; waited_ns < verdict_wait_ns; waited_ns += poll_ns) {
    const enum proof_outcome outcome = worker_wait_proof(ring->worker, poll_ns);
    if (outcome != PROOF_UNKNOWN || lost(ring))
      return outcome;
    /* Pieces in front of the proof may wait for slow drives: that says nothing about the GPU. */
    const uint32_t done = worker_jobs_done(ring->worker);
    if (done != before)
      waited_ns = 0;
    before = done;
  }
  ring->verdict_late = true;
  report_reason(
      "state on drives is streamed from now on: the CPU's step of it waits for the GPU to "
      "come to the optimizer, which took longer than %llu s",
      (unsigned long long)(verdict_wait_ns / 1000000000u));
  return PROOF_UNKNOWN;
}

/* ---- for the program's kernel ---- */

static CUresult fault(uintptr_t address, size_t bytes) {
  struct range *range = bytes ? range_find(address) : NULL;
  if (!range || !atomic_load(&range->drive_pieces))
    return CUDA_SUCCESS;
  const size_t offset = address - range->base;
  if (bytes > range->bytes - offset)
    bytes = range->bytes - offset;
  return drive_fault_locked(range, (uint32_t)(offset / range->piece_bytes),
                            (uint32_t)((offset + bytes - 1) / range->piece_bytes));
}

/* Where a block's part of a list lies, and how long it is. */
static uintptr_t block_address(const struct plan *plan, unsigned block, enum tensor_list list,
                               size_t *bytes) {
  const struct family *family = &plan->function->family;
  const unsigned char *metadata = plan->arguments.metadata;
  const unsigned tensor = metadata_block_tensor(family, metadata, block);
  const size_t element = element_bytes(family, list);
  *bytes = (size_t)metadata_chunk_elements(family, metadata, block) * element;
  return metadata_address(family, metadata, list, tensor) +
         (size_t)metadata_block_chunk(family, metadata, block) * CHUNK_ELEMENTS * element;
}

/* Lists [first, last) of a block's. */
static CUresult fault_block(const struct plan *plan, unsigned block, unsigned first,
                            unsigned last) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned list = first; list < last && result == CUDA_SUCCESS; list++) {
    size_t bytes;
    const uintptr_t address = block_address(plan, block, (enum tensor_list)list, &bytes);
    result = fault(address, bytes);
  }
  return result;
}

CUresult drive_fault_launch(struct plan *plan) {
  CUresult result = CUDA_SUCCESS;
  if (!range_any_drive())
    return CUDA_SUCCESS;
  for (unsigned block = 0; block < plan->launch->grid[0] && result == CUDA_SUCCESS; block++)
    result = fault_block(plan, block, 0, plan->function->family.lists);
  return result;
}

/* The least is exact and can be set as it is told. */
static void tell_staging(size_t has, size_t least, size_t piece_bytes) {
  char staging[REPORT_SIZE_BYTES], piece[REPORT_SIZE_BYTES];
  const size_t kibibytes = (least * piece_bytes + 1023) / 1024;
  const bool whole = kibibytes % 1024 == 0;
  report_notice("some state goes to no drive: staging of %s is too small for it in pieces of %s; "
                "set OFFLOAD_NVME_STAGING to at least %zu%s",
                report_size_text(has * piece_bytes, staging), report_size_text(piece_bytes, piece),
                whole ? kibibytes / 1024 : kibibytes, whole ? "MiB" : "KiB");
}

/* What of a block's states is more than a ticket can name: it could never be stepped on drives. Its ranges stay off them from now on. */
static bool too_long(const struct plan *plan, unsigned block) {
  static bool said;
  struct range *ranges[STATES_MOST] = {NULL};
  const unsigned states = family_states(&plan->function->family);
  size_t pieces = 0;
  for (unsigned i = 0; i < states; i++) {
    size_t bytes;
    const uintptr_t address = block_address(plan, block, LIST_STATE + i, &bytes);
    ranges[i] = range_find(address);
    pieces += pieces_between(ranges[i], address, bytes);
  }
  const struct frames *frames = ranges[0] ? frames_find(ranges[0]->context) : NULL;
  if (!frames || pieces <= frames_count(frames) / 2)
    return false;
  for (unsigned i = 0; i < states; i++)
    ranges[i]->drive_rest = DRIVE_REST_MOST;
  if (!said)
    tell_staging(frames_count(frames), 2 * pieces, ranges[0]->piece_bytes);
  said = true;
  return true;
}

/* Whether a block has state on drives, and state that isn't off the device, or too much of it. */
static bool mixed(const struct plan *plan, unsigned block) {
  bool drive = false, off = true, any;
  for (unsigned list = LIST_STATE; list < plan->function->family.lists; list++) {
    size_t bytes;
    const uintptr_t address = block_address(plan, block, (enum tensor_list)list, &bytes);
    off &= range_off_device(address, bytes, &any);
    drive |= any;
  }
  return drive && (!off || too_long(plan, block));
}

CUresult drive_fault_mixed(struct plan *plan) {
  const struct family *family = &plan->function->family;
  CUresult result = CUDA_SUCCESS;
  if (!range_any_drive())
    return CUDA_SUCCESS;
  for (unsigned block = 0; block < plan->launch->grid[0] && result == CUDA_SUCCESS; block++)
    result = fault_block(plan, block, 0, LIST_STATE);
  /* Bringing one in may part another, in front, whose pieces it shares; so a few times, and then all. */
  bool found = true;
  for (unsigned pass = 0; found && pass < 4 && result == CUDA_SUCCESS; pass++) {
    found = false;
    for (unsigned block = 0; block < plan->launch->grid[0] && result == CUDA_SUCCESS; block++)
      if (mixed(plan, block)) {
        found = true;
        result = fault_block(plan, block, LIST_STATE, family->lists);
      }
  }
  return found && result == CUDA_SUCCESS ? drive_fault_launch(plan) : result;
}

/* ---- streamed ---- */

/* The run's states in the slot, each with its address's low bits. */
static void lay_out(const struct plan *plan, const struct run_of_blocks *run,
                    size_t offsets[STATES_MOST]) {
  size_t end = 0;
  for (unsigned i = 0; i < family_states(&plan->function->family); i++) {
    offsets[i] = end + (run_address(plan, run, LIST_STATE + i) - end) % STAGING_ALIGNMENT;
    end = offsets[i] + run->elements * state_bytes(plan);
  }
}

static CUresult copy_run(struct plan *plan, const struct paged_state *paged, CUdeviceptr slot,
                         const size_t offsets[STATES_MOST], bool up) {
  const size_t element = state_bytes(plan);
  const CUstream stream = up ? plan->ring->up : plan->ring->down;
  struct timing *timing = timeline_begin(plan->ring->context, stream);
  uint64_t copied = 0, elements = 0;
  for (unsigned i = 0; i < paged->count; i++) {
    const struct stretch *stretch = &paged->stretches[i];
    const size_t bytes = stretch->elements * element;
    elements += stretch->elements;
    for (unsigned k = 0; k < family_states(&plan->function->family); k++) {
      const CUdeviceptr there = slot + offsets[k] + stretch->first * element;
      void *here = stretch->states[k];
      if (stretch->framed & 1u << k && up)
        PLAN_TRY(plan, driver.cuMemcpyHtoDAsync_v2(there, here, bytes, stream));
      else if (stretch->framed & 1u << k)
        PLAN_TRY(plan, driver.cuMemcpyDtoHAsync_v2(here, there, bytes, stream));
      else
        PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(up ? there : (CUdeviceptr)(uintptr_t)here,
                                                   up ? (CUdeviceptr)(uintptr_t)here : there, bytes,
                                                   stream));
      copied += bytes;
      if (up)
        report_add(link_bytes_up, bytes);
      else
        report_add(link_bytes_down, bytes);
    }
  }
  timeline_end(timing, stream, up ? TRACE_UP : TRACE_DOWN, "state on drives", copied, elements);
  return CUDA_SUCCESS;
}

static CUresult launch_run(struct plan *plan, const struct run_of_blocks *run, CUdeviceptr slot,
                           const size_t offsets[STATES_MOST]) {
  const struct family *family = &plan->function->family;
  const size_t chunk_offset = (size_t)run->chunk * CHUNK_ELEMENTS * family->state_bytes;
  memcpy(plan->work_metadata, plan->arguments.metadata, family->metadata_bytes);
  for (unsigned i = 0; i < family_states(family); i++)
    metadata_set_address(family, plan->work_metadata, LIST_STATE + i, run->tensor,
                         slot + offsets[i] - chunk_offset);
  for (unsigned block = 0; block < run->blocks; block++)
    metadata_set_block(family, plan->work_metadata, block, run->tensor, run->chunk + block);
  PLAN_TRY(plan, plan_launch(plan, plan->work_metadata, run->blocks, plan->arguments.found_inf));
  return CUDA_SUCCESS;
}

static CUresult stream_run(struct plan *plan, struct run_of_blocks *run) {
  struct ring *ring = plan->ring;
  struct staging *staging = &ring->staging;
  struct staging_slot *slot = staging_next(staging);
  struct gate *gate = next_gate(ring->gates);
  const struct paged_state *paged = run->paged;
  const uint32_t generation = ++gate->generation;
  const CUdeviceptr words = (CUdeviceptr)(uintptr_t)gate->words;
  size_t offsets[STATES_MOST] = {0};
  CUresult result;
  staging->next = (unsigned)(slot - staging->slots + 1) % staging->slot_count;
  slot->early = slot->held = false;
  lay_out(plan, run, offsets);
  ticket_watch(paged->ticket, gate->words, generation);
  if (slot->down_used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, slot->down, 0));
  PLAN_TRY(plan, driver.cuStreamWaitValue32_v2(ring->up, words + offsetof(struct gate_words, ready),
                                               generation, CU_STREAM_WAIT_VALUE_GEQ));
  PLAN_TRY(plan, kernels_gate(&ring->kernels, words, generation, ring->up));
  if ((result = copy_run(plan, paged, slot->first, offsets, true)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(slot->up, ring->up));
  struct timing *timing = timeline_begin(ring->context, plan->stream);
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, slot->up, 0));
  timeline_end(timing, plan->stream, TRACE_WAIT, "state on drives", 0, run->elements);
  if ((result = launch_run(plan, run, slot->first, offsets)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(ring->kernel, plan->stream));
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down, ring->kernel, 0));
  if ((result = copy_run(plan, paged, slot->first, offsets, false)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(slot->down, ring->down));
  slot->down_used = true;
  PLAN_TRY(plan, driver.cuStreamWriteValue32_v2(
                     ring->down, words + offsetof(struct gate_words, down), generation, 0));
  return CUDA_SUCCESS;
}

CUresult drive_stream(struct plan *plan) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = plan->resident_runs; i < plan->run_count && result == CUDA_SUCCESS; i++) {
    struct paged_state *paged = plan->runs[i].paged;
    result = stream_run(plan, &plan->runs[i]);
    plan->runs[i].paged = NULL; /* the ticket is the keeper's */
    free(paged);
  }
  if (result == CUDA_SUCCESS) {
    report_add(elements_stream, plan->ours_elements - plan->resident_elements);
    report_add(elements_drive, plan->ours_elements - plan->resident_elements);
  }
  return result;
}
