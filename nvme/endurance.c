/* The drive under a device number, through /sys; what its life allows (endurance.h). What is asked of the drive itself is in
   endurance_smart.c. Keeps nothing between calls, so any thread may call. */
#define _GNU_SOURCE
#include "endurance_internal.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The program's stacks may be small. */
enum { SECTOR_BYTES = 512, LAYERS_MOST = 8, TOLERANCE_PERCENT = 5, PATH_BYTES = 1024 };
static const uint64_t gigabyte = 1000000000, terabyte = 1000000000000;

struct look {
  const char *root;
  bool any;
  struct drive_health found;
};

/* Bytes of a small file without the blanks at its end; false when it can't be read. */
static bool read_text(const char *directory, const char *name, char *text, size_t text_bytes) {
  char path[PATH_BYTES];
  if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
    return false;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? -1 : read(fd, text, text_bytes - 1);
  if (fd >= 0)
    close(fd);
  size_t length = got > 0 ? (size_t)got : 0;
  while (length && strchr(" \t\n", text[length - 1]))
    length--;
  text[length] = 0;
  return got >= 0;
}

static bool read_sectors(const char *directory, const char *name, unsigned field, uint64_t *bytes) {
  char text[512], *at = text, *end;
  unsigned long long number = 0;
  if (!read_text(directory, name, text, sizeof text))
    return false;
  for (unsigned i = 0; i <= field; i++, at = end) {
    number = strtoull(at, &end, 10);
    if (end == at)
      return false;
  }
  *bytes = number * SECTOR_BYTES;
  return true;
}

void endurance_rate(struct drive_health *health) {
  enum { DATA_CENTER, CONSUMER };
  static const struct {
    const char *name;
    unsigned class, gigabytes, terabytes;
  } drives[] = {
#define DRIVE(name, class, gigabytes, terabytes) {name, class, gigabytes, terabytes},
#include "drives.def"
#undef DRIVE
  };
  bool known = false;
  health->consumer = health->rated_known = false;
  for (size_t i = 0; i < sizeof drives / sizeof *drives && !health->rated_known; i++) {
    if (!strcasestr(health->model, drives[i].name))
      continue;
    if (!known)
      health->consumer = drives[i].class == CONSUMER;
    known = true;
    const uint64_t bytes = drives[i].gigabytes * gigabyte,
                   tolerance = bytes / 100 * TOLERANCE_PERCENT;
    if (!drives[i].terabytes || health->capacity_bytes < bytes - tolerance ||
        health->capacity_bytes > bytes + tolerance)
      continue;
    health->rated_known = true;
    health->rated_bytes = drives[i].terabytes * terabyte;
  }
}

/* A drive that nothing lies under. Of several the one that is used up most is kept. */
static void look_at_drive(struct look *look, const char *directory) {
  enum { STAT_SECTORS_WRITTEN = 6 };
  struct drive_health health = {0};
  snprintf(health.name, sizeof health.name, "%s", strrchr(directory, '/') + 1);
  for (char *at = health.name; *at; at++)
    *at = *at == '!' ? '/' : *at; /* as names with a slash are written there */
  (void)read_text(directory, "device/model", health.model, sizeof health.model);
  (void)read_sectors(directory, "size", 0, &health.capacity_bytes);
  health.boot_known =
      read_sectors(directory, "stat", STAT_SECTORS_WRITTEN, &health.boot_written_bytes);
  if (health.capacity_bytes || *health.model)
    snprintf(health.source, sizeof health.source, "sysfs");
  if (!*look->root)
    endurance_ask(&health);
  endurance_rate(&health);
  if (!look->any || (health.percent_known && (!look->found.percent_known ||
                                              health.percent_used > look->found.percent_used)))
    look->found = health;
  look->any = true;
}

static void look_at_number(struct look *look, uint64_t device, unsigned layer);

static void look_at_directory(struct look *look, const char *path, unsigned layer) {
  char *directory = layer < LAYERS_MOST ? realpath(path, NULL) : NULL, text[PATH_BYTES];
  struct statx file;
  bool below = false;
  if (!directory)
    return;
  char *slash = strrchr(directory, '/');
  if (slash > directory && read_text(directory, "partition", text, sizeof text))
    *slash = 0;
  snprintf(text, sizeof text, "%s/slaves", directory);
  DIR *slaves = opendir(text);
  for (struct dirent *entry; slaves && (entry = readdir(slaves));) {
    char slave[PATH_BYTES];
    if (entry->d_name[0] == '.' ||
        snprintf(slave, sizeof slave, "%s/%s", text, entry->d_name) >= (int)sizeof slave)
      continue;
    below = true;
    look_at_directory(look, slave, layer + 1);
  }
  if (slaves)
    closedir(slaves);
  if (!below && read_text(directory, "loop/backing_file", text, sizeof text) && !*look->root &&
      !statx(AT_FDCWD, text, 0, STATX_TYPE, &file) && file.stx_dev_major) {
    below = true;
    look_at_number(look, makedev(file.stx_dev_major, file.stx_dev_minor), layer + 1);
  }
  if (!below)
    look_at_drive(look, directory);
  free(directory);
}

static void look_at_number(struct look *look, uint64_t device, unsigned layer) {
  char path[PATH_BYTES];
  if (snprintf(path, sizeof path, "%s/sys/dev/block/%u:%u", look->root, major(device),
               minor(device)) < (int)sizeof path)
    look_at_directory(look, path, layer);
}

struct drive_health drive_health(uint64_t device, const char *root) {
  struct look look = {.root = root ? root : ""};
  look_at_number(&look, device, 0);
  return look.found;
}

bool drive_life(const struct drive_health *health, uint64_t bytes_per_step, double seconds_per_step,
                double *steps, double *days) {
  enum { SECONDS_PER_DAY = 86400 };
  if (!bytes_per_step || !(seconds_per_step > 0) || !health->rated_known ||
      !(health->written_known || health->percent_known))
    return false;
  uint64_t left = health->rated_bytes;
  if (health->written_known)
    left = health->written_bytes < left ? left - health->written_bytes : 0;
  if (health->percent_known) {
    const unsigned percent = health->percent_used < 100 ? 100 - health->percent_used : 0;
    const uint64_t by_percent = health->rated_bytes / 100 * percent;
    left = by_percent < left ? by_percent : left;
  }
  *steps = (double)left / (double)bytes_per_step;
  *days = *steps * seconds_per_step / SECONDS_PER_DAY;
  return true;
}

bool wear_reached(const struct wear_limit *limit, const struct drive_health *health,
                  uint64_t written_bytes) {
  return limit->set &&
         ((limit->bytes && written_bytes >= limit->bytes) ||
          (limit->percent && health->percent_known && health->percent_used >= limit->percent));
}
