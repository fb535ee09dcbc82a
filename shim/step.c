/* Decides for each recognised launch how it is carried out (step.h), and orders the rooms:
   recognise, state, ring, calibrate, then step_stream or step_cpu. The enqueue lock is held from
   the first look at where pieces lie to the last enqueue, so that no piece moves in between. Longer than
   most rooms: it is one decision, and its parts are of use to nobody else. */
#define _GNU_SOURCE
#include "step.h"
#include "cancel.h"
#include "choose.h"
#include "companion.h"
#include "drive.h"
#include "early.h"
#include "facts.h"
#include "foreign.h"
#include "frames.h"
#include "lock.h"
#include "mark.h"
#include "move.h"
#include "pace.h"
#include "plan.h"
#include "process.h"
#include "quiet.h"
#include "range.h"
#include "rank.h"
#include "record.h"
#include "state.h"
#include "switch.h"
#include "timeline.h"
#include "verify.h"
#include <stdio.h>
#include <string.h>

static struct plan the_plan;                     /* large; under the enqueue lock */
static struct state_tensor tensors[BLOCKS_MOST]; /* of the launch at hand */
static size_t tensor_count;
static _Atomic bool adam_seen;

/* Bytes of state that a step names: of the present one so far, and of the last one, which is whole.
   Under the enqueue lock. */
static struct {
  uint64_t step;
  size_t present, last;
} named;

/* ---- what a row of the report says ---- */

/* A worse mode than the one asked for is told once, with why; not on a GPU that is lost, of which all was said. */
static void say_mode(struct plan *plan, const char *mode, const char *why) {
  struct report_function *row = plan->function->row;
  bool news = true;
  /* A step of several launches: one with nothing on the host takes no other's reason away. */
  if (row && !plan->ours && strcmp(row->mode, mode) == 0)
    return;
  if (row) {
    (void)report_set(row->mode, sizeof row->mode, "%s", mode);
    news = report_set(row->why, sizeof row->why, "%s", why);
  }
  if (*why && process_active() && news)
    report_notice("%s is stepped by %s: %s", plan->function->family.name, mode, why);
}

/* A step may have several launches, and a launch several ways. */
static void note_ways(struct report_function *row, unsigned ways) {
  const uint64_t step = state_step();
  if (!row)
    return;
  unsigned before = atomic_load_explicit(&row->ways, memory_order_relaxed);
  if (atomic_load_explicit(&row->ways_step, memory_order_relaxed) != step) {
    atomic_store_explicit(&row->ways_step, step, memory_order_relaxed);
    atomic_store_explicit(&row->ways_before, before, memory_order_relaxed);
    before = 0;
  }
  atomic_store_explicit(&row->ways, before | ways, memory_order_relaxed);
}

/* ---- the program's kernel ---- */

CUresult plan_launch(const struct plan *plan, const unsigned char *metadata, unsigned blocks,
                     const float *found_inf) {
  struct arguments arguments = plan->arguments;
  arguments.metadata = metadata;
  arguments.found_inf = found_inf;
  return arguments_launch(plan->function, &arguments, blocks, plan->launch->shared_bytes,
                          plan->stream);
}

CUresult plan_begin(struct plan *plan, bool streamed) {
  struct ring *ring = plan->ring;
  plan->begin = ring->begins[ring->next_begin];
  ring->next_begin = (ring->next_begin + 1) % AHEAD_LAUNCHES;
  ahead_launch(plan, streamed, plan->begin);
  plan->timing = timeline_begin(ring->context, plan->stream);
  CUresult result = driver.cuEventRecord(plan->begin, plan->stream);
  if (result == CUDA_SUCCESS && plan->rest) {
    result = plan_launch(plan, plan->rest_metadata, plan->rest, plan->arguments.found_inf);
    report_add(elements_direct, plan->rest_elements);
  }
  if (result != CUDA_SUCCESS)
    ahead_close("a launch that failed");
  return result;
}

