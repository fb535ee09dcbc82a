/* The choice of a way (policy/decide.h) from costs made by hand and times that are true, noisy or lie: its rules as properties over many
   random machines. */
#include "policy/decide.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <string.h>

enum { WAYS = COST_DIRECT + 1, MACHINES = 200 };
static const double stay_seconds = 0.001;

static uint64_t seed = 88172645463325252u;
static double chance(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (double)(seed >> 11) / 9007199254740992.0;
}
/* Between 1/most and most, each octave as often. */
static double factor(double most) {
  return exp((2 * chance() - 1) * log(most));
}

/* Exposed seconds of cpu, stream, direct; 0: not possible. */
static struct cost cost_of(double cpu, double stream, double direct) {
  const double exposed[WAYS] = {cpu, stream, direct};
  struct cost cost = {.best = COST_STAY};
  cost.ways[COST_STAY] = (struct cost_of_way){.possible = true, .seconds = stay_seconds};
  for (int way = 0; way < WAYS; way++)
    cost.ways[way] = (struct cost_of_way){.possible = exposed[way] > 0,
                                          .seconds = exposed[way] + stay_seconds,
                                          .exposed = exposed[way],
                                          .bound = COST_HOST};
  return cost;
}

static struct cost any_cost(void) {
  return cost_of(0.1 * factor(10), 0.1 * factor(10), 0.1 * factor(10));
}

/* Steps in which each way takes `truth` times what is foretold, times up to `noise`. */
static void run(struct decide *decide, const struct cost *cost, const double truth[WAYS],
                double noise, uint64_t first, uint64_t steps) {
  for (uint64_t step = first; step < first + steps; step++) {
    const enum cost_way way = decide_step(decide, cost, step, NULL);
    const double foretold = decide_foretold(cost, way);
    decide_measured(decide, way, foretold, foretold * truth[way] * factor(noise));
  }
}

static void test_first_choice(void) {
  unsigned cheapest = 0, said = 0;
  for (int i = 0; i < MACHINES; i++) {
    const struct cost cost = any_cost();
    struct decide decide = {0};
    const enum cost_way way = decide_step(&decide, &cost, 2, NULL);
    bool least = true;
    for (int other = 0; other < WAYS; other++)
      least = least && cost.ways[way].exposed <= cost.ways[other].exposed;
    cheapest += least;
    said += strstr(decide.why, "cpu ") && strstr(decide.why, "stream ") &&
            strstr(decide.why, "direct ") && strstr(decide.why, "bound by host memory") &&
            !decide.switch_count;
  }
  tap_ok(cheapest == MACHINES, "the first choice is the cheapest way");
  tap_ok(said == MACHINES, "its sentence has the numbers of all three ways and what bounds it");
  struct decide decide = {0};
  const struct cost no_cpu = cost_of(0, 0.2, 0.3), none = cost_of(0, 0, 0);
  tap_ok(decide_step(&decide, &no_cpu, 2, NULL) == COST_STREAM &&
             strstr(decide.why, "cpu is not possible"),
         "a way that is not possible is not taken, and the sentence says so");
  struct decide nothing = {0};
  tap_ok(decide_step(&nothing, &none, 2, NULL) == COST_STREAM && !nothing.chosen,
         "where no way is possible it is stream, and nothing is chosen");
}

static void test_undecided(void) {
  const struct cost cost = cost_of(0.3, 0.1, 0.2), no_cpu = cost_of(0, 0.2, 0.1);
  struct decide decide = {0}, other = {0};
  tap_ok(decide_step(&decide, &cost, 1, "no rates") == COST_CPU &&
             strstr(decide.why, "cpu, the usual way: no rates") && !decide.chosen,
         "without anything to choose by it is the CPU, with the reason");
  tap_ok(decide_step(&other, &no_cpu, 1, "no rates") == COST_STREAM,
         "and stream where the CPU can't");
  tap_ok(decide_step(&decide, &cost, 2, NULL) == COST_STREAM && !decide.switch_count,
         "the first real choice is no switch");
  tap_ok(decide_step(&decide, &cost, 3, "too few elements") == COST_STREAM,
         "what was chosen stays while there is nothing to choose by");
}

