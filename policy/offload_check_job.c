/* The job for `offload check`: OFFLOAD_* settings, drives, the library and the command it is to be loaded into, what else hooks CUDA,
   and PyTorch. */
#define _GNU_SOURCE
#include "../nvme/engine.h"
#include "../nvme/files.h"
#include "check.h"
#include "inspect.h"
#include "library.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void check_settings(struct check *check) {
  char problems[sizeof check->config.problems];
  snprintf(problems, sizeof problems, "%s", check->config.problems);
  char *rest = NULL;
  for (char *line = strtok_r(problems, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *sentence = strstr(line, ": ");
    struct finding *finding =
        find(check, CHECK_settings, VERDICT_LIMITS, "%.*s",
             (int)(sentence ? sentence - line : (ptrdiff_t)strlen(line)), line);
    remedy(finding, "%s", sentence ? sentence + 2 : "see `offload variables`");
  }
  const enum config_mode mode = check->config.mode;
  if (mode == MODE_OFF)
    remedy(
        find(check, CHECK_settings, VERDICT_BLOCKS, "OFFLOAD_MODE=off: the library does nothing"),
        "unset it, or set OFFLOAD_MODE=full");
  else if (mode == MODE_OBSERVE)
    remedy(find(check, CHECK_settings, VERDICT_LIMITS,
                "OFFLOAD_MODE=observe: the library measures, and moves nothing"),
           "unset it for moving");
  else if (!check->config.problems[0])
    find(check, CHECK_settings, VERDICT_GOOD, "OFFLOAD_MODE=%s, OFFLOAD_STEP=%s",
         config_mode_name(mode), config_step_name(check->config.step));
}

/* ---- drives ---- */

/* How the file is read and written: by io_uring where it is allowed. */
static void judge_engine(struct check *check, const char *directory, int file) {
  char why[256];
  struct engine_config config = {.file = file, .depth = 4, .block_bytes = 1 << 20};
  struct engine *engine = engine_open(&config, why, sizeof why);
  if (!engine) {
    remedy(find(check, CHECK_drives, VERDICT_BLOCKS, "%.200s: %s", directory, why),
           "unset OFFLOAD_NVME, or name another directory");
    return;
  }
  const enum engine_rung rung = engine_stats(engine).rung;
  engine_close(engine);
  if (rung != ENGINE_THREADS)
    return;
  check->needs_io_uring = true;
  remedy(find(check, CHECK_drives, VERDICT_LIMITS,
              "%.200s: io_uring is not allowed; threads read and write instead", directory),
         "sysctl kernel.io_uring_disabled=0; in a container a seccomp profile that allows "
         "io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt "
         "seccomp=PROFILE.json)");
}

static void judge_directory(struct check *check, const char *directory) {
  struct drive_file file;
  char why[512], wear[64] = "wear unknown";
  if (!drive_file_open(directory, &file, why, sizeof why)) {
    char *remedy_at = strrchr(why, ';');
    struct finding *finding =
        find(check, CHECK_drives, VERDICT_LIMITS, "%.*s",
             (int)(remedy_at ? remedy_at - why : (ptrdiff_t)strlen(why)), why);
    remedy(finding, "%s", remedy_at ? remedy_at + 1 + strspn(remedy_at + 1, " ") : "");
    return;
  }
  const struct drive_health health = drive_health(file.device, *check->root ? check->root : NULL);
  if (health.percent_known)
    snprintf(wear, sizeof wear, "%u%% of its rated endurance used", health.percent_used);
  else if (health.written_known && health.rated_known && health.rated_bytes)
    snprintf(wear, sizeof wear, "%u%% of its rated endurance used",
             (unsigned)(100 * (health.written_bytes >> 20) / (health.rated_bytes >> 20)));
  find(check, CHECK_drives, VERDICT_GOOD, "%.200s: %s free, direct access works, %s%s%s", directory,
       check_size(drive_file_free_bytes(file.file)), wear, health.model[0] ? ", " : "",
       health.model);
  judge_engine(check, directory, file.file);
  close(file.file);
}

void check_drives(struct check *check) {
  if (!check->config.nvme) {
    find(check, CHECK_drives, VERDICT_GOOD, "none named in OFFLOAD_NVME");
    return;
  }
  char *directories = strdup(check->config.nvme), *rest = NULL;
  for (char *directory = strtok_r(directories, ":", &rest); directory;
       directory = strtok_r(NULL, ":", &rest))
    judge_directory(check, directory);
  free(directories);
}

/* ---- the library and the command ---- */

