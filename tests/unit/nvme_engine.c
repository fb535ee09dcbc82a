/* nvme/engine: every rung of its ladder moves the same bytes, and whatever the kernel may answer is judged the same on each.
   The file lies in the build's folder, without O_DIRECT where that is refused. */
#define _GNU_SOURCE
#include "nvme/engine.h"
#include "nvme_support.h"
#include "tests/lib/tap.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
  BLOCK = 1 << 16,
  LEAST = 1 << 12,
  FILE_BYTES = 4 << 20,
  SLAB_BYTES = 2 * FILE_BYTES + BLOCK,
  WAIT_S = 20
};

static const enum engine_rung rungs[] = {ENGINE_DEFER, ENGINE_COOP, ENGINE_PLAIN, ENGINE_THREADS};
static int file;
static unsigned char *slab; /* the first half is written from, the second read to */

struct waited {
  pthread_mutex_t lock;
  pthread_cond_t over;
  unsigned open;
  bool signals_blocked;
  char thread[16];
};

static void done(struct engine_request *request) {
  struct waited *waited = request->context;
  sigset_t mask;
  pthread_mutex_lock(&waited->lock);
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  waited->signals_blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGCHLD);
  pthread_getname_np(pthread_self(), waited->thread, sizeof waited->thread);
  waited->open--;
  pthread_cond_signal(&waited->over);
  pthread_mutex_unlock(&waited->lock);
}

static void submit(struct engine *engine, struct engine_request *request, struct waited *waited,
                   bool write, size_t at, size_t bytes) {
  *request = (struct engine_request){
      .write = write,
      .offset = at,
      .buffer = slab + (write ? 0 : FILE_BYTES) + at % FILE_BYTES,
      .bytes = bytes,
      .done = done,
      .context = waited,
  };
  pthread_mutex_lock(&waited->lock);
  waited->open++;
  pthread_mutex_unlock(&waited->lock);
  engine_submit(engine, request);
}

static void wait_all(struct waited *waited) {
  alarm(WAIT_S);
  pthread_mutex_lock(&waited->lock);
  while (waited->open)
    pthread_cond_wait(&waited->over, &waited->lock);
  pthread_mutex_unlock(&waited->lock);
  alarm(0);
}

#define WAITED(name)                                                                               \
  struct waited name = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER}

/* One transfer from its beginning to its end. */
static struct engine_request once(struct engine *engine, bool write, size_t at, size_t bytes) {
  WAITED(waited);
  struct engine_request request;
  submit(engine, &request, &waited, write, at, bytes);
  wait_all(&waited);
  return request;
}

static void fill(unsigned seed) {
  for (size_t i = 0; i < FILE_BYTES; i += 4) {
    const unsigned value = (unsigned)i * 2654435761u + seed;
    memcpy(slab + i, &value, 4);
  }
  memset(slab + FILE_BYTES, 0xee, FILE_BYTES);
}

static bool same(void) {
  return !memcmp(slab, slab + FILE_BYTES, FILE_BYTES);
}

static struct engine *start_blocks(enum engine_rung rung, struct faults *faults,
                                   size_t block_bytes) {
  const struct engine_config config = {
      .file = file,
      .rung = rung,
      .only_this_rung = true,
      .depth = 8,
      .block_bytes = block_bytes,
      .slab = slab,
      .slab_bytes = SLAB_BYTES,
      .faults = faults,
  };
  char why[200] = "";
  struct engine *engine = engine_open(&config, why, sizeof why);
  if (!engine)
    printf("# %s\n", why);
  return engine;
}

static struct engine *start(enum engine_rung rung, struct faults *faults) {
  return start_blocks(rung, faults, BLOCK);
}

/* The file as the engine left it, past the engine. */
static bool file_is_slab(void) {
  static unsigned char bytes[FILE_BYTES] __attribute__((aligned(4096)));
  return pread(file, bytes, FILE_BYTES, 0) == FILE_BYTES && !memcmp(bytes, slab, FILE_BYTES);
}

