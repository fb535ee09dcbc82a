/* P10: a CUkernel where a CUfunction is wanted, as the CUDA runtime passes it: launch, name,
   parameters, attributes. */
#include "probe.h"
#include <stdio.h>
#include <string.h>

/* Of probe_shape in kernels.ptx. */
static const struct { size_t offset, bytes; } shape[] = {{0, 8}, {8, 4}, {16, 40}, {56, 2}};
enum { PARAMETERS = sizeof shape / sizeof *shape };

static CUkernel handle;

static CUresult parameter(bool cast, size_t index, size_t *offset, size_t *size) {
  return cast ? CALL_CU(cuFuncGetParamInfo, (CUfunction)handle, index, offset, size)
              : CALL_CU(cuKernelGetParamInfo, handle, index, offset, size);
}

static void parameters(const char *key, bool cast) {
  CUresult result = CUDA_SUCCESS;
  size_t offset = 0, size = 0, right = 0;
  for (size_t i = 0; i < PARAMETERS && result == CUDA_SUCCESS; i++) {
    result = parameter(cast, i, &offset, &size);
    right += result == CUDA_SUCCESS && offset == shape[i].offset && size == shape[i].bytes;
  }
  fact_result(key, result);
  if (unsupported(result))
    return;
  fact_bool(named("%s_right", key), right == PARAMETERS);
  expect(right == PARAMETERS, "%s tells offset and size of every parameter", key);
  result = parameter(cast, PARAMETERS, &offset, &size);
  fact_result(named("%s_past_the_last", key), result);
  expect(result == CUDA_ERROR_INVALID_VALUE, "%s past the last answers INVALID_VALUE", key);
}

static void name_of(const char *key, CUresult result, const char *name) {
  fact_result(key, result);
  if (unsupported(result))
    return;
  bool right = result == CUDA_SUCCESS && name != NULL && strcmp(name, "probe_shape") == 0;
  fact_bool(named("%s_right", key), right);
  expect(right, "%s tells the kernel's name", key);
}

static uint32_t launched(CUfunction function) {
  uint32_t number = 30, list[10] = {0}, answer = 0;
  uint16_t small = 2;
  CUdeviceptr out = machine.errors;
  list[6] = 10;
  void *values[] = {&out, &number, list, &small};
  MUST(cuMemsetD32Async, out, 0, 2, machine.stream);
  CUresult result = launch(function, 1, 1, machine.stream, values);
  if (result == CUDA_SUCCESS)
    result = CALL_CU(cuStreamSynchronize, machine.stream);
  if (result == CUDA_SUCCESS)
    MUST(cuMemcpyDtoH_v2, &answer, out, sizeof answer);
  return answer;
}

void probe_kernel_cast(void) {
  CUlibrary library;
  CUfunction function = NULL;
  start();
  step("loading a library");
  CUresult result =
      CALL_CU(cuLibraryLoadData, &library, kernel_text(), NULL, NULL, 0, NULL, NULL, 0);
  fact_result("library_load", result);
  if (unsupported(result))
    return;
  must_succeed(result, "cuLibraryLoadData", __FILE__, __LINE__);
  MUST(cuLibraryGetKernel, &handle, library, "probe_shape");
  step("launching a CUkernel as a CUfunction");
  uint32_t answer = launched((CUfunction)handle);
  fact_bool("launch_of_cast", answer == 42);
  expect(answer == 42, "a CUkernel can be launched as a CUfunction");

  const char *name = NULL;
  step("asking for its name");
  result = CALL_CU(cuKernelGetName, &name, handle);
  name_of("cuKernelGetName", result, name);
  name = NULL;
  step("asking for its name as a CUfunction");
  result = CALL_CU(cuFuncGetName, &name, (CUfunction)handle);
  name_of("cuFuncGetName_of_cast", result, name);
  CUfunction plain = kernel("probe_shape");
  name = NULL;
  result = CALL_CU(cuFuncGetName, &name, plain);
  name_of("cuFuncGetName", result, name);
  step("asking for its parameters");
  parameters("cuKernelGetParamInfo", false);
  parameters("cuFuncGetParamInfo_of_cast", true);
  step("asking for its function, module and attributes");
  result = CALL_CU(cuKernelGetFunction, &function, handle);
  fact_result("cuKernelGetFunction", result);
  if (result == CUDA_SUCCESS) {
    fact_bool("function_equals_cast", function == (CUfunction)handle);
    fact_bool("launch_of_function", launched(function) == 42);
  }
  CUmodule module = NULL;
  int value = 0;
  fact_result("cuFuncGetModule_of_cast", CALL_CU(cuFuncGetModule, &module, (CUfunction)handle));
  fact_result("cuFuncGetAttribute_of_cast",
              CALL_CU(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                      (CUfunction)handle));
}
