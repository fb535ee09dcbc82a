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
