/* Graphs: nodes, edges, copies, and questions about them. Nodes' work is opaque here. A child node
   owns a graph of its own. Edges may be added later, so the order of creation need not be an order
   of execution; instantiation finds one (graph_launch.c). */
#include "tests/gpusim/graph.h"
#include <stdlib.h>
#include <string.h>

struct gpusim_payload *gpusim_payload_new(const struct operation_kind *kind, void *argument) {
  struct gpusim_payload *payload = gpusim_new(sizeof *payload);
  payload->references = 1;
  payload->kind = kind;
  payload->argument = argument;
  return payload;
}

void gpusim_payload_drop(struct gpusim_payload *payload) {
  if (payload == NULL || --payload->references > 0)
    return;
  if (payload->kind->drop != NULL)
    payload->kind->drop(payload->argument);
  free(payload);
}

void gpusim_nodes_add(struct gpusim_nodes *nodes, CUgraphNode node) {
  for (size_t i = 0; i < nodes->count; i++)
    if (nodes->items[i] == node)
      return;
  if (nodes->count == nodes->capacity) {
    size_t capacity = nodes->capacity > 0 ? 2 * nodes->capacity : 4;
    CUgraphNode *items = gpusim_new(capacity * sizeof(CUgraphNode));
    if (nodes->count > 0)
      memcpy(items, nodes->items, nodes->count * sizeof(CUgraphNode));
    free(nodes->items);
    nodes->items = items;
    nodes->capacity = capacity;
  }
  nodes->items[nodes->count++] = node;
}

void gpusim_nodes_clear(struct gpusim_nodes *nodes) {
  free(nodes->items);
  *nodes = (struct gpusim_nodes){NULL, 0, 0};
}

CUgraph gpusim_graph_new(void) {
  CUgraph graph = gpusim_new(sizeof *graph);
  gpusim_handle_add(graph, HANDLE_GRAPH, NULL);
  return graph;
}

static void free_node(CUgraphNode node) {
  gpusim_handle_remove(node);
  gpusim_payload_drop(node->payload);
  gpusim_graph_free(node->child);
  gpusim_nodes_clear(&node->after);
  free(node);
}

void gpusim_graph_free(CUgraph graph) {
  if (graph == NULL)
    return;
  gpusim_handle_remove(graph);
  for (size_t i = 0; i < graph->nodes.count; i++)
    free_node(graph->nodes.items[i]);
  gpusim_nodes_clear(&graph->nodes);
  free(graph);
}

CUgraphNode gpusim_graph_append(CUgraph graph, CUgraphNodeType type, struct gpusim_payload *payload,
                                CUgraph child, const CUgraphNode *after, size_t count) {
  CUgraphNode node = gpusim_new(sizeof *node);
  node->graph = graph;
  node->type = type;
  node->payload = payload;
  node->child = child;
  if (child != NULL)
    child->inner = true;
  node->place = graph->nodes.count;
  for (size_t i = 0; i < count; i++)
    gpusim_nodes_add(&node->after, after[i]);
  gpusim_nodes_add(&graph->nodes, node);
  gpusim_handle_add(node, HANDLE_GRAPH_NODE, NULL);
  return node;
}

CUgraph gpusim_graph_copy(CUgraph graph) {
  CUgraph copy = gpusim_graph_new();
  for (size_t i = 0; i < graph->nodes.count; i++) {
    CUgraphNode node = graph->nodes.items[i];
    if (node->payload != NULL)
      node->payload->references++;
    gpusim_graph_append(copy, node->type, node->payload,
                        node->child != NULL ? gpusim_graph_copy(node->child) : NULL, NULL, 0);
  }
  for (size_t i = 0; i < graph->nodes.count; i++)
    for (size_t j = 0; j < graph->nodes.items[i]->after.count; j++)
      gpusim_nodes_add(&copy->nodes.items[i]->after,
                       copy->nodes.items[graph->nodes.items[i]->after.items[j]->place]);
  return copy;
}

/* ---- entry points; on success gpusim_mutex is held ---- */

