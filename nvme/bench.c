/* build/nvme-bench: what the engine moves to and from one file, as a JSON object, for comparing with fio on the same file, mix,
   block and depth. The file is opened with O_DIRECT; its contents are lost where the mix writes. */
#define _GNU_SOURCE
#include "engine_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct options {
  const char *file, *mix, *rung;
  unsigned long long block_bytes, depth;
  double seconds;
};

static int usage(void) {
  fputs("usage: nvme-bench --file F --mix read|write|half --block BYTES --depth 1..32 --seconds S\n"
        "         [--rung auto|defer|coop|plain|threads]\n"
        "F must exist; it is read and written over all its size.\n",
        stderr);
  return 2;
}

static int parse(int count, char **words, struct options *options) {
  static const struct option known[] = {{"file", 1, NULL, 'f'},    {"mix", 1, NULL, 'm'},
                                        {"block", 1, NULL, 'b'},   {"depth", 1, NULL, 'd'},
                                        {"seconds", 1, NULL, 's'}, {"rung", 1, NULL, 'r'},
                                        {NULL, 0, NULL, 0}};
  for (int word; (word = getopt_long(count, words, "", known, NULL)) != -1;) {
    if (word == 'f')
      options->file = optarg;
    else if (word == 'm')
      options->mix = optarg;
    else if (word == 'r')
      options->rung = optarg;
    else if (word == 'b')
      options->block_bytes = strtoull(optarg, NULL, 10);
    else if (word == 'd')
      options->depth = strtoull(optarg, NULL, 10);
    else if (word == 's')
      options->seconds = strtod(optarg, NULL);
    else
      return usage();
  }
  if (!options->file || !options->mix || options->depth < 1 || options->depth > 32 ||
      options->block_bytes > 1ULL << 30 || !(options->seconds > 0 && options->seconds < 86400))
    return usage();
  return 0;
}

/* The number of a name among names; -1: it is none of them. */
static int find(const char *name, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (!strcmp(name, names[i]))
      return i;
  return -1;
}

static int fail(const char *what, const char *why) {
  fprintf(stderr, "nvme-bench: %s: %s\n", what, why);
  return 1;
}

static int measure(const struct options *options, int file, enum engine_mix mix, int rung) {
  struct stat status;
  if (fstat(file, &status))
    return fail(options->file, strerror(errno));
  struct engine_load load = {
      .mix = mix,
      .file_bytes = (size_t)status.st_size,
      .block_bytes = (size_t)options->block_bytes,
      .depth = (unsigned)options->depth,
      .buffer_bytes = (size_t)(options->block_bytes * options->depth),
      .limit_ns = (uint64_t)(options->seconds * 1e9),
  };
  if (load.file_bytes < load.buffer_bytes || !load.buffer_bytes)
    return fail(options->file, "smaller than block times depth, or a block of 0 bytes");
  load.buffer = engine_slab_map(load.buffer_bytes);
  if (!load.buffer)
    return fail("buffers", strerror(errno));
  memset(load.buffer, 0x5a, load.buffer_bytes);
  char why[200];
  const struct engine_config config = {
      .file = file,
      .rung = (enum engine_rung)rung,
      .only_this_rung = rung != ENGINE_AUTO,
      .depth = load.depth,
      .block_bytes = load.block_bytes,
      .slab = load.buffer,
      .slab_bytes = load.buffer_bytes,
  };
  struct engine *engine = engine_open(&config, why, sizeof why);
  if (!engine)
    return fail("the engine", why);
  uint64_t bytes, ns;
  int error;
  const double rate = engine_load(engine, &load, &bytes, &ns, &error);
  const struct engine_stats stats = engine_stats(engine);
  engine_close(engine);
  engine_slab_unmap(load.buffer, load.buffer_bytes);
  if (error)
    return fail(options->file, strerror(error));
  printf(
      "{\"mix\": \"%s\", \"block\": %zu, \"depth\": %u, \"rung\": \"%s\", \"fixed_buffers\": %s, "
      "\"bytes\": %llu, \"read_bytes\": %llu, \"written_bytes\": %llu, \"seconds\": %.6f, "
      "\"bytes_per_s\": %.0f}\n",
      options->mix, load.block_bytes, load.depth, engine_rung_name(stats.rung),
      stats.fixed_buffers ? "true" : "false", (unsigned long long)bytes,
      (unsigned long long)stats.read_bytes, (unsigned long long)stats.written_bytes,
      (double)ns / 1e9, rate);
  return 0;
}

int main(int count, char **words) {
  static const char *const mixes[] = {"read", "write", "half"};
  struct options options = {.rung = "auto"};
  const int status = parse(count, words, &options);
  if (status)
    return status;
  const char *rungs[ENGINE_THREADS + 1];
  for (int i = 0; i <= ENGINE_THREADS; i++)
    rungs[i] = engine_rung_name((enum engine_rung)i);
  const int mix = find(options.mix, mixes, 3);
  const int rung = find(options.rung, rungs, ENGINE_THREADS + 1);
  if (mix < 0 || rung < 0)
    return usage();
  const int file = open(options.file, O_RDWR | O_DIRECT | O_CLOEXEC);
  if (file < 0)
    return fail(options.file, strerror(errno));
  const int result = measure(&options, file, (enum engine_mix)mix, rung);
  close(file);
  return result;
}
