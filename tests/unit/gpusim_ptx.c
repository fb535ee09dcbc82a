/* Whole kernels on the PTX interpreter: control flow, memory, warps and barriers, atomics,
   errors, images. The kernels are tests/gpusim/kernels/, compiled by nvcc when the tests are
   built; each is compared with the same sum in C. */
#include "tests/unit/gpusim_ptx.h"
#include "tests/gpusim/image.h"
#include "tests/gpusim/ptx.h"
#include "tests/lib/tap.h"
#include <math.h>
#include <unistd.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

static char *contents(const char *name) {
  char path[4096], folder[2048];
  ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  folder[length > 0 ? length : 0] = 0;
  *strrchr(folder, '/') = 0;
  snprintf(path, sizeof path, "%s/../../gpusim/kernels/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) {
    printf("Bail out! %s isn't built\n", path);
    exit(EXIT_FAILURE);
  }
  fseek(file, 0, SEEK_END);
  size_t bytes = (size_t)ftell(file);
  rewind(file);
  char *code = calloc(1, bytes + 8);
  if (fread(code, 1, bytes, file) != bytes)
    exit(EXIT_FAILURE);
  fclose(file);
  return code;
}

static struct gpusim_image *image_named(const char *name, int *error) {
  char *code = contents(name);
  struct gpusim_image *image = gpusim_image_load(code, error);
  free(code);
  return image;
}

static struct gpusim_image *programs, *control;
static struct gpusim_kernel *kernel(const char *name) {
  struct gpusim_kernel *k = gpusim_image_kernel(programs, name);
  return k ? k : gpusim_image_kernel(control, name);
}
/* Launches a kernel of the programs with the addresses of its arguments. */
#define ARGUMENTS(...)                                                                             \
  (int)(sizeof(void *[]){__VA_ARGS__} / sizeof(void *)), (void *[]) {                              \
    __VA_ARGS__                                                                                    \
  }
#define RUN(name, grid, threads, ...) launch(kernel(name), grid, threads, ARGUMENTS(__VA_ARGS__))
static uintptr_t ints(int n) {
  return device_new((size_t)n * 4);
}

static uint32_t mixed(uint32_t i) {
  i = (i ^ 61) ^ i >> 16;
  i *= 9;
  i ^= i >> 4;
  i *= 0x27d4eb2d;
  return i ^ i >> 15;
}

/* ---- arithmetic in whole kernels ---- */

static void test_axpy(void) {
  int n = 100003;
  float a = 2.5f;
  uintptr_t x = ints(n), y = ints(n), x4 = ints(4 * n), y4 = ints(4 * n);
  float *hx = host(x), *hy = host(y), *hx4 = host(x4), *hy4 = host(y4);
  for (int i = 0; i < n; i++) {
    hx[i] = sinf((float)i);
    hy[i] = (float)i * 1e-3f;
  }
  for (int i = 0; i < 4 * n; i++) {
    hx4[i] = cosf((float)i);
    hy4[i] = (float)i;
  }
  int code = RUN("axpy", 391, 256, &n, &a, &x, &y), wrong = 0;
  for (int i = 0; i < n; i++)
    wrong += hy[i] != fmaf(a, hx[i], (float)i * 1e-3f);
  tap_ok(!code && !wrong, "a*x + y over an odd number of elements is right");
  code = RUN("axpy4", 7, 96, &n, &a, &x4, &y4);
  for (int i = 0; i < 4 * n; i++)
    wrong += hy4[i] != fmaf(a, hx4[i], (float)i);
  tap_ok(!code && !wrong, "vector loads and stores in a grid-stride loop are right");
}

static void adam_in_c(float *p, float g, float *m, float *v, const float *s) {
  float gradient = fmaf(s[4], *p, g);
  *m = fmaf(s[1], *m, (1 - s[1]) * gradient);
  *v = fmaf(s[2], *v, (1 - s[2]) * gradient * gradient);
  *p = *p - s[0] * ((*m / s[5]) / (sqrtf(*v / s[6]) + s[3]));
}

static void test_adam(void) {
  enum { N = 20011 };
  static float want[3][N];
  float s[7] = {1e-2f, 0.9f, 0.999f, 1e-8f, 0.01f, 0.1f, 0.001f};
  uintptr_t p = ints(N), g = ints(N), m = ints(N), v = ints(N);
  float *hp = host(p), *hg = host(g), *hm = host(m), *hv = host(v);
  long n = N;
  int code = 0, wrong = 0;
  for (int i = 0; i < N; i++) {
    want[0][i] = hp[i] = sinf((float)i);
    hg[i] =
        i % 100 ? cosf((float)i) * powf(10, (float)(i % 60) - 40) : 0; /* subnormal moments too */
    want[1][i] = want[2][i] = 0;
  }
  for (int step = 0; step < 3; step++)
    code |=
        RUN("adam", 33, 192, &p, &g, &m, &v, &s[0], &s[1], &s[2], &s[3], &s[4], &s[5], &s[6], &n);
  for (int i = 0; i < N; i++) {
    for (int step = 0; step < 3; step++)
      adam_in_c(&want[0][i], hg[i], &want[1][i], &want[2][i], s);
    wrong += memcmp(&want[0][i], &hp[i], 4) || memcmp(&want[1][i], &hm[i], 4) ||
             memcmp(&want[2][i], &hv[i], 4);
  }
  tap_ok(!code && !wrong, "three steps of Adam equal C's bit for bit, subnormal moments included");
}

