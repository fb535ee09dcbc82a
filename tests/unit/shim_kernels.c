/* Our GPU kernels on the simulated driver, with the CPU's step between them, against the reference, bit for bit: every type and
   decay, any number of elements, starts that no vector can be loaded from, and what a slot's status makes of an update. */
#include "kernels_ptx.h"
#include "shim/elements.h"
#include "shim/frames.h"
#include "shim/kernels.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct driver driver;
static const struct adam_api *api;
static struct kernels kernels;
static CUmodule module;
static CUstream stream;

#define CU(call)                                                                                   \
  do {                                                                                             \
    const CUresult cu_result = (call);                                                             \
    if (cu_result != CUDA_SUCCESS) {                                                               \
      printf("Bail out! %s: error %d\n", #call, (int)cu_result);                                   \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { MOST = 3000, ROOM = MOST + 16, ROOM_BYTES = ROOM * 8 };
static CUdeviceptr device_p, device_g, device_slot, device_out, device_words;
static struct adam_team *team;

static struct numbers numbers = {88172645463325252u};

/* Ordinary numbers, and every fifth of any bits at all, but no NaN. */
static double value(enum adam_type type) {
  uint64_t bits = (uint64_t)number(&numbers) << 32 | number(&numbers);
  if (number(&numbers) % 5 == 0) {
    const double any = api->load(type, &bits, 0);
    if (any == any)
      return any;
  }
  return ordinary(&numbers);
}

static const struct adam_hyper hypers[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 0.75, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 1.3, .eps = 1e-8, .maximize = true},
};
static const unsigned sizes[] = {1, 2, 31, 256, 257, MOST};

/* The replacement's path over one list, against the reference: prologue, the CPU's step, apply. */
static bool path_right(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                       unsigned count, unsigned offset, float scale) {
  static double memory[5 * ROOM], work[5 * ROOM], gradient[ROOM];
  static struct {
    struct slot_words words;
    double update[ROOM];
  } slot;
  enum { GENERATION = 77 };
  const struct kernel_shape shape = shape_of(candidate);
  const size_t bytes = adam_type_bytes(shape.type),
               wide = adam_type_bytes(adam_type_opmath(shape.type));
  struct adam_tensors expected = lists_in(&shape, memory, ROOM),
                      lists = lists_in(&shape, work, ROOM);
  struct maker maker = {.api = api, .shape = shape, .hyper = hyper, .scale = 1, .to = expected};
  for (unsigned i = 0; i < count; i++) {
    struct element e = {.p = value(shape.type), .g = value(shape.type)};
    e.m = value(shape.state_type);
    e.v = value(shape.state_type);
    e.v = e.v < 0 ? -e.v : e.v;
    e.max_v = e.v * (double)(i % 3);
    put(&maker, i, &e);
  }
  memcpy(work, memory, sizeof work);
  const struct kernel_run run = {
      .candidate = *candidate,
      .p = device_p + offset * bytes,
      .g = device_g + offset * bytes,
      .grad_scale = scale != 0 ? (const float *)(uintptr_t)device_words : NULL,
      .elements = count,
  };
  const bool prologue = kernels_need_prologue(candidate, run.grad_scale);
  uint64_t guard = 0x1234567812345678;
  CU(cuMemcpyHtoD(device_words, &scale, 4));
  CU(cuMemcpyHtoD(run.p, lists.p, count * bytes));
  CU(cuMemcpyHtoD(run.g, lists.g, count * bytes));
  CU(cuMemcpyHtoD(run.p + count * bytes, &guard, 8));
  CU(cuMemcpyHtoD(run.g + count * bytes, &guard, 8));
  if (prologue)
    CU(kernels_prologue(&kernels, &run, hyper, device_out, NULL));
  CU(cuMemcpyDtoH(gradient, prologue ? device_out : run.g, count * (prologue ? wide : bytes)));

  struct adam_job job = {
      .gradient = gradient,
      .exp_avg = lists.m,
      .exp_avg_sq = lists.v,
      .max_exp_avg_sq = shape.amsgrad ? lists.max_v : NULL,
      .update = slot.update,
      .elements = count,
      .negate = hyper->maximize && !prologue,
      .generation = candidate->generation,
      .form = candidate->form,
      .gradient_type = prologue ? adam_type_opmath(shape.type) : shape.type,
      .state_type = shape.state_type,
      .beta1 = hyper->beta1,
      .beta2 = hyper->beta2,
      .eps = hyper->eps,
  };
  api->scalars(candidate->generation, hyper, 3, 0, 0, &job.scalars);
  if (!api->step(team, &job))
    return false;
  atomic_store(&slot.words.status, slot_status(GENERATION, SLOT_APPLY));
  slot.words.lr_decay = job.scalars.lr_decay;
  slot.words.lr_decay_double = job.scalars.lr_decay_double;
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot.words + count * wide));
  CU(kernels_apply(&kernels, &run, device_slot, GENERATION, NULL));
  CU(cuMemcpyDtoH(lists.p, run.p, count * bytes));
  CU(cuMemcpyDtoH(lists.g, run.g, count * bytes));
  expected.grad_scale = scale != 0 ? &scale : NULL;
  api->reference(candidate, hyper, &job.scalars, count, &expected);
  bool right = true;
  for (unsigned i = 0; i < count; i++)
    right = right && !elements_differ(&shape, &expected, &lists, i);
  for (int list = 0; list < 2; list++) {
    uint64_t after;
    CU(cuMemcpyDtoH(&after, (list ? run.g : run.p) + count * bytes, 8));
    right = right && after == guard;
  }
  return right;
}

