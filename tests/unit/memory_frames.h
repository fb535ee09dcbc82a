/* What the tests tell the drives of memory_frames.c, and what became of them. */
#ifndef MEMORY_FRAMES_H
#define MEMORY_FRAMES_H
#include <stdbool.h>
#include <stdint.h>

extern uint64_t drive_units; /* that there are in all */
extern unsigned drive_units_used, drive_units_written;
extern bool drive_reads_fail, drive_write_failed;
extern bool drive_frames_late; /* those to be filled never come */
extern bool drive_room_wrong;  /* store_room tells of room that store_allocate doesn't find */
#endif
