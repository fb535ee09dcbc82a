/* The keeper: a thread that tells the GPU when tickets (frames.h) are ready, and lets go of them when the GPU is done. It never calls
   CUDA. Called by frames.c alone. */
#ifndef OFFLOAD_KEEPER_H
#define OFFLOAD_KEEPER_H
#include "frames.h"

struct keeper;

/* A ticket that is watched; lies in the ticket, so that watching needs no memory. */
struct watch {
  struct watch *next;
  struct ticket *ticket;
  struct gate_words *words;
  uint32_t generation;
};

/* NULL with a sentence. */
struct keeper *keeper_start(char *why, size_t why_bytes);
/* The watch's fields but `next` are set. */
void keeper_watch(struct keeper *, struct watch *);
/* Words are waited for no longer: tickets that were ready are let go of as not written. */
void keeper_fail(struct keeper *);
/* Lets go of what is still watched, ends the thread, frees. */
void keeper_stop(struct keeper *);
#endif