static void test_arithmetic(enum adam_mode mode, enum adam_type type, enum adam_type state) {
  const struct kernel_shape shape = {mode, type, state, false};
  unsigned cases = 0, right = 0, listed = 0;
  for (int decays = 0; decays < 2; decays++) {
    struct adam_candidate candidates[CANDIDATES_MOST];
    const unsigned count = candidates_list(&shape, decays, candidates);
    listed += count;
    for (unsigned c = 0; c < count; c++)
      for (unsigned h = 0; h < 2; h++)
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++) {
          struct adam_hyper hyper = hypers[h];
          struct adam_candidate candidate = candidates[c];
          if (!decays)
            hyper.weight_decay = 0;
          candidate.amsgrad = s % 2;
          cases++;
          right += path_right(&candidate, &hyper, sizes[s], s % 2 ? 3 : 0,
                              (c + h + s) % 3 ? 0.0f : 1000.0f);
        }
  }
  tap_ok(
      right == cases,
      "%s%s, Adam%s: prologue, step and apply give the reference's bits for %u arithmetics, 1 to "
      "%d elements",
      api->type_name(type), type == state ? "" : " with bf16 moments", mode == ADAM_W ? "W" : "",
      listed, MOST);
}

/* The probes of every type: what is laid out for the program's kernel. */
static void test_layout(enum adam_type type, bool scales) {
  enum { TENSORS = 40 };
  static struct proof_results results;
  static double inputs[PROBE_BYTES_MOST / 8];
  const struct adam_candidate candidate = {.generation = ADAM_FLOAT,
                                           .mode = ADAM_W,
                                           .type = type,
                                           .state_type = type,
                                           .amsgrad = scales};
  const struct kernel_shape shape = shape_of(&candidate);
  const size_t bytes = lists_bytes(&shape, PROBE_ELEMENTS);
  CUdeviceptr device_steps, device_inputs, out;
  uintptr_t steps[TENSORS];
  const float words[3] = {0.125f, 1024.0f, 0.5f};
  CU(cuMemAlloc(&device_steps, TENSORS * 512));
  CU(cuMemAlloc(&device_inputs, sizeof inputs));
  CU(cuMemAlloc(&out, sizeof results));
  probe_make(api, &candidate, &hypers[0], true, inputs);
  for (unsigned i = 0; i < TENSORS; i++) {
    const float step = (float)(i * 7 + 1);
    steps[i] = device_steps + i * 512;
    CU(cuMemcpyHtoD(steps[i], &step, 4));
  }
  CU(cuMemcpyHtoD(device_inputs, inputs, sizeof inputs));
  CU(cuMemcpyHtoD(device_words, words, sizeof words));
  CU(cuMemsetD8(out, 0x5a, sizeof results));
  CU(cuCtxSynchronize()); /* the stream does not wait for the legacy one */
  const float *const at = (const float *)(uintptr_t)device_words;
  const struct probe_layout layout = {
      .candidate = candidate,
      .steps = steps,
      .tensors = TENSORS,
      .lr_pointer = at,
      .grad_scale = scales ? at + 1 : NULL,
      .found_inf = scales ? at + 2 : NULL,
      .hyper = hypers[0],
      .inputs = device_inputs,
      .out = out,
  };
  CU(kernels_lay_out(&kernels, &layout, stream));
  CU(cuStreamSynchronize(stream));
  CU(cuMemcpyDtoH(&results, out, sizeof results));

  struct adam_tensors lists = lists_in(&shape, inputs, PROBE_ELEMENTS);
  for (unsigned i = 0; scales && i < PROBE_ELEMENTS; i++)
    api->store(type, lists.g, i, api->load(type, lists.g, i) * (double)words[1]);
  bool right = results.gathered[GATHERED_LR] == words[0];
  for (unsigned t = 0; t < TENSORS; t++)
    right = right && results.gathered[t] == (float)(t * 7 + 1) &&
            memcmp(results.probes + t * bytes, inputs, bytes) == 0;
  tap_ok(right, "%s: every step counter, the learning rate and every tensor's inputs are there%s",
         api->type_name(type), scales ? ", gradients multiplied" : "");
  tap_ok(scales ? results.gathered[GATHERED_SCALE] == words[1] &&
                      results.gathered[GATHERED_FOUND_INF] == words[2]
                : results.gathered[GATHERED_SCALE] != words[1],
         "%s", scales ? "and grad_scale and found_inf" : "what is not pointed at is not read");
  const size_t used = proof_bytes(&shape, TENSORS) - offsetof(struct proof_results, probes);
  right = true;
  for (size_t i = used; i < sizeof results.probes; i++)
    right = right && results.probes[i] == 0x5a;
  tap_ok(right, "and nothing behind them");
  CU(cuMemFree(device_steps));
  CU(cuMemFree(device_inputs));
  CU(cuMemFree(out));
  if (!fine_bytes(&shape))
    return;
  /* With libm's scalars the update is next to the parameter, for every element. */
  unsigned near = 0, exact = 0;
  const struct adam_hyper hyper = fine_hyper(&candidate, &hypers[0], false);
  for (unsigned t = 0; t < TENSORS; t++) {
    unsigned char *fine = results.probes + TENSORS * bytes + t * (size_t)FINE_BYTES;
    double p[FINE_ELEMENTS];
    struct adam_scalars scalars;
    lists = lists_in(&shape, fine, FINE_ELEMENTS);
    for (unsigned i = 0; i < FINE_ELEMENTS; i++) {
      const struct element start = element_fine_start(i);
      p[i] = api->load(type, lists.p, i);
      exact += api->load(type, lists.m, i) == start.m && api->load(type, lists.v, i) == start.v &&
               p[i] == api->load(type, fine + 5 * (size_t)FINE_LIST_BYTES, i);
    }
    api->scalars(ADAM_FLOAT, &hyper, (float)(t * 7 + 1), 0, 0, &scalars);
    api->reference(&candidate, &hyper, &scalars, FINE_ELEMENTS, &lists);
    for (unsigned i = 0; i < FINE_ELEMENTS; i++) {
      const double left = api->load(type, lists.p, i) / p[i];
      near += fabs(left) < 0x1p-14;
    }
  }
  tap_ok(exact == TENSORS * FINE_ELEMENTS && near == TENSORS * FINE_ELEMENTS,
         "%s: the fine probes' updates nearly cancel their parameters: %u of %u",
         api->type_name(type), near, (unsigned)TENSORS * FINE_ELEMENTS);
}

