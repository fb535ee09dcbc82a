/* How much host memory may be pinned: reads limits from /proc and /sys, allocates nothing. Called
   by the shim when it is about to move state, and by tests with a recorded tree; the buffers are static (the program's stack may be
   small), so one thread at a time reads (groups_begin).

   A limit is room: what is allowed less what is used, page cache that the kernel would drop not
   counted as used. Control groups limit at every level, so each group from ours up to the mount's
   root is asked, in both hierarchies (a machine may mount v1 and v2 at once). */
#include "budget.h"
#include "groups.h"
#include "report_file.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CAPABILITY_IPC_LOCK = 14, DEFAULT_PERCENT = 80 };

/* The number after `key` in a file of "key number" lines; UNLIMITED when it isn't there. */
static uint64_t number_after(const char *root, const char *path, const char *key) {
  const size_t key_bytes = strlen(key);
  uint64_t value = UNLIMITED;
  struct lines *lines = lines_open(root, path);
  if (!lines)
    return value;
  for (char *line; (line = lines_next(lines));)
    if (!strncmp(line, key, key_bytes) && line[key_bytes] && strchr(" \t:", line[key_bytes])) {
      value = number_of(line + key_bytes + strspn(line + key_bytes, ":"));
      break;
    }
  lines_close(lines);
  return value;
}

/* One generation of control groups: how its files are called. */
struct hierarchy {
  struct group_kind kind;
  const char *limits[2], *usage, *cache;
};
static const struct hierarchy hierarchies[] = {
    {{"cgroup2", NULL}, {"memory.max", "memory.high"}, "memory.current", "inactive_file"},
    {{"cgroup", "memory"},
     {"memory.limit_in_bytes", NULL},
     "memory.usage_in_bytes",
     "total_inactive_file"},
};

/* Room in one group's directory. */
static uint64_t group_room(const struct hierarchy *h, const char *root, const char *directory) {
  uint64_t limit = UNLIMITED;
  for (size_t i = 0; i < 2 && h->limits[i]; i++) {
    const uint64_t one = number_in(root, directory, h->limits[i]);
    limit = one < limit ? one : limit;
  }
  if (limit > (uint64_t)1 << 62) /* v1 writes "none" as the largest number of pages */
    return UNLIMITED;
  uint64_t used = number_in(root, directory, h->usage);
  if (used == UNLIMITED)
    used = 0;
  static char path[PATH_BYTES];
  if (snprintf(path, sizeof path, "%s/memory.stat", directory) < (int)sizeof path) {
    const uint64_t cache = number_after(root, path, h->cache);
    used -= cache < used ? cache : cache == UNLIMITED ? 0 : used;
  }
  return limit > used ? limit - used : 0;
}

struct room {
  const struct hierarchy *hierarchy;
  uint64_t bytes, group;
};

/* Device and inode of a group's directory, never 0. */
static uint64_t identity(const char *root, const char *directory) {
  static char path[PATH_BYTES];
  struct stat at;
  if (snprintf(path, sizeof path, "%s%s", root, directory) >= (int)sizeof path ||
      !file_look(AT_FDCWD, path, 0, &at))
    return 1;
  return ((uint64_t)at.st_dev << 40 ^ (uint64_t)at.st_ino) | (uint64_t)1 << 63;
}

static void visit_room(const char *root, const char *directory, void *argument) {
  struct room *room = argument;
  const uint64_t one = group_room(room->hierarchy, root, directory);
  if (one >= room->bytes)
    return;
  room->bytes = one;
  room->group = identity(root, directory);
}

static struct room cgroup_room(const char *root) {
  struct room room = {NULL, UNLIMITED, 0};
  for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++) {
    room.hierarchy = &hierarchies[i];
    groups_visit(&hierarchies[i].kind, root, visit_room, &room);
  }
  return room;
}

static uint64_t kibibytes(uint64_t count) {
  return count > UNLIMITED >> 10 ? UNLIMITED : count << 10;
}

/* Whether CAP_IPC_LOCK lifts the limit: only as seen by the first user namespace, so not for a
 * container's mapped root. */
static bool may_lock_freely(const char *root) {
  uint64_t effective = 0;
  bool first_namespace = true;
  struct lines *lines = lines_open(root, "/proc/self/status");
  if (lines) {
    for (char *line; (line = lines_next(lines));)
      if (!strncmp(line, "CapEff:", 7))
        effective = strtoull(line + 7, NULL, 16);
    lines_close(lines);
  }
  lines = lines_open(root, "/proc/self/uid_map");
  if (lines) {
    const char *line = lines_next(lines);
    unsigned long inside, outside, count;
    if (line && sscanf(line, "%lu %lu %lu", &inside, &outside, &count) == 3)
      first_namespace = !inside && !outside && count == 4294967295UL;
    lines_close(lines);
  }
  return first_namespace && effective >> CAPABILITY_IPC_LOCK & 1;
}