CUresult plan_broken(struct plan *plan, CUresult result, const char *what) {
  char reason[256];
  const char *function = strncmp(what, "driver.", 7) == 0 ? what + 7 : what;
  snprintf(reason, sizeof reason, "an optimizer step broke off in the middle (error %d from %.*s)",
           (int)result, (int)strcspn(function, "("), function);
  process_stop(reason);
  if (plan->ring->worker)
    worker_fail(plan->ring->worker);
  return result;
}

/* State that the launch steps past staging: nothing that was copied up before is of use. */
static void step_past_staging(struct ring *ring) {
  for (size_t i = 0; ring && i < tensor_count; i++)
    for (unsigned k = 0; k < TENSOR_STATES; k++)
      if (tensors[i].states[k])
        early_stepped(ring, tensors[i].states[k], tensors[i].bytes);
}

/* What the launch writes beside its own state, parameters and divided gradients, may be other launches' state: of an
   optimizer that trains another one's moments, say. */
static void note_written(const struct plan *plan, struct ring *ring) {
  const struct family *family = &plan->function->family;
  const enum tensor_list last = plan->arguments.grad_scale ? LIST_GRADIENT : LIST_PARAMETER;
  const unsigned char *metadata = plan->arguments.metadata;
  unsigned before = family->tensors;
  for (unsigned block = 0; ring && block < plan->launch->grid[0]; block++) {
    const unsigned tensor = metadata_block_tensor(family, metadata, block);
    if (tensor == before)
      continue;
    before = tensor;
    const size_t elements = (size_t)metadata_elements(family, metadata, tensor);
    for (unsigned list = LIST_PARAMETER; list <= (unsigned)last; list++)
      early_stepped(ring, metadata_address(family, metadata, (enum tensor_list)list, tensor),
                    elements * family->parameter_bytes);
  }
}

/* The launch as it came, over pages wherever they are. */
static CUresult launch_direct(struct plan *plan, const char *why) {
  const struct launch *launch = plan->launch;
  struct report_function *row = plan->function->row;
  const CUresult brought = drive_fault_launch(plan);
  if (brought != CUDA_SUCCESS)
    return brought;
  step_past_staging(plan->ring);
  note_written(plan, plan->ring);
  say_mode(plan, "direct", why);
  note_ways(row, REPORT_WAY_DIRECT);
  if (row)
    atomic_fetch_add_explicit(&row->launches_direct, 1, memory_order_relaxed);
  report_add(elements_direct, plan->ours_elements + plan->rest_elements);
  const enum cost_way way = plan->ours ? COST_DIRECT : COST_STAY;
  struct timing *timing = timeline_begin(plan->context, plan->stream);
  const CUresult result = driver.cuLaunchKernel(
      launch->function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
      launch->block[1], launch->block[2], launch->shared_bytes, plan->stream,
      launch->kernel_parameters, launch->extra);
  timeline_end(timing, plan->stream, TRACE_STEP, "direct", 0,
               plan->ours_elements + plan->rest_elements);
  ahead_direct(plan);
  choose_took(plan, way);
  return result;
}

/* ---- what a launch names ---- */

/* Its tensors, for state.c. Consecutive blocks of one tensor are one entry: a tensor may be cut by
   a launch, and goes on in the next. */
static void list_tensors(const struct plan *plan) {
  const struct family *family = &plan->function->family;
  const unsigned char *metadata = plan->arguments.metadata;
  unsigned before = family->tensors;
  tensor_count = 0;
  for (unsigned block = 0; block < plan->launch->grid[0]; block++) {
    const unsigned tensor = metadata_block_tensor(family, metadata, block);
    if (tensor == before)
      continue;
    before = tensor;
    const size_t chunk = (size_t)metadata_block_chunk(family, metadata, block);
    struct state_tensor *entry = &tensors[tensor_count++];
    *entry = (struct state_tensor){
        .bytes = (size_t)metadata_elements(family, metadata, tensor) * family->state_bytes,
        .first = chunk * CHUNK_ELEMENTS * family->state_bytes,
    };
    for (unsigned list = LIST_STATE; list < family->lists; list++)
      entry->states[list - LIST_STATE] =
          metadata_address(family, metadata, (enum tensor_list)list, tensor);
  }
}

