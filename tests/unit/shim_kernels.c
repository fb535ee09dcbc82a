/* Our GPU kernels on the simulated driver against the reference, bit for bit: any number of elements, starts that no vector can
   be loaded from, every decay, and what a slot's status makes of an update. */
#include "kernels_ptx.h"
#include "shim/ring.h"
#include "tests/lib/tap.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct driver driver;
static const struct adam_api *api;
static struct ring ring;

uint64_t state_step(void) {
  return 1;
}
CUresult process_note_failure(CUresult result, const char *where) {
  (void)where;
  return result;
}

#define CU(call)                                                                                   \
  do {                                                                                             \
    const CUresult cu_result = (call);                                                             \
    if (cu_result != CUDA_SUCCESS) {                                                               \
      printf("Bail out! %s: error %d\n", #call, (int)cu_result);                                   \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { MOST = 3000, ROOM = MOST + 16 };
static float p[ROOM], g[ROOM], m[ROOM], v[ROOM], u[ROOM], out[ROOM];
static CUdeviceptr device_p, device_g, device_slot, device_out;

static uint32_t number(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 20);
}

/* Ordinary numbers, and every fifth of any bits at all. */
static float value(void) {
  uint32_t bits = number() ^ number() << 16;
  float any;
  memcpy(&any, &bits, sizeof any);
  if (number() % 5 == 0 && any == any)
    return any;
  return (float)(int32_t)(number() & 0xffffff) * 0x1p-23f - 1.0f;
}

static const struct adam_hyper hypers[] = {
    {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.01, .eps = 1e-8},
    {.lr = 0.75, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 1.3, .eps = 1e-8, .maximize = true},
};
static const unsigned sizes[] = {1, 2, 31, 255, 256, 257, 1024, MOST};

/* p after off_apply against the reference's, whose u is made by a parameter of 0. */
static bool apply_right(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                        unsigned count, unsigned offset) {
  static float expected[ROOM], zero[ROOM];
  static struct {
    struct slot_words words;
    float update[ROOM];
  } slot;
  struct adam_scalars scalars;
  const struct adam_candidate undecayed = {.generation = candidate->generation,
                                           .mode = candidate->mode};
  api->scalars(candidate->generation, hyper, 3, 0, 0, &scalars);
  for (unsigned i = 0; i < count; i++) {
    p[i] = expected[i] = value();
    g[i] = value();
    m[i] = value();
    v[i] = value() * value();
    v[i] = v[i] < 0 ? -v[i] : v[i];
    zero[i] = 0;
  }
  memcpy(u, m, sizeof u);
  memcpy(out, v, sizeof out);
  api->reference(&undecayed, hyper, &scalars, count,
                 &(struct adam_tensors){.p = zero, .g = g, .m = u, .v = out}); /* zero becomes -u */
  memcpy(u, m, sizeof u);
  memcpy(out, v, sizeof out);
  api->reference(candidate, hyper, &scalars, count,
                 &(struct adam_tensors){.p = expected, .g = g, .m = u, .v = out});
  for (unsigned i = 0; i < count; i++)
    slot.update[i] = -zero[i];
  enum { GENERATION = 77 };
  atomic_store(&slot.words.status, slot_status(GENERATION, SLOT_APPLY));
  slot.words.lr_decay = scalars.lr_decay;
  slot.words.lr_decay_double = scalars.lr_decay_double;
  const CUdeviceptr at = device_p + offset * 4;
  float guard = 12345;
  CU(cuMemcpyHtoD(at, p, count * 4));
  CU(cuMemcpyHtoD(at + count * 4, &guard, 4));
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot.words + count * 4));
  CU(ring_apply(&ring, at, device_slot, count, GENERATION, candidate, NULL));
  CU(cuMemcpyDtoH(out, at, count * 4));
  CU(cuMemcpyDtoH(&guard, at + count * 4, 4));
  /* A NaN update has a sign by the negation above, and no other meaning. */
  bool right = guard == 12345;
  for (unsigned i = 0; i < count; i++)
    right = right && (memcmp(&out[i], &expected[i], 4) == 0 || slot.update[i] != slot.update[i]);
  return right;
}

