/* Synchronous copies from pieces on drives to the host, which leave these where they are (drive.h): a checkpoint reads all state, and
   would otherwise bring it all in. */
#include "../policy/report.h"
#include "drive.h"
#include "driver.h"
#include "frames.h"
#include "lock.h"
#include "process.h"
#include "quiet.h"
#include <stdio.h>
#include <string.h>

static const uint64_t say_waiting_ns = 20000000000;

static CUresult serve_piece(void *destination, const struct range *range, uint32_t piece,
                            size_t offset, size_t bytes) {
  struct frames *frames = frames_find(range->context);
  struct ticket *ticket = frames ? ticket_make(frames, TICKET_ALONE) : NULL;
  const char *frame = ticket ? ticket_add(ticket, range->pieces[piece].unit, false) : NULL;
  if (!frame) {
    if (ticket)
      ticket_drop(ticket);
    return frames ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  }
  ticket_go(ticket);
  enum ticket_state state;
  while ((state = ticket_wait(ticket, say_waiting_ns, NULL)) == TICKET_WAITING)
    report_line(LOG_NORMAL, "still waiting for state that the program copies from a drive");
  if (state == TICKET_READY) {
    memcpy(destination, frame + offset, bytes);
    report_add(drive_served_bytes, bytes);
  } else {
    char sentence[320];
    snprintf(sentence, sizeof sentence,
             "optimizer state can't be read back (%s); this process must go back to its last "
             "checkpoint",
             ticket_why(ticket));
    process_stop(sentence);
  }
  ticket_release(ticket, false);
  return state == TICKET_READY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult drive_serve(void *destination, uintptr_t address, size_t bytes) {
  CUresult result = CUDA_SUCCESS;
  char *to = destination;
  enqueue_lock(); /* pieces stay where they are meanwhile */
  CUstreamCaptureMode mode = quiet_begin();
  while (bytes && !result) {
    const struct range *range = range_find(address);
    size_t here = bytes;
    if (range) {
      const size_t at = address - range->base, offset = at % range->piece_bytes;
      const uint32_t piece = (uint32_t)(at / range->piece_bytes);
      size_t rest = range->piece_bytes - offset;
      rest = rest < range->bytes - at ? rest : range->bytes - at;
      here = here < rest ? here : rest;
      result = range->pieces[piece].tier == PIECE_DRIVE
                   ? serve_piece(to, range, piece, offset, here)
                   : process_note(driver.cuMemcpyDtoH_v2(to, address, here), "cuMemcpyDtoH");
    } else {
      result = process_note(driver.cuMemcpyDtoH_v2(to, address, here), "cuMemcpyDtoH");
    }
    to += here;
    address += here;
    bytes -= here;
  }
  quiet_end(mode);
  enqueue_unlock();
  return result;
}
