/* The calling thread's open group. */
#include "integration/pytorch/nccl/group.h"
#include "integration/pytorch/nccl/error.h"
#include <stdlib.h>
#include <string.h>

struct group_call {
  struct ncclComm *communicator;
  struct stream_call call;
};

struct group_begin {
  struct communicator_start *start;
  struct ncclComm **handle;
  pthread_t thread;
  bool threaded;
};

struct group {
  int depth;
  ncclResult_t error; /* of the first call inside that failed */
  struct group_call *calls;
  size_t call_count, call_capacity;
  struct group_begin *begins;
  size_t begin_count, begin_capacity;
};
static _Thread_local struct group group;

/* Room for one more item; false when out of memory. */
static bool make_room(void **items, size_t count, size_t *capacity, size_t item_bytes) {
  if (count < *capacity)
    return true;
  size_t larger = *capacity > 0 ? 2 * *capacity : 16;
  void *moved = realloc(*items, larger * item_bytes);
  if (moved == NULL)
    return false;
  *items = moved;
  *capacity = larger;
  return true;
}

void group_start(void) {
  group.depth++;
}

ncclResult_t group_note(ncclResult_t result) {
  if (group.depth > 0 && group.error == ncclSuccess && result != ncclInProgress)
    group.error = result;
  return result;
}

/* ---- communicators ---- */

/* A blocking communicator that could not start is no more. */
static ncclResult_t settle(struct communicator_start *start, struct ncclComm **handle) {
  ncclResult_t result = start->result;
  if (result != ncclSuccess && start->communicator != NULL) {
    communicator_end(start->communicator, true);
    *handle = NULL;
  }
  free(start);
  return result;
}

static bool blocks(const struct communicator_start *start) {
  return start->communicator != NULL ? start->communicator->blocking : start->parent->blocking;
}

static void *begin_thread(void *argument) {
  communicator_start(argument);
  return NULL;
}

/* One may wait for another of the same group, so all are begun before any is waited for. */
static ncclResult_t begin_all(struct group *g) {
  ncclResult_t first = ncclSuccess;
  for (size_t i = 0; i < g->begin_count; i++) {
    struct group_begin *begin = &g->begins[i];
    ncclResult_t result = ncclSuccess;
    if (!blocks(begin->start)) {
      result = communicator_start_aside(begin->start);
      begin->start = NULL;
    } else if (pthread_create(&begin->thread, NULL, begin_thread, begin->start) == 0) {
      begin->threaded = true;
    } else {
      begin->start->result = nccl_fail(ncclSystemError, "no thread to start a communicator");
    }
    first = first == ncclSuccess ? result : first;
  }
  for (size_t i = 0; i < g->begin_count; i++) {
    struct group_begin *begin = &g->begins[i];
    if (begin->threaded)
      pthread_join(begin->thread, NULL);
    ncclResult_t result = begin->start != NULL ? settle(begin->start, begin->handle) : ncclSuccess;
    if (result != ncclSuccess && (first == ncclSuccess || first == ncclInProgress))
      first = result;
  }
  return first;
}

ncclResult_t group_begin(struct communicator_start *start, struct ncclComm **handle) {
  if (group.depth == 0) {
    if (!blocks(start))
      return communicator_start_aside(start);
    communicator_start(start);
    return settle(start, handle);
  }
  if (!make_room((void **)&group.begins, group.begin_count, &group.begin_capacity,
                 sizeof group.begins[0])) {
    start->result = nccl_fail(ncclSystemError, "out of memory");
    return settle(start, handle);
  }
  group.begins[group.begin_count++] = (struct group_begin){.start = start, .handle = handle};
  return ncclSuccess;
}

/* ---- calls on streams ---- */

/* All calls of one communicator in one go, communicators in the order of their first calls. */
static ncclResult_t submit_all(struct group *g) {
  struct stream_call *together = malloc((g->call_count + 1) * sizeof *together);
  ncclResult_t result = ncclSuccess;
  if (together == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  for (size_t i = 0; i < g->call_count && result == ncclSuccess; i++) {
    struct ncclComm *communicator = g->calls[i].communicator;
    size_t count = 0;
    if (communicator == NULL)
      continue; /* went with an earlier one */
    for (size_t j = i; j < g->call_count; j++)
      if (g->calls[j].communicator == communicator) {
        together[count++] = g->calls[j].call;
        g->calls[j].communicator = NULL;
      }
    result = stream_submit(communicator, together, count);
  }
  free(together);
  return result;
}

ncclResult_t group_call(struct ncclComm *communicator, const struct collective *call,
                        CUstream stream) {
  struct stream_call one = {*call, stream};
  if (group.depth == 0)
    return stream_submit(communicator, &one, 1);
  if (!make_room((void **)&group.calls, group.call_count, &group.call_capacity,
                 sizeof group.calls[0]))
    return nccl_fail(ncclSystemError, "out of memory");
  group.calls[group.call_count++] = (struct group_call){communicator, one};
  return ncclSuccess;
}

/* ---- the end ---- */

static void empty(struct group *g) {
  free(g->calls);
  free(g->begins);
  *g = (struct group){.depth = g->depth};
}

void group_drop(void) {
  if (group.depth > 0 && --group.depth > 0)
    return;
  for (size_t i = 0; i < group.begin_count; i++) {
    group.begins[i].start->result = ncclInvalidUsage;
    settle(group.begins[i].start, group.begins[i].handle);
  }
  empty(&group);
}

ncclResult_t group_end(void) {
  if (group.depth == 0)
    return nccl_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (group.depth > 1) {
    group.depth--;
    return ncclSuccess;
  }
  if (group.error != ncclSuccess) {
    ncclResult_t error = group.error;
    group_drop();
    return error;
  }
  group.depth = 0;
  ncclResult_t begun = begin_all(&group);
  ncclResult_t result =
      begun == ncclSuccess || begun == ncclInProgress ? submit_all(&group) : begun;
  empty(&group);
  return result == ncclSuccess ? begun : result;
}
