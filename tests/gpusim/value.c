/* Value operations: a stream writes a word, or waits until a word has a value. The word may be on
   the device or in host memory the device may touch; a CPU thread may write it. A wait that isn't
   met stays at the head of its hardware queue and holds up all streams that share it. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>

struct value_operation {
  uintptr_t address;
  uint64_t value;
  unsigned flags;
  bool wide; /* 64 bits */
};

/* Waits cyclically for >=, so that a counter may wrap around; cuda.h, CUstreamWaitValue_flags. */
bool gpusim_value_reached(uint64_t word, uint64_t value, unsigned flags, bool wide) {
  switch (flags & 3) {
  case CU_STREAM_WAIT_VALUE_GEQ:
    return wide ? (int64_t)(word - value) >= 0 : (int32_t)((uint32_t)word - (uint32_t)value) >= 0;
  case CU_STREAM_WAIT_VALUE_EQ:
    return word == value;
  case CU_STREAM_WAIT_VALUE_AND:
    return (word & value) != 0;
  default:
    return (wide ? ~(word | value) : (uint64_t)(uint32_t) ~(word | value)) != 0;
  }
}

static uint64_t read_word(const struct value_operation *o) {
  /* acquire: what the writer stored before the word is seen by the operations behind the wait */
  void *at = gpusim_backing(o->address);
  return o->wide ? __atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE)
                 : __atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE);
}

static bool reached(void *argument) {
  const struct value_operation *o = argument;
  return gpusim_value_reached(read_word(o), o->value, o->flags, o->wide);
}

static CUresult run_wait(void *argument) {
  (void)argument;
  return CUDA_SUCCESS;
}

