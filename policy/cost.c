/* The cost model: seconds of a step from bytes and rates. Called by the shim's decisions, `offload plan`, advice and tests; pure.

   A way of stepping is a pipeline of stages, through which the step goes in pieces. It takes as long as what is busiest, and once each
   other stage for a single piece, which is how it fills and drains:

     cpu      gradient down | CPU | update up, then the kernel that applies it, on one stream
     stream   state up | the program's kernel | state down
     direct   the program's kernel, reading and writing over the link
     stay     the program's kernel

   Host memory is no stage: all stages' accesses share it. A direction of the link goes slower while the other runs: both start
   together, and what the longer one has left goes at the speed that it has alone. Drives read or write, not both at once. */
#include "cost.h"
#include <stdarg.h>
#include <stdio.h>

/* Elements of a piece at the default OFFLOAD_DEVICE_STAGING. cpu: a slot of 4 MiB holds two parts of floats (shim/ring.c), whole chunks of
   PyTorch's. stream: a sixteenth of 256 MiB by bytes of state (shim/staging.c). */
static const double cpu_piece_elements = 7 * 65536, stream_slot_bytes = 16 << 20;

/* Starts of copies and kernels on the busiest stream: of a piece, and of a launch (the proof's, the tail). */
enum { CPU_PIECE_STARTS = 2, STREAM_PIECE_STARTS = 2, LAUNCH_STARTS = 4 };

/* Reads of p and g, a write of p. The CPU writes the update, of which p stands for the lines read and written. */
#define FAMILY(called, p, g, s, states, opmath, master, prepared)                                  \
  {                                                                                                \
    .name = (called), .parameter = (p), .gradient = (g),                                           \
    .state = (s) * (states) + ((master) ? (opmath) : 0), .down = (prepared) ? (opmath) : (g),      \
    .up = (master) ? (p) : (opmath),                                                               \
    .host_cpu = 2.0 * (p) + 2.0 * ((prepared) ? (opmath) : (g)) +                                  \
                2.0 * ((s) * (states) + ((master) ? (opmath) : 0)) + ((master) ? (p) : (opmath)),  \
    .arithmetic = (opmath) > 4 ? 3.5                                                               \
                  : (p) < 4    ? 1.1                                                               \
                               : 1,                                                                   \
  }

const struct cost_family cost_families[] = {
    FAMILY("torch fp32", 4, 4, 4, 2, 4, false, false),
    FAMILY("torch bf16", 2, 2, 2, 2, 4, false, false),
    FAMILY("torch bf16, fp32 state", 2, 2, 4, 2, 4, false, false),
    FAMILY("torch fp32, bf16 state", 4, 4, 2, 2, 4, false, false),
    FAMILY("torch fp64", 8, 8, 8, 2, 8, false, false),
    FAMILY("torch fp32, amsgrad", 4, 4, 4, 3, 4, false, false),
    FAMILY("torch bf16, amsgrad", 2, 2, 2, 3, 4, false, false),
    FAMILY("with a master weight", 2, 2, 4, 2, 4, true, false),
    {.name = NULL},
};

struct cost_family cost_family_of(unsigned parameter, unsigned gradient, unsigned state,
                                  unsigned states, unsigned opmath, bool master, bool prepared) {
  const struct cost_family family =
      FAMILY("as its kernel shows", parameter, gradient, state, states, opmath, master, prepared);
  for (const struct cost_family *known = cost_families; known->name; known++)
    if (!prepared && known->parameter == family.parameter && known->gradient == family.gradient &&
        known->state == family.state && known->up == family.up &&
        known->arithmetic == family.arithmetic)
      return *known;
  return family;
}

const char *cost_way_name(enum cost_way way) {
  static const char *const names[COST_WAYS] = {"cpu", "stream", "direct", "stay"};
  return way < COST_WAYS ? names[way] : "none";
}

