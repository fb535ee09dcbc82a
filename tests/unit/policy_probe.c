/* Rates that are kept: where, for whom, and which are found; what host pages are charged to, and NUMA distance, from trees made here. */
#define _GNU_SOURCE
#include "nvme/clock.h"
#include "policy/probe.h"
#include "policy/rates_cache.h"
#include "tests/lib/tap.h"
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[] = "/tmp/probe-XXXXXX";

/* What the program tells with --verbose is nobody's here. */
void probe_say(const struct probe *probe, const char *format, ...) {
  (void)probe;
  (void)format;
}

/* A file of the tree, its directories made. */
static void put(const char *path, const char *text) {
  char whole[512];
  snprintf(whole, sizeof whole, "%s%s", root, path);
  for (char *at = whole + sizeof root; (at = strchr(at, '/')); at++) {
    *at = 0;
    (void)mkdir(whole, 0700);
    *at = '/';
  }
  FILE *file = fopen(whole, "w");
  if (!file || fputs(text, file) < 0 || fclose(file))
    abort();
}

static void set_cache(const char *cache, const char *home) {
  if (cache)
    setenv("XDG_CACHE_HOME", cache, 1);
  else
    unsetenv("XDG_CACHE_HOME");
  if (home)
    setenv("HOME", home, 1);
  else
    unsetenv("HOME");
}

static struct rates_key key_of(const char *boot, const char *driver, const char *gpu,
                               const char *drives) {
  struct rates_key key = {.drives = drives};
  snprintf(key.boot, sizeof key.boot, "%s", boot);
  snprintf(key.driver, sizeof key.driver, "%s", driver);
  snprintf(key.gpu, sizeof key.gpu, "%s", gpu);
  return key;
}

static const char boot[] = "0a1b2c3d-0000-0000-0000-000000000001";
static char problem[600], path[RATES_PATH_BYTES], other[RATES_PATH_BYTES];

static void test_place(void) {
  const struct rates_key key = key_of(boot, "580.1", "0000:01:00.0", NULL);
  set_cache("/c", "/h");
  tap_ok(rates_cache_path(&key, path, problem, sizeof problem) &&
             !strncmp(path, "/c/liboffload/rates-0a1b2c3d-", 29),
         "rates are kept under XDG_CACHE_HOME, named by the boot");
  set_cache("", "/h");
  bool good = rates_cache_path(&key, path, problem, sizeof problem) &&
              !strncmp(path, "/h/.cache/liboffload/rates-", 27);
  set_cache("relative", "/h");
  good &= rates_cache_path(&key, other, problem, sizeof problem) && !strcmp(path, other);
  tap_ok(good, "else under .cache of HOME, also where XDG_CACHE_HOME isn't absolute");
  set_cache(NULL, NULL);
  tap_ok(!rates_cache_path(&key, path, problem, sizeof problem) && strstr(problem, "set one"),
         "else nowhere, which is said with the remedy");
  set_cache("/c", NULL);
  (void)rates_cache_path(&key, path, problem, sizeof problem);
  const struct rates_key others[] = {
      key_of("0a1b2c3d-0000-0000-0000-000000000002", "580.1", "0000:01:00.0", NULL),
      key_of(boot, "580.2", "0000:01:00.0", NULL), key_of(boot, "580.1", "0000:02:00.0", NULL),
      key_of(boot, "580.1", "0000:01:00.0", "/mnt/a")};
  static const char *const names[] = {"boot", "driver", "GPU", "list of drives"};
  for (size_t i = 0; i < 4; i++)
    tap_ok(rates_cache_path(&others[i], other, problem, sizeof problem) && strcmp(path, other) != 0,
           "another %s has another file", names[i]);
}

