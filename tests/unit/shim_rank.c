/* What a rank's steps show of its state's values (shim/rank.c), over memory and a node of this test's own. */
#include "policy/node.h"
#include "policy/ranks.h"
#include "shim/facts.h"
#include "shim/process.h"
#include "shim/range.h"
#include "shim/rank.h"
#include "shim/ring.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSOR = 65536, SMALL = 512, SHOWN_MOST = 16 };
static _Alignas(64) unsigned char large[TENSOR], norm[SMALL];
static bool large_on_host;
static unsigned sharers = 2;
static uint64_t step;
static struct node_step
    shown[SHOWN_MOST]; /* by step, as it is shown at the next one's first launch */
static unsigned shows;

/* ---- what rank.c asks of others ---- */

uint64_t state_step(void) {
  return step;
}
const struct config *process_config(void) {
  return NULL;
}
unsigned ranks_sharers(void) {
  return sharers;
}
void node_join(const struct config *config) {
  (void)config;
}
bool node_step(const struct config *config, const struct node_step *now) {
  (void)config;
  if (shows < SHOWN_MOST)
    shown[shows] = *now;
  shows++;
  return true;
}
bool facts_reduces(void) {
  return false;
}
void ring_each(void (*visit)(struct ring *, void *), void *argument) {
  (void)visit;
  (void)argument;
}
void worker_part(struct worker *worker, unsigned among) {
  (void)worker;
  (void)among;
}
unsigned worker_threads(const struct worker *worker) {
  (void)worker;
  return 0;
}
bool range_on_host(uintptr_t address, size_t bytes) {
  const uintptr_t of_large = address - (uintptr_t)large, of_norm = address - (uintptr_t)norm;
  if (of_large < TENSOR)
    return large_on_host && bytes <= TENSOR - of_large;
  return of_norm < SMALL && bytes <= SMALL - of_norm;
}

/* ---- */

/* So many steps, each of one launch; what the last whole one showed. */
static const uint64_t *steps(unsigned count) {
  const struct state_tensor tensors[] = {{.states = {(uintptr_t)large}, .bytes = TENSOR},
                                         {.states = {(uintptr_t)norm}, .bytes = SMALL}};
  for (unsigned i = 0; i < count; i++) {
    step++;
    rank_launch(tensors, 2, 2 * (TENSOR + SMALL), TENSOR + SMALL);
  }
  return shown[shows - 1].prints;
}

static bool has_any(const uint64_t *prints) {
  for (unsigned i = 0; i < REGISTRY_PRINTS; i++)
    if (prints[i])
      return true;
  return false;
}

/* From the ninth step on: the tenth's has the norm alone, the eleventh's all. */
static const uint64_t *show_part(void) {
  large_on_host = false;
  (void)steps(1);
  large_on_host = true;
  return steps(2);
}

/* A fork is another rank that steps the same. */
static void test_part(void) {
  uint64_t *theirs =
      mmap(NULL, sizeof shown->prints, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const pid_t other = theirs == MAP_FAILED ? -1 : fork();
  if (other == 0) {
    memcpy(theirs, show_part(), sizeof shown->prints);
    _exit(0);
  }
  const uint64_t *prints = show_part();
  int status = 1;
  tap_ok(other > 0 && waitpid(other, &status, 0) == other && !status && prints[3] &&
             prints[3] == theirs[3],
         "another rank's print of the same values is the same");
  tap_ok(!status && prints[2] && theirs[2] && prints[2] != theirs[2],
         "but of a small part of the state, which shards may have in common, each has its own");
}

int main(void) {
  const uint64_t *prints = steps(4);
  tap_ok(shows == 3 && !has_any(prints), "zeros tell nothing");
  large_on_host = true;
  memset(large, 3, sizeof large);
  memset(norm, 5, sizeof norm);
  prints = steps(1); /* the fourth ends */
  tap_ok(!has_any(prints), "nor does what was read before there was anything");
  prints = steps(2);
  const uint64_t first = prints[1], second = prints[2];
  tap_ok(first && first == second && !prints[3], "values that stay show the same print each time");
  large[TENSOR / 2]++;
  prints = steps(1);
  tap_ok(prints[3] == first && !prints[0], "at four steps");
  prints = steps(1);
  tap_ok(prints[0] && prints[0] != first && !prints[1] && !prints[2] && !prints[3],
         "others show another, which takes the place of all that were before");
  test_part();
  return tap_done();
}
