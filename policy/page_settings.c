/* See page_settings.h. What the initial values are in a report is had by reading them as the library does. */
#include "page_settings.h"
#include "config.h"
#include "words.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct variable {
  const char *field, *name, *kind, *initial;
} variables[] = {
#define VARIABLE(field, NAME, kind, initial, help) {#field, NAME, #kind, initial},
#include "variables.def"
#undef VARIABLE
};

size_t settings_count(void) {
  return sizeof variables / sizeof *variables;
}

const char *settings_name(size_t setting) {
  return variables[setting].name;
}

const char *settings_initial(size_t setting) {
  return variables[setting].initial;
}

static bool of_kind(const struct variable *variable, const char *kind) {
  return !strcmp(variable->kind, kind);
}

static bool is_size(const struct variable *variable) {
  return of_kind(variable, "SIZE") || of_kind(variable, "BYTES") || of_kind(variable, "WEAR");
}

/* The initial value as the report would have it. */
static bool same_as_initial(const struct variable *variable, const json_t *value) {
  const char *initial = variable->initial, *text = json_string_value(value);
  struct config_size size;
  if (is_size(variable)) {
    if (!*initial)
      return json_is_null(value);
    return json_is_integer(value) && config_parse_size(initial, &size) &&
           (uint64_t)json_integer_value(value) == size.bytes;
  }
  if (json_is_null(value) || text)
    return !strcmp(text ? text : "", initial);
  if (json_is_boolean(value))
    return json_is_true(value) == !strcmp(initial, "1");
  return json_is_integer(value) && json_integer_value(value) == strtoll(initial, NULL, 10);
}

bool settings_differs(size_t setting, const json_t *settings) {
  const json_t *value = view_at(settings, variables[setting].field);
  return value && !json_is_object(value) && !json_is_array(value) &&
         !same_as_initial(&variables[setting], value);
}

const char *settings_words(size_t setting, const json_t *settings, char *text, size_t bytes) {
  const json_t *value = view_at(settings, variables[setting].field);
  char words[WORDS_BYTES];
  if (json_is_string(value))
    snprintf(text, bytes, "%s", json_string_value(value));
  else if (json_is_boolean(value))
    snprintf(text, bytes, "%d", json_is_true(value));
  else if (json_is_integer(value) && is_size(&variables[setting]))
    snprintf(text, bytes, "%s", words_bytes((double)json_integer_value(value), words));
  else if (json_is_integer(value))
    snprintf(text, bytes, "%lld", (long long)json_integer_value(value));
  else
    snprintf(text, bytes, "-");
  return text;
}
