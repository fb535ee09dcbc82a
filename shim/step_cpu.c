/* The `cpu` step: gradients down, moments on the CPU, updates up. See STEP.md for the pipeline and
   its proof.

     program stream  event | ............ | wait for the last up | the program's kernel (found_inf = verdict)
     down stream     wait event (or an earlier launch's: ahead.h) | proof: inputs, kernel on probe, down, ready | (prologue) gradient down, ready | ...
     worker          proves, sets the verdict | steps m and v, writes the update, done | ...
     up stream       wait down, wait done | update up, apply | ... | verdict up

   Every job goes to the worker before the first driver call of its piece, and every wait for a
   value is enqueued behind everything that leads to it. */
#include "companion.h"
#include "plan.h"
#include "timeline.h"
#include "verify.h"
#include <string.h>

/* What one launch needs while it is enqueued. */
struct cpu_step {
  struct plan *plan;
  struct adam_hyper hyper;
  struct ring_proof *proof;
  bool up_waits;                    /* `up` has yet to wait for the launch's place */
  unsigned tensors;                 /* that have blocks of ours */
  unsigned tensor_of[TENSORS_MOST]; /* index in the launch's list */
  unsigned index_of[TENSORS_MOST];  /* and back */
};

static bool same_hyper(const struct adam_hyper *a, const struct adam_hyper *b) {
  return a->lr == b->lr && a->beta1 == b->beta1 && a->beta2 == b->beta2 &&
         a->weight_decay == b->weight_decay && a->eps == b->eps && a->maximize == b->maximize;
}

static struct adam_hyper hyper_of(const struct arguments *arguments) {
  return (struct adam_hyper){.lr = arguments->lr,
                             .beta1 = arguments->beta1,
                             .beta2 = arguments->beta2,
                             .weight_decay = arguments->weight_decay,
                             .eps = arguments->eps,
                             .maximize = arguments->maximize};
}

/* Inputs of the probe for these scalars. Learning rates that change at every step make new ones
   each time; a set is written anew only when the worker is done with the launch that used it last.
 */
static bool take_inputs(struct plan *plan) {
  struct ring *ring = plan->ring;
  const struct adam_candidate *candidate = &plan->branch->candidate;
  struct adam_hyper key = hyper_of(&plan->arguments);
  const bool lr_known = plan->arguments.lr_pointer == NULL;
  if (!lr_known)
    key.lr = 0;
  plan->fresh_inputs = false;
  for (unsigned i = 0; i < RING_INPUTS; i++) {
    struct ring_inputs *inputs = &ring->inputs[i];
    if (inputs->valid && inputs->lr_known == lr_known && same_hyper(&inputs->hyper, &key) &&
        candidates_equal(&inputs->candidate, candidate)) {
      plan->inputs = inputs;
      return true;
    }
  }
  /* In turn: the next is the one made longest ago, but a later one may be done with earlier. */
  struct ring_inputs *inputs = NULL;
  for (unsigned i = 0; i < RING_INPUTS && !inputs; i++) {
    struct ring_inputs *next = &ring->inputs[(ring->next_inputs + i) % RING_INPUTS];
    if (!next->used || worker_launch_done(ring->worker, next->last_launch))
      inputs = next;
  }
  if (!inputs)
    return false;
  ring->next_inputs = (unsigned)(inputs - ring->inputs + 1) % RING_INPUTS;
  const char *why;
  probe_make(companion_loaded(&why), candidate, &key, lr_known, inputs->pinned);
  inputs->valid = false; /* until they are on their way to the device */
  inputs->candidate = *candidate;
  inputs->hyper = key;
  inputs->lr_known = lr_known;
  plan->inputs = inputs;
  plan->fresh_inputs = true;
  return true;
}

bool step_cpu_ready(struct plan *plan, const char **why) {
  *why = "more steps are in flight than the CPU step keeps account of: this one is streamed";
  return worker_has_room(plan->ring->worker, plan->run_count + 2) && take_inputs(plan) &&
         verify_ready(plan, why);
}

