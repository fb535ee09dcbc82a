/* Acting on the signal (switch.h). The context that launches waits for its stream as any move does. Other contexts come home in the same
   call where they are idle; one that works may wait for what its thread is about to launch, so it comes at a launch of its own. */
#include "switch.h"
#include "../policy/node.h"
#include "../policy/report.h"
#include "../policy/report_free.h"
#include "../policy/report_switch.h"
#include "ahead.h"
#include "drive.h"
#include "driver.h"
#include "frames.h"
#include "holdings.h"
#include "process.h"
#include "ring.h"
#include "state.h"
#include "step.h"
#include "touch.h"
#include "view.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTEXTS_MOST = 64 };

static _Atomic bool asked;        /* by the handler */
static _Atomic bool off;          /* acted upon */
static struct report_switch told; /* under the enqueue lock */
static _Atomic bool news;         /* for switch_tell */
static uint64_t tried_step;       /* state_step() of the last try; under the enqueue lock */

/* ---- the signal ---- */

static void handle(int signal) {
  (void)signal;
  atomic_store_explicit(&asked, true, memory_order_relaxed);
}

static void watch(int signal) {
  struct sigaction before, ours;
  if (sigaction(signal, NULL, &before)) {
    report_switch_watched(false, "the system has no such signal");
    return;
  }
  if (before.sa_handler != SIG_DFL || before.sa_flags & SA_SIGINFO) {
    report_switch_watched(false, "the program handles this signal itself; name another in "
                                 "OFFLOAD_SIGNAL");
    return;
  }
  memset(&ours, 0, sizeof ours);
  ours.sa_handler = handle;
  ours.sa_flags = SA_RESTART | SA_ONSTACK;
  sigfillset(&ours.sa_mask);
  const bool set = sigaction(signal, &ours, NULL) == 0;
  report_switch_watched(set, set ? "" : "the system refused a handler for it");
}

void switch_watch(void) {
  static _Atomic bool watched;
  if (atomic_load_explicit(&watched, memory_order_relaxed) || atomic_exchange(&watched, true))
    return;
  const int signal = process_config()->switch_signal;
  if (signal)
    watch(signal);
}

bool switch_asked(void) {
  return atomic_load_explicit(&asked, memory_order_relaxed);
}

bool switch_off(void) {
  return atomic_load_explicit(&off, memory_order_relaxed);
}

/* ---- coming home ---- */

/* Bytes off the device in a context, or in all (NULL). */
struct away {
  size_t host_bytes, drive_bytes;
};
static struct away count_away(CUcontext context) {
  struct away away = {0, 0};
  size_t count = 0;
  struct range **ranges = range_list(&count);
  for (size_t i = 0; i < count; i++)
    if (!context || ranges[i]->context == context) {
      away.host_bytes += atomic_load(&ranges[i]->host_pieces) * ranges[i]->piece_bytes;
      away.drive_bytes += atomic_load(&ranges[i]->drive_pieces) * ranges[i]->piece_bytes;
    }
  free(ranges);
  return away;
}

/* Brings pieces of the current context home as far as there is room; first what is on drives, to wherever there is any. */
static CUresult bring(struct items *items, CUstream stream, bool wait) {
  size_t free_bytes = 0, total = 0, moved = 0, mapped = 0;
  CUresult result = drive_bring(items->items, items->count);
  if (result && result != CUDA_ERROR_OUT_OF_MEMORY)
    return result;
  for (size_t i = 0; i < items->count; i++)
    if (move_item_piece(&items->items[i])->tier == PIECE_HOST)
      items->items[mapped++] = items->items[i];
  if (!mapped || driver.cuMemGetInfo_v2(&free_bytes, &total))
    return CUDA_SUCCESS;
  const size_t room = free_bytes / items->items[0].range->piece_bytes;
  return move_pieces(items->items, room < mapped ? room : mapped, PIECE_DEVICE, stream, wait,
                     &moved);
}

static CUresult bring_context(CUcontext context, CUstream stream, bool wait) {
  struct view view;
  view_open(&view, context);
  for (size_t i = 0; i < view.range_count; i++)
    for (uint32_t k = 0; k < view.ranges[i]->piece_count; k++) {
      struct piece *piece = &view.ranges[i]->pieces[k];
      piece->plan =
          piece->tier != PIECE_DEVICE && range_movable(view.ranges[i]) ? PLAN_HOME : PLAN_STAY;
    }
  struct items known = view_planned(&view, PLAN_HOME, false), others = view_home(&view);
  CUresult result = bring(&known, stream, wait);
  if (!result)
    result = bring(&others, stream, wait);
  free(known.items);
  free(others.items);
  view_close(&view);
  return result;
}

/* ---- what steps took ---- */

