/* Times of steps (shim/meter.c) on a driver made here, whose events are over when the test says so. */
#include "policy/report.h"
#include "shim/driver.h"
#include "shim/meter.h"
#include "tests/lib/tap.h"
#include <string.h>

struct driver driver;

enum { EVENTS = 64 };
static struct {
  bool recorded, over, gone;
  double ms;
} events[EVENTS];
static unsigned made, destroyed, records, waits;
static double now_ms;

static unsigned number_of(CUevent event) {
  return (unsigned)(uintptr_t)event - 1;
}
static CUresult fake_create(CUevent *event, unsigned flags) {
  if (flags != CU_EVENT_DEFAULT || made == EVENTS)
    return CUDA_ERROR_INVALID_VALUE;
  *event = (CUevent)(uintptr_t)(++made);
  return CUDA_SUCCESS;
}
static CUresult fake_destroy(CUevent event) {
  destroyed += event && !events[number_of(event)].gone;
  events[number_of(event)].gone = true;
  return CUDA_SUCCESS;
}
static CUresult fake_record(CUevent event, CUstream stream) {
  (void)stream;
  records++;
  events[number_of(event)].recorded = true;
  events[number_of(event)].over = false;
  events[number_of(event)].ms = now_ms++;
  return CUDA_SUCCESS;
}
static CUresult fake_query(CUevent event) {
  return events[number_of(event)].over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult fake_elapsed(float *ms, CUevent begin, CUevent end) {
  if (!events[number_of(end)].over)
    return CUDA_ERROR_NOT_READY;
  *ms = (float)(events[number_of(end)].ms - events[number_of(begin)].ms);
  return CUDA_SUCCESS;
}
static CUresult fake_wait(CUevent event) {
  (void)event;
  waits++;
  return CUDA_SUCCESS;
}

static void all_over(void) {
  for (unsigned i = 0; i < made; i++)
    events[i].over = events[i].recorded;
}

static const CUcontext one = (CUcontext)(uintptr_t)16, other = (CUcontext)(uintptr_t)32;
static const CUstream stream = (CUstream)(uintptr_t)48, second = (CUstream)(uintptr_t)64;

static void step(CUcontext context, uint64_t number, unsigned launches) {
  for (unsigned i = 0; i < launches; i++) {
    meter_launch(context, number, stream);
    meter_launched(context, stream);
  }
}

int main(void) {
  driver.cuEventCreate = fake_create;
  driver.cuEventDestroy_v2 = fake_destroy;
  driver.cuEventRecord = fake_record;
  driver.cuEventQuery = fake_query;
  driver.cuEventElapsedTime = fake_elapsed;
  driver.cuEventSynchronize = fake_wait;
  struct meter_step read;

  step(one, 1, 1);
  step(one, 2, 1);
  step(one, 3, 1);
  all_over();
  tap_ok(!meter_read(one, &read) && records == 2,
         "the first two steps are left out, and nothing is recorded for them");
  step(one, 4, 3);
  tap_ok(records == 2 + 4, "a step of one launch costs two records, each further launch one");
  all_over();
  report_add(link_bytes_down, 100);
  report_add(link_bytes_up, 200);
  report_add(cpu_ns, 300);
  step(one, 5, 1);
  tap_ok(meter_read(one, &read) && read.step == 3 && read.optimizer_ns == 1000000 &&
             read.step_ns > 0,
         "a step's time on the stream is that between its events, and its whole time is known");
  all_over();
  tap_ok(
      meter_read(one, &read) && read.step == 4 && read.optimizer_ns == 3000000 &&
          read.link_down_bytes == 100 && read.link_up_bytes == 200 && read.cpu_ns == 300,
      "from the first launch to the last of several, with the bytes and the CPU time of that step");
  tap_ok(!meter_read(one, &read),
         "each step is read once, and the one that is going on not at all");

  step(one, 6, 1); /* 5 is over for the host; its events are not */
  for (unsigned i = 0; i < made; i++)
    events[i].over = false;
  tap_ok(!meter_read(one, &read), "a step whose events are not over isn't read");
  all_over();
  tap_ok(meter_read(one, &read) && read.step == 5, "it is when they are");

  for (uint64_t number = 7; number < 40; number++) {
    step(one, number, 1);
    (void)meter_read(one, &read);
  }
  const unsigned most = made;
  tap_ok(most <= 12 && !meter_read(one, &read) && !waits,
         "a program far ahead of its device is never waited for, with the same few events");
  all_over();
  unsigned kept = 0;
  uint64_t first = 0;
  for (; meter_read(one, &read); kept++)
    first = first ? first : read.step;
  tap_ok(kept >= 4 && kept <= 6 && first > 30,
         "the last of its steps are read, the others dropped");

  step(one, 40, 1);
  report_add(pieces_moved, 1);
  step(one, 41, 1);
  step(one, 42, 1);
  all_over();
  unsigned disturbed = 0;
  while (meter_read(one, &read))
    disturbed += read.step == 40;
  tap_ok(!disturbed && read.step == 41,
         "a step in which pieces moved is left out, the next is not");

  meter_launch(one, 43, stream);
  meter_launched(one, stream);
  meter_launch(one, 43, second);
  meter_launched(one, second);
  step(one, 44, 1);
  all_over();
  while (meter_read(one, &read) && read.step < 43)
    ;
  tap_ok(read.step == 43 && !read.optimizer_ns && read.step_ns,
         "of a step on two streams only the whole time is known");

  for (uint64_t number = 1; number < 5; number++)
    step(other, number, 1);
  step(one, 45, 1);
  all_over();
  tap_ok(meter_read(other, &read) && read.step == 3 && meter_read(one, &read) && read.step == 44,
         "each context has steps of its own");
  meter_forget(other, true);
  tap_ok(!meter_read(other, &read) && !destroyed, "with a context its steps are forgotten");
  const unsigned before = made;
  for (uint64_t number = 1; number < 6; number++)
    step(other, number, 1);
  meter_forget(other, false);
  tap_ok(!meter_read(other, &read) && made > before && destroyed == made - before,
         "in one that isn't gone yet its events are destroyed, each once");

  driver.cuEventElapsedTime = NULL;
  records = 0;
  for (uint64_t number = 1; number < 5; number++)
    step(other, number, 1);
  tap_ok(meter_read(other, &read) && read.step == 3 && !read.optimizer_ns && read.step_ns &&
             !records,
         "a driver without times of events gives the whole step's time alone");
  return tap_done();
}
