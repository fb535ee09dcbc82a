/* A driver-API program that trains nothing but steps: memsets and launches of a fused Adam kernel,
   queued up without a single synchronisation until the end, which is what shows a missing wait.
   Prints hashes of p, m, v; the same numbers are expected with and without the preload. Longer than most
   rooms: one word of it is one thing that programs do, and tests combine them.

   step_program KERNEL.ptx [name=value ...]
     entry=0          which of the file's fused Adam kernels; its name tells types, number of lists and arguments
     steps=4          how many
     groups=1         parameter groups, each its own launches (own lr)
     own_betas=0      1: every group has betas and eps of its own, too
     streams=1        program streams, used in turn, ordered by events
     decay=0.1 lr=1e-3 beta1=0.9 beta2=0.999 eps=1e-8
     maximize=0 lr_pointer=0
     extra=0          1: packed parameters
     garbage=0        1: nonsense in the unused tail of the list
     found_inf=0      1: a found_inf pointer that says 1 at step 3; 2: one that always says 0; 3: 1 at step 3 and every
                      fifth from there
     grad_scale=0     1: a gradient scale of 1024
     changing_lr=0    1: another lr at each step
     branches=0       1: decay, direction, pointer to lr and its value come and go from step to step; 2: so does a
                      gradient scale, and at some steps half of the gradients are zero
     hostile=0        1: among parameters and gradients there are zeroes, denormals, huge numbers, infinities and NaN
     first_step=1     the first step's number
     own_steps=0      1: every tensor has a step number of its own
     sync=0           1: synchronise after every step and print hashes then
     gate=0           1: after the steps, one more on a stream that waits for a word which the host writes only when a
                      second stream has done its own step, on tensors of its own. More: so many steps with learning
                      rates of their own, before the host writes the word
     unload=0         1: after every step a module of somebody else's is loaded and unloaded
     lost=0           1: at the end a step behind a kernel that reads nothing's address; prints what the driver says
     abort=0          1: abort at a driver's error, instead of ending with status 2
     new_branch=0     1: maximize changes before those
     legacy=0         1: everything on the legacy stream
     seed=0           another: other parameters and gradients
     small=0          1: a few small tensors only
     edges=0          1: instead tensors of a chunk, of an element less and more, of one element, a view whose
                      parameters and gradients begin one element behind an aligned address, and one that fills the
                      arrays to whole pieces
     wrong=0          a kernel that has variants gets this one (enum wrong of kernels/typed/exact.cuh)
     wrong_step=0     at that step only
     many=0           so many tensors of a few elements more
     chunks=0         one tensor of so many chunks, the last one short, instead of all that
     beside=FILE.ptx  after every step the file's first kernel, which is no optimizer, adds 1 to a number of the program's
     copies=1         copy all state after every step, in stream order, as an average of the weights would; 0: don't
     load=0           how the kernel is loaded: 0 cuModuleLoadData of memory that is freed then, 1 cuLibraryLoadData with the
                      kernel in place of its function, 2 the kernel's function, 3 a function of the library's module,
                      4 cuModuleLoad, 5 cuLibraryLoadFromFile
     skew=0           bytes by which state begins behind an aligned address; parameters and gradients don't
     meet=DIR ranks=0  twice, after half of the steps and before the last, waits until so many files are in DIR/1 and DIR/2,
                      one of them its own
     packed=0         1: tensors lie end to end, so that most start at addresses that no vector can
                      be loaded from */
#define _GNU_SOURCE
#include "tests/e2e/adam_numbers.h"
#include "tests/e2e/adam_program.h"
#include <dirent.h>
#include <inttypes.h>
#include <unistd.h>

enum { TENSORS = 512, ALLOCATOR_GRAIN = 512, WHOLE_ELEMENTS = 16384 };

static struct adam_kernel kernel;
static struct adam_tensor tensors[TENSORS];

