/* A plan of a job that has not run: bytes on each tier and seconds of each way of stepping, from a model, an optimizer, a machine. Pure.
   Called by `offload plan`, which reads what was asked (offload_plan.c) and shows what came out (plan_text.c, plan_json.c, plan_svg.c).

   Every rank steps its own elements at the same time as the others and shares host memory and drives with them. Sharding divides over the
   ranks: zero1 the state and the step, fsdp parameters and gradients, too. Forward and backward take 6 FLOP for each active parameter and
   token at half the GPU's bf16 peak. Left out: activations (what is left for them is told), buffers of collectives, layers that
   FSDP gathers, the collectives' own time. */
#ifndef OFFLOAD_PLAN_H
#define OFFLOAD_PLAN_H
#include "advice.h"
#include "plan_model.h"

/* A line of gpus.def: names there are the fields here. */
struct plan_gpu {
  const char *name, *words;
  double memory, hbm, fp32, bf16, up, down, up_both, down_both, pageable, sm_read, sm_write, peer,
      dram, drive_read, drive_write, call, launch, copy;
  int sms, copy_engines, gpus;
};
extern const struct plan_gpu plan_gpus[]; /* .name NULL behind the last */

/* Of gpus.def: NAME-GPUS, NAME, or the only one that begins so. NULL with a sentence. */
const struct plan_gpu *plan_gpu_find(const char *name, unsigned gpus, char *problem,
                                     size_t problem_bytes);
/* Its rates; what its line doesn't say is 0, not known, but for the rest of `rates`, which is left as it is. */
void plan_gpu_rates(const struct plan_gpu *, struct rates *rates);

enum plan_shard { PLAN_NONE, PLAN_ZERO1, PLAN_FSDP };

struct plan_request {
  struct plan_model model;
  const char *optimizer, *dtype; /* names of optimizers.def; fp32, bf16, fp16, fp64 */
  unsigned gpus;                 /* of the node */
  enum plan_shard shard;
  double tokens;       /* of a GPU and step; 0: not told */
  double target;       /* share of a step that offload may cost */
  double device_bytes; /* 0: not known */
  double bf16_flops;   /* peak a second; 0: not known */
  double host_bytes;   /* of the node, for state; 0: as much as it takes */
  bool drives;         /* state beyond host_bytes goes there */
  unsigned threads;    /* of a rank's CPU step */
  double staging_bytes;
  struct rates rates;
};

/* Bytes of a GPU. */
struct plan_bytes {
  double parameters, gradients, state, staging;
  double
      left; /* of the device's memory, for activations; below 0: missing. 0 where it isn't known */
  bool fits;
};

struct plan {
  struct plan_bytes without, with;
  double host, drives;   /* of a GPU's state */
  double elements;       /* that a rank steps */
  bool moves;            /* whether the optimizer is one that is taken over */
  const char *not_moved; /* its name, when it isn't */
  struct cost_input input;
  struct cost cost;
  double compute; /* seconds of forward and backward; 0: not known */
  struct advice advice[ADVICE_MOST];
  size_t advice_count;
};

/* False with a sentence when an optimizer or type isn't known. */
bool plan_make(const struct plan_request *, struct plan *, char *problem, size_t problem_bytes);

/* How much longer a step gets, as a share of one with all state on the device; below 0: not known. */
double plan_share(const struct plan *, enum cost_way);
const char *plan_shard_name(enum plan_shard); /* "none", "zero1", "fsdp" */

/* The --dtype that a config.json's word means: of bfloat16 bf16; the word itself where there is none. */
const char *plan_dtype_of(const char *word);

struct plan_optimizer {
  const char *name, *help;
};
extern const struct plan_optimizer plan_optimizers[]; /* .name NULL behind the last */

/* Shown: the table, JSON, and a picture (- is stdout). False: errno says why it could not be written. */
void plan_text(const struct plan_request *, const struct plan *, const char *machine, bool explain);
bool plan_json(const struct plan_request *, const struct plan *, const char *machine);
bool plan_svg(const struct plan_request *, const struct plan *, const char *machine,
              const char *path);
#endif
