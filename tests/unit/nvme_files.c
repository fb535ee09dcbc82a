/* nvme/files: the file of a directory is without a name, private and tried; directories that can't hold state are refused by
   name. Runs in the build's folder. */
#define _GNU_SOURCE
#include "nvme_support.h"
#include "tests/lib/tap.h"
#include <string.h>
#include <sys/stat.h>

int main(void) {
  char directory[] = "build/nvme-files-XXXXXX", why[512] = "";
  if (!mkdtemp(directory)) {
    perror(directory);
    return 1;
  }
  struct drive_file made = {.file = -1};
  struct stat at = {0};
  struct statfs system = {0};
  if (!holds_state(directory)) {
    tap_skip("a directory's file is private, direct, without a name and closed by exec",
             "the build's folder is on a file system that can't hold state");
  } else {
    const bool open = drive_file_open(directory, &made, why, sizeof why);
    fstat(made.file, &at);
    tap_ok(open && (at.st_mode & 07777) == 0600 && at.st_nlink == 0 && names_in(directory) == 0 &&
               (fcntl(made.file, F_GETFL) & O_DIRECT) && (fcntl(made.file, F_GETFD) & FD_CLOEXEC),
           "a directory's file is private, direct, without a name and closed by exec %s", why);
    tap_ok(open && made.alignment >= 4096 && at.st_size == (off_t)made.alignment &&
               made.device == at.st_dev && drive_file_free_bytes(made.file) > 0,
           "its trial really wrote, and its drive and free space are told");
    tap_ok(rmdir(directory) == 0 && pwrite(made.file, NULL, 0, 0) == 0 &&
               ftruncate(made.file, 1 << 20) == 0,
           "it goes on when its directory vanishes");
    close(made.file);
  }
  rmdir(directory);
  tap_ok(!drive_file_open(directory, &made, why, sizeof why) && made.file == -1 &&
             strstr(why, directory) && strstr(why, "create the directory"),
         "a directory that is not there is refused with the remedy");
  tap_ok(!drive_file_open("Makefile", &made, why, sizeof why) && strstr(why, "not a directory"),
         "what is no directory is refused");
  if (statfs("/dev/shm", &system) || system.f_type != 0x01021994)
    tap_skip("tmpfs is refused by name with the remedy", "/dev/shm is no tmpfs");
  else
    tap_ok(!drive_file_open("/dev/shm", &made, why, sizeof why) && strstr(why, "/dev/shm") &&
               strstr(why, "tmpfs") && strstr(why, "ext4 or xfs"),
           "tmpfs is refused by name with the remedy");
  tap_ok(!strcmp(drive_file_refused(0x794c7630), "overlay") &&
             !strcmp(drive_file_refused(0x6969), "nfs") &&
             !strcmp(drive_file_refused(0x65735546), "fuse") && !drive_file_refused(0xef53) &&
             !drive_file_refused(0x58465342),
         "overlay, nfs and fuse are refused by their magic, ext4 and xfs are not");
  return tap_done();
}
