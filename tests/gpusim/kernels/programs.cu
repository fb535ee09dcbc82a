/* Small kernels for tests/unit/gpusim_ptx.c, which compares each with the same sum done in C. */
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float scale = 3.0f;
__device__ int blocks_done;
__constant__ float table[4] = {1.f, 2.f, 4.f, 8.f};
__device__ const float *pointer_to_table = table + 1;

extern "C" __global__ void axpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + y[i];
}

extern "C" __global__ void axpy4(int n, float a, const float4 *x, float4 *y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float4 u = x[i], v = y[i];
    v.x = fmaf(a, u.x, v.x), v.y = fmaf(a, u.y, v.y), v.z = fmaf(a, u.z, v.z),
    v.w = fmaf(a, u.w, v.w);
    y[i] = v;
  }
}

/* Every rounding is spelled out, so that there is one right answer. */
extern "C" __global__ void adam(float *p, const float *g, float *m, float *v, float lr, float b1,
                                float b2, float eps, float wd, float c1, float c2, long n) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n;
       i += (long)gridDim.x * blockDim.x) {
    float gradient = __fmaf_rn(wd, p[i], g[i]);
    float first = __fmaf_rn(b1, m[i], __fmul_rn(1 - b1, gradient));
    float second = __fmaf_rn(b2, v[i], __fmul_rn(__fmul_rn(1 - b2, gradient), gradient));
    m[i] = first;
    v[i] = second;
    float denominator = __fadd_rn(__fsqrt_rn(__fdiv_rn(second, c2)), eps);
    p[i] = __fsub_rn(p[i], __fmul_rn(lr, __fdiv_rn(__fdiv_rn(first, c1), denominator)));
  }
}

extern "C" __global__ void reduce(const int *x, int *out, int n) {
  __shared__ int s[256];
  int a = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    a += x[i];
  s[threadIdx.x] = a;
  __syncthreads();
  for (int k = blockDim.x / 2; k >= 32; k /= 2) {
    if (threadIdx.x < k)
      s[threadIdx.x] += s[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    a = s[threadIdx.x];
    for (int k = 16; k; k /= 2)
      a += __shfl_down_sync(~0u, a, k);
    if (!threadIdx.x) {
      atomicAdd(out, a);
      atomicAdd(&blocks_done, 1);
    }
  }
}

/* Dynamic shared memory, variables, constants, an address in an initializer. */
extern "C" __global__ void variables(float *out, const int *in, int n) {
  extern __shared__ int shared[];
  int t = threadIdx.x;
  shared[t] = in[t % n];
  __syncthreads();
  out[t] = shared[(t + 1) % blockDim.x] * scale + table[t & 3] + *pointer_to_table;
}

/* Loops of different length, early exits, a switch, nested branches. */
extern "C" __global__ void diverge(const unsigned *in, unsigned *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  unsigned x = in[i], steps = 0;
  while (x != 1 && steps < 1000) {
    x = x & 1 ? 3 * x + 1 : x / 2;
    steps++;
    if (steps == 77 && (i & 1))
      break;
  }
  switch (i % 9) {
  case 0:
    steps += 5;
    break;
  case 1:
    steps *= 3;
    break;
  case 2:
    steps ^= x;
  case 3:
    steps -= 1;
    break;
  case 4:
    steps = steps << 3 | 1;
    break;
  case 5:
    if (steps > 50) {
      steps = 50;
      break;
    }
  case 6:
    steps = ~steps;
    break;
  case 7:
    return;
  default:
    steps += i;
  }
  out[i] = steps;
}

/* Calls that aren't inlined, with a value in local memory passed by address. */
struct pair {
  long a;
  int b[6];
};
__device__ __noinline__ long mix(struct pair *p, int k, float f) {
  for (int i = 0; i < 6; i++)
    p->b[i] += k * (i + 1);
  return p->a + p->b[k % 6] + (long)f;
}
__device__ __noinline__ struct pair twice(struct pair p, int k) {
  p.a = mix(&p, k, 0.5f) + mix(&p, k + 1, 2.5f);
  return p;
}
extern "C" __global__ void calls(const int *in, long *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  struct pair p = {in[i], {1, 2, 3, 4, 5, i}};
  if (i % 3)
    p = twice(p, in[i] & 15);
  if (i % 5 == 0)
    p.a += mix(&p, i & 7, 1.0f);
  out[i] = p.a * 1000 + p.b[in[i] & 3];
}

/* A lock taken by every thread in turn, lanes of one warp against each other. */
extern "C" __global__ void locked(int *lock, int *count) {
  for (bool done = false; !done;)
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int *)count += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
}

/* A warp waits for another warp of its block without a barrier. */
extern "C" __global__ void handed_on(volatile int *flag, int *out) {
  int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  while (*flag != warps - 1 - warp)
    ;
  out[threadIdx.x] = *flag;
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    *flag = warps - warp;
}