/* The program's own kernel on probes that lie on the device one behind the other. */
static CUresult launch_probes(struct cpu_step *step, struct arguments arguments, CUdeviceptr first,
                              size_t probe_bytes, unsigned elements, const uintptr_t *steps) {
  struct plan *plan = step->plan;
  const struct family *family = &plan->function->family;
  memset(plan->work_metadata, 0, family->metadata_bytes);
  for (unsigned t = 0; t < step->tensors; t++) {
    uintptr_t lists[LISTS_MOST], at = first + t * probe_bytes;
    for (unsigned i = 0; i < family->lists; i++) {
      lists[i] = at;
      at += (uintptr_t)elements * element_bytes(family, (enum tensor_list)i);
    }
    metadata_set_tensor(family, plan->work_metadata, t, lists, elements, steps[t]);
    metadata_set_block(family, plan->work_metadata, t, t, 0);
  }
  arguments.metadata = plan->work_metadata;
  return arguments_launch(plan->function, &arguments, step->tensors, plan->launch->shared_bytes,
                          plan->ring->down);
}

/* On the fine probes, which have scalars of their own (fine_hyper) but the launch's step counters. */
static CUresult launch_fine(struct cpu_step *step, CUdeviceptr first, const uintptr_t *steps) {
  struct arguments arguments = step->plan->arguments;
  const struct adam_hyper hyper =
      fine_hyper(&step->plan->branch->candidate, &step->hyper, !arguments.lr_pointer);
  arguments.lr_pointer = arguments.grad_scale = NULL;
  arguments.lr = hyper.lr;
  arguments.beta1 = hyper.beta1;
  arguments.beta2 = hyper.beta2;
  arguments.weight_decay = hyper.weight_decay;
  arguments.eps = hyper.eps;
  arguments.maximize = hyper.maximize;
  return launch_probes(step, arguments, first, FINE_BYTES, FINE_ELEMENTS, steps);
}

static void hand_proof(struct cpu_step *step) {
  const struct plan *plan = step->plan;
  const struct ring *ring = plan->ring;
  const struct ring_proof *proof = step->proof;
  const struct arguments *arguments = &plan->arguments;
  const struct proof_job job = {
      .ready = proof->ready,
      .generation = proof->generation,
      .inputs = plan->inputs->pinned,
      .results = proof->results,
      .verdict = proof->verdict,
      .tensors = step->tensors,
      .lr_gathered = arguments->lr_pointer != NULL,
      .scale_gathered = arguments->grad_scale != NULL,
      .found_inf_gathered = arguments->found_inf != NULL,
      .candidate = plan->branch->candidate,
      .hyper = step->hyper,
      .elements = plan->resident_elements,
      .step = timeline_step(ring->context),
      .refused = &plan->branch->refused,
      .row = plan->function->row,
      .checked = verify_function(plan),
  };
  worker_prove(ring->worker, &job);
  plan->inputs->used = true;
  plan->inputs->last_launch = worker_launches_begun(ring->worker);
}

/* The proof: the program's own kernel on the probe with the launch's real scalars and step
 * counters, and all of it down. */
static CUresult enqueue_proof(struct cpu_step *step) {
  struct plan *plan = step->plan;
  struct ring *ring = plan->ring;
  struct ring_proof *proof = step->proof;
  const struct arguments *arguments = &plan->arguments;
  const struct kernel_shape shape = family_shape(&plan->function->family);
  const size_t probe_bytes = lists_bytes(&shape, PROBE_ELEMENTS);
  uintptr_t steps[TENSORS_MOST];
  for (unsigned t = 0; t < step->tensors; t++)
    steps[t] = metadata_step(&plan->function->family, arguments->metadata, step->tensor_of[t]);

  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down,
                                          plan->ahead.scalars ? plan->ahead.base : plan->begin, 0));
  /* The launch that had this proof before must have read its verdict. */
  if (proof->used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down, proof->read, 0));
  if (plan->fresh_inputs)
    PLAN_TRY(plan, driver.cuMemcpyHtoDAsync_v2(plan->inputs->device, plan->inputs->pinned,
                                               probe_bytes, ring->down));
  plan->inputs->valid = true;
  const struct probe_layout layout = {
      .candidate = plan->branch->candidate,
      .steps = steps,
      .tensors = step->tensors,
      .lr_pointer = arguments->lr_pointer,
      .grad_scale = arguments->grad_scale,
      .found_inf = arguments->found_inf,
      .hyper = step->hyper,
      .inputs = plan->inputs->device,
      .out = ring->device_results,
  };
  PLAN_TRY(plan, kernels_lay_out(&ring->kernels, &layout, ring->down));
  const CUdeviceptr probes = ring->device_results + offsetof(struct proof_results, probes);
  PLAN_TRY(plan, launch_probes(step, *arguments, probes, probe_bytes, PROBE_ELEMENTS, steps));
  if (fine_bytes(&shape))
    PLAN_TRY(plan, launch_fine(step, probes + step->tensors * probe_bytes, steps));
  const size_t bytes = proof_bytes(&shape, step->tensors);
  struct timing *timing = timeline_begin(ring->context, ring->down);
  PLAN_TRY(plan,
           driver.cuMemcpyDtoHAsync_v2(proof->results, ring->device_results, bytes, ring->down));
  timeline_end(timing, ring->down, TRACE_DOWN, "proof", bytes, 0);
  PLAN_TRY(plan, driver.cuStreamWriteValue32_v2(ring->down, (CUdeviceptr)(uintptr_t)proof->ready,
                                                proof->generation, 0));
  report_add(link_bytes_down, bytes);
  return CUDA_SUCCESS;
}

