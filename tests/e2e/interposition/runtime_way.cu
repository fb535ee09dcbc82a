// Uses CUDA through a runtime, as nvcc compiles programs and libraries: before main in a static
// object's constructor, and after it in a function. Every answer is a line. Built with the shared
// and the static runtime, for legacy and for per-thread streams, as a program and as a library.
// The program's words are libraries, each of which is opened, used and closed; `twice` begins again
// at the first. Compiled with LATE it only starts CUDA before main, and allocates first in a thread
// for which the constructor of the library it opens (waiting_library.c) waits.
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <vector>

namespace {

constexpr int kElements = 1 << 20;
constexpr size_t kBytes = kElements * sizeof(int);

__global__ void triple(int *values, int n) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    values[i] = values[i] * 3 + 1;
}

int say(const char *what, cudaError_t error) {
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
  return error != cudaSuccess;
}

int check(const char *what, const std::vector<int> &values, int wanted) {
  bool right = true;
  for (int value : values)
    right = right && value == wanted;
  std::printf("%s: contents %s\n", what, right ? "right" : "wrong");
  return !right;
}

// Memory that is there before main, and goes when the program or the library does.
struct Early {
  int *data = nullptr;
  int failed;
  Early() {
#ifdef LATE
    failed = say("early start", cudaFree(nullptr));
    return;
#endif
    std::vector<int> values(kElements, 0);
    failed = say("early malloc", cudaMalloc(&data, kBytes));
    failed |= say("early memset", cudaMemset(data, 0, kBytes));
    triple<<<(kElements + 255) / 256, 256>>>(data, kElements);
    failed |= say("early copy", cudaMemcpy(values.data(), data, kBytes, cudaMemcpyDeviceToHost));
    failed |= check("early", values, 1);
  }
  ~Early() {
    (void)cudaFree(data);
  }
} early;

// As PyTorch and NCCL find driver functions.
int by_entry_point() {
  void *function = nullptr;
  CUdeviceptr pointer = 0;
  cudaDriverEntryPointQueryResult found;
  int failed = say("entry point", cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000,
                                                                   cudaEnableDefault, &found));
  if (failed || function == nullptr)
    return 1;
  auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t)>(function);
  failed = allocate(&pointer, kBytes);
  failed |= say("its free", cudaFree(reinterpret_cast<void *>(pointer)));
  std::printf("entry point: %s\n", failed ? "failed" : "used");
  return failed;
}

} // namespace

#ifndef USE
#define USE use
#endif
// Works on the caller's memory too, where there is any: runtimes share their contexts.
extern "C" int USE(int *foreign) {
  std::vector<int> values(kElements, 4);
  int *data = nullptr;
  cudaStream_t stream = nullptr;
  int failed = early.failed;
  failed |= say("malloc", cudaMalloc(&data, kBytes));
  failed |= say("copy up", cudaMemcpy(data, values.data(), kBytes, cudaMemcpyHostToDevice));
  triple<<<(kElements + 255) / 256, 256>>>(data, kElements);
  failed |= say("launch", cudaGetLastError());
  failed |= say("copy down", cudaMemcpy(values.data(), data, kBytes, cudaMemcpyDeviceToHost));
  failed |= check("null stream", values, 13);
  failed |= say("stream", cudaStreamCreate(&stream));
  failed |= say("synchronise", cudaDeviceSynchronize());
  triple<<<(kElements + 255) / 256, 256, 0, stream>>>(data, kElements);
  failed |= say("copy on it",
                cudaMemcpyAsync(values.data(), data, kBytes, cudaMemcpyDeviceToHost, stream));
  failed |= say("synchronise", cudaStreamSynchronize(stream));
  failed |= check("stream", values, 40);
  if (foreign != nullptr) {
    failed |= say("foreign copy", cudaMemcpy(data, foreign, kBytes, cudaMemcpyDeviceToDevice));
    failed |= say("foreign free", cudaFree(foreign));
    failed |= say("copy down", cudaMemcpy(values.data(), data, kBytes, cudaMemcpyDeviceToHost));
    failed |= check("foreign", values, 0x07070707);
  }
  failed |= say("destroy", cudaStreamDestroy(stream));
  failed |= say("free", cudaFree(data));
  return failed | by_entry_point();
}

#ifdef LATE
static int failed = 1;
// No kernel: its first launch may need the loader, with a runtime and without a preload.
extern "C" void *at_load(void *unused) {
  std::vector<int> values(kElements, 4);
  int *data = nullptr;
  failed = say("malloc", cudaMalloc(&data, kBytes));
  failed |= say("copy up", cudaMemcpy(data, values.data(), kBytes, cudaMemcpyHostToDevice));
  failed |= say("memset", cudaMemset(data, 7, kBytes));
  failed |= say("copy down", cudaMemcpy(values.data(), data, kBytes, cudaMemcpyDeviceToHost));
  failed |= check("late", values, 0x07070707);
  failed |= say("free", cudaFree(data)) | by_entry_point();
  return unused;
}

int main(int count, char **words) {
  if (count != 2 || dlopen(words[1], RTLD_NOW | RTLD_LOCAL) == nullptr)
    return 2;
  return failed;
}
#endif

#ifdef PROGRAM
namespace {

int use_library(const char *file) {
  int *data = nullptr;
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  auto use = reinterpret_cast<int (*)(int *)>(library ? dlsym(library, "use") : nullptr);
  if (use == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  int failed = say("malloc", cudaMalloc(&data, kBytes));
  failed |= say("memset", cudaMemset(data, 7, kBytes));
  failed |= say("synchronise", cudaDeviceSynchronize());
  failed |= use(data);
  std::printf("close %d\n", dlclose(library));
  return failed;
}

} // namespace

int main(int count, char **words) {
  bool twice = count > 1 && std::strcmp(words[count - 1], "twice") == 0;
  int failed = USE(nullptr);
  for (int round = 0; round <= twice; round++)
    for (int i = 1; i < count - twice; i++)
      failed |= use_library(words[i]);
  return failed;
}
#endif
