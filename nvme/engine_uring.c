/* The ladder's upper rungs: an io_uring and the thread that alone uses it. The memory that the caller named is registered in
   pieces of 1 GiB, the file too; where the kernel refuses (locked memory, seccomp) the ring goes on without. Called by engine.c
   alone; engine_ring_wake may be called from any thread, all else from the ring's.

   The thread waits in the kernel for completions. A poll of an event descriptor is always among what it waits for, so a
   request that comes meanwhile wakes it; one that comes while it is awake, or all may be under way, is found without. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
  IOVEC_BYTES = 1 << 30,
  IOVECS_MOST = 1024,
  EVENT_DATA = ENGINE_DEPTH_MOST,
  GONE_MS = 30000 /* longer than drives take for what is under way */
};

struct engine_ring {
  struct io_uring ring;
  int event;
  int gone; /* a pipe whose other end only the ring has: hangs up when the kernel is done with it; -1: none */
  bool fixed_buffers, fixed_file;
  bool listening;     /* the poll of the event is in the ring */
  bool ready, failed; /* of setting up; under the engine's lock */
  bool broken;        /* the ring takes nothing more: every block ends with EIO */
  bool used[ENGINE_DEPTH_MOST];
  struct engine_block blocks[ENGINE_DEPTH_MOST];
  struct engine_over over;
  char why[160];
};

static unsigned flags_of(enum engine_rung rung) {
  if (rung == ENGINE_DEFER)
    return IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  return rung == ENGINE_COOP ? IORING_SETUP_COOP_TASKRUN : 0;
}

static void register_slab(const struct engine_config *config, struct engine_ring *ring) {
  const size_t count = (config->slab_bytes + IOVEC_BYTES - 1) / IOVEC_BYTES;
  if (!config->slab || !count || count > IOVECS_MOST)
    return;
  struct iovec *pieces = calloc(count, sizeof *pieces);
  if (!pieces)
    return;
  for (size_t i = 0; i < count; i++) {
    const size_t left = config->slab_bytes - i * IOVEC_BYTES;
    pieces[i].iov_base = (char *)config->slab + i * IOVEC_BYTES;
    pieces[i].iov_len = left < IOVEC_BYTES ? left : IOVEC_BYTES;
  }
  ring->fixed_buffers = io_uring_register_buffers(&ring->ring, pieces, (unsigned)count) == 0;
  free(pieces);
}

/* The file, and what tells that the ring is gone. */
static void register_files(const struct engine_config *config, struct engine_ring *ring) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC))
    ends[0] = ends[1] = -1;
  const int files[] = {config->file, ends[1]};
  ring->fixed_file = io_uring_register_files(&ring->ring, files, 2) == 0;
  ring->gone = ring->fixed_file ? ends[0] : -1;
  if (ends[0] >= 0 && ring->gone < 0)
    close(ends[0]);
  if (ends[1] >= 0)
    close(ends[1]);
}

/* On the ring's thread, since a ring with one issuer belongs to the thread that makes it. */
static bool set_up(struct engine *engine, struct engine_ring *ring) {
  const char *name = engine_rung_name(engine->rung);
  int error = io_uring_queue_init(2 * ENGINE_DEPTH_MOST, &ring->ring, flags_of(engine->rung));
  if (error) {
    snprintf(ring->why, sizeof ring->why, "%s: io_uring_setup: %s%s", name, strerror(-error),
             error == -EPERM ? " (kernel.io_uring_disabled, or a seccomp filter)" : "");
    return false;
  }
  /* A child that mapped the ring would hold it, and with it the registered file, whatever it closes. */
  error = io_uring_ring_dontfork(&ring->ring);
  if (error) {
    snprintf(ring->why, sizeof ring->why, "%s: the ring can't be kept from forked children: %s",
             name, strerror(-error));
    io_uring_queue_exit(&ring->ring);
    return false;
  }
  struct io_uring_probe *probe = io_uring_get_probe_ring(&ring->ring);
  const bool able = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                    io_uring_opcode_supported(probe, IORING_OP_WRITE);
  free(probe);
  ring->event = able ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  if (ring->event < 0) {
    snprintf(ring->why, sizeof ring->why, "%s: %s", name,
             able ? strerror(errno) : "this kernel's io_uring has no reads and writes (5.6 has)");
    io_uring_queue_exit(&ring->ring);
    return false;
  }
  register_files(&engine->config, ring);
  register_slab(&engine->config, ring);
  return true;
}

