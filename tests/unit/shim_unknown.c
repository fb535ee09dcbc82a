/* Optimizers of unknown name: the judgement of a launch, a table of cases; and what is told after launches, copies, frees and graphs of this
   test's own, over allocations of its own. */
#include "policy/config.h"
#include "shim/driver.h"
#include "shim/image.h"
#include "shim/pressure.h"
#include "shim/process.h"
#include "shim/range.h"
#include "shim/state.h"
#include "shim/unknown.h"
#include "tests/lib/tap.h"
#include <string.h>

struct driver driver;

/* ---- what unknown.c asks of others ---- */

enum { MIB = 1 << 20, TENSOR = 4 * MIB };
static const uintptr_t memory = 0x7f0000000000, segment_bytes = 64 * MIB;
static bool one_segment; /* else each TENSOR of memory is an allocation */
static uint64_t steps;

struct range *range_find(uintptr_t address) {
  (void)address;
  return NULL;
}
bool pressure_native_find(CUdeviceptr address, struct native_allocation *found) {
  if (address - memory >= 16 * segment_bytes)
    return false;
  const size_t bytes = one_segment ? segment_bytes : TENSOR;
  *found = (struct native_allocation){memory + (address - memory) / bytes * bytes, bytes, 0, true};
  return true;
}
const struct config *process_config(void) {
  static struct config config;
  config.min_allocation.bytes = 2 * MIB;
  return &config;
}
uint64_t state_step(void) {
  return steps;
}
const char *image_function_name(CUfunction function) {
  return (uintptr_t)function >= 0x9000 ? "lattice_relax" : "lattice_slope";
}

/* ---- the judgement ---- */

#define K(size)                                                                                    \
  { .bytes = (size), .whole = true, .kept = true } /* kept, an allocation */
#define O(size)                                                                                    \
  { .bytes = (size), .whole = true } /* other, an allocation */
#define k(size)                                                                                    \
  { .bytes = (size), .kept = true } /* kept, in a larger one */
#define o(size)                                                                                    \
  { .bytes = (size) } /* other, in a larger one */

static const struct judged {
  const char *what;
  bool is, believed;
  struct unknown_operand operands[12];
} judged[] = {
    {"Adam in fp32", true, false, {O(TENSOR), O(TENSOR), K(TENSOR), K(TENSOR)}},
    {"Adam of bf16 parameters and gradients",
     true,
     false,
     {O(TENSOR / 2), O(TENSOR / 2), K(TENSOR), K(TENSOR)}},
    {"Adam with master weights",
     true,
     false,
     {O(TENSOR / 2), O(TENSOR / 2), K(TENSOR), K(TENSOR), K(TENSOR)}},
    {"Adam with step counter and scale",
     true,
     false,
     {O(TENSOR), O(TENSOR), K(TENSOR), K(TENSOR), k(512), O(512)}},
    {"Adam in allocations that were rounded up",
     true,
     false,
     {O(21 * MIB / 2 + MIB), O(11 * MIB), K(22 * MIB), K(21 * MIB)}},
    {"Adam whose gradient lies before free memory",
     true,
     false,
     {o(TENSOR), o(40 * MIB), k(TENSOR), k(TENSOR)}},
    {"Adam of a list of two tensors",
     true,
     false,
     {o(TENSOR), o(8 * MIB), o(TENSOR), o(8 * MIB), k(TENSOR), k(8 * MIB), k(TENSOR), k(8 * MIB)}},
    {"something that nothing else shares memory with",
     false,
     false,
     {K(TENSOR), K(TENSOR), K(TENSOR), K(TENSOR)}},
    {"an elementwise kernel of four tensors",
     false,
     false,
     {O(TENSOR), O(TENSOR), O(TENSOR), O(TENSOR)}},
    {"an elementwise kernel with a constant",
     false,
     false,
     {O(TENSOR), O(TENSOR), K(TENSOR), O(TENSOR)}},
    {"SGD with momentum", false, false, {O(TENSOR), O(TENSOR), K(TENSOR)}},
    {"SGD with momentum, a list of two tensors",
     false,
     false,
     {O(TENSOR), O(TENSOR), K(TENSOR), O(TENSOR), O(TENSOR), K(TENSOR)}},
    {"small tensors", false, false, {O(MIB), O(MIB), K(MIB), K(MIB)}},
    {"weights of two sizes", false, false, {O(TENSOR), O(TENSOR), K(TENSOR), K(8 * MIB)}},
    {"a pair of tables beside larger tensors",
     false,
     false,
     {o(32 * MIB), o(32 * MIB), k(TENSOR), k(TENSOR)}},
    {"a cache beside small tensors", false, false, {O(MIB / 4), O(MIB / 4), K(TENSOR), K(TENSOR)}},
    {"Adam whose last state lies before free memory",
     false,
     false,
     {o(TENSOR), o(TENSOR), k(TENSOR), k(6 * MIB)}},
    {"the same of a kernel that is one", true, true, {o(TENSOR), o(TENSOR), k(TENSOR), k(6 * MIB)}},
    {"a launch of such a kernel that names nothing of one size",
     false,
     true,
     {O(MIB), O(MIB), K(TENSOR), K(8 * MIB)}},
    {"nothing", false, false, {o(0)}},
};

