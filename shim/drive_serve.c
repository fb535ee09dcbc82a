/* Synchronous copies of state to the host, which leave pieces on drives where they are (drive.h): a checkpoint reads all state, and
   would otherwise bring it all in. */
#include "../policy/report.h"
#include "drive.h"
#include "driver.h"
#include "frames.h"
#include "lock.h"
#include "move.h"
#include "process.h"
#include "quiet.h"
#include <stdio.h>
#include <string.h>

static CUresult serve_piece(void *destination, const struct range *range, uint32_t piece,
                            size_t offset, size_t bytes) {
  struct frames *frames = frames_find(range->context);
  CUstream stream;
  CUevent copied;
  const bool ready = frames && move_copier(range, &stream, &copied);
  struct ticket *ticket = ready ? ticket_make(frames, TICKET_ALONE) : NULL;
  const char *frame = ticket ? ticket_add(ticket, range->pieces[piece].unit, false) : NULL;
  if (!frame) {
    if (ticket)
      ticket_drop(ticket);
    return ready ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  }
  ticket_go(ticket);
  const enum ticket_state state =
      drive_await(ticket, stream, "state that the program copies from a drive");
  if (state == TICKET_READY) {
    memcpy(destination, frame + offset, bytes);
    report_add(drive_served_bytes, bytes);
  }
  ticket_release(ticket, false);
  return state == TICKET_READY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

/* On the move stream: the legacy one might wait for what another thread is about to launch, which waits for the enqueue lock. */
static CUresult copy_mapped(void *destination, const struct range *range, uintptr_t address,
                            size_t bytes) {
  CUstream stream;
  CUevent copied;
  CUcontext current = NULL;
  DRIVER_TRY(driver.cuCtxGetCurrent(&current));
  const bool push = current != range->context;
  if (push)
    DRIVER_TRY(driver.cuCtxPushCurrent_v2(range->context));
  CUresult result;
  if (move_copier(range, &stream, &copied)) {
    result = driver.cuMemcpyDtoHAsync_v2(destination, address, bytes, stream);
    const CUresult waited = driver.cuStreamSynchronize(stream); /* ours alone, and short */
    result = result ? result : waited;
  } else {
    result = driver.cuMemcpyDtoH_v2(destination, address, bytes);
  }
  if (push)
    (void)driver.cuCtxPopCurrent_v2(&current);
  return process_note(result, "cuMemcpyDtoH");
}

/* Under the enqueue lock: pieces stay where they are. *here: how far it went. */
static CUresult serve_first(char *to, uintptr_t address, size_t bytes, size_t *here) {
  const struct range *range = range_find(address);
  if (!range)
    return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
  const size_t at = address - range->base, offset = at % range->piece_bytes;
  const uint32_t piece = (uint32_t)(at / range->piece_bytes);
  const size_t rest = range->bytes - at, in_piece = range->piece_bytes - offset;
  *here = in_piece < rest ? in_piece : rest;
  *here = bytes < *here ? bytes : *here;
  return range->pieces[piece].tier == PIECE_DRIVE ? serve_piece(to, range, piece, offset, *here)
                                                  : copy_mapped(to, range, address, *here);
}

CUresult drive_serve(void *destination, uintptr_t address, size_t bytes) {
  CUresult result = CUDA_SUCCESS;
  char *to = destination;
  for (size_t here; bytes && !result; to += here, address += here, bytes -= here) {
    here = bytes;
    enqueue_lock();
    CUstreamCaptureMode mode = quiet_begin();
    result = serve_first(to, address, bytes, &here);
    quiet_end(mode);
    enqueue_unlock();
  }
  return result;
}
