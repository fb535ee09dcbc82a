/* Executable graphs. A launch submits one operation per node to the stream, in an order that the
   edges allow: by default that of creation, under GPUSIM_CHAOS a random one, new at every launch.
   So a graph's branches never run side by side, but whatever its edges don't order may happen in
   either order. Launches of one executable graph follow each other, in whatever streams.

   An executable graph lives until it is destroyed and its last operation has ended. */
#include "tests/gpusim/graph.h"
#include <stdio.h>
#include <stdlib.h>

struct exec_node {
  CUgraphNode source; /* the node it was made of, for updates by node; compared, never read */
  CUgraphNodeType type;
  struct gpusim_payload *payload;
  struct CUgraphExec_st *child;
  bool enabled;
  size_t *after, after_count; /* places */
};
struct CUgraphExec_st {
  size_t count;
  struct exec_node *nodes;
  cuuint64_t flags;
  int references; /* the handle or the parent, operations */
  bool launched;
  struct dependency last;
};

static void drop_exec(CUgraphExec exec) {
  if (exec == NULL || --exec->references > 0)
    return;
  for (size_t i = 0; i < exec->count; i++) {
    gpusim_payload_drop(exec->nodes[i].payload);
    drop_exec(exec->nodes[i].child);
    free(exec->nodes[i].after);
  }
  if (exec->launched)
    gpusim_stream_drop(exec->last.stream);
  free(exec->nodes);
  free(exec);
}

/* ---- order ---- */

/* Fills `order` with places; returns how many could be placed: fewer than all when edges form a
   circle. `random`: 0 for the order of creation. */
static size_t linearise(CUgraphExec exec, size_t *order, uint64_t random) {
  size_t placed = 0;
  bool *done = gpusim_new(exec->count + 1);
  size_t *ready = gpusim_new((exec->count + 1) * sizeof *ready);
  for (;;) {
    size_t choices = 0;
    for (size_t i = 0; i < exec->count && (choices == 0 || random != 0); i++) {
      bool may = !done[i];
      for (size_t j = 0; j < exec->nodes[i].after_count && may; j++)
        may = done[exec->nodes[i].after[j]];
      if (may)
        ready[choices++] = i;
    }
    if (choices == 0)
      break;
    size_t choice = 0;
    if (random != 0) {
      random = gpusim_scramble(random);
      choice = random % choices;
    }
    done[ready[choice]] = true;
    order[placed++] = ready[choice];
  }
  free(done);
  free(ready);
  return placed;
}

/* ---- instantiation ---- */

