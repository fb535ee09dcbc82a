/* PTX text: `.entry NAME ( .param .u64 a, .param .align 8 .b8 b[3336], ... )`, as the PTX ISA declares kernels. Called by
   image_parse.c. */
#include "image_parse.h"
#include <string.h>

struct text {
  const char *at, *end;
};

/* A token: a word (with its leading dot), or one character. */
struct token {
  const char *at;
  size_t bytes;
};

static bool word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%';
}

/* Steps over a comment or a string at text->at; false where neither begins. */
static bool skip_aside(struct text *text) {
  const size_t left = (size_t)(text->end - text->at);
  const char *close = NULL;
  size_t open = 0, bytes = 1;
  if (left >= 2 && text->at[0] == '/' && text->at[1] == '/') {
    close = memchr(text->at, '\n', left);
  } else if (left >= 2 && text->at[0] == '/' && text->at[1] == '*') {
    open = 2;
    bytes = 2;
    for (const char *at = text->at + open; !close && text->end - at >= 2; at++)
      close = at[0] == '*' && at[1] == '/' ? at : NULL;
  } else if (left && text->at[0] == '"') {
    for (const char *at = text->at + 1; !close && at < text->end; at++) {
      if (*at == '\\' && at + 1 < text->end)
        at++;
      else if (*at == '"')
        close = at;
    }
  } else {
    return false;
  }
  text->at = close ? close + bytes : text->end;
  return true;
}

static struct token next(struct text *text) {
  while (text->at < text->end && ((unsigned char)*text->at <= ' ' || skip_aside(text)))
    if (text->at < text->end && (unsigned char)*text->at <= ' ')
      text->at++;
  struct token token = {text->at, 0};
  if (text->at == text->end)
    return token;
  do
    text->at++;
  while (text->at < text->end && word_character(*text->at) &&
         (word_character(*token.at) || *token.at == '.'));
  token.bytes = (size_t)(text->at - token.at);
  return token;
}

static bool is(struct token token, const char *word) {
  return token.bytes == strlen(word) && memcmp(token.at, word, token.bytes) == 0;
}

static bool number(struct token token, uint32_t *value) {
  uint64_t sum = 0;
  for (size_t i = 0; i < token.bytes; i++) {
    if (token.at[i] < '0' || token.at[i] > '9' || sum > UINT32_MAX / 16)
      return false;
    sum = sum * 10 + (uint64_t)(token.at[i] - '0');
  }
  *value = (uint32_t)sum;
  return token.bytes != 0;
}

/* Bytes of a type; 0 when the word is none. */
static uint32_t type_bytes(struct token token) {
  uint32_t bits = 0;
  if (is(token, ".bf16"))
    return 2;
  if (token.bytes < 3 || token.at[0] != '.' || !strchr("busf", token.at[1]) ||
      !number((struct token){token.at + 2, token.bytes - 2}, &bits))
    return 0;
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 0;
}

/* One parameter, to behind its comma or the closing bracket. False when it is not understood. */
static bool declaration(struct text *text, uint32_t *end_of_last, struct image_parameter *found,
                        bool *last) {
  uint32_t bytes = 0, alignment = 0, factor;
  uint64_t size = 1;
  bool understood = is(next(text), ".param"), of_pointee = false;
  for (;;) {
    const struct token token = next(text);
    if (!token.bytes)
      return false;
    *last = is(token, ")");
    if (*last || is(token, ","))
      break;
    if (is(token, ".ptr")) {
      of_pointee = true; /* state space and alignment that follow are those of what it points at */
    } else if (is(token, ".align")) {
      const bool right = number(next(text), &factor);
      understood = understood && right;
      if (!of_pointee)
        alignment = right ? factor : 0;
    } else if (is(token, "[")) {
      understood = number(next(text), &factor) && understood;
      size = understood ? size * factor : 0;
    } else if (*token.at == '.' && !of_pointee) {
      understood = understood && !bytes;
      bytes = type_bytes(token);
    }
    if (size > UINT16_MAX)
      return false;
  }
  alignment = alignment ? alignment : bytes;
  size *= bytes;
  if (!understood || !size || size > UINT16_MAX || (alignment & (alignment - 1)) != 0 ||
      alignment > 4096 || *end_of_last > UINT16_MAX)
    return false;
  found->offset = (*end_of_last + alignment - 1) & ~(alignment - 1);
  found->bytes = (uint32_t)size;
  *end_of_last = found->offset + found->bytes;
  return true;
}

static void entry(struct image_walk *walk, struct text *text) {
  const struct token name = next(text);
  struct image_kernel kernel = {.name = name.at, .name_bytes = name.bytes, .known = true};
  struct text ahead = *text;
  const struct token open = next(&ahead);
  bool last = !is(open, "("); /* without parameters, unless the text ends here */
  kernel.known = open.bytes != 0;
  if (!last) {
    *text = ahead;
    last = is(next(&ahead), ")");
  }
  uint32_t end = 0;
  while (!last && kernel.known) {
    kernel.known = kernel.count < IMAGE_PARAMETERS_MOST &&
                   declaration(text, &end, &walk->parameters[kernel.count], &last);
    kernel.count++;
  }
  kernel.parameters = walk->parameters;
  if (name.bytes)
    image_walk_kernel(walk, &kernel);
}

const char *image_ptx(struct image_walk *walk, const char *bytes, size_t size) {
  struct text text = {bytes, bytes + strnlen(bytes, size)};
  for (struct token token; !walk->enough && (token = next(&text)).bytes;)
    if (is(token, ".entry"))
      entry(walk, &text);
  return NULL;
}
