/* Shared by the rooms of the replay: clock_events.c (what happens next), clock_work.c (words and what
   host threads do between them), clock_rates.c (how fast running work goes). */
#ifndef GPUSIM_CLOCK_REPLAY_H
#define GPUSIM_CLOCK_REPLAY_H
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"

#define NONE CLOCK_NO_ENTRY

struct list { /* entries in order, linked by `next` */
  size_t first, last;
};
struct word {
  uintptr_t address;
  uint64_t value;
  bool written;
  size_t *writers; /* entries */
  size_t writer_count, writer_capacity;
};
enum wait_source { WAIT_WORD, WAIT_WORKER, WAIT_NOTHING };
struct work {                /* a worker's: declared, or inferred for a value wait */
  size_t entry, after_entry; /* NONE: none */
  struct word *after_word;   /* NULL: the device never writes it */
  double amount[CLOCK_RESOURCES];
  size_t next; /* of the same line */
  bool started, done, assumed;
};
struct work_line { /* a host thread; thread 0 is the one that is inferred for a device */
  uint64_t thread;
  int device;
  size_t first, last; /* what is left of its work */
};
struct running {
  size_t entry, work; /* one of them; or the host's line */
  enum clock_kind kind;
  int device;
  bool given; /* a kernel of given duration */
  double lead, left[CLOCK_RESOURCES], limit[CLOCK_RESOURCES], rate[CLOCK_RESOURCES];
};
struct replay {
  const struct clock_log *log;
  const struct clock_terms *terms;
  const struct clock_profile *profile; /* the terms' */
  double now;
  struct clock_result *result;
  size_t *next; /* in a queue, then in an engine's line */
  bool *done;
  struct list queues[GPUSIM_MAX_DEVICES][GPUSIM_MAX_QUEUES];
  struct list engines[GPUSIM_MAX_DEVICES][CLOCK_ENGINES];
  int occupied[GPUSIM_MAX_DEVICES][GPUSIM_MAX_QUEUES];
  bool busy[GPUSIM_MAX_DEVICES][CLOCK_ENGINES];
  size_t *outstanding; /* by context id */
  size_t cursor;       /* the host's next entry */
  double host_free;
  bool host_works;
  struct word *words; /* by address */
  size_t word_count;
  enum wait_source *source; /* of value waits */
  size_t *source_work;
  struct work *work;
  size_t work_count, work_capacity, worker_capacity;
  struct work_line *lines;
  size_t line_count, line_capacity;
  struct running *running;
  size_t running_count, running_capacity;
};

/* Amounts in the log times the scale; times of the log are not scaled. */
void clock_scaled(const struct replay *, const double *from, double *into);

/* ---- clock_work.c ---- */
/* Before the replay: all words, where the value of each wait comes from, all work of host threads. */
void clock_work_find(struct replay *);
/* The entry, which may write a word, ended. */
void clock_work_wrote(const struct replay *, const struct clock_cost *);
bool clock_work_wait_over(const struct replay *, size_t entry);
/* Starts what can be started; false when nothing. */
bool clock_work_step(struct replay *);
/* Takes a piece of work for startable whose word nobody wrote; false when there is none. */
bool clock_work_assume(struct replay *);

/* ---- clock_rates.c ---- */
/* Adds work that runs from now on. */
struct running *clock_run(struct replay *, enum clock_kind, int device, const double *amount,
                          bool pageable);
/* Sets the rates; ns until the first part of running work ends or the host goes on, negative when
   neither is to come. */
double clock_until_next(struct replay *);
/* Lets time pass, at most clock_until_next; calls `end` for what is over. */
void clock_pass(struct replay *, double ns, void (*end)(struct replay *, const struct running *));
#endif
