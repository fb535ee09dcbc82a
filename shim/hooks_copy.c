/* Wrappers of copies and memsets: each tells the state rooms what it reads and writes, before the
   real call. Every shape is written once and stands for the entry with the legacy default stream
   and the one with the per-thread default stream. */
#include "hooks.h"
#include "state.h"
#include "touch.h"

/* Of a wrapper or what it calls: leaves with the answer where bytes can't be brought in from a drive. */
#define READS(address, bytes)                                                                      \
  DRIVER_TRY(state_foreign_access((uintptr_t)(address), bytes, on, false))
#define WRITES(address, bytes)                                                                     \
  DRIVER_TRY(state_foreign_access((uintptr_t)(address), bytes, on, true))

#define COPY(symbol, parameters, arguments, touch, stream)                                         \
  CUresult hook_##symbol parameters {                                                              \
    if (process_active()) {                                                                        \
      const CUstream on = (stream);                                                                \
      touch;                                                                                       \
    }                                                                                              \
    return hook_pass(symbol, arguments);                                                           \
  }
#define SYNC(symbol, parameters, arguments, touch)                                                 \
  COPY(symbol, parameters, arguments, touch, NULL)                                                 \
  COPY(symbol##_ptds, parameters, arguments, touch, CU_STREAM_PER_THREAD)
#define ASYNC(symbol, parameters, arguments, touch)                                                \
  COPY(symbol, parameters, arguments, touch, hook_stream(stream, false))                           \
  COPY(symbol##_ptsz, parameters, arguments, touch, hook_stream(stream, true))

/* ---- plain runs of bytes; for drivers whose copies fail over the border of device and host memory they are cut there ---- */

static size_t same_memory(uintptr_t destination, uintptr_t source, size_t bytes) {
  return touch_same_memory(source, touch_same_memory(destination, bytes));
}
#define ADVANCE(pointer, by) pointer = (__typeof__(pointer))((uintptr_t)(pointer) + (by))

/* All but the last part. The names are those of the parameters. */
#define PARTS(symbol, arguments)                                                                   \
  if (__builtin_expect(driver_before_12_4(), 0))                                                   \
    for (size_t part, whole = bytes;                                                               \
         (part = same_memory((uintptr_t)destination, (uintptr_t)source, whole)) < whole;) {        \
      bytes = part;                                                                                \
      const CUresult of_part = hook_pass(symbol, arguments);                                       \
      if (of_part != CUDA_SUCCESS)                                                                 \
        return of_part;                                                                            \
      ADVANCE(destination, part);                                                                  \
      ADVANCE(source, part);                                                                       \
      bytes = whole -= part;                                                                       \
    }
#define SYNC_RUN(symbol, parameters, arguments, touch)                                             \
  COPY(symbol, parameters, arguments, touch; PARTS(symbol, arguments), NULL)                       \
  COPY(symbol##_ptds, parameters, arguments, touch;                                                \
       PARTS(symbol##_ptds, arguments), CU_STREAM_PER_THREAD)
#define ASYNC_RUN(symbol, parameters, arguments, touch)                                            \
  COPY(symbol, parameters, arguments, touch; PARTS(symbol, arguments), hook_stream(stream, false)) \
  COPY(symbol##_ptsz, parameters, arguments, touch;                                                \
       PARTS(symbol##_ptsz, arguments), hook_stream(stream, true))

/* Copies that may go to the host and be complete when they return. */
#define SERVED(blocks)                                                                             \
  if (__builtin_expect(process_config()->nvme != NULL, 0)) {                                       \
    CUresult served;                                                                               \
    if (touch_serve((void *)destination, (uintptr_t)source, bytes, on, blocks, &served))           \
      return ahead_seen(served, __func__);                                                         \
  }

#define BOTH                                                                                       \
  READS(source, bytes);                                                                            \
  WRITES(destination, bytes)

SYNC_RUN(cuMemcpy, (CUdeviceptr destination, CUdeviceptr source, size_t bytes),
         (destination, source, bytes), SERVED(false) BOTH)
ASYNC_RUN(cuMemcpyAsync,
          (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream),
          (destination, source, bytes, stream), SERVED(false) BOTH)
SYNC_RUN(cuMemcpyDtoD_v2, (CUdeviceptr destination, CUdeviceptr source, size_t bytes),
         (destination, source, bytes), BOTH)
ASYNC_RUN(cuMemcpyDtoDAsync_v2,
          (CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream),
          (destination, source, bytes, stream), BOTH)
SYNC_RUN(cuMemcpyHtoD_v2, (CUdeviceptr destination, const void *source, size_t bytes),
         (destination, source, bytes), WRITES(destination, bytes))
ASYNC_RUN(cuMemcpyHtoDAsync_v2,
          (CUdeviceptr destination, const void *source, size_t bytes, CUstream stream),
          (destination, source, bytes, stream), WRITES(destination, bytes))
SYNC_RUN(cuMemcpyDtoH_v2, (void *destination, CUdeviceptr source, size_t bytes),
         (destination, source, bytes), SERVED(true) READS(source, bytes))
ASYNC_RUN(cuMemcpyDtoHAsync_v2,
          (void *destination, CUdeviceptr source, size_t bytes, CUstream stream),
          (destination, source, bytes, stream), SERVED(false) READS(source, bytes))
SYNC(cuMemcpyDtoA_v2,
     (CUarray destination, size_t destination_offset, CUdeviceptr source, size_t bytes),
     (destination, destination_offset, source, bytes), READS(source, bytes))
SYNC(cuMemcpyAtoD_v2, (CUdeviceptr destination, CUarray source, size_t source_offset, size_t bytes),
     (destination, source, source_offset, bytes), WRITES(destination, bytes))
SYNC_RUN(cuMemcpyPeer,
         (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
          CUcontext source_context, size_t bytes),
         (destination, destination_context, source, source_context, bytes), BOTH)
ASYNC_RUN(cuMemcpyPeerAsync,
          (CUdeviceptr destination, CUcontext destination_context, CUdeviceptr source,
           CUcontext source_context, size_t bytes, CUstream stream),
          (destination, destination_context, source, source_context, bytes, stream), BOTH)

/* ---- rectangles and boxes: from their first byte to their last ---- */

static size_t box_bytes(size_t pitch, size_t rows, size_t width, size_t height, size_t depth) {
  return width && height && depth ? ((depth - 1) * rows + height - 1) * pitch + width : 0;
}
static bool on_device(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

static CUresult rectangle(const CUDA_MEMCPY2D *copy, CUstream on) {
  if (!copy)
    return CUDA_SUCCESS;
  if (on_device(copy->srcMemoryType))
    READS(copy->srcDevice + copy->srcY * copy->srcPitch + copy->srcXInBytes,
          box_bytes(copy->srcPitch, 1, copy->WidthInBytes, copy->Height, 1));
  if (on_device(copy->dstMemoryType))
    WRITES(copy->dstDevice + copy->dstY * copy->dstPitch + copy->dstXInBytes,
           box_bytes(copy->dstPitch, 1, copy->WidthInBytes, copy->Height, 1));
  return CUDA_SUCCESS;
}

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name these fields alike. */
#define BOX(copy)                                                                                  \
  do {                                                                                             \
    if (!(copy))                                                                                   \
      break;                                                                                       \
    if (on_device((copy)->srcMemoryType))                                                          \
      READS((copy)->srcDevice +                                                                    \
                ((copy)->srcZ * (copy)->srcHeight + (copy)->srcY) * (copy)->srcPitch +             \
                (copy)->srcXInBytes,                                                               \
            box_bytes((copy)->srcPitch, (copy)->srcHeight, (copy)->WidthInBytes, (copy)->Height,   \
                      (copy)->Depth));                                                             \
    if (on_device((copy)->dstMemoryType))                                                          \
      WRITES((copy)->dstDevice +                                                                   \
                 ((copy)->dstZ * (copy)->dstHeight + (copy)->dstY) * (copy)->dstPitch +            \
                 (copy)->dstXInBytes,                                                              \
             box_bytes((copy)->dstPitch, (copy)->dstHeight, (copy)->WidthInBytes, (copy)->Height,  \
                       (copy)->Depth));                                                            \
  } while (0)

static size_t side_same_memory(CUmemorytype type, CUdeviceptr base, size_t x, size_t y,
                               size_t pitch, size_t bytes) {
  return on_device(type) ? touch_same_memory((uintptr_t)base + y * pitch + x, bytes) : bytes;
}

/* How many bytes, from the rectangle's first one on, both sides have in memory of one kind. */
static size_t rectangle_same_memory(const CUDA_MEMCPY2D *copy, size_t source_bytes,
                                    size_t destination_bytes, bool *cut) {
  const size_t source = side_same_memory(copy->srcMemoryType, copy->srcDevice, copy->srcXInBytes,
                                         copy->srcY, copy->srcPitch, source_bytes),
               destination =
                   side_same_memory(copy->dstMemoryType, copy->dstDevice, copy->dstXInBytes,
                                    copy->dstY, copy->dstPitch, destination_bytes);
  *cut = source < source_bytes || destination < destination_bytes;
  return source < destination ? source : destination;
}

static bool over_a_border(const CUDA_MEMCPY2D *copy) {
  bool cut = false;
  if (driver_before_12_4() && copy)
    (void)rectangle_same_memory(
        copy, box_bytes(copy->srcPitch, 1, copy->WidthInBytes, copy->Height, 1),
        box_bytes(copy->dstPitch, 1, copy->WidthInBytes, copy->Height, 1), &cut);
  return cut;
}

/* A row at a time, and those cut. */
#define RECTANGLE(symbol, parameters, arguments, stream)                                           \
  CUresult hook_##symbol parameters {                                                              \
    if (process_active()) {                                                                        \
      DRIVER_TRY(rectangle(copy, stream));                                                         \
      if (__builtin_expect(over_a_border(copy), 0)) {                                              \
        const CUDA_MEMCPY2D *const whole = copy;                                                   \
        CUDA_MEMCPY2D part = *whole;                                                               \
        bool cut;                                                                                  \
        copy = &part;                                                                              \
        part.Height = 1;                                                                           \
        for (size_t row = 0; row < whole->Height; row++, part.srcY++, part.dstY++) {               \
          part.srcXInBytes = whole->srcXInBytes;                                                   \
          part.dstXInBytes = whole->dstXInBytes;                                                   \
          for (size_t left = whole->WidthInBytes; left; left -= part.WidthInBytes) {               \
            part.WidthInBytes = rectangle_same_memory(&part, left, left, &cut);                    \
            const CUresult result = hook_pass(symbol, arguments);                                  \
            if (result != CUDA_SUCCESS)                                                            \
              return result;                                                                       \
            part.srcXInBytes += part.WidthInBytes;                                                 \
            part.dstXInBytes += part.WidthInBytes;                                                 \
          }                                                                                        \
        }                                                                                          \
        return CUDA_SUCCESS;                                                                       \
      }                                                                                            \
    }                                                                                              \
    return hook_pass(symbol, arguments);                                                           \
  }
RECTANGLE(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), (copy), NULL)
RECTANGLE(cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *copy), (copy), CU_STREAM_PER_THREAD)
RECTANGLE(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), (copy), NULL)
RECTANGLE(cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *copy), (copy), CU_STREAM_PER_THREAD)
RECTANGLE(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream),
          hook_stream(stream, false))
RECTANGLE(cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream), (copy, stream),
          hook_stream(stream, true))
