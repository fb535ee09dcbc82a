/* See inspect.h. Reads the ELF header and program headers as the dynamic linker would. */
#define _GNU_SOURCE
#include "inspect.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PATH_MOST = INSPECT_PATH_MOST, SCRIPTS_MOST = 4, LINE_MOST = 256 };
#if defined __x86_64__
enum { MACHINE = EM_X86_64 };
#else
enum { MACHINE = EM_AARCH64 };
#endif

bool inspect_find(const char *command, char *path, size_t path_bytes) {
  const char *directories = getenv("PATH");
  int error = ENOENT;
  if (strchr(command, '/') || !*command) {
    struct stat file;
    const size_t bytes = strlen(command) + 1;
    if (bytes > path_bytes) {
      errno = ENAMETOOLONG;
      return false;
    }
    memcpy(path, command, bytes);
    if (stat(command, &file) != 0)
      return false;
    errno = EACCES;
    return S_ISREG(file.st_mode) && access(command, X_OK) == 0;
  }
  for (const char *at = directories ? directories : "/bin:/usr/bin";; at++) {
    const size_t length = strcspn(at, ":");
    struct stat file;
    const int written =
        snprintf(path, path_bytes, "%.*s%s%s", (int)length, at, length ? "/" : "./", command);
    if (written > 0 && (size_t)written < path_bytes && !stat(path, &file) &&
        S_ISREG(file.st_mode)) {
      if (!access(path, X_OK))
        return true;
      error = EACCES;
    }
    at += length;
    if (!*at)
      break;
  }
  errno = error;
  return false;
}

/* Set-user-ID and the like: the linker then ignores paths in LD_PRELOAD. */
static bool privileged(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0)
    return false;
  if ((file.st_mode & S_ISUID && file.st_uid != getuid()) ||
      (file.st_mode & S_ISGID && file.st_gid != getgid()))
    return true;
  return getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

/* The path of the dynamic linker; false when the program names none. */
static bool interpreter_of(int fd, const Elf64_Ehdr *header, char *interpreter) {
  for (unsigned i = 0; i < header->e_phnum; i++) {
    Elf64_Phdr segment;
    const off_t at = (off_t)(header->e_phoff + (uint64_t)i * header->e_phentsize);
    if (pread(fd, &segment, sizeof segment, at) != (ssize_t)sizeof segment)
      return true; /* cut short: exec will say so */
    if (segment.p_type != PT_INTERP)
      continue;
    const size_t bytes = segment.p_filesz < PATH_MOST ? (size_t)segment.p_filesz : PATH_MOST - 1;
    const ssize_t got = pread(fd, interpreter, bytes, (off_t)segment.p_offset);
    interpreter[got > 0 ? got : 0] = 0;
    return true;
  }
  return false;
}

static bool elf_preloadable(int fd, const Elf64_Ehdr *header, char *reason, size_t reason_bytes) {
  char interpreter[PATH_MOST] = "";
  if (header->e_ident[EI_CLASS] != ELFCLASS64)
    snprintf(reason, reason_bytes, "is a 32-bit program");
  else if (header->e_machine != MACHINE)
    snprintf(reason, reason_bytes, "is a program for another kind of processor");
  else if (!interpreter_of(fd, header, interpreter))
    snprintf(reason, reason_bytes, "is statically linked");
  else if (strstr(interpreter, "ld-musl"))
    snprintf(reason, reason_bytes, "is linked with musl; the library needs glibc");
  else if (privileged(fd))
    snprintf(reason, reason_bytes,
             "runs with privileges of its file (set-user-ID, set-group-ID or capabilities)");
  else
    return true;
  return false;
}

/* "#!/usr/bin/env python3": the program that will really run. False when the line names none. */
static bool script_interpreter(int fd, char *path) {
  char line[LINE_MOST + 1], *rest = NULL;
  const ssize_t got = pread(fd, line, LINE_MOST, 0);
  line[got > 0 ? got : 0] = 0;
  line[strcspn(line, "\n")] = 0;
  const char *program = strtok_r(line + 2, " \t", &rest);
  if (!program)
    return false;
  const char *slash = strrchr(program, '/');
  if (slash && !strcmp(slash + 1, "env")) {
    const char *word = strtok_r(NULL, " \t", &rest);
    while (word && (word[0] == '-' || strchr(word, '=')))
      word = strtok_r(NULL, " \t", &rest);
    return word && inspect_find(word, path, PATH_MOST);
  }
  return snprintf(path, PATH_MOST, "%s", program) < PATH_MOST;
}

bool inspect_preloadable(const char *path, char *reason, size_t reason_bytes) {
  char current[PATH_MOST];
  snprintf(current, sizeof current, "%s", path);
  for (int depth = 0; depth < SCRIPTS_MOST; depth++) {
    Elf64_Ehdr header = {0};
    const int fd = open(current, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
      return true;
    const ssize_t got = pread(fd, &header, sizeof header, 0);
    bool good = true, script = false;
    if (got >= (ssize_t)EI_NIDENT && !memcmp(header.e_ident, ELFMAG, SELFMAG))
      good = elf_preloadable(fd, &header, reason, reason_bytes);
    else if (got >= 2 && header.e_ident[0] == '#' && header.e_ident[1] == '!')
      script = script_interpreter(fd, current);
    close(fd);
    if (!script)
      return good;
  }
  return true;
}

bool inspect_script(const char *path, char interpreter[INSPECT_PATH_MOST]) {
  char start[2];
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  const bool script = pread(fd, start, sizeof start, 0) == (ssize_t)sizeof start &&
                      !memcmp(start, "#!", sizeof start) && script_interpreter(fd, interpreter);
  close(fd);
  return script;
}
