/* The companion program `offload`: finds the subcommand of commands.def and calls it. */
#define _GNU_SOURCE
#include "command.h"
#include "nearest.h"
#include "version.h"
#include "words.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const struct command {
  const char *name, *arguments, *summary;
  int (*call)(int argc, char **argv);
} commands[] = {
#define COMMAND(name, arguments, summary) {#name, arguments, summary, offload_##name},
#include "commands.def"
#undef COMMAND
};
enum { COMMANDS = sizeof commands / sizeof *commands, NAME_MOST = 64, DOC_MOST = 4096 };

static char called[NAME_MOST] = "offload"; /* what messages begin with, argp's too */

void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: ", called);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

static bool output_lost;

bool output_end(void) {
  if (output_lost)
    return false;
  errno = 0; /* of an earlier write none is known any more */
  if (!fflush(stdout) && !ferror(stdout))
    return true;
  output_lost = true;
  say("standard output can't be written (%s)", errno ? strerror(errno) : "not all of it was taken");
  return false;
}

static void end_at_exit(void) {
  if (!output_lost && !output_end())
    _exit(EXIT_BLOCKED);
}

bool output_coloured(void) {
  const char *none = getenv("NO_COLOR"), *terminal = getenv("TERM");
  return isatty(STDOUT_FILENO) && !(none && *none) && !(terminal && !strcmp(terminal, "dumb"));
}

size_t output_columns(void) {
  const size_t usual = 80, least = 40;
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_col)
    return usual;
  return size.ws_col < least ? least : size.ws_col;
}

void print_wrapped(const char *text, size_t indent, size_t columns) {
  size_t column = indent;
  while (*text) {
    if (*text == '\n') {
      const size_t whole = text[1] == ' ' ? strcspn(text + 1, "\n") : 0;
      printf("\n%*s%.*s", (int)indent, "", (int)whole, text + 1);
      column = indent;
      text += 1 + whole;
      continue;
    }
    const size_t bytes = strcspn(text, " \n");
    char word[DOC_MOST];
    snprintf(word, sizeof word, "%.*s", (int)bytes, text);
    const size_t wide = words_columns(word);
    if (column > indent && column + 1 + wide > columns) {
      printf("\n%*s", (int)indent, "");
      column = indent;
    } else if (column > indent) {
      putchar(' ');
      column++;
    }
    fwrite(text, 1, bytes, stdout);
    column += wide;
    text += bytes + strspn(text + bytes, " ");
  }
}

void print_item(const char *head, const char *text) {
  fputs(head, stdout);
  print_wrapped(text, words_columns(head), output_columns());
  putchar('\n');
}

static const struct command *command_of(const char *name) {
  for (size_t i = 0; i < COMMANDS; i++)
    if (!strcmp(commands[i].name, name))
      return &commands[i];
  return NULL;
}

/* Text as one field of a line. */
static void print_field(const char *text) {
  putchar('\t');
  for (; text && *text; text++)
    if (*text == '\n')
      fputs("\\n", stdout);
    else
      putchar(*text == '\t' || *text == '\v' ? ' ' : *text);
}

static void print_fields(const char *kind, const char *const *fields, size_t count) {
  fputs(kind, stdout);
  for (size_t i = 0; i < count; i++)
    print_field(fields[i]);
  putchar('\n');
}
#define PRINT_LINE(kind, ...)                                                                      \
  print_fields(kind, (const char *const[]){__VA_ARGS__},                                           \
               sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* For man pages and the shell's completion (man/make.py): what a command takes, a line for each thing. */
static void dump_options(const struct argp *argp) {
  PRINT_LINE("doc", argp->doc);
  for (const struct argp_option *option = argp->options;
       option && (option->name || option->key || option->doc); option++) {
    const char letter[2] = {option->key > ' ' && option->key <= '~' ? (char)option->key : 0, 0};
    if (!option->name && option->doc)
      PRINT_LINE("group", option->doc);
    else if (option->name && !(option->flags & (OPTION_HIDDEN | OPTION_DOC)))
      PRINT_LINE("option", option->name, letter, option->arg, option->doc);
  }
}

static void dump(void) {
  for (size_t i = 0; i < COMMANDS; i++)
    PRINT_LINE("command", commands[i].name, commands[i].arguments, commands[i].summary);
#define VARIABLE(field, NAME, kind, initial, help)                                                 \
  PRINT_LINE("variable", NAME, #kind, initial, help);
#include "variables.def"
#undef VARIABLE
#define COUNTER(name, help) PRINT_LINE("counter", #name, help);
#include "counters.def"
#undef COUNTER
}

void command_parse(const struct argp *given, int argc, char **argv, unsigned flags, void *input) {
  const char *blank = strchr(argv[0], ' ');
  const struct command *command = command_of(blank ? blank + 1 : "");
  static char doc[DOC_MOST];
  struct argp argp = *given;
  if (argc == 2 && !strcmp(argv[1], "--dump")) {
    dump_options(given);
    exit(EXIT_SUCCESS);
  }
  if (command) {
    snprintf(doc, sizeof doc, "%c%s.%s%s", command->summary[0] & ~0x20, command->summary + 1,
             given->doc ? "\v" : "", given->doc ? given->doc : "");
    argp.doc = doc;
    argp.args_doc = given->args_doc ? given->args_doc : command->arguments;
  }
  const error_t error = argp_parse(&argp, argc, argv, flags, NULL, input);
  if (error) {
    say("%s", strerror(error));
    exit(EXIT_USAGE);
  }
}

static void print_help(void) {
  print_item("offload " OFFLOAD_VERSION ": ",
             "Adam's optimizer state in host memory, for unmodified CUDA programs");
  putchar('\n');
  for (size_t i = 0; i < COMMANDS; i++) {
    char head[NAME_MOST];
    snprintf(head, sizeof head, "  offload %-10s ", commands[i].name);
    print_item(head, commands[i].summary);
  }
  puts("\n`offload COMMAND --help` lists the options of each.\n");
  print_item("",
             "Variables, and what they are when not set. `offload run --host-memory 20GiB` sets "
             "OFFLOAD_HOST_MEMORY, and so on.");
  print_variables(false);
}

static int unknown_command(const char *name) {
  const char *names[COMMANDS];
  for (size_t i = 0; i < COMMANDS; i++)
    names[i] = commands[i].name;
  const char *nearest = nearest_name(name, names, COMMANDS);
  if (!*name)
    say("no command; `offload --help` lists them");
  else if (nearest)
    say("'%s' is no command; did you mean `offload %s`? `offload --help` lists them", name,
        nearest);
  else
    say("'%s' is no command; `offload --help` lists them", name);
  return EXIT_USAGE;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  const bool help = !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help");
  const bool version = !strcmp(name, "--version") || !strcmp(name, "-V");
  argp_program_version = "offload " OFFLOAD_VERSION;
  argp_err_exit_status = EXIT_USAGE;
  atexit(end_at_exit);
  if ((help || version) && argc > 2) {
    say("%s takes no argument, so not '%s'", name, argv[2]);
    return EXIT_USAGE;
  }
  if (help || version) {
    if (help)
      print_help();
    else
      puts(argp_program_version);
    return EXIT_SUCCESS;
  }
  if (!strcmp(name, "--dump") && argc == 2) {
    dump();
    return EXIT_SUCCESS;
  }
  const struct command *command = command_of(name);
  if (!command)
    return unknown_command(name);
  snprintf(called, sizeof called, "offload %s", command->name);
  argv[1] = called;
  return command->call(argc - 1, argv + 1);
}
