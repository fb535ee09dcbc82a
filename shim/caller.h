/* Who asks for memory: only allocations of callers we know may move (the framework's allocator, the
   program itself, what the user names), so that buffers of communication and RDMA libraries stay
   native. */
#ifndef OFFLOAD_CALLER_H
#define OFFLOAD_CALLER_H
#include <stdbool.h>

/* True when the first stack frame outside libcuda, libcudart and this library lies in libc10_cuda,
   the main executable, or a module that OFFLOAD_CALLERS names. The wrapper's return address, if it
   is at hand, spares walking the stack where it lies in that module itself. May load what walking
   needs: call it under no lock of ours. For large allocations and rare questions: some
   microseconds. */
bool caller_allowed(void *return_address);

/* The same, about an allocation: the report keeps the module of the first that may not move. */
bool caller_may_move(void *return_address);

/* Of a module's path; "" is the main executable. For tests. */
enum caller_kind { CALLER_OURS, CALLER_TRANSPARENT, CALLER_ALLOWED, CALLER_OTHER };
enum caller_kind caller_classify(const char *path);
#endif
