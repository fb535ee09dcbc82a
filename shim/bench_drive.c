/* build/drive-bench: one Adam step after the other of state that lies on drives, or, to compare, in memory. With the step's own rooms:
   frames.c brings units in and writes them behind, worker.c steps them with liboffload-adam.so; this program plays the GPU, whose gradients
   are there at once. A program with the library linked in, on the simulated driver. Each piece is a unit of exp_avg and
   one of exp_avg_sq, float. JSON on stdout: seconds of all steps, until the last byte is written; what the drives moved; a hash of
   all state and of the last step's updates, the same wherever the state lies.

     drive-bench --state drives|memory --bytes N [--directory D[:D...]] [--unit N] [--steps N]

   Other settings are the library's variables (OFFLOAD_NVME_STAGING, OFFLOAD_THREADS ...). */
#define _GNU_SOURCE
#include "companion.h"
#include "frames.h"
#include "lock.h"
#include "process.h"
#include "worker.h"
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Slots are what a step's staging has; gradients repeat from piece to piece after so many. */
enum { SLOTS = 8, WAIT_NS = 30000 };

struct options {
  const char *directory;
  bool drives;
  uint64_t bytes, unit_bytes;
  unsigned steps;
};

struct slot {
  struct slot_words words;
  float *gradient, *update;
};

struct bench {
  struct options options;
  uint64_t pieces, elements; /* of a piece */
  const struct adam_api *api;
  struct worker *worker;
  CUcontext context;
  struct frames *frames;
  uint32_t *units; /* of piece i: units[2*i] and [2*i+1] */
  char *memory;    /* the same, unit by unit, where the state is not on drives */
  struct slot slots[SLOTS];
  uint32_t generation, proofs;
  struct proof_results results;
  _Atomic uint32_t proof_ready;
  float verdict;
  _Atomic int refused;
  uint64_t updates_hash;
};

static struct bench bench;

static const struct adam_candidate candidate = {
    .generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED};
static const struct adam_hyper hyper = {
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8};
static struct {
  float p[PROBE_ELEMENTS], g[PROBE_ELEMENTS], m[PROBE_ELEMENTS], v[PROBE_ELEMENTS];
} probe;

