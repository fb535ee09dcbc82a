/* One tensor and its Adam step (trainer.h). The list that the kernel takes by value is that of
   PyTorch's fused Adam with 25,544 bytes (shim/families.def). */
#include "trainer.h"
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 25544, TENSORS = 252, NUMEL = 8064, STEPS = 10080, CHUNKS = 16576 };
enum { CHUNK = 65536 };
_Static_assert((int)ELEMENTS == (int)CHUNK, "one block steps the tensor");

const char *cu_name(CUresult result) {
  const char *name = NULL;
  (void)cuGetErrorName(result, &name);
  return name ? name : "?";
}

void cu_check(CUresult result, const char *file, int line, const char *call) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cu_name(result));
  (void)fflush(stdout);
  exit(2);
}

static char *read_file(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    perror(path);
    exit(2);
  }
  (void)fseek(file, 0, SEEK_END);
  const long bytes = ftell(file);
  rewind(file);
  char *text = calloc(1, (size_t)bytes + 1);
  if (!text || fread(text, 1, (size_t)bytes, file) != (size_t)bytes)
    exit(2);
  (void)fclose(file);
  return text;
}

static CUfunction load_adam(const char *path) {
  CUmodule module;
  CUfunction function;
  char *text = read_file(path);
  const char *at = strstr(text, ".entry _ZN2at6native");
  if (!at) {
    fprintf(stderr, "%s has no fused Adam kernel\n", path);
    exit(2);
  }
  at += strlen(".entry ");
  char *name = strndup(at, strcspn(at, "(\n"));
  CU(cuModuleLoadData(&module, text));
  CU(cuModuleGetFunction(&function, module, name));
  free(name);
  free(text);
  return function;
}

CUfunction copy_kernel(void) {
  static const char image[] =
      ".version 6.5\n.target sm_70\n.address_size 64\n"
      ".visible .entry copy_floats(.param .u64 to, .param .u64 from, .param .u32 elements) {\n"
      "  .reg .b64 a, b, at; .reg .b32 i, n, k, word; .reg .pred past;\n"
      "  ld.param.u64 a, [to]; ld.param.u64 b, [from]; ld.param.u32 n, [elements];\n"
      "  mov.u32 i, %ctaid.x; mov.u32 k, %ntid.x; mul.lo.u32 i, i, k;\n"
      "  mov.u32 k, %tid.x; add.u32 i, i, k; setp.ge.u32 past, i, n; @past bra DONE;\n"
      "  mul.wide.u32 at, i, 4; add.u64 a, a, at; add.u64 b, b, at;\n"
      "  ld.global.u32 word, [b]; st.global.u32 [a], word;\n"
      "DONE: ret;\n}\n";
  CUmodule module;
  CUfunction function;
  CU(cuModuleLoadData(&module, image));
  CU(cuModuleGetFunction(&function, module, "copy_floats"));
  return function;
}

void trainer_allocate(struct trainer *trainer, allocate_function *allocate) {
  CUdeviceptr *arrays[] = {&trainer->p, &trainer->g, &trainer->m, &trainer->v};
  static float numbers[ELEMENTS];
  uint64_t state = 88172645463325252u;
  for (int list = 0; list < 4; list++) {
    CU(allocate(arrays[list], ARRAY_BYTES));
    for (int i = 0; i < ELEMENTS; i++) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const float random = (float)(state >> 40) / 16777216.0f;
      numbers[i] = list == 0 ? random - 0.5f : random * 0.01f;
    }
    CU(cuMemcpyHtoD(*arrays[list], numbers, ARRAY_BYTES));
  }
  CU(cuCtxSynchronize()); /* the trainer's stream doesn't wait for these copies */
}

void trainer_open(struct trainer *trainer, const char *kernel_path, CUdevice device,
                  allocate_function *allocate) {
  memset(trainer, 0, sizeof *trainer);
  CU(cuDevicePrimaryCtxRetain(&trainer->context, device));
  CU(cuCtxSetCurrent(trainer->context));
  trainer->adam = load_adam(kernel_path);
  trainer->copy = copy_kernel();
  CU(cuStreamCreate(&trainer->stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&trainer->step, 4));
  trainer_allocate(trainer, allocate);
}

void trainer_launch_adam(const struct trainer *trainer, CUstream stream) {
  static unsigned char list[LIST_BYTES];
  const CUdeviceptr addresses[] = {trainer->p, trainer->g, trainer->m, trainer->v};
  const uint64_t elements = ELEMENTS;
  for (size_t i = 0; i < 4; i++)
    memcpy(list + i * TENSORS * 8, &addresses[i], 8);
  memcpy(list + NUMEL, &elements, 8);
  memcpy(list + STEPS, &trainer->step, 8);
  memset(list + CHUNKS, 0, 4);
  unsigned char functor = 0, maximize = 0;
  const float *none = NULL;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, decay = 0.1, eps = 1e-8;
  void *parameters[] = {list,   &functor, &none,     &lr,   &beta1, &beta2,
                        &decay, &eps,     &maximize, &none, &none};
  CU(cuLaunchKernel(trainer->adam, 1, 1, 1, 512, 1, 1, 0, stream, parameters, NULL));
}

void trainer_step(struct trainer *trainer, CUstream stream) {
  const float number = (float)++trainer->steps;
  unsigned bits;
  memcpy(&bits, &number, 4);
  CU(cuMemsetD32Async(trainer->step, bits, 1, stream));
  trainer_launch_adam(trainer, stream);
}

void trainer_train(struct trainer *trainer, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    trainer_step(trainer, trainer->stream);
  CU(cuStreamSynchronize(trainer->stream));
}

unsigned long long device_hash(CUdeviceptr from, size_t bytes) {
  unsigned char *copy = malloc(bytes);
  if (!copy)
    exit(2);
  CU(cuMemcpyDtoH(copy, from, bytes));
  uint64_t value = 1469598103934665603u;
  for (size_t i = 0; i < bytes; i++)
    value = (value ^ copy[i]) * 1099511628211u;
  free(copy);
  return value;
}

void trainer_print(const struct trainer *trainer) {
  printf("step %u p %016llx m %016llx v %016llx\n", trainer->steps,
         device_hash(trainer->p, ARRAY_BYTES), device_hash(trainer->m, ARRAY_BYTES),
         device_hash(trainer->v, ARRAY_BYTES));
}

void copy_launch_set(struct copy_launch *launch, CUdeviceptr to, CUdeviceptr from,
                     unsigned elements) {
  *launch = (struct copy_launch){.to = to, .from = from, .elements = elements};
  launch->parameters[0] = &launch->to;
  launch->parameters[1] = &launch->from;
  launch->parameters[2] = &launch->elements;
}

void copy_launch(CUfunction copy, CUdeviceptr to, CUdeviceptr from, unsigned elements,
                 CUstream stream) {
  struct copy_launch launch;
  copy_launch_set(&launch, to, from, elements);
  CU(cuLaunchKernel(copy, (elements + 255) / 256, 1, 1, 256, 1, 1, 0, stream, launch.parameters,
                    NULL));
}
