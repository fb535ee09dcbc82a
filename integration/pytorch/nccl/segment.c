/* Making, joining and leaving the shared memory; bells. segment.h draws it. */
#define _GNU_SOURCE
#include "integration/pytorch/nccl/segment.h"
#include "integration/pytorch/nccl/error.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  PAGE_BYTES = 4096,
  MANY_RANKS = 16, /* more share the address space in smaller rings */
  RING_BYTES = 256 << 10,
  SMALL_RING_BYTES = 32 << 10,
  NONCE_BYTES = 16,
  STEP_NS = 10000000,
  LOOK_NS = 50000000,
  DYING_MS = 200
};
static const char magic[8] = "offlnccl";

struct segment_header {
  char magic[8];
  uint8_t nonce[NONCE_BYTES];
  _Atomic int ranks; /* 0 until the first joins */
  _Atomic int joined;
};

struct id_contents {
  char magic[8];
  uint8_t nonce[NONCE_BYTES];
  struct process_identity maker;
  int descriptor;
};
_Static_assert(sizeof(struct id_contents) <= sizeof(ncclUniqueId), "the unique id has room");
_Static_assert(sizeof(struct segment_header) <= PAGE_BYTES, "the header is a page");

/* ---- unique ids: the maker keeps the descriptor until its own rank has joined ---- */

struct made_id {
  struct made_id *next;
  uint8_t nonce[NONCE_BYTES];
  int descriptor;
};
static pthread_mutex_t made_mutex = PTHREAD_MUTEX_INITIALIZER; /* protects the list */
static struct made_id *made;

static ncclResult_t make_header(int descriptor, const uint8_t *nonce) {
  struct segment_header header = {.ranks = 0};
  memcpy(header.magic, magic, sizeof magic);
  memcpy(header.nonce, nonce, NONCE_BYTES);
  if (ftruncate(descriptor, PAGE_BYTES) != 0 ||
      pwrite(descriptor, &header, sizeof header, 0) != (ssize_t)sizeof header)
    return nccl_fail(ncclSystemError, "no shared memory for a communicator: %s", strerror(errno));
  return ncclSuccess;
}

ncclResult_t segment_unique_id(ncclUniqueId *id) {
  struct id_contents contents = {.descriptor = -1};
  struct made_id *entry = calloc(1, sizeof *entry);
  if (entry == NULL)
    return nccl_fail(ncclSystemError, "out of memory");
  memcpy(contents.magic, magic, sizeof magic);
  if (!process_self(&contents.maker) ||
      getrandom(contents.nonce, NONCE_BYTES, 0) != (ssize_t)NONCE_BYTES ||
      (contents.descriptor = memfd_create("nccl", MFD_CLOEXEC)) < 0) {
    free(entry);
    return nccl_fail(ncclSystemError, "a unique id needs /proc and memfd_create: %s",
                     strerror(errno));
  }
  ncclResult_t result = make_header(contents.descriptor, contents.nonce);
  if (result != ncclSuccess) {
    close(contents.descriptor);
    free(entry);
    return result;
  }
  entry->descriptor = contents.descriptor;
  memcpy(entry->nonce, contents.nonce, NONCE_BYTES);
  pthread_mutex_lock(&made_mutex);
  entry->next = made;
  made = entry;
  pthread_mutex_unlock(&made_mutex);
  memset(id, 0, sizeof *id);
  memcpy(id, &contents, sizeof contents);
  return ncclSuccess;
}

static void forget_id(const uint8_t *nonce) {
  pthread_mutex_lock(&made_mutex);
  for (struct made_id **at = &made; *at != NULL; at = &(*at)->next)
    if (memcmp((*at)->nonce, nonce, NONCE_BYTES) == 0) {
      struct made_id *entry = *at;
      *at = entry->next;
      close(entry->descriptor);
      free(entry);
      break;
    }
  pthread_mutex_unlock(&made_mutex);
}

/* ---- bells and waits ---- */

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void segment_ring_bell(const struct segment *segment, int rank) {
  _Atomic uint32_t *bell = &segment->of_rank[rank].bell;
  /* release: what was changed is seen by who hears the bell */
  atomic_fetch_add_explicit(bell, 1, memory_order_release);
  syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void segment_ring_bells(const struct segment *segment) {
  for (int rank = 0; rank < segment->ranks; rank++)
    segment_ring_bell(segment, rank);
}

uint32_t segment_bell(const struct segment *segment) {
  return atomic_load_explicit(&segment->of_rank[segment->self].bell, memory_order_acquire);
}

static ncclResult_t read_timeout(uint64_t *ns) {
  const char *text = getenv("NCCL_STANDIN_TIMEOUT_MS");
  char *end = NULL;
  unsigned long long ms = 1800000;
  if (text != NULL && text[0] != '\0') {
    errno = 0;
    ms = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] == '-' || ms == 0 || ms > 1000000000)
      return nccl_fail(ncclInvalidUsage,
                       "NCCL_STANDIN_TIMEOUT_MS=%s is not a number of milliseconds; give 1 to "
                       "1000000000, or unset it for half an hour",
                       text);
  }
  *ns = ms * 1000000;
  return ncclSuccess;
}

