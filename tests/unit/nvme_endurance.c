/* A drive's life: recorded /sys (tests/data/drives), health logs and smartctl's answers, what is made of them, and how a program is
   started for it. */
#define _GNU_SOURCE
#include "nvme/endurance_internal.h"
#include "tests/lib/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint64_t tera = 1000000000000;

static struct drive_health recorded(unsigned device_major, unsigned device_minor) {
  return drive_health(makedev(device_major, device_minor), "tests/data/drives");
}

static void test_sysfs(void) {
  struct drive_health health = recorded(259, 0);
  tap_ok(!strcmp(health.name, "nvme0n1") && !strcmp(health.model, "Samsung SSD 990 PRO 2TB") &&
             health.capacity_bytes == 2000398934016 && !strcmp(health.source, "sysfs") &&
             health.boot_known && health.boot_written_bytes == 410240000ull * 512,
         "a whole drive: name, model, capacity and what was written since the start");
  tap_ok(health.consumer && health.rated_known && health.rated_bytes == 1200 * tera &&
             !health.percent_known && !health.written_known,
         "its class and rating come from the table; what /sys doesn't tell is unknown");
  static const struct {
    unsigned major, minor;
    const char *what, *name;
  } layers[] = {{259, 2, "a partition", "nvme0n1"},
                {253, 0, "a device mapper's device", "nvme0n1"},
                {9, 0, "an md device", "sda"},
                {8, 1, "an ATA drive's partition", "sda"}};
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    health = recorded(layers[i].major, layers[i].minor);
    if (!tap_ok(!strcmp(health.name, layers[i].name) && health.consumer,
                "%s leads to the drive under it", layers[i].what))
      printf("# %s, %s\n", health.name, health.model);
  }
  tap_ok(!strcmp(health.model, "Samsung SSD 860") && !health.rated_known,
         "a model cut short tells the class and not the rating");
  health = recorded(7, 0);
  tap_ok(!strcmp(health.name, "loop0") && !*health.model && health.capacity_bytes == 1 << 30 &&
             !health.consumer && !health.rated_known && !health.percent_known,
         "a loop device whose file can't be followed is itself, and its life unknown");
  health = recorded(254, 0);
  tap_ok(!strcmp(health.name, "vda") && !*health.model && !health.consumer && !health.rated_known &&
             !strcmp(health.source, "sysfs"),
         "a virtual drive has a size and no life");
  health = recorded(0, 45);
  tap_ok(!*health.name && !*health.source && !health.capacity_bytes && !health.boot_known,
         "a file system without a block device has no drive");
  struct stat here;
  char path[128];
  health = drive_health(stat(".", &here) ? 0 : here.st_dev, NULL);
  snprintf(path, sizeof path, "/sys/class/block/%s", health.name);
  tap_ok(!*health.name || (!access(path, F_OK) && strncmp(health.name, "loop", 4) != 0),
         "where this file system is on a drive, that drive is found");
}

static void put(uint8_t *at, uint64_t value) {
  for (size_t i = 0; i < 8; i++)
    at[i] = (uint8_t)(value >> 8 * i);
}

static void test_page(void) {
  uint8_t page[ENDURANCE_PAGE_BYTES] = {[3] = 100, [4] = 10, [5] = 17};
  struct drive_health health = {0};
  put(page + 32, 111);
  put(page + 48, 390625000);
  tap_ok(endurance_page(page, &health) && health.percent_known && health.percent_used == 17 &&
             health.written_known && health.written_bytes == 200 * tera,
         "the health log tells percent and bytes, a thousand sectors a unit");
  page[5] = 130;
  tap_ok(endurance_page(page, &health) && health.percent_used == 130,
         "more than all of the rated endurance stays more");
  page[48 + 8] = 1;
  health = (struct drive_health){0};
  tap_ok(endurance_page(page, &health) && health.percent_known && !health.written_known,
         "more bytes than a number holds are unknown");
  memset(page, 0, sizeof page);
  health = (struct drive_health){0};
  tap_ok(!endurance_page(page, &health) && !health.percent_known && !health.written_known,
         "a page of zeros, as virtual drives have, tells nothing");
}

static const char *contents(const char *path) {
  static char text[16384];
  const int fd = open(path, O_RDONLY);
  const ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  text[got > 0 ? got : 0] = 0;
  if (fd >= 0)
    close(fd);
  return text;
}

