// Kernels whose names say nothing: an Adam step, of one tensor, of one in bf16, and of a list passed by value; a step with momentum; and what
// works on as many tensors of one size and is no optimizer.
#include "unknown.h"

#define AT                                                                                         \
  const int i = blockIdx.x * blockDim.x + threadIdx.x;                                             \
  if (i >= n)                                                                                      \
  return

static __device__ float moved(float p, float g, float *m, float *v) {
  *m += 0.1f * (g - *m);
  *v += 0.001f * (g * g - *v);
  return p - 0.01f * *m / (sqrtf(*v) + 1e-8f);
}

extern "C" __global__ void lattice_relax(float *p, const float *g, float *m, float *v, int n) {
  AT;
  p[i] = moved(p[i], g[i], &m[i], &v[i]);
}

extern "C" __global__ void lattice_relax_narrow(unsigned short *p, const unsigned short *g,
                                                float *m, float *v, int n) {
  AT;
  const float to = moved(__uint_as_float((unsigned)p[i] << 16),
                         __uint_as_float((unsigned)g[i] << 16), &m[i], &v[i]);
  p[i] = (unsigned short)(__float_as_uint(to) >> 16);
}

extern "C" __global__ void lattice_relax_all(lattices all, int n) {
  const int t = blockIdx.y;
  AT;
  all.p[t][i] = moved(all.p[t][i], all.g[t][i], &all.m[t][i], &all.v[t][i]);
}

extern "C" __global__ void lattice_drift(float *p, const float *g, float *m, int n) {
  AT;
  m[i] = 0.9f * m[i] + g[i];
  p[i] -= 0.01f * m[i];
}

// Backward: a gradient from a parameter, whole words, whatever they are.
extern "C" __global__ void lattice_slope(const unsigned *p, unsigned *g, int n) {
  AT;
  g[i] = p[i] & 0xbfffbfffu;
}

// Of a name that says that it reads more than its parameters show.
extern "C" __global__ void lattice_ncclDevKernel(const unsigned *p, unsigned *g, int n) {
  AT;
  g[i] = p[i];
}

extern "C" __global__ void lattice_blend(const float *a, const float *b, const float *c, float *d,
                                         int n) {
  AT;
  d[i] = a[i] * b[i] + c[i];
}
