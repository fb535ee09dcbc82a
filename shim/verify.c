/* The GPU's side of OFFLOAD_VERIFY: see verify.h. */
#include "verify.h"
#include "holdings.h"
#include "process.h"
#include "state.h"
#include <stdlib.h>
#include <string.h>

enum { VERIFY_SLOTS = 2, STEPS_BETWEEN_TRIES = 8 };

struct verify_slot {
  CUdeviceptr block;         /* on the device: words, then parts */
  struct check_words *words; /* pinned; the same parts follow, and copies of the state */
  CUevent done;              /* recorded on `up` behind its last use */
  bool used;
  uint32_t generation;
  struct verification last;
};

struct verifier {
  size_t device_bytes, pinned_bytes; /* of each slot; 0 before they are made */
  unsigned next;
  struct verify_slot slots[VERIFY_SLOTS];
  bool failed;
  uint64_t failed_step, failed_moved; /* as ring_stage remembers them */
};

/* ---- layout ---- */

/* The kernel's lists; a parameter and a gradient as we make them; and, of what is compared before it is
   applied, the state that the CPU works on. */
enum { PART_PARAMETER = LISTS_MOST, PART_GRADIENT, PARTS_DEVICE, PART_SHADOW = PARTS_DEVICE };
enum { PARTS_PINNED = PART_SHADOW + STATES_MOST };

static size_t part_element_bytes(const struct family *family, unsigned part) {
  if (part < LISTS_MOST)
    return part < family->lists ? element_bytes(family, (enum tensor_list)part) : 0;
  return part < PART_SHADOW ? family->parameter_bytes : family->state_bytes;
}

/* Where a part for so many elements begins behind the words' address, which is as aligned as any: with
   room to keep an address's low bits. */
static size_t part_offset(const struct family *family, uint64_t elements, unsigned part) {
  size_t offset = sizeof(struct check_words);
  for (unsigned before = 0; before < part; before++) {
    const size_t bytes = elements * part_element_bytes(family, before);
    offset += RING_HEAD + (bytes + RING_HEAD - 1) / RING_HEAD * RING_HEAD;
  }
  return offset;
}

static void *pinned_part(const struct plan *plan, const struct run_of_blocks *run,
                         const struct verify_slot *slot, unsigned part) {
  return (char *)slot->words + part_offset(&plan->function->family, run->elements, part);
}

/* ---- scratch ---- */

static CUresult make_slots(struct verifier *verifier, size_t device_bytes, size_t pinned_bytes) {
  struct verify_slot made[VERIFY_SLOTS];
  CUresult result = CUDA_SUCCESS;
  memcpy(made, verifier->slots, sizeof made);
  unsigned count = 0;
  while (count < VERIFY_SLOTS && result == CUDA_SUCCESS) {
    struct verify_slot *slot = &made[count];
    void *pinned = NULL;
    if (!slot->done)
      result = driver.cuEventCreate(&slot->done, CU_EVENT_DISABLE_TIMING);
    verifier->slots[count].done = slot->done;
    if (result == CUDA_SUCCESS)
      result = holding_allocate(&slot->block, device_bytes);
    if (result == CUDA_SUCCESS) {
      result = holding_pin(&pinned, pinned_bytes);
      if (result != CUDA_SUCCESS)
        holding_free(slot->block);
    }
    slot->words = pinned;
    slot->used = false;
    count += result == CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) {
    while (count--) {
      holding_unpin(made[count].words);
      holding_free(made[count].block);
    }
    return process_note(result, "scratch for OFFLOAD_VERIFY");
  }
  /* Smaller slots that were there before go with the context: they may still be in use. */
  memcpy(verifier->slots, made, sizeof made);
  verifier->device_bytes = device_bytes;
  verifier->pinned_bytes = pinned_bytes;
  return CUDA_SUCCESS;
}

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

