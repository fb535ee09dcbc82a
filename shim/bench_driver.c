/* A libcuda.so.1 that does nothing, for bench_calls.c: every name of hooks.def, answering success. What must
   have an answer has it in bench_answers.c, whose definitions go before these. */
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  __attribute__((weak, visibility("default"))) int symbol(void);                                   \
  int symbol(void) {                                                                               \
    return 0;                                                                                      \
  }
#define USE(symbol, base, version) HOOK(symbol, base, version, 0, (), ())
#include "hooks.def"
