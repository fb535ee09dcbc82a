// The runtime API on the simulated GPU, as a program compiled by nvcc meets it. Built twice: for
// legacy streams, and with
// --default-stream per-thread.
#include "tests/lib/tap.h"
#include <cstring>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

namespace {

constexpr int kElements = 1000;
constexpr size_t kBytes = kElements * sizeof(float);

__device__ int counter = 5;
__constant__ float factor = 2.0f;

__global__ void scale(float *data, int n, float add) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    data[i] = data[i] * factor + add;
}

__global__ void count(int add) {
  atomicAdd(&counter, add);
}

// Calls CUDA before main and before any ordering between libraries is settled.
struct EarlyBird {
  cudaError_t error;
  void *pointer = nullptr;
  unsigned char bytes[16] = {};
  EarlyBird() {
    error = cudaMalloc(&pointer, sizeof bytes);
    if (error == cudaSuccess)
      error = cudaMemset(pointer, 0x5a, sizeof bytes);
    if (error == cudaSuccess)
      error = cudaMemcpy(bytes, pointer, sizeof bytes, cudaMemcpyDeviceToHost);
  }
};
EarlyBird early_bird;

bool all_equal(const std::vector<float> &values, float wanted) {
  for (float value : values)
    if (value != wanted)
      return false;
  return true;
}

void test_devices() {
  int devices = 0, device = -1, major = 0, version = 0;
  tap_ok(cudaGetDeviceCount(&devices) == cudaSuccess && devices >= 1, "there is a device");
  tap_ok(cudaGetDevice(&device) == cudaSuccess && device == 0, "the first one is current");
  tap_ok(cudaSetDevice(devices) == cudaErrorInvalidDevice &&
             cudaGetLastError() == cudaErrorInvalidDevice,
         "one too many is refused");
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDeviceProperties(&properties, 0);
  tap_ok(error == cudaSuccess && properties.warpSize == 32 && properties.maxThreadsPerBlock == 1024,
         "its properties are known");
  tap_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
             major == properties.major,
         "attributes and properties agree");
  tap_ok(cudaRuntimeGetVersion(&version) == cudaSuccess && version == CUDART_VERSION,
         "the runtime has the version of its headers");
  tap_ok(cudaDriverGetVersion(&version) == cudaSuccess && version >= 12000, "the driver has one");
}

void test_memory() {
  size_t before = 0, during = 0, after = 0, total = 0;
  void *device = nullptr, *none = &device;
  cudaMemGetInfo(&before, &total);
  tap_ok(cudaMalloc(&device, 8 << 20) == cudaSuccess, "memory can be allocated");
  cudaMemGetInfo(&during, &total);
  tap_ok(before - during >= 8 << 20, "and is taken from what is free");
  cudaPointerAttributes attributes;
  cudaError_t error = cudaPointerGetAttributes(&attributes, device);
  tap_ok(error == cudaSuccess && attributes.type == cudaMemoryTypeDevice &&
             attributes.device == 0 && attributes.devicePointer == device,
         "it is known as device memory");
  tap_ok(cudaFree(device) == cudaSuccess, "it can be freed");
  cudaMemGetInfo(&after, &total);
  tap_ok(after == before, "and is free again");
  tap_ok(cudaFree(device) == cudaErrorInvalidValue, "but not twice");
  tap_ok(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess,
         "the last error is taken once");
  tap_ok(cudaMalloc(&none, 0) == cudaSuccess && none == nullptr, "nothing is allocated as NULL");
  tap_ok(cudaFree(nullptr) == cudaSuccess, "NULL can be freed");
  tap_ok(cudaMalloc(&device, total + 1) == cudaErrorMemoryAllocation &&
             strcmp(cudaGetErrorName(cudaGetLastError()), "cudaErrorMemoryAllocation") == 0,
         "more than there is is refused");

  float *pinned = nullptr;
  error = cudaMallocHost(&pinned, kBytes);
  if (error == cudaSuccess)
    error = cudaPointerGetAttributes(&attributes, pinned);
  tap_ok(error == cudaSuccess && attributes.type == cudaMemoryTypeHost,
         "pinned memory is known as host memory");
  cudaFreeHost(pinned);
  int local = 0;
  error = cudaPointerGetAttributes(&attributes, &local);
  tap_ok(error == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered,
         "other memory is not registered");
}

