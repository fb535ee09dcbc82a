/* How much host memory may be pinned: the smallest of the cgroup's room (v1 and v2, every level up
   to the root), MemAvailable, OFFLOAD_HOST_MEMORY and, for pages that this process locks or
   registers itself, the locked-memory limit (RLIMIT_MEMLOCK, unless CAP_IPC_LOCK). Pages that the
   driver makes are not charged to that limit (containers with 64 KiB of it pin gigabytes through
   the driver every day), so it must not bound them. */
#ifndef OFFLOAD_BUDGET_H
#define OFFLOAD_BUDGET_H
#include "config.h"
#include "rates.h"

/* What was seen of pages that the driver makes (rates' charged_*): from now on a control group that isn't charged with them doesn't
   bound them, and the locked-memory limit does where they are. Unknown: as above. MemAvailable bounds them always, since they lie in
   the machine's memory; where it didn't fall by them the measurement was disturbed, and the group bounds them as well. Any thread. */
void budget_charged(const struct rates *);

struct budget {
  uint64_t bytes;         /* what may still be pinned in all */
  const char *limited_by; /* "OFFLOAD_HOST_MEMORY", "cgroup memory limit", "MemAvailable",
                             "RLIMIT_MEMLOCK" */
};

enum budget_pages {
  BUDGET_DRIVER_PAGES, /* made by the driver: host handles, cuMemHostAlloc */
  BUDGET_LOCKED_PAGES  /* our own memory, locked or registered */
};

/* Room under each limit that bounds these pages, UINT64_MAX where none does or nothing can be read. `group`: which control group has the
   least room (device and inode of its directory), 0 where there is no limit: ranks with the same one share its room. */
struct budget_rooms {
  uint64_t machine_bytes, group_bytes, locked_bytes, group;
};
void budget_rooms(enum budget_pages, const char *root, struct budget_rooms *);

/* What the settings make of it for one of `ranks` ranks that share the machine, `group_ranks` of them the group; amounts in bytes are a
   process's own, shares are parted. Without OFFLOAD_HOST_MEMORY, 80% of the smallest limit, so that the host keeps breathing. When
   nothing can be read the budget is 0. */
struct budget budget_of(const struct config *, const struct budget_rooms *, unsigned ranks,
                        unsigned group_ranks);
/* Of all ranks together: the same share of a room. */
uint64_t budget_bound(const struct config *, uint64_t room);

/* Both, for a process that is alone. `root` is prefixed to /proc and /sys paths (tests give a recorded tree; NULL means the real one).
   Never fails: what can't be read doesn't limit. */
struct budget budget_measure(const struct config *, enum budget_pages, const char *root);
#endif
