/* The stand-ins' work is a stream's work: it comes after what was queued before and before what is
   queued afterwards, nobody waits on the host, captures get it, and whoever watches launches sees
   its operands. */
#include "tests/unit/cublas_device.h"
#include <pthread.h>

enum { SIZE = 40 };
static CUfunction store;

/* C = A B of SIZE by SIZE floats, `handle`'s stream. */
struct small {
  cublasHandle_t handle;
  CUstream stream;
  struct on_device a, b, c;
};

static struct small small(void) {
  struct small x;
  MUST(cuStreamCreate(&x.stream, CU_STREAM_NON_BLOCKING));
  MUST_BLAS(cublasCreate_v2(&x.handle));
  MUST_BLAS(cublasSetStream_v2(x.handle, x.stream));
  x.a = on_device(CUDA_R_32F, SIZE, SIZE, 1), x.b = on_device(CUDA_R_32F, SIZE, SIZE, 1),
  x.c = on_device(CUDA_R_32F, SIZE, SIZE, 1);
  return x;
}

static void end(struct small *x) {
  MUST(cuStreamSynchronize(x->stream));
  drop(&x->a), drop(&x->b), drop(&x->c);
  MUST_BLAS(cublasDestroy_v2(x->handle));
  MUST(cuStreamDestroy(x->stream));
}

static void multiply(const struct small *x, const float *alpha, const struct on_device *a,
                     const struct on_device *b, const struct on_device *c) {
  float zero = 0;
  MUST_BLAS(cublasSgemm_v2(x->handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, alpha, a->at,
                           a->ld, b->at, b->ld, &zero, c->at, c->ld));
}

static const float one = 1;

static void store_float(CUstream stream, const struct on_device *x, float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  MUST(launch_store(store, stream, (CUdeviceptr)x->at, word));
}

static bool holds_product(const struct small *x, const void *before, double alpha) {
  return is_product(&x->c, before, x->a.plain, x->b.plain, x->c.plain, SIZE, SIZE, SIZE, 1, alpha,
                    0);
}

/* Work before is held back: the call returns and nothing is done; then all comes in order. */
static void test_asynchronous(void) {
  struct small x = small();
  struct on_device copy = on_device(CUDA_R_32F, SIZE, SIZE, 1);
  struct gate gate = new_gate();
  void *before = copy_of(&x.c);
  hold(gate, x.stream);
  store_float(x.stream, &x.a, 100);
  multiply(&x, &one, &x.a, &x.b, &x.c);
  MUST(cuMemcpyDtoDAsync((CUdeviceptr)copy.at, (CUdeviceptr)x.c.at, x.c.bytes, x.stream));
  store_float(x.stream, &x.c, 5);
  pause_ms(30);
  tap_ok(cuStreamQuery(x.stream) == CUDA_ERROR_NOT_READY &&
             memcmp(before, x.c.plain.data, x.c.bytes) == 0,
         "a call returns before the work ahead of it is done, and nothing is computed yet");
  open_gate(gate);
  MUST(cuStreamSynchronize(x.stream));
  bool stored = *(float *)x.a.plain.data == 100 && *(float *)x.c.plain.data == 5;
  memcpy(x.c.plain.data, copy.plain.data, x.c.bytes);
  tap_ok(stored && holds_product(&x, before, 1),
         "it sees what was queued before, and what was queued afterwards sees it");
  free(before);
  drop(&copy);
  end(&x);
}

/* Alpha is what device memory holds when the work runs. */
static void test_device_alpha(void) {
  struct small x = small();
  struct on_device scalars = on_device(CUDA_R_32F, 2, 1, 1);
  struct gate gate = new_gate();
  void *before = copy_of(&x.c);
  ((float *)scalars.plain.data)[0] = 7;
  ((float *)scalars.plain.data)[1] = 0;
  MUST_BLAS(cublasSetPointerMode_v2(x.handle, CUBLAS_POINTER_MODE_DEVICE));
  hold(gate, x.stream);
  store_float(x.stream, &scalars, 3);
  MUST_BLAS(cublasSgemm_v2(x.handle, CUBLAS_OP_N, CUBLAS_OP_N, SIZE, SIZE, SIZE, scalars.at, x.a.at,
                           x.a.ld, x.b.at, x.b.ld, (float *)scalars.at + 1, x.c.at, x.c.ld));
  store_float(x.stream, &scalars, 9);
  open_gate(gate);
  MUST(cuStreamSynchronize(x.stream));
  tap_ok(holds_product(&x, before, 3), "alpha in device memory is read in the stream's order");
  free(before);
  drop(&scalars);
  end(&x);
}

