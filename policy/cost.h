/* The cost model: from what a step moves and what the machine does in a second to seconds, by each way of stepping. A pure function: no
   file, no clock, no driver. Called by the shim at the beginning of steps (decide.h), by `offload plan` and by tests.

   Properties that tests hold it to: no way takes less than any single resource needs for its bytes; more bytes never take less time; a
   faster resource never makes it slower. */
#ifndef OFFLOAD_COST_H
#define OFFLOAD_COST_H
#include "rates.h"

/* Bytes an element of one kind of Adam. DESIGN 2's table, and README's. */
struct cost_family {
  const char *name;
  double parameter, gradient; /* on the device, for good */
  double state;    /* all state that moves: m, v, a maximum, a master weight that the kernel owns */
  double down, up; /* over the link by `cpu`; by `stream` it is `state` each way */
  double host_cpu; /* host memory read and written by `cpu`, the link's own accesses too */
  double arithmetic; /* an element's CPU time, times an fp32 element's */
};

/* Who needs what of a step. Elements are this rank's. */
struct cost_input {
  struct rates rates;
  struct cost_family family;
  double elements;  /* that the step names */
  double on_host;   /* of these, with state on host pages */
  double on_drive;  /* and with state on drives; the others' is on the device */
  double staged;    /* elements whose state `stream` copies up while forward and backward run */
  unsigned threads; /* of this rank's CPU step; 0: no CPU step */
  unsigned
      sharers; /* ranks of the node that step at the same time and share host memory and drives; 0 is as 1 */
  double cpu_piece,
      stream_piece;  /* elements of a piece; 0: as with the default OFFLOAD_DEVICE_STAGING */
  unsigned launches; /* of a step; 0 is as 1 */
  double compute;    /* seconds of forward and backward; 0: not known */
};

enum cost_way {
  COST_CPU,
  COST_STREAM,
  COST_DIRECT,
  COST_STAY,
  COST_WAYS
}; /* stay: all state on the device */
enum cost_resource {
  COST_UP,
  COST_DOWN,
  COST_HOST,
  COST_ARITHMETIC,
  COST_DEVICE,
  COST_DRIVE_READ,
  COST_DRIVE_WRITE,
  COST_STARTS,
  COST_RESOURCES
};

struct cost_of_way {
  bool possible;
  double seconds; /* of the step's work, hidden or not */
  double
      exposed; /* by how much forward, backward and step together get longer than with all state on the device */
  double hidden;                /* the rest */
  double needs[COST_RESOURCES]; /* seconds of each resource alone */
  enum cost_resource bound;     /* the largest of these */
};
struct cost {
  struct cost_of_way ways[COST_WAYS];
  enum cost_way best; /* of cpu, stream, direct: least exposed */
};

void cost_estimate(const struct cost_input *, struct cost *);

const char *cost_way_name(enum cost_way);           /* "cpu", "stream", "direct", "stay" */
const char *cost_resource_name(enum cost_resource); /* "link up", "host memory", ... */

/* The arithmetic as lines of text, each figure with its terms: for `offload plan --explain` and OFFLOAD_LOG=verbose. The length as
   snprintf counts. */
int cost_explain(const struct cost_input *, const struct cost *, char *text, size_t bytes);

/* The families that are known: "torch fp32", "torch bf16", "torch bf16, fp32 state", "with a master weight", ...; NULL behind the last.
   The shim makes its own of what a kernel showed (cost_family_of). */
extern const struct cost_family cost_families[];
/* Bytes of a parameter, a gradient, one state; states 2 or 3 (amsgrad); whether the kernel owns an fp32 master; whether the gradient
   is prepared on the device before it goes down (L2 decay, grad_scale: it goes in the type that is computed in, `opmath` bytes). */
struct cost_family cost_family_of(unsigned parameter, unsigned gradient, unsigned state,
                                  unsigned states, unsigned opmath, bool master, bool prepared);
#endif
