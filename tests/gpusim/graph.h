/* Graphs and captures, shared by graph.c (structure), graph_node.c (nodes made by hand),
   graph_launch.c (executable graphs) and capture.c. Everything here is under gpusim_mutex.

   A node's work is a payload: a kind of operation and its argument, shared by the graph and every
   executable graph made of it, and never changed once made. New parameters are a new payload. */
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H
#include "tests/gpusim/driver.h"

struct gpusim_payload {
  int references;
  const struct operation_kind *kind;
  void *argument;
};
struct CUgraphNode_st {
  CUgraph graph;
  CUgraphNodeType type;
  size_t place;                   /* in its graph, in order of creation */
  struct gpusim_payload *payload; /* NULL: nothing to do, or a child does it */
  CUgraph child;                  /* child graphs and batches of value operations; its own */
  struct gpusim_nodes after;      /* what it waits for */
};
struct CUgraph_st {
  struct gpusim_nodes nodes;
  bool inner; /* of a child node, or being captured: not the program's to destroy */
};

struct gpusim_payload *gpusim_payload_new(const struct operation_kind *, void *argument);
void gpusim_payload_drop(struct gpusim_payload *); /* NULL: nothing */

void gpusim_nodes_add(struct gpusim_nodes *, CUgraphNode); /* once each */
void gpusim_nodes_clear(struct gpusim_nodes *);

CUgraph gpusim_graph_new(void);
CUgraph gpusim_graph_copy(CUgraph);
void gpusim_graph_free(CUgraph);
/* The payload and the child become the node's. */
CUgraphNode gpusim_graph_append(CUgraph, CUgraphNodeType, struct gpusim_payload *, CUgraph child,
                                const CUgraphNode *after, size_t count);

struct gpusim_capture {
  struct gpusim_capture *next; /* among the open ones */
  int references;              /* streams in it, events recorded in it */
  uint64_t id, thread;
  CUstreamCaptureMode mode;
  struct CUstream_st *origin;
  CUgraph graph;
  bool given_graph; /* begun with cuStreamBeginCaptureToGraph */
  bool invalid, ended;
};
#endif
