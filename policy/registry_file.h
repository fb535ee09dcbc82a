/* The registry's file: where it is, whose it must be, how it is laid out. For registry.c and its tests. */
#ifndef OFFLOAD_REGISTRY_FILE_H
#define OFFLOAD_REGISTRY_FILE_H
#include "registry.h"
#include <sys/stat.h>
#include <sys/types.h>

/* A slot's contents are copied a word at a time; `sequence` is odd while its owner writes. */
struct registry_slot {
  uint64_t sequence;
  union {
    struct registry_entry entry;
    uint64_t words[(sizeof(struct registry_entry) + 7) / 8];
  };
};

struct registry_header {
  char magic[16];
  uint32_t version, slots, slot_bytes, changes;
};

struct registry_file {
  union {
    struct registry_header header;
    char page[4096];
  };
  struct registry_slot slots[REGISTRY_SLOTS];
};

/* Bytes that are locked: one for whoever reads and writes claims, one for each slot. */
enum { REGISTRY_LEDGER_AT = 0, REGISTRY_LOCKS_AT = 1 };

/* Opens it, to be joined or (`make` false) only read, where it exists. -1 with a sentence. */
int registry_file_open(const char *root, bool make, char *problem, size_t problem_bytes);
/* Whether it has our layout. */
bool registry_file_good(int file);
/* Writes an empty one over it. */
bool registry_file_init(int file);

/* Record locks (F_SETLK): false when another process has it. */
bool registry_file_lock(int file, off_t at, bool take);
bool registry_file_locked(int file, off_t at, off_t bytes);
#endif
