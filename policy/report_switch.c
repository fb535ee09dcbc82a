/* See report_switch.h. Signal and number are written from the beginning, so that whoever wants to use it finds them. */
#include "report_switch.h"
#include "leaf.h"
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct report_switch told;
static struct {
  bool known, watched;
  const char *why; /* a literal */
} handler;

void report_switch(const struct report_switch *now) {
  pthread_mutex_lock(&lock);
  told = *now;
  pthread_mutex_unlock(&lock);
}

struct report_switch report_switch_now(void) {
  struct report_switch now = {0};
  if (leaf_lock(&lock)) {
    now = told;
    pthread_mutex_unlock(&lock);
  }
  return now;
}

void report_switch_watched(bool watched, const char *why) {
  pthread_mutex_lock(&lock);
  handler.known = true;
  handler.watched = watched;
  handler.why = why;
  pthread_mutex_unlock(&lock);
}

void report_switch_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  memset(&told, 0, sizeof told);
  memset(&handler, 0, sizeof handler);
}

void report_switch_json(struct json *json, const struct config *config) {
  char name[SIGNAL_NAME_BYTES];
  const struct report_switch now = report_switch_now();
  const bool locked = leaf_lock(&lock);
  const bool watched = locked && handler.watched;
  const char *why = !config->switch_signal ? "OFFLOAD_SIGNAL=none"
                    : !locked              ? "not known: the process ended while it was written"
                    : !handler.known       ? "no step of a known optimizer was launched yet"
                                           : handler.why;
  if (locked)
    pthread_mutex_unlock(&lock);
  json_begin(json, "switch", '{');
  json_string(json, "signal", config_signal_name(config->switch_signal, name));
  json_number(json, "number", (uint64_t)config->switch_signal);
  json_boolean(json, "watched", watched);
  json_string(json, "why", why);
  json_boolean(json, "used", now.used);
  json_boolean(json, "whole", now.whole);
  json_number(json, "step", now.step);
  json_number(json, "home_bytes", now.home_bytes);
  json_number(json, "host_bytes", now.host_bytes);
  json_number(json, "drive_bytes", now.drive_bytes);
  json_number(json, "released_device_bytes", now.released_device_bytes);
  json_number(json, "released_pinned_bytes", now.released_pinned_bytes);
  json_end(json, '}');
}
