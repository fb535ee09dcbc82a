/* Wrappers of the driver's own resolver, and of the runtime's registration of kernels.

   cuGetProcAddress: the real one is asked first, and what it hands out is exchanged by identity; so
   versions, flags and unknown names are the driver's business.

   __cudaRegisterFatBinary, __cudaRegisterFunction (crt/host_runtime.h): every program and library registers its images, and
   after each its kernels' names, with its runtime before main. They are read here on their way, since they tell whether a
   known Adam kernel is there long before it is loaded, and where its image lies. Runs 100,000 times at load, before cuInit:
   no output, no allocation, a few nanoseconds. */
#include "../policy/report.h"
#include "elf.h"
#include "hooks.h"
#include "image.h"
#include "step.h"

CUresult hook_cuGetProcAddress(const char *name, void **pointer, int version, cuuint64_t flags) {
  CUresult result = driver_call(cuGetProcAddress, (name, pointer, version, flags));
  if (result == CUDA_SUCCESS && pointer)
    *pointer = driver_route_address(*pointer);
  return result;
}

/* Whether this build's header has the function: it is what the driver gives for that header's version, too. */
static bool in_header(const char *name, const void *real, cuuint64_t flags) {
  void *known = NULL;
  CUdriverProcAddressQueryResult status;
  return driver_call(cuGetProcAddress_v2, (name, &known, CUDA_VERSION, flags, &status)) ==
             CUDA_SUCCESS &&
         known == real;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **pointer, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status) {
  CUresult result = driver_call(cuGetProcAddress_v2, (name, pointer, version, flags, status));
  if (result != CUDA_SUCCESS || !pointer || !*pointer)
    return result;
  void *const real = *pointer;
  *pointer = driver_route_address(real);
  if (*pointer == real && version > CUDA_VERSION && !in_header(name, real, flags))
    ahead_forbid(name);
  return result;
}

/* Which runtime a module registers with: several may be loaded, and a handle of one means nothing to
   another. Modules register their kernels in one go, so a thread remembers one answer. It counts
   while nothing was loaded or unloaded: after that another module may lie there. */
struct registration {
  struct elf_object module;
  uint64_t generation;
  void *image_target, *function_target;
};
static __thread struct registration last;

__attribute__((visibility("hidden"), used)) void *register_image_seen(const void *wrapper,
                                                                      uintptr_t caller);
__attribute__((visibility("hidden"), used)) void *register_function_seen(const char *name,
                                                                         uintptr_t caller);

static void *runtime_function(bool in_object, const char *name) {
  void *found = in_object ? elf_needed_function(&last.module, name) : NULL;
  return found ? found : elf_loaded_function(name);
}

static void find_runtime(uintptr_t caller) {
  const uint64_t generation = elf_generation();
  if (generation == last.generation && caller - last.module.start < last.module.bytes)
    return;
  report_see_stderr(); /* programs register before they open files */
  last = (struct registration){.generation = generation};
  const bool in_object = elf_object_at(caller, &last.module);
  last.image_target = runtime_function(in_object, "__cudaRegisterFatBinary");
  last.function_target = runtime_function(in_object, "__cudaRegisterFunction");
}

void *register_image_seen(const void *wrapper, uintptr_t caller) {
  image_wrapper_seen(wrapper);
  find_runtime(caller);
  return last.image_target;
}

void *register_function_seen(const char *name, uintptr_t caller) {
  if (step_kernel_seen(name))
    image_adam_registered(name);
  find_runtime(caller);
  return last.function_target;
}

