/* What the tests of nvme/ share that does not depend on one of its parts: what is left behind, where drives' files may lie, and
   system calls that are refused. */
#ifndef NVME_SUPPORT_H
#define NVME_SUPPORT_H
#include "nvme/files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static const uint32_t btrfs_magic = 0x9123683e;

/* Entries of a directory. */
__attribute__((unused)) static unsigned names_in(const char *directory) {
  unsigned names = 0;
  DIR *open = opendir(directory);
  while (open && readdir(open))
    names++;
  if (open)
    closedir(open);
  return names < 2 ? 0 : names - 2;
}

/* Open descriptors of this process. */
__attribute__((unused)) static unsigned descriptors(void) {
  unsigned count = 0;
  for (int fd = 0; fd < 256; fd++)
    count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Whether a drive's file may lie in the directory; of btrfs it depends on more. */
__attribute__((unused)) static bool holds_state(const char *directory) {
  struct statfs system = {0};
  return !statfs(directory, &system) && !drive_file_refused((uint64_t)system.f_type) &&
         (uint32_t)system.f_type != btrfs_magic;
}

/* A file without a name beside the program, with O_DIRECT where that is possible; its path for sentences. -1: none. */
__attribute__((unused)) static int data_file(const char *program, char *path, size_t path_bytes) {
  snprintf(path, path_bytes, "%s.data", program);
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
  if (file < 0)
    file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  return file >= 0 && unlink(path) ? -1 : file;
}

/* From now on this system call fails with EPERM in all threads of this process, as containers' filters have it. */
__attribute__((unused)) static bool refuse_call(unsigned number) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
  return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
         !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
}
#endif