/* Slots that hold every run of the launch. */
static bool scratch(struct plan *plan, bool before, const char **why) {
  const struct family *family = &plan->function->family;
  struct ring *ring = plan->ring;
  uint64_t most = 0;
  for (unsigned i = 0; i < plan->run_count; i++)
    most = plan->runs[i].elements > most ? plan->runs[i].elements : most;
  const size_t device_bytes = part_offset(family, most, PARTS_DEVICE),
               pinned_bytes = part_offset(family, most, before ? PARTS_PINNED : PARTS_DEVICE);
  struct verifier *verifier = ring->verifier;
  if (verifier && verifier->device_bytes >= device_bytes && verifier->pinned_bytes >= pinned_bytes)
    return true;
  if (!verifier)
    verifier = ring->verifier = calloc(1, sizeof *verifier);
  *why = "scratch for OFFLOAD_VERIFY is made when no capture is open";
  if (verifier && process_capture_open())
    return false;
  *why = "there is no memory for the scratch of OFFLOAD_VERIFY";
  const uint64_t moved = atomic_load_explicit(&report.totals.pieces_moved, memory_order_relaxed);
  if (!verifier || (verifier->failed && moved == verifier->failed_moved &&
                    state_step() < verifier->failed_step + STEPS_BETWEEN_TRIES))
    return false;
  verifier->failed_moved = moved;
  verifier->failed_step = state_step();
  verifier->failed = make_slots(verifier, larger(device_bytes, 2 * verifier->device_bytes),
                                larger(pinned_bytes, 2 * verifier->pinned_bytes)) != CUDA_SUCCESS;
  return !verifier->failed;
}

/* ---- which pieces ---- */

/* A launch of a step that the function has not had before begins a turn. */
static void take_turn(struct verified *verified, unsigned every) {
  if (verified->step == state_step())
    return;
  if (!verified->step) {
    verified->first_step = state_step();
    if (every != VERIFY_ALL) /* without memory for it, more is in doubt */
      verified->last_steps = calloc(every, sizeof *verified->last_steps);
  } else {
    if (verified->last_steps && !verified->missed)
      verified->last_steps[verified->turn % every] = verified->step;
    verified->turn++;
  }
  verified->step = state_step();
  verified->next_piece = 0;
  verified->missed = false;
}

static unsigned mark(struct plan *plan, unsigned every) {
  struct verified *verified = &plan->function->verified;
  unsigned count = 0;
  take_turn(verified, every);
  for (unsigned i = 0; i < plan->run_count; i++) {
    struct run_of_blocks *run = &plan->runs[i];
    run->verified =
        every == VERIFY_ALL || (verified->next_piece % every + verified->turn % every) % every == 0;
    verified->next_piece++;
    if (run->verified && run->drive) {
      /* Its state is where the program's kernel can't read it. */
      report_add(unverified_pieces, 1);
      run->verified = false;
      verified->missed = true;
    }
    count += run->verified;
  }
  return count;
}

bool verify_ready(struct plan *plan, const char **why) {
  const unsigned every = process_config()->verify;
  const bool all = every == VERIFY_ALL;
  plan->verified = 0;
  if (!every)
    return true;
  const unsigned count = mark(plan, every);
  const char *problem;
  plan->verified = count;
  if (!count || scratch(plan, all, &problem))
    return true;
  report_add(unverified_pieces, count);
  *why = problem;
  if (all)
    return false;
  report_reason("OFFLOAD_VERIFY: pieces whose turn it was were not verified: %s", problem);
  plan->function->verified.missed = true;
  plan->verified = 0;
  for (unsigned i = 0; i < plan->run_count; i++)
    plan->runs[i].verified = false;
  return true;
}

struct checked_function verify_function(const struct plan *plan) {
  const unsigned every = process_config()->verify;
  struct verified *verified = &plan->function->verified;
  if (!every)
    return (struct checked_function){.differed = NULL};
  const uint64_t last_good =
      verified->last_steps ? verified->last_steps[verified->turn % every] : 0;
  return (struct checked_function){.name = plan->function->family.name,
                                   .differed = &verified->differed,
                                   .row = plan->function->row,
                                   .step = verified->step,
                                   .first_in_doubt =
                                       last_good ? last_good + 1 : verified->first_step};
}

/* ---- a piece ---- */