static void *open_later(void *gate) {
  pause_ms(50);
  open_gate(*(struct gate *)gate);
  return NULL;
}

/* A result in host memory is waited for, however long the stream takes. */
static void test_host_result(void) {
  struct small x = small();
  struct gate gate = new_gate();
  pthread_t opener;
  float result = -1, number = 3;
  hold(gate, x.stream);
  store_float(x.stream, &x.a, number);
  if (pthread_create(&opener, NULL, open_later, &gate) != 0)
    exit(2);
  MUST_BLAS(cublasSdot_v2(x.handle, 1, x.a.at, 1, x.a.at, 1, &result));
  tap_ok(result == number * number, "a dot product in host memory is waited for");
  pthread_join(opener, NULL);
  end(&x);
}

/* Two streams don't wait for each other, but with one hardware queue. */
static void test_other_streams(void) {
  struct small x = small(), y = small();
  struct gate gate = new_gate();
  void *x_before = copy_of(&x.c), *y_before = copy_of(&y.c);
  hold(gate, x.stream);
  multiply(&x, &one, &x.a, &x.b, &x.c);
  multiply(&y, &one, &y.a, &y.b, &y.c);
  if (!with_one_queue())
    MUST(cuStreamSynchronize(y.stream));
  bool free_to_work = with_one_queue() || cuStreamQuery(x.stream) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  MUST(cuStreamSynchronize(x.stream));
  MUST(cuStreamSynchronize(y.stream));
  tap_ok(free_to_work && holds_product(&x, x_before, 1) && holds_product(&y, y_before, 1),
         "other streams' products don't wait");
  free(x_before), free(y_before);
  end(&x), end(&y);
}

/* D = shrink^i A^i B over two streams, joined by events, or by waits on the host: the same to the
   last bit. */
static bool chain(void) {
  enum { LINKS = 12 };
  const float shrink = 0.3F;
  struct small x = small(), y = small();
  CUevent event;
  void *start_x = copy_of(&x.c), *start_y = copy_of(&y.c), *results[2];
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int with_events = 0; with_events < 2; with_events++) {
    memcpy(x.c.plain.data, start_x, x.c.bytes);
    memcpy(y.c.plain.data, start_y, y.c.bytes);
    for (int i = 0; i < LINKS; i++) {
      struct small *from = i % 2 ? &x : &y, *to = i % 2 ? &y : &x;
      multiply(to, &shrink, &x.a, &from->c, &to->c);
      MUST(cuEventRecord(event, to->stream));
      if (with_events)
        MUST(cuStreamWaitEvent(from->stream, event, 0));
      else
        MUST(cuStreamSynchronize(to->stream));
    }
    MUST(cuStreamSynchronize(x.stream));
    MUST(cuStreamSynchronize(y.stream));
    results[with_events] = copy_of(&y.c);
  }
  bool same =
      memcmp(results[0], results[1], y.c.bytes) == 0 && memcmp(results[0], start_y, y.c.bytes) != 0;
  free(results[0]), free(results[1]), free(start_x), free(start_y);
  MUST(cuEventDestroy(event));
  end(&x), end(&y);
  return same;
}

/* Once more with random delays before every operation; switches are read once a process. */
static int chain_with_delays(void) {
  setenv("GPUSIM_DELAY_US", "3000", 1);
  setenv("GPUSIM_CHAOS", "5", 1);
  start();
  return !chain();
}