/* From an image beside the text that describes the kernel (STEP_IMAGE; else the text), in one of the ways of load=. */
static void load_image(CUmodule *module, const char *path, const char *name) {
  const char *file = getenv("STEP_IMAGE") ? getenv("STEP_IMAGE") : path;
  const int how = (int)option("load", 0);
  char *image = adam_read_file(file);
  CUlibrary library;
  CUkernel found;
  if (how == 0)
    CU(cuModuleLoadData(module, image));
  else if (how == 4)
    CU(cuModuleLoad(module, file));
  else if (how == 5)
    CU(cuLibraryLoadFromFile(&library, file, NULL, NULL, 0, NULL, NULL, 0));
  else
    CU(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
  if (how == 3)
    CU(cuLibraryGetModule(module, library));
  if (how == 0 || how == 3 || how == 4) {
    CU(cuModuleGetFunction(&kernel.function, *module, name));
  } else {
    CU(cuLibraryGetKernel(&found, library, name));
    kernel.function = (CUfunction)found;
    if (how == 2)
      CU(cuKernelGetFunction(&kernel.function, found));
  }
  memset(image, 0xee, strlen(image));
  free(image);
}
static size_t tensor_count;
static CUdeviceptr arrays[ADAM_LISTS], copies[ADAM_LISTS];
static size_t array_elements;

/* Bytes by which state begins behind an address that every vector can be loaded from. */
static size_t skew(void) {
  return (size_t)option("skew", 0);
}

static size_t array_bytes(size_t list) {
  return array_elements * kernel.element_bytes[list] + (list < 2 ? 0 : skew());
}

/* As frameworks do it: a request that finds no memory is made once more. */
static CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr pointer;
  if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS)
    CU(cuMemAlloc(&pointer, bytes));
  return pointer;
}

static uint64_t hash(CUdeviceptr from, size_t bytes) {
  unsigned char *copy = malloc(bytes);
  CU(cuMemcpyDtoH(copy, from, bytes));
  const uint64_t value = adam_hash(copy, bytes);
  free(copy);
  return value;
}

static void print_hashes(int step) {
  CU(cuCtxSynchronize());
  printf("step %d", step);
  for (size_t list = 0; list < kernel.layout->lists; list++)
    printf(" %c %016" PRIx64, "pgmvx"[list], hash(arrays[list], array_bytes(list)));
  for (size_t list = 2; list < kernel.layout->lists && copies[list]; list++)
    printf(" copy of %c %016" PRIx64, "pgmvx"[list], hash(copies[list], array_bytes(list)));
  printf("\n");
}

/* Where a tensor's elements begin in every array, and by how many elements its parameters and gradients are off. */
static size_t begins[TENSORS], off[TENSORS];

static void add_tensor(size_t elements, size_t grain, size_t offset) {
  if (tensor_count == TENSORS) {
    fprintf(stderr, "step_program: more than %d tensors; many= must be smaller\n", TENSORS);
    exit(2);
  }
  tensors[tensor_count].elements = elements;
  begins[tensor_count] = array_elements;
  off[tensor_count++] = offset;
  array_elements += (elements + offset + grain - 1) / grain * grain;
}

/* The tensors' sizes. Grain: elements that the allocator rounds up to. */
static void choose_tensors(size_t grain) {
  static const size_t large[] = {600001, ADAM_CHUNK_ELEMENTS * 8,    7, 140000,
                                 70000,  ADAM_CHUNK_ELEMENTS * 5 + 3};
  static const size_t little[] = {20000, 3, 65536, 1024, 40000};
  static const size_t edges[] = {ADAM_CHUNK_ELEMENTS, ADAM_CHUNK_ELEMENTS - 1,
                                 ADAM_CHUNK_ELEMENTS + 1, 1};
  const size_t chunks = (size_t)option("chunks", 0), many = (size_t)option("many", 0);
  const bool edge = option("edges", 0) != 0, small = option("small", 0) != 0;
  const size_t *sizes = edge ? edges : small ? little : large;
  const size_t count = edge    ? sizeof edges / sizeof *edges
                       : small ? sizeof little / sizeof *little
                               : sizeof large / sizeof *large;
  if (chunks)
    add_tensor(chunks * ADAM_CHUNK_ELEMENTS - 5, grain, 0);
  for (size_t t = 0; t < count && !chunks; t++)
    add_tensor(sizes[t], grain, 0);
  if (edge) /* with its offset it ends where state does without */
    add_tensor(ADAM_CHUNK_ELEMENTS - 4, grain, 1);
  for (size_t t = 0; t < many; t++)
    add_tensor(1 + t * 37 % 300, grain, 0);
  if ((edge || chunks || many) && array_elements % WHOLE_ELEMENTS)
    add_tensor(WHOLE_ELEMENTS - array_elements % WHOLE_ELEMENTS, grain, 0);
}