/* Whether all state that a block steps is off the device, and any of it on drives. */
static bool block_off_device(const struct family *family, const unsigned char *metadata,
                             unsigned block, bool *drive) {
  const unsigned tensor = metadata_block_tensor(family, metadata, block);
  const size_t offset =
      (size_t)metadata_block_chunk(family, metadata, block) * CHUNK_ELEMENTS * family->state_bytes;
  const size_t bytes = metadata_chunk_elements(family, metadata, block) * family->state_bytes;
  *drive = false;
  for (unsigned list = LIST_STATE; list < family->lists; list++) {
    bool any;
    if (!range_off_device(metadata_address(family, metadata, (enum tensor_list)list, tensor) +
                              offset,
                          bytes, &any))
      return false;
    *drive |= any;
  }
  return true;
}

/* Parts the launch: blocks whose state is wholly off the device are ours, if `any` may be; those with some of it on drives are named
   behind the others. */
static void part_blocks(struct plan *plan, bool any) {
  const struct family *family = &plan->function->family;
  const unsigned char *metadata = plan->arguments.metadata;
  static unsigned short on_drives[BLOCKS_MOST]; /* under the enqueue lock */
  unsigned drives = 0;
  plan->ours = plan->rest = 0;
  plan->ours_elements = plan->rest_elements = 0;
  plan->drive_elements_most = UINT64_MAX;
  if (any) {
    memcpy(plan->ours_metadata, metadata, family->metadata_bytes);
    memcpy(plan->rest_metadata, metadata, family->metadata_bytes);
  }
  for (unsigned block = 0; block < plan->launch->grid[0]; block++) {
    const unsigned tensor = metadata_block_tensor(family, metadata, block);
    const unsigned chunk = (unsigned)metadata_block_chunk(family, metadata, block);
    const uint64_t elements = metadata_chunk_elements(family, metadata, block);
    bool drive;
    if (any && block_off_device(family, metadata, block, &drive)) {
      if (drive) {
        on_drives[drives++] = (unsigned short)block;
        continue;
      }
      metadata_set_block(family, plan->ours_metadata, plan->ours++, tensor, chunk);
      plan->ours_elements += elements;
    } else {
      if (any)
        metadata_set_block(family, plan->rest_metadata, plan->rest, tensor, chunk);
      plan->rest++;
      plan->rest_elements += elements;
    }
  }
  plan->resident = plan->ours;
  plan->resident_elements = plan->ours_elements;
  for (unsigned i = 0; i < drives; i++) {
    const unsigned block = on_drives[i];
    metadata_set_block(family, plan->ours_metadata, plan->ours++,
                       metadata_block_tensor(family, metadata, block),
                       (unsigned)metadata_block_chunk(family, metadata, block));
    plan->ours_elements += metadata_chunk_elements(family, metadata, block);
  }
}

/* How large staging is worth being. In the very first step nobody knows yet. */
static size_t staging_useful(void) {
  if (named.last == 0)
    return SIZE_MAX;
  return named.last > named.present ? named.last : named.present;
}

static size_t named_bytes(const struct plan *plan) {
  const struct family *family = &plan->function->family;
  return (size_t)(plan->ours_elements + plan->rest_elements) * family_states(family) *
         family->state_bytes;
}

static void count_named(const struct plan *plan) {
  if (named.step != state_step()) {
    named.last = named.present, named.present = 0;
    record_step(named.last);
    facts_step(named.last);
  }
  named.step = state_step();
  named.present += named_bytes(plan);
}

/* Where the launch lies in OFFLOAD_TRACE. */
static void note_launch(void) {
  const struct pace *pace = trace_on() ? pace_current() : NULL;
  if (pace)
    timeline_launch(pace->context, pace->step);
}

/* Bytes of state of a chunk, with what a slot of staging needs to hold it. */
static size_t chunk_bytes(const struct family *family) {
  const unsigned states = family_states(family);
  return staging_bytes((size_t)states * CHUNK_ELEMENTS * family->state_bytes, states);
}