static CUresult enter_graph(CUgraph graph) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (gpusim_handle_is(graph, HANDLE_GRAPH))
    return CUDA_SUCCESS;
  gpusim_unlock();
  return CUDA_ERROR_INVALID_VALUE;
}

static CUresult enter_node(CUgraphNode node) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (gpusim_handle_is(node, HANDLE_GRAPH_NODE))
    return CUDA_SUCCESS;
  gpusim_unlock();
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (graph == NULL || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *graph = gpusim_graph_new();
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *copy, CUgraph graph) {
  if (copy == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  *copy = gpusim_graph_copy(graph);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  if (graph->inner)
    result = CUDA_ERROR_INVALID_VALUE;
  else
    gpusim_graph_free(graph);
  gpusim_unlock();
  return result;
}

/* cuda.h: with no array, *count is the number there is; with one, at most *count are written, the
 * rest is null. */
static CUresult answer(const struct gpusim_nodes *nodes, CUgraphNode *out, size_t *count) {
  if (out != NULL)
    for (size_t i = 0; i < *count; i++)
      out[i] = i < nodes->count ? nodes->items[i] : NULL;
  if (out == NULL || *count > nodes->count)
    *count = nodes->count;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (count == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  answer(&graph->nodes, nodes, count);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (count == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_nodes roots = {NULL, 0, 0};
  for (size_t i = 0; i < graph->nodes.count; i++)
    if (graph->nodes.items[i]->after.count == 0)
      gpusim_nodes_add(&roots, graph->nodes.items[i]);
  answer(&roots, nodes, count);
  gpusim_nodes_clear(&roots);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
  if (type == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_node(node);
  if (result != CUDA_SUCCESS)
    return result;
  *type = node->type;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges,
                                       size_t *count) {
  if (count == NULL || (edges != NULL && nodes == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_node(node);
  if (result != CUDA_SUCCESS)
    return result;
  if (edges != NULL)
    memset(edges, 0, *count * sizeof *edges);
  answer(&node->after, nodes, count);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

static bool waits_for(CUgraphNode node, CUgraphNode other) {
  for (size_t i = 0; i < node->after.count; i++)
    if (node->after.items[i] == other)
      return true;
  return false;
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
                                         CUgraphEdgeData *edges, size_t *count) {
  if (count == NULL || (edges != NULL && nodes == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_node(node);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_nodes dependents = {NULL, 0, 0};
  for (size_t i = 0; i < node->graph->nodes.count; i++)
    if (waits_for(node->graph->nodes.items[i], node))
      gpusim_nodes_add(&dependents, node->graph->nodes.items[i]);
  if (edges != NULL)
    memset(edges, 0, *count * sizeof *edges);
  answer(&dependents, nodes, count);
  gpusim_nodes_clear(&dependents);
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) {
  return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edges, size_t *count) {
  if (count == NULL || (from == NULL) != (to == NULL) || (edges != NULL && from == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  size_t found = 0;
  for (size_t i = 0; i < graph->nodes.count; i++)
    for (size_t j = 0; j < graph->nodes.items[i]->after.count; j++, found++)
      if (from != NULL && found < *count) {
        from[found] = graph->nodes.items[i]->after.items[j];
        to[found] = graph->nodes.items[i];
        if (edges != NULL)
          memset(&edges[found], 0, sizeof edges[found]);
      }
  for (size_t i = found; from != NULL && i < *count; i++)
    from[i] = to[i] = NULL;
  if (from == NULL || *count > found)
    *count = found;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
  return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count) {
  (void)edges;
  if (count > 0 && (from == NULL || to == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = enter_graph(graph);
  if (result != CUDA_SUCCESS)
    return result;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    if (!gpusim_handle_is(from[i], HANDLE_GRAPH_NODE) ||
        !gpusim_handle_is(to[i], HANDLE_GRAPH_NODE) || from[i]->graph != graph ||
        to[i]->graph != graph || from[i] == to[i] || waits_for(to[i], from[i]))
      result = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    gpusim_nodes_add(&to[i]->after, from[i]);
  gpusim_unlock();
  return result;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}