void test_copies() {
  std::vector<float> host(kElements, 3.0f), back(kElements);
  float *a = nullptr, *b = nullptr;
  cudaMalloc(&a, kBytes);
  cudaMalloc(&b, kBytes);
  cudaError_t error = cudaMemcpy(a, host.data(), kBytes, cudaMemcpyHostToDevice);
  if (error == cudaSuccess)
    error = cudaMemcpy(b, a, kBytes, cudaMemcpyDeviceToDevice);
  if (error == cudaSuccess)
    error = cudaMemcpy(back.data(), b, kBytes, cudaMemcpyDeviceToHost);
  tap_ok(error == cudaSuccess && all_equal(back, 3.0f),
         "bytes go to the device, across it and back");
  error = cudaMemset(b, 0, kBytes);
  if (error == cudaSuccess)
    error = cudaMemcpy(back.data(), b, kBytes, cudaMemcpyDefault);
  tap_ok(error == cudaSuccess && all_equal(back, 0.0f),
         "memory is set, and a copy finds its own direction");
  tap_ok(cudaMemcpy(a, b, 4, static_cast<cudaMemcpyKind>(9)) == cudaErrorInvalidMemcpyDirection &&
             cudaGetLastError() == cudaErrorInvalidMemcpyDirection,
         "an unknown direction is refused");
  float row[2] = {1.0f, 2.0f};
  error = cudaMemcpy2D(b, 8 * sizeof(float), row, sizeof(float), sizeof(float), 2,
                       cudaMemcpyHostToDevice);
  if (error == cudaSuccess)
    error = cudaMemcpy(back.data(), b, kBytes, cudaMemcpyDeviceToHost);
  tap_ok(error == cudaSuccess && back[0] == 1.0f && back[1] == 0.0f && back[8] == 2.0f,
         "rows are copied by pitch");
  cudaFree(a);
  cudaFree(b);
}

void test_launches() {
  std::vector<float> back(kElements);
  float *data = nullptr;
  cudaMalloc(&data, kBytes);
  cudaMemset(data, 0, kBytes);
  scale<<<(kElements + 127) / 128, 128>>>(data, kElements, 3.0f);
  scale<<<(kElements + 127) / 128, 128>>>(data, kElements, 1.0f);
  tap_ok(cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess,
         "kernels are launched");
  cudaMemcpy(back.data(), data, kBytes, cudaMemcpyDeviceToHost);
  tap_ok(all_equal(back, 7.0f), "and do their work in order");

  int elements = kElements;
  float add = 0.5f;
  void *arguments[] = {&data, &elements, &add};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(8);
  config.blockDim = dim3(128);
  cudaError_t error =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(scale), arguments);
  cudaMemcpy(back.data(), data, kBytes, cudaMemcpyDeviceToHost);
  tap_ok(error == cudaSuccess && all_equal(back, 14.5f), "also by a launch configuration");

  scale<<<1, 2048>>>(data, kElements, 0.0f);
  tap_ok(cudaGetLastError() == cudaErrorInvalidConfiguration,
         "a block that is too large is refused");
  tap_ok(cudaLaunchKernel(&elements, dim3(1), dim3(1), arguments, 0, nullptr) ==
                 cudaErrorInvalidDeviceFunction &&
             cudaGetLastError() == cudaErrorInvalidDeviceFunction,
         "an address that is no kernel is refused");

  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(scale));
  tap_ok(error == cudaSuccess && attributes.maxThreadsPerBlock == 1024,
         "a kernel's attributes are known");
  const char *name = nullptr;
  error = cudaFuncGetName(&name, reinterpret_cast<const void *>(scale));
  tap_ok(error == cudaSuccess && strstr(name, "scale") != nullptr, "and its mangled name");
  size_t offset = 0, bytes = 0;
  error = cudaFuncGetParamInfo(reinterpret_cast<const void *>(scale), 2, &offset, &bytes);
  tap_ok(error == cudaSuccess && offset == 12 && bytes == 4, "and where its parameters lie");
  cudaFree(data);
}

void test_variables() {
  int value = 0;
  cudaError_t error = cudaMemcpyFromSymbol(&value, counter, sizeof value);
  tap_ok(error == cudaSuccess && value == 5, "a variable has its initial value");
  count<<<2, 32>>>(1);
  error = cudaMemcpyFromSymbol(&value, counter, sizeof value);
  tap_ok(error == cudaSuccess && value == 69, "a kernel changes it");
  value = 100;
  cudaMemcpyToSymbol(counter, &value, sizeof value);
  void *address = nullptr;
  size_t bytes = 0;
  error = cudaGetSymbolAddress(&address, counter);
  value = 0;
  if (error == cudaSuccess)
    error = cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost);
  tap_ok(error == cudaSuccess && value == 100, "it is written by name and read by address");
  tap_ok(cudaGetSymbolSize(&bytes, counter) == cudaSuccess && bytes == sizeof(int),
         "its size is known");
  tap_ok(cudaMemcpyToSymbol(counter, &value, sizeof value, 1) == cudaErrorInvalidValue &&
             cudaGetLastError() == cudaErrorInvalidValue,
         "nothing is written beyond its end");
  tap_ok(cudaGetSymbolAddress(&address, &value) == cudaErrorInvalidSymbol &&
             cudaGetLastError() == cudaErrorInvalidSymbol,
         "an address that is no variable is refused");
}