const char *cost_resource_name(enum cost_resource resource) {
  static const char *const names[COST_RESOURCES] = {
      [COST_UP] = "link up",
      [COST_DOWN] = "link down",
      [COST_HOST] = "host memory",
      [COST_ARITHMETIC] = "CPU threads",
      [COST_DEVICE] = "GPU memory",
      [COST_DRIVE_READ] = "drives, reading",
      [COST_DRIVE_WRITE] = "drives, writing",
      [COST_STARTS] = "starts",
  };
  return resource < COST_RESOURCES ? names[resource] : "none";
}

/* ---- what a way moves ---- */

/* Bytes (or elements, or starts), and how many in a second; rate 0: not known, and bounds nothing. */
struct terms {
  double amount[COST_RESOURCES], rate[COST_RESOURCES];
  double up_both, down_both; /* of the link while both directions run */
  double pieces;
  bool possible;
};

static double at_least(double value, double least) {
  return value > least ? value : least; /* not a number is `least` */
}

static double smaller(double a, double b) {
  return a < b ? a : b;
}

static double larger(double a, double b) {
  return a > b ? a : b;
}

/* Of two rates, of which 0 isn't known. */
static double lower(double a, double b) {
  return a > 0 && (b <= 0 || a < b) ? a : b;
}

static double seconds_of(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

struct shape {
  double elements, on_host, on_drive, on_device, sharers, launches;
};

static struct shape shape_of(const struct cost_input *input) {
  struct shape s;
  s.elements = at_least(input->elements, 0);
  s.on_drive = smaller(at_least(input->on_drive, 0), s.elements);
  s.on_host = smaller(at_least(input->on_host, 0), s.elements - s.on_drive);
  s.on_device = s.elements - s.on_host - s.on_drive;
  s.sharers = input->sharers > 1 ? input->sharers : 1;
  s.launches = input->launches > 1 ? input->launches : 1;
  return s;
}

/* Device memory that the program's kernel reads and writes for an element. */
static double kernel_bytes(const struct cost_family *family, bool state) {
  return 2 * family->parameter + family->gradient + (state ? 2 * family->state : 0);
}

/* What is the same in all ways: rates, and what stayed on the device. */
static struct terms terms_of(const struct cost_input *input, const struct shape *s) {
  const struct rates *rates = &input->rates;
  struct terms t = {.possible = true, .pieces = s->launches};
  t.rate[COST_UP] = rates->up;
  t.rate[COST_DOWN] = rates->down;
  t.up_both = lower(rates->up_both, rates->up);
  t.down_both = lower(rates->down_both, rates->down);
  t.rate[COST_HOST] = rates->dram / s->sharers;
  t.rate[COST_DEVICE] = rates->device;
  t.rate[COST_DRIVE_READ] = rates->drive_read / s->sharers;
  t.rate[COST_DRIVE_WRITE] = rates->drive_write / s->sharers;
  t.rate[COST_STARTS] = rates->launch > 0 ? 1 / rates->launch : 0;
  t.amount[COST_DEVICE] = s->on_device * kernel_bytes(&input->family, true);
  t.amount[COST_STARTS] = s->launches;
  return t;
}

/* State on drives passes through host memory once more each way. */
static void add_drives(struct terms *t, const struct cost_input *input, const struct shape *s) {
  const double bytes = s->on_drive * input->family.state;
  t->amount[COST_DRIVE_READ] = t->amount[COST_DRIVE_WRITE] = bytes;
  t->amount[COST_HOST] += 2 * bytes;
  if (bytes > 0 && (input->rates.drive_read <= 0 || input->rates.drive_write <= 0))
    t->possible = false;
}

static struct terms cpu_terms(const struct cost_input *input, const struct shape *s) {
  const struct cost_family *family = &input->family;
  const double moved = s->on_host + s->on_drive;
  struct terms t = terms_of(input, s);
  t.amount[COST_DOWN] = moved * family->down;
  t.amount[COST_UP] = moved * family->up;
  t.amount[COST_HOST] = moved * family->host_cpu;
  t.amount[COST_DEVICE] += moved * (2 * family->parameter + family->down + 2 * family->up);
  t.amount[COST_ARITHMETIC] = moved * at_least(family->arithmetic, 0);
  t.rate[COST_ARITHMETIC] = input->rates.cpu_elements * input->threads;
  /* Threads reach no more of host memory than each can: as elements, when that is less. */
  const double own = family->host_cpu - family->down - family->up;
  const double reached = input->rates.dram_thread * input->threads;
  if (own > 0 && reached > 0)
    t.rate[COST_ARITHMETIC] =
        lower(t.rate[COST_ARITHMETIC], reached / own * at_least(family->arithmetic, 0));
  const double piece = input->cpu_piece > 0 ? input->cpu_piece : cpu_piece_elements;
  t.pieces = at_least(moved / piece, s->launches);
  t.amount[COST_STARTS] = CPU_PIECE_STARTS * t.pieces + LAUNCH_STARTS * s->launches;
  t.possible = input->threads > 0 && t.rate[COST_UP] > 0 && t.rate[COST_DOWN] > 0;
  add_drives(&t, input, s);
  return t;
}

/* `early` elements are up already when the step begins. */
static struct terms stream_terms(const struct cost_input *input, const struct shape *s,
                                 double early) {
  const struct cost_family *family = &input->family;
  const double moved = s->on_host + s->on_drive, bytes = moved * family->state;
  struct terms t = terms_of(input, s);
  t.amount[COST_DOWN] = bytes;
  t.amount[COST_UP] = bytes - early * family->state;
  t.amount[COST_HOST] = t.amount[COST_UP] + t.amount[COST_DOWN];
  /* The copies' own accesses, then the kernel's. */
  t.amount[COST_DEVICE] += t.amount[COST_HOST] + moved * kernel_bytes(family, true);
  const double piece_bytes =
      input->stream_piece > 0 ? input->stream_piece * family->state : stream_slot_bytes;
  t.pieces = at_least(bytes / piece_bytes, s->launches);
  t.amount[COST_STARTS] = STREAM_PIECE_STARTS * t.pieces + LAUNCH_STARTS * s->launches;
  t.possible = t.rate[COST_UP] > 0 && t.rate[COST_DOWN] > 0;
  add_drives(&t, input, s);
  return t;
}

static struct terms direct_terms(const struct cost_input *input, const struct shape *s) {
  const struct rates *rates = &input->rates;
  struct terms t = terms_of(input, s);
  t.rate[COST_UP] = lower(rates->kernel_read, t.rate[COST_UP]);
  t.rate[COST_DOWN] = lower(rates->kernel_write, t.rate[COST_DOWN]);
  t.up_both = lower(t.up_both, t.rate[COST_UP]);
  t.down_both = lower(t.down_both, t.rate[COST_DOWN]);
  t.amount[COST_UP] = t.amount[COST_DOWN] = s->on_host * input->family.state;
  t.amount[COST_HOST] = t.amount[COST_UP] + t.amount[COST_DOWN];
  t.amount[COST_DEVICE] += s->on_host * kernel_bytes(&input->family, false);
  /* What is on drives is mapped nowhere that a kernel could reach. */
  t.possible = s->on_drive <= 0 && rates->kernel_read > 0 && rates->kernel_write > 0;
  return t;
}

static struct terms stay_terms(const struct cost_input *input, const struct shape *s) {
  struct terms t = terms_of(input, s);
  t.amount[COST_DEVICE] = s->elements * kernel_bytes(&input->family, true);
  return t;
}

static struct terms way_terms(const struct cost_input *input, const struct shape *s,
                              enum cost_way way) {
  switch (way) {
  case COST_CPU:
    return cpu_terms(input, s);
  case COST_STREAM:
    return stream_terms(input, s, 0);
  case COST_DIRECT:
    return direct_terms(input, s);
  default:
    return stay_terms(input, s);
  }
}

/* ---- how long that takes ---- */

/* Both directions of the link from the same moment: when each is done. */
static void link_seconds(const struct terms *t, double *up, double *down) {
  const double u = t->amount[COST_UP], d = t->amount[COST_DOWN];
  const double up_both = seconds_of(u, t->up_both), down_both = seconds_of(d, t->down_both);
  const double both = smaller(up_both, down_both); /* until the first is done */
  *up = up_both <= both ? up_both : both + seconds_of(u - both * t->up_both, t->rate[COST_UP]);
  *down = down_both <= both ? down_both
                            : both + seconds_of(d - both * t->down_both, t->rate[COST_DOWN]);
}

static void needs_of(const struct terms *t, double needs[COST_RESOURCES]) {
  for (int k = 0; k < COST_RESOURCES; k++)
    needs[k] = seconds_of(t->amount[k], t->rate[k]);
  link_seconds(t, &needs[COST_UP], &needs[COST_DOWN]);
}

/* A pipeline of stages that go in pieces, beside resources that all of them use. */
static double pipeline(const double *stages, size_t count, double shared, double pieces) {
  double sum = 0, most = 0;
  for (size_t i = 0; i < count; i++) {
    sum += stages[i];
    most = larger(most, stages[i]);
  }
  return larger(most, shared) + (sum - most) / pieces;
}

static double way_seconds(const struct terms *t, enum cost_way way, double launches) {
  double n[COST_RESOURCES];
  needs_of(t, n);
  const double drives = n[COST_DRIVE_READ] + n[COST_DRIVE_WRITE];
  const double a_start = seconds_of(1, t->rate[COST_STARTS]), a_launch = LAUNCH_STARTS * launches;
  const double starts = t->pieces * a_start; /* of one operation of each piece */
  switch (way) {
  case COST_CPU: {
    const double stages[] = {n[COST_DOWN] + starts, n[COST_ARITHMETIC],
                             n[COST_UP] + n[COST_DEVICE] + CPU_PIECE_STARTS * starts, drives};
    return pipeline(stages, sizeof stages / sizeof *stages, n[COST_HOST], t->pieces) +
           a_launch * a_start;
  }
  case COST_STREAM: {
    const double stages[] = {n[COST_UP] + STREAM_PIECE_STARTS * starts, n[COST_DEVICE] + starts,
                             n[COST_DOWN] + STREAM_PIECE_STARTS * starts, drives};
    return pipeline(stages, sizeof stages / sizeof *stages, n[COST_HOST], t->pieces) +
           a_launch * a_start;
  }
  default: { /* one kernel that does all at once */
    double most = n[COST_DEVICE];
    for (int k = COST_UP; k <= COST_HOST; k++)
      most = larger(most, n[k]);
    return most + n[COST_STARTS];
  }
  }
}

/* What is copied up while forward and backward run, so far as they last. */
static double early_elements(const struct cost_input *input, const struct shape *s) {
  double early = smaller(at_least(input->staged, 0), s->on_host);
  if (input->compute > 0 && input->family.state > 0)
    early = smaller(early, input->compute * input->rates.up / input->family.state);
  return early;
}

/* Drives read and write in turn: what bounds is the larger of both, when their sum does. */
static enum cost_resource bound_of(const double needs[COST_RESOURCES]) {
  const double drives = needs[COST_DRIVE_READ] + needs[COST_DRIVE_WRITE];
  enum cost_resource bound = COST_UP;
  for (int k = 0; k < COST_RESOURCES; k++)
    if (needs[k] > needs[bound])
      bound = (enum cost_resource)k;
  if (drives <= needs[bound])
    return bound;
  return needs[COST_DRIVE_WRITE] > needs[COST_DRIVE_READ] ? COST_DRIVE_WRITE : COST_DRIVE_READ;
}

void cost_estimate(const struct cost_input *input, struct cost *cost) {
  const struct shape s = shape_of(input);
  const struct terms stay = stay_terms(input, &s);
  const double stay_seconds = way_seconds(&stay, COST_STAY, s.launches);
  *cost = (struct cost){.best = COST_STAY};
  for (int i = 0; i < COST_WAYS; i++) {
    const enum cost_way way = (enum cost_way)i;
    const struct terms t = way_terms(input, &s, way);
    struct cost_of_way *of = &cost->ways[i];
    of->possible = t.possible;
    needs_of(&t, of->needs);
    of->bound = bound_of(of->needs);
    if (!t.possible)
      continue;
    of->seconds = way_seconds(&t, way, s.launches);
    double after = of->seconds; /* the launch; before it forward and backward run */
    if (way == COST_STREAM) {
      const struct terms left = stream_terms(input, &s, early_elements(input, &s));
      after = smaller(after, way_seconds(&left, way, s.launches));
    }
    of->exposed = way == COST_STAY ? 0 : at_least(after - stay_seconds, 0);
    of->hidden = of->seconds - of->exposed;
    if (way != COST_STAY &&
        (cost->best == COST_STAY || of->exposed < cost->ways[cost->best].exposed))
      cost->best = way;
  }
}

/* ---- in words ---- */

struct writer {
  char *text;
  size_t bytes, length;
};

static void __attribute__((format(printf, 2, 3))) put(struct writer *w, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t at = w->length < w->bytes ? w->length : w->bytes;
  const int length = vsnprintf(w->bytes ? w->text + at : NULL, w->bytes - at, format, arguments);
  va_end(arguments);
  w->length += length > 0 ? (size_t)length : 0;
}

static void explain_resource(struct writer *w, const struct terms *t, enum cost_resource k,
                             double needs) {
  const char *name = cost_resource_name(k);
  const double billion = 1e9, rate = t->rate[k];
  if (k == COST_STARTS)
    put(w, "    %-16s %.0f x %.1f us = %.6g s\n", name, t->amount[k], 1e6 / rate, needs);
  else if (k == COST_ARITHMETIC)
    put(w, "    %-16s %.3f G elements / %.3f G/s = %.6g s\n", name, t->amount[k] / billion,
        rate / billion, needs);
  else if ((k == COST_UP || k == COST_DOWN) && t->amount[COST_UP] > 0 && t->amount[COST_DOWN] > 0)
    put(w, "    %-16s %.3f GB / %.1f GB/s, %.1f alone = %.6g s\n", name, t->amount[k] / billion,
        (k == COST_UP ? t->up_both : t->down_both) / billion, rate / billion, needs);
  else
    put(w, "    %-16s %.3f GB / %.1f GB/s = %.6g s\n", name, t->amount[k] / billion, rate / billion,
        needs);
}

int cost_explain(const struct cost_input *input, const struct cost *cost, char *text,
                 size_t bytes) {
  const struct shape s = shape_of(input);
  const double million = 1e6;
  struct writer w = {text, bytes, 0};
  put(&w, "%s: %.0f and %.0f bytes, state %.0f; ranks: %.0f\n",
      input->family.name ? input->family.name : "a kernel", input->family.parameter,
      input->family.gradient, input->family.state, s.sharers);
  put(&w, "  %.1f M elements, %.1f M in host memory, %.1f M on drives\n", s.elements / million,
      s.on_host / million, s.on_drive / million);
  for (int i = 0; i < COST_WAYS; i++) {
    const struct cost_of_way *of = &cost->ways[i];
    const struct terms t = way_terms(input, &s, (enum cost_way)i);
    if (!of->possible) {
      put(&w, "  %s: not possible\n", cost_way_name((enum cost_way)i));
      continue;
    }
    put(&w, "  %s: %.6g s, %.6g exposed, %.6g hidden, bound by %s\n",
        cost_way_name((enum cost_way)i), of->seconds, of->exposed, of->hidden,
        cost_resource_name(of->bound));
    for (int k = 0; k < COST_RESOURCES; k++)
      if (of->needs[k] > 0)
        explain_resource(&w, &t, (enum cost_resource)k, of->needs[k]);
  }
  return (int)w.length;
}