static void test_environment(void) {
#ifdef __x86_64__
  enum { N = 128 };
  int n = N;
  float a = 1;
  uintptr_t x = ints(N), y = ints(N);
  uint32_t *hy = host(y);
  for (int i = 0; i < N; i++)
    ((uint32_t *)host(x))[i] = 1;
  unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
  int code = RUN("axpy", 1, 128, &n, &a, &x, &y);
  bool kept = (_mm_getcsr() & 0x8040) == 0x8040;
  _mm_setcsr(before);
  tap_ok(!code && hy[77] == 1 && kept,
         "a thread that flushes subnormals changes no result, and gets its mode back");
#else
  tap_skip("a thread that flushes subnormals changes no result, and gets its mode back",
           "the mode is x86's");
#endif
}

/* ---- control flow ---- */

static uint32_t diverge_in_c(uint32_t x, uint32_t i) {
  uint32_t steps = 0;
  while (x != 1 && steps < 1000) {
    x = x & 1 ? 3 * x + 1 : x / 2;
    if (++steps == 77 && i & 1)
      break;
  }
  switch (i % 9) {
  case 0:
    return steps + 5;
  case 1:
    return steps * 3;
  case 2:
    return (steps ^ x) - 1;
  case 3:
    return steps - 1;
  case 4:
    return steps << 3 | 1;
  case 5:
    return steps > 50 ? 50 : ~steps;
  case 6:
    return ~steps;
  case 7:
    return 0xdead;
  default:
    return steps + i;
  }
}

static void test_control(void) {
  int n = 5000, wrong = 0;
  uintptr_t in = ints(n), out = ints(n);
  uint32_t *hi = host(in), *ho = host(out);
  for (int i = 0; i < n; i++) {
    hi[i] = mixed((uint32_t)i) % 100000 + 1;
    ho[i] = 0xdead;
  }
  int code = RUN("diverge", 21, 250, &in, &out, &n);
  for (int i = 0; i < n; i++)
    wrong += ho[i] != diverge_in_c(hi[i], (uint32_t)i);
  tap_ok(!code && !wrong, "loops, breaks and a switch that lanes take differently are right");

  code = RUN("indexed", 1, 50, &out);
  for (uint32_t i = 0; i < 50; i++)
    wrong += ho[i] != (const uint32_t[]){100, 200, 300, 200}[i & 3];
  tap_ok(!code && !wrong, "an indexed branch takes each lane to its target");
  code = RUN("scoped", 1, 1, &out);
  tap_ok(!code && ho[0] == 3021, "names and labels belong to their block");
  code = RUN("spilled", 1, 64, &out);
  for (uint32_t i = 0; i < 64; i++)
    wrong += ho[4 * i] != i || ho[4 * i + 1] != 77 || ho[4 * i + 2] != 5 || ho[4 * i + 3] != i;
  tap_ok(!code && !wrong, "each lane has its own local memory, by name and by generic address");
}

struct pair {
  long a;
  int b[6];
};
static long mix(struct pair *p, int k, float f) {
  for (int i = 0; i < 6; i++)
    p->b[i] += k * (i + 1);
  return p->a + p->b[k % 6] + (long)f;
}

static void test_calls(void) {
  int n = 3000, wrong = 0;
  uintptr_t in = ints(n), out = device_new((size_t)n * 8);
  int *hi = host(in);
  long *ho = host(out);
  for (int i = 0; i < n; i++)
    hi[i] = (int)(mixed((uint32_t)i) % 1000);
  int code = RUN("calls", 24, 128, &in, &out, &n);
  for (int i = 0; i < n; i++) {
    struct pair p = {hi[i], {1, 2, 3, 4, 5, i}};
    if (i % 3) {
      int k = hi[i] & 15;
      long one = mix(&p, k, 0.5f), two = mix(&p, k + 1, 2.5f);
      p.a = one + two;
    }
    if (i % 5 == 0)
      p.a += mix(&p, i & 7, 1.0f);
    wrong += ho[i] != p.a * 1000 + p.b[hi[i] & 3];
  }
  tap_ok(!code && !wrong, "functions get structures by value and by address, some lanes at a time");
}