/* The number of the registered piece that holds all of the transfer; -1: none does. */
static int piece_of(const struct engine *engine, const char *buffer, size_t bytes) {
  const uintptr_t slab = (uintptr_t)engine->config.slab, at = (uintptr_t)buffer;
  if (!engine->ring->fixed_buffers || at < slab || bytes > engine->config.slab_bytes ||
      at - slab > engine->config.slab_bytes - bytes)
    return -1;
  const size_t first = (at - slab) / IOVEC_BYTES, last = (at - slab + bytes - 1) / IOVEC_BYTES;
  return first == last ? (int)first : -1;
}

/* Room there always is: the ring has twice the entries of what is in flight. */
static void put_transfer(const struct engine *engine, struct engine_ring *ring, unsigned slot) {
  const struct engine_block *block = &ring->blocks[slot];
  const struct engine_request *request = block->request;
  struct io_uring_sqe *entry = io_uring_get_sqe(&ring->ring);
  const size_t within = block->begin + block->from;
  char *buffer = (char *)request->buffer + within;
  const uint64_t offset = request->offset + within;
  const unsigned bytes = (unsigned)block->asked;
  const int file = ring->fixed_file ? 0 : engine->config.file;
  const int piece = piece_of(engine, buffer, block->asked);
  if (piece >= 0 && request->write)
    io_uring_prep_write_fixed(entry, file, buffer, bytes, offset, piece);
  else if (piece >= 0)
    io_uring_prep_read_fixed(entry, file, buffer, bytes, offset, piece);
  else if (request->write)
    io_uring_prep_write(entry, file, buffer, bytes, offset);
  else
    io_uring_prep_read(entry, file, buffer, bytes, offset);
  if (ring->fixed_file)
    io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, slot);
}

static void begin(struct engine *engine, struct engine_ring *ring, unsigned slot) {
  struct engine_block *block = &ring->blocks[slot];
  while (engine_prepare(engine, block, &ring->over)) {
    if (!ring->broken) {
      put_transfer(engine, ring, slot);
      return;
    }
    if (engine_settle(engine, block, -EIO, &ring->over))
      break;
  }
  ring->used[slot] = false;
}

static void poll_event(struct engine_ring *ring) {
  if (ring->listening || ring->broken)
    return;
  struct io_uring_sqe *entry = io_uring_get_sqe(&ring->ring);
  io_uring_prep_poll_add(entry, ring->event, POLLIN);
  io_uring_sqe_set_data64(entry, EVENT_DATA);
  ring->listening = true;
}

static void heard(struct engine_ring *ring) {
  uint64_t times;
  ring->listening = false;
  while (read(ring->event, &times, sizeof times) < 0 && errno == EINTR) {
  }
}

/* A ring that the kernel took away: what is under way and what comes ends with EIO, and not before the kernel has let go of the
   memory. */
static void give_up(struct engine *engine, struct engine_ring *ring) {
  ring->broken = true;
  io_uring_queue_exit(&ring->ring);
  if (ring->gone >= 0)
    poll(&(struct pollfd){.fd = ring->gone}, 1, GONE_MS);
  for (unsigned i = 0; i < ENGINE_DEPTH_MOST; i++)
    if (ring->used[i] && engine_settle(engine, &ring->blocks[i], -EIO, &ring->over))
      ring->used[i] = false;
}

static void collect(struct engine *engine, struct engine_ring *ring) {
  struct {
    uint64_t slot;
    int result;
  } ended[ENGINE_DEPTH_MOST + 1];
  unsigned count = 0, head;
  struct io_uring_cqe *completion;
  io_uring_for_each_cqe(&ring->ring, head, completion) {
    if (count == sizeof ended / sizeof *ended)
      break;
    ended[count].slot = completion->user_data;
    ended[count++].result = completion->res;
  }
  io_uring_cq_advance(&ring->ring, count);
  for (unsigned i = 0; i < count; i++) {
    const unsigned slot = (unsigned)ended[i].slot;
    if (slot == EVENT_DATA)
      heard(ring);
    else if (engine_settle(engine, &ring->blocks[slot], ended[i].result, &ring->over))
      ring->used[slot] = false;
    else
      begin(engine, ring, slot);
  }
}

/* Blocks from the queue into free slots. A block may end as it begins; its slot then takes the next. False: there is nothing
   left and nothing comes. Unless somebody is to be told, the thread is going to wait. */
