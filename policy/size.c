/* See size.h. The grammar is strict on purpose: "20GB" is read as 10^9 by some and as 2^30 by others, so the error says
   what to write instead. Callers: config.c. */
#include "size.h"
#include "config.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool size_parse_number(const char **text, uint64_t most, uint64_t *number) {
  const char *at = *text;
  uint64_t value = 0;
  for (; *at >= '0' && *at <= '9'; at++) {
    const uint64_t digit = (uint64_t)(*at - '0');
    if (value > (most - digit) / 10)
      return false;
    value = value * 10 + digit;
  }
  if (at == *text || value > most)
    return false;
  *text = at;
  *number = value;
  return true;
}

bool config_parse_size(const char *text, struct config_size *size) {
  static const struct {
    const char *suffix;
    unsigned shift;
  } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  uint64_t number;
  if (!size_parse_number(&text, UINT64_MAX, &number))
    return false;
  if (!strcmp(text, "%")) {
    if (number < 1 || number > 100)
      return false;
    *size = (struct config_size){.percent = (unsigned)number, .set = true};
    return true;
  }
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcasecmp(text, units[i].suffix)) {
      if (number > UINT64_MAX >> units[i].shift)
        return false;
      *size = (struct config_size){.bytes = number << units[i].shift, .set = true};
      return true;
    }
  return false;
}

/* Drives' endurance is told in TB of 10^12 bytes, so that these are taken here as what they are. */
bool config_parse_wear(const char *text, struct wear_limit *limit) {
  static const struct {
    const char *suffix;
    uint64_t bytes;
  } units[] = {{"kB", 1000},          {"MB", 1000000},          {"GB", 1000000000},
               {"TB", 1000000000000}, {"PB", 1000000000000000}, {"PiB", (uint64_t)1 << 50}};
  enum { PERCENT_MOST = 255 }; /* a drive's count of what is used goes on above 100, up to this */
  const char *unit = text;
  uint64_t number;
  struct config_size size;
  if (!size_parse_number(&unit, UINT64_MAX, &number) || !number)
    return false;
  if (!strcmp(unit, "%")) {
    if (number > PERCENT_MOST)
      return false;
    *limit = (struct wear_limit){.percent = (unsigned)number, .set = true};
    return true;
  }
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcasecmp(unit, units[i].suffix)) {
      if (number > UINT64_MAX / units[i].bytes)
        return false;
      *limit = (struct wear_limit){.bytes = number * units[i].bytes, .set = true};
      return true;
    }
  if (!config_parse_size(text, &size))
    return false;
  *limit = (struct wear_limit){.bytes = size.bytes, .set = true};
  return true;
}

bool size_meant(const char *text, char meant[SIZE_MEANT_BYTES]) {
  static const char letters[] = "KMGT";
  uint64_t whole, thousandths = 0;
  if (!size_parse_number(&text, UINT64_MAX >> 20, &whole))
    return false;
  if (*text == '.' || *text == ',') {
    uint64_t weight = 100;
    for (text++; *text >= '0' && *text <= '9'; text++, weight /= 10)
      thousandths += weight * (uint64_t)(*text - '0');
  }
  text += strspn(text, " \t");
  struct config_size size;
  if (!strcmp(text, "%") && !thousandths) {
    snprintf(meant, SIZE_MEANT_BYTES, "%llu%%", (unsigned long long)whole);
    return config_parse_size(meant, &size);
  }
  size_t unit = 0;
  while (unit < 4 && strncasecmp(text, &letters[unit], 1) != 0)
    unit++;
  if (unit == 4 || (text[1] && strcasecmp(text + 1, "b") != 0 && strcasecmp(text + 1, "i") != 0 &&
                    strcasecmp(text + 1, "ib") != 0))
    return false;
  /* A fraction is told in the unit below. */
  char below[] = {'B', 0, 0, 0};
  if (thousandths) {
    whole = whole * 1024 + thousandths * 1024 / 1000;
    if (unit--)
      memcpy(below, (char[]){letters[unit], 'i', 'B'}, 3);
  } else {
    memcpy(below, (char[]){letters[unit], 'i', 'B'}, 3);
  }
  snprintf(meant, SIZE_MEANT_BYTES, "%llu%s", (unsigned long long)whole, below);
  return config_parse_size(meant, &size);
}
