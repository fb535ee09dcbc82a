/* Reading loaded objects without the loader (shim/elf.h): what may be called of an object that another thread is opening. */
#define _GNU_SOURCE
#include "shim/elf.h"
#include "tests/lib/tap.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An object as the loader has it before it relocates: its segments in memory, and nothing else done. */
static bool map_file(const char *path, struct elf_object *object) {
  static ElfW(Phdr) headers[32];
  ElfW(Ehdr) header;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || pread(fd, &header, sizeof header, 0) != sizeof header || header.e_phnum > 32 ||
      pread(fd, headers, header.e_phnum * sizeof *headers, (off_t)header.e_phoff) < 0)
    return false;
  const size_t bytes = 64u << 20;
  char *base =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return false;
  *object = (struct elf_object){.base = (uintptr_t)base};
  for (size_t i = 0; i < header.e_phnum; i++) {
    const ElfW(Phdr) *segment = &headers[i];
    if (segment->p_type == PT_DYNAMIC)
      object->dynamic = (const void *)(base + segment->p_vaddr);
    if (segment->p_type == PT_LOAD &&
        (segment->p_vaddr + segment->p_memsz > bytes ||
         pread(fd, base + segment->p_vaddr, segment->p_filesz, (off_t)segment->p_offset) !=
             (ssize_t)segment->p_filesz))
      return false;
  }
  (void)close(fd);
  return object->dynamic != NULL;
}

int main(void) {
  struct elf_object loaded = {0}, mapped = {0};
  void *unwinder = dlopen("libgcc_s.so.1", RTLD_NOW);
  Dl_info found;
  tap_ok(unwinder && elf_object_named("libgcc_s.so.1", &loaded),
         "an object that was opened is found by its name");
  void *walk = unwinder ? dlsym(unwinder, "_Unwind_Backtrace") : NULL;
  tap_ok(walk && elf_function(&loaded, "_Unwind_Backtrace") == walk,
         "its functions are those that the loader finds");
  tap_ok(elf_bound(&loaded), "an object that the loader has finished is bound");
  tap_ok(dladdr(walk, &found) && map_file(found.dli_fname, &mapped) &&
             elf_function(&mapped, "_Unwind_Backtrace"),
         "the same file in memory, not yet relocated, shows the same functions");
  tap_ok(!elf_bound(&mapped), "and is not bound");

  /* The last of its calls but one is still as it is in the file. */
  const ElfW(Rela) *slots = NULL;
  size_t count = 0;
  for (const ElfW(Dyn) *entry = mapped.dynamic; entry && entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_JMPREL)
      slots = (const void *)(mapped.base + entry->d_un.d_ptr);
    else if (entry->d_tag == DT_PLTRELSZ)
      count = entry->d_un.d_val / sizeof *slots;
  for (size_t i = 0; i < count; i++)
    *(uintptr_t *)(mapped.base + slots[i].r_offset) += i + 2 == count ? 0 : mapped.base;
  tap_ok(count > 2 && !elf_bound(&mapped), "nor is it while one of its calls isn't");
  if (count > 2)
    *(uintptr_t *)(mapped.base + slots[count - 2].r_offset) += mapped.base;
  tap_ok(elf_bound(&mapped), "it is bound when the last one is, if only to what binds it lazily");

  /* What follows in the loader: unwinders are told where it lies. */
  tap_ok(elf_unwindable(walk), "an object that the loader has finished is found by unwinders");
  tap_ok(elf_unwindable((void *)main), "so is one that came with the program");
  const bool table = dlsym(RTLD_DEFAULT, "_dl_find_object") != NULL;
  tap_ok(elf_unwindable(elf_function(&mapped, "_Unwind_Backtrace")) == !table,
         "one that is bound isn't yet, where the loader keeps a table for them");
  return tap_done();
}
