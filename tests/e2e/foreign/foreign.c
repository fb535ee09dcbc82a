/* Training beside memory that isn't ours, and calls that others make about memory that is: words on the
   command line, done in order (trainer.h).

     foreign KERNEL.ptx word[:argument]...
   in:KIND        first: the arrays lie in memory of the program's own: segment (mapped piece by piece),
                  pool, managed
   train:N        N steps, then hashes
   new            another allocation of an array's size; says whether it has a handle ("virtual") on stderr
   ipc:m ipc:new  a legacy IPC handle of m, of the new allocation
   retain:m       a handle of m's memory, exported to a descriptor, and released
   range:m        a descriptor for m's address range
   registered pinned async pool managed array segment pitched
                  m is copied to such memory, in stream order, and back into v's copy; then it is freed
   bounds:m       its address range, asked for by the program
   attributes:m   every pointer attribute, one by one and together; consumer:m those that DLPack's and
                  tensor libraries' consumers ask for; sync:m SYNC_MEMOPS is set
   info           memory information, also with null pointers
   peer           device 1 enables access to this one's memory, and a kernel there reads m
   peer-copy      copies of m and v to device 1 in a stream of that device, and by the call that waits
   library:PATH:FUNCTION
                  calls a function of a library: int FUNCTION(CUdeviceptr m, size_t bytes), prints its answer */
#include "trainer.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct trainer trainer;
static CUdeviceptr fresh;
static size_t least_free = SIZE_MAX, all;

/* ---- memory of the program's own ---- */

enum { SEGMENT_BYTES = 64 << 20, CHUNK_BYTES = 65536 };

struct segment {
  CUdeviceptr base;
  size_t used;
  CUmemGenericAllocationHandle handles[64];
  unsigned count;
};

/* As allocators with expandable segments do: much address space, little memory at first. */
static CUresult segment_grow(struct segment *segment, CUdeviceptr *pointer, size_t bytes) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (!segment->base)
    CU(cuMemAddressReserve(&segment->base, SEGMENT_BYTES, 0, 0, 0));
  *pointer = segment->base + segment->used;
  for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
    CUmemGenericAllocationHandle *handle = &segment->handles[segment->count++];
    CU(cuMemCreate(handle, CHUNK_BYTES, &properties, 0));
    CU(cuMemMap(*pointer + at, CHUNK_BYTES, 0, *handle, 0));
    segment->used += CHUNK_BYTES;
  }
  CU(cuMemSetAccess(*pointer, bytes, &access, 1));
  return CUDA_SUCCESS;
}

/* Chunk by chunk, as when a cache is emptied, and then the addresses. */
static void segment_end(struct segment *segment) {
  CU(cuStreamSynchronize(trainer.stream));
  while (segment->count) {
    segment->used -= CHUNK_BYTES;
    CU(cuMemUnmap(segment->base + segment->used, CHUNK_BYTES));
    CU(cuMemRelease(segment->handles[--segment->count]));
  }
  CU(cuMemAddressFree(segment->base, SEGMENT_BYTES));
  segment->base = 0;
}

static struct segment arrays;
static CUresult in_segment(CUdeviceptr *pointer, size_t bytes) {
  return segment_grow(&arrays, pointer, bytes);
}
static CUresult in_pool(CUdeviceptr *pointer, size_t bytes) {
  return cuMemAllocAsync(pointer, bytes, NULL);
}
static CUresult in_managed(CUdeviceptr *pointer, size_t bytes) {
  return cuMemAllocManaged(pointer, bytes, CU_MEM_ATTACH_GLOBAL);
}

/* ---- copies there and back ---- */

static void there_and_back(const char *name, CUdeviceptr between) {
  CUdeviceptr back;
  CU(cuMemAlloc(&back, ARRAY_BYTES));
  CU(cuMemcpyAsync(between, trainer.m, ARRAY_BYTES, trainer.stream));
  CU(cuMemcpyAsync(back, between, ARRAY_BYTES, trainer.stream));
  CU(cuStreamSynchronize(trainer.stream));
  printf("%s %s\n", name,
         device_hash(back, ARRAY_BYTES) == device_hash(trainer.m, ARRAY_BYTES) ? "equal"
                                                                               : "differs");
  CU(cuMemFree(back));
}