static void test_captured(void) {
  struct small x = small();
  CUgraph graph;
  CUgraphExec executable;
  float host_alpha = 2;
  void *before = copy_of(&x.c);
  unsigned long long captured = gpusim_counter_by_name("captured_operations");
  MUST(cuStreamBeginCapture(x.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  multiply(&x, &host_alpha, &x.a, &x.b, &x.c);
  bool refused =
      cublasSdot_v2(x.handle, 1, x.a.at, 1, x.b.at, 1, &host_alpha) == CUBLAS_STATUS_NOT_SUPPORTED;
  MUST(cuStreamEndCapture(x.stream, &graph));
  MUST(cuStreamSynchronize(x.stream));
  tap_ok(refused, "a result in host memory can't be captured, and the capture goes on");
  tap_ok(gpusim_counter_by_name("captured_operations") == captured + 3 &&
             memcmp(before, x.c.plain.data, x.c.bytes) == 0,
         "a captured product is nodes of the graph, and nothing is computed");
  MUST(cuGraphInstantiate(&executable, graph, 0));
  MUST_BLAS(cublasDestroy_v2(x.handle));
  MUST_BLAS(cublasCreate_v2(&x.handle));
  host_alpha = 77;
  bool good = true;
  for (int launch = 0; launch < 3; launch++) {
    fill_random(x.a.plain.data, x.a.bytes / sizeof(float), CUDA_R_32F);
    memcpy(x.c.plain.data, before, x.c.bytes);
    MUST(cuGraphLaunch(executable, x.stream));
    MUST(cuStreamSynchronize(x.stream));
    good &= holds_product(&x, before, 2);
  }
  tap_ok(good, "each launch computes from what is there then, also when the handle is gone");
  free(before);
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
  end(&x);
}

/* A lies at an address where first one handle is mapped, then another. */
static void test_moved_memory(void) {
  struct small x = small();
  CUgraph graph;
  CUgraphExec executable;
  CUdeviceptr place;
  CUmemGenericAllocationHandle first = create(device_memory()), second = create(host_memory());
  struct on_device moved = x.a;
  bool good = true;
  MUST(cuMemAddressReserve(&place, PIECE, 0, 0, 0));
  MUST(cuMemMap(place, PIECE, 0, first, 0));
  MUST(grant(place, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  moved.at = (void *)place;
  moved.plain.data = gpusim_host_view((void *)place);
  MUST(cuStreamBeginCapture(x.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  multiply(&x, &one, &moved, &x.b, &x.c);
  MUST(cuStreamEndCapture(x.stream, &graph));
  MUST(cuGraphInstantiate(&executable, graph, 0));
  for (int turn = 0; turn < 2; turn++) {
    void *before = copy_of(&x.c);
    if (turn == 1) {
      MUST(cuMemUnmap(place, PIECE));
      MUST(cuMemMap(place, PIECE, 0, second, 0));
      MUST(grant(place, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
    }
    fill_random(x.a.plain.data, x.a.bytes / sizeof(float), CUDA_R_32F);
    MUST(cuMemcpyDtoDAsync(place, (CUdeviceptr)x.a.at, x.a.bytes, x.stream));
    MUST(cuGraphLaunch(executable, x.stream));
    MUST(cuStreamSynchronize(x.stream));
    good &= holds_product(&x, before, 1);
    free(before);
  }
  tap_ok(good, "what is mapped at an address may change between a call and its work");
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
  MUST(cuMemUnmap(place, PIECE));
  MUST(cuMemAddressFree(place, PIECE));
  MUST(cuMemRelease(first));
  MUST(cuMemRelease(second));
  end(&x);
}

/* Memory that is unmapped under a product that hasn't begun is a broken promise, which the
   simulator only sees by the addresses in a launch. */
static int unmapped_operand;
static int unmap_under_product(void) {
  CUdeviceptr place;
  start();
  struct small x = small();
  struct gate gate = new_gate();
  CUmemGenericAllocationHandle memory = create(device_memory());
  MUST(cuMemAddressReserve(&place, PIECE, 0, 0, 0));
  MUST(cuMemMap(place, PIECE, 0, memory, 0));
  MUST(grant(place, PIECE, CU_MEM_LOCATION_TYPE_DEVICE));
  struct on_device *operands[] = {&x.a, &x.b, &x.c};
  operands[unmapped_operand]->at = (void *)place;
  hold(gate, x.stream);
  multiply(&x, &one, &x.a, &x.b, &x.c);
  bool before = gpusim_counter_by_name("violations") == 0;
  cuMemUnmap(place, PIECE);
  _exit(before && gpusim_counter_by_name("violations") == 1 ? 0 : 1);
}

static void test_launch_counts(void) {
  struct small x = small();
  unsigned long long launches = gpusim_counter_by_name("launches");
  multiply(&x, &one, &x.a, &x.b, &x.c);
  MUST(cuStreamSynchronize(x.stream));
  tap_ok(gpusim_counter_by_name("launches") == launches + 2,
         "a product is a kernel before its work and one after it");
  end(&x);
}

static void test_legacy_stream(void) {
  struct small x = small();
  void *before = copy_of(&x.c);
  MUST_BLAS(cublasSetStream_v2(x.handle, NULL));
  store_float(NULL, &x.a, 50);
  multiply(&x, &one, &x.a, &x.b, &x.c);
  MUST(cuStreamSynchronize(NULL));
  tap_ok(*(float *)x.a.plain.data == 50 && holds_product(&x, before, 1),
         "the default stream will do");
  free(before);
  end(&x);
}

/* ---- threads ---- */

struct worker {
  pthread_t thread;
  const struct small *from;
  struct on_device result;
};

static void *work(void *argument) {
  struct worker *w = argument;
  struct small own = *w->from;
  /* The thread has no context yet. */
  MUST_BLAS(cublasCreate_v2(&own.handle));
  MUST(cuStreamCreate(&own.stream, CU_STREAM_NON_BLOCKING));
  MUST_BLAS(cublasSetStream_v2(own.handle, own.stream));
  for (int i = 0; i < 20; i++)
    multiply(&own, &one, &own.a, &own.b, &w->result);
  MUST(cuStreamSynchronize(own.stream));
  MUST_BLAS(cublasDestroy_v2(own.handle));
  MUST(cuStreamDestroy(own.stream));
  return NULL;
}

static void test_threads(void) {
  enum { WORKERS = 4 };
  struct small x = small();
  struct worker workers[WORKERS];
  multiply(&x, &one, &x.a, &x.b, &x.c);
  MUST(cuStreamSynchronize(x.stream));
  bool same = true;
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (struct worker){.from = &x, .result = on_device(CUDA_R_32F, SIZE, SIZE, 1)};
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
      exit(2);
  }
  for (int i = 0; i < WORKERS; i++) {
    pthread_join(workers[i].thread, NULL);
    for (int column = 0; column < SIZE; column++)
      same &= memcmp((float *)workers[i].result.plain.data + (size_t)column * (size_t)x.c.ld,
                     (float *)x.c.plain.data + (size_t)column * (size_t)x.c.ld,
                     SIZE * sizeof(float)) == 0;
    drop(&workers[i].result);
  }
  tap_ok(same, "threads with handles of their own get the same bits");
  end(&x);
}

int main(void) {
  CUmodule module;
  static const char *const operand[] = {"A", "B", "C"};
  for (unmapped_operand = 0; unmapped_operand < 3; unmapped_operand++)
    tap_ok(in_child(unmap_under_product) == 0, "taking %s away under a queued product is seen",
           operand[unmapped_operand]);
  tap_ok(in_child(chain_with_delays) == 0,
         "random delays and slow operations change no bit of a chain over two streams");
  start();
  store = load_kernel(&module, "store");
  test_asynchronous();
  test_device_alpha();
  test_host_result();
  test_other_streams();
  test_legacy_stream();
  test_launch_counts();
  tap_ok(chain(), "a chain over two streams is the same by events as by waits on the host");
  test_captured();
  test_moved_memory();
  test_threads();
  tap_ok(gpusim_counter_by_name("violations") == 0, "no promise was broken");
  return tap_done();
}
