/* The elements of the running proof, and the search for the scalars that explain a result. See
 * probe.h. */
#include "elements.h"
#include <math.h>
#include <string.h>

/* ---- the inputs ---- */

/* How many of the probe's elements show the decay, and how long to look for them. */
enum { PROBE_DECAY = 64, PROBE_BATCHES = 8 };

/* The next parameter to try. For AdamW in float: p - lw*p rounds differently only near a point
   halfway between two floats. In units of p's last place that is where lw*k has the fraction 1/2: k
   = (j + 1/2)/lw, rounded. There the unfused product is exactly halfway and goes to even, the fused
   one to the right side: they disagree at about a quarter of these k. */
static double propose(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                      unsigned attempt, struct numbers *n) {
  const double weight = (double)((float)hyper->lr * (float)hyper->weight_decay);
  if (candidate->mode != ADAM_W || candidate->type != ADAM_TYPE_FLOAT ||
      candidate->generation < ADAM_FLOAT || !(weight > 0) || !(weight < 0.25))
    return full(n, candidate->type);
  const double first = weight * 0x1p23, crossings = weight * 0x1p23;
  /* Spread over the binade; where there are few crossings each is met several times, with its
   * neighbours. */
  const unsigned again = attempt / 1021;
  const double share = (double)(attempt % 1021) / 1021.0;
  const double crossing = (double)(uint64_t)(first + crossings * share) + 0.5;
  const double k = crossing / weight + (double)again;
  const uint32_t significand = (uint32_t)(k + 0.5);
  if (significand < 1u << 23 || significand >= 1u << 24)
    return full(n, candidate->type);
  return (double)significand * 0x1p-24 * (number(n) % 2 ? 1.0 : -1.0);
}

/* Looks for elements on which fused and unfused decay disagree, by the reference itself. */
static unsigned find_decay(struct maker *maker, const struct adam_candidate *candidate,
                           struct element found[PROBE_DECAY]) {
  const struct adam_api *api = maker->api;
  const struct adam_tensors goal = maker->to;
  struct adam_candidate fused = *candidate, unfused = *candidate;
  fused.decay = ADAM_DECAY_FUSED;
  unfused.decay = ADAM_DECAY_UNFUSED;
  struct adam_scalars scalars;
  api->scalars(candidate->generation, maker->hyper, 1, 0, 0, &scalars);
  unsigned count = 0;
  /* The program's stack may be small, and one thread steps. */
  static double tried[PROBE_BYTES_MOST / 8], one[PROBE_BYTES_MOST / 8], other[PROBE_BYTES_MOST / 8];
  for (unsigned batch = 0; batch < PROBE_BATCHES && count < PROBE_DECAY; batch++) {
    const struct adam_tensors a = lists_in(&maker->shape, one, PROBE_ELEMENTS),
                              b = lists_in(&maker->shape, other, PROBE_ELEMENTS);
    maker->to = lists_in(&maker->shape, tried, PROBE_ELEMENTS);
    for (unsigned i = 0; i < PROBE_ELEMENTS; i++) {
      const struct element e = element_decay(
          maker, propose(candidate, maker->hyper, batch * PROBE_ELEMENTS + i, &maker->n));
      put(maker, i, &e);
    }
    const size_t bytes = lists_bytes(&maker->shape, PROBE_ELEMENTS);
    memcpy(one, tried, bytes);
    memcpy(other, tried, bytes);
    api->reference(&fused, maker->hyper, &scalars, PROBE_ELEMENTS, &a);
    api->reference(&unfused, maker->hyper, &scalars, PROBE_ELEMENTS, &b);
    for (unsigned i = 0; i < PROBE_ELEMENTS && count < PROBE_DECAY; i++)
      if (elements_differ(&maker->shape, &a, &b, i))
        found[count++] = get(maker, &maker->to, i);
  }
  maker->to = goal;
  return count;
}

unsigned probe_make(const struct adam_api *api, const struct adam_candidate *candidate,
                    const struct adam_hyper *hyper, bool lr_known, void *inputs) {
  struct maker maker = {.api = api,
                        .shape = shape_of(candidate),
                        .hyper = hyper,
                        .scale = 1,
                        .n = {0xd1342543de82ef95u}};
  struct numbers *n = &maker.n;
  static struct element decaying[PROBE_DECAY]; /* as above */
  unsigned found = 0, used = 0;
  maker.to = lists_in(&maker.shape, inputs, PROBE_ELEMENTS);
  if (candidate->decay != ADAM_DECAY_NONE && (lr_known || candidate->mode == ADAM_L2))
    found = find_decay(&maker, candidate, decaying);
  for (unsigned i = 0; i < PROBE_ELEMENTS; i++) {
    struct element e;
    /* Four in a row are of one kind: an unrolled loop meets each kind in every place. */
    switch (i / 4 % 8) {
    case 0:
    case 1: /* PROBE_DECAY elements */
      e = used < found ? decaying[used++] : element_decay(&maker, full(n, candidate->type));
      break;
    case 2:
    case 3:
      e = element_update(&maker);
      break;
    case 4:
      e = element_root(&maker);
      break;
    case 5:
      e = element_cancel(&maker);
      break;
    case 6:
      e = element_special(&maker, false);
      break;
    default:
      e = element_ordinary(&maker);
    }
    put(&maker, i, &e);
  }
  return found;
}

