/* What launchers say of a node's ranks: each convention of launchers.def, several at once, and what makes no sense. */
#include "policy/config.h"
#include "policy/ranks.h"
#include "policy/replicas.h"
#include "tests/lib/tap.h"
#include <string.h>

static struct ranks read_of(const char *const *variables) {
  char *environment[8];
  size_t count = 0;
  for (; variables[count]; count++)
    environment[count] = (char *)(uintptr_t)variables[count];
  environment[count] = NULL;
  return ranks_read(environment);
}

static void test_each(void) {
  static const struct {
    const char *name, *rank, *size, *job[2];
  } launchers[] = {
#define LAUNCHER(name, rank, size, job, run) {name, rank, size, {job, run}},
#include "policy/launchers.def"
#undef LAUNCHER
  };
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    char rank[80], size[80], job[80], other[80];
    snprintf(rank, sizeof rank, "%s=2", launchers[i].rank);
    snprintf(size, sizeof size, "%s=4", launchers[i].size);
    snprintf(job, sizeof job, "%s=17", launchers[i].job[1]);
    snprintf(other, sizeof other, "%s=18", launchers[i].job[1]);
    const struct ranks one = read_of((const char *const[]){"HOME=/", rank, size, job, NULL}),
                       same = read_of((const char *const[]){job, size, "LOCAL_RANKS=9", NULL}),
                       another = read_of((const char *const[]){rank, size, other, NULL}),
                       untold = read_of((const char *const[]){rank, size, NULL});
    tap_ok(one.local_ranks == 4 && one.local_rank == 2 && one.launcher &&
               !strcmp(one.launcher, launchers[i].name),
           "%s says which of how many local ranks a process is", launchers[i].name);
    tap_ok(one.job && one.job == same.job && another.job && one.job != another.job && !untold.job,
           "%s's ranks of one launch are one job, those of another launch another",
           launchers[i].name);
  }
}

static void test_slurm(void) {
  static const struct {
    const char *list, *node;
    unsigned ranks;
  } cases[] = {
      {"4", "0", 4},
      {"4(x2)", "1", 4},
      {"4(x2),3", "0", 4},
      {"4(x2),3", "1", 4},
      {"4(x2),3", "2", 3},
      {"4(x2),3", "3", 0},
      {"4(x2),8", NULL, 8},
      {"2,4(x3)", "3", 4},
      {"4(x", "0", 0},
      {"4(x)", "0", 0},
      {"4(x2", "0", 0},
      {"4(y2)", "0", 0},
      {"0", "0", 0},
      {"", "0", 0},
      {"four", "0", 0},
      {"4,", "1", 0},
      {",4", "1", 0},
      {"5000", "0", 0},
      {"4(x99999999999999999999)", "7", 0},
  };
  bool good = true;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char list[80], node[80] = "SLURM_NODEID=";
    snprintf(list, sizeof list, "SLURM_STEP_TASKS_PER_NODE=%s", cases[i].list);
    snprintf(node, sizeof node, "SLURM_NODEID=%s", cases[i].node ? cases[i].node : "");
    const struct ranks ranks =
        read_of((const char *const[]){list, cases[i].node ? node : NULL, NULL});
    const bool right = ranks.local_ranks == cases[i].ranks;
    if (!right)
      printf("# %s, node %s: %u instead of %u\n", cases[i].list,
             cases[i].node ? cases[i].node : "unknown", ranks.local_ranks, cases[i].ranks);
    good &= right;
  }
  tap_ok(good,
         "Slurm's list of tasks is read for the node of the process, and only where it is one");
}

static void test_several(void) {
  const struct ranks nested = read_of(
      (const char *const[]){"SLURM_STEP_TASKS_PER_NODE=1(x4)", "SLURM_LOCALID=0", "SLURM_NODEID=2",
                            "LOCAL_WORLD_SIZE=8", "LOCAL_RANK=7", "SLURM_JOB_ID=5", NULL});
  tap_ok(nested.local_ranks == 8 && nested.local_rank == 7 && !strcmp(nested.launcher, "torchrun"),
         "torchrun's ranks count, though Slurm started one task");
  const struct ranks twice =
      read_of((const char *const[]){"LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=4", NULL});
  const struct ranks numbered = read_of((const char *const[]){"LOCAL_RANK=3", NULL}),
                     grouped = read_of(
                         (const char *const[]){"MASTER_ADDR=::1", "MASTER_PORT=29500", NULL});
  tap_ok(numbered.local_rank == 3 && numbered.local_ranks == 0,
         "a launcher that only numbers its ranks leaves their count open");
  tap_ok(grouped.job && !grouped.local_ranks && grouped.local_rank == -1,
         "processes that were started by hand are one job by where they meet");
  tap_ok(twice.local_ranks == 2, "the first of two entries counts, as with getenv");
}

