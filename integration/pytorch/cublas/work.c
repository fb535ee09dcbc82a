/* What a call asks for becomes, on its stream,

     kernel(addresses) | host function | kernel(addresses)

   The kernels do nothing; by their parameters whoever watches launches sees the operands before the
   work, and the simulator sees memory that is taken away under it. The host function computes
   through the simulator's view of device memory, of which it asks when it runs: what is mapped at
   an address may change until then. It calls nothing of CUDA and waits for nothing.

   What a stream captures may run any number of times, as long as some graph lives, so it is kept
   until the process ends. */
#include "integration/pytorch/cublas/work.h"
#include "integration/pytorch/cublas/element.h"
#include "integration/pytorch/cublas/tile.h"
#include "integration/pytorch/libraries/driver.h"
#include "integration/pytorch/libraries/touch.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_ADDRESSES = 16 };

struct work {
  struct work *next; /* among captured ones */
  bool captured;
  enum touch_kernel kernel;
  union {
    struct product product;
    struct vector_work vector;
  };
};

static pthread_mutex_t captured_lock = PTHREAD_MUTEX_INITIALIZER; /* protects captured_work */
static struct work *captured_work;

cublasStatus_t work_refuse(cublasStatus_t status, const char *call, const char *reason, ...) {
  const char *trace = getenv("GPUSIM_TRACE");
  if (trace != NULL && atoi(trace) > 0) {
    char text[256];
    va_list arguments;
    va_start(arguments, reason);
    vsnprintf(text, sizeof text, reason, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: %s: %s\n", call,
            status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported here" : "refused", text);
  }
  return status;
}

static cublasStatus_t refuse_cuda(CUresult result, const char *call, const char *what) {
  return work_refuse(CUBLAS_STATUS_EXECUTION_FAILED, call, "%s: CUDA error %d", what, (int)result);
}

cudaDataType work_scale_type(cublasComputeType_t compute) {
  switch (compute) {
  case CUBLAS_COMPUTE_16F:
  case CUBLAS_COMPUTE_16F_PEDANTIC:
    return CUDA_R_16F;
  case CUBLAS_COMPUTE_32F:
  case CUBLAS_COMPUTE_32F_PEDANTIC:
  case CUBLAS_COMPUTE_32F_FAST_16F:
  case CUBLAS_COMPUTE_32F_FAST_16BF:
  case CUBLAS_COMPUTE_32F_FAST_TF32:
    return CUDA_R_32F;
  case CUBLAS_COMPUTE_64F:
  case CUBLAS_COMPUTE_64F_PEDANTIC:
    return CUDA_R_64F;
  default:
    return (cudaDataType)-1;
  }
}

cublasStatus_t work_scalar(const char *call, const void *value, bool on_device, cudaDataType type,
                           struct scalar *scalar) {
  if (value == NULL)
    return work_refuse(CUBLAS_STATUS_INVALID_VALUE, call, "alpha or beta is NULL");
  *scalar = (struct scalar){.value = on_device ? 0 : element_value(value, type),
                            .device = on_device ? value : NULL,
                            .type = type};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t work_check_types(const char *call, cudaDataType a, cudaDataType b, cudaDataType c,
                                cublasComputeType_t compute, cudaDataType scale) {
  cudaDataType computed = work_scale_type(compute);
  if (computed == (cudaDataType)-1)
    return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call, "compute type %d", (int)compute);
  bool same = a == b && element_bytes(a) != 0 && element_bytes(c) != 0 && scale == computed;
  bool good = same && computed == CUDA_R_32F ? a != CUDA_R_64F && (c == a || c == CUDA_R_32F)
                                             : same && a == computed && c == a;
  if (good)
    return CUBLAS_STATUS_SUCCESS;
  return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                     "%s (%d) by %s (%d) to %s (%d) in compute type %d with scalars of type %d",
                     element_name(a), (int)a, element_name(b), (int)b, element_name(c), (int)c,
                     (int)compute, (int)scale);
}

/* ---- addresses ---- */

