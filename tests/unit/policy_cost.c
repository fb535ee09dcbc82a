/* The cost model: figures by hand for each way and resource, and what must hold for any input, tried on random ones. */
#include "policy/cost.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <string.h>

static const double giga = 1e9;

/* A link of 50 each way alone, 40 and 45 while both run; 300 GB/s of host memory; no starts, so that hands can count. */
static struct cost_input plain(const char *family) {
  struct cost_input input = {.elements = 1e9, .on_host = 1e9, .threads = 8, .sharers = 1};
  input.rates = (struct rates){.up = 50e9,
                               .down = 50e9,
                               .up_both = 40e9,
                               .down_both = 45e9,
                               .kernel_read = 20e9,
                               .kernel_write = 30e9,
                               .device = 2000e9,
                               .dram = 300e9,
                               .dram_thread = 100e9,
                               .cpu_elements = 10e9};
  for (const struct cost_family *known = cost_families; known->name; known++)
    if (!strcmp(known->name, family))
      input.family = *known;
  return input;
}

static struct cost estimate(const struct cost_input *input) {
  struct cost cost;
  cost_estimate(input, &cost);
  return cost;
}

static bool near(double value, double wanted) {
  const bool good = fabs(value - wanted) <= 0.01 * wanted;
  if (!good)
    printf("# %g instead of %g\n", value, wanted);
  return good;
}

/* ---- by hand ---- */

static void check_families(void) {
  /* README's table, DESIGN 2. */
  static const struct {
    const char *name;
    double state, down, up, host;
  } rows[] = {
      {"torch fp32", 8, 4, 4, 36},
      {"torch bf16", 4, 2, 4, 20},
      {"torch bf16, fp32 state", 8, 2, 4, 28},
      {"torch fp64", 16, 8, 8, 72},
      {"torch fp32, amsgrad", 12, 4, 4, 44},
      {"with a master weight", 12, 2, 2, 34},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct cost_family family = plain(rows[i].name).family;
    tap_ok(family.name && family.state == rows[i].state && family.down == rows[i].down &&
               family.up == rows[i].up && family.host_cpu == rows[i].host,
           "%s: %.0f bytes of state, %.0f down, %.0f up, %.0f of host memory", rows[i].name,
           rows[i].state, rows[i].down, rows[i].up, rows[i].host);
  }
  tap_ok(!strcmp(cost_family_of(2, 2, 2, 2, 4, false, false).name, "torch bf16") &&
             !strcmp(cost_family_of(4, 4, 4, 2, 4, false, false).name, "torch fp32"),
         "a kernel's types are found among the known families");
  const struct cost_family prepared = cost_family_of(2, 2, 2, 2, 4, false, true);
  tap_ok(prepared.down == 4 && prepared.up == 4 && prepared.gradient == 2,
         "a gradient that is prepared on the device goes down in the type that is computed in");
}

static void check_ways(void) {
  struct cost_input input = plain("torch fp32");
  struct cost cost = estimate(&input);
  tap_ok(near(cost.ways[COST_STAY].seconds, 28 / 2000.0) && cost.ways[COST_STAY].exposed == 0,
         "on the device a step takes its 28 bytes a parameter, and costs nothing more");
  tap_ok(near(cost.ways[COST_CPU].seconds, 36 / 300.0) && cost.ways[COST_CPU].bound == COST_HOST,
         "a CPU step takes 36 bytes a parameter of host memory");
  tap_ok(near(cost.ways[COST_CPU].exposed, 36 / 300.0 - 28 / 2000.0),
         "and costs that without what the step took on the device");
  /* Down 8 at 45 is done first; what is left of up goes at 50. */
  const double down = 8 / 45.0, up = down + (8 - 40 * down) / 50;
  tap_ok(near(cost.ways[COST_STREAM].needs[COST_UP], up) &&
             near(cost.ways[COST_STREAM].needs[COST_DOWN], down) &&
             near(cost.ways[COST_STREAM].seconds, up) && cost.ways[COST_STREAM].bound == COST_UP,
         "a streamed step takes its slower direction, which is faster once the other is done");
  const double written = 8 / 30.0;
  tap_ok(near(cost.ways[COST_DIRECT].seconds, written + (8 - 20 * written) / 20),
         "a direct step takes the kernel's loads and stores over the link");
  tap_ok(cost.best == COST_CPU, "the cheapest is cpu with a socket of its own");
  input.sharers = 8;
  cost = estimate(&input);
  tap_ok(near(cost.ways[COST_CPU].seconds, 36 * 8 / 300.0) &&
             near(cost.ways[COST_STREAM].seconds, 16 * 8 / 300.0) &&
             cost.ways[COST_STREAM].bound == COST_HOST && cost.best == COST_DIRECT,
         "eight ranks share host memory, of which a streamed step takes 16 bytes");
}

