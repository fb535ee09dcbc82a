/* Counting the state of optimizers that are not taken over: see foreign.h.

   A step's launches name their tensors in the same order each time. So the bytes of all launches from one that begins with the
   tensor named first to the next are those of a step; the largest such sum is told. */
#define _GNU_SOURCE
#include "foreign.h"
#include "../policy/leaf.h"
#include "../policy/report.h"
#include "driver.h"
#include "foreach.h"
#include "image.h"
#include "quiet.h"
#include "range.h"
#include "recognise.h"
#include "unknown.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum count { COUNT_LIST, COUNT_LAST, COUNT_ALLOCATIONS };
enum { ALLOCATIONS_MOST = 256, LAUNCHES_LOOKED_AT = 4096, COUNTED_PARAMETERS = 64 };

static const struct kind {
  const char *title, *family, *begins, *holds, *holds_too;
  enum count count;
  unsigned bytes;
  const char *remedy;
} kinds[] = {
#define FOREIGN(...) {__VA_ARGS__},
#include "foreign.def"
#undef FOREIGN
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct foreign {
  const struct kind *kind;
  unsigned parameters;
  size_t parameter_bytes[COUNTED_PARAMETERS];
  struct foreach_list list; /* COUNT_LIST */
  unsigned element_bytes;
};

/* What was seen of all functions of a title; under the lock, which is a leaf. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen {
  struct report_function *row;
  bool begun;
  uintptr_t first;           /* address with which a step's first launch begins */
  uint64_t present, most;    /* bytes of state: of this step so far, of the largest */
  _Atomic unsigned launches; /* looked at without the lock, too */
  struct allocation {
    uintptr_t base;
    size_t bytes;
  } allocations[ALLOCATIONS_MOST];
  unsigned allocation_count;
} seen_of[KINDS];

/* Rows of one title are one. */
static struct seen *seen_by(const struct kind *kind) {
  size_t first = 0;
  while (strcmp(kinds[first].title, kind->title) != 0)
    first++;
  return &seen_of[first];
}

static unsigned type_bytes(const char *functor) {
  const char *type = functor + strlen("28PointwiseOpScalarListFunctorI");
  return *type == 'f' ? 4 : *type == 'd' ? 8 : strncmp(type, "N3c10", 5) == 0 ? 2 : 0;
}

static const struct kind *kind_of(const char *name) {
  for (unsigned i = 0; i < KINDS; i++)
    if (strncmp(name, kinds[i].begins, strlen(kinds[i].begins)) == 0 &&
        strstr(name, kinds[i].holds) && strstr(name, kinds[i].holds_too))
      return &kinds[i];
  return NULL;
}

const struct foreign *foreign_of(CUfunction function, const char *name) {
  const struct kind *kind = kind_of(name);
  struct foreign *foreign = kind ? calloc(1, sizeof *foreign) : NULL;
  if (!foreign)
    return NULL;
  foreign->kind = kind;
  size_t offset;
  while (foreign->parameters < COUNTED_PARAMETERS &&
         image_parameter(function, foreign->parameters, &offset,
                         &foreign->parameter_bytes[foreign->parameters]))
    foreign->parameters++;
  if (kind->count != COUNT_LIST)
    return foreign;
  /* Of the divisions only: the same functor multiplies for others. */
  foreign->element_bytes = type_bytes(strstr(name, kind->holds_too));
  if (foreign->element_bytes && foreign->parameters && strstr(name, "St7divides") &&
      foreach_list_of(name, foreign->parameter_bytes[0], &foreign->list) &&
      foreign->list.lists == 3)
    return foreign;
  free(foreign);
  return NULL;
}

/* ---- what a launch says ---- */

/* The state of one launch: where it begins, and its bytes. */
struct launched {
  const struct foreign *foreign;
  const void *metadata;
  uintptr_t first;
  uint64_t elements;
};

static void list_block(void *context, unsigned tensor, uint64_t first, uint64_t elements) {
  enum { EXP_AVG = 1 };
  struct launched *launched = context;
  const struct foreign *foreign = launched->foreign;
  if (!launched->first)
    launched->first = foreach_address(&foreign->list, launched->metadata, EXP_AVG, tensor) +
                      first * foreign->element_bytes;
  launched->elements += elements;
}

static uint64_t launched_bytes(const struct foreign *foreign, const struct launch *launch,
                               uintptr_t *first) {
  struct launched launched = {.foreign = foreign};
  void **parameters = launch->kernel_parameters;
  if (foreign->kind->count == COUNT_LIST) {
    launched.metadata = parameters[0];
    (void)foreach_blocks(&foreign->list, parameters[0], launch->grid[0], list_block, &launched);
    *first = launched.first;
    return launched.elements * foreign->element_bytes * foreign->kind->bytes;
  }
  int elements = 0;
  if (foreign->parameters < 4 ||
      foreign->parameter_bytes[foreign->parameters - 1] != sizeof elements ||
      foreign->parameter_bytes[2] != sizeof *first)
    return 0;
  memcpy(&elements, parameters[foreign->parameters - 1], sizeof elements);
  memcpy(first, parameters[2], sizeof *first);
  return elements > 0 ? (uint64_t)elements * foreign->kind->bytes : 0;
}

