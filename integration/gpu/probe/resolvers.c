/* P10: the names of the library's own table (shim/hooks.def), by dlsym and by cuGetProcAddress with
   every flag, for the version that had them first and for the driver's own. */
#include "probe.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct row {
  const char *symbol, *base;
  int version, per_thread;
};
static const struct row rows[] = {
#define HOOK(symbol, base, version, per_thread, parameters, arguments)                             \
  {#symbol, base, version, per_thread},
#define USE(symbol, base, version) {#symbol, base, version, 0},
#include "shim/hooks.def"
#undef HOOK
#undef USE
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Names that don't fit are counted only. */
struct names {
  char text[700];
  uint64_t count;
};

static void add_name(struct names *names, const char *name) {
  size_t length = strlen(names->text);
  names->count++;
  if (length + strlen(name) + 2 < sizeof names->text)
    snprintf(names->text + length, sizeof names->text - length, "%s%s", length > 0 ? " " : "",
             name);
}

static void tell(const char *key, const struct names *names) {
  fact_count(key, names->count);
  fact_text(named("%s_names", key), "%s", names->text);
}

static void *ask(const char *base, int version, cuuint64_t flags) {
  void *pointer = NULL;
  CUdriverProcAddressQueryResult status;
  CUresult result = CALL_CU(cuGetProcAddress_v2, base, &pointer, version, flags, &status);
  return result == CUDA_SUCCESS ? pointer : NULL;
}

/* Whether dlsym finds this very function under one of the names with that base. */
static bool exported(const char *base, const void *pointer) {
  static const char *const endings[] = {"",      "_v2",      "_v3",      "_v4",     "_ptsz",
                                        "_ptds", "_v2_ptsz", "_v2_ptds", "_v3_ptsz"};
  char name[128];
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    snprintf(name, sizeof name, "%s%s", base, endings[i]);
    if (driver_symbol(name) == pointer)
      return true;
  }
  return false;
}

void probe_resolvers(void) {
  static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                     CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
  static struct names different, not_exported, lacking, unanswered;
  int version = 0;
  uint64_t same = 0, questions = 0;
  start();
  MUST(cuDriverGetVersion, &version);
  fact_signed("driver_version", version);
  step("asking for every name");
  for (int i = 0; i < ROWS; i++) {
    const struct row *row = &rows[i];
    void *symbol = driver_symbol(row->symbol);
    if (symbol == NULL) {
      add_name(&lacking, row->symbol);
      if (row->version > version)
        continue;
    }
    void *pointer = ask(row->base, row->version, flags[row->per_thread ? 2 : 1]);
    if (pointer == NULL && symbol != NULL)
      add_name(&unanswered, row->symbol);
    else if (pointer == symbol)
      same += pointer != NULL;
    else
      add_name(&different, row->symbol);
    for (int v = 0; v < 2; v++)
      for (int f = 0; f < 3; f++) {
        pointer = ask(row->base, v == 0 ? row->version : version, flags[f]);
        questions += pointer != NULL;
        if (pointer != NULL && !exported(row->base, pointer))
          add_name(&not_exported, named("%s/%d/%llu", row->base, v == 0 ? row->version : version,
                                        (unsigned long long)flags[f]));
      }
  }
  fact_count("names", ROWS);
  fact_count("same_pointer", same);
  fact_count("answers", questions);
  tell("different_pointer", &different);
  tell("answers_not_exported", &not_exported);
  tell("lacking_symbols", &lacking);
  tell("unanswered", &unanswered);
  expect(same > 0, "cuGetProcAddress answers with the exported functions");
  /* a fact, no expectation: the library asks both ways and knows both pointers */
  fact_bool("all_pointers_same", different.count == 0 && not_exported.count == 0);
  expect(unanswered.count == 0, "cuGetProcAddress knows every name that the driver exports");
  /* each version of the resolver hands out the one that was asked for */
  void *old = ask("cuGetProcAddress", 11030, 0), *now = ask("cuGetProcAddress", 12000, 0);
  fact_bool("resolver_of_11_3_is_exported",
            old != NULL && old == driver_symbol("cuGetProcAddress"));
  fact_bool("resolver_of_12_0_is_exported",
            now != NULL && now == driver_symbol("cuGetProcAddress_v2"));
  fact_bool("unknown_name_is_null", ask("cuNoSuchFunction", version, 0) == NULL);
}