struct segment_wait segment_wait_begin(const struct segment *segment, const _Atomic bool *aborted) {
  return (struct segment_wait){segment, aborted, now_ns() + segment->timeout_ns, 0};
}

void segment_wait_renew(struct segment_wait *wait) {
  wait->deadline_ns = now_ns() + wait->segment->timeout_ns;
}

ncclResult_t segment_wait_step(struct segment_wait *wait, uint32_t seen) {
  const struct segment *segment = wait->segment;
  const struct timespec step = {0, STEP_NS};
  if (atomic_load_explicit(wait->aborted, memory_order_acquire))
    return ncclInProgress;
  if (now_ns() > wait->deadline_ns)
    return nccl_fail(ncclRemoteError,
                     "rank %d of %d waited for longer than NCCL_STANDIN_TIMEOUT_MS for the others; "
                     "do all ranks make the same calls?",
                     segment->self, segment->ranks);
  syscall(SYS_futex, &segment->of_rank[segment->self].bell, FUTEX_WAIT, seen, &step, NULL, 0);
  return ncclSuccess;
}

bool segment_wait_looks(struct segment_wait *wait) {
  uint64_t now = now_ns();
  if (now < wait->next_look_ns)
    return false;
  wait->next_look_ns = now + LOOK_NS;
  return true;
}

/* ---- the others ---- */

bool segment_gone(const struct segment *segment, int rank) {
  const struct segment_rank *record = &segment->of_rank[rank];
  uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
  if (state == SEGMENT_ABSENT || state == SEGMENT_JOINING)
    return false;
  return state != SEGMENT_PRESENT || !process_lives(&record->process);
}

bool segment_dead(const struct segment *segment, int rank) {
  return !process_lives(&segment->of_rank[rank].process);
}

ncclResult_t segment_fail_gone(const struct segment *segment, int rank) {
  const struct segment_rank *record = &segment->of_rank[rank];
  uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
  return nccl_fail(ncclRemoteError, "rank %d (process %d) %s; rank %d waited for it", rank,
                   (int)record->process.number,
                   state == SEGMENT_LEFT     ? "has destroyed its communicator"
                   : state == SEGMENT_FAILED ? "has aborted or met an error"
                                             : "is dead",
                   segment->self);
}

void segment_leave(const struct segment *segment, enum segment_state how) {
  if (!segment->entered)
    return;
  atomic_store_explicit(&segment->of_rank[segment->self].state, how, memory_order_release);
  segment_ring_bells(segment);
}

/* ---- joining ---- */

static size_t round_up(size_t bytes) {
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static size_t ring_stride(const struct segment *segment) {
  return sizeof(struct segment_ring) + segment->ring_bytes;
}

struct segment_ring *segment_ring(const struct segment *segment, int sender, int receiver) {
  size_t number = (size_t)sender * (size_t)segment->ranks + (size_t)receiver;
  return (struct segment_ring *)(void *)(segment->rings + number * ring_stride(segment));
}

static ncclResult_t fail_maker_gone(const struct id_contents *id) {
  return nccl_fail(ncclRemoteError, "the process that made the unique id (%d) is gone",
                   (int)id->maker.number);
}

/* A dying process's descriptors are closed before /proc says that it is dead. */
static bool maker_dies(const struct id_contents *id) {
  for (int ms = 0; ms < DYING_MS; ms++) {
    if (!process_lives(&id->maker))
      return true;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return false;
}

static ncclResult_t open_maker(const struct id_contents *id, int *file) {
  char path[64];
  if (memcmp(id->magic, magic, sizeof magic) != 0)
    return nccl_fail(ncclInvalidArgument, "the unique id is not one of ncclGetUniqueId's");
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)id->maker.number, id->descriptor);
  if (!process_lives(&id->maker))
    return fail_maker_gone(id);
  *file = open(path, O_RDWR | O_CLOEXEC);
  int why = errno;
  if (*file < 0 && maker_dies(id))
    return fail_maker_gone(id);
  if (*file < 0)
    return nccl_fail(ncclSystemError,
                     "%s: %s; the processes of a communicator must run as one user and see each "
                     "other in /proc, and the maker of the id must not have used it up",
                     path, strerror(why));
  return ncclSuccess;
}

/* The first to come decides how many ranks there are. */
static ncclResult_t agree(int file, const struct id_contents *id, int ranks) {
  struct segment_header *header =
      mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (header == MAP_FAILED)
    return nccl_fail(ncclSystemError, "shared memory: %s", strerror(errno));
  ncclResult_t result = ncclSuccess;
  int none = 0;
  if (memcmp(header->magic, magic, sizeof magic) != 0 ||
      memcmp(header->nonce, id->nonce, NONCE_BYTES) != 0)
    result = nccl_fail(ncclInvalidArgument, "the unique id has been used up");
  else if (!atomic_compare_exchange_strong_explicit(&header->ranks, &none, ranks,
                                                    memory_order_acq_rel, memory_order_acquire) &&
           none != ranks)
    result = nccl_fail(ncclInvalidArgument, "one rank says that there are %d ranks, another %d",
                       none, ranks);
  munmap(header, PAGE_BYTES);
  return result;
}

