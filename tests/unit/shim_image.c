/* Reading what kernels take out of their images: each kind of image against what the compiler was given and against the simulated
   driver; every truncation and thousands of broken ones; what is remembered of modules and kernels. Bytes under test end where
   readable memory ends. */
#define _GNU_SOURCE
#include "shim/image.h"
#include "shim/image_parse.h"
#include "tests/lib/tap.h"
#include "tests/unit/data/images.h"
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct driver driver;
static bool active = true;
bool process_active(void) {
  return active;
}

static _Noreturn void bail(const char *why) {
  printf("Bail out! %s\n", why);
  exit(1);
}

/* ---- samples ---- */

static const struct expected {
  const char *name;
  unsigned count;
  struct image_parameter parameters[5];
} expected[] = {
    {"_Z13image_nothingv", 0, {{0, 0}}},
    {"_Z11image_plainPfidbs", 5, {{0, 8}, {8, 4}, {16, 8}, {24, 1}, {26, 2}}},
    {"_Z14image_by_value4widecf",
     3,
     {{0, sizeof(struct wide)}, {sizeof(struct wide), 1}, {sizeof(struct wide) + 4, 4}}},
    {"_Z11image_large4hugeh", 2, {{0, sizeof(struct huge)}, {sizeof(struct huge), 1}}},
};
enum { EXPECTED = sizeof expected / sizeof *expected };

struct bytes {
  unsigned char *at;
  size_t count;
};

static struct bytes read_sample(const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", IMAGES_FOLDER, name);
  FILE *file = fopen(path, "rb");
  struct bytes bytes = {NULL, 0};
  if (!file || fseek(file, 0, SEEK_END))
    bail(path);
  bytes.count = (size_t)ftell(file);
  rewind(file);
  bytes.at = malloc(bytes.count + 1);
  if (!bytes.at || fread(bytes.at, 1, bytes.count, file) != bytes.count)
    bail(path);
  bytes.at[bytes.count] = 0;
  (void)fclose(file);
  return bytes;
}

/* Room whose end is the end of readable memory. */
static unsigned char *guarded(size_t room) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (room + page - 1) / page * page;
  unsigned char *at =
      mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED || mprotect(at + pages, page, PROT_NONE))
    bail("mmap");
  return at + pages;
}

/* ---- what an image says ---- */

struct said {
  unsigned known, unknown, wrong, other; /* of expected kernels, and of others */
};

static bool count_kernel(void *context, const struct image_kernel *kernel) {
  struct said *said = context;
  for (unsigned i = 0; i < EXPECTED; i++) {
    if (strlen(expected[i].name) != kernel->name_bytes ||
        memcmp(expected[i].name, kernel->name, kernel->name_bytes) != 0)
      continue;
    const bool same = kernel->count == expected[i].count &&
                      (!kernel->count || memcmp(kernel->parameters, expected[i].parameters,
                                                kernel->count * sizeof *kernel->parameters) == 0);
    said->known += kernel->known && same;
    said->wrong += kernel->known && !same;
    said->unknown += !kernel->known;
    return true;
  }
  said->other++;
  return true;
}

static struct said ask(const void *image, size_t bytes, const char **why) {
  struct said said = {0};
  *why = image_each(image, bytes, count_kernel, &said);
  return said;
}

static void test_kinds(void) {
  static const struct {
    const char *file, *what;
    unsigned entries;
    const char *why;
  } kinds[] = {
      {"images.cubin", "a cubin", 1, NULL},
      {"images.ptx", "PTX text", 1, NULL},
      {"images_plain.fatbin", "a fatbin of two cubins and PTX", 3, NULL},
      {"images_lz4.fatbin", "the same packed by LZ4", 3, NULL},
      {"images_default.fatbin", "cubins beside PTX that is packed by zstd", 2, "zstd"},
      {"images_zstd.fatbin", "a fatbin packed by zstd", 0, "zstd"},
  };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    struct bytes sample = read_sample(kinds[i].file);
    const char *why;
    const struct said said = ask(sample.at, sample.count, &why);
    const bool told = kinds[i].why ? why && strstr(why, kinds[i].why) : !why;
    if (!tap_ok(said.known == kinds[i].entries * EXPECTED && !said.wrong && !said.unknown &&
                    !said.other && told,
                "%s tells the parameters of each kernel %u times", kinds[i].what, kinds[i].entries))
      printf("# known %u wrong %u unknown %u other %u: %s\n", said.known, said.wrong, said.unknown,
             said.other, why ? why : "read whole");
    const size_t alone = image_bytes(sample.at);
    tap_ok(alone && alone <= sample.count && alone + 64 > sample.count,
           "its headers tell its size (%s)", kinds[i].file);
    free(sample.at);
  }
}

