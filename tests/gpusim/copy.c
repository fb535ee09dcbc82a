/* Copies and fills, one to three dimensions. Whether a call waits follows cuda.h's "API
   synchronization behavior":

     pageable source -> device   its bytes are taken before the call returns; the synchronous call
                                 first waits for the stream; the copy itself is asynchronous in both
     device -> pageable          waits
     host <-> host               waits, host-backed mappings included
     pinned <-> device           the asynchronous call returns at once
     device <-> device, fills    return at once, in the synchronous form too (fills of host memory
                                 wait)

   Both ends are checked at the call and again when the copy is carried out. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct side {
  uintptr_t address;
  size_t pitch, slice;
  int device; /* -1: the stream's */
  enum gpusim_place place;
};
struct transfer {
  struct side to, from;
  size_t width, height, depth; /* width in bytes */
  int fill_bytes;              /* 0: a copy; else the size of an element */
  uint32_t value;
  uint8_t *staged;
};
enum timing { ASYNCHRONOUS, SYNCHRONOUS };

static size_t extent(const struct transfer *t, const struct side *side) {
  return (t->depth - 1) * side->slice + (t->height - 1) * side->pitch + t->width;
}

static bool side_touches(const struct transfer *t, const struct side *side, uintptr_t low,
                         uintptr_t high) {
  return side->address < high && low < side->address + extent(t, side);
}

static bool touches(void *argument, uintptr_t low, uintptr_t high) {
  const struct transfer *t = argument;
  return side_touches(t, &t->to, low, high) ||
         (t->fill_bytes == 0 && t->staged == NULL && side_touches(t, &t->from, low, high));
}

static void describe(void *argument, char *into, size_t bytes) {
  const struct transfer *t = argument;
  if (t->fill_bytes != 0)
    snprintf(into, bytes, "fill of %zu bytes at %#lx", t->width * t->height * t->depth,
             (unsigned long)t->to.address);
  else
    snprintf(into, bytes, "copy of %zu bytes from %#lx to %#lx", t->width * t->height * t->depth,
             (unsigned long)t->from.address, (unsigned long)t->to.address);
}

static void drop(void *argument) {
  struct transfer *t = argument;
  free(t->staged);
  free(t);
}

static CUresult check(const struct transfer *t, struct side *side, bool write) {
  return gpusim_place_of(side->device, side->address, extent(t, side), write, &side->place);
}

static void fill_row(uint8_t *row, const struct transfer *t) {
  if (t->fill_bytes == 1) {
    memset(row, (int)t->value, t->width);
    return;
  }
  for (size_t i = 0; i < t->width; i += (size_t)t->fill_bytes)
    memcpy(row + i, &t->value, (size_t)t->fill_bytes); /* little-endian: the low bytes */
}

