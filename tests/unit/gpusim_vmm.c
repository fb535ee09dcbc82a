/* The rules of virtual memory management, one by one. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUdeviceptr reserve(size_t bytes) {
  CUdeviceptr address;
  MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  return address;
}

static unsigned memory_type(CUdeviceptr address) {
  unsigned type = 0;
  MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  return type;
}

static void test_reserve(void) {
  CUdeviceptr address, hinted;
  size_t granularity;
  CUmemAllocationProp properties = device_memory();
  MUST(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  tap_ok(granularity == PIECE, "the granularity is GPUSIM_GRANULARITY");
  tap_ok(cuMemAddressReserve(&address, PIECE + 4096, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE,
         "a reservation must be a multiple of it");
  address = reserve(4 * PIECE);
  tap_ok(address % (2 << 20) == 0, "a reservation is aligned to 2 MiB");
  tap_ok(cuMemAddressFree(address, 2 * PIECE) == CUDA_ERROR_INVALID_VALUE &&
             cuMemAddressFree(address + PIECE, 3 * PIECE) == CUDA_ERROR_INVALID_VALUE,
         "only exactly what was reserved can be given back");
  MUST(cuMemAddressReserve(&hinted, PIECE, 0, address + 4 * PIECE, 0));
  tap_ok(hinted == address + 4 * PIECE, "a hint to a free address is followed");
  MUST(cuMemAddressFree(hinted, PIECE));
  MUST(cuMemAddressFree(address, 4 * PIECE));
  tap_ok(cuMemAddressFree(address, 4 * PIECE) == CUDA_ERROR_INVALID_VALUE, "and only once");
}

static void test_create(void) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp p = device_memory();
  tap_ok(cuMemCreate(&handle, 4096, &p, 0) == CUDA_ERROR_INVALID_VALUE,
         "a handle's size must be a multiple of the granularity");
  tap_ok(cuMemCreate(&handle, PIECE, &p, 1) == CUDA_ERROR_INVALID_VALUE, "flags must be zero");
  p.location.id = 5;
  tap_ok(cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_INVALID_DEVICE, "the device must exist");
  p = host_memory();
  p.location.id = 1;
  tap_ok(cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_INVALID_VALUE,
         "without NUMA the node of a HOST_NUMA handle must be 0");
  p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  tap_ok(cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_INVALID_VALUE,
         "HOST_NUMA_CURRENT is refused");
  p.location.type = CU_MEM_LOCATION_TYPE_HOST;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  tap_ok(cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_INVALID_VALUE,
         "a HOST handle can't be exportable");
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  tap_ok(cuMemCreate(&handle, PIECE, &p, 0) == CUDA_SUCCESS && cuMemRelease(handle) == CUDA_SUCCESS,
         "a plain HOST handle is made");
}

static void test_map(void) {
  CUdeviceptr address = reserve(4 * PIECE);
  CUmemGenericAllocationHandle a = create(device_memory()), b = create(device_memory()), big;
  CUmemAllocationProp properties = device_memory();
  MUST(cuMemCreate(&big, 2 * PIECE, &properties, 0));
  tap_ok(cuMemMap(address, PIECE, PIECE, big, 0) == CUDA_ERROR_INVALID_VALUE,
         "the offset of a mapping must be zero");
  tap_ok(cuMemMap(address, 2 * PIECE, 0, a, 0) == CUDA_ERROR_INVALID_VALUE,
         "a mapping can't be larger than its handle");
  tap_ok(cuMemMap(address + 4096, PIECE, 0, a, 0) == CUDA_ERROR_INVALID_VALUE,
         "nor begin between multiples of the granularity");
  tap_ok(cuMemMap(address + 3 * PIECE, 2 * PIECE, 0, big, 0) == CUDA_ERROR_INVALID_VALUE,
         "nor leave its reservation");
  MUST(cuMemMap(address, PIECE, 0, a, 0));
  tap_ok(cuMemMap(address, PIECE, 0, b, 0) == CUDA_ERROR_INVALID_VALUE,
         "nor lie over another mapping");
  tap_ok(cuMemAddressFree(address, 4 * PIECE) == CUDA_ERROR_INVALID_VALUE,
         "a mapped reservation can't be given back");
  tap_ok(cuMemsetD8(address, 0, 1) == CUDA_ERROR_INVALID_VALUE, "a mapping starts without access");
  MUST(grant(address, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  MUST(cuMemsetD32(address, 0xa, 1));
  MUST(cuCtxSynchronize());
  tap_ok(!cpu_can_read(address),
         "device memory stays closed to the CPU when mapped and accessible");

  MUST(cuMemMap(address + PIECE, PIECE, 0, b, 0));
  MUST(cuMemMap(address + 2 * PIECE, 2 * PIECE, 0, big, 0));
  tap_ok(cuMemUnmap(address + 2 * PIECE, PIECE) == CUDA_ERROR_INVALID_VALUE,
         "part of a mapping can't be unmapped");
  tap_ok(cuMemUnmap(address + PIECE, 2 * PIECE) == CUDA_ERROR_INVALID_VALUE,
         "nor one and a part of the next");
  MUST(cuMemUnmap(address, 2 * PIECE));
  tap_ok(cuMemUnmap(address, 4 * PIECE) == CUDA_ERROR_INVALID_VALUE,
         "nor a range with a hole in it");
  MUST(cuMemUnmap(address + 2 * PIECE, 2 * PIECE));
  MUST(cuMemMap(address, PIECE, 0, a, 0));
  tap_ok(cuMemsetD8(address, 0, 1) == CUDA_ERROR_INVALID_VALUE,
         "a mapping made again starts without access again");
  MUST(grant(address, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  uint32_t word = 0;
  MUST(cuMemcpyDtoH(&word, address, 4));
  tap_ok(word == 0xa,
         "several whole mappings can be unmapped at once, contents stay with the handle");
  MUST(cuMemUnmap(address, PIECE));
  MUST(cuMemAddressFree(address, 4 * PIECE));
  MUST(cuMemRelease(a));
  MUST(cuMemRelease(b));
  MUST(cuMemRelease(big));
}

static void test_access(void) {
  CUdeviceptr address = reserve(3 * PIECE);
  CUmemGenericAllocationHandle d = create(device_memory()), h = create(host_memory()), big;
  CUmemAllocationProp properties = device_memory();
  MUST(cuMemMap(address, PIECE, 0, d, 0));
  MUST(cuMemMap(address + PIECE, PIECE, 0, h, 0));
  tap_ok(!cpu_can_read(address + PIECE), "a host piece is closed to the CPU when mapped");
  tap_ok(grant(address, 2 * PIECE, CU_MEM_LOCATION_TYPE_DEVICE) == CUDA_SUCCESS,
         "a device descriptor may cover device and host pieces at once");
  tap_ok(!cpu_can_read(address + PIECE), "and opens nothing to the CPU");
  tap_ok(grant(address, 2 * PIECE, CU_MEM_LOCATION_TYPE_HOST_NUMA) == CUDA_ERROR_INVALID_VALUE,
         "a host descriptor over a device piece is refused");
  tap_ok(!cpu_can_read(address + PIECE), "and then nothing is opened");
  tap_ok(grant(address + PIECE, PIECE, CU_MEM_LOCATION_TYPE_HOST) == CUDA_ERROR_INVALID_VALUE,
         "so is HOST on memory made as HOST_NUMA");
  tap_ok(grant(address, 3 * PIECE, CU_MEM_LOCATION_TYPE_DEVICE) == CUDA_ERROR_INVALID_VALUE,
         "access to a range that isn't mapped in whole is refused");
  MUST(grant(address + PIECE, PIECE, CU_MEM_LOCATION_TYPE_HOST_NUMA));
  tap_ok(cpu_can_read(address + PIECE) && !cpu_can_read(address),
         "a host descriptor opens the host piece and only that");
  MUST(cuMemsetD32(address + PIECE, 77, 1));
  MUST(cuCtxSynchronize());
  uint32_t *word = (uint32_t *)(address + PIECE);
  tap_ok(*word == 77, "the CPU reads there what the device wrote");
  *word = 78;
  uint32_t copied[2] = {0, 0};
  MUST(cuMemcpyDtoH(copied, address + PIECE - 4, 8));
  tap_ok(copied[1] == 78, "the device what the CPU wrote, in one copy across the boundary");

  MUST(cuMemCreate(&big, PIECE, &properties, 0));
  MUST(cuMemMap(address + 2 * PIECE, PIECE, 0, big, 0));
  CUmemAccessDesc read = access_of(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  MUST(cuMemSetAccess(address + 2 * PIECE, PIECE, &read, 1));
  unsigned long long flags;
  MUST(cuMemGetAccess(&flags, &read.location, address + 2 * PIECE));
  tap_ok(flags == CU_MEM_ACCESS_FLAGS_PROT_READ &&
             cuMemsetD8(address + 2 * PIECE, 0, 1) == CUDA_ERROR_INVALID_VALUE &&
             cuMemcpyDtoH(copied, address + 2 * PIECE, 4) == CUDA_SUCCESS,
         "a piece that may only be read can't be written");
  CUmemLocation other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  MUST(cuMemGetAccess(&flags, &other, address));
  CUcontext second;
  MUST(cuDevicePrimaryCtxRetain(&second, 1));
  MUST(cuCtxPushCurrent(second));
  tap_ok(flags == 0 && cuMemsetD8(address, 0, 1) == CUDA_ERROR_INVALID_VALUE,
         "access is granted to each device by itself");
  MUST(cuCtxPopCurrent(NULL));
  MUST(cuDevicePrimaryCtxRelease(1));

  MUST(cuMemUnmap(address + PIECE, PIECE));
  tap_ok(!cpu_can_read(address + PIECE), "unmapping closes a host piece to the CPU");
  MUST(cuMemMap(address + PIECE, PIECE, 0, h, 0));
  tap_ok(!cpu_can_read(address + PIECE), "and mapping it again doesn't open it");
  MUST(cuMemUnmap(address, 3 * PIECE));
  MUST(cuMemAddressFree(address, 3 * PIECE));
  MUST(cuMemRelease(d));
  MUST(cuMemRelease(h));
  MUST(cuMemRelease(big));
}

static void test_attributes(void) {
  CUdeviceptr address = reserve(2 * PIECE), base;
  size_t bytes;
  CUmemGenericAllocationHandle d = create(device_memory()), h = create(host_memory());
  MUST(cuMemMap(address, PIECE, 0, d, 0));
  MUST(cuMemMap(address + PIECE, PIECE, 0, d, 0));
  tap_ok(memory_type(address) == CU_MEMORYTYPE_DEVICE, "a device piece answers DEVICE");
  MUST(cuMemUnmap(address, PIECE));
  MUST(cuMemMap(address, PIECE, 0, h, 0));
  tap_ok(memory_type(address) == CU_MEMORYTYPE_HOST, "remapped to the host it answers HOST");
  MUST(cuMemGetAddressRange(&base, &bytes, address + PIECE + 5));
  tap_ok(base == address + PIECE && bytes == PIECE, "the address range is that of one mapping");
  MUST(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + PIECE));
  tap_ok(bytes == 2 * PIECE, "the range attribute is that of the reservation");
  void *pointer;
  tap_ok(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address) ==
             CUDA_ERROR_INVALID_VALUE,
         "a host piece without host access has no host pointer");
  int on = 1;
  tap_ok(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) ==
             CUDA_ERROR_NOT_SUPPORTED,
         "SYNC_MEMOPS isn't supported on mappings");
  tap_ok(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE, "cuMemFree of a mapping is refused");
  MUST(cuMemUnmap(address, 2 * PIECE));
  MUST(cuMemAddressFree(address, 2 * PIECE));
  MUST(cuMemRelease(d));
  MUST(cuMemRelease(h));
}

static void test_references(void) {
  CUdeviceptr address = reserve(2 * PIECE);
  size_t before, during, after, total;
  CUmemGenericAllocationHandle retained;
  MUST(cuMemGetInfo(&before, &total));
  CUmemGenericAllocationHandle d = create(device_memory());
  MUST(cuMemMap(address, PIECE, 0, d, 0));
  MUST(cuMemRetainAllocationHandle(&retained, (void *)(address + 100)));
  tap_ok(retained == d, "the handle of an address is the one it was mapped with");
  MUST(cuMemRelease(d));
  MUST(cuMemRelease(retained));
  tap_ok(cuMemRelease(d) == CUDA_ERROR_INVALID_VALUE, "a handle can't be released too often");
  tap_ok(cuMemMap(address + PIECE, PIECE, 0, d, 0) == CUDA_ERROR_INVALID_VALUE,
         "nor mapped anew once it is released");
  MUST(cuMemGetInfo(&during, &total));
  tap_ok(before - during == PIECE, "released while mapped, memory is kept");
  MUST(cuMemUnmap(address, PIECE));
  MUST(cuMemGetInfo(&after, &total));
  tap_ok(before == after, "and freed at the last unmap");
  tap_ok(cuMemRetainAllocationHandle(&retained, (void *)address) == CUDA_ERROR_INVALID_VALUE &&
             cuMemMap(address, PIECE, 0, d, 0) == CUDA_ERROR_INVALID_VALUE,
         "then address and handle mean nothing");
  MUST(cuMemAddressFree(address, 2 * PIECE));
}

static void test_sharing(void) {
  CUdeviceptr address = reserve(2 * PIECE);
  CUmemAllocationProp exportable = device_memory();
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle plain = create(device_memory()), shared = create(exportable), again;
  int fd = -1;
  uint32_t word = 0;
  tap_ok(cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
             CUDA_ERROR_INVALID_VALUE,
         "a handle that wasn't made exportable can't be exported");
  MUST(cuMemExportToShareableHandle(&fd, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  MUST(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  MUST(cuMemMap(address, PIECE, 0, shared, 0));
  MUST(cuMemMap(address + PIECE, PIECE, 0, again, 0));
  MUST(grant(address, 2 * PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  MUST(cuMemsetD32(address + 8, 123, 1));
  MUST(cuMemcpyDtoH(&word, address + PIECE + 8, 4));
  tap_ok(word == 123, "an exported and imported handle is the same memory");
  tap_ok(
      cuMemImportFromShareableHandle(&again, (void *)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_ERROR_INVALID_VALUE,
      "a file that isn't the simulator's can't be imported");
  MUST(cuMemUnmap(address, 2 * PIECE));
  MUST(cuMemRelease(shared));
  MUST(cuMemRelease(shared)); /* the import's reference: in one process both have the same handle */
  MUST(cuMemRelease(plain));
  MUST(cuMemAddressFree(address, 2 * PIECE));
}