/* A run on its way through a slot. */
struct piece {
  const struct run_of_blocks *run;
  struct ring_slot *slot;
  uint32_t generation;
  const struct verification *verification; /* NULL: it is not verified */
};

static struct kernel_run on_device(const struct plan *plan, const struct run_of_blocks *run) {
  return (struct kernel_run){
      .candidate = plan->branch->candidate,
      .p = run_address(plan, run, LIST_PARAMETER),
      .g = run_address(plan, run, LIST_GRADIENT),
      .grad_scale = plan->arguments.grad_scale,
      .elements = run->elements,
  };
}

/* To the worker, then the gradient down. */
static CUresult enqueue_down(struct cpu_step *step, unsigned i, struct piece *piece) {
  struct plan *plan = step->plan;
  struct paged_state *paged = plan->runs[i].paged;
  struct ring *ring = plan->ring;
  const struct run_of_blocks *run = &plan->runs[i];
  struct ring_slot *slot = ring_next(ring);
  const struct adam_candidate *candidate = &plan->branch->candidate;
  const enum adam_type opmath = adam_type_opmath(candidate->type);
  const bool prologue = kernels_need_prologue(candidate, plan->arguments.grad_scale);
  const enum adam_type gradient_type = prologue ? opmath : candidate->type;
  const size_t bytes = run->elements * adam_type_bytes(gradient_type);
  const struct kernel_run gradient = on_device(plan, run);
  CUdeviceptr g = gradient.g;
  const uint32_t generation = ++slot->generation;
  *piece = (struct piece){.run = run, .slot = slot, .generation = generation};
  if (run->verified)
    piece->verification = verify_begin(plan, run);

  const struct piece_job job = {
      .words = slot->words,
      .generation = generation,
      .tensor = step->index_of[run->tensor],
      .last = i + 1 == plan->run_count && !run->drive && plan->resident == plan->ours,
      .negate = step->hyper.maximize && !prologue,
      .gradient_type = gradient_type,
      .gradient = slot->gradient,
      .exp_avg = (void *)run_address(plan, run, LIST_EXP_AVG),
      .exp_avg_sq = (void *)run_address(plan, run, LIST_EXP_AVG_SQ),
      .max_exp_avg_sq =
          candidate->amsgrad ? (void *)run_address(plan, run, LIST_MAX_EXP_AVG_SQ) : NULL,
      .update = slot->update,
      .elements = run->elements,
      .check =
          piece->verification ? piece->verification->check : (struct piece_check){.words = NULL},
      .paged = paged,
  };
  plan->runs[i].paged = NULL;
  worker_step(ring->worker, &job);

  /* Not before the slot's last use has left `up`: then the worker may write its words, too. */
  if (slot->up_used)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->down, slot->up, 0));
  if (prologue) {
    PLAN_TRY(plan,
             kernels_prologue(&ring->kernels, &gradient, &step->hyper, slot->second, ring->down));
    g = slot->second;
  }
  struct timing *timing = timeline_begin(ring->context, ring->down);
  PLAN_TRY(plan, driver.cuMemcpyDtoHAsync_v2(slot->gradient, g, bytes, ring->down));
  timeline_end(timing, ring->down, TRACE_DOWN, "gradient", bytes, run->elements);
  PLAN_TRY(plan, driver.cuStreamWriteValue32_v2(
                     ring->down, (CUdeviceptr)(uintptr_t)&slot->words->ready, generation, 0));
  CUresult result = CUDA_SUCCESS;
  if (piece->verification && (result = verify_down(plan, run, piece->verification)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(slot->down, ring->down));
  slot->down_used = true;
  report_add(link_bytes_down, bytes);
  return CUDA_SUCCESS;
}