/* What was written last is worked on first: more of it is still in frames. */
static void turn_drive_runs(struct plan *plan) {
  const struct pace *pace = pace_current();
  if (!pace || pace->step % 2 == 0)
    return;
  for (unsigned i = plan->resident_runs, j = plan->run_count; i + 1 < j; i++) {
    const struct run_of_blocks run = plan->runs[--j];
    plan->runs[j] = plan->runs[i];
    plan->runs[i] = run;
  }
}

/* Cuts our blocks into runs of at most so many elements. */
static void cut_runs(struct plan *plan, uint64_t most) {
  const struct family *family = &plan->function->family;
  plan->run_count = plan->resident_runs = 0;
  for (unsigned block = 0; block < plan->ours; block++) {
    const unsigned tensor = metadata_block_tensor(family, plan->ours_metadata, block);
    const unsigned chunk = (unsigned)metadata_block_chunk(family, plan->ours_metadata, block);
    const uint64_t elements = metadata_chunk_elements(family, plan->ours_metadata, block);
    struct run_of_blocks *run = plan->run_count ? &plan->runs[plan->run_count - 1] : NULL;
    const bool drive = block >= plan->resident;
    if (run && run->tensor == tensor && run->chunk + run->blocks == chunk && run->drive == drive &&
        run->elements + elements <= most && (!drive || drive_run_fits(plan, run, elements))) {
      run->blocks++;
      run->elements += elements;
    } else {
      plan->runs[plan->run_count++] = (struct run_of_blocks){
          .tensor = tensor, .chunk = chunk, .blocks = 1, .elements = elements, .drive = drive};
    }
    if (!drive)
      plan->resident_runs = plan->run_count;
  }
  turn_drive_runs(plan);
}

/* ---- the decision ---- */

/* Whether the CPU can carry the launch out; everything that this needs is made, and its runs are cut. Else
   why not. */
static bool cpu_possible(struct plan *plan, const char **why) {
  const struct arguments *arguments = &plan->arguments;
  const enum adam_type type = plan->function->family.type;
  if (type != ADAM_TYPE_DOUBLE && arguments->weight_decay != 0 &&
      (float)arguments->weight_decay == 0) {
    *why = "the weight decay is nothing as a float";
    return false;
  }
  if (atomic_load_explicit(&plan->function->verified.differed, memory_order_relaxed)) {
    *why = "OFFLOAD_VERIFY found a difference: see the reasons";
    return false;
  }
  const struct adam_api *api = companion_loaded(why);
  if (!api)
    return false;
  if (!(plan->ring->staged && plan->ring->prepared) && process_capture_open()) {
    *why = "the CPU step is set up when no capture is open";
    return false;
  }
  const struct family *family = &plan->function->family;
  if (!ring_stage(plan->ring, process_config(), staging_useful(),
                  ring_slot_bytes(CHUNK_ELEMENTS, family_states(family), family->state_bytes)) ||
      !ring_prepare(plan->ring, process_config(), api)) {
    *why = plan->ring->why;
    return false;
  }
  const uint64_t piece = ring_piece_elements(plan->ring, adam_type_opmath(type));
  if (!piece) {
    *why = plan->ring->small;
    return false;
  }
  cut_runs(plan, piece);
  plan->branch = calibrate(plan->ring, api, plan->function, arguments, why);
  if (!plan->branch)
    return false;
  *why = plan->branch->why;
  return plan->branch->usable;
}

/* Side streams, or why they are not to be had. */
static bool opened(struct plan *plan, const char **why) {
  if (!plan->ring)
    plan->ring = ring_of_context();
  if (!plan->ring) {
    *why = "there is no current context";
    return false;
  }
  if (!plan->ring->opened && process_capture_open()) {
    *why = "staging is set up when no capture is open";
    return false;
  }
  *why = plan->ring->why;
  return ring_open(plan->ring);
}

