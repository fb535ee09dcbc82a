/* See report_rates.h. Rates are whole numbers of bytes or elements a second, `launch` nanoseconds; what isn't known is null. */
#include "report_rates.h"
#include "leaf.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct {
  bool known;
  int device;
  struct rates rates;
  char path[1024], why[320];
} told;

void report_rates(int device, const struct rates *rates, const char *path, const char *why) {
  pthread_mutex_lock(&lock);
  if (!told.known || told.device == device) {
    told.known = true;
    told.device = device;
    told.rates = *rates;
    (void)snprintf(told.path, sizeof told.path, "%s", path ? path : "");
    (void)snprintf(told.why, sizeof told.why, "%s", why ? why : "");
  }
  pthread_mutex_unlock(&lock);
}

void report_rates_forget(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  memset(&told, 0, sizeof told);
}

static void rate(struct json *json, const char *name, double value) {
  if (!(value > 0 && value < 1e19))
    json_string(json, name, NULL);
  else if (!strcmp(name, "launch"))
    json_number(json, "launch", (uint64_t)(value * 1e9 + 0.5));
  else
    json_number(json, name, (uint64_t)(value + 0.5));
}

void report_rates_json(struct json *json) {
  if (!leaf_lock(&lock)) {
    json_string(json, "rates", NULL);
    return;
  }
  const bool known = told.known;
  const int device = told.device;
  const struct rates rates = told.rates;
  char path[sizeof told.path], why[sizeof told.why];
  memcpy(path, told.path, sizeof path);
  memcpy(why, told.why, sizeof why);
  pthread_mutex_unlock(&lock);
  if (!known) {
    json_string(json, "rates", NULL);
    return;
  }
  json_begin(json, "rates", '{');
  json_number(json, "ordinal", (uint64_t)device);
  json_string(json, "source", rates_source_name(rates.source));
  json_text_or_null(json, "path", path);
  json_text_or_null(json, "why", why);
#define RATE(name, unit, assumed, help) rate(json, #name, rates.name);
#include "rates.def"
#undef RATE
#define CHARGE(name, limit, help) json_string(json, #name, rates_charge_name(rates.name));
#include "charges.def"
#undef CHARGE
  json_end(json, '}');
}