/* The update up, behind everything that leads to it. */
static CUresult enqueue_up(struct cpu_step *step, const struct piece *piece) {
  struct plan *plan = step->plan;
  struct ring *ring = plan->ring;
  struct ring_slot *slot = piece->slot;
  const enum adam_type opmath = adam_type_opmath(plan->branch->candidate.type);
  const size_t update_bytes = piece->run->elements * adam_type_bytes(opmath);
  struct kernel_run parameter = on_device(plan, piece->run);
  /* The event and the value. The event is the order that CUDA can see (cuda.h asks for it), the
   * value the worker's. */
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, slot->down, 0));
  PLAN_TRY(plan, driver.cuStreamWaitValue32_v2(ring->up, (CUdeviceptr)(uintptr_t)&slot->words->done,
                                               piece->generation, CU_STREAM_WAIT_VALUE_GEQ));
  struct timing *timing = timeline_begin(ring->context, ring->up);
  PLAN_TRY(plan, driver.cuMemcpyHtoDAsync_v2(slot->first, slot->words, RING_HEAD + update_bytes,
                                             ring->up));
  timeline_end(timing, ring->up, TRACE_UP, "update", RING_HEAD + update_bytes,
               piece->run->elements);
  /* What the program sees changes in the launch's place, not before. */
  if (step->up_waits)
    PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, plan->begin, 0));
  step->up_waits = false;
  if (piece->verification) {
    parameter.p = piece->verification->parameter;
    parameter.g = piece->verification->gradient;
  }
  PLAN_TRY(plan,
           kernels_apply(&ring->kernels, &parameter, slot->first, piece->generation, ring->up));
  CUresult result = CUDA_SUCCESS;
  if (piece->verification &&
      (result = verify_up(plan, piece->run, piece->verification)) != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(slot->up, ring->up));
  slot->up_used = true;
  report_add(link_bytes_up, RING_HEAD + update_bytes);
  return CUDA_SUCCESS;
}

/* Proof and pieces. Gradients that are there before the proof's scalars go down in front of it, as many as
   there are slots: nothing that waits for the proof may be in front of it. Not of a launch with pieces to be
   verified, whose copies have fewer slots and are made in the launch's place. */
static CUresult enqueue_pieces(struct cpu_step *step) {
  struct plan *plan = step->plan;
  struct piece first[RING_SLOTS], piece;
  const unsigned most = plan->ring->slot_count;
  unsigned early = 0;
  CUresult result = CUDA_SUCCESS;
  hand_proof(step);
  if (plan->ahead.bulk && !plan->ahead.scalars && !plan->verified) {
    PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->ring->down, plan->ahead.base, 0));
    for (; early < plan->resident_runs && early < most && result == CUDA_SUCCESS; early++)
      result = enqueue_down(step, early, &first[early]);
  }
  if (result == CUDA_SUCCESS)
    result = enqueue_proof(step);
  for (unsigned i = 0; i < early && result == CUDA_SUCCESS; i++)
    result = enqueue_up(step, &first[i]);
  for (unsigned i = early; i < plan->resident_runs && result == CUDA_SUCCESS; i++) {
    result = enqueue_down(step, i, &piece);
    if (result == CUDA_SUCCESS)
      result = enqueue_up(step, &piece);
  }
  return result;
}

/* The drive runs. The program's kernel can't make up for them where the proof fails: their state is mapped nowhere. So the host waits
   for the verdict first; where it isn't for the CPU, or doesn't come in time, they are streamed (*streamed), behind the tail. */
