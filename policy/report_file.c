/* Putting a report where OFFLOAD_REPORT says (report_file.h). Runs at the process's exit and in the recorder's thread: nothing here
   waits for a reader that isn't there, and nothing ends the program. */
#define _GNU_SOURCE
#include "report_file.h"
#include "scratch.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

bool report_file_path(const char *setting, char *path, size_t path_bytes) {
  size_t used = 0;
  for (const char *at = setting; *at;) {
    const bool number = at[0] == '%' && at[1] == 'p';
    const int length = number ? snprintf(path + used, path_bytes - used, "%d", (int)getpid())
                              : snprintf(path + used, path_bytes - used, "%c", *at);
    if (length < 0 || (size_t)length >= path_bytes - used)
      return false;
    used += (size_t)length;
    at += number ? 2 : 1;
  }
  path[used] = 0;
  return true;
}

static const int write_signals[] = {SIGPIPE, SIGXFSZ};

void write_hold(struct write_hold *hold) {
  sigemptyset(&hold->signals);
  for (size_t i = 0; i < 2; i++)
    sigaddset(&hold->signals, write_signals[i]);
  pthread_sigmask(SIG_BLOCK, &hold->signals, &hold->before);
  sigpending(&hold->pending);
}

/* What was pending before is the program's and stays. */
void write_release(const struct write_hold *hold) {
  const struct timespec at_once = {0, 0};
  const int error = errno;
  for (size_t i = 0; i < 2; i++) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, write_signals[i]);
    if (!sigismember(&hold->pending, write_signals[i]))
      (void)sigtimedwait(&one, NULL, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &hold->before, NULL);
  errno = error;
}

static int close_report(int fd, int error) {
  return close(fd) < 0 && !error ? errno : error;
}

/* A new file in the folder of `path`, which has no name yet: a process that is killed while it writes leaves nothing. -1 where files without
   names, or giving them one, can't be had. `folder` has room for the path. */
static int open_unnamed(const char *path, char *folder) {
  const char *slash = strrchr(path, '/');
  const size_t bytes = slash ? (size_t)(slash - path) + 1 : 0;
  memcpy(folder, slash ? path : ".", slash ? bytes : 1);
  folder[slash ? bytes : 1] = 0;
  return access("/proc/self/fd", X_OK) ? -1 : open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644);
}

/* The contents under a name that appears when they are whole. False where that can't be had. */
static bool write_unnamed(const char *path, const struct file_contents *contents, char *folder,
                          int *error, const char *name) {
  char self[48];
  const int fd = open_unnamed(path, folder);
  if (fd < 0)
    return false;
  *error = contents->write(fd, contents->context);
  (void)snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  const bool done = *error || linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
  const bool closed = !close_report(fd, 0);
  if (done && !*error && !closed) {
    *error = EIO;
    unlink(name);
  }
  return done;
}

static int write_named(const char *name, const struct file_contents *contents) {
  const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0)
    return errno;
  const int error = close_report(fd, contents->write(fd, contents->context));
  if (error)
    unlink(name);
  return error;
}

/* Beside the file under another name, then renamed: a reader sees the old report or the new one,
 * never half of one. */
static int write_regular(const char *path, const struct file_contents *contents) {
  static _Atomic unsigned written; /* threads may write one file at the same time */
  const size_t bytes = strlen(path) + 48;
  char *temporary = scratch_take(2 * bytes);
  if (!temporary)
    return ENOMEM;
  snprintf(temporary, bytes, "%s.%d.%u.tmp", path, (int)getpid(),
           atomic_fetch_add_explicit(&written, 1, memory_order_relaxed));
  int error = 0;
  if (!write_unnamed(path, contents, temporary + bytes, &error, temporary))
    error = write_named(temporary, contents);
  if (!error && rename(temporary, path) < 0) {
    error = errno;
    unlink(temporary);
  }
  scratch_drop(temporary, 2 * bytes);
  return error;
}

