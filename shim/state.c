/* Where state should live (state.h): the step rule, what moves at a step's beginning, what goes
   home, eviction. Partners and lists are view.c's.

   At the beginning of step n+1 the moments that step n named are complete. From them, per piece:

     covered  every byte is state (census.c); then `streak` counts such steps in a row in which
              nothing foreign touched it
     to host  covered, streak >= streak_needed, and its partners follow: at least half of the state
              bytes in it have the bytes of their next partner in pieces that are on the host and
              stay, or move now (the states of a tensor are a ring: of three, one that stays keeps
              both others). Taking one away may take others away, hence the fixpoint. Half and not all: one
              small tensor whose partner must stay would hold back a whole piece
     to drive beyond the host budget, where drives are named: nothing foreign used it during the last step, reads included (touch_use),
              and of its state bytes all have their partners on the host or on drives, or going there
     home     on the host or a drive, not covered or touched by something foreign; provided that the
              device keeps a piece of room (from a drive in any case)

   A provisional piece that is covered is confirmed; what touched it before, filled it. Pieces move
   in the order in which their tensors were named, m beside v and its maximum, so that a budget that
   ends leaves whole tensors. Every context is its own: its steps, its pieces, its moments. */
#include "state.h"
#include "../policy/report.h"
#include "amount.h"
#include "census.h"
#include "drive.h"
#include "driver.h"
#include "elsewhere.h"
#include "move.h"
#include "observe.h"
#include "pace.h"
#include "process.h"
#include "quiet.h"
#include "switch.h"
#include "tier.h"
#include "touch.h"
#include "view.h"
#include <stdlib.h>

/* ---- moving ---- */

/* What anybody had touched when pieces began to be chosen. */
struct touches_noted {
  uint64_t unseen, unreadable;
};

/* Before any mark is read. */
static struct touches_noted note_touches(const struct view *view) {
  const struct touches_noted noted = {touch_unseen_count(), touch_unreadable_count()};
  for (size_t i = 0; i < view->range_count; i++)
    view->ranges[i]->touches_noted = atomic_load(&view->ranges[i]->touches);
  return noted;
}

/* What lacked room when it was last to move. */
static void note_kept(size_t bytes, enum report_kept why) {
  atomic_store_explicit(&report.kept, (int)why, memory_order_relaxed);
  atomic_store_explicit(&report.kept_bytes, bytes, memory_order_relaxed);
}

/* As many of the listed pieces as the budget has room for go to the host, more to drives (NULL: none). */
static CUresult move_out(const struct view *view, struct items *items, CUstream stream, bool wait,
                         const struct touches_noted *drives, size_t *moved) {
  static bool said;
  struct items to_drive = {0};
  *moved = 0;
  if (!items->count)
    return CUDA_SUCCESS;
  const size_t bytes = items->items[0].range->piece_bytes, wanted = items->count;
  const CUcontext context = items->items[0].range->context;
  CUmemLocation location;
  if (!tier_location(items->items[0].range->device, bytes, &location))
    return CUDA_SUCCESS;
  const size_t room = tier_room(items->items[0].range->device) / bytes;
  const bool possible = room < wanted && drives && drive_possible(context, bytes);
  const size_t on_drives = possible ? drive_room(context) : 0;
  if (room < wanted)
    to_drive = view_cut(view, items, room, on_drives);
  const size_t going = items->count + to_drive.count;
  const enum report_kept kept = !possible                   ? KEPT_UNKNOWN
                                : on_drives < wanted - room ? KEPT_FULL
                                                            : KEPT_SHARED;
  note_kept((wanted - going) * bytes, kept);
  CUresult result = move_pieces(items->items, items->count, PIECE_HOST, stream, wait, moved);
  if (!result && drives && to_drive.count) {
    size_t sent = 0;
    result = drive_send(to_drive.items, to_drive.count, drives->unseen, stream, wait, &sent);
    *moved += sent;
  }
  free(to_drive.items);
  if (!result && going < wanted && !said) {
    char stays[REPORT_SIZE_BYTES], all[REPORT_SIZE_BYTES];
    said = true;
    report_reason("%s of %s of state stays on the device: the host memory budget (%s) is "
                  "used up%s; raise "
                  "OFFLOAD_HOST_MEMORY or free host memory",
                  report_size_text((wanted - going) * bytes, stays),
                  report_size_text(wanted * bytes, all), report.budget_limited_by,
                  kept == KEPT_UNKNOWN ? ""
                  : kept == KEPT_FULL
                      ? ", and so is the room on drives (OFFLOAD_NVME_LIMIT, or what is free there)"
                      : ", and drives take no piece that is also used by others, or whose partners "
                        "stay");
  }
  return result;
}

