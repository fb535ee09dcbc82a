/* A profiler's library as NVTX loads it (NVTX_INJECTION64_PATH): counts the ranges of each thread, and tells at the process's end how many
   of each name began, and whether all ended. NVTX_COUNTED names the file. The layout of the table is the toolkit's nvtxTypes.h. */
#define _GNU_SOURCE
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMES = 256, NAME_BYTES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  char name[NAME_BYTES];
  unsigned count;
} names[NAMES];
static unsigned pushed, popped, astray, deepest;
static _Thread_local unsigned depth;

static int NVTX_API push(const char *message) {
  pthread_mutex_lock(&lock);
  unsigned i = 0;
  while (i < NAMES - 1 && names[i].count && strcmp(names[i].name, message) != 0)
    i++;
  snprintf(names[i].name, sizeof names[i].name, "%s", message);
  names[i].count++;
  pushed++;
  if (++depth > deepest)
    deepest = depth;
  pthread_mutex_unlock(&lock);
  return (int)depth - 1;
}

static int NVTX_API pop(void) {
  pthread_mutex_lock(&lock);
  if (depth)
    depth--, popped++;
  else
    astray++;
  pthread_mutex_unlock(&lock);
  return (int)depth;
}

static void tell(void) {
  FILE *file = getenv("NVTX_COUNTED") ? fopen(getenv("NVTX_COUNTED"), "w") : NULL;
  if (!file)
    return;
  fprintf(file, "pushed %u popped %u astray %u deepest %u\n", pushed, popped, astray, deepest);
  for (unsigned i = 0; i < NAMES && names[i].count; i++)
    fprintf(file, "%u %s\n", names[i].count, names[i].name);
  fclose(file);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  unsigned size = 0;
  NvtxFunctionTable table = NULL;
  const NvtxExportTableCallbacks *callbacks = get ? get(NVTX_ETID_CALLBACKS) : NULL;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return atexit(tell) == 0;
}
