/* Allocations, what the CPU may touch, accounting, copies and when they wait, pointer attributes,
 * pools. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static void test_closed(void) {
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 10000));
  tap_ok(!cpu_can_read(memory), "device memory is closed to the CPU");
  tap_ok(device_word(memory) == 0xdbdbdbdb && device_word(memory + 9996) == 0xdbdbdbdb,
         "fresh device memory is poisoned");
  MUST(cuMemsetD32(memory, 0x01020304, 4));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory + 12) == 0x01020304 && device_word(memory + 16) == 0xdbdbdbdb,
         "the simulator's view shows what a fill wrote and nothing more");
  void *view = gpusim_host_view((void *)memory);
  MUST(cuMemFree(memory));
  tap_ok(!cpu_can_read((CUdeviceptr)view), "the bytes of freed memory are gone");
}

static void test_accounting(void) {
  size_t before, after, total;
  CUdeviceptr a, b = 0;
  MUST(cuMemGetInfo(&before, &total));
  tap_ok(total == 16 << 20, "total memory is GPUSIM_MEMORY");
  MUST(cuMemAlloc(&a, 8 << 20));
  MUST(cuMemGetInfo(&after, &total));
  tap_ok(before - after == 8 << 20, "an allocation is counted");
  tap_ok(cuMemAlloc(&b, 9 << 20) == CUDA_ERROR_OUT_OF_MEMORY && b == 0,
         "an allocation beyond the capacity is refused");
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp device = device_memory(), host = host_memory();
  tap_ok(cuMemCreate(&handle, 9 << 20, &device, 0) == CUDA_ERROR_OUT_OF_MEMORY,
         "so is a device handle beyond it");
  MUST(cuMemCreate(&handle, 9 << 20, &host, 0));
  MUST(cuMemGetInfo(&after, &total));
  tap_ok(before - after == 8 << 20, "a host handle doesn't count as device memory");
  MUST(cuMemRelease(handle));
  tap_ok(gpusim_counter_by_name("device_bytes_peak") == 8 << 20 &&
             gpusim_counter_by_name("host_piece_bytes_peak") == 9 << 20,
         "the report knows the peaks of device and host pieces");
  MUST(cuMemFree(a));
  MUST(cuMemGetInfo(&after, &total));
  tap_ok(before == after, "freed memory is given back");
}

static void test_free(void) {
  CUdeviceptr memory;
  int local = 0;
  MUST(cuMemAlloc(&memory, 4096));
  tap_ok(cuMemFree(memory + 256) == CUDA_ERROR_INVALID_VALUE, "an inner address can't be freed");
  tap_ok(cuMemFree((CUdeviceptr)&local) == CUDA_ERROR_INVALID_VALUE,
         "a foreign address can't be freed");
  MUST(cuMemFree(memory));
  tap_ok(cuMemFree(memory) == CUDA_ERROR_INVALID_VALUE, "memory can't be freed twice");
  tap_ok(cuMemFree(0) == CUDA_SUCCESS, "freeing null is nothing");
}

static void test_free_waits(void) {
  CUdeviceptr memory;
  CUstream stream;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemsetD8Async(memory, 1, 4096, stream));
  MUST(cuMemFree(memory));
  tap_ok(cuStreamQuery(stream) == CUDA_SUCCESS && gpusim_counter_by_name("violations") == 0,
         "cuMemFree waits for the work of its context");
  MUST(cuStreamDestroy(stream));
}

static void *open_later(void *argument) {
  pause_ms(30);
  open_gate(*(struct gate *)argument);
  return NULL;
}

/* Whether a copy queued behind a gate returns only after the gate was opened, by another thread. */
static bool copy_waits(void *to, CUdeviceptr from, CUstream stream) {
  struct gate gate = new_gate();
  pthread_t thread;
  hold(gate, stream);
  pthread_create(&thread, NULL, open_later, &gate);
  MUST(cuMemcpyAsync((CUdeviceptr)to, from, 4096, stream));
  bool waited = __atomic_load_n(gate.word, __ATOMIC_ACQUIRE) == 1;
  pthread_join(thread, NULL);
  MUST(cuStreamSynchronize(stream));
  return waited;
}