SYNC(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), (copy), BOX(copy))
ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), (copy, stream), BOX(copy))
SYNC(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *copy), (copy), BOX(copy))
ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), (copy, stream),
      BOX(copy))

/* ---- batches ---- */

static CUresult batch(const CUdeviceptr *destinations, const CUdeviceptr *sources,
                      const size_t *sizes, size_t count, CUstream on) {
  for (size_t i = 0; destinations && sources && sizes && i < count; i++) {
    READS(sources[i], sizes[i]);
    WRITES(destinations[i], sizes[i]);
  }
  return CUDA_SUCCESS;
}

static CUresult operand(const CUmemcpy3DOperand *side, CUextent3D extent, CUstream on,
                        bool writes) {
  if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
    return CUDA_SUCCESS;
  size_t pitch = side->op.ptr.rowLength ? side->op.ptr.rowLength : extent.width;
  size_t rows = side->op.ptr.layerHeight ? side->op.ptr.layerHeight : extent.height;
  return state_foreign_access((uintptr_t)side->op.ptr.ptr,
                              box_bytes(pitch, rows, extent.width, extent.height, extent.depth), on,
                              writes);
}

static CUresult boxes(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream on) {
  for (size_t i = 0; operations && i < count; i++) {
    DRIVER_TRY(operand(&operations[i].src, operations[i].extent, on, false));
    DRIVER_TRY(operand(&operations[i].dst, operations[i].extent, on, true));
  }
  return CUDA_SUCCESS;
}

