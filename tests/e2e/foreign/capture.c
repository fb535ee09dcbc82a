/* Training beside and inside captures: words on the command line, done in order (trainer.h).

     capture KERNEL.ptx word[:argument...]...
   train:N                 N steps, then hashes
   begin:MODE[:stream]     the capturing stream captures; MODE global, thread or relaxed; stream `own`
                           (the default), `thread` (this thread's default stream), `other` (begun by
                           another thread, which waits until `end`)
   to:G                    the same, relaxed, into graph G, which begins empty if it isn't there
   record:WHAT             into the capture: copy (of m, by a copy node), fill (of m), kernel (reading m),
                           other (reading g), adam, exec:X (a launch of X), fork (a copy in a stream that joins by events)
   beside:WHAT             while it is open, on a stream that doesn't capture: step, free (in its order)
   end[:G]                 the capture ends; its graph is G (a letter)
   broken                  the capture is invalidated and ends
   graph:G  kernel:G  other:G  copy:G  child:G:H  clone:G:H  instantiate:G:X  update:X:G  set:X:G
                           an empty graph; nodes made by hand; H into G; H a copy of G; X made of G; X as
                           G; the first node of G, in X, reads v and not m
   launch:X                on the trainer's stream, in order with its steps
   destroy:G  destroy-exec:X
   free  allocate          m, v freed; arrays anew
   drop                    the capturing stream is destroyed in the middle of its capture
   reset                   the primary context, and everything anew
   G, H: a to e; X: v to z */
#include "trainer.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
extern CUresult cuStreamEndCapture_ptsz(CUstream, CUgraph *);

static const char *kernel_path;
static struct trainer trainer;
static CUdeviceptr buffer; /* what copies of the state go to */
static CUstream own, forked, capturing;
static CUgraph graphs[256];
static CUgraphExec executables[256];
static CUevent fork_event, join_event;

static pthread_t other;
static sem_t other_may_end;
static CUgraph other_graph;

static void open_all(void) {
  trainer_open(&trainer, kernel_path, 0, cuMemAlloc);
  CU(cuMemAlloc(&buffer, ARRAY_BYTES));
  CU(cuMemsetD8(buffer, 0, ARRAY_BYTES));
  CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&forked, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  CU(cuCtxSynchronize());
}