static void test_copies(void) {
  CUdeviceptr a, b;
  CUstream stream;
  struct gate gate = new_gate();
  uint32_t pageable[1024], back[1024];
  uint32_t *pinned, *pinned_too;
  MUST(cuMemAlloc(&a, 4096));
  MUST(cuMemAlloc(&b, 4096));
  MUST(cuMemHostAlloc((void **)&pinned, 4096, 0));
  MUST(cuMemHostAlloc((void **)&pinned_too, 4096, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  for (uint32_t i = 0; i < 1024; i++)
    pageable[i] = i;
  hold(gate, stream);
  MUST(cuMemcpyHtoDAsync(a, pageable, 4096, stream));
  memset(pageable, 0xff, sizeof pageable);
  open_gate(gate);
  MUST(cuMemcpyDtoHAsync(back, a, 4096, stream));
  tap_ok(back[1] == 1 && back[1023] == 1023, "a pageable source is taken at the call");
  tap_ok(copy_waits(back, a, stream), "a copy to pageable memory waits");

  close_gate(gate);
  hold(gate, stream);
  pinned[0] = 7;
  MUST(cuMemcpyHtoDAsync(a, pinned, 4096, stream));
  tap_ok(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY, "a copy from pinned memory doesn't wait");
  pinned[0] = 8;
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(a) == 8, "and reads its source when it is carried out");

  close_gate(gate);
  hold(gate, NULL);
  MUST(cuMemcpyDtoD(b, a, 4096));
  MUST(cuMemsetD8(a, 0, 4096));
  tap_ok(device_word(b) != 8, "the synchronous copy from device to device doesn't wait");
  open_gate(gate);
  MUST(cuCtxSynchronize());
  tap_ok(device_word(b) == 8 && device_word(a) == 0,
         "nor does the fill, and both keep their order");

  pinned[1023] = 99;
  tap_ok(copy_waits(pinned_too, (CUdeviceptr)pinned, stream) && pinned_too[1023] == 99,
         "a copy from host to host blocks the caller");
  tap_ok(!copy_waits(pinned_too, a, stream), "one from the device to pinned memory doesn't");

  tap_ok(cuMemcpyHtoD(a, pageable, 4097) == CUDA_ERROR_INVALID_VALUE,
         "a copy beyond an allocation is refused");
  tap_ok(cuMemcpyHtoD(a + 4096, pageable, 4) == CUDA_ERROR_INVALID_VALUE,
         "a copy to where nothing is allocated is refused");
  tap_ok(cuMemsetD32(a + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE, "an unaligned fill is refused");
  tap_ok(cuMemsetD8((CUdeviceptr)pageable, 0, 4) == CUDA_ERROR_INVALID_VALUE,
         "a fill of pageable memory is refused");

  static char registered[8192];
  MUST(cuMemHostRegister(registered, 4096, 0));
  tap_ok(cuMemcpyHtoD(a, registered + 2048, 4096) == CUDA_ERROR_INVALID_VALUE,
         "a copy of partly registered memory is refused");
  tap_ok(cuMemHostRegister(registered + 2048, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
         "memory can't be registered twice");
  MUST(cuMemHostUnregister(registered));
  tap_ok(cuMemHostUnregister(registered) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
         "nor unregistered twice");
  MUST(cuMemFreeHost(pinned));
  MUST(cuMemFreeHost(pinned_too));
  MUST(cuMemFree(a));
  MUST(cuMemFree(b));
  MUST(cuStreamDestroy(stream));
}

static void test_rows(void) {
  CUdeviceptr memory;
  size_t pitch;
  unsigned char from[4][8], to[4][8];
  MUST(cuMemAllocPitch(&memory, &pitch, 8, 4, 4));
  memset(from, 5, sizeof from);
  memset(to, 0, sizeof to);
  from[3][7] = 9;
  CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                      .srcHost = from,
                      .srcPitch = 8,
                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                      .dstDevice = memory,
                      .dstPitch = pitch,
                      .WidthInBytes = 8,
                      .Height = 4};
  CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = memory,
                       .srcPitch = pitch,
                       .srcXInBytes = 4,
                       .srcY = 2,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = to,
                       .dstPitch = 8,
                       .WidthInBytes = 4,
                       .Height = 2};
  MUST(cuMemcpy2DAsync(&in, NULL));
  memset(from, 0, sizeof from);
  MUST(cuMemcpy2D(&out));
  tap_ok(to[0][0] == 5 && to[1][3] == 9 && to[0][4] == 0,
         "rows are copied with pitch and offset, pageable ones staged");
  in.Height = 1000;
  tap_ok(cuMemcpy2D(&in) == CUDA_ERROR_INVALID_VALUE, "more rows than there are is refused");
  MUST(cuMemsetD2D16(memory, pitch, 0x0102, 4, 2));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory + pitch + 4) == 0x01020102 && device_word(memory + 8) == 0xdbdbdbdb,
         "a two-dimensional fill keeps to its rows");
  MUST(cuMemFree(memory));
}

