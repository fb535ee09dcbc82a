/* What the driver's own rooms share; nothing else includes it (the interpreter sees internal.h
   only).

   Two locks. gpusim_mutex protects contexts, streams, operations, events and captures; the memory
   lock (memory.c) protects the tables of blocks, reservations and handles. Order: gpusim_mutex,
   then the memory lock. No operation runs under either.

   An operation's life:

     submitted   in its stream and its hardware queue
     dispatched  dependencies done, first of its hardware queue, value reached
     running     after a seeded delay
     completed

   Only the head of a hardware queue may be dispatched, whichever stream it belongs to: a wait that
   isn't met holds up everything behind it. Dispatched operations of different streams run side by
   side. */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H
/* Old and per-thread-stream names are declared only for the driver itself; exported names are
 * exactly cuda.h's. */
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
#include "tests/gpusim/internal.h"
#include <pthread.h>
#include <stdatomic.h>

#define GPUSIM_EXPORT __attribute__((visibility("default")))
enum {
  GPUSIM_MAX_DEVICES = 16,
  GPUSIM_MAX_QUEUES = 128,
  GPUSIM_EXIT_DEADLOCK = 86,
  GPUSIM_EXIT_SETTINGS = 87
};

struct operation;
struct hardware_queue;
struct clock_cost;

/* ---- settings.c, report.c, error.c ---- */
/* Reads the environment once. Exits with GPUSIM_EXIT_SETTINGS on an unknown or unreadable GPUSIM_*
 * variable. */
void gpusim_settings_load(void);
/* Ends the process: what is wrong with a variable, and what to write instead. */
__attribute__((noreturn)) void gpusim_settings_refuse(const char *variable, const char *value,
                                                      const char *remedy);
/* By name, with or without CUDA_ERROR_, or number; CUDA_SUCCESS when there is none. */
CUresult gpusim_error_by_name(const char *);
/* machine.c: the machine's number of a device that this process sees; its UUID; the number by a bus
   address ("0000:01:00.0"), -1 for none. */
void gpusim_machine_configure(void);
int gpusim_machine_number(CUdevice);
void gpusim_machine_uuid(int number, unsigned char uuid[16]);
int gpusim_machine_by_bus(const char *);
/* calls.c, odd.c: what the switches mean for calls, and for drivers and machines. */
void gpusim_calls_configure(void);
void gpusim_odd_configure(void);
enum gpusim_oddity {
#define ODDITY(name, help) ODD_##name,
#include "oddities.def"
#undef ODDITY
};
bool gpusim_is_odd(enum gpusim_oddity);
int gpusim_driver_version(void);
bool gpusim_has_vmm(void);
/* Whether host memory may be made at a location. Takes gpusim_mutex. */
CUresult gpusim_host_location(const CUmemLocation *);
int gpusim_numa_node(void); /* of the devices; -1 when there is none */
bool gpusim_attribute_known(int attribute);
size_t gpusim_register_limit(void);
bool gpusim_copies_cross_memories(void);
void gpusim_report_start(void);
void gpusim_report_write(void);
/* Raises a counter that holds a maximum. */
void gpusim_count_peak(enum gpusim_counter, uint64_t value);
uint64_t gpusim_counter_value(enum gpusim_counter);
/* Sets a counter that is worked out anew. */
void gpusim_count_set(enum gpusim_counter, uint64_t value);
/* Zeroed memory, or the end of the process: a test can't go on without. */
void *gpusim_new(size_t bytes);
const char *gpusim_error_name(CUresult);

/* ---- handle.c: which pointers are live handles of which kind ---- */
enum gpusim_handle_kind {
  HANDLE_CONTEXT = 1,
  HANDLE_STREAM,
  HANDLE_EVENT,
  HANDLE_LOADED, /* CUmodule and CUlibrary */
  HANDLE_KERNEL, /* CUfunction and CUkernel */
  HANDLE_MEMORY, /* CUmemGenericAllocationHandle */
  HANDLE_POOL,
  HANDLE_GRAPH,
  HANDLE_GRAPH_NODE,
  HANDLE_GRAPH_EXEC,
  HANDLE_ARRAY
};
void gpusim_handle_add(const void *handle, enum gpusim_handle_kind, void *owner);
void gpusim_handle_remove(const void *handle);
bool gpusim_handle_is(const void *handle, enum gpusim_handle_kind);
void *gpusim_handle_owner(const void *handle, enum gpusim_handle_kind);

