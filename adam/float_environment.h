/* The floating-point environment of every computation here: round to nearest, denormals kept, no
   traps, NaN propagated. A thread inherits its creator's settings, and loading a library built with
   -ffast-math sets flush-to-zero in the loading thread; so each thread sets them at each step and
   puts back what it found. Between the two calls only functions of other files may compute: a
   compiler may move arithmetic across them. */
#ifndef OFFLOAD_ADAM_FLOAT_ENVIRONMENT_H
#define OFFLOAD_ADAM_FLOAT_ENVIRONMENT_H
#include <stdint.h>
#if defined __x86_64__
#include <xmmintrin.h>

typedef unsigned int float_environment;
static inline float_environment float_environment_enter(void) {
  const float_environment found = _mm_getcsr();
  _mm_setcsr(0x1f80); /* all exceptions masked, flags clear, nearest, no FTZ, no DAZ */
  return found;
}
static inline void float_environment_leave(float_environment found) {
  _mm_setcsr(found);
}
#elif defined __aarch64__
typedef uint64_t float_environment;
static inline float_environment float_environment_enter(void) {
  float_environment found;
  __asm__ volatile("mrs %0, fpcr" : "=r"(found)::"memory");
  __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
  return found;
}
static inline void float_environment_leave(float_environment found) {
  __asm__ volatile("msr fpcr, %0" ::"r"(found) : "memory");
}
#else
#error "liboffload is built for x86-64 and aarch64"
#endif
#endif
