/* Optimizers that are only named: which names are whose, and how many bytes of state their launches say. The driver is a
   table of this test's own. */
#include "shim/driver.h"
#include "shim/foreach.h"
#include "shim/foreign.h"
#include "shim/image.h"
#include "shim/range.h"
#include "shim/recognise.h"
#include "shim/unknown.h"
#include "tests/lib/tap.h"
#include <stdlib.h>
#include <string.h>

struct driver driver;

/* ---- what foreign.c asks of others ---- */

static size_t parameter_bytes[24];
static unsigned parameter_count;

static CUresult param_info(CUfunction function, size_t index, size_t *offset, size_t *size) {
  (void)function;
  if (index >= parameter_count)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = parameter_bytes[index];
  return CUDA_SUCCESS;
}

struct range *range_find(uintptr_t address) {
  (void)address;
  return NULL;
}

static bool others_ended;
void unknown_end(void) {
  others_ended = true;
}

/* Allocations of 1 MiB. */
static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  if (address < 0x100000)
    return CUDA_ERROR_INVALID_VALUE;
  *base = address & ~(CUdeviceptr)0xfffff;
  *bytes = 0x100000;
  return CUDA_SUCCESS;
}

static const struct report_function *row(const char *title) {
  for (unsigned i = 0; i < atomic_load(&report.function_count); i++)
    if (strcmp(report.functions[i].name, title) == 0)
      return &report.functions[i];
  return NULL;
}

static bool says(const char *title, const char *bytes, const char *remedy) {
  const struct report_function *found = row(title);
  const bool right = found && strstr(found->why, bytes) && strstr(found->why, remedy) &&
                     strcmp(found->mode, "none") == 0;
  if (!right)
    printf("# %s: %s\n", title, found ? found->why : "no row");
  return right;
}

/* ---- names ---- */

#define FOREACH(unit, tail)                                                                        \
  "_ZN2at6native63_GLOBAL__N__0f0f0f0f_30_" unit                                                   \
  "_cu_0f0f0f0f25multi_tensor_apply_kernelINS1_" tail "EEEvT_T0_DpT1_"
#define ADDCDIV(type)                                                                              \
  FOREACH("ForeachPointwiseOp",                                                                    \
          "28TensorListScalarListMetadataI" type "Li3EEENS1_28PointwiseOpScalarListFunctorI" type  \
          "Li3ELi3ELi0EEEJSt7dividesI" type "E")
static const char addcdiv[] = ADDCDIV("f");
static const char apex[] =
    "_Z25multi_tensor_apply_kernelI18TensorListMetadataILi4EE11AdamFunctorIN3c104HalfEfiE"
    "Jffffff10adamMode_tfEEvlPViT_T0_DpT1_";
static const char blockwise[] =
    "_Z35kOptimizerStatic8bit2StateBlockwiseI13__nv_bfloat16Li0ELi256ELi1EEvPT_S2_PhS3_"
    "fffffifPfS4_S4_S4_ffbi";

static const struct foreign *met(const char *name) {
  static uintptr_t handle = 0x1000;
  return foreign_of((CUfunction)(handle += 16), name);
}

static void test_names(void) {
  static const char *const theirs[] = {
      blockwise,
      "_Z21kOptimizer32bit2StateIfLi0EEvPT_S1_PfS2_S2_ffffffffiffbi",
      "triton_poi_fused_add_addcdiv_addcmul_lerp_mul_sqrt_0",
      "triton_poi_fused_add_div_lerp_mul_sqrt_sub_3",
      "triton_for_fused_0",
      apex,
  };
  static const char *const nobodys[] = {
      "_Z4axpyPf",
      "triton_poi_fused_gelu_mul_0",
      "triton_red_fused_native_layer_norm_1",
      "_Z35kOptimizerStatic8bit1StateBlockwiseIfLi1ELi256ELi1EEvPT_S1_PhS2_fffffifPfS3_ffbi",
      FOREACH("ForeachPointwiseOp",
              "28TensorListScalarListMetadataIfLi3EEENS1_28PointwiseOpScalarListFunctorI"
              "fLi3ELi3ELi0EEEJSt10multipliesIfE"),
      FOREACH("ForeachBinaryOpScalar", "18TensorListMetadataILi1EEENS1_21BinaryOpScalarFunctorI"
                                       "fLi1ELi1ELi0EEEJSt4plusIfEfE"),
      FOREACH("ForeachTernaryOp", "18TensorListMetadataILi2EEENS1_22TernaryOpScalarFunctorI"
                                  "fLi2ELi2ELi0EEEJNS0_11LerpFunctorIfEEfE"),
  };
  parameter_count = 1;
  parameter_bytes[0] = 3328; /* the list of three, with floats */
  unsigned known = 0, taken = 0;
  for (unsigned i = 0; i < sizeof theirs / sizeof *theirs; i++)
    known += met(theirs[i]) != NULL;
  for (unsigned i = 0; i < sizeof nobodys / sizeof *nobodys; i++)
    taken += met(nobodys[i]) != NULL;
  tap_ok(known == sizeof theirs / sizeof *theirs,
         "kernels of 8-bit, compiled and other libraries' Adam are known by their names");
  tap_ok(taken == 0, "kernels that others use too are nobody's, an EMA's lerp among them");
}

/* ---- foreach ---- */

