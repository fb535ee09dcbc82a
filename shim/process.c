/* The life of this process under the preload (process.h). Three facts live here: whose process this
   is (the pid of the first cuInit), what stage it is in, and how many captures are open.

   The stage is kept on a page that the kernel wipes in a forked child: the child reads IDLE
   whatever way it was made (fork, _Fork, clone), without a handler having run, and asking costs two
   loads. */
#define _GNU_SOURCE
#include "process.h"
#include "../policy/leaf.h"
#include "../policy/node.h"
#include "../policy/offload.h"
#include "../policy/report.h"
#include "cancel.h"
#include "driver.h"
#include "elf.h"
#include "facts.h"
#include "frames.h"
#include "record.h"
#include "step.h"
#include "wear.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

enum { IDLE, ACTIVE, STOPPED };

static _Atomic int before_start; /* IDLE for ever */
static _Atomic int *_Atomic stage = &before_start;
static _Atomic pid_t owner; /* the process whose cuInit came first; inherited by its children */
static struct config settings;
static _Atomic int captures;

static int stage_now(void) {
  /* acquire: whoever sees ACTIVE sees the settings */
  return atomic_load_explicit(atomic_load_explicit(&stage, memory_order_acquire),
                              memory_order_acquire);
}

bool process_active(void) {
  return stage_now() == ACTIVE;
}
bool process_started_here(void) {
  return stage_now() != IDLE;
}
const struct config *process_config(void) {
  return &settings;
}

/* ACTIVE to STOPPED; true for the one who did it. */
static bool stop(void) {
  int active = ACTIVE;
  return atomic_compare_exchange_strong_explicit(atomic_load_explicit(&stage, memory_order_acquire),
                                                 &active, STOPPED, memory_order_acq_rel,
                                                 memory_order_acquire);
}

/* The page is wiped here where the kernel can't; it is the child's own copy. */
static void in_child(void) {
  atomic_store_explicit(atomic_load_explicit(&stage, memory_order_relaxed), IDLE,
                        memory_order_relaxed);
  frames_forked();
  node_forked();
}

/* Whether exit may have been called by a signal's handler, on top of anything: of the driver's calls and of malloc, too, whose locks this
   very thread then holds. While a handler runs, its signal is blocked; one that asked for that not to be (SA_NODEFER) is seen on a
   stack of its own alone. */
static bool in_handler(void) {
  enum { SIGNALS = 64 };
  sigset_t blocked;
  stack_t stack;
  if (sigaltstack(NULL, &stack) == 0 && stack.ss_flags & SS_ONSTACK)
    return true;
  if (pthread_sigmask(SIG_SETMASK, NULL, &blocked))
    return false;
  for (int number = 1; number <= SIGNALS; number++) {
    struct sigaction action;
    if (sigismember(&blocked, number) == 1 && sigaction(number, NULL, &action) == 0 &&
        (action.sa_flags & SA_SIGINFO ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)))
      return true;
  }
  return false;
}

/* What happens here takes nothing of the process's allocator in a handler, where drives aren't asked and the driver isn't either
   (scratch.h, leaf.h). Children that leave through exit run this too, and must not write their parent's report. One in a
   pid namespace of its own may have its parent's number, but not its page; one that shares our
   memory (vfork) has the page, but not the number. */
static void at_exit(void) {
  if (atomic_load_explicit(&owner, memory_order_relaxed) != getpid() || !process_started_here())
    return;
  (void)stop();
  leaf_ending();
  const bool handler = in_handler();
  step_finish(handler);
  if (!handler)
    wear_report();
  node_finish(&settings);
  record_finish();
  report_finish(&settings);
  node_leave();
}

__attribute__((visibility("default"))) int offload_report(const char *path) {
  if (!path)
    return EINVAL;
  if (!process_started_here())
    return ENODATA;
  wear_report();
  return report_write(&settings, path);
}

static void print_problems(void) {
  for (const char *line = settings.problems; *line;) {
    size_t length = strcspn(line, "\n");
    char sentence[sizeof settings.problems];
    memcpy(sentence, line, length);
    sentence[length] = 0;
    report_sentence(LOG_NORMAL, sentence);
    line += length + (line[length] == '\n');
  }
}

static void note_other_hooks(void) {
  const char *other = elf_file_before_us("dlsym");
  if (other)
    report_reason("%s hooks dlsym too and stands before this library: driver functions that are "
                  "looked up may pass by; name liboffload.so first in LD_PRELOAD",
                  *other ? other : "the program");
}

static void begin(void) {
  pid_t nobody = 0;
  if (getauxval(AT_SECURE)) /* a privileged program: its environment is not to be trusted */
    return;
  if (!atomic_compare_exchange_strong(&owner, &nobody, getpid()))
    return; /* started already: here, or in the parent, whose CUDA a child can't use */
  config_load(&settings, environ);
  if (settings.mode == MODE_OFF)
    return;
  report_configure(&settings);
  facts_begin(environ);
  print_problems();
  note_other_hooks();
  void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || pthread_atfork(frames_before_fork, frames_after_fork, in_child)) {
    report_line(LOG_NORMAL, "no memory to start with: everything passes through");
    return;
  }
  (void)madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
  (void)atexit(at_exit);
  _Atomic int *shared = page;
  atomic_store_explicit(shared, ACTIVE, memory_order_release);
  atomic_store_explicit(&stage, shared, memory_order_release);
}

void process_started(void) {
  const int cancel = cancel_hold(); /* it prints and reads files */
  begin();
  cancel_allow(cancel);
}

void process_end(void) {
  (void)stop();
}

void process_stop(const char *reason) {
  if (!stop())
    return;
  report_line(LOG_NORMAL, "%s; everything passes through from now on", reason);
  report_reason("%s; everything passed through from then on", reason);
}

/* Errors after which no call in the context can succeed (cuda.h, "the context cannot be used"). */
static bool sticky(CUresult result) {
  switch (result) {
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
  case CUDA_ERROR_TENSOR_MEMORY_LEAK:
  case CUDA_ERROR_CONTAINED:
  case CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case CUDA_ERROR_EXTERNAL_DEVICE:
  case CUDA_ERROR_UNKNOWN:
    return true;
  default:
    return false;
  }
}

CUresult process_note_failure(CUresult result, const char *where) {
  if (result == CUDA_ERROR_DEINITIALIZED) {
    (void)stop(); /* the driver is shutting down: nothing to say */
  } else if (sticky(result) && process_active()) {
    char reason[160];
    const char *name = NULL;
    if (!driver.cuGetErrorName || driver.cuGetErrorName(result, &name))
      name = NULL;
    (void)snprintf(reason, sizeof reason, "the GPU's context is lost (%s from %s)",
                   name ? name : "an unknown error", where);
    process_stop(reason);
  }
  return result;
}

/* A count may stay too high (a capture whose stream was destroyed) but never too low. */
void process_capture_began(void) {
  atomic_fetch_add_explicit(&captures, 1, memory_order_seq_cst);
}
void process_capture_ended(void) {
  int open = atomic_load_explicit(&captures, memory_order_relaxed);
  while (open > 0 && !atomic_compare_exchange_weak_explicit(
                         &captures, &open, open - 1, memory_order_seq_cst, memory_order_relaxed))
    ;
}
bool process_capture_open(void) {
  return atomic_load_explicit(&captures, memory_order_seq_cst) > 0;
}

bool process_capturing(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (!driver.cuStreamIsCapturing)
    return false; /* a driver older than captures */
  if (!stream && per_thread)
    stream = CU_STREAM_PER_THREAD;
  return driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}
