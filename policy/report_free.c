/* See report_free.h. */
#include "report_free.h"
#include "leaf.h"
#include "report.h"
#include <pthread.h>
#include <stdio.h>

enum { DEVICES_MOST = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct told {
  int device;
  uint64_t freed_bytes;
  char why[REPORT_FREE_WHY_BYTES];
} told[DEVICES_MOST];
static unsigned told_count;

void report_free(int device, uint64_t freed_bytes, const char *why) {
  unsigned i = 0;
  pthread_mutex_lock(&lock);
  while (i < told_count && told[i].device != device)
    i++;
  if (i < DEVICES_MOST) {
    told_count += i == told_count;
    told[i].device = device;
    told[i].freed_bytes = freed_bytes;
    (void)snprintf(told[i].why, sizeof told[i].why, "%s", why);
  }
  pthread_mutex_unlock(&lock);
}

void report_free_ended(const char *why) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < told_count; i++) {
    told[i].freed_bytes = 0;
    (void)snprintf(told[i].why, sizeof told[i].why, "%s", why);
  }
  pthread_mutex_unlock(&lock);
}

void report_free_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  told_count = 0;
}

/* What is known of device number i in the list. False beyond its end. */
static bool told_of(unsigned i, struct told *now) {
  if (!leaf_lock(&lock))
    return false;
  const bool more = i < told_count;
  *now = told[more ? i : 0];
  pthread_mutex_unlock(&lock);
  return more;
}

void report_free_lines(const struct config *config) {
  char freed[REPORT_SIZE_BYTES], asked[REPORT_SIZE_BYTES];
  struct told now;
  const bool asked_for = config->free_bytes.set && config->mode == MODE_FULL;
  for (unsigned i = 0; asked_for && told_of(i, &now); i++)
    if (now.freed_bytes < config->free_bytes.bytes && *now.why)
      report_line(LOG_NORMAL, "OFFLOAD_FREE: %s of device %d freed, %s asked for: %s",
                  report_size_text(now.freed_bytes, freed), now.device,
                  report_size_text(config->free_bytes.bytes, asked), now.why);
}

void report_free_json(struct json *json, const struct config *config) {
  if (!config->free_bytes.set) {
    json_string(json, "free", NULL);
    return;
  }
  json_begin(json, "free", '{');
  json_number(json, "asked_bytes", config->free_bytes.bytes);
  json_begin(json, "devices", '[');
  struct told now;
  for (unsigned i = 0; told_of(i, &now); i++) {
    json_begin(json, NULL, '{');
    json_number(json, "device", (uint64_t)now.device);
    json_number(json, "freed_bytes", now.freed_bytes);
    json_string(json, "why", now.why);
    json_end(json, '}');
  }
  json_end(json, ']');
  json_end(json, '}');
}
