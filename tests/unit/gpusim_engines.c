/* The two engines: every instruction that the interpreter's tests check gives the same bits in
   native code; when native code is made, kept and trusted; what happens without a compiler. Whole
   kernels are compared in gpusim_ptx.c. */
#include "tests/gpusim/ptx.h"
#include "tests/lib/tap.h"
#include "tests/unit/gpusim_ptx.h"
#include <dirent.h>
#include <sys/stat.h>
#include <time.h>

enum { CASES = 2048 };
struct check {
  const char *instruction;
  int bits[4]; /* d, a, b, c */
};
static const struct check checks[] = {
#define CHECK(sentence, instruction, widths, reference, how) {instruction, widths},
#include "tests/unit/gpusim_ptx_checks.def"
};
enum { CHECKS = sizeof checks / sizeof *checks };

/* One kernel of all checks, each in a block of its own; d[k] of thread i at out + 8 * (k * n + i).
   Behind them, for each, a value that two guarded instructions made. */
static struct gpusim_kernel *all_instructions(struct gpusim_image **image) {
  char *ptx = NULL;
  size_t size;
  int error;
  FILE *out = open_memstream(&ptx, &size);
  fprintf(out,
          ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, "
          ".param .u64 in)\n{\n.reg .b32 %%i, %%n; .reg .b64 %%at, %%from, %%to; "
          ".reg .b64 %%wa, %%wb, %%wc;\n"
          "mov.u32 %%i, %%ctaid.x;\nmov.u32 %%n, %%tid.x;\nmad.lo.s32 %%i, %%i, 128, %%n;\n"
          "mul.wide.u32 %%at, %%i, 8;\nld.param.u64 %%from, [in];\nld.param.u64 %%to, [out];\n"
          "add.u64 %%from, %%from, %%at;\nadd.u64 %%to, %%to, %%at;\n"
          "ld.global.b64 %%wa, [%%from];\nld.global.b64 %%wb, [%%from+%d];\n"
          "ld.global.b64 %%wc, [%%from+%d];\n",
          8 * CASES, 16 * CASES);
  for (int k = 0; k < CHECKS; k++) {
    fputs("{\n.reg .pred %p, %q, %g; .reg .b64 %place, %odd;\n", out);
    for (int o = 0; o < 4; o++)
      fprintf(out, ".reg .b%d %%%c;\n", checks[k].bits[o], "dabc"[o]);
    for (int o = 1; o < 4; o++)
      fprintf(out,
              checks[k].bits[o] == 64 ? "mov.b64 %%%c, %%w%c;\n"
                                      : "cvt.u%3$d.u64 %%%1$c, %%w%2$c;\n",
              "dabc"[o], "dabc"[o], checks[k].bits[o]);
    fprintf(out,
            "%s\nadd.u64 %%place, %%to, %d;\nand.b64 %%odd, %%wb, 4;\nsetp.ne.u64 %%g, %%odd, 0;\n"
            "@%%g add.u64 %%odd, %%odd, %%wa;\n@!%%g sub.u64 %%odd, %%wc, %%odd;\n"
            "st.global.b%d [%%place], %%d;\nst.global.b64 [%%place+%d], %%odd;\n}\n",
            checks[k].instruction, 8 * CASES * k, checks[k].bits[0], 8 * CASES * CHECKS);
  }
  fputs("ret;\n}\n", out);
  fclose(out);
  *image = gpusim_image_load(ptx, &error);
  if (!*image)
    printf("# %s\n", last_trace);
  free(ptx);
  return *image ? gpusim_image_kernel(*image, "k") : NULL;
}

