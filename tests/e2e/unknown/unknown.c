/* A driver program that trains, or does something that looks like it, by kernels whose names say nothing (unknown.cu).

   unknown KERNELS.ptx [name=value ...]
     do=adam          the step: adam, packed (its parameters in one buffer), narrow (bf16 parameters and gradients), list (all tensors in
                      one launch), momentum; or no step: blend
                      (d = a b + c, whose result becomes c and whose a and b are made anew), fed (the same, a b c copied up and d down)
     tensors=2        at most four
     elements=65536   of each
     segment=0        1: all tensors are cut out of one allocation
     steps=8
     frees=0          1: what the step works on is freed and allocated anew before each
     beside=nothing   behind each step, what may use any memory: graph (a launch of one, which is empty), opaque (a kernel whose name says so);
                      or unload (a module goes, and the handles of functions with it)
     reads=0          1: the state is copied to the host behind each step */
#include "tests/e2e/unknown/unknown.h"
#include "tests/e2e/adam_program.h"

enum { ARRAYS = 4 }; /* p g m v, or a b c d */
static CUdeviceptr arrays[LATTICES][ARRAYS];
static size_t tensors, elements, array_bytes[ARRAYS];
static CUmodule module;
static void *host;
static char *text; /* of the kernels */

static bool does(const char *what) {
  return strcmp(setting("do") ? setting("do") : "adam", what) == 0;
}

static void launch(const char *name, unsigned rows, void **parameters) {
  CUfunction function;
  const unsigned threads = 256, blocks = (unsigned)((elements + threads - 1) / threads);
  CU(cuModuleGetFunction(&function, module, name));
  CU(cuLaunchKernel(function, blocks, rows, 1, threads, 1, 1, 0, NULL, parameters, NULL));
}

/* As frameworks do it: one behind the other. */
static CUdeviceptr cut(CUdeviceptr *segment, size_t bytes) {
  const CUdeviceptr at = *segment;
  *segment += bytes;
  return at;
}

static void allocate(void) {
  CUdeviceptr segment = 0;
  if (option("segment", 0) != 0)
    CU(cuMemAlloc(&segment, tensors * (array_bytes[0] + array_bytes[1] + 2 * array_bytes[2])));
  for (int i = 0; i < ARRAYS; i++)
    for (size_t t = 0; t < tensors; t++) {
      if (segment)
        arrays[t][i] = cut(&segment, array_bytes[i]);
      else
        CU(cuMemAlloc(&arrays[t][i], array_bytes[i]));
      CU(cuMemsetD8(arrays[t][i], i < 2 ? 0x3f : 0, array_bytes[i]));
    }
}

static void free_all(void) {
  for (size_t t = 0; t < tensors; t++)
    for (int i = 0; i < ARRAYS; i++)
      CU(cuMemFree(arrays[t][i]));
}

/* ---- a step ---- */

static void step_list(void) {
  lattices all;
  int n = (int)elements;
  void *parameters[] = {&all, &n};
  memset(&all, 0, sizeof all);
  for (size_t t = 0; t < tensors; t++) {
    all.p[t] = (float *)(uintptr_t)arrays[t][0];
    all.g[t] = (float *)(uintptr_t)arrays[t][1];
    all.m[t] = (float *)(uintptr_t)arrays[t][2];
    all.v[t] = (float *)(uintptr_t)arrays[t][3];
  }
  launch("lattice_relax_all", (unsigned)tensors, parameters);
}

static void use(const char *name, CUdeviceptr from, CUdeviceptr to, size_t bytes) {
  int n = (int)(bytes / sizeof(float));
  void *parameters[] = {&from, &to, &n};
  launch(name, 1, parameters);
}
static void slope(CUdeviceptr from, CUdeviceptr to, size_t bytes) {
  use("lattice_slope", from, to, bytes);
}