/* ---- process.c, object.c, device.c: process, contexts, devices ---- */
struct CUctx_st {
  CUcontext next;
  int device;
  bool primary;
  atomic_bool alive; /* written with gpusim_mutex held; once it is false nothing enters any more */
  bool ending;       /* no longer alive, and its work or contents are still there */
  unsigned flags;
  int retained; /* primary contexts only */
  uint64_t id;
  _Atomic int sticky; /* the CUresult that every further call answers */
  uint32_t peers;     /* devices whose cuMemAlloc memory this context's kernels may touch */
  size_t limits[CU_LIMIT_MAX];
  struct CUstream_st *legacy, *streams;
  struct CUstream_st *recent; /* blocking streams used since the legacy stream's last operation */
  /* operations not yet completed, in the order of submission */
  struct operation *first_pending, *last_pending;
  uint64_t submitted;
  int blocking_captures; /* captures on streams that the legacy stream synchronises with */
};
extern pthread_mutex_t gpusim_mutex;
void gpusim_lock(void);
void gpusim_unlock(void);

struct gpusim_thread {
  uint64_t id;
  int depth;
  CUcontext stack[64];
  bool in_host_function;
  CUstreamCaptureMode capture_mode;
};
struct gpusim_thread *gpusim_this_thread(void);

/* The checks each entry point begins with. ready: initialised, and not inside a host function.
   enter: a live current context without a sticky error. Both may wait for the driver's lock, so no
   other lock may be held. */
CUresult gpusim_ready(void);
bool gpusim_at_home(void); /* in the process that called cuInit, not in a child of it */
CUresult gpusim_ready_device(CUdevice);
CUresult gpusim_ready_vmm(void); /* and the machine has virtual memory management */
CUresult gpusim_enter(CUcontext *);
void gpusim_contexts_start(void);
CUcontext gpusim_current(void);
/* The primary context of a device, alive or not: what VMM mappings answer as their context. */
CUcontext gpusim_primary(int device);
/* Whether a live context of `device` enabled access to memory of `owner`; any lock or none. */
bool gpusim_peer_enabled(int device, int owner);
/* Walks all contexts, gpusim_mutex held: pass NULL to begin. */
CUcontext gpusim_next_context(CUcontext);
/* The first error stays; everything queued is dropped. gpusim_mutex held. */
void gpusim_fail(CUcontext, CUresult);

/* ---- driver_lock.c ---- */
/* With gpusim_mutex held, which waiting lets go of. Calls that are kept out wait in gpusim_ready. */
void gpusim_driver_hold(const char *call);
void gpusim_driver_let_go(void);
/* Without it. pass: waits while another thread holds the lock. settle: what calls do that need the
 * device quiet, where GPUSIM_DRIVER_LOCK asks for that. */
void gpusim_driver_pass(void);
void gpusim_driver_settle(CUcontext, const char *call);
void gpusim_driver_describe(void);

/* ---- memory.c: blocks (anything with bytes behind it) and the address space ---- */
enum gpusim_block_kind {
  BLOCK_DEVICE,     /* cuMemAlloc, pools */
  BLOCK_STATIC,     /* __device__ variables: every device may touch them */
  BLOCK_PINNED,     /* cuMemHostAlloc */
  BLOCK_REGISTERED, /* cuMemHostRegister */
  BLOCK_MANAGED,
  BLOCK_MAPPING /* cuMemMap; `handle` says whether on the device or on the host */
};
struct gpusim_span { /* first member of what lies in a table */
  uintptr_t low;
  size_t bytes;
};
struct gpusim_block {
  struct gpusim_span span;
  enum gpusim_block_kind kind;
  int device;
  CUcontext context; /* NULL for mappings: they outlive contexts */
  uint64_t id;
  size_t mapped_bytes; /* rounded to pages */
  unsigned flags;
  CUmemoryPool pool;
  /* mappings only */
  struct gpusim_handle *handle;
  uint32_t readable, writable; /* a bit per device */
  CUmemAccess_flags host_access;
};
struct gpusim_table {
  struct gpusim_span **items;
  size_t count, capacity;
};
/* Index of the first span that ends above `address`. */
size_t gpusim_table_position(const struct gpusim_table *, uintptr_t address);
struct gpusim_span *gpusim_table_find(const struct gpusim_table *, uintptr_t address);
bool gpusim_table_overlaps(const struct gpusim_table *, uintptr_t low, uintptr_t high);
void gpusim_table_add(struct gpusim_table *, struct gpusim_span *);
void gpusim_table_remove(struct gpusim_table *, struct gpusim_span *);

