/* Numbers of every type that Adam kernels take, ordinary ones and those that ordinary ones hide, for test programs on the driver
   API. */
#ifndef TESTS_ADAM_NUMBERS_H
#define TESTS_ADAM_NUMBERS_H
#include "tests/e2e/adam_list.h"

/* A number as the kernel's parameters have it; those of half precision are cut off. */
static inline void adam_store(const struct adam_kernel *kernel, unsigned char *to, float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  const uint32_t exponent = bits >> 23 & 255, sign = bits >> 16 & 0x8000;
  const uint16_t half =
      (uint16_t)(exponent < 113 ? sign : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff));
  const uint16_t brain = (uint16_t)(bits >> 16);
  const double wide = number;
  switch (kernel->type) {
  case ADAM_FLOAT:
    memcpy(to, &number, 4);
    break;
  case ADAM_DOUBLE:
    memcpy(to, &wide, 8);
    break;
  case ADAM_HALF:
    memcpy(to, &half, 2);
    break;
  case ADAM_BFLOAT16:
    memcpy(to, &brain, 2);
  }
}

enum { ADAM_HOSTILE = 12 }; /* kinds */

/* What a type's numbers have that ordinary ones don't. NaN are the GPU's own; of doubles, whose NaN keep
   their bits, infinities make them. */
static inline bool adam_hostile(const struct adam_kernel *kernel, unsigned char *to,
                                uint64_t random, size_t met[ADAM_HOSTILE]) {
  static const uint32_t floats[] = {0,          0x80000000, 1,          0x807fffff,
                                    0x00800000, 0x7f7fffff, 0x7f800000, 0xff800000,
                                    0x7fffffff, 0x60000000, 0x1e3ce508, 0xdf000000};
  static const uint16_t halves[] = {0,      0x8000, 1,      0x83ff, 0x0400, 0x7bff,
                                    0x7c00, 0xfc00, 0x7fff, 0x5800, 0x0c00, 0xf000};
  static const uint64_t doubles[] = {0,
                                     UINT64_C(1) << 63,
                                     1,
                                     0x800fffffffffffff,
                                     0x0010000000000000,
                                     0x7fefffffffffffff,
                                     0x7ff0000000000000,
                                     0xfff0000000000000,
                                     0x5ff0000000000000,
                                     0x1ff0000000000000,
                                     0xc3e0000000000000,
                                     0x3c00000000000000};
  const unsigned which = (unsigned)(random >> 8) % ADAM_HOSTILE;
  if (random % 8 != 0)
    return false;
  met[which]++;
  const uint16_t brain = (uint16_t)(floats[which] >> 16);
  const void *from[] = {[ADAM_FLOAT] = &floats[which],
                        [ADAM_DOUBLE] = &doubles[which],
                        [ADAM_HALF] = &halves[which],
                        [ADAM_BFLOAT16] = &brain};
  memcpy(to, from[kernel->type], kernel->element_bytes[0]);
  return true;
}
#endif