static void test_gain(void) {
  unsigned kept = 0, left = 0;
  for (int i = 0; i < MACHINES; i++) {
    const double cpu = 0.1 * factor(10);
    struct cost cost = cost_of(cpu, 2 * cpu, 2 * cpu);
    struct decide decide = {0};
    const double truth[WAYS] = {1, 1, 1};
    run(&decide, &cost, truth, 1, 1, 10);
    /* The model changes its mind, by a little and by more than enough. */
    cost = cost_of(cpu + 0.05 * stay_seconds, 0.9 * cpu, 2 * cpu);
    run(&decide, &cost, truth, 1, 11, 1000);
    kept += decide.way == COST_CPU && !decide.switch_count;
    cost = cost_of(cpu, 0.5 * cpu, 2 * cpu);
    run(&decide, &cost, truth, 1, 1011, 10);
    left += decide.way == COST_STREAM && decide.switch_count == 1 &&
            decide.switches[0].from == COST_CPU && decide.switches[0].to == COST_STREAM &&
            decide.switches[0].step == 1010 + DECIDE_BETTER;
  }
  tap_ok(kept == MACHINES, "a way that is a tenth cheaper changes nothing in 1000 steps");
  tap_ok(left == MACHINES, "one that is half as expensive is taken at its fourth step, once");
}

/* The first change and the one after it; the steps between them. */
static void test_dwell(void) {
  struct cost cost = cost_of(0.1, 0.2, 4);
  struct decide decide = {0};
  const double slow_cpu[WAYS] = {4, 1, 1}, slow_stream[WAYS] = {1, 20, 1};
  run(&decide, &cost, slow_cpu, 1, 1, DECIDE_DWELL);
  tap_ok(decide.way == COST_CPU, "a way is kept for its dwell though another would be cheaper");
  run(&decide, &cost, slow_cpu, 1, 1 + DECIDE_DWELL, 100);
  tap_ok(decide.way == COST_STREAM && decide.switch_count == 1 &&
             decide.switches[0].step >= 1 + DECIDE_DWELL &&
             decide.switches[0].step <= 1 + DECIDE_DWELL + DECIDE_BETTER &&
             strstr(decide.switches[0].why, "measured 4.0 times that"),
         "a CPU step that takes four times what was foretold is left, and the sentence says so");
  run(&decide, &cost, slow_stream, 1, 200, 1000);
  tap_ok(decide.switch_count >= 2 && decide.switches[1].from == COST_STREAM &&
             decide.switches[1].to == COST_CPU,
         "and taken again when the other gets slower still");
  tap_ok(decide.dwell == 2 * (uint64_t)DECIDE_DWELL, "after a return the dwell is twice as long");
}

static void test_trial(void) {
  const struct cost cost = cost_of(0.1, 0.05, 0.4);
  struct decide decide = {0};
  const double truth[WAYS] = {1, 50, 1};
  /* Stream is told cheap and is dear: the CPU was never measured, so only what is foretold speaks. */
  run(&decide, &cost, truth, 1, 1, 200);
  tap_ok(decide.way == COST_CPU && decide.switch_count == 1,
         "a first choice that proves dear is left");
  struct decide tried = {0};
  struct cost early = cost_of(0.05, 0.1, 0.4);
  const double cpu_slow[WAYS] = {3, 50, 50};
  run(&tried, &early, cpu_slow, 1, 1, DECIDE_DWELL + 1 + DECIDE_BETTER + DECIDE_MEASURED_LEAST + 1);
  tap_ok(tried.way == COST_CPU && tried.switch_count == 2,
         "a way that is tried and proves far worse is left after five steps, before its dwell");
}

/* Nothing lies, nothing is noisy: what is reached is as cheap as can be known. */
static void test_settles(void) {
  unsigned settled = 0, idle = 0;
  for (int i = 0; i < MACHINES; i++) {
    const struct cost cost = any_cost();
    const double truth[WAYS] = {factor(4), factor(4), factor(4)};
    struct decide decide = {0};
    run(&decide, &cost, truth, 1, 1, 600);
    bool good = true;
    for (enum cost_way way = COST_CPU; way < (enum cost_way)WAYS; way++) {
      const double foretold = decide_foretold(&cost, way), taken = foretold * truth[way];
      good = good && decide_foretold(&cost, decide.way) * truth[decide.way] * 85 <=
                         100 * (foretold > taken ? foretold : taken) * 1.0001;
    }
    settled += good;
    const uint64_t count = decide.switch_count;
    run(&decide, &cost, truth, 1, 601, 300);
    idle += decide.switch_count == count;
  }
  tap_ok(settled == MACHINES,
         "it settles on a way that no other undercuts by 15 percent, foretold and measured");
  tap_ok(idle == MACHINES, "and stays there");
}

