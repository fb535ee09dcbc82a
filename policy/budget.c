/* How much host memory may be pinned: reads limits from /proc and /sys, allocates nothing. Called
   by the shim when it is about to move state, under its enqueue lock, and by tests with a recorded
   tree: one thread at a time, since the buffers are static (the program's stack may be small).

   A limit is room: what is allowed less what is used, page cache that the kernel would drop not
   counted as used. Control groups limit at every level, so each group from ours up to the mount's
   root is asked, in both hierarchies (a machine may mount v1 and v2 at once). */
#include "budget.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 8192, CAPABILITY_IPC_LOCK = 14, DEFAULT_PERCENT = 80 };
static const uint64_t UNLIMITED = UINT64_MAX;

/* A file read line by line; what doesn't fit into a line is skipped. There is one of them at a time. */
static struct lines {
  int fd;
  size_t begin, end;
  char buffer[LINE_BYTES];
} the_lines;

static struct lines *lines_open(const char *root, const char *path) {
  static char full[PATH_BYTES];
  struct lines *lines = &the_lines;
  const int length = snprintf(full, sizeof full, "%s%s", root, path);
  memset(lines, 0, sizeof *lines);
  lines->fd = length > 0 && (size_t)length < sizeof full ? open(full, O_RDONLY | O_CLOEXEC) : -1;
  return lines->fd >= 0 ? lines : NULL;
}

/* The next line without its end, or NULL; then the file is closed. */
static char *lines_next(struct lines *lines) {
  bool overlong = false;
  while (lines->fd >= 0) {
    char *start = lines->buffer + lines->begin;
    char *newline = memchr(start, '\n', lines->end - lines->begin);
    if (newline) {
      lines->begin = (size_t)(newline - lines->buffer) + 1;
      *newline = 0;
      if (!overlong)
        return start;
      overlong = false;
      continue;
    }
    memmove(lines->buffer, start, lines->end - lines->begin);
    lines->end -= lines->begin;
    lines->begin = 0;
    if (lines->end == sizeof lines->buffer - 1) {
      overlong = true;
      lines->end = 0;
    }
    const ssize_t got =
        read(lines->fd, lines->buffer + lines->end, sizeof lines->buffer - 1 - lines->end);
    if (got > 0) {
      lines->end += (size_t)got;
      continue;
    }
    close(lines->fd);
    lines->fd = -1;
    if (lines->end && !overlong) { /* a last line without an end */
      lines->buffer[lines->end] = 0;
      return lines->buffer;
    }
  }
  return NULL;
}

static void lines_close(struct lines *lines) {
  if (lines->fd >= 0)
    close(lines->fd);
  lines->fd = -1;
}

/* A decimal number after blanks; "max", "unlimited" and whatever is no number are UNLIMITED. */
static uint64_t number_of(const char *text) {
  uint64_t value = 0;
  text += strspn(text, " \t");
  if (*text < '0' || *text > '9')
    return UNLIMITED;
  for (; *text >= '0' && *text <= '9'; text++) {
    const uint64_t digit = (uint64_t)(*text - '0');
    if (value > (UNLIMITED - digit) / 10)
      return UNLIMITED;
    value = value * 10 + digit;
  }
  return value;
}

/* The number after `key` in a file of "key number" lines; UNLIMITED when it isn't there. */
static uint64_t number_after(const char *root, const char *path, const char *key) {
  const size_t key_bytes = strlen(key);
  uint64_t value = UNLIMITED;
  struct lines *lines = lines_open(root, path);
  if (!lines)
    return value;
  for (char *line; (line = lines_next(lines));)
    if (!strncmp(line, key, key_bytes) && line[key_bytes] && strchr(" \t:", line[key_bytes])) {
      value = number_of(line + key_bytes + strspn(line + key_bytes, ":"));
      break;
    }
  lines_close(lines);
  return value;
}

/* The number that is a file's first line. */
static uint64_t number_in(const char *root, const char *directory, const char *file) {
  static char path[PATH_BYTES];
  const int length = snprintf(path, sizeof path, "%s/%s", directory, file);
  if (length < 0 || (size_t)length >= sizeof path)
    return UNLIMITED;
  struct lines *lines = lines_open(root, path);
  if (!lines)
    return UNLIMITED;
  const char *line = lines_next(lines);
  const uint64_t value = line ? number_of(line) : UNLIMITED;
  lines_close(lines);
  return value;
}