static CUstreamCaptureMode mode_of(const char *name) {
  return !strcmp(name, "global")   ? CU_STREAM_CAPTURE_MODE_GLOBAL
         : !strcmp(name, "thread") ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                   : CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* A capture of another thread: begun and ended there. */
static CUstreamCaptureMode other_mode;
static sem_t other_began;
static void *capture_elsewhere(void *unused) {
  (void)unused;
  CU(cuCtxSetCurrent(trainer.context));
  CU(cuStreamBeginCapture(own, other_mode));
  CU(cuMemcpyDtoDAsync(buffer + 4096, buffer, 4096, own));
  (void)sem_post(&other_began);
  while (sem_wait(&other_may_end) != 0)
    ;
  CU(cuStreamEndCapture(own, &other_graph));
  return NULL;
}

static void begin(const char *mode, const char *stream) {
  capturing = own;
  if (!strcmp(stream, "thread")) {
    capturing = CU_STREAM_PER_THREAD;
    CU(cuStreamBeginCapture_v2_ptsz(NULL, mode_of(mode)));
  } else if (!strcmp(stream, "other")) {
    capturing = NULL;
    other_mode = mode_of(mode);
    (void)sem_init(&other_began, 0, 0);
    (void)sem_init(&other_may_end, 0, 0);
    if (pthread_create(&other, NULL, capture_elsewhere, NULL))
      exit(2);
    while (sem_wait(&other_began) != 0)
      ;
  } else {
    CU(cuStreamBeginCapture(own, mode_of(mode)));
  }
}

static void end(char name) {
  CUgraph graph = NULL;
  size_t nodes = 0;
  if (capturing == CU_STREAM_PER_THREAD) {
    CU(cuStreamEndCapture_ptsz(NULL, &graph));
  } else if (capturing) {
    CU(cuStreamEndCapture(capturing, &graph));
  } else {
    (void)sem_post(&other_may_end);
    (void)pthread_join(other, NULL);
    graph = other_graph;
  }
  CU(cuGraphGetNodes(graph, NULL, &nodes));
  printf("captured %zu nodes\n", nodes);
  graphs[(unsigned char)name] = graph;
}

static void record(const char *what, char name) {
  if (!strcmp(what, "copy")) {
    CU(cuMemcpyDtoDAsync(buffer, trainer.m, ARRAY_BYTES, capturing));
  } else if (!strcmp(what, "fill")) {
    CU(cuMemsetD32Async(trainer.m, 0x3a83126f, ELEMENTS, capturing));
  } else if (!strcmp(what, "kernel")) {
    copy_launch(trainer.copy, buffer, trainer.m, ELEMENTS, capturing);
  } else if (!strcmp(what, "other")) {
    copy_launch(trainer.copy, buffer, trainer.g, ELEMENTS, capturing);
  } else if (!strcmp(what, "adam")) {
    trainer_launch_adam(&trainer, capturing);
  } else if (!strcmp(what, "exec")) {
    CU(cuGraphLaunch(executables[(unsigned char)name], capturing));
  } else if (!strcmp(what, "fork")) {
    CU(cuEventRecord(fork_event, capturing));
    CU(cuStreamWaitEvent(forked, fork_event, 0));
    CU(cuMemcpyDtoDAsync(buffer, trainer.m, ARRAY_BYTES, forked));
    CU(cuEventRecord(join_event, forked));
    CU(cuStreamWaitEvent(capturing, join_event, 0));
  } else {
    fprintf(stderr, "nothing to record is called %s\n", what);
    exit(2);
  }
}

static void beside(const char *what) {
  if (!strcmp(what, "step")) {
    trainer_step(&trainer, trainer.stream);
  } else if (!strcmp(what, "free")) {
    CU(cuMemFreeAsync(trainer.m, trainer.stream));
    CU(cuMemFreeAsync(trainer.v, trainer.stream));
  } else {
    fprintf(stderr, "nothing to do beside a capture is called %s\n", what);
    exit(2);
  }
}

static CUDA_KERNEL_NODE_PARAMS kernel_node(struct copy_launch *launch, CUdeviceptr from) {
  copy_launch_set(launch, buffer, from, ELEMENTS);
  return (CUDA_KERNEL_NODE_PARAMS){.func = trainer.copy,
                                   .gridDimX = ELEMENTS / 256,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 256,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .kernelParams = launch->parameters};
}

static void add_kernel(CUgraph graph, CUdeviceptr from) {
  struct copy_launch launch;
  CUDA_KERNEL_NODE_PARAMS parameters = kernel_node(&launch, from);
  CUgraphNode node;
  CU(cuGraphAddKernelNode(&node, graph, NULL, 0, &parameters));
}

static void add_copy(CUgraph graph) {
  CUgraphNode node;
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = trainer.m,
                        .srcPitch = ARRAY_BYTES,
                        .srcHeight = 1,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = buffer,
                        .dstPitch = ARRAY_BYTES,
                        .dstHeight = 1,
                        .WidthInBytes = ARRAY_BYTES,
                        .Height = 1,
                        .Depth = 1};
  CU(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, trainer.context));
}

static void set_first(CUgraphExec executable, CUgraph graph) {
  struct copy_launch launch;
  CUDA_KERNEL_NODE_PARAMS parameters = kernel_node(&launch, trainer.v);
  CUgraphNode first;
  size_t count = 1;
  CU(cuGraphGetNodes(graph, &first, &count));
  CU(cuGraphExecKernelNodeSetParams(executable, first, &parameters));
}

