/* deny CALL... -- COMMAND: runs it where the kernel answers EPERM to these system calls, as container runtimes' seccomp profiles do. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
  const char *name;
  unsigned number;
} calls[] = {{"get_mempolicy", SYS_get_mempolicy}, {"io_uring_setup", SYS_io_uring_setup}};

static int deny(unsigned number) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
  int at = 1;
  for (; at < argc && strcmp(argv[at], "--") != 0; at++)
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
      if (!strcmp(calls[i].name, argv[at]) && deny(calls[i].number)) {
        perror("seccomp");
        return 125;
      }
  if (at + 1 >= argc)
    return 125;
  execvp(argv[at + 1], argv + at + 1);
  perror(argv[at + 1]);
  return 125;
}
