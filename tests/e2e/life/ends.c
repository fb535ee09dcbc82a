/* Ends of a process in the middle of a step: orderly ones, killed ones, and a GPU that is lost. */
#define _GNU_SOURCE
#include "life.h"
#include <pthread.h>
#include <signal.h>

static struct trainer trainer;

static void in_flight(void) {
  printf("in flight: %s\n", cuStreamQuery(trainer.stream) == CUDA_ERROR_NOT_READY ? "yes" : "no");
  (void)fflush(stdout);
}

static void exits(const char *unused) {
  (void)unused;
  train(&trainer, 4);
  in_flight();
  exit(7);
}
static void aborts(const char *unused) {
  (void)unused;
  train(&trainer, 4);
  in_flight();
  abort();
}
static void quick(const char *unused) {
  (void)unused;
  train(&trainer, 4);
  in_flight();
  quick_exit(8);
}
static void killed(const char *number) {
  train(&trainer, 4);
  in_flight();
  raise(atoi(number));
}

/* Somebody else kills it, at any moment. */
static void lives_on(const char *unused) {
  (void)unused;
  train(&trainer, 3);
  printf("training\n");
  (void)fflush(stdout);
  for (;;)
    CU(trainer_steps(&trainer, 1));
}

/* A job that is about to be pre-empted: the signal comes while steps are in flight, maybe inside of a
   call; at the next step's end the state is saved. */
static volatile sig_atomic_t asked;
static void on_term(int unused) {
  (void)unused;
  asked = 1;
}
static void *terminate_soon(void *unused) {
  (void)unused;
  usleep(20000);
  kill(getpid(), SIGTERM);
  return NULL;
}
static void saves(const char *path) {
  const struct sigaction action = {.sa_handler = on_term};
  pthread_t thread;
  CHECK(sigaction(SIGTERM, &action, NULL) == 0);
  train(&trainer, 3);
  CHECK(pthread_create(&thread, NULL, terminate_soon, NULL) == 0);
  while (!asked || trainer.step < 8)
    if (trainer.step < 8)
      CU(trainer_steps(&trainer, 1));
  CHECK(pthread_join(thread, NULL) == 0);
  CU(trainer_save(&trainer, path));
  printf("saved at step %u\n", trainer.step);
  exit(0);
}

/* The same, but the handler itself ends the program: nothing is saved, and it does end. */
static void on_term_exit(int unused) {
  (void)unused;
  exit(5);
}
static void exits_in_handler(const char *unused) {
  (void)unused;
  const struct sigaction action = {.sa_handler = on_term_exit};
  CHECK(sigaction(SIGTERM, &action, NULL) == 0);
  train(&trainer, 4);
  in_flight();
  raise(SIGTERM);
}

/* The handler runs on top of whatever the thread is doing: launches, most of the time. */
static void exits_in_step(const char *unused) {
  (void)unused;
  const struct sigaction action = {.sa_handler = on_term_exit};
  pthread_t thread;
  sigset_t term;
  train(&trainer, 3);
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0); /* of the thread, which inherits it */
  CHECK(pthread_create(&thread, NULL, terminate_soon, NULL) == 0);
  CHECK(sigaction(SIGTERM, &action, NULL) == 0 && pthread_sigmask(SIG_UNBLOCK, &term, NULL) == 0);
  for (;;)
    CU(trainer_launch(&trainer));
}

/* From some launch on the GPU answers nothing but an error, of which a call tells at once. */
static void lost(const char *unused) {
  (void)unused;
  train(&trainer, 2);
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < 10 && result == CUDA_SUCCESS; i++) {
    CU(trainer_number(&trainer));
    result = trainer_launch(&trainer);
  }
  printf("launch: %s\n", cu_name(result));
  for (int i = 0; i < 3; i++) /* again and again it is the driver that is asked */
    printf("again: %d\n", (int)trainer_launch(&trainer));
  exit(9);
}

int main(int count, char **list) {
  static const struct word words[] = {{"exit", exits},
                                      {"abort", aborts},
                                      {"quick_exit", quick},
                                      {"raise", killed},
                                      {"live", lives_on},
                                      {"save", saves},
                                      {"exit-in-handler", exits_in_handler},
                                      {"exit-in-step", exits_in_step},
                                      {"lost", lost},
                                      {NULL, NULL}};
  return run_word(count, list, words);
}
