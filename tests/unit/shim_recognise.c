/* Recognition against every optimizer kernel name and layout of PyTorch's wheels, and a launch's arguments in both forms. The
   driver is a table of this test's own. */
#include "shim/driver.h"
#include "shim/process.h"
#include "shim/range.h"
#include "shim/recognise.h"
#include "shim/unknown.h"
#include "tests/lib/tap.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct driver driver;

enum { ROWS = 200, PARAMETERS = 32 };
struct row {
  char scalars[8], type[24], mode[16], amsgrad[4], name[700];
  unsigned count;
  size_t offsets[PARAMETERS], sizes[PARAMETERS];
};
static struct row rows[ROWS];
static unsigned row_count;

/* ---- the driver that is asked ---- */

static const char *answer_name;
static const struct row *answer_row;
static unsigned questions;
static bool kernels_only; /* functions are CUkernels: only cuKernel* answers */

static CUresult func_name(const char **name, CUfunction function) {
  (void)function;
  questions++;
  if (kernels_only)
    return CUDA_ERROR_INVALID_HANDLE;
  *name = answer_name;
  return CUDA_SUCCESS;
}
static CUresult kernel_name(const char **name, CUkernel kernel) {
  (void)kernel;
  if (!kernels_only)
    return CUDA_ERROR_INVALID_HANDLE;
  *name = answer_name;
  return CUDA_SUCCESS;
}
static CUresult param_info(size_t index, size_t *offset, size_t *size) {
  if (index >= answer_row->count)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = answer_row->offsets[index];
  *size = answer_row->sizes[index];
  return CUDA_SUCCESS;
}
static CUresult func_info(CUfunction function, size_t index, size_t *offset, size_t *size) {
  (void)function;
  return kernels_only ? CUDA_ERROR_INVALID_HANDLE : param_info(index, offset, size);
}
static CUresult kernel_info(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
  (void)kernel;
  return param_info(index, offset, size);
}

struct range *range_find(uintptr_t address) {
  (void)address;
  return NULL;
}

static struct function *ask(uintptr_t handle, const char *name, const struct row *row) {
  answer_name = name;
  answer_row = row;
  return recognise((CUfunction)handle);
}

/* A handle that was never met. */
static uintptr_t fresh(void) {
  static uintptr_t last = 0x7f0000001000;
  return last += 0x40;
}

/* ---- the rows ---- */

static bool read_rows(const char *path) {
  FILE *file = fopen(path, "r");
  char line[4096], layout[1024], first[16], last[16], pattern[700];
  while (file && fgets(line, sizeof line, file)) {
    struct row *row = &rows[row_count];
    if (line[0] == '#' ||
        sscanf(line, "%7s %23s %15s %3s %15s %15s %699s %1023[^\n]", row->scalars, row->type,
               row->mode, row->amsgrad, first, last, pattern, layout) != 8)
      continue;
    /* {H} becomes eight digits */
    char *to = row->name;
    for (const char *from = pattern; *from;) {
      const bool hash = strncmp(from, "{H}", 3) == 0;
      to += sprintf(to, "%.*s", hash ? 8 : 1, hash ? "f7f2fd5f" : from);
      from += hash ? 3 : 1;
    }
    for (char *item = strtok(layout, " "); item; item = strtok(NULL, " ")) {
      unsigned ordinal;
      size_t offset, size;
      if (sscanf(item, "%u:%zu:%zu", &ordinal, &offset, &size) == 3 && ordinal == row->count) {
        row->offsets[row->count] = offset;
        row->sizes[row->count++] = size;
      }
    }
    row_count++;
  }
  if (file)
    fclose(file);
  return row_count > 0;
}

/* Rows of the optimizer, not of its neighbours (step counters, the gradient scaler). */
static bool ours(const struct row *row) {
  static const char *const families[] = {"OLD", "DBL", "OPM", "MP"};
  for (unsigned i = 0; i < 4; i++)
    if (strcmp(row->scalars, families[i]) == 0)
      return true;
  return false;
}