static void check_limits(void) {
  struct cost_input input = plain("torch fp32");
  input.threads = 1;
  /* 28 of its own at 100 GB/s: 3.57 G elements/s, less than the 10 that it computes. */
  tap_ok(near(estimate(&input).ways[COST_CPU].needs[COST_ARITHMETIC], 28 / 100.0) &&
             estimate(&input).ways[COST_CPU].bound == COST_ARITHMETIC,
         "one thread reaches no more of host memory than one thread can");
  input.rates.cpu_elements = 1e9;
  tap_ok(near(estimate(&input).ways[COST_CPU].needs[COST_ARITHMETIC], 1),
         "nor does it compute more elements than it can");
  input.threads = 0;
  tap_ok(!estimate(&input).ways[COST_CPU].possible && estimate(&input).best == COST_STREAM,
         "without threads there is no CPU step");
  input.rates.up = 0;
  tap_ok(!estimate(&input).ways[COST_STREAM].possible && estimate(&input).best == COST_DIRECT,
         "without a rate of the link nothing is foretold of what uses it");
  input.rates.kernel_read = 0;
  tap_ok(estimate(&input).best == COST_STAY, "where no way is possible none is the best");

  input = plain("torch fp32");
  input.on_host = 0.25e9;
  tap_ok(near(estimate(&input).ways[COST_CPU].needs[COST_HOST], 9 / 300.0) &&
             near(estimate(&input).ways[COST_DIRECT].needs[COST_DEVICE],
                  (0.75 * 28 + 0.25 * 12) / 2000),
         "only what is on the host costs, the rest is stepped on the device");

  input = plain("torch fp32");
  input.on_host = 0.5e9;
  input.on_drive = 0.5e9;
  tap_ok(!estimate(&input).ways[COST_CPU].possible, "state on drives needs their rates");
  input.rates.drive_read = 8e9;
  input.rates.drive_write = 4e9;
  const struct cost cost = estimate(&input);
  tap_ok(near(cost.ways[COST_CPU].needs[COST_DRIVE_READ], 0.5) &&
             near(cost.ways[COST_CPU].needs[COST_DRIVE_WRITE], 1) &&
             near(cost.ways[COST_CPU].seconds, 1.5) && !cost.ways[COST_DIRECT].possible,
         "drives read and write in turn, and no kernel reaches what is there");
  tap_ok(near(cost.ways[COST_CPU].needs[COST_HOST], (36 + 8) / 300.0),
         "what comes from drives passes through host memory once more each way");
}

static void check_hidden(void) {
  struct cost_input input = plain("torch fp32");
  input.elements = input.on_host = 1e8;
  const double all = estimate(&input).ways[COST_STREAM].seconds;
  input.staged = 2.5e7;
  struct cost_of_way way = estimate(&input).ways[COST_STREAM];
  /* 0.6 GB up while 0.8 go down: down takes 0.8 / 45. */
  tap_ok(near(way.seconds, all) && near(way.exposed, 0.8 / 45 - 2.8 / 2000) &&
             near(way.hidden, way.seconds - way.exposed),
         "what is up before the launch is hidden");
  input.compute = 1e-6;
  tap_ok(near(estimate(&input).ways[COST_STREAM].exposed, all - 2.8 / 2000),
         "but for no longer than forward and backward run");
  input.rates.launch = 1e-3;
  input.launches = 10;
  tap_ok(near(estimate(&input).ways[COST_STAY].seconds, 2.8 / 2000 + 10e-3), "each launch starts");
}