/* In a child that was started with the library preloaded: whether it is there, and its companion can be loaded. */
int check_child_loaded(void) {
  const void *symbol = dlsym(RTLD_DEFAULT, "offload_report");
  Dl_info info;
  char companion[PATH_MAX];
  if (!symbol || !dladdr(symbol, &info) || !info.dli_fname) {
    puts("not loaded");
    return EXIT_SUCCESS;
  }
  const char *slash = strrchr(info.dli_fname, '/');
  snprintf(companion, sizeof companion, "%.*s/liboffload-adam.so",
           (int)(slash ? slash - info.dli_fname : 0), info.dli_fname);
  if (dlopen(companion, RTLD_NOW | RTLD_LOCAL))
    puts("loaded");
  else
    printf("no companion: %s\n", dlerror());
  return EXIT_SUCCESS;
}

/* The program that measures the machine's rates, which the library starts from its own folder. */
static void judge_probe(struct check *check, const char *library) {
  char probe[LIBRARY_PATH_MOST + 16];
  const char *slash = strrchr(library, '/');
  snprintf(probe, sizeof probe, "%.*s/offload-probe", (int)(slash ? slash - library : 0), library);
  if (access(probe, X_OK) && !check->config.rates)
    remedy(find(check, CHECK_library, VERDICT_LIMITS,
                "%.400s can't be run: the machine's rates are assumed, not measured", probe),
           "put it there, or set OFFLOAD_RATES to a file of `offload bench --rates`");
}

void check_library(struct check *check) {
  static struct library library;
  char problem[3 * LIBRARY_PATH_MOST], output[512];
  int number;
  if (!library_find(check->library, &library, problem, sizeof problem)) {
    remedy(find(check, CHECK_library, VERDICT_BLOCKS, "%.480s", problem),
           "offload check --library PATH/liboffload.so");
    return;
  }
  char self[] = CHECK_SELF, name[] = "check", child[] = CHECK_CHILD_LOADED;
  char *argv[] = {self, name, child, NULL};
  const enum check_end end =
      check_run(argv, library.preload, 10000, output, sizeof output, &number);
  output[strcspn(output, "\n")] = 0;
  if (end == END_EXITED && !strcmp(output, "loaded"))
    find(check, CHECK_library, VERDICT_GOOD, "%.400s loads, and its companion", library.preload);
  else if (end == END_EXITED && !strncmp(output, "no companion", 12))
    remedy(find(check, CHECK_library, VERDICT_LIMITS, "%.200s: %.250s", library.preload, output),
           "put liboffload-adam.so beside it (libgomp1 must be installed); without it steps are "
           "`stream`");
  else
    remedy(find(check, CHECK_library, VERDICT_BLOCKS,
                "%.400s is not loaded by the dynamic linker here", library.preload),
           "LD_PRELOAD=%.400s /bin/true tells why; it must be of this machine's processor and for "
           "glibc 2.28 or later",
           library.preload);
  judge_probe(check, library.mapped);
}

void check_command(struct check *check) {
  char path[PATH_MAX], reason[256];
  if (!check->command) {
    find(check, CHECK_command, VERDICT_GOOD, "none given");
    return;
  }
  const char *name = check->command[0];
  if (!inspect_find(name, path, sizeof path))
    remedy(find(check, CHECK_command, VERDICT_BLOCKS, "%.200s: %s", name, strerror(errno)),
           "name a program that is in PATH and may be run");
  else if (!inspect_preloadable(path, reason, sizeof reason))
    remedy(
        find(check, CHECK_command, VERDICT_BLOCKS, "%.200s %s: nothing can be preloaded into it",
             path, reason),
        "use a 64-bit program that is linked dynamically with glibc and has no privileges of its "
        "file");
  else
    find(check, CHECK_command, VERDICT_GOOD, "%.400s can be preloaded", path);
}

/* ---- what else is in the way ---- */