void CUDART_CB add_one(void *user) {
  ++*static_cast<int *>(user);
}

void test_streams() {
  cudaStream_t first = nullptr, second = nullptr;
  cudaEvent_t start = nullptr, event = nullptr, untimed = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  if (error == cudaSuccess)
    error = cudaStreamCreate(&second);
  tap_ok(error == cudaSuccess, "streams are created");
  unsigned flags = 0;
  tap_ok(cudaStreamGetFlags(first, &flags) == cudaSuccess && flags == cudaStreamNonBlocking,
         "with their flags");
  cudaEventCreate(&start);
  cudaEventCreate(&event);
  cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming);

  float *data = nullptr, *pinned = nullptr;
  cudaMalloc(&data, kBytes);
  cudaMallocHost(&pinned, kBytes);
  int calls = 0;
  cudaEventRecord(start, first);
  cudaMemsetAsync(data, 0, kBytes, first);
  scale<<<8, 128, 0, first>>>(data, kElements, 4.0f);
  cudaLaunchHostFunc(first, add_one, &calls);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  cudaMemcpyAsync(pinned, data, kBytes, cudaMemcpyDeviceToHost, second);
  tap_ok(cudaStreamSynchronize(second) == cudaSuccess && pinned[kElements - 1] == 4.0f &&
             calls == 1,
         "a stream waits for an event of another");
  tap_ok(cudaEventQuery(event) == cudaSuccess && cudaStreamQuery(first) == cudaSuccess,
         "then both are done");
  float ms = -1;
  tap_ok(cudaEventSynchronize(event) == cudaSuccess &&
             cudaEventElapsedTime(&ms, start, event) == cudaSuccess && ms >= 0,
         "the time between two events is known");
  cudaEventRecord(untimed, first);
  cudaEventSynchronize(untimed);
  tap_ok(cudaEventElapsedTime(&ms, start, untimed) == cudaErrorInvalidResourceHandle &&
             cudaGetLastError() == cudaErrorInvalidResourceHandle,
         "but not to an event without time");
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
  tap_ok(cudaStreamIsCapturing(first, &capture) == cudaSuccess &&
             capture == cudaStreamCaptureStatusNone,
         "no stream is capturing");
  void *pooled = nullptr;
  error = cudaMallocAsync(&pooled, kBytes, first);
  if (error == cudaSuccess)
    error = cudaFreeAsync(pooled, first);
  tap_ok(error == cudaSuccess && cudaStreamSynchronize(first) == cudaSuccess,
         "memory is allocated and freed in the order of a stream");
  error = cudaEventDestroy(start);
  if (error == cudaSuccess)
    error = cudaEventDestroy(event);
  if (error == cudaSuccess)
    error = cudaEventDestroy(untimed);
  if (error == cudaSuccess)
    error = cudaStreamDestroy(first);
  if (error == cudaSuccess)
    error = cudaStreamDestroy(second);
  tap_ok(error == cudaSuccess, "streams and events are destroyed");
  cudaFree(data);
  cudaFreeHost(pinned);
}

void test_threads() {
  cudaError_t seen = cudaErrorUnknown, allocated = cudaErrorUnknown;
  cudaSetDevice(-1);
  std::thread([&] {
    seen = cudaGetLastError();
    void *pointer = nullptr;
    allocated = cudaMalloc(&pointer, 1024);
    cudaFree(pointer);
  }).join();
  tap_ok(seen == cudaSuccess && cudaGetLastError() == cudaErrorInvalidDevice,
         "errors belong to their thread");
  tap_ok(allocated == cudaSuccess, "a new thread can call CUDA at once");
}

void test_errors() {
  tap_ok(strcmp(cudaGetErrorName(cudaSuccess), "cudaSuccess") == 0 &&
             strcmp(cudaGetErrorName(cudaErrorInvalidConfiguration),
                    "cudaErrorInvalidConfiguration") == 0,
         "errors have names");
  tap_ok(strcmp(cudaGetErrorString(cudaErrorInvalidDeviceFunction), "invalid device function") ==
                 0 &&
             strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0,
         "and texts, the runtime's own and the driver's");
  tap_ok(strcmp(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code") == 0,
         "an unknown code is called so");
  void *entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuMemCreate", &entry, 12000, cudaEnableDefault, &found);
  tap_ok(error == cudaSuccess && entry != nullptr && found == cudaDriverEntryPointSuccess,
         "a driver function is found by name and version");
  error = cudaGetDriverEntryPointByVersion("cuNothing", &entry, 12000, cudaEnableDefault, &found);
  tap_ok(error == cudaSuccess && entry == nullptr && found == cudaDriverEntryPointSymbolNotFound,
         "and an unknown one is told so");
  cudaArray_t array = nullptr;
  cudaChannelFormatDesc format = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
  tap_ok(cudaMallocArray(&array, &format, 16, 16) == cudaErrorNotSupported &&
             cudaGetLastError() == cudaErrorNotSupported,
         "what is not simulated says so");
}

} // namespace