ASYNC(cuMemcpyBatchAsync,
      (CUdeviceptr * destinations, CUdeviceptr *sources, size_t *sizes, size_t count,
       CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
       size_t *failed, CUstream stream),
      (destinations, sources, sizes, count, attributes, attribute_indices, attribute_count, failed,
       stream),
      DRIVER_TRY(batch(destinations, sources, sizes, count, on)))
ASYNC(cuMemcpyBatchAsync_v2,
      (CUdeviceptr * destinations, CUdeviceptr *sources, size_t *sizes, size_t count,
       CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
       CUstream stream),
      (destinations, sources, sizes, count, attributes, attribute_indices, attribute_count, stream),
      DRIVER_TRY(batch(destinations, sources, sizes, count, on)))
ASYNC(cuMemcpy3DBatchAsync,
      (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed, unsigned long long flags,
       CUstream stream),
      (count, operations, failed, flags, stream), DRIVER_TRY(boxes(operations, count, on)))
ASYNC(cuMemcpy3DBatchAsync_v2,
      (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned long long flags, CUstream stream),
      (count, operations, flags, stream), DRIVER_TRY(boxes(operations, count, on)))

/* ---- memsets ---- */

/* As PARTS, in elements. */
#define FILL_PARTS(symbol, arguments)                                                              \
  if (__builtin_expect(driver_before_12_4(), 0))                                                   \
    for (size_t part, whole = count;                                                               \
         (part = touch_same_memory(destination, whole * sizeof value) / sizeof value) < whole &&   \
         part;) {                                                                                  \
      count = part;                                                                                \
      const CUresult of_part = hook_pass(symbol, arguments);                                       \
      if (of_part != CUDA_SUCCESS)                                                                 \
        return of_part;                                                                            \
      destination += part * sizeof value;                                                          \
      count = whole -= part;                                                                       \
    }