extern "C" __global__ void warpwide(const int *in, int *out) {
  int t = threadIdx.x, v = in[t], n = 0, *o = out + t * 20;
  o[n++] = __shfl_sync(~0u, v, v & 31);
  o[n++] = __shfl_sync(~0u, v, 3, 8);
  o[n++] = __shfl_up_sync(~0u, v, 5);
  o[n++] = __shfl_up_sync(~0u, v, 2, 16);
  o[n++] = __shfl_down_sync(~0u, v, 7);
  o[n++] = __shfl_down_sync(~0u, v, 3, 4);
  o[n++] = __shfl_xor_sync(~0u, v, 9);
  o[n++] = __ballot_sync(~0u, v & 1);
  o[n++] = __any_sync(~0u, v > 90) * 2 + __all_sync(~0u, v >= 0);
  o[n++] = __match_any_sync(~0u, v % 5);
  int all;
  o[n++] = __match_all_sync(~0u, t / 32, &all) + all;
  o[n++] = __reduce_add_sync(~0u, v);
  o[n++] = __reduce_min_sync(~0u, v) * 1000 + __reduce_max_sync(~0u, v);
  o[n++] = __reduce_xor_sync(~0u, v);
  if (t & 1) /* half a warp apart: members wait for each other only */
    o[n++] = __shfl_down_sync(0xaaaaaaaau, v, 2);
  else
    o[n++] = __shfl_down_sync(0x55555555u, v, 4);
  o[n++] = __popc(__activemask());
  o[n++] = __syncthreads_count(v & 1);
  o[n++] = __syncthreads_or(v == 1000) * 2 + __syncthreads_and(v >= 0);
  o[n++] = __syncthreads_or(v == in[7]) * 2 + __syncthreads_and(v != in[70]);
}

/* Half of the block produces, half consumes, over named barriers that count threads. */
extern "C" __global__ void named_barriers(int *out, int rounds) {
  __shared__ int box[64];
  int t = threadIdx.x;
  for (int r = 0; r < rounds; r++)
    if (t < 64) {
      box[t] = r * 100 + t;
      asm volatile("barrier.sync 1, 128;" ::: "memory");
      asm volatile("barrier.sync 2, 128;" ::: "memory");
    } else {
      asm volatile("barrier.sync 1, 128;" ::: "memory");
      out[r * 64 + t - 64] = box[127 - t];
      asm volatile("barrier.sync 2, 128;" ::: "memory");
    }
}

extern "C" __global__ void histogram(const unsigned *in, int n, unsigned *bins, float *sum,
                                     double *sum64, unsigned long long *sum_u64, int *extremes,
                                     __half2 *sum16) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&bins[in[i] % 61], 1);
    atomicAdd(sum, (float)(in[i] % 16));
    atomicAdd(sum64, (double)(in[i] % 1000) * 0.25);
    atomicAdd(sum_u64, (unsigned long long)in[i]);
    atomicMin(&extremes[0], (int)in[i]);
    atomicMax(&extremes[1], (int)in[i]);
    atomicOr(&extremes[2], (int)(in[i] & 0xff));
    atomicInc((unsigned *)&extremes[3], 99);
    if (i % 64 == 0)
      atomicAdd(sum16, __floats2half2_rn(0.25f, -0.5f));
  }
}

/* 25,624 bytes of parameters, read at offsets known only when it runs. */
struct metadata {
  void *address[4][400];
  long elements[400];
  unsigned char block_to_tensor[2600];
  int block_to_chunk[1736];
};
extern "C" __global__ void big_parameters(struct metadata m, long *out, const float *a,
                                          const float *b, double c, double d, double e, double f,
                                          double g, bool h) {
  int i = threadIdx.x + blockIdx.x * blockDim.x, tensor = m.block_to_tensor[i];
  out[i] = (long)m.address[i & 3][tensor] + m.elements[tensor] * 3 + m.block_to_chunk[i % 1736] +
           (a == b) + (long)(c + d + e + f + g) + h;
}

