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

/* Bytes (or elements) in a second; 0: not known. One member a line in the file, "name value". */
struct rates {
#define RATE(name, unit, assumed, help) double name;
#include "rates.def"
#undef RATE
  enum rates_source source;
};

/* What is taken where nothing was measured: the column `assumed`. */
void rates_assume(struct rates *);

/* Reads "name value" lines, # begins a comment; what isn't named stays as it is. False with a sentence that names line and remedy;
   then nothing has changed. */
bool rates_parse(struct rates *, const char *text, char *problem, size_t problem_bytes);
/* The same of a file. */
bool rates_read(struct rates *, const char *path, char *problem, size_t problem_bytes);
/* The file's text, every known rate; the length as snprintf counts. */
int rates_format(const struct rates *, char *text, size_t bytes);
#endif