/* With a beta of nothing no moment is left that an update could be made of. Its powers are next to nothing beside 1,
   whatever their last bits: another beta shows the rest of the arithmetic as well. */
static double fine_beta(double beta) {
  return fabs(beta) < 1.0 / 64 ? 0.5 : beta;
}

struct adam_hyper fine_hyper(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                             bool lr_known) {
  int exponent;
  double lr = lr_known ? frexp(hyper->lr, &exponent) : 0;
  if (!(lr - lr == 0 && lr != 0))
    lr = 0.5;
  /* Updates of half are large enough for its smallest numbers to show their last bits. */
  return (struct adam_hyper){.lr = lr * (candidate->type == ADAM_TYPE_HALF ? 32 : 2),
                             .beta1 = fine_beta(hyper->beta1),
                             .beta2 = fine_beta(hyper->beta2)};
}

/* ---- the search ---- */

/* Nearest first. */
static const struct {
  signed char first, second;
} nudges[] = {{0, 0},  {0, 1},  {0, -1},  {1, 0},  {-1, 0}, {1, 1},  {1, -1}, {-1, 1},  {-1, -1},
              {0, 2},  {0, -2}, {2, 0},   {-2, 0}, {1, 2},  {1, -2}, {-1, 2}, {-1, -2}, {2, 1},
              {2, -1}, {-2, 1}, {-2, -1}, {2, 2},  {2, -2}, {-2, 2}, {-2, -2}};
enum { NUDGES = sizeof nudges / sizeof *nudges };

/* How many neighbours of libm's powers the device may have. Double powers that are rounded to float
   are never seen to differ (0 of 18 million). */
static unsigned tries(const struct adam_candidate *candidate) {
  return candidate->generation == ADAM_FLOAT || candidate->type == ADAM_TYPE_DOUBLE ? NUDGES : 1;
}

static void scalars_of(const struct adam_api *api, const struct adam_candidate *candidate,
                       const struct adam_hyper *hyper, float step, unsigned nudge,
                       struct adam_scalars *scalars) {
  api->scalars(candidate->generation, hyper, step, nudges[nudge].first, nudges[nudge].second,
               scalars);
}

static void copy_lists(const struct kernel_shape *shape, const struct adam_tensors *to,
                       const struct adam_tensors *from, size_t elements) {
  const size_t bytes = type_list_bytes(shape->type, elements),
               state_bytes = type_list_bytes(shape->state_type, elements);
  memcpy(to->p, from->p, bytes);
  memcpy(to->g, from->g, bytes);
  memcpy(to->m, from->m, state_bytes);
  memcpy(to->v, from->v, state_bytes);
  if (shape->amsgrad)
    memcpy(to->max_v, from->max_v, state_bytes);
}

static bool same_parameter(const struct kernel_shape *shape, const struct adam_tensors *a,
                           const struct adam_tensors *b, size_t elements) {
  return memcmp(a->p, b->p, type_list_bytes(shape->type, elements)) == 0;
}

/* All but the parameter: none of it depends on the powers. */
static bool same_rest(const struct kernel_shape *shape, const struct adam_tensors *a,
                      const struct adam_tensors *b, size_t elements) {
  const size_t bytes = type_list_bytes(shape->type, elements),
               state_bytes = type_list_bytes(shape->state_type, elements);
  return memcmp(a->g, b->g, bytes) == 0 && memcmp(a->m, b->m, state_bytes) == 0 &&
         memcmp(a->v, b->v, state_bytes) == 0 &&
         (!shape->amsgrad || memcmp(a->max_v, b->max_v, state_bytes) == 0);
}

/* One thing to be explained: lists before and after the program's kernel, and its scalars. */
struct question {
  struct adam_candidate candidate;
  struct adam_hyper hyper;
  float step;
  size_t elements;
  struct adam_tensors inputs, result, scratch;
  bool exact_first, exact_second; /* powers of 1/2: the device's are libm's */
};