static int factorial(int n) {
  return n < 2 ? 1 : n * factorial(n - 1) + (n & 1 ? factorial(n - 2) : 0);
}
static struct pair left(struct pair p, int n, int *visits);
static struct pair right(struct pair p, int n, int *visits) {
  int mine[4] = {n, n + 1, n + 2, n + 3};
  visits[n & 3]++;
  if (n > 0) {
    p.b[n % 6] += 3;
    p = left(p, n - 1, visits);
    p.a += mine[visits[0] & 3];
  }
  return p;
}
static struct pair left(struct pair p, int n, int *visits) {
  int mine[4] = {1, n, 2, n * n};
  visits[n & 3]--;
  if (n > 1) {
    struct pair q = right(p, n - 2, visits);
    p = right(p, n - 1, visits);
    p.a = 3 * p.a + q.a + mine[p.b[2] & 3];
  }
  return p;
}

static void test_recursion(void) {
  enum { T = 150 };
  int n = 9, wrong = 0;
  uintptr_t out = ints(T), wide = device_new(T * 8);
  int code = RUN("deep", 1, T, &out, &n);
  for (int i = 0; i < T; i++)
    wrong += ((int *)host(out))[i] != factorial((i + n) % (n + 1));
  tap_ok(!code && !wrong, "functions may call themselves, each thread to its own depth");
  code = RUN("mutual", 1, T, &wide, &n);
  for (int i = 0; i < T; i++) {
    int visits[4] = {0, 0, 0, 0};
    struct pair p = left((struct pair){i, {1, 2, 3, 4, 5, 6}}, i % n, visits);
    wrong += ((long *)host(wide))[i] != p.a + 1000003 * p.b[i % 6] + visits[i & 3];
  }
  tap_ok(!code && !wrong, "functions may call each other, with variables and results of their own");
}

/* ---- warps, barriers, atomics ---- */

static void test_reduce(void) {
  int n = 54321, sum = 0;
  uintptr_t x = ints(n), out = ints(1);
  for (int i = 0; i < n; i++)
    sum += ((int *)host(x))[i] = (int)mixed((uint32_t)i) % 1000;
  int code = RUN("reduce", 8, 256, &x, &out, &n);
  struct gpusim_global *done = gpusim_image_global(programs, "blocks_done");
  tap_ok(!code && *(int *)host(out) == sum && done && *(int *)host(done->address) == 8,
         "a reduction through shared memory, barriers, shuffles and atomics is right");
  tap_ok(kernel("reduce")->static_shared_bytes == 1024, "static shared memory is known unrun");
}

static void test_variables(void) {
  int n = 64, wrong = 0;
  uintptr_t in = ints(n), out = ints(n);
  struct gpusim_kernel *k = kernel("variables");
  for (int i = 0; i < n; i++)
    ((int *)host(in))[i] = i * 7 - 100;
  struct gpusim_global *scale = gpusim_image_global(programs, "scale");
  bool initial = scale && scale->bytes == 4 && *(float *)host(scale->address) == 3;
  if (scale)
    *(float *)host(scale->address) = 5;
  uint8_t parameters[20];
  memcpy(parameters, &out, 8);
  memcpy(parameters + 8, &in, 8);
  memcpy(parameters + 16, &n, 4);
  struct gpusim_launch shape = {{1, 1, 1}, {64, 1, 1}, 256, 0, k->name, NULL};
  int code = gpusim_kernel_run(k, parameters, &shape, launch_error, sizeof launch_error);
  for (int i = 0; i < n; i++)
    wrong +=
        ((float *)host(out))[i] != (float)((i + 1) % 64 * 7 - 100) * 5 + (float)(1 << (i & 3)) + 2;
  tap_ok(initial && !code && !wrong,
         "variables, constants, addresses in initializers and dynamic shared memory work");
}

static int shuffled(const int *v, int lane, int source, int from, int to) {
  return v[source >= from && source <= to ? source : lane];
}

static void test_warpwide(void) {
  enum { T = 96 };
  uintptr_t in = ints(T), out = ints(T * 20);
  int *hi = host(in), *ho = host(out), wrong = 0, odd = 0;
  for (int i = 0; i < T; i++) {
    hi[i] = (int)(mixed((uint32_t)i + 5) % 100);
    odd += hi[i] & 1;
  }
  int code = RUN("warpwide", 1, T, &in, &out);
  for (int t = 0; t < T; t++) {
    int warp = t & ~31, l = t & 31, *v = hi + warp, *o = ho + t * 20, w[19];
    unsigned ballot = 0, match = 0, sum = 0, exclusive = 0, any = 0, all = 1;
    int least = 1000, most = -1;
    for (int k = 0; k < 32; k++) {
      ballot |= (unsigned)(v[k] & 1) << k;
      match |= (unsigned)(v[k] % 5 == v[l] % 5) << k;
      sum += (unsigned)v[k];
      exclusive ^= (unsigned)v[k];
      least = v[k] < least ? v[k] : least;
      most = v[k] > most ? v[k] : most;
      any |= v[k] > 90;
    }
    w[0] = v[v[l] & 31];
    w[1] = v[(l & 24) | 3];
    w[2] = shuffled(v, l, l - 5, 0, 31);
    w[3] = shuffled(v, l, l - 2, l & 16, 31);
    w[4] = shuffled(v, l, l + 7, 0, 31);
    w[5] = shuffled(v, l, l + 3, 0, l | 3);
    w[6] = v[l ^ 9];
    w[7] = (int)ballot;
    w[8] = (int)(any * 2 + all);
    w[9] = (int)match;
    w[10] = -1 + 1;
    w[11] = (int)sum;
    w[12] = least * 1000 + most;
    w[13] = (int)exclusive;
    w[14] = t & 1 ? shuffled(v, l, l + 2, 0, 31) : shuffled(v, l, l + 4, 0, 31);
    w[16] = odd;
    w[17] = 1;
    w[18] = 2;
    w[15] = o[15] == 32 || o[15] == 16 ? o[15] : -1;
    for (int k = 0; k < 19; k++)
      if (w[k] != o[k] && wrong++ < 5)
        printf("# thread %d, result %d: %d, expected %d\n", t, k, o[k], w[k]);
  }
  tap_ok(!code && !wrong, "shuffles, votes, matches, reductions and counting barriers are right");
}

