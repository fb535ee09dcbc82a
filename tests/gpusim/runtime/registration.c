/* What the code calls that nvcc generates (crt/host_runtime.h): images, kernels and variables are
   registered by constructors, launches are configured by <<<...>>>. And the way from a host address
   to its kernel or variable.

   Constructors run before main and in any order between libraries, so nothing here needs
   initialisation; images are loaded at first use. registry_lock is taken before the driver's locks
   and never inside a driver call of ours.

   Large frameworks register 100,000 kernels: a fixed hash table, whose untouched pages cost
   nothing. */
#include "runtime.h"
#include <pthread.h>
#include <stdlib.h>

struct image {
  const void *wrapper; /* struct __fatBinC_Wrapper_t of fatbinary_section.h */
  CUlibrary library;
  CUresult result;
  bool loaded;
  struct symbol *symbols;
};

struct symbol {
  struct symbol *next, *next_of_image;
  const void *host;
  const char *name;
  struct image *image;
  bool is_variable;
  size_t bytes;
  CUkernel kernel; /* NULL until first asked for; the same in every context */
};

enum { BUCKET_BITS = 18, BUCKETS = 1 << BUCKET_BITS };
static struct symbol *buckets[BUCKETS];
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* protects all of the above */

static struct symbol **bucket(const void *host) {
  uint64_t mixed = ((uint64_t)(uintptr_t)host >> 4) * 0x9e3779b97f4a7c15u;
  return &buckets[mixed >> (64 - BUCKET_BITS)];
}

static void out_of_memory(void) {
  /* A constructor has no way to return an error, and NVIDIA's runtime ends the program as well. */
  abort();
}

static void add_symbol(void **handle, const void *host, const char *name, bool is_variable,
                       size_t bytes) {
  struct image *image = (struct image *)handle;
  struct symbol *symbol = calloc(1, sizeof *symbol);
  if (symbol == NULL) {
    out_of_memory();
    return;
  }
  symbol->host = host;
  symbol->name = name;
  symbol->image = image;
  symbol->is_variable = is_variable;
  symbol->bytes = bytes;
  pthread_mutex_lock(&registry_lock);
  symbol->next_of_image = image->symbols;
  image->symbols = symbol;
  struct symbol **head = bucket(host);
  symbol->next = *head;
  *head = symbol;
  pthread_mutex_unlock(&registry_lock);
}

void **__cudaRegisterFatBinary(void *wrapper);
void **__cudaRegisterFatBinary(void *wrapper) {
  struct image *image = calloc(1, sizeof *image);
  if (image == NULL) {
    out_of_memory();
    return NULL;
  }
  image->wrapper = wrapper;
  return (void **)image;
}

void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFatBinaryEnd(void **handle) {
  (void)handle;
}

/* At exit or dlclose. The names leave, for another library may come to lie at the same addresses.
   The image stays loaded: at exit the driver may already be gone. */
void __cudaUnregisterFatBinary(void **handle);
void __cudaUnregisterFatBinary(void **handle) {
  struct image *image = (struct image *)handle;
  if (image == NULL)
    return;
  pthread_mutex_lock(&registry_lock);
  while (image->symbols != NULL) {
    struct symbol *symbol = image->symbols, **link = bucket(symbol->host);
    while (*link != symbol)
      link = &(*link)->next;
    *link = symbol->next;
    image->symbols = symbol->next_of_image;
    free(symbol);
  }
  pthread_mutex_unlock(&registry_lock);
  free(image);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *thread, uint3 *block, dim3 *block_size,
                            dim3 *grid_size, int *warp_size);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int thread_limit, uint3 *thread, uint3 *block, dim3 *block_size,
                            dim3 *grid_size, int *warp_size) {
  (void)device, (void)thread_limit, (void)thread, (void)block;
  (void)block_size, (void)grid_size, (void)warp_size;
  add_symbol(handle, host, name, false, 0);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                       size_t bytes, int constant, int global);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external,
                       size_t bytes, int constant, int global) {
  (void)device, (void)external, (void)constant, (void)global;
  add_symbol(handle, host, name, true, bytes);
}

char __cudaInitModule(void **handle);
char __cudaInitModule(void **handle) {
  (void)handle;
  return 1;
}

/* ---- <<<grid, block, shared, stream>>> ---- */

struct configuration {
  dim3 grid, block;
  size_t shared_bytes;
  struct CUstream_st *stream;
};
/* Deeper than one only where an argument of a launch contains a launch. */
enum { MAX_CONFIGURATIONS = 16 };
static _Thread_local struct configuration configurations[MAX_CONFIGURATIONS];
static _Thread_local int configuration_count;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream) {
  if (configuration_count == MAX_CONFIGURATIONS)
    return 1;
  configurations[configuration_count++] = (struct configuration){grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes,
                                       void *stream) {
  if (configuration_count == 0)
    return runtime_fail(cudaErrorMissingConfiguration);
  const struct configuration *top = &configurations[--configuration_count];
  *grid = top->grid;
  *block = top->block;
  *shared_bytes = top->shared_bytes;
  *(struct CUstream_st **)stream = top->stream;
  return cudaSuccess;
}

/* ---- host address to kernel or variable; registry_lock is held by the callers of the first two
 * ---- */

static struct symbol *find(const void *host, bool is_variable) {
  for (struct symbol *symbol = *bucket(host); symbol != NULL; symbol = symbol->next)
    if (symbol->host == host && symbol->is_variable == is_variable)
      return symbol;
  return NULL;
}

static CUresult load(struct image *image) {
  if (!image->loaded) {
    image->result =
        driver.cuLibraryLoadData(&image->library, image->wrapper, NULL, NULL, 0, NULL, NULL, 0);
    image->loaded = true;
  }
  return image->result;
}

cudaError_t runtime_kernel(const void *host, CUkernel *kernel) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&registry_lock);
  struct symbol *symbol = find(host, false);
  if (symbol != NULL && symbol->kernel == NULL) {
    result = load(symbol->image);
    if (result == CUDA_SUCCESS)
      result = driver.cuLibraryGetKernel(&symbol->kernel, symbol->image->library, symbol->name);
  }
  if (symbol != NULL && result == CUDA_SUCCESS)
    *kernel = symbol->kernel;
  pthread_mutex_unlock(&registry_lock);
  if (symbol == NULL || result == CUDA_ERROR_NOT_FOUND)
    return cudaErrorInvalidDeviceFunction;
  return (cudaError_t)result;
}

cudaError_t runtime_function(const void *host, CUfunction *function) {
  CUkernel kernel;
  cudaError_t error = runtime_kernel(host, &kernel);
  return error != cudaSuccess ? error : (cudaError_t)driver.cuKernelGetFunction(function, kernel);
}

cudaError_t runtime_variable(const void *host, CUdeviceptr *address, size_t *bytes) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&registry_lock);
  struct symbol *symbol = find(host, true);
  if (symbol != NULL) {
    result = load(symbol->image);
    /* Asked for each time: the address is another one in each context. */
    if (result == CUDA_SUCCESS)
      result = driver.cuLibraryGetGlobal(address, NULL, symbol->image->library, symbol->name);
    *bytes = symbol->bytes;
  }
  pthread_mutex_unlock(&registry_lock);
  return symbol == NULL ? cudaErrorInvalidSymbol : (cudaError_t)result;
}