static bool fill(struct engine *engine, struct engine_ring *ring) {
  unsigned slot = 0;
  const bool waits = !ring->over.first;
  while (slot < ENGINE_DEPTH_MOST) {
    if (ring->used[slot]) {
      slot++;
      continue;
    }
    pthread_mutex_lock(&engine->lock);
    const bool finished = engine_finished(engine);
    const bool taken = engine_take(engine, &ring->blocks[slot]);
    engine->dozing = waits && !taken;
    pthread_mutex_unlock(&engine->lock);
    if (finished)
      return false;
    if (!taken)
      break;
    ring->used[slot] = true;
    begin(engine, ring, slot);
  }
  return true;
}

/* Without a ring there is only the event to wait for. */
static void wait_for_event(struct engine_ring *ring) {
  struct pollfd event = {.fd = ring->event, .events = POLLIN};
  poll(&event, 1, -1);
  heard(ring);
}

/* Gives the ring what was put, and takes what has ended. */
static void enter(struct engine *engine, struct engine_ring *ring, bool wait) {
  const int result =
      wait ? io_uring_submit_and_wait(&ring->ring, 1) : io_uring_submit_and_get_events(&ring->ring);
  if (result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY)
    collect(engine, ring);
  else
    give_up(engine, ring);
}

/* Before each `done` the drive has all it may have; it is waited for when nobody else is to be told. */
static void serve(struct engine *engine, struct engine_ring *ring) {
  while (fill(engine, ring)) {
    const bool told = ring->over.first;
    if (ring->broken) {
      if (!told)
        wait_for_event(ring);
    } else {
      poll_event(ring);
      enter(engine, ring, !told);
    }
    if (told)
      (void)engine_tell(engine, &ring->over);
  }
}

static void *ring_main(void *argument) {
  struct engine *engine = argument;
  struct engine_ring *ring = engine->ring;
  pthread_setname_np(pthread_self(), "offload-nvme");
  const bool good = set_up(engine, ring);
  pthread_mutex_lock(&engine->lock);
  ring->ready = good;
  ring->failed = !good;
  pthread_cond_signal(&engine->state);
  pthread_mutex_unlock(&engine->lock);
  if (!good)
    return NULL;
  serve(engine, ring);
  if (!ring->broken) {
    /* The kernel takes a ring apart some time after it is closed; the file's space is to be free when the engine is closed. */
    if (ring->fixed_file)
      io_uring_unregister_files(&ring->ring);
    io_uring_queue_exit(&ring->ring);
  }
  return NULL;
}

bool engine_ring_open(struct engine *engine, char *why, size_t why_bytes) {
  struct engine_ring *ring = calloc(1, sizeof *ring);
  engine->ring = ring;
  if (!ring) {
    snprintf(why, why_bytes, "no memory for a ring");
    return false;
  }
  const int error = engine_thread(&engine->threads[0], ring_main, engine);
  if (error) {
    snprintf(why, why_bytes, "%s: its thread can't be started: %s", engine_rung_name(engine->rung),
             strerror(error));
  } else {
    pthread_mutex_lock(&engine->lock);
    while (!ring->ready && !ring->failed)
      pthread_cond_wait(&engine->state, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    if (ring->ready)
      return true;
    pthread_join(engine->threads[0], NULL);
    snprintf(why, why_bytes, "%s", ring->why);
  }
  free(ring);
  engine->ring = NULL;
  return false;
}

void engine_ring_wake(struct engine *engine) {
  const uint64_t once = 1;
  while (write(engine->ring->event, &once, sizeof once) < 0 && errno == EINTR) {
  }
}

void engine_ring_close(struct engine *engine) {
  pthread_mutex_lock(&engine->lock);
  engine->closing = true;
  engine_ring_wake(engine);
  pthread_mutex_unlock(&engine->lock);
  pthread_join(engine->threads[0], NULL);
  close(engine->ring->event);
  if (engine->ring->gone >= 0)
    close(engine->ring->gone);
  free(engine->ring);
}

void engine_ring_forked(struct engine *engine) {
  if (!engine->ring->broken)
    close(engine->ring->ring.ring_fd);
  close(engine->ring->event);
  if (engine->ring->gone >= 0)
    close(engine->ring->gone);
}

void engine_ring_registered(const struct engine *engine, bool *fixed_buffers, bool *fixed_file) {
  *fixed_buffers = engine->ring->fixed_buffers;
  *fixed_file = engine->ring->fixed_file;
}