extern struct gpusim_table gpusim_blocks;
void gpusim_memory_lock_shared(void);
void gpusim_memory_lock(void);
void gpusim_memory_unlock(void);
/* Tells interpreters to drop cached bounds. Memory lock held. */
void gpusim_memory_changed(void);

void gpusim_region_start(void);
bool gpusim_region_contains(uintptr_t address);
/* Whatever was open there is gone, and its pages given back. */
bool gpusim_close_pages(void *at, size_t bytes);
/* A hole in the device address region, marked taken until given back; 0 when there is none. Memory
 * lock held. */
uintptr_t gpusim_address_take(size_t bytes, size_t alignment, uintptr_t hint);
struct gpusim_span *gpusim_address_taken(uintptr_t address);
void gpusim_address_give(uintptr_t low);

/* Counted use of a device's memory. charge: false when it doesn't fit. Memory lock held. */
bool gpusim_charge(int device, size_t bytes);
void gpusim_discharge(int device, size_t bytes);
size_t gpusim_used(int device);

CUresult gpusim_allocate(CUcontext, enum gpusim_block_kind, size_t bytes, unsigned flags,
                         CUmemoryPool, uintptr_t *address);
/* Frees the block that begins at `address` if its kind is in the set of bits; else INVALID_VALUE.
 */
CUresult gpusim_free(uintptr_t address, unsigned kinds);
void gpusim_free_context(CUcontext);
/* Host memory of the program that the device may touch from now on. */
CUresult gpusim_register(CUcontext, uintptr_t address, size_t bytes, unsigned flags);
/* The next CU_POINTER_ATTRIBUTE_BUFFER_ID. Memory lock held. */
uint64_t gpusim_block_number(void);
size_t gpusim_round_up(size_t value, size_t multiple);
/* Bytes that no program should ever take for data: what fresh memory is filled with under
 * GPUSIM_POISON. */
enum { GPUSIM_POISON_BYTE = 0xdb };

/* What an address range is to a copy. */
enum gpusim_place { PLACE_PAGEABLE, PLACE_HOST, PLACE_DEVICE };
/* INVALID_VALUE: a device address with nothing there, partly registered memory, or access not
 * granted to `device`. */
CUresult gpusim_place_of(int device, uintptr_t low, size_t bytes, bool write,
                         enum gpusim_place *place);
bool gpusim_block_allows(const struct gpusim_block *, int device, bool write);
bool gpusim_block_on_host(const struct gpusim_block *);

/* ---- physical.c ---- */
struct gpusim_handle {
  struct gpusim_handle *next_shared; /* among those with a file of their own */
  size_t bytes;
  CUmemAllocationProp properties;
  bool on_host, imported;
  int user_references, mappings;
  int fd; /* the shared arena, or its own when it may be exported */
  uint64_t offset;
};

/* Memory lock held for these. */
bool gpusim_location_on_host(const CUmemLocation *);
struct gpusim_handle *gpusim_handle_of(CUmemGenericAllocationHandle);
/* Frees the handle when neither the program nor a mapping holds it. */
void gpusim_handle_collect(struct gpusim_handle *);