/* What the row of a family must be recognised as. */
static bool as_the_row_says(const struct family *family, const struct row *row) {
  static const struct {
    const char *type, *title;
    unsigned parameter, state;
    enum adam_type of_parameter, of_state;
  } types[] = {{"f32", "fp32", 4, 4, ADAM_TYPE_FLOAT, ADAM_TYPE_FLOAT},
               {"f64", "fp64", 8, 8, ADAM_TYPE_DOUBLE, ADAM_TYPE_DOUBLE},
               {"f16", "fp16", 2, 2, ADAM_TYPE_HALF, ADAM_TYPE_HALF},
               {"bf16", "bf16", 2, 2, ADAM_TYPE_BFLOAT16, ADAM_TYPE_BFLOAT16},
               {"f32+bf16states", "fp32/bf16 state", 4, 2, ADAM_TYPE_FLOAT, ADAM_TYPE_BFLOAT16}};
  const bool old = strcmp(row->scalars, "OLD") == 0, amsgrad = row->amsgrad[0] == '1';
  const bool adamw =
      old ? strstr(row->name, "_fused_adamw_") != NULL : strcmp(row->mode, "adamw") == 0;
  for (unsigned i = 0; i < 5; i++) {
    char title[64];
    snprintf(title, sizeof title, "Adam%s%s %s", adamw ? "W" : "", amsgrad ? " amsgrad" : "",
             types[i].title);
    if (strcmp(types[i].type, row->type) == 0)
      return strcmp(family->name, title) == 0 && family->mode == (adamw ? ADAM_W : ADAM_L2) &&
             strcmp(family->family, adamw ? "torch_fused_adamw" : "torch_fused_adam") == 0 &&
             family->lists == (amsgrad ? 5 : 4) && family->parameter_bytes == types[i].parameter &&
             family->state_bytes == types[i].state && family->metadata_bytes == row->sizes[0] &&
             family->type == types[i].of_parameter && family->state_type == types[i].of_state;
  }
  return false;
}

static void test_names(void) {
  unsigned wanted = 0, accepted = 0, wrong = 0;
  for (unsigned i = 0; i < row_count; i++) {
    const struct function *function = ask(fresh(), rows[i].name, &rows[i]);
    wanted += ours(&rows[i]);
    accepted += function != NULL;
    if ((function != NULL) != ours(&rows[i]) ||
        (function && !as_the_row_says(&function->family, &rows[i]))) {
      wrong++;
      printf("# %s %s %s amsgrad %s: %s\n", rows[i].scalars, rows[i].type, rows[i].mode,
             rows[i].amsgrad, function ? function->family.name : "left alone");
    }
  }
  tap_ok(
      row_count == 89 && wanted == 84 && accepted == wanted && wrong == 0,
      "of %u names and layouts the %u of fused Adam and AdamW are taken, each as what it is, and "
      "no other",
      row_count, wanted);
}

/* The tensor list as the wheels' sources have it, for the layouts of every release. */
#define LIST(name, lists, tensors, blocks, count, index)                                           \
  struct name {                                                                                    \
    const void *addresses[lists][tensors];                                                         \
    count numel[tensors];                                                                          \
    const void *steps[tensors];                                                                    \
    index block_tensor[blocks];                                                                    \
    int block_chunk[blocks];                                                                       \
    int start;                                                                                     \
  };
LIST(narrow_4, 4, 36, 320, int, unsigned char)
LIST(narrow_5, 5, 30, 320, int, unsigned char)
LIST(middle_4, 4, 36, 320, int64_t, unsigned char)
LIST(middle_5, 5, 30, 320, int64_t, unsigned char)
LIST(large_4, 4, 252, 2240, int64_t, uint16_t)
LIST(large_5, 5, 210, 2240, int64_t, uint16_t)

