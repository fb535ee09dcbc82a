/* See mark.h. The toolkit's own headers would look for the tool's entry through dlsym, which is ours to stand before, and reserve 16 KiB of
   stack; so the library is loaded here, and handed to them as a tool that was linked statically (their nvtxInit.h). */
#define _GNU_SOURCE
#include "mark.h"
#include "../policy/report.h"
#include "cancel.h"
#include "dlsym.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NVTX_SUPPORT_DYNAMIC_INJECTION_LIBRARY 0
#define NVTX_SUPPORT_STATIC_INJECTION_LIBRARY 1
#include <nvtx3/nvToolsExt.h>

enum { NAME_BYTES = 96 };

_Atomic bool mark_attached;
static _Atomic bool started;

static void attach(const char *path) {
  void *tool = dlopen(path, RTLD_LAZY);
  InitializeInjectionNvtx2_fnptr = tool ? (NvtxInitializeInjectionNvtxFunc_t)(uintptr_t)dlsym_real(
                                              tool, "InitializeInjectionNvtx2")
                                        : NULL;
  if (!InitializeInjectionNvtx2_fnptr) {
    const char *error = tool ? NULL : dlerror();
    report_reason("no NVTX ranges: the library that NVTX_INJECTION64_PATH names (%.160s) can't be "
                  "used (%.160s)",
                  path, error ? error : "it has no InitializeInjectionNvtx2");
    return;
  }
  nvtxInitialize(NULL);
  /* release: whoever sees it sees what the tool has put into the table */
  atomic_store_explicit(&mark_attached, true, memory_order_release);
}

void mark_start(void) {
  if (atomic_load_explicit(&started, memory_order_relaxed) || atomic_exchange(&started, true))
    return;
  const char *path = getenv("NVTX_INJECTION64_PATH");
  if (!path || !*path)
    return;
  const int cancel = cancel_hold();
  attach(path);
  cancel_allow(cancel);
}

bool mark_push(const char *format, ...) {
  char name[NAME_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(name, sizeof name, format, arguments);
  va_end(arguments);
  nvtxRangePushA(name);
  return true;
}

void mark_pop(void) {
  nvtxRangePop();
}
