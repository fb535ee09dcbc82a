/* Starts CUDA while another thread is still finding the driver's functions: that one is stopped in the middle of its lookups by
   another hooker of dlsym (hooker.c, HOOKER_STOPS_AT), for as long as this takes. The word: a library that is linked against the driver.
   Without a preload nothing stops, since one function alone is looked up. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static void *driver;
static _Atomic bool found;

static void *finds(void *unused) {
  if (!dlsym(driver, "cuInit"))
    printf("cuInit is missing\n");
  atomic_store(&found, true);
  return unused;
}

int main(int count, char **words) {
  pthread_t thread;
  int (*use)(void) = NULL;
  bool (*stopped)(void) = NULL;
  void (*go_on)(void) = NULL;
  void *linked = count == 2 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!linked || !driver)
    return 2;
  *(void **)&use = dlsym(linked, "use");
  *(void **)&stopped = dlsym(RTLD_DEFAULT, "hooker_stopped");
  *(void **)&go_on = dlsym(RTLD_DEFAULT, "hooker_go_on");
  if (!use || !stopped || !go_on || pthread_create(&thread, NULL, finds, NULL))
    return 2;
  while (!stopped() && !atomic_load(&found))
    (void)usleep(1000);
  fprintf(stderr, "finding: %s\n", stopped() ? "in the middle" : "done");
  const int failed = use();
  go_on();
  (void)pthread_join(thread, NULL);
  return failed;
}