static _Noreturn void fail(const char *what, const char *why) {
  fprintf(stderr, "drive-bench: %s: %s\n", what, why);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *map(size_t bytes) {
  void *memory = engine_slab_map(bytes);
  if (!memory)
    fail("memory", "there is not enough");
  return memory;
}

/* ---- content ---- */

/* Numbers of a training's size that differ everywhere; squares are what exp_avg_sq may hold. */
static void fill(float *to, uint64_t seed, bool square) {
  for (uint64_t i = 0; i < bench.elements; i++) {
    const int32_t mixed = (int32_t)((uint32_t)(seed * bench.elements + i) * 2654435761u);
    const float x = (float)mixed * 0x1p-36f;
    to[i] = square ? x * x : x;
  }
}

/* ---- the drives' side ---- */

/* To be made again after the frames were forgotten, which is how the last write is waited for. */
static void make_frames(void) {
  char why[320];
  enqueue_lock();
  bench.frames = frames_of(bench.context, (size_t)bench.options.unit_bytes, why, sizeof why);
  enqueue_unlock();
  if (!bench.frames)
    fail("frames", why);
}

static void end_frames(void) {
  enqueue_lock();
  frames_forget_context(bench.context, false);
  enqueue_unlock();
  if (*frames_lost())
    fail("state is lost", frames_lost());
}

static bool paged_wait(struct paged_state *paged, const _Atomic bool *give_up) {
  return ticket_wait(paged->ticket, UINT64_MAX / 4, give_up) == TICKET_READY;
}

static void paged_done(struct paged_state *paged, bool wrote) {
  ticket_release(paged->ticket, wrote);
  free(paged);
}

/* A piece's two units in frames. `new`: they hold nothing yet. */
static struct paged_state *page(uint64_t piece, bool new) {
  struct paged_state *paged = calloc(1, sizeof *paged + sizeof *paged->stretches);
  if (!paged || !(paged->ticket = ticket_make(bench.frames, TICKET_STEP)))
    fail("a ticket", "no memory");
  paged->wait = paged_wait;
  paged->done = paged_done;
  paged->count = 1;
  paged->stretches[0] = (struct stretch){.elements = bench.elements, .framed = 3};
  for (unsigned i = 0; i < 2; i++)
    if (!(paged->stretches[0].states[i] =
              ticket_add(paged->ticket, bench.units[2 * piece + i], new)))
      fail("a ticket's frame", "no memory, or fewer frames than a piece needs");
  return paged;
}

/* One piece's state, to be looked at or to be made. */
static void visit(uint64_t piece, bool new, void (*act)(uint64_t piece, void *const states[2])) {
  if (bench.memory) {
    char *at = bench.memory + 2 * piece * bench.options.unit_bytes;
    void *const states[2] = {at, at + bench.options.unit_bytes};
    act(piece, states);
    return;
  }
  enqueue_lock();
  struct paged_state *paged = page(piece, new);
  ticket_go(paged->ticket);
  enqueue_unlock();
  if (!paged->wait(paged, NULL))
    fail("a piece", ticket_why(paged->ticket));
  act(piece, paged->stretches[0].states);
  paged->done(paged, new);
}

static void create(uint64_t piece, void *const states[2]) {
  fill(states[0], 2 * piece, false);
  fill(states[1], 2 * piece + 1, true);
}

static uint64_t state_hash;
static void hash(uint64_t piece, void *const states[2]) {
  (void)piece;
  for (unsigned i = 0; i < 2; i++)
    state_hash = XXH3_64bits_withSeed(states[i], (size_t)bench.options.unit_bytes, state_hash);
}

static void allocate_units(void) {
  char why[320];
  bench.units = calloc(2 * bench.pieces, sizeof *bench.units);
  if (!bench.units)
    fail("units", "no memory");
  for (uint64_t i = 0; i < 2 * bench.pieces; i++)
    if (!store_allocate(frames_store(), &bench.units[i], why, sizeof why))
      fail("a unit", why);
}

/* ---- the step ---- */

static void begin_launch(unsigned step) {
  struct adam_scalars scalars;
  const struct kernel_shape shape = shape_of(&candidate);
  bench.results.gathered[0] = (float)step;
  bench.api->scalars(candidate.generation, &hyper, (float)step, 0, 0, &scalars);
  memcpy(bench.results.probes, &probe, sizeof probe);
  const struct adam_tensors lists = lists_in(&shape, bench.results.probes, PROBE_ELEMENTS);
  bench.api->reference(&candidate, &hyper, &scalars, PROBE_ELEMENTS, &lists);
  const struct proof_job proof = {.ready = &bench.proof_ready,
                                  .generation = ++bench.proofs,
                                  .inputs = &probe,
                                  .results = &bench.results,
                                  .verdict = &bench.verdict,
                                  .tensors = 1,
                                  .candidate = candidate,
                                  .hyper = hyper,
                                  .elements = bench.pieces * bench.elements,
                                  .refused = &bench.refused};
  worker_prove(bench.worker, &proof);
  /* release: the results are there. */
  atomic_store_explicit(&bench.proof_ready, bench.proofs, memory_order_release);
}

/* Until the slot's last job is done; its update is the caller's then. */
static void wait_slot(struct slot *slot, uint32_t generation, bool last_step) {
  /* acquire: what the worker wrote before. */
  while (atomic_load_explicit(&slot->words.done, memory_order_acquire) != generation)
    nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
  if (!generation)
    return;
  if (atomic_load(&slot->words.status) != slot_status(generation, SLOT_APPLY))
    fail("a piece was not stepped", *frames_lost() ? frames_lost() : "its proof failed");
  if (last_step)
    bench.updates_hash =
        XXH3_64bits_withSeed(slot->update, (size_t)bench.options.unit_bytes, bench.updates_hash);
}

static void hand_over(uint64_t piece, struct paged_state *paged, bool last, bool last_step) {
  const uint32_t generation = ++bench.generation;
  struct slot *slot = &bench.slots[generation % SLOTS];
  wait_slot(slot, generation > SLOTS ? generation - SLOTS : 0, last_step);
  struct piece_job job = {.words = &slot->words,
                          .generation = generation,
                          .last = last,
                          .gradient_type = ADAM_TYPE_FLOAT,
                          .gradient = bench.slots[piece % SLOTS].gradient,
                          .update = slot->update,
                          .elements = bench.elements,
                          .paged = paged};
  if (!paged) {
    char *at = bench.memory + 2 * piece * bench.options.unit_bytes;
    job.exp_avg = at;
    job.exp_avg_sq = at + bench.options.unit_bytes;
  }
  worker_step(bench.worker, &job);
  atomic_store_explicit(&slot->words.ready, generation, memory_order_release);
}

/* Which piece is the step's n-th: every other step goes the other way, so that what was used last is used first. */
static uint64_t nth(unsigned step, uint64_t n) {
  return step % 2 ? n : bench.pieces - 1 - n;
}

/* As a step of the library: all tickets are made first, in the order of the work. */
static void step(unsigned number) {
  struct paged_state **paged = calloc(bench.pieces, sizeof(struct paged_state *));
  if (!paged)
    fail("a step", "no memory");
  const bool last_step = number == bench.options.steps;
  if (bench.options.drives) {
    enqueue_lock();
    for (uint64_t n = 0; n < bench.pieces; n++) {
      struct paged_state *one = paged[n] = page(nth(number, n), false);
      ticket_go(one->ticket);
    }
    enqueue_unlock();
  }
  begin_launch(number);
  for (uint64_t n = 0; n < bench.pieces; n++)
    hand_over(nth(number, n), paged[n], n + 1 == bench.pieces, last_step && n >= SLOTS);
  for (unsigned i = SLOTS; i-- > 0;)
    if (bench.generation > i && bench.pieces > i)
      wait_slot(&bench.slots[(bench.generation - i) % SLOTS], bench.generation - i, last_step);
  free(paged);
}

/* ---- the program ---- */

static int usage(void) {
  fputs("usage: drive-bench --state drives|memory --bytes N [--directory D[:D...]] [--unit N] "
        "[--steps N]\n"
        "N bytes of state are at least two units, and whole pairs of them; a unit is a power of "
        "two, 4096 at least.\n"
        "On drives OFFLOAD_NVME or --directory names the directories.\n",
        stderr);
  return 2;
}

static int parse(int count, char **words, struct options *options) {
  static const struct option known[] = {{"state", 1, NULL, 's'},     {"bytes", 1, NULL, 'b'},
                                        {"directory", 1, NULL, 'd'}, {"unit", 1, NULL, 'u'},
                                        {"steps", 1, NULL, 'n'},     {NULL, 0, NULL, 0}};
  const char *state = "";
  for (int word; (word = getopt_long(count, words, "", known, NULL)) != -1;) {
    if (word == 's')
      state = optarg;
    else if (word == 'b')
      options->bytes = strtoull(optarg, NULL, 10);
    else if (word == 'd')
      options->directory = optarg;
    else if (word == 'u')
      options->unit_bytes = strtoull(optarg, NULL, 10);
    else if (word == 'n')
      options->steps = (unsigned)strtoul(optarg, NULL, 10);
    else
      return usage();
  }
  options->drives = !strcmp(state, "drives");
  const uint64_t unit = options->unit_bytes;
  if (unit < 4096 || unit > 1u << 30 || (unit & (unit - 1)))
    return usage();
  const uint64_t pieces = options->bytes / unit / 2;
  if ((!options->drives && strcmp(state, "memory") != 0) || !pieces ||
      pieces * 2 * unit != options->bytes || options->bytes > (uint64_t)1 << 44 ||
      options->steps < 1 || options->steps > 1000)
    return usage();
  return 0;
}

static void start(void) {
  char why[320] = "";
  const char *companion = "";
  bench.elements = bench.options.unit_bytes / sizeof(float);
  bench.pieces = bench.options.bytes / bench.options.unit_bytes / 2;
  if (bench.options.directory)
    setenv("OFFLOAD_NVME", bench.options.directory, 1);
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&bench.context, 0) || cuCtxSetCurrent(bench.context))
    fail("the simulated driver", "it does not start");
  if (!process_active())
    fail("the library", "it is not active; is OFFLOAD_MODE off?");
  if (!(bench.api = companion_load(&companion)))
    fail("liboffload-adam.so", companion);
  if (!(bench.worker = worker_start(bench.api, process_config(), why, sizeof why)))
    fail("the worker", why);
  probe_make(bench.api, &candidate, &hyper, true, &probe);
  for (unsigned i = 0; i < SLOTS; i++) {
    bench.slots[i].gradient = map((size_t)bench.options.unit_bytes);
    bench.slots[i].update = map((size_t)bench.options.unit_bytes);
    fill(bench.slots[i].gradient, UINT64_MAX / 2 + i, false);
    fill(bench.slots[i].update, 0, false);
  }
  if (bench.options.drives) {
    make_frames();
    allocate_units();
  } else {
    bench.memory = map((size_t)bench.options.bytes);
  }
  for (uint64_t i = 0; i < bench.pieces; i++)
    visit(i, true, create);
}

