/* What this machine does in a second: the link, host memory, drives, the CPU's arithmetic. Measured once per boot, driver and GPU by
   the program offload-probe and kept under XDG_CACHE_HOME, or told by OFFLOAD_RATES. The cost model (cost.h) reads nothing else of the
   machine. */
#ifndef OFFLOAD_RATES_H
#define OFFLOAD_RATES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a value came from; the worst of a file's values is the file's. */
enum rates_source { RATES_ASSUMED, RATES_TOLD, RATES_MEASURED };

/* A word in the file: "unknown", "no", "yes". */
enum rates_charge { CHARGE_UNKNOWN, CHARGE_NO, CHARGE_YES };

/* Bytes (or elements) in a second; 0: not known. One member a line in the file, "name value". */
struct rates {
#define RATE(name, unit, assumed, help) double name;
#include "rates.def"
#undef RATE
#define CHARGE(name, limit, help) enum rates_charge name;
#include "charges.def"
#undef CHARGE
  enum rates_source source;
};

const char *rates_source_name(enum rates_source); /* "assumed", "told", "measured" */
const char *rates_charge_name(enum rates_charge);

/* What is taken where nothing was measured: the column `assumed`, charges unknown. */
void rates_assume(struct rates *);

/* Reads "name value" lines, # begins a comment; what isn't named stays as it is. Numbers as 54.1e9, whatever the locale. False with a
   sentence that names line, value and remedy; then nothing has changed. */
bool rates_parse(struct rates *, const char *text, char *problem, size_t problem_bytes);
/* The same of a regular file or /dev/null, which the sentence names; `source` becomes RATES_TOLD, unless it names nothing. */
bool rates_read(struct rates *, const char *path, char *problem, size_t problem_bytes);
/* The file's text, every known rate and charge, a line each; the length as snprintf counts. */
int rates_format(const struct rates *, char *text, size_t bytes);

/* A sentence of why something can't be had; false. */
bool rates_fail(char *problem, size_t problem_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#endif