static void moves(enum engine_rung rung, const char *name) {
  struct engine *engine = start(rung, NULL);
  if (!tap_ok(engine != NULL, "%s: the rung opens", name))
    return;
  fill((unsigned)rung);
  WAITED(waited);
  struct engine_request request;
  submit(engine, &request, &waited, true, 0, FILE_BYTES);
  wait_all(&waited);
  tap_ok(!request.error && file_is_slab(), "%s: what was written is in the file", name);
  tap_ok(waited.signals_blocked && !strcmp(waited.thread, "offload-nvme"),
         "%s: the end is told on a named thread that blocks all signals", name);
  tap_ok(!once(engine, false, 0, FILE_BYTES).error && same(),
         "%s: what is read is what was written", name);
  const struct engine_stats stats = engine_stats(engine);
  tap_ok(stats.rung == rung && stats.read_bytes == FILE_BYTES && stats.written_bytes == FILE_BYTES,
         "%s: every byte is counted once", name);
  tap_ok(!once(engine, true, 0, 0).error, "%s: nothing is written at once", name);
  engine_close(engine);
}

/* Two threads, each with a half of the file, requests of sizes that cut blocks unevenly. */
enum { REQUESTS = 32, PART = FILE_BYTES / 2 / REQUESTS };
struct submitter {
  struct engine *engine;
  size_t at;
  unsigned errors;
};

static void *submit_half(void *argument) {
  struct submitter *submitter = argument;
  for (int write = 1; write >= 0; write--) {
    WAITED(waited);
    struct engine_request requests[REQUESTS];
    for (size_t i = 0; i < REQUESTS; i++)
      submit(submitter->engine, &requests[i], &waited, write, submitter->at + i * PART, PART);
    wait_all(&waited);
    for (size_t i = 0; i < REQUESTS; i++)
      submitter->errors += requests[i].error != 0;
  }
  return NULL;
}

static void two_submit(enum engine_rung rung, const char *name) {
  struct engine *engine = start(rung, NULL);
  struct submitter halves[2] = {{engine, 0, 0}, {engine, FILE_BYTES / 2, 0}};
  pthread_t threads[2];
  fill(100 + (unsigned)rung);
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, submit_half, &halves[i]);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  tap_ok(!halves[0].errors && !halves[1].errors && same() && file_is_slab(),
         "%s: two threads submit side by side", name);
  engine_close(engine);
}

/* Whole writes and reads while the fault layer interferes: the bytes must be there all the same. */
static void endures(enum engine_rung rung, const char *name, const char *fault, bool resubmits) {
  struct faults faults;
  char why[200];
  if (!faults_parse(fault, &faults, why, sizeof why)) {
    tap_ok(false, "%s: %s is understood (%s)", name, fault, why);
    return;
  }
  struct engine *engine = start(rung, &faults);
  fill(200 + (unsigned)rung);
  const int wrote = once(engine, true, 0, FILE_BYTES).error;
  const bool there = file_is_slab();
  const int got = once(engine, false, 0, FILE_BYTES).error;
  const struct engine_stats stats = engine_stats(engine);
  tap_ok(!wrote && !got && there && same() && (resubmits ? stats.resubmitted : stats.retried) > 0,
         "%s: %s loses no byte", name, fault);
  engine_close(engine);
}

static void fails(enum engine_rung rung, const char *name, const char *fault, bool write,
                  int error) {
  struct faults faults;
  char why[200];
  if (!faults_parse(fault, &faults, why, sizeof why)) {
    tap_ok(false, "%s: %s is understood (%s)", name, fault, why);
    return;
  }
  struct engine *engine = start(rung, &faults);
  fill(300);
  const struct engine_request request = once(engine, write, BLOCK, FILE_BYTES - BLOCK);
  tap_ok(request.error == error && request.failed_at >= BLOCK && request.failed_at < FILE_BYTES &&
             request.failed_at % BLOCK == 0,
         "%s: %s ends its request with %s and the place", name, fault, strerror(error));
  tap_ok(!once(engine, write, 0, BLOCK).error, "%s: after %s the next request is served", name,
         fault);
  engine_close(engine);
}