static bool in_host(const char *word) {
  void *memory = NULL;
  if (!strcmp(word, "registered")) {
    if (posix_memalign(&memory, 4096, ARRAY_BYTES))
      exit(2);
    CU(cuMemHostRegister(memory, ARRAY_BYTES, 0));
    there_and_back(word, (CUdeviceptr)(uintptr_t)memory);
    CU(cuMemHostUnregister(memory));
    free(memory);
  } else if (!strcmp(word, "pinned")) {
    CU(cuMemHostAlloc(&memory, ARRAY_BYTES, 0));
    there_and_back(word, (CUdeviceptr)(uintptr_t)memory);
    CU(cuMemFreeHost(memory));
  } else {
    return false;
  }
  return true;
}

static bool in_device(const char *word) {
  CUdeviceptr memory;
  if (!strcmp(word, "async")) {
    CU(cuMemAllocAsync(&memory, ARRAY_BYTES, trainer.stream));
    there_and_back(word, memory);
    CU(cuMemFreeAsync(memory, trainer.stream));
  } else if (!strcmp(word, "pool")) {
    CUmemoryPool pool;
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CU(cuMemPoolCreate(&pool, &properties));
    CU(cuMemAllocFromPoolAsync(&memory, ARRAY_BYTES, pool, trainer.stream));
    there_and_back(word, memory);
    CU(cuMemFreeAsync(memory, trainer.stream));
    CU(cuMemPoolTrimTo(pool, 0));
    CU(cuMemPoolDestroy(pool));
  } else if (!strcmp(word, "managed")) {
    CU(cuMemAllocManaged(&memory, ARRAY_BYTES, CU_MEM_ATTACH_GLOBAL));
    there_and_back(word, memory);
    printf("managed byte %d\n", *(const unsigned char *)(uintptr_t)(memory + 100));
    CU(cuMemFree(memory));
  } else if (!strcmp(word, "pitched")) {
    size_t pitch;
    CU(cuMemAllocPitch(&memory, &pitch, ARRAY_BYTES, 1, 4));
    there_and_back(word, memory);
    CU(cuMemFree(memory));
  } else if (!strcmp(word, "segment")) {
    static struct segment segment;
    CU(segment_grow(&segment, &memory, ARRAY_BYTES));
    there_and_back(word, memory);
    segment_end(&segment);
  } else {
    return false;
  }
  return true;
}

static void in_array(void) {
  enum { SIDE = 256 };
  _Static_assert(SIDE * SIDE * 4 == (int)ARRAY_BYTES, "a square of floats");
  CUarray row, square;
  CUdeviceptr back;
  const CUDA_ARRAY_DESCRIPTOR one = {ELEMENTS / 4, 0, CU_AD_FORMAT_FLOAT, 4},
                              two = {SIDE, SIDE, CU_AD_FORMAT_FLOAT, 1};
  CU(cuMemAlloc(&back, 2 * ARRAY_BYTES));
  CU(cuArrayCreate(&row, &one));
  CU(cuMemcpyDtoA(row, 0, trainer.m, ARRAY_BYTES));
  CU(cuMemcpyAtoD(back, row, 0, ARRAY_BYTES));
  CU(cuArrayCreate(&square, &two));
  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = trainer.v,
                        .srcPitch = 4 * SIDE,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = square,
                        .WidthInBytes = 4 * SIDE,
                        .Height = SIDE};
  CU(cuMemcpy2DAsync(&copy, trainer.stream));
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = square;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = back + ARRAY_BYTES;
  copy.dstPitch = 4 * SIDE;
  CU(cuMemcpy2DAsync(&copy, trainer.stream));
  CU(cuCtxSynchronize());
  printf("arrays %016llx %016llx\n", device_hash(back, ARRAY_BYTES),
         device_hash(back + ARRAY_BYTES, ARRAY_BYTES));
  CU(cuArrayDestroy(row));
  CU(cuArrayDestroy(square));
  CU(cuMemFree(back));
}

/* ---- questions ---- */

static void print_attribute(CUpointer_attribute attribute, CUresult result, const void *value) {
  unsigned long long whole = 0;
  CUcontext current = NULL;
  memcpy(&whole, value, 8);
  const unsigned low = (unsigned)(whole & 0xff);
  printf(" %d:", (int)attribute);
  if (result != CUDA_SUCCESS) {
    printf("%s", cu_name(result));
    return;
  }
  switch ((int)attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    CU(cuCtxGetCurrent(&current));
    printf("%s", current == (CUcontext)(uintptr_t)whole ? "current" : "other");
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    printf("m%+lld", (long long)(whole - trainer.m));
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    printf("%s", whole ? "an id" : "none");
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    printf("%llu", whole);
    break;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: /* virtual memory isn't; see ipc */
    printf("asked");
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    printf("%llx", whole);
    break;
  default:
    printf("%u", low);
  }
}