/* The candidate's results into scratch, with the powers of a nudge. */
static void answer(const struct adam_api *api, const struct question *q, unsigned nudge) {
  const struct kernel_shape shape = shape_of(&q->candidate);
  struct adam_scalars scalars;
  struct adam_tensors work = q->scratch;
  work.grad_scale = q->inputs.grad_scale;
  copy_lists(&shape, &work, &q->inputs, q->elements);
  api->scalars(q->candidate.generation, &q->hyper, q->step,
               q->exact_first ? 0 : nudges[nudge].first, q->exact_second ? 0 : nudges[nudge].second,
               &scalars);
  api->reference(&q->candidate, &q->hyper, &scalars, q->elements, &work);
}

/* The nearest powers that explain every question, or NUDGES. */
static unsigned search(const struct adam_api *api, const struct question *questions,
                       unsigned count) {
  for (unsigned nudge = 0; nudge < tries(&questions->candidate); nudge++) {
    bool same = true;
    for (unsigned i = 0; i < count && same; i++) {
      const struct question *q = &questions[i];
      const struct kernel_shape shape = shape_of(&q->candidate);
      answer(api, q, nudge);
      if (!same_rest(&shape, &q->scratch, &q->result, q->elements))
        return NUDGES;
      same = same_parameter(&shape, &q->scratch, &q->result, q->elements);
    }
    if (same)
      return nudge;
  }
  return NUDGES;
}

bool elements_prove(const struct adam_api *api, const struct adam_candidate *candidate,
                    const struct adam_hyper *hyper, float step, uint64_t count,
                    const struct adam_tensors *inputs, const struct adam_tensors *result,
                    const struct adam_tensors *scratch, struct adam_scalars *scalars,
                    bool *nudged) {
  const struct question question = {.candidate = *candidate,
                                    .hyper = *hyper,
                                    .step = step,
                                    .elements = (size_t)count,
                                    .inputs = *inputs,
                                    .result = *result,
                                    .scratch = *scratch};
  const unsigned nudge = search(api, &question, 1);
  if (nudge == NUDGES)
    return false;
  scalars_of(api, candidate, hyper, step, nudge, scalars);
  *nudged = nudge > 0;
  return true;
}

/* ---- the proof ---- */

static bool same_scalars(enum adam_type type, const struct adam_scalars *a,
                         const struct adam_scalars *b) {
  if (type == ADAM_TYPE_DOUBLE)
    return memcmp(&a->step_size_double, &b->step_size_double, sizeof a->step_size_double) == 0 &&
           (a->step_size_double == 0 ||
            memcmp(&a->bias_correction2_sqrt_double, &b->bias_correction2_sqrt_double,
                   sizeof a->bias_correction2_sqrt_double) == 0);
  return memcmp(&a->step_size, &b->step_size, sizeof a->step_size) == 0 &&
         /* u is 0 or NaN, whatever it is divided by */
         (a->step_size == 0 || memcmp(&a->bias_correction2_sqrt, &b->bias_correction2_sqrt,
                                      sizeof a->bias_correction2_sqrt) == 0);
}

/* The same question about some of its elements. */
static struct question part_of(const struct question *q, size_t first, size_t elements) {
  const size_t at = first * adam_type_bytes(q->candidate.type),
               state_at = first * adam_type_bytes(q->candidate.state_type);
  struct question part = *q;
  struct adam_tensors *lists[] = {&part.inputs, &part.result, &part.scratch};
  for (int i = 0; i < 3; i++) {
    lists[i]->p = (char *)lists[i]->p + at;
    lists[i]->g = (char *)lists[i]->g + at;
    lists[i]->m = (char *)lists[i]->m + state_at;
    lists[i]->v = (char *)lists[i]->v + state_at;
    if (q->candidate.amsgrad)
      lists[i]->max_v = (char *)lists[i]->max_v + state_at;
  }
  part.elements = elements;
  return part;
}

/* Whether other scalars give the probe's result, too: then which of them the kernel used is not
   known. Nearly every one is ruled out by the first few elements. */
static bool ambiguous(const struct adam_api *api, const struct question *questions, unsigned count,
                      const struct adam_scalars *found) {
  enum { BATCH = 32 }; /* every kind of element is in it */
  const struct question *launch = &questions[0];
  const struct kernel_shape shape = shape_of(&launch->candidate);
  for (unsigned nudge = 0; nudge < tries(&launch->candidate); nudge++) {
    struct adam_scalars other;
    scalars_of(api, &launch->candidate, &launch->hyper, launch->step, nudge, &other);
    bool differs = same_scalars(shape.type, found, &other);
    for (unsigned k = count; k-- > 0 && !differs;) /* the fine one first */
      for (size_t i = 0; i < questions[k].elements && !differs; i += BATCH) {
        const struct question part = part_of(&questions[k], i, BATCH);
        answer(api, &part, nudge);
        differs = !same_parameter(&shape, &part.scratch, &part.result, BATCH);
      }
    if (!differs)
      return true;
  }
  return false;
}

