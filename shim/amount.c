/* See amount.h.

   Growing back asks for room beside a reserve, and beside what the program's own allocations took at their most during the last one to two
   waits: a block that comes and goes at every step leaves the device empty between steps and is no room. */
#include "amount.h"
#include "../policy/report.h"
#include "../policy/report_free.h"
#include "driver.h"
#include "pressure.h"
#include "process.h"
#include "state.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- OFFLOAD_FREE ---- */

static size_t away_bytes(CUdevice device) {
  size_t count = 0, bytes = 0;
  struct range **ranges = range_list(&count);
  for (size_t i = 0; i < count; i++)
    if (ranges[i]->device == device)
      bytes += ranges[i]->piece_bytes * (size_t)(atomic_load(&ranges[i]->host_pieces) +
                                                 atomic_load(&ranges[i]->drive_pieces));
  free(ranges);
  return bytes;
}

/* How many of the first `count` pieces move, when the others stay; they are planned so. */
static size_t moving(const struct view *view, const struct items *items, size_t count) {
  size_t stay = 0;
  for (size_t i = 0; i < items->count; i++)
    move_item_piece(&items->items[i])->plan = i < count ? PLAN_TO_HOST : PLAN_STAY;
  view_keep_partners(view);
  for (size_t i = 0; i < count; i++)
    stay += move_item_piece(&items->items[i])->plan != PLAN_TO_HOST;
  return count - stay;
}

/* Only pieces that are planned to move remain, in their order. */
static void keep_planned(struct items *items) {
  size_t kept = 0;
  for (size_t i = 0; i < items->count; i++) {
    struct piece *piece = move_item_piece(&items->items[i]);
    if (piece->plan == PLAN_TO_HOST)
      items->items[kept++] = items->items[i];
    piece->plan = PLAN_STAY;
  }
  items->count = kept;
}

void amount_limit(const struct view *view, struct items *items) {
  enum { ONE_BY_ONE = 16 };
  const struct config_size *asked = &process_config()->free_bytes;
  if (!asked->set || !items->count)
    return;
  const size_t piece_bytes = items->items[0].range->piece_bytes;
  const size_t away = away_bytes(items->items[0].range->device);
  if (away >= asked->bytes) {
    items->count = 0;
    return;
  }
  const size_t lacking = (asked->bytes - away + piece_bytes - 1) / piece_bytes;
  size_t count = lacking;
  for (size_t tries = 0; count < items->count && moving(view, items, count) < lacking; tries++)
    count += tries < ONE_BY_ONE ? 1 : count / 16 + 1;
  if (count < items->count)
    keep_planned(items);
}

void amount_tell(const struct view *view, size_t left) {
  const struct config_size *asked = &process_config()->free_bytes;
  CUdevice device;
  char why[REPORT_FREE_WHY_BYTES] = "", named[REPORT_SIZE_BYTES];
  size_t known = 0;
  if (!asked->set || driver.cuCtxGetDevice(&device))
    return;
  const size_t away = away_bytes(device);
  for (size_t i = 0; i < view->moment_count; i++)
    known += view->moments[i].bytes;
  if (process_config()->mode != MODE_FULL)
    snprintf(why, sizeof why, "OFFLOAD_FREE has no effect with OFFLOAD_MODE=%s",
             config_mode_name(process_config()->mode));
  else if (away < asked->bytes && left)
    snprintf(
        why, sizeof why,
        "the host memory budget (%s) and drives have room for no more; raise OFFLOAD_HOST_MEMORY "
        "or OFFLOAD_NVME_LIMIT",
        report.budget_limited_by);
  else if (away < asked->bytes)
    snprintf(why, sizeof why,
             "no more can move: the last step named %s of state, and what of it shares "
             "pieces with "
             "other memory, lies elsewhere or is new stays",
             report_size_text(known, named));
  report_free(device, away, why);
}

/* ---- growing back ---- */

enum { DEVICES_MOST = 64, SOON = 8 };

/* The most that the program's allocations took, in the window before this one. */
static struct window {
  uint64_t began_step; /* state_step() */
  size_t before;
} windows[DEVICES_MOST];

void amount_evicted(struct pace *pace) {
  const bool grown = pace->grown_step > pace->evicted_step;
  if (!pace->wait_steps)
    pace->wait_steps = AMOUNT_WAIT_LEAST;
  else if (grown && pace->step - pace->grown_step <= SOON * pace->wait_steps)
    pace->wait_steps =
        2 * pace->wait_steps < AMOUNT_WAIT_MOST ? 2 * pace->wait_steps : AMOUNT_WAIT_MOST;
  else if (grown)
    pace->wait_steps = AMOUNT_WAIT_LEAST;
  pace->evicted_step = pace->step;
}

/* By how much the program's allocations were more than they are now. */
static size_t dip_bytes(CUdevice device, uint64_t wait_steps) {
  if (device < 0 || device >= DEVICES_MOST)
    return 0;
  struct window *window = &windows[device];
  const size_t now = pressure_live_bytes(device), most = pressure_most_bytes(device);
  const size_t peak = most > window->before ? most : window->before;
  if (state_step() >= window->began_step + wait_steps) {
    window->began_step = state_step();
    window->before = most;
    pressure_most_again(device);
  }
  return peak > now ? peak - now : 0;
}

/* Pieces that the device has room for in this step. */
static size_t room(const struct view *view, CUdevice device, size_t piece_bytes,
                   uint64_t wait_steps) {
  enum { RESERVE_SHARE = 32, STEP_SHARE = 64 };
  const size_t step_most = (size_t)256 << 20, together = view_states(view) * piece_bytes;
  size_t free_bytes = 0, total = 0;
  const size_t dip = dip_bytes(device, wait_steps);
  if (!together || driver.cuMemGetInfo_v2(&free_bytes, &total))
    return 0;
  const size_t taken = dip + total / RESERVE_SHARE;
  size_t most = total / STEP_SHARE < step_most ? total / STEP_SHARE : step_most;
  if (most < together)
    most = together;
  const size_t left = free_bytes > taken ? free_bytes - taken : 0;
  return (left < most ? left : most) / together * together / piece_bytes;
}

struct items amount_regrow(const struct view *view, struct pace *pace) {
  struct items items = {0};
  CUdevice device;
  size_t piece_bytes = 0;
  if (process_config()->mode != MODE_PRESSURE || !pace->evicted_step ||
      driver.cuCtxGetDevice(&device))
    return items;
  for (size_t i = 0; i < view->range_count; i++)
    for (uint32_t k = 0; k < view->ranges[i]->piece_count; k++) {
      struct piece *piece = &view->ranges[i]->pieces[k];
      const bool away =
          piece->tier != PIECE_DEVICE && piece->plan == PLAN_STAY && range_movable(view->ranges[i]);
      piece->plan = away ? PLAN_HOME : PLAN_STAY;
      if (away)
        piece_bytes = view->ranges[i]->piece_bytes;
    }
  /* Also while it waits: what the program takes at its most is noted. */
  const size_t most = piece_bytes ? room(view, device, piece_bytes, pace->wait_steps) : 0;
  if (!most || pace->step < pace->evicted_step + pace->wait_steps)
    return items;
  items = view_planned(view, PLAN_HOME, false);
  items.count = items.count < most ? items.count : most;
  if (items.count)
    pace->grown_step = pace->step;
  return items;
}
