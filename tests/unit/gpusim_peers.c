/* Several devices: whose kernels may touch whose memory, and what each device counts. Checks that
   end in a sticky error run in a process of their own. */
#include "tests/unit/gpusim_driver.h"

static CUcontext contexts[3];

static void start_three(void) {
  setenv("GPUSIM_DEVICES", "3", 1);
  start();
  for (int i = 0; i < 3; i++)
    MUST(cuDevicePrimaryCtxRetain(&contexts[i], i));
}

static void use(int device) {
  MUST(cuCtxSetCurrent(contexts[device]));
}

/* What a store by a kernel of `device` ends in. */
static CUresult store_from(int device, CUdeviceptr address, uint32_t value) {
  CUmodule module;
  use(device);
  CUfunction function = load_kernel(&module, "store");
  MUST(launch_store(function, NULL, address, value));
  return cuCtxSynchronize();
}

static CUresult grant_to(CUdeviceptr address, int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access = access_of(CU_MEM_LOCATION_TYPE_DEVICE, device, flags);
  return cuMemSetAccess(address, PIECE, &access, 1);
}

static CUdeviceptr map_piece(CUmemAllocationProp properties) {
  CUdeviceptr piece;
  MUST(cuMemAddressReserve(&piece, PIECE, 0, 0, 0));
  MUST(cuMemMap(piece, PIECE, 0, create(properties), 0));
  return piece;
}

static int stranger(void) {
  CUdeviceptr memory;
  size_t free_bytes, total;
  start_three();
  use(0);
  MUST(cuMemAlloc(&memory, 4096));
  bool refused = store_from(1, memory, 5) == CUDA_ERROR_ILLEGAL_ADDRESS;
  use(0); /* the error is the second device's alone */
  return refused && cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS &&
                 cuCtxSynchronize() == CUDA_SUCCESS
             ? 0
             : 1;
}

static int one_way(void) {
  CUdeviceptr first, second;
  start_three();
  use(0);
  MUST(cuMemAlloc(&first, 4096));
  use(1);
  MUST(cuMemAlloc(&second, 4096));
  MUST(cuCtxEnablePeerAccess(contexts[0], 0));
  bool right = store_from(1, first, 6) == CUDA_SUCCESS && device_word(first) == 6;
  return right && store_from(0, second, 7) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int third_device(void) {
  CUdeviceptr memory;
  start_three();
  use(0);
  MUST(cuMemAlloc(&memory, 4096));
  use(1);
  MUST(cuCtxEnablePeerAccess(contexts[0], 0));
  return store_from(2, memory, 6) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int mapped_piece(void) {
  start_three();
  use(0);
  CUdeviceptr piece = map_piece(device_memory());
  MUST(grant_to(piece, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  use(1);
  MUST(cuCtxEnablePeerAccess(contexts[0], 0));
  return store_from(1, piece, 5) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int mapped_piece_granted(void) {
  start_three();
  use(0);
  CUdeviceptr piece = map_piece(device_memory());
  MUST(grant_to(piece, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  bool right = store_from(1, piece, 5) == CUDA_SUCCESS && device_word(piece) == 5;
  /* the device it lies on has no access by itself */
  return right && store_from(0, piece, 6) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int read_only_piece(void) {
  uint32_t word;
  start_three();
  use(0);
  CUdeviceptr piece = map_piece(device_memory());
  MUST(grant_to(piece, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  bool readable = cuMemcpyDtoH(&word, piece, 4) == CUDA_SUCCESS;
  return readable && store_from(0, piece, 5) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static int host_piece(void) {
  start_three();
  use(0);
  CUdeviceptr piece = map_piece(host_memory());
  MUST(grant_to(piece, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  bool right = store_from(0, piece, 5) == CUDA_SUCCESS && device_word(piece) == 5;
  return right && store_from(1, piece, 6) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
}

static size_t free_on(int device) {
  size_t free_bytes, total;
  use(device);
  MUST(cuMemGetInfo(&free_bytes, &total));
  return free_bytes;
}

static int information(void) {
  CUdeviceptr memory;
  CUcontext second;
  void *pinned;
  start_three();
  size_t before[3];
  for (int i = 0; i < 3; i++)
    before[i] = free_on(i);
  use(1);
  MUST(cuMemAlloc(&memory, 1 << 20));
  bool right =
      free_on(0) == before[0] && free_on(1) == before[1] - (1 << 20) && free_on(2) == before[2];
  CUmemAllocationProp third = device_memory();
  third.location.id = 2;
  create(third);
  right = right && free_on(2) == before[2] - PIECE;
  MUST(cuMemHostAlloc(&pinned, 1 << 20, 0));
  create(host_memory());
  right = right && free_on(0) == before[0] && free_on(2) == before[2] - PIECE;
  MUST(cuCtxCreate(&second, NULL, 0, 1));
  size_t free_bytes, total;
  MUST(cuMemGetInfo(&free_bytes, &total));
  return right && free_bytes == before[1] - (1 << 20) ? 0 : 1;
}

static int questions(void) {
  int can[3];
  start_three();
  use(0);
  MUST(cuDeviceCanAccessPeer(&can[0], 0, 1));
  MUST(cuDeviceCanAccessPeer(&can[1], 0, 0));
  return can[0] == 1 && can[1] == 0 &&
                 cuDeviceCanAccessPeer(&can[2], 0, 3) == CUDA_ERROR_INVALID_DEVICE &&
                 cuCtxEnablePeerAccess(contexts[0], 0) == CUDA_ERROR_INVALID_CONTEXT &&
                 cuCtxEnablePeerAccess(contexts[1], 1) == CUDA_ERROR_INVALID_VALUE
             ? 0
             : 1;
}

int main(void) {
  tap_ok(in_child(stranger) == 0,
         "a kernel that touches another device's memory is an error of its own device only");
  tap_ok(in_child(one_way) == 0, "peer access lets it, in one direction");
  tap_ok(in_child(third_device) == 0, "and for one device");
  tap_ok(in_child(mapped_piece) == 0, "peer access doesn't cover mapped pieces");
  tap_ok(in_child(mapped_piece_granted) == 0,
         "cuMemSetAccess opens a piece to the device it names, and to no other");
  tap_ok(in_child(read_only_piece) == 0, "a piece that is open for reading can't be written");
  tap_ok(in_child(host_piece) == 0, "a host piece has to be opened to each device too");
  tap_ok(in_child(information) == 0,
         "each device counts its own memory, for all its contexts, and no host memory");
  tap_ok(in_child(questions) == 0, "a device is no peer of itself");
  return tap_done();
}