static void test_late_lanes(void) {
  uintptr_t out = ints(96);
  int code = RUN("late", 1, 96, &out), wrong = 0;
  for (int i = 0; i < 96; i++)
    wrong += ((int *)host(out))[i] != (i ^ 1) * 10 + (i & 1 ? 0 : 3);
  tap_ok(!code && !wrong, "lanes wait at a shuffle for members that come later");
}

static void test_barriers(void) {
  int rounds = 5, wrong = 0;
  uintptr_t out = ints(64 * rounds), flag = ints(1);
  int code = RUN("named_barriers", 3, 128, &out, &rounds);
  for (int r = 0; r < rounds; r++)
    for (int i = 0; i < 64; i++)
      wrong += ((int *)host(out))[r * 64 + i] != r * 100 + 63 - i;
  tap_ok(!code && !wrong, "named barriers hand data from half a block to the other");

  uintptr_t lock = ints(1), count = ints(1);
  code = RUN("locked", 3, 160, &lock, &count);
  tap_ok(!code && *(int *)host(count) == 480,
         "a lock that lanes of one warp take in turn doesn't hang, and excludes");
  code = RUN("handed_on", 1, 256, &flag, &out);
  for (int i = 0; i < 256; i++)
    wrong += ((int *)host(out))[i] != 7 - i / 32;
  tap_ok(!code && !wrong, "warps that wait for later warps without a barrier get there");
}

static void test_atomics(int threads) {
  enum { N = 40000 };
  int n = N, wrong = 0, lowest = INT32_MAX, highest = INT32_MIN, some = 0;
  uintptr_t in = ints(N), bins = ints(61), sum = ints(1), sum64 = device_new(8),
            wide = device_new(8), extremes = ints(4), halves = ints(1);
  uint32_t *hi = host(in), want[61] = {0};
  uint64_t total = 0;
  double total64 = 0, total32 = 0;
  for (int i = 0; i < N; i++) {
    hi[i] = mixed((uint32_t)i);
    want[hi[i] % 61]++;
    total += hi[i];
    total64 += hi[i] % 1000 * 0.25;
    total32 += hi[i] % 16;
    lowest = (int)hi[i] < lowest ? (int)hi[i] : lowest;
    highest = (int)hi[i] > highest ? (int)hi[i] : highest;
    some |= (int)(hi[i] & 0xff);
  }
  int *he = host(extremes);
  he[0] = INT32_MAX;
  he[1] = INT32_MIN;
  gpusim_settings.threads = threads;
  int code = RUN("histogram", 50, 224, &in, &n, &bins, &sum, &sum64, &wide, &extremes, &halves);
  gpusim_settings.threads = 1;
  for (int k = 0; k < 61; k++)
    wrong += ((uint32_t *)host(bins))[k] != want[k];
  uint16_t *pair = host(halves); /* 625 times 0.25 and -0.5, which 11 bits hold */
  tap_ok(!code && !wrong && *(float *)host(sum) == (float)total32 &&
             *(double *)host(sum64) == total64 && *(uint64_t *)host(wide) == total &&
             he[0] == lowest && he[1] == highest && he[2] == some && he[3] == N % 100 &&
             pair[0] == 0x58e2 && pair[1] == 0xdce2,
         "atomics of all types add up with %d thread%s", threads, threads > 1 ? "s" : "");
}

/* ---- odd instructions ---- */