static void attributes(const CUpointer_attribute *asked, unsigned count, CUdeviceptr pointer) {
  unsigned long long values[32] = {0};
  CUpointer_attribute copies[32];
  void *places[32];
  printf("one by one");
  for (unsigned i = 0; i < count; i++) {
    unsigned long long value = 0;
    const CUresult result = cuPointerGetAttribute(&value, asked[i], pointer);
    print_attribute(asked[i], result, &value);
    copies[i] = asked[i];
    places[i] = &values[i];
  }
  printf("\ntogether %s", cu_name(cuPointerGetAttributes(count, copies, places, pointer)));
  for (unsigned i = 0; i < count; i++)
    print_attribute(asked[i], CUDA_SUCCESS, &values[i]);
  printf("\n");
}

static void every_attribute(CUdeviceptr pointer) {
  CUpointer_attribute asked[32];
  unsigned count = 0;
  for (int i = CU_POINTER_ATTRIBUTE_CONTEXT; i <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID; i++)
    if (i != CU_POINTER_ATTRIBUTE_P2P_TOKENS) /* a struct, of drivers for other devices */
      asked[count++] = (CUpointer_attribute)i;
  attributes(asked, count, pointer);
  printf("nowhere %s\n", cu_name(cuPointerGetAttribute(NULL, asked[0], pointer)));
}

static void consumer(CUdeviceptr pointer) {
  static const CUpointer_attribute asked[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  attributes(asked, sizeof asked / sizeof *asked, pointer);
}

static void bounds(CUdeviceptr pointer) {
  CUdeviceptr base = 0;
  size_t bytes = 0, alone = 0;
  const CUresult result = cuMemGetAddressRange(&base, &bytes, pointer + 12345);
  const CUresult half = cuMemGetAddressRange(NULL, &alone, pointer + bytes - 1);
  printf("bounds %s %lld %zu, %s %zu, past it %s\n", cu_name(result), (long long)(base - pointer),
         bytes, cu_name(half), alone,
         cuMemGetAddressRange(&base, &bytes, pointer + bytes) == CUDA_SUCCESS && base == pointer
             ? "the same"
             : "another or none");
}

static void info(void) {
  size_t now = 0, total = 0, alone = 0;
  CU(cuMemGetInfo(&now, &total));
  printf("info %s, %s, null %s %s %s\n", now <= total ? "within" : "underflow",
         !all || all == total ? "one total" : "totals differ", cu_name(cuMemGetInfo(NULL, &alone)),
         cu_name(cuMemGetInfo(&alone, NULL)), cu_name(cuMemGetInfo(NULL, NULL)));
  all = total;
  fprintf(stderr, "free %zd\n", least_free == SIZE_MAX ? 0 : (ssize_t)(now - least_free));
  least_free = now < least_free ? now : least_free;
}

/* ---- handles ---- */

static void ipc(const char *what) {
  CUipcMemHandle handle;
  printf("ipc %s %s\n", what,
         cuIpcGetMemHandle(&handle, !strcmp(what, "m") ? trainer.m : fresh) ? "refused" : "given");
}

static void retain(CUdeviceptr pointer) {
  CUmemGenericAllocationHandle handle = 0;
  int descriptor = -1;
  const CUresult result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)pointer);
  const CUresult exported =
      result ? result
             : cuMemExportToShareableHandle(&descriptor, handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  printf("export %s\n", exported ? "refused" : "given");
  if (result == CUDA_SUCCESS)
    CU(cuMemRelease(handle));
}

static void address_range(CUdeviceptr pointer) {
  int descriptor = -1;
  const CUresult result = cuMemGetHandleForAddressRange(&descriptor, pointer, ARRAY_BYTES,
                                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  printf("range %s\n", cu_name(result));
}

static void allocate_more(void) {
  CUmemGenericAllocationHandle handle;
  CU(cuMemAlloc(&fresh, ARRAY_BYTES));
  const bool is_virtual =
      cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)fresh) == CUDA_SUCCESS;
  fprintf(stderr, "new %s\n", is_virtual ? "virtual" : "native");
  if (is_virtual)
    CU(cuMemRelease(handle));
}

