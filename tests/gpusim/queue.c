/* Operations: how submitted work waits, starts, runs and ends. driver.h draws an operation's life;
   everything here is under gpusim_mutex except while an operation sleeps or runs.

   Order comes from dependencies alone: a (stream, ticket) pair is done when the stream has
   completed that many operations. An operation depends on its predecessor in the stream, on the
   event it waits for, and by the legacy rules: work on the legacy stream waits for all blocking
   streams used since its last work, and they for it.

   Submitting is cheap however many streams there are: only the legacy stream looks at others, and
   only at those used since. Delays are a function of seed, stream and ticket, hence the same in
   every run. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct operation {
  struct operation *next;            /* in its stream */
  struct operation *earlier, *later; /* pending operations of the context, in order of submission */
  struct CUstream_st *stream;
  const struct operation_kind *kind;
  void *argument;
  uint64_t ticket;              /* place in its stream */
  struct operation *next_entry; /* in its hardware queue, while not dispatched */
  uint64_t number;              /* place in its context */
  size_t logged;                /* the clock's entry */
  bool dispatched;
  int dependencies;
  struct dependency after[];
};

struct hardware_queue {
  struct operation *first, *last; /* entries not yet dispatched */
  int occupied;                   /* submitted, not completed */
  pthread_cond_t room;
};
static struct hardware_queue queues[GPUSIM_MAX_DEVICES][GPUSIM_MAX_QUEUES] = {
    [0 ... GPUSIM_MAX_DEVICES -
     1] = {[0 ... GPUSIM_MAX_QUEUES - 1] = {.room = PTHREAD_COND_INITIALIZER}}};
/* Some context's oldest operation ended. */
static pthread_cond_t drained = PTHREAD_COND_INITIALIZER;

/* By id; under GPUSIM_CHAOS by a number that no program can count on. */
static uint64_t queue_number(uint64_t stream_id) {
  if (gpusim_settings.chaos > 0)
    stream_id = gpusim_scramble(gpusim_scramble((uint64_t)gpusim_settings.chaos) ^ stream_id);
  return stream_id % (uint64_t)gpusim_settings.queues;
}

struct hardware_queue *gpusim_queue_of(int device, uint64_t stream_id) {
  return &queues[device][queue_number(stream_id)];
}

static void wait_on(pthread_cond_t *condition) {
  pthread_cond_wait(condition, &gpusim_mutex);
}

/* Whoever waits, waits for or on behalf of a pending operation. */
void gpusim_wake_all(void) {
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
    for (struct operation *o = c->first_pending; o != NULL; o = o->later) {
      pthread_cond_signal(&o->stream->wake);
      pthread_cond_broadcast(&o->stream->ended);
      pthread_cond_broadcast(&o->stream->queue->room);
    }
}

static bool failed(CUcontext context) {
  return atomic_load_explicit(&context->sticky, memory_order_acquire) != CUDA_SUCCESS;
}

static void sleep_us(uint64_t us) {
  struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
  nanosleep(&time, NULL);
}

static uint64_t now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

/* splitmix64 */
uint64_t gpusim_scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* One operation in sixteen is slow for no reason, by 1 to 4 ms; half of the others are late by up
 * to 100 us. */
static uint64_t chaos_us(uint64_t which) {
  uint64_t random = gpusim_scramble(which);
  if (random % 16 == 0) {
    gpusim_count(GPUSIM_COUNT_slow_operations, 1);
    return 1000 + random / 16 % 3000;
  }
  return random % 2 == 0 ? random / 16 % 100 : 0;
}

static void delay(uint64_t stream_id, uint64_t ticket) {
  const struct gpusim_settings *s = &gpusim_settings;
  uint64_t us = 0;
  if (s->delay_us > 0)
    us = gpusim_scramble(gpusim_scramble(gpusim_scramble((uint64_t)s->seed) ^ stream_id) ^ ticket) %
         ((uint64_t)s->delay_us + 1);
  if (s->slow_stream > 0 && stream_id == (uint64_t)s->slow_stream)
    us += (uint64_t)s->slow_us;
  if (s->chaos > 0)
    us += chaos_us(gpusim_scramble(gpusim_scramble((uint64_t)s->chaos) ^ stream_id) ^ ticket);
  if (us > 0)
    sleep_us(us);
}