/* As long as the last parameter ends. */
static void step_packed(CUdeviceptr *a, int n) {
  struct {
    CUdeviceptr arrays[ARRAYS];
    int n;
  } buffer = {{a[0], a[1], a[2], a[3]}, n};
  size_t bytes = sizeof buffer.arrays + sizeof n;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "lattice_relax"));
  CU(cuLaunchKernel(function, (unsigned)(n + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
}

static void train(size_t t) {
  CUdeviceptr *a = arrays[t];
  int n = (int)elements;
  void *parameters[] = {&a[0], &a[1], &a[2], &a[3], &n}, *momentum[] = {&a[0], &a[1], &a[2], &n};
  if (does("momentum"))
    launch("lattice_drift", 1, momentum);
  else if (does("packed"))
    step_packed(a, n);
  else if (!does("list"))
    launch(does("narrow") ? "lattice_relax_narrow" : "lattice_relax", 1, parameters);
}

static void launch_graph(void) {
  static CUgraphExec executable;
  CUgraph graph;
  if (!executable) {
    CU(cuGraphCreate(&graph, 0));
    CU(cuGraphInstantiate(&executable, graph, 0));
  }
  CU(cuGraphLaunch(executable, NULL));
}

static void unload_module(void) {
  CUmodule other;
  CU(cuModuleLoadData(&other, text));
  CU(cuModuleUnload(other));
}

static void do_beside(const char *what) {
  if (strcmp(what, "graph") == 0)
    launch_graph();
  else if (strcmp(what, "unload") == 0)
    unload_module();
  else if (strcmp(what, "opaque") == 0)
    use("lattice_ncclDevKernel", arrays[0][0], arrays[0][1], array_bytes[0]);
}

static void blend(size_t t) {
  CUdeviceptr *a = arrays[t];
  int n = (int)elements;
  void *parameters[] = {&a[0], &a[1], &a[2], &a[3], &n};
  for (int i = 0; i < 3 && does("fed"); i++)
    CU(cuMemcpyHtoD(a[i], host, array_bytes[i]));
  launch("lattice_blend", 1, parameters);
  if (does("fed")) {
    CU(cuMemcpyDtoH(host, a[3], array_bytes[3]));
    return;
  }
  slope(a[3], a[2], array_bytes[3]);
  slope(a[2], a[0], array_bytes[2]);
  slope(a[2], a[1], array_bytes[2]);
}

static void step(void) {
  const bool no_step = does("blend") || does("fed");
  for (size_t t = 0; t < tensors; t++)
    if (no_step)
      blend(t);
    else
      slope(arrays[t][0], arrays[t][1], array_bytes[0]);
  for (size_t t = 0; t < tensors && !no_step; t++)
    train(t);
  if (does("list"))
    step_list();
  for (size_t t = 0; t < tensors && option("reads", 0) != 0; t++)
    CU(cuMemcpyDtoH(host, arrays[t][2], array_bytes[2]));
}

int main(int count, char **list) {
  program_start(count, list, 1, "unknown KERNELS.ptx [name=value ...]");
  tensors = number("tensors", 2);
  elements = number("elements", 65536);
  if (tensors > LATTICES) {
    fprintf(stderr, "tensors=%zu is more than %d\n", tensors, LATTICES);
    return 2;
  }
  for (int i = 0; i < ARRAYS; i++)
    array_bytes[i] = elements * (does("narrow") && i < 2 ? 2 : sizeof(float));
  host = calloc(elements, sizeof(float));
  text = adam_read_file(list[1]);
  CU(cuModuleLoadData(&module, text));
  allocate();
  for (size_t n = 0; n < number("steps", 8); n++) {
    if (n && option("frees", 0) != 0) {
      free_all();
      allocate();
    }
    step();
    if (setting("beside"))
      do_beside(setting("beside"));
  }
  CU(cuCtxSynchronize());
  free(text);
  free(host);
  printf("done\n");
  return 0;
}
