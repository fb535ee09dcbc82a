/* What host pages are charged to (probe.h): the usage before and after they were made, as the same files tell that the budget is
   made of. Others on the machine take and give memory meanwhile, so at least half of the bytes must show, and where less than a
   quarter does they are not charged; what lies between tells nothing. */
#include "groups.h"
#include "probe.h"
#include <stdlib.h>
#include <string.h>

/* A number of "key: number kB" lines, in bytes. */
static bool kilobytes_of(const char *root, const char *path, const char *key, uint64_t *bytes) {
  bool found = false;
  struct lines *lines = lines_open(root, path);
  if (!lines)
    return false;
  for (char *line; (line = lines_next(lines));)
    if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ':') {
      *bytes = strtoull(line + strlen(key) + 1, NULL, 10) << 10;
      found = true;
      break;
    }
  lines_close(lines);
  return found;
}

struct most {
  const char *file;
  uint64_t bytes;
  bool known;
};

/* The first is ours; an outer group has others' memory, too. */
static void visit(const char *root, const char *directory, void *argument) {
  struct most *most = argument;
  const uint64_t bytes = most->known ? UNLIMITED : number_in(root, directory, most->file);
  if (bytes == UNLIMITED)
    return;
  most->bytes = bytes;
  most->known = true;
}

struct probe_usage probe_usage_now(const char *root) {
  static const struct {
    struct group_kind kind;
    const char *file;
  } hierarchies[] = {{{"cgroup", "memory"}, "memory.usage_in_bytes"},
                     {{"cgroup2", NULL}, "memory.current"}};
  struct probe_usage usage = {.group_known = false};
  for (size_t i = 0; i < 2 && !usage.group_known; i++) {
    struct most most = {.file = hierarchies[i].file};
    groups_visit(&hierarchies[i].kind, root, visit, &most);
    usage.group_known = most.known;
    usage.group_bytes = most.bytes;
  }
  usage.available_known =
      kilobytes_of(root, "/proc/meminfo", "MemAvailable", &usage.available_bytes);
  usage.locked_known = kilobytes_of(root, "/proc/self/status", "VmLck", &usage.locked_bytes);
  return usage;
}

static enum rates_charge charge(bool known, uint64_t less, uint64_t more, uint64_t bytes) {
  const uint64_t grown = more > less ? more - less : 0;
  if (!known || !bytes)
    return CHARGE_UNKNOWN;
  return grown >= bytes / 2 ? CHARGE_YES : grown < bytes / 4 ? CHARGE_NO : CHARGE_UNKNOWN;
}

void probe_charged(struct rates *rates, const struct probe_usage *before,
                   const struct probe_usage *after, uint64_t bytes) {
  rates->charged_cgroup = charge(before->group_known && after->group_known, before->group_bytes,
                                 after->group_bytes, bytes);
  rates->charged_available = charge(before->available_known && after->available_known,
                                    after->available_bytes, before->available_bytes, bytes);
  rates->charged_memlock = charge(before->locked_known && after->locked_known, before->locked_bytes,
                                  after->locked_bytes, bytes);
}