/* One generation of control groups: how its files are called. */
struct hierarchy {
  const char *filesystem, *controller; /* controller: NULL for v2's single hierarchy */
  const char *limits[2], *usage, *cache;
};
static const struct hierarchy hierarchies[] = {
    {"cgroup2", NULL, {"memory.max", "memory.high"}, "memory.current", "inactive_file"},
    {"cgroup",
     "memory",
     {"memory.limit_in_bytes", NULL},
     "memory.usage_in_bytes",
     "total_inactive_file"},
};

/* Whether a list like "cpu,memory" contains a word. */
static bool list_contains(const char *list, const char *word) {
  const size_t bytes = strlen(word);
  for (;; list++) {
    const size_t length = strcspn(list, ",");
    if (length == bytes && !memcmp(list, word, bytes))
      return true;
    list += length;
    if (!*list)
      return false;
  }
}

/* Our group's path within a hierarchy, from /proc/self/cgroup ("4:memory:/a/b", "0::/a/b"). */
static bool group_path(const struct hierarchy *h, const char *root, char path[PATH_BYTES]) {
  bool found = false;
  struct lines *lines = lines_open(root, "/proc/self/cgroup");
  if (!lines)
    return false;
  for (char *line; !found && (line = lines_next(lines));) {
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
      continue;
    *group++ = 0;
    controllers++;
    if (h->controller ? list_contains(controllers, h->controller) : !*controllers)
      found = snprintf(path, PATH_BYTES, "%s", group) < PATH_BYTES;
  }
  lines_close(lines);
  return found;
}

/* mountinfo writes blanks and backslashes as \ooo. */
static void unescape(char *text) {
  char *to = text;
  for (; *text; text++, to++)
    if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] && text[3]) {
      *to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
      text += 3;
    } else
      *to = *text;
  *to = 0;
}

/* `path` below `base` (both absolute): the part behind base, "" when equal; NULL when it isn't
 * below. */
static const char *below(const char *path, const char *base) {
  const size_t bytes = strcmp(base, "/") ? strlen(base) : 0;
  if (strncmp(path, base, bytes) != 0 || (path[bytes] && path[bytes] != '/'))
    return NULL;
  return strcmp(path + bytes, "/") ? path + bytes : "";
}

/* Where our group's directory is: its mount point, and the part below it. A container may see only
   a part of the hierarchy mounted, or a group outside its namespace ("/../.."): then the mount
   point itself is the closest that can be seen. */
static bool group_directory(const struct hierarchy *h, const char *root, const char *group,
                            char directory[PATH_BYTES], size_t *mount_bytes) {
  bool found = false;
  struct lines *lines = lines_open(root, "/proc/self/mountinfo");
  if (!lines)
    return false;
  for (char *line; (line = lines_next(lines));) {
    /* 36 35 98:0 /root /mount/point options [optional fields] - filesystem source super,options */
    char *field[5], *rest = line, *separator = strstr(line, " - ");
    if (!separator)
      continue;
    *separator = 0;
    for (size_t i = 0; i < 5; i++)
      field[i] = strtok_r(i ? NULL : line, " ", &rest);
    char *filesystem = strtok_r(separator + 3, " ", &rest);
    char *source = filesystem ? strtok_r(NULL, " ", &rest) : NULL;
    char *super_options = source ? strtok_r(NULL, " ", &rest) : NULL;
    if (!field[4] || !filesystem || strcmp(filesystem, h->filesystem) != 0 ||
        (h->controller && (!super_options || !list_contains(super_options, h->controller))))
      continue;
    unescape(field[3]);
    unescape(field[4]);
    const char *part = strncmp(group, "/..", 3) ? below(group, field[3]) : NULL;
    if (found && !part)
      continue;
    const char *point = strcmp(field[4], "/") ? field[4] : "";
    if (snprintf(directory, PATH_BYTES, "%s%s", point, part ? part : "") >= PATH_BYTES)
      continue;
    *mount_bytes = strlen(point);
    found = true;
    if (part)
      break;
  }
  lines_close(lines);
  return found;
}