/* Last: a trap is the context's end. */
/* Before the tests that trap: a trap is the context's end. */
static void test_gate(void) {
  struct gate_words *words;
  uint32_t after = 0;
  CU(cuMemHostAlloc((void **)&words, sizeof *words, 0));
  memset(words, 0, sizeof *words);
  atomic_store(&words->ready, 3);
  atomic_store(&words->status, slot_status(3, SLOT_APPLY));
  CU(kernels_gate(&kernels, (CUdeviceptr)(uintptr_t)words, 3, NULL));
  CU(cuStreamWriteValue32_v2(NULL, (CUdeviceptr)(uintptr_t)&words->down, 3, 0));
  CU(cuStreamSynchronize(NULL));
  after = atomic_load(&words->down);
  tap_ok(after == 3, "a gate opens for the generation whose pieces are there");
  CU(cuMemFreeHost(words));
}

static void test_status(void) {
  struct {
    struct slot_words words;
    float update[4];
  } slot = {.update = {1, 1, 1, 1}};
  const struct kernel_run run = {
      .candidate = {.generation = ADAM_FLOAT, .mode = ADAM_W},
      .p = device_p,
      .g = device_g,
      .grad_scale = (const float *)(uintptr_t)device_words,
      .elements = 4,
  };
  const float before[4] = {5, 6, 7, 8}, scale = 2;
  float p[4], g[4];
  CU(cuMemcpyHtoD(device_words, &scale, 4));
  CU(cuMemcpyHtoD(device_p, before, sizeof before));
  CU(cuMemcpyHtoD(device_g, before, sizeof before));
  atomic_store(&slot.words.status, slot_status(9, SLOT_REFUSED));
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot));
  CU(kernels_apply(&kernels, &run, device_slot, 9, NULL));
  CU(cuMemcpyDtoH(p, device_p, sizeof p));
  CU(cuMemcpyDtoH(g, device_g, sizeof g));
  tap_ok(memcmp(before, p, sizeof p) == 0 && memcmp(before, g, sizeof g) == 0,
         "a refused slot leaves parameter and gradient alone");
  atomic_store(&slot.words.status, slot_status(9, SLOT_APPLY));
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot));
  CU(kernels_apply(&kernels, &run, device_slot, 9, NULL));
  CU(cuMemcpyDtoH(p, device_p, sizeof p));
  CU(cuMemcpyDtoH(g, device_g, sizeof g));
  tap_ok(p[0] == 4 && p[3] == 7 && g[0] == 2.5f && g[3] == 4,
         "an applied one takes the update off and writes the divided gradient back");
  CU(kernels_apply(&kernels, &run, device_slot, 10, NULL));
  tap_ok(cuCtxSynchronize() != CUDA_SUCCESS,
         "the status of another generation traps rather than applying anything");
}

