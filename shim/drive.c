/* Policy of the drive tier (drive.h): whether pieces may go, what each step costs the drives, and bringing in what something other
   than the step wants. The copies themselves are drive_move.c's. */
#include "drive.h"
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "cancel.h"
#include "census.h"
#include "driver.h"
#include "frames.h"
#include "lock.h"
#include "process.h"
#include "wear.h"
#include <stdlib.h>
#include <time.h>

/* ---- whether ---- */

/* Once a drive has failed or the wear limit is reached nothing goes any more. Under the enqueue lock. */
static bool ended;

static bool check_ended(struct store *store) {
  if (ended)
    return true;
  if (store_stats(store).failed_directories) {
    ended = true;
    report_notice("no more state goes to drives: a write failed; name another directory in "
                  "OFFLOAD_NVME");
  } else {
    ended = wear_ended(store); /* which has said so */
  }
  return ended;
}

bool drive_possible(CUcontext context, size_t piece_bytes) {
  static bool said;
  char why[320] = "";
  const struct config *config = process_config();
  if (!config->nvme || ended)
    return false;
  if (config->step == STEP_DIRECT) {
    if (!said)
      report_notice(
          "no state goes to drives: with OFFLOAD_STEP=direct the program's kernel does the "
          "step; use auto, cpu or stream");
    said = true;
    return false;
  }
  if (!frames_of(context, piece_bytes, why, sizeof why)) {
    if (!said && *why)
      report_notice("no state goes to drives: %s", why);
    said = true;
    return false;
  }
  struct store *store = frames_store();
  return store && !check_ended(store);
}

size_t drive_room(CUcontext context) {
  struct store *store = frames_store();
  return store && frames_find(context) ? (size_t)store_room(store) : 0;
}

void drive_forget_piece(struct range *range, uint32_t piece) {
  struct frames *frames = frames_find(range->context);
  range_count_drive(range, false);
  if (frames)
    frames_forget_unit(frames, range->pieces[piece].unit);
  else if (frames_store())
    store_release(frames_store(), range->pieces[piece].unit);
}

/* ---- bringing in ---- */

/* What was asked for is listed in the first round, its partners in the second, and then what these share pieces with. */
enum { ROUNDS = 8 };
struct wanted {
  struct move_item *items;
  size_t count, room;
  CUcontext context;
  unsigned char round;
  bool short_of_memory;
};

static void want(struct wanted *wanted, struct range *range, uint32_t piece) {
  if (range->pieces[piece].tier != PIECE_DRIVE || range->pieces[piece].wanted)
    return;
  if (wanted->count == wanted->room) {
    const size_t more = wanted->room ? 2 * wanted->room : 64;
    struct move_item *grown = realloc(wanted->items, more * sizeof *grown);
    if (!grown) {
      wanted->short_of_memory = true;
      return;
    }
    wanted->items = grown;
    wanted->room = more;
  }
  range->pieces[piece].wanted = wanted->round;
  wanted->items[wanted->count++] = (struct move_item){range, piece};
}

/* Pieces that hold the partners of a tensor's bytes [from, to). */
static void want_partners(struct wanted *wanted, const struct moment *moment, uintptr_t from,
                          uintptr_t to) {
  for (size_t k = 0; k < TENSOR_STATES - 1 && moment->partners[k]; k++) {
    const uintptr_t at = moment->partners[k] + (from - moment->address);
    struct range *range = range_find(at);
    if (!range || range->context != wanted->context ||
        to - from > range->bytes - (at - range->base))
      continue;
    for (size_t i = (at - range->base) / range->piece_bytes;
         i <= (at - range->base + (to - from) - 1) / range->piece_bytes; i++)
      want(wanted, range, (uint32_t)i);
  }
}

/* Partners of the tensors' bytes in pieces that were listed in the round before. */
static void want_round(struct wanted *wanted, const struct moment *moments, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const struct moment *moment = &moments[i];
    const struct range *range = moment->range;
    const uintptr_t end = moment->address + moment->bytes;
    for (uintptr_t from = moment->address, to; range && from < end; from = to) {
      const size_t piece = (from - range->base) / range->piece_bytes;
      to = range->base + (piece + 1) * range->piece_bytes;
      to = to < end ? to : end;
      if (range->pieces[piece].wanted == wanted->round - 1)
        want_partners(wanted, moment, from, to);
    }
  }
}

/* *needed: how many of the list, from its beginning, must come. */
static void list_wanted(struct wanted *wanted, struct range *range, uint32_t first, uint32_t last,
                        size_t *needed) {
  wanted->round = 1;
  for (uint32_t i = first; i <= last && i < range->piece_count; i++)
    want(wanted, range, i);
  size_t count = 0, before = 0;
  struct moment *moments = wanted->count ? census_list(range->context, &count) : NULL;
  *needed = wanted->count;
  while (count && before < wanted->count && wanted->round < ROUNDS) {
    before = wanted->count;
    wanted->round++;
    want_round(wanted, moments, count);
    if (wanted->round == 2)
      *needed = wanted->count;
  }
  free(moments);
  for (size_t i = 0; i < wanted->count; i++)
    move_item_piece(&wanted->items[i])->wanted = 0;
}

static bool still_absent(const struct move_item *items, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (move_item_piece(&items[i])->tier == PIECE_DRIVE)
      return true;
  return false;
}

