/* nvme/files where the system is not as it mostly is: no O_TMPFILE, no direct access, btrfs, a drive whose trial fails. The calls
   are answered by this program. Whatever goes wrong, one sentence says it and nothing is left: no name, no descriptor. */
#define _GNU_SOURCE
#include "nvme_support.h"
#include "tests/lib/tap.h"
#include <linux/fs.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* What is answered instead: 0 nothing, else an errno or a value. */
static int no_tmpfile, no_unlink, no_fallocate, pwrite_short, pread_error, wrong_byte, no_direct,
    far_apart, tmpfile_tries, unlinks;
static uint32_t magic, flags;

int __real_open(const char *, int, ...);
int __wrap_open(const char *, int, ...);
int __wrap_open(const char *path, int how, ...) {
  va_list rest;
  va_start(rest, how);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  if ((how & O_TMPFILE) == O_TMPFILE) {
    tmpfile_tries++;
    if (no_tmpfile) {
      errno = no_tmpfile;
      return -1;
    }
  }
  return __real_open(path, how, mode);
}

int __real_unlink(const char *);
int __wrap_unlink(const char *);
int __wrap_unlink(const char *path) {
  unlinks++;
  const int result = __real_unlink(path);
  if (!no_unlink)
    return result;
  errno = no_unlink;
  return -1;
}

int __real_fallocate(int, int, off_t, off_t);
int __wrap_fallocate(int, int, off_t, off_t);
int __wrap_fallocate(int file, int mode, off_t at, off_t bytes) {
  if (!no_fallocate)
    return __real_fallocate(file, mode, at, bytes);
  errno = no_fallocate;
  return -1;
}

ssize_t __real_pwrite(int, const void *, size_t, off_t);
ssize_t __wrap_pwrite(int, const void *, size_t, off_t);
ssize_t __wrap_pwrite(int file, const void *bytes, size_t count, off_t at) {
  return __real_pwrite(file, bytes, pwrite_short ? 0 : count, at);
}

ssize_t __real_pread(int, void *, size_t, off_t);
ssize_t __wrap_pread(int, void *, size_t, off_t);
ssize_t __wrap_pread(int file, void *bytes, size_t count, off_t at) {
  const ssize_t moved = __real_pread(file, bytes, count, at);
  if (moved > 0 && wrong_byte)
    ((unsigned char *)bytes)[moved - 1] ^= 0x80;
  if (!pread_error)
    return moved;
  errno = pread_error;
  return -1;
}

int __real_statx(int, const char *, int, unsigned, struct statx *);
int __wrap_statx(int, const char *, int, unsigned, struct statx *);
int __wrap_statx(int file, const char *path, int how, unsigned mask, struct statx *at) {
  const int result = __real_statx(file, path, how, mask, at);
#ifdef STATX_DIOALIGN
  if (!result && mask == STATX_DIOALIGN && (no_direct || far_apart)) {
    at->stx_mask |= STATX_DIOALIGN;
    at->stx_dio_mem_align = no_direct ? 0 : 512;
    at->stx_dio_offset_align = (uint32_t)far_apart;
  }
#endif
  return result;
}

int __real_statfs(const char *, struct statfs *);
int __wrap_statfs(const char *, struct statfs *);
int __wrap_statfs(const char *path, struct statfs *system) {
  const int result = __real_statfs(path, system);
  if (magic)
    system->f_type = magic;
  return result;
}

int __real_ioctl(int, unsigned long, ...);
int __wrap_ioctl(int, unsigned long, ...);
int __wrap_ioctl(int file, unsigned long what, ...) {
  va_list rest;
  va_start(rest, what);
  int *answer = va_arg(rest, int *);
  va_end(rest);
  if (what != FS_IOC_GETFLAGS)
    return __real_ioctl(file, what, answer);
  *answer = (int)flags;
  return 0;
}

static char directory[] = "build/nvme-failing-XXXXXX";

/* `*answer` is what makes it fail; the sentence names the directory and holds `part`. */
static void fails(int *answer, int value, const char *part, const char *sentence) {
  struct drive_file made;
  char why[512] = "";
  const unsigned before = descriptors();
  *answer = value;
  const bool open = drive_file_open(directory, &made, why, sizeof why);
  *answer = 0;
  tap_ok(!open && made.file == -1 && strstr(why, "OFFLOAD_NVME: ") == why &&
             strstr(why, directory) && strstr(why, part) && descriptors() == before &&
             names_in(directory) == 0,
         "%s: %s", sentence, why);
}

static void without_tmpfile(int error) {
  struct drive_file made = {.file = -1};
  struct stat at = {0};
  char why[512] = "";
  no_tmpfile = error;
  tmpfile_tries = unlinks = 0;
  const bool open = drive_file_open(directory, &made, why, sizeof why);
  no_tmpfile = 0;
  tap_ok(open && tmpfile_tries == 1 && unlinks == 1 && !fstat(made.file, &at) &&
             (at.st_mode & 07777) == 0600 && at.st_nlink == 0 && names_in(directory) == 0 &&
             (fcntl(made.file, F_GETFL) & O_DIRECT) && (fcntl(made.file, F_GETFD) & FD_CLOEXEC),
         "without O_TMPFILE (%s) the file loses its name at once, and is as private and direct",
         strerror(error));
  close(made.file);
}

int main(void) {
  if (!mkdtemp(directory)) {
    perror(directory);
    return 1;
  }
  if (!holds_state(directory)) {
    tap_skip("a directory's file is private, direct, without a name and closed by exec",
             "the build's folder is on a file system that can't hold state");
    rmdir(directory);
    return tap_done();
  }
  without_tmpfile(EOPNOTSUPP);
  without_tmpfile(EISDIR);
  fails(&no_tmpfile, EACCES, "Permission denied", "a directory that takes no file is refused");
  no_tmpfile = EOPNOTSUPP;
  fails(&no_unlink, EROFS, "Read-only", "a file that keeps its name is refused");
  no_tmpfile = 0;
  fails(&no_fallocate, EOPNOTSUPP, "not supported", "a file without fallocate is refused");
  fails(&no_fallocate, ENOSPC, "No space left", "a full file system is refused");
  fails(&pwrite_short, 1, "Input/output error", "a trial that writes nothing is refused");
  fails(&pread_error, EIO, "Input/output error", "a trial that can't be read is refused");
  fails(&wrong_byte, 1, "not what was read", "a trial that reads another byte is refused");
#ifdef STATX_DIOALIGN
  fails(&no_direct, 1, "no direct access", "a file without direct access is refused");
  fails(&far_apart, 1 << 20, "no direct access", "an alignment beyond all drives is refused");
  struct drive_file made = {.file = -1};
  char why[512] = "";
  far_apart = 16384;
  tap_ok(drive_file_open(directory, &made, why, sizeof why) && made.alignment == 16384,
         "an alignment above 4,096 is kept to");
  far_apart = 0;
  close(made.file);
#endif
  magic = btrfs_magic;
  struct drive_file copied = {.file = -1};
  char sentence[512] = "";
  tap_ok(!drive_file_open(directory, &copied, sentence, sizeof sentence) &&
             strstr(sentence, "btrfs") && strstr(sentence, "chattr +C") && copied.file == -1,
         "btrfs that checks its own sums is refused with the remedy: %s", sentence);
  flags = FS_NOCOW_FL;
  tap_ok(drive_file_open(directory, &copied, sentence, sizeof sentence),
         "btrfs without copies and sums is taken");
  close(copied.file);
  tap_ok(rmdir(directory) == 0, "nothing is left in the directory");
  return tap_done();
}