static void test_kept(void) {
  char cache[64];
  snprintf(cache, sizeof cache, "%s/cache", root);
  set_cache(cache, NULL);
  put("/proc/sys/kernel/random/boot_id", "0a1b2c3d-0000-0000-0000-000000000001\n");
  put("/sys/module/nvidia/version", "580.1\n");
  struct rates_key key;
  bool good = rates_key_here(&key, root, 13000);
  tap_ok(good && !strcmp(key.boot, boot) && !strcmp(key.driver, "580.1"),
         "boot and driver are what /proc and /sys say");
  snprintf(key.gpu, sizeof key.gpu, "0000:C1:00.0");
  snprintf(key.name, sizeof key.name, "NVIDIA H200");
  struct rates rates, read;
  rates_assume(&rates);
  rates.up = 54e9;
  rates.charged_cgroup = CHARGE_NO;
  static struct rates_kept kept;
  tap_ok(!rates_cached(&key, &read, path) && !rates_cached_newest(root, false, NULL, &read, &kept),
         "nothing is found where nothing was kept");
  const int lock = rates_cache_lock(&key, NULL, clock_now_ns(), problem, sizeof problem);
  good = lock >= 0 && rates_cache_store(&key, &rates, problem, sizeof problem);
  tap_ok(good && rates_cached(&key, &read, path) && read.up == 54e9 &&
             read.charged_cgroup == CHARGE_NO && read.source == RATES_MEASURED,
         "what was kept is found, as measured");
  const pid_t child = fork();
  if (!child) /* locks of one process don't meet */
    _exit(rates_cache_lock(&key, NULL, clock_now_ns() + 20000000, problem, sizeof problem) >= 0);
  int status = -1;
  waitpid(child, &status, 0);
  tap_ok(WIFEXITED(status) && !WEXITSTATUS(status),
         "who comes while another measures gets no lock before the time is over");
  close(lock);
  struct rates_key second = key;
  second.drives = "/mnt/a\n/mnt/b";
  rates.up = 55e9;
  rates.drive_read = 7e9;
  const struct timespec moment = {.tv_nsec = 20000000};
  nanosleep(&moment, NULL);
  good = rates_cache_store(&second, &rates, problem, sizeof problem);
  tap_ok(good && rates_cached(&second, &read, path) && read.up == 55e9 &&
             rates_cached(&key, &read, other) && read.up == 54e9,
         "another list of drives, whatever is in its names, is kept beside it");
  tap_ok(rates_cached_newest(root, false, NULL, &read, &kept) && read.up == 55e9 &&
             !strcmp(path, kept.path) && read.drive_read == 0,
         "who has no GPU to ask finds the newest, without drives that weren't asked for");
  tap_ok(rates_cached_newest(root, false, "/mnt/a\n/mnt/b", &read, &kept) &&
             read.drive_read == 7e9 && !strcmp(kept.gpu, key.gpu) && !strcmp(kept.name, key.name) &&
             kept.when > 0,
         "with them where they were, and whose rates they are");
  tap_ok(!rates_cached_newest(root, true, NULL, &read, &kept) && !*kept.path,
         "a GPU that isn't here has none");
  put("/proc/driver/nvidia/gpus/0000:c1:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n");
  tap_ok(rates_cached_newest(root, true, NULL, &read, &kept) && read.up == 55e9,
         "one that its driver lists has");
  put("/proc/driver/nvidia/gpus/0000:c1:00.0/information", "Model: \t\t NVIDIA L4\nIRQ: 1\n");
  tap_ok(!rates_cached_newest(root, true, NULL, &read, &kept), "another in its place has not");
  put("/sys/module/nvidia/version", "580.2\n");
  good = !rates_cached_newest(root, false, NULL, &read, &kept);
  put("/sys/module/nvidia/version", "580.1\n");
  put("/proc/sys/kernel/random/boot_id", "0a1b2c3d-0000-0000-0000-000000000002\n");
  tap_ok(good && !rates_cached_newest(root, false, NULL, &read, &kept),
         "of this driver and this boot alone");
  struct rates_key long_key = key;
  char drives[3000];
  memset(drives, 'd', sizeof drives);
  drives[sizeof drives - 1] = 0;
  long_key.drives = drives;
  good = rates_cache_store(&long_key, &rates, problem, sizeof problem) &&
         rates_cached(&long_key, &read, path);
  drives[sizeof drives - 2] = 'e';
  tap_ok(good && !rates_cached(&long_key, &read, path),
         "long lists of drives that end differently are told apart");
  alarm(20); /* a wait without end */
  good = rates_cached(&key, &read, path) && !unlink(path) && !mkfifo(path, 0600);
  tap_ok(good && !rates_cached(&key, &read, path) &&
             !rates_cached_newest(root, false, NULL, &read, &kept),
         "a FIFO in the place of what was kept is not waited for");
  alarm(0);
}

