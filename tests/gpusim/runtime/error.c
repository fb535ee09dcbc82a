/* Names and texts of the runtime's errors, from errors.def. Both work without a driver. */
#include "runtime.h"

static const struct {
  cudaError_t code;
  const char *name, *description;
} errors[] = {
#define ERROR(name, description) {name, #name, description},
#include "errors.def"
#undef ERROR
};

enum { ERRORS = sizeof errors / sizeof *errors };

const char *cudaGetErrorName(cudaError_t code) {
  for (int i = 0; i < ERRORS; i++)
    if (errors[i].code == code)
      return errors[i].name;
  return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code) {
  for (int i = 0; i < ERRORS; i++)
    if (errors[i].code == code && errors[i].description != NULL)
      return errors[i].description;
  const char *description = NULL;
  if (runtime_init() != cudaErrorInsufficientDriver)
    driver.cuGetErrorString((CUresult)code, &description);
  return description != NULL ? description : "unrecognized error code";
}
