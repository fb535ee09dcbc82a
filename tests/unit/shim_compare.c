/* Pieces that are verified, by the worker alone: the GPU's words and results are written by this program. What is compared
   before it is applied must never be stepped in place, a difference that ends the job must let nothing more be stepped, and
   bits are compared as the arithmetic promises them. */
#define _GNU_SOURCE
#include "shim/worker.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <time.h>

enum { ELEMENTS = 500, SPOILT = 321 };

static const struct adam_api *right;
static struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
static const struct adam_candidate candidate = {
    .generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
static const struct adam_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8};

/* What the team was given, and whether it errs. */
static const void *stepped_in;
static unsigned steps;
static bool spoil;

static bool spy(struct adam_team *team, const struct adam_job *job) {
  stepped_in = job->exp_avg;
  steps++;
  const bool done = right->step(team, job);
  if (spoil)
    ((float *)job->exp_avg)[SPOILT] *= 2;
  return done;
}

struct probe {
  float p[PROBE_ELEMENTS], g[PROBE_ELEMENTS], m[PROBE_ELEMENTS], v[PROBE_ELEMENTS];
};
static struct probe inputs;
static struct proof_results results;
static _Atomic uint32_t proof_ready;
static float verdict;
static _Atomic int refused;

static struct {
  _Alignas(64) struct slot_words words;
  _Alignas(64) struct check_words check;
  float gradient[ELEMENTS], update[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
  float shadow_m[ELEMENTS], shadow_v[ELEMENTS], made[ELEMENTS];
  float kernel_p[ELEMENTS], kernel_m[ELEMENTS], kernel_v[ELEMENTS];
} piece;
static _Atomic int differed;
static struct report_function row;
static uint32_t generation;

static void wait_for(const _Atomic uint32_t *word) {
  while (atomic_load_explicit(word, memory_order_acquire) != generation)
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void set(_Atomic uint32_t *word) {
  atomic_store_explicit(word, generation, memory_order_release);
}

/* The program's kernel, on the probe and on copies of the piece. */
static void play_kernel(bool right_proof) {
  struct adam_scalars scalars;
  struct probe *probe = (struct probe *)(void *)results.probes;
  *probe = inputs;
  results.gathered[0] = 3;
  right->scalars(candidate.generation, &hyper, 3, 0, 0, &scalars);
  right->reference(
      &candidate, &hyper, &scalars, PROBE_ELEMENTS,
      &(struct adam_tensors){.p = probe->p, .g = probe->g, .m = probe->m, .v = probe->v});
  if (!right_proof)
    probe->p[3] *= 2;
  for (unsigned i = 0; i < ELEMENTS; i++) {
    piece.gradient[i] = (float)(i % 97) * 0.01f - 0.4f;
    piece.m[i] = piece.kernel_m[i] = 0.001f * (float)(i % 13);
    piece.v[i] = piece.kernel_v[i] = 0.0001f * (float)(i % 7);
    piece.kernel_p[i] = (float)i;
  }
  right->reference(
      &candidate, &hyper, &scalars, ELEMENTS,
      &(struct adam_tensors){
          .p = piece.kernel_p, .g = piece.gradient, .m = piece.kernel_m, .v = piece.kernel_v});
  memcpy(piece.made, piece.kernel_p, sizeof piece.made);
}

/* A launch of one piece; the status that the words in front of the parameter's place end with. */
static enum slot_status launch(struct worker *worker, bool before, bool right_proof) {
  generation++;
  play_kernel(right_proof);
  const struct proof_job proof = {
      .ready = &proof_ready,
      .generation = generation,
      .inputs = &inputs,
      .results = &results,
      .verdict = &verdict,
      .tensors = 1,
      .candidate = candidate,
      .hyper = hyper,
      .elements = ELEMENTS,
      .refused = &refused,
      .checked = {"AdamW fp32", &differed, &row, .step = generation, .first_in_doubt = 1}};
  const struct piece_job job = {.words = &piece.words,
                                .generation = generation,
                                .last = true,
                                .gradient = piece.gradient,
                                .exp_avg = piece.m,
                                .exp_avg_sq = piece.v,
                                .update = piece.update,
                                .elements = ELEMENTS,
                                .check = {.words = &piece.check,
                                          .generation = generation,
                                          .before = before,
                                          .kernel_parameter = piece.kernel_p,
                                          .kernel_states = {piece.kernel_m, piece.kernel_v},
                                          .parameter_made = piece.made,
                                          .shadow = {piece.shadow_m, piece.shadow_v}}};
  worker_prove(worker, &proof);
  worker_step(worker, &job);
  set(&proof_ready);
  set(&piece.words.ready);
  set(&piece.check.copied);
  wait_for(&piece.words.done);
  set(&piece.check.applied);
  wait_for(&piece.check.checked);
  return (enum slot_status)(atomic_load(&piece.check.status) - slot_status(generation, SLOT_APPLY));
}

static bool is_kernels(void) {
  return memcmp(piece.m, piece.kernel_m, sizeof piece.m) == 0 &&
         memcmp(piece.v, piece.kernel_v, sizeof piece.v) == 0;
}

static void test_before(struct worker *worker) {
  tap_ok(launch(worker, true, true) == SLOT_APPLY && stepped_in == piece.shadow_m && is_kernels() &&
             !differed,
         "what is compared before it is applied is stepped in copies, and is there afterwards");
  spoil = true;
  tap_ok(launch(worker, true, true) == SLOT_APPLY && stepped_in == piece.shadow_m && is_kernels() &&
             differed,
         "what differs is not applied: the state is the program's kernel's");
  tap_ok(row.mismatches == 1 && row.verified == 2 && row.doubt_first_step == 0,
         "it is counted, and nothing is in doubt");
  spoil = false;
  differed = 0;
}

static void test_refused(struct worker *worker) {
  const unsigned before = steps;
  tap_ok(launch(worker, true, false) == SLOT_REFUSED && steps == before && !is_kernels() &&
             verdict == 0.0f && row.verified == 2,
         "a refused piece keeps nothing and counts for nothing");
}

static void test_stop(struct worker *worker) {
  tap_ok(launch(worker, false, true) == SLOT_APPLY && stepped_in == piece.m && is_kernels() &&
             row.verified == 3,
         "what is looked at afterwards is stepped in place");
  spoil = true;
  tap_ok(launch(worker, false, true) == SLOT_FAILED &&
             atomic_load(&piece.words.status) == slot_status(generation, SLOT_FAILED) && differed &&
             row.doubt_first_step == 1 && row.doubt_last_step == generation,
         "a difference ends as failed before the parameter is made, with the steps in doubt");
  const unsigned before = steps;
  verdict = 0.5f;
  tap_ok(launch(worker, false, true) == SLOT_FAILED && steps == before && verdict == 0.5f,
         "and nothing is stepped behind it");
}

/* The same NaN or another, in float and in double. */
static void test_nan(void) {
  static const uint32_t floats[2] = {0x7fffffff, 0x7fc00000};
  static const uint64_t doubles[3] = {0x7ff8000000000001, 0xfff8000000000000, 0x3ff0000000000000};
  const struct checked_function function = {"Adam", &differed, NULL, .step = 1};
  const float zero = 0;
  const double wide_zero = 0;
  struct piece_check check = {.before = true, .kernel_states = {&floats[0], &zero}};
  struct piece_shape shape = {.elements = 1};
  void *states[CHECK_STATES] = {(void *)(uintptr_t)&floats[0], (void *)(uintptr_t)&zero};
  const bool same = compare_states(right, &config, &check, &function, &shape, states);
  states[0] = (void *)(uintptr_t)&floats[1];
  tap_ok(same && !compare_states(right, &config, &check, &function, &shape, states),
         "a NaN of floats is compared bit by bit");
  shape.kernel.type = shape.kernel.state_type = ADAM_TYPE_DOUBLE;
  check.kernel_states[0] = &doubles[0];
  check.kernel_states[1] = &wide_zero;
  states[0] = (void *)(uintptr_t)&doubles[1];
  states[1] = (void *)(uintptr_t)&wide_zero;
  const bool either = compare_states(right, &config, &check, &function, &shape, states);
  states[0] = (void *)(uintptr_t)&doubles[2];
  tap_ok(either && !compare_states(right, &config, &check, &function, &shape, states),
         "of doubles any NaN will do, whose payload nobody promises, and nothing else");
}

int main(void) {
  char why[256] = "";
  right = offload_adam();
  struct adam_api api = *right;
  api.step = spy;
  tap_ok(probe_make(right, &candidate, &hyper, true, &inputs) > 0, "the proof's inputs are made");
  struct worker *worker = worker_start(&api, &config, why, sizeof why);
  if (!tap_ok(worker != NULL, "the worker starts%s", why))
    return tap_done();
  test_before(worker);
  test_refused(worker);
  test_stop(worker);
  worker_stop(worker);
  test_nan();
  return tap_done();
}
