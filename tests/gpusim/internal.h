/* The agreed boundary between the rooms of the simulated driver. Nothing here is public.

   Device addresses lie in one reserved region that the CPU can't touch (PROT_NONE); the bytes of
   device address `a` are at gpusim_backing(a). Host-backed VMM pieces keep their address, are
   closed to the CPU until access is set, and the simulator itself always reads them through
   gpusim_backing too.

   Rooms of the driver (they share driver.h): process.c, object.c (contexts), device.c, handle.c
   (which handles are live), memory.c (blocks, addresses, accounting), allocation.c, static.c
   (__device__ variables), pool.c, physical.c and vmm.c (VMM handles; mappings and access), queue.c
   (operations, hardware queues, delays), stream.c, event.c, value.c, capture.c, copy.c, module.c,
   launch.c, per_thread.c, clock_*.c (a real machine's time), settings.c,
   report.c, error.c. Rooms of the interpreter: image.c (fatbin,
   cubin parameter info), ptx_*.c. Between them: lookup.c (cuGetProcAddress from the committed
   table). */
#ifndef GPUSIM_INTERNAL_H
#define GPUSIM_INTERNAL_H
#include "gpusim.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- settings (settings.c): one field per line of switches.def, read once in cuInit ---- */
typedef uint64_t bytes_t;
typedef const char *text;
struct gpusim_settings {
#define SWITCH(field, NAME, type, initial, help) type field;
#include "switches.def"
#undef SWITCH
};
extern struct gpusim_settings gpusim_settings;

/* ---- memory (memory.c, vmm.c) ---- */

/* Where the simulator reads and writes the bytes of `address`. Valid for device, host-backed and
 * host addresses. */
uint8_t *gpusim_backing(uintptr_t address);

/* The allocation or VMM mapping, accessible to kernels of `device`, that contains `address`: its
   half-open bounds. False when nothing is mapped there or access was not granted to that device
   (then the launch fails with 700). `writable` tells PROT_READ from PROT_READWRITE. May be called
   from any stream thread. */
bool gpusim_memory_bounds(int device, uintptr_t address, uintptr_t *low, uintptr_t *high,
                          bool *writable);

/* Whether the bytes at `address` are in host memory. */
bool gpusim_memory_on_host(uintptr_t address);

/* Changes whenever any mapping, access or allocation changes; interpreters drop cached bounds when
 * it moved. */
uint64_t gpusim_memory_generation(void);

/* Device memory for __device__ variables of an image; device address, never freed before the
 * context dies. */
uintptr_t gpusim_memory_static(size_t bytes, size_t alignment);
void gpusim_memory_static_free(uintptr_t address);

/* ---- images (image.c) ---- */
struct gpusim_parameter {
  uint32_t offset, bytes;
};
struct ptx_function;
struct gpusim_kernel {
  struct gpusim_kernel *next, *hash_next;
  struct gpusim_image *image;
  char *name; /* mangled */
  int parameter_count;
  struct gpusim_parameter *parameters;
  uint32_t parameter_bytes, static_shared_bytes, max_threads;
  int32_t max_dynamic_shared_bytes;
  uint32_t architecture; /* that its PTX or machine code was made for: 90 = 9.0 */
  bool from_ptx;
  struct ptx_function *ptx;
};
struct gpusim_global {
  struct gpusim_global *next;
  char *name;
  size_t bytes;
  uintptr_t address; /* device address */
};
struct gpusim_image;

/* Parses PTX text, a cubin, a fatbin or nvcc's fatbin wrapper. NULL with *error = a CUresult on
 * failure. */
struct gpusim_image *gpusim_image_load(const void *code, int *error);
/* Whoever loaded it has a reference, and so has each launch of a kernel, queued or a graph's: code goes
   when the last is dropped. gpusim_mutex held, but by the one that loads. */
void gpusim_image_hold(struct gpusim_image *);
void gpusim_image_free(struct gpusim_image *);
struct gpusim_kernel *gpusim_image_kernel(struct gpusim_image *, const char *name);
struct gpusim_global *gpusim_image_global(struct gpusim_image *, const char *name);
/* First kernel of the image; walk with ->next (cuModuleEnumerateFunctions,
 * cuLibraryEnumerateKernels). */
struct gpusim_kernel *gpusim_image_kernels(struct gpusim_image *);
/* Those known so far: none in an image that was never looked into. For unloading. */
struct gpusim_kernel *gpusim_image_known_kernels(struct gpusim_image *);

/* ---- launches (ptx_run.c) ---- */

/* What a launch moved and did, for the clock; bytes are those that threads asked for, as if there
 * were no cache, but once where neighbouring lanes read one place. */
struct gpusim_traffic {
  uint64_t device_read, device_written, host_read, host_written, instructions;
  bool measured; /* the engine counted */
};
struct gpusim_launch {
  uint32_t grid[3], block[3];
  uint32_t dynamic_shared_bytes;
  int device;
  const char *name;
  struct gpusim_traffic *traffic; /* NULL, or where the engine tells what it did */
};
/* Runs all blocks of a kernel on a copy of its parameters. 0 or a CUresult that becomes sticky;
   `error` then says block, thread, address and PTX line. */
int gpusim_kernel_run(struct gpusim_kernel *, const uint8_t *parameters,
                      const struct gpusim_launch *, char *error, size_t error_bytes);

/* UNSUPPORTED_PTX_VERSION for PTX text newer than the driver; 0 for all else. NULL: whether there
 * is PTX that it would refuse. */
int gpusim_ptx_acceptable_version(const char *ptx);

/* ---- names (lookup.c) ---- */

/* The function that cuGetProcAddress answers for a base name: the newest one not newer than
   `version`, in its per-thread-stream form where asked for and existing. *symbol (may be NULL) is
   its full name. NULL when there is none; then *symbol names the oldest form that is newer than
   `version`, or is NULL for an unknown name. */
void *gpusim_lookup(const char *base, int version, int per_thread, const char **symbol);

/* ---- the run report (report.c): counters from counters.def, written as JSON to GPUSIM_REPORT at
 * exit ---- */
enum gpusim_counter {
#define COUNTER(name, help) GPUSIM_COUNT_##name,
#include "counters.def"
#undef COUNTER
  GPUSIM_COUNTERS
};
void gpusim_count(enum gpusim_counter, uint64_t add);
/* Prints to stderr with the prefix "gpusim: " when GPUSIM_TRACE >= level. */
void gpusim_trace(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A broken promise of the caller (unmap under queued work, ...): counted, printed always, reported
 * as an error code. */
void gpusim_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif
