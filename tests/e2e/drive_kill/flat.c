/* A tiny job of many steps that asks, after step 100 and at the end, what its process holds: descriptors, threads, memory. Each is
   a line "at STEP: ..." on stdout; the hash of what was trained is another. */
#define _GNU_SOURCE
#include "tests/e2e/life/life.h"
#include <dirent.h>

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

static struct trainer trainers[TRAININGS];

static void look(void) {
  for (int i = 0; i < TRAININGS; i++)
    CU(cuStreamSynchronize(trainers[i].stream));
  printf("at %u: descriptors %u threads %u resident_kib %lu locked_kib %lu pinned_kib %lu\n",
         trainers[0].step, entries("/proc/self/fd"), entries("/proc/self/task"),
         status_kib("VmRSS"), status_kib("VmLck"), status_kib("VmPin"));
  (void)fflush(stdout);
}

static void flat(const char *steps) {
  const unsigned last = (unsigned)strtoul(steps, NULL, 10);
  CHECK(last > FIRST_LOOK);
  start(0);
  for (int i = 0; i < TRAININGS; i++)
    CU(trainer_open(&trainers[i], kernel_path, (uint64_t)i));
  for (unsigned step = 1; step <= last; step++) {
    for (int i = 0; i < TRAININGS; i++) {
      CU(trainer_steps(&trainers[i], 1));
      if (step % STEPS_IN_FLIGHT == 0)
        CU(cuStreamSynchronize(trainers[i].stream));
    }
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
