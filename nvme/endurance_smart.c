/* What a drive says of its endurance itself: the NVMe health log, by the kernel where this process may ask, else smartctl's JSON,
   which also knows ATA. Called by endurance.c, from any thread. */
#define _GNU_SOURCE
#include "endurance_internal.h"
#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- the NVMe log ---- */

/* Data units are a thousand sectors of 512 bytes. */
enum { UNIT_BYTES = 512000, AT_PERCENT_USED = 5, AT_UNITS_READ = 32, AT_UNITS_WRITTEN = 48 };

/* 128 bits, the lowest byte first; false when they are more than 64 hold. */
static bool wide(const uint8_t *bytes, uint64_t *number) {
  *number = 0;
  for (size_t i = 0; i < 8; i++)
    *number |= (uint64_t)bytes[i] << 8 * i;
  for (size_t i = 8; i < 16; i++)
    if (bytes[i])
      return false;
  return true;
}

static void set_written(struct drive_health *health, uint64_t units, uint64_t unit_bytes) {
  health->written_known = unit_bytes && units <= UINT64_MAX / unit_bytes;
  health->written_bytes = health->written_known ? units * unit_bytes : 0;
}

bool endurance_page(const uint8_t page[ENDURANCE_PAGE_BYTES], struct drive_health *health) {
  uint64_t units_read, units_written;
  const bool read_fits = wide(page + AT_UNITS_READ, &units_read),
             fits = wide(page + AT_UNITS_WRITTEN, &units_written);
  if (read_fits && fits && !units_read && !units_written)
    return false;
  health->percent_known = true;
  health->percent_used = page[AT_PERCENT_USED];
  if (fits)
    set_written(health, units_written, UNIT_BYTES);
  return true;
}

static bool read_page(const char *path, uint8_t page[ENDURANCE_PAGE_BYTES]) {
  enum { GET_LOG_PAGE = 2, HEALTH = 2, ALL_NAMESPACES = -1 };
  struct nvme_admin_cmd command = {.opcode = GET_LOG_PAGE,
                                   .nsid = (uint32_t)ALL_NAMESPACES,
                                   .addr = (uint64_t)(uintptr_t)page,
                                   .data_len = ENDURANCE_PAGE_BYTES,
                                   .cdw10 = HEALTH | (ENDURANCE_PAGE_BYTES / 4 - 1) << 16,
                                   .timeout_ms = ENDURANCE_RUN_MS};
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const bool answered = fd >= 0 && !ioctl(fd, NVME_IOCTL_ADMIN_CMD, &command);
  if (fd >= 0)
    close(fd);
  return answered;
}

/* ---- JSON, as much of it as smartctl's needs. Values are where they begin in the text; NULL: there is none. ---- */

static const char *blanks(const char *at) {
  return at + strspn(at, " \t\r\n");
}

static const char *string_end(const char *at) {
  for (at++; *at && *at != '"'; at++)
    if (*at == '\\' && at[1])
      at++;
  return *at ? at + 1 : NULL;
}

static const char *value_end(const char *at) {
  size_t depth = 0;
  do {
    if (*at == '"') {
      at = string_end(at);
      if (!at)
        return NULL;
    } else if (*at == '{' || *at == '[') {
      depth++;
      at++;
    } else if (depth && (*at == '}' || *at == ']')) {
      depth--;
      at++;
    } else if (depth) {
      at++;
    } else {
      at += strcspn(at, ",]} \t\r\n");
    }
  } while (depth && *at);
  return depth ? NULL : at;
}

static const char *next_value(const char *value) {
  const char *at = value_end(value);
  at = at ? blanks(at) : "";
  return *at == ',' ? blanks(at + 1) : NULL;
}

static const char *first_value(const char *list) {
  const char *at = list && (*list == '[' || *list == '{') ? blanks(list + 1) : "]";
  return *at == ']' || *at == '}' || !*at ? NULL : at;
}

