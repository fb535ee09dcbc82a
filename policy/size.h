/* Sizes as text: what config_parse_size and config_parse_wear (config.h) accept, and what was meant by what it doesn't. Allocates and prints
   nothing. */
#ifndef OFFLOAD_SIZE_H
#define OFFLOAD_SIZE_H
#include <stdbool.h>
#include <stdint.h>

/* A whole decimal number at *text, which moves behind it; false when there is none or it exceeds `most`. */
bool size_parse_number(const char **text, uint64_t most, uint64_t *number);

/* The accepted form of a size that isn't accepted: "20GiB" for "20GB", "20g" or "20 GiB", "1536MiB" for "1.5GiB". False
   when nothing can be told. */
enum { SIZE_MEANT_BYTES = 32 };
bool size_meant(const char *text, char meant[SIZE_MEANT_BYTES]);
#endif
