/* The text form of rates (rates.h): a line for each, read strictly and written so that it reads back. Called by the shim, the programs
   and tests; asks no locale (the program's may write commas in numbers). */
#define _GNU_SOURCE
#include "rates.h"
#include "report_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { FILE_MOST = 16384 }; /* bytes of a rates file, its comments included */

static const struct {
  const char *name;
  size_t offset; /* of struct rates */
  double assumed;
} table[] = {
#define RATE(name, unit, assumed, help) {#name, offsetof(struct rates, name), assumed},
#include "rates.def"
#undef RATE
};
enum { RATES = sizeof table / sizeof *table };

static const struct {
  const char *name;
  size_t offset;
} charges[] = {
#define CHARGE(name, limit, help) {#name, offsetof(struct rates, name)},
#include "charges.def"
#undef CHARGE
};
enum { CHARGES = sizeof charges / sizeof *charges };

static const char *const charge_names[] = {"unknown", "no", "yes"};

const char *rates_source_name(enum rates_source source) {
  static const char *const names[] = {"assumed", "told", "measured"};
  return names[source];
}

const char *rates_charge_name(enum rates_charge charge) {
  return charge_names[charge];
}

static double *value_at(struct rates *rates, size_t i) {
  return (double *)(void *)((char *)rates + table[i].offset);
}

static enum rates_charge *charge_at(struct rates *rates, size_t i) {
  return (enum rates_charge *)(void *)((char *)rates + charges[i].offset);
}

void rates_assume(struct rates *rates) {
  for (size_t i = 0; i < RATES; i++)
    *value_at(rates, i) = table[i].assumed;
  for (size_t i = 0; i < CHARGES; i++)
    *charge_at(rates, i) = CHARGE_UNKNOWN;
  rates->source = RATES_ASSUMED;
}

bool rates_fail(char *problem, size_t bytes, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(problem, bytes, format, arguments);
  va_end(arguments);
  return false;
}

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* A number that isn't negative, in [text, end): digits, a point and digits, an exponent of at most two digits. */
static bool read_number(const char *text, const char *end, double *value) {
  double number = 0;
  int exponent = 0, digits = 0;
  for (; text < end && is_digit(*text); text++, digits++)
    number = number * 10 + (*text - '0');
  if (text < end && *text == '.')
    for (text++; text < end && is_digit(*text); text++, digits++, exponent--)
      number = number * 10 + (*text - '0');
  if (!digits || digits > 24)
    return false;
  if (text < end && (*text == 'e' || *text == 'E')) {
    const bool minus = ++text < end && *text == '-';
    text += text < end && (*text == '-' || *text == '+');
    int given = 0;
    const char *first = text;
    for (; text < end && is_digit(*text); text++)
      given = text - first < 3 ? given * 10 + (*text - '0') : 100;
    if (text == first || given > 30)
      return false;
    exponent += minus ? -given : given;
  }
  /* One division or multiplication by a power that is exact up to 22: the nearest double, as strtod. */
  double power = 1;
  for (int i = exponent < 0 ? -exponent : exponent; i > 0; i--)
    power *= 10;
  *value = exponent < 0 ? number / power : number * power;
  return text == end;
}

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

struct word {
  const char *text;
  int bytes;
};

static bool is(const struct word *word, const char *name) {
  return strlen(name) == (size_t)word->bytes && !memcmp(name, word->text, (size_t)word->bytes);
}

static struct word next_word(const char **at, const char *end) {
  while (*at < end && is_blank(**at))
    ++*at;
  struct word word = {*at, 0};
  while (*at < end && !is_blank(**at))
    ++*at;
  word.bytes = (int)(*at - word.text);
  if (word.bytes > 80) /* as much of it as a sentence shows */
    word.bytes = 80;
  return word;
}

/* One line without its comment and end; `seen` has a flag for each rate, then for each charge. */
static bool read_line(struct rates *rates, bool *seen, unsigned line, const char *at,
                      const char *end, char *problem, size_t bytes) {
  const struct word name = next_word(&at, end), value = next_word(&at, end),
                    more = next_word(&at, end);
  if (!name.bytes)
    return true;
  if (!value.bytes)
    return rates_fail(problem, bytes, "line %u: \"%.*s\" has no value: write \"name value\"", line,
                      name.bytes, name.text);
  if (more.bytes)
    return rates_fail(
        problem, bytes,
        "line %u: \"%.*s\" is too much behind the value: write \"name value\", comments "
        "behind a #",
        line, more.bytes, more.text);
  size_t i = 0;
  while (i < RATES + CHARGES && !is(&name, i < RATES ? table[i].name : charges[i - RATES].name))
    i++;
  if (i == RATES + CHARGES)
    return rates_fail(
        problem, bytes,
        "line %u: \"%.*s\" is no rate that is known: remove the line, or write the file "
        "anew with `offload bench --rates FILE`",
        line, name.bytes, name.text);
  if (seen[i])
    return rates_fail(problem, bytes, "line %u: \"%.*s\" is there twice: remove one of the lines",
                      line, name.bytes, name.text);
  seen[i] = true;
  if (i < RATES) {
    if (!read_number(value.text, value.text + value.bytes, value_at(rates, i)))
      return rates_fail(
          problem, bytes,
          "line %u: %s is \"%.*s\", which is no number of 0 or more: write it as 54.1e9", line,
          table[i].name, value.bytes, value.text);
    return true;
  }
  for (size_t k = 0; k < sizeof charge_names / sizeof *charge_names; k++)
    if (is(&value, charge_names[k])) {
      *charge_at(rates, i - RATES) = (enum rates_charge)k;
      return true;
    }
  return rates_fail(problem, bytes, "line %u: %s is \"%.*s\": write yes, no or unknown", line,
                    charges[i - RATES].name, value.bytes, value.text);
}