static ncclResult_t map(struct segment *segment, int file) {
  size_t ranks = (size_t)segment->ranks;
  size_t records = round_up(ranks * sizeof(struct segment_rank));
  segment->ring_bytes = segment->ranks > MANY_RANKS ? SMALL_RING_BYTES : RING_BYTES;
  segment->mapped_bytes = PAGE_BYTES + records + round_up(ranks * ranks * ring_stride(segment));
  struct stat status;
  if (fstat(file, &status) != 0 || ((size_t)status.st_size < segment->mapped_bytes &&
                                    ftruncate(file, (off_t)segment->mapped_bytes) != 0))
    return nccl_fail(ncclSystemError, "shared memory: %s", strerror(errno));
  uint8_t *at = mmap(NULL, segment->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED)
    return nccl_fail(ncclSystemError, "%zu bytes of shared memory: %s", segment->mapped_bytes,
                     strerror(errno));
  /* A forked child can't use CUDA, so neither the communicator. */
  madvise(at, segment->mapped_bytes, MADV_DONTFORK);
  segment->header = (struct segment_header *)(void *)at;
  segment->of_rank = (struct segment_rank *)(void *)(at + PAGE_BYTES);
  segment->rings = at + PAGE_BYTES + records;
  return ncclSuccess;
}

static ncclResult_t enter(struct segment *segment, int device) {
  struct segment_rank *record = &segment->of_rank[segment->self];
  uint32_t absent = SEGMENT_ABSENT;
  if (!atomic_compare_exchange_strong_explicit(&record->state, &absent, SEGMENT_JOINING,
                                               memory_order_acq_rel, memory_order_acquire))
    return nccl_fail(ncclInvalidArgument, "rank %d has joined twice", segment->self);
  segment->entered = true;
  record->device = device;
  if (!process_self(&record->process))
    return nccl_fail(ncclSystemError, "/proc is needed to see whether ranks live");
  atomic_store_explicit(&record->state, SEGMENT_PRESENT, memory_order_release);
  atomic_fetch_add_explicit(&segment->header->joined, 1, memory_order_acq_rel);
  segment_ring_bells(segment);
  return ncclSuccess;
}

static ncclResult_t wait_for_all(const struct segment *segment, const struct id_contents *id,
                                 const _Atomic bool *aborted) {
  struct segment_wait wait = segment_wait_begin(segment, aborted);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    uint32_t seen = segment_bell(segment);
    if (atomic_load_explicit(&segment->header->joined, memory_order_acquire) == segment->ranks)
      return ncclSuccess;
    if (segment_wait_looks(&wait)) {
      for (int rank = 0; rank < segment->ranks; rank++)
        if (segment_gone(segment, rank) &&
            atomic_load_explicit(&segment->header->joined, memory_order_acquire) != segment->ranks)
          return segment_fail_gone(segment, rank);
      if (!process_lives(&id->maker))
        return fail_maker_gone(id);
    }
    result = segment_wait_step(&wait, seen);
  }
  return result;
}

/* As on hardware; devices of different processes are different ones here. */
static ncclResult_t check_devices(const struct segment *segment) {
  const struct segment_rank *self = &segment->of_rank[segment->self];
  for (int rank = 0; rank < segment->ranks; rank++) {
    const struct segment_rank *other = &segment->of_rank[rank];
    if (rank != segment->self && other->process.number == self->process.number &&
        other->device == self->device)
      return nccl_fail(ncclInvalidUsage, "ranks %d and %d both use device %d", segment->self, rank,
                       self->device);
  }
  return ncclSuccess;
}

ncclResult_t segment_join(struct segment *segment, const ncclUniqueId *unique_id, int ranks,
                          int self, int device, const _Atomic bool *aborted) {
  struct id_contents id;
  memcpy(&id, unique_id, sizeof id);
  *segment = (struct segment){.ranks = ranks, .self = self};
  if (ranks < 1 || ranks > SEGMENT_MOST_RANKS || self < 0 || self >= ranks)
    return nccl_fail(ncclInvalidArgument, "rank %d of %d ranks; there may be 1 to %d", self, ranks,
                     SEGMENT_MOST_RANKS);
  int file = -1;
  ncclResult_t result = read_timeout(&segment->timeout_ns);
  if (result == ncclSuccess)
    result = open_maker(&id, &file);
  if (result == ncclSuccess)
    result = agree(file, &id, ranks);
  if (result == ncclSuccess)
    result = map(segment, file);
  if (file >= 0)
    close(file);
  if (result == ncclSuccess)
    result = enter(segment, device);
  if (result == ncclSuccess)
    result = wait_for_all(segment, &id, aborted);
  forget_id(id.nonce);
  if (result == ncclSuccess)
    result = check_devices(segment);
  return result;
}

void segment_close(struct segment *segment) {
  if (segment->header != NULL)
    munmap(segment->header, segment->mapped_bytes);
  *segment = (struct segment){.ranks = segment->ranks, .self = segment->self};
}
