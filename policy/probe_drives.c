/* The named drives, all at once, for offload-probe (probe.h): a file without a name in each (nvme/files.h), written and then read for
   a moment by the engine that the drive tier has. */
#include "../nvme/engine_internal.h"
#include "../nvme/files.h"
#include "probe.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRIVES_MOST = 64, BLOCK = 2 << 20, DEPTH = 16 };
static const uint64_t each_ns = 120000000;
static const size_t file_bytes = 256ul << 20;

struct drive {
  char directory[4096];
  double write, read; /* bytes per second */
  char why[300];
};

static double load_of(struct engine *engine, enum engine_mix mix, size_t bytes, void *slab,
                      uint64_t *done, struct drive *drive) {
  uint64_t ns;
  int error;
  const struct engine_load load = {.mix = mix,
                                   .file_bytes = bytes,
                                   .block_bytes = BLOCK,
                                   .depth = DEPTH,
                                   .buffer = slab,
                                   .buffer_bytes = (size_t)BLOCK * DEPTH,
                                   .limit_ns = each_ns,
                                   .most_bytes = mix == ENGINE_WRITE ? bytes : 0};
  const double rate = engine_load(engine, &load, done, &ns, &error);
  if (error)
    (void)snprintf(drive->why, sizeof drive->why, "%s", strerror(error));
  return rate;
}

static void *measure(void *argument) {
  struct drive *drive = argument;
  struct drive_file file;
  if (!drive_file_open(drive->directory, &file, drive->why, sizeof drive->why))
    return NULL;
  const size_t slab_bytes = (size_t)BLOCK * DEPTH;
  void *slab = engine_slab_map(slab_bytes);
  if (slab)
    memset(slab, 0x5a, slab_bytes);
  const struct engine_config config = {.file = file.file,
                                       .depth = DEPTH,
                                       .block_bytes = BLOCK,
                                       .slab = slab,
                                       .slab_bytes = slab_bytes};
  struct engine *engine = slab ? engine_open(&config, drive->why, sizeof drive->why) : NULL;
  size_t bytes = file_bytes;
  if (drive_file_free_bytes(file.file) < 4 * bytes)
    bytes = (size_t)BLOCK * DEPTH;
  if (engine) {
    uint64_t written, done;
    drive->write = load_of(engine, ENGINE_WRITE, bytes, slab, &written, drive);
    /* What was never written would be read without the drive. */
    if (drive->write > 0)
      drive->read =
          load_of(engine, ENGINE_READ, (size_t)written / BLOCK * BLOCK, slab, &done, drive);
    engine_close(engine);
  }
  engine_slab_unmap(slab, slab_bytes);
  close(file.file);
  return NULL;
}

void probe_drives(struct probe *probe) {
  struct drive *drives = calloc(DRIVES_MOST, sizeof *drives);
  pthread_t threads[DRIVES_MOST];
  unsigned count = 0;
  const char *at = drives && probe->drives ? probe->drives : "";
  for (; *at && count < DRIVES_MOST; at += *at == ':') {
    const size_t length = strcspn(at, ":");
    if (length && length < sizeof drives->directory) {
      memcpy(drives[count].directory, at, length);
      if (!pthread_create(&threads[count], NULL, measure, &drives[count]))
        count++;
    }
    at += length;
  }
  probe->rates.drive_read = probe->rates.drive_write = 0;
  for (unsigned i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
    probe->rates.drive_read += drives[i].read;
    probe->rates.drive_write += drives[i].write;
    if (*drives[i].why)
      probe_say(probe, "%s isn't measured: %s", drives[i].directory, drives[i].why);
  }
  free(drives);
}