/* Home, as long as the device keeps room for another piece. */
static CUresult move_home(struct items *items, CUstream stream) {
  size_t free_bytes = 0, total = 0, moved = 0;
  CUresult on_drives = drive_bring(items->items, items->count);
  if (on_drives && on_drives != CUDA_ERROR_OUT_OF_MEMORY)
    return on_drives;
  size_t mapped = 0;
  for (size_t i = 0; i < items->count; i++) /* what found no room has nothing to be copied from */
    if (items->items[i].range->pieces[items->items[i].piece].tier != PIECE_DRIVE)
      items->items[mapped++] = items->items[i];
  items->count = mapped;
  if (!items->count || driver.cuMemGetInfo_v2(&free_bytes, &total))
    return CUDA_SUCCESS;
  size_t count = free_bytes / items->items[0].range->piece_bytes;
  count = count ? count - 1 : 0;
  count = count < items->count ? count : items->count;
  CUresult result = move_pieces(items->items, count, PIECE_DEVICE, stream, true, &moved);
  for (size_t i = 0; i < items->count; i++) {
    struct piece *piece = &items->items[i].range->pieces[items->items[i].piece];
    if (piece->tier != PIECE_DEVICE)
      continue;
    piece->provisional = false;
    piece->streak = 0;
    piece->streak_needed = 2;
  }
  return result;
}

/* What the last step says about one piece. */
static void plan_piece(struct range *range, uint32_t i, enum config_mode mode) {
  struct piece *piece = &range->pieces[i];
  const bool whole = view_covered(range, i);
  bool touched = atomic_exchange(&piece->foreign_touched, false);
  piece->plan = PLAN_STAY;
  if (piece->provisional && whole) {
    piece->provisional = false;
    touched = false;
  }
  piece->streak = whole && !touched ? piece->streak + 1 : 0;
  if (!range_movable(range))
    return;
  if (piece->tier != PIECE_DEVICE) {
    if (!whole || touched)
      piece->plan = PLAN_HOME;
  } else if (piece->streak >= piece->streak_needed && (mode == MODE_FULL || mode == MODE_OBSERVE)) {
    piece->plan = PLAN_TO_HOST;
  }
}

/* Brought in: it stays off drives for longer than the last time, unless that was long ago. */
static void rest(struct range *range, uint64_t step) {
  if (range->drive_rest < DRIVE_REST_MOST &&
      step > range->drive_rest_until + DRIVE_REST_FORGOTTEN * (range->drive_rest + 1))
    range->drive_rest = 0;
  range->drive_rest =
      range->drive_rest < DRIVE_REST_MOST ? 2 * range->drive_rest + 1 : DRIVE_REST_MOST;
  if (range->drive_rest_until < step + range->drive_rest)
    range->drive_rest_until = step + range->drive_rest;
  range->drive_fetched = false;
}

