/* Which pieces move at a step's boundary: see view.h, and state.c for the rule. */
#include "view.h"
#include <stdlib.h>
#include <string.h>

void view_open(struct view *view, CUcontext context) {
  size_t count = 0;
  memset(view, 0, sizeof *view);
  view->ranges = range_list(&count);
  for (size_t i = 0; i < count; i++)
    if (view->ranges[i]->context == context)
      view->ranges[view->range_count++] = view->ranges[i];
  view->moments = census_list(context, &view->moment_count);
  if (view->ranges)
    census_cover(view->ranges, view->range_count, view->moments, view->moment_count);
}

void view_close(struct view *view) {
  free(view->ranges);
  free(view->moments);
}

bool view_covered(const struct range *range, uint32_t i) {
  return range->pieces[i].covered_bytes == census_whole(range, i);
}

/* ---- the partner rule ---- */

static bool follows(const struct piece *piece) {
  return piece->plan == PLAN_TO_HOST || piece->plan == PLAN_TO_DRIVE ||
         (piece->tier != PIECE_DEVICE && piece->plan == PLAN_STAY);
}

/* Of the partner bytes [address, address+bytes), those in pieces that follow. */
static size_t following_bytes(const struct range *range, uintptr_t address, size_t bytes) {
  size_t following = 0;
  if (!range || address - range->base >= range->bytes ||
      bytes > range->bytes - (address - range->base))
    return 0;
  for (size_t from = address - range->base, to = from + bytes; from < to;) {
    size_t end = (from / range->piece_bytes + 1) * range->piece_bytes;
    end = end < to ? end : to;
    if (follows(&range->pieces[from / range->piece_bytes]))
      following += end - from;
    from = end;
  }
  return following;
}

static void count_followed(const struct moment *moment) {
  struct range *range = moment->range;
  const struct range *partner = range_find(moment->partners[0]);
  for (size_t from = moment->address - range->base, to = from + moment->bytes; from < to;) {
    struct piece *piece = &range->pieces[from / range->piece_bytes];
    size_t end = (from / range->piece_bytes + 1) * range->piece_bytes;
    end = end < to ? end : to;
    if (piece->plan == PLAN_TO_HOST || piece->plan == PLAN_TO_DRIVE)
      piece->followed_bytes += following_bytes(
          partner, moment->partners[0] + (range->base + from - moment->address), end - from);
    from = end;
  }
}

void view_keep_partners(const struct view *view) {
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t i = 0; i < view->range_count; i++)
      for (uint32_t k = 0; k < view->ranges[i]->piece_count; k++)
        view->ranges[i]->pieces[k].followed_bytes = 0;
    for (size_t i = 0; i < view->moment_count; i++)
      if (view->moments[i].range)
        count_followed(&view->moments[i]);
    for (size_t i = 0; i < view->range_count; i++)
      for (uint32_t k = 0; k < view->ranges[i]->piece_count; k++) {
        struct piece *piece = &view->ranges[i]->pieces[k];
        const bool enough = piece->plan == PLAN_TO_DRIVE
                                ? piece->followed_bytes >= piece->named_bytes
                                : 2 * piece->followed_bytes >= piece->named_bytes;
        if ((piece->plan != PLAN_TO_HOST && piece->plan != PLAN_TO_DRIVE) || enough)
          continue;
        piece->plan = PLAN_STAY;
        changed = true;
      }
  }
}

/* ---- lists of pieces ---- */

size_t view_states(const struct view *view) {
  size_t most = 2;
  for (size_t i = 0; i < view->moment_count; i++)
    most = view->moments[i].partners[1] ? 3 : most;
  return most;
}

static void append(struct items *items, struct range *range, uint32_t piece) {
  if (items->count == items->room) {
    size_t more = items->room ? 2 * items->room : 256;
    struct move_item *grown = realloc(items->items, more * sizeof *grown);
    if (!grown)
      return; /* fewer move */
    items->items = grown;
    items->room = more;
  }
  items->items[items->count++] = (struct move_item){range, piece};
}

/* The piece that holds the address, if that is its plan; it is listed once. */
static void append_planned(struct items *items, struct range *range, uintptr_t address,
                           enum piece_plan plan) {
  if (!range || address - range->base >= range->bytes)
    return;
  uint32_t i = (uint32_t)((address - range->base) / range->piece_bytes);
  if (range->pieces[i].plan != plan)
    return;
  range->pieces[i].plan = PLAN_STAY;
  append(items, range, i);
}