static void test_json(void) {
  struct drive_health health = {0};
  tap_ok(endurance_json(contents("tests/data/drives/smartctl_nvme.json"), &health) &&
             health.percent_used == 17 && health.written_known &&
             health.written_bytes == 200 * tera &&
             !strcmp(health.model, "Samsung SSD 990 PRO 2TB") &&
             health.capacity_bytes == 2000398934016,
         "smartctl about an NVMe drive: percent, bytes, model, capacity");
  health = (struct drive_health){.model = "Samsung SSD 860"};
  tap_ok(endurance_json(contents("tests/data/drives/smartctl_ata.json"), &health) &&
             health.percent_used == 9 && health.written_known &&
             health.written_bytes == 48 * tera &&
             !strcmp(health.model, "Samsung SSD 860 EVO 500GB"),
         "smartctl about an ATA drive: the standard's statistics, and the whole model");
  endurance_rate(&health);
  tap_ok(health.rated_known && health.rated_bytes == 300 * tera,
         "with the whole model the rating is found");
  health = (struct drive_health){0};
  tap_ok(endurance_json("{\"a\":{\"endurance_used\":{\"current_percent\":1}},"
                        "\"b\":[{\"x\":\"]}\\\"\"},[]],\"endurance_used\":"
                        "{\"other\":2, \"current_percent\" : 300 } }",
                        &health) &&
             health.percent_used == 255,
         "a value is found by its place, whatever stands in other values");
  static const char *const bad[] = {"",
                                    "{",
                                    "[]",
                                    "{\"endurance_used\"",
                                    "{\"endurance_used\":",
                                    "{\"endurance_used\":{\"current_percent\":\"9\"}}",
                                    "{\"endurance_used\":{\"current_percent\":-1}}",
                                    "{\"x\":\"\\",
                                    "{\"x\":[{\"endurance_used\":{\"current_percent\":9}}",
                                    "{\"smartctl\":{\"exit_status\":2}}",
                                    "smartctl: no such device"};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    health = (struct drive_health){0};
    if (endurance_json(bad[i], &health) || health.percent_known) {
      wrong++;
      printf("# '%s' was taken\n", bad[i]);
    }
  }
  const char *whole = contents("tests/data/drives/smartctl_ata.json");
  char cut[16384];
  for (size_t length = 0; length < strlen(whole); length += 7) {
    snprintf(cut, sizeof cut, "%.*s", (int)length, whole);
    (void)endurance_json(cut, &health); /* must come to an end */
  }
  tap_ok(!wrong, "what is cut short, or no number, or no answer, is unknown");
}

static bool near(double value, double expected) {
  return fabs(value - expected) < expected * 1e-9 + 1e-9;
}

static void test_life(void) {
  double steps = 0, days = 0;
  struct drive_health health = {.rated_known = true,
                                .rated_bytes = 1200 * tera,
                                .written_known = true,
                                .written_bytes = 200 * tera};
  tap_ok(drive_life(&health, 84000000000, 8.64, &steps, &days) && near(steps, 1000e12 / 84e9) &&
             near(days, 1000e12 / 84e9 / 1e4),
         "what is left, in steps and days");
  health.percent_known = true;
  health.percent_used = 50;
  tap_ok(drive_life(&health, 84000000000, 8.64, &steps, &days) && near(steps, 600e12 / 84e9),
         "of bytes and percent the one that ends first counts");
  health.percent_used = 120;
  tap_ok(drive_life(&health, 84000000000, 8.64, &steps, &days) && near(steps, 0) && near(days, 0),
         "a drive beyond its rating has nothing left");
  health.percent_known = false;
  health.written_bytes = 1300 * tera;
  tap_ok(drive_life(&health, 84000000000, 8.64, &steps, &days) && near(steps, 0),
         "one that has written more than rated, too");
  size_t told = drive_life(&health, 0, 1, &steps, &days);
  told += drive_life(&health, 1, 0, &steps, &days);
  told += drive_life(&health, 1, NAN, &steps, &days);
  health.written_known = false;
  told += drive_life(&health, 1, 1, &steps, &days);
  health.written_known = health.percent_known = true;
  health.rated_known = false;
  told += drive_life(&health, 1, 1, &steps, &days);
  tap_ok(!told, "of an unknown rate, or an unknown life, nothing is said");
}

static void test_rates(void) {
  static const struct {
    const char *model;
    uint64_t gigabytes;
    bool consumer;
    uint64_t terabytes;
  } drives[] = {{"Samsung SSD 970 PRO 1TB", 1024, true, 1200},
                {"Samsung SSD 950 PRO 512GB", 512, true, 0},
                {"CT1000MX500SSD1", 1000, true, 360},
                {"WD_BLACK SN850X 1000GB", 1000, true, 600},
                {"SAMSUNG MZQL27T6HBLA-00A07", 7682, false, 14016},
                {"Samsung SSD 990 PRO 2TB", 3000, true, 0},
                {"Amazon EC2 NVMe Instance Storage", 1900, false, 0},
                {"", 1000, false, 0}};
  size_t wrong = 0;
  for (size_t i = 0; i < sizeof drives / sizeof *drives; i++) {
    struct drive_health health = {.capacity_bytes = drives[i].gigabytes * 1000000000};
    snprintf(health.model, sizeof health.model, "%s", drives[i].model);
    endurance_rate(&health);
    if (health.consumer != drives[i].consumer || health.rated_known != !!drives[i].terabytes ||
        health.rated_bytes != drives[i].terabytes * tera) {
      wrong++;
      printf("# %s: %d, %llu\n", drives[i].model, health.consumer,
             (unsigned long long)health.rated_bytes);
    }
  }
  tap_ok(!wrong, "known drives have their class and rating, unknown ones none");
}

