/* Contexts that go away with state on the host and steps in flight, several contexts and devices side by side, and modules and
   libraries that are unloaded meanwhile. */
#define _GNU_SOURCE
#include "life.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 4 };
static struct trainer trainers[MOST];

/* ---- the primary context ends ---- */

static CUresult reset_device(void) {
  return cuDevicePrimaryCtxReset(0);
}
static CUresult release_device(void) {
  return cuDevicePrimaryCtxRelease(0);
}

static void *call_end(void *end) {
  CU((*(CUresult(**)(void))end)());
  return NULL;
}

/* Twice, each time with steps in flight; the training that follows begins anew. */
static void ends(CUresult (*end)(void), bool elsewhere) {
  for (unsigned round = 0; round < 3; round++) {
    train(&trainers[0], 4 + round);
    if (round == 1)
      print_hash("before", &trainers[0]);
    if (elsewhere) {
      pthread_t thread;
      CHECK(pthread_create(&thread, NULL, call_end, &end) == 0 && pthread_join(thread, NULL) == 0);
    } else {
      CU(end());
    }
    printf("old handles: %d\n", (int)cuStreamQuery(trainers[0].stream) != CUDA_SUCCESS);
  }
  train(&trainers[0], 5);
  print_hash("after", &trainers[0]);
}
static void reset(const char *unused) {
  (void)unused;
  ends(reset_device, false);
}
static void release(const char *unused) {
  (void)unused;
  ends(release_device, false);
}
static void reset_elsewhere(const char *unused) {
  (void)unused;
  ends(reset_device, true);
}
static void release_elsewhere(const char *unused) {
  (void)unused;
  ends(release_device, true);
}

/* It ends under a thread that is inside of launches: the thread gets an error, the process lives. */
static _Atomic int launched;
static void *until_error(void *unused) {
  (void)unused;
  CU(cuCtxSetCurrent(trainers[0].context));
  while (trainer_steps(&trainers[0], 1) == CUDA_SUCCESS)
    atomic_fetch_add(&launched, 1);
  return NULL;
}
static void reset_under(const char *unused) {
  (void)unused;
  for (int round = 0; round < 3; round++) {
    pthread_t thread;
    train(&trainers[0], 2);
    atomic_store(&launched, 0);
    CHECK(pthread_create(&thread, NULL, until_error, NULL) == 0);
    while (atomic_load(&launched) < 3)
      usleep(200);
    CU(cuDevicePrimaryCtxReset(0));
    CHECK(pthread_join(thread, NULL) == 0);
    printf("the other thread ended\n");
  }
  train(&trainers[0], 5);
  print_hash("after", &trainers[0]);
}

/* A kernel reads nothing's address, and the steps behind it never come. Nobody asks before the context
   ends. */
static void lost_then(CUresult (*end)(void)) {
  CUfunction bad;
  train(&trainers[0], 3);
  print_hash("before", &trainers[0]);
  CU(adam_load_bad(&bad));
  CU(trainer_steps(&trainers[0], 2)); /* so that those behind are queued before it runs */
  CU(cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, trainers[0].stream, NULL, NULL));
  (void)trainer_steps(&trainers[0], 1);
  printf("end: %d\n", (int)end());
  train(&trainers[0], 5);
  print_hash("after", &trainers[0]);
}
static void lost_then_release(const char *unused) {
  (void)unused;
  lost_then(release_device);
}
static void lost_then_reset(const char *unused) {
  (void)unused;
  lost_then(reset_device);
}

/* ---- several ---- */

/* Steps of several trainings by turns; each has numbers of its own. */
static void by_turns(int count) {
  for (int step = 0; step < 5; step++)
    for (int i = 0; i < count; i++) {
      CU(cuCtxSetCurrent(trainers[i].context));
      CU(trainer_steps(&trainers[i], 1));
    }
  for (int i = 0; i < count; i++) {
    CU(cuCtxSetCurrent(trainers[i].context));
    print_hash(i == 0 ? "first" : "other", &trainers[i]);
  }
}