/* g' by off_gprime against what the reference's exp_avg shows of it, with beta1 = 0 and m = 0: m becomes g'. */
static bool gprime_right(const struct adam_candidate *candidate, const struct adam_hyper *hyper,
                         unsigned count, unsigned offset) {
  struct adam_hyper bare = *hyper;
  struct adam_scalars scalars;
  bare.beta1 = 0;
  api->scalars(candidate->generation, &bare, 3, 0, 0, &scalars);
  for (unsigned i = 0; i < count; i++) {
    p[i] = value();
    g[i] = i % 3 ? value() : -(float)((double)p[i] * hyper->weight_decay);
    m[i] = v[i] = 0;
    u[i] = p[i];
  }
  api->reference(candidate, &bare, &scalars, count,
                 &(struct adam_tensors){.p = u, .g = g, .m = m, .v = v});
  CU(cuMemcpyHtoD(device_p + offset * 4, p, count * 4));
  CU(cuMemcpyHtoD(device_g, g, count * 4));
  CU(ring_gprime(&ring, device_p + offset * 4, device_g, device_out, count, candidate, hyper,
                 NULL));
  CU(cuMemcpyDtoH(out, device_out, count * 4));
  for (unsigned i = 0; i < count; i++)
    /* The reference's sum with 0*m loses the sign of a zero, and an infinity (-0 * inf), nothing else. */
    if (out[i] != m[i] && !(m[i] != m[i] && (out[i] != out[i] || out[i] - out[i] != 0)))
      return false;
  return true;
}

static void test_arithmetic(enum adam_mode mode) {
  for (int generation = ADAM_OLD; generation <= ADAM_FLOAT; generation++)
    for (int decay = mode == ADAM_W ? ADAM_DECAY_NONE : ADAM_DECAY_FUSED;
         decay <= ADAM_DECAY_UNFUSED; decay++) {
      const struct adam_candidate candidate = {.generation = (enum adam_generation)generation,
                                               .mode = mode,
                                               .decay = (enum adam_decay)decay};
      unsigned cases = 0, right = 0;
      for (unsigned h = 0; h < 2; h++)
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
          for (unsigned offset = 0; offset < 4; offset += 3) {
            cases++;
            right += mode == ADAM_W ? apply_right(&candidate, &hypers[h], sizes[s], offset)
                                    : gprime_right(&candidate, &hypers[h], sizes[s], offset);
          }
      tap_ok(right == cases, "%s gives the reference's bits: %s, %s decay, 1 to %d elements",
             mode == ADAM_W ? "off_apply" : "off_gprime",
             api->generation_name((enum adam_generation)generation),
             decay == ADAM_DECAY_NONE    ? "no"
             : decay == ADAM_DECAY_FUSED ? "fused"
                                         : "unfused",
             MOST);
    }
}

static void test_gather(void) {
  static struct proof_results results;
  static struct probe inputs;
  CUdeviceptr steps, lr, device_inputs;
  float numbers[40];
  uintptr_t pointers[40];
  CU(cuMemAlloc(&steps, 40 * 512));
  CU(cuMemAlloc(&lr, 4));
  CU(cuMemAlloc(&device_inputs, sizeof inputs));
  CU(cuMemAlloc(&ring.device_results, sizeof results));
  for (unsigned i = 0; i < PROBE_ELEMENTS; i++) {
    inputs.p[i] = value();
    inputs.g[i] = value();
    inputs.m[i] = value();
    inputs.v[i] = value();
  }
  for (unsigned i = 0; i < 40; i++) {
    numbers[i] = (float)(i * 7 + 1);
    pointers[i] = steps + i * 512;
    CU(cuMemcpyHtoD(pointers[i], &numbers[i], 4));
  }
  const float rate = 0.125f;
  CU(cuMemcpyHtoD(lr, &rate, 4));
  CU(cuMemcpyHtoD(device_inputs, &inputs, sizeof inputs));
  CU(cuMemsetD8(ring.device_results, 0x5a, sizeof results));
  CU(cuCtxSynchronize()); /* ring.down does not wait for the legacy stream */
  CU(ring_gather(&ring, pointers, 40, (const float *)(uintptr_t)lr, device_inputs));
  CU(cuStreamSynchronize(ring.down));
  CU(cuMemcpyDtoH(&results, ring.device_results, sizeof results));
  bool right = memcmp(results.gathered, numbers, sizeof numbers) == 0;
  unsigned char beyond = 0x5a;
  for (unsigned t = 0; t < PROOF_TENSORS; t++)
    if (t < 40)
      right = right && memcmp(&results.probes[t], &inputs, sizeof inputs) == 0;
    else
      right = right && memcmp(&results.probes[t], &beyond, 1) == 0;
  tap_ok(right, "off_gather brings every step counter and gives every tensor the inputs");
  tap_ok(results.gathered[GATHERED_LR] == rate, "and fetches the learning rate from its pointer");
  CU(cuMemsetD8(ring.device_results, 0x5a, sizeof results));
  CU(cuCtxSynchronize()); /* ring.down does not wait for the legacy stream */
  CU(ring_gather(&ring, pointers, 1, NULL, device_inputs));
  CU(cuStreamSynchronize(ring.down));
  CU(cuMemcpyDtoH(&results, ring.device_results, sizeof results));
  tap_ok(results.gathered[0] == 1 && results.gathered[GATHERED_LR] != rate,
         "one tensor and no pointer: nothing else is read or written");
}