/* ---- broken images ---- */

static const char *const samples[] = {"images.cubin", "images.ptx", "images_plain.fatbin",
                                      "images_lz4.fatbin", "images_zstd.fatbin"};
enum { SAMPLES = sizeof samples / sizeof *samples };

static void test_truncations(void) {
  for (unsigned i = 0; i < SAMPLES; i++) {
    struct bytes sample = read_sample(samples[i]);
    unsigned char *end = guarded(sample.count);
    unsigned wrong = 0, whole = 0;
    /* Every size near the ends of headers and entries, then every 7th. */
    for (size_t size = 0; size < sample.count;
         size += size < 512 || size + 512 > sample.count ? 1 : 7) {
      memcpy(end - size, sample.at, size);
      const char *why;
      const struct said said = ask(end - size, size, &why);
      wrong += said.wrong;
      whole += !why && said.known == 3 * EXPECTED;
    }
    tap_ok(!wrong && !whole, "%s cut off anywhere tells nothing wrong", samples[i]);
    free(sample.at);
  }
}

static uint64_t random_state = 88172645463325252u;
static uint64_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static void test_flips(void) {
  enum { TRIES = 4000 };
  for (unsigned i = 0; i < SAMPLES; i++) {
    struct bytes sample = read_sample(samples[i]);
    unsigned char *image = guarded(sample.count) - sample.count;
    unsigned survived = 0, read = 0;
    for (unsigned t = 0; t < TRIES; t++) {
      memcpy(image, sample.at, sample.count);
      for (uint64_t flips = next_random() % 8 + 1; flips > 0; flips--) {
        /* half of them among the headers */
        const size_t room = next_random() % 2 && sample.count > 256 ? 256 : sample.count;
        image[next_random() % room] = (unsigned char)(t % 3 ? next_random() : 0xff);
      }
      const char *why;
      const struct said said = ask(image, sample.count, &why);
      read += said.known || said.unknown || said.wrong || said.other;
      survived++;
    }
    tap_ok(survived == TRIES && (read > 0 || strstr(samples[i], "zstd")),
           "%d times %s with some bytes changed: nothing outside is read (%u still told kernels)",
           TRIES, samples[i], read);
    free(sample.at);
  }
}

static void test_lz4(void) {
  static const struct {
    const char *what;
    unsigned char packed[24];
    size_t packed_bytes, room, bytes;
    const char *unpacked;
  } blocks[] = {
      {"literals", {0x30, 'a', 'b', 'c'}, 4, 3, 3, "abc"},
      {"a match over what it writes", {0x12, 'x', 1, 0, 0x10, 'y'}, 6, 8, 8, "xxxxxxxy"},
      {"a long match", {0x1f, 'x', 1, 0, 0, 0x10, 'y'}, 7, 21, 21, "xxxxxxxxxxxxxxxxxxxxy"},
      {"no end", {0x12, 'x', 1, 0}, 4, 64, 0, NULL},
      {"no room for literals", {0x30, 'a', 'b', 'c'}, 4, 2, 0, NULL},
      {"no room for a match", {0x12, 'x', 1, 0, 0x10, 'y'}, 6, 6, 0, NULL},
      {"literals that aren't there", {0x40, 'a', 'b', 'c'}, 4, 64, 0, NULL},
      {"a distance of 0", {0x12, 'x', 0, 0, 0x10, 'y'}, 6, 64, 0, NULL},
      {"a distance beyond the beginning", {0x12, 'x', 2, 0, 0x10, 'y'}, 6, 64, 0, NULL},
      {"half a distance", {0x12, 'x', 1}, 3, 64, 0, NULL},
      {"a length without end", {0xf0, 255, 255, 255}, 4, 64, 0, NULL},
      {"nothing", {0}, 0, 64, 0, NULL},
  };
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    unsigned char *from = guarded(64) - blocks[i].packed_bytes, *to = guarded(64) - blocks[i].room;
    memcpy(from, blocks[i].packed, blocks[i].packed_bytes);
    const size_t bytes = image_lz4(from, blocks[i].packed_bytes, to, blocks[i].room);
    tap_ok(bytes == blocks[i].bytes && (!bytes || memcmp(to, blocks[i].unpacked, bytes) == 0),
           "LZ4: %s", blocks[i].what);
  }
}

/* ---- PTX ---- */

struct layout_text {
  char text[256];
};

