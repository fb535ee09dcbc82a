/* A training step as the driver sees it, for the simulated clock: the kernels of forward and backward, whose durations
   GPUSIM_KERNEL_TIME gives, the launches of PyTorch's fused Adam over all parameters, a synchronisation as loss.item()
   makes one, and a mark. Step after step the same, in every chunk. Prints hashes of a chunk of p, g, m, v when
   all have its bits; else fails.

   train_step KERNEL.ptx [name=value ...]
     entry=0        which of the file's fused Adam kernels
     steps=4        how many
     chunks=128     parameters, in chunks of 65536
     layers=8       tensors that share them, a kernel of forward and one of backward each
     groups=1       parameter groups, each its own launches
     optimizer=1    0: forward and backward alone */
#define _GNU_SOURCE
#include "tests/e2e/adam_program.h"
#include <dlfcn.h>
#include <inttypes.h>

enum { TENSORS = 64 };

/* Backward writes a word of its layer's gradient, so that it is seen to touch it. */
static const char model_ptx[] =
    ".version 6.5\n.target sm_70\n.address_size 64\n"
    ".visible .entry forward_layer(.param .u64 p)\n{\n ret;\n}\n"
    ".visible .entry backward_layer(.param .u64 g)\n{\n .reg .b64 %rd0;\n .reg .b16 %h0;\n"
    " ld.param.u64 %rd0, [g];\n ld.global.u16 %h0, [%rd0];\n st.global.u16 [%rd0], %h0;\n "
    "ret;\n}\n";

static struct adam_kernel kernel;
static struct adam_tensor tensors[TENSORS];
static CUdeviceptr arrays[ADAM_LISTS], step_numbers;
static size_t layers, elements;

static void make_tensors(CUstream stream) {
  const size_t chunks = number("chunks", 128);
  layers = number("layers", 8);
  if (layers == 0 || layers > TENSORS || chunks % layers != 0) {
    fprintf(stderr, "train_step: layers=%zu: expected 1 to %d, and chunks=%zu a multiple of it\n",
            layers, TENSORS, chunks);
    exit(2);
  }
  elements = chunks * ADAM_CHUNK_ELEMENTS;
  /* Bits that are small positive numbers as floats and as pairs of bf16. */
  static const uint32_t patterns[ADAM_LISTS] = {0x3f003f00, 0x3c233c23, 0, 0, 0};
  for (size_t list = 0; list < kernel.layout->lists; list++) {
    const size_t bytes = elements * kernel.element_bytes[list];
    CU(cuMemAlloc(&arrays[list], bytes));
    CU(cuMemsetD32Async(arrays[list], patterns[list], bytes / 4, stream));
  }
  CU(cuMemAlloc(&step_numbers, TENSORS * sizeof(float)));
  for (size_t t = 0; t < layers; t++) {
    tensors[t].elements = elements / layers;
    tensors[t].step = step_numbers + t * sizeof(float);
    for (size_t list = 0; list < kernel.layout->lists; list++)
      tensors[t].lists[list] = arrays[list] + t * tensors[t].elements * kernel.element_bytes[list];
  }
}

static void launch_layer(CUfunction function, CUdeviceptr tensor, CUstream stream) {
  void *parameters[] = {&tensor};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void print_hashes(void) {
  printf("every chunk");
  for (size_t list = 0; list < kernel.layout->lists; list++) {
    const size_t bytes = elements * kernel.element_bytes[list];
    const size_t chunk_bytes = ADAM_CHUNK_ELEMENTS * kernel.element_bytes[list];
    unsigned char *copy = malloc(bytes);
    CU(cuMemcpyDtoH(copy, arrays[list], bytes));
    for (size_t at = chunk_bytes; at < bytes; at += chunk_bytes)
      if (memcmp(copy, copy + at, chunk_bytes) != 0) {
        fprintf(stderr, "train_step: chunks of %c differ\n", "pgmvx"[list]);
        exit(1);
      }
    printf(" %c %016" PRIx64, "pgmvx"[list], adam_hash(copy, chunk_bytes));
    free(copy);
  }
  printf("\n");
}

int main(int count, char **list) {
  CUmodule module, model;
  CUstream stream;
  CUfunction forward, backward;
  program_start(count, list, 1, "train_step KERNEL.ptx [name=value ...]");
  CU(adam_load(&kernel, &module, list[1], (int)number("entry", 0)));
  CU(cuModuleLoadData(&model, model_ptx));
  CU(cuModuleGetFunction(&forward, model, "forward_layer"));
  CU(cuModuleGetFunction(&backward, model, "backward_layer"));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  make_tensors(stream);
  CU(cuStreamSynchronize(stream));

  /* Of the simulated driver alone. */
  void (*mark)(const char *) = NULL;
  *(void **)&mark = dlsym(RTLD_DEFAULT, "gpusim_clock_mark");
  struct adam_scalars scalars = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .decay = 0.1, .eps = 1e-8};
  const size_t steps = number("steps", 4), groups = number("groups", 1);
  const bool optimizer = number("optimizer", 1) != 0;
  if (mark)
    mark("begin");
  for (size_t step = 1; step <= steps; step++) {
    for (size_t i = 0; i < layers; i++)
      launch_layer(forward, tensors[i].lists[0], stream);
    for (size_t i = layers; i-- > 0;)
      launch_layer(backward, tensors[i].lists[1], stream);
    if (optimizer) {
      CU(adam_set(step_numbers, (float)step, layers, stream));
      for (size_t group = 0; group < groups; group++) {
        const size_t first = layers * group / groups, end = layers * (group + 1) / groups;
        CU(adam_step(&kernel, tensors + first, end - first, &scalars, stream));
      }
    }
    CU(cuStreamSynchronize(stream));
    char name[32];
    snprintf(name, sizeof name, "step %zu", step);
    if (mark)
      mark(name);
  }
  print_hashes();
  return 0;
}