/* Room in one group's directory. */
static uint64_t group_room(const struct hierarchy *h, const char *root, const char *directory) {
  uint64_t limit = UNLIMITED;
  for (size_t i = 0; i < 2 && h->limits[i]; i++) {
    const uint64_t one = number_in(root, directory, h->limits[i]);
    limit = one < limit ? one : limit;
  }
  if (limit > (uint64_t)1 << 62) /* v1 writes "none" as the largest number of pages */
    return UNLIMITED;
  uint64_t used = number_in(root, directory, h->usage);
  if (used == UNLIMITED)
    used = 0;
  static char path[PATH_BYTES];
  if (snprintf(path, sizeof path, "%s/memory.stat", directory) < (int)sizeof path) {
    const uint64_t cache = number_after(root, path, h->cache);
    used -= cache < used ? cache : cache == UNLIMITED ? 0 : used;
  }
  return limit > used ? limit - used : 0;
}

static uint64_t cgroup_room(const char *root) {
  uint64_t room = UNLIMITED;
  for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++) {
    static char group[PATH_BYTES], directory[PATH_BYTES];
    size_t mount_bytes;
    if (!group_path(&hierarchies[i], root, group) ||
        !group_directory(&hierarchies[i], root, group, directory, &mount_bytes))
      continue;
    for (;;) {
      const uint64_t one = group_room(&hierarchies[i], root, directory);
      room = one < room ? one : room;
      char *slash = strrchr(directory + mount_bytes, '/');
      if (!slash)
        break;
      *slash = 0;
    }
  }
  return room;
}

static uint64_t kibibytes(uint64_t count) {
  return count > UNLIMITED >> 10 ? UNLIMITED : count << 10;
}

/* Whether CAP_IPC_LOCK lifts the limit: only as seen by the first user namespace, so not for a
 * container's mapped root. */
static bool may_lock_freely(const char *root) {
  uint64_t effective = 0;
  bool first_namespace = true;
  struct lines *lines = lines_open(root, "/proc/self/status");
  if (lines) {
    for (char *line; (line = lines_next(lines));)
      if (!strncmp(line, "CapEff:", 7))
        effective = strtoull(line + 7, NULL, 16);
    lines_close(lines);
  }
  lines = lines_open(root, "/proc/self/uid_map");
  if (lines) {
    const char *line = lines_next(lines);
    unsigned long inside, outside, count;
    if (line && sscanf(line, "%lu %lu %lu", &inside, &outside, &count) == 3)
      first_namespace = !inside && !outside && count == 4294967295UL;
    lines_close(lines);
  }
  return first_namespace && effective >> CAPABILITY_IPC_LOCK & 1;
}

static uint64_t memlock_room(const char *root) {
  if (may_lock_freely(root))
    return UNLIMITED;
  const uint64_t limit = number_after(root, "/proc/self/limits", "Max locked memory");
  const uint64_t locked = number_after(root, "/proc/self/status", "VmLck");
  if (limit == UNLIMITED || locked == UNLIMITED)
    return limit;
  return limit > kibibytes(locked) ? limit - kibibytes(locked) : 0;
}

struct budget budget_measure(const struct config *config, enum budget_pages pages,
                             const char *root) {
  if (!root)
    root = "";
  const struct config_size *asked = &config->host_memory;
  const bool asked_bytes = asked->set && !asked->percent;
  const struct {
    uint64_t room;
    const char *name;
  } limits[] = {
      {cgroup_room(root), "cgroup memory limit"},
      {kibibytes(number_after(root, "/proc/meminfo", "MemAvailable")), "MemAvailable"},
      {pages == BUDGET_LOCKED_PAGES ? memlock_room(root) : UNLIMITED, "RLIMIT_MEMLOCK"},
  };
  struct budget budget = {UNLIMITED, "nothing known of this machine"};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i].room < budget.bytes)
      budget = (struct budget){limits[i].room, limits[i].name};

  if (asked_bytes) {
    if (asked->bytes <= budget.bytes)
      budget = (struct budget){asked->bytes, "OFFLOAD_HOST_MEMORY"};
  } else if (budget.bytes == UNLIMITED) {
    budget.bytes = 0;
  } else {
    const unsigned percent = asked->percent ? asked->percent : DEFAULT_PERCENT;
    budget.bytes = budget.bytes / 100 * percent + budget.bytes % 100 * percent / 100;
    if (asked->percent)
      budget.limited_by = "OFFLOAD_HOST_MEMORY";
  }
  return budget;
}
