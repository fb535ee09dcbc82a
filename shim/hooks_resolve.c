/* Wrappers of the driver's own resolver, and of the runtime's registration of kernels.

   cuGetProcAddress: the real one is asked first, and what it hands out is exchanged by identity; so
   versions, flags and unknown names are the driver's business.

   __cudaRegisterFunction (crt/host_runtime.h): every program and library registers its kernels'
   names with its runtime before main. They are read here on their way, since they tell whether a
   known Adam kernel is there long before it is loaded. Runs 100,000 times at load, before cuInit:
   no output, no allocation, a few nanoseconds. */
#define _GNU_SOURCE
#include "../policy/report.h"
#include "elf.h"
#include "hooks.h"
#include "step.h"
#include <dlfcn.h>
#include <stdatomic.h>

CUresult hook_cuGetProcAddress(const char *name, void **pointer, int version, cuuint64_t flags) {
  CUresult result = driver_call(cuGetProcAddress, (name, pointer, version, flags));
  if (result == CUDA_SUCCESS && pointer)
    *pointer = driver_route(*pointer);
  return result;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **pointer, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
  CUresult result = driver_call(cuGetProcAddress_v2, (name, pointer, version, flags, status));
  if (result == CUDA_SUCCESS && pointer)
    *pointer = driver_route(*pointer);
  return result;
}

/* Which runtime a module registers with. Several may be loaded, and a handle of one means nothing
   to another, so the answer is kept per module. Entries are only ever added. */
enum { MODULES = 64 };
static struct module {
  uintptr_t start, end;
  void *target;
} modules[MODULES];
static _Atomic unsigned module_count;

__attribute__((visibility("hidden"), used)) void *register_function_seen(const char *name,
                                                                         uintptr_t caller);

/* Constructors of one process run one after another, under the loader's lock; nothing here waits.
 */
static void *find_target(uintptr_t caller) {
  Dl_info info;
  struct link_map *object = NULL;
  void *target = NULL;
  report_see_stderr(); /* programs register before they open files */
  if (dladdr1((void *)caller, &info, (void **)&object, RTLD_DL_LINKMAP) && object)
    target = elf_needed_function(object, "__cudaRegisterFunction");
  else
    object = NULL;
  if (!target)
    target = elf_next_function("__cudaRegisterFunction");
  unsigned count = atomic_load_explicit(&module_count, memory_order_relaxed);
  if (!object || count == MODULES)
    return target;
  const ElfW(Ehdr) *header = info.dli_fbase;
  const ElfW(Phdr) *segments = (const void *)((const char *)info.dli_fbase + header->e_phoff);
  uintptr_t end = 0;
  for (unsigned i = 0; i < header->e_phnum; i++)
    if (segments[i].p_type == PT_LOAD && segments[i].p_vaddr + segments[i].p_memsz > end)
      end = segments[i].p_vaddr + segments[i].p_memsz;
  modules[count] = (struct module){(uintptr_t)info.dli_fbase, object->l_addr + end, target};
  atomic_store_explicit(&module_count, count + 1, memory_order_release);
  return target;
}

void *register_function_seen(const char *name, uintptr_t caller) {
  if (name)
    step_kernel_seen(name);
  unsigned count = atomic_load_explicit(&module_count, memory_order_acquire);
  for (unsigned i = count; i-- > 0;) /* the last one is registering now */
    if (caller - modules[i].start < modules[i].end - modules[i].start)
      return modules[i].target;
  return find_target(caller);
}

/* Ten arguments, some on the stack: left as they are, and a jump. Without a runtime it returns. */
#if defined(__x86_64__)
__asm__(".text\n.balign 16\n.globl __cudaRegisterFunction\n"
        ".type __cudaRegisterFunction,@function\n__cudaRegisterFunction:\n"
        "  .cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rdi\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rdx\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rcx\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %r8\n  .cfi_adjust_cfa_offset 8\n"
        "  pushq %r9\n  .cfi_adjust_cfa_offset 8\n"
        "  subq $8, %rsp\n  .cfi_adjust_cfa_offset 8\n"
        "  movq %rcx, %rdi\n"     /* the fourth argument: the device function's name */
        "  movq 56(%rsp), %rsi\n" /* the return address */
        "  call register_function_seen\n"
        "  addq $8, %rsp\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %r9\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %r8\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rcx\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdx\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n  .cfi_adjust_cfa_offset -8\n"
        "  testq %rax, %rax\n"
        "  je 1f\n"
        "  jmp *%rax\n"
        "1: ret\n"
        "  .cfi_endproc\n.size __cudaRegisterFunction, .-__cudaRegisterFunction\n");
#elif defined(__aarch64__)
__asm__(".text\n.balign 16\n.globl __cudaRegisterFunction\n"
        ".type __cudaRegisterFunction,%function\n__cudaRegisterFunction:\n"
        "  .cfi_startproc\n"
        "  hint #34\n" /* bti c */
        "  stp x29, x30, [sp, #-80]!\n  .cfi_adjust_cfa_offset 80\n"
        "  .cfi_rel_offset x29, 0\n  .cfi_rel_offset x30, 8\n"
        "  stp x0, x1, [sp, #16]\n"
        "  stp x2, x3, [sp, #32]\n"
        "  stp x4, x5, [sp, #48]\n"
        "  stp x6, x7, [sp, #64]\n"
        "  mov x0, x3\n" /* the fourth argument: the device function's name */
        "  mov x1, x30\n"
        "  bl register_function_seen\n"
        "  mov x16, x0\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x2, x3, [sp, #32]\n"
        "  ldp x4, x5, [sp, #48]\n"
        "  ldp x6, x7, [sp, #64]\n"
        "  ldp x29, x30, [sp], #80\n  .cfi_adjust_cfa_offset -80\n"
        "  .cfi_restore x29\n  .cfi_restore x30\n"
        "  cbz x16, 1f\n"
        "  br x16\n"
        "1: ret\n"
        "  .cfi_endproc\n.size __cudaRegisterFunction, .-__cudaRegisterFunction\n");
#endif