static void test_judgement(void) {
  for (size_t i = 0; i < sizeof judged / sizeof *judged; i++) {
    struct unknown_operand operands[12];
    size_t count = 0;
    memcpy(operands, judged[i].operands, sizeof operands);
    while (count < 12 && operands[count].bytes)
      count++;
    tap_ok(unknown_judge(operands, count, 2 * MIB, judged[i].believed) == judged[i].is,
           "%s: %s launch", judged[i].what, judged[i].is ? "an optimizer's" : "no optimizer's");
  }
}

/* ---- what is seen ---- */

static CUfunction slope, relax; /* of the case at hand */
enum { P, G, M, V };
static uintptr_t at(size_t tensor) {
  return memory + tensor * TENSOR;
}

/* Of the case at hand; what was found before stays found, by other names. */
static struct unknown_found found;
static bool seen(void) {
  return unknown_found(&found);
}

static void step_of(const size_t *tensors) {
  const uintptr_t backward[] = {at(tensors[P]), at(tensors[G])},
                  step[] = {at(tensors[P]), at(tensors[G]), at(tensors[M]), at(tensors[V])};
  unknown_launch(slope, backward, 2);
  unknown_launch(relax, step, 4);
}

static void forget_all(void) {
  for (size_t i = 0; i < 256; i++)
    unknown_freed(at(i));
}

static void begin_case(void) {
  static uintptr_t handle = 0x9000;
  forget_all();
  relax = (CUfunction)(handle += 16);
  slope = (CUfunction)(uintptr_t)16;
}

static const size_t plain[] = {0, 1, 2, 3};

static void test_not(const char *what, void (*between)(int step)) {
  begin_case();
  for (int i = 0; i < 12; i++) {
    step_of(plain);
    between(i);
  }
  tap_ok(!seen(), "%s", what);
}

static void read_state(int step) {
  if (step % 2)
    unknown_access(at(M) + MIB, 16);
}
static void graph(int step) {
  if (step % 3 == 2)
    unknown_unseen();
}
static void other_kernel(int step) {
  const uintptr_t inside = at(V) + 4096;
  if (step % 3 == 2)
    unknown_launch(slope, &inside, 1);
}
static void freed(int step) {
  if (step % 3 == 2)
    unknown_freed(at(M));
}