const struct verification *verify_begin(struct plan *plan, const struct run_of_blocks *run) {
  const struct family *family = &plan->function->family;
  const bool before = process_config()->verify == VERIFY_ALL;
  const bool scaled = plan->arguments.grad_scale != NULL;
  struct verifier *verifier = plan->ring->verifier;
  struct verify_slot *slot = &verifier->slots[verifier->next++ % VERIFY_SLOTS];
  const uintptr_t parameter = run_address(plan, run, LIST_PARAMETER),
                  gradient = run_address(plan, run, LIST_GRADIENT);
  const struct run_of_blocks whole = {.tensor = run->tensor};
  struct verification *verification = &slot->last;
  *verification = (struct verification){
      .slot = slot,
      .parameter = parameter,
      .gradient = gradient,
      .check = {.words = slot->words,
                .generation = ++slot->generation,
                .before = before,
                .tensor = run->tensor,
                .parameter = run_address(plan, &whole, LIST_PARAMETER),
                .first_element = (uint64_t)run->chunk * CHUNK_ELEMENTS,
                .kernel_parameter = pinned_part(plan, run, slot, LIST_PARAMETER),
                .kernel_gradient = pinned_part(plan, run, slot, LIST_GRADIENT),
                .parameter_made = pinned_part(plan, run, slot, PART_PARAMETER),
                .gradient_made = scaled ? pinned_part(plan, run, slot, PART_GRADIENT) : NULL},
  };
  for (unsigned i = 0; i < family_states(family); i++) {
    verification->check.kernel_states[i] = pinned_part(plan, run, slot, LIST_STATE + i);
    verification->check.shadow[i] = before ? pinned_part(plan, run, slot, PART_SHADOW + i) : NULL;
  }
  for (unsigned list = 0; list < family->lists; list++)
    verification->lists[list] = slot->block + part_offset(family, run->elements, list) +
                                run_address(plan, run, (enum tensor_list)list) % STAGING_ALIGNMENT;
  if (!before)
    return verification;
  verification->parameter = slot->block + part_offset(family, run->elements, PART_PARAMETER) +
                            parameter % STAGING_ALIGNMENT;
  verification->gradient = slot->block + part_offset(family, run->elements, PART_GRADIENT) +
                           gradient % STAGING_ALIGNMENT;
  return verification;
}

/* The program's kernel over the run's copies, with all that the launch says. */
static CUresult launch_on_copies(struct plan *plan, const struct run_of_blocks *run,
                                 const struct verification *verification) {
  const struct family *family = &plan->function->family;
  struct arguments arguments = plan->arguments;
  arguments.metadata = plan->work_metadata;
  memcpy(plan->work_metadata, plan->arguments.metadata, family->metadata_bytes);
  for (unsigned list = 0; list < family->lists; list++)
    metadata_set_address(family, plan->work_metadata, (enum tensor_list)list, run->tensor,
                         verification->lists[list] -
                             (size_t)run->chunk * CHUNK_ELEMENTS *
                                 element_bytes(family, (enum tensor_list)list));
  for (unsigned block = 0; block < run->blocks; block++)
    metadata_set_block(family, plan->work_metadata, block, run->tensor, run->chunk + block);
  return arguments_launch(plan->function, &arguments, run->blocks, plan->launch->shared_bytes,
                          plan->ring->down);
}

