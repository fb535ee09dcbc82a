/* Wrappers of NCCL's calls that name the program's memory: its kernels work on what lists in memory name, where no parameter
   shows it. Each tells what is read and written, which brings in what is on drives, and calls the real function. NCCL is no
   library of ours: its types are declared here as far as they are passed on (nccl.h, releases 2.x), and the real function
   is the one that the caller would have met without us, from the libraries that the caller's own object names as needed, which may
   be in no other scope. Found at each call: some microseconds of a collective's many.

   Kernels that such a call launches on its thread work on what it told, or on memory of NCCL's own and registered buffers, which never
   move. The end of a group launches what was called since its begin: who ends it here made its calls here. Calls that are looked up in
   NCCL by name don't come here; their kernels, and those that NCCL launches on threads of its own, are met as launches (scan.c). */
#include "driver.h"
#include "elf.h"
#include "facts.h"
#include "process.h"
#include "state.h"

typedef int nccl_result;
enum { NCCL_SUCCESS = 0, NCCL_UNHANDLED_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2 };

/* Bytes of an element by ncclDataType_t; those of later releases count as the largest, which is too much at worst. */
static size_t element_bytes(int type) {
  static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 8;
}

/* `own`: our wrapper, which isn't it. A caller that leaves by a jump isn't known: then any loaded NCCL is the one. */
static void *real_function(const void *caller, const char *name, const void *own) {
  struct elf_object object;
  void *function = NULL;
  if (elf_object_at((uintptr_t)caller, &object))
    function = elf_needed_function(&object, name);
  return function && function != own ? function : elf_loaded_function(name);
}

/* Ranks of a communicator; 1 where it is none: the call will fail. */
static size_t ranks(const void *caller, void *communicator) {
  nccl_result (*count)(void *, int *) = NULL;
  int ranks = 1;
  *(void **)&count = real_function(caller, "ncclCommCount", NULL);
  return count && count(communicator, &ranks) == NCCL_SUCCESS && ranks > 0 ? (size_t)ranks : 1;
}

/* A product that doesn't fit is more than any range holds. */
static size_t product(size_t a, size_t b) {
  size_t result;
  return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX / 2 : result;
}

#define EXPORTED(name) __asm__(#name) __attribute__((visibility("default")))
#define NCCL(name, parameters, arguments, told)                                                    \
  nccl_result nccl_##name parameters EXPORTED(name);                                               \
  nccl_result nccl_##name parameters {                                                             \
    const void *const caller = __builtin_return_address(0);                                        \
    nccl_result(*real) parameters = NULL;                                                          \
    *(void **)&real = real_function(caller, #name, (const void *)nccl_##name);                     \
    if (!real)                                                                                     \
      return NCCL_SYSTEM_ERROR;                                                                    \
    if (process_active()) {                                                                        \
      told;                                                                                        \
    }                                                                                              \
    state_told(true);                                                                              \
    const nccl_result result = real arguments;                                                     \
    state_told(false);                                                                             \
    return result;                                                                                 \
  }
#define TOLD(address, elements, writes)                                                            \
  do {                                                                                             \
    if ((address) && state_foreign_access((uintptr_t)(address),                                    \
                                          product(elements, element_bytes(type)), stream, writes)) \
      return NCCL_UNHANDLED_CUDA_ERROR;                                                            \
  } while (0)
#define READS(address, elements) TOLD(address, elements, false)
#define WRITES(address, elements) TOLD(address, elements, true)
/* For advice: gradients that each rank gets whole, and what is divided among ranks. */
#define REDUCED(elements) facts_reduced(product(elements, element_bytes(type)))
#define DIVIDED(elements) facts_divided(product(elements, element_bytes(type)))
#define OF_ALL product(count, ranks(caller, communicator))

NCCL(ncclAllReduce,
     (const void *send, void *receive, size_t count, int type, int operation, void *communicator,
      CUstream stream),
     (send, receive, count, type, operation, communicator, stream), READS(send, count);
     WRITES(receive, count); REDUCED(count))
NCCL(ncclReduce,
     (const void *send, void *receive, size_t count, int type, int operation, int root,
      void *communicator, CUstream stream),
     (send, receive, count, type, operation, root, communicator, stream), READS(send, count);
     WRITES(receive, count))
NCCL(ncclReduceScatter,
     (const void *send, void *receive, size_t count, int type, int operation, void *communicator,
      CUstream stream),
     (send, receive, count, type, operation, communicator, stream), READS(send, OF_ALL);
     WRITES(receive, count); DIVIDED(OF_ALL))
NCCL(ncclAllGather,
     (const void *send, void *receive, size_t count, int type, void *communicator, CUstream stream),
     (send, receive, count, type, communicator, stream), READS(send, count);
     WRITES(receive, OF_ALL); DIVIDED(OF_ALL))
NCCL(ncclBroadcast,
     (const void *send, void *receive, size_t count, int type, int root, void *communicator,
      CUstream stream),
     (send, receive, count, type, root, communicator, stream), READS(send, count);
     WRITES(receive, count); DIVIDED(count))
NCCL(ncclBcast,
     (void *buffer, size_t count, int type, int root, void *communicator, CUstream stream),
     (buffer, count, type, root, communicator, stream), WRITES(buffer, count);
     DIVIDED(count))
NCCL(ncclAlltoAll,
     (const void *send, void *receive, size_t count, int type, void *communicator, CUstream stream),
     (send, receive, count, type, communicator, stream), READS(send, OF_ALL);
     WRITES(receive, OF_ALL))
NCCL(ncclGather,
     (const void *send, void *receive, size_t count, int type, int root, void *communicator,
      CUstream stream),
     (send, receive, count, type, root, communicator, stream), READS(send, count);
     WRITES(receive, OF_ALL))
NCCL(ncclScatter,
     (const void *send, void *receive, size_t count, int type, int root, void *communicator,
      CUstream stream),
     (send, receive, count, type, root, communicator, stream), READS(send, OF_ALL);
     WRITES(receive, count))
NCCL(ncclSend,
     (const void *send, size_t count, int type, int peer, void *communicator, CUstream stream),
     (send, count, type, peer, communicator, stream), READS(send, count))
NCCL(ncclRecv,
     (void *receive, size_t count, int type, int peer, void *communicator, CUstream stream),
     (receive, count, type, peer, communicator, stream), WRITES(receive, count))
NCCL(ncclGroupEnd, (void), (), )
