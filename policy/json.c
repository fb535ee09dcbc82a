/* See json.h. */
#include "json.h"
#include "out.h"
#include "words.h"
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

static void put_string(struct json *json, const char *text) {
  put(json, "\"", 1);
  for (const char *at = text; *at;) {
    const size_t bytes = words_character(at);
    const unsigned char c = (unsigned char)*at;
    if (!bytes) {
      put(json, "\\ufffd", 6);
      at++;
    } else if (*at == '"' || *at == '\\') {
      put(json, "\\", 1);
      put(json, at++, 1);
    } else if (c < 0x20 || c == 0x7f) {
      char escape[8];
      snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
      at++;
      put(json, escape, 6);
    } else {
      put(json, at, bytes);
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