/* `path`, which has room for PATH_BYTES, becomes what the link that it names leads to. False when it is none, or leads to a name that is too
   long: *error tells. */
static bool follow(char *path, char *link, int *error) {
  const ssize_t length = readlink(path, link, PATH_BYTES - 1);
  *error = length < 0 && errno != EINVAL ? errno : 0;
  if (length < 0)
    return false;
  link[length] = 0;
  const char *slash = *link == '/' ? NULL : strrchr(path, '/');
  const size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
  if (folder + (size_t)length >= PATH_BYTES) {
    *error = ENAMETOOLONG;
    return false;
  }
  memcpy(path + folder, link, (size_t)length + 1);
  return true;
}

/* Beside the file at the end of all links. Those in its folder's path stay: realpath would take memory. */
static int write_target(const char *path, const struct file_contents *contents) {
  enum { LINKS_MOST = 40 }; /* as many as the kernel follows */
  char *target = scratch_take((size_t)2 * PATH_BYTES);
  int error = 0, links = 0;
  if (!target)
    return ENOMEM;
  memcpy(target, path, strlen(path) + 1);
  while (links < LINKS_MOST && follow(target, target + PATH_BYTES, &error))
    links++;
  if (links == LINKS_MOST)
    error = ELOOP;
  if (!error)
    error = write_regular(target, contents);
  scratch_drop(target, (size_t)2 * PATH_BYTES);
  return error;
}

/* A device, a FIFO or a socket is written as it is; `fd` is the way to it. */
static int write_special(int fd, const struct file_contents *contents) {
  return close_report(fd, contents->write(fd, contents->context));
}

/* The kernel's structure is the C library's on both machines. */
bool file_look(int directory, const char *path, int flags, struct stat *file) {
  return syscall(SYS_newfstatat, directory, path, file, flags) == 0;
}

bool file_same(const struct stat *one, const struct stat *other) {
  return one->st_ino == other->st_ino && one->st_dev == other->st_dev;
}

/* Where the program's own output goes (OFFLOAD_REPORT=/dev/stdout) the report is added to it. */
static int same_as_output(const struct stat *file) {
  static const int outputs[] = {STDOUT_FILENO, STDERR_FILENO};
  struct stat output;
  for (size_t i = 0; i < 2; i++)
    if (file_look(outputs[i], "", AT_EMPTY_PATH, &output) && file_same(&output, file))
      return fcntl(outputs[i], F_DUPFD_CLOEXEC, 0);
  return -1;
}

/* What stands at the path is kept: only a regular file is replaced, behind links at their target. */
static int put(const char *path, const struct file_contents *contents) {
  struct stat file, link;
  if (strlen(path) >= PATH_BYTES)
    return ENAMETOOLONG;
  if (!file_look(AT_FDCWD, path, 0, &file)) {
    if (errno != ENOENT)
      return errno;
    if (file_look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &link))
      return ENOENT; /* a link that leads nowhere */
    return write_regular(path, contents);
  }
  int fd = same_as_output(&file);
  if (fd >= 0)
    return write_special(fd, contents);
  if (S_ISREG(file.st_mode)) {
    return write_target(path, contents);
  }
  /* O_NONBLOCK: a FIFO that nobody reads is an error, not a wait, and so is one whose reader has stopped (out_write). */
  fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  return fd < 0 ? errno : write_special(fd, contents);
}

int report_file_write(const char *path, const struct file_contents *contents) {
  struct write_hold hold;
  write_hold(&hold);
  const int error = put(path, contents);
  write_release(&hold);
  return error;
}

const char *report_file_shown(const char *path, char text[REPORT_FILE_SHOWN]) {
  enum { SHOWN = REPORT_FILE_SHOWN - 4 };
  size_t i = 0;
  for (; i < SHOWN && path[i]; i++)
    text[i] = (unsigned char)path[i] < ' ' || path[i] == 0x7f ? '?' : path[i];
  memcpy(text + i, path[i] ? "..." : "\0\0\0", 4);
  return text;
}