void test_graphs() {
  cudaStream_t stream;
  cudaGraph_t graph, made;
  cudaGraphExec_t exec = nullptr, made_exec = nullptr;
  cudaGraphNode_t kernel, copy, fill;
  float *data = nullptr;
  std::vector<float> host(kElements, 1.0f), back(kElements, 0.0f);
  bool right = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
               cudaMalloc(&data, kBytes) == cudaSuccess;
  right = right && cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess;
  right =
      right && cudaMemcpyAsync(data, host.data(), kBytes, cudaMemcpyDefault, stream) == cudaSuccess;
  scale<<<(kElements + 255) / 256, 256, 0, stream>>>(data, kElements, 1.0f);
  right =
      right && cudaMemcpyAsync(back.data(), data, kBytes, cudaMemcpyDefault, stream) == cudaSuccess;
  right = right && cudaStreamEndCapture(stream, &graph) == cudaSuccess &&
          cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
  tap_ok(right && back[0] == 0.0f, "copies and launches can be captured and instantiated");
  right = right && cudaGraphLaunch(exec, stream) == cudaSuccess &&
          cudaStreamSynchronize(stream) == cudaSuccess;
  tap_ok(right && all_equal(back, 3.0f), "a launch of the graph carries them out");
  host.assign(kElements, 5.0f);
  right = right && cudaGraphLaunch(exec, stream) == cudaSuccess &&
          cudaStreamSynchronize(stream) == cudaSuccess;
  tap_ok(right && all_equal(back, 11.0f), "and another one again");

  int n = kElements;
  float add = 0.5f;
  void *arguments[] = {&data, &n, &add};
  cudaKernelNodeParams kernel_node = {};
  kernel_node.func = reinterpret_cast<void *>(scale);
  kernel_node.gridDim = dim3((kElements + 255) / 256);
  kernel_node.blockDim = dim3(256);
  kernel_node.kernelParams = arguments;
  cudaMemsetParams fill_node = {};
  fill_node.dst = data;
  fill_node.elementSize = 4;
  fill_node.width = kElements;
  fill_node.height = 1;
  right = cudaGraphCreate(&made, 0) == cudaSuccess &&
          cudaGraphAddMemsetNode(&fill, made, nullptr, 0, &fill_node) == cudaSuccess &&
          cudaGraphAddKernelNode(&kernel, made, &fill, 1, &kernel_node) == cudaSuccess &&
          cudaGraphAddMemcpyNode1D(&copy, made, &kernel, 1, back.data(), data, kBytes,
                                   cudaMemcpyDeviceToHost) == cudaSuccess &&
          cudaGraphInstantiate(&made_exec, made, 0) == cudaSuccess &&
          cudaGraphLaunch(made_exec, stream) == cudaSuccess &&
          cudaStreamSynchronize(stream) == cudaSuccess;
  tap_ok(right && all_equal(back, 0.5f), "a graph made by hand does the same");
  add = 2.5f;
  right = right &&
          cudaGraphExecKernelNodeSetParams(made_exec, kernel, &kernel_node) == cudaSuccess &&
          cudaGraphLaunch(made_exec, stream) == cudaSuccess &&
          cudaStreamSynchronize(stream) == cudaSuccess;
  tap_ok(right && all_equal(back, 2.5f), "with other parameters for its kernel too");

  right = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess;
  void *none = nullptr;
  tap_ok(right && cudaMalloc(&none, 16) == cudaErrorStreamCaptureUnsupported &&
             cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated,
         "an allocation invalidates a capture");
  cudaGetLastError();
  cudaGraphExecDestroy(exec);
  cudaGraphExecDestroy(made_exec);
  cudaGraphDestroy(made);
  cudaFree(data);
  cudaStreamDestroy(stream);
}

int main() {
  bool set = early_bird.error == cudaSuccess;
  for (unsigned char byte : early_bird.bytes)
    set = set && byte == 0x5a;
  tap_ok(set, "a static constructor can call CUDA");
  test_devices();
  test_memory();
  test_copies();
  test_launches();
  test_variables();
  test_streams();
  test_threads();
  test_graphs();
  test_errors();
  return tap_done();
}
