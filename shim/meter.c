/* See meter.h. A context has a few spans, used in turn: open while their step is enqueued, closed when the next one begins, then read
   or, when their turn comes again, dropped. */
#include "meter.h"
#include "../nvme/clock.h"
#include "../policy/report.h"
#include "driver.h"

enum { CONTEXTS = 64, SPANS = 6, FIRST_STEPS = 2 };

/* What totals were when a step began. */
struct totals_then {
  uint64_t cpu_ns, down, up, disturbances;
};

struct span {
  CUevent begin, end;
  bool made, closed, timed; /* timed: both events are recorded, on one stream */
  CUstream stream;
  uint64_t began_ns;
  struct totals_then then;
  struct meter_step step;
};

struct meter {
  CUcontext context; /* NULL: free */
  bool without_events;
  unsigned open; /* the span of the present step */
  unsigned oldest, closed;
  bool any; /* a step is open */
  struct span spans[SPANS];
};
static struct meter meters[CONTEXTS];

static struct meter *meter_of(CUcontext context, bool make) {
  struct meter *unused = NULL;
  for (unsigned i = 0; i < CONTEXTS; i++) {
    if (meters[i].context == context)
      return &meters[i];
    if (!meters[i].context && !unused)
      unused = &meters[i];
  }
  if (!make || !unused)
    return NULL;
  *unused = (struct meter){.context = context};
  return unused;
}

static uint64_t total(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* What makes a step unlike others is counted in `disturbances`. */
static struct totals_then totals_now(void) {
  const struct report_totals *t = &report.totals;
  return (struct totals_then){
      .cpu_ns = total(&t->cpu_ns),
      .down = total(&t->link_bytes_down),
      .up = total(&t->link_bytes_up),
      .disturbances = total(&t->pieces_moved) + total(&t->pieces_home) + total(&t->calibrations) +
                      total(&t->drive_pieces_out) + total(&t->drive_faults),
  };
}

/* The present step ends where the next begins. One unlike others is not kept. */
static void close_span(struct meter *meter, uint64_t now_ns, const struct totals_then *now) {
  struct span *span = &meter->spans[meter->open];
  span->step.step_ns = now_ns - span->began_ns;
  span->step.cpu_ns = now->cpu_ns - span->then.cpu_ns;
  span->step.link_down_bytes = now->down - span->then.down;
  span->step.link_up_bytes = now->up - span->then.up;
  meter->any = false;
  if (span->step.step <= FIRST_STEPS || now->disturbances != span->then.disturbances)
    return;
  span->closed = true;
  meter->closed++;
  meter->open = (meter->open + 1) % SPANS;
}

static bool make_events(struct span *span) {
  if (span->made)
    return true;
  if (driver.cuEventCreate(&span->begin, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
    return false;
  span->made = driver.cuEventCreate(&span->end, CU_EVENT_DEFAULT) == CUDA_SUCCESS;
  if (!span->made)
    driver.cuEventDestroy_v2(span->begin);
  return span->made;
}

static void open_span(struct meter *meter, uint64_t step, CUstream stream, uint64_t now_ns,
                      const struct totals_then *now) {
  struct span *span = &meter->spans[meter->open];
  if (span->closed) { /* its events were not over in time */
    span->closed = false;
    meter->oldest = (meter->oldest + 1) % SPANS;
    meter->closed--;
  }
  meter->any = true;
  span->timed = false;
  span->stream = stream;
  span->began_ns = now_ns;
  span->then = *now;
  span->step = (struct meter_step){.step = step};
  if (step <= FIRST_STEPS || meter->without_events)
    return;
  meter->without_events = !driver.cuEventElapsedTime || !make_events(span);
  span->timed = !meter->without_events && driver.cuEventRecord(span->begin, stream) == CUDA_SUCCESS;
}

void meter_launch(CUcontext context, uint64_t step, CUstream stream) {
  struct meter *meter = meter_of(context, true);
  if (!meter)
    return;
  struct span *span = &meter->spans[meter->open];
  if (meter->any && span->step.step == step) {
    span->timed = span->timed && span->stream == stream;
    return;
  }
  const uint64_t now_ns = clock_now_ns();
  const struct totals_then now = totals_now();
  if (meter->any)
    close_span(meter, now_ns, &now);
  open_span(meter, step, stream, now_ns, &now);
}

void meter_launched(CUcontext context, CUstream stream) {
  struct meter *meter = meter_of(context, false);
  struct span *span = meter ? &meter->spans[meter->open] : NULL;
  if (span && meter->any && span->timed)
    span->timed = driver.cuEventRecord(span->end, stream) == CUDA_SUCCESS;
}

bool meter_read(CUcontext context, struct meter_step *step) {
  struct meter *meter = meter_of(context, false);
  if (!meter || !meter->closed)
    return false;
  struct span *span = &meter->spans[meter->oldest];
  if (span->timed) {
    float ms = 0;
    const CUresult over = driver.cuEventQuery(span->end);
    if (over == CUDA_ERROR_NOT_READY)
      return false;
    if (over == CUDA_SUCCESS &&
        driver.cuEventElapsedTime(&ms, span->begin, span->end) == CUDA_SUCCESS && ms > 0)
      span->step.optimizer_ns = (uint64_t)((double)ms * 1e6);
  }
  *step = span->step;
  span->closed = false;
  meter->oldest = (meter->oldest + 1) % SPANS;
  meter->closed--;
  return true;
}

void meter_forget(CUcontext context, bool gone) {
  struct meter *meter = context ? meter_of(context, false) : NULL;
  if (!meter)
    return;
  for (unsigned i = 0; i < SPANS && !gone; i++)
    if (meter->spans[i].made) {
      driver.cuEventDestroy_v2(meter->spans[i].begin);
      driver.cuEventDestroy_v2(meter->spans[i].end);
    }
  *meter = (struct meter){0};
}