extern "C" __global__ void carries(const unsigned long *a, const unsigned long *b,
                                   unsigned long *o) {
  int i = threadIdx.x;
  unsigned a0 = a[i], a1 = a[i] >> 32, b0 = b[i], b1 = b[i] >> 32, s0, s1, s2, d0, d1, d2, m0, m1;
  asm("add.cc.u32 %0, %3, %5; addc.cc.u32 %1, %4, %6; addc.u32 %2, 0, 0;"
      : "=&r"(s0), "=&r"(s1), "=&r"(s2)
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
  asm("sub.cc.u32 %0, %3, %5; subc.cc.u32 %1, %4, %6; subc.u32 %2, 0, 0;"
      : "=&r"(d0), "=&r"(d1), "=&r"(d2)
      : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
  asm("mad.lo.cc.u32 %0, %2, %3, %4; madc.hi.u32 %1, %2, %3, %5;"
      : "=&r"(m0), "=&r"(m1)
      : "r"(a0), "r"(b0), "r"(a1), "r"(b1));
  unsigned v, p;
  asm("vshr.u32.u32.u32.clamp.add %0, %1, %2, %3;" : "=r"(v) : "r"(a0), "r"(b0 & 63), "r"(a1));
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(p) : "r"(a0), "r"(b0), "r"(a1));
  unsigned long *q = o + 7 * i;
  q[0] = (unsigned long)s1 << 32 | s0, q[1] = s2, q[2] = (unsigned long)d1 << 32 | d0, q[3] = d2,
  q[4] = (unsigned long)m1 << 32 | m0, q[5] = v, q[6] = p;
}

extern "C" __global__ void copied_async(const float *f, float *g) {
  __shared__ __align__(16) float s[128];
  int i = threadIdx.x;
  unsigned at = (unsigned)__cvta_generic_to_shared(s + 4 * (i & 31));
  if (i < 32)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(f + 4 * i),
                 "r"(i & 1 ? 16 : 8));
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;");
  __syncthreads();
  g[i] = s[127 - i];
}

/* A pointer that is to shared, local or global memory, whichever it turns out to be. */
extern "C" __global__ void generic(int *out, int which) {
  __shared__ int s[4];
  int local[4] = {10, 20, 30, 40};
  if (threadIdx.x < 4)
    s[threadIdx.x] = threadIdx.x * 7;
  __syncthreads();
  int *p = (threadIdx.x + which) % 3 == 0 ? s : (threadIdx.x + which) % 3 == 1 ? local : out + 128;
  int kind = __isShared(p) ? 1 : __isLocal(p) ? 2 : __isGlobal(p) ? 3 : 0;
  out[threadIdx.x] = p[threadIdx.x & 3] * 10 + kind;
}

extern "C" __global__ void store_at(int *p, long index) {
  if (threadIdx.x == 5)
    p[index] = 1;
}
extern "C" __global__ void strided(const int *in, int *out, int step) {
  out[threadIdx.x] = in[threadIdx.x * step];
}
extern "C" __global__ void unaligned(char *p) {
  if (threadIdx.x == 3)
    *(int *)(p + 2) = 1;
}
extern "C" __global__ void shared_out_of_bounds(int *out, int index) {
  __shared__ int s[8];
  s[threadIdx.x & 7] = 0;
  s[index + threadIdx.x] = 4;
  __syncthreads();
  out[0] = s[threadIdx.x & 7];
}
extern "C" __global__ void stuck(int *out) {
  if (threadIdx.x < 32)
    asm volatile("barrier.sync 3, 128;" ::: "memory");
  out[threadIdx.x] = 1;
}
/* Recursion: two calls of itself in one expression, threads of different depth; functions that call
   each other, with a structure by value, an array of their own and one of the kernel's. */
__device__ __noinline__ int factorial(int n) {
  return n < 2 ? 1 : n * factorial(n - 1) + (n & 1 ? factorial(n - 2) : 0);
}
extern "C" __global__ void deep(int *out, int n) {
  out[threadIdx.x] = factorial((threadIdx.x + n) % (n + 1));
}
__device__ struct pair left(struct pair p, int n, int *visits);
__device__ __noinline__ struct pair right(struct pair p, int n, int *visits) {
  int mine[4] = {n, n + 1, n + 2, n + 3};
  visits[n & 3]++;
  if (n > 0) {
    p.b[n % 6] += 3;
    p = left(p, n - 1, visits);
    p.a += mine[visits[0] & 3];
  }
  return p;
}
__device__ __noinline__ struct pair left(struct pair p, int n, int *visits) {
  int mine[4] = {1, n, 2, n * n};
  visits[n & 3]--;
  if (n > 1) {
    struct pair q = right(p, n - 2, visits);
    p = right(p, n - 1, visits);
    p.a = 3 * p.a + q.a + mine[p.b[2] & 3];
  }
  return p;
}
extern "C" __global__ void mutual(long *out, int n) {
  int visits[4] = {0, 0, 0, 0};
  struct pair p = left({(long)threadIdx.x, {1, 2, 3, 4, 5, 6}}, (int)threadIdx.x % n, visits);
  out[threadIdx.x] = p.a + 1000003 * p.b[threadIdx.x % 6] + visits[threadIdx.x & 3];
}
__device__ __noinline__ int endless(int n) {
  return n == -1 ? 0 : endless(n + 1) * n + 3;
}
extern "C" __global__ void bottomless(int *out, int n) {
  out[0] = endless(n);
}
extern "C" __global__ void asserted(int *out) {
  printf("%d\n", out[0]);
}
extern "C" __global__ void __launch_bounds__(96) bounded(int *out) {
  out[threadIdx.x] = blockDim.x;
}
