/* Every variant of the kernels against the formulas restated in adam_support.h, for every types that go
   together, on hostile data, at every size and alignment, and storage conversions value by value. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "adam_hostile.h"
#include "tests/lib/tap.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { MOST = 2176, GUARD = 16, GUARD_BYTE = 0x5e, WIDEST = 8 };

/* ---- data ---- */

static const struct pair {
  const char *name;
  enum adam_type gradient, state;
} pairs[] = {
#define TYPE_float ADAM_TYPE_FLOAT
#define TYPE_double ADAM_TYPE_DOUBLE
#define TYPE_half ADAM_TYPE_HALF
#define TYPE_bfloat16 ADAM_TYPE_BFLOAT16
#define COMBINATION(gradient, state, opmath)                                                       \
  {#gradient " gradient and " #state " moments", TYPE_##gradient, TYPE_##state},
#include "adam/combinations.def"
#undef COMBINATION
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

enum { G, M, V, MAX_V, U, ARRAYS };
struct arrays {
  _Alignas(64) unsigned char store[ARRAYS][(MOST + 2 * GUARD) * WIDEST];
};
static struct arrays before, after, expected;

static enum adam_type type_in(const struct pair *pair, int array) {
  return array == G ? pair->gradient : array == U ? adam_type_opmath(pair->state) : pair->state;
}

/* Where array q lies: at differing offsets, of whole elements only. */
static void *start(struct arrays *a, const struct pair *pair, int q, uint64_t seed) {
  const size_t offset = (size_t)((seed * (unsigned)(q + 3) + (unsigned)q) % GUARD);
  return a->store[q] + offset * adam_type_bytes(type_in(pair, q));
}

static void fill(const struct pair *pair, uint64_t seed, size_t elements) {
  uint64_t state = seed;
  memset(&before, GUARD_BYTE, sizeof before);
  for (int q = G; q < U; q++)
    fill_hostile(type_in(pair, q), start(&before, pair, q, seed), elements, &state);
}

static struct adam_job job_on(struct arrays *a, const struct pair *pair, size_t setting,
                              size_t elements, uint64_t seed, bool maxima) {
  const struct adam_hyper *h = &settings[setting].hyper;
  struct adam_job job = {.gradient = start(a, pair, G, seed),
                         .exp_avg = start(a, pair, M, seed),
                         .exp_avg_sq = start(a, pair, V, seed),
                         .max_exp_avg_sq = maxima ? start(a, pair, MAX_V, seed) : NULL,
                         .update = start(a, pair, U, seed),
                         .elements = elements,
                         .negate = h->maximize,
                         .gradient_type = pair->gradient,
                         .state_type = pair->state,
                         .beta1 = h->beta1,
                         .beta2 = h->beta2,
                         .eps = h->eps};
  set_scalars(&job.scalars, setting);
  return job;
}

/* The arithmetics that have code of their own. */
static const struct {
  enum adam_generation generation;
  enum adam_form form;
} arithmetics[] = {{ADAM_FLOAT, ADAM_FUSES_MOMENT},
                   {ADAM_MIXED, ADAM_FUSES_MOMENT},
                   {ADAM_DOUBLE, ADAM_FUSES_MOMENT},
                   {ADAM_OLD, ADAM_FUSES_GRADIENT}};
enum { ARITHMETICS = sizeof arithmetics / sizeof *arithmetics };

/* Whether a call on fresh data, with each arithmetic, with and without maxima, leaves memory as the
   formulas do, guards included. */
static bool same_in_call(const struct adam_kernels *kernels, const struct pair *pair,
                         size_t setting, size_t elements, uint64_t seed) {
  bool same = true;
  fill(pair, seed, elements);
  for (size_t k = 0; k < 2 * ARITHMETICS; k++) {
    after = expected = before;
    struct adam_job job = job_on(&after, pair, setting, elements, seed, k % 2),
                    restated = job_on(&expected, pair, setting, elements, seed, k % 2);
    job.generation = restated.generation = arithmetics[k / 2].generation;
    job.form = restated.form = arithmetics[k / 2].form;
    step_by_kernels(&job, kernels);
    restated_step(&restated);
    same = same && !memcmp(&after, &expected, sizeof after);
  }
  return same;
}

/* ---- the variants ---- */

static void test_sizes(const struct variant *variant, const struct pair *pair) {
  char small[160], large[160];
  snprintf(small, sizeof small, "%s with %s is exact for 0 to 70 elements at any alignment",
           isa_name(variant->isa), pair->name);
  snprintf(large, sizeof large, "%s with %s is exact for thousands of hostile elements",
           isa_name(variant->isa), pair->name);
  if (!variant->run) {
    tap_skip(small, "this machine lacks the instruction set");
    tap_skip(large, "this machine lacks the instruction set");
    return;
  }
  size_t wrong = 0;
  for (size_t elements = 0; elements <= 70; elements++)
    for (uint64_t seed = 1; seed <= 2; seed++)
      wrong += !same_in_call(variant->kernels, pair, (elements + seed) % SETTINGS, elements,
                             seed + 100 * elements);
  if (!tap_ok(!wrong, "%s", small))
    printf("# %zu calls wrong\n", wrong);
  wrong = 0;
  for (size_t setting = 0; setting < SETTINGS; setting++)
    for (uint64_t seed = 1; seed <= 4; seed++)
      wrong += !same_in_call(variant->kernels, pair, setting, MOST - (size_t)(seed * 7 % 64),
                             seed * 977 + setting);
  if (!tap_ok(!wrong, "%s", large))
    printf("# %zu calls wrong\n", wrong);
}

/* Rows without a gradient whose moments have decayed to denormals: runs of whole vectors and of parts,
   with second moments of all sizes, and here and there one that is no such element. */
static void fill_settled(const struct pair *pair, uint64_t seed) {
  uint64_t state = seed;
  memset(&before, GUARD_BYTE, sizeof before);
  void *const g = start(&before, pair, G, seed), *const m = start(&before, pair, M, seed);
  void *const v = start(&before, pair, V, seed);
  for (size_t i = 0; i < MOST; i++) {
    const uint64_t row = i / 40, bits = random_bits(&state);
    const uint64_t mask = row % 5 == 4 ? 0x7fffff : 0x1ff;
    const double units = ldexp((double)(bits >> 8 & mask), -149);
    const double ordinary = ldexp(1 + (double)(bits >> 8 & 0xfffff), (int)(bits >> 32 & 63) - 100);
    const bool other = row % 7 == 3 && i % 40 == 17;
    const bool denormal = row & 1 || (!(row & 2) && bits & 4);
    restated_store(pair->gradient, g, i, other && bits & 2 ? 1e-20 : row % 4 == 2 ? -0.0 : 0);
    restated_store(pair->state, m, i, other ? (double)hostile(&state) : bits & 1 ? -units : units);
    restated_store(pair->state, v, i,
                   other      ? (double)hostile(&state)
                   : denormal ? units
                              : ordinary);
  }
}

static void test_settled(const struct variant *variant, const struct pair *pair) {
  char sentence[160];
  snprintf(sentence, sizeof sentence, "%s with %s is exact for denormal moments without gradients",
           isa_name(variant->isa), pair->name);
  if (!variant->run) {
    tap_skip(sentence, "this machine lacks the instruction set");
    return;
  }
  size_t wrong = 0, settled = 0;
  for (uint64_t seed = 1; seed <= 6; seed++)
    for (size_t setting = 0; setting < 2; setting++)
      for (size_t k = 0; k < ARITHMETICS; k++) {
        fill_settled(pair, seed);
        after = expected = before;
        struct adam_job job = job_on(&after, pair, setting, MOST - 7, seed, false),
                        restated = job_on(&expected, pair, setting, MOST - 7, seed, false);
        job.generation = restated.generation = arithmetics[k].generation;
        job.form = restated.form = arithmetics[k].form;
        step_by_kernels(&job, variant->kernels);
        restated_step(&restated);
        wrong += memcmp(&after, &expected, sizeof after) != 0;
        for (size_t i = 0; i < job.elements; i++)
          settled += restated_load(type_in(pair, U), job.update, i) == 0 &&
                     restated_load(pair->state, job.exp_avg, i) != 0;
      }
  /* Half has no such numbers; bfloat16's rounding lets the update be more than zero. */
  tap_ok(!wrong && (settled > 10000 || pair->state != ADAM_TYPE_FLOAT), "%s", sentence);
}

/* Arrays that end where memory ends: a kernel that reads beyond them doesn't return. */
static void test_edges(const struct variant *variant) {
  enum { PAGE = 4096, LONGEST = 40 };
  char sentence[128];
  snprintf(sentence, sizeof sentence, "%s reads and writes nothing beyond its arrays",
           isa_name(variant->isa));
  if (!variant->run) {
    tap_skip(sentence, "this machine lacks the instruction set");
    return;
  }
  unsigned char *const memory = mmap(NULL, (size_t)ARRAYS * 2 * PAGE, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool closed = memory != MAP_FAILED;
  for (int q = 0; q < ARRAYS && closed; q++)
    closed = !mprotect(memory + (2 * q + 1) * PAGE, PAGE, PROT_NONE);
  size_t calls = 0;
  for (size_t p = 0; p < PAIRS && closed; p++)
    for (size_t elements = 1; elements <= LONGEST; elements++)
      for (size_t k = 0; k < 2 * ARITHMETICS; k++) {
        struct adam_job job = job_on(&before, &pairs[p], 0, elements, 0, k % 2);
        void **const starts[ARRAYS] = {[M] = &job.exp_avg,
                                       [V] = &job.exp_avg_sq,
                                       [MAX_V] = &job.max_exp_avg_sq,
                                       [U] = &job.update};
        for (int q = 0; q < ARRAYS; q++) {
          void *const place =
              memory + (2 * q + 1) * PAGE - elements * adam_type_bytes(type_in(&pairs[p], q));
          if (q == G)
            job.gradient = place;
          else if (q != MAX_V || job.max_exp_avg_sq)
            *starts[q] = place;
        }
        job.generation = arithmetics[k / 2].generation;
        job.form = arithmetics[k / 2].form;
        step_by_kernels(&job, variant->kernels);
        calls++;
      }
  tap_ok(closed && calls == (size_t)PAIRS * LONGEST * 2 * ARITHMETICS, "%s", sentence);
  if (memory != MAP_FAILED)
    munmap(memory, (size_t)ARRAYS * 2 * PAGE);
}

/* With beta1 = 0 and m = 0 the stored moment is the gradient itself: every value of 16 bits, what lies
   halfway to the next, and the floats beside them, are converted both ways. */
static void test_conversions(const struct variant *variant, enum adam_type type) {
  enum { NEAR = 7, COUNT = 0x10000 * NEAR };
  char sentence[128];
  snprintf(sentence, sizeof sentence, "%s converts every %s, and the floats around it, exactly",
           isa_name(variant->isa), type_name(type));
  if (!variant->run) {
    tap_skip(sentence, "this machine lacks the instruction set");
    return;
  }
  static float wide[COUNT], update[COUNT];
  static uint16_t narrow[0x10000], m[COUNT], v[COUNT];
  for (unsigned bits = 0; bits < 0x10000; bits++) {
    const double here = value_of_16(bits, exponent_bits_of(type));
    const double next = value_of_16((bits + 1) & 0xffff, exponent_bits_of(type));
    const float value = (float)here;
    const float halfway =
        isinf(next)
            ? (float)here + ((float)here - (float)value_of_16(bits - 1, exponent_bits_of(type))) / 2
            : (float)((here + next) / 2);
    narrow[bits] = (uint16_t)bits;
    const float near[NEAR] = {value,
                              nextafterf(value, INFINITY),
                              nextafterf(value, -INFINITY),
                              halfway,
                              nextafterf(halfway, INFINITY),
                              nextafterf(halfway, -INFINITY),
                              float_of(bits << 16 | 0x7fff)};
    memcpy(wide + bits * NEAR, near, sizeof near);
  }
  struct adam_job job = {.exp_avg = m,
                         .exp_avg_sq = v,
                         .update = update,
                         .generation = ADAM_FLOAT,
                         .state_type = type,
                         .scalars = {.step_size = 1, .bias_correction2_sqrt = 1}};
  size_t wrong = 0, checked = 0;
  for (int stored = 0; stored < 2; stored++) {
    job.gradient = stored ? (const void *)narrow : wide;
    job.gradient_type = stored ? type : ADAM_TYPE_FLOAT;
    job.elements = stored ? 0x10000 : COUNT;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    step_by_kernels(&job, variant->kernels);
    for (size_t i = 0; i < job.elements; i++) {
      const double g = restated_load(job.gradient_type, job.gradient, i);
      if (g == 0) /* -0 becomes 0 on its way */
        continue;
      checked++;
      /* inf*0 is NaN: infinities stay ones by rounding only */
      wrong += m[i] != bits_of_16(isinf(g) ? NAN : g, exponent_bits_of(type));
    }
  }
  if (!tap_ok(!wrong && checked > COUNT, "%s", sentence))
    printf("# %zu wrong\n", wrong);
}

/* The data must contain what it is there for: a test of NaN without NaN proves nothing. */
static void test_data_is_hostile(void) {
  for (size_t p = 0; p < PAIRS; p++) {
    const struct pair *pair = &pairs[p];
    size_t nan = 0, infinite = 0, denormal = 0, zero = 0, update_nan = 0, update_number = 0,
           maximum_nan = 0, raised = 0;
    const double least = pair->state == ADAM_TYPE_DOUBLE ? 0x1p-1022
                         : pair->state == ADAM_TYPE_HALF ? 0x1p-14
                                                         : 0x1p-126;
    fill(pair, 5, MOST);
    after = before;
    const struct adam_job job = job_on(&after, pair, 0, MOST, 5, true);
    step_by_kernels(&job, &adam_kernels_scalar);
    for (size_t i = 0; i < MOST; i++) {
      const double g = restated_load(pair->gradient, start(&before, pair, G, 5), i);
      const double m = restated_load(pair->state, start(&before, pair, M, 5), i);
      const double maximum = restated_load(pair->state, start(&before, pair, MAX_V, 5), i);
      const double u = restated_load(type_in(pair, U), start(&after, pair, U, 5), i);
      nan += isnan(g) != 0;
      infinite += isinf(m) != 0;
      denormal += m != 0 && fabs(m) < least;
      zero += g == 0;
      maximum_nan += isnan(maximum) != 0;
      raised += restated_load(pair->state, start(&after, pair, MAX_V, 5), i) > maximum;
      update_nan += isnan(u) != 0;
      update_number += isfinite(u) != 0;
    }
    tap_ok(
        nan > 25 && infinite > 25 && denormal > 25 && zero > 25 && maximum_nan > 25 &&
            raised > 25 && update_nan > 25 && update_number > 250,
        "the data with %s has NaN, infinities, denormals and zeros, maxima that rise, and finite "
        "and NaN updates come of it",
        pair->name);
  }
}

/* A float that stays the maximum keeps the payload of a NaN: nothing is computed with it. */
static void test_kept_maximum(const struct variant *variant) {
  char sentence[128];
  snprintf(sentence, sizeof sentence, "%s leaves a NaN among the maxima as it is",
           isa_name(variant->isa));
  if (!variant->run) {
    tap_skip(sentence, "this machine lacks the instruction set");
    return;
  }
  enum { COUNT = 21 };
  static const uint32_t payload = 0xff812345u; /* signalling */
  static const uint64_t payload_double = 0xfff4567890abcdefull;
  unsigned right = 0;
  for (int wide = 0; wide < 2; wide++) {
    double g[COUNT] = {0}, m[COUNT] = {0}, v[COUNT] = {0}, larger[COUNT] = {0}, u[COUNT];
    const enum adam_type type = wide ? ADAM_TYPE_DOUBLE : ADAM_TYPE_FLOAT;
    for (size_t i = 0; i < COUNT; i++)
      if (wide)
        memcpy(&larger[i], &payload_double, sizeof payload_double);
      else
        memcpy((uint32_t *)(void *)larger + i, &payload, sizeof payload);
    const struct adam_job job = {.gradient = g,
                                 .exp_avg = m,
                                 .exp_avg_sq = v,
                                 .max_exp_avg_sq = larger,
                                 .update = u,
                                 .elements = COUNT,
                                 .generation = ADAM_FLOAT,
                                 .gradient_type = type,
                                 .state_type = type,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999};
    step_by_kernels(&job, variant->kernels);
    for (size_t i = 0; i < COUNT; i++)
      right += wide ? !memcmp(&larger[i], &payload_double, sizeof payload_double)
                    : !memcmp((uint32_t *)(void *)larger + i, &payload, sizeof payload);
  }
  tap_ok(right == 2 * COUNT, "%s", sentence);
}

static void test_types_refused(void) {
  struct adam_job job = {.gradient_type = ADAM_TYPE_DOUBLE, .state_type = ADAM_TYPE_FLOAT};
  bool refused = !adam_kernel_of(&adam_kernels_scalar, &job);
  job = (struct adam_job){.gradient_type = ADAM_TYPE_HALF, .state_type = ADAM_TYPE_BFLOAT16};
  refused = refused && !adam_kernel_of(&adam_kernels_scalar, &job);
  tap_ok(refused, "types that no optimizer has together have no kernel");
}

int main(void) {
  struct variant list[VARIANTS_MOST];
  const size_t count = variants(list);
  test_data_is_hostile();
  for (size_t i = 0; i < count; i++) {
    for (size_t p = 0; p < PAIRS; p++) {
      test_sizes(&list[i], &pairs[p]);
      test_settled(&list[i], &pairs[p]);
    }
    test_edges(&list[i]);
    test_conversions(&list[i], ADAM_TYPE_HALF);
    test_conversions(&list[i], ADAM_TYPE_BFLOAT16);
    test_kept_maximum(&list[i]);
  }
  test_types_refused();
  return tap_done();
}