static bool write_layout(void *context, const struct image_kernel *kernel) {
  struct layout_text *layout = context;
  size_t length = strlen(layout->text);
  length += (size_t)snprintf(layout->text + length, sizeof layout->text - length, "%.*s%s",
                             (int)kernel->name_bytes, kernel->name, kernel->known ? "" : "?");
  for (unsigned i = 0; i < kernel->count && length < sizeof layout->text; i++)
    length += (size_t)snprintf(layout->text + length, sizeof layout->text - length, " %u:%u",
                               kernel->parameters[i].offset, kernel->parameters[i].bytes);
  if (length < sizeof layout->text)
    snprintf(layout->text + length, sizeof layout->text - length, ";");
  return true;
}

static void test_ptx(void) {
  static const struct {
    const char *text, *layout;
  } texts[] = {
      {".visible .entry a(.param .u64 x, .param .u8 y, .param .f64 z) { ret; }", "a 0:8 8:1 16:8;"},
      {".entry b\n{\n}\n.weak .entry c()\n{}", "b;c;"},
      {".entry d(.param .align 16 .b8 x[20], .param .u16 y)", "d 0:20 20:2;"},
      {".entry e(.param .u8 c, .param .u64 .ptr .global .align 64 x, .param .b32 y)",
       "e 0:1 8:8 16:4;"},
      {"/* .entry no(.param .u64 x) */ // .entry no()\n.file 1 \".entry \\\" no()\"\n.entry "
       "yes(.param .b16 x)",
       "yes 0:2;"},
      {".entry f(.param .u64 /* , .param .u64 */ x)", "f 0:8;"},
      {".entry g(.param .f16x2 x, .param .u64 y) .entry h(.param .bf16 x)", "g?;h 0:2;"},
      {".entry i(.param .u64 x, .reg .u64 y)", "i?;"},
      {".entry j(.param .align 3 .b8 x[8])", "j?;"},
      {".entry k(.param .b8 x[0])", "k?;"},
      {".entry l(.param .u64 x", "l?;"},
      {".entry m(.param .b8 x[99999999999])", "m?;"},
      {".entry n(.param .b64 x[2][3], .param .b8 y)", "n 0:48 48:1;"},
      {".entry o", "o?;"},
      {".entry", ""},
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct layout_text layout = {""};
    const size_t bytes = strlen(texts[i].text);
    unsigned char *end = guarded(bytes);
    memcpy(end - bytes, texts[i].text, bytes);
    (void)image_each(end - bytes, bytes, write_layout, &layout);
    if (!tap_ok(strcmp(layout.text, texts[i].layout) == 0, "PTX: %s", texts[i].layout))
      printf("# %s\n# %s\n", texts[i].text, layout.text);
  }
}

/* ---- the same answers as the simulated driver's ---- */

struct comparison {
  CUlibrary library;
  unsigned compared, differing;
};

static bool compare_with_driver(void *context, const struct image_kernel *kernel) {
  struct comparison *comparison = context;
  char name[4096];
  CUkernel handle;
  size_t offset, bytes;
  if (kernel->name_bytes >= sizeof name)
    return true;
  memcpy(name, kernel->name, kernel->name_bytes);
  name[kernel->name_bytes] = 0;
  if (cuLibraryGetKernel(&handle, comparison->library, name) != CUDA_SUCCESS)
    return true; /* of an entry that this device doesn't use */
  unsigned same = 0;
  while (same < kernel->count &&
         cuKernelGetParamInfo(handle, same, &offset, &bytes) == CUDA_SUCCESS &&
         offset == kernel->parameters[same].offset && bytes == kernel->parameters[same].bytes)
    same++;
  comparison->compared++;
  if (!kernel->known || same != kernel->count ||
      cuKernelGetParamInfo(handle, same, &offset, &bytes) == CUDA_SUCCESS) {
    printf("# %s: parameter %u\n", name, same);
    comparison->differing++;
  }
  return true;
}

static void test_agreement(void) {
  glob_t files = {0};
  struct comparison total = {0};
  unsigned loaded = 0;
  if (glob(IMAGES_FOLDER "/*.fatbin", 0, NULL, &files) ||
      glob(IMAGES_FOLDER "/*.cubin", GLOB_APPEND, NULL, &files) ||
      glob(KERNELS_FOLDER "/*.ptx", GLOB_APPEND, NULL, &files) || cuInit(0) != CUDA_SUCCESS)
    bail("no images, or no driver");
  for (size_t i = 0; i < files.gl_pathc; i++) {
    FILE *file = fopen(files.gl_pathv[i], "rb");
    char *image = calloc(1, 8 << 20);
    if (!file || !image ||
        cuLibraryLoadFromFile(&total.library, files.gl_pathv[i], NULL, NULL, 0, NULL, NULL, 0) !=
            CUDA_SUCCESS) {
      if (file)
        (void)fclose(file);
      free(image);
      continue;
    }
    const size_t bytes = fread(image, 1, (8 << 20) - 1, file);
    (void)image_each(image, bytes, compare_with_driver, &total);
    loaded++;
    (void)cuLibraryUnload(total.library);
    (void)fclose(file);
    free(image);
  }
  globfree(&files);
  tap_ok(loaded > 10 && total.compared > 60 && !total.differing,
         "%u kernels of %u images have the parameters that the simulated driver tells",
         total.compared, loaded);
}

