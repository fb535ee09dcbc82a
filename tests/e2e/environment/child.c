/* A child program without CUDA, for other C libraries and widths: looks a symbol up, forks, writes to both outputs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  int status = 0;
  void *self = dlopen(NULL, RTLD_NOW);
  printf("width %zu own %s next %s none %s\n", sizeof(void *) * 8,
         dlsym(self, "puts") ? "yes" : "no", dlsym(RTLD_NEXT, "puts") ? "yes" : "no",
         dlsym(self, "no_such_thing") ? "yes" : "no");
  (void)fflush(stdout);
  pid_t child = fork();
  if (!child)
    exit(5);
  (void)waitpid(child, &status, 0);
  printf("child %d\n", WEXITSTATUS(status));
  (void)fputs("end\n", stderr);
  return 3;
}