static CUresult run_write(void *argument) {
  const struct value_operation *o = argument;
  /* release: the fence that cuda.h promises before the write */
  void *at = gpusim_backing(o->address);
  if (o->wide)
    __atomic_store_n((uint64_t *)at, o->value, __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint32_t *)at, (uint32_t)o->value, __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

static bool touches(void *argument, uintptr_t low, uintptr_t high) {
  const struct value_operation *o = argument;
  return o->address < high && low < o->address + (o->wide ? 8u : 4u);
}

static void describe_wait(void *argument, char *into, size_t bytes) {
  static const char *const relations[] = {">=", "==", "&", "nor"};
  const struct value_operation *o = argument;
  snprintf(into, bytes, "value wait, word at %#lx is %llu, wanted %s %llu",
           (unsigned long)o->address, (unsigned long long)read_word(o), relations[o->flags & 3],
           (unsigned long long)o->value);
}

static void describe_write(void *argument, char *into, size_t bytes) {
  const struct value_operation *o = argument;
  snprintf(into, bytes, "value write of %llu to %#lx", (unsigned long long)o->value,
           (unsigned long)o->address);
}

static void cost_of_wait(void *argument, struct clock_cost *cost) {
  const struct value_operation *o = argument;
  *cost = (struct clock_cost){.kind = CLOCK_VALUE_WAIT,
                              .word = o->address,
                              .value = o->value,
                              .relation = o->flags & 3,
                              .wide = o->wide};
}

static void cost_of_write(void *argument, struct clock_cost *cost) {
  cost_of_wait(argument, cost);
  cost->kind = CLOCK_VALUE_WRITE;
}

static const struct operation_kind wait_kind = {.name = "value wait",
                                                .capturable = true,
                                                .node = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                                .run = run_wait,
                                                .reached = reached,
                                                .drop = free,
                                                .touches = touches,
                                                .describe = describe_wait,
                                                .cost = cost_of_wait};
static const struct operation_kind write_kind = {.name = "value write",
                                                 .capturable = true,
                                                 .node = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                                                 .run = run_write,
                                                 .drop = free,
                                                 .touches = touches,
                                                 .describe = describe_write,
                                                 .cost = cost_of_write};

/* Managed memory is refused: cuda.h, "Stream Memory Operations". */
static bool usable(int device, uintptr_t address, bool write) {
  gpusim_memory_lock_shared();
  struct gpusim_block *block = (struct gpusim_block *)gpusim_table_find(&gpusim_blocks, address);
  bool usable =
      block != NULL && block->kind != BLOCK_MANAGED && gpusim_block_allows(block, device, write);
  gpusim_memory_unlock();
  return usable;
}

static CUresult check_form(const struct operation_kind *kind, const struct value_operation *o) {
  unsigned allowed = kind == &wait_kind ? 3 : 0;
  if ((o->flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0 && kind == &wait_kind)
    return CUDA_ERROR_NOT_SUPPORTED; /* as attribute CAN_FLUSH_REMOTE_WRITES says */
  if ((o->flags & ~allowed) != 0 || o->address % (o->wide ? 8 : 4) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

static struct value_operation *copy_of(struct value_operation operation) {
  struct value_operation *copy = gpusim_new(sizeof *copy);
  *copy = operation;
  return copy;
}

static CUresult submit(CUstream handle, const struct operation_kind *kind,
                       struct value_operation operation) {
  struct CUstream_st *stream;
  CUresult result = check_form(kind, &operation);
  if (result == CUDA_SUCCESS)
    result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!usable(stream->context->device, operation.address, kind == &write_kind)) {
    gpusim_unlock();
    return CUDA_ERROR_INVALID_VALUE;
  }
  return gpusim_submit_leave(stream, kind, copy_of(operation));
}

CUresult gpusim_value_node(const CUstreamBatchMemOpParams *o, CUcontext context,
                           const struct operation_kind **kind, void **argument) {
  struct value_operation operation;
  switch (o->operation) {
  case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    operation = (struct value_operation){o->waitValue.address, o->waitValue.value,
                                         o->waitValue.flags, false};
    *kind = &wait_kind;
    break;
  case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    operation = (struct value_operation){o->writeValue.address, o->writeValue.value,
                                         o->writeValue.flags, false};
    *kind = &write_kind;
    break;
  case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    operation = (struct value_operation){o->waitValue.address, o->waitValue.value64,
                                         o->waitValue.flags, true};
    *kind = &wait_kind;
    break;
  case CU_STREAM_MEM_OP_WRITE_VALUE_64:
    operation = (struct value_operation){o->writeValue.address, o->writeValue.value64,
                                         o->writeValue.flags, true};
    *kind = &write_kind;
    break;
  default:
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUresult result = check_form(*kind, &operation);
  if (result == CUDA_SUCCESS && !usable(context->device, operation.address, *kind == &write_kind))
    result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    *argument = copy_of(operation);
  return result;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned flags) {
  return submit(stream, &write_kind, (struct value_operation){address, value, flags, false});
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned flags) {
  return submit(stream, &wait_kind, (struct value_operation){address, value, flags, false});
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned flags) {
  return submit(stream, &write_kind, (struct value_operation){address, value, flags, true});
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned flags) {
  return submit(stream, &wait_kind, (struct value_operation){address, value, flags, true});
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams *operations, unsigned flags) {
  if (operations == NULL || count == 0 || count > 256 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    const CUstreamBatchMemOpParams *o = &operations[i];
    switch (o->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      result = cuStreamWaitValue32_v2(stream, o->waitValue.address, o->waitValue.value,
                                      o->waitValue.flags);
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      result = cuStreamWriteValue32_v2(stream, o->writeValue.address, o->writeValue.value,
                                       o->writeValue.flags);
      break;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      result = cuStreamWaitValue64_v2(stream, o->waitValue.address, o->waitValue.value64,
                                      o->waitValue.flags);
      break;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      result = cuStreamWriteValue64_v2(stream, o->writeValue.address, o->writeValue.value64,
                                       o->writeValue.flags);
      break;
    case CU_STREAM_MEM_OP_BARRIER: /* every operation already is one */
      break;
    default:
      result = CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return result;
}
