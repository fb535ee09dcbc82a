/* Requests on units: cut into parts, one for each stripe, that go to the directories' engines; checksums; what becomes of a request
   when a part fails. Takes no lock but that of the table. A part's end runs on its engine's thread; the last one ends the
   request. */
#include "clock.h"
#include "store_internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct store_part {
  struct engine_request engine;
  struct store_request *request;
  struct store_directory *directory;
  struct store_stripe *stripe;
  bool wrong; /* not the bytes that were written */
};

static uint64_t checksum(struct store *store, const void *bytes) {
  const uint64_t begun = clock_now_ns();
  const uint64_t sum = XXH3_64bits(bytes, store->stripe_bytes);
  atomic_fetch_add_explicit(&store->checksum_ns, clock_now_ns() - begun, memory_order_relaxed);
  return sum;
}

static void end(struct store_request *request, enum store_outcome outcome) {
  request->outcome = outcome;
  request->done(request);
}

/* What was to be written goes to host memory; `why` is set by the caller. */
static void end_kept(struct store *store, struct store_request *request) {
  struct store_unit *unit = store_unit(store, request->unit);
  if (store_keep(store, unit, request->buffer)) {
    end(request, STORE_KEPT);
    return;
  }
  unit->written = false;
  snprintf(request->why, sizeof request->why,
           "OFFLOAD_NVME: a drive failed, and there are no %zu bytes of host memory to keep its "
           "values in",
           store->config.unit_bytes);
  end(request, STORE_FAILED);
}

/* The first part that failed, or NULL. */
static struct store_part *first_failed(const struct store *store,
                                       const struct store_request *request) {
  for (unsigned i = 0; i < store->stripes; i++)
    if (request->parts[i].engine.error || request->parts[i].wrong)
      return &request->parts[i];
  return NULL;
}

static void end_write(struct store *store, struct store_request *request) {
  const struct store_part *part = first_failed(store, request);
  if (!part) {
    free(request->parts);
    store_unit(store, request->unit)->written = true;
    end(request, STORE_OK);
    return;
  }
  if (!atomic_exchange_explicit(&part->directory->told, true, memory_order_relaxed))
    snprintf(request->why, sizeof request->why,
             "OFFLOAD_NVME: write at byte %llu of the file in %.72s: %s; the values are kept in "
             "host memory",
             (unsigned long long)part->engine.failed_at, part->directory->path,
             strerror(part->engine.error));
  free(request->parts);
  end_kept(store, request);
}

static void end_read(struct store *store, struct store_request *request) {
  const struct store_part *part = first_failed(store, request);
  if (part && part->wrong)
    snprintf(request->why, sizeof request->why,
             "OFFLOAD_NVME: read of %zu bytes at byte %llu of the file in %.72s: they are not what "
             "was written",
             part->engine.bytes, (unsigned long long)part->engine.offset, part->directory->path);
  else if (part)
    snprintf(request->why, sizeof request->why,
             "OFFLOAD_NVME: read at byte %llu of the file in %.72s: %s",
             (unsigned long long)part->engine.failed_at, part->directory->path,
             strerror(part->engine.error));
  free(request->parts);
  end(request, part ? STORE_FAILED : STORE_OK);
}

static void part_done(struct engine_request *engine) {
  struct store_part *part = engine->context;
  struct store_request *request = part->request;
  struct store *store = request->store;
  part->wrong = !engine->write && !engine->error && store->config.checksums &&
                checksum(store, engine->buffer) != part->stripe->checksum;
  if (engine->error || part->wrong)
    atomic_store_explicit(&part->directory->failed, true, memory_order_relaxed);
  const bool write = engine->write;
  /* The last part sees what the others left. */
  if (atomic_fetch_sub_explicit(&request->open_parts, 1, memory_order_acq_rel) != 1)
    return;
  if (write)
    end_write(store, request);
  else
    end_read(store, request);
}

/* False without memory; nothing was begun then. */
static bool submit(struct store *store, struct store_request *request, struct store_unit *unit,
                   bool write) {
  const unsigned count = store->stripes;
  struct store_part *parts = calloc(count, sizeof *parts);
  if (!parts)
    return false;
  request->parts = parts;
  atomic_store_explicit(&request->open_parts, count, memory_order_relaxed);
  /* The request, its parts and the unit may be gone after the last part is submitted, not before. */
  for (unsigned i = 0; i < count; i++) {
    struct store_stripe *stripe = &unit->stripes[i];
    struct store_directory *directory = &store->directories[stripe->directory];
    char *buffer = (char *)request->buffer + i * store->stripe_bytes;
    if (write && store->config.checksums)
      stripe->checksum = checksum(store, buffer);
    parts[i] = (struct store_part){
        .engine = {.write = write,
                   .offset = (uint64_t)stripe->slot * store->stripe_bytes,
                   .buffer = buffer,
                   .bytes = store->stripe_bytes,
                   .done = part_done,
                   .context = &parts[i]},
        .request = request,
        .directory = directory,
        .stripe = stripe,
    };
    engine_submit(directory->engine, &parts[i].engine);
  }
  return true;
}

/* NULL, after the request has ended, when it names no unit. */
static struct store_unit *begin(struct store *store, struct store_request *request) {
  struct store_unit *unit = store_unit(store, request->unit);
  request->store = store;
  request->parts = NULL;
  request->why[0] = 0;
  if (unit && unit->allocated)
    return unit;
  snprintf(request->why, sizeof request->why, "OFFLOAD_NVME: unit %u is not allocated",
           request->unit);
  end(request, STORE_FAILED);
  return NULL;
}

void store_read(struct store *store, struct store_request *request) {
  struct store_unit *unit = begin(store, request);
  if (!unit)
    return;
  if (!unit->written) {
    snprintf(request->why, sizeof request->why,
             "OFFLOAD_NVME: unit %u holds nothing that was written", request->unit);
    end(request, STORE_FAILED);
  } else if (unit->kept) {
    memcpy(request->buffer, unit->kept, store->config.unit_bytes);
    end(request, STORE_OK);
  } else if (!submit(store, request, unit, false)) {
    snprintf(request->why, sizeof request->why, "OFFLOAD_NVME: no memory for a read");
    end(request, STORE_FAILED);
  }
}

void store_write(struct store *store, struct store_request *request) {
  struct store_unit *unit = begin(store, request);
  if (!unit)
    return;
  if (unit->kept || !submit(store, request, unit, true))
    end_kept(store, request);
}