/* Staging for the launch's state, or why it is not to be had; its runs are cut. */
static bool staged(struct plan *plan, const char **why) {
  static char reason[256];
  struct staging *staging = &plan->ring->staging;
  const struct family *family = &plan->function->family;
  const size_t least = chunk_bytes(family);
  *why = reason;
  if (staging->slot_bytes < least) {
    if (process_capture_open()) {
      *why = "staging is set up when no capture is open";
      return false;
    }
    early_forget(plan->ring);
    if (!staging_make(staging, process_config(), staging_useful(), least, reason, sizeof reason))
      return false;
  }
  const size_t chunks = staging->slot_bytes / least;
  plan->drive_elements_most = chunks * CHUNK_ELEMENTS;
  cut_runs(plan, chunks * CHUNK_ELEMENTS);
  return true;
}

static const char costs_least[] = "it is foretold to cost least: see the report's policy";

/* From then on that branch of the kernel is streamed. */
static const char proof_refused[] =
    "the running proof refused a launch: on its probe the kernel did not show the arithmetic that "
    "calibration found";

static CUresult carry_out(struct plan *plan) {
  struct report_function *row = plan->function->row;
  const enum config_step wanted = process_config()->step;
  const char *why = "";
  list_tensors(plan);
  CUresult result = state_launch(tensors, tensor_count, plan->stream);
  if (result != CUDA_SUCCESS)
    return result;
  if ((result = drive_fault_mixed(plan)) != CUDA_SUCCESS)
    return result;
  part_blocks(plan, range_any_host());
  count_named(plan);
  rank_launch(tensors, tensor_count, named_bytes(plan),
              (size_t)(plan->ours_elements + plan->rest_elements) *
                  plan->function->family.parameter_bytes);
  note_launch();
  if (row) {
    atomic_fetch_add_explicit(&row->launches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&row->blocks, plan->launch->grid[0], memory_order_relaxed);
    atomic_fetch_add_explicit(&row->elements, plan->ours_elements + plan->rest_elements,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&row->elements_host, plan->ours_elements, memory_order_relaxed);
  }
  const bool drives = plan->resident < plan->ours;
  plan->timing = NULL;
  plan->context = NULL;
  plan->ring = driver.cuCtxGetCurrent(&plan->context) == CUDA_SUCCESS && plan->context
                   ? ring_find(plan->context)
                   : NULL;
  const struct choice_ways ways = choose_ways(plan);
  if (switch_off() && !drives)
    return launch_direct(
        plan, range_any_host() ? "switched off, and the device has no room for its state" : "");
  if (!plan->ours || wanted == STEP_DIRECT)
    return launch_direct(plan, "");
  if (ways.first == COST_DIRECT && !drives)
    return launch_direct(plan, costs_least);
  if (!opened(plan, &why))
    return launch_direct(plan, why);
  if (ring_taken(plan->ring, plan->stream))
    return launch_direct(plan, "steps of several streams at once: the later one is left to the "
                               "program's kernel");
  const char *unstaged = "";
  if (drives && (!drive_ready(plan, &unstaged) || !staged(plan, &unstaged)))
    return launch_direct(plan, unstaged);
  if (ways.first != COST_CPU)
    why = wanted == STEP_AUTO ? costs_least : "";
  bool cpu = ways.first == COST_CPU && cpu_possible(plan, &why);
  if (cpu && atomic_load_explicit(&plan->branch->refused, memory_order_relaxed)) {
    why = proof_refused;
    cpu = false;
  }
  cpu = cpu && step_cpu_ready(plan, &why);
  if (!cpu && ways.first == COST_CPU && ways.second == COST_DIRECT && !drives)
    return launch_direct(plan, why);
  if (!cpu && !staged(plan, &unstaged))
    return launch_direct(plan, unstaged);
  if (drives && !drive_begin(plan, &unstaged))
    return launch_direct(plan, unstaged);
  if (cpu || drives)
    step_past_staging(plan->ring);
  note_written(plan, plan->ring);
  say_mode(plan, cpu ? "cpu" : "stream", cpu ? "" : why);
  note_ways(row, (cpu ? REPORT_WAY_CPU : REPORT_WAY_STREAM) | (plan->rest ? REPORT_WAY_DIRECT : 0));
  if (row)
    atomic_fetch_add_explicit(&row->blocks_taken, plan->ours, memory_order_relaxed);
  const bool marked = mark_begin("offload step %llu (%s)", (unsigned long long)state_step(),
                                 cpu ? "cpu" : "stream");
  result = cpu ? step_cpu(plan) : step_stream(plan);
  mark_end(marked);
  timeline_end(plan->timing, plan->stream, TRACE_STEP, cpu ? "cpu" : "stream", 0,
               plan->ours_elements + plan->rest_elements);
  drive_leave(plan);
  choose_took(plan, cpu ? COST_CPU : COST_STREAM);
  return result;
}