/* ---- queue.c: operations ---- */
struct gpusim_capture;
/* Nodes of a graph, each once. */
struct gpusim_nodes {
  CUgraphNode *items;
  size_t count, capacity;
};
struct operation_kind {
  const char *name;
  bool capturable;                 /* it may be run more than once, from a graph */
  CUgraphNodeType node;            /* as which, if so */
  CUresult (*run)(void *argument); /* on a stream's thread, no lock held */
  bool (*reached)(void *argument); /* value waits only: may it go? */
  void (*drop)(void *argument);    /* frees the argument; NULL: nothing to free */
  bool (*touches)(void *argument, uintptr_t low, uintptr_t high); /* NULL: no memory */
  void (*describe)(void *argument, char *into, size_t bytes);     /* NULL: the name says it all */
  void (*cost)(void *argument, struct clock_cost *); /* for the clock; NULL: takes no time */
};
struct dependency {
  struct CUstream_st *stream;
  uint64_t ticket;
};
struct CUstream_st {
  CUstream next, next_recent; /* in its context; in the context's recent ones */
  CUcontext context;
  uint64_t id;
  unsigned flags;
  int priority;
  bool legacy, nonblocking, per_thread, stopping, started, recent;
  int references; /* the handle, its thread, dependencies on it, events recorded in it */
  uint64_t owner; /* thread of a per-thread stream; 0: free for the next thread */
  struct hardware_queue *queue;
  uint64_t submitted, completed; /* tickets */
  uint64_t legacy_seen;          /* ticket of the legacy stream that this one already waits for */
  struct operation *head, **tail;
  pthread_cond_t wake;            /* its thread: new work, or its turn in the hardware queue */
  pthread_cond_t ended;           /* whoever waits for its tickets */
  struct gpusim_capture *capture; /* NULL: not capturing */
  struct gpusim_nodes heads;      /* what the next captured operation waits for */
};
/* All with gpusim_mutex held. submit may let go of it while the hardware queue is full, and refuses
   what a stream or context that ended meanwhile can't take; a caller that looks at the stream
   afterwards holds it. It takes the argument over, also when it fails. `after` may be NULL. */
CUresult gpusim_submit(struct CUstream_st *, const struct operation_kind *, void *argument,
                       const struct dependency *after);
void gpusim_wait_ticket(struct CUstream_st *, uint64_t ticket);
CUresult gpusim_drain(struct CUstream_st *);
/* What was submitted until now. For the end of a context nothing can be submitted any more. */
void gpusim_drain_context(CUcontext);
bool gpusim_done(const struct dependency *);
void gpusim_stream_hold(struct CUstream_st *);
void gpusim_stream_drop(struct CUstream_st *);
struct hardware_queue *gpusim_queue_of(int device, uint64_t stream_id);
/* Everyone who waits looks again: a context failed or a stream was closed. */
void gpusim_wake_all(void);
/* A violation, a sticky error for the work's context and false when queued or running work names
 * [low, high). */
bool gpusim_unused(uintptr_t low, uintptr_t high, const char *call);
/* splitmix64: where seeded choices come from. */
uint64_t gpusim_scramble(uint64_t);

/* ---- stream.c, event.c, value.c, capture.c, graph_launch.c ---- */
struct CUstream_st *gpusim_stream_open(CUcontext, unsigned flags, int priority);
/* On success gpusim_mutex is held and the stream is live, its context too. `submit` also refuses
   what a capture forbids to new work; `wait` refuses capturing streams altogether. */
CUresult gpusim_enter_stream(CUstream handle, struct CUstream_st **);
CUresult gpusim_enter_submit(CUstream handle, struct CUstream_st **);
CUresult gpusim_enter_wait(CUstream handle, struct CUstream_st **);
void gpusim_streams_close(CUcontext);
/* Submits and lets go of gpusim_mutex. */
CUresult gpusim_submit_leave(struct CUstream_st *, const struct operation_kind *, void *argument);
/* With gpusim_mutex held. refuses: the legacy stream beside a blocking capture, and captures that
   are no longer valid. forbids: the same, and any capture, which it invalidates. */