static uint64_t random_state = 88172645463325252u;
static uint64_t random_bits(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

static void test_instructions(void) {
  static const uint64_t special[] = {0,
                                     UINT64_C(1) << 63,
                                     0x7ff0000000000000,
                                     0xfff8000000000001,
                                     0x7ff0000000000123,
                                     0x3ff0000000000000,
                                     0x7f8000007f800000,
                                     0xffc000007fa00001,
                                     0x80000000,
                                     0x800000007fffffff,
                                     0x3f8000003f800000,
                                     0x0000000100000001,
                                     0x7c017e00fc00fe01,
                                     0xffffffffffffffff};
  struct gpusim_image *image;
  struct gpusim_kernel *k = all_instructions(&image);
  uintptr_t in = device_new(3 * 8 * CASES), out = device_new((size_t)16 * CASES * CHECKS);
  uint64_t *cells = host(in);
  for (int i = 0; i < 3 * CASES; i++)
    cells[i] = random_bits() & 3 ? random_bits() : special[random_bits() % 14];
  void *arguments[] = {&out, &in};
  both_engines = true;
  disagreements = 0;
  counters[GPUSIM_COUNT_native_launches] = 0;
  int code = launch(k, CASES / 128, 128, 2, arguments);
  tap_ok(!code && !disagreements && counters[GPUSIM_COUNT_native_launches] == 1,
         "%d instructions give the same bits in native code as interpreted", CHECKS);
  if (code)
    printf("# %d %s\n", code, launch_error);
  both_engines = false;
  gpusim_image_free(image);
  device_reset();
}

/* ---- when it is made, and kept ---- */

static const char small[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u32 "
    "n)\n{\n.reg .pred %p; .reg .b32 %i, %n; .reg .b64 %o;\nld.param.u64 %o, [out];\n"
    "ld.param.u32 %n, [n];\nmov.u32 %i, 5;\nL:\nmul.lo.s32 %i, %i, 1664525;\nadd.s32 %i, %i, "
    "1013904223;\nadd.s32 %n, %n, -1;\nsetp.ne.s32 %p, %n, 0;\n@%p bra L;\nst.global.b32 [%o], "
    "%i;\n"
    "ret;\n}\n";

/* Runs the small kernel `launches` times; false unless it is right. */
static bool run_small(int launches, int n) {
  int error;
  struct gpusim_image *image = gpusim_image_load(small, &error);
  uintptr_t out = device_new(4);
  void *arguments[] = {&out, &n};
  uint32_t want = 5;
  bool right = image != NULL;
  for (int i = 0; i < n; i++)
    want = want * 1664525u + 1013904223u;
  counters[GPUSIM_COUNT_native_launches] = counters[GPUSIM_COUNT_interpreted_launches] = 0;
  for (int k = 0; k < launches && right; k++)
    right = !launch(gpusim_image_kernel(image, "k"), 1, 128, 2, arguments) &&
            *(uint32_t *)host(out) == want;
  gpusim_image_free(image);
  device_reset();
  return right;
}
static bool were(uint64_t native, uint64_t interpreted) {
  bool right = counters[GPUSIM_COUNT_native_launches] == native &&
               counters[GPUSIM_COUNT_interpreted_launches] == interpreted;
  if (!right)
    printf("# %llu native, %llu interpreted launches\n",
           (unsigned long long)counters[GPUSIM_COUNT_native_launches],
           (unsigned long long)counters[GPUSIM_COUNT_interpreted_launches]);
  return right;
}

/* The one object in the folder; false when there isn't exactly one. */
static bool only_object(const char *folder, char *path, size_t room) {
  DIR *directory = opendir(folder);
  int count = 0;
  for (struct dirent *e; directory && (e = readdir(directory));)
    if (e->d_name[0] != '.') {
      count++;
      snprintf(path, room, "%s/%s", folder, e->d_name);
    }
  if (directory)
    closedir(directory);
  return count == 1;
}

static void test_cache(void) {
  char cache[64] = "/tmp/gpusim-engines-XXXXXX", folder[128], object[512];
  struct stat first = {0}, second = {0};
  if (!mkdtemp(cache)) {
    tap_ok(false, "%s can be made", cache);
    return;
  }
  snprintf(folder, sizeof folder, "%s/gpusim", cache);
  setenv("XDG_CACHE_HOME", cache, 1);
  gpusim_settings.engine = "interpreter";
  tap_ok(run_small(2, 100) && were(0, 2) && !only_object(folder, object, sizeof object),
         "the interpreter alone makes no native code");
  gpusim_settings.engine = "native";
  bool made = run_small(2, 100) && were(2, 0) && only_object(folder, object, sizeof object) &&
              stat(object, &first) == 0;
  tap_ok(made, "native code is made at the first launch and kept");
  bool again = run_small(1, 100) && were(1, 0) && stat(object, &second) == 0;
  tap_ok(again && first.st_ino == second.st_ino, "the next process takes it from the cache");
  FILE *file = fopen(object, "w");
  fputs("no object", file);
  fclose(file);
  again = run_small(1, 100) && were(1, 0) && stat(object, &second) == 0;
  tap_ok(again && second.st_size > 1000, "an object that can't be loaded is made anew");
  unlink(object);
  chmod(folder, 0777);
  again = run_small(1, 100) && were(1, 0);
  tap_ok(again && !only_object(folder, object, sizeof object),
         "a folder that others may write isn't used");
  chmod(folder, 0700);
  char *path = strdup(getenv("PATH"));
  setenv("PATH", cache, 1);
  tap_ok(run_small(1, 100) && were(0, 1), "without a compiler kernels are interpreted");
  setenv("PATH", path, 1);
  free(path);
  gpusim_settings.engine = "auto";
  gpusim_settings.hot_millions = 1;
  tap_ok(run_small(3, 100) && were(0, 3) && !only_object(folder, object, sizeof object),
         "a kernel that ran little isn't translated");
  /* A million instructions by the first launch; translated behind the second. */
  bool hot = run_small(2, 3000) && were(0, 2) && only_object(folder, object, sizeof object);
  tap_ok(hot && run_small(2, 3000) && only_object(folder, object, sizeof object),
         "a hot kernel is translated in the background");
  if (only_object(folder, object, sizeof object))
    unlink(object);
  rmdir(folder);
  rmdir(cache);
}

int main(void) {
  cache_here();
  test_instructions();
  test_cache();
  return tap_done();
}
