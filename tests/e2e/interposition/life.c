/* One process's life with a driver: what it does is named by its arguments, a word each, and every
   answer is a line. `range` says whether a large allocation became a range: virtual memory has a
   handle to retain, native memory has none. */
#include "../../../policy/offload.h"
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE = 4 << 20 };
typedef CUresult allocate_function(CUdeviceptr *, size_t);
static CUdeviceptr kept;

static void initialise(void) {
  CUcontext context;
  CUdevice device;
  CUresult result = cuInit(0);
  printf("init %d\n", (int)result);
  if (result == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
      cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS)
    (void)cuCtxSetCurrent(context);
}

static void range(allocate_function *allocate) {
  CUmemGenericAllocationHandle handle;
  CUresult result = allocate(&kept, LARGE);
  if (result != CUDA_SUCCESS) {
    printf("alloc %d\n", (int)result);
    return;
  }
  result = cuMemRetainAllocationHandle(&handle, (void *)kept);
  printf("range %s\n", result == CUDA_SUCCESS ? "yes" : "no");
  if (result == CUDA_SUCCESS)
    (void)cuMemRelease(handle);
}

static void bounds(void) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUresult result = cuMemGetAddressRange(&base, &bytes, kept + 12345);
  printf("bounds %d %s %zu\n", (int)result, base == kept ? "base" : "other", bytes);
}

static void type(void) {
  CUmemorytype memory = (CUmemorytype)0;
  unsigned managed = 7;
  CUdeviceptr start = 0;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
  void *values[] = {&memory, &managed, &start};
  managed = 0;
  CUresult result = cuPointerGetAttributes(3, attributes, values, kept + 4096);
  printf("type %d %d %u %s\n", (int)result, (int)memory, managed & 0xffu,
         start == kept ? "base" : "other");
}

static void alive(void) {
  static char in[LARGE], out[LARGE];
  memset(in, 0x5a, sizeof in);
  CUresult up = cuMemcpyHtoD(kept, in, LARGE), down = cuMemcpyDtoH(out, kept, LARGE);
  printf("copy %d %d %s\n", (int)up, (int)down, memcmp(in, out, LARGE) ? "differs" : "equal");
}

/* As a program asks that also runs without the library. */
static void report(const char *path) {
  int (*write_report)(const char *) =
      (int (*)(const char *))(uintptr_t)dlsym(RTLD_DEFAULT, "offload_report");
  const int error = write_report ? write_report(strcmp(path, "none") != 0 ? path : NULL) : -1;
  printf("report %s\n", !write_report      ? "unknown"
                        : error == 0       ? "written"
                        : error == EINVAL  ? "no path"
                        : error == ENODATA ? "no data"
                        : error == ENOENT  ? "no folder"
                                           : strerror(error));
}

static void run(int, char **);

static void in_child(int count, char **words) {
  (void)fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    run(count, words);
    exit(0);
  }
  int status = 0;
  (void)waitpid(child, &status, 0);
  printf("child %s\n", WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "ended" : "failed");
}

static void run(int count, char **words) {
  for (int i = 0; i < count; i++) {
    const char *word = words[i];
    if (!strcmp(word, "init"))
      initialise();
    else if (!strcmp(word, "range"))
      range(cuMemAlloc);
    else if (!strcmp(word, "by")) { /* a library allocates; the next word is its path */
      void *library = dlopen(words[++i], RTLD_NOW | RTLD_LOCAL);
      range(library ? (allocate_function *)dlsym(library, "allocate") : cuMemAlloc);
    } else if (!strcmp(word, "report")) /* the next word is its path */
      report(words[++i]);
    else if (!strcmp(word, "bounds"))
      bounds();
    else if (!strcmp(word, "type"))
      type();
    else if (!strcmp(word, "copy"))
      alive();
    else if (!strcmp(word, "free"))
      printf("free %d\n", (int)cuMemFree(kept));
    else if (!strcmp(word, "free-inside"))
      printf("free %d\n", (int)cuMemFree(kept + 4096));
    else if (!strcmp(word, "free-async"))
      printf("free %d\n", (int)cuMemFreeAsync(kept, NULL));
    else if (!strcmp(word, "ipc")) {
      CUipcMemHandle handle;
      printf("ipc %s\n", cuIpcGetMemHandle(&handle, kept) ? "refused" : "given");
    } else if (!strcmp(word, "reset"))
      printf("reset %d\n", (int)cuDevicePrimaryCtxReset(0));
    else if (!strcmp(word, "destroy")) {
      CUcontext context = NULL;
      (void)cuCtxGetCurrent(&context);
      printf("destroy %s\n", cuCtxDestroy(context) ? "refused" : "done");
    } else if (!strcmp(word, "create")) {
      CUcontext context;
      printf("create %d\n", (int)cuCtxCreate(&context, NULL, 0, 0));
    } else if (!strcmp(word, "fork")) {
      in_child(count - i - 1, words + i + 1);
      return;
    } else if (!strcmp(word, "fork-then")) { /* the child does the rest, and then the parent too */
      in_child(count - i - 1, words + i + 1);
    } else if (!strcmp(word, "exec")) {
      char *rest[16] = {(char *)"life"};
      for (int j = 0; i + 1 + j < count && j < 14; j++)
        rest[1 + j] = words[i + 1 + j];
      (void)fflush(stdout);
      (void)execv("/proc/self/exe", rest);
    } else {
      fprintf(stderr, "unknown word %s\n", word);
      exit(2);
    }
  }
}

int main(int count, char **words) {
  run(count - 1, words + 1);
  return 0;
}
