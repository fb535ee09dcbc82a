/* Children of a training process, made at every moment: before CUDA, after it, with moved state, in the middle of a step. What a child
   says goes to stdout, too, so that its answers are compared as well. */
#define _GNU_SOURCE
#include "life.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/wait.h>

static struct trainer trainer;

static void wait_for(pid_t child, const char *what) {
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
         WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  (void)fflush(stdout);
}

static int threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int count = 0;
  CHECK(tasks);
  for (struct dirent *entry; (entry = readdir(tasks));)
    count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

/* What a data loader does: memory, strings, environment, a pipe, a process of its own; and what the
   driver answers it. */
static void ordinary_child(const char *how) {
  char *numbers = malloc(1 << 20);
  CHECK(numbers);
  memset(numbers, 1, 1 << 20);
  int ends[2];
  char word[16] = "";
  CHECK(pipe(ends) == 0 && write(ends[1], "batch", 6) == 6 && read(ends[0], word, 6) == 6);
  size_t bytes = 0;
  CUdeviceptr pointer = 0;
  CUmemorytype type;
  const int answers[] = {
      (int)cuInit(0),
      (int)cuMemAlloc(&pointer, 4 << 20),
      (int)cuMemGetAddressRange(NULL, &bytes, trainer.arrays[2]),
      (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, trainer.arrays[2]),
      (int)cuMemFree(trainer.arrays[3]),
      (int)trainer_launch(&trainer)};
  printf("child %s: %s, PATH %s, %d threads, answers", how, word, getenv("PATH") ? "set" : "lost",
         threads());
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
    printf(" %d", answers[i]);
  printf("\n");
  (void)fflush(stdout);
  free(numbers);
}

/* A child of each kind, one after the other. */
static void children(void) {
  (void)fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    ordinary_child("exit");
    exit(3); /* with the handlers that it inherited */
  }
  wait_for(child, "exit");
  if ((child = fork()) == 0) {
    ordinary_child("_exit");
    _exit(4);
  }
  wait_for(child, "_exit");
  if ((child = fork()) == 0) {
    execl("/bin/true", "true", (char *)NULL);
    _exit(9);
  }
  wait_for(child, "exec");
  /* NOLINTNEXTLINE(clang-analyzer-security.insecureAPI.vfork): programs do, so it is tested */
  if ((child = vfork()) == 0) {
    execl("/bin/false", "false", (char *)NULL);
    _exit(9);
  }
  wait_for(child, "vfork and exec");
  const char *const words[] = {"sh", "-c", "exit 5", NULL};
  CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, (char *const *)(uintptr_t)words, environ) == 0);
  wait_for(child, "spawn");
  if ((child = fork()) == 0) {
    const pid_t grandchild = fork();
    if (grandchild == 0)
      exit(0);
    int status = 1;
    CHECK(waitpid(grandchild, &status, 0) == grandchild);
    exit(status ? 1 : 6);
  }
  wait_for(child, "grandchild");
  if ((child = fork()) == 0)
    abort();
  wait_for(child, "abort");
}

static void train_in_child(void) {
  const pid_t child = fork();
  if (child == 0) {
    train(&trainer, 5);
    print_hash("child", &trainer);
    exit(0);
  }
  wait_for(child, "child");
}

/* The parent never touches CUDA. */
static void child_trains(const char *unused) {
  (void)unused;
  train_in_child();
}

/* Two children and then the parent train, each in a process of its own. */
static void all_train(const char *unused) {
  (void)unused;
  for (int i = 0; i < 2; i++)
    train_in_child();
  train(&trainer, 6);
  print_hash("parent", &trainer);
}

static void before_steps(const char *unused) {
  (void)unused;
  start(0);
  children();
  CU(trainer_open(&trainer, kernel_path, 0));
  CU(trainer_steps(&trainer, 5));
  print_hash("parent", &trainer);
}

/* State is on the host and pinned memory exists; nothing is in flight. */
static void between_steps(const char *unused) {
  (void)unused;
  train(&trainer, 3);
  print_hash("parent", &trainer);
  children();
  CU(trainer_steps(&trainer, 3));
  print_hash("parent", &trainer);
}

/* A step is in flight at each fork. */
static void in_step(const char *unused) {
  (void)unused;
  train(&trainer, 2);
  for (int i = 0; i < 3; i++) {
    CU(trainer_steps(&trainer, 1));
    CHECK(cuStreamQuery(trainer.stream) == CUDA_ERROR_NOT_READY);
    children();
  }
  CU(trainer_steps(&trainer, 1));
  print_hash("parent", &trainer);
}