struct scalar_list {
  uint64_t addresses[3][48];
  int64_t counts[48];
  float scalars[48];
  unsigned char block_tensor[320];
  int block_chunk[320];
};

static void launch_list(const struct foreign *foreign, struct scalar_list *list, unsigned blocks) {
  void *parameters[] = {list};
  const struct launch launch = {.grid = {blocks, 1, 1}, .kernel_parameters = parameters};
  foreign_launch(foreign, &launch);
}

static void test_foreach(void) {
  static struct scalar_list list;
  parameter_count = 3;
  parameter_bytes[0] = (sizeof list + 7) / 8 * 8;
  parameter_bytes[1] = parameter_bytes[2] = 1;
  const struct foreign *foreign = met(addcdiv), *half = met(ADDCDIV("N3c104HalfE"));
  tap_ok(foreign != NULL, "the last kernel of a foreach step is known by its name and list");
  if (!foreign)
    return;
  memset(&list, 0x5b, sizeof list); /* what no block names is nonsense */
  list.addresses[1][0] = 0x100000, list.counts[0] = 70000;
  list.addresses[1][1] = 0x200000, list.counts[1] = 100;
  for (int step = 0; step < 3; step++) {
    list.addresses[1][0] = 0x100000, list.counts[0] = 70000;
    for (unsigned block = 0; block < 2; block++)
      list.block_tensor[block] = 0, list.block_chunk[block] = (int)block;
    launch_list(foreign, &list, 1); /* the tensor is cut by a launch */
    list.block_chunk[0] = 1, list.block_tensor[1] = 1, list.block_chunk[1] = 0;
    launch_list(foreign, &list, 2);
  }
  /* (70,000 + 100) elements, two states of four bytes */
  tap_ok(says("foreach Adam", " 548 KiB of state stays", "fused=True"),
         "its state is what a step's launches name, times two, however often it steps");
  uint64_t foreach_bytes, bytes;
  const char *name;
  foreign_facts(&foreach_bytes, &name, &bytes);
  tap_ok(foreach_bytes == 560800 && !name && !bytes, "advice has it to the byte");
  tap_ok(row("foreach Adam")->launches == 6, "its launches are counted");
  tap_ok(half != NULL, "other types are the same optimizer");
  parameter_bytes[0] += 8;
  tap_ok(!met(addcdiv), "a list of another size is nobody's");
}

/* ---- others ---- */

static void test_last(void) {
  const struct foreign *foreign;
  static const size_t bytes[] = {8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8, 4, 4, 1, 4};
  parameter_count = sizeof bytes / sizeof *bytes;
  memcpy(parameter_bytes, bytes, sizeof bytes);
  foreign = met(blockwise);
  uint64_t state1[2] = {0x300000, 0x400000}, other = 0x900000;
  int elements[2] = {1000, 24}, number = 0;
  for (int step = 0; step < 3; step++)
    for (int tensor = 0; tensor < 2; tensor++) {
      void *parameters[19];
      for (unsigned i = 0; i < 19; i++)
        parameters[i] = bytes[i] == 8 ? (void *)&other : (void *)&number;
      parameters[2] = &state1[tensor];
      parameters[18] = &elements[tensor];
      const struct launch launch = {.grid = {4, 1, 1}, .kernel_parameters = parameters};
      foreign_launch(foreign, &launch);
    }
  tap_ok(
      says("bitsandbytes 8-bit Adam", " 2.00 KiB of state stays", "torch.optim.AdamW(fused=True)"),
      "8-bit state is two bytes an element of all tensors of a step");
}

static void test_allocations(void) {
  parameter_count = 4;
  parameter_bytes[0] = parameter_bytes[1] = parameter_bytes[2] = 8;
  parameter_bytes[3] = 4;
  const struct foreign *foreign = met("triton_for_fused_0");
  uint64_t pointers[3] = {0x500010, 0x500f00, 0x700000};
  int number = 5;
  void *parameters[] = {&pointers[0], &pointers[1], &pointers[2], &number};
  const struct launch launch = {.grid = {4, 1, 1}, .kernel_parameters = parameters};
  for (int i = 0; i < 3; i++)
    foreign_launch(foreign, &launch);
  tap_ok(says("compiled optimizer", "allocations of 2.00 MiB, which stay", "torch.compile"),
         "where nothing tells the state, the allocations that it works on are told, each once");
  void *extra[] = {CU_LAUNCH_PARAM_END};
  const struct launch packed = {.grid = {4, 1, 1}, .extra = extra};
  foreign_launch(foreign, &packed);
  tap_ok(row("compiled optimizer")->launches == 4, "packed parameters are counted, not read");
  unsigned told = 0;
  for (unsigned i = 0; i < atomic_load(&report.reason_count); i++)
    told += strstr(report.reasons[i], "is not taken over") != NULL;
  tap_ok(told == 3, "each kind is among the reasons once");
}

bool image_parameter(CUfunction function, size_t index, size_t *offset, size_t *size) {
  return param_info(function, index, offset, size) == CUDA_SUCCESS;
}

int main(void) {
  driver.cuMemGetAddressRange_v2 = address_range;
  test_names();
  tap_ok(!others_ended, "names alone end no search for optimizers of unknown name");
  test_foreach();
  tap_ok(others_ended, "a launch of another's optimizer does");
  test_last();
  test_allocations();
  return tap_done();
}
