/* The words of PTX: lexer, numbers, types, tables of names. Called by ptx_module.c, ptx_decode.c
   and ptx_lower.c. Words are slices of the module's text, so names of any length cost nothing. */
#include "ptx.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint8_t ptx_type_bytes[] = {
    0,
#define TYPE(name, bytes, class) bytes,
#include "ptx_types.def"
#undef TYPE
};
const uint8_t ptx_type_class[] = {
    PTX_UNSIGNED,
#define TYPE(name, bytes, class) PTX_##class,
#include "ptx_types.def"
#undef TYPE
};
const char *const ptx_type_names[] = {
    "",
#define TYPE(name, bytes, class) #name,
#include "ptx_types.def"
#undef TYPE
};

void ptx_error(struct ptx_parser *p, const char *format, ...) {
  if (p->failed)
    return;
  p->failed = true;
  int used = snprintf(p->error, p->error_bytes, "PTX line %u: ", p->line);
  if (used < 0 || (size_t)used >= p->error_bytes)
    return;
  va_list args;
  va_start(args, format);
  vsnprintf(p->error + used, p->error_bytes - (size_t)used, format, args);
  va_end(args);
}

void ptx_space_skip(struct ptx_parser *p) {
  for (;;) {
    if (*p->at == '\n') {
      p->line++;
      p->at++;
    } else if (isspace((unsigned char)*p->at)) {
      p->at++;
    } else if (p->at[0] == '/' && p->at[1] == '/') {
      p->at += strcspn(p->at, "\n");
    } else if (p->at[0] == '/' && p->at[1] == '*') {
      while (*p->at && !(p->at[0] == '*' && p->at[1] == '/'))
        p->line += *p->at++ == '\n';
      p->at += *p->at ? 2 : 0;
    } else {
      return;
    }
  }
}

static bool in_word(int c) {
  return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.';
}

struct ptx_word ptx_word_read(struct ptx_parser *p) {
  ptx_space_skip(p);
  struct ptx_word word = {p->at, 0};
  while (in_word((unsigned char)*p->at) ||
         (p->at > word.text && p->at[0] == ':' && p->at[1] == ':'))
    p->at += *p->at == ':' ? 2 : 1;
  word.length = (size_t)(p->at - word.text);
  return word;
}

bool ptx_eat(struct ptx_parser *p, char c) {
  ptx_space_skip(p);
  if (*p->at != c)
    return false;
  p->at++;
  return true;
}

void ptx_skip_past(struct ptx_parser *p, char end) {
  while (*p->at && *p->at != end)
    p->line += *p->at++ == '\n';
  if (*p->at)
    p->at++;
  else
    ptx_error(p, "the text ends before '%c'", end);
}

bool ptx_word_is(struct ptx_word word, const char *other) {
  return !strncmp(word.text, other, word.length) && !other[word.length];
}

/* Bits of an integer, of 0f<8 digits>, of 0d<16 digits>, or of the double that a decimal
   fraction means. */
bool ptx_number(struct ptx_word word, uint64_t *value, bool *is_decimal_float) {
  char copy[64], *end;
  *is_decimal_float = false;
  if (!word.length || word.length >= sizeof copy || !isdigit((unsigned char)*word.text))
    return false;
  memcpy(copy, word.text, word.length);
  copy[word.length] = 0;
  int kind = copy[0] == '0' ? tolower((unsigned char)copy[1]) : 0;
  if (kind == 'f' || kind == 'd') {
    *value = strtoull(copy + 2, &end, 16);
    return !*end && word.length == (kind == 'f' ? 10u : 18u);
  }
  if (kind == 'b') {
    *value = strtoull(copy + 2, &end, 2);
  } else if (kind != 'x' && strpbrk(copy, ".eE")) {
    double decimal = strtod(copy, &end);
    memcpy(value, &decimal, sizeof decimal);
    *is_decimal_float = true;
  } else {
    *value = strtoull(copy, &end, 0);
  }
  return !*end || (*end == 'U' && !end[1]);
}

enum ptx_type ptx_type_named(struct ptx_word word) {
  for (size_t i = 1; i < sizeof ptx_type_bytes; i++)
    if (ptx_word_is(word, ptx_type_names[i]))
      return (enum ptx_type)i;
  return PTX_untyped;
}

static uint32_t hash(struct ptx_word word) {
  uint32_t value = 5381;
  for (size_t i = 0; i < word.length; i++)
    value = value * 33 + (unsigned char)word.text[i];
  return value % PTX_BUCKETS;
}

/* `heads` counts from one, so that zeroed memory is an empty table. */
struct ptx_symbol *ptx_symbol_find(const struct ptx_symbols *table, struct ptx_word name) {
  for (int32_t i = table->heads[hash(name)]; i; i = table->items[i - 1].hash_next) {
    struct ptx_symbol *symbol = &table->items[i - 1];
    if (symbol->name.length == name.length && !memcmp(symbol->name.text, name.text, name.length))
      return symbol;
  }
  return NULL;
}

struct ptx_symbol *ptx_symbol_add(struct ptx_symbols *table, struct ptx_word name,
                                  enum ptx_symbol_kind kind) {
  table->items = ptx_grow(table->items, table->count, &table->capacity, sizeof *table->items);
  struct ptx_symbol *symbol = &table->items[table->count++];
  memset(symbol, 0, sizeof *symbol);
  symbol->name = name;
  symbol->kind = (uint8_t)kind;
  symbol->bucket = hash(name);
  symbol->hash_next = table->heads[symbol->bucket];
  table->heads[symbol->bucket] = (int32_t)table->count;
  return symbol;
}

void ptx_symbols_drop(struct ptx_symbols *table, uint32_t keep) {
  while (table->count > keep) {
    struct ptx_symbol *symbol = &table->items[--table->count];
    table->heads[symbol->bucket] = symbol->hash_next;
    free(symbol->offsets);
  }
}

void *ptx_grow(void *items, uint32_t count, uint32_t *capacity, size_t item_bytes) {
  if (count < *capacity)
    return items;
  *capacity = *capacity ? *capacity * 2 : 32;
  void *grown = realloc(items, *capacity * item_bytes);
  if (!grown) {
    fprintf(stderr, "gpusim: out of memory while reading PTX\n");
    abort();
  }
  return grown;
}
