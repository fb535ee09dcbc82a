/* The life of this process under the preload: when hooks may act, and when everything passes
   through.

   Before the first successful cuInit nothing is done at all: no thread, no file, no output, no
   allocation. A forked child of a process that had initialised CUDA is inert; any other child
   starts fresh. A sticky error makes everything pass through for good, with one line.
   OFFLOAD_MODE=off never becomes active. */
#ifndef OFFLOAD_PROCESS_H
#define OFFLOAD_PROCESS_H
#include "../policy/config.h"
#include <cuda.h>
#include <stdbool.h>

/* True when hooks may act: CUDA initialised by this very process, not off, no sticky error, not
   exiting. A load and a compare. */
bool process_active(void);

/* True from the first cuInit of this process on, also when the hooks have stopped: what we made
   must still be freed and answered for. False in a forked child of a started process, and with
   OFFLOAD_MODE=off. */
bool process_started_here(void);

/* The settings; valid once process_active has been true. */
const struct config *process_config(void);

/* Called by the cuInit wrapper after the real one succeeded. */
void process_started(void);

/* Any CUresult that a hook saw: the ones that mean a lost context (700-class, 999, ...) turn hooks
   off for good. Returns its argument. `where` names the call for the line. */
CUresult process_note_failure(CUresult result, const char *where);
static inline CUresult process_note(CUresult result, const char *where) {
  return __builtin_expect(result == CUDA_SUCCESS, 1) ? result : process_note_failure(result, where);
}

/* Turns hooks off for good with one line; for a promise that can no longer be kept. */
void process_stop(const char *reason);
/* The same without a line, where there is nothing left to do and the caller says so. */
void process_end(void);

/* Open captures in this process (cuStreamBeginCapture* minus ends), and whether this stream
   captures: any answer but "not capturing" counts as capturing. */
bool process_capturing(CUstream stream, bool per_thread);
bool process_capture_open(void);
void process_capture_began(void);
void process_capture_ended(void);
#endif
