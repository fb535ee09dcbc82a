/* Recognition against every optimizer kernel name and layout of PyTorch's wheels, and a launch's arguments in both forms. The
   driver is a table of this test's own. */
#include "shim/driver.h"
#include "shim/recognise.h"
#include "tests/lib/tap.h"
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

static bool ours(const struct row *row) {
  return strcmp(row->type, "f32") == 0 && strcmp(row->amsgrad, "0") == 0 &&
         (strcmp(row->scalars, "DBL") == 0 || strcmp(row->scalars, "OPM") == 0);
}

static void test_names(void) {
  unsigned wanted = 0, accepted = 0, wrong = 0;
  for (unsigned i = 0; i < row_count; i++) {
    const struct function *function = ask(fresh(), rows[i].name, &rows[i]);
    wanted += ours(&rows[i]);
    accepted += function != NULL;
    wrong += (function != NULL) != ours(&rows[i]);
    if (function && (function->family->metadata_bytes != rows[i].sizes[0] ||
                     (function->family->mode == ADAM_W) != (strcmp(rows[i].mode, "adamw") == 0)))
      wrong++;
  }
  tap_ok(row_count == 89 && wanted == 6 && accepted == 6 && wrong == 0,
         "of %u names and layouts the %u of fp32 Adam and AdamW are taken, and no other", row_count,
         wanted);
}

static const struct row *first_of_ours(void) {
  for (unsigned i = 0; i < row_count; i++)
    if (ours(&rows[i]))
      return &rows[i];
  return NULL;
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
      hash_taken += recognise_name(name) != NULL;
      hash_digits++;
    }
    name[i] = name[i] == 'g' ? 'h' : 'g';
    refused += recognise_name(name) == NULL;
  }
  tap_ok(refused == length, "a change of any one of %zu characters of a name is refused", length);
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
  tap_ok(refused == changes, "a change of any offset or size is refused");
  struct row fewer = *row, more = *row, flagged = *row;
  fewer.count--;
  more.offsets[more.count] = more.offsets[more.count - 1] + 8;
  more.sizes[more.count++] = 8;
  tap_ok(!ask(fresh(), row->name, &fewer), "one parameter less is refused");
  tap_ok(!ask(fresh(), row->name, &more), "one parameter more is refused");
  flagged.sizes[2] |= (size_t)5 << 24;
  tap_ok(ask(fresh(), row->name, &flagged) != NULL, "flag bits above a size are no part of it");
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
  tap_ok(taken > 100 && taken < 1000 && told == 1, "a full table is told once as a reason");
}

/* ---- launches ---- */

static void test_arguments(const struct row *row) {
  const struct family *family = ask(fresh(), row->name, row)->family;
  static unsigned char buffer[METADATA_BYTES_MOST + 80];
  memset(buffer, 0xb7, sizeof buffer); /* the list's unused tail holds nonsense */
  unsigned char *tail = buffer + family->metadata_bytes;
  const double numbers[] = {1e-3, 0.9, 0.999, 0.01, 1e-8};
  const uint64_t lr_pointer = 0x1000, grad_scale = 0x2000, found_inf = 0x3000;
  memcpy(tail + 8, &lr_pointer, 8);
  memcpy(tail + 16, numbers, sizeof numbers);
  tail[56] = 1;
  memcpy(tail + 64, &grad_scale, 8);
  memcpy(tail + 72, &found_inf, 8);
  const uintptr_t lists[4] = {0x100000, 0x200000, 0x300000, 0x400000};
  metadata_set_tensor(family, buffer, 0, lists, CHUNK_ELEMENTS + 5, 0x5000);
  metadata_set_block(family, buffer, 0, 0, 0);
  metadata_set_block(family, buffer, 1, 0, 1);
  tap_ok(metadata_address(family, buffer, LIST_EXP_AVG_SQ, 0) == 0x400000 &&
             metadata_elements(family, buffer, 0) == CHUNK_ELEMENTS + 5 &&
             metadata_step(family, buffer, 0) == 0x5000 &&
             metadata_block_tensor(family, buffer, 1) == 0 &&
             metadata_block_chunk(family, buffer, 1) == 1,
         "what is written into a tensor list is read back from it (%u bytes)",
         family->metadata_bytes);

  void *pointers[FAMILY_PARAMETERS] = {buffer,    tail,      tail + 8,  tail + 16,
                                       tail + 24, tail + 32, tail + 40, tail + 48,
                                       tail + 56, tail + 64, tail + 72};
  size_t bytes = family->metadata_bytes + 80u;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  struct launch launch = {
      .grid = {2, 1, 1}, .block = {512, 1, 1}, .plain = true, .kernel_parameters = pointers};
  struct arguments one, other;
  const char *why = NULL;
  bool read = arguments_read(family, &launch, &one, &why);
  tap_ok(read && (uintptr_t)one.lr_pointer == lr_pointer && one.lr == 1e-3 && one.beta1 == 0.9 &&
             one.beta2 == 0.999 && one.weight_decay == 0.01 && one.eps == 1e-8 &&
             one.maximize == 1 && (uintptr_t)one.grad_scale == grad_scale &&
             (uintptr_t)one.found_inf == found_inf && one.metadata == buffer,
         "every argument is read from the kernel's parameters");
  launch.kernel_parameters = NULL;
  launch.extra = extra;
  read = arguments_read(family, &launch, &other, &why);
  tap_ok(read && other.metadata == one.metadata && other.lr == one.lr && other.eps == one.eps &&
             other.maximize == one.maximize && other.found_inf == one.found_inf &&
             other.lr_pointer == one.lr_pointer,
         "the packed form says the same");
  bytes--;
  tap_ok(!arguments_read(family, &launch, &other, &why) && why,
         "packed parameters too short are refused");
  bytes++;
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
  metadata_set_address(family, buffer, LIST_EXP_AVG, 0, 0);
  refused += launch_unsound(family, &launch, &one) != NULL;
  metadata_set_address(family, buffer, LIST_EXP_AVG, 0, 0x300002);
  refused += launch_unsound(family, &launch, &one) != NULL;
  metadata_set_address(family, buffer, LIST_EXP_AVG, 0, 0x300000);
  tap_ok(refused == 7 && !launch_unsound(family, &launch, &one),
         "block shape, grid, chunk beyond the tensor, no or crooked addresses are noticed");
}

int main(int count, char **arguments) {
  driver.cuFuncGetName = func_name;
  driver.cuKernelGetName = kernel_name;
  driver.cuFuncGetParamInfo = func_info;
  driver.cuKernelGetParamInfo = kernel_info;
  const char *path = count > 1 ? arguments[1] : KERNEL_NAMES;
  if (!tap_ok(read_rows(path), "the names of PyTorch's kernels can be read"))
    return tap_done();
  test_names();
  const struct row *row = first_of_ours();
  test_changes(row);
  test_layouts(row);
  test_cache(row);
  for (unsigned i = 0; i < row_count; i++)
    if (ours(&rows[i]) && strcmp(rows[i].scalars, "OPM") == 0 && strcmp(rows[i].mode, "adamw") == 0)
      test_arguments(&rows[i]);
  test_full(row);
  return tap_done();
}
