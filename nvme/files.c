/* The file of one directory (files.h): which file systems may hold state, how the file is made, and its trial. */
#define _GNU_SOURCE
#include "files.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { ALIGNMENT_LEAST = 4096, ALIGNMENT_MOST = 65536 };

/* Magics of linux/magic.h, and of file systems that it does not list. */
static const struct {
  uint64_t magic;
  const char *name;
} refused[] = {
    {0x01021994, "tmpfs"},    {0x858458f6, "ramfs"},     {0x794c7630, "overlay"},
    {0x6969, "nfs"},          {0xff534d42, "cifs"},      {0xfe534d42, "smb"},
    {0x517b, "smb"},          {0x65735546, "fuse"},      {0x01021997, "9p"},
    {0x6a656a63, "virtiofs"}, {0x5346414f, "afs"},       {0x00c36400, "ceph"},
    {0x0bd00bd0, "lustre"},   {0x2fc12fc1, "zfs"},       {0xca451a4e, "bcachefs"},
    {0xf15f, "ecryptfs"},     {0x958458f6, "hugetlbfs"},
};

static const uint64_t BTRFS_MAGIC = 0x9123683e;

const char *drive_file_refused(uint64_t magic) {
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
    if (refused[i].magic == (magic & 0xffffffff))
      return refused[i].name;
  return NULL;
}

uint64_t drive_file_free_bytes(int file) {
  struct statfs at;
  if (fstatfs(file, &at))
    return 0;
  return (uint64_t)at.f_bavail * (uint64_t)at.f_bsize;
}

/* Without a name from the start, or for the moment between two calls. */
static int make(const char *directory) {
  int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT | O_EXCL, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT))
    return file;
  char path[4096];
  const int length =
      snprintf(path, sizeof path, "%s/.offload-%ld-XXXXXX", directory, (long)getpid());
  if (length < 0 || (size_t)length >= sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  file = mkostemp(path, O_CLOEXEC | O_DIRECT);
  if (file >= 0 && unlink(path)) {
    const int error = errno;
    close(file);
    errno = error;
    return -1;
  }
  return file;
}

/* 0: direct reads and writes are not possible on this file. */
static size_t alignment_of(int file) {
#ifdef STATX_DIOALIGN
  struct statx at;
  if (!statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &at) && (at.stx_mask & STATX_DIOALIGN)) {
    if (!at.stx_dio_mem_align || !at.stx_dio_offset_align)
      return 0;
    size_t most = at.stx_dio_mem_align > at.stx_dio_offset_align ? at.stx_dio_mem_align
                                                                 : at.stx_dio_offset_align;
    return most > ALIGNMENT_LEAST ? most : ALIGNMENT_LEAST;
  }
#else
  (void)file;
#endif
  return ALIGNMENT_LEAST;
}

/* Whether what is written is what is read. 0, or an errno; EILSEQ: other bytes came back. */
static int trial(int file, size_t alignment) {
  unsigned char *memory = NULL;
  if (posix_memalign((void **)&memory, alignment, 2 * alignment))
    return ENOMEM;
  int error = fallocate(file, 0, 0, (off_t)alignment) ? errno : 0;
  for (size_t i = 0; i < alignment; i++) {
    memory[i] = (unsigned char)(i * 167 + i / 256 + 1);
    memory[alignment + i] = 0;
  }
  ssize_t moved;
  if (!error && (moved = pwrite(file, memory, alignment, 0)) != (ssize_t)alignment)
    error = moved < 0 ? errno : EIO;
  if (!error && (moved = pread(file, memory + alignment, alignment, 0)) != (ssize_t)alignment)
    error = moved < 0 ? errno : EIO;
  if (!error && memcmp(memory, memory + alignment, alignment) != 0)
    error = EILSEQ;
  free(memory);
  return error;
}

bool drive_file_open(const char *directory, struct drive_file *made, char *why, size_t why_bytes) {
  static const char remedy[] = "name a directory of a local ext4 or xfs file system on a drive";
  struct statfs system;
  struct statx at;
  *made = (struct drive_file){.file = -1};
  if (statx(AT_FDCWD, directory, 0, STATX_TYPE, &at) || statfs(directory, &system)) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s; create the directory or name another",
             directory, strerror(errno));
    return false;
  }
  if (!S_ISDIR(at.stx_mode)) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s is not a directory; %s", directory, remedy);
    return false;
  }
  const uint64_t magic = (uint64_t)system.f_type & 0xffffffff;
  const char *name = drive_file_refused(magic);
  if (name) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s is on %s, which is not a drive's own; %s", directory,
             name, remedy);
    return false;
  }
  const int file = make(directory);
  if (file < 0) {
    snprintf(why, why_bytes,
             "OFFLOAD_NVME: no file for direct access in %s: %s; %s that you may write to",
             directory, strerror(errno), remedy);
    return false;
  }
  int flags = 0;
  if (magic == BTRFS_MAGIC && (ioctl(file, FS_IOC_GETFLAGS, &flags) || !(flags & FS_NOCOW_FL))) {
    snprintf(why, why_bytes,
             "OFFLOAD_NVME: %s is on btrfs with checksums, which rules direct access out; chattr "
             "+C %s, or %s",
             directory, directory, remedy);
    goto fail;
  }
  const size_t alignment = alignment_of(file);
  if (!alignment || alignment > ALIGNMENT_MOST) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s: its file system has no direct access that fits; %s",
             directory, remedy);
    goto fail;
  }
  const int error = trial(file, alignment);
  if (error) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s; %s with free space", directory,
             error == EILSEQ ? "what was written is not what was read" : strerror(error), remedy);
    goto fail;
  }
  if (statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &at)) {
    snprintf(why, why_bytes, "OFFLOAD_NVME: %s: %s; %s", directory, strerror(errno), remedy);
    goto fail;
  }
  *made = (struct drive_file){
      .file = file, .device = makedev(at.stx_dev_major, at.stx_dev_minor), .alignment = alignment};
  return true;
fail:
  close(file);
  return false;
}