/* ---- streams' lives ---- */

void gpusim_stream_hold(struct CUstream_st *stream) {
  stream->references++;
}

void gpusim_stream_drop(struct CUstream_st *stream) {
  if (--stream->references > 0)
    return;
  pthread_cond_destroy(&stream->wake);
  pthread_cond_destroy(&stream->ended);
  free(stream);
}

bool gpusim_done(const struct dependency *dependency) {
  return dependency->stream->completed >= dependency->ticket;
}

/* ---- what is stuck, for a person to read ---- */

static void describe(const struct operation *operation, char *into, size_t bytes) {
  if (operation->kind->describe != NULL)
    operation->kind->describe(operation->argument, into, bytes);
  else
    snprintf(into, bytes, "%s", operation->kind->name);
}

static const char *state_of(const struct operation *operation) {
  if (operation->dispatched)
    return "running";
  for (int i = 0; i < operation->dependencies; i++)
    if (!gpusim_done(&operation->after[i]))
      return "waits for another stream";
  if (operation->stream->head != operation)
    return "waits for its stream";
  return operation->stream->queue->first != operation ? "behind another entry of its hardware queue"
                                                      : "first of its hardware queue";
}

__attribute__((noreturn)) static void die_of_deadlock(const struct operation *stuck,
                                                      uint64_t waited_ms) {
  char words[256];
  describe(stuck, words, sizeof words);
  gpusim_violation("stream %llu has waited %llu ms and holds up its hardware queue: %s",
                   (unsigned long long)stuck->stream->id, (unsigned long long)waited_ms, words);
  fprintf(stderr, "gpusim: pending, in order of submission (GPUSIM_QUEUES=%d, GPUSIM_DEPTH=%d):\n",
          gpusim_settings.queues, gpusim_settings.depth);
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c)) {
    int left = 40;
    for (struct operation *o = c->first_pending; o != NULL && left > 0; o = o->later, left--) {
      describe(o, words, sizeof words);
      fprintf(stderr, "gpusim:   device %d stream %llu queue %llu: %s: %s\n", c->device,
              (unsigned long long)o->stream->id, (unsigned long long)queue_number(o->stream->id),
              words, state_of(o));
    }
  }
  gpusim_driver_describe();
  fprintf(stderr, "gpusim: whatever releases a value wait must be enqueued before it\n");
  fflush(stderr);
  gpusim_report_write();
  _exit(GPUSIM_EXIT_DEADLOCK);
}

/* ---- one operation ---- */

/* Polls with the lock released: the word may be written by a thread that knows nothing of us. */
static void wait_for_value(struct operation *operation) {
  uint64_t since = now_ms();
  bool waited = false;
  for (int polls = 0; !failed(operation->stream->context); polls++) {
    gpusim_unlock();
    bool reached = operation->kind->reached(operation->argument);
    if (!reached)
      sleep_us(polls < 20 ? 5 : 50);
    gpusim_lock();
    if (reached)
      return;
    if (!waited)
      gpusim_count(GPUSIM_COUNT_value_waits, 1);
    waited = true;
    uint64_t waited_ms = now_ms() - since;
    if (waited_ms >= (uint64_t)gpusim_settings.deadlock_ms)
      die_of_deadlock(operation, waited_ms);
  }
}

/* An operation of a failed context waits for nobody but the queue's order. */
static void wait_for_dispatch(struct operation *operation) {
  struct CUstream_st *stream = operation->stream;
  struct hardware_queue *queue = stream->queue;
  for (int i = 0; i < operation->dependencies; i++)
    while (!gpusim_done(&operation->after[i]) && !failed(stream->context))
      wait_on(&operation->after[i].stream->ended);
  while (queue->first != operation)
    wait_on(&stream->wake);
  if (operation->kind->reached != NULL)
    wait_for_value(operation);
  operation->dispatched = true;
  queue->first = operation->next_entry;
  if (queue->first == NULL)
    queue->last = NULL;
  else
    pthread_cond_signal(&queue->first->stream->wake);
}

