/* The same look-ups again and again, from several threads: every answer must be the first one. Run as a preloaded library and
   as a program: "next" means something in a library only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, TIMES = 5000 };
static void *first_next, *first_default;

static void *look_up(void *wrong) {
  for (int i = 0; i < TIMES; i++)
    if (dlsym(RTLD_NEXT, "puts") != first_next || dlsym(RTLD_DEFAULT, "malloc") != first_default)
      ++*(int *)wrong;
  return NULL;
}

int repeated(void);
int repeated(void) {
  pthread_t threads[THREADS];
  int wrong[THREADS] = {0}, sum = 0;
  first_next = dlsym(RTLD_NEXT, "puts"), first_default = dlsym(RTLD_DEFAULT, "malloc");
  if (!first_next || !first_default)
    return -1;
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&threads[i], NULL, look_up, &wrong[i]))
      return -2;
  for (int i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL), sum += wrong[i];
  return sum;
}

#ifdef PROGRAM
int main(void) {
  printf("wrong %d\n", repeated());
  return 0;
}
#endif
