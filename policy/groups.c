/* See groups.h. Control groups limit at every level, so each group from ours up to the mount's root
   is visited. Buffers are static: the program's stack may be small. */
#include "groups.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

void groups_begin(void) {
  pthread_mutex_lock(&reading);
}
void groups_end(void) {
  pthread_mutex_unlock(&reading);
}
void groups_forked(void) {
  reading = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

enum { LINE_BYTES = 8192 };

static struct lines {
  int fd;
  size_t begin, end;
  char buffer[LINE_BYTES];
} the_lines;

struct lines *lines_open(const char *root, const char *path) {
  static char full[PATH_BYTES];
  struct lines *lines = &the_lines;
  const int length = snprintf(full, sizeof full, "%s%s", root, path);
  memset(lines, 0, sizeof *lines);
  lines->fd = length > 0 && (size_t)length < sizeof full ? open(full, O_RDONLY | O_CLOEXEC) : -1;
  return lines->fd >= 0 ? lines : NULL;
}

char *lines_next(struct lines *lines) {
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

void lines_close(struct lines *lines) {
  if (lines->fd >= 0)
    close(lines->fd);
  lines->fd = -1;
}

uint64_t number_of(const char *text) {
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

const char *line_in(const char *root, const char *directory, const char *file) {
  static char path[PATH_BYTES];
  const int length = snprintf(path, sizeof path, "%s/%s", directory, file);
  if (length < 0 || (size_t)length >= sizeof path)
    return NULL;
  struct lines *lines = lines_open(root, path);
  if (!lines)
    return NULL;
  const char *line = lines_next(lines);
  lines_close(lines);
  return line;
}

uint64_t number_in(const char *root, const char *directory, const char *file) {
  const char *line = line_in(root, directory, file);
  return line ? number_of(line) : UNLIMITED;
}

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
static bool group_path(const struct group_kind *h, const char *root, char path[PATH_BYTES]) {
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
static bool group_directory(const struct group_kind *h, const char *root, const char *group,
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

void groups_visit(const struct group_kind *kind, const char *root, group_visit *visit,
                  void *argument) {
  static char group[PATH_BYTES], directory[PATH_BYTES];
  size_t mount_bytes;
  if (!group_path(kind, root, group) ||
      !group_directory(kind, root, group, directory, &mount_bytes))
    return;
  for (;;) {
    visit(root, directory, argument);
    char *slash = strrchr(directory + mount_bytes, '/');
    if (!slash)
      break;
    *slash = 0;
  }
}
