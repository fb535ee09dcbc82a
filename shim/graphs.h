/* Which ranges graphs hold. A copy node may keep the kind of memory it was recorded with, and a graph
   may be launched where no hook sees it; so what a capture or a node names stays where it is, on the
   device or on the host, until every graph that names it is gone.

     open capture --end--> graph --instantiate, clone, add as child--> executable, copy, parent

   Each of these is a holder with a list of ranges, and hands a copy of its list on. A graph whose
   beginning was not seen (a conditional node's body, a child's own handle) has no list: what is added
   to it stays for good.
   Lock order: the table of ranges, then this room's own mutex; no driver call under either. */
#ifndef OFFLOAD_GRAPHS_H
#define OFFLOAD_GRAPHS_H
#include "range.h"
#include <cuda.h>

enum graph_kind { GRAPH_CAPTURES, GRAPH_TEMPLATE, GRAPH_EXECUTABLE };

/* All open captures, a CUgraph, or a CUgraphExec. */
struct graph_holder {
  enum graph_kind kind;
  const void *handle;
};
#define GRAPHS_CAPTURES ((struct graph_holder){GRAPH_CAPTURES, NULL})
#define GRAPHS_TEMPLATE(graph) ((struct graph_holder){GRAPH_TEMPLATE, (graph)})
#define GRAPHS_EXECUTABLE(exec) ((struct graph_holder){GRAPH_EXECUTABLE, (exec)})

/* The holder names this range from now on. Under the table's lock. */
void graphs_hold(struct graph_holder, struct range *);

/* The same by address, which may be in no range. Takes the table's lock. What of the range is on drives is brought in; another
   answer than CUDA_SUCCESS: it isn't. */
CUresult graphs_hold_address(struct graph_holder, uintptr_t address);

/* A stream captures from now on, into `target` or (NULL) a graph of its own; and no longer. `graph`:
   what came of it, or NULL. `context`: the stream's. */
void graphs_capture_began(CUstream stream, CUcontext context, CUgraph target);
void graphs_capture_ended(CUstream stream, CUgraph graph);

/* The captures of a context that ended with it; their number. */
unsigned graphs_forget_captures(CUcontext context);

/* A holder begins, empty; takes over a copy of another's list; has that list instead of its own;
   ends. */
void graphs_made(struct graph_holder);
void graphs_inherit(struct graph_holder to, struct graph_holder from);
void graphs_replace(struct graph_holder to, struct graph_holder from);
void graphs_gone(struct graph_holder);
#endif
