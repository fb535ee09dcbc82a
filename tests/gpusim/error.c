/* Names and texts of CUresult codes (errors.def), and the process-wide query for them. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>
#include <string.h>

static const struct {
  CUresult code;
  const char *name, *description;
} errors[] = {
#define ERROR(code, description) {code, #code, description},
#include "errors.def"
#undef ERROR
};
enum { ERRORS = sizeof errors / sizeof *errors };

CUresult cuGetErrorName(CUresult code, const char **name) {
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < ERRORS; i++)
    if (errors[i].code == code) {
      *name = errors[i].name;
      return CUDA_SUCCESS;
    }
  *name = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **description) {
  if (description == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < ERRORS; i++)
    if (errors[i].code == code) {
      *description = errors[i].description;
      return CUDA_SUCCESS;
    }
  *description = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

const char *gpusim_error_name(CUresult code) {
  const char *name;
  return cuGetErrorName(code, &name) == CUDA_SUCCESS ? name : "an unknown error";
}

CUresult gpusim_error_by_name(const char *words) {
  char *end;
  long number = strtol(words, &end, 10);
  bool numeric = end != words && *end == 0;
  for (int i = 0; i < ERRORS; i++)
    if (numeric ? (long)errors[i].code == number
                : strcmp(errors[i].name, words) == 0 ||
                      strcmp(errors[i].name + sizeof "CUDA_ERROR_" - 1, words) == 0)
      return errors[i].code;
  return CUDA_SUCCESS;
}