#define FILL(symbol, parameters, arguments, stream)                                                \
  COPY(symbol, parameters, arguments, WRITES(destination, count * sizeof value);                   \
       FILL_PARTS(symbol, arguments), stream)

#define MEMSET(bits, type)                                                                         \
  FILL(cuMemsetD##bits##_v2, (CUdeviceptr destination, type value, size_t count),                  \
       (destination, value, count), NULL)                                                          \
  FILL(cuMemsetD##bits##_v2_ptds, (CUdeviceptr destination, type value, size_t count),             \
       (destination, value, count), CU_STREAM_PER_THREAD)                                          \
  FILL(cuMemsetD##bits##Async,                                                                     \
       (CUdeviceptr destination, type value, size_t count, CUstream stream),                       \
       (destination, value, count, stream), hook_stream(stream, false))                            \
  FILL(cuMemsetD##bits##Async_ptsz,                                                                \
       (CUdeviceptr destination, type value, size_t count, CUstream stream),                       \
       (destination, value, count, stream), hook_stream(stream, true))                             \
  SYNC(cuMemsetD2D##bits##_v2,                                                                     \
       (CUdeviceptr destination, size_t pitch, type value, size_t width, size_t height),           \
       (destination, pitch, value, width, height),                                                 \
       WRITES(destination, box_bytes(pitch, 1, width * sizeof value, height, 1)))                  \
  ASYNC(cuMemsetD2D##bits##Async,                                                                  \
        (CUdeviceptr destination, size_t pitch, type value, size_t width, size_t height,           \
         CUstream stream),                                                                         \
        (destination, pitch, value, width, height, stream),                                        \
        WRITES(destination, box_bytes(pitch, 1, width * sizeof value, height, 1)))
MEMSET(8, unsigned char)
MEMSET(16, unsigned short)
MEMSET(32, unsigned)

/* ---- words ---- */

#define WORD(symbol, bits, per_thread, touches)                                                    \
  COPY(symbol, (CUstream stream, CUdeviceptr address, cuuint##bits##_t value, unsigned flags),     \
       (stream, address, value, flags), touches(address, bits / 8),                                \
       hook_stream(stream, per_thread))
WORD(cuStreamWriteValue32, 32, false, WRITES)
WORD(cuStreamWaitValue32, 32, false, READS)
WORD(cuStreamWriteValue32_ptsz, 32, true, WRITES)
WORD(cuStreamWaitValue32_ptsz, 32, true, READS)
WORD(cuStreamWriteValue32_v2, 32, false, WRITES)
WORD(cuStreamWaitValue32_v2, 32, false, READS)
WORD(cuStreamWriteValue32_v2_ptsz, 32, true, WRITES)
WORD(cuStreamWaitValue32_v2_ptsz, 32, true, READS)
WORD(cuStreamWriteValue64, 64, false, WRITES)
WORD(cuStreamWaitValue64, 64, false, READS)
WORD(cuStreamWriteValue64_ptsz, 64, true, WRITES)
WORD(cuStreamWaitValue64_ptsz, 64, true, READS)
WORD(cuStreamWriteValue64_v2, 64, false, WRITES)
WORD(cuStreamWaitValue64_v2, 64, false, READS)
WORD(cuStreamWriteValue64_v2_ptsz, 64, true, WRITES)
WORD(cuStreamWaitValue64_v2_ptsz, 64, true, READS)