static void test_carries(void) {
  enum { N = 128 };
  uintptr_t a = device_new(N * 8), b = device_new(N * 8), o = device_new(N * 56);
  uint64_t *ha = host(a), *hb = host(b), x = 88172645463325252u;
  int wrong = 0;
  for (int i = 0; i < N; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    ha[i] = x;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    hb[i] = i % 7 ? x : ~ha[i];
  }
  int code = RUN("carries", 1, N, &a, &b, &o);
  for (int i = 0; i < N; i++) {
    uint64_t *q = (uint64_t *)host(o) + 7 * i;
    unsigned __int128 s = (unsigned __int128)ha[i] + hb[i];
    uint32_t a0 = (uint32_t)ha[i], b0 = (uint32_t)hb[i], a1 = (uint32_t)(ha[i] >> 32);
    uint32_t shift = (b0 & 63) > 31 ? 32 : b0 & 63, dot = a1;
    for (int w = 0; w < 32; w += 8)
      dot += (a0 >> w & 255) * (b0 >> w & 255);
    wrong += q[0] != (uint64_t)s || q[1] != (uint64_t)(s >> 64) || q[2] != ha[i] - hb[i] ||
             q[3] != (ha[i] < hb[i] ? 0xffffffffu : 0) ||
             q[4] != (uint64_t)a0 * b0 + (hb[i] >> 32 << 32) + a1 ||
             q[5] != (uint32_t)((shift == 32 ? 0 : a0 >> shift) + a1) || q[6] != dot;
  }
  tap_ok(!code && !wrong, "carries go from add.cc to addc, borrows and products too");
}

static void test_copies_and_addresses(void) {
  enum { N = 128 };
  uintptr_t f = ints(N), g = ints(N), out = ints(N + 4);
  int wrong = 0, which = 1;
  for (int i = 0; i < N; i++)
    ((float *)host(f))[i] = (float)(i + 1);
  int code = RUN("copied_async", 1, N, &f, &g);
  for (int i = 0; i < N; i++) {
    int j = 127 - i;
    wrong += ((float *)host(g))[i] != ((j / 4 & 1) || j % 4 < 2 ? (float)(j + 1) : 0);
  }
  tap_ok(!code && !wrong, "cp.async copies to shared memory and fills with zeros");
  for (int i = 0; i < 4; i++)
    ((int *)host(out))[N + i] = i + 50;
  code = RUN("generic", 1, N, &out, &which);
  for (int i = 0; i < N; i++) {
    int space = (i + which) % 3, k = i & 3,
        value = space == 0   ? k * 7
                : space == 1 ? k * 10 + 10
                             : k + 50;
    wrong += ((int *)host(out))[i] != value * 10 + space + 1;
  }
  tap_ok(!code && !wrong, "a generic address finds shared, local and global memory");
}

struct metadata {
  void *address[4][400];
  long elements[400];
  unsigned char block_to_tensor[2600];
  int block_to_chunk[1736];
};
static void test_big_parameters(void) {
  static struct metadata m;
  uintptr_t out = device_new(2560 * 8);
  const float *null = NULL;
  double c[5] = {1, 2, 3, 4, 5};
  bool h = true;
  int wrong = 0;
  for (int i = 0; i < 1600; i++)
    m.address[i / 400][i % 400] = (void *)(uintptr_t)(i * 1000003L);
  for (int i = 0; i < 400; i++)
    m.elements[i] = i * 77L;
  for (int i = 0; i < 2600; i++)
    m.block_to_tensor[i] = (unsigned char)(i * 7);
  for (int i = 0; i < 1736; i++)
    m.block_to_chunk[i] = i * 13;
  struct gpusim_kernel *k = kernel("big_parameters");
  int code =
      RUN("big_parameters", 5, 512, &m, &out, &null, &null, &c[0], &c[1], &c[2], &c[3], &c[4], &h);
  for (int i = 0; i < 2560; i++) {
    int tensor = m.block_to_tensor[i];
    wrong += ((long *)host(out))[i] != (i & 3) * 400003L * 0 +
                                           ((i & 3) * 400L + tensor) * 1000003L +
                                           m.elements[tensor] * 3 + m.block_to_chunk[i % 1736] + 17;
  }
  tap_ok(k->parameter_bytes > 25544 && k->parameter_count == 10 && !code && !wrong,
         "%u bytes of parameters are read at offsets known only when it runs", k->parameter_bytes);
}

/* ---- errors ---- */

static bool says(const char *words) {
  bool found = strstr(launch_error, words) != NULL;
  if (!found)
    printf("# \"%s\" doesn't say \"%s\"\n", launch_error, words);
  return found;
}