/* The last step ended with what is noted. False when something was launched during it that may have used any memory. */
static bool note_step_end(const struct view *view, struct pace *pace,
                          const struct touches_noted *noted) {
  pace->readable = noted->unreadable == pace->unreadable;
  pace->unreadable = noted->unreadable;
  for (size_t i = 0; i < view->range_count; i++) {
    struct range *range = view->ranges[i];
    if (range->drive_fetched)
      rest(range, pace->step);
    range->rests = pace->step < range->drive_rest_until;
    for (uint32_t k = 0; k < range->piece_count; k++)
      range->pieces[k].unused = !atomic_exchange(&range->pieces[k].foreign_used, false);
  }
  return pace->readable;
}

/* Whether less than all of what may move is to: then what is named first stays. */
static bool limited(void) {
  return process_config()->free_bytes.set;
}

/* State that was evicted comes home by and by. */
static CUresult grow_back(const struct view *view, struct pace *pace, CUstream stream) {
  struct items items = amount_regrow(view, pace);
  const uint64_t before = atomic_load_explicit(&report.totals.pieces_home, memory_order_relaxed);
  const CUresult result = items.count ? move_home(&items, stream) : CUDA_SUCCESS;
  if (atomic_load_explicit(&report.totals.pieces_home, memory_order_relaxed) != before)
    report_add(regrowths, 1);
  free(items.items);
  return result;
}

/* The last step's moments are complete: moves what should move. */
static CUresult settle(struct pace *pace, CUstream stream) {
  struct view view;
  size_t moved = 0;
  CUresult result = CUDA_SUCCESS;
  const enum config_mode mode = process_config()->mode;
  if (process_capture_open() || pace->step < pace->put_off_until || switch_off())
    return result; /* pieces keep their streaks; touches stay noted */
  view_open(&view, pace->context);
  elsewhere_note(view.moments, view.moment_count);
  const struct touches_noted noted = note_touches(&view);
  const bool drives = note_step_end(&view, pace, &noted);
  for (size_t i = 0; i < view.range_count; i++)
    for (uint32_t k = 0; k < view.ranges[i]->piece_count; k++)
      plan_piece(view.ranges[i], k, mode);
  elsewhere_note_held(view.ranges, view.range_count);
  view_keep_partners(&view);
  struct items to_host = view_planned(&view, PLAN_TO_HOST, limited()), home = view_home(&view);
  amount_limit(&view, &to_host);
  if (mode == MODE_FULL && !to_host.count && !home.count)
    elsewhere_note_shared(view.ranges, view.range_count);
  if (mode == MODE_OBSERVE) {
    observe_step(&view);
  } else {
    const uint64_t late = move_late_count();
    const size_t wanted = to_host.count;
    if (mode == MODE_FULL && !wanted)
      note_kept(0, KEPT_UNKNOWN);
    result = move_out(&view, &to_host, stream, true, drives ? &noted : NULL, &moved);
    if (!result)
      result = move_home(&home, stream);
    if (!result)
      result = grow_back(&view, pace, stream);
    amount_tell(&view, wanted - moved);
    if (view.range_count)
      tier_served(view.ranges[0]->device);
    if (move_late_count() != late)
      pace_put_off(pace);
  }
  free(to_host.items);
  free(home.items);
  view_close(&view);
  range_watch_changed();
  return result;
}

/* ---- the step rule ---- */

static bool begins_step(const struct pace *pace, const struct state_tensor *tensors, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (unsigned which = 0; which < TENSOR_STATES; which++)
      if (tensors[i].states[which] &&
          census_repeats(tensors[i].states[which], tensors[i].first, pace->step))
        return true;
  return !census_any(pace->context); /* the first, or the first after all was freed */
}

/* Streams that take turns may wait for each other: a step of one could find its state in frames that a step of the other
   has yet to let go of. */
static void note_step_stream(struct range *range, CUstream stream, uint64_t step) {
  enum { STEPS_OF_ONE_STREAM = 64 };
  if (atomic_load_explicit(&range->has_state, memory_order_relaxed) &&
      range->step_stream != stream && range->drive_rest_until < step + STEPS_OF_ONE_STREAM)
    range->drive_rest_until = step + STEPS_OF_ONE_STREAM;
  range->step_stream = stream;
}