/* The first of the names that the file defines, NULL: none. */
static const char *hooks(const char *path) {
  static const char *const names[] = {"dlsym",         "cuInit",           "cuLaunchKernel",
                                      "cuMemAlloc_v2", "cuGetProcAddress", "cuGetProcAddress_v2"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (library_exports(path, names[i]))
      return names[i];
  return NULL;
}

static bool judge_preloaded(struct check *check, const char *list, const char *where) {
  char *copy = strdup(list), *rest = NULL;
  bool any = false;
  for (char *path = strtok_r(copy, ": \t\n", &rest); path; path = strtok_r(NULL, ": \t\n", &rest)) {
    const char *base = strrchr(path, '/');
    const char *name = strncmp(base ? base + 1 : path, "liboffload", 10) ? hooks(path) : NULL;
    if (!name)
      continue;
    any = true;
    remedy(find(check, CHECK_preloads, VERDICT_LIMITS, "%.300s in %s defines %s too", path, where,
                name),
           "leave it out, or have liboffload.so in front of it, as `offload run` does; what both "
           "see is then what liboffload passes on");
  }
  free(copy);
  return any;
}

void check_preloads(struct check *check) {
  static const char *const injections[] = {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH",
                                           "NV_COMPUTE_SANITIZER_INJECTION_PATH"};
  const char *preload = check_preload_without_ours();
  bool any = judge_preloaded(check, preload, "LD_PRELOAD");
  char path[PATH_MAX], list[4096] = "";
  snprintf(path, sizeof path, "%s/etc/ld.so.preload", check->root);
  FILE *file = fopen(path, "re");
  if (file) {
    list[fread(list, 1, sizeof list - 1, file)] = 0;
    fclose(file);
    any |= judge_preloaded(check, list, "/etc/ld.so.preload");
  }
  for (size_t i = 0; i < sizeof injections / sizeof *injections; i++) {
    const char *value = getenv(injections[i]);
    if (!value || !*value)
      continue;
    any = true;
    remedy(find(check, CHECK_preloads, VERDICT_LIMITS, "%s=%.200s", injections[i], value),
           "profilers and sanitizers slow every call down: unset it unless that is meant");
  }
  if (!any)
    find(check, CHECK_preloads, VERDICT_GOOD, "%s",
         *preload ? "LD_PRELOAD has others, none of which "
                    "hooks CUDA or dlsym"
                  : "none");
}

void check_allocator(struct check *check) {
  static const char *const variables[] = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};
  static const struct {
    const char *word, *what;
  } settings[] = {
      {"expandable_segments:True", "memory of expandable segments stays where it is"},
      {"backend:cudaMallocAsync", "memory of cudaMallocAsync's pools stays where it is"},
  };
  bool any = false;
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
    const char *value = getenv(variables[i]);
    for (size_t j = 0; value && j < sizeof settings / sizeof *settings; j++)
      if (strcasestr(value, settings[j].word)) {
        any = true;
        remedy(find(check, CHECK_allocator, VERDICT_BLOCKS, "%s=%.200s: %s", variables[i], value,
                    settings[j].what),
               "take %s out of it", settings[j].word);
      }
  }
  if (!any)
    find(check, CHECK_allocator, VERDICT_GOOD, "no setting of PyTorch's allocator is in the way");
}

/* ---- PyTorch ---- */

static bool is_python(const char *path) {
  const char *slash = strrchr(path, '/');
  return !strncmp(slash ? slash + 1 : path, "python", 6);
}

/* The interpreter that would run the command: itself, or what a script's first line names. */
static bool interpreter(const char *command, char path[INSPECT_PATH_MOST]) {
  char found[INSPECT_PATH_MOST];
  if (!inspect_find(command, found, sizeof found))
    return false;
  if (is_python(found)) {
    memcpy(path, found, sizeof found);
    return true;
  }
  return inspect_script(found, path) && is_python(path);
}

void check_pytorch(struct check *check) {
  char path[INSPECT_PATH_MOST], output[128];
  char option[] = "-c";
  char program[] = "import importlib.metadata as m\n"
                   "try: print('found', m.version('torch'))\n"
                   "except m.PackageNotFoundError: print('none')";
  int number, major = 0;
  if (!check->command || !interpreter(check->command[0], path)) {
    find(check, CHECK_pytorch, VERDICT_GOOD, "not looked for: no COMMAND that runs Python");
    return;
  }
  char *argv[] = {path, option, program, NULL};
  const enum check_end end = check_run(argv, "", 10000, output, sizeof output, &number);
  output[strcspn(output, "\n")] = 0;
  if (end == END_EXITED && !strcmp(output, "none"))
    find(check, CHECK_pytorch, VERDICT_GOOD, "%.300s has none", path);
  else if (end != END_EXITED || sscanf(output, "found %d", &major) != 1)
    find(check, CHECK_pytorch, VERDICT_GOOD, "%.300s did not tell", path);
  else if (major < 2)
    remedy(find(check, CHECK_pytorch, VERDICT_BLOCKS, "%.60s has no fused Adam that is recognised",
                output + 6),
           "PyTorch 2.0 or later, with torch.optim.AdamW(..., fused=True)");
  else
    find(check, CHECK_pytorch, VERDICT_GOOD, "%.60s; state moves of Adam and AdamW with fused=True",
         output + 6);
}
