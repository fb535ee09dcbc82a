/* The life of a context's frames (frames.h), and of the process's store, which is opened with the first set and stays until the
   switch. The store registers the memory it was opened with: that of the first set stays mapped, and is the next set's once its own is
   gone.

   The list, the store and what was refused are under the enqueue lock; the store's pointer is also read by any thread. */
#define _GNU_SOURCE
#include "../nvme/clock.h"
#include "../policy/budget.h"
#include "../policy/report.h"
#include "../policy/share.h"
#include "cancel.h"
#include "driver.h"
#include "frames_set.h"
#include "process.h"
#include "quiet.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t mebibyte = (size_t)1 << 20;

static struct frames *sets;
static struct store *_Atomic the_store;
static size_t unit_bytes;
static struct frames_memory store_memory;
static bool store_memory_used;
static bool given_up; /* frames that the store may still work on */
/* Held while the store is being opened, and over a fork. It tells a thread that forks in a handler on top of its own opening, which
   then goes on: nobody could end that wait. */
static pthread_mutex_t opening = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

struct store *frames_store(void) {
  /* acquire: what it points at is there. */
  return atomic_load_explicit(&the_store, memory_order_acquire);
}

static struct frames *find(CUcontext context) {
  struct frames *frames = sets;
  while (frames && frames->context != context)
    frames = frames->next;
  return frames;
}

struct frames *frames_find(CUcontext context) {
  struct frames *frames = find(context);
  return frames && !frames->refused[0] ? frames : NULL;
}

unsigned frames_count(const struct frames *frames) {
  return frames->count;
}
size_t frames_piece_bytes(const struct frames *frames) {
  return frames->piece_bytes;
}

/* ---- making ---- */

/* What staging may take: what was asked for, within what the host can spare beside the state that it holds. 0 with a sentence. */
static size_t spared(size_t piece_bytes, char *why, size_t why_bytes) {
  const size_t least = FRAMES_LEAST * piece_bytes;
  struct config host = *process_config();
  const size_t asked = host.nvme_staging.bytes;
  host.host_memory = (struct config_size){0};
  const int cancel = cancel_hold(); /* it reads files */
  struct budget budget = budget_measure(&host, BUDGET_LOCKED_PAGES, host.sysroot);
  const uint64_t left = share_staging_room(process_config());
  cancel_allow(cancel);
  if (left < budget.bytes)
    budget = (struct budget){left, "what the processes of this node claim"};
  if (asked < least) {
    snprintf(why, why_bytes,
             "OFFLOAD_NVME_STAGING=%zu is too small for %d pieces: set it to at least %zuMiB",
             asked, FRAMES_LEAST, (least + mebibyte - 1) / mebibyte);
    return 0;
  }
  if (budget.bytes < least) {
    char spare[REPORT_SIZE_BYTES], needed[REPORT_SIZE_BYTES];
    snprintf(why, why_bytes,
             "the host can spare %s for staging (limited by %s), and %s is the least: "
             "raise that limit%s",
             report_size_text(budget.bytes, spare), budget.limited_by,
             report_size_text(least, needed),
             strcmp(budget.limited_by, "RLIMIT_MEMLOCK") ? "" : ", as with ulimit -l unlimited");
    return 0;
  }
  return (asked < budget.bytes ? asked : (size_t)budget.bytes) / piece_bytes * piece_bytes;
}

/* It counts in the node's memory. */
static bool stage(size_t bytes, char *why, size_t why_bytes) {
  const int cancel = cancel_hold(); /* it reads files */
  const bool staged = share_stage(process_config(), bytes, why, why_bytes);
  cancel_allow(cancel);
  return staged;
}

static void unstage(size_t bytes) {
  const int cancel = cancel_hold();
  share_unstage(bytes);
  cancel_allow(cancel);
}

/* That which the store has registered if no other set has it, else new. */
static bool take_memory(struct frames_memory *memory, size_t piece_bytes, char *why,
                        size_t why_bytes) {
  if (store_memory.base && !store_memory_used) {
    if (!frames_memory_register(&store_memory, piece_bytes, why, why_bytes))
      return false;
    *memory = store_memory;
    store_memory_used = true;
    return true;
  }
  const size_t bytes = spared(piece_bytes, why, why_bytes);
  if (!bytes || !stage(bytes, why, why_bytes))
    return false;
  const bool made =
      frames_memory_make(memory, bytes, FRAMES_LEAST * piece_bytes, piece_bytes, why, why_bytes);
  unstage(made ? bytes - memory->bytes : bytes);
  return made;
}

