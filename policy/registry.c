/* See registry.h. One mutex of the process's guards what is below; under it, among processes, the ledger's lock for joining and
   claiming. Slots are written by their owner alone and read without a lock: a sequence number tells whether a copy is whole, and one
   whose owner was stopped in the middle is taken as it is.

   Record locks belong to the process: they die with it, a fork has none of them, and closing any descriptor of the file drops them
   all. So it is opened once and kept; should the program have closed it (as daemons do), the slot is taken anew. So it is when the
   file was cut short, whose pages would end whoever touches them: nothing mapped is touched but after a look at the file. */
#define _GNU_SOURCE
#include "registry.h"
#include "leaf.h"
#include "registry_file.h"
#include "report_file.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_NS = 200000000, FIRST_PAUSE_NS = 20000, LONGEST_PAUSE_NS = 2000000, COPIES = 1000 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static struct {
  struct registry_file *_Atomic file; /* mapped; NULL: not joined */
  int descriptor, slot;
  dev_t device;
  ino_t inode;
  struct registry_entry entry; /* what the slot says */
} own = {.descriptor = -1};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void registry_root(const char *directory) {
  root = directory;
}

/* ---- slots ---- */

static uint64_t load(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void write_slot(struct registry_slot *slot, const struct registry_entry *entry) {
  union {
    struct registry_entry entry;
    uint64_t words[sizeof slot->words / 8];
  } copy = {.words = {0}};
  copy.entry = *entry;
  const uint64_t odd = load(&slot->sequence) | 1; /* a dead owner may have left it odd */
  __atomic_store_n(&slot->sequence, odd, __ATOMIC_RELAXED);
  for (size_t i = 0; i < sizeof slot->words / 8; i++) /* release: who sees a word sees odd */
    __atomic_store_n(&slot->words[i], copy.words[i], __ATOMIC_RELEASE);
  __atomic_store_n(&slot->sequence, odd + 1, __ATOMIC_RELEASE);
}

static void end_text(char *text, size_t bytes) {
  text[bytes - 1] = 0;
}

static void read_slot(const struct registry_slot *slot, struct registry_entry *entry) {
  union {
    struct registry_entry entry;
    uint64_t words[sizeof slot->words / 8];
  } copy;
  for (unsigned tries = 0; tries < COPIES; tries++) {
    const uint64_t before = __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < sizeof slot->words / 8; i++) /* acquire: the sequence is read after it */
      copy.words[i] = __atomic_load_n(&slot->words[i], __ATOMIC_ACQUIRE);
    if (!(before & 1) && load(&slot->sequence) == before)
      break;
  }
  *entry = copy.entry;
  end_text(entry->gpu, sizeof entry->gpu);
  end_text(entry->program, sizeof entry->program);
  end_text(entry->state.way, sizeof entry->state.way);
  end_text(entry->state.mode, sizeof entry->state.mode);
  end_text(entry->state.note, sizeof entry->state.note);
}

/* Whether anybody else has it: asked of the kernel only where something was written. */
static bool other_lives(const struct registry_file *file, int descriptor, int slot, int except) {
  return slot != except && load(&file->slots[slot].words[0]) != 0 &&
         registry_file_locked(descriptor, REGISTRY_LOCKS_AT + slot, 1);
}

static void note_change(struct registry_file *file) {
  (void)__atomic_fetch_add(&file->header.changes, 1, __ATOMIC_RELAXED);
}

/* ---- the file ---- */

/* Bounded: whoever has it may be stopped. */
static bool lock_ledger(int descriptor) {
  const uint64_t begin = now_ns();
  for (long pause = FIRST_PAUSE_NS; !registry_file_lock(descriptor, REGISTRY_LEDGER_AT, true);) {
    if ((errno != EAGAIN && errno != EACCES) || now_ns() - begin > WAIT_NS)
      return false;
    nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    pause = pause < LONGEST_PAUSE_NS ? 2 * pause : pause;
  }
  return true;
}

static void unlock_ledger(int descriptor) {
  (void)registry_file_lock(descriptor, REGISTRY_LEDGER_AT, false);
}

static void say(char *problem, size_t bytes, const char *text) {
  if (problem && bytes)
    snprintf(problem, bytes, "%s", text);
}