/* Whether nothing of the context's steps is under way; looks a few times. */
static bool idle(const struct ring *ring, CUcontext context, unsigned looks) {
  enum { LOOK_NS = 1000000 };
  struct frames *frames = frames_find(context);
  for (unsigned i = 0; i < looks; i++) {
    const bool worked = ring && ring->worker && !worker_wait_idle(ring->worker, LOOK_NS);
    const bool queued = ring && ring->opened &&
                        (driver.cuStreamQuery(ring->down) || driver.cuStreamQuery(ring->up) ||
                         driver.cuStreamQuery(ring->scratch));
    if (!worked && !queued && (!frames || frames_idle(frames, LOOK_NS)))
      return true;
    if (!worked && queued && i + 1 < looks)
      nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
  return false;
}

/* Staging, proofs, frames and threads of the current context, whose steps are done and whose state no drive holds. */
static void release(CUcontext context) {
  size_t device_bytes = 0, pinned_bytes = 0;
  ahead_close("the switch");
  step_forget_context(context, false);
  holdings_release(context, &device_bytes, &pinned_bytes);
  told.released_device_bytes += device_bytes;
  told.released_pinned_bytes += pinned_bytes;
}

/* Home with the current context, and its memory back. True when nothing of it is left. */
static bool end_context(CUcontext context, CUstream stream, bool wait, CUresult *result) {
  *result = bring_context(context, stream, wait);
  if (*result || count_away(context).drive_bytes || !idle(ring_find(context), context, 200))
    return false;
  release(context);
  if (count_away(context).host_bytes) /* now there is more room */
    *result = bring_context(context, stream, wait);
  return !*result && !count_away(context).host_bytes;
}

/* Whether no stream is at work on any of the context's ranges. It is current. */
static bool quiet_context(CUcontext context, struct range *const *ranges, size_t count) {
  bool quiet = idle(ring_find(context), context, 1) &&
               driver.cuStreamQuery(CU_STREAM_LEGACY) == CUDA_SUCCESS;
  for (size_t i = 0; i < count && quiet; i++)
    if (ranges[i]->context == context)
      quiet = touch_only(ranges[i], CU_STREAM_LEGACY, NULL);
  return quiet;
}

/* Contexts of ranges and of rings, each once. */
struct contexts {
  CUcontext list[CONTEXTS_MOST];
  size_t count;
};
static void add_context(struct contexts *contexts, CUcontext context) {
  for (size_t i = 0; i < contexts->count; i++)
    if (contexts->list[i] == context)
      return;
  if (contexts->count < CONTEXTS_MOST)
    contexts->list[contexts->count++] = context;
}
static void add_ring(struct ring *ring, void *contexts) {
  add_context(contexts, ring->context);
}

static bool end_others(CUcontext current, CUresult *result) {
  struct contexts contexts = {.count = 0};
  size_t count = 0;
  bool all = true;
  struct range **ranges = range_list(&count);
  for (size_t i = 0; i < count; i++)
    add_context(&contexts, ranges[i]->context);
  ring_each(add_ring, &contexts);
  for (size_t i = 0; i < contexts.count && !*result; i++) {
    const CUcontext context = contexts.list[i];
    const struct away away = count_away(context);
    CUcontext popped;
    if (context == current || (!away.host_bytes && !away.drive_bytes && !ring_find(context)))
      continue;
    bool ended = false;
    if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
      ended = quiet_context(context, ranges, count) && end_context(context, NULL, false, result);
      (void)driver.cuCtxPopCurrent_v2(&popped);
    }
    all &= ended;
  }
  free(ranges);
  return all && !*result;
}

/* ---- the switch ---- */

CUresult switch_act(CUstream stream) {
  CUcontext current = NULL;
  CUresult result = CUDA_SUCCESS;
  const bool first = !switch_off();
  if (driver.cuCtxGetCurrent(&current) || (!first && state_step() == tried_step))
    return CUDA_SUCCESS;
  tried_step = state_step();
  atomic_store_explicit(&off, true, memory_order_relaxed);
  const struct away before = count_away(NULL);
  const bool ended = end_context(current, stream, true, &result);
  const bool all = !result && end_others(current, &result) && ended;
  const struct away after = count_away(NULL);
  range_watch_changed();
  told.step = told.used ? told.step : tried_step;
  told.used = true;
  const size_t came = before.host_bytes + before.drive_bytes - after.host_bytes - after.drive_bytes;
  told.home_bytes += came;
  told.host_bytes = after.host_bytes;
  told.drive_bytes = after.drive_bytes;
  told.whole = all && !after.host_bytes && !after.drive_bytes;
  report_switch(&told);
  if (told.whole) {
    frames_end();
    report_free_ended("switched off by a signal");
    node_switched(process_config());
    process_end();
  }
  if (first || told.whole)
    atomic_store_explicit(&news, true, memory_order_release);
  return result;
}

void switch_tell(void) {
  char home[REPORT_SIZE_BYTES], stays[REPORT_SIZE_BYTES], name[SIGNAL_NAME_BYTES];
  static _Atomic bool said;
  if (!atomic_load_explicit(&news, memory_order_relaxed) || !atomic_exchange(&news, false))
    return;
  const struct report_switch now = report_switch_now();
  const uint64_t away = now.host_bytes + now.drive_bytes;
  config_signal_name(process_config()->switch_signal, name);
  report_size_text(now.home_bytes, home);
  report_size_text(away, stays);
  if (atomic_exchange(&said, true))
    report_notice(
        "what had stayed when SIG%s switched off has come home: %s in all; everything passes "
        "through from now on",
        name, home);
  else if (away)
    report_notice(
        "switched off by SIG%s at step %llu: %s came home; %s stays on the host because the "
        "device has no room, graphs name its memory or its context is at work: stepped by the "
        "program's kernel, in place",
        name, (unsigned long long)now.step, home, stays);
  else
    report_notice(
        "switched off by SIG%s at step %llu: %s came home; everything passes through from now on",
        name, (unsigned long long)now.step, home);
  report_now(process_config());
}