/* More requests, and blocks of one, than slots, all of which fail as they begin. */
static void all_fail(enum engine_rung rung, const char *name) {
  struct faults faults;
  char why[200];
  struct engine_request requests[200];
  unsigned errors = 0;
  WAITED(waited);
  tap_ok(faults_parse("write_eio=1+", &faults, why, sizeof why), "%s: write_eio=1+ is understood",
         name);
  struct engine *engine = start(rung, &faults);
  for (size_t i = 0; i < 200; i++)
    submit(engine, &requests[i], &waited, true, i % 64 * BLOCK, BLOCK);
  wait_all(&waited);
  for (size_t i = 0; i < 200; i++)
    errors += requests[i].error == EIO;
  tap_ok(errors == 200 && engine_stats(engine).written_bytes == 0,
         "%s: a drive that fails always fails every request", name);
  engine_close(engine);
  /* Nothing is over before its last block: none may be left waiting for another's end. */
  engine = start_blocks(rung, &faults, LEAST);
  tap_ok(engine && once(engine, true, 0, FILE_BYTES).error == EIO,
         "%s: so it does one request of far more blocks than slots", name);
  engine_close(engine);
}

static void ends(enum engine_rung rung, const char *name) {
  struct engine *engine = start(rung, NULL);
  struct engine_request request = once(engine, false, FILE_BYTES - BLOCK / 2, BLOCK);
  tap_ok(request.error == ENODATA && request.failed_at == FILE_BYTES,
         "%s: a read past the end says where the file ends", name);
  const bool cut = ftruncate(file, BLOCK + 1000) == 0;
  request = once(engine, false, 0, FILE_BYTES);
  tap_ok(cut && request.error == ENODATA && request.failed_at == BLOCK + 1000,
         "%s: an end that no sector ends at is told to the byte", name);
  engine_close(engine);
}

static void closes(enum engine_rung rung, const char *name) {
  struct faults faults;
  char why[200];
  struct engine_request requests[64];
  WAITED(waited);
  tap_ok(faults_parse("slow_us=300", &faults, why, sizeof why), "%s: slow_us=300 is understood",
         name);
  struct engine *engine = start(rung, &faults);
  fill(400 + (unsigned)rung);
  for (size_t i = 0; i < 64; i++)
    submit(engine, &requests[i], &waited, true, i * BLOCK, BLOCK);
  alarm(WAIT_S);
  engine_close(engine);
  alarm(0);
  tap_ok(waited.open == 0 && file_is_slab(), "%s: closing waits for all that was submitted", name);
}

/* Whether a ring's memory is mapped, which holds the ring as its descriptor does. */
static bool ring_mapped(void) {
  char line[512];
  bool mapped = false;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    mapped |= strstr(line, "io_uring") != NULL;
  if (maps)
    fclose(maps);
  return mapped;
}

static void forks(enum engine_rung rung, const char *name) {
  const unsigned before = descriptors();
  struct engine *engine = start(rung, NULL);
  const pid_t child = fork();
  if (!child) {
    engine_forked(engine);
    _exit(descriptors() != before || ring_mapped());
  }
  int status = -1;
  waitpid(child, &status, 0);
  tap_ok(status == 0, "%s: a forked child gives the descriptors back, and has no ring mapped",
         name);
  fill(500);
  tap_ok(!once(engine, true, 0, FILE_BYTES).error && file_is_slab(), "%s: the parent goes on",
         name);
  engine_close(engine);
  tap_ok(descriptors() == before, "%s: closing leaves no descriptor", name);
}

/* A pipe tells when the last of its writing ends is gone. */
static void lets_go(enum engine_rung rung, const char *name) {
  int ends_of[2];
  char byte;
  if (pipe2(ends_of, O_CLOEXEC | O_NONBLOCK))
    exit(1);
  const int before = file;
  file = ends_of[1];
  struct engine *engine = start(rung, NULL);
  file = before;
  const bool held = engine && read(ends_of[0], &byte, 1) < 0 && errno == EAGAIN;
  engine_close(engine);
  close(ends_of[1]);
  tap_ok(held && read(ends_of[0], &byte, 1) == 0,
         "%s: an engine that is closed has let go of its file", name);
  close(ends_of[0]);
}