CUresult gpusim_capture_refuses(struct CUstream_st *);
CUresult gpusim_capture_forbids(struct CUstream_st *);
/* Whether a word satisfies a value wait: CUstreamWaitValue_flags. */
bool gpusim_value_reached(uint64_t word, uint64_t value, unsigned flags, bool wide);
void gpusim_capture_forget(struct CUstream_st *);
/* Makes a node of an operation submitted to a capturing stream; takes the argument over. */
CUresult gpusim_capture_add(struct CUstream_st *, const struct operation_kind *, void *argument);
/* What an event recorded in a capture stands for, and what waiting for it does to a stream. */
void gpusim_capture_mark(struct CUstream_st *, struct gpusim_capture **, struct gpusim_nodes *);
void gpusim_capture_unmark(struct gpusim_capture **, struct gpusim_nodes *);
CUresult gpusim_capture_join(struct CUstream_st *, struct gpusim_capture *,
                             const struct gpusim_nodes *);
void gpusim_capture_invalidate(struct gpusim_capture *);
/* Refuses calls that cuda.h names potentially unsafe while a capture forbids them to this thread.
   Takes gpusim_mutex itself. */
CUresult gpusim_capture_unsafe(void);
/* Operations of event nodes: `record` in a stream, or what a wait waits for; NULL when the event
   was never recorded. The event is held until the argument is dropped. */
const struct operation_kind *gpusim_event_operation(CUevent, bool record);
void gpusim_event_recorded(CUevent, struct CUstream_st *);
const struct dependency *gpusim_event_last(CUevent);

/* Arguments of operations from the parameters of graph nodes; gpusim_mutex held. On success *kind
   and *argument are what gpusim_submit takes. */
CUresult gpusim_launch_node(const CUDA_KERNEL_NODE_PARAMS_v2 *, const struct operation_kind **kind,
                            void **argument);
/* Valid as long as the argument. */
void gpusim_launch_parameters(void *argument, CUDA_KERNEL_NODE_PARAMS_v2 *);
bool gpusim_launch_alive(const void *argument);
CUresult gpusim_copy_node(const CUDA_MEMCPY3D *, CUcontext, const struct operation_kind **kind,
                          void **argument);
CUresult gpusim_fill_node(const CUDA_MEMSET_NODE_PARAMS *, CUcontext,
                          const struct operation_kind **kind, void **argument);
CUresult gpusim_host_node(const CUDA_HOST_NODE_PARAMS *, const struct operation_kind **kind,
                          void **argument);
CUresult gpusim_value_node(const CUstreamBatchMemOpParams *, CUcontext,
                           const struct operation_kind **kind, void **argument);
/* Replays a graph launch that was captured as a child graph. */
CUresult gpusim_capture_child(struct CUstream_st *, CUgraph);

/* ---- module.c ---- */
void gpusim_modules_free(CUcontext);
/* On success gpusim_mutex is held: the kernel can't go until the caller lets go of it. */
CUresult gpusim_enter_kernel(const void *handle, struct gpusim_kernel **);
int gpusim_kernel_dynamic_limit(const struct gpusim_kernel *);

/* ---- array.c: where its first byte lies, and its rows; 0: no array ---- */
uintptr_t gpusim_array(CUarray, size_t *pitch, size_t *rows);

/* ---- copy.c: what the per-thread-stream names call with a stream of their own; `wait`: the
 * synchronous form ---- */
CUresult gpusim_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream);
CUresult gpusim_copy_peer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                          CUstream, bool wait);
CUresult gpusim_copy_2d(const CUDA_MEMCPY2D *, CUstream, bool wait);
CUresult gpusim_copy_3d(const CUDA_MEMCPY3D *, CUstream, bool wait);
CUresult gpusim_fill(CUdeviceptr to, size_t pitch, int element_bytes, uint32_t value,
                     size_t elements, size_t height, CUstream, bool wait);
/* ---- pool.c ---- */
/* Whether cuMemPoolSetAccess gave the pool's memory to a device; false for NULL. */
bool gpusim_pool_allows(CUmemoryPool, int device);
/* The pool's bytes in use, with every allocation of it and every free. Memory lock held. */
void gpusim_pool_taken(CUmemoryPool, size_t bytes);
void gpusim_pool_returned(CUmemoryPool, size_t bytes);
#endif
