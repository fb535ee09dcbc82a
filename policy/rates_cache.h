/* Rates that were measured here before: a file for each boot, driver, GPU and list of drives, under XDG_CACHE_HOME (else HOME/.cache)
   in liboffload/rates-<boot>-<hash>. What names another boot, driver or GPU in its second line is never taken; what can't be read
   is as if it weren't there. Called by the shim, by offload-probe, which alone writes, and by `offload`. */
#ifndef OFFLOAD_RATES_CACHE_H
#define OFFLOAD_RATES_CACHE_H
#include "rates.h"

enum { RATES_PATH_BYTES = 4096 };

/* What rates hold for. */
struct rates_key {
  char boot[40];
  char driver[64];
  char gpu[64];       /* PCI bus id */
  char name[96];      /* the GPU's, for who reads the file; holds for nothing */
  const char *drives; /* directories as OFFLOAD_NVME has them; NULL: none */
};

/* Boot and driver. `root` is prefixed to /proc and /sys (NULL: the real ones); `version` is cuDriverGetVersion's answer, the driver's
   name where /sys doesn't tell the kernel module's (0: not asked). False where the boot can't be told: then nothing is kept. */
bool rates_key_here(struct rates_key *, const char *root, int version);

/* Where they lie. False with a sentence where there is no place, HOME not set. */
bool rates_cache_path(const struct rates_key *, char path[RATES_PATH_BYTES], char *problem,
                      size_t problem_bytes);

/* What is there; the path as above. False, nothing changed, when there is nothing. */
bool rates_cached(const struct rates_key *, struct rates *, char path[RATES_PATH_BYTES]);

struct rates_kept {
  char path[RATES_PATH_BYTES]; /* "": none */
  char gpu[64], name[96];      /* bus id; the GPU's name, "" where the file doesn't tell it */
  int64_t when;                /* seconds since 1970 */
};

/* The newest of this boot and driver, for who has no GPU to ask. `here`: only of a GPU that is in this machine now, as its driver's
   /proc or the PCI bus says. Drives' rates are those of `drives` (NULL: none), else 0. False where there is none. */
bool rates_cached_newest(const char *root, bool here, const char *drives, struct rates *,
                         struct rates_kept *);

/* Makes the directories and waits until `until_ns` (CLOCK_MONOTONIC) to be the only one that measures for this key: a descriptor to
   be closed, or -1 with a sentence. `what` NULL: the key's; else a name of what is measured one after another on this node. */
int rates_cache_lock(const struct rates_key *, const char *what, uint64_t until_ns, char *problem,
                     size_t problem_bytes);

/* Puts them there, whole or not at all. For the holder of the lock. */
bool rates_cache_store(const struct rates_key *, const struct rates *, char *problem,
                       size_t problem_bytes);

/* Text of a file: two lines that say what it is for, then the rates. The length as snprintf counts. */
int rates_text(const struct rates_key *, const struct rates *, char *text, size_t bytes);
#endif