static void give_memory(struct frames_memory *memory, bool registered) {
  if (registered)
    frames_memory_unregister(memory);
  if (memory->base == store_memory.base) {
    store_memory_used = false;
  } else {
    frames_memory_free(memory);
    unstage(memory->bytes);
  }
}

static bool open_store(const struct frames_memory *memory, size_t piece_bytes, char *why,
                       size_t why_bytes) {
  const struct config *config = process_config();
  if (frames_store())
    return true;
  const int cancel = cancel_hold(); /* it opens, writes and reads files */
  pthread_mutex_lock(&opening);
  struct store *store = store_open(
      &(struct store_config){
          .directories = config->nvme,
          .limit_bytes = config->nvme_limit.bytes,
          .local_ranks = ranks_sharers(),
          .unit_bytes = piece_bytes,
          .checksums = config->nvme_checksum,
          .slab = memory->base,
          .slab_bytes = memory->bytes,
          .rung = config->test_nvme_rung ? config->test_nvme_rung : "",
          .fault = config->test_nvme ? config->test_nvme : "",
      },
      why, why_bytes);
  if (store) {
    store_memory = *memory;
    store_memory_used = true;
    unit_bytes = piece_bytes;
  }
  /* release: see frames_store. */
  atomic_store_explicit(&the_store, store, memory_order_release);
  pthread_mutex_unlock(&opening);
  cancel_allow(cancel);
  return store;
}

static struct frames *lay_out(CUcontext context, const struct frames_memory *memory,
                              size_t piece_bytes) {
  const unsigned count = (unsigned)(memory->bytes / piece_bytes);
  struct frames *frames = calloc(1, sizeof *frames + count * sizeof *frames->frames);
  if (!frames)
    return NULL;
  frames->context = context;
  frames->piece_bytes = piece_bytes;
  frames->count = count;
  frames->most = count / 2;
  frames->memory = *memory;
  for (unsigned i = 0; i < count; i++)
    frames->frames[i].address = memory->base + i * piece_bytes;
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&frames->changed, &clock);
  pthread_condattr_destroy(&clock);
  pthread_mutex_init(&frames->lock, NULL);
  return frames;
}

/* With the context current. */
static struct frames *make(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes) {
  struct frames_memory memory;
  if (!process_config()->nvme || !piece_bytes) {
    snprintf(why, why_bytes, "OFFLOAD_NVME names no directory on a drive");
    return NULL;
  }
  if (frames_store() && piece_bytes != unit_bytes) {
    snprintf(why, why_bytes,
             "pieces of this device have %zu bytes, and those that are on drives already %zu: set "
             "OFFLOAD_PIECE to the larger",
             piece_bytes, unit_bytes);
    return NULL;
  }
  if (!take_memory(&memory, piece_bytes, why, why_bytes))
    return NULL;
  if (open_store(&memory, piece_bytes, why, why_bytes)) {
    struct frames *frames = lay_out(context, &memory, piece_bytes);
    if (frames)
      return frames;
    snprintf(why, why_bytes, "there is no memory for the list of frames");
  }
  give_memory(&memory, true);
  return NULL;
}

