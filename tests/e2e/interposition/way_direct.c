/* A program or, with a name for its function, a library that is linked against the driver and uses
   it by name. Compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM it means the per-thread forms. */
#include "way.h"

#ifndef USE
#define USE main
#endif
int USE(void);
int USE(void) {
  return way_use_linked();
}