static CUgraphExec build(CUgraph graph) {
  CUgraphExec exec = gpusim_new(sizeof *exec);
  exec->references = 1;
  exec->count = graph->nodes.count;
  exec->nodes = gpusim_new((exec->count + 1) * sizeof *exec->nodes);
  bool right = true;
  for (size_t i = 0; i < exec->count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    struct exec_node *own = &exec->nodes[i];
    own->source = node;
    own->type = node->type;
    own->enabled = true;
    own->payload = node->payload;
    if (own->payload != NULL)
      own->payload->references++;
    if (node->child != NULL) {
      own->child = build(node->child);
      right = right && own->child != NULL;
    }
    own->after_count = node->after.count;
    own->after = gpusim_new((own->after_count + 1) * sizeof *own->after);
    for (size_t j = 0; j < own->after_count; j++)
      own->after[j] = node->after.items[j]->place;
  }
  size_t *order = gpusim_new((exec->count + 1) * sizeof *order);
  right = right && linearise(exec, order, 0) == exec->count;
  free(order);
  if (right)
    return exec;
  drop_exec(exec);
  return NULL;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, cuuint64_t flags) {
  const cuuint64_t all = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                         CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                         CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (exec == NULL || (flags & ~all) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_lock();
  *exec = gpusim_handle_is(graph, HANDLE_GRAPH) && !graph->inner ? build(graph) : NULL;
  if (*exec != NULL) {
    (*exec)->flags = flags;
    gpusim_handle_add(*exec, HANDLE_GRAPH_EXEC, NULL);
  }
  gpusim_unlock();
  return *exec != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                               size_t log_bytes) {
  if (error_node != NULL)
    *error_node = NULL;
  if (log != NULL && log_bytes > 0)
    *log = 0;
  return instantiate(exec, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                            size_t log_bytes) {
  return cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  if (parameters == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = NULL;
  CUresult result = instantiate(exec, graph, parameters->flags);
  parameters->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

/* On success gpusim_mutex is held. */
static CUresult enter_exec(CUgraphExec exec) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (gpusim_handle_is(exec, HANDLE_GRAPH_EXEC))
    return CUDA_SUCCESS;
  gpusim_unlock();
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
  if (flags == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_exec(exec);
  if (result != CUDA_SUCCESS)
    return result;
  *flags = exec->flags;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  CUresult result = enter_exec(exec);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_handle_remove(exec);
  drop_exec(exec);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

/* ---- launches: an operation that runs a node's payload and keeps it alive ---- */

struct replay {
  struct gpusim_payload *payload; /* NULL: only order */
};

static CUresult run(void *argument) {
  const struct replay *replay = argument;
  if (replay->payload == NULL)
    return CUDA_SUCCESS;
  return replay->payload->kind->run(replay->payload->argument);
}

static bool reached(void *argument) {
  const struct replay *replay = argument;
  return replay->payload->kind->reached(replay->payload->argument);
}

static void drop(void *argument) {
  struct replay *replay = argument;
  gpusim_payload_drop(replay->payload);
  free(replay);
}

static bool touches(void *argument, uintptr_t low, uintptr_t high) {
  const struct gpusim_payload *payload = ((struct replay *)argument)->payload;
  return payload != NULL && payload->kind->touches != NULL &&
         payload->kind->touches(payload->argument, low, high);
}

static void describe(void *argument, char *into, size_t bytes) {
  const struct gpusim_payload *payload = ((struct replay *)argument)->payload;
  if (payload != NULL && payload->kind->describe != NULL)
    payload->kind->describe(payload->argument, into, bytes);
  else
    snprintf(into, bytes, "%s", payload != NULL ? payload->kind->name : "graph launch");
}

/* The clock sees the node's own operation. */
static void cost(void *argument, struct clock_cost *into) {
  const struct gpusim_payload *payload = ((struct replay *)argument)->payload;
  if (payload != NULL && payload->kind->cost != NULL)
    payload->kind->cost(payload->argument, into);
}

static const struct operation_kind replay_kind = {.name = "graph node",
                                                  .run = run,
                                                  .drop = drop,
                                                  .touches = touches,
                                                  .describe = describe,
                                                  .cost = cost};
static const struct operation_kind replay_wait_kind = {.name = "value wait of a graph",
                                                       .run = run,
                                                       .reached = reached,
                                                       .drop = drop,
                                                       .touches = touches,
                                                       .describe = describe,
                                                       .cost = cost};

static CUresult submit(struct CUstream_st *stream, struct gpusim_payload *payload,
                       const struct dependency *after) {
  struct replay *replay = gpusim_new(sizeof *replay);
  replay->payload = payload;
  if (payload != NULL)
    payload->references++;
  return gpusim_submit(
      stream, payload != NULL && payload->kind->reached != NULL ? &replay_wait_kind : &replay_kind,
      replay, after);
}

static CUresult submit_node(struct CUstream_st *stream, struct exec_node *node) {
  if (node->payload == NULL || !node->enabled)
    return CUDA_SUCCESS;
  const struct dependency *after = node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT
                                       ? gpusim_event_last(node->payload->argument)
                                       : NULL;
  CUresult result = submit(stream, node->payload, after);
  if (result == CUDA_SUCCESS && node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    gpusim_event_recorded(node->payload->argument, stream);
  if (result == CUDA_SUCCESS)
    gpusim_count(GPUSIM_COUNT_graph_nodes, 1);
  return result;
}

static CUresult submit_all(struct CUstream_st *stream, CUgraphExec exec) {
  static uint64_t launches;
  size_t *order = gpusim_new((exec->count + 1) * sizeof *order);
  uint64_t random = 0;
  if (gpusim_settings.chaos > 0)
    random = gpusim_scramble((uint64_t)gpusim_settings.chaos ^ ++launches) | 1;
  linearise(exec, order, random);
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
    struct exec_node *node = &exec->nodes[order[i]];
    if (i > 0 && order[i] < order[i - 1])
      gpusim_count(GPUSIM_COUNT_reordered_nodes, 1);
    result = node->child != NULL ? submit_all(stream, node->child) : submit_node(stream, node);
  }
  free(order);
  return result;
}

/* Kernels whose module is gone, which a device would run into nothing. */
static bool kernels_alive(CUgraphExec exec) {
  for (size_t i = 0; i < exec->count; i++) {
    const struct exec_node *node = &exec->nodes[i];
    if (node->child != NULL ? !kernels_alive(node->child)
                            : node->type == CU_GRAPH_NODE_TYPE_KERNEL &&
                                  !gpusim_launch_alive(node->payload->argument))
      return false;
  }
  return true;
}

/* The graph that an executable graph stands for, to be captured as a child. */
static CUgraph graph_of(CUgraphExec exec) {
  CUgraph graph = gpusim_graph_new();
  for (size_t i = 0; i < exec->count; i++) {
    struct exec_node *node = &exec->nodes[i];
    struct gpusim_payload *payload = node->enabled ? node->payload : NULL;
    if (payload != NULL)
      payload->references++;
    gpusim_graph_append(graph,
                        payload != NULL || node->child ? node->type : CU_GRAPH_NODE_TYPE_EMPTY,
                        payload, node->child != NULL ? graph_of(node->child) : NULL, NULL, 0);
  }
  for (size_t i = 0; i < exec->count; i++)
    for (size_t j = 0; j < exec->nodes[i].after_count; j++)
      gpusim_nodes_add(&graph->nodes.items[i]->after, graph->nodes.items[exec->nodes[i].after[j]]);
  return graph;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(exec, HANDLE_GRAPH_EXEC)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!kernels_alive(exec)) {
    gpusim_violation("launch of a graph with a kernel whose module was unloaded");
    result = CUDA_ERROR_INVALID_HANDLE;
  } else if (stream->capture != NULL) {
    result = gpusim_capture_child(stream, graph_of(exec));
  } else {
    exec->references++; /* a full queue lets go of the lock: the handle may be destroyed meanwhile */
    gpusim_stream_hold(stream);
    result = submit(stream, NULL, exec->launched ? &exec->last : NULL);
    if (result == CUDA_SUCCESS)
      result = submit_all(stream, exec);
    if (exec->launched)
      gpusim_stream_drop(exec->last.stream);
    exec->last = (struct dependency){stream, stream->submitted};
    exec->launched = true;
    drop_exec(exec);
    if (result == CUDA_SUCCESS)
      gpusim_count(GPUSIM_COUNT_graph_launches, 1);
  }
  gpusim_unlock();
  return result;
}

/* Nothing has to be brought to this device before a launch. */
CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(exec, HANDLE_GRAPH_EXEC))
    result = CUDA_ERROR_INVALID_VALUE;
  gpusim_unlock();
  return result;
}

/* ---- updates: launches that are queued keep what they were launched with ---- */

static struct exec_node *node_of(CUgraphExec exec, CUgraphNode source) {
  for (size_t i = 0; i < exec->count; i++)
    if (exec->nodes[i].source == source)
      return &exec->nodes[i];
  return NULL;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode source,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *parameters) {
  CUresult result = enter_exec(exec);
  if (result != CUDA_SUCCESS)
    return result;
  struct exec_node *node = node_of(exec, source);
  const struct operation_kind *kind;
  void *argument;
  if (node == NULL || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    result = gpusim_launch_node(parameters, &kind, &argument);
  if (result == CUDA_SUCCESS) {
    gpusim_payload_drop(node->payload);
    node->payload = gpusim_payload_new(kind, argument);
  }
  gpusim_unlock();
  return result;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode source, unsigned enabled) {
  CUresult result = enter_exec(exec);
  if (result != CUDA_SUCCESS)
    return result;
  struct exec_node *node = node_of(exec, source);
  if (node == NULL ||
      (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMCPY &&
       node->type != CU_GRAPH_NODE_TYPE_MEMSET))
    result = CUDA_ERROR_INVALID_VALUE;
  else
    node->enabled = enabled != 0;
  gpusim_unlock();
  return result;
}

static bool same_shape(CUgraphExec exec, CUgraph graph) {
  bool same = exec->count == graph->nodes.count;
  for (size_t i = 0; i < exec->count && same; i++) {
    const struct exec_node *own = &exec->nodes[i];
    CUgraphNode node = graph->nodes.items[i];
    same = own->type == node->type && own->after_count == node->after.count &&
           (own->child == NULL) == (node->child == NULL);
    for (size_t j = 0; j < own->after_count && same; j++)
      same = own->after[j] == node->after.items[j]->place;
    if (same && own->child != NULL)
      same = same_shape(own->child, node->child);
  }
  return same;
}

static void take_payloads(CUgraphExec exec, CUgraph graph) {
  for (size_t i = 0; i < exec->count; i++) {
    struct exec_node *own = &exec->nodes[i];
    CUgraphNode node = graph->nodes.items[i];
    gpusim_payload_drop(own->payload);
    own->payload = node->payload;
    if (own->payload != NULL)
      own->payload->references++;
    if (own->child != NULL)
      take_payloads(own->child, node->child);
  }
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  if (info == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_exec(exec);
  if (result != CUDA_SUCCESS)
    return result;
  *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_SUCCESS};
  if (!gpusim_handle_is(graph, HANDLE_GRAPH)) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!same_shape(exec, graph)) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  } else {
    take_payloads(exec, graph);
  }
  gpusim_unlock();
  return result;
}