static CUresult enqueue_drive(struct cpu_step *step, bool *streamed) {
  struct plan *plan = step->plan;
  struct worker *worker = plan->ring->worker;
  struct piece piece;
  CUresult result = CUDA_SUCCESS;
  const enum proof_outcome outcome = drive_verdict(plan);
  *streamed = outcome == PROOF_REFUSED || outcome == PROOF_UNKNOWN;
  if (outcome == PROOF_PROVEN) {
    report_add(elements_cpu, plan->ours_elements - plan->resident_elements);
    report_add(elements_drive, plan->ours_elements - plan->resident_elements);
  }
  for (unsigned i = plan->resident_runs;
       i < plan->run_count && !*streamed && result == CUDA_SUCCESS; i++) {
    result = enqueue_down(step, i, &piece);
    if (result == CUDA_SUCCESS)
      result = enqueue_up(step, &piece);
  }
  worker_end_launch(worker);
  return result;
}

/* The drive runs that the CPU was not to step, and what the program's stream must not get past. */
static CUresult stream_drive(struct cpu_step *step) {
  struct plan *plan = step->plan;
  struct ring *ring = plan->ring;
  PLAN_TRY(plan, driver.cuStreamWaitEvent(ring->up, plan->begin, 0));
  CUresult result = drive_stream(plan);
  if (result != CUDA_SUCCESS)
    return result;
  PLAN_TRY(plan, driver.cuEventRecord(ring->down_last, ring->down));
  ring->down_used = true;
  ring_took(ring, plan->stream, ring->down_last);
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, ring->down_last, 0));
  return CUDA_SUCCESS;
}

/* The program's kernel, last: it skips when the verdict says that all is done, and does the step
 * when the proof failed. */
static CUresult enqueue_tail(struct cpu_step *step) {
  struct plan *plan = step->plan;
  struct ring *ring = plan->ring;
  struct ring_proof *proof = step->proof;
  PLAN_TRY(plan, driver.cuMemcpyHtoDAsync_v2(proof->device_verdict, proof->verdict,
                                             sizeof *proof->verdict, ring->up));
  PLAN_TRY(plan, driver.cuEventRecord(ring->up_last, ring->up));
  ring_took(ring, plan->stream, ring->up_last);
  struct timing *timing = timeline_begin(ring->context, plan->stream);
  PLAN_TRY(plan, driver.cuStreamWaitEvent(plan->stream, ring->up_last, 0));
  timeline_end(timing, plan->stream, TRACE_WAIT, "CPU step", 0, plan->ours_elements);
  if (plan->resident)
    PLAN_TRY(plan, plan_launch(plan, plan->ours_metadata, plan->resident,
                               (const float *)(uintptr_t)proof->device_verdict));
  PLAN_TRY(plan, driver.cuEventRecord(proof->read, plan->stream));
  proof->used = true;
  return CUDA_SUCCESS;
}

CUresult step_cpu(struct plan *plan) {
  struct ring *ring = plan->ring;
  struct cpu_step step = {.plan = plan};
  step.hyper = hyper_of(&plan->arguments);
  bool numbered[TENSORS_MOST] = {false};
  for (unsigned i = 0; i < plan->run_count; i++) {
    const unsigned tensor = plan->runs[i].tensor;
    if (numbered[tensor])
      continue;
    numbered[tensor] = true;
    step.index_of[tensor] = step.tensors;
    step.tensor_of[step.tensors++] = tensor;
  }
  step.proof = &ring->proofs[ring->next_proof];
  ring->next_proof = (ring->next_proof + 1) % RING_PROOFS;
  step.proof->generation++;

  CUresult result = plan_begin(plan, false);
  if (result != CUDA_SUCCESS)
    return result;
  step.up_waits = plan->ahead.bulk;
  result = enqueue_pieces(&step);
  bool streamed = false;
  if (plan->resident < plan->ours && result == CUDA_SUCCESS)
    result = enqueue_drive(&step, &streamed);
  if (result == CUDA_SUCCESS)
    result = enqueue_tail(&step);
  return result == CUDA_SUCCESS && streamed ? stream_drive(&step) : result;
}