static void test_sight(void) {
  static const size_t second[] = {4, 5, 6, 7};
  test_not("what a copy reads is no state of its own", read_state);
  test_not("nothing is believed where graphs run, whose addresses aren't known", graph);
  test_not("what another kernel uses, from an address within, is no state", other_kernel);
  test_not("memory that is freed and made anew is no state", freed);

  begin_case();
  for (size_t i = 0; i < 12; i++) { /* tables beside tensors that are others each time */
    const size_t other[] = {8 + 2 * i, 9 + 2 * i, M, V};
    step_of(other);
  }
  tap_ok(!seen(), "without a parameter that is always the same there is no optimizer");

  begin_case();
  for (int i = 0; i < 12; i++) {
    const uintptr_t step[] = {at(P), at(G), at(M), at(V)};
    unknown_launch(relax, step, 4);
  }
  tap_ok(!seen(), "launches without other work in between are no steps");

  begin_case();
  for (int i = 0; i < 3; i++)
    step_of(plain);
  tap_ok(!seen(), "three steps aren't enough");
  step_of(plain);
  step_of(second);
  tap_ok(seen() && !strcmp(found.name, "lattice_relax") && found.ranges == 4 &&
             found.bytes == 4 * (uint64_t)TENSOR && found.state_bytes == 2 * (uint64_t)TENSOR,
         "the fourth is, and tells name, ranges and bytes");
  for (int i = 0; i < 4; i++) {
    step_of(plain);
    step_of(second);
  }
  tap_ok(seen() && found.bytes == 8 * (uint64_t)TENSOR,
         "tensors of other launches are added, each once");
  unknown_freed(at(6));
  tap_ok(seen() && found.bytes == 4 * (uint64_t)TENSOR, "and taken away when they are freed");
  unknown_freed(at(2));
  tap_ok(!seen(), "until there are none");

  begin_case();
  for (int i = 0; i < 4; i++) { /* the second list still has the first's addresses */
    const uintptr_t both[] = {at(4), at(5), at(6), at(7), at(P), at(G), at(M), at(V)};
    step_of(plain);
    for (size_t k = 0; k < 8; k += 4)
      unknown_launch(slope, both + k, 2);
    unknown_launch(relax, both, 8);
  }
  tap_ok(seen() && found.bytes == 8 * (uint64_t)TENSOR && found.state_bytes == found.bytes / 2,
         "what several launches name counts once");

  begin_case();
  one_segment = true;
  for (size_t i = 0; i < 4; i++) { /* gradients lie elsewhere each time */
    const size_t tensors[] = {0, 8 + 2 * i, 1, 2}, next = 3;
    const uintptr_t behind = at(next);
    unknown_launch(slope, &behind, 1);
    step_of(tensors);
  }
  tap_ok(seen() && found.state_bytes == 2 * (uint64_t)TENSOR,
         "tensors in one allocation end where the next known one begins");
  /* The next tensor has free memory behind its last state. */
  for (int i = 0; i < 4; i++) {
    const size_t tensors[] = {0, 8, 1, 2}, last[] = {4, 5, 12, 13};
    step_of(tensors);
    step_of(last);
  }
  tap_ok(seen() && found.state_bytes == 4 * (uint64_t)TENSOR && found.bytes == 8 * (uint64_t)TENSOR,
         "in launches of a kernel that is believed, states are of the smallest size");
  one_segment = false;
}

static void test_end(void) {
  tap_ok(unknown_looking(), "a process is looked at from the first launch on");
  const uintptr_t nothing = 16;
  int launches = 0;
  for (; unknown_looking() && launches < 1 << 20; launches++)
    unknown_launch(slope, &nothing, 1);
  tap_ok(launches > 100000 && launches <= 1 << 18, "for so many launches and no more");
  unknown_look_again();
  tap_ok(!unknown_looking(), "not again at once");
}

int main(void) {
  test_judgement();
  test_sight();
  test_end();
  atomic_store(&unknown_open, true);
  steps = 1;
  unknown_access(at(0), 16);
  tap_ok(!unknown_looking(), "a recognised step ends it");
  unknown_look_again();
  tap_ok(!unknown_looking(), "for good");
  steps = 0;
  atomic_store(&unknown_open, true); /* by who looked before the end and acted behind it */
  unknown_access(at(0), 16);
  tap_ok(!unknown_looking(), "also where another thread was about to look again");
  return tap_done();
}
