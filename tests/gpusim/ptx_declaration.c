/* Declarations of variables and parameters, and the initial values of variables. Called by
   ptx_module.c and ptx_body.c. */
#include "ptx.h"
#include <string.h>

uint64_t ptx_integer_read(struct ptx_parser *p) {
  uint64_t value = 0;
  bool decimal;
  struct ptx_word word = ptx_word_read(p);
  if (!ptx_number(word, &value, &decimal) || decimal)
    ptx_error(p, "a number is expected at '%.*s'", (int)word.length, word.text);
  return value;
}

void ptx_variable_read(struct ptx_parser *p, struct ptx_variable *variable) {
  memset(variable, 0, sizeof *variable);
  size_t vector = 1, count = 1;
  bool pointer = false; /* after .ptr: what it points at, not the variable */
  for (ptx_space_skip(p); *p->at == '.'; ptx_space_skip(p)) {
    struct ptx_word word = ptx_word_read(p);
    struct ptx_word type = {word.text + 1, word.length - 1};
    if (ptx_word_is(word, ".align")) {
      size_t alignment = ptx_integer_read(p);
      if (!pointer)
        variable->alignment = alignment;
    } else if (ptx_word_is(word, ".v2") || ptx_word_is(word, ".v4")) {
      vector = (size_t)(word.text[2] - '0');
    } else if (ptx_word_is(word, ".ptr")) {
      pointer = true;
    } else if (pointer && (ptx_word_is(word, ".global") || ptx_word_is(word, ".shared") ||
                           ptx_word_is(word, ".local") || ptx_word_is(word, ".const"))) {
      continue;
    } else if (ptx_word_is(word, ".attribute")) {
      ptx_skip_past(p, ')');
    } else if (ptx_type_named(type)) {
      variable->type = ptx_type_named(type);
    } else {
      ptx_error(p, "unknown word '%.*s' in a declaration", (int)word.length, word.text);
      return;
    }
  }
  variable->name = ptx_word_read(p);
  while (ptx_eat(p, '[')) {
    variable->array = true;
    if (ptx_eat(p, ']')) {
      variable->unsized = true;
      continue;
    }
    count *= ptx_integer_read(p);
    if (!ptx_eat(p, ']'))
      ptx_error(p, "] is expected after an array's size");
  }
  size_t element = ptx_type_bytes[variable->type] * vector;
  if (!variable->name.length || !element)
    ptx_error(p, "a type and a name are expected in a declaration");
  if (!variable->alignment)
    variable->alignment = element ? element : 1;
  variable->bytes = variable->unsized ? 0 : element * count;
}

/* One value of an initializer: a number, a variable's address, or generic(variable), each with
   an offset. */
static uint64_t initial_value(struct ptx_parser *p, enum ptx_type type) {
  uint64_t value;
  bool decimal, negative = ptx_eat(p, '-');
  struct ptx_word word = ptx_word_read(p);
  if (ptx_number(word, &value, &decimal)) {
    if (decimal && type == PTX_f32) {
      double wide;
      memcpy(&wide, &value, sizeof wide);
      float narrow = (float)wide;
      value = 0;
      memcpy(&value, &narrow, sizeof narrow);
    }
    if (!negative)
      return value;
    if (decimal)
      return value ^ (type == PTX_f32 ? UINT64_C(1) << 31 : UINT64_C(1) << 63);
    return 0 - value;
  }
  bool generic = ptx_word_is(word, "generic") && ptx_eat(p, '(');
  if (generic)
    word = ptx_word_read(p);
  struct ptx_symbol *symbol = ptx_symbol_find(&p->module->symbols, word);
  if (!symbol || symbol->space == PTX_SHARED)
    ptx_error(p, "'%.*s' can't initialize a variable", (int)word.length, word.text);
  value = symbol ? symbol->at : 0;
  if (generic && !ptx_eat(p, ')'))
    ptx_error(p, ") is expected after generic(");
  if (ptx_eat(p, '+'))
    value += ptx_integer_read(p);
  return value;
}

static void initial_values(struct ptx_parser *p, const struct ptx_variable *variable,
                           uint8_t *bytes, size_t *at) {
  size_t element = ptx_type_bytes[variable->type];
  do {
    if (ptx_eat(p, '{')) {
      initial_values(p, variable, bytes, at);
      if (!ptx_eat(p, '}'))
        ptx_error(p, "} is expected after an initializer");
      continue;
    }
    uint64_t value = initial_value(p, variable->type);
    if (*at + element > variable->bytes) {
      ptx_error(p, "too many initial values for %.*s", (int)variable->name.length,
                variable->name.text);
      return;
    }
    memcpy(bytes + *at, &value, element);
    *at += element;
  } while (!p->failed && ptx_eat(p, ','));
}

void ptx_initializer_read(struct ptx_parser *p, const struct ptx_variable *variable,
                          uint8_t *bytes) {
  size_t at = 0;
  if (!variable->array && variable->bytes == ptx_type_bytes[variable->type]) {
    uint64_t value = initial_value(p, variable->type);
    memcpy(bytes, &value, variable->bytes);
    return;
  }
  if (!ptx_eat(p, '{'))
    ptx_error(p, "{ is expected before an array's initial values");
  initial_values(p, variable, bytes, &at);
  if (!ptx_eat(p, '}'))
    ptx_error(p, "} is expected after an array's initial values");
}
