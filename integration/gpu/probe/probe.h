/* What the probes share. A probe asks the driver a question whose answer the library relies on; it
   runs in a process of its own, which main.c starts and watches, and tells what it finds as it
   goes: a probe that crashes or hangs leaves what it had found until then.

   main.c      the command line, the child processes, the JSON
   report.c    facts and expectations, told by the child
   driver.c    the driver's functions (driver.def), the device, the kernels (kernels.ptx)
   memory.c    pieces: reservations, handles, mappings, access
   gate.c      words that hold a stream back, and the clock
   others      a probe each (probes.def)

   Nothing here links CUDA; the driver is opened by name. All functions but main.c's are for the
   child's one thread. */
#ifndef GPU_PROBE_H
#define GPU_PROBE_H
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

/* ---- report.c ---- */
/* Where the child's lines go; called once, by main.c. */
void report_to(int to);
/* A fact is named once: letters, digits and underscores. Units are in the name. */
__attribute__((format(printf, 2, 3))) void fact_text(const char *key, const char *format, ...);
void fact_number(const char *key, double value);
void fact_count(const char *key, uint64_t value);
void fact_signed(const char *key, int64_t value);
void fact_bool(const char *key, bool value);
/* The error's name; "not supported by this driver" where the driver lacks the call. */
void fact_result(const char *key, CUresult);
/* A key that is put together; lives until 15 further ones were made. */
__attribute__((format(printf, 1, 2))) const char *named(const char *format, ...);
/* What the library relies on: one that doesn't hold makes the probe fail, and the probe goes on. */
__attribute__((format(printf, 2, 3))) bool expect(bool held, const char *sentence, ...);
/* What is being done, for the report on a probe that doesn't come back. */
void step(const char *what);
/* Ends the probe: it can't go on. */
__attribute__((format(printf, 1, 2), noreturn)) void give_up(const char *format, ...);
__attribute__((noreturn)) void call_failed(CUresult, const char *call, const char *file, int line);
static inline void must_succeed(CUresult result, const char *call, const char *file, int line) {
  if (result != CUDA_SUCCESS)
    call_failed(result, call, file, line);
}
const char *result_name(CUresult);
void report_simulated(void);
void report_done(void);

/* ---- driver.c ---- */
struct driver {
#define CALL(symbol) __typeof__(&symbol) symbol;
#include "driver.def"
#undef CALL
};
extern struct driver cu;
/* A call that the driver lacks answers NOT_SUPPORTED. */
#define CALL_CU(symbol, ...) (cu.symbol != NULL ? cu.symbol(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED)
/* For calls that only prepare a question: a failure ends the probe. */
#define MUST(symbol, ...) must_succeed(CALL_CU(symbol, __VA_ARGS__), #symbol, __FILE__, __LINE__)
/* Whether an answer says that the call doesn't exist, rather than that it failed. */
bool unsupported(CUresult);
/* The driver's own function of that name, NULL when it has none. */
void *driver_symbol(const char *name);

struct machine {
  CUdevice device;
  CUcontext context;
  CUstream stream; /* non-blocking */
  bool simulated;
  int multiprocessors, numa_node; /* of the device; -1: unknown */
  CUmemLocation host;             /* where host handles can be made, once host_available said so */
  size_t granularity;             /* of pieces: the larger of the device's and the host's */
  CUdeviceptr errors;             /* a 64-bit word on the device, for kernels that count */
};
extern struct machine machine;
/* Opens the driver only. */
void open_driver(void);
/* Opens the driver, makes device 0 and its primary context current, loads the kernels. */
void start(void);
/* The kernels' text, for probes that load it their own way. */
const char *kernel_text(void);
CUfunction kernel(const char *name);
int device_attribute(CUdevice_attribute);
/* Blocks for a grid-stride kernel over `elements`; 256 threads each. */
unsigned blocks_for(uint64_t elements);
enum { THREADS = 256 };
CUresult launch(CUfunction, unsigned blocks, unsigned threads, CUstream, void **parameters);
/* word[i] = seed + i * stride, for `words` 32-bit words, by a kernel, in stream order. */
CUresult fill(CUdeviceptr, uint64_t words, uint32_t seed, uint32_t stride, CUstream);
/* How many words differ from that, asked of a kernel; waits for the stream. */
uint64_t mismatches(CUdeviceptr, uint64_t words, uint32_t seed, uint32_t stride, CUstream);
/* The same on memory that the CPU may touch. */
void fill_here(uint32_t *at, uint64_t words, uint32_t seed, uint32_t stride);
uint64_t mismatches_here(const uint32_t *at, uint64_t words, uint32_t seed, uint32_t stride);

/* ---- memory.c ---- */
enum place { ON_DEVICE, ON_HOST };
enum { FOR_DEVICE = 1, FOR_HOST = 2, FOR_BOTH = 3 };
/* Finds where host handles can be made (HOST_NUMA on the device's node, HOST else) and the piece
   size; without any the probe ends with the reason. */
void need_host(void);
CUmemAllocationProp properties_of(enum place);
CUresult create(enum place, size_t bytes, CUmemGenericAllocationHandle *);
CUdeviceptr reserve(size_t bytes);
/* Offset 0; no access. */
CUresult map(CUdeviceptr, size_t bytes, CUmemGenericAllocationHandle);
CUresult grant(CUdeviceptr, size_t bytes, int to_whom);
/* Creates, maps and grants: all of it or the end of the probe. Host pieces are opened to both. */
CUmemGenericAllocationHandle put(CUdeviceptr, size_t bytes, enum place);
void take_away(CUdeviceptr, size_t bytes, CUmemGenericAllocationHandle);
/* Exchanges what lies behind an address for memory in another place with the same content, as the
   library does: new handle elsewhere, copy, unmap, map, access. Returns the new handle, the old one
   is released. */
CUmemGenericAllocationHandle move(CUdeviceptr, size_t bytes, CUmemGenericAllocationHandle old,
                                  enum place to);
/* Whether a load, or a store, of the CPU at this address ends without a fault. */
bool cpu_can_load(CUdeviceptr);
bool cpu_can_store(CUdeviceptr);
/* Page-locked memory of the ordinary kind. */
void *host_alloc(size_t bytes);

/* ---- gate.c ---- */
double now_us(void);
void pause_ms(double ms);
/* Spins until the word is at least `value` (cyclically); false after `ms`. */
bool word_reaches(const uint32_t *word, uint32_t value, double ms);
double median(double *values, size_t count); /* sorts them */
/* Sets a word in `ms` from another thread, which calls nothing of CUDA. */
struct opener {
  uint32_t *word;
  double ms;
  unsigned long thread;
};
void opener_start(struct opener *);
void opener_join(struct opener *);
/* Whether a call returns only after what the gate holds back was let go: the stream (or a kernel,
   if `by_kernel`) waits 60 ms for a word that another thread sets. A call may merely be late: ask
   twice. `result` is the call's. */
typedef CUresult (*asked_call)(void *argument);
bool waits_for_work(CUstream, bool by_kernel, asked_call, void *argument, CUresult *result);

/* ---- the probes ---- */
#define PROBE(name, id, question, rule) void probe_##name(void);
#include "probes.def"
#undef PROBE
#endif