static void drop_argument(const struct operation_kind *kind, void *argument) {
  if (kind->drop != NULL)
    kind->drop(argument);
}

static void complete(struct operation *operation, CUresult result) {
  struct CUstream_st *stream = operation->stream;
  CUcontext context = stream->context;
  if (operation->earlier != NULL) /* of another stream: within a stream they end in order */
    gpusim_count(GPUSIM_COUNT_out_of_order, 1);
  if (operation->earlier != NULL)
    operation->earlier->later = operation->later;
  else
    context->first_pending = operation->later;
  if (operation->later != NULL)
    operation->later->earlier = operation->earlier;
  else
    context->last_pending = operation->earlier;
  stream->head = operation->next;
  if (stream->head == NULL)
    stream->tail = &stream->head;
  stream->completed = operation->ticket;
  stream->queue->occupied--;
  pthread_cond_broadcast(&stream->ended);
  pthread_cond_broadcast(&stream->queue->room);
  if (operation->earlier == NULL)
    pthread_cond_broadcast(&drained);
  for (int i = 0; i < operation->dependencies; i++)
    gpusim_stream_drop(operation->after[i].stream);
  free(operation);
  if (result != CUDA_SUCCESS)
    gpusim_fail(context, result);
}

static void *stream_thread(void *argument) {
  struct CUstream_st *stream = argument;
  gpusim_lock();
  for (;;) {
    while (stream->head == NULL && !stream->stopping)
      pthread_cond_wait(&stream->wake, &gpusim_mutex);
    struct operation *operation = stream->head;
    if (operation == NULL)
      break;
    wait_for_dispatch(operation); // NOLINT(clang-analyzer-unix.Malloc): we hold a reference
    bool skip = failed(stream->context);
    gpusim_unlock();
    if (!skip)
      delay(stream->id, operation->ticket);
    clock_log_running(operation->logged);
    CUresult result = skip ? CUDA_SUCCESS : operation->kind->run(operation->argument);
    clock_log_running(CLOCK_NO_ENTRY);
    if (!skip)
      clock_log_cost(operation->logged, operation->kind, operation->argument);
    gpusim_lock();
    drop_argument(operation->kind, operation->argument);
    complete(operation, result);
  }
  gpusim_stream_drop(stream);
  gpusim_unlock();
  return NULL;
}

/* The program's signals are for the program's threads. */
static bool start_thread(struct CUstream_st *stream) {
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(&thread, NULL, stream_thread, stream) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (started) {
    pthread_detach(thread);
    gpusim_stream_hold(stream);
    stream->started = true;
  }
  return started;
}

/* ---- submitting ---- */

static void depend(struct operation *operation, struct CUstream_st *on, uint64_t ticket) {
  clock_log_after(operation->logged, on->id, ticket);
  if (on->completed >= ticket)
    return;
  gpusim_stream_hold(on);
  operation->after[operation->dependencies++] = (struct dependency){on, ticket};
}

static int count_recent(CUcontext context) {
  int count = 0;
  for (struct CUstream_st *s = context->recent; s != NULL; s = s->next_recent)
    count++;
  return count;
}

/* The legacy stream's two-way rule; cuda.h, CU_STREAM_LEGACY. */
static void depend_by_legacy_rule(struct operation *operation) {
  struct CUstream_st *stream = operation->stream;
  CUcontext context = stream->context;
  if (stream->legacy) {
    while (context->recent != NULL) {
      struct CUstream_st *other = context->recent;
      context->recent = other->next_recent;
      other->recent = false;
      depend(operation, other, other->submitted);
      gpusim_stream_drop(other);
    }
  } else if (!stream->nonblocking) {
    if (context->legacy->submitted > stream->legacy_seen)
      depend(operation, context->legacy, context->legacy->submitted);
    stream->legacy_seen = context->legacy->submitted;
    if (!stream->recent) {
      stream->recent = true;
      stream->next_recent = context->recent;
      context->recent = stream;
      gpusim_stream_hold(stream);
    }
  }
}

