/* See ranks.h. Called where the configuration is read; allocates nothing, keeps nothing. */
#include "ranks.h"
#include "groups.h"
#include <string.h>

static const struct launcher {
  const char *name, *rank, *size, *job[2];
} launchers[] = {
#define LAUNCHER(name, rank, size, job, run) {name, rank, size, {job, run}},
#include "launchers.def"
#undef LAUNCHER
};

/* What PyTorch's processes find each other by, however they were started. */
static const struct launcher by_hand = {.name = "PyTorch", .job = {"MASTER_ADDR", "MASTER_PORT"}};

/* The value of a variable, or NULL; "" counts as none. The first of two entries counts, as with getenv. */
static const char *variable(char **environment, const char *name) {
  const size_t bytes = strlen(name);
  for (; bytes && environment && *environment; environment++)
    if (!strncmp(*environment, name, bytes) && (*environment)[bytes] == '=')
      return (*environment)[bytes + 1] ? *environment + bytes + 1 : NULL;
  return NULL;
}

/* A decimal number and nothing else, at most RANKS_MOST; else UNLIMITED. */
static uint64_t count_of(const char *text, size_t bytes) {
  if (!bytes || strspn(text, "0123456789") < bytes)
    return UNLIMITED;
  const uint64_t number = number_of(text);
  return number <= RANKS_MOST ? number : UNLIMITED;
}

/* Slurm lists its nodes' tasks, "4(x2),3": four on each of two nodes, three on the next. Of node `node`; one that is not known has
   the most. 0 when the list is none. */
static unsigned tasks_of(const char *list, uint64_t node) {
  unsigned most = 0;
  uint64_t first = 0;
  for (;;) {
    const size_t digits = strspn(list, "0123456789");
    const uint64_t tasks = count_of(list, digits);
    uint64_t nodes = 1;
    list += digits;
    if (tasks == UNLIMITED || !tasks)
      return 0;
    if (!strncmp(list, "(x", 2)) {
      const size_t length = strspn(list + 2, "0123456789");
      nodes = number_of(list + 2);
      if (!length || nodes > UINT32_MAX || list[2 + length] != ')')
        return 0;
      list += length + 3;
    }
    if (*list && *list != ',')
      return 0;
    if (node != UNLIMITED && node >= first && node < first + nodes)
      return (unsigned)tasks;
    first += nodes;
    most = tasks > most ? (unsigned)tasks : most;
    if (!*list++)
      return node == UNLIMITED ? most : 0;
  }
}

static uint64_t hash(uint64_t value, const char *text) {
  for (; *text; text++)
    value = (value ^ (unsigned char)*text) * 0x100000001b3u;
  return (value ^ 0xff) * 0x100000001b3u;
}

static uint64_t job_of(char **environment, const struct launcher *launcher) {
  uint64_t value = hash(0xcbf29ce484222325u, launcher->name);
  bool told = false;
  for (size_t i = 0; i < 2; i++) {
    const char *text = variable(environment, launcher->job[i]);
    told |= text != NULL;
    value = hash(value, text ? text : "");
  }
  return told ? value : 0;
}

static struct ranks ranks_of(char **environment, const struct launcher *launcher) {
  static const struct ranks nothing = {.local_rank = -1};
  struct ranks ranks = {.launcher = launcher->name, .local_rank = -1};
  const char *size = variable(environment, launcher->size),
             *rank = variable(environment, launcher->rank);
  if (size && !strcmp(launcher->name, "Slurm")) {
    const char *node = variable(environment, "SLURM_NODEID");
    ranks.local_ranks = tasks_of(size, node ? number_of(node) : UNLIMITED);
  } else if (size) {
    const uint64_t said = count_of(size, strlen(size));
    ranks.local_ranks = said == UNLIMITED ? 0 : (unsigned)said;
  }
  const uint64_t number = rank ? count_of(rank, strlen(rank)) : 0;
  if (number >= RANKS_MOST || (size && number >= ranks.local_ranks))
    return nothing;
  if (rank)
    ranks.local_rank = (int)number;
  ranks.job = job_of(environment, launcher);
  return ranks;
}

struct ranks ranks_read(char **environment) {
  struct ranks most = {.local_rank = -1};
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const struct ranks one = ranks_of(environment, &launchers[i]);
    if (one.local_ranks > most.local_ranks)
      most = one;
    else if (!most.local_ranks && most.local_rank < 0)
      most.local_rank = one.local_rank;
  }
  if (!most.job)
    most.job = job_of(environment, &by_hand);
  return most;
}