/* One thread forks while another is inside of launches. */
static _Atomic bool training;
static void *fork_often(void *unused) {
  (void)unused;
  long forked = 0;
  while (atomic_load(&training)) {
    const pid_t child = fork();
    int status = 1;
    if (child == 0) {
      free(malloc(100000));
      CUdeviceptr pointer;
      exit(cuMemAlloc(&pointer, 4 << 20) == CUDA_ERROR_NOT_INITIALIZED &&
                   trainer_launch(&trainer) == CUDA_ERROR_NOT_INITIALIZED
               ? 0
               : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0)
      return (void *)1;
    forked++;
  }
  return forked > 3 ? NULL : (void *)2;
}
static void during_launches(const char *unused) {
  (void)unused;
  pthread_t thread;
  void *failed = NULL;
  train(&trainer, 2);
  atomic_store(&training, true);
  CHECK(pthread_create(&thread, NULL, fork_often, NULL) == 0);
  for (int i = 0; i < 20; i++) {
    CU(trainer_steps(&trainer, 1));
    usleep(5000);
  }
  atomic_store(&training, false);
  CHECK(pthread_join(thread, &failed) == 0);
  printf("children: %ld\n", (long)(intptr_t)failed);
  print_hash("parent", &trainer);
}

/* ---- children that no handler of pthread_atfork sees ---- */

static void *unused_stack(void) {
  char *stack = malloc(1 << 18);
  CHECK(stack);
  return stack + (1 << 18);
}
/* Asks the driver, and leaves by exit, which runs what the parent registered with atexit. Allocates
   nothing: no handler has made sure that another thread of the parent didn't hold the heap's lock. */
static int leave(void *unused) {
  size_t bytes;
  (void)unused;
  const int answer = (int)cuMemGetAddressRange(NULL, &bytes, trainer.arrays[2]);
  exit(answer == (int)cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) ? answer : 99);
}
static void by_clone(int flags) {
  (void)fflush(stdout);
  const pid_t child = clone(leave, unused_stack(), flags | SIGCHLD, NULL);
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  printf("child %d: exit %d\n", getpid() == 1, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
static void clone_child(const char *unused) {
  (void)unused;
  train(&trainer, 3);
  by_clone(0);
  CU(trainer_steps(&trainer, 2));
  by_clone(0);
  print_hash("parent", &trainer);
}
/* As process 1 of a namespace, with children that are process 1 of their own. */
static void clone_namespace(const char *unused) {
  (void)unused;
  CHECK(unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0);
  const pid_t child = fork();
  if (child == 0) {
    CHECK(getpid() == 1);
    train(&trainer, 3);
    by_clone(CLONE_NEWPID);
    CU(trainer_steps(&trainer, 2));
    print_hash("process 1", &trainer);
    exit(0);
  }
  wait_for(child, "process 1");
}

/* The program begins anew while a step is in flight. */
static void exec_in_step(const char *unused) {
  (void)unused;
  train(&trainer, 4);
  const char *const words[] = {"forks", kernel_path, "train", NULL};
  (void)fflush(stdout);
  execv("/proc/self/exe", (char *const *)(uintptr_t)words);
}
static void plainly(const char *unused) {
  (void)unused;
  train(&trainer, 5);
  print_hash("program", &trainer);
}

static void daemon_first(const char *unused) {
  (void)unused;
  CHECK(daemon(1, 1) == 0);
  train(&trainer, 5);
  print_hash("daemon", &trainer);
}
static void daemon_in_step(const char *unused) {
  (void)unused;
  train(&trainer, 4);
  CHECK(daemon(1, 1) == 0);
  ordinary_child("daemon");
}

int main(int count, char **list) {
  static const struct word words[] = {{"child-trains", child_trains},
                                      {"all-train", all_train},
                                      {"before-steps", before_steps},
                                      {"between-steps", between_steps},
                                      {"in-step", in_step},
                                      {"during-launches", during_launches},
                                      {"clone", clone_child},
                                      {"clone-namespace", clone_namespace},
                                      {"exec-in-step", exec_in_step},
                                      {"train", plainly},
                                      {"daemon-first", daemon_first},
                                      {"daemon-in-step", daemon_in_step},
                                      {NULL, NULL}};
  return run_word(count, list, words);
}
