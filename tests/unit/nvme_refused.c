/* nvme/engine where the kernel refuses something that it mostly gives: registered memory beyond the limit of locked memory, and the
   ring itself while it is in use. Each in a child, since neither can be taken back. And the memory of huge pages. */
#define _GNU_SOURCE
#include "nvme/engine.h"
#include "nvme_support.h"
#include "tests/lib/tap.h"
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* The slab and a ring of its own take less than the least limit of locked memory that systems come with, MEMLOCK. */
enum { BLOCK = 1 << 14, SLAB_BYTES = 2 * BLOCK, MEMLOCK = 1 << 16, WAIT_S = 20 };

static const enum engine_rung rings[] = {ENGINE_DEFER, ENGINE_COOP, ENGINE_PLAIN};
static int file;
static unsigned char *slab; /* a block to write from, a block to read to */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static unsigned open_requests;

static void done(struct engine_request *request) {
  (void)request;
  pthread_mutex_lock(&lock);
  open_requests--;
  pthread_cond_signal(&over);
  pthread_mutex_unlock(&lock);
}

static void submit(struct engine *engine, struct engine_request *request, bool write,
                   uint64_t offset) {
  *request = (struct engine_request){.write = write,
                                     .offset = offset,
                                     .buffer = slab + (write ? 0 : BLOCK),
                                     .bytes = BLOCK,
                                     .done = done};
  pthread_mutex_lock(&lock);
  open_requests++;
  pthread_mutex_unlock(&lock);
  engine_submit(engine, request);
}

static void wait_all(void) {
  pthread_mutex_lock(&lock);
  while (open_requests)
    pthread_cond_wait(&over, &lock);
  pthread_mutex_unlock(&lock);
}

static struct engine_request once(struct engine *engine, bool write, uint64_t offset) {
  struct engine_request request;
  submit(engine, &request, write, offset);
  wait_all();
  return request;
}

static size_t slab_bytes = SLAB_BYTES;

static struct engine *start(enum engine_rung rung, int of) {
  const struct engine_config config = {
      .file = of,
      .rung = rung,
      .only_this_rung = rung != ENGINE_AUTO,
      .depth = 4,
      .block_bytes = BLOCK,
      .slab = slab,
      .slab_bytes = slab_bytes,
  };
  char why[200] = "";
  struct engine *engine = engine_open(&config, why, sizeof why);
  if (!engine)
    printf("# %s\n", why);
  return engine;
}

static bool moves(struct engine *engine, unsigned char value) {
  memset(slab, value, BLOCK);
  memset(slab + BLOCK, 0, BLOCK);
  return !once(engine, true, BLOCK).error && !once(engine, false, BLOCK).error &&
         !memcmp(slab, slab + BLOCK, BLOCK);
}

/* The status of a child that runs it, 0 when everything was as it must be. */
static int in_child(int (*test)(enum engine_rung), enum engine_rung rung) {
  fflush(stdout);
  const pid_t child = fork();
  if (!child) {
    alarm(WAIT_S);
    _exit(test(rung));
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

/* This thread, and those it makes, may lock so much. */
static bool lock_most(rlim_t bytes) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct sets[2];
  if (syscall(SYS_capget, &header, sets))
    return false;
  sets[0].effective &= ~(1u << CAP_IPC_LOCK);
  sets[0].permitted &= ~(1u << CAP_IPC_LOCK);
  return !syscall(SYS_capset, &header, sets) &&
         !setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){bytes, bytes});
}

static int memory_refused(enum engine_rung rung) {
  struct engine *engine = start(rung, file);
  if (!engine || !engine_stats(engine).fixed_buffers || !moves(engine, 1))
    return 1; /* it is registered where it may be */
  engine_close(engine);
  /* The ring's own memory may count, so that some must be left for it. */
  slab_bytes = 4 * MEMLOCK;
  slab = mmap(NULL, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slab == MAP_FAILED || !lock_most(MEMLOCK))
    return 2;
  engine = start(rung, file);
  if (!engine)
    return 3;
  const struct engine_stats stats = engine_stats(engine);
  if (stats.rung != rung || stats.fixed_buffers)
    return 4;
  if (!moves(engine, 2))
    return 5;
  engine_close(engine);
  return 0;
}

static int nothing_locked(enum engine_rung rung) {
  struct engine *engine = lock_most(0) ? start(rung, file) : NULL;
  if (!engine || engine_stats(engine).fixed_buffers || !moves(engine, 4))
    return 1;
  engine_close(engine);
  return 0;
}