static CUresult run(void *argument) {
  struct transfer *t = argument;
  struct side to = t->to, from = t->from;
  /* pageable memory is the caller's, who waits: nothing to check */
  bool right = to.place == PLACE_PAGEABLE || check(t, &to, true) == CUDA_SUCCESS;
  if (right && t->fill_bytes == 0 && from.place != PLACE_PAGEABLE)
    right = check(t, &from, false) == CUDA_SUCCESS;
  if (!right) {
    char words[128];
    describe(t, words, sizeof words);
    gpusim_trace(0, "%s: the memory is gone", words);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  for (size_t z = 0; z < t->depth; z++)
    for (size_t y = 0; y < t->height; y++) {
      uint8_t *row = gpusim_backing(t->to.address + z * t->to.slice + y * t->to.pitch);
      if (t->fill_bytes != 0)
        fill_row(row, t);
      else if (t->staged != NULL)
        memcpy(row, t->staged + (z * t->height + y) * t->width, t->width);
      else
        memmove(row, gpusim_backing(t->from.address + z * t->from.slice + y * t->from.pitch),
                t->width);
    }
  if (t->fill_bytes == 0) {
    gpusim_count(GPUSIM_COUNT_copies, 1);
    gpusim_count(GPUSIM_COUNT_copied_bytes, t->width * t->height * t->depth);
  }
  return CUDA_SUCCESS;
}

static void cost(void *argument, struct clock_cost *into) {
  const struct transfer *t = argument;
  const double bytes = (double)t->width * (double)t->height * (double)t->depth;
  const bool to_device = t->to.place == PLACE_DEVICE, from_device = t->from.place == PLACE_DEVICE;
  if (t->fill_bytes != 0) {
    into->kind = CLOCK_FILL;
    into->amount[to_device ? CLOCK_HBM : CLOCK_DOWN] = bytes;
  } else if (to_device && from_device && t->to.device != t->from.device) {
    into->kind = CLOCK_PEER_COPY;
    into->amount[CLOCK_PEER] = bytes;
  } else if (to_device && from_device) {
    into->kind = CLOCK_DEVICE_COPY;
    into->amount[CLOCK_HBM] = 2 * bytes; /* read and written */
  } else if (to_device) {
    into->kind = CLOCK_UP_COPY;
    into->amount[CLOCK_UP] = bytes;
  } else if (from_device) {
    into->kind = CLOCK_DOWN_COPY;
    into->amount[CLOCK_DOWN] = bytes;
    into->pageable = t->to.place == PLACE_PAGEABLE;
  } else {
    into->kind = CLOCK_HOST_COPY;
    into->amount[CLOCK_DRAM] = 2 * bytes;
  }
}

static const struct operation_kind copy_kind = {.name = "copy",
                                                .capturable = true,
                                                .node = CU_GRAPH_NODE_TYPE_MEMCPY,
                                                .run = run,
                                                .drop = drop,
                                                .touches = touches,
                                                .describe = describe,
                                                .cost = cost};
static const struct operation_kind fill_kind = {.name = "fill",
                                                .capturable = true,
                                                .node = CU_GRAPH_NODE_TYPE_MEMSET,
                                                .run = run,
                                                .drop = drop,
                                                .touches = touches,
                                                .describe = describe,
                                                .cost = cost};

static void stage(struct transfer *t) {
  t->staged = gpusim_new(t->width * t->height * t->depth);
  for (size_t z = 0; z < t->depth; z++)
    for (size_t y = 0; y < t->height; y++)
      memcpy(t->staged + (z * t->height + y) * t->width,
             (const void *)(t->from.address + z * t->from.slice + y * t->from.pitch), t->width);
}

/* Classifies both ends; gpusim_mutex held. */
static CUresult prepare(struct transfer *t, int device) {
  if (t->to.device < 0)
    t->to.device = device;
  if (t->from.device < 0)
    t->from.device = device;
  CUresult result = check(t, &t->to, true);
  if (result == CUDA_SUCCESS && t->fill_bytes == 0)
    result = check(t, &t->from, false);
  if (t->fill_bytes != 0)
    t->from.place = PLACE_DEVICE;
  if (result == CUDA_SUCCESS && t->fill_bytes != 0 && t->to.place == PLACE_PAGEABLE)
    result = CUDA_ERROR_INVALID_VALUE;
  return result;
}

static CUresult transfer(struct transfer description, CUstream handle, enum timing timing) {
  struct CUstream_st *stream;
  CUresult result = timing == SYNCHRONOUS ? gpusim_enter_wait(handle, &stream)
                                          : gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (description.width == 0 || description.height == 0 || description.depth == 0) {
    gpusim_unlock();
    return CUDA_SUCCESS;
  }
  result = prepare(&description, stream->context->device);
  if (result != CUDA_SUCCESS) {
    gpusim_unlock();
    char words[128];
    describe(&description, words, sizeof words);
    gpusim_trace(1, "%s: not one allocation or mapped range open to the device", words);
    return result;
  }
  enum gpusim_place to = description.to.place, from = description.from.place;
  bool host_only = description.fill_bytes == 0 && to != PLACE_DEVICE && from != PLACE_DEVICE;
  /* a captured copy touches its memory when the graph is launched, pageable memory too */
  bool captured = stream->capture != NULL;
  bool wait = !captured && (host_only || to == PLACE_PAGEABLE);
  if (timing == SYNCHRONOUS)
    wait = wait || to == PLACE_HOST || from == PLACE_HOST;
  gpusim_stream_hold(stream); /* waiting lets go of the lock */
  if (from == PLACE_PAGEABLE && !wait && !captured) {
    if (timing == SYNCHRONOUS)
      result = gpusim_drain(stream);
    stage(&description);
    clock_log_stage(stream->context->device,
                    description.width * description.height * description.depth);
  }
  struct transfer *copy = gpusim_new(sizeof *copy);
  *copy = description;
  if (result == CUDA_SUCCESS)
    result =
        gpusim_submit(stream, description.fill_bytes != 0 ? &fill_kind : &copy_kind, copy, NULL);
  else
    drop(copy);
  if (result == CUDA_SUCCESS && wait)
    result = gpusim_drain(stream);
  gpusim_stream_drop(stream);
  gpusim_unlock();
  return result;
}

static struct transfer linear(uintptr_t to, uintptr_t from, size_t bytes) {
  return (struct transfer){.to = {.address = to, .device = -1},
                           .from = {.address = from, .device = -1},
                           .width = bytes,
                           .height = 1,
                           .depth = 1};
}

/* ---- one dimension; `_ptds` and `_ptsz` forms are in per_thread.c ---- */

#define LINEAR(to, from) linear((uintptr_t)(to), (uintptr_t)(from), bytes)

CUresult gpusim_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return transfer(LINEAR(to, from), stream, SYNCHRONOUS);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy(to, from, bytes, NULL);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  return gpusim_copy(to, (CUdeviceptr)from, bytes, NULL);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy((CUdeviceptr)to, from, bytes, NULL);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return gpusim_copy(to, from, bytes, NULL);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return transfer(LINEAR(to, from), stream, ASYNCHRONOUS);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  return transfer(LINEAR(to, from), stream, ASYNCHRONOUS);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return transfer(LINEAR(to, from), stream, ASYNCHRONOUS);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return transfer(LINEAR(to, from), stream, ASYNCHRONOUS);
}

