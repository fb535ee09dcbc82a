/* Faults on purpose, under the engine: what a drive may do, at the n-th transfer. From OFFLOAD_TEST_NVME, words separated by
   commas: read_eio=N, write_eio=N, write_enospc=N (the N-th transfer of that kind fails; N+ : from the N-th on),
   allocate_enospc=N (the N-th fallocate), read_flip=N (a bit of what was read is another), read_short=N, write_short=N (half of
   it is done), eintr=N, eagain=N, slow_us=N (each transfer takes so much longer), directory=K (only the K-th directory, from 0). */
#ifndef OFFLOAD_NVME_FAULT_H
#define OFFLOAD_NVME_FAULT_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_kind {
  FAULT_READ_EIO,
  FAULT_WRITE_EIO,
  FAULT_WRITE_ENOSPC,
  FAULT_ALLOCATE_ENOSPC,
  FAULT_READ_FLIP,
  FAULT_READ_SHORT,
  FAULT_WRITE_SHORT,
  FAULT_EINTR,
  FAULT_EAGAIN,
  FAULT_KINDS
};

struct faults {
  struct {
    uint64_t at; /* 0: never */
    bool onward;
    _Atomic uint64_t count;
  } kinds[FAULT_KINDS];
  unsigned slow_us;
  int directory; /* -1: every one */
};

/* False with a sentence that names the word. */
bool faults_parse(const char *text, struct faults *, char *why, size_t why_bytes);

/* Counts one occasion of this kind; whether it is to fail. `faults` may be NULL. */
bool faults_strike(struct faults *, enum fault_kind);
#endif
