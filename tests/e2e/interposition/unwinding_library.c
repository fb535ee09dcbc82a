/* A library whose own code runs while the loader relocates it: that chooses among implementations of a function. What it needs, the
   unwinder's library, is bound by then, and not yet known to unwinders. It tells the program (unwinding.c) by writing to a descriptor,
   and stays there for a while. Its calls go through an address that is relocated before, and past sanitizers' wrappers. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TOLD = 100, STAYS_MS = 300 };

static int chosen(void) {
  return 1;
}

typedef int choice(void);
__attribute__((used)) static choice *choose(void) {
  const struct timespec time = {.tv_nsec = STAYS_MS * 1000000l};
  if (syscall(SYS_write, TOLD, "", 1) == 1)
    (void)syscall(SYS_nanosleep, &time, NULL);
  return chosen;
}

__attribute__((visibility("hidden"))) int chooses(void) __attribute__((ifunc("choose")));

int answer(void);
int answer(void) {
  return chooses();
}
