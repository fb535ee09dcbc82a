/* One tensor and its Adam step (trainer.h). */
#include "trainer.h"

_Static_assert((int)ELEMENTS == (int)ADAM_CHUNK_ELEMENTS, "one block steps the tensor");

void run_words(int count, char **words, void (*run)(char **parts)) {
  for (int i = 0; i < count; i++) {
    static char none[] = "";
    char *parts[WORD_PARTS] = {none, none, none}, *rest = words[i];
    for (int k = 0; k < WORD_PARTS && rest; k++)
      parts[k] = strsep(&rest, ":");
    run(parts);
  }
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
  uint64_t state = ADAM_RANDOM_STATE;
  for (int list = 0; list < 4; list++) {
    CU(allocate(arrays[list], ARRAY_BYTES));
    for (int i = 0; i < ELEMENTS; i++) {
      const float random = adam_random(&state);
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
  CUmodule module;
  CU(adam_load(&trainer->adam, &module, kernel_path, 0));
  trainer->copy = copy_kernel();
  CU(cuStreamCreate(&trainer->stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&trainer->step, 4));
  trainer_allocate(trainer, allocate);
}

void trainer_launch_adam(const struct trainer *trainer, CUstream stream) {
  const struct adam_tensor tensor = {.lists = {trainer->p, trainer->g, trainer->m, trainer->v},
                                     .step = trainer->step,
                                     .elements = ELEMENTS};
  struct adam_scalars scalars = {
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .decay = 0.1, .eps = 1e-8};
  CU(adam_step(&trainer->adam, &tensor, 1, &scalars, stream));
}

void trainer_step(struct trainer *trainer, CUstream stream) {
  CU(adam_set(trainer->step, (float)++trainer->steps, 1, stream));
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
  const unsigned long long value = adam_hash(copy, bytes);
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
