/* See library.h. A wrong file would be preloaded without a word (the dynamic linker takes any shared object), so the name
   and the exported symbols are looked at. The file is read, never loaded. */
#define _GNU_SOURCE
#include "library.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Characters that end a path in LD_PRELOAD. */
static const char separators[] = " :\t\n";

/* A part of the file, or NULL when it isn't wholly there. */
static const void *part(const unsigned char *file, size_t file_bytes, uint64_t at, uint64_t bytes) {
  return at <= file_bytes && bytes <= file_bytes - at ? file + at : NULL;
}

/* Whether a table of dynamic symbols defines the name. */
static bool defines(const unsigned char *file, size_t file_bytes, const Elf64_Shdr *table,
                    const Elf64_Shdr *strings, const char *name) {
  const char *text = part(file, file_bytes, strings->sh_offset, strings->sh_size);
  for (uint64_t at = 0; text && at + sizeof(Elf64_Sym) <= table->sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    const void *entry = part(file, file_bytes, table->sh_offset + at, sizeof symbol);
    if (!entry)
      return false;
    memcpy(&symbol, entry, sizeof symbol);
    if (symbol.st_shndx != SHN_UNDEF && symbol.st_name < strings->sh_size &&
        strnlen(text + symbol.st_name, strings->sh_size - symbol.st_name) == strlen(name) &&
        !memcmp(text + symbol.st_name, name, strlen(name)))
      return true;
  }
  return false;
}

/* Whether a shared object's sections say that it exports the name. */
static bool exports(const unsigned char *file, size_t file_bytes, const char *name) {
  Elf64_Ehdr header;
  const void *first = part(file, file_bytes, 0, sizeof header);
  if (!first)
    return false;
  memcpy(&header, first, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_type != ET_DYN || header.e_shentsize != sizeof(Elf64_Shdr))
    return false;
  const unsigned char *sections =
      part(file, file_bytes, header.e_shoff, (uint64_t)header.e_shnum * sizeof(Elf64_Shdr));
  for (unsigned i = 0; sections && i < header.e_shnum; i++) {
    Elf64_Shdr table, strings;
    memcpy(&table, sections + i * sizeof table, sizeof table);
    if (table.sh_type != SHT_DYNSYM || table.sh_link >= header.e_shnum)
      continue;
    memcpy(&strings, sections + table.sh_link * sizeof strings, sizeof strings);
    if (defines(file, file_bytes, &table, &strings, name))
      return true;
  }
  return false;
}

bool library_exports(const char *path, const char *name) {
  struct stat status;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  bool exported = false;
  if (fd < 0)
    return false;
  if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 0) {
    const size_t bytes = (size_t)status.st_size;
    void *file = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    exported = file != MAP_FAILED && exports(file, bytes, name);
    if (file != MAP_FAILED)
      munmap(file, bytes);
  }
  close(fd);
  return exported;
}

/* "" when the file is a whole liboffload.so, otherwise what is wrong with it. */
static const char *wrong_with(const char *path) {
  struct stat status;
  const char *slash = strrchr(path, '/');
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return strerror(errno);
  const char *wrong = "";
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    wrong = "is not a file";
  else if (fnmatch("liboffload*.so", slash ? slash + 1 : path, 0) != 0)
    wrong = "is not called liboffload*.so";
  else if (!library_exports(path, "cuInit"))
    wrong = "is not liboffload.so, or is broken: it exports no cuInit";
  close(fd);
  return wrong;
}

/* The path from the root, links and all. */
static bool absolute(const char *path, char whole[LIBRARY_PATH_MOST]) {
  char directory[LIBRARY_PATH_MOST] = "";
  if (path[0] != '/' && !getcwd(directory, sizeof directory))
    return false;
  return snprintf(whole, LIBRARY_PATH_MOST, "%s%s%s", directory, *directory ? "/" : "", path) <
         LIBRARY_PATH_MOST;
}

/* The first of the places beside this program. */
static bool beside(char path[LIBRARY_PATH_MOST], char self[LIBRARY_PATH_MOST]) {
  static const char *const places[] = {"liboffload.so", "../lib/liboffload.so",
                                       "../lib64/liboffload.so"};
  const ssize_t bytes = readlink("/proc/self/exe", self, LIBRARY_PATH_MOST - 1);
  self[bytes > 0 ? bytes : 0] = 0;
  char *slash = strrchr(self, '/');
  if (slash)
    *slash = 0;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const int length = snprintf(path, LIBRARY_PATH_MOST, "%s/%s", self, places[i]);
    if (length < LIBRARY_PATH_MOST && !access(path, F_OK))
      return true;
  }
  return false;
}

bool library_find(const char *given, struct library *library, char *problem, size_t problem_bytes) {
  char named[LIBRARY_PATH_MOST], self[LIBRARY_PATH_MOST];
  if (!given && !beside(named, self)) {
    snprintf(problem, problem_bytes,
             "liboffload.so is neither in %s nor in ../lib from there: name it with --library PATH",
             self);
    return false;
  }
  if ((given && !absolute(given, named)) || !realpath(named, library->mapped)) {
    snprintf(problem, problem_bytes, "--library %s: %s", given ? given : named, strerror(errno));
    return false;
  }
  const char *wrong = wrong_with(named);
  if (*wrong) {
    snprintf(problem, problem_bytes, "%s %s; name the library with --library PATH/liboffload.so",
             named, wrong);
    return false;
  }
  /* Without links, unless only the path through a link can be preloaded. */
  const char *path = strpbrk(library->mapped, separators) ? named : library->mapped;
  if (strpbrk(path, separators)) {
    snprintf(problem, problem_bytes,
             "%s can't be preloaded: LD_PRELOAD separates paths by blanks and colons; move it, or "
             "make a link to its directory (ln -s '%.*s' /tmp/offload) and use --library "
             "/tmp/offload/liboffload.so",
             named, (int)(strrchr(named, '/') - named), named);
    return false;
  }
  snprintf(library->preload, sizeof library->preload, "%s", path);
  return true;
}