static struct frames *make_in(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes) {
  CUcontext current = NULL;
  struct frames *frames = NULL;
  const CUstreamCaptureMode mode = quiet_begin();
  const bool push = driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context;
  if (push && process_note(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")) {
    snprintf(why, why_bytes, "the context can't be made current");
  } else {
    frames = make(context, piece_bytes, why, why_bytes);
    if (push)
      (void)driver.cuCtxPopCurrent_v2(&current);
  }
  quiet_end(mode);
  return frames;
}

struct frames *frames_of(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes) {
  struct frames *frames = find(context);
  if (!frames) {
    char refused[sizeof frames->refused] = "";
    frames = make_in(context, piece_bytes, refused, sizeof refused);
    if (!frames && (frames = calloc(1, sizeof *frames))) {
      frames->context = context;
      memcpy(frames->refused, refused, sizeof refused);
    }
    if (!frames) {
      snprintf(why, why_bytes, "%s", refused);
      return NULL;
    }
    frames->next = sets;
    sets = frames;
  }
  if (frames->refused[0]) {
    snprintf(why, why_bytes, "%s", frames->refused);
    return NULL;
  }
  if (frames->piece_bytes == piece_bytes)
    return frames;
  snprintf(why, why_bytes, "a frame has %zu bytes, and a piece %zu", frames->piece_bytes,
           piece_bytes);
  return NULL;
}

bool frames_stream_ready(struct frames *frames, char *why, size_t why_bytes) {
  if (!frames->keeper)
    frames->keeper = keeper_start(why, why_bytes);
  return frames->keeper;
}

/* ---- ending ---- */

void frames_fail(struct frames *frames) {
  pthread_mutex_lock(&frames->lock);
  frames->failing = true;
  pthread_cond_broadcast(&frames->changed);
  pthread_mutex_unlock(&frames->lock);
  if (frames->keeper)
    keeper_fail(frames->keeper);
}

bool frames_idle(struct frames *frames, uint64_t limit_ns) {
  const uint64_t end = frames_end_ns(limit_ns);
  pthread_mutex_lock(&frames->lock);
  while (frames->open && clock_now_ns() < end)
    frames_doze(frames, end);
  const bool idle = !frames->open;
  pthread_mutex_unlock(&frames->lock);
  return idle;
}

/* Also until the store has nothing of it under way. */
static bool wait_end(struct frames *frames) {
  const uint64_t end = frames_end_ns(FRAMES_PATIENCE_NS);
  pthread_mutex_lock(&frames->lock);
  while ((frames->open || frames->under_way) && clock_now_ns() < end)
    frames_doze(frames, end);
  const bool ended = !frames->open && !frames->under_way;
  pthread_mutex_unlock(&frames->lock);
  return ended;
}

static void destroy(struct frames *frames) {
  for (unsigned i = 0; i < frames->count; i++)
    for (struct tenancy *t = frames->frames[i].first, *next; t; t = next) {
      next = t->next;
      free(t);
    }
  pthread_mutex_destroy(&frames->lock);
  pthread_cond_destroy(&frames->changed);
  free(frames);
}

void frames_forget_context(CUcontext context, bool gone) {
  struct frames **at = &sets, *frames;
  while ((frames = *at) && frames->context != context)
    at = &frames->next;
  if (!frames)
    return;
  *at = frames->next;
  if (frames->refused[0]) {
    free(frames);
    return;
  }
  if (gone || !frames_idle(frames, FRAMES_PATIENCE_NS))
    frames_fail(frames);
  if (frames->keeper)
    keeper_stop(frames->keeper);
  if (!wait_end(frames)) {
    given_up = true; /* somebody may still write to it */
    return;
  }
  struct frames_memory memory = frames->memory;
  destroy(frames);
  give_memory(&memory, !gone);
}

void frames_end(void) {
  struct store *store = frames_store();
  bool used = store_memory_used || given_up;
  for (const struct frames *frames = sets; frames; frames = frames->next)
    used |= !frames->refused[0];
  if (!store || used)
    return;
  const int cancel = cancel_hold();
  pthread_mutex_lock(&opening);
  atomic_store_explicit(&the_store, NULL, memory_order_relaxed);
  store_end(store); /* which stays: the report tells of it */
  pthread_mutex_unlock(&opening);
  cancel_allow(cancel);
  frames_memory_free(&store_memory);
  unstage(store_memory.bytes);
}

static _Thread_local bool forking;

void frames_before_fork(void) {
  forking = !pthread_mutex_lock(&opening);
}

void frames_after_fork(void) {
  if (forking)
    pthread_mutex_unlock(&opening);
}

void frames_forked(void) {
  opening = (pthread_mutex_t)
      PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP; /* its owner has another number here */
  /* A child's child, too, comes here: by then the descriptors' numbers are others'. */
  struct store *store = atomic_exchange_explicit(&the_store, NULL, memory_order_relaxed);
  if (store)
    store_forked(store);
}