static void make_tensors(void) {
  choose_tensors(option("packed", 0) != 0 ? 1
                                          : ALLOCATOR_GRAIN / kernel.element_bytes[ADAM_LISTS - 1]);
  for (size_t list = 0; list < kernel.layout->lists; list++)
    arrays[list] = allocate(array_bytes(list));
  const CUdeviceptr steps = allocate(TENSORS * sizeof(float));
  for (size_t t = 0; t < tensor_count; t++) {
    for (size_t list = 0; list < kernel.layout->lists; list++)
      tensors[t].lists[list] = arrays[list] +
                               (begins[t] + (list < 2 ? off[t] : 0)) * kernel.element_bytes[list] +
                               (list < 2 ? 0 : skew());
    tensors[t].step = steps + t * sizeof(float);
  }
}

static size_t hostile_met[ADAM_HOSTILE]; /* how many of each kind */

/* p and g by a generator, state by memsets that are still queued when the first launch is. */
static void fill(CUstream stream) {
  unsigned char *numbers = malloc(array_bytes(0));
  uint64_t state = ADAM_RANDOM_STATE + (uint64_t)option("seed", 0);
  for (int list = 0; list < 2; list++) {
    for (size_t i = 0; i < array_elements; i++) {
      const float number = adam_random(&state) * 2 - 1;
      if (option("hostile", 0) != 0 &&
          adam_hostile(&kernel, numbers + i * kernel.element_bytes[0], state >> 20, hostile_met))
        continue;
      adam_store(&kernel, numbers + i * kernel.element_bytes[0], number * (list ? 0.01f : 1.0f));
    }
    CU(cuMemcpyHtoD(arrays[list], numbers, array_bytes(0)));
  }
  free(numbers);
  CU(cuCtxSynchronize());
  /* Small positive numbers in every type. */
  static const uint32_t patterns[ADAM_LISTS] = {0, 0, 0x3a83126f, 0x372727ac, 0x36f036ef};
  for (size_t list = 2; list < ADAM_LISTS && list < kernel.layout->lists; list++)
    CU(cuMemsetD32Async(arrays[list], patterns[list], array_bytes(list) / 4, stream));
}

/* What the steps meet: a test asks that it be there. */
static void print_data(void) {
  size_t elements = 0, unaligned = 0;
  for (size_t t = 0; t < tensor_count; t++) {
    elements += tensors[t].elements;
    unaligned += tensors[t].lists[0] % (4 * kernel.element_bytes[0]) != 0;
  }
  printf("tensors %zu elements %zu unaligned %zu\nhostile", tensor_count, elements, unaligned);
  for (size_t i = 0; i < ADAM_HOSTILE; i++)
    printf(" %zu", hostile_met[i]);
  printf("\n");
}

/* What a kernel's module has to be told which variant to be. */
static void choose_variant(CUmodule module) {
  static const char *const names[] = {"wrong", "wrong_step"};
  for (int i = 0; i < 2; i++) {
    CUdeviceptr at;
    size_t bytes;
    char name[32];
    const int value = (int)option(names[i], 0);
    if (!value)
      continue;
    snprintf(name, sizeof name, "typed_%s", names[i]);
    CU(cuModuleGetGlobal(&at, &bytes, module, name));
    CU(cuMemcpyHtoD(at, &value, sizeof value));
  }
}

/* A kernel whose first parameter begins with an address, where it adds 1; the rest are zeroes. */
static CUfunction beside;

static void load_beside(const char *path) {
  char *ptx = adam_read_file(path), *name = strstr(ptx, ".entry ");
  CUmodule module;
  CU(cuModuleLoadData(&module, ptx));
  name = strndup(name + strlen(".entry "), strcspn(name + strlen(".entry "), "( \n"));
  CU(cuModuleGetFunction(&beside, module, name));
  free(name);
  free(ptx);
}

static void launch_beside(CUdeviceptr at, CUstream stream) {
  unsigned char *first = calloc(1, 32768), zeroes[8] = {0};
  void *parameters[16] = {first};
  for (size_t i = 1; i < sizeof parameters / sizeof *parameters; i++)
    parameters[i] = zeroes;
  memcpy(first, &at, sizeof at);
  CU(cuLaunchKernel(beside, 1, 1, 1, 512, 1, 1, 0, stream, parameters, NULL));
  free(first);
}