static void test_lists(void) {
#define OFFSETS(type)                                                                              \
  {                                                                                                \
    sizeof(struct type), offsetof(struct type, numel), offsetof(struct type, steps),               \
        offsetof(struct type, block_tensor), offsetof(struct type, block_chunk)                    \
  }
  static const size_t wanted[][5] = {OFFSETS(narrow_4), OFFSETS(narrow_5), OFFSETS(middle_4),
                                     OFFSETS(middle_5), OFFSETS(large_4),  OFFSETS(large_5)};
  unsigned seen = 0, right = 0;
  for (unsigned i = 0; i < row_count; i++) {
    const struct function *function = ask(fresh(), rows[i].name, &rows[i]);
    for (unsigned k = 0; function && k < 6; k++)
      if (function->family.metadata_bytes == wanted[k][0]) {
        const struct family *family = &function->family;
        seen |= 1u << k;
        right += family->numel_offset == wanted[k][1] && family->steps_offset == wanted[k][2] &&
                 family->block_tensor_offset == wanted[k][3] &&
                 family->block_chunk_offset == wanted[k][4];
      }
  }
  tap_ok(seen == 63 && right == 84, "every tensor list is laid out as a C compiler lays it out");
}

/* The first row of a family, with so many tensor lists in so many bytes. */
static const struct row *row_of(const char *scalars, const char *type, size_t bytes) {
  for (unsigned i = 0; i < row_count; i++)
    if (strcmp(rows[i].scalars, scalars) == 0 && strcmp(rows[i].type, type) == 0 &&
        rows[i].sizes[0] == bytes)
      return &rows[i];
  tap_ok(false, "there is a row of %s, %s, %zu bytes", scalars, type, bytes);
  exit(tap_done());
}

static void test_changes(const struct row *row) {
  unsigned refused = 0, hash_taken = 0, hash_digits = 0;
  const size_t length = strlen(row->name);
  const char *first_hash = strstr(row->name, "f7f2fd5f");
  const char *second_hash = strstr(first_hash + 8, "f7f2fd5f");
  for (size_t i = 0; i < length; i++) {
    char name[700];
    memcpy(name, row->name, length + 1);
    const char *at = row->name + i;
    const bool hash =
        (at >= first_hash && at < first_hash + 8) || (at >= second_hash && at < second_hash + 8);
    if (hash) {
      name[i] = name[i] == '0' ? 'a' : '0';
      hash_taken += recognise_name(name);
      hash_digits++;
    }
    name[i] = name[i] == 'g' ? 'h' : 'g';
    refused += !recognise_name(name);
  }
  tap_ok(refused == length, "%s %s: a change of any one of %zu characters of a name is refused",
         row->scalars, row->type, length);
  tap_ok(hash_digits == 16 && hash_taken == 16, "other digits of the two hashes are taken");
  char longer[701];
  snprintf(longer, sizeof longer, "%s_", row->name);
  tap_ok(!recognise_name(longer), "a longer name is refused");
  char shorter[700];
  snprintf(shorter, sizeof shorter, "%.*s", (int)length - 1, row->name);
  tap_ok(!recognise_name(shorter), "a shorter name is refused");
}

static void test_layouts(const struct row *row) {
  unsigned refused = 0, changes = 0;
  for (unsigned i = 0; i < row->count; i++)
    for (int what = 0; what < 2; what++) {
      struct row changed = *row;
      if (what)
        changed.offsets[i] += 8;
      else
        changed.sizes[i] += 4;
      refused += ask(fresh(), row->name, &changed) == NULL;
      changes++;
    }
  tap_ok(refused == changes, "%s %s, %zu bytes: a change of any offset or size is refused",
         row->scalars, row->type, row->sizes[0]);
  struct row fewer = *row, more = *row, flagged = *row;
  fewer.count--;
  more.offsets[more.count] = more.offsets[more.count - 1] + 8;
  more.sizes[more.count++] = 8;
  tap_ok(!ask(fresh(), row->name, &fewer), "one parameter less is refused");
  tap_ok(!ask(fresh(), row->name, &more), "one parameter more is refused");
  flagged.sizes[2] |= (size_t)5 << 24;
  tap_ok(ask(fresh(), row->name, &flagged) != NULL, "flag bits above a size are no part of it");
}

/* After test_layouts. */
static void test_told(void) {
  unsigned told = 0;
  for (unsigned i = 0; i < atomic_load(&report.function_count); i++)
    told += strstr(report.functions[i].why, "left alone") != NULL;
  unsigned reasons = 0;
  for (unsigned i = 0; i < atomic_load(&report.reason_count); i++)
    reasons += strstr(report.reasons[i], "left alone") != NULL;
  tap_ok(
      told > 0 && told <= 8 && reasons > 0 && reasons <= told,
      "the right name with another layout is told in the report, as a row and among the reasons");
}