/* ---- records ---- */

static CUfunction handle(unsigned which) {
  static char some[16];
  return (CUfunction)(void *)&some[which];
}

static bool tells(CUfunction function, const struct expected *kernel) {
  size_t offset, bytes;
  for (unsigned i = 0; i < kernel->count; i++)
    if (!image_parameter(function, i, &offset, &bytes) || offset != kernel->parameters[i].offset ||
        bytes != kernel->parameters[i].bytes)
      return false;
  return !image_why(function) && !image_parameter(function, kernel->count, &offset, &bytes);
}

static bool says(const char *why, const char *part) {
  return why && strstr(why, part);
}

static void load(const void *module, const char *file) {
  struct bytes sample = read_sample(file);
  image_loaded(module, sample.at);
  memset(sample.at, 0xee, sample.count); /* as a program may, once it is loaded */
  free(sample.at);
}

static void test_records(void) {
  int module, second, library;
  CUfunction f = handle(0), g = handle(1), k = handle(2);
  static const char *const files[] = {"images.cubin", "images.ptx", "images_lz4.fatbin",
                                      "images_default.fatbin"};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    load(&module, files[i]);
    unsigned right = 0;
    for (unsigned e = 0; e < EXPECTED; e++) {
      image_kernel_found(f, &module, expected[e].name);
      right += tells(f, &expected[e]) && !image_check(f) && tells(f, &expected[e]) &&
               strcmp(image_function_name(f), expected[e].name) == 0;
    }
    tap_ok(right == EXPECTED, "a buffer freed after its load was read before: %s", files[i]);
    image_unloaded(&module);
  }
  load(&module, "images_zstd.fatbin");
  image_kernel_found(f, &module, expected[1].name);
  tap_ok(says(image_why(f), "zstd") && says(image_check(f), "zstd"), "zstd is given as the reason");
  image_unloaded(&module);
  tap_ok(!image_function_name(f) && says(image_why(f), "not seen"),
         "nothing is known of a kernel whose module is gone");
  load(&module, "images.cubin");
  load(&second, "images.ptx");
  image_kernel_found(f, &module, expected[1].name);
  image_kernel_found(g, &second, expected[3].name);
  tap_ok(tells(f, &expected[1]) && tells(g, &expected[3]), "two modules");
  image_unloaded(&module);
  tap_ok(tells(g, &expected[3]) && !image_function_name(f), "the end of one leaves the other");
  image_kernel_found(g, &second, expected[2].name);
  tap_ok(tells(g, &expected[2]), "a handle that comes again under another name is another kernel");
  load(&second, "images_lz4.fatbin");
  tap_ok(!image_function_name(g), "a module's handle that comes again is another module");
  image_kernel_found(g, &second, "no_such_kernel");
  tap_ok(says(image_why(g), "no such kernel"), "a name that the image hasn't");
  image_unloaded(&second);

  load(&library, "images.cubin");
  image_kernel_found(k, &library, expected[1].name);
  image_function_of_kernel(f, k);
  image_module_of_library(&module, &library);
  image_kernel_found(g, &module, expected[3].name);
  tap_ok(tells(k, &expected[1]) && tells(f, &expected[1]) && tells(g, &expected[3]),
         "kernels of a library, their functions, and functions of the library's module");
  image_unloaded(&library);
  tap_ok(!image_function_name(k) && !image_function_name(f) && !image_function_name(g),
         "all of them end with the library");
  char path[4096];
  snprintf(path, sizeof path, "%s/images_lz4.fatbin", IMAGES_FOLDER);
  image_loaded_file(&module, path);
  image_kernel_found(f, &module, expected[2].name);
  tap_ok(tells(f, &expected[2]), "a file is read");
  image_loaded_file(&module, "/nowhere");
  image_kernel_found(f, &module, expected[2].name);
  tap_ok(says(image_why(f), "can't be read"), "a file that can't be read again is the reason");
  image_unloaded(&module);
  load(&module, "images.cubin");
  image_kernel_found(f, &module, expected[1].name);
  active = false;
  size_t offset, bytes;
  tap_ok(!image_wanted() && !image_function_name(f) && !image_parameter(f, 0, &offset, &bytes),
         "nothing is answered when the hooks have stopped");
  active = true;
  image_unloaded(&module);
}