static bool allocation_of(uintptr_t address, struct allocation *allocation) {
  const struct range *range = range_find(address);
  if (range) {
    *allocation = (struct allocation){range->base, range->bytes};
    return true;
  }
  CUdeviceptr base = 0;
  if (!address || !driver.cuMemGetAddressRange_v2 ||
      driver.cuMemGetAddressRange_v2(&base, &allocation->bytes, address) != CUDA_SUCCESS)
    return false;
  allocation->base = base;
  return true;
}

static void add_allocation(struct seen *seen, const struct allocation *allocation) {
  for (unsigned i = 0; i < seen->allocation_count; i++)
    if (seen->allocations[i].base == allocation->base)
      return;
  if (seen->allocation_count == ALLOCATIONS_MOST)
    return;
  seen->allocations[seen->allocation_count++] = *allocation;
  seen->most += allocation->bytes;
}

/* Allocations of a launch's pointers; asked for without the lock. */
static unsigned launched_allocations(const struct foreign *foreign, const struct launch *launch,
                                     struct allocation *found) {
  unsigned count = 0;
  const CUstreamCaptureMode mode = quiet_begin();
  for (unsigned i = 0; i < foreign->parameters; i++) {
    uintptr_t address;
    if (foreign->parameter_bytes[i] != sizeof address || !launch->kernel_parameters[i])
      continue;
    memcpy(&address, launch->kernel_parameters[i], sizeof address);
    count += allocation_of(address, &found[count]);
  }
  quiet_end(mode);
  return count;
}

/* ---- the report ---- */

static void make_row(struct seen *seen, const struct kind *kind) {
  seen->begun = true;
  unknown_end();
  seen->row = report_function_new(kind->family, kind->title, 0);
  report_notice("%s is not taken over, its state stays on the device: %s", kind->title,
                kind->remedy);
}

static void tell(const struct seen *seen, const struct kind *kind) {
  char size[REPORT_SIZE_BYTES];
  if (!seen->row)
    return;
  report_size_text(seen->most, size);
  if (kind->count == COUNT_ALLOCATIONS)
    report_set(seen->row->why, sizeof seen->row->why,
               "not taken over: it works on allocations of %s, which stay on the device: %s", size,
               kind->remedy);
  else
    report_set(seen->row->why, sizeof seen->row->why,
               "not taken over: %s of state stays on the device: %s", size, kind->remedy);
}

void foreign_launch(const struct foreign *foreign, const struct launch *launch) {
  const struct kind *kind = foreign->kind;
  struct seen *seen = seen_by(kind);
  struct allocation found[COUNTED_PARAMETERS];
  unsigned found_count = 0;
  uintptr_t first = 0;
  uint64_t bytes = 0;
  if (launch->kernel_parameters && kind->count != COUNT_ALLOCATIONS)
    bytes = launched_bytes(foreign, launch, &first);
  else if (launch->kernel_parameters && seen->launches < LAUNCHES_LOOKED_AT)
    found_count = launched_allocations(foreign, launch, found);
  pthread_mutex_lock(&lock);
  if (!seen->begun)
    make_row(seen, kind);
  seen->launches++;
  if (seen->row)
    atomic_fetch_add_explicit(&seen->row->launches, 1, memory_order_relaxed);
  const uint64_t before = seen->most;
  for (unsigned i = 0; i < found_count; i++)
    add_allocation(seen, &found[i]);
  if (bytes && (first == seen->first || !seen->first)) {
    seen->first = first;
    seen->present = 0;
  }
  seen->present += bytes;
  if (kind->count != COUNT_ALLOCATIONS && seen->present > seen->most)
    seen->most = seen->present;
  if (seen->most != before || seen->launches == 1)
    tell(seen, kind);
  pthread_mutex_unlock(&lock);
}

void foreign_facts(uint64_t *foreach_bytes, const char **name, uint64_t *bytes) {
  *foreach_bytes = *bytes = 0;
  *name = NULL;
  if (!leaf_lock(&lock))
    return;
  for (size_t i = 0; i < KINDS; i++) {
    const struct seen *seen = &seen_of[i];
    /* Allocations hold parameters and gradients, too. */
    const uint64_t state = kinds[i].count == COUNT_ALLOCATIONS ? 0 : seen->most;
    if (!seen->begun)
      continue;
    if (kinds[i].count == COUNT_LIST)
      *foreach_bytes += state;
    else if (!*name || state > *bytes) {
      *name = kinds[i].title;
      *bytes = state;
    }
  }
  pthread_mutex_unlock(&lock);
}