/* Somebody else's optimizer: known, and never ours. */
static void test_foreign(const struct row *row) {
  static const char name[] = "triton_for_fused_0";
  const uintptr_t handle = fresh();
  struct function *function = ask(handle, name, row);
  const unsigned functions = atomic_load(&report.function_count);
  tap_ok(function && function->foreign && !function->row && !function->family.lists,
         "somebody else's optimizer is known by its name and has no family");
  unsigned same = 0;
  for (unsigned i = 0; i < 300; i++) {
    recognise_forget();
    same += ask(handle, name, row) == function;
  }
  tap_ok(same == 300 && atomic_load(&report.function_count) == functions,
         "it is the same after any number of modules were unloaded");
}

static void test_cache(const struct row *row) {
  const uintptr_t handle = fresh();
  struct function *function = ask(handle, row->name, row);
  const unsigned before = questions;
  tap_ok(function && ask(handle, row->name, row) == function && questions == before,
         "a function met before is answered without asking the driver");
  const uintptr_t other = fresh();
  ask(other, "_Z4axpyPf", row);
  const unsigned asked = questions;
  tap_ok(!ask(other, row->name, row) && questions == asked, "so is one that is not ours");
  recognise_forget();
  tap_ok(!ask(handle, "_Z4axpyPf", row) && questions > asked,
         "after a module was unloaded its handles are looked at anew");
  function->branches = (struct branch *)&other;
  unsigned same = 0;
  for (unsigned i = 0; i < 300; i++) {
    recognise_forget();
    same += ask(handle, row->name, row) == function && function->branches;
  }
  tap_ok(same == 300,
         "a handle that comes again under its name is what it was, after any number of "
         "modules were unloaded");
  function->branches = NULL;
  char other_build[700];
  snprintf(other_build, sizeof other_build, "%s", row->name);
  strstr(other_build, "f7f2fd5f")[0] = '0';
  recognise_forget();
  struct function *again = ask(handle, other_build, row);
  tap_ok(again && again != function && again->row == function->row && !again->branches,
         "a handle of another build's function keeps its row in the report and nothing else");
  kernels_only = true;
  tap_ok(ask(fresh(), row->name, row) != NULL, "a CUkernel passed as a CUfunction is recognised");
  kernels_only = false;
  tap_ok(!recognise(NULL), "no function is not recognised");
}

/* Last: nothing new is recognised afterwards. */
static void test_full(const struct row *row) {
  unsigned taken = 0;
  while (ask(fresh(), row->name, row) && taken < 1000)
    taken++;
  (void)ask(fresh(), row->name, row);
  unsigned told = 0;
  for (unsigned i = 0; i < atomic_load(&report.reason_count); i++)
    told += strstr(report.reasons[i], "fused Adam functions were met") != NULL;
  tap_ok(taken < 1000 && told == 1, "a full table is told once as a reason");
}

/* ---- launches ---- */

/* A kernel's arguments as bytes behind the tensor list, by their order in the row's releases. */
enum { TAIL_BYTES = 96 };
static const double numbers[] = {1e-3, 0.9, 0.999, 0.01, 1e-8};
static const uint64_t lr_pointer = 0x1000, grad_scale = 0x2000, found_inf = 0x3000;

/* Fills the tail; what is behind its functor begins at parameter 2. */
static void fill_tail(const struct family *family, const struct row *row, unsigned char *tail) {
  const bool old = strcmp(row->scalars, "OLD") == 0,
             has_lr_pointer = row->sizes[3] == 8 && row->count != 12;
  unsigned i = 2;
#define PUT(value)                                                                                 \
  do {                                                                                             \
    memcpy(tail + row->offsets[i] - row->sizes[0], &(value), row->sizes[i]);                       \
    i++;                                                                                           \
  } while (0)
  const unsigned char yes = 1, amsgrad = family->lists == 5, mode = family->mode == ADAM_W;
  if (has_lr_pointer)
    PUT(lr_pointer);
  for (unsigned k = 0; k < 5; k++)
    PUT(numbers[k]);
  PUT(yes);
  if (old)
    PUT(amsgrad);
  PUT(grad_scale);
  PUT(found_inf);
  if (old)
    PUT(mode);
#undef PUT
  tap_ok(i == row->count, "%s %s, %zu bytes: as many arguments as the kernel has", row->scalars,
         row->type, row->sizes[0]);
}