/* Each side belongs to its context's device. */
CUresult gpusim_copy_peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes, CUstream stream, bool wait) {
  if (!gpusim_handle_is(to_context, HANDLE_CONTEXT) ||
      !gpusim_handle_is(from_context, HANDLE_CONTEXT))
    return CUDA_ERROR_INVALID_CONTEXT;
  struct transfer t = LINEAR(to, from);
  t.to.device = to_context->device;
  t.from.device = from_context->device;
  return transfer(t, stream, wait ? SYNCHRONOUS : ASYNCHRONOUS);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes) {
  return gpusim_copy_peer(to, to_context, from, from_context, bytes, NULL, true);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  return gpusim_copy_peer(to, to_context, from, from_context, bytes, stream, false);
}

/* ---- two and three dimensions ---- */

static CUresult side_of(struct side *side, CUmemorytype type, const void *host, CUdeviceptr device,
                        CUarray array, size_t x, size_t y, size_t z, size_t pitch, size_t height,
                        const struct transfer *t) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    device = gpusim_array(array, &pitch, &height);
    if (device == 0 || x + t->width > pitch || y + t->height > height)
      return CUDA_ERROR_INVALID_VALUE;
    type = CU_MEMORYTYPE_DEVICE;
  }
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_NOT_SUPPORTED;
  side->device = -1;
  side->pitch = pitch != 0 ? pitch : t->width;
  side->slice = side->pitch * (height != 0 ? height : t->height);
  side->address = (type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device) + x +
                  y * side->pitch + z * side->slice;
  return side->pitch >= t->width ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult gpusim_copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool wait) {
  if (p == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  struct transfer t = {.width = p->WidthInBytes, .height = p->Height, .depth = 1};
  CUresult result = side_of(&t.to, p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray,
                            p->dstXInBytes, p->dstY, 0, p->dstPitch, 0, &t);
  if (result == CUDA_SUCCESS)
    result = side_of(&t.from, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray,
                     p->srcXInBytes, p->srcY, 0, p->srcPitch, 0, &t);
  return result == CUDA_SUCCESS ? transfer(t, stream, wait ? SYNCHRONOUS : ASYNCHRONOUS) : result;
}

static CUresult copy_of_3d(const CUDA_MEMCPY3D *p, struct transfer *t) {
  if (p == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *t = (struct transfer){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth};
  CUresult result = side_of(&t->to, p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray,
                            p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch, p->dstHeight, t);
  if (result == CUDA_SUCCESS)
    result = side_of(&t->from, p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray,
                     p->srcXInBytes, p->srcY, p->srcZ, p->srcPitch, p->srcHeight, t);
  return result;
}

CUresult gpusim_copy_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool wait) {
  struct transfer t;
  CUresult result = copy_of_3d(p, &t);
  return result == CUDA_SUCCESS ? transfer(t, stream, wait ? SYNCHRONOUS : ASYNCHRONOUS) : result;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) {
  return gpusim_copy_2d(p, NULL, true);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) {
  return gpusim_copy_2d(p, NULL, true);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream) {
  return gpusim_copy_2d(p, stream, false);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) {
  return gpusim_copy_3d(p, NULL, true);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream) {
  return gpusim_copy_3d(p, stream, false);
}

/* ---- fills ---- */

static struct transfer fill_of(CUdeviceptr to, size_t pitch, int element_bytes, uint32_t value,
                               size_t width, size_t height) {
  return (struct transfer){.to = {.address = to, .pitch = pitch, .device = -1},
                           .from = {.device = -1},
                           .width = width,
                           .height = height,
                           .depth = 1,
                           .fill_bytes = element_bytes,
                           .value = value};
}

CUresult gpusim_fill(CUdeviceptr to, size_t pitch, int element_bytes, uint32_t value,
                     size_t elements, size_t height, CUstream stream, bool wait) {
  size_t width = elements * (size_t)element_bytes;
  if (to % (CUdeviceptr)element_bytes != 0 || (height > 1 && pitch < width))
    return CUDA_ERROR_INVALID_VALUE;
  struct transfer t = fill_of(to, pitch, element_bytes, value, width, height);
  return transfer(t, stream, wait ? SYNCHRONOUS : ASYNCHRONOUS);
}

#define FILLS(bits, type)                                                                          \
  CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t elements) {                     \
    return gpusim_fill(to, 0, bits / 8, value, elements, 1, NULL, true);                           \
  }                                                                                                \
  CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t elements, CUstream stream) {  \
    return gpusim_fill(to, 0, bits / 8, value, elements, 1, stream, false);                        \
  }                                                                                                \
  CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t elements,       \
                                  size_t height) {                                                 \
    return gpusim_fill(to, pitch, bits / 8, value, elements, height, NULL, true);                  \
  }                                                                                                \
  CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t elements,     \
                                    size_t height, CUstream stream) {                              \
    return gpusim_fill(to, pitch, bits / 8, value, elements, height, stream, false);               \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

/* ---- nodes of graphs ---- */

static CUresult node_of(struct transfer description, CUcontext context,
                        const struct operation_kind **kind, void **argument) {
  if (description.width == 0 || description.height == 0 || description.depth == 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = prepare(&description, context->device);
  if (result != CUDA_SUCCESS)
    return result;
  struct transfer *copy = gpusim_new(sizeof *copy);
  *copy = description;
  *kind = description.fill_bytes != 0 ? &fill_kind : &copy_kind;
  *argument = copy;
  return CUDA_SUCCESS;
}

CUresult gpusim_copy_node(const CUDA_MEMCPY3D *p, CUcontext context,
                          const struct operation_kind **kind, void **argument) {
  struct transfer t;
  CUresult result = copy_of_3d(p, &t);
  return result == CUDA_SUCCESS ? node_of(t, context, kind, argument) : result;
}

CUresult gpusim_fill_node(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context,
                          const struct operation_kind **kind, void **argument) {
  if (p == NULL || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) ||
      p->dst % p->elementSize != 0 || (p->height > 1 && p->pitch < p->width * p->elementSize))
    return CUDA_ERROR_INVALID_VALUE;
  return node_of(fill_of(p->dst, p->pitch, (int)p->elementSize, p->value, p->width * p->elementSize,
                         p->height),
                 context, kind, argument);
}