static struct registry_file *map(int descriptor, int protection) {
  void *memory = mmap(NULL, sizeof(struct registry_file), protection, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

/* Of a file that is open, with the ledger's lock: what isn't of our layout and nobody has is begun anew, and what was emptied, whoever
   has it. */
static struct registry_file *take_file(int descriptor, char *problem, size_t bytes) {
  struct stat at;
  if (!registry_file_good(descriptor)) {
    const bool emptied = file_look(descriptor, "", AT_EMPTY_PATH, &at) && !at.st_size;
    if (!emptied && registry_file_locked(descriptor, REGISTRY_LOCKS_AT, 0)) {
      say(problem, bytes, "its file is in use by another release of liboffload");
      return NULL;
    }
    if (!registry_file_init(descriptor)) {
      say(problem, bytes, "its file can't be written");
      return NULL;
    }
  }
  struct registry_file *file = map(descriptor, PROT_READ | PROT_WRITE);
  if (!file)
    say(problem, bytes, "its file can't be mapped");
  else
    (void)madvise(file, sizeof *file, MADV_DONTFORK); /* a child has no business in it */
  return file;
}

static bool take_slot(struct registry_file *file, int descriptor) {
  for (int i = 0; i < REGISTRY_SLOTS; i++)
    if (registry_file_lock(descriptor, REGISTRY_LOCKS_AT + i, true)) {
      own.slot = i;
      write_slot(&file->slots[i], &own.entry);
      note_change(file);
      return true;
    }
  return false;
}

/* Under the mutex; own.entry is what the slot shall say. */
static bool join(char *problem, size_t bytes) {
  struct stat at;
  char why[640] = "";
  int descriptor = registry_file_open(root, true, why, sizeof why);
  if (descriptor < 0) {
    say(problem, bytes, why);
    return false;
  }
  /* Away from the numbers that programs close and reuse; before any lock, since closing drops them. */
  enum { OUT_OF_THE_WAY = 512 };
  const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
  if (high >= 0) {
    close(descriptor);
    descriptor = high;
  }
  if (!lock_ledger(descriptor)) {
    say(problem, bytes, "another process keeps its file locked");
    close(descriptor);
    return false;
  }
  struct registry_file *file = take_file(descriptor, problem, bytes);
  const bool taken =
      file && file_look(descriptor, "", AT_EMPTY_PATH, &at) && take_slot(file, descriptor);
  unlock_ledger(descriptor);
  if (file && !taken) {
    say(problem, bytes, "all its slots are taken");
    (void)munmap(file, sizeof *file);
  }
  if (!taken) {
    close(descriptor);
    return false;
  }
  own.descriptor = descriptor;
  own.device = at.st_dev;
  own.inode = at.st_ino;
  atomic_store_explicit(&own.file, file, memory_order_release);
  return true;
}

/* Under the mutex. The descriptor is still the file's. */
static bool still_ours(struct stat *at) {
  return file_look(own.descriptor, "", AT_EMPTY_PATH, at) && at->st_dev == own.device &&
         at->st_ino == own.inode;
}

static bool is_whole(const struct stat *at) {
  return at->st_size >= (off_t)sizeof(struct registry_file);
}

static void let_go(bool ours) {
  (void)munmap(own.file, sizeof *own.file);
  own.file = NULL;
  if (ours)
    close(own.descriptor);
  own.descriptor = -1;
}

/* Under the mutex. The descriptor is still the file's, and the file still what others find, and whole: a program may close what it
   doesn't know, an administrator may clear /dev/shm. Else joins anew. */
static bool still_joined(void) {
  struct stat at;
  if (!own.file)
    return false;
  const bool ours = still_ours(&at);
  if (ours && at.st_nlink && is_whole(&at))
    return true;
  let_go(ours);
  return join(NULL, 0);
}

/* ---- in and out ---- */

bool registry_join(const struct registry_entry *entry, char *problem, size_t problem_bytes) {
  pthread_mutex_lock(&mutex);
  bool joined = own.file;
  if (!joined) {
    struct registry_entry whole = *entry;
    if (whole.device < 0 && *own.entry.gpu) { /* it was told before */
      whole.device = own.entry.device;
      memcpy(whole.gpu, own.entry.gpu, sizeof whole.gpu);
    }
    own.entry = whole;
    own.entry.pid = (int32_t)getpid();
    own.entry.started_ns = own.entry.updated_ns = now_ns();
    joined = join(problem, problem_bytes);
  }
  pthread_mutex_unlock(&mutex);
  return joined;
}

bool registry_joined(void) {
  return atomic_load_explicit(&own.file, memory_order_relaxed);
}

void registry_forked(void) {
  if (own.file)
    close(own.descriptor); /* the locks are the parent's, and stay */
  own.file = NULL;
  own.descriptor = -1;
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* As the process ends, a slot whose lock can't be had is left as it is: the kernel lets go of it. */
void registry_leave(void) {
  if (!leaf_lock(&mutex))
    return;
  if (own.file) {
    struct stat at;
    const bool ours = still_ours(&at); /* else the slot may be another's by now */
    if (ours && is_whole(&at)) {
      write_slot(&own.file->slots[own.slot], &(struct registry_entry){0});
      note_change(own.file);
    }
    let_go(ours);
  }
  pthread_mutex_unlock(&mutex);
}

/* ---- claims ---- */

static uint64_t memory_of(const struct registry_claim *claim) {
  return claim->host_bytes + claim->staging_bytes;
}

static void publish(void) {
  own.entry.updated_ns = now_ns();
  write_slot(&own.file->slots[own.slot], &own.entry);
}

static void least(uint64_t *of, uint64_t bytes) {
  if (bytes && (!*of || bytes < *of))
    *of = bytes;
}

static void add_claim(struct registry_total *total, const struct registry_claim *claim) {
  total->state_bytes += claim->host_bytes;
  total->all_bytes += memory_of(claim);
  total->pinned_bytes += claim->pinned_bytes;
}

static void add(struct registry_sums *sums, const struct registry_entry *entry) {
  const bool group = own.entry.memory_group && entry->memory_group == own.entry.memory_group;
  const bool job = own.entry.job && entry->job == own.entry.job;
  sums->live++;
  sums->job_live += job;
  sums->job_group_live += job && entry->memory_group == own.entry.memory_group;
  sums->threads += entry->claim.threads;
  add_claim(&sums->machine, &entry->claim);
  if (group)
    add_claim(&sums->group, &entry->claim);
  if (entry == &own.entry)
    return;
  least(&sums->machine.room_bytes, entry->room.machine_bytes);
  if (group)
    least(&sums->group.room_bytes, entry->room.group_bytes);
}

/* Of all live ranks. `tidy`: with the ledger's lock; what a dead one left is taken away, since nobody else can be taking its slot. */
static void sum(struct registry_sums *sums, bool tidy) {
  *sums = (struct registry_sums){.own = own.entry.claim};
  add(sums, &own.entry);
  for (int i = 0; i < REGISTRY_SLOTS; i++) {
    struct registry_entry entry;
    if (i == own.slot || !load(&own.file->slots[i].words[0]))
      continue;
    if (!other_lives(own.file, own.descriptor, i, own.slot)) {
      if (tidy) {
        write_slot(&own.file->slots[i], &(struct registry_entry){0});
        note_change(own.file);
      }
      continue;
    }
    read_slot(&own.file->slots[i], &entry);
    add(sums, &entry);
  }
}

void registry_sum(struct registry_sums *sums) {
  *sums = (struct registry_sums){0};
  if (!leaf_lock(&mutex))
    return;
  if (still_joined()) {
    const bool tidy = registry_file_lock(own.descriptor, REGISTRY_LEDGER_AT, true);
    sum(sums, tidy);
    if (tidy)
      unlock_ledger(own.descriptor);
  }
  pthread_mutex_unlock(&mutex);
}

static uint64_t less(uint64_t bytes, uint64_t taken) {
  return bytes > taken ? bytes - taken : 0;
}

/* What claims as they are leave to this rank of a bound, beyond what it has of it. */
static uint64_t left_of(const struct registry_bound *bound, const struct registry_total *total,
                        bool state) {
  return state ? less(bound->state_bytes, total->state_bytes)
               : less(bound->all_bytes, total->all_bytes);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Under the ledger's lock. */
static bool fits(const struct registry_claim *claim, const struct registry_bounds *bounds,
                 uint64_t *left) {
  const struct registry_claim *had = &own.entry.claim;
  struct registry_sums sums;
  sum(&sums, true);
  const bool group = own.entry.memory_group;
  uint64_t all = left_of(&bounds->machine, &sums.machine, false),
           state = left_of(&bounds->machine, &sums.machine, true);
  if (group) {
    all = smaller(all, left_of(&bounds->group, &sums.group, false));
    state = smaller(state, left_of(&bounds->group, &sums.group, true));
  }
  const uint64_t more_all = less(memory_of(claim), memory_of(had)),
                 more_state = less(claim->host_bytes, had->host_bytes);
  *left = more_state ? smaller(state, all) : all;
  return more_all <= all && more_state <= state;
}

enum registry_outcome registry_claim(const struct registry_claim *claim,
                                     const struct registry_bounds *bounds, uint64_t *left_bytes) {
  enum registry_outcome outcome = REGISTRY_NONE;
  *left_bytes = 0;
  pthread_mutex_lock(&mutex);
  if (still_joined()) {
    const struct registry_claim *had = &own.entry.claim;
    const bool no_more = claim->host_bytes <= had->host_bytes && memory_of(claim) <= memory_of(had);
    const bool locked = !no_more && lock_ledger(own.descriptor);
    if (no_more || locked)
      outcome = no_more || fits(claim, bounds, left_bytes) ? REGISTRY_CLAIMED : REGISTRY_FULL;
    if (outcome == REGISTRY_CLAIMED) {
      own.entry.claim = *claim;
      publish();
    }
    if (locked)
      unlock_ledger(own.descriptor);
  }
  pthread_mutex_unlock(&mutex);
  return outcome;
}

void registry_pinned(uint64_t bytes) {
  pthread_mutex_lock(&mutex);
  own.entry.claim.pinned_bytes = bytes;
  if (still_joined())
    publish();
  pthread_mutex_unlock(&mutex);
}

void registry_found(const struct registry_room *room, uint64_t memory_group) {
  pthread_mutex_lock(&mutex);
  own.entry.room = *room;
  own.entry.memory_group = memory_group;
  if (still_joined())
    publish();
  pthread_mutex_unlock(&mutex);
}

void registry_device(int32_t device, const char *gpu) {
  pthread_mutex_lock(&mutex);
  own.entry.device = device;
  snprintf(own.entry.gpu, sizeof own.entry.gpu, "%s", gpu);
  if (still_joined())
    publish();
  pthread_mutex_unlock(&mutex);
}

void registry_show(const struct registry_state *state) {
  pthread_mutex_lock(&mutex);
  own.entry.state = *state;
  if (still_joined())
    publish();
  pthread_mutex_unlock(&mutex);
}

/* ---- for whoever looks ---- */

static size_t list(const struct registry_file *file, int descriptor, int except,
                   struct registry_entry *entries, size_t most, size_t count) {
  for (int i = 0; i < REGISTRY_SLOTS && count < most; i++)
    if (other_lives(file, descriptor, i, except)) {
      read_slot(&file->slots[i], &entries[count]);
      count += entries[count].pid != 0;
    }
  return count;
}

/* Without a slot the file may be closed again: there is no lock to lose. */
static size_t list_from_outside(struct registry_entry *entries, size_t most) {
  char problem[640];
  size_t count = 0;
  const int descriptor = registry_file_open(root, false, problem, sizeof problem);
  if (descriptor < 0)
    return 0;
  struct registry_file *file = registry_file_good(descriptor) ? map(descriptor, PROT_READ) : NULL;
  if (file) {
    count = list(file, descriptor, -1, entries, most, 0);
    (void)munmap(file, sizeof *file);
  }
  close(descriptor);
  return count;
}

size_t registry_list(struct registry_entry *entries, size_t most) {
  size_t count = 0;
  if (!leaf_lock(&mutex))
    return 0;
  if (!own.file) {
    count = list_from_outside(entries, most);
  } else if (most && still_joined()) {
    entries[count++] = own.entry;
    count = list(own.file, own.descriptor, own.slot, entries, most, count);
  }
  pthread_mutex_unlock(&mutex);
  return count;
}

uint32_t registry_changes(void) {
  if (!leaf_lock(&mutex))
    return 0;
  const uint32_t changes =
      still_joined() ? __atomic_load_n(&own.file->header.changes, __ATOMIC_RELAXED) : 0;
  pthread_mutex_unlock(&mutex);
  return changes;
}