static void test_many(void) {
  enum { MANY = 4000 };
  static CUmemGenericAllocationHandle handles[MANY];
  CUdeviceptr address = reserve((size_t)MANY * PIECE);
  bool right = true;
  for (int i = 0; i < MANY && right; i++) {
    handles[i] = create(host_memory());
    right = cuMemMap(address + (CUdeviceptr)i * PIECE, PIECE, 0, handles[i], 0) == CUDA_SUCCESS;
  }
  tap_ok(right &&
             grant(address, (size_t)MANY * PIECE, CU_MEM_LOCATION_TYPE_HOST_NUMA) == CUDA_SUCCESS,
         "thousands of pieces need no descriptors and are opened in one call");
  MUST(cuMemUnmap(address, (size_t)MANY * PIECE));
  for (int i = 0; i < MANY; i++)
    MUST(cuMemRelease(handles[i]));
  MUST(cuMemAddressFree(address, (size_t)MANY * PIECE));
}

/* ---- the violation, each in a process of its own because its context is lost ---- */

static int violated(CUdeviceptr address, CUstream stream, struct gate gate) {
  bool refused = cuMemUnmap(address, PIECE) == CUDA_ERROR_ILLEGAL_ADDRESS;
  bool counted = gpusim_counter_by_name("violations") == 1;
  open_gate(gate);
  bool sticky = cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS &&
                cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS;
  return refused && counted && sticky ? 0 : 1;
}