/* From the first to the last byte, by steps along up to three directions. */
static bool is_cuda_memory(const void *data, size_t bytes, const int64_t *steps,
                           const int64_t *counts, int directions) {
  int64_t low = 0, high = 0;
  for (int i = 0; i < directions; i++) {
    int64_t reach = steps[i] * (counts[i] - 1);
    low += reach < 0 ? reach : 0;
    high += reach > 0 ? reach : 0;
  }
  uintptr_t first = (uintptr_t)data + (uintptr_t)(low * (int64_t)bytes);
  uintptr_t last = (uintptr_t)data + (uintptr_t)(high * (int64_t)bytes) + bytes - 1;
  unsigned type;
  return driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, first) ==
             CUDA_SUCCESS &&
         driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last) ==
             CUDA_SUCCESS;
}

/* The addresses of what is read and written, and whether all of it is CUDA memory. */
struct addresses {
  CUdeviceptr list[MOST_ADDRESSES];
  int count;
  const char *bad; /* or NULL */
  const void *bad_address;
};

static void add(struct addresses *all, const char *what, const void *data, size_t bytes,
                const int64_t *steps, const int64_t *counts, int directions) {
  all->list[all->count++] = (CUdeviceptr)(uintptr_t)data;
  if (all->bad == NULL && !is_cuda_memory(data, bytes, steps, counts, directions)) {
    all->bad = what;
    all->bad_address = data;
  }
}

static void add_matrix(struct addresses *all, const char *what, const struct matrix *matrix,
                       int64_t rows, int64_t columns, int64_t batch) {
  int64_t steps[] = {matrix->row_stride, matrix->column_stride, matrix->batch_stride},
          counts[] = {rows, columns, batch};
  int64_t next = 1;
  if (matrix->listed) /* which only the device may read */
    add(all, what, matrix->data, sizeof(void *), &next, &batch, 1);
  else
    add(all, what, matrix->data, element_bytes(matrix->type), steps, counts, 3);
}

static void add_scalar(struct addresses *all, const char *what, const struct scalar *scalar) {
  if (scalar->device != NULL)
    add(all, what, scalar->device, element_bytes(scalar->type), NULL, NULL, 0);
}

static void add_epilogue(struct addresses *all, const struct product *p) {
  const struct epilogue *e = &p->epilogue;
  int64_t steps[] = {1, e->bias_batch_stride},
          lengths[] = {e->steps & EPILOGUE_BIAS_GRADIENT_B ? p->n : p->m, p->batch};
  int64_t aux_steps[] = {1, e->aux_stride, e->aux_batch_stride},
          aux_counts[] = {p->m, p->n, p->batch};
  size_t aux_bytes = element_bytes(e->aux_type);
  if (e->bias != NULL)
    add(all, "bias", e->bias, element_bytes(e->bias_type), steps, lengths, 2);
  if (e->steps & (EPILOGUE_RELU | EPILOGUE_RELU_GRADIENT)) {
    aux_counts[0] = (p->m + 7) / 8;
    aux_steps[1] /= 8;
    aux_steps[2] /= 8;
    aux_bytes = 1;
  }
  if (e->aux != NULL)
    add(all, "aux", e->aux, aux_bytes, aux_steps, aux_counts, 3);
}

static struct addresses addresses_of_product(const struct product *p) {
  struct addresses all = {.count = 0};
  bool reads_operands =
      p->k != 0 && (p->alpha.device != NULL || p->alpha.value != 0 ||
                    p->epilogue.steps & (EPILOGUE_BIAS_GRADIENT_A | EPILOGUE_BIAS_GRADIENT_B));
  if (reads_operands) {
    add_matrix(&all, "A", &p->a, p->m, p->k, p->batch);
    add_matrix(&all, "B", &p->b, p->k, p->n, p->batch);
  }
  if (p->beta.device != NULL || p->beta.value != 0)
    add_matrix(&all, "C", &p->c, p->m, p->n, p->batch);
  add_matrix(&all, "D", &p->d, p->m, p->n, p->batch);
  add_scalar(&all, "alpha", &p->alpha);
  add_scalar(&all, "beta", &p->beta);
  add_epilogue(&all, p);
  return all;
}