/* A fatbin in this object, as nvcc's registration code has it. */
#define EMBED(name, file)                                                                          \
  extern const unsigned char name[];                                                               \
  __asm__(".section .nv_fatbin,\"a\"\n.balign 8\n.globl " #name "\n" #name ":\n.incbin \"" file    \
          "\"\n.previous\n")
EMBED(embedded_lz4, IMAGES_FOLDER "/images_lz4.fatbin");

struct wrapper {
  unsigned magic, version;
  const void *fatbin, *file;
};

static void test_wrappers(void) {
  static const struct wrapper wrapper = {0x466243b1, 1, embedded_lz4, NULL};
  int module, unseen;
  CUfunction f = handle(4), g = handle(5);
  image_loaded(&module, &wrapper);
  image_kernel_found(f, &module, expected[1].name);
  tap_ok(tells(f, &expected[1]) && !image_check(f) && tells(f, &expected[1]),
         "a fatbin in a loaded object is looked into when it is asked about");
  image_unloaded(&module);
  image_kernel_found(g, &unseen, expected[3].name);
  tap_ok(says(image_why(g), "not seen"), "a module that nobody saw loaded");
  image_wrapper_seen(&wrapper);
  image_adam_registered(expected[3].name);
  image_unloaded(&unseen);
  image_kernel_found(g, &unseen, expected[3].name);
  tap_ok(tells(g, &expected[3]), "what was registered under the kernel's name is its image");
  image_kernel_found(f, &unseen, expected[1].name);
  tap_ok(says(image_why(f), "not seen"), "but not of another name");
  image_unloaded(&unseen);
}

/* A fatbin of two PTX entries. */
static size_t two_entries(unsigned char *to, const char *first, const char *second) {
  const char *const texts[] = {first, second};
  size_t at = 16;
  for (unsigned i = 0; i < 2; i++) {
    const size_t bytes = (strlen(texts[i]) + 8) / 8 * 8;
    const uint16_t kind = 1;
    const uint32_t header_bytes = 64;
    const uint64_t payload = bytes;
    memset(to + at, 0, 64 + bytes);
    memcpy(to + at, &kind, 2);
    memcpy(to + at + 4, &header_bytes, 4);
    memcpy(to + at + 8, &payload, 8);
    memcpy(to + at + 64, texts[i], strlen(texts[i]));
    at += 64 + bytes;
  }
  const uint32_t magic = 0xba55ed50;
  const uint16_t one = 1, header_bytes = 16;
  const uint64_t rest = at - 16;
  memcpy(to, &magic, 4);
  memcpy(to + 4, &one, 2);
  memcpy(to + 6, &header_bytes, 2);
  memcpy(to + 8, &rest, 8);
  return at;
}

static unsigned char two[512];

static void test_disagreement(void) {
  static const struct wrapper wrapper = {0x466243b1, 1, two, NULL};
  static const char first[] = ".entry a(.param .u64 x)";
  static const struct {
    const char *second, *why;
  } seconds[] = {{".entry a(.param .u64 x) ", NULL},
                 {".entry b()", NULL},
                 {".entry a(.param .u32 x)", "disagree"},
                 {".entry a(.param .u64 x, .param .u8 y)", "disagree"},
                 {".entry a()", "disagree"},
                 {".entry a(.param .f16x2 x)", "doesn't know"}};
  int module;
  CUfunction f = handle(6);
  for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
    for (int kept = 0; kept < 2; kept++) {
      unsigned char *copy = malloc(sizeof two);
      const size_t bytes = two_entries(two, first, seconds[i].second);
      memcpy(copy, two, bytes);
      image_loaded(&module, kept ? (const void *)&wrapper : copy);
      free(copy);
      image_kernel_found(f, &module, "a");
      const char *why = image_check(f);
      tap_ok(seconds[i].why ? says(why, seconds[i].why) : !why, "entries '%s' and '%s'%s", first,
             seconds[i].second, kept ? ", in a loaded object" : "");
      image_unloaded(&module);
    }
}

int main(void) {
  test_kinds();
  test_truncations();
  test_flips();
  test_lz4();
  test_ptx();
  test_records();
  test_wrappers();
  test_disagreement();
  test_agreement();
  return tap_done();
}
