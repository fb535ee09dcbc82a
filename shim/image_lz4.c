/* The LZ4 block format (lz4_Block_format.md of the LZ4 project): sequences of a token, literals, and a match that repeats
   earlier output. Called by image_parse.c. Every length and distance is checked against both ends. */
#include "image_parse.h"
#include <string.h>

enum { MATCH_LEAST = 4, LONG = 15 };

/* A length whose first four bits said LONG goes on in bytes, of which the first below 255 is the last. */
static bool length_more(const uint8_t **at, const uint8_t *end, size_t *length) {
  uint8_t byte;
  do {
    if (*at == end)
      return false;
    byte = *(*at)++;
    *length += byte;
  } while (byte == 255);
  return true;
}

size_t image_lz4(const uint8_t *packed, size_t packed_bytes, uint8_t *to, size_t room) {
  const uint8_t *at = packed, *const end = packed + packed_bytes;
  size_t done = 0;
  while (at < end) {
    const unsigned token = *at++;
    size_t literals = token >> 4, match = token & LONG;
    if (literals == LONG && !length_more(&at, end, &literals))
      return 0;
    if (literals > (size_t)(end - at) || literals > room - done)
      return 0;
    memcpy(to + done, at, literals);
    at += literals;
    done += literals;
    if (at == end) /* the last sequence has no match */
      return done;
    if (end - at < 2)
      return 0;
    const size_t distance = at[0] | (size_t)at[1] << 8;
    at += 2;
    if (match == LONG && !length_more(&at, end, &match))
      return 0;
    match += MATCH_LEAST;
    if (!distance || distance > done || match > room - done)
      return 0;
    const uint8_t *from = to + done - distance;
    for (size_t i = 0; i < match; i++) /* may overlap what it writes */
      to[done + i] = from[i];
    done += match;
  }
  return 0;
}