/* Steps of tensors `first` to before `end`. */
static void step_tensors(size_t first, size_t end, struct adam_scalars *s, CUstream stream) {
  CU(adam_step(&kernel, tensors + first, end - first, s, stream));
}

/* The context is lost before the last step's gradients are there. */
static void step_lost(struct adam_scalars *s, CUstream stream) {
  CUfunction bad;
  CU(adam_load_bad(&bad));
  CU(cuLaunchKernel(bad, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
  step_tensors(0, tensor_count, s, stream);
  printf("%d\n", (int)cuCtxSynchronize());
  exit(0);
}

/* A step of the first half waits on its stream for a word that the host writes when the other half's
   step, on another stream, is done. */
static void step_gated(struct adam_scalars *s, CUstream gated) {
  CUstream free_one;
  void *memory;
  CU(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
  CU(cuMemHostAlloc(&memory, 64, 0));
  volatile uint32_t *word = memory;
  *word = 0;
  CU(cuCtxSynchronize());
  CU(cuStreamWaitValue32(gated, (CUdeviceptr)(uintptr_t)memory, 1, CU_STREAM_WAIT_VALUE_EQ));
  const int gate = (int)option("gate", 0);
  if (gate == 1) {
    step_tensors(0, tensor_count / 2, s, gated);
    step_tensors(tensor_count / 2, tensor_count, s, free_one);
    CU(cuStreamSynchronize(free_one));
  } else {
    for (int i = 0; i < gate; i++) {
      s->lr *= 0.9;
      step_tensors(0, tensor_count, s, gated);
    }
  }
  *word = 1;
  CU(cuCtxSynchronize());
}

/* Processes that share a node are there at the same time, whatever else the machine does. */
static void meet(int time) {
  const char *directory = setting("meet");
  const size_t ranks = (size_t)option("ranks", 0);
  char path[512];
  snprintf(path, sizeof path, "%s/%d/%ld", directory, time, (long)getpid());
  FILE *file = fopen(path, "w");
  if (!file || fclose(file)) {
    fprintf(stderr, "can't write %s\n", path);
    exit(2);
  }
  *strrchr(path, '/') = 0;
  for (size_t there = 0; there < ranks;) {
    DIR *met = opendir(path);
    there = 0;
    for (const struct dirent *entry; met && (entry = readdir(met));)
      there += entry->d_name[0] != '.';
    if (met)
      closedir(met);
    usleep(2000);
  }
}

int main(int count, char **list) {
  CUmodule module = NULL; /* stays so for kernels of libraries */
  CUstream streams[4] = {0};
  CUevent turn;
  program_start(count, list, 1, "step_program KERNEL.ptx [name=value ...]");
  char *text = adam_read_file(list[1]);
  char *name = adam_find(&kernel, text, (int)option("entry", 0));
  if (!name) {
    fprintf(stderr, "%s has no such fused Adam kernel of a known layout\n", list[1]);
    return 2;
  }
  load_image(&module, list[1], name);
  free(name);
  free(text);
  choose_variant(module);
  kernel.packed = option("extra", 0) != 0;
  kernel.garbage = option("garbage", 0) != 0;
  const int stream_count = (int)option("streams", 1);
  for (int i = 0; i < stream_count && option("legacy", 0) == 0; i++)
    CU(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&turn, CU_EVENT_DISABLE_TIMING));

  make_tensors();
  struct adam_scalars s = {.lr = option("lr", 1e-3),
                           .beta1 = option("beta1", 0.9),
                           .beta2 = option("beta2", 0.999),
                           .decay = option("decay", 0.1),
                           .eps = option("eps", 1e-8),
                           .maximize = option("maximize", 0) != 0};
  const bool copying = option("copies", 1) != 0;
  const size_t lists = kernel.layout->lists;
  for (size_t i = 2; i < lists && copying; i++)
    copies[i] = allocate(array_bytes(i));
  const CUdeviceptr words = allocate(16);
  CU(cuMemsetD32(words, 0, 4));
  const int found_inf = (int)option("found_inf", 0);
  if (option("lr_pointer", 0) != 0)
    s.lr_pointer = (const float *)(uintptr_t)words;
  CU(adam_set(words + 4, 1024, 1, NULL));
  if (option("grad_scale", 0) != 0) {
    s.grad_scale = (const float *)(uintptr_t)(words + 4);
  }
  if (found_inf)
    s.found_inf = (const float *)(uintptr_t)(words + 8);
  if (setting("beside"))
    load_beside(setting("beside"));
  fill(streams[0]); /* last: nothing synchronises behind its memsets */

  const int steps = (int)option("steps", 4), first_step = (int)option("first_step", 1);
  const size_t groups = (size_t)option("groups", 1);
  const double lr = s.lr;
  for (int step = 0; step < steps; step++) {
    CUstream stream = streams[step % stream_count];
    if (stream_count > 1) { /* this stream goes on where the other was */
      CU(cuEventRecord(turn, streams[(step + stream_count - 1) % stream_count]));
      CU(cuStreamWaitEvent(stream, turn, 0));
    }
    for (unsigned t = 0; t < tensor_count; t++) {
      const float number =
          (float)(first_step + step) + (option("own_steps", 0) != 0 ? 3.0f * (float)t : 0);
      CU(adam_set(tensors[t].step, number, 1, stream));
    }
    if (option("changing_lr", 0) != 0)
      s.lr = lr / (1 + 0.1 * step);
    const int branches = (int)option("branches", 0);
    if (branches) {
      const int decline = step / 3;
      s.lr = lr / (1 + 0.05 * decline);
      s.decay = step % 5 == 1 ? 0 : option("decay", 0.1);
      s.maximize = step % 4 == 2;
      s.lr_pointer = step % 6 == 3 ? (const float *)(uintptr_t)words : NULL;
    }
    if (branches == 2) {
      s.grad_scale = step % 4 == 3 ? (const float *)(uintptr_t)(words + 4) : NULL;
      CU(adam_set(words + 4, step % 8 == 3 ? 1024 : 3, 1, stream));
      if (step % 5 == 4)
        CU(cuMemsetD32Async(arrays[1], 0, array_bytes(1) / 8, stream));
    }
    if (s.lr_pointer)
      CU(adam_set(words, (float)s.lr, 1, stream));
    if (found_inf)
      CU(adam_set(words + 8, found_inf != 2 && (found_inf == 3 ? step % 5 : step) == 2, 1, stream));
    const struct adam_scalars base = s;
    for (size_t group = 0; group < groups; group++) {
      s.lr = base.lr / (double)(group + 1);
      if (option("own_betas", 0) != 0) {
        s.beta1 = base.beta1 - 0.1 * (double)group;
        s.beta2 = base.beta2 - 0.02 * (double)group;
        s.eps = base.eps * (double)(group * group * 100 + 1);
      }
      step_tensors(tensor_count * group / groups, tensor_count * (group + 1) / groups, &s, stream);
    }
    s = base;
    /* The next gradients, in part: behind the step that reads these and writes those parameters. */
    CU(cuMemcpyDtoDAsync(arrays[1], arrays[0], array_elements / 2 * kernel.element_bytes[0],
                         stream));
    for (size_t i = 2; i < lists && copying; i++)
      CU(cuMemcpyDtoDAsync(copies[i], arrays[i], array_bytes(i), stream));
    if (beside)
      launch_beside(words + 12, stream);
    if (option("unload", 0) != 0) {
      CUmodule other;
      CU(cuModuleLoadData(&other, ".version 6.5\n.target sm_70\n.address_size 64\n"
                                  ".visible .entry other() { ret; }\n"));
      CU(cuModuleUnload(other));
    }
    if (option("sync", 0) != 0)
      print_hashes(step);
    if (setting("meet") && (step == steps / 2 || step == steps - 2))
      meet(step == steps - 2 ? 2 : 1);
  }
  if (option("new_branch", 0) != 0) /* a path through the kernel that was not taken before */
    s.maximize = !s.maximize;
  if (option("lost", 0) != 0)
    step_lost(&s, streams[0]);
  if (option("gate", 0) != 0)
    step_gated(&s, streams[0]);
  print_hashes(steps);
  print_data();
  if (beside)
    printf("beside %016" PRIx64 "\n", hash(words + 12, 4));
  for (size_t i = 0; i < lists; i++)
    CU(cuMemFree(arrays[i]));
  printf("done\n");
  return 0;
}
