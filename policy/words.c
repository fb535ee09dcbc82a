/* See words.h. */
#include "words.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "12.3" and the unit, rounded as printf does, ties to the even figure; put together by hand, since the locale of the program that we are
   in may have another point. */
static const char *number(double value, int decimals, const char *unit, char text[WORDS_BYTES]) {
  static const unsigned powers[] = {1, 10, 100};
  const unsigned power = powers[decimals];
  const double most = 1e15, size = value < 0 ? -value : value;
  const double scaled = (size < most ? size : most) * power;
  unsigned long long figures = (unsigned long long)scaled;
  const double rest = scaled - (double)figures;
  figures += rest > 0.5 || (rest >= 0.5 && figures % 2);
  const char *minus = value < 0 && figures ? "-" : "";
  if (decimals)
    snprintf(text, WORDS_BYTES, "%s%llu.%0*llu %s", minus, figures / power, decimals,
             figures % power, unit);
  else
    snprintf(text, WORDS_BYTES, "%s%llu %s", minus, figures, unit);
  return text;
}

/* Three figures of a value below 1000 or so. */
static const char *three(double value, const char *unit, char text[WORDS_BYTES]) {
  return number(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, unit, text);
}

const char *words_bytes(double bytes, char text[WORDS_BYTES]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1023.5 && unit < 5; unit++)
    bytes /= 1024;
  if (unit)
    return three(bytes, units[unit], text);
  snprintf(text, WORDS_BYTES, bytes > 0 ? "%.0f bytes" : "0", bytes);
  return text;
}

const char *words_seconds(double seconds, char text[WORDS_BYTES]) {
  if (seconds <= 0) {
    snprintf(text, WORDS_BYTES, "0");
    return text;
  }
  if (seconds < 0.9995e-3)
    return three(seconds * 1e6, "us", text);
  if (seconds < 0.9995)
    return three(seconds * 1e3, "ms", text);
  return three(seconds, "s", text);
}

const char *words_count(uint64_t count, char text[WORDS_BYTES]) {
  char digits[WORDS_BYTES];
  const int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
  size_t used = 0;
  for (int i = 0; i < length; i++) {
    if (i && (length - i) % 3 == 0)
      text[used++] = ',';
    text[used++] = digits[i];
  }
  text[used] = 0;
  return text;
}

const char *words_rate(double bytes_per_second, char text[WORDS_BYTES]) {
  const double value = bytes_per_second / 1e9;
  if (value > 0 && value < 0.995)
    return three(value * 1e3, "MB/s", text);
  return three(value, "GB/s", text);
}

const char *words_share(double share, char text[WORDS_BYTES]) {
  return number(share * 100, share >= 0.09995 ? 0 : 1, "%", text);
}

size_t words_character(const char *text) {
  const unsigned char *c = (const unsigned char *)text;
  const size_t length = *c < 0x80                 ? 1
                        : *c >= 0xc2 && *c < 0xe0 ? 2
                        : *c >= 0xe0 && *c < 0xf0 ? 3
                        : *c >= 0xf0 && *c < 0xf5 ? 4
                                                  : 0;
  for (size_t i = 1; i < length; i++)
    if ((c[i] & 0xc0) != 0x80)
      return 0;
  /* Overlong forms, surrogates, and what is beyond Unicode. */
  if ((*c == 0xe0 && c[1] < 0xa0) || (*c == 0xed && c[1] > 0x9f) || (*c == 0xf0 && c[1] < 0x90) ||
      (*c == 0xf4 && c[1] > 0x8f))
    return 0;
  return length;
}

const char *words_plain(const char *from, char *text, size_t bytes) {
  size_t used = 0;
  while (*from) {
    const size_t length = words_character(from);
    const unsigned char *c = (const unsigned char *)from;
    /* C0, DEL and C1 (0xc2 0x80 to 0x9f) are what terminals obey; U+202A to U+202E and U+2066 to U+2069 turn the order of what follows. */
    const int turns = *c == 0xe2 && length == 3 &&
                      ((c[1] == 0x80 && c[2] >= 0xaa && c[2] <= 0xae) ||
                       (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));
    const int bad = !length || *c < ' ' || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0) || turns;
    const size_t put = bad ? 1 : length;
    if (used + put >= bytes)
      break;
    if (bad)
      text[used] = '?';
    else
      memcpy(text + used, from, length);
    used += put;
    from += length ? length : 1;
  }
  if (bytes)
    text[used] = 0;
  return text;
}

size_t words_columns(const char *text) {
  size_t columns = 0;
  for (; *text; text++)
    columns += ((unsigned char)*text & 0xc0) != 0x80;
  return columns;
}

size_t words_cut(const char *text, size_t columns) {
  size_t bytes = 0;
  for (; text[bytes]; bytes++)
    if (((unsigned char)text[bytes] & 0xc0) != 0x80 && columns-- == 0)
      break;
  return bytes;
}