static struct addresses addresses_of_vector(const struct vector_work *w, bool result_on_device) {
  struct addresses all = {.count = 0};
  if (w->count > 0)
    add(&all, "x", w->x.data, element_bytes(w->x.type), &w->x.stride, &w->count, 1);
  if (w->count > 0 && w->kind != VECTOR_SCALE)
    add(&all, "y", w->y.data, element_bytes(w->y.type), &w->y.stride, &w->count, 1);
  add_scalar(&all, "alpha", &w->alpha);
  if (w->kind == VECTOR_DOT && result_on_device)
    add(&all, "the result", w->result, element_bytes(w->result_type), NULL, NULL, 0);
  return all;
}

/* ---- queueing ---- */

static void run(void *argument) {
  struct work *work = argument;
  if (work->kernel == TOUCH_VECTOR) {
    vector_run(&work->vector, driver.host_view);
  } else if (!product_run(&work->product, driver.host_view, tile_set(0))) {
    fprintf(stderr, "cublas: out of host memory for a matrix product\n");
    abort(); /* a stream's work can't be left undone */
  }
  if (!work->captured)
    free(work);
}

static CUresult launch(struct work *work, CUstream stream, const struct addresses *addresses) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  enum touch_kernel kernel = work->kernel;
  CUresult result = driver.cuStreamIsCapturing(stream, &capture);
  bool captured = work->captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
  if (result == CUDA_SUCCESS)
    result = touch(kernel, stream, addresses->list, addresses->count);
  if (result == CUDA_SUCCESS)
    result = driver.cuLaunchHostFunc(stream, run, work);
  if (result != CUDA_SUCCESS) {
    free(work);
    return result;
  }
  if (captured) {
    pthread_mutex_lock(&captured_lock);
    work->next = captured_work;
    captured_work = work;
    pthread_mutex_unlock(&captured_lock);
  }
  return touch(kernel, stream, addresses->list, addresses->count);
}

static cublasStatus_t queue(const char *call, CUstream stream, const struct work *described,
                            const struct addresses *addresses) {
  if (addresses->bad != NULL)
    return work_refuse(CUBLAS_STATUS_EXECUTION_FAILED, call,
                       "%s at %p isn't CUDA memory throughout", addresses->bad,
                       addresses->bad_address);
  struct work *work = malloc(sizeof *work);
  if (work == NULL)
    return work_refuse(CUBLAS_STATUS_ALLOC_FAILED, call, "out of host memory");
  *work = *described;
  CUresult result = launch(work, stream, addresses);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : refuse_cuda(result, call, "a launch");
}

cublasStatus_t work_product(const char *call, CUstream stream, const struct product *p) {
  if (p->m == 0 || p->n == 0 || p->batch == 0)
    return CUBLAS_STATUS_SUCCESS;
  struct work work = {.kernel = TOUCH_PRODUCT, .product = *p};
  struct addresses addresses = addresses_of_product(p);
  return queue(call, stream, &work, &addresses);
}

cublasStatus_t work_vector(const char *call, CUstream stream, const struct vector_work *w) {
  struct work work = {.kernel = TOUCH_VECTOR, .vector = *w};
  struct addresses addresses = addresses_of_vector(w, true);
  return queue(call, stream, &work, &addresses);
}

cublasStatus_t work_vector_now(const char *call, CUstream stream, const struct vector_work *w) {
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  struct work work = {.kernel = TOUCH_VECTOR, .vector = *w};
  struct addresses addresses = addresses_of_vector(w, false);
  CUresult result = driver.cuStreamIsCapturing(stream, &capture);
  if (result == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return work_refuse(CUBLAS_STATUS_NOT_SUPPORTED, call,
                       "a result in host memory can't be captured");
  cublasStatus_t status = queue(call, stream, &work, &addresses);
  if (status != CUBLAS_STATUS_SUCCESS)
    return status;
  result = driver.cuStreamSynchronize(stream);
  return result == CUDA_SUCCESS ? status : refuse_cuda(result, call, "the stream");
}
