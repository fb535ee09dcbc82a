/* Threads that are cancelled at a launch, signals that interrupt waits, and ends of the process on one thread while another
   is inside of launches. */
#define _GNU_SOURCE
#include "life.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

static struct trainer trainer;

/* ---- cancellation ---- */

static _Atomic int launching; /* the step at which the other thread is */
static _Atomic bool cancelled;

/* May be cancelled inside of its launches only, and not by the driver itself: it leaves at the test
   behind the last. */
static void *launches(void *steps) {
  int before;
  CU(cuCtxSetCurrent(trainer.context));
  for (int i = 0; i < *(int *)steps; i++) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CU(trainer_number(&trainer));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    atomic_store(&launching, i + 1);
    CU(trainer_launch(&trainer));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    CU(trainer_gradients(&trainer));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
  }
  while (!atomic_load(&cancelled)) /* asked, that is */
    sched_yield();
  pthread_testcancel();
  return NULL;
}

/* `at`: the launch at which the thread is cancelled. It may be the first one to be taken over. */
static void cancel(const char *at) {
  int steps = 5;
  pthread_t thread;
  void *result = NULL;
  train(&trainer, 1);
  CHECK(pthread_create(&thread, NULL, launches, &steps) == 0);
  while (atomic_load(&launching) < atoi(at))
    usleep(100);
  CHECK(pthread_cancel(thread) == 0);
  atomic_store(&cancelled, true);
  CHECK(pthread_join(thread, &result) == 0);
  printf("thread: %s\n", result == PTHREAD_CANCELED ? "cancelled" : "ended");
  CU(trainer_steps(&trainer, 3)); /* nothing that the thread held is missing */
  print_hash("program", &trainer);
}

/* ---- signals ---- */

static _Atomic long alarms;
static void on_alarm(int unused) {
  (void)unused;
  atomic_fetch_add(&alarms, 1);
}

/* A timer interrupts whatever waits, a thousand times a second; SA_RESTART is not set. */
static void interrupted(const char *unused) {
  (void)unused;
  const struct sigaction action = {.sa_handler = on_alarm};
  const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
  train(&trainer, 8);
  print_hash("program", &trainer);
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
  printf("%s\n", atomic_load(&alarms) > 5 ? "interrupted" : "left alone");
}

/* ---- ends while another thread launches ---- */

static void *steps_for_ever(void *unused) {
  (void)unused;
  if (cuCtxSetCurrent(trainer.context) == CUDA_SUCCESS)
    while (trainer_steps(&trainer, 1) == CUDA_SUCCESS)
      atomic_fetch_add(&launching, 1);
  return NULL;
}

static void exit_beside(const char *unused) {
  (void)unused;
  pthread_t thread;
  train(&trainer, 2);
  CHECK(pthread_create(&thread, NULL, steps_for_ever, NULL) == 0);
  while (atomic_load(&launching) < 4)
    usleep(100);
  printf("exit\n");
  exit(7);
}

/* ---- a step that waits for another thread ---- */

static struct trainer beside;

/* Launches a step of its own, and only then lets the other's go. */
static void *release_step(void *word) {
  CU(cuCtxSetCurrent(trainer.context));
  usleep(300000);
  CU(trainer_steps(&beside, 1));
  *(volatile uint32_t *)word = 1;
  return NULL;
}

/* What the program wants of the state is ordered behind a step that waits on the GPU for the other thread. */
static void step_held(const char *unused) {
  void *word = NULL;
  CUdeviceptr copy;
  pthread_t thread;
  (void)unused;
  train(&trainer, 6);
  CU(trainer_open(&beside, kernel_path, 3));
  for (int i = 0; i < 6; i++) {
    CU(trainer_steps(&trainer, 1));
    CU(trainer_steps(&beside, 1));
    CU(cuCtxSynchronize());
  }
  CU(cuMemAlloc(&copy, 4096));
  CU(cuMemHostAlloc(&word, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP));
  *(volatile uint32_t *)word = 0;
  CU(cuStreamWaitValue32(trainer.stream, (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_EQ));
  CU(trainer_steps(&trainer, 1));
  CHECK(!pthread_create(&thread, NULL, release_step, word));
  CU(cuMemcpyDtoDAsync(copy, trainer.arrays[2], 4096, trainer.stream));
  CHECK(!pthread_join(thread, NULL));
  print_hash("program", &trainer);
}

/* ---- small stacks ---- */

/* Ends the process, so that what is written at exit is written from here, too. */
static void *train_and_exit(void *unused) {
  struct trainer own;
  (void)unused;
  start(0);
  CU(trainer_open(&own, kernel_path, 3));
  CU(trainer_steps(&own, 8));
  print_hash("training", &own);
  exit(0);
}

/* Half as much again as the training needs alone, on the simulated driver. */
static void small_stack(const char *unused) {
  pthread_t thread;
  pthread_attr_t attributes;
  (void)unused;
  CHECK(!pthread_attr_init(&attributes));
  CHECK(!pthread_attr_setstacksize(&attributes, 24 << 10));
  CHECK(!pthread_create(&thread, &attributes, train_and_exit, NULL));
  CHECK(!pthread_join(thread, NULL));
}

int main(int count, char **list) {
  static const struct word words[] = {{"cancel", cancel},           {"interrupted", interrupted},
                                      {"exit-beside", exit_beside}, {"small-stack", small_stack},
                                      {"step-held", step_held},     {NULL, NULL}};
  return run_word(count, list, words);
}
