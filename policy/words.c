/* See words.h. */
#include "words.h"
#include <errno.h>
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

const char *words_time(uint64_t ms, char text[WORDS_BYTES]) {
  enum { DAY_S = 86400, ERA_DAYS = 146097, BEFORE_1970 = 719468 };
  const uint64_t seconds = ms / 1000, days = seconds / DAY_S + BEFORE_1970; /* since March 1, 0 */
  const uint64_t era = days / ERA_DAYS, day_of_era = days % ERA_DAYS;
  const uint64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / (ERA_DAYS - 1)) / 365;
  const uint64_t day_of_year =
      day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const uint64_t from_march = (5 * day_of_year + 2) / 153; /* 0: March */
  const unsigned month = (unsigned)(from_march < 10 ? from_march + 3 : from_march - 9),
                 day = (unsigned)(day_of_year - (153 * from_march + 2) / 5 + 1),
                 of_day = (unsigned)(seconds % DAY_S);
  const unsigned year = (unsigned)((era * 400 + year_of_era + (month <= 2)) % 10000);
  snprintf(text, WORDS_BYTES, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", year, month % 100, day % 100,
           of_day / 3600, of_day / 60 % 60, of_day % 60, (unsigned)(ms % 1000));
  return text;
}

const char *words_error(int error, char text[WORDS_BYTES]) {
  static const struct {
    int error;
    const char *words;
  } known[] = {{EPERM, "Operation not permitted"},
               {ENOENT, "No such file or directory"},
               {EIO, "Input/output error"},
               {ENXIO, "No such device or address"},
               {EAGAIN, "Resource temporarily unavailable"},
               {ENOMEM, "Cannot allocate memory"},
               {EACCES, "Permission denied"},
               {ENOTDIR, "Not a directory"},
               {EISDIR, "Is a directory"},
               {EMFILE, "Too many open files"},
               {ENFILE, "Too many open files in system"},
               {EFBIG, "File too large"},
               {ENOSPC, "No space left on device"},
               {EROFS, "Read-only file system"},
               {EPIPE, "Broken pipe"},
               {ENAMETOOLONG, "File name too long"},
               {ELOOP, "Too many levels of symbolic links"},
               {EDQUOT, "Disk quota exceeded"},
               {ESTALE, "Stale file handle"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].error == error)
      return known[i].words;
  snprintf(text, WORDS_BYTES, "error %d", error);
  return text;
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