static void check_pipeline(void) {
  struct cost_input input = plain("torch fp32");
  input.elements = input.on_host = 100;
  input.rates.dram = 1e15; /* no bound, so that there are three stages alone */
  const double down = 400 / 45e9, up = down + (400 - 40e9 * down) / 50e9;
  const double cpu = 100 * 28 / 800e9, apply = 100 * 20 / 2000e9;
  tap_ok(near(estimate(&input).ways[COST_CPU].seconds, down + cpu + up + apply),
         "a single piece goes through all stages one after the other");
  input.elements = input.on_host = 100 * 7 * 65536.0;
  const double most = input.elements / 100 * (up + apply);
  tap_ok(near(estimate(&input).ways[COST_CPU].seconds,
              most + input.elements / 100 * (down + cpu) / 100),
         "of a hundred pieces one fills and drains the pipeline");
  input.rates.launch = 1e-3;
  tap_ok(
      near(estimate(&input).ways[COST_CPU].seconds,
           most + 2 * 100 * 1e-3 + (input.elements / 100 * (down + cpu) + 100 * 1e-3) / 100 + 4e-3),
      "each piece's copy up and apply start after the last, beside the copies down");
}

static void check_words(void) {
  const struct cost_input input = plain("torch fp32");
  const struct cost cost = estimate(&input);
  char text[4096], few[16];
  const int length = cost_explain(&input, &cost, text, sizeof text);
  tap_ok(length == (int)strlen(text) && strstr(text, "torch fp32: 4 and 4 bytes, state 8") &&
             strstr(text, "  1000.0 M elements, 1000.0 M in host memory, 0.0 M on drives") &&
             strstr(text, "host memory      36.000 GB / 300.0 GB/s = 0.12 s") &&
             strstr(text, "link up          8.000 GB / 40.0 GB/s, 50.0 alone ="),
         "the arithmetic is told with its terms");
  tap_ok(cost_explain(&input, &cost, few, sizeof few) == length && strlen(few) == sizeof few - 1 &&
             cost_explain(&input, &cost, NULL, 0) == length,
         "cut where there is no room, and its length known");
  bool named = true;
  for (int k = 0; k < COST_RESOURCES; k++)
    named = named && cost_resource_name((enum cost_resource)k)[0];
  for (int w = 0; w < COST_WAYS; w++)
    named = named && strcmp(cost_way_name((enum cost_way)w), "none") != 0;
  tap_ok(named, "each resource and way has a name");
}

/* ---- for any input ---- */

static uint64_t seed = 1;

static double random_between(double least, double most) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  const double share = (double)(seed >> 11) / (double)(1ull << 53);
  return least * pow(most / least, share); /* each order of magnitude alike */
}

static struct cost_input random_input(void) {
  struct cost_input input = {0};
  size_t families = 0;
  while (cost_families[families].name)
    families++;
  input.family = cost_families[(size_t)random_between(1, (double)families + 0.99) - 1];
#define RATE(name, unit, assumed, help) input.rates.name = random_between(giga / 10, 1000 * giga);
#include "policy/rates.def"
#undef RATE
  input.rates.up_both = input.rates.up / random_between(1, 3);
  input.rates.down_both = input.rates.down / random_between(1, 3);
  input.rates.launch = random_between(1e-7, 1e-5);
  input.elements = random_between(1e3, 1e11);
  input.on_drive = random_between(1, 3) > 2 ? input.elements / random_between(1, 100) : 0;
  input.on_host = (input.elements - input.on_drive) / random_between(1, 4);
  input.staged = input.elements / random_between(1, 1e4);
  input.threads = (unsigned)random_between(1, 128);
  input.sharers = (unsigned)random_between(1, 16);
  input.launches = (unsigned)random_between(1, 1000);
  input.compute = random_between(1, 3) > 2 ? random_between(1e-3, 10) : 0;
  return input;
}

/* Bytes over the fastest that each resource can be: what no way may go below, worked out here from the family. */
static bool below_a_bound(const struct cost_input *in, const struct cost *cost) {
  const double moved = in->on_host + in->on_drive, shared = in->sharers;
  const double state = in->family.state;
  const double link[COST_STAY][2] = {
      {in->family.up, in->family.down}, {state, state}, {state, state}};
  const double host[COST_STAY] = {in->family.host_cpu, 2 * state, 2 * state};
  for (int w = 0; w < COST_STAY; w++) {
    const struct cost_of_way *way = &cost->ways[w];
    if (!way->possible)
      continue;
    const double seconds = way->seconds * (1 + 1e-9);
    for (int k = 0; k < COST_RESOURCES; k++)
      if (seconds < way->needs[k])
        return true;
    if (seconds < moved * link[w][0] / in->rates.up ||
        seconds < moved * link[w][1] / in->rates.down ||
        seconds < moved * host[w] * shared / in->rates.dram ||
        seconds < in->on_drive * state * shared / in->rates.drive_read ||
        seconds < in->on_drive * state * shared / in->rates.drive_write)
      return true;
    if (w == COST_DIRECT && (seconds < moved * state / in->rates.kernel_read ||
                             seconds < moved * state / in->rates.kernel_write))
      return true;
    if (w == COST_CPU &&
        seconds < moved * in->family.arithmetic / (in->rates.cpu_elements * in->threads))
      return true;
  }
  return false;
}

