/* The worker against a thread that plays the GPU: it writes `ready`, waits for `done` and reads what the worker left, as the
   side streams do. Under a race checker this shows whether the words order the rest. */
#define _GNU_SOURCE
#include "shim/worker.h"
#include "tests/lib/tap.h"
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ELEMENTS = 1000, SLOTS = 4, PIECES = 3000 };

static const struct adam_api *api;
static struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
static const struct adam_candidate candidate = {
    .generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
static const struct adam_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8};

struct slot {
  _Alignas(64) struct slot_words words;
  float gradient[ELEMENTS], update[ELEMENTS];
  float m[ELEMENTS], v[ELEMENTS];
};
static struct slot slots[SLOTS];
static struct proof_results results;
struct probe {
  float p[PROBE_ELEMENTS], g[PROBE_ELEMENTS], m[PROBE_ELEMENTS], v[PROBE_ELEMENTS];
};
static struct probe inputs;
static _Atomic uint32_t proof_ready;
static float verdict;
static _Atomic int refused;

static void nap(long ns) {
  nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void wait_done(const struct slot *slot, uint32_t generation) {
  while ((int32_t)(atomic_load_explicit(&slot->words.done, memory_order_acquire) - generation) < 0)
    nap(20000);
}

static struct probe *probe_of(unsigned tensor) {
  return (struct probe *)(void *)results.probes + tensor;
}

/* What the device would bring down for `tensors` tensors at this step; `wrong` spoils the last one. */
static void device_proof(unsigned tensors, float step, bool wrong) {
  struct adam_scalars scalars;
  for (unsigned t = 0; t < tensors; t++) {
    struct probe *probe = probe_of(t);
    *probe = inputs;
    results.gathered[t] = step + (float)(t % 2);
    api->scalars(candidate.generation, &hyper, results.gathered[t], 0, 0, &scalars);
    api->reference(
        &candidate, &hyper, &scalars, PROBE_ELEMENTS,
        &(struct adam_tensors){.p = probe->p, .g = probe->g, .m = probe->m, .v = probe->v});
  }
  if (wrong) {
    uint32_t bits;
    memcpy(&bits, &probe_of(tensors - 1)->p[3], 4);
    bits ^= 1;
    memcpy(&probe_of(tensors - 1)->p[3], &bits, 4);
  }
}

static struct proof_job proof_job(uint32_t generation, unsigned tensors) {
  return (struct proof_job){.ready = &proof_ready,
                            .generation = generation,
                            .inputs = &inputs,
                            .results = &results,
                            .verdict = &verdict,
                            .tensors = tensors,
                            .candidate = candidate,
                            .hyper = hyper,
                            .elements = ELEMENTS,
                            .refused = &refused};
}

static struct piece_job piece_job(struct slot *slot, uint32_t generation, unsigned tensor,
                                  bool last) {
  return (struct piece_job){.words = &slot->words,
                            .generation = generation,
                            .tensor = tensor,
                            .last = last,
                            .gradient = slot->gradient,
                            .exp_avg = slot->m,
                            .exp_avg_sq = slot->v,
                            .update = slot->update,
                            .elements = ELEMENTS};
}

static void fill(struct slot *slot) {
  for (unsigned i = 0; i < ELEMENTS; i++) {
    slot->gradient[i] = (float)(i % 97) * 0.01f - 0.4f;
    slot->m[i] = 0.001f * (float)(i % 13);
    slot->v[i] = 0.0001f * (float)(i % 7);
    slot->update[i] = -1;
  }
}

/* What the piece must leave, by the reference: with p == 0 and no decay, p becomes -u. */
static bool stepped_right(const struct slot *before, const struct slot *after, float step) {
  static float p[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
  struct adam_scalars scalars;
  memset(p, 0, sizeof p);
  memcpy(m, before->m, sizeof m);
  memcpy(v, before->v, sizeof v);
  api->scalars(candidate.generation, &hyper, step, 0, 0, &scalars);
  api->reference(
      &candidate, &hyper, &scalars, ELEMENTS,
      &(struct adam_tensors){.p = p, .g = (void *)(uintptr_t)before->gradient, .m = m, .v = v});
  for (unsigned i = 0; i < ELEMENTS; i++)
    if (p[i] != -after->update[i])
      return false;
  return memcmp(m, after->m, sizeof m) == 0 && memcmp(v, after->v, sizeof v) == 0 &&
         after->words.lr_decay == scalars.lr_decay;
}

static void test_order(struct worker *worker) {
  static struct slot before;
  struct slot *slot = &slots[0];
  fill(slot);
  before = *slot;
  const struct proof_job proof = proof_job(1, 2);
  const struct piece_job piece = piece_job(slot, 1, 1, true);
  worker_prove(worker, &proof);
  worker_step(worker, &piece);
  nap(20000000);
  tap_ok(atomic_load(&slot->words.done) == 0 && slot->m[1] == before.m[1],
         "nothing happens before the proof is down");
  device_proof(2, 5, false);
  atomic_store_explicit(&proof_ready, 1, memory_order_release);
  nap(20000000);
  tap_ok(atomic_load(&slot->words.done) == 0 && slot->m[1] == before.m[1],
         "nor before the piece's own gradient is");
  atomic_store_explicit(&slot->words.ready, 1, memory_order_release);
  wait_done(slot, 1);
  tap_ok(atomic_load(&slot->words.status) == slot_status(1, SLOT_APPLY),
         "then its status says apply");
  tap_ok(stepped_right(&before, slot, 6),
         "with the moments and the update of its own tensor's step");
  tap_ok(worker_wait_idle(worker, 1000000000) && verdict == 1.0f && !refused,
         "and the verdict lets the program's kernel skip");
}

static void test_refusal(struct worker *worker) {
  static struct slot before;
  struct slot *slot = &slots[0];
  fill(slot);
  before = *slot;
  const struct proof_job proof = proof_job(2, 3);
  const struct piece_job piece = piece_job(slot, 2, 0, true);
  worker_prove(worker, &proof);
  worker_step(worker, &piece);
  device_proof(3, 5, true);
  atomic_store_explicit(&proof_ready, 2, memory_order_release);
  nap(20000000);
  tap_ok(atomic_load(&slot->words.done) == 1,
         "a refused piece still leaves its slot's words alone until they are its own");
  atomic_store_explicit(&slot->words.ready, 2, memory_order_release);
  wait_done(slot, 2);
  tap_ok(atomic_load(&slot->words.status) == slot_status(2, SLOT_REFUSED) &&
             memcmp(slot->m, before.m, sizeof before.m) == 0 &&
             memcmp(slot->v, before.v, sizeof before.v) == 0 &&
             memcmp(slot->update, before.update, sizeof before.update) == 0,
         "one wrong bit in one tensor's proof: nothing of the launch is touched");
  tap_ok(worker_wait_idle(worker, 1000000000) && verdict == 0.0f && refused == 1,
         "the verdict asks the program's kernel, and the refusal is known");
}

/* Tensors with the same step counter, which share what is computed: the second one's probe is wrong. */
static void test_refusal_of_equals(struct worker *worker) {
  struct slot *slot = &slots[0];
  const struct proof_job proof = proof_job(3, 2);
  const struct piece_job piece = piece_job(slot, 3, 0, true);
  worker_prove(worker, &proof);
  worker_step(worker, &piece);
  device_proof(1, 5, false);
  results.gathered[1] = results.gathered[0];
  *probe_of(1) = *probe_of(0);
  probe_of(1)->v[200] *= 2;
  atomic_store_explicit(&proof_ready, 3, memory_order_release);
  atomic_store_explicit(&slot->words.ready, 3, memory_order_release);
  wait_done(slot, 3);
  tap_ok(atomic_load(&slot->words.status) == slot_status(3, SLOT_REFUSED),
         "a wrong probe is seen beside a right one with the same step counter");
}

/* State in two places that are there when told, and what the worker did with it. */
struct places {
  struct paged_state *paged;
  _Atomic bool there, lost;
  unsigned waits;
  bool wrote;
  unsigned dones;
};
static struct places places;

static bool places_wait(struct paged_state *paged, const _Atomic bool *give_up) {
  (void)paged;
  places.waits++;
  while (!atomic_load(&places.there) && !atomic_load(&places.lost) && !atomic_load(give_up))
    nap(20000);
  return atomic_load(&places.there);
}

static void places_done(struct paged_state *paged, bool wrote) {
  places.dones++;
  places.wrote = wrote;
  free(paged);
}

/* Three stretches over the slot's own m and v, swapped about: nothing lies where the piece's elements would have it. */
enum { CUT_ONE = 301, CUT_TWO = 700 };
static float paged_m[ELEMENTS + 64], paged_v[ELEMENTS + 64];

static void page(const struct slot *slot) {
  static const uint64_t cuts[] = {0, CUT_ONE, CUT_TWO, ELEMENTS};
  struct paged_state *paged = calloc(1, sizeof *paged + 3 * sizeof *paged->stretches);
  places = (struct places){.paged = paged};
  paged->wait = places_wait;
  paged->done = places_done;
  for (unsigned i = 0; i < 3; i++) {
    const uint64_t first = cuts[i], count = cuts[i + 1] - first;
    float *m = paged_m + first + (size_t)16 * i + 1, *v = paged_v + first + (size_t)8 * i;
    memcpy(m, slot->m + first, count * sizeof *m);
    memcpy(v, slot->v + first, count * sizeof *v);
    paged->stretches[paged->count++] =
        (struct stretch){.first = first, .elements = count, .states = {m, v}};
  }
}

/* What the places hold, put together in a slot. */
static void put_together(struct slot *slot) {
  static const uint64_t cuts[] = {0, CUT_ONE, CUT_TWO, ELEMENTS};
  for (unsigned i = 0; i < 3; i++) {
    const size_t first = cuts[i], bytes = (cuts[i + 1] - first) * sizeof(float);
    memcpy(slot->m + first, paged_m + first + (size_t)16 * i + 1, bytes);
    memcpy(slot->v + first, paged_v + first + (size_t)8 * i, bytes);
  }
}

static void hand_paged(struct worker *worker, uint32_t generation, bool wrong) {
  const struct proof_job proof = proof_job(generation, 2);
  struct piece_job piece = piece_job(&slots[0], generation, 1, false);
  piece.exp_avg = piece.exp_avg_sq = NULL;
  piece.paged = places.paged;
  worker_prove(worker, &proof);
  tap_ok(worker_wait_proof(worker, 1000000) == PROOF_UNKNOWN,
         "the verdict of a proof that is not down is not known in time");
  device_proof(2, 5, wrong);
  atomic_store_explicit(&proof_ready, generation, memory_order_release);
  tap_ok(worker_wait_proof(worker, 10000000000u) == (wrong ? PROOF_REFUSED : PROOF_PROVEN),
         "then it is: %s", wrong ? "refused" : "proven");
  worker_step(worker, &piece);
  atomic_store_explicit(&slots[0].words.ready, generation, memory_order_release);
}

static void test_paged(struct worker *worker) {
  static struct slot before;
  struct slot *slot = &slots[0];
  fill(slot);
  before = *slot;
  page(slot);
  hand_paged(worker, 4, false);
  nap(20000000);
  tap_ok(atomic_load(&slot->words.done) != 4, "a piece whose state is on its way waits for it");
  atomic_store(&places.there, true);
  wait_done(slot, 4);
  put_together(slot);
  tap_ok(atomic_load(&slot->words.status) == slot_status(4, SLOT_APPLY) &&
             stepped_right(&before, slot, 6),
         "its stretches are stepped as the whole piece would be");
  tap_ok(places.waits == 1 && places.dones == 1 && places.wrote, "and let go of once, as written");
  tap_ok(atomic_load(&report.totals.drive_wait_ns) > 0, "what it waited is in the report");
  const uint32_t launch = worker_launches_begun(worker);
  tap_ok(worker_wait_idle(worker, 1000000000) && !worker_launch_done(worker, launch),
         "the launch isn't done yet");
  worker_end_launch(worker);
  tap_ok(worker_wait_idle(worker, 1000000000) && worker_launch_done(worker, launch),
         "until it is ended");

  fill(slot);
  page(slot);
  hand_paged(worker, 5, true);
  atomic_store(&places.there, true);
  wait_done(slot, 5);
  put_together(slot);
  tap_ok(atomic_load(&slot->words.status) == slot_status(5, SLOT_REFUSED) &&
             memcmp(slot->m, before.m, sizeof before.m) == 0 && places.waits == 1 &&
             places.dones == 1 && !places.wrote,
         "refused, its state is let go of as it came");
  worker_end_launch(worker);

  page(slot);
  hand_paged(worker, 6, false);
  atomic_store(&places.lost, true);
  wait_done(slot, 6);
  put_together(slot);
  tap_ok(atomic_load(&slot->words.status) == slot_status(6, SLOT_FAILED) &&
             memcmp(slot->m, before.m, sizeof before.m) == 0 && places.dones == 1 && !places.wrote,
         "state that never comes fails the piece, and nothing is written");
  worker_end_launch(worker);
}

/* Plays the down stream of many launches, each with a piece per slot. */
struct device {
  uint32_t first, count;
};
static void *play(void *argument) {
  const struct device *device = argument;
  for (uint32_t launch = 0; launch < device->count; launch++) {
    const uint32_t generation = device->first + launch;
    for (unsigned i = 0; i < SLOTS && launch; i++)
      wait_done(&slots[i], generation - 1);
    device_proof(2, 3, false);
    atomic_store_explicit(&proof_ready, generation, memory_order_release);
    for (unsigned i = 0; i < SLOTS; i++) {
      fill(&slots[i]);
      atomic_store_explicit(&slots[i].words.ready, generation, memory_order_release);
    }
  }
  return NULL;
}

static void test_many(struct worker *worker) {
  /* Generations wrap in the middle. */
  struct device device = {.first = UINT32_MAX - 100, .count = PIECES / SLOTS};
  for (unsigned i = 0; i < SLOTS; i++) {
    atomic_store(&slots[i].words.ready, device.first - 1);
    atomic_store(&slots[i].words.done, device.first - 1);
  }
  atomic_store(&proof_ready, device.first - 1);
  pthread_t thread;
  pthread_create(&thread, NULL, play, &device);
  for (uint32_t launch = 0; launch < device.count; launch++) {
    const uint32_t generation = device.first + launch;
    const struct proof_job proof = proof_job(generation, 2);
    worker_prove(worker, &proof);
    for (unsigned i = 0; i < SLOTS; i++) {
      const struct piece_job piece = piece_job(&slots[i], generation, i % 2, i + 1 == SLOTS);
      worker_step(worker, &piece);
    }
  }
  const bool idle = worker_wait_idle(worker, 60000000000u);
  pthread_join(thread, NULL);
  tap_ok(idle && worker_launch_done(worker, worker_launches_begun(worker)) &&
             !worker_launch_done(worker, worker_launches_begun(worker) + 1),
         "the last launch is told as done, one that did not begin is not");
  tap_ok(worker_has_room(worker, 4096) && !worker_has_room(worker, 4097),
         "an idle worker has room for 4096 jobs and no more");
  const uint32_t last = device.first + device.count - 1;
  bool right = true;
  for (unsigned i = 0; i < SLOTS; i++) {
    static struct slot before;
    fill(&before);
    right = right && atomic_load(&slots[i].words.status) == slot_status(last, SLOT_APPLY) &&
            stepped_right(&before, &slots[i], 3 + (float)(i % 2));
  }
  tap_ok(right, "%d pieces through a ring of jobs, past the wrap of their generations", PIECES);
}

static void test_signals(void) {
  DIR *tasks = opendir("/proc/self/task");
  unsigned workers = 0, blocked = 0;
  for (struct dirent *task; tasks && (task = readdir(tasks));) {
    char path[512], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
    FILE *status = fopen(path, "r");
    bool ours = false;
    unsigned long long mask = 0;
    while (status && fgets(line, sizeof line, status)) {
      ours = ours || strcmp(line, "Name:\toffload-step\n") == 0;
      sscanf(line, "SigBlk: %llx", &mask);
    }
    if (status)
      fclose(status);
    workers += ours;
    blocked += ours && (mask >> (SIGINT - 1) & 1) && (mask >> (SIGTERM - 1) & 1) &&
               (mask >> (SIGUSR1 - 1) & 1);
  }
  if (tasks)
    closedir(tasks);
  tap_ok(workers == 1 && blocked == 1, "its thread takes none of the program's signals");
}

static void test_failure(struct worker *worker) {
  struct slot *slot = &slots[0];
  static struct slot before;
  atomic_store(&slot->words.ready, 10);
  atomic_store(&slot->words.done, 10);
  atomic_store(&proof_ready, 10);
  fill(slot);
  before = *slot;
  verdict = 0.5f;
  const struct proof_job proof = proof_job(11, 1);
  const struct piece_job piece = piece_job(slot, 11, 0, true);
  worker_prove(worker, &proof);
  worker_step(worker, &piece);
  tap_ok(!worker_wait_idle(worker, 50000000),
         "waiting for a device that does not answer ends in time");
  worker_fail(worker);
  tap_ok(worker_wait_idle(worker, 1000000000), "told to fail, the worker ends what it has");
  tap_ok(atomic_load(&slot->words.status) == slot_status(11, SLOT_FAILED) &&
             atomic_load(&slot->words.done) == 11 &&
             memcmp(slot->m, before.m, sizeof before.m) == 0 && verdict == 0.5f,
         "as failed: the moments and the verdict are left alone");
}

int main(void) {
  char why[256] = "";
  api = offload_adam();
  tap_ok(probe_make(api, &candidate, &hyper, true, &inputs) > 0, "the proof's inputs are made");
  struct worker *worker = worker_start(api, &config, why, sizeof why);
  if (!tap_ok(worker != NULL, "the worker starts%s", why))
    return tap_done();
  test_signals();
  test_order(worker);
  test_refusal(worker);
  test_refusal_of_equals(worker);
  test_paged(worker);
  test_many(worker);

  float g[4] = {1, 2, 3, 4}, m[4] = {0}, v[4] = {0}, u[4] = {0};
  const struct adam_job call = {.gradient = g,
                                .exp_avg = m,
                                .exp_avg_sq = v,
                                .update = u,
                                .elements = 4,
                                .generation = ADAM_FLOAT,
                                .beta1 = 0.5,
                                .beta2 = 0.5,
                                .eps = 1e-8,
                                .scalars = {.step_size = 1, .bias_correction2_sqrt = 1}};
  worker_call(worker, &call);
  tap_ok(m[0] == 0.5f && v[1] == 2.0f, "a job outside of any launch is done at once");
  test_failure(worker);
  worker_stop(worker);

  struct config impossible = config;
#if defined __aarch64__
  impossible.isa = ADAM_ISA_AVX2;
#else
  impossible.isa = ADAM_ISA_NEON;
#endif
  why[0] = 0;
  tap_ok(!worker_start(api, &impossible, why, sizeof why) && why[0],
         "a team that can't be had is a sentence: %s", why);
  return tap_done();
}
