/* The settings of a report beside the initial ones of variables.def. `settings` is the report's object; others' kinds and missing keys
   differ from nothing. */
#ifndef OFFLOAD_PAGE_SETTINGS_H
#define OFFLOAD_PAGE_SETTINGS_H
#include "page_read.h"

size_t settings_count(void);
const char *settings_name(size_t setting);    /* "HOST_MEMORY" */
const char *settings_initial(size_t setting); /* as variables.def has it */
bool settings_differs(size_t setting, const json_t *settings);
/* "20.0 GiB", "80%", "cpu", "yes"; "-" when there is none. Returns `text`. */
const char *settings_words(size_t setting, const json_t *settings, char *text, size_t bytes);
#endif
