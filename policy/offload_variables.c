/* `offload variables`: every OFFLOAD_* variable with what it is when not set. */
#include "command.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct variable {
  const char *name, *initial, *help;
} variables[] = {
#define VARIABLE(field, NAME, kind, initial, help) {NAME, initial, help},
#include "variables.def"
#undef VARIABLE
};

void print_variables(bool for_tests) {
  for (int tests = 0; tests <= (for_tests ? 1 : 0); tests++)
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
      char head[64];
      if ((strstr(variables[i].help, "(for tests)") != NULL) != tests)
        continue;
      snprintf(head, sizeof head, "  OFFLOAD_%-18s %-8s ", variables[i].name,
               *variables[i].initial ? variables[i].initial : "-");
      if (for_tests && !isatty(STDOUT_FILENO))
        printf("%s%s\n", head, variables[i].help); /* a line each, for grep */
      else
        print_item(head, variables[i].help);
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  if (key != ARGP_KEY_ARG)
    return ARGP_ERR_UNKNOWN;
  argp_error(state, "variables takes no argument, so not '%s'", argument);
  return 0;
}

int offload_variables(int argc, char **argv) {
  const struct argp argp = {.parser = parse_option};
  command_parse(&argp, argc, argv, 0, NULL);
  print_variables(true);
  return EXIT_SUCCESS;
}