static void test_errors(void) {
  uintptr_t p = ints(64);
  long at = 64, inside = 63;
  int code = RUN("store_at", 2, 32, &p, &at);
  tap_ok(code == 700 && says("thread 5,0,0") && says("st.global.u32") && says("store_at"),
         "a store past the end fails with 700, naming thread, instruction and kernel");
  code = RUN("store_at", 2, 32, &p, &inside);
  tap_ok(!code && ((int *)host(p))[63] == 1, "a store to the last element is allowed");
  int step = 2, far = 3;
  uintptr_t to = ints(32);
  code = RUN("strided", 1, 32, &p, &to, &step);
  int beyond = RUN("strided", 1, 32, &p, &to, &far);
  tap_ok(!code && beyond == 700 && says("thread 22,0,0"),
         "of threads at even distances the first beyond the end is named");
  code = RUN("unaligned", 1, 32, &p);
  tap_ok(code == 716 && says("misaligned") && says("thread 3,0,0"),
         "a misaligned store fails with 716");

  block_of(p)->writable = false;
  generation++;
  code = RUN("store_at", 2, 32, &p, &inside);
  tap_ok(code == 700 && says("read-only"), "a store to memory that is read-only fails with 700");
  block_of(p)->writable = true;
  uintptr_t gone = ints(1024);
  at = 0;
  code = RUN("store_at", 1, 32, &gone, &at);
  struct block saved = *block_of(gone);
  *block_of(gone) = (struct block){1, 0, NULL, false};
  generation++;
  int after = RUN("store_at", 1, 32, &gone, &at);
  tap_ok(!code && after == 700, "memory that was unmapped since the last launch is gone");
  for (int i = 0; i < block_count; i++)
    if (blocks[i].address == 1 && !blocks[i].bytes)
      blocks[i] = saved;
  generation++;

  int n = 20000;
  float a = 1;
  uintptr_t x = ints(n), y = ints(n);
  bool both = both_engines;
  both_engines = false;
  gpusim_settings.engine = both ? "native" : "auto";
  unmap_after = 100; /* looks at the map of memory, of which each access takes one */
  unmapped = y;
  code = RUN("axpy", 200, 100, &n, &a, &x, &y);
  both_engines = both;
  tap_ok(code == 700 && says("no memory"), "memory that is unmapped while a kernel runs is gone");

  int index = 1;
  code = RUN("shared_out_of_bounds", 1, 8, &p, &index);
  tap_ok(code == 700 && says("thread 7,0,0") && says("shared memory"),
         "shared memory ends where it ends");
  code = RUN("beyond_local", 1, 1, &p);
  tap_ok(code == 700 && says("local memory"), "local memory ends where it ends");
  code = RUN("stuck", 1, 64, &p);
  tap_ok(code == 719 && says("deadlock") && says("barrier.sync"),
         "a barrier that too few threads reach is a deadlock, named");

  int go = 0;
  code = RUN("unknown", 1, 32, &p, &go);
  tap_ok(!code && ((int *)host(p))[0] == 7,
         "an unknown instruction that isn't reached does no harm");
  go = 1;
  code = RUN("unknown", 1, 32, &p, &go);
  tap_ok(code == 715 && says("frobnicate.rn.f32") && says("PTX line"),
         "an unknown instruction that is reached is named with its line");
  code = RUN("relu", 1, 32, &p);
  tap_ok(code == 715 && says("fma.rn.relu.f16"),
         "an unknown modifier makes an instruction unknown");
  code = RUN("clustered", 1, 32, &p);
  tap_ok(code == 218 && says(".reqnctapercluster"),
         "a kernel with an unknown directive is refused");
  tap_ok(RUN("required", 1, 64, &p) == 0 && RUN("required", 1, 32, &p) == 1,
         "a block must have the size that .reqntid demands");
  go = 5;
  code = RUN("bottomless", 1, 1, &p, &go);
  tap_ok(code == 700 && says("stack") && says("bottomless"), "endless recursion ends in an error");
  code = RUN("asserted", 1, 1, &p);
  tap_ok(code == 715 && says("vprintf"), "a call of a function without a body is an error by name");
  tap_ok(kernel("bounded")->max_threads == 96, "launch bounds are read");
}

/* ---- images ---- */

static bool axpy_works(struct gpusim_image *image) {
  struct gpusim_kernel *k = image ? gpusim_image_kernel(image, "axpy") : NULL;
  int n = 100, wrong = 0;
  float a = 3;
  uintptr_t x = ints(n), y = ints(n);
  for (int i = 0; i < n; i++) {
    ((float *)host(x))[i] = (float)i;
    ((float *)host(y))[i] = 1;
  }
  int code = k ? launch(k, 1, 128, ARGUMENTS(&n, &a, &x, &y)) : -1;
  for (int i = 0; i < n; i++)
    wrong += ((float *)host(y))[i] != (float)i * 3 + 1;
  if (code)
    printf("# %d %s\n", code, launch_error);
  return !code && !wrong;
}

static bool same_parameters(const struct gpusim_kernel *a, const struct gpusim_kernel *b) {
  return a && b && a->parameter_count == b->parameter_count &&
         a->parameter_bytes == b->parameter_bytes &&
         !memcmp(a->parameters, b->parameters, (size_t)a->parameter_count * sizeof *a->parameters);
}

