/* dlsym and dlvsym, as the program meets them. glibc takes the caller of dlsym from the return
   address, and RTLD_NEXT means "after the caller": so the wrappers leave by a jump and never by a
   call, whatever the compiler's options (hence assembly). Lookups in RTLD_DEFAULT and RTLD_NEXT,
   and names that don't begin with "cu", go straight through. Allocators look symbols up while they
   start: here is no lock, no allocation, no once, no thread-local storage; the only call is the one
   that finds glibc's own functions, once. tests/check/dlsym reads the machine code and holds it to
   that. */
#include "dlsym.h"
#include "driver.h"
#include "elf.h"
#include <dlfcn.h>
#include <stdatomic.h>

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

/* Named in the assembly. */
dlsym_function *_Atomic dlsym_next __attribute__((visibility("hidden"), used));
dlvsym_function *_Atomic dlvsym_next __attribute__((visibility("hidden"), used));
void dlsym_find(void) __attribute__((visibility("hidden"), used));
void *dlsym_cu(void *handle, const char *name) __attribute__((visibility("hidden"), used));
void *dlvsym_cu(void *handle, const char *name, const char *version)
    __attribute__((visibility("hidden"), used));

#if defined(__x86_64__)
#define WRAPPER(name)                                                                              \
  ".globl " #name "\n.type " #name ",@function\n" #name ":\n"                                      \
  "  .cfi_startproc\n"                                                                             \
  "  endbr64\n"                                                                                    \
  "  cmpq $0, " #name "_next(%rip)\n"                                                              \
  "  je 3f\n"                                                                                      \
  "1: leaq 1(%rdi), %rax\n" /* RTLD_DEFAULT is 0, RTLD_NEXT is -1 */                               \
  "  cmpq $1, %rax\n"                                                                              \
  "  jbe 2f\n"                                                                                     \
  "  testq %rsi, %rsi\n"                                                                           \
  "  je 2f\n"                                                                                      \
  "  cmpb $99, (%rsi)\n" /* 'c' */                                                                 \
  "  jne 2f\n"                                                                                     \
  "  cmpb $117, 1(%rsi)\n" /* 'u' */                                                               \
  "  jne 2f\n"                                                                                     \
  "  jmp " #name "_cu\n"                                                                           \
  "2: jmp *" #name "_next(%rip)\n"                                                                 \
  "3: pushq %rdi\n  .cfi_adjust_cfa_offset 8\n"                                                    \
  "  pushq %rsi\n  .cfi_adjust_cfa_offset 8\n"                                                     \
  "  pushq %rdx\n  .cfi_adjust_cfa_offset 8\n"                                                     \
  "  call dlsym_find\n"                                                                            \
  "  popq %rdx\n  .cfi_adjust_cfa_offset -8\n"                                                     \
  "  popq %rsi\n  .cfi_adjust_cfa_offset -8\n"                                                     \
  "  popq %rdi\n  .cfi_adjust_cfa_offset -8\n"                                                     \
  "  jmp 1b\n"                                                                                     \
  "  .cfi_endproc\n.size " #name ", .-" #name "\n"
