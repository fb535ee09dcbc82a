/* See json.h. */
#include "json.h"
#include "out.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void json_open(struct json *json, int fd) {
  json->fd = fd;
  json->error = 0;
  json->depth = 0;
  json->comma = false;
  json->used = 0;
}

static void flush(struct json *json) {
  if (!json->error)
    json->error = out_write(json->fd, json->buffer, json->used);
  json->used = 0;
}

static void put(struct json *json, const char *text, size_t bytes) {
  while (bytes) {
    const size_t room = sizeof json->buffer - json->used, part = bytes < room ? bytes : room;
    memcpy(json->buffer + json->used, text, part);
    json->used += part;
    text += part;
    bytes -= part;
    if (json->used == sizeof json->buffer)
      flush(json);
  }
}

/* Bytes of the UTF-8 character at `at`, 0 when there is none (overlong forms and surrogates are
 * none). */
static size_t utf8_bytes(const unsigned char *at) {
  if (at[0] < 0x80)
    return 1;
  if (at[0] < 0xc2 || at[0] > 0xf4 || (at[1] & 0xc0) != 0x80)
    return 0;
  if (at[0] < 0xe0)
    return 2;
  if ((at[2] & 0xc0) != 0x80 || (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f))
    return 0;
  if (at[0] < 0xf0)
    return 3;
  if ((at[3] & 0xc0) != 0x80 || (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
    return 0;
  return 4;
}

static void put_string(struct json *json, const char *text) {
  put(json, "\"", 1);
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    const size_t bytes = utf8_bytes(at);
    if (!bytes) {
      put(json, "\\ufffd", 6);
      at++;
    } else if (*at == '"' || *at == '\\') {
      put(json, "\\", 1);
      put(json, (const char *)at++, 1);
    } else if (*at < 0x20 || *at == 0x7f) {
      char escape[8];
      snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*at++);
      put(json, escape, 6);
    } else {
      put(json, (const char *)at, bytes);
      at += bytes;
    }
  }
  put(json, "\"", 1);
}

static void begin_member(struct json *json, const char *key) {
  if (json->comma)
    put(json, ",", 1);
  if (json->depth) {
    put(json, "\n", 1);
    for (unsigned i = 0; i < json->depth; i++)
      put(json, "  ", 2);
  }
  if (key) {
    put_string(json, key);
    put(json, ": ", 2);
  }
  json->comma = true;
}

void json_begin(struct json *json, const char *key, char bracket) {
  begin_member(json, key);
  put(json, &bracket, 1);
  json->depth++;
  json->comma = false;
}

void json_end(struct json *json, char bracket) {
  const bool filled = json->comma;
  json->depth--;
  if (filled) {
    put(json, "\n", 1);
    for (unsigned i = 0; i < json->depth; i++)
      put(json, "  ", 2);
  }
  put(json, &bracket, 1);
  json->comma = true;
}

void json_string(struct json *json, const char *key, const char *value) {
  begin_member(json, key);
  if (value)
    put_string(json, value);
  else
    put(json, "null", 4);
}

void json_number(struct json *json, const char *key, uint64_t value) {
  char digits[24];
  begin_member(json, key);
  const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
  put(json, digits, (size_t)n);
}

void json_number_or_null(struct json *json, const char *key, bool known, uint64_t value) {
  if (known)
    json_number(json, key, value);
  else
    json_string(json, key, NULL);
}

void json_text_or_null(struct json *json, const char *key, const char *text) {
  json_string(json, key, *text ? text : NULL);
}

void json_boolean(struct json *json, const char *key, bool value) {
  begin_member(json, key);
  put(json, value ? "true" : "false", value ? 4 : 5);
}

int json_close(struct json *json) {
  put(json, "\n", 1);
  flush(json);
  return json->error;
}
