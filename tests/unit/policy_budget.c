/* The budget from recorded /proc and /sys trees (tests/data/<tree>): both generations of control groups, nested, in
   containers and namespaces, locked memory, and what the user asks for. */
#include "policy/budget.h"
#include "tests/lib/tap.h"
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static enum budget_pages pages = BUDGET_DRIVER_PAGES;

static struct budget budget_in(const char *tree, const char *host_memory) {
  char root[512], variable[64];
  struct config config;
  snprintf(root, sizeof root, "tests/data/%s", tree);
  snprintf(variable, sizeof variable, "OFFLOAD_HOST_MEMORY=%s", host_memory ? host_memory : "");
  char *environment[] = {variable, NULL};
  config_load(&config, environment);
  const struct budget budget = budget_measure(&config, pages, root);
  config_free(&config);
  return budget;
}

static void expect(const char *tree, const char *host_memory, uint64_t bytes,
                   const char *limited_by, const char *sentence) {
  const struct budget budget = budget_in(tree, host_memory);
  if (!tap_ok(budget.bytes == bytes && !strcmp(budget.limited_by, limited_by), "%s", sentence))
    printf("# %llu by %s instead of %llu by %s\n", (unsigned long long)budget.bytes,
           budget.limited_by, (unsigned long long)bytes, limited_by);
}

/* A share as the budget rounds it: down, to a byte. */
static uint64_t share(uint64_t bytes, unsigned percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}

int main(void) {
  static const char cgroup[] = "cgroup memory limit";
  /* slice: 32 - (30 - 4 of cache) = 6 GiB; job: 16 - 2 = 14 GiB; step: no limit. */
  expect("cgroup_v2_nested", "100%", 6 * GIB, "OFFLOAD_HOST_MEMORY",
         "v2: the tightest of three nested groups counts, page cache not as used");
  expect("cgroup_v2_nested", NULL, share(6 * GIB, 80), cgroup,
         "unset, 80% of the tightest limit may be pinned");
  expect("cgroup_v2_nested", "50%", share(6 * GIB, 50), "OFFLOAD_HOST_MEMORY",
         "a share is one of what is available");
  expect("cgroup_v2_nested", "4GiB", 4 * GIB, "OFFLOAD_HOST_MEMORY",
         "an amount below the limits is taken as it is");
  expect("cgroup_v2_nested", "40GiB", 6 * GIB, cgroup,
         "an amount above a limit is cut to it, and the limit is named");
  expect("cgroup_v1", "100%", 6 * GIB, "OFFLOAD_HOST_MEMORY",
         "v1 in a container: the group's own directory is the mount point");
  expect("cgroup_v1", NULL, share(6 * GIB, 80), cgroup, "v1: the limit is named");
  expect("cgroup_hybrid", NULL, share(2 * GIB, 80), cgroup,
         "v1 beside v2: a limit above our own unlimited group counts, with blanks in the paths");
  expect("cgroup_v2_namespace", NULL, share(4 * GIB, 80), cgroup,
         "a group outside our namespace: the mount point is asked; memory.high is a limit too");
  expect("memlock", NULL, share(50 * GIB, 80), "MemAvailable",
         "RLIMIT_MEMLOCK does not bound pages that the driver makes");
  pages = BUDGET_LOCKED_PAGES;
  expect("memlock", NULL, share(768 * MIB, 80), "RLIMIT_MEMLOCK",
         "without CAP_IPC_LOCK the rest of RLIMIT_MEMLOCK bounds pages that we lock");
  expect("memlock", "4GiB", 768 * MIB, "RLIMIT_MEMLOCK",
         "an amount above RLIMIT_MEMLOCK is cut to it for pages that we lock");
  expect("memlock", "512MiB", 512 * MIB, "OFFLOAD_HOST_MEMORY",
         "an amount below RLIMIT_MEMLOCK is taken as it is");
  expect("memlock_user_namespace", NULL, share(GIB, 80), "RLIMIT_MEMLOCK",
         "CAP_IPC_LOCK of a user namespace lifts no limit");
  pages = BUDGET_DRIVER_PAGES;
  expect("nothing_there", NULL, 0, "nothing known of this machine",
         "where nothing can be read nothing is pinned");
  expect("nothing_there", "3GiB", 3 * GIB, "OFFLOAD_HOST_MEMORY",
         "where nothing can be read an amount still counts");

  struct rates seen;
  rates_assume(&seen);
  seen.charged_cgroup = CHARGE_NO;
  seen.charged_available = CHARGE_YES;
  budget_charged(&seen);
  const struct budget machine = budget_in("cgroup_v2_nested", "100%");
  expect("cgroup_v2_nested", NULL, share(machine.bytes, 80), "MemAvailable",
         "pages that no control group is charged with are bounded by the machine alone");
  tap_ok(machine.bytes > 6 * GIB, "which has more to give than the group");
  seen.charged_memlock = CHARGE_YES;
  budget_charged(&seen);
  expect("memlock", NULL, share(768 * MIB, 80), "RLIMIT_MEMLOCK",
         "pages that were seen in VmLck are bounded by RLIMIT_MEMLOCK");
  seen.charged_cgroup = seen.charged_available = CHARGE_NO;
  budget_charged(&seen);
  expect("cgroup_v2_nested", NULL, share(6 * GIB, 80), cgroup,
         "pages that nothing seems charged with are bounded by all limits");
  seen.charged_cgroup = CHARGE_YES;
  seen.charged_memlock = CHARGE_NO;
  budget_charged(&seen);
  expect(
      "memlock", NULL, share(50 * GIB, 80), "MemAvailable",
      "MemAvailable bounds what was pinned while others gave memory back, so that it didn't fall");
  rates_assume(&seen);
  budget_charged(&seen);
  expect("memlock", NULL, share(50 * GIB, 80), "MemAvailable",
         "where nothing was seen the limits are those of driver's pages");

  struct config config;
  config_load(&config, NULL);
  const struct budget here = budget_measure(&config, BUDGET_DRIVER_PAGES, NULL);
  tap_ok(*here.limited_by && strcmp(here.limited_by, "nothing known of this machine") != 0,
         "this machine's own limits can be read");
  config_free(&config);
  return tap_done();
}
