/* A library whose constructor hands its work to a thread and waits for it, as runtimes with thread
   pools do. While a constructor runs, the loader's lock is held: what that thread does must not need
   it. */
#include <pthread.h>
#include <stddef.h>

void *at_load(void *); /* the program's */

__attribute__((constructor)) static void waits(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, at_load, NULL) == 0)
    (void)pthread_join(thread, NULL);
}
