/* A tiny job of many steps that asks, after step 100 and at the end, what its process holds: descriptors, threads, memory. Each is
   a line "at STEP: ..." on stdout; the hash of what was trained is another. */
#define _GNU_SOURCE
#include "tests/e2e/life/life.h"
#include <dirent.h>
#include <malloc.h>

/* Two trainings: staging that fits the largest launch must not fit all of their state. */
enum { FIRST_LOOK = 100, STEPS_IN_FLIGHT = 4, TRAININGS = 2 };

static unsigned entries(const char *directory) {
  DIR *list = opendir(directory);
  unsigned count = 0;
  CHECK(list);
  for (const struct dirent *entry; (entry = readdir(list));)
    count += entry->d_name[0] != '.';
  CHECK(closedir(list) == 0);
  return count;
}

/* Without those that the kernel lends to io_uring, and takes back, as it likes. */
static unsigned threads(void) {
  DIR *list = opendir("/proc/self/task");
  unsigned count = 0;
  CHECK(list);
  for (const struct dirent *entry; (entry = readdir(list));) {
    char path[300], name[32] = "";
    if (entry->d_name[0] == '.')
      continue;
    (void)snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "r"); /* there is none of a thread that has just ended */
    if (!file)
      continue;
    if (!fgets(name, sizeof name, file))
      name[0] = 0;
    CHECK(fclose(file) == 0);
    count += name[0] && strncmp(name, "iou-", 4) != 0;
  }
  CHECK(closedir(list) == 0);
  return count;
}

/* KiB of a line of /proc/self/status. */
static unsigned long status_kib(const char *name) {
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  CHECK(file);
  while (fgets(line, sizeof line, file))
    if (strncmp(line, name, strlen(name)) == 0)
      kib = strtoul(line + strlen(name) + 1, NULL, 10);
  CHECK(fclose(file) == 0);
  return kib;
}

/* What malloc gave and didn't get back, in all of the process. Caches of threads count, so it varies by some KiB. */
static size_t allocated(void) {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

static struct trainer trainers[TRAININGS];

static void look(void) {
  CU(cuStreamSynchronize(trainers[0].stream));
  const size_t bytes = allocated(); /* before this look's own */
  printf(
      "at %u: descriptors %u threads %u allocated %zu resident_kib %lu locked_kib %lu pinned_kib "
      "%lu\n",
      trainers[0].step, entries("/proc/self/fd"), threads(), bytes, status_kib("VmRSS"),
      status_kib("VmLck"), status_kib("VmPin"));
  (void)fflush(stdout);
}

static void flat(const char *steps) {
  const unsigned last = (unsigned)strtoul(steps, NULL, 10);
  static char line[BUFSIZ]; /* else allocated by the first look */
  CHECK(last > FIRST_LOOK);
  CHECK(setvbuf(stdout, line, _IOFBF, sizeof line) == 0);
  start(0);
  for (int i = 0; i < TRAININGS; i++) {
    CU(trainer_open(&trainers[i], kernel_path, (uint64_t)i));
    CU(cuStreamSynchronize(trainers[i].stream));
  }
  /* All on one stream: of steps of several streams at once the later one is the program's own. */
  for (int i = 1; i < TRAININGS; i++) {
    CU(cuStreamDestroy(trainers[i].stream));
    trainers[i].stream = trainers[0].stream;
  }
  for (unsigned step = 1; step <= last; step++) {
    for (int i = 0; i < TRAININGS; i++)
      CU(trainer_steps(&trainers[i], 1));
    if (step % STEPS_IN_FLIGHT == 0)
      CU(cuStreamSynchronize(trainers[0].stream));
    if (step == FIRST_LOOK || step == last)
      look();
  }
  for (int i = 0; i < TRAININGS; i++)
    print_hash("trained", &trainers[i]);
}

int main(int count, char **list) {
  static const struct word words[] = {{"flat", flat}, {NULL, NULL}};
  return run_word(count, list, words);
}