static void test_never_flaps(void) {
  const uint64_t steps = 50000;
  const double most = 4 + log2((double)steps / DECIDE_DWELL);
  uint64_t worst = 0;
  for (int i = 0; i < MACHINES / 4; i++) {
    const struct cost cost = cost_of(0.1 * factor(1.3), 0.1 * factor(1.3), 0.1 * factor(1.3));
    const double truth[WAYS] = {factor(1.5), factor(1.5), factor(1.5)};
    struct decide decide = {0};
    run(&decide, &cost, truth, 2, 1, steps);
    worst = decide.switch_count > worst ? decide.switch_count : worst;
  }
  tap_ok((double)worst <= most,
         "under times that are off by up to two it changes no more than log times in 50000 steps");
  printf("# at most %llu changes, %.0f allowed\n", (unsigned long long)worst, most);
  /* Against it: whatever way is taken gets slow. */
  const struct cost cost = cost_of(0.1, 0.1, 0.1);
  struct decide decide = {0};
  for (uint64_t step = 1; step <= steps; step++) {
    const enum cost_way way = decide_step(&decide, &cost, step, NULL);
    decide_measured(&decide, way, 1, 1.0 + (double)(step % 7) * (step - decide.since > 8 ? 1 : 0));
  }
  tap_ok((double)decide.switch_count <= 3 * most, "nor when whatever way is taken gets slow");
  printf("# %llu changes\n", (unsigned long long)decide.switch_count);
}

static void test_recovers(void) {
  const struct cost cost = cost_of(0.1, 0.2, 0.4);
  struct decide decide = {0};
  const double slow_cpu[WAYS] = {4, 1, 1}, truth[WAYS] = {1, 1, 1};
  run(&decide, &cost, slow_cpu, 1, 1, 100);
  const bool away = decide.way == COST_STREAM;
  run(&decide, &cost, truth, 1, 101, 500);
  const bool still = decide.way == COST_STREAM;
  run(&decide, &cost, truth, 1, 601, 2000);
  tap_ok(away && still && decide.way == COST_CPU,
         "a way that was slow for a while is tried again long after");
}

static void test_disagrees(void) {
  const struct cost cost = cost_of(0.1, 1, 1);
  struct decide decide = {0};
  const double off[WAYS] = {1.6, 1, 1}, near[WAYS] = {1.4, 1, 1};
  run(&decide, &cost, near, 1, 1, 100);
  tap_ok(!decide_disagrees(&decide), "steps that take 1.4 times what was foretold agree");
  run(&decide, &cost, off, 1, 101, DECIDE_DISAGREES - 1);
  const bool not_yet = !decide_disagrees(&decide);
  run(&decide, &cost, off, 1, 200, 1);
  tap_ok(not_yet && decide_disagrees(&decide), "32 that take 1.6 times that do not");
  decide_rates_changed(&decide);
  tap_ok(!decide_disagrees(&decide) && decide_ratio(&decide, COST_CPU) <= 0 &&
             decide.way == COST_CPU,
         "with new rates what was measured against the old ones is forgotten, and the way stays");
}

static void test_odd(void) {
  const struct cost cost = cost_of(0.1, 0.2, 0.4), no_cpu = cost_of(0, 0.2, 0.4);
  struct decide decide = {0};
  char text[DECIDE_TIME_BYTES];
  decide_step(&decide, &cost, 1, NULL);
  decide_measured(&decide, COST_CPU, 0, 1);
  decide_measured(&decide, COST_CPU, 1, 0);
  decide_measured(&decide, COST_STAY, 1, 1);
  tap_ok(!decide.measured[COST_CPU], "times of nothing and of no way are not counted");
  tap_ok(decide_step(&decide, &no_cpu, 2, NULL) == COST_STREAM && decide.switch_count == 1 &&
             strstr(decide.switches[0].why, "cpu is not possible any more"),
         "a way that is not possible any more is left at once");
  for (uint64_t step = 3; step < 100; step++)
    decide_force(&decide, step % 2 ? COST_CPU : COST_DIRECT, step, "so it was told");
  tap_ok(decide.switch_count == 98 && decide_step(&decide, &cost, 100, NULL) == COST_CPU &&
             strlen(decide.switches[98 % DECIDE_SWITCHES].why) > 0,
         "a way by force is taken at once and kept, and the list of changes is a ring");
  tap_ok(!strcmp(decide_time(0.0001234, text), "123 us") &&
             !strcmp(decide_time(0.01234, text), "12.3 ms") &&
             !strcmp(decide_time(123.45, text), "123.4 s") &&
             !strcmp(decide_time(-1, text), "0 us"),
         "times are told in fitting units");
}

int main(void) {
  test_first_choice();
  test_undecided();
  test_gain();
  test_dwell();
  test_trial();
  test_settles();
  test_never_flaps();
  test_recovers();
  test_disagrees();
  test_odd();
  return tap_done();
}