static void contexts(const char *unused) {
  (void)unused;
  CU(cuInit(0));
  for (int i = 0; i < 3; i++) {
    CUcontext context;
    CU(cuCtxCreate(&context, NULL, 0, 0));
    CU(trainer_open(&trainers[i], kernel_path, (uint64_t)i));
  }
  by_turns(3);
  /* One of them ends, with steps in flight; the others go on. */
  CU(cuCtxSetCurrent(trainers[1].context));
  CU(trainer_steps(&trainers[1], 2));
  CU(cuCtxDestroy(trainers[1].context));
  trainers[1] = trainers[2];
  by_turns(2);
}

static void devices(const char *unused) {
  (void)unused;
  for (int i = 0; i < 2; i++) {
    start(i);
    CU(trainer_open(&trainers[i], kernel_path, (uint64_t)i));
  }
  by_turns(2);
  CU(cuCtxSetCurrent(trainers[0].context));
  CU(trainer_steps(&trainers[0], 1));
  CU(cuCtxSetCurrent(trainers[1].context));
  CU(trainer_steps(&trainers[1], 1));
  CU(cuDevicePrimaryCtxReset(1));
  CU(cuCtxSetCurrent(trainers[0].context));
  CU(trainer_steps(&trainers[0], 2));
  print_hash("the device that stays", &trainers[0]);
}

/* A thread a device, as DataParallel has it. */
static void *one_device(void *trainer) {
  CU(cuCtxSetCurrent(((struct trainer *)trainer)->context));
  CU(trainer_steps(trainer, 6));
  CU(cuStreamSynchronize(((struct trainer *)trainer)->stream));
  return NULL;
}
static void device_threads(const char *unused) {
  (void)unused;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    start(i);
    CU(trainer_open(&trainers[i], kernel_path, (uint64_t)i));
  }
  for (int i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, one_device, &trainers[i]) == 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  by_turns(2);
}

/* ---- unloading ---- */

/* The module with the Adam kernel itself goes while its launches are queued, and comes again. */
static void unload(const char *unused) {
  (void)unused;
  train(&trainers[0], 3);
  for (int i = 0; i < 3; i++) {
    CU(trainer_unload(&trainers[0]));
    CU(trainer_load(&trainers[0], kernel_path));
    CU(trainer_steps(&trainers[0], 2));
  }
  print_hash("program", &trainers[0]);
}

/* Libraries with kernels of their own come and go, with steps in flight and without. */
static void libraries(const char *path) {
  train(&trainers[0], 2);
  for (int i = 0; i < 4; i++) {
    CU(trainer_steps(&trainers[0], 1));
    if (i % 2)
      CU(cuStreamSynchronize(trainers[0].stream));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      fprintf(stderr, "%s\n", dlerror());
    CHECK(library);
    int (*const kernels)(int) = (int (*)(int))(uintptr_t)dlsym(library, "count_up");
    CHECK(kernels);
    printf("library: %d\n", kernels(i));
    CU(trainer_steps(&trainers[0], 1));
    CHECK(dlclose(library) == 0 && dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL);
  }
  CU(trainer_steps(&trainers[0], 1));
  print_hash("program", &trainers[0]);
}

int main(int count, char **list) {
  static const struct word words[] = {{"reset", reset},
                                      {"release", release},
                                      {"reset-elsewhere", reset_elsewhere},
                                      {"release-elsewhere", release_elsewhere},
                                      {"reset-under", reset_under},
                                      {"lost-then-release", lost_then_release},
                                      {"lost-then-reset", lost_then_reset},
                                      {"contexts", contexts},
                                      {"devices", devices},
                                      {"device-threads", device_threads},
                                      {"unload", unload},
                                      {"libraries", libraries},
                                      {NULL, NULL}};
  return run_word(count, list, words);
}