/* A launch into a capture goes to the graph as it is, one beside a capture to the driver: what they
   named, in the function's row and in all. */
static void note_captured(struct function *function, const struct launch *launch,
                          const unsigned char *metadata) {
  const struct family *family = &function->family;
  const uintptr_t first =
      metadata_address(family, metadata, LIST_STATE, metadata_block_tensor(family, metadata, 0)) +
      (uintptr_t)metadata_block_chunk(family, metadata, 0) * CHUNK_ELEMENTS * family->state_bytes;
  uint64_t elements = 0;
  for (unsigned block = 0; block < launch->grid[0]; block++)
    elements += metadata_chunk_elements(family, metadata, block);
  if (atomic_load_explicit(&function->captured_first, memory_order_relaxed) == first ||
      !atomic_load_explicit(&function->captured_bytes, memory_order_relaxed)) {
    atomic_store_explicit(&function->captured_first, first, memory_order_relaxed);
    atomic_store_explicit(&function->captured_bytes, 0, memory_order_relaxed);
  }
  const uint64_t bytes = elements * family_states(family) * family->state_bytes;
  const uint64_t all =
      atomic_fetch_add_explicit(&function->captured_bytes, bytes, memory_order_relaxed) + bytes;
  report_add(captured_state_bytes, bytes);
  char size[REPORT_SIZE_BYTES];
  if (!function->row)
    return;
  report_set(function->row->why, sizeof function->row->why,
             "captured in a CUDA graph: %s of state stays on the device: keep "
             "optimizer.step() out of the graph",
             report_size_text(all, size));
}

bool step_launch(const struct launch *launch, CUresult *result) {
  struct function *function = recognise(launch->function);
  if (!function)
    return false;
  if (function->foreign) {
    foreign_launch(function->foreign, launch);
    return false;
  }
  switch_watch();
  const CUstream stream =
      launch->per_thread && !launch->stream ? CU_STREAM_PER_THREAD : launch->stream;
  struct arguments arguments;
  const char *why = NULL;
  if (!launch->plain)
    why = "launches with attributes are left alone";
  else if (arguments_read(&function->family, launch, &arguments, &why))
    why = launch_unsound(&function->family, launch, &arguments);
  if (!why && (process_capture_open() || process_capturing(launch->stream, launch->per_thread))) {
    note_captured(function, launch, arguments.metadata);
    return false;
  }
  if (why) {
    report_reason("a launch of %s did not look as expected: %s", function->family.name, why);
    return false;
  }
  const enum config_step wanted = process_config()->step;
  choose_prepare();
  /* Not under the enqueue lock: loading takes the loader's lock. Before this launch moves anything,
     so that it is there for the first launch that finds state on the host. */
  if (wanted != STEP_STREAM && wanted != STEP_DIRECT && process_config()->mode != MODE_OBSERVE &&
      (state_step() > 0 || range_any_host()) && !companion_loaded(&why)) {
    const int cancel = cancel_hold();
    (void)companion_load(&why);
    cancel_allow(cancel);
  }

  mark_start();

  enqueue_lock();
  if (!process_active()) { /* the process has begun to end, or the GPU was lost, since the hook asked */
    enqueue_unlock();
    return false;
  }
  const CUstreamCaptureMode mode = quiet_begin();
  the_plan.launch = launch;
  the_plan.stream = stream;
  the_plan.function = function;
  the_plan.arguments = arguments;
  *result = switch_asked() ? switch_act(stream) : CUDA_SUCCESS;
  const bool ours = *result != CUDA_SUCCESS || process_active();
  if (*result == CUDA_SUCCESS && ours)
    *result = carry_out(&the_plan);
  quiet_end(mode);
  enqueue_unlock();
  switch_tell();
  return ours;
}