static void test_images(void) {
  static const struct {
    const char *file, *sentence;
  } fatbins[] = {
      {"images_plain.fatbin", "a plain fatbin is read, when something in it is asked for"},
      {"images_zstd.fatbin", "so is a fatbin compressed with zstd"},
      {"images_lz4.fatbin", "so is a fatbin compressed with LZ4"}};
  int error;
  for (size_t k = 0; k < sizeof fatbins / sizeof *fatbins; k++) {
    struct gpusim_image *image = image_named(fatbins[k].file, &error);
    bool closed = image && !gpusim_image_known_kernels(image);
    tap_ok(closed && axpy_works(image) && gpusim_image_known_kernels(image), "%s",
           fatbins[k].sentence);
    gpusim_image_free(image);
  }
  char *fatbin = contents("images_zstd.fatbin");
  struct {
    uint32_t magic, version;
    const void *data, *file;
  } wrapper = {0x466243b1, 1, fatbin, NULL};
  struct gpusim_image *image = gpusim_image_load(&wrapper, &error);
  tap_ok(axpy_works(image), "nvcc's wrapper leads to the fatbin");
  tap_ok(gpusim_image_kernel(image, "axpy")->architecture == 80,
         "of several architectures the highest that fits the device is taken");

  struct gpusim_image *cubin = image_named("images.cubin", &error);
  struct gpusim_kernel *machine = cubin ? gpusim_image_kernel(cubin, "axpy") : NULL;
  tap_ok(machine && same_parameters(machine, gpusim_image_kernel(image, "axpy")) &&
             machine->architecture == 90 && !machine->from_ptx,
         "a cubin's parameters equal those of the same PTX");
  tap_ok(same_parameters(gpusim_image_kernel(cubin, "big"), gpusim_image_kernel(image, "big")) &&
             gpusim_image_kernel(cubin, "big")->parameter_bytes > 25544,
         "so do parameters of more than 4 KiB");
  struct gpusim_image *blackwell = image_named("images_100.cubin", &error);
  tap_ok(same_parameters(gpusim_image_kernel(blackwell, "big"), gpusim_image_kernel(image, "big")),
         "so do those of sm_100, whose sizes carry a flag byte");
  int threads = 0, shared = 0;
  for (struct gpusim_kernel *k = gpusim_image_kernels(cubin); k; k = k->next)
    if (strstr(k->name, "hidden")) {
      threads = (int)k->max_threads;
      shared = (int)k->static_shared_bytes;
    }
  tap_ok(threads == 512 && shared >= 400, "a cubin's launch bounds and shared memory are read");
  gpusim_image_free(blackwell);

  uintptr_t out = ints(1);
  struct gpusim_kernel *hidden = NULL;
  for (struct gpusim_kernel *k = gpusim_image_kernels(cubin); k; k = k->next)
    if (strstr(k->name, "hidden"))
      hidden = k;
  int code = launch(hidden, 1, 100, ARGUMENTS(&out));
  tap_ok(code == 209 && says("no PTX"), "machine code alone can't be run, and says so");
  gpusim_settings.ptx = "/nowhere.ptx:build/none.ptx";
  char alternate[4200], folder[2048];
  ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
  folder[length > 0 ? length : 0] = 0;
  *strrchr(folder, '/') = 0;
  snprintf(alternate, sizeof alternate, "/nowhere.ptx:%s/../../gpusim/kernels/renamed/images.ptx",
           folder);
  gpusim_settings.ptx = alternate;
  hidden = gpusim_image_kernel(cubin, hidden->name);
  code = launch(hidden, 1, 100, ARGUMENTS(&out));
  tap_ok(!code, "with GPUSIM_PTX it runs, found by its name without the file's hash");
  gpusim_settings.ptx = NULL;

  gpusim_settings.compute_capability = 70;
  struct gpusim_image *too_new = gpusim_image_load(&wrapper, &error);
  tap_ok(!too_new && error == 209, "a device that is older than all its code gets 209");
  gpusim_settings.compute_capability = 90;
  too_new =
      gpusim_image_load(".version 8.0\n.target sm_80\n.address_size 64\n.entry broken(", &error);
  tap_ok(!too_new && error == 218 && strstr(last_trace, "line 4"),
         "broken PTX gets 218 and its line");
  too_new = gpusim_image_load("no", &error);
  tap_ok(!too_new && error == 200, "what isn't an image gets 200");
  gpusim_image_free(cubin);
  gpusim_image_free(image);
  free(fatbin);
}