static uint64_t memlock_room(const char *root) {
  if (may_lock_freely(root))
    return UNLIMITED;
  const uint64_t limit = number_after(root, "/proc/self/limits", "Max locked memory");
  const uint64_t locked = number_after(root, "/proc/self/status", "VmLck");
  if (limit == UNLIMITED || locked == UNLIMITED)
    return limit;
  return limit > kibibytes(locked) ? limit - kibibytes(locked) : 0;
}

/* What driver's pages are charged to, one enum rates_charge each. */
static _Atomic int charged_group, charged_lock;

void budget_charged(const struct rates *rates) {
  /* The pages are the machine's whatever it showed: beside other jobs, which give memory back meanwhile, it may show nothing. What
     it didn't show proves nothing of the group, either. */
  const bool seen = rates->charged_available == CHARGE_YES;
  charged_group = rates->charged_cgroup == CHARGE_NO && !seen ? (int)CHARGE_UNKNOWN
                                                              : (int)rates->charged_cgroup;
  charged_lock = (int)rates->charged_memlock;
}

/* Whether a limit bounds these pages. */
static bool bounds(enum budget_pages pages, int charged, enum rates_charge unknown) {
  if (pages == BUDGET_LOCKED_PAGES)
    return true;
  return (charged == CHARGE_UNKNOWN ? (int)unknown : charged) == CHARGE_YES;
}

void budget_rooms(enum budget_pages pages, const char *root, struct budget_rooms *rooms) {
  if (!root)
    root = "";
  groups_begin();
  const struct room group = bounds(pages, charged_group, CHARGE_YES)
                                ? cgroup_room(root)
                                : (struct room){NULL, UNLIMITED, 0};
  *rooms = (struct budget_rooms){
      .machine_bytes = kibibytes(number_after(root, "/proc/meminfo", "MemAvailable")),
      .group_bytes = group.bytes,
      .locked_bytes = bounds(pages, charged_lock, CHARGE_NO) ? memlock_room(root) : UNLIMITED,
      .group = group.group,
  };
  groups_end();
}

static unsigned percent_of(const struct config *config) {
  return config->host_memory.percent ? config->host_memory.percent : DEFAULT_PERCENT;
}

static uint64_t share(uint64_t bytes, unsigned percent, unsigned ranks) {
  return (bytes / 100 * percent + bytes % 100 * percent / 100) / (ranks ? ranks : 1);
}

uint64_t budget_bound(const struct config *config, uint64_t room) {
  const bool asked_bytes = config->host_memory.set && !config->host_memory.percent;
  return asked_bytes || room == UNLIMITED ? room : share(room, percent_of(config), 1);
}

struct budget budget_of(const struct config *config, const struct budget_rooms *rooms,
                        unsigned ranks, unsigned group_ranks) {
  const struct config_size *asked = &config->host_memory;
  const bool asked_bytes = asked->set && !asked->percent;
  const struct {
    uint64_t room;
    unsigned ranks;
    const char *name;
  } limits[] = {
      {rooms->group_bytes, group_ranks, "cgroup memory limit"},
      {rooms->machine_bytes, ranks, "MemAvailable"},
      {rooms->locked_bytes, 1, "RLIMIT_MEMLOCK"},
  };
  struct budget budget = {UNLIMITED, "nothing known of this machine"};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    if (limits[i].room == UNLIMITED)
      continue;
    const uint64_t bytes =
        asked_bytes ? limits[i].room : share(limits[i].room, percent_of(config), limits[i].ranks);
    if (bytes < budget.bytes)
      budget = (struct budget){bytes, limits[i].name};
  }
  if (asked_bytes && asked->bytes <= budget.bytes)
    return (struct budget){asked->bytes, "OFFLOAD_HOST_MEMORY"};
  if (budget.bytes == UNLIMITED)
    budget.bytes = 0;
  else if (asked->percent)
    budget.limited_by = "OFFLOAD_HOST_MEMORY";
  return budget;
}

struct budget budget_measure(const struct config *config, enum budget_pages pages,
                             const char *root) {
  struct budget_rooms rooms;
  budget_rooms(pages, root, &rooms);
  return budget_of(config, &rooms, 1, 1);
}
