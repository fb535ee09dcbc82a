/* Frames and a store in the test's own memory, for the tests of the rooms around them: a unit is its bytes, read and written at once. */
#include "memory_frames.h"
#include "shim/frames.h"
#include "shim/process.h"
#include "shim/wear.h"
#include "tests/unit/memory_support.h"

uint64_t drive_units = 1024;
unsigned drive_units_used, drive_units_written;
bool drive_reads_fail, drive_write_failed, drive_frames_late, drive_room_wrong;

struct frames {
  CUcontext context;
};
struct ticket {
  uint32_t unit;
  bool fill, going;
  unsigned char *frame;
};
enum { UNITS = 1024 };
static unsigned char *units[UNITS];
static bool used[UNITS];
static struct frames only;
static int store;

struct frames *frames_of(CUcontext context, size_t piece_bytes, char *why, size_t why_bytes) {
  if (piece_bytes != PIECE) {
    snprintf(why, why_bytes, "pieces of another size");
    return NULL;
  }
  only.context = context;
  return &only;
}
struct frames *frames_find(CUcontext context) {
  return only.context == context ? &only : NULL;
}
unsigned frames_count(const struct frames *frames) {
  (void)frames;
  return FRAMES_LEAST;
}
struct store *frames_store(void) {
  return only.context ? (struct store *)&store : NULL;
}
struct ticket *ticket_make(struct frames *frames, enum ticket_kind kind) {
  (void)frames, (void)kind;
  return calloc(1, sizeof(struct ticket));
}
void *ticket_add(struct ticket *ticket, uint32_t unit, bool fills) {
  ticket->unit = unit;
  ticket->fill = fills;
  ticket->frame = calloc(1, PIECE);
  return ticket->frame;
}
void ticket_go(struct ticket *ticket) {
  ticket->going = true;
  if (!ticket->fill && !drive_reads_fail && units[ticket->unit])
    memcpy(ticket->frame, units[ticket->unit], PIECE);
}
void ticket_drop(struct ticket *ticket) {
  free(ticket->frame);
  free(ticket);
}
enum ticket_state ticket_wait(struct ticket *ticket, uint64_t limit_ns,
                              const _Atomic bool *give_up) {
  (void)limit_ns, (void)give_up;
  if (ticket->fill && drive_frames_late)
    return TICKET_WAITING;
  return ticket->going && (ticket->fill || (!drive_reads_fail && units[ticket->unit]))
             ? TICKET_READY
             : TICKET_FAILED;
}
const char *ticket_why(const struct ticket *ticket) {
  (void)ticket;
  return "a unit that can't be read";
}
void ticket_release(struct ticket *ticket, bool wrote) {
  if (wrote) {
    if (!units[ticket->unit])
      units[ticket->unit] = malloc(PIECE);
    memcpy(units[ticket->unit], ticket->frame, PIECE);
    drive_units_written++;
  }
  ticket_drop(ticket);
}
bool frames_idle(struct frames *frames, uint64_t limit_ns) {
  (void)frames;
  (void)limit_ns;
  return true;
}
bool frames_in_use(struct frames *frames, uint32_t unit) {
  (void)frames;
  (void)unit;
  return false;
}
void frames_forget_unit(struct frames *frames, uint32_t unit) {
  (void)frames;
  store_release(frames_store(), unit);
}
void frames_forget_context(CUcontext context, bool gone) {
  (void)gone;
  if (only.context == context)
    only.context = NULL;
}
uint64_t store_room(struct store *any) {
  (void)any;
  return drive_room_wrong ? UNITS : drive_units - drive_units_used;
}
bool store_allocate(struct store *any, uint32_t *unit, char *why, size_t why_bytes) {
  (void)any;
  for (*unit = 0; *unit < UNITS && drive_units_used < drive_units; ++*unit)
    if (!used[*unit]) {
      used[*unit] = true;
      drive_units_used++;
      return true;
    }
  snprintf(why, why_bytes, "no room");
  return false;
}
void store_release(struct store *any, uint32_t unit) {
  (void)any;
  if (used[unit])
    drive_units_used--;
  used[unit] = false;
  free(units[unit]);
  units[unit] = NULL;
}
struct store_stats store_stats(struct store *any) {
  (void)any;
  return (struct store_stats){.failed_directories = drive_write_failed,
                              .written_bytes = (uint64_t)drive_units_written * PIECE};
}
bool wear_ended(struct store *any) {
  const struct wear_limit *limit = &process_config()->nvme_wear_limit;
  return limit->bytes && store_stats(any).written_bytes >= limit->bytes;
}
void wear_step(struct store *any, CUcontext context) {
  (void)any, (void)context;
}
