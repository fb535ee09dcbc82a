/* How fast kernels run on the simulated GPU, with its checks on, on one core, once the first
   launches are over: charlm's fused Adam over a million parameters, and the matrix products of its
   linear layers, on each engine. Prints a JSON object; called by tests/bench.py. The PTX lies in
   gpusim/kernels beside this program. */
#include <cuda.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ELEMENTS = 1000000, CHUNK = 65536, BATCH = 256, INNER = 32, COLUMNS = 96, RUNS = 9 };

/* PyTorch's list of tensors by value, 3,336 bytes (integration/charlm/kernels/metadata.cuh). */
struct metadata {
  CUdeviceptr addresses[4][36];
  int64_t elements[36];
  CUdeviceptr steps[36];
  uint8_t block_to_tensor[320];
  int block_to_chunk[320];
  int start_tensor, padding;
};
_Static_assert(sizeof(struct metadata) == 3336, "size of the metadata");

static void check(CUresult result, const char *what) {
  const char *name = "unknown error";
  if (result == CUDA_SUCCESS)
    return;
  cuGetErrorName(result, &name);
  fprintf(stderr, "gpusim-bench: %s: %s (%d)\n", what, name, (int)result);
  exit(EXIT_FAILURE);
}

/* Of this process: other work on the machine shall not count. */
static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static CUdeviceptr floats(size_t count, float scale) {
  CUdeviceptr at;
  float *values = malloc(count * sizeof *values);
  if (!values)
    exit(EXIT_FAILURE);
  for (size_t k = 0; k < count; k++)
    values[k] = scale * (float)((k * 2654435761u >> 7) % 2001) - scale * 1000;
  check(cuMemAlloc(&at, count * sizeof *values), "cuMemAlloc");
  check(cuMemcpyHtoD(at, values, count * sizeof *values), "cuMemcpyHtoD");
  free(values);
  return at;
}

/* The kernel of the file whose name contains `part`; the modules stay loaded. */
static CUfunction kernel(const char *folder, const char *file, const char *part) {
  char path[4096];
  CUmodule module;
  CUfunction functions[64];
  unsigned count = 0;
  snprintf(path, sizeof path, "%s/gpusim/kernels/%s", folder, file);
  check(cuModuleLoad(&module, path), path);
  check(cuModuleGetFunctionCount(&count, module), "cuModuleGetFunctionCount");
  check(cuModuleEnumerateFunctions(functions, count < 64 ? count : 64, module), path);
  for (unsigned k = 0; k < count && k < 64; k++) {
    const char *name;
    check(cuFuncGetName(&name, functions[k]), "cuFuncGetName");
    if (strstr(name, part))
      return functions[k];
  }
  fprintf(stderr, "gpusim-bench: %s has no kernel %s\n", path, part);
  exit(EXIT_FAILURE);
}

static int in_order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Milliseconds of a launch: the median of those after the first, which may be translated. The
   engine translates a hot kernel at once when it is asked for (GPUSIM_ENGINE=native). */
static double launch_ms(CUfunction function, unsigned grid, unsigned block, void **arguments) {
  double ms[RUNS] = {0};
  for (int run = -1; run < RUNS; run++) {
    double start = now_ms();
    check(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, NULL, arguments, NULL), "a launch");
    check(cuCtxSynchronize(), "a kernel");
    if (run >= 0)
      ms[run] = now_ms() - start;
  }
  qsort(ms, RUNS, sizeof *ms, in_order);
  return ms[RUNS / 2];
}

static double adam_ms(const char *folder) {
  static struct metadata m;
  CUdeviceptr null = 0;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, decay = 0.01, eps = 1e-8;
  unsigned char functor = 0, maximize = 0;
  unsigned blocks = 0;
  float step = 7;
  for (int k = 0; k < 3; k++)
    m.addresses[k][0] = floats(ELEMENTS, 1e-3f);
  m.addresses[3][0] = floats(ELEMENTS, 0);
  m.elements[0] = ELEMENTS;
  m.steps[0] = floats(1, 0);
  check(cuMemcpyHtoD(m.steps[0], &step, sizeof step), "cuMemcpyHtoD");
  for (; blocks * CHUNK < ELEMENTS; blocks++)
    m.block_to_chunk[blocks] = (int)blocks;
  void *arguments[] = {&m,     &functor, &null,     &lr,   &beta1, &beta2,
                       &decay, &eps,     &maximize, &null, &null};
  return launch_ms(kernel(folder, "bench_adam.ptx", "multi_tensor_apply"), blocks, 512, arguments);
}

static double matmul_gflops(const char *folder) {
  CUdeviceptr in = floats(BATCH * INNER, 1e-3f), weight = floats(INNER * COLUMNS, 1e-3f);
  CUdeviceptr bias = floats(COLUMNS, 1e-3f), out = floats(BATCH * COLUMNS, 0);
  CUdeviceptr weight_gradient = floats(INNER * COLUMNS, 0), bias_gradient = floats(COLUMNS, 0);
  CUdeviceptr in_gradient = floats(BATCH * INNER, 0);
  CUdeviceptr active = 0; /* as for the embedding: no unit is cut off */
  int batch = BATCH, inner = INNER, columns = COLUMNS;
  unsigned char relu = 1;
  void *forward[] = {&in, &weight, &bias, &batch, &inner, &columns, &relu, &out};
  void *parameters[] = {&in, &out, &batch, &inner, &columns, &weight_gradient, &bias_gradient};
  void *input[] = {&out, &weight, &active, &batch, &inner, &columns, &in_gradient};
  double ms = launch_ms(kernel(folder, "bench_model.ptx", "6linearE"), BATCH * COLUMNS / 128, 128,
                        forward) +
              launch_ms(kernel(folder, "bench_model.ptx", "linear_parameter_gradients"),
                        ((INNER + 1) * COLUMNS + 127) / 128, 128, parameters) +
              launch_ms(kernel(folder, "bench_model.ptx", "linear_input_gradient"),
                        BATCH * INNER / 128, 128, input);
  return 3 * 2.0 * BATCH * INNER * COLUMNS / ms * 1e-6;
}

/* One engine, in a process of its own: switches are read once. */
static void measure(const char *folder, const char *engine, const char *suffix, const char *end) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    CUdevice device;
    CUcontext context;
    setenv("GPUSIM_ENGINE", engine, 1);
    setenv("GPUSIM_THREADS", "1", 1);
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    printf(" \"gpusim_adam_1m%s_ms\": %.3f,\n", suffix, adam_ms(folder));
    printf(" \"gpusim_matmul%s_gflops\": %.3f%s\n", suffix, matmul_gflops(folder), end);
    exit(EXIT_SUCCESS);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    fprintf(stderr, "gpusim-bench: the measurement with GPUSIM_ENGINE=%s failed\n", engine);
    exit(EXIT_FAILURE);
  }
}

int main(void) {
  char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  const char *folder = dirname(path);
  puts("{");
  measure(folder, "native", "", ",");
  measure(folder, "interpreter", "_interpreter", "");
  puts("}");
  return EXIT_SUCCESS;
}