bool rates_parse(struct rates *rates, const char *text, char *problem, size_t problem_bytes) {
  struct rates read = *rates;
  bool seen[RATES + CHARGES] = {false};
  for (unsigned line = 1; *text; line++) {
    const size_t length = strcspn(text, "\n");
    const char *comment = memchr(text, '#', length);
    if (!read_line(&read, seen, line, text, comment ? comment : text + length, problem,
                   problem_bytes))
      return false;
    text += length + (text[length] == '\n');
  }
  *rates = read;
  return true;
}

/* What has an end that is there at once: 0, or an errno. A FIFO's would be wherever its writer is by now. */
static int readable(int file) {
  struct stat at;
  if (!file_look(file, "", AT_EMPTY_PATH, &at))
    return errno;
  if (S_ISDIR(at.st_mode))
    return EISDIR;
  const bool nothing = S_ISCHR(at.st_mode) && at.st_rdev == makedev(1, 3); /* /dev/null */
  return S_ISREG(at.st_mode) || nothing ? 0 : EINVAL;
}

/* The whole of a file of at most FILE_MOST bytes, for the caller to free; NULL with errno. */
static char *text_of(const char *path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return NULL;
  const int unfit = readable(file);
  char *text = unfit ? NULL : malloc(FILE_MOST + 2);
  if (!text) {
    close(file);
    errno = unfit ? unfit : ENOMEM;
    return NULL;
  }
  size_t used = 0;
  ssize_t got = 1;
  while (got > 0 && used <= FILE_MOST) {
    got = read(file, text + used, FILE_MOST + 1 - used);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      used += (size_t)got;
  }
  int error = got < 0 ? errno : used > FILE_MOST ? EFBIG : 0;
  if (!error && memchr(text, 0, used))
    error = EILSEQ;
  close(file);
  if (error) {
    free(text);
    errno = error;
    return NULL;
  }
  text[used] = 0;
  return text;
}

bool rates_read(struct rates *rates, const char *path, char *problem, size_t problem_bytes) {
  char *text = text_of(path), shown[REPORT_FILE_SHOWN];
  (void)report_file_shown(path, shown);
  if (!text)
    return rates_fail(problem, problem_bytes,
                      "%s: %s: name a file that `offload bench --rates FILE` wrote", shown,
                      errno == EFBIG    ? "too large for a file of rates"
                      : errno == EILSEQ ? "no text"
                      : errno == EINVAL ? "neither a regular file nor /dev/null"
                                        : strerror(errno));
  char why[400];
  const bool good = rates_parse(rates, text, why, sizeof why);
  const bool named = strspn(text, " \t\r\n") < strlen(text);
  free(text);
  if (!good)
    return rates_fail(problem, problem_bytes, "%s: %s", shown, why);
  if (named)
    rates->source = RATES_TOLD;
  return true;
}

/* A number with seven digits and an exponent that is a multiple of three, "54.1e9". */
static int write_number(char *text, size_t bytes, double value) {
  int exponent = 0;
  for (; value >= 1000; exponent += 3)
    value /= 1000;
  for (; value < 1; exponent -= 3)
    value *= 1000;
  unsigned long parts = (unsigned long)(value * 1e4 + 0.5);
  if (parts >= 10000000) { /* rounded up to a thousand */
    parts /= 1000;
    exponent += 3;
  }
  char digits[24];
  int length = snprintf(digits, sizeof digits, "%lu.%04lu", parts / 10000, parts % 10000);
  while (digits[length - 1] == '0')
    length--;
  length -= digits[length - 1] == '.';
  return exponent ? snprintf(text, bytes, "%.*se%d", length, digits, exponent)
                  : snprintf(text, bytes, "%.*s", length, digits);
}

int rates_format(const struct rates *rates, char *text, size_t bytes) {
  struct rates copy = *rates;
  size_t used = 0;
  for (size_t i = 0; i < RATES + CHARGES; i++) {
    char value[32];
    if (i < RATES) {
      if (!(*value_at(&copy, i) > 0 && *value_at(&copy, i) < 1e30))
        continue;
      write_number(value, sizeof value, *value_at(&copy, i));
    } else {
      if (*charge_at(&copy, i - RATES) == CHARGE_UNKNOWN)
        continue;
      (void)snprintf(value, sizeof value, "%s", charge_names[*charge_at(&copy, i - RATES)]);
    }
    const size_t room = used < bytes ? bytes - used : 0;
    const int length = snprintf(room ? text + used : NULL, room, "%-17s %s\n",
                                i < RATES ? table[i].name : charges[i - RATES].name, value);
    used += (size_t)length;
  }
  if (bytes && !used)
    *text = 0;
  return (int)used;
}
