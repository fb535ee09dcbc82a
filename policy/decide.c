/* See decide.h. Figures in sentences are whole numbers put together by hand: the program's locale may have another point. */
#include "decide.h"
#include "sort.h"
#include <stdio.h>
#include <string.h>

enum { WAYS = COST_DIRECT + 1, DWELL_MOST_BITS = 40 };

double decide_foretold(const struct cost *cost, enum cost_way way) {
  return cost->ways[way].exposed + cost->ways[COST_STAY].seconds;
}

double decide_ratio(const struct decide *decide, enum cost_way way) {
  double sorted[DECIDE_MEASURED] = {0};
  const uint64_t measured = decide->measured[way];
  const unsigned count = measured < DECIDE_MEASURED ? (unsigned)measured : DECIDE_MEASURED;
  if (count < DECIDE_MEASURED_LEAST)
    return 0;
  memcpy(sorted, decide->ratios[way], count * sizeof *sorted);
  return sort_median(sorted, count);
}

double decide_expected(const struct decide *decide, const struct cost *cost, enum cost_way way) {
  const double ratio = decide_ratio(decide, way);
  return decide_foretold(cost, way) * (ratio > 0 ? ratio : 1);
}

const char *decide_time(double seconds, char text[DECIDE_TIME_BYTES]) {
  const double us = seconds * 1e6;
  const uint64_t whole = us < 0 ? 0 : us < 1e18 ? (uint64_t)(us + 0.5) : UINT64_MAX;
  const unsigned long long value = whole;
  if (whole < 10000)
    snprintf(text, DECIDE_TIME_BYTES, "%llu us", value);
  else if (whole < 10000000)
    snprintf(text, DECIDE_TIME_BYTES, "%llu.%llu ms", value / 1000, value / 100 % 10);
  else
    snprintf(text, DECIDE_TIME_BYTES, "%llu.%llu s", value / 1000000, value / 100000 % 10);
  return text;
}

/* ---- sentences ---- */

/* Appends; what doesn't fit is cut. */
static void say(char why[DECIDE_WHY_BYTES], const char *words) {
  const size_t used = strlen(why);
  snprintf(why + used, DECIDE_WHY_BYTES - used, "%s", words);
}

/* "cpu 12.3 ms (1.2 times what was foretold; bound by host memory)" */
static void say_way(char why[DECIDE_WHY_BYTES], const struct decide *decide,
                    const struct cost *cost, enum cost_way way, bool bound) {
  char text[128], time[DECIDE_TIME_BYTES], corrected[64] = "";
  const double ratio = decide_ratio(decide, way);
  const unsigned tenths = ratio < 1e6 ? (unsigned)(ratio * 10 + 0.5) : 10000000;
  if (ratio > 0)
    snprintf(corrected, sizeof corrected, ", measured %u.%u times that", tenths / 10, tenths % 10);
  snprintf(text, sizeof text, "%s %s%s%s%s", cost_way_name(way),
           decide_time(decide_foretold(cost, way), time), corrected, bound ? ", bound by " : "",
           bound ? cost_resource_name(cost->ways[way].bound) : "");
  say(why, text);
}

/* Why this way and none of the others, with the numbers of all that are possible. */
static void say_choice(char why[DECIDE_WHY_BYTES], const struct decide *decide,
                       const struct cost *cost, enum cost_way chosen, const char *begin) {
  *why = 0;
  say(why, begin);
  say_way(why, decide, cost, chosen, true);
  for (enum cost_way way = COST_CPU; way < (enum cost_way)WAYS; way++) {
    if (way == chosen)
      continue;
    say(why, "; ");
    if (cost->ways[way].possible) {
      say_way(why, decide, cost, way, false);
    } else {
      say(why, cost_way_name(way));
      say(why, " is not possible");
    }
  }
}

/* ---- the machine ---- */

static void take(struct decide *decide, enum cost_way way, uint64_t step,
                 const char why[DECIDE_WHY_BYTES]) {
  if (decide->chosen && decide->way != way) {
    struct decide_switch *entry = &decide->switches[decide->switch_count++ % DECIDE_SWITCHES];
    *entry = (struct decide_switch){.step = step, .from = decide->way, .to = way};
    memcpy(entry->why, why, sizeof entry->why);
    decide->left[decide->way] = true;
    decide->left_at[decide->way] = step;
    if (decide->left[way] && decide->dwell < (uint64_t)1 << DWELL_MOST_BITS)
      decide->dwell *= 2;
  }
  if (!decide->chosen)
    decide->dwell = DECIDE_DWELL;
  if (!decide->chosen || decide->way != way) {
    decide->since = step;
    decide->disagreed = 0;
  }
  decide->chosen = true;
  decide->way = way;
  decide->better = 0;
  if (decide->why != why)
    memcpy(decide->why, why, sizeof decide->why);
}