static bool failed(const struct engine_request *request) {
  return request->error == EIO && request->failed_at == request->offset;
}

static int ring_breaks(enum engine_rung rung) {
  const unsigned before = descriptors();
  struct engine *engine = start(rung, file);
  if (!engine || !moves(engine, 3))
    return 1;
  if (!refuse_call(__NR_io_uring_enter))
    return 2;
  for (int write = 1; write >= 0; write--) {
    const struct engine_request request = once(engine, write, BLOCK);
    if (!failed(&request))
      return 3;
  }
  if (engine_stats(engine).read_bytes != BLOCK || engine_stats(engine).written_bytes != BLOCK)
    return 4;
  engine_close(engine);
  return descriptors() == before ? 0 : 5;
}

/* A pipe stands for a drive that is slow: nothing comes until it is written to. */
static int breaks_under_way(enum engine_rung rung) {
  int ends[2];
  struct engine_request requests[2];
  if (pipe(ends) || write(ends[1], "", 1) != 1)
    return 1;
  memset(slab, 0, SLAB_BYTES);
  struct engine *engine = start(rung, ends[0]);
  if (!engine)
    return 2;
  submit(engine, &requests[0], false, 0);
  while (!engine_stats(engine).resubmitted)
    usleep(1000);
  usleep(20000); /* the rest of it is under way now */
  if (!refuse_call(__NR_io_uring_enter))
    return 3;
  submit(engine, &requests[1], false, 4 * BLOCK);
  wait_all();
  if (requests[0].error != EIO || requests[0].failed_at != 1 || !failed(&requests[1]))
    return 4;
  memset(slab, 0xee, SLAB_BYTES);
  if (write(ends[1], slab, BLOCK) != BLOCK)
    return 5;
  memset(slab, 0x11, SLAB_BYTES);
  usleep(20000);
  for (size_t i = 0; i < SLAB_BYTES; i++)
    if (slab[i] != 0x11)
      return 6;
  engine_close(engine);
  return 0;
}

/* What the kernel says of the mapping that begins there. */
static bool has_flag(const void *address, const char *flag) {
  FILE *maps = fopen("/proc/self/smaps", "re");
  char line[512];
  bool here = false, has = false;
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long begin, end;
    if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
      here = begin <= (uintptr_t)address && (uintptr_t)address < end;
    else if (here && !strncmp(line, "VmFlags:", 8))
      has = strstr(line, flag) != NULL;
  }
  if (maps)
    fclose(maps);
  return has;
}

static void slab_memory(void) {
  unsigned char *huge = engine_slab_map(SLAB_BYTES);
  if (!tap_ok(huge && (uintptr_t)huge % (2 << 20) == 0, "a slab begins at a huge page"))
    return;
  if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
    tap_skip("a slab asks for huge pages", "this kernel has none");
  else
    tap_ok(has_flag(huge, " hg"), "a slab asks for huge pages");
  tap_ok(has_flag(huge, " dc"), "a forked child has no slab");
  char *odd = engine_slab_map(5000);
  tap_ok(odd != NULL, "a slab of any size is had");
  if (odd)
    memset(odd, 1, 5000);
  engine_slab_unmap(odd, 5000);
  engine_slab_unmap(huge, SLAB_BYTES);
  engine_slab_unmap(NULL, 5000);
  tap_ok(!engine_slab_map(0) && !engine_slab_map(SIZE_MAX), "none of 0 bytes, or of all there are");
}

int main(int count, char **words) {
  char path[4096];
  (void)count;
  file = data_file(words[0], path, sizeof path);
  /* small pages: of a huge one all would count as locked */
  slab = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (file < 0 || slab == MAP_FAILED)
    return tap_ok(false, "a file %s and its memory: %s", path, strerror(errno)), tap_done();
  slab_memory();
  for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
    const char *name = engine_rung_name(rings[i]);
    int status = in_child(memory_refused, rings[i]);
    tap_ok(status == 0,
           "%s: where the limit refuses to register memory the ring goes on without (status %d)",
           name, status);
    status = in_child(ring_breaks, rings[i]);
    tap_ok(status == 0, "%s: a ring that breaks ends what comes with EIO (status %d)", name,
           status);
    status = in_child(breaks_under_way, rings[i]);
    tap_ok(status == 0,
           "%s: what is under way as a ring breaks ends with EIO, the memory untouched after "
           "(status %d)",
           name, status);
  }
  const int status = in_child(nothing_locked, ENGINE_AUTO);
  tap_ok(status == 0,
         "where no memory may be locked the ladder has a rung all the same (status %d)", status);
  return tap_done();
}