static void test_long_name(void) {
  enum { LENGTH = 5000 };
  char *name = malloc(LENGTH + 1), *ptx = malloc(2 * LENGTH + 200);
  memset(name, 'x', LENGTH);
  name[LENGTH] = 0;
  sprintf(ptx,
          ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry %s(.param .u64 "
          "%s_param_0)\n{ ret; }\n",
          name, name);
  int error;
  struct gpusim_image *image = gpusim_image_load(ptx, &error);
  struct gpusim_kernel *k = image ? gpusim_image_kernel(image, name) : NULL;
  uintptr_t p = ints(1);
  tap_ok(k && !launch(k, 1, 1, ARGUMENTS(&p)), "a kernel's name may have %d characters", LENGTH);
  name[LENGTH - 1] = 'y';
  tap_ok(image && !gpusim_image_kernel(image, name), "another name of that length isn't found");
  gpusim_image_free(image);
  free(name);
  free(ptx);
}

/* 64 threads: one word that all read, a word each read, two words each written, an atomic each, 16 bytes each by
 * cp.async; shared memory doesn't count. */
static void test_traffic(void) {
  static const char ptx[] =
      ".version 7.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry moving(.param .u64 to, .param .u64 from)\n{\n"
      " .reg .b64 %rd<6>;\n .reg .b32 %r<8>;\n .shared .align 16 .b8 tile[1024];\n"
      " ld.param.u64 %rd0, [to];\n ld.param.u64 %rd1, [from];\n mov.u32 %r0, %tid.x;\n"
      " ld.global.u32 %r1, [%rd1];\n"
      " mul.wide.u32 %rd2, %r0, 4;\n add.u64 %rd3, %rd1, %rd2;\n ld.global.u32 %r2, [%rd3];\n"
      " mul.wide.u32 %rd4, %r0, 8;\n add.u64 %rd4, %rd0, %rd4;\n"
      " st.global.v2.u32 [%rd4], {%r1, %r2};\n red.global.add.u32 [%rd0], 1;\n"
      " mul.wide.u32 %rd5, %r0, 16;\n add.u64 %rd3, %rd1, %rd5;\n"
      " mov.u32 %r3, tile;\n shl.b32 %r4, %r0, 4;\n add.u32 %r3, %r3, %r4;\n"
      " cp.async.ca.shared.global [%r3], [%rd3], 16;\n cp.async.wait_all;\n"
      " ld.shared.u32 %r5, [%r3];\n st.shared.u32 [%r3], %r5;\n ret;\n}\n";
  int error;
  struct gpusim_image *image = gpusim_image_load(ptx, &error);
  struct gpusim_kernel *k = image ? gpusim_image_kernel(image, "moving") : NULL;
  uintptr_t arguments[2] = {ints(256), ints(256)};
  struct gpusim_traffic moved = {0};
  struct gpusim_launch shape = {{2, 1, 1}, {64, 1, 1}, 0, 0, "moving", &moved};
  int code = -1;
  if (k)
    code = gpusim_kernel_run(k, (uint8_t *)arguments, &shape, launch_error, sizeof launch_error);
  if (!tap_ok(!code && moved.measured && moved.instructions > 0 &&
                  moved.device_read == 2 * (4 + 64 * 4 + 64 * 16) &&
                  moved.device_written == 2 * (64 * 8 + 64 * 4) &&
                  moved.host_read + moved.host_written == 0,
              "a launch tells what it read and wrote, once what all lanes read"))
    printf("# %d %s: %llu read, %llu written\n", code, code ? launch_error : "",
           (unsigned long long)moved.device_read, (unsigned long long)moved.device_written);
  gpusim_image_free(image);
}

int main(void) {
  int error;
  cache_here();
  programs = image_named("programs.ptx", &error);
  control = image_named("control.ptx", &error);
  if (!tap_ok(programs && control, "PTX from nvcc and PTX by hand are read")) {
    printf("# %s\n", last_trace);
    return tap_done();
  }
  static void (*const tests[])(void) = {test_axpy,
                                        test_adam,
                                        test_environment,
                                        test_control,
                                        test_calls,
                                        test_recursion,
                                        test_reduce,
                                        test_variables,
                                        test_warpwide,
                                        test_late_lanes,
                                        test_barriers,
                                        test_carries,
                                        test_copies_and_addresses,
                                        test_big_parameters,
                                        test_errors,
                                        test_images,
                                        test_long_name,
                                        test_traffic};
  for (int plain = 0; plain < 2; plain++) {
    ptx_select_plain(plain);
    for (size_t k = 0; k < sizeof tests / sizeof *tests; k++)
      if (!plain || k < 2)
        tests[k]();
  }
  test_atomics(1);
  test_atomics(4);
  gpusim_image_free(programs); /* variables begin anew */
  gpusim_image_free(control);
  programs = image_named("programs.ptx", &error);
  control = image_named("control.ptx", &error);
  both_engines = true;
  counters[GPUSIM_COUNT_native_launches] = counters[GPUSIM_COUNT_interpreted_launches] = 0;
  for (size_t k = 0; k < sizeof tests / sizeof *tests; k++)
    if (tests[k] != test_images && tests[k] != test_long_name && tests[k] != test_traffic)
      tests[k]();
  test_atomics(1);
  uint64_t native = counters[GPUSIM_COUNT_native_launches];
  uint64_t interpreted = counters[GPUSIM_COUNT_interpreted_launches];
  tap_ok(!disagreements && native > 30 && interpreted >= native,
         "native code and the interpreter agree bit for bit on every kernel of the tests");
  printf("# %llu native and %llu interpreted launches\n", (unsigned long long)native,
         (unsigned long long)interpreted);
  gpusim_image_free(programs);
  gpusim_image_free(control);
  device_reset();
  return tap_done();
}