CUresult drive_fault_locked(struct range *range, uint32_t first, uint32_t last) {
  struct wanted wanted = {.context = range->context};
  size_t needed = 0;
  if (!atomic_load(&range->drive_pieces))
    return CUDA_SUCCESS;
  list_wanted(&wanted, range, first, last, &needed);
  CUresult result = wanted.short_of_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  CUcontext current = NULL;
  const bool push = wanted.count && !driver.cuCtxGetCurrent(&current) && current != range->context;
  if (!result && push)
    result = driver.cuCtxPushCurrent_v2(range->context);
  for (size_t i = 0; i < wanted.count; i++)
    wanted.items[i].range->drive_fetched = true;
  if (!result) {
    result = drive_bring(wanted.items, needed);
    if (!result && needed < wanted.count)
      result = drive_bring(wanted.items + needed, wanted.count - needed);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !still_absent(wanted.items, needed))
      result = CUDA_SUCCESS; /* the step brings the others in when it comes to them */
    if (push)
      (void)driver.cuCtxPopCurrent_v2(&current);
  }
  free(wanted.items);
  return result;
}

static bool stepped(const struct range *range, uint32_t first, uint32_t last) {
  struct frames *frames = frames_find(range->context);
  if (!frames || frames_idle(frames, 0)) /* else a walk over frames for each piece */
    return false;
  for (uint32_t i = first; i <= last && i < range->piece_count; i++)
    if (range->pieces[i].tier == PIECE_DRIVE && frames_in_use(frames, range->pieces[i].unit))
      return true;
  return false;
}

/* How long whoever wants pieces back lets a step work on them that may wait on the GPU for what another thread is about to launch,
   which may want the enqueue lock. */
static const uint64_t let_ns = 5000000000;

/* Not under the enqueue lock. */
static void let_others_launch(void) {
  const struct timespec pause = {.tv_nsec = 50000};
  const int cancel = cancel_hold(); /* the pause is where a thread could be cancelled */
  nanosleep(&pause, NULL);
  cancel_allow(cancel);
}

/* Takes the enqueue lock once no step works on the pieces, or after `let_ns`. */
static void lock_between_steps(const struct range *range, uint32_t first, uint32_t last) {
  const uint64_t end_ns = clock_now_ns() + let_ns;
  enqueue_lock();
  while (stepped(range, first, last) && clock_now_ns() < end_ns) {
    enqueue_unlock();
    let_others_launch();
    enqueue_lock();
  }
}

CUresult drive_fault(struct range *range, uint32_t first, uint32_t last) {
  if (!atomic_load(&range->drive_pieces))
    return CUDA_SUCCESS;
  lock_between_steps(range, first, last);
  CUresult result = drive_fault_locked(range, first, last);
  enqueue_unlock();
  return result;
}

CUresult drive_fault_bytes(uintptr_t address, size_t bytes) {
  CUresult result = CUDA_SUCCESS;
  while (bytes && !result && range_any_drive()) {
    struct range *range = range_find(address);
    if (!range)
      return result;
    const size_t offset = address - range->base;
    const size_t here = bytes < range->bytes - offset ? bytes : range->bytes - offset;
    result = drive_fault(range, (uint32_t)(offset / range->piece_bytes),
                         (uint32_t)((offset + here - 1) / range->piece_bytes));
    address += here; /* the range beside it, if there is one */
    bytes -= here;
  }
  return result;
}

/* A range of the context (NULL: of any) with pieces on drives, one that no step works on if there is one. Under the enqueue lock. */
static struct range *next_on_drives(CUcontext context, bool *in_step) {
  size_t count = 0;
  struct range **list = range_list(&count), *found = NULL;
  *in_step = true;
  for (size_t i = 0; i < count && *in_step; i++)
    if ((!context || list[i]->context == context) && atomic_load(&list[i]->drive_pieces)) {
      found = list[i];
      *in_step = stepped(found, 0, found->piece_count - 1);
    }
  free(list);
  return found;
}

/* Ranges may go while the lock is let go of, so each is looked for anew. */
CUresult drive_fault_all(CUcontext context) {
  const uint64_t end_ns = clock_now_ns() + let_ns;
  CUresult result = CUDA_SUCCESS;
  bool more = range_any_drive();
  while (more && !result) {
    bool in_step;
    enqueue_lock();
    struct range *range = next_on_drives(context, &in_step);
    const bool wait = range && in_step && clock_now_ns() < end_ns;
    if (range && !wait)
      result = drive_fault_locked(range, 0, range->piece_count - 1);
    more = wait || (range && !atomic_load(&range->drive_pieces));
    enqueue_unlock();
    if (wait)
      let_others_launch();
  }
  return result;
}

/* ---- each step ---- */

/* A drive failed, over which every unit is striped: what it held is kept in host memory, twice once the step works on it. */
static void come_home(CUcontext context) {
  size_t count = 0;
  struct range **list = range_list(&count);
  for (size_t i = 0; i < count; i++)
    if (list[i]->context == context &&
        drive_fault_locked(list[i], 0, list[i]->piece_count - 1) != CUDA_SUCCESS)
      break; /* no room: the next step tries again; a failed read has stopped the hooks */
  free(list);
}

void drive_step(CUcontext context) {
  struct store *store = range_any_drive() ? frames_store() : NULL;
  if (!store || !frames_find(context))
    return;
  wear_step(store, context);
  (void)check_ended(store);
  if (store_stats(store).failed_directories)
    come_home(context);
}