/* Up to ten arguments, some on the stack: left as they are, and a jump. Without a runtime it returns. */
#if defined(__x86_64__)
#define REGISTER(function, seen, argument)                                                         \
  __asm__(".text\n.balign 16\n.globl " #function "\n"                                              \
          ".type " #function ",@function\n" #function ":\n"                                        \
          "  .cfi_startproc\n"                                                                     \
          "  endbr64\n"                                                                            \
          "  pushq %rdi\n  .cfi_adjust_cfa_offset 8\n"                                             \
          "  pushq %rsi\n  .cfi_adjust_cfa_offset 8\n"                                             \
          "  pushq %rdx\n  .cfi_adjust_cfa_offset 8\n"                                             \
          "  pushq %rcx\n  .cfi_adjust_cfa_offset 8\n"                                             \
          "  pushq %r8\n  .cfi_adjust_cfa_offset 8\n"                                              \
          "  pushq %r9\n  .cfi_adjust_cfa_offset 8\n"                                              \
          "  subq $8, %rsp\n  .cfi_adjust_cfa_offset 8\n"                                          \
          "  movq %" argument ", %rdi\n"                                                           \
          "  movq 56(%rsp), %rsi\n" /* the return address */                                       \
          "  call " #seen "\n"                                                                     \
          "  addq $8, %rsp\n  .cfi_adjust_cfa_offset -8\n"                                         \
          "  popq %r9\n  .cfi_adjust_cfa_offset -8\n"                                              \
          "  popq %r8\n  .cfi_adjust_cfa_offset -8\n"                                              \
          "  popq %rcx\n  .cfi_adjust_cfa_offset -8\n"                                             \
          "  popq %rdx\n  .cfi_adjust_cfa_offset -8\n"                                             \
          "  popq %rsi\n  .cfi_adjust_cfa_offset -8\n"                                             \
          "  popq %rdi\n  .cfi_adjust_cfa_offset -8\n"                                             \
          "  testq %rax, %rax\n"                                                                   \
          "  je 1f\n"                                                                              \
          "  jmp *%rax\n"                                                                          \
          "1: ret\n"                                                                               \
          "  .cfi_endproc\n.size " #function ", .-" #function "\n")
#define FIRST_ARGUMENT "rdi"
#define FOURTH_ARGUMENT "rcx"
#elif defined(__aarch64__)
#define REGISTER(function, seen, argument)                                                         \
  __asm__(".text\n.balign 16\n.globl " #function "\n"                                              \
          ".type " #function ",%function\n" #function ":\n"                                        \
          "  .cfi_startproc\n"                                                                     \
          "  hint #34\n" /* bti c */                                                               \
          "  stp x29, x30, [sp, #-80]!\n  .cfi_adjust_cfa_offset 80\n"                             \
          "  .cfi_rel_offset x29, 0\n  .cfi_rel_offset x30, 8\n"                                   \
          "  stp x0, x1, [sp, #16]\n"                                                              \
          "  stp x2, x3, [sp, #32]\n"                                                              \
          "  stp x4, x5, [sp, #48]\n"                                                              \
          "  stp x6, x7, [sp, #64]\n"                                                              \
          "  mov x0, " argument "\n"                                                               \
          "  mov x1, x30\n"                                                                        \
          "  bl " #seen "\n"                                                                       \
          "  mov x16, x0\n"                                                                        \
          "  ldp x0, x1, [sp, #16]\n"                                                              \
          "  ldp x2, x3, [sp, #32]\n"                                                              \
          "  ldp x4, x5, [sp, #48]\n"                                                              \
          "  ldp x6, x7, [sp, #64]\n"                                                              \
          "  ldp x29, x30, [sp], #80\n  .cfi_adjust_cfa_offset -80\n"                              \
          "  .cfi_restore x29\n  .cfi_restore x30\n"                                               \
          "  cbz x16, 1f\n"                                                                        \
          "  br x16\n"                                                                             \
          "1: ret\n"                                                                               \
          "  .cfi_endproc\n.size " #function ", .-" #function "\n")
#define FIRST_ARGUMENT "x0"
#define FOURTH_ARGUMENT "x3"
#endif
REGISTER(__cudaRegisterFatBinary, register_image_seen, FIRST_ARGUMENT);
REGISTER(__cudaRegisterFunction, register_function_seen, FOURTH_ARGUMENT); /* the device's name */
