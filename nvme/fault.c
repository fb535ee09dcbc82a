/* The fault layer's words and its counting. What a stricken occasion does is its caller's: the engine's transfers, the store's
   fallocate. Any thread may count. */
#include "fault.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[FAULT_KINDS] = {
    [FAULT_READ_EIO] = "read_eio",
    [FAULT_WRITE_EIO] = "write_eio",
    [FAULT_WRITE_ENOSPC] = "write_enospc",
    [FAULT_ALLOCATE_ENOSPC] = "allocate_enospc",
    [FAULT_READ_FLIP] = "read_flip",
    [FAULT_READ_SHORT] = "read_short",
    [FAULT_WRITE_SHORT] = "write_short",
    [FAULT_EINTR] = "eintr",
    [FAULT_EAGAIN] = "eagain",
};

/* "12" or, where `onward` isn't NULL, "12+"; ends at `end`. */
static bool number(const char *text, const char *end, uint64_t most, uint64_t *value,
                   bool *onward) {
  char *after;
  if (text == end || *text < '0' || *text > '9')
    return false;
  errno = 0;
  *value = strtoull(text, &after, 10);
  if (errno || *value > most)
    return false;
  if (onward) {
    *onward = after < end && *after == '+';
    after += *onward;
  }
  return after == end;
}

static bool word(const char *text, const char *end, struct faults *faults) {
  const char *equals = memchr(text, '=', (size_t)(end - text));
  if (!equals)
    return false;
  const size_t length = (size_t)(equals - text);
  uint64_t value;
  for (int kind = 0; kind < FAULT_KINDS; kind++)
    if (strlen(names[kind]) == length && !memcmp(names[kind], text, length))
      return number(equals + 1, end, UINT64_MAX, &faults->kinds[kind].at,
                    &faults->kinds[kind].onward) &&
             faults->kinds[kind].at > 0;
  if (length == 7 && !memcmp(text, "slow_us", length)) {
    if (!number(equals + 1, end, 10000000, &value, NULL))
      return false;
    faults->slow_us = (unsigned)value;
    return true;
  }
  if (length == 9 && !memcmp(text, "directory", length)) {
    if (!number(equals + 1, end, 1000, &value, NULL))
      return false;
    faults->directory = (int)value;
    return true;
  }
  return false;
}

bool faults_parse(const char *text, struct faults *faults, char *why, size_t why_bytes) {
  for (int kind = 0; kind < FAULT_KINDS; kind++) {
    faults->kinds[kind].at = 0;
    faults->kinds[kind].onward = false;
    atomic_init(&faults->kinds[kind].count, 0);
  }
  faults->slow_us = 0;
  faults->directory = -1;
  while (text && *text) {
    const char *end = text + strcspn(text, ",");
    if (!word(text, end, faults)) {
      snprintf(why, why_bytes,
               "OFFLOAD_TEST_NVME: \"%.*s\" is not one of its words; use e.g. read_eio=3, "
               "write_enospc=5+, "
               "slow_us=200, directory=0",
               (int)(end - text), text);
      return false;
    }
    text = *end ? end + 1 : end;
  }
  return true;
}

bool faults_strike(struct faults *faults, enum fault_kind kind) {
  if (!faults || !faults->kinds[kind].at)
    return false;
  /* Only the number counts: no memory is passed on by it. */
  const uint64_t count =
      atomic_fetch_add_explicit(&faults->kinds[kind].count, 1, memory_order_relaxed) + 1;
  return count == faults->kinds[kind].at ||
         (faults->kinds[kind].onward && count > faults->kinds[kind].at);
}