/* Whether some way takes less by `more` than by `less`. */
static bool less_by(const struct cost_input *less, const struct cost_input *more) {
  const struct cost a = estimate(less), b = estimate(more);
  for (int w = 0; w < COST_WAYS; w++)
    if (a.ways[w].possible && b.ways[w].possible &&
        b.ways[w].seconds < a.ways[w].seconds * (1 - 1e-9))
      return true;
  return false;
}

static struct cost_input times(struct cost_input input, double factor) {
  input.elements *= factor;
  input.on_host *= factor;
  input.on_drive *= factor;
  return input;
}

static void check_properties(void) {
  enum { INPUTS = 3000 };
  size_t bound = 0, bytes = 0, wider = 0, ranks = 0, sums = 0, best = 0, ready = 0, possible = 0;
#define RATE(name, unit, assumed, help) size_t slower_##name = 0;
#include "policy/rates.def"
#undef RATE
  for (int i = 0; i < INPUTS; i++) {
    const struct cost_input input = random_input();
    const struct cost cost = estimate(&input);
    bound += below_a_bound(&input, &cost);
    struct cost_input other = times(input, random_between(1, 100));
    bytes += less_by(&input, &other);
    other = input;
    other.family.state *= 1.5;
    other.family.up *= 1.5;
    other.family.down *= 1.5;
    other.family.host_cpu *= 1.5;
    wider += less_by(&input, &other);
    other = input;
    other.sharers += 1 + (unsigned)random_between(1, 8);
    ranks += less_by(&input, &other);
    for (int w = 0; w < COST_WAYS; w++) {
      const struct cost_of_way *way = &cost.ways[w];
      possible += way->possible;
      sums += fabs(way->exposed + way->hidden - way->seconds) > 1e-9 * way->seconds ||
              way->exposed < 0 || way->hidden < 0;
      best += w < COST_STAY && way->possible && way->exposed < cost.ways[cost.best].exposed;
    }
    other = input;
    other.staged *= 2;
    ready +=
        estimate(&other).ways[COST_STREAM].exposed > cost.ways[COST_STREAM].exposed * (1 + 1e-9);
    /* `launch` is seconds, and the NUMA distance no rate. */
#define RATE(name, unit, assumed, help)                                                            \
  other = input;                                                                                   \
  other.rates.name *= strcmp(#name, "launch") ? 3 : 0.3;                                           \
  slower_##name += less_by(&other, &input);
#include "policy/rates.def"
#undef RATE
  }
  tap_ok(possible > (size_t)INPUTS * 3, "random inputs have ways that are possible");
  tap_ok(bound == 0, "no way takes less than a resource alone needs for its bytes");
  tap_ok(bytes == 0, "more elements never take less time");
  tap_ok(wider == 0, "more bytes an element never take less time");
  tap_ok(ranks == 0, "with more ranks that share host memory and drives a step is never faster");
  tap_ok(sums == 0, "exposed and hidden add up, and neither is negative");
  tap_ok(best == 0, "the best way is that of which least is exposed");
  tap_ok(ready == 0, "the more is up before the launch, the less is exposed");
#define RATE(name, unit, assumed, help)                                                            \
  tap_ok(slower_##name == 0, "a better rate of %s never makes a step slower", #name);
#include "policy/rates.def"
#undef RATE
}

static void check_odd(void) {
  struct cost_input input = plain("torch fp32");
  input.elements = NAN;
  input.on_host = -1;
  input.on_drive = 1e30;
  input.staged = NAN;
  const struct cost cost = estimate(&input);
  tap_ok(cost.ways[COST_CPU].seconds >= 0 && cost.ways[COST_CPU].seconds < 1e-9,
         "what is no number of elements is none");
  struct cost_input none = {0};
  none.elements = none.on_host = 1e9;
  tap_ok(estimate(&none).best == COST_STAY && estimate(&none).ways[COST_STAY].seconds == 0,
         "nothing is foretold of a machine of which nothing is known");
}

int main(void) {
  check_families();
  check_ways();
  check_limits();
  check_hidden();
  check_pipeline();
  check_words();
  check_properties();
  check_odd();
  return tap_done();
}