static CUdeviceptr mapped_piece(void) {
  CUdeviceptr address = reserve(PIECE);
  MUST(cuMemMap(address, PIECE, 0, create(device_memory()), 0));
  MUST(grant(address, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  return address;
}

static int unmap_under_copy(void) {
  start();
  CUdeviceptr address = mapped_piece(), other;
  CUstream stream;
  struct gate gate = new_gate();
  MUST(cuMemAlloc(&other, PIECE));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  hold(gate, stream);
  MUST(cuMemcpyDtoDAsync(other, address, PIECE, stream));
  return violated(address, stream, gate);
}

static int unmap_under_launch(void) {
  start();
  CUdeviceptr address = mapped_piece(), list[8] = {0};
  CUmodule module;
  CUstream stream;
  struct gate gate = new_gate();
  CUfunction function = load_kernel(&module, "list");
  MUST(cuMemAlloc(&list[0], PIECE));
  list[7] = address + PIECE - 4; /* in the last word, at the end of the piece */
  uint32_t index = 0;
  void *parameters[] = {list, &index};
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  hold(gate, stream);
  MUST(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
  return violated(address, stream, gate);
}

static int unmap_after_work(void) {
  start();
  CUdeviceptr address = mapped_piece(), other;
  CUstream stream;
  struct gate gate = new_gate();
  MUST(cuMemAlloc(&other, PIECE));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemsetD8Async(address, 1, PIECE, stream));
  MUST(cuStreamSynchronize(stream));
  hold(gate, stream);
  MUST(cuMemsetD8Async(other, 1, PIECE, stream));
  bool right = cuMemUnmap(address, PIECE) == CUDA_SUCCESS &&
               gpusim_counter_by_name("violations") == 0 &&
               cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  return right && cuCtxSynchronize() == CUDA_SUCCESS ? 0 : 1;
}

static int numa_refused(void) {
  setenv("GPUSIM_HOST_NUMA", "0", 1);
  start();
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp p = host_memory();
  bool refused = cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_NOT_PERMITTED;
  p.location.type = CU_MEM_LOCATION_TYPE_HOST;
  return refused && cuMemCreate(&handle, PIECE, &p, 0) == CUDA_SUCCESS ? 0 : 1;
}

static int host_refused(void) {
  setenv("GPUSIM_HOST", "0", 1);
  start();
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp p = host_memory();
  bool made = cuMemCreate(&handle, PIECE, &p, 0) == CUDA_SUCCESS;
  p.location.type = CU_MEM_LOCATION_TYPE_HOST;
  return made && cuMemCreate(&handle, PIECE, &p, 0) == CUDA_ERROR_NOT_SUPPORTED ? 0 : 1;
}

int main(void) {
  tap_ok(in_child(unmap_under_copy) == 0,
         "unmapping under a queued copy is a violation and a sticky error");
  tap_ok(in_child(unmap_under_launch) == 0,
         "unmapping under a queued launch that names the piece in any word is one too");
  tap_ok(in_child(unmap_after_work) == 0,
         "unmapping after the work on the piece is none, and waits for nothing");
  tap_ok(in_child(numa_refused) == 0, "GPUSIM_HOST_NUMA=0 refuses HOST_NUMA with NOT_PERMITTED");
  tap_ok(in_child(host_refused) == 0, "GPUSIM_HOST=0 refuses HOST with NOT_SUPPORTED");
  setenv("GPUSIM_DEVICES", "2", 1);
  start();
  test_reserve();
  test_create();
  test_map();
  test_access();
  test_attributes();
  test_references();
  test_sharing();
  test_many();
  return tap_done();
}
