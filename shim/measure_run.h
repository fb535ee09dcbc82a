/* Runs a program for its output, so that the program whose process this is can't see it. For measure.c.

   A child of ours must not be found by the program's wait(-1), nor send it SIGCHLD; an orphan would be found by programs that are the
   first process of a container. So the calling thread, one of ours with all signals blocked, makes a guard: a process that shares
   its memory, has descriptors of its own (none), and whose end sends no signal and is seen by __WCLONE alone. The guard starts the
   program in a session of its own, reads its output, ends it when time is over, and reaps it. The thread sleeps in vfork meanwhile.
   When the thread dies, however it does, guard and program are killed by the kernel. */
#ifndef OFFLOAD_MEASURE_RUN_H
#define OFFLOAD_MEASURE_RUN_H
#include <stddef.h>

enum { RUN_OUTPUT_BYTES = 8192 };
struct run_program {
  const char *path;
  char *const *arguments, *const *environment; /* NULL at the end */
  unsigned seconds;                            /* that it may take */

  char output[RUN_OUTPUT_BYTES + 1]; /* stdout and stderr, what fits */
  int status;                        /* as waitpid's; -1: it wasn't started, or had to be killed */
  int error;                         /* why it wasn't, an errno; ETIME: it had to be killed */
};

/* Returns when it has ended. From a thread of ours, all signals blocked. */
void run_program(struct run_program *);
#endif