static void open_device(void) {
  CUdevice device;
  CUcontext context;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuModuleLoadData(&module, kernels_ptx));
  CU(kernels_find(module, &kernels));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&device_p, ROOM_BYTES));
  CU(cuMemAlloc(&device_g, ROOM_BYTES));
  CU(cuMemAlloc(&device_out, ROOM_BYTES));
  CU(cuMemAlloc(&device_words, 16));
  CU(cuMemAlloc(&device_slot, sizeof(struct slot_words) + ROOM_BYTES));
}

/* In a child: each trap needs a context of its own. */
static pid_t failing_child(bool gate) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    open_device();
    const struct kernel_run run = {
        .candidate = {.generation = ADAM_FLOAT, .mode = ADAM_W}, .p = device_p, .elements = 4};
    struct slot_words words = {.ready = 0};
    atomic_store(&words.status, slot_status(3, SLOT_FAILED));
    CU(cuMemcpyHtoD(device_slot, &words, sizeof words));
    if (gate)
      CU(kernels_gate(&kernels,
                      device_slot + offsetof(struct slot_words, status) -
                          offsetof(struct gate_words, status),
                      3, NULL));
    else
      CU(kernels_apply(&kernels, &run, device_slot, 3, NULL));
    _exit(cuCtxSynchronize() == CUDA_SUCCESS ? 1 : 0);
  }
  return child;
}

int main(void) {
  int status = -1;
  char why[256] = "";
  api = offload_adam();
  driver.cuLaunchKernel = cuLaunchKernel;
  driver.cuModuleGetFunction = cuModuleGetFunction;
  pid_t child = failing_child(false);
  tap_ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a failed slot traps");
  child = failing_child(true);
  tap_ok(child > 0 && waitpid(child, &status, 0) == child && status == 0,
         "a gate whose pieces never came traps");
  open_device();
  team = api->team_create(1, ADAM_ISA_AUTO, why, sizeof why);
  if (!tap_ok(team != NULL, "a team is made%s", why))
    return tap_done();
  for (int mode = 0; mode < 2; mode++) {
    for (int type = 0; type < ADAM_TYPES; type++)
      test_arithmetic((enum adam_mode)mode, (enum adam_type)type, (enum adam_type)type);
    test_arithmetic((enum adam_mode)mode, ADAM_TYPE_FLOAT, ADAM_TYPE_BFLOAT16);
  }
  for (int type = 0; type < ADAM_TYPES; type++)
    for (int scales = 0; scales < 2; scales++)
      test_layout((enum adam_type)type, scales);
  test_gate();
  test_status();
  api->team_destroy(team);
  return tap_done();
}
