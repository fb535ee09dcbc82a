/* The screen of `offload top`: what ranks show of themselves in the node's registry, as lines of text. A pure function of its
   arguments, so that tests compare lines; the terminal is offload_top.c's. */
#ifndef OFFLOAD_TOP_SCREEN_H
#define OFFLOAD_TOP_SCREEN_H
#include "registry.h"

enum top_sort { TOP_BY_RANK, TOP_BY_EXPOSED, TOP_BY_STEP, TOP_BY_DEVICE, TOP_SORTS };
const char *top_sort_name(enum top_sort);

struct top_view {
  unsigned columns, lines; /* lines 0: as many as there are */
  enum top_sort sort;
  bool paused, colour;
  bool keys; /* the last line tells the keys */
  bool utf8; /* bars of block characters, else of # */
  double interval_seconds;
  uint64_t now_ns; /* CLOCK_BOOTTIME */
};

/* The frame, lines ended by newlines, each at most view->columns wide and at most view->lines of them; the entries are sorted. To be
   freed; NULL without memory. */
char *top_screen(const struct top_view *, struct registry_entry *entries, size_t count);
#endif