static void launch(CUgraphExec executable) {
  CU(cuGraphLaunch(executable, trainer.stream));
  CU(cuMemsetD8Async(buffer + ARRAY_BYTES - 4, 0, 4, trainer.stream));
  CU(cuStreamSynchronize(trainer.stream));
  printf("launched %016llx\n", device_hash(buffer, ARRAY_BYTES));
}

static bool is(char **parts, const char *word) {
  return !strcmp(parts[0], word);
}

/* True when the word is of those that name graphs. */
static bool graph_word(char **parts) {
  const unsigned char first = (unsigned char)parts[1][0], second = (unsigned char)parts[2][0];
  CUgraphNode node;
  CUgraphExecUpdateResultInfo info;
  if (is(parts, "graph"))
    CU(cuGraphCreate(&graphs[first], 0));
  else if (is(parts, "kernel"))
    add_kernel(graphs[first], trainer.m);
  else if (is(parts, "other"))
    add_kernel(graphs[first], trainer.g);
  else if (is(parts, "copy"))
    add_copy(graphs[first]);
  else if (is(parts, "child"))
    CU(cuGraphAddChildGraphNode(&node, graphs[first], NULL, 0, graphs[second]));
  else if (is(parts, "clone"))
    CU(cuGraphClone(&graphs[second], graphs[first]));
  else if (is(parts, "instantiate"))
    CU(cuGraphInstantiate(&executables[second], graphs[first], 0));
  else if (is(parts, "update"))
    printf("update %s\n", cu_name(cuGraphExecUpdate(executables[first], graphs[second], &info)));
  else if (is(parts, "set"))
    set_first(executables[first], graphs[second]);
  else if (is(parts, "launch"))
    launch(executables[first]);
  else if (is(parts, "destroy"))
    CU(cuGraphDestroy(graphs[first]));
  else if (is(parts, "destroy-exec"))
    CU(cuGraphExecDestroy(executables[first]));
  else
    return false;
  return true;
}

static void run(char **parts) {
  if (graph_word(parts))
    return;
  if (is(parts, "train")) {
    trainer_train(&trainer, (unsigned)atoi(parts[1]));
    trainer_print(&trainer);
  } else if (is(parts, "begin")) {
    begin(parts[1], *parts[2] ? parts[2] : "own");
  } else if (is(parts, "to")) {
    CUgraph *graph = &graphs[(unsigned char)parts[1][0]];
    if (!*graph)
      CU(cuGraphCreate(graph, 0));
    capturing = own;
    CU(cuStreamBeginCaptureToGraph(own, *graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  } else if (is(parts, "record")) {
    record(parts[1], parts[2][0]);
  } else if (is(parts, "beside")) {
    beside(parts[1]);
  } else if (is(parts, "end")) {
    end(*parts[1] ? parts[1][0] : 'a');
  } else if (is(parts, "broken")) {
    CUgraph graph;
    (void)cuStreamSynchronize(capturing);
    printf("broken %s\n", cu_name(cuStreamEndCapture(capturing, &graph)));
  } else if (is(parts, "free")) {
    printf("freed %d %d\n", (int)cuMemFree(trainer.m), (int)cuMemFree(trainer.v));
  } else if (is(parts, "allocate")) {
    trainer_allocate(&trainer, cuMemAlloc);
  } else if (is(parts, "drop")) {
    CU(cuStreamDestroy(capturing));
    CU(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  } else if (is(parts, "reset")) {
    CU(cuDevicePrimaryCtxReset(0));
    open_all();
  } else {
    fprintf(stderr, "unknown word %s\n", parts[0]);
    exit(2);
  }
}

int main(int count, char **words) {
  if (count < 2) {
    fprintf(stderr, "usage: capture KERNEL.ptx word...\n");
    return 2;
  }
  CU(cuInit(0));
  kernel_path = words[1];
  open_all();
  run_words(count - 2, words + 2, run);
  return 0;
}