/* The fine probe's lists: what the device began with is known but for p and g, of which p was kept
   and g is as it was. */
static struct question fine_question(const struct adam_api *api, const struct question *launch,
                                     const struct probe_results *results, void *before,
                                     void *scratch) {
  const void *fine = results->fine;
  struct question q = {.candidate = launch->candidate,
                       .hyper = fine_hyper(&launch->candidate, &launch->hyper, results->lr_known),
                       .step = launch->step,
                       .elements = FINE_ELEMENTS};
  q.candidate.decay = ADAM_DECAY_NONE;
  q.exact_first = q.hyper.beta1 != launch->hyper.beta1;
  q.exact_second = q.hyper.beta2 != launch->hyper.beta2;
  const struct kernel_shape shape = shape_of(&q.candidate);
  /* Only read. */
  q.result = lists_in(&shape, (void *)(uintptr_t)fine, FINE_ELEMENTS);
  q.inputs = lists_in(&shape, before, FINE_ELEMENTS);
  q.scratch = lists_in(&shape, scratch, FINE_ELEMENTS);
  memcpy(q.inputs.p, (const char *)fine + 5 * (size_t)FINE_LIST_BYTES, FINE_LIST_BYTES);
  memcpy(q.inputs.g, q.result.g, FINE_LIST_BYTES);
  for (unsigned i = 0; i < FINE_ELEMENTS; i++) {
    const struct element start = element_fine_start(i);
    api->store(shape.state_type, q.inputs.m, i, start.m);
    api->store(shape.state_type, q.inputs.v, i, start.v);
    if (shape.amsgrad)
      api->store(shape.state_type, q.inputs.max_v, i, 0.0);
  }
  return q;
}

/* What the device ran on: the inputs, with gradients that it multiplied. */
static void inputs_on_device(const struct adam_api *api, const struct kernel_shape *shape,
                             const struct probe_results *results, void *block) {
  memcpy(block, results->inputs, lists_bytes(shape, PROBE_ELEMENTS));
  if (!results->grad_scale)
    return;
  const struct adam_tensors lists = lists_in(shape, block, PROBE_ELEMENTS);
  for (unsigned i = 0; i < PROBE_ELEMENTS; i++)
    api->store(shape->type, lists.g, i,
               api->load(shape->type, lists.g, i) * (double)*results->grad_scale);
}

/* The proof runs in the worker's thread, whose stack is not the program's. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wframe-larger-than="
bool probe_prove(const struct adam_api *api, const struct adam_candidate *candidate,
                 const struct adam_hyper *hyper, float step, const struct probe_results *results,
                 struct adam_scalars *scalars, bool *nudged) {
  double before[PROBE_BYTES_MOST / 8], scratch[PROBE_BYTES_MOST / 8];
  double fine_before[FINE_BYTES / 8], fine_scratch[FINE_BYTES / 8];
  const struct kernel_shape shape = shape_of(candidate);
  inputs_on_device(api, &shape, results, before);
  struct question questions[2] = {
      {.candidate = *candidate,
       .hyper = *hyper,
       .step = step,
       .elements = PROBE_ELEMENTS,
       .inputs = lists_in(&shape, before, PROBE_ELEMENTS),
       .result = lists_in(&shape, (void *)(uintptr_t)results->results, PROBE_ELEMENTS),
       .scratch = lists_in(&shape, scratch, PROBE_ELEMENTS)}};
  questions[0].inputs.grad_scale = results->grad_scale;
  if (results->fine)
    questions[1] = fine_question(api, &questions[0], results, fine_before, fine_scratch);
  const unsigned count = results->fine ? 2 : 1, nudge = search(api, questions, count);
  if (nudge == NUDGES)
    return false;
  scalars_of(api, candidate, hyper, step, nudge, scalars);
  *nudged = nudge > 0;
  return !ambiguous(api, questions, count, scalars);
}

bool probe_untouched(const struct adam_api *api, const struct adam_candidate *candidate,
                     const struct probe_results *results) {
  double before[PROBE_BYTES_MOST / 8];
  const struct kernel_shape shape = shape_of(candidate);
  inputs_on_device(api, &shape, results, before);
  return memcmp(before, results->results, lists_bytes(&shape, PROBE_ELEMENTS)) == 0;
}
#pragma GCC diagnostic pop