/* The pieces at this byte of a moment and of its partners. */
static void append_beside(struct items *items, const struct moment *moment, size_t byte,
                          enum piece_plan plan) {
  append_planned(items, moment->range, moment->address + byte, plan);
  for (size_t k = 0; k < TENSOR_STATES - 1 && moment->partners[k]; k++)
    append_planned(items, range_find(moment->partners[k]), moment->partners[k] + byte, plan);
}

struct items view_planned(const struct view *view, enum piece_plan plan, bool last_first) {
  struct items items = {0};
  for (size_t i = 0; i < view->moment_count; i++) {
    const struct moment *moment = &view->moments[last_first ? view->moment_count - 1 - i : i];
    if (!moment->range || !moment->bytes)
      continue;
    /* Each stride and the last byte: where it lies in its pieces doesn't matter. */
    const size_t stride = moment->range->piece_bytes, strides = (moment->bytes - 1) / stride + 1;
    for (size_t k = 0; k <= strides; k++) {
      const size_t at = (last_first ? strides - k : k) * stride;
      append_beside(&items, moment, at < moment->bytes ? at : moment->bytes - 1, plan);
    }
  }
  return items;
}

struct items view_home(const struct view *view) {
  struct items items = {0};
  for (size_t i = 0; i < view->range_count; i++)
    for (uint32_t k = 0; k < view->ranges[i]->piece_count; k++)
      if (view->ranges[i]->pieces[k].plan == PLAN_HOME)
        append(&items, view->ranges[i], k);
  return items;
}

/* ---- what goes where ---- */

/* Only what the step alone used during the whole last step and since, as far as anybody can see, may be mapped nowhere. */
static bool may_go_to_drive(const struct move_item *item) {
  const struct piece *piece = move_item_piece(item);
  return piece->unused && !atomic_load(&piece->foreign_used) && !item->range->rests &&
         range_movable(item->range);
}

/* Puts pieces that drives won't take, for themselves or for their partners, in front of the others. Without memory the order stays. */
static void host_first(const struct view *view, struct items *items) {
  size_t may = 0, first = 0, last = 0;
  for (size_t i = 0; i < items->count; i++) {
    const bool drive = may_go_to_drive(&items->items[i]);
    move_item_piece(&items->items[i])->plan = drive ? PLAN_TO_DRIVE : PLAN_TO_HOST;
    may += drive;
  }
  if (!may)
    return;
  view_keep_partners(view);
  struct move_item *others = malloc(may * sizeof *others);
  for (size_t i = 0; others && i < items->count; i++) {
    const struct move_item item = items->items[i];
    if (move_item_piece(&item)->plan == PLAN_TO_DRIVE)
      others[last++] = item;
    else
      items->items[first++] = item;
  }
  for (size_t i = 0; i < last; i++)
    items->items[first + i] = others[i];
  free(others);
}

/* Pieces planned for drives beyond so many stay; true when there were any. */
static bool keep_within(const struct items *items, size_t drives) {
  bool beyond = false;
  for (size_t i = 0; i < items->count; i++) {
    struct piece *piece = move_item_piece(&items->items[i]);
    if (piece->plan != PLAN_TO_DRIVE)
      continue;
    if (drives)
      drives--;
    else {
      piece->plan = PLAN_STAY;
      beyond = true;
    }
  }
  return beyond;
}

struct items view_cut(const struct view *view, struct items *items, size_t count, size_t drives) {
  struct items to_drive = {0};
  if (drives && count)
    host_first(view, items);
  const size_t all = items->count;
  for (size_t i = 0; i < all; i++) {
    const bool drive = i >= count && drives && may_go_to_drive(&items->items[i]);
    move_item_piece(&items->items[i])->plan = i < count ? PLAN_TO_HOST
                                              : drive   ? PLAN_TO_DRIVE
                                                        : PLAN_STAY;
  }
  view_keep_partners(view); /* before room is given, which what stays doesn't need */
  if (keep_within(items, drives))
    view_keep_partners(view);
  items->count = 0;
  for (size_t i = 0; i < all; i++) {
    const struct move_item item = items->items[i];
    struct piece *piece = move_item_piece(&item);
    if (piece->plan == PLAN_TO_HOST)
      items->items[items->count++] = item;
    else if (piece->plan == PLAN_TO_DRIVE)
      append(&to_drive, item.range, item.piece);
    piece->plan = PLAN_STAY;
  }
  return to_drive;
}