CUresult verify_down(struct plan *plan, const struct run_of_blocks *run,
                     const struct verification *verification) {
  const struct family *family = &plan->function->family;
  const struct piece_check *check = &verification->check;
  struct verify_slot *slot = verification->slot;
  const CUstream down = plan->ring->down;
  const size_t state_bytes = run->elements * family->state_bytes,
               parameter_bytes = run->elements * family->parameter_bytes;
  /* In the launch's place, also where its gradients were fetched ahead of it. */
  PLAN_TRY(plan, driver.cuStreamWaitEvent(down, plan->begin, 0));
  if (slot->used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(down, slot->done, 0));
  for (unsigned list = 0; list < family->lists; list++)
    PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(
                       verification->lists[list], run_address(plan, run, (enum tensor_list)list),
                       list < LIST_STATE ? parameter_bytes : state_bytes, down));
  if (check->before) {
    PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(verification->parameter,
                                               verification->lists[LIST_PARAMETER], parameter_bytes,
                                               down));
    if (check->gradient_made)
      PLAN_TRY(plan, driver.cuMemcpyDtoDAsync_v2(verification->gradient,
                                                 verification->lists[LIST_GRADIENT],
                                                 parameter_bytes, down));
  }
  PLAN_TRY(plan, launch_on_copies(plan, run, verification));
  for (unsigned list = 0; list < family->lists; list++)
    if (list != LIST_GRADIENT || check->gradient_made)
      PLAN_TRY(plan, driver.cuMemcpyDtoHAsync_v2(
                         pinned_part(plan, run, slot, list), verification->lists[list],
                         list < LIST_STATE ? parameter_bytes : state_bytes, down));
  PLAN_TRY(plan, driver.cuStreamWriteValue32_v2(down, (CUdeviceptr)(uintptr_t)&check->words->copied,
                                                check->generation, 0));
  report_add(verify_link_bytes, 2 * family_states(family) * state_bytes + parameter_bytes);
  return CUDA_SUCCESS;
}

CUresult verify_up(struct plan *plan, const struct run_of_blocks *run,
                   const struct verification *verification) {
  const struct piece_check *check = &verification->check;
  struct verify_slot *slot = verification->slot;
  const struct kernels *kernels = &plan->ring->kernels;
  const enum adam_type type = plan->function->family.type;
  const CUstream up = plan->ring->up;
  const size_t bytes = run->elements * plan->function->family.parameter_bytes;
  const uint64_t kept = check->before ? run->elements : 0;
  PLAN_TRY(plan, driver.cuMemcpyDtoHAsync_v2(pinned_part(plan, run, slot, PART_PARAMETER),
                                             verification->parameter, bytes, up));
  if (check->gradient_made)
    PLAN_TRY(plan, driver.cuMemcpyDtoHAsync_v2(pinned_part(plan, run, slot, PART_GRADIENT),
                                               verification->gradient, bytes, up));
  PLAN_TRY(plan, driver.cuStreamWriteValue32_v2(up, (CUdeviceptr)(uintptr_t)&check->words->applied,
                                                check->generation, 0));
  PLAN_TRY(plan, driver.cuStreamWaitValue32_v2(up, (CUdeviceptr)(uintptr_t)&check->words->checked,
                                               check->generation, CU_STREAM_WAIT_VALUE_GEQ));
  PLAN_TRY(plan, driver.cuMemcpyHtoDAsync_v2(slot->block, slot->words, sizeof *slot->words, up));
  PLAN_TRY(plan, kernels_keep(kernels, type, run_address(plan, run, LIST_PARAMETER),
                              verification->lists[LIST_PARAMETER], kept, slot->block,
                              check->generation, up));
  if (check->gradient_made && kept)
    PLAN_TRY(plan, kernels_keep(kernels, type, run_address(plan, run, LIST_GRADIENT),
                                verification->lists[LIST_GRADIENT], kept, slot->block,
                                check->generation, up));
  PLAN_TRY(plan, driver.cuEventRecord(slot->done, up));
  slot->used = true;
  report_add(verify_link_bytes, bytes * (check->gradient_made ? 3 : 1));
  return CUDA_SUCCESS;
}

/* ---- the rest of verify.h ---- */

static void say_nothing_verified(struct function *function, void *unused) {
  (void)unused;
  const struct report_function *row = function->row;
  if (!row || !atomic_load_explicit(&row->launches, memory_order_relaxed) ||
      atomic_load_explicit(&row->launches_cpu, memory_order_relaxed))
    return;
  report_reason("OFFLOAD_VERIFY: nothing of %s was there to verify: every step was the program's "
                "own kernel's (the last by %s)",
                function->family.name, row->mode);
}

void verify_finish(void) {
  if (process_config()->verify)
    recognise_each(say_nothing_verified, NULL);
}