/* ---- the rest of step.h ---- */

void step_forget_functions(void) {
  recognise_forget();
}

/* A new context may have the handle of one that ended: nothing found out in that one is for it. */
static void forget_branches(struct function *function, void *context) {
  for (struct branch *branch = function->branches; branch; branch = branch->next)
    if (branch->context == context)
      branch->context = NULL;
}

/* Until the keeper has let go of the words that go with the context; it fails what would be waited for in vain. */
static void settle_frames(CUcontext context, const struct ring *ring) {
  enum { POLL_NS = 20000000 };
  struct frames *frames = frames_find(context);
  for (uint64_t waited_ns = 0; frames && !frames_idle(frames, POLL_NS); waited_ns += POLL_NS) {
    const CUresult result = ring && ring->down ? driver.cuStreamQuery(ring->down) : CUDA_SUCCESS;
    const bool lost = result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    if (lost || (result == CUDA_SUCCESS && !process_active()) || waited_ns >= move_wait_ns) {
      frames_fail(frames);
      (void)frames_idle(frames, move_wait_ns);
      return;
    }
  }
}

void step_context_may_end(CUcontext context) {
  const struct ring *ring = ring_find(context);
  if (ring)
    ring_settle(ring);
  settle_frames(context, ring);
}

void step_forget_context(CUcontext context, bool gone) {
  drive_forget_context(context, gone);
  if (!gone)
    settle_frames(context, ring_find(context));
  ring_forget(context, gone);
  choose_forget_context(context, gone);
  frames_forget_context(context, gone);
  recognise_each(forget_branches, context);
  timeline_forget(context, gone);
}

bool step_kernel_seen(const char *name) {
  const bool known = name && recognise_name(name);
  if (known && !atomic_load_explicit(&adam_seen, memory_order_relaxed))
    atomic_store_explicit(&adam_seen, true, memory_order_relaxed);
  return known;
}

bool step_adam_seen(void) {
  return atomic_load_explicit(&adam_seen, memory_order_relaxed);
}

size_t step_give_back(void) {
  CUcontext context = NULL;
  size_t bytes = 0;
  if (process_capture_open() || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
    return 0;
  const CUstreamCaptureMode mode = quiet_begin();
  enqueue_lock();
  struct ring *ring = process_active() ? ring_find(context) : NULL;
  if (ring)
    bytes = ring_give_back(ring);
  enqueue_unlock();
  quiet_end(mode);
  if (bytes)
    report_add(staging_given_back, 1);
  return bytes;
}

static void finish_ring(struct ring *ring, void *unused) {
  (void)unused;
  ring_drain(ring, "the process");
}

static void leave_ring(struct ring *ring, void *whole) {
  ring_leave(ring, *(const bool *)whole);
}

/* A refusal after which nothing was launched any more is still missing from its row. */
static void note_refusal(struct function *function, void *unused) {
  (void)unused;
  for (struct branch *branch = function->branches; branch; branch = branch->next)
    if (atomic_load_explicit(&branch->refused, memory_order_relaxed) && function->row)
      report_set(function->row->why, sizeof function->row->why, "%s", proof_refused);
}

void step_finish(bool handler) {
  /* Another thread may be in the middle of a step: what it has handed over needs the rest of it. So does this one's, which a handler has
     interrupted for good. */
  bool locked = enqueue_lock_within(1);
  if (handler)
    ring_each(leave_ring, &locked);
  else
    ring_each(finish_ring, NULL);
  if (locked) {
    timeline_finish(!handler);
    choose_finish();
    enqueue_unlock();
  }
  recognise_each(note_refusal, NULL);
  verify_finish();
}
