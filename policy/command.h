/* What the subcommands of `offload` have in common. Each is int offload_NAME(int argc, char **argv) in a file of that name, called
   once by main with argv[0] "offload NAME"; what it returns is the exit status. Output goes to stdout, what the user should know
   beside it to stderr. */
#ifndef OFFLOAD_COMMAND_H
#define OFFLOAD_COMMAND_H
#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

#define COMMAND(name, arguments, summary) int offload_##name(int argc, char **argv);
#include "commands.def"
#undef COMMAND

/* Exit statuses beside EXIT_SUCCESS. */
enum { EXIT_BLOCKED = 1, EXIT_USAGE = 2, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

/* A line on stderr with the prefix "offload COMMAND: ", "offload: " where there is no command. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes out what stdout still holds. What could not be written is told, once, and false. Also called at exit, where it makes the status
   EXIT_BLOCKED unless it was told before: who has another status in mind, or more to do, calls it first. */
bool output_end(void);
/* Whether stdout may have colours: a terminal, unless NO_COLOR is set and not empty, or TERM is dumb. */
bool output_coloured(void);

/* Of the terminal that stdout is, at least 40; 80 where it is none. */
size_t output_columns(void);
/* Text on stdout behind `indent` columns that are written: broken at blanks where it would pass `columns`, and indented. A newline begins a
   line, which isn't broken where it begins with a blank. */
void print_wrapped(const char *text, size_t indent, size_t columns);
/* A line of a list: `head`, then `text`, wrapped within the terminal and indented as the head is wide. */
void print_item(const char *head, const char *text);

/* Reads the command line of the subcommand that argv[0] names. The argp needs its options and parser; args_doc and the
   first sentence of its help come from commands.def, `doc` (or NULL) stands below its options. An option's `arg` is shown as
   it is: words separated by "|" are its only values, FILE and DIRECTORY are paths; the shell's completion takes them from here.
   `--help` and wrong options end the program (0, EXIT_USAGE). Parsers end it with argp_error too. */
void command_parse(const struct argp *, int argc, char **argv, unsigned flags, void *input);

/* ---- of single commands, for others ---- */

/* The table of variables on stdout; those for tests last, or not at all. */
void print_variables(bool for_tests);
#endif
