/* The list behind holdings.h. What found no room on the list stays until its context ends, as all of it would without the list. */
#include "holdings.h"
#include "../policy/report.h"
#include "../policy/share.h"
#include "cancel.h"
#include "driver.h"
#include "process.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct holding {
  CUcontext context;
  uintptr_t address;
  size_t bytes;
  bool pinned;
} * holdings; /* under the enqueue lock */
static size_t count, room;

static void note(uintptr_t address, size_t bytes, bool pinned) {
  CUcontext context = NULL;
  if (driver.cuCtxGetCurrent(&context))
    return;
  if (count == room) {
    const size_t more = room ? 2 * room : 64;
    struct holding *grown = realloc(holdings, more * sizeof *grown);
    if (!grown)
      return;
    holdings = grown;
    room = more;
  }
  holdings[count++] = (struct holding){context, address, bytes, pinned};
}

/* It is no longer pinned: others may have it. */
static void unstage(const struct holding *holding) {
  if (!holding->pinned)
    return;
  const int cancel = cancel_hold();
  share_unstage(holding->bytes);
  cancel_allow(cancel);
}

static void forget(uintptr_t address) {
  for (size_t i = count; i--;)
    if (holdings[i].address == address) {
      unstage(&holdings[i]);
      holdings[i] = holdings[--count];
      return;
    }
}

/* What is pinned beside state counts in the node's memory, too. */
static bool stage(size_t bytes) {
  char why[200];
  const int cancel = cancel_hold(); /* it reads files */
  const bool staged = share_stage(process_config(), bytes, why, sizeof why);
  cancel_allow(cancel);
  if (!staged)
    report_reason("%s", why);
  return staged;
}

CUresult holding_allocate(CUdeviceptr *pointer, size_t bytes) {
  const CUresult result = driver.cuMemAlloc_v2(pointer, bytes);
  if (result == CUDA_SUCCESS)
    note((uintptr_t)*pointer, bytes, false);
  return result;
}

CUresult holding_free(CUdeviceptr pointer) {
  const CUresult result = driver.cuMemFree_v2(pointer);
  if (result == CUDA_SUCCESS)
    forget((uintptr_t)pointer);
  return result;
}

/* A forked child must not share pages that the device works on: a fork would copy them and pin the copies. */
static void not_for_children(void *memory, size_t bytes) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const uintptr_t begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
  const uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);
  if (begin < end)
    (void)madvise((void *)begin, end - begin, MADV_DONTFORK);
}

CUresult holding_pin(void **memory, size_t bytes) {
  if (!stage(bytes))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver.cuMemHostAlloc(memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
  if (result != CUDA_SUCCESS) {
    unstage(&(struct holding){.bytes = bytes, .pinned = true});
  } else {
    memset(*memory, 0, bytes);
    not_for_children(*memory, bytes);
    note((uintptr_t)*memory, bytes, true);
  }
  return result;
}

void holding_unpin(void *memory) {
  (void)driver.cuMemFreeHost(memory);
  forget((uintptr_t)memory);
}

void holdings_release(CUcontext context, size_t *device_bytes, size_t *pinned_bytes) {
  for (size_t i = count; i--;) {
    const struct holding holding = holdings[i];
    if (holding.context != context)
      continue;
    holdings[i] = holdings[--count]; /* which was looked at already */
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): kept as an integer, as device addresses are */
    void *memory = (void *)holding.address;
    if (holding.pinned ? driver.cuMemFreeHost(memory) : driver.cuMemFree_v2(holding.address))
      continue;
    unstage(&holding);
    *(holding.pinned ? pinned_bytes : device_bytes) += holding.bytes;
  }
}

void holdings_forget(CUcontext context) {
  for (size_t i = count; i--;)
    if (holdings[i].context == context) {
      unstage(&holdings[i]);
      holdings[i] = holdings[--count];
    }
}