static void test_attributes(void) {
  CUdeviceptr device, managed, base;
  void *pinned;
  size_t bytes;
  unsigned type;
  int ordinal = -1;
  unsigned long long id_before, id_after;
  MUST(cuMemAlloc(&device, 5000));
  MUST(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  MUST(cuMemHostAlloc(&pinned, 4096, 0));
  MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 100));
  tap_ok(type == CU_MEMORYTYPE_DEVICE, "an address inside an allocation is of the device");
  MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
  tap_ok(type == CU_MEMORYTYPE_HOST, "pinned memory is of the host");
  MUST(cuMemGetAddressRange(&base, &bytes, device + 4999));
  tap_ok(base == device && bytes == 5000, "the address range is the allocation's");
  tap_ok(cuMemGetAddressRange(&base, &bytes, device + 5000) == CUDA_ERROR_NOT_FOUND,
         "one byte further is nothing");
  int *word = (int *)managed;
  *word = 5;
  tap_ok(*word == 5 && cpu_can_read(managed), "managed memory is open to the CPU");
  int local = 0;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *answers[] = {&type, &ordinal};
  tap_ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&local) ==
                 CUDA_ERROR_INVALID_VALUE &&
             cuPointerGetAttributes(2, asked, answers, (CUdeviceptr)&local) == CUDA_SUCCESS &&
             type == 0 && ordinal == CU_DEVICE_INVALID,
         "a foreign pointer is an error for one attribute, null values for several");
  MUST(cuPointerGetAttribute(&id_before, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
  MUST(cuMemFree(device));
  MUST(cuMemAlloc(&device, 5000));
  MUST(cuPointerGetAttribute(&id_after, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
  tap_ok(id_before != id_after, "each allocation has a buffer id of its own");
  MUST(cuMemFree(device));
  MUST(cuMemFree(managed));
  MUST(cuMemFreeHost(pinned));
}

static void test_pool(void) {
  CUmemoryPool pool;
  CUdeviceptr memory;
  CUstream stream;
  cuuint64_t used;
  struct gate gate = new_gate();
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&memory, 8192, stream));
  hold(gate, stream);
  MUST(cuMemFreeAsync(memory, stream));
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  tap_ok(used == 8192, "a pool's memory is in use until the stream reaches the free");
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  tap_ok(used == 0 && cuMemFreeAsync(memory, stream) == CUDA_ERROR_INVALID_VALUE,
         "then it is free, once");
  MUST(cuStreamDestroy(stream));
}

static void test_arrays(void) {
  const CUDA_ARRAY_DESCRIPTOR shape = {64, 4, CU_AD_FORMAT_FLOAT, 1};
  CUDA_ARRAY_DESCRIPTOR told;
  CUarray array;
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemsetD32(memory, 7, 1024));
  MUST(cuArrayCreate(&array, &shape));
  MUST(cuArrayGetDescriptor(&told, array));
  tap_ok(told.Width == 64 && told.Height == 4, "an array tells its shape");
  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = memory,
                        .srcPitch = 512,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = array,
                        .dstY = 1,
                        .WidthInBytes = 256,
                        .Height = 3};
  MUST(cuMemcpy2D(&copy));
  MUST(cuMemsetD32(memory, 0, 1024));
  copy = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                         .srcArray = array,
                         .srcY = 3,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = memory + 1024,
                         .dstPitch = 256,
                         .WidthInBytes = 256,
                         .Height = 1};
  MUST(cuMemcpy2D(&copy));
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory + 1024) == 7 && device_word(memory + 1276) == 7 &&
             device_word(memory + 1280) == 0,
         "rows go into an array and out of it");
  copy.Height = 2;
  tap_ok(cuMemcpy2D(&copy) == CUDA_ERROR_INVALID_VALUE, "a copy beyond an array is refused");
  MUST(cuArrayDestroy(array));
  tap_ok(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE, "an array is destroyed once");
  MUST(cuMemFree(memory));
}

static void test_ipc(void) {
  CUipcMemHandle handle;
  CUdeviceptr memory, pooled;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemAllocAsync(&pooled, 4096, NULL));
  tap_ok(cuIpcGetMemHandle(&handle, memory) == CUDA_SUCCESS &&
             cuIpcGetMemHandle(&handle, pooled) == CUDA_ERROR_INVALID_VALUE,
         "legacy IPC handles are given for memory of cuMemAlloc, not for pooled memory");
  MUST(cuMemFreeAsync(pooled, NULL));
  MUST(cuMemFree(memory));
}

int main(void) {
  setenv("GPUSIM_MEMORY", "16MiB", 1);
  start();
  test_closed();
  test_accounting();
  test_free();
  test_free_waits();
  test_copies();
  test_rows();
  test_attributes();
  test_pool();
  test_arrays();
  test_ipc();
  return tap_done();
}