static void test_limit(void) {
  const struct wear_limit none = {0}, bytes = {.set = true, .bytes = 20 * tera},
                          percent = {.set = true, .percent = 90};
  struct drive_health health = {.percent_known = true, .percent_used = 89};
  tap_ok(!wear_reached(&none, &health, UINT64_MAX), "without a limit none is reached");
  tap_ok(!wear_reached(&bytes, &health, 20 * tera - 1) && wear_reached(&bytes, &health, 20 * tera),
         "a limit in bytes is reached when so many are written");
  const bool before = wear_reached(&percent, &health, UINT64_MAX);
  health.percent_used = 90;
  const bool at = wear_reached(&percent, &health, 0);
  health.percent_used = 200;
  const bool beyond = wear_reached(&percent, &health, 0);
  health.percent_known = false;
  tap_ok(!before && at && beyond && !wear_reached(&percent, &health, UINT64_MAX),
         "a limit in percent is reached when the drive says so, and never when it says nothing");
}

/* ---- starting a program: this one, with a word ---- */

static int child(const char *word) {
  struct sigaction action;
  sigset_t blocked;
  if (!strcmp(word, "hang")) {
    printf("%d\n", (int)getpid());
    fflush(stdout);
    sleep(30);
    return 0;
  }
  for (char **entry = environ; *entry; entry++)
    printf("variable %s\n", *entry);
  for (int fd = 0; fd < 4096; fd++)
    if (fcntl(fd, F_GETFD) >= 0)
      printf("open %d\n", fd);
  for (int number = 1; number < NSIG; number++)
    if (!sigaction(number, NULL, &action) && action.sa_handler == SIG_IGN)
      printf("ignored %d\n", number);
  sigprocmask(SIG_SETMASK, NULL, &blocked);
  for (int number = 1; number < NSIG; number++)
    if (sigismember(&blocked, number) == 1)
      printf("blocked %d\n", number);
  printf("%s\n", !strcmp(word, "much") ? "0123456789012345678901234567890123456789" : "end");
  return 0;
}

static volatile sig_atomic_t children;
static void on_child(int number) {
  (void)number;
  children = children + 1;
}

static void test_run(const char *self) {
  char output[4096], word[] = "child", *arguments[] = {(char *)(uintptr_t)self, word, NULL};
  const struct sigaction action = {.sa_handler = on_child};
  sigset_t some;
  sigaction(SIGCHLD, &action, NULL);
  signal(SIGUSR1, SIG_IGN);
  sigemptyset(&some);
  sigaddset(&some, SIGUSR2);
  sigprocmask(SIG_BLOCK, &some, NULL);
  const int inherited = fcntl(STDOUT_FILENO, F_DUPFD, 77); /* not close-on-exec */
  setenv("LD_PRELOAD", "/nowhere/liboffload.so", 1);
  const bool ran = endurance_run(self, arguments, 5000, output, sizeof output);
  unsetenv("LD_PRELOAD");
  if (!tap_ok(ran && !strcmp(output, "variable PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"
                                     "variable LC_ALL=C\nopen 0\nopen 1\nopen 2\nend\n"),
              "a program is started with no variable, descriptor or signal setting of ours"))
    printf("# %s\n", output);
  errno = 0;
  tap_ok(ran && !children && waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD,
         "it is no child that the program could notice");
  close(inherited);
  const int saved[3] = {dup(0), dup(1), dup(2)};
  for (int fd = 0; fd < 3; fd++)
    close(fd);
  const bool closed = endurance_run(self, arguments, 5000, output, sizeof output);
  for (int fd = 0; fd < 3; fd++) {
    dup2(saved[fd], fd);
    close(saved[fd]);
  }
  tap_ok(closed && strstr(output, "open 0\nopen 1\nopen 2\nend\n"),
         "where the standard descriptors are closed it has its own all the same");
  char much[] = "much";
  arguments[1] = much;
  tap_ok(!endurance_run(self, arguments, 5000, output, 40),
         "more than there is room for is refused");
  tap_ok(!endurance_run("/nowhere/smartctl", arguments, 5000, output, sizeof output),
         "a program that isn't there is no answer");
}

static void test_hang(const char *self) {
  char output[64] = "", word[] = "hang", path[64], state[256];
  char *arguments[] = {(char *)(uintptr_t)self, word, NULL};
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  const bool ran = endurance_run(self, arguments, 2000, output, sizeof output);
  clock_gettime(CLOCK_MONOTONIC, &after);
  const int pid = atoi(output);
  bool gone = false;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  for (int i = 0; i < 100 && !gone; i++) {
    snprintf(state, sizeof state, "%s", contents(path));
    gone = !*state || strstr(state, ") Z ");
    usleep(10000);
  }
  tap_ok(!ran && pid > 0 && after.tv_sec - before.tv_sec < 10 && gone,
         "a program that hangs is given up and ended");
}

int main(int argument_count, char **arguments) {
  if (argument_count > 1)
    return child(arguments[1]);
  test_sysfs();
  test_page();
  test_json();
  test_life();
  test_rates();
  test_limit();
  test_run(arguments[0]);
  test_hang(arguments[0]);
  return tap_done();
}
