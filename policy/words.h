/* Numbers as a reader wants them, in a few characters, and UTF-8: for the report and for the program `offload`. No allocation, no
   locale. */
#ifndef OFFLOAD_WORDS_H
#define OFFLOAD_WORDS_H
#include <stddef.h>
#include <stdint.h>

enum { WORDS_BYTES = 32 };

/* "0", "812 MiB", "1.50 GiB": three figures. */
const char *words_bytes(double bytes, char text[WORDS_BYTES]);
/* "345 ms", "1.20 s", "12.3 us": three figures. */
const char *words_seconds(double seconds, char text[WORDS_BYTES]);
/* "1,234,567". */
const char *words_count(uint64_t count, char text[WORDS_BYTES]);
/* "24.1 GB/s" of 10^9 bytes, as links and drives are told. */
const char *words_rate(double bytes_per_second, char text[WORDS_BYTES]);
/* "2031-05-04T12:00:00.250Z", in UTC: of milliseconds since 1970. gmtime_r and strftime may read files of time zones. */
const char *words_time(uint64_t ms, char text[WORDS_BYTES]);
/* An errno in strerror's words, which without a locale are the same: those of writing a file; "error 5" for others. */
const char *words_error(int error, char text[WORDS_BYTES]);
/* "3.6 %". */
const char *words_share(double share, char text[WORDS_BYTES]);

/* Bytes of the well-formed UTF-8 character at `text`, 0 when there is none (overlong forms and surrogates are none). */
size_t words_character(const char *text);
/* Copies `from` for a terminal: control characters and bytes that are no UTF-8 become '?'. Returns `text`. */
const char *words_plain(const char *from, char *text, size_t bytes);
/* Columns that UTF-8 text takes, one each character. */
size_t words_columns(const char *text);
/* Bytes of the part of `text` that takes at most so many columns. */
size_t words_cut(const char *text, size_t columns);
#endif