static bool heard_nothing(struct ranks ranks) {
  return !ranks.local_ranks && !ranks.launcher && !ranks.job;
}

static void test_nonsense(void) {
  static const char *const texts[][3] = {
      {"LOCAL_WORLD_SIZE=many", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=0", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=-4", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=4 ", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=4.5", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=4", "LOCAL_RANK=4"},
      {"LOCAL_WORLD_SIZE=4", "LOCAL_RANK=-1"},
      {"LOCAL_WORLD_SIZE=4", "LOCAL_RANK=first"},
      {"LOCAL_WORLD_SIZE=99999999", "LOCAL_RANK=0"},
      {"LOCAL_WORLD_SIZE=", "LOCAL_RANK="},
      {"WORLD_SIZE=16", "RANK=3"},
      {"SLURM_TASKS_PER_NODE=9", "SLURM_PROCID=0"},
      {"XLOCAL_WORLD_SIZE=3", "LOCAL_RANKS=0"},
      {"LOCAL_WORLD_SIZE", "LOCAL_RANK"},
      {"LOCAL_WORLD_SIZE=18446744073709551617", "LOCAL_RANK=0"},
  };
  bool none = true;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    const struct ranks ranks = read_of(texts[i]);
    if (!heard_nothing(ranks))
      printf("# %s %s is heard\n", texts[i][0], texts[i][1]);
    none &= heard_nothing(ranks);
  }
  tap_ok(none,
         "numbers that can't be are not heard, nor are variables that don't count local ranks");
  const struct ranks empty = ranks_read(NULL);
  tap_ok(heard_nothing(empty) && empty.local_rank == -1,
         "without an environment nobody has said anything");
}

static void test_prints(void) {
  char taken[34] = "";
  for (unsigned step = 1; step < sizeof taken; step++) {
    unsigned index = 9;
    taken[step - 1] = replicas_print_at(step, &index) ? (char)('0' + index) : '.';
  }
  tap_ok(!strcmp(taken, ".0101230123....0123............01"),
         "values of the state are looked at in four steps from each power of two on");
  if (strcmp(taken, ".0101230123....0123............01") != 0)
    printf("# %s\n", taken);
}

static struct registry_entry rank_of(uint64_t print, uint64_t reduces) {
  return (struct registry_entry){.job = 5,
                                 .state = {.steps = 9,
                                           .parameters_key = 7,
                                           .state_bytes = 4096,
                                           .prints = {0, print},
                                           .reduces = reduces}};
}

static void test_same(void) {
  const struct registry_entry printed = rank_of(11, 0), bare = rank_of(0, 0),
                              reduces = rank_of(0, 1), both = rank_of(11, 1),
                              differs = rank_of(12, 1);
  struct registry_entry later = rank_of(0, 0), young = printed, other = printed, larger = printed,
                        keyed = printed, unkeyed = printed;
  later.state.prints[REGISTRY_PRINTS - 1] = 11;
  young.state.steps = 1;
  other.job = 6;
  larger.state.state_bytes++;
  keyed.state.parameters_key = 8;
  unkeyed.state.parameters_key = 0;
  tap_ok(replicas_same(&printed, &printed) && replicas_same(&printed, &later),
         "ranks with the same values keep the same state, at whichever of the steps looked at");
  tap_ok(!replicas_same(&both, &differs), "others don't, whatever their collectives do");
  tap_ok(replicas_same(&reduces, &reduces) && replicas_same(&reduces, &both),
         "where one has none on the host, collectives of both tell it");
  tap_ok(!replicas_same(&bare, &bare) && !replicas_same(&bare, &both) &&
             !replicas_same(&reduces, &printed),
         "and not those of one");
  tap_ok(!replicas_same(&printed, &young) && !replicas_same(&printed, &other) &&
             !replicas_same(&printed, &larger) && !replicas_same(&printed, &keyed) &&
             !replicas_same(&unkeyed, &unkeyed),
         "nor do ranks at their first step, of other jobs, or with other tensors or sizes");
}

int main(void) {
  test_each();
  test_same();
  test_prints();
  test_slurm();
  test_several();
  test_nonsense();
  struct config config;
  char *torchrun[] = {(char *)(uintptr_t) "LOCAL_WORLD_SIZE=8", NULL},
       *nothing[] = {(char *)(uintptr_t) "HOME=/", NULL};
  config_load(&config, torchrun);
  const unsigned eight = config.local_ranks;
  config_free(&config);
  config_load(&config, nothing);
  tap_ok(eight == 8 && config.ranks.local_ranks == 0 && config.local_ranks == 1,
         "the configuration keeps the ranks that the launcher named, and one where none did");
  config_free(&config);
  return tap_done();
}