#elif defined(__aarch64__)
#define WRAPPER(name)                                                                              \
  ".globl " #name "\n.type " #name ",%function\n" #name ":\n"                                      \
  "  .cfi_startproc\n"                                                                             \
  "  hint #34\n" /* bti c */                                                                       \
  "  adrp x16, " #name "_next\n"                                                                   \
  "  ldr x16, [x16, #:lo12:" #name "_next]\n"                                                      \
  "  cbz x16, 3f\n"                                                                                \
  "1: cbz x0, 2f\n"                                                                                \
  "  cmn x0, #1\n"                                                                                 \
  "  b.eq 2f\n"                                                                                    \
  "  cbz x1, 2f\n"                                                                                 \
  "  ldrb w17, [x1]\n"                                                                             \
  "  cmp w17, #99\n" /* 'c' */                                                                     \
  "  b.ne 2f\n"                                                                                    \
  "  ldrb w17, [x1, #1]\n"                                                                         \
  "  cmp w17, #117\n" /* 'u' */                                                                    \
  "  b.ne 2f\n"                                                                                    \
  "  b " #name "_cu\n"                                                                             \
  "2: br x16\n"                                                                                    \
  "3: stp x29, x30, [sp, #-48]!\n  .cfi_adjust_cfa_offset 48\n"                                    \
  "  .cfi_rel_offset x29, 0\n  .cfi_rel_offset x30, 8\n"                                           \
  "  stp x0, x1, [sp, #16]\n"                                                                      \
  "  str x2, [sp, #32]\n"                                                                          \
  "  bl dlsym_find\n"                                                                              \
  "  ldr x2, [sp, #32]\n"                                                                          \
  "  ldp x0, x1, [sp, #16]\n"                                                                      \
  "  ldp x29, x30, [sp], #48\n  .cfi_adjust_cfa_offset -48\n"                                      \
  "  .cfi_restore x29\n  .cfi_restore x30\n"                                                       \
  "  adrp x16, " #name "_next\n"                                                                   \
  "  ldr x16, [x16, #:lo12:" #name "_next]\n"                                                      \
  "  b 1b\n"                                                                                       \
  "  .cfi_endproc\n.size " #name ", .-" #name "\n"
#else
#error "the dlsym wrapper is written for x86-64 and aarch64"
#endif

__asm__(".text\n.balign 16\n" WRAPPER(dlsym) ".balign 16\n" WRAPPER(dlvsym));

/* Where no next definition exists (no glibc): nothing is ever found. */
static void *nothing(void *handle, const char *name) {
  (void)handle, (void)name;
  return NULL;
}
static void *nothing_versioned(void *handle, const char *name, const char *version) {
  (void)version;
  return nothing(handle, name);
}

/* Two threads may both do this; they store the same. */
void dlsym_find(void) {
  dlvsym_function *versioned = (dlvsym_function *)elf_next_function("dlvsym");
  dlsym_function *plain = (dlsym_function *)elf_next_function("dlsym");
  atomic_store_explicit(&dlvsym_next, versioned ? versioned : nothing_versioned,
                        memory_order_release);
  atomic_store_explicit(&dlsym_next, plain ? plain : nothing, memory_order_release);
}

void *dlsym_real(void *handle, const char *name) {
  if (!atomic_load_explicit(&dlsym_next, memory_order_acquire))
    dlsym_find();
  return atomic_load_explicit(&dlsym_next, memory_order_acquire)(handle, name);
}

/* dlerror stands where dlsym does, in libc or (before 2.34) in libdl. */
bool dlsym_next_is_libc(void) {
  struct elf_object next, libc;
  if (!atomic_load_explicit(&dlsym_next, memory_order_acquire))
    dlsym_find();
  return elf_object_at((uintptr_t)atomic_load_explicit(&dlsym_next, memory_order_acquire), &next) &&
         elf_object_at((uintptr_t)dlerror, &libc) && next.dynamic == libc.dynamic;
}

/* cuBLAS and cuDNN begin with "cu" too; the driver's names go on with a capital. */
static bool driver_name(const char *name) {
  return name[2] >= 'A' && name[2] <= 'Z';
}

/* The table is filled before the lookup, so that what dlerror says afterwards is the lookup's. */
void *dlsym_cu(void *handle, const char *name) {
  bool ours = driver_name(name) && driver_resolve();
  void *found = dlsym_real(handle, name);
  return ours ? driver_route(found) : found;
}

void *dlvsym_cu(void *handle, const char *name, const char *version) {
  bool ours = driver_name(name) && driver_resolve();
  void *found = atomic_load_explicit(&dlvsym_next, memory_order_acquire)(handle, name, version);
  return ours ? driver_route(found) : found;
}
