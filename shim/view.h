/* The view from a step's boundary: what a context has, the partner rule over the pieces' plans, and the lists of what moves. Called by
   state.c alone, under the enqueue lock; plans are of the boundary at hand. */
#ifndef OFFLOAD_VIEW_H
#define OFFLOAD_VIEW_H
#include "census.h"
#include "move.h"
#include "range.h"

/* What a decision is made from: what the current context has. */
struct view {
  struct range **ranges;
  size_t range_count;
  struct moment *moments;
  size_t moment_count;
};
void view_open(struct view *, CUcontext context);
void view_close(struct view *);

/* Whether every byte of the piece is state. */
bool view_covered(const struct range *, uint32_t piece);

/* Takes planned pieces away until all that remain have their partners. */
void view_keep_partners(const struct view *);

/* How many pieces lie beside each other in a list, so that none is without its partners. */
size_t view_states(const struct view *);

/* `items` is the caller's to free. Without memory lists are short: fewer move. */
struct items {
  struct move_item *items;
  size_t count, room;
};
/* Pieces of this plan, tensor by tensor as the step named them, or (last_first) the other way round, each piece of m beside those of its
   partners. They are planned to stay from then on. */
struct items view_planned(const struct view *, enum piece_plan, bool last_first);
/* Pieces planned to go home. */
struct items view_home(const struct view *);
/* Cuts the list: `count` pieces go to the host, more to drives as far as these have room (the list that is returned), and what lost its
   partner by that is taken away. */
struct items view_cut(const struct view *, struct items *, size_t count, size_t drives);
#endif