static const char *member(const char *object, const char *name) {
  const size_t length = strlen(name);
  const char *at = object && *object == '{' ? first_value(object) : NULL;
  while (at && *at == '"') {
    const char *end = string_end(at), *colon = end ? blanks(end) : "";
    if (*colon != ':')
      return NULL;
    const char *value = blanks(colon + 1);
    if ((size_t)(end - at) == length + 2 && !memcmp(at + 1, name, length))
      return value;
    at = next_value(value);
  }
  return NULL;
}

static bool number(const char *value, uint64_t *result) {
  if (!value || *value < '0' || *value > '9')
    return false;
  *result = strtoull(value, NULL, 10);
  return true;
}

static bool string_is(const char *value, const char *text) {
  const size_t length = strlen(text);
  return value && *value == '"' && !strncmp(value + 1, text, length) && value[length + 1] == '"';
}

/* One of ATA's device statistics by its name, which the standard fixes, as smartctl's manual says. */
static bool statistic(const char *json, const char *name, uint64_t *result) {
  const char *pages = member(member(json, "ata_device_statistics"), "pages");
  for (const char *page = first_value(pages); page; page = next_value(page))
    for (const char *row = first_value(member(page, "table")); row; row = next_value(row))
      if (string_is(member(row, "name"), name))
        return number(member(row, "value"), result);
  return false;
}

bool endurance_json(const char *text, struct drive_health *health) {
  const char *json = blanks(text), *log = member(json, "nvme_smart_health_information_log");
  const char *model = member(json, "model_name");
  const char *end = model && *model == '"' ? string_end(model) : NULL;
  uint64_t percent, units, bytes;
  /* /sys cuts the models of ATA drives short. */
  if (end && (size_t)(end - model) - 2 > strlen(health->model))
    snprintf(health->model, sizeof health->model, "%.*s", (int)(end - model) - 2, model + 1);
  if (number(member(member(json, "user_capacity"), "bytes"), &bytes))
    health->capacity_bytes = bytes;
  if (number(member(log, "data_units_written"), &units))
    set_written(health, units, UNIT_BYTES);
  else if (statistic(json, "Logical Sectors Written", &units) &&
           number(member(json, "logical_block_size"), &bytes))
    set_written(health, units, bytes);
  health->percent_known =
      number(member(member(json, "endurance_used"), "current_percent"), &percent) ||
      number(member(log, "percentage_used"), &percent) ||
      statistic(json, "Percentage Used Endurance Indicator", &percent);
  if (health->percent_known)
    health->percent_used = percent < UINT8_MAX ? (unsigned)percent : UINT8_MAX;
  return health->percent_known;
}

/* ---- asking ---- */

static bool ask_smartctl(const char *path, struct drive_health *health) {
  enum { OUTPUT_BYTES = 128 << 10 };
  static const char *const programs[] = {"/usr/sbin/smartctl", "/usr/local/sbin/smartctl",
                                         "/sbin/smartctl", "/usr/bin/smartctl"};
  static const char *const arguments[] = {"smartctl", "-j", "-i", "-A", "-l", "devstat"};
  enum { FIXED = sizeof arguments / sizeof *arguments };
  char *output = malloc(OUTPUT_BYTES), *list[FIXED + 2];
  for (size_t i = 0; i < FIXED; i++)
    list[i] = (char *)(uintptr_t)arguments[i];
  list[FIXED] = (char *)(uintptr_t)path;
  list[FIXED + 1] = NULL;
  bool told = false;
  for (size_t i = 0; output && i < sizeof programs / sizeof *programs; i++)
    if (!access(programs[i], X_OK)) {
      told = endurance_run(programs[i], list, ENDURANCE_RUN_MS, output, OUTPUT_BYTES) &&
             endurance_json(output, health);
      break;
    }
  free(output);
  return told;
}

void endurance_ask(struct drive_health *health) {
  uint8_t page[ENDURANCE_PAGE_BYTES] = {0};
  char path[64];
  const char *source = "";
  snprintf(path, sizeof path, "/dev/%s", health->name);
  if (!strncmp(health->name, "nvme", 4) && read_page(path, page) && endurance_page(page, health))
    source = "nvme log";
  else if (*health->model && ask_smartctl(path, health)) /* virtual drives have no model */
    source = "smartctl";
  if (*source)
    snprintf(health->source, sizeof health->source, "%s", source);
}