/* ---- another device ---- */

static CUcontext second;

static void on_second(bool there) {
  if (!second)
    CU(cuDevicePrimaryCtxRetain(&second, 1));
  CU(cuCtxSetCurrent(there ? second : trainer.context));
}

static void peer(void) {
  static CUfunction copy;
  CUdeviceptr buffer;
  on_second(true);
  if (!copy)
    CU(cuCtxEnablePeerAccess(trainer.context, 0));
  if (!copy)
    copy = copy_kernel();
  CU(cuMemAlloc(&buffer, ARRAY_BYTES));
  copy_launch(copy, buffer, trainer.m, ELEMENTS, NULL);
  CU(cuCtxSynchronize());
  printf("peer read %016llx\n", device_hash(buffer, ARRAY_BYTES));
  CU(cuMemFree(buffer));
  on_second(false);
}

/* The last copy is still to come when the next step is launched, which waits for it. */
static void peer_copy(void) {
  static CUdeviceptr buffer;
  static CUstream stream;
  static CUevent read;
  on_second(true);
  if (!buffer) {
    CU(cuMemAlloc(&buffer, 2 * ARRAY_BYTES));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuEventCreate(&read, CU_EVENT_DISABLE_TIMING));
  }
  CU(cuMemcpyPeerAsync(buffer, second, trainer.m, trainer.context, ARRAY_BYTES, stream));
  CU(cuMemcpyPeer(buffer + ARRAY_BYTES, second, trainer.v, trainer.context, ARRAY_BYTES));
  CU(cuStreamSynchronize(stream));
  printf("peer copies %016llx %016llx\n", device_hash(buffer, ARRAY_BYTES),
         device_hash(buffer + ARRAY_BYTES, ARRAY_BYTES));
  CU(cuMemcpyPeerAsync(buffer, second, trainer.m, trainer.context, ARRAY_BYTES, stream));
  CU(cuEventRecord(read, stream));
  on_second(false);
  CU(cuStreamWaitEvent(trainer.stream, read, 0));
}

/* ---- words ---- */

static void library(const char *path, const char *name) {
  typedef int call(CUdeviceptr, size_t);
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  call *function = handle ? (call *)dlsym(handle, name) : NULL;
  if (!function) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  printf("%s answers %d\n", name, function(trainer.m, ARRAY_BYTES));
}

static void run(char **parts) {
  const char *word = parts[0];
  if (!strcmp(word, "train")) {
    trainer_train(&trainer, (unsigned)atoi(parts[1]));
    trainer_print(&trainer);
  } else if (!strcmp(word, "new"))
    allocate_more();
  else if (!strcmp(word, "ipc"))
    ipc(parts[1]);
  else if (!strcmp(word, "retain"))
    retain(trainer.m);
  else if (!strcmp(word, "range"))
    address_range(trainer.m);
  else if (!strcmp(word, "bounds"))
    bounds(trainer.m);
  else if (!strcmp(word, "attributes"))
    every_attribute(trainer.m + 4096);
  else if (!strcmp(word, "consumer"))
    consumer(trainer.m + 4096);
  else if (!strcmp(word, "sync")) {
    const unsigned one = 1;
    printf("sync %s\n",
           cu_name(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, trainer.m)));
  } else if (!strcmp(word, "info"))
    info();
  else if (!strcmp(word, "peer"))
    peer();
  else if (!strcmp(word, "peer-copy"))
    peer_copy();
  else if (!strcmp(word, "array"))
    in_array();
  else if (!strcmp(word, "library"))
    library(parts[1], parts[2]);
  else if (!in_host(word) && !in_device(word)) {
    fprintf(stderr, "unknown word %s\n", word);
    exit(2);
  }
}

int main(int count, char **words) {
  if (count < 2) {
    fprintf(stderr, "usage: foreign KERNEL.ptx word...\n");
    return 2;
  }
  const char *kind = count > 2 && !strncmp(words[2], "in:", 3) ? words[2] + 3 : NULL;
  CU(cuInit(0));
  trainer_open(&trainer, words[1], 0,
               !kind                      ? cuMemAlloc
               : !strcmp(kind, "segment") ? in_segment
               : !strcmp(kind, "pool")    ? in_pool
                                          : in_managed);
  const int first = kind ? 3 : 2;
  run_words(count - first, words + first, run);
  CU(cuCtxSynchronize());
  return 0;
}
