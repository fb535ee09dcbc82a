/* Kernels of every way in which parameters are laid out, for shim_image.c, which has the same structs. */
#include "images.h"

__global__ void image_nothing() {}
__global__ void image_plain(float *p, int n, double d, bool b, short s) {
  if (threadIdx.x < n)
    p[threadIdx.x] = (float)d + b + s;
}
__global__ void image_by_value(struct wide w, char c, float f) {
  w.list[0][0] = c + f + w.n;
}
__global__ void image_large(struct huge h, unsigned char last) {
  h.pointer[0] = h.bytes[last];
}
