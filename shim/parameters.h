/* Sizes of the parameters of every function that was ever looked at (scan.c), and what else its name tells about how they are to be read.
   Asked of the driver, or of images where it doesn't tell, once a function; readers are lock-free. */
#ifndef OFFLOAD_PARAMETERS_H
#define OFFLOAD_PARAMETERS_H
#include "foreach.h"
#include <cuda.h>
#include <stdatomic.h>

/* Larger structs may hold addresses of an earlier launch. */
enum { WEAK_BYTES = 1024 };

/* Made once, never changed but for `generation`, never freed: a reader may hold one. Their number
   is bounded by the functions that ever were, since a handle that comes again finds its old entry.
 */
struct parameters {
  CUfunction function;
  _Atomic uint64_t generation;
  struct parameters *older; /* same handle, other sizes */
  bool unknown;             /* nobody tells their sizes */
  bool has_list;            /* the first parameter is one */
  bool adds;                /* and nothing but what it names is written */
  bool opaque;              /* works on what lists in memory name */
  struct foreach_list list;
  uint32_t count;
  uint32_t bytes[];
};

/* NULL: the table is full there, or there is no memory. */
const struct parameters *parameters_of(CUfunction);
#endif
