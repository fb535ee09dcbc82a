/* A JSON writer into a file descriptor, kept small: no numbers but whole ones, no memory of its
   own. Called by report.c.

   Strings may hold anything: control characters are escaped, bytes that are no UTF-8 become U+FFFD,
   so that what is written is always JSON. The first error of writing is kept; later calls do
   nothing. */
#ifndef OFFLOAD_JSON_H
#define OFFLOAD_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
  int fd;
  int error; /* errno of the first failed write, 0 */
  unsigned depth;
  bool comma; /* something stands before the next member */
  size_t used;
  char buffer[1024];
};

void json_open(struct json *, int fd);

/* Containers and values. `key` is NULL in a list and at the top. */
void json_begin(struct json *, const char *key, char bracket);
void json_end(struct json *, char bracket);
/* `offload` links jansson beside this, whose function of that name is another. */
#define json_string json_write_string
void json_string(struct json *, const char *key, const char *value); /* NULL writes null */
void json_number(struct json *, const char *key, uint64_t value);
/* null for a number that isn't known, and for a text that is empty. */
void json_number_or_null(struct json *, const char *key, bool known, uint64_t value);
void json_text_or_null(struct json *, const char *key, const char *text);
void json_boolean(struct json *, const char *key, bool value);

/* Writes what is left, with a newline; the first error's errno, or 0. */
int json_close(struct json *);
#endif