static void charged(uint64_t group, uint64_t available, uint64_t locked, const char *cgroup,
                    const char *machine, const char *memlock, const char *sentence) {
  const uint64_t mib = 1 << 20;
  const struct probe_usage before = {.group_known = true,
                                     .available_known = true,
                                     .locked_known = true,
                                     .group_bytes = 1000 * mib,
                                     .available_bytes = 5000 * mib,
                                     .locked_bytes = 10 * mib},
                           after = {.group_known = true,
                                    .available_known = true,
                                    .locked_known = true,
                                    .group_bytes = (1000 + group) * mib,
                                    .available_bytes = (5000 - available) * mib,
                                    .locked_bytes = (10 + locked) * mib};
  struct rates rates;
  rates_assume(&rates);
  probe_charged(&rates, &before, &after, 200 * mib);
  tap_ok(!strcmp(rates_charge_name(rates.charged_cgroup), cgroup) &&
             !strcmp(rates_charge_name(rates.charged_available), machine) &&
             !strcmp(rates_charge_name(rates.charged_memlock), memlock),
         "%s", sentence);
}

static void test_charges(void) {
  charged(200, 200, 0, "yes", "yes", "no", "pages that group and machine show are charged to both");
  charged(3, 190, 0, "no", "yes", "no", "pages that the machine alone shows are charged to it");
  charged(205, 210, 200, "yes", "yes", "yes", "locked pages show in VmLck");
  charged(75, 120, 0, "unknown", "yes", "no", "what could be others' tells nothing");
  put("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:     2048 kB\n");
  put("/proc/self/status", "VmPeak: 1 kB\nVmLck:\t     64 kB\n");
  const struct probe_usage usage = probe_usage_now(root);
  tap_ok(usage.available_known && usage.available_bytes == 2048 << 10 && usage.locked_known &&
             usage.locked_bytes == 64 << 10 && !usage.group_known,
         "what is used is read from the files that the budget is made of, and a missing one is not "
         "known");
  const struct probe_usage v2 = probe_usage_now("tests/data/cgroup_v2_nested");
  const struct probe_usage v1 = probe_usage_now("tests/data/cgroup_v1");
  tap_ok(v2.group_known && v2.group_bytes == 1ul << 30 && v1.group_known &&
             v1.group_bytes == 3ul << 30,
         "the usage is our own group's, in both generations");
  struct rates rates;
  rates_assume(&rates);
  probe_charged(&rates, &usage, &usage, 200 << 20);
  tap_ok(rates.charged_cgroup == CHARGE_UNKNOWN && rates.charged_available == CHARGE_NO,
         "without a group there is nothing to tell of it");
}

static void test_distance(void) {
  char list[512] = "", few[32];
  cpu_set_t set;
  int first = -1;
  sched_getaffinity(0, sizeof set, &set);
  for (unsigned cpu = 0; cpu < CPU_SETSIZE && first < 0; cpu++)
    first = CPU_ISSET(cpu, &set) ? (int)cpu : -1;
  snprintf(few, sizeof few, "%d\n", first);
  /* CPUs that no machine of tests has. */
  snprintf(list, sizeof list, "1000-1001,1010\n");
  put("/sys/bus/pci/devices/0000:ab:00.0/numa_node", "2\n");
  put("/sys/bus/pci/devices/0000:ac:00.0/numa_node", "-1\n");
  put("/sys/devices/system/node/online", "0,2-3\n");
  put("/sys/devices/system/node/node2/distance", "32 10 21\n");
  put("/sys/devices/system/node/node0/cpulist", few);
  put("/sys/devices/system/node/node2/cpulist", list);
  put("/sys/devices/system/node/node3/cpulist", few);
  tap_ok(probe_node_of(root, "0000:AB:00.0") == 2,
         "a GPU's node is found whatever its id's letters");
  tap_ok(probe_node_of(root, "0000:AC:00.0") == -1 && probe_node_of(root, "0000:AD:00.0") == -1,
         "a GPU of no node, or one that /sys doesn't have, has none");
  tap_ok(probe_distance(root, 2) == 21,
         "the nearest node counts of those with a CPU that may be used, missing numbers left out");
  put("/sys/devices/system/node/node2/cpulist", few);
  tap_ok(probe_distance(root, 2) == 10, "the GPU's own node is at 10");
  tap_ok(probe_distance(root, -1) == 0 && probe_distance(root, 7) == 0,
         "of an unknown node nothing is told");
}

int main(void) {
  if (!mkdtemp(root))
    return 1;
  test_place();
  test_kept();
  test_charges();
  test_distance();
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return tap_done() || system(command);
}