static bool numbers_are(const struct arguments *read, bool with_lr_pointer) {
  return (uintptr_t)read->lr_pointer == (with_lr_pointer ? lr_pointer : 0) && read->lr == 1e-3 &&
         read->beta1 == 0.9 && read->beta2 == 0.999 && read->weight_decay == 0.01 &&
         read->eps == 1e-8 && read->maximize == 1 && (uintptr_t)read->grad_scale == grad_scale &&
         (uintptr_t)read->found_inf == found_inf;
}

static const struct row *launched_row;
static unsigned char launched[METADATA_BYTES_MOST + TAIL_BYTES];

static CUresult kernel_launched(CUfunction function, unsigned a, unsigned b, unsigned c, unsigned d,
                                unsigned e, unsigned f, unsigned g, CUstream stream,
                                void **parameters, void **extra) {
  (void)function, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)stream;
  (void)extra;
  for (unsigned i = 0; i < launched_row->count; i++)
    memcpy(launched + launched_row->offsets[i], parameters[i], launched_row->sizes[i]);
  return CUDA_SUCCESS;
}

static void test_arguments(const struct row *row) {
  const struct function *function = ask(fresh(), row->name, row);
  const struct family *family = &function->family;
  static unsigned char buffer[METADATA_BYTES_MOST + TAIL_BYTES];
  memset(buffer, 0xb7, sizeof buffer); /* the list's unused tail holds nonsense */
  unsigned char *tail = buffer + family->metadata_bytes;
  fill_tail(family, row, tail);
  const uintptr_t lists[LISTS_MOST] = {0x100000, 0x200000, 0x300000, 0x400000, 0x500000};
  metadata_set_tensor(family, buffer, 0, lists, CHUNK_ELEMENTS + 5, 0x6000);
  metadata_set_block(family, buffer, 0, 0, 0);
  metadata_set_block(family, buffer, 1, 0, 1);
  bool back = true;
  for (unsigned list = 0; list < family->lists; list++)
    back = back && metadata_address(family, buffer, (enum tensor_list)list, 0) == lists[list];
  tap_ok(back && metadata_elements(family, buffer, 0) == CHUNK_ELEMENTS + 5 &&
             metadata_step(family, buffer, 0) == 0x6000 &&
             metadata_block_tensor(family, buffer, 1) == 0 &&
             metadata_block_chunk(family, buffer, 1) == 1 &&
             metadata_chunk_elements(family, buffer, 0) == CHUNK_ELEMENTS &&
             metadata_chunk_elements(family, buffer, 1) == 5,
         "what is written into a tensor list is read back from it (%u bytes)",
         family->metadata_bytes);

  void *pointers[PARAMETERS];
  for (unsigned i = 0; i < row->count; i++)
    pointers[i] = buffer + row->offsets[i];
  size_t bytes = row->offsets[row->count - 1] + row->sizes[row->count - 1];
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  struct launch launch = {
      .grid = {2, 1, 1}, .block = {512, 1, 1}, .plain = true, .kernel_parameters = pointers};
  struct arguments one, other;
  const char *why = NULL;
  const bool pointer = row->count != 12, old = strcmp(row->scalars, "OLD") == 0;
  bool read = arguments_read(family, &launch, &one, &why);
  tap_ok(read && numbers_are(&one, pointer) && one.metadata == buffer,
         "every argument is read from the kernel's parameters");
  launch.kernel_parameters = NULL;
  launch.extra = extra;
  read = arguments_read(family, &launch, &other, &why);
  tap_ok(read && numbers_are(&other, pointer) && other.metadata == buffer,
         "the packed form says the same");
  bytes--;
  tap_ok(!arguments_read(family, &launch, &other, &why) && why,
         "packed parameters too short are refused");
  bytes++;
  memset(launched, 0xb7, sizeof launched);
  launched_row = row;
  tap_ok(!arguments_launch(function, &one, 2, 0, NULL) &&
             memcmp(launched, buffer, family->metadata_bytes) == 0,
         "a launch of ours passes the tensor list");
  unsigned passed = 0;
  for (unsigned i = 2; i < row->count; i++)
    passed += memcmp(launched + row->offsets[i], buffer + row->offsets[i], row->sizes[i]) == 0;
  tap_ok(passed == row->count - 2, "and every argument, where the kernel has it");
  if (old) {
    unsigned char *mode = buffer + row->offsets[row->count - 1];
    unsigned char *amsgrad = buffer + row->offsets[row->count - 4];
    unsigned refused = 0;
    *mode ^= 1;
    refused += !arguments_read(family, &launch, &other, &why);
    *mode ^= 1;
    *amsgrad ^= 1;
    refused += !arguments_read(family, &launch, &other, &why);
    *amsgrad ^= 1;
    tap_ok(refused == 2, "a mode or amsgrad that the name contradicts is refused");
  }
  launch.kernel_parameters = pointers;
  tap_ok(!launch_unsound(family, &launch, &one),
         "nonsense in entries that no block names does no harm");

  unsigned refused = 0;
  launch.block[0] = 256;
  refused += launch_unsound(family, &launch, &one) != NULL;
  launch.block[0] = 512, launch.grid[1] = 2;
  refused += launch_unsound(family, &launch, &one) != NULL;
  launch.grid[1] = 1, launch.grid[0] = 3; /* a third block: nonsense now counts */
  refused += launch_unsound(family, &launch, &one) != NULL;
  launch.grid[0] = family->blocks + 1;
  refused += launch_unsound(family, &launch, &one) != NULL;
  launch.grid[0] = 2;
  metadata_set_block(family, buffer, 1, 0, 2);
  refused += launch_unsound(family, &launch, &one) != NULL;
  metadata_set_block(family, buffer, 1, 0, 1);
  tap_ok(refused == 5 && !launch_unsound(family, &launch, &one),
         "block shape, grid and a chunk beyond the tensor are noticed");
  refused = 0;
  for (unsigned list = 0; list < family->lists; list++)
    for (unsigned k = 0; k < 2; k++) {
      const uintptr_t crooked = lists[list] + element_bytes(family, (enum tensor_list)list) / 2;
      metadata_set_address(family, buffer, (enum tensor_list)list, 0, k ? crooked : 0);
      refused += launch_unsound(family, &launch, &one) != NULL;
      metadata_set_address(family, buffer, (enum tensor_list)list, 0, lists[list]);
    }
  tap_ok(refused == 2 * family->lists && !launch_unsound(family, &launch, &one),
         "so is no address, and one that no element can have, in each of %u lists", family->lists);
}

