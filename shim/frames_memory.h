/* The memory of frames (frames.h): mapped by us, not inherited by children, registered with the driver. Called by frames_life.c,
   under the enqueue lock, with the context current. */
#ifndef OFFLOAD_FRAMES_MEMORY_H
#define OFFLOAD_FRAMES_MEMORY_H
#include <stdbool.h>
#include <stddef.h>

struct frames_memory {
  unsigned char *base;
  size_t bytes;
  size_t part_bytes; /* that were registered at once */
};

/* As much of `bytes` as the system and the driver give, halved where they refuse, but at least `least`; both whole pieces. False with a
   sentence. */
bool frames_memory_make(struct frames_memory *, size_t bytes, size_t least, size_t piece_bytes,
                        char *why, size_t why_bytes);
/* Registers memory that is mapped; false with a sentence when the driver refuses it even in parts. */
bool frames_memory_register(struct frames_memory *, size_t piece_bytes, char *why,
                            size_t why_bytes);
/* The driver forgets it, unless it did with its context. */
void frames_memory_unregister(struct frames_memory *);
/* Gives it back; it isn't registered any more. */
void frames_memory_free(struct frames_memory *);
#endif
