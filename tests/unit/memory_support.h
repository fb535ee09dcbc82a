/* What the tests of the memory rooms share: the simulated driver behind the rooms' table, a process
   that can be told what to say, and memory with known content. Each case runs in a child of its
   own: the rooms keep process-wide state. */
#ifndef MEMORY_SUPPORT_H
#define MEMORY_SUPPORT_H
#include "policy/report.h"
#include "shim/driver.h"
#include "shim/lock.h"
#include "shim/move.h"
#include "shim/pressure.h"
#include "shim/process.h"
#include "shim/range.h"
#include "shim/state.h"
#include "shim/tier.h"
#include "shim/touch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 65536, DEVICE_BYTES = 64 * PIECE };

/* What the rooms are told; children begin with these values: full mode, room for everything, no
 * capture, no Adam. */
extern struct config config;
extern uint64_t budget_bytes;
extern size_t observed_steps,
    observed_moments; /* that OFFLOAD_MODE=observe was told of; moments of the last */
extern _Atomic bool capture_open, adam_seen, stopped;
extern char stop_reason[512]; /* the last */

/* Runs a case in a child, which loads a fresh driver with the given switches ("NAME=value
   NAME=value"); true when it returned NULL. Else it returned a sentence that says what is wrong. */
int case_status(const char *switches, const char *(*body)(void)); /* the exit status instead */
bool case_passes(const char *switches, const char *(*body)(void));
#define TEST_CASE(sentence, switches, body) tap_ok(case_passes(switches, body), "%s", sentence)

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return wrong(__LINE__, #condition);                                                          \
  } while (0)
const char *wrong(int line, const char *condition);

/* Memory of `bytes` that is a range, filled with bytes that depend on `seed` and position; 0 when
 * it can't be made. */
uintptr_t filled(size_t bytes, unsigned seed);
void fill(uintptr_t address, size_t bytes, unsigned seed);
bool holds(uintptr_t address, size_t bytes, unsigned seed);

/* Names tensors {m, v, bytes} as a recognised launch does. */
CUresult step_names(const struct state_tensor *tensors, size_t count, CUstream stream);

unsigned pieces_on_host(uintptr_t base);
size_t device_free(void);
CUstream new_stream(void);
/* Makes the stream's following work wait for so many milliseconds. */
void delay(CUstream stream, unsigned milliseconds);
bool reported(const char *part);

/* What the simulator has, whatever the rooms' table says. */
const struct driver *whole_driver(void);

/* Driver calls that fail: from call `first` on, `times` of them; counts all calls of the wrapped
 * functions. */
void failing(unsigned first, unsigned times);
extern unsigned calls_made, calls_failed;
#endif