/* Last: a trap is the context's end. */
static void test_status(void) {
  const struct adam_candidate candidate = {.generation = ADAM_FLOAT, .mode = ADAM_W};
  struct {
    struct slot_words words;
    float update[4];
  } slot = {.update = {1, 1, 1, 1}};
  float before[4] = {5, 6, 7, 8}, after[4];
  atomic_store(&slot.words.status, slot_status(9, SLOT_REFUSED));
  CU(cuMemcpyHtoD(device_p, before, sizeof before));
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot));
  CU(ring_apply(&ring, device_p, device_slot, 4, 9, &candidate, NULL));
  CU(cuMemcpyDtoH(after, device_p, sizeof after));
  tap_ok(memcmp(before, after, sizeof before) == 0, "a refused slot leaves the parameter alone");
  atomic_store(&slot.words.status, slot_status(9, SLOT_APPLY));
  CU(cuMemcpyHtoD(device_slot, &slot, sizeof slot));
  CU(ring_apply(&ring, device_p, device_slot, 4, 9, &candidate, NULL));
  CU(cuMemcpyDtoH(after, device_p, sizeof after));
  tap_ok(after[0] == 4 && after[3] == 7, "an applied one takes the update off");
  CU(ring_apply(&ring, device_p, device_slot, 4, 10, &candidate, NULL));
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
  CU(cuModuleLoadData(&ring.module, kernels_ptx));
  CU(cuModuleGetFunction(&ring.gather, ring.module, "off_gather"));
  CU(cuModuleGetFunction(&ring.gprime, ring.module, "off_gprime"));
  CU(cuModuleGetFunction(&ring.apply, ring.module, "off_apply"));
  CU(cuStreamCreate(&ring.down, CU_STREAM_NON_BLOCKING));
  CU(cuMemAlloc(&device_p, ROOM * 4));
  CU(cuMemAlloc(&device_g, ROOM * 4));
  CU(cuMemAlloc(&device_out, ROOM * 4));
  CU(cuMemAlloc(&device_slot, RING_HEAD + ROOM * 4));
}

/* In a child: the two traps each need a context of their own. */
static pid_t failing_child(void) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    open_device();
    const struct adam_candidate candidate = {.generation = ADAM_FLOAT, .mode = ADAM_W};
    struct slot_words words = {.ready = 0};
    atomic_store(&words.status, slot_status(3, SLOT_FAILED));
    CU(cuMemcpyHtoD(device_slot, &words, sizeof words));
    CU(ring_apply(&ring, device_p, device_slot, 4, 3, &candidate, NULL));
    _exit(cuCtxSynchronize() == CUDA_SUCCESS ? 1 : 0);
  }
  return child;
}

int main(void) {
  int status = -1;
  api = offload_adam();
  driver.cuLaunchKernel = cuLaunchKernel;
  const pid_t child = failing_child();
  tap_ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a failed slot traps");
  open_device();
  test_arithmetic(ADAM_W);
  test_arithmetic(ADAM_L2);
  test_gather();
  test_status();
  return tap_done();
}