void unknown_end(void) {}

bool process_active(void) {
  return true;
}

int main(int count, char **arguments) {
  driver.cuFuncGetName = func_name;
  driver.cuKernelGetName = kernel_name;
  driver.cuFuncGetParamInfo = func_info;
  driver.cuKernelGetParamInfo = kernel_info;
  const char *path = count > 1 ? arguments[1] : KERNEL_NAMES;
  if (!tap_ok(read_rows(path), "the names of PyTorch's kernels can be read"))
    return tap_done();
  driver.cuLaunchKernel = kernel_launched;
  test_names();
  test_lists();
  report_reset(); /* its rows are full */
  static const struct {
    const char *scalars, *type;
    size_t bytes;
  } chosen[] = {
      {"DBL", "f32", 3336},           {"OLD", "bf16", 3192}, {"OLD", "f32", 3168},
      {"OLD", "f16", 3336},           {"OLD", "f64", 3288},  {"DBL", "f64", 3288},
      {"OPM", "f32", 25544},          {"OPM", "f16", 25208}, {"MP", "f32+bf16states", 25544},
      {"MP", "f32+bf16states", 25208}};
  for (unsigned i = 0; i < sizeof chosen / sizeof *chosen; i++) {
    const struct row *row = row_of(chosen[i].scalars, chosen[i].type, chosen[i].bytes);
    test_changes(row);
    test_layouts(row);
    test_arguments(row);
  }
  test_told();
  const struct row *row = row_of("DBL", "f32", 3336);
  test_foreign(row);
  test_cache(row);
  test_full(row);
  return tap_done();
}