/* The cheapest way; COST_STAY where none is possible. */
static enum cost_way cheapest(const struct decide *decide, const struct cost *cost) {
  enum cost_way best = COST_STAY;
  for (enum cost_way way = COST_CPU; way < (enum cost_way)WAYS; way++)
    if (cost->ways[way].possible && (best == COST_STAY || decide_expected(decide, cost, way) <
                                                              decide_expected(decide, cost, best)))
      best = way;
  return best;
}

/* A way's first time, and it takes far longer than one that is known takes. */
static bool trial_failed(const struct decide *decide, const struct cost *cost, enum cost_way best) {
  return !decide->tried[decide->way] && decide->left[best] &&
         decide_ratio(decide, decide->way) > 0 && decide_ratio(decide, best) > 0 &&
         decide_expected(decide, cost, decide->way) * 100 >
             decide_expected(decide, cost, best) * DECIDE_WORSE_PERCENT;
}

/* What was slow for a while may be so no more. */
static void forget_old(struct decide *decide, uint64_t step) {
  for (enum cost_way way = COST_CPU; way < (enum cost_way)WAYS; way++)
    if (way != decide->way && decide->left[way] && decide->measured[way] &&
        step > decide->left_at[way] + DECIDE_FORGET_DWELLS * decide->dwell) {
      decide->measured[way] = 0;
      decide->tried[way] = false;
    }
}

/* Whether the present way is to be left for `best`, now. */
static bool leaves(struct decide *decide, const struct cost *cost, enum cost_way best,
                   uint64_t step) {
  if (best == decide->way ||
      decide_expected(decide, cost, best) * 100 >
          decide_expected(decide, cost, decide->way) * (100 - DECIDE_GAIN_PERCENT)) {
    decide->better = 0;
    return false;
  }
  decide->better = best == decide->candidate ? decide->better + 1 : 1;
  decide->candidate = best;
  if (trial_failed(decide, cost, best))
    return true;
  return decide->better >= DECIDE_BETTER && step >= decide->since + decide->dwell;
}

enum cost_way decide_step(struct decide *decide, const struct cost *cost, uint64_t step,
                          const char *undecided) {
  char why[DECIDE_WHY_BYTES] = "";
  if (decide->chosen)
    forget_old(decide, step);
  const enum cost_way best = cheapest(decide, cost);
  if (best == COST_STAY)
    return COST_STREAM;
  if (undecided || (decide->chosen && decide->forced)) {
    const enum cost_way usual = cost->ways[COST_CPU].possible ? COST_CPU : COST_STREAM;
    if (decide->chosen && cost->ways[decide->way].possible)
      return decide->way;
    if (!decide->chosen && undecided)
      snprintf(decide->why, sizeof decide->why, "%s, the usual way: %s", cost_way_name(usual),
               undecided);
    return usual;
  }
  if (!decide->chosen) {
    say_choice(why, decide, cost, best, "foretold on the program's stream: ");
    take(decide, best, step, why);
  } else if (!cost->ways[decide->way].possible) {
    snprintf(why, sizeof why, "%s is not possible any more: ", cost_way_name(decide->way));
    char begin[DECIDE_WHY_BYTES];
    memcpy(begin, why, sizeof begin);
    say_choice(why, decide, cost, best, begin);
    take(decide, best, step, why);
  } else if (leaves(decide, cost, best, step)) {
    say_choice(why, decide, cost, best, "cheaper in steps one after another: ");
    decide->tried[decide->way] = true;
    take(decide, best, step, why);
  }
  return decide->way;
}

void decide_force(struct decide *decide, enum cost_way way, uint64_t step, const char *words) {
  char why[DECIDE_WHY_BYTES] = "";
  say(why, words);
  take(decide, way, step, why);
  decide->forced = true;
}

void decide_measured(struct decide *decide, enum cost_way way, double foretold_seconds,
                     double measured_seconds) {
  if (way >= (enum cost_way)WAYS || foretold_seconds <= 0 || measured_seconds <= 0)
    return;
  const double ratio = measured_seconds / foretold_seconds;
  decide->ratios[way][decide->measured[way]++ % DECIDE_MEASURED] = ratio;
  if (way != decide->way)
    return;
  const double beyond = DECIDE_DISAGREES_PERCENT / 100.0;
  decide->disagreed = ratio > beyond || ratio * beyond < 1 ? decide->disagreed + 1 : 0;
}

bool decide_disagrees(const struct decide *decide) {
  return decide->disagreed >= DECIDE_DISAGREES;
}

void decide_rates_changed(struct decide *decide) {
  memset(decide->measured, 0, sizeof decide->measured);
  decide->disagreed = 0;
  decide->better = 0;
}
