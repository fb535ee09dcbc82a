/* A store in the test's memory (shim_frames.c), or the real one: the linker sends the rooms' calls of the store here. The fake is
   asynchronous: a thread of its own ends requests in random order, after random delays, and can be told to fail them. It notices
   what a drive would not: two requests on one unit or on one buffer at a time, and a buffer that changes while it is written. */
#ifndef FRAMES_FAKE_H
#define FRAMES_FAKE_H
#include "nvme/store.h"

enum { FAKE_UNITS = 128, FAKE_UNIT_BYTES = 65536 };

/* What the store is; set before the first call. */
extern bool fake_store;

struct fake {
  _Atomic bool refuse_open; /* store_open fails */
  _Atomic bool hold;        /* requests are taken, and don't end, until fake_go */
  _Atomic int read_fails;   /* the unit whose reads fail; -1: none */
  _Atomic int write_fails;  /* the unit whose writes find neither a drive nor memory; -1: none */
  _Atomic int
      write_kept; /* the unit whose writes a drive refuses; -1: none; -2: every third of all */
  _Atomic bool slow_open;    /* opening takes 100 ms */
  _Atomic bool at_once;      /* requests end in the call */
  _Atomic unsigned delay_us; /* the most of one */
  _Atomic unsigned opening, reads, writes, released, forked, broken, waiting;
  _Atomic unsigned unit_reads[FAKE_UNITS], unit_writes[FAKE_UNITS];
};
extern struct fake fake;
/* Ends the hold. */
void fake_go(void);
/* Which rule was broken first, or "". */
const char *fake_complaint(void);

/* What the unit holds on the fake drive. */
const void *fake_unit(uint32_t unit);
/* Waits until so many requests are taken and held; false after five seconds. */
bool fake_holds(unsigned requests);

/* Those that rooms call, for the test's own use. */
struct store *__wrap_store_open(const struct store_config *, char *why, size_t why_bytes);
void __wrap_store_forked(struct store *);
void __wrap_store_release(struct store *, uint32_t unit);
void __wrap_store_read(struct store *, struct store_request *);
void __wrap_store_write(struct store *, struct store_request *);
bool __wrap_store_allocate(struct store *, uint32_t *unit, char *why, size_t why_bytes);
#endif
