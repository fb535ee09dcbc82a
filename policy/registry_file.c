/* See registry_file.h. A directory that anyone but us may write to or look into is not used: its figures could be anybody's. */
#define _GNU_SOURCE
#include "registry_file.h"
#include "report_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 2, PATH_BYTES = 4096 };
static const char magic[sizeof(((struct registry_header *)0)->magic)] = "liboffload node";

_Static_assert(sizeof(struct registry_slot) % 8 == 0 && sizeof(struct registry_file) % 8 == 0,
               "words");

/* Our own directory, nobody else's to enter; made if need be. A descriptor, or -1 with why. */
static int own_directory(const char *path, bool make, char *why, size_t why_bytes) {
  struct stat at;
  if (make && mkdir(path, 0700) && errno != EEXIST) {
    snprintf(why, why_bytes, "%.120s: %s", path, strerror(errno));
    return -1;
  }
  const int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0 || !file_look(directory, "", AT_EMPTY_PATH, &at)) {
    snprintf(why, why_bytes, "%.120s: %s", path, strerror(errno));
  } else if (at.st_uid != geteuid()) {
    snprintf(why, why_bytes, "%.120s belongs to user %u", path, (unsigned)at.st_uid);
  } else if (at.st_mode & 077) {
    snprintf(why, why_bytes, "%.120s may be entered by others (mode %03o, needs 700)", path,
             (unsigned)at.st_mode & 0777);
  } else {
    return directory;
  }
  if (directory >= 0)
    close(directory);
  return -1;
}

static int own_file(int directory, const char *path, bool make, char *why, size_t why_bytes) {
  struct stat at;
  const int flags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  const int file = openat(directory, "node", flags | (make ? O_RDWR | O_CREAT : O_RDONLY), 0600);
  if (file < 0 || !file_look(file, "", AT_EMPTY_PATH, &at))
    snprintf(why, why_bytes, "%.120s/node: %s", path, strerror(errno));
  else if (!S_ISREG(at.st_mode) || at.st_uid != geteuid() || at.st_mode & 077)
    snprintf(why, why_bytes, "%.120s/node is no file of ours alone", path);
  else
    return file;
  if (file >= 0)
    close(file);
  return -1;
}

static int try_at(bool make, char *why, size_t why_bytes, const char *path) {
  const int directory = own_directory(path, make, why, why_bytes);
  const int file = directory >= 0 ? own_file(directory, path, make, why, why_bytes) : -1;
  if (directory >= 0)
    close(directory);
  return file;
}

/* An absolute path in the environment, or the other. */
static const char *place(const char *name, const char *instead) {
  const char *value = getenv(name);
  return value && value[0] == '/' ? value : instead;
}

int registry_file_open(const char *root, bool make, char *problem, size_t problem_bytes) {
  static char path[PATH_BYTES],
      why[3][200]; /* under the mutex of registry.c: stacks may be small */
  memset(why, 0, sizeof why);
  const unsigned user = (unsigned)geteuid();
  const char *runtime = place("XDG_RUNTIME_DIR", NULL), *temporary = place("TMPDIR", "/tmp");
  snprintf(path, sizeof path, "%s/dev/shm/liboffload-%u", root ? root : "", user);
  int file = try_at(make, why[0], sizeof why[0], path);
  if (file < 0 && !root && runtime &&
      snprintf(path, sizeof path, "%s/liboffload", runtime) < (int)sizeof path)
    file = try_at(make, why[1], sizeof why[1], path);
  if (file < 0 && !root &&
      snprintf(path, sizeof path, "%s/liboffload-%u", temporary, user) < (int)sizeof path)
    file = try_at(make, why[2], sizeof why[2], path);
  if (file < 0)
    snprintf(problem, problem_bytes, "%s%s%s%s%s", why[0], why[1][0] ? "; " : "", why[1],
             why[2][0] ? "; " : "", why[2]);
  return file;
}

bool registry_file_good(int file) {
  struct registry_header header;
  struct stat at;
  return file_look(file, "", AT_EMPTY_PATH, &at) &&
         at.st_size >= (off_t)sizeof(struct registry_file) &&
         pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header &&
         !memcmp(header.magic, magic, sizeof magic) && header.version == VERSION &&
         header.slots == REGISTRY_SLOTS && header.slot_bytes == sizeof(struct registry_slot);
}

/* Every byte is written: a hole could find its file system full when it is touched. Never made shorter: it may be mapped. */
bool registry_file_init(int file) {
  static const char zeros[sizeof(struct registry_file)];
  const struct registry_header header = {
      .version = VERSION, .slots = REGISTRY_SLOTS, .slot_bytes = sizeof(struct registry_slot)};
  struct registry_header with_magic = header;
  memcpy(with_magic.magic, magic, sizeof magic);
  struct write_hold hold;
  write_hold(&hold);
  const bool written =
      pwrite(file, zeros, sizeof zeros, 0) == (ssize_t)sizeof zeros &&
      pwrite(file, &with_magic, sizeof with_magic, 0) == (ssize_t)sizeof with_magic;
  write_release(&hold);
  return written;
}

bool registry_file_lock(int file, off_t at, bool take) {
  struct flock lock = {
      .l_type = take ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
  return fcntl(file, F_SETLK, &lock) == 0;
}

bool registry_file_locked(int file, off_t at, off_t bytes) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = bytes};
  return fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}
