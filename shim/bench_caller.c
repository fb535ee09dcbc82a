/* What it costs to tell who asks for an allocation (caller.h): the look-up alone, with this library
   linked into the program. "direct": the wrapper's return address answers, as for a program that calls
   the driver itself. "walk": the stack is walked, as behind a runtime, at several depths; every frame
   of this program counts as the library's own, so that the walk is the longest there is. The first
   walk, which asks the loader about every frame, has a row of its own. Fastest of several turns. */
#define _GNU_SOURCE
#include "caller.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOKUPS = 2000, TURNS = 15 };

static double now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static double look_up(void *address, int times) {
  volatile bool allowed = false;
  const double start = now_ns();
  for (int i = 0; i < times; i++)
    allowed = caller_allowed(address);
  (void)allowed;
  return (now_ns() - start) / times;
}

/* The sum after the call keeps the frame on the stack. */
static double __attribute__((noinline)) deeper(int depth, int times) {
  volatile double ns = depth > 1 ? deeper(depth - 1, times) : look_up(NULL, times);
  return ns + 0.0;
}

static double fastest(int depth) {
  double least = 1e12;
  for (int turn = 0; turn < TURNS; turn++) {
    const double ns = depth ? deeper(depth, LOOKUPS) : look_up((void *)(uintptr_t)&malloc, LOOKUPS);
    least = ns < least ? ns : least;
  }
  return least;
}

int main(void) {
  static const int depths[] = {1, 4, 16, 64};
  printf("{\"caller_lookup_ns\": [\n {\"way\": \"first walk\", \"depth\": 1, \"ns\": %.0f},\n",
         deeper(1, 1));
  printf(" {\"way\": \"direct\", \"depth\": 0, \"ns\": %.1f}", fastest(0));
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
    printf(",\n {\"way\": \"walk\", \"depth\": %d, \"ns\": %.0f}", depths[i], fastest(depths[i]));
  printf("]}\n");
  return 0;
}