/* A full hardware queue blocks the caller, as a driver's does. */
static void wait_for_room(struct CUstream_st *stream) {
  bool blocked = false, full = stream->queue->occupied >= gpusim_settings.depth;
  if (full)
    gpusim_driver_hold("a submit to a full queue");
  while (stream->queue->occupied >= gpusim_settings.depth && !failed(stream->context) &&
         stream->context->alive && !stream->stopping) {
    if (!blocked)
      gpusim_count(GPUSIM_COUNT_blocked_submits, 1);
    blocked = true;
    wait_on(&stream->queue->room);
  }
  if (full)
    gpusim_driver_let_go();
}

static void enqueue(struct operation *operation) {
  struct CUstream_st *stream = operation->stream;
  CUcontext context = stream->context;
  operation->ticket = ++stream->submitted;
  operation->number = ++context->submitted;
  struct hardware_queue *queue = stream->queue;
  queue->occupied++;
  if (queue->last != NULL)
    queue->last->next_entry = operation;
  else
    queue->first = operation;
  queue->last = operation;
  operation->earlier = context->last_pending;
  if (context->last_pending != NULL)
    context->last_pending->later = operation;
  else
    context->first_pending = operation;
  context->last_pending = operation;
  *stream->tail = operation;
  stream->tail = &operation->next;
  pthread_cond_signal(&stream->wake);
}

CUresult gpusim_submit(struct CUstream_st *stream, const struct operation_kind *kind,
                       void *argument, const struct dependency *after) {
  CUresult result = CUDA_SUCCESS;
  if (stream->capture != NULL)
    return gpusim_capture_add(stream, kind, argument);
  gpusim_stream_hold(stream);
  wait_for_room(stream);
  if (stream->stopping)
    result = CUDA_ERROR_INVALID_HANDLE; /* destroyed by another thread while we waited */
  else if (!stream->context->alive)
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* that, or it is ending */
  else if (failed(stream->context))
    result = (CUresult)stream->context->sticky;
  else if (!stream->started && !start_thread(stream))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) {
    drop_argument(kind, argument);
    gpusim_stream_drop(stream);
    return result;
  }
  size_t most = 2 + (size_t)(stream->legacy ? count_recent(stream->context) : 0);
  struct operation *operation = gpusim_new(sizeof *operation + most * sizeof operation->after[0]);
  operation->stream = stream;
  operation->kind = kind;
  operation->argument = argument;
  operation->logged = clock_log_operation(stream);
  clock_log_cost(operation->logged, kind, argument);
  if (after != NULL)
    depend(operation, after->stream, after->ticket);
  depend_by_legacy_rule(operation);
  enqueue(operation);
  if (gpusim_settings.synchronous) {
    gpusim_wait_ticket(stream, stream->submitted);
    result = (CUresult)stream->context->sticky;
  }
  gpusim_stream_drop(stream);
  return result;
}

/* ---- waiting ---- */

void gpusim_wait_ticket(struct CUstream_st *stream, uint64_t ticket) {
  gpusim_stream_hold(stream);
  while (stream->completed < ticket)
    wait_on(&stream->ended);
  clock_log_wait(stream->id, ticket);
  gpusim_stream_drop(stream);
}

CUresult gpusim_drain(struct CUstream_st *stream) {
  CUcontext context = stream->context;
  gpusim_wait_ticket(stream, stream->submitted);
  return (CUresult)context->sticky;
}

void gpusim_drain_context(CUcontext context) {
  uint64_t last = context->submitted;
  while (context->first_pending != NULL && context->first_pending->number <= last)
    wait_on(&drained);
  clock_log_wait_context(context->id);
}

/* ---- memory that is still wanted ---- */

bool gpusim_unused(uintptr_t low, uintptr_t high, const char *call) {
  bool unused = true;
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
    for (struct operation *o = c->first_pending; o != NULL; o = o->later) {
      if (o->kind->touches == NULL || !o->kind->touches(o->argument, low, high))
        continue;
      char words[256];
      describe(o, words, sizeof words);
      gpusim_violation("%s of [%#lx, %#lx) under %s work of stream %llu: %s", call,
                       (unsigned long)low, (unsigned long)high,
                       o->dispatched ? "running" : "queued", (unsigned long long)o->stream->id,
                       words);
      gpusim_fail(c, CUDA_ERROR_ILLEGAL_ADDRESS);
      unused = false;
      break;
    }
  return unused;
}