static struct store_stats stats_now(void) {
  return bench.options.drives ? store_stats(frames_store()) : (struct store_stats){0};
}

int main(int count, char **words) {
  bench.options = (struct options){.unit_bytes = 2u << 20, .steps = 2};
  const int status = parse(count, words, &bench.options);
  if (status)
    return status;
  start();
  if (bench.options.drives) {
    end_frames();
    make_frames();
  }
  const struct store_stats before = stats_now();
  const double begun = now();
  for (unsigned i = 1; i <= bench.options.steps; i++)
    step(i);
  if (bench.options.drives)
    end_frames();
  const double seconds = now() - begun;
  const struct store_stats after = stats_now();
  if (bench.options.drives)
    make_frames();
  for (uint64_t i = 0; i < bench.pieces; i++)
    visit(i, false, hash);
  if (bench.options.drives)
    end_frames();
  worker_stop(bench.worker);
  printf("{\"state\": \"%s\", \"bytes\": %" PRIu64 ", \"unit\": %" PRIu64
         ", \"steps\": %u, \"seconds\": %.6f, \"read_bytes\": %" PRIu64
         ", \"written_bytes\": %" PRIu64 ", \"checksum_seconds\": %.6f, \"rung\": \"%s\", "
         "\"block\": %zu, \"depth\": %u, \"hash\": \"%016" PRIx64 "%016" PRIx64 "\"}\n",
         bench.options.drives ? "drives" : "memory", bench.options.bytes, bench.options.unit_bytes,
         bench.options.steps, seconds, after.read_bytes - before.read_bytes,
         after.written_bytes - before.written_bytes,
         (double)(after.checksum_ns - before.checksum_ns) * 1e-9, engine_rung_name(after.rung),
         after.block_bytes, after.depth, state_hash, bench.updates_hash);
  return 0;
}