/* Before anything of the launch's is sent away. */
static void note_step_streams(const struct pace *pace, const struct state_tensor *tensors,
                              size_t count, CUstream stream) {
  for (size_t i = 0; i < count; i++)
    for (unsigned which = 0; which < TENSOR_STATES; which++) {
      struct range *range = tensors[i].states[which] ? range_find(tensors[i].states[which]) : NULL;
      if (range && range->context == pace->context)
        note_step_stream(range, stream, pace->step);
    }
}

static bool name(const struct pace *pace, const struct state_tensor *tensor, unsigned which,
                 CUstream stream) {
  if (!tensor->states[which])
    return false;
  struct range *range = census_name(pace->context, tensor, which, pace->step);
  if (!range)
    return false;
  if (range->context != pace->context) { /* its streams can't be waited for from there */
    atomic_store(&range->immovable, true);
    return false;
  }
  touch_stream(range, stream);
  note_step_stream(range, stream, pace->step);
  const bool news = !atomic_exchange(&range->has_state, true);
  if (news)
    tier_stepping(range->device);
  return news;
}

CUresult state_launch(const struct state_tensor *tensors, size_t count, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  struct pace *pace = count ? pace_current() : NULL;
  if (!pace)
    return result;
  if (begins_step(pace, tensors, count)) {
    drive_step(pace->context);
    note_step_streams(pace, tensors, count, stream);
    if (pace->step) {
      census_forget_before(pace->context, pace->step);
      result = settle(pace, stream);
    }
    pace_step(pace);
  }
  bool watch = false;
  for (size_t i = 0; i < count; i++)
    for (unsigned which = 0; which < TENSOR_STATES; which++)
      watch |= name(pace, &tensors[i], which, stream);
  if (watch)
    range_watch_changed();
  return result;
}

void state_forget(uintptr_t base, size_t bytes) {
  census_forget(base, bytes);
}

void state_forget_context(CUcontext context) {
  census_forget_before(context, UINT64_MAX);
  pace_forget(context);
}

size_t state_evict(size_t wanted_bytes) {
  struct view view;
  size_t freed = 0;
  const enum config_mode mode = process_config()->mode;
  struct pace *pace = state_step() ? pace_current() : NULL;
  if (process_capture_open() || mode == MODE_OBSERVE || mode == MODE_OFF || switch_off() || !pace)
    return 0;
  view_open(&view, pace->context);
  const struct touches_noted noted = note_touches(&view);
  const bool drives = pace->readable && noted.unreadable == pace->unreadable;
  for (size_t i = 0; i < view.range_count; i++)
    for (uint32_t k = 0; k < view.ranges[i]->piece_count; k++) {
      struct piece *piece = &view.ranges[i]->pieces[k];
      const bool may = piece->tier == PIECE_DEVICE && view_covered(view.ranges[i], k) &&
                       range_movable(view.ranges[i]) && !atomic_load(&piece->foreign_touched);
      piece->plan = may ? PLAN_TO_HOST : PLAN_STAY;
    }
  view_keep_partners(&view);
  struct items items = view_planned(&view, PLAN_TO_HOST, true);
  if (items.count) {
    const size_t bytes = items.items[0].range->piece_bytes;
    const size_t together = view_states(&view);
    const size_t enough = ((wanted_bytes + bytes - 1) / bytes + together - 1) / together * together;
    size_t moved;
    if (items.count > enough)
      items.count = enough;
    (void)move_out(&view, &items, NULL, false, drives ? &noted : NULL,
                   &moved); /* a failure has stopped the hooks */
    freed = moved * bytes;
  }
  free(items.items);
  view_close(&view);
  if (freed) {
    amount_evicted(pace);
    report_add(evictions, 1);
  }
  return freed;
}