static void ladder(void) {
  char why[200] = "";
  struct engine_config config = {.file = file, .depth = 4, .block_bytes = BLOCK};
  struct engine *engine = engine_open(&config, why, sizeof why);
  tap_ok(engine && engine_stats(engine).rung != ENGINE_AUTO && !engine_stats(engine).fixed_buffers,
         "the ladder ends at a rung, without a slab with nothing registered (%s)",
         engine ? engine_rung_name(engine_stats(engine).rung) : why);
  tap_ok(engine && !once(engine, true, 0, FILE_BYTES).error, "unregistered memory is written");
  engine_close(engine);
  config.depth = 65;
  tap_ok(!engine_open(&config, why, sizeof why) && strstr(why, "depth of 65"),
         "a depth of 65 is refused by name");
  config.depth = 4;
  config.block_bytes = 5000;
  tap_ok(!engine_open(&config, why, sizeof why) && strstr(why, "5000 bytes"),
         "a block of 5000 bytes is refused by name");
}

/* In a child in which the kernel refuses io_uring, as containers' filters do. */
static void climbs_down(void) {
  const pid_t child = fork();
  if (!child) {
    if (!refuse_call(__NR_io_uring_setup))
      _exit(3);
    if (start(ENGINE_PLAIN, NULL))
      _exit(4);
    char why[200] = "";
    const struct engine_config config = {.file = file, .depth = 4, .block_bytes = BLOCK};
    struct engine *engine = engine_open(&config, why, sizeof why);
    if (!engine || engine_stats(engine).rung != ENGINE_THREADS)
      _exit(5);
    fill(600);
    if (once(engine, true, 0, FILE_BYTES).error || !file_is_slab())
      _exit(6);
    engine_close(engine);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  tap_ok(status == 0, "where io_uring is refused the ladder ends at threads (status %d)", status);
}

static void probes(void) {
  char why[200] = "";
  size_t block_bytes = 0;
  unsigned depth = 0;
  struct engine_config config = {.file = file, .depth = 4, .block_bytes = BLOCK};
  const bool good =
      engine_probe(&config, FILE_BYTES, 200000000, &block_bytes, &depth, why, sizeof why);
  tap_ok(good && block_bytes >= 1 << 20 && block_bytes <= 8 << 20 && depth >= 4 && depth <= 32,
         "the probe chooses a block of 1 to 8 MiB and a depth of 4 to 32 (%zu, %u%s)", block_bytes,
         depth, why);
  block_bytes = depth = 0;
  const bool least = engine_probe(&config, FILE_BYTES, 0, &block_bytes, &depth, why, sizeof why);
  tap_ok(least && block_bytes == 1 << 20 && depth == 4,
         "a probe without time for more than a block chooses the least (%zu, %u%s)", block_bytes,
         depth, why);
  struct faults faults;
  config.faults = &faults;
  tap_ok(faults_parse("write_enospc=3", &faults, why, sizeof why) &&
             !engine_probe(&config, FILE_BYTES, 200000000, &block_bytes, &depth, why, sizeof why) &&
             strstr(why, "No space left"),
         "a probe on a full drive says so");
}

int main(int count, char **words) {
  char path[4096];
  (void)count;
  file = data_file(words[0], path, sizeof path);
  slab = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (file < 0 || slab == MAP_FAILED)
    return tap_ok(false, "a file %s and its memory: %s", path, strerror(errno)), tap_done();
  for (size_t i = 0; i < sizeof rungs / sizeof *rungs; i++) {
    const enum engine_rung rung = rungs[i];
    const char *name = engine_rung_name(rung);
    moves(rung, name);
    two_submit(rung, name);
    endures(rung, name, "read_short=1+", true);
    endures(rung, name, "write_short=1+", true);
    endures(rung, name, "eintr=3", false);
    endures(rung, name, "eagain=5", false);
    fails(rung, name, "read_eio=3", false, EIO);
    fails(rung, name, "write_eio=1", true, EIO);
    fails(rung, name, "write_enospc=4", true, ENOSPC);
    all_fail(rung, name);
    ends(rung, name);
    closes(rung, name);
    forks(rung, name);
    lets_go(rung, name);
  }
  ladder();
  climbs_down();
  probes();
  return tap_done();
}
