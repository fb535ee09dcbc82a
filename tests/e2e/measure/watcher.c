/* A program that looks at what measuring could leave in it, for measure.bats: it makes an allocation that becomes a range, and then
   asks again and again for children (any kind that wait can find), counts SIGCHLD, and looks at its descriptors.

     watcher until FILE|- MILLISECONDS   until FILE is there ("-": never) or time is over; then prints what it saw
     watcher on                          prints "allocated" and goes on for ever */
#define _GNU_SOURCE
#include <cuda.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t signals;

static void on_child(int unused) {
  (void)unused;
  signals++;
}

static unsigned descriptors(void) {
  unsigned count = 0;
  DIR *list = opendir("/proc/self/fd");
  while (list && readdir(list))
    count++;
  if (list)
    closedir(list);
  return count;
}

static void allocate(void) {
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context) || cuMemAlloc(&memory, 4 << 20)) {
    fputs("watcher: no memory of a device\n", stderr);
    exit(1);
  }
}

int main(int count, char **words) {
  const struct sigaction action = {.sa_handler = on_child};
  sigaction(SIGCHLD, &action, NULL);
  if (count == 2 && !strcmp(words[1], "on")) {
    allocate();
    puts("allocated");
    (void)fflush(stdout);
    for (;;)
      pause();
  }
  if (count != 4)
    return 2;
  const struct timespec moment = {.tv_nsec = 1000000};
  cuInit(0);
  allocate(); /* the driver's own descriptors are open */
  const unsigned before = descriptors();
  unsigned children = 0, changed = 0, looks = 0;
  for (long i = 0; i < atol(words[3]) && access(words[2], F_OK); i++, looks++) {
    errno = 0;
    children += waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
    changed += descriptors() != before;
    nanosleep(&moment, NULL);
  }
  for (int i = 0; i < 300; i++) /* until what was kept is known here, too */
    nanosleep(&moment, NULL);
  children += waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD;
  printf("looked %s, signals %d, children %u, descriptors changed %u\n", looks ? "yes" : "no",
         (int)signals, children, changed);
  return 0;
}
