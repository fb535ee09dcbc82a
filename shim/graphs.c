/* The holders of graphs.h and their lists. A list names a range by base and id, since ranges may be
   freed while a graph lives; a range counts the holders that name it. Whatever can't be kept for
   lack of memory makes ranges immovable, which is never wrong. */
#include "graphs.h"
#include "touch.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct hold {
  uintptr_t base;
  uint64_t id;
};

struct holder {
  struct graph_holder who; /* of a capture: GRAPH_CAPTURES and its stream */
  pthread_t thread;        /* of a capture: whose per-thread stream it is */
  CUcontext context;
  CUgraph target; /* of a capture: the graph that it adds to */
  struct hold *holds;
  size_t count, room;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects what follows */
static struct holder *holders;
static size_t count, room;
static size_t captures_lost; /* open ones that have no holder */

static void lock(void) {
  range_table_hold();
  pthread_mutex_lock(&mutex);
}

static void unlock(void) {
  pthread_mutex_unlock(&mutex);
  range_table_release();
}

static void stay_for_good(struct range *range) {
  atomic_store_explicit(&range->immovable, true, memory_order_relaxed);
}

/* ---- one holder; under both locks ---- */

static struct holder *find(struct graph_holder who) {
  for (size_t i = 0; i < count; i++)
    if (holders[i].who.handle == who.handle && holders[i].who.kind == who.kind)
      return &holders[i];
  return NULL;
}

static struct holder *find_capture(CUstream stream) {
  for (size_t i = 0; i < count; i++)
    if (holders[i].who.kind == GRAPH_CAPTURES && holders[i].who.handle == stream &&
        (stream != CU_STREAM_PER_THREAD || pthread_equal(holders[i].thread, pthread_self())))
      return &holders[i];
  return NULL;
}

static struct holder *append(struct graph_holder who) {
  if (count == room) {
    size_t more = room ? 2 * room : 64;
    struct holder *grown = realloc(holders, more * sizeof *grown);
    if (!grown)
      return NULL;
    holders = grown;
    room = more;
  }
  holders[count] = (struct holder){.who = who};
  return &holders[count++];
}

static struct range *held_range(const struct hold *hold) {
  struct range *range = range_held(hold->base);
  return range && range->id == hold->id ? range : NULL;
}

/* NULL: a graph whose beginning was not seen. */
static void add(struct holder *holder, struct range *range) {
  for (size_t i = 0; holder && i < holder->count; i++)
    if (holder->holds[i].id == range->id)
      return;
  if (holder && holder->count == holder->room) {
    size_t more = holder->room ? 2 * holder->room : 8;
    struct hold *grown = realloc(holder->holds, more * sizeof *grown);
    if (grown) {
      holder->holds = grown;
      holder->room = more;
    } else {
      holder = NULL;
    }
  }
  if (!holder) {
    stay_for_good(range);
    return;
  }
  holder->holds[holder->count++] = (struct hold){range->base, range->id};
  atomic_fetch_add(&range->graph_holds, 1);
}

static void let_go(const struct holder *holder) {
  for (size_t i = 0; i < holder->count; i++) {
    struct range *range = held_range(&holder->holds[i]);
    if (range)
      atomic_fetch_sub(&range->graph_holds, 1);
  }
}

static void end(struct holder *holder) {
  let_go(holder);
  free(holder->holds);
  *holder = holders[--count];
}

static void add_to(struct graph_holder who, struct range *range) {
  if (who.kind != GRAPH_CAPTURES) {
    add(find(who), range);
    return;
  }
  size_t open = 0;
  for (size_t i = 0; i < count; i++)
    if (holders[i].who.kind == GRAPH_CAPTURES) {
      add(&holders[i], range);
      open++;
    }
  if (captures_lost || !open) /* by a capture of which nothing is known */
    stay_for_good(range);
}

/* What a graph without a list names is among what all others name: it was made from one of them, or
   stays for good. */
static void keep_all(void) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < holders[i].count; k++) {
      struct range *range = held_range(&holders[i].holds[k]);
      if (range)
        stay_for_good(range);
    }
}

static void hand_on(struct graph_holder to, struct graph_holder from) {
  const struct holder *source = find(from);
  if (!source) {
    keep_all();
    return;
  }
  for (size_t i = 0; i < source->count; i++) {
    struct range *range = held_range(&source->holds[i]);
    if (range)
      add_to(to, range);
  }
}

/* ---- graphs.h ---- */

void graphs_hold(struct graph_holder who, struct range *range) {
  pthread_mutex_lock(&mutex);
  add_to(who, range);
  touch_again(range); /* behind the hold: who unmaps gives it up (drive.h) */
  pthread_mutex_unlock(&mutex);
}

CUresult graphs_hold_address(struct graph_holder who, uintptr_t address) {
  struct touch_wants wants = {.all = false};
  lock();
  struct range *range = range_held(address);
  if (range) {
    add_to(who, range);
    touch_again(range);
    touch_want(&wants, range, range->base, range->base + range->bytes);
  }
  unlock();
  return touch_bring(&wants);
}

void graphs_capture_began(CUstream stream, CUcontext context, CUgraph target) {
  lock();
  struct holder *capture = append((struct graph_holder){GRAPH_CAPTURES, stream});
  if (capture) {
    capture->thread = pthread_self();
    capture->context = context;
    capture->target = target;
  } else {
    captures_lost++;
  }
  unlock();
}

void graphs_capture_ended(CUstream stream, CUgraph graph) {
  lock();
  struct holder *capture = find_capture(stream);
  if (!capture) {
    captures_lost -= captures_lost != 0;
  } else if (capture->target) { /* its nodes are there even if the capture failed */
    for (size_t i = 0; i < capture->count; i++) {
      struct range *range = held_range(&capture->holds[i]);
      if (range)
        add(find(GRAPHS_TEMPLATE(capture->target)), range);
    }
    end(capture);
  } else if (graph) {
    capture->who = GRAPHS_TEMPLATE(graph);
  } else {
    end(capture);
  }
  unlock();
}

unsigned graphs_forget_captures(CUcontext context) {
  unsigned forgotten = 0;
  lock();
  for (size_t i = count; i-- > 0;)
    if (holders[i].who.kind == GRAPH_CAPTURES && holders[i].context == context) {
      end(&holders[i]);
      forgotten++;
    }
  unlock();
  return forgotten;
}

void graphs_made(struct graph_holder who) {
  lock();
  struct holder *old = find(who); /* its end was not seen */
  if (old)
    end(old);
  if (!append(who))
    keep_all();
  unlock();
}

void graphs_inherit(struct graph_holder to, struct graph_holder from) {
  lock();
  hand_on(to, from);
  unlock();
}

void graphs_replace(struct graph_holder to, struct graph_holder from) {
  lock();
  struct holder *holder = find(to);
  struct holder old = {0};
  if (holder) {
    old = *holder;
    holder->holds = NULL;
    holder->count = holder->room = 0;
  }
  hand_on(to, from); /* before the old list goes, so that no range is free in between */
  let_go(&old);
  free(old.holds);
  unlock();
}

void graphs_gone(struct graph_holder who) {
  lock();
  struct holder *holder = find(who);
  if (holder)
    end(holder);
  unlock();
}
